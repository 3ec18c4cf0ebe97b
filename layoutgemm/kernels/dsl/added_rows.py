"""The launches that add the product's rows to those of C that their indices name. See `kernels.indexed.added_rows`.

kernel    a warp                                          does
------    --------------------------------------------    -------------------------------------------------------------
rank      of 16 indices                                   counts for each the indices before it: its place in the list.
                                                          Writes the sorted list
chunks    of a place of the list, and a run of columns    looks at the chunk's 32 indices. If it is the first place of
                                                          its index in the chunk, it adds the rows that name the index
                                                          there. They are added to C if there are no others; if there
                                                          are, partial sums are stored
fold      of a chunk, and a run of columns                adds the partial sums of the index that begins in the chunk
                                                          and goes on behind it, chunk after chunk, and adds them to C
few       a quarter of equal indices, and a run of        looks at all indices, in place of all of these where there are
          columns                                         few. The first one's CTA adds the rows of its equals to C

The loads of several rows are under way together. Indices, and C's old values for few of them, are older than the
product: they are read while it drains, unless the product itself starts early.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64

from ...atoms.copy.base import VECTOR_BYTES, WARP
from ...dtypes import f32
from ..indexed.added_rows import (
    CHUNK,
    FEW,
    FEW_TOGETHER,
    FOLD,
    ORDER_BYTES,
    RANKED,
    RANKS,
    SUM,
    AddingPlan,
    few_places,
    list_bytes,
    slots_of,
)
from ..indexed.rows import ADDED, OUT_ROWS
from ..plan import present, tile_count
from . import bridge
from . import math as element
from .fp8 import store_words
from .tables import choose, load_index, load_long, load_word, load_word_shared

_LAST = 2**31 - 2  # the last row that a matrix may have: differences of such numbers and -1 do not overflow
AT_ONCE = 4  # rows whose vectors are loaded before the first is added
PARTIALS_AT_ONCE = 16  # partial sums, likewise: a lane has four numbers of each
_NUMBER_BYTES = 4  # of a row's number in shared memory
LOOKED_AT_ONCE = 4  # indices of a lane that are loaded before the first is compared


class SortedList(NamedTuple):
    """Addresses of a matrix's partial sums, of its list's order, and of the list's indices."""

    partials: Int64
    order: Int64
    names: Int64


def below(counts: tuple[Int32, ...], name: Int32, bounds: tuple[Int32, ...]) -> tuple[Int32, ...]:
    """Each count, and 1 more where an index is below its bound. A sign replaces the comparison."""
    return tuple([x - ((name - bound) >> 31) for x, bound in zip(counts, bounds, strict=True)])


