"""Tensor memory, 1: a warp allocates columns, reads their address from shared memory, and frees them.

    python kernels/blackwell_01_allocate.py

Needs: dsl.

Tensor memory belongs to each Blackwell SM: 128 lanes of 512 columns of 32 bits, beside the registers. tcgen05.mma keeps
its accumulators there. A warp allocates columns for all lanes at once; the count is a power of two from 32 on. The
instruction writes the address to a word of shared memory, where other warps read it. A CTA must free its columns before
it exits, or the next CTA cannot use them. The emulator reports a missing free, and any access to columns that are not
allocated. No Blackwell GPU has run this: its evidence is the compiler and the emulator.
"""

import cutlass
import cutlass.cute as cute
import numpy as np
from cutlass import Int64

from layoutgemm.atoms.tmem.layout import COLUMNS, tmem_coordinate
from layoutgemm.dtypes import i32
from layoutgemm.errors import EmulatorError
from layoutgemm.kernels.dsl import bridge
from layoutgemm.kernels.dsl import tcgen05 as tensor
from layoutgemm.kernels.ladder.primitives import Regions, emulate

THREADS = 128


class Allocate:
    """Allocates several ranges in turn, reports their addresses, and frees them."""

    def __init__(self, columns: tuple[int, ...]):
        self.columns = columns
        self.smem = Regions.of(**{f"slot{i}": (4, 8) for i in range(len(columns))})

    @cute.jit
    def __call__(self, out: Int64, stream: bridge.Stream) -> None:
        """Host side: one CTA."""
        self.kernel(out).launch(grid=(1, 1, 1), block=(THREADS, 1, 1), smem=self.smem.total, stream=stream)

    @cute.kernel
    def kernel(self, out: Int64) -> None:
        """Device side."""
        thread, _, _ = cute.arch.thread_idx()
        warp = bridge.uniform(thread // 32)
        shared = tensor.SharedRegions(self.smem)

        # 1. One whole warp allocates, then relinquishes its permit, so that another CTA may allocate.
        if warp == 0:
            for i, columns in enumerate(self.columns):
                tensor.tensor_allocate(shared[f"slot{i}"], columns)
            tensor.tensor_relinquish()

        # 2. After the barrier every thread can read the addresses.
        bridge.block_sync()
        for i in cutlass.range_constexpr(len(self.columns)):
            address = tensor.tensor_address(shared[f"slot{i}"])
            if thread == i:
                bridge.store_element(out + 4 * i, address, i32)

        # 3. Free each range with its allocated number of columns.
        bridge.block_sync()
        if warp == 0:
            for i, columns in enumerate(self.columns):
                tensor.tensor_free(tensor.tensor_address(shared[f"slot{i}"]), columns)


def main() -> None:
    for columns in ((512,), (256, 128, 64, 32, 32)):
        out = np.full(len(columns), -1, np.int32)
        emulate(f"allocate {columns}", Allocate(columns), {"out": out})
        taken = np.zeros(COLUMNS, dtype=int)
        for address, count in zip(out.tolist(), columns, strict=True):
            lane, first = tmem_coordinate(address)
            taken[first : first + count] += 1
            if lane:
                raise EmulatorError(f"an allocation begins in lane {lane}")
        if taken.max() > 1 or taken.sum() != sum(columns):
            raise EmulatorError(f"columns are given twice, or beyond {COLUMNS}")
        print(f"allocate {columns}: addresses {[hex(a) for a in out.tolist()]}, disjoint, freed")


if __name__ == "__main__":
    main()
