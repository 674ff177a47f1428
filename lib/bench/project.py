"""Where the project's files lie, and how they are written."""

import difflib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECORD_NAME = "results.json"
FOLDER_VARIABLE = "PAPERS_RUN_FOLDER"  # set by the batch; a notebook opened by hand writes to runs/live/<slug>
THREADS_VARIABLE = "PAPERS_THREADS"  # threads that a run may use, 1 where it is not set


def notebook_path(slug: str) -> Path:
    """Path of a paper's notebook."""
    return ROOT / "notebooks" / f"{slug}.ipynb"


def slugs() -> list[str]:
    """Slugs of all papers that have a notebook, in alphabetical order."""
    return sorted(path.stem for path in (ROOT / "notebooks").glob("*.py"))


def nearest(name: str, valid: Iterable[str]) -> str:
    """Half a sentence that helps after a misspelt name: the nearest valid one, or all of them."""
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"choose one of {', '.join(names)}."


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file whole or not at all: under a temporary name in the same folder, then renamed.

    Raises:
        OSError: the folder is missing or cannot be written.
    """
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        # mkstemp makes files private; a record is as readable as any other file of the project.
        os.chmod(temporary, 0o644)  # noqa: PTH101
        os.replace(temporary, path)  # noqa: PTH105
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file whole or not at all (see :func:`write_bytes`)."""
    write_bytes(path, text.encode("utf-8"))
