"""The processor seconds of a test run by part, as a table at the end.

    python -m pytest -p tests.seconds ...

Seconds are of processors, those of other processes that a test started included, so that a busy machine changes them
little. Each belongs to the innermost part that runs: the parts add up to the processes' whole work.
"""

from __future__ import annotations

import functools
import importlib
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

import pytest

# Part -> what it is, and the functions that it consists of, "module:name"; one of them may call another.
PARTS = {
    "import": ("importing the DSL, torch and JAX", []),
    "compile": (
        "tracing and compiling kernels, and exporting their host functions",
        ["layoutgemm.kernels.compile.compiler:_machine_code", "layoutgemm.emulator.host.dsl_calls:CompiledFunction.of"],
    ),
    "code": (
        "reading the machine code",
        ["layoutgemm.kernels.compile.sass:disassemble", "layoutgemm.kernels.compile.sass:resources"],
    ),
    "host": (
        "linking host functions, and running them",
        ["layoutgemm.emulator.host.launcher:HostFunction.link", "layoutgemm.emulator.host.launcher:HostFunction.call"],
    ),
    "load": (
        "reading PTX, and generating code from it",
        ["layoutgemm.emulator.ptx.parser:parse", "layoutgemm.emulator.ptx.program:Program.__init__"],
    ),
    "run": ("emulating", ["layoutgemm.emulator.machine.interpreter:PtxMachine.run"]),
    "order": ("looking for races, meanwhile", ["layoutgemm.emulator.races.happens_before:ShadowMemory.access"]),
    "tests": ("the tests' own work", []),
    "collect": ("collecting the tests, before the first", []),
}
# Imported while tests run, and long: module -> the functions of it that are a part, once it is there.
LATE = {"cutlass": {"compile": "cutlass.base_dsl.compiler:CompileCallable._compile"}, "torch": {}, "jax": {}}


def used() -> float:
    """Processor seconds of this process and of the ended processes that it started."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


class Clock:
    """Seconds of each part: of the innermost that runs, at any moment."""

    def __init__(self, part: str, now: Callable[[], float] = used) -> None:
        self.spent: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.now, self.parts, self.since = now, [part], 0.0

    def turn(self) -> None:
        """Charge what has passed to the part that runs."""
        now = self.now()
        self.spent[self.parts[-1]] += now - self.since
        self.since = now

    def enter(self, part: str) -> None:
        """A part begins within the one that runs."""
        self.turn()
        self.parts.append(part)
        self.calls[part] += 1

    def leave(self) -> None:
        """The innermost part ends."""
        self.turn()
        self.parts.pop()

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, charged to a part."""

        @functools.wraps(function)
        def call(*args: Any, **named: Any) -> Any:
            self.enter(part)
            try:
                return function(*args, **named)
            finally:
                self.leave()

        return call


CLOCK = Clock("collect")


def wrap(part: str, place: str) -> None:
    """Charge the function at "module:name" to a part, under each name in our modules."""
    module, _, path = place.partition(":")
    *outer, name = path.split(".")
    owner: Any = functools.reduce(getattr, outer, importlib.import_module(module))
    before = vars(owner)[name]
    bare = getattr(before, "__func__", before)  # of a class method or a static one
    after = CLOCK.timed(part, bare)
    setattr(owner, name, type(before)(after) if bare is not before else after)
    for other in list(sys.modules.values()):
        if getattr(other, "__name__", "").startswith("layoutgemm") and vars(other).get(name) is before:
            setattr(other, name, after)


class Late(MetaPathFinder):
    """Times the import of the modules in `LATE`."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in LATE else None
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def load(module: ModuleType) -> None:
                CLOCK.timed("import", execute)(module)
                for part, place in LATE[name].items():
                    wrap(part, place)

            spec.loader.exec_module = load
        return spec


def pytest_configure(config: pytest.Config) -> None:
    sys.meta_path.insert(0, Late())
    for part, (_, places) in PARTS.items():
        for place in places:
            wrap(part, place)


def pytest_collection_finish(session: pytest.Session) -> None:
    CLOCK.turn()
    CLOCK.parts[0] = "tests"


def pytest_sessionfinish(session: pytest.Session) -> None:
    CLOCK.turn()
    out = getattr(session.config, "workeroutput", None)
    if out is not None:
        out["seconds"] = [dict(CLOCK.spent), dict(CLOCK.calls)]


SENT: list[tuple[Counter[str], Counter[str]]] = []  # by the workers of pytest-xdist


class Workers:
    """Takes what the workers send."""

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        if sent := getattr(node, "workeroutput", {}).get("seconds"):
            SENT.append((Counter(sent[0]), Counter(sent[1])))


def pytest_plugin_registered(plugin: object, manager: pytest.PytestPluginManager) -> None:
    if plugin is sys.modules[__name__]:
        manager.register(Workers(), "seconds of workers")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    found = SENT or [(CLOCK.spent, CLOCK.calls)]
    spent = sum([one for one, _ in found], Counter())
    calls = sum([one for _, one in found], Counter())
    who = f"{len(found)} workers" if SENT else "one process"
    terminalreporter.write_line(f"{sum(spent.values()):8.1f} seconds of processors, in {who}:")
    for part, (what, _) in PARTS.items():
        times = f"{calls[part]:8} x" if calls[part] else " " * 10
        terminalreporter.write_line(f"{spent[part]:8.1f} {times}  {part:8} {what}")
