"""A's chosen rows, copied to a workspace before the product. See `kernels.sm90.indexed.row_copy`.

step        a warp's lanes
--------    ---------------------------------------------------------------------------------------------------------
index       read the row's index; zeros are copied for one outside of A
load        all vectors of 16 bytes of a run of the row
store       the same to the workspace; elements one by one where a row ends within a vector, or is not aligned to 16
            bytes

The kernel lets the product's begin at once, and reads nothing before the kernel before it has ended. The product waits
for the copy's end where it is launched early, too (`griddepcontrol.wait`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64

from ....atoms.copy.base import VECTOR_BYTES
from ...dsl import bridge
from ...dsl.ampere import load_element, store_part, store_vector
from ...dsl.math import load_sixteen_bytes_if
from ...dsl.tables import choose, load_index, load_word
from ...indexed.row_copy import COPIED, RowCopy
from ...indexed.rows import ROWS
from ...plan import present, tile_count
from ..plan import Sm90Plan


class RowCopyKernel:
    """The copy of a plan's rows."""

    def __init__(self, plan: Sm90Plan):
        self.plan = plan
        self.copy: RowCopy = present(plan.indexed).row_copy

    def launch(
        self, a: tuple[Int64, Int64, Int64], sizes: Sequence[Int32], words: Mapping[str, Int64], stream: bridge.Stream
    ) -> tuple[Int64, tuple[Int64, Int64]]:
        """Host side. Returns the workspace's address, and its elements from row to row and from matrix to matrix.

        a  address, elements from row to row and from matrix to matrix
        """
        m, _, k, batch = sizes
        size = self.plan.a.dtype.bytes
        matrices = Int32(1) if self.plan.joined_rows else batch
        warps = m * matrices * self.copy.runs(k, size)
        self.kernel(*a, m, k, matrices, tuple(words.values())).launch(
            grid=(tile_count(warps, self.copy.warps), 1, 1),
            block=(self.copy.threads, 1, 1),
            use_pdl=True,
            stream=stream,
        )
        pitch = Int64(self.copy.pitch(k, size))
        return words[COPIED], (pitch, pitch * m)

    @cute.kernel
    def kernel(self, a: Int64, lda: Int64, stride_a: Int64, m: Int32, k: Int32, matrices: Int32, words: tuple) -> None:
        """Device side: a warp copies a run of one row."""
        plan, copy, size = self.plan, self.copy, self.plan.a.dtype.bytes
        given = bridge.Carried(**dict(zip(plan.words, words, strict=True)))
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        bridge.allow_next_kernel()
        bridge.wait_for_previous_kernel()
        line, first = copy.place(block * copy.warps + bridge.uniform(thread // 32), k, size)
        lane = thread % 32
        matrix = line // m
        if self.counts(given, line, matrix, m, matrices):
            job = bridge.Carried(given=given, m=m * matrices)
            row = load_index(present(plan.indexed), job, ROWS, line, m * matrices)
            aligned = (a | lda * size | stride_a * size) % VECTOR_BYTES == 0
            element = first + copy.element(lane, 0, size)
            source = a + (Int64(matrix) * stride_a + cutlass.max(row, Int64(0)) * lda + element) * size
            target = given.copied_rows + (Int64(line) * copy.pitch(k, size) + element) * size
            left = k - element
            self.copy_run(source, target, left, row >= 0, aligned)

    def counts(self, given: bridge.Carried, line: Int32, matrix: Int32, m: Int32, matrices: Int32) -> Boolean:
        """True for a row of the product; of masked groups, for one that counts."""
        inside = line < m * matrices
        ragged = self.plan.ragged
        if ragged is None or not ragged.masked:
            return inside
        address = getattr(given, ragged.name) + Int64(cutlass.min(matrix, matrices - 1)) * ragged.offset_bytes
        return inside & (line - matrix * m < load_word(address))

    @cute.jit
    def copy_run(self, source: Int64, target: Int64, left: Int32, inside: Boolean, aligned: Boolean) -> None:
        """Copy a lane's vectors, of which the first begins `left` elements before the row's end."""
        size = self.plan.a.dtype.bytes
        width = VECTOR_BYTES // size
        steps = [self.copy.element(0, vector, size) for vector in range(self.copy.vectors)]
        loaded = [
            load_sixteen_bytes_if(source + step * size, inside & aligned & (left - step >= width)) for step in steps
        ]
        for step, words in zip(steps, loaded, strict=True):
            if left > step:
                store_vector(target + step * size, words)
        for step in cutlass.range_constexpr(self.copy.vectors):
            rest = left - steps[step]
            pieces = choose(inside & ((rest < width) | (aligned == False)), rest, 0)  # noqa: E712
            if pieces > 0:
                for e in cutlass.range_constexpr(width):
                    at = (steps[step] + e) * size
                    if e < pieces:
                        word = load_element(source + at, Boolean(True), 8 * size)
                        store_part(target + at, word, 0, 8 * size)
