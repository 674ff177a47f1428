"""The one training loop, and the cache of the small models that it trains."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load_model, save_model
from torch import Tensor, nn

from lib.substrates.cache import cached_folder

Batch = TypeVar("Batch")
Model = TypeVar("Model", bound=nn.Module)
_WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Plan:
    """How long and how fast to train.

    The learning rate rises linearly over the first `warmup` steps to `learning_rate`, then falls along a half
    cosine to `final_fraction` of it at the last step. `weight_decay` acts on matrices only, not on biases or gains.

    Raises:
        ValueError: if a value is out of range.
    """

    steps: int
    learning_rate: float
    batch_size: int = 32
    weight_decay: float = 0.01
    warmup: int = 0
    final_fraction: float = 0.0
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        if self.steps < 1 or self.batch_size < 1:
            raise ValueError(f"steps and batch_size must be at least 1, not {self.steps} and {self.batch_size}")
        if not 0 <= self.warmup < self.steps:
            raise ValueError(f"warmup must lie in [0, steps), not {self.warmup} with {self.steps} steps")
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise ValueError(f"learning_rate must be positive and finite, not {self.learning_rate}")
        if not 0 <= self.final_fraction <= 1:
            raise ValueError(f"final_fraction must lie in [0, 1], not {self.final_fraction}")
        if not (self.weight_decay >= 0 and self.clip_norm > 0):
            raise ValueError(
                f"weight_decay must not be negative and clip_norm must be positive, not {self.weight_decay} "
                f"and {self.clip_norm}"
            )

    def rate(self, step: int) -> float:
        """Learning rate of the step, counted from 0."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        progress = (step - self.warmup) / max(1, self.steps - 1 - self.warmup)
        cosine = 0.5 * (1 + math.cos(math.pi * progress))
        return self.learning_rate * (self.final_fraction + (1 - self.final_fraction) * cosine)


def train(
    model: nn.Module,
    sample_batch: Callable[[torch.Generator, int], Batch],
    loss: Callable[[nn.Module, Batch], Tensor],
    plan: Plan,
    *,
    generator: torch.Generator,
    before_step: Callable[[int], None] | None = None,
    after_step: Callable[[int, float], None] | None = None,
) -> list[float]:
    """Trains `model` in place with AdamW and returns the loss of every step.

    Same generator state, same result: batches are drawn from `generator`, dropout from a seed drawn from it, and
    the global generators are left as they were. The model comes back in the mode (training or evaluation) it had.

    Args:
        model: parameters with ``requires_grad`` are trained; those added by `before_step` later are not.
        sample_batch: ``sample_batch(generator, batch_size)`` draws whatever `loss` takes.
        loss: ``loss(model, batch)`` is a scalar tensor.
        plan: steps, rates and batch size.
        generator: source of all randomness.
        before_step: ``before_step(step)``, called before the batch of that step is drawn; may change the model.
        after_step: ``after_step(step, loss)``, called after the update: the place to report early, or to stop
            by raising.

    Raises:
        ValueError: if the model has nothing to train, or the loss is not a scalar.
        FloatingPointError: if the loss or the gradient of a step is not finite, before it reaches the parameters.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise ValueError("the model has no parameter that requires a gradient: nothing to train")
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": plan.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimiser = torch.optim.AdamW([group for group in groups if group["params"]], lr=plan.learning_rate)
    seed = int(torch.randint(2**31, (1,), generator=generator, device=generator.device))
    losses: list[float] = []
    with _seeded(seed), _training_mode(model):
        for step in range(plan.steps):
            if before_step is not None:
                before_step(step)
            for group in optimiser.param_groups:
                group["lr"] = plan.rate(step)
            value = loss(model, sample_batch(generator, plan.batch_size))
            if value.ndim:
                raise ValueError(f"the loss must be a scalar, but has shape {tuple(value.shape)}: reduce it")
            optimiser.zero_grad(set_to_none=True)
            value.backward()
            norm = nn.utils.clip_grad_norm_(parameters, plan.clip_norm)
            for what, number in (("loss", value.item()), ("gradient norm", norm.item())):
                if not math.isfinite(number):
                    raise FloatingPointError(
                        f"the {what} became {number} at step {step} of {plan.steps}: lower learning_rate "
                        f"({plan.learning_rate:g}) or lengthen warmup ({plan.warmup})"
                    )
            optimiser.step()
            losses.append(value.item())
            if after_step is not None:
                after_step(step, losses[-1])
    return losses


def cached_model(recipe: Mapping[str, Any], build: Callable[[], Model], fit: Callable[[Model], object]) -> Model:
    """The model that `build` makes and `fit` trains, from the cache if it was trained before.

    The cache is keyed by a hash of the recipe and of torch's release series, so the recipe has to say everything
    that determines the weights: sizes, data, plan, and a version number to raise when the code of `fit` changes.
    Only parameters and buffers are cached. A cache never changes a result: the weights are read back from the file
    also after training, and a damaged file is rebuilt.

    Args:
        recipe: JSON values; its ``"seed"`` (0 if absent) seeds the global generators within `build` and `fit`,
            which are left as they were outside.
        build: makes the untrained model.
        fit: trains it in place; called only when the cache has no such model.

    Returns:
        The trained model in evaluation mode.

    Raises:
        ValueError: if the recipe is not made of finite JSON values, or if `build` makes a model of another shape
            than the one cached under this recipe.
    """
    key = recipe_key(recipe)
    seed = int(recipe.get("seed", 0))

    def fill(folder: Path) -> None:
        with _seeded(seed):
            trained = build()
            fit(trained)
        save_model(trained, str(folder / _WEIGHTS))
        (folder / "recipe.json").write_text(json.dumps(dict(recipe), sort_keys=True, indent=1), encoding="utf-8")

    folder = cached_folder(f"trained-{key}", fill)
    with _seeded(seed):
        model = build()
    try:
        load_model(model, str(folder / _WEIGHTS))
    except RuntimeError as error:
        raise ValueError(
            "the cached model of this recipe has other parameters than the one that `build` makes now: "
            "the recipe must name everything that determines the model, such as its sizes or a version"
        ) from error
    return model.eval()


def recipe_key(recipe: Mapping[str, Any]) -> str:
    """Sixteen hexadecimal digits that name a recipe under this release series of torch; key order does not matter."""
    try:
        text = json.dumps(dict(recipe), sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"a recipe holds only finite numbers, strings, booleans, lists and tables ({error})"
        ) from error
    series = ".".join(torch.__version__.split(".")[:2])
    return hashlib.sha256(f"torch {series}\n{text}".encode()).hexdigest()[:16]


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Global generators seeded inside, restored outside: module initialisation and dropout know no other source."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield


@contextlib.contextmanager
def _training_mode(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    model.train()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
