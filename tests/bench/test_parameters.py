import sys
from types import ModuleType

import pytest
from pydantic import BaseModel, ConfigDict, Field

from lib.bench import parameters
from lib.bench.errors import ParameterError
from lib.bench.parameters import from_namespace, resolve

SLUG = "made_up"
CELL = 'preset: str = "small"  # name\nseed: int = 0  # seed\nk: int = 2  # hyperplanes'


class Parameters(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    preset: str = "small"
    seed: int = Field(0, ge=0)
    k: int = Field(2, ge=1)
    rate: float = 0.5
    flag: bool = True


@pytest.fixture(autouse=True)
def _paper(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType(f"lib.methods.{SLUG}")
    module.Parameters = Parameters  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    presets = {"small": {}, "smoke": {"k": 7, "rate": 0.1}}
    monkeypatch.setattr(parameters, "load_presets", lambda _: (presets, {}))


def namespace(*cells: str) -> dict[str, object]:
    """What a kernel's globals hold after these cells."""
    values: dict[str, object] = {}
    for cell in cells:
        exec(cell, values)
    return {**values, "In": ["", *cells, "run = start(...)"]}


def test_order_is_injected_then_edited_then_preset_then_default() -> None:
    resolved = resolve(SLUG, injected={"preset": "smoke", "k": 2}, edited={"rate": 0.9, "seed": 0}).model_dump()
    assert resolved == {"preset": "smoke", "seed": 0, "k": 2, "rate": 0.9, "flag": True}


def test_an_injected_value_counts_where_it_equals_the_default() -> None:
    injected = from_namespace(SLUG, namespace(CELL, '# Parameters\npreset = "smoke"\nk = 2\n'))
    assert injected.model_dump()["k"] == 2
    edited = from_namespace(SLUG, namespace(CELL.replace('"small"', '"smoke"')))
    assert edited.model_dump()["k"] == 7


def test_a_cell_edited_after_an_injection_wins() -> None:
    cells = [CELL, "# Parameters\nk = 3\n", CELL.replace("k: int = 2", "k: int = 5")]
    assert from_namespace(SLUG, namespace(*cells)).model_dump()["k"] == 5


def test_without_a_history_the_values_themselves_count() -> None:
    assert from_namespace(SLUG, {"preset": "small", "seed": 3, "k": 4}).model_dump()["k"] == 4


@pytest.mark.parametrize(
    ("injected", "sentence"),
    [
        ({"kk": 3}, "did you mean 'k'"),
        ({"k": "two"}, "k = 'two': input should be a valid integer"),
        ({"k": 0}, "greater than or equal to 1"),
        ({"rate": float("nan")}, "finite number"),
        ({"seed": 1.5}, "seed = 1.5"),
        ({"preset": "smok"}, "did you mean 'smoke'"),
    ],
)
def test_bad_values_get_a_sentence(injected: dict[str, object], sentence: str) -> None:
    with pytest.raises(ParameterError, match=sentence):
        resolve(SLUG, injected)


def test_a_misspelt_name_in_the_cell_is_noticed() -> None:
    with pytest.raises(ParameterError, match="did you mean 'rate'"):
        from_namespace(SLUG, namespace(CELL + "\nrat: float = 0.1"))


def test_papermills_guesses_are_repaired() -> None:
    resolved = resolve(SLUG, {"seed": 1e3, "flag": "false"}).model_dump()
    assert resolved["seed"] == 1000
    assert isinstance(resolved["seed"], int)
    assert resolved["flag"] is False


def test_a_lost_tag_is_noticed() -> None:
    with pytest.raises(ParameterError, match="lost its tag"):
        from_namespace(SLUG, namespace("# Parameters\nk = 3\n", CELL))


def test_an_unknown_paper_is_named() -> None:
    with pytest.raises(ParameterError, match="there is no paper 'nothing_like_it'"):
        resolve("nothing_like_it", {})


def test_a_method_that_fails_to_import_is_no_unknown_paper(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(_: str) -> None:
        raise ModuleNotFoundError("No module named 'pyomo'", name="pyomo")

    monkeypatch.setattr(parameters.importlib, "import_module", broken)
    with pytest.raises(ModuleNotFoundError, match="pyomo"):
        resolve(SLUG, {})


def test_the_error_is_one_line_in_a_cell() -> None:
    assert ParameterError("k is wrong")._render_traceback_() == ["ParameterError: k is wrong"]
