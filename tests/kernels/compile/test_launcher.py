"""The launch without the DSL: the same words as the DSL's own call packs, through the compiled host function itself."""

from __future__ import annotations

import ctypes
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import layoutgemm
from layoutgemm.emulator.host import launcher as hosts
from layoutgemm.errors import PlanError
from layoutgemm.kernels.compile import cache as object_cache
from layoutgemm.kernels.compile import compiler as compiling
from layoutgemm.kernels.compile import launcher as compile_launch
from layoutgemm.kernels.compile import worker as compile_apart
from layoutgemm.kernels.compile.launcher import ArgumentBlock, ChainLauncher, Launcher
from layoutgemm.kernels.epilogue.chain import Activation, Epilogue
from layoutgemm.kernels.fp8.plan import QuantizePlan
from layoutgemm.kernels.run.emulated import host_of
from layoutgemm.kernels.sm90.plan import Sm90Config, Sm90Plan

pytestmark = pytest.mark.dsl
SMALL = Sm90Config((64, 64), consumers=1, loader="warp")
_KINDS = {"address": ctypes.c_uint64, "size": ctypes.c_int32, "stride": ctypes.c_int64}


@pytest.fixture(scope="module")
def compiled() -> Any:
    return Sm90Plan.derive(1, 1, 1, config=SMALL).compile()


