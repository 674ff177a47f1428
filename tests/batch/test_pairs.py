"""Laying out, refreshing and syncing: what keeps the two halves of a pair, the record and README together."""

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from demo_project import SLUG, Command, project_environment

from lib.bench.record import Record


def git(project: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    subprocess.run(["git", *identity, *arguments], cwd=project, check=True, capture_output=True)


@pytest.fixture
def committed(project: Path) -> Path:
    git(project, "init", "--quiet")
    git(project, "add", "--all")
    git(project, "commit", "--quiet", "--message", "start")
    return project


def edit_script(project: Path, old: str = "# ## Claims", new: str = "# ## Claims\n#\n# Edited in the script.") -> None:
    path = project / "notebooks" / f"{SLUG}.py"
    path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")


def edit_notebook(project: Path) -> None:
    path = project / "notebooks" / f"{SLUG}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[1].source += "\n\nEdited in the notebook."
    nbformat.write(notebook, path)


def sources(project: Path) -> str:
    notebook = nbformat.read(project / "notebooks" / f"{SLUG}.ipynb", as_version=4)
    return "\n".join(cell.source for cell in notebook.cells)


def test_the_template_keeps_the_contract(project: Path) -> None:
    """The contract's own tests, those of the laid-out method, and a smoke run with exercises."""
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"],
        cwd=project,
        env=project_environment(project),
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert result.returncode == 0, result.stdout


def test_the_template_is_formatted_and_typed(project: Path) -> None:
    for check in (["ruff", "check"], ["ruff", "format", "--check"]):
        files = [f"notebooks/{SLUG}.py", f"lib/methods/{SLUG}.py", f"tests/methods/test_{SLUG}.py"]
        result = subprocess.run(
            [sys.executable, "-m", *check, *files], cwd=project, capture_output=True, encoding="utf-8"
        )
        assert result.returncode == 0, result.stdout


def test_nbval_passes_and_sees_a_changed_verdict(project: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "notebooks"]
    command += ["--nbval-lax", "--nbval-current-env", "--nbval-sanitize-with", "tests/sanitize.cfg"]
    environment = project_environment(project)
    assert subprocess.run(command, cwd=project, env=environment, check=False, capture_output=True).returncode == 0
    path = project / "notebooks" / f"{SLUG}.ipynb"
    path.write_text(path.read_text(encoding="utf-8").replace("< 0.95     holds", "< 0.95     fails"), encoding="utf-8")
    assert subprocess.run(command, cwd=project, env=environment, check=False, capture_output=True).returncode == 1


def test_a_second_paper_of_that_name_is_refused(batch: Command) -> None:
    result = batch("new", SLUG)
    assert result.returncode == 2
    assert "exists" in result.stderr
    assert "small letters" in batch("new", "Not-a-slug").stderr


def test_refreshing_changes_no_byte_of_notebook_and_figures(batch: Command, project: Path) -> None:
    files = [project / "notebooks" / f"{SLUG}.ipynb", *sorted((project / "figures" / SLUG).iterdir())]
    before = [file.read_bytes() for file in files]
    assert batch("refresh", SLUG).returncode == 0
    assert [file.read_bytes() for file in files] == before


def test_a_refresh_that_fails_changes_nothing(batch: Command, project: Path) -> None:
    record, notebook = project / "data" / "results" / f"{SLUG}.json", project / "notebooks" / f"{SLUG}.ipynb"
    before = record.read_bytes(), notebook.read_bytes()
    edit_script(project, "draws = heavy", "assert False\ndraws = heavy")
    result = batch("refresh", SLUG)
    assert result.returncode == 2
    assert "AssertionError" in result.stderr
    assert (record.read_bytes(), notebook.read_bytes()) == before
    assert "only 'small' and 'real'" in batch("refresh", SLUG, "--preset", "smoke").stderr


def test_the_comparison_with_the_record_sees_another_verdict(batch: Command, project: Path) -> None:
    run = [sys.executable, "-m", "papermill", f"notebooks/{SLUG}.ipynb", os.devnull, "--no-progress-bar"]
    subprocess.run(run, cwd=project, env=project_environment(project), check=True, capture_output=True)
    assert batch("reproduced").returncode == 0
    path = project / "data" / "results" / f"{SLUG}.json"
    record = Record.read(path)
    record.claims[1].verdict = "fails"
    record.claims[1].interval = (5.0, 5.1)
    record.write(path)
    result = batch("reproduced")
    assert result.returncode == 1
    assert "C2 is recorded as 'fails'" in result.stderr


def test_sync_follows_the_edited_half_whatever_the_times_say(batch: Command, committed: Path) -> None:
    edit_script(committed)
    os.utime(committed / "notebooks" / f"{SLUG}.py", (0, 0))
    assert batch("sync").returncode == 0
    assert "Edited in the script." in sources(committed)
    assert "image/png" in (committed / "notebooks" / f"{SLUG}.ipynb").read_text(encoding="utf-8"), "outputs stay"
    git(committed, "commit", "--all", "--message", "edit")
    edit_notebook(committed)
    os.utime(committed / "notebooks" / f"{SLUG}.ipynb", (0, 0))
    assert batch("sync").returncode == 0
    assert "Edited in the notebook." in (committed / "notebooks" / f"{SLUG}.py").read_text(encoding="utf-8")
    assert "the halves are equal" in batch("sync").stdout


def test_sync_refuses_where_both_halves_were_edited(batch: Command, committed: Path) -> None:
    edit_script(committed)
    edit_notebook(committed)
    result = batch("sync")
    assert result.returncode == 1
    assert "both halves differ" in " ".join(result.stderr.split())
    assert "Edited in the notebook." in sources(committed)
    assert "Edited in the script." in (committed / "notebooks" / f"{SLUG}.py").read_text(encoding="utf-8")


def test_jupytext_pairs_the_notebooks_and_not_the_runs(project: Path) -> None:
    """JupyterLab saves through jupytext's contents manager: either half saved, the other follows."""
    lines = [
        "import sys",
        "from jupyter_server.services.contents.largefilemanager import LargeFileManager",
        "from jupytext.sync_contentsmanager import build_sync_jupytext_contents_manager_class",
        "manager = build_sync_jupytext_contents_manager_class(LargeFileManager)()",
        "manager.root_dir, name = sys.argv[1], 'notebooks/demo.' + sys.argv[2]",
        "model = manager.get(name)",
        "model['content']['cells'][1]['source'] += ' saved as ' + sys.argv[2]",
        "manager.save(model, name)",
        "manager.save(manager.get('notebooks/demo.ipynb'), 'runs/copy.ipynb')",
    ]
    script = "\n".join(lines)
    (project / "runs").mkdir(exist_ok=True)
    for half, other in (("ipynb", "py"), ("py", "ipynb")):
        subprocess.run(
            [sys.executable, "-c", script, str(project), half],
            cwd=project,
            env=project_environment(project),
            check=True,
            capture_output=True,
        )
        text = (project / "notebooks" / f"{SLUG}.{other}").read_text(encoding="utf-8")
        assert f"saved as {half}" in text
    assert not (project / "runs" / "copy.py").exists()
