"""The launch that adds the product's rows to those of C that their indices name. See `kernels.indexed.added_rows`.

step      a warp's lanes
------    -----------------------------------------------------------------------------------------------------------
look      each at one of 32 indices; a vote says which of them are the warp's row of C
add       for each of these, the lowest first: all lanes load its vectors of 16 bytes, and add them in f32
store     where any was found: C's elements are read, added to, and stored
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64

from ...atoms.copy.base import VECTOR_BYTES, WARP
from ..indexed.added_rows import SUM, AddingPlan
from ..indexed.rows import ADDED, OUT_ROWS
from ..plan import present, tile_count
from . import bridge
from . import math as element
from .tables import load_index


class AddedRowsKernel:
    """The sums of one plan's rows."""

    def __init__(self, plan: AddingPlan):
        self.plan = plan
        self.overlaps = "griddepcontrol" in plan.arch.features

    def workspace(self, sizes: Sequence[Int32], words: Mapping[str, Int64]) -> tuple[Int64, tuple[Int64, Int64]]:
        """Host side: the workspace's address, elements from row to row and from matrix to matrix; m, n are sizes."""
        m, n = sizes[0], sizes[1]
        pitch = Int64(SUM.pitch(n, self.plan.c.dtype.bytes))
        return words[ADDED], (pitch, pitch * m)

    def launch(
        self, c: tuple[Int64, Int64, Int64], sizes: Sequence[Int32], words: Mapping[str, Int64], stream: bridge.Stream
    ) -> None:
        """Host side. `c`: address, elements from row to row and from matrix to matrix."""
        m, n, _, batch = sizes
        matrices = batch if self.plan.matrices_of_c > 1 else Int32(1)
        rows = Int32(words["c_rows"])
        warps = rows * SUM.runs(n, self.plan.c.dtype.bytes)
        self.kernel(*c, m, n, tuple(words.values())).launch(
            grid=(tile_count(warps, SUM.warps), matrices, 1), block=(SUM.threads, 1, 1), use_pdl=self.overlaps,
            stream=stream,
        )  # fmt: skip

    @cute.kernel
    def kernel(self, c: Int64, ldc: Int64, stride_c: Int64, m: Int32, n: Int32, words: tuple) -> None:
        """Device side: a warp has a run of one row of C."""
        plan, size = self.plan, self.plan.c.dtype.bytes
        given = bridge.Carried(**dict(zip(plan.words, words, strict=True)))
        thread, _, _ = cute.arch.thread_idx()
        block, matrix, _ = cute.arch.block_idx()
        if cutlass.const_expr(self.overlaps):
            bridge.allow_next_kernel()
            bridge.wait_for_previous_kernel()
        row, first = SUM.place(block * SUM.warps + bridge.uniform(thread // WARP), n, size)
        lane = thread % WARP
        of_batch = matrix if cutlass.const_expr(plan.matrices_of_c > 1) else None
        address, (pitch, distance) = given.added_rows, self.workspace((m, n), {ADDED: given.added_rows})[1]
        if row < Int32(given.c_rows):
            columns = [first + SUM.element(lane, vector, size) for vector in range(SUM.vectors)]
            source = address + Int64(matrix) * distance * size
            target = c + (Int64(matrix) * stride_c + Int64(row) * ldc) * size
            job = bridge.Carried(given=given, m=m)
            self.add(job, source, pitch, target, (row, lane, n), tuple(columns), of_batch)

    @cute.jit
    def add(
        self, job: bridge.Carried, source: Int64, pitch: Int64, target: Int64, at: tuple[Int32, Int32, Int32],
        columns: tuple[Int32, ...], of_batch: Int32 | None,
    ) -> None:  # fmt: skip
        """Sum the rows that name this one, and add them to C's."""
        plan, dtype = self.plan, self.plan.c.dtype
        row, lane, n = at
        size, width = dtype.bytes, VECTOR_BYTES // dtype.bytes
        sums = tuple([Float32(0.0)] * (width * SUM.vectors))
        found = Int32(0)
        for first in cutlass.range(0, job.m, WARP, unroll=1):
            named = load_index(present(plan.indexed), job, OUT_ROWS, first + lane, job.m, of_batch)
            rows = Int32(cute.arch.vote_ballot_sync(named == Int64(row)))
            while rows != 0:
                lowest = rows & -rows
                number = first + Int32(cute.arch.popc(lowest - 1))
                line = source + Int64(number) * pitch * size
                more: list[Float32] = []
                for column in columns:
                    words = element.load_sixteen_bytes_if(line + Int64(column) * size, Boolean(column < n))
                    more += element.from_words(words, dtype)
                sums = tuple([x + y for x, y in zip(sums, more, strict=True)])
                rows = rows & (rows - 1)
                found = found + 1
        if found > 0:
            for number, column in enumerate(columns):
                for e in cutlass.range_constexpr(width):
                    place = target + Int64(column + e) * size
                    if column + e < n:
                        old = element.load_value(place, dtype)
                        element.store_value(place, old + sums[number * width + e], dtype, Boolean(True))
