"""Plans into machine code: trace, compile, keep, load and launch. Needs the `dsl` extra, and a GPU only to launch.

Every kernel, fresh or cached, is loaded the same way: from the object file that the DSL exports. One path means that
what was tested on the first run is what runs on the second.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.metadata
import importlib.util
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, ClassVar, Protocol, cast

from ...arch import Arch, ArchName
from ...arch import arch as find_arch
from ...emulator.host.callers import named_callers
from ...emulator.joined import join
from ...errors import PlanError
from ..plan import GemmPlan
from ..verbs import named
from . import cache as object_cache
from .launcher import Launcher, allowed_in_capture, bind, error_name, link, load, runtime_library
from .sass import Resources, Sass, disassemble
from .sass import resources as resources_of

_PTX, _CUBIN, _OBJECT, _LIBRARY = "kernel.ptx", "kernel.cubin", "kernel.o", "kernel.so"
_PARTS = (_PTX, _CUBIN, _OBJECT, _LIBRARY)
# The DSL traces one function at a time, and two loads of one kernel would be one too many.
_LOCK = threading.RLock()
_LOADED: dict[str, CompiledGemm] = {}
# Where a plan remembers its kernel: a frozen plan never needs another, and hashing all of it at each launch is slow.
_MEMO = "_compiled_gemm"

Plan = GemmPlan
_runtime_library = runtime_library


class CompiledGemm:
    """One compiled kernel: its code, its resources, and its launch.

    plan     the plan, or the `Level`, it was compiled from; sizes are arguments of the launch, so it serves any M, N, K
    ptx      PTX text
    cubin    machine code, an ELF file
    object   the exported object: the compiled host function with the cubin inside; `symbol` is the prefix of its names
    launcher the host function, loaded; `launcher.block` is the way for many launches
    cached   whether it came from the cache on disk
    seconds  what compiling or loading took
    """

    def __init__(self, plan: GemmPlan, parts: dict[str, bytes], symbol: str, cached: bool):
        self.plan = plan
        self.ptx = parts[_PTX].decode()
        self.cubin = parts[_CUBIN]
        self.object = parts[_OBJECT]
        self.symbol = symbol
        self.cached = cached
        self.seconds = 0.0
        self.launcher: Launcher = load(parts[_OBJECT], parts[_LIBRARY], symbol)

    @functools.cached_property
    def _sass(self) -> Sass:
        return disassemble(self.cubin)

    def sass(self) -> Sass:
        """The machine code, parsed; raises PlanError when nvdisasm is absent."""
        return self._sass

    @functools.cached_property
    def resources(self) -> Resources:
        """Registers, stack and local memory of the kernel; raises PlanError when cuobjdump is absent."""
        return resources_of(self.cubin)

    def launch(self, *arguments: int, stream: int = 0) -> None:
        """Launch on the calling thread's current CUDA device; returns before it is done.

        arguments  one int for each entry of `plan.parameters`, in order: addresses in bytes, of device memory,
                   multiples of 16; sizes and strides in elements, strides that tensor maps need multiples of 16 bytes
        stream     a CUDA stream handle of that device; 0 is the default stream

        Nothing about the values is checked here: `plan.run` does that, with names. Raises PlanError when there is no
        GPU, the number of arguments is wrong, or the launch is refused.
        """
        if len(arguments) != len(self.plan.parameters):
            raise PlanError(f"the kernel takes {', '.join(self.plan.parameters)}: got {len(arguments)} arguments")
        device = current_gpu()
        bind(device)
        self.launcher.load(device)
        block = self.launcher.block(arguments)
        block.values[block.count] = stream
        if error := block.call():
            raise PlanError(f"CUDA refused the launch: {error_name(error)}; {self.plan}")

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the kernel's PTX, cubin, object and SASS into a folder. The SASS needs nvdisasm."""
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        for name, content in ((_PTX, self.ptx.encode()), (_CUBIN, self.cubin), (_OBJECT, self.object)):
            (target / name).write_bytes(content)
        try:
            (target / "kernel.sass").write_text(self.sass().text, encoding="utf-8")
        except PlanError:  # no nvdisasm: the other three say the same
            pass
        return target

    def __repr__(self) -> str:
        origin = "from the cache" if self.cached else "compiled"
        return f"<CompiledGemm of {self.plan}, {origin} in {self.seconds:.2f} s>"


def compile_plan(plan: Plan, *, keep: str | os.PathLike[str] | bool = False) -> CompiledGemm:
    """Compile the plan's kernel, or take it from memory or from the cache on disk.

    keep  a folder to write kernel.ptx, kernel.cubin, kernel.sass and kernel.o into; True makes a temporary one and
          names it on stderr; False leaves nothing behind but the cache

    The cache lies in the platform's cache folder; LAYOUTGEMM_CACHE_DIR moves it, and set to nothing switches it off.
    Raises PlanError when the DSL is not installed.
    """
    compiled = plan.__dict__.get(_MEMO)
    if compiled is None:
        compiled = _compiled(plan, facts_of(plan), lambda symbol: _trace(plan, symbol))
        plan.__dict__[_MEMO] = compiled
    if keep:
        folder = compiled.save(tempfile.mkdtemp(prefix="layoutgemm-kept-") if keep is True else keep)
        if keep is True:
            print(f"layoutgemm: kept {folder}", file=sys.stderr)
    return compiled


