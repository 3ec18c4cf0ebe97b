"""Products with row indices: checked, then by one kernel, or on the CPU in float64.

    product row i     C[out_rows[i]] = row_weights[i] * activation(A[rows[i]] @ B), or B[e] of the row's group
    of a batch        C[l, i] = activation(A[l, rows[l, i]] @ B[l]); of masked groups, where i < counts[l]

Without `rows` row i of A is read, without `out_rows` row i of the result is written. The result of `out_rows` without
an `out` has as many rows as the product, and zeros where no index names a row.

A's rows are gathered by the product's kernel, or copied by a kernel before it, in the same launch: see
`kernels.sm90.indexed.row_copy`. Batches, masked groups and gates are always of copied rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ...arguments import shown
from ...errors import OperandError, TensorError
from ...kernels.indexed.rows import check_distinct, check_inside
from ...kernels.run.operand_checks import addressed, check_operands
from ...kernels.sm90.config import Sm90Config
from ..bias_activation import GATES, by_torch, gate_by_torch
from ..checks import check_activation, check_alike, check_device, copied, stored_as, tracing_state
from ..composed.checks import check_indices, check_row_weights, checked
from ..composed.parts import AskedParts, parts_of_text, parts_text
from ..composed.product import computed
from ..prepared import gpu, on_gpu, target
from ..problem import asks_tcgen05, half
from ..reference import exact, rounded
from ..scaled_grouped.by_mma import batch_config, by_mma, mma_plan
from ..scaled_grouped.gated import why_by_torch
from ..scaled_grouped.grouped import BATCH, COUNTS, INTS, MASKED, OFFSETS, GroupedCall, check_values, grouped_product
from ..scaled_grouped.kept import NOT_KEPT, KeptKey, launch
from ..scaled_grouped.scaled import FP8, BiasActivation
from ..types import C_NAMES, NAMES, GroupsConfig, GroupsPlan, listed
from .added import added
from .plans import WEIGHTS, IndexedShape, mma_product, plan_of
from .torch_rows import gathered, indices_of, scattered, selected

MULTIPLIED = (torch.bfloat16, torch.float16, *FP8)


class IndexedOperands(NamedTuple):
    """The tensors of a call, None for those that are not given.

    a, b      (rows of A, K) and (K, N), or (groups, K, N) with `offsets`. Of a batch (batch, rows of A, K), or one
              matrix for all, and (batch, K, N)
    rows, out_rows, row_weights   vectors of the product's rows; of a batch `rows` alone, (batch, M)
    counts    rows of each matrix of the batch that are computed, or None for all
    add_rows  in place of out_rows: rows of the product are added to those of the result
    """

    a: torch.Tensor
    b: torch.Tensor
    rows: torch.Tensor | None = None
    out_rows: torch.Tensor | None = None
    row_weights: torch.Tensor | None = None
    offsets: torch.Tensor | None = None
    counts: torch.Tensor | None = None
    add_rows: torch.Tensor | None = None

    @property
    def named(self) -> dict[str, torch.Tensor]:
        """Those that are given, by name; a and b always."""
        return {name: x for name, x in self._asdict().items() if x is not None or name in ("a", "b")}

    @property
    def m(self) -> int:
        """Rows of the product, of each matrix of a batch."""
        if self.rows is None:
            return self.a.shape[-2]
        return self.rows.shape[-1] if self.rows.ndim else 1  # the check of the vectors refuses a scalar

    @property
    def places(self) -> bool:
        """True if the product's rows are not those of the result."""
        return self.out_rows is not None or self.add_rows is not None

    @property
    def in_order(self) -> IndexedOperands:
        """The same product with its rows in order."""
        return self._replace(out_rows=None, add_rows=None)

    @property
    def batched(self) -> bool:
        """True if the rows are those of a batch of matrices."""
        return self.offsets is None and self.b.ndim == 3


class IndexedCall(NamedTuple):
    """A checked call: the result's type and shape, and the activation."""

    kind: torch.dtype
    shape: tuple[int, ...]
    activation: str | None

    @property
    def gate(self) -> str | None:
        """The function of a gate, or None."""
        return GATES.get(self.activation) if self.activation is not None else None


# --------------------------------------------------------------------------------------------------------------- checks


