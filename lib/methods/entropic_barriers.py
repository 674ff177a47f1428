"""Entropic barriers: curvature along low-loss paths between minima, and the drift that it gives to SGD.

Paper: Luca Di Carlo, Chase Goddard, David J. Schwab, *Entropic Confinement and Mode Connectivity in Overparameterized
Neural Networks* (ICLR 2026, arXiv 2512.06297). Notebook: ``notebooks/entropic_barriers``.

A network is a flat parameter vector of length P; whatever leading axes (written ``...``) a tensor of parameters has -
pivots, replicas, seeds, probes - advance together. A *loss* maps parameters (..., P) to losses (...), in nats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Self, cast

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn
from torch.func import functional_call, jvp, vmap
from torch.nn.functional import cross_entropy

from lib.substrates.images import load_images
from lib.substrates.models import load_language_model
from lib.substrates.tail import DecoderTail, tail_states
from lib.substrates.text import load_text

Loss = Callable[[Tensor], Tensor]
Logits = Callable[[Tensor, Tensor | None], Tensor]
Batches = Callable[[int], Tensor | None]
OptimiserName = Literal["sgd", "nesterov", "adam"]
_PROBES_AT_ONCE = 8  # of random signs: memory against calls
_BLOW_UP = 1e4  # times the first loss (or 1 nat): no useful run comes back from there


class Parameters(BaseModel):
    """Parameters of the notebook; the defaults are its `small` run."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    preset: str = Field("small", description="named parameter set of presets/entropic_barriers.toml")
    seed: int = Field(0, ge=0, description="seed of data, training and noise")
    dataset: Literal["digits", "mnist", "sst2"] = Field(
        "digits", description="images, or sentences for a language model"
    )
    model: Literal["mlp", "smollm2-135m-instruct"] = Field("mlp", description="an MLP, or adapters in a language model")
    n_train: int = Field(600, ge=20, description="training examples")
    label_noise: float = Field(0.2, ge=0, lt=1, description="share of the labels that are drawn anew")
    hidden: int = Field(24, ge=2, description="neurons of a hidden layer")
    depth: int = Field(2, ge=1, description="hidden layers")
    rank: int = Field(4, ge=1, description="rank of the adapters")
    minima_steps: int = Field(5000, ge=10, description="SGD steps to a minimum")
    lr: float = Field(0.05, gt=0, description="first learning rate of that training")
    optimiser: OptimiserName = Field("sgd", description="optimiser of that training: sgd (momentum 0.9) or adam")
    lr_drop: float = Field(5.0, ge=1, description="the rate is divided by it at 30, 60, 80 and 90 % of the steps")
    batch_size: int = Field(32, ge=1, description="batch size of that training")
    weight_decay: float = Field(5e-4, ge=0, description="weight decay, of training and of everything after")
    pivots: int = Field(13, ge=5, description="pivots of the finished path")
    neb_steps: list[int] = Field([400, 400, 600, 500], min_length=1, description="steps of the band's cycles")
    neb_rate: list[float] = Field([0.05, 0.05, 0.05, 0.01], min_length=1, description="their learning rates")
    neb_batch: int = Field(0, ge=0, description="batch size of the band; 0: full batch")
    drift_eta: list[float] = Field([0.05, 0.1], min_length=1, description="learning rates of the drift test")
    drift_batch: list[int] = Field([4, 8, 32], min_length=1, description="its batch sizes, the smallest first")
    drift_steps: int = Field(30, ge=1, description="its SGD steps")
    replicas: int = Field(256, ge=4, description="its replicas a pivot")
    project_every: int = Field(15, ge=1, description="SGD steps between two projections onto the path")
    project_steps: int = Field(600, ge=0, description="steps of projected SGD; 0 leaves it out")
    branch_total: int = Field(5000, ge=0, description="steps of the branching-time training; 0 leaves it out")
    branch_steps: list[int] = Field([0, 50, 150, 400, 800, 1200], min_length=2, description="when copies part")
    branch_seeds: int = Field(5, ge=2, description="trunks of the branching-time experiment")
    walkers: int = Field(4000, ge=100, description="walkers of the toy model")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.model == "mlp") == (self.dataset == "sst2"):
            raise ValueError("the dataset sst2 and the model smollm2-135m-instruct go together, and only they")
        if len(self.neb_steps) != len(self.neb_rate):
            raise ValueError("neb_steps and neb_rate must be of one length, a number a cycle")
        if self.branch_total and max(self.branch_steps) >= self.branch_total:
            raise ValueError("every one of branch_steps must lie below branch_total")
        if self.drift_batch != sorted(set(self.drift_batch)):
            raise ValueError("drift_batch must rise from the smallest batch to the largest")
        return self