def require_dsl() -> str:
    """The version of the CuTe DSL. Raises PlanError that says how to install it when it is absent."""
    if importlib.util.find_spec("cutlass") is None:
        where = "" if sys.platform == "linux" else f" NVIDIA publishes it for Linux; this is {sys.platform}."
        raise PlanError(f"compiling a kernel needs the CuTe DSL: pip install 'layoutgemm[dsl]'.{where}")
    return dsl_version()


def dsl_version() -> str:
    """The installed version of nvidia-cutlass-dsl, or "unknown" when something else provides `cutlass`."""
    try:
        return importlib.metadata.version("nvidia-cutlass-dsl")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def kernel_facts(plan: Plan) -> dict[str, object]:
    """All that decides the code of the plan's kernel, as JSON-able data. Two plans with equal facts share one kernel.

    >>> from layoutgemm.kernels import TeachingPlan
    >>> small, large = TeachingPlan.derive(64, 64, 64), TeachingPlan.derive(4096, 4000, 8192)
    >>> kernel_facts(small) == kernel_facts(large)
    True
    """
    generic = plan.for_any_size()
    fields = [field.name for field in dataclasses.fields(cast(Any, plan)) if field.name != "arch"]
    return {
        "arch": plan.arch.name,
        "kernel": type(plan).__name__,
        "plan": {name: object_cache.facts_of(getattr(generic, name)) for name in fields},
        **_toolchain(),
    }


def _toolchain() -> dict[str, object]:
    """The toolchain's facts that decide a kernel's code.

    The DSL writes source lines into the code where CUTE_DSL_LINEINFO asks for them, as for a profiler or in an emulated
    session: that is another kernel.
    """
    lines = os.environ.get("CUTE_DSL_LINEINFO", "").lower() in ("1", "true")
    return {
        "dsl": dsl_version(), "host": object_cache.host(), "sources": object_cache.source_hash(), "lines": lines,
    }  # fmt: skip


class OwnPlan(Protocol):
    """A plan of a kernel that is no product: quantising, a gate, unpacked weights.

    Its device_kernel is as `kernels.verbs.named` takes it.
    """

    device_kernel: ClassVar[str]

    @property
    def arch(self) -> Arch:
        """The architecture that it is compiled for."""

    @property
    def facts(self) -> dict[str, object]:
        """All that decides its code beside the architecture, as JSON-able data."""

    @property
    def parameters(self) -> dict[str, str]:
        """The kernel's parameters, and what each is."""

    def compile(self) -> CompiledGemm:
        """The kernel, compiled or from the cache."""


def facts_of(plan: Plan | OwnPlan) -> dict[str, object]:
    """All that decides the code of a plan's kernel, as JSON-able data."""
    if isinstance(plan, GemmPlan):
        return kernel_facts(plan)
    return {**plan.facts, "arch": plan.arch.name, **_toolchain()}


def compile_own(plan: OwnPlan) -> CompiledGemm:
    """A kernel that is no product, compiled or from the cache."""

    def trace(symbol: str) -> dict[str, bytes]:
        kernel = named(plan.device_kernel)(plan)  # which imports the DSL
        return _machine_code(kernel, plan.arch.name, plan.parameters, symbol)

    return _compiled(cast(GemmPlan, plan), facts_of(plan), trace)


def compile_kernel(kernel: object, arch: str, facts: dict[str, object], origin: Any) -> CompiledGemm:
    """Compile a kernel object, or take it from the cache. Its `__call__` takes `origin.parameters` and a stream.

    kernel  an object with a `@cute.jit` method `__call__`; what it holds is a compile-time constant
    facts   all that decides its code, as JSON-able data; the version of the DSL, this processor and this package's
            sources are added here
    origin  what the result names as its plan; its `parameters` say what the kernel takes
    """
    facts = {**facts, "arch": arch, **_toolchain()}
    return _compiled(origin, facts, lambda symbol: _machine_code(kernel, arch, origin.parameters, symbol))


# Of those who collect kernels to compile, and launch none: `compile_ahead`.
AHEAD: list[Callable[[Plan | OwnPlan], CompiledGemm]] = []
Ask = Callable[[GemmPlan, Mapping[str, object]], object]
_ASK: ContextVar[Ask | None] = ContextVar("_ASK", default=None)


@contextlib.contextmanager
def asking(ask: Ask) -> Iterator[None]:
    """Have `ask(plan, facts)` called before this thread compiles a kernel.

    It may leave the kernel in the cache on disk. A kernel that is there, or in memory, is not asked for.
    """
    token = _ASK.set(ask)
    try:
        yield
    finally:
        _ASK.reset(token)


