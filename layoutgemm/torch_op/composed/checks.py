"""A composed product's operands, checked against its parts.

    part             a                     b                        result
    -------------    ------------------    ---------------------    ----------------------------------------------
    none of below    (M, K)                (K, N)                   (M, N); a batch of both is one of the result
    two pairs        (M, K), (M, K2)       (K, N), (K2, N)          (M, N); a batch of all likewise
    combine          (M, K)                2 to 4 of (K, N)         (M, N); a batch of all likewise
    both             (M, K), (M, K2)       each (K, N), (K2, N)     (M, N)
    a gate           (M, K)                (K, 2 N)                 (M, N)
    rows             (rows of A, K)        as above                 a row for each index
    out_rows         as above              as above                 as many rows as `out`, or as the product
    add_rows         as above              as above                 likewise; rows of one index are added

Two pairs take any number of dimensions before M, as one matrix of rows. With an order, a prologue, an epilogue or rows
by index they are matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import torch

from ...errors import OperandError, TensorError
from ...kernels.epilogue.chain import Epilogue, Step, VectorScale
from ...kernels.indexed.rows import OUT_ROWS, ROWS, IndexedRows, RowIndices, check_distinct, check_inside
from ...kernels.operands.combinations import Asked, check_parts
from ...kernels.operands.combined import Combined, name_of_b, refusal_of_matrices
from ...kernels.operands.gated import combination
from ...kernels.operands.pair import SecondPair
from ...kernels.orders import is_symmetric
from ...kernels.run.operand_checks import check_operands
from ...kernels.sm90.mainloop import DEPTH, mainloop_of
from ..checks import check_call, check_finish, check_out, product_shape
from ..epilogue import SumsGate, check_epilogue, check_result
from ..epilogue import Tensors as Operands
from ..indexed.torch_rows import known_indices, selected
from ..problem import bias_epilogue, half
from ..prologue.product import check_type, check_vectors
from ..scaled_grouped.grouped import INTS
from ..scaled_grouped.recipes import BLOCK, SCALES, SQUARE, ScaledOperand
from ..types import C_NAMES, READ, of_mask
from .parts import ADD_ROWS, BIAS, PLACED, ROW_WEIGHTS, Parts

Tensors = Sequence[torch.Tensor]


class ComposedCall(NamedTuple):
    """A checked call.

    a, b    one or two of a, one to four of b for each: those that the first multiplies come first
    values  the operands of its parts by name
    kind    the result's type
    shape   the product's, (M, N) behind the dimensions of a batch; sizes may be symbols
    rows    of the result, which `out_rows` may make more than the product's
    through names of values that have a number for each row of the first A, which `rows` chooses from
    """

    a: list[torch.Tensor]
    b: list[torch.Tensor]
    parts: Parts
    values: Operands
    kind: torch.dtype
    shape: tuple[int, ...]
    rows: int
    through: tuple[str, ...] = ()

    @property
    def gathered(self) -> ComposedCall:
        """The call whose values are all in order of the product's rows."""
        return self._replace(values=in_order(self.values, self.through, self.values.get(ROWS)), through=())

    @property
    def result(self) -> tuple[int, ...]:
        """The result's shape; of an epilogue without a C it has no elements."""
        return (*self.shape[:-2], self.rows, self.shape[-1]) if self.parts.stores_c else (0,)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All tensors of the call, in the order of the operator's arguments."""
        return [*self.a, *self.b, *[self.values[name] for name in (*self.parts.read, *self.parts.written)]]

    @property
    def of_rows(self) -> bool:
        """True for two pairs whose dimensions before M are rows. Matrices B that are no batch."""
        return len(self.a) > 1 and takes_rows(self.parts) and self.b[0].ndim == 2

    @property
    def as_rows(self) -> ComposedCall:
        """The call with the dimensions before M as rows, of two pairs; else the call."""
        if not self.of_rows or len(self.shape) == 2:
            return self
        lines, m = [x.reshape(-1, x.shape[-1]) for x in self.a], prod(self.shape[:-1])
        return self._replace(a=lines, shape=(m, self.shape[-1]), rows=m)

    @property
    def plain_pairs(self) -> bool:
        """True for two pairs with a bias and an activation at most."""
        return self.of_rows and gated_of(self.parts) is None

    @property
    def pairs(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Each a with each b that it multiplies."""
        sums = len(self.b) // len(self.a)
        return [(self.a[i // sums], b) for i, b in enumerate(self.b)]


def in_order(values: Operands, through: Sequence[str], rows: torch.Tensor) -> Operands:
    """The values by name, with a number for each row of the product.

    through  names of values with a number for each row of A; an index outside of A gives 0
    """
    return {name: selected(x, rows) if name in through else x for name, x in values.items()}


def takes_rows(parts: Parts) -> bool:
    """True if two pairs with these parts take any number of dimensions before M."""
    alone = parts.order is None and parts.prologue is None and parts.epilogue is None and parts.triangles is None
    return alone and not PLACED & set(parts.own)


def further_operands(a: Tensors, b: Tensors) -> dict[str, torch.Tensor]:
    """The matrices after the first a and b, by the names of a kernel's parameters."""
    sums = len(b) // max(1, len(a))
    found = {f"b{i}": x for i, x in enumerate(b[1:sums], 1)}
    if len(a) > 1:
        found["a2"] = a[1]
        for name, x in zip(SecondPair(1, max(1, sums)).of_b, b[sums:]):
            found[name] = x
    return found


def named_operands(a: Tensors, b: Tensors) -> dict[str, torch.Tensor]:
    """A and B by the names of a call's arguments."""
    found: dict[str, torch.Tensor] = {"a": a[0]} if len(a) == 1 else {f"a[{i}]": x for i, x in enumerate(a)}
    for i, x in enumerate(b):
        found[name_of_b(i, len(a), len(b))] = x
    return found


def checked(
    a: Tensors, b: Tensors, parts: Parts, values: Operands, out: torch.Tensor | None,
    out_dtype: torch.dtype | None, allow_tf32: bool | None, through: tuple[str, ...] = (),
) -> ComposedCall:  # fmt: skip
    """The call of these operands. Raises OperandError, TensorError or PlanError for those that do not fit.

    values  without what is written, where the call's visited elements alone are asked for: the epilogue is not checked
    """
    check_numbers_of(a, b, parts)
    read = {name: values[name] for name in parts.read}
    written = {name: values[name] for name in parts.written if name in values}
    if parts.epilogue is not None and len(written) == len(parts.written):
        kinds = {operand.name: type(values[operand.name]) for operand in parts.epilogue.given}
        check_epilogue(parts.epilogue, kinds, gated_of(parts) is not None)
    into = {} if out is None else {"out": out}
    named = named_operands(a, b)
    check_operands({**named, **read}, {**written, **into})
    left, right, kind = _multiplied(a, b, parts, out_dtype, allow_tf32)
    m = values[ROWS].shape[0] if ROWS in parts.own and values[ROWS].ndim == 1 else left[0].shape[-2]
    shape = _shape(left, right, parts, m)
    rows = out.shape[0] if out is not None and {OUT_ROWS, ADD_ROWS} & set(parts.own) and out.ndim == 2 else shape[-2]
    call = ComposedCall(left, right, parts, dict(values), kind, shape, rows, through)
    if not call.plain_pairs:  # which have a kernel together
        check_parts(asked_parts(call).parts, shape[0] if len(shape) > 2 else 1)
    _check_finish(call, out)
    if out is not None:
        if not parts.stores_c:
            raise OperandError("out is given, and the epilogue stores no C (stores_c=False)")
        check_out(out, call.result, kind, named)
    if parts.own or parts.prologue is not None:
        _check_vectors(call)
    return call


def check_numbers_of(a: Tensors, b: Tensors, parts: Parts) -> None:
    """Raise OperandError for numbers of matrices that the parts do not have."""
    if parts.how is not None:
        sums = len(b) // len(a) if a else 0
        if len(a) not in (1, 2) or sums * len(a) != len(b):
            raise OperandError(f"a is {len(a)} tensors and b {len(b)}: one a or two, and as many b for each")
        if text := refusal_of_matrices(list(b[:sums])):
            raise OperandError(text)
    elif text := refusal_of_numbers(a, b):
        raise OperandError(text)


def refusal_of_numbers(a: Tensors, b: Tensors) -> str:
    """The reason why so many matrices, without a function of several sums, are no product. Or ""."""
    if len(a) == len(b) and len(a) in (1, 2):
        return ""
    return f"a is {len(a)} tensors and b {len(b)}: one of each, or two pairs"


def asked_parts(call: ComposedCall) -> Asked:
    """The parts that a plan of the call has."""
    parts = call.parts
    copies = len(call.a) > 1 or parts.promotes is not None if parts.copy_rows is None else parts.copy_rows
    return Asked(
        gated=gated_of(parts),
        pair=SecondPair() if len(call.a) > 1 else None,
        indexed=indexed_rows(call, copies),
        prologue=parts.prologue,
        epilogue=epilogue_of(call),
        batch=call.shape[0] if len(call.shape) > 2 and not call.of_rows else 1,
        symmetric=is_symmetric(parts.order),
        triangles=parts.triangles,
        mainloop=None if parts.promotes is None else mainloop_of(parts.promotes),
    )


def epilogue_of(call: ComposedCall) -> Epilogue | None:
    """The kernel's epilogue: the caller's, or the steps of bias, activation and weights of rows."""
    parts = call.parts
    if parts.epilogue is not None:
        return parts.epilogue
    of_bias = C_NAMES.get(call.values[BIAS].dtype) if BIAS in parts.own else None
    activation = None if parts.gate is not None else parts.activation
    steps: list[Step] = []
    if of_bias is not None or activation is not None:
        steps += bias_epilogue(of_bias, activation, False).steps
    if ROW_WEIGHTS in parts.own:
        steps.append(VectorScale("m", "f32", ROW_WEIGHTS))
    return Epilogue(*steps) if steps else None


def sums_gate(call: ComposedCall) -> SumsGate | None:
    """The gate behind an epilogue's first steps, whose sums lie side by side; or None."""
    parts = call.parts
    if parts.how is None or parts.epilogue is None or not parts.epilogue.sums:
        return parts.gate
    return parts.how, {name: call.values[name] for name in parts.how.numbers}


def gated_of(parts: Parts) -> Combined | None:
    """The function of several sums, a gate, or None."""
    return parts.how if parts.how is not None else combination(parts.gate)


def indexed_rows(call: ComposedCall, copies: bool) -> IndexedRows | None:
    """The rows of A and of C by index; None for rows in order."""
    kinds = {name: INTS.get(call.values[name].dtype, "i64") for name in call.parts.own if name in PLACED}
    if not kinds:
        return None
    sizes = [
        1 if isinstance(x, torch.SymInt) else max(1, x) for x in (call.a[0].shape[-2], call.rows)
    ]  # a plan has none
    gather = RowIndices(sizes[0], kinds[ROWS]) if ROWS in kinds else None
    to = kinds.get(OUT_ROWS, kinds.get(ADD_ROWS))
    scatter = None if to is None else RowIndices(sizes[1], to)
    return IndexedRows(gather, scatter, copies and gather is not None, ADD_ROWS in kinds, call.through)


def _multiplied(
    a: Tensors, b: Tensors, parts: Parts, out_dtype: torch.dtype | None, allow_tf32: bool | None
) -> tuple[list[torch.Tensor], list[torch.Tensor], torch.dtype]:
    """The matrices as they are multiplied, and the result's type."""
    sums = len(b) // len(a)
    made = [check_call(a[i // sums], x, None, out_dtype, True if i else allow_tf32) for i, x in enumerate(b)]
    of_a, of_b, kind = made[0]
    for i, (x, y, _) in enumerate(made):
        if x.dtype != of_a.dtype or y.dtype != of_b.dtype:
            name, first = (name_of_b(place, len(a), len(b)) for place in (i, 0))
            one = f"a[{i // sums}] is {x.dtype} and {name}" if len(a) > 1 else f"{name} is"
            raise TensorError(f"{one} {y.dtype}: matrices of one type are multiplied, {first} is {of_b.dtype}")
    if not kind.is_floating_point and (len(b) > 1 or parts.epilogue is not None or parts.gate is not None):
        raise OperandError(f"the product is {kind}, and sums are computed on in float32: say out_dtype=torch.float32")
    if parts.prologue is not None:
        check_type(of_a)
        if not kind.is_floating_point:
            raise OperandError(f"the product is {kind}: a prologue's sums are float32")
    return [x for x, _, _ in made[::sums]], [y for _, y, _ in made], kind


def _shape(a: Tensors, b: Tensors, parts: Parts, m: int) -> tuple[int, ...]:
    """The product's shape. Raises TensorError for matrices that do not meet, OperandError for other ranks."""
    wide, sums = len(a) > 1 and takes_rows(parts), len(b) // len(a)
    indexed = PLACED & set(parts.own)
    for i, y in enumerate(b):
        pair = i // sums
        x, first, name = a[pair], b[pair * sums], name_of_b(i, len(a), len(b))
        fits = x.ndim == y.ndim == 2 or (wide and x.ndim > 1 and y.ndim == 2)
        fits = fits or (not indexed and x.ndim == y.ndim == 3 and x.shape[0] == y.shape[0])
        if not fits:
            shapes = ", ".join(f"{name} of {list(z.shape)}" for name, z in named_operands(a, b).items())
            of = "two matrices, or two batches of as many"
            of = f"two matrices, as {' and '.join(sorted(indexed))} are of their rows" if indexed else of
            raise OperandError(
                f"{shapes}: a product with several parts is of {of}; expand() makes a batch, flatten(0, -3) one of "
                "several dimensions"
            )
        if x.shape[-1] != y.shape[-2]:
            product_shape(x, y)  # raises in torch's words
        same = y.shape == first.shape and y.shape[-1] == b[0].shape[-1]
        if not same or (pair and x.shape[:-1] != (*a[0].shape[:-2], m)):
            of = f"a[{pair}] of {list(x.shape)} and " * (len(a) > 1) + f"{name} of {list(y.shape)}"
            want = f"{m} rows" if len(a) > 1 else f"the shape {list(b[0].shape)}"
            raise TensorError(f"{of}: {want} and {b[0].shape[-1]} columns, as the first has")
    n = b[0].shape[-1] if parts.gate is None else half(b[0].ndim, b[0].shape[-1])
    return (*a[0].shape[:-2], m, n)


def _check_finish(call: ComposedCall, out: torch.Tensor | None) -> None:
    """Raise unless bias, activation and epilogue fit the product."""
    parts, kind = call.parts, call.kind
    bias = call.values.get(BIAS) if BIAS in parts.own else None
    if parts.gate is not None and bias is not None:
        raise OperandError("bias and a gate: Bias() in an epilogue's first `sums` steps comes before it")
    check_finish(bias, None if parts.gate is not None else parts.activation, call.shape, kind)
    if bias is not None and bias.dtype not in READ and not call.plain_pairs:
        raise OperandError(f"bias is {bias.dtype}: beside an order, rows, a prologue or combine= it is a float")
    if parts.epilogue is not None and all(name in call.values for name in parts.written):
        chosen = dict.fromkeys(call.through, call.a[0].shape[-2])
        check_result(parts.epilogue, call.values, kind, call.shape, out, chosen=chosen)


def _check_vectors(call: ComposedCall) -> None:
    """Raise OperandError for vectors of other shapes or types: indices, weights, a prologue's."""
    parts, values, m = call.parts, call.values, call.shape[-2]
    if parts.prologue is not None:
        a = call.a[0]
        check_vectors(parts.prologue, values, {"m": [a.shape[:-1]], "k": [(*a.shape[:-2], a.shape[-1])]})
    for name in [name for name in parts.own if name in PLACED]:
        x = values[name]
        check_indices(name, x, m)
        if (found := known_indices(x)) is not None:
            rows, of = (call.a[0].shape[-2], "a") if name == ROWS else (call.rows, "the result")
            check_inside(name, found, rows, of)
            if name == OUT_ROWS:
                check_distinct(name, found)
    if ROW_WEIGHTS in parts.own:
        check_row_weights(values[ROW_WEIGHTS], m)
    sums = 1 if parts.how is None else parts.how.matrices
    for name, group, size, many in zip(SCALES, parts.promotes or (), (m, call.b[0].shape[-1]), (1, sums)):
        size = call.a[0].shape[-2] if name in call.through else size
        lines = size if many == 1 else -(-size // group) * group * many
        scaled = ScaledOperand(name[-1], call.shape[:-2], lines, -(-call.a[0].shape[-1] // DEPTH))
        scaled.check(SQUARE if group > 1 else BLOCK, values[name])


def check_indices(name: str, x: torch.Tensor, m: int) -> None:
    """Raise OperandError unless `x` has an index for each of the m rows."""
    if x.dtype not in INTS or x.ndim != 1 or x.shape[0] != m:
        # where `rows` itself is no vector, m is the size of one of its dimensions, and would mislead
        of, wanted = f"{x.dtype} of shape {list(x.shape)}", [m] if x.ndim == 1 else "[M]"
        mask = of_mask(name, x.dtype)
        raise OperandError(f"{name} is {of}: int32 or int64 of {wanted}, a row for each row of the product{mask}")


def check_row_weights(x: torch.Tensor, m: int) -> None:
    """Raise OperandError unless `x` has a float32 factor for each of the m rows."""
    if x.dtype != torch.float32 or tuple(x.shape) != (m,):
        of = f"{x.dtype} of shape {list(x.shape)}"
        raise OperandError(f"row_weights is {of}: float32 of {[m]}, a factor for each row of the product")
