"""An emulated GPU for code that was written for a real one. A context manager, and the runs that it has seen.

Within it torch's "cuda" tensors lie in CPU memory, and `cute.compile` keeps what the emulator needs. The emulator runs
calls of compiled functions and of `@cute.jit` functions. Code inside is not changed.
"""

from __future__ import annotations

import io
import json
import os
import runpy
import sys
import tempfile
import threading
import time
import tokenize
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...arguments import PROGRAMS
from ...errors import EmulatorError
from ..findings import joined
from ..joined import all_joined
from ..races.unordered_launches import FOUND
from .arguments import memory_found_by
from .callers import named_callers
from .cuda_calls import DeviceMemory, cuda_calls
from .cuda_programs import CudaRuntime, library_of, run_program
from .devices import GpuModel
from .driver_modules import PtxLaunch
from .dsl_calls import RefusedArgumentError, is_without_stream, types_of, watch
from .exported import exports
from .graphs.stream_order import LEGACY
from .jax_calls import XlaFunction, jax_calls
from .launcher import HostCall, HostStatusError
from .libraries import cuda_libraries
from .torch_device.streams import CAPTURES, asked_of, is_capturing
from .torch_device.tensors import GpuCapsule, cuda_device, gpu_mode, marked, on_gpu, tensor_at
from .triton_calls import TritonLaunch, triton_calls

if TYPE_CHECKING:
    from ...arch import ArchName
    from ..api import Emulation
    from ..findings import Finding

    Emulate = Callable[..., Emulation]

KEPT = 64  # findings that a report prints
NO_STREAM = (
    "a call without a CUstream among its arguments was captured on torch's current stream: on a GPU a function that "
    "is given no stream launches on the legacy one, outside of the graph"
)
OUTSIDE = "a launch on the legacy stream, while another stream captured, is in no graph: it ran at once, as on a GPU"
_OPEN = threading.RLock()  # held by the thread that has an emulated GPU: torch and the DSL are the whole process's


class EmulatedGpu:
    """The runs of an emulated GPU.

    device  which GPU the code was told about
    runs    one for each call that launched kernels, in order
    fatal   errors of kernels that could not go on, which were raised as well
    notes   what was not checked
    copies  races of copies and fills with work of other streams, or of other nodes of a CUDA graph
    """

    def __init__(self, device: GpuModel):
        self.device = device
        self.runs: list[Emulation] = []
        self.copies: list[Finding] = []
        self.fatal: list[EmulatorError] = []
        self.notes: list[str] = []
        self.memory = DeviceMemory()

    def launch(self, one: TritonLaunch | PtxLaunch | HostCall, stream: int) -> None:
        """Launch a described kernel; a session sets it."""
        raise EmulatorError("this emulated GPU has been left")

    @staticmethod
    def torch_mode() -> AbstractContextManager[object]:
        """The mode in which torch's "cuda" is this GPU. A thread has it once."""
        return gpu_mode()

    @staticmethod
    def adopt(tensors: Sequence[object]) -> None:
        """Have all tensors on this GPU where one is.

        Compiled code allocates where torch's Python does not see it.
        """
        if any(map(on_gpu, tensors)):
            for x in tensors:
                marked(x)

    def note(self, text: str) -> None:
        """Note what is not checked, once."""
        if text not in self.notes:
            self.notes.append(text)

    @property
    def findings(self) -> list[Finding]:
        """All findings, in order."""
        return [*[finding for run in self.runs for finding in run.findings], *self.copies]

    @property
    def ok(self) -> bool:
        """True if nothing but lint was found."""
        return not self.fatal and not self.copies and all(run.ok for run in self.runs)

    def report(self) -> str:
        """The number of launches, each line's findings with their count, and what was not checked."""
        launches = sum(len(run.launches) for run in self.runs)
        alike: dict[tuple[str, str, str], list[Finding]] = {}
        for finding in self.findings:
            alike.setdefault(finding.alike, []).append(finding)
        lines = [f"{type(error).__name__}: {error}" for error in self.fatal]
        lines += [f"{joined(same)}" + f"\n  {len(same)} times" * (len(same) > 1) for same in alike.values()]
        more = [f"and {len(lines) - KEPT} more findings"] if len(lines) > KEPT else []
        found = f"{len(lines)} finding(s)" if lines else "nothing found"
        head = f"emulated {self.device.name} ({self.device.arch.name}): {launches} launch(es), {found}"
        return "\n".join([head, *lines[:KEPT], *more, *[f"note: {text}" for text in self.notes]])

    def as_json(self) -> dict[str, Any]:
        """All runs for JSON: `Emulation.as_json` of each call, joined."""
        runs: list[dict[str, Any]] = [run.as_json() for run in self.runs]
        return {
            "device": self.device.name, "arch": self.device.arch.name, "ok": self.ok,
            "fatal": [f"{type(error).__name__}: {error}" for error in self.fatal],
            "notes": self.notes,
            "launches": [launch for run in runs for launch in run["launches"]],
            "findings": [
                *[finding for run in runs for finding in run["findings"]],
                *[finding.as_json() for finding in self.copies],
            ],
        }  # fmt: skip

    def __repr__(self) -> str:
        return f"<EmulatedGpu {self.device.arch.name}: {len(self.runs)} run(s), {len(self.findings)} finding(s)>"


