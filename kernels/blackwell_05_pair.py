"""Tensor memory, 5: one thread issues tcgen05.mma for a CTA pair on two SMs.

    python kernels/blackwell_05_pair.py

Needs: dsl.

With cta_group::2 the two CTAs of a cluster compute one MMA of M = 256 (or 128). Each CTA loads half of A's rows and
half of B's rows, so the pair holds B once. Each CTA's tensor memory has half of the accumulator's rows, with all
columns. For M = 128 it has both column halves, one above the other. One thread of the even CTA issues the MMA. The
loads of both CTAs count at its mbarrier, and tcgen05.commit.multicast arrives in both CTAs when the MMAs are complete.
No Blackwell GPU has run this: its evidence is the compiler and the emulator.
"""

import cutlass
import cutlass.cute as cute
import numpy as np
from cutlass import Int32, Int64

from layoutgemm.atoms import tcgen05_ld, tcgen05_mma
from layoutgemm.atoms.smem.instruction_descriptor import instruction_descriptor
from layoutgemm.atoms.tmem.fragment import accumulator_fragment
from layoutgemm.atoms.tmem.layout import WARP_LANES, tmem_address
from layoutgemm.checks import Mbarrier
from layoutgemm.dtypes import f32
from layoutgemm.kernels import Operand
from layoutgemm.kernels.derive import derive_operand
from layoutgemm.kernels.dsl import bridge
from layoutgemm.kernels.dsl import tcgen05 as tensor
from layoutgemm.kernels.ladder.primitives import Regions, emulate, right

THREADS = 128


