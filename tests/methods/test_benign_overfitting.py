"""Leaky ReLU networks in sample space, against fractions by hand, autograd, SciPy, scikit-learn and the bounds."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy.optimize import nnls
from scipy.stats import norm
from sklearn.svm import SVC

import lib.methods.benign_overfitting as bo

NET = bo.LeakyReLUNet(width=6, leak=0.2, positive_fraction=0.5)


def strong_data(runs: int = 3, n: int = 12) -> tuple[bo.SampleSpace, bo.Initialisation]:
    """Positively correlated data and a small start."""
    rng = np.random.default_rng(3)
    space = bo.Mixture().grid(n, [300], [15.0], runs, rng)[:, 0, 0]
    return space, bo.Initialisation.draw(space, NET, 300, 1e-6, rng)


def train(space: bo.SampleSpace, start: bo.Initialisation, steps: int = 60, **options: object) -> bo.Trajectory:
    step = np.minimum(1e-3, bo.stable_step(NET.kernel(space)))
    return bo.gradient_descent(space, NET, start, step, [0, 1, 2, 10, steps], **{"normalized": True, **options})


def explicit(
    seed: int = 5, n: int = 9, dim: int = 25, signal: float = 1.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    X, y, mean = bo.Mixture().draw(n, dim, signal, 1, np.random.default_rng(seed))
    return X[0], y[0], mean


# The checks of the exact claims, as the notebook makes them; the mutation tests see them fail.


def least_activation() -> float:
    space, start = strong_data()
    path = train(space, start)
    assert (space.correlation_conditions()[0] >= 0).all()
    assert (bo.activation_headroom(space, start, np.abs(path.coefficients[1])) < 1).all()
    return float(path.least_activation.min())


def bound_excess(steps: int = 60) -> float:
    space, start = strong_data()
    path, direction, kernel = train(space, start, steps), bo.max_margin_direction(space, NET), NET.kernel(space)
    step = np.minimum(1e-3, bo.stable_step(kernel))
    bound = bo.direction_bound(kernel, direction.margin, path.norm[1], step, path.steps[2:])
    deficit = 1 - path.margin / direction.margin
    return float(max((1 - path.cosine(direction) - deficit)[1:].max(), (deficit[2:] - bound).max()))


def boundary_disagreements() -> int:
    X, y, mean = explicit()
    direction = bo.max_margin_direction(bo.SampleSpace.of(X, y, mean), NET)
    rng = np.random.default_rng(0)
    normal = (direction.linear * y) @ X
    normal /= np.linalg.norm(normal)
    points = rng.standard_normal((400, X.shape[1]))
    side = rng.choice([-1e-6, 1e-6], 400)
    near = (points - np.outer(points @ normal - side, normal)) * 10 ** rng.uniform(-6, 6, (400, 1))
    output = NET(NET.weights(direction.coefficients, X, y), np.concatenate([points, near]))
    return int(((output > 0) != (np.concatenate([points @ normal, side]) > 0)).sum())


def floor_excess() -> float:
    space = bo.Mixture(covariance="spiked").grid(12, [15, 100], [0.5, 4.0], 3, np.random.default_rng(2))
    combinations = [
        bo.max_margin_direction(space, NET).linear,
        np.ones(space.labels.shape),
        bo.nonnegative_dual(space.gram),
    ]
    best = np.linalg.solve(space.spread, space.alignment[..., None])[..., 0]  # the optimum itself
    return float(max((space.signal_ratio(linear) / space.best_ratio()).max() for linear in [*combinations, best]) - 1)


def test_exact_claims_hold() -> None:
    assert least_activation() == 1
    assert bound_excess() <= 1e-9
    assert boundary_disagreements() == 0
    assert floor_excess() <= 1e-9


@pytest.mark.mutation("C1")
def test_a_step_with_its_sign_turned_loses_activation(monkeypatch: pytest.MonkeyPatch) -> None:
    step = bo.descent_step

    def turned(*arguments: object) -> tuple[np.ndarray, np.ndarray]:
        margins, increment = step(*arguments)
        return margins, -increment

    monkeypatch.setattr(bo, "descent_step", turned)
    assert least_activation() < 1


@pytest.mark.mutation("C2a")
def test_a_limit_with_the_slopes_of_the_wrong_side_breaks_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    original = bo.max_margin_direction

    def swapped(space: bo.SampleSpace, net: bo.LeakyReLUNet) -> bo.Direction:
        found = original(space, net)
        coefficients = found.dual[..., None] * net.slopes(-space.labels) / np.sqrt(net.width)
        return bo.Direction(found.dual, coefficients, found.margin, found.linear)

    monkeypatch.setattr(bo, "max_margin_direction", swapped)
    assert bound_excess() > 0.01


@pytest.mark.mutation("C2a")
def test_equal_multipliers_break_the_bound_of_a_long_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are only nearly optimal, so that it takes a run whose bound has become small."""

    def equal(kernel: np.ndarray) -> np.ndarray:
        n = kernel.shape[-1]
        return np.ones(kernel.shape[:-1]) * (n / kernel.sum((-1, -2)))[..., None]

    assert bound_excess(steps=20_000) <= 1e-9
    monkeypatch.setattr(bo, "nonnegative_dual", equal)
    assert bound_excess(steps=20_000) > 1e-9


