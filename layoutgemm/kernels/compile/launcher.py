"""A compiled kernel's host function, loaded and called as cheaply as Python allows.

The object that the DSL exports has one C function for a launch, `void f(void **arguments)`. The array holds the address
of each argument, and then that of an int32 for the CUDA error. `Launcher` finds it, loads the kernel onto a GPU when
that GPU is first used, and hands out `ArgumentBlock`s: arguments laid out once. A call writes what has changed.

    what                      where it lies
    ------------------------  -------------------------------------------------------------------------------
    argument i                8 bytes at i * 8, little-endian: a 32-bit size reads the first 4 of them
    stream                    8 bytes after the arguments
    status                    8 bytes after the stream, written by the function
    address array             arguments + 2 pointers to the above, in this order

The launches of a chain have one block, where what several of them read stands once, and one C call (`ChainLauncher`).

Nothing of the DSL is imported for it: the object is linked once, when it is made, into a shared library that needs the
DSL's small runtime alone. Where no linker is, the DSL's own loader takes the object. Neither reads what the object says
of its Python signature, which is a pickle.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from ...errors import PlanError

RUNTIME = "libcute_dsl_runtime.so"
# Releases the GIL: a launch waits when the GPU's queue is full, and what empties it may be Python.
ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
HostFunction: TypeAlias = Callable[..., object]


class ArgumentBlock:
    """The arguments of one launch at a time.

    values  what may be written: argument i is values[i], the stream values[count], the status values[count + 1]
    call    launch; the caller looks at `values[count + 1]` afterwards, 0 or a CUDA error
    """

    __slots__ = ("_addresses", "_entry", "count", "pointer", "values")

    def __init__(self, entry: Any, arguments: Sequence[int]):
        self.count = len(arguments)
        self.values = (ctypes.c_int64 * (self.count + 2))(*arguments, 0, 0)
        self._addresses: object = (held := self.addresses(range(self.count)))
        self.pointer: Any = ctypes.c_void_p(ctypes.addressof(held))
        self._entry = entry

    def addresses(self, places: Sequence[int]) -> ctypes.Array[ctypes.c_void_p]:
        """The address array of a launch whose arguments stand at these places."""
        first = ctypes.addressof(self.values)
        each = [*places, self.count, self.count + 1]
        return (ctypes.c_void_p * len(each))(*[first + 8 * place for place in each])

    def launches(
        self, entries: Sequence[HostFunction], places: Sequence[Sequence[int]], within: Sequence[tuple[int, int]]
    ) -> None:
        """Be a chain's block: a host function for each launch, and its arguments' places.

        within  arguments that lie so many bytes behind the last one
        """
        self.pointer = (self.values, within, [(entry, self.addresses(own)) for entry, own in zip(entries, places)])

    def call(self) -> int:
        """Launch with these values; returns the CUDA error, or 0."""
        self._entry(self.pointer)
        return int(self.values[self.count + 1]) & 0xFFFFFFFF  # an int32 in the low half of a slot of its own


class Launcher:
    """The host function of one kernel.

    lookup  symbol -> its address; raises where there is none
    symbol  prefix that the object was exported with
    entry   name of the function that launches
    """

    def __init__(self, lookup: Callable[[str], int], symbol: str, entry: str, keep: Any = None):
        self.entry = ENTRY(lookup(entry))
        self._init = ENTRY(lookup(f"_mlir_{symbol}_cuda_init"))
        self._load = ENTRY(lookup(f"_mlir_{symbol}_cuda_load_to_device"))
        self._library = ctypes.c_void_p()
        self._devices: frozenset[int] = frozenset()
        self._lock = threading.Lock()
        self._keep = keep

    def block(self, arguments: Sequence[int]) -> ArgumentBlock:
        """A block with these arguments, of which any may be written before a call."""
        return ArgumentBlock(self.entry, arguments)

    def load(self, device: int) -> None:
        """Load the kernel on this GPU, once, and set its shared memory size.

        Raises PlanError with CUDA's error name.
        """
        if device in self._devices:
            return
        with self._lock:
            if device in self._devices:
                return
            status, number = ctypes.c_int32(0), ctypes.c_int32(device)
            pointer = ctypes.c_void_p(ctypes.addressof(self._library))
            with allowed_in_capture():
                if not self._devices:
                    self._call(self._init, pointer, status)
                self._call(self._load, pointer, number, status)
            self._devices |= {device}

    @staticmethod
    def _call(function: Any, *values: Any) -> None:
        addresses = (ctypes.c_void_p * len(values))(*[ctypes.addressof(value) for value in values])
        function(ctypes.addressof(addresses))
        if values[-1].value:
            raise PlanError(f"CUDA did not load the kernel: {error_name(values[-1].value)}")


class ChainLauncher:
    """The host functions of a chain as one. It stops at the first launch that CUDA refuses.

    entries  of each launch its function
    places   of each launch its arguments among the chain's
    within   (argument, bytes): it is written as the chain's last argument and so many bytes
    """

    def __init__(
        self, entries: Sequence[HostFunction], places: Sequence[Sequence[int]], within: Sequence[tuple[int, int]] = ()
    ):
        self._entries, self._places, self._within = entries, places, within
        self.entry = _one_by_one

    def block(self, arguments: Sequence[int]) -> ArgumentBlock:
        """A block with these arguments, of which any may be written before a call.

        The status' upper half is the number of the launch that was refused.
        """
        block = ArgumentBlock(self.entry, arguments)
        block.launches(self._entries, self._places, self._within)
        return block


def _one_by_one(
    pointer: tuple[ctypes.Array[ctypes.c_int64], Sequence[tuple[int, int]], list[tuple[HostFunction, object]]],
) -> None:
    """The launches of a chain, from Python: `torch_op.compiled.c_calls` makes them from C."""
    values, within, launches = pointer
    for place, begin in within:
        values[place] = values[-3] + begin
    values[-1] = 0
    for number, (entry, addresses) in enumerate(launches):
        entry(addresses)
        if values[-1] & 0xFFFFFFFF:
            values[-1] |= number << 32
            return


def address_of(entry: HostFunction) -> int | None:
    """The address of a host function in C; None for one of Python."""
    return ctypes.cast(entry, ctypes.c_void_p).value if isinstance(entry, ENTRY) else None


_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED in cuda.h


@contextlib.contextmanager
def allowed_in_capture() -> Iterator[None]:
    """Let this thread load kernels, allocate and wait while a stream is captured.

    Else such calls end the capture, whichever stream they are on. Source: CUDA driver API,
    cuThreadExchangeStreamCaptureMode.
    """
    mode = ctypes.c_int(_RELAXED)
    try:
        exchange = cuda_driver().cuThreadExchangeStreamCaptureMode
    except (OSError, AttributeError):  # no driver: the launch says so
        yield
        return
    exchange(ctypes.byref(mode))
    try:
        yield
    finally:
        exchange(ctypes.byref(mode))


class _Thread(threading.local):
    """The thread's CUDA context: `bound` is absent until `bind` has made it current."""

    bound: bool


