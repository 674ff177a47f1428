import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.bench.claims import Rule, judge
from lib.bench.errors import ClaimError

STATISTICAL = {
    "kind": "statistical",
    "measured": 3.0,
    "interval": (2.5, 3.5),
    "control": ("shuffled", 1.0),
    "rule": ">= 2",
}


def verdict(**changes: Any) -> str | None:
    return judge("C1", "a claim", **{**STATISTICAL, **changes}).verdict


def test_verdicts() -> None:
    assert verdict() == "holds"
    assert verdict(rule=">= 3.2", interval=(3.3, 3.5), measured=3.4) == "holds"
    assert verdict(rule=">= 2.7") == "fails", "the worse end of the interval is judged"
    assert verdict(rule="<= 3.2", control=("shuffled", 9.0)) == "fails"
    assert verdict(control=("shuffled", 2.0)) == "not shown"
    assert verdict(measured=None, reason="too small") == "not evaluated"
    assert verdict(kind="descriptive", rule=None) is None
    assert verdict(measured=math.nan) == "fails"


def test_what_was_not_measured_has_no_interval_and_no_control() -> None:
    claim = judge("C1", "a claim", **{**STATISTICAL, "measured": None, "reason": "too small"})
    assert claim.interval is None
    assert claim.control is None


def test_a_reason_is_kept_where_it_explains_something() -> None:
    reason = {"reason": "too few seeds"}
    assert judge("C1", "a claim", **{**STATISTICAL, **reason}).reason is None
    assert judge("C1", "a claim", **{**STATISTICAL, **reason, "rule": ">= 9"}).reason == "too few seeds"
    assert judge("C1", "a claim", kind="descriptive", rule=None, measured=1.0, **reason).reason is None
    assert judge("C1", "a claim", kind="descriptive", rule=None, measured=None, **reason).reason == "too few seeds"


def test_a_control_that_passes_beats_a_measurement_that_passes() -> None:
    claim = judge("C1", "a claim", **{**STATISTICAL, "control": ("nothing taken away", 3.0)})
    assert claim.control is not None
    assert claim.control.passes
    assert claim.verdict == "not shown"


@pytest.mark.parametrize(
    "changes",
    [
        {"rule": None},
        {"rule": "about 3"},
        {"interval": None},
        {"control": None},
        {"measured": None},
        {"kind": "exact", "mutation": None},
        {"kind": "descriptive"},
    ],
)
def test_a_claim_that_proves_nothing_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ClaimError, match=r"C1|a rule is"):
        verdict(**changes)


@given(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9), st.sampled_from(["<=", "<", ">=", ">", "=="]))
def test_rules_compare_as_python_does(value: float, threshold: float, symbol: str) -> None:
    assert Rule(f"{symbol} {threshold!r}").passes(value) is bool(eval(f"{value!r} {symbol} {threshold!r}"))


@pytest.mark.parametrize(("text", "threshold"), [("<= 1e-6", 1e-6), (">=-2", -2.0), ("== .5", 0.5), ("< +3.", 3.0)])
def test_rules_are_read(text: str, threshold: float) -> None:
    assert Rule(text).threshold == threshold
