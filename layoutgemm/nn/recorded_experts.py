"""Gated experts that autograd records. One node, of products that read and write rows by index.

    forward   h = x[source] @ first        a = gate(h)      y[row] += factor * (a @ down)
    backward  g = dy[source]               p = g @ down^T   dfactor = sum(p * a)      ddown  = (factor * a)^T @ g
              dh = gate'(h) * factor * p                    dx[row] += dh @ first^T   dfirst = x[source]^T @ dh

Sorted rows are not kept: x and h are. No pass goes over rows of x's width in float32, and rows that have left their
order are not sorted back: products place them. One kernel reads h and p, and makes dh, factor * a and dfactor. Where
the backward pass is itself recorded, or transformed, its derivatives are those of the single operators.
"""

from __future__ import annotations

import torch
from torch.autograd.function import FunctionCtx

from ..torch_op.autograd.activation import by_autograd, gate, weighted_gradient
from ..torch_op.autograd.kept import recorder
from ..torch_op.checks import PLAIN, differentiated, in_older_vmap, seen_by_autograd_alone
from ..torch_op.scaled_grouped import grouped_matmul
from ..torch_op.scaled_grouped.api import gradients_of
from ..torch_op.scaled_grouped.grouped import OFFSETS
from .routing import permuted, route_of

_KINDS = (torch.bfloat16, torch.float16)  # whose products have derivatives


def recorded_alone(x: torch.Tensor, *others: torch.Tensor) -> bool:
    """True for plain tensors that autograd records, and nothing else has to see."""
    if torch.compiler.is_compiling() or type(x) not in PLAIN or x.dtype not in _KINDS or not (x.is_cuda or x.is_cpu):
        return False
    device = x.device
    for each in (x, *others):
        if type(each) not in PLAIN or each.device != device or each.layout is not torch.strided:
            return False
    return differentiated(x, *others) and seen_by_autograd_alone()


def recorded_experts(
    x: torch.Tensor, index: torch.Tensor, weights: torch.Tensor, first: torch.Tensor, down: torch.Tensor,
    activation: str,
) -> torch.Tensor:  # fmt: skip
    """The sums of gated experts for rows x (rows, features), of x's shape.

    index, weights  as `routed` has them
    first, down  (experts, features, 2 * hidden) of [gate | up], and (experts, hidden, features)
    activation   "swiglu" or "geglu"
    """
    return _record(x, weights, first, down, index, activation)


class _RecordedExperts(torch.autograd.Function):
    """The sums, with gradients of x, the weights and both matrices. The route is no part of what autograd records."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, x: torch.Tensor, weights: torch.Tensor, first: torch.Tensor, down: torch.Tensor,
        index: torch.Tensor, activation: str,
    ) -> torch.Tensor:  # fmt: skip
        route = route_of(x, x.shape[0], index, weights, first.shape[0])
        source, of_rows = route.sources, route.sorted_factors
        h = grouped_matmul(x, first, route.offsets, rows=source)
        hidden = gate(h, activation)
        facts = route.order, route.offsets, route.outside
        ctx.save_for_backward(x, weights, first, down, *facts, source, of_rows, h)
        ctx.activation = activation
        return _placed_sums(hidden, down, route.offsets, route.order, weights.shape, of_rows)

    @staticmethod
    def backward(ctx: FunctionCtx, dy: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        if dy is None:
            return (None,) * 6
        x, weights, first, down, order, offsets, outside, source, of_rows, h = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:4]
        if torch.is_grad_enabled() or not _alone(dy):
            operands, facts = (x, weights, first, down), (order, offsets, outside)
            return *_by_operators(operands, facts, ctx.activation, dy, wanted), None, None
        g = dy.index_select(0, source)
        dh, weighted, sums = weighted_gradient(h, grouped_matmul(g, down.mT, offsets), of_rows, ctx.activation)
        of_x = of_weights = of_first = of_down = None
        if wanted[0]:
            of_x = _placed_sums(dh, first.mT, offsets, order, weights.shape)
        if wanted[1]:
            placed = torch.empty_like(sums).scatter_(0, order, sums).view(weights.shape)
            of_weights = placed.masked_fill_(outside, 0).to(weights.dtype)
        if wanted[2]:
            _, of_first = gradients_of(x.index_select(0, source), first, offsets, OFFSETS, (False, True), dh)
        if wanted[3]:
            _, of_down = gradients_of(weighted, down, offsets, OFFSETS, (False, True), g)
        return of_x, of_weights, of_first, of_down, None, None


_record = recorder(_RecordedExperts)


def _alone(dy: torch.Tensor) -> bool:
    """True for a gradient that nothing but the backward pass has to see."""
    return type(dy) in PLAIN and not in_older_vmap(dy) and not dy._is_zerotensor() and seen_by_autograd_alone()


def _placed_sums(
    rows: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor, order: torch.Tensor, shape: torch.Size,
    factors: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """The products of sorted rows, times a factor each, summed over a row's own experts; `shape` is (rows, k)."""
    each = rows.new_empty(order.numel(), b.shape[-1])  # the order names each row once
    grouped_matmul(rows, b, offsets, out_rows=order, row_weights=factors, out=each)
    return each.view(*shape, b.shape[-1]).sum(-2)


def _by_operators(
    operands: tuple[torch.Tensor, ...], facts: tuple[torch.Tensor, ...], activation: str, dy: torch.Tensor,
    wanted: tuple[bool, ...],
) -> tuple[torch.Tensor | None, ...]:  # fmt: skip
    """The gradients of the wanted operands, which are recorded where derivatives are.

    facts  the route's order, offsets, and which indices are of no expert
    """
    order, offsets, outside = facts
    recorded = torch.is_grad_enabled()
    with torch.enable_grad():
        if not recorded:  # of what the backward pass of torch.vmap, for one, sees
            operands = tuple([x.detach().requires_grad_(asked) for x, asked in zip(operands, wanted)])
        x, weights, first, down = operands
        factors = weights.float().masked_fill(outside, 0)
        back = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device=order.device))
        sorted_rows = permuted(x, order, back, factors.shape[-1])
        hidden = by_autograd(grouped_matmul(sorted_rows, first, offsets), activation)
        each = permuted(grouped_matmul(hidden, down, offsets), back, order).view(*factors.shape, x.shape[-1])
        y = (each * factors[..., None]).sum(-2).to(x.dtype)
        asked = [x for x, want in zip(operands, wanted) if want]
        found = iter(torch.autograd.grad(y, asked, dy, create_graph=recorded))
    return tuple([next(found) if want else None for want in wanted])