# Networks as flat vectors


@dataclass(frozen=True)
class MLP:
    """ReLU network with layers of these sizes over inputs ``x (N, sizes[0])``; a batch is an index ``(..., B)``."""

    sizes: tuple[int, ...]
    x: Tensor

    def __post_init__(self) -> None:
        if len(self.sizes) < 2 or self.x.ndim != 2 or self.x.shape[1] != self.sizes[0] or not len(self.x):
            raise ValueError(f"x must be (N, {self.sizes[0]}) for layers {self.sizes}, not {tuple(self.x.shape)}")
        if not self.x.isfinite().all():
            raise ValueError("x holds NaN or infinite values: drop or fill those rows first")

    @property
    def size(self) -> int:
        """Number of parameters P."""
        return sum((m + 1) * n for m, n in zip(self.sizes, self.sizes[1:], strict=False))

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Initial parameters (count, P): He-normal weights, zero biases."""
        parts = []
        for m, n in zip(self.sizes, self.sizes[1:], strict=False):
            parts.append(torch.randn(count, m * n, generator=generator, dtype=self.x.dtype) * math.sqrt(2 / m))
            parts.append(self.x.new_zeros(count, n))
        return torch.cat(parts, -1)

    def __call__(self, theta: Tensor, index: Tensor | None = None) -> Tensor:
        """Logits (..., B, C) of the indexed inputs, or (..., N, C) of all."""
        flat, start = theta.reshape(-1, theta.shape[-1]), 0
        a = self.x.expand(len(flat), -1, -1) if index is None else self.x[index.reshape(len(flat), -1)]
        for layer, (m, n) in enumerate(zip(self.sizes, self.sizes[1:], strict=False)):
            weight, bias = flat[:, start : start + m * n].unflatten(-1, (m, n)), flat[:, start + m * n :][:, None, :n]
            a = torch.baddbmm(bias, a.relu() if layer else a, weight)
            start += (m + 1) * n
        return a.view(*theta.shape[:-1], *a.shape[1:])


def module_logits(module: nn.Module, x: Tensor | Sequence[Tensor]) -> tuple[Tensor, Logits]:
    """Your own network over N inputs: its trained parameters (P,), and its logits as a function of such vectors.

    The module must treat examples one by one: no batch normalisation in training mode, no dropout.

    Args:
        module: parameters that require a gradient are the vector; the others stay as they are.
        x: (N, ...), or several such tensors, its arguments.
    """
    shapes = {name: p.shape for name, p in module.named_parameters() if p.requires_grad}
    examples = (x,) if isinstance(x, Tensor) else tuple(x)

    def one(theta: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
        pieces = theta.split([shape.numel() for shape in shapes.values()])
        named = {key: piece.view(shape) for (key, shape), piece in zip(shapes.items(), pieces, strict=True)}
        return functional_call(module, named, inputs)

    def logits(theta: Tensor, index: Tensor | None = None) -> Tensor:
        flat = theta.reshape(-1, theta.shape[-1])
        if index is None:
            out = vmap(one, (0, None))(flat, examples)
        else:
            rows = index.reshape(len(flat), -1)
            out = vmap(one)(flat, tuple(part[rows] for part in examples))
        return out.reshape(*theta.shape[:-1], *out.shape[1:])

    return torch.cat([p.detach().flatten() for p in module.parameters() if p.requires_grad]), logits


class PromptedModel:
    """A language model's answers to N prompts as a function of low-rank updates of its last blocks, as flat vectors.

    Args:
        model: a causal language model that :mod:`lib.substrates.architecture` knows; left as it is.
        tokens: (N, L) token ids, padded on the right.
        lengths: (N,) tokens of each prompt.
        answers: ids of the C answer tokens.
        rank: of the updates.
        blocks: how many blocks carry them.
    """

    def __init__(
        self, model: nn.Module, tokens: Tensor, lengths: Tensor, answers: Sequence[int], rank: int, blocks: int = 2
    ) -> None:
        inputs = (*tail_states(model, tokens, blocks), lengths - 1)
        self._at_start = lambda generator: module_logits(DecoderTail(model, blocks, rank, generator, answers), inputs)
        start, self._logits = self._at_start(torch.Generator())
        self.size = len(start)

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Initial parameters (count, P), at which the model is as it was: A random, B zero."""
        return torch.stack([self._at_start(generator)[0] for _ in range(count)])

    def __call__(self, theta: Tensor, index: Tensor | None = None) -> Tensor:
        """Logits (..., B, C) of the indexed prompts, or (..., N, C) of all."""
        return self._logits(theta, index)


