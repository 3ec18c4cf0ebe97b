"""DeepGEMM's bf16 kernel as a peer: the installed package, or kernels compiled elsewhere by `deepgemm_build.py`.

Each comes twice: as its package launches by default, and with programmatic dependent launch (its `set_pdl(True)`); the
kernel waits for the previous one before it reads or writes global memory, so both are right.

Compiled kernels are launched through ctypes, with the tensor maps and launch attributes of DeepGEMM's host code
(csrc/jit_kernels/impls/runtime_utils.hpp and csrc/jit/handle.hpp of 2.6.1). Numbers and structures are those of cuda.h;
`tests/benchmarks/test_deepgemm.py` reads them out of the header where it is installed.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.util
import json
from collections.abc import Callable, Sequence
from ctypes import POINTER, byref, c_int, c_uint, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers import LEFT_OUT
from layoutgemm.bench import Contender, Launch, Operands, Problem

NAME = "deepgemm"
WAYS = {NAME: False, f"{NAME} pdl": True}  # contender: with programmatic dependent launch?

# CUlaunchAttributeID, CUfunction_attribute
CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4
CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6
CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
# CUtensorMapDataType, CUtensorMapInterleave, CUtensorMapL2promotion, CUtensorMapFloatOOBfill
CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 = 9
CU_TENSOR_MAP_INTERLEAVE_NONE = 0
CU_TENSOR_MAP_L2_PROMOTION_L2_256B = 3
CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE = 0
# CUtensorMapSwizzle of each span in bytes; DeepGEMM calls no swizzle 16.
CU_TENSOR_MAP_SWIZZLE = {16: 0, 32: 1, 64: 2, 128: 3}

ELEMENT_BYTES = 2
TENSOR_MAP_BYTES, TENSOR_MAP_ALIGNMENT = 128, 64


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute: an identifier, padded to 8 bytes, and a union of 64 bytes."""

    _fields_ = (("id", c_uint), ("pad", ctypes.c_char * 4), ("value", c_uint * 16))


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        *((name, c_uint) for name in ("gridDimX", "gridDimY", "gridDimZ", "blockDimX", "blockDimY", "blockDimZ")),
        ("sharedMemBytes", c_uint),
        ("hStream", c_void_p),
        ("attrs", POINTER(LaunchAttribute)),
        ("numAttrs", c_uint),
    )


SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuLibraryLoadFromFile": (
        *(POINTER(c_void_p), ctypes.c_char_p),
        *(c_void_p, c_void_p, c_uint, c_void_p, c_void_p, c_uint),
    ),
    "cuLibraryGetKernelCount": (POINTER(c_uint), c_void_p),
    "cuLibraryEnumerateKernels": (POINTER(c_void_p), c_uint, c_void_p),
    "cuKernelGetFunction": (POINTER(c_void_p), c_void_p),
    "cuFuncSetAttribute": (c_void_p, c_int, c_int),
    "cuTensorMapEncodeTiled": (
        *(c_void_p, c_int, c_uint32, c_void_p, POINTER(c_uint64), POINTER(c_uint64), POINTER(c_uint32)),
        *(POINTER(c_uint32), c_int, c_int, c_int, c_int),
    ),
    "cuLaunchKernelEx": (POINTER(LaunchConfig), c_void_p, POINTER(c_void_p), c_void_p),
}


class DriverError(RuntimeError):
    """A call that did not return CUDA_SUCCESS."""


class Driver:
    """The CUDA driver, in the context that torch has made current."""

    def __init__(self, library: Any = None) -> None:
        self.library = library or ctypes.CDLL("libcuda.so.1")
        for name, arguments in SIGNATURES.items():
            function = getattr(self.library, name)
            function.argtypes, function.restype = arguments, c_int

    def call(self, name: str, *arguments: Any) -> None:
        """Call; raise on any status but success."""
        status = getattr(self.library, name)(*arguments)
        if status:
            raise DriverError(f"{name} returned status {status}")

    def function(self, cubin: Path, shared_bytes: int) -> c_void_p:
        """The only kernel of a cubin, allowed that much dynamic shared memory."""
        library, count, kernel, function = c_void_p(), c_uint(), c_void_p(), c_void_p()
        self.call("cuLibraryLoadFromFile", byref(library), str(cubin).encode(), None, None, 0, None, None, 0)
        self.call("cuLibraryGetKernelCount", byref(count), library)
        if count.value != 1:
            raise DriverError(f"{cubin} holds {count.value} kernels, not one")
        self.call("cuLibraryEnumerateKernels", byref(kernel), 1, library)
        self.call("cuKernelGetFunction", byref(function), kernel)
        self.call("cuFuncSetAttribute", function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes)
        return function


