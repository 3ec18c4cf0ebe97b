"""Tensor memory, 6: tcgen05.commit. It arrives at one mbarrier, at several in turn, or in every CTA.

    python kernels/blackwell_06_commit.py

Needs: dsl.

MMAs are asynchronous: the issuing thread continues at once. A commit arrives at an mbarrier when all MMAs that the
thread has issued *so far* are complete. Here two MMAs go into two accumulators, each with a commit to its own mbarrier.
A thread that waits for the first can read the first accumulator while the second MMA runs. A third commit is multicast:
it arrives at the same mbarrier in every CTA of the mask, which is how a CTA pair releases shared memory. The emulator
completes MMAs late, early, and in any order that the commits permit. No Blackwell GPU has run this: its evidence is the
compiler and the emulator.
"""

import cutlass
import cutlass.cute as cute
import numpy as np
from cutlass import Int32, Int64, const_expr

from layoutgemm.atoms import tcgen05_ld, tcgen05_mma
from layoutgemm.atoms.smem.instruction_descriptor import instruction_descriptor
from layoutgemm.atoms.tmem.layout import WARP_LANES, allocation_columns, tmem_address
from layoutgemm.checks import Mbarrier
from layoutgemm.dtypes import f32, i32
from layoutgemm.kernels import Operand
from layoutgemm.kernels.derive import derive_operand
from layoutgemm.kernels.dsl import bridge
from layoutgemm.kernels.dsl import tcgen05 as tensor
from layoutgemm.kernels.ladder.primitives import Regions, emulate, right

M, N, DEPTH, THREADS = 128, 16, 64, 128


class Commit:
    """CTA 0 multiplies into two accumulators, and commits to every CTA of the cluster."""

    def __init__(self, blocks: int):
        self.blocks = blocks
        given = Operand.parse("bf16"), Operand.parse("bf16:col")
        self.mma = tcgen05_mma("f16", M, N, "bf16")
        self.a = derive_operand("A", given[0], "M", M, DEPTH, None, self.mma)
        self.b = derive_operand("B", given[1], "N", N, DEPTH, None, self.mma)
        self.word = instruction_descriptor(self.mma).word
        self.ld = tcgen05_ld("32x32b", N)
        self.smem = Regions.of(
            a=(self.a.smem.bytes, 1024), b=(self.b.smem.bytes, 1024),
            loaded=(8, 8), first=(8, 8), second=(8, 8), everyone=(8, 8), slot=(4, 8),
        )  # fmt: skip
        # Phases complete by the loader's arrival and the bytes of both tiles, and by one commit.
        self.loaded = Mbarrier("loaded", count=1, bytes=self.a.tma.bytes + self.b.tma.bytes)
        self.barriers = self.loaded, *(Mbarrier(name, count=1) for name in ("first", "second", "everyone"))
        self.everyone = (1 << blocks) - 1 if blocks > 1 else None  # a bit for each CTA of the cluster

    @cute.jit
    def __call__(self, a: Int64, b: Int64, d: Int64, told: Int64, stream: bridge.Stream) -> None:
        """Host side: tensor maps, and a cluster."""
        extents = {"m": Int32(M), "n": Int32(N), "k": Int32(DEPTH)}
        map_a = bridge.encode_tensor_map(self.a.tma, a, extents, Int64(DEPTH))
        map_b = bridge.encode_tensor_map(self.b.tma, b, extents, Int64(DEPTH))
        size = (self.blocks, 1, 1)
        self.kernel(map_a, map_b, d, told).launch(
            grid=size, block=(THREADS, 1, 1), cluster=size, smem=self.smem.total, stream=stream
        )

    @cute.kernel
    def kernel(
        self,
        map_a: cutlass.GridConstant[bridge.TensorMap],
        map_b: cutlass.GridConstant[bridge.TensorMap],
        d: Int64,
        told: Int64,
    ) -> None:
        """Device side: one CTA of the cluster."""
        thread, _, _ = cute.arch.thread_idx()
        warp = bridge.uniform(thread // 32)
        rank = bridge.rank_in_cluster() if const_expr(self.blocks > 1) else Int32(0)
        shared = tensor.SharedRegions(self.smem)
        columns = allocation_columns(2 * N)
        if thread == 0:
            for barrier in self.barriers:
                bridge.barrier_init(shared[barrier.name], barrier.arrivals)
            bridge.barriers_visible()
        if warp == 0:
            tensor.tensor_allocate(shared["slot"], columns)
            tensor.tensor_relinquish()
        bridge.cluster_arrive()
        bridge.cluster_wait()
        base = tensor.tensor_address(shared["slot"])

        if warp == 0 and rank == 0:
            a = tensor.TensorOperand(self.a.descriptor, shared["a"], self.a.smem.bytes)
            b = tensor.TensorOperand(self.b.descriptor, shared["b"], self.b.smem.bytes)
            if bridge.elect():
                zero = {"m": Int32(0), "n": Int32(0), "k": Int32(0)}
                bridge.barrier_expect(shared["loaded"], self.loaded.bytes)
                bridge.load_tile(map_a, self.a.tma, zero, shared["a"], shared["loaded"])
                bridge.load_tile(map_b, self.b.tma, zero, shared["b"], shared["loaded"])
            bridge.barrier_wait(shared["loaded"], 0)
            # 1. Half of K into the first accumulator, all of K into the second, with a commit each.
            steps = len(self.a.descriptor.k_steps)
            if bridge.elect():
                for number, count, name in ((0, steps // 2, "first"), (1, steps, "second")):
                    for block in cutlass.range_constexpr(count):
                        words = a.word_at(0, block), b.word_at(0, block)
                        tensor.tensor_multiply(self.mma, self.word, base + number * N, *words, block > 0)
                    tensor.tensor_commit(shared[name])
                # 2. One more commit, to every CTA.
                tensor.tensor_commit(shared["everyone"], mask=self.everyone)

        # 3. Read each accumulator after its own commit.
        if rank == 0:
            own = base + warp * tmem_address(WARP_LANES, 0)
            for number, name in ((0, "first"), (1, "second")):
                bridge.barrier_wait(shared[name], 0)
                tensor.fence_after_sync()
                for column, value in enumerate(tensor.tensor_load(self.ld, own + number * N)):
                    bridge.store_element(d + ((number * M + thread) * N + column) * 4, value, f32)

        # 4. Every CTA waits for the multicast commit.
        bridge.barrier_wait(shared["everyone"], 0)
        if thread == 0:
            bridge.store_element(told + 4 * rank, Int32(rank + 1), i32)

        tensor.fence_before_sync()
        bridge.cluster_arrive()
        bridge.cluster_wait()
        if warp == 0:
            tensor.fence_after_sync()
            tensor.tensor_free(base, columns)


def main() -> None:
    rng = np.random.default_rng(0)
    for blocks in (1, 2):
        kernel = Commit(blocks)
        x, y = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((M, DEPTH), (N, DEPTH)))
        d, told = np.full((2, M, N), np.nan, np.float32), np.zeros(blocks, np.int32)
        encode = kernel.a.dtype.encode
        emulate(f"{blocks} block(s)", kernel, {"a": encode(x), "b": encode(y), "d": d, "told": told})
        want = np.stack([x[:, : DEPTH // 2] @ y[:, : DEPTH // 2].T, x @ y.T])
        right(f"{blocks} block(s)", d, want, "two products behind two commits: exact, in every order of events")
        said = f"a commit to mask {kernel.everyone or 1:#b} told all"
        right(f"{blocks} block(s)", told, np.arange(1, blocks + 1), said)


if __name__ == "__main__":
    main()
