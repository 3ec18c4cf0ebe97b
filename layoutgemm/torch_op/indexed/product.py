"""Products with row indices: checked, then by one kernel, or on the CPU in float64.

    product row i     C[out_rows[i]] = row_weights[i] * activation(A[rows[i]] @ B), or B[e] of the row's group

Without `rows` row i of A is read, without `out_rows` row i of the result is written. The result of `out_rows` without
an `out` has as many rows as the product, and zeros where no index names a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch

from ...dtypes import dtype
from ...errors import OperandError, TensorError
from ...kernels.epilogue.chain import Activation, Epilogue, VectorScale
from ...kernels.run.operand_checks import addressed, check_operands
from ...kernels.sm90.config import Sm90Config
from ...kernels.sm90.grouped import Ragged
from ...kernels.sm90.indexed.choose import indexed_config
from ...kernels.sm90.indexed.rows import IndexedRows, RowIndices, check_distinct, check_inside
from ...kernels.sm90.plan import Sm90Plan
from ..bias_activation import by_torch
from ..checks import check_activation, check_device, stored_as
from ..prepared import on_gpu
from ..reference import exact
from ..scaled_grouped.grouped import OFFSETS, check_values
from ..scaled_grouped.kept import NOT_KEPT, Keeping, launch, require_hopper
from ..scaled_grouped.scaled import FP8
from ..types import C_NAMES, NAMES

MULTIPLIED = (torch.bfloat16, torch.float16, *FP8)
WEIGHTS = "row_weights"
_INDICES = {torch.int32: "i32", torch.int64: "i64"}


class IndexedOperands(NamedTuple):
    """The tensors of a call, None for those that are not given.

    a, b      (rows of A, K) and (K, N), or (groups, K, N) with `offsets`
    rows, out_rows, row_weights   vectors of the product's rows
    """

    a: torch.Tensor
    b: torch.Tensor
    rows: torch.Tensor | None = None
    out_rows: torch.Tensor | None = None
    row_weights: torch.Tensor | None = None
    offsets: torch.Tensor | None = None

    @property
    def named(self) -> dict[str, torch.Tensor]:
        """Those that are given, by name."""
        return {name: x for name, x in self._asdict().items() if x is not None}

    @property
    def m(self) -> int:
        """Rows of the product."""
        return self.a.shape[0] if self.rows is None else self.rows.shape[0]


class IndexedCall(NamedTuple):
    """A checked call: the result's type and shape, and the activation."""

    kind: torch.dtype
    shape: tuple[int, int]
    activation: str | None


# --------------------------------------------------------------------------------------------------------------- checks


def check_indexed(
    given: IndexedOperands, out: torch.Tensor | None, activation: str | None, out_dtype: object
) -> IndexedCall:
    """The call of dense tensors of one device.

    Raises OperandError or TensorError, naming the operand. Values of indices are looked at on the CPU alone.
    """
    check_operands(given.named, {} if out is None else {"out": out})
    a, b = given.a, given.b
    check_device(a)
    for name, x in (("a", a), ("b", b)):
        if x.dtype not in MULTIPLIED:
            known = ", ".join(str(kind).removeprefix("torch.") for kind in MULTIPLIED)
            raise OperandError(f"{name} is {x.dtype}: a product with row indices is of {known}")
    if a.dtype != b.dtype and not {a.dtype, b.dtype} <= set(FP8):
        raise TensorError(f"expected a and b to have the same dtype, but got: {a.dtype} != {b.dtype}")
    groups = given.offsets is not None
    if a.ndim != 2 or b.ndim != 2 + groups or a.shape[1] != b.shape[-2]:
        want = "(rows, K) and (groups, K, N), with offsets" if groups else "(rows, K) and (K, N)"
        raise TensorError(f"a and b have shapes {list(a.shape)} and {list(b.shape)}: row indices take {want}")
    check_activation(activation)
    if activation in ("swiglu", "geglu"):
        raise OperandError(f"activation {activation!r}: a product with row indices is not gated")
    _check_vectors(given)
    kind = stored_as(a.dtype, out_dtype)
    shape = given.m, b.shape[-1]
    if out is not None:
        _check_out(out, given, kind, shape)
        shape = (out.shape[0], shape[1])
    if addressed(a) and a.device.type == "cpu":
        _check_values(given, shape[0])
    return IndexedCall(kind, shape, activation)


