"""A Hopper GEMM whose sums are promoted: each K block in registers of its own, then into the total.

    role        does
    --------    -------------------------------------------------------------------------------------------------------
    loader      as in `device.gemm`
    numbers     a warp of its own, beside the loader's: its lanes copy a K block's numbers of the tables into the stage
                (cp.async, any strides); each lane arrives at the stage's barrier when its copies have landed. Without a
                loader of its own the consumer warp that loads does so
    consumer    for each K block, and in it for each of its blocks of 64 rows, and of these for each part of their
                columns (`mainloop.product_of`): reads the block's numbers, multiplies into one set of fresh registers,
                waits, and computes for each element total = expression(total, product, tables); releases the stage when
                the last of them has been multiplied

A warpgroup has no products in flight while it promotes: another warpgroup's run meanwhile, so two are the least. It has
the registers of all totals, and of the products of 64 rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr

from ....atoms.copy.base import WARP
from ....dtypes import f32
from ...dsl import bridge
from ...dsl.ampere import copy_bytes
from ...dsl.math import ElementMath
from ...dsl.tables import load_word_shared
from ...epilogue.tracing import Values
from ...plan import present
from ...store import ROWS
from ..config import WARPGROUP
from ..mainloop import (
    NUMBER_BYTES,
    TOTAL,
    VECTOR,
    NumberSlots,
    byte_of,
    key_of,
    numbers_read,
    product_of,
    same_for_all,
)
from ..plan import Sm90Plan
from .fused import Sm90FusedKernel

Numbers = dict[tuple[Any, ...], Float32]  # by `key_of`
_MATH = ElementMath(exact=True)


class Sm90PromotedKernel(Sm90FusedKernel):
    """The production kernel with the plan's `mainloop` in place of the plain sum."""

    @cute.jit
    def consume(
        self, job: bridge.Carried, maps: Sequence[bridge.Maps], tile: Int32, consumer: Int32, thread: Int32,
        ahead: tuple[Int32, ...],
    ) -> None:  # fmt: skip
        """A consumer warpgroup: all its tiles, products, promotions and stores."""
        plan = self.plan
        atom, descriptor, parts = product_of(plan)
        mma = bridge.Wgmma(plan, (atom, descriptor) if parts > 1 else None)
        products = mma.accumulator()
        totals = [bridge.Wgmma(plan).accumulator() for _ in range(plan.blocks)]
        first_block = consumer * plan.blocks
        a = bridge.WgmmaOperand(plan.a.descriptor, job.shared.a(0), plan.smem.a_stage_bytes, first_block)
        b = bridge.WgmmaOperand(descriptor, job.shared.b(0), plan.smem.b_stage_bytes)
        if const_expr(plan.config.rows is not None):
            self.clear_dead_rows(job.shared, consumer * WARPGROUP + thread)
        tables = StageTables(plan, first_block * ROWS, thread)
        pieces = [(block, part) for block in range(plan.blocks) for part in range(parts)]
        stage, parity = Int32(0), Int32(0)
        while tile < job.tiles:
            m0, n0, matrix = self.origin(job, tile)
            row = m0 + first_block * ROWS
            for block in cutlass.range_constexpr(plan.blocks):
                totals[block].fill(0)
            ready = bridge.barrier_done(job.shared.full(stage), parity)
            for k_tile in cutlass.range(job.k_tiles, unroll=1):
                stage = bridge.uniform(stage)
                if not ready:
                    bridge.barrier_wait(job.shared.full(stage), parity)
                following, flipped = stage + 1, parity
                if following == plan.stages:
                    following = Int32(0)
                    flipped = parity ^ 1
                # Of several products the first hides reads, which issues wait for. Of one, before: 4 to 15% faster.
                numbers = tables.numbers(job.shared, stage) if const_expr(len(pieces) == 1) else {}
                for piece in cutlass.range_constexpr(len(pieces)):
                    block, part = pieces[piece]
                    mma.multiply_block(products, a, b, stage, block, part, False)
                    if const_expr(piece == 0 and len(pieces) > 1):
                        numbers = tables.numbers(job.shared, stage)
                    mma.wait(0, products)
                    if const_expr(piece == len(pieces) - 1):
                        self.release(job, stage)
                        ready = bridge.barrier_done(job.shared.full(following), flipped)  # known after the promotion
                        if const_expr(plan.config.loader == "self"):
                            if k_tile > 0:  # into the stage before: another consumer may still read this one
                                ahead = self.load_next(job, maps, ahead)
                    self.promote(tables, numbers, products, totals[block], (block, part * atom.accumulator_registers))
                stage, parity = following, flipped
            self.bring_together(job, totals, (consumer, thread))
            for number in cutlass.range_constexpr(len(plan.pieces(0))):
                for part in cutlass.range_constexpr(plan.config.split):
                    if job.part == part:
                        self.store_piece(job, maps, totals, (consumer, thread, tile), (row, n0, matrix), number, part)
            if const_expr(plan.config.loader == "self" and not plan.config.single):
                ahead = self.load_next(job, maps, ahead)
            tile += job.workers
        self.after_tiles(job, tile)
        if const_expr(plan.drains and plan.config.loader == "self"):
            self.drain(job, ahead)
        if const_expr(plan.store is not None):
            bridge.wait_stores_read(0)

    def promote(
        self, tables: StageTables, numbers: Numbers, products: cute.Tensor, totals: cute.Tensor, at: tuple[int, int]
    ) -> None:
        """The next totals of a product's elements. `at`: (block of rows, the first value of its total)."""
        block, first = at
        for v in range(first, first + product_of(self.plan)[0].accumulator_registers):
            element = tables.element(numbers, block, v, totals[v])
            totals[v] = present(self.plan.mainloop).evaluate(products[v - first], element)

    @cute.jit
    def feed_numbers(self, job: bridge.Carried, tile: Int32) -> None:
        """Copy the tables' numbers of every K block of all tiles: the loop of a warp of its own."""
        plan = self.plan
        stage, parity = Int32(0), Int32(1)
        while tile < job.tiles:
            place = self.origin(job, tile)
            single = NumberAddresses(plan, job, place, job.k_first, 1)
            if const_expr(any(part.vector > 1 for part in plan.numbers.parts)):
                if single.aligned():
                    wide = NumberAddresses(plan, job, place, job.k_first, VECTOR)
                    stage, parity = self.feed_tile(job, wide, stage, parity)
                else:
                    stage, parity = self.feed_tile(job, single, stage, parity)
            else:
                stage, parity = self.feed_tile(job, single, stage, parity)
            tile += job.workers

    @cute.jit
    def feed_tile(
        self, job: bridge.Carried, numbers: NumberAddresses, stage: Int32, parity: Int32
    ) -> tuple[Int32, Int32]:
        """Copy the numbers of one tile's K blocks."""
        for _ in cutlass.range(job.k_tiles, unroll=1):
            bridge.barrier_wait(job.shared.empty(stage), parity)
            numbers.copy(job, stage)
            numbers.advance()
            stage, parity = bridge.next_in_ring(stage, parity, self.plan.stages)
        return stage, parity

    def copy_numbers(self, job: bridge.Carried, place: bridge.Place, k_tile: Int32, stage: Int32) -> None:
        """Copy the tables' numbers of a K block into its stage: the warp that loads, without a warp for them."""
        if self.plan.numbers.parts:
            NumberAddresses(self.plan, job, place, k_tile, 1).copy(job, stage)


