"""Triton's launches on an emulated GPU. Its compiler and launcher run as they are, its driver's C module does not.

Triton's launcher hands a kernel's arguments to functions of a C module that call CUDA. `DriverModule` stands for that
module. Triton 3.5 and 3.6 compile a launcher in C for each signature instead: `CompiledLauncher` stands for one.
Source: triton/backends/nvidia/driver.py of Triton 3.5 to 3.9.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import re
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeAlias

import numpy as np

from ...arguments import shown
from ...dtypes import dtype
from ...errors import EmulatorError
from ..machine.tensor_map import from_driver, from_driver_im2col
from ..ptx.parser import read_module
from ..turns import OwnStack
from .arguments import ArgumentMemory
from .launcher import HostLaunch, gathered

if TYPE_CHECKING:
    from torch import Tensor

    from ..ptx.parser import Parameter, PtxKernel
    from .devices import GpuModel

DRIVER, AUTOTUNER = "triton.backends.nvidia.driver", "triton.runtime.autotuner"
CONSTEXPR, KERNEL, TUPLE = range(3)  # kinds of an argument, as the C module numbers them
_LAUNCHER = (
    "CudaUtils",
    "CudaLauncher",
    "CudaDriver",
    "annotate_arguments",
    "make_kernel_signature",
    "expand_signature",
)
_COMPILED = ("CudaUtils", "CudaLauncher", "CudaDriver", "make_launcher", "compile_module_from_src")  # Triton 3.5, 3.6
_FIRST_ARGUMENTS = (
    "iiiKKppOOOOOO"  # what such a launcher takes before a kernel's arguments, as Python's C interface writes it
)
AUTOTUNE = ("first", "all")  # configurations of an autotuned kernel that run
FIRST = (
    "autotuned kernels of Triton ran with the first configuration that compiles and fits the GPU; --autotune all "
    '(emulated_gpu(autotune="all")) runs each once'
)
_FLOATS = {"fp32": "<f", "f32": "<f", "fp64": "<d", "fp16": "<e"}


Type: TypeAlias = str | tuple["Type", ...]  # of an argument, as Triton writes it
Hook = Callable[[object], None] | None  # of a profiler


class TritonKernelFacts(Protocol):
    """A compiled kernel's warps, CTAs of a cluster, and bytes of shared memory."""

    num_warps: int
    num_ctas: int
    shared: int


class TritonKernel(Protocol):
    """Triton's CompiledKernel, as far as it is read."""

    name: str
    asm: dict[str, str]
    metadata: TritonKernelFacts
    module: object


@dataclass(frozen=True)
class DescriptorMap:
    """A tensor map that Triton's launcher asks for: the arguments of cuTensorMapEncodeTiled."""

    address: int
    swizzle: int
    item: int
    kind: int
    box: Sequence[int]
    shape: Sequence[int]
    strides: Sequence[int]
    nan: bool

    def encoded(self, arrays: ArgumentMemory) -> bytes:
        """The map's 128 bytes."""
        strides = [self.item * stride for stride in self.strides[-2::-1]]
        return from_driver(
            self.kind, arrays.address(self.address), self.shape[::-1], strides, self.box[::-1], [1] * len(self.box), 0,
            self.swizzle, 2, int(self.nan),
        )  # fmt: skip


@dataclass(frozen=True)
class PixelMap(DescriptorMap):
    """An im2col map that Triton's launcher asks for. Corners and traversal steps in the order of the shape."""

    lower: Sequence[int]
    upper: Sequence[int]
    steps: Sequence[int]

    def encoded(self, arrays: ArgumentMemory) -> bytes:
        """The map's 128 bytes."""
        strides = [self.item * stride for stride in self.strides[-2::-1]]
        pixels, channels = self.box
        return from_driver_im2col(
            self.kind, arrays.address(self.address), self.shape[::-1], strides, self.lower[::-1], self.upper[::-1],
            channels, pixels, self.steps[::-1], 0, self.swizzle, 2, int(self.nan),
        )  # fmt: skip


