"""Rows by expert. The order of a router's choices, and the weighted sums of their results.

route_of  indices and factors (rows, k)   -> the rows' order by expert, and where each expert's begin
permuted  rows in that order or back      gradients are a permutation too: torch's sort, or add rows one by one
routed    x, and products of sorted rows  -> the sums of each row's own experts
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.autograd.function import FunctionCtx

from ..errors import OperandError, TensorError
from ..torch_op.autograd.kept import recorder
from ..torch_op.checks import PLAIN, autocast_type, cast, differentiated, has_tangent, transforms

Mlp = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # (rows of all experts, offsets) -> as many rows


class Route(NamedTuple):
    """Rows sorted by expert, k for each row of x. Row i is row order[i] // k of x.

    offsets  expert e has rows offsets[e] to offsets[e + 1]
    factors  (rows of x, k): of the sums, 0 for an index of no expert.
    outside  (rows of x, k): whether an index is one of no expert
    """

    order: torch.Tensor
    offsets: torch.Tensor
    factors: torch.Tensor
    outside: torch.Tensor

    @property
    def sources(self) -> torch.Tensor:
        """The row of x of each sorted row."""
        return self.order // self.factors.shape[-1]

    @property
    def sorted_factors(self) -> torch.Tensor:
        """The factor of each sorted row."""
        return self.factors.reshape(-1).index_select(0, self.order)


def route_of(x: torch.Tensor, rows: int, index: torch.Tensor, weights: torch.Tensor, experts: int) -> Route:
    """The rows of x by expert, of x with so many rows. Raises as `routed` does."""
    if index.dtype not in (torch.int32, torch.int64):
        raise OperandError(f"index is {index.dtype}: a row's experts are int32 or int64")
    if index.ndim != 2 or index.shape[0] != rows or index.shape != weights.shape:
        raise TensorError(
            f"index has shape {list(index.shape)} and weights {list(weights.shape)}: both are ({rows}, k), k "
            f"experts for each row of x of shape {list(x.shape)}"
        )
    known = index.clamp(0, experts - 1)
    of_rows, order = known.reshape(-1).sort(stable=True)
    every = torch.arange(experts + 1, device=of_rows.device, dtype=of_rows.dtype)
    outside = known != index
    return Route(order, torch.searchsorted(of_rows, every), weights.float().masked_fill(outside, 0), outside)


def routed(x: torch.Tensor, index: torch.Tensor, weights: torch.Tensor, experts: int, mlp: Mlp) -> torch.Tensor:
    """The sums for x (..., features), of x's shape.

    index, weights  (rows of x, k): each row's experts, and their factors. An index of no expert counts as 0
    mlp             of rows (rows, features), where expert e has offsets[e] to offsets[e + 1]

    Raises OperandError for indices that are no integers, TensorError for other shapes.
    """
    rows = cast(x.reshape(-1, x.shape[-1]), autocast_type(x))
    route = route_of(x, rows.shape[0], index, weights, experts)
    order = route.order
    back = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device=order.device))
    read = permuted(rows, order, back, index.shape[-1])
    each = permuted(mlp(read, route.offsets), back, order).view(*index.shape, x.shape[-1])
    return shaped_as((each * route.factors[..., None]).sum(-2).to(rows.dtype), x)


def shaped_as(rows: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Rows in x's shape. Matrices stay what they are: FSDP warns of modules that return a view."""
    return rows if x.ndim == 2 else rows.view(x.shape)


class _Permuted(torch.autograd.Function):
    """Rows in another order, each one `each` times. torch's own gradients sort or add the rows; this one permutes."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: torch.Tensor, to: torch.Tensor, back: torch.Tensor, each: int) -> torch.Tensor:
        ctx.save_for_backward(to, back)
        ctx.each = each
        return x.index_select(0, to // each if each > 1 else to)

    @staticmethod
    def backward(ctx: FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (to, back), each = ctx.saved_tensors, ctx.each
        found = permuted(grad, back, to)
        if each > 1:  # torch.autograd.grad(is_grads_batched=True) has no unflatten
            found = found.reshape(found.shape[0] // each, each, *found.shape[1:]).sum(1)
        return found, None, None, None


_record = recorder(_Permuted)


def permuted(x: torch.Tensor, to: torch.Tensor, back: torch.Tensor, each: int = 1) -> torch.Tensor:
    """The rows to[i] of x, each of whose rows counts `each` times. `to` is a permutation, and `back` its inverse.

    >>> permuted(torch.tensor([[5], [6], [7]]), torch.tensor([2, 0, 1]), torch.tensor([1, 2, 0])).flatten().tolist()
    [7, 5, 6]
    """
    plain = torch.compiler.is_compiling() or not differentiated(x) or not x.numel() or x.is_nested
    if plain or transforms() or has_tangent(x) or type(x) not in PLAIN:
        return x[to // each] if each > 1 else x[to]
    return _record(x, to, back, each)
