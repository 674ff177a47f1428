"""Pattern matching as functional equivalence: coverage of a data set, its two-hop law, and models trained beside it.

Source: Chang et al., "Characterizing Pattern Matching and Its Limits on Compositional Task Structures" (arXiv
2505.20278), told in ``notebooks/pattern_matching.ipynb``. Coverage takes any table of discrete inputs and targets.
Shapes: N observed inputs of l positions, Q queries, n tokens, F fragments, B vectors of width d.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import combinations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ConfigDict, Field
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor, nn
from transformers import MambaConfig, MambaForCausalLM, PreTrainedModel

from lib.substrates.completions import Completions, completion_loss, greedy_completions, small_decoder
from lib.substrates.lens import residual_streams, transplanted_logits
from lib.substrates.names import check_name
from lib.substrates.training import Plan, cached_model, train

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Subset = tuple[int, ...]
MAX_INPUTS = 2_000_000  # so many inputs n^l, and their graph, fit into memory

# The primitives of each task in order of computing. A call lists its arguments: 0 to l - 1 is an input position, l + j
# the output of call j. The last call gives the target, those before it the bridges.
TASKS: dict[str, tuple[tuple[int, ...], ...]] = {
    "two_hop": ((0, 1), (3, 2)),
    "parallel_two_hop": ((0, 1), (2, 3), (4, 5)),
    "three_hop": ((0, 1), (4, 2), (5, 3)),
    "five_hop": ((0, 1), (6, 2), (7, 3), (8, 4), (9, 5)),
    "non_tree": ((0, 1), (3, 1, 2)),
}
SUPERVISIONS = ("direct", "cot", "fake_bridge")


class Parameters(BaseModel):
    """Parameters of the notebook; the defaults are its `small` run."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    preset: str = Field("small", description="named parameter set of presets/pattern_matching.toml")
    seed: int = Field(0, ge=0, description="seed of the tables, the training sets, the batches and the bootstraps")
    language_model: str = Field("", description="pretrained model to read a real fact in; empty: train decoders here")
    n_tokens: int = Field(16, ge=4, le=120, description="n, tokens of the vocabulary")
    p_seen: float = Field(0.7, gt=0, le=1, description="share of each table that training may call")
    n_train: int = Field(1400, ge=1, description="N, training items of the main comparison")
    n_few: int = Field(700, ge=1, description="N where cutoffs spread, and of the written bridges")
    n_sparse: int = Field(100, ge=1, description="N where many ID items are not covered")
    n_layer: int = Field(2, ge=1, description="blocks of a decoder")
    d_model: int = Field(64, ge=4, description="its width")
    n_head: int = Field(4, ge=1, description="its attention heads")
    lr: float = Field(3e-3, gt=0, description="peak learning rate")
    weight_decay: float = Field(1.0, ge=0, description="of matrices only; twice as much for Mamba")
    batch_size: int = Field(256, ge=2, description="items of a training step; half with few items")
    max_steps: int = Field(1000, ge=10, description="training steps of the main comparison")
    few_steps: int = Field(300, ge=10, description="training steps with few items")
    run_mamba: bool = Field(True, description="train a Mamba beside the transformers")
    k_max: int = Field(12, ge=1, description="largest evidence strength looked for")
    coverage_ns: list[int] = Field([16, 24, 32, 48, 64], min_length=2, description="vocabularies of the law")
    coverage_ks: list[int] = Field([1, 2, 3], min_length=2, description="its evidence strengths, rising")
    coverage_seeds: int = Field(8, ge=2, description="its training sets")
    ambiguity_seeds: int = Field(8, ge=2, description="pairs of data sets in the comparison of coverage")
    pairs: int = Field(200, ge=2, description="pairs of inputs in the patching")
    countries: int = Field(24, ge=3, description="countries of the real fact")
    scaling_ns: list[int] = Field([], description="training sizes at which other decoders are compared; none: left out")
    scaling_widths: list[int] = Field([32, 64], min_length=1, description="widths that are compared")
    scaling_steps: int = Field(150, ge=10, description="training steps of that comparison")
    device: str = Field("cpu", description="where decoders are trained: cpu, cuda or mps")


