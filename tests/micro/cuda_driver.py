"""The few calls of the CUDA driver that a microkernel needs, through ctypes: no toolkit, no torch.

`Device.load` compiles PTX text, `Device.launch` runs a kernel on arrays; errors carry the compiler's log.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from layoutgemm.atoms.tma.rules import TensorMap

LOG_BYTES = 1 << 16
_INFO_LOG, _INFO_SIZE, _ERROR_LOG, _ERROR_SIZE = 3, 4, 5, 6  # CU_JIT_INFO_LOG_BUFFER and its neighbours
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR


class CudaError(RuntimeError):
    """A driver call failed: its name, the driver's name for the error, and the compiler's log where there is one."""


def available() -> str | None:
    """None when there is a driver and a GPU, else the reason why not."""
    try:
        with Device():
            return None
    except (OSError, CudaError) as error:
        return str(error)


class Device:
    """GPU 0 and its primary context."""

    def __init__(self) -> None:
        self.lib = ctypes.CDLL("libcuda.so.1")
        self._device = ctypes.c_int()
        self._context = ctypes.c_void_p()

    def __enter__(self) -> Device:
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(self._device), 0)
        self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.lib.cuDevicePrimaryCtxRelease_v2(self._device)

    def _open(self) -> None:
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self._device)
        self.call("cuCtxSetCurrent", self._context)

    def reopen(self) -> None:
        """A new context after an error that spoils the old one. An illegal address is one."""
        self.lib.cuDevicePrimaryCtxReset_v2(self._device)
        self.lib.cuDevicePrimaryCtxRelease_v2(self._device)
        self._context = ctypes.c_void_p()
        self._open()

    def call(self, name: str, *args: Any) -> None:
        code = getattr(self.lib, name)(*args)
        if code:
            text = ctypes.c_char_p()
            self.lib.cuGetErrorName(code, ctypes.byref(text))
            raise CudaError(f"{name}: {text.value.decode() if text.value else code}")

    @property
    def name(self) -> str:
        buffer = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", buffer, 256, self._device)
        return buffer.value.decode()

    @property
    def capability(self) -> tuple[int, int]:
        """Compute capability, as in (9, 0)."""
        values = []
        for attribute in (_MAJOR, _MINOR):
            value = ctypes.c_int()
            self.call("cuDeviceGetAttribute", ctypes.byref(value), attribute, self._device)
            values.append(value.value)
        return values[0], values[1]

    @property
    def target(self) -> str:
        """The architecture-specific target from sm_90 on, else the plain one."""
        major, minor = self.capability
        return f"sm_{major}{minor}{'a' if major >= 9 else ''}"

    @property
    def driver(self) -> tuple[int, int]:
        """The CUDA version of the driver."""
        value = ctypes.c_int()
        self.call("cuDriverGetVersion", ctypes.byref(value))
        return value.value // 1000, value.value % 1000 // 10

    @property
    def ptx_version(self) -> tuple[int, int]:
        """The newest PTX that this driver's compiler reads: 12.x reads 8.x up to 12.8 with 8.7 and 12.9 with 8.8."""
        major, minor = self.driver
        if major >= 13:
            return major - 4, minor
        return (8, minor if minor < 6 else minor - 1) if major == 12 else (7, minor)

    def load(self, ptx: str) -> ctypes.c_void_p:
        """Compile PTX text; raises CudaError with the log."""
        module = ctypes.c_void_p()
        error, info = ctypes.create_string_buffer(LOG_BYTES), ctypes.create_string_buffer(LOG_BYTES)
        keys = (ctypes.c_int * 4)(_ERROR_LOG, _ERROR_SIZE, _INFO_LOG, _INFO_SIZE)
        values = (ctypes.c_void_p * 4)(
            ctypes.cast(error, ctypes.c_void_p), LOG_BYTES, ctypes.cast(info, ctypes.c_void_p), LOG_BYTES
        )
        try:
            self.call("cuModuleLoadDataEx", ctypes.byref(module), ptx.encode(), 4, keys, values)
        except CudaError as why:
            log = error.value.decode(errors="replace").strip() or info.value.decode(errors="replace").strip()
            raise CudaError(f"{why}\n{log}".strip()) from None
        return module

    def unload(self, module: ctypes.c_void_p) -> None:
        self.lib.cuModuleUnload(module)

    def encode(self, tmap: TensorMap, address: int) -> tuple[Any, int]:
        """The driver's tensor map over the tensor at an address: what owns its 128 bytes, and where they lie."""
        held = ctypes.create_string_buffer(128 + 64)
        place = -(-ctypes.addressof(held) // 64) * 64
        given = tmap.encode_arguments()

        def numbers(kind: Any, values: Sequence[int]) -> Any:
            return (kind * max(1, len(values)))(*values)

        self.call(
            "cuTensorMapEncodeTiled",
            ctypes.c_void_p(place),
            ctypes.c_int(given["tensorDataType"]),
            ctypes.c_uint32(given["tensorRank"]),
            ctypes.c_void_p(address),
            numbers(ctypes.c_uint64, given["globalDim"]),
            numbers(ctypes.c_uint64, given["globalStrides"]),
            numbers(ctypes.c_uint32, given["boxDim"]),
            numbers(ctypes.c_uint32, given["elementStrides"]),
            *(ctypes.c_int(given[name]) for name in ("interleave", "swizzle", "l2Promotion", "oobFill")),
        )
        return held, place

    def launch(
        self,
        module: ctypes.c_void_p,
        name: str,
        grid: int,
        block: int,
        inputs: Sequence[npt.NDArray[Any]],
        outputs: Sequence[int],
        order: Sequence[int] | None = None,
        shared: int = 0,
        maps: Sequence[tuple[TensorMap, int]] = (),
    ) -> list[npt.NDArray[np.uint8]]:
        """Run a kernel whose parameters are pointers: the inputs, then the outputs, of so many bytes, as raw bytes.

        order   positions of the parameters among inputs + outputs, where the kernel lists them otherwise
        maps    tensor maps, by value, after the pointers: each over the buffer of that position in inputs + outputs
        Outputs begin as bytes 0xff, so what the kernel does not write shows.
        """
        function = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        held = [np.ascontiguousarray(array).view(np.uint8).reshape(-1) for array in inputs]
        held += [np.full(size, 0xFF, dtype=np.uint8) for size in outputs]
        pointers: list[ctypes.c_uint64] = []
        try:
            for array in held:
                pointer = ctypes.c_uint64()
                self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(max(array.nbytes, 4)))
                pointers.append(pointer)
                data = array.ctypes.data_as(ctypes.c_void_p)
                self.call("cuMemcpyHtoD_v2", pointer, data, ctypes.c_size_t(array.nbytes))
            chosen = [pointers[i] for i in (order if order is not None else range(len(pointers)))]
            encoded = [self.encode(tmap, pointers[i].value) for tmap, i in maps]
            places = [*(ctypes.addressof(pointer) for pointer in chosen), *(place for _, place in encoded)]
            arguments = (ctypes.c_void_p * len(places))(*places)
            self.call("cuLaunchKernel", function, grid, 1, 1, block, 1, 1, shared, None, arguments, None)
            self.call("cuCtxSynchronize")
            results = []
            for array, pointer in zip(held[len(inputs) :], pointers[len(inputs) :]):
                data = array.ctypes.data_as(ctypes.c_void_p)
                self.call("cuMemcpyDtoH_v2", data, pointer, ctypes.c_size_t(array.nbytes))
                results.append(array)
            return results
        finally:
            for pointer in pointers:
                self.lib.cuMemFree_v2(pointer)
