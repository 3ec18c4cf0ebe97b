"""Reductions on the accumulators of a block of rows, and the second launch.

thread     combines its values of a row or column, in the order of its registers
warp       combines the lanes of a row or column by shuffles: `kernels.partials.exchanges_of`
leader     one lane of them stores the tuple: a partial result, a result of `each` columns, or an atomic operation
finish     threads of a second kernel combine partial results line by line, then lanes and warps: the same order always.
           Where a cluster has whole rows, its first CTA combines those of its CTAs, in shared memory
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64, Numeric, const_expr

from ...atoms import MmaAtom
from ...atoms.copy.base import WARP
from ...dtypes import f32
from ..epilogue.chain import Epilogue, Quantize, Reduction, ReductionStep
from ..epilogue.reductions import by_halves
from ..partials import (
    FINISH_LINES,
    FINISH_PLACES,
    WORD_BYTES,
    PartialResults,
    ReducingPlan,
    RowExchange,
    exchanges_of,
    whole_rows,
    words_of_matrix,
)
from ..plan import WORKSPACE, present, tile_count
from . import bridge
from . import math as element
from .tables import choose, group_entry, load_word_shared

if TYPE_CHECKING:
    from .fused import Element, FusedBlock

TOGETHER = 4  # elements whose tuple is computed at once, where that takes fewer steps: 8 leave too few registers
_SECTOR = 8  # places beside each other that a warp of the second launch has: 32 bytes, which memory loads at once
_KINDS = {"float": Float32, "int": Int32}


def typed(reduction: Reduction, values: Sequence[Any]) -> list[Any]:
    """A tuple's components as registers."""
    return [_KINDS[kind](value) for value, kind in zip(values, reduction.kinds, strict=True)]


@cache
def values_of(mma: MmaAtom) -> tuple[tuple[tuple[int, int], ...], Counter[int]]:
    """Row and column of each value of thread 0, and its values a column."""
    places = [mma.coords_C(0, v) for v in range(mma.accumulator_registers)]
    found = tuple((int(row), int(column)) for row, column in places)
    return found, Counter(column for _, column in found)


def bits_of(value: Float32 | Int32) -> Float32:
    """A component, or a result, as the f32 register of the same bits."""
    return value if isinstance(value, Float32) else Int32(value).bitcast(Float32)


