"""Gradient descent on two-layer leaky ReLU networks over mixture data, carried out in sample space.

Paper: Ichiro Hashimoto, *Directional Convergence, Benign Overfitting of Gradient Descent in leaky ReLU two-layer
Neural Networks* (arXiv 2505.16204). Notebook: ``notebooks/benign_overfitting``, whose symbols are used here.

With ``r_i = y_i x_i`` the weights stay ``w_j(t) = w_j(0) + s_j sum_i D_ij(t) r_i``, where ``s_j`` is the sign of the
output weight: training needs only the Gram matrix of the r's, whatever the dimension p. Leading axes (written ``...``)
are independent problems - seeds, grid cells, regimes - that advance together. n points, m neurons, float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator
from scipy.special import logsumexp

Array = NDArray[np.float64]


class Parameters(BaseModel):
    """Parameters of the notebook; the defaults are its committed run."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    preset: str = Field("small", description="named parameter set")
    seed: int = Field(0, ge=0, description="seed of everything random")
    n: int = Field(40, ge=10, le=1000, description="training points")
    dims: list[int] = Field([200, 1000, 5000], min_length=1, description="dimensions p of the phase diagram")
    signal: list[float] = Field([0.5, 1, 2, 3, 4, 6, 8, 12, 16, 24], min_length=2, description="its signals |mu|")
    seeds: int = Field(80, ge=2, description="seeds of every cell of the phase diagram")
    map_points: int = Field(25, ge=4, le=60, description="dimensions, and signals, of the heat map")
    map_seeds: int = Field(10, ge=1, description="seeds of every cell of the heat map")
    dim: int = Field(2000, description="dimension p of the strong-signal training runs")
    strong_signal: float = Field(20.0, gt=0, description="|mu| of the strong-signal training runs")
    runs: int = Field(20, ge=2, description="seeds of every regime of the training runs")
    width: int = Field(16, ge=2, description="neurons m")
    positive_fraction: float = Field(0.5, gt=0, lt=1, description="share of neurons with positive output weight")
    leak: float = Field(0.1, gt=0, lt=1, description="slope gamma of the leaky ReLU below zero")
    init_scale: float = Field(1e-6, gt=0, description="standard deviation of the initial weights")
    step_size: float = Field(1e-3, gt=0, description="step alpha, cut to a run's stability limit where that is lower")
    steps: int = Field(100_000, ge=200, description="constant steps")
    normalized_steps: int = Field(3000, ge=20, description="loss-normalised steps alpha / L")
    reduction: Literal["mean", "sum"] = Field("mean", description="how the loss adds up over the points")
    covariance: Literal["identity", "spiked", "power"] = Field("identity", description="noise covariance Sigma")
    noise: Literal["gaussian", "student_t"] = Field("gaussian", description="noise of the phase diagram")
    dof: float = Field(5.0, gt=2, description="degrees of freedom of student_t noise")
    label_noise: float = Field(0.0, ge=0, lt=0.5, description="share of flipped training labels, outside the theory")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if min(*self.dims, self.dim) <= self.n:
            raise ValueError("dim and every one of dims must exceed n, or the data need not be separable")
        if min(self.signal) <= 0:
            raise ValueError("every signal must be positive")
        LeakyReLUNet(self.width, self.leak, self.positive_fraction)
        return self


@dataclass(frozen=True)
class LeakyReLUNet:
    """``f(x) = sum_j s_j max(z_j, leak z_j) / sqrt(width)`` with ``z_j = <w_j, x>`` and fixed signs ``s_j``.

    Raises ValueError where the leak is not inside (0, 1) or one of the signs has no neuron.
    """

    width: int = 16
    leak: float = 0.1
    positive_fraction: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.leak < 1:
            raise ValueError(f"leak must lie strictly between 0 and 1, not {self.leak}")
        if not 0 < round(self.width * self.positive_fraction) < self.width:
            raise ValueError("width and positive_fraction must leave at least one neuron of either sign")

    @property
    def signs(self) -> Array:
        """Signs ``s (m,)`` of the output weights, the positive ones first."""
        return np.where(np.arange(self.width) < round(self.width * self.positive_fraction), 1.0, -1.0)

    def slopes(self, labels: Array) -> Array:
        """Slopes ``(..., n, m)`` at points with these labels ``(..., n)`` once every neuron is activated."""
        return np.where(labels[..., None] * self.signs > 0, 1.0, self.leak)

    def kernel(self, space: SampleSpace) -> Array:
        """Inner products ``K (..., n, n)`` of the points' features in the activated network."""
        slopes = self.slopes(space.labels)
        return space.gram * (slopes @ slopes.mT) / self.width

    def weights(self, coefficients: Array, X: Array, y: Array) -> Array:
        """Weights ``(..., m, p)`` of the coefficients ``D (..., n, m)`` on the data ``X (..., n, p)``."""
        return (self.signs * coefficients).mT @ (y[..., None] * X)

    def __call__(self, weights: Array, X: Array) -> Array:
        """Outputs ``(..., N)`` at the points ``(..., N, p)``."""
        z = X @ weights.mT
        return np.maximum(z, self.leak * z) @ self.signs / np.sqrt(self.width)


