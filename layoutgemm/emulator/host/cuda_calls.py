"""Stand-ins for cuda.bindings: streams, events, device queries, and memory of the host.

Each returns what the binding does, a tuple that begins with success. Modules, launches and graphs are in
`driver_modules.py`.
"""

from __future__ import annotations

import ctypes
import enum
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from types import ModuleType
from typing import SupportsInt, TypeAlias

import numpy as np
import numpy.typing as npt

from ...errors import EmulatorError
from ..races.unordered_launches import TouchedBytes
from .arguments import Place, bytes_at
from .devices import CUDA, GpuModel
from .driver_modules import DriverModules, Launched, host_address
from .graphs.bindings import GraphBindings, answering, success_of
from .graphs.graph import GraphWork, Handles, NodeKind
from .graphs.memory import GraphPool
from .torch_device.streams import CAPTURES, HostEvent, HostStream, asked_of

# Functions that return success and nothing else.
DONE = {
    "driver": (
        "cuInit", "cuStreamDestroy", "cuEventDestroy", "cuCtxSetCurrent", "cuDevicePrimaryCtxRelease",
    ),
    "runtime": (
        "cudaStreamDestroy", "cudaEventDestroy", "cudaSetDevice", "cudaGetLastError", "cudaDeviceReset",
        "cudaSetDeviceFlags", "cudaFuncSetAttribute", "cudaFuncSetCacheConfig", "cudaDeviceSetCacheConfig",
        "cudaDeviceSetLimit", "cudaMemPrefetchAsync", "cudaMemAdvise", "cudaProfilerStart", "cudaProfilerStop",
        "cudaStreamAttachMemAsync", "cudaMemPoolSetAttribute", "cudaMemPoolTrimTo", "cudaMemPoolDestroy",
        "cudaDeviceSetMemPool",
    ),
}  # fmt: skip

ALLOCATE = {
    "driver": ("cuMemAlloc", "cuMemAllocAsync"),
    "runtime": ("cudaMalloc", "cudaMallocAsync", "cudaMallocManaged", "cudaMallocHost", "cudaHostAlloc"),
}
FREE = {"driver": ("cuMemFree", "cuMemFreeAsync"), "runtime": ("cudaFree", "cudaFreeAsync", "cudaFreeHost")}
_COPY = {
    "driver": (
        "cuMemcpyHtoD", "cuMemcpyDtoH", "cuMemcpyDtoD", "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuMemcpy",
        "cuMemcpyDtoDAsync", "cuMemcpyAsync",
    ),
    "runtime": ("cudaMemcpy", "cudaMemcpyAsync"),
}  # fmt: skip
_FILL = {"driver": ("cuMemsetD8", "cuMemsetD8Async"), "runtime": ("cudaMemset", "cudaMemsetAsync")}
_FILL_WORDS: dict[str, tuple[str, ...]] = {"driver": ("cuMemsetD32", "cuMemsetD32Async"), "runtime": ()}
STATIC_SHARED = 48 << 10  # bytes of shared memory of a block that asks for no more, CUDA C++ Programming Guide
ALIGN = 256  # bytes to which cudaMalloc aligns, CUDA C++ Programming Guide
Binding: TypeAlias = Callable[..., object]
Memory: TypeAlias = SupportsInt | npt.NDArray[np.generic]