class BlockReductions:
    """The tuples of a block so far, by step, line and group of columns."""

    def __init__(self, block: FusedBlock):
        self.block = block
        self.waiting: dict[tuple[str, int, int], list[tuple[Float32, Element]]] = {}
        self.found: dict[tuple[str, int, int], tuple[ReductionStep, Element, list[Any]]] = {}
        self.taken: Counter[tuple[str, int, int]] = Counter()
        self.ahead: set[tuple[str, int, int]] = set()

    def take_ahead(self, value: Callable[[int], Float32], held: Sequence[int]) -> None:
        """Take all values of a row at once, before the first is stored.

        Few steps come before, see `Epilogue.ahead`. The largest of all is known then, and no term is computed again.

        Not of tiles that may have columns outside of C: their values behind a select are as many registers more.

        value  of a number, before the epilogue;   held: the numbers of the values that the block stores
        """
        if not self.block.epilogue.has_whole_columns(self.block.plan.tile_c[1]):
            return
        for step, before in self.block.epilogue.ahead:
            for v in held:
                at, x = self.block.place(v), value(v)
                for each in before:
                    x = each.apply(x, at)
                self.waiting.setdefault(self.key(step, at), []).append((x, at))
            for key in list(self.waiting):
                self.combine(step, key)
                self.ahead.add(key)

    def take(self, step: ReductionStep, at: Element, x: Float32) -> None:
        """Take an element into its line's tuple, alone or with others. One outside of C leaves it."""
        key = self.key(step, at)
        if key in self.ahead:
            return
        waiting = self.waiting.setdefault(key, [])
        waiting.append((x, at))
        self.taken[key] += 1
        last = self.taken[key] == self.needed(step, key)
        if last or len(waiting) == (1 if step.reduction.about is None else TOGETHER):
            self.combine(step, key)
        if last:  # its registers are free for the next columns
            self.store(*self.found.pop(key))

    def combine(self, step: ReductionStep, key: tuple[str, int, int]) -> None:
        """Combine the elements that wait with their line's tuple."""
        elements = sorted(self.waiting.pop(key), key=lambda element: element[1].key)
        inside, math = [at.inside(step.axes) for _, at in elements], self.block.math
        along = [at.key[0 if step.axes == "n" else 1] for _, at in elements]
        if step.reduction.insert and key in self.found:
            own = self.found[key][2]
            for (x, at), counts in zip(elements, inside, strict=True):
                own = typed(step.reduction, step.reduction.inserted(own, x, at, counts))
        else:
            own = typed(step.reduction, step.reduction.tuple_of(elements, inside, [x - along[0] for x in along]))
            if key in self.found:
                own = typed(step.reduction, step.reduction.combined(self.found[key][2], own, math))
        self.found[key] = step, elements[-1][1], own

    def needed(self, step: ReductionStep, key: tuple[str, int, int]) -> int | None:
        """A thread's values of a column, or of a row's group of columns. None of one that runs across all values."""
        if step.axes == "n":
            return values_of(self.block.plan.mma)[1][key[1]]
        if step.each is None:
            return None
        columns = range(key[2] * step.each, (key[2] + 1) * step.each)
        return sum(1 for row, column in values_of(self.block.plan.mma)[0] if row == key[1] and column in columns)

    def key(self, step: ReductionStep, at: Element) -> tuple[str, int, int]:
        """The element as thread 0 has it. The step, its row or column in the accumulator, and its group of columns."""
        row, column = at.key
        line = {"m": row, "n": column, "": 0}[step.axes]
        return step.name, line, 0 if step.each is None else column // step.each

    def finish(self) -> None:
        """Store the tuples that are left."""
        steps = {step.name: step for step in self.block.epilogue.reductions}
        for key in list(self.waiting):
            self.combine(steps[key[0]], key)
        for step, at, own in self.found.values():
            self.store(step, at, own)

    def store(self, step: ReductionStep, at: Element, own: list[Any]) -> None:
        """Combine the lanes of a line and store its tuple."""
        (values,) = self.of_lanes(step.reduction, step.axes, [own])
        rows = self.block.plan.row_exchange if step.partial and step.axes == "m" else None
        if rows is not None:
            self.store_whole(rows, step, at, values)
        elif step.partial:
            self.store_partial(step, at, values)
        elif step.each is not None:
            self.store_group(step, at, values)
        else:
            self.combine_in_memory(step, at, values)

    def of_lanes(self, reduction: Reduction, axis: str, lines: Sequence[list[Any]]) -> list[list[Any]]:
        """The tuples of all lanes of each line, in each lane. An exchange of all lines before the next exchange."""
        found = list(lines)
        for distance in self.exchanges(axis):
            others = [[cute.arch.shuffle_sync_bfly(value, distance) for value in values] for values in found]
            pairs = zip(found, others, strict=True)
            found = [typed(reduction, reduction.combined(*pair, self.block.math)) for pair in pairs]
        return found

    def exchanges(self, axis: str) -> tuple[int, ...]:
        """The distances between lanes of a line; of all of C, those between all lanes."""
        return exchanges_of(self.block.plan.mma if axis else None, axis)

    def leads(self, axis: str) -> Boolean:
        """True in the lane that stores for its line."""
        return self.block.thread & sum(self.exchanges(axis)) == 0

    def store_partial(self, step: ReductionStep, at: Element, values: Sequence[Any]) -> None:
        """The tuple as a partial result."""
        block = self.block
        m, n = Int64(block.job.m), Int64(block.job.n)
        number = next(i for i, partial in enumerate(block.plan.partials) if partial.step.name == step.name)
        partial = block.plan.partials[number]
        groups = block.job.groups if partial.joined else Int32(1)
        lines, places = partial.extents(m, n, Int64(groups))
        if step.axes == "m":
            first = partial.first_line(block.job.n)
            line, place, inside = first + block.column // partial.span + block.part, at.i, at.i < block.end
        else:
            warp, place = block.thread // WARP, at.j
            row = block.row + warp * partial.span
            line = partial.line(row, block.matrix) + partial.first_line(block.job.n)
            inside = (at.j < block.job.n) & (row < block.end)
        matrix = Int32(0) if partial.joined else block.matrix
        base = partials_address(block.job.given, block.plan.partials, number, matrix, (m, n), Int64(groups))
        address = base + (Int64(line) * places + place) * WORD_BYTES
        inside = inside & (line < Int32(lines)) & self.leads(step.axes)  # the last columns, or warps, may lie beyond C
        for component, value in enumerate(values):
            element.store_value(address + lines * places * (component * WORD_BYTES), bits_of(value), f32, inside)

    def store_whole(self, rows: RowExchange, step: ReductionStep, at: Element, values: Sequence[Numeric]) -> None:
        """Store a whole row's results, or send its tuple to the cluster's first CTA."""
        job = self.block.job
        if rows.columns == 1:
            to = [at.pair.address(given, getattr(job.given, given.name), at.i, Int32(0)) for given in step.given]
            store_results(step, values, to, (at.i < self.block.end) & self.leads("m"), job.m)
            return
        there, row = bridge.remote(job.shared.base, job.cluster_row), at.i % rows.rows
        places = [rows.byte(job.cluster_column, word, row) for word in words_of(self.block.epilogue, step)]
        self.send_row([there + place for place in places], values)

    @cute.jit
    def send_row(self, places: Sequence[Int32], values: Sequence[Numeric]) -> None:
        """Send a tuple by the lane that leads; rows behind C's last have places too."""
        if self.leads("m"):
            for place, value in zip(places, values, strict=True):
                bridge.store_remote(place, bits_of(value))

    def store_group(self, step: ReductionStep, at: Element, values: Sequence[Any]) -> None:
        """The results of a group of columns."""
        results = step.reduction.finished(values, self.block.math)
        for given, value, (_, kind) in zip(step.given, results, step.reduction.results, strict=True):
            self.store_of_group(given, at, _KINDS[kind](value), step.each or 1)

    def store_of_group(self, given: Any, at: Element, value: Any, each: int) -> None:
        """One value for each row and group of columns."""
        block = self.block
        first = at.key[1] // each * each  # the group's first column in the accumulator
        inside = (at.i < block.end) & (block.column + first < block.job.n) & self.leads("m")
        address = at.pair.address(
            given, getattr(block.job.given, given.name), at.i, block.column // each + first // each
        )
        kept = f32 if given.dtype.kind == "int" else given.dtype
        element.store_value(address, bits_of(value), kept, inside)

    def combine_in_memory(self, step: ReductionStep, at: Element, values: Sequence[Any]) -> None:
        """The result combined with the one in memory, by an atomic instruction."""
        (given,), block = step.given, self.block
        word = getattr(block.job.given, given.name)
        inside = self.leads(step.axes)
        if step.axes:
            inside = inside & (at.i < block.end if step.axes == "m" else at.j < block.job.n)
            word = at.pair.address(given, word, at.i, at.j)
        element.combine_value(word, values[0], present(step.reduction.atomic), inside)

    def quantized(self, step: Quantize, amax: Sequence[Float32], places: Sequence[Element]) -> list[Float32]:
        """The factors of rows' groups of columns; their scales are stored.

        amax  the thread's own largest |x| of each row: rows are side by side, since none waits for another
        """
        found = [
            self.block.math.largest(x, step.least) for (x,) in self.of_lanes(step.reduction, "m", [[x] for x in amax])
        ]
        for x, at in zip(found, places, strict=True):
            self.store_of_group(step.given[0], at, element.divided_by(x, step.most), step.each)
        # As torch computes most / amax: by the reciprocal.
        return [x * step.most for x in self.inverses(tuple(found))]

    @cute.jit
    def inverses(self, values: tuple[Float32, ...]) -> tuple[Float32, ...]:
        """1 / x of each, correctly rounded. Those whose inverse is subnormal, infinite ones and NaN by a branch."""
        found = inverses_of(values)
        if not by_halves(element.ElementMath.largest, values) < 2.0**126:
            found = divided_ones(values)
        return found