@pytest.mark.mutation("C3")
def test_a_score_of_the_positive_neurons_only_disagrees(monkeypatch: pytest.MonkeyPatch) -> None:
    original = bo.max_margin_direction

    def halved(space: bo.SampleSpace, net: bo.LeakyReLUNet) -> bo.Direction:
        found = original(space, net)
        return bo.Direction(
            found.dual, found.coefficients, found.margin, found.coefficients[..., net.signs > 0].sum(-1)
        )

    monkeypatch.setattr(bo, "max_margin_direction", halved)
    assert boundary_disagreements() > 0


@pytest.mark.mutation("C6b")
def test_a_floor_without_correlations_is_beaten(monkeypatch: pytest.MonkeyPatch) -> None:
    def uncorrelated(space: bo.SampleSpace) -> np.ndarray:
        return np.sqrt((space.alignment**2 / np.trace(space.spread, axis1=-2, axis2=-1)[..., None]).sum(-1))

    monkeypatch.setattr(bo.SampleSpace, "best_ratio", uncorrelated)
    assert floor_excess() > 1e-9


def test_two_points_by_hand() -> None:
    net = bo.LeakyReLUNet(width=2, leak=0.5)
    space = bo.SampleSpace.of([[2.0, 0.0], [-1.0, 1.0]], [1, -1], [1.0, 0.0])
    direction = bo.max_margin_direction(space, net)
    exact = [Fraction(2, 17), Fraction(12, 17)]
    np.testing.assert_allclose(net.kernel(space), [[2.5, 1.0], [1.0, 1.25]])
    np.testing.assert_allclose(direction.dual, [float(v) for v in exact])
    np.testing.assert_allclose(direction.margin, float(sum(exact)) ** -0.5)
    normal = direction.linear @ np.array([[2.0, 0.0], [1.0, -1.0]])
    np.testing.assert_allclose(normal / np.linalg.norm(normal), [0.8, -0.6])
    np.testing.assert_allclose(bo.nonnegative_dual(space.gram), [0.0, 0.5], atol=1e-15)


def test_the_limit_is_feasible_and_tight_in_the_real_network() -> None:
    """Its smallest margin is 1 where all pairs are activated, and its norm is the reciprocal of the margin."""
    rng = np.random.default_rng(1)
    X, y, mean = bo.Mixture().draw(10, 80, 12.0, 1, rng)
    direction = bo.max_margin_direction(bo.SampleSpace.of(X, y, mean), NET)
    weights = NET.weights(direction.coefficients, X, y)
    assert (y * NET(weights, X)).min() == pytest.approx(1)
    assert np.linalg.norm(weights) == pytest.approx(1 / direction.margin[0])


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_recursion_is_gradient_descent(normalized: bool, reduction: str) -> None:
    X, y, mean = explicit()
    W = 0.3 * np.random.default_rng(0).standard_normal((NET.width, X.shape[1]))
    start = bo.Initialisation(NET.signs * (y[:, None] * X @ W.T), np.array((W**2).sum()))
    space = bo.SampleSpace.of(X, y, mean)
    path = bo.gradient_descent(space, NET, start, 1e-2, [0, 50], normalized=normalized, reduction=reduction)
    weights, inputs, target, signs = (torch.tensor(v).requires_grad_(v is W) for v in (W, X, y, NET.signs))
    for _ in range(50):
        f = torch.nn.functional.leaky_relu(inputs @ weights.T, NET.leak) @ signs / NET.width**0.5
        losses = torch.exp(-target * f)
        loss = losses.mean() if reduction == "mean" else losses.sum()
        (gradient,) = torch.autograd.grad(loss, weights)
        weights = weights - 1e-2 * gradient / (loss.detach() if normalized else 1)
    final = weights.detach().numpy()
    np.testing.assert_allclose(W + NET.weights(path.coefficients[-1], X, y), final, atol=1e-10)
    np.testing.assert_allclose(path.norm[-1], np.linalg.norm(final))
    margins = y * NET(final, X)
    np.testing.assert_allclose(path.margin[-1], margins.min() / np.linalg.norm(final))
    np.testing.assert_allclose(path.log_loss[-1], np.log(np.exp(-margins).mean()))
    assert path.activation[0] == pytest.approx((NET.signs * (y[:, None] * X @ W.T) > 0).mean())
    direction = bo.max_margin_direction(space, NET)
    limit = NET.weights(direction.coefficients, X, y)
    cosine = (limit * final).sum() / np.linalg.norm(limit) / np.linalg.norm(final)
    np.testing.assert_allclose(path.cosine(direction)[-1], cosine)


