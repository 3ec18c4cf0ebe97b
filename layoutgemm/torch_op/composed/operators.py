"""torch.ops.layoutgemm.composed_matmul: products with several parts, as torch's compiler and functorch see them.

    composed_matmul(Tensor[] a, Tensor[] b, Tensor[] read, float[] numbers, SymInt[] wholes, str parts,
                    ScalarType? out_dtype=None, str config="", bool? allow_tf32=None) -> Tensor
    composed_matmul_writing    the same with Tensor(a!)[] written after `read`, for epilogues that write
    visited_part(Tensor x, ...the same...) -> Tensor    x with zeros where the product's order visits no tile

`parts` is `parts_text`, which has the names of the lists' operands. Gradients of a sum of products are products. Other
parts are computed again by torch's operators and float32 products, which torch derives; epilogues have none. vmap makes
rows of two pairs, and calls all others one after another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.autograd.function import FunctionCtx

from ...errors import LayoutError, OperandError, TensorError
from ...kernels.orders import Order
from ..autograd.products import gradients
from ..checks import needs_dispatcher
from ..compiled.constants import constant_in_graphs
from ..compiled.flops import count_flops
from ..compiled.traced import CHECKS, checking_operator
from ..compute import product
from ..library import (
    Places,
    VmapInfo,
    bias_gradient,
    configured,
    differentiable,
    in_front,
    one_after_another,
    refuse_under_functorch,
    with_autocast,
    with_autograd,
)
from ..operands.several import Combine
from ..own_epilogue.operators import check_mapped
from ..prepared import Config, config_text
from .checks import ComposedCall, checked
from .parts import BIAS, AskedParts, lists_of, named_lists, parts_of_text, parts_text
from .plans import plan_of_call, visited
from .product import computed, factors, finished, placed, together

_library = torch.library.Library("layoutgemm", "FRAGMENT")
Tensors = Sequence[torch.Tensor]


def call_of(
    a: Tensors, b: Tensors, read: Tensors, written: Tensors, numbers: Sequence[float], wholes: Sequence[int],
    parts: str, out: torch.Tensor | None, out_dtype: torch.dtype | None, allow_tf32: bool | None,
) -> ComposedCall:  # fmt: skip
    """The call of an operator's arguments. Raises OperandError, PlanError or TensorError for those that do not fit."""
    found = parts_of_text(parts)
    known = [0 if isinstance(x, torch.SymInt) else x for x in wholes]  # the launch looks at a symbol's value
    return checked(a, b, found, named_lists(found, read, written, numbers, known), out, out_dtype, allow_tf32)


# ------------------------------------------------------------------------------------------------------- operators


@torch.library.custom_op("layoutgemm::composed_matmul", mutates_args=())
def _operator(
    a: Sequence[torch.Tensor], b: Sequence[torch.Tensor], read: Sequence[torch.Tensor], numbers: Sequence[float],
    wholes: Sequence[int], parts: str, out_dtype: torch.dtype | None = None, config: str = "",
    allow_tf32: bool | None = None,
) -> torch.Tensor:  # fmt: skip
    call = call_of(a, b, read, (), numbers, wholes, parts, None, out_dtype, allow_tf32)
    return computed(call, configured(config), None).contiguous()


@torch.library.custom_op("layoutgemm::composed_matmul_writing", mutates_args=("written",))
def _writing(
    a: Sequence[torch.Tensor], b: Sequence[torch.Tensor], read: Sequence[torch.Tensor],
    written: Sequence[torch.Tensor], numbers: Sequence[float], wholes: Sequence[int], parts: str,
    out_dtype: torch.dtype | None = None, config: str = "", allow_tf32: bool | None = None,
) -> torch.Tensor:  # fmt: skip
    call = call_of(a, b, read, written, numbers, wholes, parts, None, out_dtype, allow_tf32)
    return computed(call, configured(config), None).contiguous()


def _fake(call: ComposedCall, config: str) -> torch.Tensor:
    configured(config)
    return call.a[0].new_empty(call.result, dtype=call.kind)


@_operator.register_fake
def _(
    a: Sequence[torch.Tensor], b: Sequence[torch.Tensor], read: Sequence[torch.Tensor], numbers: Sequence[float],
    wholes: Sequence[int], parts: str, out_dtype: torch.dtype | None = None, config: str = "",
    allow_tf32: bool | None = None,
) -> torch.Tensor:  # fmt: skip
    return _fake(call_of(a, b, read, (), numbers, wholes, parts, None, out_dtype, allow_tf32), config)


