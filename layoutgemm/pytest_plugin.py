"""A pytest plugin that explains a failed `assert a.equivalent(b)`: both layouts, the first difference, both values.

It is installed with the package and needs no setup. It only handles assertions that failed on a verdict of layoutgemm.
The fixture `emulate` runs a compiled kernel on the CPU and fails with the report of any finding. `emulated_gpu` does
so for code that makes its own tensors and launches:

    def test_my_kernel(emulate):
        emulate(my_compiled, a, b, c)

    def test_my_module(emulated_gpu):
        x = torch.randn(64, device="cuda")
        torch.testing.assert_close(my_operator(x), reference(x))
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING

import pytest

from .layouts.proofs.verdicts import CounterExample, Undecided
from .report import Report

if TYPE_CHECKING:
    from .emulator.api import Emulation
    from .emulator.findings import Finding
    from .emulator.host.session import EmulatedGpu

# pytest's rewritten assertions keep their parts in locals of this name until they have passed.
_PARTS = "@py_assert"
MOST = 30  # lines of an explanation


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add a section to the report of a test that failed on our verdict."""
    report = yield
    if call.excinfo is not None and call.excinfo.errisinstance(AssertionError):
        for verdict in failed_verdicts(call.excinfo.tb):
            report.sections.append(("layoutgemm", explanation(verdict)))
    return report


@pytest.fixture
def emulate() -> Callable[..., Emulation]:
    """Run a compiled CuTe DSL function, or PTX with a described launch, on the CPU. Fail on any finding.

    Called like `layoutgemm.emulate` or, with PTX first, `layoutgemm.emulate_ptx`; `lint=True` fails on lint too.
    """
    return emulate_or_fail


@pytest.fixture
def emulated_gpu(request: pytest.FixtureRequest) -> Generator[EmulatedGpu, None, None]:
    """An emulated GPU for the test. Code for a real one runs on it, and any finding fails the test at its end.

    The architecture is sm_90a, or the fixture's indirect parameter. See `layoutgemm.emulated_gpu`.
    """
    arch = getattr(request, "param", "sm_90a")
    if request.config.pluginmanager.has_plugin("tmpdir"):
        # Temporary files of a session go with it: the folder of all tests has to be there before.
        request.getfixturevalue("tmp_path_factory").getbasetemp()
    with _emulator().emulated_gpu(arch, progress=False) as gpu:
        yield gpu
    if not gpu.ok:
        _fail(gpu.report(), gpu.findings)


def emulate_or_fail(compiled: object, *args: object, lint: bool = False, **options: object) -> Emulation:
    """Run the kernel; the test fails with the report of any finding."""
    api = _emulator()
    call = api.emulate_ptx if isinstance(compiled, (str, Path)) else api.emulate
    done = call(compiled, *args, **{"progress": False, **options})
    if not done.ok or (lint and done.findings):
        _fail(done.report(), done.findings)
    return done


def _fail(report: str, findings: Iterable[Finding]) -> None:
    """The test fails with the report. Its first line, which pytest's summary shows, counts the findings."""
    counts = Counter(finding.kind for finding in findings)
    said = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    pytest.fail(f"{said}\n{report}" if said else report, pytrace=False)


def _emulator() -> ModuleType:
    from .emulator import api

    return api


def explanation(verdict: object) -> str:
    """Both layouts of a comparison, then the reason; 30 lines at most."""
    if isinstance(verdict, Report):
        said = "\n".join(map(str, verdict.failures))
    else:
        explain = getattr(verdict, "explain", None)
        said = str(explain() if callable(explain) else getattr(verdict, "reason", None) or verdict)
    between = verdict.between if isinstance(verdict, (CounterExample, Undecided)) else ()
    names = ("left: ", "right:") if len(between) == 2 else ()
    lines = [f"{name} {layout}" for name, layout in zip(names, between, strict=False)]
    lines += said.splitlines()
    return "\n".join(lines if len(lines) <= MOST else [*lines[:MOST], f"... and {len(lines) - MOST} lines more"])


def is_false_verdict(value: object) -> bool:
    """True for a verdict, report, search or emulation of this package that does not hold."""
    kind = type(value)
    if not kind.__module__.startswith("layoutgemm.") or "__bool__" not in dir(kind):
        return False
    if not (hasattr(kind, "explain") or hasattr(kind, "report") or hasattr(value, "ok") or hasattr(kind, "failures")):
        return False
    try:
        return not value
    except Exception:  # a value without a truth, such as a comparison of symbols
        return False


def failed_verdicts(traceback: TracebackType | None) -> list[object]:
    """The false verdicts in a failed assertion, in evaluation order.

    They come from the assertion's expression. If it holds none, as in `assert verdict`, they come from variables of the
    test.
    """
    if traceback is None:
        return []
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    local = traceback.tb_frame.f_locals
    parts = [value for name, value in local.items() if name.startswith(_PARTS) and is_false_verdict(value)]
    named = [value for name, value in local.items() if not name.startswith("@") and is_false_verdict(value)]
    found: list[object] = []
    for value in parts or named:
        if all(value is not each for each in found):
            found.append(value)
    return found
