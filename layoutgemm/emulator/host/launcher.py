"""The host half of a compiled CuTe DSL kernel, run on the CPU.

Its object code is linked with a stub of the CUDA runtime (emulator/host/cuda_stub.c) and runs here. It encodes its
tensor maps, computes its grid, and passes each launch to the stub. So boxes, strides, swizzles, clusters and shared
memory are the compiler's own. The types of its arguments give its parameters (`emulator/host/types.py`).

A C compiler links the two: $CC, or cc, gcc or clang on the path.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...arch import facts_of
from ...arguments import shown
from ...errors import EmulatorError
from ..machine.launch import MULTIPROCESSORS, Launch
from ..machine.memory import GlobalMemory
from ..machine.tensor_map import BYTES, from_driver
from ..ptx.parser import PtxKernel, read_module
from .arguments import ArgumentMemory, Array, array_of
from .types import HostParameter, packed

STUB = Path(__file__).with_name("cuda_stub.c")
ET_DYN = 3  # the type of a shared library in its ELF header


@dataclass(frozen=True)
class HostLaunch:
    """A launch that a host function asked for. If it is dependent, it may begin before the one in front of it has
    ended."""

    kernel: PtxKernel
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    dynamic_shared: int
    parameters: bytes
    dependent: bool = False

    def within(self, memory: GlobalMemory) -> Launch:
        """The launch in a memory."""
        return Launch(self.grid, self.block, self.parameters, memory, self.cluster, self.dynamic_shared)

    def pointers(self) -> Iterator[tuple[int, int]]:
        """(parameter byte, value) of each 64-bit load of a parameter; pointers are among them."""
        offsets = {parameter.name: parameter.offset for parameter in self.kernel.parameters}
        for ins in self.kernel.instructions:
            if ins.words[:2] == ("ld", "param") and ins.words[-1] in ("b64", "u64"):
                source = ins.operands[1]
                name, _, more = source.parts[0].text.partition("+")
                if name in offsets:
                    at = offsets[name] + source.offset + int(more or 0)
                    for place in range(at, at + 8 * max(1, len(ins.operands[0].parts)), 8):
                        yield place, int.from_bytes(self.parameters[place : place + 8], "little")


_ENTRY = re.compile(rb"_mlir_\w*?_mlir_ciface_\w+")


# The compiler ---------------------------------------------------------------------------------------------------------


def c_compiler() -> str:
    """A C compiler. Raises EmulatorError with the way to get one."""
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        if name and (found := shutil.which(name)):
            return found
    raise EmulatorError(
        "running a compiled host function needs a C compiler, and there is none: install gcc or clang, or set CC. "
        "emulate_ptx, with the launch described, needs none"
    )


@functools.cache
def _stub(compiler: str) -> bytes:
    """The stub runtime as an object file, compiled once in a process."""
    with tempfile.TemporaryDirectory(prefix="layoutgemm-host-") as folder:
        made = Path(folder) / "stub.o"
        command = [compiler, "-c", "-fPIC", "-O1", "-o", str(made), str(STUB)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise EmulatorError(f"the stub runtime cannot be compiled: {done.stderr}")
        return made.read_bytes()


def _link(content: bytes, libraries: Sequence[str] = ()) -> ctypes.CDLL:
    """An object file, or a library, linked with the stub. Raises EmulatorError with the linker's message."""
    is_library = int.from_bytes(content[16:18], "little") == ET_DYN
    with tempfile.TemporaryDirectory(prefix="layoutgemm-host-") as folder:
        made, compiler = Path(folder) / "host.so", c_compiler()
        kernel = Path(folder) / ("kernel.so" if is_library else "kernel.o")
        objects = {Path(folder) / "stub.o": _stub(compiler), kernel: content}
        for path, data in objects.items():
            path.write_bytes(data)
        # -Bsymbolic: the stub's functions, also where the real runtime was loaded for the whole process.
        command = [compiler, "-shared", "-fPIC", "-Wl,-Bsymbolic", "-Wl,--no-undefined", "-o", str(made)]
        command += ["-Wl,--no-as-needed", f"-Wl,-rpath,{folder}"] if is_library else []
        done = subprocess.run([*command, *map(str, objects), *libraries], capture_output=True, text=True)
        if done.returncode:
            missing = sorted(set(re.findall(r"undefined reference to [`'](\w+)'", done.stderr)))
            what = f"it calls {', '.join(missing)}, which the stub runtime does not have" if missing else done.stderr
            raise EmulatorError(f"the host function cannot be linked: {what}")
        try:
            # A library's references are bound to the stub before the real runtime, which it may name as its own.
            return ctypes.CDLL(str(made), mode=ctypes.DEFAULT_MODE | (os.RTLD_DEEPBIND if is_library else 0))
        except OSError as error:
            raise EmulatorError(f"the host function cannot be loaded: {error}") from None


