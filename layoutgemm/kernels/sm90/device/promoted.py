"""A Hopper GEMM whose sums are promoted. Each K block in registers of its own, then into the total.

    role        does
    --------    -------------------------------------------------------------------------------------------------------
    loader      as in `device.gemm`
    numbers     a warp of its own, beside the loader's: its lanes copy a K block's numbers of the tables into the stage
                (cp.async, any strides); each lane arrives at the stage's barrier when its copies have landed. Those of
                a whole tile's rows that lie next to each other come by one bulk copy. Without a loader of its own the
                consumer warp that loads copies them, one by one
    consumer    for each K block, and in it for each of its blocks of 64 rows, and of these for each part of their
                columns (`mainloop.product_of`): reads the block's numbers, multiplies into one set of fresh registers,
                waits, and computes for each element total = expression(total, product, tables); releases the stage when
                the last of them has been multiplied

One of several warpgroups has no products in flight while it promotes: another one's run meanwhile. A warpgroup that is
alone has a second set of registers (`mainloop.product_sets`): one product runs while the one before is promoted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr

from ....atoms.copy.base import WARP
from ....checks.budgets import WARPGROUP
from ....dtypes import f32
from ...dsl import bridge
from ...dsl.ampere import copy_bytes
from ...dsl.math import ElementMath
from ...dsl.tables import choose, load_index, load_word_shared, load_words_shared
from ...epilogue.tracing import Values
from ...indexed.rows import ROWS as INDICES
from ...plan import present
from ...store import ROWS
from ..mainloop import BULK, TOTAL, product_of, product_sets
from ..operands.stage_numbers import NumberSlots, byte_of, key_of, numbers_read, same_for_all
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
        sets, each = [mma.accumulator() for _ in range(product_sets(plan))], atom.accumulator_registers
        products = sets[0]
        totals = [bridge.Wgmma(plan).accumulator() for _ in range(plan.blocks)]
        first_block = consumer * plan.blocks
        a = bridge.WgmmaOperand(plan.a.descriptor, job.shared.a(0), plan.smem.a_stage_bytes, first_block)
        b = bridge.WgmmaOperand(descriptor, job.shared.b(0), plan.smem.b_stage_bytes)
        if const_expr(plan.config.loaded_a_rows is not None):
            self.clear_dead_rows(job.shared, consumer * WARPGROUP + thread)
        tables = StageTables(plan, first_block * ROWS, thread)
        pieces = [(block, part) for block in range(plan.blocks) for part in range(parts)]
        stage, parity, span = Int32(0), Int32(0), plan.numbers.span
        turn = max(span, len(sets))  # K blocks of the loop's code where sets alternate
        # A tile's first products hide what is done at its begin; that of a single tile, the first loads.
        hides = not plan.config.one_tile_per_cluster
        skips = plan.config.tuning.skip_empty_blocks
        together = 2 if plan.numbers.slack is not None else 1  # of few narrow tiles: 128x64 takes 8% less
        coming = self.coming_tile(job, job.first_place, first_block)
        place, blocks, skew, first = coming[:3], coming[3], coming[4], tile
        own_turns = self.own_turns(job, consumer)
        while tile < own_turns:
            if const_expr(self.foresees):
                place, blocks, skew = coming[:3], coming[3], coming[4]
            if const_expr(not hides):
                clear(totals)
            share = self.share_of_tile(job, tile)
            ready = bridge.barrier_done(job.shared.full(stage), parity)
            k_blocks = self.count_k_tiles(job, share)
            if const_expr(len(sets) > 1):
                if k_blocks > 0:
                    stage = bridge.uniform(stage)
                    if not ready:
                        bridge.barrier_wait(job.shared.full(stage), parity)
                    mma.multiply_block(sets[0], a, b, stage, pieces[0][0], pieces[0][1], False)
                    following, flipped = bridge.next_in_ring(stage, parity, plan.stages)
                    ready = bridge.barrier_done(job.shared.full(following), flipped)
                    if const_expr(hides):
                        coming, place = self.begin_tile(
                            job, totals, (tile, first, own_turns, first_block), coming, place
                        )
                    turns = Turns(a, b, tables, sets, totals, pieces)
                    at = stage, parity, skew, ready
                    for _ in cutlass.range((k_blocks - 1) // turn, unroll=1):
                        mma, at = self.in_turns(job, mma, turns, at, turn)
                    rest = k_blocks - (k_blocks - 1) // turn * turn
                    if rest == turn:  # ptxas serialises products right behind the loop, without a branch between
                        mma, at = self.in_turns(job, mma, turns, at, turn, last=True)
                    elif const_expr(turn > span):
                        mma, at = self.in_turns(job, mma, turns, at, span, last=True)
                    else:
                        mma.wait(0)
                    stage, parity, skew, ready = at
            for k_tile in cutlass.range(k_blocks // span if len(sets) == 1 else 0, unroll=together):
                read: dict[int, Numbers] = {}
                for later in cutlass.range_constexpr(span):
                    stage = bridge.uniform(stage)
                    if not ready:
                        bridge.barrier_wait(job.shared.full(stage), parity)
                    following, flipped = bridge.next_in_ring(stage, parity, plan.stages)
                    # Of several products the first hides reads, which issues wait for. Of one, before: 4 to 15% faster.
                    if const_expr(later == 0 and len(pieces) == 1):
                        read = tables.numbers(job.shared, stage, skew)
                    for piece in cutlass.range_constexpr(len(pieces)):
                        block, part = pieces[piece]
                        if const_expr(not skips):
                            mma.multiply_block(products, a, b, stage, block, part, False)
                        elif blocks > block:
                            mma.multiply_block(products, a, b, stage, block, part, False)
                        if const_expr(later == piece == 0 and len(pieces) > 1):
                            read = tables.numbers(job.shared, stage, skew)
                        if const_expr(hides and later == piece == 0):
                            if k_tile == 0:
                                coming, place = self.begin_tile(
                                    job, totals, (tile, first, own_turns, first_block), coming, place
                                )
                        mma.wait(0, products)
                        if const_expr(piece == len(pieces) - 1):
                            if const_expr(len(present(plan.mainloop).tables) > 0):
                                bridge.warp_sync()  # all lanes have read the tables before one lane says so
                            self.release(job, stage)
                            ready = bridge.barrier_done(job.shared.full(following), flipped)  # before the promotion
                            if const_expr(plan.config.loader == "self"):
                                if k_tile > 0:  # into the stage before: another consumer may still read this one
                                    ahead = self.load_next(job, maps, ahead)
                        if const_expr(not skips):
                            self.promote(tables, read[later], products, totals[block], (block, part * each))
                        elif blocks > block:
                            self.promote(tables, read[later], products, totals[block], (block, part * each))
                    stage, parity = following, flipped
                skew = self.next_skew(job, skew)
            self.settle_group(job, share, totals)
            self.bring_together(job, totals, (consumer, thread))
            self.store_tile(job, maps, totals, (consumer, thread, tile), place)
            if const_expr(plan.config.loader == "self" and not plan.config.one_tile_per_cluster):
                ahead = self.load_next(job, maps, ahead)
            tile += job.workers
        ahead = self.pass_turn(job, maps, tile, (stage, parity), ahead)
        self.after_tiles(job, tile)
        self.end_tiles(job, ahead)

    @cute.jit
    def in_turns(
        self, job: bridge.Carried, mma: bridge.Wgmma, turns: Turns, at: tuple[Int32, ...], blocks: cutlass.Constexpr,
        last: cutlass.Constexpr = False,
    ) -> tuple[bridge.Wgmma, tuple[Int32, ...]]:  # fmt: skip
        """Multiply and promote K blocks with two sets of product registers.

        One product runs while the one before is promoted. The first one's first product has been issued. Behind
        the last one that of the next K block is, unless these are a tile's `last`.

        at  stage, its parity, the skew of its numbers, and whether the stage of the next issue has landed
        """
        plan, (stage, parity, skew, ready) = self.plan, at
        sets, pieces, span = turns.sets, turns.pieces, plan.numbers.span
        each, count, read = product_of(plan)[0].accumulator_registers, len(pieces), {}
        for step in cutlass.range_constexpr(blocks * count):
            block, piece = divmod(step, count)
            ends = piece == count - 1
            following, flipped = bridge.next_in_ring(stage, parity, plan.stages) if ends else (stage, parity)
            issues = not last or step < blocks * count - 1
            if const_expr(issues):
                if const_expr(ends):
                    following = bridge.uniform(following)
                    if not ready:
                        bridge.barrier_wait(job.shared.full(following), flipped)
                rows, part = pieces[(piece + 1) % count]
                mma.multiply_block(sets[(step + 1) % 2], turns.a, turns.b, following, rows, part, False)
            if const_expr(piece == 0 and block % span == 0):
                read = turns.tables.numbers(job.shared, stage, skew)  # behind the issue, which would wait for them
            mma.wait(1 if issues else 0, sets[step % 2])
            if const_expr(ends):
                if const_expr(len(present(plan.mainloop).tables) > 0):
                    bridge.warp_sync()  # all lanes have read the tables before one lane says so
                self.release(job, stage)
            if const_expr((piece + 2) % count == 0):  # the next step's issue reads another stage
                further, again = bridge.next_in_ring(following, flipped, plan.stages)
                ready = bridge.barrier_done(job.shared.full(further), again)
            rows, part = pieces[piece]
            self.promote(turns.tables, read[block % span], sets[step % 2], turns.totals[rows], (rows, part * each))
            if const_expr(ends):
                stage, parity, skew = following, flipped, self.next_skew(job, skew)
        return mma, (stage, parity, skew, ready)

    @cute.jit
    def begin_tile(
        self, job: bridge.Carried, totals: Sequence[cute.Tensor], tile: tuple[Int32, ...], coming: tuple[Int32, ...],
        place: tuple[Int32, ...],
    ) -> tuple[tuple[Int32, ...], tuple[Int32, ...]]:  # fmt: skip
        """Clear the totals and compute places, behind a tile's first products. Returns `coming` and `place`.

        tile  its number, that of the CTA's first one, the end of the consumer's, and the consumer's first block of rows
        """
        clear(totals)
        number, first, end, first_block = tile
        if const_expr(self.foresees):
            if number + job.workers < end:
                coming = self.coming_tile(job, self.origin(job, number + job.workers), first_block)
        elif const_expr(self.plan.ragged is None):
            place = self.coming_tile(job, self.origin(job, number), first_block)[:3]
        elif number != first:
            place = self.coming_tile(job, self.origin(job, number), first_block)[:3]
        return coming, place

    @property
    def foresees(self) -> bool:
        """True if places are known a tile ahead: a tile's first products hang on them.

        Held for tiles of 128x256, they took 19% longer.
        """
        return self.plan.config.tuning.skip_empty_blocks or self.plan.numbers.slack is not None

    def share_of_tile(self, job: bridge.Carried, tile: Int32) -> tuple[Int32, ...]:
        """The tile's own share of K. () where its place does not decide on it, and is computed behind products."""
        decides = self.plan.along_k is not None or self.plan.triangles is not None
        return self.share_of_k(job, self.origin(job, tile)) if decides else ()

    def coming_tile(self, job: bridge.Carried, origin: bridge.Place, first_block: Int32) -> tuple[Int32, ...]:
        """A tile's first row of the consumer, first column, matrix, blocks with rows, and skew.

        They are known while the tile before is multiplied, since the tile's first products hang on them.
        """
        tile, column, matrix = origin
        row = tile + first_block * ROWS
        return row, column, matrix, self.count_blocks(job, row, matrix), self.first_skew(job, origin)

    def first_skew(self, job: bridge.Carried, origin: bridge.Place) -> Int32:
        """Bytes from the slots to the numbers of a tile's first K block."""
        part, (row, column, matrix) = self.plan.numbers.slack, origin
        if part is None:
            return Int32(0)
        place = self.loaded_row(job, row, matrix), column, matrix
        return _skew(self.plan, job, place, self.first_number(job, ()), part)

    def next_skew(self, job: bridge.Carried, skew: Int32) -> Int32:
        """Likewise of the next K block."""
        part = self.plan.numbers.slack
        return skew if part is None else skew + Int32(getattr(job.given, f"{part.table.name}_k")) * f32.bytes & BULK - 1

    @cute.jit
    def store_tile(
        self, job: bridge.Carried, maps: Sequence[bridge.Maps], totals: Sequence[cute.Tensor], at: tuple[Int32, ...],
        origin: bridge.Place,
    ) -> None:  # fmt: skip
        """Store a tile's totals: all at once, or piece by piece. `at`: (consumer, thread, number of the tile)."""
        plan = self.plan
        at_once = plan.store is not None and plan.store.at_once
        if const_expr(at_once):
            self.epilogue.store_at_once(job, maps[2], totals, at[:2], origin)
        else:
            self.store_pieces(job, maps, totals, at, origin)

    def promote(
        self, tables: StageTables, numbers: Numbers, products: cute.Tensor, totals: cute.Tensor, at: tuple[int, int]
    ) -> None:
        """The next totals of a product's elements. `at`: (block of rows, the first value of its total)."""
        block, first = at
        for v in range(first, first + product_of(self.plan)[0].accumulator_registers):
            element = tables.element(numbers, block, v, totals[v])
            totals[v] = present(self.plan.mainloop).evaluate(products[v - first], element)

    @cute.jit
    def feed_numbers(self, job: bridge.Carried, ahead: tuple[Int32, ...]) -> None:
        """Copy the tables' numbers of every K block of all tiles. The loop of a warp of its own, from `ahead` on."""
        plan = self.plan
        at = Int32(0), Int32(1), Int32(0)
        tile, place, share = ahead[0], ahead[1:4], ahead[8]
        while tile < job.tiles:
            first, k_tiles, bulk = self.first_number(job, share), self.count_k_tiles(job, share), Int32(0)
            if const_expr(plan.numbers.bulk_bytes > 0):
                bulk = self.blocks_in_bulk(job, place, first, k_tiles)
                if bulk > 0:
                    at = self.feed_tile(job, NumberAddresses(plan, job, place, first, bulk=True), bulk, at)
            if bulk < k_tiles:
                at = self.feed_tile(job, NumberAddresses(plan, job, place, first + bulk), k_tiles - bulk, at)
            tile += job.workers
            if const_expr(not plan.stays):
                place = self.origin(job, tile)
                share = self.share_of_k(job, place)
                place = self.loaded_row(job, place[0], place[2]), *place[1:]

    def blocks_in_bulk(self, job: bridge.Carried, place: bridge.Place, first: Int32, blocks: Int32) -> Int32:
        """The first of a tile's `blocks` K blocks whose numbers bulk copies take."""
        found = blocks
        for part in [part for part in self.plan.numbers.parts if part.bulk_bytes]:
            name, address = part.table.name, _first_address(self.plan, job, place, first, part)
            table, apart, step = [getattr(job.given, f"{name}{what}") for what in ("", "_group", "_k")]
            tile = place[0], job.m, blocks
            found = cutlass.min(found, part.in_bulk(tile, address, (table, apart, step), choose))
        return found

    @cute.jit
    def feed_tile(
        self, job: bridge.Carried, numbers: NumberAddresses, k_tiles: Int32, at: tuple[Int32, ...]
    ) -> tuple[Int32, Int32, Int32]:
        """Copy the numbers of one tile's K blocks.

        at  stage, its parity, and how many stages from it on cp.async may have written since bulk copies did
        """
        stage, parity, written = at
        span = self.plan.numbers.span
        for _ in cutlass.range(k_tiles // span, unroll=1):
            for later in cutlass.range_constexpr(span):
                bridge.barrier_wait(job.shared.empty(stage), parity)
                if const_expr(numbers.bulk):
                    if written > 0:
                        bridge.shared_writes_visible()
                        written -= 1
                if const_expr(later == 0):
                    numbers.copy(job, stage)
                    numbers.advance()
                bridge.barrier_arrive_copied(job.shared.full(stage))
                stage, parity = bridge.next_in_ring(stage, parity, self.plan.stages)
        if const_expr(not numbers.bulk):
            written = Int32(self.plan.stages)
        return stage, parity, written

    def copy_numbers(self, job: bridge.Carried, place: bridge.Place, k_tile: Int32, stage: Int32) -> None:
        """Copy the tables' numbers of a K block into its stage. The warp that loads, without a warp for them."""
        if self.plan.numbers.parts:
            NumberAddresses(self.plan, job, place, k_tile).copy(job, stage)
            bridge.barrier_arrive_copied(job.shared.full(stage))


def clear(totals: Sequence[cute.Tensor]) -> None:
    """Set a tile's totals to 0."""
    for total in totals:
        total.fill(0)


class Turns(NamedTuple):
    """Operands, tables and registers of products that alternate between two sets.

    pieces  (block of rows, part of the columns) of a K block's products, one after another
    """

    a: bridge.WgmmaOperand
    b: bridge.WgmmaOperand
    tables: StageTables
    sets: Sequence[cute.Tensor]
    totals: Sequence[cute.Tensor]
    pieces: Sequence[tuple[int, int]]


class NumberAddresses(bridge.Carried):
    """The numbers that a lane of the warp copies into a stage. Their addresses in global memory.

    bulk    those with `NumberSlots.bulk_bytes` come by one bulk copy each, which one thread issues
    starts  of each of the lane's copies, the address of the next K block's number, or of the first of a bulk copy's
    inside  of each copy of a table that row indices choose from, whether its row is one of A's: else zeros are copied
    skew    bytes from the slots with slack to their numbers
    steps   of each table, the bytes from one stage's numbers to the next
    """

    def __init__(
        self, plan: Sm90Plan, job: bridge.Carried, place: bridge.Place, k_tile: Int32, bulk: bool = False
    ):  # fmt: skip
        self.plan, self.bulk, lane = plan, bulk, cute.arch.lane_idx()
        parts = plan.numbers.parts
        self.copies = [(part, first, bulk and part.bulk_bytes > 0) for part in parts
                       for first in range(0, part.slots, part.slots if bulk and part.bulk_bytes else WARP)]  # fmt: skip
        steps = {
            part.table.name: Int64(getattr(job.given, f"{part.table.name}_k")) * (part.span * f32.bytes)
            for part in parts
        }
        self.names, self.given, slack = tuple(steps), job.given, plan.numbers.slack
        lines = [
            (part, _line(plan, job, place, part, Int32(first) if whole else first + lane))
            for part, first, whole in self.copies
        ]
        super().__init__(
            starts=tuple(_address(plan, job, place, k_tile, part, line) for part, line in lines),
            inside=tuple(Int32(line >= 0) for part, line in lines if part.chosen),
            steps=tuple(steps.values()),
            lane=lane,
            skew=Int32(0) if slack is None else _skew(plan, job, place, k_tile, slack),
        )

    def copy(self, job: bridge.Carried, stage: Int32) -> None:
        """Copy a stage's numbers. The lane arrives at its barrier later, and counts when they have landed."""
        full, inside = job.shared.full(stage), iter(self.inside)
        for (part, first, whole), start in zip(self.copies, self.starts, strict=True):
            to = job.shared.numbers(stage) + (part.first + first * part.slot_bytes)
            if whole:
                _copy_whole(to, start & -BULK if part.slack else start, part.bulk_bytes, full)
            else:
                to += self.lane * part.slot_bytes + (self.skew if part.slack else 0)
                valid = Int32(part.slot_bytes) * (next(inside) if part.chosen else 1)
                _copy(to, start, self.lane, part.slots - first, part.slot_bytes, valid)

    def advance(self) -> None:
        """Go on to the next stage with numbers."""
        step = dict(zip(self.names, self.steps, strict=True))
        further = (start + step[part.table.name] for (part, _, _), start in zip(self.copies, self.starts, strict=True))
        self.__dict__["starts"] = tuple(further)
        if (slack := self.plan.numbers.slack) is not None:
            self.__dict__["skew"] = self.skew + Int32(step[slack.table.name]) & BULK - 1


def _line(plan: Sm90Plan, job: bridge.Carried, place: bridge.Place, part: NumberSlots, slot: Int32) -> Int64:
    """The line of a slot's number in its table: -1 for an index outside of A.

    One outside of C is at its edge, and not stored.
    """
    table, (row, column, _) = part.table, place
    origin, size = (row, job.m) if table.axis == "m" else (column, job.n)
    line = part.line(origin, slot * part.segment, size, cutlass.min)
    if part.chosen:
        return load_index(present(plan.indexed), job, INDICES, line, job.m)
    return Int64(line // table.group)


def _address(
    plan: Sm90Plan, job: bridge.Carried, place: bridge.Place, k_tile: Int32, part: NumberSlots, line: Int64
) -> Int64:  # fmt: skip
    """The address of the number in a line of a table. Without such a line it is that of the first."""
    table, matrix = part.table, place[2]
    group = cutlass.max(line, Int64(0)) if part.chosen else line
    offset = group * getattr(job.given, f"{table.name}_group")
    offset += Int64(k_tile) * getattr(job.given, f"{table.name}_k")
    if plan.batch > 1 and plan.along_k is None and not (table.axis == "m" and plan.joined_rows):
        offset += Int64(matrix) * getattr(job.given, f"{table.name}_batch")
    return getattr(job.given, table.name) + offset * f32.bytes


def _first_address(
    plan: Sm90Plan, job: bridge.Carried, place: bridge.Place, k_tile: Int32, part: NumberSlots
) -> Int64:  # fmt: skip
    """The address of a tile's first number."""
    return _address(plan, job, place, k_tile, part, _line(plan, job, place, part, Int32(0)))


def _skew(plan: Sm90Plan, job: bridge.Carried, place: bridge.Place, k_tile: Int32, part: NumberSlots) -> Int32:
    """Bytes from the multiple of 16 before a tile's first number to it."""
    return Int32(_first_address(plan, job, place, k_tile, part) & BULK - 1)


@cute.jit
def _copy(
    to: cute.Pointer, start: Int64, lane: Int32, lanes: cutlass.Constexpr, nbytes: cutlass.Constexpr, valid: Int32
) -> None:  # fmt: skip
    """cp.async of a slot, by the first `lanes` lanes. The first `valid` bytes are read, others are zeros."""
    if const_expr(lanes >= WARP):
        copy_bytes(to, start, nbytes, valid)
    else:
        if lane < lanes:
            copy_bytes(to, start, nbytes, valid)


@cute.jit
def _copy_whole(to: cute.Pointer, start: Int64, nbytes: cutlass.Constexpr, full: cute.Pointer) -> None:
    """A bulk copy by one thread, which promises its bytes first: its own arrival is still to come."""
    if bridge.elect():
        bridge.barrier_expect_more(full, nbytes)
        bridge.load_bytes(to, start, nbytes, full)


class StageTables(bridge.Carried):
    """The numbers of a stage as one thread reads them. The bytes that depend on the thread.

    row   of the tile, of the warpgroup's first accumulator
    """

    def __init__(self, plan: Sm90Plan, row: Int32, thread: Int32):
        self.plan = plan
        super().__init__(row=row, thread=thread)

    def numbers(self, shared: bridge.SharedMemory, stage: Int32, skew: Int32) -> dict[int, Numbers]:
        """The numbers of a stage that the thread promotes with, by K block. `skew`: of the slots with slack."""
        span, base = self.plan.numbers.span, shared.numbers(stage).toint()
        found: dict[int, Numbers] = {later: {} for later in range(span)}
        for key, (table, of_block, v) in numbers_read(self.plan).items():
            thread = 0 if same_for_all(self.plan, table, v) else self.thread
            at = base + byte_of(self.plan, table, self.row, thread, of_block, v)
            if self.plan.numbers.part(table.name).slack:
                at += skew
            if span == 1:
                found[0][key] = bridge.as_floats([load_word_shared(at)])[0]
            else:
                for later, number in enumerate(load_words_shared(at)):
                    found[later][key] = bridge.as_floats([number])[0]
        return found

    def element(self, numbers: Numbers, block: int, v: int, total: Float32) -> Values:
        """The values that the promotion of one element reads."""
        values = {
            table.name: numbers[key_of(self.plan, table, block, v)] for table in present(self.plan.mainloop).tables
        }
        return Values({TOTAL: total, **values}, _MATH)
