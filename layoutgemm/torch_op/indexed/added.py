"""torch.ops.layoutgemm.added_rows: rows added to those that indices name. It gives the same bits on every run.

    call                                       adds by
    ---------------------------------------    ------------------------------------------------------------------------
    a product with add_rows=                   the launch behind the product's: see `kernels.indexed.added_rows`
    recorded or compiled, and gradients of     this operator: on a GPU torch's index_put, which sorts the indices, and
    gathered rows                              on the CPU index_add, one row after the other
    with ordered=False                         torch's index_add: on a GPU by atomics, in any order

All add in float32 and round once, integers in their own type, and drop the rows of indices outside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch.autograd.function import FunctionCtx

from ...arguments import shown
from ...kernels.epilogue.chain import Epilogue
from ...kernels.indexed.rows import check_distinct, check_inside
from ..checks import NOT_RECORDED, copied, derived_by_func, differentiated, has_tangent
from ..compiled.traced import refuse
from ..operators import operator_of, with_autograd
from ..scaled_grouped.grouped import INTS
from ..types import of_mask, usual_type
from .torch_rows import inside_rows, known_indices, scattered

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def added(x: torch.Tensor, indices: torch.Tensor, rows: torch.Tensor, ordered: bool = True) -> torch.Tensor:
    """x with each of the rows added to the one that its index names. Rows with indices outside are dropped.

    >>> added(torch.zeros(2, 1), torch.tensor([1, 2, 1]), torch.tensor([[1.0], [2.0], [3.0]])).tolist()
    [[0.0], [4.0]]
    """
    if not ordered:
        return _sums(x, indices, rows, _index_add)
    if not torch.compiler.is_dynamo_compiling() and (derived_by_func() or has_tangent(x) or has_tangent(rows)):
        return _in_order(x, indices, rows)
    value: torch.Tensor = torch.ops.layoutgemm.added_rows(x, indices, rows)
    return value


def _sums(
    x: torch.Tensor, indices: torch.Tensor, rows: torch.Tensor, add: Callable[..., torch.Tensor]
) -> torch.Tensor:  # fmt: skip
    if 0 in (*x.shape, rows.shape[0]):
        return x.clone()
    count, kind = x.shape[0], torch.float32 if x.is_floating_point() else x.dtype
    named = torch.where((indices >= 0) & (indices < count), indices, count)  # those outside add to a row more
    wide = torch.cat([x.to(kind), x.new_zeros(1, x.shape[1], dtype=kind)])
    return add(wide, named, rows.to(kind))[:count].to(x.dtype)


def _index_add(x: torch.Tensor, indices: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return x.index_add(0, indices, rows)


def _index_put(x: torch.Tensor, indices: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return x.index_put((indices.long(),), rows, accumulate=True)


def _in_order(x: torch.Tensor, indices: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """By torch's functions, which have all derivatives; Inductor's code for them is atomics."""
    return _sums(x, indices, rows, _index_add if x.device.type == "cpu" else _index_put)


def _call(x: torch.Tensor, indices: torch.Tensor, rows: torch.Tensor) -> Tensors:
    return x, indices, rows


operator_of("added_rows", _call, lambda *tensors: _in_order(*tensors).contiguous(), lambda x, *_: x.new_empty(x.shape))


class _Added(torch.autograd.Function):
    """The operator with its gradients."""

    @staticmethod
    def forward(x: torch.Tensor, indices: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        value: torch.Tensor = torch.ops.layoutgemm.added_rows(x, indices, rows)
        return value

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: Sequence[torch.Tensor], output: torch.Tensor) -> None:
        ctx.save_for_backward(inputs[1])
        ctx.kind = inputs[2].dtype

    @staticmethod
    def backward(ctx: FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (indices,) = ctx.saved_tensors
        inside, named = inside_rows(indices, max(1, grad.shape[0]))
        # Of an index the derivative is index_put, in order; that of index_select adds by atomics.
        of_rows = torch.where(inside, grad[named.long()], 0).to(ctx.kind) if ctx.needs_input_grad[2] else None
        return grad if ctx.needs_input_grad[0] else None, None, of_rows


with_autograd("added_rows", _Added.apply)


def sums_of_product(
    ordered: object, product: Callable[..., torch.Tensor], a: object, b: object, add_rows: object,
    out: torch.Tensor | None, others: Mapping[str, object], weighs: bool = False,
) -> torch.Tensor:  # fmt: skip
    """A product's rows, added to `out` or to zeros behind it. No kernel has these sums, or they are in any order.

    ordered  as it was given; True: by the operator, the same bits on every run
    product  of a and b, with their rows in order: `matmul`, or `grouped_matmul`
    others   its other arguments by name
    weighs   whether the product takes no weights of rows: torch multiplies by them then, before it rounds

    Raises OperandError or TensorError, naming the operand.

    >>> one = torch.ones(2, 1)
    >>> sums_of_product(False, lambda a, b: a @ b, one, one.T[:, :1], torch.tensor([1, 1]), None, {}).tolist()
    [[0.0], [2.0]]
    """
    if not isinstance(ordered, bool):
        refuse(f"ordered = {shown(ordered)}: True, or False for sums in any order")
    if not isinstance(add_rows, torch.Tensor):
        refuse("ordered = False: rows are added in any order where add_rows= names them, and it is not given")
    if others.get("out_rows") is not None:
        refuse("out_rows and add_rows: rows of the product are placed, or added to each other; give one")
    if out is not None and differentiated(out):
        refuse(NOT_RECORDED)
    assert isinstance(add_rows, torch.Tensor) and isinstance(ordered, bool)
    check_lines(a, {**others, "add_rows": add_rows}, out, weighs)
    made = _weighed(product, a, b, others, weighs)
    first = _checked_result("add_rows", "added", made, out)
    found = added(first, add_rows, made, ordered)
    return found if out is None else out.copy_(found)


def placed_product(
    product: Callable[..., torch.Tensor], a: object, b: object, out_rows: torch.Tensor | None, out: torch.Tensor | None,
    others: Mapping[str, object], in_group: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> torch.Tensor:  # fmt: skip
    """A product's rows, weighed and placed in `out` or in zeros behind it. No kernel has these parts together.

    out_rows  the row of the result for each row of the product, or None for rows in order
    others    the product's other arguments by name
    in_group  of the product, a mask of its rows that are in a group: others are not placed

    Raises OperandError or TensorError, naming the operand.

    >>> one = torch.ones(2, 1)
    >>> to, none = torch.tensor([1, 0]), {"row_weights": None}
    >>> placed_product(lambda a, b: a @ b, torch.tensor([[1.0], [2.0]]), one[:1], to, None, none).tolist()
    [[2.0], [1.0]]
    """
    if out is not None and differentiated(out):
        refuse(NOT_RECORDED)
    check_lines(a, {**others, "out_rows": out_rows}, out)
    made = _weighed(product, a, b, others, True)
    if out_rows is not None:
        first = _checked_result("out_rows", "placed", made, out)
        if in_group is not None:
            out_rows = torch.where(in_group(made).flatten(), out_rows, -1)
        return copied(scattered(first, out_rows, made), out)
    if out is None:
        return made
    if out.shape != made.shape or out.dtype != made.dtype:
        of = f"{out.dtype} of shape {list(out.shape)}"
        refuse(f"out is {of}: {made.dtype} of {list(made.shape)}, as the product has them")
    return out.copy_(made if in_group is None else torch.where(in_group(made), made, out))


def check_lines(
    a: object, given: Mapping[str, object], out: torch.Tensor | None = None, weighs: bool = True
) -> None:  # fmt: skip
    """Raise OperandError unless indices and weights are one for each stored row.

    The product is not computed yet, so nothing is written.

    given  a call's arguments by name;   weighs: weights are checked too

    Of CPU tensors it refuses an index outside of the result, too, and one of `out_rows` that repeats.

    >>> check_lines(torch.ones(2, 1), {"out_rows": torch.tensor([1])})
    Traceback (most recent call last):
        ...
    layoutgemm.errors.OperandError: out_rows is torch.int64 of shape [1]: int32 or int64 of [2], a row for each row of \
