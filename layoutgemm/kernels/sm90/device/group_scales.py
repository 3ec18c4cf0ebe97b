"""Scales of groups of rows. Of a product that is computed transposed, they are of the columns of C that share one.

thread   the largest |x| of its rows in each of its columns
warp     combines the lanes of a column, each exchange of half of the columns: a lane ends up with its share of them
shared   a line a warp; a thread a column combines the lines, stores the scale and leaves the factor
thread   multiplies what it stores by the factors. Accumulators stay as they are: where anything else than wgmma writes
         them, ptxas serialises all of a kernel's wgmmas
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64

from ....atoms.copy.base import WARP
from ....checks.budgets import WARPGROUP
from ...dsl import bridge
from ...dsl import math as element
from ...dsl.tables import load_word_shared
from ...epilogue.reductions import by_halves
from ...partials import exchanges_of, quantized_rows
from ...plan import present
from ...store import ROWS
from .epilogue import Sm90Epilogue

TOGETHER = 8  # columns of a thread that are exchanged at once: one is left of them, in each lane another


class GroupScaling:
    """The scales of one tile's groups of rows, in a consumer.

    at      consumer, and thread in it
    origin  the consumer's first row, first column, and matrix
    """

    def __init__(self, epilogue: Sm90Epilogue, job: bridge.Carried, at: tuple[Int32, Int32], origin: bridge.Place):
        self.plan, self.job, (self.consumer, self.thread) = epilogue.plan, job, at
        self.step, self.shared = present(quantized_rows(self.plan.epilogue)), present(self.plan.group_scales)
        row, column, matrix = origin
        blocks = range(self.plan.blocks)
        self.blocks = [present(epilogue.fused(job, (row + i * ROWS, column, matrix), self.thread, 0)) for i in blocks]
        self.math = self.blocks[0].math
        self.columns: dict[int, list[int]] = {}
        for v in range(self.plan.mma.accumulator_registers):
            self.columns.setdefault(int(self.plan.mma.coords_C(0, v)[1]), []).append(v)

    @property
    def together(self) -> int:
        """Blocks of 64 rows of a group."""
        return self.step.each // ROWS

    def leave_factors(self, accumulators: Sequence[cute.Tensor]) -> None:
        """Scales to memory, and factors to shared memory for all of the consumer's threads."""
        for group in range(self.shared.groups):
            self.leave_maxima(accumulators, group)
        self.meet()
        for group in range(self.shared.groups):
            self.combine(group)
        self.meet()

    def meet(self) -> None:
        """The consumer's threads meet."""
        bridge.named_sync(self.plan.store_barrier(self.consumer), self.plan.store_threads)

    def address(self, group: int, line: Int32 | int, column: Int32) -> Int32:
        """The address of a warp's maximum, or of a factor."""
        return (self.job.shared.base + self.shared.byte(self.consumer, group, line, column)).toint()

    def line(self, group: int, warp: int, column: Int32) -> Float32:
        """A warp's maximum."""
        return load_word_shared(self.address(group, warp, column)).bitcast(Float32)

    def leave_maxima(self, accumulators: Sequence[cute.Tensor], group: int) -> None:
        """The warp's largest |x| of each column, into its line. Some columns at a time, whose registers are free."""
        columns, line = list(self.columns), bridge.uniform(self.thread // WARP)
        blocks = range(group * self.together, (group + 1) * self.together)
        last = self.blocks[blocks[-1]]
        reaches = last.row + ROWS > last.end
        for start in range(0, len(columns), TOGETHER):
            firsts = columns[start : start + TOGETHER]
            of = sorted(v for first in firsts for v in self.columns[first])  # neighbours together
            values = [x for block in blocks for x in self.blocks[block].of_values(accumulators[block], of)]
            found = list(self.maxima_inside(tuple(values), tuple(firsts), group, reaches))
            first, leads = self.plan.mma.coords_C(self.thread, self.columns[firsts[0]][0])[1], Boolean(True)
            for distance in exchanges_of(self.plan.mma, "n"):
                upper, half = (self.thread & distance) != 0, len(found) // 2
                apart = {b - a for a, b in zip(firsts[:half], firsts[half:], strict=False)}
                kept = sent = found
                if len(found) % 2 == 0 and len(apart) == 1:
                    halves = list(zip(found[:half], found[half:], strict=True))
                    kept = [self.math.where(upper, y, x) for x, y in halves]
                    sent = [self.math.where(upper, x, y) for x, y in halves]
                    firsts, first = firsts[:half], first + Int32(upper) * apart.pop()
                else:
                    leads = leads & ((self.thread & distance) == 0)
                others = [cute.arch.shuffle_sync_bfly(y, distance) for y in sent]
                found = [self.math.largest(x, y) for x, y in zip(kept, others, strict=True)]
            places = [self.address(group, line, first + (at - firsts[0])) for at in firsts]
            self.store_line(tuple(places), tuple(found), leads)

    @cute.jit
    def maxima_inside(
        self, values: tuple[Float32, ...], firsts: cutlass.Constexpr, group: cutlass.Constexpr, reaches: Boolean
    ) -> tuple[Float32, ...]:
        """The thread's largest |x| in each of some columns, of a group's rows. Rows behind C's last count as 0.

        What they hold is 0 times B's column, which an infinity or a NaN in that makes NaN.
        """
        found = self.maxima(values, firsts, group, False)
        if reaches:
            found = self.maxima(values, firsts, group, True)
        return found

    def maxima(self, values: Sequence[Float32], firsts: Sequence[int], group: int, asks: bool) -> tuple[Float32, ...]:
        """The same; `asks`: of each row, whether it is one of C's."""
        sizes: dict[int, list[Float32]] = {first: [] for first in firsts}
        taken = iter(values)
        for block in self.blocks[group * self.together : (group + 1) * self.together]:
            for v, column in sorted((v, first) for first in firsts for v in self.columns[first]):
                x = self.math.abs(next(taken))
                if asks:
                    i, _ = self.plan.mma.coords_C(self.thread, v)
                    x = self.math.where(block.row + i < block.end, x, 0.0)
                sizes[column].append(x)
        return tuple([by_halves(self.math.largest, sizes[first]) for first in firsts])

    @cute.jit
    def store_line(self, places: tuple[Int32, ...], values: tuple[Float32, ...], leads: Boolean) -> None:
        """Store a lane's columns, where it is the one that has them."""
        if leads:
            for place, value in zip(places, values, strict=True):
                bridge.store_shared(place, (value,))

    @cute.jit
    def combine(self, group: cutlass.Constexpr) -> None:
        """A thread a column. The largest |x| of all warps, the scale to memory, the factor to all."""
        for first in cutlass.range_constexpr(0, self.shared.columns, WARPGROUP):
            column = self.thread + first
            if column < self.shared.columns:
                lines = [self.line(group, warp, column) for warp in range(self.shared.warps)]
                amax = self.math.largest(by_halves(self.math.largest, lines), self.step.least)
                self.store_scale(group, column, element.divided_by(amax, self.step.most))
                (inverse,) = self.blocks[0].reductions.inverses((amax,))
                factor = inverse * self.step.most  # as torch computes most / amax
                bridge.store_shared(self.address(group, self.shared.factors, column), (factor,))

    def store_scale(self, group: int, column: Int32, value: Any) -> None:
        """One scale of a group's rows and one column."""
        (given,), block = self.step.given, self.blocks[group * self.together]
        word = block.of_batch(given, getattr(self.job.given, given.name))
        line, along = block.row // self.step.each, block.column + column
        leading = getattr(self.job.given, f"{given.name}_ld")
        place = Int64(line) * leading + along if given.order == "row" else Int64(along) * leading + line
        inside = (block.row < block.end) & (along < self.job.n)
        element.store_value(word + place * given.dtype.bytes, value, given.dtype, inside)
