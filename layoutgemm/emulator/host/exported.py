"""Functions that are loaded from a file. An exported object keeps the PTX beside its machine code.

Within an emulated GPU the DSL's `dump_to_object` and `export_to_c` write a record into a section of the object. A
linker carries the section into a library. `load_module` reads it, also in a later process, and runs the file's own host
code. The record names the machine code that the PTX was compiled to, so a file whose machine code differs is refused.

An ELF file (System V ABI, "Object Files") of the CUDA machine, EM_CUDA, within another is a kernel's machine code.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
import struct
import subprocess
import tempfile
import weakref
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...arch import ARCHES
from ...errors import EmulatorError
from .devices import GpuModel
from .launcher import c_compiler

MAGIC = b"layoutgemm exported function 1\n"
EM_CUDA = 190
WAY_OUT = "export it within `layoutgemm emulate` or layoutgemm.emulated_gpu(), which keep the PTX in the object"
_SECTION = """
.section .layoutgemm,"",@progbits
.incbin "record"
.section .note.GNU-stack,"",@progbits
"""


# Files ----------------------------------------------------------------------------------------------------------------


def machine_code(content: bytes) -> list[str]:
    """SHA-256 of each kernel image in an object or a library, in order.

    >>> machine_code(b"no ELF file")
    []
    """
    found, at = [], content.find(b"\x7fELF\x02\x01", 1)
    while 0 <= at <= len(content) - 64:
        if int.from_bytes(content[at + 18 : at + 20], "little") == EM_CUDA:
            found.append(hashlib.sha256(content[at : at + _elf_bytes(content, at)]).hexdigest())
        at = content.find(b"\x7fELF\x02\x01", at + 1)
    return found


def _elf_bytes(content: bytes, at: int) -> int:
    """The size of the 64-bit ELF file that begins there: the end of its last section, or of its tables."""
    segments, sections, _, _, segment, segment_count, width, count = struct.unpack_from("<QQIHHHHH", content, at + 32)
    ends = [64, segments + segment * segment_count, sections + width * count]
    for place in range(at + sections, min(at + sections + width * count, len(content) - 63), width or 64):
        kind, _, _, offset, size = struct.unpack_from("<IQQQQ", content, place + 4)
        if kind != 8:  # SHT_NOBITS
            ends.append(offset + size)
    return max(ends)


@dataclass(frozen=True)
class ExportedFunction:
    """The record of a function in an object file.

    symbol    its name in the file: the prefix, or TVM-FFI's name
    name      the compiled function's
    ffi       True for TVM-FFI's calls
    ptx       of its kernels, and code: the digests of the machine code that it became
    machine   types of its arguments, and traced: those before lowering, if kept
    none      parameters that were None at compilation
    added     workspaces behind the arguments
    signature pickled as the DSL does, in base64; for TVM-FFI's functions, whose files have none
    """

    symbol: str
    name: str
    ffi: bool
    ptx: str
    code: list[str]
    machine: list[str]
    traced: list[str]
    none: list[bool]
    added: int
    signature: str = ""

    def within(self, content: bytes) -> bytes:
        """The object file with this record in a section. Raises EmulatorError with the compiler's message."""
        record = zlib.compress(json.dumps(asdict(self)).encode())
        with tempfile.TemporaryDirectory(prefix="layoutgemm-export-") as name:
            folder = Path(name)
            (folder / "record").write_bytes(MAGIC + len(record).to_bytes(8, "little") + record)
            (folder / "record.s").write_text(_SECTION)
            (folder / "plain.o").write_bytes(content)
            command = [c_compiler(), "-r", "-nostdlib", "-o", "whole.o", "plain.o", "record.s"]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
            if done.returncode:
                raise EmulatorError(f"the PTX of {self.symbol} cannot be kept in its object: {done.stderr}")
            return (folder / "whole.o").read_bytes()


def exported_in(content: bytes) -> dict[str, ExportedFunction]:
    """The records in a file, by symbol."""
    found, at = {}, content.find(MAGIC)
    while at >= 0:
        start = at + len(MAGIC) + 8
        end = start + int.from_bytes(content[start - 8 : start], "little")
        try:
            record = ExportedFunction(**json.loads(zlib.decompress(content[start:end])))
        except (zlib.error, ValueError, TypeError) as error:
            raise EmulatorError(f"a record of the PTX at byte {at} of the file is damaged: {error}") from None
        found[record.symbol] = record
        at = content.find(MAGIC, end)
    return found


