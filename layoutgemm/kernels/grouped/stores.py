"""Stores of C that end with a group of rows.

A TMA store ends at its tensor's extents, and a group's end is not one. So C's map has the end as a dimension:

    dimension   extent      distance     coordinate
    n           N           1            column
    m           R           a row        R - valid
    stop        M + 1       a row        the first row that is not stored

over a tensor that begins R rows before C, where R is the rows of a box. Row r of the box lies at row stop - R + r of C,
and rows from R on are out of bounds. Exactly the first `valid` rows are stored.

Masked groups have a matrix of C each: the map has the group as a fourth dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ...atoms import TmaPlan
from ...atoms.tma.engine import global_bits
from ...errors import PlanError
from ...report import Check
from ..derive import Operand, one_matrix
from ..numbers import W
from ..plan import present
from ..ragged import Ragged
from ..run.hardware_model import Output
from ..store import StorePlan
from .along_k import START
from .plan import GroupedPlan

STOP = "stop"  # the dimension of C's tensor map that says where a group ends


def stops_in_box(tma: TmaPlan) -> TmaPlan:
    """A store of C with the end of the group as a dimension more. See the module's docstring.

    Raises PlanError for a store that is not of rows.
    """
    if tma.dims != ("n", "m"):
        raise PlanError(f"a store of {tma.box} along {tma.dims}: groups end between rows, and C is stored row-major")
    return tma.batched(STOP)


def ragged_store(store: StorePlan, matrices: bool) -> StorePlan:
    """The store with the maps of `stops_in_box`; `matrices`: each group has a matrix of C."""
    maps = [stops_in_box(tma) for tma in store.maps]
    return replace(store, maps=tuple([tma.batched("l") if matrices else tma for tma in maps]))


def without_groups(tma: TmaPlan) -> TmaPlan:
    """The copies without the end or the start of a group as a dimension. Those of a tensor as it lies."""
    if STOP not in tma.dims and START not in tma.dims:
        return tma
    whole = one_matrix(tma)
    return whole.batched("l") if "l" in tma.dims else whole


def store_extents(m: W, n: W, lines: int) -> dict[str, W | int]:
    """The extents of C's tensor map, which begins the `lines` of a box before C."""
    return {"n": n, "m": lines, STOP: m + 1}


def box_place(first: W, end: W, lines: int, minimum: Callable[..., W]) -> tuple[W, W]:
    """(place along the box, stop) of a box that ends with its group.

    first  line of the group at which the box begins; `lines` of the box

    >>> box_place(32, 100, 16, min), box_place(96, 100, 16, min), box_place(112, 100, 16, min)
    ((0, 48), (12, 100), (28, 100))
    """
    stop = minimum(first + lines, end)
    return first + lines - stop, stop


def store_place(
    row: W, end: W, column: W, lines: int, minimum: Callable[..., W], left_out: W | int = 0
) -> dict[str, W]:
    """Coordinates of a box of `lines` rows from `row` on, up to the group's end. Ints or traced integers.

    left_out  1 for a box of which no row is stored, else 0
    """
    place, stop = box_place(row, end, lines, minimum)
    return {"n": column, "m": place + left_out * lines, STOP: stop}


def check_orders(ragged: Ragged, a: Operand, c: Operand) -> None:
    """Raise PlanError for operands whose contiguous dimension groups cut."""
    if a.order != "row" and not ragged.masked:
        raise PlanError(f"a is {a}: groups begin at any row, and a tensor copy of columns at multiples of 16 bytes")
    if c.order != "row":
        raise PlanError(f"c is {c}: groups end between rows, and a tensor store of columns would go on: plan a 'row' C")


def output_of_groups(plan: GroupedPlan, numbers: npt.NDArray[np.int64]) -> Output:
    """C as its tensor map has it, with the rows that are to be stored.

    numbers  that say where groups end
    """
    ragged, before = present(plan.ragged), present(plan.store).box_rows
    c = Output(plan.c, plan.m, plan.n, plan.matrices_of_c, before=before)
    matrices, of = c.batch > 1, store_extents(c.lines, c.inner, before)
    extents = (of["n"], of["m"], of[STOP], *[c.batch] * matrices)
    c.matrix = replace(c.matrix, extents=extents, pitch=c.leading, further=(c.lines * c.leading,) * matrices)
    if ragged.masked:
        c.stored = [min(max(int(number), 0), plan.m) for number in numbers]
    return c


def ends_check(plan: GroupedPlan, shifts: bool = False) -> Check:
    """The elements that a box writes, for every end of a group. `shifts`: a tile may begin earlier."""
    lines = plan.store.box_rows if plan.store is not None else 0
    witness, m, n = "", 5 * lines, plan.tile_c[1]
    matrices = present(plan.ragged).masked and plan.batch > 1
    first = m if matrices else 0  # row 0 of the second group's matrix
    boxes = 0
    for tma in plan.store.maps if plan.store is not None else ():
        pitch = 2 * n
        if tma.dims != ("n", "m", STOP, *["l"] * matrices):
            witness = witness or f"the map's dimensions are {tma.dims}"
            continue
        extents = {**store_extents(m, n, lines), "l": 2}
        strides = [pitch * tma.dtype.bytes] * 2 + [m * pitch * tma.dtype.bytes] * matrices
        tmap = tma.over([extents[name] for name in tma.dims], strides)
        for row in (0, 1, lines, m - lines, m - 1):
            for end in range(max(0, row - 2), m + 1):
                for left_out in (0, 1) if shifts else (0,):
                    place = {**store_place(row, end, 0, lines, min, left_out), "l": 1}
                    if place["m"] < 0 or place[STOP] < 0:
                        witness = witness or f"rows {row} to {end}: a coordinate of {place} is negative"
                        continue
                    bits, inside = global_bits(tmap, [place[name] for name in tma.dims])
                    rows, columns = np.divmod(bits[inside] // tma.dtype.bits, pitch)
                    want = np.arange(row, row if left_out else max(row, min(row + lines, end)))
                    found = np.sort((rows - lines - first) * pitch + columns)
                    right = (want[:, None] * pitch + np.arange(tma.box[0])).reshape(-1)
                    boxes += 1
                    if not np.array_equal(found, right):
                        witness = witness or f"rows {row} to {end} of a group: {found.size} elements, not {right.size}"
    statement = f"a box stores its rows up to its group's end, each once, and no other, for each of {boxes} ends"
    return Check("ends of groups", statement, not witness, "exhaustion", witness)


def explain_groups(plan: GroupedPlan) -> list[str]:
    """The groups of rows, their tables and where stores end."""
    ragged = present(plan.ragged)
    if ragged.masked:
        of, entries = f"{plan.m} rows each, of which as many count as an {ragged.offsets}", "counts"
    else:
        of, entries = f"{plan.m} rows in all, their ends {ragged.offsets}", "first rows"
    ends = "threads store the rows of a group alone"
    if plan.scatters:
        ends = "rows of a group alone are scattered"
    elif plan.stores_by_maps:
        store = present(plan.store)
        dims = ", ".join(store.maps[0].dims)
        ends = f"a box of {store.box_rows} rows ends with its group: C's map begins as many before C, along ({dims})"
    return [
        f"groups: {plan.batch} of {of} in global memory{' says' * ragged.masked}; tables of "
        f"{ragged.entries} {entries} and first tiles at {plan.smem.table_offset}, {ragged.bytes} bytes",
        f"  {ends}",
    ]