def check_indexed(
    given: IndexedOperands, out: torch.Tensor | None, activation: str | None, out_dtype: object
) -> IndexedCall:
    """Check the operands, and return the call: dense tensors of one device.

    Raises OperandError or TensorError, naming the operand. The values of indices are checked on the CPU only.
    """
    check_operands(given.named, {} if out is None else {"out": out})
    a, b = given.a, given.b
    check_device(a)
    for name, x in (("a", a), ("b", b)):
        if x.dtype not in MULTIPLIED:
            raise OperandError(f"{name} is {x.dtype}: a product with row indices is of {listed(MULTIPLIED)}")
    check_alike(a, b)
    _check_shapes(given)
    check_activation(activation)
    _check_vectors(given)
    kind = stored_as(a.dtype, out_dtype)
    call = IndexedCall(kind, (), activation)
    if call.gate is not None and given.batched and given.counts is None:
        raise OperandError(f"activation {shown(activation)}: a gate of a batch's products takes counts=")
    columns = b.shape[-1] if call.gate is None else half(b.ndim, b.shape[-1])
    shape = (*b.shape[:1], given.m, columns) if given.batched else (given.m, columns)
    if out is not None:
        _check_out(out, given, kind, shape)
        shape = tuple(out.shape)
    if a.device.type == "cpu" and tracing_state() is None and all(map(addressed, given.named.values())):
        _check_values(given, shape[-2])
    return call._replace(shape=shape)


def _check_shapes(given: IndexedOperands) -> None:
    """Raise TensorError for shapes that do not meet, OperandError for what a batch lacks."""
    a, b, groups, batched = given.a, given.b, given.offsets is not None, given.batched
    if given.counts is not None and not batched:
        raise OperandError("counts: row indices of masked groups are of a (groups, K, N) b without offsets")
    fits = a.ndim == 2 or (batched and a.ndim == 3 and a.shape[0] == b.shape[0])
    if not fits or b.ndim != 2 + (groups or batched) or a.shape[-1] != b.shape[-2]:
        want = "(rows, K) and (groups, K, N), with offsets" if groups else "(rows, K) and (K, N)"
        want = "(batch, rows, K), or (rows, K) for all, and (batch, K, N)" if batched else want
        raise TensorError(f"a and b have shapes {list(a.shape)} and {list(b.shape)}: row indices take {want}")
    if not batched:
        return
    for name in ("out_rows", "add_rows", "row_weights"):
        if getattr(given, name) is not None:
            raise OperandError(f"{name}: the rows of a batch are gathered alone; groups by offsets= take {name}")
    rows, wanted = given.rows, (b.shape[0],)
    if rows is None or rows.ndim != 2 or rows.shape[0] != b.shape[0] or rows.dtype not in INTS:
        of = "None" if rows is None else f"{rows.dtype} of shape {list(rows.shape)}"
        raise OperandError(f"rows is {of}: int32 or int64 of [{b.shape[0]}, M], rows of each matrix's product")
    counts = given.counts
    if counts is not None and (counts.dtype not in INTS or tuple(counts.shape) != wanted):
        of = f"{counts.dtype} of shape {list(counts.shape)}"
        raise OperandError(f"counts is {of}: int32 or int64 of {list(wanted)}, the rows of each group that there are")


def _check_vectors(given: IndexedOperands) -> None:
    m = given.m
    if given.out_rows is not None and given.add_rows is not None:
        raise OperandError("out_rows and add_rows: rows of the product are placed, or added to each other; give one")
    vectors = (
        ("rows", None if given.batched else given.rows),
        ("out_rows", given.out_rows),
        ("add_rows", given.add_rows),
    )
    for name, x in vectors:
        if x is not None:
            check_indices(name, x, m)
    if given.row_weights is not None:
        check_row_weights(given.row_weights, m)
    offsets = given.offsets
    if offsets is not None:
        wanted = given.b.shape[0] + 1
        if offsets.dtype not in INTS or offsets.ndim != 1 or offsets.shape[0] != wanted:
            of = f"{offsets.dtype} of shape {list(offsets.shape)}"
            raise OperandError(f"offsets is {of}: int32 or int64 of {[wanted]}, where each group begins, and the end")
        if wanted < 2:
            raise OperandError("b has no group")


def _check_out(out: torch.Tensor, given: IndexedOperands, kind: torch.dtype, shape: tuple[int, ...]) -> None:
    rows = out.shape[0] if given.places and out.ndim == 2 else shape[-2]
    if tuple(out.shape) != (*shape[:-2], rows, shape[-1]):
        raise TensorError(f"out has shape {list(out.shape)}, the product {list(shape)}: it is not resized")
    if out.dtype != kind:
        raise TensorError(f"Expected out tensor to have dtype {kind}, but got {out.dtype} instead; out_dtype chooses")


def _check_values(given: IndexedOperands, rows_of_c: int) -> None:
    """The indices and offsets of CPU tensors."""
    if given.counts is not None:
        check_values(given.counts.tolist(), COUNTS, given.a.new_empty((1, given.m, 0)), given.b)
    if given.rows is not None:
        for row_indices, count in zip(*_counted(given)):
            check_inside("rows", row_indices[:count], given.a.shape[-2], "a")
    if given.add_rows is not None:
        check_inside("add_rows", indices_of(given.add_rows), rows_of_c, "the result")
    if given.out_rows is not None:
        check_inside("out_rows", indices_of(given.out_rows), rows_of_c, "the result")
        check_distinct("out_rows", indices_of(given.out_rows))
    if given.offsets is not None:
        check_values(given.offsets.tolist(), OFFSETS, given.a.new_empty((given.m, 0)), given.b)