@dataclass(frozen=True)
class CompositionalDataset:
    """A training set of a look-up task, and test items of every type.

    Attributes:
        task: its name in `TASKS`.
        n_tokens: n; token n itself is the dummy of ``fake_bridge``.
        supervision: what is written after the input: ``direct`` the target, ``cot`` bridges and target,
            ``fake_bridge`` as many dummies and the target.
        tables: the primitives, each of shape (n, n) or (n, n, n).
        train: (N, l + outputs), inputs and what follows them.
        test: (M, l + outputs), inputs that are not in `train`.
        test_type: (M,), bit j is set where call j of the item occurs in no training item; 0 is in-distribution.
    """

    task: str
    n_tokens: int
    supervision: str
    tables: tuple[Ints, ...]
    train: Ints
    test: Ints
    test_type: Ints

    @property
    def length(self) -> int:
        """Input positions l."""
        return task_length(self.task)

    @property
    def observed(self) -> tuple[Ints, Ints]:
        """Training inputs (N, l) and targets (N,): the D of the coverage functions."""
        return self.train[:, : self.length], self.train[:, -1]

    def bridges(self, inputs: ArrayLike) -> Ints:
        """Outputs (..., calls - 1) of the inner primitives for inputs (N, l)."""
        return compute(self.task, self.tables, inputs)[0][:, :-1]

    def completions(self) -> Completions:
        """The training items as prompts with targets."""
        items = torch.from_numpy(self.train)
        return Completions.of(items[:, : self.length], items[:, self.length :])


def task_length(task: str) -> int:
    """Number l of input positions of a task."""
    calls = TASKS[check_name(task, TASKS, "task")]
    return max(max(call) for call in calls) - len(calls) + 2


def all_inputs(n_tokens: int, length: int) -> Ints:
    """All inputs (n^l, l) in lexicographic order: row i spells i in base n.

    Raises:
        ValueError: if there is none, or they are too many to enumerate.
    """
    if n_tokens < 1 or length < 1 or n_tokens**length > MAX_INPUTS:
        raise ValueError(
            f"{n_tokens} tokens at {length} positions give no inputs or more than {MAX_INPUTS:,}: take fewer tokens"
        )
    return np.stack(np.unravel_index(np.arange(n_tokens**length), (n_tokens,) * length), axis=1)


def compute(task: str, tables: Sequence[Ints], inputs: ArrayLike) -> tuple[Ints, Ints]:
    """Outputs and table entries, (N, calls) each, of every call of a task for inputs (N, l)."""
    columns, entries = list(np.asarray(inputs).T), []
    length = len(columns)
    for call, table in zip(TASKS[task], tables, strict=True):
        arguments = tuple(columns[position] for position in call)
        entries.append(np.ravel_multi_index(arguments, table.shape))
        columns.append(table[arguments])
    return np.stack(columns[length:], axis=1), np.stack(entries, axis=1)


def draw_candidates(task: str, n_tokens: int, p_seen: float, rng: np.random.Generator) -> tuple[tuple[Ints, ...], Ints]:
    """Random tables of a task, and in random order all inputs (C, l) that call only a seen share of each table.

    Raises:
        ValueError: unknown task, fewer than two tokens or too many to enumerate, or a share outside (0, 1].
    """
    length, calls = task_length(task), TASKS[task]
    if n_tokens < 2:
        raise ValueError(f"a vocabulary of {n_tokens} is too small for {task}: n_tokens must be at least 2")
    if not 0 < p_seen <= 1:
        raise ValueError(f"p_seen is the share of each table that training may call: it lies in (0, 1], not {p_seen}")
    tables = tuple(rng.integers(n_tokens, size=(n_tokens,) * len(call)) for call in calls)
    inputs = all_inputs(n_tokens, length)
    _, entries = compute(task, tables, inputs)
    seen = [rng.permutation(table.size) < round(p_seen * table.size) for table in tables]
    allowed = np.logical_and.reduce([mask[entries[:, call]] for call, mask in enumerate(seen)])
    return tables, inputs[rng.permutation(np.flatnonzero(allowed))]


