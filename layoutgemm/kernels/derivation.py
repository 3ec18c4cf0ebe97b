"""The check that a plan equals the one derived from its sizes, types and configuration.

The other checks read a plan's objects one by one. Only a plan that is derived as a whole is known to compile and run:
so a field that was exchanged, whatever for, is named. The order of tiles alone may be another than the derived one.

The other checks are for plans near the derived one. The search through a pipeline's states grows with the square of its
stages: beside a number that is larger than the derived one by more than a little it is skipped. Every check counts to
some number: beside one that is far larger all are skipped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from types import FunctionType
from typing import TYPE_CHECKING, Any, NoReturn

from ..arch import arch
from ..errors import LayoutError
from ..layouts import Layout
from ..report import Check, Report
from ..schedule import Persistent
from ..schedule.tile_order import Schedule
from .compile.cache import facts_of
from .derive import Operand
from .operands.combinations import Asked
from .orders import asked_order

if TYPE_CHECKING:
    from .plan import GemmPlan


_NAME = "derivation"
_SHOWN = 160  # characters of a value
_NUMBER, _DIGITS = re.compile(r"[0-9]+"), 40
_LITTLE, _FAR, _TIMES = 2, 64, 8  # more than derived: little is 2 or an eighth; far is 64 and 8 times
_MOST = 1 << 15  # a number of an order, which is multiplied by a number of tiles
_SIZES = ("m", "n", "k", "batch")  # no check counts to them
_LARGE = 1 << 20  # a number inside of a field that a check may count to


def checked(plan: GemmPlan, checks: Callable[[Any, bool], list[Check]], **more: object) -> Report:
    """The report of a plan's checks, and a failed one if `derive` gives another plan.

    checks  those of a plan, with or without the search through its pipeline's states
    more    arguments of `derive` beside m, n, k, a, b, c, config, and those that a plan has as fields of `Asked`
    """
    witness, distance = _witness(plan, more)
    if not witness:
        return Report(tuple(checks(plan, True)))
    made: list[Check] = []
    if distance is not PlanDifference.FAR:
        try:
            made = checks(plan, distance is PlanDifference.NEAR)
            _ = [(bool(check), str(check)) for check in made]  # a value may stand in a check that has none of the two
        except Exception:  # a value that the other checks are not written for, which the witness names
            made, distance = [], PlanDifference.FAR
    statement = f"derive gives this {type(plan).__name__} of its own sizes, types and configuration"
    return Report((*made, Check(_NAME, statement, False, "derivation", f"{witness}{distance.value}")))


class PlanDifference(Enum):
    """A plan's distance from the derived one, and the note about the other checks."""

    NEAR = ""
    LARGER = "; so the search through the pipeline's states is skipped"
    FAR = "; so the other checks are skipped"


def _witness(plan: Any, more: dict[str, object]) -> tuple[str, PlanDifference]:
    """The first field that differs from the derived plan, with both values, or ""; and the plan's distance."""
    try:
        if plan.arch != arch(plan.arch.name):
            return f"arch is {_shown(plan.arch)}, which is no {_shown(plan.arch.name, str)}", PlanDifference.FAR
        a, b = (Operand(operand.dtype, operand.order) for operand in (plan.a, plan.b))
        more = {**_asked(plan), **more}
        derived = type(plan).derive(plan.m, plan.n, plan.k, a=a, b=b, c=plan.c, config=plan.config, **more)
    except LayoutError as error:
        return f"derive refuses: {_shown(error, str)}", PlanDifference.LARGER if _is_moderate(
            plan
        ) else PlanDifference.FAR
    except Exception as error:  # a field of a type that derive does not take
        return f"derive fails with {type(error).__name__}: {_shown(error, str)}", PlanDifference.FAR
    witness, found = "", {PlanDifference.NEAR}
    for field in fields(plan):
        have, want = getattr(plan, field.name), getattr(derived, field.name)
        if _alike(have, want):
            continue
        found.add(_distance(have, want))
        if field.name == "order":
            have, want = _order_of(have, want), ""
        if not witness and not _alike(have, want):
            wanted = f", not {_shown(want)}" if want else ""
            witness = f"{field.name} is {_shown(have)}{wanted}"
    return witness, max(found, key=list(PlanDifference).index)


def _asked(plan: GemmPlan) -> dict[str, object]:
    """The arguments of `derive` that a plan has as fields; the order says what is symmetric."""
    parts = plan.asked if isinstance(plan, Asked) else None
    if parts is None:
        return {}
    given = {name: x for name, x in parts.items() if x is not None and name != "symmetric"}
    if not given.get("epilogue"):  # without steps
        given.pop("epilogue", None)
    if (scales := getattr(plan, "scales", None)) is not None:
        given["scales"] = scales.format
    return {**given, **asked_order(plan)}


