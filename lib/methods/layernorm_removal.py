"""Removing LayerNorm from a trained GPT-2, norm by norm, and measuring what interpretability gains from it.

Source: Baroni et al., "Small Transformers Don't Need LayerNorm at Inference Time" (arXiv 2507.02559), told in
``notebooks/layernorm_removal.ipynb``. Everything takes a Hugging Face ``GPT2LMHeadModel``, with or without norms.
Shapes: B sequences, S tokens, residual width d, vocabulary V, L layers, H heads.
"""

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from transformers import GPT2LMHeadModel
from transformers.pytorch_utils import Conv1D

from lib.substrates.architecture import architecture
from lib.substrates.hooks import Site, capture, patch
from lib.substrates.training import Plan, train

NORM_KINDS = ("mlp", "qk", "v", "f")
EXPORT_EPS = 1e12  # so large that sqrt(var + eps) no longer depends on the variance
Metric = Callable[[Tensor], Tensor]


class Parameters(BaseModel):
    """Parameters of the notebook; the defaults are its `small` run."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    preset: str = Field("small", description="named parameter set of presets/layernorm_removal.toml")
    seed: int = Field(0, ge=0, description="seed of the data, the training batches and the bootstraps")
    model: str = Field("text", description="text (trained here), iglm-s, iglm, or a GPT-2 by hub id or folder")
    vanilla_model: str = Field("", description="fine-tuned control, hub id or folder; empty: fine-tune one here")
    lnfree_model: str = Field("", description="LN-free checkpoint, hub id or folder; empty: remove the norms here")
    context: int = Field(64, ge=8, le=1024, description="tokens of a window")
    documents: int = Field(6000, ge=100, description="news items to read, or sequences to sample")
    base_steps: int = Field(700, ge=1, description="training steps of the text model")
    base_rate: float = Field(6e-3, gt=0, description="its peak learning rate")
    steps: int = Field(100, ge=2, description="fine-tuning steps of every arm")
    rate: float = Field(2e-3, gt=0, description="peak learning rate of the fine-tuning")
    min_rate: float = Field(0.5, ge=0, le=1, description="learning rate of its last step, as a share of the peak")
    warmup: int = Field(8, ge=0, description="steps of linear warm-up in the fine-tuning")
    batch_size: int = Field(16, ge=1, description="windows of a training step")
    order: list[str] = Field(list(NORM_KINDS), description="order in which the four kinds of norm are removed")
    start_step: int = Field(7, ge=0, description="step of the first removal")
    gap_steps: list[int] = Field([4, 4, 4, 4, 4], description="steps after an mlp, qk, v, f removal, and after eot")
    special_positions: int = Field(1, ge=1, le=4, description="first positions with scales of their own until the end")
    momentum: float = Field(0.9, ge=0, lt=1, description="of the moving averages of the deviations")
    aux_weight: float = Field(0.1, ge=0, description="weight lambda of the auxiliary loss")
    fine_tunes: int = Field(3, ge=1, le=10, description="seeds of the fine-tuning, from one base model")
    eval_windows: int = Field(200, ge=8, description="validation windows of the losses")
    probe_windows: int = Field(48, ge=4, description="validation windows of the interpretability measurements")
    pairs: int = Field(48, ge=4, description="clean and corrupted windows of the patching comparison")
    device: str = Field("cpu", description="where the models run: cpu, cuda or mps")


class TokenSlots:
    """Which frozen scale each token of the running batch takes: 0 the common one, k + 1 that of first position k.

    Only the two embeddings of a model see token ids and positions, so they fill this in, and the norms read it.
    """

    def __init__(self, special_positions: int, end_token: int | None) -> None:
        self.special_positions, self.end_token = special_positions, end_token
        self.by_position = self.with_end = torch.zeros(1, dtype=torch.long)
        self._tokens: Tensor | None = None

    def see_tokens(self, tokens: Tensor) -> None:
        """Keep token ids (B, S) until the positions come."""
        self._tokens = tokens

    def see_positions(self, positions: Tensor) -> None:
        """Slots of positions (1 or B, S); an end-of-text token has that of position 0 in ``with_end``."""
        self.by_position = self.with_end = torch.where(positions < self.special_positions, positions + 1, 0)
        if self._tokens is not None and self.end_token is not None:
            ends = (self._tokens == self.end_token) & (self.by_position == 0)
            self.with_end = torch.where(ends, 1, self.by_position)
        self._tokens = None


class SeenEmbedding(nn.Embedding):
    """An embedding, its weight shared with the original, that shows its indices to an observer."""

    def __init__(self, embedding: nn.Embedding, observer: Callable[[Tensor], None]) -> None:
        super().__init__(embedding.num_embeddings, embedding.embedding_dim, _weight=embedding.weight)
        self.weight = embedding.weight  # the very parameter: a tied unembedding stays tied
        self.observer = observer

    def forward(self, indices: Tensor) -> Tensor:
        """Show the indices, then look them up."""
        self.observer(indices)
        return super().forward(indices)


class FakeLayerNorm(nn.Module):
    """A LayerNorm whose division by each token's own deviation can be frozen, path by path, into constants.

    Real path: (x - mean) / sqrt(var + eps) * gain + bias; in training mode it keeps a moving average of the
    deviation, apart for each special first position. Frozen path: the average takes the deviation's place, so the
    map is affine. Paper: FakeLN; notebook: *The core step*.

    Args:
        norm: the norm to take over, gain and bias shared. One with an export's huge epsilon starts frozen.
        slots: where the model notes which scale each token takes.
        paths: consumers that can be switched separately.
        momentum: of the moving average.
    """

    def __init__(self, norm: nn.LayerNorm, slots: TokenSlots, paths: Sequence[str], momentum: float) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps
        self.slots, self.momentum = slots, momentum
        exported = norm.eps >= EXPORT_EPS / 10
        self.frozen = dict.fromkeys(paths, exported)
        start = [math.sqrt(norm.eps)] if exported else [math.nan] * (1 + slots.special_positions)
        for path in paths:
            self.register_buffer(f"scale_{path}", norm.weight.new_tensor(start))

    def scale(self, path: str = "main") -> Tensor:
        """The averages of a path: the common one, then those of the special first positions."""
        if path not in self.frozen:
            raise ValueError(f"this norm has the paths {list(self.frozen)}, not {path!r}")
        return self.get_buffer(f"scale_{path}")

    @property
    def is_linear(self) -> bool:
        """Whether every path divides by one constant, the same at all positions."""
        return all(frozen and len(self.scale(path)) == 1 for path, frozen in self.frozen.items())

    def freeze(self, path: str = "main") -> None:
        """Make a path affine, with the averages of this moment."""
        if self.scale(path).isnan().any():
            raise ValueError("no deviation was seen yet: run the model on data in training mode before freezing")
        self.frozen[path] = True

    def merge_positions(self) -> None:
        """Give the special first positions the common scale."""
        for path in self.frozen:
            self.register_buffer(f"scale_{path}", self.scale(path)[:1].clone())

    @torch.no_grad()
    def observe(self, x: Tensor, path: str = "main") -> None:
        """Move a path's averages towards those of a batch (B, S, d)."""
        scale = self.scale(path)
        special = len(scale) - 1
        if x.ndim != 3 or x.shape[1] <= special:
            raise ValueError(
                f"observing takes (B, S, d) with S above {special} special positions, not {tuple(x.shape)}"
            )
        by_position = deviation(x, self.eps).mean(0)
        now = torch.cat([by_position[special:].mean(0, keepdim=True), by_position[:special]])
        scale.copy_(torch.where(scale.isnan(), now, self.momentum * scale + (1 - self.momentum) * now))

    def forward(self, x: Tensor, path: str = "main") -> Tensor:
        """Normalise x (..., S, d) for one consumer."""
        scale = self.scale(path)
        if not self.frozen[path]:
            if self.training:
                self.observe(x, path)
            return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)
        if len(scale) > 1:
            scale = scale[self.slots.with_end if path == "v" else self.slots.by_position]
        return (x - x.mean(-1, keepdim=True)) * (self.weight / scale[..., None]) + self.bias