def inverses_of(values: Sequence[Float32]) -> tuple[Float32, ...]:
    """1 / x of each, as `math.inverse_of` has it."""
    return tuple([element.inverse_of(x) for x in values])


def divided_ones(values: Sequence[Float32]) -> tuple[Float32, ...]:
    """1 / x of each, by a division."""
    return tuple([element.divided(1.0, x) for x in values])


def partials_address(
    given: Any,
    partials: Sequence[PartialResults],
    number: int,
    matrix: Int32,
    sizes: tuple[Int64, Int64],
    groups: Int64,
) -> Int64:
    """The first byte of a reduction's partial results of one matrix."""
    before = words_of_matrix(partials[:number], *sizes, groups)
    words = Int64(matrix) * words_of_matrix(partials, *sizes, groups) + before
    return getattr(given, WORKSPACE) + words * WORD_BYTES


def launch_finish(plan: Any, words: Sequence[Int64], sizes: tuple[Int32, Int32, Int32], stream: bridge.Stream) -> None:
    """Host side: a launch for each reduction of which tiles have partial results.

    words  the plan's, in order;   sizes   m, n and matrices
    """
    for number in range(len(plan.partials)):
        FinishKernel(plan, number).launch(dict(zip(plan.words, words, strict=True)), sizes, stream)


