"""k-hyperplane clustering: closed forms, enumeration, invariances, and solvers that never answer wrongly in silence."""

import itertools
import math
import time

import numpy as np
import pyomo.environ as pyo
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pydantic import ValidationError
from sklearn.datasets import load_wine

from lib.methods import hyperplane_clustering as khc

SLACK = 1e-5  # the solver's tolerances are absolute, in a cube of side 10


def cloud(m: int = 7, n: int = 2, k: int = 2, seed: int = 0, noise: float = 0.7) -> np.ndarray:
    return khc.make_hyperplane_clusters(m, n, k, np.random.default_rng(seed), noise)[0]


def solve(points: np.ndarray, k: int, formulation: str, **options) -> khc.SolveRecord:
    return khc.solve_miqcqp(khc.hyperplane_clustering_model(points, k, formulation), **options)


def cross(direction: np.ndarray, thickness: float = 0.3, length: float = 5.0) -> np.ndarray:
    """2n points on n orthogonal arms, thin along ``direction``; one hyperplane costs 2 * thickness**2."""
    n = len(direction)
    axes, _ = np.linalg.qr(np.column_stack([direction, np.eye(n)[:, 1:]]))
    arms = axes.T * np.r_[thickness, np.full(n - 1, length)][:, None]
    return np.concatenate([arms, -arms])


def shortest_with_both_norms(n: int) -> np.ndarray:
    return np.r_[n**-0.5, np.full(n - 1, (1 - n**-0.5) / (n - 1))]


def enumerated_slowly(points: np.ndarray, k: int) -> float:
    """The obvious reference: every assignment, every cluster by its singular values."""

    def cost(cluster: np.ndarray) -> float:
        centred = cluster - cluster.mean(axis=0)
        values = np.linalg.svd(centred, compute_uv=False)
        return float(values[-1] ** 2) if len(values) == points.shape[1] else 0.0

    best = math.inf
    for labels in itertools.product(range(k), repeat=len(points)):
        members = [points[np.array(labels) == j] for j in range(k)]
        best = min(best, sum(cost(cluster) for cluster in members if len(cluster)))
    return best


# Fitting and enumeration


def test_rectangle_by_hand():
    corners = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 3.0], [4.0, 3.0]])
    cost, normals, offsets = khc.fit_hyperplanes(corners, np.ones((4, 1)))
    assert cost == pytest.approx([9.0])
    assert np.abs(normals[0]) == pytest.approx([0.0, 1.0])
    assert abs(offsets[0]) == pytest.approx(1.5)
    assert khc.optimal_partition_bruteforce(corners, 1)[0] == pytest.approx(9.0)
    assert khc.optimal_partition_bruteforce(corners, 2)[0] == pytest.approx(0.0, abs=1e-12)


def test_a_batch_equals_its_members_one_by_one():
    points, rng = cloud(9, 3), np.random.default_rng(1)
    members = np.eye(3)[rng.integers(3, size=(5, 9))]
    together = khc.fit_hyperplanes(points, members)
    for index in range(5):
        alone = khc.fit_hyperplanes(points, members[index])
        for whole, part in zip(together, alone, strict=True):
            np.testing.assert_allclose(whole[index], part, atol=1e-12)


def test_fitted_cost_is_the_sum_of_squared_distances():
    points, labels, _, _ = khc.make_hyperplane_clusters(20, 3, 2, np.random.default_rng(2))
    costs, normals, offsets = khc.fit_hyperplanes(points, labels[:, None] == np.arange(2))
    distances = (points * normals[labels]).sum(axis=1) - offsets[labels]
    np.testing.assert_allclose(np.bincount(labels, distances**2), costs)
    np.testing.assert_allclose(np.linalg.norm(normals, axis=1), 1)


def test_an_empty_cluster_costs_nothing():
    points = cloud()
    costs, normals, _ = khc.fit_hyperplanes(points, np.column_stack([np.ones(7), np.zeros(7)]))
    assert costs[1] == 0
    assert np.isfinite(normals).all()