class SplitProjection(nn.Module):
    """GPT-2's joint Q, K, V projection, reading the residual stream through two separately switchable paths."""

    def __init__(self, projection: Conv1D, norm: FakeLayerNorm) -> None:
        super().__init__()
        self.projection, self.norm = projection, norm

    def forward(self, x: Tensor) -> Tensor:
        """Q, K and V side by side, (B, S, 3 d)."""
        weight, bias, cut = self.projection.weight, self.projection.bias, 2 * x.shape[-1]
        query_key = self.norm(x, "qk") @ weight[:, :cut] + bias[:cut]
        value = self.norm(x, "v") @ weight[:, cut:] + bias[cut:]
        return torch.cat([query_key, value], dim=-1)


def deviation(x: Tensor, eps: float) -> Tensor:
    """Standard deviation over the last axis as LayerNorm takes it: sqrt(biased variance + eps)."""
    return (x.var(-1, unbiased=False) + eps).sqrt()


def replace_layer_norms(
    model: GPT2LMHeadModel, *, special_positions: int = 1, end_token: int | None = None, momentum: float = 0.9
) -> GPT2LMHeadModel:
    """A copy of a GPT-2 that computes the same, with every norm switchable.

    Args:
        model: left as it is.
        special_positions: first positions that keep scales of their own until the phase ``bos``.
        end_token: id that takes the scale of position 0 on the V path until the phase ``eot``.
        momentum: of the moving averages of the deviations.
    """
    if not isinstance(model, GPT2LMHeadModel):
        raise ValueError(f"the surgery is written for GPT2LMHeadModel, not for {type(model).__name__}")
    if end_token is not None and special_positions < 1:
        raise ValueError("end_token borrows the scale of position 0: set special_positions to at least 1")
    model = copy.deepcopy(model)
    body = _body(model)
    slots = TokenSlots(special_positions, end_token)
    body.wte, body.wpe = SeenEmbedding(body.wte, slots.see_tokens), SeenEmbedding(body.wpe, slots.see_positions)
    for block in body.h:
        norm = FakeLayerNorm(block.ln_1, slots, ("qk", "v"), momentum)
        block.attn.c_attn, block.ln_1 = SplitProjection(block.attn.c_attn, norm), nn.Identity()
        block.ln_2 = FakeLayerNorm(block.ln_2, slots, ("main",), momentum)
    body.ln_f = FakeLayerNorm(body.ln_f, slots, ("main",), momentum)
    return model.train(model.training)  # new modules start in training mode, whatever the model's is


