"""The process that does one run: ``python -m lib.batch.child``, its RunSpec as JSON on standard input.

The lock is taken here and not in the batch: a batch that dies must not free a folder that its orphan still writes to.
"""

import logging
import sys
import time
from pathlib import Path

import papermill
from filelock import Timeout
from nbclient.exceptions import DeadKernelError
from papermill.exceptions import PapermillExecutionError

from lib.batch.errors import NotebookError
from lib.batch.kernels import private_kernel
from lib.batch.notebooks import read_script, require_parameters_cell
from lib.batch.spec import RunSpec
from lib.batch.status import BUSY, EXECUTED_NAME, Status, lock_of, unfinished_cell
from lib.bench.project import RECORD_NAME, ROOT


def main() -> int:
    """Do the run and return the exit code."""
    spec = RunSpec.from_json(sys.stdin.read())
    try:
        spec.folder.mkdir(parents=True, exist_ok=True)
        with lock_of(spec.folder).acquire(timeout=0):
            return _run(spec)
    except Timeout:
        print(f"{spec.id} is being run by another process; wait for it or stop it", file=sys.stderr)
        return BUSY
    except OSError as error:
        print(f"can't write to {spec.folder} ({error.strerror}); free that path or choose --runs", file=sys.stderr)
        return 1


def _run(spec: RunSpec) -> int:
    status = Status(spec.id, spec.slug, "running", time.time())
    (spec.folder / RECORD_NAME).unlink(missing_ok=True)
    status.write(spec.folder)
    try:
        _execute(spec)
    except (NotebookError, PapermillExecutionError, DeadKernelError) as error:
        sentence = _sentence(error, spec.folder / EXECUTED_NAME)
        status.ended("failed", sentence).write(spec.folder)
        print(sentence, file=sys.stderr)
        return 1
    status.ended("done").write(spec.folder)
    return 0


def _execute(spec: RunSpec) -> None:
    script = ROOT / "notebooks" / f"{spec.slug}.py"
    notebook = read_script(script)
    require_parameters_cell(notebook, script.name)
    logging.getLogger("papermill").setLevel(logging.ERROR)
    # Braces in a path are format fields to papermill.
    output = str(spec.folder / EXECUTED_NAME).replace("{", "{{").replace("}", "}}")
    with private_kernel() as config:
        papermill.execute_notebook(
            notebook, output, parameters=spec.parameters, cwd=ROOT, progress_bar=False, config=config
        )


def _sentence(error: Exception, executed: Path) -> str:
    if isinstance(error, PapermillExecutionError):
        return f"cell {error.cell_index}: {error.ename}: {error.evalue}"
    if isinstance(error, DeadKernelError):
        return f"{unfinished_cell(executed) or 'at the start'}: the kernel died (killed, or out of memory)"
    return str(error)


if __name__ == "__main__":
    sys.exit(main())
