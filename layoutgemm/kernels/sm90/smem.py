"""The shared memory map of a Hopper kernel's CTA."""

from __future__ import annotations

from dataclasses import dataclass

from ...layouts import Layout
from ..derive import OperandPlan
from ..numbers import W
from ..plan import BARRIER_BYTES, StoreSmemMap, rounded_up
from ..store import TILE_ALIGNMENT, StorePlan
from .indexed.copies import GatheredOperand
from .quantized.operand import PackedOperand


@dataclass(frozen=True, slots=True)
class Sm90Smem(StoreSmemMap):
    """The map of a Hopper kernel's shared memory.

    Stages of A, stages of B, C's buffers, then the barriers `full` (`barrier_offset`) and `empty` for each stage. The
    barrier of the split-K exchange, the table of groups of a ragged batch and the numbers of each stage, which a main
    loop reads, follow. Tuples of rows come last, in a cluster that reduces whole rows.
    """

    empty_offset: int
    table_offset: int = 0
    sums_offset: int = 0
    numbers_offset: int = 0
    numbers_bytes: int = 0
    rows_offset: int = 0


@dataclass(frozen=True)
class SplitKExchange:
    """The receiving CTA's shared memory of split-K partial sums.

    values   of a thread's accumulator that a block takes
    layout   (thread, vector of 4 values, accumulator, consumer, slot) -> vectors of 16 bytes; a slot is another block's
    offset   bytes from the beginning of the block's shared memory: behind the stages, which others may still read

    >>> two = SplitKExchange(8, Layout((128, 2, 1, 1, 1)))
    >>> two.parts, two.bytes, two.slot(0, 1), two.slot(1, 0)
    (2, 4096, 0, 0)
    """

    values: int
    layout: Layout
    offset: int = 0

    @property
    def parts(self) -> int:
        """Parts of K, and blocks that exchange their sums."""
        return int(self.layout[-1].size) + 1

    @property
    def vectors(self) -> int:
        """Vectors of 4 values that a thread sends of one accumulator."""
        return self.values // 4

    @property
    def bytes(self) -> int:
        """Bytes of shared memory: all that the other blocks send."""
        return int(self.layout.size) * 16

    @property
    def sends(self) -> int:
        """Bytes that a consumer warp sends to each other block."""
        return 32 * int(self.layout[1].size) * int(self.layout[2].size) * 16

    def slot(self, source: W, target: W) -> W:
        """Which of the places of `target` is for what `source`, another block, sends."""
        return (source - target - 1 + self.parts) % self.parts

    def byte(self, slot: W, consumer: W, block: W, vector: W, thread: W) -> W:
        """The byte at which a vector lies."""
        byte: W = self.offset + self.layout((thread, vector, block, consumer, slot)) * 16
        return byte


def stage_bytes(a_bytes: int, b_bytes: int, a_alignment: int = TILE_ALIGNMENT, numbers_bytes: int = 0) -> int:
    """Bytes that one more stage takes. Its tiles of A and B, its numbers, and its two barriers.

    >>> stage_bytes(256 * 128, 224 * 128)
    61456
    """
    tiles = rounded_up(a_bytes, a_alignment) + rounded_up(b_bytes, TILE_ALIGNMENT)
    return tiles + numbers_bytes + 2 * BARRIER_BYTES


def exchange_bytes(sums_bytes: int) -> int:
    """Bytes of partial sums with the barrier of their exchange; 0 without any.

    >>> exchange_bytes(40960), exchange_bytes(0)
    (40968, 0)
    """
    return sums_bytes + BARRIER_BYTES if sums_bytes else 0


def smem_map(
    a: OperandPlan | PackedOperand | GatheredOperand, b: OperandPlan, stages: int, c_bytes: int,
    store: StorePlan | None, single: bool, table_bytes: int = 0, sums_bytes: int = 0, numbers_bytes: int = 0,
    rows_bytes: int = 0,
) -> Sm90Smem:  # fmt: skip
    """The map, in this order.

    Stages, the store's buffers, partial sums, barriers, then a table, the stages' numbers and tuples of rows.

    single         one tile a block
    numbers_bytes  of a stage
    """
    a_stage, b_stage = rounded_up(a.smem.bytes, a.smem.alignment), rounded_up(b.smem.bytes, b.smem.alignment)
    b_offset = rounded_up(stages * a_stage, TILE_ALIGNMENT)
    end = rounded_up(b_offset + stages * b_stage, TILE_ALIGNMENT)
    c_offset = 0 if single else end  # one tile: the stages are free when C is stored
    barriers = end + (0 if single else c_bytes) + sums_bytes
    sums = barriers + 2 * stages * BARRIER_BYTES
    end_of_barriers = sums + (BARRIER_BYTES if sums_bytes else 0)
    table = rounded_up(end_of_barriers, 16) if table_bytes else 0
    end_of_table = table + table_bytes if table_bytes else end_of_barriers
    numbers = rounded_up(end_of_table, 16) if numbers_bytes else 0
    end_of_numbers = numbers + stages * numbers_bytes if numbers_bytes else end_of_table
    rows = rounded_up(end_of_numbers, 16) if rows_bytes else 0
    return Sm90Smem(
        a_offset=0,
        a_stage_bytes=a_stage,
        b_offset=b_offset,
        b_stage_bytes=b_stage,
        c_offset=c_offset,
        c_buffer_bytes=store.buffer_bytes if store else 0,
        barrier_offset=barriers,
        empty_offset=barriers + stages * BARRIER_BYTES,
        barrier_bytes=BARRIER_BYTES,
        total=rows + rows_bytes if rows_bytes else end_of_numbers,
        alignment=TILE_ALIGNMENT,
        table_offset=table,
        sums_offset=sums if sums_bytes else 0,
        numbers_offset=numbers,
        numbers_bytes=numbers_bytes,
        rows_offset=rows,
    )
