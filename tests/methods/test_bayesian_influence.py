"""Tests of lib.methods.bayesian_influence: closed forms, slow references, invariances, bad input."""

import math
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr
from tiny_models import tiny_decoder
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedTokenizerFast

from lib.batch.notebooks import read_script
from lib.batch.refresh import execute
from lib.bench.project import ROOT
from lib.bench.record import Record
from lib.bench.run import RECORD_NAME
from lib.methods import bayesian_influence as bif
from lib.methods.bayesian_influence import (
    FlatModel,
    LossTraces,
    bayesian_influence,
    damped_influence,
    ekfac_influence,
    fit_stack,
    gaussian_bif,
    gaussian_posterior,
    ggn_roots,
    linear_datamodeling_score,
    next_token_losses,
    per_example_gradients,
    retrain_subsets,
    sgld_sample,
)
from lib.substrates.tail import DecoderTail, tail_states

DOUBLE = torch.float64
QUIET = {"n_beta": 50.0, "epsilon": 1e-3, "gamma": 5.0}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=generator(seed), dtype=DOUBLE)


def build(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make().double().eval()


def network(seed: int = 0) -> nn.Module:
    return build(lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)), seed)


def logits(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return model(x)


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


def points(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    return normal(n, 3, seed=seed), torch.randint(3, (n,), generator=generator(seed))


def squares(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (model(x)[:, 0] - y).square() / 2


def least_squares(n: int = 30, d: int = 5) -> tuple[Tensor, Tensor, nn.Module]:
    """Inputs, targets, and a linear model at the minimiser."""
    x, y = normal(n, d), normal(n, seed=1)
    model = nn.Linear(d, 1, bias=False).double().eval()
    model.weight.data = torch.linalg.lstsq(x, y[:, None]).solution.T
    return x, y, model


def relative(a: Tensor, b: Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()


# ---------------------------------------------------------------------------------------------------------------------
# the Gaussian case, in closed form


def sampled_error(beta: float = 2.0, gamma: float = 3.0, heat: float = 1.0) -> float:
    """C1: the estimator on exact draws against the closed form."""
    x, y, model = least_squares()
    mean, covariance = gaussian_posterior(x, y, beta, gamma, model.weight[0].detach())
    w = mean + normal(200_000, 5, seed=2) @ torch.linalg.cholesky(heat * covariance).T
    traces = ((w @ x.T - y).square() / 2)[None]
    return relative(bayesian_influence(LossTraces(traces, traces)).scores, gaussian_bif(x, y, beta, gamma))


def identity_error(factor: float = 1.0) -> float:
    """C1b: what the damped influence leaves out is -K^2 / 2."""
    (x, y, model), beta, gamma = least_squares(), 2.0, 3.0
    gradients = per_example_gradients(model, squares, (x, y))
    first_order = damped_influence(gradients, x / len(x) ** 0.5, gradients, factor * gamma / (beta * len(x)))
    kernel = x @ gaussian_posterior(x, y, beta, gamma, model.weight[0].detach())[1] @ x.T
    return relative(gaussian_bif(x, y, beta, gamma) - first_order / (beta * len(x)), -kernel.square() / 2)


def derivative_error(second_order: float = 1.0) -> float:
    """C2: the influence is the derivative of the expected loss by an example's weight."""
    (x, y, model), beta, gamma, step = least_squares(), 2.0, 3.0, 1e-4

    def expected(weights: Tensor) -> Tensor:
        mean, covariance = gaussian_posterior(x, y, weights, gamma, model.weight[0].detach())
        return ((x @ mean - y).square() + (x @ covariance * x).sum(1)) / 2

    weights, shift = torch.full((len(x),), beta, dtype=DOUBLE), step * torch.eye(len(x), dtype=DOUBLE)
    slopes = torch.stack([(expected(weights + s) - expected(weights - s)) / (2 * step) for s in shift], 1)
    kernel = x @ gaussian_posterior(x, y, beta, gamma, model.weight[0].detach())[1] @ x.T
    return (slopes - gaussian_bif(x, y, beta, gamma) - (1 - second_order) * kernel.square() / 2).abs().max().item()


def stationary_error() -> float:
    """C3: the covariance of 4,000 chains against A^-1 (I - eps A / 4)^-1."""
    (x, y, model), n_beta, gamma = least_squares(), 30.0, 5.0
    a = n_beta * x.T @ x / len(x) + gamma * torch.eye(5, dtype=DOUBLE)
    epsilon = 1.2 / torch.linalg.eigvalsh(a)[-1].item()
    traces = sgld_sample(
        model, squares, (x, y), (x[:5], y[:5]), n_beta=n_beta, epsilon=epsilon, gamma=gamma, n_chains=4000,
        n_draws=20, thin=10, burn_in=200, generator=generator(), observe=lambda m, *_: m.weight[0],
    )  # fmt: skip
    w = traces.query.flatten(0, 1)
    return relative(torch.cov(w.T), torch.linalg.inv(a @ (torch.eye(5, dtype=DOUBLE) - epsilon * a / 4)))


def test_gaussian_closed_forms() -> None:
    assert sampled_error() < 0.02
    assert identity_error() < 1e-12
    assert derivative_error() < 1e-8
    assert stationary_error() < 0.03


@pytest.mark.mutation("C1")
def test_too_warm_a_posterior_is_seen() -> None:
    assert sampled_error(heat=1.1) > 0.02


@pytest.mark.mutation("C1b")
def test_another_damping_is_seen() -> None:
    assert identity_error(factor=1.01) > 1e-12


@pytest.mark.mutation("C2")
def test_leaving_the_second_order_out_is_seen() -> None:
    assert derivative_error(second_order=0.0) > 1e-8


@pytest.mark.mutation("C3")
def test_too_much_noise_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    step = bif.sgld_step
    monkeypatch.setattr(bif, "sgld_step", lambda *a, noise, **k: step(*a, noise=1.05 * noise, **k))
    assert stationary_error() > 0.03


def test_closed_form_away_from_the_posterior_mean() -> None:
    x, y, _ = least_squares()
    centre = torch.ones(5, dtype=DOUBLE)
    mean, covariance = gaussian_posterior(x, y, 2.0, 3.0, centre)
    gradient = 2 * x.T @ (x @ mean - y) + 3 * (mean - centre)
    assert gradient.abs().max() < 1e-10
    torch.testing.assert_close(covariance @ (2 * x.T @ x + 3 * torch.eye(5)), torch.eye(5, dtype=DOUBLE))


# ---------------------------------------------------------------------------------------------------------------------
# the sampler


def reference_chain(
    model: nn.Module, train: tuple[Tensor, ...], noise: Tensor, batches: list[Tensor], *, n_beta, epsilon, gamma
) -> Tensor:
    """Weights after each step of one chain, by autograd and a loop."""
    centre = torch.cat([p.detach().flatten() for p in model.parameters()])
    w, path = centre.clone(), []
    for xi, batch in zip(noise, batches, strict=True):
        torch.nn.utils.vector_to_parameters(w.clone(), model.parameters())
        loss = losses(model, *(t[batch] for t in train)).mean()
        g = torch.cat([p.flatten() for p in torch.autograd.grad(loss, list(model.parameters()))])
        w = w - epsilon / 2 * (n_beta * g + gamma * (w - centre)) + math.sqrt(epsilon) * xi
        path.append(w)
    torch.nn.utils.vector_to_parameters(centre, model.parameters())
    return torch.stack(path)


@pytest.mark.parametrize("batch_size", [0, 4])
def test_the_sampler_is_the_written_recursion(batch_size: int) -> None:
    model, train, chains, steps = network(), points(7), 3, 5
    source, noise, batches = generator(4), [], []
    d = sum(p.numel() for p in model.parameters())
    for _ in range(steps):
        if batch_size:
            batches.append(torch.rand(chains, 7, generator=source).argsort(1)[:, :batch_size])
        noise.append(torch.randn(chains, d, generator=source, dtype=DOUBLE))
    epsilon = torch.tensor([1e-3, 2e-3, 5e-4])
    traces = sgld_sample(
        model, losses, train, points(2, seed=9), n_beta=50.0, epsilon=epsilon, gamma=5.0, n_chains=chains, n_draws=2,
        thin=2, burn_in=1, batch_size=batch_size, generator=generator(4),
        observe=lambda m, *_: torch.cat([p.flatten() for p in m.parameters()]),
    )  # fmt: skip
    for chain in range(chains):
        rows = [b[chain] for b in batches] if batch_size else [torch.arange(7)] * steps
        path = reference_chain(
            model, train, torch.stack(noise)[:, chain], rows, n_beta=50.0, epsilon=float(epsilon[chain]), gamma=5.0
        )
        torch.testing.assert_close(traces.query[chain], path[[2, 4]], rtol=1e-9, atol=1e-11)
        with torch.no_grad():
            torch.testing.assert_close(traces.train[chain, 1], FlatModel(model)(path[4], losses, *train))
    assert traces.train.shape == (3, 2, 7)
    assert traces.gradient_calls == steps


def test_same_generator_same_draws_and_the_model_is_left_alone() -> None:
    model, train = network(), points(6)
    before = [p.clone() for p in model.parameters()]
    runs = [
        sgld_sample(model, losses, train, train, n_chains=2, n_draws=3, generator=generator(1), **QUIET)
        for _ in range(2)
    ]
    assert torch.equal(runs[0].train, runs[1].train)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    assert not any(p.grad is not None for p in model.parameters())
    assert not torch.allclose(runs[0].train[0], runs[0].train[1])


def test_each_chain_stays_near_its_own_centre() -> None:
    model, train = network(), points(6)
    centres = torch.stack([FlatModel(network(seed)).vector for seed in (0, 1)]).repeat_interleave(2, 0)
    traces = sgld_sample(
        model, losses, train, train, n_beta=0.0, epsilon=1e-4, gamma=1e4, n_chains=4, n_draws=200, burn_in=20,
        centres=centres, generator=generator(), observe=lambda m, *_: m[0].weight.flatten(),
    )  # fmt: skip
    spread = (traces.query.mean(1) - centres[:, :12]).abs().max()
    assert spread < 0.01
    assert traces.part(slice(2, 4)).train.shape == (2, 200, 6)
    assert traces.part(draws=slice(0, 9)).query.shape == (4, 9, 12)


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Dropout(), nn.Flatten())
        self.head = nn.Linear(18, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def test_any_module_convolutions_batch_norm_dropout() -> None:
    model, train = build(Convolution), (normal(6, 1, 5, 5), torch.randint(3, (6,), generator=generator()))
    traces = sgld_sample(model, losses, train, train, n_chains=2, n_draws=4, generator=generator(), **QUIET)
    assert traces.train.shape == (2, 4, 6)
    torch.testing.assert_close(traces.train, traces.query)  # dropout is off: the same data twice, the same losses
    model.train()
    with pytest.raises(ValueError, match=r"model.eval\(\)"):
        sgld_sample(model, losses, train, train, n_chains=2, n_draws=4, generator=generator(), **QUIET)


def test_frozen_parameters_stay_frozen() -> None:
    model, train = network(), points(6)
    model[0].requires_grad_(False)
    traces = sgld_sample(
        model, losses, train, train, n_chains=2, n_draws=2, generator=generator(),
        observe=lambda m, *_: m[0].weight.flatten(), **QUIET,
    )  # fmt: skip
    assert torch.equal(traces.query[0, 0], model[0].weight.flatten())
    model.requires_grad_(False)
    with pytest.raises(ValueError, match="nothing to vary"):
        FlatModel(model)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_chains": 0}, "n_chains must be at least 1, not 0"),
        ({"n_draws": 0}, "n_draws"),
        ({"thin": 0}, "thin"),
        ({"burn_in": -1}, "burn_in"),
        ({"batch_size": 7}, "0 .all. to 6, the number of training examples"),
        ({"epsilon": 0.0}, "epsilon must be positive"),
        ({"gamma": -1.0}, "gamma must not be negative"),
        ({"epsilon": math.nan}, "epsilon must be positive"),
        ({"centres": torch.zeros(3, 2)}, r"centres must be \(2, 31\)"),
    ],
)
def test_bad_settings_say_what_is_wrong(changes: dict, message: str) -> None:
    settings = QUIET | {"n_chains": 2, "n_draws": 2} | changes
    with pytest.raises(ValueError, match=message):
        sgld_sample(network(), losses, points(6), points(2), generator=generator(), **settings)


def test_bad_data_say_what_is_wrong() -> None:
    x, y = points(6)
    run = {"n_chains": 2, "n_draws": 2, "generator": generator()} | QUIET
    for train, query, message in [
        ((x[:0], y[:0]), (x, y), "train must be tensors"),
        ((x, y[:5]), (x, y), "same positive number of rows"),
        ((x, y), (x.log(), y), "query has values that are not finite"),
        ((), (x, y), "train must be tensors"),
    ]:
        with pytest.raises(ValueError, match=message):
            sgld_sample(network(), losses, train, query, **run)
    broken = network()
    broken[0].weight.data.fill_(math.nan)
    with pytest.raises(ValueError, match="not finite: train the model first"):
        sgld_sample(broken, losses, (x, y), (x, y), **run)


@pytest.mark.parametrize("network_kind", ["quadratic", "saturating"])
def test_a_step_size_that_diverges_is_reported_with_its_step(network_kind: str) -> None:
    if network_kind == "quadratic":
        x, y, model = least_squares()
        curvature = torch.linalg.eigvalsh(x.T @ x / len(x))[-1].item()
        loss, train = squares, (x, y)
    else:
        # A bounded gradient never overflows: what gives it away is an energy that no equilibrium has.
        model, train, loss, curvature = network(), points(20), losses, 0.05
    settings = {"n_beta": 1e4, "gamma": 10.0, "n_chains": 2, "n_draws": 200, "generator": generator()}
    stable = 1.0 / (1e4 * curvature + 10)
    before = [p.clone() for p in model.parameters()]
    factor = 5.0 if network_kind == "quadratic" else 400.0
    with pytest.raises(FloatingPointError, match=r"diverged at step \d+ of 200: lower epsilon"):
        sgld_sample(model, loss, train, train, epsilon=factor * stable, **settings)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    if network_kind == "quadratic":
        assert sgld_sample(model, loss, train, train, epsilon=3.0 * stable, **settings).train.isfinite().all()


def test_weights_that_overflow_during_burn_in_are_reported() -> None:
    x, y, model = least_squares()
    with pytest.raises(FloatingPointError, match=r"chain 1 diverged at step \d+"):
        sgld_sample(
            model, squares, (x, y), (x, y), n_beta=1e4, gamma=1.0, epsilon=torch.tensor([1e-6, 1.0]), n_chains=2,
            n_draws=1, burn_in=500, generator=generator(),
        )  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------------
# cost


def cost(draws: int, chains: int = 2) -> int:
    model, train = network(), points(12)
    with FlopCounterMode(display=False) as counter:
        sgld_sample(
            model,
            losses,
            train,
            train,
            n_chains=chains,
            n_draws=draws,
            thin=2,
            burn_in=3,
            generator=generator(),
            **QUIET,
        )
    return counter.get_total_flops()


def departure_from_a_line(ends: list[int]) -> float:
    """C8b: 1 - R^2 of operations against draws."""
    draws = np.geomspace(*ends, 4).round().astype(int)
    return 1 - np.corrcoef(draws, [cost(int(t)) for t in draws])[0, 1] ** 2


def passes_a_step() -> float:
    """C8: operations of a sampler step over those of a forward pass over the same data."""
    train = points(12)
    with FlopCounterMode(display=False) as forward:
        losses(network(), *train)
    a_draw, draws, chains = (cost(20) - cost(10)) / 10, 2 * forward.get_total_flops(), 2
    return (a_draw / chains - draws) / 2 / forward.get_total_flops()


def test_cost_is_linear_in_draws_and_has_no_second_derivative() -> None:
    assert cost(20) - cost(10) == cost(30) - cost(20)
    assert departure_from_a_line([4, 64]) < 1e-12
    assert passes_a_step() <= 3


@pytest.mark.mutation("C8b")
def test_work_that_grows_with_the_draws_behind_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    step, made = bif.sgld_step, []

    def repeating(w: Tensor, *args: Tensor, **kwargs: Tensor) -> Tensor:
        made.append(w)
        return step(w, *args, **kwargs) + 0 * sum((v @ v.T).sum() for v in made)

    monkeypatch.setattr(bif, "sgld_step", repeating)
    assert departure_from_a_line([4, 64]) > 0.01


@pytest.mark.mutation("C8")
def test_a_hessian_vector_product_a_step_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    step, model, train = bif.sgld_step, network(), points(12)
    flat = FlatModel(model)

    def with_product(w: Tensor, gradient: Tensor, *args: Tensor, **kwargs: Tensor) -> Tensor:
        def slope(vector: Tensor) -> Tensor:
            return torch.func.grad(lambda v: flat(v, losses, *train).mean())(vector)

        torch.func.vmap(lambda v, g: torch.func.jvp(slope, (v,), (g,))[1])(w, gradient)
        return step(w, gradient, *args, **kwargs)

    monkeypatch.setattr(bif, "sgld_step", with_product)
    assert passes_a_step() > 3


# ---------------------------------------------------------------------------------------------------------------------
# the estimator


def random_traces(chains: int = 3, draws: int = 40, n: int = 5, q: int = 4, seed: int = 0) -> LossTraces:
    return LossTraces(normal(chains, draws, n, seed=seed), normal(chains, draws, q, seed=seed + 1))


def test_estimator_is_minus_the_covariance() -> None:
    traces = random_traces()
    stacked = [t.flatten(0, 1).T.numpy() for t in (traces.query, traces.train)]
    pooled = bayesian_influence(traces, center="pooled").scores
    np.testing.assert_allclose(pooled, -np.cov(*stacked)[:4, 4:], rtol=1e-10, atol=1e-12)
    each = [-np.cov(traces.query[c].T.numpy(), traces.train[c].T.numpy())[:4, 4:] for c in range(3)]
    np.testing.assert_allclose(bayesian_influence(traces).scores, np.mean(each, 0), rtol=1e-10, atol=1e-12)
    normalised = bayesian_influence(traces, center="pooled", normalize=True).scores
    np.testing.assert_allclose(normalised, -np.corrcoef(*stacked)[:4, 4:], rtol=1e-10, atol=1e-12)
    assert bayesian_influence(LossTraces(traces.train.float(), traces.query.float())).scores.dtype == DOUBLE


def test_pooled_centring_counts_the_distance_between_chains() -> None:
    traces = random_traces()
    apart = torch.tensor([0.0, 5.0, -5.0], dtype=DOUBLE)[:, None, None]
    moved = LossTraces(traces.train + apart, traces.query + apart)
    torch.testing.assert_close(bayesian_influence(moved).scores, bayesian_influence(traces).scores)
    assert (bayesian_influence(moved, center="pooled").scores < -10).all()


@given(st.integers(0, 2**31), st.floats(0.1, 10), st.floats(-5, 5))
@settings(max_examples=25, deadline=None)
def test_permutations_scales_and_shifts(seed: int, scale: float, shift: float) -> None:
    traces, order = random_traces(seed=seed), torch.randperm(5, generator=generator(seed))
    changed = LossTraces(scale * traces.train[..., order] + shift, traces.query)
    torch.testing.assert_close(bayesian_influence(changed).scores, scale * bayesian_influence(traces).scores[:, order])
    normalised = bayesian_influence(changed, normalize=True).scores
    torch.testing.assert_close(normalised, bayesian_influence(traces, normalize=True).scores[:, order])
    assert normalised.abs().max() <= 1 + 1e-12
    swapped = LossTraces(traces.query, traces.train)
    torch.testing.assert_close(bayesian_influence(swapped).scores, bayesian_influence(traces).scores.T)


def token_error(normalize: bool = False) -> float:
    """C7: token scores summed over tokens against the sequence's score."""
    tokens = LossTraces(normal(2, 30, 4, 6), normal(2, 30, 3, 5, seed=1))
    sequences = LossTraces(tokens.train.sum(-1), tokens.query.sum(-1))
    by_token = bayesian_influence(tokens, normalize=normalize).scores
    assert by_token.shape == (3, 5, 4, 6)
    return relative(by_token.sum((1, 3)), bayesian_influence(sequences, normalize=normalize).scores)


def test_token_scores_sum_to_the_sequence() -> None:
    assert token_error() < 1e-5


@pytest.mark.mutation("C7")
def test_correlations_do_not_sum() -> None:
    assert token_error(normalize=True) > 1e-5


def test_a_query_that_is_a_training_example_is_handled_and_said() -> None:
    model, (x, y) = network(), points(8)
    query = (torch.cat([x[5:6], normal(2, 3, seed=7)]), torch.cat([y[5:6], y[:2]]))
    traces = sgld_sample(model, losses, (x, y), query, n_chains=2, n_draws=30, generator=generator(), **QUIET)
    assert traces.copies == ((0, 5),)
    raw, normalised = (bayesian_influence(traces, normalize=n) for n in (False, True))
    variance = traces.train[..., 5].double().var(1).mean()
    assert raw.scores[0, 5].item() == pytest.approx(-variance.item(), rel=1e-9)
    assert normalised.scores[0, 5].item() == pytest.approx(-1, abs=1e-12)
    assert normalised.scores[0].argmin() == 5
    assert "query 0 is training example 5" in raw.notes[0]


def test_a_constant_loss_has_no_influence() -> None:
    traces = random_traces()
    traces.train[..., 2] = 1.5
    scores = bayesian_influence(traces, normalize=True).scores
    assert torch.equal(scores[:, 2], torch.zeros(4, dtype=DOUBLE))
    assert scores.isfinite().all()


def test_notes_on_mixing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        good = bayesian_influence(random_traces(4, 400))
        assert good.notes == []
        assert good.r_hat.shape == good.effective_draws.shape == (9,)
        walk = random_traces(4, 200).train.cumsum(1)
        assert "the chains have not mixed: largest R-hat" in bayesian_influence(LossTraces(walk, walk)).notes[0]
        assert "one chain" in bayesian_influence(random_traces(1)).notes[0]
        assert "too few to judge" in bayesian_influence(random_traces(2, 3)).notes[0]


def test_effective_draws_of_an_autoregression() -> None:
    noise, phi = normal(4, 4000, 1, seed=3), 0.8
    trace = torch.zeros_like(noise)
    for t in range(1, 4000):
        trace[:, t] = phi * trace[:, t - 1] + noise[:, t]
    expected = 16000 * (1 - phi) / (1 + phi)
    assert bayesian_influence(LossTraces(trace, trace)).effective_draws[0] == pytest.approx(expected, rel=0.15)


def test_bad_estimator_input() -> None:
    with pytest.raises(ValueError, match="'chain' or 'pooled'"):
        bayesian_influence(random_traces(), center="both")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least two draws"):
        bayesian_influence(random_traces(draws=1))


# ---------------------------------------------------------------------------------------------------------------------
# baselines


def test_gradients_are_those_of_autograd_whatever_the_chunk() -> None:
    model, data = network(), points(5)
    expected = []
    for i in range(5):
        loss = losses(model, *(t[i : i + 1] for t in data)).sum()
        expected.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]))
    for chunk in (None, 2):
        torch.testing.assert_close(per_example_gradients(model, losses, data, chunk), torch.stack(expected))
    stack = torch.stack([FlatModel(network(seed)).vector for seed in (1, 0)])
    torch.testing.assert_close(per_example_gradients(model, losses, data, weights=stack)[1], torch.stack(expected))


