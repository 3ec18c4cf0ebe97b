"""torch.ops.layoutgemm.scaled_matmul and grouped_matmul: as torch's compiler, autograd and functorch see them.

`said` is the argument of `layoutgemm.grouped_matmul` that `groups` is: "offsets", "offs" or "counts". Derivatives are
grouped products too, through the same operator, so they have derivatives of their own; see `grouped`. A product of
8-bit floats has none. Two operators without a result check the calls that torch.compile traces: see `compiled`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.function import FunctionCtx

from ...arguments import shown
from ...errors import OperandError
from ...kernels.run.operand_checks import check_operands
from ...kernels.sm80.choose import Sm80Choice
from ...kernels.sm90.choose.rules import Sm90Choice
from ...kernels.sm90.config import Sm90Config
from ...kernels.sm100.choose import Sm100Choice
from ..autograd.products import dense
from ..checks import check_device, check_out, derived_by_func, differentiated, refuse_derivatives
from ..compiled.traced import CHECKS, checking_operator, named
from ..fp8.launch import AS_QUANTIZE, empty_results, pitched, shapes_of
from ..operators import (
    Places,
    VmapInfo,
    configured,
    dispatched,
    one_after_another,
    operator_of,
    refuse_under_functorch,
    slices_of,
    with_autograd,
)
from ..prepared import config_text, of_derivatives
from .grouped import BATCH, COLUMNS, GroupedCall, check_grouped, counted, finished, grouped_product
from .recipes import BLOCK, named_recipes, recipe_text
from .scaled import FP8, NO_FINISH, BiasActivation, ScaledCall, check_config, check_scaled, scaled_product

WAY_OUT = "use torch.no_grad(), or give its detach()"
_SAID = ("offsets", "offs", "counts")


# --------------------------------------------------------------------------------------------------------------- scaled


def checked_scaled(
    a: torch.Tensor, scale_a: torch.Tensor, b: torch.Tensor, scale_b: torch.Tensor | None, finish: BiasActivation,
    out: torch.Tensor | None, out_dtype: object, recipe_a: object, recipe_b: object, out_recipe: object = None,
) -> ScaledCall:  # fmt: skip
    """The checked product: operands, recipes, output. Raises OperandError or TensorError, naming the operand."""
    tensors = {"a": a, "scale_a": scale_a, "b": b, **named(scale_b=scale_b, bias=finish.bias)}
    check_operands(tensors, named(out=out))
    check_device(a)
    refuse_derivatives(tensors, WAY_OUT)
    names = named_recipes((recipe_a or None, recipe_b or None), scale_a, scale_b)
    call = check_scaled(a, scale_a, b, scale_b, finish, out_dtype, names)
    if out_recipe is not None and not (isinstance(out_recipe, str) and not out_recipe):
        check_out_recipe(out_recipe, call.kind)
        call = call._replace(quantizes=True)
    if out is not None:
        check_out(out, call.shape, call.kind, tensors)
    return call


def check_out_recipe(recipe: object, kind: object) -> None:
    """Raise OperandError for scales of a result that no kernel writes."""
    if recipe_text("out_recipe", recipe) != BLOCK:
        raise OperandError(f"out_recipe {recipe_text('out_recipe', recipe)}: a result is quantised by {BLOCK}")
    if kind not in FP8:
        raise OperandError(f"out_recipe: out_dtype is {kind}, and what has scales is float8_e4m3fn or float8_e5m2")


def plain_config(text: str) -> Any:
    """The configuration that `prepared.config_text` wrote. Raises OperandError for one with swapped operands."""
    choice = configured(text, (Sm90Choice, Sm80Choice, Sm100Choice))
    if choice is None:
        return None
    if choice.swapped:
        raise OperandError("config: swapped operands, which scaled and grouped products do not have")
    return choice.config


Factors = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]  # a, scale_a, b, scale_b


def _scaled_call(
    a: torch.Tensor, scale_a: torch.Tensor, b: torch.Tensor, scale_b: torch.Tensor | None = None,
    bias: torch.Tensor | None = None, activation: str | None = None, out_dtype: torch.dtype | None = None,
    recipe_a: str = "", recipe_b: str = "", use_fast_accum: bool = True, config: str = "",
) -> tuple[ScaledCall, Factors, BiasActivation, Sm90Config | None]:  # fmt: skip
    finish = BiasActivation(bias, activation, use_fast_accum)
    call = checked_scaled(a, scale_a, b, scale_b, finish, None, out_dtype, recipe_a, recipe_b)
    return call, (a, scale_a, b, scale_b), finish, plain_config(config)


def _quantized_product(
    call: ScaledCall, factors: Factors, finish: BiasActivation, config: Sm90Config | None
) -> tuple[torch.Tensor, torch.Tensor]:
    check_out_recipe(BLOCK, call.kind)
    scales = torch.empty_strided(
        *shapes_of(call.shape, AS_QUANTIZE).scales, dtype=torch.float32, device=factors[0].device
    )
    c = scaled_product(call._replace(quantizes=True), *factors, finish, config, None, (), scales)
    return pitched(c), scales


def _quantized_empty(call: ScaledCall, factors: Factors, *_: object) -> tuple[torch.Tensor, torch.Tensor]:
    check_out_recipe(BLOCK, call.kind)
    return empty_results(factors[0], call.shape, AS_QUANTIZE._replace(dtype=call.kind))


def _quantized_mapped(
    info: VmapInfo, in_dims: Places, *arguments: object
) -> tuple[tuple[torch.Tensor, ...], tuple[int, int]]:
    call = torch.ops.layoutgemm.scaled_matmul_quantized
    found = [call(*each) for each in slices_of(info, in_dims, arguments)]
    return tuple([torch.stack(parts) for parts in zip(*found)]), (0, 0)


operator_of(
    "scaled_matmul",
    _scaled_call,
    lambda call, of, finish, config: scaled_product(call, of[0], of[1], of[2], of[3], finish, config).contiguous(),
    lambda call, factors, *_: factors[0].new_empty(call.shape, dtype=call.kind),
)
operator_of(
    "scaled_matmul_quantized", _scaled_call, _quantized_product, _quantized_empty, mapped=_quantized_mapped,
    returns=tuple[torch.Tensor, torch.Tensor],
)  # fmt: skip


def _underived(*operands: object) -> torch.Tensor:
    names = ("a", "scale_a", "b", "scale_b", "bias")
    refuse_derivatives(dict(zip(names, operands)), WAY_OUT)
    raise OperandError("torch.ops.layoutgemm.scaled_matmul has no derivative")


with_autograd("scaled_matmul", _underived)
with_autograd("scaled_matmul_quantized", _underived)


# -------------------------------------------------------------------------------------------------------------- grouped


def checked_grouped(
    a: torch.Tensor, b: torch.Tensor, groups: torch.Tensor | None, said: str, scale_a: torch.Tensor | None,
    scale_b: torch.Tensor | None, finish: BiasActivation, out: torch.Tensor | None, out_dtype: object,
    recipe_a: object, recipe_b: object,
) -> GroupedCall:  # fmt: skip
    """The checked product: operands, groups, recipes, output. Raises OperandError or TensorError."""
    if said not in _SAID:
        raise OperandError(f"said {shown(said)}: groups are {', '.join(_SAID)}")
    tensors = {"a": a, "b": b, **named(**{said: groups}, scale_a=scale_a, scale_b=scale_b, bias=finish.bias)}
    check_operands(tensors, named(out=out))
    check_device(a)
    names = named_recipes((recipe_a or None, recipe_b or None), scale_a, scale_b)
    call = check_grouped(a, b, groups, said, scale_a, scale_b, out_dtype, names, finish)
    if out is not None:
        check_out(out, call.shape, call.kind, tensors)
    return call


Grouped = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]


def _grouped_call(
    a: torch.Tensor, b: torch.Tensor, groups: torch.Tensor | None = None, said: str = "offsets",
    scale_a: torch.Tensor | None = None, scale_b: torch.Tensor | None = None, out_dtype: torch.dtype | None = None,
    recipe_a: str = "", recipe_b: str = "", config: str = "", bias: torch.Tensor | None = None,
    activation: str | None = None, use_fast_accum: bool = True,
) -> tuple[GroupedCall, Grouped, BiasActivation, Sm90Config | None]:  # fmt: skip
    finish = BiasActivation(bias, activation, use_fast_accum)
    call = checked_grouped(a, b, groups, said, scale_a, scale_b, finish, None, out_dtype, recipe_a, recipe_b)
    return call, (a, b, groups, scale_a, scale_b), finish, plain_config(config)


def _grouped_product(
    call: GroupedCall, operands: Grouped, finish: BiasActivation, config: Sm90Config | None
) -> torch.Tensor:
    c = grouped_product(call, *operands, finish, config)
    return c.mT.contiguous().mT if call.form == COLUMNS else c.contiguous()


def _grouped_empty(call: GroupedCall, operands: Grouped, *_: object) -> torch.Tensor:
    if call.form == COLUMNS:
        return operands[0].new_empty(call.shape[::-1], dtype=call.kind).mT
    return operands[0].new_empty(call.shape, dtype=call.kind)


operator_of("grouped_matmul", _grouped_call, _grouped_product, _grouped_empty, autocast=True)
Multiply = Callable[..., torch.Tensor]


class _GroupedProduct(torch.autograd.Function):
    """The operator with its derivatives, for forward mode, torch.func and compilers."""

    @staticmethod
    def forward(
        a: torch.Tensor, b: torch.Tensor, groups: torch.Tensor, said: str, out_dtype: torch.dtype | None, config: str
    ) -> torch.Tensor:
        return torch.ops.layoutgemm.grouped_matmul(a, b, groups, said, None, None, out_dtype, "", "", config)

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: Sequence[object], output: torch.Tensor) -> None:
        ctx.save_for_backward(*inputs[:3])
        ctx.save_for_forward(*inputs[:3])
        ctx.set_materialize_grads(False)  # a tangent of None spares its product
        ctx.said, ctx.kind = inputs[3], output.dtype
        ctx.config = config_text(of_derivatives(plain_config(str(inputs[5]))))

    @staticmethod
    def backward(ctx: FunctionCtx, grad: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        a, b, groups = ctx.saved_tensors
        times = functools.partial(differentiable, config=ctx.config)
        found = grouped_gradients(a, b, groups, ctx.said, ctx.needs_input_grad, grad, times)
        return (*found, None, None, None, None)

    @staticmethod
    def jvp(ctx: FunctionCtx, da: torch.Tensor | None, db: torch.Tensor | None, *others: None) -> torch.Tensor | None:
        a, b, groups = ctx.saved_tensors
        parts = [(x, y) for x, y in ((da, b), (a, db)) if x is not None and y is not None]
        wide = torch.float32 if len(parts) == 2 else ctx.kind
        values = [differentiable(x, y, groups, ctx.said, wide, ctx.config) for x, y in parts]
        return None if not values else values[0] if len(values) == 1 else (values[0] + values[1]).to(ctx.kind)

    @staticmethod
    def vmap(info: VmapInfo, in_dims: Places, *arguments: object) -> tuple[torch.Tensor, int]:
        return one_after_another(info, in_dims, arguments, differentiable), 0


def grouped_gradients(
    a: torch.Tensor, b: torch.Tensor, groups: torch.Tensor, said: str, wanted: Sequence[bool],
    grad: torch.Tensor | None, multiply: Multiply,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:  # fmt: skip
    """The gradients of A and B, where wanted, by grouped products. DC @ B^T and A^T @ dC.

    a, b  of the one whose gradient alone is wanted, only shape, strides and type are read
    """
    if grad is None:
        return None, None
    grad = dense(grad.to(a.dtype))
    left = _laid(grad, b.mT, a, groups, said, multiply) if wanted[0] else None
    right = _laid(a.mT, grad, b, groups, said, multiply) if wanted[1] else None
    return left, right


def _laid(
    left: torch.Tensor, right: torch.Tensor, like: torch.Tensor, groups: torch.Tensor, said: str, multiply: Multiply
) -> torch.Tensor:
    """left @ right as `like`, of its type; matrices of contiguous columns have a gradient of contiguous columns."""
    if lies_in_columns(like):
        return multiply(right.mT, left.mT, groups, said, like.dtype).mT
    return multiply(left, right, groups, said, like.dtype)


def lies_in_columns(like: torch.Tensor) -> bool:
    """True for matrices of contiguous columns.

    >>> lies_in_columns(torch.ones(2, 3, 4).mT), lies_in_columns(torch.ones(2, 3, 4))
    (True, False)
    """
    return like.ndim == 3 and like.stride(-2) == 1 and like.stride(-1) != 1


def differentiable(
    a: torch.Tensor, b: torch.Tensor, groups: torch.Tensor | None, said: str, out_dtype: torch.dtype | None,
    config: str = "",
) -> torch.Tensor:  # fmt: skip
    """The operator, with its derivatives for autograd, forward mode and functorch."""
    if not torch.compiler.is_compiling() and derived_by_func():
        return _derivable(a, b, groups, said, out_dtype, config)
    value: torch.Tensor = torch.ops.layoutgemm.grouped_matmul(a, b, groups, said, None, None, out_dtype, "", "", config)
    return value


def _derivable(
    a: torch.Tensor, b: torch.Tensor, groups: torch.Tensor | None, said: str, out_dtype: torch.dtype | None, config: str
) -> torch.Tensor:
    if a.ndim == b.ndim == 3:
        return _of_batches(a, b, groups, said, out_dtype, config)
    value: torch.Tensor = _GroupedProduct.apply(a, b, groups, said, out_dtype, config)
    return value


def _of_batches(
    a: torch.Tensor, b: torch.Tensor, counts: torch.Tensor | None, said: str, out_dtype: torch.dtype | None, config: str
) -> torch.Tensor:
    """Groups of as many rows each, by `matmul`; rows that do not count are zeros in operand and result."""
    call = checked_grouped(a, b, counts, said, None, None, NO_FINISH, None, out_dtype, "", "")
    if call.form == BATCH:
        return dispatched(a, b, call.kind, plain_config(config))
    assert counts is not None
    rows = counted(counts, a.shape[1])
    c = dispatched(torch.where(rows, a, 0), b, call.kind, plain_config(config))
    return torch.where(rows, c, 0)


def _recorded(
    a: torch.Tensor, b: torch.Tensor, groups: torch.Tensor | None = None, said: str = "offsets",
    scale_a: torch.Tensor | None = None, scale_b: torch.Tensor | None = None, out_dtype: torch.dtype | None = None,
    recipe_a: str = "", recipe_b: str = "", config: str = "", bias: torch.Tensor | None = None,
    activation: str | None = None, use_fast_accum: bool = True,
) -> torch.Tensor:  # fmt: skip
    check_derivable(a, b, scale_a, scale_b, bias)
    refuse_under_functorch("grouped_matmul", "grouped_matmul")
    finish = BiasActivation(bias, activation, use_fast_accum)
    call = checked_grouped(a, b, groups, said, scale_a, scale_b, finish, None, out_dtype, recipe_a, recipe_b)
    if bias is None and activation is None:
        return _derivable(a, b, groups, said, out_dtype, config)
    return finished(call, _derivable(a, b, groups, said, recorded_type(call, finish, a, b), config), groups, finish)


def recorded_type(call: GroupedCall, finish: BiasActivation, a: torch.Tensor, b: torch.Tensor) -> torch.dtype:
    """The type of a product that torch finishes. Before a gate the result's own where it is kept, as by `matmul`."""
    kept = finish.gate is not None and call.kind.itemsize == 2 and differentiated(a, b)
    return call.kind if kept else torch.float32


