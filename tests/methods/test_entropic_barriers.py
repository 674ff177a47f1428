"""Paths, curvature and noise against closed forms, explicit Hessians and slow references."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from sklearn.datasets import load_iris
from tiny_models import tiny_decoder
from torch import Tensor, nn
from torch.func import hessian

import lib.methods.entropic_barriers as eb


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def problem(n: int = 12, sizes: tuple[int, ...] = (3, 4, 3), seed: int = 0) -> eb.Objective:
    generator = seeded(seed)
    x = torch.randn(n, sizes[0], generator=generator, dtype=torch.float64)
    return eb.Objective(eb.MLP(sizes, x), torch.randint(sizes[-1], (n,), generator=generator))


def networks(objective: eb.Objective, *lead: int, seed: int = 1) -> Tensor:
    mlp = objective.logits
    assert isinstance(mlp, eb.MLP)
    theta = mlp.draw(math.prod(lead), seeded(seed))
    return (theta + 0.1 * torch.randn(theta.shape, generator=seeded(seed + 1), dtype=theta.dtype)).view(*lead, -1)


def stiff(y: Tensor) -> Tensor:
    return 1 + 10 * torch.exp(-(y**2) / 0.08)


def valley(theta: Tensor) -> Tensor:
    """Loss g(y) x^2 / 2 of points (..., 2)."""
    return 0.5 * stiff(theta[..., 1]) * theta[..., 0] ** 2


def two_wells(theta: Tensor) -> Tensor:
    """Minima at (-1, 0) and (1, 0), joined by the zero-loss half circle through (0, 1); 0.5 at the origin."""
    x, y = theta.unbind(-1)
    return 0.5 * (x**2 + y**2 - 1) ** 2 + torch.relu(-y) ** 2


# Networks as flat vectors


def test_a_network_equals_torchs_own_with_any_leading_axes() -> None:
    objective = problem()
    theta = networks(objective, 2, 3)
    mlp = objective.logits
    assert isinstance(mlp, eb.MLP)
    out = mlp(theta)
    assert out.shape == (2, 3, 12, 3)
    for i, j in itertools.product(range(2), range(3)):
        w1, b1, w2, b2 = theta[i, j].split([12, 4, 12, 3])
        expected = (mlp.x @ w1.view(3, 4) + b1).relu() @ w2.view(4, 3) + b2
        torch.testing.assert_close(out[i, j], expected)
        torch.testing.assert_close(mlp(theta[i, j]), expected)
    index = torch.randint(12, (2, 3, 5), generator=seeded(2))
    picked = out.gather(-2, index[..., None].expand(-1, -1, -1, 3))
    torch.testing.assert_close(mlp(theta, index), picked)


def test_your_own_module_gives_the_same_gradients_as_autograd() -> None:
    iris = load_iris()
    x, y = torch.tensor(iris.data, dtype=torch.float64), torch.tensor(iris.target)
    module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    theta, logits = eb.module_logits(module, x)
    objective = eb.Objective(logits, y)
    value, slope = eb.gradient(objective, theta.expand(2, -1))
    expected = nn.functional.cross_entropy(module(x), y)
    expected.backward()
    flat = torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])
    torch.testing.assert_close(value[0], expected.detach())
    torch.testing.assert_close(slope, flat.expand(2, -1))
    index = torch.tensor([[3, 80], [120, 3]])
    torch.testing.assert_close(logits(theta.expand(2, -1), index)[1, 0], module(x)[120].detach())


def test_labels_may_differ_between_networks() -> None:
    objective = problem()
    theta = networks(objective, 2, 3)
    other = (objective.labels + 1) % 3
    joint = eb.Objective(objective.logits, torch.stack([objective.labels, other])[:, None])
    torch.testing.assert_close(joint(theta)[0], objective(theta[0]))
    torch.testing.assert_close(joint(theta)[1], eb.Objective(objective.logits, other)(theta[1]))
    index = torch.tensor([[[4, 4, 1]]]).expand(2, 3, -1)
    torch.testing.assert_close(joint(theta, index), joint.losses(theta)[..., [4, 4, 1]].mean(-1))


def test_scores_are_gradients_of_single_losses() -> None:
    objective, mean = problem(), 0.0
    theta = networks(objective, 2)
    scores = objective.scores(theta)
    torch.testing.assert_close(scores.mean(-2), eb.gradient(objective, theta)[1])
    step = 1e-6 * torch.ones_like(theta)
    mean = (objective.losses(theta + step) - objective.losses(theta - step)) / 2e-6
    torch.testing.assert_close(scores.sum(-1), mean, atol=1e-6, rtol=1e-6)


def test_a_prompted_model_starts_as_it_was_and_answers_by_its_updates() -> None:
    model, lengths = tiny_decoder(vocabulary=50, context=32), torch.tensor([5, 7, 4])
    tokens = torch.randint(50, (3, 7), generator=seeded())
    network = eb.PromptedModel(model, tokens, lengths, [3, 9], rank=2)
    theta = network.draw(2, seeded(1))
    assert theta.shape == (2, network.size)
    assert not torch.equal(theta[0], theta[1])
    answers = [model(tokens[i : i + 1, : lengths[i]]).logits[0, -1, [3, 9]] for i in range(3)]
    torch.testing.assert_close(network(theta), torch.stack(answers).detach().expand(2, -1, -1))
    theta = theta + 0.1 * torch.randn(theta.shape, generator=seeded(2))
    out = network(theta).detach()
    assert float((out[0] - out[1]).abs().max()) > 1e-3
    picked = network(theta, torch.tensor([[2, 0], [1, 1]])).detach()
    torch.testing.assert_close(picked, torch.stack([out[0, [2, 0]], out[1, [1, 1]]]))


def test_images_keep_their_clean_labels_beside_the_noisy_ones() -> None:
    network, noisy, clean = eb.image_problem("digits", 200, [8], 0.5, seeded())
    assert network.sizes == (64, 8, 10)
    assert 0.3 < float((noisy != clean).float().mean()) < 0.6
    torch.testing.assert_close(network.x.mean(0), torch.zeros(64), atol=1e-6, rtol=0)
    with pytest.raises(ValueError, match="can't supply 9999"):
        eb.image_problem("digits", 9999, [8], 0.5, seeded())


def test_a_pretrained_model_knows_sentiment_before_any_training() -> None:
    tail, noisy, clean = eb.sentiment_problem("smollm2-135m-instruct", 10, 2, 0.2, seeded())
    assert int((noisy != clean).sum()) == 2
    assert float((tail(tail.draw(1, seeded()))[0].argmax(-1) == clean).float().mean()) > 0.5


# Descent


@pytest.mark.parametrize(("name", "momentum"), [("sgd", 0.0), ("sgd", 0.9), ("nesterov", 0.9), ("adam", 0.0)])
def test_descent_equals_torchs_optimisers(name: eb.OptimiserName, momentum: float) -> None:
    objective = problem()
    theta = networks(objective, 2)
    rates, index = [0.05] * 8 + [0.01] * 4, torch.randint(12, (12, 2, 4), generator=seeded(3))
    ours = eb.descend(
        objective, theta, rates, lambda step: index[step], momentum=momentum, weight_decay=0.01, optimiser=name
    )
    for k in range(2):
        leaf = theta[k].clone().requires_grad_()
        if name == "adam":
            torchs: torch.optim.Optimizer = torch.optim.Adam([leaf], weight_decay=0.01)
        else:
            torchs = torch.optim.SGD([leaf], 0.05, momentum, weight_decay=0.01, nesterov=name == "nesterov")
        for step, rate in enumerate(rates):
            torchs.param_groups[0]["lr"] = rate
            torchs.zero_grad()
            objective(leaf, index[step, k]).backward()
            torchs.step()
        torch.testing.assert_close(ours[k], leaf.detach(), atol=1e-9, rtol=1e-7)


def test_schedule_and_branching_batches() -> None:
    rates = eb.falling_rates(1.0, 100)
    assert [rates[i] for i in (0, 29, 30, 60, 80, 90)] == pytest.approx([1, 1, 0.2, 0.04, 0.008, 0.0016])
    batches = eb.branching_batches(100, 6, [0, 3], 4, seeded())
    for step in range(5):
        index = batches(step)
        assert index is not None
        assert index.shape == (4, 2, 2, 6)
        assert not torch.equal(index[:, 0, 0], index[:, 0, 1])
        assert torch.equal(index[:, 1, 0], index[:, 1, 1]) == (step < 3)


def test_copies_stay_together_until_they_part() -> None:
    objective = problem()
    start = networks(objective, 2)[:, None, None].expand(2, 2, 2, -1)
    ended = eb.descend(objective, start, [0.1] * 5, eb.branching_batches(12, 3, [1, 5], 2, seeded()))
    assert (ended[:, 0, 0] != ended[:, 0, 1]).any()
    torch.testing.assert_close(ended[:, 1, 0], ended[:, 1, 1], rtol=0, atol=0)


# Minimum-energy paths


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 9), st.integers(2, 12), st.integers(0, 10_000), st.floats(0.01, 100))
def test_reparametrised_pivots_are_equally_spaced_points_of_the_path(k: int, n: int, seed: int, scale: float) -> None:
    path = scale * torch.randn(2, k, 3, generator=seeded(seed), dtype=torch.float64)
    moved = eb.reparametrize_path(path, n)
    assert torch.equal(moved[:, [0, -1]], path[:, [0, -1]])
    for before, after in zip(path, moved, strict=True):
        nearest, s = eb.project_to_path(after, before)
        assert (nearest - after).abs().max() <= 1e-9 * scale
    straight = torch.lerp(path[:, :1], path[:, -1:], torch.linspace(0, 1, k, dtype=torch.float64)[:, None] ** 2)
    steps = eb.reparametrize_path(straight, n).diff(dim=-2).norm(dim=-1)
    torch.testing.assert_close(steps, steps[:, :1].expand_as(steps), atol=1e-9 * scale, rtol=1e-6)
    torch.testing.assert_close(eb.reparametrize_path(straight, k + 3)[:, -1], straight[:, -1])
    assert s.min() >= 0


def test_tangents_point_to_the_higher_neighbour_and_mix_at_extrema() -> None:
    path = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 2.0], [4.0, 2.0], [4.0, 3.0]])
    rising = eb.path_tangents(path, torch.tensor([0.0, 1.0, 2.0, 1.0, 0.5]))
    torch.testing.assert_close(rising[0], torch.tensor([0.0, 1.0]))  # ahead
    torch.testing.assert_close(rising[1], nn.functional.normalize(torch.tensor([3.0, 2.0]), dim=0))  # a top: 1 and 1
    torch.testing.assert_close(rising[2], torch.tensor([1.0, 0.0]))  # behind
    top = eb.path_tangents(path, torch.tensor([0.0, 1.0, 4.0, 3.0, 0.0]))[1]
    torch.testing.assert_close(top, nn.functional.normalize(torch.tensor([3 * 3.0, 1 * 2.0]), dim=0))
    level = eb.path_tangents(path, torch.zeros(5))[1]
    torch.testing.assert_close(level, nn.functional.normalize(torch.tensor([3.0, 2.0]), dim=0))


def test_the_band_finds_the_half_circle() -> None:
    ends = torch.tensor([[-1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)

    def loss(theta: Tensor) -> Tensor:
        return two_wells(theta) - 0.01 * theta[..., 1]  # breaks the tie between up and down

    schedule = [eb.Cycle(300, 0.05), eb.Cycle(300, 0.05, 4), eb.Cycle(300, 0.05, 8)]
    path = eb.nudged_elastic_band(loss, ends[0], ends[1], schedule=schedule, n_pivots=5)
    assert path.shape == (9, 2)  # nine pivots leave nothing above the chords: the last cycle inserts none
    assert torch.equal(path[[0, -1]], ends)
    assert (path.norm(dim=-1) - 1).abs().max() < 0.02
    assert (path[1:-1, 1] > 0).all()
    assert two_wells(path).max() < 1e-2 < 0.5 == two_wells(ends.mean(0))
    assert float(path.diff(dim=0).norm(dim=-1).sum()) == pytest.approx(math.pi, rel=0.01)
    both = eb.nudged_elastic_band(loss, ends, ends.flip(0), schedule=schedule, n_pivots=5)
    torch.testing.assert_close(both[0], path)
    torch.testing.assert_close(both[1], path.flip(0), atol=1e-6, rtol=1e-6)


def test_weight_decay_is_projected_too() -> None:
    path = torch.tensor([[-1.0, 1.0], [0.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
    slope = torch.stack([path[:, 0] * 0 + 5, path[:, 1] * 0], -1) + 0.5 * path
    moved = eb.band_step(path, torch.zeros(3, dtype=torch.float64), slope, eb.Optimiser(), 0.1)
    torch.testing.assert_close(moved[1], torch.tensor([0.0, 0.95], dtype=torch.float64))


def test_pivots_go_where_the_loss_rises_above_the_chord() -> None:
    def bump(theta: Tensor) -> Tensor:
        return torch.exp(-((theta[..., 0] - 2.5) ** 2) / 0.02)

    path = torch.arange(5.0, dtype=torch.float64)[:, None]
    refined = eb.insert_pivots(bump, path, 1)
    assert refined[:, 0].tolist() == pytest.approx([0, 1, 2, 2.5, 3, 4])
    assert eb.insert_pivots(lambda t: t[..., 0], path, 2) is path
    assert eb.insert_pivots(bump, path, 0) is path
    assert eb.insert_pivots(bump, torch.stack([path, path]), 4).shape == (2, 9, 1)


def test_linear_barrier_by_hand() -> None:
    a, b = torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 0.0])
    assert float(eb.linear_barrier(two_wells, a, b)) == pytest.approx(0.5)
    assert float(eb.linear_barrier(lambda t: 3 * t[..., 0], a, b)) == pytest.approx(0)
    assert float(eb.linear_barrier(lambda t: t[..., 0] ** 2, a, b)) == 0  # a dip is no barrier


# Curvature


def test_curvature_equals_the_explicit_hessian() -> None:
    objective = problem()
    theta = networks(objective, 2)
    full = torch.stack([hessian(objective)(t) for t in theta])
    eigenvalues = torch.linalg.eigvalsh(full)
    value, vector = eb.hessian_top_eigenvalue(objective, theta, 400, seeded())
    torch.testing.assert_close(value, eigenvalues[:, -1], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close((full @ vector[..., None])[..., 0], value[:, None] * vector, atol=1e-2, rtol=1e-2)
    direction = torch.randn(theta.shape, generator=seeded(4), dtype=theta.dtype)
    forms = eb.second_derivatives(objective.losses, theta, direction)
    expected = torch.einsum("kp,kpq,kq->k", direction, full, direction)
    torch.testing.assert_close(forms.mean(-1), expected)
    estimate = eb.hutchinson_trace(objective, theta, 4000, seeded(5))
    torch.testing.assert_close(estimate, torch.einsum("kpp->k", full), rtol=0.03, atol=0)


def test_the_top_eigenvalue_is_the_largest_and_not_the_largest_in_size() -> None:
    scale = torch.tensor([[-5.0, 1.0, 2.0], [3.0, -1.0, 0.5]], dtype=torch.float64)
    value, _ = eb.hessian_top_eigenvalue(
        lambda t: 0.5 * (scale * t**2).sum(-1), torch.zeros(2, 3, dtype=torch.float64), 300, seeded()
    )
    assert value.tolist() == pytest.approx([2.0, 3.0])


def test_a_quadratic_has_its_trace_in_every_probe() -> None:
    scale = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    trace = eb.hutchinson_trace(
        lambda t: 0.5 * (scale * t**2).sum(-1), torch.ones(5, 3, dtype=torch.float64), 1, seeded()
    )
    assert trace.tolist() == pytest.approx([7.0] * 5)


def fisher_gap(of: str) -> float:
    """Relative distance of the Fisher trace from the trace of the explicit Hessian of a ReLU network."""
    objective = problem(n=9, sizes=(3, 5, 5, 3))
    theta = networks(objective, 2)
    exact = torch.stack([hessian(objective)(t).trace() for t in theta])
    return float((eb.fisher_trace(objective, theta, of).mean(-1) / exact - 1).abs().max())  # type: ignore[arg-type]


def test_the_models_fisher_trace_is_the_hessians_and_the_empirical_one_is_not() -> None:
    assert fisher_gap("model") <= 1e-6
    assert fisher_gap("data") > 0.05


def test_empirical_fisher_and_its_spectrum_belong_together() -> None:
    objective = problem()
    theta = networks(objective, 2)
    spectrum, trace = eb.fisher_spectrum(objective, theta, 12), eb.fisher_trace(objective, theta, "data")
    assert spectrum.shape == trace.shape == (2, 12)
    torch.testing.assert_close(spectrum.sum(-1), trace.mean(-1))
    torch.testing.assert_close(eb.fisher_trace(objective, theta[0], "data"), trace[0])
    assert (spectrum.diff() <= 1e-12).all()


def test_the_order_of_examples_changes_no_trace() -> None:
    objective = problem()
    theta, order = networks(objective, 2), torch.randperm(12, generator=seeded())
    mlp = objective.logits
    assert isinstance(mlp, eb.MLP)
    shuffled = eb.Objective(eb.MLP(mlp.sizes, mlp.x[order]), objective.labels[order])
    torch.testing.assert_close(eb.fisher_trace(shuffled, theta), eb.fisher_trace(objective, theta)[:, order])


# Noise


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 7), st.integers(0, 10_000))
def test_projection_equals_a_fine_search(k: int, seed: int) -> None:
    generator = seeded(seed)
    path = torch.randn(k, 3, generator=generator, dtype=torch.float64)
    theta = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    nearest, s = eb.project_to_path(theta, path)
    fine = eb.path_points(path, torch.linspace(0, 1, 4001))
    brute = (theta[:, None] - fine).norm(dim=-1).min(1).values
    distance = (theta - nearest).norm(dim=-1)
    assert (distance <= brute + 1e-9).all()
    assert (brute - distance).max() < 0.01
    torch.testing.assert_close(eb.path_points(path, s), nearest, atol=1e-9, rtol=0)


class Pull(eb.Objective):
    """Examples pull a point of a valley in x by +-1, so that SGD is noisy in x and the mean loss is g(y) x^2 / 2."""

    def __init__(self, slope: float = 0.0) -> None:
        super().__init__(lambda theta, index: theta, torch.zeros(2, dtype=torch.long))
        object.__setattr__(self, "slope", slope)

    def losses(self, theta: Tensor, index: Tensor | None = None, labels: Tensor | None = None) -> Tensor:
        signs = torch.tensor([-1.0, 1.0], dtype=theta.dtype)[torch.arange(2) if index is None else index]
        return (valley(theta) + self.slope * theta[..., 1])[..., None] + signs * theta[..., :1]  # type: ignore[attr-defined]


def drift_of(batch_size: int) -> eb.Drift:
    path = torch.stack([torch.zeros(7), torch.linspace(-0.6, 0.6, 7)], -1).double()
    return eb.entropic_drift(Pull(), path, rate=0.02, batch_size=batch_size, steps=40, replicas=400, generator=seeded())


def test_drift_in_a_valley_goes_to_the_wide_side_and_grows_with_the_noise() -> None:
    drift = drift_of(1)
    assert drift.gd.abs().max() < 1e-12
    assert (drift.drift[:2] < -3 * drift.stderr[:2]).all()
    assert (drift.drift[-2:] > 3 * drift.stderr[-2:]).all()
    assert drift.drift[2].abs() < drift.drift[1].abs()
    cold = drift_of(8)
    ratio = (cold.drift[[0, 1, 3, 4]] / drift.drift[[0, 1, 3, 4]]).mean()
    assert 0.08 < ratio < 0.18  # noise variance is 1 / 8


def test_the_control_variate_is_zero_on_average_and_helps() -> None:
    objective = problem(n=30)
    ends = networks(objective, 2)
    path = eb.reparametrize_path(ends, 5)
    drift = eb.entropic_drift(
        objective, path, rate=0.01, batch_size=2, steps=10, replicas=500, generator=seeded(), weight_decay=0.1
    )
    assert drift.displacements.shape == drift.noise.shape == (500, 3)
    assert (drift.noise.mean(0).abs() < 4 * drift.noise.std(0) / math.sqrt(500)).all()
    assert (drift.displacements.std(0) < (drift.displacements + drift.noise).std(0)).all()


def test_projected_sgd_stays_on_the_path_and_rolls_downhill() -> None:
    path = torch.tensor([[0.0, -1.0], [0.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    trace = eb.projected_sgd(
        Pull(slope=0.5),
        path,
        torch.tensor([0.2, 0.5, 1.0]),
        rate=0.02,
        batch_size=4,
        steps=60,
        every=15,
        generator=seeded(),
    )
    assert trace.shape == (5, 3)
    assert trace[0].tolist() == pytest.approx([0.2, 0.5, 1.0])
    assert (trace.diff(dim=0)[:, 1:] < 0).all()
    assert trace.min() >= 0


def boltzmann_error(fast: int, drop: bool = False) -> float:
    """Distance of the fitted prefactor from k/2 where x is integrated out on a grid."""
    temperature, y = 0.1, torch.linspace(-1, 1, 2001, dtype=torch.float64)
    x = torch.linspace(-6, 6, 4001, dtype=torch.float64)
    g = torch.ones_like(y) if drop else stiff(y)
    weight = torch.exp(-0.5 * g[:, None] * x**2 / temperature).sum(1) ** fast
    slope = np.polyfit(stiff(y).log().numpy(), -weight.log().numpy(), 1)[0]
    return abs(float(slope) - fast / 2)


@pytest.mark.mutation("C1a")
def test_the_exact_marginal_has_prefactor_one_half_a_fast_direction() -> None:
    assert boltzmann_error(1) <= 1e-6
    assert boltzmann_error(2) <= 1e-6
    assert boltzmann_error(1, drop=True) > 0.4


def test_prefactor_is_recovered_from_exact_samples() -> None:
    rng, y = np.random.default_rng(0), np.linspace(-1, 1, 20_001)
    for alpha in (0.0, 0.5, 1.3):
        density = stiff(torch.tensor(y)).numpy() ** -alpha
        samples = torch.tensor(rng.choice(y, 40_000, p=density / density.sum()))
        assert eb.entropic_prefactor(samples, stiff) == pytest.approx(alpha, abs=0.03)


def test_langevin_walkers_find_the_law_and_lose_it_without_their_force() -> None:
    moving, frozen = (
        eb.langevin_marginal(stiff, 0.1, generator=seeded(), walkers=1000, steps=3000, frozen=frozen)
        for frozen in (False, True)
    )
    assert moving.abs().max() <= 1
    assert eb.entropic_prefactor(moving, stiff) == pytest.approx(0.5, abs=0.06)
    assert abs(eb.entropic_prefactor(frozen, stiff)) < 0.06


def identity_error(sign: float = 1.0) -> float:
    noise = 0.5 * torch.randn(2000, generator=seeded(), dtype=torch.float64)
    points, r = eb.minimal_sgd(torch.tensor([2.0, 0.5]), 0.05, noise)
    gap = points[:, 0] ** 2 - points[:, 1] ** 2
    product = gap[0] * torch.cumprod(1 - sign * (0.05 * r) ** 2, 0)
    return float(((gap[1:] - product).abs() / gap[0]).max())


@pytest.mark.mutation("C2a")
def test_imbalance_shrinks_by_the_product_of_squared_residuals() -> None:
    assert identity_error() <= 1e-10
    assert identity_error(sign=-1.0) > 1e-3


@pytest.mark.mutation("C2b")
def test_small_steps_keep_the_imbalance_and_large_ones_do_not() -> None:
    def decay(rate: float) -> float:
        noise = 0.5 * torch.randn(round(40 / rate), generator=seeded(), dtype=torch.float64)
        points, _ = eb.minimal_sgd(torch.tensor([2.0, 0.5]), rate, noise)
        gap = points[:, 0] ** 2 - points[:, 1] ** 2
        return float(1 - gap[-1] / gap[0])

    assert decay(1e-3) < 0.02
    assert decay(0.1) > 0.2


# Bad input


def test_equal_ends_and_foreign_ends_are_refused() -> None:
    a, b = torch.zeros(4), torch.ones(5)
    schedule = [eb.Cycle(2, 0.1)]
    with pytest.raises(ValueError, match="are equal"):
        eb.nudged_elastic_band(lambda t: t.sum(-1), a, a, schedule=schedule)
    with pytest.raises(ValueError, match="one architecture"):
        eb.nudged_elastic_band(lambda t: t.sum(-1), a, b, schedule=schedule)
    with pytest.raises(ValueError, match="NaN"):
        eb.nudged_elastic_band(lambda t: t.sum(-1), a, a * math.nan, schedule=schedule)
    with pytest.raises(ValueError, match="at least 3"):
        eb.nudged_elastic_band(lambda t: t.sum(-1), a, a + 1, schedule=schedule, n_pivots=2)


def test_divergence_is_reported_with_its_step() -> None:
    ends = torch.tensor([[-1.0, 0.0], [1.0, 0.1]], dtype=torch.float64)
    with pytest.raises(ValueError, match=r"band diverged at step \d+.*lower the learning rate \(9\)"):
        eb.nudged_elastic_band(two_wells, ends[0], ends[1], schedule=[eb.Cycle(50, 9.0)])
    objective = problem()
    with pytest.raises(ValueError, match=r"SGD diverged at step \d+.*\(1e\+06\)"):
        eb.descend(objective, networks(objective, 2), [1e6] * 20, eb.random_batches(12, 2, (2,), seeded()))


def test_nan_is_refused_before_anything_runs() -> None:
    objective = problem()
    theta = networks(objective, 2)
    with pytest.raises(ValueError, match="theta holds NaN"):
        eb.descend(objective, theta * math.nan, [0.1], lambda step: None)
    with pytest.raises(ValueError, match="path holds NaN"):
        eb.entropic_drift(objective, theta * math.inf, rate=0.1, batch_size=1, steps=1, replicas=2, generator=seeded())
    with pytest.raises(ValueError, match="x holds NaN"):
        eb.MLP((2, 2), torch.tensor([[0.0, math.nan]]))
    with pytest.raises(ValueError, match=r"\(N, 3\)"):
        eb.MLP((3, 2), torch.zeros(4, 2))
    with pytest.raises(ValueError, match="\\(N, 3\\)"):
        eb.MLP((3, 2), torch.zeros(0, 3))


def test_bad_settings_are_refused() -> None:
    objective = problem()
    with pytest.raises(ValueError, match="needs noise"):
        eb.entropic_drift(
            objective, networks(objective, 3), rate=0.1, batch_size=0, steps=1, replicas=2, generator=seeded()
        )
    with pytest.raises(ValueError, match="unknown optimiser 'rms'"):
        eb.Optimiser("rms")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="momentum"):
        eb.Optimiser("sgd", 1.0)
    with pytest.raises(ValueError, match="batch_size"):
        eb.random_batches(5, -1, (1,), seeded())
    with pytest.raises(ValueError, match="must be positive"):
        eb.langevin_marginal(stiff, 0.0, generator=seeded())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dataset": "sst2"}, "go together"),
        ({"neb_rate": [0.1]}, "one length"),
        ({"branch_steps": [0, 5000]}, "below branch_total"),
        ({"drift_batch": [8, 4]}, "must rise"),
    ],
)
def test_inconsistent_parameters_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        eb.Parameters(**values)  # type: ignore[arg-type]
