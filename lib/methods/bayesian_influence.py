"""Bayesian influence functions: data attribution from the covariance of losses over weights drawn near a trained model.

Source: Kreer, Wu, Adam, Furman, Hoogland, "Bayesian Influence Functions for Hessian-Free Data Attribution"
(arXiv 2509.26544), told in ``notebooks/bayesian_influence.ipynb``. Everything takes the reader's own ``nn.Module`` and
a function ``losses(model, *data) -> (n,)``, or ``(n, S)`` where an example has S tokens; ``data`` are tensors with n
rows. The weights are the model's parameters that require a gradient, as one vector of length d. Shapes: n training
examples, q queries, C chains, T draws, M subsets, R retrainings of each, k classes, S tokens.
Sign everywhere: ``influence[j, i] < 0`` means that more weight on training example i lowers the loss of query j.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field
from scipy.stats import rankdata
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev, vmap

from lib.substrates.tail import DecoderTail

Evaluate = Callable[..., Tensor]
Data = Sequence[Tensor]
R_HAT_LIMIT, ESS_LIMIT = 1.01, 400.0  # rank-normalised R-hat and effective draws in all, the usual limits of mixing
ENERGY_LIMIT = 100.0  # excess energy, in units of its expectation, that counts as divergence


class Parameters(BaseModel):
    """Parameters of the notebook; the defaults are its `small` run."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    preset: str = Field("small", description="named parameter set of presets/bayesian_influence.toml")
    seed: int = Field(0, ge=0, description="seed of the data split, the trainings, the chains and the bootstraps")
    model: str = Field("digits", description="digits (a network trained here), or a language model by name or folder")
    n_train: int = Field(300, ge=16, description="training examples")
    n_query: int = Field(100, ge=4, description="queries")
    hidden: int = Field(24, ge=2, description="hidden units of the digits network")
    rank: int = Field(4, ge=1, description="rank of the updates of a language model's last block")
    checkpoints: int = Field(2, ge=1, le=8, description="trained networks to attribute, one initialisation each")
    steps: int = Field(300, ge=8, description="training steps, full batch")
    rate: float = Field(0.02, gt=0, description="peak learning rate of Adam")
    weight_decay: float = Field(1e-3, ge=0, description="weight decay of the training")
    n_subsets: int = Field(40, ge=4, description="random subsets to retrain on, for each fraction")
    fractions: list[float] = Field([0.1, 0.25, 0.5], min_length=1, description="sizes of the subsets, the last for C5")
    n_retrain_seeds: int = Field(2, ge=2, description="retrainings of a subset, one initialisation each")
    n_beta: float = Field(3e4, gt=0, description="inverse temperature: weight of the mean training loss")
    gamma: float = Field(300.0, gt=0, description="pull towards the trained weights")
    epsilon: float = Field(4e-4, gt=0, description="step size of the sampler")
    n_chains: int = Field(16, ge=2, description="chains of a trained network")
    n_draws: int = Field(500, ge=8, description="draws of a chain")
    thin: int = Field(3, ge=1, description="sampler steps between draws")
    burn_in: int = Field(200, ge=0, description="sampler steps before the first draw")
    sgld_batch_size: int = Field(0, ge=0, description="examples of a sampler step; 0 is all of them")
    sweep_draws: int = Field(150, ge=0, description="draws of a chain in the sweep of settings; 0 leaves it out")
    language_steps: int = Field(250, ge=8, description="training steps of the small character model")
    token_texts: int = Field(24, ge=4, description="texts of the token-by-token part")
    token_draws: int = Field(150, ge=8, description="draws of a chain there")
    token_sampler: list[float] = Field(
        [300.0, 300.0, 2e-3], min_length=3, max_length=3, description="n_beta, gamma and epsilon there"
    )


