"""Generalisation of in-context learning: twin runs, discrepancy, Bayes floors, and models trained side by side.

Source: Wang et al., "Towards a Theoretical Understanding of In-Context Learning: Stability and Non-I.I.D
Generalisation" (ICLR 2026), told in ``notebooks/icl_generalisation.ipynb``. The constants of its Theorems 1 to 5 are
in none of the sources used here, so nothing below evaluates a bound of the paper; only exponents are quoted.
Shapes: n sequences, l tokens, d coordinates; m prompt tokens, c answer tokens; R models trained side by side, N
training samples, Q steps, B samples a step. A state is the parameters of one model by name; R states are stacked.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn
from torch.func import functional_call, vmap

from lib.substrates.tail import DecoderTail

Array = NDArray[np.float64]
State = Mapping[str, Tensor]
Samples = tuple[Tensor, ...]  # parts of a pool of samples, each with the same leading length
Losses = Callable[[State, Samples], Tensor]  # one state and B samples -> (B, c)
Predictor = Callable[[Tensor], Tensor]  # histories (..., n, t, d) -> a prediction after every token, same shape
DIVERGED = 1e3  # a loss this many times the first one does not come back


class Parameters(BaseModel):
    """Parameters of the notebook; the defaults are its `small` run."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    preset: str = Field("small", description="named parameter set of presets/icl_generalisation.toml")
    seed: int = Field(0, ge=0, description="seed of the data, the first weights, the batches and the bootstraps")
    task: Literal["dynamics", "sentiment"] = Field("dynamics", description="what is predicted in context")
    model: str = Field("smollm2-135m-instruct", description="language model of the task sentiment, Llama architecture")
    tuned_blocks: int = Field(2, ge=1, description="its last blocks, which are tuned")
    dim: int = Field(2, ge=1, le=64, description="coordinates of a token")
    dynamics: Literal["rotation", "random_radius"] = Field("rotation", description="kind of transition matrix")
    radius: float = Field(1.0, gt=0, le=1, description="spectral radius of the transitions")
    noise: float = Field(0.05, gt=0, description="standard deviation of a token's noise")
    prompt_len: int = Field(12, ge=5, description="tokens of a prompt")
    answer_len: int = Field(9, ge=2, description="tokens of an answer")
    train_sizes: list[int] = Field([50, 200, 800, 1600], min_length=2, description="numbers N of training samples")
    seeds: int = Field(2, ge=2, le=20, description="training sets of each size, and first weights")
    test_size: int = Field(1000, ge=40, description="test prompts")
    optimizer: Literal["adam", "sgd"] = Field("adam", description="of the main experiment")
    adam_rate: float = Field(3e-3, gt=0, description="step size of Adam")
    eta0: float = Field(0.1, gt=0, description="first step size of SGD")
    alpha: float = Field(0.25, ge=0, le=1, description="decay of SGD's step size")
    steps: int = Field(400, ge=2, description="training steps Q of the main experiment")
    batch_rule: str = Field("32", pattern=r"^(sqrt|[1-9]\d*)$", description="its batch size, or sqrt for that of N")
    sgd_steps: int = Field(600, ge=2, description="training steps of the paper's own SGD, shown beside")
    shift: list[float] = Field([0.0, 0.5, 1.0], min_length=2, description="angles added to the test dynamics (rad)")
    mixture_size: int = Field(800, ge=8, description="training samples of the two-domain mixture")
    mixture_seeds: int = Field(5, ge=2, le=20, description="seeds of the reweighting experiment")
    mixture_steps: int = Field(300, ge=2, description="its training steps, of 16 samples")
    target_share: float = Field(0.1, gt=0, lt=1, description="share of the mixture that comes from the target's domain")
    lam1: float = Field(0.0, ge=0, description="pull of the weights q to uniform ones")
    lam2: float = Field(0.1, ge=0, description="penalty on |q|^2")
    twin_sizes: list[int] = Field([64, 256], min_length=2, max_length=2, description="N of the twin runs")
    twin_batches: list[int] = Field([4, 16], min_length=2, max_length=2, description="batch sizes of the twin runs")
    twin_steps: int = Field(100, ge=8, description="steps of the twin runs")
    stability_pairs: int = Field(5, ge=2, le=10, description="replaced samples of each training set")
    n_layer: int = Field(2, ge=1, description="blocks of the transformer")
    n_head: int = Field(2, ge=1, description="its attention heads")
    n_embd: int = Field(32, ge=4, description="its width")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if max(self.twin_sizes) > max(self.train_sizes):
            raise ValueError(
                f"twin_sizes are cut from the training sets: none may exceed the largest of train_sizes, "
                f"{max(self.train_sizes)}"
            )
        if self.test_size < 4 * self.stability_pairs + 20:
            raise ValueError(
                f"the twin runs take 4 * stability_pairs test prompts as copies and at least 20 as a probe: raise "
                f"test_size to {4 * self.stability_pairs + 20}"
            )
        return self


