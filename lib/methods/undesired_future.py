"""Influence power: which variable should be altered, and which only watched, so that a bad outcome is avoided.

Source: Tao, Wang, Jiang, Zhou, "On Measuring Influence in Avoiding Undesired Future" (ICLR 2026); told in
notebooks/undesired_future. Variables come true one after the other; each may be altered (set by us) or observed (left
to nature, then seen). Every way the story can go is an entry of one array, with an axis a variable and an index an
*event*: first the values that nature may show, then the values that we may set. Such an axis becomes a decision by
summing the first part and keeping the second; the maximum over it is one step of the paper's recursion.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import product
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from pydantic import BaseModel, ConfigDict, Field
from scipy.stats import norm
from sklearn.base import ClassifierMixin, clone

from lib.substrates.names import check_name

Batch = float | np.ndarray  # one number a model; a plain number where there is one model only
Policy = Sequence[np.ndarray]
History = Mapping[str, Any]  # variable -> the value that it was set to, or was seen to have

NOTHING: History = MappingProxyType({})
TOLERANCE = 1e-12  # "influence > 0" and "effect not 0" mean: by more than this
STRATEGIES = ("observe", "max-one", "max-all", "plan", "correlation", "effect", "influence")


class Parameters(BaseModel):
    """Parameters of the notebook; the defaults are its `small` run."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    preset: str = Field("small", description="named parameter set of presets/undesired_future.toml")
    seed: int = Field(0, ge=0, description="seed of the tasks' parameters, of the rows and of the searches")
    n_draws: int = Field(30, ge=2, le=1000, description="random parameter sets of each task")
    n_samples: int = Field(10_000, ge=10, le=1_000_000, description="observational rows that the models are learned on")
    mcts_iterations: int = Field(1000, ge=20, le=100_000, description="iterations of the longest tree search")
    alpha: float = Field(1.4142135623730951, ge=0, description="weight of exploration in the tree search")
    conditional_model: Literal["table", "logistic", "boosting"] = Field(
        "table", description="how conditionals are learned: table (counts), logistic or boosting (scikit-learn)"
    )
    bermuda_noise_var: float = Field(0.0144, gt=0, le=1, description="noise variance of the reef's equations")
    bins: int = Field(6, ge=2, le=8, description="bins, and values to set, of each of the reef's variables")


def _check_graph(order: Sequence[str], parents: Mapping[str, Collection[str]]) -> None:
    if len(set(order)) != len(order) or not order:
        raise ValueError("order must name every variable exactly once")
    for name in [*parents, *(parent for group in parents.values() for parent in group)]:
        check_name(name, order, "variable")
    for name in order:
        check_name(name, parents, "equation for")
    try:
        TopologicalSorter(parents).prepare()
    except CycleError as error:
        raise ValueError(f"the graph has a cycle, {' -> '.join(error.args[1])}: remove one of its arrows") from None
    for child, group in parents.items():
        for parent in group:
            if order.index(parent) > order.index(child):
                raise ValueError(f"order puts {child!r} before its parent {parent!r}: causes must come first")


def _check_history(
    order: Sequence[str],
    sequence: Sequence[str],
    target: str,
    do: History,
    observed: History,
    start: str | None,
) -> list[str]:
    """The part of ``sequence`` that is still to be decided or seen before ``target``."""
    order = list(order)
    place = order.index(check_name(target, order, "variable"))
    past = [order.index(check_name(name, order, "variable")) for name in (*do, *observed)]
    if set(do) & set(observed):
        raise ValueError("a variable is either altered or observed: leave it in one of do and observed")
    first = max(past, default=-1) + 1
    if start is not None:
        first = order.index(check_name(start, sequence, "variable"))
        if first >= place:
            raise ValueError(f"{start!r} comes true after the target {target!r}: altering it is too late")
    if max(past, default=-1) >= min(first, place):
        raise ValueError("the variables in do and observed must come before the start and the target in the order")
    return [name for name in sequence if first <= order.index(name) < place]


@dataclass(frozen=True)
class InfluenceResult:
    """Influence power of one variable (Definition 1), each field of the models' batch shape.

    ``value`` = ``alter`` - ``observe``: the best success probability after altering the variable now (to
    ``best_value``), minus the best one after letting nature choose it and seeing what she chose.
    """

    value: Batch
    alter: Batch
    observe: Batch
    best_value: Batch


def _choices(tensor: np.ndarray, shown: int) -> np.ndarray:
    """Turn the last axis from events into choices: to observe (summed over what may be shown), then to alter."""
    return np.concatenate([tensor[..., :shown].sum(axis=-1, keepdims=True), tensor[..., shown:]], axis=-1)


