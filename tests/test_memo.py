"""Kept results: one computation for equal arguments, and none that another type's value could be given."""

from __future__ import annotations

import functools
import json
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from layoutgemm import Layout
from layoutgemm.kernels.epilogue.chain import Clamp, Custom, Epilogue
from layoutgemm.kernels.epilogue.reductions import Reduction
from layoutgemm.kernels.operands.combined import Combined
from layoutgemm.kernels.operands.prologue import Prologue
from layoutgemm.kernels.sm90.mainloop import Promoted
from layoutgemm.memo import ExactFloat, exact, function_key, memoized


def test_equal_arguments_are_computed_once() -> None:
    asked: list[Any] = []

    @memoized(2)
    def double(x: Any) -> Any:
        asked.append(x)
        return x + x

    assert [double(x) for x in (1, 1, True, 1.0, 1)] == [2, 2, 2, 2.0, 2]
    assert [type(x) for x in asked] == [int, bool, float, int]  # two are kept
    assert double([1]) == double([1]) == [1, 1] and len(asked) == 6  # a list has no hash


class Scaled:
    """A function with a state of its own."""

    by = 2.0

    def __call__(self, x: Any) -> Any:
        return x * self.by

    scaled = __call__


def of_class(x: Any) -> Any:
    return x * Scaled.by


def test_a_function_is_known_with_what_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closures, attributes of classes, defaults, functions that it calls. Anything else that may change is no key."""
    n = 2.0
    ways: list[Callable[[Any], Any]] = [
        lambda x: x * n,
        lambda x: (lambda y: y * n)(x),
        lambda x: ways[0](x) if False else functools.partial(pow, n)(x),
        of_class,
        lambda x: of_class(x),
        functools.partial(lambda y, x: x * y * n, 3),
    ]
    before = [function_key(way) for way in ways]
    n = -0.0
    monkeypatch.setattr(Scaled, "by", 3.0)
    after = [function_key(way) for way in ways]
    assert [a == b for a, b in zip(before, after)] == [False, False, True, False, False, False]
    assert before[2] == []  # it reads a list
    n = 2.0
    monkeypatch.setattr(Scaled, "by", 2.0)
    assert [function_key(way) for way in ways] == before
    assert function_key(Scaled()) == function_key(Scaled().scaled) == function_key(lambda x, y=[]: x) == []
    assert function_key("relu", None, Layout(4), math.sqrt) == ("relu", None, Layout(4), math.sqrt)


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


@pytest.mark.parametrize(
    "made",
    [
        lambda z: Custom.of(lambda x, i, j, ops: x + z),
        lambda z: Custom(("add", ("x",), ("float", z))),
        lambda z: Reduction.traced(lambda x, i, j, ops: x + z, lambda a, b, ops: a[0] + b[0], [0.0]),
        lambda z: Reduction.traced(lambda x, i, j, ops: x, lambda a, b, ops: a[0] + b[0], [z]),
        lambda z: Promoted.of(lambda total, product: total + product * z),
        lambda z: Combined.of(lambda x, y, ops: x + y * z),
        lambda z: Prologue.of(lambda x, i, k, ops: x * z),
    ],
)
def test_values_with_floats_are_keys(made: Callable[[float], Any]) -> None:
    """0.0 and -0.0 are two kernels, and NaN is one."""
    assert made(0.0) != made(-0.0) and len({made(0.0): 1, made(-0.0): 2, made(0.0): 3}) == 2
    assert made(math.nan) == made(float("-nan")) and len({made(math.nan), made(float("nan"))}) == 1


def test_bounds_keep_the_sign_of_zero() -> None:
    assert Clamp(0.0, 1.0) != Clamp(-0.0, 1.0) and Clamp(0.0, 1.0) == Clamp(0.0, 1.0)
    for step in (Clamp(-0.0, 1.0), Custom.of(lambda x, i, j, ops: ops.where(i > 1, x, -0.0)), Custom.of(_nan)):
        epilogue = Epilogue(step)
        assert Epilogue.from_json(epilogue.json) == epilogue


def _nan(x: Any, i: object, j: object, ops: object) -> object:
    return x + math.nan


def test_exact_floats_are_floats() -> None:
    zero, nan = ExactFloat(-0.0), ExactFloat(math.nan)
    assert zero != 0.0 and zero != 0 and zero == -0.0 and ExactFloat(0.0) == 0 and ExactFloat(2.0) == 2
    assert ExactFloat(2.0) != "2.0" and nan != 1.0 and nan == exact((float("nan"),))[0]
    assert pickle.loads(pickle.dumps(nan)) is nan and pickle.loads(pickle.dumps(zero)) == zero
    assert json.dumps([zero, nan]) == "[-0.0, NaN]" and repr(zero) == "-0.0" and type(zero + 1) is float


def test_a_negated_zero_has_the_other_sign() -> None:
    found = Epilogue(Custom.of(lambda x, i, j, ops: -x)).reference(np.array([[0.0, -0.0]])).c
    assert np.signbit(found).tolist() == [[True, False]]
