"""Shared test setup: markers that skip with a reason, threads, garbage collection, hypothesis, golden files."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import os
import sys
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests import needs

# Threads of NumPy and torch wait by spinning: more threads than processors more than double the processors' seconds.
# A worker inherits what the first process sets, and that one does not know of workers yet: it sets nothing.
if _WORKERS := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
    for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(_variable, str(max(1, (os.cpu_count() or 1) // _WORKERS)))
# Inductor asks for the vector instructions it may use by compiling a program for each, and compiles headers of torch
# beforehand, for loops of a few elements around the calls that are tested. Plain loops need neither, nor processes.
for _variable, _value in (("VEC_ISA_OK", "0"), ("CPP_CACHE_PRECOMPILE_HEADERS", "0"), ("COMPILE_THREADS", "1")):
    os.environ.setdefault(f"TORCHINDUCTOR_{_variable}", _value)
# Dynamo collects garbage after each of its thousand compilations. The collector comes often enough without that.
os.environ.setdefault("TORCH_DYNAMO_RUN_GC_AFTER_COMPILE", "0")
# Collecting makes objects that stay: scanning them again and again took a sixth of its time.
gc.disable()

# The same examples on every run, so that a red test is red again; HYPOTHESIS_PROFILE=explore looks for new ones.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=2000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files instead of comparing")


@functools.cache
def missing_dsl() -> str | None:
    """Why tests marked `dsl` cannot run here, or None."""
    return None if needs.found("cutlass") else needs.reason("cutlass")


@functools.cache
def missing_gpu() -> str | None:
    """Why tests marked `gpu` cannot run here, or None. It imports torch: ask only where such a test is reached."""
    if not needs.found("torch"):
        return needs.reason("torch")
    import torch

    return None if torch.cuda.is_available() else "torch finds no NVIDIA GPU: run it on a machine with one"


_FROM_THE_END = os.environ.get("PYTEST_XDIST_WORKER", "gw0")[-1] in "13579"
# Folder or file -> its place in its folder, where this worker reads folders from their ends.
_PLACES: dict[Path, int] = {}


@pytest.hookimpl(wrapper=True)
def pytest_collect_directory(path: Path, parent: pytest.Collector) -> Generator[None, Any, Any]:
    """Every second worker imports the files of each folder from the last to the first.

    The first import of a file rewrites its asserts, which takes most of collecting, and leaves the result on disk. So
    two workers that start at the two ends do half of it each, where both would do all of it.
    """
    folder: pytest.Collector | None = yield
    if folder is not None and len(parent.config.args) == 1 and _FROM_THE_END:
        folder.collect = functools.partial(_from_the_end, folder.collect)  # type: ignore[method-assign]
    return folder


def _from_the_end(collect: Callable[[], Iterable[pytest.Item | pytest.Collector]]) -> list[Any]:
    found = list(collect())
    _PLACES.update({node.path: place for place, node in enumerate(found)})
    return found[::-1]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each worker has the tests in one order: xdist asks for that."""
    if not _PLACES:
        return
    paths = {item: [*reversed(item.path.parents), item.path] for item in items}
    for path in itertools.chain(*paths.values()):
        _PLACES.setdefault(path, len(_PLACES))  # in tests/ itself, which is read from its beginning
    items.sort(key=lambda item: [_PLACES[path] for path in paths[item]])


def pytest_collection_finish(session: pytest.Session) -> None:
    """Freeze the garbage collector: existing objects stay, and scanning them took 5% of a run.

    What collecting left over is frozen with them: to find it takes each worker a second.

    Dynamo times the guards of each compilation for its log, after filling the processor's caches: 23 ms each time.
    """
    if guards := sys.modules.get("torch._dynamo.guards"):
        guards.profile_guard_manager = lambda *_: 0.0
    _compile_here()
    gc.freeze()
    gc.set_threshold(1_000_000, 4, 100)  # at 200_000 it takes 3 to 4% of the tests of layouts and of torch's compiler
    gc.enable()


def _compile_here() -> None:
    """Compile torch's kernels in this process, which has the DSL, as all others are compiled.

    A process of their own would import it anew after every pause: 3 s. With a GPU kernels are compiled as for users.
    """
    compiling = sys.modules.get("layoutgemm.kernels.compile.compiler")
    if compiling is not None and missing_gpu() is not None:
        real = compiling.asking
        compiling.asking = lambda ask: contextlib.nullcontext()
        compiling.asking.real = real  # for the tests of it


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker, missing in (("dsl", missing_dsl), ("gpu", missing_gpu)):
        if item.get_closest_marker(marker) is not None and (why := missing()) is not None:
            pytest.skip(why)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden("name.svg", text)` compares text with golden/name.svg beside the test; --update-golden writes it."""
    folder = Path(request.path).parent / "golden"

    def compare(name: str, text: str) -> None:
        path = folder / name
        if request.config.getoption("--update-golden"):
            folder.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
            return
        assert path.exists(), f"{path} does not exist: look at the output, then write it with --update-golden"
        want = path.read_text(encoding="utf-8").splitlines()
        got = text.splitlines()
        for number, (a, b) in enumerate(zip(want, got, strict=False), start=1):
            assert a == b, f"{path.name}:{number} differs\n  golden: {a[:400]}\n  now:    {b[:400]}"
        assert len(want) == len(got), f"{path.name} has {len(want)} lines, now {len(got)}"

    return compare
