"""Conversations in a batch: prompts of unequal length, and replies written behind them with a key-value cache."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase


def encode_prompts(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], context: int, new_tokens: int = 0
) -> tuple[Tensor, Tensor]:
    """Token ids (B, S) of prompts, padded on the left, and the mask (B, S) that is True at real tokens.

    Padding takes the pad token, or the end-of-text token where there is none: the mask hides it in either case.

    Args:
        tokenizer: left as it is.
        texts: the prompts.
        context: positions of the model.
        new_tokens: tokens that are to fit behind each prompt.

    Raises:
        ValueError: if a prompt is empty or does not fit, or if the tokenizer has neither of the two tokens.
    """
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    if pad is None:
        raise ValueError("the tokenizer has neither a pad nor an end-of-text token: set tokenizer.pad_token")
    if not texts:
        raise ValueError("there are no prompts: give at least one text")
    rows = [tokenizer(text).input_ids for text in texts]
    for number, row in enumerate(rows):
        if not row or len(row) + new_tokens > context:
            raise ValueError(
                f"prompt {number} has {len(row)} tokens and {new_tokens} are to follow, but the model holds 1 to "
                f"{context}: shorten or drop it"
            )
    longest = max(map(len, rows))
    tokens = torch.tensor([[pad] * (longest - len(row)) + row for row in rows])
    lengths = torch.tensor([len(row) for row in rows])
    return tokens, torch.arange(longest) >= (longest - lengths)[:, None]


@torch.no_grad()
def respond(
    model: PreTrainedModel, tokens: Tensor, mask: Tensor, new_tokens: int, generator: torch.Generator | None = None
) -> Tensor:
    """Prompts with `new_tokens` tokens behind them, (B, S + new_tokens), by way of the key-value cache.

    The tokens are sampled at temperature 1, or the likeliest ones where no generator is given. The last of them is
    written, but not read by the model. End-of-text tokens do not stop a reply.

    Raises:
        ValueError: if prompt and reply exceed the positions of the model.
    """
    limit = getattr(model.config, "max_position_embeddings", None)
    if limit is not None and tokens.shape[1] + new_tokens > limit:
        raise ValueError(
            f"a prompt of {tokens.shape[1]} tokens and a reply of {new_tokens} exceed the {limit} positions of the "
            "model: shorten one of them"
        )
    # Later releases of transformers renamed the argument.
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    options: dict[str, Any] = {name: DynamicCache(config=model.config), "use_cache": True, "logits_to_keep": 1}
    step, everything = tokens, [tokens]
    for _ in range(new_tokens):
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -step.shape[1] :]
        logits = model(step, attention_mask=mask.long(), position_ids=positions, **options).logits[:, -1].float()
        if generator is not None:  # the largest of logits with Gumbel noise is a sample
            uniform = torch.rand(logits.shape, generator=generator, device=generator.device).to(logits)
            logits = logits - (-uniform.log()).log()
        step = logits.argmax(-1, keepdim=True)
        everything.append(step)
        mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
    return torch.cat(everything, dim=1)