@pytest.mark.parametrize(("m", "n", "k"), [(6, 2, 2), (6, 2, 3), (7, 3, 2), (5, 2, 1), (3, 2, 3)])
def test_enumeration_equals_the_slow_reference(m, n, k):
    points = cloud(m, n, k, seed=m + n + k)
    cost, labels = khc.optimal_partition_bruteforce(points, k)
    assert cost == pytest.approx(enumerated_slowly(points, k), abs=1e-9)
    assert khc.partition_cost(points, labels) == pytest.approx(cost, abs=1e-9)


def test_enumeration_does_not_depend_on_the_chunk():
    points = cloud(8)
    assert khc.optimal_partition_bruteforce(points, 2, chunk=7)[0] == khc.optimal_partition_bruteforce(points, 2)[0]


@settings(max_examples=25, deadline=None)
@given(
    arrays(float, (6, 2), elements=st.floats(-10, 10, width=32)), st.floats(0, 6.3), st.floats(0.1, 10), st.randoms()
)
def test_optimum_is_invariant_and_never_above_the_heuristic(points, angle, scale, shuffle):
    cost, _ = khc.optimal_partition_bruteforce(points, 2)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    order = shuffle.sample(range(6), 6)
    moved, _ = khc.optimal_partition_bruteforce((scale * points @ turn + [3.0, -40.0])[order], 2)
    assert moved == pytest.approx(scale**2 * cost, rel=1e-6, abs=1e-7 * scale**2)
    heuristic = khc.k_plane_clustering(points, 2, np.random.default_rng(0), restarts=5)[0]
    assert heuristic[0] >= cost - 1e-9


def test_a_far_origin_costs_no_digits():
    points = cloud(9)
    near, far = (khc.optimal_partition_bruteforce(points + shift, 2)[0] for shift in (0.0, 1e6))
    assert far == pytest.approx(near, rel=1e-6)


# Data and heuristic


def test_generated_points_lie_in_the_cube_around_their_hyperplane():
    points, labels, normals, offsets = khc.make_hyperplane_clusters(4000, 3, 2, np.random.default_rng(0), noise=0.2)
    distances = (points * normals[labels]).sum(axis=1) - offsets[labels]
    assert points.shape == (4000, 3)
    assert points.min() >= 0
    assert points.max() <= 10
    assert distances.std() == pytest.approx(0.2, rel=0.05)


def test_heuristic_returns_consistent_restarts_best_first():
    points = cloud(15, 3)
    costs, labels, normals, offsets = khc.k_plane_clustering(points, 2, np.random.default_rng(0), restarts=12)
    assert (np.diff(costs) >= 0).all()
    distances = np.abs(np.einsum("in,rjn->rij", points, normals) - offsets[:, None])
    np.testing.assert_array_equal(distances.argmin(axis=-1), labels)
    np.testing.assert_allclose((distances.min(axis=-1) ** 2).sum(axis=-1), costs, atol=1e-9)
    assert [khc.partition_cost(points, row) for row in labels] == pytest.approx(list(costs), abs=1e-9)


def test_heuristic_finds_planted_lines_and_repeats_itself():
    points, truth, _, _ = khc.make_hyperplane_clusters(40, 2, 2, np.random.default_rng(3), noise=1e-6)
    costs, labels, _, _ = khc.k_plane_clustering(points, 2, np.random.default_rng(0))
    again = khc.k_plane_clustering(points, 2, np.random.default_rng(0))[0]
    assert costs[0] < 1e-8
    assert max((labels[0] == truth).mean(), (labels[0] != truth).mean()) > 0.9
    np.testing.assert_array_equal(costs, again)


# The model and its solvers