def make_compositional_dataset(
    task: str,
    n_tokens: int,
    n_train: int,
    p_seen: float = 0.7,
    supervision: str = "direct",
    seed: int = 0,
    per_type: int = 2000,
) -> CompositionalDataset:
    """A training set over the seen entries of random tables, and test items sorted by what training never showed.

    The training set is the head of :func:`draw_candidates`, so that those of one seed are nested. Afterwards an
    entry counts as seen only if a training item really calls it.

    Args:
        task: one of `TASKS`.
        n_tokens: n, tokens of the vocabulary.
        n_train: N, training items.
        p_seen: share of each table that training may call.
        supervision: ``direct``, ``cot`` or ``fake_bridge``.
        seed: of tables and draws; the supervision does not change them.
        per_type: at most so many test items of each type.

    Raises:
        ValueError: as :func:`draw_candidates`; an unknown supervision, no item, or more than there are candidates.
    """
    check_name(supervision, SUPERVISIONS, "supervision")
    rng = np.random.default_rng(seed)
    tables, candidates = draw_candidates(task, n_tokens, p_seen, rng)
    if min(n_train, per_type) < 1 or n_train > len(candidates):
        raise ValueError(
            f"n_train must lie in 1..{len(candidates)}, the inputs that call seen entries alone, and per_type be at "
            f"least 1, not {n_train} and {per_type}: lower n_train, or raise p_seen or n_tokens"
        )
    inputs = all_inputs(n_tokens, candidates.shape[1])
    values, entries = compute(task, tables, inputs)
    outputs = values[:, -1:] if supervision == "direct" else values.copy()
    if supervision == "fake_bridge":
        outputs[:, :-1] = n_tokens
    items = np.concatenate([inputs, outputs], axis=1)
    chosen = np.ravel_multi_index(tuple(candidates[:n_train].T), (n_tokens,) * candidates.shape[1])
    unseen = [~np.isin(entries[:, call], entries[chosen, call]) for call in range(len(tables))]
    kind = np.sum([mask.astype(np.int64) << call for call, mask in enumerate(unseen)], axis=0)
    kind[chosen] = -1
    drawn = [np.sort(rng.permutation(np.flatnonzero(kind == bits))[:per_type]) for bits in range(2 ** len(tables))]
    test = np.concatenate(drawn)
    return CompositionalDataset(task, n_tokens, supervision, tables, items[chosen], items[test], kind[test])


# ---------------------------------------------------------------------------------------------------------------------
# coverage


def _observations(inputs: ArrayLike, targets: ArrayLike) -> tuple[Ints, Ints]:
    """Distinct observed inputs (N, l) and their targets, checked."""
    x, y = np.asarray(inputs), np.asarray(targets)
    if x.ndim != 2 or x.shape[1] < 2 or y.shape != x.shape[:1] or not len(x):
        raise ValueError(f"give N >= 1 inputs (N, l >= 2) and targets (N,), not shapes {x.shape} and {y.shape}")
    if x.dtype.kind not in "iu" or y.dtype.kind not in "iu" or x.min() < 0:
        raise ValueError("inputs and targets must be whole numbers, inputs not negative: number your tokens first")
    distinct, first, same = np.unique(x.astype(np.int64), axis=0, return_index=True, return_inverse=True)
    if (y != y[first][same.ravel()]).any():
        row = int(np.argmax(y != y[first][same.ravel()]))
        raise ValueError(f"the data contradict themselves: input {x[row].tolist()} has two targets; keep one of them")
    return distinct, y[first].astype(np.int64)


def _check_strength(k: int) -> None:
    if k < 1:
        raise ValueError(f"the evidence strength k counts shared contexts: it must be at least 1, not {k}")


def proper_subsets(length: int) -> list[Subset]:
    """All 2^l - 2 index sets I, neither empty nor full."""
    return [subset for size in range(1, length) for subset in combinations(range(length), size)]


def _connected(rows: Ints, columns: Ints, size: int) -> Ints:
    """Component (size,) of each node of an undirected graph, given its edges."""
    graph = csr_array((np.ones(len(rows), dtype=bool), (rows, columns)), shape=(size, size))
    return connected_components(graph, directed=False)[1].astype(np.int64)