class FlatModel:
    """A module as a function of the vector of its trainable parameters; everything else in it stays fixed.

    Args:
        model: in evaluation mode, for dropout and batch statistics would make the losses of a draw random.

    Raises:
        ValueError: if the model is in training mode or has nothing to train.
    """

    def __init__(self, model: nn.Module) -> None:
        if model.training:
            raise ValueError("the model is in training mode: call model.eval() first")
        parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not parameters:
            raise ValueError("the model has no parameter that requires a gradient: nothing to vary")
        self.model, self.shapes = model, {name: p.shape for name, p in parameters.items()}
        self.sizes = [p.numel() for p in parameters.values()]
        self.vector = torch.cat([p.detach().reshape(-1) for p in parameters.values()])

    def parts(self, vectors: Tensor) -> dict[str, Tensor]:
        """The parameters (..., *shape) by name, of vectors (..., d)."""
        pieces = vectors.split(self.sizes, dim=-1)
        rows = zip(self.shapes.items(), pieces, strict=True)
        return {name: piece.reshape(*piece.shape[:-1], *shape) for (name, shape), piece in rows}

    def __call__(self, vector: Tensor, evaluate: Evaluate, *data: Tensor) -> Tensor:
        """``evaluate(model, *data)`` with the parameters of a vector (d,)."""
        named = {f"model.{name}": part for name, part in self.parts(vector).items()}
        return functional_call(_Evaluation(self.model, evaluate), named, data)


class _Evaluation(nn.Module):
    """Gives an evaluation of a model the form of a module's forward pass, which ``functional_call`` needs."""

    def __init__(self, model: nn.Module, evaluate: Evaluate) -> None:
        super().__init__()
        self.model, self.evaluate = model, evaluate

    def forward(self, *data: Tensor) -> Tensor:
        return self.evaluate(self.model, *data)


def _sequence(values: Tensor) -> Tensor:
    """One number an example: token losses (n, S) are summed."""
    return values.reshape(len(values), -1).sum(1)


def _rows(what: str, data: Data) -> int:
    if not data or any(len(tensor) != len(data[0]) for tensor in data) or not len(data[0]):
        raise ValueError(f"{what} must be tensors with the same positive number of rows")
    if any(tensor.is_floating_point() and not tensor.isfinite().all() for tensor in data):
        raise ValueError(f"{what} has values that are not finite: remove those rows first")
    return len(data[0])


# ---------------------------------------------------------------------------------------------------------------------
# the method


@dataclass(frozen=True)
class LossTraces:
    """Losses at the draws of a sampler.

    Attributes:
        train: (C, T, n), or (C, T, n, S) by token.
        query: (C, T, q), or (C, T, q, S): losses of the queries, or any other observable.
        copies: pairs (j, i) of a query j that *is* training example i.
        gradient_calls: batched gradient evaluations that were made, all chains at once.
    """

    train: Tensor
    query: Tensor
    copies: tuple[tuple[int, int], ...] = ()
    gradient_calls: int = 0

    def part(self, chains: slice = slice(None), draws: slice = slice(None)) -> "LossTraces":
        """The traces of some chains and draws."""
        return replace(self, train=self.train[chains, draws], query=self.query[chains, draws])


def sgld_step(
    w: Tensor, gradient: Tensor, centres: Tensor, *, n_beta: Tensor, epsilon: Tensor, gamma: Tensor, noise: Tensor
) -> Tensor:
    """One Langevin step of C chains (C, d): down the mean loss, back to the centre, and a random push.

    The settings are (C, 1) and the noise is standard normal. Paper: the sampler's update.
    """
    return w - epsilon / 2 * (n_beta * gradient + gamma * (w - centres)) + epsilon.sqrt() * noise