@_writing.register_fake
def _(
    a: Sequence[torch.Tensor], b: Sequence[torch.Tensor], read: Sequence[torch.Tensor],
    written: Sequence[torch.Tensor], numbers: Sequence[float], wholes: Sequence[int], parts: str,
    out_dtype: torch.dtype | None = None, config: str = "", allow_tf32: bool | None = None,
) -> torch.Tensor:  # fmt: skip
    return _fake(call_of(a, b, read, written, numbers, wholes, parts, None, out_dtype, allow_tf32), config)


CHECK_COMPOSED = checking_operator(
    "check_composed",
    "(Tensor[] a, Tensor[] b, Tensor[] read, Tensor[] written, float[] numbers, SymInt[] wholes, str parts,"
    " Tensor? out, ScalarType? out_dtype, bool? allow_tf32) -> ()",
    lambda *arguments: (call_of(*arguments), None)[1],
)


@torch.library.custom_op("layoutgemm::visited_part", mutates_args=())
def _visited_part(
    x: torch.Tensor, a: Sequence[torch.Tensor], b: Sequence[torch.Tensor], read: Sequence[torch.Tensor],
    numbers: Sequence[float], wholes: Sequence[int], parts: str, out_dtype: torch.dtype, config: str = "",
) -> torch.Tensor:  # fmt: skip
    call = call_of(a, b, read, (), numbers, wholes, parts, None, out_dtype, True)
    inside = visited(call, plan_of_call(call, configured(config)))
    return x.clone() if inside is None else torch.where(inside, x, x.new_zeros(())).contiguous()


@_visited_part.register_fake
def _(
    x: torch.Tensor, a: Sequence[torch.Tensor], b: Sequence[torch.Tensor], read: Sequence[torch.Tensor],
    numbers: Sequence[float], wholes: Sequence[int], parts: str, out_dtype: torch.dtype, config: str = "",
) -> torch.Tensor:  # fmt: skip
    return x.new_empty(x.shape)


@_visited_part.register_vmap
def _(
    info: VmapInfo, in_dims: Places, x: torch.Tensor, a: Tensors, b: Tensors, *others: object
) -> tuple[torch.Tensor, int]:
    """One slice of the operands decides for all: values do not matter."""
    if any(at is not None for at in in_dims[3]):
        raise OperandError("tiles is mapped by torch.func.vmap, and a launch has one list")
    a, b = (
        [y if at is None else y.select(at, 0) for y, at in zip(several, places, strict=True)]
        for several, places in zip((a, b), in_dims[1:3])
    )
    return torch.ops.layoutgemm.visited_part(in_front(x, in_dims[0], info.batch_size), a, b, *others), 0