def check_derivable(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor | None, scale_b: torch.Tensor | None,
    bias: torch.Tensor | None = None,
) -> None:  # fmt: skip
    """Raise TensorError, naming the tensor, for a derivative of a product of 8-bit floats."""
    if scale_a is not None or a.dtype.itemsize == 1:
        refuse_derivatives(named(a=a, b=b, scale_a=scale_a, scale_b=scale_b, bias=bias), WAY_OUT)


with_autograd("grouped_matmul", _recorded)


# ------------------------------------------------------------------------------------------------------------ compilers


def _check_scaled(
    a: torch.Tensor, scale_a: torch.Tensor, b: torch.Tensor, scale_b: torch.Tensor | None, bias: torch.Tensor | None,
    out: torch.Tensor | None, activation: str | None, out_dtype: torch.dtype | None, recipe_a: str, recipe_b: str,
    out_recipe: str,
) -> None:  # fmt: skip
    finish = BiasActivation(bias, activation)
    checked_scaled(a, scale_a, b, scale_b, finish, out, out_dtype, recipe_a, recipe_b, out_recipe)


def _check_grouped(
    a: torch.Tensor, b: torch.Tensor, groups: torch.Tensor | None, scale_a: torch.Tensor | None,
    scale_b: torch.Tensor | None, bias: torch.Tensor | None, out: torch.Tensor | None, said: str,
    activation: str | None, out_dtype: torch.dtype | None, recipe_a: str, recipe_b: str,
) -> None:  # fmt: skip
    finish = BiasActivation(bias, activation)
    checked_grouped(a, b, groups, said, scale_a, scale_b, finish, out, out_dtype, recipe_a, recipe_b)


CHECK_SCALED = checking_operator("check_scaled", _check_scaled)
CHECK_GROUPED = checking_operator("check_grouped", _check_grouped)
CHECKS["recipe"] = recipe_text
CHECKS["out recipe"] = check_out_recipe
CHECKS["plain config"] = check_config
