"""Real runs of the template's paper: what a user meets when all goes well, and when it does not."""

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import nbformat
import psutil
import pytest
from demo_project import SLUG, Command, project_environment
from filelock import FileLock

from lib.bench.record import Record

Run = Callable[[], "subprocess.Popen[str]"]


def notebook_text(project: Path) -> Path:
    return project / "notebooks" / f"{SLUG}.py"


def replace_in_script(project: Path, old: str, new: str) -> None:
    path = notebook_text(project)
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def slow_down(project: Path) -> None:
    """Make a run wait for a minute in its experiment, with a process of its own computing beside it."""
    lines = [
        "import subprocess, sys, time",
        "_ = subprocess.Popen([sys.executable, '-c', 'while True: pass'])",
        "time.sleep(60)",
        "draws = heavy",
    ]
    replace_in_script(project, "draws = heavy", "\n".join(lines))


def run_folders(project: Path) -> list[Path]:
    return sorted(path for path in (project / "runs").glob(f"{SLUG}-*") if path.is_dir())


def states(project: Path) -> list[str]:
    return [
        json.loads((folder / "status.json").read_text(encoding="utf-8"))["state"] for folder in run_folders(project)
    ]


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.1)


def executing(project: Path, cells: int = 5) -> bool:
    """Whether some run has come as far as the slow cell."""
    for path in (project / "runs").glob("*/executed.ipynb"):
        try:
            notebook = nbformat.read(path, as_version=4)
        except ValueError:  # papermill rewrites the file in place
            continue
        if any(cell.metadata.get("papermill", {}).get("status") == "running" for cell in notebook.cells[cells:]):
            return True
    return False


def test_a_run_leaves_notebook_record_figures_and_status(batch: Command, project: Path) -> None:
    result = batch("run", SLUG, "-p", "groups=8", "--preset", "smoke")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "executed notebook:" in result.stdout
    (folder,) = run_folders(project)
    record = Record.read(folder / "results.json")
    assert (record.preset, record.parameters["groups"], record.parameters["repetitions"]) == ("smoke", 8, 100)
    assert [path.name for path in sorted((folder / "figures").iterdir())] == ["groups.png", "tails.png"]
    assert nbformat.read(folder / "executed.ipynb", as_version=4).cells
    assert states(project) == ["done"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", SLUG, "-p", "grups=3"], "did you mean 'groups'"),
        (["run", SLUG, "-p", "groups=two"], "should be a valid integer"),
        (["run", SLUG, "-p", "groups=0"], "greater than or equal to 1"),
        (["run", SLUG, "-p", "seed=1.5"], "seed = 1.5"),
        (["run", SLUG, "--preset", "smal"], "did you mean 'small'"),
        (["run", "dema"], "did you mean 'demo'"),
        (["grid", "presets/demo.toml:group"], "did you mean 'groups'"),
        (["grid", "presets/demo.toml"], "name the grid"),
    ],
)
def test_bad_parameters_run_nothing(batch: Command, project: Path, arguments: list[str], sentence: str) -> None:
    result = batch(*arguments)
    assert result.returncode == 2
    assert sentence in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
    assert run_folders(project) == []


def test_a_float_that_is_whole_is_taken_as_a_seed(batch: Command, project: Path) -> None:
    assert batch("run", SLUG, "-p", "seed=1e3", "--preset", "smoke").returncode == 0
    seed = Record.read(run_folders(project)[0] / "results.json").seed
    assert seed == 1000
    assert isinstance(seed, int)


def test_a_grid_resumes_and_reports(batch: Command, project: Path) -> None:
    dry = batch("grid", f"presets/{SLUG}.toml:groups", "--dry-run")
    assert dry.stdout.count("to run") == 4
    assert run_folders(project) == []
    first = batch("grid", f"presets/{SLUG}.toml", "--grid", "groups", "--jobs", "2", "--timeout", "100")
    assert first.returncode == 0, first.stdout + first.stderr
    rows = list(csv.DictReader(io.StringIO((project / "runs" / f"{SLUG}-groups.csv").read_text(encoding="utf-8"))))
    assert sorted({int(row["groups"]) for row in rows}) == [1, 4, 16, 64]
    assert "samples" not in rows[0], "only parameters that vary have a column"
    assert {row["verdict"] for row in rows if row["groups"] == "1" and row["claim"] == "C2"} == {"fails"}
    second = batch("grid", f"presets/{SLUG}.toml:groups")
    assert "4 of 4 runs are done already" in second.stdout
    assert batch("claims", "--csv").stdout.count("C2") == 4
    assert batch("status").stdout.count("done") == 4