class FinishKernel:
    """The second launch: one reduction's partial results combined, its results stored."""

    def __init__(self, plan: Any, number: int):
        self.plan, self.number = plan, number
        self.ragged: Any = getattr(plan, "ragged", None)  # groups of rows, or None
        self.overlaps = "griddepcontrol" in plan.arch.features  # starts while the product's last blocks end
        self.partial: PartialResults = plan.partials[number]
        self.math = element.ElementMath(exact=True)

    def launch(self, words: Mapping[str, Int64], sizes: tuple[Int32, Int32, Int32], stream: bridge.Stream) -> None:
        """Host side. `sizes`: m, n and matrices."""
        m, n, batch = sizes
        _, places = self.partial.extents(m, n, batch)
        matrices = Int32(1) if self.partial.joined and self.partial.step.axes == "m" else batch
        self.kernel(m, n, batch, tuple(words.values())).launch(
            grid=(tile_count(places, FINISH_PLACES) * matrices, 1, 1),
            block=(FINISH_PLACES * FINISH_LINES, 1, 1),
            smem=self.shared_bytes,
            use_pdl=self.overlaps,
            stream=stream,
        )

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: a tuple for each warp and place."""
        return FINISH_PLACES * FINISH_LINES * _SECTOR // WARP * self.partial.components * WORD_BYTES

    @cute.kernel
    def kernel(self, m: Int32, n: Int32, batch: Int32, words: tuple) -> None:
        """Device side: 32 places of one matrix, or group. Each thread combines a run of the lines of one."""
        partial, reduction = self.partial, self.partial.step.reduction
        given = bridge.Carried(**dict(zip(self.plan.words, words, strict=True)))
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        lines, places = partial.extents(m, n, batch)
        across = tile_count(places, FINISH_PLACES)
        warp, lane = thread // WARP, thread % WARP
        beside = FINISH_PLACES // _SECTOR  # warps that have the same lines
        own_place, own_run = (
            warp % beside * _SECTOR + lane % _SECTOR,
            warp // beside * (WARP // _SECTOR) + lane // _SECTOR,
        )
        matrix, place = block // across, block % across * FINISH_PLACES + own_place
        shared = cutlass.memory.SmemAllocator().allocate(self.shared_bytes, 16).toint() + own_place * WORD_BYTES
        if const_expr(self.overlaps):
            bridge.allow_next_kernel()
            bridge.wait_for_previous_kernel()

        own, stop, last = self.lines_of(given, matrix, (m, batch), lines, places)
        run = tile_count(stop - own, FINISH_LINES)
        first = cutlass.min(own + own_run * run, stop)
        end = cutlass.min(first + run, stop)
        if const_expr(self.ragged is not None):
            end = choose(place < last, end, first)  # rows of no group have no partial results
        of = Int32(0) if const_expr(partial.joined) else matrix
        start = partials_address(given, self.plan.partials, self.number, of, (Int64(m), Int64(n)), Int64(batch))
        start += Int64(cutlass.min(place, places - 1)) * WORD_BYTES
        found = tuple(typed(reduction, reduction.identity))
        for line in cutlass.range(first, end, unroll=8):  # as many loads in flight
            found = self.with_line(found, start, line, lines, places)
        for distance in (_SECTOR, 2 * _SECTOR):
            others = [cute.arch.shuffle_sync_bfly(value, distance) for value in found]
            found = tuple(typed(reduction, reduction.combined(found, others, self.math)))
        of_warp = FINISH_PLACES * WORD_BYTES
        step = self.shared_bytes // partial.components  # from component to component
        if lane < _SECTOR:
            for component in cutlass.range_constexpr(partial.components):
                at = shared + warp // beside * of_warp + component * step
                bridge.store_shared(at, [bits_of(found[component])])
        bridge.block_sync()
        if own_run == 0:
            for other in cutlass.range_constexpr(1, FINISH_LINES * _SECTOR // WARP):
                at = shared + other * of_warp
                loaded = [load_word_shared(at + component * step) for component in range(partial.components)]
                found = tuple(self.combined(found, loaded))
            self.store(given, found, matrix, place, last, m if partial.step.axes == "m" else n)

    def lines_of(
        self, given: Any, matrix: Int32, sizes: tuple[Int32, Int32], lines: Int32, places: Int32
    ) -> tuple[Int32, Int32, Int32]:
        """(first line, end, end of the places) of a matrix, or of a group's rows. `sizes`: m and groups."""
        ragged = self.ragged
        if ragged is None:
            return Int32(0), lines, places
        (m, groups), of_rows = sizes, self.partial.step.axes == "m"
        address = getattr(given, ragged.name)

        def entry(group: Int32) -> Int32:
            return cutlass.max(cutlass.min(group_entry(ragged, address, group, groups, m), m), 0)

        if of_rows:  # the last group's end, or the rows of a masked group that count
            return Int32(0), lines, entry(matrix if ragged.masked else groups)
        if ragged.masked:
            return Int32(0), tile_count(entry(matrix), self.partial.span), places
        found = self.partial.lines_of_group(entry(matrix), entry(matrix + 1), matrix)
        return found[0], cutlass.max(found[1], found[0]), places

    def with_line(
        self, found: tuple[Any, ...], start: Int64, line: Int32, lines: Int32, places: Int32
    ) -> tuple[Any, ...]:
        """The tuple combined with that of a line."""
        at = start + Int64(line) * places * WORD_BYTES
        step = Int64(lines) * places * WORD_BYTES
        loaded = [element.load_value(at + component * step, f32) for component in range(self.partial.components)]
        return tuple(self.combined(found, loaded))

    def combined(self, found: Sequence[Any], loaded: Sequence[Any]) -> list[Any]:
        """A tuple combined with one from memory."""
        reduction = self.partial.step.reduction
        return typed(reduction, reduction.combined(found, loaded_tuple(reduction, loaded), self.math))

    def store(
        self, given: Any, found: Sequence[Numeric], matrix: Int32, place: Int32, last: Int32, lines: Int32
    ) -> None:
        """The results of a place before the last, of so many lines of C."""
        step, to = self.partial.step, []
        for operand in step.given:
            offset = Int64(place) * operand.strides(lines)[0]
            if const_expr(self.plan.batch > 1):
                offset += Int64(matrix) * getattr(given, f"{operand.name}_batch")
            to.append(getattr(given, operand.name) + offset * operand.dtype.bytes)
        store_results(step, found, to, place < last, lines)


