"""CUDA C++ programs run above a runtime that launches in the emulator.

nvcc compiles a source to a library of host code and PTX. The runtime's functions that it calls are callbacks of this
process. Those without one are refused by name where they are called. Memory of the device is memory of the process.
"""

from __future__ import annotations

import ctypes
import inspect
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import DeviceAssertError, EmulatorError
from ..machine.launch import MULTIPROCESSORS
from ..machine.tensor_map import BYTES, from_driver
from ..races.unordered_launches import TouchedBytes
from .cuda_calls import ALLOCATE, DONE, FREE, DeviceMemory, attribute_of, properties_of
from .devices import CUDA, GpuModel
from .driver_modules import Launched, PtxFunction, PtxLaunch, PtxModule, parameter_bytes
from .graphs.capture import Captures
from .graphs.cpp_calls import EXTERNAL, Dim3, FillParams, GraphCalls, HostParams, KernelParams, Words
from .graphs.graph import GraphWork, Handles, NodeKind
from .graphs.memory import GraphPool
from .graphs.statuses import TEXTS, CudaStatusError, Status
from .graphs.stream_order import LEGACY
from .launcher import c_compiler, resident
from .textures import CudaArrays, Extent

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_REGISTERED = ("__cudaRegisterFatBinaryEnd", "__cudaUnregisterFatBinary", "__cudaInitModule")
# How a library is built that this module runs: PTX alone, as text.
NVCC_FLAGS = ("-shared", "-Xcompiler", "-fPIC", "-cudart", "none", "-no-compress", "-lineinfo")
_WRAPPER, _FATBIN, _PTX, _COMPRESSED = 0x466243B1, 0xBA55ED50, 1, 0xA000  # fatbinary_section.h, and nvcc's output
_COOPERATIVE, _CLUSTER, _DEPENDENT = 2, 4, 6  # cudaLaunchAttributeID, driver_types.h
_TO_DEVICE, _TO_HOST, _BETWEEN = 1, 2, 3  # cudaMemcpyKind
_NONBLOCKING = 1  # cudaStreamNonBlocking
# Ways to end a program, and handlers of its end: this process goes on and prints the findings.
STUB = """#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
extern char **environ;
static struct handler { void (*call)(void *); void *argument; struct handler *next; } *last;
static jmp_buf back;
static int status;
static pthread_t first;
int __cxa_atexit(void (*call)(void *), void *argument, void *library) {
  struct handler *made = malloc(sizeof *made);
  *made = (struct handler){call, argument, last};
  return last = made, 0;
}
void exit(int code) {
  status = code;
  if (pthread_equal(first, pthread_self())) longjmp(back, 1);
  pthread_exit(0);
}
void abort(void) { exit(134); }
void __assert_fail(const char *what, const char *file, unsigned line, const char *where) {
  fprintf(stderr, "%s:%u: %s: Assertion `%s' failed.\\n", file, line, where, what);
  abort();
}
int layoutgemm_run(int (*main)(int, char **, char **), int count, char **words) {
  first = pthread_self();
  if (!setjmp(back)) { int code = main(count, words, environ); status = code ? code : status; }
  for (struct handler *one; (one = last);) { last = one->next; one->call(one->argument); }
  return status;
}
"""
# Of a library within Python, whose destructors would call this process's functions after its end.
MODULE_STUB = "int __cxa_atexit(void (*call)(void *), void *argument, void *library) { return 0; }\n"

_CACHED = "; delete it from its cache if it was built before"
# Functions that may wait for other threads.
_CALLING = ("cudaLaunchHostFunc", "cudaStreamAddCallback", "cudaGraphLaunch")

_C = ctypes.CDLL(None)
_LOADED: list[object] = []  # libraries whose destructors may call their runtime until the process ends


class _Properties(ctypes.Structure):
    """`cudaDeviceProp` of CUDA 13; driver_types.h."""

    _fields_ = [
        (name, kind * count if count > 1 else kind)
        for kind, names in (
            (ctypes.c_char, "name:256 uuid:16 luid:8"),
            (ctypes.c_uint32, "luidDeviceNodeMask"),
            (ctypes.c_size_t, "totalGlobalMem sharedMemPerBlock"),
            (ctypes.c_int, "regsPerBlock warpSize"),
            (ctypes.c_size_t, "memPitch"),
            (ctypes.c_int, "maxThreadsPerBlock maxThreadsDim:3 maxGridSize:3"),
            (ctypes.c_size_t, "totalConstMem"),
            (ctypes.c_int, "major minor"),
            (ctypes.c_size_t, "textureAlignment texturePitchAlignment"),
            (ctypes.c_int, "multiProcessorCount integrated canMapHostMemory textures:39"),
            (ctypes.c_size_t, "surfaceAlignment"),
            (ctypes.c_int, "concurrentKernels ECCEnabled pciBusID pciDeviceID pciDomainID tccDriver asyncEngineCount"),
            (ctypes.c_int, "unifiedAddressing"),
            (ctypes.c_int, "memoryBusWidth l2CacheSize persistingL2CacheMaxSize maxThreadsPerMultiProcessor"),
            (ctypes.c_int, "streamPrioritiesSupported globalL1CacheSupported localL1CacheSupported"),
            (ctypes.c_size_t, "sharedMemPerMultiprocessor"),
            (ctypes.c_int, "regsPerMultiprocessor managedMemory multiGpu:2 hostNativeAtomicSupported"),
            (ctypes.c_int, "pageableMemoryAccess concurrentManagedAccess computePreemptionSupported"),
            (ctypes.c_int, "canUseHostPointerForRegisteredMem cooperativeLaunch"),
            (ctypes.c_size_t, "sharedMemPerBlockOptin"),
            (ctypes.c_int, "pageableMemoryAccessUsesHostPageTables directManagedMemAccessFromHost"),
            (ctypes.c_int, "maxBlocksPerMultiProcessor accessPolicyMaxWindowSize"),
            (ctypes.c_size_t, "reservedSharedMemPerBlock"),
            (ctypes.c_int, "hostRegisterSupported sparse:2 timelines memoryPoolsSupported directAccess:3 handleTypes"),
            (ctypes.c_int, "deferredMapping ipcEventSupported clusterLaunch rest:64"),
        )
        for name, count in ((word.partition(":")[0], int(word.partition(":")[2] or 1)) for word in names.split())
    ]


