"""The CuTe DSL's derivations for Blackwell GEMMs: descriptors of operands and instructions, tensor maps. A program:

    python dsl_sm100.py FOLDER < requests.json > answers.json

Requests are lists of `{"m": 128 | 256, "n": int, "dtype": name, "b": name, "a_major": "K" | "MN",
"b_major": ..., "first": "a" | "b"}`: one tile of 128 bytes of K by one block or a pair. For each, a small kernel is
compiled in which NOTHING is ours: NVIDIA's make_trivial_tiled_mma, make_smem_layout_a and _b, partitions,
make_tiled_tma_atom_A and _B. Answers:

    uses    for each K block [a word, b word, instruction descriptor], read from the PTX, and group and kind
    object, symbol   the exported host half, for host_launch.py: its launch passes the encoded tensor map of operand
                     `first` ("a" or "b" of the request) as the kernel's first parameter

A process of its own: on what it does not like the DSL sometimes kills it.
"""

from __future__ import annotations

import ctypes
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import cutlass
import cutlass.cute as cute
import cutlass.utils.blackwell_helpers as sm100_utils
from cutlass import Float32, Int32, Int64
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05
from cutlass.runtime import find_runtime_libraries

sys.path.insert(0, str(Path(__file__).resolve().parent))
from ptx_constants import tcgen05_uses

_TYPES = {
    "bf16": cutlass.BFloat16, "f16": cutlass.Float16, "e4m3": cutlass.Float8E4M3FN, "e5m2": cutlass.Float8E5M2,
    "tf32": cutlass.TFloat32,
}  # fmt: skip
_BITS = {"bf16": 16, "f16": 16, "e4m3": 8, "e5m2": 8, "tf32": 32}


class Probe:
    """A kernel of the DSL's own parts: one tile of A and B, one tcgen05.mma for each K block."""

    def __init__(self, request: dict[str, Any]):
        self.a_type, self.b_type = _TYPES[request["dtype"]], _TYPES[request["b"]]
        self.majors = {name: request[f"{name}_major"] for name in "ab"}
        self.group = tcgen05.CtaGroup.ONE if request["m"] == 128 else tcgen05.CtaGroup.TWO
        self.blocks = request["m"] // 128
        self.first = request["first"]
        self.tiler = (request["m"], request["n"], 1024 // _BITS[request["dtype"]])

    def tma(self, name: str, mma: Any, layout: Any, address: Int64, extents: Any, leading: Int64) -> Any:
        kind = self.a_type if name == "a" else self.b_type
        pitch = cute.assume(leading, 128 // kind.width)
        strides = (pitch, 1) if self.majors[name] == "K" else (1, pitch)
        pointer = cute.make_ptr(kind, address, cute.AddressSpace.gmem, assumed_align=16)
        tensor = cute.make_tensor(pointer, cute.make_layout(extents, stride=strides))
        make = cute.nvgpu.make_tiled_tma_atom_A if name == "a" else cute.nvgpu.make_tiled_tma_atom_B
        op = cpasync.CopyBulkTensorTileG2SOp(self.group)
        cluster = cute.tiled_divide(cute.make_layout((self.blocks, 1, 1)), (mma.thr_id.shape,))
        atom, _ = make(op, tensor, cute.slice_(layout, (None, None, None, 0)), self.tiler, mma, cluster.shape)
        return atom

    def tiled_mma(self) -> Any:
        modes = [getattr(OperandMajorMode, self.majors[name]) for name in "ab"]
        return sm100_utils.make_trivial_tiled_mma(self.a_type, self.b_type, *modes, Float32, self.group, self.tiler[:2])

    @cute.jit
    def __call__(self, address: Int64, m: Int32, n: Int32, k: Int32, leading: Int64):
        mma = self.tiled_mma()
        layout_a = sm100_utils.make_smem_layout_a(mma, self.tiler, self.a_type, 1)
        layout_b = sm100_utils.make_smem_layout_b(mma, self.tiler, self.b_type, 1)
        atom_a = self.tma("a", mma, layout_a, address, (m, k), leading)
        atom_b = self.tma("b", mma, layout_b, address, (n, k), leading)
        atoms = (atom_a, atom_b) if self.first == "a" else (atom_b, atom_a)
        self.kernel(*atoms).launch(grid=(self.blocks, 1, 1), block=(32, 1, 1), cluster=(self.blocks, 1, 1))

    @cute.kernel
    def kernel(self, first: cute.CopyAtom, second: cute.CopyAtom):
        cpasync.prefetch_descriptor(first)
        cpasync.prefetch_descriptor(second)
        mma = self.tiled_mma()
        layout_a = sm100_utils.make_smem_layout_a(mma, self.tiler, self.a_type, 1)
        layout_b = sm100_utils.make_smem_layout_b(mma, self.tiler, self.b_type, 1)
        allocator = cutlass.memory.SmemAllocator()
        tensor_a = allocator.allocate_tensor(self.a_type, layout_a.outer, 1024, swizzle=layout_a.inner)
        tensor_b = allocator.allocate_tensor(self.b_type, layout_b.outer, 1024, swizzle=layout_b.inner)
        fragment_a, fragment_b = mma.make_fragment_A(tensor_a), mma.make_fragment_B(tensor_b)
        shape = mma.make_fragment_C(mma.partition_shape_C(self.tiler[:2])).layout
        pointer = cute.make_ptr(Float32, 0, cute.AddressSpace.tmem, assumed_align=16)
        accumulator = cute.make_tensor(pointer, shape)
        mma.set(tcgen05.Field.ACCUMULATE, True)
        for block in cutlass.range_constexpr(cute.size(fragment_a, mode=[2])):
            at = (None, None, block, 0)
            cute.gemm(mma, accumulator, fragment_a[at], fragment_b[at], accumulator)


def answer(request: dict[str, Any], folder: Path, index: int) -> dict[str, Any]:
    symbol = f"probe_{index}"
    with tempfile.TemporaryDirectory() as dump:
        options = f"--gpu-arch sm_100a --keep-ptx --keep-cubin --dump-dir {dump}"
        sizes = Int64(0), Int32(1), Int32(1), Int32(1), Int64(128)
        compiled = cute.compile(Probe(request), *sizes, options=options)
    compiled.export_to_c(str(folder), symbol, symbol)
    uses = tcgen05_uses(compiled.__ptx__)
    return {
        "uses": [[use.a, use.b, use.says] for use in uses],
        "group": uses[0].group,
        "kind": uses[0].kind,
        "object": str(folder / f"{symbol}.o"),
        "symbol": symbol,
    }


def main(folder: str) -> None:
    requests = json.load(sys.stdin)
    for path in find_runtime_libraries(enable_tvm_ffi=False):
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    json.dump([answer(request, Path(folder), index) for index, request in enumerate(requests)], sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