def _body(model: GPT2LMHeadModel) -> Any:
    return model.transformer  # Any: torch types every attribute of a module as a tensor or a module


def fake_norms(model: nn.Module) -> list[FakeLayerNorm]:
    """The switchable norms of a model, in the order of its modules."""
    norms = [module for module in model.modules() if isinstance(module, FakeLayerNorm)]
    if not norms:
        raise ValueError("the model has no switchable norm: pass it through replace_layer_norms first")
    return norms


def remove_norm(model: GPT2LMHeadModel, kind: str, layer: int = 0) -> None:
    """One event of the removal, in place: a norm (mlp, qk, v, f) or a special treatment (eot, bos) goes."""
    norms, body = fake_norms(model), _body(model)
    match kind:
        case "mlp":
            body.h[layer].ln_2.freeze()
        case "qk" | "v":
            body.h[layer].attn.c_attn.norm.freeze(kind)
        case "f":
            body.ln_f.freeze()
        case "eot":
            norms[0].slots.end_token = None
        case "bos":
            for norm in norms:
                norm.merge_positions()
        case _:
            raise ValueError(f"no removal {kind!r}: the kinds are {', '.join(NORM_KINDS)}, eot and bos")


@dataclass(frozen=True)
class NormRemovalSchedule:
    """When each norm goes: kind after kind in `order`, layer 0 upward, then the special treatments eot and bos.

    Args:
        n_layers: blocks of the model.
        order: a permutation of mlp, qk, v and f.
        start_step: step of the first removal.
        gaps: steps to wait after each removal of kind mlp, qk, v, f and after eot.
    """

    n_layers: int
    order: Sequence[str] = NORM_KINDS
    start_step: int = 10
    gaps: Sequence[int] = (8, 8, 8, 8, 8)

    def __post_init__(self) -> None:
        if sorted(self.order) != sorted(NORM_KINDS):
            raise ValueError(f"order must be a permutation of {', '.join(NORM_KINDS)}, not {', '.join(self.order)}")
        if len(self.gaps) != 5 or min(self.gaps) < 0:
            raise ValueError(f"gaps are five numbers of steps, for mlp, qk, v, f and eot, not {list(self.gaps)}")

    @property
    def timeline(self) -> list[tuple[int, str, int]]:
        """All removals as (step, kind, layer), in order."""
        gaps = dict(zip((*NORM_KINDS, "eot"), self.gaps, strict=True)) | {"bos": 0}
        step, events = self.start_step, []
        for kind in (*self.order, "eot", "bos"):
            for layer in range(self.n_layers if kind in ("mlp", "qk", "v") else 1):
                events.append((step, kind, layer))
                step += gaps[kind]
        return events

    def events(self, step: int) -> list[tuple[str, int]]:
        """Removals (kind, layer) due at a step."""
        return [(kind, layer) for due, kind, layer in self.timeline if due == step]