@dataclass(frozen=True)
class Objective:
    """Mean cross-entropy of ``logits(theta, index)`` against ``labels (..., N)``, whose leading axes broadcast."""

    logits: Logits
    labels: Tensor

    def losses(self, theta: Tensor, index: Tensor | None = None, labels: Tensor | None = None) -> Tensor:
        """Cross-entropy (..., B) of each indexed example; ``labels (..., B)`` replace the data's own."""
        out = self.logits(theta, index)
        if labels is None:
            known = self.labels.expand(*theta.shape[:-1], self.labels.shape[-1])
            labels = known if index is None else known.gather(-1, index)
        return cross_entropy(out.flatten(0, -2), labels.flatten(), reduction="none").view(out.shape[:-1])

    def __call__(self, theta: Tensor, index: Tensor | None = None) -> Tensor:
        """Mean loss (...)."""
        return self.losses(theta, index).mean(-1)

    def scores(self, theta: Tensor, labels: Tensor | None = None, index: Tensor | None = None) -> Tensor:
        """Gradient (..., B, P) of each example's loss; ``labels`` as in :meth:`losses`. Size it for memory."""
        known = self.labels.expand(*theta.shape[:-1], self.labels.shape[-1])
        rows = torch.arange(known.shape[-1]) if index is None else index
        rows = rows.expand(*theta.shape[:-1], rows.shape[-1])
        chosen = known.gather(-1, rows) if labels is None else labels
        copies = theta.detach()[..., None, :].expand(*rows.shape, theta.shape[-1]).clone().requires_grad_()
        return gradient(lambda t: self.losses(t, rows[..., None], chosen[..., None])[..., 0], copies)[1]


def image_problem(
    dataset: str, n: int, hidden: Sequence[int], label_noise: float, generator: torch.Generator
) -> tuple[MLP, Tensor, Tensor]:
    """An MLP on n random images, centred; noisy labels (n,), a share of which is drawn anew; clean labels (n,)."""
    images = load_images(dataset)
    if images.labels is None or n > len(images.labels):
        raise ValueError(f"{dataset} can't supply {n} labelled images: lower n_train or take another data set")
    order = torch.randperm(len(images.labels), generator=generator)[:n]
    x, clean = torch.tensor(images.pixels).flatten(1)[order], torch.tensor(images.labels).long()[order]
    classes = int(clean.max()) + 1
    redrawn = torch.rand(n, generator=generator) < label_noise
    noisy = torch.where(redrawn, torch.randint(classes, (n,), generator=generator), clean)
    return MLP((x.shape[1], *hidden, classes), x - x.mean(0)), noisy, clean


def sentiment_problem(
    model: str, n: int, rank: int, label_noise: float, generator: torch.Generator
) -> tuple[PromptedModel, Tensor, Tensor]:
    """Adapters of a language model on n short SST-2 sentences; noisy labels (n,), a share flipped; clean labels."""
    corpus, (network, tokenizer) = load_text("sst2"), load_language_model(model)
    fitting = [i for i, text in enumerate(corpus.texts) if 5 <= len(text.split()) <= 14]
    chosen = [fitting[i] for i in torch.randperm(len(fitting), generator=generator)[:n]]
    prompts = [f"Review: {corpus.texts[i].strip()}\nSentiment:" for i in chosen]
    ids = [torch.tensor(tokenizer(prompt)["input_ids"]) for prompt in prompts]
    lengths, tokens = torch.tensor([len(row) for row in ids]), nn.utils.rnn.pad_sequence(ids, batch_first=True)
    answers = [tokenizer(word)["input_ids"][0] for word in (" negative", " positive")]
    clean = torch.tensor([(corpus.labels or [])[i] for i in chosen])
    flipped = torch.randperm(n, generator=generator)[: round(label_noise * n)]
    noisy = clean.index_put((flipped,), 1 - clean[flipped])
    return PromptedModel(network, tokens, lengths, answers, rank), noisy, clean


def gradient(loss: Loss, theta: Tensor) -> tuple[Tensor, Tensor]:
    """Losses (...) and their gradients (..., P)."""
    leaf = theta.detach().requires_grad_()
    value = loss(leaf)
    return value.detach(), torch.autograd.grad(value.sum(), leaf)[0]


# Descent


