"""Attention modules: the heads that write a concept (SAMD), and one number that turns them up or down (SAMI).

Source: Su, Kempe, Ullrich, "From Concepts to Components: Concept-Agnostic Attention Module Discovery in
Transformers" (arXiv 2506.17052), told in ``notebooks/attention_modules.ipynb``. Everything takes a Hugging Face
decoder (GPT-2, Llama, Mistral, Qwen, GPT-NeoX families) or vision transformer. What a head writes, and the scaling of
heads by hooks, come from :mod:`lib.substrates.heads`. Shapes: B examples, S positions, L layers, H query heads,
width d, MLP width m, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lib.substrates.architecture import architecture
from lib.substrates.heads import Head, check_heads, head_contributions, scale_heads
from lib.substrates.hooks import Site, capture, patch

Neuron = tuple[int, int]
"""Layer and index of an MLP neuron within it, both from 0."""


class Parameters(BaseModel):
    """Parameters of the notebook; the defaults are its `small` run."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    preset: str = Field("small", description="named parameter set of presets/attention_modules.toml")
    seed: int = Field(0, ge=0, description="seed of the splits, the training, the random heads and the bootstraps")
    vision: str = Field("digits", pattern="^(digits)?$", description="digits: ViTs trained here; empty: no vision")
    language: str = Field("news", description="news: trained here; a local name, folder or hub id; empty: none")
    copies: int = Field(2, ge=1, le=10, description="models of each kind to train here, each from its own seed")
    epochs: int = Field(12, ge=1, description="training epochs of a ViT")
    tune_epochs: int = Field(4, ge=1, description="epochs of its fine-tuning on noisy or inverted digits")
    vit_heads: int = Field(16, ge=2, description="heads in each of its four layers; divides 64")
    vit_mlp: int = Field(32, ge=1, description="MLP width of the ViT")
    news_steps: int = Field(150, ge=2, description="training steps of the small news model")
    words: int = Field(16, ge=4, le=40, description="words of a news item that the prompt shows")
    concept_items: int = Field(40, ge=2, description="examples of each class that discovery sees")
    choice_items: int = Field(15, ge=2, le=50, description="examples of each class that K and s are chosen on")
    test_items: int = Field(20, ge=2, le=100, description="examples of each class that claims are measured on")
    unrelated_items: int = Field(64, ge=2, description="film reviews on which side effects are measured")
    concept: Literal["unembed", "folded", "mean_diff"] = Field("folded", description="concept vector of the claims")
    difference_layer: int = Field(-1, ge=-1, description="layer whose input gives mean differences; -1: final norm's")
    k_grid: list[int] = Field([1, 3, 5], min_length=1, description="numbers of heads K to choose from")
    suppress: list[float] = Field([0.0, -1.0, -2.0], min_length=1, description="factors s below 1 to choose from")
    amplify: list[float] = Field([1.5, 2.0, 3.0], min_length=1, description="rising factors s above 1")
    n_random: int = Field(10, ge=2, description="modules of free random heads")
    n_matched: int = Field(3, ge=1, description="random modules with as many heads a layer as each module")
    effect_heads: int = Field(0, ge=0, description="heads ablated one by one, half by rank, half random; 0: all")
    device: str = Field("cpu", description="where the models run: cpu, cuda or mps")


@dataclass(frozen=True)
class AttentionModule:
    """The heads of a concept, best first, and the mean cosines (L, H) that chose them."""

    heads: tuple[Head, ...]
    scores: Tensor


