"""The command line ``python -m lib.batch``.

What reads and writes notebooks is imported by the commands that need it: jupytext, nbformat and papermill take longer
to import than a run takes to start.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from lib.batch.engine import run_all
from lib.batch.errors import NotebookError
from lib.batch.report import all_statuses, claims_csv, claims_table, read_records, statuses_table
from lib.batch.spec import RUNS, RunSpec, expand_grid, make_spec, parse_assignments
from lib.batch.status import EXECUTED_NAME, Status, read_status
from lib.bench.errors import BenchError
from lib.bench.parameters import DEFAULT_PRESET, parameters_model
from lib.bench.project import RECORD_NAME, slugs, write_text
from lib.bench.record import Record

INTERRUPTED = 130  # exit code of a program that Ctrl-C ended

console = Console()
errors = Console(stderr=True)


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line, obey, and return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.command(options) or 0)
    except (BenchError, NotebookError) as error:
        errors.print(f"[red]{type(error).__name__}[/red]: {error}", highlight=False, soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        errors.print("interrupted; a grid goes on where it stopped when you start it again")
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lib.batch", description="Run notebooks and report their claims.")
    commands = parser.add_subparsers(required=True, metavar="command")

    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("-p", action="append", default=[], metavar="NAME=VALUE", dest="set", help="set a parameter")
    common.add_argument("--jobs", type=_positive, default=1, help="runs side by side (default 1)")
    common.add_argument("--threads", type=_positive, default=1, help="threads for each run (default 1)")
    common.add_argument("--timeout", type=float, metavar="SECONDS", help="stop a run that takes longer")
    common.add_argument("--scheduler", metavar="ADDRESS", help="an existing Dask scheduler, tcp://host:8786")
    common.add_argument("--dry-run", action="store_true", help="show what would run")
    common.add_argument("--runs", default=str(RUNS), metavar="FOLDER", help="where the runs' folders lie")

    run = commands.add_parser("run", parents=[common], help="run notebooks, always executing them")
    run.add_argument("slugs", nargs="*", metavar="slug", help="papers; none means all")
    run.add_argument("--preset", help="named parameter set of presets/<slug>.toml")
    run.set_defaults(command=_run)

    grid = commands.add_parser("grid", parents=[common], help="run a grid of parameters, skipping what is done")
    grid.add_argument("file", help="presets/<slug>.toml, or presets/<slug>.toml:name")
    grid.add_argument("--grid", help="name of the table [grid.<name>]")
    grid.set_defaults(command=_grid)

    status = commands.add_parser("status", help="show the state of every run")
    status.add_argument("--runs", default=str(RUNS), metavar="FOLDER")
    status.set_defaults(command=_status)

    claims = commands.add_parser("claims", help="show every claim of every run")
    claims.add_argument("--runs", default=str(RUNS), metavar="FOLDER")
    claims.add_argument("--csv", action="store_true", help="as CSV on standard output")
    claims.set_defaults(command=_claims)

    parameters = commands.add_parser("parameters", help="show a paper's parameters")
    parameters.add_argument("slug")
    parameters.set_defaults(command=_parameters)

    fresh = commands.add_parser("refresh", help="execute a notebook and update its record, figures and README")
    fresh.add_argument("slug")
    fresh.add_argument("--preset", default=DEFAULT_PRESET)
    fresh.set_defaults(command=_refresh)

    new = commands.add_parser("new", help="lay out a new paper from the template")
    new.add_argument("slug")
    new.set_defaults(command=_new)

    fresh_runs = commands.add_parser("reproduced", help="compare the runs in runs/live with the committed records")
    fresh_runs.set_defaults(command=_reproduced)

    pairs = commands.add_parser("sync", help="bring the halves of every pair together")
    pairs.set_defaults(command=_sync)
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("takes a whole number of at least 1")
    return number


def _options(options: argparse.Namespace) -> dict[str, Any]:
    return {"runs": str(Path(options.runs).resolve()), "threads": options.threads, "timeout": options.timeout}


def _run(options: argparse.Namespace) -> int:
    explicit = parse_assignments(options.set)
    if options.preset is not None:
        explicit.setdefault("preset", options.preset)
    specs = [make_spec(slug, explicit, **_options(options)) for slug in options.slugs or slugs()]
    return _do(specs, options, skip_done=False)


def _grid(options: argparse.Namespace) -> int:
    file, _, name = options.file.rpartition(":") if options.grid is None else (options.file, "", options.grid)
    if not file:
        raise NotebookError("name the grid: --grid <name>, or <file>:<name>")
    explicit = parse_assignments(options.set)
    specs = expand_grid(Path(file), name, explicit, **_options(options))
    code = _do(specs, options, skip_done=True)
    if not options.dry_run:
        path = Path(options.runs) / f"{specs[0].slug}-{name}.csv"
        write_text(path, claims_csv(read_records(spec.folder for spec in specs)))
        console.print(f"every claim of the grid: {path}", soft_wrap=True)
    return code


def _do(specs: list[RunSpec], options: argparse.Namespace, *, skip_done: bool) -> int:
    done = [spec for spec in specs if skip_done and _is_done(spec)]
    todo = [spec for spec in specs if spec not in done]
    if options.dry_run:
        for spec in specs:
            console.print(f"{'done   ' if spec in done else 'to run '} {spec.id}  {spec.parameters}", soft_wrap=True)
        return 0
    if done:
        console.print(f"{len(done)} of {len(specs)} runs are done already")
    statuses: list[Status] = []
    try:
        if todo:
            statuses.extend(_watched(run_all(todo, jobs=options.jobs, scheduler=options.scheduler), todo))
    finally:
        _summary(specs, statuses)
    return 0 if all(status.ok for status in statuses) else 1


def _is_done(spec: RunSpec) -> bool:
    status = read_status(spec.folder)
    return status is not None and status.ok and (spec.folder / RECORD_NAME).is_file()


def _watched(statuses: Iterable[Status], todo: list[RunSpec]) -> Iterator[Status]:
    """Draw the progress of a batch, and print a line for each run that ends."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    label = todo[0].slug if len({spec.slug for spec in todo}) == 1 else "papers"
    with Progress(*columns, TextColumn("left"), TimeRemainingColumn(), console=console, transient=True) as progress:
        task = progress.add_task(label, total=len(todo))
        for status in statuses:
            progress.advance(task)
            text = f"{status.state:<11} {status.id}  {status.seconds:.0f} s" + (
                f"  {status.error}" if status.error else ""
            )
            progress.console.print(text, style=None if status.ok else "red", highlight=False, soft_wrap=True)
            yield status