# Host functions -------------------------------------------------------------------------------------------------------

_ENCODE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_uint64, *[ctypes.c_void_p] * 4,
    *[ctypes.c_int] * 4,
)  # fmt: skip
_LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int, *[ctypes.POINTER(ctypes.c_uint32)] * 3, ctypes.c_uint64, ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, ctypes.c_int,
)  # fmt: skip
COOPERATIVE_LAUNCH_TOO_LARGE = 720  # cudaErrorCooperativeLaunchTooLarge, driver_types.h


class HostStatusError(EmulatorError):
    """The CUDA error that a host function returned, as on a GPU. `status` is its number."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


def _words(kind: Any, address: int, count: int) -> list[int]:
    return list((kind * count).from_address(address)) if count else []


@dataclass
class HostFunction:
    """A compiled host function, linked with the stub, and the kernels that it launches.

    kernels     of the PTX
    parameters  in order
    """

    kernels: list[PtxKernel]
    parameters: list[HostParameter]
    library: ctypes.CDLL
    entry: str
    launches: list[HostLaunch] = field(default_factory=list)
    failure: BaseException | None = None
    refusal: str = ""

    @staticmethod
    def link(
        content: bytes, ptx: str, parameters: Sequence[HostParameter], libraries: Sequence[str] = (), entry: str = ""
    ) -> HostFunction:
        """A host function from object file, PTX and parameters, linked with the stub and `libraries`.

        entry  the function's symbol, where it is known: by default the shortest that the object file has
        """
        names = [entry] if entry else sorted({name.decode() for name in _ENTRY.findall(content)}, key=len)
        if not names:
            raise EmulatorError("the object file has no host function of the CuTe DSL")
        function = HostFunction(read_module(ptx), list(parameters), _link(content, libraries), names[0])
        facts = facts_of(function.kernels[0].target)
        for name, value in (("multiprocessors", MULTIPROCESSORS), ("shared_opt_in", facts.smem_per_block)):
            ctypes.c_int32.in_dll(function.library, f"layoutgemm_{name}").value = value
        function._load(function.entry.partition("_mlir_ciface_")[0].removesuffix("_"))
        return function

    def _load(self, prefix: str) -> None:
        """Call the module's initialisation, which asks the stub for the kernels' handles."""
        library, status, device = ctypes.c_void_p(), ctypes.c_int32(), ctypes.c_int32()
        pointer = ctypes.c_void_p(ctypes.addressof(library))
        for name, values in (("cuda_init", (pointer, status)), ("cuda_load_to_device", (pointer, device, status))):
            initialise = getattr(self.library, f"{prefix}_{name}", None)
            if initialise is not None:
                initialise((ctypes.c_void_p * len(values))(*[ctypes.addressof(value) for value in values]))

    # -------------------------------------------------------- calling it

    def call(self, values: Sequence[object], extra: Sequence[object] = ()) -> tuple[ArgumentMemory, list[HostLaunch]]:
        """Run the function with these arguments. Returns the memory that its kernels see, and its launches.

        values  one for each parameter, lists of them opened; streams left out or not
        extra   further arrays that kernels reach by addresses in them
        """
        leaves = [leaf for value in values for leaf in _leaves(value)]
        wanted = [p for p in self.parameters if p.kind != "stream" or len(leaves) == len(self.parameters)]
        if len(leaves) != len(wanted):
            names = ", ".join(f"{p.name or 'one'} ({p.kind})" for p in wanted)
            raise EmulatorError(f"{len(leaves)} arguments; the compiled function takes {len(wanted)}: {names}")
        arrays = gathered([(p.name, value) for p, value in zip(wanted, leaves, strict=True)], extra)
        given = dict(zip(map(id, wanted), leaves, strict=True))
        return arrays, self.run([packed(p, p.name, given.get(id(p)), arrays) for p in self.parameters], arrays)

    def run(self, words: Sequence[bytes], arrays: ArgumentMemory) -> list[HostLaunch]:
        """Run the function on the bytes of its arguments, in order; returns its launches."""

        def enter() -> None:
            keep = [ctypes.create_string_buffer(word, len(word)) for word in words]
            status = ctypes.c_int32(0)
            pointers = [ctypes.addressof(word) for word in keep] + [ctypes.addressof(status)]
            entry = getattr(self.library, self.entry)
            entry((ctypes.c_void_p * len(pointers))(*pointers), ctypes.c_int32(len(pointers)))
            if status.value and self.failure is None:
                launched = len(self.launches)
                text = f"the host function gave status {status.value} and launched {launched} kernels{self.refusal}"
                raise HostStatusError(text, status.value)

        return self.recorded(enter, arrays)

    def recorded(self, enter: Callable[[], None], arrays: ArgumentMemory) -> list[HostLaunch]:
        """The launches while `enter` runs; each of their pointers must lie in an array."""
        self.launches, self.failure, self.refusal = [], None, ""
        encode_call, launch_call = _ENCODE(self._encode), _LAUNCH(self._launch)
        for name, call in (("layoutgemm_encode", encode_call), ("layoutgemm_launch", launch_call)):
            ctypes.c_void_p.in_dll(self.library, name).value = ctypes.cast(call, ctypes.c_void_p).value
        try:
            enter()
        except EmulatorError as error:
            self.failure = self.failure or error
        if self.failure is not None:
            raise self.failure
        for launch in self.launches:
            arrays.hold(launch.pointers(), launch.kernel.name)
        return self.launches

    def _encode(
        self, out: int, kind: int, rank: int, address: int, dims: int, strides: int, box: int, steps: int,
        interleave: int, swizzle: int, l2: int, fill: int,
    ) -> int:  # fmt: skip
        try:
            if not 1 <= rank <= 5:
                raise EmulatorError(f"a tensor map of {rank} dimensions")
            extents, pitches = _words(ctypes.c_uint64, dims, rank), _words(ctypes.c_uint64, strides, rank - 1)
            along, skips = _words(ctypes.c_uint32, box, rank), _words(ctypes.c_uint32, steps, rank)
            content = from_driver(kind, address, extents, pitches, along, skips, interleave, swizzle, l2, fill)
            ctypes.memmove(out, content, BYTES)
        except Exception as error:  # it may not pass through C; `_run` raises it
            self.failure = self.failure or error
            return 1
        return 0

    def _launch(
        self,
        grid: Any,
        block: Any,
        cluster: Any,
        shared: int,
        name: bytes | None,
        arguments: Any,
        cooperative: int,
        dependent: int,
    ) -> int:
        try:
            kernel = self._kernel(name)
            parameters = bytearray(kernel.parameter_bytes)
            for number, parameter in enumerate(kernel.parameters):
                content = ctypes.string_at(arguments[number], parameter.size)
                parameters[parameter.offset : parameter.offset + parameter.size] = content
            sizes = [tuple(int(value[i]) for i in range(3)) for value in (grid, block, cluster)]
            blocks, room = math.prod(sizes[0]), resident(kernel.target, math.prod(sizes[1]), shared)
            if cooperative and blocks > room:
                self.refusal = f": a cooperative launch of {blocks} blocks, of which {room} are resident at once"
                return COOPERATIVE_LAUNCH_TOO_LARGE
            x, y, z = sizes
            self.launches.append(HostLaunch(kernel, x, y, z, shared, bytes(parameters), bool(dependent)))  # type: ignore[arg-type]
        except Exception as error:
            self.failure = self.failure or error
            return 1
        return 0

    def _kernel(self, name: bytes | None) -> PtxKernel:
        if name is None and len(self.kernels) == 1:
            return self.kernels[0]
        found = next((kernel for kernel in self.kernels if name is not None and kernel.name == name.decode()), None)
        if found is None:
            raise EmulatorError(
                f"the host function launches {shown(name)}; the PTX has {[k.name for k in self.kernels]}"
            )
        return found


@dataclass(frozen=True)
class HostCall:
    """A call of a linked host function on an emulated GPU.

    label   what launches it, for findings of streams
    values  one for each parameter but the stream; an address is one of this process, in the GPU's memory
    """

    label: str
    function: HostFunction
    values: tuple[int, ...]

    def call(self, *_: object) -> tuple[ArgumentMemory, list[HostLaunch]]:
        """The memory that the kernels see, and their launches."""
        return self.function.call(self.values)


def resident(target: str, threads: int, shared: int) -> int:
    """The most blocks that a GPU holds at once, by threads and dynamic shared memory. Registers may allow fewer."""
    facts = facts_of(target)
    of_shared = facts.smem_per_sm // shared if shared else facts.blocks_per_sm
    return MULTIPROCESSORS * min(facts.blocks_per_sm, facts.threads_per_sm // max(1, threads), of_shared)


# Arguments ------------------------------------------------------------------------------------------------------------


def gathered(named: Sequence[tuple[str, object]], extra: Sequence[object] = ()) -> ArgumentMemory:
    """The arrays among named and further values, as the memory of one call."""
    named = [*named, *[(f"extra {n}", value) for n, value in enumerate(extra)]]
    found: list[tuple[str, Array]] = []
    for name, value in named:
        try:
            array = array_of(value)
        except EmulatorError as error:
            raise EmulatorError(f"{name}: {error}") from error
        if array is not None:
            found.append((name, array))
    arrays = ArgumentMemory(found)
    # The memory is the caller's, by address: it must outlive the launches.
    arrays.memory.kept = tuple(value for _, value in named)
    return arrays


def _leaves(value: object) -> list[object]:
    if isinstance(value, (list, tuple)):
        return [leaf for part in value for leaf in _leaves(part)]
    return [value]
