"""torch.ops.layoutgemm.indexed_matmul: products with row indices as torch's compiler and autograd see them.

With g the gradient of the product's rows, and u = g @ B^T, which gathers g from that of the result:

    dA[rows[i]] += row_weights[i] * u[i]     dB = A[rows]^T @ (row_weights * g)     d row_weights[i] = u[i] . A[rows[i]]

They are products, too, and have derivatives of their own. An activation or a gate that is recorded is torch's own,
of the product's rows in order; weights and `out_rows` follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch.autograd.function import FunctionCtx

from ...errors import OperandError, TensorError
from ...kernels.sm90.config import Sm90Config
from ..autograd.activation import by_autograd
from ..autograd.products import dense
from ..checks import derived_by_func, has_tangent, refuse_derivatives
from ..compiled.traced import checking_operator
from ..operators import dispatched, operator_of, with_autograd
from ..reference import rounded
from ..scaled_grouped.operators import differentiable, plain_config
from .added import added
from .product import IndexedCall, IndexedOperands, check_indexed, indexed_product
from .torch_rows import scattered, selected

_WAY_OUT = "use torch.no_grad(), or give its detach()"
Vector: TypeAlias = torch.Tensor | None


def _call(
    a: torch.Tensor, b: torch.Tensor, rows: torch.Tensor | None, out_rows: torch.Tensor | None,
    row_weights: torch.Tensor | None, offsets: torch.Tensor | None, activation: str | None,
    out_dtype: torch.dtype | None, config: str = "", copy_rows: bool | None = None,
) -> tuple[IndexedCall, IndexedOperands, Sm90Config | None, bool | None]:  # fmt: skip
    given = IndexedOperands(a, b, rows, out_rows, row_weights, offsets)
    return check_indexed(given, None, activation, out_dtype), given, plain_config(config), copy_rows


operator_of(
    "indexed_matmul",
    _call,
    lambda call, given, config, copies: indexed_product(call, given, config, copies=copies).contiguous(),
    lambda call, given, *_: given.a.new_empty(call.shape, dtype=call.kind),
)


def _checked(
    a: torch.Tensor, b: torch.Tensor, rows: Vector, out_rows: Vector, row_weights: Vector, offsets: Vector,
    add_rows: Vector, out: Vector, activation: str | None, out_dtype: torch.dtype | None,
) -> None:  # fmt: skip
    given = IndexedOperands(a, b, rows, out_rows, row_weights, offsets, None, add_rows)
    check_indexed(given, out, activation, out_dtype)


CHECK_INDEXED = checking_operator("check_indexed", _checked)


class _IndexedProduct(torch.autograd.Function):
    """The operator with its gradients."""

    @staticmethod
    def forward(
        a: torch.Tensor, b: torch.Tensor, rows: Vector, out_rows: Vector, row_weights: Vector, offsets: Vector,
        out_dtype: torch.dtype | None, config: str, copy_rows: bool | None,
    ) -> torch.Tensor:  # fmt: skip
        value: torch.Tensor = torch.ops.layoutgemm.indexed_matmul(
            a, b, rows, out_rows, row_weights, offsets, None, out_dtype, config, copy_rows
        )
        return value

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: Sequence[object], output: torch.Tensor) -> None:
        ctx.save_for_backward(*inputs[:6])

    @staticmethod
    def backward(ctx: FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        a, b, rows, out_rows, weights, offsets = ctx.saved_tensors
        wants_a, wants_b, _, _, wants_weights, _ = ctx.needs_input_grad[:6]
        grad = dense(grad.to(a.dtype))
        read = a if rows is None else selected(a, rows)
        of_a = of_b = of_weights = None
        if wants_a or wants_weights:
            sums = _gathered(grad, b, out_rows, offsets)
            if wants_weights:
                of_weights = (sums.float() * read.float()).sum(-1)
            if wants_a:
                sums = sums if weights is None else (sums * weights[:, None]).to(a.dtype)
                of_a = sums if rows is None else added(torch.zeros_like(a), rows, sums)
        if wants_b:
            scaled = grad if out_rows is None else selected(grad, out_rows)
            scaled = scaled if weights is None else (scaled * weights[:, None]).to(a.dtype)
            if offsets is None:
                of_b = dispatched(read.mT, scaled, b.dtype, None)
            else:
                of_b = differentiable(read.mT, scaled, offsets, "offsets", b.dtype)
        return of_a, of_b, None, None, of_weights, None, None, None, None


def _gathered(grad: torch.Tensor, b: torch.Tensor, out_rows: Vector, offsets: Vector) -> torch.Tensor:
    """The product's rows of the result's gradient, times B^T."""
    if out_rows is None and offsets is None:
        return dispatched(grad, b.mT, grad.dtype, None)
    if out_rows is None:
        return differentiable(grad, b.mT, offsets, "offsets", grad.dtype)
    value: torch.Tensor = torch.ops.layoutgemm.indexed_matmul(
        grad, b.mT, out_rows, None, None, offsets, None, grad.dtype, ""
    )
    return value


def _recorded(
    a: torch.Tensor, b: torch.Tensor, rows: Vector, out_rows: Vector, row_weights: Vector, offsets: Vector,
    activation: str | None, out_dtype: torch.dtype | None, config: str = "", copy_rows: bool | None = None,
) -> torch.Tensor:  # fmt: skip
    given = IndexedOperands(a, b, rows, out_rows, row_weights, offsets)
    call = check_indexed(given, None, activation, out_dtype)
    if derived_by_func():
        raise OperandError("row indices: torch.func takes no operator's derivative, and these products have no other")
    if any(has_tangent(x) for x in given.named.values()):
        raise TensorError("row indices have no forward derivatives: give unpack_dual(x).primal of each tensor")
    if a.dtype.itemsize == 1:
        refuse_derivatives(given.named, f"a product of 8 bits has none; {_WAY_OUT}")
    if activation is not None:
        return _finished_by_torch(given, call, config, copy_rows)
    value: torch.Tensor = _IndexedProduct.apply(
        a, b, rows, out_rows, row_weights, offsets, out_dtype, config, copy_rows
    )
    return value


def _finished_by_torch(given: IndexedOperands, call: IndexedCall, config: str, copy_rows: bool | None) -> torch.Tensor:
    """The product with an activation or a gate by torch: before a gate in the result's type, as by `matmul`."""
    a, b, rows, out_rows, weights, offsets, *_ = given
    if rows is None:
        rows, copy_rows = torch.arange(a.shape[0], device=a.device), None
    kind = call.kind if call.gate is not None and call.kind.itemsize == 2 else torch.float32
    value = _IndexedProduct.apply(a, b, rows, None, None, offsets, kind, config, copy_rows)
    value = by_autograd(value, str(call.activation))
    value = value if weights is None else value * weights[:, None]
    value = rounded(value, call.kind)
    return value if out_rows is None else scattered(value.new_zeros(call.shape), out_rows, value)


with_autograd("indexed_matmul", _recorded)