def _summary(specs: list[RunSpec], statuses: list[Status]) -> None:
    ended = {status.id for status in statuses if status.ok}
    folders = [spec.folder for spec in specs if spec.id in ended or _is_done(spec)]
    records = read_records(folders)
    if records:
        console.print(claims_table(records))
    for folder in folders:
        console.print(f"executed notebook: {folder / EXECUTED_NAME}", soft_wrap=True, highlight=False)


def _status(options: argparse.Namespace) -> None:
    console.print(statuses_table(status for _, status in all_statuses(Path(options.runs))))


def _claims(options: argparse.Namespace) -> None:
    records = read_records(folder for folder, _ in all_statuses(Path(options.runs)))
    if options.csv:
        sys.stdout.write(claims_csv(records))
    else:
        console.print(claims_table(records))


def _parameters(options: argparse.Namespace) -> None:
    for name, field in parameters_model(options.slug).model_fields.items():
        console.print(f"{name} = {field.default!r}  # {field.description}", soft_wrap=True)


def _refresh(options: argparse.Namespace) -> None:
    from lib.batch.readme import update_readme
    from lib.batch.refresh import refresh

    record: Record = refresh(options.slug, options.preset)
    update_readme()
    console.print(claims_table({options.slug: record}))
    console.print(f"{record.wall_seconds:.0f} s, {record.peak_memory_mib:.0f} MiB")


def _new(options: argparse.Namespace) -> None:
    from lib.batch.scaffold import lay_out

    for path in lay_out(options.slug):
        console.print(f"wrote {path}", soft_wrap=True)
    options.preset = DEFAULT_PRESET
    _refresh(options)


def _reproduced(_: argparse.Namespace) -> int:
    from lib.batch.reproduced import compare_all

    table, differences = compare_all()
    console.print(table)
    for sentence in differences:
        errors.print(sentence, style="red", soft_wrap=True, highlight=False)
    return 1 if differences else 0


def _sync(_: argparse.Namespace) -> int:
    from lib.batch.sync import sync

    failed = 0
    for slug in slugs():
        try:
            console.print(sync(slug))
        except NotebookError as error:
            errors.print(str(error), style="red", soft_wrap=True)
            failed = 1
    return failed