class Optimiser:
    """SGD with momentum, Nesterov's form of it, or Adam; weight decay enters the gradient (not decoupled).

    Raises ValueError for an unknown name or a negative setting.
    """

    def __init__(self, name: OptimiserName = "sgd", momentum: float = 0.0) -> None:
        if name not in ("sgd", "nesterov", "adam"):
            raise ValueError(f"unknown optimiser {name!r}: take sgd, nesterov or adam")
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must lie in [0, 1), not {momentum}")
        self.name, self.momentum = name, momentum
        self._mean: Tensor | None = None
        self._square = torch.zeros(())
        self._count = 0

    def step(self, slope: Tensor) -> Tensor:
        """The step (..., P), to be multiplied by the learning rate and subtracted, for gradients (..., P)."""
        if self.name == "adam":
            self._count += 1
            old = slope.new_zeros(()) if self._mean is None else self._mean
            self._mean = 0.9 * old + 0.1 * slope
            self._square = 0.999 * self._square + 0.001 * slope**2
            mean, square = self._mean / (1 - 0.9**self._count), self._square / (1 - 0.999**self._count)
            return mean / (square.sqrt() + 1e-8)
        if not self.momentum:
            return slope
        self._mean = slope.clone() if self._mean is None else self._mean.mul_(self.momentum).add_(slope)
        return slope + self.momentum * self._mean if self.name == "nesterov" else self._mean


def falling_rates(rate: float, steps: int, factor: float = 5.0) -> list[float]:
    """Learning rate of each step: divided by the factor at 30, 60, 80 and 90 per cent of them."""
    return [rate / factor ** sum(step >= share * steps for share in (0.3, 0.6, 0.8, 0.9)) for step in range(steps)]


def random_batches(n: int, batch_size: int, shape: Sequence[int], generator: torch.Generator) -> Batches:
    """Independent batches (*shape, batch_size) at every step, drawn with replacement; None if batch_size is 0."""
    if batch_size < 0:
        raise ValueError(f"batch_size must not be negative, not {batch_size}")
    return lambda step: torch.randint(n, (*shape, batch_size), generator=generator) if batch_size else None


def branching_batches(
    n: int, batch_size: int, branch: Sequence[int], trunks: int, generator: torch.Generator
) -> Batches:
    """Batches (trunks, len(branch), 2, batch_size) in which the two copies of a trunk agree until they part."""
    due = torch.tensor(list(branch))[:, None, None]

    def batches(step: int) -> Tensor:
        own = torch.randint(n, (trunks, len(due), 2, batch_size), generator=generator)
        shared = torch.randint(n, (trunks, 1, 1, batch_size), generator=generator)
        return torch.where(due <= step, own, shared)

    return batches


def _watch(value: Tensor, first: Tensor, step: int, rate: float, what: str) -> None:
    worst = float(value.max())
    if not worst <= _BLOW_UP * max(1.0, float(first.max())):
        raise ValueError(f"{what} diverged at step {step}, its loss is {worst:.3g}: lower the learning rate ({rate:g})")


def descend(
    objective: Objective,
    theta: Tensor,
    rates: Sequence[float],
    batches: Batches,
    *,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    optimiser: OptimiserName = "sgd",
    after_step: Callable[[int, Tensor], Tensor] | None = None,
) -> Tensor:
    """Train networks (..., P) side by side for ``len(rates)`` steps; full batch where ``batches`` gives None.

    ``after_step(step, theta)`` may move them, as a projection does.

    Raises:
        ValueError: parameters that are not finite, or a run that diverges; names the step.
    """
    _check_finite(theta, "theta")
    theta, rule, first = theta.detach().clone(), Optimiser(optimiser, momentum), torch.ones(())
    for step, rate in enumerate(rates):
        index = batches(step)
        value, slope = gradient(lambda t, index=index: objective(t, index), theta)  # type: ignore[misc]
        first = value if step == 0 else first
        _watch(value, first, step, rate, "SGD")
        theta -= rate * rule.step(slope.add_(theta, alpha=weight_decay) if weight_decay else slope)
        theta = theta if after_step is None else after_step(step, theta)
    return theta


def _check_finite(theta: Tensor, name: str) -> None:
    if not theta.isfinite().all():
        raise ValueError(f"{name} holds NaN or infinite values: training must have diverged before")


# Minimum-energy paths


def _arc_length(path: Tensor) -> Tensor:
    """Distance (..., K) of each pivot from the first, along the path."""
    return nn.functional.pad(path.diff(dim=-2).norm(dim=-1).cumsum(-1), (1, 0))


def path_points(path: Tensor, positions: Tensor) -> Tensor:
    """Points (..., n, P) of a piecewise linear path (..., K, P) at positions (..., n) in [0, 1] of its length."""
    length = _arc_length(path)
    target = positions.to(path).expand(*path.shape[:-2], positions.shape[-1]).contiguous() * length[..., -1:]
    right = torch.searchsorted(length.contiguous(), target).clamp(1, path.shape[-2] - 1)
    low, high = length.gather(-1, right - 1), length.gather(-1, right)
    share = ((target - low) / (high - low).clamp(min=torch.finfo(path.dtype).tiny))[..., None]
    ends = [path.gather(-2, i[..., None].expand(*i.shape, path.shape[-1])) for i in (right - 1, right)]
    return torch.lerp(ends[0], ends[1], share)


