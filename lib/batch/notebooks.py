"""The pair of a notebook: the script is its source, the .ipynb its reading view."""

from pathlib import Path

import jupytext
from nbformat import NotebookNode

from lib.batch.errors import NotebookError

PARAMETERS_TAG = "parameters"


def read_script(path: Path) -> NotebookNode:
    """Read a percent script as a notebook whose cell ids follow from its cells' places, so that diffs stay small.

    Raises:
        FileNotFoundError: there is no such script.
    """
    notebook = jupytext.reads(path.read_text(encoding="utf-8"), fmt="py:percent")
    for index, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{index:02d}"
    return notebook


def require_parameters_cell(notebook: NotebookNode, name: str) -> None:
    """Check that papermill will find the cell behind which it puts its values.

    Raises:
        NotebookError: no cell carries the tag, so papermill's values would be overwritten.
    """
    if not any(PARAMETERS_TAG in cell.metadata.get("tags", []) for cell in notebook.cells):
        raise NotebookError(f"{name} has no cell tagged 'parameters'; tag its parameters cell and run again")


def title(notebook: NotebookNode) -> str:
    """The notebook's first heading."""
    return str(notebook.cells[0].source.partition("\n")[0].lstrip("# "))
