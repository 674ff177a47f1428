"""State of a run, kept beside its results so that it outlives every process."""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout

from lib.bench.project import write_text

State = Literal["running", "done", "failed", "timed out", "interrupted", "killed", "busy"]

BUSY = 75  # exit code of a run that another process is doing (EX_TEMPFAIL)
EXECUTED_NAME = "executed.ipynb"
STATUS_NAME = "status.json"
LOCK_NAME = ".lock"


@dataclass(frozen=True)
class Status:
    """How a run stands.

    Attributes:
        id: id of the run.
        slug: the paper.
        state: ``running`` while a process holds the lock; every other state is final.
        started: seconds since the epoch.
        seconds: time taken so far, or in all.
        error: one sentence for a run that did not end well.
    """

    id: str
    slug: str
    state: State
    started: float
    seconds: float = 0.0
    error: str | None = None

    @property
    def ok(self) -> bool:
        """Whether the run came to its end and its claims are sound."""
        return self.state == "done"

    def ended(self, state: State, error: str | None = None) -> "Status":
        """This run, ended now."""
        return Status(self.id, self.slug, state, self.started, round(time.time() - self.started, 1), error)

    def write(self, folder: Path) -> None:
        """Write ``status.json``, whole or not at all."""
        write_text(folder / STATUS_NAME, json.dumps(asdict(self), indent=1) + "\n")


def lock_of(folder: Path) -> FileLock:
    """The lock that a run's process holds while it writes to its folder."""
    return FileLock(folder / LOCK_NAME)


def read_status(folder: Path) -> Status | None:
    """State of the run in a folder; None where there is none.

    A run whose file says ``running`` although nobody holds its lock was killed: no process lived to write that down.
    """
    path = folder / STATUS_NAME
    if not path.is_file():
        return None
    status = Status(**json.loads(path.read_text(encoding="utf-8")))
    if status.state != "running":
        return status
    try:
        with lock_of(folder).acquire(timeout=0):
            return Status(status.id, status.slug, "killed", status.started, status.seconds, "its process was killed")
    except Timeout:
        return status


def unfinished_cell(path: Path) -> str | None:
    """Which cell papermill was executing when the file was last written, as "cell 12"; None if that can't be told.

    Papermill rewrites the file in place, so a killed run may leave half of it.
    """
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    except (OSError, ValueError):
        return None
    for index, cell in enumerate(cells):
        if cell["metadata"].get("papermill", {}).get("status") == "running":
            return f"cell {index}"
    return None
