"""Results of functions whose arguments are values, kept. Many plans have the same tiles, stores and orders.

Values are equal where Python says so, and Python says that 0.0 equals -0.0 and that NaN equals nothing. A value with
floats that decide its kernel's code has them as `ExactFloat`s.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


class ExactFloat(float):
    """A float that equals those of its value and sign; NaN equals NaN.

    >>> ExactFloat(0.0) == ExactFloat(-0.0), ExactFloat("nan") == ExactFloat("-nan"), ExactFloat(0.5)
    (False, True, 0.5)
    """

    __slots__ = ()
    __hash__ = float.__hash__

    def __new__(cls, value: float | str) -> ExactFloat:
        """The float of a number or of a text."""
        made = super().__new__(cls, value)
        return made if made.hex() != "nan" else _NAN  # one object: a float's hash of NaN is that of its address

    def __eq__(self, other: object) -> bool:
        if self is other or float.__eq__(self, other) is not True:
            return self is other
        return math.copysign(1, self) == math.copysign(1, cast(float, other))

    def __ne__(self, other: object) -> bool:
        return not self == other


_NAN = float.__new__(ExactFloat, "nan")


def exact(value: T) -> T:
    """The value with `ExactFloat`s for floats, in tuples too.

    >>> exact((("float", 0.0),)) == exact((("float", -0.0),))
    False
    """
    if isinstance(value, tuple):
        return cast(T, tuple([exact(part) for part in value]))
    return cast(T, ExactFloat(value)) if isinstance(value, float) else value


def memoized(size: int) -> Callable[[F], F]:
    """Decorate a function so that it keeps its results for the `size` latest arguments.

    Arguments whose own types differ are other arguments: 1, 1.0 and True. One without a hash makes a result that is not
    kept.

    >>> @memoized(2)
    ... def squared(x):
    ...     print("computing", x)
    ...     return x * x
    >>> squared(3), squared(3)
    computing 3
    (9, 9)
    """

    def decorate(function: F) -> F:
        remembered = functools.lru_cache(maxsize=size, typed=True)(function)

        @functools.wraps(function)
        def call(*given: Hashable, **named: Hashable) -> Any:
            try:
                hash((given, *named.values()))
            except Exception:  # a list or a dictionary, or a class whose values have no hash
                return function(*given, **named)
            return remembered(*given, **named)

        return cast(F, call)

    return decorate
