from pathlib import Path

import pytest

from lib.batch import spec as spec_module
from lib.batch.spec import RunSpec, expand_grid, make_spec, parse_assignments
from lib.bench.errors import ParameterError

GRID = """
[grid.size]
k = [2, 3]
noise = [0.1, 0.2]
m = 9

[grid.one]
k = 2
"""


@pytest.fixture(autouse=True)
def _any_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    class Plain(dict[str, object]):
        def model_dump(self) -> dict[str, object]:
            return dict(self)

    monkeypatch.setattr(spec_module, "resolve", lambda slug, explicit: Plain(explicit))
    monkeypatch.setattr(spec_module, "_code_sha256", lambda slug: "code")


def test_the_id_follows_from_parameters_and_code(monkeypatch: pytest.MonkeyPatch) -> None:
    first = make_spec("paper", {"k": 2})
    assert make_spec("paper", {"k": 2}, threads=2, timeout=5.0).id == first.id
    assert make_spec("paper", {"k": 3}).id != first.id
    monkeypatch.setattr(spec_module, "_code_sha256", lambda slug: "other code")
    assert make_spec("paper", {"k": 2}).id != first.id


def test_json_there_and_back() -> None:
    spec = make_spec("paper", {"k": [1, 2]}, timeout=3.0)
    assert RunSpec.from_json(spec.to_json()) == spec


def test_a_grid_is_a_product(tmp_path: Path) -> None:
    path = tmp_path / "paper.toml"
    path.write_text(GRID, encoding="utf-8")
    chosen = [spec.parameters for spec in expand_grid(path, "size", {})]
    assert len(chosen) == 4
    assert {(values["k"], values["noise"]) for values in chosen} == {(2, 0.1), (2, 0.2), (3, 0.1), (3, 0.2)}
    assert {values["m"] for values in chosen} == {9}
    assert len(expand_grid(path, "size", {"k": 5})) == 2, "an explicit value replaces the axis"


@pytest.mark.parametrize(("text", "name", "sentence"), [(GRID, "siz", "'size'"), ("k = [", "size", "not valid TOML")])
def test_bad_grids_get_a_sentence(tmp_path: Path, text: str, name: str, sentence: str) -> None:
    path = tmp_path / "paper.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ParameterError, match=sentence):
        expand_grid(path, name, {})


def test_a_missing_grid_file_gets_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="there is no file"):
        expand_grid(tmp_path / "none.toml", "size", {})


def test_assignments_are_read_as_toml() -> None:
    texts = ["k=3", "rate=1e-3", "name=no", 'quoted="a=b"', "sizes=[1, 2]", "flag=true", "path=a=b"]
    assert parse_assignments(texts) == {
        "k": 3,
        "rate": 1e-3,
        "name": "no",
        "quoted": "a=b",
        "sizes": [1, 2],
        "flag": True,
        "path": "a=b",
    }
    with pytest.raises(ParameterError, match="name=value"):
        parse_assignments(["k"])