def test_gradient_against_finite_differences() -> None:
    model, data, step = network(), points(1), 1e-5
    flat = FlatModel(model)
    shifts = step * torch.eye(len(flat.vector), dtype=DOUBLE)
    slopes = [
        (flat(flat.vector + s, losses, *data) - flat(flat.vector - s, losses, *data)) / (2 * step) for s in shifts
    ]
    torch.testing.assert_close(
        per_example_gradients(model, losses, data)[0], torch.cat(slopes).detach(), rtol=0, atol=1e-8
    )


def test_gauss_newton_of_a_linear_classifier_is_its_hessian() -> None:
    model, data = build(lambda: nn.Linear(3, 3)), points(9)
    flat = FlatModel(model)
    hessian = torch.func.hessian(lambda v: flat(v, losses, *data).mean())(flat.vector)
    roots = ggn_roots(model, logits, data, chunk=4)
    torch.testing.assert_close(roots.T @ roots, hessian.detach())


@pytest.mark.parametrize("rows", [4, 40])
def test_both_forms_of_the_damped_inverse(rows: int) -> None:
    query, roots, train = normal(2, 12), normal(rows, 12, seed=1), normal(5, 12, seed=2)
    expected = -query @ torch.linalg.inv(roots.T @ roots + 0.3 * torch.eye(12)) @ train.T
    torch.testing.assert_close(damped_influence(query, roots, train, 0.3), expected)
    with pytest.raises(ValueError, match="damping must be positive"):
        damped_influence(query, roots, train, 0.0)