class DeviceMemory:
    """Allocations, which lie in host memory."""

    def __init__(self) -> None:
        self._held: dict[int, npt.NDArray[np.uint8]] = {}
        self._names: dict[int, str] = {}
        self._count = itertools.count(1)
        self.told: list[Callable[[int], object]] = []  # what is told the address of a new allocation

    def allocate(self, size: int, name: str = "") -> int:
        """The address of `size` new bytes. Findings name an allocation by its number, or by the given name."""
        made = self.reserved(size)
        return self.hold(made, name or self._numbered(made, "cudaMalloc"))

    def _numbered(self, made: npt.NDArray[np.uint8], function: str) -> str:
        return f"allocation {next(self._count)} ({len(made)} bytes of {function})"

    @staticmethod
    def reserved(size: int) -> npt.NDArray[np.uint8]:
        """Bytes at an address as cudaMalloc aligns it, which are not the device's yet."""
        whole = np.zeros(int(size) + ALIGN, np.uint8)
        first = -whole.ctypes.data % ALIGN
        return whole[first : first + int(size)]

    def hold(self, made: npt.NDArray[np.uint8], name: str) -> int:
        """Take bytes for the device's, until they are freed. Their address."""
        address = int(made.ctypes.data)
        self._held[address] = made
        self._names[address] = name
        for tell in self.told:
            tell(address)
        return address

    def adopt(self, address: int, size: int) -> None:
        """Take memory of the host for the device's, until it is freed."""
        made = bytes_at(address, size, None)
        self.hold(made, self._numbered(made, "cudaHostRegister"))

    def begins_at(self, address: int) -> bool:
        """True if an allocation begins at an address."""
        return address in self._held

    def holder(self, address: int) -> Place | None:
        """The allocation that holds an address, or None."""
        for low, made in self._held.items():
            if low <= address < low + len(made):
                return self._names[low], low, made
        return None

    def bytes_at(self, address: int) -> npt.NDArray[np.uint8]:
        """The allocation that begins at an address."""
        return self._held[address]

    def ordered(self, address: int, frees: bool = False) -> GraphWork:
        """The stream's work that begins an allocation, or ends it."""
        touched = TouchedBytes(address, len(self._held[address]), True, "takes back" if frees else "allocates")
        if not frees:
            return GraphWork(NodeKind.MEM_ALLOC, label="cudaMallocAsync", touched=(touched,))
        return GraphWork(NodeKind.MEM_FREE, lambda: self.free(address), "cudaFreeAsync", (touched,))

    def free(self, address: int) -> None:
        """Give an allocation back. Raises EmulatorError for an address at which no allocation begins."""
        if int(address) and self._held.pop(int(address), None) is None:
            raise EmulatorError(f"{int(address):#x} is freed, and no allocation begins there")


@contextmanager
def cuda_calls(device: GpuModel, memory: DeviceMemory, launch: Launched) -> Iterator[None]:
    """Within it the bindings that are imported answer for that device. `launch` gets their launches and streams."""
    from unittest import mock

    modules, handles = DriverModules(memory, launch), Handles()
    memory.told.append(CAPTURES.allocated)
    with ExitStack() as stack:
        for kind, module in _bindings().items():
            found = modules.functions(kind, module) | _functions(kind, module, device, memory)
            found |= GraphBindings(kind, module, handles, CAPTURES, modules.kernel_node).functions()
            for name, function in found.items():
                if hasattr(module, name):
                    stack.enter_context(mock.patch.object(module, name, function))
        if find_spec("cuda.bindings.nvrtc") is not None:
            from cuda.bindings import nvrtc

            for cubin, ptx in (("GetCUBINSize", "GetPTXSize"), ("GetCUBIN", "GetPTX")):  # a module of PTX for the GPU
                stack.enter_context(mock.patch.object(nvrtc, f"nvrtc{cubin}", getattr(nvrtc, f"nvrtc{ptx}")))
        yield


def _bindings() -> dict[str, ModuleType]:
    """The bindings, by kind, where they are installed."""
    try:
        from cuda.bindings import driver, runtime
    except ImportError:
        return {}
    return {"driver": driver, "runtime": runtime}


