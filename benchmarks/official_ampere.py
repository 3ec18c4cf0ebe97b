"""NVIDIA's Ampere example of the CuTe DSL with addresses and sizes as arguments. Needs the DSL."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Int32, Int64

from layoutgemm.kernels.dsl.types import Stream


class OfficialGemm:
    """The example's TensorOpGemm: bf16, with contiguous rows of a multiple of 16 bytes."""

    def __init__(self, path: Path, warps: tuple[int, int, int]):
        spec = importlib.util.spec_from_file_location("official_tensorop_gemm", path)
        assert spec is not None and spec.loader is not None, path
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        self.gemm = module.TensorOpGemm(BFloat16, BFloat16, cutlass.Float32, warps)

    @cute.jit
    def __call__(
        self, a: Int64, b: Int64, c: Int64, m: Int32, n: Int32, k: Int32,
        lda: Int64, ldb: Int64, ldc: Int64, stream: Stream,
    ) -> None:  # fmt: skip
        """C (m, n) = A (m, k) @ B (n, k)^T."""
        self.gemm(self.matrix(a, m, k, lda), self.matrix(b, n, k, ldb), self.matrix(c, m, n, ldc), stream)

    def matrix(self, address: Any, rows: Any, columns: Any, pitch: Any) -> Any:
        """A matrix of one batch in the example's form."""
        pointer = cute.make_ptr(BFloat16, address, cute.AddressSpace.gmem, assumed_align=16)
        stride = (cute.assume(Int32(pitch), divby=8), 1, 0)
        shape = (rows, cute.assume(columns, divby=8), 1)
        return cute.make_tensor(pointer, cute.make_layout(shape, stride=stride))