_STRUCTURES: dict[str, type[ctypes.Structure]] = {"Dim3": Dim3, "Extent": Extent}  # that C passes by value


@dataclass(frozen=True, eq=False)
class RegisteredImage:
    """The PTX of one registered image, read when it is first needed."""

    text: str
    memory: DeviceMemory

    @cached_property
    def module(self) -> PtxModule:
        """The module of that text."""
        return PtxModule.of(self.text, self.memory)


def ptx_of(wrapper: int, capability: tuple[int, int]) -> str:
    """The PTX of an image that nvcc registers: the newest that this GPU takes. Raises EmulatorError for none."""
    magic, _ = (ctypes.c_uint32 * 2).from_address(wrapper)
    at = ctypes.c_uint64.from_address(wrapper + 8).value
    if magic != _WRAPPER or ctypes.c_uint32.from_address(at).value != _FATBIN:
        raise EmulatorError(f"an image of CUDA begins with {magic:#x}, not {_WRAPPER:#x}")
    at, end = at + 16, at + 16 + ctypes.c_uint64.from_address(at + 8).value
    found: dict[int, str] = {}
    while at < end:
        kind = ctypes.c_uint16.from_address(at).value
        header, size = ctypes.c_uint32.from_address(at + 4).value, ctypes.c_uint64.from_address(at + 8).value
        arch, flags = ctypes.c_uint32.from_address(at + 28).value, ctypes.c_uint64.from_address(at + 40).value
        if kind == _PTX and arch <= 10 * capability[0] + capability[1]:
            if flags & _COMPRESSED:
                raise EmulatorError(f"the program's PTX is compressed: build it with nvcc -no-compress{_CACHED}")
            found[arch] = ctypes.string_at(at + header, size).rstrip(b"\0").decode()
        at += header + size
    if not found:
        raise EmulatorError(
            "the program has no PTX for compute capability {}.{}: build it with nvcc -gencode "
            "arch=compute_90a,code=compute_90a, for that GPU{}".format(*capability, _CACHED)
        )
    return found[max(found)]