def _check_vectors(given: IndexedOperands) -> None:
    m = given.m
    for name, x in (("rows", given.rows), ("out_rows", given.out_rows)):
        if x is not None and (x.dtype not in _INDICES or x.ndim != 1 or x.shape[0] != m):
            of = f"{x.dtype} of shape {list(x.shape)}"
            raise OperandError(f"{name} is {of}: int32 or int64 of {[m]}, a row for each row of the product")
    weights = given.row_weights
    if weights is not None and (weights.dtype != torch.float32 or tuple(weights.shape) != (m,)):
        of = f"{weights.dtype} of shape {list(weights.shape)}"
        raise OperandError(f"row_weights is {of}: float32 of {[m]}, a factor for each row of the product")
    offsets = given.offsets
    if offsets is not None:
        wanted = given.b.shape[0] + 1
        if offsets.dtype not in _INDICES or offsets.ndim != 1 or offsets.shape[0] != wanted:
            of = f"{offsets.dtype} of shape {list(offsets.shape)}"
            raise OperandError(f"offsets is {of}: int32 or int64 of {[wanted]}, where each group begins, and the end")
        if wanted < 2:
            raise OperandError("b has no group")


def _check_out(out: torch.Tensor, given: IndexedOperands, kind: torch.dtype, shape: tuple[int, int]) -> None:
    rows = out.shape[0] if given.out_rows is not None and out.ndim == 2 else shape[0]
    if tuple(out.shape) != (rows, shape[1]):
        raise TensorError(f"out has shape {list(out.shape)}, the product {list(shape)}: it is not resized")
    if out.dtype != kind:
        raise TensorError(f"Expected out tensor to have dtype {kind}, but got {out.dtype} instead; out_dtype chooses")


def _check_values(given: IndexedOperands, rows_of_c: int) -> None:
    """The indices and offsets of CPU tensors."""
    if given.rows is not None:
        check_inside("rows", given.rows.numpy(), given.a.shape[0], "a")
    if given.out_rows is not None:
        check_inside("out_rows", given.out_rows.numpy(), rows_of_c, "the result")
        check_distinct("out_rows", given.out_rows.numpy())
    if given.offsets is not None:
        check_values(given.offsets.tolist(), OFFSETS, given.a.new_empty((given.m, 0)), given.b)


# ------------------------------------------------------------------------------------------------------------- products


def indexed_product(
    call: IndexedCall, given: IndexedOperands, config: Sm90Config | None = None, out: torch.Tensor | None = None,
    key: tuple[object, ...] = (),
) -> torch.Tensor:  # fmt: skip
    """The product, computed now: a new tensor, or `out`; `key` of a launch that is kept.

    Raises OperandError for a GPU without such kernels.
    """
    a, b = given.a, given.b
    if 0 in (given.m, *call.shape, a.shape[1]):
        return _empty(call, given, out)
    if a.shape[0] == 0:
        raise OperandError(f"a has no rows, and rows has {given.m} indices")
    if not on_gpu(a.get_device()):
        return placed(call, given, _on_cpu(call, given), out)
    require_hopper(a.get_device(), "a product with row indices")
    vectors = {name: x.contiguous() for name, x in given.named.items() if name not in ("a", "b")}
    weights = {WEIGHTS: vectors.pop(WEIGHTS)} if WEIGHTS in vectors else {}
    kinds = tuple((name, _INDICES[x.dtype]) for name, x in vectors.items())
    sizes = given.m, b.shape[-1], a.shape[1], a.shape[0], call.shape[0]
    types = NAMES[a.dtype], f"{NAMES[b.dtype]}:{_order_of(b)}", C_NAMES[call.kind]
    plan = plan_of(sizes, types, b.shape[0] if b.ndim == 3 else 0, kinds, (call.activation, bool(weights)), config)
    copied = not all(x.is_contiguous() for name, x in given.named.items() if name not in ("a", "b"))
    return launch(NOT_KEPT if copied else Keeping(key), plan, a, b, vectors, weights, out)


