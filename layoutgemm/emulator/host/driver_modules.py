"""Modules of PTX and their launches for scripts that call cuda.bindings.

NVRTC's kernels are launched by the driver's API.

Each stand-in returns what the binding does, a tuple that begins with the status. A launch's attributes that change what
a kernel sees are kept: its cluster, whether it is cooperative, and programmatic dependent launch. Those of speed alone
are taken and left. Attributes, options and functions of these families that are neither are refused by name.
"""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ...arguments import shown
from ...errors import EmulatorError
from ..machine.launch import MULTIPROCESSORS
from ..machine.textures import TextureOf
from ..ptx.parser import PtxKernel, read_module
from .arguments import ArgumentMemory
from .graphs.graph import GraphWork, NodeKind
from .graphs.statuses import CudaStatusError, Status
from .launcher import HostLaunch, gathered, resident

if TYPE_CHECKING:
    from .cuda_calls import Binding, DeviceMemory

CUBIN, FATBIN = b"\x7fELF", b"\x50\xed\x55\xba"  # how images begin that hold machine code
# Names of the families that do something on a GPU: what has no stand-in is refused, not left to a driver that fails.
FAMILIES = (
    "cuLaunch", "cuModule", "cuLibrary", "cuKernel", "cuFunc", "cuGraph", "cuStreamBegin", "cuStreamEnd",
    "cudaLaunch", "cudaLibrary", "cudaFunc", "cudaGraph", "cudaStreamBegin", "cudaStreamEnd",
)  # fmt: skip
# Launch attributes by the end of their names: those that a kernel sees, and those of speed alone.
_SEEN = ("CLUSTER_DIMENSION", "COOPERATIVE", "PROGRAMMATIC_STREAM_SERIALIZATION")
_LEFT = (
    "IGNORE", "PRIORITY", "ACCESS_POLICY_WINDOW", "SYNCHRONIZATION_POLICY", "CLUSTER_SCHEDULING_POLICY_PREFERENCE",
    "MEM_SYNC_DOMAIN", "MEM_SYNC_DOMAIN_MAP", "PREFERRED_SHARED_MEMORY_CARVEOUT", "PREFERRED_CLUSTER_DIMENSION",
)  # fmt: skip
Foreign: TypeAlias = Any  # an object of cuda.bindings, or what stands for one
Launched = Callable[["PtxLaunch", int], None]


@dataclass(frozen=True, eq=False)
class PtxModule:
    """A loaded module: its kernels by name, and its variables' bytes, which stay between launches."""

    kernels: dict[str, PtxKernel]
    variables: dict[str, npt.NDArray[np.uint8]]

    @classmethod
    def of(cls, image: object, memory: DeviceMemory) -> PtxModule:
        """The module of PTX: text, bytes, or their address. Raises EmulatorError for machine code."""
        text = image if isinstance(image, str) else _image(image)
        if isinstance(text, bytes):
            if text.startswith((CUBIN, FATBIN)):
                raise EmulatorError(
                    "the image holds machine code, and the emulator runs PTX: load what nvrtcGetPTX gives"
                )
            text = text.rstrip(b"\0 ").decode()
        kernels = {one.name: one for one in read_module(text)}
        found = {one.name: one for kernel in kernels.values() for one in kernel.variables if not one.relocations}
        variables = {}
        for name, one in found.items():
            variables[name] = memory.bytes_at(memory.allocate(len(one.content), name))
            variables[name][:] = np.frombuffer(one.content, np.uint8)
        return cls(kernels, variables)


@dataclass(frozen=True)
class PtxFunction:
    """A kernel of a loaded module."""

    module: PtxModule
    kernel: PtxKernel