@dataclass(frozen=True)
class SampleSpace:
    """All that training and the test error need to know of a data set."""

    labels: Array  # (..., n), +-1
    gram: Array  # (..., n, n), <r_i, r_k>
    alignment: Array  # (..., n), <r_i, mu>
    spread: Array  # (..., n, n), <r_i, Sigma r_k>

    @classmethod
    def of(cls, X: ArrayLike, y: ArrayLike, mean: ArrayLike, variances: ArrayLike = 1.0) -> Self:
        """Reduce ``X (..., n, p)``, labels ``y (..., n)``, mu ``(..., p)`` and the diagonal of Sigma.

        Raises ValueError for shapes that don't fit, labels other than -1 and 1, empty or non-finite input.
        """
        x, labels, mu = (np.asarray(values, dtype=np.float64) for values in (X, y, mean))
        if x.ndim < 2 or x.size == 0 or not (np.isfinite(x).all() and np.isfinite(mu).all()):
            raise ValueError("X must be a non-empty array (..., n, p), and X and mean finite")
        if labels.shape != x.shape[:-1] or mu.shape[-1:] != x.shape[-1:] or not np.isin(labels, (-1, 1)).all():
            raise ValueError("y must hold one label, -1 or 1, for each row of X, and mean one number for each column")
        signed = labels[..., None] * x
        spread = (signed * np.asarray(variances, dtype=np.float64)) @ signed.mT
        return cls(labels, signed @ signed.mT, (signed @ mu[..., None])[..., 0], spread)

    @classmethod
    def join(cls, spaces: Sequence[SampleSpace], axis: int = 0) -> Self:
        """Concatenate data sets of equal n along a leading axis."""
        return cls(**{name: np.concatenate([vars(space)[name] for space in spaces], axis) for name in vars(spaces[0])})

    def __getitem__(self, key: Any) -> SampleSpace:
        """Choose along the leading axes."""
        return SampleSpace(**{name: array[key] for name, array in vars(self).items()})

    def signal_ratio(self, linear: Array) -> Array:
        """``<w, mu> / |Sigma^(1/2) w|`` for ``w = sum_i linear_i r_i``; the Gaussian test error is ``Phi(-ratio)``."""
        variance = np.einsum("...i,...ik,...k->...", linear, self.spread, linear)
        return (linear * self.alignment).sum(-1) / np.sqrt(variance)

    def best_ratio(self) -> Array:
        """The largest ratio of any vector in the span of the data, however it was found (Cauchy-Schwarz)."""
        return np.sqrt((self.alignment * np.linalg.solve(self.spread, self.alignment[..., None])[..., 0]).sum(-1))

    def correlation_conditions(self) -> tuple[Array, Array]:
        """Both sides of the conditions of Theorem 4.8, ``(...)`` each.

        The least product of two r's (positive correlation: >= 0), and ``min |x|^2 / (n max |<x_i, x_k>|)`` (near
        orthogonality: >= a constant that grows as the leak shrinks).
        """
        n = self.gram.shape[-1]
        off = self.gram[..., ~np.eye(n, dtype=bool)]
        return off.min(-1), np.diagonal(self.gram, axis1=-2, axis2=-1).min(-1) / (n * np.abs(off).max(-1))


