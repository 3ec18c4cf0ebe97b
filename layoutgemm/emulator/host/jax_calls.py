"""JAX on an emulated GPU. `cutlass_call` and TVM-FFI targets run in the emulator, on XLA's buffers in CPU memory.

`cutlass.jax` lowers a call to a foreign function of XLA, for CUDA alone. Here it has the same lowering for the CPU, and
the foreign function (emulator/host/jax_ffi.c) hands its buffers to Python. The compiled host function takes for each of
them the address of {data, extents}, which is written here with emulated addresses.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.abc
import importlib.machinery
import itertools
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from ...errors import EmulatorError
from .arguments import ArgumentMemory, bytes_at
from .dsl_calls import CompiledFunction
from .launcher import HostLaunch, c_compiler, gathered

HANDLER = Path(__file__).with_name("jax_ffi.c")
_CALL = ctypes.CFUNCTYPE(
    ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p),
    ctypes.POINTER(ctypes.POINTER(ctypes.c_int64)),
)  # fmt: skip
Launch = Callable[..., object]  # (compiled function, arguments, those by name)


class XlaBuffer(ctypes.Structure):
    """An array as a function that `cutlass_call` compiles takes it: its data, and its extents."""

    _fields_ = (("data", ctypes.c_void_p), ("dims", ctypes.c_void_p))


class XlaFunction(CompiledFunction):
    """A compiled function of `cutlass_call`, which takes a stream and buffers."""

    def call(
        self, values: Sequence[Any], extra: Sequence[Any] = (), named: Mapping[str, Any] | None = None
    ) -> tuple[ArgumentMemory, list[HostLaunch]]:
        """Run the function on (name, bytes, extents) of each buffer. Returns its kernels' memory, and its launches."""
        arrays = gathered([(name, content) for name, content, _ in values], extra)
        keep = [
            XlaBuffer(arrays.address(content.__array_interface__["data"][0]), ctypes.addressof(extents))
            for _, content, extents in values
        ]
        words = [bytes(8), *[ctypes.addressof(one).to_bytes(8, "little") for one in keep]]
        arrays.memory.kept = (*arrays.memory.kept, values, keep)
        return arrays, self.host.run(words, arrays)


class _Calls:
    """The functions that `cutlass_call` has compiled, by key, and XLA's calls of them."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.compiled: dict[bytes, tuple[Any, Any]] = {}  # key -> (compiled function, its specification)
        self.linked: dict[bytes, CompiledFunction] = {}
        self.failure: BaseException | None = None
        self._numbers = itertools.count()
        self._said = b""

    def compile(self, module: ModuleType, fn: object, spec: Any) -> object:
        """Compile as `cutlass.jax` does, with a key in place of machine code."""
        import cuda.bindings.driver as cuda
        import cutlass.cute

        options = {"options": spec.compile_options} if spec.compile_options else {}
        made = cutlass.cute.compile(
            module.jit_wrapper, cuda.CUstream(0), *spec.get_compile_args(), wrapped_fn=fn, spec=spec, **options
        )
        key = hashlib.sha256(f"layoutgemm {next(self._numbers)}".encode()).hexdigest().encode()
        self.compiled[key] = made, spec
        return module.CompileResult(module=b"", fingerprint=key, spec=spec)

    def called(self, key: Any, length: int, count: int, data: Any, dims: Any) -> int | None:
        """XLA's call: returns the address of an error's text, or None."""
        try:
            self._run(ctypes.string_at(key, length), [(data[n], dims[n]) for n in range(count)])
        except BaseException as error:
            self.failure = error
            self._said = f"{type(error).__name__}: {error}".encode() + b"\0"
            return ctypes.cast(ctypes.c_char_p(self._said), ctypes.c_void_p).value
        return None

    def _run(self, key: bytes, buffers: Sequence[tuple[int, Any]]) -> None:
        if key not in self.compiled:
            raise EmulatorError("the kernel of this cutlass_call was compiled on another emulated GPU")
        made, spec = self.compiled[key]
        values = []
        for number, ((address, dims), arg) in enumerate(zip(buffers, (*spec.in_args, *spec.out_args), strict=True)):
            extents = (ctypes.c_int64 * max(1, len(arg.shape)))(*dims[: len(arg.shape)])
            size = math.prod(extents[: len(arg.shape)]) * _bytes_of(arg.dtype)
            side, at = ("input", number) if number < len(spec.in_args) else ("output", number - len(spec.in_args))
            values.append((f"{side} {at}", bytes_at(address, size, extents), extents))
        if not self._has_kernels(made):
            self._on_the_host(made, values)
            return
        if key not in self.linked:
            self.linked[key] = XlaFunction.of(made)
        self.launch(self.linked[key], values, {})

    @staticmethod
    def _has_kernels(made: object) -> bool:
        return ".entry" in (getattr(made, "__ptx__", None) or "")

    @staticmethod
    def _on_the_host(made: Any, values: Sequence[tuple[str, Any, Any]]) -> None:
        """Run a function without kernels, which may print."""
        keep = [XlaBuffer(content.ctypes.data, ctypes.addressof(extents)) for _, content, extents in values]
        words = [ctypes.c_void_p(0), *[ctypes.c_void_p(ctypes.addressof(one)) for one in keep]]
        made.run_compiled_program([ctypes.addressof(word) for word in words])


def _bytes_of(kind: Any) -> int:
    import numpy as np

    return int(np.dtype(kind).itemsize)


# JAX ------------------------------------------------------------------------------------------------------------------

_HANDLERS: list[tuple[ctypes.CDLL, object]] = []  # one a process: JAX keeps its targets
_CURRENT: list[_Calls] = []  # of the emulated GPU that there is


def _called(*args: Any) -> int | None:
    return _CURRENT[-1].called(*args) if _CURRENT else None


def _handler(jax: ModuleType) -> object:
    """The foreign function, compiled once in a process against JAX's own header."""
    if not _HANDLERS:
        with tempfile.TemporaryDirectory(prefix="layoutgemm-jax-") as folder:
            made = Path(folder) / "handler.so"
            command = [c_compiler(), "-shared", "-fPIC", "-O1", f"-I{jax.ffi.include_dir()}", "-o", str(made)]
            done = subprocess.run([*command, str(HANDLER)], capture_output=True, text=True)
            if done.returncode:
                raise EmulatorError(f"the handler for JAX's foreign functions cannot be compiled: {done.stderr}")
            library = ctypes.CDLL(str(made))
        call = _CALL(_called)
        ctypes.c_void_p.in_dll(library, "layoutgemm_call").value = ctypes.cast(call, ctypes.c_void_p).value
        _HANDLERS.append((library, call))
    return jax.ffi.pycapsule(_HANDLERS[0][0].layoutgemm_xla)


