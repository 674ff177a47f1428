"""How much the late layers of a decoder still change its prediction, as a detector of wrong steps and as a reward.

Source: Sun et al., "Mechanistic Detection and Mitigation of Hallucination in Large Reasoning Models" (arXiv
2505.12886), told in ``notebooks/reasoning_score.ipynb``. A chain is a row of tokens (S,) and the half-open spans of its
steps, (K, 2), none empty; rows with fewer steps are filled up with (-1, -1), and with NaN in whatever is per step.
Padding stands on the right. Shapes: B chains, J depths, P prompts, G samples of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ConfigDict, Field
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn
from transformers import PreTrainedModel

from lib.substrates.architecture import architecture
from lib.substrates.hooks import capture
from lib.substrates.lens import depth_sites, lens_logits
from lib.substrates.names import check_name
from lib.substrates.training import Plan, train

REWARD_FORMS = ("outcome", "potential", "added")
_LOGITS_AT_ONCE = 2**23  # numbers; so a vocabulary of any size is read in pieces of 32 MiB


class Parameters(BaseModel):
    """Parameters of the notebook; the defaults are its `small` run."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    preset: str = Field("small", description="named parameter set of presets/reasoning_score.toml")
    seed: int = Field(0, ge=0, description="seed of the facts, the model, the samples and the bootstraps")
    model: str = Field("", description="empty: a decoder trained here; else a pretrained one, on countries and sums")
    n_entities: int = Field(40, ge=3, description="entities of the made-up facts")
    n_relations: int = Field(5, ge=1, description="relations; each leads from every entity to one other")
    rare_rate: float = Field(0.08, gt=0, le=1, description="how often training asks a rare fact, per common one")
    noop_rate: float = Field(0.2, ge=0, lt=1, description="share of training prompts with an irrelevant aside")
    hops: int = Field(5, ge=2, description="steps of the chains that are scored and rewarded")
    n_layer: int = Field(4, ge=2, description="blocks of the decoder trained here")
    d_model: int = Field(64, ge=8, multiple_of=8, description="width of its residual stream")
    train_steps: int = Field(240, ge=2, description="its training steps")
    batch_size: int = Field(128, ge=1, description="sequences of a training step")
    n_traces: int = Field(800, ge=16, description="chains to score, half of them with an aside")
    n_problems: int = Field(80, ge=8, description="word problems for a pretrained model")
    n_samples: int = Field(4, ge=2, description="further samples a prompt, for the baselines that need them")
    late_layers: list[int] = Field([], description="depths compared with the last; empty: the last half")
    early_window: int = Field(3, ge=2, description="first steps, whose fluctuation is pattern 1")
    late_share: float = Field(0.4, gt=0, lt=1, description="last share of the steps, whose attention is pattern 2")
    tau_quantile: float = Field(0.9, gt=0, lt=1, description="quantile of the scores above which a step overthinks")
    repeats: int = Field(5, ge=1, description="random halvings of the chains into fit and test")
    grpo_updates: int = Field(28, ge=2, description="policy updates of an arm, two on each set of samples")
    grpo_prompts: int = Field(16, ge=1, description="prompts a set of samples")
    group_size: int = Field(8, ge=2, description="samples a prompt")
    grpo_rate: float = Field(1e-4, gt=0, description="learning rate of the policy")
    grpo_seeds: int = Field(2, ge=2, description="seeds an arm")
    gamma: float = Field(0.9, ge=0, lt=1, description="discount of the second shaped arm; the first has 1")
    mean_potential: float = Field(0.2, gt=0, description="mean clipped score of a step, set by alpha")
    n_mdps: int = Field(100, ge=2, description="random decision processes of the exact check")


# Scores ---------------------------------------------------------------------------------------------------------------


