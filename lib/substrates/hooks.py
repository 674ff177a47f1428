"""Reading and writing the inside of Hugging Face decoders by forward hooks.

A :class:`Site` names a place, :func:`capture` reads it, :func:`patch` writes it. Both are context managers that
leave the model as it was. What differs between families of models is held by :mod:`lib.substrates.architecture`
alone. Contexts nest, and hooks run in the order of entering: a capture entered inside a patch reads the patched
values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from lib.substrates.architecture import Architecture, architecture
from lib.substrates.names import describe_names

Kind = Literal["resid_pre", "resid_mid", "resid_post", "attn_out", "head_out", "mlp_out", "mlp_act", "final_resid"]
Edit = Tensor | Callable[[Tensor], Tensor]
Act = Callable[[Tensor], Tensor | None]


@dataclass(frozen=True)
class Site:
    """A place in a decoder, shapes for B sequences of S tokens, width d, H heads of size D, MLP width m.

    ============  ==============================================================  ============
    kind          activation                                                      shape
    ============  ==============================================================  ============
    resid_pre     residual stream entering block `layer`                          (B, S, d)
    resid_mid     residual stream between attention and MLP (input of norm 2)     (B, S, d)
    resid_post    residual stream leaving the block                               (B, S, d)
    attn_out      what attention adds to the residual stream                      (B, S, d)
    head_out      per-head input of attention's output projection                 (B, S, H, D)
    mlp_act       MLP neurons after the nonlinearity                              (B, S, m)
    mlp_out       what the MLP adds to the residual stream                        (B, S, d)
    final_resid   input of the final norm; takes no layer                         (B, S, d)
    ============  ==============================================================  ============
    """

    kind: Kind
    layer: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"no site {self.kind!r}; {describe_names(str(self.kind), get_args(Kind))}")
        if (self.layer is None) != (self.kind == "final_resid"):
            raise ValueError(f"{self.kind} takes {'no layer' if self.layer is not None else 'a layer'}")


@contextmanager
def capture(model: nn.Module, sites: Iterable[Site], detach: bool = True) -> Iterator[dict[Site, Tensor]]:
    """Records the activations at `sites` in every forward pass of the body; a later pass overwrites an earlier one.

    With ``detach=False`` the recorded tensors are those of the graph, so that
    ``torch.autograd.grad(metric, list(store.values()))`` gives the gradient at each site.

    Raises:
        ValueError: for an unknown architecture, a layer out of range, or ``resid_mid`` in a parallel block.
    """
    store: dict[Site, Tensor] = {}

    def reader(site: Site) -> Act:
        def read(activation: Tensor) -> Tensor | None:
            store[site] = activation.detach().clone() if detach else activation
            # Handing the tensor back keeps a reshaped activation on the path from input to output.
            return None if detach else activation

        return read

    parts = architecture(model)
    with ExitStack() as undo:
        for site in sites:
            for handle in _attach(parts, site, reader(site)):
                undo.callback(handle.remove)
        yield store


@contextmanager
def patch(model: nn.Module, edits: Mapping[Site, Edit]) -> Iterator[None]:
    """Replaces activations in every forward pass of the body.

    An edit is a tensor, broadcast to the activation's shape, or a function of the activation. Downstream of the
    site everything is recomputed. ``resid_mid`` is set by way of what attention adds, hence up to rounding.

    Raises:
        ValueError: as :func:`capture`; in the forward pass, if an edit's shape, type or device does not fit.
    """
    parts = architecture(model)
    with ExitStack() as undo:
        for site, edit in edits.items():
            write = _writer(site, edit)
            attach = _attach_resid_mid if site.kind == "resid_mid" else _attach
            for handle in attach(parts, site, write):
                undo.callback(handle.remove)
        yield


def _writer(site: Site, edit: Edit) -> Callable[[Tensor], Tensor]:
    def write(activation: Tensor) -> Tensor:
        new = edit(activation) if callable(edit) else edit
        where = f"the edit of {site.kind}" + ("" if site.layer is None else f" in layer {site.layer}")
        if not isinstance(new, Tensor):
            raise ValueError(f"{where} must give a tensor, not {type(new).__name__}")
        if (new.dtype, new.device) != (activation.dtype, activation.device):
            raise ValueError(
                f"{where} is {new.dtype} on {new.device}, the activation {activation.dtype} on {activation.device}"
            )
        try:
            return new.expand_as(activation)
        except RuntimeError as error:
            raise ValueError(
                f"{where} has shape {tuple(new.shape)}, the activation {tuple(activation.shape)}: they must agree"
            ) from error

    return write


def _place(parts: Architecture, site: Site) -> tuple[nn.Module, bool]:
    """The module that has the site as its input (True) or as its output (False)."""
    if site.layer is None:
        return parts.final_norm, True
    if not 0 <= site.layer < parts.n_layers:
        raise ValueError(f"layer {site.layer} is out of range: the model has layers 0 to {parts.n_layers - 1}")
    if site.kind == "resid_mid" and parts.parallel:
        raise ValueError("resid_mid does not exist here: attention and MLP read the same residual stream")
    modules, is_input = {
        "resid_pre": (parts.blocks, True),
        "resid_mid": (parts.second_norms, True),
        "resid_post": (parts.blocks, False),
        "attn_out": (parts.attentions, False),
        "head_out": (parts.projections, True),
        "mlp_act": (parts.mlp_downs, True),
        "mlp_out": (parts.mlps, False),
    }[site.kind]
    return modules[site.layer], is_input


def _attach(parts: Architecture, site: Site, act: Act) -> list[RemovableHandle]:
    """Hooks `act` onto the site: it gets the activation and may return another in its place."""
    module, is_input = _place(parts, site)
    shaped = _by_head(act, parts) if site.kind == "head_out" else act
    return [_on_input(module, shaped) if is_input else _on_output(module, shaped)]


def _by_head(act: Act, parts: Architecture) -> Act:
    def act_on_flat(flat: Tensor) -> Tensor | None:
        new = act(flat.unflatten(-1, (parts.n_heads, parts.head_dim)))
        return None if new is None else new.flatten(-2)

    return act_on_flat


def _attach_resid_mid(parts: Architecture, site: Site, write: Callable[[Tensor], Tensor]) -> list[RemovableHandle]:
    # The block adds its MLP's output to its own reference of this stream, which no hook reaches; but the stream is
    # the block's input plus attention's output, and that output can be moved by the difference.
    _place(parts, site)
    assert site.layer is not None
    entering: list[Tensor] = []

    def remember(activation: Tensor) -> None:
        entering[:] = [activation]

    def shift(attention: Tensor) -> Tensor:
        middle = entering.pop() + attention
        return attention + (write(middle) - middle)

    return [_on_input(parts.first_norms[site.layer], remember), _on_output(parts.attentions[site.layer], shift)]


def _on_input(module: nn.Module, act: Act) -> RemovableHandle:
    def hook(_: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        new = act(args[0] if args else kwargs["hidden_states"])
        if new is None:
            return None
        return ((new, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": new})

    return module.register_forward_pre_hook(hook, with_kwargs=True)


def _on_output(module: nn.Module, act: Act) -> RemovableHandle:
    def hook(_: nn.Module, __: tuple, output: Tensor | tuple) -> Tensor | tuple | None:
        new = act(output if isinstance(output, Tensor) else output[0])
        if new is None or isinstance(output, Tensor):
            return new
        return (new, *output[1:])

    return module.register_forward_hook(hook)