def reparametrize_path(path: Tensor, n: int) -> Tensor:
    """The path (..., K, P) with n pivots at equal distances along it, (..., n, P); both ends stay."""
    moved = path_points(path, torch.linspace(0, 1, n, dtype=path.dtype))
    moved[..., 0, :], moved[..., -1, :] = path[..., 0, :], path[..., -1, :]
    return moved


def path_tangents(path: Tensor, values: Tensor) -> Tensor:
    """Unit tangents (..., K - 2, P) at the inner pivots of a path (..., K, P) with losses (..., K).

    Towards the neighbour with the higher loss; at a local extremum both sides are mixed, weighted by the larger and
    the smaller loss difference (Henkelman and Jonsson, 2000).
    """
    ahead, behind = path[..., 2:, :] - path[..., 1:-1, :], path[..., 1:-1, :] - path[..., :-2, :]
    up, down = values[..., 2:] - values[..., 1:-1], values[..., :-2] - values[..., 1:-1]
    large, small = torch.maximum(up.abs(), down.abs()), torch.minimum(up.abs(), down.abs())
    large = torch.where(large == 0, 1.0, large)  # a level stretch takes the mean of both sides
    small = torch.where((up == 0) & (down == 0), 1.0, small)
    extremum, rising = (up > 0) == (down > 0), up > down
    front = torch.where(extremum, torch.where(rising, large, small), rising.to(values))
    back = torch.where(extremum, torch.where(rising, small, large), (~rising).to(values))
    return nn.functional.normalize(front[..., None] * ahead + back[..., None] * behind, dim=-1)


@dataclass(frozen=True)
class Cycle:
    """A cycle of the band: so many new pivots first, then so many steps at this rate."""

    steps: int
    rate: float
    insert: int = 0


@torch.no_grad()
def insert_pivots(loss: Loss, path: Tensor, count: int, samples: int = 9, tolerance: float = 0.1) -> Tensor:
    """Put pivots into the ``count`` segments whose loss lies highest above the chord between their pivots.

    ``samples`` inner points are tried on each segment. Where the excess is nowhere above ``tolerance`` times the
    band's range of losses, on any path of the batch, the path (..., K, P) is returned as it is; else (..., K', P).
    """
    count = min(count, path.shape[-2] - 1)
    share = torch.linspace(0, 1, samples + 2, dtype=path.dtype)[1:-1, None]
    inner = torch.lerp(path[..., :-1, None, :], path[..., 1:, None, :], share)  # (..., K - 1, samples, P)
    known, tried = loss(path), loss(inner.flatten(-3, -2)).unflatten(-1, (-1, samples))
    excess = tried - torch.lerp(known[..., :-1, None], known[..., 1:, None], share[:, 0])
    band = torch.cat([known, tried.flatten(-2)], -1)
    highest, place = excess.max(-1)
    if not count or not (highest > tolerance * (band.amax(-1) - band.amin(-1))[..., None]).any():
        return path
    chosen = highest.topk(count, dim=-1).indices
    where = chosen + share[place.gather(-1, chosen), 0]
    new = inner.gather(-2, place[..., None, None].expand(*place.shape, 1, path.shape[-1]))[..., 0, :]
    new = new.gather(-2, chosen[..., None].expand(*chosen.shape, path.shape[-1]))
    keys = torch.cat([torch.arange(path.shape[-2]).to(where).expand(*where.shape[:-1], -1), where], -1)
    order = keys.argsort(-1)[..., None].expand(*keys.shape, path.shape[-1])
    return torch.cat([path, new], -2).gather(-2, order)


def band_step(path: Tensor, values: Tensor, slope: Tensor, rule: Optimiser, rate: float) -> Tensor:
    """Move the inner pivots downhill, but not along the path: one step of the band (..., K, P).

    ``values (..., K)`` are losses, ``slope (..., K, P)`` gradients, weight decay included.
    """
    tangent = path_tangents(path, values)
    force = slope[..., 1:-1, :]
    force = force - (force * tangent).sum(-1, keepdim=True) * tangent
    moved = path.clone()
    moved[..., 1:-1, :] -= rate * rule.step(force)
    return reparametrize_path(moved, path.shape[-2])


