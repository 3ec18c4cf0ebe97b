"""Tensor memory, 4: one thread of a CTA issues tcgen05.mma. The accumulator stays in tensor memory.

    python kernels/blackwell_04_multiply.py

Needs: dsl.

The instruction takes a 64-bit descriptor for each operand in shared memory, a 32-bit instruction descriptor (shape,
types, majors), the accumulator's address, and a flag to accumulate. The library has all of them as values. The matrix
descriptors come from the tiles' layouts, the instruction descriptor from the atom (`atoms.instruction_descriptor`). The
program computes D = A B^T and accumulates A B^T once more, for the production kernel's types and both majors. No
Blackwell GPU has run this: its evidence is the compiler and the emulator.
"""

import cutlass
import cutlass.cute as cute
import numpy as np
from cutlass import Int32, Int64

from layoutgemm.atoms import tcgen05_ld, tcgen05_mma
from layoutgemm.atoms.smem.instruction_descriptor import instruction_descriptor
from layoutgemm.atoms.tmem.layout import WARP_LANES, tmem_address
from layoutgemm.checks import Mbarrier
from layoutgemm.dtypes import f32
from layoutgemm.kernels import Operand
from layoutgemm.kernels.derive import derive_operand
from layoutgemm.kernels.dsl import bridge
from layoutgemm.kernels.dsl import tcgen05 as tensor
from layoutgemm.kernels.ladder.primitives import Regions, emulate, right

M, THREADS = 128, 128


class Multiply:
    """D = 2 A B^T of one tile."""

    def __init__(self, kind: str, n: int, depth: int, a: str, b: str):
        a_given, b_given = Operand.parse(a), Operand.parse(b)
        self.mma = tcgen05_mma(kind, M, n, a_given.dtype, b_given.dtype)
        self.a = derive_operand("A", a_given, "M", M, depth, None, self.mma)
        self.b = derive_operand("B", b_given, "N", n, depth, None, self.mma)
        self.word = instruction_descriptor(self.mma, self.a.major, self.b.major).word
        self.ld = tcgen05_ld("32x32b", n)
        self.sizes = {"m": M, "n": n, "k": depth}
        self.smem = Regions.of(
            a=(self.a.smem.bytes, 1024), b=(self.b.smem.bytes, 1024), loaded=(8, 8), done=(8, 8), slot=(4, 8)
        )
        # Phases complete by the loader's arrival and the bytes of both tiles, and by the commit's arrival.
        self.loaded = Mbarrier("loaded", count=1, bytes=self.a.tma.bytes + self.b.tma.bytes)
        self.barriers = self.loaded, Mbarrier("done", count=1)

    @cute.jit
    def __call__(self, a: Int64, b: Int64, d: Int64, stream: bridge.Stream) -> None:
        """Host side: tensor maps, and one CTA."""
        extents = {name: Int32(size) for name, size in self.sizes.items()}
        map_a = bridge.encode_tensor_map(self.a.tma, a, extents, Int64(self.sizes[self.a.tma.dims[0]]))
        map_b = bridge.encode_tensor_map(self.b.tma, b, extents, Int64(self.sizes[self.b.tma.dims[0]]))
        self.kernel(map_a, map_b, d).launch(grid=(1, 1, 1), block=(THREADS, 1, 1), smem=self.smem.total, stream=stream)

    @cute.kernel
    def kernel(
        self,
        map_a: cutlass.GridConstant[bridge.TensorMap],
        map_b: cutlass.GridConstant[bridge.TensorMap],
        d: Int64,
    ) -> None:
        """Device side."""
        thread, _, _ = cute.arch.thread_idx()
        warp = bridge.uniform(thread // 32)
        shared = tensor.SharedRegions(self.smem)
        columns = self.mma.accumulator.allocation
        if thread == 0:
            for barrier in self.barriers:
                bridge.barrier_init(shared[barrier.name], barrier.arrivals)
            bridge.barriers_visible()
        if warp == 0:
            tensor.tensor_allocate(shared["slot"], columns)
            tensor.tensor_relinquish()
        bridge.block_sync()
        base = tensor.tensor_address(shared["slot"])

        if warp == 0:
            # 1. One thread issues both TMA loads.
            if bridge.elect():
                zero = {"m": Int32(0), "n": Int32(0), "k": Int32(0)}
                bridge.barrier_expect(shared["loaded"], self.loaded.bytes)
                bridge.load_tile(map_a, self.a.tma, zero, shared["a"], shared["loaded"])
                bridge.load_tile(map_b, self.b.tma, zero, shared["b"], shared["loaded"])
            bridge.barrier_wait(shared["loaded"], 0)
            # 2. One thread issues an MMA per K block, twice; only the first does not accumulate.
            a = tensor.TensorOperand(self.a.descriptor, shared["a"], self.a.smem.bytes)
            b = tensor.TensorOperand(self.b.descriptor, shared["b"], self.b.smem.bytes)
            if bridge.elect():
                for again in cutlass.range_constexpr(2):
                    for block in cutlass.range_constexpr(len(self.a.descriptor.k_steps)):
                        words = a.word_at(0, block), b.word_at(0, block)
                        tensor.tensor_multiply(self.mma, self.word, base, *words, again + block > 0)
                tensor.tensor_commit(shared["done"])

        # 3. The commit arrives when the MMAs are complete; each thread then stores its row.
        bridge.barrier_wait(shared["done"], 0)
        tensor.fence_after_sync()
        n = self.sizes["n"]
        for column, value in enumerate(tensor.tensor_load(self.ld, base + warp * tmem_address(WARP_LANES, 0))):
            bridge.store_element(d + (thread * n + column) * 4, value, f32)

        tensor.fence_before_sync()
        bridge.block_sync()
        if warp == 0:
            tensor.fence_after_sync()
            tensor.tensor_free(base, columns)


def main() -> None:
    rng = np.random.default_rng(0)
    for kind, n, depth, a, b in (
        ("f16", 32, 64, "bf16", "bf16:col"),
        ("f16", 64, 32, "f16:col", "f16"),
        ("f8f6f4", 32, 64, "e4m3:col", "e5m2"),
        ("tf32", 16, 32, "tf32", "tf32:col"),
    ):
        kernel = Multiply(kind, n, depth, a, b)
        x = rng.integers(-3, 4, (M, depth)).astype(np.float32)
        y = rng.integers(-3, 4, (depth, n)).astype(np.float32)
        given = [
            np.ascontiguousarray(op.dtype.encode(v if op.order == "row" else v.T))
            for op, v in ((kernel.a, x), (kernel.b, y))
        ]
        d = np.full((M, n), np.nan, np.float32)
        name = f"kind::{kind}, A {a}, B {b}"
        emulate(name, kernel, {"a": given[0], "b": given[1], "d": d})
        right(name, d, 2 * x @ y, f"{M}x{n}x{depth} twice by {kernel.word:#010x}: exact, in every order of events")


if __name__ == "__main__":
    main()
