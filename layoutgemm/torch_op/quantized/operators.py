"""torch.ops.layoutgemm.quantized_matmul and dequantized: as torch's compiler, autograd and functorch see them.

x is (rows, k); `group` is 0 where a column has one scale; scale_x is (rows,), or one element. The gradient of x is grad
@ weights, the weights in x's type; a bias has its gradient by torch; the weights have none, and neither has a float8 x.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.function import FunctionCtx

from ...arguments import shown
from ...errors import OperandError, TensorError
from ...kernels.run.operand_checks import check_operands
from ..api import matmul
from ..autograd.kept import recorder
from ..bias_activation import GATES, by_torch
from ..checks import PLAIN, check_activation, check_device, refuse_derivatives, seen_by_autograd_alone, stored_as
from ..compiled.traced import named
from ..operators import VmapInfo, operator_of, refuse_under_functorch, with_autograd
from .configs import packed_config_of
from .dense import Facts, dense_weights, format_of, packed_for, unpacked
from .launch import QuantizedCall, check_bias, quantized_product, scale_recipe
from .weights import QuantizedWeight

_SCALE_X = 11  # its place among the operator's arguments behind x
_WAY_OUT = "weights and their scales are not trained; give its detach()"


def checked_call(
    x: torch.Tensor, units: torch.Tensor, scales: torch.Tensor | None, bias: torch.Tensor | None,
    activation: str | None, facts: Facts, out_dtype: torch.dtype | None, config: str,
    scale_x: torch.Tensor | None = None,
) -> QuantizedCall:  # fmt: skip
    """The checked product. Raises OperandError or TensorError, naming the operand."""
    check_operands({"x": x, "units": units, **named(scales=scales, bias=bias, scale_x=scale_x)})
    check_device(x)
    refuse_derivatives(named(scales=scales, scale_x=scale_x), _WAY_OUT)
    if x.dtype.itemsize == 1:
        refuse_derivatives({"x": x}, "use torch.no_grad(), or give its detach()")
    fmt, (n, k) = format_of(*facts[:3]), facts[3:]
    QuantizedWeight(fmt, units, scales, n, k, packed_for(x.dtype) or x.dtype)
    check_rows(x, n, k)
    check_gateless(activation)
    check_bias(bias, n)
    scale = scale_recipe(scale_x, x.shape[0], x.dtype)
    return quantized_call(facts, activation, stored_as(x.dtype, out_dtype), config, scale)


def check_rows(x: torch.Tensor, n: int, k: int) -> None:
    """Raise TensorError unless x is rows that weights of n times k multiply."""
    if x.ndim != 2 or x.shape[1] != k:
        raise TensorError(f"x has shape {list(x.shape)}: (rows, {k}), the weights being {n}x{k}")


def check_gateless(activation: str | None) -> None:
    """Raise OperandError for an unknown activation, or a gate, which the functions compute themselves."""
    if isinstance(activation, str) and activation in GATES:
        raise OperandError(
            f"activation {shown(activation)}: a kernel of packed weights has no gate, since different CTAs store the "
            "features of its two halves. layoutgemm.quantized_matmul and quantized_grouped_matmul gate float32 sums"
        )
    check_activation(activation)


@functools.lru_cache(1024)
def quantized_call(
    facts: Facts, activation: str | None, kind: torch.dtype, config: str, scale: str = ""
) -> QuantizedCall:
    """The product of checked arguments, with a result of a type.

    scale  of x, as `scale_recipe` names it
    """
    return QuantizedCall(format_of(*facts[:3]), facts[3:], activation, kind, packed_config_of(config), scale)


Product = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]


def _call(
    x: torch.Tensor, units: torch.Tensor, scales: torch.Tensor | None, bias: torch.Tensor | None,
    activation: str | None, code: str, group: int, zeros: bool, n: int, k: int, out_dtype: torch.dtype | None = None,
    config: str = "", scale_x: torch.Tensor | None = None,
) -> tuple[QuantizedCall, Product]:  # fmt: skip
    facts = code, group, zeros, n, k
    call = checked_call(x, units, scales, bias, activation, facts, out_dtype, config, scale_x)
    return call, (x, units, scales, bias, scale_x)


def _mapped(info: VmapInfo, in_dims: Sequence[int | None], x: torch.Tensor, *others: Any) -> tuple[torch.Tensor, int]:
    """Slices of x, and of its scales, are more rows of one product."""
    scaled = len(others) > _SCALE_X and others[_SCALE_X] is not None
    mapped = [at for i, at in enumerate(in_dims[1:]) if at is not None and not (scaled and i == _SCALE_X)]
    if mapped or in_dims[0] is None:
        raise OperandError("torch.ops.layoutgemm.quantized_matmul is mapped along x and scale_x alone")
    moved = x.movedim(in_dims[0], 0)
    if scaled:
        scale, at = others[_SCALE_X], in_dims[1 + _SCALE_X]
        if at is not None or scale.numel() > 1:
            slices = scale.movedim(at, 0).reshape(moved.shape[0], -1) if at is not None else scale.reshape(1, -1)
            others = (*others[:_SCALE_X], slices.expand(*moved.shape[:-1]).reshape(-1), *others[_SCALE_X + 1 :])
    value = torch.ops.layoutgemm.quantized_matmul(moved.reshape(-1, moved.shape[-1]), *others)
    return value.reshape(*moved.shape[:-1], value.shape[-1]), 0


operator_of(
    "quantized_matmul",
    _call,
    lambda call, operands: quantized_product(call, *operands),
    lambda call, operands: operands[0].new_empty((operands[0].shape[0], call.size[0]), dtype=call.kind),
    mapped=_mapped,
)


def _dense_call(
    units: torch.Tensor, scales: torch.Tensor | None, activations: torch.dtype, code: str, group: int, zeros: bool,
    n: int, k: int,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.dtype, Facts]:  # fmt: skip
    return units, scales, activations, (code, group, zeros, n, k)


operator_of(
    "dequantized",
    _dense_call,
    dense_weights,
    lambda units, scales, kind, facts: units.new_empty((*units.shape[:-3], *facts[3:]), dtype=kind),
)


class _QuantizedProduct(torch.autograd.Function):
    """x @ weights.T with the derivative by x."""

    @staticmethod
    def forward(
        x: torch.Tensor, units: torch.Tensor, scales: torch.Tensor | None, facts: Facts, kind: torch.dtype, config: str,
        scale_x: torch.Tensor | None = None,
    ) -> torch.Tensor:  # fmt: skip
        options = kind, config, scale_x
        value: torch.Tensor = torch.ops.layoutgemm.quantized_matmul(x, units, scales, None, None, *facts, *options)
        return value

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: Sequence[Any], output: torch.Tensor) -> None:
        x, units, scales, ctx.facts, ctx.kind, ctx.config, _ = inputs  # a scale of x is of a float8 one: no derivative
        ctx.save_for_backward(units, scales)
        ctx.save_for_forward(units, scales)
        ctx.like = x.dtype

    @staticmethod
    def backward(ctx: FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        units, scales = ctx.saved_tensors
        dense = torch.ops.layoutgemm.dequantized(units, scales, ctx.like, *ctx.facts)
        return matmul(grad.to(ctx.like), dense), None, None, None, None, None, None

    @staticmethod
    def jvp(ctx: FunctionCtx, dx: torch.Tensor, *others: None) -> torch.Tensor:
        units, scales = ctx.saved_tensors
        value: torch.Tensor = _QuantizedProduct.apply(dx, units, scales, ctx.facts, ctx.kind, ctx.config, None)
        return value

    @staticmethod
    def vmap(info: object, in_dims: Sequence[int | None], x: torch.Tensor, *others: object) -> tuple[torch.Tensor, int]:
        """Slices of x are more rows of one product."""
        if in_dims[0] is None or in_dims[1] is not None or in_dims[2] is not None or others[-1] is not None:
            raise OperandError("quantized_matmul is mapped and differentiated along x alone")
        moved = x.movedim(in_dims[0], 0)
        value = _QuantizedProduct.apply(moved.reshape(-1, moved.shape[-1]), *others)
        return value.reshape(*moved.shape[:-1], value.shape[-1]), 0


class _EagerProduct(torch.autograd.Function):
    """A product that was computed, with the derivative by x in eager mode.

    made  the product, and the facts of the weights

    `_QuantizedProduct` serves torch.func, forward mode and compilers.
    """

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, x: torch.Tensor, units: torch.Tensor, scales: torch.Tensor | None,
        made: tuple[torch.Tensor, Facts],
    ) -> torch.Tensor:  # fmt: skip
        ctx.save_for_backward(units, scales)
        c, ctx.facts = made
        ctx.like = x.dtype
        return c

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        units, scales = ctx.saved_tensors
        if type(units) in PLAIN and seen_by_autograd_alone():
            dense = unpacked(units, scales, ctx.like, ctx.facts)
        else:
            dense = torch.ops.layoutgemm.dequantized(units, scales, ctx.like, *ctx.facts)
        return matmul(grad.to(ctx.like), dense), None, None, None


recorded_product = recorder(_EagerProduct)


def _recorded(
    x: torch.Tensor, units: torch.Tensor, scales: torch.Tensor | None, bias: torch.Tensor | None,
    activation: str | None, code: str, group: int, zeros: bool, n: int, k: int, out_dtype: torch.dtype | None = None,
    config: str = "", scale_x: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """The product as autograd records it."""
    refuse_under_functorch("quantized_matmul", "quantized_matmul")
    return derivable(x, units, scales, bias, activation, (code, group, zeros, n, k), out_dtype, config, scale_x)


def derivable(
    x: torch.Tensor, units: torch.Tensor, scales: torch.Tensor | None, bias: torch.Tensor | None,
    activation: str | None, facts: Facts, out_dtype: torch.dtype | None, config: str, scale_x: torch.Tensor | None,
) -> torch.Tensor:  # fmt: skip
    """The product with derivatives; torch adds the bias and computes the activation."""
    call = checked_call(x, units, scales, bias, activation, facts, out_dtype, config, scale_x)
    finishes = bias is not None or activation is not None
    kind = torch.float32 if finishes else call.kind
    value: torch.Tensor = _QuantizedProduct.apply(x, units, scales, facts, kind, config, scale_x)
    return by_torch(value, bias, activation, call.kind) if finishes else value


with_autograd("quantized_matmul", _recorded)