@dataclass(frozen=True)
class PtxLaunch:
    """A launch of a module's kernel.

    parameters  its bytes, with addresses of this process
    textures    objects by their handles, and the addresses of their texels
    """

    function: PtxFunction
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    shared: int
    parameters: bytes
    dependent: bool = False
    textures: Mapping[int, tuple[TextureOf, int]] = field(default_factory=dict)

    def call(self, *_: object) -> tuple[ArgumentMemory, list[HostLaunch]]:
        """The memory that the kernel sees, and its launch."""
        kernel, arrays, content = self.function.kernel, gathered([]), bytearray(self.parameters)
        arrays.memory.given = {one.name: self.function.module.variables[one.name] for one in kernel.variables
                               if one.name in self.function.module.variables}  # fmt: skip
        for parameter in kernel.parameters:
            for at in range(parameter.offset, parameter.offset + parameter.size - 7, 8):
                word = int.from_bytes(content[at : at + 8], "little")
                if word and arrays.known(word):
                    content[at : at + 8] = arrays.address(word).to_bytes(8, "little")
        for handle, (texture, host) in self.textures.items():
            arrays.memory.bind(texture, arrays.address(host), handle)
        one = HostLaunch(kernel, self.grid, self.block, self.cluster, self.shared, bytes(content), self.dependent)
        return arrays, [one]


def _image(image: Foreign) -> bytes:
    """The bytes of an image: bytes, an array of them, or the address of text that a zero ends."""
    if isinstance(image, (bytes, bytearray, np.ndarray)):
        return bytes(image) if isinstance(image, (bytes, bytearray)) else image.tobytes()
    return ctypes.string_at(int(image))


def parameter_bytes(kernel: PtxKernel, given: Foreign) -> bytes:
    """The parameters of `kernelParams`. It is the address of an array of pointers, that array, or (values, types)."""
    out = bytearray(kernel.parameter_bytes)
    count = len(kernel.parameters)
    if isinstance(given, tuple) and len(given) == 2 and all(isinstance(part, (tuple, list)) for part in given):
        values, types = given
        if len(values) != count or len(types) != count:
            raise EmulatorError(f"{kernel.name} takes {count} parameters; {len(values)} values, {len(types)} types")
        words = [_word(value, kind) for value, kind in zip(values, types)]
    else:
        first = host_address(given)
        if count and not first:
            raise EmulatorError(f"{kernel.name} takes {count} parameters, and kernelParams is {shown(given)}")
        places = [ctypes.c_uint64.from_address(first + 8 * n).value for n in range(count)]
        words = [ctypes.string_at(place, one.size) for place, one in zip(places, kernel.parameters)]
    for parameter, word in zip(kernel.parameters, words):
        if len(word) < parameter.size:
            raise EmulatorError(
                f"{kernel.name}: {parameter.name} has {parameter.size} bytes, and {len(word)} were given"
            )
        out[parameter.offset : parameter.offset + parameter.size] = word[: parameter.size]
    return bytes(out)


def _word(value: Foreign, kind: Foreign) -> bytes:
    """The bytes of a value: as a type of ctypes, or of an object that has them, padded to what a parameter may take."""
    if kind is not None:
        return bytes(kind(int(value) if kind is ctypes.c_void_p else value))
    if isinstance(value, (ctypes._SimpleCData, ctypes.Structure, ctypes.Array)):
        return bytes(value)
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tobytes()
    if hasattr(value, "__int__"):
        return int(value).to_bytes(8, "little")
    raise EmulatorError(f"kernelParams: {shown(value)} has the type None, and neither bytes nor a number")


def host_address(given: Foreign) -> int:
    """The address of memory; 0 for None. It is given as a number, a binding's pointer, an array or an object of
    ctypes."""
    if given is None:
        return 0
    if isinstance(given, np.ndarray):
        return int(given.ctypes.data)
    if isinstance(given, (ctypes._SimpleCData, ctypes.Structure, ctypes.Array)):
        return ctypes.addressof(given)
    return int(given) if hasattr(given, "__int__") else ctypes.addressof(ctypes.c_char.from_buffer(given))


