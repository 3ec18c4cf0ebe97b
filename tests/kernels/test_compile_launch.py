"""The launch without the DSL: the same words as the DSL's own call packs, through the compiled host function itself."""

from __future__ import annotations

import ctypes
import os
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from layoutgemm.errors import PlanError
from layoutgemm.kernels import compile as compiling
from layoutgemm.kernels import compile_apart, compile_launch, object_cache
from layoutgemm.kernels.compile_apart import Kernel
from layoutgemm.kernels.compile_launch import Block, Launcher
from layoutgemm.kernels.sm90_choice import Sm90Choice
from layoutgemm.kernels.sm90_plan import Sm90Config, Sm90Plan

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
        block = Block(entry, arguments)
        block.values[block.count] = stream
        assert block.call() == 0
        assert noted[-1] == noted[-2] == [*arguments, stream]


def test_the_compiled_host_function_takes_a_block(compiled: Any) -> None:
    """Through the C code, on a stub of the CUDA runtime: the launch that comes out is the one of the emulator's
    call."""
    import numpy as np

    from layoutgemm.emulator import host as hosts
    from layoutgemm.kernels.emulated import host_of

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
    """In a process of its own: a kernel from the cache, with the DSL and pickle's loads out of reach."""
    program = (
        "import sys, pickle\n"
        "def refuse(*_, **__): raise AssertionError('unpickled')\n"
        "pickle.loads = pickle.load = refuse\n"
        "from layoutgemm.kernels.sm90_plan import Sm90Config, Sm90Plan\n"
        "found = Sm90Plan.derive(1, 1, 1, config=Sm90Config((64, 64), consumers=1, loader='warp')).compile()\n"
        "print(found.cached, 'cutlass' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120,
        cwd=Path(__file__).resolve().parents[2], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.stdout.split() == ["True", "False"], done.stderr


# --------------------------------------------------------------------------------------------------------------- apart

KERNEL = Kernel(Sm90Choice(SMALL), ("bf16:row", "bf16:row", "bf16:row"))
WRONG = Kernel(Sm90Choice(Sm90Config((64, 64), consumers=1, rows=8)), ("bf16:col", "bf16:row", "bf16:row"))


def test_a_process_of_its_own_compiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It leaves the kernel in the cache, says what it cannot make, and goes on; after its end another one starts."""
    monkeypatch.setenv("LAYOUTGEMM_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiling, "_LOADED", {})
    monkeypatch.setattr(compile_apart, "_WORKER", None)
    worker = compile_apart.Worker()
    assert "rows = 8" in worker.compile(WRONG)
    assert worker.compile(KERNEL) == "ok"
    plan = compile_apart.plan_of(KERNEL)
    assert object_cache.kept(compiling.kernel_facts(plan)) and plan.compile().cached
    worker._process.kill()
    worker._process.wait()
    assert worker.compile(KERNEL) == ""
    worker.close()


def test_nothing_is_started_without_need(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a process was started")

    monkeypatch.setattr(compile_apart, "_WORKER", None)
    monkeypatch.setattr(compile_apart, "Worker", refuse)
    monkeypatch.setenv("LAYOUTGEMM_CACHE_DIR", "")
    compile_apart.prepare(KERNEL)
    monkeypatch.setenv("LAYOUTGEMM_CACHE_DIR", str(tmp_path))
    facts = compiling.kernel_facts(compile_apart.plan_of(KERNEL))
    object_cache.write(facts, {"kernel.o": b""})
    compile_apart.prepare(KERNEL)


def test_a_process_that_cannot_be_started_leaves_the_work_to_the_caller(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LAYOUTGEMM_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compile_apart, "_WORKER", None)
    monkeypatch.setattr(compile_apart.sys, "executable", "/nowhere/python")
    compile_apart.prepare(KERNEL)
    assert not (tmp_path / "kernels").exists()
    assert compile_apart.build([KERNEL], 1, lambda line: None) == ["the compiling process ended"]
