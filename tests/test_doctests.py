"""Every docstring example of the package and the benchmarks gives its stated output."""

from __future__ import annotations

import doctest
import importlib
import linecache
from pathlib import Path

import pytest

from tests import needs

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
    for test in doctest.DocTestFinder(exclude_empty=True).find(module, name):
        runner.run(test, out=report.append)
    assert runner.failures == 0, "\n" + "".join(report)


def test_a_wrong_example_fails() -> None:
    report: list[str] = []
    runner = doctest.DocTestRunner()
    runner.run(doctest.DocTestParser().get_doctest(">>> 6 * 7\n43\n", {}, "planted", None, None), out=report.append)
    assert runner.failures == 1
    assert "43" in "".join(report)