def nudged_elastic_band(
    loss: Loss,
    theta_a: Tensor,
    theta_b: Tensor,
    *,
    schedule: Sequence[Cycle],
    n_pivots: int = 5,
    weight_decay: float = 0.0,
    momentum: float = 0.9,
) -> Tensor:
    """A low-loss path (..., K, P) between minima (..., P), K = n_pivots + what the cycles inserted.

    The band starts straight; its springs are infinitely stiff, so that pivots keep equal distances (AutoNEB).

    Raises:
        ValueError: ends that are equal, of different shape or not finite; a band that diverges, with the step.
    """
    if theta_a.shape != theta_b.shape:
        raise ValueError(
            f"the ends have shapes {tuple(theta_a.shape)} and {tuple(theta_b.shape)}: both must be of one architecture"
        )
    for name, end in (("theta_a", theta_a), ("theta_b", theta_b)):
        _check_finite(end, name)
    if ((theta_a - theta_b).norm(dim=-1) == 0).any():
        raise ValueError("theta_a and theta_b are equal: a path needs two different ends")
    if n_pivots < 3:
        raise ValueError(f"n_pivots must be at least 3, one of them inside, not {n_pivots}")
    path = torch.stack([theta_a, theta_b], -2).detach()
    path = reparametrize_path(path, n_pivots)
    step, first = 0, None
    for cycle in schedule:
        path = insert_pivots(loss, path, cycle.insert)
        path, rule = reparametrize_path(path, path.shape[-2]), Optimiser("sgd", momentum)
        ends = loss(path[..., [0, -1], :]).detach()  # they never move
        for _ in range(cycle.steps):
            inner, slope = gradient(loss, path[..., 1:-1, :])
            values = torch.cat([ends[..., :1], inner, ends[..., 1:]], -1)
            first = values if first is None else first
            _watch(values, first, step, cycle.rate, "the band")
            slope = nn.functional.pad(slope + weight_decay * path[..., 1:-1, :], (0, 0, 1, 1))
            path, step = band_step(path, values, slope, rule, cycle.rate), step + 1
    return path


@torch.no_grad()
def linear_barrier(f: Loss, theta_a: Tensor, theta_b: Tensor, n: int = 11) -> Tensor:
    """Highest rise (...) of f, a loss or a curvature, above the chord on the straight line between (..., P)."""
    share = torch.linspace(0, 1, n, dtype=theta_a.dtype)
    values = f(torch.lerp(theta_a[..., None, :], theta_b[..., None, :], share[:, None]))
    return (values - torch.lerp(values[..., :1], values[..., -1:], share)).amax(-1)


# Curvature


