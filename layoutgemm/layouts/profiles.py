"""Verdicts on the nesting and the extents of two tuples: congruent, compatible, weakly congruent."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from . import int_tuple as _t
from .proofs.verdicts import Verdict

Comparison: TypeAlias = "Callable[[object, object], bool]"
Finding: TypeAlias = "tuple[tuple[int, ...], str]"  # the path to two modes, and the modes


def congruent(a: object, b: object) -> Verdict:
    """Verdict: both tuples have the same nesting. The witness is the path to the first mode that differs.

    >>> found = congruent((4, (2, 3)), (4, 6))
    >>> found.ok, found.reason, found.witness
    (False, '(4,(2,3)) is not congruent to (4,6): mode 1 is (2,3) and 6', (1,))
    """
    return _verdict(_t.congruent, _nested, a, b, "is not congruent to")


def compatible(a: object, b: object) -> Verdict:
    """Verdict: every coordinate of shape `a` is one of shape `b`. The witness is the path to the first mode.

    >>> compatible((4, 6), (4, (2, 5))).reason
    '(4,6) is not compatible with (4,(2,5)): mode 1 is 6 and (2,5), of size 10'
    """
    return _verdict(_t.compatible, _sized, a, b, "is not compatible with")


def weakly_congruent(a: object, b: object) -> Verdict:
    """Verdict: the nesting of `b` refines that of `a`. The witness is the path to the first mode that does not.

    >>> weakly_congruent((4, 6), 1).reason
    '(4,6) is not weakly congruent to 1: the whole is (4,6) and 1'
    """
    return _verdict(_t.weakly_congruent, _nested, a, b, "is not weakly congruent to")


def _verdict(holds: Comparison, find: Callable[[object, object], str], a: object, b: object, said: str) -> Verdict:
    if holds(a, b):
        return Verdict(True)
    path, what = _first(holds, find, a, b)
    where = f"mode {'.'.join(map(str, path))}" if path else "the whole"
    return Verdict(False, f"{_t.show(a)} {said} {_t.show(b)}: {where} is {what}", path)


def _first(
    holds: Callable[[object, object], bool], find: Callable[[object, object], str], a: object, b: object
) -> Finding:
    """The path to the first pair of modes that fails, and the modes."""
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        for i, (x, y) in enumerate(zip(a, b)):
            if not holds(x, y):
                path, what = _first(holds, find, x, y)
                return (i, *path), what
    return (), find(a, b)


def _nested(a: object, b: object) -> str:
    return f"{_t.show(a)} and {_t.show(b)}"


def _sized(a: object, b: object) -> str:
    size = f", of size {_t.show(_t.product(b))}" if isinstance(b, tuple) and not isinstance(a, tuple) else ""
    return _nested(a, b) + size
