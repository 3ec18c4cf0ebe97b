"""Gated experts that autograd records: one node, of products that read and write rows by index.

    forward   h = x[source] @ first        a = gate(h)      y[row] += factor * (a @ down)
    backward  g = dy[source]               p = g @ down^T   dfactor = sum(p * a)      ddown  = (factor * a)^T @ g
              dh = gate'(h) * factor * p                    dx[row] += dh @ first^T   dfirst = x[source]^T @ dh

Sorted rows are not kept: x, h and a are. No pass goes over rows of x's width in float32, and rows that have left their
order are not sorted back: products place them. Where the backward pass is itself recorded, or transformed, its
derivatives are those of the single operators.
"""

from __future__ import annotations

import torch
from torch.autograd.function import FunctionCtx

from ..torch_op.autograd.activation import by_autograd, gate, gate_gradient
from ..torch_op.autograd.kept import recorder
from ..torch_op.checks import PLAIN, differentiated, in_older_vmap, seen_by_autograd_alone
from ..torch_op.scaled_grouped import grouped_matmul
from ..torch_op.scaled_grouped.api import gradients_of
from ..torch_op.scaled_grouped.grouped import OFFSETS
from .routing import Route, permuted

_KINDS = (torch.bfloat16, torch.float16)  # whose products have derivatives


def recorded_alone(x: torch.Tensor, *others: torch.Tensor) -> bool:
    """True for plain tensors that autograd records, and nothing else has to see."""
    given = (x, *others)
    return (
        not torch.compiler.is_compiling()
        and all(type(each) in PLAIN and each.device == x.device and each.layout == torch.strided for each in given)
        and x.dtype in _KINDS
        and x.device.type in ("cuda", "cpu")
        and differentiated(*given)
        and seen_by_autograd_alone()
    )


def recorded_experts(
    x: torch.Tensor, route: Route, first: torch.Tensor, down: torch.Tensor, activation: str
) -> torch.Tensor:
    """The sums of gated experts for rows x (rows, features), of x's shape.

    first, down  (experts, features, 2 * hidden) of [gate | up], and (experts, hidden, features)
    activation   "swiglu" or "geglu"
    """
    return _record(x, route.factors, first, down, route.order, route.offsets, activation)


class _Experts(torch.autograd.Function):
    """The sums, and the gradients of x, of the factors and of both matrices of each expert."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, x: torch.Tensor, factors: torch.Tensor, first: torch.Tensor, down: torch.Tensor,
        order: torch.Tensor, offsets: torch.Tensor, activation: str,
    ) -> torch.Tensor:  # fmt: skip
        source, of_rows = order // factors.shape[-1], factors.reshape(-1)[order]
        h = grouped_matmul(x, first, offsets, rows=source)
        hidden = gate(h, activation)
        ctx.save_for_backward(x, factors, first, down, order, offsets, source, of_rows, h, hidden)
        ctx.activation = activation
        return _placed_sums(hidden, down, offsets, order, factors.shape, of_rows)

    @staticmethod
    def backward(ctx: FunctionCtx, dy: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        if dy is None:
            return (None,) * 7
        x, factors, first, down, order, offsets, source, of_rows, h, hidden = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:4]
        if torch.is_grad_enabled() or not _alone(dy):
            return (
                *_by_operators((x, factors, first, down), order, offsets, ctx.activation, dy, wanted),
                None,
                None,
                None,
            )
        column, g = of_rows[:, None], dy.index_select(0, source)
        weighted = torch.mul(hidden, column, out=torch.empty_like(hidden)) if wanted[3] else hidden
        p, of_down = gradients_of(weighted, down, offsets, OFFSETS, (any(wanted[:3]), wanted[3]), g)
        of_x = of_factors = of_first = None
        if p is not None:
            if wanted[1]:
                sums = (p * hidden).sum(-1, dtype=factors.dtype)
                of_factors = torch.empty_like(sums).scatter_(0, order, sums).view(factors.shape)
            if wanted[0] or wanted[2]:
                dh = gate_gradient(h, p.mul_(column), ctx.activation)
                if wanted[0]:
                    of_x = _placed_sums(dh, first.mT, offsets, order, factors.shape)
                if wanted[2]:
                    rows = x.index_select(0, source)
                    _, of_first = gradients_of(rows, first, offsets, OFFSETS, (False, True), dh)
        return of_x, of_factors, of_first, of_down, None, None, None


_record = recorder(_Experts)


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
    operands: tuple[torch.Tensor, ...], order: torch.Tensor, offsets: torch.Tensor, activation: str, dy: torch.Tensor,
    wanted: tuple[bool, ...],
) -> tuple[torch.Tensor | None, ...]:  # fmt: skip
    """The gradients of the wanted operands, which are recorded where derivatives are."""
    recorded = torch.is_grad_enabled()
    with torch.enable_grad():
        if not recorded:  # of what the backward pass of torch.vmap, for one, sees
            operands = tuple([x.detach().requires_grad_(asked) for x, asked in zip(operands, wanted)])
        x, factors, first, down = operands
        back = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device=order.device))
        sorted_rows = permuted(x, order, back, factors.shape[-1])
        hidden = by_autograd(grouped_matmul(sorted_rows, first, offsets), activation)
        each = permuted(grouped_matmul(hidden, down, offsets), back, order).view(*factors.shape, x.shape[-1])
        y = (each * factors[..., None]).sum(-2).to(x.dtype)
        asked = [x for x, want in zip(operands, wanted) if want]
        found = iter(torch.autograd.grad(y, asked, dy, create_graph=recorded))
    return tuple([next(found) if want else None for want in wanted])
