"""Prompts with the tokens that must follow: the data of the small decoders that are trained here, and their answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

IGNORED = -100  # label of a token that no loss counts, as in transformers and torch


@dataclass(frozen=True)
class Completions:
    """N sequences of prompt and target.

    Attributes:
        tokens: (N, S) ids, padded on the right with 0.
        labels: (N, S), the token itself where it belongs to a target, else `IGNORED`: at prompts and padding.
    """

    tokens: Tensor
    labels: Tensor

    @classmethod
    def of(cls, prompts: Tensor, targets: Tensor) -> Self:
        """Of prompts (N, p) and targets (N, t), all of one length.

        Raises:
            ValueError: if there is no prompt or target, or their numbers differ.
        """
        if not prompts.numel() or not targets.numel() or len(prompts) != len(targets):
            raise ValueError(
                f"give prompts (N, p) and targets (N, t) of as many rows, not {tuple(prompts.shape)} and "
                f"{tuple(targets.shape)}"
            )
        return cls(torch.cat([prompts, targets], 1), torch.cat([torch.full_like(prompts, IGNORED), targets], 1))

    @classmethod
    def join(cls, parts: Sequence[Completions]) -> Self:
        """All sequences of several sets, padded to the longest."""
        longest = max(part.tokens.shape[1] for part in parts)
        pads = [(0, longest - part.tokens.shape[1]) for part in parts]
        return cls(
            torch.cat([F.pad(part.tokens, pad) for part, pad in zip(parts, pads, strict=True)]),
            torch.cat([F.pad(part.labels, pad, value=IGNORED) for part, pad in zip(parts, pads, strict=True)]),
        )

    def __len__(self) -> int:
        return len(self.tokens)

    def draw(self, generator: torch.Generator, size: int) -> Completions:
        """`size` of the sequences, with replacement."""
        rows = torch.randint(len(self), (size,), generator=generator)
        return Completions(self.tokens[rows], self.labels[rows])


def completion_loss(model: nn.Module, batch: Completions) -> Tensor:
    """Mean cross-entropy in nats of the target tokens."""
    logits: Tensor = model(batch.tokens[:, :-1], use_cache=False).logits
    return F.cross_entropy(logits.flatten(0, 1), batch.labels[:, 1:].flatten(), ignore_index=IGNORED)


@torch.no_grad()
def target_log_probs(model: nn.Module, batch: Completions) -> Tensor:
    """Log-probability (N, S - 1), in nats, of each target token given those before it; 0 at all other tokens."""
    logits: Tensor = model(batch.tokens[:, :-1], use_cache=False).logits
    logp = logits.log_softmax(-1).gather(-1, batch.tokens[:, 1:, None])[..., 0]
    return logp.masked_fill(batch.labels[:, 1:] == IGNORED, 0.0)


@torch.no_grad()
def greedy_completions(model: PreTrainedModel, prompts: Tensor, count: int) -> Tensor:
    """The `count` tokens (N, count) that the model itself writes after prompts (N, p), each fed back.

    The model's end-of-text token is never written.

    Raises:
        ValueError: if prompt and completion are longer than the model's context.
    """
    limit = getattr(model.config, "max_position_embeddings", None)
    if limit is not None and prompts.shape[1] + count > limit:
        raise ValueError(f"{prompts.shape[1]} + {count} tokens do not fit into the model's context of {limit}")
    every = torch.ones_like(prompts)
    generate: Any = model.generate
    sequences: Tensor = generate(
        prompts, attention_mask=every, max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=0
    )
    return sequences[:, prompts.shape[1] :]


def small_decoder(
    vocabulary: int, context: int, *, layers: int = 2, width: int = 64, heads: int = 4, dropout: float = 0.0
) -> GPT2LMHeadModel:
    """An untrained decoder: pre-norm, learned positions, tied embeddings; its weights come from the global generator.

    Raises:
        ValueError: if the width is not a multiple of the number of heads, or a size is below 1.
    """
    if min(vocabulary, context, layers, width, heads) < 1 or width % heads:
        raise ValueError(
            f"sizes must be at least 1 and the width a multiple of the heads, not vocabulary {vocabulary}, context "
            f"{context}, {layers} layers, width {width}, {heads} heads"
        )
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=vocabulary,
            n_positions=context,
            n_layer=layers,
            n_embd=width,
            n_head=heads,
            activation_function="gelu_pytorch_tanh",  # GPT-2's own function, in one kernel
            embd_pdrop=dropout,
            resid_pdrop=dropout,
            attn_pdrop=0.0,
            bos_token_id=None,
            eos_token_id=None,
        )
    )
