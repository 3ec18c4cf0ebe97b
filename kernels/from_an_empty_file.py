"""A kernel of one's own: squared distances D[i, j] = |a_i - b_j|^2 by wgmma. docs/empty_file.md explains it.

    python kernels/from_an_empty_file.py

Needs: dsl
"""

import cutlass
import cutlass.cute as cute
import numpy as np
from cuda.bindings.driver import CUstream
from cutlass import Int32, Int64
from cutlass.cute.runtime import make_fake_stream

from layoutgemm import emulate, mutate
from layoutgemm.atoms import wgmma
from layoutgemm.checks import self_loading
from layoutgemm.dtypes import bf16, f32
from layoutgemm.emulator.api import ORDERS
from layoutgemm.kernels.compile.compiler import compile_function
from layoutgemm.kernels.dsl import bridge
from layoutgemm.kernels.dsl.tables import load_word
from layoutgemm.kernels.ladder import levels
from layoutgemm.kernels.run.torch_tensors import target_here


class DistanceKernel:
    """One warpgroup and one 64x64 tile of D per CTA. Whatever is set here is a compile-time constant."""

    def __init__(self) -> None:
        self.tile_m, self.tile_n, self.tile_k, self.stages = 64, 64, 64, 4
        self.mma = wgmma(self.tile_n, "bf16")
        self.a = levels.operand("A", self.tile_m, self.tile_k, self.mma)  # tile, TMA load, descriptor
        self.b = levels.operand("B", self.tile_n, self.tile_k, self.mma)
        self.smem = levels.SharedMap.of(self.a.smem, self.b.smem, self.stages)
        self.pipeline = self_loading(self.stages, self.a.tma.bytes + self.b.tma.bytes)

    @cute.jit
    def __call__(self, a: Int64, b: Int64, na: Int64, nb: Int64, d: Int64, m: Int32, n: Int32, k: Int32,
                 lda: Int64, ldb: Int64, stream: bridge.Stream) -> None:  # fmt: skip
        """Host side: tensor maps and a launch. na, nb are the squared norms, f32; D is (M, N), f32."""
        sizes = {"m": m, "n": n, "k": k}
        maps = [bridge.encode_tensor_map(op.tma, x, sizes, ld) for op, x, ld in ((self.a, a, lda), (self.b, b, ldb))]
        grid, block = (levels.tiles(n, self.tile_n), levels.tiles(m, self.tile_m), 1), (self.mma.threads, 1, 1)
        self.kernel(*maps, na, nb, d, m, n, k).launch(grid=grid, block=block, smem=self.smem.total, stream=stream)

    @cute.kernel
    def kernel(self, map_a: cutlass.GridConstant[bridge.TensorMap], map_b: cutlass.GridConstant[bridge.TensorMap],
               na: Int64, nb: Int64, d: Int64, m: Int32, n: Int32, k: Int32) -> None:  # fmt: skip
        """Device side: one CTA."""
        thread, _, _ = cute.arch.thread_idx()
        column, row, _ = cute.arch.block_idx()
        m0, n0, k_tiles = row * self.tile_m, column * self.tile_n, levels.tiles(k, self.tile_k)
        shared, mma = bridge.SharedMemory(self.smem), bridge.Wgmma(self)
        if thread == 0:
            bridge.init_barriers(shared.full, self.stages, self.pipeline.mbarrier("full").arrivals)
        bridge.block_sync()
        for s in cutlass.range_constexpr(self.stages):
            self.load(shared, (map_a, map_b), (m0, n0, s), thread, s, k_tiles)
        of_a = bridge.WgmmaOperand(self.a.descriptor, shared.a(0), self.smem.a_stage_bytes)
        of_b = bridge.WgmmaOperand(self.b.descriptor, shared.b(0), self.smem.b_stage_bytes)
        sums = mma.accumulator()
        for k_tile in cutlass.range(k_tiles, unroll=1):
            stage = bridge.uniform(k_tile % self.stages)
            bridge.barrier_wait(shared.full(stage), k_tile // self.stages & 1)
            mma.multiply_blocks([sums], of_a, of_b, stage, k_tile > 0)
            mma.wait()
            bridge.block_sync()  # all warps have read the stage
            self.load(shared, (map_a, map_b), (m0, n0, k_tile + self.stages), thread, stage, k_tiles)
        for v in bridge.unrolled(self.mma.accumulator_registers):
            i, j = self.mma.coords_C(thread, v)  # the fragment map: the element that value v of this thread is
            if (i < m - m0) & (j < n - n0):
                norms = [bridge.as_floats([load_word(x + Int64(at) * 4)])[0] for x, at in ((na, m0 + i), (nb, n0 + j))]
                place = d + (Int64(m0 + i) * n + (n0 + j)) * f32.bytes
                bridge.store_element(place, norms[0] + norms[1] - 2.0 * sums[v], f32)

    @cute.jit
    def load(self, shared, maps, tile, thread, stage, k_tiles):  # type: ignore[no-untyped-def]  # traced
        """Issue one stage's TMA loads by one thread, if there is such a K tile."""
        if (thread == 0) & (tile[2] < k_tiles):
            full, origin = shared.full(stage), {"m": tile[0], "n": tile[1], "k": tile[2] * self.tile_k}
            bridge.barrier_expect(full, self.pipeline.mbarrier("full").bytes)
            bridge.load_tile(maps[0], self.a.tma, origin, shared.a(stage), full)
            bridge.load_tile(maps[1], self.b.tma, origin, shared.b(stage), full)


def on_gpu(made, m: int, n: int, k: int) -> bool:  # type: ignore[no-untyped-def]  # what cute.compile returned
    """Compare with float64 on a GPU, and print the time of a launch."""
    import torch

    a, b = (torch.randn(rows, k, device="cuda").bfloat16() for rows in (m, n))
    d, norms = torch.empty(m, n, device="cuda"), [x.float().square().sum(1) for x in (a, b)]
    stream, places = CUstream(torch.cuda.current_stream().cuda_stream), [x.data_ptr() for x in (a, b, *norms, d)]
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    for event, times in zip(events, (1, 20)):
        for _ in range(times):
            made(*places, m, n, k, k, k, stream)
        event.record()
    torch.cuda.synchronize()
    error = max(float((d[i] - (a[i].double() - b).square().sum(1)).abs().max()) for i in range(0, m, 1 + m // 16))
    print(f"{m}x{n}x{k}: largest error {error:.2g}, {events[0].elapsed_time(events[1]) / 20 * 1e3:.1f} us")
    return error < 1e-4 * k


if __name__ == "__main__":
    kernel, rng = DistanceKernel(), np.random.default_rng(0)
    m, n, k = 72, 136, 328  # ragged; more K tiles than stages
    print(levels.wgmma_report(kernel.mma, kernel.a, kernel.b, kernel.smem, kernel.pipeline).require())
    a, b = (rng.integers(-3, 4, (rows, k)).astype(np.float32) for rows in (m, n))
    d, want = np.zeros((m, n), np.float32), ((a[:, None] - b[None]) ** 2).sum(2)
    given = bf16.encode(a), bf16.encode(b), (a * a).sum(1), (b * b).sum(1), d, m, n, k, k, k
    dummies = *[Int64(0)] * 5, *[Int32(1)] * 3, *[Int64(8)] * 2, make_fake_stream()  # they say the types alone
    made = compile_function(kernel, *dummies, arch="sm_90a")  # without a GPU
    done = emulate(made, *given, policy=ORDERS)
    print(f"emulated: {len(done.findings)} finding(s), {int((d != want).sum())} of {d.size} elements are wrong")
    if done.findings or (d != want).any():
        raise SystemExit("\n".join(map(str, done.findings)) or f"the first wrong element: {np.argwhere(d != want)[0]}")
    survey = mutate(made, *given, count=12)
    print(f"{len(survey.rows) - len(survey.survivors)} of {len(survey.rows)} mutants are caught")
    if target_here(["sm_90a"], "") and not (on_gpu(made, 1000, 776, 520) and on_gpu(made, 8192, 8192, 1024)):
        raise SystemExit("wrong on the GPU")
