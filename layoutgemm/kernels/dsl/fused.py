"""An epilogue's steps on the accumulators of a block of rows.

A thread knows the row and the column of each of its values from the plan's fragment map. What is read for a row or a
column is read once a block of 64 rows, two neighbours at once where the epilogue says that they may be.
"""

from __future__ import annotations

from typing import Any, Protocol

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64

from ..derive import Operand
from ..epilogue.chain import Epilogue, Given
from . import bridge
from . import math as element


class _Fragment(Protocol):
    """Maps (thread, value) to a row and a column."""

    def coords_C(self, thread: Any, value: Any, /) -> Any: ...


class _StoredPlan(Protocol):
    """The parts of a plan that its epilogue needs."""

    @property
    def epilogue(self) -> Epilogue: ...
    @property
    def c(self) -> Operand: ...
    @property
    def batch(self) -> int: ...
    @property
    def mma(self) -> _Fragment: ...


class FusedBlock:
    """One block of 64 rows on its way out: the epilogue's values that were read for it, and what it has found.

    job      what the kernel knows at run time; `job.given` holds the epilogue's words by name
    place    first row, first column and matrix of the accumulator's tile
    thread   in the warpgroup
    """

    def __init__(self, plan: _StoredPlan, job: bridge.Carried, place: tuple[Int32, Int32, Int32], thread: Int32):
        self.epilogue: Epilogue = plan.epilogue
        self.plan, self.job, self.thread = plan, job, thread
        self.row, self.column, self.matrix = place
        self.math = element.ElementMath(plan.c.dtype.bits > 16, plan.c.dtype.mantissa <= 8)
        self.read: dict[tuple[object, ...], Int64] = {}
        self.found: dict[str, Int32] = {}

    def values(self, accumulator: cute.Tensor, first: int, count: int) -> list[Float32]:
        """The accumulator's values from `first` on, after the epilogue; `first` and `count` are even."""
        out: list[Float32] = []
        for v in range(first, first + count, 2):
            pair = Pair(self, v)
            done = [self.epilogue.apply(bridge.number(accumulator[v + e]), pair.element(e)) for e in range(2)]
            pair.flush()
            out.extend(done)
        return out

    def finish(self) -> None:
        """Reductions over all values of the block."""
        for name, bits in self.found.items():
            element.largest_of_warp(getattr(self.job.given, name), bits)


class Pair:
    """Two neighbours of a row: a fragment holds them as values v and v + 1 of one thread."""

    def __init__(self, block: FusedBlock, v: int):
        self.block = block
        i, j = block.plan.mma.coords_C(block.thread, v)
        # Where thread 0 has them: two values of one thread in one row, or in one column, are so in every thread.
        self.key = tuple(int(x) for x in block.plan.mma.coords_C(0, v))
        self.i, self.j = block.row + i, block.column + j
        self.written: dict[str, list[Any]] = {}

    def element(self, e: int) -> Element:
        """One of the two."""
        return Element(self, e)

    def value(self, name: str, e: int) -> Float32:
        """An operand's value for one of the two."""
        block = self.block
        given = block.epilogue.named_given(name)
        key = (name, *[x for x, axis in zip(self.key, "mn", strict=True) if axis in given.axes])
        if key not in block.read:
            block.read[key] = self.load(given)
        return block.read[key][e]

    def load(self, given: Given) -> list[Float32]:
        """Both values. Places outside the matrix are read at its edge: what comes of them is not stored."""
        job = self.block.job
        word = getattr(job.given, given.name)
        if given.host:
            return [element.number(word, given.dtype)] * 2
        if not given.axes:
            return [element.load_value(word, given.dtype)] * 2
        row = cutlass.min(self.i, job.m - 1)
        if given.axes == "m":
            return [element.load_value(self.address(given, word, row, Int32(0)), given.dtype)] * 2
        if self.block.epilogue.pairs and given.order == "row":
            column = cutlass.min(self.j, job.n - 2)
            return element.load_two(self.address(given, word, row, column), given.dtype)
        columns = [cutlass.min(self.j + e, job.n - 1) for e in range(2)]
        return [element.load_value(self.address(given, word, row, column), given.dtype) for column in columns]

    def address(self, given: Given, word: Int64, row: Int32, column: Int32) -> Int64:
        """The address of an operand's element. The start of a matrix's line is computed once a block."""
        block, size = self.block, given.dtype.bytes
        line, along = (row, column) if given.order == "row" else (column, row)
        if given.axes != "mn":
            return self.of_batch(given, word) + Int64(row if given.axes == "m" else column) * size
        key = ("line", given.name, self.key[0])
        if given.order == "col" or key not in block.read:
            leading = getattr(block.job.given, f"{given.name}_ld")
            block.read[key] = self.of_batch(given, word) + Int64(line) * leading * size
        return block.read[key] + Int64(along) * size

    def of_batch(self, given: Given, word: Int64) -> Int64:
        """The first byte of the operand of this matrix of the batch."""
        if self.block.plan.batch == 1:
            return word
        step = getattr(self.block.job.given, f"{given.name}_batch") * given.dtype.bytes
        return word + Int64(self.block.matrix) * step

    def random(self, name: str, e: int) -> Int32:
        """16 random bits of one of the two; neighbours of a row of C share a word, of its transpose a word each."""
        block = self.block
        i, j = self.i, self.j + e
        if block.epilogue.flipped:
            word = element.random_pair(self.value(name, 0), j, i // 2)
            odd = i % 2
        else:
            key = ("random", name, *self.key)
            if key not in block.read:
                block.read[key] = element.random_pair(self.value(name, 0), i, self.j // 2)
            word, odd = block.read[key], e  # the first column of a pair is even
        return Int32((word >> cutlass.Uint32(16 * odd)) & cutlass.Uint32(0xFFFF))

    def inside(self, e: int) -> Boolean:
        """True if one of the two is an element of C."""
        return (self.i < self.block.job.m) & (self.j + e < self.block.job.n)

    def flush(self) -> None:
        """Store what the steps have written for both."""
        block, job = self.block, self.block.job
        for name, values in self.written.items():
            given = block.epilogue.named_given(name)
            word = getattr(job.given, name)
            if block.epilogue.pairs and given.order == "row":
                address = self.address(given, word, self.i, self.j)
                element.store_two(address, values[0], values[1], given.dtype, self.inside(1))
            else:
                for e, value in enumerate(values):
                    address = self.address(given, word, self.i, self.j + e)
                    element.store_value(address, value, given.dtype, self.inside(e))


class Element:
    """One element, as a step's `at`."""

    def __init__(self, pair: Pair, e: int):
        self.pair, self.e = pair, e
        self.math = pair.block.math
        self.i, self.j = pair.i, pair.j + e

    def read(self, name: str) -> Float32:
        """An operand's value here."""
        return self.pair.value(name, self.e)

    def write(self, name: str, x: Float32) -> None:
        """Store x here once the pair is complete."""
        self.pair.written.setdefault(name, []).append(x)

    def largest(self, name: str, x: Float32) -> None:
        """Take |x| into the block's maximum, where the element is one of C."""
        block = self.pair.block
        bits = self.math.where(self.pair.inside(self.e), element.magnitude(x), Int32(0))
        block.found[name] = cutlass.max(block.found[name], bits) if name in block.found else bits

    def random(self, name: str) -> Int32:
        """16 random bits."""
        return self.pair.random(name, self.e)
