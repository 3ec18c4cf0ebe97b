"""The numbers of a main loop that promotes, and its totals. See `operands.thread_numbers`."""

from __future__ import annotations

from collections.abc import Mapping

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from ....dtypes import f32
from ...dsl import math as element
from ...dsl.types import Rebuilt
from ...epilogue.tracing import Values
from ...plan import present
from ..promoted import TOTAL, columns_between
from ..thread_numbers import PromotingPlan, number_slots

_MATH = element.ElementMath(exact=True)


class Promotion(Rebuilt):
    """A thread's numbers of each K block, and the function of them.

    place  first row, first column and matrix of the warp's part of C, and the end of its rows
    given  the launch's words by name
    """

    held = ("lines", "tables", "last")

    def __init__(
        self, plan: PromotingPlan, lane: Int32, place: tuple[Int32, Int32, Int32, Int32], n: Int32, k_blocks: Int32,
        given: Mapping[str, Int64],
    ):  # fmt: skip
        self.plan, self.slots = plan, number_slots(plan)
        row, column, matrix, end = place
        self.lines: list[Int32] = []  # of each slot, the number's place in its table
        self.tables: list[Int64] = []  # of each table: address, and bytes from line to line and from K block to K block
        self.last = [k_blocks - 1]
        for each in self.slots:
            origin, last = (column, n - 1) if each.along else (row, end - 1)
            for slot, (_, half) in enumerate(each.first):
                at = cutlass.min(each.place(lane, slot) + origin, last) + half * columns_between(each.table, n)
                self.lines.append(at // each.table.group)
            base, group, k, batch = (given[word] for word in each.table.words)
            if plan.batch > 1 and not (each.along == 0 and plan.joined_rows):
                base += Int64(matrix) * batch * f32.bytes
            self.tables += [base, group * f32.bytes, k * f32.bytes]

    @property
    def count(self) -> int:
        """Numbers that a thread holds, 1 or more."""
        return max(1, len(self.lines))

    def load(self, k_block: Int32) -> list[Float32]:
        """The numbers of a K block; behind the last one those of the last."""
        found: list[Float32] = []
        at = Int64(cutlass.min(k_block, self.last[0]))
        for number, each in enumerate(self.slots):
            base, group, k = self.tables[3 * number : 3 * number + 3]
            lines = self.lines[len(found) : len(found) + len(each.first)]
            found += [element.load_value(base + at * k + Int64(line) * group, f32) for line in lines]
        return found

    def promote(self, totals: cute.Tensor, sums: cute.Tensor, numbers: cute.Tensor) -> None:
        """The next total of each element of the thread."""
        for half in range(self.plan.sums):
            for value in range(self.plan.fragment.accumulator_registers):
                at = self.register(value, half)
                totals[at] = self.next_total(totals[at], sums[at], numbers, value, half)

    def register(self, value: int, half: int) -> int:
        """The total, and sum, of a value."""
        return self.plan.fragment.register(value) + half * self.plan.fragment.accumulator_registers

    def next_total(self, total: Float32, product: Float32, numbers: cute.Tensor, value: int, half: int) -> Float32:
        """The next total of one element, of its number and sum."""
        read, first = {TOTAL: total}, 0
        for each in self.slots:
            read[each.table.name] = numbers[first + each.slot(value, half)]
            first += len(each.first)
        return Float32(present(self.plan.mainloop).evaluate(product, Values(read, _MATH)))
