"""The host half of a compiled CuTe DSL kernel, run on the CPU: it says what would be launched.

`export_to_c` gives the host function as an object file. Linked with a stub of the CUDA runtime (host_stub.c) it runs
here, encodes its tensor maps, computes its grid, and tells each launch to the stub. So boxes, strides, swizzles,
clusters and shared memory are those that the compiler produced. The arguments' structs come from the generated header.

A C compiler links the two: $CC, or cc, gcc or clang on the path.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..arch import facts_of
from ..dtypes import dtype
from ..errors import EmulatorError
from .arguments import Array, Arrays, array_of
from .machine import MULTIPROCESSORS
from .ptx import Kernel, parse
from .tensor_map import BYTES, from_driver

STUB = Path(__file__).with_name("host_stub.c")
KEEP = 'compile with options="--gpu-arch sm_90a --keep-ptx --dump-dir FOLDER" (or CUTE_DSL_KEEP_PTX=1) to keep it'


@dataclass(frozen=True)
class HostParameter:
    """One parameter of a host function.

    kind     "tensor" (a descriptor), "tensors" (a list of them), "pointer", "scalar", "integers" or "stream"
    type     C type of a scalar or of integers
    count    tensors of a list, or integers
    shapes   (how many extents, C type) that a descriptor holds; strides likewise
    """

    name: str
    kind: str
    type: str = ""
    count: int = 1
    shapes: tuple[int, str] = (0, "int32_t")
    strides: tuple[int, str] = (0, "int64_t")


@dataclass(frozen=True)
class HostLaunch:
    """A launch that a host function asked for."""

    kernel: Kernel
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    dynamic_shared: int
    parameters: bytes

    def pointers(self) -> Iterator[tuple[int, int]]:
        """(parameter byte, value) of all that the kernel loads as 64 bits: pointers are among them."""
        offsets = {parameter.name: parameter.offset for parameter in self.kernel.parameters}
        for ins in self.kernel.instructions:
            if ins.words[:2] == ("ld", "param") and ins.words[-1] in ("b64", "u64"):
                source = ins.operands[1]
                name, _, more = source.parts[0].text.partition("+")
                if name in offsets:
                    at = offsets[name] + source.offset + int(more or 0)
                    for place in range(at, at + 8 * max(1, len(ins.operands[0].parts)), 8):
                        yield place, int.from_bytes(self.parameters[place : place + 8], "little")


_SCALARS: dict[str, Any] = {
    **{f"{u}int{n}_t": getattr(ctypes, f"c_{u}int{n}") for u in ("", "u") for n in (8, 16, 32, 64)},
    "float": ctypes.c_float,
    "double": ctypes.c_double,
}
_HALVES = {"__half_raw": "f16", "__nv_bfloat16": "bf16"}
_DESCRIPTOR = re.compile(r"typedef struct \{\s*void \*data;(.*?)\} (\w+)_Tensor_(\w+)_t;", re.S)
_LIST = re.compile(r"_Tensor_(\w+)_t elements\[(\d+)\];")
_WRAPPER = re.compile(r"_wrapper\(\w+_Kernel_Module_t \*module(?:, )?(.*?)\) \{(.*?)\n\}", re.S)
_ENTRY = re.compile(rb"_mlir_\w+?__mlir_ciface_\w+")


def read_header(text: str) -> list[HostParameter]:
    """The parameters of a generated header's wrapper function, in order. Raises EmulatorError for what is not known."""
    found = _WRAPPER.search(text)
    if found is None:
        raise EmulatorError("the generated header has no wrapper function: this version of the CuTe DSL is not known")
    members: dict[str, dict[str, tuple[int, str]]] = {}
    for body, _, name in _DESCRIPTOR.findall(text):
        members[name] = {what: (int(n), kind) for kind, what, n in re.findall(r"(\w+) dynamic_(\w+)\[(\d+)\];", body)}
    lists = {name: int(count) for name, count in _LIST.findall(text)}
    out = []
    for argument in [part.strip() for part in found[1].split(",") if part.strip()]:
        kind, star, name = (part.strip() for part in re.fullmatch(r"(.*?)(\s*\*\s*|\s+)(\w+)", argument).groups())  # type: ignore[union-attr]
        if kind.endswith("_t") and "_Tensor" in kind:
            form = members.get(name, {})
            listed = "_TensorList_" in kind
            out.append(
                HostParameter(
                    name, "tensors" if listed else "tensor", "", lists.get(name, 1),
                    form.get("shapes", (0, "int32_t")), form.get("strides", (0, "int64_t")),
                )
            )  # fmt: skip
        elif kind == "void" and star:
            out.append(HostParameter(name, "pointer"))
        elif kind in ("cudaStream_t", "CUstream"):
            out.append(HostParameter(name, "stream"))
        elif kind in _SCALARS or kind in _HALVES:
            many = len(re.findall(rf"&{name}\[\d+\]", found[2]))
            out.append(HostParameter(name, "integers" if star else "scalar", kind, many if star else 1))
        else:
            raise EmulatorError(f"host parameter {argument!r} is of a kind that is not known")
    return out


