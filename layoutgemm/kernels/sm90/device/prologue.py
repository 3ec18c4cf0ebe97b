"""A Hopper GEMM with a function of A's elements. Fragments by ldmatrix, computed in f32, multiplied from registers.

    role        does
    --------    -------------------------------------------------------------------------------------------------------
    loader      as in `device.gemm`
    consumer    for each tile: reads the numbers of its rows. For each K tile: reads those of the next one's columns,
                waits for the stage; for each block of 64 rows: loads and computes the fragments, while the products of
                the block before run, multiplies them with B from shared memory, and waits for the products before

A stage is released behind the first products of the next K tile: all that read it are done then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr

from ...dsl import bridge
from ...dsl import math as element
from ...dsl.ampere import load_fragment
from ...dsl.packed_weights import RegisterWgmma
from ...operands.pair import SECOND
from ...operands.prologue import AXES, PrologueElement, PrologueOperand
from ...plan import present
from ...store import ROWS
from ..operands.fragment_loads import groups_of, loads_of
from ..operands.prologue import first_column
from ..plan import Sm90Plan
from .fused import Sm90FusedKernel

Lines = tuple[Int32 | None, Int32]  # the first row or column that counts, None for all from 0 on, and the end
Taken = tuple[tuple[Int32, Int32], Lines, Any]  # see `PrologueFragments.functions`
NumberKey = tuple[str, int, int]  # an operand's name, a block of rows or an instruction, and a place in thread 0's


class Sm90PrologueKernel(Sm90FusedKernel):
    """The production kernel with f(A) in place of A. Of two pairs, of the first one's A."""

    def job_of(
        self, shared: bridge.SharedMemory, place: tuple[Int32, ...], sizes: tuple[Int32, Int32, Int32],
        c: tuple[Int64, Int64, Int64], words: tuple[Int64, ...],
    ) -> bridge.Carried:  # fmt: skip
        """The same, and K, beyond which A is 0."""
        return super().job_of(shared, place, sizes, c, words).extended(k=sizes[2])

    def lines_of_k(self, job: bridge.Carried, share: tuple[Int32, ...]) -> Lines:
        """The columns of A that a tile's share of K has."""
        return None, job.k

    def column_numbers(
        self, job: bridge.Carried, fragments: PrologueFragments, share: tuple[tuple[Int32, ...], Int32], k_tile: Int32
    ) -> Numbers:
        """The operands' numbers of a K tile's columns; `share`: of K, and the matrix."""
        column = first_column(self.place_of_k(job, share[0], k_tile))
        return fragments.numbers(job, "k", (column, share[1]), self.lines_of_k(job, share[0]))

    def release_and_load(
        self, job: bridge.Carried, maps: Sequence[bridge.Maps], stage: Int32, ahead: tuple[Int32, ...]
    ) -> tuple[Int32, ...]:
        """Release a stage; where consumers load for themselves, also load the next K tile."""
        self.release(job, stage)
        return self.load_next(job, maps, ahead) if self.plan.config.loader == "self" else ahead

    @cute.jit
    def consume(
        self, job: bridge.Carried, maps: Sequence[bridge.Maps], tile: Int32, consumer: Int32, thread: Int32,
        ahead: tuple[Int32, ...],
    ) -> None:  # fmt: skip
        """A consumer warpgroup: all its tiles, functions, products and stores."""
        plan = self.plan
        mma = RegisterWgmma(plan)
        accumulators = [mma.accumulator() for _ in range(plan.blocks)]
        first_block = consumer * plan.blocks
        fragments = PrologueFragments(plan, first_block, thread)
        b = bridge.WgmmaOperand(plan.b.descriptor, job.shared.b(0), plan.smem.b_stage_bytes)
        groups, reads_columns = groups_of(plan), any(x.axis == "k" for x in present(plan.prologue).operands)
        pieces = [(block, group) for group in groups for block in range(plan.blocks)]
        stage, parity = Int32(0), Int32(0)
        while tile < job.tiles:
            m0, n0, matrix = self.origin(job, tile)
            share = self.share_of_k(job, (m0, n0, matrix))
            k_tiles, lines = self.count_k_tiles(job, share), self.lines_of_k(job, share)
            row = m0 + first_block * ROWS
            rows = fragments.numbers(job, "m", (row, matrix), (None, job.m))
            following = self.column_numbers(job, fragments, (share, matrix), Int32(0))
            before = stage
            for k_tile in cutlass.range(k_tiles, unroll=1):
                stage = bridge.uniform(stage)
                at = self.place_of_k(job, share, k_tile)
                columns = following
                if const_expr(reads_columns):  # a K tile ahead: memory answers while this one's products run
                    following = self.column_numbers(job, fragments, (share, matrix), k_tile + 1)
                bridge.barrier_wait(job.shared.full(stage), parity)
                words: list[list[Int32]] = []
                for piece in cutlass.range_constexpr(len(pieces)):
                    block, group = pieces[piece]
                    first = group.start
                    if const_expr(first == 0):
                        words = fragments.load_words(job.shared.a(stage), block)
                        bridge.warp_sync()  # see `release`
                    taken = (row, first_column(at)), lines, at.get(SECOND, False)
                    computed = fragments.functions(words, (block, group), taken, (rows, columns))
                    keep = k_tile > 0 if first == 0 else True
                    mma.multiply_fragments(accumulators[block], computed.lists, b, stage, first, keep)
                    mma.wait(1)
                    if const_expr(piece == 0):
                        if k_tile > 0:
                            ahead = self.release_and_load(job, maps, before, ahead)
                before = stage
                stage, parity = bridge.next_in_ring(stage, parity, plan.stages)

            mma.wait(0)
            if const_expr(plan.config.split > 1):
                if k_tiles == 0:
                    for block in cutlass.range_constexpr(plan.blocks):
                        accumulators[block].fill(0)
            mma.settle(*accumulators)
            self.bring_together(job, accumulators, (consumer, thread))
            if const_expr(plan.drains or not plan.config.one_tile_per_cluster):
                ahead = self.release_and_load(job, maps, before, ahead)
            self.store_pieces(job, maps, accumulators, (consumer, thread, tile), (row, n0, matrix))
            tile += job.workers
        self.after_tiles(job, tile)
        self.end_tiles(job, ahead)