def test_large_damping_is_the_gradient_product() -> None:
    query, roots, train = normal(2, 12), normal(40, 12, seed=1), normal(5, 12, seed=2)
    torch.testing.assert_close(1e9 * damped_influence(query, roots, train, 1e9), -query @ train.T, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("bias", [True, False])
def test_ekfac_is_exact_where_one_product_is_the_curvature(bias: bool) -> None:
    # One layer and one training example: the Gauss-Newton matrix is a Kronecker product.
    model = build(lambda: nn.Linear(3, 3, bias=bias))
    train, query = points(1), points(4, seed=5)
    gradients = [per_example_gradients(model, losses, data) for data in (query, train)]
    exact = damped_influence(gradients[0], ggn_roots(model, logits, train), gradients[1], 0.05)
    torch.testing.assert_close(ekfac_influence(model, losses, logits, train, query, 0.05), exact)


def test_ekfac_drops_the_blocks_between_layers_and_keeps_the_diagonal_in_its_basis() -> None:
    model, train, query = network(), points(20), points(4, seed=5)
    gradients = [per_example_gradients(model, losses, data) for data in (query, train)]
    exact = damped_influence(gradients[0], ggn_roots(model, logits, train), gradients[1], 1e-2)
    score = ekfac_influence(model, losses, logits, train, query, 1e-2)
    plain = -gradients[0] @ gradients[1].T
    correlation = [np.corrcoef(s.flatten(), exact.flatten())[0, 1] for s in (score, plain)]
    assert correlation[0] > correlation[1]


def test_ekfac_says_what_it_does_not_cover() -> None:
    train = points(5)
    with pytest.raises(ValueError, match=r"linear layers only, not 1\.bias, 1\.weight"):
        ekfac_influence(
            build(lambda: nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))), losses, logits, train, train, 1.0
        )

    def twice(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return model(torch.stack([x, x], 1)).mean(1)

    with pytest.raises(ValueError, match="without positions"):
        ekfac_influence(network(), losses, twice, train, train, 1.0)


# ---------------------------------------------------------------------------------------------------------------------
# retraining


def test_a_stack_is_trained_as_each_alone() -> None:
    model, data = network(), [points(6, seed=s) for s in range(3)]
    starts = torch.stack([FlatModel(network(s)).vector for s in range(3)])
    stacked = [torch.stack([d[k] for d in data]) for k in range(2)]
    ended = fit_stack(model, losses, stacked, starts, steps=7, rate=0.05, weight_decay=0.1, snapshots=[3])
    for i in range(3):
        alone = network(i)
        optimiser = torch.optim.Adam(alone.parameters(), lr=0.05, weight_decay=0.1)
        for step in range(7):
            optimiser.param_groups[0]["lr"] = 0.05 * 0.5 * (1 + math.cos(math.pi * step / 7))
            optimiser.zero_grad()
            losses(alone, *data[i]).mean().backward()
            optimiser.step()
            if step == 2:
                torch.testing.assert_close(ended[0, i], FlatModel(alone).vector)
        torch.testing.assert_close(ended[1, i], FlatModel(alone).vector)


def test_retraining_on_everything_is_training() -> None:
    model, train, query = network(), points(6), points(3, seed=2)
    starts = torch.stack([FlatModel(network(s)).vector for s in range(2)])
    options = {"steps": 5, "rate": 0.05}
    subsets = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]], dtype=torch.bool)
    values = retrain_subsets(model, losses, train, query, subsets, starts, **options)
    weights = fit_stack(model, losses, [t.expand(2, *t.shape) for t in train], starts, **options)[-1]
    expected = torch.stack([FlatModel(model)(w, losses, *query) for w in weights]).detach()
    assert values.shape == (2, 2, 3)
    torch.testing.assert_close(values, expected[:, None].expand(2, 2, 3))
    left_out = retrain_subsets(model, losses, train, query, subsets & (torch.arange(6) != 2), starts, **options)
    rest = [t[[0, 1, 3, 4, 5]] for t in train]
    weights = fit_stack(model, losses, [t.expand(2, *t.shape) for t in rest], starts, **options)[-1]
    torch.testing.assert_close(left_out[1, 0], FlatModel(model)(weights[1], losses, *query).detach())


