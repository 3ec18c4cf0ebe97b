"""Whether a plan is what `derive` gives of its own sizes, types and configuration, and its order one a kernel computes.

The other checks read a plan's objects one by one. Only a plan that is derived as a whole is known to compile and run:
so a field that was exchanged, whatever for, is named. The order of tiles alone may be another than the derived one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from ..errors import LayoutError
from ..report import Check, Report
from ..schedule import Persistent
from ..schedule.tile_order import Schedule
from .compile.cache import facts_of
from .derive import Operand

_NAME = "derivation"
_SHOWN = 160  # characters of a value
_FAR, _TIMES = 64, 8
_COUNTED = 1 << 20


def checked(plan: Any, checks: Callable[[Any], list[Check]], **more: Any) -> Report:
    """The report of a plan's checks; where the plan is not what `derive` gives, it ends with a check that says so.

    more  arguments of `derive` beside m, n, k, a, b, c and config
    """
    witness, far = _witness(plan, more)
    if not witness:
        return Report(tuple(checks(plan)))
    statement = f"derive gives this {type(plan).__name__} of its own sizes, types and configuration"
    failed = Check(_NAME, statement, False, "derivation", witness)
    try:
        return Report((*(() if far else checks(plan)), failed))
    except Exception:  # a value that the other checks are not written for, which the witness names
        return Report((failed,))


def _witness(plan: Any, more: dict[str, Any]) -> tuple[str, bool]:
    """The first field that `derive` gives another value, with both, "" where there is none; whether it is far larger.

    A check may take as long as a number is large: of 2**40 stages it would not end.
    """
    try:
        a, b = (Operand(operand.dtype, operand.order) for operand in (plan.a, plan.b))
        derived = type(plan).derive(plan.m, plan.n, plan.k, a=a, b=b, c=plan.c, config=plan.config, **more)
    except LayoutError as error:
        return f"derive refuses: {error}", _is_large(plan)
    except Exception as error:  # a field of a type that derive does not take
        return f"derive fails with {type(error).__name__}: {error}", True
    for field in fields(plan):
        have, want = getattr(plan, field.name), getattr(derived, field.name)
        if field.name == "order":
            have, want = _order_of(have, want), ""
        if not _alike(have, want):
            wanted = f", not {repr(want)[:_SHOWN]}" if want else ""
            return f"{field.name} is {repr(have)[:_SHOWN]}{wanted}", _far(plan, derived)
    return "", False


def _is_large(plan: Any) -> bool:
    """Whether a number of the plan is larger than any that a check should count to."""
    numbers = [getattr(plan, field.name) for field in fields(plan) if field.name not in ("m", "n", "k", "batch")]
    return any(isinstance(number, int) and number > _COUNTED for number in numbers)


def _far(plan: Any, near: Any) -> bool:
    """Whether a number of the plan is far larger than the one of that name in what it is compared with."""
    pairs = [(getattr(plan, field.name), getattr(near, field.name, 0)) for field in fields(plan)]
    return any(
        isinstance(have, int) and have > _FAR + _TIMES * (want if isinstance(want, int) else 0) for have, want in pairs
    )


def _alike(have: Any, want: Any) -> bool:
    """Whether two values make the same kernel: 1, 1.0 and True do not."""
    if have is want:
        return True
    try:
        return json.dumps(facts_of(have), sort_keys=True) == json.dumps(facts_of(want), sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        return False


def _order_of(have: Any, derived: Any) -> str:
    """Why a kernel does not compute tiles in this order; "" where it does."""
    schedule = have
    if isinstance(derived, Persistent):
        if not isinstance(have, Persistent) or have.cluster != derived.cluster:
            return f"{have!r}, not Persistent with clusters of {derived.cluster}"
        schedule = have.schedule
    if not isinstance(schedule, Schedule):
        return f"{schedule!r}, not a Schedule"
    try:
        schedule.tile(Traced(), (Traced(), Traced()), lambda *_: Traced())
    except Exception as error:
        return f"{schedule!r}, which is no formula that a kernel computes: {error}"
    return ""


class Traced:
    """An integer of which a trace knows nothing: it adds, divides and compares, and has no value to branch on."""

    def _more(self, *_: Any) -> Traced:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _more
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _more
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _more
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _more
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = __neg__ = __pos__ = __invert__ = _more  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]

    def _value(self) -> Any:
        raise TypeError("the value of a traced integer is not known")

    __bool__ = __int__ = __index__ = __float__ = __iter__ = __len__ = _value