def some_arguments(plan: Any, seed: int) -> list[int]:
    rng = random.Random(seed)
    most = {"address": 2**47, "size": 2**31 - 1, "stride": 2**38}
    return [rng.randrange(most[kind]) // 16 * 16 for kind in plan.parameters.values()]


def read(pointers: Any, plan: Any) -> list[int]:
    """The arguments and the stream, as the host function reads them."""
    kinds = [*[_KINDS[kind] for kind in plan.parameters.values()], ctypes.c_uint64]
    return [kind.from_address(pointers[i]).value for i, kind in enumerate(kinds)]


def test_a_block_holds_what_the_dsl_packs(compiled: Any, tmp_path: Path) -> None:
    """The DSL's executor and ours call a function that only notes what it is given."""
    from cuda.bindings import driver
    from cutlass.base_dsl.jit_executor import JitExecutor
    from cutlass.cute.runtime import load_module

    noted: list[list[int]] = []
    plan = compiled.plan
    count = len(plan.parameters) + 2

    @ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
    def note(pointer: int) -> int:
        noted.append(read((ctypes.c_void_p * count).from_address(pointer), plan))
        ctypes.c_int32.from_address((ctypes.c_void_p * count).from_address(pointer)[count - 1]).value = 0
        return 0

    compile_launch.runtime_library()
    (tmp_path / "kernel.o").write_bytes(compiled.object)
    theirs = load_module(str(tmp_path / "kernel.o"))[compiled.symbol]
    module = SimpleNamespace(capi_func=note, execution_args=theirs.execution_args)
    executor = JitExecutor(module, None, False)
    entry = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(ctypes.cast(note, ctypes.c_void_p).value)
    for seed in range(20):
        arguments, stream = some_arguments(plan, seed), seed * 0x1000_0000_0010
        executor(*arguments, driver.CUstream(stream))
        block = ArgumentBlock(entry, arguments)
        block.values[block.count] = stream
        assert block.call() == 0
        assert noted[-1] == noted[-2] == [*arguments, stream]


def test_the_compiled_host_function_takes_a_block(compiled: Any) -> None:
    """Through the C code, on a stub of the CUDA runtime: the launch that comes out is the one of the emulator's
    call."""
    import numpy as np

    host = host_of(compiled)
    a, b, c = (np.zeros(64 * 64, np.uint16) for _ in range(3))
    sizes = (64, 64, 64, 1, 64, 64, 64, 4096, 4096, 4096, 3)
    _, wanted = host.call((a, b, c, *sizes))
    want = wanted[0]

    def lookup(name: str) -> int:
        return ctypes.cast(getattr(host.library, name), ctypes.c_void_p).value or 0

    launcher = Launcher(lookup, compiled.symbol, host.entry)
    launcher.load(0)
    host.launches = []
    calls = hosts._ENCODE(host._encode), hosts._LAUNCH(host._launch)
    for name, call in zip(("encode", "launch"), calls):
        ctypes.c_void_p.in_dll(host.library, f"layoutgemm_{name}").value = ctypes.cast(call, ctypes.c_void_p).value
    block = launcher.block((0, 0, 0, *sizes))
    # the addresses that the emulator gave to a, b and c lie in the tensor maps; any others differ there alone
    for place, array in enumerate((a, b, c)):
        block.values[place] = array.ctypes.data // 16 * 16
    assert block.call() == 0
    (got,) = host.launches
    assert (got.grid, got.block, got.cluster, got.dynamic_shared) == (
        want.grid, want.block, want.cluster, want.dynamic_shared,
    )  # fmt: skip
    assert len(got.parameters) == len(want.parameters)
    differs = [i for i, (x, y) in enumerate(zip(got.parameters, want.parameters)) if x != y]
    assert all(i % 128 < 8 or i >= 6 * 128 for i in differs)  # addresses: the first words of the maps, and c
    host.launches.clear()
    twice = ChainLauncher([launcher.entry] * 2, [range(block.count)] * 2).block(block.values[: block.count])
    assert twice.call() == 0
    assert [each.parameters for each in host.launches] == [got.parameters] * 2


def test_a_chain_is_one_call_that_ends_at_a_refusal() -> None:
    """Three launches of two arguments share the second one, the stream and the status. The last two begin behind it."""
    seen: list[list[int]] = []
    refused: list[int] = []

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def host(pointer: int) -> None:
        addresses = (ctypes.c_void_p * 4).from_address(pointer)
        seen.append([ctypes.c_int64.from_address(at).value for at in addresses[:3]])
        ctypes.c_int32.from_address(addresses[3]).value = 700 if len(seen) in refused else 0

    chain = ChainLauncher([host] * 3, [(0, 3), (1, 3), (2, 3)], [(2, 0), (1, 512)])
    block = chain.block([1, 2, 3, 0])
    block.values[3], block.values[4] = 1 << 40, 77
    every = [[number, 1 << 40, 77] for number in (1, (1 << 40) + 512, 1 << 40)]
    assert block.call() == 0 and block.values[5] == 0 and seen == every
    refused.append(5)
    assert block.call() == 700 and block.values[5] == 1 << 32 | 700 and seen[3:] == every[:2]
    seen.clear()
    refused.clear()
    assert block.call() == 0 and block.values[5] == 0 and seen == every


def test_without_a_linker_the_dsl_loads_the_object(compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_launch.shutil, "which", lambda name: None)
    assert compile_launch.link(compiled.object) == b""
    launcher = compile_launch.load(compiled.object, b"", compiled.symbol)
    assert ctypes.cast(launcher.entry, ctypes.c_void_p).value
    with pytest.raises(PlanError, match="no host function of"):
        compile_launch.load(compiled.object, b"", "another")
    monkeypatch.undo()
    assert compile_launch.link(b"no object at all") == b""


def test_loading_needs_no_dsl_and_no_pickle(compiled: Any) -> None:
    """In a process of its own: kernels from the cache, with the DSL and pickle's loads out of reach."""
    QuantizePlan("bf16", "e4m3", 1).compile()
    program = (
        "import sys, pickle\n"
        "def refuse(*_, **__): raise AssertionError('unpickled')\n"
        "pickle.loads = pickle.load = refuse\n"
        "from layoutgemm.kernels.sm90.plan import Sm90Config, Sm90Plan\n"
        "found = Sm90Plan.derive(1, 1, 1, config=Sm90Config((64, 64), consumers=1, loader='warp')).compile()\n"
        "from layoutgemm.kernels.fp8.plan import QuantizePlan\n"
        "other = QuantizePlan('bf16', 'e4m3', 1).compile()\n"
        "print(found.cached, other.cached, 'cutlass' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120,
        cwd=Path(__file__).resolve().parents[3], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.stdout.split() == ["True", "True", "False"], done.stderr


# --------------------------------------------------------------------------------------------------------------- apart


class OwnStep(Activation):
    """A step of another package: a worker refuses it."""


KERNEL = Sm90Plan.derive(1, 1, 1, config=SMALL)
OTHER = Sm90Plan.derive(1, 1, 1, config=Sm90Config((64, 32), consumers=1, loader="warp"))
WRONG = Sm90Plan.derive(1, 1, 1, config=SMALL, epilogue=Epilogue(OwnStep("relu")))


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[compile_apart.Pool]:
    """A pool of its own, an empty cache, and nothing in memory."""
    monkeypatch.setenv("LAYOUTGEMM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(compiling, "_LOADED", {})
    own = compile_apart.Pool()
    monkeypatch.setattr(compile_apart, "_POOL", own)
    yield own
    own.end()


def is_kept(kernel: Sm90Plan) -> bool:
    return object_cache.kept(compiling.kernel_facts(kernel))


def test_a_process_of_its_own_compiles(pool: compile_apart.Pool) -> None:
    """It leaves the kernel in the cache, says what it cannot make, and goes on; after its end another one starts."""
    worker = compile_apart.Worker()
    assert "OwnStep is no part of a plan" in worker.compile(WRONG)
    assert worker.compile(KERNEL) == "ok"
    assert is_kept(KERNEL) and KERNEL.compile().cached
    worker._process.kill()
    worker._process.wait()
    assert worker.compile(KERNEL) == "" and not worker.late
    worker.restart()
    assert "OwnStep is no part of a plan" in worker.compile(WRONG)
    worker.close()


def test_the_cache_is_the_callers_of_now(
    pool: compile_apart.Pool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A worker stores a compiled kernel again when the caller's cache changes, or is relative."""
    for folder, work in (("one", "."), ("two", "."), ("three", "work")):
        (tmp_path / work).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / work)
        monkeypatch.setenv("LAYOUTGEMM_CACHE_DIR", folder)
        compile_apart.prepare(KERNEL)
        assert is_kept(KERNEL) and (tmp_path / work / folder).is_dir()
    assert len(pool._idle) == 1


def test_a_worker_compiles_as_the_caller_would_now(pool: compile_apart.Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With lines of the source or without: one that began otherwise is left alone."""
    for lines in ("", "1", ""):
        monkeypatch.setenv("CUTE_DSL_LINEINFO", lines)
        compile_apart.prepare(KERNEL)
        assert is_kept(KERNEL)
    assert sorted(worker.lines for worker in pool._idle) == ["", "1"]


TRAP = "import os; os.makedirs(os.environ['TRAP'], exist_ok=True); raise RuntimeError('not the module that was meant')"
NAMES = (
    "numpy", "cutlass", "sympy", "cuda", "json", "select", "layoutgemm", "threading", "sitecustomize", "usercustomize",
)  # fmt: skip


@pytest.fixture
def trapped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The current folder has modules of the names that a worker imports; gives what they would make."""
    (tmp_path / "work").mkdir()
    for name in NAMES:
        (tmp_path / "work" / f"{name}.py").write_text(TRAP)
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("TRAP", str(tmp_path / "sprung"))
    return tmp_path / "sprung"


@pytest.mark.parametrize(("path", "variable"), [([], None), ([""], ""), (["."], ":"), (["../work"], "."), ([], ".")])
def test_nothing_is_imported_from_the_current_folder(
    path: list[str], variable: str | None, pool: compile_apart.Pool, trapped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*path, *sys.path])
    if variable is not None:
        monkeypatch.setenv("PYTHONPATH", variable)
    worker = compile_apart.Worker()
    assert "OwnStep is no part of a plan" in worker.compile(WRONG)
    worker.close()
    assert not trapped.exists()


def test_the_callers_modules_are_imported(
    pool: compile_apart.Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are loaded, from their files, whatever else lies on the path before them."""
    (tmp_path / "numpy.py").write_text(TRAP)
    (tmp_path / "layoutgemm.py").write_text(TRAP)
    monkeypatch.setenv("TRAP", str(tmp_path / "sprung"))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    worker = compile_apart.Worker()
    assert "OwnStep is no part of a plan" in worker.compile(WRONG)
    worker.close()
    assert not (tmp_path / "sprung").exists()
    program = "import sys, numpy, layoutgemm; print(numpy.__file__, layoutgemm.__file__)"
    monkeypatch.setattr(compile_apart, "_START", compile_apart._START.partition("importlib.import_module")[0] + program)
    worker = compile_apart.Worker()
    import numpy

    assert worker._line(time.monotonic() + 60) == f"{numpy.__file__} {layoutgemm.__file__}"
    worker.close()


DEAF = "import time; time.sleep(600)"  # reads nothing
DUMB = "import sys, time; sys.stdin.readline(); time.sleep(600)"  # answers nothing
CHATTY = "import sys, time; sys.stdin.readline(); sys.stdout.write('o'); sys.stdout.flush(); time.sleep(600)"


@pytest.mark.parametrize("program", [DEAF, DUMB, CHATTY], ids=["deaf", "dumb", "half an answer"])
def test_a_compiler_that_hangs_is_ended(
    program: str, pool: compile_apart.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_apart, "_START", program)
    monkeypatch.setattr(compile_apart, "LIMIT_SECONDS", 0.5)
    worker = compile_apart.Worker()
    process = worker._process
    assert worker.compile(KERNEL) == "" and worker.late and process.poll() is not None
    assert compile_apart.build([KERNEL, WRONG], 1, lambda line: None) == ["no answer in 0 s"] * 2
    compile_apart.prepare(KERNEL)
    assert pool._idle == []


def test_a_compiler_that_hangs_stops_one_thread_alone(
    pool: compile_apart.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other threads have workers of their own; a kernel requested by several is compiled once."""
    asked, hung, go = [], threading.Event(), threading.Event()

    def answer(worker: Any, kernel: Sm90Plan) -> str:
        asked.append(kernel)
        if kernel == KERNEL:
            hung.set()
            go.wait(60)
        else:
            object_cache.write(compiling.kernel_facts(kernel), {"kernel.o": b""})
        return "ok"

    monkeypatch.setattr(compile_apart.Worker, "_start", lambda worker: vars(worker).update(late=False, lines=""))
    monkeypatch.setattr(compile_apart.Worker, "compile", answer)
    threads = [threading.Thread(target=compile_apart.prepare, args=(kernel,)) for kernel in (KERNEL, *[OTHER] * 3)]
    threads[0].start()
    assert hung.wait(60)
    for thread in threads[1:]:
        thread.start()
    for thread in threads[1:]:
        thread.join(60)
        assert not thread.is_alive()
    assert threads[0].is_alive() and asked == [KERNEL, OTHER]
    go.set()
    threads[0].join(60)
    assert len(pool._idle) == 2


_FORKS = """
import os, sys, threading
from layoutgemm.kernels.compile import compiler as compiling, worker as compile_apart
from tests.kernels.compile.test_launcher import KERNEL, OTHER, WRONG, is_kept
compile_apart.prepare(OTHER)
(worker,) = compile_apart._POOL._idle
number = worker._process.pid
held = threading.Event()
def hold():
    with compiling._LOCK, compile_apart._POOL._lock:
        held.set()
        threading.Event().wait()
threading.Thread(target=hold, daemon=True).start()
held.wait()
child = os.fork()
if not child:
    assert compile_apart._POOL._idle == []
    assert worker.compile(WRONG) == ""
    worker.kill()
    compile_apart.prepare(KERNEL)
    assert is_kept(KERNEL) and compile_apart._POOL._idle[0]._process.pid != number
    assert KERNEL.compile().cached
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert "OwnStep is no part of a plan" in worker.compile(WRONG) and worker._process.pid == number
print("both", flush=True)
worker.close()
os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork is POSIX's: run it on Linux or macOS")
def test_a_forked_process_has_workers_of_its_own(pool: compile_apart.Pool) -> None:
    """Locks that another thread held are free in it; its end leaves the parent's worker running."""
    root = Path(__file__).resolve().parents[3]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", _FORKS], cwd=root, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "both\n", done.stderr


def test_nothing_is_started_without_need(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a process was started")

    monkeypatch.setattr(compile_apart, "_POOL", compile_apart.Pool())
    monkeypatch.setattr(compile_apart, "Worker", refuse)
    monkeypatch.setenv("LAYOUTGEMM_CACHE_DIR", "")
    compile_apart.prepare(KERNEL)
    monkeypatch.setenv("LAYOUTGEMM_CACHE_DIR", str(tmp_path))
    facts = compiling.kernel_facts(KERNEL)
    object_cache.write(facts, {"kernel.o": b""})
    compile_apart.prepare(KERNEL)


@pytest.mark.parametrize("executable", ["/nowhere/python", "", None, "/bin/true"])
def test_a_process_that_cannot_be_started_leaves_the_work_to_the_caller(
    executable: str | None, pool: compile_apart.Pool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(compile_apart.sys, "executable", executable)
    compile_apart.prepare(KERNEL)
    assert not (tmp_path / "cache").exists()
    assert compile_apart.build([KERNEL], 1, lambda line: None) == ["the compiling process ended"]