class _VisitedPart(torch.autograd.Function):
    """The operator `visited_part` with its derivatives, which are itself.

    call     without tensors, which follow in their order: functorch unwraps arguments, and nothing inside of one
    """

    @staticmethod
    def forward(x: torch.Tensor, call: ComposedCall, config: Config | None, *tensors: torch.Tensor) -> torch.Tensor:
        of = with_tensors(call, tensors)
        read, _, numbers, wholes = lists_of(of.parts, of.values)
        value: torch.Tensor = torch.ops.layoutgemm.visited_part(
            x, of.a, of.b, read, numbers, wholes, of.parts.text, of.kind, config_text(config)
        )
        return value

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: Places, output: torch.Tensor) -> None:
        _, call, config, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        ctx.facts = call, config

    @staticmethod
    def backward(ctx: FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        tensors = ctx.saved_tensors
        return (_VisitedPart.apply(grad, *ctx.facts, *tensors), None, None, *[None] * len(tensors))

    @staticmethod
    def jvp(ctx: FunctionCtx, tangent: torch.Tensor, *others: None) -> torch.Tensor:
        value: torch.Tensor = _VisitedPart.apply(tangent, *ctx.facts, *ctx.saved_tensors)
        return value

    @staticmethod
    def vmap(
        info: VmapInfo, in_dims: Places, x: torch.Tensor, call: ComposedCall, config: Config | None,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, int]:  # fmt: skip
        one = [y if at is None else y.select(at, 0) for y, at in zip(tensors, in_dims[3:], strict=True)]
        return _VisitedPart.apply(in_front(x, in_dims[0], info.batch_size), call, config, *one), 0


def visited_part(x: torch.Tensor, call: ComposedCall, config: Config | None) -> torch.Tensor:
    """x where the call's order visits tiles, zeros elsewhere; with its derivatives."""
    if call.parts.order is None:
        return x
    tensors = [t.detach() for t in call.tensors]
    value: torch.Tensor = _VisitedPart.apply(x, without_tensors(call), config, *tensors)
    return value


def without_tensors(call: ComposedCall) -> ComposedCall:
    """The call with places in place of its tensors: `with_tensors` puts them back."""
    values = {name: x for name, x in call.values.items() if name not in call.parts.read}
    return call._replace(a=[_NOTHING] * len(call.a), b=[_NOTHING] * len(call.b), values=values)


def with_tensors(call: ComposedCall, tensors: Sequence[torch.Tensor]) -> ComposedCall:
    """The call with these tensors in place of its own, in their order."""
    of_a, of_b = len(call.a), len(call.b)
    read = dict(zip(call.parts.read, tensors[of_a + of_b :], strict=True))
    return call._replace(a=list(tensors[:of_a]), b=list(tensors[of_a : of_a + of_b]), values={**call.values, **read})


_NOTHING = torch.empty(0)


# ----------------------------------------------------------------------------------------------------- derivatives


def dispatched(call: ComposedCall, config: Config | None) -> torch.Tensor:
    """The product that torch's dispatcher sees, of operands that have been checked."""
    read, written, numbers, wholes = lists_of(call.parts, call.values)
    if written:
        value: torch.Tensor = torch.ops.layoutgemm.composed_matmul_writing(
            call.a, call.b, read, written, numbers, wholes, call.parts.text, call.kind, config_text(config), True
        )
        return value
    value = torch.ops.layoutgemm.composed_matmul(
        call.a, call.b, read, numbers, wholes, call.parts.text, call.kind, config_text(config), True
    )
    return value


def derivable(call: ComposedCall, config: Config | None) -> torch.Tensor:
    """The product by operators that have derivatives: float32 sums, and the parts by torch."""
    sums = [differentiable(a, b, torch.float32) for a, b in factors(call)]
    value = visited_part(finished(call, together(call, sums)), call, config)
    return placed(call, value, None, None)


class _RecordedComposed(torch.autograd.Function):
    """A composed product with its gradients: of a sum of products, products; else derived from what torch computes."""

    @staticmethod
    def forward(ctx: FunctionCtx, call: ComposedCall, config: Config | None, *tensors: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*tensors)
        ctx.facts = call, config
        of = with_tensors(call, tensors)
        return dispatched(of, config) if needs_dispatcher(*tensors) else computed(of, config, None)

    @staticmethod
    def backward(ctx: FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph
            raise TensorError("products with several parts have first derivatives alone: no create_graph=True")
        call, config = ctx.facts
        again = _linear_gradients if call.parts.linear else _gradients_again
        return None, None, *again(with_tensors(call, ctx.saved_tensors), config, grad, ctx.needs_input_grad[2:])


def _linear_gradients(
    call: ComposedCall, config: Config | None, grad: torch.Tensor, wants: Sequence[bool]
) -> list[torch.Tensor | None]:
    """The gradients of a sum of products: those of each pair, and the bias's."""
    grad = visited_part(grad, call, config)
    times = differentiable if needs_dispatcher(grad, *call.a, *call.b) else product
    count = len(call.a)
    found = [gradients(a, b, (wants[i], wants[count + i]), grad, times) for i, (a, b) in enumerate(zip(call.a, call.b))]
    bias: torch.Tensor | None = None
    if BIAS in call.parts.own and wants[2 * count + call.parts.read.index(BIAS)]:
        bias = bias_gradient(grad, call.values[BIAS].dtype)
    rest = [bias if name == BIAS and BIAS in call.parts.own else None for name in call.parts.read]
    return [*[of_a for of_a, _ in found], *[of_b for _, of_b in found], *rest]


def _gradients_again(
    call: ComposedCall, config: Config | None, grad: torch.Tensor, wants: Sequence[bool]
) -> list[torch.Tensor | None]:
    """The gradients by torch, of the product computed again."""
    with torch.enable_grad():
        tensors = [x.detach().requires_grad_(want) for x, want in zip(call.tensors, wants, strict=True)]
        value = derivable(with_tensors(call, tensors), config)
    wanted = [x for x, want in zip(tensors, wants) if want]
    found = iter(torch.autograd.grad(value, wanted, grad, allow_unused=True))
    return [next(found) if want else None for want in wants]


def recorded(call: ComposedCall, config: Config | None) -> torch.Tensor:
    """The product with its gradients. Raises TensorError for 8-bit operands."""
    if call.a[0].dtype.itemsize < 2:
        raise TensorError(f"a is {call.a[0].dtype}, and products of 8 bits have no gradient: give detached tensors")
    value: torch.Tensor = _RecordedComposed.apply(without_tensors(call), config, *call.tensors)
    return value


def _recorded(
    a: Tensors, b: Tensors, read: Tensors, numbers: Sequence[float], wholes: Sequence[int], parts: str,
    out_dtype: torch.dtype | None = None, config: str = "", allow_tf32: bool | None = None,
) -> torch.Tensor:  # fmt: skip
    refuse_under_functorch("composed_matmul")
    call = call_of(a, b, read, (), numbers, wholes, parts, None, out_dtype, allow_tf32)
    return recorded(call, configured(config))


def _recorded_writing(
    a: Tensors, b: Tensors, read: Tensors, written: Tensors, numbers: Sequence[float], wholes: Sequence[int],
    parts: str, out_dtype: torch.dtype | None = None, *others: object,
) -> torch.Tensor:  # fmt: skip
    call_of(a, b, read, written, numbers, wholes, parts, None, out_dtype, True)  # names the tensor
    raise OperandError("torch.ops.layoutgemm.composed_matmul_writing has no derivative")


def _recorded_part(
    x: torch.Tensor, a: Tensors, b: Tensors, read: Tensors, numbers: Sequence[float], wholes: Sequence[int],
    parts: str, out_dtype: torch.dtype, config: str = "",
) -> torch.Tensor:  # fmt: skip
    refuse_under_functorch("visited_part")
    call = call_of(a, b, read, (), numbers, wholes, parts, None, out_dtype, True)
    return visited_part(x, call, configured(config))


for _name, _rule in (("composed_matmul", _recorded), ("composed_matmul_writing", _recorded_writing),
                     ("visited_part", _recorded_part)):  # fmt: skip
    with_autograd(_name, _rule)
with_autocast(_library, "composed_matmul")
with_autocast(_library, "composed_matmul_writing")
count_flops("composed_matmul", "composed_matmul_writing")


@_operator.register_vmap
def _(
    info: VmapInfo, in_dims: Places, a: Tensors, b: Tensors, read: Tensors, numbers: Sequence[float],
    wholes: Sequence[int], text: str, *others: object,
) -> tuple[torch.Tensor, int]:  # fmt: skip
    """Two pairs with mapped rows are one product of all rows; all others are calls one after another."""
    parts, others = parts_of_text(text), (read, numbers, wholes, text, *others)
    unmapped = all(at is None for places in (in_dims[1], in_dims[2]) for at in places)
    sums = len(a) > 1 and parts.order is None and parts.prologue is None and parts.epilogue is None
    if unmapped and sums and set(parts.read) <= {BIAS}:
        rows = [in_front(x, at, info.batch_size) for x, at in zip(a, in_dims[0], strict=True)]
        return torch.ops.layoutgemm.composed_matmul(rows, b, *others), 0
    return one_after_another(info, in_dims, (a, b, *others), torch.ops.layoutgemm.composed_matmul), 0


@_writing.register_vmap
def _(info: VmapInfo, in_dims: Places, *arguments: object) -> tuple[torch.Tensor, int]:
    parts = parts_of_text(str(arguments[6]))
    for name, at in zip(parts.written, in_dims[3], strict=True):
        assert parts.epilogue is not None
        check_mapped(parts.epilogue.named_given(name), at)
    call: Callable[..., torch.Tensor] = torch.ops.layoutgemm.composed_matmul_writing
    return one_after_another(info, in_dims, arguments, call), 0


@constant_in_graphs
def text_of_parts(
    order: Order | None, prologue: str | None, combine: Combine | None, epilogue: str | None, activation: str | None,
    copy_rows: bool | None, matrices: int, own: tuple[str, ...], given: tuple[str, ...],
) -> str:  # fmt: skip
    """The text of a call's parts; "" for parts that do not fit: `refusal` says why."""
    try:
        return _text(order, prologue, combine, epilogue, activation, copy_rows, matrices, own, given)
    except LayoutError:
        return ""


def _text(
    order: Order | None, prologue: str | None, combine: Combine | None, epilogue: str | None, activation: str | None,
    copy_rows: bool | None, matrices: int, own: tuple[str, ...], given: tuple[str, ...],
) -> str:  # fmt: skip
    return parts_text(AskedParts(order, prologue, combine, epilogue, activation, copy_rows), matrices, own, given)


@constant_in_graphs
def names_of_text(text: str) -> tuple[tuple[str, ...], ...]:
    """The names of the operator's four lists."""
    parts = parts_of_text(text)
    return parts.read, parts.written, parts.numbers, parts.wholes


CHECKS["parts"] = _text
