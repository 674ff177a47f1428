"""The last blocks of a decoder, tuned by low-rank updates over states that run once."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from lib.substrates.architecture import Architecture, architecture
from lib.substrates.hooks import Site, capture


class LowRankUpdate(nn.Module):
    """A frozen matrix plus an update ``B A``: A (rank, in) normal with deviation 1 / sqrt(in), B (out, rank) zero."""

    def __init__(self, matrix: nn.Module, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        self.matrix = matrix.requires_grad_(False)
        weight = matrix.get_parameter("weight")
        # Conv1D of GPT-2 stores (in, out), nn.Linear stores (out, in).
        outputs, inputs = weight.shape if isinstance(matrix, nn.Linear) else weight.shape[::-1]
        # Layers, not bare parameters, so that methods that work layer by layer see them; no global generator is drawn.
        self.a, self.b = (
            skip_init(nn.Linear, n, m, bias=False, dtype=weight.dtype, device=weight.device)
            for n, m in ((inputs, rank), (rank, outputs))
        )
        self.a.weight.data = torch.randn(rank, inputs, generator=generator).to(weight) / math.sqrt(inputs)
        nn.init.zeros_(self.b.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Inputs (..., in) to outputs (..., out)."""
        updated: Tensor = self.matrix(x) + self.b(self.a(x))
        return updated


class DecoderTail(nn.Module):
    """The last blocks of a decoder up to its logits, with low-rank updates of what attention and MLP write.

    Nothing trainable lies before the output projection of the first of these blocks, so everything up to there runs
    once, by :func:`tail_states`. The updates are the only parameters that require a gradient. Under ``torch.func``
    (``functional_call`` inside ``vmap``) one call serves many sets of updates.

    Args:
        model: a causal language model of a family that :mod:`lib.substrates.architecture` knows; copied, and left as
            it is.
        blocks: how many blocks, from the last one back.
        rank: of the updates.
        generator: source of the updates' A, drawn block by block, attention before MLP.
        words: ids of the tokens whose logits are wanted; all tokens if None.
        train_a: whether A is trained too, or only B.

    Raises:
        ValueError: for an unknown family, a model without unembedding, or a number of blocks that it does not have.
    """

    def __init__(
        self,
        model: nn.Module,
        blocks: int,
        rank: int,
        generator: torch.Generator,
        words: Sequence[int] | None = None,
        train_a: bool = True,
    ) -> None:
        super().__init__()
        parts = architecture(model)
        first = _first_block(parts, blocks)
        if parts.unembedding is None:
            raise ValueError("the model has no unembedding: load it as a causal language model")
        self._parallel = parts.parallel
        # Of the first block only what follows its heads is needed.
        self.projection = LowRankUpdate(copy.deepcopy(parts.projections[first]), rank, generator)
        self.first_norms, self.attentions, self.second_norms, self.mlps = (
            nn.ModuleList(copy.deepcopy(modules)).requires_grad_(False)
            for modules in (
                parts.first_norms[first + 1 :],
                parts.attentions[first + 1 :],
                parts.second_norms[first:],
                parts.mlps[first:],
            )
        )
        self.final_norm = copy.deepcopy(parts.final_norm).requires_grad_(False)
        self.unembedding = _rows(parts.unembedding, words).requires_grad_(False)
        self.rotary = copy.deepcopy(parts.rotary)
        for k, mlp in enumerate(self.mlps):
            if k:
                attention: Any = self.attentions[k - 1]
                _update(attention, parts.attentions[first + k], parts.projections[first + k], rank, generator)
                attention.config = copy.copy(attention.config)
                attention.config._attn_implementation = "eager"  # the fused kernel has no rule for vmap
            _update(mlp, parts.mlps[first + k], parts.mlp_downs[first + k], rank, generator)
        for module in self.modules():
            if isinstance(module, LowRankUpdate):
                module.a.weight.requires_grad_(train_a)
        self.eval()

    def forward(self, stream: Tensor, heads: Tensor, position: Tensor | None = None) -> Tensor:
        """Logits (n, words) at one `position` (n,) of each sequence, or (n, S, words) at all.

        Args:
            stream: residual stream entering the first block, (n, S, d). With a single block and no `position` any
                leading axes will do, as each token is then a row of its own.
            heads: what the heads of that block write into its output projection, (n, S, H D).
            position: of the token that is read; the last MLP then runs there only.
        """
        last = len(self.mlps) - 1
        arguments, attended = self._arguments(stream) if last else {}, self.projection(heads)
        for k, (norm, mlp) in enumerate(zip(self.second_norms, self.mlps, strict=True)):
            if k:
                attended = self.attentions[k - 1](self.first_norms[k - 1](stream), **arguments)[0]
            if k == last and position is not None:
                stream, attended = _at(stream, position), _at(attended, position)
            middle = stream + attended
            stream = middle + mlp(norm(stream if self._parallel else middle))
        logits: Tensor = self.unembedding(self.final_norm(stream))
        return logits

    def _arguments(self, stream: Tensor) -> dict[str, Any]:
        """What attention needs beside its input: a causal mask, and the angles of rotary positions."""
        length = stream.shape[-2]
        # Attention works in single precision inside, whatever the type: a lower limit would become -inf there.
        hidden = torch.full((length, length), torch.finfo(torch.float32).min, dtype=stream.dtype).triu(1)
        arguments: dict[str, Any] = {"attention_mask": hidden[None, None]}
        if self.rotary is not None:
            arguments["position_embeddings"] = self.rotary(stream[:1], torch.arange(length)[None])
        return arguments


