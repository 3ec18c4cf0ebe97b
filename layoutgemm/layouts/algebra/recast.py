"""Views of the same memory in wider or narrower elements, and slices. All on (shape, stride) pairs."""

from __future__ import annotations

from itertools import count
from math import gcd
from typing import Any

from ...arguments import as_int
from ...errors import LayoutError
from ..basis import has_basis
from ..int_tuple import Modes, Pair, Shape, Stride, StrideEntry, crd2idx, leaves, other_nesting, scalar, show
from ..symbols.polynomial import Scalar


def factor(n: Scalar, what: str) -> int:
    """A checked factor >= 1."""
    return as_int(n, f"the factor of {what}", least=1)


def _refuse_basis(name: str, shape: Shape, stride: Stride) -> None:
    if has_basis(stride):
        raise LayoutError(
            f"{name} of {show(shape)}:{show(stride)}: coordinates have no width; recast the layout they index"
        )


def upcast(shape: Shape, stride: Stride, n: int) -> Pair:
    """Each n neighbouring elements as one group. R(c) = L(k*c) // n with k = ceil(n / stride) in each mode.

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


def downcast(shape: Shape, stride: Stride, n: int) -> Pair:
    """Each element as n neighbouring ones. Every mode of stride 1 takes in the parts, all other strides grow by n.

    That is CuTe's definition. Without a mode of stride 1 the result leads to the first part of each element. Two modes
    of stride 1 take in the parts twice, even where the extent of one is 1.
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


def widened(shape: object, stride: object, n: int, taking: list[int]) -> Pair:
    """The entries numbered `taking` n times as long, all other strides n times as large."""
    place = count()

    def part(s: Any, d: Any) -> Pair:
        if s.__class__ is tuple:
            pairs = [part(x, y) for x, y in zip(s, d)]
            return tuple([x for x, _ in pairs]), tuple([y for _, y in pairs])
        return (s * n, d) if next(place) in taking else (s, d * n)

    return part(shape, stride)


def recasting(shape: Shape, stride: Stride, new_bits: int, old_bits: int) -> str:
    """The operation as messages name it."""
    return f"recast of {show(shape)}:{show(stride)} from {old_bits} to {new_bits} bits"


def taker(shape: Shape, stride: Stride, new_bits: int, old_bits: int) -> list[int]:
    """The entry that takes in the parts of an element. Of those of stride 1 it is the one longer than 1, else the
    first.

    Raises LayoutError where two are longer: they overlap, and an element has its parts once. Raises it where no entry
    has stride 1: the parts would need a mode of their own.
    """
    S, D = leaves(shape), leaves(stride)
    ones = [i for i, d in enumerate(D) if d.__class__ is int and d == 1]
    long = [i for i in ones if not (S[i].__class__ is int and S[i] == 1)]
    if len(long) > 1:
        names = " and ".join([f"{S[i]}:1" for i in long[:2]])
        what = recasting(shape, stride, new_bits, old_bits)
        raise LayoutError(f"{what}: the modes {names} overlap, and both would take in the parts of an element")
    if not ones:
        parts = factors(new_bits, old_bits)[0]
        raise LayoutError(
            f"{recasting(shape, stride, new_bits, old_bits)}: no mode has stride 1, so none takes in the {parts} parts "
            f"of an element: at 0 the parts are 0 to {parts - 1}, and only the first would be left. downcast({parts}) "
            f"leads to the first ones"
        )
    return (long or ones)[:1]


def recast(shape: Shape, stride: Stride, new_bits: int, old_bits: int) -> Pair:
    """From elements of old_bits to elements of new_bits. The same bits, so whole elements of both, or LayoutError.

    Down to the widest element that both are made of, where one mode takes in the parts, and up from there.
    """
    _refuse_basis("recast", shape, stride)
    down, up = factors(new_bits, old_bits)
    S, D = shape, stride
    if down > 1:
        taking = taker(shape, stride, new_bits, old_bits)
        S, D = _downcast(shape, stride, down)
        if leaves(stride).count(1) > 1:
            S, D = widened(shape, stride, down, taking)
    if up == 1:
        return S, D
    steps = {d for s, d in zip(leaves(S), leaves(D)) if s != 1}
    for s, d, whole in zip(leaves(S), leaves(D), leaves(shape)):
        if s != 1 and not_whole(s, d, up, steps):
            what = recasting(shape, stride, new_bits, old_bits)
            raise LayoutError(
                f"{what}: the mode of extent {whole} holds {s} times {old_bits // down} bits at a stride of {d} of "
                f"them, and {new_bits} bits hold {up}: no whole number of elements"
            )
    if (span := span_of_group(S, D, up)) > up:
        what = recasting(shape, stride, new_bits, old_bits)
        raise LayoutError(
            f"{what}: modes overlap, so one element takes in a span of {span} times {old_bits // down} bits, and "
            f"{new_bits} bits hold {up}"
        )
    return upcast(S, D, up)


def span_of_group(shape: object, stride: object, n: int) -> int:
    """The span of the entries that one element of n parts takes in. It is n at most, unless modes overlap.

    >>> span_of_group((6, 4), (1, 1), 2), span_of_group((2, 4), (1, 2), 4)
    (3, 4)
    """
    span = 1
    for s, d in zip(leaves(shape), leaves(stride)):
        if d.__class__ is int and 0 < d < n:
            # A symbolic extent is a multiple of the entries in an element.
            taken = -(-n // d)
            span += ((min(s, taken) if s.__class__ is int else taken) - 1) * d
    return span


def not_whole(s: int, d: int, n: int, steps: set[int]) -> bool:
    """True if elements of n neighbours do not divide the mode s:d.

    The mode fills elements, or it ends inside one and a mode of a stride in `steps` goes on where it ends.
    """
    if d <= 0 or d >= n:
        return False
    return bool(n % d) or bool(s % (n // d) and (n % (s * d) or s * d not in steps))


def factors(new_bits: int, old_bits: int) -> tuple[int, int]:
    """Down to the widest element that both are made of, and up from there. 16 -> 24 bits is down to 8 and up to 24."""
    g = gcd(new_bits, old_bits)
    return old_bits // g, new_bits // g


# ---------------------------------------------------------------- slices


def select(coord: object, shape: Any, stride: Any, kept: bool) -> Modes:
    """The modes marked by None (kept), or by an integer (not kept), as two lists."""
    if coord is None:
        return ([shape], [stride]) if kept else ([], [])
    if isinstance(coord, (tuple, list)):
        if shape.__class__ is not tuple or len(coord) != len(shape):
            raise other_nesting(coord, shape)
        S: list[Scalar] = []
        D: list[StrideEntry] = []
        for c, s, d in zip(coord, shape, stride):
            ks, kd = select(c, s, d, kept)
            S += ks
            D += kd
        return S, D
    if coord.__class__ is not int:
        scalar(coord)
    return ([], []) if kept else ([shape], [stride])


def offset(coord: Any, shape: Any, stride: Any) -> Any:
    """The offset of the modes that have an integer, under integer strides."""
    if coord is None:
        return 0
    if isinstance(coord, (tuple, list)):
        if shape.__class__ is not tuple or len(coord) != len(shape):
            raise other_nesting(coord, shape)
        total: Scalar = 0
        for c, s, d in zip(coord, shape, stride):
            part = offset(c, s, d)
            if not (part.__class__ is int and part == 0):
                total = part if total.__class__ is int and total == 0 else total + part
        return total
    return crd2idx(coord, shape, stride)
