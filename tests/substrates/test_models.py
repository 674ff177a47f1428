import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_sample_images
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from lib.substrates import models
from lib.substrates.models import (
    embed_sentences,
    load_encoder,
    load_image_classifier,
    load_language_model,
    load_protein_model,
)
from lib.substrates.packages import MissingSubstrateError

HEAVY_CHAIN = (
    "EVQLVESGGGLVQPGGSLRLSCAASGFTFSSYAMSWVRQAPGKGLEWVSAISGSGGSTYYADSVKGRFTISRDNSKNTLYLQMNSLRAEDTAVYYCAKDRGYWGQGTLVTVSS"
)


def write_tiny_checkpoint(folder: Path, seed: int = 0) -> GPT2LMHeadModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=5, n_embd=8, n_layer=2, n_head=2, n_positions=16, bos_token_id=None, eos_token_id=None
            )
        )
    model.save_pretrained(folder)
    words = {word: index for index, word in enumerate(["[UNK]", "a", "b", "c", "d"])}
    core = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    PreTrainedTokenizerFast(tokenizer_object=core, unk_token="[UNK]").save_pretrained(folder)
    return model.eval()


def logits(model: torch.nn.Module, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([ids])).logits


@pytest.mark.slow
def test_smollm2_knows_the_capital_of_france(capfd: pytest.CaptureFixture[str]) -> None:
    state = torch.get_rng_state()
    model, tokenizer = load_language_model("smollm2-135m-instruct")
    inputs = tokenizer("The capital of France is", return_tensors="pt")
    (continuation,) = model.generate(**inputs, max_new_tokens=1, do_sample=False)[:, inputs["input_ids"].shape[1] :]
    assert tokenizer.decode(continuation) == " Paris"
    assert sum(parameter.numel() for parameter in model.parameters()) == 134_515_008
    assert (len(model.model.layers), model.config.num_attention_heads, model.config.num_key_value_heads) == (30, 9, 3)
    assert tokenizer.chat_template
    assert torch.equal(torch.get_rng_state(), state)
    assert capfd.readouterr() == ("", "")