def hessian_top_eigenvalue(loss: Loss, theta: Tensor, iters: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Largest eigenvalues (...) of the Hessians at (..., P) and unit eigenvectors (..., P), by power iteration.

    Power iteration finds the eigenvalue of largest size; where that is negative, a second pass is shifted by it.
    """
    leaf = theta.detach().requires_grad_()
    (slope,) = torch.autograd.grad(loss(leaf).sum(), leaf, create_graph=True)
    shift = theta.new_zeros(*theta.shape[:-1], 1)
    for _ in range(2):
        vector = nn.functional.normalize(torch.randn(theta.shape, generator=generator, dtype=theta.dtype), dim=-1)
        for _ in range(iters):
            (product,) = torch.autograd.grad(slope, leaf, vector, retain_graph=True)
            value = (product * vector).sum(-1)
            vector = nn.functional.normalize(product - shift * vector, dim=-1)
        if (value >= 0).all() or (shift != 0).any():
            break
        shift = value.clamp(max=0)[..., None] * 1.01
    return value, vector


def second_derivatives(per_example: Loss, theta: Tensor, directions: Tensor) -> Tensor:
    """Quadratic forms v . H_i v (..., N) of every example's Hessian, for one direction (..., P) a parameter vector."""
    theta, directions = theta.detach().contiguous(), directions.contiguous()

    def along(t: Tensor) -> Tensor:
        return jvp(per_example, (t,), (directions,))[1]

    return jvp(along, (theta,), (directions,))[1].detach()


def hutchinson_trace(loss: Loss, theta: Tensor, probes: int, generator: torch.Generator) -> Tensor:
    """Estimate of the Hessian's trace at (..., P) by random signs; (..., N) for losses (..., N) of N examples.

    All points share the probes, which makes their differences less noisy than their values.
    """
    signs = torch.randint(2, (probes, theta.shape[-1]), generator=generator).to(theta) * 2 - 1
    signs = signs.view(probes, *[1] * (theta.ndim - 1), -1).expand(probes, *theta.shape)
    parts = [second_derivatives(loss, theta.expand_as(some), some).sum(0) for some in signs.split(_PROBES_AT_ONCE)]
    return cast(Tensor, sum(parts)) / probes


def fisher_trace(objective: Objective, theta: Tensor, of: Literal["model", "data"] = "model") -> Tensor:
    """Squared score of each example (..., N), whose mean over them is the trace of the Fisher matrix.

    ``of="model"`` averages over labels drawn from the model's own prediction: the trace of the Gauss-Newton matrix,
    equal to the Hessian's where no unit is curved along a single weight (ReLU). ``of="data"`` takes the data's label:
    the *empirical* Fisher, another quantity, which vanishes with the loss.
    """
    flat = theta.detach().reshape(-1, theta.shape[-1])
    n = objective.labels.shape[-1]
    known = objective.labels.expand(*theta.shape[:-1], n).reshape(-1, n)
    rows = []
    for point, label in zip(flat, known, strict=True):  # one point at a time: N C P numbers are kept
        alone = Objective(objective.logits, label)
        if of == "data":
            rows.append(alone.scores(point).square().sum(-1))
            continue
        with torch.no_grad():
            chance = objective.logits(point, None).softmax(-1)
        every = torch.arange(n).repeat_interleave(chance.shape[-1])
        labels = torch.arange(chance.shape[-1]).repeat(n)
        squares = alone.scores(point, labels, every).square().sum(-1).unflatten(0, (n, -1))
        rows.append((chance * squares).sum(-1))
    return torch.stack(rows).unflatten(0, theta.shape[:-1]) if theta.ndim > 1 else rows[0]


def fisher_spectrum(objective: Objective, theta: Tensor, n: int) -> Tensor:
    """Eigenvalues (..., min(n, P)), falling, of the empirical Fisher matrix of the first n examples, by SVD."""
    scores = objective.scores(theta, index=torch.arange(n))
    return torch.linalg.svdvals(scores) ** 2 / n


# Noise


@torch.no_grad()
def project_to_path(theta: Tensor, path: Tensor) -> tuple[Tensor, Tensor]:
    """Nearest points (R, P) of a piecewise linear path (K, P) to (R, P), and their positions s (R,) in [0, 1]."""
    step = path.diff(dim=0)
    relative = theta[:, None] - path[:-1]
    share = ((relative * step).sum(-1) / step.square().sum(-1).clamp(min=1e-30)).clamp(0, 1)
    nearest = path[:-1] + share[..., None] * step
    best = (theta[:, None] - nearest).square().sum(-1).argmin(1)
    rows, length = torch.arange(len(theta)), _arc_length(path)
    s = (length[best] + share[rows, best] * (length[best + 1] - length[best])) / length[-1]
    return nearest[rows, best], s


def projected_sgd(
    objective: Objective,
    path: Tensor,
    starts: Tensor,
    *,
    rate: float,
    batch_size: int,
    steps: int,
    generator: torch.Generator,
    every: int = 15,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    optimiser: OptimiserName = "sgd",
) -> Tensor:
    """Positions s (T + 1, R) on a path (K, P) of SGD that is put back onto it every so many steps; starts (R,)."""
    trace = [starts.to(path)]

    def after_step(step: int, theta: Tensor) -> Tensor:
        if (step + 1) % every:
            return theta
        theta, s = project_to_path(theta, path)
        trace.append(s)
        return theta

    batches = random_batches(objective.labels.shape[-1], batch_size, starts.shape, generator)
    descend(
        objective,
        path_points(path, starts),
        [rate] * steps,
        batches,
        momentum=momentum,
        weight_decay=weight_decay,
        optimiser=optimiser,
        after_step=after_step,
    )
    return torch.stack(trace)


@dataclass(frozen=True)
class Drift:
    """Displacements along the path at its inner pivots, in units of parameter space.

    ``displacements (R, K - 2)`` of every replica, less that of gradient descent, ``gd (K - 2)``, and less ``noise (R,
    K - 2)``: what the same batches would have done with all gradients frozen at the pivot, which is zero on average.
    ``loss_before`` and ``loss_after (K - 2)`` are mean losses.
    """

    displacements: Tensor
    noise: Tensor
    gd: Tensor
    loss_before: Tensor
    loss_after: Tensor

    @property
    def drift(self) -> Tensor:
        """Mean displacement (K - 2,)."""
        return self.displacements.mean(0)

    @property
    def stderr(self) -> Tensor:
        """Its standard error (K - 2,)."""
        return self.displacements.std(0) / math.sqrt(len(self.displacements))


def entropic_drift(
    objective: Objective,
    path: Tensor,
    *,
    rate: float,
    batch_size: int,
    steps: int,
    replicas: int,
    generator: torch.Generator,
    weight_decay: float = 0.0,
) -> Drift:
    """What noise adds to gradient descent: R replicas start at every inner pivot of (K, P) and run a few steps of SGD.

    Their mean displacement along the tangent, minus that of full-batch descent from the same point, is the entropic
    drift. The random walk that curvature has no part in is subtracted too: a control variate, which leaves the mean
    alone and makes its standard error several times smaller.
    """
    if batch_size < 1 or replicas < 2:
        raise ValueError(f"the drift needs noise, batch_size >= 1 and replicas >= 2, not {batch_size} and {replicas}")
    _check_finite(path, "path")
    with torch.no_grad():
        tangent, inner = path_tangents(path, objective(path)), path[1:-1]
        before = objective(inner)
    slopes = (objective.scores(inner) @ tangent[..., None])[..., 0]
    slopes = (slopes - slopes.mean(-1, keepdim=True)).expand(replicas, -1, -1)  # (R, K - 2, N)
    draw = random_batches(slopes.shape[-1], batch_size, slopes.shape[:2], generator)
    noise = inner.new_zeros(slopes.shape[:2])

    def batches(step: int) -> Tensor:
        index = cast(Tensor, draw(step))
        noise.sub_(slopes.gather(-1, index).mean(-1), alpha=rate)
        return index

    def run(start: Tensor, source: Batches) -> Tensor:
        return descend(objective, start, [rate] * steps, source, weight_decay=weight_decay)

    still = ((run(inner, lambda step: None) - inner) * tangent).sum(-1)
    ended = run(inner.expand(replicas, -1, -1), batches)
    with torch.no_grad():
        after = objective(ended[: min(replicas, 8)]).mean(0)  # a full-batch loss of every replica would cost more
    return Drift(((ended - inner) * tangent).sum(-1) - still - noise, noise, still, before, after)


def langevin_marginal(
    stiffness: Callable[[Tensor], Tensor],
    temperature: float,
    *,
    generator: torch.Generator,
    fast: int = 1,
    walkers: int = 4000,
    steps: int = 8000,
    dt: float = 0.01,
    bounds: tuple[float, float] = (-1.0, 1.0),
    every: int = 50,
    frozen: bool = False,
) -> Tensor:
    """Samples of y (T, walkers) of overdamped Langevin motion in V = g(y) |x|^2 / 2 with ``fast`` directions x.

    Given y, x is an Ornstein-Uhlenbeck process and its step is exact; y has reflecting walls. The first quarter of
    the steps is not returned. ``frozen`` drops the force of x on y.
    """
    if temperature <= 0 or dt <= 0:
        raise ValueError(f"temperature and dt must be positive, not {temperature} and {dt}")
    low, high = bounds
    y = low + (high - low) * torch.rand(walkers, generator=generator, dtype=torch.float64)
    x = torch.randn(fast, walkers, generator=generator, dtype=torch.float64) * (temperature / stiffness(y)).sqrt()
    kept = []
    for step in range(steps):
        g, slope = gradient(stiffness, y)
        memory = torch.exp(-g * dt)
        noise = torch.randn(fast + 1, walkers, generator=generator, dtype=torch.float64)
        force = 0.0 if frozen else -0.5 * slope * x.square().sum(0)
        x = memory * x + (temperature / g * (1 - memory**2)).sqrt() * noise[1:]
        y = y + force * dt + math.sqrt(2 * temperature * dt) * noise[0]
        y = high - (high - (low + (y - low).abs())).abs()
        if step >= steps // 4 and step % every == 0:
            kept.append(y)
    return torch.stack(kept)


def entropic_prefactor(
    samples: Tensor, stiffness: Callable[[Tensor], Tensor], bounds: tuple[float, float] = (-1.0, 1.0)
) -> float:
    """Maximum-likelihood alpha of the density p(y) proportional to g(y)^-alpha: V_eff = alpha T ln g.

    One Newton iteration a step on the strictly convex negative log-likelihood.
    """
    grid = torch.linspace(*bounds, 4001, dtype=torch.float64)
    logs, mean, alpha = stiffness(grid).log(), float(stiffness(samples).log().mean()), 0.0
    for _ in range(50):
        weight = torch.softmax(-alpha * logs, 0)
        expected = float((weight * logs).sum())
        alpha += (expected - mean) / float((weight * logs**2).sum() - expected**2)
    return alpha


def minimal_sgd(start: Tensor, rate: float, residual_noise: Tensor) -> tuple[Tensor, Tensor]:
    """SGD on (uv - 1)^2 / 2 from (u, v) = start (2,), whose residual carries noise (T,): points (T + 1, 2), residuals.

    With r_t = uv - 1 + noise: u <- u - rate r v, v <- v - rate r u.
    """
    u, v = (float(value) for value in start)
    points, residuals = [(u, v)], []
    for noise in residual_noise.tolist():
        r = u * v - 1 + noise
        u, v = u - rate * r * v, v - rate * r * u
        points.append((u, v))
        residuals.append(r)
    return torch.tensor(points, dtype=torch.float64), torch.tensor(residuals, dtype=torch.float64)