class DriverModules:
    """The stand-ins of modules and launches, and what their handles stand for."""

    def __init__(self, memory: DeviceMemory, launch: Launched) -> None:
        self._memory, self._launch = memory, launch
        self._held: dict[int, object] = {}
        self._next = itertools.count(1)

    def functions(self, kind: str, module: ModuleType) -> dict[str, Binding]:
        """The stand-ins by name, for the driver's or the runtime's binding. Others of `FAMILIES` are refused."""
        found = {
            name: self._refused(f"cuda.bindings.{kind}.{name}")
            for name in dir(module)
            if name.startswith(FAMILIES)
            and callable(getattr(module, name))
            and not isinstance(getattr(module, name), type)
        }
        own = self._modules(module) | self._launches(module) if kind == "driver" else {}
        return found | own

    def _refused(self, name: str) -> Binding:
        def refuse(*args: object, **named: object) -> object:
            raise EmulatorError(f"{name} has no answer on an emulated GPU")

        return refuse

    def _keep(self, value: object) -> int:
        handle = next(self._next) << 12
        self._held[handle] = value
        return handle

    def _of(self, handle: Foreign, kind: type) -> Foreign:
        found = self._held.get(int(handle))
        if not isinstance(found, kind):
            raise EmulatorError(f"{shown(handle)} is no handle of a {kind.__name__} here")
        return found

    def _modules(self, driver: ModuleType) -> dict[str, Binding]:
        """Modules, their kernels and variables."""
        result = driver.CUresult
        success = result.CUDA_SUCCESS

        def load(make: type) -> Binding:
            return lambda image, *_: (success, make(self._keep(PtxModule.of(image, self._memory))))

        def read(make: type) -> Binding:
            return lambda path, *_: load(make)(Path(path.decode() if isinstance(path, bytes) else path).read_bytes())

        def function(make: type) -> Binding:
            def find(handle: object, name: bytes | str) -> tuple[object, object]:
                module = self._of(handle, PtxModule)
                text = name.decode() if isinstance(name, bytes) else name
                if text not in module.kernels:
                    return result.CUDA_ERROR_NOT_FOUND, make(0)
                return success, make(self._keep(PtxFunction(module, module.kernels[text])))

            return find

        def variable(handle: object, name: bytes | str) -> tuple[object, object, int]:
            array = self._of(handle, PtxModule).variables.get(name.decode() if isinstance(name, bytes) else name)
            if array is None:
                return result.CUDA_ERROR_NOT_FOUND, driver.CUdeviceptr(0), 0
            return success, driver.CUdeviceptr(array.ctypes.data), len(array)

        def done(*args: object) -> tuple[object]:
            return (success,)

        loads = dict.fromkeys(("cuModuleLoadData", "cuModuleLoadDataEx"), load(driver.CUmodule))
        return loads | dict.fromkeys(
            ("cuModuleUnload", "cuLibraryUnload", "cuFuncSetAttribute", "cuFuncSetCacheConfig", "cuKernelSetAttribute",
             "cuKernelSetCacheConfig", "cuFuncLoad"), done
        ) | {
            "cuModuleLoad": read(driver.CUmodule),
            "cuLibraryLoadData": load(driver.CUlibrary),
            "cuLibraryLoadFromFile": read(driver.CUlibrary),
            "cuLibraryGetModule": lambda library: (success, driver.CUmodule(int(library))),
            "cuModuleGetFunction": function(driver.CUfunction),
            "cuLibraryGetKernel": function(driver.CUkernel),
            "cuKernelGetFunction": lambda kernel: (success, driver.CUfunction(int(kernel))),
            "cuModuleGetGlobal": variable,
            "cuLibraryGetGlobal": variable,
        }  # fmt: skip

    def _launches(self, driver: ModuleType) -> dict[str, Binding]:
        """Launches of loaded kernels."""
        result = driver.CUresult
        success = result.CUDA_SUCCESS

        def launch(
            function: object, sizes: Sequence[int], shared: int, stream: object, given: object, extra: object,
            attributes: dict[str, Foreign],
        ) -> tuple[object]:  # fmt: skip
            if extra:
                raise EmulatorError("a launch with `extra` is not emulated: give kernelParams")
            chosen = self._of(function, PtxFunction)
            x, y, z, *rest = map(int, sizes)
            grid, block = (x, y, z), (rest[0], rest[1], rest[2])
            if min(sizes) < 1:
                return (result.CUDA_ERROR_INVALID_VALUE,)
            cluster = attributes.get("CLUSTER_DIMENSION") or chosen.kernel.directives.get(".reqnctapercluster") or (1,)
            room = resident(chosen.kernel.target, math.prod(block), int(shared))
            if attributes.get("COOPERATIVE") and math.prod(grid) > room:
                return (result.CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,)
            wide, high, deep = (*cluster, 1, 1)[:3]
            one = PtxLaunch(
                chosen, grid, block, (wide, high, deep), int(shared), parameter_bytes(chosen.kernel, given),
                bool(attributes.get("PROGRAMMATIC_STREAM_SERIALIZATION")),
            )  # fmt: skip
            try:
                self._launch(one, int(stream or 0))  # type: ignore[call-overload]
            except CudaStatusError as error:
                return (result(int(error.status)),)
            return (success,)

        def plain(function: object, *args: Foreign) -> tuple[object]:
            *sizes, shared, stream, given, extra = args
            return launch(function, sizes, shared, stream, given, extra, {})

        def cooperative(function: object, *args: Foreign) -> tuple[object]:
            *sizes, shared, stream, given = args
            return launch(function, sizes, shared, stream, given, 0, {"COOPERATIVE": True})

        def extended(config: Foreign, function: object, given: object, extra: object) -> tuple[object]:
            sizes = [getattr(config, f"{part}Dim{axis}") for part in ("grid", "block") for axis in "XYZ"]
            attributes = dict(_attribute(one) for one in config.attrs[: config.numAttrs])
            return launch(function, sizes, config.sharedMemBytes, config.hStream, given, extra, attributes)

        def occupancy(function: object, threads: int, shared: int, *_: object) -> tuple[object, int]:
            chosen = self._of(function, PtxFunction)
            return success, resident(chosen.kernel.target, int(threads), int(shared)) // MULTIPROCESSORS

        return {
            "cuLaunchKernel": plain,
            "cuLaunchCooperativeKernel": cooperative,
            "cuLaunchKernelEx": extended,
            "cuOccupancyMaxActiveBlocksPerMultiprocessor": occupancy,
        }

    def kernel_node(self, params: Foreign) -> GraphWork:
        """The launch of a graph's node, of a CUDA_KERNEL_NODE_PARAMS. Raises CudaStatusError for an empty grid."""
        if not hasattr(params, "gridDimX"):
            raise EmulatorError("cudaGraphAddKernelNode of cuda.bindings has no answer: call the driver's function")
        if params.extra:
            raise EmulatorError("a launch with `extra` is not emulated: give kernelParams")
        chosen = self._of(params.func, PtxFunction)
        sizes = [int(getattr(params, f"{part}Dim{axis}")) for part in ("grid", "block") for axis in "XYZ"]
        if min(sizes) < 1:
            raise CudaStatusError(Status.INVALID_VALUE, f"grid {sizes[:3]}, block {sizes[3:]}")
        x, y, z, wide, high, deep = sizes
        cluster = (*(chosen.kernel.directives.get(".reqnctapercluster") or (1,)), 1, 1)[:3]
        one = PtxLaunch(
            chosen, (x, y, z), (wide, high, deep), (cluster[0], cluster[1], cluster[2]), int(params.sharedMemBytes),
            parameter_bytes(chosen.kernel, params.kernelParams),
        )  # fmt: skip
        return GraphWork(NodeKind.KERNEL, lambda: self._launch(one, 0), chosen.kernel.name, launches=True)


def _attribute(one: Foreign) -> tuple[str, Foreign]:
    """A launch attribute by its name's end, and its value. Raises EmulatorError for one that would be lost."""
    name = one.id.name.partition("LAUNCH_ATTRIBUTE_")[2]
    if name == "CLUSTER_DIMENSION":
        size = one.value.clusterDim
        return name, (size.x, size.y, size.z)
    if name == "COOPERATIVE":
        return name, one.value.cooperative
    if name == "PROGRAMMATIC_STREAM_SERIALIZATION":
        return name, one.value.programmaticStreamSerializationAllowed
    if name not in _LEFT:
        raise EmulatorError(f"the launch attribute {one.id.name} is not emulated; {', '.join((*_SEEN, *_LEFT))} are")
    return name, None
