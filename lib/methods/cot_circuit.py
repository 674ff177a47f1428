"""Two-hop questions with and without the intermediate step written out: data, scores, stage losses and tracing.

Source: Yao et al., "Generalizing compositionally from learned skills via chain-of-thought training" (arXiv
2502.04667), told in ``notebooks/cot_circuit.ipynb``. A two-hop fact is a row of five tokens, ``COLUMNS``: from e1 the
relation r1 leads to the bridge e2, and from there r2 to the answer e3. Every function takes the reader's own decoder,
and a :class:`Wording` that says how a row is put into tokens. Shapes: N rows, L layers, K candidate bridges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ConfigDict, Field
from scipy.special import rel_entr
from torch import Tensor, nn
from transformers import PreTrainedModel

from lib.substrates.completions import Completions, completion_loss, greedy_completions
from lib.substrates.lens import residual_streams, transplanted_logits
from lib.substrates.names import check_name
from lib.substrates.training import Plan, cached_model, train

COLUMNS = ("e1", "r1", "r2", "e2", "e3")
SUPERVISIONS = ("cot", "answer")
NOISE_TARGETS: Mapping[str, tuple[str, ...]] = {"second": ("e3",), "first": ("e2",), "both": ("e2", "e3")}


class Parameters(BaseModel):
    """Parameters of the notebook; the defaults are its `small` run."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    preset: str = Field("small", description="named parameter set of presets/cot_circuit.toml")
    seed: int = Field(0, ge=0, description="seed of the facts, the models, the batches and the bootstraps")
    model: str = Field("", description="empty: decoders trained here from nothing; else a model to tune on words")
    n_entities: int = Field(40, ge=3, description="entities; with a model to tune: countries")
    n_relations: int = Field(10, ge=1, description="relations; with a model to tune: properties of a country")
    out_degree: int = Field(10, ge=1, description="relations that lead away from each entity")
    ood_fraction: float = Field(0.15, gt=0, lt=1, description="share of the facts that no training chain uses")
    two_hop_ratio: float = Field(3.6, gt=0, description="two-hop facts in training, per single fact of the other share")
    test_items: int = Field(200, ge=4, description="most questions in the ID test, and in the OOD test")
    noises: list[float] = Field([0.05, 0.4], description="shares of training chains spoilt in the noise arms")
    noise_target: str = Field("second", pattern="^(second|first|both)$", description="hop that the noise spoils")
    n_layer: int = Field(4, ge=1, description="blocks of the decoder")
    d_model: int = Field(64, ge=8, description="width of the residual stream")
    n_head: int = Field(4, ge=1, description="attention heads a block")
    dropout: float = Field(0.1, ge=0, lt=1, description="dropout on embeddings and on what each block adds")
    rank: int = Field(16, ge=1, description="rank of the updates of a model to tune")
    learning_rate: float = Field(1e-2, gt=0, description="peak learning rate")
    weight_decay: float = Field(0.3, ge=0, description="decoupled weight decay of matrices")
    batch_size: int = Field(128, ge=1, description="sequences of a training step")
    steps: int = Field(600, ge=2, description="training steps of every arm")
    evaluations: int = Field(6, ge=1, description="points of the training curves")
    device: str = Field("cpu", description="where the models run: cpu, cuda or mps")


@dataclass(frozen=True)
class Wording:
    """How a row becomes a sequence: templates of column names, and of token ids that are always the same.

    Attributes:
        question: what the model is given.
        chain: what it must write with supervision ``"cot"``: it holds ``"e2"`` and ends with ``"e3"``. With
            ``"answer"`` it must write e3 at once.
    """

    question: tuple[str | int, ...] = ("e1", "r1", "r2")
    chain: tuple[str | int, ...] = ("e2", "e3")

    def __post_init__(self) -> None:
        if "e2" not in self.chain or self.chain[-1] != "e3":
            raise ValueError(f"a chain has the bridge 'e2' in it and the answer 'e3' at its end, not {self.chain}")

    @property
    def bridge(self) -> int:
        """Place of the bridge in the chain, where it first stands."""
        return self.chain.index("e2")

    def target(self, supervision: str) -> tuple[str | int, ...]:
        """Template of what is written under a supervision.

        Raises:
            ValueError: if there is no such supervision.
        """
        return self.chain if check_name(supervision, SUPERVISIONS, "supervision") == "cot" else ("e3",)