@dataclass(frozen=True)
class Evidence:
    """What a data set says about the fragments at one index set.

    Attributes:
        fragments: (F, |I|), the observed ones.
        shared: (F, F) sparse, the number of contexts that two fragments share, and 0 if they disagree in one.
    """

    fragments: Ints
    shared: csr_array

    @classmethod
    def of(cls, inputs: Ints, targets: Ints, subset: Subset) -> Evidence:
        """Counts by two products of sparse matrices: contexts in common, and contexts with one target in common."""
        rest = [position for position in range(inputs.shape[1]) if position not in subset]
        fragments, row = np.unique(inputs[:, subset], axis=0, return_inverse=True)
        contexts, column = np.unique(inputs[:, rest], axis=0, return_inverse=True)
        values, value = np.unique(targets, return_inverse=True)
        ones, row, column = np.ones(len(inputs), dtype=np.int64), row.ravel(), column.ravel()
        seen = csr_array((ones, (row, column)), shape=(len(fragments), len(contexts)))
        read = csr_array(
            (ones, (row, column * len(values) + value)), shape=(len(fragments), len(contexts) * len(values))
        )
        shared = (seen @ seen.T).tocsr()
        contradicted = (shared - read @ read.T).astype(bool)
        return cls(fragments, (shared - shared.multiply(contradicted)).tocsr())

    def classes(self, k: int) -> Ints:
        """Class (F,) of each fragment: joined by pairs that share k contexts or more and never disagree."""
        pairs = self.shared.tocoo()
        enough = pairs.data >= k
        return _connected(pairs.row[enough], pairs.col[enough], len(self.fragments))


def functional_equivalence_classes(
    inputs: ArrayLike, targets: ArrayLike, subset: Subset, k: int
) -> dict[tuple[int, ...], int]:
    """Class of each observed fragment at the index set `subset` under k-equivalence, closed transitively.

    Paper: functional k-equivalence; notebook: *The core step*.

    Raises:
        ValueError: k below 1, an index set that is empty, full or out of range, no data, or contradictory data.
    """
    _check_strength(k)
    x, y = _observations(inputs, targets)
    _check_subsets([subset], x.shape[1])
    evidence = Evidence.of(x, y, tuple(subset))
    return dict(zip(map(tuple, evidence.fragments.tolist()), evidence.classes(k).tolist(), strict=True))


def _check_subsets(subsets: Collection[Subset], length: int) -> None:
    for subset in subsets:
        if sorted(subset) not in [list(proper) for proper in proper_subsets(length)]:
            raise ValueError(
                f"an index set names some but not all of the positions 0 to {length - 1}, each once, not {subset}"
            )


