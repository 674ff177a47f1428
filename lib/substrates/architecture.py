"""The parts of a Hugging Face transformer under one set of names, whichever family it belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True)
class _Family:
    """Attribute names of one family of pre-norm transformers."""

    blocks: str
    embedding: str
    final_norm: str
    attention: str
    projection: str
    mlp: str
    down: str
    first_norm: str
    second_norm: str


_FAMILIES = (
    _Family("h", "wte", "ln_f", "attn", "c_proj", "mlp", "c_proj", "ln_1", "ln_2"),
    _Family(
        "layers", "embed_tokens", "norm", "self_attn", "o_proj", "mlp", "down_proj", "input_layernorm",
        "post_attention_layernorm",
    ),
    _Family(
        "layers", "embed_in", "final_layer_norm", "attention", "dense", "mlp", "dense_4h_to_h", "input_layernorm",
        "post_attention_layernorm",
    ),
    _Family(
        "layers", "embeddings", "layernorm", "attention", "o_proj", "mlp", "fc2", "layernorm_before",
        "layernorm_after",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Architecture:
    """The parts of a decoder or vision transformer, found by :func:`architecture`; lists are indexed by layer.

    `embedding` turns tokens, or the patches of an image, into the stream; `unembedding` turns the normalised stream
    into logits of tokens, or of the classes of a vision transformer, and is None where the model has no head. `rotary`
    turns positions into angles, in the families that have such positions.
    """

    blocks: tuple[nn.Module, ...]
    attentions: tuple[nn.Module, ...]
    projections: tuple[nn.Module, ...]
    mlps: tuple[nn.Module, ...]
    mlp_downs: tuple[nn.Module, ...]
    first_norms: tuple[nn.Module, ...]
    second_norms: tuple[nn.Module, ...]
    final_norm: nn.Module
    embedding: nn.Module
    unembedding: nn.Module | None
    rotary: nn.Module | None
    n_heads: int
    head_dim: int
    parallel: bool

    @property
    def n_layers(self) -> int:
        """Number of blocks."""
        return len(self.blocks)

    def output_weights(self, layer: int) -> Tensor:
        """W_O of the layer by head, (H, D, d): ``einsum("bshe,hed->bshd", head_out, W_O)`` is each head's write.

        The writes of all heads, plus the projection's bias where it has one, sum to ``attn_out``.
        """
        projection = self.projections[layer]
        # Conv1D of GPT-2 stores (in, out), nn.Linear stores (out, in).
        weight: Tensor = projection.get_parameter("weight")
        oriented = weight.T if isinstance(projection, nn.Linear) else weight
        return oriented.reshape(self.n_heads, self.head_dim, -1)


def architecture(model: nn.Module) -> Architecture:
    """Finds the decoder or vision transformer inside `model`: the whole model, its body, or a wrapper around it.

    Raises:
        ValueError: if no module in it looks like one of the supported families.
    """
    for body in model.modules():
        for family in _FAMILIES:
            if _fits(body, family):
                return _describe(model, body, family)
    raise ValueError(
        "no transformer of a known family (GPT-2, Llama, Mistral, Qwen2, Qwen3, GPT-NeoX, ViT) "
        f"in {type(model).__name__}"
    )


def _fits(body: nn.Module, family: _Family) -> bool:
    blocks = getattr(body, family.blocks, None)
    return (
        isinstance(blocks, nn.ModuleList)
        and len(blocks) > 0
        and _has(body, family.embedding, family.final_norm)
        and _has(blocks[0], family.attention, family.mlp, family.first_norm, family.second_norm)
        and _has(getattr(blocks[0], family.attention), family.projection)
        and _has(getattr(blocks[0], family.mlp), family.down)
    )


def _has(module: nn.Module, *names: str) -> bool:
    return all(isinstance(getattr(module, name, None), nn.Module) for name in names)


def _describe(model: nn.Module, body: nn.Module, family: _Family) -> Architecture:
    blocks = tuple(getattr(body, family.blocks))
    if _has(blocks[0], "pre_feedforward_layernorm"):
        raise ValueError(f"{type(body).__name__} has norms after attention and MLP, which these sites do not describe")
    attentions = tuple(getattr(block, family.attention) for block in blocks)
    mlps = tuple(getattr(block, family.mlp) for block in blocks)
    projections = tuple(getattr(attention, family.projection) for attention in attentions)
    configuration: Any = body.config
    n_heads = int(configuration.num_attention_heads)
    weight = projections[0].get_parameter("weight")
    width = weight.shape[1] if isinstance(projections[0], nn.Linear) else weight.shape[0]
    head_of = getattr(model, "get_output_embeddings", lambda: None)
    unembedding = head_of() or getattr(model, "classifier", None)
    return Architecture(
        blocks=blocks,
        attentions=attentions,
        projections=projections,
        mlps=mlps,
        mlp_downs=tuple(getattr(mlp, family.down) for mlp in mlps),
        first_norms=tuple(getattr(block, family.first_norm) for block in blocks),
        second_norms=tuple(getattr(block, family.second_norm) for block in blocks),
        final_norm=getattr(body, family.final_norm),
        embedding=getattr(body, family.embedding),
        unembedding=unembedding,
        rotary=getattr(body, "rotary_emb", None),
        n_heads=n_heads,
        head_dim=width // n_heads,
        parallel=bool(getattr(blocks[0], "use_parallel_residual", False)),
    )
