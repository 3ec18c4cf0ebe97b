"""Results of functions whose arguments are values, kept: many plans have the same tiles, stores and orders."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


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
