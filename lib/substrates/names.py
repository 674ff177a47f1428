"""Names that a reader can choose from, and the sentence said when one is misspelt."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def describe_names(name: str, valid: Iterable[str]) -> str:
    """End of an error sentence: the nearest of the valid names, if one is near, and all of them."""
    names = {known.lower(): known for known in sorted(valid)}
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    return (f"did you mean {names[near[0]]!r}? " if near else "") + "known here: " + ", ".join(names.values())


def check_name(name: str, valid: Iterable[str], what: str) -> str:
    """The name, if it is one of the valid ones.

    Raises:
        ValueError: it is not; names the nearest valid one, and all.
    """
    names = list(valid)
    if name not in names:
        raise ValueError(f"no {what} {name!r}; {describe_names(name, names)}")
    return name
