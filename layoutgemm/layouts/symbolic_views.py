"""Wider and narrower elements, and coordinates, of layouts with symbols. On (shape, stride) pairs."""

from __future__ import annotations

from typing import Any

from ..errors import CoordinateError
from . import inttuple as _t
from .conditions import holds, quotient, rounded_up
from .divide import join
from .inttuple import leaves, product
from .inttuple import show as show_tuple
from .poly import MissingFact, P, needs_div, needs_ge, show
from .symbolic_ops import has_symbols

Pair = tuple[Any, Any]


# ---------------------------------------------------------------- other widths of elements


def upcast(shape: Any, stride: Any, n: int) -> Pair:
    """Each n neighbouring elements as one group; a symbolic stride must be a multiple of n."""
    from .recast import upcast as int_upcast

    if not has_symbols(shape, stride):
        return int_upcast(shape, stride, n)
    over: list[Any] = []
    out = _upcast(shape, stride, n, over)
    if over and not holds(sum(over), n - 1):
        raise MissingFact(
            f"upcast of {show_tuple(shape)}:{show_tuple(stride)} by {n}: the strides that do not divide {n} leave "
            f"{show(sum(over))} over",
            needs_ge(n - 1 - sum(over)),
        )
    return out


def _upcast(s: Any, d: Any, n: int, over: list[Any]) -> Pair:
    if s.__class__ is tuple:
        return join([_upcast(x, y, n, over) for x, y in zip(s, d)])
    q = quotient(d, n)
    if q is not None:
        return s, q
    if d.__class__ is not int or d < 0 or d > n:
        raise MissingFact(f"upcast by {n}: the mode {show(s)}:{show(d)} begins inside groups", needs_div(n, d))
    k = -(-n // d)
    e = rounded_up(s, k)
    if e is None:
        ways = (*needs_div(k, s), f"T = ceil_div({show(s)},{k})")
        raise MissingFact(f"upcast by {n}: ceil({show(s)} / {k}) groups in the mode {show(s)}:{d}", ways)
    if k * d != n:
        over.append((e - 1) * (k * d - n))
    return e, 1


def downcast(shape: Any, stride: Any, n: int) -> Pair:
    """Each element as n neighbouring ones: the mode of stride 1 takes in the parts, other strides grow."""
    if shape.__class__ is tuple:
        return join([downcast(s, d, n) for s, d in zip(shape, stride)])
    if stride.__class__ is int and stride == 1:
        return shape * n, 1
    return shape, stride * n


# ---------------------------------------------------------------- coordinates


def _plus(a: Any, b: Any) -> Any:
    # A traced sum needs no `+ 0`.
    if a.__class__ is int and a == 0:
        return b
    return a if b.__class__ is int and b == 0 else a + b


def crd2idx(coord: Any, shape: Any, stride: Any) -> Any:
    """The offset of a coordinate of ints and symbols. An int that is nowhere inside the shape raises CoordinateError.

    A coordinate that is inside at some sizes only is taken as one, as an array or a traced integer would be.
    """
    if isinstance(coord, (tuple, list)):
        if shape.__class__ is not tuple or len(coord) != len(shape):
            raise CoordinateError(f"coordinate {coord!r} does not have the nesting of shape {show_tuple(shape)}")
        total: Any = 0
        for c, s, d in zip(coord, shape, stride):
            total = _plus(total, crd2idx(c, s, d))
        return total
    if coord.__class__ is not int and coord.__class__ is not P:
        return _t.crd2idx(coord, shape, stride)  # an array or a traced integer: its own arithmetic
    parts = split(coord, shape)
    total = 0
    for c, d in zip(leaves(parts), leaves(stride)):
        total = total + c * d
    return total


def split(index: Any, shape: Any) -> Any:
    """The coordinate of a flat index: remainders and quotients that the facts decide."""
    n = product(shape)
    if index.__class__ is int or index.__class__ is P:
        if holds(index, -1) or holds(n, index):
            raise CoordinateError(
                f"coordinate {show(index)} is outside 0..{show(n - 1)} of shape {show_tuple(shape)}", index
            )
    return _split(index, shape)


def _split(index: Any, shape: Any) -> Any:
    if shape.__class__ is not tuple:
        return index
    out = []
    last = len(shape) - 1
    for i, s in enumerate(shape):
        n = product(s)
        if i == last:
            part = index
        elif n.__class__ is int and n == 1:
            part = 0
        else:
            part, index = index % n, index // n
        out.append(_split(part, s))
    return tuple(out)


__all__ = ["crd2idx", "downcast", "split", "upcast"]
