"""Level 1: mma.sync, fed from global memory, then from padded tiles in shared memory.

    python kernels/hopper_01_mma_sync.py

Needs: dsl

The ladder starts with mma.sync m16n8k16, whose operands and accumulator are in registers. Four warps compute a 128x128
tile of C, 64 rows and 64 columns each. The file has two kernels.

*From global memory.* Each lane loads the elements of its fragments, as the atom's map gives them: pairs along K, which
would be 4-byte loads. The order of K does not change the sum if A and B agree. So `K_ORDER` places the eight elements
that two MMAs need from a lane's row side by side, for one 16-byte load. Two warps load every element, and a warp waits
for its loads before it multiplies.

*From padded tiles.* cp.async copies the CTA's tiles to shared memory in four stages, and ldmatrix loads the fragments.
At a pitch of 32 elements rows two apart share banks. `find_padding` returns 40, the smallest pitch without conflicts
for ldmatrix. A quarter of a warp copies eight rows of one column, to avoid conflicts too.

    role    who            does, for each K tile (padded tiles)
    ----    -----------    -------------------------------------------------------------------------------------------
    all     128 threads    wait for own copies, bar.sync, copy the K tile that is stages - 1 ahead, ldmatrix, mma.sync;
                           all threads have read the refilled stage before bar.sync

Expected gain from the first to the second: an element crosses from L2 once per CTA, and loads overlap MMAs.

Measured on an H200 at 8192^3: 227 TFLOP/s from global memory and 302 from padded tiles, 0.28 and 0.37 of torch.mm.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
import numpy as np
from cutlass import Float32, Int32, Int64

from layoutgemm import Layout, atoms, checks, report, schedule
from layoutgemm.dtypes import bf16, f32
from layoutgemm.kernels.dsl import bridge
from layoutgemm.kernels.ladder import levels

ATOM = atoms.mma_sync("m16n8k16", "bf16")
# Two warps along M and two along N, interleaved in each 32x32 of the tile.
MMA = atoms.TiledMma(ATOM, (2, 2, 1), (32, 32, 16))
THREADS = MMA.threads
CHUNK = 8  # elements of 16 bytes
TILE_M, TILE_N = 128, 128
# K of two MMAs -> K in memory: (pair, lane of the quad, half, MMA).
K_ORDER = Layout((2, 4, 2, 2), (1, 8, 2, 4))
DEPTH = K_ORDER.size
# (thread, value, (block along M, block along N)) -> (row, column) of the tile of C; a value, then its neighbour in N.
C_PLACES = MMA.partition("C", Layout.identity((TILE_M, TILE_N)))
VALUES, BLOCKS_M, BLOCKS_N = (C_PLACES[mode].size for mode in (1, 2, 3))
SCHEDULE = schedule.Linear("N")


class MmaSyncKernel:
    """Shared by both kernels: the launch, the MMAs of a fragment, and the store."""

    kernel: Any  # each has its own
    smem_bytes = 0

    @cute.jit
    def __call__(
        self, a: Int64, b: Int64, c: Int64, m: Int32, n: Int32, k: Int32,
        lda: Int64, ldb: Int64, ldc: Int64, stream: bridge.Stream,
    ) -> None:  # fmt: skip
        """Host side: launch one CTA per tile of C."""
        blocks = levels.tiles(m, TILE_M) * levels.tiles(n, TILE_N)
        self.kernel(a, b, c, m, n, k, lda, ldb, ldc).launch(
            grid=(blocks, 1, 1), block=(THREADS, 1, 1), smem=self.smem_bytes, stream=stream, min_blocks_per_mp=1
        )

    def start(self, a: Any, b: Any, m: Any, n: Any, k: Any, lda: Any, ldb: Any) -> tuple[Any, ...]:
        """Thread, tile corner, rows of A and B (address, pitch, count, K), zero accumulators."""
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        row, column = SCHEDULE.tile(block, (levels.tiles(m, TILE_M), levels.tiles(n, TILE_N)))
        m0, n0 = row * TILE_M, column * TILE_N
        accumulator = cute.make_rmem_tensor(BLOCKS_M * BLOCKS_N * VALUES, Float32)
        accumulator.fill(0.0)
        rows_a = (a + Int64(m0) * lda * bf16.bytes, lda, m - m0, k)
        rows_b = (b + Int64(n0) * ldb * bf16.bytes, ldb, n - n0, k)
        return thread, m0, n0, rows_a, rows_b, accumulator

    def multiply(self, accumulator: Any, fragments_a: list[Any], fragments_b: list[Any]) -> None:
        """Multiplies all blocks of one MMA's K; fragments_a[block] and fragments_b[block] are register lists."""
        for i, fragment_a in enumerate(fragments_a):
            for j, fragment_b in enumerate(fragments_b):
                at = VALUES * (i + BLOCKS_M * j)
                sums = [accumulator[at + v] for v in range(VALUES)]
                for v, value in enumerate(bridge.multiply_warp(ATOM, fragment_a, fragment_b, sums)):
                    accumulator[at + v] = value

    @cute.jit
    def store(self, accumulator: Any, thread: Any, c: Any, ldc: Any, m: Any, n: Any, m0: Any, n0: Any) -> None:
        """Stores the accumulator by the atom's fragment map; pairs are neighbours in a row."""
        aligned = (c | ldc * f32.bytes) % (2 * f32.bytes) == 0
        for index in bridge.unrolled(BLOCKS_M * BLOCKS_N * VALUES // 2):
            block, v = index * 2 // VALUES, index * 2 % VALUES
            i, j = C_PLACES(thread, v, block % BLOCKS_M, block // BLOCKS_M)
            if i < m - m0:
                address = c + (Int64(m0 + i) * ldc + (n0 + j)) * f32.bytes
                bridge.store_pair(address, accumulator[2 * index], accumulator[2 * index + 1], n - n0 - j, aligned)


class FromGlobal(MmaSyncKernel):
    """Loads fragments from global memory, 16 bytes per load."""

    def check(self) -> report.Report:
        """Checks that one load of a lane holds the registers of two MMAs."""
        held = [levels.proven("order of K", f"{K_ORDER} is a permutation", K_ORDER.is_bijective())]
        for name in "AB":
            places = ATOM.coords(name)
            wrong = [
                (lane, value, step)
                for lane, value, step in np.ndindex(places[0].size, places[1].size, 2)
                if K_ORDER(places(lane, value)[1] + step * ATOM.shape_mnk[2])
                != K_ORDER(places(lane, 0)[1]) + 2 * word_of(places(0, value)[1], step) + value % 2
            ]
            statement = f"a lane's {name} of two instructions is {2 * CHUNK} consecutive bytes of each of its rows"
            held.append(report.Check(f"loads of {name}", statement, not wrong, "exhaustion", str(wrong[:1] or "")))
        return report.Report(tuple(held))

    @cute.kernel
    def kernel(
        self, a: Int64, b: Int64, c: Int64, m: Int32, n: Int32, k: Int32, lda: Int64, ldb: Int64, ldc: Int64
    ) -> None:
        """Device side: one CTA, one tile of C."""
        # 1. This CTA's tile of C.
        thread, m0, n0, rows_a, rows_b, accumulator = self.start(a, b, m, n, k, lda, ldb)

        # 2. K in steps of two MMAs. Elements out of bounds are zeros, in the last step also those beyond K.
        for step in cutlass.range(k // DEPTH, unroll=1):
            self.multiply_step(accumulator, thread, rows_a, rows_b, step * DEPTH, None)
        if k % DEPTH > 0:
            self.multiply_step(accumulator, thread, rows_a, rows_b, k - k % DEPTH, k % DEPTH)
        self.store(accumulator, thread, c, ldc, m, n, m0, n0)

    def multiply_step(self, accumulator: Any, thread: Any, rows_a: Any, rows_b: Any, k0: Any, left: Any) -> None:
        """Loads and multiplies the fragments of two MMAs' K. `left` of K remain, None for all."""
        a = self.fragments("A", TILE_M, thread, rows_a, k0, left)
        b = self.fragments("B", TILE_N, thread, rows_b, k0, left)
        for step in range(2):
            self.multiply(accumulator, a[step], b[step])

    def fragments(self, name: str, extent: int, thread: Any, rows: Any, k0: Any, left: Any) -> list[list[Any]]:
        """Registers of this thread by [MMA][block], a vector for each row in a block."""
        address, pitch, count, _ = rows
        places = MMA.partition(name, Layout.identity((extent, ATOM.shape_mnk[2])))
        registers = [ATOM.coords(name)(0, 2 * register) for register in range(ATOM.registers(name))]
        found: list[list[Any]] = [[], []]
        for block in range(places[2].size):
            i, k = places(thread, 0, block, 0)
            first, words = K_ORDER(k), {}
            for below in sorted({row for row, _ in registers}):
                inside = i + below < count if left is None else cutlass.min(count - (i + below), left - first) > 0
                source = address + (Int64(i + below) * pitch + (k0 + first)) * bf16.bytes
                vector = bridge.load_vector(source, inside)
                words[below] = vector if left is None else bridge.keep_elements(vector, left - first)
            for step in range(2):
                found[step].append([words[row][word_of(depth, step)] for row, depth in registers])
        return found


def word_of(k: int, step: int) -> int:
    """Word of a lane's vector with its pair at `k` of MMA `step`. `k` counts from lane 0."""
    return K_ORDER(k + step * ATOM.shape_mnk[2]) // 2


class FromPaddedTiles(MmaSyncKernel):
    """Stages tiles in padded shared memory by cp.async, and loads fragments by ldmatrix."""

    def __init__(self) -> None:
        self.tile_k, self.stages = 32, 4
        extent = (TILE_M, self.tile_k)
        padding = checks.find_padding(extent, checks.matrix_access(extent, "bf16"), "bf16")
        self.tile = atoms.as_tile(padding.layout, "bf16")
        self.smem = levels.SharedMap.of(self.tile, self.tile, self.stages)
        self.smem_bytes = self.smem.total
        chunks = self.tile_k // CHUNK
        lanes = Layout(((8, THREADS // chunks // 8), chunks), ((1, 8 * chunks), 8))
        cp_async, ldmatrix = atoms.cp_async(2 * CHUNK, "cg", "bf16", "register"), atoms.ldmatrix(4)
        self.copy = atoms.make_tiled_copy(cp_async, lanes, Layout((1, CHUNK)))
        self.fill = {"A": atoms.make_tiled_copy_A(ldmatrix, MMA), "B": atoms.make_tiled_copy_B(ldmatrix, MMA)}

    def check(self) -> report.Report:
        """Checks vector widths, bank conflicts, fragment registers, the loop for any K, and shared memory."""
        layout, extent = self.tile.layout, self.tile.extent
        held = [checks.bank_conflicts(self.tile, checks.tiled_access(self.copy, extent)).as_check("copies in")]
        for name, fill in self.fill.items():
            banks = checks.bank_conflicts(self.tile, checks.tiled_access(fill, extent))
            fed = fill.feeds(MMA, name, extent)
            held.append(banks.as_check(f"ldmatrix of {name}"))
            held.append(levels.proven(f"fragments of {name}", "each register holds what the product expects", fed))
        held.append(levels.proven("vectors", f"copies are 16 bytes of {layout}", self.copy.vectors("dst", layout)))
        held.append(checks.check_pipeline(checks.multistage(self.stages)))
        held.append(checks.shared_memory(levels.ARCH, self.smem.parts(), blocks_per_sm=2))
        return report.Report(tuple(held))

    @cute.kernel
    def kernel(
        self, a: Int64, b: Int64, c: Int64, m: Int32, n: Int32, k: Int32, lda: Int64, ldb: Int64, ldc: Int64
    ) -> None:
        """Device side: one CTA, one tile of C."""
        # 1. This CTA's tile of C.
        thread, m0, n0, rows_a, rows_b, accumulator = self.start(a, b, m, n, k, lda, ldb)
        k_tiles = levels.tiles(k, self.tile_k)
        shared = bridge.SharedMemory(self.smem)

        # 2. Fill all stages but one. Commit empty groups too: the pending count then tells which copies are complete.
        for s in cutlass.range_constexpr(self.stages - 1):
            if s < k_tiles:
                bridge.copy_tile(self.copy, self.tile, thread, rows_a, s * self.tile_k, shared.a(s))
                bridge.copy_tile(self.copy, self.tile, thread, rows_b, s * self.tile_k, shared.b(s))
            bridge.commit_copies()

        # 3. The mainloop. After bar.sync the stage is complete, and no thread reads the previous one.
        stage, target = Int32(0), Int32(self.stages - 1)
        for k_tile in cutlass.range(k_tiles, unroll=1):
            bridge.wait_copies(self.stages - 2)
            bridge.block_sync()
            ahead = k_tile + self.stages - 1
            if ahead < k_tiles:
                bridge.copy_tile(self.copy, self.tile, thread, rows_a, ahead * self.tile_k, shared.a(target))
                bridge.copy_tile(self.copy, self.tile, thread, rows_b, ahead * self.tile_k, shared.b(target))
            bridge.commit_copies()
            for k_block in cutlass.range_constexpr(self.tile_k // ATOM.shape_mnk[2]):
                fragments_a = self.fragments("A", thread, shared.a(stage), k_block)
                fragments_b = self.fragments("B", thread, shared.b(stage), k_block)
                self.multiply(accumulator, fragments_a, fragments_b)
            target = stage
            stage += 1
            if stage == self.stages:
                stage = Int32(0)
        self.store(accumulator, thread, c, ldc, m, n, m0, n0)

    def fragments(self, name: str, thread: Any, tile: Any, k_block: int) -> list[list[Any]]:
        """Registers of this thread for each block of one MMA, loaded by ldmatrix. Each lane supplies a row address."""
        rows = self.fill[name].partition("src", self.tile.layout)
        registers = []
        for load in range(rows[2].size):
            registers += bridge.load_matrices(tile + rows(thread, 0, load, k_block) * bf16.bytes, 4)
        each = ATOM.registers(name)
        return [registers[at : at + each] for at in range(0, len(registers), each)]


LEVELS = (
    levels.Level(1, "mma.sync, global memory", FromGlobal(), guide=50),
    levels.Level(1, "mma.sync, padded tiles", FromPaddedTiles(), guide=50),
)

if __name__ == "__main__":
    raise SystemExit(levels.main(LEVELS))