def test_bad_subsets_and_rates() -> None:
    model, train = network(), points(6)
    starts = FlatModel(model).vector[None]
    for subsets in (torch.ones(2, 5), torch.eye(6)[:2] + torch.eye(6)[1:2], torch.zeros(2, 6)):
        with pytest.raises(ValueError, match="same positive number of members"):
            retrain_subsets(model, losses, train, train, subsets.bool(), starts, steps=2, rate=0.1)
    with pytest.raises(FloatingPointError, match="lower the rate"):
        fit_stack(model, losses, [t[None] for t in train], starts, steps=2, rate=math.inf)


def test_lds_is_the_mean_rank_correlation() -> None:
    scores, subsets = normal(4, 9), torch.rand(12, 9, generator=generator()) < 0.5
    measured = normal(12, 4, seed=3).round(decimals=1)  # with ties
    predicted = subsets.double() @ scores.T
    expected = np.mean([spearmanr(predicted[:, j], measured[:, j]).statistic for j in range(4)])
    assert linear_datamodeling_score(scores, subsets, measured) == pytest.approx(expected, abs=1e-12)
    assert linear_datamodeling_score(scores, subsets, predicted.exp()) == pytest.approx(1)
    assert linear_datamodeling_score(-3 * scores, subsets, predicted) == pytest.approx(-1)
    assert linear_datamodeling_score(torch.zeros(4, 9), subsets, measured) == 0
    for wrong in (
        (scores[:3], subsets, measured),
        (scores[:, :8], subsets, measured),
        (scores, subsets[:2], measured[:2]),
    ):
        with pytest.raises(ValueError, match="do not fit together"):
            linear_datamodeling_score(*wrong)


