"""Tables of runs and claims, on the screen and as CSV."""

import csv
import io
import json
from collections.abc import Iterable
from pathlib import Path

from rich.table import Table

from lib.batch.status import Status, read_status
from lib.bench.project import RECORD_NAME
from lib.bench.record import Record

_STYLES = {"holds": "green", "fails": "yellow", "not shown": "red", "not evaluated": "dim", None: "dim"}


def all_statuses(runs: Path) -> list[tuple[Path, Status]]:
    """Folders and states of all runs, oldest first."""
    pairs = [(folder, read_status(folder)) for folder in sorted(runs.glob("*")) if folder.is_dir()]
    return sorted(((folder, status) for folder, status in pairs if status), key=lambda pair: pair[1].started)


def read_records(folders: Iterable[Path]) -> dict[str, Record]:
    """Records of the runs that have one, by the name of their folder."""
    return {folder.name: Record.read(folder / RECORD_NAME) for folder in folders if (folder / RECORD_NAME).is_file()}


def claims_table(records: dict[str, Record]) -> Table:
    """Every claim of some runs, for the screen."""
    table = Table("run", "preset", "claim", "statement", "measured", "rule", "verdict", title="Claims")
    for name, record in records.items():
        for claim in record.claims:
            measured = "–" if claim.measured is None else f"{claim.measured:.4g}"
            style = _STYLES[claim.verdict]
            verdict = f"[{style}]{claim.verdict or 'reported'}[/{style}]"
            table.add_row(name, record.preset, claim.id, claim.statement, measured, claim.rule or "–", verdict)
        table.add_section()
    return table


def statuses_table(statuses: Iterable[Status]) -> Table:
    """States of runs, for the screen."""
    table = Table("run", "state", "seconds", "error", title="Runs")
    for status in statuses:
        colour = "green" if status.ok else "blue" if status.state == "running" else "red"
        table.add_row(status.id, f"[{colour}]{status.state}[/{colour}]", f"{status.seconds:.0f}", status.error or "")
    return table


def claims_csv(records: dict[str, Record]) -> str:
    """Every claim of some runs as CSV, one column for each parameter in which the runs differ."""
    varying = _varying_parameters(records.values())
    header = [
        "run",
        "slug",
        "preset",
        *varying,
        "claim",
        "kind",
        "rule",
        "measured",
        "low",
        "high",
        "control",
        "verdict",
    ]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(header)
    for name, record in records.items():
        values = [json.dumps(record.parameters.get(parameter)) for parameter in varying]
        for claim in record.claims:
            low, high = claim.interval or (None, None)
            control = claim.control.measured if claim.control else None
            row = [claim.id, claim.kind, claim.rule, claim.measured, low, high, control, claim.verdict]
            writer.writerow([name, record.slug, record.preset, *values, *row])
    return stream.getvalue()


def _varying_parameters(records: Iterable[Record]) -> list[str]:
    seen: dict[str, set[str]] = {}
    for record in records:
        for name, value in record.parameters.items():
            seen.setdefault(name, set()).add(json.dumps(value))
    return [name for name, values in seen.items() if len(values) > 1 and name != "preset"]