def _counted(given: IndexedOperands) -> tuple[list[Any], list[int]]:
    """The indices of each matrix's rows as NumPy arrays, and how many count."""
    assert given.rows is not None
    rows = indices_of(given.rows)
    lines = list(rows) if given.batched else [rows]
    return lines, [given.m] * len(lines) if given.counts is None else given.counts.tolist()


# ------------------------------------------------------------------------------------------------------------- products


def indexed_product(
    call: IndexedCall, given: IndexedOperands, config: Sm90Config | None = None, out: torch.Tensor | None = None,
    key: tuple[object, ...] = (), copies: bool | None = None,
) -> torch.Tensor:  # fmt: skip
    """The product, computed now: a new tensor, or `out`. `key` of a launch that is kept.

    copies  whether A's rows are copied first; None for the way that is estimated faster

    Raises OperandError for a GPU without such kernels.
    """
    a, b = given.a, given.b
    if 0 in (given.m, *call.shape, a.shape[-1]):
        return _empty(call, given, out)
    if a.shape[-2] == 0:
        raise OperandError(f"a has no rows, and rows has {given.m} indices")
    if not on_gpu(a.get_device()):
        return placed(call, given, _on_cpu(call, given), out)
    if (
        target(a.get_device(), config)[0] != "sm_90a"
        and not given.batched
        and given.offsets is None
        and call.gate is None
    ):
        return _by_parts(call, given, out, config if asks_tcgen05(config) else None)
    mma = by_mma(a.get_device(), config)
    if mma and given.batched:
        return _gathered_first(call, given, config, out)
    if call.gate is not None and (given.places or why_by_torch(b)):
        return _gated_in_steps(call, given, config, out, copies)
    if given.batched and b.shape[0] == 1:
        return _one_matrix(call, given, config, out, copies)
    vectors = {name: x.contiguous() for name, x in given.named.items() if name not in ("a", "b")}
    copied = not all(x.is_contiguous() for name, x in given.named.items() if name not in ("a", "b"))
    weights = {WEIGHTS: vectors.pop(WEIGHTS)} if WEIGHTS in vectors else {}
    if "add_rows" in vectors:  # the kernel's name of either vector
        vectors["out_rows"] = vectors.pop("add_rows")
    if given.batched:
        a, vectors["rows"] = a.expand(b.shape[0], *a.shape[-2:]), vectors["rows"].view(-1)
    of = shape_of(call, given, config)
    plan: GroupsPlan
    if mma:
        plan, _ = mma_plan(mma_product(of, copies), a.get_device(), config)
    else:
        plan = plan_of(of, config, copies)
    return launch(NOT_KEPT if copied else KeptKey(key), plan, a, b, vectors, weights, out)


def _by_parts(
    call: IndexedCall, given: IndexedOperands, out: torch.Tensor | None, config: GroupsConfig | None
) -> torch.Tensor:
    """The product by another GPU's kernel: by mma.sync, which gathers as it copies, or by tcgen05, whose TMA gathers.

    config  of tcgen05, or None
    """
    values = {name: x for name, x in given.named.items() if name not in ("a", "b")}
    parts = parts_of_text(parts_text(AskedParts(activation=call.activation), 1, tuple(values), ()))
    return computed(checked([given.a], [given.b], parts, values, out, call.kind, None), batch_config(config), out)


def _gathered_first(
    call: IndexedCall, given: IndexedOperands, config: GroupsConfig | None, out: torch.Tensor | None
) -> torch.Tensor:
    """A batch, or masked groups, of rows that torch gathers: no kernel of mma.sync gathers those of a batch."""
    assert given.rows is not None
    each = given.a.expand(given.b.shape[0], *given.a.shape[-2:])
    a = torch.stack([gathered(x, i) for x, i in zip(each, given.rows)])
    form, said = (BATCH, "") if given.counts is None else (MASKED, COUNTS)
    inner = GroupedCall(form, said, given.b.shape[0], None, call.kind, call.shape)
    return grouped_product(
        inner, a, given.b, given.counts, finish=BiasActivation(None, call.activation), config=config, out=out
    )


def ungated(call: IndexedCall, given: IndexedOperands) -> tuple[IndexedCall, IndexedOperands]:
    """The product of gate and up columns in float32, in order and without weights."""
    shape = (*call.shape[:-2], given.m, given.b.shape[-1])
    return IndexedCall(torch.float32, shape, None), given.in_order._replace(row_weights=None)


