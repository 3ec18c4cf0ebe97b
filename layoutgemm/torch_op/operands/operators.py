"""torch.ops.layoutgemm.combined_matmul, a function of several products.

Torch's compiler and functorch see it as this.

`function` is `Combined.json`, and `numbers` has its numbers in their order. Gradients recompute the products in
float32: torch differentiates the function, and each product has its two gradients. vmap makes a batch of rows; matrices
that it maps are multiplied one after another.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch.autograd.function import FunctionCtx

from ...errors import LayoutError, OperandError, PlanError, TensorError
from ...kernels.operands.combined import Combine, Combined, check_parameters, function_of
from ..checks import needs_dispatcher, product_shape
from ..compiled.constant_objects import constant_of_objects
from ..compiled.function_tape import Constants, like, untaped
from ..compiled.traced import CHECKS, checking_operator
from ..compute import product
from ..operators import Places, VmapInfo, configured, differentiable, in_front, one_after_another, operator_of
from ..prepared import Config, config_text
from .several import checked_call, combined_sums, computed


class CombinedCall(NamedTuple):
    """A checked call: operands, the function with its numbers, and the result's type."""

    a: torch.Tensor
    matrices: list[torch.Tensor]
    how: Combined
    numbers: dict[str, float]
    kind: torch.dtype


@functools.lru_cache(256)
def function_of_text(text: str) -> Combined:
    """The function of `Combined.json`. Raises OperandError for another text."""
    try:
        return Combined.from_json(text)
    except PlanError as error:
        raise OperandError(str(error)) from error


@constant_of_objects
def text_of(combine: Combine | Constants, matrices: int, numbers: tuple[str, ...]) -> str:
    """A function, or the name of a gate, as the operator takes it. "" for one that does not fit: `refusal` says why."""
    try:
        return function_of(untaped(combine), matrices, numbers).json
    except LayoutError:
        return ""


def _checked(
    a: torch.Tensor, b: Sequence[torch.Tensor], numbers: Sequence[float], function: str, out: torch.Tensor | None,
    out_dtype: torch.dtype | None, allow_tf32: bool | None,
) -> CombinedCall:  # fmt: skip
    """The call of an operator's arguments. Raises OperandError or TensorError for those that do not fit."""
    how = function_of_text(function)
    if len(numbers) != len(how.numbers):
        raise OperandError(f"numbers has {len(numbers)}, and the function takes {', '.join(how.numbers) or 'none'}")
    given = dict(zip(how.numbers, numbers, strict=True))
    return CombinedCall(*checked_call(a, b, how, given, out, None, out_dtype, allow_tf32))


def _call(
    a: torch.Tensor, b: Sequence[torch.Tensor], numbers: Sequence[float], function: str,
    out_dtype: torch.dtype | None = None, config: str = "", allow_tf32: bool | None = None,
) -> tuple[CombinedCall, Config | None]:  # fmt: skip
    return _checked(a, b, numbers, function, None, out_dtype, allow_tf32), configured(config)


CHECK_COMBINED = checking_operator("check_combined", _checked)


def dispatched(call: CombinedCall, config: Config | None) -> torch.Tensor:
    """The product that torch's dispatcher sees, of operands that have been checked."""
    a, matrices, how, numbers, kind = call
    value: torch.Tensor = torch.ops.layoutgemm.combined_matmul(
        a, matrices, [numbers[name] for name in how.numbers], how.json, kind, config_text(config), True
    )
    return value


def derivable(call: CombinedCall) -> torch.Tensor:
    """The product by operators that have derivatives of every order. They are float32 sums, and the function by
    torch."""
    a, matrices, how, numbers, kind = call
    sums = [differentiable(a, b, torch.float32) for b in matrices]
    return combined_sums(how, sums, numbers).to(kind)


