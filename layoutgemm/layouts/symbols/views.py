"""Wider and narrower elements, and coordinates, of layouts with symbols. On (shape, stride) pairs."""

from __future__ import annotations

from typing import Any

from ...errors import CoordinateError, LayoutError
from .. import int_tuple as _t
from ..algebra import recast as int_recast
from ..algebra.divide import join
from ..algebra.recast import widened
from ..int_tuple import Pair, Shape, Stride, leaves, other_nesting, product
from ..int_tuple import show as show_tuple
from .conditions import holds, quotient, rounded_up
from .operations import has_symbols
from .polynomial import MissingFact, Polynomial, Scalar, needs_div, needs_ge, show

# ---------------------------------------------------------------- other widths of elements


def upcast(shape: Any, stride: Any, n: int) -> Pair:
    """Each n neighbouring elements as one group. A symbolic stride must be a multiple of n."""
    if not has_symbols(shape, stride):
        return int_recast.upcast(shape, stride, n)
    over: list[Scalar] = []
    out = _upcast(shape, stride, n, over)
    if over and not holds(sum(over), n - 1):
        raise MissingFact(
            f"upcast of {show_tuple(shape)}:{show_tuple(stride)} by {n}: the strides that do not divide {n} leave "
            f"{show(sum(over))} over",
            needs_ge(n - 1 - sum(over)),
        )
    return out


def _upcast(s: Any, d: Any, n: int, over: list[Scalar]) -> Pair:
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


def downcast(shape: Shape, stride: Stride, n: int) -> Pair:
    """Each element as n neighbouring ones. The modes of stride 1 take in the parts, other strides grow."""
    if has_symbols(shape, stride):
        _check_ones(stride, n, f"downcast of {show_tuple(shape)}:{show_tuple(stride)} by {n}")
        return widened(shape, stride, n, [i for i, d in enumerate(leaves(stride)) if d.__class__ is int and d == 1])
    return int_recast.downcast(shape, stride, n)


def _check_ones(stride: Stride, n: int, what: str) -> None:
    """Refuse a symbolic stride that may be 1, and a stride of -1. The mode of the first would take in the parts."""
    for d in leaves(stride):
        if n > 1 and (d == -1 if d.__class__ is int else not holds(2, d)):
            raise MissingFact(
                f"{what}: a mode of stride {show(d)}, and one of stride 1 takes in the parts", needs_ge(d - 2)
            )


def recast(shape: Shape, stride: Stride, new_bits: int, old_bits: int) -> Pair:
    """From elements of old_bits to elements of new_bits: whole elements of both, at every size."""
    if not has_symbols(shape, stride):
        return int_recast.recast(shape, stride, new_bits, old_bits)
    what = int_recast.recasting(shape, stride, new_bits, old_bits)
    down, up = int_recast.factors(new_bits, old_bits)
    S, D = shape, stride
    if down > 1:
        _check_ones(D, down, what)
        taking = int_recast.taker(S, D, new_bits, old_bits)
        ones = [s for s, d in zip(leaves(S), leaves(D)) if d.__class__ is int and d == 1]
        if len(ones) > 1 and not holds(2, leaves(S)[taking[0]]):
            extent = leaves(S)[taking[0]]
            raise MissingFact(f"{what}: the mode {show(extent)}:1 takes in the parts", needs_ge(extent - 2))
        S, D = widened(S, D, down, taking)
    if up == 1:
        return S, D
    # Only a mode known to be longer than 1 goes on where another ends.
    steps = {d for s, d in zip(leaves(S), leaves(D)) if s.__class__ is int and s > 1}
    for s, d in zip(leaves(S), leaves(D)):
        if s.__class__ is int:
            if s != 1 and d.__class__ is int and int_recast.not_whole(s, d, up, steps):
                raise LayoutError(f"{what}: {s} parts {d} apart are no whole number of elements of {up} parts")
        elif d.__class__ is int and 0 < d < up and (up % d or quotient(s, up // d) is None):
            raise MissingFact(
                f"{what}: {show(s)} parts {d} apart as whole elements of {up} parts",
                needs_div(up // d, s) if not up % d else (),
            )
    if (span := int_recast.span_of_group(S, D, up)) > up:
        raise LayoutError(f"{what}: modes overlap: one element of {up} parts takes in a span of {span}")
    return upcast(S, D, up)


# ---------------------------------------------------------------- coordinates


def _plus(a: Any, b: object) -> Any:
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
            raise other_nesting(coord, shape)
        total: Scalar = 0
        for c, s, d in zip(coord, shape, stride):
            total = _plus(total, crd2idx(c, s, d))
        return total
    if coord.__class__ is not int and coord.__class__ is not Polynomial:
        return _t.crd2idx(coord, shape, stride)  # an array or a traced integer: its own arithmetic
    parts = split(coord, shape)
    total = 0
    for c, d in zip(leaves(parts), leaves(stride)):
        total = total + c * d
    return total


def split(index: object, shape: Shape) -> Any:
    """The coordinate of a flat index: remainders and quotients that the facts decide."""
    n = product(shape)
    if index.__class__ is int or index.__class__ is Polynomial:
        if holds(index, -1) or holds(n, index):
            raise CoordinateError(
                f"coordinate {show(index)} is outside 0..{show(n - 1)} of shape {show_tuple(shape)}", index
            )
    return _split(index, shape)


def _split(index: object, shape: Shape) -> Any:
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
