"""Level 4: warp specialisation, a producer and a consumer warpgroup.

    python kernels/hopper_04_warp_specialised.py

Needs: dsl

Change: two roles. In level 3 one warpgroup loads and multiplies, so it must finish its wgmma and pass a barrier before
it refills a stage. Here a producer warpgroup only loads, and a consumer warpgroup only multiplies. They synchronise by
two mbarriers per stage, full[s] and empty[s], in a ring of four stages. The consumer keeps one wgmma group in flight
and releases the previous stage. setmaxnreg moves registers from the producer to the consumer. The tile is level 3's,
64x128 per CTA, with two CTAs per SM.

    role        who                         registers    does
    --------    ------------------------    ---------    ------------------------------------------------------------
    producer    one thread of warpgroup 0      40        waits for empty[s], expects bytes at full[s], loads both
    consumer    warpgroup 1                    216       waits for full[s], multiplies, frees stage s - 1, stores C

    barrier     completed by                                               waited for by
    --------    -------------------------------------------------------    ------------------------------------------
    full[s]     the producer's arrive.expect_tx and its expected bytes     the consumer's 128 threads
    empty[s]    one arrival per consumer warp, 4                           the producer, except in its first round

The producer first waits for parity phase ^ 1, which a fresh mbarrier counts as completed. The phase flips where the
ring wraps. A loop that ignores either rule deadlocks, or overwrites tiles that wgmma reads.

Expected gain: no CTA barrier in the loop, and back-to-back wgmmas.

Measured on an H200 at 8192^3: 290 TFLOP/s, 0.36 of torch.mm; level 3 made 295. docs/ladder.md explains it: "Why levels
2 to 4 gain nothing".
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from layoutgemm.atoms import wgmma
from layoutgemm.checks import ring, role_registers
from layoutgemm.dtypes import f32
from layoutgemm.kernels.dsl import bridge
from layoutgemm.kernels.ladder import levels
from layoutgemm.report import Report
from layoutgemm.schedule import Linear

WARPGROUP = 128


class WarpSpecialisedKernel:
    """A producer and a consumer warpgroup per CTA, with a ring of stages between them."""

    def __init__(self) -> None:
        self.tile_m, self.tile_n, self.tile_k = 64, 128, 64
        self.stages, self.blocks_per_sm = 4, 2
        self.producer_registers, self.consumer_registers = 40, 216
        self.mma = wgmma(self.tile_n, "bf16")
        # Each operand is a swizzled tile, its TMA load, and its descriptor.
        self.a = levels.operand("A", self.tile_m, self.tile_k, self.mma)
        self.b = levels.operand("B", self.tile_n, self.tile_k, self.mma)
        self.smem = levels.SharedMap.of(self.a.smem, self.b.smem, self.stages)
        self.stage_bytes = self.a.tma.bytes + self.b.tma.bytes
        self.schedule = Linear("N")
        # The pipeline model: barriers, arrive counts, and the proof.
        registers = (self.producer_registers, self.consumer_registers)
        self.pipeline = ring(self.stages, self.stage_bytes, lag=1, registers=registers)

    def check(self) -> Report:
        """Checks operands, fragment map, budgets of two CTAs, and the ring for any K."""
        threads = self.blocks_per_sm * WARPGROUP
        roles = {"producers": (threads, self.producer_registers), "consumers": (threads, self.consumer_registers)}
        return levels.wgmma_report(
            self.mma, self.a, self.b, self.smem, self.pipeline, role_registers(levels.ARCH, roles),
            blocks_per_sm=self.blocks_per_sm,
        )  # fmt: skip

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
            grid=(blocks, 1, 1), block=(2 * WARPGROUP, 1, 1), smem=self.smem.total, stream=stream,
            min_blocks_per_mp=self.blocks_per_sm, preferred_smem_carveout=levels.ALL_SHARED,
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
            # 4. The consumer: issue the wgmmas of stage s, wait for those of the previous stage, and release it. The
            #    tensor cores always have the next group.
            bridge.take_registers(self.consumer_registers)
            mma = bridge.Wgmma(self)
            accumulator = mma.accumulator()
            operand_a = bridge.WgmmaOperand(self.a.descriptor, shared.a(0), self.smem.a_stage_bytes)
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
            for v in bridge.unrolled(self.mma.accumulator_registers // 2):
                i, j = self.mma.coords_C(thread % WARPGROUP, 2 * v)
                if i < m - m0:
                    address = c + (Int64(m0 + i) * ldc + (n0 + j)) * f32.bytes
                    bridge.store_pair(address, accumulator[2 * v], accumulator[2 * v + 1], n - n0 - j, aligned)


LEVELS = (levels.Level(4, "warp specialisation", WarpSpecialisedKernel(), guide=270),)

if __name__ == "__main__":
    raise SystemExit(levels.main(LEVELS))
