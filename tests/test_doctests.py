"""Every docstring example of the package and the benchmarks gives its stated output.

Public callables refuse junk in place of any argument of these examples: see `junk`.
"""

from __future__ import annotations

import doctest
import importlib
import inspect
import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from layoutgemm.arguments import as_int
from tests import junk, needs

ROOT = Path(__file__).resolve().parents[1]
# A module that needs one of these is skipped where it is absent; any other import that fails is a failure.
OPTIONAL = frozenset({"cutlass", "cuda", "torch", "jax", "tvm_ffi"})


def module_names() -> list[str]:
    names = []
    for path in [*sorted((ROOT / "layoutgemm").rglob("*.py")), *sorted((ROOT / "benchmarks").glob("*.py"))]:
        parts = path.relative_to(ROOT).with_suffix("").parts
        names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return [name for name in names if not name.endswith("__main__")]


@pytest.mark.parametrize("name", module_names())
def test_examples(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # an example may write a file
    # Each docstring's run would look whether any source file ever read has changed since.
    monkeypatch.setattr(linecache, "checkcache", lambda filename=None: None)
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.partition(".")[0] in OPTIONAL:
            pytest.skip(needs.reason(str(error.name)))
        raise
    report: list[str] = []
    runner = doctest.DocTestRunner()
    recorder = junk.Recorder(module) if name in junk.modules() else None
    for test in doctest.DocTestFinder(exclude_empty=True).find(module, name):
        sys.setprofile(recorder)
        try:
            runner.run(test, out=report.append)
        finally:
            sys.setprofile(None)
    assert runner.failures == 0, "\n" + "".join(report)
    if recorder is not None:
        failures = junk.failures(recorder, name)
        assert not failures, "\n".join(failures[:20])


def test_a_wrong_example_fails() -> None:
    report: list[str] = []
    runner = doctest.DocTestRunner()
    runner.run(doctest.DocTestParser().get_doctest(">>> 6 * 7\n43\n", {}, "planted", None, None), out=report.append)
    assert runner.failures == 1
    assert "43" in "".join(report)


@pytest.mark.parametrize(("function", "text"), [(lambda x: x + 1, "TypeError: "), (lambda x: as_int(x, "x"), "")])
def test_a_foreign_error_is_a_failure(function: Callable[[Any], object], text: str) -> None:
    bound = inspect.signature(function).bind(1)
    assert junk.outcome(function, bound, {"x": "junk"}).startswith(text)
    assert junk.outcome(function, bound, {"x": 1}) == ""


def test_calls_are_recorded() -> None:
    module = importlib.import_module("layoutgemm.layouts.functions")
    recorder = junk.Recorder(module)
    sys.setprofile(recorder)
    try:
        module.make_layout(4)
    finally:
        sys.setprofile(None)
    [(call, _)] = next(iter(recorder.calls.values()))
    assert call is module.make_layout and not junk.failures(recorder, "")


def test_most_public_callables_are_called() -> None:
    """Doctests of a few modules alone would test nothing."""
    assert len(junk.modules()) > 90
