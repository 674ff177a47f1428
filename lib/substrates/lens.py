"""The logit lens, and streams carried from one run into another: how far a decoder has got at a layer and a token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lib.substrates.architecture import Architecture, architecture
from lib.substrates.hooks import Site, capture, patch


@torch.no_grad()
def residual_streams(model: nn.Module, inputs: Mapping[str, Any], position: int | Tensor | None = -1) -> Tensor:
    """Residual stream at every depth, (layers + 1, B, d) at one token or (layers + 1, B, S, d) at all, in one pass.

    Depth 0 enters the first block, depth l leaves block l (the last is what the final norm reads).

    Args:
        model: a decoder that :func:`lib.substrates.architecture.architecture` knows.
        inputs: keyword arguments of the model, such as ``input_ids`` (B, S).
        position: of the token, the same for all B or a tensor (B,); None for every token.

    Raises:
        ValueError: for an unknown architecture.
    """
    sites = depth_sites(model)
    with capture(model, sites) as seen:
        model(**inputs)
    streams = torch.stack([seen[site] for site in sites])
    return streams if position is None else streams[:, torch.arange(streams.shape[1]), position]


def depth_sites(model: nn.Module) -> list[Site]:
    """The places of the depths 0 to layers, at which a stream is read and written."""
    n_layers = architecture(model).n_layers
    return [*(Site("resid_pre", layer) for layer in range(n_layers)), Site("final_resid")]


@torch.no_grad()
def lens_logits(model: nn.Module, streams: Tensor) -> Tensor:
    """Logits (..., V) that residual streams (..., d) would give, were they the last: final norm, then unembedding.

    Raises:
        ValueError: for an unknown architecture, or a model without unembedding.
    """
    parts = architecture(model)
    logits: Tensor = _unembedding(parts)(parts.final_norm(streams))
    return logits


@torch.no_grad()
def lens_ranks(model: nn.Module, streams: Tensor, tokens: Tensor) -> Tensor:
    """Rank (..., ), from 0, of `tokens` (broadcast to streams' leading axes) among the lens' logits of `streams`.

    A tie counts half a place, so that a lens that sees nothing ranks every token in the middle.
    """
    logits = lens_logits(model, streams)
    own = logits.gather(-1, tokens.expand(logits.shape[:-1])[..., None])
    return (logits > own).sum(-1) + ((logits == own).sum(-1) - 1) / 2


@torch.no_grad()
def transplanted_logits(
    model: nn.Module, inputs: Mapping[str, Any], stream: Tensor, depth: int, position: int, read: int = -1
) -> Tensor:
    """Logits (B, V) at the token `read` when the stream at one depth and token is that of another run.

    Everything downstream is computed anew; the key-value cache is not used.

    Args:
        model: a decoder, as for :func:`residual_streams`.
        inputs: keyword arguments of the model for the run that receives.
        stream: (B, d) of the run that gives, at the same depth.
        depth: from 0, the input of the first block, to the number of layers.
        position: of the token whose stream is replaced.
        read: of the token whose logits are returned.

    Raises:
        ValueError: for an unknown architecture or a depth that the model does not have.
    """
    sites = depth_sites(model)
    if not 0 <= depth < len(sites):
        raise ValueError(f"depth must lie in 0..{len(sites) - 1}, not {depth}")

    def replace(activation: Tensor) -> Tensor:
        new = activation.clone()
        new[:, position] = stream
        return new

    with patch(model, {sites[depth]: replace}):
        logits: Tensor = model(**inputs, use_cache=False).logits
    return logits[:, read]


def _unembedding(parts: Architecture) -> nn.Module:
    if parts.unembedding is None:
        raise ValueError("the model has no unembedding: load it as a causal language model")
    return parts.unembedding
