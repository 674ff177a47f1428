"""Antibody language models: two GPT-2 decoders and a BERT that can judge what they write."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from lib.substrates.checkpoints import LanguageModel, loading, ready
from lib.substrates.names import check_name
from lib.substrates.packages import package_file, package_folder


def load_protein_model(name: str) -> LanguageModel:
    """An antibody sequence model and its tokenizer.

    ``"iglm-s"`` (1.4 M parameters) and ``"iglm"`` (12.9 M) are GPT-2 decoders that read
    ``[HEAVY] [HUMAN] E V Q ... [SEP]``; ``"antiberty"`` (25.8 M) is a BERT masked model, whose tokenizer puts the
    sequence between ``[CLS]`` and ``[SEP]``. Spaces between amino acids are optional. The weights of IgLM are for
    academic, non-commercial use.
    """
    check_name(name, _PROTEIN_MODELS, "protein model")
    return _PROTEIN_MODELS[name]()


def _iglm(variant: str) -> LanguageModel:
    folder = package_folder("iglm", "iglm") / "trained_models"
    tokenizer = _residue_tokenizer(folder / "vocab.txt", wrap=False)
    # The checkpoint's own ids (50256) lie outside its vocabulary of 33; a sequence ends with [SEP], nothing begins it.
    tokenizer.eos_token = "[SEP]"
    configuration = transformers.GPT2Config(
        **_settings(folder / variant)
        | {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    )
    return _from_state(transformers.GPT2LMHeadModel, configuration, folder / variant), tokenizer


def _antiberty() -> LanguageModel:
    folder = package_folder("antiberty", "antiberty") / "trained_models"
    checkpoint = package_file("antiberty", "antiberty", "trained_models/AntiBERTy_md_smooth")
    configuration = transformers.BertConfig(**_settings(checkpoint))
    model = _from_state(transformers.BertForMaskedLM, configuration, checkpoint)
    return model, _residue_tokenizer(folder / "vocab.txt", wrap=True)


def _settings(folder: Path) -> dict[str, Any]:
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    # Where and by which release the checkpoint was made: no part of the architecture, and noisy when passed on.
    for key in ("_name_or_path", "architectures", "transformers_version", "gradient_checkpointing", "model_type"):
        settings.pop(key, None)
    return settings


def _from_state(kind: type[PreTrainedModel], configuration: PreTrainedConfig, folder: Path) -> PreTrainedModel:
    """A model of class `kind` with the tensors of ``pytorch_model.bin``; heads that `kind` has not are left out."""
    state = torch.load(folder / "pytorch_model.bin", weights_only=True, map_location="cpu")
    with loading():
        model = kind(configuration)
    missing = set(model.load_state_dict(state, strict=False).missing_keys)
    # Tied output weights and the fixed position indices are not stored by every release.
    unexplained = {key for key in missing if not key.endswith(("position_ids", "decoder.weight", "decoder.bias"))}
    if unexplained:
        raise ValueError(f"the checkpoint in {folder.name} lacks {sorted(unexplained)[:3]}: run `make setup` again")
    model.tie_weights()
    return ready(model)


def _residue_tokenizer(vocabulary: Path, wrap: bool) -> PreTrainedTokenizerFast:
    """One token an amino acid or bracketed word; `wrap` adds ``[CLS]`` and ``[SEP]`` as BERT expects them."""
    tokens = vocabulary.read_text(encoding="utf-8").split()
    ids = {token: index for index, token in enumerate(tokens)}
    core = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex(r"\[[A-Z]+\]|."), behavior="isolated")]
    )
    if wrap:
        core.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])]
        )
    special = {f"{role}_token": f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")}
    return PreTrainedTokenizerFast(tokenizer_object=core, model_max_length=512, **special)


_PROTEIN_MODELS: dict[str, Callable[[], LanguageModel]] = {
    "iglm": lambda: _iglm("IgLM"),
    "iglm-s": lambda: _iglm("IgLM-S"),
    "antiberty": _antiberty,
}