def sgld_sample(
    model: nn.Module,
    losses: Evaluate,
    train: Data,
    query: Data,
    *,
    n_beta: float | Tensor,
    epsilon: float | Tensor,
    gamma: float | Tensor,
    n_chains: int,
    n_draws: int,
    generator: torch.Generator,
    thin: int = 1,
    burn_in: int = 0,
    batch_size: int = 0,
    centres: Tensor | None = None,
    observe: Evaluate | None = None,
) -> LossTraces:
    """Stochastic gradient Langevin dynamics around trained weights w*; all chains are one batch of ``vmap``.

    A step is :func:`sgld_step`. After `burn_in` steps, every `thin` steps, a draw: forward passes over all training
    examples and queries. Paper: localised BIF and its sampler; notebook: *The core step*.

    Args:
        model: any module in evaluation mode; w* are its trainable parameters, and it is not changed.
        losses: ``losses(model, *data)`` gives one loss an example (n,), or one a token (n, S).
        train: tensors with n rows each.
        query: tensors with q rows each.
        n_beta: inverse temperature times n, one number or one a chain (C,).
        epsilon: step size, likewise; stable on a quadratic while eps * (n_beta * curvature + gamma) < 4.
        gamma: pull towards w*, likewise; gamma / n_beta acts as the damping of an influence function.
        batch_size: examples of a gradient, drawn without replacement for each chain; 0 is all of them.
        centres: (C, d), a w* of its own for each chain; by default the model's weights.
        observe: what to record on the queries in place of their losses.

    Raises:
        ValueError: counts below one, a batch larger than the data, values out of range, data that do not fit.
        FloatingPointError: a chain diverged; says at which step, and nothing is returned.
    """
    flat, n, _ = FlatModel(model), _rows("train", train), _rows("query", query)
    for name, count in {"n_chains": n_chains, "n_draws": n_draws, "thin": thin}.items():
        if count < 1:
            raise ValueError(f"{name} must be at least 1, not {count}")
    if burn_in < 0 or not 0 <= batch_size <= n:
        raise ValueError(
            f"burn_in must not be negative, and batch_size must lie in 0 (all) to {n}, the number of training "
            f"examples, not {burn_in} and {batch_size}"
        )
    centres = flat.vector.expand(n_chains, -1) if centres is None else centres
    if centres.shape != (n_chains, len(flat.vector)):
        raise ValueError(f"centres must be ({n_chains}, {len(flat.vector)}), not {tuple(centres.shape)}")
    beta, eps, pull = (
        torch.as_tensor(value, dtype=centres.dtype, device=centres.device).reshape(-1, 1)
        for value in (n_beta, epsilon, gamma)
    )
    if not ((eps > 0) & (beta >= 0) & (pull >= 0)).all():
        raise ValueError("epsilon must be positive, and n_beta and gamma must not be negative")

    def mean_loss(vector: Tensor, *data: Tensor) -> Tensor:
        return _sequence(flat(vector, losses, *data)).mean()

    gradient = vmap(grad(mean_loss), in_dims=(0, *[0 if batch_size else None for _ in train]))
    on_train = vmap(lambda vector: flat(vector, losses, *train))
    on_query = vmap(lambda vector: flat(vector, observe or losses, *query))
    place = generator.device
    steps, w, records = burn_in + n_draws * thin, centres, []
    with torch.no_grad():
        start = _mean_losses(on_train(w))
        if not start.isfinite().all():
            raise ValueError("the training loss at the starting weights is not finite: train the model first")
        for step in range(1, steps + 1):
            batch = list(train)
            if batch_size:
                index = (
                    torch.rand(n_chains, n, generator=generator, device=place).argsort(1)[:, :batch_size].to(w.device)
                )
                batch = [tensor[index] for tensor in train]
            noise = torch.randn(w.shape, generator=generator, device=place, dtype=w.dtype).to(w.device)
            w = sgld_step(w, gradient(w, *batch), centres, n_beta=beta, epsilon=eps, gamma=pull, noise=noise)
            lost = ~w.isfinite().all(1)
            if step > burn_in and (step - burn_in) % thin == 0:
                drawn = on_train(w)
                records.append((drawn, drawn if query is train and observe is None else on_query(w)))
                energy = beta[:, 0] * (_mean_losses(drawn) - start)
                energy += pull[:, 0] / 2 * (w - centres).square().sum(1)
                # Near a minimum each of the d directions holds an energy of 1/2 on average, whatever its curvature.
                lost |= ~(energy <= ENERGY_LIMIT * (w.shape[1] + 10) / 2)
            if lost.any():
                raise FloatingPointError(
                    f"chain {int(lost.nonzero()[0])} diverged at step {step} of {steps}: lower epsilon below "
                    "4 / (n_beta * largest curvature + gamma), or raise gamma"
                )
    on_data = [torch.stack(draws, 1) for draws in zip(*records, strict=True)]
    return LossTraces(on_data[0], on_data[1], _copies(train, query), steps)


