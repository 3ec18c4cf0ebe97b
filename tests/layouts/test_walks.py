"""Which files a layout of integers passes through: none that knows symbols, and SymPy not at all."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from layoutgemm import layouts

# Prints the files of the package that are entered by a statement, and whether SymPy is loaded after it.
TRACED = """
import json, sys
from pathlib import Path
import layoutgemm
from layoutgemm import Layout
{before}
package = Path(layoutgemm.__file__).parent
entered = set()
def enter(frame, event, value):
    path = Path(frame.f_code.co_filename)
    if path.is_relative_to(package):
        entered.add(path.relative_to(package).as_posix())
A, B = Layout((4, 8)), Layout((2, 4))
sys.setprofile(enter)
{statement}
sys.setprofile(None)
print(json.dumps([sorted(entered), "sympy" in sys.modules]))
"""


def walk(statement: str, before: str = "") -> tuple[list[str], bool]:
    """The files that a statement on A and B enters, and whether SymPy is loaded."""
    code = TRACED.format(statement=statement, before=before)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    entered, sympy = json.loads(done.stdout)
    return entered, sympy


def of_symbols(entered: list[str]) -> list[str]:
    """Those that know symbols, but for the file that asks whether there are any."""
    return [path for path in entered if path.startswith("layouts/symbols/") and not path.endswith("/dispatch.py")]


@pytest.mark.parametrize(
    ("statement", "most"),
    [
        ("A.compose(B)", 4), ("A @ 8", 5), ("A.coalesce()", 2), ("A(3, 5)", 3), ("A.logical_divide((2, 4))", 7),
        ("A.complement(64)", 3), ("A.equivalent(B)", 4),
    ],
)  # fmt: skip
def test_integers_meet_no_symbols(statement: str, most: int) -> None:
    entered, sympy = walk(statement)
    assert "layouts/layout.py" in entered and len(entered) <= most, entered
    assert of_symbols(entered) == [] and not sympy


def test_the_walk_of_compose_is_the_one_in_the_docstring() -> None:
    entered, _ = walk("A.compose(B)")
    told = re.search(r"compose enters ([^;]+);", " ".join((layouts.__doc__ or "").split()))
    assert told is not None
    assert {f"layouts/{name.replace('.', '/')}.py" for name in re.findall(r"[a-z_.]+", told[1])} == set(entered)


def test_a_symbol_that_others_use_changes_no_walk() -> None:
    entered, sympy = walk("A.compose(B)", before="from layoutgemm import dim; M = dim('M'); Layout((M, 8))")
    assert of_symbols(entered) == [] and not sympy


def test_the_trace_sees_a_layout_with_symbols() -> None:
    entered, sympy = walk("S.compose(Layout(2))", before="from layoutgemm import dim; S = Layout((2, dim('M')))")
    assert "layouts/symbols/symbolic_layout.py" in of_symbols(entered) and not sympy
