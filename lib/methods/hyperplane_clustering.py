"""k-hyperplane clustering in the Euclidean norm, solved to proven optimality by multi-norm formulations.

Source: Coniglio, "Solving the 2-norm k-hyperplane clustering problem via multi-norm formulations" (ICLR 2026);
told in notebooks/hyperplane_clustering. There are m points a_i in R^n and k hyperplanes {x : w_j . x = gamma_j}; the
cost is sum_i min_j (a_i . w_j - gamma_j)^2 / |w_j|^2.
"""

import math
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyomo.environ as pyo
import pyscipopt
from pydantic import BaseModel, ConfigDict, Field, model_validator
from pyomo.contrib.solver.common.factory import SolverFactory

from lib.substrates.names import check_name

FORMULATIONS = ("2", "2+inf", "2+1", "2+1+inf")
RELAXATIONS = ("1", "inf", "1+inf")
CUBE = 10.0  # side of the model's cube: data of any scale then meet the solver's absolute tolerance of 1e-6 alike
MAX_PARTITIONS = 5_000_000
# Options always set, then the solver's names of: node limit, seed, node count. Pyomo reads SCIP's log through a pipe
# that nobody empties while SCIP runs; a long log fills it and the solve never ends. SCIP is therefore kept silent.
_OPTIONS: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "scip_direct": ({"display/verblevel": 0}, "limits/nodes", "randomization/randomseedshift", "NNodes"),
    "gurobi_direct_minlp": ({"MIPGap": 1e-6, "Threads": 1}, "NodeLimit", "Seed", "NodeCount"),
}
SOLVERS = tuple(_OPTIONS)
_STATUS = {
    "convergenceCriteriaSatisfied": "optimal",
    "maxTimeLimit": "time limit",
    "iterationLimit": "node limit",
    "provenInfeasible": "infeasible",
}


class Parameters(BaseModel):
    """Parameters of the notebook; the defaults are its `small` run."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    preset: str = Field("small", description="named parameter set of presets/hyperplane_clustering.toml")
    seed: int = Field(0, ge=0, description="seed of the instances and of the heuristic's restarts")
    m: int = Field(12, ge=8, le=40, description="points in an instance")
    n: int = Field(2, ge=2, le=6, description="dimension of the points")
    k: int = Field(2, ge=1, le=4, description="hyperplanes to fit")
    noise: float = Field(0.7, gt=0, description="standard deviation of the points around their hyperplane")
    instances: int = Field(6, ge=1, description="random instances; every formulation solves all of them")
    time_limit: float = Field(60.0, gt=0, description="seconds of wall clock for one solve")
    solver: str = Field("scip_direct", description="Pyomo's name of the solver")
    restarts: int = Field(50, ge=1, description="random starts of the k-plane heuristic")
    node_trace: bool = Field(True, description="log the lower bound node by node (SCIP only)")

    @model_validator(mode="after")
    def _points_suffice(self) -> "Parameters":
        if self.m <= self.k * self.n:
            raise ValueError(f"m must exceed k * n = {self.k * self.n}: fewer points lie on k hyperplanes exactly")
        return self


@dataclass(frozen=True)
class SolveRecord:
    """How a solve ended, in the coordinates and units of the caller's points.

    ``status`` is "optimal", "time limit", "node limit", "infeasible", "solver missing", or the solver's own word;
    only "optimal" proves ``objective``. ``bound`` is a valid lower bound always. Without an incumbent ``objective``,
    ``labels`` (m,), ``normals`` (k, n) and ``offsets`` (k,) are None. ``seconds`` are of processor time.
    """

    status: str
    bound: float
    nodes: int = 0
    seconds: float = 0.0
    objective: float | None = None
    labels: np.ndarray | None = None
    normals: np.ndarray | None = None
    offsets: np.ndarray | None = None

    @property
    def gap(self) -> float:
        """(objective - bound) / objective: 0 when proved, 1 while nothing is known."""
        if self.objective is None:
            return 1.0
        return max(0.0, 1 - self.bound / self.objective) if self.objective > 0 else 0.0


def _check_points(points: np.ndarray, k: int) -> np.ndarray:
    points = np.asarray(points, dtype=float)
    if points.ndim != 2:
        raise ValueError(f"points must be an [m, n] array, one row a point, not one of shape {points.shape}")
    if not np.isfinite(points).all():
        raise ValueError("points hold NaN or infinite values: drop or fill those rows first")
    if k < 1:
        raise ValueError(f"k must be at least 1 hyperplane, not {k}")
    if len(points) < k:
        raise ValueError(f"{len(points)} points are fewer than k={k} clusters: lower k or add points")
    return points


def make_hyperplane_clusters(
    m: int, n: int, k: int, rng: np.random.Generator, noise: float = 0.7, box: float = 10.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Points around k random hyperplanes through the middle of the cube [0, box]^n; those outside are drawn again.

    Returns points (m, n), labels (m,), unit normals (k, n), offsets (k,).
    """
    normals = rng.standard_normal((k, n))
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    offsets = (normals * rng.uniform(0.3 * box, 0.7 * box, (k, n))).sum(axis=1)
    points, labels = np.empty((0, n)), np.empty(0, dtype=int)
    while len(points) < m:
        drawn, raw = rng.integers(k, size=8 * m), rng.uniform(0, box, (8 * m, n))
        distance = offsets[drawn] - (raw * normals[drawn]).sum(axis=1) + noise * rng.standard_normal(8 * m)
        raw += distance[:, None] * normals[drawn]
        inside = ((raw >= 0) & (raw <= box)).all(axis=1)
        points, labels = np.concatenate([points, raw[inside]]), np.concatenate([labels, drawn[inside]])
    return points[:m], labels[:m], normals, offsets


