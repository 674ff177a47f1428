import json
import shutil
from pathlib import Path

import jsonschema
import pytest
from pydantic import ValidationError

from lib.bench import record as record_module
from lib.bench.claims import judge
from lib.bench.project import ROOT, write_text
from lib.bench.record import Record, syntax_sha256


def make_record(**changes: object) -> Record:
    values = {
        "schema": 1,
        "slug": "made_up",
        "preset": "small",
        "parameters": {"k": 2},
        "seed": 0,
        "threads": 1,
        "code_sha256": "",
        "wall_seconds": 0.0,
        "peak_memory_mib": 0.0,
        "versions": {},
        "figures": [],
        "claims": [],
    }
    return Record.model_validate({**values, **changes})


def exact(measured: float) -> object:
    return judge("C1", "a claim", kind="exact", measured=measured, rule="<= 1", mutation="wrong sign")


def test_it_comes_back_as_it_was_written(tmp_path: Path) -> None:
    record = make_record(claims=[exact(0.5)])
    record.write(tmp_path / "results.json")
    assert Record.read(tmp_path / "results.json") == record
    assert json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))["schema"] == 1


def test_unknown_keys_and_other_schemas_are_refused() -> None:
    with pytest.raises(ValidationError):
        make_record(colour="red")
    with pytest.raises(ValidationError):
        make_record(schema=2)


def test_an_exact_claim_that_fails_is_unsound_and_a_statistical_one_is_not() -> None:
    statistical = judge(
        "C2", "a claim", kind="statistical", measured=0.0, interval=(0, 0), control=("none", 0.0), rule=">= 1"
    )
    assert make_record(claims=[exact(2.0), statistical]).unsound == ["C1"]
    assert make_record(claims=[exact(0.0), statistical]).unsound == []


def test_the_published_schema_is_that_of_the_code() -> None:
    published = json.loads((ROOT / "data" / "results.schema.json").read_text(encoding="utf-8"))
    assert published == Record.model_json_schema(by_alias=True)


def test_committed_records_keep_the_published_schema() -> None:
    schema = json.loads((ROOT / "data" / "results.schema.json").read_text(encoding="utf-8"))
    for path in (ROOT / "data" / "results").glob("*.json"):
        jsonschema.validate(json.loads(path.read_text(encoding="utf-8")), schema)


def test_the_code_hash_ages_with_code_alone(tmp_path: Path) -> None:
    def digest(source: str) -> str:
        (tmp_path / "module.py").write_text(source, encoding="utf-8")
        return syntax_sha256(tmp_path / "module.py")

    original = digest('"""Doc."""\ndef f(x):\n    """Doc."""\n    return x + 1\n')
    assert digest("# comment\ndef f(x):\n\n    return (x + 1)  # why\n") == original
    assert digest("def f(x):\n    return x + 2\n") != original
    assert digest('x = """Doc."""\ndef f(x):\n    return x + 1\n') != original


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "results.json"
    write_text(path, "old")

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_text(path, "new")
    assert [file.name for file in tmp_path.iterdir()] == ["results.json"]
    assert path.read_text(encoding="utf-8") == "old"


def test_the_hash_covers_notebook_and_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "lib" / "methods").mkdir(parents=True)
    files = [tmp_path / "notebooks" / "demo.py", tmp_path / "lib" / "methods" / "demo.py"]
    for file in files:
        shutil.copy(ROOT / "lib" / "__init__.py", file)
    monkeypatch.setattr(record_module, "ROOT", tmp_path)
    hashes = {record_module.code_sha256("demo")}
    for file in files:
        file.write_text("x = 1\n", encoding="utf-8")
        hashes.add(record_module.code_sha256("demo"))
    assert len(hashes) == 3
