"""A Hopper GEMM with a function of A's elements: fragments by ldmatrix, computed in f32, multiplied from registers.

    role        does
    --------    -------------------------------------------------------------------------------------------------------
    loader      as in `device.gemm`
    consumer    for each tile: reads the numbers of its rows. For each K tile: reads those of its columns, waits for the
                stage; for each block of 64 rows: loads and computes the fragments, while the products of the block
                before run, multiplies them with B from shared memory, and waits for the products before

A stage is released behind the first products of the next K tile: all that read it are done then.
"""

from __future__ import annotations

from collections.abc import Sequence

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr

from ...dsl import bridge
from ...dsl import math as element
from ...dsl.ampere import load_fragment
from ...dsl.packed_weights import RegisterWgmma
from ...plan import present
from ...store import ROWS
from ..operands.fragment_loads import groups_of, loads_of
from ..operands.prologue import AXES, PrologueElement, PrologueOperand
from ..plan import Sm90Plan
from .fused import Sm90FusedKernel

Numbers = dict[tuple[object, ...], Float32]  # of an operand, by its name and its place in thread 0's fragments


class Sm90PrologueKernel(Sm90FusedKernel):
    """The production kernel with f(A) in place of A."""

    def job_of(
        self, shared: bridge.SharedMemory, place: tuple[Int32, ...], sizes: tuple[Int32, Int32, Int32],
        c: tuple[Int64, Int64, Int64], words: tuple[Int64, ...],
    ) -> bridge.Carried:  # fmt: skip
        """The same, and K, beyond which A is 0."""
        return super().job_of(shared, place, sizes, c, words).extended(k=sizes[2])

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
        groups = groups_of(plan)
        pieces = [(block, group) for group in groups for block in range(plan.blocks)]
        stage, parity = Int32(0), Int32(0)
        while tile < job.tiles:
            m0, n0, matrix = self.origin(job, tile)
            row = m0 + first_block * ROWS
            rows = fragments.numbers(job, "m", row, matrix)
            before = stage
            for k_tile in cutlass.range(job.k_tiles, unroll=1):
                stage = bridge.uniform(stage)
                column = (job.k_first + k_tile) * plan.tile[2]
                numbers = {**rows, **fragments.numbers(job, "k", column, matrix)}
                bridge.barrier_wait(job.shared.full(stage), parity)
                words: list[list[Int32]] = []
                for piece in cutlass.range_constexpr(len(pieces)):
                    block, group = pieces[piece]
                    first = group.start
                    if const_expr(first == 0):
                        words = fragments.load_words(job.shared.a(stage), block)
                    computed = [
                        fragments.function(job, words[step], (block, step), (row, column), numbers) for step in group
                    ]
                    keep = k_tile > 0 if first == 0 else True
                    mma.multiply_fragments(accumulators[block], computed, b, stage, first, keep)
                    mma.wait(1)
                    if const_expr(piece == 0):
                        if k_tile > 0:
                            self.release(job, before)
                            if const_expr(plan.config.loader == "self"):
                                ahead = self.load_next(job, maps, ahead)
                before = stage
                stage, parity = bridge.next_in_ring(stage, parity, plan.stages)

            mma.wait(0)
            if const_expr(plan.config.split > 1):
                if job.k_tiles == 0:
                    for block in cutlass.range_constexpr(plan.blocks):
                        accumulators[block].fill(0)
            mma.settle(*accumulators)
            self.bring_together(job, accumulators, (consumer, thread))
            if const_expr(plan.drains or not plan.config.one_tile_per_cluster):
                self.release(job, before)
                if const_expr(plan.config.loader == "self"):
                    ahead = self.load_next(job, maps, ahead)
            self.store_pieces(job, maps, accumulators, (consumer, thread, tile), (row, n0, matrix))
            tile += job.workers
        self.after_tiles(job, tile)
        self.end_tiles(job, ahead)


class PrologueFragments(bridge.Carried):
    """One thread's fragments of f(A): the bytes of its rows in a stage, and the places of its values.

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

    def load(
        self, job: bridge.Carried, operand: PrologueOperand, index: Int32, size: Int32, matrix: Int32
    ) -> Float32:  # fmt: skip
        """A number of an operand. One beyond the matrix is read at its edge: what comes of it is not stored, or 0."""
        word, step = getattr(job.given, operand.name), getattr(job.given, f"{operand.name}_batch")
        at = Int64(cutlass.min(index, size - 1))
        if self.plan.batch > 1:
            at += Int64(matrix) * step
        return element.load_value(word + at * operand.dtype.bytes, operand.dtype)

    def numbers(self, job: bridge.Carried, axis: str, first: Int32, matrix: Int32) -> Numbers:
        """The operands' numbers of the thread's rows or columns.

        axis   "m", rows of a tile; "k", columns of a K tile
        first  row or column of A
        """
        found: Numbers = {}
        loads, which = self.loads, AXES.index(axis)
        count, unit = ((self.plan.blocks, loads.height), (loads.steps, loads.depth))[which]
        for operand in present(self.plan.prologue).operands:
            for part in range(count if operand.axis == axis else 0):
                for of_first_thread, own in self.values:
                    key = operand.name, part, of_first_thread[which]
                    if key not in found:
                        at = first + (part * unit + own[which])
                        found[key] = self.load(job, operand, at, (job.m, job.k)[which], matrix)
        return found

    def load_words(self, tile: cute.Pointer, block: int) -> list[list[Int32]]:
        """The registers of a block's K tile, as in the stage, by instruction."""
        transposed, words = self.loads.tile.major == "MN", []
        for step in range(self.loads.steps):
            base, further = self.loads.places.of[block, step]
            words.append(load_fragment(tile + (getattr(self, f"base{base}") + further), transposed))
        return words

    def function(
        self, job: bridge.Carried, words: Sequence[Int32], at: tuple[int, int], place: tuple[Int32, Int32],
        numbers: Numbers,
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
                operand.name: numbers[(operand.name, *((block, i) if operand.axis == "m" else (step, j)))]
                for operand in prologue.operands
            }
            found = prologue.apply(x, PrologueElement(row, column, read, maths))
            results.append(maths.where(column < job.k, Float32(found), Float32(0.0)))
        return [
            Int32(bridge.convert_pair(low, high, kind)) for low, high in zip(results[::2], results[1::2], strict=True)
        ]