@torch.no_grad()
def tail_states(model: nn.Module, tokens: Tensor, blocks: int, chunk: int = 32) -> tuple[Tensor, Tensor]:
    """Residual stream (n, S, d) entering the last `blocks` blocks, and the first one's heads (n, S, H D).

    Pad `tokens` (n, S) on the right: attention is causal, so no earlier position sees the padding.

    Raises:
        ValueError: for an unknown family, or a number of blocks that the model does not have.
    """
    first = _first_block(architecture(model), blocks)
    sites = [Site("resid_pre", first), Site("head_out", first)]
    pieces = []
    with capture(model, sites) as seen:
        for part in tokens.split(chunk):
            model(part, use_cache=False)
            pieces.append((seen[sites[0]], seen[sites[1]].flatten(-2)))
    streams, heads = zip(*pieces, strict=True)
    return torch.cat(streams), torch.cat(heads)


def _first_block(parts: Architecture, blocks: int) -> int:
    if not 1 <= blocks <= parts.n_layers:
        raise ValueError(f"blocks must lie in 1..{parts.n_layers}, the blocks of the model, not {blocks}")
    return parts.n_layers - blocks


def _rows(unembedding: nn.Module, words: Sequence[int] | None) -> nn.Module:
    """A copy of the unembedding, of the rows of `words` only."""
    if words is None:
        return copy.deepcopy(unembedding)
    weight, bias = unembedding.get_parameter("weight"), getattr(unembedding, "bias", None)
    rows = nn.Linear(weight.shape[1], len(words), bias=bias is not None, dtype=weight.dtype)
    rows.weight = nn.Parameter(weight[list(words)].detach().clone())
    if bias is not None:
        rows.bias = nn.Parameter(bias[list(words)].detach().clone())
    return rows


def _update(copied: nn.Module, original: nn.Module, part: nn.Module, rank: int, generator: torch.Generator) -> None:
    """Gives the copy of `original` a low-rank update of its own copy of `part`."""
    name = next(name for name, module in original.named_modules() if module is part)
    copied.set_submodule(name, LowRankUpdate(copied.get_submodule(name), rank, generator))


def _at(states: Tensor, position: Tensor) -> Tensor:
    """States (n, d) at one position (n,) of each sequence of states (n, S, d)."""
    return states.gather(-2, position[..., None, None].expand(*position.shape, 1, states.shape[-1]))[..., 0, :]
