"""Complement, one-sided inverses and the null space of a layout.

All of them read a layout as a chain: modes in order of their strides, each beginning where the one below ends or
further up. They take and return (shape, stride) pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from ...errors import LayoutError
from ..basis import has_basis
from ..int_tuple import Pair, Shape, Stride, StrideEntry, coal, coalesce, leaves, pack, show
from ..symbols.polynomial import Scalar
from .compose import compose


def _refuse_basis(name: str, shape: Shape, stride: Stride) -> None:
    if stride.__class__ is not int and has_basis(stride):
        raise LayoutError(
            f"{name} of {show(shape)}:{show(stride)}: its values are coordinates, and {name} is defined on offsets"
        )


def complement(shape: Shape, stride: Stride, bound: Scalar = 1) -> Pair:
    """The translates of the layout's image that lie disjoint below `bound`, as a layout.

    Modes of extent 1 or stride 0 are dropped. In order of strides each mode must begin where the one below ends or
    above. The floor(stride / end) translates that fit in the gap are a mode of the complement. The last mode goes on to
    ceil(bound / end). Both roundings are CuTe's definition; `complement_exact` refuses the first.
    """
    S, D, _ = _gaps(shape, stride, bound)
    return pack(S, D)


def complement_exact(shape: Shape, stride: Stride, bound: Scalar, what: str, size: int | None = None) -> Pair:
    """The complement where its translates leave out nothing below `size`; `what` needs it so.

    A `size` of None is the end of the layout: then nothing at all is left out.
    """
    S, D, slack = _gaps(shape, stride, bound)
    if slack is not None and (size is None or slack[0] // slack[1] * slack[1] < size):
        d, end = slack
        first = end * (d // end)
        left = f"offset {first} is" if first == d - 1 else f"offsets from {first} to {d - 1} are"
        raise LayoutError(
            f"{what} needs the complement of {show(shape)}:{show(stride)} to leave nothing out: the stride {d} is no "
            f"multiple of {end}, where the modes of smaller stride end, so the {left} in no translate"
        )
    return pack(S, D)


def _gaps(shape: Any, stride: Any, bound: Scalar) -> tuple[list[Scalar], list[StrideEntry], Pair | None]:
    """The complement's modes, and the first (stride, end) whose quotient was rounded."""
    if shape.__class__ is not tuple:
        modes = [(stride, shape)] if shape != 1 and stride != 0 else []
    else:
        modes = [m for m in zip(leaves(stride), leaves(shape)) if m[1] != 1 and m[0] != 0]
        try:
            modes.sort()
        except TypeError:
            _refuse_basis("complement", shape, stride)
            raise
    if not modes:  # coordinates of extent 1 were left out
        _refuse_basis("complement", shape, stride)
    S: list[Scalar] = []
    D: list[StrideEntry] = []
    slack = None
    end: Any = 1
    for d, s in modes:
        if d != end:
            if d.__class__ is not int:
                _refuse_basis("complement", shape, stride)
            gap = d // end
            if gap < 1:
                _refuse_overlap(shape, stride, d, s, end)
            if slack is None and d % end:
                slack = d, end
            if gap != 1:
                S.append(gap)
                D.append(end)
        end = d * s
    top = -(-bound // end)
    if top > 1:
        S.append(top)
        D.append(end)
    return S, D, slack


def _refuse_overlap(shape: Shape, stride: Stride, d: Scalar, s: Scalar, end: Scalar) -> None:
    if d < 0:
        raise LayoutError(
            f"complement of {show(shape)}:{show(stride)}: mode {s}:{d} has a negative stride; the complement counts "
            f"offsets from 0 up"
        )
    raise LayoutError(
        f"complement of {show(shape)}:{show(stride)}: mode {s}:{d} begins at {d}, below {end}, where the modes of "
        f"smaller stride end; a complement needs each mode to begin where those end, or above"
    )


def right_inverse(shape: Shape, stride: Stride) -> Pair:
    """The largest R found with L(R(i)) = i. A mode of stride 1, then one whose stride is where that ends, and so on.

    For an injective layout without negative strides no larger R exists: whatever the chain cannot continue, no
    coordinate reaches.
    """
    if shape.__class__ is not tuple:
        _refuse_basis("right_inverse", shape, stride)
        return (shape, 1) if stride == 1 and shape != 1 else (1, 0)
    S = leaves(shape)
    D = leaves(stride)
    modes = []
    w: Scalar = 1
    for s, d in zip(S, D):
        if d.__class__ is not int:
            _refuse_basis("right_inverse", shape, stride)
        if s != 1:
            if d > 0:
                modes.append((d, s, w))
            w *= s
    modes.sort()
    end: Scalar = 1
    chain = []
    for d, s, w in modes:
        if d != end:
            # A gap ends the chain. A stride below the end overlaps: then the order of the strides need not be best.
            if d < end:
                chain = _longest_chain(modes)
            break
        end = d * s
        chain.append((s, w))
    return coalesce(tuple([s for s, _ in chain]), tuple([w for _, w in chain]))


def _longest_chain(modes: list[tuple[int, int, Scalar]]) -> list[tuple[Scalar, Scalar]]:
    """The chain of modes d = 1, d = s, ... that ends highest; among equals the first by stride."""
    best: dict[Scalar, tuple[Scalar, list[tuple[Scalar, Scalar]]]] = {}

    def longest(end: Scalar) -> tuple[Scalar, list[tuple[Scalar, Scalar]]]:
        if end not in best:
            best[end] = end, []
            for d, s, w in modes:
                if d == end:
                    top, chain = longest(end * s)
                    if top > best[end][0]:
                        best[end] = top, [(s, w)] + chain
        return best[end]

    return longest(1)[1]


def left_inverse(shape: Shape, stride: Stride) -> Pair:
    """R with R(L(i)) = i. The right inverse of (L, complement of L), or of a padded L its digits.

    Raises LayoutError where the complement leaves something out and a stride does not divide the next.
    """
    for s, d in zip(leaves(shape), leaves(stride)):
        if s != 1 and d == 0:
            raise LayoutError(
                f"left_inverse of {show(shape)}:{show(stride)}: mode {s}:0 sends all its coordinates to one offset, so "
                f"the layout is not injective; filter() leaves such modes out",
            )
    _refuse_basis("left_inverse", shape, stride)
    try:
        rest = complement_exact(shape, stride, 1, "it")
    except LayoutError as error:
        padded = _digits(shape, stride)
        if padded is None:
            raise LayoutError(f"left_inverse of {show(shape)}:{show(stride)}: {error}") from None
        return padded
    return right_inverse((shape, rest[0]), (stride, rest[1]))


def _digits(shape: Shape, stride: Stride) -> Pair | None:
    """The left inverse of modes of which each stride divides the next, None for others.

    Each mode is a digit of the offset. (8,4):(1,12) has digits in (12,4), and (12,4):(1,8) reads them.
    """
    modes: list[tuple[int, int, int]] = []
    w = 1
    for s, d in zip(leaves(shape), leaves(stride)):
        if not isinstance(s, int) or not isinstance(d, int):
            return None
        if s != 1:
            modes.append((d, s, w))
        w *= s
    modes.sort()
    extents, strides = [modes[0][0]], [0]
    for (d, s, w), (above, _, _) in zip(modes, [*modes[1:], (modes[-1][0] * modes[-1][1], 1, 1)]):
        if d < 1 or above % d or s * d > above:
            return None
        extents.append(above // d)
        strides.append(w)
    return coalesce(tuple(extents), tuple(strides))


def nullspace(shape: Shape, stride: Stride) -> Pair:
    """The coordinates that the modes of stride 0 spend. R with L(x + R(i)) = L(x) for every x with 0 in those modes."""
    S: list[Scalar] = []
    D: list[Scalar] = []
    w: Scalar = 1
    for s, d in zip(leaves(shape), leaves(stride)):
        if s != 1 and d == 0:
            S.append(s)
            D.append(w)
        w *= s
    return pack(S, D)


def max_common(a: Pair, b: Pair) -> Pair:
    """The largest R with A(R(i)) = B(R(i)) = i along B's right inverse. What both layouts store side by side."""
    S, D = coal(*right_inverse(*b))
    # A follows B's inverse through its first modes, and through a part of the next one.
    whole = _last(len(S), lambda k: _counts(a, S[:k], D[:k]))
    rs, rd = S[:whole], D[:whole]
    if whole < len(S):
        n = _last(S[whole], lambda n: _counts(a, [*rs, n], [*rd, D[whole]]))
        if n > 1:
            rs, rd = [*rs, n], [*rd, D[whole]]
    return pack(rs, rd)


def _last(top: int, holds: Callable[[int], bool]) -> int:
    """The largest n <= top that holds. What holds for n holds below, and for the first n."""
    if not top or holds(top):
        return top
    low, high = 0, top
    while high - low > 1:
        n = (low + high) // 2
        low, high = (n, high) if holds(n) else (low, n)
    return low


def _counts(a: Pair, extents: list[int], strides: list[int]) -> bool:
    """True if A leads from these modes to 0, 1, 2 and so on, inside of its domain."""
    if sum([(n - 1) * d for n, d in zip(extents, strides)]) >= prod(leaves(a[0])):
        return False
    try:
        S, D = coal(*compose(*a, tuple(extents), tuple(strides)))
    except LayoutError:
        return False
    return not S or (len(S) == 1 and D[0] == 1)
