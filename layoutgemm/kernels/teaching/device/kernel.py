"""C = A @ B on Hopper with one warpgroup a block. The first kernel of the ladder, written to be read and to be right.

Every layout, box, descriptor, byte count and arrive count is an attribute of the plan; this file holds the order in
which things happen and nothing else. One block computes one tile of C, 64 rows by the plan's N, in 128 threads:

    role            who                 does
    ------------    ----------------    -------------------------------------------------------------------------
    producer        thread 0            arms full[s] with plan.barrier.bytes, then issues the TMA loads of the stage
    consumer        all 128 threads     wait for full[s], issue the wgmmas of the stage, wait for them, meet in bar.sync
    store           all 128 threads     each its own registers, at plan.mma.coords_C(thread, value)

    barrier     kind        completed by                                               waited for by
    --------    --------    -------------------------------------------------------    ----------------------------
    full[s]     mbarrier    plan.barrier.arrivals arrivals, which is thread 0's        all 128 threads, by parity of
                            arrive.expect_tx, and plan.barrier.bytes bytes from TMA    the round through the stages
    bar.sync    named, 0    all 128 threads                                            all 128 threads

There is no empty[s] barrier: bar.sync does its work, because producer and consumers are the same warpgroup. The price
is that no k tile's wgmmas overlap another's; a producer warp of its own would buy that back.

One compile serves every M, N, K >= 1 and every leading dimension that TMA takes: all of them are run-time arguments.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from layoutgemm.kernels.dsl import bridge
from layoutgemm.kernels.plan import tile_count

from ..plan import TeachingPlan


class Sm90SingleKernel:
    """The kernel for one plan. What is reachable through `self.plan` is a compile-time constant of the trace."""

    def __init__(self, plan: TeachingPlan):
        self.plan = plan

    @cute.jit
    def __call__(
        self,
        a: Int64,
        b: Int64,
        c: Int64,
        m: Int32,
        n: Int32,
        k: Int32,
        lda: Int64,
        ldb: Int64,
        ldc: Int64,
        stream: bridge.Stream,
    ) -> None:
        """Host side: encode the two tensor maps, launch one block for each tile of C.

        a, b, c: global addresses of the first element; m, n, k: sizes in elements; lda, ldb, ldc: elements between
        consecutive rows (of a row-major matrix) or columns (of a column-major one). Asynchronous on `stream`.
        """
        plan = self.plan
        extents = {"m": m, "n": n, "k": k}
        map_a = bridge.encode_tensor_map(plan.a.tma, a, extents, lda)
        map_b = bridge.encode_tensor_map(plan.b.tma, b, extents, ldb)

        # A linear grid: gridDim.y ends at 65535, which 64-row tiles reach at M = 4194240; gridDim.x goes to 2**31 - 1.
        tile_m, tile_n, _ = plan.tile
        blocks = tile_count(m, tile_m) * tile_count(n, tile_n)
        self.kernel(map_a, map_b, c, m, n, k, ldc).launch(
            grid=(blocks, 1, 1), block=(plan.threads, 1, 1), smem=plan.smem.total, stream=stream
        )

    @cute.kernel
    def kernel(
        self,
        map_a: cutlass.GridConstant[bridge.TensorMap],
        map_b: cutlass.GridConstant[bridge.TensorMap],
        c: Int64,
        m: Int32,
        n: Int32,
        k: Int32,
        ldc: Int64,
    ) -> None:
        """Device side: one block, one tile of C."""
        plan = self.plan
        _, tile_n, tile_k = plan.tile

        # 1. Which tile of C this block owns. Consecutive blocks walk along a row of tiles, and share rows of A in L2.
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        m0, n0 = plan.tile_origin(block, tile_count(n, tile_n))
        k_tiles = tile_count(k, tile_k)

        # 2. Shared memory, and one barrier a stage. Thread 0 initialises them and fences its own writes; the bar.sync
        #    then lets no other thread touch a barrier that is not there yet.
        shared = bridge.SharedMemory(plan.smem)
        if thread == 0:
            bridge.init_barriers(shared.full, plan.stages, plan.barrier.arrivals)
        bridge.block_sync()

        # 3. Fill the stages: k tile s goes into stage s. There may be fewer k tiles than stages.
        if thread == 0:
            for s in cutlass.range_constexpr(plan.stages):
                if s < k_tiles:
                    self.load_stage(shared, map_a, map_b, m0, n0, s * tile_k, s)

        # 4. The main loop: k tile after k tile, stages in turn. A stage's parity flips each time the ring wraps.
        mma = bridge.Wgmma(plan)
        accumulator = mma.accumulator()
        stage, phase = Int32(0), Int32(0)
        for k_tile in cutlass.range(k_tiles, unroll=1):
            stage = cute.arch.make_warp_uniform(stage)
            bridge.barrier_wait(shared.full(stage), phase)
            # The first k tile starts the accumulator (D = A*B): no zero fill, and no read of uninitialised registers.
            mma.multiply(accumulator, shared.a(stage), shared.b(stage), k_tile > 0)
            mma.wait(0, accumulator)

            # 5. Refill the stage that was just read. `wait` tells a warp that ITS OWN wgmmas have finished, and each
            #    warp reads its 16 rows of A and all of B: thread 0's wait says nothing about the other three warps, and
            #    TMA would overwrite what they still read. All four meet here after their waits, so every read of the
            #    stage comes before the next write to it. Both are in the async proxy: no proxy fence is needed.
            bridge.block_sync()
            if thread == 0:
                if k_tile + plan.stages < k_tiles:
                    self.load_stage(shared, map_a, map_b, m0, n0, (k_tile + plan.stages) * tile_k, stage)
            stage += 1
            if stage == plan.stages:
                stage = Int32(0)
                phase ^= 1

        # 6. Store the fragment: the plan says which element of the tile each register holds. Guarded, as the last tiles
        #    of a ragged matrix hang over its edge; 64-bit addresses, as M*N may exceed 2**31. Written as `i < m - m0`
        #    rather than `m0 + i < m`, which overflows for M near 2**31.
        for v in bridge.unrolled(plan.mma.accumulator_registers):
            i, j = plan.mma.coords_C(thread, v)
            if i < m - m0 and j < n - n0:
                element = Int64(m0 + i) * ldc + (n0 + j)
                bridge.store_element(c + element * plan.c.dtype.bytes, accumulator[v], plan.c.dtype)

    def load_stage(
        self, shared: bridge.SharedMemory, map_a: bridge.TensorMap, map_b: bridge.TensorMap, m0: Int32, n0: Int32,
        k0: Int32 | int, stage: Int32 | int,
    ) -> None:  # fmt: skip
        """Arm full[stage] and issue the loads of both tiles. Called by thread 0 alone, when no warp reads the stage."""
        plan = self.plan
        origin = {"m": m0, "n": n0, "k": k0}
        full = shared.full(stage)
        # arrive.expect_tx is the phase's only arrival: the phase cannot complete before it has counted these bytes.
        bridge.barrier_expect(full, plan.barrier.bytes)
        bridge.load_tile(map_a, plan.a.tma, origin, shared.a(stage), full)
        bridge.load_tile(map_b, plan.b.tma, origin, shared.b(stage), full)