class NumberAddresses(bridge.Carried):
    """The numbers that a lane of the warp copies into a stage: their addresses in global memory.

    widest  numbers that a copy takes at most, of tables whose numbers lie next to each other; see `NumberSlots.vector`
    starts  of each of the lane's copies, the address of its numbers of the next K block
    valid   and the bytes of them that are inside of the matrix
    steps   of each table, the bytes from one K block to the next
    """

    def __init__(self, plan: Sm90Plan, job: bridge.Carried, place: bridge.Place, k_tile: Int32, widest: int):
        self.plan, lane = plan, cute.arch.lane_idx()
        parts = plan.numbers.parts
        self.copies = [(part, min(widest, part.vector), first) for part in parts
                       for first in range(0, part.slots, WARP * min(widest, part.vector))]  # fmt: skip
        steps = {part.table.name: Int64(getattr(job.given, f"{part.table.name}_k")) * f32.bytes for part in parts}
        self.names, self.given = tuple(steps), job.given
        slots = [first + lane * count for _, count, first in self.copies]
        super().__init__(
            starts=tuple(
                _address(plan, job, place, k_tile, part, slot, count)
                for (part, count, _), slot in zip(self.copies, slots, strict=True)
            ),
            valid=tuple(
                _valid(part, count, slot, place[0], job.m)
                for (part, count, _), slot in zip(self.copies, slots, strict=True)
            ),
            steps=tuple(steps.values()),
            lane=lane,
        )

    def aligned(self) -> cutlass.Boolean:
        """True if the numbers of neighbouring rows can be copied 16 bytes at a time; the same for all lanes."""
        steps, off = dict(zip(self.names, self.steps, strict=True)), Int64(0)
        for (part, _, first), start in zip(self.copies, self.starts, strict=True):
            if part.vector > 1 and first == 0:
                name = part.table.name
                of_lane_0 = cute.arch.shuffle_sync(Int32(start % 16), 0)
                off |= Int64(of_lane_0) | steps[name] % 16 | (getattr(self.given, f"{name}_group") ^ 1)
        return off == 0

    def copy(self, job: bridge.Carried, stage: Int32) -> None:
        """Copy a K block's numbers into a stage; the lane arrives at its barrier when its own have landed."""
        for (part, count, first), start, valid in zip(self.copies, self.starts, self.valid, strict=True):
            to = job.shared.numbers(stage) + (part.first + (first + self.lane * count) * NUMBER_BYTES)
            _copy(to, start, valid, self.lane, count * NUMBER_BYTES, (part.slots - first) // count)
        bridge.barrier_arrive_copied(job.shared.full(stage))

    def advance(self) -> None:
        """Go on to the next K block."""
        step = dict(zip(self.names, self.steps, strict=True))
        further = (start + step[part.table.name] for (part, _, _), start in zip(self.copies, self.starts, strict=True))
        self.__dict__["starts"] = tuple(further)


def _address(
    plan: Sm90Plan, job: bridge.Carried, place: bridge.Place, k_tile: Int32, part: NumberSlots, slot: Int32, count: int
) -> Int64:  # fmt: skip
    """The address of the `count` numbers from a slot on.

    A single one outside of the matrix is read at its edge, and not stored. Several keep their place, and so their
    alignment: of those outside no byte is valid.
    """
    table, (row, column, matrix) = part.table, place
    origin, size = (row, job.m) if table.axis == "m" else (column, job.n)
    along = slot * part.segment
    group = (part.line(origin, along, size, cutlass.min) if count == 1 else origin + along) // table.group
    offset = Int64(group) * getattr(job.given, f"{table.name}_group")
    offset += Int64(k_tile) * getattr(job.given, f"{table.name}_k")
    if plan.batch > 1 and not (table.axis == "m" and plan.joined_rows):
        offset += Int64(matrix) * getattr(job.given, f"{table.name}_batch")
    return getattr(job.given, table.name) + offset * f32.bytes


def _valid(part: NumberSlots, count: int, slot: Int32, row: Int32, m: Int32) -> Int32:
    """Bytes of a copy that are inside of the matrix: of a single number all, since its place is clamped."""
    if count == 1:
        return Int32(NUMBER_BYTES)
    return cutlass.max(cutlass.min(m - (row + slot), count), 0) * NUMBER_BYTES


@cute.jit
def _copy(
    to: cute.Pointer, start: Int64, valid: Int32, lane: Int32, size: cutlass.Constexpr, lanes: cutlass.Constexpr
) -> None:  # fmt: skip
    """cp.async of `size` bytes, by the first `lanes` lanes."""
    if const_expr(lanes >= WARP):
        copy_bytes(to, start, size, valid)
    else:
        if lane < lanes:
            copy_bytes(to, start, size, valid)


class StageTables(bridge.Carried):
    """The numbers of a stage as one thread reads them: the bytes that depend on the thread.

    row   of the tile, of the warpgroup's first accumulator
    """

    def __init__(self, plan: Sm90Plan, row: Int32, thread: Int32):
        self.plan = plan
        super().__init__(row=row, thread=thread)

    def numbers(self, shared: bridge.SharedMemory, stage: Int32) -> Numbers:
        """The numbers of one K block that the thread's promotions read."""
        found, base = {}, shared.numbers(stage).toint()
        for key, (table, of_block, v) in numbers_read(self.plan).items():
            thread = 0 if same_for_all(self.plan, table, v) else self.thread
            at = byte_of(self.plan, table, self.row, thread, of_block, v)
            found[key] = bridge.as_floats([load_word_shared(base + at)])[0]
        return found

    def element(self, numbers: Numbers, block: int, v: int, total: Float32) -> Values:
        """The values that the promotion of one element reads."""
        values = {
            table.name: numbers[key_of(self.plan, table, block, v)] for table in present(self.plan.mainloop).tables
        }
        return Values({TOTAL: total, **values}, _MATH)