def linear_dynamics(
    n: int,
    length: int,
    dim: int,
    *,
    kind: str = "rotation",
    radius: float = 1.0,
    noise: float = 0.05,
    angle_range: tuple[float, float] = (0.3, 1.2),
    rng: np.random.Generator,
) -> tuple[Array, Array]:
    """Sequences ``c_(t+1) = A c_t + noise * eps`` from ``c_0 ~ N(0, I)``, each with a transition A of its own.

    ``rotation`` turns each pair of coordinates (dim is even) by an angle uniform in ``angle_range`` (rad), times
    ``radius``; ``random_radius`` is a Gaussian matrix scaled to spectral radius ``radius``, as in the paper's data.

    Returns:
        Sequences ``(n, length, dim)`` and transitions ``(n, dim, dim)``.

    Raises:
        ValueError: no sequence, an unknown kind, an odd dimension for rotations, or a radius or noise not positive.
    """
    if min(n, length, dim) < 1 or not (radius > 0 and noise > 0 and math.isfinite(noise)):
        raise ValueError("give n, length and dim of at least 1, and a positive radius and noise")
    if kind == "rotation":
        if dim % 2:
            raise ValueError(f"rotations turn pairs of coordinates: dim must be even, not {dim}")
        angles = rng.uniform(*angle_range, (n, dim // 2))
        blocks = np.array([[1.0, 0], [0, 1]]) * np.cos(angles)[..., None, None]
        blocks = blocks + np.array([[0.0, -1], [1, 0]]) * np.sin(angles)[..., None, None]
        transition = radius * np.einsum("npab,pq->npaqb", blocks, np.eye(dim // 2)).reshape(n, dim, dim)
    elif kind == "random_radius":
        transition = rng.standard_normal((n, dim, dim))
        transition *= radius / np.abs(np.linalg.eigvals(transition)).max(-1)[:, None, None]
    else:
        raise ValueError(f"kind must be rotation or random_radius, not {kind!r}")
    draws = rng.standard_normal((n, length, dim))
    sequences = np.empty_like(draws)
    sequences[:, 0] = draws[:, 0]
    for t in range(1, length):
        sequences[:, t] = np.einsum("nij,nj->ni", transition, sequences[:, t - 1]) + noise * draws[:, t]
    return sequences, transition


class InContextTransformer(nn.Module):
    """Pre-LN transformer with causal attention and ReLU MLPs; predicts the token after each of (..., t, d)."""

    def __init__(self, dim: int, length: int, n_layer: int = 2, n_head: int = 2, n_embd: int = 32) -> None:
        super().__init__()
        if n_embd % n_head:
            raise ValueError(f"n_embd must be a multiple of n_head, not {n_embd} with {n_head} heads")
        self.n_head = n_head
        self.read_in, self.read_out = nn.Linear(dim, n_embd), nn.Linear(n_embd, dim)
        self.positions = nn.Parameter(0.02 * torch.randn(length, n_embd))
        self.norms = nn.ModuleList(nn.LayerNorm(n_embd) for _ in range(2 * n_layer + 1))
        self.qkv = nn.ModuleList(nn.Linear(n_embd, 3 * n_embd) for _ in range(n_layer))
        self.out = nn.ModuleList(nn.Linear(n_embd, n_embd) for _ in range(n_layer))
        self.up = nn.ModuleList(nn.Linear(n_embd, 4 * n_embd) for _ in range(n_layer))
        self.down = nn.ModuleList(nn.Linear(4 * n_embd, n_embd) for _ in range(n_layer))

    def forward(self, history: Tensor) -> Tensor:
        """A prediction after every token: histories and predictions are both (..., t, d)."""
        t = history.shape[-2]
        if t > len(self.positions):
            raise ValueError(f"the history has {t} tokens, the model has positions for {len(self.positions)}")
        stream = self.read_in(history) + self.positions[:t]
        future = torch.ones(t, t, dtype=torch.bool, device=history.device).triu(1)
        norms = iter(self.norms)
        for qkv, out, up, down in zip(self.qkv, self.out, self.up, self.down, strict=True):
            parts = qkv(next(norms)(stream)).unflatten(-1, (3, self.n_head, -1)).movedim(-2, -4)  # (..., h, t, 3, k)
            query, key, value = parts.unbind(-2)
            scores = (query @ key.mT / math.sqrt(query.shape[-1])).masked_fill(future, -math.inf)
            stream = stream + out((scores.softmax(-1) @ value).transpose(-2, -3).flatten(-2))
            stream = stream + down(F.relu(up(next(norms)(stream))))
        return self.read_out(next(norms)(stream))


def initial_states(build: Callable[[], nn.Module], seeds: Sequence[int]) -> dict[str, Tensor]:
    """First trainable parameters of one model a seed, stacked; the global generator is left as it was."""
    drawn = []
    with torch.random.fork_rng(devices=[]):
        for seed in seeds:
            torch.manual_seed(seed)
            drawn.append({name: value.detach() for name, value in build().named_parameters() if value.requires_grad})
    return {name: torch.stack([state[name] for state in drawn]) for name in drawn[0]}


def stacked_predictor(module: nn.Module, states: State) -> Predictor:
    """R models as one: histories (n, t, d), or (R, n, t, d), to predictions (R, n, t, d)."""

    def predict(history: Tensor) -> Tensor:
        one = vmap(lambda state, x: functional_call(module, dict(state), (x,)), (0, 0 if history.ndim == 4 else None))
        return one(dict(states), history)

    return predict


def answer_losses(module: nn.Module, prompt_len: int) -> Losses:
    """Teacher-forced squared errors (B, c) of samples ``(sequences,)``, averaged over coordinates."""
    return lambda state, samples: autoregressive_risk(
        lambda history: functional_call(module, dict(state), (history,)), samples[0], prompt_len
    )


def autoregressive_risk(model: Predictor, sequences: Tensor, prompt_len: int, mode: str = "teacher") -> Tensor:
    """Squared error of each answer token, averaged over coordinates.

    Args:
        model: histories to predictions; leading axes that it adds (R models) are kept.
        sequences: ``(n, l, d)``; the first ``prompt_len`` tokens are the prompt, the rest is the answer.
        prompt_len: m, at least 1 and less than l.
        mode: ``teacher`` feeds the true answer so far, ``self`` the model's own.

    Returns:
        ``(..., n, l - m)``.

    Raises:
        ValueError: another shape or mode, a value that is not finite, or a prompt length out of range.
    """
    if sequences.ndim != 3 or not 1 <= prompt_len < sequences.shape[1]:
        raise ValueError(
            f"take sequences (n, l, d) and 1 <= prompt_len < l, not {tuple(sequences.shape)}, {prompt_len}"
        )
    if mode == "teacher":
        return (model(sequences[:, :-1])[..., prompt_len - 1 :, :] - sequences[:, prompt_len:]).square().mean(-1)
    if mode != "self":
        raise ValueError(f"mode must be teacher or self, not {mode!r}")
    history, answer = sequences[:, :prompt_len], []
    for _ in range(sequences.shape[1] - prompt_len):
        answer.append(model(history)[..., -1:, :])
        history = torch.cat([history.expand(*answer[-1].shape[:-2], *history.shape[-2:]), answer[-1]], dim=-2)
    return (torch.cat(answer, dim=-2) - sequences[:, prompt_len:]).square().mean(-1)


def least_squares_predictor(prompts: Tensor, order: int = 1, ridge: float = 1e-3) -> Predictor:
    """Autoregression of an order, fitted to each prompt (n, m, d) alone by ridge regression; needs no training."""
    if not 1 <= order < prompts.shape[1]:
        raise ValueError(f"order must be at least 1 and below the prompt length {prompts.shape[1]}, not {order}")

    def lagged(history: Tensor) -> Tensor:  # (..., t, order d): the latest token first, zeros before the first one
        shifts = [F.pad(history, (0, 0, lag, 0))[..., : history.shape[-2], :] for lag in range(order)]
        return torch.cat(shifts, dim=-1)

    inputs, targets = lagged(prompts)[:, order - 1 : -1], prompts[:, order:]
    gram = inputs.mT @ inputs + ridge * torch.eye(inputs.shape[-1], dtype=inputs.dtype)
    weights = torch.linalg.solve(gram, inputs.mT @ targets)
    return lambda history: lagged(history) @ weights


def poly_step_size(eta0: float, alpha: float, steps: int) -> Array:
    """Step sizes ``eta0 * k^(-alpha)`` for k = 1..steps; the paper's own have eta0 = 1."""
    if not (eta0 > 0 and math.isfinite(eta0) and alpha >= 0 and steps >= 1):
        raise ValueError(f"give eta0 > 0, alpha >= 0 and steps >= 1, not {eta0}, {alpha}, {steps}")
    return eta0 * np.arange(1, steps + 1, dtype=np.float64) ** -alpha


def draw_batches(sizes: Sequence[int], batch_size: int, steps: int, generator: torch.Generator) -> Tensor:
    """Positions ``(R, steps, batch_size)`` in training sets of the given sizes; no position twice in one batch.

    Raises:
        ValueError: the batch is larger than the smallest training set, or a number is not positive.
    """
    if not sizes or batch_size < 1 or steps < 1:
        raise ValueError("give at least one size, and batch_size and steps of at least 1")
    if batch_size > min(sizes):
        raise ValueError(f"a batch of {batch_size} is larger than the training set of {min(sizes)}: take a smaller one")
    absent = torch.arange(max(sizes)) >= torch.tensor(sizes)[:, None]
    keys = (torch.rand(absent.shape, generator=generator).masked_fill(absent, 2) for _ in range(steps))
    return torch.stack([key.topk(batch_size, largest=False).indices for key in keys], dim=1)


def _take(data: Samples, index: Tensor) -> Samples:
    return tuple(part[index] for part in data)


def _check_samples(data: Samples, batches: Tensor, rates: ArrayLike, states: State) -> None:
    lengths = {len(part) for part in data}
    if len(lengths) != 1 or not all(bool(part.isfinite().all()) for part in data):
        raise ValueError("the parts of the data must have one length and finite values: drop samples with NaN")
    if batches.ndim != 3 or batches.shape[1] != len(np.atleast_1d(rates)):
        raise ValueError(f"batches must be (R, Q, B) with one rate a step, not {tuple(batches.shape)}")
    if any(len(value) != len(batches) for value in states.values()):
        raise ValueError(f"the states must be stacked, one for each of the {len(batches)} runs of the batches")
    if batches.min() < 0 or batches.max() >= min(lengths):
        raise ValueError(f"batches point outside the {min(lengths)} samples")


def _check_loss(loss: Tensor, first: Tensor, step: int, rate: float) -> None:
    if not bool((loss <= DIVERGED * first.mean()).all()):  # NaN compares false
        raise FloatingPointError(
            f"training diverged at step {step + 1}: the loss became {float(loss.max()):.3g} with step size {rate:.3g}; "
            "take a smaller first step size or a faster decay"
        )


def train_side_by_side(
    losses: Losses,
    states: State,
    data: Samples,
    batches: Tensor,
    rates: ArrayLike,
    *,
    optimizer: str = "sgd",
    emphasis: Tensor | None = None,
) -> tuple[dict[str, Tensor], Array]:
    """Algorithm 1 for R models at once: mini-batch descent on the weighted empirical risk.

    Args:
        losses: of one state on B samples, ``(B, c)``.
        states: first parameters, stacked R times.
        data: the pool of samples that all runs draw from.
        batches: indices ``(R, Q, B)`` into the pool.
        rates: step sizes ``(Q,)``.
        optimizer: ``sgd`` (the paper's) or ``adam``.
        emphasis: ``N q_i`` of every drawn sample ``(R, Q, B)``; all ones for uniform weights q.

    Returns:
        The trained states, and the unweighted batch losses ``(R, Q)``.

    Raises:
        ValueError: shapes that don't fit, NaN in the data, or an unknown optimizer.
        FloatingPointError: a run diverged; the message names the step.
    """
    _check_samples(data, batches, rates, states)
    if optimizer not in ("sgd", "adam"):
        raise ValueError(f"optimizer must be sgd or adam, not {optimizer!r}")
    if emphasis is not None and emphasis.shape != batches.shape:
        raise ValueError(f"emphasis must have the shape {tuple(batches.shape)} of the batches")
    trained = {name: value.detach().clone().requires_grad_() for name, value in states.items()}
    descent: Any = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[optimizer](list(trained.values()), lr=1.0)
    many, trace = vmap(losses), []
    for step, rate in enumerate(np.asarray(rates, dtype=np.float64).tolist()):
        values = many(trained, _take(data, batches[:, step])).mean(-1)
        loss = (values if emphasis is None else values * emphasis[:, step]).mean(-1)
        trace.append(values.detach().mean(-1))
        _check_loss(trace[-1], trace[0], step, rate)
        descent.param_groups[0]["lr"] = rate
        descent.zero_grad()
        loss.sum().backward()  # the runs share no parameter: each gets the gradient of its own loss
        descent.step()
    return {name: value.detach() for name, value in trained.items()}, torch.stack(trace, -1).double().numpy()


@dataclass(frozen=True)
class StabilityTrace:
    """Twin runs: R training sets, P replaced samples each."""

    divergence: Array  # (R, P, Q + 1), Delta_k = |theta_k - theta'_k|, from Delta_0 = 0
    smoothness: Array  # (R, P, Q), gamma_k = |G_B(theta_k) - G_B(theta'_k)| / Delta_k, 0 while Delta_k = 0
    perturbation: Array  # (R, P, Q), |G_B(theta'_k) - G_B'(theta'_k)|: 0 where sample i is not in the batch
    gradient: Array  # (R, Q), |G_B(theta_k)|, the scale of rounding
    rates: Array  # (Q,)
    loss_gap: Array  # (R, P), mean over the probe of the absolute change of the loss, answer positions averaged
    losses: Array  # (R, Q), batch losses of the runs on S

    def excess(self, source: bool = True) -> Array:
        """``(R, P, Q)``: by how much Delta_(k+1) exceeds its one-step bound, over the step length; positive violates.

        ``source=False`` drops the last term of the bound.
        """
        now, after = self.divergence[..., :-1], self.divergence[..., 1:]
        limit = (1 + self.rates * self.smoothness) * now + source * self.rates * self.perturbation
        return (after - limit) / (self.rates * self.gradient)[:, None]

    @property
    def bound(self) -> Array:
        """The recursion unrolled from 0, ``(R, P, Q + 1)``: it never meets Delta_k again on the way."""
        unrolled = np.zeros_like(self.divergence)
        for k, rate in enumerate(self.rates):
            grown = (1 + rate * self.smoothness[..., k]) * unrolled[..., k]
            unrolled[..., k + 1] = grown + rate * self.perturbation[..., k]
        return unrolled


def twin_sgd(
    losses: Losses,
    states: State,
    data: Samples,
    batches: Tensor,
    rates: ArrayLike,
    replaced: Tensor,
    copies: Tensor,
    probe: Tensor,
) -> StabilityTrace:
    """SGD on R training sets S and, for each, on P twins that differ in one sample; all R (1 + P) runs side by side.

    Twins share first weights and batches with their S. Where a batch holds sample i, the twin's holds its copy.

    Args:
        losses: of one state on B samples, ``(B, c)``.
        states: first parameters, stacked R times, in double precision.
        data: the pool of samples.
        batches: indices ``(R, Q, B)`` into the pool; none twice in a batch.
        rates: step sizes ``(Q,)``.
        replaced: indices ``(R, P)`` of the samples i.
        copies: indices ``(R, P)`` of the independent samples that take their place.
        probe: indices ``(T,)`` of samples on which the change of the loss is measured.

    Raises:
        ValueError: shapes that don't fit or NaN in the data.
        FloatingPointError: a run diverged; the message names the step.
    """
    _check_samples(data, batches, rates, states)
    if replaced.shape != copies.shape or replaced.ndim != 2 or len(replaced) != len(batches):
        raise ValueError(f"replaced and copies must both be (R, P) with R = {len(batches)}")
    runs, pairs = replaced.shape
    step_sizes = np.asarray(rates, dtype=np.float64)
    gradients = vmap(
        torch.func.grad_and_value(lambda state, part, weight: (losses(state, part).mean(-1) * weight).sum())
    )
    theta = {name: value.repeat_interleave(1 + pairs, 0) for name, value in states.items()}  # S first, then its twins
    uniform = torch.full((runs * (1 + pairs), batches.shape[2]), 1 / batches.shape[2], dtype=torch.float64)
    swap = torch.stack([replaced, copies], -1)  # (R, P, 2)

    def rows(state: State) -> Tensor:
        return torch.cat([value.flatten(1) for value in state.values()], 1).unflatten(0, (runs, -1))

    def apart(state: State) -> Tensor:  # S minus each twin, (R, P, parameters)
        return rows(state)[:, :1] - rows(state)[:, 1:]

    records: list[tuple[Tensor, Tensor, Tensor]] = []
    divergence, trace = [torch.zeros(runs, pairs, dtype=torch.float64)], []
    for step, rate in enumerate(step_sizes.tolist()):
        batch = batches[:, step, None]  # (R, 1, B)
        own = torch.where(batch == replaced[..., None], copies[..., None], batch)
        index = torch.cat([batch, own], 1).flatten(0, 1)
        gradient, loss = gradients(theta, _take(data, index), uniform)
        trace.append(loss.unflatten(0, (runs, -1))[:, 0])
        _check_loss(loss, trace[0], step, rate)
        # G_B(theta') - G_B'(theta'): the two batches differ in at most one sample, so two samples are enough.
        source = torch.zeros_like(rows(theta)[:, 1:])
        drawn = (batch == replaced[..., None]).any(-1).nonzero(as_tuple=True)
        if len(drawn[0]):
            twins = {name: value.unflatten(0, (runs, -1))[:, 1:][drawn] for name, value in theta.items()}
            signs = torch.tensor([1.0, -1.0], dtype=uniform.dtype).expand(len(drawn[0]), 2) / batches.shape[2]
            change, _ = gradients(twins, _take(data, swap[drawn]), signs)
            source[drawn] = torch.cat([value.flatten(1) for value in change.values()], 1)
        expansion = (apart(gradient) - source).norm(dim=-1)
        smoothness = torch.where(divergence[-1] > 0, expansion / divergence[-1], 0)
        records.append((smoothness, source.norm(dim=-1), rows(gradient)[:, 0].norm(dim=-1)))
        theta = {name: value - rate * gradient[name] for name, value in theta.items()}
        divergence.append(apart(theta).norm(dim=-1))
    with torch.no_grad():
        after = vmap(losses, (0, None))(theta, _take(data, probe)).mean(-1).unflatten(0, (runs, -1))
    gap = (after[:, 1:] - after[:, :1]).abs().mean(-1)
    smoothness, perturbation, scale = (torch.stack(column, -1) for column in zip(*records, strict=True))
    return StabilityTrace(
        torch.stack(divergence, -1).double().numpy(),
        smoothness.double().numpy(),
        perturbation.double().numpy(),
        scale.double().numpy(),
        step_sizes,
        gap.double().numpy(),
        torch.stack(trace, -1).double().numpy(),
    )


def discrepancy(expected_train: ArrayLike, expected_target: ArrayLike, weights: ArrayLike) -> float:
    """``disc(q) = mean_j (E_target,j - sum_i q_i E_ij)``: how much harder the target prompt is than the training data.

    Args:
        expected_train: expected losses ``(N, c)``, each under the distribution of its own sample.
        expected_target: ``(c,)``, under that of the target prompt.
        weights: q, ``(N,)``, not negative.

    Raises:
        ValueError: shapes that don't fit, values that are not finite, or a negative weight.
    """
    train, target = _expectations(expected_train, expected_target)
    q = np.asarray(weights, dtype=np.float64)
    if q.shape != (len(train),) or not np.isfinite(q).all() or (q < 0).any():
        raise ValueError(f"weights must be {len(train)} finite numbers, none negative")
    return float((target - q @ train).mean())


def _expectations(expected_train: ArrayLike, expected_target: ArrayLike) -> tuple[Array, Array]:
    train, target = (np.asarray(part, dtype=np.float64) for part in (expected_train, expected_target))
    if train.ndim != 2 or train.size == 0 or target.shape != train.shape[1:]:
        raise ValueError(f"expected losses must be (N, c) and (c,), not {train.shape} and {target.shape}")
    if not (np.isfinite(train).all() and np.isfinite(target).all()):
        raise ValueError("expected losses must be finite: drop samples with NaN")
    return train, target


def simplex_projection(point: Array) -> Array:
    """The nearest point ``(N,)`` with entries that are not negative and sum to 1."""
    descending = np.sort(point)[::-1]
    shift = (np.cumsum(descending) - 1) / np.arange(1, len(point) + 1)
    return np.maximum(point - shift[np.flatnonzero(descending > shift)[-1]], 0)


def align_weights(
    expected_train: ArrayLike,
    expected_target: ArrayLike,
    lam1: float,
    lam2: float,
    anchor: ArrayLike | None = None,
    rounds: int = 3000,
) -> Array:
    """Weights q on the simplex that bring the training data near the target (Remark 5, first stage).

    Minimises ``|E_target - q E_train|^2 / c + lam1 |anchor - q|^2 + lam2 |q|^2``. Our reading of the remark: the
    signed discrepancy is squared, position by position, which makes the programme convex; it is solved by accelerated
    projected gradient. ``anchor`` are prior weights s, uniform if absent.

    Raises:
        ValueError: shapes that don't fit, values that are not finite, or penalties that are negative or both zero.
    """
    train, target = _expectations(expected_train, expected_target)
    n, positions = train.shape
    prior = np.full(n, 1 / n) if anchor is None else np.asarray(anchor, dtype=np.float64)
    if prior.shape != (n,) or not np.isfinite(prior).all():
        raise ValueError(f"the anchor must be {n} finite weights")
    if not (min(lam1, lam2) >= 0 and 0 < lam1 + lam2 < math.inf):
        raise ValueError(f"lam1 and lam2 must not be negative, nor both zero, not {lam1}, {lam2}")
    convexity, steepness = lam1 + lam2, np.linalg.norm(train, 2) ** 2 / positions + lam1 + lam2
    momentum = (1 - math.sqrt(convexity / steepness)) / (1 + math.sqrt(convexity / steepness))
    q = ahead = simplex_projection(prior)
    for _ in range(rounds):
        slope = train @ (ahead @ train - target) / positions + lam1 * (ahead - prior) + lam2 * ahead
        following = simplex_projection(ahead - slope / steepness)
        q, ahead = following, following + momentum * (following - q)
    return q


def rollout_floor(transition: ArrayLike, noise: float, steps: int) -> Array:
    """Bayes floor ``(steps,)`` of self-fed prediction: ``noise^2 / d * sum_(k<j) tr(A^k A^kT)`` after j tokens.

    ``transition`` is ``(d, d)`` or ``(n, d, d)``, then averaged. No predictor, however trained, is below in
    expectation. For rotations it is ``j noise^2``.
    """
    matrices = np.asarray(transition, dtype=np.float64)
    if matrices.ndim < 2 or matrices.shape[-1] != matrices.shape[-2] or not np.isfinite(matrices).all() or steps < 1:
        raise ValueError(f"transitions must be finite and square and steps at least 1, not {matrices.shape}, {steps}")
    power, terms = np.broadcast_to(np.eye(matrices.shape[-1]), matrices.shape), []
    for _ in range(steps):
        terms.append((power**2).sum((-1, -2)).mean() * noise**2 / matrices.shape[-1])
        power = matrices @ power
    return np.cumsum(terms)


def linear_predictor_risk(transition: ArrayLike, predictor: ArrayLike, noise: float, length: int) -> Array:
    """Expected teacher-forced error ``(length - 1,)`` of ``M c_t``: ``tr((A-M) S_t (A-M)^T) / d + noise^2``.

    ``S_0 = I`` and ``S_(t+1) = A S_t A^T + noise^2 I``, for tokens t = 0..length-2. Raises ValueError for matrices of
    different shapes.
    """
    matrix, guess = np.asarray(transition, dtype=np.float64), np.asarray(predictor, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape != guess.shape or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"transition and predictor must be (d, d), not {matrix.shape} and {guess.shape}")
    covariance, eye, risks = np.eye(len(matrix)), np.eye(len(matrix)), []
    for _ in range(length - 1):
        risks.append(np.trace((matrix - guess) @ covariance @ (matrix - guess).T) / len(matrix) + noise**2)
        covariance = matrix @ covariance @ matrix.T + noise**2 * eye
    return np.array(risks)


def smoothness_threshold(alpha: ArrayLike) -> Array:
    """Theorem 1's threshold on gamma as the paper writes it, ``(1 + sqrt(1 - 4 alpha (1 - alpha))) / (2 alpha)``."""
    alpha = np.asarray(alpha, dtype=np.float64)
    if not ((alpha > 0) & (alpha <= 1)).all():
        raise ValueError("alpha must lie in (0, 1]")
    return (1 + np.sqrt(np.maximum(1 - 4 * alpha * (1 - alpha), 0))) / (2 * alpha)


def stability_exponents(alpha: ArrayLike, gamma: ArrayLike) -> tuple[Array, Array, Array]:
    """Exponents of Theorem 1 as reported: that of Q up to the threshold, that of Q beyond it, and that of N."""
    alpha, gamma = np.asarray(alpha, dtype=np.float64), np.asarray(gamma, dtype=np.float64)
    return gamma / (1 + gamma), (alpha * gamma**2 + 1 - alpha) / (1 + gamma), -gamma * alpha


def word_losses(tail: DecoderTail) -> Losses:
    """Cross-entropy (B, 1) in nats of samples ``(stream, heads, position, labels)``.

    The first two come from :func:`lib.substrates.tail.tail_states`; labels count the words that the tail reads out.
    """

    def losses(state: State, samples: Samples) -> Tensor:
        logits: Tensor = functional_call(tail, dict(state), samples[:3])
        return -logits.log_softmax(-1).gather(-1, samples[3][:, None])

    return losses
