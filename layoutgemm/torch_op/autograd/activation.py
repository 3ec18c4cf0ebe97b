"""The activation of a product that autograd records: torch's operators, or for a gate one kernel each way.

gate      h = [gate | up]    y = act(gate) * up    dh = [dy * up * act'(gate) | dy * act(gate)]
recorded  torch computes act(gate), keeps it beside h, and makes three passes over halves whose rows are apart;
          the kernels (`kernels.gates`) read h and dy once, and keep h alone
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence

import torch
import torch.autograd.forward_ad as _forward
from torch.autograd.function import FunctionCtx

from ...kernels.gates.plan import LEAST_ACCESS, GatePlan
from ...kernels.plan import MAX_COORDINATE
from ..bias_activation import ACTIVATIONS, GATES
from ..checks import PLAIN, in_older_vmap, modes_of_dispatch, modes_of_functions, tracing_state, transforms
from ..launch import DirectLaunch, alignment, current_device, raw_stream
from ..prepared import on_gpu, target
from ..types import C_NAMES
from .kept import recorder

_KINDS = (torch.bfloat16, torch.float16, torch.float32)


def by_autograd(c: torch.Tensor, activation: str) -> torch.Tensor:
    """An activation or a gate of a product in its own type: what autograd records is small.

    A gate rounds once where a kernel computes it, and act(gate) as well where torch does.

    >>> by_autograd(torch.tensor([[0.0, 2.0, 3.0, 5.0]]), "geglu")
    tensor([[0.0000, 9.7725]])
    """
    if activation not in GATES:
        return ACTIVATIONS[activation](c)
    if access := _of_kernel(c):
        return _record(c, GATES[activation], access)
    return _by_torch(c, GATES[activation])


def gate(h: torch.Tensor, activation: str) -> torch.Tensor:
    """A gate of [gate | up] where nothing is recorded.

    >>> gate(torch.tensor([[0.0, 2.0, 3.0, 5.0]]), "geglu")
    tensor([[0.0000, 9.7725]])
    """
    access = _of_kernel(h)
    return _gate(h, GATES[activation], access) if access else _by_torch(h, GATES[activation])


def gate_gradient(h: torch.Tensor, dy: torch.Tensor, activation: str) -> torch.Tensor:
    """The gradient of h of that gate, of the gradient dy of its result.

    >>> gate_gradient(torch.tensor([[0.0, 3.0]]), torch.tensor([[1.0]]), "swiglu")
    tensor([[1.5000, 0.0000]])
    """
    access, kind = _of_kernel(h), GATES[activation]
    if not access or torch.is_grad_enabled() or not _is_launched(dy):
        return _gradient_by_torch(h, dy, kind)
    return _gradient(h, dy, kind, access)


def _of_kernel(h: torch.Tensor) -> int:
    """Bytes of a load of the kernels of [gate | up]; 0 where torch's operators compute."""
    return _access(h, 2) if _is_launched(h) and on_gpu(h.get_device()) and h.shape[-1] % 2 == 0 else 0


def _is_launched(*tensors: torch.Tensor) -> bool:
    """True for plain tensors without modes, transforms and traces; autocast changes no type here."""
    return (
        not torch.compiler.is_compiling()
        and all(type(x) in PLAIN for x in tensors)
        and not (modes_of_functions() or modes_of_dispatch() or transforms() or any(map(in_older_vmap, tensors)))
        and _forward._current_level < 0
        and tracing_state() is None
    )


def _by_torch(h: torch.Tensor, kind: str) -> torch.Tensor:
    gate, up = h.chunk(2, -1)  # their gradients are one tensor again, by one kernel
    return ACTIVATIONS[kind](gate) * up


class _Gate(torch.autograd.Function):
    """A gate by a kernel, and its gradient by another; by torch's operators where that is derived or transformed."""

    @staticmethod
    def forward(ctx: FunctionCtx, h: torch.Tensor, kind: str, access: int) -> torch.Tensor:
        ctx.save_for_backward(h)
        ctx.facts = kind, access
        return _gate(h, kind, access)

    @staticmethod
    def backward(ctx: FunctionCtx, dy: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (h,), (kind, access) = ctx.saved_tensors, ctx.facts
        if torch.is_grad_enabled() or not _is_launched(h, dy):
            return _gradient_by_torch(h, dy, kind), None, None
        return _gradient(h, dy, kind, access), None, None


_record = recorder(_Gate)


def _gate(h: torch.Tensor, kind: str, access: int) -> torch.Tensor:
    *front, wide = h.shape
    y = _empty((*front, wide // 2), h)
    _launch(h, kind, access, (h, y))
    return y


def _gradient(h: torch.Tensor, dy: torch.Tensor, kind: str, access: int) -> torch.Tensor:
    dy = dy.contiguous()
    if not (of_dy := _access(dy)):  # at an odd address, or to be negated
        dy = dy.clone()
        of_dy = _access(dy)
    dh = _empty(h.shape, h)
    _launch(h, kind, min(access, of_dy), (h, dy, dh))
    return dh


def _gradient_by_torch(h: torch.Tensor, dy: torch.Tensor, kind: str) -> torch.Tensor:
    """The gradient of h, itself recorded where derivatives are."""
    gate, up = h.chunk(2, -1)
    if not torch.is_grad_enabled():
        return torch.cat([_BACKWARD[kind](dy * up, gate), dy * ACTIVATIONS[kind](gate)], -1)
    value = ACTIVATIONS[kind](gate)  # torch's backward operators have no derivatives of their own
    (of_gate,) = torch.autograd.grad(value, gate, dy * up, create_graph=True)
    return torch.cat([of_gate, dy * value], -1)


_BACKWARD: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "silu": torch.ops.aten.silu_backward,
    "gelu": torch.ops.aten.gelu_backward,
}


def _access(x: torch.Tensor, halves: int = 1) -> int:
    """Bytes of a load of contiguous rows, `halves` beside each other; 0 where no kernel takes them."""
    if x.dtype not in _KINDS or not x.is_contiguous() or not x.numel() or x.numel() > MAX_COORDINATE or x.is_neg():
        return 0
    found = alignment(x.data_ptr(), x.shape[-1] // halves * x.element_size())
    return found if found >= LEAST_ACCESS else 0


def _launch(h: torch.Tensor, kind: str, access: int, operands: Sequence[torch.Tensor]) -> None:
    """Launch the kernel of two tensors, or the gradient's of three."""
    index, n = h.get_device(), h.shape[-1] // 2
    with contextlib.nullcontext() if index == current_device() else torch.cuda.device(index):
        direct = _prepared(h.numel() // h.shape[-1], n, C_NAMES[h.dtype], kind, len(operands) > 2, access, index)
        direct.launch([x.data_ptr() for x in operands], raw_stream(index))


@functools.lru_cache(256)
def _prepared(m: int, n: int, source: str, kind: str, gradient: bool, access: int, index: int) -> DirectLaunch:
    plan = GatePlan(source, kind, gradient, access, target(index)[0])
    places = tuple(range(3 if gradient else 2))
    return DirectLaunch(plan.compile(), (*[0 for _ in places], m, n, 2 * n), places, index, plan)


def _empty(shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    return torch.empty(shape, dtype=like.dtype, device=like.device)
