"""Attention heads of a transformer: what each writes, how to scale it, and random heads to compare with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lib.substrates.architecture import architecture
from lib.substrates.hooks import Site, capture, patch

Head = tuple[int, int]
"""Layer and index of a query head within it, both from 0."""


def check_heads(model: nn.Module, heads: Iterable[Head]) -> list[Head]:
    """The heads as a list without repetitions, in the order given.

    Raises:
        ValueError: if there is none, or one does not exist in the model.
    """
    parts = architecture(model)
    chosen = list(dict.fromkeys((int(layer), int(head)) for layer, head in heads))
    if not chosen:
        raise ValueError("no heads given: name at least one as (layer, head)")
    for layer, head in chosen:
        if not (0 <= layer < parts.n_layers and 0 <= head < parts.n_heads):
            raise ValueError(
                f"no head {head} in layer {layer}: the model has layers 0 to {parts.n_layers - 1} "
                f"with heads 0 to {parts.n_heads - 1}"
            )
    return chosen


@torch.no_grad()
def head_contributions(model: nn.Module, inputs: Mapping[str, Any], position: int | Tensor = -1) -> Tensor:
    """What each head adds to the residual stream at one position, (B, layers, heads, width), from one forward pass.

    The contributions of a layer, plus the projection's bias where it has one, sum to what its attention adds.

    Args:
        model: a decoder or vision transformer that :func:`lib.substrates.architecture.architecture` knows.
        inputs: keyword arguments of the model, such as ``input_ids`` (B, S) or ``pixel_values``.
        position: of the token, the same for all B or a tensor (B,) with one for each.

    Raises:
        ValueError: for an unknown architecture.
    """
    parts = architecture(model)
    sites = [Site("head_out", layer) for layer in range(parts.n_layers)]
    with capture(model, sites) as seen:
        model(**inputs)
    rows = torch.arange(len(seen[sites[0]]))
    chosen = torch.stack([seen[site][rows, position] for site in sites], 1)
    weights = torch.stack([parts.output_weights(layer) for layer in range(parts.n_layers)])
    return torch.einsum("blhe,lhed->blhd", chosen, weights)


@contextmanager
def scale_heads(model: nn.Module, heads: Iterable[Head], factor: float, position: int | None = None) -> Iterator[None]:
    """Multiplies what the heads write by `factor`, at every position or at one, in every forward pass inside.

    A factor of 0 removes the heads, 1 changes no bit, a negative one turns them round.

    Raises:
        ValueError: for an unknown architecture, no heads, or a head that does not exist.
    """
    where = slice(None) if position is None else slice(position, position + 1 or None)
    by_layer: dict[int, list[int]] = {}
    for layer, head in check_heads(model, heads):
        by_layer.setdefault(layer, []).append(head)

    def scaled(indices: Sequence[int]) -> Any:
        def edit(activation: Tensor) -> Tensor:
            new = activation.clone()
            new[:, where, indices] *= factor
            return new

        return edit

    with patch(model, {Site("head_out", layer): scaled(indices) for layer, indices in by_layer.items()}):
        yield


def matched_random_heads(heads: Iterable[Head], n_heads: int, generator: torch.Generator) -> list[Head]:
    """As many distinct random heads in each layer as `heads` has there, drawn from all `n_heads` of the layer.

    Raises:
        ValueError: if a layer has more than `n_heads` of them.
    """
    counts: dict[int, int] = {}
    for layer, _ in heads:
        counts[layer] = counts.get(layer, 0) + 1
    if counts and max(counts.values()) > n_heads:
        raise ValueError(f"a layer is asked for {max(counts.values())} heads but has {n_heads}")
    return [
        (layer, head)
        for layer, count in counts.items()
        for head in torch.randperm(n_heads, generator=generator)[:count].tolist()
    ]
