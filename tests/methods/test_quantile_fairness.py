"""Quantile fairness: closed forms, brute force over all policies, invariances, and black boxes of every kind."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pydantic import ValidationError
from scipy.spatial import Delaunay

from lib.methods import quantile_fairness as qf
from lib.substrates import decision_processes as processes
from lib.substrates import reinforcement as learners

KS_1_PERCENT = 1.63


def random_mdp(seed: int = 0, agents: int = 2, states: int = 3, actions: int = 2, gamma: float = 0.8):
    rng = np.random.default_rng(seed)
    P = rng.dirichlet(np.ones(states), (actions, states))
    return processes.MultiObjectiveMDP(P, rng.random((agents, states, actions)), gamma, rng.dirichlet(np.ones(states)))


def grid(seed: int = 0, size: int = 4, agents: int = 3):
    return qf.normalised(processes.conflict_gridworld(size, agents, np.random.default_rng(seed)))


def all_policies(mdp) -> np.ndarray:
    _, states, actions = mdp.shape
    return np.array(list(itertools.product(range(actions), repeat=states)))


def divided_difference_cdf(values: np.ndarray, t: float) -> float:
    above = [k for k in range(len(values)) if values[k] > t]
    return 1 - sum((values[k] - t) ** (len(values) - 1) / np.prod(values[k] - np.delete(values, k)) for k in above)


def ks_distance(samples: np.ndarray, cdf) -> float:
    """Root of the sample size times the largest difference between the empirical and the true distribution."""
    ordered, ranks = np.sort(samples), np.arange(len(samples) + 1) / len(samples)
    exact = cdf(ordered)
    return math.sqrt(len(samples)) * max(np.abs(exact - ranks[1:]).max(), np.abs(exact - ranks[:-1]).max())


# The process


def test_two_states_by_hand():
    # Stay or switch, both sure; agent 0 likes state 0, agent 1 likes state 1; start in state 0.
    mdp = processes.MultiObjectiveMDP(
        np.array([np.eye(2), np.eye(2)[::-1]]), np.repeat(np.eye(2)[..., None], 2, axis=2), 0.5, np.array([1.0, 0.0])
    )
    assert mdp.returns(np.array([0, 0])) == pytest.approx([1.0, 0.0])
    assert mdp.returns(np.array([1, 0])) == pytest.approx([0.5, 0.5])
    assert qf.optimal_return_matrix(mdp).ravel() == pytest.approx([1.0, 0.0, 0.5, 0.5])


def test_occupancy_equals_the_sum_over_time():
    mdp = random_mdp(1)
    policy = np.random.default_rng(2).dirichlet(np.ones(2), 3)
    chain, state, total = np.einsum("sa,ast->st", policy, mdp.P), mdp.rho0.copy(), np.zeros(3)
    for step in range(300):
        total += (1 - mdp.gamma) * mdp.gamma**step * state
        state = state @ chain
    np.testing.assert_allclose(mdp.occupancy(policy), total[:, None] * policy, atol=1e-12)
    assert mdp.occupancy(policy).sum() == pytest.approx(1)


def test_a_batch_of_policies_equals_its_members():
    mdp = random_mdp(3, agents=3)
    policies = all_policies(mdp)
    together = mdp.returns(policies)
    np.testing.assert_allclose(together, [mdp.returns(policy) for policy in policies])
    np.testing.assert_allclose(mdp.returns(np.eye(2)[policies]), together)
    np.testing.assert_allclose(mdp.returns(policies[:1]), together[:1])


@pytest.mark.parametrize("seed", range(5))
def test_policy_iteration_and_linear_program_equal_enumeration(seed):
    mdp = random_mdp(seed, agents=3)
    totals = mdp.returns(all_policies(mdp)).sum(axis=1)
    policy = mdp.optimal_policy(mdp.scalar_reward(np.ones(3)), start=np.zeros(3, dtype=int))
    assert mdp.returns(policy).sum() == pytest.approx(totals.max())
    assert (mdp.R * qf.utilitarian_lp(mdp)).sum() == pytest.approx(totals.max(), abs=1e-6)


def test_normalised_returns_run_from_zero_to_one():
    mdp = qf.normalised(random_mdp(4, agents=3))
    returns = mdp.returns(all_policies(mdp))
    np.testing.assert_allclose(returns.min(axis=0), 0, atol=1e-9)
    np.testing.assert_allclose(returns.max(axis=0), 1)


def test_stationary_policy_of_a_mixture_has_the_mean_return():
    mdp = random_mdp(5)
    mixture = mdp.occupancy(all_policies(mdp)).mean(axis=0)
    returns = mdp.returns(qf.stationary_policy(mixture))
    np.testing.assert_allclose(returns, mdp.returns(all_policies(mdp)).mean(axis=0))
    averaged = mdp.returns(np.eye(2)[all_policies(mdp)].mean(axis=0))
    assert np.abs(averaged - returns).max() > 1e-4  # averaging action probabilities is another policy


# The yardstick


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=2, max_size=7, unique=True), st.floats(-0.1, 1.1))
def test_cdf_equals_the_divided_difference(values, t):
    values = np.array(values) / 40
    assert float(qf.simplex_linear_cdf(values, t)) == pytest.approx(divided_difference_cdf(values, t), abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(arrays(float, 5, elements=st.floats(-5, 5, width=32)), st.floats(0.1, 10), st.randoms())
def test_cdf_is_a_distribution_and_invariant(values, scale, shuffle):
    t = np.linspace(values.min() - 1, values.max() + 1, 50)
    cdf = qf.simplex_linear_cdf(values, t)
    assert (np.diff(cdf) >= -1e-9).all()
    assert cdf[[0, -1]] == pytest.approx([0, 1])
    moved = np.array(shuffle.sample(list(values), 5)) * scale + 3
    if np.ptp(values) > 1e-3:
        np.testing.assert_allclose(qf.simplex_linear_cdf(moved, t * scale + 3), cdf, atol=1e-6)


def test_cdf_takes_equal_values_and_two_values():
    assert float(qf.simplex_linear_cdf([1.0, 0.0, 0.0], 1 / 3)) == pytest.approx(1 - (2 / 3) ** 2)
    assert float(qf.simplex_linear_cdf([0.0, 1.0], 0.3)) == pytest.approx(0.3)
    assert list(qf.simplex_linear_cdf([2.0, 2.0], np.array([1.9, 2.0]))) == [0, 1]


def test_equal_rows_count_once():
    V = np.array([[1.0, 0, 0], [0, 1, 1], [0, 1, 1]])
    samples = qf.sample_simplex_returns(V, 20_000, 0)
    assert ks_distance(samples[:, 0], lambda t: t) < KS_1_PERCENT  # uniform on a segment


@pytest.mark.parametrize("corners", [[[0, 0], [1, 0], [0, 1], [1, 1]], [[0, 0], [4, 0], [5, 2], [2, 5], [0, 1]]])
def test_hit_and_run_is_uniform_on_a_polygon(corners):
    V = np.array(corners, dtype=float)
    padded = np.column_stack([V, V @ [1.0, 2.0]])  # flat in three dimensions, in other units
    samples = qf.sample_simplex_returns(padded, 20_000, 1)
    np.testing.assert_allclose(samples[:, 2], samples[:, :2] @ [1.0, 2.0], atol=1e-9)
    triangles = V[Delaunay(V).simplices]
    areas = np.abs(np.linalg.det(triangles[:, 1:] - triangles[:, :1]))
    for axis in range(2):

        def exact(t, axis=axis):
            return sum(
                area * qf.simplex_linear_cdf(triangle[:, axis], t)
                for area, triangle in zip(areas / areas.sum(), triangles, strict=True)
            )

        assert ks_distance(samples[:, axis], exact) < 1.95  # the 0.1 % level: hit-and-run is only nearly exact


def test_points_on_a_line_are_sampled_from_the_whole_segment():
    samples = qf.sample_simplex_returns(np.array([[0.0, 0.0], [0.2, 0.4], [1.0, 2.0]]), 20_000, 0)
    assert ks_distance(samples[:, 0], lambda t: t) < KS_1_PERCENT


def test_quantiles_and_their_inverse():
    samples = np.arange(1.0, 11.0)[:, None] * [1.0, 10.0]
    assert list(qf.quantile_targets(samples, 0.3)) == [3.0, 30.0]
    assert list(qf.achieved_quantiles(samples, np.array([3.0, 29.0]))) == pytest.approx([0.3, 0.2])


# Multiplicative weights against the linear program


@pytest.mark.parametrize("seed", range(3))
def test_search_agrees_with_the_linear_program(seed):
    mdp = grid(seed)
    samples = qf.sample_simplex_returns(qf.optimal_return_matrix(mdp), 5000, seed)
    search = qf.max_quantile_policy(mdp, samples, eps=0.1, steps=8)
    exact, occupancy = qf.max_quantile_lp(mdp, samples)
    allowed, _ = qf.max_quantile_lp(mdp, samples - 0.15)
    assert exact - 2**-8 - 2**-14 <= search.level <= allowed + 2**-8
    returns = np.tensordot(mdp.R, occupancy, 2)
    assert (returns >= qf.quantile_targets(samples, exact) - 1e-6).all()
    program = qf.QuantileLP(mdp, samples)
    for q, result in search.trials:
        assert result.feasible or program.excess(q) < 1e-6
        if result.feasible:
            assert result.rounds == math.ceil(math.log(4) / 0.1**2)
            assert (result.returns >= qf.quantile_targets(samples, q) - 0.15).all()


def test_a_certificate_is_a_proof():
    mdp = grid(1)
    targets = np.full(3, 0.95)
    result = qf.fair_policy_mwu(mdp, targets)
    assert not result.feasible
    best = mdp.returns(mdp.optimal_policy(mdp.scalar_reward(result.certificate[:3])))
    assert result.certificate[:3] @ best < result.certificate[:3] @ targets
    egalitarian = np.tensordot(mdp.R, qf.egalitarian_lp(mdp), 2)
    assert qf.fair_policy_mwu(mdp, np.full(3, egalitarian.min() - 1e-3)).feasible
    assert not qf.fair_policy_mwu(mdp, np.full(3, egalitarian.min() + 0.1)).feasible


def test_welfare_is_reached_and_too_much_of_it_refused():
    mdp, eps = grid(2), 0.05
    samples = qf.sample_simplex_returns(qf.optimal_return_matrix(mdp), 5000, 0)
    targets = qf.quantile_targets(samples, 0.4)
    search = qf.max_welfare_policy(mdp, targets, eps, steps=4)
    assert search.level > targets.sum()
    assert (search.result.returns >= targets - 1.8 * eps).all()
    assert search.result.returns.sum() >= search.level - 1.5 * 3 * eps
    refused = qf.fair_policy_mwu(mdp, targets, 2.9, eps)
    assert not refused.feasible
    w, u = refused.certificate[:3], refused.certificate[3]
    best = mdp.returns(mdp.optimal_policy(mdp.scalar_reward(w + u)))
    assert w @ best + u * best.sum() < w @ targets + u * 2.9


def test_the_mixture_is_one_stationary_policy():
    mdp = grid(3)
    result = qf.fair_policy_mwu(mdp, np.full(3, 0.3), eps=0.1)
    np.testing.assert_allclose(np.tensordot(mdp.R, result.occupancy(mdp), 2), result.returns)
    np.testing.assert_allclose(mdp.returns(qf.stationary_policy(result.occupancy(mdp))), result.returns)
    np.testing.assert_allclose(result.weights.sum(axis=1), 1)


def test_agents_may_be_renamed():
    mdp, order = grid(4), np.array([2, 0, 1])
    renamed = processes.MultiObjectiveMDP(mdp.P, mdp.R[order], mdp.gamma, mdp.rho0)
    targets = np.array([0.2, 0.3, 0.4])
    one, other = qf.fair_policy_mwu(mdp, targets, eps=0.2), qf.fair_policy_mwu(renamed, targets[order], eps=0.2)
    np.testing.assert_allclose(other.returns, one.returns[order], atol=1e-9)


def test_a_process_without_any_table():
    # Policies are unit vectors of the plane, returns their (moved) coordinates: the best answer is the direction.
    disc = SimpleNamespace(shape=(2,), scalar_reward=lambda weights: weights)

    def best(weights):
        policy = weights / np.linalg.norm(weights)
        return policy, (policy + 1) / 2

    corner = (1 + 0.5**0.5) / 2
    assert qf.fair_policy_mwu(disc, np.full(2, corner - 1e-3), eps=0.1, oracle=best).feasible
    assert not qf.fair_policy_mwu(disc, np.full(2, corner + 1e-3), eps=0.1, oracle=best).feasible
    np.testing.assert_allclose(qf.optimal_return_matrix(disc, best), [[1, 0.5], [0.5, 1]])


def test_a_certificate_allows_for_the_gap_of_an_approximate_black_box():
    mdp = grid(1)
    targets = np.tensordot(mdp.R, qf.egalitarian_lp(mdp), 2) - 5e-3
    exact = learners.PolicyIteration(mdp)

    def lazy(reward):
        policy = exact(reward)
        return policy, mdp.returns(policy) - 0.03

    assert qf.fair_policy_mwu(mdp, targets, eps=0.1).feasible
    assert not qf.fair_policy_mwu(mdp, targets, eps=0.1, oracle=lazy).feasible
    assert qf.fair_policy_mwu(mdp, targets, eps=0.1, oracle=lazy, oracle_gap=0.03).feasible


def test_leximin_raises_the_second_worst_too():
    # One state, three actions: agents 0 and 1 share a resource, agent 2's return depends on the third action only.
    R = np.array([[[1.0, 0.0, 0.0]], [[0.0, 1.0, 0.0]], [[0.6, 0.9, 0.0]]])
    mdp = processes.MultiObjectiveMDP(np.ones((3, 1, 1)), R, 0.5, np.ones(1))
    assert np.tensordot(mdp.R, qf.egalitarian_lp(mdp), 2) == pytest.approx([0.5, 0.5, 0.75], abs=1e-5)


# Black boxes that only sample


def test_rollouts_agree_with_the_linear_solve():
    mdp = grid(0)
    simulator = learners.Simulator(mdp, np.random.default_rng(0))
    for policy in (mdp.optimal_policy(mdp.R[0]), np.full((16, 5), 0.2)):
        np.testing.assert_allclose(simulator.rollout_returns(policy, 20_000), mdp.returns(policy), atol=0.02)
    assert simulator.transitions == 2 * 20_000 * 60


def test_simulator_draws_from_the_table():
    mdp = random_mdp(6)
    simulator = learners.Simulator(mdp, np.random.default_rng(0))
    counts = np.bincount(simulator.step(np.full(40_000, 1), np.ones(40_000, dtype=int)), minlength=3) / 40_000
    np.testing.assert_allclose(counts, mdp.P[1, 1], atol=0.01)


def test_q_learning_comes_close_to_the_exact_black_box():
    mdp = grid(1)
    learner = qf.Counted(learners.make_oracle("q_learning", mdp, np.random.default_rng(0)))
    V = qf.optimal_return_matrix(mdp, learner)
    assert learner.calls == 3
    assert learner.seconds > 0
    np.testing.assert_allclose(V.diagonal(), 1, atol=0.05)


@pytest.mark.timeout(120)
def test_ppo_learns_on_a_tiny_budget():
    gymnasium = pytest.importorskip("gymnasium")
    pytest.importorskip("stable_baselines3")
    mdp = qf.normalised(processes.conflict_gridworld(2, 2, np.random.default_rng(0)))
    rng = np.random.default_rng(0)
    environment = learners.gymnasium_environment(learners.Simulator(mdp, rng), horizon=3)
    assert isinstance(environment, gymnasium.Env)
    assert environment.reset(seed=0)[0].sum() == 1
    assert [environment.step(0)[3] for _ in range(3)] == [False, False, True]
    learner = learners.make_oracle("ppo", mdp, rng, transitions=4096)
    policy, returns = learner(mdp.R[0])
    assert policy.shape == (4,)
    assert learner.simulator.transitions >= 4096
    assert returns[0] > mdp.returns(np.full((4, 5), 0.2))[0] + 0.1
    result = qf.fair_policy_mwu(mdp, np.full(2, 0.2), eps=0.9, oracle=learners.PPO(mdp, rng, 1024), oracle_gap=1.0)
    assert result.rounds == 2


# Numbers of welfare, instances


def test_gini_and_nash_by_hand():
    assert qf.gini([1.0, 1.0, 1.0]) == 0
    assert qf.gini([0.0, 0.0, 1.0]) == pytest.approx(2 / 3)
    assert qf.gini([10.0, 30.0]) == pytest.approx(qf.gini([1.0, 3.0]))
    assert qf.nash_welfare([1.0, 4.0]) == pytest.approx(2)
    assert qf.nash_welfare([0.0, 4.0]) == 0


def test_factory_moves_and_costs_by_enumeration():
    mdp = processes.factory_monitoring(2, 3, np.random.default_rng(0))
    again = processes.factory_monitoring(2, 3, np.random.default_rng(0), full_reset=True)
    assert mdp.shape == (3, 9, 3)
    state = {phases: index for index, phases in enumerate(itertools.product(range(3), repeat=2))}
    assert mdp.P[0, state[2, 2], state[1, 2]] == 1
    assert again.P[0, state[2, 2], state[0, 2]] == 1
    assert mdp.P[2, state[0, 0], [state[1, 1], state[0, 0], state[1, 0], state[0, 1]]].sum() == pytest.approx(1)
    assert 0.25 <= mdp.P[2, state[0, 0], state[1, 1]] <= 0.79**2
    assert (mdp.R[:, state[0, 0]] == [-1, -1, 0]).all()
    for agent in range(3):
        both = mdp.R[agent, state[2, 2], 2]
        assert both == pytest.approx((mdp.R[agent, state[2, 2], :2] + 1).sum())
        assert both <= -25


def test_random_policies_do_not_depend_on_the_chunk(monkeypatch):
    mdp = random_mdp(7)
    whole = qf.random_policy_returns(mdp, 50, np.random.default_rng(0))
    monkeypatch.setattr(qf, "CHUNK", 9 * 7)
    np.testing.assert_allclose(qf.random_policy_returns(mdp, 50, np.random.default_rng(0)), whole)
    low, high = mdp.returns(all_policies(mdp)).min(axis=0), mdp.returns(all_policies(mdp)).max(axis=0)
    assert ((whole >= low) & (whole <= high)).all()


def test_the_lock_opens_for_one_policy():
    mdp = processes.combination_lock(5, np.random.default_rng(0))
    returns = mdp.returns(all_policies(mdp))[:, 0]
    assert (returns > 1e-12).sum() == 2  # the last state's action does not matter
    assert returns.max() == pytest.approx(0.1 * 0.9**4 / (1 - 0.9**5))


# Bad input

GOOD = random_mdp()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"P": np.ones((2, 3))}, r"\[actions, states, states\]"),
        ({"P": GOOD.P * 0.9}, "sum to 1"),
        ({"P": np.where(np.arange(3) == 0, -0.1, 0.55) * np.ones((2, 3, 1))}, "sum to 1"),
        ({"P": np.full((2, 3, 3), np.nan)}, "NaN"),
        ({"R": GOOD.R[0]}, r"\[agents, 3, 2\]"),
        ({"R": GOOD.R[:, :2]}, r"\[agents, 3, 2\]"),
        ({"R": GOOD.R[:0]}, r"\[agents, 3, 2\]"),
        ({"R": GOOD.R * np.nan}, "NaN"),
        ({"rho0": np.ones(2) / 2}, "3 states"),
        ({"rho0": np.ones(3)}, "rho0 must be probabilities"),
        ({"gamma": 1.0}, "gamma"),
    ],
)
def test_a_bad_process_is_refused_in_one_sentence(change, message):
    parts = {"P": GOOD.P, "R": GOOD.R, "gamma": GOOD.gamma, "rho0": GOOD.rho0} | change
    with pytest.raises(ValueError, match=message):
        processes.MultiObjectiveMDP(**parts)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: GOOD.returns(np.array([0, 1])), "3 numbers below 2"),
        (lambda: GOOD.returns(np.array([0, 1, 2])), "3 numbers below 2"),
        (lambda: GOOD.returns(np.full((3, 2), 0.4)), "sum to 1"),
        (lambda: GOOD.optimal_policy(np.ones((2, 3))), "scalar reward"),
        (lambda: GOOD.optimal_policy(np.full((3, 2), np.nan)), "scalar reward"),
        (lambda: qf.fair_policy_mwu(GOOD, np.ones(3)), "2 finite returns"),
        (lambda: qf.fair_policy_mwu(GOOD, np.array([0.5, np.nan])), "2 finite returns"),
        (lambda: qf.fair_policy_mwu(GOOD, np.ones(2), eps=0.0), "eps must lie"),
        (lambda: qf.fair_policy_mwu(GOOD, np.zeros(2), oracle=lambda r: (np.zeros(3, int), np.ones(3))), "black box"),
        (lambda: qf.sample_simplex_returns(np.ones(3), 5, 0), "finite .policies, agents. matrix"),
        (lambda: qf.sample_simplex_returns(np.full((2, 2), np.nan), 5, 0), "NaN"),
        (lambda: qf.sample_simplex_returns(np.eye(2), 0, 0), "at least 1 sample"),
        (lambda: qf.simplex_linear_cdf([1.0], 0.5), "two finite numbers"),
        (lambda: qf.quantile_targets(np.ones((5, 2)), 1.2), "choose q"),
        (lambda: qf.quantile_targets(np.ones(5), 0.5), "samples must be"),
        (lambda: qf.max_quantile_policy(GOOD, np.ones((5, 3))), "samples must be"),
        (lambda: qf.max_quantile_policy(GOOD, np.full((5, 2), 9.0), eps=0.3), "even the lowest level"),
        (lambda: qf.max_quantile_lp(GOOD, np.full((5, 2), 9.0)), "even the lowest level"),
        (lambda: qf.gini([-1.0, 2.0]), "negative"),
        (lambda: qf.nash_welfare([]), "one an agent"),
        (lambda: processes.conflict_gridworld(2, 5, np.random.default_rng(0)), "5 agents need"),
        (lambda: learners.make_oracle("qlearning", GOOD, np.random.default_rng(0)), "did you mean 'q_learning'"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_an_infeasible_quantile_is_certified_not_answered():
    mdp = grid(0)
    samples = qf.sample_simplex_returns(qf.optimal_return_matrix(mdp), 1000, 0)
    result = qf.fair_policy_mwu(mdp, qf.quantile_targets(samples, 1.0))
    assert not result.feasible
    assert result.certificate is not None


def test_unnormalised_returns_and_indifferent_agents_are_refused():
    scaled = processes.MultiObjectiveMDP(GOOD.P, GOOD.R * 50, GOOD.gamma, GOOD.rho0)
    with pytest.raises(ValueError, match="use normalised"):
        qf.fair_policy_mwu(scaled, np.full(2, 0.5), eps=0.3)
    with pytest.raises(ValueError, match="same return from every policy"):
        qf.normalised(processes.MultiObjectiveMDP(GOOD.P, np.ones((2, 3, 2)), GOOD.gamma, GOOD.rho0))


def test_parameters_refuse_unknown_names():
    with pytest.raises(ValidationError, match="did you mean 'ppo'"):
        qf.Parameters(oracle="pppo")


# The exact claims can fail


def contradictions(mdp, samples, search, eps) -> int:
    program = qf.QuantileLP(mdp, samples)
    rejected = sum(program.excess(q) > 1e-6 for q, result in search.trials if not result.feasible)
    return rejected + (search.level > qf.max_quantile_lp(mdp, samples - 1.5 * eps)[0] + 2**-8)


@pytest.mark.mutation("C1")
def test_the_misread_weighted_reward_contradicts_the_linear_program(monkeypatch):
    mdp = grid(0)
    samples = qf.sample_simplex_returns(qf.optimal_return_matrix(mdp), 5000, 0)
    assert contradictions(mdp, samples, qf.max_quantile_policy(mdp, samples, 0.1, 8), 0.1) == 0

    def misread(self, weights):  # (sum_i w_i + u) sum_i R_i in place of sum_i (w_i + u) R_i
        return weights.sum() * self.R.sum(axis=0)

    with monkeypatch.context() as patch:
        patch.setattr(processes.MultiObjectiveMDP, "scalar_reward", misread)
        search = qf.max_quantile_policy(mdp, samples, 0.1, 8)
    assert contradictions(mdp, samples, search, 0.1) > 0


@pytest.mark.mutation("C2")
def test_normalised_uniform_weights_are_not_uniform_on_the_simplex():
    V = np.array([[1.0, 0.2, 0.1], [0.3, 1.0, 0.0], [0.15, 0.4, 1.0]])
    samples = qf.sample_simplex_returns(V, 100_000, 0)
    beta = np.random.default_rng(0).random((100_000, 3))
    mutant = beta / beta.sum(axis=1, keepdims=True) @ V
    for j in range(3):
        assert ks_distance(samples[:, j], lambda t, j=j: qf.simplex_linear_cdf(V[:, j], t)) < KS_1_PERCENT
        assert ks_distance(mutant[:, j], lambda t, j=j: qf.simplex_linear_cdf(V[:, j], t)) > 10


@pytest.mark.mutation("C3")
@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_an_uneven_mixture_breaks_the_guarantee_that_the_even_one_keeps(n):
    rng, bound = np.random.default_rng(n), (1 - 1 / n) ** (n - 1)
    tight = 1 - np.roll(np.eye(n), 1, axis=0)  # one policy fails each agent, the others are best
    cases = [tight, *np.maximum(rng.random((30, n, n)), np.eye(n))]

    def worst(mixture):
        return min(float(qf.simplex_linear_cdf(V[:, j], mixture @ V[:, j])) - bound for V in cases for j in range(n))

    even = np.full(n, 1 / n)
    assert worst(even) >= -1e-9
    assert worst(even) == pytest.approx(0, abs=1e-9)  # attained
    assert worst(0.8 * even + 0.2 * np.eye(n)[0]) < -0.01


@pytest.mark.mutation("C4")
def test_a_tolerance_in_raw_returns_breaks_the_invariance():
    mdp, a, b = grid(2), np.array([1.0, 7.0, 0.2]), np.array([0.0, 3.0, -1.0])
    moved = processes.MultiObjectiveMDP(mdp.P, a[:, None, None] * mdp.R + b[:, None, None], mdp.gamma, mdp.rho0)
    V = qf.optimal_return_matrix(mdp)
    samples, scaled = qf.sample_simplex_returns(V, 5000, 1), qf.sample_simplex_returns(V * a + b, 5000, 1)
    np.testing.assert_allclose(scaled, samples * a + b)
    q = qf.max_quantile_lp(mdp, samples)[0]
    assert abs(qf.max_quantile_lp(moved, scaled)[0] - q) <= 1e-9
    short = qf.max_quantile_lp(mdp, samples - 0.1)[0]  # a tolerance in raw returns
    assert abs(qf.max_quantile_lp(moved, scaled - 0.1)[0] - short) > 1e-3


@pytest.mark.mutation("C4b")
def test_a_common_unit_moves_neither_sum_nor_leximin():
    mdp = grid(2)

    def change(a) -> float:
        scaled = processes.MultiObjectiveMDP(mdp.P, a[:, None, None] * mdp.R, mdp.gamma, mdp.rho0)
        rules = (qf.utilitarian_lp, qf.egalitarian_lp)
        return min(np.abs(((rule(scaled) - rule(mdp)) * mdp.R).sum(axis=(1, 2))).max() for rule in rules)

    assert change(np.geomspace(0.1, 10, 3)) >= 0.01
    assert change(np.full(3, 10.0)) < 0.01
