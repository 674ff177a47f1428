"""Quantile-fair policies for agents who share one Markov decision process and want different things from it.

Source: "Fair Reinforcement Learning for Just AI" (ICLR 2026); told in notebooks/quantile_fairness. S states, A actions,
n agents; agent i's return is J_i(pi) = (1 - gamma) E sum_t gamma^t R_i(s_t, a_t). A policy is q-quantile fair if every
agent has at least a share q of a reference distribution of returns at or below J_i. The method sees the process through
one black box only: a routine that maximises a scalar reward. The linear programs over occupancy measures (Alamdari,
Ebadian and Procaccia, 2024), which need the transition table, are here to compare.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyomo.environ as pyo
from pydantic import BaseModel, ConfigDict, Field, model_validator
from pyomo.contrib.solver.common.factory import SolverFactory
from pyomo.core.expr import LinearExpression
from scipy.interpolate import BSpline
from scipy.spatial import ConvexHull

from lib.substrates.decision_processes import MultiObjectiveMDP
from lib.substrates.names import check_name
from lib.substrates.reinforcement import ORACLES, Answer, Oracle, PolicyIteration

TOLERANCE = 1e-9
CHUNK = 1 << 23  # floats of transition matrices that are held at once


class Parameters(BaseModel):
    """Parameters of the notebook; the defaults are its `small` run."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    preset: str = Field("small", description="named parameter set of presets/quantile_fairness.toml")
    seed: int = Field(0, ge=0, description="seed of the instances and of everything that is sampled")
    size: int = Field(6, ge=3, le=30, description="side of the grid with conflicting goals")
    n_agents: int = Field(5, ge=2, le=20, description="agents of the main instance")
    gamma: float = Field(0.9, gt=0, lt=1, description="discount factor of the grids")
    eps: float = Field(0.05, gt=0, le=0.5, description="accuracy of multiplicative weights, in normalised return")
    step_ratio: float = Field(1.0, gt=0, description="step size of multiplicative weights over eps")
    q_steps: int = Field(10, ge=1, le=30, description="bisection steps over the quantile")
    welfare_steps: int = Field(5, ge=0, le=30, description="bisection steps over the total welfare")
    n_quantile_samples: int = Field(20_000, ge=100, description="returns sampled from the reference set")
    random_policies: int = Field(5000, ge=100, description="random policies of the predecessor's reference, grids")
    factory_policies: int = Field(
        20_000, ge=100, description="random policies of the predecessor's reference, factories"
    )
    instances: int = Field(5, ge=2, description="random grids, and random factories, of the statistical claims")
    factories: int = Field(3, ge=2, le=6, description="factories of the comparison of welfare and inequality")
    factory_agents: int = Field(6, ge=2, le=20, description="agents of that comparison")
    chain_lengths: list[int] = Field([3, 4, 5, 6, 7, 8, 12, 16], min_length=3, description="lengths of the chain")
    chain_policies: int = Field(20_000, ge=100, description="random policies for every chain")
    scaling_sides: list[int] = Field([5, 7, 10, 13], min_length=2, description="sides of the grids of the scaling run")
    scaling_eps: float = Field(0.1, gt=0, le=0.5, description="accuracy in the scaling run")
    scaling_seeds: int = Field(2, ge=2, description="instances of every size in the scaling run")
    oracle: str = Field("q_learning", description="black box of the sample-only run: q_learning, ppo, policy_iteration")
    oracle_side: int = Field(4, ge=2, le=10, description="side of the grid of the sample-only run")
    oracle_agents: int = Field(3, ge=2, le=10, description="agents of the sample-only run")
    oracle_eps: float = Field(0.2, gt=0, le=0.5, description="accuracy in the sample-only run")
    oracle_steps: int = Field(6, ge=1, le=20, description="bisection steps in the sample-only run")
    oracle_transitions: int = Field(20_000, ge=256, description="environment steps of one call of that black box")
    oracle_gap: float = Field(0.01, ge=0, lt=1, description="how far below the maximum its answers may be")
    oracle_seeds: int = Field(4, ge=2, description="instances of the sample-only run")
    ppo_transitions: int = Field(8192, ge=0, description="environment steps of a call of PPO in its own check; 0: none")

    @model_validator(mode="after")
    def _names_are_known(self) -> "Parameters":
        check_name(self.oracle, ORACLES, "oracle")
        return self


