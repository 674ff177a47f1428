import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import matplotlib.pyplot as plt
import numpy as np
import pytest
from pydantic import BaseModel
from threadpoolctl import threadpool_info

from lib.bench import BenchError, ClaimError, Run, bootstrap_interval, show_source, start
from lib.bench import run as run_module
from lib.bench.project import FOLDER_VARIABLE
from lib.bench.record import Record

Open = Callable[..., Run]


class Parameters(BaseModel):
    preset: str = "small"
    seed: int = 0
    sizes: list[int] = [1, 2]


@pytest.fixture
def open_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Open:
    module = ModuleType("lib.methods.made_up")
    module.Parameters = Parameters  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(run_module, "code_sha256", lambda _: "hash")
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "out"))

    def opened(**namespace: object) -> Run:
        return start("made_up", namespace)

    return opened


def draw() -> plt.Figure:
    figure, axes = plt.subplots()
    _ = axes.plot([1, 2, 3])
    _ = axes.set_title("It rises")
    return figure


def test_validated_values_are_written_back(open_run: Open) -> None:
    namespace: dict[str, object] = {"seed": 5.0}
    start("made_up", namespace)
    assert namespace == {"preset": "small", "seed": 5, "sizes": [1, 2]}


def test_equal_seeds_give_equal_draws(open_run: Open) -> None:
    first, second, other = open_run(seed=1), open_run(seed=1), open_run(seed=2)
    assert first.rng.normal() == second.rng.normal()
    assert first.seeds(3) == second.seeds(5)[:3]
    assert first.seeds(3) != other.seeds(3)
    assert first.torch_generator().initial_seed() == 1


def test_threads_are_limited(open_run: Open) -> None:
    run = open_run()
    assert run.threads == 1
    assert {pool["num_threads"] for pool in threadpool_info()} <= {1}


def test_equal_figures_are_equal_byte_by_byte(open_run: Open) -> None:
    run = open_run()
    run.figure("first", draw())
    run.figure("second", draw())
    paths = [run.folder / "figures" / f"{name}.png" for name in ("first", "second")]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert plt.get_fignums() == []


def test_a_figure_name_is_a_file_stem(open_run: Open) -> None:
    with pytest.raises(BenchError, match="small letters"):
        open_run().figure("../elsewhere", draw())


def test_finish_writes_the_record_and_prints_no_digits(open_run: Open, capsys: pytest.CaptureFixture[str]) -> None:
    run = open_run()
    run.claim("C1", "exact", kind="exact", measured=0.123, rule="<= 1", mutation="wrong sign")
    run.claim("C2", "told", kind="descriptive", measured=0.456, rule=None)
    run.figure("rise", draw())
    run.finish()
    printed = capsys.readouterr().out
    assert "0.123" not in printed
    assert printed.splitlines()[-2:] == ["C1   exact        <= 1       holds", "C2   descriptive  -          reported"]
    record = Record.read(run.folder / "results.json")
    assert [claim.verdict for claim in record.claims] == ["holds", None]
    assert record.figures[0].path == "figures/rise.png"
    assert "numpy" in record.versions
    assert record.peak_memory_mib > 10


def test_an_exact_claim_that_fails_raises_after_the_record_is_written(open_run: Open) -> None:
    run = open_run()
    run.claim("C1", "exact", kind="exact", measured=2.0, rule="<= 1", mutation="wrong sign")
    with pytest.raises(ClaimError, match="C1"):
        run.finish()
    assert Record.read(run.folder / "results.json").unsound == ["C1"]


def test_smoke_evaluates_exact_claims_only(open_run: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lib.bench.parameters.load_presets", lambda _: ({"small": {}, "smoke": {}}, {}))
    run = open_run(preset="smoke")
    claim = run.claim(
        "C1", "often", kind="statistical", measured=2.0, rule=">= 1", interval=(2, 2), control=("none", 0.0)
    )
    assert claim.verdict == "not evaluated"
    assert claim.reason


def test_a_claim_judged_again_replaces_the_first(open_run: Open) -> None:
    run = open_run()
    for measured in (2.0, 0.0):
        run.claim("C1", "exact", kind="exact", measured=measured, rule="<= 1", mutation="wrong sign")
    run.finish()
    assert [claim.measured for claim in Record.read(run.folder / "results.json").claims] == [0.0]


def test_a_folder_that_cannot_be_written_is_named(open_run: Open, tmp_path: Path) -> None:
    # A file in the way stops root too, whom no permission stops.
    (tmp_path / "out").write_text("in the way", encoding="utf-8")
    with pytest.raises(BenchError, match="can't write to the output folder"):
        open_run()


def test_progress_is_silent_in_batch_and_draws_in_a_session(
    open_run: Open, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = open_run()
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    assert list(run.progress(range(3), "fitting")) == [0, 1, 2]
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("JPY_SESSION_NAME", "notebook.ipynb")
    assert list(run.progress(range(3), "fitting")) == [0, 1, 2]
    assert "fitting" in capsys.readouterr().err


def test_show_source_renders_the_source(capsys: pytest.CaptureFixture[str]) -> None:
    show_source(bootstrap_interval)
    assert "def bootstrap_interval" in capsys.readouterr().out


def test_the_bootstrap_interval_covers_the_mean() -> None:
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(100):
        low, high = bootstrap_interval(rng.normal(size=40), rng=rng, resamples=300)
        inside += low <= 0 <= high
    assert inside >= 85
    with pytest.raises(ValueError, match="two finite values"):
        bootstrap_interval([1.0], rng=rng)