@dataclass(frozen=True)
class TritonLaunch:
    """A launch of a compiled kernel of Triton. Arguments are a type and a value for each parameter."""

    kernel: PtxKernel
    grid: tuple[int, int, int]
    block: int
    cluster: int
    shared: int
    arguments: Sequence[tuple[str, object]]

    def call(self, *_: object) -> tuple[ArgumentMemory, list[HostLaunch]]:
        """The memory that the kernel sees, and its launch."""
        parameters = self.kernel.parameters
        if len(parameters) != len(self.arguments):
            raise EmulatorError(
                f"{self.kernel.name} has {len(parameters)} parameters, Triton's launcher gave {len(self.arguments)}"
            )
        arrays = gathered([])
        arrays.memory.kept = (*arrays.memory.kept, self.arguments)
        content = bytearray(self.kernel.parameter_bytes)
        for parameter, (kind, value) in zip(parameters, self.arguments):
            content[parameter.offset : parameter.offset + parameter.size] = _bytes(parameter, kind, value, arrays)
        x, y, z = self.grid
        wide, high, deep = (*(self.kernel.directives.get(".reqntid") or (self.block,)), 1, 1)[:3]
        one = HostLaunch(
            self.kernel, (x * self.cluster, y, z), (wide, high, deep), (self.cluster, 1, 1), self.shared, bytes(content)
        )
        return arrays, [one]


def _bytes(parameter: Parameter, kind: str, value: Any, arrays: ArgumentMemory) -> bytes:
    """A parameter's content."""
    if isinstance(value, DescriptorMap):
        return value.encoded(arrays)
    if kind.startswith("*"):
        pointer = value.data_ptr() if hasattr(value, "data_ptr") else value
        pointer = pointer() if callable(pointer) else pointer
        return struct.pack("<Q", arrays.address(int(pointer)) if pointer else 0)
    if kind in _FLOATS:
        return struct.pack(_FLOATS[kind], float(value))
    if kind == "bf16":
        return bytes(dtype("bf16").encode(np.float32(value)).tobytes())
    return (int(value) & ((1 << 8 * parameter.size) - 1)).to_bytes(parameter.size, "little")


@dataclass(frozen=True)
class KernelArg:
    """PyKernelArg of the C module."""

    nested_tuple: Sequence[KernelArg] | None
    type: int


def _flat(annotations: Sequence[KernelArg], values: Sequence[object]) -> Iterator[object]:
    """The values that a kernel takes, in order: tuples are taken apart, constants left out."""
    for annotation, value in zip(annotations, values, strict=True):
        if annotation.type == TUPLE:
            assert annotation.nested_tuple is not None and isinstance(value, Sequence)
            yield from _flat(annotation.nested_tuple, value)
        elif annotation.type == KERNEL:
            yield value


def _annotated(types: Sequence[Type]) -> list[KernelArg]:
    """Each argument as a parameter, a constant or a tuple of both."""
    return [
        KernelArg(_annotated(one), TUPLE) if isinstance(one, tuple)
        else KernelArg(None, CONSTEXPR if one == "constexpr" else KERNEL)
        for one in types
    ]  # fmt: skip


def _types(types: Sequence[Type]) -> Iterator[str]:
    """The types of a kernel's parameters: tuples are taken apart, constants left out."""
    for one in types:
        if isinstance(one, tuple):
            yield from _types(one)
        elif one != "constexpr":
            yield one


def _expanded(types: Iterable[Type], descriptors: Sequence[object] | None) -> list[Type]:
    """Types with those of a descriptor's parts: a map or a pointer, extents and strides."""
    found: list[Type] = []
    maps = iter(descriptors or ())
    for one in types:
        match = re.match(r"tensordesc<([^[>]*)\[([^]]*)\]", one) if isinstance(one, str) else None
        if match is None:
            found.append(one)
            continue
        rank = match[2].count(",") + 1
        whole = next(maps, None) is not None
        found += ["nvTmaDesc"] if whole else [f"*{match[1]}", *["i64"] * (2 * rank), "i1"]
        found += ["i32"] * rank + ["i64"] * rank
    return found


@dataclass(frozen=True)
class CompiledLauncher:
    """A launcher for one signature, and the module that Triton compiles it into."""

    driver: DriverModule
    types: Sequence[Type]

    def launch(
        self, x: int, y: int, z: int, stream: int, function: TritonKernel, cooperative: bool, dependent: bool,
        scratch: object, profile: object, packed: object, metadata: object, enter: Hook, leave: Hook, *values: object,
    ) -> None:  # fmt: skip
        """Launch a kernel with its arguments."""
        self.driver.launch(
            x, y, z, stream, function, cooperative, dependent, packed, metadata, enter, leave, scratch, profile,
            _annotated(self.types), list(_types(self.types)), values,
        )  # fmt: skip