def _functions(kind: str, module: ModuleType, device: GpuModel, memory: DeviceMemory) -> dict[str, Binding]:
    """Stand-ins by name."""
    success = success_of(module)

    def answers(*values: object) -> Binding:
        return lambda *args, **named: (success, *values)

    def attribute(asked: enum.Enum, *args: object) -> tuple[object, int]:
        return success, attribute_of(int(asked.value), device)

    found = {name: answers() for name in DONE[kind]} | _memory_functions(kind, module, memory) | _waits(kind, module)
    if kind == "driver":
        return found | {
            "cuDeviceGetCount": answers(1),
            "cuDeviceGet": answers(module.CUdevice(0)),
            "cuCtxGetCurrent": answers(module.CUcontext(1)),
            "cuCtxGetDevice": answers(module.CUdevice(0)),
            "cuDevicePrimaryCtxRetain": answers(module.CUcontext(1)),
            "cuDeviceGetName": answers(device.name.encode()),
            "cuDriverGetVersion": answers(CUDA[0] * 1000 + CUDA[1] * 10),
            "cuDeviceGetAttribute": attribute,
        }
    return found | {
        "cudaGetDeviceCount": answers(1),
        "cudaGetDevice": answers(0),
        "cudaDeviceGetAttribute": attribute,
    }


NONBLOCKING = 1  # CU_STREAM_NON_BLOCKING, cudaStreamNonBlocking


def handle_of(stream: SupportsInt | None) -> int:
    """A stream's handle; of None that of the legacy stream."""
    return 0 if stream is None else int(stream)


def _waits(kind: str, module: ModuleType) -> dict[str, Binding]:
    """Stand-ins of streams and events. All work is done when it is asked for, but for what a stream captures."""
    success, prefix = success_of(module), "cu" if kind == "driver" else "cuda"
    stream_of, event_of = (module.CUstream, module.CUevent) if kind == "driver" else (
        module.cudaStream_t, module.cudaEvent_t
    )  # fmt: skip

    def created(flags: int = 0, *args: object) -> tuple[object, object]:
        handle = HostStream.new_handle()
        CAPTURES.order.are_several = True
        if int(flags) & NONBLOCKING:
            CAPTURES.nonblocking.add(handle)
        return success, stream_of(handle)

    def event(*args: object) -> tuple[object, object]:
        return success, event_of(HostEvent.new_handle())

    def recorded(event: SupportsInt, stream: SupportsInt | None = None, *flags: object) -> tuple[object]:
        CAPTURES.record(int(event), handle_of(stream))
        return (success,)

    def ordered(stream: SupportsInt | None, event: SupportsInt, *flags: object) -> tuple[object]:
        CAPTURES.wait(handle_of(stream), int(event))
        return (success,)

    def waited(stream: SupportsInt | None) -> tuple[object]:
        CAPTURES.synchronise(handle_of(stream), "a wait for a stream")
        return (success,)

    def whole(*args: object) -> tuple[object]:
        CAPTURES.synchronise(None, "a wait for the device")
        return (success,)

    def asked(event: SupportsInt) -> tuple[object]:
        CAPTURES.ask(int(event))
        return (success,)

    def elapsed(first: SupportsInt, second: SupportsInt) -> tuple[object, float]:
        for one in (first, second):
            CAPTURES.ask(int(one))
        return success, 1.0

    device = "CtxSynchronize" if kind == "driver" else "DeviceSynchronize"
    outputs: dict[str, tuple[Binding, int]] = {
        "StreamCreate": (created, 1), "StreamCreateWithFlags": (created, 1), "StreamCreateWithPriority": (created, 1),
        "EventCreate": (event, 1), "EventCreateWithFlags": (event, 1), "EventRecord": (recorded, 0),
        "EventRecordWithFlags": (recorded, 0), "StreamWaitEvent": (ordered, 0), "StreamSynchronize": (waited, 0),
        "StreamQuery": (waited, 0), "EventSynchronize": (asked, 0), "EventQuery": (asked, 0), device: (whole, 0),
        "EventElapsedTime": (elapsed, 1),
    }  # fmt: skip
    return {f"{prefix}{name}": answering(module, call, count) for name, (call, count) in outputs.items()}


def stream_of(is_async: bool, args: Sequence[SupportsInt | None]) -> int:
    """The handle of a call's stream, its last argument. Without one, that of the legacy stream."""
    return handle_of(args[-1]) if is_async and args else 0


