"""Problems solved: sizes that differ by a few rows, or within a K tile, share a choice."""

from __future__ import annotations

import pytest

from layoutgemm.torch_op import choose as choosing
from layoutgemm.torch_op.problem import Problem, StridedOperand
from layoutgemm.torch_op.solver import solve


def problem_of(m: int, n: int, k: int) -> Problem:
    """A layer's product: K contiguous in both operands."""
    a, b = StridedOperand((m, k), (k, 1), "bf16"), StridedOperand((k, n), (1, k), "bf16")
    return Problem(a, b, StridedOperand((m, n), (n, 1), "bf16"))


def test_near_sizes_are_chosen_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens differ from step to step: rows, or the depth of a weight's gradient."""
    asked: list[tuple[int, ...]] = []
    real = choosing.choose

    def counted(m: int, n: int, k: int, **more: object) -> object:
        asked.append((m, n, k))
        return real(m, n, k, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(choosing, "choose", counted)
    choosing._chosen.cache_clear()
    found = {solve(problem_of(m, 1032, 512)).kernel for m in range(1025, 1041)}
    assert asked == [(1040, 1032, 512)] and len(found) == 1
    asked.clear()
    aligned = {solve(problem_of(256, 512, k)).kernel for k in (648, 664, 680, 696)}  # lines of 16 bytes, 11 K tiles
    assert asked == [(256, 512, 648)] and len(aligned) == 1
    assert [solve(problem_of(m, 1032, 512)).sizes[0] for m in (1025, 1031)] == [1025, 1031], "sizes are exact"
    choosing._chosen.cache_clear()
