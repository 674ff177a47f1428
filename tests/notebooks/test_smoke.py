"""Every notebook runs at the preset ``smoke``, and its exercises' solutions run after it in the same kernel."""

import re
from pathlib import Path

import nbformat
import pytest

from lib.batch.notebooks import read_script
from lib.batch.refresh import execute
from lib.bench.project import RECORD_NAME, ROOT, slugs
from lib.bench.record import Record

EXERCISES = 3
MAX_SECONDS = 60.0  # fifteen are aimed at; a loaded machine takes longer


def solutions(slug: str) -> list[str]:
    text = (ROOT / "notebooks" / f"{slug}.ipynb").read_text(encoding="utf-8")
    cells = nbformat.reads(text, as_version=4).cells
    prose = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    folded = re.findall(r"<details>.*?</details>", prose, flags=re.DOTALL)
    return [code for fold in folded for code in re.findall(r"```python\n(.*?)```", fold, flags=re.DOTALL)]


@pytest.mark.parametrize("slug", slugs())
def test_smoke_run_and_exercises(slug: str, tmp_path: Path) -> None:
    answers = solutions(slug)
    assert len(answers) == EXERCISES
    assert all("assert" in answer for answer in answers)
    notebook = read_script(ROOT / "notebooks" / f"{slug}.py")
    notebook.cells += [nbformat.v4.new_code_cell(answer) for answer in answers]
    execute(notebook, tmp_path, {"preset": "smoke"})
    record = Record.read(tmp_path / RECORD_NAME)
    assert record.preset == "smoke"
    assert record.wall_seconds <= MAX_SECONDS
    for claim in record.claims:
        if claim.kind == "exact":
            assert claim.verdict == "holds", claim.id
        else:
            assert claim.verdict in ("not evaluated", None), claim.id
