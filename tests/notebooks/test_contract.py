"""The contract of every notebook, design of the repository; applied to each one that is found."""

import ast
import hashlib
import json
import re
from base64 import b64decode
from pathlib import Path
from statistics import median

import jupytext
import nbformat
import pytest
from jupytext.compare import compare_notebooks
from nbformat import NotebookNode

from lib.batch.readme import papers_table
from lib.batch.spec import expand_grid, make_spec
from lib.bench.parameters import load_presets, parameters_model
from lib.bench.project import ROOT, slugs
from lib.bench.record import Record, code_sha256
from lib.bench.run import verdict_line

SLUGS = slugs()
SECTIONS = [
    "Claims",
    "Parameters",
    "Setup",
    "Symbols and a first example",
    "The core step",
    "Exact checks",
    "Experiment",
    "Figures",
    "Verdicts",
    "Limits, full scale, exercises",
]
CHECKED = "nbval-check-output"
MAX_CODE_LINES, MEDIAN_CODE_LINES, MAX_WORDS, MAX_BYTES = 40, 12, 150, 600_000
MAX_SETUP_LINES = 10
MAX_SECONDS = {"small": 90.0, "real": 900.0}
MAX_MEMORY_MIB = 4096
THUMBNAIL_WIDTH, THUMBNAIL_BYTES = 320, 40_000

pytestmark = pytest.mark.parametrize("slug", SLUGS)


def script_path(slug: str) -> Path:
    return ROOT / "notebooks" / f"{slug}.py"


def read_notebook(slug: str) -> NotebookNode:
    return nbformat.read(ROOT / "notebooks" / f"{slug}.ipynb", as_version=4)


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def tags(cell: NotebookNode) -> list[str]:
    return cell.metadata.get("tags", [])


def section_cells(notebook: NotebookNode) -> dict[str, list[NotebookNode]]:
    """Cells by the heading above them; the title stands for the first section."""
    sections: dict[str, list[NotebookNode]] = {"Title": []}
    for cell in notebook.cells:
        heading = re.match(r"## (.+)", cell.source) if cell.cell_type == "markdown" else None
        if heading:
            sections[heading[1].strip()] = []
        sections[list(sections)[-1]].append(cell)
    return sections


def records(slug: str) -> list[Record]:
    names = (f"{slug}.json", f"{slug}.real.json")
    return [Record.read(path) for name in names if (path := ROOT / "data" / "results" / name).exists()]


def plain_output(cell: NotebookNode) -> str:
    return "".join(output.get("text", "") for output in cell.outputs)


def test_the_six_files_exist(slug: str) -> None:
    paths = [
        f"notebooks/{slug}.py",
        f"notebooks/{slug}.ipynb",
        f"lib/methods/{slug}.py",
        f"tests/methods/test_{slug}.py",
        f"presets/{slug}.toml",
        f"data/results/{slug}.json",
        f"figures/{slug}/thumbnail.png",
    ]
    assert [path for path in paths if not (ROOT / path).is_file()] == []


def test_the_halves_of_the_pair_are_equal(slug: str) -> None:
    compare_notebooks(jupytext.read(script_path(slug)), read_notebook(slug), fmt="py:percent")


def test_sections_come_in_order(slug: str) -> None:
    notebook = read_notebook(slug)
    assert notebook.cells[0].source.startswith("# ")
    assert list(section_cells(notebook))[1:] == SECTIONS


def test_tags_stand_where_they_belong(slug: str) -> None:
    sections = section_cells(read_notebook(slug))
    parameters = [cell for cell in sections["Parameters"] if cell.cell_type == "code"]
    assert [tags(cell) for cell in parameters] == [["parameters"]]
    for name in ("Exact checks", "Verdicts"):
        assert any(CHECKED in tags(cell) for cell in sections[name]), name
    assert "run.finish()" in sections["Verdicts"][-1].source
    assert CHECKED in tags(sections["Verdicts"][-1])
    setup = [cell for cell in sections["Setup"] if cell.cell_type == "code"]
    assert len(setup) == 1
    assert len([line for line in setup[0].source.splitlines() if line.strip()]) <= MAX_SETUP_LINES
    assert f'start("{slug}", globals())' in setup[0].source


def test_the_identity_of_the_paper_is_told(slug: str) -> None:
    first = read_notebook(slug).cells[0].source
    for word in ("Paper", "Code", "Topics", "Cost"):
        assert re.search(rf"\*\*[^*]*{word}", first, re.IGNORECASE), word


def test_sizes(slug: str) -> None:
    notebook = read_notebook(slug)
    lines = [len([line for line in cell.source.splitlines() if line.strip()]) for cell in code_cells(notebook)]
    assert max(lines) <= MAX_CODE_LINES
    assert median(lines) < MEDIAN_CODE_LINES
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            prose = re.sub(r"<details>.*?</details>", "", cell.source, flags=re.DOTALL)
            assert len(prose.split()) < MAX_WORDS, prose[:80]
    assert (ROOT / "notebooks" / f"{slug}.ipynb").stat().st_size < MAX_BYTES


def test_every_code_cell_follows_a_text_cell(slug: str) -> None:
    cells = read_notebook(slug).cells
    bare = [
        index for index, cell in enumerate(cells) if cell.cell_type == "code" and cells[index - 1].cell_type == "code"
    ]
    assert bare == []


def test_every_cell_ran_once_and_in_order_without_error_or_noise(slug: str) -> None:
    cells = code_cells(read_notebook(slug))
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert [output for output in outputs if output.output_type == "error"] == []
    assert [output for output in outputs if output.get("name") == "stderr"] == []


