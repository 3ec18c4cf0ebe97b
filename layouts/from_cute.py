"""A CuTe DSL kernel whose layouts are proven, drawn and counted while it is traced.

python layouts/from_cute.py

Needs: dsl

A CTA copies a 64 x 64 bf16 tile to shared memory with cp.async, loads it into the fragments of a tiled MMA with
ldmatrix, and writes them to B. The kernel uses only the DSL. One line, `self.ask(...)`, passes its layout, its copies
and its MMA to `from_cute`. The results are proven, drawn and counted, without and with a swizzle. Then the compiled
kernel runs in the emulator, which counts the same bank conflicts.
"""

import tempfile
from typing import Any

import cutlass
import cutlass.cute as cute
import numpy as np
from cutlass.cute.nvgpu import cpasync, warp

import layoutgemm
from layoutgemm import from_cute
from layoutgemm.checks import bank_conflicts
from layoutgemm.checks.smem.access_patterns import tiled_access
from layoutgemm.view import swizzle_svg

TILE = (64, 64)


class Transit:
    """Copies A (M, K) row-major to B through shared memory and A's fragments."""

    def __init__(self, swizzle_bits: int):
        self.swizzle_bits = swizzle_bits

    @cute.jit
    def __call__(self, mA: cute.Tensor, mB: cute.Tensor):
        """Host side: creates the DSL's objects, checks them, and launches."""
        atom = cute.make_layout((8, 64), stride=(64, 1))
        swizzled = cute.make_composed_layout(cute.make_swizzle(self.swizzle_bits, 3, 3), 0, atom)
        sA_layout = cute.tile_to_shape(swizzled, TILE, (0, 1))

        vector = cute.make_copy_atom(cpasync.CopyG2SOp(), mA.element_type, num_bits_per_copy=128)
        rows = cute.make_layout((16, 8), stride=(8, 1))
        load = cute.make_tiled_copy_tv(vector, rows, cute.make_layout((1, 8)))

        op = warp.MmaF16BF16Op(mA.element_type, cutlass.Float32, (16, 8, 16))
        tiled_mma = cute.make_tiled_mma(op, (2, 2, 1), permutation_mnk=(32, 32, 16))
        matrices = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(False, 4), mA.element_type)
        ldsm = cute.make_tiled_copy_A(matrices, tiled_mma)

        self.ask(cute.local_tile(mA, TILE, (0, 0)), sA_layout, load, ldsm, tiled_mma)
        grid = (cute.ceil_div(mA.shape[0], TILE[0]), cute.ceil_div(mA.shape[1], TILE[1]), 1)
        self.kernel(mA, mB, sA_layout, load, ldsm, tiled_mma).launch(grid=grid, block=(128, 1, 1))

    @cute.kernel
    def kernel(
        self,
        mA: cute.Tensor,
        mB: cute.Tensor,
        sA_layout: cute.ComposedLayout,
        load: cute.TiledCopy,
        ldsm: cute.TiledCopy,
        tiled_mma: cute.TiledMma,
    ):
        """Device side: one CTA's tile, from global to shared memory, to fragments, and out."""
        thread, _, _ = cute.arch.thread_idx()
        row, column, _ = cute.arch.block_idx()
        gA, gB = (cute.local_tile(m, TILE, (row, column)) for m in (mA, mB))
        sA = cutlass.memory.SmemAllocator().allocate_tensor(mA.element_type, sA_layout, 16)

        mine = load.get_slice(thread)
        cute.copy(load, mine.partition_S(gA), mine.partition_D(sA))
        cute.arch.cp_async_commit_group()
        cute.arch.cp_async_wait_group(0)
        cute.arch.sync_threads()

        fragments = tiled_mma.get_slice(thread)
        tCrA = tiled_mma.make_fragment_A(fragments.partition_A(sA))
        matrices = ldsm.get_slice(thread)
        cute.copy(ldsm, matrices.partition_S(sA), matrices.retile(tCrA))
        cute.autovec_copy(tCrA, fragments.partition_A(gB))

    def ask(self, gA: Any, sA_layout: Any, load: Any, ldsm: Any, tiled_mma: Any) -> None:
        """Converts the DSL's objects during tracing, and checks them as layoutgemm values."""
        source, tile = from_cute(gA, names=("ld",)), from_cute(sA_layout, element="bf16")
        load, ldsm, mma = from_cute(load), from_cute(ldsm), from_cute(tiled_mma)

        vectors = load.vectors("src", source)  # for every ld that the kernel accepts
        apart = tile.is_injective()
        fed = ldsm.feeds(mma, "A", TILE)
        writes, reads = (bank_conflicts(tile, tiled_access(c, TILE), element="bf16") for c in (load, ldsm))
        self.reads = reads.wavefronts
        self.picture = swizzle_svg(tile, title=f"sA: {tile}")
        print(f"a tile of A: {source}, in shared memory: {tile}")
        print(f"  each 16-byte cp.async reads one aligned vector, at every ld: {vectors.explain().splitlines()[0]}")
        print(f"  each element has its own address: {apart.explain().splitlines()[0]}")
        print(f"  ldmatrix gives each register the element that the MMA expects: {fed.explain().splitlines()[0]}")
        print(f"  banks: cp.async writes {writes.ways}-way, ldmatrix reads {reads.ways}-way, {reads.wavefronts} passes")
        assert vectors and apart and fed


def rows_of(dtype: Any, divisibility: int) -> Any:
    """A row-major matrix of any size, with K a multiple of `divisibility`."""
    sizes = (cute.sym_int(), cute.sym_int(divisibility=divisibility))
    return cute.runtime.make_fake_compact_tensor(dtype, sizes, stride_order=(1, 0), assumed_align=16)


rng = np.random.default_rng(0)
a = rng.integers(0, 1 << 16, (128, 192), dtype=np.uint16)  # any bits: the kernel only copies
BLOCKS = 2 * 3
for bits in (0, 3):
    transit = Transit(bits)
    with tempfile.TemporaryDirectory() as folder:
        options = f"--gpu-arch sm_80 --keep-ptx --dump-dir {folder}"
        matrices = [rows_of(cutlass.BFloat16, 8) for _ in "AB"]
        compiled = cute.compile(transit, *matrices, options=options)
        b = np.zeros_like(a)
        done = layoutgemm.emulate(compiled, a, b, banks=True)
    launch = done.launches[0]
    counted = sum(row.use.wavefronts for row in launch.banks if row.ins.words[0] == "ldmatrix")
    assert np.array_equal(a, b) and not done.findings
    assert counted == BLOCKS * transit.reads, (counted, transit.reads)
    print(f"  emulated: correct, no race, ldmatrix takes {counted} = {BLOCKS} CTAs * {transit.reads} passes\n")
print(f"the swizzled tile as a picture: {len(transit.picture)} characters of SVG")