@pytest.mark.parametrize("formulation", khc.FORMULATIONS)
@pytest.mark.parametrize(("m", "n", "k"), [(7, 2, 2), (7, 3, 1), (7, 2, 3)])
def test_every_formulation_ends_at_the_enumerated_optimum(formulation, m, n, k):
    points = cloud(m, n, k, seed=5)
    best, _ = khc.optimal_partition_bruteforce(points, k)
    record = solve(points, k, formulation)
    assert record.status == "optimal"
    assert record.objective == pytest.approx(best, abs=SLACK)
    assert record.bound <= best + SLACK
    assert khc.partition_cost(points, record.labels) == pytest.approx(best, abs=SLACK)
    residuals = (points * record.normals[record.labels]).sum(axis=1) - record.offsets[record.labels]
    assert (residuals**2).sum() == pytest.approx(best, abs=1e-4)
    assert (np.linalg.norm(record.normals, axis=1) >= 1 - 1e-5).all()


@pytest.mark.parametrize("formulation", ["2", "2+inf"])
def test_symmetry_cuts_change_no_optimum(formulation):
    points = cloud(6, seed=8)
    with_cuts, without = (
        khc.solve_miqcqp(khc.hyperplane_clustering_model(points, 2, formulation, symmetry)).objective
        for symmetry in (True, False)
    )
    assert with_cuts == pytest.approx(without, abs=SLACK)


def test_real_data_far_from_the_origin_and_in_other_units():
    wine = load_wine().data[::20, [0, 10]]
    best, _ = khc.optimal_partition_bruteforce(wine, 2)
    record = solve(1000 * wine - 5e4, 2, "2+inf")
    assert record.status == "optimal"
    assert record.objective == pytest.approx(1e6 * best, rel=1e-3)
    residuals = np.abs((1000 * wine - 5e4) @ record.normals.T - record.offsets).min(axis=1)
    assert (residuals**2).sum() == pytest.approx(1e6 * best, rel=1e-2)


def test_identical_points_cost_nothing():
    record = solve(np.full((4, 2), 3.0), 1, "2+inf")
    assert record.status == "optimal"
    assert record.objective == pytest.approx(0.0, abs=SLACK)
    assert record.gap == pytest.approx(0.0, abs=1e-3) or record.objective <= SLACK


@pytest.mark.parametrize("seed", range(3))
def test_relaxations_lie_between_their_bounds(seed):
    points = cloud(7, 2, 2, seed)
    best, _ = khc.optimal_partition_bruteforce(points, 2)
    one, infinity, both = (solve(points, 2, name).objective for name in khc.RELAXATIONS)
    assert min(one, infinity) >= best / 2 - SLACK
    assert both >= max(one, infinity, 2 / (2 + math.sqrt(2)) * best) - SLACK
    assert both <= best + SLACK


def one_plane_both_norms(scatter: np.ndarray) -> float:
    """min w'Sw with |w|_1 >= 1, |w|_inf >= 1/sqrt(n), over the n 2^(n-1) polyhedra whose union the set is."""
    n, inverse, best = len(scatter), np.linalg.inv(scatter), math.inf
    for axis, signs in itertools.product(range(n), itertools.product((1.0, -1.0), repeat=n)):
        rows, low = np.array([np.eye(n)[axis], signs]), np.array([n**-0.5, 1.0])
        for tight in ([0], [1], [0, 1]):
            gram = rows[tight] @ inverse @ rows[tight].T
            if abs(np.linalg.det(gram)) < 1e-12:
                continue
            w = inverse @ rows[tight].T @ np.linalg.solve(gram, low[tight])
            if (rows @ w >= low - 1e-9).all():
                best = min(best, float(w @ scatter @ w))
    return best


@pytest.mark.parametrize("n", [2, 3, 4])
def test_one_hyperplane_with_both_norms_equals_its_closed_form(n):
    points = cloud(9, n, 1, seed=n)
    centred = points - points.mean(axis=0)
    expected = one_plane_both_norms(centred.T @ centred)
    assert solve(points, 1, "1+inf").objective == pytest.approx(expected, abs=SLACK)