@dataclass(frozen=True)
class Examples:
    """Keyword arguments of a model, each with B rows, the position to read (one, or (B,)), and class indices (B,)."""

    inputs: Mapping[str, Tensor]
    position: int | Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def where(self, kept: Tensor) -> Examples:
        """The examples that a mask (B,) or indices select."""
        return self._each(lambda value: value[kept])

    def to(self, device: str | torch.device) -> Examples:
        """The examples on another device."""
        return self._each(lambda value: value.to(device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Examples:
        position = change(self.position) if isinstance(self.position, Tensor) else self.position
        return Examples({name: change(value) for name, value in self.inputs.items()}, position, change(self.labels))


def encode_prompts(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], labels: Sequence[int], context: int
) -> Examples:
    """Prompts padded on the right, to be read at each one's last token.

    A causal model never sees padding on the right, so a tokenizer without a padding token pads with token 0.

    Args:
        tokenizer: of the model.
        texts: B prompts.
        labels: B class indices.
        context: most tokens the model takes.

    Raises:
        ValueError: without texts, with an empty one, or with one longer than the context.
    """
    rows = [tokenizer(text).input_ids for text in texts]
    if not rows or not all(rows):
        raise ValueError("prompts are empty: give at least one text of at least one token")
    lengths = torch.tensor([len(row) for row in rows])
    if lengths.max() > context:
        longest = int(lengths.argmax())
        raise ValueError(
            f"prompt {longest} has {lengths[longest]} tokens, the model takes {context}: shorten it, nothing is cut"
        )
    pad = tokenizer.pad_token_id or 0
    ids = nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=pad)
    mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
    return Examples({"input_ids": ids, "attention_mask": mask}, lengths - 1, torch.tensor(labels))


@torch.no_grad()
def class_logits(model: PreTrainedModel, examples: Examples, classes: Sequence[int] | Tensor) -> Tensor:
    """Logits (B, C) of the tokens or classes at the examples' positions, without those of a whole vocabulary."""
    hidden = model.base_model(**examples.inputs).last_hidden_state
    head = _unembedding(model)
    rows, chosen = torch.arange(len(hidden), device=hidden.device), torch.as_tensor(classes, device=hidden.device)
    bias = 0 if head.bias is None else head.bias[chosen]
    return hidden[rows, examples.position] @ head.weight[chosen].T + bias


@torch.no_grad()
def residual_at(model: PreTrainedModel, examples: Examples, layer: int = -1) -> Tensor:
    """Residual stream (B, d) that enters a layer, or the final norm (-1), at the examples' positions."""
    site = Site("final_resid") if layer == -1 else Site("resid_pre", layer)
    with capture(model, [site]) as seen:
        model.base_model(**examples.inputs)
    return seen[site][torch.arange(len(seen[site])), examples.position]


# ---------------------------------------------------------------------------------------------------------------------
# concept vectors


def concept_vector_mean_difference(positive: Tensor, negative: Tensor) -> Tensor:
    """Mean of the activations (B, d) with the concept minus mean of those without it (B', d): (d,).

    Raises:
        ValueError: if a set is empty, of another width, or not finite.
    """
    for name, rows in (("positive", positive), ("negative", negative)):
        if rows.ndim != 2 or not len(rows) or rows.shape[1] != positive.shape[-1]:
            raise ValueError(f"the {name} set has shape {tuple(rows.shape)}: give at least one row, both sets as wide")
        _check_finite(rows, f"the {name} set")
    return positive.mean(0) - negative.mean(0)


@torch.no_grad()
def unembedding_direction(
    model: nn.Module, concept: int, fold_norm: bool = False, against: Sequence[int] | None = None
) -> Tensor:
    """The row of a token or class in the unembedding, (d,).

    Args:
        model: a decoder with its language head, or a vision transformer with its classifier.
        concept: index of the row.
        fold_norm: carry the row through the final norm to the residual stream: times the norm's gain, centred where
            the norm is a LayerNorm, which centres what it reads; an RMSNorm does not.
        against: rows whose mean is taken off, such as those of all classes; a shift common to all changes no choice.

    Raises:
        ValueError: if the model has no such head, or the head no such row.
    """
    head, norm = _unembedding(model), architecture(model).final_norm
    rows = [concept, *(against or ())]
    if not all(0 <= row < len(head.weight) for row in rows):
        raise ValueError(f"no row {max(rows, key=abs)}: the unembedding has rows 0 to {len(head.weight) - 1}")
    weight = head.weight[torch.tensor(rows, device=head.weight.device)]
    if fold_norm and isinstance(norm, nn.LayerNorm):
        weight = weight * norm.weight
        weight = weight - weight.mean(-1, keepdim=True)
    elif fold_norm:
        # Some families keep the gain less one; the norm of a constant is the gain for all.
        weight = weight * norm(torch.ones_like(weight[0]))
    return weight[0] - weight[1:].mean(0) if against else weight[0]