@dataclass(frozen=True)
class TwoHopFacts:
    """A graph of single facts, and its two-hop questions in three sets that share none.

    Attributes:
        atomic: (A, 3) entity, relation, entity.
        unchained: (A,) the OOD facts, which no training chain uses.
        train: (N, 5) two-hop facts made of ID facts only; ``id_test`` likewise, but held out.
        ood_test: (N, 5) two-hop facts made of OOD facts only. Mixed ones are in no set.
        entities: (K,) tokens of the entities; relations come after them.
    """

    atomic: Tensor
    unchained: Tensor
    train: Tensor
    id_test: Tensor
    ood_test: Tensor
    entities: Tensor


def column(rows: Tensor, name: str) -> Tensor:
    """One column (N,) of rows (N, 5)."""
    return rows[:, COLUMNS.index(name)]


def fill(template: Sequence[str | int], rows: Tensor) -> Tensor:
    """The template's tokens (N, len(template)) for rows (N, 5)."""
    parts = [column(rows, part) if isinstance(part, str) else torch.full_like(rows[:, 0], part) for part in template]
    return torch.stack(parts, 1)


def make_two_hop_facts(
    n_entities: int,
    n_relations: int,
    out_degree: int,
    ood_fraction: float,
    two_hop_ratio: float,
    generator: torch.Generator,
    test_items: int = 300,
) -> TwoHopFacts:
    """Random facts and their two-hop compositions. Paper: section on the data; notebook: *Experiment*.

    Each entity has `out_degree` different relations, the entity at the other end is uniform. A share `ood_fraction`
    of the facts is OOD. Of the two-hop facts with both hops in the rest, ``two_hop_ratio`` times as many as there are
    such facts are for training, up to `test_items` others for the ID test.

    Raises:
        ValueError: for fewer than three entities, an out-degree beyond the relations, a share that leaves no OOD
            question, or more training questions than there are.
    """
    if n_entities < 3 or n_relations < 1:
        raise ValueError(
            f"a vocabulary of {n_entities} entities and {n_relations} relations is too small: give at least 3 and 1"
        )
    if not 1 <= out_degree <= n_relations:
        raise ValueError(f"out_degree must lie in 1..{n_relations}, the number of relations, not {out_degree}")
    if not 0 < ood_fraction < 1 or two_hop_ratio <= 0 or test_items < 1:
        raise ValueError("ood_fraction must lie in (0, 1), two_hop_ratio above 0, and test_items at 1 or above")
    heads = torch.arange(n_entities).repeat_interleave(out_degree)
    shuffled = torch.rand(n_entities, n_relations, generator=generator).argsort(1)[:, :out_degree].flatten()
    tails = torch.randint(n_entities, (len(heads),), generator=generator)
    atomic = torch.stack([heads, n_entities + shuffled, tails], 1)
    unchained = torch.zeros(len(atomic), dtype=torch.bool)
    unchained[torch.randperm(len(atomic), generator=generator)[: round(ood_fraction * len(atomic))]] = True

    # Facts are sorted by head, out_degree each: those that go on from a tail stand in one run.
    first = torch.arange(len(atomic)).repeat_interleave(out_degree)
    second = tails[first] * out_degree + torch.arange(out_degree).repeat(len(atomic))
    rows = torch.cat([atomic[first, :2], atomic[second, 1:2], atomic[first, 2:], atomic[second, 2:]], 1)
    inside = rows[~unchained[first] & ~unchained[second]]
    outside = rows[unchained[first] & unchained[second]]
    wanted = round(two_hop_ratio * int((~unchained).sum()))
    if not len(outside):
        raise ValueError(f"ood_fraction={ood_fraction} leaves no two-hop fact with both hops OOD: raise it")
    if not 1 <= wanted < len(inside):
        raise ValueError(
            f"two_hop_ratio={two_hop_ratio} asks for {wanted} training questions, but there are {len(inside)} and one "
            "must be left to test: change it"
        )
    inside = inside[torch.randperm(len(inside), generator=generator)]
    outside = outside[torch.randperm(len(outside), generator=generator)]
    held_out = inside[wanted : wanted + test_items]
    return TwoHopFacts(atomic, unchained, inside[:wanted], held_out, outside[:test_items], torch.arange(n_entities))