def test_influence_foretells_retraining_of_least_squares() -> None:
    x, y, _ = least_squares(40)
    score = gaussian_bif(x, y, beta=100.0, gamma=1e-3)
    subsets = torch.rand(60, 40, generator=generator(5)).argsort(1) < 30
    after = []
    for members in subsets:
        w = torch.linalg.lstsq(x[members], y[members, None]).solution[:, 0]
        after.append((x @ w - y).square() / 2)
    assert linear_datamodeling_score(score, subsets, torch.stack(after)) > 0.6


# ---------------------------------------------------------------------------------------------------------------------
# language models


def decoder(family: str) -> nn.Module:
    return tiny_decoder(family, layers=2, vocabulary=17, context=32).double()


def test_token_losses_are_the_model_s_and_padding_counts_nothing() -> None:
    model, tokens = decoder("llama"), torch.randint(17, (3, 7), generator=generator())
    real = torch.ones(3, 7, dtype=torch.bool)
    real[1, 4:] = False
    tail = DecoderTail(model, 1, 2, generator(1), train_a=False)
    values = next_token_losses(tail, *tail_states(model, tokens, 1), tokens, real)
    assert values.shape == (3, 6)
    assert (values[1, 3:] == 0).all()
    expected = F.cross_entropy(model(tokens).logits[0, :-1], tokens[0, 1:], reduction="none")
    torch.testing.assert_close(values[0], expected)


