"""Block scales in the NumPy executor: a stage's chunks, and the lanes' factors."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from ...atoms import MmaAtom
from ...atoms.copy.base import VECTOR_BYTES, WARP
from ...atoms.mma.block_scales import provider
from ...memo import memoized
from ..operands.block_scales import CHUNK_BYTES, CHUNK_ROWS, NAMES
from ..plan import present, tile_count
from .block_scales import OPERANDS
from .plan import Sm80Plan

Bytes = npt.NDArray[np.uint8]
Factors = npt.NDArray[np.float64]


def filled_factors(plan: Sm80Plan, given: Mapping[str, object], corner: tuple[int, int, int], k0: int) -> list[Bytes]:
    """A stage's chunks of A and of B after the copies.

    Where none of them wrote they are 0xFF, which is NaN.

    given   the blocked factors by name
    corner  first row and column of the tile, and its matrix;   k0  first element of the K tile
    """
    scales, (*first, matrix), found = present(plan.scales), corner, []
    threads, run = np.arange(plan.threads), np.arange(VECTOR_BYTES)
    for operand, (name, extent) in enumerate(zip(NAMES, (plan.m, plan.n), strict=True)):
        memory = np.full(scales.groups[operand] * scales.chunks * CHUNK_BYTES, 0xFF, np.uint8)
        flat, groups = np.asarray(given[name]).reshape(-1), tile_count(extent, CHUNK_ROWS)
        for number in range(scales.rounds(operand)):
            group, chunk, byte = scales.vector(operand, threads, number)
            at = threads + number * scales.threads
            own = np.minimum(first[operand] // CHUNK_ROWS + group, groups - 1) + matrix * groups
            source = scales.source(own, byte, plan.k) + k0 * scales.bytes_per_k
            there = (k0 + chunk * scales.format.chunk_k < plan.k)[:, None] & (run >= 0)
            read = np.where(there, flat[np.where(there, source[:, None] + run, 0)], 0)
            copied = at < scales.vectors(operand)
            memory[(at[:, None] * VECTOR_BYTES + run)[copied]] = read[copied]
        found.append(memory)
    return found


def words_of_lanes(
    plan: Sm80Plan, memory: Bytes, operand: int, warp: int, first: int, step: int
) -> npt.NDArray[np.uint8]:
    """The factors in a warp's registers of a depth, (register, lane, byte).

    memory  the chunks of a stage, of A (0) or B (1);   warp  its number along M or N;   first  the tile's row
    """
    scales, of, lanes = present(plan.scales), (plan.a, plan.b)[operand], np.arange(WARP)
    places, chunk, found = scales.places(operand, of.warps), step // scales.depths, []
    for register in range(scales.registers(operand)):
        base, constant = places.of[register, chunk]
        at = np.asarray(scales.word(operand, lanes, warp, places.bases[base])) + scales.inside(operand, first)
        found.append(memory[(at + constant)[:, None] + np.arange(4)])
    return np.stack(found)


def factors_of_blocks(
    plan: Sm80Plan, chunks: list[Bytes], corner: tuple[int, int, int], warp: tuple[int, int], step: int
) -> list[Factors]:
    """Factors of the elements in a warp's instructions of a depth, (block, row, k).

    The instruction takes each from the lane and byte that its selectors name.
    """
    scales, found = present(plan.scales), []
    for operand, memory in enumerate(chunks):
        held = words_of_lanes(plan, memory, operand, warp[operand], corner[operand], step)
        rows, count = plan.mma.tile_of(OPERANDS[operand])
        codes = np.empty((scales.blocks[operand], rows, count), np.uint8)
        for block in range(scales.blocks[operand]):
            register, *ids = scales.selected(operand, block, step)
            lane, byte = provided(plan.mma, operand, *ids)
            codes[block] = held[register, lane, byte]
        values = np.asarray(scales.format.scale.decode(codes), np.float64)
        found.append(np.repeat(values, scales.format.vector, axis=2))
    return found


@memoized(256)
def provided(mma: MmaAtom, operand: int, byte_id: int, thread_id: int) -> npt.NDArray[np.int64]:
    """(lane, byte) of the factor of each row and K block of an instruction."""
    rows, count = mma.tile_of(OPERANDS[operand])
    found = [
        [provider(mma, OPERANDS[operand], row, block, byte_id, thread_id) for block in range(count)]
        for row in range(rows)
    ]
    return np.moveaxis(np.array(found, np.int64), 2, 0)
