"""Past linear temporal logic over finite words: formulas, their text, and their meaning straight from the semantics.

Words are integer arrays (N, T) of indices into an alphabet, one word a row. Formulas look back only, so position t of a
row also answers for the prefix that ends there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lib.substrates.names import check_name

_ARITY = {"not": 1, "and": 2, "Y": 1, "P": 1, "S": 2, "mod": 0}


@dataclass(frozen=True)
class Formula:
    """A formula of PLTLf with counting and MOD, as a tree; combine with ``~``, ``&`` and ``|``.

    ``operator`` is "is" (the letter here is ``values[0]``), "not", "and", "Y", "P", "S", "mod" (the position, counted
    from 1, is ``values[1]`` modulo ``values[0]``), or "count" (``sum_k values[k] * #operands[k] >= values[-1]``).
    """

    operator: str
    operands: tuple[Formula, ...] = ()
    values: tuple[Any, ...] = ()

    def __invert__(self) -> Formula:
        return self.operands[0] if self.operator == "not" else Formula("not", (self,))

    def __and__(self, other: Formula) -> Formula:
        return Formula("and", (self, other))

    def __or__(self, other: Formula) -> Formula:
        return ~(~self & ~other)

    @property
    def subformulas(self) -> list[Formula]:
        """Every different subformula once, operands before what they are used in; the formula itself is last."""
        return list(dict.fromkeys([g for f in self.operands for g in f.subformulas] + [self]))

    def __str__(self) -> str:
        parts = [str(f) for f in self.operands]
        match self.operator:
            case "is":
                return str(self.values[0])
            case "not":
                return f"!{parts[0]}"
            case "mod":
                return "MOD({}, {})".format(*self.values)
            case "count":
                terms = " ".join(f"{a:+d}#{part}" for a, part in zip(self.values, parts, strict=False))
                return f"({terms} >= {self.values[-1]})"
            case "and" | "S":
                return f"({parts[0]} {'&' if self.operator == 'and' else 'S'} {parts[1]})"
        return f"{self.operator} {parts[0]}"


_TOKEN = re.compile(r"->|>=|<=|[()&|!#,+\-<>=]|\d+|[A-Za-z_]\w*|\S")
_BINARY = {"->": 1, "|": 2, "&": 3, "S": 4}


class _Parser:
    """Precedence climbing: unary operators bind strongest, then S, &, |, and -> (to the right) weakest."""

    def __init__(self, text: str) -> None:
        self.text, self.tokens, self.at = text, [*_TOKEN.findall(text), ""], 0

    @property
    def next(self) -> str:
        return self.tokens[self.at]

    def take(self, *expected: str) -> str:
        if expected and self.next not in expected:
            wanted = " or ".join(expected) or "the end"
            found = f"{self.next!r} (word {self.at + 1})" if self.next else "the end"
            raise ValueError(f"can't parse {self.text!r}: expected {wanted}, found {found}")
        self.at += 1
        return self.tokens[self.at - 1]

    def number(self) -> int:
        return int(self.take() if self.next.isdigit() else self.take("a number"))

    def formula(self, weakest: int = 1) -> Formula:
        left = self.unary()
        while _BINARY.get(self.next, 0) >= weakest:
            operator = self.take()
            right = self.formula(_BINARY[operator] + (operator != "->"))
            made = {"->": ~left | right, "|": left | right, "&": left & right, "S": Formula("S", (left, right))}
            left = made[operator]
        return left

    def unary(self) -> Formula:
        if self.next in ("#", "+", "-") or self.next.isdigit():
            return self.count()
        if not (self.next in ("!", "(") or self.next.isidentifier()) or self.next in _BINARY:
            self.take("a proposition", "an operator", "(")
        match token := self.take():
            case "(":
                inner = self.formula()
                self.take(")")
                return inner
            case "MOD":
                self.take("(")
                modulus, _, rest, _ = self.number(), self.take(","), self.number(), self.take(")")
                if modulus < 2 or rest >= modulus:
                    raise ValueError(f"MOD(m, r) needs m >= 2 and 0 <= r < m, not MOD({modulus}, {rest})")
                return Formula("mod", (), (modulus, rest))
            case "!":
                return ~self.unary()
            case "H":
                return ~Formula("P", (~self.unary(),))
            case "P" | "Y":
                return Formula(token, (self.unary(),))
        return Formula("is", (), (token,))

    def count(self) -> Formula:
        coefficients: list[int] = []
        counted: list[Formula] = []
        while not counted or self.next in ("+", "-"):
            sign = -1 if self.next in ("+", "-") and self.take() == "-" else 1
            coefficients.append(sign * (self.number() if self.next.isdigit() else 1))
            self.take("#")
            counted.append(self.unary())
        relation = self.take("<", "<=", "=", ">=", ">")
        bound = (-1 if self.next == "-" and self.take() else 1) * self.number()
        at_least = Formula("count", tuple(counted), (*coefficients, bound + (relation == ">")))
        at_most = Formula("count", tuple(counted), (*(-a for a in coefficients), -bound + (relation == "<")))
        return {"=": at_least & at_most, "<": at_most, "<=": at_most}.get(relation, at_least)


def parse_pltlf(text: str) -> Formula:
    """Reads a formula: letters or words as propositions; ``! & | ->``; ``Y P H`` before and ``S`` between formulas;
    ``MOD(m, r)``; counting as in ``#a - 2#(b | c) >= 1`` with ``< <= = >= >``.

    Everything is expressed by the core of :class:`Formula`: ``H f`` is ``!P !f``, an equality is two inequalities.

    Raises:
        ValueError: the text is no formula; says what was expected where.
    """
    parser = _Parser(text)
    formula = parser.formula()
    parser.take("")
    return formula


def random_formula(
    depth: int,
    alphabet: Sequence[str],
    rng: np.random.Generator,
    operators: Sequence[str] = ("not", "and", "Y", "P", "S"),
) -> Formula:
    """A random formula of at most ``depth`` nested operators, drawn uniformly from ``operators`` ("mod" is one too)."""
    for name in operators:
        check_name(name, _ARITY, "operator")
    if depth == 0 or rng.random() < 0.1:
        return Formula("is", (), (alphabet[int(rng.integers(len(alphabet)))],))
    operator = operators[int(rng.integers(len(operators)))]
    if operator == "mod":
        modulus = int(rng.integers(2, 4))
        return Formula("mod", (), (modulus, int(rng.integers(modulus))))
    below = tuple(random_formula(depth - 1, alphabet, rng, operators) for _ in range(_ARITY[operator]))
    return ~below[0] if operator == "not" else Formula(operator, below)


def all_words(alphabet: Sequence[str], length: int) -> np.ndarray:
    """All words of ``length`` in alphabetical order, (letters**length, length); shorter words are their prefixes."""
    if length < 1:
        raise ValueError(f"length must be at least 1, not {length}: the empty word has no last position")
    return np.indices([len(alphabet)] * length).reshape(length, -1).T


def check_words(words: np.ndarray, alphabet: Sequence[str]) -> np.ndarray:
    """The words as an array (N, T); raises ValueError where they are empty, of another type, or not of the alphabet."""
    words = np.asarray(words)
    if words.ndim != 2 or words.dtype.kind not in "iu":
        raise ValueError(f"words must be an (N, T) integer array, not {words.dtype} of shape {words.shape}")
    if words.shape[1] == 0:
        raise ValueError("the empty word has no last position to be true at: give words of at least one letter")
    if words.size and (words.min() < 0 or words.max() >= len(alphabet)):
        raise ValueError(f"words hold indices outside 0..{len(alphabet) - 1}, the alphabet {tuple(alphabet)}")
    return words


def evaluate(formula: Formula, words: np.ndarray, alphabet: Sequence[str]) -> np.ndarray:
    """Truth of a formula at every position of every word, straight from the semantics, with no recurrence in time.

    Non-strict past: ``P f`` looks at j <= i; ``f S g`` asks g at some j <= i and f at all k with j < k <= i; ``Y f``
    is false at the first position; ``#f`` counts the positions <= i.

    Args:
        formula: the formula.
        words: (N, T) indices into ``alphabet``.
        alphabet: names of the letters, which are the propositions.

    Returns:
        (N, T) booleans.

    Raises:
        ValueError: a proposition is not in the alphabet, or the words are empty or not of it.
    """
    words = check_words(words, alphabet)
    position = np.arange(1, words.shape[1] + 1)
    truth: dict[Formula, np.ndarray] = {}

    def last(where: np.ndarray) -> np.ndarray:
        return np.maximum.accumulate(np.where(where, position, 0), axis=1)

    for f in formula.subformulas:
        below = [truth[g] for g in f.operands]
        match f.operator:
            case "is":
                if f.values[0] not in alphabet:
                    raise ValueError(f"the proposition {f.values[0]!r} is not in the alphabet {tuple(alphabet)}")
                value = words == list(alphabet).index(f.values[0])
            case "not":
                value = ~below[0]
            case "and":
                value = below[0] & below[1]
            case "Y":
                value = np.pad(below[0], ((0, 0), (1, 0)))[:, :-1]
            case "P":
                value = last(below[0]) > 0
            case "S":
                value = (last(below[1]) > 0) & (last(below[1]) >= last(~below[0]))
            case "mod":
                value = np.broadcast_to(position % f.values[0] == f.values[1], words.shape)
            case _:
                terms = zip(f.values, below, strict=False)
                value = sum(a * np.cumsum(b, axis=1) for a, b in terms) >= f.values[-1]
        truth[f] = value
    return truth[formula]
