"""The first Ampere program: cp.async into a two-stage ring, and mma.sync. It has two barriers per K tile.

    python kernels/ampere_01_pipelined.py

Needs: dsl

A CTA computes 64x64 of C, with K tiles of 16. Each of four warps computes 16 rows with eight m16n8k16 MMAs per K tile.
Two stages of A and B are in flight: cp.async copies one K tile while the warps multiply the previous one.

Each tile row has 32 bytes, and eight rows of a column would occupy four bank groups, a 2-way conflict. `smem_tile`
applies the 32-byte swizzle, which is proven below to remove the conflict. One ldmatrix then loads a 16x16 fragment in
place of four loads per thread.

    role    who            does, for each K tile
    ----    -----------    -----------------------------------------------------------------------------------------
    all     128 threads    wait for own copies of this K tile, bar.sync, ldmatrix, mma.sync, bar.sync, copy the K tile
                           two ahead into the stage that all threads have read

    barrier    kind                completed by               waited for by
    -------    ----------------    -----------------------    -------------------------------------------------------
    group      cp.async group      a thread's two copies      the thread, until one group is pending: the next K tile
    block      bar.sync            128 threads                the same: copies complete; reads complete

Empty cp.async groups are committed past the last K tile. The number of pending groups then always tells which copies
are complete.

The production kernel (`layoutgemm/kernels/sm80/device/gemm.py`) removes three limits of this one. A 64x64 tile loads
each byte of A and B twice as often as a 128x128 tile. Two barriers per K tile of 16 prevent overlap. Each lane stores
only four bytes of C at a time.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from layoutgemm import Layout, atoms, checks, report, schedule
from layoutgemm.checks.pipeline import actions as do
from layoutgemm.dtypes import bf16, f32
from layoutgemm.kernels.dsl import bridge
from layoutgemm.kernels.ladder import levels
from layoutgemm.kernels.run.torch_tensors import target_here

ATOM = atoms.mma_sync("m16n8k16", "bf16")
# Four warps along M. Each warp loads its 64 columns 16 at a time.
MMA = atoms.TiledMma(ATOM, (4, 1, 1), (64, 16, 16))
THREADS = MMA.threads
TILE_M, TILE_N, TILE_K, STAGES = 64, 64, 16, 2
CHUNK = 8  # elements of 16 bytes
# (thread, value, (block along M, block along N)) -> (row, column) of the tile of C.
C_PLACES = MMA.partition("C", Layout.identity((TILE_M, TILE_N)))
VALUES, BLOCKS_M, BLOCKS_N = (C_PLACES[mode].size for mode in (1, 2, 3))
SCHEDULE = schedule.Linear("N")
# Sizes for the check on a GPU: squares, K unlike M and N, ragged.
SIZES = (
    (64, 64, 64), (64, 64, 256), (128, 128, 128), (256, 256, 256), (512, 512, 512), (1024, 1024, 1024),
    (2048, 2048, 2048), (4096, 4096, 4096), (1024, 2048, 4096), (4096, 1024, 512), (1000, 1037, 1100), (264, 392, 77),
)  # fmt: skip


def two_in_flight() -> checks.Pipeline:
    """The ring: fill both stages, then refill each stage after all warps have read it."""
    fill: list[do.Action] = []
    for s in range(STAGES):
        fill += [do.If(do.Ahead(s), (do.CpAsync("ab", s),)), do.Commit("cp.async")]
    body: do.Program = (
        do.WaitGroup("cp.async", STAGES - 1),
        do.Sync("cta"),
        do.Read("ab", "read"),
        do.Sync("cta"),
        do.If(do.Ahead(STAGES), (do.CpAsync("ab", "read"),)),
        do.Commit("cp.async"),
        do.Advance("read"),
    )
    role = checks.Role("math", THREADS // 32, (*fill, do.ForK(body)), (checks.Cursor("read", STAGES),))
    barriers = (checks.NamedBarrier("cta", THREADS),)
    return checks.Pipeline("two stages in flight", (role,), barriers, (checks.Buffer("ab", STAGES),), arch="sm_80")


class PipelinedKernel:
    """cp.async, a ring of two, ldmatrix, mma.sync."""

    def __init__(self) -> None:
        self.tile = atoms.smem_tile((TILE_M, TILE_K), "bf16", "K")
        assert TILE_M == TILE_N, "A and B share one tile layout, and one copy"
        self.smem = levels.SharedMap.of(self.tile, self.tile, STAGES)
        chunks = TILE_K // CHUNK
        cp_async, ldmatrix = atoms.cp_async(2 * CHUNK, "cg", "bf16", "register"), atoms.ldmatrix(4)
        lanes = Layout((THREADS // chunks, chunks), (chunks, 1))
        self.copy = atoms.make_tiled_copy(cp_async, lanes, Layout((1, CHUNK)))
        self.fill = {"A": atoms.make_tiled_copy_A(ldmatrix, MMA), "B": atoms.make_tiled_copy_B(ldmatrix, MMA)}
        self.pipeline = two_in_flight()

    def check(self) -> report.Report:
        """Checks coverage, vector widths, bank conflicts, fragment registers, the ring and shared memory."""
        extent = self.tile.extent
        held = [
            levels.proven("copies", "the threads copy every element of a tile, each once", self.copy.coverage()),
            checks.bank_conflicts(self.tile, checks.tiled_access(self.copy, extent)).as_check("banks of the copies"),
        ]
        for name, fill in self.fill.items():
            banks = checks.bank_conflicts(self.tile, checks.tiled_access(fill, extent))
            fed = fill.feeds(MMA, name, extent)
            held.append(banks.as_check(f"banks of ldmatrix, {name}"))
            held.append(levels.proven(f"fragments of {name}", "each register holds what the product expects", fed))
        held.append(levels.proven("vectors", "a copy is 16 bytes", self.copy.vectors("dst", self.tile.composed)))
        held.append(levels.proven("order of tiles", f"{SCHEDULE} visits each tile once", SCHEDULE.prove()))
        held.append(checks.check_pipeline(self.pipeline))
        held.append(checks.shared_memory(LEVELS[0].arch, self.smem.parts(), blocks_per_sm=4))
        return report.Report(tuple(held))

    @cute.jit
    def __call__(
        self, a: Int64, b: Int64, c: Int64, m: Int32, n: Int32, k: Int32,
        lda: Int64, ldb: Int64, ldc: Int64, stream: bridge.Stream,
    ) -> None:  # fmt: skip
        """Host side: launch one CTA per tile of C."""
        blocks = levels.tiles(m, TILE_M) * levels.tiles(n, TILE_N)
        self.kernel(a, b, c, m, n, k, lda, ldb, ldc).launch(
            grid=(blocks, 1, 1), block=(THREADS, 1, 1), smem=self.smem.total, stream=stream
        )

    @cute.kernel
    def kernel(
        self, a: Int64, b: Int64, c: Int64, m: Int32, n: Int32, k: Int32, lda: Int64, ldb: Int64, ldc: Int64
    ) -> None:
        """Device side: one CTA, one tile of C."""
        # 1. This CTA's tile of C, and its rows of A and B: address, pitch, row count, K.
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        row, column = SCHEDULE.tile(block, (levels.tiles(m, TILE_M), levels.tiles(n, TILE_N)))
        m0, n0 = row * TILE_M, column * TILE_N
        rows_a = (a + Int64(m0) * lda * bf16.bytes, lda, m - m0, k)
        rows_b = (b + Int64(n0) * ldb * bf16.bytes, ldb, n - n0, k)
        k_tiles = levels.tiles(k, TILE_K)
        shared = bridge.SharedMemory(self.smem)
        sums = cute.make_rmem_tensor(BLOCKS_M * BLOCKS_N * VALUES, Float32)
        sums.fill(0.0)

        # 2. Fill the ring.
        for s in cutlass.range_constexpr(STAGES):
            self.copy_tiles(s * TILE_K, s, thread, rows_a, rows_b, shared)
            bridge.commit_copies()

        # 3. The mainloop.
        stage = Int32(0)
        for k_tile in cutlass.range(k_tiles, unroll=1):
            bridge.wait_copies(STAGES - 1)
            bridge.block_sync()
            self.multiply(sums, thread, shared.a(stage), shared.b(stage))
            bridge.block_sync()
            self.copy_tiles((k_tile + STAGES) * TILE_K, stage, thread, rows_a, rows_b, shared)
            bridge.commit_copies()
            stage ^= 1

        # 4. Store C by the atom's fragment map: pairs are neighbours in a row.
        self.store(sums, thread, c, ldc, m, n, m0, n0)

    @cute.jit
    def copy_tiles(self, k0: Any, stage: Any, thread: Any, rows_a: Any, rows_b: Any, shared: Any) -> None:
        """Copies this thread's part of a K tile of A and B. Zero-fills elements out of bounds."""
        if k0 < rows_a[3]:
            bridge.copy_tile(self.copy, self.tile, thread, rows_a, k0, shared.a(stage))
            bridge.copy_tile(self.copy, self.tile, thread, rows_b, k0, shared.b(stage))

    def multiply(self, sums: Any, thread: Any, a: Any, b: Any) -> None:
        """Multiplies one K tile: a warp's 16 rows of A by all columns of B."""
        fragments_a, fragments_b = self.fragments("A", thread, a), self.fragments("B", thread, b)
        for j, fragment in enumerate(fragments_b):
            at = VALUES * j
            products = bridge.multiply_warp(ATOM, fragments_a[0], fragment, [sums[at + v] for v in range(VALUES)])
            for v, value in enumerate(products):
                sums[at + v] = value

    def fragments(self, name: str, thread: Any, tile: Any) -> list[list[Any]]:
        """Registers of this thread for each block, loaded by ldmatrix. Each lane supplies a row address."""
        rows = self.fill[name].partition("src", self.tile.composed)
        registers = []
        for load in range(rows.layout[2].size):
            registers += bridge.load_matrices(tile + rows(thread, 0, load, 0) * bf16.bytes, 4)
        each = ATOM.registers(name)
        return [registers[at : at + each] for at in range(0, len(registers), each)]

    @cute.jit
    def store(self, sums: Any, thread: Any, c: Any, ldc: Any, m: Any, n: Any, m0: Any, n0: Any) -> None:
        """Stores pairs of neighbours, as 8 bytes where C's address and pitch are aligned."""
        aligned = (c | ldc * f32.bytes) % (2 * f32.bytes) == 0
        for index in bridge.unrolled(BLOCKS_M * BLOCKS_N * VALUES // 2):
            block, v = index * 2 // VALUES, index * 2 % VALUES
            i, j = C_PLACES(thread, v, block % BLOCKS_M, block // BLOCKS_M)
            if i < m - m0:
                address = c + (Int64(m0 + i) * ldc + (n0 + j)) * f32.bytes
                bridge.store_pair(address, sums[2 * index], sums[2 * index + 1], n - n0 - j, aligned)


LEVELS = (
    levels.Level(
        1, "cp.async, a ring of two, mma.sync", PipelinedKernel(), guide=None,
        target=target_here(("sm_80", "sm_90a", "sm_100a", "sm_120a"), "sm_80"),
    ),
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(levels.main(LEVELS, checked_sizes=SIZES, size=4096))