# The compiler ---------------------------------------------------------------------------------------------------------


def c_compiler() -> str:
    """A C compiler. Raises EmulatorError that says how to get one."""
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        if name and (found := shutil.which(name)):
            return found
    raise EmulatorError(
        "running a compiled host function needs a C compiler, and there is none: install gcc or clang, or set CC. "
        "emulate_ptx, with the launch described, needs none"
    )


@functools.cache
def _stub(compiler: str) -> bytes:
    """The stub runtime as an object file: compiled once for a process, since compiling takes longer than linking."""
    with tempfile.TemporaryDirectory(prefix="layoutgemm-host-") as folder:
        made = Path(folder) / "stub.o"
        command = [compiler, "-c", "-fPIC", "-O1", "-o", str(made), str(STUB)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise EmulatorError(f"the stub runtime cannot be compiled: {done.stderr}")
        return made.read_bytes()


def _link(content: bytes) -> ctypes.CDLL:
    """The object file with the stub, as a library. Raises EmulatorError with the linker's words."""
    with tempfile.TemporaryDirectory(prefix="layoutgemm-host-") as folder:
        made, compiler = Path(folder) / "host.so", c_compiler()
        objects = {Path(folder) / "kernel.o": content, Path(folder) / "stub.o": _stub(compiler)}
        for path, data in objects.items():
            path.write_bytes(data)
        # -Bsymbolic: the stub's functions, also where the real runtime was loaded for the whole process.
        command = [compiler, "-shared", "-fPIC", "-Wl,-Bsymbolic", "-Wl,--no-undefined", "-o", str(made)]
        done = subprocess.run([*command, *map(str, objects)], capture_output=True, text=True)
        if done.returncode:
            missing = sorted(set(re.findall(r"undefined reference to [`'](\w+)'", done.stderr)))
            what = f"it calls {', '.join(missing)}, which the stub runtime does not have" if missing else done.stderr
            raise EmulatorError(f"the host function cannot be linked: {what}")
        return ctypes.CDLL(str(made))


@functools.cache
def _runtime_libraries() -> tuple[Any, ...]:
    """The DSL's runtime, loaded for the whole process: exporting a kernel looks its host half's symbols up there."""
    module = sys.modules.get("cutlass.runtime") or sys.modules.get("cutlass.cute.runtime")
    if module is None:
        raise EmulatorError("the CuTe DSL that compiled this kernel is not loaded")
    return tuple(
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL) for path in module.find_runtime_libraries(enable_tvm_ffi=False)
    )


# Host functions -------------------------------------------------------------------------------------------------------

_ENCODE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_uint64, *[ctypes.c_void_p] * 4,
    *[ctypes.c_int] * 4,
)  # fmt: skip
_LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int, *[ctypes.POINTER(ctypes.c_uint32)] * 3, ctypes.c_uint64, ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_void_p),
)  # fmt: skip


def _words(kind: Any, address: int, count: int) -> list[int]:
    return list((kind * count).from_address(address)) if count else []


