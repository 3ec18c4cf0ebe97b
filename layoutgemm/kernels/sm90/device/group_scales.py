"""Scales of groups of rows: of a product that is computed transposed, the columns of C that share one.

thread   the largest |x| of its rows in each of its columns
warp     combines the lanes of a column, each exchange of half of the columns: a lane ends up with its share of them
shared   a line a warp; a thread a column combines the lines, stores the scale and leaves the factor
thread   multiplies its accumulators, in place
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
from ...dsl.fused import FusedBlock
from ...dsl.tables import load_word_shared
from ...epilogue.reductions import by_halves
from ...partials import exchanges_of
from ...plan import present
from ...store import ROWS
from .epilogue import Sm90Epilogue


class GroupScaling:
    """The scales of one tile's groups of rows, in a consumer.

    at      consumer, and thread in it
    origin  the consumer's first row, first column, and matrix
    """

    def __init__(self, epilogue: Sm90Epilogue, job: bridge.Carried, at: tuple[Int32, Int32], origin: bridge.Place):
        self.plan, self.job, (self.consumer, self.thread) = epilogue.plan, job, at
        self.step, self.shared = present(self.plan.epilogue.quantizes_rows), present(self.plan.group_scales)
        row, column, matrix = origin
        places = [(row + block * ROWS, column, matrix) for block in range(self.plan.blocks)]
        self.blocks = [present(epilogue.fused(job, place, self.thread, 0)) for place in places]
        self.math = self.blocks[0].math
        columns: dict[int, list[int]] = {}
        for v in range(self.plan.mma.accumulator_registers):
            columns.setdefault(int(self.plan.mma.coords_C(0, v)[1]), []).append(v)
        # Neighbours are exchanged first: then every half has a half as many columns, each as far from the other's.
        self.columns = dict(sorted(columns.items(), key=lambda of: (of[0] % 2, of[0])))

    @property
    def together(self) -> int:
        """Blocks of 64 rows of a group."""
        return self.step.each // ROWS

    def scale(self, accumulators: Sequence[cute.Tensor]) -> None:
        """All groups: maxima, a meeting, factors, a meeting, products."""
        for block, accumulator in zip(self.blocks, accumulators, strict=True):
            if len(self.plan.epilogue.steps) > 1:
                for v in range(0, self.plan.mma.accumulator_registers, 2):
                    accumulator[v], accumulator[v + 1] = block.applied(accumulator, v, 2)
                block.finish()
        for group in range(self.shared.groups):
            self.leave_maxima(accumulators, group)
        self.meet()
        for group in range(self.shared.groups):
            self.combine(group)
        self.meet()
        for group in range(self.shared.groups):
            for first, values in self.columns.items():
                _, column = self.plan.mma.coords_C(self.thread, values[0])
                factor = self.load(group, self.shared.factors, column)
                for block in range(group * self.together, (group + 1) * self.together):
                    for v in values:
                        accumulators[block][v] = bridge.number(accumulators[block][v]) * factor

    def meet(self) -> None:
        """The consumer's threads meet."""
        bridge.named_sync(self.plan.store_barrier(self.consumer), self.plan.store_threads)

    def address(self, group: int, line: Int32 | int, column: Int32) -> Int32:
        """Where a warp's maximum lies, or a factor."""
        byte = self.shared.byte(self.consumer, Int32(group), Int32(line), Int32(column))
        return (self.job.shared.base + byte).toint()

    def load(self, group: int, line: Int32 | int, column: Int32) -> Float32:
        """A maximum, or a factor."""
        return load_word_shared(self.address(group, line, column)).bitcast(Float32)

    def leave_maxima(self, accumulators: Sequence[cute.Tensor], group: int) -> None:
        """The warp's largest |x| of each column, into its line."""
        blocks = range(group * self.together, (group + 1) * self.together)
        values = tuple([
            bridge.number(accumulators[block][v]) for of in self.columns.values() for block in blocks for v in of
        ])  # fmt: skip
        found, firsts = list(self.maxima_inside(values, group)), list(self.columns)
        first, leads = self.plan.mma.coords_C(self.thread, self.columns[firsts[0]][0])[1], Boolean(True)
        for distance in exchanges_of(self.plan.mma, "n"):
            upper, half = (self.thread & distance) != 0, len(found) // 2
            apart = {b - a for a, b in zip(firsts[:half], firsts[half:], strict=False)}
            if len(found) % 2 == 0 and len(apart) == 1:
                kept = [self.math.where(upper, y, x) for x, y in zip(found[:half], found[half:], strict=True)]
                sent = [self.math.where(upper, x, y) for x, y in zip(found[:half], found[half:], strict=True)]
                firsts, first = firsts[:half], first + Int32(upper) * apart.pop()
            else:
                kept = sent = found
                leads = leads & ~upper
            found = [
                self.math.largest(x, cute.arch.shuffle_sync_bfly(y, distance)) for x, y in zip(kept, sent, strict=True)
            ]
        places = [self.address(group, bridge.uniform(self.thread // WARP), first + (at - firsts[0])) for at in firsts]
        self.store_line(tuple(places), tuple(found), leads)

    @cute.jit
    def store_line(self, places: tuple[Int32, ...], values: tuple[Float32, ...], leads: Boolean) -> None:
        """Store a lane's columns, where it is the one that has them."""
        if leads:
            for place, value in zip(places, values, strict=True):
                bridge.store_shared(place, (value,))

    @cute.jit
    def maxima_inside(self, values: tuple[Float32, ...], group: cutlass.Constexpr) -> tuple[Float32, ...]:
        """The thread's largest |x| of each column in a group's rows; rows behind C's last count as 0.

        What they hold is 0 times B's column, which an infinity or a NaN in that makes NaN.
        """
        found = self.maxima(values, group, False)
        last = self.blocks[(group + 1) * self.together - 1]
        if last.row + ROWS > last.end:
            found = self.maxima(values, group, True)
        return found

    def maxima(self, values: Sequence[Float32], group: int, asks: bool) -> tuple[Float32, ...]:
        """The same; `asks`: of each row, whether it is one of C's."""
        found, taken = [], iter(values)
        blocks = self.blocks[group * self.together : (group + 1) * self.together]
        for of in self.columns.values():
            sizes = []
            for block in blocks:
                for v in of:
                    x = self.math.abs(next(taken))
                    if asks:
                        i, _ = self.plan.mma.coords_C(self.thread, v)
                        x = self.math.where(block.row + i < block.end, x, 0.0)
                    sizes.append(x)
            found.append(by_halves(self.math.largest, sizes))
        return tuple(found)

    @cute.jit
    def combine(self, group: cutlass.Constexpr) -> None:
        """A thread a column: the largest |x| of all warps, the scale to memory, the factor to all."""
        for first in cutlass.range_constexpr(0, self.shared.columns, WARPGROUP):
            column = self.thread + first
            if column < self.shared.columns:
                lines = [self.load(group, warp, column) for warp in range(self.shared.warps)]
                amax = self.math.largest(by_halves(self.math.largest, lines), self.step.least)
                self.store_scale(group, column, element.divided_by(amax, self.step.most))
                factor = element.divided(1.0, amax) * self.step.most  # as torch computes most / amax
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
