"""Level 12: self-loading consumers without a producer, and a 256x224 tile.

    python kernels/hopper_12_self_loading.py

Needs: dsl

Change against level 11: no producer and no setmaxnreg. A CTA has two warpgroups, 256 threads with up to 255 registers
each; with a producer the maximum is 240. A warpgroup computes 128 rows of the 256x224 tile, by two wgmmas of m64n224
that read the same B, with 224 accumulator registers per thread.

The first warp of the second warpgroup also loads. Once the previous K tile has been read, it releases and refills that
stage. Its load position runs ahead of the MMAs, into the next output tile. Three stages are enough.

The last K tile is multiplied in blocks of 64 rows, one wgmma group each, so that the first block is stored during the
second block's MMAs. A warp stores its own 16 rows without a barrier. C's pitch is as in levels 9 to 11.

    ring of 3, self-loading, 2 consumers, cluster 2x1, the last 1 k tile(s) by block: 8 warps, in each of 2 CTAs
      math0        4 warps     wgmma, loads
      math1        4 warps     TMA, wgmma, loads
      a            TMA: math1 -> math0, math1, 3 stages
        full       1 arrival: math1 expecting 61440 bytes; lands 61440 = math1 a 32768 + math1 b 14336 * 2
        empty      16 arrivals: math0 4 warps in 2 CTAs + math1 4 warps in 2 CTAs; waited for by math1
      b            TMA multicast: math1 -> math0, math1, 3 stages

Each warp's stores are a pipeline of 8 rounds per tile, of 16 rows by 64 or 32 columns, through 2 buffers.

Expected gain: a 256x224 K tile loads 60 KiB for 3.7 million multiply-adds, a 128x256 one 48 KiB for 2.1 million. That
is over a quarter less traffic and less energy, which limits the clock. Four tiles, with four epilogues, do the work of
seven, and part of each epilogue overlaps MMAs.

Measured on an H200 at 8192^3: 856 TFLOP/s, 1.06 of torch.mm; level 11 made 820.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from layoutgemm.atoms import wgmma
from layoutgemm.checks import check_pipeline, matrix_access, registers
from layoutgemm.dtypes import bf16
from layoutgemm.kernels.derive import Operand
from layoutgemm.kernels.dsl import bridge
from layoutgemm.kernels.ladder import level_checks, levels
from layoutgemm.kernels.sm90.pipeline_model import HopperPipeline
from layoutgemm.kernels.store import StorePlan
from layoutgemm.kernels.store_ring import StoreRing
from layoutgemm.report import Report
from layoutgemm.schedule import Grouped, Persistent


class SelfLoadingKernel:
    """Two CTAs per cluster, one cluster per two SMs. Two warpgroups load, multiply and store."""

    def __init__(self, workers: int = 66) -> None:
        self.tile_m, self.tile_n, self.tile_k = 256, 224, 64
        self.stages, self.consumers, self.buffers = 3, 2, 2
        self.mma = wgmma(self.tile_n, "bf16")
        self.blocks = self.tile_m // self.consumers // self.mma.shape_mnk[0]  # of 64 rows, of one warpgroup
        self.a = levels.operand("A", self.tile_m, self.tile_k, self.mma)
        self.b = levels.operand("B", self.tile_n, self.tile_k, self.mma, multicast=2)
        # A warp stores its 16 rows 64 columns at a time, the last 32: boxes, registers and stmatrix addresses.
        self.store = StorePlan.derive(self.mma, self.blocks, Operand(bf16), chunks=1, buffers=self.buffers)
        self.rounds = [self.store.rounds_of(block, 0) for block in range(self.blocks)]  # (number, round) of each
        self.wide, self.narrow = self.store.maps
        self.c = self.store.rounds[0].chunks[0].tile
        warps = self.consumers * self.mma.threads // 32
        self.loader = warps - warps // self.consumers  # the first warp of the last warpgroup
        self.smem = levels.SharedMap.of(self.a.smem, self.b.smem, self.stages, self.c, warps * self.buffers)
        self.schedule = Persistent(Grouped("M", group=8), workers, cluster=(2, 1))
        rounds = [[(i % self.buffers, self.store.pending(i)) for i, _ in of_block] for of_block in self.rounds]
        *self.short, self.pipeline, self.output = HopperPipeline(
            self.stages, (self.a.tma.sent_bytes, self.b.tma.sent_bytes), cluster=self.schedule.cluster,
            consumers=self.consumers, blocks=self.blocks, staged_epilogue_k_tiles=1,
            store=StoreRing(self.store.warps, self.buffers, tuple(map(tuple, rounds))),
        ).cases()  # fmt: skip

    def check(self) -> Report:
        """Checks operands, fragments, budgets, the output, the ring for any sizes, and the tile order."""
        held = {"accumulators": self.blocks * self.mma.accumulator_registers, "descriptors, places, counters": 20}
        more = [registers(levels.ARCH, self.pipeline.threads, held), level_checks.every_tile_once(self.schedule)]
        for copies, (_, round_) in zip((self.wide, self.narrow), (self.rounds[0][0], self.rounds[0][-1])):
            tile = round_.chunks[0].tile
            more += level_checks.output_checks(tile, copies, matrix_access(tile.extent, bf16, "K", "stmatrix"))
        more += map(check_pipeline, (*self.short, self.output))
        return levels.wgmma_report(self.mma, self.a, self.b, self.smem, self.pipeline, *more)

    @cute.jit
    def __call__(
        self, a: Int64, b: Int64, c: Int64, m: Int32, n: Int32, k: Int32,
        lda: Int64, ldb: Int64, ldc: Int64, stream: bridge.Stream,
    ) -> None:  # fmt: skip
        """Host side: encode the tensor maps, launch the resident clusters, or fewer for few tiles."""
        extents = {"m": m, "n": n, "k": k}
        map_a = bridge.encode_tensor_map(self.a.tma, a, extents, lda)
        map_b = bridge.encode_tensor_map(self.b.tma, b, extents, ldb)
        map_wide = bridge.encode_tensor_map(self.wide, c, extents, ldc)
        map_narrow = bridge.encode_tensor_map(self.narrow, c, extents, ldc)
        rows, columns = self.schedule.clusters((levels.tiles(m, self.tile_m), levels.tiles(n, self.tile_n)))
        blocks = cutlass.min(rows * columns, self.schedule.workers) * self.pipeline.cluster
        self.kernel(map_a, map_b, map_wide, map_narrow, m, n, k).launch(
            grid=(blocks, 1, 1), block=(self.pipeline.threads, 1, 1), cluster=(self.pipeline.cluster, 1, 1),
            smem=self.smem.total, stream=stream, min_blocks_per_mp=1,
        )  # fmt: skip

    @cute.kernel
    def kernel(
        self, map_a: cutlass.GridConstant[bridge.TensorMap], map_b: cutlass.GridConstant[bridge.TensorMap],
        map_wide: cutlass.GridConstant[bridge.TensorMap], map_narrow: cutlass.GridConstant[bridge.TensorMap],
        m: Int32, n: Int32, k: Int32,
    ) -> None:  # fmt: skip
        """Device side: each CTA loops over its tiles of C."""
        # 1. Thread, role, and number of tiles.
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        warp, consumer, lane = bridge.uniform(thread // 32), bridge.uniform(thread // 128), thread % 32
        tile, rank = block // self.pipeline.cluster, bridge.rank_in_cluster()
        grid = levels.tiles(m, self.tile_m), levels.tiles(n, self.tile_n)
        rows, columns = self.schedule.clusters(grid)
        tiles, k_tiles = rows * columns, levels.tiles(k, self.tile_k)
        shared = bridge.SharedMemory(self.smem)
        job = bridge.Carried(shared=shared, warp=warp, lane=lane, rank=rank, grid=grid, tiles=tiles, k_tiles=k_tiles)
        loads, stores = (map_a, map_b), (map_wide, map_narrow)
        # 2. mbarriers, initialised once. A cluster barrier comes before any arrival from the other CTA.
        if thread == 0:
            for s in cutlass.range_constexpr(self.stages):
                bridge.barrier_init(shared.full(s), self.pipeline.mbarrier("full").arrivals)
                bridge.barrier_init(shared.empty(s), self.pipeline.mbarrier("empty").arrivals)
            bridge.barriers_visible()
            for each in (*loads, *stores):
                bridge.prefetch_map(each)
        bridge.cluster_arrive(relaxed=True)
        bridge.cluster_wait()

        # 3. All stages are free. `ahead` is the load position: tile, its first row and column, K tile, stage, phase.
        m0, n0 = self.origin(job, tile)
        ahead = (tile, bridge.uniform(m0), bridge.uniform(n0), Int32(0), Int32(0), Int32(0))
        for _ in cutlass.range(self.stages, unroll=1):
            ahead = self.load_next(job, loads, ahead)
        mma = bridge.Wgmma(self)
        accumulators = [mma.accumulator() for _ in range(self.blocks)]
        operand_a = bridge.WgmmaOperand(self.a.descriptor, shared.a(0), self.smem.a_stage_bytes, consumer * self.blocks)
        operand_b = bridge.WgmmaOperand(self.b.descriptor, shared.b(0), self.smem.b_stage_bytes)
        stage, phase = Int32(0), Int32(0)
        while tile < tiles:
            m0, n0 = self.origin(job, tile)
            # 4. All K tiles but the last: one group in flight. The previous group's stage is released and refilled.
            behind = stage
            for k_tile in cutlass.range(k_tiles - 1, unroll=1):
                stage = bridge.uniform(stage)
                bridge.barrier_wait(shared.full(stage), phase)
                mma.multiply_blocks(accumulators, operand_a, operand_b, stage, k_tile > 0)
                mma.wait(1)
                if k_tile > 0:
                    ahead = self.release(job, loads, behind, ahead)
                behind = stage
                stage += 1
                if stage == self.stages:
                    stage = Int32(0)
                    phase ^= 1

            # 5. The last K tile: one group per block of rows.
            stage = bridge.uniform(stage)
            bridge.barrier_wait(shared.full(stage), phase)
            for which in cutlass.range_constexpr(self.blocks):
                mma.multiply_block(accumulators[which], operand_a, operand_b, stage, which, 0, k_tiles > 1)
                if cutlass.const_expr(which == 0):
                    mma.wait(1)
                    if k_tiles > 1:
                        ahead = self.release(job, loads, behind, ahead)
            behind = stage
            stage += 1
            if stage == self.stages:
                stage = Int32(0)
                phase ^= 1

            # 6. Store block by block, during the MMAs of the following blocks. After the last MMA the last stage is
            #    free, and is refilled before its block is stored.
            for which in cutlass.range_constexpr(self.blocks):
                mma.wait(self.blocks - 1 - which)
                if cutlass.const_expr(which == self.blocks - 1):
                    ahead = self.release(job, loads, behind, ahead)
                row = m0 + (consumer * self.blocks + which) * self.mma.shape_mnk[0]
                self.store_rows(job, stores, accumulators[which], which, row, n0)
            tile += self.schedule.workers
        bridge.wait_stores_read(0)
        # 7. Do not exit while the other CTA may still arrive at this CTA's mbarriers or send it a tile.
        bridge.cluster_arrive()
        bridge.cluster_wait()

    def origin(self, job: Any, tile: Any) -> tuple[Any, Any]:
        """First row and column of this CTA's part of the cluster's tile."""
        row, column = self.schedule.tile(tile, 0, job.rank, job.grid, cutlass.min)
        return row * self.tile_m, column * self.tile_n

    @cute.jit
    def load_next(self, job: Any, maps: Any, ahead: Any) -> Any:
        """Loads the next K tile, if any, into the next stage, and advances."""
        tile, m0, n0, k_tile, stage, phase = ahead
        if job.warp == self.loader:
            if tile < job.tiles:
                bridge.barrier_wait(job.shared.empty(stage), phase ^ 1)
                if bridge.elect():
                    full, origin = job.shared.full(stage), {"m": m0, "n": n0, "k": k_tile * self.tile_k}
                    bridge.barrier_expect(full, self.pipeline.mbarrier("full").bytes)
                    bridge.load_tile(maps[0], self.a.tma, origin, job.shared.a(stage), full)
                    # Each CTA loads one half of B and multicasts it to both.
                    everyone = bridge.cluster_mask(self.pipeline.cluster, 0, 1)
                    bridge.load_share(maps[1], self.b.tma, origin, job.shared.b(stage), full, job.rank, everyone)
                stage += 1
                if stage == self.stages:
                    stage = Int32(0)
                    phase ^= 1
                k_tile += 1
                if k_tile == job.k_tiles:
                    k_tile = Int32(0)
                    tile += self.schedule.workers
                    m0, n0 = self.origin(job, tile)
        return tile, m0, n0, k_tile, stage, phase

    @cute.jit
    def release(self, job: Any, maps: Any, stage: Any, ahead: Any) -> Any:
        """Releases a stage in both CTAs, which both multicast into it. Then issues the next load."""
        if job.lane < self.pipeline.cluster:
            bridge.barrier_arrive_at(job.shared.empty(stage), job.lane)
        return self.load_next(job, maps, ahead)

    @cute.jit
    def store_rows(self, job: Any, maps: Any, accumulator: Any, block: int, m0: Any, n0: Any) -> None:
        """Rounds a warp's 16 rows, moves them to a buffer by stmatrix, stores it by TMA."""
        for number, round_ in self.rounds[block]:
            (chunk,) = round_.chunks
            values = range(chunk.first_value, chunk.first_value + chunk.values, 2)
            pairs = [bridge.convert_pair(accumulator[v], accumulator[v + 1], bf16) for v in values]
            buffer = job.shared.c(job.warp * self.buffers + number % self.buffers)
            # The lane that issued this buffer's store waits until TMA has read it, and releases the warp.
            if job.lane == 0:
                bridge.wait_stores_read(self.store.pending(number))
            bridge.warp_sync()
            for i in bridge.unrolled(len(pairs) // chunk.matrices):
                four = pairs[i * chunk.matrices : (i + 1) * chunk.matrices]
                bridge.store_matrices(buffer + chunk.rows((job.lane, (i, 0))) * bf16.bytes, four)
            # Every writer fences its writes, all pass a barrier, and only then one thread issues the TMA store.
            bridge.shared_writes_visible()
            bridge.warp_sync()
            if job.lane == 0:
                place = {"m": m0 + job.warp % 4 * self.c.extent[0], "n": n0 + chunk.column}
                bridge.store_tile(maps[chunk.map], self.store.maps[chunk.map], place, buffer)
                bridge.commit_stores()


LEVELS = (levels.Level(12, "self-loading 256x224", SelfLoadingKernel(), guide=None, c=bf16),)

if __name__ == "__main__":
    raise SystemExit(levels.main(LEVELS))