def js_divergence(logp: Tensor, logq: Tensor, dim: int = -1) -> Tensor:
    """Jensen-Shannon divergence in nats of distributions given by their logarithms; 0 to ln 2, symmetric.

    Raises:
        ValueError: for two different shapes, or NaN.
    """
    if logp.shape != logq.shape:
        raise ValueError(f"two distributions of one shape are compared, not {tuple(logp.shape)}, {tuple(logq.shape)}")
    if logp.isnan().any() or logq.isnan().any():
        raise ValueError("the log-probabilities hold NaN: check the model's weights and input")
    logm = torch.logaddexp(logp, logq) - math.log(2)
    # An impossible token adds nothing to the side that holds it impossible.
    parts = (torch.where(x == -math.inf, 0.0, x.exp() * (x - logm)) for x in (logp, logq))
    return sum(part.sum(dim) for part in parts) / 2  # type: ignore[return-value]


def late_depths(model: nn.Module, depths: Sequence[int] = ()) -> list[int]:
    """The depths to compare with the last one, N: those given, or the last half without N.

    Raises:
        ValueError: if there are none, or one lies outside 1..N-1.
    """
    last = architecture(model).n_layers
    chosen = list(depths) or list(range(max(1, math.ceil(last / 2)), last))
    if not chosen or not all(1 <= depth < last for depth in chosen):
        raise ValueError(
            f"late layers lie in 1..{last - 1}, below the last of this model's {last} blocks, not {chosen}"
        )
    return chosen


def step_membership(spans: Tensor, length: int) -> Tensor:
    """Which tokens belong to which step: (B, K, length), booleans, from spans (B, K, 2).

    Raises:
        ValueError: if a chain has no step, or a step is empty, overlaps the one before, takes in the first token (which
            nothing predicts) or exceeds the sequence.
    """
    if spans.ndim != 3 or spans.shape[-1] != 2 or spans.is_floating_point():
        raise ValueError(f"spans are integers (B, K, 2), start and end of each step, not {tuple(spans.shape)}")
    start, end = spans.unbind(-1)
    there = (spans != -1).any(-1)
    if not spans.shape[1] or not there[:, 0].all() or (there[:, 1:] & ~there[:, :-1]).any():
        raise ValueError("every chain needs at least one step, and missing steps, (-1, -1), stand at its end")
    if (there & (end <= start)).any():
        raise ValueError("a step is empty: leave out steps without tokens")
    if (there & ((start < 1) | (end > length))).any():
        raise ValueError(f"steps must lie in tokens 1..{length - 1}: nothing predicts token 0, and none is after")
    if (there[:, 1:] & (start[:, 1:] < end[:, :-1])).any():
        raise ValueError("steps overlap: each must begin where the one before ends, or later")
    place = torch.arange(length, device=spans.device)
    return (place >= start[..., None]) & (place < end[..., None]) & there[..., None]


def step_means(values: Tensor, spans: Tensor) -> Tensor:
    """Means (..., B, K) over the tokens of each step of values (..., B, S); NaN for missing steps.

    Raises:
        ValueError: as :func:`step_membership`, or for NaN in a step.
    """
    member = step_membership(spans, values.shape[-1])
    inside = torch.where(member.any(1), values.double(), 0.0)
    if inside.isnan().any():
        raise ValueError("the values of a step hold NaN: check the model's weights and input")
    weights = member.double()
    return torch.einsum("bks,...bs->...bk", weights, inside) / torch.where(member.any(-1), weights.sum(-1), math.nan)


@dataclass(frozen=True)
class TokenSignals:
    """Of each token in a step, at the position that predicts it, in nats; 0 elsewhere.

    Attributes:
        divergence: (J, B, S) between the lens at a depth and the model's output.
        surprisal: (B, S), minus the token's log-probability.
        entropy: (B, S) of the prediction.
        attention: (B, K, K) from a token of step k to one of step j, mean over tokens, heads and the last half of the
            blocks; NaN for missing steps. Empty unless asked for.
    """

    divergence: Tensor
    surprisal: Tensor
    entropy: Tensor
    attention: Tensor


