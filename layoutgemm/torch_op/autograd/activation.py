"""The activation of a product that autograd records. Torch's operators, or for a gate one kernel each way.

gate      h = [gate | up]    y = act(gate) * up    dh = [dy * up * act'(gate) | dy * act(gate)]
recorded  torch computes act(gate), keeps it beside h, and makes three passes over halves whose rows are apart;
          the kernels (`kernels.gates`) read h and dy once, and keep h alone
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.autograd.forward_ad as _forward
from torch.autograd.function import FunctionCtx

from ...atoms.copy.base import VECTOR_BYTES
from ...kernels.compile.worker import compile_apart
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
    """An activation or a gate of a product in its own type. What autograd records is small.

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
    """A gate of [gate | up] in a node of autograd. Nothing is recorded there, and nothing else sees it.

    >>> gate(torch.tensor([[0.0, 2.0, 3.0, 5.0]]), "geglu")
    tensor([[0.0000, 9.7725]])
    """
    access = _of_halves(h)
    return _gate(h, GATES[activation], access) if access else _by_torch(h, GATES[activation])


class WeightedGate(NamedTuple):
    """The gradient of h, the rows factor * y, and each row's sum of dy * y."""

    of_h: torch.Tensor
    y: torch.Tensor
    of_factors: torch.Tensor


def behind_relu(grad: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """A gradient, or a tangent, of relu's result `c`: 0 where that is 0.

    >>> behind_relu(torch.ones(2).to(torch.float8_e5m2), torch.tensor([0.0, 3.0]).to(torch.float8_e5m2)).tolist()
    [0.0, 1.0]
    """
    if c.dtype.itemsize > 1:
        return torch.ops.aten.threshold_backward(grad, c, 0)
    return torch.ops.aten.threshold_backward(grad.float(), c.float(), 0).to(grad.dtype)  # torch has none of 8 bits


def weighted_gradient(h: torch.Tensor, dy: torch.Tensor, factors: torch.Tensor, activation: str) -> WeightedGate:
    """The gradients of factors * gate(h), and the weighted rows, in a node of autograd.

    One kernel makes them where rows are whole parts of warps.

    h, dy, factors  (rows, 2n), (rows, n) and float32 (rows,), of which nothing is recorded

    >>> found = weighted_gradient(torch.tensor([[1.0, 3.0]]), torch.ones(1, 1), torch.tensor([2.0]), "swiglu")
    >>> [round(x.item(), 4) for x in (found.y, found.of_factors)]
    [4.3864, 2.1932]
    """
    kind = GATES[activation]
    if _of_halves(h) == _access(dy) == VECTOR_BYTES and factors.is_contiguous():
        parts, rest = divmod(dy.shape[-1], _weighted_plan(C_NAMES[h.dtype], kind, h.get_device()).part)
        if not rest:
            found = WeightedGate(_empty(h.shape, h), _empty(dy.shape, h), _empty((len(h), parts), factors))
            _launch(h, kind, VECTOR_BYTES, (h, dy, found.of_h, factors, *found[1:]))
            return found._replace(of_factors=found.of_factors.sum(-1))
    with torch.no_grad():
        y, column = gate(h, activation), factors[:, None]
        of_h = _gradient_by_torch(h, (dy * column).to(dy.dtype), kind)
        return WeightedGate(of_h, (y * column).to(y.dtype), (dy * y).sum(-1, dtype=factors.dtype))


def _of_kernel(h: torch.Tensor) -> int:
    """Bytes of a load of the kernels of [gate | up]; 0 where torch's operators compute."""
    return _of_halves(h) if _is_launched(h) else 0


def _of_halves(h: torch.Tensor) -> int:
    """The same for a tensor that nothing else has to see."""
    return _access(h, 2) if on_gpu(h.get_device()) and h.shape[-1] % 2 == 0 else 0


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
    """A gate by a kernel, and its gradient by another. Torch's operators do it where that is derived or transformed."""

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
    """Launch the kernel of two tensors, the gradient's of three, the weighted one's of six."""
    index, n = h.get_device(), h.shape[-1] // 2
    with contextlib.nullcontext() if index == current_device() else torch.cuda.device(index):
        direct = _prepared(h.numel() // h.shape[-1], n, C_NAMES[h.dtype], kind, len(operands), access, index)
        direct.launch([x.data_ptr() for x in operands], raw_stream(index))


@functools.lru_cache(256)
def _prepared(m: int, n: int, source: str, kind: str, operands: int, access: int, index: int) -> DirectLaunch:
    if operands > 3:
        plan = _weighted_plan(source, kind, index)
    else:
        plan = GatePlan(source, kind, operands > 2, access, target(index)[0])
    places = tuple(range(operands))
    return DirectLaunch(compile_apart(plan), (*[0 for _ in places], m, n, 2 * n), places, index, plan)


@functools.lru_cache(64)
def _weighted_plan(source: str, kind: str, index: int) -> GatePlan:
    return GatePlan(source, kind, True, VECTOR_BYTES, target(index)[0], weighted=True)


def _empty(shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    return torch.empty(shape, dtype=like.dtype, device=like.device)
