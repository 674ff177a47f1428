"""Formal abstract minimal explanations: which features provably fix a network's decision, read off linear bounds.

Source: Boumazouza, Elsaleh, Ducoffe, Bassan, Katz, "FAME: Formal Abstract Minimal Explanation for Neural Networks"
(ICLR 2026, arXiv 2603.10661), with the CROWN bounds of Zhang et al. (2018) and the traversal of VeriX+ (Wu, Li, Wu,
Barrett, arXiv 2409.03060); told in notebooks/formal_explanations. A classifier f: R^(c n) -> R^K decides c* = argmax f
at x. Each of the n features (a pixel with its c channels) is either kept at x or free to move in its interval. A set of
kept features is an explanation if no point that agrees with x on it has f_i > f_c*. Axis d is a batch of domains, r
of linear functions (rows of ``spec``). Everything is float64, and proofs keep ``MARGIN`` in hand for its rounding.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import highspy
import numpy as np
import pyomo.environ as pyo
import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from pyomo.contrib.solver.common.factory import SolverFactory
from pyomo.core.expr import LinearExpression
from scipy.optimize import Bounds, LinearConstraint, milp
from torch import Tensor, nn

from lib.substrates.names import check_name

MARGIN = 1e-9  # a certificate must clear zero by this much; rounding of float64 stays far below
SOLVER_TOLERANCE = 1e-6  # HiGHS accepts rows violated by as much
SELECTORS = ("greedy", "milp")
SEARCHES = ("sequential", "binary", "quickxplain")
_AFFINE = (nn.Linear, nn.Conv2d, nn.Flatten)
_CHUNK = 1 << 24  # numbers in the largest tensor of a pass


class Parameters(BaseModel):
    """Parameters of the notebook; the defaults are its `small` run."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    preset: str = Field("small", description="named parameter set of presets/formal_explanations.toml")
    seed: int = Field(0, ge=0, description="seed of the split, the training, the searched points and the permutations")
    data: str = Field("digits", pattern="^(digits|mnist)$", description="digits (8 x 8 pixels) or mnist (28 x 28)")
    hidden: list[int] = Field([16, 16], min_length=1, max_length=4, description="neurons of each hidden layer")
    training_steps: int = Field(1200, ge=50, description="training steps of 64 images each")
    eps: float = Field(0.12, gt=0, le=1, description="radius: how far a free pixel may move, of a range of 1")
    n_images: int = Field(12, ge=2, description="test images to explain")
    n_exact: int = Field(6, ge=2, description="of these, how many the exact solver explains too")
    exact_time_limit: float = Field(15.0, gt=0, description="seconds of wall clock for one exact query")
    selector: str = Field("greedy", pattern="^(greedy|milp)$", description="how a batch is chosen: greedy or milp")
    cardinalities: int = Field(64, ge=1, description="bounds m on the changes tried in a round, evenly spaced")
    attack_steps: int = Field(20, ge=1, description="steps of the gradient attack (1 is the fast gradient sign method)")
    permutations: int = Field(2, ge=1, description="random feature orders under which an explanation is computed anew")

    @model_validator(mode="after")
    def _consistent(self) -> Parameters:
        if self.n_exact > self.n_images or min(self.hidden) < 1:
            raise ValueError("n_exact can't exceed n_images, and every hidden layer needs a neuron")
        return self