@torch.no_grad()
def token_signals(
    model: PreTrainedModel, tokens: Tensor, spans: Tensor, depths: Sequence[int] = (), attention: bool = False
) -> TokenSignals:
    """Logit-lens divergences, surprisals and entropies of the steps' tokens, from one pass.

    No more than a few million logits exist at any time: depth after depth, some tokens at a time; and one block's
    attention.

    Raises:
        ValueError: for tokens that the model does not know, spans as in :func:`step_membership`, or depths as in
            :func:`late_depths`.
    """
    _check_tokens(model, tokens)
    member = step_membership(spans, tokens.shape[1])
    row, place = member.any(1).nonzero(as_tuple=True)
    places, last = depth_sites(model), architecture(model).n_layers
    sites = [places[depth] for depth in (*late_depths(model, depths), last)]
    with capture(model, sites) as seen, _pooled_attention(model, member, attention) as pooled:
        model.base_model(input_ids=tokens, use_cache=False)  # the body alone: no logits
    streams = torch.stack([seen[site][row, place - 1] for site in sites])
    size, columns = max(1, _LOGITS_AT_ONCE // int(model.config.vocab_size)), []
    for piece, target in zip(streams.split(size, 1), tokens[row, place].split(size), strict=True):
        output = lens_logits(model, piece[-1]).log_softmax(-1)
        rows = [js_divergence(lens_logits(model, stream).log_softmax(-1), output) for stream in piece[:-1]]
        rows += [-output.gather(-1, target[:, None])[:, 0], -(output.exp() * output).nan_to_num().sum(-1)]
        columns.append(torch.stack(rows))
    signals = torch.zeros(len(sites) + 1, *tokens.shape, device=tokens.device)
    signals[:, row, place] = torch.cat(columns, 1).float()
    looked = torch.stack(pooled).mean(0) if pooled else signals.new_empty(0)
    return TokenSignals(signals[:-2], signals[-2], signals[-1], looked)


def reasoning_score(model: PreTrainedModel, tokens: Tensor, spans: Tensor, depths: Sequence[int] = ()) -> Tensor:
    """The Reasoning Score of each step, (B, K) nats: mean divergence over its tokens and the late depths.

    Raises:
        ValueError: as :func:`token_signals`.
    """
    return step_means(token_signals(model, tokens, spans, depths).divergence.mean(0), spans)


@dataclass(frozen=True)
class StepSignals:
    """Of each step, NaN where it is missing: score, surprisal and entropy, (B, K) nats; attention (B, K, K)."""

    score: Tensor
    surprisal: Tensor
    entropy: Tensor
    attention: Tensor


def step_signals(
    model: PreTrainedModel, tokens: Tensor, spans: Tensor, depths: Sequence[int] = (), batch_size: int = 40
) -> StepSignals:
    """All that the detector needs of B chains, `batch_size` of them at a time: means of :func:`token_signals`.

    Raises:
        ValueError: as :func:`token_signals`.
    """
    parts = []
    for some, where in zip(tokens.split(batch_size), spans.split(batch_size), strict=True):
        seen = token_signals(model, some, where, depths, attention=True)
        by_token = torch.stack([seen.divergence.mean(0), seen.surprisal, seen.entropy])
        parts.append((*step_means(by_token, where), seen.attention))
    return StepSignals(*map(torch.cat, zip(*parts, strict=True)))


# Detection ------------------------------------------------------------------------------------------------------------


def rhd_features(
    scores: ArrayLike,
    perplexity: ArrayLike,
    attention: ArrayLike,
    *,
    early_window: int,
    late_share: float,
    shallow: float,
    tau: float,
) -> NDArray[np.float64]:
    """The four terms of the detector, (B, 4): mean score, fluctuation, attention on bad steps, spurious verification.

    Args:
        scores: (B, K), NaN for missing steps.
        perplexity: (B, K) of the steps.
        attention: (B, K, K) from step k to step j.
        early_window: steps whose coefficient of variation is taken.
        late_share: the last ``ceil(late_share * steps)`` steps are late, the others early.
        shallow: an early step with at most this score is bad;
        tau: and so is one with at least this.

    Raises:
        ValueError: if shapes do not fit, a chain is empty, or an argument is out of range.
    """
    R, ppl, A = (np.asarray(x, dtype=float) for x in (scores, perplexity, attention))
    if R.ndim != 2 or ppl.shape != R.shape or A.shape != (*R.shape, R.shape[-1]):
        raise ValueError(f"give (B, K), (B, K) and (B, K, K), not {R.shape}, {ppl.shape} and {A.shape}")
    if early_window < 2 or not 0 < late_share < 1 or not math.isfinite(shallow) or not math.isfinite(tau):
        raise ValueError("early_window must be at least 2, late_share in (0, 1), shallow and tau finite")
    there = ~np.isnan(R)
    steps = there.sum(1)
    if not R.size or (steps == 0).any() or not np.isfinite(np.where(there, ppl, 0)).all() or np.isinf(R).any():
        raise ValueError("every chain needs a step, and every step a finite score and perplexity")
    place = np.arange(R.shape[1])
    late = there & (place >= (steps - np.ceil(late_share * steps))[:, None])
    early = there & ~late
    first = there & (place < early_window)
    mean = _mean(R, first)
    fluctuation = np.sqrt(_mean((R - mean[:, None]) ** 2, first)) / (mean + 1e-8)
    pairs = late[:, :, None] & early[:, None]
    bad = pairs & ((shallow >= R) | (tau <= R))[:, None]
    looked = np.where(bad, A, 0).sum((1, 2)) / np.maximum(np.where(pairs, A, 0).sum((1, 2)), 1e-12)
    x, y = (np.where(there, v - _mean(v, there)[:, None], 0) for v in (R, ppl))
    spread = np.sqrt((x**2).sum(1) * (y**2).sum(1))
    together = np.where(spread > 1e-12, (x * y).sum(1) / np.maximum(spread, 1e-12), 0)
    return np.stack([_mean(R, there), fluctuation, looked, together], 1)


def eigen_score(embeddings: ArrayLike, ridge: float = 1e-3) -> NDArray[np.float64]:
    """EigenScore (P,) of embeddings (P, G, d) of a prompt's samples: how much they scatter, as a log-determinant / G.

    Raises:
        ValueError: for another shape, fewer than two samples, or NaN.
    """
    Z = np.asarray(embeddings, dtype=float)
    if Z.ndim != 3 or Z.shape[1] < 2 or not np.isfinite(Z).all():
        raise ValueError(f"give finite embeddings (prompts, at least 2 samples, width), not {Z.shape}")
    centred = Z - Z.mean(-1, keepdims=True)
    return np.linalg.slogdet(centred @ centred.swapaxes(1, 2) + ridge * np.eye(Z.shape[1]))[1] / Z.shape[1]


def halvings(labels: ArrayLike, repeats: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Random halves (repeats, B), 0 or 1, with equal shares of each label.

    Raises:
        ValueError: if a label, of the two there must be, has fewer than four chains.
    """
    y = np.asarray(labels, dtype=bool)
    if min(y.sum(), (~y).sum()) < 4:
        raise ValueError(f"{y.sum()} of {y.size} chains are wrong: a detector needs four of each kind")
    folds = np.zeros((repeats, y.size), dtype=np.int64)
    for kind in (y, ~y):
        folds[:, kind] = rng.permuted(np.tile(np.arange(kind.sum()) % 2, (repeats, 1)), axis=1)
    return folds


def held_out_scores(
    features: Callable[[NDArray[np.bool_]], NDArray[np.float64]], labels: ArrayLike, folds: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Log-odds (repeats, B) that a chain is wrong, from a logistic regression fitted on the other half of each halving.

    Args:
        features: ``features(fit)`` are (B, F), with every threshold taken from the chains where `fit` is True.
        labels: (B,), True where the chain is wrong.
        folds: (repeats, B) of :func:`halvings`.
    """
    y = np.asarray(labels, dtype=bool)
    odds = np.zeros(folds.shape)
    for row, fold in zip(odds, folds, strict=True):
        for half in (0, 1):
            fit = fold != half
            x = features(fit)
            detector = make_pipeline(StandardScaler(), LogisticRegression()).fit(x[fit], y[fit])
            row[~fit] = detector.decision_function(x[~fit])
    return odds


def held_out_auc(
    scores: ArrayLike, labels: ArrayLike, folds: NDArray[np.int64], counts: ArrayLike | None = None
) -> NDArray[np.float64]:
    """Area under the ROC curve over pairs of chains in one half, (draws,); ties count half.

    Args:
        scores: (B,), or (repeats, B) where they differ between the halvings; higher says wrong.
        labels: (B,), True where the chain is wrong.
        folds: (repeats, B).
        counts: (draws, B), how often each chain is in each bootstrap sample; all once if None.

    Raises:
        ValueError: for NaN, or scores of another shape.
    """
    y = np.asarray(labels, dtype=bool)
    s = np.broadcast_to(np.asarray(scores, dtype=float), folds.shape)
    if np.isnan(s).any():
        raise ValueError("the scores hold NaN")
    weights = np.ones((1, y.size)) if counts is None else np.asarray(counts, dtype=float)
    together = folds[:, y, None] == folds[:, None, ~y]
    above, below = s[:, y, None], s[:, None, ~y]
    wins = (together * ((above > below) + 0.5 * (above == below))).sum(0)
    won, all_pairs = (((weights[:, y] @ table) * weights[:, ~y]).sum(1) for table in (wins, together.sum(0)))
    return won / all_pairs


# Rewards --------------------------------------------------------------------------------------------------------------


def clipped_score(scores: Tensor, alpha: float, tau: float) -> Tensor:
    """The bounded score: alpha times the score up to tau, 0 above (overthinking). It jumps at tau."""
    return torch.where(scores <= tau, alpha * scores, 0.0)


def potential_shaped_rewards(rewards: Tensor, potentials: Tensor, gamma: float, terminal: float = 0.0) -> Tensor:
    """Shaped step rewards (..., K): r_t + gamma * Phi(s_{t+1}) - Phi(s_t).

    Args:
        rewards: (..., K).
        potentials: (..., K), of the state before each step; the first is the prompt's.
        gamma: in [0, 1].
        terminal: potential of the state after the last step; unless it is 0 the best policy may change.

    Raises:
        ValueError: for two shapes, NaN, or gamma out of range.
    """
    if rewards.shape != potentials.shape or not rewards.ndim or not rewards.shape[-1]:
        shapes = f"{tuple(rewards.shape)} and {tuple(potentials.shape)}"
        raise ValueError(f"rewards and potentials of as many steps, at least one, belong together, not {shapes}")
    if not 0 <= gamma <= 1:
        raise ValueError(f"gamma must lie in [0, 1], not {gamma}")
    if rewards.isnan().any() or potentials.isnan().any():
        raise ValueError("rewards or potentials hold NaN")
    return rewards + gamma * F.pad(potentials[..., 1:], (0, 1), value=terminal) - potentials


def step_rewards(outcome: Tensor, scores: Tensor, form: str, *, alpha: float, tau: float, gamma: float = 1.0) -> Tensor:
    """Rewards (..., K) of the steps: the outcome (...,) at the end, and the score in one of three forms.

    ``"outcome"`` leaves the score out (GRPO), ``"potential"`` shapes by Phi = - clipped score of the last step done,
    0 at the prompt and at the end (GRPO-R), ``"added"`` pays the clipped score of each step.

    Raises:
        ValueError: for an unknown form, or as :func:`potential_shaped_rewards`.
    """
    check_name(form, REWARD_FORMS, "reward form")
    rewards = F.pad(outcome.to(scores.dtype)[..., None], (scores.shape[-1] - 1, 0))
    depth = clipped_score(scores, alpha, tau)
    if form == "potential":
        return potential_shaped_rewards(rewards, -F.pad(depth[..., :-1], (1, 0)), gamma)
    return rewards + depth if form == "added" else rewards


def grpo_advantages(rewards: Tensor, level: str = "trajectory") -> Tensor:
    """Advantages (..., G, K) of a group's step rewards (..., G, K); zeros for a group whose rewards are all equal.

    ``"trajectory"``: the sum of a sample's rewards, normalised over the group, at all its steps. ``"step"``: all step
    rewards of the group normalised together, then summed over a step and the later ones.

    Raises:
        ValueError: for an unknown level, a group of one, or NaN.
    """
    check_name(level, ("trajectory", "step"), "level")
    if rewards.ndim < 2 or rewards.shape[-2] < 2 or not rewards.shape[-1]:
        raise ValueError(
            f"a group has at least two samples, of a step or more: (..., G, K), not {tuple(rewards.shape)}"
        )
    if not rewards.isfinite().all():
        raise ValueError("the rewards hold NaN or infinite values")
    over = (-2,) if level == "trajectory" else (-2, -1)
    x = rewards.sum(-1, keepdim=True) if level == "trajectory" else rewards
    centred = x - x.mean(over, keepdim=True)
    spread = x.std(over, correction=0, keepdim=True)
    silent = spread <= 1e-6 * x.abs().amax(over, keepdim=True)
    normal = torch.where(silent, 0.0, centred / spread.clamp_min(1e-30))
    return normal.expand_as(rewards) if level == "trajectory" else normal.flip(-1).cumsum(-1).flip(-1)


def grpo_loss(
    logp: Tensor, old: Tensor, reference: Tensor, advantages: Tensor, mask: Tensor, clip: float, beta: float
) -> Tensor:
    """GRPO's loss: minus the clipped gain plus beta times the divergence from the reference, mean over masked tokens.

    Args:
        logp: (N, S) log-probabilities of the sampled tokens under the policy; `old` those when they were sampled,
            `reference` those of the reference model.
        advantages: (N, S).
        mask: (N, S), True at the tokens that count.
        clip: how far from 1 a ratio still earns.
        beta: weight of the divergence.

    Raises:
        ValueError: for different shapes, or if no token counts.
    """
    if not logp.shape == old.shape == reference.shape == advantages.shape == mask.shape or not mask.any():
        raise ValueError("log-probabilities, advantages and mask have one shape (N, S), and one token counts at least")
    ratio = (logp - old).exp()
    gain = torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
    apart = reference - logp
    return ((beta * (apart.exp() - apart - 1) - gain) * mask).sum() / mask.sum()


@dataclass(frozen=True)
class Rollouts:
    """Samples of a policy: tokens (P * G, S), the spans of their steps (P * G, K, 2), step rewards (P, G, K)."""

    tokens: Tensor
    spans: Tensor
    rewards: Tensor


def train_grpo(
    policy: PreTrainedModel,
    reference: PreTrainedModel,
    roll_out: Callable[[torch.Generator, int], Rollouts],
    plan: Plan,
    *,
    generator: torch.Generator,
    clip: float = 0.2,
    beta: float = 0.02,
    reuse: int = 2,
    after_step: Callable[[int, float], None] | None = None,
) -> list[float]:
    """Trains `policy` in place by GRPO with step-level advantages, near `reference`, and returns the losses.

    Args:
        policy: decoder whose parameters are trained.
        reference: decoder it is held to.
        roll_out: ``roll_out(generator, plan.batch_size)`` samples from the present policy and rewards.
        plan: updates, learning rate, and as batch size the prompts of a set of samples.
        generator: source of all randomness.
        clip: as `beta`, of :func:`grpo_loss`.
        beta: weight of the divergence from the reference.
        reuse: updates on each set of samples; from the second on the clip may act.
        after_step: as in :func:`lib.substrates.training.train`.

    Raises:
        ValueError: as :func:`grpo_advantages` and :func:`step_membership`.
    """
    held: list[tuple[Tensor, ...]] = []

    def sample(source: torch.Generator, size: int) -> tuple[Tensor, ...]:
        if held:
            return held.pop()
        rolled = roll_out(source, size)
        member = step_membership(rolled.spans, rolled.tokens.shape[1])
        by_step = grpo_advantages(rolled.rewards, "step").flatten(0, 1).float()
        with torch.no_grad():
            old, base = (token_log_probs(model, rolled.tokens) for model in (policy, reference))
        advantages = torch.einsum("nks,nk->ns", member.float(), by_step)
        held.extend([(rolled.tokens, old, base, advantages, member.any(1))] * reuse)
        return held.pop()

    def loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        tokens, old, base, advantages, mask = batch
        return grpo_loss(token_log_probs(model, tokens), old, base, advantages, mask, clip, beta)

    return train(policy, sample, loss, plan, generator=generator, after_step=after_step)


def token_log_probs(model: nn.Module, tokens: Tensor) -> Tensor:
    """Log-probability (N, S) of each token given those before it; 0 at the first."""
    logits: Tensor = model(tokens[:, :-1], use_cache=False).logits
    return F.pad(logits.log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0], (1, 0))


def backward_induction(P: ArrayLike, R: ArrayLike, gamma: float = 1.0) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Best values (..., H + 1, S) and actions (..., H, S) of decision processes with H steps.

    Args:
        P: (..., S, A, S) probabilities of the next state.
        R: (..., H, S, A) expected rewards of each step.
        gamma: discount of the return, in [0, 1].

    Raises:
        ValueError: for shapes that do not fit, NaN, probabilities that do not sum to 1, or gamma out of range.
    """
    P, R = np.asarray(P, dtype=float), np.asarray(R, dtype=float)
    if P.ndim < 3 or R.ndim != P.ndim or R.shape[-2:] != P.shape[-3:-1] or P.shape[-1] != P.shape[-3]:
        raise ValueError(f"give P (..., S, A, S) and R (..., H, S, A), not {P.shape} and {R.shape}")
    if not np.isfinite(R).all() or not (P >= 0).all() or not np.allclose(P.sum(-1), 1):
        raise ValueError("rewards must be finite, and the probabilities of the next states sum to 1")
    if not 0 <= gamma <= 1:
        raise ValueError(f"gamma must lie in [0, 1], not {gamma}")
    values, actions = [np.zeros(P.shape[:-2])], []
    for step in range(R.shape[-3])[::-1]:
        gain = R[..., step, :, :] + gamma * np.einsum("...sat,...t->...sa", P, values[-1])
        values.append(gain.max(-1))
        actions.append(gain.argmax(-1))
    return np.stack(values[::-1], -2), np.stack(actions[::-1], -2)


def shaped_tables(P: ArrayLike, R: ArrayLike, potential: ArrayLike, gamma: float, ends_at_0: bool = True) -> NDArray:
    """Expected shaped rewards (..., H, S, A), for :func:`backward_induction`, from a potential (..., S) of states.

    The potential after the last step counts as 0 unless `ends_at_0` is False, which may change the best policy.
    """
    P, R, phi = (np.asarray(x, dtype=float) for x in (P, R, potential))
    ahead = gamma * np.einsum("...sat,...t->...sa", P, phi)[..., None, :, :]
    last = np.arange(R.shape[-3])[:, None, None] == R.shape[-3] - 1
    return R + np.where(last & ends_at_0, 0, ahead) - phi[..., None, :, None]


def _check_tokens(model: PreTrainedModel, tokens: Tensor) -> None:
    """Raises ValueError if there are no tokens (B, S), or the model's vocabulary or context is too small for them."""
    if tokens.ndim != 2 or tokens.is_floating_point() or not tokens.numel():
        raise ValueError(f"tokens are integers (B, S), at least one, not {tuple(tokens.shape)}")
    vocabulary, context = int(model.config.vocab_size), getattr(model.config, "max_position_embeddings", None)
    if int(tokens.max()) >= vocabulary or int(tokens.min()) < 0:
        raise ValueError(f"the model's vocabulary of {vocabulary} tokens is too small for token {int(tokens.max())}")
    if context is not None and tokens.shape[1] > context:
        raise ValueError(f"{tokens.shape[1]} tokens do not fit into the model's context of {context}")


def _mean(values: NDArray[np.float64], where: NDArray[np.bool_]) -> NDArray[np.float64]:
    return np.where(where, values, 0).sum(1) / where.sum(1)


@contextmanager
def _pooled_attention(model: PreTrainedModel, member: Tensor, wanted: bool) -> Iterator[list[Tensor]]:
    """Records the attention between steps (B, K, K) of each late block, in passes inside that hand weights out."""
    found: list[Tensor] = []
    if not wanted:
        yield found
        return
    mean = member.double() / torch.where(member.any(-1), member.sum(-1), math.nan)[..., None]

    def pool(_: nn.Module, __: tuple, output: tuple) -> None:
        found.append(torch.einsum("bks,bst,bjt->bkj", mean, output[1].mean(1).double(), mean))

    attentions, before = architecture(model).attentions, model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        with ExitStack() as undo:
            for attention in attentions[len(attentions) // 2 :]:
                undo.callback(attention.register_forward_hook(pool).remove)
            yield found
    finally:
        model.set_attn_implementation(before)