THREAD = _Thread()


def cuda_driver() -> ctypes.CDLL:
    """The CUDA driver's library. Raises OSError on a machine without one."""
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


def bind(device: int) -> None:
    """Give the calling thread a CUDA context, the GPU's primary one, where it has none. Encoding a tensor map needs it.

    A thread that has done nothing on the GPU, as autograd's at its first gradient, has none, whatever torch says the
    current device is; the compiled host function then ends the process. Only the driver is asked, so that a stream may
    be captured meanwhile.
    """
    THREAD.bound = True
    context = ctypes.c_void_p()
    try:
        driver = cuda_driver()
        driver.cuCtxGetCurrent(ctypes.byref(context))
        if not context.value and not driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), ctypes.c_int(device)):
            driver.cuCtxSetCurrent(context)
    except (OSError, AttributeError):  # no driver: the launch says so
        pass


def error_name(code: int) -> str:
    """The name of a CUDA error, or its number where CUDA's bindings are absent.

    >>> error_name(0).startswith("cuda")
    True
    """
    with contextlib.suppress(Exception):  # a number is enough where the name cannot be had
        from cuda.bindings import runtime

        return str(runtime.cudaError_t(code).name)
    return f"cudaError {code}"


def load(content: bytes, library: bytes, symbol: str) -> Launcher:
    """The launcher of an exported object. It is of the library linked from it, or where that is empty of the object
    itself.

    Raises OSError or PlanError where it is not what its name says.
    """
    names = set(re.findall(rb"_mlir_%b__mlir_ciface_\w+" % symbol.encode(), content))
    if not names:
        raise PlanError(f"the object has no host function of {symbol}")
    entry = min(names, key=len).decode()
    found = None
    if library:
        runtime_library()
        with contextlib.suppress(OSError):  # /tmp may forbid execution; the DSL's loader needs no file
            found = opened(library)
    if found is not None:

        def lookup(name: str) -> int:
            return ctypes.cast(getattr(found, name), ctypes.c_void_p).value or 0

        return Launcher(lookup, symbol, entry, found)
    from cutlass.cute.runtime import load_module

    runtime_library()
    with tempfile.TemporaryDirectory(prefix="layoutgemm-") as folder:
        path = Path(folder) / "kernel.o"
        path.write_bytes(content)
        engine = load_module(str(path)).engine
    return Launcher(engine.lookup, symbol, entry, engine)


