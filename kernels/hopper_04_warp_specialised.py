"""Level 4: one warpgroup loads, another multiplies.

    python kernels/hopper_04_warp_specialised.py

Needs: dsl

What changed: in level 3 the warpgroup that multiplies also loads, so it must meet at a barrier, product finished,
before a stage can be refilled. Here a producer warpgroup does nothing but load, and a consumer warpgroup nothing but
multiply. They meet at two barriers a stage, full[s] and empty[s], through a ring of four stages; the consumer keeps one
group of products in flight and gives the stage before it back. setmaxnreg moves the registers that a producer does not
need to the consumer. The tile is level 3's, 64x128 a block, two blocks on a multiprocessor.

    role        who                         registers    does
    --------    ------------------------    ---------    ------------------------------------------------------------
    producer    one thread of warpgroup 0      40        waits for empty[s], arms full[s], loads both tiles
    consumer    warpgroup 1                    216       waits for full[s], multiplies, frees stage s - 1, stores C

    barrier     completed by                                               waited for by
    --------    -------------------------------------------------------    ------------------------------------------
    full[s]     the producer's arrive.expect_tx and the bytes it names     the consumer's 128 threads
    empty[s]    one arrival of each of the consumer's 4 warps              the producer; at first it need not wait

The producer's first waits are for the parity that a fresh barrier counts as completed, phase ^ 1, and the phase flips
where the ring wraps: a loop that forgets either waits for ever, or overwrites what is being read.

What it should gain: no barrier of all threads in the loop, and products back to back.

Measured on an H200 at 8192^3: 290 TFLOP/s, 0.36 of torch.mm; level 3 made 295. docs/ladder.md says why there
is no gain: "Why levels 2 to 4 gain nothing".
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
    """A producer and a consumer warpgroup a block, and a ring of stages between them."""

    def __init__(self) -> None:
        self.tile_m, self.tile_n, self.tile_k = 64, 128, 64
        self.stages, self.blocks_per_sm = 4, 2
        self.producer_registers, self.consumer_registers = 40, 216
        self.mma = wgmma(self.tile_n, "bf16")
        # Each operand is a swizzled tile, the tensor copy that fills it, and the descriptor that reads it.
        self.a = levels.operand("A", self.tile_m, self.tile_k, self.mma)
        self.b = levels.operand("B", self.tile_n, self.tile_k, self.mma)
        self.smem = levels.SharedMap.of(self.a.smem, self.b.smem, self.stages)
        self.stage_bytes = self.a.tma.bytes + self.b.tma.bytes
        self.schedule = Linear("N")
        # The order of things in this file: which barriers there are, who arrives how often, and what is proven of it.
        registers = (self.producer_registers, self.consumer_registers)
        self.pipeline = ring(self.stages, self.stage_bytes, lag=1, registers=registers)

    def check(self) -> Report:
        """Operands, fragment map, shared memory and registers of two blocks, the ring for any number of k tiles."""
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
        """Host side: encode the tensor maps, launch a block for each tile of C."""
        extents = {"m": m, "n": n, "k": k}
        map_a = bridge.encode_tensor_map(self.a.tma, a, extents, lda)
        map_b = bridge.encode_tensor_map(self.b.tma, b, extents, ldb)
        blocks = levels.tiles(m, self.tile_m) * levels.tiles(n, self.tile_n)
        # setmaxnreg is ignored unless the least number of blocks is said.
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
        """Device side: one block, one tile of C."""
        # 1. The tile of C that this block owns, and the role of this thread.
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        row, column = self.schedule.tile(block, (levels.tiles(m, self.tile_m), levels.tiles(n, self.tile_n)))
        m0, n0 = row * self.tile_m, column * self.tile_n
        k_tiles = levels.tiles(k, self.tile_k)
        warpgroup, warp = bridge.uniform(thread // WARPGROUP), bridge.uniform(thread // 32)

        # 2. Shared memory and barriers, initialised by one thread with the arrivals that the pipeline counts.
        shared = bridge.SharedMemory(self.smem)
        full, empty = self.pipeline.mbarrier("full").count, self.pipeline.mbarrier("empty").count
        if thread == 0:
            bridge.prefetch_map(map_a)
            bridge.prefetch_map(map_b)
            for s in cutlass.range_constexpr(self.stages):
                bridge.barrier_init(shared.full(s), full)
                bridge.barrier_init(shared.empty(s), empty)
            bridge.barriers_visible()
        bridge.block_sync()

        if warpgroup == 0:
            # 3. The producer: one thread keeps the ring full. Its first round finds every stage free: phase ^ 1.
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
            # 4. The consumer: products of stage s are issued, then those of the stage before are waited for, and that
            #    stage is given back. The tensor cores always have the next group to go on with.
            bridge.take_registers(self.consumer_registers)
            mma = bridge.Wgmma(self)
            accumulator = mma.accumulator()
            operand_a = bridge.Operand(self.a.descriptor, shared.a(0), self.smem.a_stage_bytes)
            operand_b = bridge.Operand(self.b.descriptor, shared.b(0), self.smem.b_stage_bytes)
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

            # 5. Store the fragment where the atom says that each register lies in the tile: pairs are neighbours.
            aligned = (c | ldc * f32.bytes) % (2 * f32.bytes) == 0
            for v in bridge.unrolled(self.mma.accumulator_registers // 2):
                i, j = self.mma.coords_C(thread % WARPGROUP, 2 * v)
                if i < m - m0:
                    address = c + (Int64(m0 + i) * ldc + (n0 + j)) * f32.bytes
                    bridge.store_pair(address, accumulator[2 * v], accumulator[2 * v + 1], n - n0 - j, aligned)


LEVELS = (levels.Level(4, "warp specialisation", WarpSpecialisedKernel(), guide=270),)

if __name__ == "__main__":
    raise SystemExit(levels.main(LEVELS))