@dataclass(frozen=True)
class LoadedFunction:
    """An exported function, and the content of the file that it was loaded from."""

    record: ExportedFunction
    content: bytes

    @property
    def entry(self) -> str:
        """The symbol of its host function."""
        of_ffi = f"__tvm_ffi_{self.record.symbol}"
        return of_ffi if self.record.ffi else f"_mlir_{self.record.symbol}__mlir_ciface_{self.record.name}"


_LOADED: weakref.WeakKeyDictionary[object, LoadedFunction] = weakref.WeakKeyDictionary()


def loaded_from_file(compiled: object) -> LoadedFunction | None:
    """The file that a compiled function was loaded from within an emulated GPU, or None."""
    return _LOADED.get(compiled)


# The DSL --------------------------------------------------------------------------------------------------------------

TypesOf = Callable[[Any], tuple[list[str], list[str]]]


@contextmanager
def exports(device: GpuModel, types_of: TypesOf) -> Iterator[None]:
    """Give the DSL's exported objects records, and run functions of loaded files by them.

    types_of  a compiled function's machine types, and its types before lowering
    """
    from unittest import mock

    from cutlass.base_dsl.export import ExternalBinaryModule
    from cutlass.base_dsl.jit_executor import JitCompiledFunction

    files: weakref.WeakKeyDictionary[Any, _File] = weakref.WeakKeyDictionary()
    dump, opened, attribute = (
        JitCompiledFunction.dump_to_object, ExternalBinaryModule.__init__, ExternalBinaryModule.__getattr__,
    )  # fmt: skip

    def dumped(self: object, function_prefix: str) -> Any:
        return _recorded(self, function_prefix, dump(self, function_prefix), False, types_of)

    def open_file(self: Any, file_path: str, *args: object, **named: object) -> None:
        opened(self, file_path, *args, **named)
        files[self] = _File(file_path, Path(file_path).read_bytes(), self.enable_tvm_ffi, device)

    def look_up(self: Any, name: str) -> Any:
        found = attribute(self, name)
        if self in files:
            return files[self].function(name, found)
        if self.enable_tvm_ffi or found.has_gpu_module:
            raise EmulatorError(f"{name} is of a module that was loaded outside of this emulated GPU: load it within")
        return found

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(JitCompiledFunction, "dump_to_object", dumped))
        stack.enter_context(mock.patch.object(ExternalBinaryModule, "__init__", open_file))
        stack.enter_context(mock.patch.object(ExternalBinaryModule, "__getattr__", look_up))
        if (base := _ffi_function()) is not None:
            stack.enter_context(mock.patch.object(base, "export_to_c", _ffi_export(base.export_to_c, types_of)))
        yield


def _ffi_function() -> Any:
    """The DSL's class of functions with TVM-FFI, or None without TVM-FFI."""
    try:
        from cutlass.cutlass_dsl.tvm_ffi_provider import TVMFFIJitCompiledFunctionBase
    except ImportError:
        return None
    return TVMFFIJitCompiledFunctionBase


def _ffi_export(plain: Callable[..., None], types_of: TypesOf) -> Callable[..., None]:
    """`export_to_c` of a function with TVM-FFI, with a record in the object that it writes."""

    def export(self: object, object_file_path: str, function_name: str | None = None, **named: object) -> None:
        plain(self, object_file_path, function_name, **named)
        path = Path(object_file_path)
        if function_name is not None and path.read_bytes()[:4] == b"\x7fELF":  # else LLVM's text or bitcode
            path.write_bytes(_recorded(self, function_name, path.read_bytes(), True, types_of))

    return export


def _recorded(compiled: Any, symbol: str, content: bytes, ffi: bool, types_of: TypesOf) -> bytes:
    """An exported object with the function's record; as it is where it has no kernel, or is for another machine."""
    text = getattr(compiled, "__ptx__", None)
    if not isinstance(text, str) or ".entry" not in text or compiled.host_target.value:
        return content
    machine, traced = types_of(compiled)
    execution = compiled.execution_args
    none = [one is True for one in getattr(execution, "_compiled_with_none", None) or []]
    record = ExportedFunction(
        symbol, compiled.function_name, ffi, text, machine_code(content), machine, traced, none,
        int(getattr(compiled, "total_added_arguments", 0)), _pickled(compiled) if ffi else "",
    )  # fmt: skip
    return record.within(content)