class Pair:
    """Computes D = A B^T of one tile by two CTAs."""

    def __init__(self, m: int, n: int, depth: int, a: str, b: str):
        a_given, b_given = Operand.parse(a), Operand.parse(b)
        self.mma = tcgen05_mma("f16" if a_given.dtype.bits == 16 else "f8f6f4", m, n, a_given.dtype, b_given.dtype,
                               cta_group=2)  # fmt: skip
        # One CTA's half of each operand, at the same descriptor in both CTAs.
        self.a = derive_operand("A", a_given, "M", m // 2, depth, None, self.mma)
        self.b = derive_operand("B", b_given, "N", n // 2, depth, None, self.mma)
        self.word = instruction_descriptor(self.mma, self.a.major, self.b.major).word
        self.ld = tcgen05_ld("32x32b", self.mma.accumulator.columns)
        self.fragment = accumulator_fragment(self.mma, self.ld)
        self.sizes = {"m": m, "n": n, "k": depth}
        self.smem = Regions.of(
            a=(self.a.smem.bytes, 1024), b=(self.b.smem.bytes, 1024), loaded=(8, 8), done=(8, 8), slot=(4, 8)
        )
        # Phases complete by the even CTA's loader and the bytes that both CTAs load, and by the commit's arrival in
        # every CTA of the mask.
        self.blocks = self.mma.cta_group
        self.both = (1 << self.blocks) - 1
        self.loaded = Mbarrier("loaded", count=1, bytes=self.blocks * (self.a.tma.bytes + self.b.tma.bytes))
        self.barriers = self.loaded, Mbarrier("done", count=1)

    @cute.jit
    def __call__(self, a: Int64, b: Int64, d: Int64, stream: bridge.Stream) -> None:
        """Host side: tensor maps, and a cluster of two CTAs."""
        extents = {name: Int32(size) for name, size in self.sizes.items()}
        map_a = bridge.encode_tensor_map(self.a.tma, a, extents, Int64(self.sizes[self.a.tma.dims[0]]))
        map_b = bridge.encode_tensor_map(self.b.tma, b, extents, Int64(self.sizes[self.b.tma.dims[0]]))
        size = (self.blocks, 1, 1)
        self.kernel(map_a, map_b, d).launch(
            grid=size, block=(THREADS, 1, 1), cluster=size, smem=self.smem.total, stream=stream
        )

    @cute.kernel
    def kernel(
        self,
        map_a: cutlass.GridConstant[bridge.TensorMap],
        map_b: cutlass.GridConstant[bridge.TensorMap],
        d: Int64,
    ) -> None:
        """Device side: one CTA of the pair."""
        thread, _, _ = cute.arch.thread_idx()
        warp, rank = bridge.uniform(thread // 32), bridge.rank_in_cluster()
        shared = tensor.SharedRegions(self.smem)
        columns = self.mma.accumulator.allocation
        if thread == 0:
            for barrier in self.barriers:
                bridge.barrier_init(shared[barrier.name], barrier.arrivals)
            bridge.barriers_visible()
        # 1. A warp of each CTA allocates, and both get the same columns. Then the pair synchronises.
        if warp == 0:
            tensor.tensor_allocate(shared["slot"], columns, self.blocks)
            tensor.tensor_relinquish(self.blocks)
        bridge.cluster_arrive()
        bridge.cluster_wait()
        base = tensor.tensor_address(shared["slot"])

        if warp == 0:
            # 2. Each CTA loads its halves; the even CTA's mbarrier expects the bytes of both.
            if bridge.elect():
                at = {"m": rank * self.a.smem.extent[0], "n": rank * self.b.smem.extent[0], "k": Int32(0)}
                if rank == 0:
                    bridge.barrier_expect(shared["loaded"], self.loaded.bytes)
                tensor.load_for_pair(map_a, self.a.tma, at, shared["a"], shared["loaded"])
                tensor.load_for_pair(map_b, self.b.tma, at, shared["b"], shared["loaded"])
            # 3. One thread of the even CTA issues the MMAs and commits to both CTAs.
            a = tensor.TensorOperand(self.a.descriptor, shared["a"], self.a.smem.bytes)
            b = tensor.TensorOperand(self.b.descriptor, shared["b"], self.b.smem.bytes)
            if rank == 0:
                bridge.barrier_wait(shared["loaded"], 0)
                if bridge.elect():
                    for block in cutlass.range_constexpr(len(self.a.descriptor.k_steps)):
                        words = a.word_at(0, block), b.word_at(0, block)
                        tensor.tensor_multiply(self.mma, self.word, base, *words, block > 0)
                    tensor.tensor_commit(shared["done"], self.blocks, self.both)

        # 4. Each thread of both CTAs stores its elements by the fragment map.
        bridge.barrier_wait(shared["done"], 0)
        tensor.fence_after_sync()
        n = self.sizes["n"]
        for v, value in enumerate(tensor.tensor_load(self.ld, base + warp * tmem_address(WARP_LANES, 0))):
            row, column = self.fragment.coords(rank * THREADS + thread, v)
            bridge.store_element(d + (row * n + column) * 4, value, f32)

        # 5. Neither CTA frees columns or exits before the other is done.
        tensor.fence_before_sync()
        bridge.cluster_arrive()
        bridge.cluster_wait()
        if warp == 0:
            tensor.fence_after_sync()
            tensor.tensor_free(base, columns, self.blocks)


def main() -> None:
    rng = np.random.default_rng(0)
    for m, n, depth, a, b in (
        (256, 32, 64, "bf16", "bf16:col"),
        (256, 32, 32, "e4m3:col", "e5m2"),
        (128, 64, 64, "f16", "f16:col"),
    ):
        kernel = Pair(m, n, depth, a, b)
        x = rng.integers(-3, 4, (m, depth)).astype(np.float32)
        y = rng.integers(-3, 4, (depth, n)).astype(np.float32)
        given = [
            np.ascontiguousarray(op.dtype.encode(v if op.order == "row" else v.T))
            for op, v in ((kernel.a, x), (kernel.b, y))
        ]
        d = np.full((m, n), np.nan, np.float32)
        name = f"M {m}, A {a}, B {b}"
        emulate(name, kernel, {"a": given[0], "b": given[1], "d": d})
        right(name, d, x @ y, f"{m}x{n}x{depth}, {kernel.mma.accumulator}: exact, in every order of events")


if __name__ == "__main__":
    main()