def link(content: bytes) -> bytes:
    """The object as a shared library; empty where there is no linker, or it refuses."""
    return built("kernel.o", content)


def built(name: str, content: bytes, *options: str) -> bytes:
    """A file as a shared library; empty where there is no compiler, or it refuses."""
    linker = next((found for name in (os.environ.get("CC", ""), "cc", "gcc", "clang") if (found := _which(name))), None)
    if linker is None or sys.platform != "linux":
        return b""
    with tempfile.TemporaryDirectory(prefix="layoutgemm-") as folder:
        given, made = Path(folder) / name, Path(folder) / "made.so"
        given.write_bytes(content)
        command = [linker, "-shared", "-nostdlib", "-Wl,-z,noexecstack", *options, "-o", str(made), str(given)]
        try:
            done = subprocess.run(command, capture_output=True, timeout=60)
        except (OSError, subprocess.SubprocessError):
            return b""
        return made.read_bytes() if done.returncode == 0 and made.exists() else b""


def _which(name: str) -> str | None:
    return shutil.which(name) if name else None


def opened(library: bytes) -> ctypes.CDLL:
    """A shared library from its bytes. A path of its own each time: the loader takes one it knows for the same."""
    with tempfile.TemporaryDirectory(prefix="layoutgemm-") as folder:
        path = Path(folder) / "kernel.so"
        path.write_bytes(library)
        return ctypes.CDLL(str(path))


@functools.cache
def runtime_library() -> ctypes.CDLL:
    """The DSL's runtime, for the whole process: host functions are linked against its symbols.

    Raises PlanError where it is not installed.
    """
    for path in runtime_candidates():
        if path.exists():
            # the default of ctypes keeps symbols private to the handle, and no kernel would find them
            return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    raise PlanError(f"{RUNTIME} is not installed: pip install 'layoutgemm[dsl]'")


def runtime_candidates() -> list[Path]:
    """Candidate paths of the runtime, the DSL's setting first, then its own files."""
    found = [Path(p) for p in os.environ.get("CUTE_DSL_LIBS", "").split(":") if p.endswith(RUNTIME)]
    spec = importlib.util.find_spec("cutlass")
    if spec is not None and spec.origin:
        root = Path(spec.origin).parents[2]
        found += [root / name / "lib" / RUNTIME for name in ("cu13", "cu12")]
        found.append(root / "lib" / RUNTIME)
    return found