def copied(module: ModuleType, name: str, to: Memory, source: Memory, size: int, *args: SupportsInt) -> tuple[object]:
    """A copy of bytes. One without a stream is synchronous, but for one between two places of the device."""
    is_async = name.endswith("Async")

    def run() -> None:
        ctypes.memmove(host_address(to), host_address(source), int(size))

    touched = (
        TouchedBytes(host_address(source), int(size), False),
        TouchedBytes(host_address(to), int(size), True),
    )
    waits = not is_async and "DtoD" not in name
    work = GraphWork(NodeKind.MEMCPY, run, f"a copy of {int(size)} bytes", touched)
    CAPTURES.do(stream_of(is_async, args), work, waits)
    return (success_of(module),)


def _memory_functions(kind: str, module: ModuleType, memory: DeviceMemory) -> dict[str, Binding]:
    """Stand-ins that allocate, copy and fill."""
    pool = GraphPool(memory)
    success, copy = success_of(module), partial(copied, module)

    def allocate(is_async: bool, size: int, *args: SupportsInt) -> tuple[object, object]:
        if (stream := stream_of(is_async, args)) and CAPTURES.on(stream) is not None:
            made = pool.allocation(int(size))
            CAPTURES.add(stream, made.mapping)
            address = made.address
        else:
            if not is_async:
                CAPTURES.unsafe("an allocation")
            address = memory.allocate(size)
            if is_async:
                CAPTURES.do(stream, memory.ordered(address))
        return success, module.CUdeviceptr(address) if kind == "driver" else address

    def free(is_async: bool, address: SupportsInt, *args: SupportsInt) -> tuple[object]:
        if (stream := stream_of(is_async, args)) and CAPTURES.on(stream) is not None:
            CAPTURES.add(stream, pool.freeing(int(address)))
            return (success,)
        if is_async and memory.begins_at(int(address)):
            CAPTURES.do(stream, memory.ordered(int(address), frees=True))
            return (success,)
        if not is_async:
            CAPTURES.unsafe("a release of memory")
        memory.free(int(address))
        return (success,)

    def filled(stream: int, to: Memory, content: bytes) -> tuple[object]:
        def run() -> None:
            ctypes.memmove(host_address(to), content, len(content))

        touched = (TouchedBytes(host_address(to), len(content), True),)
        asked_of(stream, run, NodeKind.MEMSET, f"a fill of {len(content)} bytes", touched)
        return (success,)

    def fill(is_async: bool, to: Memory, value: int, size: int, *args: SupportsInt) -> tuple[object]:
        return filled(stream_of(is_async, args), to, bytes([int(value) & 0xFF]) * int(size))

    def fill_words(is_async: bool, to: Memory, value: int, count: int, *args: SupportsInt) -> tuple[object]:
        return filled(stream_of(is_async, args), to, int(value).to_bytes(4, "little") * int(count))

    found: dict[str, Binding] = {}
    functions: tuple[tuple[Binding, tuple[str, ...], int], ...] = (
        (allocate, ALLOCATE[kind], 1), (free, FREE[kind], 0), (copy, _COPY[kind], 0), (fill, _FILL[kind], 0),
        (fill_words, _FILL_WORDS[kind], 0),
    )  # fmt: skip
    for function, names, outputs in functions:
        for name in names:
            bound = partial(function, name if names is _COPY[kind] else name.endswith("Async"))
            found[name] = answering(module, bound, outputs)
    return found