class DriverModule:
    """The functions of the C module, on an emulated GPU."""

    def __init__(self, device: GpuModel, launch: Callable[[TritonLaunch, int], None]) -> None:
        self._device, self._launch = device, launch
        self._loading: OwnStack[TritonKernel] = OwnStack()  # compiled kernels whose handles are made now
        self._choosing: OwnStack[object] = OwnStack()  # autotuners whose configurations are only compiled now
        self._kernels: dict[int, PtxKernel] = {}
        self._loaded: list[TritonKernel] = []  # kept, so that no other gets the number of one

    @contextmanager
    def loading(self, compiled: TritonKernel) -> Iterator[None]:
        """Within it `load_binary` is asked for this compiled kernel."""
        self._loading.items.append(compiled)
        try:
            yield
        finally:
            self._loading.items.pop()

    @contextmanager
    def choosing(self, autotuner: object) -> Iterator[None]:
        """Within it this thread's kernels are compiled and not launched."""
        self._choosing.items.append(autotuner)
        try:
            yield
        finally:
            self._choosing.items.pop()

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[object, object, int, int, int]:
        """Module, function, registers, spills and the most threads; the function is the compiled kernel."""
        loading = self._loading.items
        if not loading or "ptx" not in loading[-1].asm:
            raise EmulatorError(f"Triton loads {name} without its PTX: the emulator runs PTX")
        self._loaded.append(loading[-1])
        return self, loading[-1], 0, 0, self._device.arch.threads_per_block

    def unload_module(self, module: object) -> None:
        """Nothing is kept."""

    def unload(self) -> None:
        """Take the handles from the kernels, which would ask the driver to unload them."""
        for kernel in self._loaded:
            kernel.module = None
        self._loaded.clear()

    def get_device_properties(self, device: int) -> dict[str, int]:
        """Properties of the emulated GPU. Its clocks are unknown, and 0."""
        arch = self._device.arch
        return {
            "max_shared_mem": arch.smem_per_block, "max_num_regs": arch.registers_per_sm, "warpSize": arch.warp_size,
            "multiprocessor_count": self._device.multiprocessors, "sm_clock_rate": 0, "mem_clock_rate": 0,
            "mem_bus_width": 0,
        }  # fmt: skip

    def build_signature_metadata(self, signature: Sequence[str]) -> Sequence[str]:
        """The types of a kernel's parameters."""
        return signature

    def fill_tma_descriptor_tiled(
        self, address: int, swizzle: int, size: int, kind: int, box: Sequence[int], shape: Sequence[int],
        strides: Sequence[int], padding: int,
    ) -> DescriptorMap:  # fmt: skip
        """A tensor map of the launch."""
        return DescriptorMap(address, swizzle, size, kind, box, shape, strides, bool(padding))

    def fill_tma_descriptor_im2col(
        self, address: int, swizzle: int, size: int, kind: int, box: Sequence[int], shape: Sequence[int],
        strides: Sequence[int], padding: int, lower: Sequence[int], upper: Sequence[int], steps: Sequence[int],
    ) -> PixelMap:  # fmt: skip
        """An im2col map of the launch; box: pixels and channels."""
        return PixelMap(address, swizzle, size, kind, box, shape, strides, bool(padding), lower, upper, steps)

    fill_tma_descriptor = fill_tma_descriptor_tiled  # its name in Triton 3.5 and 3.6

    def compiled_launcher(
        self, constants: object, signature: Mapping[object, Type], descriptors: Sequence[object] | None
    ) -> CompiledLauncher:
        """The launcher of a signature, in place of its source in C.

        descriptors  of each tensor descriptor what its map needs, or None: its parts are arguments then
        """
        return CompiledLauncher(self, _expanded(signature.values(), descriptors))

    def launch(
        self, x: int, y: int, z: int, stream: int, function: TritonKernel, cooperative: bool, dependent: bool,
        packed: object, metadata: object, enter: Hook, leave: Hook, scratch: object, profile: object,
        annotations: Sequence[KernelArg], signature: Sequence[str], values: Sequence[object],
    ) -> None:  # fmt: skip
        """Launch a kernel, between the hooks of a profiler."""
        if 0 in (x, y, z) or self._choosing.items:
            return
        if enter is not None:
            enter(metadata)
        if id(function) not in self._kernels:
            known = {one.name: one for one in read_module(function.asm["ptx"])}
            self._kernels[id(function)] = known[function.name]
        arguments = [*zip(signature, _flat(annotations, values), strict=True), ("*i8", scratch), ("*i8", profile)]
        about = function.metadata
        one = TritonLaunch(
            self._kernels[id(function)], (x, y, z), 32 * about.num_warps, about.num_ctas, about.shared, arguments
        )
        self._launch(one, stream)
        if leave is not None:
            leave(metadata)

    def __getattr__(self, name: str) -> Any:
        raise EmulatorError(f"Triton's driver function {name} has no answer on an emulated GPU")