def _gated_in_steps(
    call: IndexedCall, given: IndexedOperands, config: Sm90Config | None, out: torch.Tensor | None, copies: bool | None
) -> torch.Tensor:  # fmt: skip
    """A gated product whose rows torch scatters, or whose columns torch gates: no kernel does both."""
    if not why_by_torch(given.b):
        in_order = call._replace(shape=(given.m, call.shape[-1]))
        value = indexed_product(in_order, given.in_order, config, None, (), copies)
        return placed(call, given, value, out)
    every, plain = ungated(call, given)
    value = indexed_product(every, plain, config, None, (), copies)
    value = gate_by_torch(value, None, str(call.activation), torch.float32)
    value = value if given.row_weights is None else value * given.row_weights[:, None]
    return placed(call, given, rounded(value, call.kind), out)


def _one_matrix(
    call: IndexedCall, given: IndexedOperands, config: Sm90Config | None, out: torch.Tensor | None, copies: bool | None
) -> torch.Tensor:  # fmt: skip
    """A batch of one: its plan has none. Of masked groups all rows are computed, and those that count are kept."""
    a = given.a if given.a.ndim == 2 else given.a[0]
    assert given.rows is not None
    inner = IndexedOperands(a, given.b[0], given.rows[0])
    into = None if out is None or given.counts is not None else out[0]
    value = indexed_product(call._replace(shape=call.shape[1:]), inner, config, into, (), copies).unsqueeze(0)
    if out is None:
        return value
    return out if into is not None else placed(call, given, value, out)


def shape_of(call: IndexedCall, given: IndexedOperands, config: object = None) -> IndexedShape:
    """All of a call that decides on its plan."""
    a, b = given.a, given.b
    kinds = tuple((name, INTS[x.dtype]) for name, x in given.named.items() if x.dtype in INTS)
    order = "row" if why_by_torch(b) else "col"  # in which the kernel reads B
    types = NAMES[a.dtype], f"{NAMES[b.dtype]}:{order}", C_NAMES[call.kind]
    sizes = given.m, call.shape[-1], a.shape[-1], a.shape[-2], call.shape[-2]
    activation = call.activation if call.gate is None else None
    groups, weighted = b.shape[0] if b.ndim == 3 else 0, given.row_weights is not None
    return IndexedShape(sizes, types, groups, kinds, activation, call.gate, weighted, *gpu(a.get_device(), config))


def _on_cpu(call: IndexedCall, given: IndexedOperands) -> torch.Tensor:
    """The product's rows in float64, rounded once."""
    if given.batched:
        assert given.rows is not None
        matrices = given.a.expand(given.b.shape[0], *given.a.shape[-2:])
        indices = given.rows if given.counts is None else torch.where(counted(given), given.rows, -1)
        wide = torch.stack([exact(selected(a, i), b) for a, i, b in zip(matrices, indices, given.b)])
    elif given.offsets is None:
        wide = exact(given.a if given.rows is None else selected(given.a, given.rows), given.b)
    else:
        a, ends = given.a if given.rows is None else selected(given.a, given.rows), given.offsets.tolist()
        wide = torch.cat([exact(a[first:end], b) for first, end, b in zip(ends, ends[1:], given.b)])
    if call.gate is not None:
        wide = gate_by_torch(wide, None, str(call.activation), torch.float64)
    elif call.activation is not None:
        wide = by_torch(wide, None, call.activation, torch.float64)
    weights = given.row_weights
    return by_torch(wide if weights is None else wide * weights.double()[:, None], None, None, call.kind)


def placed(call: IndexedCall, given: IndexedOperands, value: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    """The product's rows in a new result or `out`. They go to rows `out_rows`, or to those that count."""
    if given.counts is not None and out is not None:
        return copied(torch.where(counted(given).unsqueeze(-1), value, out), out)
    if given.add_rows is not None:
        first = value.new_zeros(call.shape) if out is None else out
        return copied(added(first, given.add_rows, value), out)
    if given.out_rows is None:
        return copied(value, out)
    return copied(scattered(value.new_zeros(call.shape) if out is None else out, given.out_rows, value), out)


def counted(given: IndexedOperands) -> torch.Tensor:
    """A mask of the rows of each matrix that are computed."""
    assert given.counts is not None
    return torch.arange(given.m, device=given.a.device) < given.counts.unsqueeze(-1)


def _empty(call: IndexedCall, given: IndexedOperands, out: torch.Tensor | None) -> torch.Tensor:
    """Sums of nothing: an activation of 0, in the product's rows."""
    wide = torch.zeros((*call.shape[:-2], given.m, call.shape[-1]), dtype=torch.float32, device=given.a.device)
    value = wide if call.gate is not None else by_torch(wide, None, call.activation, torch.float32)
    value = value if given.row_weights is None else value * given.row_weights[:, None]
    return placed(call, given, value.to(call.kind), out)
