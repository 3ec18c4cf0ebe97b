"""The launch that adds the product's rows to those of C that their indices name. See `kernels.indexed.added_rows`.

step      a warp's lanes
------    -----------------------------------------------------------------------------------------------------------
look      each at one of 32 indices; a vote says which of them are the warp's row of C. If one is before the warp's own
          index, another warp sums the row
add       for each of these, the lowest first: all lanes load its vectors of 16 bytes, and add them in f32. The loads of
          `AT_ONCE` rows are under way together
store     where any was found: C's elements are read, added to, and stored

Sorted indices are looked at from the one before the warp's own on, until one is of another row; others from the first
to the last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64

from ...atoms.copy.base import VECTOR_BYTES, WARP
from ..indexed.added_rows import ORDER_BYTES, SCANNED, SUM, AddingPlan, sorted_places
from ..indexed.rows import ADDED, OUT_ROWS
from ..plan import present, tile_count
from . import bridge
from . import math as element
from .tables import choose, load_index, load_long

AT_ONCE = 4  # rows whose vectors are loaded before the first is added


class AddedRowsKernel:
    """The sums of one plan's rows."""

    def __init__(self, plan: AddingPlan):
        self.plan = plan
        self.overlaps = "griddepcontrol" in plan.arch.features

    def workspace(self, sizes: Sequence[Int32], words: Mapping[str, Int64]) -> tuple[Int64, tuple[Int64, Int64]]:
        """Host side: the workspace's address, and elements from row to row and matrix to matrix. m, n are sizes."""
        m, n = sizes[0], sizes[1]
        pitch = Int64(SUM.pitch(n, self.plan.c.dtype.bytes))
        return words[ADDED], (pitch, pitch * m)

    def launch(
        self, c: tuple[Int64, Int64, Int64], sizes: Sequence[Int32], words: Mapping[str, Int64], stream: bridge.Stream
    ) -> None:
        """Host side. `c`: address, elements from row to row and from matrix to matrix."""
        m, n, _, batch = sizes
        matrices = batch if self.plan.matrices_of_c > 1 else Int32(1)
        warps = m * SUM.runs(n, self.plan.c.dtype.bytes)
        self.kernel(*c, m, n, tuple(words.values())).launch(
            grid=(tile_count(warps, SUM.warps), matrices, 1), block=(SUM.threads, 1, 1), use_pdl=self.overlaps,
            stream=stream,
        )  # fmt: skip

    @cute.kernel
    def kernel(self, c: Int64, ldc: Int64, stride_c: Int64, m: Int32, n: Int32, words: tuple) -> None:
        """Device side: adds one run of a row of C. A warp has an index's place, and a run of the row of C that it
        names."""
        plan, size = self.plan, self.plan.c.dtype.bytes
        given = bridge.Carried(**dict(zip(plan.words, words, strict=True)))
        thread, _, _ = cute.arch.thread_idx()
        block, matrix, _ = cute.arch.block_idx()
        _, matrices, _ = cute.arch.grid_dim()
        if cutlass.const_expr(self.overlaps):
            bridge.allow_next_kernel()
            bridge.wait_for_previous_kernel()
        place, first = SUM.place(block * SUM.warps + bridge.uniform(thread // WARP), n, size)
        lane = thread % WARP
        of_batch = matrix if cutlass.const_expr(plan.matrices_of_c > 1) else None
        address, (pitch, distance) = given.added_rows, self.workspace((m, n), {ADDED: given.added_rows})[1]
        if place < m:
            columns = [first + SUM.element(lane, vector, size) for vector in range(SUM.vectors)]
            order, names = sorted_places(plan, (Int64(matrices), Int64(m), Int64(n)))
            listed = Int64(cutlass.select_(Boolean(m > SCANNED), address + names, Int64(given.out_rows)))
            job = bridge.Carried(
                given=bridge.Carried(out_rows=listed, c_rows=given.c_rows), m=m, c=c, ldc=ldc, stride_c=stride_c,
                order=address + order + Int64(matrix) * Int64(m) * ORDER_BYTES, source=address, pitch=pitch,
                distance=distance,
            )  # fmt: skip
            self.add(job, (matrix, place, lane, n), tuple(columns), of_batch)

    @cute.jit
    def add(
        self, job: bridge.Carried, at: tuple[Int32, Int32, Int32, Int32], columns: tuple[Int32, ...],
        of_batch: Int32 | None,
    ) -> None:  # fmt: skip
        """Sum the rows that name this warp's, and add them to C's."""
        plan, dtype = self.plan, self.plan.c.dtype
        matrix, place, lane, n = at
        size, width, m = dtype.bytes, VECTOR_BYTES // dtype.bytes, job.m
        indexed, is_sorted = present(plan.indexed), m > SCANNED
        row = load_index(indexed, job, OUT_ROWS, place, m, of_batch)
        source = job.source + Int64(matrix) * job.distance * size
        sums = tuple([Float32(0.0)] * (width * SUM.vectors))
        found, first = Int32(0), choose(is_sorted, cutlass.max(place - 1, 0), 0)
        end = choose(row >= 0, m, 0)
        while first < end:
            number = first + lane
            named = load_index(indexed, job, OUT_ROWS, number, m, of_batch)
            rows = Int32(cute.arch.vote_ballot_sync(named == row))
            if cute.arch.vote_any_sync((named == row) & (number < place)):
                rows, end = Int32(0), Int32(0)
            if is_sorted:
                number = Int32(load_long(job.order + Int64(cutlass.min(number, m - 1)) * ORDER_BYTES))
                end = choose(rows < 0, end, 0)  # of the last lane's index
            while rows != 0:
                more: list[list[Float32]] = []
                for _ in cutlass.range_constexpr(AT_ONCE):
                    lowest = rows & -rows
                    line = cute.arch.shuffle_sync(number, cute.arch.popc(lowest - 1) % WARP)
                    vectors = source + Int64(line) * job.pitch * size
                    values: list[Float32] = []
                    for column in columns:
                        inside = Boolean((lowest != 0) & (column < n))
                        words = element.load_sixteen_bytes_if(vectors + Int64(column) * size, inside)
                        values += element.from_words(words, dtype)
                    more.append(values)
                    rows = rows & (rows - 1)
                for values in more:
                    sums = tuple([x + y for x, y in zip(sums, values, strict=True)])
                found = Int32(1)
            first = first + WARP
        if found > 0:
            target = job.c + (Int64(matrix) * job.stride_c + row * job.ldc) * size
            for number, column in enumerate(columns):
                for e in cutlass.range_constexpr(width):
                    at_c = target + Int64(column + e) * size
                    if column + e < n:
                        old = element.load_value(at_c, dtype)
                        element.store_value(at_c, old + sums[number * width + e], dtype, Boolean(True))
