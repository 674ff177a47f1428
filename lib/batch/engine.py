"""Many runs at once, on a local Dask cluster or on one that exists."""

import contextlib
import logging
import uuid
from collections.abc import Iterator

from lib.batch.spec import RunSpec
from lib.batch.status import Status
from lib.batch.supervise import do_run

STOP_SECONDS = 30.0


def run_all(specs: list[RunSpec], *, jobs: int, scheduler: str | None = None) -> Iterator[Status]:
    """Do the runs, ``jobs`` at a time, and yield each one's final status as it ends.

    A failing run does not stop the others. On Ctrl-C the runs in progress are ended and yielded as ``interrupted``,
    those not begun are dropped, and KeyboardInterrupt is raised at the end.

    Args:
        specs: the runs.
        jobs: runs side by side on the local cluster; a scheduler's workers decide for themselves.
        scheduler: address of an existing Dask scheduler whose workers see the same files, or None.
    """
    if len(specs) == 1 and scheduler is None:
        status = do_run(specs[0])
        yield status
        if status.state == "interrupted":
            raise KeyboardInterrupt
        return
    yield from _run_on_dask(specs, jobs, scheduler)


def _run_on_dask(specs: list[RunSpec], jobs: int, scheduler: str | None) -> Iterator[Status]:
    from distributed import Client, Event, as_completed

    logging.getLogger("distributed").setLevel(logging.ERROR)
    name = f"stop-{uuid.uuid4().hex}"
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(Client(scheduler or stack.enter_context(_local_cluster(jobs))))
        event = Event(name, client=client)
        futures = [client.submit(_task, spec.to_json(), name, key=f"{spec.id}-{name}", retries=0) for spec in specs]
        pending = set(futures)
        try:
            for future in as_completed(futures):
                pending.discard(future)
                yield future.result()
        except KeyboardInterrupt:
            event.set()
            for future in pending:
                with contextlib.suppress(Exception):  # a task that was never begun has no status to tell
                    yield future.result(timeout=STOP_SECONDS)
            raise


def _local_cluster(jobs: int):  # type: ignore[no-untyped-def]  # distributed is imported where it is used: it costs a second
    """Threads of this process that each watch one child: worker processes would die of Ctrl-C and hang the client."""
    from distributed import LocalCluster

    return LocalCluster(
        n_workers=1,
        threads_per_worker=jobs,
        processes=False,
        protocol="tcp://",
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        worker_dashboard_address="127.0.0.1:0",
    )


def _task(spec_json: str, stop_event: str) -> Status:
    from distributed import Event

    event = Event(stop_event)
    spec = RunSpec.from_json(spec_json)
    if event.is_set():
        return Status(spec.id, spec.slug, "interrupted", 0.0, 0.0, "not begun")
    return do_run(spec, stop=event.is_set)