def test_a_step_is_the_gradient_by_finite_differences() -> None:
    X, y, _ = explicit(n=4, dim=6)
    W = np.random.default_rng(2).standard_normal((NET.width, 6))

    def loss(weights: np.ndarray) -> float:
        return float(np.exp(-y * NET(weights, X)).sum())

    slopes = NET.slopes(y), NET.slopes(-y)
    _, increment = bo.descent_step(NET.signs * (y[:, None] * X @ W.T), slopes, np.ones(1), False)
    step = -NET.weights(increment, X, y)
    for index in np.ndindex(W.shape):
        bump = np.zeros_like(W)
        bump[index] = 1e-6
        assert step[index] == pytest.approx((loss(W + bump) - loss(W - bump)) / 2e-6, rel=1e-5, abs=1e-7)


def test_runs_together_are_the_runs_alone() -> None:
    """Batches change nothing, whatever the shape of the leading axes, and one run is a batch of none."""
    space, start = strong_data(runs=4)
    step = np.array([1e-3, 2e-4, 5e-4, 1e-4])
    square = bo.SampleSpace(**{name: array.reshape(2, 2, *array.shape[1:]) for name, array in vars(space).items()})
    begin = bo.Initialisation(
        start.preactivations.reshape(2, 2, *start.preactivations.shape[1:]), start.squared_norm.reshape(2, 2)
    )
    path = bo.gradient_descent(square, NET, begin, step.reshape(2, 2), [5, 40])
    direction = bo.max_margin_direction(square, NET)
    for run in range(4):
        one = bo.Initialisation(start.preactivations[run], start.squared_norm[run])
        alone = bo.gradient_descent(space[run], NET, one, step[run], [5, 40])
        cell = np.unravel_index(run, (2, 2))
        np.testing.assert_allclose(alone.coefficients, path.coefficients[:, *cell], rtol=1e-10)
        np.testing.assert_allclose(bo.max_margin_direction(space[run], NET).dual, direction.dual[cell], rtol=1e-10)


def test_order_of_points_and_scale_of_data_do_not_matter() -> None:
    X, y, mean = explicit(signal=3.0)
    dual = bo.max_margin_direction(bo.SampleSpace.of(X, y, mean), NET).dual
    order = np.random.default_rng(0).permutation(len(y))
    moved = bo.max_margin_direction(bo.SampleSpace.of(X[order], y[order], mean), NET)
    np.testing.assert_allclose(moved.dual, dual[order], rtol=1e-9)
    scaled = bo.max_margin_direction(bo.SampleSpace.of(1e4 * X, y, mean), NET)
    np.testing.assert_allclose(1e8 * scaled.dual, dual, rtol=1e-9)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 12),
    extra=st.integers(1, 40),
    signal=st.floats(0.01, 50),
    leak=st.floats(0.01, 0.99),
    width=st.integers(2, 7),
    label_noise=st.sampled_from([0.0, 0.3]),
)
def test_the_dual_is_optimal(
    seed: int, n: int, extra: int, signal: float, leak: float, width: int, label_noise: float
) -> None:
    net = bo.LeakyReLUNet(width, leak)
    mixture = bo.Mixture(label_noise=label_noise)
    space = mixture.grid(n, [n + extra], [signal], 3, np.random.default_rng(seed))[:, 0, 0]
    kernel = net.kernel(space)
    dual = bo.nonnegative_dual(kernel)
    scale = dual.max(-1, keepdims=True)
    slack = (kernel @ dual[..., None])[..., 0] - 1
    assert (dual >= 0).all()
    assert (slack > -1e-7).all()
    assert (dual * slack <= 1e-7 * scale).all()