class SubstitutionGraph:
    """The graphs G(D, k) of a data set, for every k: nodes are all inputs, edges are safe substitutions.

    Two inputs are joined if they differ in one fragment only and the two values are k-equivalent. Targets of inputs
    that were not observed play no part; the released code asks for equal targets along an edge as well, and has
    only training and in-distribution items as nodes.

    Args:
        inputs: (N, l) observed inputs, whole numbers from 0.
        targets: (N,) their targets.
        n_tokens: n; by default the largest token plus one.
        subsets: index sets I that may be substituted; by default all proper ones.

    Raises:
        ValueError: no data, contradictory data, a wrong index set, or more inputs than can be enumerated.
    """

    def __init__(
        self,
        inputs: ArrayLike,
        targets: ArrayLike,
        *,
        n_tokens: int | None = None,
        subsets: Collection[Subset] | None = None,
    ) -> None:
        x, y = _observations(inputs, targets)
        self.n_tokens, self.length = n_tokens or int(x.max()) + 1, x.shape[1]
        subsets = proper_subsets(self.length) if subsets is None else [tuple(subset) for subset in subsets]
        _check_subsets(subsets, self.length)
        self.place = self.n_tokens ** np.arange(self.length)[::-1]
        self.nodes = all_inputs(self.n_tokens, self.length)
        self.observed = self.codes(x)
        self.evidence = {subset: Evidence.of(x, y, subset) for subset in subsets}

    def codes(self, inputs: ArrayLike) -> Ints:
        """Node (Q,) of each input (Q, l).

        Raises:
            ValueError: another length, or a token that the graph does not have.
        """
        x = np.asarray(inputs)
        if x.ndim != 2 or x.shape[1] != self.length or x.dtype.kind not in "iu":
            raise ValueError(f"inputs must be whole numbers (Q, {self.length}), not {x.dtype} {x.shape}")
        if len(x) and not 0 <= x.min() <= x.max() < self.n_tokens:
            raise ValueError(f"tokens must lie in 0..{self.n_tokens - 1}: give the graph a larger n_tokens")
        return (x @ self.place).astype(np.int64)

    def components(self, k: int) -> Ints:
        """Connected component (n^l,) of every input in G(D, k), inputs in lexicographic order."""
        _check_strength(k)
        edges = [self._edges(subset, evidence, k) for subset, evidence in self.evidence.items()]
        tails, heads = np.concatenate([np.zeros((2, 0), dtype=np.int64), *edges], axis=1)
        return _connected(tails, heads, len(self.nodes))

    def _edges(self, subset: Subset, evidence: Evidence, k: int) -> Ints:
        # Every context is a node with every fragment, so a class may hang on its first member in each of them.
        _, first, label = np.unique(evidence.classes(k), return_index=True, return_inverse=True)
        part, stand_in = evidence.fragments @ self.place[list(subset)], first[label.ravel()]
        rest = [position for position in range(self.length) if position not in subset]
        context = all_inputs(self.n_tokens, len(rest)) @ self.place[rest]
        moving = np.flatnonzero(stand_in != np.arange(len(part)))
        return np.stack([np.add.outer(part[of], context).ravel() for of in (moving, stand_in[moving])])

    def covered(self, k: int) -> Bools:
        """Which of all inputs (n^l,) a path of substitutions joins to an observed one: Cover_k(D)."""
        component = self.components(k)
        return np.isin(component, component[self.observed])

    def cutoff(self, k_max: int) -> Ints:
        """The largest k up to `k_max` at which each input (n^l,) is covered, 0 if it never is.

        Coverage shrinks with k, so the number of covering k is the largest one.
        """
        _check_strength(k_max)
        return np.sum([self.covered(k) for k in range(1, k_max + 1)], axis=0, dtype=np.int64)


def k_coverage(
    train_inputs: ArrayLike,
    train_targets: ArrayLike,
    query_inputs: ArrayLike,
    k: int,
    subsets: Collection[Subset] | None = None,
) -> Bools:
    """Whether each query (Q, l) lies in Cover_k of the training data; see :class:`SubstitutionGraph`."""
    graph, queries = _graph_with(train_inputs, train_targets, query_inputs, subsets)
    return graph.covered(k)[queries]


def k_cutoff(
    train_inputs: ArrayLike,
    train_targets: ArrayLike,
    query_inputs: ArrayLike,
    k_max: int = 20,
    subsets: Collection[Subset] | None = None,
) -> Ints:
    """The largest k <= `k_max` at which each query (Q, l) is covered, 0 if none; see :class:`SubstitutionGraph`."""
    graph, queries = _graph_with(train_inputs, train_targets, query_inputs, subsets)
    return graph.cutoff(k_max)[queries]


def _graph_with(
    inputs: ArrayLike, targets: ArrayLike, queries: ArrayLike, subsets: Collection[Subset] | None
) -> tuple[SubstitutionGraph, Ints]:
    """The graph over all tokens of observations and queries, and the queries' nodes."""
    x, q = _observations(inputs, targets)[0], np.asarray(queries)
    n_tokens = int(max(x.max(), q.max(initial=0))) + 1
    graph = SubstitutionGraph(inputs, targets, n_tokens=n_tokens, subsets=subsets)
    return graph, graph.codes(q)


# ---------------------------------------------------------------------------------------------------------------------
# the two-hop law


