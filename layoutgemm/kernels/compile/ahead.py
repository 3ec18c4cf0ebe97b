"""Kernels compiled ahead of their first call, several at once.

`compile_ahead` collects the kernels that torch functions would launch, launches none, and compiles them into the cache
on disk when its context ends. Workers compile: see `worker`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ...arguments import as_int, shown
from ...emulator.joined import Joined
from ...errors import PlanError
from . import cache, compiler
from .compiler import CompiledGemm
from .launcher import ENTRY, Launcher
from .worker import Compiles, build

Progress = Callable[[str], object]


@dataclass
class KernelsAhead:
    """The kernels that were collected, and what became of them.

    plans   a plan of each kernel
    ready   how many the cache had before
    failed  (plan, why) of those that could not be compiled

    >>> print(KernelsAhead())
    0 kernels: 0 compiled, 0 in the cache before
    """

    plans: list[Compiles] = field(default_factory=list)
    ready: int = 0
    failed: tuple[tuple[Compiles, str], ...] = ()

    def __str__(self) -> str:
        made = len(self.plans) - self.ready - len(self.failed)
        lost = f", {len(self.failed)} failed: {self.failed[0][1]}" if self.failed else ""
        return f"{len(self.plans)} kernels: {made} compiled, {self.ready} in the cache before{lost}"

    def compile(self, jobs: int | None = None, progress: Progress | None = None) -> None:
        """Compile those that the cache does not have. The arguments are those of `compile_ahead`."""
        wanted = [plan for plan in self.plans if not cache.kept(compiler.facts_of(plan))]
        self.ready = len(self.plans) - len(wanted)
        answers = build(wanted, jobs, progress or _to_stderr) if wanted else []
        self.failed = tuple([(plan, why) for plan, why in zip(wanted, answers, strict=True) if why])


class IdleGemm(CompiledGemm):
    """A kernel that is yet to be compiled. Its launches do nothing."""

    launcher: Launcher

    def __init__(self, plan: Compiles):
        self.plan, self.symbol, self.cached, self.seconds = plan, "", False, 0.0  # type: ignore[assignment]


class _IdleLauncher(Launcher):
    """The launcher of each `IdleGemm`."""

    def __init__(self) -> None:
        self.entry = ENTRY(lambda arguments: None)

    def load(self, device: int) -> None:
        """Nothing: there is no code yet."""


IdleGemm.launcher = _IdleLauncher()  # of the class: within an emulated GPU each CompiledGemm has another one

_COLLECTIONS: Joined[KernelsAhead] = Joined()
join = _COLLECTIONS.join  # a package that keeps launches drops them


def check_cache() -> None:
    """Raise PlanError without the DSL, or without a cache on disk."""
    compiler.require_dsl()
    if cache.cache_dir() is None:
        raise PlanError("kernels are compiled ahead into the cache on disk, and LAYOUTGEMM_CACHE_DIR switches it off")


@contextmanager
def collecting() -> Iterator[KernelsAhead]:
    """Collect the kernels of torch calls, and launch none. Raises as `compile_ahead`."""
    if compiler.AHEAD:
        raise PlanError("compile_ahead within another: the outer one collects all kernels")
    check_cache()
    found, keys = KernelsAhead(), set()

    def collect(plan: Compiles) -> CompiledGemm:
        key = cache.key_of(compiler.facts_of(plan))
        if key not in keys:
            keys.add(key)
            found.plans.append(plan)
        return IdleGemm(plan)

    with _COLLECTIONS.entered(found):
        compiler.AHEAD.append(collect)
        try:
            yield found
        finally:
            compiler.AHEAD.pop()


@contextmanager
def compile_ahead(*, jobs: int | None = None, progress: Progress | None = None) -> Iterator[KernelsAhead]:
    """Collect the kernels of torch calls, and compile them when the context ends.

    None of them is launched within it: results are uninitialised memory. Torch's own kernels run. A call chooses the
    kernel that it would choose later, so a loop over the rows that a model will see collects what it will need.

    jobs      processes that compile at once; default half the processors
    progress  called with a line of text now and then; default writes to stderr

    It holds for `layoutgemm.matmul` and the other torch functions, layers and operators, in all threads. JAX,
    `plan.run` and the products of several GPUs compile and launch as always. Nothing is compiled after an error.

    Raises PlanError without a cache folder, within another `compile_ahead`, and where the DSL is not installed. What
    cannot be compiled is in `failed`.
    """
    jobs = None if jobs is None else as_int(jobs, "jobs", PlanError, 1)
    if progress is not None and not callable(progress):
        raise PlanError(f"progress = {shown(progress)}: a function of a line of text, or None")
    with collecting() as found:
        yield found
    found.compile(jobs, progress)


def _to_stderr(line: str) -> None:
    with contextlib.suppress(OSError):
        print(f"layoutgemm: {line}", file=sys.stderr, flush=True)
