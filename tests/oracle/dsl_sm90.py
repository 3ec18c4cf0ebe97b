"""The CuTe DSL's derivations for Hopper tiles: descriptor words and tensor-map boxes. A program:

    python dsl_sm90.py FOLDER < requests.json > answers.json

Requests are lists of `{"a": [major, swizzle], "b": [major, swizzle], "n": int, "k": int, "dtype": "bf16" | "f16"}`: a
64 x k tile A, an n x k tile B. For each, a small kernel is compiled in which NOTHING is ours: NVIDIA's
make_smem_layout_atom, tile_to_shape, make_tiled_mma, partition, make_tiled_tma_atom. Answers:

    wgmma   for each K block [a word, b word, a transposed, b transposed], read from the PTX
    boxes   for A and B the box of the DSL's tensor map, innermost first, from the type of its atom
    object, symbol   the exported host half, for host_launch.py: its launch passes A's encoded tensor map

A process of its own: on what it does not like the DSL sometimes kills it.
"""

from __future__ import annotations

import ctypes
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float16, Float32, Int32, Int64
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup
from cutlass.runtime import find_runtime_libraries

sys.path.insert(0, str(Path(__file__).resolve().parent))
from ptx_constants import wgmma_uses

_KINDS = {"none": "INTER", "32B": "SW32", "64B": "SW64", "128B": "SW128"}
_TYPES = {"bf16": BFloat16, "f16": Float16}
_BASIS = re.compile(r'tma_gbasis = <"\((\d+),(\d+)\):')


class Probe:
    """A kernel of the DSL's own parts: one tile of A and B, one wgmma for each K block."""

    def __init__(self, request: dict[str, Any]):
        self.majors = {"a": request["a"][0], "b": request["b"][0]}
        self.swizzles = {"a": request["a"][1], "b": request["b"][1]}
        self.extents = {"a": (64, request["k"]), "b": (request["n"], request["k"])}
        self.dtype = _TYPES[request["dtype"]]
        self.boxes: dict[str, list[int]] = {}

    def tile(self, name: str) -> Any:
        kind = getattr(warpgroup.SmemLayoutAtomKind, f"{self.majors[name]}_{_KINDS[self.swizzles[name]]}")
        order = (0, 1) if self.majors[name] == "K" else (1, 0)
        return cute.tile_to_shape(warpgroup.make_smem_layout_atom(kind, self.dtype), self.extents[name], order=order)

    def tma(self, name: str, address: Int64, extents: Any, leading: Int64) -> Any:
        pitch = cute.assume(leading, 8)
        strides = (pitch, 1) if self.majors[name] == "K" else (1, pitch)
        pointer = cute.make_ptr(self.dtype, address, cute.AddressSpace.gmem, assumed_align=16)
        tensor = cute.make_tensor(pointer, cute.make_layout(extents, stride=strides))
        op = cpasync.CopyBulkTensorTileG2SOp()
        atom, _ = cpasync.make_tiled_tma_atom(op, tensor, self.tile(name), self.extents[name])
        self.boxes[name] = [int(extent) for extent in _BASIS.search(str(atom._trait.value.type)).groups()]
        return atom

    @cute.jit
    def __call__(self, address: Int64, mn: Int32, k: Int32, leading: Int64):
        atom_a = self.tma("a", address, (mn, k), leading)
        self.tma("b", address, (mn, k), leading)
        self.kernel(atom_a, address).launch(grid=(1, 1, 1), block=(128, 1, 1))

    @cute.kernel
    def kernel(self, atom_a: cute.CopyAtom, address: Int64):
        cpasync.prefetch_descriptor(atom_a)
        majors = [getattr(OperandMajorMode, self.majors[name]) for name in "ab"]
        n, k = self.extents["b"]
        op = warpgroup.MmaF16BF16Op(self.dtype, Float32, (64, n, 16), warpgroup.OperandSource.SMEM, *majors)
        mma = cute.make_tiled_mma(op, (1, 1, 1))
        thread = mma.get_slice(0)
        allocator = cutlass.memory.SmemAllocator()
        layout_a, layout_b = self.tile("a"), self.tile("b")
        tensor_a = allocator.allocate_tensor(self.dtype, layout_a.outer, 1024, swizzle=layout_a.inner)
        tensor_b = allocator.allocate_tensor(self.dtype, layout_b.outer, 1024, swizzle=layout_b.inner)
        fragment_a = mma.make_fragment_A(thread.partition_A(tensor_a))
        fragment_b = mma.make_fragment_B(thread.partition_B(tensor_b))
        accumulator = cute.make_rmem_tensor(thread.partition_shape_C((64, n)), Float32)
        accumulator.fill(0.0)
        mma.set(warpgroup.Field.ACCUMULATE, True)
        warpgroup.fence()
        for block in cutlass.range_constexpr(k // 16):
            cute.gemm(mma, accumulator, fragment_a[None, None, block], fragment_b[None, None, block], accumulator)
        warpgroup.commit_group()
        warpgroup.wait_group(0)
        pointer = cute.make_ptr(Float32, address, cute.AddressSpace.gmem)
        cute.make_tensor(pointer, cute.make_layout(1))[0] = accumulator[0]


def answer(request: dict[str, Any], folder: Path, index: int) -> dict[str, Any]:
    probe = Probe(request)
    symbol = f"probe_{index}"
    with tempfile.TemporaryDirectory() as dump:
        options = f"--gpu-arch sm_90a --keep-ptx --keep-cubin --dump-dir {dump}"
        compiled = cute.compile(probe, Int64(0), Int32(1), Int32(1), Int64(8), options=options)
    compiled.export_to_c(str(folder), symbol, symbol)
    return {
        "wgmma": [[use.a, use.b, use.transpose_a, use.transpose_b] for use in wgmma_uses(compiled.__ptx__)],
        # the basis lists the box along the tensor's contiguous mode first, whichever mode of the tensor that is
        "boxes": probe.boxes,
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