class _RecordedSeveral(torch.autograd.Function):
    """A product of several matrices with its gradients. Products are computed again, the function's by torch."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, a: torch.Tensor, how: Combined, numbers: dict[str, float], kind: torch.dtype,
        config: Config | None, *matrices: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        ctx.save_for_backward(a, *matrices)
        ctx.how, ctx.numbers = how, numbers
        if needs_dispatcher(a, *matrices):
            return dispatched(CombinedCall(a, list(matrices), how, numbers, kind), config)
        return computed(a, matrices, how, numbers, kind, config)

    @staticmethod
    def backward(ctx: FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        a, *matrices = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph
            return _gradients_recorded(CombinedCall(a, matrices, ctx.how, ctx.numbers, grad.dtype), grad)
        times = differentiable if needs_dispatcher(a, grad, *matrices) else product
        wants_a, wants = ctx.needs_input_grad[0], ctx.needs_input_grad[5:]
        slopes = _slopes([times(a, b, torch.float32) for b in matrices], grad, ctx.how, ctx.numbers)
        slopes = [g.to(a.dtype) for g in slopes]
        lines = a.reshape(-1, a.shape[-1])
        of_b = [
            times(lines.T, g.reshape(-1, g.shape[-1]), b.dtype) if want else None
            for g, b, want in zip(slopes, matrices, wants)
        ]
        of_a = None
        if wants_a:
            terms = [times(g, b.T, torch.float32) for g, b in zip(slopes, matrices)]
            of_a = functools.reduce(torch.add, terms).to(a.dtype)
        return of_a, None, None, None, None, *of_b


def _gradients_recorded(call: CombinedCall, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """The gradients where they are recorded themselves; of views, since two operands may be one tensor."""
    a, *matrices = own = [x.view_as(x) for x in (call.a, *call.matrices)]
    wanted = [x for x in own if x.requires_grad]
    value = derivable(call._replace(a=a, matrices=matrices))
    found = iter(torch.autograd.grad(value, wanted, grad, allow_unused=True, create_graph=True))
    of_a, *of_b = [next(found) if x.requires_grad else None for x in own]
    return of_a, None, None, None, None, *of_b


def _slopes(
    sums: Sequence[torch.Tensor], grad: torch.Tensor, how: Combined, numbers: Mapping[str, float]
) -> list[torch.Tensor]:
    """The gradient of each sum."""
    with torch.enable_grad():
        sums = [x.requires_grad_() for x in sums]
        value = combined_sums(how, sums, numbers)
    if not value.requires_grad:  # a constant
        return [torch.zeros_like(x) for x in sums]
    found = torch.autograd.grad(value, sums, grad.float(), allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(sums, found)]


def recorded(call: CombinedCall, config: Config | None) -> torch.Tensor:
    """The product with its gradients. Raises TensorError for 8-bit operands."""
    if call.a.dtype.itemsize < 2:
        raise TensorError(f"a is {call.a.dtype}, and products of 8 bits have no gradient: give detached tensors")
    a, matrices, how, numbers, kind = call
    value: torch.Tensor = _RecordedSeveral.apply(a, how, numbers, kind, config, *matrices)
    return value


def _mapped(
    info: VmapInfo, in_dims: Places, a: torch.Tensor, b: Sequence[torch.Tensor], *others: object
) -> tuple[torch.Tensor, int]:
    if any(at is not None for at in in_dims[1]):
        return one_after_another(info, in_dims, (a, b, *others), torch.ops.layoutgemm.combined_matmul), 0
    return torch.ops.layoutgemm.combined_matmul(in_front(a, in_dims[0], info.batch_size), b, *others), 0


operator_of(
    "combined_matmul",
    _call,
    lambda call, config: computed(call.a, call.matrices, call.how, call.numbers, call.kind, config).contiguous(),
    lambda call, _: call.a.new_empty(product_shape(call.a, call.matrices[0]), dtype=call.kind),
    recorded,
    _mapped,
    autocast=True,
)

# A call's values that are no tensors, for the compiler.
CHECKS["parameters of combine"] = lambda code, defaults, *taken: check_parameters(like(code, defaults), *taken)
CHECKS["combine"] = lambda combine, *taken: function_of(untaped(combine), *taken)
CHECKS["combine text"] = lambda text, *taken: function_of(function_of_text(text), *taken)
