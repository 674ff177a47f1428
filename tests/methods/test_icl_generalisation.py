"""Twin runs, discrepancy, floors and side-by-side training, against closed forms, loops and SciPy."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy.optimize import minimize
from tiny_models import INNER, WIDTH, tiny_decoder
from torch import Tensor, nn
from torch.func import functional_call
from transformers import PreTrainedModel

import lib.methods.icl_generalisation as icl
from lib.substrates.tail import DecoderTail, tail_states

PROMPT, LENGTH = 5, 9


def small_transformer() -> nn.Module:
    return icl.InContextTransformer(2, LENGTH - 1, n_layer=2, n_head=2, n_embd=8)


def sequences(n: int, seed: int = 0, **options: object) -> Tensor:
    rng = np.random.default_rng(seed)
    return torch.tensor(icl.linear_dynamics(n, LENGTH, 2, rng=rng, **options)[0])  # type: ignore[arg-type]


def double_states(seeds: list[int]) -> dict[str, Tensor]:
    return {name: value.double() for name, value in icl.initial_states(small_transformer, seeds).items()}


def twins(rate: float = 0.1, steps: int = 12) -> icl.StabilityTrace:
    """Two training sets of 12 samples, three twins each."""
    losses = icl.answer_losses(small_transformer(), PROMPT)
    offset = torch.tensor([0, 12])[:, None]
    batches = icl.draw_batches([12, 12], 4, steps, torch.Generator().manual_seed(1)) + offset[..., None]
    replaced, copies = torch.tensor([[0, 3, 11], [2, 5, 7]]) + offset, torch.arange(24, 30).view(2, 3)
    data = (sequences(40),)
    rates = icl.poly_step_size(rate, 0.25, steps)
    return icl.twin_sgd(losses, double_states([3, 4]), data, batches, rates, replaced, copies, torch.arange(30, 40))


# The checks of the exact claims, as the notebook makes them; the mutation tests see them fail.


def recursion_excess() -> float:
    trace = twins()
    return float(max(trace.excess().max(), (trace.divergence - trace.bound).max()))


def identity_error() -> float:
    rng = np.random.default_rng(2)
    train, target, q = rng.random((30, 4)), rng.random(4), rng.dirichlet(np.ones(30))
    return abs(target.mean() - sum(q[i] * train[i].mean() for i in range(30)) - icl.discrepancy(train, target, q))


def closed_form_error() -> float:
    A, M, noise = np.array([[0.8, -0.5], [0.3, 0.6]]), np.array([[0.5, -0.1], [0.0, 0.9]]), 0.3
    rng = np.random.default_rng(3)
    c, errors = rng.standard_normal((100_000, 2)), []
    for _ in range(6):
        following = c @ A.T + noise * rng.standard_normal(c.shape)
        errors.append(((following - c @ M.T) ** 2).mean())
        c = following
    return float(np.abs(np.array(errors) / icl.linear_predictor_risk(A, M, noise, 7) - 1).max())


def oracle_z(noise: float = 0.2) -> float:
    """Largest distance of the oracle's simulated error from the floor, in standard errors."""
    rng = np.random.default_rng(4)
    drawn, A = icl.linear_dynamics(4000, LENGTH, 2, kind="random_radius", radius=0.9, noise=noise, rng=rng)
    error = icl.autoregressive_risk(lambda h: h @ torch.tensor(A).mT, torch.tensor(drawn), PROMPT, "self").numpy()
    floor = icl.rollout_floor(A, noise, LENGTH - PROMPT)
    return float((np.abs(error.mean(0) - floor) / (error.std(0) / len(A) ** 0.5)).max())


def threshold_error() -> float:
    alpha = np.linspace(0.01, 1, 200)
    threshold = icl.smoothness_threshold(alpha)
    low, high, _ = icl.stability_exponents(alpha, threshold)
    return float(max(np.abs(threshold - np.maximum(1, (1 - alpha) / alpha)).max(), np.abs(low - high).max()))


def test_exact_claims_hold() -> None:
    assert recursion_excess() <= 1e-9
    assert identity_error() <= 1e-10
    assert closed_form_error() <= 0.02
    assert oracle_z() <= 4
    assert threshold_error() <= 1e-12


@pytest.mark.mutation("C1")
def test_without_its_last_term_the_recursion_is_violated() -> None:
    assert twins().excess(source=False).max() > 0.1


