"""Libraries of CUDA C++ that Python loads, by ctypes or TVM-FFI.

FlashInfer, SGLang and TileLang compile such libraries when a function is first called. nvcc is asked for PTX beside the
machine code. A library's functions of CUDA's runtime are the emulator's, and a tensor on the emulated GPU goes to a
function of TVM-FFI as one.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType

from .cuda_programs import MODULE_STUB, CudaRuntime, linked
from .devices import GpuModel
from .jax_calls import imported
from .torch_device.tensors import GpuCapsule, on_gpu

# Output of nvcc for one architecture alone, where another would be an error.
_OTHER_OUTPUT = {"-ptx", "--ptx", "-cubin", "--cubin", "-optix-ir", "--optix-ir"}
_REGISTERS = b"__cudaRegisterFatBinary"  # what a library with kernels calls when it is loaded


def keeps_ptx(command: Sequence[str]) -> bool:
    """True for nvcc that makes an object or a library, and for ninja.

    >>> keeps_ptx(["/usr/local/cuda/bin/nvcc", "-c", "kernel.cu"]), keeps_ptx(["nvcc", "--ptx", "kernel.cu"])
    (True, False)
    """
    program = Path(command[0]).name if command else ""
    return program == "ninja" or (program == "nvcc" and not _OTHER_OUTPUT & set(command))


def _nvcc_flags(device: GpuModel, command: Sequence[str], given: str) -> str:
    """$NVCC_APPEND_FLAGS with those that keep PTX, and leave CUDA's runtime out of a library."""
    virtual = device.arch.name.replace("sm_", "compute_")
    runtime = " -cudart=none" * bool({"-shared", "--shared"} & set(command))
    return f"{given} -no-compress -lineinfo -gencode=arch={virtual},code={virtual}{runtime}".strip()


@contextmanager
def cuda_libraries(runtime: CudaRuntime, note: Callable[[str], None]) -> Iterator[None]:
    """Within it, libraries that are loaded launch their kernels by `runtime`. `note` gets those that cannot."""
    from unittest import mock

    plain: Callable[..., None] = ctypes.CDLL.__init__
    plain_start: Callable[..., None] = subprocess.Popen.__init__

    def start(self: object, args: object, *more: object, **named: object) -> None:
        if isinstance(args, (str, bytes, os.PathLike)):
            words = os.fsdecode(args).split()
        else:
            args = list(args) if isinstance(args, Iterable) else [args]
            words = [str(x) for x in args]
        if keeps_ptx(words):
            own = named.get("env")
            env = dict(own) if isinstance(own, Mapping) else dict(os.environ)
            given = env.get("NVCC_APPEND_FLAGS", "")
            named["env"] = env | {"NVCC_APPEND_FLAGS": _nvcc_flags(runtime.device, words, given)}
        plain_start(self, args, *more, **named)

    def load(self: ctypes.CDLL, name: object, *args: object, **named: object) -> None:
        plain(self, bound(name) if isinstance(name, (str, os.PathLike)) else name, *args, **named)

    def bound(name: str | os.PathLike[str]) -> str:
        """The path of the library, linked to the emulator's runtime if it has kernels."""
        path = Path(name)
        found = _images(path) if path.is_file() else ""
        if found == "static":
            note(f"{path.name} has CUDA's runtime within, and launches past the emulator: build it with -cudart shared")
        if found != "bound":
            return str(name)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="layoutgemm-library-"))
        return str(linked(path, path.resolve(), runtime, Path(folder), MODULE_STUB))

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(subprocess.Popen, "__init__", start))
        stack.enter_context(mock.patch.object(ctypes.CDLL, "__init__", load))
        stack.enter_context(imported("tvm_ffi", lambda module: _loaded(module, bound, stack)))
        yield


def _images(path: Path) -> str:
    """The runtime of a library's kernels: "bound" when it is loaded, "static", or "" without kernels."""
    if not path.stat().st_size:
        return ""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        binary, registers = (content.find(text) >= 0 for text in (b".nv_fatbin", _REGISTERS))
    if registers:
        table = subprocess.run(["nm", "-D", "--undefined-only", str(path)], capture_output=True)
        if _REGISTERS in table.stdout:
            return "bound"
    return "static" if binary else ""


def _loaded(ffi: ModuleType, bound: Callable[[str], str], stack: ExitStack) -> None:
    """Link modules with kernels to the emulator's runtime, and hand tensors to all modules."""
    from unittest import mock

    api = ffi.module._ffi_api
    plain, plain_function = api.ModuleLoadFromFile, api.ModuleGetFunction

    def function(*args: object) -> object:
        found = plain_function(*args)
        return None if found is None else _with_tensors(ffi, found)

    stack.enter_context(mock.patch.object(api, "ModuleLoadFromFile", lambda path: plain(bound(path))))
    stack.enter_context(mock.patch.object(api, "ModuleGetFunction", function))


def _with_tensors(ffi: ModuleType, plain: Callable[..., object]) -> Callable[..., object]:
    """A module's function, which takes torch's tensors on the emulated GPU as such."""

    def handed(x: object) -> object:
        if type(x) is list:
            return [handed(one) for one in x]
        if type(x) is tuple:
            return tuple(handed(one) for one in x)
        return ffi.from_dlpack(GpuCapsule(x)) if on_gpu(x) else x

    return lambda *args: plain(*map(handed, args))
