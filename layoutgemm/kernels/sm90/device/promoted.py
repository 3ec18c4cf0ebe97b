"""A Hopper GEMM whose sums are promoted: each K block in registers of its own, then into the total.

    role        does
    --------    -------------------------------------------------------------------------------------------------------
    loader      as in `device.gemm`
    consumer    for each K block, and in it for each of its blocks of 64 rows: multiplies into one set of fresh
                registers, waits, and computes for each element total = expression(total, product, tables);
                releases the stage when the last of them has been multiplied

A warpgroup has no products in flight while it promotes: another warpgroup's run meanwhile, so two are the least. It has
the registers of all totals, and of the products of 64 rows.

Of the lanes that read the same number of a table, each loads it for another K block of a batch: `mainloop.Dealing`. The
loads are one batch ahead. A lane passes its number on by a shuffle, while products run.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr

from ....dtypes import f32
from ...dsl import bridge
from ...dsl.math import ElementMath, load_value
from ...plan import present
from ...store import ROWS
from ..config import WARPGROUP
from ..mainloop import BATCH, TOTAL, dealt, key_of, numbers_read
from .fused import Sm90FusedKernel


class Sm90PromotedKernel(Sm90FusedKernel):
    """The production kernel with the plan's `mainloop` in place of the plain sum."""

    @cute.jit
    def consume(self, job: Any, maps: Any, tile: Any, consumer: Any, thread: Any, ahead: Any) -> None:
        """A consumer warpgroup: all its tiles, products, promotions and stores."""
        plan = self.plan
        mma = bridge.Wgmma(plan)
        products = mma.accumulator()
        totals = [mma.accumulator() for _ in range(plan.blocks)]
        first_block = consumer * plan.blocks
        a = bridge.WgmmaOperand(plan.a.descriptor, job.shared.a(0), plan.smem.a_stage_bytes, first_block)
        b = bridge.WgmmaOperand(plan.b.descriptor, job.shared.b(0), plan.smem.b_stage_bytes)
        if const_expr(plan.config.rows is not None):
            self.clear_dead_rows(job.shared, consumer * WARPGROUP + thread)
        stage, parity = Int32(0), Int32(0)

        while tile < job.tiles:
            m0, n0, matrix = self.origin(job, tile)
            row = m0 + first_block * ROWS
            tables = TileTables(plan, job, (row, n0, matrix), thread)
            for block in cutlass.range_constexpr(plan.blocks):
                totals[block].fill(0)
            if const_expr(plan.config.split == 1):
                tables.fetch(Int32(0))
            elif job.k_tiles > 0:  # a part of K may have none
                tables.fetch(Int32(0))
            # Full batches unrolled: their shuffles name lanes by constants. What is left of K is a loop of its own.
            ready = bridge.barrier_done(job.shared.full(stage), parity)
            for batch in cutlass.range(job.k_tiles // BATCH, unroll=1):
                tables.advance((batch + 1) * BATCH)
                for at in cutlass.range_constexpr(BATCH):
                    later = batch > 0 if const_expr(at == 0) else True
                    mma, stage, parity, ready, ahead = self.promote(
                        job, maps, mma, (products, totals), (a, b), tables, at, later, (stage, parity, ready, ahead)
                    )
            rest = job.k_tiles % BATCH
            if rest > 0:
                tables.advance(job.k_tiles)
                for at in cutlass.range(rest, unroll=1):
                    later = job.k_tiles - rest + at > 0
                    mma, stage, parity, ready, ahead = self.promote(
                        job, maps, mma, (products, totals), (a, b), tables, at, later, (stage, parity, ready, ahead)
                    )
            self.bring_together(job, totals, (consumer, thread))
            for number in cutlass.range_constexpr(len(plan.pieces(0))):
                for part in cutlass.range_constexpr(plan.config.split):
                    if job.part == part:
                        self.store_piece(job, maps, totals, (consumer, thread), (row, n0, matrix), number, part)
            if const_expr(plan.config.loader == "self" and not plan.config.single):
                ahead = self.load_next(job, maps, ahead)
            tile += job.workers
        if const_expr(plan.drains and plan.config.loader == "self"):
            self.drain(job, ahead)
        if const_expr(plan.store is not None):
            bridge.wait_stores_read(0)

    @cute.jit
    def promote(
        self, job: Any, maps: Any, mma: Any, sums: Any, operands: Any, tables: Any, at: Any, later: Any, ring: Any
    ) -> Any:
        """Multiply and promote one K block, `at` of its batch; `later`: not the tile's first one.

        Returns what the next one needs: the instruction, the stage with its parity and whether it has landed, and where
        the loader stands.
        """
        plan = self.plan
        products, totals = sums
        a, b = operands
        stage, parity, ready, ahead = ring
        numbers = tables.numbers(at)
        stage = bridge.uniform(stage)
        if not ready:
            bridge.barrier_wait(job.shared.full(stage), parity)
        following, flipped = stage + 1, parity
        if following == plan.stages:
            following = Int32(0)
            flipped = parity ^ 1
        for block in cutlass.range_constexpr(plan.blocks):
            mma.multiply_block(products, a, b, stage, block, 0, False)
            mma.wait(0, products)
            if const_expr(block == plan.blocks - 1):
                self.release(job, stage)
                ready = bridge.barrier_done(job.shared.full(following), flipped)  # known when the promotion is done
                if const_expr(plan.config.loader == "self"):
                    if later:  # into the stage before: another consumer may still read this one
                        ahead = self.load_next(job, maps, ahead)
            for v in bridge.unrolled(plan.mma.accumulator_registers):
                element = tables.element(numbers, block, v, totals[block][v])
                totals[block][v] = present(plan.mainloop).evaluate(products[v], element)
        return mma, following, flipped, ready, ahead


class TileTables(bridge.Carried):
    """The tables as one thread reads them for one tile: where the numbers of its rows and columns lie.

    place    first row and column of the warpgroup's accumulators, and their matrix
    keys     of what a thread reads, each once: see `kernels.sm90.mainloop.key_of`
    starts   for each of them, the address of the number of the first K block of this part of K
    steps    and the bytes from there to that of the next K block
    last     the last K block of this part
    current  the number of each key that this lane has of the batch of K blocks that are promoted; `coming`: of the next
    """

    def __init__(self, plan: Any, job: Any, place: tuple[Any, Any, Any], thread: Any):
        starts = {key: _start(plan, job, place, thread, of) for key, of in numbers_read(plan).items()}
        self.plan, self.keys = plan, tuple(starts)
        self.dealt = {table.name: dealt(plan, table) for table in plan.mainloop.tables}
        steps = [getattr(job.given, f"{key[0]}_k") * f32.bytes for key in starts]
        layout = cute.make_layout(max(1, len(starts)))
        self.current, self.coming = (cute.make_rmem_tensor(layout, Float32) for _ in range(2))
        super().__init__(
            starts=[start + Int64(job.k_first) * step for start, step in zip(starts.values(), steps, strict=True)],
            steps=steps,
            last=job.k_tiles - 1,
            lane=cute.arch.lane_idx(),
        )

    def fetch(self, first: Any) -> None:
        """Load this lane's numbers of the batch that begins at K block `first`."""
        for i, (key, start, step) in enumerate(zip(self.keys, self.starts, self.steps, strict=True)):
            k_block = cutlass.min(first + self.dealt[key[0]].turn(self.lane), self.last)
            self.coming[i] = load_value(start + Int64(k_block) * step, f32)

    def advance(self, first: Any) -> None:
        """Go on to the batch that was fetched; fetch the one from `first` on."""
        for i in range(len(self.keys)):
            self.current[i] = self.coming[i]
        self.fetch(first)

    def numbers(self, at: Any) -> dict[Any, Any]:
        """The numbers of one K block of the batch, from the lanes that have them."""
        found = {}
        for i, key in enumerate(self.keys):
            among = self.dealt[key[0]]
            found[key] = bridge.shuffle(self.current[i], among.offset(at), among.segment)
        return found

    def element(self, numbers: dict[Any, Any], block: int, v: int, total: Any) -> PromotedElement:
        """The values that the promotion of one element reads."""
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
    if plan.batch > 1 and not (table.axis == "m" and plan.joined_rows):
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