@contextmanager
def tuned_here(kind: type, module: DriverModule, every: bool, note: Callable[[str], None]) -> Iterator[None]:
    """Within it Triton's Autotuner `kind` takes the first configuration that compiles and fits.

    It keeps no times on the disk, where a GPU would find them.

    every  run each configuration instead
    note   is told that others did not run
    """
    from unittest import mock

    bench, prune = vars(kind)["_bench"], vars(kind)["prune_configs"]
    never = float("inf")
    chosen: dict[int, bool] = {}  # an autotuner that has its configuration -> whether times are lists

    def pruned(self: object, kwargs: object) -> object:
        chosen.pop(id(self), None)
        return prune(self, kwargs)

    def tried(self: object, *args: object, **more: object) -> object:
        if id(self) in chosen:
            note(FIRST)
            return [never] * 3 if chosen[id(self)] else never
        with module.choosing(self):
            spent = bench(self, *args, **more)
        if (spent[0] if isinstance(spent, Sequence) else spent) != never:
            chosen[id(self)] = isinstance(spent, Sequence)
        return spent

    def unkept(self: object, key: object, configurations: object, measure: Callable[[], object]) -> bool:
        measure()
        return False

    new: dict[str, object] = {"check_disk_cache": unkept}
    if not every:
        new |= {"_bench": tried, "prune_configs": pruned}
    with ExitStack() as stack:
        for name in [name for name in new if hasattr(kind, name)]:
            stack.enter_context(mock.patch.object(kind, name, new[name]))
        yield


@contextmanager
def triton_calls(
    device: GpuModel,
    launch: Callable[[TritonLaunch, int], None],
    note: Callable[[str], None] = lambda text: None,
    autotune: str = "first",
) -> Iterator[None]:
    """Within it `launch` gets Triton's launches and their streams, also where Triton is imported later.

    autotune  the configurations of an autotuned kernel that run: the "first" that compiles and fits, or "all"
    note      is told what did not run
    """
    if autotune not in AUTOTUNE:
        raise EmulatorError(f"autotune={shown(autotune)}; it is one of {', '.join(map(repr, AUTOTUNE))}")
    if "triton" not in sys.modules and importlib.util.find_spec("triton") is None:
        yield
        return
    with ExitStack() as stack:
        module = DriverModule(device, launch)
        when_loaded: dict[str, Callable[[ModuleType], object]] = {
            DRIVER: lambda driver: stack.enter_context(_driven(driver, module)),
            AUTOTUNER: lambda tuner: stack.enter_context(tuned_here(tuner.Autotuner, module, autotune == "all", note)),
        }
        for name, loaded in when_loaded.items():
            if name in sys.modules:
                loaded(sys.modules[name])
            else:
                finder = _AfterImport(name, loaded)
                sys.meta_path.insert(0, finder)
                stack.callback(finder.leave)
        yield


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function when a module has been imported."""

    def __init__(self, name: str, loaded: Callable[[ModuleType], object]) -> None:
        self._name, self._loaded = name, loaded

    def leave(self) -> None:
        """Call it no more."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        """The module's own specification, whose loader calls the function."""
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.loader is not None
        plain = spec.loader.exec_module

        def run(module: ModuleType) -> None:
            plain(module)
            self._loaded(module)

        spec.loader.exec_module = run  # type: ignore[method-assign]
        return spec


