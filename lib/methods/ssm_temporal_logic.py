"""Temporal logic compiled into state space models, and run in the arithmetic that decides what they can express.

Source: Alsmann, Noori and Lange, "On the Expressiveness of State Space Models via Temporal Logics" (ICLR 2026); told
in notebooks/ssm_temporal_logic. The paper's theorems say which formulas some SSM recognises; the constructions here are
this repository's own. Words are integer arrays (N, T) of indices into an alphabet, one word a row. Formulas look back
only, so position t of a row also answers for the prefix that ends there.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from automata.fa.dfa import DFA
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from scipy.linalg import block_diag
from torch import Tensor, nn

from lib.substrates.names import check_name
from lib.substrates.temporal_logic import Formula, check_words, evaluate, parse_pltlf
from lib.substrates.training import Plan, train

GATE_CLASSES = ("diagonal", "time_invariant", "mixed")
TASKS = ("since", "mod2")
EVENT_RATE = 1 / 6  # letters b or c in a word of the trained tasks; the rest is a
ROUNDINGS = {"floor": np.floor, "nearest": np.rint, "zero": np.trunc}
_TEMPORAL = ("Y", "P", "S", "mod", "count")


class Parameters(BaseModel):
    """Parameters of the notebook; the defaults are its `small` run."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    preset: str = Field("small", description="named parameter set of presets/ssm_temporal_logic.toml")
    seed: int = Field(0, ge=0, description="seed of the formulas, the random networks and the training")
    alphabet: str = Field("ab", description="letters of the random formulas' words, at least two")
    max_len: int = Field(10, ge=3, le=14, description="every word up to this length is read")
    n_formulas: int = Field(300, ge=10, description="random formulas of every gate class")
    max_depth: int = Field(4, ge=1, le=8, description="deepest nesting of operators in a random formula")
    bits: int = Field(6, ge=4, le=26, description="bits of a number in the fixed-width runs, sign included")
    frac_bits: int = Field(2, ge=2, le=12, description="bits of those behind the binary point")
    n_random_nets: int = Field(150, ge=10, le=400, description="random networks for the settling times, of either sign")
    count_bits: int = Field(4, ge=3, le=6, description="bits of the counters that must overflow")
    count_max: int = Field(200, ge=8, le=10_000, description="largest n of a^n b^n c^n in growing precision")
    search_bits: int = Field(3, ge=2, le=4, description="bits of the exhaustive search for the even lengths")
    n_search: int = Field(20_000, ge=100, le=60_000, description="random time-invariant layers tried on a S b")
    tasks: list[str] = Field(list(TASKS), description="languages that layers are trained on: since, mod2")
    seeds: int = Field(5, ge=2, le=20, description="trained copies of every layer type")
    train_steps: int = Field(250, ge=1, description="training steps")
    train_len: int = Field(24, ge=8, description="letters of a training word")
    test_len: int = Field(200, ge=16, description="letters of a test word")

    @field_validator("alphabet")
    @classmethod
    def _letters(cls, value: str) -> str:
        if len(set(value)) != len(value) or len(value) < 2 or not re.fullmatch(r"[a-z]+", value):
            raise ValueError(f"alphabet must be at least two different letters a-z, such as 'ab', not {value!r}")
        return value

    @model_validator(mode="after")
    def _sizes_fit(self) -> "Parameters":
        whole = 4 if self.frac_bits < 4 else 5
        if self.bits < self.frac_bits + whole:
            raise ValueError(
                f"bits must be at least {self.frac_bits + whole}: reading Y needs {whole} bits before the point"
            )
        if len(self.alphabet) ** self.max_len > 200_000:
            raise ValueError(f"{len(self.alphabet)}^{self.max_len} words are too many: lower max_len or alphabet")
        return self

    @field_validator("tasks")
    @classmethod
    def _known_tasks(cls, value: list[str]) -> list[str]:
        return [check_name(name, TASKS, "task") for name in value]


# Arithmetic and layers