def test_a_failing_run_names_its_cell_and_the_others_go_on(batch: Command, project: Path) -> None:
    bad = 'if groups == 4:\n    raise RuntimeError("no fours")\ndraws = heavy'
    replace_in_script(project, "draws = heavy", bad)
    result = batch("grid", f"presets/{SLUG}.toml:groups", "--jobs", "2")
    assert result.returncode == 1
    assert "RuntimeError: no fours" in result.stdout
    assert "cell " in result.stdout
    assert sorted(states(project)) == ["done", "done", "done", "failed"]


def test_a_lost_tag_is_noticed_before_anything_runs(batch: Command, project: Path) -> None:
    replace_in_script(project, ' tags=["parameters"]', "")
    result = batch("run", SLUG)
    assert result.returncode == 1
    assert "no cell tagged 'parameters'" in result.stdout


def test_a_run_that_takes_too_long_is_stopped_with_all_it_started(batch: Command, project: Path) -> None:
    slow_down(project)
    result = batch("run", SLUG, "--timeout", "20")
    assert result.returncode == 1
    assert "timed out" in result.stdout
    assert re.search(r"cell \d+: took longer than 20 s", result.stdout)
    assert states(project) == ["timed out"]
    assert survivors(project) == []


def survivors(project: Path) -> list[int]:
    """Processes that still work for a project: its children, kernels and what those started."""
    found = []
    for process in psutil.process_iter(["environ"]):
        folder = (process.info["environ"] or {}).get("PAPERS_RUN_FOLDER", "")
        if folder.startswith(str(project)) and process.status() != psutil.STATUS_ZOMBIE:
            found.append(process.pid)
    return found


def start_batch(project: Path, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "lib.batch", *arguments],
        cwd=project,
        env=project_environment(project),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        # A test run started in the background ignores SIGINT, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def test_ctrl_c_in_a_batch_of_four_ends_everything(batch: Command, project: Path) -> None:
    slow_down(project)
    process = start_batch(project, "grid", f"presets/{SLUG}.toml:groups", "--jobs", "2")
    wait_for(lambda: executing(project))
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "interrupted" in output
    assert set(states(project)) == {"interrupted"}
    assert not list((project / "runs").glob("*/results.json"))
    assert survivors(project) == []


def test_a_killed_kernel_is_reported(project: Path) -> None:
    slow_down(project)
    process = start_batch(project, "run", SLUG)
    wait_for(lambda: executing(project))
    kernels = [pid for pid in survivors(project) if "ipykernel_launcher" in " ".join(psutil.Process(pid).cmdline())]
    os.kill(kernels[0], signal.SIGKILL)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "the kernel died" in output
    assert states(project) == ["failed"]
    for pid in survivors(project):  # what the killed kernel started is nobody's child any more
        psutil.Process(pid).kill()


def test_a_killed_batch_leaves_its_run_to_end_and_the_lock_to_it(batch: Command, project: Path) -> None:
    slow_down(project)
    process = start_batch(project, "run", SLUG)
    wait_for(lambda: executing(project))
    process.kill()
    process.communicate(timeout=10)
    second = batch("run", SLUG)
    assert second.returncode == 1
    assert "another process" in second.stdout
    assert states(project) == ["running"], "the busy second run wrote nothing"
    for pid in survivors(project):
        psutil.Process(pid).kill()
    wait_for(lambda: "killed" in batch("status").stdout)


SCHEDULER = """
import sys
from distributed import LocalCluster
cluster = LocalCluster(n_workers=1, threads_per_worker=2, processes=False, protocol="tcp://", host="127.0.0.1",
                       dashboard_address="127.0.0.1:0", worker_dashboard_address="127.0.0.1:0")
print(cluster.scheduler_address, flush=True)
sys.stdin.read()
"""