def test_no_magics_and_no_paths_of_a_machine(slug: str) -> None:
    notebook = read_notebook(slug)
    for cell in code_cells(notebook):
        assert not re.search(r"^\s*[%!]", cell.source, re.MULTILINE)
        assert str(ROOT) not in json.dumps(cell.outputs)


def test_checked_cells_print_no_wavering_digits(slug: str) -> None:
    for cell in code_cells(read_notebook(slug)):
        if CHECKED in tags(cell) and "run.finish()" not in cell.source:
            assert not re.search(r"\d\.\d|\de[-+]\d", plain_output(cell)), cell.source
            assert {output.output_type for output in cell.outputs} == {"stream"}


def test_the_parameters_cell_repeats_the_defaults(slug: str) -> None:
    cell = next(cell for cell in code_cells(read_notebook(slug)) if "parameters" in tags(cell))
    lines = [line for line in cell.source.splitlines() if line.strip()]
    literals = {node.target.id: ast.literal_eval(node.value) for node in ast.parse(cell.source).body}  # type: ignore[attr-defined]
    defaults = parameters_model(slug)().model_dump()
    assert list(literals.items()) == list(defaults.items())
    assert list(literals)[:2] == ["preset", "seed"]
    assert all("  # " in line for line in lines), "each parameter has its comment"


def test_parameters_are_described_and_strict(slug: str) -> None:
    model = parameters_model(slug)
    assert [name for name, field in model.model_fields.items() if not field.description] == []
    assert model.model_config["extra"] == "forbid"
    assert model.model_config["allow_inf_nan"] is False


def test_presets_and_grids_are_valid(slug: str) -> None:
    presets, grids = load_presets(slug)
    assert {"smoke", "full"} <= presets.keys()
    for preset in presets:
        make_spec(slug, {"preset": preset})
    for grid in grids:
        assert len(expand_grid(ROOT / "presets" / f"{slug}.toml", grid, {})) > 1
    assert grids


def test_the_record_is_of_this_code(slug: str) -> None:
    assert records(slug)[0].preset == "small"
    for record in records(slug):
        assert record.slug == slug
        assert record.code_sha256 == code_sha256(slug), f"the code has changed: make refresh NB={slug}"
        assert record.wall_seconds <= MAX_SECONDS[record.preset]
        assert record.peak_memory_mib <= MAX_MEMORY_MIB or record.preset != "small"
        assert record.parameters == parameters_model(slug)(**record.parameters).model_dump()


def test_a_preset_real_has_its_record(slug: str) -> None:
    presets, _ = load_presets(slug)
    assert ("real" in presets) == (ROOT / "data" / "results" / f"{slug}.real.json").is_file()


def test_claims_can_fail(slug: str) -> None:
    listed = re.findall(r"\*\*(C\d+)", section_cells(read_notebook(slug))["Claims"][0].source)
    for record in records(slug):
        assert record.unsound == []
        assert sorted({claim.id.rstrip("abc") for claim in record.claims}) == sorted(set(listed))
        for claim in record.claims:
            if claim.kind == "statistical" and claim.verdict != "not evaluated":
                assert claim.control is not None
                assert not claim.control.passes
                assert claim.interval is not None
            if claim.verdict in ("fails", "not evaluated"):
                assert claim.reason, f"{claim.id} must say why"


def test_exact_claims_have_a_mutation_test(slug: str) -> None:
    tree = ast.parse((ROOT / "tests" / "methods" / f"test_{slug}.py").read_text(encoding="utf-8"))
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.mutation"
    ]
    broken = {ast.literal_eval(argument) for call in calls for argument in call.args}
    exact = {claim.id for record in records(slug) for claim in record.claims if claim.kind == "exact"}
    assert exact <= broken


def test_the_notebook_printed_the_record(slug: str) -> None:
    last = next(cell for cell in code_cells(read_notebook(slug)) if "run.finish()" in cell.source)
    assert plain_output(last).splitlines() == [verdict_line(claim) for claim in records(slug)[0].claims]


def test_pictures_of_notebook_folder_and_record_are_the_same(slug: str) -> None:
    shown = {
        hashlib.sha256(b64decode(output.data["image/png"])).hexdigest()
        for cell in code_cells(read_notebook(slug))
        for output in cell.outputs
        if "image/png" in output.get("data", {})
    }
    figures = records(slug)[0].figures
    assert 2 <= len(figures) <= 4
    assert shown == {figure.sha256 for figure in figures}
    for figure in figures:
        assert hashlib.sha256((ROOT / figure.path).read_bytes()).hexdigest() == figure.sha256
    kept = {path.stem for path in (ROOT / "figures" / slug).glob("*.png")}
    assert kept == {"thumbnail", *(figure.name for figure in figures)}


def test_the_thumbnail_is_small(slug: str) -> None:
    path = ROOT / "figures" / slug / "thumbnail.png"
    data = path.read_bytes()
    assert int.from_bytes(data[16:20], "big") == THUMBNAIL_WIDTH
    assert len(data) < THUMBNAIL_BYTES


def test_imports_go_one_way(slug: str) -> None:
    """A notebook imports the bench, its own method, and substrates; never the batch or another paper."""
    allowed = ("lib.bench", f"lib.methods.{slug}", "lib.substrates")
    tree = ast.parse(script_path(slug).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            assert not name.startswith("lib") or name.startswith(allowed), name


def test_links_lead_somewhere(slug: str) -> None:
    for cell in read_notebook(slug).cells:
        if cell.cell_type == "markdown":
            for target in re.findall(r"\]\(([\w/.-]+\.ipynb)\)", cell.source):
                assert target.removesuffix(".ipynb") in SLUGS, target


def test_readme_shows_the_records(slug: str) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert papers_table() in readme
    named = re.search(r"\*\*(\d+) papers\*\*", readme)
    assert named
    assert len(SLUGS) >= int(named[1])
