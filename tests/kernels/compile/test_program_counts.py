"""No kernel of kernels/ counts for itself: arrivals, bytes and numbers of barriers come from its object."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PROGRAMS = sorted((Path(__file__).resolve().parents[3] / "kernels").glob("*.py"))
# Function of the bridge -> its arguments that may hold no number.
COUNTS = {
    "barrier_init": slice(1, None),
    "barrier_expect": slice(1, None),
    "named_sync": slice(None),
    "named_arrive": slice(None),
    "tensor_commit": slice(1, None),
}


def numbers(text: str) -> list[str]:
    """Calls that hold a number where they may not."""
    found = []
    for call in ast.walk(ast.parse(text)):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in COUNTS:
            given = [*call.args[COUNTS[call.func.attr]], *(keyword.value for keyword in call.keywords)]
            constants = [node for value in given for node in ast.walk(value) if isinstance(node, ast.Constant)]
            if any(isinstance(constant.value, int) for constant in constants):
                found.append(f"line {call.lineno}: {ast.unparse(call)}")
    return found


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_counts_come_from_the_plan(path: Path) -> None:
    assert numbers(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "call",
    [
        "bridge.barrier_init(shared.full(s), 1)",
        "bridge.barrier_expect(full, 2 * self.bytes)",
        "bridge.named_sync(1 + consumer, threads)",
        "bridge.named_arrive(number, threads=128)",
        "tensor.tensor_commit(done, self.blocks, (1 << self.blocks) - 1)",
    ],
)
def test_a_number_is_found(call: str) -> None:
    assert numbers(call) == [f"line 1: {call}"]