class Computed(bridge.Carried):
    """Registers of the fragments of a group of instructions."""

    def __init__(self, lists: Sequence[Sequence[Int32]]):
        self.size, registers = len(lists[0]), [register for fragment in lists for register in fragment]
        self.count = len(registers)
        super().__init__(**{f"register{place}": register for place, register in enumerate(registers)})

    @property
    def lists(self) -> list[list[Int32]]:
        """By instruction."""
        registers = [getattr(self, f"register{place}") for place in range(self.count)]
        return [registers[first : first + self.size] for first in range(0, self.count, self.size)]


class Numbers(bridge.Carried):
    """Numbers of operands along one axis, by `NumberKey`. Their bits, so that a load is waited for where it is used."""

    def __init__(self, bits: Mapping[NumberKey, Int32]):
        self.attributes = {key: f"number{place}" for place, key in enumerate(bits)}
        super().__init__(**dict(zip(self.attributes.values(), bits.values(), strict=True)))

    def value(self, operand: PrologueOperand, part: int, place: int) -> Float32:
        """A number as f32; see `NumberKey`."""
        return element.float_of(getattr(self, self.attributes[operand.name, part, place]), operand.dtype)


class PrologueFragments(bridge.Carried):
    """One thread's fragments of f(A). The bytes of its rows in a stage, and the places of its values.

    base0, ...  as `FragmentLoads.places` has them, of the warpgroup's first block
    """

    def __init__(self, plan: Sm90Plan, first_block: Int32, thread: Int32):
        self.plan, self.loads = plan, loads_of(plan)
        first = first_block * self.loads.block_bytes
        bases = {
            f"base{number}": first + self.loads.byte(thread, 0, *index)
            for number, index in enumerate(self.loads.places.bases)
        }
        super().__init__(thread=thread, **bases)

    @property
    def values(self) -> list[tuple[tuple[int, int], tuple[Int32, Int32]]]:
        """A fragment's values: each one's (row, column) in thread 0 and in this thread."""
        of = self.plan.mma.coords("A")
        return [(place, of(self.thread, v)) for v, place in enumerate(self.loads.values)]

    def numbers(self, job: bridge.Carried, axis: str, place: tuple[Int32, Int32], inside: Lines) -> Numbers:
        """The operands' numbers of the thread's rows or columns. 0 outside, whose results are not stored.

        axis    "m", rows of a tile; "k", columns of a K tile
        place   first row or column of A, and the matrix
        inside  those that have numbers
        """
        first, matrix = place
        found: dict[NumberKey, Int32] = {}
        loads, which = self.loads, AXES.index(axis)
        count, unit = ((self.plan.blocks, loads.height), (loads.steps, loads.depth))[which]
        start = loads.values[0][which]
        distances = sorted({place[which] - start for place in loads.values})  # the same in all threads
        own = self.plan.mma.coords("A")(self.thread, 0)[which]
        for operand in present(self.plan.prologue).operands:
            if operand.axis != axis:
                continue
            at, bytes_ = first + own, operand.dtype.bytes
            address = getattr(job.given, operand.name) + Int64(at) * bytes_
            if self.plan.batch > 1:
                address += Int64(matrix) * getattr(job.given, f"{operand.name}_batch") * bytes_
            for part, distance in product(range(count), distances):
                step = part * unit + distance
                there = at + step < inside[1]
                if inside[0] is not None:
                    there = there & (at + step >= inside[0])
                bits = element.load_bits_if(address, step * bytes_, operand.dtype, there)
                found[operand.name, part, start + distance] = bits
        return Numbers(found)

    def load_words(self, tile: cute.Pointer, block: int) -> list[list[Int32]]:
        """The registers of a block's K tile, as in the stage, by instruction."""
        transposed, words = self.loads.tile.major == "MN", []
        for step in range(self.loads.steps):
            base, further = self.loads.places.of[block, step]
            words.append(load_fragment(tile + (getattr(self, f"base{base}") + further), transposed))
        return words

    @cute.jit
    def functions(
        self, words: Sequence[Sequence[Int32]], part: tuple[int, range], taken: Taken, numbers: tuple[Numbers, Numbers]
    ) -> Computed:
        """f of the fragments of a group of instructions. 0 outside of the share of K.

        part     block, and instructions along K
        taken    row and column of the block's first element in A, the columns of the share of K, and whether the K tile
                 is one of the second pair's, whose elements are taken as they are
        numbers  of the rows, and of the columns
        """
        (block, group), (place, lines, second) = part, taken
        found = Computed([self.function(words[step], (block, step), place, numbers) for step in group])
        outside = place[1] + self.plan.tile[2] > lines[1]
        if const_expr(lines[0] is not None):
            outside = outside | (place[1] < lines[0])
        if const_expr(self.plan.pair is not None):
            # By selects: a branch's registers are those that ldmatrix fills while products still read them.
            pairs = [zip(words[step], made, strict=True) for step, made in zip(group, found.lists, strict=True)]
            found = Computed([[element.ElementMath.where(second, x, y) for x, y in each] for each in pairs])
            outside = outside & (second == False)  # noqa: E712
        if outside:
            found = self.within(found, group, place[1], lines)
        return found

    def function(
        self, words: Sequence[Int32], at: tuple[int, int], place: tuple[Int32, Int32], numbers: tuple[Numbers, Numbers]
    ) -> list[Int32]:  # fmt: skip
        """f of an instruction's fragment; `at`: (block, step)."""
        plan, (block, step) = self.plan, at
        kind, prologue = plan.a.dtype, present(plan.prologue)
        maths = element.ElementMath(False, kind.mantissa <= 8)
        loads, results = self.loads, []
        given = [x for word in words for x in bridge.floats_of(word, kind)]
        for x, ((i, j), (own_i, own_j)) in zip(given, self.values, strict=True):
            row, column = place[0] + (block * loads.height + own_i), place[1] + (step * loads.depth + own_j)
            read = {
                operand.name: numbers[0].value(operand, block, i)
                if operand.axis == "m"
                else numbers[1].value(operand, step, j)
                for operand in prologue.operands
            }
            results.append(Float32(prologue.apply(x, PrologueElement(row, column, read, maths))))
        each = 32 // kind.bits
        return [bridge.join(results[at : at + each], kind) for at in range(0, len(results), each)]

    def within(self, computed: Computed, group: range, column: Int32, lines: Lines) -> Computed:
        """The same fragments with 0 outside of the share of K, where B is 0. f of what is there may be infinite."""

        def inside(at: Int32) -> Any:
            return at < lines[1] if lines[0] is None else (at < lines[1]) & (at >= lines[0])

        lists, bits = [], self.plan.a.dtype.bits
        columns = [own_j for _, (_, own_j) in self.values]
        each = 32 // bits
        for step, words in zip(group, computed.lists, strict=True):
            kept = []
            for number, word in enumerate(words):
                mask = Int32(0)
                for place, own_j in enumerate(columns[number * each : (number + 1) * each]):
                    part = ((1 << bits) - 1) << (place * bits)
                    of = Int32(part - (part >> 31 << 32))  # as a signed word
                    mask |= element.ElementMath.where(inside(column + step * self.loads.depth + own_j), of, Int32(0))
                kept.append(word & mask)
            lists.append(kept)
        return Computed(lists)
