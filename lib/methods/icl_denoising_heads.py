"""In-context learning as task-oriented information removal: low-rank filters, two metrics, and denoising heads.

Method of "Mechanism of Task-oriented Information Removal in In-context Learning" (arXiv 2509.21012), for the Hugging
Face decoders that :mod:`lib.substrates.architecture` knows, in evaluation mode; told in
notebooks/icl_denoising_heads. N prompts, k demonstrations, L blocks, H heads of size D, width d, V tokens. Depth l is
the residual stream that enters block l; depth L is what the final norm reads.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedTokenizerBase

from lib.substrates.architecture import architecture
from lib.substrates.completions import IGNORED, Completions
from lib.substrates.heads import Head, check_heads, scale_heads
from lib.substrates.hooks import Site, capture, patch
from lib.substrates.lens import depth_sites
from lib.substrates.names import check_name

Draw = Literal["any", "seen", "unseen"]
Trained = Literal["both", "encoder", "decoder"]


class Parameters(BaseModel):
    """Parameters of the notebook; the defaults are the run ``small``."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    preset: str = Field("small", description="named parameter set of presets/icl_denoising_heads.toml")
    seed: int = Field(0, ge=0, description="seed of the tasks, the weights, the demonstrations and the bootstraps")
    model: str = Field("", description="pretrained decoder by name, hub id or folder; empty: trained here")
    dataset: str = Field("sst2", description="labelled texts that a pretrained model reads")
    template: str = Field("Review: {text}\nSentiment:", description="form of their prompts, up to the label")
    device: str = Field("cpu", description="where the model runs: cpu, cuda or mps")
    query_separator: bool = Field(True, description="whether a colon follows the entity in the generated prompts")
    n_entities: int = Field(64, ge=16, description="entities of the generated tasks")
    n_tasks: int = Field(4, ge=2, description="generated tasks M")
    n_labels: int = Field(6, ge=2, description="label words C of a task")
    label_pool: int = Field(12, ge=2, description="words that the tasks draw their labels from")
    k_max: int = Field(6, ge=1, description="most demonstrations of a training sequence")
    n_layer: int = Field(3, ge=1, description="blocks of the model trained here")
    n_head: int = Field(4, ge=2, description="its attention heads")
    d_model: int = Field(64, ge=8, description="its width")
    train_steps: int = Field(400, ge=2, description="its training steps")
    train_rate: float = Field(3e-3, gt=0, description="its peak learning rate")
    train_batch: int = Field(128, ge=1, description="sequences of a training step")
    calibration: int = Field(44, ge=8, description="zero-shot queries on which filters are fitted")
    held_out: int = Field(20, ge=2, description="zero-shot queries that the filters never see")
    prompts: int = Field(512, ge=8, description="prompts of a task at each number of demonstrations")
    shots: list[int] = Field([0, 1, 2, 3, 4, 5, 6], min_length=3, description="numbers of demonstrations k, from 0")
    k_eval: int = Field(4, ge=1, description="demonstrations at which heads are switched off")
    filter_ranks: list[int] = Field([1, 2, 4, 8], min_length=2, description="ranks r of the filters, rising")
    filter_rank: int = Field(4, ge=1, description="the rank that is judged; one of them")
    filter_depths: list[int] = Field([1, 2, 3], min_length=1, description="depths l of the filters, rising")
    filter_rate: float = Field(1e-2, gt=0, description="learning rate of the filters")
    filter_epochs: int = Field(150, ge=1, description="their passes over the calibration queries")
    filter_batch: int = Field(64, ge=1, description="queries of a filter's training step")
    flux_rank: int = Field(8, ge=1, description="rank of the filters behind the covariance flux")
    flux_draws: int = Field(4, ge=1, description="first weights of those filters, over which the flux is averaged")
    flux_epochs: int = Field(150, ge=1, description="passes over the calibration queries for those filters")
    cf_threshold: float = Field(-0.05, lt=0, description="relative change of the flux below which a head removes")
    induction_threshold: float = Field(0.35, gt=0, description="induction magnitude above which it is no denoiser")
    ablation_prompts: int = Field(256, ge=8, description="prompts of a task, of these, on which heads are switched off")
    max_heads: int = Field(6, ge=1, description="most heads of a task that are called denoising, lowest flux first")
    n_random_draws: int = Field(20, ge=2, description="random sets of heads with the same number in each layer")


