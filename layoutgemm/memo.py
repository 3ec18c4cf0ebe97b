"""Results of functions whose arguments are values, kept. Many plans have the same tiles, stores and orders.

A function that is traced is no value: it may read variables that change. `function_key` has what it reads, too.

Values are equal where Python says so, and Python says that 0.0 equals -0.0 and that NaN equals nothing. A value with
floats that decide its kernel's code has them as `ExactFloat`s.
"""

from __future__ import annotations

import functools
import math
import numbers
from collections.abc import Callable, Collection, Hashable
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
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


def is_value(x: object) -> bool:
    """True if an equal object of the same type stands for it. Its hash says so too. A float's does not, of -0.0.

    >>> [is_value(x) for x in ("silu", 300, None, object(), [1], 0.0)]
    [True, True, False, False, False, False]
    """
    own = type(x)
    if isinstance(x, numbers.Number):
        return own in (int, bool)
    return x is not None and own.__eq__ is not object.__eq__ and own.__hash__ not in (None, object.__hash__)


def function_key(*functions: object) -> tuple[object, ...] | list[object]:
    """Part of a key: functions that are traced, and the values that they read now.

    An empty list, which has no hash, where one of them reads an object that may change: it is traced each time. A name,
    a layout and the like stand for themselves.

    >>> scale, changing = 2.0, [2.0]
    >>> function_key(lambda x: x + 1)[1:], function_key(lambda x: x * scale)[1:]
    ((), ((<class 'float'>, 2.0),))
    >>> function_key(lambda x: x * changing[0])
    []
    """
    read: list[Hashable] = []
    for each in functions:
        if isinstance(each, _FUNCTIONS):
            if not _reads(each, (), set(), read):
                return []
        elif callable(each) and not is_value(each):
            return []
    return (*functions, *read)


_FUNCTIONS = FunctionType, MethodType, functools.partial
_CONSTANTS = numbers.Number, str, bytes, type(None), BuiltinFunctionType


def _reads(x: object, names: Collection[str], seen: set[int], read: list[Hashable]) -> bool:
    """Add the values that an object has for code that reads it; False where one of them may change.

    names  in that code: of these a module's and a class's attributes are read
    """
    if id(x) in seen:
        return True
    seen.add(id(x))
    parts: list[object]
    if isinstance(x, FunctionType):
        names = _names(x.__code__)
        try:
            parts = [cell.cell_contents for cell in x.__closure__ or ()]
        except ValueError:  # assigned later
            return False
        parts += [x.__globals__[name] for name in names if name in x.__globals__]
        parts += [*(x.__defaults__ or ()), *(x.__kwdefaults__ or {}).values()]
    elif isinstance(x, MethodType):
        parts = [x.__func__, x.__self__]
    elif isinstance(x, functools.partial):
        parts = [x.func, *x.args, *x.keywords, *x.keywords.values()]
    elif isinstance(x, (ModuleType, type)):
        parts = [vars(x)[name] for name in names if name in vars(x)]
    elif isinstance(x, tuple):
        parts = list(x)
    elif isinstance(x, _CONSTANTS):
        read.append((type(x), exact(cast(Hashable, x))))
        return True
    else:
        return False
    return all(_reads(part, names, seen, read) for part in parts)


_MOST_NAMES = 4096  # functions
_NAMES: dict[int, tuple[CodeType, frozenset[str]]] = {}  # by id, since the hash of code is one of all that it has


def _names(code: CodeType) -> frozenset[str]:
    """The names of variables and attributes in a function's code, inner functions included."""
    known = _NAMES.get(id(code))
    if known is None or known[0] is not code:
        if len(_NAMES) >= _MOST_NAMES:
            _NAMES.clear()
        inner = [x for x in code.co_consts if isinstance(x, CodeType)]
        known = _NAMES[id(code)] = code, frozenset(code.co_names).union(*[_names(x) for x in inner])
    return known[1]
