"""C = A @ B by mma.sync, fed by tensor copies. The Ampere kernel for architectures with TMA and no wgmma (RTX 50).

The same tiles, fragment loads, products and store as `device.gemm`; what differs is who copies. One thread issues the
tensor copies of a k tile, no thread holds addresses of global memory, and a stage's mbarrier says that it has landed.

    role      who          does
    ------    ---------    -------------------------------------------------------------------------------------------
    loader    thread 0     arms full[s] and issues the copies of the k tile that is stages - 1 ahead
    all       all warps    load the next depth's fragments, multiply this depth's; before a k tile's last products: wait
                           for the next one, meet, and take its first fragments

    barrier    kind              completed by                                       waited for by
    -------    --------------    -----------------------------------------------    ----------------------------------
    full[s]    mbarrier          one arrival, and plan.full_bytes of the copies     all threads
    block      bar.sync          all threads                                        the same, once a k tile: the stage
                                                                                    before is free
    warp       bar.warp.sync     a warp's 32 threads                                the same, once a round of the store
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr

from ...dsl import bridge
from ...dsl.reductions import launch_finish
from ...dsl.tables import reads_of
from ...plan import present, tile_count
from .gemm import Loads, Sm80GemmKernel, keep


class Sm120GemmKernel(Sm80GemmKernel):
    """The kernel for one plan whose operands have tensor copies."""

    @cute.jit
    def start(
        self, matrices: Sequence[Int64], sizes: Sequence[Int32], pitches: Mapping[str, tuple[Int64, Int64]],
        workers: Int32 | None, words: Sequence[Int64], stream: bridge.Stream,
    ) -> None:  # fmt: skip
        """Host side: encode the tensor maps, launch a block for each tile of C. See `TileEntry.start`."""
        plan = self.plan
        a, b, c = matrices
        m, n, k, batch = sizes
        extents = {"m": m, "n": n, "k": k, "l": batch}
        used = 2 if plan.batch > 1 else 1
        map_a = bridge.encode_tensor_map(present(plan.a.tma), a, extents, *pitches["a"][:used])
        map_b = bridge.encode_tensor_map(present(plan.b.tma), b, extents, *pitches["b"][:used])
        grid_of_tiles = tile_count(m, plan.tile[0]), tile_count(n, plan.tile[1])
        blocks = plan.order.count(grid_of_tiles, cutlass.min, reads_of(plan.order, plan.words, words))
        self.tensor_kernel(map_a, map_b, c, m, n, k, *pitches["c"], tuple(words)).launch(
            grid=(blocks, 1, batch if const_expr(plan.batch > 1) else 1), stream=stream, **self.launch_options()
        )
        launch_finish(plan, words, (m, n, batch), stream)

    @cute.kernel
    def tensor_kernel(
        self,
        map_a: cutlass.GridConstant[bridge.TensorMap],
        map_b: cutlass.GridConstant[bridge.TensorMap],
        c: Int64,
        m: Int32,
        n: Int32,
        k: Int32,
        ldc: Int64,
        stride_c: Int64,
        words: tuple,
    ) -> None:
        """Device side: one block, one tile of C."""
        plan = self.plan
        thread, _, _ = cute.arch.thread_idx()
        block, _, matrix = cute.arch.block_idx()
        lane, warp = thread % 32, bridge.uniform(thread // 32)
        warp_m, warp_n = plan.warp_place(warp)
        if const_expr(plan.batch > 1):
            c += Int64(matrix) * stride_c * plan.c.dtype.bytes

        # 1. Barriers, once; the tile of C that this block owns; where its lanes read.
        shared = bridge.SharedMemory(plan.smem)
        if thread == 0:
            for tensor_map in (map_a, map_b):
                bridge.prefetch_map(tensor_map)
            bridge.init_barriers(shared.full, plan.stages, 1)
        bridge.block_sync()
        grid = tile_count(m, plan.tile[0]), tile_count(n, plan.tile[1])
        row, column = plan.order.tile(block, grid, cutlass.min, reads_of(plan.order, plan.words, words))
        origin = row * plan.tile[0], column * plan.tile[1], matrix
        load_a = Loads(plan.a, plan.smem.a_offset, lane, warp_m)
        load_b = Loads(plan.b, plan.smem.b_offset, lane, warp_n)
        k_tiles = tile_count(k, plan.tile[2])
        maps = (map_a, map_b)

        # 2. Fill all stages but one.
        for s in cutlass.range_constexpr(plan.stages - 1):
            if thread == 0 and s < k_tiles:
                self.load(maps, shared, origin, s, s)

        # 3. The main loop. `held_a` and `held_b` carry the first fragments of a k tile into it.
        sums, held_a, held_b = self.registers()
        sums.fill(0)
        if const_expr(plan.config.ahead):
            bridge.barrier_wait(shared.full(0), 0)
            keep(held_a, load_a.fragments(shared.base, 0))
            keep(held_b, load_b.fragments(shared.base, 0))
        stage, write, parity = Int32(0), Int32(plan.stages - 1), Int32(0)
        for k_tile in cutlass.range(k_tiles, unroll=1):
            if const_expr(not plan.config.ahead):
                bridge.barrier_wait(shared.full(stage), parity)
                bridge.block_sync()
            ahead = k_tile + plan.stages - 1
            if thread == 0 and ahead < k_tiles:
                self.load(maps, shared, origin, ahead, write)
            parity, stage = self.multiply_landed(
                (sums, held_a, held_b), (load_a, load_b), shared, (stage, parity), (k_tile, k_tiles)
            )
            write = cutlass.select_(write + 1 == plan.stages, Int32(0), write + 1)

        # 4. C, through the stages' memory: all copies have landed and been read.
        bridge.block_sync()
        corner = origin[0] + warp_m * plan.a.warp_extent, origin[1] + warp_n * plan.b.warp_extent
        self.store(sums, shared.base, (warp, lane), c, ldc, (m, n, k), (*corner, matrix, m), words)

    def multiply_landed(
        self, registers: tuple[cute.Tensor, ...], loads: Sequence[Loads], shared: bridge.SharedMemory,
        at: tuple[Int32, Int32], place: tuple[Int32, Int32],
    ) -> tuple[Int32, Int32]:  # fmt: skip
        """All products of one K tile; gives the next one's parity and stage.

        registers  accumulators, fragments of A and B, as `registers` makes them
        loads      of A and B
        at         stage and parity of the K tile
        place      number of the K tile, and of all K tiles
        """
        plan, (sums, *held), (stage, parity) = self.plan, registers, at
        totals = [sums[i] for i in bridge.unrolled(sums.shape)]
        fragments = [[of[i] for i in range(of.shape)] for of in held]
        for step in range(plan.steps):
            first = shared.base + stage * plan.smem.a_stage_bytes
            if not plan.config.ahead:
                fragments = [load.fragments(first, step) for load in loads]
            now = fragments
            if step == plan.steps - 1:  # after the last K tile wait for its own stage again, which is not multiplied
                more = place[0] + 1 < place[1]
                following = cutlass.select_(stage + 1 == plan.stages, Int32(0), stage + 1)
                parity = cutlass.select_(more, parity ^ Int32(following == 0), parity)
                stage = cutlass.select_(more, following, stage)
            if plan.config.ahead:
                if step == plan.steps - 1:
                    bridge.barrier_wait(shared.full(stage), parity)
                    bridge.block_sync()
                first, depth = shared.base + stage * plan.smem.a_stage_bytes, (step + 1) % plan.steps
                fragments = [load.fragments(first, depth) for load in loads]
            self.multiply(totals, now, [], step)
        if plan.config.ahead:
            for of, values in zip(held, fragments, strict=True):
                keep(of, values)
        keep(sums, totals)
        return parity, stage

    def load(
        self, maps: bridge.Maps, shared: bridge.SharedMemory, origin: bridge.Place, k_tile: Int32 | int,
        stage: Int32 | int,
    ) -> None:  # fmt: skip
        """Arm full[stage] and issue the copies of one k tile. Called by one thread."""
        plan = self.plan
        m0, n0, matrix = origin
        place = {"m": m0, "n": n0, "k": k_tile * plan.tile[2], "l": matrix}
        full = shared.full(stage)
        bridge.barrier_expect(full, plan.full_bytes)
        bridge.load_tile(maps[0], present(plan.a.tma), place, shared.a(stage), full)
        bridge.load_tile(maps[1], present(plan.b.tma), place, shared.b(stage), full)