def _compiled(plan: GemmPlan, facts: dict[str, object], trace: Callable[[str], dict[str, bytes]]) -> CompiledGemm:
    require_dsl()
    key, ask = object_cache.key_of(facts), _ASK.get()
    if ask is not None and key not in _LOADED and not object_cache.kept(facts):
        ask(plan, facts)
    with _LOCK, allowed_in_capture():  # Python frees objects meanwhile, and some free memory of the GPU
        return _LOADED.get(key) or _made(plan, key, facts, trace)


def _made(plan: GemmPlan, key: str, facts: dict[str, object], trace: Callable[[str], dict[str, bytes]]) -> CompiledGemm:
    """A kernel from the cache on disk, or compiled."""
    start = time.perf_counter()
    symbol = f"layoutgemm_{key}"
    compiled = None
    parts = object_cache.read(facts, _PARTS)
    if parts is not None:
        try:
            compiled = CompiledGemm(plan, parts, symbol, cached=True)
        except Exception:  # whatever the loader dislikes about an old object, compiling anew is the answer
            compiled = None
    if compiled is None:
        parts = trace(symbol)
        compiled = CompiledGemm(plan, parts, symbol, cached=False)
        object_cache.write(facts, parts)
    compiled.seconds = time.perf_counter() - start
    _LOADED[key] = compiled
    return compiled


def _trace(plan: Plan, symbol: str) -> dict[str, bytes]:
    # The kernel sees a plan for a 1x1x1 problem: were it to read a size at trace time, every test would show it.
    return _machine_code(kernel_of(plan.for_any_size()), plan.arch.name, plan.parameters, symbol)


def _machine_code(kernel: object, arch: str, parameters: Mapping[str, str], symbol: str) -> dict[str, bytes]:
    """Trace and compile the kernel, and export it."""
    from cutlass import Int32, Int64
    from cutlass.cute.runtime import make_fake_stream

    kinds = {"address": Int64(0), "size": Int32(1), "stride": Int64(8), "word": Int64(0)}
    arguments = [kinds[kind] for kind in parameters.values()]
    # An engine takes a fifth of the time, and is made where the GPU can run the code. It would never be called: every
    # kernel is loaded from its object.
    function = compile_function(kernel, *arguments, make_fake_stream(), arch=arch, lines=False, no_jit_engine=True)
    runtime_library()  # exporting links the kernel's host half against its symbols
    content = function.dump_to_object(symbol)
    return {
        _PTX: function.__ptx__.encode(),
        _CUBIN: bytes(function.__cubin__),
        _OBJECT: content,
        _LIBRARY: link(content),
    }


def compile_function(kernel: object, *arguments: object, arch: ArchName, lines: bool = True, **more: bool) -> Any:
    """The function that `cute.compile` makes, with its PTX and cubin in memory. No GPU is needed.

    kernel     an object of a class with `@cute.jit __call__`, or such a function
    arguments  of the call, for their types alone
    arch       such as "sm_90a" or "hopper"
    lines      keep the lines of the Python source, which the emulator's findings name; the instructions are the same
    more       what else `cute.compile` takes

    `layoutgemm.emulate` executes what comes back, and a GPU of that architecture runs it. Raises PlanError for an
    unknown `arch`. What the DSL raises passes through.
    """
    import cutlass.cute as cute

    target = find_arch(arch).name
    # PTX and cubin pass through files, by default in the working directory, and are in memory afterwards.
    with tempfile.TemporaryDirectory(prefix="layoutgemm-", ignore_cleanup_errors=True) as folder:
        # --gpu-arch always: without it the DSL takes the architecture of the machine it runs on, or of an environment
        # variable read at import.
        options = f"--gpu-arch {target} --keep-ptx --keep-cubin --dump-dir {folder}"
        if not lines:
            return cute.compile(kernel, *arguments, options=options, **more)
        with named_callers():
            return cute.compile(kernel, *arguments, options=f"{options} --generate-line-info", **more)


def kernel_of(plan: Plan) -> object:
    """The DSL's kernel for a plan: an object of the class that the plan names."""
    return named(plan.device_kernel)(plan)


def require_gpu() -> None:
    """Raise PlanError when the CUDA runtime finds no GPU."""
    from cuda.bindings import runtime

    error, count = runtime.cudaGetDeviceCount()
    if error != runtime.cudaError_t.cudaSuccess or not count:
        name = error.name if error != runtime.cudaError_t.cudaSuccess else "no device"
        raise PlanError(f"a launch needs an NVIDIA GPU and its driver: {name}. The NumPy executor needs neither")


def current_gpu() -> int:
    """The calling thread's CUDA device; raises PlanError without one."""
    from cuda.bindings import runtime

    require_gpu()
    error, device = runtime.cudaGetDevice()
    if error != runtime.cudaError_t.cudaSuccess:
        raise PlanError(f"CUDA has no current device: {error.name}")
    return int(device)


def _forked() -> None:
    """In a new process: a thread that it has not may hold the lock."""
    global _LOCK
    _LOCK = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


join(lambda gpu: named("run.emulated:launched_on")(gpu))