def two_hop_share(inputs: Ints, bridges: Ints, k: int, n_tokens: int, rule: str = "substitution") -> float:
    """Share of in-distribution two-hop items that a rule predicts to be solved from the observed ones.

    In-distribution are all unobserved inputs whose calls (x1, x2) and (b, x3) occur. ``substitution`` asks whether
    the item is covered when fragments of one bridge, and only they, may be found k-equivalent: coverage at
    I = {1, 2} without the chance agreement of different bridges. ``count`` is the plain rival: x1, x2 was seen more
    than k times.

    Args:
        inputs: (N, 3) observed, distinct.
        bridges: (N,) their b = f1(x1, x2).
        k: evidence strength.
        n_tokens: n.
        rule: ``substitution`` or ``count``.

    Returns:
        The share, 0 where there is no such item.
    """
    _check_strength(k)
    check_name(rule, ("substitution", "count"), "rule")
    fragment, context = inputs[:, 0] * n_tokens + inputs[:, 1], inputs[:, 2]
    bridge_of = np.full(n_tokens**2, -1)  # of each observed fragment
    bridge_of[fragment] = bridges
    observed, called = np.zeros((n_tokens**2, n_tokens), dtype=bool), np.zeros((n_tokens, n_tokens), dtype=bool)
    observed[fragment, context], called[bridges, context] = True, True
    wanted = called[bridge_of] & ~observed & (bridge_of >= 0)[:, None]
    if not wanted.any():
        return 0.0
    if rule == "count":
        return float(np.repeat(observed.sum(1) > k, n_tokens)[wanted.ravel()].mean())
    # Columns that carry the bridge make only fragments of one bridge share contexts.
    call = bridges * n_tokens + context
    seen = csr_array((np.ones(len(call), np.int64), (fragment, call)), shape=(n_tokens**2, n_tokens**2))
    pairs = (seen @ seen.T).tocoo()
    enough = pairs.data >= k
    label = _connected(pairs.row[enough], pairs.col[enough], n_tokens**2)
    reached = np.zeros((label.max() + 1, n_tokens), dtype=bool)
    reached[label[fragment], context] = True
    return float(reached[label][wanted].mean())


def coverage_sample_complexity(
    n_tokens: int, k: int, threshold: float = 0.99, seed: int = 0, p_seen: float = 0.7, rule: str = "substitution"
) -> int:
    """Observed inputs N at which :func:`two_hop_share` first reaches a threshold, found by bisection.

    Training sets of one seed are nested, and the share is taken to grow with N. Paper: Theorem 6.1.

    Returns:
        N; the number of all candidates where only they reach the threshold, which says nothing about the law.

    Raises:
        ValueError: a threshold outside (0, 1], or as :func:`make_compositional_dataset`.
    """
    if not 0 < threshold <= 1:
        raise ValueError(f"threshold is a share of the items: take one in (0, 1], not {threshold}")
    tables, inputs = draw_candidates("two_hop", n_tokens, p_seen, np.random.default_rng(seed))
    bridges = tables[0][inputs[:, 0], inputs[:, 1]]
    too_few, enough = 0, len(inputs)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if two_hop_share(inputs[:middle], bridges[:middle], k, n_tokens, rule) >= threshold:
            enough = middle
        else:
            too_few = middle
    return enough


def fit_power_law(ns: ArrayLike, values: ArrayLike) -> tuple[float, float]:
    """Exponent c and R^2 of ``values ~ ns^c``, by least squares on logarithms.

    Raises:
        ValueError: fewer than two different ns, other lengths, or a number that is not positive.
    """
    x, y = np.asarray(ns, dtype=float), np.asarray(values, dtype=float)
    if x.ndim != 1 or x.shape != y.shape or len(np.unique(x)) < 2 or not (np.minimum(x, y) > 0).all():
        raise ValueError("a power law needs positive values at two different positive sizes or more")
    x, y = np.log(x), np.log(y)
    slope, offset = np.polyfit(x, y, 1)
    spread = ((y - y.mean()) ** 2).sum()
    return float(slope), float(1 - ((y - offset - slope * x) ** 2).sum() / spread) if spread else 1.0