def _unembedding(model: nn.Module) -> nn.Linear:
    head = architecture(model).unembedding
    if not isinstance(head, nn.Linear):
        raise ValueError(f"{type(model).__name__} has no linear head: load it with its language head or classifier")
    return head


# ---------------------------------------------------------------------------------------------------------------------
# discovery


def concept_scores(contributions: Tensor, concept: Tensor) -> Tensor:
    """Mean over examples of the cosine between what each head writes, (B, L, H, d), and the concept (d,): (L, H).

    Raises:
        ValueError: for no example, another width, a concept of length zero, or values that are not finite.
    """
    if contributions.ndim != 4 or not len(contributions):
        raise ValueError(
            f"contributions have shape {tuple(contributions.shape)}: give (examples, layers, heads, width) of at "
            "least one example of the concept"
        )
    if concept.shape != contributions.shape[-1:]:
        raise ValueError(f"the concept has shape {tuple(concept.shape)}, heads write {contributions.shape[-1]} numbers")
    _check_finite(contributions, "the contributions")
    _check_finite(concept, "the concept vector")
    if not concept.any():
        raise ValueError("the concept vector is zero: it has no direction to compare with")
    return torch.cosine_similarity(contributions, concept, dim=-1).mean(0)


def discover_attention_module(contributions: Tensor, concept: Tensor, k: int) -> AttentionModule:
    """SAMD: the `k` heads whose writes have the highest mean cosine with the concept (paper: SAMD; *The core step*).

    Args:
        contributions: what the heads write for examples of the concept, (B, L, H, d); from ``head_contributions``.
        concept: direction in the residual stream, (d,).
        k: heads to take, 1 to L H. The cosine is signed: heads that write the opposite are never taken.

    Raises:
        ValueError: as :func:`concept_scores`, or for a `k` out of range.
    """
    scores = concept_scores(contributions, concept)
    return AttentionModule(top_heads(scores, k), scores)


