import importlib.util
import pickle
import warnings
from pathlib import Path

import pytest

from lib.substrates.packages import MissingSubstrateError
from lib.substrates.text import load_text, read_plain_pickle, text_names

SIZES = {
    "ag-news": 127_600,
    "dialogue": 2_026,
    "financial-phrasebank": 2_264,
    "guardian-headlines": 4_080,
    "hamlet": 1,
    "hate-speech-18": 10_939,
    "political-conventions": 189,
    "presidential-debates": 1_122,
    "rotten-tomatoes": 8_530,
    "rotten-tomatoes-full": 13_891,
    "sst2": 67_349,
    "sst5": 8_544,
    "subjectivity": 8_000,
    "trec": 5_952,
    "tweet-emotion": 5_052,
    "tweet-hate": 8_993,
}


def test_every_corpus_is_named_here_or_comes_with_python() -> None:
    assert text_names() == sorted([*SIZES, "pydoc-topics"])


@pytest.mark.parametrize("name", text_names())
def test_every_corpus_is_consistent(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        corpus = load_text(name)
    assert corpus.name == name
    assert corpus.licence
    assert len(corpus) == len(corpus.texts) == SIZES.get(name, len(corpus)) > 0
    assert all(isinstance(text, str) and text.strip() for text in corpus.texts)
    assert all(len(column) == len(corpus) for column in corpus.columns.values())
    assert (corpus.labels is None) == (corpus.label_names is None)
    if corpus.labels is not None and corpus.label_names is not None:
        assert len(corpus.labels) == len(corpus)
        assert set(corpus.labels) == set(range(len(corpus.label_names)))


@pytest.mark.parametrize(
    ("name", "words", "label"),
    [
        ("ag-news", "Hewlett-Packard shares", "business"),
        ("rotten-tomatoes", "like kubrick , soderbergh isn't afraid", "positive"),
        ("trec", "In what city is the famed St. Mark 's Square ?", "location"),
        ("political-conventions", "MIA LOVE: I am thrilled", "republican"),
        ("presidential-debates", "Good evening. From Longwood University", "Moderator"),
        ("dialogue", "Who was the 37th President of the United States?", "trivia"),
    ],
)
def test_labels_belong_to_their_texts(name: str, words: str, label: str) -> None:
    corpus = load_text(name)
    assert corpus.labels is not None
    assert corpus.label_names is not None
    found = {
        corpus.label_names[index] for text, index in zip(corpus.texts, corpus.labels, strict=True) if words in text
    }
    assert found == {label}


def test_columns_belong_to_their_texts() -> None:
    dialogue = load_text("dialogue")
    row = dialogue.texts.index("Who was the 37th President of the United States?")
    assert dialogue.columns["answer"][row] == "Richard Nixon"
    headlines = load_text("guardian-headlines")
    row = headlines.texts.index("Johnson is asking Santa for a Christmas recovery")
    assert headlines.columns["date"][row] == "2020-07-18"


def test_pydoc_topics_are_english_prose() -> None:
    corpus = load_text("pydoc-topics")
    assert corpus.texts[corpus.columns["topic"].index("yield")].startswith('The "yield" statement')
    assert sum(map(len, corpus.texts)) > 400_000


@pytest.mark.parametrize(
    ("name", "nearest"), [("agnews", "ag-news"), ("SST2", "sst2"), ("rotten_tomatoes", "rotten-tomatoes")]
)
def test_an_unknown_name_suggests_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(ValueError, match=f"no text '{name}'; did you mean '{nearest}'"):
        load_text(name)


def test_a_name_near_to_none_lists_them_all() -> None:
    with pytest.raises(ValueError, match=r"no text '\?'; known here: ag-news, dialogue"):
        load_text("?")


@pytest.mark.parametrize("name", ["ag-news", "rotten-tomatoes-full", "political-conventions", "hamlet", "dialogue"])
def test_a_missing_wheel_names_the_command(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None)
    with pytest.raises(MissingSubstrateError, match="make setup"):
        load_text(name)


class Shell:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (Path("touched"),)  # type: ignore[return-value]


@pytest.mark.parametrize("content", [Shell(), [(["text"], 0), len], {"kind": Path}])
def test_a_pickle_that_names_code_is_refused(content: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "data"
    path.write_bytes(pickle.dumps(content))
    with pytest.raises(pickle.UnpicklingError, match="only plain data is read"):
        read_plain_pickle(path)
    assert not (tmp_path / "touched").exists()


def test_a_plain_pickle_is_read(tmp_path: Path) -> None:
    content = [(["text", "ü"], 1), {"a": 0.5, "b": (None, True)}]
    (tmp_path / "data").write_bytes(pickle.dumps(content))
    assert read_plain_pickle(tmp_path / "data") == content