class CudaRuntime:
    """The functions of CUDA's runtime that a program calls, and what its handles stand for."""

    def __init__(self, device: GpuModel, memory: DeviceMemory, launch: Launched, fatal: list[EmulatorError]) -> None:
        self.device, self.memory, self.fatal = device, memory, fatal
        self.captures, self.handles, self.pool = Captures(), Handles(), GraphPool(memory)
        self.arrays = CudaArrays(memory, self._copy, self.enqueue)
        memory.told.append(self.captures.allocated)
        self._launch = launch
        self._programs: list[RegisteredImage] = []
        self._kernels: dict[int, tuple[RegisteredImage, str]] = {}
        self._variables: dict[int, tuple[RegisteredImage, str]] = {}
        self._pushed: list[tuple[Dim3, Dim3, int, int]] = []
        self._handles = iter(range(1, 1 << 30))
        self._texts: dict[int, bytes] = {}
        self._failed = 0  # the status after a kernel that could not go on: a GPU keeps it
        self._lock = threading.RLock()  # the program may have threads
        self._status = 0  # of the last function, until a program asks for it
        self._callbacks: dict[str, tuple[object, int]] = {}  # what C calls, and its address

    # ------------------------------------------------------------------------------------ functions by name

    def functions(self) -> dict[str, Callable[..., int | None]]:
        """The functions that have an answer, by name."""

        def done(*args: object) -> int:
            return self._failed

        return (
            dict.fromkeys((*DONE["runtime"], *_REGISTERED), done)
            | self._registration() | self._launches() | self._allocations() | self._copies()
            | self._device_variables() | self._queries()
            | self._streams() | self._waits() | self.arrays.functions() | GraphCalls(self).functions()
        )  # fmt: skip

    def callback(self, name: str) -> int:
        """The address of a function for C, which answers as CUDA's does. One without an answer is refused."""
        if name not in self._callbacks:
            plain = self.functions().get(name) or self._refusal(name)
            parameters = inspect.signature(plain).parameters.values()
            words = [one.annotation for one in parameters if one.kind != one.VAR_POSITIONAL]
            kinds = [_STRUCTURES.get(word, ctypes.c_size_t) for word in words]

            def call(*args: object) -> int:
                try:
                    with nullcontext() if name in _CALLING else self._lock:
                        status = plain(*args) or 0
                except CudaStatusError as error:
                    status = self._failed or error.status
                except EmulatorError as error:
                    if error not in self.fatal:
                        self.fatal.append(error)
                    status = self._failed or Status.INVALID_VALUE
                except BaseException as error:  # none may pass through C
                    self.failure(f"{name}: {type(error).__name__}: {error}")
                    status = self._failed or Status.INVALID_VALUE
                if 0 < status < 1000 and name.lstrip("_").startswith("cuda") and not name.endswith("LastError"):
                    self._status = status
                return status

            made = ctypes.CFUNCTYPE(ctypes.c_size_t, *kinds)(call)
            self._callbacks[name] = made, ctypes.cast(made, ctypes.c_void_p).value or 0
        return self._callbacks[name][1]

    def failure(self, text: str) -> EmulatorError:
        """An error of that text, which the report of the GPU has."""
        self.fatal.append(EmulatorError(text))
        return self.fatal[-1]

    def _refusal(self, name: str) -> Callable[..., int]:
        def refuse(*args: object) -> int:
            text = f"the program calls {name}, which has no answer on an emulated GPU"
            if text not in map(str, self.fatal):
                self.failure(text)
            return Status.NOT_SUPPORTED

        return refuse

    def _registration(self) -> dict[str, Callable[..., int | None]]:
        """Registration of images, kernels and variables, before `main`."""

        def image(wrapper: int) -> int:
            self._programs.append(RegisteredImage(ptx_of(wrapper, self.device.capability), self.memory))
            return len(self._programs)

        def kernel(handle: int, host: int, device: int, name: int) -> None:
            self._kernels[host] = self._programs[handle - 1], ctypes.string_at(name).decode()

        def variable(handle: int, host: int, device: int, name: int) -> None:
            self._variables[host] = self._programs[handle - 1], ctypes.string_at(name).decode()

        def managed(handle: int, host: int, device: int, name: int) -> None:
            array = self._programs[handle - 1].module.variables[ctypes.string_at(name).decode()]
            ctypes.c_uint64.from_address(host).value = array.ctypes.data

        def handle_of(out: int, host: int) -> None:
            ctypes.c_uint64.from_address(out).value = host

        return {
            "__cudaRegisterFatBinary": image,
            "__cudaRegisterFunction": kernel,
            "__cudaRegisterVar": variable,
            "__cudaRegisterManagedVar": managed,
            "__cudaGetKernel": handle_of,
        }

    # ------------------------------------------------------------------------------------ launches

    def function(self, host: int) -> PtxFunction:
        """The kernel that a host function's address stands for."""
        if host not in self._kernels:
            raise EmulatorError(f"{host:#x} is launched, and no kernel of the program is registered there")
        program, name = self._kernels[host]
        return PtxFunction(program.module, program.module.kernels[name])

    def enqueue(self, stream: int, work: GraphWork) -> int:
        """Do work that is asked of a stream, or capture it. The status."""
        if self._failed:
            return self._failed
        # A copy without a stream is synchronous, but for one between two places of the device.
        between = isinstance(work.params, Words) and work.params[19] == _BETWEEN
        waits = work.kind is NodeKind.MEMCPY and stream in LEGACY and not between
        self.captures.do(stream, work, waits)
        return self._failed

    def kernel_work(
        self, params: KernelParams, cooperative: bool = False, cluster: Sequence[int] = (), dependent: bool = False
    ) -> GraphWork:
        """The launch of a kernel. Raises CudaStatusError for a grid or block that cannot be launched."""
        if params.extra:
            raise EmulatorError("a launch with `extra` is not emulated: give kernelParams")
        function = self.function(params.function)
        kernel, (x, y, z), (wide, high, deep) = function.kernel, params.grid.sizes, params.block.sizes
        if min(x, y, z, wide, high, deep) < 1:
            raise CudaStatusError(Status.INVALID_CONFIGURATION, f"grid {(x, y, z)}, block {(wide, high, deep)}")
        room = resident(kernel.target, wide * high * deep, params.shared)
        if cooperative and x * y * z > room:
            why = f"{x * y * z} blocks, of which {room} are resident at once"
            raise CudaStatusError(Status.COOPERATIVE_LAUNCH_TOO_LARGE, why)
        size = (*(cluster or kernel.directives.get(".reqnctapercluster") or (1,)), 1, 1)[:3]
        content = parameter_bytes(kernel, params.given)
        one = PtxLaunch(
            function, (x, y, z), (wide, high, deep), (size[0], size[1], size[2]), params.shared, content, dependent,
            self.arrays.textures,
        )  # fmt: skip
        kept = KernelParams.from_buffer_copy(params)
        kept.launch, kept.cooperative, kept.cluster = one, cooperative, tuple(cluster)
        kept.content = ctypes.create_string_buffer(content, max(1, len(content)))
        first = ctypes.addressof(kept.content)
        kept.places = (ctypes.c_size_t * max(1, len(kernel.parameters)))(*[first + p.offset for p in kernel.parameters])
        kept.given = ctypes.addressof(kept.places)
        return GraphWork(NodeKind.KERNEL, lambda: self._begin(one), kernel.name, params=kept)

    def _begin(self, one: PtxLaunch) -> None:
        _C.fflush(None)
        try:
            self._launch(one, 0)
        except BaseException as error:
            self._failed = Status.ASSERT if isinstance(error, DeviceAssertError) else Status.LAUNCH_FAILURE
            raise
        sys.stdout.flush()

    def changed_launch(self, work: GraphWork, attribute: int, value: Sequence[int]) -> GraphWork:
        """A kernel's launch with another attribute."""
        kept = work.params
        assert isinstance(kept, KernelParams)
        found = {_COOPERATIVE: [int(kept.cooperative)], _CLUSTER: kept.cluster, _DEPENDENT: [kept.launch.dependent]}
        found[attribute] = list(value)
        cluster = found[_CLUSTER][:3]
        return self.kernel_work(kept, bool(found[_COOPERATIVE][0]), cluster, bool(found[_DEPENDENT][0]))

    def launch_attribute(self, work: GraphWork, attribute: int) -> Sequence[int]:
        """An attribute of a kernel's launch; 0 for one that no kernel sees."""
        kept = work.params
        assert isinstance(kept, KernelParams)
        found = {_COOPERATIVE: [int(kept.cooperative)], _CLUSTER: kept.launch.cluster}
        return found.get(attribute, [int(kept.launch.dependent)] if attribute == _DEPENDENT else [0])

    def _run(
        self, host: int, grid: Dim3, block: Dim3, shared: int, given: int, stream: int, cluster: Sequence[int] = (),
        cooperative: bool = False, dependent: bool = False,
    ) -> int:  # fmt: skip
        if self._failed:
            return self._failed
        params = KernelParams(host, grid, block, shared, given, 0)
        return self.enqueue(stream, self.kernel_work(params, cooperative, cluster, dependent))

    def _launches(self) -> dict[str, Callable[..., int | None]]:
        """Launches of kernels."""

        def push(grid: Dim3, block: Dim3, shared: int, stream: int) -> None:
            self._pushed.append((Dim3(*grid.sizes), Dim3(*block.sizes), shared, stream))

        def pop(grid: int, block: int, shared: int, stream: int) -> None:
            sizes, threads, size, chosen = self._pushed.pop()
            ctypes.memmove(grid, ctypes.addressof(sizes), 12)
            ctypes.memmove(block, ctypes.addressof(threads), 12)
            ctypes.c_size_t.from_address(shared).value = size
            ctypes.c_size_t.from_address(stream).value = chosen

        def plain(host: int, grid: Dim3, block: Dim3, given: int, shared: int, stream: int) -> int:
            return self._run(host, grid, block, shared, given, stream)

        def cooperative(host: int, grid: Dim3, block: Dim3, given: int, shared: int, stream: int) -> int:
            return self._run(host, grid, block, shared, given, stream, cooperative=True)

        def extended(config: int, host: int, given: int) -> int:
            sizes = (ctypes.c_uint32 * 6).from_address(config)
            shared, stream, at, count = (ctypes.c_size_t * 4).from_address(config + 24)
            seen: dict[int, list[int]] = {}
            for place in range(at, at + 72 * (count & 0xFFFFFFFF), 72):  # cudaLaunchAttribute, driver_types.h
                kind, _, *value = (ctypes.c_uint32 * 5).from_address(place)
                seen[kind] = value
            return self._run(
                host, Dim3(*sizes[:3]), Dim3(*sizes[3:]), shared, given, stream, cluster=seen.get(_CLUSTER, ())[:3],
                cooperative=bool(seen.get(_COOPERATIVE, [0])[0]), dependent=bool(seen.get(_DEPENDENT, [0])[0]),
            )  # fmt: skip

        def occupancy(out: int, host: int, threads: int, shared: int) -> None:
            kernel = self.function(host).kernel
            room = resident(kernel.target, threads & 0xFFFFFFFF, shared) // MULTIPROCESSORS
            ctypes.c_int.from_address(out).value = room

        def attributes(out: int, host: int) -> None:
            self.function(host)
            ctypes.memset(out, 0, 3 * 8)  # cudaFuncAttributes: three sizes, and the most threads and other numbers
            arch, version = self.device.arch, 10 * self.device.capability[0] + self.device.capability[1]
            found = (ctypes.c_int * 6)(arch.threads_per_block, 32, version, version, 0, arch.smem_per_block)
            ctypes.memmove(out + 24, found, ctypes.sizeof(found))

        return {
            "__cudaPushCallConfiguration": push,
            "__cudaPopCallConfiguration": pop,
            "__cudaLaunchKernel": plain,
            "cudaLaunchKernel": plain,
            "cudaLaunchCooperativeKernel": cooperative,
            "cudaLaunchKernelExC": extended,
            "cudaOccupancyMaxActiveBlocksPerMultiprocessor": occupancy,
            "cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags": occupancy,
            "cudaFuncGetAttributes": attributes,
        }

    # ------------------------------------------------------------------------------------ memory

    def _held(self, name: str, address: int, size: int) -> None:
        """Raise EmulatorError unless the device has these bytes."""
        found = self.memory.holder(address)
        if size and found is None:
            raise EmulatorError(f"{name} of {size} bytes: {address:#x} is no address of the device")
        if found is not None and address + size > found[1] + len(found[2]):
            left = found[1] + len(found[2]) - address
            raise EmulatorError(f"{name} of {size} bytes: {found[0]} ends {left} bytes behind {address:#x}")

    def _copy(self, name: str, to: int, source: int, size: int, kind: int) -> int:
        if kind & 0xFFFFFFFF in (_TO_DEVICE, _BETWEEN):
            self._held(name, to, size)
        if kind & 0xFFFFFFFF in (_TO_HOST, _BETWEEN):
            self._held(name, source, size)
        ctypes.memmove(to, source, size)
        return self._failed

    def _name(self, address: int) -> str:
        found = self.memory.holder(address)
        return f"{address:#x}" if found is None else f"byte {address - found[1]} of {found[0]}"

    def line_work(self, name: str, to: int, source: int, size: int, kind: int) -> GraphWork:
        """A copy of bytes."""
        words = [0, 0, 0, 0, source, size, size, 1, 0, 0, 0, 0, to, size, size, 1, size, 1, 1, kind & 0xFFFFFFFF]
        return GraphWork(
            NodeKind.MEMCPY, lambda: self._copy(name, to, source, size, kind), self._label(name, words),
            (TouchedBytes(source, size, False), TouchedBytes(to, size, True)), Words(*words),
        )  # fmt: skip

    def box_work(self, words: Sequence[int], name: str = "cudaMemcpy3D") -> GraphWork:
        """A copy in three dimensions, of a cudaMemcpy3DParms."""
        rows = self.arrays.rows_of(words)
        touched = [
            TouchedBytes(at, size, writes) for to, source, size in rows for at, writes in ((source, False), (to, True))
        ]

        def run() -> None:
            for to, source, size in rows:
                self._copy(name, to, source, size, words[19])

        return GraphWork(NodeKind.MEMCPY, run, self._label(name, words), tuple(touched), Words(*words))

    def _label(self, name: str, words: Sequence[int]) -> str:
        source, to = (self._name(words[first] or words[first + 4]) for first in (0, 8))
        return f"{name} from {source} to {to}"

    def fill_work(self, name: str, params: FillParams) -> GraphWork:
        """A fill. Raises CudaStatusError for elements of another size than 1, 2 or 4 bytes."""
        if params.element not in (1, 2, 4):
            raise CudaStatusError(Status.INVALID_VALUE, f"{name}: elements of {params.element} bytes")
        kept = FillParams.from_buffer_copy(params)
        size, pattern = kept.element * kept.width, kept.value.to_bytes(4, "little")[: kept.element]
        places = [kept.to + row * kept.pitch for row in range(kept.height)]

        def run() -> None:
            for place in places:
                self._held(name, place, size)
                if size:
                    ctypes.memmove(place, pattern * kept.width, size)

        touched = tuple(TouchedBytes(place, size, True) for place in places)
        return GraphWork(NodeKind.MEMSET, run, f"{name} of {self._name(kept.to)}", touched, kept)

    def host_work(self, function: int, given: int) -> GraphWork:
        """A call of a function of the host."""
        call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function)
        return GraphWork(NodeKind.HOST, lambda: call(given), f"{function:#x}", params=HostParams(function, given))

    def status(self) -> int:
        """The status of what has run so far."""
        return self._failed

    def symbol(self, host: int, offset: int = 0) -> int:
        """The address of a byte of a variable of the device."""
        return int(self._symbol(host).ctypes.data) + offset

    def _symbol(self, host: int) -> npt.NDArray[np.uint8]:
        if host not in self._variables:
            raise EmulatorError(f"{host:#x} is no variable of the device")
        program, name = self._variables[host]
        return program.module.variables[name]

    def _allocations(self) -> dict[str, Callable[..., int | None]]:
        """Allocations."""

        def allocate(out: int, size: int) -> None:
            self.captures.unsafe("an allocation")
            ctypes.c_uint64.from_address(out).value = self.memory.allocate(size) if size else 0

        def allocate_async(out: int, size: int, stream: int) -> int:
            if self.captures.on(stream) is None:
                self.captures.status(stream)
                address = ctypes.c_uint64.from_address(out).value = self.memory.allocate(size) if size else 0
                return self.enqueue(stream, self.memory.ordered(address)) if size else self._failed
            made = self.pool.allocation(size)
            ctypes.c_uint64.from_address(out).value = made.address
            return self.enqueue(stream, made.mapping)

        def allocate_from(out: int, size: int, pool: int, stream: int) -> int:
            return allocate_async(out, size, stream)

        def pitched(out: int, pitch: int, width: int, height: int) -> None:
            row = -(-width // 512) * 512
            ctypes.c_size_t.from_address(pitch).value = row
            allocate(out, row * height)

        def free(address: int) -> None:
            if address:
                self.captures.unsafe("cudaFree")
            self.memory.free(address)

        def free_async(address: int, stream: int) -> int:
            if self.captures.on(stream) is not None:
                return self.enqueue(stream, self.pool.freeing(address))
            if self.memory.begins_at(address):
                return self.enqueue(stream, self.memory.ordered(address, frees=True))
            self.memory.free(address)
            return self._failed

        def register(address: int, size: int) -> None:
            self.memory.adopt(address, size)

        def mapped(out: int, host: int) -> None:
            ctypes.c_uint64.from_address(out).value = host

        def room(free: int, whole: int) -> None:
            for out in (free, whole):
                ctypes.c_size_t.from_address(out).value = self.device.memory

        return dict.fromkeys(ALLOCATE["runtime"], allocate) | dict.fromkeys(FREE["runtime"], free) | {
            "cudaMallocAsync": allocate_async, "cudaMallocFromPoolAsync": allocate_from, "cudaFreeAsync": free_async,
            "cudaMallocPitch": pitched, "cudaHostRegister": register, "cudaHostGetDevicePointer": mapped,
            "cudaHostUnregister": free, "cudaMemGetInfo": room,
        }  # fmt: skip

    def _copies(self) -> dict[str, Callable[..., int | None]]:
        """Copies and fills. Those without a stream are of the legacy stream."""

        def copy(to: int, source: int, size: int, kind: int) -> int:
            return self.enqueue(0, self.line_work("cudaMemcpy", to, source, size, kind))

        def copy_async(to: int, source: int, size: int, kind: int, stream: int) -> int:
            return self.enqueue(stream, self.line_work("cudaMemcpy", to, source, size, kind))

        def rows(to: int, to_pitch: int, source: int, pitch: int, width: int, height: int, kind: int) -> int:
            return rows_async(to, to_pitch, source, pitch, width, height, kind, 0)

        def rows_async(
            to: int, to_pitch: int, source: int, pitch: int, width: int, height: int, kind: int, stream: int
        ) -> int:
            words = [0, 0, 0, 0, source, pitch, width, height, 0, 0, 0, 0, to, to_pitch, width, height]
            return self.enqueue(stream, self.box_work([*words, width, height, 1, kind], "cudaMemcpy2D"))

        def box(given: int) -> int:
            return box_async(given, 0)

        def box_async(given: int, stream: int) -> int:
            return self.enqueue(stream, self.box_work(Words.from_address(given)[:]))

        def fill(to: int, value: int, size: int) -> int:
            return fill_async(to, value, size, 0)

        def fill_async(to: int, value: int, size: int, stream: int) -> int:
            return self.enqueue(stream, self.fill_work("cudaMemset", FillParams(to, 0, value & 0xFF, 1, size, 1)))

        def fill_rows(to: int, pitch: int, value: int, width: int, height: int) -> int:
            return fill_rows_async(to, pitch, value, width, height, 0)

        def fill_rows_async(to: int, pitch: int, value: int, width: int, height: int, stream: int) -> int:
            params = FillParams(to, pitch, value & 0xFF, 1, width, height)
            return self.enqueue(stream, self.fill_work("cudaMemset2D", params))

        return {
            "cudaMemcpy": copy, "cudaMemcpyAsync": copy_async, "cudaMemcpy2D": rows, "cudaMemcpy2DAsync": rows_async,
            "cudaMemcpy3D": box, "cudaMemcpy3DAsync": box_async, "cudaMemset": fill, "cudaMemsetAsync": fill_async,
            "cudaMemset2D": fill_rows, "cudaMemset2DAsync": fill_rows_async,
        }  # fmt: skip

    def _device_variables(self) -> dict[str, Callable[..., int | None]]:
        """Variables of the device."""

        def to_symbol(host: int, source: int, size: int, offset: int, kind: int) -> int:
            return to_symbol_async(host, source, size, offset, kind, 0)

        def to_symbol_async(host: int, source: int, size: int, offset: int, kind: int, stream: int) -> int:
            to = self.symbol(host, offset)
            return self.enqueue(stream, self.line_work("cudaMemcpyToSymbol", to, source, size, _TO_DEVICE))

        def from_symbol(to: int, host: int, size: int, offset: int, kind: int) -> int:
            return from_symbol_async(to, host, size, offset, kind, 0)

        def from_symbol_async(to: int, host: int, size: int, offset: int, kind: int, stream: int) -> int:
            source = self.symbol(host, offset)
            return self.enqueue(stream, self.line_work("cudaMemcpyFromSymbol", to, source, size, _TO_HOST))

        def symbol_address(out: int, host: int) -> None:
            ctypes.c_uint64.from_address(out).value = self._symbol(host).ctypes.data

        def symbol_size(out: int, host: int) -> None:
            ctypes.c_size_t.from_address(out).value = len(self._symbol(host))

        return {
            "cudaMemcpyToSymbol": to_symbol, "cudaMemcpyToSymbolAsync": to_symbol_async,
            "cudaMemcpyFromSymbol": from_symbol, "cudaMemcpyFromSymbolAsync": from_symbol_async,
            "cudaGetSymbolAddress": symbol_address, "cudaGetSymbolSize": symbol_size,
        }  # fmt: skip

    # ------------------------------------------------------------------------------------ queries

    def _text(self, number: int, text: str) -> int:
        kept = self._texts.setdefault(number, text.encode() + b"\0")
        return ctypes.cast(ctypes.c_char_p(kept), ctypes.c_void_p).value or 0

    def _queries(self) -> dict[str, Callable[..., int | None]]:
        """Devices and errors."""

        def number(value: int) -> Callable[[int], None]:
            def answer(out: int) -> None:
                ctypes.c_int.from_address(out).value = value

            return answer

        def attribute(out: int, asked: int) -> None:
            ctypes.c_int.from_address(out).value = attribute_of(asked & 0xFFFFFFFF, self.device)

        def properties(out: int) -> None:
            made = self._properties()
            ctypes.memmove(out, ctypes.addressof(made), ctypes.sizeof(made))

        def last() -> int:
            status, self._status = self._failed or self._status, 0
            return status

        def text(status: int) -> int:
            status &= 0xFFFFFFFF
            known = status in Status._value2member_map_
            return self._text(status, TEXTS[Status(status)] if known else f"error {status} of CUDA")

        def error_name(status: int) -> int:
            status &= 0xFFFFFFFF
            known = status in Status._value2member_map_
            return self._text(status + (1 << 32), Status(status).runtime_name if known else f"error {status} of CUDA")

        def limit(out: int) -> None:
            ctypes.c_size_t.from_address(out).value = 8 << 20

        def entry(symbol: int, out: int) -> int:
            name = ctypes.string_at(symbol).decode()
            ctypes.c_uint64.from_address(out).value = self.callback(name)
            return 0

        def by_version(symbol: int, out: int, version: int, flags: int, result: int) -> int:
            if result:
                ctypes.c_int.from_address(result).value = 0
            return entry(symbol, out)

        def queried(symbol: int, out: int, flags: int, result: int) -> int:
            return by_version(symbol, out, 0, flags, result)

        version = CUDA[0] * 1000 + CUDA[1] * 10
        return {
            "cudaGetDeviceCount": number(1), "cudaGetDevice": number(0), "cudaRuntimeGetVersion": number(version),
            "cudaDriverGetVersion": number(version),
            "cudaDeviceGetAttribute": attribute, "cudaGetDeviceProperties": properties, "cudaGetLastError": last,
            "cudaPeekAtLastError": lambda: self._failed or self._status, "cudaGetErrorString": text,
            "cudaGetErrorName": error_name, "cudaDeviceGetLimit": limit, "cudaGetDriverEntryPoint": queried,
            "cudaGetDriverEntryPointByVersion": by_version, "cuTensorMapEncodeTiled": _tensor_map,
        }  # fmt: skip

    def _streams(self) -> dict[str, Callable[..., int | None]]:
        """Streams, events, pools of memory and host functions."""

        def handle(out: int) -> None:
            ctypes.c_uint64.from_address(out).value = next(self._handles) << 4

        def stream(out: int, flags: int) -> None:
            handle(out)
            if flags & _NONBLOCKING:
                self.captures.nonblocking.add(ctypes.c_uint64.from_address(out).value)

        def elapsed(out: int, first: int, second: int) -> None:
            for event in (first, second):
                self.captures.ask(event)
            ctypes.c_float.from_address(out).value = 1.0

        def peer(out: int, device: int, other: int) -> None:
            ctypes.c_int.from_address(out).value = 0  # there is one device

        def priorities(least: int, greatest: int) -> None:
            for out, value in ((least, 0), (greatest, -5)):  # of an H100 and an H200
                if out:
                    ctypes.c_int.from_address(out).value = value

        def host_function(stream: int, function: int, given: int) -> int:
            return self.enqueue(stream, self.host_work(function, given))

        def stream_callback(stream: int, function: int, given: int, flags: int) -> None:
            self.captures.synchronise(stream, "cudaStreamAddCallback")
            kinds = (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
            ctypes.CFUNCTYPE(None, *kinds)(function)(stream, self._failed, given)

        handles = ("cudaStreamCreate", "cudaEventCreate", "cudaEventCreateWithFlags", "cudaMemPoolCreate",
                   "cudaDeviceGetDefaultMemPool", "cudaDeviceGetMemPool")  # fmt: skip
        return dict.fromkeys(handles, handle) | {
            "cudaStreamCreateWithFlags": stream, "cudaStreamCreateWithPriority": stream,
            "cudaEventElapsedTime": elapsed, "cudaDeviceCanAccessPeer": peer,
            "cudaDeviceGetStreamPriorityRange": priorities, "cudaLaunchHostFunc": host_function,
            "cudaStreamAddCallback": stream_callback,
        }  # fmt: skip

    def _waits(self) -> dict[str, Callable[..., int | None]]:
        """Waits, and what orders streams. All work is done by then, but for what a stream captures."""
        captures = self.captures

        def waiting(name: str) -> Callable[[int], int]:
            def wait(stream: int) -> int:
                captures.synchronise(stream, name)
                return self._failed

            return wait

        def device() -> int:
            captures.synchronise(None, "cudaDeviceSynchronize")
            return self._failed

        def asking(event: int) -> int:
            captures.ask(event)
            return self._failed

        def recorded(event: int, stream: int) -> int:
            captures.record(event, stream)
            return self._failed

        def recorded_with(event: int, stream: int, flags: int) -> int:
            if flags & EXTERNAL:
                work = GraphWork(NodeKind.EVENT_RECORD, lambda: captures.record(event, 0), f"{event:#x}", params=event)
                return self.enqueue(stream, work)
            return recorded(event, stream)

        def ordered(stream: int, event: int, flags: int) -> int:
            if flags & EXTERNAL:
                return self.enqueue(stream, GraphWork(NodeKind.WAIT_EVENT, label=f"{event:#x}", params=event))
            captures.wait(stream, event)
            return self._failed

        return {name: waiting(name) for name in ("cudaStreamSynchronize", "cudaStreamQuery")} | {
            "cudaDeviceSynchronize": device, "cudaDeviceReset": device,
            "cudaEventSynchronize": asking, "cudaEventQuery": asking, "cudaEventRecord": recorded,
            "cudaEventRecordWithFlags": recorded_with, "cudaStreamWaitEvent": ordered,
        }  # fmt: skip

    def _properties(self) -> _Properties:
        found = _Properties(name=self.device.name.encode(), totalGlobalMem=self.device.memory)
        for name, value in properties_of(self.device).items():
            if name[-1].isdigit():
                getattr(found, name[:-1])[int(name[-1])] = value
            elif hasattr(found, name):
                setattr(found, name, value)
        return found


def _tensor_map(
    out: int, kind: int, rank: int, address: int, dims: int, strides: int, box: int, steps: int, interleave: int,
    swizzle: int, promotion: int, fill: int,
) -> int:  # fmt: skip
    """cuTensorMapEncodeTiled of the driver."""
    rank &= 0xFFFFFFFF
    if not 1 <= rank <= 5:
        return Status.INVALID_VALUE
    extents = list((ctypes.c_uint64 * rank).from_address(dims))
    pitches = list((ctypes.c_uint64 * (rank - 1)).from_address(strides)) if rank > 1 else []
    boxes, skips = (list((ctypes.c_uint32 * rank).from_address(at)) for at in (box, steps))
    numbers = (value & 0xFFFFFFFF for value in (interleave, swizzle, promotion, fill))
    content = from_driver(kind & 0xFFFFFFFF, address, extents, pitches, boxes, skips, *numbers)
    ctypes.memmove(out, content, BYTES)
    return 0


def library_of(path: Path, arch: str, folder: Path) -> Path:
    """The library of a program: the file, or what nvcc makes of it. $NVCC_APPEND_FLAGS has flags and further sources.

    Raises EmulatorError with nvcc's message.
    """
    if path.suffix == ".so":  # a copy: a library that is loaded once is not loaded again
        return Path(shutil.copy(path, folder))
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise EmulatorError(f"{path} has to be compiled, and no nvcc is on the path: install the CUDA Toolkit")
    made, virtual = folder / f"{path.stem}.so", arch.replace("sm_", "compute_")
    command = [nvcc, *NVCC_FLAGS, "-gencode", f"arch={virtual},code={virtual}", "-o", str(made), str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise EmulatorError(f"nvcc does not compile {path}:\n{done.stderr or done.stdout}")
    return made


def linked(path: Path, library: Path, runtime: CudaRuntime, folder: Path, stub: str) -> Path:
    """A library whose functions of CUDA are those of `runtime`. It needs that of the program, and is loaded.

    Raises EmulatorError for one that cannot be loaded, and for an image without PTX for this GPU.
    """
    before = len(runtime.fatal)
    tables = subprocess.run(["nm", "-D", "--undefined-only", str(library)], capture_output=True, text=True)
    if tables.returncode:
        raise runtime.failure(f"{path} is no library of a program: {tables.stderr.strip()}")
    wanted = sorted(set(re.findall(r"\b((?:__)?cuda[A-Z]\w*|cu[A-Z]\w*)", tables.stdout)))
    made = folder / "program.so"
    (folder / "stub.c").write_text(stub)
    _without_driver(library, folder)
    command = [
        c_compiler(), "-shared", "-fPIC", "-w", "-Wl,-Bsymbolic", "-Wl,--no-as-needed", "-o", str(made),
        str(folder / "stub.c"), str(library), f"-Wl,-rpath,{library.parent}",
        *[f"-Wl,--defsym={one}={runtime.callback(one):#x}" for one in wanted],
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise runtime.failure(f"{path} cannot be linked: {done.stderr}")
    try:  # the program's references are bound to the stub first, `exit` among them
        _LOADED.append((ctypes.CDLL(str(made), mode=ctypes.DEFAULT_MODE | os.RTLD_DEEPBIND), runtime))
    except OSError as error:
        raise runtime.failure(f"{path} cannot be loaded: {error}") from None
    if runtime.fatal[before:]:
        raise runtime.fatal[-1]
    return made


def _without_driver(library: Path, folder: Path) -> None:
    """Load an empty library for each of CUDA's that one needs and this machine lacks: its functions are the stub's."""
    read = subprocess.run(["readelf", "-d", str(library)], capture_output=True, text=True)
    for name in re.findall(r"NEEDED.*\[(libcuda(?:rt)?\.so[.\d]*)\]", read.stdout):
        try:
            _LOADED.append(ctypes.CDLL(name))
        except OSError:
            (folder / "empty.c").write_text("")
            command = [c_compiler(), "-shared", "-o", str(folder / name), str(folder / "empty.c")]
            subprocess.run([*command, f"-Wl,-soname,{name}"], check=True)
            _LOADED.append(ctypes.CDLL(str(folder / name)))


def run_program(path: Path, library: Path, arguments: Sequence[str], runtime: CudaRuntime) -> int:
    """Run `main` of a program's library. Its exit status.

    Raises EmulatorError for one that cannot be loaded, and where a kernel could not go on.
    """
    with tempfile.TemporaryDirectory(prefix="layoutgemm-program-") as name:
        whole = ctypes.CDLL(str(linked(path, library, runtime, Path(name), STUB)))
        try:
            main = ctypes.cast(whole.main, ctypes.c_void_p)
        except AttributeError as error:
            raise runtime.failure(f"{path} cannot be loaded: {error}") from None
        words = [str(path).encode(), *[word.encode() for word in arguments]]
        sys.stdout.flush()
        status = int(whole.layoutgemm_run(main, len(words), (ctypes.c_char_p * (len(words) + 1))(*words, None)))
        _C.fflush(None)
        if runtime.fatal:
            raise runtime.fatal[-1]
        return status & 0xFF
