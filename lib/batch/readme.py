"""README's table of papers, made from the committed records: no number is typed twice."""

from typing import get_args

from lib.batch.notebooks import read_script, title
from lib.bench.project import ROOT, write_text
from lib.bench.record import Record, Verdict

README = ROOT / "README.md"
START = "<!-- papers: generated from data/results, do not edit -->"
END = "<!-- end of papers -->"


def committed_records() -> dict[str, dict[str, Record]]:
    """The committed records by slug and preset (``small`` and ``real``)."""
    records: dict[str, dict[str, Record]] = {}
    for path in sorted((ROOT / "data" / "results").glob("*.json")):
        record = Record.read(path)
        records.setdefault(record.slug, {})[record.preset] = record
    return records


def papers_table() -> str:
    """The table of papers in Markdown, headed by their number."""
    records = committed_records()
    lines = [
        f"**{len(records)} papers** are here.",
        "",
        "| | notebook | claims at `small` | claims at `real` | seconds at `small` |",
        "|---|---|---|---|---|",
    ]
    for slug, by_preset in records.items():
        small, real = by_preset.get("small"), by_preset.get("real")
        picture = f'<img src="figures/{slug}/thumbnail.png" width="160" alt="">'
        link = f"[{title(read_script(ROOT / 'notebooks' / f'{slug}.py'))}](notebooks/{slug}.ipynb)<br>`{slug}`"
        seconds = f"{small.wall_seconds:.0f}" if small else "–"
        lines.append(f"| {picture} | {link} | {_verdicts(small)} | {_verdicts(real)} | {seconds} |")
    return "\n".join(lines)


def update_readme() -> None:
    """Write the table of papers into README, between its two marks.

    Raises:
        ValueError: README has lost a mark.
    """
    text = README.read_text(encoding="utf-8")
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not (start and end):
        raise ValueError(f"README.md needs the lines {START!r} and {END!r} around its table of papers")
    updated = f"{before}{START}\n{papers_table()}\n{END}{after}"
    if updated != text:
        write_text(README, updated)


def _verdicts(record: Record | None) -> str:
    """Counts of the verdicts; a reader wants to know by name which claims fail."""
    if record is None:
        return "–"
    ids: dict[str, list[str]] = {verdict: [] for verdict in (*get_args(Verdict), "reported")}
    for claim in record.claims:
        ids[claim.verdict or "reported"].append(claim.id)
    named = {"fails", "not evaluated"}
    return "<br>".join(
        f"{len(members)} {verdict}" + (f" ({', '.join(members)})" if verdict in named else "")
        for verdict, members in ids.items()
        if members
    )