# Fields of cudaDeviceProp, by the number of the device attribute that repeats them: cudaDeviceAttr of driver_types.h,
# which are CUdevice_attribute's. An attribute that the structure lacks has a name in its manner.
_NUMBERED = {
    1: "maxThreadsPerBlock", 2: "maxThreadsDim0", 3: "maxThreadsDim1", 4: "maxThreadsDim2", 5: "maxGridSize0",
    6: "maxGridSize1", 7: "maxGridSize2", 8: "sharedMemPerBlock", 9: "totalConstMem", 10: "warpSize", 11: "memPitch",
    12: "regsPerBlock", 13: "clockRate", 14: "textureAlignment", 15: "gpuOverlap", 16: "multiProcessorCount",
    17: "kernelExecTimeout", 18: "integrated", 19: "canMapHostMemory", 20: "computeMode", 31: "concurrentKernels",
    33: "pciBusID", 34: "pciDeviceID", 35: "tccDriver", 36: "memoryClockRate", 38: "l2CacheSize",
    39: "maxThreadsPerMultiProcessor", 41: "unifiedAddressing",
    50: "pciDomainID", 51: "texturePitchAlignment", 75: "major", 76: "minor", 78: "streamPrioritiesSupported",
    81: "sharedMemPerMultiprocessor", 82: "regsPerMultiprocessor", 83: "managedMemory", 84: "isMultiGpuBoard",
    85: "multiGpuBoardGroupID", 88: "pageableMemoryAccess", 89: "concurrentManagedAccess",
    90: "computePreemptionSupported", 91: "canUseHostPointerForRegisteredMem", 95: "cooperativeLaunch",
    97: "sharedMemPerBlockOptin", 99: "hostRegisterSupported", 100: "pageableMemoryAccessUsesHostPageTables",
    101: "directManagedMemAccessFromHost", 106: "maxBlocksPerMultiProcessor", 111: "reservedSharedMemPerBlock",
    115: "memoryPoolsSupported", 120: "clusterLaunch", 133: "mpsEnabled",
}  # fmt: skip


def properties_of(device: GpuModel) -> dict[str, int]:
    """The numbers of a device that the emulator knows, by the fields of cudaDeviceProp.

    >>> properties_of(GpuModel.of("sm_90a"))["sharedMemPerBlockOptin"]
    232448
    """
    arch, most = device.arch, (1 << 31) - 1
    absent = ("kernelExecTimeout", "integrated", "computeMode", "pciBusID", "pciDeviceID", "pciDomainID", "tccDriver",
              "isMultiGpuBoard", "multiGpuBoardGroupID", "pageableMemoryAccess", "mpsEnabled",
              "pageableMemoryAccessUsesHostPageTables", "directManagedMemAccessFromHost")  # fmt: skip
    present = ("gpuOverlap", "canMapHostMemory", "concurrentKernels", "unifiedAddressing", "streamPrioritiesSupported",
               "managedMemory", "concurrentManagedAccess", "computePreemptionSupported", "cooperativeLaunch",
               "canUseHostPointerForRegisteredMem", "hostRegisterSupported", "memoryPoolsSupported")  # fmt: skip
    return dict.fromkeys(absent, 0) | dict.fromkeys(present, 1) | {
        "maxThreadsPerBlock": arch.threads_per_block, "maxThreadsDim0": 1024, "maxThreadsDim1": 1024,
        "maxThreadsDim2": 64, "maxGridSize0": most, "maxGridSize1": 65535, "maxGridSize2": 65535,
        "sharedMemPerBlock": STATIC_SHARED, "totalConstMem": 64 << 10, "warpSize": arch.warp_size, "memPitch": most,
        "regsPerBlock": 65536, "textureAlignment": 512, "multiProcessorCount": device.multiprocessors,
        "l2CacheSize": device.l2, "maxThreadsPerMultiProcessor": arch.threads_per_sm, "texturePitchAlignment": 32,
        "major": device.capability[0], "minor": device.capability[1], "sharedMemPerMultiprocessor": arch.smem_per_sm,
        "regsPerMultiprocessor": 65536, "sharedMemPerBlockOptin": arch.smem_per_block,
        "maxBlocksPerMultiProcessor": arch.blocks_per_sm, "reservedSharedMemPerBlock": arch.smem_reserved_per_block,
        "clusterLaunch": int("cluster" in arch.features),
        "clockRate": 1_000_000,  # kHz: %clock and %globaltimer count alike
        "memoryClockRate": 1_000_000,  # its transfers take no time of their own
    }  # fmt: skip


def attribute_of(number: int, device: GpuModel) -> int:
    """A device attribute by its number. Raises EmulatorError for one that has no value here."""
    if number not in _NUMBERED:
        raise EmulatorError(
            f"device attribute {number} (cudaDeviceAttr, driver_types.h) has no value on the emulated {device.name}"
        )
    return properties_of(device)[_NUMBERED[number]]
