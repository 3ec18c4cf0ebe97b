"""A Hopper GEMM whose sums are promoted: each K block in registers of its own, then into the total. See sm90_mainloop.

    role        does
    --------    -------------------------------------------------------------------------------------------------------
    loader      as in sm90_gemm
    consumer    reads the tables' numbers of the K block, waits for full[s], multiplies into fresh registers, waits for
                the products and releases the stage; then, for each element, total = expression(total, product, tables)

Nothing is in flight while a warpgroup promotes: another warpgroup's products run meanwhile, so two are the least. A
thread has both registers of each element, so a tile is half as large as that of a kernel which only adds.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr

from ....dtypes import f32
from ...dsl import bridge
from ...dsl.math import ElementMath, load_value
from ...plan import present
from ...store import ROWS
from ..mainloop import TOTAL, key_of, numbers_read
from .fused import Sm90FusedKernel


class Sm90PromotedKernel(Sm90FusedKernel):
    """The production kernel with the plan's `mainloop` in place of the plain sum."""

    @cute.jit
    def consume(self, job: Any, maps: Any, tile: Any, consumer: Any, thread: Any, ahead: Any) -> None:
        """A consumer warpgroup: all its tiles, products, promotions and stores."""
        plan = self.plan
        mma = bridge.Wgmma(plan)
        products = [mma.accumulator() for _ in range(plan.blocks)]
        totals = [mma.accumulator() for _ in range(plan.blocks)]
        first_block = consumer * plan.blocks
        a = bridge.WgmmaOperand(plan.a.descriptor, job.shared.a(0), plan.smem.a_stage_bytes, first_block)
        b = bridge.WgmmaOperand(plan.b.descriptor, job.shared.b(0), plan.smem.b_stage_bytes)
        stage, parity = Int32(0), Int32(0)

        while tile < job.tiles:
            m0, n0, matrix = self.origin(job, tile)
            row = m0 + first_block * ROWS
            tables = TileTables(plan, job, (row, n0, matrix), thread)
            for block in cutlass.range_constexpr(plan.blocks):
                totals[block].fill(0)
            for k_tile in cutlass.range(job.k_tiles, unroll=1):
                stage = bridge.uniform(stage)
                numbers = tables.load(k_tile)  # their loads are under way while the products are computed
                bridge.barrier_wait(job.shared.full(stage), parity)
                mma.multiply_blocks(products, a, b, stage, False)
                mma.wait(0, *products)
                self.release(job, stage)
                if const_expr(plan.config.loader == "self"):
                    if k_tile > 0:  # the stage before: another consumer may still read this one
                        ahead = self.load_next(job, maps, ahead)
                for block in cutlass.range_constexpr(plan.blocks):
                    for v in bridge.unrolled(plan.mma.accumulator_registers):
                        at = tables.element(numbers, block, v, totals[block][v])
                        totals[block][v] = present(plan.mainloop).evaluate(products[block][v], at)
                stage += 1
                if stage == plan.stages:
                    stage = Int32(0)
                    parity ^= 1
            if const_expr(plan.config.loader == "self"):
                ahead = self.load_next(job, maps, ahead)
            for block in cutlass.range_constexpr(plan.blocks):
                self.epilogue.store(job, maps[2], totals[block], (consumer, thread), (row, n0, matrix), block, 0)
            tile += job.workers
        if const_expr(plan.drains and plan.config.loader == "self"):
            self.drain(job, ahead)
        if const_expr(plan.store is not None):
            bridge.wait_stores_read(0)


class TileTables(bridge.Carried):
    """The tables as one thread reads them for one tile: where the numbers of its rows and columns lie.

    place   first row and column of the warpgroup's accumulators, and their matrix
    keys    of what a thread reads, each once: see `kernels.sm90.mainloop.key_of`
    starts  for each of them, the address of the number of K block 0
    steps   and the bytes from there to that of K block 1
    """

    def __init__(self, plan: Any, job: Any, place: tuple[Any, Any, Any], thread: Any):
        starts = {key: _start(plan, job, place, thread, of) for key, of in numbers_read(plan).items()}
        self.plan, self.keys = plan, tuple(starts)
        steps = [getattr(job.given, f"{key[0]}_k") * f32.bytes for key in starts]
        super().__init__(starts=list(starts.values()), steps=steps)

    def load(self, k_block: Any) -> dict[Any, Any]:
        """The numbers of one K block."""
        places = [start + Int64(k_block) * step for start, step in zip(self.starts, self.steps, strict=True)]
        return {key: load_value(place, f32) for key, place in zip(self.keys, places, strict=True)}

    def element(self, numbers: dict[Any, Any], block: int, v: int, total: Any) -> PromotedElement:
        """What the promotion of one element reads."""
        values = {table.name: numbers[key_of(self.plan, table, block, v)] for table in self.plan.mainloop.tables}
        return PromotedElement({TOTAL: total, **values})


def _start(plan: Any, job: Any, place: tuple[Any, Any, Any], thread: Any, of: tuple[Any, int, int]) -> Any:
    """The address of a number of K block 0. Places outside of the matrix are read at its edge, and not stored."""
    table, block, v = of
    row, column, matrix = place
    i, j = plan.mma.coords_C(thread, v)
    at, size = (row + (block * ROWS + i), job.m) if table.axis == "m" else (column + j, job.n)
    group = cutlass.min(at, size - 1) // table.group
    offset = Int64(group) * getattr(job.given, f"{table.name}_group")
    if plan.batch > 1 and (table.axis == "n" or plan.ragged is None):  # rows of A are those of all groups
        offset += Int64(matrix) * getattr(job.given, f"{table.name}_batch")
    return getattr(job.given, table.name) + offset * f32.bytes


class PromotedElement:
    """One element, as an expression reads it."""

    math = ElementMath(exact=True)

    def __init__(self, values: dict[str, Any]):
        self.values = values

    def read(self, name: str) -> Any:
        """The total, or a table's number."""
        return self.values[name]
