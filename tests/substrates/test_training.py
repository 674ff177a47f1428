import dataclasses
import math
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from lib.substrates.training import Plan, cached_model, recipe_key, train

Batch = tuple[Tensor, Tensor]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PAPERS_THAT_RUN_CACHE", str(tmp_path))
    return tmp_path


def linear_batch(generator: torch.Generator, size: int) -> Batch:
    x = torch.randn(size, 3, generator=generator)
    return x, x @ torch.tensor([[1.0], [-2.0], [0.5]]) + 3


def squared_error(model: nn.Module, batch: Batch) -> Tensor:
    x, y = batch
    return (model(x) - y).square().mean()


def network(seed: int = 0, dropout: float = 0.0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 1))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def weights(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_it_learns_a_linear_map() -> None:
    model = nn.Linear(3, 1)
    losses = train(model, linear_batch, squared_error, Plan(400, 0.1, weight_decay=0.0), generator=generator())
    assert losses[-1] < 1e-3 < losses[0]
    torch.testing.assert_close(model.weight.data, torch.tensor([[1.0, -2.0, 0.5]]), atol=0.05, rtol=0)


def test_it_matches_a_loop_written_out() -> None:
    plan = Plan(7, 0.02, batch_size=4, weight_decay=0.3, warmup=2, final_fraction=0.1, clip_norm=0.5)
    model, reference = network(), network()
    losses = train(model, linear_batch, squared_error, plan, generator=generator(5))

    draws = generator(5)
    torch.randint(2**31, (1,), generator=draws)
    optimisers = [
        torch.optim.AdamW([p for p in reference.parameters() if p.ndim == 2], weight_decay=0.3),
        torch.optim.AdamW([p for p in reference.parameters() if p.ndim == 1], weight_decay=0.0),
    ]
    for step, rate in enumerate(
        [0.01, 0.02, *(0.02 * (0.1 + 0.45 * (1 + math.cos(math.pi * k / 4))) for k in range(5))]
    ):
        loss = squared_error(reference, linear_batch(draws, 4))
        assert loss.item() == pytest.approx(losses[step], rel=1e-6)
        reference.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
        for optimiser in optimisers:
            optimiser.param_groups[0]["lr"] = rate
            optimiser.step()
    torch.testing.assert_close(weights(model), weights(reference))


@given(
    steps=st.integers(1, 60),
    warmup_share=st.floats(0, 0.99),
    final_fraction=st.floats(0, 1),
    learning_rate=st.floats(1e-6, 10),
)
def test_the_rate_rises_then_falls(
    steps: int, warmup_share: float, final_fraction: float, learning_rate: float
) -> None:
    warmup = int(warmup_share * steps)
    plan = Plan(steps, learning_rate, warmup=warmup, final_fraction=final_fraction)
    rates = [plan.rate(step) for step in range(steps)]
    assert max(rates) == pytest.approx(learning_rate)
    assert all(0 <= rate <= learning_rate * (1 + 1e-12) for rate in rates)
    assert all(a <= b for a, b in pairwise(rates[:warmup]))
    assert all(a >= b - 1e-12 * learning_rate for a, b in pairwise(rates[warmup:]))
    if steps - warmup > 1:
        assert rates[-1] == pytest.approx(final_fraction * learning_rate, abs=1e-12 * learning_rate)


def test_same_generator_same_weights_whatever_the_global_state() -> None:
    results = []
    for global_seed in (1, 2):
        torch.manual_seed(global_seed)
        before = torch.get_rng_state()
        model = network(dropout=0.5)
        losses = train(model, linear_batch, squared_error, Plan(5, 0.01), generator=generator(3))
        assert torch.equal(torch.get_rng_state(), before)
        results.append((losses, weights(model)))
    assert results[0][0] == results[1][0]
    assert torch.equal(results[0][1], results[1][1])
    other = train(network(dropout=0.5), linear_batch, squared_error, Plan(5, 0.01), generator=generator(4))
    assert other != results[0][0]


def test_modes_come_back_and_frozen_parameters_stay() -> None:
    model = network(dropout=0.5)
    model.eval()
    model[2].train()
    model[0].requires_grad_(False)
    frozen = model[0].weight.clone()
    train(model, linear_batch, squared_error, Plan(3, 0.1), generator=generator())
    assert [module.training for module in model] == [False, False, True, False]
    assert torch.equal(model[0].weight, frozen)
    assert model[0].weight.grad is None


def test_hooks_see_every_step_in_order() -> None:
    seen: list[tuple[str, int]] = []
    losses = train(
        network(),
        linear_batch,
        squared_error,
        Plan(3, 0.01),
        generator=generator(),
        before_step=lambda step: seen.append(("before", step)),
        after_step=lambda step, loss: seen.append((f"after {loss}", step)),
    )
    assert seen == [entry for step in range(3) for entry in (("before", step), (f"after {losses[step]}", step))]


def test_a_hook_may_stop_training_and_the_mode_comes_back() -> None:
    def stop(step: int) -> None:
        if step == 2:
            raise StopIteration

    model = network().eval()
    with pytest.raises(StopIteration):
        train(model, linear_batch, squared_error, Plan(9, 0.01), generator=generator(), before_step=stop)
    assert not model.training


def test_a_loss_that_is_not_finite_names_the_step_and_spares_the_weights() -> None:
    model = network()
    steps: list[Tensor] = []

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        steps.append(weights(model))
        return squared_error(model, batch) * (float("nan") if len(steps) == 4 else 1.0)

    with pytest.raises(FloatingPointError, match=r"loss became nan at step 3 of 10: lower learning_rate \(0\.01\)"):
        train(model, linear_batch, loss, Plan(10, 0.01), generator=generator())
    assert torch.equal(weights(model), steps[-1])


def test_a_gradient_that_is_not_finite_is_an_error() -> None:
    with pytest.raises(FloatingPointError, match="gradient norm became nan at step 0"):
        train(
            network(),
            linear_batch,
            lambda model, batch: (model(batch[0]) * 0).abs().sqrt().sum(),
            Plan(2, 0.01),
            generator=generator(),
        )


def test_nothing_to_train_and_a_loss_of_many_numbers_are_errors() -> None:
    with pytest.raises(ValueError, match="nothing to train"):
        train(network().requires_grad_(False), linear_batch, squared_error, Plan(1, 0.1), generator=generator())
    with pytest.raises(ValueError, match=r"scalar, but has shape \(32, 1\)"):
        train(network(), linear_batch, lambda m, b: m(b[0]), Plan(1, 0.1), generator=generator())


@pytest.mark.parametrize(
    "change",
    [
        {"steps": 0},
        {"batch_size": 0},
        {"warmup": -1},
        {"warmup": 10},
        {"learning_rate": 0.0},
        {"learning_rate": math.nan},
        {"learning_rate": math.inf},
        {"final_fraction": 1.5},
        {"final_fraction": math.nan},
        {"clip_norm": 0.0},
        {"weight_decay": math.nan},
    ],
)
def test_a_plan_out_of_range_is_an_error(change: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        dataclasses.replace(Plan(10, 0.1), **change)


class Fit:
    """Trains for a few steps and counts how often it was asked to."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, model: nn.Module) -> None:
        self.calls += 1
        train(model, linear_batch, squared_error, Plan(5, 0.01), generator=generator())


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))


def test_the_cache_changes_no_result(own_cache: Path) -> None:
    fit = Fit()
    torch.manual_seed(1)
    state = torch.get_rng_state()
    trained = cached_model({"name": "test", "seed": 3}, build, fit)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    cached = cached_model({"seed": 3, "name": "test"}, build, fit)
    torch.manual_seed(3)
    by_hand = build()
    Fit()(by_hand)
    assert torch.equal(weights(by_hand), weights(cached))
    assert fit.calls == 1
    assert not trained.training
    assert not cached.training
    for (key, first), second in zip(trained.state_dict().items(), cached.state_dict().values(), strict=True):
        assert torch.equal(first, second), key
    for path in own_cache.glob("*/*"):
        path.unlink()
    rebuilt = cached_model({"name": "test", "seed": 3}, build, fit)
    assert fit.calls == 2
    assert torch.equal(weights(rebuilt), weights(trained))


def test_every_entry_of_the_recipe_counts() -> None:
    fit = Fit()
    base = cached_model({"seed": 0, "plan": {"steps": 5}}, build, fit)
    other = cached_model({"seed": 1, "plan": {"steps": 5}}, build, fit)
    cached_model({"seed": 0, "plan": {"steps": 6}}, build, fit)
    assert fit.calls == 3
    assert not torch.equal(weights(base), weights(other))


@pytest.mark.parametrize("size", [0, 10, -1])
def test_a_damaged_checkpoint_is_trained_again(own_cache: Path, size: int) -> None:
    fit = Fit()
    recipe = {"name": "damaged"}
    expected = weights(cached_model(recipe, build, fit))
    (path,) = own_cache.glob("trained-*/model.safetensors")
    path.write_bytes(path.read_bytes()[:size])
    assert torch.equal(weights(cached_model(recipe, build, fit)), expected)
    assert fit.calls == 2


def test_tied_weights_stay_tied() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(5, 3)
            self.head = nn.Linear(3, 5, bias=False)
            self.head.weight = self.embed.weight

    models = [cached_model({"name": "tied"}, Tied, lambda model: None) for _ in range(2)]
    assert all(model.head.weight is model.embed.weight for model in models)
    assert torch.equal(models[0].embed.weight, models[1].embed.weight)


def test_a_recipe_that_does_not_determine_the_model_is_an_error() -> None:
    cached_model({"name": "sizes"}, build, Fit())
    with pytest.raises(ValueError, match="the recipe must name everything"):
        cached_model({"name": "sizes"}, network, Fit())


@pytest.mark.parametrize("entry", [math.nan, math.inf, object(), {1, 2}, torch.ones(2)])
def test_recipes_hold_plain_finite_values(entry: object) -> None:
    with pytest.raises(ValueError, match="a recipe holds"):
        recipe_key({"entry": entry})