@dataclass(frozen=True)
class ReluNetwork:
    """A network as affine maps (weight (out, in), bias (out,)) with a ReLU between each two, in float64."""

    layers: tuple[tuple[Tensor, Tensor], ...]
    shape: tuple[int, ...]

    @classmethod
    def of(cls, model: nn.Module | ReluNetwork, shape: Sequence[int]) -> ReluNetwork:
        """Read a ``Sequential`` of Linear, Conv2d, Flatten and ReLU layers (nested ones too) for inputs of ``shape``.

        Raises:
            ValueError: another layer (named), an input that doesn't fit, fewer than two logits, weights not finite.
        """
        shape = tuple(shape)
        if isinstance(model, ReluNetwork):
            if model.shape != shape:
                raise ValueError(f"the network was read for inputs of shape {model.shape}, not {shape}")
            return model
        if not isinstance(model, nn.Sequential):
            raise ValueError(f"the model must be a torch.nn.Sequential, not {type(model).__name__}")
        segments: list[list[nn.Module]] = [[]]
        for name, layer in model.named_modules(remove_duplicate=False):
            if type(layer) is nn.ReLU:
                segments.append([])
            elif type(layer) in _AFFINE:
                segments[-1].append(layer)
            elif not isinstance(layer, nn.Sequential):
                kind = type(layer).__name__
                raise ValueError(f"layer {name} ({kind}) can't be bounded: use Linear, Conv2d, Flatten and ReLU only")
        device = next((part.device for part in model.parameters()), torch.device("cpu"))
        layers, inner = [], shape
        for segment in segments:  # an affine map is known from its values at the origin and at the unit vectors
            affine = copy.deepcopy(nn.Sequential(*segment)).double()
            units = torch.eye(math.prod(inner), dtype=torch.float64, device=device).reshape(-1, *inner)
            with torch.no_grad():
                try:
                    offset = affine(torch.zeros_like(units[:1]))
                    columns = affine(units) - offset
                except (RuntimeError, IndexError) as error:
                    raise ValueError(f"an input of shape {shape} doesn't fit the model: {error}") from None
            inner = tuple(offset.shape[1:])
            layers.append((columns.flatten(1).mT.contiguous(), offset.flatten()))
        if len(inner) != 1 or inner[0] < 2:
            raise ValueError(
                f"the model must end in one vector of two or more logits, not in shape {inner}: flatten it"
            )
        if not all(part.isfinite().all() for layer in layers for part in layer):
            raise ValueError("the model has a weight or bias that is NaN or infinite: train or load it again")
        return cls(tuple(layers), shape)

    def __call__(self, points: Tensor) -> Tensor:
        """Logits (..., K) at points (..., c n)."""
        for index, (weight, bias) in enumerate(self.layers):
            points = (points if index == 0 else points.relu()) @ weight.mT + bias
        return points


@dataclass(frozen=True)
class CardinalityBox:
    """The domains Omega_m(x; A): features of A move in their intervals, and of the others at most m.

    ``x``, ``lower`` and ``upper`` are (c, n) and ``shape`` is the input's own; ``free`` (d, n) or (1, n) says which
    features are in A, ``max_changes`` (d,) is m. Without changes it is the box over A.
    """

    x: Tensor
    lower: Tensor
    upper: Tensor
    free: Tensor
    max_changes: Tensor
    shape: tuple[int, ...]

    @classmethod
    def around(cls, x: Tensor, eps: float, limits: tuple[float, float] = (0.0, 1.0)) -> CardinalityBox:
        """The point x itself, with intervals of radius ``eps`` cut to ``limits``; :meth:`allow` frees features.

        ``x`` is (n,), (height, width) or (channels, height, width).

        Raises:
            ValueError: x of another shape, empty, not finite or outside the limits; eps negative or not finite.
        """
        x = torch.as_tensor(x).detach().double()
        if x.ndim not in (1, 2, 3) or x.numel() == 0:
            raise ValueError(f"x must be one input, (n,), (h, w) or (channels, h, w), not of shape {tuple(x.shape)}")
        if not x.isfinite().all():
            raise ValueError("x holds NaN or infinite values: fill them first")
        if x.min() < limits[0] or x.max() > limits[1]:
            raise ValueError(f"x leaves the limits {limits} of a feature: scale it, or pass other limits")
        if not (math.isfinite(eps) and eps >= 0):
            raise ValueError(f"eps must be a finite radius, 0 or larger, not {eps}")
        shape, x = tuple(x.shape), x.reshape(len(x) if x.ndim == 3 else 1, -1)
        nothing = torch.zeros(1, x.shape[1], dtype=torch.bool, device=x.device)
        lower, upper = (x - eps).clamp(min=limits[0]), (x + eps).clamp(max=limits[1])
        return cls(x, lower, upper, nothing, nothing.sum(-1), shape)

    def allow(self, free: Tensor, max_changes: Tensor | int = 0) -> CardinalityBox:
        """The same intervals with other freed sets (n,) or (d, n) and numbers of further changes, one or (d,)."""
        free = torch.as_tensor(free, dtype=torch.bool, device=self.x.device)
        changes = torch.as_tensor(max_changes, device=self.x.device).reshape(-1)
        free, n = free.reshape(-1, free.shape[-1]), self.x.shape[1]
        if free.shape[1] != n or len({1, len(free), len(changes)}) > 2 or changes.min() < 0 or changes.max() > n:
            raise ValueError(
                f"pass masks (n,) or (d, n) over the {n} features, with one number of changes in 0..n each"
            )
        return replace(self, free=free, max_changes=changes.expand(max(len(free), len(changes))))

    def split(self, size: int) -> Iterator[CardinalityBox]:
        """The batch in pieces of at most ``size`` domains."""
        for start in range(0, len(self.max_changes), size):
            free = self.free if len(self.free) == 1 else self.free[start : start + size]
            yield replace(self, free=free, max_changes=self.max_changes[start : start + size])

    def costs(self, weight: Tensor) -> Tensor:
        """Most that each feature alone can add to linear functions ``weight (..., c n)``: ``(..., n)``, >= 0."""
        weight = weight.unflatten(-1, self.x.shape)
        return torch.maximum(weight * (self.upper - self.x), weight * (self.lower - self.x)).sum(-2)

    def maximize(self, weight: Tensor, bias: Tensor) -> Tensor:
        """Exact maxima (d, r) over the domains of linear functions, weight (d or 1, r, c n) and bias (d or 1, r).

        The value at x, plus the costs of all of A, plus the m largest costs of the rest.
        """
        costs = self.costs(weight)
        fixed = weight @ self.x.flatten() + bias + (costs @ self.free.double()[..., None])[..., 0]
        if not self.max_changes.any():
            return fixed.expand(len(self.max_changes), -1)
        rest = costs.masked_fill(self.free[:, None], 0.0).sort(-1, descending=True).values.cumsum(-1)
        rest = torch.nn.functional.pad(rest, (1, 0))
        if len(rest) == 1:  # domains that differ in m alone share one sorting
            return fixed + rest[0, :, self.max_changes].mT
        return fixed + rest.gather(-1, self.max_changes[:, None, None].expand(-1, rest.shape[1], 1))[..., 0]