@lru_cache(maxsize=1024)
def plan_of(
    sizes: tuple[int, int, int, int, int], types: tuple[str, str, str], groups: int,
    kinds: Sequence[tuple[str, str]], finish: tuple[str | None, bool], config: Sm90Config | None,
) -> Sm90Plan:  # fmt: skip
    """The plan of a call.

    sizes   M, N, K, rows of A and of C
    groups  of rows, or 0
    kinds   the types of the index vectors and of the offsets, by name
    finish  the activation, and whether rows have weights
    """
    m, n, k, rows_of_a, rows_of_c = sizes
    named = dict(kinds)
    gather = RowIndices(rows_of_a, named["rows"]) if "rows" in named else None
    scatter = RowIndices(rows_of_c, named["out_rows"]) if "out_rows" in named else None
    steps = [Activation(finish[0])] if finish[0] is not None else []
    epilogue = Epilogue(*steps, *([VectorScale("m", "f32", WEIGHTS)] if finish[1] else []))
    if config is None:
        wide = dtype(types[2]).bits == 32
        config = indexed_config((m, n, k, max(groups, 1)), gather is not None, groups > 0, wide)
    return Sm90Plan.derive(
        m, n, k, batch=max(groups, 1), a=types[0], b=types[1], c=types[2], config=config,
        ragged=Ragged.of(groups, named[OFFSETS]) if groups else None, epilogue=epilogue or None,
        indexed=IndexedRows(gather, scatter),
    )  # fmt: skip


def _order_of(b: torch.Tensor) -> str:
    """The order in which the kernel reads B: 8-bit types with K contiguous alone."""
    return "col" if b.dtype in FP8 or (b.stride(-2) == 1 and b.stride(-1) != 1) else "row"


def _on_cpu(call: IndexedCall, given: IndexedOperands) -> torch.Tensor:
    """The product's rows in float64, rounded once."""
    a = given.a if given.rows is None else selected(given.a, given.rows)
    if given.offsets is None:
        wide = exact(a, given.b)
    else:
        ends = given.offsets.tolist()
        wide = torch.cat([exact(a[first:end], b) for first, end, b in zip(ends, ends[1:], given.b)])
    if call.activation is not None:
        wide = by_torch(wide, None, call.activation, torch.float64)
    weights = given.row_weights
    return by_torch(wide if weights is None else wide * weights.double()[:, None], None, None, call.kind)


def placed(call: IndexedCall, given: IndexedOperands, value: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    """The product's rows in a new result, or in `out`, where `out_rows` says."""
    if given.out_rows is None:
        return value if out is None else out.copy_(value)
    return scattered(value.new_zeros(call.shape) if out is None else out, given.out_rows, value)


# As in the kernel, an index outside reads zeros and writes nothing: torch's own functions end a GPU's context there.


def _inside(indices: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A mask of indices inside of so many rows, as a column, and clamped ones."""
    return ((indices >= 0) & (indices < rows)).unsqueeze(-1), indices.clamp(0, rows - 1).long()


def selected(x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """The rows of x that indices name, zeros for those outside.

    >>> selected(torch.tensor([[1.0], [2.0]]), torch.tensor([1, -1, 2])).tolist()
    [[2.0], [0.0], [0.0]]
    """
    inside, named = _inside(indices, x.shape[0])
    return torch.where(inside, x.index_select(0, named), 0)


def added(x: torch.Tensor, indices: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """x with each of the rows added to the one that its index names; those outside are dropped.

    >>> added(torch.zeros(2, 1), torch.tensor([1, 2, 1]), torch.tensor([[1.0], [2.0], [3.0]])).tolist()
    [[0.0], [4.0]]
    """
    inside, named = _inside(indices, x.shape[0])
    return x.index_add(0, named, torch.where(inside, rows, 0))


def scattered(into: torch.Tensor, indices: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """`into`, with rows copied to where their indices say; those outside are dropped.

    >>> scattered(torch.zeros(2, 1), torch.tensor([1, 2]), torch.tensor([[1.0], [2.0]])).tolist()
    [[0.0], [1.0]]
    """
    if 0 in (*into.shape, rows.shape[0]):
        return into
    inside, _ = _inside(indices, into.shape[0])
    # The product's row of each row of `into`, by one place more, for all that are outside.
    numbers = torch.arange(rows.shape[0], device=into.device)
    sources = numbers.new_full((into.shape[0] + 1,), -1)
    sources.index_copy_(0, torch.where(inside.squeeze(-1), indices, into.shape[0]).long(), numbers)
    source = sources[:-1]
    return into.copy_(torch.where((source >= 0).unsqueeze(-1), rows.index_select(0, source.clamp(min=0)), into))


def _empty(call: IndexedCall, given: IndexedOperands, out: torch.Tensor | None) -> torch.Tensor:
    """Sums of nothing: an activation of 0, in the product's rows."""
    wide = torch.zeros((given.m, call.shape[1]), dtype=torch.float32, device=given.a.device)
    value = by_torch(wide, None, call.activation, torch.float32)
    value = value if given.row_weights is None else value * given.row_weights[:, None]
    return placed(call, given, value.to(call.kind), out)