def residual_std_loss(residual: Tensor, excluded: Tensor, weight: float) -> Tensor:
    """Auxiliary loss weight * E[(sigma - sigma_hat)^2] on a residual stream (B, S, d).

    sigma_hat, the mean deviation where `excluded` (B, S) is False, carries no gradient; E runs over all positions.
    """
    sigma = deviation(residual, 1e-5)
    target = sigma.detach()[~excluded]
    if not len(target):
        raise ValueError("every position is excluded: the target deviation has nothing to average")
    return weight * (sigma - target.mean()).square().mean()


def language_model_loss(
    model: GPT2LMHeadModel, windows: Tensor, aux_weight: float = 0.0, end_token: int | None = None, first: int = 1
) -> Tensor:
    """Cross-entropy on windows (B, S + 1), in nats a token, plus the auxiliary loss at the last norm's input.

    Positions below `first` and tokens `end_token` are left out of the auxiliary loss's target.
    """
    tokens, residual = windows[:, :-1], Site("final_resid")
    with capture(model, [residual] if aux_weight else [], detach=False) as seen:
        logits = model(tokens, use_cache=False).logits
    loss = F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
    if aux_weight:
        excluded = tokens == (-1 if end_token is None else end_token)
        excluded[:, :first] = True
        loss = loss + residual_std_loss(seen[residual], excluded, aux_weight)
    return loss