@settings(max_examples=30, deadline=None)
@given(arrays(float, (4, 4), elements=st.floats(-3, 3, width=32)))
def test_both_norms_never_fall_below_two_over_n_plus_root_n(root):
    scatter = root @ root.T + 1e-2 * np.eye(4)
    ratio = one_plane_both_norms(scatter) / np.linalg.eigvalsh(scatter)[0]
    assert 2 / (4 + math.sqrt(4)) - 1e-6 <= ratio <= 1 + 1e-6


@pytest.mark.timeout(90)
def test_time_limit_is_kept_where_the_search_is_not_finished():
    points = cloud(30, 3, 3)
    begun = time.perf_counter()
    record = solve(points, 3, "2", time_limit=2.0)
    assert time.perf_counter() - begun < 30  # without silencing SCIP this call never comes back
    assert record.status == "time limit"
    assert record.gap > 0.5
    assert 0 <= record.bound <= record.objective
    assert khc.partition_cost(points, record.labels) <= record.objective + SLACK


def test_node_limit_leaves_a_valid_bound():
    points = cloud(10)
    record = solve(points, 2, "2", node_limit=5)
    assert record.status == "node limit"
    assert record.nodes <= 5
    assert record.bound <= khc.optimal_partition_bruteforce(points, 2)[0] + SLACK


@pytest.mark.parametrize("formulation", khc.FORMULATIONS)
def test_a_known_partition_becomes_the_first_incumbent(formulation):
    points = cloud(14, seed=3)
    costs, labels, _, _ = khc.k_plane_clustering(points, 2, np.random.default_rng(0))
    record = solve(points, 2, formulation, node_limit=1, start=1 - labels[0])
    assert record.objective <= costs[0] + SLACK


def test_solver_that_is_missing_says_so(monkeypatch):
    class Absent:
        def available(self) -> bool:
            return False

    monkeypatch.setattr(khc, "SolverFactory", lambda name: Absent())
    record = solve(cloud(), 2, "2", solver="gurobi_direct_minlp")
    assert (record.status, record.bound, record.objective, record.gap) == ("solver missing", 0.0, None, 1.0)


def test_infeasible_model_says_so():
    model = khc.hyperplane_clustering_model(cloud(), 2, "2")
    model.short = pyo.Constraint(expr=sum(model.w[0, c] ** 2 for c in model.axes) <= 0.5)
    record = khc.solve_miqcqp(model)
    assert record.status == "infeasible"
    assert record.objective is None
    assert record.labels is None


def test_node_log_rises_to_the_optimum_and_can_stop_early():
    points = cloud(8)
    best, _ = khc.optimal_partition_bruteforce(points, 2)
    model = khc.hyperplane_clustering_model(points, 2, "2+inf")
    log = khc.trace_bound(model)
    assert (np.diff(log, axis=0)[:, :2] >= 0).all()
    assert (np.diff(log[np.isfinite(log[:, 2]), 2]) <= 0).all()
    assert log[-1, 1:] == pytest.approx([best, best], abs=SLACK)
    short = khc.trace_bound(model, stop_above=1e-4 * best)
    assert short[-1, 0] < log[-1, 0]
    assert (short[:-2, 1] <= 1e-4 * best).all()
    assert short[-1, 1] > 1e-4 * best


# Bad input


@pytest.mark.parametrize(
    ("points", "k", "message"),
    [
        ([[0.0, 1.0], [np.nan, 2.0], [1.0, 1.0]], 2, "NaN"),
        ([[0.0, 1.0], [np.inf, 2.0], [1.0, 1.0]], 2, "infinite"),
        ([[0.0, 1.0]], 2, "fewer than k=2"),
        ([[0.0, 1.0], [2.0, 2.0]], 0, "at least 1"),
        ([0.0, 1.0, 2.0], 1, r"\[m, n\] array"),
        (np.empty((0, 2)), 1, "fewer than"),
    ],
)
def test_bad_points_are_refused_in_one_sentence(points, k, message):
    for method in (
        khc.hyperplane_clustering_model,
        khc.optimal_partition_bruteforce,
        lambda points, k: khc.k_plane_clustering(points, k, np.random.default_rng(0)),
    ):
        with pytest.raises(ValueError, match=message):
            method(points, k)