def _shown(value: object, text: Callable[[object], str] = repr) -> str:
    """The beginning of a value's text; the name of its type where it has none."""
    try:
        return text(value)[:_SHOWN]
    except Exception:
        return f"a value of type {type(value).__name__}"


def _distance(have: object, want: object) -> PlanDifference:
    """The distance of a field's numbers above the derived ones."""
    if have is want:
        return PlanDifference.NEAR
    if isinstance(have, int) and isinstance(want, int):
        little = want + max(_LITTLE, want // _TIMES)
        return (PlanDifference.NEAR, PlanDifference.LARGER, PlanDifference.FAR)[
            (have > little) + (have > _FAR + _TIMES * want)
        ]
    try:
        ours, theirs = (_NUMBER.findall(json.dumps(facts_of(value, _function))) for value in (have, want))
    except Exception:  # of a type that is no part of a plan, too long, too deep
        return PlanDifference.FAR
    count, largest = _FAR + _TIMES * len(theirs), max([_LARGE, *(int(number[:_DIGITS]) for number in theirs)])
    far = len(ours) > count or any(int(number[:_DIGITS]) > largest for number in ours)
    return PlanDifference.FAR if far else PlanDifference.NEAR


def _is_moderate(plan: Any) -> bool:
    """True if the checks of a plan without a derived one count to moderate numbers."""
    try:
        chosen = {field.name: getattr(plan, field.name) for field in fields(plan) if field.name not in _SIZES}
        numbers = _NUMBER.findall(json.dumps(facts_of(chosen, _function)))
    except Exception:  # of a type that is no part of a plan, too long, too deep
        return False
    return len(numbers) < _MOST and all(int(number[:_DIGITS]) <= _LARGE for number in numbers)


def _function(value: object) -> str:
    """A function as a fact: its name, not its code."""
    if isinstance(value, FunctionType):
        return value.__name__
    raise TypeError(f"a value of type {type(value).__name__} is no part of a plan")


def _alike(have: object, want: object) -> bool:
    """True if two values make the same kernel: 1, 1.0 and True do not."""
    if _identical(have, want):
        return True
    try:
        return json.dumps(facts_of(have), sort_keys=True) == json.dumps(facts_of(want), sort_keys=True)
    except Exception:  # of a type that is no part of a plan, too long, too deep
        return False


def _order_of(have: object, derived: object) -> str:
    """Why a kernel does not compute tiles in this order; "" where it does."""
    schedule = have
    if isinstance(derived, Persistent):
        if not isinstance(have, Persistent) or have.cluster != derived.cluster:
            return f"{_shown(have)}, not Persistent with clusters of {derived.cluster}"
        if type(have.workers) is not int or have.workers >= 1 << 31:
            return f"{_shown(have)}, whose workers are no int below 2**31"
        schedule = have.schedule
    if not isinstance(schedule, Schedule):
        return f"{_shown(schedule)}, not a Schedule"
    try:
        if any(int(number) > _MOST for number in _NUMBER.findall(json.dumps(facts_of(schedule)))):
            return f"{_shown(schedule)}: a number above {_MOST}, and a kernel computes in 32 bits"
        schedule.tile(UnknownInteger(), (UnknownInteger(), UnknownInteger()), lambda *_: UnknownInteger())
    except Exception as error:
        return f"{_shown(schedule)}, which is no formula that a kernel computes: {_shown(error, str)}"
    return ""


class UnknownInteger:
    """An integer of which a trace knows nothing. It adds, divides and compares, and has no value to branch on."""

    def _more(self, *_: object) -> UnknownInteger:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _more
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _more
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _more
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _more
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = __neg__ = __pos__ = __invert__ = _more  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]

    def _value(self) -> NoReturn:
        raise TypeError("the value of a traced integer is not known")

    __bool__ = __int__ = __index__ = __float__ = __iter__ = __len__ = _value


def _identical(have: object, want: object) -> bool:
    """True if two values are of the same types and equal throughout; False decides nothing."""
    if have is want:
        return True
    if type(have) is not type(want):
        return False
    if isinstance(have, (int, float, str, Layout)):
        return have == want
    if isinstance(have, tuple) and isinstance(want, tuple):
        return len(have) == len(want) and all(map(_identical, have, want))
    if is_dataclass(have) and not isinstance(have, type):
        return all(_identical(getattr(have, each.name), getattr(want, each.name)) for each in fields(have))
    return False
