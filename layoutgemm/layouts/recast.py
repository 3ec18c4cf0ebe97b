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
        raise LayoutError(f"{name} of {show(shape)}:{show(stride)}: coordinates have no width; recast the layout they index")


def upcast(shape: Any, stride: Any, n: int) -> Pair:
    """Each n neighbouring elements as one: the offset L(c) becomes L(c) // n on the coordinates that begin one."""
    _refuse_basis("upcast", shape, stride)
    inside: list[tuple[int, int]] = []
    out = _upcast(shape, stride, n, inside)
    used = sum((s - 1) * d for s, d in inside)
    if used >= n:
        modes = ", ".join(f"{s}:{d}" for s, d in inside)
        raise LayoutError(
            f"upcast of {show(shape)}:{show(stride)} by {n}: its parts {modes} inside one new element reach {used}, past "
            f"the {n} old elements that it has"
        )
    return out


def _upcast(shape: Any, stride: Any, n: int, inside: list[tuple[int, int]]) -> Pair:
    if shape.__class__ is tuple:
        pairs = [_upcast(s, d, n, inside) for s, d in zip(shape, stride)]
        return tuple([s for s, _ in pairs]), tuple([d for _, d in pairs])
    if stride % n == 0:
        return shape, stride // n
    if shape == 1:
        return 1, -(-stride // n)
    if stride > 0 and n % stride == 0:
        k = n // stride
        if shape % k == 0:
            inside.append((k, stride))
            return shape // k, 1
        if k % shape == 0:
            inside.append((shape, stride))
            return 1, 1
        raise LayoutError(
            f"upcast by {n}: the mode {shape}:{stride} has {k} entries to a new element, and neither of {shape} and {k} "
            f"divides the other"
        )
    raise LayoutError(f"upcast by {n}: the stride of the mode {shape}:{stride} is no multiple of {n} and does not divide it")


def downcast(shape: Any, stride: Any, n: int) -> Pair:
    """Each element as n neighbouring ones: the mode of stride 1 becomes n times longer, all other strides grow."""
    _refuse_basis("downcast", shape, stride)
    unit: list[Any] = []
    out = _downcast(shape, stride, n, unit)
    if n > 1 and len([s for s in unit if s > 1]) > 1:
        raise LayoutError(
            f"downcast of {show(shape)}:{show(stride)} by {n}: two modes have stride 1, and both would be cut into parts"
        )
    return out


def _downcast(shape: Any, stride: Any, n: int, unit: list[Any]) -> Pair:
    if shape.__class__ is tuple:
        pairs = [_downcast(s, d, n, unit) for s, d in zip(shape, stride)]
        return tuple([s for s, _ in pairs]), tuple([d for _, d in pairs])
    if stride == 1:
        unit.append(shape)
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