def worded(
    rows: Tensor,
    supervision: str = "cot",
    wording: Wording | None = None,
    *,
    noise: float = 0.0,
    noise_target: str = "second",
    generator: torch.Generator | None = None,
) -> Completions:
    """Two-hop rows (N, 5) as prompts and targets, each spoilt with probability `noise`.

    A spoilt row gets a wrong token, uniform over the others in that column, for e3 (`noise_target` ``"second"``), e2
    (``"first"``) or both. It is drawn row by row, so no other row is touched. ``noise=1`` with ``"first"`` writes a
    wrong chain before the right answer: the control of the notebook.

    Args:
        rows: two-hop facts.
        supervision: ``"cot"`` or ``"answer"``.
        wording: bare tokens if None.
        noise: share of rows to spoil.
        noise_target: hop to spoil.
        generator: needed for noise.

    Raises:
        ValueError: for an unknown supervision or noise target, noise outside [0, 1], without generator, or in a
            column that knows no other token.
    """
    check_name(noise_target, NOISE_TARGETS, "noise target")
    if not 0 <= noise <= 1:
        raise ValueError(f"noise is a share in [0, 1], not {noise}")
    wording = wording or Wording()
    target = wording.target(supervision)
    if noise:
        if generator is None:
            raise ValueError("noise needs a generator to draw from")
        rows, spoilt = rows.clone(), torch.rand(len(rows), generator=generator) < noise
        for name in NOISE_TARGETS[noise_target]:
            right = column(rows, name)
            choice, place = right.unique(return_inverse=True)
            if len(choice) < 2:
                raise ValueError(f"there is no wrong token to spoil {name} with: all rows have the same")
            wrong = choice[(place + torch.randint(1, len(choice), (len(rows),), generator=generator)) % len(choice)]
            rows[:, COLUMNS.index(name)] = torch.where(spoilt, wrong, right)
    return Completions.of(fill(wording.question, rows), fill(target, rows))


@dataclass(frozen=True)
class Scores:
    """What the model itself wrote, (N,) booleans: the whole target, the bridge (as the answer, without one), e3."""

    whole: Tensor
    bridge: Tensor
    answer: Tensor


def score(model: PreTrainedModel, rows: Tensor, supervision: str, wording: Wording | None = None) -> Scores:
    """Exact match of greedy completions; the model's own bridge is fed back, never the true one.

    Raises:
        ValueError: for an unknown supervision, no rows, or tokens that the model's vocabulary lacks.
    """
    wording = wording or Wording()
    target = wording.target(supervision)
    _check_tokens(model, rows)
    with _evaluating(model):
        right = greedy_completions(model, fill(wording.question, rows), len(target)) == fill(target, rows)
    bridge = right[:, wording.bridge] if supervision == "cot" else right[:, -1]
    return Scores(right.all(1), bridge, right[:, -1])


def teach(
    recipe: Mapping[str, Any],
    build: Callable[[], PreTrainedModel],
    sample: Callable[[torch.Generator, int], Completions],
    plan: Plan,
    measures: Mapping[str, Callable[[PreTrainedModel], float]],
    times: Sequence[int],
) -> tuple[PreTrainedModel, dict[str, Tensor]]:
    """The model that `build` makes, trained on completions, and its curves: each of the measures after `times` steps.

    Only what requires a gradient is trained and kept in the cache of :func:`lib.substrates.training.cached_model`, the
    curves with it, so that a second call with the same `recipe` trains nothing.

    Raises:
        ValueError: if there is no measure or time, or a time that the plan does not reach.
    """
    if not measures or not times or not 1 <= min(times) <= max(times) <= plan.steps:
        raise ValueError(f"give a measure, and steps from 1 to {plan.steps} to take it at, not {list(times)}")

    def fit(arm: _Arm) -> None:
        def note(step: int, _: float) -> None:
            if step + 1 in times:
                values = [measure(arm.model) for measure in measures.values()]
                arm.curves[:, list(times).index(step + 1)] = torch.tensor(values)

        generator = torch.Generator().manual_seed(int(recipe.get("seed", 0)))
        train(arm.model, sample, completion_loss, plan, generator=generator, after_step=note)

    arm = cached_model(recipe, lambda: _Arm(build(), len(measures), len(times)), fit)
    arm.model.eval()
    return arm.model, dict(zip(measures, arm.curves, strict=True))


