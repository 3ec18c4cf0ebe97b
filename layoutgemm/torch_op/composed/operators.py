"""torch.ops.layoutgemm.composed_matmul: products with several parts, as torch's compiler and functorch see them.

    composed_matmul            lists of a and of b, of what is read, of numbers and of whole numbers; `parts`
    composed_matmul_writing    the same with the list `written` after `read`, for epilogues that write
    visited_part               x, then the same: x with zeros where the product's order visits no tile

`parts` is `parts_text`, which has the names of the lists' operands. Derivatives are those of `derivatives`. vmap makes
rows of two pairs, a batch of matrices, and calls all others one after another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ...errors import LayoutError, OperandError
from ...graph_marks import constant_in_graphs
from ...kernels.orders import Order, is_symmetric
from ...schedule.text import order_text
from ..compiled.constant_objects import constant_of_objects
from ..compiled.function_tape import Constants, untaped
from ..compiled.traced import CHECKS, checking_operator
from ..operators import Places, VmapInfo, configured, in_front, one_after_another, operator_of
from ..own_epilogue.operators import check_mapped
from ..prepared import Config
from .checks import ComposedCall, checked, takes_rows
from .derivatives import recorded, visited_part
from .parts import BIAS, AskedParts, Parts, named_lists, names_left, parts_of_text, parts_text
from .plans import plan_of_call, visited
from .product import computed

Tensors = Sequence[torch.Tensor]
Made = tuple[ComposedCall, Sequence[int], Config | None]


def call_of(
    a: Tensors, b: Tensors, read: Tensors, written: Tensors | None, numbers: Sequence[float], wholes: Sequence[int],
    parts: str, out: torch.Tensor | None, out_dtype: torch.dtype | None, allow_tf32: bool | None,
) -> ComposedCall:  # fmt: skip
    """The call of an operator's arguments. `written`: None where its visited elements alone are asked for.

    Raises OperandError, PlanError or TensorError for those that do not fit.
    """
    found = parts_of_text(parts)
    known = [0 if isinstance(x, torch.SymInt) else x for x in wholes]  # the launch looks at a symbol's value
    return checked(a, b, found, named_lists(found, read, written, numbers, known), out, out_dtype, allow_tf32)


# ------------------------------------------------------------------------------------------------------- operators


def _call(
    a: Sequence[torch.Tensor], b: Sequence[torch.Tensor], read: Sequence[torch.Tensor], numbers: Sequence[float],
    wholes: Sequence[int], parts: str, out_dtype: torch.dtype | None = None, config: str = "",
    allow_tf32: bool | None = None,
) -> Made:  # fmt: skip
    return _call_writing(a, b, read, (), numbers, wholes, parts, out_dtype, config, allow_tf32)


def _call_writing(
    a: Sequence[torch.Tensor], b: Sequence[torch.Tensor], read: Sequence[torch.Tensor],
    written: Sequence[torch.Tensor], numbers: Sequence[float], wholes: Sequence[int], parts: str,
    out_dtype: torch.dtype | None = None, config: str = "", allow_tf32: bool | None = None,
) -> Made:  # fmt: skip
    call = call_of(a, b, read, written, numbers, wholes, parts, None, out_dtype, allow_tf32)
    return call, wholes, configured(config)


def _computed(call: ComposedCall, wholes: Sequence[int], config: Config | None) -> torch.Tensor:
    return computed(call, config, None).contiguous()


def _empty(call: ComposedCall, *_: object) -> torch.Tensor:
    return call.a[0].new_empty(call.result, dtype=call.kind)


def _recorded(call: ComposedCall, wholes: Sequence[int], config: Config | None) -> torch.Tensor:
    return recorded(_with_symbols(call, wholes), config)


def _with_symbols(call: ComposedCall, wholes: Sequence[int]) -> ComposedCall:
    """The call with its whole numbers as they were given: checks take a symbol for 0."""
    return call._replace(values={**call.values, **dict(zip(call.parts.wholes, wholes, strict=True))})


def _checked(
    a: Sequence[torch.Tensor], b: Sequence[torch.Tensor], read: Sequence[torch.Tensor],
    written: Sequence[torch.Tensor], numbers: Sequence[float], wholes: Sequence[int], parts: str,
    out: torch.Tensor | None, out_dtype: torch.dtype | None, allow_tf32: bool | None,
) -> None:  # fmt: skip
    call_of(a, b, read, written, numbers, wholes, parts, out, out_dtype, allow_tf32)


CHECK_COMPOSED = checking_operator("check_composed", _checked)


def _call_of_part(
    x: torch.Tensor, a: Sequence[torch.Tensor], b: Sequence[torch.Tensor], read: Sequence[torch.Tensor],
    numbers: Sequence[float], wholes: Sequence[int], parts: str, out_dtype: torch.dtype, config: str = "",
) -> tuple[torch.Tensor, ComposedCall, Sequence[int], Config | None]:  # fmt: skip
    call = call_of(a, b, read, None, numbers, wholes, parts, None, out_dtype, True)
    return x, call, wholes, configured(config)


def _part(x: torch.Tensor, call: ComposedCall, wholes: Sequence[int], config: Config | None) -> torch.Tensor:
    inside = visited(call, plan_of_call(call, config))
    return x.clone() if inside is None else torch.where(inside, x, x.new_zeros(())).contiguous()


def _part_mapped(
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


operator_of(
    "visited_part",
    _call_of_part,
    _part,
    lambda x, *_: x.new_empty(x.shape),
    lambda x, call, wholes, config: visited_part(x, _with_symbols(call, wholes), config),
    _part_mapped,
)


def _mapped(
    info: VmapInfo, in_dims: Places, a: Tensors, b: Tensors, read: Tensors, numbers: Sequence[float],
    wholes: Sequence[int], text: str, *others: object,
) -> tuple[torch.Tensor, int]:  # fmt: skip
    """Two pairs with mapped rows are one product of all rows; matrices a batch; others come one after another."""
    parts, others = parts_of_text(text), (read, numbers, wholes, text, *others)
    unmapped = all(at is None for places in (in_dims[1], in_dims[2]) for at in places) and b[0].ndim == 2
    if unmapped and len(a) > 1 and takes_rows(parts) and set(parts.read) <= {BIAS}:
        rows = [in_front(x, at, info.batch_size) for x, at in zip(a, in_dims[0], strict=True)]
        return torch.ops.layoutgemm.composed_matmul(rows, b, *others), 0
    if (batch := _as_batch(info, in_dims, a, b, read, parts)) is not None:
        return torch.ops.layoutgemm.composed_matmul(*batch, *others[1:]), 0
    return one_after_another(info, in_dims, (a, b, *others), torch.ops.layoutgemm.composed_matmul), 0


def _as_batch(
    info: VmapInfo, in_dims: Places, a: Tensors, b: Tensors, read: Tensors, parts: Parts
) -> tuple[Tensors, Tensors, Tensors] | None:
    """A, B and what is read as one batch of all slices; None where no kernel has a batch with these parts."""
    places = [*in_dims[0], *in_dims[1]]
    ranks = [x.ndim - (at is not None) for x, at in zip((*a, *b), places, strict=True)]
    alone = set(ranks) == {2} and not {*parts.own} - {BIAS}
    if not alone or is_symmetric(parts.order):
        return None
    values: list[torch.Tensor] = []
    for name, x, at in zip(parts.read, read, in_dims[2], strict=True):
        of_a = parts.prologue is not None and name in parts.prologue.names
        of_c = parts.epilogue is not None and name in parts.epilogue.reads
        if at is not None and not of_a and not (of_c and x.ndim > 1):  # a launch has one bias, list or number
            return None
        values.append(in_front(x, at, info.batch_size) if of_a or at is not None else x)
    all_in_front = [in_front(x, at, info.batch_size) for x, at in zip((*a, *b), places, strict=True)]
    return all_in_front[: len(a)], all_in_front[len(a) :], values


def _writing_mapped(info: VmapInfo, in_dims: Places, *arguments: object) -> tuple[torch.Tensor, int]:
    parts = parts_of_text(str(arguments[6]))
    for name, at in zip(parts.written, in_dims[3], strict=True):
        assert parts.epilogue is not None
        check_mapped(parts.epilogue.named_given(name), at)
    call: Callable[..., torch.Tensor] = torch.ops.layoutgemm.composed_matmul_writing
    return one_after_another(info, in_dims, arguments, call), 0


operator_of("composed_matmul", _call, _computed, _empty, _recorded, _mapped, autocast=True)
operator_of(
    "composed_matmul_writing", _call_writing, _computed, _empty, _recorded, _writing_mapped, ("written",), autocast=True
)


@constant_of_objects
def text_of_parts(matrices: int, own: tuple[str, ...], given: tuple[str, ...], *parts: object) -> str:
    """The text of a call's parts, the fields of `AskedParts`. "" for those that do not fit: `refusal` says why."""
    try:
        return _text(matrices, own, given, *parts)
    except LayoutError:
        return ""


def _text(matrices: int, own: tuple[str, ...], given: tuple[str, ...], *parts: object) -> str:
    return parts_text(AskedParts(*[untaped(x) for x in parts]), matrices, own, given)


@constant_of_objects
def numbers_left(
    order: Order | Constants | None, prologue: str | None, epilogue: str | None, given: tuple[str, ...]
) -> tuple[str, ...]:  # fmt: skip
    """The names of a function's numbers among a call's operands. None for parts that do not fit."""
    try:
        return names_left(untaped(order), prologue, epilogue, given)
    except LayoutError:
        return ()


@constant_in_graphs
def names_of_text(text: str) -> tuple[tuple[str, ...], ...]:
    """The names of the operator's four lists."""
    parts = parts_of_text(text)
    return parts.read, parts.written, parts.numbers, parts.wholes


CHECKS["parts"] = _text
CHECKS["order"] = order_text
