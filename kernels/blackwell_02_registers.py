"""Tensor memory, 2: tcgen05.st and tcgen05.ld, and the lane and column of each register.

    python kernels/blackwell_02_registers.py

Needs: dsl.

A warp accesses the 32 lanes of its quarter. The shape decides how registers map to lanes and columns. 32x32b gives a
thread one lane and one register per column. 16x256b gives a thread pairs, as in the accumulators of wgmma and mma.sync.
Each kernel stores by one shape and loads by 32x32b, then the reverse. The atom (`atoms.tcgen05_st`) gives the expected
positions. No Blackwell GPU has run this: its evidence is the compiler and the emulator.
"""

import cutlass
import cutlass.cute as cute
import numpy as np
from cutlass import Int32, Int64

from layoutgemm.atoms import tcgen05_ld, tcgen05_st
from layoutgemm.atoms.copy.tmem import FRAGMENTS
from layoutgemm.atoms.tmem.layout import LANES, WARP_LANES, tmem_address
from layoutgemm.dtypes import i32
from layoutgemm.kernels.dsl import bridge
from layoutgemm.kernels.dsl import tcgen05 as tensor
from layoutgemm.kernels.ladder.primitives import Regions, emulate, right

COLUMNS = 32  # that are checked


class Registers:
    """Stores by `shape` and loads by rows, then the reverse, for all lanes and columns."""

    def __init__(self, shape: str):
        fragment = FRAGMENTS[shape]
        self.halves = WARP_LANES // fragment.lanes  # shapes of 16 lanes are issued twice
        repeat = COLUMNS // fragment.columns
        self.st, self.ld = tcgen05_st(shape, repeat, element="i32"), tcgen05_ld(shape, repeat, element="i32")
        self.st_rows, self.ld_rows = (make("32x32b", COLUMNS, element="i32") for make in (tcgen05_st, tcgen05_ld))
        self.smem = Regions.of(slot=(4, 8))

    @cute.jit
    def __call__(self, rows: Int64, registers: Int64, stream: bridge.Stream) -> None:
        """Host side: one CTA."""
        self.kernel(rows, registers).launch(grid=(1, 1, 1), block=(LANES, 1, 1), smem=self.smem.total, stream=stream)

    @cute.kernel
    def kernel(self, rows: Int64, registers: Int64) -> None:
        """Device side."""
        thread, _, _ = cute.arch.thread_idx()
        warp = bridge.uniform(thread // 32)
        shared = tensor.SharedRegions(self.smem)
        if warp == 0:
            tensor.tensor_allocate(shared["slot"], COLUMNS)
            tensor.tensor_relinquish()
        bridge.block_sync()
        base = tensor.tensor_address(shared["slot"])
        own = base + warp * tmem_address(WARP_LANES, 0)
        count = self.ld.registers

        # 1. Register v of half h of a thread holds ((h * 128 + thread) * count + v); then every thread reads its lane.
        for half in cutlass.range_constexpr(self.halves):
            first = (half * LANES + thread) * count
            tensor.tensor_store(self.st, own + tmem_address(16 * half, 0), [Int32(first + v) for v in range(count)])
        tensor.tensor_stored()
        for column, value in enumerate(tensor.tensor_load(self.ld_rows, own)):
            bridge.store_element(rows + (thread * COLUMNS + column) * 4, value, i32)

        # 2. Column c of a lane holds lane * COLUMNS + c; then every thread reads its registers.
        tensor.tensor_store(self.st_rows, own, [Int32(thread * COLUMNS + c) for c in range(COLUMNS)])
        tensor.tensor_stored()
        for half in cutlass.range_constexpr(self.halves):
            for v, value in enumerate(tensor.tensor_load(self.ld, own + tmem_address(16 * half, 0))):
                bridge.store_element(registers + ((half * LANES + thread) * count + v) * 4, value, i32)

        tensor.fence_before_sync()
        bridge.block_sync()
        if warp == 0:
            tensor.fence_after_sync()
            tensor.tensor_free(base, COLUMNS)


def main() -> None:
    for shape in ("32x32b", "16x64b", "16x128b", "16x256b"):
        kernel = Registers(shape)
        count = kernel.ld.registers
        rows = np.full((LANES, COLUMNS), -1, np.int32)
        registers = np.full((kernel.halves, LANES, count), -1, np.int32)
        emulate(shape, kernel, {"rows": rows, "registers": registers})
        # From the atom: (thread of the warp, register) -> (lane, column) from the instruction's address.
        for half in range(kernel.halves):
            for thread in range(LANES):
                for v in range(count):
                    lane, column = kernel.ld.tmem(thread % WARP_LANES, v)
                    lane += thread // WARP_LANES * WARP_LANES + 16 * half
                    if registers[half, thread, v] != lane * COLUMNS + column:
                        raise SystemExit(f"{shape}: register {v} of thread {thread} holds {registers[half, thread, v]}")
                    if rows[lane, column] != (half * LANES + thread) * count + v:
                        raise SystemExit(f"{shape}: lane {lane}, column {column} holds {rows[lane, column]}")
        everything = np.sort(rows, axis=None)
        right(shape, everything, np.arange(LANES * COLUMNS), f"{rows.size} words stored and loaded as {kernel.ld.tmem}")


if __name__ == "__main__":
    main()
