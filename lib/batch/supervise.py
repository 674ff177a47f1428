"""Start the process of a run, watch it, and end it with everything that it started."""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import psutil
from filelock import Timeout

from lib.batch.spec import RunSpec
from lib.batch.status import BUSY, EXECUTED_NAME, State, Status, lock_of, read_status, unfinished_cell
from lib.bench.project import FOLDER_VARIABLE, ROOT, THREADS_VARIABLE

POLL_SECONDS = 0.1
GRACE_SECONDS = 5.0


def do_run(spec: RunSpec, stop: Callable[[], bool] = lambda: False) -> Status:
    """Do a run in a process of its own and wait for its end.

    Args:
        spec: the run.
        stop: asked again and again; once true, the run is ended as ``interrupted``. Ctrl-C does the same.

    Returns:
        The final status, which is also on disk (unless the run is another process's, or its folder can't be written).
    """
    status = Status(spec.id, spec.slug, "running", time.time())
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        # A session of its own keeps the terminal's Ctrl-C from the child: it is ended here, kernel included.
        process = subprocess.Popen(
            [sys.executable, "-m", "lib.batch.child"],
            cwd=ROOT,
            env=_environment(spec),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,
            text=True,
        )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # a child that could not start says why in its log
            process.stdin.write(spec.to_json())
            process.stdin.close()
        ending = _watch(process, spec, stop)
        if ending is not None:
            _end(process.pid)
            process.wait()
            return _write(spec, status, *ending)
        log.seek(0)
        lines = log.read().strip().splitlines()
    final = read_status(spec.folder)
    if process.returncode == 0 and final is not None:
        return final
    if process.returncode == BUSY:
        return status.ended("busy", "another process is doing this run")
    if final is not None and final.state == "failed" and final.started >= status.started:
        return final
    if process.returncode < 0:
        return _write(spec, status, "killed", f"its process was ended by signal {-process.returncode}")
    return status.ended("failed", lines[-1] if lines else f"its process ended with code {process.returncode}")


def _watch(process: subprocess.Popen[str], spec: RunSpec, stop: Callable[[], bool]) -> tuple[State, str] | None:
    """Wait for the process; None if it ended by itself, else why it has to be ended."""
    deadline = time.monotonic() + spec.timeout if spec.timeout else float("inf")
    try:
        while process.poll() is None:
            if stop():
                return "interrupted", "stopped from outside"
            if time.monotonic() > deadline:
                return "timed out", f"took longer than {spec.timeout:g} s"
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        return "interrupted", "stopped from outside"
    return None


def _end(pid: int) -> None:
    """End a process and all its descendants: a kernel has a session of its own and would compute on."""
    try:
        parent = psutil.Process(pid)
        family = [*parent.children(recursive=True), parent]
    except psutil.NoSuchProcess:
        return
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _, alive = psutil.wait_procs(family, timeout=GRACE_SECONDS)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=GRACE_SECONDS)


def _write(spec: RunSpec, status: Status, state: State, reason: str) -> Status:
    """Note the end of a run whose process could not; never in a folder that another process is writing."""
    cell = unfinished_cell(spec.folder / EXECUTED_NAME)
    final = status.ended(state, f"{cell}: {reason}" if cell else reason)
    with contextlib.suppress(OSError, Timeout):
        spec.folder.mkdir(parents=True, exist_ok=True)
        with lock_of(spec.folder).acquire(timeout=0):
            final.write(spec.folder)
    return final


def _environment(spec: RunSpec) -> dict[str, str]:
    pools = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
    threads = str(spec.threads)
    variables = {**dict.fromkeys(pools, threads), THREADS_VARIABLE: threads, FOLDER_VARIABLE: str(spec.folder)}
    return {**os.environ, **variables}
