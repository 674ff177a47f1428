"""Tiny random decoders of six families, and tokenizers, for tests of what takes a Hugging Face model."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import Tensor, nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    ViTConfig,
    ViTForImageClassification,
)

FAMILIES = ("llama", "mistral", "gpt2", "qwen2", "qwen3", "neox", "neox in series")
WIDTH, HEADS, INNER = 16, 4, 20  # of the stream, of attention, of the MLP

every_family = pytest.mark.parametrize("family", FAMILIES)
Model = TypeVar("Model", bound=nn.Module)


def tiny_decoder(
    family: str = "llama", seed: int = 0, *, layers: int = 3, vocabulary: int = 31, context: int = 24, **options: Any
) -> PreTrainedModel:
    """Width 16, four heads over two groups of keys where the family has them; weights so large that all matter.

    Gains and biases are random too: a forgotten one would not be noticed at one and zero. Options go to the config.
    """
    ends = {"vocab_size": vocabulary, "bos_token_id": 0, "eos_token_id": 0} | options
    sizes = ends | {
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "max_position_embeddings": context,
    }
    grouped = {"num_key_value_heads": 2} | sizes
    build: dict[str, Callable[[], PreTrainedModel]] = {
        "llama": lambda: LlamaForCausalLM(LlamaConfig(**grouped)),
        "mistral": lambda: MistralForCausalLM(MistralConfig(**grouped)),
        "gpt2": lambda: GPT2LMHeadModel(
            GPT2Config(n_embd=WIDTH, n_inner=INNER, n_layer=layers, n_head=HEADS, n_positions=context, **ends)
        ),
        "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**grouped)),
        "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**grouped, head_dim=8)),
        "neox": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**sizes)),
        "neox in series": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**sizes, use_parallel_residual=False)),
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _drawn(build[family]())
    model.loss_type = "ForCausalLM"
    return model


def tiny_vision_transformer(*, layers: int = 3, labels: int = 3, channels: int = 3) -> ViTForImageClassification:
    """Of images of 8 x 8 in four patches; width, heads and weights as those of :func:`tiny_decoder`."""
    config = ViTConfig(
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        image_size=8,
        patch_size=4,
        num_channels=channels,
        num_labels=labels,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return _drawn(ViTForImageClassification(config))


def _drawn(model: Model) -> Model:
    for parameter in model.parameters():
        nn.init.normal_(parameter, mean=float(parameter.ndim == 1), std=0.3)
    return model.eval()


def letters_tokenizer(
    letters: Sequence[str] = "abcdefghijklmnopqrstuvwxyz|", **special: str
) -> PreTrainedTokenizerFast:
    """A token for each letter and the space; the only special tokens are the given ones."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(special_tokens=["<end>"], initial_alphabet=list(letters), show_progress=False)
    core.train_from_iterator(["a b c"], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=core, **special)


def bytes_tokenizer(**special: str) -> PreTrainedTokenizerFast:
    """A token for each byte, so that it takes any text."""
    return letters_tokenizer(pre_tokenizers.ByteLevel.alphabet(), **special)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def token_ids(*shape: int, seed: int = 0) -> Tensor:
    """Random tokens of the vocabulary that :func:`tiny_decoder` has where none is given, end of text left out."""
    return torch.randint(1, 31, shape, generator=generator(seed))


def everything(tokens: Tensor) -> Tensor:
    """The mask of tokens that are all real."""
    return torch.ones_like(tokens, dtype=torch.bool)