@contextmanager
def session(
    emulate: Emulate, arch: ArchName, python: bool = True, autotune: str = "first", **options: object
) -> Iterator[EmulatedGpu]:
    """An emulated GPU of that architecture. `emulate` runs a compiled function with its arguments and the options.

    python, autotune  whether code of Python uses it: torch, the DSL, JAX and Triton; as for `triton_calls`

    Raises EmulatorError while another thread has one.
    """
    from unittest import mock

    gpu = EmulatedGpu(GpuModel.of(arch))
    if not _OPEN.acquire(blocking=False):
        raise EmulatorError(
            "another thread of this process has an emulated GPU, which all threads share: launch within that one, or "
            "leave it first"
        )

    def launch(compiled: object, args: Sequence[object], named: dict[str, object]) -> None:
        stream = _stream_of(compiled, (*args, *named.values()))
        if stream is None and is_capturing():
            gpu.note(NO_STREAM)
        name = str(getattr(compiled, "function_name", "a function of the DSL"))
        asked_of(stream, lambda: now(compiled, args, named), label=name, launches=True)

    def launch_one(one: TritonLaunch | PtxLaunch | HostCall, stream: int) -> None:
        if stream in LEGACY and CAPTURES.any():
            gpu.note(OUTSIDE)
        if isinstance(one, HostCall):
            label = one.label
        else:
            label = (one.function if isinstance(one, PtxLaunch) else one).kernel.name
        asked_of(stream, lambda: ran(one), label=label, launches=True)

    def now(compiled: Any, args: Sequence[object], named: dict[str, object]) -> None:
        if isinstance(compiled, XlaFunction):
            return ran(compiled, *args)
        signature = compiled.execution_args.signature
        own = len(args) - getattr(compiled, "total_added_arguments", 0)  # workspaces come behind them
        bound = signature.bind_partial(*args[:own], **named)  # a parameter may be called `extra`
        return ran(compiled, *bound.args, *args[own:], **bound.kwargs)

    def ran(compiled: object, *args: object, **named: object) -> None:
        try:
            with _real_torch():
                gpu.runs.append(emulate(compiled, *args, **named, **options))
        except RefusedArgumentError as error:
            raise (error.__cause__ or error) from None  # as without an emulator
        except HostStatusError as error:
            raise _as_the_dsl(error) from error
        except EmulatorError as error:
            gpu.fatal.append(error)
            raise

    with ExitStack() as stack:
        stack.callback(_OPEN.release)
        FOUND.append(gpu.copies)
        stack.callback(FOUND.pop)
        stack.enter_context(mock.patch.object(gpu, "launch", launch_one))
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="layoutgemm-emulated-"))
        if python:
            stack.enter_context(_python(gpu, folder, launch, autotune))
            stack.enter_context(all_joined(gpu))
        stack.enter_context(memory_found_by(gpu.memory.holder))
        stack.enter_context(memory_found_by(tensor_at))
        yield gpu


