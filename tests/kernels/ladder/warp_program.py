"""A kernel of one warp and one mma.sync: registers from global memory, the product, registers back."""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute
from cutlass import Int64

from layoutgemm.atoms import MmaAtom
from layoutgemm.dtypes import i32
from layoutgemm.kernels.dsl import bridge


class OneProduct:
    """D = A B of one instruction; A (M, K) and B (N, K) 16-bit elements with K contiguous, D (M, N) 32-bit ones."""

    def __init__(self, mma: MmaAtom):
        self.mma = mma

    @cute.jit
    def __call__(self, a: Int64, b: Int64, d: Int64, stream: bridge.Stream) -> None:
        """Host side: one warp."""
        self.kernel(a, b, d).launch(grid=(1, 1, 1), block=(32, 1, 1), stream=stream)

    @cute.kernel
    def kernel(self, a: Int64, b: Int64, d: Int64) -> None:
        """Device side."""
        lane, _, _ = cute.arch.thread_idx()
        c_dtype = self.mma.c_dtype
        zeros = [bridge.element_type(c_dtype)(0)] * self.mma.accumulator_registers
        sums = bridge.multiply_warp(self.mma, self.registers("A", a, lane), self.registers("B", b, lane), zeros)
        for v, value in enumerate(sums):
            i, j = self.mma.coords_C(lane, v)
            bridge.store_element(d + (i * self.mma.shape_mnk[1] + j) * c_dtype.bytes, value, c_dtype)

    def registers(self, name: str, matrix: Any, lane: Any) -> list[Any]:
        """Each register holds two neighbours along K."""
        words = []
        for register in range(self.mma.registers(name)):
            i, k = self.mma.coords(name)(lane, 2 * register)
            address = matrix + (i * self.mma.shape_mnk[2] + k) * 2
            pointer = cute.make_ptr(bridge.element_type(i32), address, cute.AddressSpace.gmem, assumed_align=4)
            words.append(cute.make_tensor(pointer, cute.make_layout(1))[0])
        return words
