"""Level 2: wgmma, from a tile that the threads swizzle.

    python kernels/hopper_02_wgmma.py

Needs: dsl

Change: the MMA instruction. mma.sync takes operands from registers, so level 1 moved every element through them. wgmma
reads both operands from shared memory through descriptors, for four warps at once and asynchronously. The tile must
have the descriptor's layout: no padding, and 16-byte chunks permuted by the 128-byte swizzle. One object (`smem_tile`)
gives each copied element's address and the descriptor's bits. The copy is level 1's cp.async, to swizzled addresses.

wgmma reads through the async proxy, and the threads write through the generic proxy. So every writing thread executes
fence.proxy.async, then all threads pass bar.sync, and then wgmma is issued. A fence covers only the writes of its own
thread. wgmma.fence is different: it orders register accesses.

    role      who        does, for each K tile
    ------    -------    ------------------------------------------------------------------------------------------
    all       128        wait for own copies and own wgmma, fence, bar.sync, issue wgmma, and meanwhile
                         copy the K tile that is stages - 1 ahead into the stage that was read before
    store     128        each thread its registers, by the fragment map

Expected gain: no operands in registers, no ldmatrix, and one instruction for 64x128x16.

Measured on an H200 at 8192^3: 280 TFLOP/s, 0.35 of torch.mm; mma.sync from padded tiles made 302.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from layoutgemm import Layout
from layoutgemm.atoms import cp_async, make_tiled_copy, wgmma
from layoutgemm.checks import Buffer, Cursor, NamedBarrier, Pipeline, Role, bank_conflicts, tiled_access
from layoutgemm.checks.pipeline import actions as act
from layoutgemm.dtypes import bf16, f32
from layoutgemm.kernels.dsl import bridge
from layoutgemm.kernels.ladder import levels
from layoutgemm.report import Report
from layoutgemm.schedule import Linear

THREADS = 128
CHUNK = 8  # elements of a cp.async
COMMIT = act.Commit("cp.async")


def pipeline(stages: int) -> Pipeline:
    """The pipeline: one warpgroup copies stages - 1 K tiles ahead, fences and multiplies."""
    fill = [step for s in range(stages - 1) for step in (act.If(act.Ahead(s), (act.CpAsync("ab", s),)), COMMIT)]
    body = (
        act.WaitGroup("cp.async", stages - 2),
        act.WaitGroup("wgmma", 0),
        act.FenceProxy(),
        act.Sync("cta"),
        act.Mma(("ab",), "read", "acc"),
        act.Commit("wgmma"),
        act.If(act.Ahead(stages - 1), (act.CpAsync("ab", "load"),)),
        COMMIT,
        act.Advance("read"),
        act.Advance("load"),
    )
    program = (*fill, act.ForK(body), act.WaitGroup("wgmma", 0), act.Read("acc"))
    cursors = (Cursor("read", stages), Cursor("load", stages, index=stages - 1))
    return Pipeline(
        f"cp.async and wgmma, {stages} stages",
        (Role("all", 4, program, cursors),),
        (NamedBarrier("cta", THREADS),),
        (Buffer("ab", stages), Buffer("acc", space="reg")),
    )


class WgmmaKernel:
    """One warpgroup per CTA, which copies by cp.async and multiplies by wgmma."""

    def __init__(self) -> None:
        self.tile_m, self.tile_n, self.tile_k = 64, 128, 64
        self.stages, self.blocks_per_sm = 4, 2
        self.mma = wgmma(self.tile_n, "bf16")
        # A swizzled tile each, and its descriptor; level 3 uses the TMA copies.
        self.a = levels.operand("A", self.tile_m, self.tile_k, self.mma)
        self.b = levels.operand("B", self.tile_n, self.tile_k, self.mma)
        self.smem = levels.SharedMap.of(self.a.smem, self.b.smem, self.stages)
        # Eight threads copy a row of 64 by 16 bytes each, 16 rows at a time.
        chunks = self.tile_k // CHUNK
        self.copy = make_tiled_copy(
            cp_async(2 * CHUNK, "cg", "bf16", "register"),
            Layout((THREADS // chunks, chunks), (chunks, 1)),
            Layout((1, CHUNK)),
        )
        self.schedule = Linear("N")

    def check(self) -> Report:
        """Checks operands, budgets, vector copies without conflicts, and the loop for any K."""
        more = []
        for operand in (self.a, self.b):
            vectors = self.copy.vectors("dst", operand.smem.composed)
            more.append(levels.proven(f"vectors of {operand.name}", "each copy is 16 bytes of shared memory", vectors))
            banks = bank_conflicts(operand.smem, tiled_access(self.copy, operand.smem.extent))
            more.append(banks.as_check(f"writes of {operand.name}"))
        return levels.wgmma_report(
            self.mma, self.a, self.b, self.smem, pipeline(self.stages), *more, blocks_per_sm=self.blocks_per_sm
        )

    @cute.jit
    def __call__(
        self, a: Int64, b: Int64, c: Int64, m: Int32, n: Int32, k: Int32,
        lda: Int64, ldb: Int64, ldc: Int64, stream: bridge.Stream,
    ) -> None:  # fmt: skip
        """Host side: launch one CTA per tile of C."""
        blocks = levels.tiles(m, self.tile_m) * levels.tiles(n, self.tile_n)
        self.kernel(a, b, c, m, n, k, lda, ldb, ldc).launch(
            grid=(blocks, 1, 1), block=(THREADS, 1, 1), smem=self.smem.total, stream=stream
        )

    @cute.kernel
    def kernel(
        self, a: Int64, b: Int64, c: Int64, m: Int32, n: Int32, k: Int32, lda: Int64, ldb: Int64, ldc: Int64
    ) -> None:
        """Device side: one CTA, one tile of C."""
        # 1. This CTA's tile of C.
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        row, column = self.schedule.tile(block, (levels.tiles(m, self.tile_m), levels.tiles(n, self.tile_n)))
        m0, n0 = row * self.tile_m, column * self.tile_n
        k_tiles = levels.tiles(k, self.tile_k)
        shared = bridge.SharedMemory(self.smem)

        # 2. Fill all stages but one. Commit a group even without copies, so that the pending count tells which
        #    stage is complete.
        rows_a = (a + Int64(m0) * lda * bf16.bytes, lda, m - m0, k)
        rows_b = (b + Int64(n0) * ldb * bf16.bytes, ldb, n - n0, k)
        for s in cutlass.range_constexpr(self.stages - 1):
            if s < k_tiles:
                bridge.copy_tile(self.copy, self.a.smem, thread, rows_a, s * self.tile_k, shared.a(s))
                bridge.copy_tile(self.copy, self.b.smem, thread, rows_b, s * self.tile_k, shared.b(s))
            bridge.commit_copies()

        # 3. The mainloop. After bar.sync the stage is in shared memory and visible to wgmma, and every warp's wgmma of
        #    the previous stage is complete. The next copy refills that stage.
        mma = bridge.Wgmma(self)
        accumulator = mma.accumulator()
        operand_a = bridge.WgmmaOperand(self.a.descriptor, shared.a(0), self.smem.a_stage_bytes)
        operand_b = bridge.WgmmaOperand(self.b.descriptor, shared.b(0), self.smem.b_stage_bytes)
        stage, target = Int32(0), Int32(self.stages - 1)
        for k_tile in cutlass.range(k_tiles, unroll=1):
            stage = bridge.uniform(stage)
            bridge.wait_copies(self.stages - 2)
            mma.wait()
            bridge.shared_writes_visible()
            bridge.block_sync()
            mma.multiply_blocks([accumulator], operand_a, operand_b, stage, k_tile > 0)
            ahead = k_tile + self.stages - 1
            if ahead < k_tiles:
                bridge.copy_tile(self.copy, self.a.smem, thread, rows_a, ahead * self.tile_k, shared.a(target))
                bridge.copy_tile(self.copy, self.b.smem, thread, rows_b, ahead * self.tile_k, shared.b(target))
            bridge.commit_copies()
            target = stage
            stage += 1
            if stage == self.stages:
                stage = Int32(0)
        mma.wait()

        # 4. Store the accumulator by the atom's fragment map: pairs are neighbours in a row.
        aligned = (c | ldc * f32.bytes) % (2 * f32.bytes) == 0
        for v in bridge.unrolled(self.mma.accumulator_registers // 2):
            i, j = self.mma.coords_C(thread, 2 * v)
            if i < m - m0:
                address = c + (Int64(m0 + i) * ldc + (n0 + j)) * f32.bytes
                bridge.store_pair(address, accumulator[2 * v], accumulator[2 * v + 1], n - n0 - j, aligned)


LEVELS = (levels.Level(2, "wgmma, tile swizzled by hand", WgmmaKernel(), guide=42),)

if __name__ == "__main__":
    raise SystemExit(levels.main(LEVELS))
