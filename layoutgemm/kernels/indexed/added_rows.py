"""Rows of C that several rows of the product are added to. Kernels behind the product add.

    launch     reads                                 writes
    -------    ----------------------------------    ---------------------------------------------------------------
    product    A, B                                  the workspace: the product's rows in order, in C's type
    rank       row indices                           the list: indices from the smallest on, equal ones in their order
    chunks     the list, the product's rows, C       row r of C += its sum, of an r whose places lie in one chunk; else
                                                     the sum of its places in the chunk
    fold       the list, those sums, C               row r of C += their sum

Up to `FEW` indices have one launch in place of the last three. A CTA adds the rows of an index to C. Each of its warps
adds `few_places` of them, one after the other. Then the sums of the warps are added, one after the other.

Of more, a chunk is `CHUNK` places of the list. The rows of a chunk's places are added one after the other, in f32. The
sums of chunks are added one after the other. So the bits are the same on every run. A row that no index names is not
touched, and an index outside of C names none. All launches are of one host function, on one stream.

A list of more than `RANKED` indices is sorted by the caller before the launch: counting for each index those before it
takes longer then. In the workspace:

    behind the product's rows    bytes                             holds
    -------------------------    ------------------------------    -----------------------------------------------------
    partial sums                 two rows of f32 for each chunk    of the index that goes on from the chunk before, and
                                                                   of the one that goes on in the next
    order                        8 for each index                  i of each place
    names                        an index's, for each              out_rows[i], smallest first
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

import numpy as np

from ...atoms.copy.base import VECTOR_BYTES, WARP
from ...dtypes import f32
from ...errors import PlanError
from ...report import Check
from ..numbers import W
from ..plan import tile_count
from .row_copy import RowCopy
from .rows import OUT_ROWS, IndexedRows

AddingPlan: TypeAlias = Any  # a plan of any architecture: they share no class with all that is read here
SUM = RowCopy(vectors=2, warps=4)  # which run of a row of C a warp has: a lane holds 16 sums of 16-bit elements
FOLD = RowCopy(vectors=1, warps=4)  # which run of a row of partial sums in f32 a warp has
FEW = 256  # indices of a matrix at most that one launch looks at: each of its warps has all
# Indices of a matrix at most whose first launch begins as soon as SMs are idle. Of more it would begin on the SMs that
# are idle first: 16384 took 323 us for 244.
BESIDE = 1024
FEW_TOGETHER = 8  # rows of few indices whose vectors are loaded before the first is added
CHUNK = WARP  # places that are added one after the other: a lane looks at each
RANKS = 16  # indices whose places a warp counts
RANKED = 16384  # indices of a matrix at most whose places are counted
ORDER_BYTES = 8  # of a place's number: torch.sort has them in int64


def slots_of(m: W) -> W:
    """Partial sums of a matrix with m indices: two a chunk. An int or a traced integer."""
    return tile_count(m, CHUNK) * 2


def few_places(count: W) -> W:
    """Rows of an index that a warp adds, of `count` among few indices. An int or a traced integer.

    >>> [few_places(count) for count in (1, 8, 32, 33, 256)]
    [8, 8, 8, 16, 64]
    """
    return tile_count(count, SUM.warps * FEW_TOGETHER) * FEW_TOGETHER


def list_bytes(plan: AddingPlan, sizes: tuple[W, W, W]) -> tuple[W, W, W]:
    """The bytes of the workspace at which partial sums, order and names begin.

    sizes  (matrices of C, M, N), ints or traced integers
    """
    matrices, m, n = sizes
    partials = matrices * m * RowCopy.pitch(n, plan.c.dtype.bytes) * plan.c.dtype.bytes
    order = partials + matrices * slots_of(m) * RowCopy.pitch(n, f32.bytes) * f32.bytes
    return partials, order, order + matrices * m * ORDER_BYTES


def added_bytes(plan: AddingPlan) -> int:
    """Bytes of the workspace of rows that are added. Few indices need the product's rows alone; no added rows, 0 bytes.

    >>> from layoutgemm.kernels import RowIndices, Sm90Plan
    >>> added = IndexedRows(scatter=RowIndices(9), adds=True)
    >>> [added_bytes(Sm90Plan.derive(m, 100, 64, indexed=added)) for m in (512, 256, 1)]
    [153600, 65536, 256]
    """
    if not getattr(plan, "adds_rows", False):
        return 0
    partials, _, names = list_bytes(plan, (plan.matrices_of_c, plan.m, plan.n))
    if plan.m <= FEW and not sorts_rows(plan):
        return int(partials)
    return int(names + plan.matrices_of_c * plan.m * plan.indexed.scatter.bytes)


def sorts_rows(plan: AddingPlan) -> bool:
    """True if a launch reads indices that were sorted before it. No kept launch repeats that.

    >>> from layoutgemm.kernels import RowIndices, Sm90Plan
    >>> added = IndexedRows(scatter=RowIndices(9), adds=True)
    >>> [sorts_rows(Sm90Plan.derive(m, 64, 64, indexed=added)) for m in (RANKED, RANKED + 1)]
    [False, True]
    """
    return getattr(plan, "adds_rows", False) and plan.m > RANKED


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
    alone = None if indexed.gather is None else IndexedRows(indexed.gather, None, indexed.copy, through=indexed.through)
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
        order = np.argsort(named, kind="stable")
        inside_c = (named >= 0) & (named < plan.rows_of_c)
        for of_chunk in _added_together(plan, named, order):
            place, inside = np.zeros_like(sums), of_chunk[inside_c[of_chunk]]
            np.add.at(place, named[inside], product[inside])  # one row after the other
            sums += place
    rounded = np.asarray(plan.c.dtype.decode(plan.c.dtype.encode(found)), np.float32)
    return rounded if c.ndim > 2 else rounded[0]


def _added_together(plan: AddingPlan, named: np.ndarray, order: np.ndarray) -> list[np.ndarray]:
    """Places of the sorted list that are added to one sum each. Those sums are added in this order."""
    if plan.m > FEW:
        return [order[first : first + CHUNK] for first in range(0, plan.m, CHUNK)]
    equal = np.split(order, np.flatnonzero(np.diff(named[order])) + 1)
    return [x[first : first + few_places(len(x))] for x in equal for first in range(0, len(x), few_places(len(x)))]


def added_checks(plan: AddingPlan) -> list[Check]:
    """The check of the sums of rows. Each element of an index's row is of one warp. There is no check where no rows are
    added."""
    return [_sums_of_rows(plan)] if plan.adds_rows else []


def _sums_of_rows(plan: AddingPlan) -> Check:
    witness, count = "", 0
    for run, size in ((SUM, plan.c.dtype.bytes), (FOLD, f32.bytes)):
        width = VECTOR_BYTES // size
        for n in (1, width, run.run // size, run.run // size + 1, 3 * run.run // size - 1):
            times = np.zeros((3, n), np.int64)
            for number in range(3 * run.runs(n, size)):
                row, first = run.place(number, n, size)
                for vector in range(run.vectors):
                    at = first + np.asarray(run.element(np.arange(WARP), vector, size))[:, None] + np.arange(width)
                    np.add.at(times[row], at[at < n], 1)
            count += times.size
            if (times != 1).any() and not witness:
                row, element = (int(x) for x in np.argwhere(times != 1)[0])
                witness = f"of {n} columns, element {element} of row {row} is summed {int(times[row, element])} times"
    statement = (
        f"a warp of a place has {SUM.run} bytes of its row of C, one of a chunk {FOLD.run} bytes of partial sums: each "
        f"element is of one, for {plan.m} indices"
    )
    return Check("add rows", statement, not witness, f"exhaustion ({count} elements)", witness)


def explain_added(plan: AddingPlan) -> list[str]:
    """The second launch as text, where rows are added."""
    if not plan.adds_rows:
        return []
    return [
        f"  added: the product's {plan.m} rows take {added_bytes(plan)} bytes of workspace; {_launches(plan)}"
        + (", which are sorted before the launch" if sorts_rows(plan) else "")
    ]


def _launches(plan: AddingPlan) -> str:
    to = f"those of equal indices to {plan.rows_of_c} rows of C"
    if plan.m <= FEW:
        return f"a further launch adds {to}"
    return f"further launches add {to}, {CHUNK} places of the sorted indices at a time"