def _pickled(compiled: Any) -> str:
    """A compiled function's signature; "" where it cannot be pickled, which its export does not need on a GPU."""
    try:
        pickled = compiled.export_provider.signature_processor.dumps(compiled.execution_args.original_signature)
    except Exception:
        return ""
    return base64.b64encode(pickled).decode()


@dataclass(frozen=True)
class _File:
    """A file that the DSL has loaded, and the GPU that runs its functions."""

    path: str
    content: bytes
    ffi: bool
    device: GpuModel

    def function(self, name: str, found: Any) -> Any:
        """A function of the file as the DSL gives it, for the emulator. Raises EmulatorError, naming the file."""
        record = exported_in(self.content).get(name)
        code = machine_code(self.content)
        if record is None or record.ffi != self.ffi:
            if code if self.ffi else found.has_gpu_module:
                raise EmulatorError(
                    f"{name} of {self.path} is machine code alone, which the emulator cannot run: {WAY_OUT}"
                )
            return found  # of the host alone
        if not record.code or not set(record.code) <= set(code):
            raise EmulatorError(
                f"{name} of {self.path}: its machine code is not what was exported with the PTX there: {WAY_OUT}"
            )
        target = re.search(r"^\s*\.target\s+(\w+)", record.ptx, re.MULTILINE)
        if target is not None and not runs_on(target[1], self.device):
            raise EmulatorError(f"{name} of {self.path} was compiled for {target[1]}; this is {self.device.arch.name}")
        function = _with_signature(record) if self.ffi else found
        if record.none:
            function.execution_args._compiled_with_none = list(record.none)
        function.total_added_arguments = record.added
        function.artifacts = _artifacts(record.ptx)
        _LOADED[function] = LoadedFunction(record, self.content)
        return function


def runs_on(target: str, device: GpuModel) -> bool:
    """True if machine code for a target runs on a GPU.

    Source: CUDA C++ Programming Guide, "Binary Compatibility".

    >>> [runs_on(target, GpuModel.of("sm_103a")) for target in ("sm_100", "sm_100f", "sm_103a", "sm_100a", "sm_90")]
    [True, True, True, False, False]
    """
    if target in ARCHES:
        return device.capability in ARCHES[target].capabilities
    digits = re.fullmatch(r"sm_(\d+)(\d)", target)
    if digits is None:
        return False
    return int(digits[1]) == device.capability[0] and int(digits[2]) <= device.capability[1]


def _artifacts(ptx: str) -> Any:
    """The DSL's keeper of a compiled function's PTX."""
    from cutlass.base_dsl.jit_executor import JitFunctionArtifacts

    made = JitFunctionArtifacts(PTX=None, CUBIN=None, SASS=None, MLIR=None)
    made.PTX = ptx  # its constructor takes a path
    return made


@functools.cache
def _loaded_ffi_function() -> Any:
    """The DSL's class of functions with TVM-FFI, for those that have no machine code."""
    from cutlass.cutlass_dsl.tvm_ffi_provider import TVMFFIJitCompiledFunction

    class LoadedFfiFunction(TVMFFIJitCompiledFunction):
        # TVM-FFI compares handles, and those of all such functions are null.
        __eq__ = object.__eq__
        __hash__ = object.__hash__

    return LoadedFfiFunction


def _with_signature(record: ExportedFunction) -> Any:
    """A function with TVM-FFI whose calls the emulator runs."""
    kind = _loaded_ffi_function()
    processor = kind.export_provider.signature_processor
    if not record.signature:
        raise EmulatorError(f"the signature of {record.symbol} could not be pickled at its export: no local types")
    try:
        signature = processor.loads(base64.b64decode(record.signature))
    except Exception as error:
        raise EmulatorError(f"the signature of {record.symbol} cannot be read here: {error}") from error
    return kind(
        ir_module=None, engine=None, capi_func=None, signature=signature, function_name=record.name, kernel_info=None,
        jit_time_profiling=False, jit_function_artifacts=None,
    )  # fmt: skip
