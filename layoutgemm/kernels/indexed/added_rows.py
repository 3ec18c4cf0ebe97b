"""Rows of C that several rows of the product are added to. The addition is a kernel of its own, behind the product.

    launch     reads                                 writes
    -------    ----------------------------------    ---------------------------------------------------------------
    product    A, B                                  the workspace: the product's rows in order, in C's type
    sum        row indices, the workspace, C         row r of C += the sum of all rows i with out_rows[i] = r, in f32

A warp has a place in the list of indices, and a run of the row of C that this index names. The first place that names a
row sums it: it adds the rows that name it in the order of i, the same bits on every run. A row that no index names is
not touched, and an index outside of C names none. Both launches are of one host function, on one stream.

Up to `SCANNED` indices are looked at as they are given, all of them by each warp. More are sorted before the launch,
equal ones in their order, and a warp looks at its own row's alone. The sorted indices lie in the workspace:

    behind the product's rows    bytes                             holds
    -------------------------    ------------------------------    -----------------------------------------------------
    order                        8 for each index                  i of each place
    names                        an index's, for each              out_rows[i], smallest first
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

import numpy as np

from ...errors import PlanError
from ...report import Check
from ..numbers import W
from .row_copy import RowCopy
from .rows import OUT_ROWS, IndexedRows

AddingPlan: TypeAlias = Any  # a plan of any architecture: they share no class with all that is read here
SUM = RowCopy(vectors=2, warps=4)  # which run of a row of C a warp has: a lane holds 16 sums of 16-bit elements
SCANNED = 1024  # indices of a matrix at most that are not sorted: sorting them takes longer than looking at all
ORDER_BYTES = 8  # of a place's number: torch.sort has them in int64


def sorted_places(plan: AddingPlan, sizes: tuple[W, W, W]) -> tuple[W, W]:
    """The bytes of the workspace at which the sorted indices' order and names begin.

    sizes  (matrices of C, M, N), ints or traced integers
    """
    matrices, m, n = sizes
    order = matrices * m * RowCopy.pitch(n, plan.c.dtype.bytes) * plan.c.dtype.bytes
    return order, order + matrices * m * ORDER_BYTES


def added_bytes(plan: AddingPlan) -> int:
    """Bytes of the workspace of rows that are added, and of sorted indices. They are 0 where no rows are added.

    >>> from layoutgemm.kernels import RowIndices, Sm90Plan
    >>> added = IndexedRows(scatter=RowIndices(9), adds=True)
    >>> added_bytes(Sm90Plan.derive(512, 100, 64, indexed=added)), added_bytes(Sm90Plan.derive(512, 100, 64))
    (131072, 0)
    """
    if not getattr(plan, "adds_rows", False):
        return 0
    order, names = sorted_places(plan, (plan.matrices_of_c, plan.m, plan.n))
    return int(order if not sorts_rows(plan) else names + plan.matrices_of_c * plan.m * plan.indexed.scatter.bytes)


def sorts_rows(plan: AddingPlan) -> bool:
    """True if a launch reads indices that were sorted before it. No kept launch repeats that.

    >>> from layoutgemm.kernels import RowIndices, Sm90Plan
    >>> added = IndexedRows(scatter=RowIndices(9), adds=True)
    >>> [sorts_rows(Sm90Plan.derive(m, 64, 64, indexed=added)) for m in (SCANNED, SCANNED + 1)]
    [False, True]
    """
    return getattr(plan, "adds_rows", False) and plan.m > SCANNED


def check_added(plan: AddingPlan) -> None:
    """Raise PlanError for a product whose rows are not added to those of C."""
    if not plan.adds_rows:
        return
    schedule = getattr(plan.order, "schedule", plan.order)
    if not schedule.is_full or getattr(schedule, "mirror", False):
        raise PlanError(f"indexed: rows are added whole, and order = {schedule} leaves tiles out")
    ragged = getattr(plan, "ragged", None)
    if ragged is not None and (ragged.ends or ragged.masked):
        raise PlanError("indexed: rows of no group are not computed, and all rows of the product are added")


P = TypeVar("P", bound=AddingPlan)


def in_product_order(plan: P) -> P:
    """The plan of the product alone: its rows in order, to be added afterwards. It is the plan itself where no rows are
    added."""
    if not getattr(plan, "adds_rows", False):
        return plan
    indexed: IndexedRows = plan.indexed
    alone = None if indexed.gather is None else IndexedRows(indexed.gather, copy=indexed.copy)
    found: P = replace(plan, indexed=alone)
    return found


def added_rows(plan: AddingPlan, c: np.ndarray, values: Mapping[str, object] | None) -> np.ndarray:
    """The sums of the product's rows, beside zeros; `c` itself where none are added.

    values  the row indices by name
    """
    if not getattr(plan, "adds_rows", False):
        return c
    assert values is not None
    rows = np.asarray(values[OUT_ROWS]).reshape(plan.matrices_of_c, plan.m)
    found = np.zeros((plan.matrices_of_c, plan.rows_of_c, plan.n), np.float32)
    for sums, named, product in zip(found, rows, c.reshape(-1, plan.m, plan.n)):
        inside = (named >= 0) & (named < plan.rows_of_c)
        np.add.at(sums, named[inside], product[inside])  # one row after the other
    rounded = np.asarray(plan.c.dtype.decode(plan.c.dtype.encode(found)), np.float32)
    return rounded if c.ndim > 2 else rounded[0]


def added_checks(plan: AddingPlan) -> list[Check]:
    """The check of the sums of rows. Each element of an index's row is of one warp. There is no check where no rows are
    added."""
    return [_sums_of_rows(plan)] if plan.adds_rows else []


def _sums_of_rows(plan: AddingPlan) -> Check:
    size, witness, count = plan.c.dtype.bytes, "", 0
    width = 16 // size
    for n in (1, width, SUM.run // size, SUM.run // size + 1, 3 * SUM.run // size - 1):
        times = np.zeros((3, n), np.int64)
        for number in range(3 * SUM.runs(n, size)):
            row, first = SUM.place(number, n, size)
            for vector in range(SUM.vectors):
                at = first + np.asarray(SUM.element(np.arange(32), vector, size))[:, None] + np.arange(width)
                np.add.at(times[row], at[at < n], 1)
        count += times.size
        if (times != 1).any() and not witness:
            row, at = (int(x) for x in np.argwhere(times != 1)[0])
            witness = f"of {n} columns, element {at} of row {row} is summed {int(times[row, at])} times"
    statement = f"a warp of an index has {SUM.run} bytes of its row of C: each element is of one, for {plan.m} indices"
    return Check("add rows", statement, not witness, f"exhaustion ({count} elements)", witness)


def explain_added(plan: AddingPlan) -> list[str]:
    """The second launch as text, where rows are added."""
    if not plan.adds_rows:
        return []
    return [
        f"  added: the product's {plan.m} rows take {added_bytes(plan)} bytes of workspace; a second launch adds those "
        f"of equal indices to {plan.rows_of_c} rows of C, in the order of the product's rows"
        + (", which a sort before the launch finds" if sorts_rows(plan) else "")
    ]