@contextmanager
def _python(gpu: EmulatedGpu, folder: str, launch: Callable[..., None], autotune: str) -> Iterator[None]:
    """Within it torch, the DSL, JAX, Triton and cuda.bindings use the emulated GPU."""
    from unittest import mock

    gpu.device.nvidia_smi(Path(folder))
    with ExitStack() as stack:
        if _importable("cutlass"):
            _dsls()  # made here, or they would keep the session's environment, which they read when they are made
        stack.enter_context(mock.patch.dict(os.environ, _environment(gpu.device, folder)))
        # Caches of compiled functions in the temporary folder hold machine code, from GPUs and for them.
        stack.enter_context(mock.patch.object(tempfile, "tempdir", folder))
        if _importable("torch"):
            stack.enter_context(cuda_device(gpu.device, gpu.note))
        if _importable("cutlass"):
            stack.enter_context(_launches(gpu.device, folder, launch))
            stack.enter_context(jax_calls(launch))
        stack.enter_context(triton_calls(gpu.device, gpu.launch, gpu.note, autotune))
        stack.enter_context(cuda_calls(gpu.device, gpu.memory, gpu.launch))
        stack.enter_context(cuda_libraries(CudaRuntime(gpu.device, gpu.memory, gpu.launch, gpu.fatal), gpu.note))
        yield


def _stream_of(compiled: object, values: Iterable[object]) -> int | None:
    """The handle of a call's stream, or None for torch's current one: of XLA, TVM-FFI and captures."""
    given = next((int(x) for x in values if type(x).__name__ in ("CUstream", "cudaStream_t")), None)  # type: ignore[call-overload]
    if given is not None or isinstance(compiled, XlaFunction) or is_capturing():
        return given
    return 0 if is_without_stream(compiled) else None


def _as_the_dsl(error: HostStatusError) -> Exception:
    """A host function's CUDA error as the DSL raises it."""
    from cutlass.base_dsl.runtime import cuda

    raised: Exception = cuda.create_cuda_runtime_error(error.status, cuda.cudart.cudaError_t)
    return raised


def _importable(name: str) -> bool:
    return name in sys.modules or find_spec(name) is not None


def _environment(device: GpuModel, folder: str) -> dict[str, str]:
    """Environment variables of the DSL and of TileLang, for a later import or another process."""
    return {
        "CUTE_DSL_ARCH": device.arch.name, "CUTE_DSL_KEEP": "ptx", "CUTE_DSL_LINEINFO": "1",
        "CUTE_DSL_DUMP_DIR": folder,
        # A library of nvcc; the default loads machine code.
        "TILELANG_EXECUTION_BACKEND": os.environ.get("TILELANG_EXECUTION_BACKEND", "cython"),
        "PATH": os.pathsep.join([folder, os.environ.get("PATH", os.defpath)]),
    }  # fmt: skip


@contextmanager
def _real_torch() -> Iterator[None]:
    """The emulator itself sees tensors as they are, in CPU memory."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    with torch._C.DisableTorchFunction():
        yield


# ------------------------------------------------------------------------------------------------------------ the DSL


class _Call(list[Any]):
    """In place of a direct call's packed arguments: the arguments themselves, by name."""

    def __init__(self, named: dict[str, object]):
        super().__init__()
        self.named = named


