"""Claims: what a paper says, what was measured, and a verdict that could have been another one."""

import math
import operator
import re
from typing import Literal

from lib.bench.errors import ClaimError
from lib.bench.record import Claim, Control, Verdict

Kind = Literal["exact", "statistical", "descriptive"]

_OPERATORS = {"<=": operator.le, "<": operator.lt, ">=": operator.ge, ">": operator.gt, "==": operator.eq}
_RULE = re.compile(r"(<=|>=|==|<|>)\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)")


class Rule:
    """A rule on one number, ``<op> number``, for instance ``<= 1e-6``.

    Raises:
        ClaimError: the text is not of that form.
    """

    def __init__(self, text: str) -> None:
        match = _RULE.fullmatch(text.strip())
        if match is None:
            raise ClaimError(f"a rule is an operator (<=, <, >=, >, ==) and one number, not {text!r}")
        self.symbol, self.threshold = match[1], float(match[2])

    def passes(self, value: float, interval: tuple[float, float] | None = None) -> bool:
        """Whether a value passes; of an interval the worse end is judged (both ends for ``==``)."""
        compare = _OPERATORS[self.symbol]
        return all(bool(compare(number, self.threshold)) for number in interval or (value,))


def judge(
    id: str,
    statement: str,
    *,
    measured: float | None,
    kind: Kind,
    rule: str | None,
    paper: str | None = None,
    interval: tuple[float, float] | None = None,
    control: tuple[str, float] | None = None,
    mutation: str | None = None,
    reason: str | None = None,
) -> Claim:
    """Judge a measured claim.

    Args:
        id: ``C1``, ``C2``, ...
        statement: the claim in words a reader can disagree with.
        measured: the number; ``None`` where it was not measured, then ``reason`` says why, and interval and control
            are dropped.
        kind: ``exact`` (holds to rounding at any preset), ``statistical`` (has an interval and a control) or
            ``descriptive`` (reported without verdict).
        rule: ``<op> number``, written before the number was seen; none if descriptive.
        paper: what the paper reports.
        interval: lower and upper end; the worse one is judged.
        control: what was taken away, and the same measurement without it. A control that passes the rule shows that
            the rule proves nothing: the verdict is ``not shown``.
        mutation: for an exact claim, what its unit test breaks to see it fail.
        reason: why a claim fails or was not evaluated; may be given beforehand, and is dropped where it
            holds, or is reported with its number.

    Raises:
        ClaimError: the claim lacks what its kind requires.
    """
    _require(kind == "descriptive" or rule is not None, f"{id} is {kind} and needs a rule")
    _require(kind != "descriptive" or rule is None, f"{id} is descriptive and takes no rule")
    _require(kind != "exact" or bool(mutation), f"{id} is exact and must name the mutation that its test makes")
    _require(measured is not None or bool(reason), f"{id} was not measured and must say why")
    if measured is not None and kind == "statistical":
        _require(
            interval is not None and control is not None, f"{id} is statistical and needs an interval and a control"
        )
    verdict: Verdict | None
    judged = Rule(rule) if rule is not None else None
    if measured is not None and not math.isfinite(measured):
        measured, interval, reason = None, None, reason or f"the measured value is {measured}"
        verdict = "fails" if judged else None
    elif judged is None:
        verdict = None
    elif measured is None:
        interval, control, verdict = None, None, "not evaluated"
    elif control is not None and judged.passes(control[1]):
        verdict = "not shown"
    else:
        verdict = "holds" if judged.passes(measured, interval) else "fails"
    return Claim(
        id=id,
        statement=statement,
        kind=kind,
        paper=paper,
        measured=measured,
        interval=interval,
        rule=rule,
        control=_control(control, judged),
        mutation=mutation,
        verdict=verdict,
        reason=None if verdict == "holds" or (judged is None and measured is not None) else reason,
    )


def _control(control: tuple[str, float] | None, rule: Rule | None) -> Control | None:
    if control is None:
        return None
    what, value = control
    finite = math.isfinite(value)
    return Control(what=what, measured=float(value) if finite else None, passes=bool(rule and rule.passes(value)))


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ClaimError(message)
