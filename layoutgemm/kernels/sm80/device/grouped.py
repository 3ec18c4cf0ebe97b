"""The mma.sync kernels of groups of rows, masked groups, and groups along K. See `sm80.groups`.

A thread reads where its group begins and ends before the first copy: of groups of rows by bisection, from global
memory. All else is the kernel of one matrix, whose rows, or whose K, end with the group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr

from ...dsl import bridge
from ...dsl.reductions import launch_finish
from ...dsl.tables import choose, group_entry, load_first
from ...plan import present, tile_count
from ..groups import border, launched_rows, rows_of_tile
from ..quantized.experts import expert_bytes
from .fused import Sm80FusedKernel
from .gemm import Sm80GemmKernel
from .indexed import Sm80IndexedKernel
from .prologue import Sm80PrologueKernel
from .quantized import Sm80QuantizedKernel


class GroupedTiles(Sm80GemmKernel):
    """The tiles of groups, in place of a grid for each matrix."""

    @cute.jit
    def start(
        self, matrices: Sequence[Int64], sizes: Sequence[Int32], pitches: Mapping[str, tuple[Int64, Int64]],
        workers: Int32 | None, words: Sequence[Int64], stream: bridge.Stream,
    ) -> None:  # fmt: skip
        """Host side: a block for each tile, or number of one. `sizes` has the groups as the batch."""
        m, n, _, groups = sizes
        pitch, stride = ([pitches[name][i] for name in "abc"] for i in range(2))
        blocks = self.plan.order.count(self.grid_of_tiles(tuple(sizes)), cutlass.min)
        grid = (blocks, 1, groups if const_expr(self.plan.matrices_of_c > 1) else 1)
        self.grouped_kernel(*matrices, *sizes, *pitch, *stride, tuple(words)).launch(
            grid=grid, stream=stream, **self.launch_options()
        )
        launch_finish(self.plan, words, (m, n, groups), stream)

    @cute.kernel
    def grouped_kernel(
        self, a: Int64, b: Int64, c: Int64, m: Int32, n: Int32, k: Int32, groups: Int32, lda: Int64, ldb: Int64,
        ldc: Int64, stride_a: Int64, stride_b: Int64, stride_c: Int64, words: tuple,
    ) -> None:  # fmt: skip
        """Device side: one block, one tile of a group."""
        plan = self.plan
        _, _, matrix = cute.arch.block_idx()
        if const_expr(plan.matrices_of_c > 1):
            c += Int64(matrix) * stride_c * plan.c.dtype.bytes
        if const_expr(plan.along_k is not None):
            first, end = [self.line(matrix + i, groups, k, words) for i in range(2)]
            a += Int64(first) * lda * plan.a.dtype.bytes
            b += Int64(first) * ldb * plan.b.dtype.bytes
            k = cutlass.max(end - first, 0)
        elif const_expr(plan.matrices_of_c > 1):
            a += Int64(matrix) * stride_a * plan.a.dtype.bytes
            b += Int64(matrix) * stride_b * plan.b.dtype.bytes
        self.compute_tile((a, b, c), (m, n, k, groups, stride_b), (lda, ldb, ldc), words)

    def line(self, group: Int32, groups: Int32, k: Int32, words: tuple[Int64, ...]) -> Int32:
        """The first line of K of a group."""
        of = present(self.plan.along_k)
        found = load_first(self.given(words)[of.name], group, groups, of.offset_bytes, of.ends)
        return cutlass.max(cutlass.min(found, k), 0)

    def grid_of_tiles(self, sizes: tuple[Int32, ...]) -> tuple[Int32, Int32]:
        """Tiles along M, or their numbers, those without rows among them; and tiles along N."""
        return launched_rows(self.plan, sizes[0], sizes[3], tile_count), tile_count(sizes[1], self.plan.tile_c[1])

    def place_of_rows(
        self, row: Int32, sizes: tuple[Int32, ...], matrix: Int32, b: Int64, words: tuple[Int64, ...]
    ) -> tuple[Int32, Int32, Int32, Int32, Int64]:
        """(first row, end of rows, K, group, its B) of a tile. No K without rows, so that nothing is loaded."""
        plan, height, (m, n, k, count, stride) = self.plan, self.plan.tile_c[0], sizes
        if plan.along_k is not None:
            return row * height, m, k, matrix, b
        of = present(plan.ragged or plan.experts)
        address, joined = self.given(words)[of.name], plan.numbers_tiles
        most = m // count if of.masked and joined else m

        def entry(group: Int32) -> Int32:
            """A group's first row, or the rows that count, inside of A."""
            return cutlass.max(cutlass.min(group_entry(of, address, group, count, most), most), 0)

        if not joined:
            start, end = row * height, entry(matrix)
        else:
            matrix, start, end = rows_of_tile(of, entry, row, height, choose, most)
            matrix = cutlass.min(matrix, count - 1)
            b += Int64(matrix) * self.bytes_of_b(n, k, stride)
        start, end = border(start, end, choose)
        return start, end, choose(start < end, k, 0), matrix, b

    def bytes_of_b(self, n: Int32, k: Int32, stride: Int64) -> Int64:
        """Bytes from a group's B to the next one's."""
        return stride * self.plan.b.dtype.bytes


class Sm80PlainGroups(GroupedTiles, Sm80FusedKernel):
    """Groups of rows or along K, with an epilogue, several B and a second pair."""


class Sm80IndexedGroups(GroupedTiles, Sm80IndexedKernel):
    """Groups of rows that are gathered, or scattered."""


class Sm80PrologueGroups(GroupedTiles, Sm80PrologueKernel):
    """Groups of rows with a function of A's elements."""


class Sm80ExpertsGroups(GroupedTiles, Sm80QuantizedKernel):
    """Groups of rows, each times packed weights of its own expert."""

    def bytes_of_b(self, n: Int32, k: Int32, stride: Int64) -> Int64:
        """Bytes of an expert's packed weights."""
        return Int64(expert_bytes(self.plan, n, k))