@torch.no_grad()
def window_losses(model: GPT2LMHeadModel, windows: Tensor, chunk_tokens: int = 4096) -> Tensor:
    """Mean cross-entropy of each window (B, S + 1) in evaluation mode, nats a token, (B,)."""
    training = model.training
    model.eval()
    losses = []
    for part in windows.split(max(1, chunk_tokens // windows.shape[1])):  # the logits of all would not fit in memory
        logits = model(part[:, :-1], use_cache=False).logits
        losses.append(F.cross_entropy(logits.transpose(1, 2), part[:, 1:], reduction="none").mean(1))
    model.train(training)
    return torch.cat(losses)


@torch.no_grad()
def observe_deviations(model: GPT2LMHeadModel, batches: Iterable[Tensor]) -> None:
    """Let the norms of a model estimate their averages on batches of token ids (B, S), without training."""
    training = model.training
    model.train()
    for tokens in batches:
        model(tokens, use_cache=False)
    model.train(training)


@dataclass(frozen=True)
class FineTuned:
    """A fine-tuned model, in evaluation mode, and its way there.

    `trace` holds (step, loss on the probe windows); `jumps` the change of that loss at each event of the schedule.
    """

    model: GPT2LMHeadModel
    trace: list[tuple[int, float]]
    jumps: list[float]


def fine_tune(
    model: GPT2LMHeadModel,
    sample_batch: Callable[[torch.Generator, int], Tensor],
    plan: Plan,
    probe: Tensor,
    *,
    generator: torch.Generator,
    schedule: NormRemovalSchedule | None = None,
    aux_weight: float = 0.0,
    end_token: int | None = None,
    special_positions: int = 1,
    momentum: float = 0.9,
) -> FineTuned:
    """Fine-tune a copy of a GPT-2 while its norms go by a schedule; without one it is the vanilla control.

    Equal generator states give equal batches, whatever the schedule and the auxiliary loss.

    Args:
        model: left as it is; set its dropout to 0 first, or the estimates see it too.
        sample_batch: ``sample_batch(generator, n)`` draws n windows (n, S + 1) of token ids.
        plan: steps, rates, batch size.
        probe: windows on which the loss is watched, about 40 times a run and around each removal.
        generator: source of the batches.
        schedule: what is removed when.
        aux_weight: lambda of :func:`residual_std_loss`.
        end_token: see :func:`replace_layer_norms`.
        special_positions: as there.
        momentum: as there.
    """
    if schedule is not None and schedule.timeline[-1][0] >= plan.steps:
        raise ValueError(f"the last removal is due at step {schedule.timeline[-1][0]}: give the plan more steps")
    tuned = replace_layer_norms(model, special_positions=special_positions, end_token=end_token, momentum=momentum)
    observe_deviations(tuned, (sample_batch(generator, plan.batch_size)[:, :-1] for _ in range(8)))
    trace: list[tuple[int, float]] = []
    jumps: list[float] = []

    def watch(step: int) -> float:
        trace.append((step, float(window_losses(tuned, probe).mean())))
        return trace[-1][1]

    def before_step(step: int) -> None:
        events = schedule.events(step) if schedule else []
        if events or step % max(1, plan.steps // 40) == 0:
            watch(step)
        for kind, layer in events:
            before = trace[-1][1]
            remove_norm(tuned, kind, layer)
            jumps.append(watch(step) - before)

    def loss(_: nn.Module, windows: Tensor) -> Tensor:
        return language_model_loss(tuned, windows, aux_weight, end_token, max(special_positions, 1))

    train(tuned, sample_batch, loss, plan, generator=generator, before_step=before_step)
    watch(plan.steps)
    return FineTuned(tuned.eval(), trace, jumps)


def _restored(model: GPT2LMHeadModel) -> GPT2LMHeadModel:
    """A copy of a norm-free model with ordinary embeddings, its norms still in place."""
    if not all(norm.is_linear for norm in fake_norms(model)):
        raise ValueError("only a model whose norms are all frozen, and the phase bos done, is free of LayerNorm")
    model = copy.deepcopy(model)
    body = _body(model)
    for name in ("wte", "wpe"):
        weight = getattr(body, name).weight
        setattr(body, name, nn.Embedding(weight.shape[0], weight.shape[1], _weight=weight))
        getattr(body, name).weight = weight
    return model


@torch.no_grad()
def fold_linear_norms(model: GPT2LMHeadModel) -> GPT2LMHeadModel:
    """The same norm-free model without norms: centring, gain, bias and constant folded into the next matrices.

    Raises:
        ValueError: if a norm is still real, or still has scales of its own for first positions.
    """
    folded = _restored(model)

    def fold(weight: Tensor, bias: Tensor, norm: FakeLayerNorm, path: str = "main") -> tuple[Tensor, Tensor]:
        scaled = (norm.weight / norm.scale(path))[:, None] * weight
        return scaled - scaled.mean(0), bias + norm.bias @ weight

    for block in _body(folded).h:
        split, up = block.attn.c_attn, block.mlp.c_fc
        joint, cut = split.projection, 2 * folded.config.n_embd
        parts = [
            fold(joint.weight[:, :cut], joint.bias[:cut], split.norm, "qk"),
            fold(joint.weight[:, cut:], joint.bias[cut:], split.norm, "v"),
        ]
        joint.weight.copy_(torch.cat([weight for weight, _ in parts], dim=1))
        joint.bias.copy_(torch.cat([bias for _, bias in parts]))
        for parameter, value in zip((up.weight, up.bias), fold(up.weight, up.bias, block.ln_2), strict=True):
            parameter.copy_(value)
        block.attn.c_attn, block.ln_2 = joint, nn.Identity()
    head = folded.lm_head
    weight, bias = fold(head.weight.T, torch.zeros_like(head.weight[:, 0]), _body(folded).ln_f)
    head.weight, head.bias = nn.Parameter(weight.T.contiguous()), nn.Parameter(bias)
    folded.config.tie_word_embeddings = False
    _body(folded).ln_f = nn.Identity()
    return folded


@torch.no_grad()
def export_lnfree_gpt2(model: GPT2LMHeadModel) -> GPT2LMHeadModel:
    """The norm-free model as an ordinary GPT-2 that any tool loads: huge epsilon, gains that undo it.

    V's own scale, which an ordinary GPT-2 has no place for, goes into its weights. Keep the result in float32.
    """
    plain = _restored(model)
    plain.config.layer_norm_epsilon = EXPORT_EPS

    def norm_of(fake: FakeLayerNorm, path: str = "main") -> nn.LayerNorm:
        norm = nn.LayerNorm(len(fake.weight), eps=EXPORT_EPS).to(fake.weight)
        norm.weight.copy_(fake.weight * (math.sqrt(EXPORT_EPS) / fake.scale(path)))
        norm.bias.copy_(fake.bias)
        return norm

    for block in _body(plain).h:
        norm, joint, cut = block.attn.c_attn.norm, block.attn.c_attn.projection, 2 * plain.config.n_embd
        ratio = norm.scale("qk") / norm.scale("v")
        joint.bias[cut:] += (1 - ratio) * (norm.bias @ joint.weight[:, cut:])
        joint.weight[:, cut:] *= ratio
        block.ln_1, block.ln_2, block.attn.c_attn = norm_of(norm, "qk"), norm_of(block.ln_2), joint
    _body(plain).ln_f = norm_of(_body(plain).ln_f)
    return plain


def final_scale(model: GPT2LMHeadModel, residual: Tensor) -> Tensor:
    """What the last norm divides residuals (..., d) by: their own deviations (...,), or its constant."""
    norm = _body(model).ln_f
    if isinstance(norm, FakeLayerNorm) and norm.frozen["main"]:
        return norm.scale()[0].expand(residual.shape[:-1])
    return deviation(residual, norm.eps)


@torch.no_grad()
def _final_writes(model: GPT2LMHeadModel, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Last position's final residual (B, d), and what each head wrote into it (L, H, B, d)."""
    parts, final = architecture(model), Site("final_resid")
    heads = {Site("head_out", layer): parts.output_weights(layer) for layer in range(parts.n_layers)}
    with capture(model, [final, *heads]) as seen:
        model(tokens, use_cache=False, logits_to_keep=1)
    writes = [torch.einsum("bhe,hed->hbd", seen[site][:, -1], weight) for site, weight in heads.items()]
    return seen[final][:, -1], torch.stack(writes)


@torch.no_grad()
def direct_logit_attribution(model: GPT2LMHeadModel, tokens: Tensor, targets: Tensor) -> Tensor:
    """Logit of `targets` (B,) at the last position that each head is credited with, (L, H, B).

    The head's centred write, divided by what the last norm divides the whole residual by ("frozen LN"), times gain
    and unembedding.
    """
    residual, writes = _final_writes(model, tokens)
    centred = writes - writes.mean(-1, keepdim=True)
    readout = _body(model).ln_f.weight * model.lm_head.weight[targets]
    return torch.einsum("lhbd,bd->lhb", centred, readout / final_scale(model, residual)[:, None])


@torch.no_grad()
def direct_effect(model: GPT2LMHeadModel, tokens: Tensor, targets: Tensor) -> Tensor:
    """Fall of the targets' logit when a head's write leaves the final residual and the norm acts anew, (L, H, B)."""
    residual, writes = _final_writes(model, tokens)

    def logit(final: Tensor) -> Tensor:
        return (_body(model).ln_f(final) * model.lm_head.weight[targets]).sum(-1)

    return logit(residual) - logit(residual - writes)


def nmae(predicted: Tensor, true: Tensor, dim: int | tuple[int, ...] = -1) -> Tensor:
    """Mean absolute error over the mean absolute truth along `dim`, in per cent."""
    if predicted.shape != true.shape:
        raise ValueError(f"shapes differ: {tuple(predicted.shape)} against {tuple(true.shape)}")
    return 100 * (predicted - true).abs().mean(dim) / true.abs().mean(dim)


def _streams(model: nn.Module, tokens: Tensor, detach: bool = True) -> tuple[Tensor, list[Tensor]]:
    """Last-position logits (B, V), and the residual stream (B, S, d) entering each block."""
    sites = [Site("resid_pre", layer) for layer in range(architecture(model).n_layers)]
    with capture(model, sites, detach=detach) as seen:
        logits = model(tokens, use_cache=False, logits_to_keep=1).logits[:, -1]
    return logits, [seen[site] for site in sites]


@torch.no_grad()
def activation_patching(
    model: nn.Module, clean: Tensor, corrupted: Tensor, metric: Metric, fraction: float = 1.0
) -> Tensor:
    """Change of the metric when one cell of the corrupted run is moved to its clean value, (L, S, B).

    A cell is the residual stream entering a block at one position. All positions of a layer run as one batch; those
    before the first difference of any pair have no effect and are not run.

    Args:
        model: any decoder that ``lib.substrates.hooks`` knows.
        clean: token ids (B, S).
        corrupted: token ids (B, S), the partners of `clean`.
        metric: maps last-position logits (..., B, V) to (..., B).
        fraction: share of the way from the corrupted to the clean value.
    """
    _check_pairs(clean, corrupted)
    (pairs, length), first = clean.shape, int((clean != corrupted).any(0).int().argmax())
    (_, wanted), (logits, given) = _streams(model, clean), _streams(model, corrupted)
    baseline = metric(logits)
    effects = baseline.new_zeros(len(given), length, pairs)
    cells = torch.eye(length, device=clean.device, dtype=logits.dtype)[first:, None, :, None]
    for layer, (start, goal) in enumerate(zip(given, wanted, strict=True)):
        moved = (start + fraction * cells * (goal - start)).flatten(0, 1)
        with patch(model, {Site("resid_pre", layer): moved}):
            logits = model(corrupted.repeat(length - first, 1), use_cache=False, logits_to_keep=1).logits[:, -1]
        effects[layer, first:] = metric(logits.unflatten(0, (-1, pairs))) - baseline
    return effects


def attribution_patching(model: nn.Module, clean: Tensor, corrupted: Tensor, metric: Metric) -> Tensor:
    """First-order estimate of :func:`activation_patching`, every cell from one backward pass, (L, S, B)."""
    _check_pairs(clean, corrupted)
    with torch.enable_grad():
        _, wanted = _streams(model, clean)
        logits, given = _streams(model, corrupted, detach=False)
        gradients = torch.autograd.grad(metric(logits).sum(), given)
    estimates = [(g * (goal - start)).sum(-1).T for g, goal, start in zip(gradients, wanted, given, strict=True)]
    return torch.stack(estimates).detach()


def _check_pairs(clean: Tensor, corrupted: Tensor) -> None:
    if clean.ndim != 2 or clean.shape != corrupted.shape:
        raise ValueError(
            f"pairs are two (B, S) tensors of one shape, not {tuple(clean.shape)}, {tuple(corrupted.shape)}"
        )
    if torch.equal(clean, corrupted):
        raise ValueError("clean and corrupted tokens are the same: there is nothing to patch")


@torch.no_grad()
def unembedding_null_space(model: GPT2LMHeadModel) -> Tensor:
    """Orthonormal directions (n, d), all centred, whose writes into the final residual reach no logit but by the norm.

    Null space of W_U diag(gain) (I - 11^T / d), without the direction 1, which the centring removes anyway; empty
    where the vocabulary is at least as large as d.
    """
    rows = model.lm_head.weight * _body(model).ln_f.weight
    ones = torch.full_like(rows[:1], float(rows.abs().max()))  # of the rows' size: an export's gains are huge
    rows = torch.cat([rows - rows.mean(-1, keepdim=True), ones])
    _, singular, basis = torch.linalg.svd(rows, full_matrices=len(rows) < rows.shape[1])
    tolerance = singular[0] * max(rows.shape) * torch.finfo(rows.dtype).eps
    return basis[int((singular > tolerance).sum()) :]


@torch.no_grad()
def neuron_ablation(model: GPT2LMHeadModel, windows: Tensor, neurons: Tensor, keep_scale: bool = False) -> Tensor:
    """Mean |change| of cross-entropy and entropy, nats, when last-layer MLP neurons (k,) are mean-ablated, (2, k).

    Only the last norm and the unembedding come after these neurons, so they are simulated from the final residual.

    Args:
        model: with or without norms.
        windows: token ids (B, S + 1).
        neurons: indices; each is ablated alone.
        keep_scale: divide by the unablated residual's deviation, which leaves only what does not act by the norm.
    """
    layer = architecture(model).n_layers - 1
    activation, final = Site("mlp_act", layer), Site("final_resid")
    with capture(model, [activation, final]) as seen:
        model(windows[:, :-1], use_cache=False)
    fires, residual = seen[activation][..., neurons], seen[final]
    change = (fires.mean((0, 1)) - fires).movedim(-1, 0)[..., None]
    ablated = residual + change * _body(model).h[layer].mlp.c_proj.weight[neurons][:, None, None]
    norm = _body(model).ln_f

    def losses(x: Tensor, scale: Tensor) -> Tensor:
        normed = (x - x.mean(-1, keepdim=True)) / scale[..., None] * norm.weight + norm.bias
        log_p = model.lm_head(normed).log_softmax(-1)
        targets = windows[:, 1:, None].expand(*log_p.shape[:-1], 1)
        return torch.stack([-log_p.gather(-1, targets)[..., 0], -(log_p.exp() * log_p).sum(-1)])

    scale = final_scale(model, residual)
    after = losses(ablated, scale if keep_scale else final_scale(model, ablated))
    return (after - losses(residual, scale)[:, None]).abs().mean((-2, -1))


def calibration_error(logits: Tensor, targets: Tensor, bins: int = 15) -> float:
    """Expected calibration error: mean |accuracy - confidence| over equal-width bins of the top probability.

    Args:
        logits: (N, V).
        targets: (N,) token ids.
        bins: number of bins.
    """
    if len(logits) != len(targets) or not len(targets):
        raise ValueError(f"calibration takes one target a row, not {len(targets)} for {len(logits)} rows")
    confidence, guess = logits.softmax(-1).max(-1)
    gap = (guess == targets).to(confidence) - confidence
    sums = gap.new_zeros(bins).index_add(0, (confidence * bins).long().clamp(max=bins - 1), gap)
    return float(sums.abs().sum() / len(targets))


def sink_rate(attentions: Sequence[Tensor], threshold: float = 0.3) -> float:
    """Share of (head, query) pairs that give the first position more than `threshold`; the first query is left out.

    Args:
        attentions: per layer, weights (B, H, S, S).
        threshold: of the attention weight.
    """
    if not len(attentions):
        raise ValueError("the model gave no attention weights: set its attention implementation to eager")
    return float((torch.stack(tuple(attentions))[..., 1:, 0] > threshold).float().mean())