@dataclass(frozen=True)
class Mixture:
    """``x = y mu + Sigma^(1/2) xi``, mu along (1, ..., 1): models (sG) and (PM) of the paper.

    Sigma is diagonal: ones; "spiked", with 25 as its first entry; or "power", ``j^(-1/4)``. xi has unit variance and
    is Gaussian, or "student_t" with ``dof`` degrees of freedom. A share ``label_noise`` of training labels is flipped.
    Raises ValueError for another name, and for noise without a variance.
    """

    covariance: str = "identity"
    noise: str = "gaussian"
    dof: float = 5.0
    label_noise: float = 0.0

    def __post_init__(self) -> None:
        if self.covariance not in ("identity", "spiked", "power") or self.noise not in ("gaussian", "student_t"):
            raise ValueError("covariance must be identity, spiked or power, and noise gaussian or student_t")
        if not self.dof > 2 or not 0 <= self.label_noise < 0.5:
            raise ValueError("dof must exceed 2, or the noise has no variance, and label_noise must lie in [0, 0.5)")

    def variances(self, dim: int) -> Array:
        """Diagonal ``(dim,)`` of Sigma."""
        index = np.arange(1, dim + 1, dtype=np.float64)
        return {"identity": index**0, "spiked": np.where(index == 1, 25.0, 1.0), "power": index**-0.25}[self.covariance]

    def draw_noise(self, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
        """Noise vectors ``(..., p)``."""
        heavy = self.noise == "student_t"
        unit = rng.standard_t(self.dof, shape) * (1 - 2 / self.dof) ** 0.5 if heavy else rng.standard_normal(shape)
        return unit * np.sqrt(self.variances(shape[-1]))

    def _parts(self, n: int, dim: int, runs: int, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        """Labels and their truth (1, or -1 where flipped), ``(runs, n)``; the noise of every r and, last, mu / |mu|."""
        y = rng.choice([-1.0, 1.0], (runs, n))
        true = np.where(rng.random((runs, n)) < self.label_noise, -1.0, 1.0)
        noise = y[..., None] * self.draw_noise((runs, n, dim), rng)
        return y, true, np.concatenate([noise, np.full((runs, 1, dim), dim**-0.5)], axis=1)

    def draw(self, n: int, dim: int, signal: float, runs: int, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        """Data ``X (runs, n, dim)``, labels ``y (runs, n)`` and mu ``(dim,)`` of length ``signal``."""
        y, true, parts = self._parts(n, dim, runs, rng)
        mean = signal * parts[0, -1]
        return y[..., None] * (parts[:, :-1] + true[..., None] * mean), y, mean

    def grid(
        self, n: int, dims: Sequence[int], signal: Sequence[float], runs: int, rng: np.random.Generator
    ) -> SampleSpace:
        """Data sets of all dims and signals, leading axes ``(runs, dims, signals)``, without forming the points.

        Every r is its noise plus ``+-signal`` times a unit vector, so that the products of those n + 1 vectors give
        the Gram matrices of all signals at once. Signals share the draw of their run; runs and dims are independent.
        """
        strength, cells = np.asarray(signal, dtype=np.float64)[:, None], []
        for dim in dims:  # ragged: the vectors of each dimension have another length
            y, true, parts = self._parts(n, dim, runs, rng)
            mix = np.zeros((runs, len(strength), n, n + 1))
            mix[..., :n], mix[..., n] = np.eye(n), strength * true[:, None]
            half = mix @ (parts @ parts.mT)[:, None]
            spread = mix @ ((parts * self.variances(dim)) @ parts.mT)[:, None] @ mix.mT
            labels = np.broadcast_to(y[:, None], mix.shape[:-1])
            cells.append(SampleSpace(labels, half @ mix.mT, strength * half[..., n], spread)[:, None])
        return SampleSpace.join(cells, axis=1)


def nonnegative_dual(kernel: Array, rounds: int = 200) -> Array:
    """Maximise ``1'v - v'Kv / 2`` over ``v >= 0`` for kernels ``(..., n, n)``, all of them at once.

    Block principal pivoting: solve on the free set, then swap every violated index; where that has stopped helping,
    only the last one (Murty's rule, which ends for every positive definite K). Raises ValueError for a singular kernel.
    """
    kernel = np.asarray(kernel, dtype=np.float64)
    if kernel.ndim < 2 or kernel.size == 0 or not np.isfinite(kernel).all():
        raise ValueError("the kernel must be a non-empty finite array (..., n, n)")
    scale = np.diagonal(kernel, axis1=-2, axis2=-1).mean(-1)[..., None]
    n, batch = kernel.shape[-1], kernel.shape[:-2]
    kernel, eye, free = kernel / scale[..., None], np.eye(n), np.ones((*batch, n), dtype=bool)
    fewest, patience = np.full(batch, n + 1), np.full(batch, 3)
    for _ in range(rounds):
        system = np.where(free[..., None] & free[..., None, :], kernel, eye)
        try:
            dual = np.linalg.solve(system, free[..., None].astype(np.float64))
        except np.linalg.LinAlgError:
            break
        wrong = np.where(free, dual[..., 0] < 0, (kernel @ dual)[..., 0] < 1 - 1e-12)
        count = wrong.sum(-1)
        if not count.any():
            return dual[..., 0] / scale
        patience = np.where(count < fewest, 3, patience - 1)
        fewest = np.minimum(fewest, count)
        last = wrong & (wrong[..., ::-1].cumsum(-1)[..., ::-1] == 1)
        free ^= np.where(patience[..., None] >= 0, wrong, last)
    raise ValueError("the kernel is singular, or nearly: drop repeated or linearly dependent points")


@dataclass(frozen=True)
class Direction:
    """The limit direction, scaled so that its smallest margin is 1."""

    dual: Array  # (..., n), the multipliers lambda
    coefficients: Array  # (..., n, m), D: w_j = s_j sum_i D_ij r_i
    margin: Array  # (...), gamma*: the largest margin of unit weights, 1 / |W|
    linear: Array  # (..., n), sign f(x) = sign <sum_i linear_i r_i, x> for every x


def max_margin_direction(space: SampleSpace, net: LeakyReLUNet) -> Direction:
    """Maximum-margin direction of the activated network, found without training (it stands for program (5))."""
    dual = nonnegative_dual(net.kernel(space))
    coefficients = dual[..., None] * net.slopes(space.labels) / np.sqrt(net.width)
    return Direction(dual, coefficients, dual.sum(-1) ** -0.5, coefficients.sum(-1) / np.sqrt(net.width))


@dataclass(frozen=True)
class Initialisation:
    """Signed pre-activations ``s_j <r_k, w_j>`` ``(..., n, m)`` and squared norm ``(...)`` of the first weights."""

    preactivations: Array
    squared_norm: Array

    @classmethod
    def draw(
        cls, space: SampleSpace, net: LeakyReLUNet, dim: ArrayLike, scale: ArrayLike, rng: np.random.Generator
    ) -> Self:
        """Weights with independent N(0, scale^2) entries in dimension ``dim``, reduced to what the data see of them."""
        scale, (*batch, n) = np.asarray(scale, dtype=np.float64), space.labels.shape
        seen = rng.standard_normal((*batch, n, net.width))
        unseen = rng.chisquare(net.width * (np.asarray(dim) - n), batch)
        preactivations = scale[..., None, None] * (np.linalg.cholesky(space.gram) @ seen)
        return cls(preactivations, scale**2 * ((seen**2).sum((-1, -2)) + unseen))


@dataclass(frozen=True)
class Trajectory:
    """A training run at its checkpoints (first axis c)."""

    steps: NDArray[np.int64]  # (c,)
    coefficients: Array  # (c, ..., n, m), D
    preactivations: Array  # (c, ..., n, m), signed
    norm: Array  # (c, ...), |W|
    log_loss: Array  # (c, ...), of the mean over the points
    margin: Array  # (c, ...), smallest margin of W / |W|
    activation: Array  # (c, ...), share of activated (point, neuron) pairs
    least_activation: Array  # (...), the smallest such share at any step from the first on

    def cosine(self, direction: Direction) -> Array:
        """Cosine ``(c, ...)`` between the m p weights and a direction."""
        return (direction.coefficients * self.preactivations).sum((-1, -2)) * direction.margin / self.norm


def descent_step(Q: Array, slopes: tuple[Array, Array], rate: Array, normalized: bool) -> tuple[Array, Array]:
    """One step of gradient descent at the signed pre-activations ``Q (..., n, m)``.

    ``slopes`` are those met by an activated pair and by a pair on the wrong side of its kink, each ``(..., n, m)``;
    ``rate (..., 1)`` is the step. Returns the margins ``y f(x) (..., n)`` and the increment of ``D (..., n, m)``.
    """
    met = np.where(Q > 0, *slopes) / np.sqrt(Q.shape[-1])
    margins = np.einsum("...nm,...nm->...n", Q, met)
    if normalized:  # the shift keeps the weights when every loss has underflowed
        weights = np.exp(margins.min(-1, keepdims=True) - margins)
        weights /= weights.sum(-1, keepdims=True)
    else:
        weights = np.exp(-margins)
    return margins, (rate * weights)[..., None] * met


def gradient_descent(
    space: SampleSpace,
    net: LeakyReLUNet,
    start: Initialisation,
    step_size: ArrayLike,
    checkpoints: Sequence[int],
    *,
    normalized: bool = False,
    reduction: str = "mean",
) -> Trajectory:
    """Full-batch gradient descent on the exponential loss, up to the last of the ascending ``checkpoints``.

    ``step_size`` alpha is a number or one a run ``(...)``; ``normalized`` divides it by the current loss, which keeps
    the pace of convergence in direction as the loss vanishes. ``reduction`` is "mean" or "sum" over the points.
    Raises ValueError for checkpoints that don't ascend from 0 or more, a step that is not positive, another reduction,
    a start of another shape than the data's, and where the loss overflows.
    """
    if len(checkpoints) == 0 or np.any(np.diff(checkpoints, prepend=-1) <= 0):
        raise ValueError("checkpoints must be ascending step numbers, 0 or larger")
    if reduction not in ("mean", "sum") or not np.all(np.asarray(step_size) > 0):
        raise ValueError("reduction must be mean or sum, and every step_size positive")
    slopes = net.slopes(space.labels), net.slopes(-space.labels)
    if start.preactivations.shape != slopes[0].shape:
        raise ValueError(f"the start must have pre-activations of shape {slopes[0].shape}")
    n, batch = space.gram.shape[-1], space.gram.shape[:-2]
    rate = np.broadcast_to(np.asarray(step_size, dtype=np.float64), batch)[..., None]
    rate = rate / n if reduction == "mean" and not normalized else rate
    D, least, due, records = np.zeros_like(slopes[0]), np.ones(batch), set(checkpoints), []
    with np.errstate(over="ignore", invalid="ignore"):  # an overflow is reported below, in words
        for t in range(checkpoints[-1] + 1):
            Q = start.preactivations + space.gram @ D
            margins, increment = descent_step(Q, slopes, rate, normalized)
            if t and Q.min() <= 0:
                least = np.minimum(least, (Q > 0).mean((-1, -2)))
            if t in due:
                norm = np.sqrt(start.squared_norm + (D * (start.preactivations + Q)).sum((-1, -2)))
                log_loss = logsumexp(-margins, axis=-1) - np.log(n)
                records.append((D.copy(), Q, norm, log_loss, margins.min(-1) / norm, (Q > 0).mean((-1, -2))))
            D += increment
    coefficients, preactivations, norms, log_loss, margin, activation = map(np.stack, zip(*records, strict=True))
    if not np.isfinite(norms).all():
        raise ValueError("the loss overflowed: take a smaller step_size or init_scale, or normalized steps")
    times = np.array(checkpoints, dtype=np.int64)
    return Trajectory(times, coefficients, preactivations, norms, log_loss, margin, activation, least)


def activation_headroom(space: SampleSpace, start: Initialisation, first: Array) -> Array:
    """How large the initial pre-activations are against the push of the first step, ``(...)``.

    ``first (..., n, m)`` holds the coefficients after that step. Below 1, and with non-negative products of the r's,
    every neuron is activated from the first step on, and stays so: each later step adds non-negative numbers.
    """
    push = np.diagonal(space.gram, axis1=-2, axis2=-1)[..., None] * first
    return (np.abs(start.preactivations) / push).max((-1, -2))


def stable_step(kernel: Array) -> Array:
    """Largest loss-normalised step ``(...)`` that :func:`direction_bound` covers: 4 / (diameter of the features)^2."""
    norms = np.diagonal(kernel, axis1=-2, axis2=-1)
    return 4 / (norms[..., None] + norms[..., None, :] - 2 * kernel).max((-1, -2))


def direction_bound(kernel: Array, margin: Array, first_norm: Array, step_size: ArrayLike, step: ArrayLike) -> Array:
    """Upper bound ``(c, ...)`` on ``1 - margin / margin*``, hence on 1 - cosine, after ``step (c,)`` > 1 steps.

    For loss-normalised descent, activated from the first step on and no longer than :func:`stable_step`. ``margin``
    is the largest margin ``(...)``, ``first_norm`` the norm of the weights after the first step ``(...)``. After Ji and
    Telgarsky (2021), restarted once the slopes are frozen; notebook, section Experiment.
    """
    widest = np.diagonal(kernel, axis1=-2, axis2=-1).max(-1)
    rate = np.asarray(step_size, dtype=np.float64)
    budget = np.log(kernel.shape[-1]) + margin * first_norm + rate * widest / 2
    elapsed = np.asarray(step, dtype=np.float64).reshape(-1, *(1,) * np.ndim(margin)) - 1
    return budget / (rate * margin**2 * elapsed)
