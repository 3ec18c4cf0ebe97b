"""Kept results: one computation for equal arguments, and none that another type's value could be given."""

from __future__ import annotations

from typing import Any

import pytest

from layoutgemm.memo import memoized


def test_equal_arguments_are_computed_once() -> None:
    asked: list[Any] = []

    @memoized(2)
    def double(x: Any) -> Any:
        asked.append(x)
        return x + x

    assert [double(x) for x in (1, 1, True, 1.0, 1)] == [2, 2, 2, 2.0, 2]
    assert [type(x) for x in asked] == [int, bool, float, int]  # two are kept
    assert double([1]) == double([1]) == [1, 1] and len(asked) == 6  # a list has no hash


def test_an_error_is_raised_each_time() -> None:
    asked = []

    @memoized(2)
    def refuse(x: int) -> int:
        asked.append(x)
        raise ValueError(x)

    for _ in range(2):
        with pytest.raises(ValueError, match="3"):
            refuse(3)
    assert asked == [3, 3]