def test_token_influence_of_a_language_model() -> None:
    model, tokens = decoder("gpt2"), torch.randint(17, (4, 7), generator=generator())
    tail = DecoderTail(model, 1, 2, generator(1), train_a=False)
    data = (*tail_states(model, tokens, 1), tokens, torch.ones(4, 7, dtype=torch.bool))
    traces = sgld_sample(
        tail, next_token_losses, data, tuple(t[:2] for t in data), n_beta=100.0, epsilon=1e-4, gamma=100.0,
        n_chains=2, n_draws=20, generator=generator(),
    )  # fmt: skip
    assert traces.copies == ((0, 0), (1, 1))
    scores = bayesian_influence(traces).scores
    assert scores.shape == (2, 6, 4, 6)
    sequences = bayesian_influence(LossTraces(traces.train.double().sum(-1), traces.query.double().sum(-1))).scores
    torch.testing.assert_close(scores.sum((1, 3)), sequences)


# ---------------------------------------------------------------------------------------------------------------------
# the notebook on a checkpoint it never saw


@pytest.mark.slow
def test_the_full_preset_reads_a_language_model_from_a_folder(tmp_path: Path) -> None:
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False)
    core.train_from_iterator([" negative positive Review: Sentiment:"] * 9, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|endoftext|>")
    checkpoint = tmp_path / "tiny"
    tiny_decoder("neox", layers=2, vocabulary=len(tokenizer), context=2048).save_pretrained(checkpoint)
    tokenizer.save_pretrained(checkpoint)
    small = {"n_train": 24, "n_query": 8, "steps": 10, "n_subsets": 6, "n_draws": 10, "burn_in": 5, "token_draws": 8}
    notebook = read_script(ROOT / "notebooks" / "bayesian_influence.py")
    execute(notebook, tmp_path / "run", {"preset": "smoke", "model": str(checkpoint), "fractions": [0.5]} | small)
    verdicts = {claim.id: claim.verdict for claim in Record.read(tmp_path / "run" / RECORD_NAME).claims}
    assert {verdicts[c] for c in ("C1", "C1b", "C2", "C3", "C7", "C8")} == {"holds"}
    assert verdicts["C6"] == "not evaluated"