# The yardstick: returns of the agents' own optimal policies, and everything between them


def answer(mdp: MultiObjectiveMDP, oracle: Oracle, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One call of the black box on the reward sum_i weights_i R_i: its policy and that policy's returns (n,).

    A black box that returns a policy alone has it evaluated by ``mdp.returns``. ``mdp`` may be any object with
    ``shape[0]`` agents, ``scalar_reward`` and, in that case, ``returns``: nothing here asks for its table.

    Raises:
        ValueError: the returns are not n finite numbers.
    """
    result = oracle(mdp.scalar_reward(weights))
    policy, returns = result if isinstance(result, tuple) else (result, mdp.returns(result))
    returns = np.asarray(returns, dtype=float)
    if returns.shape != (mdp.shape[0],) or not np.isfinite(returns).all():
        raise ValueError(f"the black box must give {mdp.shape[0]} finite returns, not an array of {returns.shape}")
    return policy, returns


def optimal_return_matrix(mdp: MultiObjectiveMDP, oracle: Oracle | None = None) -> np.ndarray:
    """V (n, n) with V[i, j] = J_j(pi_i*), the return of agent j under agent i's own optimal policy: n calls."""
    oracle = oracle or PolicyIteration(mdp)
    return np.stack([answer(mdp, oracle, weights)[1] for weights in np.eye(mdp.shape[0])])


def normalised(mdp: MultiObjectiveMDP, oracle: Oracle | None = None) -> MultiObjectiveMDP:
    """The same process with every R_i moved and scaled so that J_i runs from 0 to 1: 2n calls.

    Raises:
        ValueError: an agent for whom all policies are equal.
    """
    oracle = oracle or PolicyIteration(mdp)
    best = optimal_return_matrix(mdp, oracle).diagonal()
    worst = np.stack([answer(mdp, oracle, -weights)[1] for weights in np.eye(mdp.shape[0])]).diagonal()
    if (best - worst <= TOLERANCE * np.abs(mdp.R).max()).any():
        raise ValueError("an agent gets the same return from every policy: leave it out")
    return replace(mdp, R=(mdp.R - worst[:, None, None]) / (best - worst)[:, None, None])


def hit_and_run(
    normals: np.ndarray, offsets: np.ndarray, start: np.ndarray, steps: int, rng: np.random.Generator
) -> np.ndarray:
    """Points of the polytope {x : normals x <= offsets} after ``steps`` of hit-and-run, one chain a row of ``start``.

    All chains (m, d) move together; a chain's limit is the uniform distribution.
    """
    points = start.copy()
    for _ in range(steps):
        direction = rng.standard_normal(points.shape)
        speed, room = direction @ normals.T, (offsets - points @ normals.T).clip(min=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            time_to = np.where(np.abs(speed) > 1e-14, room / speed, np.inf)
        ahead = np.where(speed > 1e-14, time_to, np.inf).min(axis=1)
        behind = np.where(speed < -1e-14, time_to, -np.inf).max(axis=1)
        points += rng.uniform(behind, ahead)[:, None] * direction
    return points


def sample_simplex_returns(V: np.ndarray, size: int, seed: int | np.random.Generator) -> np.ndarray:
    """``size`` return vectors (size, n), uniform on K* = conv of the rows of ``V`` (k, n). Algorithm 1.

    Affinely independent rows span a simplex: Dirichlet(1, ..., 1) weights are exact. Equal rows count once. Otherwise
    hit-and-run on the facets, one chain a sample.

    Raises:
        ValueError: ``V`` isn't a finite matrix, or ``size`` isn't positive.
    """
    V = np.asarray(V, dtype=float)
    if V.ndim != 2 or not V.size or not np.isfinite(V).all():
        raise ValueError(f"V must be a finite [policies, agents] matrix, not an array of shape {V.shape} or with NaN")
    if size < 1:
        raise ValueError(f"size must be at least 1 sample, not {size}")
    rng, span = np.random.default_rng(seed), np.ptp(V, axis=0)
    unit = (V - V.min(axis=0)) / np.where(span > 0, span, 1)  # rank must not depend on the agents' units
    _, first = np.unique(unit.round(9), axis=0, return_index=True)
    vertices = V[np.sort(first)]
    unit = unit[np.sort(first)]
    centred = unit - unit.mean(axis=0)
    _, singular, axes = np.linalg.svd(centred, full_matrices=False)
    rank = int((singular > 1e-8).sum())
    if rank == 1:
        vertices = vertices[[(centred @ axes[0]).argmin(), (centred @ axes[0]).argmax()]]
    beta = rng.dirichlet(np.ones(len(vertices)), size)
    if len(vertices) == rank + 1:
        return beta @ vertices
    flat = centred @ axes[:rank].T
    facets = ConvexHull(flat).equations
    steps = 20 + rank**3
    points = hit_and_run(facets[:, :-1], -facets[:, -1], beta @ flat, steps, rng) @ axes[:rank] + unit.mean(axis=0)
    return points * span + V.min(axis=0)


def simplex_linear_cdf(values: np.ndarray, t: float | np.ndarray) -> np.ndarray:
    """Pr[sum_k beta_k values_k <= t] for beta uniform on the simplex; ``values`` (n,), ``t`` of any shape.

    The density is the B-spline with knots at the values (Curry and Schoenberg, 1966), which stays accurate where
    values are close or equal and the divided difference cancels.

    Raises:
        ValueError: fewer than two values, or NaN.
    """
    knots = np.sort(np.asarray(values, dtype=float))
    if knots.ndim != 1 or len(knots) < 2 or not np.isfinite(knots).all():
        raise ValueError("values must be at least two finite numbers in one dimension")
    low, high = knots[[0, -1]]
    if high - low <= 1e-13 * max(abs(low), abs(high)):
        return np.where(np.asarray(t) >= low, 1.0, 0.0)
    knots, place = (knots - low) / (high - low), np.clip((np.asarray(t) - low) / (high - low), 0, 1)
    mass = BSpline.basis_element(knots, extrapolate=False).antiderivative()
    # where many values equal the highest, SciPy's spline is 0 at that knot itself
    return np.where(place >= 1, 1.0, (len(knots) - 1) * (mass(place) - mass(0.0)))


def _check_samples(samples: np.ndarray, agents: int) -> np.ndarray:
    samples = np.asarray(samples, dtype=float)
    if samples.ndim != 2 or samples.shape[1] != agents or not len(samples) or not np.isfinite(samples).all():
        raise ValueError(f"samples must be a finite [samples, {agents}] array of returns, not {samples.shape}")
    return samples


def quantile_targets(samples: np.ndarray, q: float) -> np.ndarray:
    """v_i = inverse of agent i's empirical distribution at q, (n,), from sampled returns (size, n). Algorithm 2.

    Raises:
        ValueError: q outside [0, 1], samples that aren't a matrix.
    """
    if not 0 <= q <= 1:
        raise ValueError(f"no policy can be {q}-quantile fair: choose q in [0, 1]")
    samples = _check_samples(samples, np.shape(samples)[-1])
    return np.quantile(samples, q, axis=0, method="inverted_cdf")


def achieved_quantiles(samples: np.ndarray, returns: np.ndarray) -> np.ndarray:
    """Share of ``samples`` (size, n) at or below ``returns`` (n,), agent by agent: (n,)."""
    samples = _check_samples(samples, len(returns))
    return (samples <= np.asarray(returns) + 1e-12 * np.abs(samples).max()).mean(axis=0)


# Multiplicative weights


@dataclass(frozen=True)
class MWUResult:
    """A uniform mixture of the policies that the black box gave, one a round, and how it came about.

    ``returns`` (n,) are those of the mixture; ``history`` (rounds, n) of its members ``policies``; ``weights``
    (rounds, n + 1) hold w and last u. ``certificate`` (n + 1,) are the weights under which even the best policy falls
    short, or None. ``slack`` is how far below its target multiplicative weights may leave an agent.
    """

    feasible: bool
    certificate: np.ndarray | None
    returns: np.ndarray
    policies: list[np.ndarray]
    weights: np.ndarray
    history: np.ndarray
    slack: float

    @property
    def rounds(self) -> int:
        """Rounds, and calls of the black box."""
        return len(self.policies)

    def occupancy(self, mdp: MultiObjectiveMDP) -> np.ndarray:
        """Shares of time (S, A) of the mixture: the mean over its members, each solved for once."""
        members, counts = np.unique(np.stack(self.policies), axis=0, return_counts=True)
        return sum(count * mdp.occupancy(policy) for policy, count in zip(members, counts, strict=True)) / self.rounds


def stationary_policy(occupancy: np.ndarray) -> np.ndarray:
    """The one policy (S, A) with this ``occupancy`` (S, A); uniform in states that are never visited."""
    visits = occupancy.sum(axis=-1, keepdims=True)
    return np.where(visits > 0, occupancy / np.where(visits > 0, visits, 1), 1 / occupancy.shape[-1])


def fair_policy_mwu(
    mdp: MultiObjectiveMDP,
    targets: np.ndarray,
    welfare: float | None = None,
    eps: float = 0.05,
    oracle: Oracle | None = None,
    step_ratio: float = 1.0,
    oracle_gap: float = 0.0,
) -> MWUResult:
    """A mixture with J_i >= targets_i and, if asked for, sum_i J_i >= ``welfare``, or a certificate. Algorithm 3.

    Returns must lie in [0, 1], see :func:`normalised`. ``eps`` sets the rounds ceil(log(n + 1) / eps^2) and, times
    ``step_ratio``, the step. A certificate proves infeasibility if every answer of the black box is within
    ``oracle_gap`` (return of an agent, for weights that sum to 1) of the maximum.

    Raises:
        ValueError: targets of a wrong shape or with NaN, an accuracy outside (0, 1), returns far outside [0, 1].
    """
    n = mdp.shape[0]
    targets = np.asarray(targets, dtype=float)
    if targets.shape != (n,) or not np.isfinite(targets).all():
        raise ValueError(f"targets must be {n} finite returns, one an agent, not an array of shape {targets.shape}")
    if not 0 < eps < 1:
        raise ValueError(f"eps must lie between 0 and 1, not {eps}")
    oracle, eta, rounds = oracle or PolicyIteration(mdp), step_ratio * eps, math.ceil(math.log(n + 1) / eps**2)
    logits, goals = np.zeros(n + 1), np.append(targets, 0.0 if welfare is None else welfare)
    if welfare is None:
        logits[n] = -math.inf
    policies, history, weights, certificate = [], np.empty((rounds, n)), np.empty((rounds, n + 1)), None
    for t in range(rounds):
        weights[t] = np.exp(logits - logits.max())
        weights[t] /= weights[t].sum()
        policy, history[t] = answer(mdp, oracle, weights[t, :n] + weights[t, n])
        policies.append(policy)
        reached = np.append(history[t], history[t].sum())
        missed = weights[t] @ (goals - reached) - oracle_gap * (weights[t, :n] + weights[t, n]).sum()
        if missed > TOLERANCE:  # even the maximum falls short
            certificate = weights[t]
            break
        logits[:n] += eta * (goals - reached)[:n]
        logits[n] += eta * (goals - reached)[n] / n
    done = len(policies)
    if np.abs(history[:done] - 0.5).max() > 0.6:
        raise ValueError("returns lie far outside [0, 1], which the step size assumes: use normalised(mdp)")
    returns = history[:done].mean(axis=0)
    slack = math.log(n if welfare is None else 2 * n) / (eta * rounds) + eta / 2 + oracle_gap
    met = bool((returns >= targets - slack).all()) and (welfare is None or returns.sum() >= welfare - n * slack)
    return MWUResult(certificate is None and met, certificate, returns, policies, weights[:done], history[:done], slack)


def _bisect(attempt: Callable[[float], Any], low: float, high: float, steps: int) -> tuple[float, Any]:
    """The largest level that ``attempt`` (None where infeasible) is seen to reach, and its outcome."""
    best = None
    for _ in range(steps):
        middle = (low + high) / 2
        outcome = attempt(middle)
        if outcome is None:
            high = middle
        else:
            low, best = middle, outcome
    best = attempt(low) if best is None else best
    if best is None:
        raise ValueError("even the lowest level is infeasible: were the reference returns made for this process?")
    return low, best


class Search(NamedTuple):
    """The best ``level`` (quantile or welfare), the ``result`` that reached it, and every trial (level, result)."""

    level: float
    result: MWUResult
    trials: list[tuple[float, MWUResult]]


def _search(solve: Callable[[float], MWUResult], low: float, high: float, steps: int) -> Search:
    trials: list[tuple[float, MWUResult]] = []

    def attempt(level: float) -> MWUResult | None:
        trials.append((level, solve(level)))
        return trials[-1][1] if trials[-1][1].feasible else None

    return Search(*_bisect(attempt, low, high, steps), trials)


def max_quantile_policy(
    mdp: MultiObjectiveMDP,
    samples: np.ndarray,
    eps: float = 0.05,
    steps: int = 10,
    oracle: Oracle | None = None,
    **options: float,
) -> Search:
    """The largest quantile of the reference ``samples`` (size, n) that all agents can have, by bisection. Algorithm 4.

    ``options`` go to :func:`fair_policy_mwu`, whose errors this raises too.

    Raises:
        ValueError: not even the smallest sampled returns can be had.
    """
    samples, oracle = _check_samples(samples, mdp.shape[0]), oracle or PolicyIteration(mdp)
    return _search(
        lambda q: fair_policy_mwu(mdp, quantile_targets(samples, q), None, eps, oracle, **options), 0.0, 1.0, steps
    )


def max_welfare_policy(
    mdp: MultiObjectiveMDP,
    targets: np.ndarray,
    eps: float = 0.05,
    steps: int = 6,
    oracle: Oracle | None = None,
    **options: float,
) -> Search:
    """The largest total return that leaves every agent its target (n,), by bisection. Algorithm 4, second search.

    Raises:
        ValueError: the targets can't be met together.
    """
    oracle = oracle or PolicyIteration(mdp)
    highest = float(answer(mdp, oracle, np.ones(mdp.shape[0]))[1].sum())
    return _search(
        lambda total: fair_policy_mwu(mdp, targets, total, eps, oracle, **options),
        min(float(np.sum(targets)), highest),
        highest,
        steps,
    )


# Black boxes


class Counted:
    """A black box that counts its ``calls`` and ``seconds``."""

    def __init__(self, oracle: Oracle) -> None:
        self.oracle, self.calls, self.seconds = oracle, 0, 0.0

    def __call__(self, reward: np.ndarray) -> Answer:
        """The answer of the wrapped black box."""
        begun = time.perf_counter()
        result = self.oracle(reward)
        self.calls, self.seconds = self.calls + 1, self.seconds + time.perf_counter() - begun
        return result


# Linear programs over occupancy measures, which need the whole table


class OccupancyLP:
    """Pyomo's model of the occupancy polytope with one variable J_i an agent, solved by HiGHS.

    ``model.d`` is indexed by s * A + a. Without the table there is no such model: it is the comparison, not the method.
    """

    def __init__(self, mdp: MultiObjectiveMDP) -> None:
        self.mdp, (agents, states, actions) = mdp, mdp.shape
        self.optimiser = SolverFactory("highs")
        model = self.model = pyo.ConcreteModel()
        model.agents = pyo.RangeSet(0, agents - 1)
        model.d = pyo.Var(range(states * actions), domain=pyo.NonNegativeReals)
        model.J = pyo.Var(model.agents)
        flow = np.repeat(np.eye(states), actions, axis=1) - mdp.gamma * mdp.P.transpose(2, 1, 0).reshape(states, -1)
        d = list(model.d.values())

        def linear(row: np.ndarray) -> LinearExpression:
            used = np.flatnonzero(row)
            return LinearExpression(linear_coefs=row[used].tolist(), linear_vars=[d[k] for k in used])

        model.flow = pyo.Constraint(
            range(states), rule=lambda _, s: linear(flow[s]) == float((1 - mdp.gamma) * mdp.rho0[s])
        )
        model.value = pyo.Constraint(model.agents, rule=lambda m, i: linear(mdp.R[i].ravel()) == m.J[i])

    def solve(self) -> Any:
        """Solve, and write the optimum into the variables."""
        return self.optimiser.solve(self.model)

    @property
    def occupancy(self) -> np.ndarray:
        """The optimum's shares of time (S, A)."""
        return np.array([variable.value for variable in self.model.d.values()]).reshape(self.mdp.shape[1:])


class QuantileLP(OccupancyLP):
    """How much more than its quantile of ``samples`` (size, n) can every agent have, in units of the samples' span?"""

    def __init__(self, mdp: MultiObjectiveMDP, samples: np.ndarray) -> None:
        super().__init__(mdp)
        self.samples, model = _check_samples(samples, mdp.shape[0]), self.model
        span = np.ptp(self.samples, axis=0)
        span = np.where(span > 0, span, 1)
        model.target = pyo.Param(model.agents, mutable=True, initialize=0.0)
        model.excess = pyo.Var()
        model.fair = pyo.Constraint(model.agents, rule=lambda m, i: m.J[i] / float(span[i]) - m.target[i] >= m.excess)
        model.goal = pyo.Objective(expr=model.excess, sense=pyo.maximize)
        self.span = span

    def excess(self, q: float) -> float:
        """The largest common excess over the q-quantiles; negative if no policy is q-quantile fair."""
        targets = quantile_targets(self.samples, q) / self.span
        self.model.target.store_values(dict(enumerate(targets.tolist())))
        self.solve()
        return float(self.model.excess.value)


def max_quantile_lp(mdp: MultiObjectiveMDP, samples: np.ndarray, steps: int = 14) -> tuple[float, np.ndarray]:
    """The largest quantile of ``samples`` (size, n) that all agents can have, and an occupancy (S, A) that gives it.

    The white box: bisection with a linear program over all policies. With returns of random policies as ``samples``
    this is the predecessor's rule.

    Raises:
        ValueError: not even the smallest sampled returns can be had.
    """
    program = QuantileLP(mdp, samples)
    return _bisect(lambda q: program.occupancy if program.excess(q) >= -TOLERANCE else None, 0.0, 1.0, steps)


def utilitarian_lp(mdp: MultiObjectiveMDP) -> np.ndarray:
    """Occupancy (S, A) of the largest total return."""
    program = OccupancyLP(mdp)
    program.model.goal = pyo.Objective(expr=sum(program.model.J.values()), sense=pyo.maximize)
    program.solve()
    return program.occupancy


def egalitarian_lp(mdp: MultiObjectiveMDP) -> np.ndarray:
    """Occupancy (S, A) of the leximin policy: the worst-off agent's return first, then the next one's.

    A round fixes the agents whose row has a positive dual: no optimum gives them more.
    """
    program = OccupancyLP(mdp)
    model, slack = program.model, 1e-7 * float(np.abs(mdp.R).max())  # the solver's own tolerance
    model.floor = pyo.Var()
    model.fair = pyo.Constraint(model.agents, rule=lambda m, i: m.J[i] >= m.floor)
    model.goal = pyo.Objective(expr=model.floor, sense=pyo.maximize)
    while active := [i for i in model.agents if model.fair[i].active]:
        duals = program.solve().solution_loader.get_duals()
        for i in (i for i in active if abs(duals[model.fair[i]]) > 1e-7):
            model.J[i].setlb(model.floor.value - slack)
            model.fair[i].deactivate()
    return program.occupancy


def random_policy_returns(mdp: MultiObjectiveMDP, count: int, rng: np.random.Generator) -> np.ndarray:
    """The predecessor's reference: returns (count, n) of random policies, pi(.|s) ~ Dirichlet(1, ..., 1).

    That is not the uniform distribution on occupancy measures, for which it stands in.
    """
    _, states, actions = mdp.shape
    chunk = max(1, CHUNK // (states * states))
    sizes = [min(chunk, count - first) for first in range(0, count, chunk)]
    return np.concatenate([mdp.returns(rng.dirichlet(np.ones(actions), (size, states))) for size in sizes])


def gini(returns: np.ndarray) -> float:
    """Mean absolute difference of all pairs over twice the mean: 0 if all agents have the same.

    Raises:
        ValueError: negative returns, or none above 0.
    """
    returns = _check_returns(returns)
    return float(np.abs(returns[:, None] - returns).mean() / (2 * returns.mean()))


def nash_welfare(returns: np.ndarray) -> float:
    """Geometric mean of normalised returns (n,).

    Raises:
        ValueError: negative returns, or none above 0.
    """
    returns = _check_returns(returns)
    return float(np.exp(np.log(returns).mean())) if returns.all() else 0.0


def _check_returns(returns: np.ndarray) -> np.ndarray:
    returns = np.asarray(returns, dtype=float)
    if returns.ndim != 1 or not returns.size or not np.isfinite(returns).all():
        raise ValueError(f"returns must be finite numbers, one an agent, not an array of shape {returns.shape}")
    if (returns < -1e-6).any() or not (returns > 0).any():  # a solver's 0 may be a little below 0
        raise ValueError("returns must not be negative, nor all 0: normalise them to [0, 1] first")
    return returns.clip(min=0)
