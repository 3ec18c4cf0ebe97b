"""Level 6: two CTAs of a cluster share B by multicast.

    python kernels/hopper_06_multicast.py

Needs: dsl

Change against level 5: two CTAs, one above the other in C, form a cluster and need the same tile of B. The first CTA
loads B once, and TMA multicast writes it to the shared memory of both at the same address. Each CTA counts its arriving
bytes at its own mbarrier, and loads its own A. A stage is free when all its readers have released it. So the first CTA
waits for the warps of both CTAs, the second for its own. Each consumer arrives at both.

    cluster 2x1, ring of 4: 12 warps, in each of 2 CTAs
      producer     4 warps     TMA, 40 registers
      math0        4 warps     wgmma, 232 registers
      math1        4 warps     wgmma, 232 registers
      a            TMA: producer -> math0, math1, 4 stages
        full       1 arrival: producer expecting 49152 bytes; lands 49152 = producer a 16384 + producer b 32768
        empty      16 arrivals (8 in CTA 1): math0 4 warps in 2 CTAs + math1 4 warps in 2 CTAs; waited for by producer
      b            TMA multicast: producer -> math0, math1, 4 stages

A published guide lets both CTAs send B to both, which doubles the arriving bytes. Its consumers release the other CTA's
stage but not their own. The table's arrive counts come from the pipeline model, which is proven free of deadlocks and
races for every number of K tiles. No proof holds for the guide's two variants.

Expected gain: a third less traffic from L2, 64 KiB per K tile for two CTAs instead of 96. Little time, since level 5 is
not bound by L2, and each CTA can now be at most one ring ahead of the other.

Measured on an H200 at 8192^3: 749 TFLOP/s, 0.93 of torch.mm; level 5 made 735.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from layoutgemm.atoms import wgmma
from layoutgemm.checks import cluster_ring, register_check
from layoutgemm.dtypes import f32
from layoutgemm.kernels.dsl import bridge
from layoutgemm.kernels.ladder import level_checks, levels
from layoutgemm.report import Report
from layoutgemm.schedule import Linear


class MulticastKernel:
    """Two CTAs per cluster, a tile of C each: a producer and two consumer warpgroups."""

    def __init__(self) -> None:
        self.tile_m, self.tile_n, self.tile_k = 128, 256, 64
        self.stages, self.registers = 4, (40, 232)
        self.mma = wgmma(self.tile_n, "bf16")
        self.a = levels.operand("A", self.tile_m, self.tile_k, self.mma)
        self.b = levels.operand("B", self.tile_n, self.tile_k, self.mma)
        self.smem = levels.SharedMap.of(self.a.smem, self.b.smem, self.stages)
        self.schedule, self.cluster = Linear("N"), (2, 1)
        self.pipeline = cluster_ring(
            self.stages, self.a.tma.bytes, self.b.tma.bytes, self.cluster, consumers=2, lag=1,
            senders="first", registers=self.registers, tail="sync",
        )  # fmt: skip

    def check(self) -> Report:
        """Checks operands, fragments, budgets, the ring for any sizes, and the tile order."""
        return levels.wgmma_report(
            self.mma, self.a, self.b, self.smem, self.pipeline,
            register_check(self.pipeline),
            level_checks.every_tile_once(self.schedule),
        )  # fmt: skip

    @cute.jit
    def __call__(
        self, a: Int64, b: Int64, c: Int64, m: Int32, n: Int32, k: Int32,
        lda: Int64, ldb: Int64, ldc: Int64, stream: bridge.Stream,
    ) -> None:  # fmt: skip
        """Host side: encodes two tensor maps and launches the clusters. One cluster of two CTAs is for two tiles of
        C."""
        extents = {"m": m, "n": n, "k": k}
        map_a = bridge.encode_tensor_map(self.a.tma, a, extents, lda)
        map_b = bridge.encode_tensor_map(self.b.tma, b, extents, ldb)
        rows, columns = levels.tiles(m, self.tile_m * self.cluster[0]), levels.tiles(n, self.tile_n)
        blocks = rows * columns * self.pipeline.cluster
        self.kernel(map_a, map_b, c, m, n, k, ldc).launch(
            grid=(blocks, 1, 1), block=(self.pipeline.threads, 1, 1), cluster=(self.pipeline.cluster, 1, 1),
            smem=self.smem.total, stream=stream, min_blocks_per_mp=1,
        )  # fmt: skip

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
        """Device side: one CTA, one tile of C."""
        # 1. Thread, role and tile: the cluster's tiles are neighbours along M.
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        warp, warpgroup, lane = bridge.uniform(thread // 32), bridge.uniform(thread // 128), thread % 32
        blocks = self.pipeline.cluster
        rank, k_tiles = bridge.rank_in_cluster(), levels.tiles(k, self.tile_k)
        clusters = levels.tiles(m, self.tile_m * self.cluster[0]), levels.tiles(n, self.tile_n)
        row, column = self.schedule.tile(block // blocks, clusters)
        m0, n0 = (row * self.cluster[0] + rank) * self.tile_m, column * self.tile_n

        # 2. mbarriers. A cluster barrier comes before any arrival or tile from the other CTA.
        shared = bridge.SharedMemory(self.smem)
        if thread == 0:
            for s in cutlass.range_constexpr(self.stages):
                bridge.barrier_init(shared.full(s), self.pipeline.mbarrier("full").arrivals)
                # Rank 0 waits for both CTAs, since it writes to both; rank 1 for its own.
                for r in cutlass.range_constexpr(blocks):
                    if rank == r:
                        bridge.barrier_init(shared.empty(s), self.pipeline.mbarrier("empty").count_of(r))
            bridge.barriers_visible()
            for each in (map_a, map_b):
                bridge.prefetch_map(each)
        bridge.cluster_arrive(relaxed=True)
        bridge.cluster_wait()

        stage, phase = Int32(0), Int32(0)
        if warpgroup == 0:
            # 3. Producer: one thread fills the ring ahead of the MMAs.
            bridge.give_registers(self.registers[0])
            if warp == 0:
                if bridge.elect():
                    for k_tile in cutlass.range(k_tiles, unroll=1):
                        full, origin = shared.full(stage), {"m": m0, "n": n0, "k": k_tile * self.tile_k}
                        bridge.barrier_wait(shared.empty(stage), phase ^ 1)
                        bridge.barrier_expect(full, self.pipeline.mbarrier("full").bytes)
                        bridge.load_tile(map_a, self.a.tma, origin, shared.a(stage), full)
                        # The cluster's first CTA loads B for both. Bytes may precede the other CTA's expect_tx:
                        # its phase cannot end without that arrival.
                        if rank == 0:
                            everyone = bridge.cluster_mask(blocks, 0, 1)
                            bridge.send_tile(map_b, self.b.tma, origin, shared.b(stage), full, everyone)
                        stage += 1
                        if stage == self.stages:
                            stage = Int32(0)
                            phase ^= 1
        else:
            # 4. Consumers: each warpgroup computes 64 rows of the tile.
            bridge.take_registers(self.registers[1])
            consumer = warpgroup - 1
            mma = bridge.Wgmma(self)
            operand_a = bridge.WgmmaOperand(self.a.descriptor, shared.a(0), self.smem.a_stage_bytes, consumer)
            operand_b = bridge.WgmmaOperand(self.b.descriptor, shared.b(0), self.smem.b_stage_bytes)
            accumulator = mma.accumulator()
            behind = stage
            for k_tile in cutlass.range(k_tiles, unroll=1):
                stage = bridge.uniform(stage)
                bridge.barrier_wait(shared.full(stage), phase)
                mma.multiply_blocks([accumulator], operand_a, operand_b, stage, k_tile > 0)
                # One group stays in flight. The previous group has read its stage: arrive in this CTA and CTA 0.
                mma.wait(1)
                if k_tile > 0:
                    if lane <= rank:
                        bridge.barrier_arrive_at(shared.empty(behind), lane)
                behind = stage
                stage += 1
                if stage == self.stages:
                    stage = Int32(0)
                    phase ^= 1
            mma.wait()
            if lane <= rank:
                bridge.barrier_arrive_at(shared.empty(behind), lane)

            # 5. Store the accumulator by the atom's fragment map; pairs are neighbours.
            aligned = (c | ldc * f32.bytes) % (2 * f32.bytes) == 0
            for v in bridge.unrolled(self.mma.accumulator_registers // 2):
                row_in_tile, j = self.mma.coords_C(thread % self.mma.threads, 2 * v)
                i = consumer * self.mma.shape_mnk[0] + row_in_tile
                if i < m - m0:
                    address = c + (Int64(m0 + i) * ldc + (n0 + j)) * f32.bytes
                    bridge.store_pair(address, accumulator[2 * v], accumulator[2 * v + 1], n - n0 - j, aligned)

        # 6. Do not exit while the other CTA may still arrive at this CTA's mbarriers or send it a tile.
        bridge.cluster_arrive()
        bridge.cluster_wait()


LEVELS = (levels.Level(6, "cluster multicast", MulticastKernel(), guide=344),)

if __name__ == "__main__":
    raise SystemExit(levels.main(LEVELS))
