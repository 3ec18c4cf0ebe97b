"""Level 5: larger tiles of C, 128x128 and 128x256, by two consumer warpgroups.

    python kernels/hopper_05_large_tiles.py

Needs: dsl

Change: only the tile of C. Level 4's 64x128 tile reads 24 KiB of A and B per K tile for 2*64*128*64 FLOP, which is 43
FLOP per byte. L2 and shared memory cannot feed the tensor cores at that ratio. 128x128 has 64 FLOP per byte, 128x256
has 85. Two warpgroups compute 64 rows each of a 128-row tile and read the same B. Each has its own accumulator, 64 or
128 registers per thread. One warpgroup for both halves in turn would read B twice. One with both accumulators would
have no registers left. An SM holds one CTA, with as many stages as fit: six of 32 KiB or four of 48 KiB.

    role          who                         registers    does
    ----------    ------------------------    ---------    ----------------------------------------------------------
    producer      one thread of warpgroup 0       40       waits for empty[s], expects bytes at full[s], loads both
    consumer i    warpgroup 1 + i, i = 0, 1      232       rows 64i.. of the tile: waits for full[s], multiplies, frees
                                                           stage s - 1, stores C

    barrier     completed by                                               waited for by
    --------    -------------------------------------------------------    ------------------------------------------
    full[s]     the producer's arrive.expect_tx and its expected bytes     both consumers, 256 threads
    empty[s]    one arrival per consumer warp, 8                           the producer, except in its first round

Expected gain: at 128x256 half of level 4's traffic between L2 and shared memory, and wgmma's widest instruction.

Measured on an H200 at 8192^3: 128x128 522 TFLOP/s, 128x256 735, 0.65 and 0.91 of torch.mm; level 4 made 290.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from layoutgemm.atoms import wgmma
from layoutgemm.checks import ring
from layoutgemm.dtypes import f32
from layoutgemm.kernels.dsl import bridge
from layoutgemm.kernels.ladder import levels
from layoutgemm.report import Report
from layoutgemm.schedule import Linear

WARPGROUP = 128


class LargeTileKernel:
    """A producer and two consumer warpgroups per CTA, with 64 rows per consumer."""

    def __init__(self, tile_n: int, stages: int) -> None:
        self.consumers = 2
        self.mma = wgmma(tile_n, "bf16")
        self.rows = self.mma.shape_mnk[0]  # rows of the tile per consumer
        self.tile_m, self.tile_n, self.tile_k = self.rows * self.consumers, tile_n, 64
        self.stages = stages
        self.producer_registers, self.consumer_registers = 40, 232
        self.threads = (1 + self.consumers) * WARPGROUP
        # Each operand is a swizzled tile, its TMA load, and its descriptor.
        self.a = levels.operand("A", self.tile_m, self.tile_k, self.mma)
        self.b = levels.operand("B", self.tile_n, self.tile_k, self.mma)
        self.smem = levels.SharedMap.of(self.a.smem, self.b.smem, self.stages)
        self.stage_bytes = self.a.tma.bytes + self.b.tma.bytes
        self.schedule = Linear("N")
        # The pipeline model: barriers, arrive counts, and the proof.
        registers = (self.producer_registers, self.consumer_registers)
        self.pipeline = ring(stages, self.stage_bytes, consumers=self.consumers, lag=1, registers=registers)

    def check(self) -> Report:
        """Checks operands, fragment map, shared memory, registers, and the ring for any K."""
        return levels.wgmma_report(self.mma, self.a, self.b, self.smem, self.pipeline)

    @cute.jit
    def __call__(
        self, a: Int64, b: Int64, c: Int64, m: Int32, n: Int32, k: Int32,
        lda: Int64, ldb: Int64, ldc: Int64, stream: bridge.Stream,
    ) -> None:  # fmt: skip
        """Host side: encode the tensor maps, launch one CTA per tile of C."""
        extents = {"m": m, "n": n, "k": k}
        map_a = bridge.encode_tensor_map(self.a.tma, a, extents, lda)
        map_b = bridge.encode_tensor_map(self.b.tma, b, extents, ldb)
        blocks = levels.tiles(m, self.tile_m) * levels.tiles(n, self.tile_n)
        # setmaxnreg is ignored without a minimum number of CTAs.
        self.kernel(map_a, map_b, c, m, n, k, ldc).launch(
            grid=(blocks, 1, 1), block=(self.threads, 1, 1), smem=self.smem.total, stream=stream,
            min_blocks_per_mp=1,
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
        # 1. This CTA's tile of C, and this thread's role.
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        row, column = self.schedule.tile(block, (levels.tiles(m, self.tile_m), levels.tiles(n, self.tile_n)))
        m0, n0 = row * self.tile_m, column * self.tile_n
        k_tiles = levels.tiles(k, self.tile_k)
        warpgroup, warp = bridge.uniform(thread // WARPGROUP), bridge.uniform(thread // 32)

        # 2. Shared memory and mbarriers; one thread initialises them with the pipeline's arrive counts.
        shared = bridge.SharedMemory(self.smem)
        full, empty = self.pipeline.mbarrier("full").arrivals, self.pipeline.mbarrier("empty").arrivals
        if thread == 0:
            bridge.prefetch_map(map_a)
            bridge.prefetch_map(map_b)
            for s in cutlass.range_constexpr(self.stages):
                bridge.barrier_init(shared.full(s), full)
                bridge.barrier_init(shared.empty(s), empty)
            bridge.barriers_visible()
        bridge.block_sync()

        if warpgroup == 0:
            # 3. The producer: one thread fills the ring. Every stage is free in its first round: phase ^ 1.
            bridge.give_registers(self.producer_registers)
            if warp == 0:
                if bridge.elect():
                    stage, phase = Int32(0), Int32(0)
                    for k_tile in cutlass.range(k_tiles, unroll=1):
                        bridge.barrier_wait(shared.empty(stage), phase ^ 1)
                        bridge.barrier_expect(shared.full(stage), self.stage_bytes)
                        origin = {"m": m0, "n": n0, "k": k_tile * self.tile_k}
                        bridge.load_tile(map_a, self.a.tma, origin, shared.a(stage), shared.full(stage))
                        bridge.load_tile(map_b, self.b.tma, origin, shared.b(stage), shared.full(stage))
                        stage += 1
                        if stage == self.stages:
                            stage = Int32(0)
                            phase ^= 1
        else:
            # 4. The consumers: issue the wgmmas of stage s, wait for those of the previous stage, and release it. The
            #    tensor cores always have the next group.
            bridge.take_registers(self.consumer_registers)
            consumer = warpgroup - 1
            mma = bridge.Wgmma(self)
            accumulator = mma.accumulator()
            operand_a = bridge.WgmmaOperand(self.a.descriptor, shared.a(0), self.smem.a_stage_bytes, consumer)
            operand_b = bridge.WgmmaOperand(self.b.descriptor, shared.b(0), self.smem.b_stage_bytes)
            stage, phase, before = Int32(0), Int32(0), Int32(0)
            for k_tile in cutlass.range(k_tiles, unroll=1):
                stage = bridge.uniform(stage)
                bridge.barrier_wait(shared.full(stage), phase)
                mma.multiply_blocks([accumulator], operand_a, operand_b, stage, k_tile > 0)
                mma.wait(1)
                if k_tile > 0:
                    if bridge.elect():
                        bridge.barrier_arrive(shared.empty(before))
                before = stage
                stage += 1
                if stage == self.stages:
                    stage = Int32(0)
                    phase ^= 1
            mma.wait()
            if bridge.elect():
                bridge.barrier_arrive(shared.empty(before))

            # 5. Store the accumulator by the atom's fragment map: pairs are neighbours.
            aligned = (c | ldc * f32.bytes) % (2 * f32.bytes) == 0
            rows = m - m0 - self.rows * consumer
            for v in bridge.unrolled(self.mma.accumulator_registers // 2):
                i, j = self.mma.coords_C(thread % WARPGROUP, 2 * v)
                if i < rows:
                    address = c + (Int64(m0 + self.rows * consumer + i) * ldc + (n0 + j)) * f32.bytes
                    bridge.store_pair(address, accumulator[2 * v], accumulator[2 * v + 1], n - n0 - j, aligned)


LEVELS = (
    levels.Level(5, "128x128 tiles", LargeTileKernel(tile_n=128, stages=6), guide=360),
    levels.Level(5, "128x256 tiles", LargeTileKernel(tile_n=256, stages=4), guide=360),
)

if __name__ == "__main__":
    raise SystemExit(levels.main(LEVELS))