def test_unknown_names_suggest_the_nearest():
    model = khc.hyperplane_clustering_model(cloud(), 2)
    with pytest.raises(ValueError, match="did you mean 'scip_direct'"):
        khc.solve_miqcqp(model, solver="scip")
    with pytest.raises(ValueError, match=r"did you mean '2\+inf'"):
        khc.hyperplane_clustering_model(cloud(), 2, "2+infinity")


def test_too_many_partitions_are_refused():
    with pytest.raises(ValueError, match="too many to enumerate"):
        khc.optimal_partition_bruteforce(cloud(30), 2)


def test_parameters_refuse_points_that_fit_exactly():
    with pytest.raises(ValidationError, match="m must exceed"):
        khc.Parameters(m=12, n=4, k=3)


# The exact claims can fail


def sloped() -> np.ndarray:
    """Six points near a line whose normal has its large coordinate second and the first of the other sign."""
    x = np.arange(6.0)
    return np.column_stack([x, 0.3 * x + 0.1 * (-1) ** x])


@pytest.mark.mutation("C1")
@pytest.mark.parametrize("formulation", ["2+inf", "2+1+inf"])
def test_keeping_the_sign_cut_beside_the_infinity_norm_loses_the_optimum(formulation):
    points = sloped()
    best, _ = khc.optimal_partition_bruteforce(points, 1)
    model = khc.hyperplane_clustering_model(points, 1, formulation)
    assert abs(khc.solve_miqcqp(model).objective - best) <= SLACK
    model.w[0, 0].setlb(0)
    assert abs(khc.solve_miqcqp(model).objective - best) > 0.1


@pytest.mark.mutation("C2")
@pytest.mark.parametrize(("low", "direction"), [(0.25, [1.0, 0.0]), (1.0, [1.0, 1.0])])
def test_a_wrong_infinity_norm_breaks_the_bounds(low, direction):
    points, best = cross(np.array(direction)), 2 * 0.3**2
    model = khc.hyperplane_clustering_model(points, 1, "inf")
    assert best / 2 - SLACK <= khc.solve_miqcqp(model).objective <= best + SLACK
    model.norm_inf.deactivate()
    model.wrong = pyo.Constraint(model.axes, rule=lambda b, c: b.w[0, c] >= -1 + (1 + low) * b.u[0, c])
    assert not best / 2 - SLACK <= khc.solve_miqcqp(model).objective <= best + SLACK


@pytest.mark.mutation("C3")
def test_without_the_one_norm_the_bound_of_both_is_broken():
    points, bound = cross(np.array([1.0, 0.0, 0.0])), 2 / (3 + math.sqrt(3)) * 2 * 0.3**2
    model = khc.hyperplane_clustering_model(points, 1, "1+inf")
    assert khc.solve_miqcqp(model).objective >= bound - SLACK
    model.norm_1.deactivate()
    assert khc.solve_miqcqp(model).objective < bound - SLACK


@pytest.mark.mutation("C3b")
@pytest.mark.parametrize("n", [2, 3])
def test_a_cross_along_the_diagonal_does_not_refute_one_over_root_n(n):
    def share(direction: np.ndarray) -> float:
        return solve(cross(direction), 1, "1+inf").objective / (2 * 0.3**2)

    assert share(shortest_with_both_norms(n)) * math.sqrt(n) < 0.99
    assert share(np.ones(n)) * math.sqrt(n) >= 0.99
