"""Lay out a new paper: a small one that runs and keeps the contract, to be rewritten piece by piece."""

import re
from pathlib import Path

from lib.batch.errors import NotebookError
from lib.bench.project import ROOT, write_text

TEMPLATE = Path(__file__).with_name("template")
PLACEHOLDER = "paper_slug"

_TARGETS = {
    "notebook.py.template": "notebooks/{slug}.py",
    "method.py.template": "lib/methods/{slug}.py",
    "test_method.py.template": "tests/methods/test_{slug}.py",
    "preset.toml.template": "presets/{slug}.toml",
}


def lay_out(slug: str) -> list[Path]:
    """Write a paper's four source files; refreshing it then makes its notebook, record and figures.

    Raises:
        NotebookError: the slug is no Python name in small letters, or one of the files exists.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", slug):
        raise NotebookError(f"a slug has small letters, digits and single underscores, not {slug!r}")
    paths = {ROOT / target.format(slug=slug): TEMPLATE / source for source, target in _TARGETS.items()}
    taken = [path for path in paths if path.exists()]
    if taken:
        raise NotebookError(f"{taken[0]} exists; choose another slug or remove it first")
    for path, source in paths.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, source.read_text(encoding="utf-8").replace(PLACEHOLDER, slug))
    return list(paths)