class _Arm(nn.Module):
    """What of an arm is worth keeping: the trained parameters and the curves. The model itself is only held."""

    curves: Tensor

    def __init__(self, model: PreTrainedModel, measures: int, times: int) -> None:
        super().__init__()
        self._held = [model]  # in a list, so that its frozen weights are not saved with the rest
        self.trained = nn.ParameterList(p for p in model.parameters() if p.requires_grad)
        self.register_buffer("curves", torch.zeros(measures, times))

    @property
    def model(self) -> PreTrainedModel:
        return self._held[0]


@dataclass(frozen=True)
class StageLosses:
    """Losses in nats, (N,) each, of a chain cut in two, with all bridges summed out beside it.

    Attributes:
        marginal: -log of the sum over bridges C of p(e3 | x, C) p(C | x).
        first: -log p(e2 | x) of the true bridge.
        second: -log p(e3 | x, e2) after the true bridge.
        without: as `marginal`, with the true bridge left out of the sum.
    """

    marginal: Tensor
    first: Tensor
    second: Tensor
    without: Tensor


@torch.no_grad()
def stagewise_nll(
    model: PreTrainedModel, rows: Tensor, bridges: Tensor, wording: Wording | None = None, chunk: int = 4096
) -> StageLosses:
    """Losses of the two hops, the true bridge given, and of the answer over all `bridges` (K,).

    The words of the chain that are neither bridge nor answer are given. Paper: Theorem 2, with the model in place of
    the training distribution; notebook: *Exact checks*.

    Args:
        model: decoder in evaluation mode.
        rows: (N, 5) two-hop facts.
        bridges: the tokens that can be bridges, each once.
        wording: bare tokens if None.
        chunk: sequences in a forward pass.

    Raises:
        ValueError: if there are no rows, a row's bridge is not among `bridges`, or a token not in the vocabulary.
    """
    wording = wording or Wording()
    _check_tokens(model, rows)
    _check_tokens(model, bridges)
    true = column(rows, "e2")[:, None] == bridges
    if not bool((true.sum(1) == 1).all()):
        raise ValueError("every row's bridge must be among the candidate bridges, once")
    upto = fill(wording.question + wording.chain[: wording.bridge], rows)
    first = next_log_probs(model, upto, chunk)[:, bridges]
    each = rows.repeat_interleave(len(bridges), 0)
    each[:, COLUMNS.index("e2")] = bridges.repeat(len(rows))
    whole = fill(wording.question + wording.chain[:-1], each)
    answers = column(each, "e3")
    second = torch.cat(
        [
            next_log_probs(model, part, chunk).gather(1, answer[:, None])
            for part, answer in zip(whole.split(chunk), answers.split(chunk), strict=True)
        ]
    ).view(first.shape)
    joint = (first + second).double()
    return StageLosses(
        -joint.logsumexp(1),
        -first[true].double(),
        -second[true].double(),
        -joint.masked_fill(true, -torch.inf).logsumexp(1),
    )


@torch.no_grad()
def next_log_probs(model: PreTrainedModel, tokens: Tensor, chunk: int = 4096) -> Tensor:
    """Log-probabilities (N, V), in nats, of the token after sequences (N, S)."""
    return torch.cat(
        [model(part, use_cache=False, logits_to_keep=1).logits[:, -1].log_softmax(-1) for part in tokens.split(chunk)]
    )


def divergences(chain_p: ArrayLike, chain_q: ArrayLike) -> tuple[NDArray, NDArray]:
    """Both sides of Theorem 2's step: D(P_Y || Q_Y), and D(P_C || Q_C) + E_P D(P_{Y|C} || Q_{Y|C}), in nats.

    Args:
        chain_p: joint probabilities (..., C, Y).
        chain_q: the same shape.

    Raises:
        ValueError: for other shapes, or values that are no probabilities.
    """
    p, q = np.asarray(chain_p, dtype=float), np.asarray(chain_q, dtype=float)
    if p.shape != q.shape or p.ndim < 2:
        raise ValueError(f"give two joint distributions (..., C, Y) of one shape, not {p.shape} and {q.shape}")
    if not all(np.allclose(j.sum((-2, -1)), 1) and (j >= 0).all() for j in (p, q)):
        raise ValueError("joint probabilities must be non-negative and sum to 1 over the last two axes")
    p_c, q_c = p.sum(-1, keepdims=True), q.sum(-1, keepdims=True)
    given = rel_entr(*(np.divide(j, c, out=np.zeros_like(j), where=c > 0) for j, c in ((p, p_c), (q, q_c)))).sum(-1)
    # An outcome without weight adds nothing, even where the conditional divergence is infinite.
    weighted = np.multiply(p_c[..., 0], given, out=np.zeros_like(given), where=p_c[..., 0] > 0)
    of_answer: NDArray = rel_entr(p.sum(-2), q.sum(-2)).sum(-1)
    of_chain: NDArray = rel_entr(p_c, q_c).sum((-2, -1)) + weighted.sum(-1)
    return of_answer, of_chain


