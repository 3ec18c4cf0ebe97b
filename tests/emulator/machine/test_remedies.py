"""Every finding that the emulator can report has a remedy: its own, or its kind's."""

from __future__ import annotations

import ast
from pathlib import Path

import layoutgemm.emulator
from layoutgemm.emulator.findings import LINT, REMEDIES

ROOT = Path(layoutgemm.emulator.__file__).parent
REPORTS = ("problem", "report", "Finding")  # calls of (kind, message, ...)


def without_remedy(tree: ast.AST) -> list[int]:
    """Lines of calls that report a kind without a remedy, and give none."""
    found = []
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or not call.args:
            continue
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        if name not in REPORTS or any(word.arg == "orders" for word in call.keywords):
            continue
        kinds = {node.value for node in ast.walk(call.args[0]) if isinstance(node, ast.Constant)}
        kinds |= {LINT for node in ast.walk(call.args[0]) if isinstance(node, ast.Name) and node.id == "LINT"}
        given = len(call.args) > (2 if name == "report" else 5)  # as one of the arguments in order
        if kinds & {LINT, "protocol"} and not given:
            found.append(call.lineno)
    return found


def test_each_finding_has_a_remedy() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{line}"
        for path in ROOT.rglob("*.py")
        for line in without_remedy(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert not found
    assert {"race", "uninitialised", "descriptor", "divergence", "edge", "exit"} <= REMEDIES.keys()


def test_a_report_without_one_is_seen() -> None:
    assert without_remedy(ast.parse('machine.problem("lint", "said", fiber)')) == [1]
    assert without_remedy(ast.parse('report("protocol", "said")')) == [1]
    assert not without_remedy(ast.parse('report("protocol", "said", "remedy")\nproblem("race", "said")'))