@pytest.mark.mutation("C1")
def test_a_correction_that_swaps_nothing_breaks_the_recursion(monkeypatch: pytest.MonkeyPatch) -> None:
    take = icl._take
    monkeypatch.setattr(icl, "_take", lambda data, index: take(data, 0 * index if index.shape[-1] == 2 else index))
    assert recursion_excess() > 0.1


@pytest.mark.mutation("C2a")
def test_a_discrepancy_of_the_wrong_sign_breaks_the_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    original = icl.discrepancy
    monkeypatch.setattr(icl, "discrepancy", lambda *parts: -original(*parts))
    assert identity_error() > 0.01


@pytest.mark.mutation("C2b")
def test_a_stationary_covariance_breaks_the_closed_form(monkeypatch: pytest.MonkeyPatch) -> None:
    original = icl.linear_predictor_risk
    monkeypatch.setattr(
        icl, "linear_predictor_risk", lambda A, M, noise, length: np.repeat(original(A, M, noise, 2), length - 1)
    )
    assert closed_form_error() > 0.02


@pytest.mark.mutation("C3a", "C3b")
def test_a_floor_one_step_late_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A floor one step late lies above the oracle, so that the best possible predictor would be below it."""
    original = icl.rollout_floor
    monkeypatch.setattr(icl, "rollout_floor", lambda A, noise, steps: original(A, noise, steps + 1)[1:])
    assert oracle_z() > 10


@pytest.mark.mutation("C9")
def test_another_root_breaks_the_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(icl, "smoothness_threshold", lambda a: (1 + np.sqrt(np.abs(1 - 4 * a * (1 - a)))) / a)
    assert threshold_error() > 0.1


# Data


@pytest.mark.parametrize(("kind", "dim"), [("rotation", 2), ("rotation", 6), ("random_radius", 3)])
def test_transitions_have_their_radius_and_carry_the_sequence(kind: str, dim: int) -> None:
    drawn, A = icl.linear_dynamics(50, 40, dim, kind=kind, radius=0.9, noise=1e-6, rng=np.random.default_rng(0))
    np.testing.assert_allclose(np.abs(np.linalg.eigvals(A)).max(-1), 0.9)
    np.testing.assert_allclose(drawn[:, 1:], np.einsum("nij,ntj->nti", A, drawn[:, :-1]), atol=1e-4)
    if kind == "rotation":
        np.testing.assert_allclose(A @ A.mT, np.broadcast_to(0.81 * np.eye(dim), A.shape), atol=1e-12)
        angles = np.abs(np.angle(np.linalg.eigvals(A)))
        assert angles.min() >= 0.3
        assert angles.max() <= 1.2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 0}, "at least 1"),
        ({"noise": -0.1}, "positive"),
        ({"noise": np.nan}, "positive"),
        ({"dim": 3}, "even"),
        ({"kind": "chaotic"}, "rotation or random_radius"),
    ],
)
def test_impossible_dynamics_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        icl.linear_dynamics(**{"n": 2, "length": 5, "dim": 2, "rng": np.random.default_rng(0), **options})  # type: ignore[arg-type]


# Models and risks


def test_the_transformer_is_causal_and_treats_sequences_one_by_one() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = small_transformer().double()
    x = sequences(3)[:, :-1]
    changed = x.clone()
    changed[:, 4:] += 1
    torch.testing.assert_close(model(changed)[:, :4], model(x)[:, :4])
    assert (model(changed)[:, 4:] - model(x)[:, 4:]).abs().min() > 0
    torch.testing.assert_close(model(x)[1:2], model(x[1:2]))
    with pytest.raises(ValueError, match="positions for 8"):
        model(sequences(1))
    with pytest.raises(ValueError, match="multiple of n_head"):
        icl.InContextTransformer(2, 8, n_head=3, n_embd=8)


def test_stacked_models_are_the_single_models() -> None:
    states, x = double_states([1, 2, 3]), sequences(4)
    module = small_transformer()
    together = icl.autoregressive_risk(icl.stacked_predictor(module, states), x, PROMPT, "self")
    for run in range(3):
        state = {name: value[run] for name, value in states.items()}
        alone = icl.autoregressive_risk(lambda h, s=state: functional_call(module, s, (h,)), x, PROMPT, "self")  # type: ignore[misc]
        torch.testing.assert_close(together[run], alone)


def test_self_fed_risk_by_hand() -> None:
    """Halving 8, 4, 2, ... against a predictor that quarters."""
    x = torch.tensor([8.0, 4, 2, 1, 0.5]).view(1, 5, 1)
    teacher = icl.autoregressive_risk(lambda h: h / 4, x, 2)
    own = icl.autoregressive_risk(lambda h: h / 4, x, 2, "self")
    torch.testing.assert_close(teacher[0], torch.tensor([1.0, 0.25, 0.0625]))
    torch.testing.assert_close(own[0], torch.tensor([1.0, 0.75**2, (0.5 - 1 / 16) ** 2]))


@pytest.mark.parametrize("prompt_len", [0, -1, LENGTH, 99])
def test_a_prompt_length_out_of_range_is_refused(prompt_len: int) -> None:
    with pytest.raises(ValueError, match="1 <= prompt_len < l"):
        icl.autoregressive_risk(lambda h: h, sequences(2), prompt_len)


def test_a_wrong_shape_or_mode_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\(n, l, d\)"):
        icl.autoregressive_risk(lambda h: h, sequences(2)[0], PROMPT)
    with pytest.raises(ValueError, match="teacher or self"):
        icl.autoregressive_risk(lambda h: h, sequences(2), PROMPT, "free")


@pytest.mark.parametrize("order", [1, 2, 3])
def test_least_squares_recovers_noiseless_dynamics(order: int) -> None:
    x = sequences(6, noise=1e-9)
    risk = icl.autoregressive_risk(icl.least_squares_predictor(x[:, :PROMPT], order, 1e-10), x, PROMPT, "self")
    assert risk.max() < 1e-6
    with pytest.raises(ValueError, match="order"):
        icl.least_squares_predictor(x[:, :PROMPT], PROMPT)


@given(seed=st.integers(0, 100), angle=st.floats(0, 3))
@settings(max_examples=20, deadline=None)
def test_least_squares_turns_with_its_data(seed: int, angle: float) -> None:
    turn = torch.tensor([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    x = sequences(3, seed)
    turned = x @ turn.T
    first, second = (
        icl.autoregressive_risk(icl.least_squares_predictor(y[:, :PROMPT]), y, PROMPT) for y in (x, turned)
    )
    torch.testing.assert_close(first, second)


# Training


def test_batches_have_no_sample_twice_and_stay_in_their_sets() -> None:
    batches = icl.draw_batches([7, 12], 7, 50, torch.Generator().manual_seed(0))
    assert batches.shape == (2, 50, 7)
    assert all(len(set(row)) == 7 for row in batches.flatten(0, 1).tolist())
    assert batches[0].max() == 6
    assert set(batches[1].flatten().tolist()) == set(range(12))


def test_a_batch_larger_than_the_data_is_refused() -> None:
    with pytest.raises(ValueError, match="a batch of 8 is larger than the training set of 7"):
        icl.draw_batches([12, 7], 8, 5, torch.Generator())
    with pytest.raises(ValueError, match="at least"):
        icl.draw_batches([], 8, 5, torch.Generator())


def run_sgd(rate: float = 0.05, data: Tensor | None = None, **options: object) -> tuple[dict[str, Tensor], np.ndarray]:
    losses = icl.answer_losses(small_transformer(), PROMPT)
    batches = options.pop("batches", icl.draw_batches([10, 20], 5, 12, torch.Generator().manual_seed(0)))
    pool = sequences(20) if data is None else data
    rates = icl.poly_step_size(rate, 0.25, 12)
    return icl.train_side_by_side(losses, double_states([5, 6]), (pool,), batches, rates, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_side_by_side_is_one_after_the_other(optimizer: str) -> None:
    trained, _ = run_sgd(optimizer=optimizer)
    batches = icl.draw_batches([10, 20], 5, 12, torch.Generator().manual_seed(0))
    x, module = sequences(20), small_transformer().double()
    for run in range(2):
        module.load_state_dict({name: value[run] for name, value in double_states([5, 6]).items()})
        descent = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[optimizer](module.parameters(), lr=1.0)
        for step, rate in enumerate(icl.poly_step_size(0.05, 0.25, 12)):
            descent.param_groups[0]["lr"] = rate
            descent.zero_grad()
            icl.autoregressive_risk(module, x[batches[run, step]], PROMPT).mean().backward()
            descent.step()
        for name, value in module.named_parameters():
            torch.testing.assert_close(trained[name][run], value.detach(), rtol=1e-9, atol=1e-9)


def test_emphasis_weighs_samples() -> None:
    batches = icl.draw_batches([10, 20], 5, 12, torch.Generator().manual_seed(0))
    uniform, trace = run_sgd()
    ones, same = run_sgd(emphasis=torch.ones(batches.shape))
    frozen, _ = run_sgd(emphasis=torch.zeros(batches.shape))
    for name, first in double_states([5, 6]).items():
        torch.testing.assert_close(uniform[name], ones[name])
        torch.testing.assert_close(frozen[name], first)
    np.testing.assert_allclose(trace, same)
    assert trace.shape == (2, 12)


def test_a_diverging_step_is_reported_with_its_step() -> None:
    with pytest.raises(FloatingPointError, match=r"diverged at step \d+: .* step size"):
        run_sgd(rate=100.0)
    with pytest.raises(FloatingPointError, match=r"diverged at step \d+"):
        twins(rate=100.0)


def broken(data: Tensor) -> Tensor:
    data = data.clone()
    data[3, 2, 0] = torch.nan
    return data


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda: run_sgd(data=broken(sequences(20))), "finite"),
        (lambda: run_sgd(data=sequences(15)), "outside the 15 samples"),
        (lambda: run_sgd(batches=torch.zeros(3, 12, 5, dtype=torch.long)), "one for each of the 3 runs"),
        (lambda: run_sgd(batches=torch.zeros(2, 11, 5, dtype=torch.long)), "one rate a step"),
        (lambda: run_sgd(emphasis=torch.ones(2, 5)), "shape"),
        (lambda: run_sgd(optimizer="newton"), "sgd or adam"),
    ],
)
def test_bad_input_to_training_is_refused(change: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        change()


@pytest.mark.parametrize("arguments", [(0.0, 0.5, 3), (np.inf, 0.5, 3), (0.1, -1, 3), (0.1, 0.5, 0)])
def test_step_sizes(arguments: tuple[float, float, int]) -> None:
    np.testing.assert_allclose(icl.poly_step_size(1.0, 1.0, 4), [1, 1 / 2, 1 / 3, 1 / 4])
    with pytest.raises(ValueError, match="eta0"):
        icl.poly_step_size(*arguments)


# Twins


def test_twins_against_two_plain_runs() -> None:
    """Divergence, smoothness and perturbation of one pair, written out with full batches and autograd."""
    trace, x = twins(), sequences(40)
    losses = icl.answer_losses(small_transformer(), PROMPT)
    batches = icl.draw_batches([12, 12], 4, 12, torch.Generator().manual_seed(1))[1] + 12
    sample, copy = 17, 28  # the second pair of the second training set
    first = {name: value[1] for name, value in double_states([3, 4]).items()}
    one, other = first, first

    def gradient(state: dict[str, Tensor], index: Tensor) -> Tensor:
        grads = torch.func.grad(lambda s: losses(s, (x[index],)).mean())(state)
        return torch.cat([value.flatten() for value in grads.values()])

    def move(state: dict[str, Tensor], index: Tensor, rate: float) -> dict[str, Tensor]:
        flat = gradient(state, index)
        parts = flat.split([value.numel() for value in state.values()])
        return {name: v - rate * g.view_as(v) for (name, v), g in zip(state.items(), parts, strict=True)}

    for step, rate in enumerate(trace.rates):
        batch = batches[step]
        swapped = torch.where(batch == sample, copy, batch)
        gap = torch.cat([(one[name] - other[name]).flatten() for name in one]).norm()
        assert abs(trace.divergence[1, 1, step] - float(gap)) < 1e-10
        expansion = (gradient(one, batch) - gradient(other, batch)).norm()
        assert abs(trace.smoothness[1, 1, step] * float(gap) - float(expansion if gap > 0 else 0)) < 1e-9
        perturbation = (gradient(other, batch) - gradient(other, swapped)).norm()
        assert abs(trace.perturbation[1, 1, step] - float(perturbation)) < 1e-9
        one, other = move(one, batch, rate), move(other, swapped, rate)
    change = losses(one, (x[30:],)).mean(-1) - losses(other, (x[30:],)).mean(-1)
    assert abs(trace.loss_gap[1, 1] - float(change.abs().mean())) < 1e-10


def test_a_sample_replaced_by_itself_changes_nothing() -> None:
    losses = icl.answer_losses(small_transformer(), PROMPT)
    batches = icl.draw_batches([10], 10, 5, torch.Generator().manual_seed(0))
    same = torch.tensor([[0, 4]])
    trace = icl.twin_sgd(losses, double_states([1]), (sequences(10),), batches, [0.1] * 5, same, same, torch.arange(10))
    assert trace.divergence.max() < 1e-14
    assert trace.bound.max() < 1e-12
    assert trace.loss_gap.max() < 1e-14


def test_twins_of_mismatched_shapes_are_refused() -> None:
    losses = icl.answer_losses(small_transformer(), PROMPT)
    batches = icl.draw_batches([10], 4, 5, torch.Generator().manual_seed(0))
    arguments = (losses, double_states([1]), (sequences(10),), batches, [0.1] * 5)
    with pytest.raises(ValueError, match=r"\(R, P\)"):
        icl.twin_sgd(*arguments, torch.tensor([[0, 4]]), torch.tensor([[0]]), torch.arange(10))


# Discrepancy and weights


@pytest.mark.parametrize(
    ("train", "target", "weights", "message"),
    [
        (np.ones((3, 2)), np.ones(3), np.ones(3) / 3, r"\(N, c\)"),
        (np.ones((0, 2)), np.ones(2), np.ones(0), r"\(N, c\)"),
        (np.full((3, 2), np.nan), np.ones(2), np.ones(3) / 3, "finite"),
        (np.ones((3, 2)), np.ones(2), np.ones(4) / 4, "3 finite numbers"),
        (np.ones((3, 2)), np.ones(2), np.array([1.0, 1, -1]), "none negative"),
    ],
)
def test_bad_input_to_the_discrepancy_is_refused(
    train: np.ndarray, target: np.ndarray, weights: np.ndarray, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        icl.discrepancy(train, target, weights)


@given(seed=st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_the_discrepancy_does_not_mind_the_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    train, target, q = rng.random((8, 3)), rng.random(3), rng.dirichlet(np.ones(8))
    order = rng.permutation(8)
    assert np.isclose(icl.discrepancy(train, target, q), icl.discrepancy(train[order], target, q[order]))
    assert np.isclose(2 * icl.discrepancy(train, target, q), icl.discrepancy(2 * train, 2 * target, q))


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=12))
def test_the_projection_is_on_the_simplex_and_nearest(point: list[float]) -> None:
    x = np.array(point)
    nearest = icl.simplex_projection(x)
    assert abs(nearest.sum() - 1) < 1e-9
    assert nearest.min() >= 0
    for corner in np.eye(len(x)):
        assert (x - nearest) @ (corner - nearest) <= 1e-8  # the variational inequality at every vertex


@pytest.mark.parametrize(("lam1", "lam2"), [(0.0, 0.02), (0.1, 0.0), (0.05, 0.3)])
def test_weights_against_scipy(lam1: float, lam2: float) -> None:
    rng = np.random.default_rng(7)
    train, target, anchor = rng.random((9, 3)), rng.random(3) + 0.3, rng.dirichlet(np.ones(9))

    def objective(q: np.ndarray) -> float:
        mismatch = ((target - q @ train) ** 2).mean()
        return float(mismatch + lam1 * ((anchor - q) ** 2).sum() + lam2 * (q**2).sum())

    constraint = {"type": "eq", "fun": lambda q: q.sum() - 1}
    best = minimize(
        objective, anchor, bounds=[(0, 1)] * 9, constraints=constraint, tol=1e-14, options={"maxiter": 1000}
    )
    q = icl.align_weights(train, target, lam1, lam2, anchor)
    np.testing.assert_allclose(q, best.x, atol=2e-4)
    assert objective(q) <= best.fun + 1e-10


def test_weights_lean_on_the_domain_of_the_target() -> None:
    train = np.r_[np.full((4, 2), 1.0), np.full((12, 2), 0.1)]
    q = icl.align_weights(train, np.ones(2), 0.0, 1e-6)
    np.testing.assert_allclose(q[:4], 0.25, atol=1e-3)
    even = icl.align_weights(train, np.ones(2), 0.0, 1e6)
    np.testing.assert_allclose(even, 1 / 16, atol=1e-4)


@pytest.mark.parametrize("penalties", [(0.0, 0.0), (-1.0, 2.0), (0.1, np.inf), (np.nan, 1.0)])
def test_impossible_penalties_and_anchors_are_refused(penalties: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="lam1 and lam2"):
        icl.align_weights(np.ones((3, 2)), np.ones(2), *penalties)
    with pytest.raises(ValueError, match="anchor"):
        icl.align_weights(np.ones((3, 2)), np.ones(2), 1, 1, np.ones(2))


# Floors and exponents


def test_floors_of_rotations_and_by_covariances() -> None:
    _, turns = icl.linear_dynamics(5, 3, 4, rng=np.random.default_rng(0))
    np.testing.assert_allclose(icl.rollout_floor(turns, 0.3, 6), 0.09 * np.arange(1, 7))
    A, covariance, expected = np.array([[0.5, 1.0], [0.0, 0.7]]), np.zeros((2, 2)), []
    for _ in range(6):
        covariance = A @ covariance @ A.T + 0.09 * np.eye(2)
        expected.append(np.trace(covariance) / 2)
    np.testing.assert_allclose(icl.rollout_floor(A, 0.3, 6), expected)


@pytest.mark.parametrize("transition", [np.ones((2, 3)), np.array([[np.nan]]), np.ones(3)])
def test_floors_need_square_finite_transitions(transition: np.ndarray) -> None:
    with pytest.raises(ValueError, match="square"):
        icl.rollout_floor(transition, 0.1, 3)
    with pytest.raises(ValueError, match=r"\(d, d\)"):
        icl.linear_predictor_risk(np.ones((2, 3)), np.ones((2, 3)), 0.1, 3)


def test_the_risk_of_the_true_matrix_is_the_noise() -> None:
    A = np.array([[0.5, 1.0], [0.0, 0.7]])
    np.testing.assert_allclose(icl.linear_predictor_risk(A, A, 0.3, 5), 0.09)
    np.testing.assert_allclose(icl.linear_predictor_risk(A, 0 * A, 0.3, 2), 0.09 + np.trace(A @ A.T) / 2)


@pytest.mark.parametrize("alpha", [0.0, -0.1, 1.1, np.nan])
def test_the_threshold_needs_a_decay_in_its_range(alpha: float) -> None:
    with pytest.raises(ValueError, match="alpha"):
        icl.smoothness_threshold(alpha)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"train_sizes": [16, 32], "twin_sizes": [16, 64]}, "largest of train_sizes, 32"),
        ({"test_size": 40, "stability_pairs": 10}, "raise test_size to 60"),
    ],
)
def test_parameters_that_do_not_fit_together(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        icl.Parameters(**values)  # type: ignore[arg-type]


# A language model's last blocks, on a tiny random Llama that the notebook never saw


@pytest.fixture(scope="module")
def llama() -> PreTrainedModel:
    return tiny_decoder(vocabulary=40, context=32)


def word_samples(llama: PreTrainedModel, n: int = 8) -> icl.Samples:
    tokens = torch.randint(1, 40, (n, 9), generator=torch.Generator().manual_seed(0))
    position = 8 - torch.arange(n) % 5  # the rest is padding
    return *tail_states(llama, tokens, 2), position, torch.tensor([0, 1] * (n // 2))


def test_word_losses_are_cross_entropies_over_the_words(llama: PreTrainedModel) -> None:
    tail, samples = DecoderTail(llama, 2, 2, torch.Generator().manual_seed(0), [3, 7]), word_samples(llama)
    values = icl.word_losses(tail)({}, samples)
    expected = nn.functional.cross_entropy(tail(*samples[:3]), samples[3], reduction="none")
    torch.testing.assert_close(values, expected[:, None])


def test_only_the_updates_are_trained_and_each_run_apart(llama: PreTrainedModel) -> None:
    def build() -> DecoderTail:
        return DecoderTail(llama, 2, 2, torch.default_generator, [3, 7])

    tail, data = build(), word_samples(llama)
    states = icl.initial_states(build, [1, 2])
    assert sum(value[0].numel() for value in states.values()) == 2 * 2 * (WIDTH + WIDTH + INNER + WIDTH)
    batches = icl.draw_batches([8, 8], 4, 30, torch.Generator().manual_seed(0))
    trained, trace = icl.train_side_by_side(icl.word_losses(tail), states, data, batches, [0.03] * 30, optimizer="adam")
    assert (trace[:, -5:].mean(-1) < trace[:, :5].mean(-1)).all()
    one = {name: value[:1] for name, value in states.items()}
    alone, _ = icl.train_side_by_side(icl.word_losses(tail), one, data, batches[:1], [0.03] * 30, optimizer="adam")
    for name, value in alone.items():
        torch.testing.assert_close(value[0], trained[name][0], rtol=1e-3, atol=1e-4)
