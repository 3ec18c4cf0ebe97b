"""Checks of a Blackwell plan's row indices. Gathers, scatters, and the lanes that read the indices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...atoms import TmaPlan
from ...atoms.copy.base import WARP
from ...atoms.tma.gather import ROWS, broken_rules, four_rows, one_row
from ...atoms.tma.rules import STRIDE_UNIT
from ...checks import registers
from ...checks.coverage import not_once
from ...report import Check
from .plan import BLOCK_ROWS, Sm100Plan
from .rows import READ_BY_LANES

LOADER_HELD = 32  # registers of a loader's thread beside the row indices: addresses, counters, barriers


def rows_checks(plan: Sm100Plan) -> list[Check]:
    """The checks of gathered rows, and of scattered ones."""
    checks = []
    if plan.gathers:
        used = registers(plan.arch, plan.threads, {"row indices": BLOCK_ROWS, "the loader's other values": LOADER_HELD})
        checks += [_fours("gather A", plan.a.tma, BLOCK_ROWS), _lanes(), replace(used, name="the loader's registers")]
    if plan.scatters:
        found = [_fours("scatter C", tma, WARP) for tma in plan.store.maps]
        checks.append(next((check for check in found if not check), found[0]))
    return checks


def _fours(name: str, tma: TmaPlan, rows: int) -> Check:
    """Each box is four rows of the tile; the tensor map breaks no rule.

    That the boxes fill the swizzled tile, element by element, "copy A" and "boxes of C" say.

    rows  of the tile
    """
    witness, times = "", dict[int, np.ndarray]()
    direction = "gather" if tma.operation == "load" else "scatter"
    if tma.box[1:] != (ROWS,):
        witness = f"a box {tma.box}: {direction}4 moves {ROWS} rows"
    for copy in tma.instructions:
        column, first = copy.coord_offset
        seen = times.setdefault(column, np.zeros(rows, dtype=np.int64))
        if not 0 <= first <= rows - ROWS:
            witness = witness or f"a box of rows {first} to {first + ROWS - 1}, of {rows}"
            continue
        seen[first : first + ROWS] += 1
    for column, seen in times.items():
        missed = not_once(seen, f"row {{}} of columns from {column} on is moved {{}} times")
        witness = witness or missed
    line = -(-(tma.box[0] + max(times)) * tma.dtype.bytes // STRIDE_UNIT) * STRIDE_UNIT
    tmap = one_row(tma).over((line // tma.dtype.bytes, rows), (line,))
    for fault in broken_rules(tmap, 0, direction):
        witness = witness or fault.arithmetic
    if four_rows(tmap).box != tma.box:
        witness = witness or f"a {direction} moves {four_rows(tmap).box}, a box is {tma.box}"
    statement = (
        f"{len(tma.instructions)} x {direction}4 through a box {tmap.box} choose each of {rows} rows once in each "
        f"span of columns, {tma.box_bytes} bytes each"
    )
    return Check(name, statement, not witness, f"exhaustion ({len(tma.instructions)} instructions)", witness)


def _lanes() -> Check:
    """Each row's index is read by one lane of the loader."""
    values, lanes = READ_BY_LANES.shape
    read = np.asarray(READ_BY_LANES(np.arange(values)[:, None], np.arange(lanes)[None, :]))
    inside = read[(read >= 0) & (read < BLOCK_ROWS)]
    witness = not_once(np.bincount(inside, minlength=BLOCK_ROWS), "the index of row {} is read {} times")
    if lanes != WARP or inside.size < read.size:
        witness = witness or f"{READ_BY_LANES} is no map of {WARP} lanes to {BLOCK_ROWS} rows"
    statement = f"{lanes} lanes read {values} row indices each, of {BLOCK_ROWS} rows once each: {READ_BY_LANES}"
    return Check("index lanes", statement, not witness, f"exhaustion ({read.size} indices)", witness)