def _scatter(points: np.ndarray, members: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scatter matrices (..., k, n, n) and centres (..., k, n) of clusters given by membership (..., m, k)."""
    m, n = points.shape
    middle = points.mean(axis=0)  # data far from the origin lose no digits when squared
    centred = points - middle
    rows = np.swapaxes(members, -1, -2).astype(float)
    total = rows.sum(axis=-1)[..., None]
    centres = rows @ centred / total.clip(min=1)
    squares = (rows @ (centred[:, :, None] * centred[:, None, :]).reshape(m, n * n)).reshape(*centres.shape, n)
    return squares - total[..., None] * centres[..., :, None] * centres[..., None, :], centres + middle


def fit_hyperplanes(points: np.ndarray, members: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The best hyperplane of each cluster: normal to the smallest eigenvector of its scatter, through its centre.

    ``points`` is (m, n), ``members`` (..., m, k) says which point is in which cluster, leading axes are a batch.
    Returns squared errors (..., k), unit normals (..., k, n), offsets (..., k). An empty cluster costs nothing.
    """
    scatter, centres = _scatter(points, members)
    values, vectors = np.linalg.eigh(scatter)
    normals = vectors[..., 0]
    return values[..., 0].clip(min=0), normals, (normals * centres).sum(axis=-1)


def partition_cost(points: np.ndarray, labels: np.ndarray) -> float:
    """Cost of the partition ``labels`` (m,) when every cluster gets its best hyperplane."""
    return float(fit_hyperplanes(points, labels[:, None] == np.unique(labels))[0].sum())


def optimal_partition_bruteforce(points: np.ndarray, k: int, chunk: int = 1 << 16) -> tuple[float, np.ndarray]:
    """The optimum, and its labels (m,), by pricing every partition of ``points`` (m, n) into at most k clusters.

    A partition is a number in base k with the first point in cluster 0; ``chunk`` of them are priced at a time.

    Raises:
        ValueError: bad points, or more than ``MAX_PARTITIONS``.
    """
    points = _check_points(points, k)
    m, count = len(points), k ** (len(points) - 1)
    if count > MAX_PARTITIONS:
        raise ValueError(f"{count} partitions are too many to enumerate: pass fewer than {m} points")
    best, best_labels = math.inf, np.zeros(m, dtype=int)
    for first in range(0, count, chunk):
        codes = np.arange(first, min(first + chunk, count))[:, None]
        labels = np.pad(codes // k ** np.arange(m - 1) % k, ((0, 0), (1, 0)))
        scatter, _ = _scatter(points, labels[..., None] == np.arange(k))
        costs = np.linalg.eigvalsh(scatter)[..., 0].clip(min=0).sum(axis=-1)
        if costs.min() < best:
            best, best_labels = float(costs.min()), labels[costs.argmin()]
    return best, best_labels


def k_plane_clustering(
    points: np.ndarray, k: int, rng: np.random.Generator, restarts: int = 50, rounds: int = 100
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The k-plane heuristic (Bradley and Mangasarian 2000): assign to the nearest hyperplane, refit, repeat.

    Every restart begins with random normals through random points, and all of them run at once. Returns, best restart
    first: costs (r,), labels (r, m), unit normals (r, k, n), offsets (r, k).
    """
    points = _check_points(points, k)
    normals = rng.standard_normal((restarts, k, points.shape[1]))
    normals /= np.linalg.norm(normals, axis=-1, keepdims=True)
    offsets = (normals * points[rng.integers(len(points), size=(restarts, k))]).sum(axis=-1)
    labels = np.full((restarts, len(points)), -1)
    for _ in range(rounds):
        previous = labels
        labels = np.abs(np.einsum("in,rjn->rij", points, normals) - offsets[:, None]).argmin(axis=-1)
        if (labels == previous).all():
            break
        costs, normals, offsets = fit_hyperplanes(points, labels[..., None] == np.arange(k))
    order = costs.sum(axis=-1).argsort(kind="stable")
    return costs.sum(axis=-1)[order], labels[order], normals[order], offsets[order]


def hyperplane_clustering_model(
    points: np.ndarray, k: int, formulation: str = "2+inf", symmetry: bool = True
) -> pyo.ConcreteModel:
    """The mixed-integer quadratically constrained model of k-hyperplane clustering.

    ``points`` (m, n) may lie anywhere: the model moves and scales them into the cube [0, 10]^n that its big-M values
    need, and :func:`solve_miqcqp` takes the answer back. ``formulation`` joins by "+" the norms of w_j that are
    bounded from below: "2" is the exact |w|_2 >= 1; "inf" (|w|_inf >= 1/sqrt(n)) and "1" (|w|_1 >= 1) follow from it,
    but can be branched on. Without "2" the optimum is a lower bound only. ``symmetry`` forbids point i the clusters
    above i and, without "inf", the second sign of w_j.

    Raises:
        ValueError: bad points, or an unknown formulation.
    """
    points = _check_points(points, k)
    norms = check_name(formulation, FORMULATIONS + RELAXATIONS, "formulation").split("+")
    m, n = points.shape
    low, diameter = 1 / math.sqrt(n), math.sqrt(n) * CUBE
    # "inf" asks for a large *positive* coordinate, which settles the sign: cutting it again would cut off optima.
    first_nonnegative = symmetry and "inf" not in norms
    model = pyo.ConcreteModel(name=f"k-hyperplane clustering {formulation}")
    model.origin, model.scale = points.min(axis=0), CUBE / (float(np.ptp(points, axis=0).max()) or 1.0)
    model.cloud = (points - model.origin) * model.scale

    model.rows, model.planes, model.axes = (pyo.RangeSet(0, count - 1) for count in (m, k, n))
    model.pairs = pyo.Set(initialize=[(i, j) for i in range(m) for j in range(k) if i >= j or not symmetry])
    model.w = pyo.Var(model.planes, model.axes, bounds=(-1, 1))
    model.gamma = pyo.Var(model.planes, bounds=(-n * CUBE - diameter, n * CUBE + diameter))
    model.x = pyo.Var(model.pairs, domain=pyo.Binary)
    model.d = pyo.Var(model.pairs, bounds=(0, diameter))
    model.cost = pyo.Objective(expr=sum(model.d[pair] ** 2 for pair in model.pairs))

    @model.Constraint(model.rows)
    def one_plane(model: pyo.ConcreteModel, i: int) -> Any:
        return sum(model.x[i, j] for j in model.planes if (i, j) in model.pairs) == 1

    @model.Constraint(model.pairs, (1, -1))
    def distance(model: pyo.ConcreteModel, i: int, j: int, side: int) -> Any:
        residual = sum(model.cloud[i, c] * model.w[j, c] for c in model.axes) - model.gamma[j]
        return model.d[i, j] >= side * residual - diameter * (1 - model.x[i, j])

    def each(rule: Any, *sets: Any) -> pyo.Constraint:
        return pyo.Constraint(model.planes, *sets, rule=rule)

    if "2" in norms:
        model.norm_2 = each(lambda b, j: sum(b.w[j, c] ** 2 for c in b.axes) >= 1)
    if "inf" in norms:
        model.u = pyo.Var(model.planes, model.axes, domain=pyo.Binary)
        model.one_axis = each(lambda b, j: sum(b.u[j, c] for c in b.axes) == 1)
        model.norm_inf = each(lambda b, j, c: b.w[j, c] >= -1 + (1 + low) * b.u[j, c], model.axes)
    if "1" in norms:
        model.s = pyo.Var(model.planes, model.axes, domain=pyo.Binary)
        model.up, model.down = (pyo.Var(model.planes, model.axes, bounds=(0, 1)) for _ in range(2))
        model.split = each(lambda b, j, c: b.up[j, c] - b.down[j, c] == b.w[j, c], model.axes)
        model.up_if = each(lambda b, j, c: b.up[j, c] <= b.s[j, c], model.axes)
        model.down_if = each(lambda b, j, c: b.down[j, c] <= 1 - b.s[j, c], model.axes)
        model.norm_1 = each(lambda b, j: sum(b.up[j, c] + b.down[j, c] for c in b.axes) >= 1)
    if first_nonnegative:
        for j in model.planes:
            model.w[j, 0].setlb(0)
            if "1" in norms:
                model.s[j, 0].fix(1)
    return model


def _set_start(model: pyo.ConcreteModel, labels: np.ndarray) -> None:
    """Write a known partition into the model's binary variables, renamed and signed as its symmetry cuts ask."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    labels = first.argsort().argsort()[inverse]
    _, normals, _ = fit_hyperplanes(model.cloud, labels[:, None] == np.arange(len(model.planes)))
    lead = np.abs(normals).argmax(axis=1) if hasattr(model, "u") else np.zeros(len(normals), dtype=int)
    signs = np.where(normals[np.arange(len(normals)), lead] < 0, -1.0, 1.0)
    model.x.set_values({(i, j): int(labels[i] == j) for i, j in model.pairs})
    if hasattr(model, "u"):
        model.u.set_values({(j, c): int(lead[j] == c) for j, c in model.u})
    if hasattr(model, "s"):
        model.s.set_values({(j, c): int(normals[j, c] * signs[j] >= 0) for j, c in model.s})


def solve_miqcqp(
    model: pyo.ConcreteModel,
    solver: str = "scip_direct",
    time_limit: float = 60.0,
    node_limit: int | None = None,
    solver_seed: int = 0,
    start: np.ndarray | None = None,
) -> SolveRecord:
    """Solve a model of :func:`hyperplane_clustering_model` by branch and bound, through Pyomo.

    ``solver`` is one of ``SOLVERS``: SCIP is installed with this project, Gurobi needs its package and a licence.
    ``time_limit`` is in seconds of wall clock, ``solver_seed`` shifts the solver's own random numbers, ``start`` (m,)
    holds the labels of a known partition that becomes the first incumbent.

    Raises:
        ValueError: unknown solver.
    """
    optimiser = SolverFactory(check_name(solver, SOLVERS, "solver"))
    if not optimiser.available():
        return SolveRecord("solver missing", 0.0)
    if start is not None:
        _set_start(model, start)
    fixed, nodes_key, seed_key, count_key = _OPTIONS[solver]
    limit = {} if node_limit is None else {nodes_key: node_limit}
    begun = time.process_time()
    result = optimiser.solve(
        model,
        time_limit=time_limit,
        load_solutions=False,
        raise_exception_on_nonoptimal_result=False,
        warmstart_discrete_vars=start is not None,
        solver_options={**fixed, **limit, seed_key: solver_seed},
    )
    word = result.termination_condition.name
    record = SolveRecord(
        status=_STATUS.get(word, word),
        bound=max(result.objective_bound or 0.0, 0.0) / model.scale**2,  # a sum of squares is never negative
        nodes=int(result.extra_info[count_key]),
        seconds=time.process_time() - begun,
    )
    if result.incumbent_objective is None:
        return record
    value = result.solution_loader.get_vars()
    x = np.array([[value[model.x[i, j]] if (i, j) in model.pairs else 0.0 for j in model.planes] for i in model.rows])
    normals = np.array([[value[model.w[j, c]] for c in model.axes] for j in model.planes])
    gamma = np.array([value[model.gamma[j]] for j in model.planes])
    return replace(
        record,
        objective=result.incumbent_objective / model.scale**2,
        labels=x.argmax(axis=1),
        normals=normals,
        offsets=gamma / model.scale + normals @ model.origin,
    )


class _BoundLog(pyscipopt.Eventhdlr):
    """Notes the global lower bound and the incumbent whenever SCIP turns to another node."""

    def __init__(self, stop_above: float) -> None:
        self.stop_above = stop_above
        self.rows: list[tuple[float, float, float]] = []

    def eventinit(self) -> None:
        self.model.catchEvent(pyscipopt.SCIP_EVENTTYPE.NODEFOCUSED, self)

    def eventexit(self) -> None:
        self.model.dropEvent(pyscipopt.SCIP_EVENTTYPE.NODEFOCUSED, self)

    def eventexec(self, event: pyscipopt.scip.Event) -> None:
        self.note()
        if self.rows[-1][1] > self.stop_above:
            self.model.interruptSolve()

    def note(self) -> None:
        self.rows.append((self.model.getNTotalNodes(), self.model.getDualbound(), self.model.getPrimalbound()))


def trace_bound(
    model: pyo.ConcreteModel, time_limit: float = 60.0, stop_above: float = math.inf, solver_seed: int = 0
) -> np.ndarray:
    """The node log of one SCIP solve: rows (nodes, lower bound, incumbent cost or inf), in the caller's units.

    The solve also ends once the bound exceeds ``stop_above``, so that the last row tells when it did. Pyomo's own
    interface has no callback: the model goes to SCIP as an AMPL ``.nl`` file.
    """
    scip = pyscipopt.Model()
    scip.hideOutput()
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model.nl")
        model.write(path)
        scip.readProblem(path)
    scip.setParams({"limits/time": time_limit, "randomization/randomseedshift": solver_seed})
    log = _BoundLog(stop_above * model.scale**2)
    scip.includeEventhdlr(log, "bound log", "lower bound and incumbent at every node")
    scip.optimize()
    log.note()
    rows = np.array(log.rows, dtype=float)
    rows[:, 1] = rows[:, 1].clip(min=0) / model.scale**2
    rows[:, 2] = np.where(rows[:, 2] < scip.infinity(), rows[:, 2] / model.scale**2, math.inf)
    return rows
