"""C = A @ B by mma.sync, persistent. A block takes tile after tile, and its copies run on into the next one.

As the kernel of one tile, tile by tile. While a tile of C is stored, the first K tiles of the next one are in flight,
and the ring starts once for all tiles. C's buffers lie beside the stages. The ring does not know of tiles: it carries
the k tiles of all tiles of a block, one after another.

    role    who          does
    ----    ---------    ---------------------------------------------------------------------------------------------
    all     all warps    as in `device.gemm`; a cursor, stages - 1 k tiles ahead, names the tile of the copies' rows

Barriers are as in `device.gemm`, and a bar.warp.sync before a tile is stored: the last one's buffers have been read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr

from ...dsl import bridge
from ...dsl.entry import GemmEntry
from ...dsl.reductions import launch_finish
from ...dsl.tables import reads_of
from ...plan import tile_count
from .gemm import Copies, Loads, Sm80GemmKernel, keep, next_stage


class Sm80PersistentKernel(GemmEntry, Sm80GemmKernel):
    """The kernel for one plan of one product."""

    @cute.jit
    def start(
        self, matrices: Sequence[Int64], sizes: Sequence[Int32], pitches: Mapping[str, tuple[Int64, Int64]],
        workers: Int32 | None, words: Sequence[Int64], stream: bridge.Stream,
    ) -> None:  # fmt: skip
        """Host side: launch at most `workers` blocks; the batch is one matrix. See `TileEntry.start`."""
        plan = self.plan
        m, n, k, batch = sizes
        across = tile_count(m, plan.tile_c[0]), tile_count(n, plan.tile_c[1])
        blocks = cutlass.min(plan.order.count(across, cutlass.min, reads_of(plan.order, plan.words, words)), workers)
        self.persistent_kernel(*matrices, m, n, k, *[pitches[name][0] for name in "abc"], tuple(words)).launch(
            grid=(blocks, 1, 1), stream=stream, **self.launch_options()
        )
        launch_finish(plan, words, (m, n, batch), stream)

    @cute.kernel
    def persistent_kernel(
        self, a: Int64, b: Int64, c: Int64, m: Int32, n: Int32, k: Int32, lda: Int64, ldb: Int64, ldc: Int64,
        words: tuple,
    ) -> None:  # fmt: skip
        """Device side: one block of a persistent grid."""
        plan = self.plan
        thread, _, _ = cute.arch.thread_idx()
        tile, _, _ = cute.arch.block_idx()
        workers, _, _ = cute.arch.grid_dim()
        lane, warp = thread % 32, bridge.uniform(thread // 32)
        warp_m, warp_n = plan.warp_place(warp)
        grid = (tile_count(m, plan.tile_c[0]), tile_count(n, plan.tile_c[1]))
        tiles = plan.order.count(grid, cutlass.min, reads_of(plan.order, plan.words, words))
        k_tiles = tile_count(k, plan.tile[2])
        pitch = plan.smem.a_stage_bytes

        # 1. Where the threads copy from and to, where the lanes read.
        m0, n0 = self.corner(tile, grid, words)
        shared = bridge.SharedMemory(plan.smem).base
        copy_a = self.copies_of_a(thread, a, lda, m0, m, k, words)
        copy_b = self.copies_of_b(thread, b, ldb, (n0, Int32(0)), n, k, words)
        load_a = Loads(plan.a, plan.smem.a_offset, lane, warp_m)
        load_b = Loads(plan.b, plan.smem.b_offset, lane, warp_n)

        # 2. Fill all stages but one. The cursor: tile, K left in it, bytes along K of A and B.
        ahead = (tile, k, Int64(0), Int64(0))
        for s in cutlass.range_constexpr(plan.stages - 1):
            copy_a.issue(shared + s * pitch, ahead[2], ahead[1])
            copy_b.issue(shared + s * pitch, ahead[3], ahead[1])
            bridge.commit_copies()
            copy_a, copy_b, ahead = self.step_on(copy_a, copy_b, ahead, workers, tiles, grid, k, words)

        # 3. Tile after tile. `held_a` and `held_b` carry the first fragments of a k tile, also into the next tile.
        sums, held_a, held_b = self.registers()
        if const_expr(plan.config.ahead):
            self.meet()
            keep(held_a, load_a.fragments(shared, 0))
            keep(held_b, load_b.fragments(shared, 0))
        read, write = Int32(0), Int32((plan.stages - 1) * pitch)
        while tile < tiles:
            sums.fill(0)
            for _ in cutlass.range(k_tiles, unroll=1):
                if const_expr(not plan.config.ahead):
                    self.meet()
                place = shared + write
                copies = copy_a.work(place, ahead[2], ahead[1]) + copy_b.work(place, ahead[3], ahead[1])
                read = self.multiply_k_tile((sums, held_a, held_b), (load_a, load_b), copies, shared, read)
                write = next_stage(write, pitch, plan.stages)
                copy_a, copy_b, ahead = self.step_on(copy_a, copy_b, ahead, workers, tiles, grid, k, words)
            # 4. C, through the warp's own buffers, while copies of the next tile land.
            m0, n0 = self.corner(tile, grid, words)
            corner = m0 + warp_m * plan.a.warp_extent, n0 + warp_n * plan.warp_columns
            bridge.warp_sync()
            self.store(sums, shared, (warp, lane), c, ldc, (m, n, k), (*corner, Int32(0), m), words)
            tile += workers
        bridge.wait_copies(0)

    def corner(self, tile: Int32, grid: tuple[Int32, Int32], words: tuple[Int64, ...]) -> tuple[Int32, Int32]:
        """First row and column of a tile of C. `words` are the launch's, for an order that reads some."""
        order = self.plan.order
        row, column = order.tile(tile, grid, cutlass.min, reads_of(order, self.plan.words, words))
        return row * self.plan.tile_c[0], column * self.plan.tile_c[1]

    @cute.jit
    def step_on(
        self, copy_a: Copies, copy_b: Copies, ahead: tuple[Int32, Int32, Int64, Int64], workers: Int32, tiles: Int32,
        grid: tuple[Int32, Int32], k: Int32, words: tuple[Int64, ...],
    ) -> tuple[Copies, Copies, tuple[Int32, Int32, Int64, Int64]]:  # fmt: skip
        """The cursor's next k tile. Behind the last one of a tile, the first one of the block's next tile.

        Behind the last tile nothing of K is left: copies are zeros.
        """
        tile, left, offset_a, offset_b = ahead
        left, offset_a, offset_b = left - self.plan.tile[2], offset_a + copy_a.step, offset_b + copy_b.step
        if left <= 0:
            tile += workers
            left = Int32(0)
            if tile < tiles:
                left = k
                offset_a, offset_b = Int64(0), Int64(0)
                m0, n0 = self.corner(tile, grid, words)
                copy_a = copy_a.moved(m0)
                copy_b = copy_b.moved(n0)
        return copy_a, copy_b, (tile, left, offset_a, offset_b)
