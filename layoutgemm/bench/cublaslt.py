"""cuBLASLt through ctypes: each algorithm that its heuristic proposes for a product, as a launch.

The library is the one that torch has loaded. Numbers are those of cublasLt.h, library_types.h (cudaDataType_t) and
cublas_api.h (cublasComputeType_t, cublasOperation_t). `tests/benchmarks/test_cublaslt.py` compares them with the
headers where those are installed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import POINTER, byref, c_float, c_int, c_size_t, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

WORKSPACE_BYTES = 32 << 20  # what torch gives cuBLAS on Hopper

# cudaDataType_t, cublasComputeType_t, cublasOperation_t
CUDA_R_32F, CUDA_R_16BF = 0, 14
CUBLAS_COMPUTE_32F = 68
CUBLAS_OP_N, CUBLAS_OP_T = 0, 1
# cublasLtMatmulDescAttributes_t, cublasLtMatmulPreferenceAttributes_t
CUBLASLT_MATMUL_DESC_TRANSA, CUBLASLT_MATMUL_DESC_TRANSB = 3, 4
CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1
# cublasLtMatmulAlgoConfigAttributes_t, with the type of each
ALGO_CONFIG = {
    "CUBLASLT_ALGO_CONFIG_ID": (0, ctypes.c_int32),
    "CUBLASLT_ALGO_CONFIG_TILE_ID": (1, ctypes.c_uint32),
    "CUBLASLT_ALGO_CONFIG_SPLITK_NUM": (2, ctypes.c_int32),
    "CUBLASLT_ALGO_CONFIG_STAGES_ID": (6, ctypes.c_uint32),
    "CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID": (8, ctypes.c_uint16),
}


class MatmulAlgo(ctypes.Structure):
    """cublasLtMatmulAlgo_t: 64 opaque bytes that may be copied."""

    _fields_ = (("data", c_uint64 * 8),)


class HeuristicResult(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t: an algorithm, its workspace, its state, waves of the grid."""

    _fields_ = (
        ("algo", MatmulAlgo),
        ("workspaceSize", c_size_t),
        ("state", c_int),
        ("wavesCount", c_float),
        ("reserved", c_int * 4),
    )


SIGNATURES: dict[str, tuple[object, ...]] = {
    "cublasLtCreate": (POINTER(c_void_p),),
    "cublasLtMatmulDescCreate": (POINTER(c_void_p), c_int, c_int),
    "cublasLtMatmulDescSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "cublasLtMatrixLayoutCreate": (POINTER(c_void_p), c_int, c_uint64, c_uint64, ctypes.c_int64),
    "cublasLtMatmulPreferenceCreate": (POINTER(c_void_p),),
    "cublasLtMatmulPreferenceSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "cublasLtMatmulAlgoGetHeuristic": (
        *(c_void_p,) * 7,
        *(c_int, POINTER(HeuristicResult), POINTER(c_int)),
    ),
    "cublasLtMatmulAlgoConfigGetAttribute": (POINTER(MatmulAlgo), c_int, c_void_p, c_size_t, POINTER(c_size_t)),
    "cublasLtMatmul": (
        *(c_void_p, c_void_p, POINTER(c_float), c_void_p, c_void_p, c_void_p, c_void_p, POINTER(c_float)),
        *(c_void_p, c_void_p, c_void_p, c_void_p, POINTER(MatmulAlgo), c_void_p, c_size_t, c_void_p),
    ),
}


class CublasLtError(RuntimeError):
    """A call that did not return CUBLAS_STATUS_SUCCESS."""


def loaded_library() -> str:
    """Path of the libcublasLt in this process. torch loads it with its first product on a GPU."""
    for entry in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        path = entry.split(maxsplit=5)[-1]
        if Path(path).name.startswith("libcublasLt.so"):
            return path
    raise CublasLtError("no libcublasLt is loaded in this process")


@dataclass(frozen=True)
class CublasLtMatrix:
    """A column-major matrix as cuBLASLt sees it: op(stored)."""

    op: int
    rows: int
    columns: int
    leading: int


def column_major(m: int, n: int, k: int, b_major: str) -> tuple[CublasLtMatrix, CublasLtMatrix, CublasLtMatrix]:
    """The two factors and the result of C^T = B @ A^T, all column-major.

    A row-major matrix read as column-major is its transpose. So C (M x N) becomes N x M, and A (M x K) becomes K x M
    without an op. B (N x K) becomes K x N with op T, or N x K with op N where N is contiguous.

    >>> column_major(5, 7, 3, "k")[0]
    CublasLtMatrix(op=1, rows=3, columns=7, leading=3)
    >>> column_major(5, 7, 3, "n")[0]
    CublasLtMatrix(op=0, rows=7, columns=3, leading=7)
    """
    b = CublasLtMatrix(CUBLAS_OP_T, k, n, k) if b_major == "k" else CublasLtMatrix(CUBLAS_OP_N, n, k, n)
    return b, CublasLtMatrix(CUBLAS_OP_N, k, m, k), CublasLtMatrix(CUBLAS_OP_N, n, m, n)