def top_heads(scores: Tensor, k: int) -> tuple[Head, ...]:
    """The `k` heads with the highest scores (L, H), best first; of equals the earlier.

    Raises:
        ValueError: if there are not that many, or `k` is not positive.
    """
    _check_count(k, scores.numel(), "heads")
    order = scores.flatten().argsort(descending=True, stable=True)[:k].tolist()
    return tuple((index // scores.shape[1], index % scores.shape[1]) for index in order)


def random_module(n_layers: int, n_heads: int, k: int, generator: torch.Generator) -> tuple[Head, ...]:
    """`k` distinct heads, all sets equally likely.

    Raises:
        ValueError: if there are not that many, or `k` is not positive.
    """
    return top_heads(torch.rand(n_layers, n_heads, generator=generator), k)


def module_overlap(one: Iterable[Head], other: Iterable[Head]) -> float:
    """Jaccard index of two sets of heads: shared over all.

    Raises:
        ValueError: if both are empty.
    """
    first, second = set(one), set(other)
    if not first | second:
        raise ValueError("two empty modules have no overlap: give at least one head")
    return len(first & second) / len(first | second)


def chance_overlap(n: int, k: int) -> float:
    """Mean Jaccard index of two independent random sets of `k` out of `n`.

    Raises:
        ValueError: if `k` is not between 1 and `n`.
    """
    _check_count(k, n, "heads")
    shared = torch.arange(max(0, 2 * k - n), k + 1, dtype=torch.float64)
    log_ways = _log_choose(k, shared) + _log_choose(n - k, k - shared)
    return float((log_ways.softmax(0) * shared / (2 * k - shared)).sum())


def _log_choose(n: int, k: Tensor) -> Tensor:
    total = torch.full_like(k, n)
    return (total + 1).lgamma() - (k + 1).lgamma() - (total - k + 1).lgamma()


def sparsity(scores: Tensor, k: int) -> Tensor:
    """How far the `k` highest of the last dimension stand out: (their mean - median) / median absolute deviation.

    Raises:
        ValueError: if there are not that many scores, or `k` is not positive.
    """
    _check_count(k, scores.shape[-1], "scores")
    middle = scores.quantile(0.5, dim=-1, keepdim=True)
    spread = (scores - middle).abs().quantile(0.5, dim=-1)
    return (scores.topk(k, dim=-1).values.mean(-1) - middle[..., 0]) / spread


def sparsity_by_chance(n: int, k: int, generator: torch.Generator, level: float = 0.95, draws: int = 20000) -> float:
    """Quantile of :func:`sparsity` over draws of `n` independent Gaussian scores: even noise has a highest value."""
    return float(sparsity(torch.randn(draws, n, generator=generator), k).quantile(level))


# ---------------------------------------------------------------------------------------------------------------------
# intervention


@torch.no_grad()
def scale_output_projection_(model: nn.Module, heads: Iterable[Head], s: float) -> None:
    """SAMI without hooks, for good: multiplies by `s` the weights of the output projections that read these heads.

    The same function as inside ``scale_heads(model, heads, s)``. The bias belongs to no head and stays.

    Raises:
        ValueError: for an unknown architecture, no heads, or a head that does not exist.
    """
    parts = architecture(model)
    for layer, head in check_heads(model, heads):
        projection = parts.projections[layer]
        # Conv1D of GPT-2 stores (in, out), nn.Linear stores (out, in).
        weight = projection.get_parameter("weight")
        by_input = weight.T if isinstance(projection, nn.Linear) else weight
        by_input[head * parts.head_dim : (head + 1) * parts.head_dim] *= s


def residual_parts(model: PreTrainedModel, examples: Examples) -> dict[str, Tensor]:
    """All that was written into the residual stream at the examples' positions, from one forward pass each.

    Returns:
        ``final`` (B, d), the stream before the final norm; ``embedding`` (B, d); ``heads`` (B, L, H, d); ``biases``
        (L, d) of the output projections; ``mlps`` (B, L, d). The last four sum to the first.
    """
    parts = architecture(model)
    layers = range(parts.n_layers)
    sites = [Site("final_resid"), Site("resid_pre", 0), *(Site("mlp_out", layer) for layer in layers)]
    with capture(model, sites) as seen:
        heads = head_contributions(model, examples.inputs, examples.position)
    final, embedding, *mlps = (seen[site][torch.arange(len(heads)), examples.position] for site in sites)
    biases = [getattr(projection, "bias", None) for projection in parts.projections]
    zero = torch.zeros_like(final[0])
    return {
        "final": final,
        "embedding": embedding,
        "heads": heads,
        "biases": torch.stack([zero if bias is None else bias.detach() for bias in biases]),
        "mlps": torch.stack(mlps, 1),
    }


# ---------------------------------------------------------------------------------------------------------------------
# baselines


def ablation_effects(
    model: PreTrainedModel, examples: Examples, classes: Sequence[int], heads: Iterable[Head]
) -> dict[Head, Tensor]:
    """Mean fall of each class's logit on its own examples when a head is set to zero, (C,), head by head.

    A logit counts from the mean over `classes`. One forward pass a head: the causal ranking that SAMD saves.

    Raises:
        ValueError: if a class has no example, or a head does not exist.
    """
    own = torch.nn.functional.one_hot(examples.labels, len(classes)).to(torch.get_default_dtype())
    if not own.any(0).all():
        raise ValueError("a class has no example: give at least one of each")

    def logits() -> Tensor:
        values = class_logits(model, examples, classes)
        return ((values - values.mean(-1, keepdim=True)) * own).sum(0) / own.sum(0)

    before, effects = logits(), {}
    for head in check_heads(model, heads):
        with scale_heads(model, [head], 0.0):
            effects[head] = before - logits()
    return effects


@contextmanager
def steer(model: nn.Module, vector: Tensor) -> Iterator[None]:
    """Adds a vector (d,) to the residual stream before the final norm, at every position."""
    _check_direction(vector)
    with patch(model, {Site("final_resid"): lambda stream: stream + vector}):
        yield


@contextmanager
def ablate_direction(model: nn.Module, vector: Tensor) -> Iterator[None]:
    """Directional ablation (ORTHO): the stream r becomes r - (r v) v, v of length 1, after every block."""
    _check_direction(vector)
    unit = vector / vector.norm()

    def project(stream: Tensor) -> Tensor:
        return stream - (stream @ unit)[..., None] * unit

    layers = range(architecture(model).n_layers)
    with patch(model, {Site("resid_pre", 0): project} | {Site("resid_post", layer): project for layer in layers}):
        yield


@torch.no_grad()
def discover_neurons(model: PreTrainedModel, examples: Examples, concept: Tensor, k: int) -> tuple[Neuron, ...]:
    """The MLP neurons found as SAMD finds heads: highest mean cosine of what a neuron writes with the concept.

    A neuron writes its activation times one row of the down projection, so the cosine is that of the row, times the
    sign of the activation.

    Raises:
        ValueError: for a concept of length zero, or if there are not that many neurons.
    """
    _check_direction(concept)
    parts = architecture(model)
    sites = [Site("mlp_act", layer) for layer in range(parts.n_layers)]
    with capture(model, sites) as seen:
        model.base_model(**examples.inputs)
    rows = torch.arange(len(examples))
    signs = torch.stack([seen[site][rows, examples.position].sign().mean(0) for site in sites])
    weights = [down.get_parameter("weight") for down in parts.mlp_downs]
    by_neuron = torch.stack([
        weight.T if isinstance(down, nn.Linear) else weight
        for weight, down in zip(weights, parts.mlp_downs, strict=True)
    ])  # fmt: skip
    return top_heads(signs * torch.cosine_similarity(by_neuron, concept, dim=-1), k)


@contextmanager
def scale_neurons(model: nn.Module, neurons: Iterable[Neuron], s: float) -> Iterator[None]:
    """Multiplies the activations of MLP neurons by `s` at every position.

    Raises:
        ValueError: for a layer that does not exist.
    """
    by_layer: dict[int, list[int]] = {}
    for layer, neuron in neurons:
        by_layer.setdefault(layer, []).append(neuron)

    def scaled(chosen: list[int]) -> Callable[[Tensor], Tensor]:
        def edit(activation: Tensor) -> Tensor:
            new = activation.clone()
            new[..., chosen] *= s
            return new

        return edit

    with patch(model, {Site("mlp_act", layer): scaled(chosen) for layer, chosen in by_layer.items()}):
        yield


def _check_count(k: int, n: int, what: str) -> None:
    if not 1 <= k <= n:
        raise ValueError(f"k = {k} is out of range: there are {n} {what}")


def _check_finite(values: Tensor, what: str) -> None:
    if not values.isfinite().all():
        raise ValueError(f"{what} must be finite: {int((~values.isfinite()).sum())} values are NaN or infinite")


def _check_direction(vector: Tensor) -> None:
    _check_finite(vector, "the concept vector")
    if not vector.any():
        raise ValueError("the concept vector is zero: it has no direction")