class HostCublas:
    """Triton's CublasLt on an emulated GPU. Torch's products, since a machine without a GPU has no cuBLAS."""

    def __init__(self, workspace: object) -> None:
        """A workspace is not needed."""

    def matmul(self, a: Tensor, b: Tensor, c: Tensor) -> None:
        """C = A B^T."""
        self.gemm(a, b, c, c, 1.0, 0.0)

    def gemm(self, a: Tensor, b: Tensor, c: Tensor, d: Tensor, alpha: float, beta: float) -> None:
        """D = alpha A B^T + beta C, summed in float32."""
        product = alpha * (a.float() @ b.float().T)
        d.copy_(product + beta * c.float() if beta else product)

    def __getattr__(self, name: str) -> NoReturn:
        raise EmulatorError(f"Triton's CublasLt.{name} has no answer on an emulated GPU")


@contextmanager
def host_cublas() -> Iterator[None]:
    """Within it Triton's CublasLt is `HostCublas`."""
    from unittest import mock

    cublas = getattr(getattr(sys.modules.get("triton._C.libtriton"), "nvidia", None), "cublas", None)
    with mock.patch.object(cublas, "CublasLt", HostCublas) if cublas is not None else nullcontext():
        yield


def _refuse(lacks: Sequence[str]) -> NoReturn:
    """Refuse a Triton of another launcher, when something is to be launched."""
    raise EmulatorError(
        f"this Triton's launcher has no {', '.join(lacks)}: the emulated GPU launches kernels of Triton 3.5 to 3.9. "
        "triton.compile gives the PTX of others, for emulate_ptx"
    )


@contextmanager
def _driven(driver: ModuleType, module: DriverModule) -> Iterator[None]:
    """Triton's driver with another module in place of the one in C."""
    from unittest import mock

    values: dict[str, object]
    if lacks := [name for name in _LAUNCHER if not hasattr(driver, name)]:
        compiled = all(hasattr(driver, name) for name in _COMPILED)
        if not compiled or getattr(driver, "_BASE_ARGS_FORMAT", "") != _FIRST_ARGUMENTS:
            with mock.patch.object(driver, "CudaUtils", lambda: _refuse(lacks), create=True):
                yield
            return
        values = {
            "CudaUtils": lambda: module, "make_launcher": module.compiled_launcher,
            "compile_module_from_src": lambda src, **_: src, "library_dirs": list,
        }  # fmt: skip
    else:
        values = {
            "CudaUtils": lambda: module, "PyKernelArg": KernelArg, "ARG_CONSTEXPR": CONSTEXPR, "ARG_KERNEL": KERNEL,
            "ARG_TUPLE": TUPLE,
        }  # fmt: skip
    with ExitStack() as stack:
        stack.enter_context(host_cublas())
        for name, value in values.items():
            stack.enter_context(mock.patch.object(driver, name, value, create=True))
        for name, value in _DRIVER_ANSWERS.items():
            stack.enter_context(mock.patch.object(driver.CudaDriver, name, value))
        plain: list[Any] = []

        def late() -> None:
            """Patch the compiler at the first launch. The import of the driver is in its midst."""
            CompiledKernel = sys.modules["triton.compiler.compiler"].CompiledKernel
            active = sys.modules["triton.runtime.driver"].driver

            plain.append((CompiledKernel, CompiledKernel._init_handles, active, active._active, active._default))

            def handles(self: TritonKernel) -> None:
                with module.loading(self):
                    plain[0][1](self)

            CompiledKernel._init_handles = handles

        init = driver.CudaDriver.__init__

        def made(self: object) -> None:
            init(self)
            if not plain:
                late()

        stack.enter_context(mock.patch.object(driver.CudaDriver, "__init__", made))
        try:
            yield
        finally:
            module.unload()
            for kind, own, active, *_ in plain:
                kind._init_handles = own
                active._active = active._default = None


def _once(
    function: Callable[[], object], *args: object, quantiles: Sequence[float] | None = None, **more: object
) -> Any:
    """triton.testing.do_bench: one call; milliseconds of the emulator, which say nothing of a GPU's."""
    start = time.perf_counter()
    function()
    spent = (time.perf_counter() - start) * 1e3
    if more.get("return_mode") == "all":
        return [spent]
    return [spent] * len(quantiles) if quantiles else spent


_DRIVER_ANSWERS = {
    "is_active": staticmethod(lambda: True),
    "get_benchmarker": lambda self: _once,
    "get_empty_cache_for_benchmark": lambda self: SimpleNamespace(zero_=lambda: None),
    "get_current_target": lambda self: _target(self),
}


def _target(driver: Any) -> Any:
    major, minor = driver.get_device_capability(0)
    return sys.modules["triton.backends.compiler"].GPUTarget("cuda", major * 10 + minor, 32)