def loaded_tuple(reduction: Reduction, words: Sequence[Numeric]) -> list[Numeric]:
    """A tuple from memory's 32-bit words."""
    return [
        bridge.as_floats([value])[0] if kind == "float" else Int32(bits_of(value).bitcast(Int32))
        for value, kind in zip(words, reduction.kinds, strict=True)
    ]


def store_results(
    step: ReductionStep, found: Sequence[Numeric], to: Sequence[Int64], inside: Boolean, lines: Int32
) -> None:  # fmt: skip
    """The results of a last tuple.

    to  each output's address of the first result of the row or column;   lines: of C, along the step's axis
    """
    results = step.reduction.finished(found, element.ElementMath(exact=True))
    for (output, k), value, (_, kind) in zip(step.places, results, step.reduction.results, strict=True):
        operand, address = step.given[output], to[output]
        if k:
            address += Int64(operand.strides(lines)[1]) * (k * operand.dtype.bytes)
        kept = f32 if operand.dtype.kind == "int" else operand.dtype
        element.store_value(address, bits_of(_KINDS[kind](value)), kept, inside)


def words_of(epilogue: Epilogue, step: ReductionStep) -> range:
    """The numbers of a reduction's words among those of all that a cluster finishes."""
    counts = {each.name: len(each.reduction.kinds) for each in whole_rows(epilogue)}
    first = sum(list(counts.values())[: list(counts).index(step.name)])
    return range(first, first + counts[step.name])


class WholeRows:
    """The end of a cluster whose CTAs along N have all columns. Tuples of rows combined, results stored."""

    def __init__(self, plan: ReducingPlan):
        self.plan = plan
        self.math = element.ElementMath(exact=True)

    def store(self, job: bridge.Carried, rows: RowExchange, first_row: Int32, row: Int32) -> None:
        """The results of a row of the tile, by one thread."""
        base = Int32(job.shared.base.toint()) + row * WORD_BYTES
        for step in whole_rows(self.plan.epilogue):
            reduction, places = step.reduction, words_of(self.plan.epilogue, step)
            found: list[Numeric] = []
            for column in range(rows.columns):
                words = [load_word_shared(base + rows.byte(column, word, 0)) for word in places]
                own = typed(reduction, loaded_tuple(reduction, words))
                found = typed(reduction, reduction.combined(found, own, self.math)) if column else own
            at = Int64(first_row + row)
            to = [
                getattr(job.given, each.name) + at * (each.strides(job.m)[0] * each.dtype.bytes) for each in step.given
            ]
            store_results(step, found, to, first_row + row < job.m, job.m)