@contextmanager
def jax_calls(launch: Launch) -> Iterator[None]:
    """Within it `cutlass_call`, and compiled functions that `jax_tvm_ffi` registers, run by `launch`."""
    calls = _Calls(launch)
    _CURRENT.append(calls)
    with ExitStack() as stack:
        stack.callback(_CURRENT.remove, calls)
        stack.enter_context(imported("cutlass.jax.primitive", lambda module: _lowered(module, calls, stack)))
        stack.enter_context(imported("jax_tvm_ffi", lambda module: _registered(module, launch, stack)))
        yield


def _lowered(module: ModuleType, calls: _Calls, stack: ExitStack) -> None:
    """Lower `cutlass_call` on the CPU as for CUDA, to targets that are the emulator's."""
    from unittest import mock

    import jax
    from cutlass.jax import compile as compiling
    from cutlass.jax import ffi
    from jax.interpreters import mlir

    def compiled(fn: object, spec: object, **_: object) -> object:
        return calls.compile(compiling, fn, spec)

    impl = getattr(module, "_cutlass_call_inner_p_impl", None) or module.cutlass_call_inner_p_impl  # 4.8, 4.7
    stack.enter_context(mock.patch.object(module, "get_or_compile_kernel", compiled))
    mlir.register_lowering(module.cutlass_call_inner_p, mlir.lower_fun(impl, multiple_results=True), platform="cpu")
    for name in set().union(*ffi._CUTLASS_CALL_TARGETS.values()):
        jax.ffi.register_ffi_target(name, _handler(jax), platform="cpu")


def _registered(module: ModuleType, launch: Launch, stack: ExitStack) -> None:
    """Register compiled functions for the CPU, where JAX's arrays lie."""
    from unittest import mock

    import numpy as np
    import tvm_ffi

    plain = module.register_ffi_target

    def register(
        name: str, function: object, arg_spec: object = None, platform: str = "cpu", **options: object
    ) -> object:
        if not _Calls._has_kernels(function):
            return plain(name, function, arg_spec, platform, **options)

        def run(*args: object) -> None:
            launch(function, [borrowed(x) if hasattr(x, "__dlpack__") else x for x in args], {})

        def borrowed(x: Any) -> Any:
            """The array of XLA's buffer, which it does not keep. XLA asks for its buffers back after the call."""
            seen = np.from_dlpack(x)
            address = seen.__array_interface__["data"][0]
            return bytes_at(address, seen.nbytes, None).view(seen.dtype).reshape(seen.shape)

        options = {**options, "allow_cuda_graph": False, "pass_owned_tensor": True}
        return plain(name, tvm_ffi.convert(run), arg_spec, "cpu", **options)

    stack.enter_context(mock.patch.object(module, "register_ffi_target", register))


# Modules that a script imports later ----------------------------------------------------------------------------------


class _ImportHook(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """A finder that calls a function after a module's first import."""

    def __init__(self, name: str, ready: Callable[[ModuleType], None]) -> None:
        self.name, self.ready = name, ready
        self.inner: importlib.abc.Loader | None = None

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module's own specification, with this loader."""
        if name != self.name or self.inner is not None:
            return None
        found = importlib.machinery.PathFinder.find_spec(name, path)
        if found is not None and found.loader is not None:
            self.inner, found.loader = found.loader, self
        return found

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """As the module's own loader."""
        assert self.inner is not None
        return self.inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """As the module's own loader; then the function."""
        assert self.inner is not None
        self.inner.exec_module(module)
        self.ready(module)


@contextmanager
def imported(name: str, ready: Callable[[ModuleType], None]) -> Iterator[None]:
    """Call `ready` with a module: now if it is imported, else when it will be."""
    if name in sys.modules:
        ready(sys.modules[name])
        yield
        return
    finder = _ImportHook(name, ready)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