class CublasLt:
    """A handle and a workspace, on torch's current device."""

    def __init__(self) -> None:
        import torch

        one = torch.ones(16, 16, dtype=torch.bfloat16, device="cuda")
        torch.mm(one, one)
        self.library = ctypes.CDLL(loaded_library())
        for name, arguments in SIGNATURES.items():
            function = getattr(self.library, name)
            function.argtypes, function.restype = arguments, c_int
        self.library.cublasLtGetVersion.restype = c_size_t
        self.version = int(self.library.cublasLtGetVersion())
        self.workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
        self.handle = self._made("cublasLtCreate")
        self.one, self.zero = c_float(1.0), c_float(0.0)

    def call(self, name: str, *arguments: object) -> None:
        """Call; raise on any status but success."""
        status = getattr(self.library, name)(*arguments)
        if status:
            raise CublasLtError(f"{name} returned status {status}")

    def _made(self, name: str, *arguments: object) -> c_void_p:
        made = c_void_p()
        self.call(name, byref(made), *arguments)
        return made

    def product(self, m: int, n: int, k: int, b_major: str) -> CublasLtProduct:
        """The product of these sizes, to ask for its algorithms."""
        factors = column_major(m, n, k, b_major)
        descriptor = self._made("cublasLtMatmulDescCreate", CUBLAS_COMPUTE_32F, CUDA_R_32F)
        for attribute, factor in zip((CUBLASLT_MATMUL_DESC_TRANSA, CUBLASLT_MATMUL_DESC_TRANSB), factors):
            op = c_int(factor.op)
            self.call("cublasLtMatmulDescSetAttribute", descriptor, attribute, byref(op), ctypes.sizeof(op))
        layouts = [self._made("cublasLtMatrixLayoutCreate", CUDA_R_16BF, f.rows, f.columns, f.leading) for f in factors]
        return CublasLtProduct(self, descriptor, *layouts)


@dataclass(frozen=True)
class CublasLtProduct:
    """One product's descriptors: B, A and C as `column_major` has them."""

    lt: CublasLt
    descriptor: c_void_p
    b: c_void_p
    a: c_void_p
    c: c_void_p

    def algorithms(self, count: int) -> list[HeuristicResult]:
        """The first `count` usable proposals of the heuristic, its favourite first."""
        lt = self.lt
        preference = lt._made("cublasLtMatmulPreferenceCreate")
        size = c_uint64(WORKSPACE_BYTES)
        lt.call(
            "cublasLtMatmulPreferenceSetAttribute",
            *(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, byref(size), ctypes.sizeof(size)),
        )
        found, results = c_int(), (HeuristicResult * count)()
        lt.call(
            "cublasLtMatmulAlgoGetHeuristic",
            *(lt.handle, self.descriptor, self.b, self.a, self.c, self.c, preference, count, results, byref(found)),
        )
        return [result for result in results[: found.value] if result.state == 0]

    def describe(self, result: HeuristicResult) -> str:
        """The algorithm's identity, tile, stages, cluster and split, as the header's numbers."""
        values = []
        for name, (attribute, kind) in ALGO_CONFIG.items():
            value, written = kind(), c_size_t()
            status = self.lt.library.cublasLtMatmulAlgoConfigGetAttribute(
                byref(result.algo), attribute, byref(value), ctypes.sizeof(value), byref(written)
            )
            short = name.removeprefix("CUBLASLT_ALGO_CONFIG_").removesuffix("_ID").removesuffix("_NUM").lower()
            values.append(f"{'algo' if short == 'id' else short} {'?' if status else value.value}")
        return " ".join(values)

    def launch(self, result: HeuristicResult, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Callable[[], None]:
        """C = A @ B^T by that algorithm on torch's current stream."""
        import torch

        lt, workspace = self.lt, self.lt.workspace
        pa, pb, pc = a.data_ptr(), b.data_ptr(), c.data_ptr()
        before = (lt.handle, self.descriptor, byref(lt.one), pb, self.b, pa, self.a, byref(lt.zero), pc, self.c)
        after = (pc, self.c, byref(result.algo), workspace.data_ptr(), workspace.numel())

        def run() -> None:
            lt.call("cublasLtMatmul", *before, *after, torch.cuda.current_stream().cuda_stream)

        return run