the product
    """
    epilogue, rows = given.get("epilogue"), given.get("rows")
    for name in ("add_rows", "out_rows", "row_weights"):
        if isinstance(epilogue, Epilogue) and not epilogue.stores_c and given.get(name) is not None:
            refuse(f"{name} is of C's rows, and the epilogue stores no C (stores_c=False)")
    kind = given.get("out_dtype")
    if given.get("add_rows") is not None and isinstance(kind, torch.dtype) and kind.is_floating_point:
        if kind.itemsize == 1:
            refuse(f"add_rows: rows of {kind} are not added, as 8 bits are too coarse: say another out_dtype=")
    of, rank = (rows, 1) if isinstance(rows, torch.Tensor) else (a, 2)
    if not isinstance(of, torch.Tensor) or of.ndim != rank:
        return  # the product itself refuses them
    for name in ("add_rows", "out_rows", "row_weights")[: 3 if weighs else 2]:
        x, weight = given.get(name), name == "row_weights"
        if x is None:
            continue
        if not isinstance(x, torch.Tensor):
            refuse(f"{name} is a {type(x).__qualname__}: a tensor")
        assert isinstance(x, torch.Tensor)
        if x.dtype not in ((torch.float32,) if weight else INTS) or tuple(x.shape) != of.shape[:1]:
            kinds, what = ("float32", "factor") if weight else ("int32 or int64", "row")
            said = f"{x.dtype} of shape {list(x.shape)}"
            mask = "" if weight else of_mask(name, x.dtype)
            refuse(f"{name} is {said}: {kinds} of {[of.shape[0]]}, a {what} for each row of the product{mask}")
        if weight or torch.compiler.is_dynamo_compiling() or (known := known_indices(x)) is None:
            continue
        check_inside(name, known, of.shape[0] if out is None else out.shape[0], "the result")
        if name == "out_rows":
            check_distinct(name, known)


def _weighed(
    product: Callable[..., torch.Tensor], a: object, b: object, others: Mapping[str, object], weighs: bool
) -> torch.Tensor:
    """The product with its rows in order, times their weights."""
    given = dict(others)
    if (
        given.get("row_weights") is not None
        and given.get("rows") is None
        and isinstance(a, torch.Tensor)
        and not weighs
    ):
        given["rows"] = torch.arange(a.shape[0], device=a.device)
    weights, kind = given.pop("row_weights") if weighs else None, given.get("out_dtype")
    if weights is not None:
        assert isinstance(a, torch.Tensor)
        kind, given["out_dtype"] = kind or usual_type(a.dtype), torch.float32
    made = product(a, b, **given)
    if isinstance(weights, torch.Tensor):
        assert isinstance(kind, torch.dtype)
        made = (made * weights[:, None]).to(kind)
    return made


def _checked_result(name: str, done: str, made: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    """`out`, or zeros in its place, where rows of the product go."""
    if made.ndim != 2:
        refuse(f"{name}: rows of one matrix are {done}, and the product has shape {list(made.shape)}")
    first = torch.zeros_like(made) if out is None else out
    if first.ndim != 2 or first.shape[1] != made.shape[1] or first.dtype != made.dtype:
        of = f"{first.dtype} of shape {list(first.shape)}"
        refuse(f"out is {of}: {made.dtype} of [rows, {made.shape[1]}], as the product has them")
    return first