def _mean_losses(values: Tensor) -> Tensor:
    """Mean over examples (C,) of losses (C, n) or (C, n, S), tokens summed."""
    return values.reshape(*values.shape[:2], -1).sum(2).mean(1)


def _copies(train: Data, query: Data) -> tuple[tuple[int, int], ...]:
    """Pairs (query, training example) whose rows are equal in every tensor."""
    if len(train) != len(query) or any(a.shape[1:] != b.shape[1:] for a, b in zip(train, query, strict=True)):
        return ()
    keys = [
        [b"".join(tensor[row].cpu().numpy().tobytes() for tensor in data) for row in range(len(data[0]))]
        for data in (train, query)
    ]
    rows: dict[bytes, list[int]] = {}
    for i, key in enumerate(keys[0]):
        rows.setdefault(key, []).append(i)
    return tuple((j, i) for j, key in enumerate(keys[1]) for i in rows.get(key, []))


@dataclass(frozen=True)
class Influence:
    """Influence scores with what is to be known about them.

    Attributes:
        scores: (q, n) float64, or (q, S', n, S) by token.
        traces: the draws behind them.
    """

    scores: Tensor
    traces: LossTraces

    @cached_property
    def r_hat(self) -> np.ndarray:
        """Rank-normalised R-hat of every trace, training losses first; NaN with a single chain."""
        return _diagnose("rhat", self.traces)

    @cached_property
    def effective_draws(self) -> np.ndarray:
        """Effective sample size of every trace over all chains, training losses first."""
        return _diagnose("ess", self.traces)

    @property
    def notes(self) -> list[str]:
        """Sentences that a reader of the scores needs: copies among the queries, chains that have not mixed."""
        chains, draws = self.traces.train.shape[:2]
        notes = [
            f"query {j} is training example {i}: this score is minus the variance of its loss, or -1 if normalised"
            for j, i in self.traces.copies
        ]
        if chains < 2:
            notes.append("one chain cannot show that it has mixed: use at least two")
        elif draws < 4:
            notes.append(f"{draws} draws a chain are too few to judge mixing: draw at least 4")
        else:
            worst, least = np.nanmax(self.r_hat), np.nanmin(self.effective_draws)
            if worst > R_HAT_LIMIT or least < ESS_LIMIT:
                notes.append(
                    f"the chains have not mixed: largest R-hat {worst:.2f} (limit {R_HAT_LIMIT}), fewest effective "
                    f"draws {least:.0f} of {chains * draws} (limit {ESS_LIMIT:.0f}); draw longer or thin more"
                )
        return notes


def _diagnose(name: Literal["rhat", "ess"], traces: LossTraces) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # arviz announces its next release at import
        import arviz

        both = torch.cat([t.flatten(2).double().cpu() for t in (traces.train, traces.query)], 2).numpy()
        result = getattr(arviz, name)(arviz.convert_to_dataset({"loss": both}))
    return np.asarray(result["loss"])


def bayesian_influence(
    traces: LossTraces, *, normalize: bool = False, center: Literal["chain", "pooled"] = "chain"
) -> Influence:
    """BIF: minus the covariance over draws of each query's loss with each training loss, in float64.

    Paper: the estimator of BIF, and its normalised form. Traces by token give a matrix by token, whose sums over tokens
    are the scores of the sequences (bilinearity).

    Args:
        traces: from :func:`sgld_sample`.
        normalize: divide by both standard deviations: minus the correlation, in [-1, 1]; 0 for a constant loss.
        center: ``"chain"`` takes each chain's own mean off (divisor CT - C), so that chains that sit in different
            places do not add to the covariance; ``"pooled"`` the mean over all (divisor CT - 1), as devinterp does.

    Raises:
        ValueError: unknown centring, or fewer than two draws a chain.
    """
    if center not in ("chain", "pooled"):
        raise ValueError(f"center must be 'chain' or 'pooled', not {center!r}")
    chains, draws = traces.train.shape[:2]
    if draws < 2:
        raise ValueError("a covariance needs at least two draws a chain")
    by_token = traces.query.shape[2:], traces.train.shape[2:]
    over: int | tuple[int, int] = 1 if center == "chain" else (0, 1)
    divisor = chains * draws - (chains if center == "chain" else 1)
    query, train = (
        (values - values.mean(over, keepdim=True)).flatten(0, 1)
        for values in (t.flatten(2).double() for t in (traces.query, traces.train))
    )
    if normalize:
        query, train = (t / t.norm(dim=0).clamp_min(torch.finfo(t.dtype).tiny) for t in (query, train))
        divisor = 1
    return Influence((-query.T @ train / divisor).view(*by_token[0], *by_token[1]), traces)