def test_a_damaged_cached_checkpoint_is_converted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conversions = []

    def convert(gguf: Path, folder: Path) -> None:
        conversions.append(gguf)
        write_tiny_checkpoint(folder)

    monkeypatch.setenv("PAPERS_THAT_RUN_CACHE", str(tmp_path))
    monkeypatch.setattr(models, "_convert_gguf", convert)
    expected = logits(load_language_model("smollm2-135m-instruct")[0], [1, 2, 3])
    assert torch.equal(logits(load_language_model("smollm2-135m-instruct")[0], [1, 2, 3]), expected)
    assert len(conversions) == 1
    (weights,) = tmp_path.glob("*/model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-7])
    assert torch.equal(logits(load_language_model("smollm2-135m-instruct")[0], [1, 2, 3]), expected)
    assert len(conversions) == 2


def test_an_unknown_name_is_one_sentence_with_the_nearest_name() -> None:
    with pytest.raises(MissingSubstrateError, match=r"'smolm2-135m'.*did you mean 'smollm2-135m-instruct'\?"):
        load_language_model("smolm2-135m")


@pytest.mark.parametrize("name", ["gpt2", "openai-community/gpt2-xl", "no//such/id", ""])
def test_a_hub_name_without_a_network_says_what_is_known_here(name: str) -> None:
    with pytest.raises(MissingSubstrateError, match=r"hub did not supply it.*known here: smollm2-135m-instruct"):
        load_language_model(name)


@pytest.mark.parametrize(
    ("load", "name", "nearest"),
    [
        (load_encoder, "minilm", "minilm-l6"),
        (load_protein_model, "iglm_s", "iglm-s"),
        (load_image_classifier, "efficientnet", "efficientnet-lite0"),
    ],
)
def test_unknown_names_of_the_other_loaders(load: Callable[[str], object], name: str, nearest: str) -> None:
    with pytest.raises(ValueError, match=f"did you mean '{nearest}'"):
        load(name)


def test_a_missing_wheel_names_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for load, name in (
        (load_language_model, "smollm2-135m-instruct"),
        (load_encoder, "minilm-l6"),
        (load_protein_model, "iglm"),
        (load_protein_model, "antiberty"),
        (load_image_classifier, "efficientnet-lite0"),
    ):
        with pytest.raises(MissingSubstrateError, match="make setup"):
            load(name)


def test_a_folder_gives_the_model_that_was_saved(tmp_path: Path) -> None:
    saved = write_tiny_checkpoint(tmp_path)
    for source in (tmp_path, str(tmp_path)):
        model, tokenizer = load_language_model(source)
        assert torch.equal(logits(model, [1, 4, 2]), logits(saved, [1, 4, 2]))
        assert tokenizer.convert_tokens_to_ids("d") == 4
        assert not model.training


def test_half_precision_folders_become_float32(tmp_path: Path) -> None:
    write_tiny_checkpoint(tmp_path).half().save_pretrained(tmp_path)
    model, _ = load_language_model(tmp_path)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


@pytest.mark.parametrize("damage", ["no weights", "truncated", "pickled weights only", "no tokenizer"])
def test_folders_that_are_no_safe_checkpoint_are_refused(tmp_path: Path, damage: str) -> None:
    model = write_tiny_checkpoint(tmp_path)
    weights = tmp_path / "model.safetensors"
    match damage:
        case "no weights":
            weights.unlink()
        case "truncated":
            weights.write_bytes(weights.read_bytes()[:100])
        case "pickled weights only":
            weights.unlink()
            torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
        case "no tokenizer":
            for path in tmp_path.glob("tokenizer*"):
                path.unlink()
    with pytest.raises(ValueError, match="holds no complete safetensors checkpoint"):
        load_language_model(tmp_path)


def test_code_beside_a_checkpoint_is_never_run(tmp_path: Path) -> None:
    write_tiny_checkpoint(tmp_path)
    (tmp_path / "modeling_own.py").write_text("raise SystemExit('code of the checkpoint was run')", encoding="utf-8")
    configuration = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    configuration["auto_map"] = {"AutoModelForCausalLM": "modeling_own.Own", "AutoConfig": "modeling_own.OwnConfig"}
    (tmp_path / "config.json").write_text(json.dumps(configuration), encoding="utf-8")
    model, _ = load_language_model(tmp_path)
    assert type(model) is GPT2LMHeadModel


def test_the_encoder_puts_paraphrases_together() -> None:
    model, tokenizer = load_encoder("minilm-l6")
    texts = ["A cat sits on the mat.", "A kitten is sitting on a rug.", "Shares fell sharply in London today."]
    vectors = embed_sentences(model, tokenizer, texts)
    assert vectors.shape == (3, 384)
    similarity = vectors @ vectors.T
    torch.testing.assert_close(similarity.diagonal(), torch.ones(3))
    assert similarity[0, 1] > similarity[0, 2] + 0.3
    # Padding and batching are no part of a sentence's meaning.
    torch.testing.assert_close(embed_sentences(model, tokenizer, texts, batch_size=1), vectors, atol=1e-5, rtol=0)
    with pytest.raises(ValueError, match="empty"):
        embed_sentences(model, tokenizer, [])


@pytest.mark.parametrize(("name", "layers", "size"), [("iglm-s", 3, 1_439_616), ("iglm", 4, 12_889_600)])
def test_iglm_prefers_an_antibody_to_its_shuffled_residues(
    name: str, layers: int, size: int, capfd: pytest.CaptureFixture[str]
) -> None:
    model, tokenizer = load_protein_model(name)
    shuffled = "".join(np.random.default_rng(0).permutation(list(HEAVY_CHAIN)))
    with torch.no_grad():
        losses = [
            model(ids, labels=ids).loss.item()
            for sequence in (HEAVY_CHAIN, shuffled)
            for ids in [tokenizer(f"[HEAVY][HUMAN]{sequence}[SEP]", return_tensors="pt")["input_ids"]]
        ]
    assert losses[0] < 1 < 2 < losses[1]
    assert sum(parameter.numel() for parameter in model.parameters()) == size
    assert len(model.transformer.h) == layers
    assert model.config.eos_token_id == tokenizer.eos_token_id == tokenizer.convert_tokens_to_ids("[SEP]")
    assert capfd.readouterr() == ("", "")


def test_residues_are_tokens_with_and_without_spaces() -> None:
    _, tokenizer = load_protein_model("iglm-s")
    ids = tokenizer("[HEAVY] [HUMAN] E V [MASK] Q [SEP]")["input_ids"]
    assert tokenizer("[HEAVY][HUMAN]EV[MASK]Q[SEP]")["input_ids"] == ids
    assert tokenizer.convert_ids_to_tokens(ids) == ["[HEAVY]", "[HUMAN]", "E", "V", "[MASK]", "Q", "[SEP]"]
    assert tokenizer("EBV")["input_ids"][1] == tokenizer.unk_token_id
    assert len(tokenizer) == 33


def test_antiberty_fills_in_masked_residues() -> None:
    model, tokenizer = load_protein_model("antiberty")
    ids = tokenizer(HEAVY_CHAIN, return_tensors="pt")["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids[0])[:2] == ["[CLS]", "E"]
    residues = torch.arange(1, ids.shape[1] - 1, 4)
    masked = ids.repeat(len(residues), 1)
    masked[torch.arange(len(residues)), residues] = tokenizer.mask_token_id
    with torch.no_grad():
        guesses = model(input_ids=masked).logits[torch.arange(len(residues)), residues].argmax(-1)
    assert (guesses == ids[0, residues]).float().mean() > 0.9


def test_the_classifier_sees_a_palace() -> None:
    model, names = load_image_classifier("efficientnet-lite0")
    assert names is None
    photograph = torch.tensor(load_sample_images().images[0]).permute(2, 0, 1)[None] / 255
    resized = torch.nn.functional.interpolate(photograph, size=(224, 224), mode="bilinear", antialias=True)
    mean, deviation = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]]).view(2, 3, 1, 1)
    with torch.no_grad():
        scores = model((resized - mean) / deviation)
    bell_cote, dome, palace = 442, 538, 698
    assert scores.shape == (1, 1000)
    assert scores[0].argmax() in (bell_cote, dome, palace)


def test_loaders_leave_the_random_generators_alone() -> None:
    state = torch.get_rng_state()
    for load, name in (
        (load_encoder, "minilm-l6"),
        (load_protein_model, "iglm-s"),
        (load_protein_model, "antiberty"),
        (load_image_classifier, "efficientnet-lite0"),
    ):
        load(name)
        assert torch.equal(torch.get_rng_state(), state)


def test_the_package_itself_imports_no_torch() -> None:
    script = (
        "import sys, lib.substrates, lib.substrates.text, lib.substrates.images, lib.substrates.cache; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'sklearn')))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