@contextmanager
def _launches(device: GpuModel, folder: str, launch: Callable[..., None]) -> Iterator[None]:
    """Compiled functions of the CuTe DSL call `launch` in place of the driver."""
    from unittest import mock

    import cutlass
    from cutlass.base_dsl.dsl import BaseDSL
    from cutlass.base_dsl.jit_executor import JitCompiledFunction

    if _importable("tvm_ffi"):
        import cutlass.cutlass_dsl.tvm_ffi_provider  # its compiled functions are kinds of their own
    import cutlass.cute.testing
    import cutlass.testing

    watch()
    plain_types = BaseDSL.generate_mlir_function_types

    def packed(self: Any, func: Any, name: str, args: Any, kwonly: Any, sig: Any, compile_only: bool = False) -> Any:
        packs, *rest = plain_types(self, func, name, args, kwonly, sig, compile_only)
        return (packs if compile_only else _Call({**dict(zip(sig.parameters, args)), **kwonly}), *rest)

    plain, plain_run = JitCompiledFunction.__call__, JitCompiledFunction.run_compiled_program

    def call(self: object, *args: object, **named: object) -> Any:
        return launch(self, args, named) if _has_kernels(self) else plain(self, *args, **named)

    def run(self: Any, packs: object) -> Any:
        if not isinstance(packs, _Call):
            return plain_run(self, packs)
        known = self.execution_args.signature.parameters  # no constants, and not the object whose method is called
        return call(self, **{name: value for name, value in packs.named.items() if name in known})

    with ExitStack() as stack, warnings.catch_warnings(), _short_names(), named_callers():
        warnings.filterwarnings("ignore", "Cache is disabled as user wants")  # PTX is kept for the emulator

        def patch(owner: object, name: str, value: object) -> None:
            if not hasattr(owner, name):  # another version of the DSL
                return
            stack.enter_context(mock.patch.object(owner, name, value))

        patch(BaseDSL, "generate_mlir_function_types", packed)
        if (ffi := sys.modules.get("tvm_ffi")) is not None:
            patch(ffi, "from_dlpack", _on_the_gpu(ffi.from_dlpack))
        for kind in (JitCompiledFunction, *_below(JitCompiledFunction)):
            patch(kind, "__call__", call)
            patch(kind, "run_compiled_program", run)
            patch(kind, "to", _bound_to(kind.to))
        for dsl in _dsls():
            for name, value in (
                ("arch", device.arch.name), ("keep_ptx", True), ("lineinfo", True), ("dump_dir", folder),
            ):  # fmt: skip
                if hasattr(dsl.envar, name):  # put back by hand: a deleted `arch` reads the session's environment
                    stack.callback(setattr, dsl.envar, name, getattr(dsl.envar, name))
                    setattr(dsl.envar, name, value)
        for name, value in _hardware(device).items():
            patch(cutlass.utils.HardwareInfo, name, value)
        for module in (cutlass.testing, cutlass.cute.testing):  # deprecated functions of the latter call these, or
            patch(module, "_benchmark", _benchmark)
            patch(module, "benchmark", _benchmark)  # have bound this one already
            patch(module, "_benchmark_for_autotune", _benchmark_for_autotune)
        stack.enter_context(exports(device, types_of))
        yield


MAX_NAME = 180  # bytes of a file's name, of which systems take 255; the DSL adds the architecture


@contextmanager
def _short_names() -> Iterator[None]:
    """The DSL keeps files of functions whose names are too long for one: the PTX would not be written."""
    from unittest import mock

    from cutlass.base_dsl.compiler import CompileOptions

    plain = getattr(CompileOptions, "_set_artifact_dump_paths", None)
    if plain is None:  # another version of the DSL
        yield
        return

    def paths(option: object, folder: str, name: str, *more: object) -> None:
        if len(name.encode()) > MAX_NAME:
            name = f"{name.encode()[: MAX_NAME - 17].decode(errors='ignore')}_{sha256(name.encode()).hexdigest()[:16]}"
        plain(option, folder, name, *more)

    with mock.patch.object(CompileOptions, "_set_artifact_dump_paths", staticmethod(paths)):
        yield


def _on_the_gpu(plain: Callable[..., object]) -> Callable[..., Any]:
    """tvm_ffi.from_dlpack, which asks a tensor of torch for its device past Python."""
    return lambda x, *args, **named: plain(GpuCapsule(x) if on_gpu(x) else x, *args, **named)


