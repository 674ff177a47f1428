"""Token-level uncertainty of a language model's responses, from low-rank noise on its attention weights.

Source: Zhang et al., "TokUR: Token-Level Uncertainty Estimation for Large Language Model Reasoning" (arXiv
2505.11737), told in ``notebooks/token_uncertainty.ipynb``. Everything takes a causal language model of a family that
``lib.substrates.architecture`` knows, and never changes its weights. Entropies are in nats.
Shapes: B responses of at most T tokens, S positions of prompt and response, M perturbed members, vocabulary V; a
perturbed matrix W has m outputs and n inputs.
"""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike
from pydantic import BaseModel, ConfigDict, Field
from scipy.stats import rankdata
from torch import Tensor, nn

from lib.substrates.architecture import architecture
from lib.substrates.names import check_name

PARTS = ("q", "k", "v")
NOISES = ("weight", "per_token")
SAMPLINGS = ("stepwise", "joint")
State = dict[str, Tensor]


class Parameters(BaseModel):
    """Parameters of the notebook; the defaults are its `small` run."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    preset: str = Field("small", description="named parameter set of presets/token_uncertainty.toml")
    seed: int = Field(0, ge=0, description="seed of the task, the model, the weight noise and the bootstraps")
    model: str = Field("chains", description="chains (trained here), or a language model by local name, hub id, folder")
    questions: list[str] = Field(
        ["capitals", "sums"],
        min_length=1,
        description="put to a language model: capitals, sums, or a JSON-lines file; the first is judged",
    )
    rank: int = Field(8, ge=1, description="columns r' of the noise on a matrix")
    sigma: float = Field(0.0, ge=0, description="strength of the noise; 0 chooses it on the validation questions")
    sigmas: list[float] = Field(
        [0.01, 0.02, 0.05, 0.1, 0.2, 0.4], min_length=2, description="strengths that are tried, the paper's 0.1 in it"
    )
    members: list[int] = Field([2, 8], min_length=1, description="numbers M of perturbed models; the first is judged")
    target: list[str] = Field(["q", "k"], description="attention matrices that are perturbed, of q, k and v")
    noise: str = Field("weight", description="weight: a perturbed matrix; per_token: its law, drawn for each token")
    sampling: str = Field("stepwise", description="stepwise: fresh weights at each token; joint: one draw a response")
    include_mean: bool = Field(False, description="whether the first member is the unperturbed model")
    scoring_seeds: int = Field(3, ge=1, le=10, description="independent draws of all the noise")
    modulus: int = Field(11, ge=3, le=31, description="modulus p of the chains")
    chain_lengths: list[int] = Field([2, 3, 4, 5, 6], min_length=1, description="operations of a chain")
    held_out: float = Field(0.1, gt=0, lt=0.5, description="share of the 3 p^2 table entries never trained on")
    train_steps: int = Field(350, ge=2, description="training steps of the chain model, 128 chains each")
    n_validation: int = Field(200, ge=10, description="questions that choose sigma")
    n_test: int = Field(600, ge=10, description="questions that are judged")
    n_curve: int = Field(200, ge=10, description="test questions, the first ones, scored at every strength")
    n_voted: int = Field(600, ge=10, description="test questions, the first ones, that get candidates to vote among")
    n_candidates: int = Field(8, ge=2, description="sampled answers a question, and particles")
    n_filtered: int = Field(200, ge=0, description="questions put to the particle filter; 0 leaves it out")
    top_percent: float = Field(50.0, gt=0, le=100, description="most confident candidates that vote, per cent")
    top_k: int = Field(5, ge=1, description="tokens that DeepConf looks at")
    max_tokens: int = Field(5, ge=1, description="longest answer of a language model")
    device: str = Field("cpu", description="where the model runs: cpu, cuda or mps")


@dataclass(frozen=True)
class Responses:
    """Prompts and their responses, side by side: the responses begin in one column, so prompts are padded on the left.

    Args:
        ids: token ids (B, S).
        start: column of the first response token.
        mask: True at response tokens, (B, T) with T = S - start; what follows a response is padding.
        attention_mask: 1 at tokens, 0 at the prompts' padding, (B, S); not needed where no prompt is padded.

    Raises:
        ValueError: the shapes do not fit, or a response has no token.
    """

    ids: Tensor
    start: int
    mask: Tensor
    attention_mask: Tensor | None = None

    def __post_init__(self) -> None:
        rows, columns = self.ids.shape if self.ids.ndim == 2 else (0, 0)
        if not (rows and 0 < self.start < columns) or self.mask.shape != (rows, columns - self.start):
            raise ValueError(
                f"responses are ids (B, S) with a mask (B, S - start) and 0 < start < S, not {tuple(self.ids.shape)}, "
                f"{tuple(self.mask.shape)} and start {self.start}"
            )
        if self.mask.dtype != torch.bool or not self.mask.any(1).all():
            raise ValueError("the mask must be boolean, and mark at least one token of every response: drop empty ones")
        if self.attention_mask is not None and self.attention_mask.shape != self.ids.shape:
            raise ValueError(f"attention_mask must have the shape of ids, not {tuple(self.attention_mask.shape)}")

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, rows: slice | Tensor) -> "Responses":
        attention = None if self.attention_mask is None else self.attention_mask[rows]
        return Responses(self.ids[rows], self.start, self.mask[rows], attention)

    def to(self, device: str | torch.device) -> "Responses":
        """The same responses on another device."""
        attention = None if self.attention_mask is None else self.attention_mask.to(device)
        return Responses(self.ids.to(device), self.start, self.mask.to(device), attention)

    @property
    def tokens(self) -> Tensor:
        """Ids of the response tokens, (B, T)."""
        return self.ids[:, self.start :]

    @property
    def lengths(self) -> Tensor:
        """Tokens of each response, (B,)."""
        return self.mask.sum(1)


class LowRankPerturbation:
    """Gaussian noise W = W0 + U' eps^T on attention matrices; eps (n, r) normal, U' (m, r) first left singular vectors.

    The noise is added to the outputs of the layers, x -> W0 x + U' (eps^T x), so no weight is ever touched and one
    forward pass serves many draws. Paper: Algorithm 1, Eqs 16-18; notebook: *The core step*.

    Args:
        model: a causal language model; only its weights are read here.
        target: which of q, k and v to perturb; a fused projection is split first.
        rank: r', at most the smaller side of each matrix.
        sigma: standard deviation of the entries of eps.
        noise: ``weight`` draws eps; ``per_token`` adds U' z sigma |x| with a fresh z (r,) at every token, which has
            the same law for one token and is what the authors' code does.
        layers: blocks to perturb; all if None.

    Attributes:
        basis: U' by ``"<layer>.<part>"``.
        places: by the same name, the module that holds W, and W's rows among its outputs.

    Raises:
        ValueError: an argument is out of range, or the architecture is unknown.
    """

    def __init__(
        self,
        model: nn.Module,
        target: Sequence[str] = ("q", "k"),
        rank: int = 8,
        sigma: float = 0.1,
        noise: str = "weight",
        layers: Sequence[int] | None = None,
    ) -> None:
        if not target or not all(check_name(part, PARTS, "attention matrix") for part in target):
            raise ValueError("target is empty: name at least one of q, k and v")
        self.model, self.sigma = model, _checked_sigma(sigma)
        self.noise = check_name(noise, NOISES, "noise")
        parts = architecture(model)
        self.basis: dict[str, Tensor] = {}
        self.places: dict[str, tuple[nn.Module, slice | Tensor]] = {}
        for layer in range(parts.n_layers) if layers is None else layers:
            for part in dict.fromkeys(target):
                module, rows = _projection(parts.attentions[layer], part, parts.n_heads)
                self.places[f"{layer}.{part}"] = module, rows
                self.basis[f"{layer}.{part}"] = _leading_vectors(_weight(module)[rows], rank, f"{layer}.{part}")

    def with_sigma(self, sigma: float) -> "LowRankPerturbation":
        """The same perturbation of another strength, without a new decomposition."""
        other = copy.copy(self)
        other.sigma = _checked_sigma(sigma)
        return other

    def n_inputs(self, name: str) -> int:
        """n of a perturbed matrix."""
        return _weight(self.places[name][0]).shape[1]

    @contextmanager
    def sample(
        self, generator: torch.Generator, members: int = 1, steps: int = 1, include_mean: bool = False
    ) -> Iterator[dict[str, Tensor]]:
        """Perturb the model within the body; afterwards it is bit for bit what it was, also if the body raises.

        In the body a batch is ``members * steps`` groups of B sequences, member after member, and each group has
        weights of its own, the same for all its sequences.

        Args:
            generator: source of the noise.
            members: M.
            steps: draws a member.
            include_mean: leave the first member unperturbed.

        Yields:
            With ``noise="weight"``, eps (members, steps, n, r) by name; else nothing, the noise being drawn in the
            forward pass.
        """
        if members < 1 or steps < 1:
            raise ValueError(f"members and steps must be at least 1, not {members} and {steps}")
        draws: dict[str, Tensor] = {}
        with ExitStack() as undo:
            for name, (module, rows) in self.places.items():
                if self.noise == "weight":
                    shape = (members, steps, self.n_inputs(name), self.basis[name].shape[1])
                    draws[name] = self.sigma * _normal(shape, generator)
                    draws[name][: int(include_mean)] = 0
                hook = self._hook(name, rows, draws.get(name), generator, members if include_mean else 0)
                undo.callback(module.register_forward_hook(hook).remove)
            yield draws

    def _hook(
        self, name: str, rows: slice | Tensor, eps: Tensor | None, generator: torch.Generator, mean_share: int
    ) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
        basis = self.basis[name]
        kept: list[Tensor] = []  # the draws on the model's device and in its type, moved there once

        def add_noise(_: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
            x = args[0]
            if eps is None:
                z = self.sigma * _normal((*x.shape[:-1], basis.shape[1]), generator).to(x)
                coordinates = z * torch.linalg.vector_norm(x, dim=-1, keepdim=True)
                coordinates[: len(x) // mean_share if mean_share else 0] = 0
            else:
                if not kept:
                    kept.append(eps.flatten(0, 1).to(x))
                groups = len(kept[0])
                if len(x) % groups:
                    raise ValueError(f"a batch of {len(x)} sequences is not made of {groups} groups, one for each draw")
                coordinates = (x.reshape(groups, -1, x.shape[-1]) @ kept[0]).reshape(*x.shape[:-1], -1)
            output[..., rows] += coordinates @ basis.to(x).T
            return output

        return add_noise


def _checked_sigma(sigma: float) -> float:
    if not (math.isfinite(sigma) and sigma >= 0):
        raise ValueError(f"sigma is a standard deviation, so at least 0 and finite, not {sigma}")
    return sigma


def _normal(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    return torch.randn(tuple(shape), generator=generator, device=generator.device)


def _weight(module: nn.Module) -> Tensor:
    """Weights of a projection as (outputs, inputs); Conv1D of GPT-2 stores the transpose."""
    weight = module.get_parameter("weight")
    return weight if isinstance(module, nn.Linear) else weight.T


def _projection(attention: nn.Module, part: str, n_heads: int) -> tuple[nn.Module, slice | Tensor]:
    """The module that computes q, k or v, and which of its output rows do."""
    position = PARTS.index(part)
    match [getattr(attention, name, None) for name in (f"{part}_proj", "c_attn", "query_key_value")]:
        case [nn.Module() as separate, _, _]:
            return separate, slice(None)
        case [_, nn.Module() as fused, _]:  # GPT-2: all of q, all of k, all of v
            height = len(_weight(fused)) // 3
            return fused, slice(position * height, (position + 1) * height)
        case [_, _, nn.Module() as fused]:  # GPT-NeoX: q, k and v head by head
            return fused, torch.arange(len(_weight(fused))).reshape(n_heads, 3, -1)[:, position].flatten()
    raise ValueError(f"{type(attention).__name__} has no projection to {part} that is known here")


@torch.no_grad()
def _leading_vectors(weight: Tensor, rank: int, name: str) -> Tensor:
    if not 1 <= rank <= min(weight.shape):
        raise ValueError(f"rank must lie between 1 and {min(weight.shape)} for matrix {name}, not {rank}")
    if not weight.isfinite().all():
        raise ValueError(f"matrix {name} holds numbers that are not finite: the checkpoint is damaged")
    double = weight.dtype if weight.dtype == torch.float64 else torch.float32
    return torch.linalg.svd(weight.to(double), full_matrices=False).U[:, :rank].contiguous()


def _chunks(model: Any, responses: Responses, copies: int, max_sequences: int) -> Iterator[tuple[Responses, Tensor]]:
    """Parts of the responses with their logits (copies, b, T, V)."""
    if model.training:
        raise ValueError("the model is in training mode, where dropout is noise too: call model.eval() first")
    size = max(1, max_sequences // copies)
    for first in range(0, len(responses), size):
        part, options = responses[first : first + size], {}
        if part.attention_mask is not None:
            attention = part.attention_mask[:, :-1].repeat(copies, 1)
            options = {"attention_mask": attention, "position_ids": (attention.cumsum(1) - 1).clamp(min=0)}
        ids, kept = part.ids[:, :-1].repeat(copies, 1), part.mask.shape[1]
        logits: Tensor = model(ids, use_cache=False, logits_to_keep=kept, **options).logits
        yield part, logits.unflatten(0, (copies, len(part)))


@torch.no_grad()
def _member_probs(
    model: nn.Module,
    perturbation: LowRankPerturbation,
    responses: Responses,
    n_samples: int,
    generator: torch.Generator,
    sampling: str,
    include_mean: bool,
    max_sequences: int,
) -> Iterator[Tensor]:
    check_name(sampling, SAMPLINGS, "sampling")
    if perturbation.model is not model:
        raise ValueError("the perturbation belongs to another model: make one from the model that is scored")
    if n_samples < 1:
        raise ValueError(f"n_samples must be at least 1, not {n_samples}: without a draw there is no distribution")
    if perturbation.noise == "per_token" and sampling == "joint":
        raise ValueError("per_token noise is fresh at each token, so it is stepwise: use noise='weight' for joint")
    # Keys and values of a prefix depend on the weights of the step, so a cache would not be exact: every step of a
    # member reads its prefix anew, as a group of the batch. Noise drawn for each token needs one pass.
    steps = responses.mask.shape[1] if sampling == "stepwise" and perturbation.noise == "weight" else 1
    with perturbation.sample(generator, n_samples, steps, include_mean):
        for _, logits in _chunks(model, responses, n_samples * steps, max_sequences):
            folded = logits.unflatten(0, (n_samples, steps))
            own = folded[:, 0] if steps == 1 else folded.diagonal(dim1=1, dim2=3).movedim(-1, 2)
            yield own.double().softmax(-1)


def perturbed_token_probs(
    model: nn.Module,
    perturbation: LowRankPerturbation,
    responses: Responses,
    n_samples: int,
    *,
    generator: torch.Generator,
    sampling: str = "stepwise",
    include_mean: bool = False,
    max_sequences: int = 256,
) -> Tensor:
    """p(y_t | y_<t, x; theta) of each member at each token of the responses, (M, B, T, V) in float64.

    Args:
        model: in evaluation mode.
        perturbation: of this model.
        responses: what is scored.
        n_samples: M.
        generator: source of the noise; draws of weights are shared by all responses.
        sampling: ``stepwise`` takes fresh weights for each token, ``joint`` one draw for a whole response.
        include_mean: whether the first member is the unperturbed model, as in the authors' code.
        max_sequences: sequences of one forward pass, of which stepwise weights take M T for each response. Noise
            drawn for each token depends on it by its order of drawing, weights do not.

    Raises:
        ValueError: no draw is asked for, an unknown name, a model in training mode, or a perturbation of another one.
    """
    arguments = (model, perturbation, responses, n_samples, generator, sampling, include_mean, max_sequences)
    return torch.cat(list(_member_probs(*arguments)), dim=1)


class Uncertainty(NamedTuple):
    """Total, aleatoric and epistemic uncertainty, nats, one number a token or a response."""

    total: Tensor
    aleatoric: Tensor
    epistemic: Tensor


def entropy_decomposition(probs: Tensor) -> Uncertainty:
    """TU = H[mean of p_m], AU = mean of H[p_m], EU = mean of KL(p_m || their mean), from (M, ..., V) to (...) each.

    EU, the mutual information between token and weights, is computed on its own, so that TU = AU + EU can be checked.
    Paper: section 3.3; notebook: *The core step*.

    Raises:
        ValueError: no member, or rows that are not distributions.
    """
    if probs.ndim < 2 or not probs.numel():
        raise ValueError(f"probabilities are (M, ..., V) with at least one member, not {tuple(probs.shape)}")
    probs = probs.double()
    if probs.isnan().any() or (probs < 0).any() or ((probs.sum(-1) - 1).abs() > 1e-4).any():
        raise ValueError("the last axis must hold probabilities: not NaN, not negative, and with sum 1")
    mean = probs.mean(0)
    total = torch.special.entr(mean).sum(-1)
    aleatoric = torch.special.entr(probs).sum(-1).mean(0)
    divergence = torch.xlogy(probs, probs / mean.clamp(min=torch.finfo(mean.dtype).tiny))
    return Uncertainty(total, aleatoric, divergence.sum(-1).mean(0))


def token_uncertainty(
    model: nn.Module,
    perturbation: LowRankPerturbation,
    responses: Responses,
    members: Sequence[int],
    *,
    generator: torch.Generator,
    sampling: str = "stepwise",
    include_mean: bool = False,
    max_sequences: int = 256,
) -> list[Uncertainty]:
    """Uncertainty of every response token, (B, T) each, for each number of members in `members`.

    The smaller sets of members are the first of the largest, so one set of forward passes serves all; see
    :func:`perturbed_token_probs` for the arguments. Numbers behind a response's end mean nothing.
    """
    if not members or min(members) < 1:
        raise ValueError(f"members are numbers of draws, each at least 1, not {list(members)}")
    arguments = (model, perturbation, responses, max(members), generator, sampling, include_mean, max_sequences)
    parts = [[entropy_decomposition(probs[:m]) for m in members] for probs in _member_probs(*arguments)]
    return [Uncertainty(*map(torch.cat, zip(*part, strict=True))) for part in zip(*parts, strict=True)]


def sequence_uncertainty(token_values: Tensor, mask: Tensor, normalize: bool = False) -> Tensor:
    """Sum over the tokens of each response, or their mean, (B, T) to (B,). Paper: section 3.4.

    Raises:
        ValueError: shapes differ, a response has no token, or one of its numbers is NaN.
    """
    if token_values.shape != mask.shape or not mask.any(-1).all():
        raise ValueError("give one number and one mask entry a token, and at least one token a response")
    kept = torch.where(mask, token_values, 0.0)
    if kept.isnan().any():
        raise ValueError("the uncertainty of a token is NaN: look for it in the model's logits")
    return kept.sum(-1) / mask.sum(-1) if normalize else kept.sum(-1)


def confidence_baselines(logits: Tensor, tokens: Tensor, top_k: int) -> dict[str, Tensor]:
    """What one unperturbed pass says about each token, as uncertainties (B, T), to be summed or averaged alike.

    ``LL`` -log p(y_t); ``PE`` entropy of p_t; ``Self-Certainty`` minus the divergence KL(uniform || p_t); ``DeepConf``
    the mean log-probability of the `top_k` likeliest tokens; ``length`` is 1, so that its sum is the length.

    Args:
        logits: (B, T, V).
        tokens: ids (B, T) of the response.
        top_k: at most V.
    """
    if not 1 <= top_k <= logits.shape[-1]:
        raise ValueError(f"top_k must lie between 1 and the vocabulary's size {logits.shape[-1]}, not {top_k}")
    log_p = logits.double().log_softmax(-1)
    return {
        "LL": -log_p.gather(-1, tokens[..., None])[..., 0],
        "PE": torch.special.entr(log_p.exp()).sum(-1),
        "Self-Certainty": log_p.mean(-1) + math.log(log_p.shape[-1]),
        "DeepConf": log_p.topk(top_k).values.mean(-1),
        "length": torch.ones_like(log_p[..., 0]),
    }


@torch.no_grad()
def response_baselines(
    model: nn.Module, responses: Responses, top_k: int, max_sequences: int = 256
) -> dict[str, Tensor]:
    """:func:`confidence_baselines` of responses under a model, in chunks of sequences."""
    parts = [
        confidence_baselines(logits[0], part.tokens, top_k)
        for part, logits in _chunks(model, responses, 1, max_sequences)
    ]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def auroc(uncertainty: ArrayLike, wrong: ArrayLike) -> np.ndarray:
    """Chance that a wrong response is more uncertain than a right one, ties half, (..., B) to (...).

    Raises:
        ValueError: NaN, or only one kind of response where no resampling explains it.
    """
    scores, wrong = np.broadcast_arrays(np.asarray(uncertainty, dtype=float), np.asarray(wrong, dtype=bool))
    if np.isnan(scores).any():
        raise ValueError("an uncertainty is NaN: look for it in the model's logits")
    n_wrong, n = wrong.sum(-1), scores.shape[-1]
    if ((n_wrong == 0) | (n_wrong == n)).any():
        raise ValueError("AUROC is undefined where all responses are right, or all are wrong: give it some of both")
    ranks = rankdata(scores, axis=-1)
    result: np.ndarray = ((ranks * wrong).sum(-1) - n_wrong * (n_wrong + 1) / 2) / (n_wrong * (n - n_wrong))
    return result


def semantic_entropy(answers: Tensor) -> Tensor:
    """Entropy of the sampled answers of each question, equal ones taken together, (B, N) to (B,)."""
    share = (answers[:, :, None] == answers[:, None, :]).double().mean(-1)
    return -share.log().mean(-1)


def selective_majority_vote(answers: Tensor, confidence: Tensor, top_percent: float) -> Tensor:
    """Majority answer among the most confident candidates of each question, (B, N) to (B,).

    Of answers with equally many votes, the one of the most confident voter wins. Paper: section 3.5.

    Args:
        answers: (B, N) integers, equal for equal answers.
        confidence: (B, N), higher is more confident.
        top_percent: share of the candidates that vote; at least one does.
    """
    if answers.shape != confidence.shape or answers.ndim != 2 or confidence.isnan().any():
        raise ValueError("answers and confidence are (B, N) tensors of one shape, the confidence without NaN")
    if not 0 < top_percent <= 100:
        raise ValueError(f"top_percent must lie in (0, 100], not {top_percent}")
    voters = max(1, round(answers.shape[1] * top_percent / 100))
    kept = answers.gather(1, confidence.argsort(dim=1, descending=True, stable=True)[:, :voters])
    votes = (kept[:, :, None] == kept[:, None, :]).sum(-1)
    return kept.gather(1, votes.argmax(1, keepdim=True))[:, 0]


def particle_filter(
    step: Callable[[State], State],
    reward: Callable[[State], Tensor],
    state: State,
    max_steps: int,
    generator: torch.Generator,
) -> State:
    """Grow N partial responses of each of B questions, resampling them by softmax(reward) before each further step.

    Paper: Algorithm 2; notebook: *Experiment*.

    Args:
        step: extends every particle of a state that is not finished; may change the widths of its tensors.
        reward: (B, N) of a state, for instance minus the mean uncertainty so far.
        state: tensors (B, N, ...), one of them the boolean ``finished``; copied at each resampling.
        max_steps: most steps.
        generator: source of the resampling.

    Returns:
        The state in which all particles are finished, or the last one. Questions all of whose particles are finished
        are not resampled.
    """
    if max_steps < 1:
        raise ValueError(f"max_steps must be at least 1, not {max_steps}")
    state = step(state)
    for _ in range(max_steps - 1):
        done = state["finished"].all(1)
        if done.all():
            break
        weights = reward(state)
        if weights.isnan().any():
            raise ValueError("the reward of a particle is NaN: look for it in the model's logits")
        chosen = torch.multinomial(weights.softmax(1), weights.shape[1], replacement=True, generator=generator)
        chosen = torch.where(done[:, None], torch.arange(weights.shape[1], device=chosen.device), chosen)
        rows = torch.arange(len(chosen))[:, None]
        state = step({name: values[rows, chosen] for name, values in state.items()})
    return state


@dataclass(frozen=True)
class ChainTask:
    """Chains of modular arithmetic with known gaps: `v0 o1 v1 ... oK vK =`, answered by the K running values.

    Tokens 0 .. p-1 are numbers, then +, -, x, padding and `=`. A share of the 3 p^2 entries of the tables is
    withheld: chains that train a model never use them. Shorter chains are padded before `=`, so all answers begin in
    one column.

    Args:
        modulus: p.
        lengths: numbers K of operations, drawn evenly.
        held_out: share of the entries that is withheld.
        seed: of the choice of those entries.
    """

    modulus: int = 11
    lengths: Sequence[int] = (2, 3, 4, 5, 6)
    held_out: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.modulus < 2 or not self.lengths or min(self.lengths) < 1 or not 0 < self.held_out < 1:
            raise ValueError("a chain task needs a modulus of 2 or more, lengths of 1 or more, and a share in (0, 1)")

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""
        return self.modulus + 5

    @property
    def start(self) -> int:
        """Column in which the answers begin."""
        return 2 * max(self.lengths) + 2

    @property
    def table(self) -> Tensor:
        """Results (3, p, p) of a o b."""
        a = torch.arange(self.modulus)
        return torch.stack([a[:, None] + a, a[:, None] - a, a[:, None] * a]) % self.modulus

    @property
    def withheld(self) -> Tensor:
        """Which entries are never trained on, (3, p, p)."""
        generator, entries = torch.Generator().manual_seed(self.seed), 3 * self.modulus**2
        mask = torch.zeros(entries, dtype=torch.bool)
        mask[torch.randperm(entries, generator=generator)[: round(self.held_out * entries)]] = True
        return mask.view(3, self.modulus, self.modulus)

    def sample(self, count: int, generator: torch.Generator, *, withheld: bool) -> Responses:
        """Chains with their right answers; with ``withheld=True`` every entry is allowed, else only trained ones."""
        p, table, gaps = self.modulus, self.table, self.withheld
        value = torch.randint(p, (count,), generator=generator)
        prompt, answer = [value], []
        for _ in range(max(self.lengths)):
            allowed = torch.ones(count, 3 * p) if withheld else (~gaps[:, value]).float().movedim(1, 0).flatten(1)
            choice = torch.multinomial(allowed, 1, generator=generator)[:, 0]
            operation, operand = choice // p, choice % p
            value = table[operation, value, operand]
            prompt += [p + operation, operand]
            answer.append(value)
        length = torch.tensor(list(self.lengths))[torch.randint(len(self.lengths), (count,), generator=generator)]
        mask = torch.arange(max(self.lengths)) < length[:, None]
        asked = torch.arange(len(prompt)) <= 2 * length[:, None]
        columns = [torch.where(asked, torch.stack(prompt, 1), p + 3), torch.full((count, 1), p + 4)]
        return Responses(torch.cat([*columns, torch.where(mask, torch.stack(answer, 1), p + 3)], 1), self.start, mask)

    def judge(self, responses: Responses) -> tuple[Tensor, Tensor]:
        """Whether each token is right given the value before it, and whether that step uses a withheld entry, (B, T).

        A token that is no number is wrong; what follows it, and padding, counts as right and not withheld.
        """
        p, ids = self.modulus, responses.ids
        before = torch.cat([ids[:, :1], responses.tokens[:, :-1]], 1)
        operation, operand = ids[:, 1 : self.start - 1 : 2] - p, ids[:, 2 : self.start - 1 : 2]
        known = responses.mask & (before < p)
        entry = tuple(torch.where(known, index, 0) for index in (operation, before, operand))
        right = ~known | (self.table[entry] == responses.tokens)
        return right, known & self.withheld[entry]


def answer_loss(model: Any, chains: Responses) -> Tensor:
    """Cross-entropy of the answers' tokens, nats a token; the prompts are given."""
    logits = model(chains.ids[:, :-1], use_cache=False, logits_to_keep=chains.mask.shape[1]).logits
    return F.cross_entropy(logits[chains.mask], chains.tokens[chains.mask])