def first_depth(ranks: Tensor, threshold: float = 0.9) -> int:
    """First depth at which the mean reciprocal rank of ranks (L + 1, N) is at least `threshold`; L + 1 if none.

    Raises:
        ValueError: if `ranks` is not of that shape.
    """
    if ranks.ndim != 2 or not ranks.numel():
        raise ValueError(f"ranks are (depths, items), not {tuple(ranks.shape)}")
    reached = (1 / (1 + ranks)).mean(1) >= threshold
    return int(reached.int().argmax()) if bool(reached.any()) else len(ranks)


def partners(
    rows: Tensor, same: Sequence[str], differ: Sequence[str], generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Pairs of rows for tracing: indices (M,) of receivers and of one random giver each.

    The two agree in the columns `same` and differ in every column of `differ`; a row without such a giver is left out.

    Raises:
        ValueError: if no two rows fit.
    """
    fits = torch.ones(len(rows), len(rows), dtype=torch.bool)
    for names, equal in ((same, True), (differ, False)):
        for name in names:
            values = column(rows, name)
            fits &= (values[:, None] == values) == equal
    receivers = fits.any(1).nonzero()[:, 0]
    if not len(receivers):
        raise ValueError(f"no two of the {len(rows)} rows agree in {list(same)} and differ in {list(differ)}")
    return receivers, torch.multinomial(fits[receivers].double(), 1, generator=generator)[:, 0]


@torch.no_grad()
def trace(
    model: PreTrainedModel,
    receivers: Tensor,
    givers: Tensor,
    positions: Sequence[int],
    depths: Sequence[int] | None = None,
) -> Tensor:
    """Choices (depths, positions, M) after the last token when one stream of each receiver is its giver's.

    The stream after block `depth` (0: embeddings) at one position is copied from the giver's run into the receiver's,
    and the rest computed anew. Paper: causal tracing; notebook: *Experiment*.

    Args:
        model: decoder in evaluation mode.
        receivers: tokens (M, S).
        givers: tokens (M, S) of the runs to copy from.
        positions: tokens whose streams are copied, one at a time.
        depths: all from 0 to L if None.

    Raises:
        ValueError: if the two are not of one shape, or a position or depth does not exist.
    """
    if receivers.shape != givers.shape or receivers.ndim != 2:
        raise ValueError(
            f"receivers and givers are tokens (M, S) of one shape, not {tuple(receivers.shape)}, {tuple(givers.shape)}"
        )
    if not all(0 <= position < receivers.shape[1] for position in positions):
        raise ValueError(f"positions must lie in 0..{receivers.shape[1] - 1}, not {list(positions)}")
    streams = residual_streams(model, {"input_ids": givers}, None)
    inputs = {"input_ids": receivers, "logits_to_keep": 1}

    def choice(depth: int, position: int) -> Tensor:
        return transplanted_logits(model, inputs, streams[depth][:, position], depth, position).argmax(-1)

    return torch.stack(
        [
            torch.stack([choice(depth, position) for position in positions])
            for depth in (range(len(streams)) if depths is None else depths)
        ]
    )


def _check_tokens(model: PreTrainedModel, tokens: Tensor) -> None:
    if not tokens.numel():
        raise ValueError("there are no rows: give at least one")
    vocabulary = int(model.config.vocab_size)
    if int(tokens.max()) >= vocabulary or int(tokens.min()) < 0:
        raise ValueError(f"the model's vocabulary of {vocabulary} tokens is too small for token {int(tokens.max())}")


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
