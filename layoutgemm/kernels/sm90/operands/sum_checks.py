"""Checks of a plan of several sums. The parts of B's tile, and the registers of an element's sums."""

from __future__ import annotations

import numpy as np

from ....report import Check
from ...operands.gated import HALF
from ...operands.sum_checks import misplaced_columns
from ..plan import WARPGROUP, Sm90Plan


def filled_by_halves(plan: Sm90Plan) -> Check:
    """Every byte of B's tile is copied once. Row r from line r % w of half r // w, for w columns of C."""
    tile, tma, width = plan.b.smem, plan.b.tma, plan.tile_c[1]
    witness = "" if tma.dims in (("k", "n", HALF), ("k", "n", HALF, "l")) else f"the map's dimensions are {tma.dims}"
    witness = witness or misplaced_columns(tile, width, [tma], HALF)
    statement = (
        f"{len(tma.instructions)} box(es) {tma.box} along {tma.dims} bring {width} gate columns of B, then the {width} "
        "that they gate, each element once, in its place"
    )
    return Check("copy B", statement, not witness, f"exhaustion ({tile.bytes} bytes)", witness)


def halves_meet(plan: Sm90Plan) -> Check:
    """Values v, v + count, ... of a thread are the sums of one element. The store has v where C has it."""
    count, width, sums = plan.stored.accumulator_registers, plan.tile_c[1], plan.sums
    thread, value = np.arange(WARPGROUP)[:, None], np.arange(count)[None, :]
    first, stored = plan.mma.coords_C(thread, value), plan.stored.coords_C(thread, value)
    witness = ""
    if sums * count != plan.mma.accumulator_registers or sums * width != plan.mma.shape_mnk[1]:
        witness = f"{sums} * {count} of {plan.mma.accumulator_registers} values, {sums} * {width} columns"
    others = [(f"sum {i}", plan.mma.coords_C(thread, value + i * count), i * width) for i in range(1, sums)]
    for what, at, shift in (*others, ("stored", stored, 0)):
        wrong = np.argwhere((at[0] != first[0]) | (at[1] != first[1] + shift))
        if len(wrong):
            t, v = (int(x) for x in wrong[0])
            witness = witness or f"{what}: thread {t}, value {v} is not {shift} columns from the first sum"
    values = " and ".join(["v", *[f"v + {i * count}" for i in range(1, sums)]])
    columns = " and ".join(["j", *[f"j + {i * width}" for i in range(1, sums)]])
    statement = f"values {values} of a thread are columns {columns} of one row, and C has j of it"
    return Check("gated", statement, not witness, f"exhaustion ({WARPGROUP * count} pairs)", witness)