def modal_guess(train_keys: ArrayLike, train_targets: ArrayLike, query_keys: ArrayLike) -> Ints:
    """The most frequent training target (Q,) among items with the query's key (N, m), (Q, m); smallest at ties.

    It is what an answerer can do who sees only the key; one that never occurred gets the most frequent target of all.
    """
    keys, queries, y = (np.asarray(array) for array in (train_keys, query_keys, train_targets))
    if not len(keys) or keys.ndim != 2 or len(keys) != len(y) or queries.shape[1:] != keys.shape[1:]:
        raise ValueError("give keys (N, m) and (Q, m), and N >= 1 targets")
    groups = np.unique(np.concatenate([keys, queries]), axis=0, return_inverse=True)[1].ravel()
    values, value = np.unique(y, return_inverse=True)
    counts = np.zeros((groups.max() + 1, len(values)))
    np.add.at(counts, (groups[: len(keys)], value), 1.0)
    counts[counts.sum(1) == 0] = counts.sum(0)
    return values[counts[groups[len(keys) :]].argmax(1)]


# ---------------------------------------------------------------------------------------------------------------------
# representations


def intra_inter_cosine_gap(hidden: Tensor, groups: ArrayLike) -> float:
    """Mean cosine of two vectors of one group, minus that of two of different groups (IICG, paper: section 5).

    Vectors (B, d) are centred first, for a direction common to all is no grouping; a vector whose group (B,) has no
    other member is left out. Give one vector a fragment: copies have cosine 1.

    Raises:
        ValueError: other shapes, values that are not finite, or fewer than two groups of at least two members.
    """
    labels = np.unique(np.asarray(groups), return_inverse=True)[1].ravel()
    if hidden.ndim != 2 or len(hidden) != len(labels) or not bool(hidden.isfinite().all()):
        raise ValueError(f"give finite vectors (B, d) and B groups, not {tuple(hidden.shape)} and {len(labels)}")
    kept = np.flatnonzero(np.bincount(labels)[labels] > 1) if len(labels) else labels
    if len(np.unique(labels[kept])) < 2:
        raise ValueError("a gap between groups needs at least two groups of at least two members")
    vectors = hidden[torch.from_numpy(kept)].double()
    unit = F.normalize(vectors - vectors.mean(0), dim=-1)
    cosine = (unit @ unit.T).cpu().numpy()
    same = np.equal.outer(labels[kept], labels[kept])
    other_item = ~np.eye(len(kept), dtype=bool)
    return float(cosine[same & other_item].mean() - cosine[~same].mean())


def contrast_pairs(dataset: CompositionalDataset, rng: np.random.Generator, size: int) -> tuple[Ints, Ints]:
    """Training items (P, l + outputs), and for each one that differs in x2 alone, in its first bridge and its target.

    P is `size`, or all pairs there are if they are fewer.

    Raises:
        ValueError: there is no such pair.
    """
    items = dataset.train
    alike = np.delete(items[:, : dataset.length], 1, axis=1)
    bridge, target = dataset.bridges(items[:, : dataset.length])[:, 0], items[:, -1]
    pairs = (alike[:, None] == alike).all(-1) & (bridge[:, None] != bridge) & (target[:, None] != target)
    base, source = np.nonzero(pairs)
    if not len(base):
        raise ValueError("no two training items differ in x2 alone and have different bridges and targets: add items")
    drawn = rng.permutation(len(base))[:size]
    return items[base[drawn]], items[source[drawn]]


def activation_patch(
    model: nn.Module, base_ids: Tensor, source_ids: Tensor, depth: int, position: int, read: int = -1
) -> Tensor:
    """Logits (B, V) at `read` for runs on `base_ids` with one residual stream taken from runs on `source_ids` (B, S).

    `depth` 0 enters the first block and l leaves block l; see :mod:`lib.substrates.lens`, which does the work.
    """
    stream = residual_streams(model, {"input_ids": source_ids, "use_cache": False}, position)[depth]
    return transplanted_logits(model, {"input_ids": base_ids}, stream, depth, position, read)


# ---------------------------------------------------------------------------------------------------------------------
# models


class TrainedDecoder(nn.Module):
    """A decoder with the course of its training: `course` (T, P), which probes it answered after `steps` (T,)."""

    def __init__(self, decoder: PreTrainedModel, checkpoints: int, probes: int) -> None:
        super().__init__()
        self.decoder = decoder
        # Buffers, because these are what the cache of trained models keeps beside the parameters.
        self.course: Tensor
        self.steps: Tensor
        self.register_buffer("course", torch.zeros(checkpoints, probes, dtype=torch.bool))
        self.register_buffer("steps", torch.zeros(checkpoints, dtype=torch.long))