def test_a_grid_runs_on_a_scheduler_that_exists(batch: Command, project: Path) -> None:
    cluster = subprocess.Popen(
        [sys.executable, "-c", SCHEDULER],
        cwd=project,
        env=project_environment(project),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )
    assert cluster.stdout is not None
    address = cluster.stdout.readline().strip()
    result = batch("grid", f"presets/{SLUG}.toml:groups", "-p", "preset=smoke", "--scheduler", address)
    cluster.communicate(timeout=30)
    assert result.returncode == 0, result.stdout + result.stderr
    assert states(project) == ["done"] * 4


def test_two_runs_of_one_id_never_write_at_once(batch: Command, project: Path) -> None:
    assert batch("run", SLUG, "--preset", "smoke").returncode == 0
    (folder,) = run_folders(project)
    before = (folder / "results.json").read_bytes()
    with FileLock(folder / ".lock"):
        result = batch("run", SLUG, "--preset", "smoke")
    assert result.returncode == 1
    assert "another process is doing this run" in result.stdout
    assert (folder / "results.json").read_bytes() == before


def test_a_folder_that_cannot_be_written_is_named(batch: Command, project: Path) -> None:
    # A file in the way stops root too, whom no permission stops.
    (project / "runs").write_text("in the way", encoding="utf-8")
    result = batch("run", SLUG)
    assert result.returncode == 1
    assert "can't write to" in result.stdout
    assert (project / "runs").read_text(encoding="utf-8") == "in the way"


def test_a_kernel_reaches_no_network(batch: Command, project: Path) -> None:
    replace_in_script(
        project, "draws = heavy", 'import urllib.request\nurllib.request.urlopen("http://192.0.2.1")\ndraws = heavy'
    )
    result = batch("run", SLUG, "--preset", "smoke")
    assert result.returncode == 1
    assert "tests reach no network" in result.stdout


def test_an_exact_claim_that_fails_is_exit_code_one(batch: Command, project: Path) -> None:
    replace_in_script(project, 'rule="<= 1e-12"', 'rule="< -1"')
    result = batch("run", SLUG, "--preset", "smoke")
    assert result.returncode == 1
    assert "ClaimError: C1" in result.stdout
    assert Record.read(run_folders(project)[0] / "results.json").unsound == ["C1"]


def papermill(notebook: Path, out: Path, cwd: Path, root: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "papermill", str(notebook), str(out), "--no-progress-bar", *arguments],
        cwd=cwd,
        env=project_environment(root),
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("place", ["root", "notebooks", "elsewhere"])
def test_plain_papermill_runs_from_anywhere(project: Path, tmp_path: Path, place: str) -> None:
    cwd = {"root": project, "notebooks": project / "notebooks", "elsewhere": tmp_path}[place]
    notebook = project / "notebooks" / f"{SLUG}.ipynb"
    path = notebook if place == "elsewhere" else Path(os.path.relpath(notebook, cwd))
    result = papermill(path, tmp_path / "out.ipynb", cwd, project, "-p", "groups", "3", "-p", "preset", "smoke")
    assert result.returncode == 0, result.stderr
    assert Record.read(project / "runs" / "live" / SLUG / "results.json").parameters["groups"] == 3


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["-p", "grups", "3"], "did you mean 'groups'"),
        (["-p", "groups", "two"], "should be a valid integer"),
        (["-p", "groups", "0"], "greater than or equal to 1"),
        (["-p", "seed", "1.5"], "seed = 1.5"),
    ],
)
def test_plain_papermill_meets_the_same_validation(
    project: Path, tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    notebook = project / "notebooks" / f"{SLUG}.ipynb"
    result = papermill(notebook, tmp_path / "out.ipynb", project, project, *arguments)
    assert result.returncode == 1
    assert sentence in result.stderr
    assert not (project / "runs" / "live" / SLUG / "results.json").exists()


def test_plain_papermill_notices_a_lost_tag(project: Path, tmp_path: Path) -> None:
    path = project / "notebooks" / f"{SLUG}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        cell.metadata["tags"] = [tag for tag in cell.metadata.get("tags", []) if tag != "parameters"]
    nbformat.write(notebook, path)
    result = papermill(path, tmp_path / "out.ipynb", project, project, "-p", "groups", "3")
    assert result.returncode == 1
    assert "has lost its tag" in result.stderr