@dataclass(frozen=True)
class DecisionTree:
    """All histories of a sequence of variables, with the probabilities that decisions need.

    ``names`` are the variables in the order in which they are decided. The last axis of ``values[k]`` holds the events
    of variable k: ``shown[k]`` values that nature may show, then those that it may be set to; further axes, if any, are
    those of the events before it. ``weight`` ``[..., e_1, ..., e_m]`` is the probability of the observed part of a
    history given its altered part, ``success`` that times the probability that the target ends in its desired set.
    Leading axes are a batch of models. A history that cannot happen has weight 0.
    """

    names: tuple[str, ...]
    shown: tuple[int, ...]
    values: tuple[np.ndarray, ...]
    success: np.ndarray
    weight: np.ndarray

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape of the batch of models."""
        return self.success.shape[: self.success.ndim - len(self.names)]

    def settable(self, k: int) -> np.ndarray:
        """Values that variable k may be set to, the same after every history."""
        return self.values[k].reshape(-1, self.values[k].shape[-1])[0, self.shown[k] :]

    def optimal_choices(self) -> list[np.ndarray]:
        """Backward induction of the maximum expected probability (MEP), before each maximum is taken.

        Entry k is ``[..., e_1, ..., e_k, 1 + settable]``: weight times MEP of observing variable k, then of setting it
        to each value, all later decisions being optimal. Multiplied by its weight the recursion needs no division.
        """
        options, value = [], self.success
        for shown in reversed(self.shown):
            options.append(_choices(value, shown))
            value = options[-1].max(axis=-1)
        return options[::-1]

    def nature(self, tensor: np.ndarray) -> list[np.ndarray]:
        """``success`` or ``weight`` after k events, if all later variables are only observed, for k = 0..m."""
        levels = [tensor]
        for shown in reversed(self.shown):
            levels.append(levels[-1][..., :shown].sum(axis=-1))
        return levels[::-1]

    def plans(self) -> np.ndarray:
        """Success of every plan that is fixed in advance, ``[..., 1 + settable_1, ..., 1 + settable_m]``."""
        plans = self.success
        for shown in reversed(self.shown):
            plans = np.moveaxis(_choices(plans, shown), -1, len(self.batch_shape))
        return plans

    def policy(self, strategy: str) -> list[np.ndarray]:
        """A rule for every history: array k ``[..., e_1, ..., e_k]`` is 0 (observe) or j (set the j-th value).

        Of the paper: "observe", "max-one" (eq. 1), "max-all" (eq. 2), "correlation", "effect" and "influence" (its
        proposal); "plan" is the best of all plans that are fixed in advance. An axis may have length 1.

        Raises:
            ValueError: unknown strategy.
        """
        if check_name(strategy, STRATEGIES, "strategy") in ("observe", "max-one", "max-all", "plan"):
            return self._fixed(strategy)
        weight, success, optimal = self.nature(self.weight), self.nature(self.success), self.optimal_choices()
        policy = []
        for k, shown in enumerate(self.shown):
            if not self.settable(k).size:
                policy.append(np.zeros(weight[k].shape, dtype=int))
                continue
            if strategy == "influence":
                score, floor = optimal[k][..., 1:], optimal[k][..., 0] + TOLERANCE * weight[k]
            else:
                # Seeing a value has a probability to divide by, setting it has none: its weight is the history's.
                events = np.arange(shown, self.values[k].shape[-1])
                if strategy == "correlation":
                    if self.values[k].ndim > 1:
                        raise ValueError("the strategy 'correlation' needs discrete variables: choose another one")
                    events = np.searchsorted(self.values[k][:shown], self.settable(k))
                base = weight[k + 1][..., events]
                ratio = success[k + 1][..., events] / np.where(base > 0, base, 1)
                score = np.where(base > 0, ratio, -np.inf)
                floor = np.where(base > 0, ratio, np.inf).min(axis=-1) + TOLERANCE
            policy.append(np.where(score.max(axis=-1) > floor, 1 + score.argmax(axis=-1), 0))
        return policy

    def _fixed(self, strategy: str) -> list[np.ndarray]:
        plans, lead = self.plans(), len(self.batch_shape)
        grid = plans.shape[lead:]
        altered = (np.indices(grid) > 0).sum(axis=0)
        most = sum(size > 1 for size in grid)
        wanted = {"observe": altered == 0, "max-one": altered == 1, "max-all": altered == most, "plan": altered >= 0}
        best = np.where(wanted[strategy], plans, -np.inf).reshape(*self.batch_shape, -1).argmax(axis=-1)
        return [row.reshape((*self.batch_shape, *[1] * k)) for k, row in enumerate(np.unravel_index(best, grid))]

    def expectations(self, strategy: str) -> list[np.ndarray]:
        """What a strategy compares after each history ``[..., e_1, ..., e_k]``, on a last axis of choices.

        For "influence" the expected success of each choice, for others 1 at the choice that they take.
        """
        if strategy == "influence":
            weights = self.nature(self.weight)
            return [
                o / np.where(w > 0, w, 1)[..., None] for o, w in zip(self.optimal_choices(), weights[:-1], strict=True)
            ]
        policy = [
            np.broadcast_to(p, w.shape)
            for p, w in zip(self.policy(strategy), self.nature(self.weight)[:-1], strict=True)
        ]
        return [np.eye(1 + len(self.settable(k)))[choice] for k, choice in enumerate(policy)]

    def evaluate(self, policy: Policy) -> np.ndarray:
        """Success probability of a policy, exactly; more leading axes than the tree's are a batch of policies.

        Raises:
            ValueError: the policy has not one array a variable, or asks for a choice that there is not.
        """
        if len(policy) != len(self.names):
            raise ValueError(f"a policy needs one array for each of {', '.join(self.names)}, not {len(policy)} arrays")
        value = self.success
        for k in reversed(range(len(policy))):
            options, choice = _choices(value, self.shown[k]), np.asarray(policy[k])
            if choice.min() < 0 or choice.max() >= options.shape[-1]:
                raise ValueError(
                    f"a choice for {self.names[k]!r} is 0 (observe) to {options.shape[-1] - 1} (set a value)"
                )
            shape = np.broadcast_shapes(choice.shape, options.shape[:-1])
            options = np.broadcast_to(options, (*shape, options.shape[-1]))
            value = np.take_along_axis(options, np.broadcast_to(choice, shape)[..., None], axis=-1)[..., 0]
        return value[()]

    def influence(self) -> InfluenceResult:
        """Influence power of the first variable."""
        return _influence(self.optimal_choices()[0], self.settable(0))

    def search(
        self, iterations: Sequence[int], rng: np.random.Generator, alpha: float = 2**0.5, searches: int = 1
    ) -> InfluenceResult:
        """Influence power of the first variable by UCT, the paper's Monte-Carlo tree search (Section 4.1).

        Every iteration walks from the first variable to the end: by the upper confidence bound (``alpha`` weighs
        exploration) while all choices of a history have been tried, then by one untried choice, then at random; an
        observed value is drawn from its conditional distribution. ``searches`` independent ones run at once on every
        model of the batch. Fields of the result are ``[len(iterations), searches, ...]``: the state of the same
        search after so many iterations.

        Raises:
            ValueError: fewer iterations than choices at the first variable.
        """
        if min(iterations, default=0) < 1 + len(self.settable(0)):
            raise ValueError(f"every choice is tried once: ask for at least {1 + len(self.settable(0))} iterations")
        models = max(1, int(np.prod(self.batch_shape)))
        tree, rows = np.tile(np.arange(models), searches), np.arange(models * searches)
        weight = [level.reshape(models, -1) for level in self.nature(self.weight)]
        final = self.success.reshape(models, -1) / np.where(weight[-1] > 0, weight[-1], 1)
        choices = [1 + v.shape[-1] - shown for v, shown in zip(self.values, self.shown, strict=True)]
        drawn = []  # cumulative distribution of what nature shows after each history
        for k, shown in enumerate(self.shown):
            after = weight[k + 1].reshape(*weight[k].shape, -1)[..., :shown].cumsum(axis=-1)
            drawn.append(after / np.where(weight[k] > 0, weight[k], 1)[..., None])
        visits = [np.zeros((len(rows), weight[k].shape[1], count)) for k, count in enumerate(choices)]
        totals = [np.zeros_like(count) for count in visits]
        states = {}
        for iteration in range(1, max(iterations) + 1):
            history, inside, path = np.zeros_like(rows), np.ones(len(rows), dtype=bool), []
            for k, shown in enumerate(self.shown):
                count, random = visits[k][rows, history], rng.random((len(rows), choices[k]))
                tried = np.where(count > 0, count, 1)
                spread = np.log(count.sum(axis=-1, keepdims=True).clip(min=1))
                bound = totals[k][rows, history] / tried + alpha * np.sqrt(spread / tried)
                score = np.where(inside[:, None], np.where(count > 0, bound, np.inf), 0.0)
                best = score == score.max(axis=-1, keepdims=True)  # ties, untried choices and playouts: at random
                choice = np.where(best, random, -1).argmax(axis=-1)
                path.append((history, choice, inside))
                inside = inside & (count[rows, choice] > 0)
                uniform = rng.random((len(rows), 1))
                seen = (drawn[k][tree, history, :-1] <= uniform).sum(axis=-1)
                history = history * (shown + choices[k] - 1) + np.where(choice == 0, seen, shown + choice - 1)
            reward = final[tree, history]
            for k, (past, choice, kept) in enumerate(path):
                visits[k][rows, past, choice] += kept
                totals[k][rows, past, choice] += kept * reward
            if iteration in iterations:
                states[iteration] = (totals[0] / visits[0])[:, 0]
        means = np.stack([states[count] for count in iterations])
        return _influence(means.reshape(len(iterations), searches, *self.batch_shape, -1), self.settable(0))


def _influence(options: np.ndarray, values: np.ndarray) -> InfluenceResult:
    alter, observe = options[..., 1:].max(axis=-1), options[..., 0]
    best = values[options[..., 1:].argmax(axis=-1)]
    return InfluenceResult((alter - observe)[()], alter[()], observe[()], best[()])


@dataclass(frozen=True)
class DiscreteSEM:
    """A structural model of discrete variables, or a batch of models with the same graph.

    ``order`` is the known order in which the variables come true. ``conditionals`` maps a variable to its parents and
    its table ``[..., *values of the parents, values]``, whose last axis sums to 1 and whose leading axes are a batch
    of models. ``hidden`` variables are never seen when decisions are made; ``actionable`` maps a variable to the
    values that it may be set to. Values are 0, 1, 2, ...

    Raises:
        ValueError: a cycle, an order against the arrows, an unknown variable, a table that is no distribution.
    """

    order: Sequence[str]
    conditionals: Mapping[str, tuple[Sequence[str], ArrayLike]]
    hidden: Collection[str] = ()
    actionable: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_graph(self.order, {name: parents for name, (parents, _) in self.conditionals.items()})
        tables = {name: (tuple(p), np.asarray(table, dtype=float)) for name, (p, table) in self.conditionals.items()}
        object.__setattr__(self, "conditionals", tables)
        for name, (parents, table) in tables.items():
            if table.ndim <= len(parents) or table.size == 0:
                raise ValueError(f"the table of {name!r} needs an axis for each parent and one for its own values")
            expected = tuple(self.cardinality(parent) for parent in parents)
            if table.shape[table.ndim - len(parents) - 1 : -1] != expected:
                raise ValueError(f"the table of {name!r} has shape {table.shape}, its parents have {expected} values")
            if not np.isfinite(table).all():
                raise ValueError(f"the table of {name!r} holds NaN or infinite values: fill every context")
            if (table < 0).any() or np.abs(table.sum(axis=-1) - 1).max() > 1e-9:
                raise ValueError(f"the probabilities of {name!r} must be at least 0 and sum to 1 in every context")
        for name in self.hidden:
            check_name(name, self.order, "variable")
        for name, values in self.actionable.items():
            self._check_values(name, values)
        if set(self.hidden) & set(self.actionable):
            raise ValueError("a hidden variable can't be actionable: leave it in one of the two")

    def cardinality(self, name: str) -> int:
        """Number of values of a variable."""
        return int(np.shape(self.conditionals[name][1])[-1])

    @property
    def visible(self) -> list[str]:
        """Variables that are not hidden, in order."""
        return [name for name in self.order if name not in self.hidden]

    def _check_values(self, name: str, values: Iterable[float]) -> list[int]:
        count, numbers = self.cardinality(check_name(name, self.order, "variable")), [*values]
        if not numbers or any(value not in range(count) for value in numbers):
            raise ValueError(f"values of {name!r} are the integers 0 to {count - 1}, not {numbers}")
        return [int(value) for value in numbers]

    def _joint(self, events: Mapping[str, tuple[Sequence[int], int]], keep: Sequence[str], last: str) -> np.ndarray:
        """Weights over the axes ``keep``, everything else summed out; variables after ``last`` don't matter.

        ``events[name]`` lists the values on that variable's axis and how many of them, at the front, are observed:
        those have their conditional probability as factor, an altered one has 1 (the truncated factorisation).
        """
        operands: list[Any] = []
        names = self.order[: list(self.order).index(last) + 1]
        axis = {name: i for i, name in enumerate(names)}
        every = {name: events.get(name, (range(self.cardinality(name)), self.cardinality(name))) for name in names}
        for name in names:
            parents, table = self.conditionals[name]
            factor = np.asarray(table)
            for back, variable in enumerate(reversed((*parents, name)), start=1):
                factor = factor.take(every[variable][0], axis=-back)
            factor[..., every[name][1] :] = 1.0
            operands += [factor, [Ellipsis, *(axis[variable] for variable in (*parents, name))]]
        return np.einsum(*operands, [Ellipsis, *(axis[name] for name in keep)], optimize="greedy")

    def _history(self, do: History, observed: History) -> dict[str, tuple[Sequence[int], int]]:
        altered: dict[str, tuple[Sequence[int], int]] = {k: (self._check_values(k, [v]), 0) for k, v in do.items()}
        return altered | {name: (self._check_values(name, [value]), 1) for name, value in observed.items()}

    def probability(
        self,
        target: str,
        values: Collection[int],
        do: History = NOTHING,
        observed: History = NOTHING,
    ) -> Batch:
        """P(target in values | do(...), observed ...), hidden variables summed out with their posterior (Section 4.2).

        Raises:
            ValueError: unknown variable or value, or what was observed is impossible.
        """
        wanted, last = self._check_values(target, values), max((target, *do, *observed), key=list(self.order).index)
        if target in do or target in observed or set(do) & set(observed):
            raise ValueError("the target, the altered and the observed variables must be different ones")
        weight = self._joint(self._history(do, observed), [target], last)
        total = weight.sum(axis=-1)
        if (total == 0).any():
            raise ValueError(f"{dict(observed)} can't be observed after altering {dict(do)}: its probability is 0")
        return (weight[..., sorted(set(wanted))].sum(axis=-1) / total)[()]

    def tree(
        self,
        target: str,
        desired: Collection[int],
        do: History = NOTHING,
        observed: History = NOTHING,
        start: str | None = None,
    ) -> DecisionTree:
        """The decision tree from ``start`` (default: the first visible variable after the given history) to ``target``.

        ``do`` and ``observed`` are what has happened; earlier variables that are in neither are summed out.

        Raises:
            ValueError: unknown variable or value, a history after the start, an impossible history.
        """
        names = _check_history(self.order, self.visible, target, do, observed, start)
        wanted, events = sorted(set(self._check_values(target, desired))), self._history(do, observed)
        for name in names:
            count = self.cardinality(name)
            events[name] = ([*range(count), *self.actionable.get(name, ())], count)
        joint = self._joint(events, [*names, target], target)
        success, weight = joint[..., wanted].sum(axis=-1), joint.sum(axis=-1)
        shown = tuple(self.cardinality(name) for name in names)
        total = DecisionTree(tuple(names), shown, (), success, weight).nature(weight)[0]
        if (total == 0).any():
            raise ValueError(f"{dict(observed)} can't be observed after altering {dict(do)}: its probability is 0")
        total = total.reshape(*total.shape, *[1] * len(names))
        values = tuple(np.array(events[name][0]) for name in names)
        return DecisionTree(tuple(names), shown, values, success / total, weight / total)

    def sample(self, n: int, rng: np.random.Generator, do: History = NOTHING) -> dict[str, np.ndarray]:
        """``n`` rows of every model: variable -> integers ``[..., n]``, drawn cause by cause; ``do`` sets variables."""
        altered = {name: self._check_values(name, [value])[0] for name, value in do.items()}
        tables = {name: (parents, np.asarray(table)) for name, (parents, table) in self.conditionals.items()}
        batch = np.broadcast_shapes(*(table.shape[: table.ndim - len(p) - 1] for p, table in tables.values()))
        rows: dict[str, np.ndarray] = {}
        for name in self.order:
            parents, table = tables[name]
            if name in altered:
                rows[name] = np.full((*batch, n), altered[name])
                continue
            table = np.broadcast_to(table, batch + table.shape[table.ndim - len(parents) - 1 :])
            flat = table.reshape(*batch, -1, table.shape[-1]).cumsum(axis=-1)
            sizes = [self.cardinality(parent) for parent in parents]
            context = _context([rows[parent] for parent in parents], sizes, (*batch, n))
            chances = np.take_along_axis(flat, context[..., None], axis=-2)
            rows[name] = (chances[..., :-1] <= rng.random((*batch, n, 1))).sum(axis=-1)
        return rows


def _context(columns: Sequence[np.ndarray], sizes: Sequence[int], shape: tuple[int, ...]) -> np.ndarray:
    """Number of the context that each row is in, in the order of a table whose parent axes are flattened."""
    context = np.zeros(shape, dtype=np.int64)
    for column, size in zip(columns, sizes, strict=True):
        context = context * size + column
    return context


def fit_discrete_sem(
    data: Mapping[str, ArrayLike],
    order: Sequence[str],
    smoothing: float = 0.5,
    hidden: Collection[str] = (),
    actionable: Mapping[str, Sequence[int]] | None = None,
    cardinality: Mapping[str, int] | None = None,
    parents: Mapping[str, Sequence[str]] | None = None,
    classifier: ClassifierMixin | None = None,
) -> DiscreteSEM:
    """Learn the conditionals P(V_i | V_1..V_i-1) of the chain rule from observational rows (Section 4.2).

    ``data`` maps a variable to integers ``[..., n]``; leading axes are a batch of data sets, each of which gets its
    model. Hidden variables must be recorded too. ``parents``, where the graph is known, replaces "all earlier
    variables" for the variables that it names: fewer contexts, of which each must occur. By default ``smoothing`` is
    added to every count; a scikit-learn ``classifier`` learns each conditional from the one-hot encoded parents
    instead, one data set at a time. ``cardinality`` is needed where a variable's largest value is not in the rows.

    Raises:
        ValueError: a missing column, columns of different shapes, none or NaN rows, values that aren't 0, 1, 2, ...
    """
    columns: dict[str, np.ndarray] = {}
    for name in order:
        column = np.asarray(data[check_name(name, data, "variable")], dtype=float)
        if column.ndim < 1 or column.size == 0 or column.shape != np.shape(data[order[0]]):
            raise ValueError(f"column {name!r} has shape {column.shape}: all columns need the same rows, at least one")
        if not np.isfinite(column).all():
            raise ValueError(f"column {name!r} holds NaN or infinite values: drop or fill those rows first")
        if (column < 0).any() or (column % 1).any():
            raise ValueError(f"column {name!r} must hold the integers 0, 1, 2, ...: discretise it first")
        columns[name] = column.astype(np.int64)
    if not columns:
        raise ValueError("order names no variable: list the columns to learn from, causes first")
    if smoothing <= 0:
        raise ValueError("smoothing must exceed 0: a context without rows has no conditional otherwise")
    sizes = {name: max(int(c.max()) + 1, (cardinality or {}).get(name, 2)) for name, c in columns.items()}
    *batch, n = columns[order[0]].shape
    models = int(np.prod(batch))
    tables: dict[str, tuple[Sequence[str], ArrayLike]] = {}
    for i, name in enumerate(order):
        causes = tuple((parents or {}).get(name, order[:i]))
        shape = [sizes[check_name(cause, order, "variable")] for cause in causes]
        past = _context([columns[cause] for cause in causes], shape, (*batch, n)).reshape(models, n)
        contexts, own = int(np.prod(shape)), columns[name].reshape(models, n)
        if classifier is not None and causes:
            hot = [np.eye(size)[index] for size, index in zip(shape, np.indices(shape), strict=True)]
            grid = np.concatenate(hot, axis=-1).reshape(contexts, -1)
            table = np.stack([_learned(classifier, grid, p, y, sizes[name]) for p, y in zip(past, own, strict=True)])
        else:
            cell = (np.arange(models)[:, None] * contexts + past) * sizes[name] + own
            counts = np.bincount(cell.ravel(), minlength=models * contexts * sizes[name]) + smoothing
            table = counts.reshape(models, contexts, sizes[name])
            table = table / table.sum(axis=-1, keepdims=True)
        tables[name] = (causes, table.reshape(*batch, *shape, sizes[name]))
    return DiscreteSEM(tuple(order), tables, hidden, actionable or {})


def _learned(model: ClassifierMixin, grid: np.ndarray, past: np.ndarray, own: np.ndarray, size: int) -> np.ndarray:
    """Table ``[contexts, size]`` of one conditional, predicted by a fitted copy of ``model`` in every context."""
    table = np.zeros((len(grid), size))
    seen = np.unique(own)
    table[:, seen] = 1.0 if len(seen) == 1 else clone(model).fit(grid[past], own).predict_proba(grid)
    return table


@dataclass(frozen=True)
class LinearGaussianSEM:
    """Linear equations with independent Gaussian noise.

    ``weights`` maps every variable, causes first, to its parents' coefficients; ``noise_var`` is the variance of each
    noise. ``actionable`` maps the variables that are seen to the values that they may be set to. All other variables
    stay unseen.

    Raises:
        ValueError: a cycle, an order against the arrows, an unknown variable, a number that is not finite.
    """

    weights: Mapping[str, Mapping[str, float]]
    noise_var: float
    actionable: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_graph(self.order, self.weights)
        numbers = [self.noise_var, *(value for row in self.weights.values() for value in row.values())]
        if not np.isfinite(numbers).all() or self.noise_var <= 0:
            raise ValueError("coefficients must be finite and noise_var a positive number: NaN or 0 was given")
        for name, values in self.actionable.items():
            check_name(name, self.order, "variable")
            if not len(values) or not np.isfinite(values).all():
                raise ValueError(f"the values of {name!r} must be finite numbers: give at least one")

    @property
    def order(self) -> list[str]:
        """Variables, causes first."""
        return list(self.weights)

    def conditional(self, target: str, do: History = NOTHING, observed: History = NOTHING) -> tuple[np.ndarray, float]:
        """Mean (of the values' broadcast shape) and standard deviation of ``target`` given do(...) and observed ....

        Raises:
            ValueError: unknown variable, or one variable in two roles.
        """
        order = self.order
        for name in (target, *do, *observed):
            check_name(name, order, "variable")
        if len({target, *do, *observed}) != 1 + len(do) + len(observed):
            raise ValueError("the target, the altered and the observed variables must be different ones")
        place = {name: i for i, name in enumerate(order)}
        arrows = np.array([[0.0 if c in do else self.weights[c].get(p, 0.0) for p in order] for c in order])
        effect = np.linalg.inv(np.eye(len(order)) - arrows)
        noise = np.array([0.0 if name in do else self.noise_var for name in order])
        covariance = (effect * noise) @ effect.T
        seen, row = [place[name] for name in observed], place[target]
        gain = np.linalg.solve(covariance[np.ix_(seen, seen)], covariance[seen, row])
        mean: Any = 0.0
        for name, value in do.items():
            mean = mean + (effect[row, place[name]] - gain @ effect[seen, place[name]]) * np.asarray(value, dtype=float)
        for factor, value in zip(gain, observed.values(), strict=True):
            mean = mean + factor * np.asarray(value, dtype=float)
        return np.asarray(mean), float(np.sqrt(covariance[row, row] - gain @ covariance[seen, row]))

    def _moments(
        self, name: str, past: Mapping[str, np.ndarray], nodes: int, do: History, observed: History
    ) -> tuple[np.ndarray, np.ndarray]:
        """Mean and deviation of ``name`` after every history ``[e_1, ..., e_k]``; ``past`` holds the events' values."""
        shape = [values.shape[-1] for values in past.values()]
        moments = np.empty((2, *shape))
        for mask in product((False, True), repeat=len(past)):  # which of the past variables were altered
            block = tuple(slice(nodes, None) if altered else slice(nodes) for altered in mask)
            values = [
                rows[block[: rows.ndim]].reshape(*rows[block[: rows.ndim]].shape, *[1] * (len(past) - rows.ndim))
                for rows in past.values()
            ]
            roles: tuple[dict[str, Any], dict[str, Any]] = (dict(observed), dict(do))
            for variable, altered, row in zip(past, mask, values, strict=True):
                roles[altered][variable] = row
            moments[(0, *block)], moments[(1, *block)] = self.conditional(name, roles[1], roles[0])
        return moments[0], moments[1]

    def tree(
        self,
        target: str,
        desired: Sequence[float],
        do: History = NOTHING,
        observed: History = NOTHING,
        start: str | None = None,
        nodes: int = 6,
    ) -> DecisionTree:
        """The decision tree over the actionable variables; ``desired`` is an interval (low, high).

        What nature shows after a history stands on ``nodes`` Gauss-Hermite points of its conditional distribution, so
        that sums over them are integrals of the continuous values.

        Raises:
            ValueError: unknown variable, an empty interval, a history after the start.
        """
        low, high = desired
        if not low < high:
            raise ValueError("desired must be an interval (low, high) with low < high")
        seen = [name for name in self.order if name in self.actionable]
        names = _check_history(self.order, seen, target, do, observed, start)
        points, chances = np.polynomial.hermite_e.hermegauss(nodes)
        weight, past = np.ones(()), dict[str, np.ndarray]()
        for name in names:
            mean, sd = self._moments(name, past, nodes, do, observed)
            settable = np.asarray(self.actionable[name], dtype=float)
            set_values = np.broadcast_to(settable, (*mean.shape, len(settable)))
            past[name] = np.concatenate([mean[..., None] + sd[..., None] * points, set_values], axis=-1)
            weight = weight[..., None] * np.concatenate([chances / chances.sum(), np.ones(len(settable))])
        mean, sd = self._moments(target, past, nodes, do, observed)
        success = weight * (norm.cdf((high - mean) / sd) - norm.cdf((low - mean) / sd))
        return DecisionTree(tuple(names), (nodes,) * len(names), tuple(past.values()), success, weight)

    def simulate(
        self, n: int, rng: np.random.Generator, tree: DecisionTree | None = None, strategy: str = "influence"
    ) -> dict[str, np.ndarray]:
        """``n`` futures, variable -> ``[n]``; the variables of ``tree`` are decided by ``strategy`` as they come.

        A value that is seen lies between two points of the tree, and so does the expected success of each choice: the
        best choice is that of the interpolated expectations.
        """
        noise = np.sqrt(self.noise_var) * rng.standard_normal((len(self.order), n))
        values: dict[str, np.ndarray] = {}
        places: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []  # event below, event above, way from one to other
        for own, (name, row) in zip(noise, self.weights.items(), strict=True):
            values[name] = own + sum(weight * values[parent] for parent, weight in row.items())
            if tree is None or name not in tree.names:
                continue
            k, shown, settable = len(places), tree.shown[len(places)], tree.settable(len(places))
            choice = _between(tree.expectations(strategy)[k], places, n, clip=True).argmax(axis=-1)
            points = _between(tree.values[k], places, n, clip=False)[:, :shown]
            below = ((points <= values[name][:, None]).sum(axis=-1) - 1).clip(0, shown - 2)
            low, high = (np.take_along_axis(points, (below + up)[:, None], axis=-1)[:, 0] for up in (0, 1))
            event, altered = shown + choice - 1, choice > 0
            way = np.where(altered, 0.0, (values[name] - low) / (high - low))
            places.append((np.where(altered, event, below), np.where(altered, event, below + 1), way))
            values[name] = np.where(altered, settable[choice - 1], values[name])
        return values


def _between(table: np.ndarray, places: Sequence[tuple[np.ndarray, ...]], n: int, clip: bool) -> np.ndarray:
    """Rows of ``table`` ``[e_1, ..., e_k, c]`` interpolated linearly in every axis but the last: ``[n, c]``."""
    rows = np.zeros((n, table.shape[-1]))
    for corner in product((0, 1), repeat=len(places)):
        share = np.ones(n)
        for up, (_, _, way) in zip(corner, places, strict=True):
            way = way.clip(0, 1) if clip else way
            share = share * (way if up else 1 - way)
        rows += share[:, None] * table[tuple(place[up] for up, place in zip(corner, places, strict=True))]
    return rows


SEM = DiscreteSEM | LinearGaussianSEM


def max_expected_probability(
    sem: SEM,
    target: str,
    desired: Any,
    do: History = NOTHING,
    observed: History = NOTHING,
    start: str | None = None,
) -> Batch:
    """The best achievable P(target in desired) after a history, every later decision seeing what came before it."""
    tree = sem.tree(target, desired, do, observed, start)
    return (tree.optimal_choices()[0].max(axis=-1) if tree.names else tree.success)[()]


def influence_power(
    sem: SEM,
    variable: str,
    target: str,
    desired: Any,
    do: History = NOTHING,
    observed: History = NOTHING,
) -> InfluenceResult:
    """Influence power of ``variable`` on ``target`` given a history (Definition 1); ``desired`` as in ``sem.tree``.

    Raises:
        ValueError: the variable is not actionable, or as ``sem.tree``.
    """
    check_name(variable, sem.actionable, "actionable variable")
    return sem.tree(target, desired, do, observed, variable).influence()


def influence_power_uct(
    sem: SEM,
    variable: str,
    target: str,
    desired: Any,
    iterations: Sequence[int],
    rng: np.random.Generator,
    alpha: float = 2**0.5,
    searches: int = 1,
) -> InfluenceResult:
    """Influence power by tree search; fields are ``[len(iterations), searches, ...]`` (:meth:`DecisionTree.search`)."""
    check_name(variable, sem.actionable, "actionable variable")
    return sem.tree(target, desired, start=variable).search(iterations, rng, alpha, searches)


def average_causal_effect(sem: DiscreteSEM, variable: str, target: str, low: int = 0, high: int = 1) -> Batch:
    """E(target | do(variable = high)) - E(target | do(variable = low)), the usual measure of a cause's strength."""
    values = range(sem.cardinality(check_name(target, sem.order, "variable")))
    return sum(
        value * (sem.probability(target, [value], {variable: high}) - sem.probability(target, [value], {variable: low}))
        for value in values
    )


def evaluate_alteration_policy(sem: SEM, policy: Policy | str, target: str, desired: Any) -> Batch:
    """Exact success probability of a policy, or of a strategy by its name, on a model (which may be another one)."""
    tree = sem.tree(target, desired)
    return tree.evaluate(tree.policy(policy) if isinstance(policy, str) else policy)


def binary_equation(
    function: Callable[..., Any], parents: str, chance: ArrayLike
) -> tuple[tuple[str, ...], np.ndarray]:
    """Parents and table of ``V = function(*parents, N)`` with N ~ Bernoulli(``chance`` ``[...]``), all values 0 or 1.

    ``parents`` are names with spaces between them.
    """
    names = tuple(parents.split())
    grid = np.indices([2] * (len(names) + 1))  # the last axis is the noise
    one = np.broadcast_to(function(*grid), grid.shape[1:])
    chances = np.asarray(chance, dtype=float).reshape((*np.shape(chance), *[1] * len(names)))
    first = one[..., 0] * (1 - chances) + one[..., 1] * chances
    return names, np.stack([1 - first, first], axis=-1)


def _copy(value: Any, noise: Any) -> Any:
    """A noisy copy: equal where the noise is 1."""
    return value * noise + (1 - value) * (1 - noise)


def paper_examples() -> dict[str, DiscreteSEM]:
    """The six models that prove Theorem 1, by the paper's numbers; the target is "Y", desired value 1."""
    eq, both = binary_equation, (0, 1)
    coin, trap = eq(lambda n: n, "", 0.5), eq(lambda u, z, n: z * (1 - u) + (1 - z) * n, "U Z", 0.4)
    copies = {"X": eq(lambda n: n, "", 0.9), "Z": eq(_copy, "X", 0.9), "Y": eq(_copy, "Z", 0.9)}
    rare, test = eq(lambda n: n, "", 0.1), eq(lambda u, w, n: u * w * (1 - n), "U W", 0.1)
    weak = {"X": coin, "Z": eq(lambda x, n: (1 - x) * n, "X", 0.5), "Y": eq(lambda x, z, n: x * z * n, "X Z", 0.5)}
    strong = {"U": coin, "X": eq(_copy, "U", 0.9), "Z": eq(_copy, "X", 0.9), "Y": trap}
    later = {
        "V1": coin,
        "V2": eq(lambda v, n: (1 - v) * n, "V1", 0.8),
        "Y": eq(lambda v, w, n: (v ^ w) * n, "V1 V2", 0.8),
    }
    return {
        "1": DiscreteSEM(tuple("XZY"), copies, actionable={"X": both, "Z": both}),
        "2": DiscreteSEM(
            tuple("UWXZY"), {"U": coin, "W": rare, "X": test, "Z": rare, "Y": trap}, ("U",), dict.fromkeys("WXZ", both)
        ),
        "3": DiscreteSEM(tuple("XZY"), weak, actionable={"X": both, "Z": both}),
        "4": DiscreteSEM(tuple("UXZY"), strong, ("U",), {"X": both, "Z": both}),
        "a": DiscreteSEM(("V1", "Y"), {"V1": coin, "Y": eq(_copy, "V1", 0.5)}, actionable={"V1": both}),
        "e": DiscreteSEM(("V1", "V2", "Y"), later, ("V1",), {"V2": both}),
    }


def draw_task(task: str, draws: int, rng: np.random.Generator) -> DiscreteSEM:
    """A batch of ``draws`` models of "trader", "farmer" or "doctor": V1 hidden, V2 to V4 actionable, target Y = 1.

    Raises:
        ValueError: unknown task.
    """
    eq = binary_equation
    ranges = {
        "trader": [(0.4, 0.6), (0.7, 0.9), (0.7, 0.9), (0.7, 0.9), (0.3, 0.5)],
        "farmer": [(0.7, 0.9)] * 5,
        "doctor": [(0.4, 0.6), (0.1, 0.3), (0.1, 0.3), (0.1, 0.3), (0.3, 0.5)],
    }
    chances = [rng.uniform(*limits, draws) for limits in ranges[check_name(task, ranges, "task")]]
    first, fades, trap = (lambda n: n), (lambda v, n: (1 - v) * n), (lambda v, w, n: w * (1 - v) + (1 - w) * n)
    rows: dict[str, list[tuple[Callable[..., Any], str]]] = {
        "trader": [(first, ""), (_copy, "V1"), (_copy, "V2"), (_copy, "V3"), (trap, "V1 V4")],
        "farmer": [(first, ""), (fades, "V1"), (fades, "V2"), (fades, "V3"), (lambda v, w, n: v * w * n, "V1 V4")],
        "doctor": [(first, ""), (first, ""), (lambda v, w, n: v * w * (1 - n), "V1 V2"), (first, ""), (trap, "V1 V4")],
    }
    order = ("V1", "V2", "V3", "V4", "Y")
    tables = {v: eq(*row, chance) for v, row, chance in zip(order, rows[task], chances, strict=True)}
    return DiscreteSEM(order, tables, ("V1",), dict.fromkeys(order[1:4], (0, 1)))


def bermuda_reef(noise_var: float = 0.0144, bins: int = 6) -> LinearGaussianSEM:
    """The reef model that the paper quotes: standardised linear equations fitted to public Bermuda data.

    Target "NEC" (net calcification), desired interval (1, 2). The paper states no noise; this variance gives its
    baselines' success rates. ``bins`` of equal width cover -3 to 3; their middles are the values to set.
    """
    rows = {
        "Light": "",
        "Temp": "Light .0834",
        "Sal": "Temp -.4810",
        "DIC": "Sal .4777",
        "TA": "Sal .5458",
        "Omega": "Temp .5182 Sal .0351 DIC -1.1057 TA 1.6104",
        "Nut": "",
        "Chl": "Light -.1511 Temp -.0445 Nut -.0769",
        "pH": "Temp -.7483 Sal .0130 DIC -.5880 TA .7676",
        "CO2": "Temp .8613 Sal .0405 DIC .5700 TA -.5963",
        "NEC": "Light .0322 Temp 5.2277 Omega -2.3436 Nut .0988 Chl .1318 pH 2.0493 CO2 -2.5146",
    }
    words = {name: row.split() for name, row in rows.items()}
    weights = {name: dict(zip(w[::2], map(float, w[1::2]), strict=True)) for name, w in words.items()}
    centres = tuple((np.arange(bins) + 0.5) * 6 / bins - 3)
    return LinearGaussianSEM(weights, noise_var, dict.fromkeys(("DIC", "TA", "Omega", "Nut", "Chl"), centres))
