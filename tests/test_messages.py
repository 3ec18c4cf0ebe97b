"""Errors print values with `shown`, which bounds their length: neither `!r` nor `repr` is in a `raise`."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import sympy

import layoutgemm
from layoutgemm import Layout
from layoutgemm.errors import LayoutError
from layoutgemm.kernels.epilogue.chain import Custom

ROOT = Path(layoutgemm.__file__).parent
FOREIGN = ("AttributeError",)  # of a module, in Python's own words


def unbounded(text: str) -> list[str]:
    """The values with `!r`, and calls of `repr`, in the raise statements of a module.

    >>> unbounded('raise ValueError(f"not {x!r}, {repr(y)}, {shown(z)}")')
    ['1: x', '1: y']
    """
    found = []
    for statement in ast.walk(ast.parse(text)) if "!r" in text or "repr(" in text else ():
        if not isinstance(statement, ast.Raise) or not isinstance(statement.exc, ast.Call):
            continue
        if ast.unparse(statement.exc.func) in FOREIGN:
            continue
        for node in ast.walk(statement.exc):
            if isinstance(node, ast.FormattedValue) and node.conversion == ord("r"):
                found.append(f"{node.lineno}: {ast.unparse(node.value)}")
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "repr":
                found.append(f"{node.lineno}: {ast.unparse(node.args[0])}")
    return found


def test_values_in_errors_are_bounded() -> None:
    assert unbounded('raise ValueError(f"not {x!r}, {repr(y)}, {shown(z)}")') == ["1: x", "1: y"]
    found = {str(path.relative_to(ROOT)): unbounded(path.read_text()) for path in ROOT.rglob("*.py")}
    assert {name: values for name, values in found.items() if values} == {}


@pytest.mark.parametrize(
    "call",
    [
        lambda: Custom.of(lambda x, i, j, ops: x ** ("y" * 100_000)),
        lambda: Custom.of(lambda x, i, j, ops: getattr(ops, "y" * 100_000)(x)),
        lambda: Custom.of(lambda x, i, j, ops: x + "y" * 100_000),
        lambda: Layout(sympy.Symbol("M" * 100_000)),
        lambda: Layout(sympy.sin(sympy.Symbol("M" * 100_000, integer=True))),
    ],
)
def test_long_values_of_symbols_and_functions_are_bounded(call) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(LayoutError) as raised:
        call()
    assert len(str(raised.value)) < 1_000, str(raised.value)[:300]