def test_the_dual_is_that_of_scipy_and_scikit_learn() -> None:
    space = bo.Mixture().grid(14, [16, 60], [0.3, 3.0, 30.0], 2, np.random.default_rng(8))
    kernel, direction = NET.kernel(space), bo.max_margin_direction(space, NET)
    assert (direction.dual == 0).any()  # points that are no support vectors are among them
    for cell in np.ndindex(kernel.shape[:-2]):
        root = np.linalg.cholesky(kernel[cell])
        reference, _ = nnls(root.T, np.linalg.solve(root, np.ones(14)))
        np.testing.assert_allclose(direction.dual[cell], reference, rtol=1e-7, atol=1e-9 * reference.max())
    linear = bo.nonnegative_dual(space.gram)[0, 1, 1]
    chosen = space[0, 1, 1]
    labels = chosen.labels
    machine = SVC(C=1e9, kernel="precomputed", tol=1e-10).fit(chosen.gram * np.outer(labels, labels), labels)
    fitted = np.zeros(14)
    fitted[machine.support_] = np.abs(machine.dual_coef_[0])
    assert (fitted @ chosen.gram @ fitted) <= (linear @ chosen.gram @ linear) * (1 + 1e-6)  # its bias can only help


@pytest.mark.parametrize("covariance", ["identity", "spiked", "power"])
@pytest.mark.parametrize("noise", ["gaussian", "student_t"])
def test_the_grid_is_made_of_the_points(covariance: str, noise: str) -> None:
    """The closed form of every Gram matrix equals that of the points themselves, from the same generator."""
    mixture = bo.Mixture(covariance, noise, 5.0, 0.2)
    grid = mixture.grid(8, [20], [0.7, 5.0], 3, np.random.default_rng(4))
    for s, signal in enumerate((0.7, 5.0)):
        X, y, mean = mixture.draw(8, 20, signal, 3, np.random.default_rng(4))
        space = bo.SampleSpace.of(X, y, mean, mixture.variances(20))
        for name, array in vars(space).items():
            np.testing.assert_allclose(vars(grid[:, 0, s])[name], array, atol=1e-10, err_msg=name)


def test_the_error_is_the_share_of_wrong_points() -> None:
    """On a mixture with another covariance than any of ours."""
    rng = np.random.default_rng(11)
    deviations = np.array([3.0, 1.0, 0.5, 0.1, 2.0])
    mean = np.array([1.0, -0.5, 0.3, 0.0, 0.2])
    labels = rng.choice([-1.0, 1.0], 4)
    X = labels[:, None] * mean + deviations * rng.standard_normal((4, 5))
    space = bo.SampleSpace.of(X, labels, mean, deviations**2)
    linear = rng.random(4)
    truth = rng.choice([-1.0, 1.0], 200_000)
    points = truth[:, None] * mean + deviations * rng.standard_normal((200_000, 5))
    wrong = (truth * (points @ ((linear * labels) @ X)) < 0).mean()
    assert norm.cdf(-space.signal_ratio(linear)) == pytest.approx(wrong, abs=0.005)


def test_the_noise_has_the_variance_it_names() -> None:
    for noise in ("gaussian", "student_t"):
        mixture = bo.Mixture("spiked", noise, 8.0)
        drawn = mixture.draw_noise((40_000, 3), np.random.default_rng(0))
        np.testing.assert_allclose(drawn.var(0), [25, 1, 1], rtol=0.06)


def test_a_drawn_start_has_the_law_of_weights() -> None:
    """Means over many draws of the squares that explicit weights would give: tr G m and p m."""
    X, y, mean = explicit(n=3, dim=20)
    space = bo.SampleSpace.of(np.tile(X, (4000, 1, 1)), np.tile(y, (4000, 1)), mean)
    start = bo.Initialisation.draw(space, NET, 20, 0.1, np.random.default_rng(0))
    assert start.squared_norm.mean() == pytest.approx(0.01 * 20 * NET.width, rel=0.02)
    second = (start.preactivations @ start.preactivations.mT).mean(0) / NET.width
    np.testing.assert_allclose(second, 0.01 * space.gram[0], atol=0.02 * 0.01 * space.gram[0].max())


def test_conditions_by_brute_force() -> None:
    X, y, mean = explicit(n=5)
    least, ratio = bo.SampleSpace.of(X, y, mean).correlation_conditions()
    pairs = [(i, k) for i in range(5) for k in range(5) if i != k]
    assert least == pytest.approx(min(y[i] * y[k] * (X[i] @ X[k]) for i, k in pairs))
    largest = max(abs(X[i] @ X[k]) for i, k in pairs)
    assert ratio == pytest.approx(min(x @ x for x in X) / (5 * largest))


