"""Compare a fresh run of every notebook with its committed record, by tolerance and not by digits."""

from rich.table import Table

from lib.batch.readme import committed_records
from lib.bench.parameters import DEFAULT_PRESET
from lib.bench.project import RECORD_NAME, ROOT
from lib.bench.record import Claim, Record


def compare(committed: Record, fresh: Record) -> list[str]:
    """What differs between two runs that should agree: one sentence a difference.

    Verdicts must be equal. A statistical number may move, on another processor, by the width of its interval beyond
    either end; exact numbers are judged by their rules alone, and descriptive ones (times among them) are not compared.
    """
    differences = []
    if committed.code_sha256 != fresh.code_sha256:
        differences.append("the code has changed since the record was made")
    before, after = ({claim.id: claim for claim in record.claims} for record in (committed, fresh))
    if before.keys() != after.keys():
        differences.append(f"the record has the claims {sorted(before)}, the run {sorted(after)}")
    for id in before.keys() & after.keys():
        old, new = before[id], after[id]
        if old.verdict != new.verdict:
            differences.append(f"{id} is recorded as {old.verdict!r}, but the run says {new.verdict!r}")
        elif _moved(old, new):
            differences.append(f"{id} was {old.measured} {old.interval}, but the run measured {new.measured}")
    return differences


def _moved(old: Claim, new: Claim) -> bool:
    if old.kind != "statistical" or old.interval is None or new.measured is None:
        return False
    low, high = old.interval
    width = high - low
    return not low - width <= new.measured <= high + width


def compare_all() -> tuple[Table, list[str]]:
    """Compare the runs in ``runs/live`` with the committed records.

    Returns:
        The notebooks' times, slowest first, and all differences.
    """
    differences: list[str] = []
    times: list[tuple[float, Record]] = []
    for slug, records in committed_records().items():
        path = ROOT / "runs" / "live" / slug / RECORD_NAME
        if DEFAULT_PRESET not in records or not path.is_file():
            differences.append(f"{slug}: there is no fresh run beside the record of {DEFAULT_PRESET!r}")
            continue
        fresh = Record.read(path)
        differences += [f"{slug}: {sentence}" for sentence in compare(records[DEFAULT_PRESET], fresh)]
        times.append((fresh.wall_seconds, fresh))
    table = Table("notebook", "seconds", "MiB", title="Notebooks, slowest first")
    for seconds, record in sorted(times, key=lambda pair: -pair[0]):
        table.add_row(record.slug, f"{seconds:.1f}", f"{record.peak_memory_mib:.0f}")
    return table, differences
