"""Checks that each block scale comes to the lane and byte that mma.sync reads."""

from __future__ import annotations

from itertools import product

import numpy as np

from ...atoms.copy.base import VECTOR_BYTES, WARP
from ...report import Check
from ..operands.block_scales import CHUNK_BYTES, CHUNK_FACTORS, CHUNK_ROWS, blocked
from ..plan import present
from .block_scales import OPERANDS
from .operand import Sm80Operand, in_units
from .plan import Sm80Plan
from .scale_reference import provided, words_of_lanes

_NUMBERS = 251  # different factors: a prime, so that no power of two repeats them


def scale_checks(plan: Sm80Plan) -> list[Check]:
    """The checks of the block scales; none without them."""
    if plan.scales is None:
        return []
    pairs = [_pairs(plan, operand) for operand in (plan.a, plan.b) if operand.per_unit > 1]
    return [*pairs, *[_copied(plan, operand) for operand in range(2)], *[_read(plan, operand) for operand in range(2)]]


def _pairs(plan: Sm80Plan, operand: Sm80Operand) -> Check:
    """A byte of a register has the elements that the instruction expects there."""
    of_bytes, each, witness = in_units(plan.mma), operand.per_unit, ""
    lanes, values = np.arange(WARP)[:, None], np.arange(int(plan.mma.layout(operand.name)[1].size))[None, :]
    row, k = (np.asarray(x) for x in plan.mma.coords(operand.name)(lanes, values))
    row_of_byte, byte = (np.asarray(x) for x in of_bytes.coords(operand.name)(lanes, values // each))
    wrong = np.argwhere((row != row_of_byte) | (k != byte * each + values % each))
    if len(wrong):
        lane, value = (int(x) for x in wrong[0])
        witness = f"lane {lane}, value {value}: element ({row[lane, value]}, {k[lane, value]}) is in another byte"
    statement = f"{each} elements of {operand.name} along K are a byte of {of_bytes}"
    return Check(f"pairs {operand.name}", statement, not witness, f"exhaustion ({row.size} elements)", witness)


def _copied(plan: Sm80Plan, operand: int) -> Check:
    """Each vector of the stage's chunks is copied once, from its own place."""
    scales, witness = present(plan.scales), ""
    count, run = scales.vectors(operand), np.arange(scales.threads)
    times = np.zeros(count, np.int64)
    for number in range(scales.rounds(operand)):
        at = run + number * scales.threads
        group, chunk, byte = scales.vector(operand, run, number)
        own = at < count
        want = at * VECTOR_BYTES
        of_memory = (group * scales.chunks + chunk) * CHUNK_BYTES + byte % CHUNK_BYTES
        if (wrong := np.flatnonzero(own & (of_memory != want))).size:
            witness = witness or f"thread {wrong[0]} copies byte {of_memory[wrong[0]]} to {want[wrong[0]]}"
        np.add.at(times, at[own], 1)
    if (wrong := np.flatnonzero(times != 1)).size:
        witness = witness or f"vector {wrong[0]} is copied {times[wrong[0]]} times"
    if CHUNK_BYTES % scales.format.chunk_k:
        witness = witness or f"{CHUNK_BYTES} bytes of a chunk are no whole bytes for each of {scales.format.chunk_k}"
    begin = plan.smem.scales_offset + scales.offset(operand)
    if begin % VECTOR_BYTES or plan.smem.scales_offset < plan.smem.b_offset + plan.b.smem.bytes:
        witness = witness or f"the chunks begin at byte {begin} of a stage"
    if plan.smem.scales_offset + scales.bytes > plan.smem.a_stage_bytes:
        witness = witness or f"{scales.bytes} bytes from {begin} on do not fit in {plan.smem.a_stage_bytes}"
    name = OPERANDS[operand]
    statement = f"{scales.threads} threads copy {scales.groups[operand]}x{scales.chunks} chunk(s) of {name} once"
    return Check(f"copies {name}", statement, not witness, f"exhaustion ({count} vectors)", witness)


def _read(plan: Sm80Plan, operand: int) -> Check:
    """The selectors of each instruction name the factors of its rows.

    Also for tiles that begin in a chunk.
    """
    scales, of = present(plan.scales), (plan.a, plan.b)[operand]
    rows, count = scales.groups[operand] * CHUNK_ROWS, scales.chunks * CHUNK_FACTORS
    want = (np.arange(rows * count) * 7 % _NUMBERS).astype(np.uint8).reshape(rows, count)
    memory, tile, witness = blocked(want), scales.extents_of_tile[operand], ""
    height, each = plan.mma.tile_of(OPERANDS[operand])
    firsts = range(0, CHUNK_ROWS, tile) if tile < CHUNK_ROWS else (0,)
    for first, warp, step in product(firsts, range(of.warps), range(plan.steps)):
        held = words_of_lanes(plan, memory, operand, warp, first, step)
        for block in range(scales.blocks[operand]):
            register, *ids = scales.selected(operand, block, step)
            lane, byte = provided(plan.mma, operand, *ids)
            row = first + (warp * scales.blocks[operand] + block) * height
            wrong = np.argwhere(held[register, lane, byte] != want[row : row + height, step * each : (step + 1) * each])
            if len(wrong):
                at = tuple(map(int, wrong[0]))
                witness = witness or (
                    f"warp {warp}, instruction {block} of depth {step}: factor {at} of the tile from row {first} is "
                    f"not in lane {int(lane[at])}, byte {int(byte[at])} of register {register}"
                )
    if scales.blocks[operand] * height != of.warp_extent:
        witness = witness or f"{scales.blocks[operand]} instructions of {height} are not {of.warp_extent} of a warp"
    statement = (
        f"a lane loads {scales.registers(operand)} word(s) of {OPERANDS[operand]} for {scales.depths} depth(s); each "
        f"instruction reads the {each} factor(s) of its own {height} rows"
    )
    return Check(
        f"factors {OPERANDS[operand]}", statement, not witness, f"exhaustion ({rows * count} factors)", witness
    )
