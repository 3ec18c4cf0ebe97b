"""Where everything lies in the shared memory of a block of a Hopper kernel."""

from __future__ import annotations

from dataclasses import dataclass

from ..layouts import Layout
from .plan import OperandPlan
from .plan_base import BARRIER_BYTES, rounded_up
from .sm90_store import TILE_ALIGNMENT, StorePlan


@dataclass(frozen=True, slots=True)
class Sm90Smem:
    """Where everything lies in the block's dynamic shared memory, in bytes from an address aligned to `alignment`.

    a, b: stages one after another; c: the buffers of the first consumer warp, then the next one's; then the barriers
    `full` (`barrier_offset`) and `empty`, one of each a stage; then the table of groups of a ragged batch.
    """

    a_offset: int
    a_stage_bytes: int
    b_offset: int
    b_stage_bytes: int
    c_offset: int
    c_buffer_bytes: int
    barrier_offset: int
    empty_offset: int
    barrier_bytes: int
    total: int
    alignment: int
    table_offset: int = 0


@dataclass(frozen=True)
class Exchange:
    """Where partial sums of a split K lie while blocks exchange them: in memory of its own of the one that takes them.

    values   of a thread's accumulator that a block takes
    layout   (thread, vector of 4 values, accumulator, consumer, source block) -> vectors of 16 bytes
    offset   bytes from the beginning of the block's shared memory: behind the stages, which others may still read
    """

    values: int
    layout: Layout
    offset: int = 0

    @property
    def vectors(self) -> int:
        """Vectors of 4 values that a thread sends of one accumulator."""
        return self.values // 4

    @property
    def bytes(self) -> int:
        """Bytes of shared memory."""
        return int(self.layout.size) * 16

    def byte(self, source, consumer, block, vector, thread):  # type: ignore[no-untyped-def]  # ints or traced integers
        """The byte at which a vector lies."""
        return self.offset + self.layout((thread, vector, block, consumer, source)) * 16


def smem_map(
    a: OperandPlan, b: OperandPlan, stages: int, c_bytes: int, store: StorePlan | None, single: bool,
    table_bytes: int = 0, sums_bytes: int = 0,
) -> Sm90Smem:  # fmt: skip
    """Stages, the store's buffers, partial sums, barriers, in this order, then a table; `single`: one tile a block."""
    a_stage, b_stage = rounded_up(a.smem.bytes, a.smem.alignment), rounded_up(b.smem.bytes, b.smem.alignment)
    b_offset = rounded_up(stages * a_stage, TILE_ALIGNMENT)
    end = rounded_up(b_offset + stages * b_stage, TILE_ALIGNMENT)
    c_offset = 0 if single else end  # one tile: the stages are free when C is stored
    barriers = end + (0 if single else c_bytes) + sums_bytes
    table = rounded_up(barriers + 2 * stages * BARRIER_BYTES, 16) if table_bytes else 0
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
        total=table + table_bytes if table_bytes else barriers + 2 * stages * BARRIER_BYTES,
        alignment=TILE_ALIGNMENT,
        table_offset=table,
    )
