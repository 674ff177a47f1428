"""Bring the two halves of a pair together without losing an edit of either."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import jupytext
import nbformat
from jupytext.combine import combine_inputs_with_outputs
from jupytext.compare import NotebookDifference, compare_notebooks
from nbformat import NotebookNode

from lib.batch.errors import NotebookError
from lib.batch.notebooks import read_script
from lib.bench.project import ROOT, notebook_path, write_text


def pair_differs(script: NotebookNode, notebook: NotebookNode) -> bool:
    """Whether the halves differ in the text, kind or tags of a cell (outputs aside)."""
    try:
        compare_notebooks(script, notebook, fmt="py:percent")
    except NotebookDifference:
        return True
    return False


def sync(slug: str) -> str:
    """Make the halves of a pair equal; the half that was edited since the last commit wins.

    File times decide nothing: a checkout or a touch scrambles them. Outputs of unchanged cells stay.

    Returns:
        What was done, in one sentence.

    Raises:
        NotebookError: both halves were edited, and differently.
    """
    script_path, ipynb_path = ROOT / "notebooks" / f"{slug}.py", notebook_path(slug)
    script = read_script(script_path)
    if not ipynb_path.exists():
        write_text(ipynb_path, nbformat.writes(script) + "\n")
        return f"{slug}: made {ipynb_path.name}"
    notebook = nbformat.read(ipynb_path, as_version=4)
    if not pair_differs(script, notebook):
        return f"{slug}: the halves are equal"
    script_edited = _edited(script_path, lambda text: pair_differs(jupytext.reads(text, fmt="py:percent"), script))
    ipynb_edited = _edited(ipynb_path, lambda text: pair_differs(nbformat.reads(text, as_version=4), notebook))
    if script_edited and ipynb_edited:
        raise NotebookError(
            f"{slug}: both halves differ from the last commit and from each other; undo one "
            f"(git checkout -- {script_path.relative_to(ROOT)} or its .ipynb), then sync again"
        )
    if ipynb_edited:
        write_text(script_path, jupytext.writes(notebook, fmt="py:percent"))
        return f"{slug}: {script_path.name} now follows {ipynb_path.name}"
    write_text(ipynb_path, nbformat.writes(combine_inputs_with_outputs(script, notebook)) + "\n")
    return f"{slug}: {ipynb_path.name} now follows {script_path.name}; make refresh NB={slug} renews its outputs"


def _edited(path: Path, differs_from: Callable[[str], bool]) -> bool:
    """Whether a file differs in content from the last commit; a file that is not committed yet counts as edited."""
    shown = subprocess.run(
        ["git", "show", f"HEAD:./{path.name}"], cwd=path.parent, capture_output=True, encoding="utf-8", check=False
    )
    return shown.returncode != 0 or differs_from(shown.stdout)