def _has_kernels(compiled: Any) -> bool:
    """True unless a compiled function is of the host alone: there is nothing to emulate.

    Raises EmulatorError for kernels without PTX, which a real GPU would run.
    """
    text = getattr(compiled, "__ptx__", None)
    found = isinstance(text, str) and ".entry" in text
    if not found and not getattr(compiled, "has_gpu_module", True):
        return False  # `text` may be the path of a file that the DSL had no PTX for
    if not found and text and text.endswith(".ptx"):
        raise EmulatorError(f"the DSL has not written the function's PTX to {text}")
    if not found and getattr(compiled, "load_from_binary", False) and compiled.has_gpu_module:
        raise EmulatorError("the function was loaded from a file outside of this emulated GPU: load it within")
    return found


def _bound_to(plain: Callable[..., object]) -> Callable[..., Any]:
    """`to` of a compiled function: itself, as there is one device."""
    return lambda self, device=None: self if _has_kernels(self) else plain(self, device)


def _below(kind: type) -> list[type]:
    """All classes that are derived from one."""
    found: list[type] = []
    derived: list[type] = kind.__subclasses__()
    for child in derived:
        found += [child, *_below(child)]
    return found


def _dsls() -> list[Any]:
    """The DSLs that there are, each with its settings."""
    from cutlass.cutlass_dsl.cutlass import CutlassBaseDSL

    kinds: list[Any] = [*_below(CutlassBaseDSL)]
    made = [kind._get_dsl() for kind in kinds]
    return [dsl for i, dsl in enumerate(made) if all(dsl is not other for other in made[:i])]


def _benchmark(
    function: Callable[..., object], *, workspace_generator: Callable[[], object] | None = None,
    kernel_arguments: object = None, **others: object,
) -> float:  # fmt: skip
    """cutlass.testing.benchmark: one call; microseconds of the emulator, which say nothing of a GPU's."""
    given = workspace_generator() if workspace_generator is not None else kernel_arguments
    start = time.perf_counter()
    function(*getattr(given, "args", ()), **getattr(given, "kwargs", {}))
    return (time.perf_counter() - start) * 1e6


def _benchmark_for_autotune(
    function: Callable[..., object], *args: object, warmup_iterations: int = 0, iterations: int = 1,
    use_cold_l2: bool = False, print_verbose: bool = False, current_stream: object = None, **kwargs: object,
) -> float:  # fmt: skip
    """cutlass.testing's benchmark of one configuration: one call, and the emulator's microseconds."""
    start = time.perf_counter()
    function(*args, **kwargs)
    return (time.perf_counter() - start) * 1e6