@dataclass(frozen=True)
class Prompts:
    """N prompts of one task, padded on the left so that the last token is the one that answers.

    Attributes:
        tokens: ids, (N, S).
        mask: 1 where `tokens` is no padding, (N, S).
        targets: id of the first token of each query's label, (N,).
        label_positions: of the demonstrations' labels among the S positions, (N, k).
    """

    tokens: Tensor
    mask: Tensor
    targets: Tensor
    label_positions: Tensor

    def __post_init__(self) -> None:
        if self.tokens.ndim != 2 or not self.tokens.numel():
            raise ValueError("there are no prompts: give at least one query")
        if self.mask.shape != self.tokens.shape or {len(self.targets), len(self.label_positions)} != {len(self)}:
            raise ValueError("tokens and mask must be (N, S), targets (N,) and label_positions (N, k)")

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, rows: Tensor | slice) -> Prompts:
        """Some of the prompts, without the padding that all of them have."""
        tokens, mask, targets, positions = (getattr(self, field.name)[rows] for field in fields(self))
        first = int(mask.any(0).int().argmax()) if len(mask) else 0
        return Prompts(tokens[:, first:], mask[:, first:], targets, positions - first)

    def to(self, device: str | torch.device) -> Prompts:
        """The prompts on a device."""
        return Prompts(*(getattr(self, field.name).to(device) for field in fields(self)))

    @property
    def demo_labels(self) -> Tensor:
        """Ids of the labels that the demonstrations show, (N, k)."""
        return self.tokens.gather(1, self.label_positions)

    @property
    def seen(self) -> Tensor:
        """Whether a demonstration shows the query's own label, (N,)."""
        return (self.demo_labels == self.targets[:, None]).any(1)

    @property
    def inputs(self) -> dict[str, Tensor]:
        """What the model is called with; positions count from the first token that is no padding."""
        positions = (self.mask.cumsum(1) - 1).clamp(min=0)
        return {"input_ids": self.tokens, "attention_mask": self.mask, "position_ids": positions}

    def batches(self, budget: int) -> Iterable[Tensor]:
        """Indices of prompts of similar length, about `budget` tokens a batch."""
        lengths, order = self.mask.sum(1).sort(stable=True)
        return order.split(max(1, budget // int(lengths[-1])))


def draw_demonstrations(
    pool: Tensor, queries: Tensor, k: int, draw: Draw, generator: torch.Generator, exclude: Tensor | None = None
) -> Tensor:
    """Indices into the pool of k distinct demonstrations for each query, in random order, (N, k).

    Args:
        pool: label of each candidate, (P,).
        queries: label of each query, (N,).
        k: demonstrations of a prompt.
        draw: "any" candidates, only those with the query's label ("seen"), or only those without it ("unseen").
        generator: source of the draws.
        exclude: a candidate that each query must not be shown, (N,): itself.

    Raises:
        ValueError: for an unknown draw, or fewer than k candidates.
    """
    check_name(draw, get_args(Draw), "draw")
    same = queries[:, None] == pool
    allowed = {"any": torch.ones_like(same), "seen": same, "unseen": ~same}[draw]
    if exclude is not None:
        allowed = allowed.scatter(1, exclude[:, None], False)
    if k > (fewest := int(allowed.sum(1).min())):
        raise ValueError(f"k = {k} demonstrations of the draw {draw!r} are asked for, but a query has only {fewest}")
    keys = torch.rand(same.shape, generator=generator).masked_fill(~allowed, math.inf)
    return keys.argsort(1)[:, :k]


class TaskSequenceSampler:
    """Prompts of M tasks, each a map from the same N entities to C words out of a common pool, equally frequent.

    A demonstration is ``entity : label newline``, the query ``entity :``; without `separator` there is no colon.
    Ids: entities, then the pool, the colon and the newline. `labels` (M, N) is the label of each entity in each task.

    Raises:
        ValueError: if a task has fewer than two labels, or more than there are words or entities.
    """

    def __init__(
        self, n_entities: int, n_tasks: int, n_labels: int, label_pool: int, separator: bool, generator: torch.Generator
    ) -> None:
        if not 2 <= n_labels <= min(label_pool, n_entities):
            raise ValueError(f"n_labels must lie in 2..{min(label_pool, n_entities)}, not {n_labels}")
        words = torch.rand(n_tasks, label_pool, generator=generator).argsort(1)[:, :n_labels] + n_entities
        order = torch.rand(n_tasks, n_entities, generator=generator).argsort(1)
        self.labels, self.separator = words.gather(1, order % n_labels), separator
        self.pool = torch.arange(n_entities, n_entities + label_pool)
        self.vocabulary = n_entities + label_pool + 2

    def sequences(self, tasks: Tensor, entities: Tensor, shown: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Tokens (B, S) of entities (B, k + 1), the last without its label, and positions of the k labels (k,).

        `shown` (B, k) stands in place of the demonstrations' labels.
        """
        labels = self.labels[tasks[:, None], entities]
        if shown is not None:
            labels = torch.cat([shown, labels[:, -1:]], 1)
        colon, newline = (torch.full_like(entities, self.vocabulary - back) for back in (2, 1))
        parts = [entities, colon, labels, newline] if self.separator else [entities, labels, newline]
        tokens = torch.stack(parts, -1).flatten(1)[:, :-2]
        return tokens, torch.arange(1, entities.shape[1]) * len(parts) - 2

    def training_batch(self, k: int, size: int, generator: torch.Generator) -> Completions:
        """Sequences of k + 1 labelled entities, each of one random task; the loss counts every label."""
        n_tasks, n_entities = self.labels.shape
        tasks = torch.randint(n_tasks, (size,), generator=generator)
        entities = torch.rand(size, n_entities, generator=generator).argsort(1)[:, : k + 2]
        tokens, places = self.sequences(tasks, entities)
        labels = torch.full_like(tokens, IGNORED)
        labels[:, places] = tokens[:, places]
        return Completions(tokens[:, : places[-1] + 1], labels[:, : places[-1] + 1])

    def sample(
        self,
        task: int,
        queries: Tensor,
        k: int,
        generator: torch.Generator,
        draw: Draw = "any",
        noise: Tensor | None = None,
    ) -> Prompts:
        """A prompt of the task for each query entity (N,); no demonstration shows the query itself.

        With `noise` they carry these words at random, in place of their labels.
        """
        labels = self.labels[task]
        demos = draw_demonstrations(labels, labels[queries], k, draw, generator, exclude=queries)
        shown = None if noise is None else noise[torch.randint(len(noise), demos.shape, generator=generator)]
        entities = torch.cat([demos, queries[:, None]], 1)
        tokens, positions = self.sequences(torch.full_like(queries, task), entities, shown)
        return Prompts(tokens, torch.ones_like(tokens), labels[queries], positions.expand(len(queries), k))


def encode_prompts(
    tokenizer: PreTrainedTokenizerBase,
    template: str,
    queries: Sequence[tuple[str, int]],
    demonstrations: Sequence[Sequence[tuple[str, int]]],
    label_words: Sequence[str],
    instruction: str = "",
) -> Prompts:
    """Prompts of text: instruction, demonstrations a newline apart, query.

    Args:
        tokenizer: a fast one, which reports where its tokens lie; it needs no padding token.
        template: with ``{text}`` in it, up to where the label follows.
        queries: text and label, an index into `label_words`.
        demonstrations: of each query, k pairs of text and label.
        label_words: with their leading space; what counts is the first token of each.
        instruction: put before everything.

    Raises:
        ValueError: no queries, unequal numbers of demonstrations, a slow tokenizer, or labels whose first tokens do
            not tell them apart.
    """
    if not queries or len(demonstrations) != len(queries) or len({len(demos) for demos in demonstrations}) > 1:
        raise ValueError("give at least one query, and the same number of demonstrations for each")
    if not tokenizer.is_fast:
        raise ValueError("this tokenizer does not say where its tokens lie: load its fast version")
    texts, places = [], []
    for (text, _), demos in zip(queries, demonstrations, strict=True):
        shown = [(template.format(text=demo), label_words[label]) for demo, label in demos]
        lengths = torch.tensor([len(instruction), *(len(stem + word) + 1 for stem, word in shown)]).cumsum(0)
        inner = [len(stem + word) - len(word.lstrip()) for stem, word in shown]
        places.append([int(start) + offset for start, offset in zip(lengths, inner, strict=False)])
        texts.append(instruction + "".join(f"{stem}{word}\n" for stem, word in shown) + template.format(text=text))
    encoded = tokenizer(texts, return_offsets_mapping=True)
    first, length = encoded.input_ids[0], len(encoded.input_ids[0])
    answers = tokenizer([texts[0] + word for word in label_words]).input_ids
    words = [answer[length] for answer in answers if len(answer) > length and answer[:length] == first]
    if len(set(words)) < len(label_words):
        raise ValueError(f"the tokenizer does not tell the labels {list(label_words)} apart by their first tokens")
    padding = next(i for i in (tokenizer.pad_token_id, tokenizer.eos_token_id, 0) if i is not None)
    pads = [max(map(len, encoded.input_ids)) - len(ids) for ids in encoded.input_ids]
    positions = [
        [pad + next(i for i, (start, end) in enumerate(spans) if start <= place < end) for place in row]
        for pad, spans, row in zip(pads, encoded.offset_mapping, places, strict=True)
    ]
    return Prompts(
        torch.tensor([[padding] * pad + ids for pad, ids in zip(pads, encoded.input_ids, strict=True)]),
        torch.tensor([[0] * pad + [1] * len(ids) for pad, ids in zip(pads, encoded.input_ids, strict=True)]),
        torch.tensor([words[label] for _, label in queries]),
        torch.tensor(positions, dtype=torch.long).reshape(len(queries), -1),
    )


# ---------------------------------------------------------------------------------------------------------------------
# one pass: states, heads, attention


@dataclass(frozen=True)
class LastTokens:
    """What one pass shows of the last token of N prompts.

    Attributes:
        states: residual stream at every depth, (L + 1, N, d).
        heads: what each head gives to the output projection, (L, N, H, D).
        attention: what attention adds to the stream, (L, N, d).
        to_labels: attention weight on the label of each demonstration, (L, N, H, k).
        predictions: arg max over the whole vocabulary, (N,).
    """

    states: Tensor
    heads: Tensor
    attention: Tensor
    to_labels: Tensor
    predictions: Tensor


@torch.no_grad()
def observe(model: Any, prompts: Prompts, budget: int = 2048) -> LastTokens:
    """Everything that is measured at the last token, all heads of all layers, in one pass of `budget` tokens a batch.

    Raises:
        ValueError: for an unknown architecture, or prompts that are longer than the model's context.
    """
    _check_context(model, prompts)
    parts = architecture(model)
    heads, attended = ([Site(kind, layer) for layer in range(parts.n_layers)] for kind in ("head_out", "attn_out"))
    groups, pieces, order = (depth_sites(model), heads, attended), [], []
    with (
        capture(model, [site for group in groups for site in group]) as seen,
        _attention_of_last_token(model) as weights,
    ):
        for rows in prompts.batches(budget):
            batch = prompts[rows]
            logits = model(**batch.inputs, use_cache=False, logits_to_keep=1).logits[:, -1]
            found = [torch.stack([seen[site][:, -1] for site in group]) for group in groups]
            where = batch.label_positions[None, :, None].expand(parts.n_layers, -1, parts.n_heads, -1)
            to_labels = torch.stack([weights[layer] for layer in range(parts.n_layers)]).gather(-1, where)
            pieces.append([*found, to_labels, logits.argmax(-1)[None]])
            order.append(rows)
    back = torch.cat(order).argsort()
    states, given, written, to_labels, predicted = (torch.cat(piece, 1)[:, back] for piece in zip(*pieces, strict=True))
    return LastTokens(states, given, written, to_labels, predicted[0])


@contextmanager
def _attention_of_last_token(model: Any) -> Iterator[dict[int, Tensor]]:
    """Attention weights of the last query, (B, H, S) by layer; fused kernels, which give none, are off meanwhile."""
    weights: dict[int, Tensor] = {}

    def keep(layer: int) -> Any:
        def hook(_: nn.Module, __: tuple, output: tuple) -> None:
            weights[layer] = output[1][:, :, -1]

        return hook

    with ExitStack() as undo:
        undo.callback(model.set_attn_implementation, model.config._attn_implementation)
        model.set_attn_implementation("eager")
        for layer, attention in enumerate(architecture(model).attentions):
            undo.callback(attention.register_forward_hook(keep(layer)).remove)
        yield weights


def _check_context(model: Any, prompts: Prompts) -> None:
    longest, context = int(prompts.mask.sum(1).max()), getattr(model.config, "max_position_embeddings", math.inf)
    if longest > context:
        raise ValueError(f"a prompt has {longest} tokens, the model's context {context}: use fewer demonstrations")
    if model.dtype == torch.float64 and not prompts.mask.all():
        raise ValueError("attention turns padding into NaN in double precision: use float32, or prompts of one length")


def induction_magnitude(to_labels: Tensor, right: Tensor | None = None) -> Tensor:
    """Attention of the last token summed over the labels (L, N, H, k), mean over prompts, (L, H).

    With `right` (N, k), true where a label equals the query's, only those count: *induction correctness*.
    """
    weights = to_labels if right is None else to_labels * right[:, None]
    return weights.sum(-1).mean(1)


# ---------------------------------------------------------------------------------------------------------------------
# the filter and the blocks after it


class LowRankFilter(nn.Module):
    """``W_dec (W_enc h + b)`` with W_enc (r, d), b (r,) and W_dec (d, r): no activation, no residual connection.

    Raises:
        ValueError: if the rank is negative or above the width.
    """

    def __init__(self, d_model: int, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        if not 0 <= rank <= d_model:
            raise ValueError(f"the rank must lie in 0..{d_model}, the width of the states, not {rank}")

        def uniform(fan_in: int, *shape: int) -> nn.Parameter:
            return nn.Parameter((2 * torch.rand(shape, generator=generator) - 1) / math.sqrt(max(fan_in, 1)))

        self.encoder, self.bias = uniform(d_model, rank, d_model), uniform(d_model, rank)
        self.decoder = uniform(rank, d_model, rank)

    def forward(self, h: Tensor) -> Tensor:
        """States (..., d) to states (..., d)."""
        return (h @ self.encoder.mT + self.bias) @ self.decoder.mT

    @property
    def matrix(self) -> Tensor:
        """``W_dec W_enc``, (d, d)."""
        return self.decoder @ self.encoder


def tail_logits(model: Any, states: Tensor, depth: int) -> Tensor:
    """Logits (..., V) of states (..., d) that enter at a depth and stand alone: later blocks see no earlier position.

    Hooks on the model act here too. Differentiable in the states.

    Raises:
        ValueError: if there is no such depth.
    """
    parts = architecture(model)
    if depth == parts.n_layers and parts.unembedding is not None:
        logits: Tensor = parts.unembedding(parts.final_norm(states))
        return logits
    alone = states.reshape(-1, 1, states.shape[-1])
    position = torch.zeros(len(alone), 1, dtype=torch.long, device=states.device)
    return _run_from(model, depth, alone, {"position_ids": position}).unflatten(0, states.shape[:-1])


def _run_from(model: Any, depth: int, stream: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    """Last position's logits (B, V) when the stream (B, S, d) enters block `depth`; no earlier block runs."""
    tail = _tail(model, depth)
    arguments = {name: value for name, value in inputs.items() if name != "input_ids"}
    # Families with learned positions add them to what they are given; the patch puts the stream itself in its place.
    with patch(tail, {Site("resid_pre", 0): stream}):
        logits: Tensor = tail(inputs_embeds=stream, **arguments, use_cache=False, logits_to_keep=1).logits
    return logits[:, -1]


def _tail(model: Any, depth: int) -> Any:
    """The model without its first blocks: the very same modules, in shells of their own. The model is not touched."""
    blocks = architecture(model).blocks
    if not 0 <= depth < len(blocks):
        raise ValueError(f"no depth {depth}: the model has depths 0 to {len(blocks)}")

    def shell(module: nn.Module) -> nn.Module:
        if all(part is not blocks[0] for part in module.modules()):
            return module
        if isinstance(module, nn.ModuleList):
            return nn.ModuleList(list(module)[depth:])
        twin: Any = copy.copy(module)
        twin._modules = {name: child and shell(child) for name, child in module._modules.items()}
        kinds = getattr(getattr(module, "config", None), "layer_types", None)
        if kinds:  # masks are looked up by the index of a block in its list
            twin.config = copy.copy(module.config)
            twin.config.layer_types = kinds[depth:]
        return twin

    return shell(model)


def fit_low_rank_filters(
    model: Any,
    depth: int,
    states: Tensor,
    targets: Tensor,
    ranks: Sequence[int],
    *,
    rate: float,
    epochs: int,
    batch_size: int = 32,
    generator: torch.Generator,
    trained: Trained = "both",
) -> list[LowRankFilter]:
    """F filters at one depth, trained side by side by the cross-entropy of the label after the filtered state alone.

    All go through the frozen tail as one batch, each with its own loss and clipped gradient (norm 1), so that each
    comes out as if trained alone. Training divides the states by their deviation, which is then folded into W_enc.
    Kept are the weights after the epoch of lowest mean loss. The model gets no gradients.

    Args:
        model: the decoder.
        depth: where the filters sit, 0..L.
        states: last-token states at that depth, (N, d) for all filters or (F, N, d).
        targets: label tokens, (N,) or (F, N).
        ranks: of the F filters.
        rate: of Adam.
        epochs: passes over the N states.
        batch_size: states of a step.
        generator: source of the first weights and of the order of the states.
        trained: "both" halves, or the "encoder" or "decoder" alone, while the other keeps its random weights.

    Raises:
        ValueError: for states that are not finite, fewer than two or all equal, shapes that do not fit, an unknown
            half, no rank, or a rank above the width.
    """
    check_name(trained, get_args(Trained), "half")
    if not len(ranks):
        raise ValueError("no ranks given: name the rank of at least one filter")
    _centred(states)
    filters = [LowRankFilter(states.shape[-1], rank, generator).to(states) for rank in ranks]
    states, targets = states.expand(len(ranks), *states.shape[-2:]), targets.expand(len(ranks), states.shape[-2])
    scale = states.std((1, 2))[:, None, None]

    def stacked(name: str, dim: int) -> Tensor:
        # Smaller ranks are padded by zeros, and stay so: the gradient of either factor contains the other.
        wide = [getattr(one, name).detach().movedim(dim, 0) for one in filters]
        return nn.utils.rnn.pad_sequence(wide, batch_first=True).movedim(1, 1 + dim).contiguous().requires_grad_()

    weights = [encoder, bias, decoder] = [stacked("encoder", 0), stacked("bias", 0), stacked("decoder", 1)]
    learnt = {"both": weights, "encoder": [encoder, bias], "decoder": [decoder]}[trained]
    optimiser = torch.optim.Adam(learnt, lr=rate)
    best, kept = torch.full_like(scale, math.inf), [part.detach().clone() for part in weights]
    for _ in range(epochs):
        total = torch.zeros_like(scale)
        for rows in torch.randperm(states.shape[1], generator=generator).split(batch_size):
            codes = (states[:, rows] / scale) @ encoder.mT + bias[:, None]
            logits = tail_logits(model, codes @ decoder.mT, depth)
            losses = nn.functional.cross_entropy(logits.movedim(-1, 1), targets[:, rows], reduction="none").sum(1)
            gradients = torch.autograd.grad(losses.sum() / len(rows), learnt)
            norm = torch.stack([gradient.flatten(1).norm(dim=1) for gradient in gradients]).norm(dim=0).clamp(min=1)
            for part, gradient in zip(learnt, gradients, strict=True):
                part.grad = gradient / norm.reshape(-1, *[1] * (gradient.ndim - 1))
            optimiser.step()
            total += losses.detach()[:, None, None]
        better = (total < best).flatten()
        best = torch.minimum(best, total)
        for keep, part in zip(kept, weights, strict=True):
            keep[better] = part.detach()[better]
    for one, rank, wide, shift, back, deviation in zip(filters, ranks, *kept, scale, strict=True):
        one.encoder.data, one.bias.data, one.decoder.data = wide[:rank] / deviation, shift[:rank], back[:, :rank]
    return [one.requires_grad_(False) for one in filters]


# ---------------------------------------------------------------------------------------------------------------------
# metrics


def eccentricity(states: Tensor) -> Tensor:
    """Share of the variance of states (..., N, d) along their first principal axis, lambda_1 / sum_i lambda_i, (...).

    Biased upward where N is small: compare equal N only.

    Raises:
        ValueError: for states that are not finite, fewer than two or all equal.
    """
    centred = _centred(states)
    # Of H^T H and H H^T, which share their eigenvalues, the smaller one.
    gram = centred.mT @ centred if centred.shape[-1] <= centred.shape[-2] else centred @ centred.mT
    return torch.linalg.eigvalsh(gram)[..., -1] / centred.square().sum((-2, -1))


def covariance_flux(states: Tensor, filter: LowRankFilter | Tensor) -> Tensor:
    """``tr Cov(H M^T) / tr Cov(H)`` of states H (..., N, d) for a filter's M = W_dec W_enc, or a matrix (d, d), (...).

    No fraction, as M may have gain: compare only under one filter.

    Raises:
        ValueError: as :func:`eccentricity`.
    """
    centred = _centred(states)
    matrix = filter.matrix if isinstance(filter, LowRankFilter) else filter
    return (centred @ matrix.mT).square().sum((-2, -1)) / centred.square().sum((-2, -1))


def _centred(states: Tensor) -> Tensor:
    if states.ndim < 2 or states.shape[-2] < 2 or not states.isfinite().all():
        raise ValueError(
            f"states must be finite, (..., N, d) with N at least 2; these have shape {tuple(states.shape)}"
        )
    centred = states - states.mean(-2, keepdim=True)
    if (centred.square().sum((-2, -1)) == 0).any():
        raise ValueError("all states are equal: they have no variance to share")
    return centred


# ---------------------------------------------------------------------------------------------------------------------
# heads


@torch.no_grad()
def ablated_states(model: Any, seen: LastTokens, layer: int) -> Tensor:
    """Last-token states at depth ``layer + 1`` with each head of the layer off in turn, (H, N, d).

    Exact also for heads off at all positions: what a head writes elsewhere reaches the last token only through the
    attention of later blocks. So an MLP on H N tokens stands for H passes.

    Raises:
        ValueError: if there is no such layer.
    """
    check_heads(model, [(layer, 0)])
    parts = architecture(model)
    entering = seen.states[layer]
    writes = torch.einsum("nhe,hed->hnd", seen.heads[layer], parts.output_weights(layer))
    attended = entering + seen.attention[layer] - writes
    added: Tensor = parts.mlps[layer](parts.second_norms[layer](entering if parts.parallel else attended))
    return attended + added


@torch.no_grad()
def screen_heads(model: Any, seen: LastTokens, filters: Mapping[int, Sequence[LowRankFilter]]) -> tuple[Tensor, Tensor]:
    """Relative changes of eccentricity and covariance flux, (L, H) each, just after a head's block when it is off.

    `filters` has those of depth ``layer + 1``, over which the change of the flux is averaged; layers without are NaN.
    """
    shape = seen.heads.shape[0], seen.heads.shape[2]
    spread, flux = (seen.states.new_full(shape, math.nan) for _ in range(2))
    for layer in range(shape[0]):
        both = torch.cat([seen.states[layer + 1][None], ablated_states(model, seen, layer)])
        values = eccentricity(both)
        spread[layer] = values[1:] / values[0] - 1
        if layer + 1 in filters:
            values = torch.stack([covariance_flux(both, one) for one in filters[layer + 1]])
            flux[layer] = (values[:, 1:] / values[:, :1] - 1).mean(0)
    return spread, flux


def denoising_heads(flux: Tensor, induction: Tensor, cf_threshold: float, induction_threshold: float) -> list[Head]:
    """Heads that are no induction heads and whose absence brings the flux (L, H) below `cf_threshold`, lowest first."""
    chosen = (flux < cf_threshold) & (induction <= induction_threshold)
    return sorted(((layer, head) for layer, head in chosen.nonzero().tolist()), key=lambda head: float(flux[head]))


@torch.no_grad()
def predictions(
    model: Any,
    prompts: Prompts,
    head_sets: Sequence[Sequence[Head]],
    factor: float = 0.0,
    *,
    last_token_only: bool = False,
    budget: int = 2048,
) -> Tensor:
    """Predicted tokens with each of A sets of heads scaled, arg max over the whole vocabulary, (A, N).

    The heads are scaled at all positions; then blocks before a set's first layer run once for all sets. Or at the last
    token only; then what stands before it runs once, into a key-value cache, and each set costs one token a prompt. An
    empty set is the clean model. Sets follow one another, as `budget` tokens fill the processor.

    Raises:
        ValueError: as :func:`observe`, or for a head that does not exist.
    """
    _check_context(model, prompts)
    starts = [min(check_heads(model, heads))[0] if heads else None for heads in head_sets]
    result = prompts.targets.new_empty(len(head_sets), len(prompts))
    for rows in prompts.batches(budget):
        inputs = prompts[rows].inputs
        logits = _after_prefix(model, inputs) if last_token_only else _after_blocks(model, inputs, starts)
        for index, (start, heads) in enumerate(zip(starts, head_sets, strict=True)):
            with scale_heads(model, heads, factor) if heads else nullcontext():
                result[index, rows] = logits(start).argmax(-1)
    return result


Resume = Callable[[int | None], Tensor]
"""Last-position logits (B, V) of what is left to run, given the first block that differs."""


def _after_blocks(model: Any, inputs: Mapping[str, Tensor], starts: Sequence[int | None]) -> Resume:
    sites = {start: Site("resid_pre", start) for start in starts if start is not None}
    with capture(model, sites.values()) as seen:
        clean: Tensor = model(**inputs, use_cache=False, logits_to_keep=1).logits[:, -1]
    return lambda start: clean if start is None else _run_from(model, start, seen[sites[start]], inputs)


def _after_prefix(model: Any, inputs: Mapping[str, Tensor]) -> Resume:
    memory = DynamicCache()  # of whole sequences, also where attention slides: only such a cache can be cropped
    # The argument was renamed within version 5 of transformers.
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    options = {name: memory, "use_cache": True, "logits_to_keep": 1}
    prefix = {name: value[:, :-1] for name, value in inputs.items()}
    if prefix["input_ids"].numel():
        model(**prefix, **options)
    last = {name: value[:, -1:] for name, value in inputs.items()} | {"attention_mask": inputs["attention_mask"]}

    def resume(_: int | None) -> Tensor:
        logits: Tensor = model(**last, **options).logits[:, -1]
        memory.crop(-1)
        return logits

    return resume
