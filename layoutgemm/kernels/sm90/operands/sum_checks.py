"""Checks of a plan of several sums. The parts of B's tile, and the registers of an element's sums."""

from __future__ import annotations

import numpy as np

from ....atoms.tma.engine import shared_bits
from ....checks.coverage import not_once
from ....report import Check
from ...operands.gated import HALF, HALVES
from ..plan import WARPGROUP, Sm90Plan


def filled_by_halves(plan: Sm90Plan) -> Check:
    """Every byte of B's tile is copied once. Row r from line r % w of half r // w, for w columns of C."""
    tile, tma, width = plan.b.smem, plan.b.tma, plan.tile_c[1]
    size = tile.dtype.bytes
    times = np.zeros(tile.bytes, dtype=np.int64)
    witness = "" if tma.dims in (("k", "n", HALF), ("k", "n", HALF, "l")) else f"the map's dimensions are {tma.dims}"
    box = tma.over([1 << 31] * len(tma.box), (0,) * (len(tma.box) - 1))
    for copy in () if witness else tma.instructions:
        if copy.smem_offset % 128:
            witness = witness or f"the box at {copy.coord_offset} starts at shared byte {copy.smem_offset}"
            continue
        at = shared_bits(box, copy.smem_offset) // 8
        k, n, half, *_ = np.meshgrid(
            *[first + np.arange(count) for first, count in zip(copy.coord_offset, at.shape, strict=True)], indexing="ij"
        )
        inside = (n < width) & (half < HALVES) & (k < tile.extent[1])
        wrong = np.argwhere(~inside | (at != tile.byte((half * width + n) % tile.extent[0], k % tile.extent[1])))
        if len(wrong):
            where = tuple(int(x) for x in wrong[0])
            witness = witness or (
                f"k {int(k[where])} of line {int(n[where])} of half {int(half[where])} lands at byte {int(at[where])}"
            )
        np.add.at(times, np.minimum(at[..., None] + np.arange(size), tile.bytes - 1).ravel(), 1)
    witness = witness or not_once(times, "byte {} of the tile is written {} times, should be 1")
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