def _hardware(device: GpuModel) -> dict[str, Any]:
    """Answers of cutlass.utils.HardwareInfo."""

    def clusters(self: object, cluster_size: int, *args: object, **named: object) -> int:
        return max(1, device.multiprocessors // cluster_size)

    return {
        "__init__": lambda self, *args, **named: None,
        "get_max_active_clusters": clusters,
        "get_l2_cache_size_in_bytes": lambda self: device.l2,
        "get_device_multiprocessor_count": lambda self: device.multiprocessors,
    }


# ------------------------------------------------------------------------------------------------------------- scripts


@dataclass(frozen=True)
class ScriptRun:
    """A script that has run on an emulated GPU.

    gpu     what it launched, and what was found
    status  its exit status: 0, what it gave sys.exit, or 1 where it raised
    error   what it raised, or None
    """

    gpu: EmulatedGpu
    status: int
    error: BaseException | None


def notebook_code(path: Path) -> str:
    """The code cells of a notebook as a script, without shell and magic commands.

    Raises EmulatorError for a file that is no notebook.
    """
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (ValueError, TypeError, KeyError) as error:
        said = f"{type(error).__name__}: {error}"
        raise EmulatorError(f"{path} is no notebook of Jupyter's format 4: {said}") from error
    return "\n\n".join(_python_of(source) for source in sources)


_OF_PYTHON = ("time", "timeit", "capture", "prun", "python", "python3")  # %%-commands whose cells are Python


def _python_of(cell: str) -> str:
    """A cell's Python. A command becomes `pass`, %time its statement; the cell of %%bash and its like is empty."""
    lines = cell.splitlines()
    first = next((number for number, line in enumerate(lines) if line.strip()), 0)
    if lines and lines[first].startswith("%%"):
        if lines[first][2:].partition(" ")[0] not in _OF_PYTHON:
            return ""
        lines[first] = ""
    for number, line in enumerate(lines):
        bare = line.lstrip()
        if bare.startswith(("%", "!")) and _ends_statement("\n".join(lines[:number])):
            timed = bare.removeprefix("%time ") if bare.startswith("%time ") else ""
            lines[number] = f"{line[: len(line) - len(bare)]}{timed.strip() or 'pass'}"
    return "\n".join(lines)


def _ends_statement(text: str) -> bool:
    """True unless this text leaves a string, a bracket or a line open."""
    if text.endswith("\\"):
        return False
    try:
        list(tokenize.generate_tokens(io.StringIO(f"{text}\n").readline))
    except tokenize.TokenError as error:
        return "EOF in multi-line" not in str(error) and "unterminated triple-quoted" not in str(error)
    except SyntaxError:  # the script will say it
        return True
    return True


def run_script(
    emulate: Emulate, path: Path | str, arguments: Sequence[str], arch: ArchName,
    runner: Callable[[Callable[[], None]], None] | None = None, autotune: str = "first", **options: object,
) -> ScriptRun:  # fmt: skip
    """Run a Python script as `python path arguments` would, on an emulated GPU. Its traceback goes to stderr.

    A notebook (.ipynb) runs as the script of its code cells. A module, given by its name, runs as by `python -m`. A
    program of CUDA C++ (.cu), or its library (.so), runs as by the shell.

    runner    calls the script: by default once
    autotune  as for `session`

    Raises EmulatorError where the file or the module is not there, PlanError for an architecture that is not known.
    """
    from unittest import mock

    if isinstance(path, Path) and not path.is_file():
        raise EmulatorError(f"{path}: no such script")
    status, error = 0, None
    first = path.resolve().parent if isinstance(path, Path) else Path.cwd()
    if isinstance(path, str):
        with mock.patch.object(sys, "path", [str(first), *sys.path]):  # looks for the package, and imports nothing
            package = path.partition(".")[0]
            if package not in sys.modules and (not package or find_spec(package) is None):
                raise EmulatorError(f"-m {path}: no such module")
    with ExitStack() as stack:
        program: Path | None = None
        if isinstance(path, Path) and path.suffix in PROGRAMS:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="layoutgemm-program-"))
            program = library_of(path, GpuModel.of(arch).arch.name, Path(folder))
        gpu = stack.enter_context(session(emulate, arch, program is None, autotune, **options))
        stack.enter_context(mock.patch.object(sys, "argv", [str(path), *arguments]))
        stack.enter_context(mock.patch.object(sys, "path", [str(first), *sys.path]))
        code = path
        if isinstance(path, Path) and path.suffix == ".ipynb":  # the DSL reads its functions' source from a file
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="layoutgemm-notebook-"))
            code = Path(folder) / f"{path.stem}.py"
            code.write_text(notebook_code(path), encoding="utf-8")

        def script() -> None:
            if program is not None:
                runtime = CudaRuntime(gpu.device, gpu.memory, gpu.launch, gpu.fatal)
                sys.exit(run_program(Path(path), program, arguments, runtime))
            if isinstance(code, str):
                runpy.run_module(code, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(str(code), run_name="__main__")

        try:
            (runner or (lambda body: body()))(script)
        except SystemExit as stop:
            status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
            if isinstance(stop.code, str):
                print(stop.code, file=sys.stderr)
        except Exception as raised:
            if program is None:  # the report has a program's
                traceback.print_exc()
            status, error = 1, raised
    return ScriptRun(gpu, status, error)
