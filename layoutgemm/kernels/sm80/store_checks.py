"""Checks of an Ampere plan's store: writes into a buffer, lines out of it, banks."""

from __future__ import annotations

import numpy as np

from ...atoms import feeds, stmatrix
from ...atoms.copy.base import VECTOR_BYTES, WARP
from ...checks import AccessPattern, bank_conflicts, sectors
from ...checks.coverage import not_once
from ...layouts import Layout
from ...memo import memoized
from ...report import Check
from .plan import Sm80Plan
from .store import Sm80Store, matrix_row, store_cost, store_tiles


def store_checks(plan: Sm80Plan) -> list[Check]:
    """Accumulators into a buffer, and the buffer to C. Each element once, without conflicts, in whole sectors."""
    store, tile = plan.store, plan.store.tile
    extent, size = tile.extent, plan.c.dtype.bytes
    lanes = np.arange(WARP)
    witness = ""
    for number, (low, high) in enumerate(store.registers):
        (i, j), (i2, j2) = store.place(lanes, low), store.place(lanes, high)
        if (np.asarray(i) != i2).any() or (np.asarray(j) + 1 != j2).any() or (np.asarray(j) % 2).any():
            witness = witness or f"registers {low} and {high} are no two neighbours of a row"
        base, constant = store.pairs.of[number,]
        first = store.registers[store.pairs.bases[base][0]][0]
        if (tile.byte(*store.place(lanes, first)) + constant != tile.byte(i, j)).any():
            witness = witness or f"pair {number} is put at another byte than its tile has"
    put, taken = store.put(), store.taken()
    times = np.bincount(put.coords.ravel(), minlength=extent[0] * extent[1])
    if len(times) != extent[0] * extent[1] or (times != 1).any():
        witness = witness or f"element {int(np.nonzero(times != 1)[0][0])} of a round is put {int(times.max())} times"
    if (store.orders[0], store.orders[1]) != (plan.a.mn_order, plan.b.mn_order):
        witness = witness or f"C is stored in the orders {store.orders}, the operands are loaded in others"
    filled = Check(
        "fragments of C", f"{len(store.registers)} pairs of a lane fill the {extent[0]}x{extent[1]} of a round",
        not witness, f"exhaustion ({extent[0] * extent[1]} elements)", witness,
    )  # fmt: skip
    flat = taken.coords.reshape(-1, taken.coords.shape[2])
    times = np.bincount(flat[flat[:, 0] >= 0].ravel(), minlength=extent[0] * extent[1])
    ok = len(times) == extent[0] * extent[1] and bool((times == 1).all())
    statement = f"{store.drains} chunk(s) of {VECTOR_BYTES} bytes of a lane are all of a round, each element once"
    drained = Check(
        "lines of C", statement, ok, f"exhaustion ({extent[0] * extent[1]} elements)",
        "" if ok else f"an element is taken {int(times.max())} times",
    )  # fmt: skip
    if not filled or not drained:
        return [filled, drained]
    lines = Layout(extent, (extent[1] + 128 // size, 1))
    out = AccessPattern("st.global of C", "st.global", taken.coords)
    extra = [] if store.matrices is None else [_matrices(store)]
    coalesced = sectors(lines, out, element=plan.c.dtype).as_check("coalescing C")
    return [filled, *extra, drained, _banks_of_c(store), coalesced]


def numbered_check(plan: Sm80Plan) -> Check:
    """The epilogue's numbers of a warp's accumulators. Each register once, pairs of neighbours, its part of C once."""
    fragment, lanes = plan.fragment, np.arange(WARP)
    rows, columns = plan.a.warp_extent, plan.warp_columns
    count, witness = fragment.accumulator_registers, ""
    if sorted(fragment.register(v) for v in range(count)) != list(range(count)):
        witness = f"values 0..{count - 1} are not the {count} accumulators, each once"
    times = np.zeros((rows, columns), np.int64)
    places = [
        tuple(np.asarray(x) + np.zeros(WARP, np.int64) for x in fragment.coords_C(lanes, v)) for v in range(count)
    ]
    for v, (i, j) in enumerate(places):
        np.add.at(times, (i % rows, j % columns), 1)
        if (i >= rows).any() or (j >= columns).any():
            witness = witness or f"value {v} lies outside of the warp's {rows}x{columns}"
        first = places[v - v % 2]
        if (i != first[0]).any() or (j != first[1] + v % 2).any() or (first[1] % 2).any():
            witness = witness or f"values {v - v % 2} and {v} are no two neighbours of a row"
    witness = witness or not_once(times, "element ({}, {}) of the warp's part has {} values")
    statement = f"{count} values of a lane are its accumulators, in pairs, and all of {rows}x{columns} once"
    return Check("epilogue", statement, not witness, f"exhaustion ({rows * columns} elements)", witness)


def _matrices(store: Sm80Store) -> Check:
    """stmatrix puts each register of the fragments where the buffer's tile has it, without conflicts."""
    assert store.matrices is not None
    tile, lanes = store.tile, np.arange(WARP)
    fed = feeds(stmatrix(4), tile, store.mma, "C", (1, 2))
    witness = "" if fed else fed.explain()
    bases = [np.asarray(tile.byte(*matrix_row(store.mma, lanes, at))) for (at,) in store.matrices.bases]
    rows = []
    for (group,), (base, constant) in store.matrices.entries:
        i, j = matrix_row(store.mma, lanes, group)
        rows.append(np.stack([i + tile.extent[0] * (j + e) for e in range(8)], axis=1))
        if (bases[base] + constant != tile.byte(i, j)).any():
            witness = witness or f"the rows of columns {16 * group} on are at other bytes than the tile has"
    ways = bank_conflicts(tile, AccessPattern("stmatrix of C", "stmatrix", np.stack(rows))).ways
    witness = witness or ("" if ways == 1 else f"its rows conflict {ways} ways")
    statement = f"{len(rows)} stmatrix.x4 put 16 columns each where {tile} has them, without conflicts"
    return Check("stmatrix", statement, not witness, f"exhaustion ({len(rows)} instructions)", witness)


@memoized(256)
def _banks_of_c(store: Sm80Store) -> Check:
    """The buffer's swizzle costs the least of all: none has a conflict, or all have."""
    ways = [bank_conflicts(store.tile, access).ways for access in (store.put(), store.taken())]
    cost, least = store_cost(store, store.tile), min(store_cost(store, tile) for tile in store_tiles(store))
    statement = (
        f"{store.tile} costs {cost} wavefronts a round, {ways[0]}-way into it and {ways[1]}-way out of it: no swizzle "
        "costs less"
    )
    witness = "" if cost == least else f"another costs {least}"
    return Check("banks of C", statement, not witness, "exhaustion, every swizzle", witness)
