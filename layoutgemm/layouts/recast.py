"""Views of the same memory in wider or narrower elements, and slices. All on (shape, stride) pairs."""

from __future__ import annotations

from math import gcd
from typing import Any

from ..errors import CoordinateError, LayoutError
from .basis import has_basis
from .inttuple import as_int, crd2idx, show

Pair = tuple[Any, Any]


def factor(n: Any, what: str) -> int:
    """A checked factor >= 1."""
    n = as_int(n, f"the factor of {what}")
    if n < 1:
        raise LayoutError(f"the factor of {what} must be at least 1, not {n}")
    return n


def _refuse_basis(name: str, shape: Any, stride: Any) -> None:
    if has_basis(stride):
        raise LayoutError(
            f"{name} of {show(shape)}:{show(stride)}: coordinates have no width; recast the layout they index"
        )


def upcast(shape: Any, stride: Any, n: int) -> Pair:
    """Each n neighbouring elements as one group, R(c) = L(k*c) // n with k = ceil(n / stride) in each mode.

    A mode of stride d < n has k entries in a group, so its extent becomes ceil(extent / k) and its stride 1; other
    strides are divided by n. The last group of a mode may be partly filled: that rounding is CuTe's definition.
    """
    _refuse_basis("upcast", shape, stride)
    rest: list[tuple[int, int, int, int]] = []
    out = _upcast(shape, stride, n, rest)
    # L(k*c) = n*R(c) + the sum of c*e; the floor is R(c) exactly as long as that sum stays in 0..n-1.
    for _, e, extent, d in rest:
        if e < 0 or (d < 0 and e):
            raise LayoutError(
                f"upcast of {show(shape)}:{show(stride)} by {n}: the stride of {extent}:{d} is larger than {n} and no "
                f"multiple of it, so its entries begin inside groups"
            )
    over = sum([(s - 1) * e for s, e, _, _ in rest])
    if over >= n:
        modes = ", ".join([f"{extent}:{d}" for s, e, extent, d in rest if e])
        raise LayoutError(
            f"upcast of {show(shape)}:{show(stride)} by {n}: the strides of {modes} do not divide {n}, and what "
            f"they leave over adds up to {over}, a whole group"
        )
    return out


def _upcast(shape: Any, stride: Any, n: int, rest: list[tuple[int, int, int, int]]) -> Pair:
    if shape.__class__ is tuple:
        pairs = [_upcast(s, d, n, rest) for s, d in zip(shape, stride)]
        return tuple([s for s, _ in pairs]), tuple([d for _, d in pairs])
    if stride % n == 0:
        return shape, stride // n
    k = -(-n // stride) if 0 < stride < n else 1
    s, d = -(-shape // k), -(-stride // n)
    if s > 1:
        rest.append((s, k * stride - n * d, shape, stride))
    return s, d


def downcast(shape: Any, stride: Any, n: int) -> Pair:
    """Each element as n neighbouring ones: a mode of stride 1 takes in the parts, all other strides grow by n.

    That is CuTe's definition: without a mode of stride 1 the result leads to the first part of each element.
    """
    _refuse_basis("downcast", shape, stride)
    return _downcast(shape, stride, n)


def _downcast(shape: Any, stride: Any, n: int) -> Pair:
    if shape.__class__ is tuple:
        pairs = [_downcast(s, d, n) for s, d in zip(shape, stride)]
        return tuple([s for s, _ in pairs]), tuple([d for _, d in pairs])
    if stride == 1:
        return shape * n, 1
    if stride == -1 and n > 1 and shape > 1:
        raise LayoutError(f"downcast by {n}: the mode {shape}:-1 runs backwards, and the parts of an element do not")
    return shape, stride * n


def recast(shape: Any, stride: Any, new_bits: int, old_bits: int) -> Pair:
    """From elements of old_bits to elements of new_bits: an upcast, a downcast, or the one after the other."""
    if new_bits % old_bits == 0:
        return upcast(shape, stride, new_bits // old_bits)
    if old_bits % new_bits == 0:
        return downcast(shape, stride, old_bits // new_bits)
    # Through the widest element that both are made of: 16 -> 24 bits is down to 8 and up to 24.
    g = gcd(new_bits, old_bits)
    return upcast(*downcast(shape, stride, old_bits // g), new_bits // g)


# ---------------------------------------------------------------- slices


def select(coord: Any, shape: Any, stride: Any, kept: bool) -> tuple[list[Any], list[Any]]:
    """The modes that None stands for (kept), or those that have an integer (not kept), as two lists."""
    if coord is None:
        return ([shape], [stride]) if kept else ([], [])
    if isinstance(coord, (tuple, list)):
        if shape.__class__ is not tuple or len(coord) != len(shape):
            raise CoordinateError(f"coordinate {coord!r} does not have the nesting of shape {show(shape)}")
        S: list[Any] = []
        D: list[Any] = []
        for c, s, d in zip(coord, shape, stride):
            ks, kd = select(c, s, d, kept)
            S += ks
            D += kd
        return S, D
    return ([], []) if kept else ([shape], [stride])


def offset(coord: Any, shape: Any, stride: Any) -> Any:
    """The offset of the modes that have an integer, under integer strides."""
    if coord is None:
        return 0
    if isinstance(coord, (tuple, list)):
        if shape.__class__ is not tuple or len(coord) != len(shape):
            raise CoordinateError(f"coordinate {coord!r} does not have the nesting of shape {show(shape)}")
        total: Any = 0
        for c, s, d in zip(coord, shape, stride):
            part = offset(c, s, d)
            if not (part.__class__ is int and part == 0):
                total = part if total.__class__ is int and total == 0 else total + part
        return total
    return crd2idx(coord, shape, stride)
