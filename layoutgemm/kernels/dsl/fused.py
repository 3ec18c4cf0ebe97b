"""An epilogue's steps on the accumulators of a block of rows.

A thread knows the row and the column of each of its values from the plan's fragment map. What is read for a row or a
column is read once a block of 64 rows, two neighbours at once where the epilogue says that they may be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64, Numeric

from ...atoms.copy.base import WARP
from ...dtypes import f32
from ..column_groups import Members, members_of
from ..derive import Operand
from ..epilogue.chain import ColumnGroup, Epilogue, EpilogueOperand, Quantize, ReductionStep
from ..epilogue.reductions import by_halves
from ..indexed.rows import ROWS, IndexedRows
from ..operands.product import SeveralOperands
from ..partials import PartialResults, RowExchange
from ..plan import present
from . import bridge
from . import math as element
from .reductions import BlockReductions
from .tables import load_index


class _StoredPlan(Protocol):
    """The parts of a plan that its epilogue needs."""

    @property
    def epilogue(self) -> Epilogue: ...
    @property
    def c(self) -> Operand: ...
    @property
    def batch(self) -> int: ...
    @property
    def tile_c(self) -> tuple[int, int]: ...
    @property
    def mma(self) -> Any: ...  # an MmaAtom, or the map of a load of tensor memory: it has coords_C
    @property
    def partials(self) -> tuple[PartialResults, ...]: ...
    @property
    def row_exchange(self) -> RowExchange | None: ...
    @property
    def indexed(self) -> IndexedRows | None: ...


class PartPlan:
    """A plan for `FusedBlock` with another accumulator map: that of one warp's part of C."""

    def __init__(self, plan: _StoredPlan, mma: object):
        self.epilogue: Epilogue = plan.epilogue
        self.c: Operand = plan.c
        self.batch: int = plan.batch
        self.tile_c: tuple[int, int] = plan.tile_c
        self.partials: tuple[PartialResults, ...] = plan.partials
        self.row_exchange: RowExchange | None = plan.row_exchange
        self.indexed: IndexedRows | None = plan.indexed
        self.mma = mma