@dataclass(frozen=True)
class TensorMap:
    """Of a row-major bf16 matrix: columns and rows, pitch in bytes, columns and rows of the box, swizzle span."""

    extent: tuple[int, int]
    pitch: int
    box: tuple[int, int]
    swizzle: int

    def encoded(self, driver: Driver, pointer: int) -> Any:
        """The 128 bytes of it, at an address that is a multiple of 64."""
        room = ctypes.create_string_buffer(TENSOR_MAP_BYTES + TENSOR_MAP_ALIGNMENT)
        made = (ctypes.c_char * TENSOR_MAP_BYTES).from_buffer(room, -ctypes.addressof(room) % TENSOR_MAP_ALIGNMENT)
        driver.call(
            "cuTensorMapEncodeTiled",
            *(ctypes.addressof(made), CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, pointer),
            *((c_uint64 * 2)(*self.extent), (c_uint64 * 1)(self.pitch)),
            *((c_uint32 * 2)(*self.box), (c_uint32 * 2)(1, 1)),
            *(CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE[self.swizzle]),
            *(CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
        )
        return made


@dataclass(frozen=True)
class Kernel:
    """A compiled kernel: its cubin, and the numbers of DeepGEMM's `GemmConfig` by name."""

    cubin: Path
    config: dict[str, Any]

    def __str__(self) -> str:
        c = self.config
        cluster = f" cluster {c['cluster_m']}x{c['cluster_n']}" if c["cluster_m"] * c["cluster_n"] > 1 else ""
        return f"{c['block_m']}x{c['block_n']}x{c['block_k']}{cluster} {c['num_stages']} stages"

    def maps(self, problem: Problem, pitches: Sequence[int]) -> tuple[TensorMap, TensorMap, TensorMap]:
        """Of A, B and C, whose rows are those numbers of elements apart: a box is one swizzle span wide."""
        c, m, n, k = self.config, problem.m, problem.n, problem.k
        return (
            _map((k, m), pitches[0], c["load_block_m"], c["swizzle_a_mode"]),
            _map((k, n), pitches[1], c["load_block_n"], c["swizzle_b_mode"]),
            _map((n, m), pitches[2], c["store_block_m"], c["swizzle_cd_mode"]),
        )

    def launches(
        self, problem: Problem, pdl: bool, sets: Sequence[Operands], driver: Driver | None = None
    ) -> list[Launch]:
        """One launch for each operand set, on torch's current stream."""
        driver = driver or Driver()
        function = driver.function(self.cubin, self.config["smem_size"])
        return [self.launch(driver, function, problem, pdl, operands) for operands in sets]

    def launch(self, driver: Driver, function: c_void_p, problem: Problem, pdl: bool, operands: Operands) -> Launch:
        """A function that launches; what the driver reads lives as long as it does."""
        import torch

        pitches = [matrix.stride(0) for matrix in operands]
        maps = [
            of.encoded(driver, matrix.data_ptr())
            for of, matrix in zip(self.maps(problem, pitches), operands, strict=True)
        ]
        # grouped_layout, shape_m, shape_n, shape_k, tensor_map_a, tensor_map_b, tensor_map_cd
        values = [c_void_p(), *(c_uint32(size) for size in (problem.m, problem.n, problem.k)), *maps]
        parameters = (c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        attributes = self.attributes(pdl)
        listed = (LaunchAttribute * 2)(*attributes)
        config = LaunchConfig(
            *(self.config["num_sms"], 1, 1, self.config["num_threads"], 1, 1, self.config["smem_size"]),
            *(None, listed, len(attributes)),
        )

        def run(kept: Any = (values, listed)) -> None:
            config.hStream = torch.cuda.current_stream().cuda_stream
            driver.call("cuLaunchKernelEx", byref(config), function, parameters, None)

        return run

    def attributes(self, pdl: bool) -> list[LaunchAttribute]:
        """Those of the launch: a cluster along the grid, programmatic dependent launch."""
        cluster = self.config["cluster_m"] * self.config["cluster_n"]
        found = []
        if cluster > 1:
            found.append(LaunchAttribute(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, b"", (c_uint * 16)(cluster, 1, 1)))
        if pdl:
            found.append(LaunchAttribute(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, b"", (c_uint * 16)(1)))
        return found


def _map(extent: tuple[int, int], pitch: int, rows: int, swizzle: int) -> TensorMap:
    return TensorMap(extent, pitch * ELEMENT_BYTES, (swizzle // ELEMENT_BYTES, rows), swizzle)


@functools.cache
def index(folder: Path) -> dict[str, Any]:
    """What `deepgemm_build.py` wrote of a folder."""
    return json.loads((folder / "index.json").read_text(encoding="utf-8"))


def kernel(problem: Problem, folder: Path) -> Kernel | None:
    """The one compiled for that problem, if there is one."""
    found = index(folder)["kernels"].get(str(problem))
    return Kernel(folder / found["file"], found) if found else None


def version(folder: Path | None = None) -> str:
    """Of the compiled kernels or the installed package."""
    if folder:
        return f"{index(folder)['deepgemm']} (nvcc {index(folder)['nvcc']})"
    try:
        return str(importlib.import_module("deep_gemm").__version__) if installed() else "none"
    except Exception as error:
        return f"unknown ({type(error).__name__})"


def installed() -> bool:
    """Is there a package `deep_gemm`?"""
    return importlib.util.find_spec("deep_gemm") is not None


def deepgemm(problem: Problem, folder: Path | None = None) -> list[Contender]:
    """The folder's kernel for that problem, or the package; none, with a line in `LEFT_OUT`, where neither is there."""
    if folder:
        found = kernel(problem, folder)
        if found is None:
            LEFT_OUT[f"DeepGEMM, {problem}"] = f"{folder} holds no kernel for it"
            return []
        return [
            Contender(name, functools.partial(found.launches, problem, pdl), NAME, str(found))
            for name, pdl in WAYS.items()
        ]
    if not installed():
        LEFT_OUT["DeepGEMM"] = "no package deep_gemm, and no folder of compiled kernels (--deepgemm)"
        return []
    return [Contender(name, functools.partial(_package, pdl), NAME) for name, pdl in WAYS.items()]


def _package(pdl: bool, sets: Sequence[Operands]) -> list[Launch]:
    package = importlib.import_module("deep_gemm")

    def one(operands: Operands) -> Callable[[], None]:
        def run() -> None:
            package.set_pdl(pdl)
            package.bf16_gemm_nt(*operands)

        return run

    return [one(operands) for operands in sets]