@dataclass(frozen=True)
class LinearBound:
    """``spec @ f(x') <= weight @ x' + bias`` on each domain: (d, r, c n) and (d, r); ranges (low, high) of neurons."""

    weight: Tensor
    bias: Tensor
    preactivations: list[tuple[Tensor, Tensor]]


def relax_relu(weight: Tensor, bias: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Replace ReLUs under ``weight @ relu(z) + bias`` by lines that keep it an upper bound for z in [low, high].

    ``weight (d or 1, r, h)``, ``bias (d or 1, r)``, ranges ``(d, h)``. A positive weight meets the chord above the
    ReLU; a negative one a line through 0 below it, of slope 0 or 1, whichever leaves the smaller area.
    """
    unstable = (low < 0) & (high > 0)
    chord = torch.where(unstable, high / (high - low).clamp(min=1e-300), (high > 0).double())
    floor = torch.where(unstable, (high > -low).double(), chord)
    intercept = torch.where(unstable, -chord * low, 0.0)
    rising = weight.clamp(min=0)
    bias = bias + (rising @ intercept[..., None])[..., 0]
    return bias, rising * chord[:, None] + weight.clamp(max=0) * floor[:, None]


def crown_bounds(model: nn.Module | ReluNetwork, domain: CardinalityBox, spec: Tensor) -> LinearBound:
    """Linear upper bounds of ``spec (r, K) @ f`` on every domain of a batch, by CROWN's backward substitution.

    The ranges of the inner neurons are themselves bounded over the same domain, cardinality included.
    """
    layers, ranges = ReluNetwork.of(model, domain.shape).layers, list[tuple[Tensor, Tensor]]()
    for k, (weight, bias) in enumerate(layers):
        last = k == len(layers) - 1
        head = spec if last else torch.cat([torch.eye(len(bias)), -torch.eye(len(bias))]).to(bias)
        w, b = (head @ weight)[None], (head @ bias)[None]
        for (lower_weight, lower_bias), (low, high) in zip(layers[:k][::-1], ranges[::-1], strict=True):
            b, w = relax_relu(w, b, low, high)
            b, w = b + w @ lower_bias, w @ lower_weight
        if last:
            break
        high, negative_low = domain.maximize(w, b).chunk(2, dim=-1)
        ranges.append((-negative_low, high))
    return LinearBound(w, b, ranges)


def margin_spec(network: ReluNetwork, label: int) -> Tensor:
    """Rows ``f_i - f_label`` for the classes i other than the label, in order: (K - 1, K)."""
    logits = network.layers[-1][1]
    identity = torch.eye(len(logits)).to(logits)
    return identity[torch.arange(len(logits)) != label] - identity[label]


def _pieces(network: ReluNetwork, domain: CardinalityBox) -> Iterator[CardinalityBox]:
    widest = max(len(bias) for _, bias in network.layers)
    return domain.split(max(1, _CHUNK // (2 * widest * domain.x.numel())))


def certified_margin(model: nn.Module | ReluNetwork, domain: CardinalityBox, label: int) -> Tensor:
    """Proved upper bound (d,) of ``max_i f_i - f_label`` on each domain; below zero the decision is fixed."""
    network = ReluNetwork.of(model, domain.shape)
    spec, worst = margin_spec(network, label), []
    for piece in _pieces(network, domain):
        bound = crown_bounds(network, piece, spec)
        worst.append(piece.maximize(bound.weight, bound.bias).amax(-1))
    return torch.cat(worst)


@dataclass(frozen=True)
class Verdict:
    """What a verifier found: "safe", "unsafe" with a ``counterexample (c n,)`` and its margin, or "unknown"."""

    status: str
    counterexample: Tensor | None = None
    margin: float = -math.inf


def verify_crown(model: nn.Module | ReluNetwork, domain: CardinalityBox, label: int) -> Verdict:
    """Incomplete and quick: "safe" where the certified margin of one domain is negative, else "unknown"."""
    return Verdict("safe" if certified_margin(model, domain, label) <= -MARGIN else "unknown")


def free_batch(weight: Tensor, bias: Tensor, domain: CardinalityBox, selector: str = "greedy") -> Tensor:
    """Features (d, n) that bounds, valid on the domains, allow to free together: at most m each.

    Freed features must fit every row's budget: ``sum_j c_ij <= -(W_i x + w_i + sum_A c_ij)``. "greedy" takes the
    longest prefix in order of the largest share of a budget (the paper's Algorithm 1), "milp" the most features.
    A row without budget frees nothing.
    """
    check_name(selector, SELECTORS, "selector")
    share, open_ = _shares(weight, bias, domain)
    if selector == "milp":
        items = zip(share.numpy(), open_.numpy(), domain.max_changes.tolist(), strict=True)
        return torch.from_numpy(np.stack([_knapsack(*item) for item in items]))
    order = share.amax(-2).masked_fill(~open_, math.inf).argsort(dim=-1, stable=True)
    spent = share.gather(-1, order[:, None].expand_as(share)).cumsum(-1)
    rank = order.argsort(-1)
    return (spent <= 1).all(-2).gather(-1, rank) & (rank < domain.max_changes[:, None]) & open_


def _shares(weight: Tensor, bias: Tensor, domain: CardinalityBox) -> tuple[Tensor, Tensor]:
    """Costs as shares of their row's budget (d, r, n), and the features (d, n) that may be asked for at all."""
    budget = -replace(domain, max_changes=torch.zeros_like(domain.max_changes)).maximize(weight, bias) - MARGIN
    open_ = (budget > 0).all(-1, keepdim=True) & ~domain.free
    return domain.costs(weight) / budget.clamp(min=1e-300)[..., None], open_


def _knapsack(share: np.ndarray, candidates: np.ndarray, most: int) -> np.ndarray:
    """The most candidates whose shares (r, n) of each budget add up to at most 1, by HiGHS."""
    chosen = np.zeros(len(candidates), dtype=bool)
    index = candidates.nonzero()[0][(share[:, candidates] <= 1).all(axis=0)]
    for slack in (0.0, 2 * SOLVER_TOLERANCE):  # the solver may overspend by its tolerance: then it is given less
        if len(index) == 0:
            break
        rows = [LinearConstraint(share[:, index], ub=1 - slack), LinearConstraint(np.ones(len(index)), ub=most)]
        options = {"mip_rel_gap": 0.0}
        result = milp(-np.ones(len(index)), integrality=1, bounds=Bounds(0, 1), constraints=rows, options=options)
        chosen[index] = result.x > 0.5
        if (share[:, chosen].sum(axis=1) <= 1).all():
            break
    return chosen


def batch_limit(weight: Tensor, bias: Tensor, domain: CardinalityBox) -> Tensor:
    """No batch of a domain is larger than this (d,): every row's cheapest features within its budget, at most m."""
    share, open_ = _shares(weight, bias, domain)
    cheapest = share.masked_fill(~open_[:, None], math.inf).sort(-1).values.cumsum(-1)
    return torch.minimum((cheapest <= 1).sum(-1).amin(-1), domain.max_changes)


@dataclass(frozen=True)
class Explanation:
    """A proved explanation.

    ``kept (n,)`` must stay as in x; ``rounds`` are the numbers of freed features after each round or query;
    ``seconds`` of processor time; ``label`` the decision explained; ``complete`` is False where a verifier gave up.
    """

    kept: Tensor
    rounds: list[int]
    seconds: float
    label: int
    complete: bool = True

    @property
    def size(self) -> int:
        """Number of kept features."""
        return int(self.kept.sum())


def _decision(network: ReluNetwork, domain: CardinalityBox, label: int | None) -> int:
    predicted = int(network(domain.x.flatten()).argmax())
    if label is not None and label != predicted:
        raise ValueError(
            f"the model says {predicted} here, not {label}: a wrong decision can't be explained as {label}"
        )
    return predicted


def _largest_batch(network: ReluNetwork, domain: CardinalityBox, label: int, selector: str) -> Tensor:
    """The largest batch (n,) over domains that differ in m."""
    spec, best = margin_spec(network, label), torch.zeros_like(domain.free[0])
    for piece in _pieces(network, domain):
        bound = crown_bounds(network, piece, spec)
        batches = free_batch(bound.weight, bound.bias, piece)
        best = max(best, batches[batches.sum(-1).argmax()], key=torch.sum)
        if selector == "milp":
            limit = batch_limit(bound.weight, bound.bias, piece)
            domains, weight = list(piece.split(1)), bound.weight.expand(len(limit), -1, -1)
            for d in limit.sort(descending=True, stable=True).indices.tolist():
                if limit[d] <= best.sum():  # no batch of this domain, nor of a later one, can be larger
                    break
                one = free_batch(weight[d : d + 1], bound.bias[d : d + 1], domains[d], "milp")[0]
                best = max(best, one, key=torch.sum)
    return best


def free_maximal(free: Tensor, candidates: Tensor, proves: Callable[[Tensor], bool]) -> Tensor:
    """Add candidates to ``free (n,)`` until no single further one is proved: all at once, else half after half."""
    if len(candidates) == 0:
        return free
    trial = free.clone()
    trial[candidates] = True
    if proves(trial):
        return trial
    if len(candidates) == 1:
        return free
    half = len(candidates) // 2
    return free_maximal(free_maximal(free, candidates[:half], proves), candidates[half:], proves)


def abstract_minimal_explanation(
    model: nn.Module | ReluNetwork,
    x: Tensor,
    eps: float,
    selector: str = "greedy",
    refine: bool = True,
    *,
    label: int | None = None,
    limits: tuple[float, float] = (0.0, 1.0),
    cardinalities: int | None = None,
) -> Explanation:
    """FAME's explanation of the decision of ``model`` at ``x``: proved, needing no order of the features.

    Rounds of batches (the paper's Algorithm 2): bound the network on Omega_m(x; A) for every m, free the largest batch,
    bound again. Then single features on the tightest domains, the box over A and one more, until none is certified.
    Without ``refine`` only the first round runs. ``cardinalities`` limits the number of m's in a round (evenly
    spaced; default all). ``label`` is checked against the decision.

    Raises:
        ValueError: a model, input, radius, label or selector that the method can't take.
    """
    began = time.process_time()
    domain = CardinalityBox.around(x, eps, limits)
    network = ReluNetwork.of(model, domain.shape)
    label, free, rounds = _decision(network, domain, label), domain.free[0], [0]
    check_name(selector, SELECTORS, "selector")
    if cardinalities is not None and cardinalities < 1:
        raise ValueError(f"cardinalities must be at least 1, not {cardinalities}")

    def proves(trial: Tensor) -> bool:
        return verify_crown(network, domain.allow(trial), label).status == "safe"

    while left := int((~free).sum()):
        changes = torch.linspace(1, left, min(left, cardinalities or left), device=free.device).round().long()
        batch = _largest_batch(network, domain.allow(free, changes), label, selector)
        free = free | batch
        if not batch.any():
            break
        rounds.append(int(free.sum()))
        if not refine:
            break
    while refine and not free.all():
        candidates = (~free).nonzero()[:, 0]
        bounds = certified_margin(network, domain.allow(_with_each(free, candidates)), label)
        order = bounds.argsort(stable=True)  # least harmful first, so that the order of the features plays no part
        certified = candidates[order][bounds[order] <= -MARGIN]
        grown = free_maximal(free, certified, proves)
        if torch.equal(grown, free):
            break
        free = grown
        rounds.append(int(free.sum()))
    return Explanation(~free, rounds, time.process_time() - began, label)


def _with_each(free: Tensor, candidates: Tensor) -> Tensor:
    """The sets (k, n) that add one of the candidates (k,) each to ``free (n,)``."""
    return free | torch.nn.functional.one_hot(candidates, len(free)).bool()


def attack(
    model: nn.Module | ReluNetwork, domain: CardinalityBox, spec: Tensor, steps: int = 20
) -> tuple[Tensor, Tensor]:
    """Projected gradient ascent of every row of ``spec (r, K) @ f`` inside every domain, all at once.

    Starts at x; steps shrink from the whole interval to 1/steps of it, so that one step is the fast gradient sign
    method. Returns the largest values found (d, r) and their points (d, r, c n).
    """
    network, d, r = ReluNetwork.of(model, domain.shape), len(domain.max_changes), len(spec)
    movable = domain.free.expand(d, -1)[:, None]  # (d, 1, n)
    allowed = movable.sum(-1, keepdim=True) + domain.max_changes[:, None, None]
    x, lower, upper = domain.x, domain.lower, domain.upper
    points = x.expand(d, r, *x.shape).clone()

    def value(at: Tensor) -> Tensor:
        return (network(at.flatten(2)) * spec).sum(-1)

    best, where = value(points), points
    for step in range(steps):
        points.requires_grad_(True)
        (gradient,) = torch.autograd.grad(value(points).sum(), points)
        with torch.no_grad():
            points = points + (1 - step / steps) * (upper - lower) * gradient.sign()
            points = torch.minimum(torch.maximum(points, lower), upper)
            promise = ((points - x) * gradient).sum(-2).masked_fill(movable, math.inf)
            kept = promise.argsort(-1, descending=True).argsort(-1) < allowed
            points = torch.where(kept[:, :, None], points, x)
            reached = value(points)
            where = torch.where((reached > best)[..., None, None], points, where)
            best = torch.maximum(best, reached)
    return best, where.flatten(2)


@dataclass(frozen=True)
class MinimalityGap:
    """How far an explanation can be from a minimal one.

    ``necessary (n,)``: kept features that an attack proves needed, given what is free; ``undecided (n,)`` the other
    kept ones; no more than ``distance`` of them can still be freed together.
    """

    necessary: Tensor
    undecided: Tensor
    distance: int


def minimality_gap(
    model: nn.Module | ReluNetwork,
    x: Tensor,
    eps: float,
    explanation: Explanation,
    *,
    attack_steps: int = 20,
    limits: tuple[float, float] = (0.0, 1.0),
) -> MinimalityGap:
    """Prune by attacks: free one more kept feature at a time, all of them in one batch, and search a counterexample.

    Groups of undecided features are then attacked, halved level by level: a group that can't be free as a whole
    keeps at least one feature, so its share of the distance is at most its size less one.
    """
    domain = CardinalityBox.around(x, eps, limits)
    network = ReluNetwork.of(model, domain.shape)
    spec, free = margin_spec(network, explanation.label), ~explanation.kept

    def broken(sets: Tensor) -> Tensor:
        return attack(network, domain.allow(sets), spec, attack_steps)[0].amax(-1) > 0

    kept = explanation.kept.nonzero()[:, 0]
    necessary = torch.zeros_like(free)
    if len(kept):
        necessary[kept[broken(_with_each(free, kept))]] = True
    undecided = explanation.kept & ~necessary

    def distance(groups: list[Tensor]) -> list[int]:
        masks = torch.stack([free.index_fill(0, group, True) for group in groups])
        fails = [hit and len(group) > 1 for hit, group in zip(broken(masks).tolist(), groups, strict=True)]
        split = [group.tensor_split(2) for group, hit in zip(groups, fails, strict=True) if hit]
        halves = distance([half for pair in split for half in pair]) if split else []
        sums = iter(zip(halves[::2], halves[1::2], strict=True))
        return [min(len(g) - 1, sum(next(sums))) if hit else len(g) for g, hit in zip(groups, fails, strict=True)]

    left = undecided.nonzero()[:, 0]
    return MinimalityGap(necessary, undecided, distance([left])[0] if len(left) else 0)


def interval_ranges(network: ReluNetwork, domain: CardinalityBox) -> list[tuple[Tensor, Tensor]]:
    """Ranges (low, high), (h,) each, of the inner neurons on one domain by interval arithmetic."""
    moves = domain.free[0] | bool(domain.max_changes[0])
    low, high = (torch.where(moves, end, domain.x).flatten() for end in (domain.lower, domain.upper))
    ranges = []
    for weight, bias in network.layers[:-1]:
        centre, radius = weight @ (low + high) / 2 + bias, weight.abs() @ (high - low) / 2
        ranges.append((centre - radius, centre + radius))
        low, high = (end.relu() for end in ranges[-1])
    return ranges


def relu_milp(
    network: ReluNetwork, domain: CardinalityBox, row: Tensor, ranges: list[tuple[Tensor, Tensor]]
) -> pyo.ConcreteModel:
    """The exact maximum of ``row (K,) @ f`` over one domain, as a mixed-integer linear program.

    A ReLU whose range (low, high) crosses zero gets a binary; a stable one none. ``ranges`` must be
    valid on the domain.
    """
    model = pyo.ConcreteModel()
    x, lower, upper = (part.flatten().tolist() for part in (domain.x, domain.lower, domain.upper))
    most = int(domain.max_changes[0])
    free = domain.free[0].expand_as(domain.x).flatten().tolist()
    moves = [inside or most > 0 for inside in free]
    bounds = [(low, high) if move else (at, at) for low, high, at, move in zip(lower, upper, x, moves, strict=True)]
    model.x = pyo.Var(range(len(x)), bounds=lambda _, j: bounds[j])
    model.rows = pyo.ConstraintList()
    if most:
        features = domain.x.shape[1]
        model.changed = pyo.Var(range(features), domain=pyo.Binary)
        for j in (j for j in range(len(x)) if not free[j]):
            switch = model.changed[j % features]
            model.rows.add(model.x[j] - x[j] <= (upper[j] - x[j]) * switch)
            model.rows.add(model.x[j] - x[j] >= (lower[j] - x[j]) * switch)
        model.rows.add(pyo.quicksum(model.changed[j] for j in range(features) if not free[j]) <= most)
    inputs = list(model.x.values())
    model.on = pyo.VarList(domain=pyo.Binary)
    model.out = pyo.VarList(domain=pyo.NonNegativeReals)
    for (weight, bias), (lows, highs) in zip(network.layers[:-1], ranges, strict=True):
        outputs = []
        for w, b, low, high in zip(weight.tolist(), bias.tolist(), lows.tolist(), highs.tolist(), strict=True):
            out = model.out.add()
            outputs.append(out)
            if high <= 0:
                out.fix(0)
                continue
            z = LinearExpression(constant=b, linear_coefs=w, linear_vars=inputs)
            if low >= 0:
                model.rows.add(out == z)
                continue
            on = model.on.add()
            model.rows.add(out >= z)
            model.rows.add(out <= z - low * (1 - on))
            model.rows.add(out <= high * on)
        inputs = outputs
    weight, bias = network.layers[-1]
    margin = LinearExpression(constant=float(row @ bias), linear_coefs=(row @ weight).tolist(), linear_vars=inputs)
    model.margin = pyo.Objective(expr=margin, sense=pyo.maximize)
    return model


def maximize_exactly(
    network: ReluNetwork,
    domain: CardinalityBox,
    row: Tensor,
    ranges: list[tuple[Tensor, Tensor]],
    time_limit: float = 60.0,
    floor: float | None = None,
) -> tuple[float, Tensor | None]:
    """Proved upper bound of the maximum of ``row (K,) @ f`` on one domain, and the best point (c n,) found, by HiGHS.

    The bound is the maximum itself unless time runs out. With a ``floor`` only larger values are looked for: where
    there is none the bound is the floor.
    """
    model = relu_milp(network, domain, row, ranges)
    if floor is not None:
        model.rows.add(model.margin.expr >= floor)
    # HiGHS refuses any other number of threads than that with which its scheduler began, for the whole process.
    highspy.Highs.resetGlobalScheduler(True)
    result = SolverFactory("highs").solve(
        model,
        time_limit=time_limit,
        rel_gap=0.0,
        load_solutions=False,
        raise_exception_on_nonoptimal_result=False,
        solver_options={"output_flag": False, "threads": 1, "mip_abs_gap": 0.0},
    )
    if result.termination_condition.name == "provenInfeasible":
        return (-math.inf if floor is None else floor), None
    bound = math.inf if result.objective_bound is None else float(result.objective_bound)
    if result.incumbent_objective is None:
        return bound, None
    values = result.solution_loader.get_vars()
    point = domain.x.new_tensor([values[variable] for variable in model.x.values()]).reshape(domain.x.shape)
    return bound, torch.minimum(torch.maximum(point, domain.lower), domain.upper).flatten()


def verify_relu_milp(
    model: nn.Module | ReluNetwork,
    domain: CardinalityBox,
    label: int,
    target: int | None = None,
    *,
    time_limit: float = 60.0,
    independent: bool = False,
) -> Verdict:
    """Decide exactly whether a point of one domain has ``f_target > f_label`` (default: for any target).

    A point of the solver counts only if the forward pass confirms it. ``time_limit`` holds for each target. CROWN
    gives the ranges of the neurons and rules out targets; an ``independent`` check uses interval arithmetic instead,
    so that no error of CROWN could hide behind it.
    """
    network = ReluNetwork.of(model, domain.shape)
    if len(domain.max_changes) != 1:
        raise ValueError(f"the exact verifier takes one domain at a time, not {len(domain.max_changes)}")
    spec = margin_spec(network, label)
    others = [i for i in range(len(spec) + 1) if i != label]
    if independent:
        ranges, open_ = interval_ranges(network, domain), torch.ones(len(spec), dtype=torch.bool)
    else:
        bound = crown_bounds(network, domain, spec)
        ranges = [(low[0], high[0]) for low, high in bound.preactivations]
        open_ = domain.maximize(bound.weight, bound.bias)[0] > -MARGIN
    verdict = Verdict("safe")
    for row in (row for other, row, left in zip(others, spec, open_, strict=True) if left and target in (None, other)):
        limit, point = maximize_exactly(network, domain, row, ranges, time_limit, floor=0.0)
        value = -math.inf if point is None else float(network(point) @ row)
        if value > 0:
            return Verdict("unsafe", point, value)
        if limit > SOLVER_TOLERANCE:
            verdict = Verdict("unknown")
    return verdict


def sensitivity_order(model: nn.Module | ReluNetwork, domain: CardinalityBox, label: int) -> Tensor:
    """VeriX+'s order (n,): features by the certified margin with that one alone free, least harmful first."""
    features = torch.arange(domain.x.shape[1], device=domain.x.device)
    return certified_margin(model, domain.allow(_with_each(domain.free[0], features)), label).argsort(stable=True)


def deletion_explanation(
    model: nn.Module | ReluNetwork,
    x: Tensor,
    eps: float,
    verifier: Callable[[ReluNetwork, CardinalityBox, int], Verdict],
    order: Tensor | None = None,
    *,
    search: str = "sequential",
    start: Tensor | None = None,
    label: int | None = None,
    limits: tuple[float, float] = (0.0, 1.0),
) -> Explanation:
    """VeriX+'s traversal: free features in an order, each time the verifier says "safe".

    ``order`` lists the features to try (default: all of :func:`sensitivity_order`); ``start (n,)`` are kept features
    of an explanation to refine, the others being free. "sequential" asks feature by feature, "binary" group by group,
    halving what fails, "quickxplain" finds the kept ones by divide and conquer. With an exact verifier that always
    answers, and an order that lists all that is kept, the result is subset-minimal.

    Raises:
        ValueError: as :func:`abstract_minimal_explanation`, or an unknown search.
    """
    began = time.process_time()
    domain = CardinalityBox.around(x, eps, limits)
    network = ReluNetwork.of(model, domain.shape)
    label, answers = _decision(network, domain, label), list[str]()
    free = domain.free[0] if start is None else ~start
    rounds = [int(free.sum())]
    order = sensitivity_order(network, domain, label) if order is None else torch.as_tensor(order)
    order = order[~free[order]]
    check_name(search, SEARCHES, "search")

    def proves(trial: Tensor) -> bool:
        answers.append(verifier(network, domain.allow(trial), label).status)
        rounds.append(int(trial.sum()) if answers[-1] == "safe" else rounds[-1])
        return answers[-1] == "safe"

    if search == "binary":
        free = free_maximal(free, order, proves)
    elif search == "quickxplain":
        free = _quickxplain(free, order, proves)
    else:
        for feature in order.split(1):
            free = free_maximal(free, feature, proves)
    return Explanation(~free, rounds, time.process_time() - began, label, complete="unknown" not in answers)


def _quickxplain(free: Tensor, order: Tensor, proves: Callable[[Tensor], bool]) -> Tensor:
    """Junker's QuickXplain for a minimal kept set among ``order``; all of it is kept before, the last ones first."""

    def needed(kept: Tensor, grew: bool, pool: Tensor) -> Tensor:
        trial = free.index_fill(0, order, True).index_fill(0, kept, False)
        if grew and proves(trial):
            return pool[:0]
        if len(pool) == 1:
            return pool
        first, second = pool.tensor_split(2)
        late = needed(torch.cat([kept, first]), len(first) > 0, second)
        early = needed(torch.cat([kept, late]), len(late) > 0, first)
        return torch.cat([early, late])

    if len(order) == 0:
        return free
    return free.index_fill(0, order, True).index_fill(0, needed(order[:0], True, order.flip(0)), False)
