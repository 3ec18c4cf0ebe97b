"""Checks of a Blackwell plan's store: columns, boxes, and writes into the buffers."""

from __future__ import annotations

import numpy as np

from ...atoms.copy.base import VECTOR_BYTES
from ...atoms.tmem.layout import WARP_LANES
from ...checks import bank_conflicts
from ...checks.coverage import not_once
from ...errors import LayoutError
from ...report import Check
from ..plan_checks import boxes_of_c
from ..store import distinct_chunks
from .plan import Sm100Plan
from .store import load_of


def store_checks(plan: Sm100Plan) -> list[Check]:
    """Columns, boxes, places and banks."""
    return [_columns_of_c(plan), boxes_of_c(plan, plan.store, WARP_LANES), _rows(plan), _vectors(plan)]


def _columns_of_c(plan: Sm100Plan) -> Check:
    """Each column is in one chunk, and a round's chunks are disjoint in its buffer."""
    store, witness = plan.store, ""
    times = np.zeros(plan.tile_c[1], dtype=np.int64)
    for number, round_ in store.rounds_of(0, 0):
        end = 0
        for chunk in round_.chunks:
            times[chunk.column : chunk.column + chunk.width] += 1
            if chunk.offset < end or chunk.offset % chunk.tile.alignment:
                witness = witness or f"round {number}: a chunk at byte {chunk.offset}, after {end}"
            end = chunk.offset + chunk.tile.bytes
        if end > store.buffer_bytes or store.buffer_bytes % 1024:
            witness = witness or f"round {number} ends at byte {end} of a buffer of {store.buffer_bytes}"
    witness = witness or not_once(times, "column {} is stored {} times")
    if store.c != plan.c or store.warps != 1:
        witness = witness or f"a store of {store.c} by {store.warps} warp(s)"
    widths = "+".join(str(chunk.width) for chunk in distinct_chunks(store))
    statement = (
        f"chunks of {widths} columns store each of {plan.tile_c[1]} once, in {len(store.rounds)} round(s) through "
        f"{store.buffers} buffer(s) of {store.buffer_bytes} bytes for each warp"
    )
    return Check("columns of C", statement, not witness, f"exhaustion ({plan.tile_c[1]} columns)", witness)


def _rows(plan: Sm100Plan) -> Check:
    """The elements of one shared memory store are contiguous in the chunk's tile."""
    by_row, size = plan.c.order == "row", plan.c.dtype.bytes
    step = VECTOR_BYTES // size if by_row else 1
    witness, count = "", 0
    for chunk in distinct_chunks(plan.store):
        i, j = np.arange(WARP_LANES)[:, None], np.arange(chunk.width)[None, :]
        have = np.asarray(chunk.tile.byte(i, j - j % step)) + j % step * size
        want = np.asarray(chunk.tile.byte(i, j))
        count += have.size
        if load_of(chunk).repeat % step:
            witness = witness or f"a load of {load_of(chunk).repeat} columns in vectors of {step}"
        wrong = np.argwhere(have != want)
        if len(wrong):
            row, column = (int(x) for x in wrong[0])
            witness = witness or f"element ({row}, {column}) goes to byte {have[row, column]}, not {want[row, column]}"
    what = f"{VECTOR_BYTES} bytes at a time" if by_row else "one by one"
    statement = f"threads store {plan.c.dtype} {what}, each element to its place in the tile"
    return Check("rows of C", statement, not witness, f"exhaustion ({count} elements)", witness)


def _vectors(plan: Sm100Plan) -> Check:
    """The banks of one store: all lanes, the same columns."""
    by_row = plan.c.order == "row"
    step, size = (VECTOR_BYTES // plan.c.dtype.bytes, VECTOR_BYTES) if by_row else (1, plan.c.dtype.bytes)
    worst, witness = 1, ""
    for chunk in distinct_chunks(plan.store):
        first = np.arange(0, chunk.width, step)[:, None]
        at = np.asarray(chunk.tile.byte(np.arange(WARP_LANES)[None, :], first))
        try:
            banks = bank_conflicts(at, size, "st.shared")
        except LayoutError as error:
            witness = witness or str(error)
            continue
        worst = max(worst, banks.ways)
        witness = witness or ("" if banks else str(banks.witness))
    statement = f"stores of {size} bytes by 32 lanes are {worst}-way in their banks"
    return Check("banks C", statement, not witness, "exhaustion", witness)
