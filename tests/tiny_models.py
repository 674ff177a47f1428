"""Tiny random decoders of five families, and a tokenizer of letters, for tests of what takes a Hugging Face model."""

from collections.abc import Callable, Sequence

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

FAMILIES = ("llama", "gpt2", "qwen2", "qwen3", "neox", "neox in series")


def tiny_decoder(
    family: str = "llama", seed: int = 0, *, layers: int = 3, vocabulary: int = 31, context: int = 24
) -> PreTrainedModel:
    """Width 16, four heads over two groups of keys where the family has them; weights so large that all matter."""
    ends = {"vocab_size": vocabulary, "bos_token_id": 0, "eos_token_id": 0}
    sizes = ends | {
        "hidden_size": 16,
        "intermediate_size": 20,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "max_position_embeddings": context,
    }
    grouped = sizes | {"num_key_value_heads": 2}
    build: dict[str, Callable[[], PreTrainedModel]] = {
        "llama": lambda: LlamaForCausalLM(LlamaConfig(**grouped)),
        "gpt2": lambda: GPT2LMHeadModel(
            GPT2Config(n_embd=16, n_inner=20, n_layer=layers, n_head=4, n_positions=context, **ends)
        ),
        "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**grouped)),
        "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**grouped, head_dim=8)),
        "neox": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**sizes)),
        "neox in series": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**sizes, use_parallel_residual=False)),
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build[family]().eval()
        for parameter in model.parameters():
            nn.init.normal_(parameter, mean=float(parameter.ndim == 1), std=0.3)
    model.loss_type = "ForCausalLM"
    return model


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