class AddedRowsKernel:
    """The sums of one plan's rows."""

    def __init__(self, plan: AddingPlan):
        self.plan = plan
        self.overlaps = "griddepcontrol" in plan.arch.features
        self.reads_early = self.overlaps and not getattr(plan.config, "overlap", False)

    def workspace(self, sizes: Sequence[Int32], words: Mapping[str, Int64]) -> tuple[Int64, tuple[Int64, Int64]]:
        """Host side: the workspace's address, and elements from row to row and matrix to matrix. m, n are sizes."""
        m, n = sizes[0], sizes[1]
        pitch = Int64(SUM.pitch(n, self.plan.c.dtype.bytes))
        return words[ADDED], (pitch, pitch * m)

    @cute.jit
    def launch(
        self, c: tuple[Int64, Int64, Int64], sizes: tuple[Int32, Int32, Int32, Int32], words: tuple[Int64, ...],
        stream: bridge.Stream,
    ) -> None:  # fmt: skip
        """Host side. `c`: address, elements from row to row and from matrix to matrix."""
        m, n, _, batch = sizes
        matrices = batch if cutlass.const_expr(self.plan.matrices_of_c > 1) else Int32(1)
        runs = m * SUM.runs(n, self.plan.c.dtype.bytes)
        of_rows = tile_count(runs, SUM.warps), matrices, 1
        if m <= FEW:
            self.few(*c, m, n, words).launch(
                grid=(runs, matrices, 1), block=(SUM.threads, 1, 1), smem=self._list_bytes + self._sums_bytes,
                use_pdl=self.overlaps, stream=stream,
            )  # fmt: skip
        else:
            if m <= RANKED:
                self.rank(m, n, words).launch(
                    grid=(tile_count(m, RANKS * SUM.warps), matrices, 1), block=(SUM.threads, 1, 1),
                    use_pdl=self.overlaps, stream=stream,
                )  # fmt: skip
            self.chunks(*c, m, n, words).launch(
                grid=of_rows, block=(SUM.threads, 1, 1), use_pdl=self.overlaps, stream=stream,
            )  # fmt: skip
            self.fold(*c, m, n, words).launch(
                grid=(tile_count(tile_count(m, CHUNK) * FOLD.runs(n, f32.bytes), FOLD.warps), matrices, 1),
                block=(FOLD.threads, 1, 1), use_pdl=self.overlaps, stream=stream,
            )  # fmt: skip

    def _given(self, words: tuple[Int64, ...], early: bool = False) -> bridge.Carried:
        """Device side: the launch's words by name. Waits for the kernel before, or an `early` one for `wait_late`."""
        if cutlass.const_expr(self.overlaps):
            bridge.allow_next_kernel()
            if cutlass.const_expr(not (early and self.reads_early)):
                bridge.wait_for_previous_kernel()
        return bridge.Carried(**dict(zip(self.plan.words, words, strict=True)))

    def wait_late(self) -> None:
        """Device side: wait for the kernel before, behind the reads of what is older."""
        if cutlass.const_expr(self.reads_early):
            bridge.wait_for_previous_kernel()

    def _begin(
        self, words: tuple[Int64, ...], m: Int32, n: Int32, early: bool = False
    ) -> tuple[bridge.Carried, SortedList]:
        """Device side: the launch's words, and the matrix's list. Waits as `_given` does."""
        given = self._given(words, early)
        _, matrix, _ = cute.arch.block_idx()
        _, matrices, _ = cute.arch.grid_dim()
        begins = list_bytes(self.plan, (Int64(matrices), Int64(m), Int64(n)))
        each = slots_of(m) * SUM.pitch(n, f32.bytes) * f32.bytes, m * ORDER_BYTES, m * self._index_bytes
        places = [given.added_rows + begin + Int64(matrix) * size for begin, size in zip(begins, each, strict=True)]
        return given, SortedList(*places)

    @property
    def _index_bytes(self) -> int:
        return int(present(present(self.plan.indexed).scatter).bytes)

    def _named(self, given: bridge.Carried, listed: SortedList, number: Int32, m: Int32) -> Int32:
        """The row of C at a place of the sorted list; -1 outside of it."""
        job = bridge.Carried(given=bridge.Carried(out_rows=listed.names, c_rows=given.c_rows), m=m)
        at = cutlass.max(number, 0)
        return choose(number >= 0, Int32(load_index(present(self.plan.indexed), job, OUT_ROWS, at, m)), -1)

    @cute.kernel
    def rank(self, m: Int32, n: Int32, words: tuple) -> None:
        """Device side: the places of a warp's indices in the sorted list."""
        given, listed = self._begin(words, m, n, early=True)
        thread, _, _ = cute.arch.thread_idx()
        block, matrix, _ = cute.arch.block_idx()
        lane, first = thread % WARP, (block * SUM.warps + bridge.uniform(thread // WARP)) * RANKS
        job = bridge.Carried(given=given, m=m)
        of_batch = matrix if cutlass.const_expr(self.plan.matrices_of_c > 1) else None
        if first < m:
            begin = given.out_rows
            if cutlass.const_expr(of_batch is not None):
                begin += Int64(matrix) * m * self._index_bytes
            places = [cutlass.min(first + e, m - 1) for e in range(RANKS)]
            mine = [self.loaded(begin + Int64(place) * self._index_bytes) for place in places]
            own = first // WARP * WARP  # the only indices of which some are before and some behind a warp's own
            counts = self.before(job, (Int32(0), own), tuple([x + 1 for x in mine]), (lane, of_batch))
            number = own + lane
            found = self.loaded(begin + Int64(cutlass.min(number, m - 1)) * self._index_bytes)
            within = [(number < m) & ((found < x) | ((found == x) & (number < first + e))) for e, x in enumerate(mine)]
            behind = self.before(job, (own + WARP, m), tuple(mine), (lane, of_batch))
            for e in cutlass.range_constexpr(RANKS):
                place = counts[e] + behind[e] + choose(within[e], 1, 0)
                for distance in (16, 8, 4, 2, 1):
                    place += cute.arch.shuffle_sync_bfly(place, distance)
                if (lane == e) & (first + e < m):
                    yes = Boolean(True)
                    store_words(listed.order + Int64(place) * ORDER_BYTES, [first + e, Int32(0)], yes)
                    name = [mine[e], mine[e] >> 31][: self._index_bytes // 4]
                    store_words(listed.names + Int64(place) * self._index_bytes, name, yes)
        self.wait_late()  # the next launch waits for this one alone

    @cute.jit
    def before(
        self, job: bridge.Carried, numbers: tuple[Int32, Int32], bounds: tuple[Int32, ...],
        at: tuple[Int32, Int32 | None],
    ) -> tuple[Int32, ...]:  # fmt: skip
        """Count for each bound a lane's indices below it, from one number to another."""
        lane, of_batch = at
        first, end = numbers
        counts, step = tuple([Int32(0)] * RANKS), LOOKED_AT_ONCE * WARP
        begin = job.given.out_rows
        if cutlass.const_expr(of_batch is not None):
            begin += Int64(of_batch) * job.m * self._index_bytes
        while first + step <= end:  # whole steps ask for no end
            at_lane = begin + Int64(first + lane) * self._index_bytes
            found = [self.loaded(at_lane + i * (WARP * self._index_bytes)) for i in range(LOOKED_AT_ONCE)]
            for name in found:
                counts = below(counts, name, bounds)
            first = first + step
        while first < end:
            place = cutlass.min(first + lane, end - 1)
            name = self.loaded(begin + Int64(place) * self._index_bytes)
            counts = below(counts, choose(first + lane < end, name, _LAST), bounds)
            first = first + WARP
        return counts

    def loaded(self, address: Int64) -> Int32:
        """An index of C as the list orders it. It is -1 for one that no matrix has."""
        found = load_word(address) if self._index_bytes == 4 else load_long(address)
        return choose((found >= 0) & (found <= _LAST), Int32(found), -1)

    @cute.kernel
    def chunks(self, c: Int64, ldc: Int64, stride_c: Int64, m: Int32, n: Int32, words: tuple) -> None:
        """Device side: adds an index's rows in a chunk, by the first one's warp."""
        size = self.plan.c.dtype.bytes
        given, listed = self._begin(words, m, n)
        thread, _, _ = cute.arch.thread_idx()
        block, matrix, _ = cute.arch.block_idx()
        place, first = SUM.place(block * SUM.warps + bridge.uniform(thread // WARP), n, size)
        lane = thread % WARP
        if place < m:
            begin, at = place // CHUNK * CHUNK, place % CHUNK
            named = self._named(given, listed, begin + lane, m)
            row = cute.arch.shuffle_sync(named, at)
            alike = Int32(cute.arch.vote_ballot_sync(named == row))
            if (row >= 0) & ((alike & ((Int32(1) << at) - 1)) == 0):
                starts = (at > 0) | (self._named(given, listed, begin - 1, m) != row)
                ends = (alike >= 0) | (self._named(given, listed, begin + CHUNK, m) != row)  # bit 31: the last place
                source, (pitch, distance) = given.added_rows, self.workspace((m, n), {ADDED: given.added_rows})[1]
                columns = [first + SUM.element(lane, vector, size) for vector in range(SUM.vectors)]
                number = Int32(load_long(listed.order + Int64(cutlass.min(begin + lane, m - 1)) * ORDER_BYTES))
                lines = source + Int64(matrix) * distance * size, pitch * size
                sums = self.sum(lines, (number, alike), tuple(columns), n)
                target = c + (Int64(matrix) * stride_c + row * ldc) * size
                slot = Int64(begin // CHUNK * 2) + Int64(choose(starts, 1, 0))
                partial = listed.partials + slot * SUM.pitch(n, f32.bytes) * f32.bytes
                width = VECTOR_BYTES // size
                for vector, column in enumerate(columns):
                    of_vector = sums[vector * width : (vector + 1) * width]
                    if starts & ends:
                        self.add_to_c(target + Int64(column) * size, of_vector, n - column)
                    else:
                        for two in cutlass.range_constexpr(width // 2):
                            words_of = element.as_words(of_vector[two * 2 : two * 2 + 2], f32)
                            store_words(partial + Int64(column + two * 2) * f32.bytes, words_of, column < n)

    @cute.jit
    def sum(
        self, lines: tuple[Int64, Int64], rows: tuple[Int32, Int32], columns: tuple[Int32, ...], n: Int32
    ) -> tuple[Float32, ...]:
        """The sum of the chunk's rows that a mask names, the first place first.

        lines  address, and bytes from row to row; rows: a lane's row of the product, and the mask
        """
        number, mask = rows
        sums = self.zeros()
        while mask != 0:
            found: list[tuple[Int32, Boolean]] = []
            for _ in cutlass.range_constexpr(AT_ONCE):
                lowest = mask & -mask
                line = cute.arch.shuffle_sync(number, cute.arch.popc(lowest - 1) % WARP)
                found.append((line, Boolean(lowest != 0)))
                mask = mask & (mask - 1)
            sums = self.with_rows(sums, lines, found, (columns, n))
        return sums

    def zeros(self) -> tuple[Float32, ...]:
        """The sums of a lane's columns, of no row."""
        return tuple([Float32(0.0)] * (VECTOR_BYTES // self.plan.c.dtype.bytes * SUM.vectors))

    def with_rows(
        self, sums: tuple[Float32, ...], lines: tuple[Int64, Int64], rows: Sequence[tuple[Int32, Boolean]],
        columns: tuple[tuple[Int32, ...], Int32],
    ) -> tuple[Float32, ...]:  # fmt: skip
        """Sums and several rows of the product, the first one first. All loads are under way before an addition.

        rows  (number, whether it is added) of each;   columns: a lane's, and their end
        """
        dtype, more = self.plan.c.dtype, []
        for line, counts in rows:
            values: list[Float32] = []
            for column in columns[0]:
                at = lines[0] + Int64(line) * lines[1] + Int64(column) * dtype.bytes
                inside = counts & (column < columns[1])
                values += element.from_words(element.load_sixteen_bytes_if(at, Boolean(inside)), dtype)
            more.append(values)
        for values in more:
            sums = tuple([x + y for x, y in zip(sums, values, strict=True)])
        return sums

    _list_bytes = SUM.warps * FEW * _NUMBER_BYTES  # each warp has its own

    @property
    def _sums_bytes(self) -> int:
        """Shared memory for the sums of all warps but the first."""
        return (SUM.warps - 1) * WARP * len(self.zeros()) * f32.bytes

    @cute.kernel
    def few(self, c: Int64, ldc: Int64, stride_c: Int64, m: Int32, n: Int32, words: tuple) -> None:
        """Device side: adds the rows of equal indices to C, by the first one's CTA."""
        size = self.plan.c.dtype.bytes
        given = self._given(words, early=True)
        thread, _, _ = cute.arch.thread_idx()
        block, matrix, _ = cute.arch.block_idx()
        warp, lane = bridge.uniform(thread // WARP), thread % WARP
        place, first = SUM.place(block, n, size)
        shared = cutlass.memory.SmemAllocator().allocate(self._list_bytes + self._sums_bytes, 16).toint()
        listed, kept = shared + warp * (FEW * _NUMBER_BYTES), shared + self._list_bytes + lane * f32.bytes
        job, indexed = bridge.Carried(given=given, m=m), present(self.plan.indexed)
        of_batch = matrix if cutlass.const_expr(self.plan.matrices_of_c > 1) else None
        numbers = [lane + k * WARP for k in range(FEW // WARP)]
        named = [Int32(load_index(indexed, job, OUT_ROWS, number, m, of_batch)) for number in numbers]
        row = Int32(load_index(indexed, job, OUT_ROWS, place, m, of_batch))
        count, before, below_lane = Int32(0), Int32(0), (Int32(1) << lane) - 1
        places: list[Int32] = []
        for number, name in zip(numbers, named, strict=True):
            alike = Int32(cute.arch.vote_ballot_sync(name == row))
            before |= Int32(cute.arch.vote_ballot_sync((name == row) & (number < place)))
            places.append(count + cute.arch.popc(alike & below_lane))
            count += cute.arch.popc(alike)
        adds = (row >= 0) & (before == 0)
        columns = tuple([first + SUM.element(lane, vector, size) for vector in range(SUM.vectors)])
        target, width = c + (Int64(matrix) * stride_c + row * ldc) * size, VECTOR_BYTES // size
        own = [choose(adds & (warp == 0), n - column, 0) for column in columns]  # columns whose C a lane updates
        old = [self.old(target + Int64(column) * size, width, end) for column, end in zip(columns, own, strict=True)]
        self.wait_late()
        if adds:
            for number, name, at in zip(numbers, named, places, strict=True):
                if name == row:
                    bridge.store_shared(listed + at * _NUMBER_BYTES, [number])
            bridge.warp_sync()
            source, (pitch, distance) = given.added_rows, self.workspace((m, n), {ADDED: given.added_rows})[1]
            lines = source + Int64(matrix) * distance * size, pitch * size
            each = few_places(count)
            share = cutlass.min(warp * each, count), cutlass.min((warp + 1) * each, count)
            sums = self.sum_of_list(lines, (listed, *share), columns, n)
            step = len(sums) * (WARP * f32.bytes)  # from warp to warp
            if warp > 0:
                for e, value in enumerate(sums):
                    bridge.store_shared(kept + (warp - 1) * step + e * (WARP * f32.bytes), [value])
            bridge.block_sync()
            if warp == 0:
                for other in cutlass.range_constexpr(SUM.warps - 1):
                    at = kept + other * step
                    more = [load_word_shared(at + e * (WARP * f32.bytes)) for e in range(len(sums))]
                    sums = tuple([x + y.bitcast(Float32) for x, y in zip(sums, more, strict=True)])
                for vector, column in enumerate(columns):
                    of_vector = sums[vector * width : (vector + 1) * width]
                    self.store_to_c(target + Int64(column) * size, old[vector], of_vector, own[vector])

    @cute.jit
    def sum_of_list(
        self, lines: tuple[Int64, Int64], listed: tuple[Int32, Int32, Int32], columns: tuple[Int32, ...], n: Int32
    ) -> tuple[Float32, ...]:
        """The sum of rows whose numbers shared memory has. `listed`: its address, the first place and the end."""
        address, done, count = listed
        sums = self.zeros()
        while done < count:
            found: list[tuple[Int32, Boolean]] = []
            for i in cutlass.range_constexpr(FEW_TOGETHER):
                at = cutlass.min(done + i, count - 1)
                found.append((load_word_shared(address + at * _NUMBER_BYTES), Boolean(done + i < count)))
            sums = self.with_rows(sums, lines, found, (columns, n))
            done = done + FEW_TOGETHER
        return sums

    @cute.jit
    def add_to_c(self, address: Int64, sums: tuple[Float32, ...], columns: Int32) -> None:
        """Add sums to C's elements from an address on, `columns` of them at most."""
        self.store_to_c(address, self.old(address, len(sums), columns), sums, columns)

    def old(self, address: Int64, count: int, columns: Int32) -> list[Int32]:
        """The bits of `count` elements of C, of `columns` of them at most. All loads are under way together."""
        dtype = self.plan.c.dtype
        return [element.load_bits_if(address, e * dtype.bytes, dtype, Boolean(e < columns)) for e in range(count)]

    def store_to_c(self, address: Int64, old: Sequence[Int32], sums: Sequence[Float32], columns: Int32) -> None:
        """Store old values and sums added, `columns` of them at most."""
        dtype = self.plan.c.dtype
        for e, (bits, more) in enumerate(zip(old, sums, strict=True)):
            value = element.float_of(bits, dtype) + more
            element.store_value(address + e * dtype.bytes, value, dtype, Boolean(e < columns))

    @cute.kernel
    def fold(self, c: Int64, ldc: Int64, stride_c: Int64, m: Int32, n: Int32, words: tuple) -> None:
        """Device side: adds the partial sums of an index of several chunks."""
        size = self.plan.c.dtype.bytes
        given, listed = self._begin(words, m, n)
        thread, _, _ = cute.arch.thread_idx()
        block, matrix, _ = cute.arch.block_idx()
        chunk, first = FOLD.place(block * FOLD.warps + bridge.uniform(thread // WARP), n, f32.bytes)
        lane, behind = thread % WARP, (chunk + 1) * CHUNK
        if behind < m:
            row = self._named(given, listed, behind, m)
            before = [self._named(given, listed, x, m) for x in (behind - 1, chunk * CHUNK, chunk * CHUNK - 1)]
            starts = (before[0] == row) & ((before[1] != row) | (before[2] != row))
            if (row >= 0) & starts:
                column = first + FOLD.element(lane, 0, f32.bytes)
                sums = self.sum_of_partials(given, listed, (chunk, row, m), (column, n, lane))
                target = c + (Int64(matrix) * stride_c + row * ldc + column) * size
                self.add_to_c(target, sums, n - column)

    @cute.jit
    def sum_of_partials(
        self, given: bridge.Carried, listed: SortedList, at: tuple[Int32, Int32, Int32],
        columns: tuple[Int32, Int32, Int32],
    ) -> tuple[Float32, ...]:  # fmt: skip
        """The sum of an index's partial sums, chunk after chunk."""
        (chunk, row, m), (column, n, lane) = at, columns
        pitch, inside = Int64(SUM.pitch(n, f32.bytes)) * f32.bytes, Boolean(column < n)
        start = listed.partials + Int64(column) * f32.bytes
        words_of = element.load_sixteen_bytes_if(start + Int64(2 * chunk + 1) * pitch, inside)
        sums = tuple(element.from_words(words_of, f32))
        first, more = chunk + 1, Int32(1)
        while more > 0:
            named = self._named(given, listed, (first + lane) * CHUNK, m)
            count = Int32(cute.arch.popc(Int32(cute.arch.vote_ballot_sync(named == row))))
            done = Int32(0)
            while done < count:
                parts: list[list[Float32]] = []
                for i in cutlass.range_constexpr(PARTIALS_AT_ONCE):
                    address = start + Int64(2 * (first + done + i)) * pitch
                    there = Boolean(inside & (done + i < count))
                    parts.append(element.from_words(element.load_sixteen_bytes_if(address, there), f32))
                for part in parts:
                    sums = tuple([x + y for x, y in zip(sums, part, strict=True)])
                done = done + PARTIALS_AT_ONCE
            first = first + WARP
            more = choose(count == WARP, 1, 0)
        return sums