def test_the_stability_limit_is_the_diameter_of_the_features() -> None:
    X, y, mean = explicit(n=6)
    features = np.einsum("ij,ip->ijp", NET.slopes(y), y[:, None] * X).reshape(6, -1) / np.sqrt(NET.width)
    diameter = max(np.linalg.norm(a - b) for a in features for b in features)
    assert bo.stable_step(NET.kernel(bo.SampleSpace.of(X, y, mean))) == pytest.approx(4 / diameter**2)


def test_normalised_descent_outlives_the_underflow_of_the_loss() -> None:
    space, start = strong_data(runs=1)
    path = train(space, start, steps=20_000)
    assert path.log_loss[-1, 0] < -1000
    assert 1 - path.cosine(bo.max_margin_direction(space, NET))[-1, 0] < 1e-5


def test_data_that_the_notebook_never_saw() -> None:
    """Two classes of wine: standardised measurements, more of them than bottles."""
    from sklearn.datasets import load_wine

    X, label = load_wine(return_X_y=True)
    X = ((X - X.mean(0)) / X.std(0))[np.r_[0:4, 60:64]]
    y = np.where(label[np.r_[0:4, 60:64]] == 0, 1.0, -1.0)
    space = bo.SampleSpace.of(X, y, (y[:, None] * X).mean(0))
    start = bo.Initialisation.draw(space, NET, X.shape[1], 1e-6, np.random.default_rng(0))
    path = bo.gradient_descent(space, NET, start, bo.stable_step(NET.kernel(space)), [2000], normalized=True)
    assert (y * NET(NET.weights(path.coefficients[-1], X, y), X) > 0).all()


@pytest.mark.parametrize(
    ("X", "y", "mean"),
    [
        (np.ones((2, 3)), [1, 0], np.ones(3)),
        (np.ones((2, 3)), [1, -1, 1], np.ones(3)),
        (np.ones((2, 3)), [1, -1], np.ones(2)),
        (np.full((2, 3), np.nan), [1, -1], np.ones(3)),
        (np.ones((0, 3)), [], np.ones(3)),
        (np.ones(3), [1, 1, 1], np.ones(3)),
    ],
)
def test_bad_data_is_refused(X: np.ndarray, y: list[int], mean: np.ndarray) -> None:
    with pytest.raises(ValueError, match="must"):
        bo.SampleSpace.of(X, y, mean)


def test_bad_settings_are_refused() -> None:
    space, start = strong_data(runs=1)
    with pytest.raises(ValueError, match="leak"):
        bo.LeakyReLUNet(4, 1.0)
    with pytest.raises(ValueError, match="either sign"):
        bo.LeakyReLUNet(2, 0.1, 0.1)
    with pytest.raises(ValueError, match="covariance"):
        bo.Mixture("round")
    with pytest.raises(ValueError, match="dof"):
        bo.Mixture(noise="student_t", dof=2.0)
    with pytest.raises(ValueError, match="ascending"):
        bo.gradient_descent(space, NET, start, 1e-3, [5, 5])
    with pytest.raises(ValueError, match="positive"):
        bo.gradient_descent(space, NET, start, 0.0, [5])
    with pytest.raises(ValueError, match="reduction"):
        bo.gradient_descent(space, NET, start, 1e-3, [5], reduction="median")
    with pytest.raises(ValueError, match="shape"):
        bo.gradient_descent(space, NET, bo.Initialisation(np.zeros((3, 6)), np.array(0.0)), 1e-3, [5])
    with pytest.raises(ValueError, match="singular"):
        bo.nonnegative_dual(np.ones((3, 3)))
    with pytest.raises(ValueError, match="finite"):
        bo.nonnegative_dual(np.full((2, 2), np.inf))


def test_an_overflowing_loss_is_reported() -> None:
    X, y, mean = explicit()
    start = bo.Initialisation(np.full((9, 6), -1e4), np.array(1.0))
    with pytest.raises(ValueError, match="overflowed"):
        bo.gradient_descent(bo.SampleSpace.of(X, y, mean), NET, start, 1.0, [3])


@pytest.mark.parametrize(
    "wrong",
    [
        {"dim": 30},
        {"dims": [20, 500]},
        {"signal": [0.0, 1.0]},
        {"width": 2, "positive_fraction": 0.1},
        {"noise": "cauchy"},
    ],
)
def test_parameters_that_cannot_work_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        bo.Parameters(**wrong)
