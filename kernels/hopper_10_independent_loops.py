"""Level 10: independent loops for producer and consumers.

    python kernels/hopper_10_independent_loops.py

Needs: dsl

Change against level 9: no barrier after each tile. The producer continues with the next tile and fills the ring with
its first four K tiles while the consumers store the previous tile. The ring alone synchronises them: a full stage
cannot be loaded, an empty one cannot be multiplied. Both loops compute the same tile order. As in level 9, the kernel
owns C's pitch up to the next 16 bytes.

    cluster 2x1, ring of 4: 12 warps, in each of 2 CTAs
      producer     4 warps     TMA, 40 registers
      math         8 warps     wgmma, stores, TMA store, 232 registers
      a            TMA: producer -> math, 4 stages
        full       1 arrival: producer expecting 49152 bytes; lands 49152 = producer a 16384 + producer b 16384 * 2
        empty      16 arrivals: math 8 warps in 2 CTAs; waited for by producer
      b            TMA multicast: producer -> math, 4 stages
      c0           stores: math -> math, 1 stage
      store0       bar.sync: 256 threads = math 256

A published guide treats the first round as a special case (`if stage == 0 and phase > 0 ...`). A wait for the previous
parity passes on a fresh mbarrier and needs no case.

Expected gain: the latency of each tile's first loads, one or two microseconds of 80, since the ring is full when the
MMAs begin. The epilogue itself is not yet overlapped.

Measured on an H200 at 8192^3: 814 TFLOP/s, 1.01 of torch.mm; level 9 made 807.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from layoutgemm import Layout
from layoutgemm.atoms import smem_tile, wgmma
from layoutgemm.atoms.tma.derive import derive as tensor_copies
from layoutgemm.checks import cluster_ring, register_check, thread_access
from layoutgemm.dtypes import bf16
from layoutgemm.kernels.dsl import bridge
from layoutgemm.kernels.ladder import level_checks, levels
from layoutgemm.report import Report
from layoutgemm.schedule import Grouped, Persistent

FIRST_CONSUMER = 4  # the first warp of warpgroup 1, which issues the stores


class IndependentKernel:
    """Two CTAs per cluster, one cluster per two SMs: a producer and two consumer warpgroups."""

    def __init__(self, workers: int = 66) -> None:
        self.tile_m, self.tile_n, self.tile_k = 128, 256, 64
        self.stages, self.registers = 4, (40, 232)
        self.mma = wgmma(self.tile_n, "bf16")
        self.a = levels.operand("A", self.tile_m, self.tile_k, self.mma)
        self.b = levels.operand("B", self.tile_n, self.tile_k, self.mma, multicast=2)
        # The output is stored 64 columns at a time: an n256 accumulator is four of n64.
        self.part = wgmma(64, "bf16")
        self.c = smem_tile((self.tile_m, self.part.shape_mnk[1]), bf16, "K")
        self.store = tensor_copies(self.c, ("n", "m"), "store")
        self.parts = self.tile_n // self.c.extent[1]
        self.smem = levels.SharedMap.of(self.a.smem, self.b.smem, self.stages, self.c, 1)
        self.schedule = Persistent(Grouped("M", group=8), workers, cluster=(2, 1))
        self.pipeline = cluster_ring(
            self.stages, self.a.tma.bytes, self.b.tma.bytes, self.schedule.cluster, warps=8, lag=1,
            persistent=True, store=(1, self.parts), registers=self.registers, tail="sync",
        )  # fmt: skip

    def check(self) -> Report:
        """Checks operands, fragments, budgets, the output, the ring for any sizes, and the tile order."""
        # Addresses of each thread's pairs in the rows of one warpgroup; the other's are 64 rows below.
        pairs = thread_access(Layout((64, 64), (1, self.tile_m)).compose(self.part.layout_C), 2, "st.shared")
        return levels.wgmma_report(
            self.mma, self.a, self.b, self.smem, self.pipeline,
            register_check(self.pipeline),
            level_checks.every_tile_once(self.schedule),
            *level_checks.output_checks(self.c, self.store, pairs),
        )  # fmt: skip

    @cute.jit
    def __call__(
        self, a: Int64, b: Int64, c: Int64, m: Int32, n: Int32, k: Int32,
        lda: Int64, ldb: Int64, ldc: Int64, stream: bridge.Stream,
    ) -> None:  # fmt: skip
        """Host side: encode three tensor maps, launch the resident clusters, or fewer for few tiles."""
        extents = {"m": m, "n": n, "k": k}
        map_a = bridge.encode_tensor_map(self.a.tma, a, extents, lda)
        map_b = bridge.encode_tensor_map(self.b.tma, b, extents, ldb)
        map_c = bridge.encode_tensor_map(self.store, c, extents, ldc)
        rows, columns = self.schedule.clusters((levels.tiles(m, self.tile_m), levels.tiles(n, self.tile_n)))
        blocks = cutlass.min(rows * columns, self.schedule.workers) * self.pipeline.cluster
        self.kernel(map_a, map_b, map_c, m, n, k).launch(
            grid=(blocks, 1, 1), block=(self.pipeline.threads, 1, 1), cluster=(self.pipeline.cluster, 1, 1),
            smem=self.smem.total, stream=stream, min_blocks_per_mp=1,
        )  # fmt: skip

    @cute.kernel
    def kernel(
        self,
        map_a: cutlass.GridConstant[bridge.TensorMap],
        map_b: cutlass.GridConstant[bridge.TensorMap],
        map_c: cutlass.GridConstant[bridge.TensorMap],
        m: Int32,
        n: Int32,
        k: Int32,
    ) -> None:
        """Device side: each CTA loops over its tiles of C."""
        # 1. Thread, role, and number of tiles.
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        warp, warpgroup, lane = bridge.uniform(thread // 32), bridge.uniform(thread // 128), thread % 32
        blocks = self.pipeline.cluster
        worker, rank = block // blocks, bridge.rank_in_cluster()
        grid = levels.tiles(m, self.tile_m), levels.tiles(n, self.tile_n)
        rows, columns = self.schedule.clusters(grid)
        clusters, k_tiles = rows * columns, levels.tiles(k, self.tile_k)

        # 2. mbarriers, initialised once. A cluster barrier comes before any arrival from the other CTA.
        shared = bridge.SharedMemory(self.smem)
        if thread == 0:
            for s in cutlass.range_constexpr(self.stages):
                bridge.barrier_init(shared.full(s), self.pipeline.mbarrier("full").arrivals)
                bridge.barrier_init(shared.empty(s), self.pipeline.mbarrier("empty").arrivals)
            bridge.barriers_visible()
            for each in (map_a, map_b, map_c):
                bridge.prefetch_map(each)
        bridge.cluster_arrive(relaxed=True)
        bridge.cluster_wait()

        step, stage, phase = Int32(0), Int32(0), Int32(0)
        if warpgroup == 0:
            # 3. Producer: one thread fills the ring ahead of the MMAs, into the next tile too.
            bridge.give_registers(self.registers[0])
            if warp == 0:
                if bridge.elect():
                    while worker + self.schedule.workers * step < clusters:
                        row, column = self.schedule.tile(worker, step, rank, grid, cutlass.min)
                        m0, n0 = row * self.tile_m, column * self.tile_n
                        for k_tile in cutlass.range(k_tiles, unroll=1):
                            full, origin = shared.full(stage), {"m": m0, "n": n0, "k": k_tile * self.tile_k}
                            bridge.barrier_wait(shared.empty(stage), phase ^ 1)
                            bridge.barrier_expect(full, self.pipeline.mbarrier("full").bytes)
                            bridge.load_tile(map_a, self.a.tma, origin, shared.a(stage), full)
                            # Each CTA loads one half of B and multicasts it to both.
                            everyone = bridge.cluster_mask(blocks, 0, 1)
                            bridge.load_share(map_b, self.b.tma, origin, shared.b(stage), full, rank, everyone)
                            stage += 1
                            if stage == self.stages:
                                stage = Int32(0)
                                phase ^= 1
                        step += 1
        else:
            # 4. Consumers: each warpgroup computes 64 rows of the tile.
            bridge.take_registers(self.registers[1])
            consumer, consumers = warpgroup - 1, self.pipeline.named_barrier("store0").threads
            met = self.pipeline.barrier_number("store0")
            mma = bridge.Wgmma(self)
            operand_a = bridge.WgmmaOperand(self.a.descriptor, shared.a(0), self.smem.a_stage_bytes, consumer)
            operand_b = bridge.WgmmaOperand(self.b.descriptor, shared.b(0), self.smem.b_stage_bytes)
            accumulator = mma.accumulator()
            while worker + self.schedule.workers * step < clusters:
                row, column = self.schedule.tile(worker, step, rank, grid, cutlass.min)
                m0, n0 = row * self.tile_m, column * self.tile_n
                behind = stage
                for k_tile in cutlass.range(k_tiles, unroll=1):
                    stage = bridge.uniform(stage)
                    bridge.barrier_wait(shared.full(stage), phase)
                    mma.multiply_blocks([accumulator], operand_a, operand_b, stage, k_tile > 0)
                    # One group stays in flight. The previous group has read its stage: arrive in both CTAs.
                    mma.wait(1)
                    if k_tile > 0:
                        if lane < blocks:
                            bridge.barrier_arrive_at(shared.empty(behind), lane)
                    behind = stage
                    stage += 1
                    if stage == self.stages:
                        stage = Int32(0)
                        phase ^= 1
                mma.wait()
                if lane < blocks:
                    bridge.barrier_arrive_at(shared.empty(behind), lane)

                # 5. The store, 64 columns at a time through one buffer. It is free when the previous store has read it:
                #    the issuing warp waits for that, and releases the others at the barrier.
                for part in cutlass.range_constexpr(self.parts):
                    if warp == FIRST_CONSUMER:
                        bridge.wait_stores_read(0)
                    bridge.named_sync(met, consumers)
                    for v in range(0, self.part.accumulator_registers, 2):
                        i, j = self.part.coords_C(thread % self.mma.threads, v)
                        register = part * self.part.accumulator_registers + v
                        pair = bridge.convert_pair(accumulator[register], accumulator[register + 1], bf16)
                        place = self.c.byte(consumer * self.mma.shape_mnk[0] + i, j)
                        bridge.store_shared(shared.c(0).toint() + place, [pair])
                    # Every writer fences its writes, all pass a barrier, and only then one thread issues the TMA store.
                    bridge.shared_writes_visible()
                    bridge.named_sync(met, consumers)
                    if warp == FIRST_CONSUMER:
                        if bridge.elect():
                            origin = {"m": m0, "n": n0 + part * self.c.extent[1]}
                            bridge.store_tile(map_c, self.store, origin, shared.c(0))
                        bridge.commit_stores()
                step += 1
            bridge.wait_stores_read(0)

        # 6. Do not exit while the other CTA may still arrive at this CTA's mbarriers or send it a tile.
        bridge.cluster_arrive()
        bridge.cluster_wait()


LEVELS = (levels.Level(10, "producer and consumers on loops of their own", IndependentKernel(), guide=583, c=bf16),)

if __name__ == "__main__":
    raise SystemExit(levels.main(LEVELS))