@dataclass
class HostFunction:
    """A compiled host function, linked with the stub, and the kernels that it launches.

    kernels     of the PTX
    parameters  in order
    """

    kernels: list[Kernel]
    parameters: list[HostParameter]
    library: ctypes.CDLL
    entry: str
    launches: list[HostLaunch] = field(default_factory=list)
    failure: BaseException | None = None

    @staticmethod
    def of(compiled: Any) -> HostFunction:
        """The host function of what `cute.compile` returned. Raises EmulatorError where its PTX was not kept."""
        text = getattr(compiled, "__ptx__", None)
        if not isinstance(text, str) or ".entry" not in text:
            raise EmulatorError(f"the compiled function has no PTX: {KEEP}")
        _runtime_libraries()
        with tempfile.TemporaryDirectory(prefix="layoutgemm-host-") as folder:
            try:
                compiled.export_to_c(folder, "kernel", "kernel")
            except NotImplementedError as error:
                raise EmulatorError(f"the compiled function cannot be exported: {error}") from error
            parameters = read_header((Path(folder) / "kernel.h").read_text())
            return HostFunction.link((Path(folder) / "kernel.o").read_bytes(), text, parameters)

    @staticmethod
    def link(content: bytes, ptx: str, parameters: Sequence[HostParameter]) -> HostFunction:
        """A host function from its object file, its PTX, and its parameters."""
        names = sorted({name.decode() for name in _ENTRY.findall(content)}, key=len)
        if not names:
            raise EmulatorError("the object file has no host function of the CuTe DSL")
        function = HostFunction(parse(ptx), list(parameters), _link(content), names[0])
        facts = facts_of(function.kernels[0].target)
        for name, value in (("multiprocessors", MULTIPROCESSORS), ("shared_opt_in", facts.smem_per_block)):
            ctypes.c_int32.in_dll(function.library, f"layoutgemm_{name}").value = value
        function._load(names[0].partition("__mlir_ciface_")[0])
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

    def call(self, values: Sequence[Any], extra: Sequence[Any] = ()) -> tuple[Arrays, list[HostLaunch]]:
        """Run the function with these arguments: the memory that its kernels see, and what it launches.

        values  one for each parameter, streams left out or not
        extra   further arrays that kernels reach by addresses in them
        """
        wanted = [p for p in self.parameters if p.kind != "stream" or len(values) == len(self.parameters)]
        if len(values) != len(wanted):
            names = ", ".join(f"{p.name} ({p.kind})" for p in wanted)
            raise EmulatorError(f"{len(values)} arguments; the compiled function takes {len(wanted)}: {names}")
        named: list[tuple[str, Array]] = []
        for parameter, value in zip(wanted, values, strict=True):
            for number, part in enumerate(value if isinstance(value, (list, tuple)) else (value,)):
                array = array_of(part)
                if array is not None:
                    name = f"{parameter.name}[{number}]" if isinstance(value, (list, tuple)) else parameter.name
                    named.append((name, array))
        named += [(f"extra {n}", array) for n, value in enumerate(extra) if (array := array_of(value)) is not None]
        arrays = Arrays(named)
        # The memory is the caller's, by address: it has to live as long as somebody may run the launches.
        arrays.memory.kept = (*values, *extra)
        given = dict(zip([p.name for p in wanted], values, strict=True))
        words: list[bytes] = []
        for parameter in self.parameters:
            if parameter.kind == "stream":
                words.append(bytes(8))
            else:
                words += _packed(parameter, given[parameter.name], arrays)
        self._run(words)
        for launch in self.launches:
            arrays.hold(launch.pointers(), launch.kernel.name)
        return arrays, self.launches

    def _run(self, words: Sequence[bytes]) -> None:
        self.launches, self.failure = [], None
        encode_call, launch_call = _ENCODE(self._encode), _LAUNCH(self._launch)
        for name, call in (("layoutgemm_encode", encode_call), ("layoutgemm_launch", launch_call)):
            ctypes.c_void_p.in_dll(self.library, name).value = ctypes.cast(call, ctypes.c_void_p).value
        keep = [ctypes.create_string_buffer(word, len(word)) for word in words]
        status = ctypes.c_int32(0)
        pointers = [ctypes.addressof(word) for word in keep] + [ctypes.addressof(status)]
        getattr(self.library, self.entry)((ctypes.c_void_p * len(pointers))(*pointers), ctypes.c_int32(len(pointers)))
        if self.failure is not None:
            raise self.failure
        if status.value:
            raise EmulatorError(
                f"the host function gave status {status.value} and launched {len(self.launches)} kernels"
            )

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

    def _launch(self, grid: Any, block: Any, cluster: Any, shared: int, name: bytes | None, arguments: Any) -> int:
        try:
            kernel = self._kernel(name)
            parameters = bytearray(kernel.parameter_bytes)
            for number, parameter in enumerate(kernel.parameters):
                content = ctypes.string_at(arguments[number], parameter.size)
                parameters[parameter.offset : parameter.offset + parameter.size] = content
            sizes = [tuple(int(value[i]) for i in range(3)) for value in (grid, block, cluster)]
            self.launches.append(HostLaunch(kernel, sizes[0], sizes[1], sizes[2], shared, bytes(parameters)))  # type: ignore[arg-type]
        except Exception as error:
            self.failure = self.failure or error
            return 1
        return 0

    def _kernel(self, name: bytes | None) -> Kernel:
        if name is None and len(self.kernels) == 1:
            return self.kernels[0]
        found = next((kernel for kernel in self.kernels if name is not None and kernel.name == name.decode()), None)
        if found is None:
            raise EmulatorError(f"the host function launches {name!r}; the PTX has {[k.name for k in self.kernels]}")
        return found