def build_decoder(arch: str, vocabulary: int, context: int, layers: int, width: int, heads: int) -> PreTrainedModel:
    """An untrained ``gpt2``, or a smaller ``mamba`` (which has neither heads nor a limit of context).

    The matrices of the former start larger than GPT-2's, by the root of 768 / width: its standard deviation of 0.02
    was chosen for 768 inputs, and from such a start a width of 64 takes three times as many steps.

    Raises:
        ValueError: an unknown architecture, or sizes that do not fit.
    """
    if check_name(arch, ("gpt2", "mamba"), "architecture") == "gpt2":
        decoder = small_decoder(vocabulary, context, layers=layers, width=width, heads=heads)
        with torch.no_grad():
            for matrix in (parameter for parameter in decoder.parameters() if parameter.ndim == 2):
                matrix.mul_((768 / width) ** 0.5)
        return decoder
    with _quiet():
        return MambaForCausalLM(
            MambaConfig(
                vocab_size=vocabulary,
                hidden_size=width,
                num_hidden_layers=layers,
                state_size=4,
                expand=1,
                conv_kernel=3,
                time_step_rank=4,
                bos_token_id=None,
                eos_token_id=None,
                pad_token_id=0,
            )
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps transformers from saying that Mamba's fused kernels are not installed: three tokens need none."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(disabled)


def final_answers(decoder: PreTrainedModel, inputs: ArrayLike, outputs: int) -> Ints:
    """The last of `outputs` tokens (Q,) that the model itself writes after inputs (Q, l), on bridges of its own."""
    prompts = torch.as_tensor(np.asarray(inputs), device=decoder.device)
    with _quiet():
        return greedy_completions(decoder, prompts, outputs)[:, -1].cpu().numpy()


def train_decoder(
    dataset: CompositionalDataset,
    probes: Ints,
    plan: Plan,
    *,
    arch: str = "gpt2",
    layers: int = 2,
    width: int = 64,
    heads: int = 4,
    checkpoints: int = 10,
    seed: int = 0,
    device: str = "cpu",
) -> TrainedDecoder:
    """A decoder trained from scratch on the data, with its answers to `probes` (P, l + outputs) on the way.

    The loss is on the outputs alone. Trained models are cached by a recipe that holds everything named here but the
    device, on which they are trained; they come back on the processor.

    Raises:
        ValueError: checkpoints or sizes out of range, or an unknown architecture.
    """
    if not 1 <= checkpoints <= plan.steps:
        raise ValueError(f"checkpoints must lie in 1..{plan.steps}, the training steps, not {checkpoints}")
    length, outputs = dataset.length, dataset.train.shape[1] - dataset.length
    completions, steps = dataset.completions(), np.linspace(0, plan.steps, checkpoints + 1).astype(int)[1:]

    def build() -> TrainedDecoder:
        decoder = build_decoder(arch, dataset.n_tokens + 1, length + outputs, layers, width, heads)
        return TrainedDecoder(decoder, checkpoints, len(probes))

    def fit(model: TrainedDecoder) -> None:
        model.steps.copy_(torch.from_numpy(steps))

        def look(step: int, loss: float) -> None:
            if (row := np.flatnonzero(steps == step + 1)).size:
                right = final_answers(model.decoder, probes[:, :length], outputs) == probes[:, -1]
                model.course[row[0]] = torch.from_numpy(right)

        def draw(generator: torch.Generator, size: int) -> Completions:
            batch = completions.draw(generator, size)
            return Completions(batch.tokens.to(device), batch.labels.to(device))

        generator = torch.Generator().manual_seed(seed)
        model.to(device)
        train(model.decoder, draw, completion_loss, plan, generator=generator, after_step=look)
        model.cpu()

    digest = hashlib.sha256(np.concatenate([dataset.train, probes]).tobytes()).hexdigest()
    recipe = {
        "kind": "pattern_matching 2",
        "data": [digest, dataset.n_tokens, length, len(probes)],
        "decoder": [arch, layers, width, heads],
        "plan": asdict(plan),
        "checkpoints": checkpoints,
        "seed": seed,
    }
    with _quiet():
        return cached_model(recipe, build, fit)
