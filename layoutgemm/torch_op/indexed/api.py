"""Calls of `matmul` and `grouped_matmul` with row indices."""

from __future__ import annotations

from typing import Any

import torch

from ...errors import OperandError, TensorError
from ...kernels.run.operand_checks import check_operands
from ...kernels.sm90.config import Sm90Config
from ..checks import NOT_RECORDED, autocast, copied, differentiated, needs_dispatcher
from ..compiled.traced import check_kinds, named, refusal, refuse
from ..prepared import config_text
from ..scaled_grouped.kept import find
from ..scaled_grouped.scaled import check_config, unswapped
from .added import added
from .operators import CHECK_INDEXED
from .product import IndexedOperands, check_indexed, indexed_product, placed
from .torch_rows import scattered

ONE_VECTOR = (False, True, True, True, True)  # `rows` alone is given: whether each vector is not
_NO_OPERATOR = (
    "rows of a batch: no gradients, torch.compile, torch.func or modes; groups by offsets= have them, and so has a "
    "product of torch.take_along_dim(a, rows[..., None], 1)"
)


# What an argument that such a product does not take is done by.
_PLANNED = "; of a plan they go together: Sm90Plan.derive(indexed=)"
_WAYS = {
    "epilogue": f"{_PLANNED} has an epilogue", "order": f"{_PLANNED} has an order",
    "combine": "; with rows= alone and a tuple b it has one", "given": "; it is for epilogue=, combine= and prologue=",
    "offs": "; offsets=torch.nn.functional.pad(offs, (1, 0)) are the same groups, where they have all rows",
}  # fmt: skip


def indexed_matmul(
    given: IndexedOperands, *, activation: str | None = None, out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None, config: Any = None, others: dict[str, Any] | None = None,
    copy_rows: bool | None = None,
) -> torch.Tensor:  # fmt: skip
    """activation(A[rows] @ B) * row_weights, in rows out_rows of the result: see `torch_op.indexed.product`.

    others     arguments that such a product does not take, by name
    copy_rows  whether a kernel copies A's rows first; None: if that is estimated faster, or the only way

    Raises OperandError, or TensorError in torch's words, naming the operand.

    >>> a, b = torch.arange(6.0).reshape(3, 2).bfloat16(), torch.eye(2).bfloat16()
    >>> indexed_matmul(IndexedOperands(a, b, torch.tensor([2, 0]), torch.tensor([1, 0]))).tolist()
    [[0.0, 1.0], [4.0, 5.0]]
    """
    for name, x in (others or {}).items():
        if x is not None:
            _refuse(f"{name}: a product with row indices takes none{_WAYS.get(name, '')}")
    for name in ("a", "b"):
        if isinstance(getattr(given, name), tuple | list):
            _refuse(f"{name} is a {type(getattr(given, name)).__name__}: rows= are of one a, and out_rows= of one b")
    if copy_rows is not None and (given.rows is None or not isinstance(copy_rows, bool)):
        _refuse("copy_rows: True or False, of a product with rows=")
    if given.rows is None and not given.places:
        _refuse("row_weights: the rows of a product with rows=, out_rows= or add_rows= have weights")
    config = unswapped(config)
    if torch.compiler.is_dynamo_compiling():
        return _traced(given, activation, out, out_dtype, config, copy_rows)
    key: tuple[object, ...] = ()
    first = given.rows if given.rows is not None else given.out_rows
    if isinstance(first, torch.Tensor) and given.add_rows is None:
        a, b, rows, out_rows, weights, offsets, counts, _ = given
        names = rows is None, out_rows is None, weights is None, offsets is None, counts is None
        rest: tuple[torch.Tensor | None, ...] = ()
        if names != ONE_VECTOR:  # in the order in which a launch takes them
            rest = (out_rows if rows is not None else None, offsets, counts, weights)
        options = "indexed", names, activation, out_dtype, config, copy_rows
        key, found = find(a, b, first, None, rest, out, options)
        if found is not None:
            return found
    check_config(config)
    check_operands(given.named, {} if out is None else {"out": out})
    a, b = autocast(given.a, given.b)
    given = given._replace(a=a, b=b)
    call = check_indexed(given, out, activation, out_dtype)
    if not needs_dispatcher(*given, out):
        return indexed_product(call, given, config, out, key, copy_rows)
    if given.batched:
        _refuse(_NO_OPERATOR)
    if out is not None and differentiated(*given.named.values(), out):
        raise TensorError(NOT_RECORDED)
    if out is not None:
        return placed(call, given, _operator(_in_order(given), activation, call.kind, config, copy_rows), out)
    if given.add_rows is not None:
        return placed(call, given, _operator(_in_order(given), activation, call.kind, config, copy_rows), None)
    return _operator(given, activation, call.kind, config, copy_rows)


def _operator(
    given: IndexedOperands, activation: str | None, kind: torch.dtype | None, config: Sm90Config | None,
    copy_rows: bool | None,
) -> torch.Tensor:  # fmt: skip
    """The operator on operands that have been checked."""
    value: torch.Tensor = torch.ops.layoutgemm.indexed_matmul(
        given.a, given.b, given.rows, given.out_rows, given.row_weights, given.offsets, activation, kind,
        config_text(config), copy_rows,
    )  # fmt: skip
    return value


def _traced(
    given: IndexedOperands, activation: str | None, out: torch.Tensor | None, out_dtype: torch.dtype | None,
    config: Sm90Config | None, copy_rows: bool | None,
) -> torch.Tensor:  # fmt: skip
    """The same under torch.compile, whose tracer meets no exception of ours."""
    check_kinds(dict(given.named), named(out=out))
    refuse(refusal("activation", activation))
    refuse(refusal("plain config", config))
    if out is not None and differentiated(*given.named.values(), out):
        refuse(NOT_RECORDED)
    if given.batched:
        refuse(_NO_OPERATOR)
    a, b = autocast(given.a, given.b)
    given = given._replace(a=a, b=b)
    CHECK_INDEXED(*given[:6], given.add_rows, out, activation, out_dtype)
    if out is None and given.add_rows is None:
        return _operator(given, activation, out_dtype, config, copy_rows)
    value = _operator(_in_order(given), activation, out_dtype, config, copy_rows)
    if given.add_rows is not None:
        first = torch.zeros_like(value) if out is None else out
        return copied(added(first, given.add_rows, value), out)
    assert out is not None
    return copied(value if given.out_rows is None else scattered(out, given.out_rows, value), out)


def _in_order(given: IndexedOperands) -> IndexedOperands:
    """The same product with its rows in order: without `out_rows`, and with `rows` in any case."""
    rows = torch.arange(given.a.shape[0], device=given.a.device) if given.rows is None else given.rows
    return given.in_order._replace(rows=rows)


def _refuse(text: str) -> None:
    if torch.compiler.is_dynamo_compiling():
        refuse(text)
    raise OperandError(text)