@dataclass(frozen=True)
class FixedPoint:
    """Signed fixed-point numbers of ``bits`` bits, ``frac_bits`` of them behind the point.

    ``rounding`` is "floor" or "nearest"; out of range, a number saturates, or wraps around without ``saturate``.
    Up to 26 bits, a product of two numbers is exact in double precision before it is rounded.
    """

    bits: int
    frac_bits: int = 0
    rounding: str = "floor"
    saturate: bool = True

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= 26:
            raise ValueError(f"bits must lie in 2..26, not {self.bits}")
        if not 0 <= self.frac_bits < self.bits:
            raise ValueError(f"frac_bits must lie in 0..{self.bits - 1}, not {self.frac_bits}: the sign takes one bit")
        check_name(self.rounding, tuple(ROUNDINGS), "rounding")

    @property
    def top(self) -> float:
        """The largest number."""
        return float((2 ** (self.bits - 1) - 1) / 2**self.frac_bits)

    @property
    def numbers(self) -> np.ndarray:
        """Every number, in order."""
        return np.arange(-(2 ** (self.bits - 1)), 2 ** (self.bits - 1)) / 2**self.frac_bits

    def round(self, x: np.ndarray) -> np.ndarray:
        """The number that stands for x, elementwise."""
        codes = np.asarray(x) * 2.0**self.frac_bits
        codes = ROUNDINGS[self.rounding](codes)
        half = 2.0 ** (self.bits - 1)
        codes = np.clip(codes, -half, half - 1) if self.saturate else (codes + half) % (2 * half) - half
        return codes * 2.0**-self.frac_bits


def LogPrecision(length: int, spare_bits: int = 2, frac_bits: int = 0) -> FixedPoint:
    """The arithmetic of log precision for words of ``length``: ceil(log2 length) + ``spare_bits`` bits, at least 3."""
    if length < 1:
        raise ValueError(f"length must be at least 1, not {length}")
    return FixedPoint(max(3, math.ceil(math.log2(length)) + spare_bits) + frac_bits, frac_bits)


def _relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0.0)


@dataclass(frozen=True, eq=False)
class Affine:
    """x -> weights x + bias, with ``weights`` (out, in) and ``bias`` (out,)."""

    weights: np.ndarray
    bias: np.ndarray

    @cached_property
    def _sparse(self) -> list[tuple[np.ndarray, np.ndarray]]:
        # The k-th non-zero weight of every row: a zero weight adds round(0 x) = 0, so leaving it out changes nothing.
        fan_in = np.count_nonzero(self.weights, axis=1).max(initial=0)
        columns = np.argsort(self.weights == 0, axis=1, kind="stable")[:, :fan_in].T
        return [(column, self.weights[np.arange(len(column)), column]) for column in columns]

    def __call__(self, x: np.ndarray, arithmetic: FixedPoint) -> np.ndarray:
        """(in, ...) to (out, ...): every product is rounded, then every sum, left to right, the bias last."""
        spread = (slice(None),) + (None,) * (x.ndim - 1)
        total = np.zeros((len(self.bias), *x.shape[1:]))
        for column, weight in self._sparse:
            total = arithmetic.round(total + arithmetic.round(weight[spread] * x[column]))
        return arithmetic.round(total + self.bias[spread])


@dataclass(frozen=True, eq=False)
class Block:
    """A residual ReLU block: adds ``out(ReLU(hidden(v)))`` to the coordinates ``targets`` of v."""

    hidden: Affine
    out: Affine
    targets: np.ndarray


@dataclass(frozen=True, eq=False)
class SSMLayer:
    """h_t = gate(x_t) h_{t-1} + inc(x_t), then z_t = phi(h_t, x_t): residual blocks on the vector (x_t, h_t).

    ``gate`` is a constant (s, s) matrix, or an :class:`Affine` map from x to the s diagonal entries, passed through
    ``squash``. The default squash, ReLU, makes the diagonal non-negative, as the paper's diagonal class demands.
    Neither sees h: a gate that did would make an RNN. ``h0`` (s,), ``inc`` from x (d,) to (s,).
    """

    h0: np.ndarray
    gate: Affine | np.ndarray
    inc: Affine
    output: tuple[Block, ...] = ()
    squash: Callable[[np.ndarray], np.ndarray] = _relu

    @property
    def time_invariant(self) -> bool:
        """Whether the gate is the same for every input."""
        return not isinstance(self.gate, Affine) or not self.gate.weights.any()

    @property
    def diagonal(self) -> bool:
        """Whether the gate is a non-negative diagonal matrix."""
        if isinstance(self.gate, Affine):
            return self.squash is _relu
        return bool((self.gate >= 0).all() and not (self.gate - np.diag(np.diag(self.gate))).any())

    def states(self, x: np.ndarray, arithmetic: FixedPoint, start: np.ndarray | None = None) -> np.ndarray:
        """States (s, T, N) over inputs (d, T, N), from ``start`` (s, N) or from ``h0``; loops over time only."""
        inc = self.inc(x, arithmetic)
        h = np.broadcast_to(self.h0[:, None] if start is None else start, inc[:, 0].shape)
        matrix = None if isinstance(self.gate, Affine) else Affine(self.gate, np.zeros(len(self.h0)))
        gates = arithmetic.round(self.squash(self.gate(x, arithmetic))) if isinstance(self.gate, Affine) else None
        states = np.empty_like(inc)
        for t in range(inc.shape[1]):
            moved = arithmetic.round(gates[:, t] * h) if gates is not None else matrix(h, arithmetic)  # type: ignore[misc]
            h = states[:, t] = arithmetic.round(moved + inc[:, t])
        return states

    def read(self, h: np.ndarray, x: np.ndarray, arithmetic: FixedPoint) -> np.ndarray:
        """phi: the new residual stream (d, T, N)."""
        v = np.concatenate([x, h])
        for block in self.output:
            added = block.out(_relu(block.hidden(v, arithmetic)), arithmetic)
            v[block.targets] = arithmetic.round(v[block.targets] + added)
        return v[: len(x)]