# Arguments ------------------------------------------------------------------------------------------------------------


def _packed(parameter: HostParameter, value: Any, arrays: Arrays) -> list[bytes]:
    """A parameter's value as the function takes it: the bytes behind each pointer."""
    if parameter.kind == "tensors":
        if not isinstance(value, (list, tuple)) or len(value) != parameter.count:
            raise EmulatorError(f"{parameter.name} is a list of {parameter.count} tensors")
        return [_descriptor(parameter, part, arrays) for part in value]
    if parameter.kind == "tensor":
        return [_descriptor(parameter, value, arrays)]
    if parameter.kind == "integers":
        numbers = _leaves(value)
        if len(numbers) != parameter.count:
            raise EmulatorError(
                f"{parameter.name} has {len(numbers)} integers, the compiled function {parameter.count}"
            )
        return [_scalar(parameter.type, number, parameter.name) for number in numbers]
    array = array_of(value)
    if array is not None:
        if parameter.kind == "scalar" and parameter.type not in ("int64_t", "uint64_t"):
            raise EmulatorError(f"{parameter.name} is a scalar of type {parameter.type}, and an array was given")
        return [struct.pack("<Q", arrays.address(array.address))]
    if parameter.kind == "pointer":
        raw = getattr(value, "_pointer", value)
        if raw is None or raw == 0:
            return [bytes(8)]
        if not isinstance(raw, int):
            raise EmulatorError(f"{parameter.name} is a pointer: pass the array that it points to")
        return [struct.pack("<Q", arrays.address(raw))]
    return [_scalar(parameter.type, value, parameter.name)]


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [leaf for part in value for leaf in _leaves(part)]
    return [value]


def _scalar(kind: str, value: Any, name: str) -> bytes:
    value = getattr(value, "value", value)
    try:
        if kind in _HALVES:
            return int(dtype(_HALVES[kind]).encode([float(value)])[0]).to_bytes(2, "little")
        number = float(value) if kind in ("float", "double") else int(value)
    except (TypeError, ValueError):
        raise EmulatorError(f"{name} is a scalar of type {kind}, and {value!r} was given") from None
    return bytes(_SCALARS[kind](number))


def _descriptor(parameter: HostParameter, value: Any, arrays: Arrays) -> bytes:
    """A tensor's descriptor: its address, and the extents and strides that the compiled function takes."""
    array = array_of(value)
    if array is None:
        raise EmulatorError(f"{parameter.name} is a tensor: pass a NumPy array, a CPU torch tensor or a CuTe tensor")
    fields = [struct.pack("<Q", arrays.address(array.address))]
    masks = [getattr(value, f"dynamic_{what}_mask", None) for what in ("shapes", "strides")]
    chosen = (
        _dynamic(parameter, array.shape, parameter.shapes[0], masks[0], "extents"),
        _strides(parameter, array, masks[1]),
    )
    at = 8
    for (_, kind), numbers in zip((parameter.shapes, parameter.strides), chosen, strict=True):
        size = ctypes.sizeof(_SCALARS[kind])
        if numbers and at % size:
            fields.append(bytes(size - at % size))
            at += size - at % size
        fields += [bytes(_SCALARS[kind](number)) for number in numbers]
        at += size * len(numbers)
    return b"".join(fields)


def _dynamic(parameter: HostParameter, values: Sequence[int], count: int, mask: Any, what: str) -> list[int]:
    """The values that are arguments of the compiled function, by the tensor's own mask where it has one."""
    if mask is not None and sum(map(bool, mask)) == count:
        return [value for value, dynamic in zip(values, mask, strict=True) if dynamic]
    if count == len(values):
        return list(values)
    if count == 0:
        return []
    raise EmulatorError(
        f"{parameter.name}: the compiled function takes {count} of the tensor's {len(values)} {what} at run time, and "
        "an array does not say which: pass the CuTe tensor, from_dlpack(x) marked dynamic as it was to compile"
    )


def _strides(parameter: HostParameter, array: Array, mask: Any) -> list[int]:
    count = parameter.strides[0]
    if mask is None and count == len(array.strides) - 1:
        # The stride that was compiled in is the 1 of the contiguous mode; of several it may be any.
        if 1 in array.strides:
            leading = array.strides.index(1)
            return [stride for i, stride in enumerate(array.strides) if i != leading]
    return _dynamic(parameter, array.strides, count, mask, "strides")
