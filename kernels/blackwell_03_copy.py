"""Tensor memory, 3: tcgen05.cp. It copies the rows of a matrix descriptor from shared to tensor memory.

    python kernels/blackwell_03_copy.py

Needs: dsl.

tcgen05.cp moves scale factors and operands into tensor memory without registers. One thread issues it for all lanes, in
order with its MMAs, and tcgen05.commit arrives at an mbarrier when the copy is complete. The forms differ in rows, in
bits per row, and in copies per row: 32x128b.warpx4 copies 32 rows to each of the four lane quarters. The descriptor is
derived from the tile's layout, as for an MMA, and a TMA load brings the tile. No Blackwell GPU has run this: its
evidence is the compiler and the emulator.
"""

import cutlass
import cutlass.cute as cute
import numpy as np
from cutlass import Int32, Int64

from layoutgemm.atoms import smem_tile, tcgen05_cp, tcgen05_ld
from layoutgemm.atoms.smem.descriptor import derive as derive_descriptor
from layoutgemm.atoms.smem.operand_read import OperandRead
from layoutgemm.atoms.tma.derive import derive as derive_tma
from layoutgemm.atoms.tmem.layout import LANES, WARP_LANES, WORD_BITS, allocation_columns, tmem_address
from layoutgemm.checks import Mbarrier
from layoutgemm.dtypes import dtype, i32
from layoutgemm.kernels.dsl import bridge
from layoutgemm.kernels.dsl import tcgen05 as tensor
from layoutgemm.kernels.ladder.primitives import Regions, emulate, right


class Copy:
    """Copies a tile of bytes to shared memory, tensor memory, registers and global memory."""

    def __init__(self, shape: str, multicast: str):
        self.cp = tcgen05_cp(shape, multicast)
        self.rows, self.bits, self.copies = (self.cp.tmem[mode].size for mode in range(3))
        self.columns = self.bits // WORD_BITS
        element = dtype("u8")
        width = self.bits // element.bits
        self.tile = smem_tile((self.rows, width), element, "K")
        self.tma = derive_tma(self.tile, ("k", "m"))
        read = OperandRead("A", self.rows, width, element, "packed", ("K",), "sm_100a", "tcgen05", str(self.cp))
        self.descriptor = derive_descriptor(self.tile, read, "A")
        self.ld = tcgen05_ld("32x32b", self.columns, element="i32")
        self.smem = Regions.of(tile=(self.tile.bytes, 1024), loaded=(8, 8), done=(8, 8), slot=(4, 8))
        # Phases complete by the loader's arrival and the tile's bytes, and by the commit's arrival.
        self.loaded = Mbarrier("loaded", count=1, bytes=self.tma.bytes)
        self.barriers = self.loaded, Mbarrier("done", count=1)

    @cute.jit
    def __call__(self, source: Int64, out: Int64, stream: bridge.Stream) -> None:
        """Host side: the tensor map of the bytes, and one CTA."""
        extents = {"m": Int32(self.rows), "k": Int32(self.bits // 8)}
        tensor_map = bridge.encode_tensor_map(self.tma, source, extents, Int64(self.bits // 8))
        self.kernel(tensor_map, out).launch(grid=(1, 1, 1), block=(LANES, 1, 1), smem=self.smem.total, stream=stream)

    @cute.kernel
    def kernel(self, tensor_map: cutlass.GridConstant[bridge.TensorMap], out: Int64) -> None:
        """Device side."""
        thread, _, _ = cute.arch.thread_idx()
        warp = bridge.uniform(thread // 32)
        shared = tensor.SharedRegions(self.smem)
        size = allocation_columns(self.columns)
        if thread == 0:
            for barrier in self.barriers:
                bridge.barrier_init(shared[barrier.name], barrier.arrivals)
            bridge.barriers_visible()
        if warp == 0:
            tensor.tensor_allocate(shared["slot"], size)
            tensor.tensor_relinquish()
        bridge.block_sync()
        base = tensor.tensor_address(shared["slot"])

        # 1. TMA loads the tile to shared memory; one thread issues tcgen05.cp and commits.
        if warp == 0:
            if bridge.elect():
                bridge.barrier_expect(shared["loaded"], self.loaded.bytes)
                bridge.load_tile(tensor_map, self.tma, {"m": Int32(0), "k": Int32(0)}, shared["tile"], shared["loaded"])
            bridge.barrier_wait(shared["loaded"], 0)
            operand = tensor.TensorOperand(self.descriptor, shared["tile"], self.tile.bytes)
            if bridge.elect():
                tensor.tensor_copy(self.cp, base, operand.word_at(0, 0))
                tensor.tensor_commit(shared["done"])

        # 2. Every thread waits for the commit and reads its lane.
        bridge.barrier_wait(shared["done"], 0)
        tensor.fence_after_sync()
        own = base + warp * tmem_address(WARP_LANES, 0)
        for column, word in enumerate(tensor.tensor_load(self.ld, own)):
            bridge.store_element(out + (thread * self.columns + column) * 4, word, i32)

        tensor.fence_before_sync()
        bridge.block_sync()
        if warp == 0:
            tensor.fence_after_sync()
            tensor.tensor_free(base, size)


def main() -> None:
    rng = np.random.default_rng(0)
    for shape, multicast in (("128x256b", ""), ("64x128b", "warpx2::01_23"), ("32x128b", "warpx4")):
        kernel = Copy(shape, multicast)
        source = rng.integers(0, 256, (kernel.rows, kernel.bits // 8), dtype=np.uint8)
        out = np.zeros((LANES, kernel.columns), np.int32)
        name = shape + f".{multicast}" * bool(multicast)
        emulate(name, kernel, {"source": source, "out": out})
        # From the atom: (row, bit, copy) -> (lane, column, bit).
        want = np.zeros((LANES, kernel.columns, WORD_BITS // 8), np.uint8)
        for row in range(kernel.rows):
            for byte in range(kernel.bits // 8):
                for again in range(kernel.copies):
                    lane, column, bit = kernel.cp.tmem(row, 8 * byte, again)
                    want[lane, column, bit // 8] = source[row, byte]
        text = f"{kernel.rows} rows of {kernel.bits} bits, {kernel.copies} time(s), to {kernel.cp.tmem}"
        right(name, out.view(np.uint8).reshape(want.shape), want, text)


if __name__ == "__main__":
    main()