@dataclass(frozen=True, eq=False)
class SSM:
    """Embedding (d, letters), layers, readout (1, d), and the arithmetic in which every operation is rounded.

    A word is accepted where the readout at its last position is at least 1; of a compiled SSM it is 0 or 1.
    """

    alphabet: tuple[str, ...]
    embedding: np.ndarray
    layers: tuple[SSMLayer, ...]
    readout: Affine
    arithmetic: FixedPoint

    @property
    def size(self) -> int:
        """Non-zero weights of the layers."""
        maps = [m for layer in self.layers for m in (layer.gate, layer.inc)]
        maps += [m for layer in self.layers for block in layer.output for m in (block.hidden, block.out)]
        arrays = [a for m in maps for a in ((m.weights, m.bias) if isinstance(m, Affine) else (m,))]
        return int(sum(np.count_nonzero(a) for a in arrays))

    def features(
        self, words: np.ndarray, start: Sequence[np.ndarray] | None = None
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """The last residual stream (d, T, N) and the states (s, T, N) of every layer.

        Args:
            words: (N, T) indices into the alphabet.
            start: states (s, N) of every layer before the first letter; ``h0`` if absent.

        Raises:
            ValueError: the words are empty or not over the alphabet.
        """
        x = self.arithmetic.round(self.embedding)[:, check_words(words, self.alphabet).T]
        states = []
        for index, layer in enumerate(self.layers):
            states.append(layer.states(x, self.arithmetic, None if start is None else start[index]))
            x = layer.read(states[-1], x, self.arithmetic)
        return x, states

    def run(self, words: np.ndarray, return_states: bool = False) -> Any:
        """Acceptance (N, T) of every prefix of every word; with ``return_states`` also the states (N, T, s)."""
        x, states = self.features(words)
        accepted = self.readout(x, self.arithmetic)[0].T >= 1
        return (accepted, [h.transpose(2, 1, 0) for h in states]) if return_states else accepted


# The compiler

Terms = list[tuple[int, float]]  # a linear form: coordinates and their weights
Row = tuple[Terms, float]  # and its bias


def _affine(rows: Sequence[Row], width: int) -> Affine:
    weights = np.zeros((len(rows), width))
    for row, (terms, _) in enumerate(rows):
        for source, weight in terms:
            weights[row, source] += weight
    return Affine(weights, np.array([bias for _, bias in rows], dtype=float))


def compile_ssm(
    formula: Formula, alphabet: Sequence[str], gate: str = "diagonal", arithmetic: FixedPoint | None = None
) -> SSM:
    """An SSM that holds the truth of every subformula, 0 or 1, in its residual stream, and accepts by the formula.

    One layer a nesting level of temporal operators (in the mixed class MOD has the first layer for itself), one state
    a temporal subformula (m for MOD, one a counted term), one ReLU unit or two a truth value.

    Args:
        formula: what to compile.
        alphabet: names of the letters.
        gate: "diagonal" (PLTLf with counting), "time_invariant" (no S), "mixed" (each layer one or the other).
        arithmetic: of the run; six bits, two of them fractional, if absent.

    Raises:
        ValueError: the gate class can't express an operator, a proposition is unknown, or the arithmetic is too
            narrow for a weight.
    """
    check_name(gate, GATE_CLASSES, "gate class")
    arithmetic = arithmetic or FixedPoint(6, 2)
    for operator, wrong, right in (("S", "time_invariant", "diagonal"), ("mod", "diagonal", "time_invariant")):
        misfits = [f for f in formula.subformulas if f.operator == operator]
        if gate == wrong and misfits:
            raise ValueError(f"no {gate} gate expresses {misfits[0]}: compile with gate={right!r} or gate='mixed'")
    formulas: dict[Formula, None] = {}
    for f in formula.subformulas:
        opened = (f.operands[0] & ~f.operands[1]).subformulas if f.operator == "S" else []
        formulas |= dict.fromkeys([*opened, f])
    first = 2 if gate == "mixed" and any(f.operator == "mod" for f in formulas) else 1
    levels: dict[Formula, int] = {}
    for f in formulas:
        below = max((levels[g] for g in f.operands), default=0)
        levels[f] = max(below + 1, 1 if f.operator == "mod" else first) if f.operator in _TEMPORAL else below
    index = {f: i for i, f in enumerate(formulas)}
    embedding = np.zeros((len(index), len(alphabet)))
    for f in formulas:
        if levels[f] == 0:  # a Boolean combination of propositions depends on the letter alone
            embedding[index[f]] = evaluate(f, np.arange(len(alphabet))[:, None], alphabet)[:, 0]
    layers = [
        compile_layer([f for f in formulas if levels[f] == level], index, arithmetic, gate == "time_invariant")
        for level in range(1, max(levels.values()) + 1)
    ]
    return SSM(
        tuple(alphabet), embedding, tuple(layers), _affine([([(index[formula], 1.0)], 0.0)], len(index)), arithmetic
    )


def compile_layer(
    formulas: list[Formula], index: dict[Formula, int], arithmetic: FixedPoint, constant: bool = False
) -> SSMLayer:
    """The layer that adds the truth of ``formulas`` to the stream; ``index`` says at which coordinate each one lives.

    A ``constant`` gate is written as a matrix, and so is the gate of a layer with MOD.
    """
    d = len(index)
    h0: list[float] = []
    gates: list[Row] = []  # diagonal entries as functions of x
    incs: list[Row] = []
    reads: dict[Formula, list[tuple[float, Row]]] = {}  # truth value = sum of sign * ReLU(row)
    cycles: list[tuple[int, int]] = []
    # Y leaves h - f = h'/4, where the state h' before lies in {0, 1/4, 1, 5/4}. Up to three fractional bits rounding
    # sends a quarter of 1/4 to 0; with more, the threshold has to.
    scale, shift = (4.0, 0.0) if arithmetic.frac_bits < 4 else (8.0, -1.0)

    def add_state(gate: Row, inc: Row, start: float = 0.0) -> int:
        h0.append(start)
        gates.append(gate)
        incs.append(inc)
        return d + len(h0) - 1

    def clip(terms: Terms, bias: float) -> list[tuple[float, Row]]:
        return [(1.0, (terms, bias)), (-1.0, (terms, bias - 1))]

    for f in formulas:
        inputs: list[Row] = [([(index[g], 1.0)], 0.0) for g in f.operands]
        match f.operator:
            case "not":
                reads[f] = [(1.0, ([(index[f.operands[0]], -1.0)], 1.0))]
            case "and":
                reads[f] = [(1.0, (inputs[0][0] + inputs[1][0], -1.0))]
            case "S":  # gate ReLU(f - g), computed by the layer before: the state is the truth value
                h = add_state(([(index[f.operands[0] & ~f.operands[1]], 1.0)], 0.0), inputs[1])
                reads[f] = [(1.0, ([(h, 1.0)], 0.0))]
            case "P":  # a saturated counter is still positive
                reads[f] = clip([(add_state(([], 1.0), inputs[0]), 1.0)], 0.0)
            case "Y":
                h = add_state(([], 0.25), inputs[0])
                reads[f] = clip([(h, scale), (index[f.operands[0]], -scale)], shift)
            case "mod":
                states = [add_state(([], 0.0), ([], 0.0), float(k == 0)) for k in range(f.values[0])]
                cycles.append((states[0] - d, f.values[0]))
                reads[f] = [(1.0, ([(states[f.values[1]], 1.0)], 0.0))]
            case "count":
                states = [add_state(([], 1.0), inc) for inc in inputs]
                reads[f] = clip([(h, float(a)) for h, a in zip(states, f.values, strict=False)], 1.0 - f.values[-1])
    gate = _affine(gates, d)
    matrix = np.diag(gate.bias)
    for begin, m in cycles:
        matrix[begin : begin + m, begin : begin + m] = np.roll(np.eye(m), 1, axis=0)  # e_k to e_(k + 1)
    layer = SSMLayer(
        np.array(h0), matrix if constant or cycles else gate, _affine(incs, d), _blocks(reads, index, d + len(h0))
    )
    maps = [block.hidden for block in layer.output]
    needed = [matrix.ravel(), *(a.ravel() for m in maps for a in (m.weights, m.bias))]
    needed.append(np.array([2.0]))  # the sum of two truth values
    lost = [w for w in np.concatenate(needed) if arithmetic.round(w) != w]
    if lost:
        raise ValueError(
            f"{arithmetic.bits} bits, {arithmetic.frac_bits} of them fractional, can't hold the number {lost[0]:g} "
            "that the compiled layer needs: raise bits, and frac_bits to at least 2 where the formula has Y"
        )
    return layer


def _blocks(reads: dict[Formula, list[tuple[float, Row]]], index: dict[Formula, int], width: int) -> tuple[Block, ...]:
    """One block a depth of Boolean operators: a formula is read once its operands of the same layer are."""
    rank: dict[Formula, int] = {}
    for f in reads:
        rank[f] = 0 if f.operator in _TEMPORAL else 1 + max(rank.get(g, -1) for g in f.operands)
    blocks = []
    for depth in range(max(rank.values()) + 1):
        read = [f for f in reads if rank[f] == depth]
        units = [(row, *unit) for row, f in enumerate(read) for unit in reads[f]]
        out = np.zeros((len(read), len(units)))
        out[[row for row, _, _ in units], np.arange(len(units))] = [sign for _, sign, _ in units]
        targets = np.array([index[f] for f in read])
        blocks.append(Block(_affine([row for _, _, row in units], width), Affine(out, np.zeros(len(read))), targets))
    return tuple(blocks)


# Automata


def to_dfa(ssm: SSM, limit: int = 20_000) -> DFA:
    """The minimal DFA of an SSM's language, over words of any length; the empty word is rejected.

    Breadth first over the joint states of all layers; the states of one distance from the start are one batch.

    Raises:
        ValueError: more than ``limit`` states are reached.
    """
    letters = len(ssm.alphabet)
    known, sources, final = {b"": 0}, [0], set()
    start = [layer.h0[:, None] for layer in ssm.layers]
    moves: dict[int, dict[str, int]] = {}
    while sources:
        words = np.tile(np.arange(letters), len(sources))[:, None]
        x, states = ssm.features(words, [np.repeat(h, letters, axis=1) for h in start])
        accepted = ssm.readout(x, ssm.arithmetic)[0, 0] >= 1
        reached = np.vstack([*(h[:, 0] for h in states), accepted]).T + 0.0  # no negative zeros in a key
        fresh = []
        for column, key in enumerate(row.tobytes() for row in reached):
            if key not in known:
                known[key] = len(known)
                fresh.append(column)
            moves.setdefault(sources[column // letters], {})[ssm.alphabet[column % letters]] = known[key]
            if accepted[column]:
                final.add(known[key])
        if len(known) > limit:
            raise ValueError(f"more than {limit} states are reached: take fewer bits or a smaller formula")
        start = [h[:, 0, fresh] for h in states]
        sources = [known[reached[column].tobytes()] for column in fresh]
    automaton = DFA(
        states=set(known.values()),
        input_symbols=set(ssm.alphabet),
        transitions=moves,
        initial_state=0,
        final_states=final,
    )
    return automaton.minify()


def is_star_free(automaton: DFA, limit: int = 20_000) -> bool:
    """Whether the language is star-free: its transition monoid has only trivial groups (Schützenberger).

    Raises:
        ValueError: the monoid has more than ``limit`` elements.
    """
    minimal = automaton.to_complete().minify().to_complete()
    index = {state: i for i, state in enumerate(minimal.states)}
    letters = [tuple(index[minimal.transitions[q][a]] for q in minimal.states) for a in minimal.input_symbols]
    monoid, frontier = set(letters), list(letters)
    while frontier:
        longer = {tuple(letter[q] for q in element) for element in frontier for letter in letters} - monoid
        monoid |= longer
        frontier = list(longer)
        if len(monoid) > limit:
            raise ValueError(f"the transition monoid has more than {limit} elements")
    for element in monoid:
        power = tuple(range(len(index)))
        for _ in index:
            power = tuple(element[q] for q in power)
        if tuple(element[q] for q in power) != power:
            return False
    return True


# Random and exhaustive search


def signed(x: np.ndarray) -> np.ndarray:
    """The squash that lets negative gates through: outside the paper's diagonal class."""
    return x


def random_diagonal_ssms(
    count: int, width: int, layers: int, arithmetic: FixedPoint, rng: np.random.Generator, allow_negative: bool = False
) -> SSM:
    """``count`` random diagonal SSMs over the letter "a", side by side: one SSM whose weights are block-diagonal.

    Net i owns the ``width`` coordinates from ``i * width``. The same generator state gives the same weights with and
    without ``allow_negative``; without it, gates pass through a ReLU.
    """

    def draw(*shape: int) -> np.ndarray:
        return arithmetic.round(rng.normal(size=(count, *shape)))

    def affine(inputs: int) -> Affine:
        weights = [block_diag(*draw(width, width)) for _ in range(inputs)]
        return Affine(np.hstack(weights), draw(width).ravel())

    squash = signed if allow_negative else _relu
    made = [
        SSMLayer(
            draw(width).ravel(),
            affine(1),
            affine(1),
            (Block(affine(2), affine(1), np.arange(count * width)),),
            squash,
        )
        for _ in range(layers)
    ]
    readout = Affine(np.ones((1, count * width)), np.zeros(1))
    return SSM(("a",), draw(width).reshape(-1, 1), tuple(made), readout, arithmetic)


def settling_times(ssm: SSM, symbol: str, max_len: int) -> np.ndarray:
    """Position of the last change of every output coordinate, 0 if none, (d,), on ``symbol`` ``max_len`` times."""
    letter = ssm.alphabet.index(check_name(symbol, ssm.alphabet, "letter"))
    stream = ssm.features(np.full((1, max_len), letter))[0][:, :, 0]
    changed = stream[:, 1:] != stream[:, :-1]
    return np.where(changed, np.arange(2, max_len + 1), 0).max(axis=1, initial=0)


def since_latch() -> SSM:
    """``a S b`` over a, b, c with one constant gate: h <- floor(h/2) + inc, inc 0, 1, -1 for a, b, c, read by its sign.

    In real numbers h would fade. Rounded downwards, half of the smallest negative number is itself, and half of the
    smallest positive one is 0: negative stays negative, non-negative stays non-negative, for ever.
    """
    sign = Affine(np.array([[0.0, 0.0, 0.0, -4.0]] * 2), np.array([0.0, -1.0]))  # 1 - clip(-4 h)
    read = Block(sign, Affine(np.array([[-1.0, 1.0]]), np.array([1.0])), np.array([0]))
    inc = Affine(np.array([[0.0, 1.0, -1.0]]), np.zeros(1))
    layer = SSMLayer(np.array([-0.25]), np.array([[0.5]]), inc, (read,))
    embedding = np.diag([0.0, 1.0, 1.0])  # the first coordinate is free for the answer
    return SSM(("a", "b", "c"), embedding, (layer,), Affine(np.eye(1, 3), np.zeros(1)), FixedPoint(6, 2))


def even_length_machines(arithmetic: FixedPoint, length: int) -> np.ndarray:
    """Which one-dimensional layers h <- gate h + inc recognise the words of even length, by some set of states.

    Every gate, increment and start among the n numbers of the arithmetic is tried on all lengths up to ``length``.
    Some set of accepting states works exactly if no state is met at an even and at an odd length.

    Returns:
        (n, n, n) booleans by gate, increment and start.
    """
    numbers = arithmetic.numbers
    gate, inc, h0 = (axis.ravel() for axis in np.meshgrid(numbers, numbers, numbers, indexing="ij"))
    nothing = np.zeros((len(h0), 1))
    layer = SSMLayer(h0, Affine(nothing, gate), Affine(nothing, inc), squash=signed)
    states = layer.states(np.zeros((1, length, 1)), arithmetic)  # (machine, length, 1)
    even, odd = (np.equal(states[:, begin::2], numbers).any(axis=1) for begin in (1, 0))
    clash = np.logical_and(even, odd)
    return ~np.any(clash, axis=1).reshape((len(numbers),) * 3)


def since_machines(
    count: int, width: int, arithmetic: FixedPoint, rng: np.random.Generator, reads_input: bool = False
) -> np.ndarray:
    """Which of ``count`` random layers are consistent with ``a S b`` over {a, b, c}, on words of every length.

    A layer is consistent if no pair (state, letter) is met both where the formula is true and where it is false: then
    some read-out, however large, is right. The pairs (state, truth) that some word reaches are collected until there
    are no new ones. A layer has one full constant matrix, or, if it ``reads_input``, one diagonal gate a letter.

    Returns:
        (count,) booleans.
    """
    numbers, base = arithmetic.numbers, len(arithmetic.numbers)
    states = numbers[np.indices([base] * width).reshape(width, -1).T]  # (states, width)
    place = base ** np.arange(width)[::-1]
    gates = rng.choice(numbers, (count, 3, 1, width) if reads_input else (count, 1, width, width))
    incs = rng.choice(numbers, (count, 3, 1, width))
    if reads_input:
        moved = arithmetic.round(gates * states)
    else:
        moved = np.zeros((count, 1, len(states), width))
        for source in range(width):  # left to right, as everywhere
            product = arithmetic.round(gates[:, :, None, :, source] * states[:, source, None])
            moved = arithmetic.round(moved + product)
    digits = (arithmetic.round(moved + incs) - numbers[0]) * 2**arithmetic.frac_bits
    successor = digits.astype(np.int64) @ place  # (machine, letter, state)
    met = np.zeros((count, len(states), 3, 2), dtype=bool)  # (machine, state, letter, truth)
    machine, state, truth = np.arange(count), rng.integers(len(states), size=count), np.zeros(count, dtype=np.int64)
    while len(machine):
        fresh = []
        for letter, value in ((0, truth), (1, np.ones_like(truth)), (2, np.zeros_like(truth))):  # held, set, cleared
            after = successor[machine, letter, state]
            reached = met[machine, after].any(axis=1)[np.arange(len(machine)), value]
            fresh.append(np.stack([machine, after, value])[:, ~reached])
            met[machine, after, letter, value] = True
        machine, state, truth = np.unique(np.concatenate(fresh, axis=1), axis=1)
    clash = np.logical_and(met[..., 0], met[..., 1])
    return ~np.any(clash, axis=(1, 2))


# Trained layers


_SQUASH: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[np.ndarray], np.ndarray]]] = {
    "diagonal": (torch.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
    "signed": (torch.tanh, np.tanh),
    "time_invariant": (torch.clone, signed),
}


class TrainableSSM(nn.Module):
    """Independent copies of an SSM for gradient descent: words (copies, batch, T) over a, b, c to logits of that shape.

    ``gates`` names one gate a layer: "diagonal" (sigmoid of the input), "signed" (tanh of the input), or
    "time_invariant" (one orthogonal matrix, the exponential of a skew-symmetric one). phi is one residual ReLU block.
    """

    ALPHABET = ("a", "b", "c")

    def __init__(self, copies: int, gates: Sequence[str], generator: torch.Generator, width: int = 16) -> None:
        super().__init__()

        def draw(*size: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(copies, *size, generator=generator) / size[0] ** 0.5)

        self.gates = [check_name(gate, tuple(_SQUASH), "gate") for gate in gates]
        self.embedding = draw(3, width)
        sizes = {"gate": (1, 1), "inc": (1, 1), "hidden": (2, 2), "out": (2, 1)}  # in and out, in widths
        maps = {f"{n}{i}": (a * width, b * width) for i in range(len(gates)) for n, (a, b) in sizes.items()}
        maps["readout"] = (width, 1)
        self.weights = nn.ParameterDict({n: draw(*size) for n, size in maps.items()})
        self.biases = nn.ParameterDict({n: torch.zeros(copies, 1, size[1]) for n, size in maps.items()})

    def affine(self, name: str, x: Tensor) -> Tensor:
        """The map of that name, every copy its own, on (copies, batch, T, in)."""
        return torch.baddbmm(self.biases[name], x.flatten(1, -2), self.weights[name]).unflatten(1, x.shape[1:-1])

    def matrix(self, index: int) -> Tensor:
        """The orthogonal gate of a time-invariant layer, (copies, width, width)."""
        skew = 4 * self.weights[f"gate{index}"]  # eigenvalues all around the circle to begin with
        return torch.linalg.matrix_exp(skew - skew.mT)

    def forward(self, words: Tensor) -> Tensor:
        """Logits (copies, batch, T) of words of that shape."""
        x = self.embedding[torch.arange(len(words))[:, None, None], words]
        for index, kind in enumerate(self.gates):
            inc = self.affine(f"inc{index}", x)
            gate = self.matrix(index) if kind == "time_invariant" else _SQUASH[kind][0](self.affine(f"gate{index}", x))
            v = torch.cat([x, linear_scan(gate, inc)], dim=-1)
            x = x + self.affine(f"out{index}", torch.relu(self.affine(f"hidden{index}", v)))
        return self.affine("readout", x)[..., 0]

    @torch.no_grad()
    def to_ssm(self, copy: int, arithmetic: FixedPoint) -> SSM:
        """One copy in fixed width: weights rounded now, every operation rounded in its run."""

        def affine(name: str, shift: float = 0.0) -> Affine:
            weights, bias = self.weights[name][copy].T.numpy(), self.biases[name][copy, 0].numpy() + shift
            return Affine(arithmetic.round(weights), arithmetic.round(bias))

        width, layers = self.embedding.shape[-1], []
        for index, kind in enumerate(self.gates):
            matrix = arithmetic.round(self.matrix(index)[copy].numpy())
            gate = matrix if kind == "time_invariant" else affine(f"gate{index}")
            block = Block(affine(f"hidden{index}"), affine(f"out{index}"), np.arange(width))
            layers.append(SSMLayer(np.zeros(width), gate, affine(f"inc{index}"), (block,), _SQUASH[kind][1]))
        embedding = self.embedding[copy].T.numpy()
        return SSM(self.ALPHABET, embedding, tuple(layers), affine("readout", shift=1.0), arithmetic)  # logit 0 accepts


def linear_scan(gate: Tensor, inc: Tensor) -> Tensor:
    """h_t = gate_t h_{t-1} + inc_t from h_0 = 0, in log2 T doublings instead of T steps.

    ``inc`` (copies, batch, T, width); ``gate`` the diagonals of that shape, or one matrix (copies, width, width).
    """
    h, shift = inc, 1
    while shift < inc.shape[2]:
        before = nn.functional.pad(h[:, :, :-shift], (0, 0, shift, 0))
        if gate.ndim == 3:
            h, gate = h + before @ gate.mT[:, None], gate @ gate
        else:
            h, gate = h + gate * before, gate * nn.functional.pad(gate[:, :, :-shift], (0, 0, shift, 0))
        shift *= 2
    return h


def task_batch(task: str, copies: int, batch: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Words (copies, batch, length) of mostly a, with about four letters b or c, and the task's truth everywhere."""
    formula = {"since": "a S b", "mod2": "MOD(2, 0)"}[check_name(task, TASKS, "task")]
    size = (copies, batch, length)
    other = torch.randint(1, 3, size, generator=generator)
    words = torch.where(torch.rand(size, generator=generator) < EVENT_RATE, other, 0)
    truth = evaluate(parse_pltlf(formula), words.flatten(0, 1).numpy(), TrainableSSM.ALPHABET)
    return words, torch.from_numpy(truth.copy()).view(size)


def train_layers(
    task: str, gates: Sequence[str], copies: int, length: int, steps: int, generator: torch.Generator
) -> TrainableSSM:
    """Trains ``copies`` independent models, each on its own words, to tell the task's truth at every position."""
    model = TrainableSSM(copies, gates, generator)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        words, truth = batch
        each = nn.functional.binary_cross_entropy_with_logits(model(words), truth.float(), reduction="none")
        return each.mean(dim=(1, 2)).sum()  # a sum over copies keeps their gradients apart

    plan = Plan(steps, 5e-3, weight_decay=0.0, clip_norm=1e6)  # clipping by the joint norm would couple the copies
    train(model, lambda g, n: task_batch(task, copies, n, length, g), loss, plan, generator=generator)
    return model.eval()


@torch.no_grad()
def accuracy_by_position(
    model: TrainableSSM, task: str, words: int, length: int, generator: torch.Generator
) -> np.ndarray:
    """Share of right answers at every position, (copies, length), over fresh words."""
    batch, truth = task_batch(task, len(model.embedding), words, length, generator)
    return ((model(batch) > 0) == truth).float().mean(dim=1).numpy()