class FusedBlock:
    """One block of 64 rows in the epilogue. The operands read for it, and its results.

    job      what the kernel knows at run time; `job.given` holds the epilogue's words by name
    place    first row, first column and matrix of the accumulator's tile
    thread   in the warpgroup
    part     of the accumulator's columns, that are stored at a time
    held     numbers of all values that the block stores, where registers hold them from the first one on; else none
    end      row behind the last that the steps write and reduce, or None for C's
    """

    def __init__(
        self, plan: _StoredPlan, job: bridge.Carried, place: tuple[Int32, Int32, Int32], thread: Int32, part: int = 0,
        end: Int32 | None = None, held: Sequence[int] = (),
    ):  # fmt: skip
        self.held = held
        self.factor: Callable[[int], Float32] | None = None  # value -> its column's, where groups of rows have scales
        self.part, self.end = part, job.m if end is None else end
        self.epilogue: Epilogue = plan.epilogue
        self.indexed: IndexedRows | None = plan.indexed
        self.plan, self.job, self.thread = plan, job, thread
        self.row, self.column, self.matrix = place
        self.math = element.ElementMath(plan.c.dtype.bits > 16, plan.c.dtype.mantissa <= 8)
        self.read: dict[tuple[object, ...], Int64] = {}
        self.reductions = BlockReductions(self)
        self.scaled: dict[int, Float32] = {}  # of a quantised C: values of groups of columns that are complete
        self.staged: dict[tuple[object, ...], list[Float32]] = {}  # values that a function of several columns reads

    def values(self, accumulator: cute.Tensor, first: int, count: int) -> list[Float32]:
        """The accumulator's values from `first` on, after the epilogue; `first` and `count` are even."""
        if self.held:
            self.reductions.take_ahead(lambda v: bridge.number(accumulator[v]), self.held)
            self.held = ()
        if self.factor is not None:
            return self.scaled_rows(accumulator, range(first, first + count), self.factor)
        if self.epilogue.quantizes is not None:
            return self.quantized(accumulator, first, count, self.epilogue.quantizes)
        return self.applied(accumulator, first, count)

    def quantized(self, accumulator: cute.Tensor, first: int, count: int, step: Quantize) -> list[Float32]:
        """The same, where a value's factor follows from all of its row's group of columns. Group by group."""
        wanted = range(first, first + count)
        columns = {v: int(self.plan.mma.coords_C(0, v)[1]) for v in range(self.plan.mma.accumulator_registers)}
        for group in sorted({columns[v] // step.each for v in wanted if v not in self.scaled}):
            of_group = [v for v, column in columns.items() if column // step.each == group]
            factors = self.factors(dict(zip(of_group, self.of_values(accumulator, of_group), strict=True)), step)
            self.scaled.update(factors)
        return [self.scaled.pop(v) for v in wanted]

    def scaled_rows(
        self, accumulator: cute.Tensor, values: Sequence[int], factor: Callable[[int], Float32]
    ) -> list[Float32]:
        """Values times their columns' factors, each of which is read once."""
        columns = [int(self.plan.mma.coords_C(0, v)[1]) for v in values]
        read = {column: factor(v) for column, v in dict(zip(columns, values, strict=True)).items()}
        found = self.of_values(accumulator, list(values))
        return [x * read[column] for x, column in zip(found, columns, strict=True)]

    def of_values(self, accumulator: cute.Tensor, values: list[int]) -> list[Float32]:
        """Values after all steps of the epilogue but the last."""
        return [x for v in values[::2] for x in self.applied(accumulator, v, 2)]

    def factors(self, values: dict[int, Float32], step: Quantize) -> dict[int, Float32]:
        """A group's values, scaled."""
        of_row: dict[int, list[int]] = {}
        for v in values:
            of_row.setdefault(int(self.plan.mma.coords_C(0, v)[0]), []).append(v)
        rows = tuple(of_row.values())
        found = self.row_maxima(rows, tuple([values[v] for own in rows for v in own]), step.each)
        places = [NeighbourPair(self, own[0]).element(0) for own in rows]
        factors = self.reductions.quantized(step, found, places)
        return {v: values[v] * factor for own, factor in zip(rows, factors, strict=True) for v in own}

    @cute.jit
    def row_maxima(
        self, rows: cutlass.Constexpr, values: tuple[Float32, ...], each: cutlass.Constexpr
    ) -> tuple[Float32, ...]:
        """The thread's largest |x| in each row of a group of columns. Those behind C's last column count as 0.

        rows  the accumulator's numbers of each row's values, which `values` holds in the same order

        One branch asks for all columns: in most tiles all are C's, and a question each costs a third of the work.
        """
        found = self.maxima(rows, values, False)
        end = (int(self.plan.mma.coords_C(0, rows[0][0])[1]) // each + 1) * each
        if self.column + end > self.job.n:
            found = self.maxima(rows, values, True)
        return found

    def maxima(self, rows: Sequence[Sequence[int]], values: Sequence[Float32], asks: bool) -> tuple[Float32, ...]:
        """The same; `asks`: of each value, whether its column is one of C's."""
        sizes = dict(zip([v for own in rows for v in own], [self.math.abs(x) for x in values], strict=True))
        if asks:
            inside = {v: NeighbourPair(self, v - v % 2).element(v % 2).inside("m") for v in sizes}
            sizes = {v: self.math.where(inside[v], x, 0.0) for v, x in sizes.items()}
        return tuple([by_halves(self.math.largest, [sizes[v] for v in own]) for own in rows])

    def place(self, v: int) -> Element:
        """The place of value v."""
        return NeighbourPair(self, v - v % 2).element(v % 2)

    def applied(self, accumulator: cute.Tensor, first: int, count: int) -> list[Float32]:
        """The accumulator's values after the epilogue's steps, element by element."""
        last = len(self.epilogue.stages) - 1
        return [x for v in range(first, first + count, 2) for x in self.after_stage(accumulator, v, last)]

    def after_stage(self, accumulator: cute.Tensor, v: int, stage: int) -> list[Float32]:
        """Values v and v + 1 after a stage of the epilogue. A function of columns, then steps on each alone."""
        group, steps = self.epilogue.stages[stage]
        if group is None:
            done = [bridge.number(accumulator[v + e]) for e in range(2)]
        else:
            done = [self.of_group(accumulator, v + e, stage, group) for e in range(2)]
        pair = NeighbourPair(self, v)
        for e in range(2):
            for step in steps:
                done[e] = step.apply(done[e], pair.element(e))
        pair.flush()
        return done

    def of_group(self, accumulator: cute.Tensor, v: int, stage: int, group: ColumnGroup) -> Float32:
        """Value v of the function of its group of columns. Lanes of a row exchange the values that they hold."""
        places = members_of(self.plan.mma, group.columns, group.distance)[v]
        key = ("results", stage, places)
        if key not in self.staged:

            def values(v: int) -> list[Float32]:
                before = ("stage", stage - 1, v)
                if before not in self.staged:
                    self.staged[before] = self.after_stage(accumulator, v, stage - 1)
                return self.staged[before]

            x = [self.member(places, k, stage, lambda v: values(v - v % 2)[v % 2]) for k in range(group.columns)]
            self.staged[key] = [Float32(y) for y in group.results(x, GroupElement(self, places))]
        own = [(lane, x) for lane, of, x in zip(places.lanes, places.values, self.staged[key], strict=True) if of == v]
        found = own[0][1]
        for lane, x in own[1:]:
            found = self.math.where((self.thread & places.mask) == lane, x, found)
        return found

    def member(self, places: Members, k: int, what: object, value: Callable[[int], Float32]) -> Float32:
        """Member k of a group of what a thread has for each of its values. Its own, or another lane's."""
        v, lane = places.values[k], places.lanes[k]
        if not places.mask:
            return value(v)
        key = ("member", what, v, lane, places.mask)
        if key not in self.staged:
            source = (self.thread % WARP & ~places.mask) | lane
            own = value(v)
            bits = own.bitcast(Float32) if isinstance(own, Int32) else Float32(own)
            found = cute.arch.shuffle_sync(bits, source)
            self.staged[key] = [found.bitcast(Int32) if isinstance(own, Int32) else found]
        return self.staged[key][0]

    def hold(self, given: EpilogueOperand, v: int, word: Int32) -> None:
        """Keep two loaded neighbours of a matrix, for the accumulator's values v and v + 1."""
        self.read[NeighbourPair(self, v).key_of(given, 0)] = element.from_words([word], given.dtype)

    def finish(self) -> None:
        """Reductions over all values of the block."""
        self.reductions.finish()

    def of_batch(self, given: EpilogueOperand, word: Int64) -> Int64:
        """The first byte of the operand of this matrix of the batch."""
        if self.plan.batch == 1:
            return word
        step = getattr(self.job.given, f"{given.name}_batch") * given.dtype.bytes
        return word + Int64(self.matrix) * step


class NeighbourPair:
    """Two neighbours of a row. A fragment holds them as values v and v + 1 of one thread."""

    def __init__(self, block: FusedBlock, v: int):
        self.block = block
        i, j = block.plan.mma.coords_C(block.thread, v)
        # Where thread 0 has them: two values of one thread in one row, or in one column, are so in every thread.
        self.key: tuple[int, int] = tuple(int(x) for x in block.plan.mma.coords_C(0, v))  # type: ignore[assignment]
        self.i, self.j = block.row + i, block.column + j
        self.written: dict[str, list[Any]] = {}

    def element(self, e: int, half: int = 0) -> Element:
        """One of the two. Before a gate the gate's, or with half = 1 the other sum's."""
        return Element(self, e, half)

    def value(self, name: str, e: int, half: int) -> Float32:
        """An operand's value for one of the two."""
        block = self.block
        given = block.epilogue.named_given(name)
        half = half if given.places > 1 else 0
        key = self.key_of(given, half)
        if key not in block.read:
            block.read[key] = self.load(given, half)
        return block.read[key][e]

    def key_of(self, given: EpilogueOperand, half: int) -> tuple[object, ...]:
        """The name and place by which the block keeps an operand's values of the two."""
        return given.name, half, *[x for x, axis in zip(self.key, "mn", strict=True) if axis in given.axes]

    def load(self, given: EpilogueOperand, half: int) -> list[Float32]:
        """Both values. Places outside the matrix read the edge, and their results are not stored."""
        job = self.block.job
        word = getattr(job.given, given.name)
        if given.host:
            return [element.number(word, given.dtype)] * 2
        if given.dtype.kind == "int":  # 32 bits either way
            values = self.load(replace(given, dtype=f32), half)
            return [values[0].bitcast(Int32)] * 2 if values[0] is values[1] else [x.bitcast(Int32) for x in values]
        if not given.axes:
            return [element.load_value(word, given.dtype)] * 2
        row = cutlass.min(self.i, job.m - 1)
        if given.axes == "m":
            if (indexed := self.block.indexed) is not None and given.name in indexed.through:
                return [self.through(indexed, given, word, row)] * 2
            return [element.load_value(self.address(given, word, row, Int32(0)), given.dtype)] * 2
        if self.block.epilogue.pairs and given.order == "row":
            column = cutlass.min(self.j, job.n - 2) + half * job.n
            return element.load_two(self.address(given, word, row, column), given.dtype)
        columns = [cutlass.min(self.j + e, job.n - 1) + half * job.n for e in range(2)]
        return [element.load_value(self.address(given, word, row, column), given.dtype) for column in columns]

    def through(self, indexed: IndexedRows, given: EpilogueOperand, word: Int64, row: Int32) -> Float32:
        """The number of the row of A that an index names; 0 for one outside. An index is read once a block."""
        block, key = self.block, ("row of A", self.key[0])
        if key not in block.read:
            block.read[key] = load_index(indexed, block.job, ROWS, row, block.job.m)
        line: Int64 = block.read[key]
        found = element.load_value(word + cutlass.max(line, Int64(0)) * given.dtype.bytes, given.dtype)
        return self.block.math.where(line >= 0, found, 0.0)

    def address(self, given: EpilogueOperand, word: Int64, row: Int32, column: Int32) -> Int64:
        """The address of an operand's element. The start of a matrix's line is computed once a block."""
        block, size = self.block, given.dtype.bytes
        line, along = (row, column) if given.order == "row" else (column, row)
        if given.axes != "mn":
            at, lines = (row, block.job.m) if given.axes == "m" else (column, block.job.n)
            return block.of_batch(given, word) + Int64(at) * (given.strides(lines)[0] * size)
        key = ("line", given.name, self.key[0])
        if given.order == "col" or key not in block.read:
            leading = getattr(block.job.given, f"{given.name}_ld")
            block.read[key] = block.of_batch(given, word) + Int64(line) * leading * size
        return block.read[key] + Int64(along) * size

    def random(self, name: str, e: int) -> Int32:
        """16 random bits of one of the two. Neighbours of a row of C share a word, of its transpose a word each."""
        block = self.block
        i, j = self.i, self.j + e
        if block.epilogue.flipped:
            word = element.random_pair(self.value(name, 0, 0), j, i // 2)
            odd = i % 2
        else:
            key = ("random", name, *self.key)
            if key not in block.read:
                block.read[key] = element.random_pair(self.value(name, 0, 0), i, self.j // 2)
            word, odd = block.read[key], e  # the first column of a pair is even
        return Int32((word >> cutlass.Uint32(16 * odd)) & cutlass.Uint32(0xFFFF))

    def inside(self, e: int) -> Boolean:
        """True if one of the two is an element of C."""
        return (self.i < self.block.end) & (self.j + e < self.block.job.n)

    def flush(self) -> None:
        """Store the values that the steps have written for both elements."""
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

    def __init__(self, pair: NeighbourPair, e: int, half: int):
        self.pair, self.e, self.half = pair, e, half
        self.math = pair.block.math
        self.i, self.j = pair.i, pair.j + e

    def read(self, name: str) -> Float32 | Int32:
        """An operand's value here."""
        found = self.pair.value(name, self.e, self.half)
        return Int32(found) if self.pair.block.epilogue.named_given(name).dtype.kind == "int" else found

    def write(self, name: str, x: Float32) -> None:
        """Store x here once the pair is complete."""
        self.pair.written.setdefault(name, []).append(x)

    @property
    def key(self) -> tuple[int, int]:
        """Row and column in the accumulator, where thread 0 has it."""
        return self.pair.key[0], self.pair.key[1] + self.e

    def inside(self, axes: str) -> Boolean | bool:
        """True if a reduction to these axes takes the element. Those beyond C along them are results of no line.

        Of a tile without columns outside of C a row's elements are asked nothing: selects and comparisons would be a
        quarter of a sum's time.
        """
        block = self.pair.block
        in_row, whole = self.i < block.end, block.epilogue.has_whole_columns(block.plan.tile_c[1])
        if axes == "n":
            return in_row
        if whole:
            return True if axes == "m" else in_row
        return self.j < block.job.n if axes == "m" else self.pair.inside(self.e)

    def reduce(self, step: ReductionStep, x: Float32) -> None:
        """Take x into the reduction of its row or column."""
        self.pair.block.reductions.take(step, self, x)

    def quantized(self, step: Quantize, x: Float32) -> Float32:
        """x unchanged: the block scales it once its whole group is there."""
        return x

    def grouped(self, step: ColumnGroup, x: Float32) -> Float32:
        """Never asked. A function of columns begins a stage, and the block computes it of all its members."""
        raise AssertionError(f"{step} is no step on one element")

    def random(self, name: str) -> Int32:
        """16 random bits."""
        return self.pair.random(name, self.e)


class GroupElement:
    """A group of columns, as the place of a function of them."""

    def __init__(self, block: FusedBlock, places: Members):
        self.block, self.places, self.math = block, places, block.math
        lane = (block.thread & ~places.mask) | places.lanes[0]
        i, j = block.plan.mma.coords_C(lane, places.values[0])
        self.i, self.j = block.row + i, block.column + j

    def read(self, name: str, k: int | None = None) -> Float32:
        """An operand's value in column k of the group. Without k one of the row's or of all."""
        if k is None:
            return self.value(name, self.places.values[0])
        return self.block.member(self.places, k, name, lambda v: self.value(name, v))

    def value(self, name: str, v: int) -> Float32:
        """The operand's value for the thread's value v."""
        return NeighbourPair(self.block, v - v % 2).element(v % 2).read(name)


class _Registers(Protocol):
    """Values by their numbers."""

    def __getitem__(self, v: int) -> Numeric: ...


class CombinedSums:
    """An accumulator of several sums as the one that is stored. Its value v is of values v, v + count, ...

    count  values of the accumulator that is stored
    fused  the epilogue, some steps of which may be of each sum
    """

    def __init__(
        self, plan: SeveralOperands, job: bridge.Carried, accumulator: _Registers, fused: FusedBlock | None, count: int
    ):
        self.gated, self.accumulator, self.fused = present(plan.gated), accumulator, fused
        self.count, self.sums = count, plan.sums
        self.math = element.ElementMath(plan.c.dtype.bits > 16, plan.c.dtype.mantissa <= 8)
        self.numbers = {name: element.number(getattr(job.given, name), f32) for name in self.gated.numbers}

    def __getitem__(self, v: int) -> Float32:
        sums = [bridge.number(self.accumulator[v + i * self.count]) for i in range(self.sums)]
        if self.fused is not None and self.fused.epilogue.sums:
            pair = NeighbourPair(self.fused, v - v % 2)
            sums = [self.fused.epilogue.apply_to_sum(x, pair.element(v % 2, i), i) for i, x in enumerate(sums)]
        return self.gated.apply(sums, self.math, self.numbers)