def gaussian_posterior(
    inputs: Tensor, targets: Tensor, weights: Tensor | float, gamma: float, centre: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean (d,) and covariance (d, d) of exp(-sum_i weights_i l_i(w) - gamma/2 |w - centre|^2).

    The losses are those of least squares, l_i = (x_i w - y_i)^2 / 2, for inputs (n, d) and targets (n,).
    """
    weighted = inputs * torch.as_tensor(weights, dtype=inputs.dtype).expand(len(inputs))[:, None]
    covariance = torch.linalg.inv(weighted.T @ inputs + gamma * torch.eye(inputs.shape[1], dtype=inputs.dtype))
    return covariance @ (weighted.T @ targets + gamma * centre), covariance


def gaussian_bif(inputs: Tensor, targets: Tensor, beta: float, gamma: float) -> Tensor:
    """Closed form (n, n) of the local BIF of least squares l_i = (x_i w - y_i)^2 / 2 around its minimiser.

    With K = X S X^T, S the posterior covariance and r the residuals: -(r_i r_j K_ij + K_ij^2 / 2). The first term is
    the damped influence function, the second what it leaves out. Notebook: *Exact checks*, C1.
    """
    centre = torch.linalg.lstsq(inputs, targets[:, None]).solution[:, 0]
    mean, covariance = gaussian_posterior(inputs, targets, beta, gamma, centre)
    kernel, residuals = inputs @ covariance @ inputs.T, inputs @ mean - targets
    return -(torch.outer(residuals, residuals) * kernel + kernel.square() / 2)


# ---------------------------------------------------------------------------------------------------------------------
# baselines


def per_example_gradients(
    model: nn.Module, losses: Evaluate, data: Data, chunk: int | None = None, weights: Tensor | None = None
) -> Tensor:
    """Gradients (n, d) of every example's loss at the model's weights, or (B, n, d) at those of `weights` (B, d).

    `chunk` examples at a time save memory.
    """
    flat, _ = FlatModel(model), _rows("data", data)

    def loss(vector: Tensor, *row: Tensor) -> Tensor:
        return flat(vector, losses, *(value[None] for value in row)).sum()

    examples = vmap(grad(loss), in_dims=(None, *[0 for _ in data]), chunk_size=chunk)
    with torch.no_grad():
        if weights is None:
            return examples(flat.vector, *data)
        return vmap(lambda vector: examples(vector, *data))(weights)


def ggn_roots(model: nn.Module, logits: Evaluate, data: Data, chunk: int | None = None) -> Tensor:
    """Rows (n k, d) with ``rows.T @ rows`` the Gauss-Newton matrix of the mean cross-entropy (its Fisher matrix).

    ``logits(model, *data)`` gives (n, k). Row (i, c) is sqrt(p_c / n) times the gradient of log p_c of example i.
    """
    flat, n = FlatModel(model), _rows("data", data)

    def scores(vector: Tensor, *row: Tensor) -> Tensor:
        return flat(vector, logits, *(value[None] for value in row))[0]

    def rows(*row: Tensor) -> Tensor:
        jacobian, p = jacrev(scores)(flat.vector, *row), scores(flat.vector, *row).softmax(0)
        return (p / n).sqrt()[:, None] * (jacobian - p @ jacobian)

    with torch.no_grad():
        return vmap(rows, in_dims=tuple(0 for _ in data), chunk_size=chunk)(*data).flatten(0, 1)


def damped_influence(query_gradients: Tensor, roots: Tensor, train_gradients: Tensor, damping: float) -> Tensor:
    """Classical damped influence -G_q (roots^T roots + damping I)^-1 G_t^T, (q, n), in float64.

    Args:
        query_gradients: (q, d).
        roots: (r, d), a square root of the curvature of the *mean* loss, as :func:`ggn_roots` gives.
        train_gradients: (n, d).
        damping: positive; gamma / n_beta is the one that belongs to a BIF.

    Raises:
        ValueError: if the damping is not positive.
    """
    if not damping > 0:
        raise ValueError(f"damping must be positive, not {damping}: the curvature alone is singular")
    query, root, train = (t.double() for t in (query_gradients, roots, train_gradients))
    if len(root) >= root.shape[1]:
        curvature = root.T @ root
        curvature.diagonal().add_(damping)
        return -query @ torch.linalg.solve(curvature, train.T)
    # Woodbury: with fewer rows than weights the system to solve is (r, r).
    small = root @ root.T
    small.diagonal().add_(damping)
    return -(query @ train.T - (query @ root.T) @ torch.linalg.solve(small, root @ train.T)) / damping


def ekfac_influence(
    model: nn.Module, losses: Evaluate, logits: Evaluate, train: Data, query: Data, damping: float
) -> Tensor:
    """EK-FAC influence (q, n): the Gauss-Newton matrix in Kronecker eigenbases layer by layer, eigenvalues refitted.

    Raises:
        ValueError: if a trainable parameter is outside ``nn.Linear`` layers, or a layer sees more than one vector an
            example.
    """
    flat, n = FlatModel(model), _rows("train", train)
    layers = {
        f"{name}." if name else "": layer
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and layer.weight.requires_grad
    }
    covered = {f"{name}{part}" for name, layer in layers.items() for part, _ in layer.named_parameters()}
    if not set(flat.shapes) <= covered:
        raise ValueError(f"EK-FAC covers linear layers only, not {', '.join(sorted(set(flat.shapes) - covered))}")
    inputs: dict[str, Tensor] = {}
    hooks = [
        layer.register_forward_pre_hook(lambda _, args, name=name: inputs.__setitem__(name, args[0].detach()))
        for name, layer in layers.items()
    ]
    try:
        with torch.no_grad():
            logits(model, *train)
    finally:
        for hook in hooks:
            hook.remove()
    if any(seen.shape != (n, layers[name].in_features) for name, seen in inputs.items()):
        raise ValueError("EK-FAC needs layers that see one vector an example, without positions")
    gradients = [per_example_gradients(model, losses, data) for data in (query, train)]
    grouped = [flat.parts(vectors) for vectors in (*gradients, ggn_roots(model, logits, train))]
    scores = gradients[0].new_zeros(len(query[0]), n)
    for name, layer in layers.items():
        seen, matrices = inputs[name], [parts[f"{name}weight"] for parts in grouped]
        if layer.bias is not None:  # weight and bias are one matrix that meets the input with a one appended
            seen, biases = F.pad(seen, (0, 1), value=1.0), [parts[f"{name}bias"] for parts in grouped]
            matrices = [torch.cat([w, b[..., None]], -1) for w, b in zip(matrices, biases, strict=True)]
        asked, given, root = matrices
        # A root of one example is an outer product with that example's input, which leaves the output's gradient.
        unit = seen / seen.square().sum(1, keepdim=True).clamp_min(torch.finfo(seen.dtype).tiny)
        backward = (root.view(n, -1, *root.shape[1:]) @ unit[:, None, :, None]).flatten(0, 1)[..., 0]
        right = torch.linalg.eigh(seen.T @ seen / n).eigenvectors
        left = torch.linalg.eigh(backward.T @ backward).eigenvectors
        asked, given, root = (left.T @ matrix @ right for matrix in (asked, given, root))
        scores -= torch.einsum("qoi,noi->qn", asked / (root.square().sum(0) + damping), given)
    return scores


# ---------------------------------------------------------------------------------------------------------------------
# the retraining test


def fit_stack(
    model: nn.Module,
    losses: Evaluate,
    train: Data,
    starts: Tensor,
    *,
    steps: int,
    rate: float,
    weight_decay: float = 0.0,
    snapshots: Sequence[int] = (),
) -> Tensor:
    """Train B copies of a model at once, full batch, Adam with half-cosine rate; (len(snapshots) + 1, B, d).

    Args:
        train: tensors (B, m, ...), the data of each copy.
        starts: (B, d), the initial weights.
        snapshots: steps after which the weights are kept too, in rising order.

    Raises:
        FloatingPointError: the weights became infinite.
    """
    flat = FlatModel(model)

    def loss(vector: Tensor, *data: Tensor) -> Tensor:
        return _sequence(flat(vector, losses, *data)).mean()

    weights, kept = starts.clone(), []
    optimiser = torch.optim.Adam([weights], lr=rate, weight_decay=weight_decay)
    gradient = vmap(grad(loss))
    with torch.no_grad():
        for step in range(steps):
            optimiser.param_groups[0]["lr"] = rate * 0.5 * (1 + math.cos(math.pi * step / steps))
            weights.grad = gradient(weights, *train)
            optimiser.step()
            if step + 1 in snapshots:
                kept.append(weights.clone())
    if not weights.isfinite().all():
        raise FloatingPointError(f"training diverged within {steps} steps: lower the rate, {rate:g}")
    return torch.stack([*kept, weights])


def retrain_subsets(
    model: nn.Module,
    losses: Evaluate,
    train: Data,
    query: Data,
    subsets: Tensor,
    starts: Tensor,
    *,
    steps: int,
    rate: float,
    weight_decay: float = 0.0,
) -> Tensor:
    """Query losses (R, M, q) of models retrained on subsets (M, n) of equal size from R starts (R, d), all at once.

    Raises:
        ValueError: if the subsets do not fit the data, are empty or differ in size.
    """
    n, sizes = _rows("train", train), subsets.sum(1)
    if subsets.shape[1:] != (n,) or not (sizes == sizes[0]).all() or sizes[0] < 1:
        raise ValueError(f"subsets must be (M, {n}) booleans with the same positive number of members in each row")
    repeats, flat = len(starts), FlatModel(model)
    index = subsets.nonzero()[:, 1].view(len(subsets), -1).repeat(repeats, 1)
    data = [tensor[index] for tensor in train]
    first = starts.repeat_interleave(len(subsets), 0)
    weights = fit_stack(model, losses, data, first, steps=steps, rate=rate, weight_decay=weight_decay)[-1]
    with torch.no_grad():
        values = vmap(lambda vector: _sequence(flat(vector, losses, *query)))(weights)
    return values.view(repeats, len(subsets), -1)


def linear_datamodeling_score(scores: Tensor, subsets: Tensor, losses: Tensor) -> float:
    """LDS: rank correlation over subsets of the summed influence of the members with the retrained loss, mean over j.

    Args:
        scores: (q, n) influence.
        subsets: (M, n) booleans.
        losses: (M, q) losses after retraining.

    Raises:
        ValueError: if the shapes do not fit or there are fewer than three subsets.
    """
    if losses.shape != (len(subsets), len(scores)) or scores.shape[1] != subsets.shape[1] or len(subsets) < 3:
        raise ValueError("scores (q, n), subsets (M, n) with M of at least 3 and losses (M, q) do not fit together")
    predicted = (subsets.double() @ scores.double().T).numpy()
    ranks = [rankdata(values, axis=0) for values in (predicted, losses.numpy())]
    centred = [(r - r.mean(0)) / np.maximum(np.linalg.norm(r - r.mean(0), axis=0), 1e-300) for r in ranks]
    return float((centred[0] * centred[1]).sum(0).mean())


# ---------------------------------------------------------------------------------------------------------------------
# language models


def next_token_losses(tail: DecoderTail, stream: Tensor, heads: Tensor, tokens: Tensor, real: Tensor) -> Tensor:
    """Loss in nats of each token after the first, (n, S - 1), from :func:`lib.substrates.tail.tail_states`.

    It is 0 where `real` (n, S) is false, at padding, which must stand on the right.
    """
    logits: Tensor = tail(stream[:, :-1].contiguous(), heads[:, :-1].contiguous())
    losses = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
    return losses.view(tokens[:, 1:].shape) * real[:, 1:]
