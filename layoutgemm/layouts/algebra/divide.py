"""Divide and product: a layout split by a tiler, or repeated over one.

A tiler is an int (the layout n:1), a Layout, or a tuple of tilers and None, one for each mode, where None leaves the
mode alone. Functions take and return (shape, stride) pairs; a tiler comes as the caller gave it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...arguments import as_int, shown
from ...errors import CompositionError, LayoutError
from ..basis import has_basis
from ..int_tuple import (
    BEYOND,
    Pair,
    Shape,
    Stride,
    StrideEntry,
    as_nested,
    as_order,
    coal,
    compact,
    leaves,
    modes_for,
    pack,
    product,
    rank,
    show,
    show_coord,
    transform,
)
from ..symbols.dims import is_sympy
from ..symbols.polynomial import Polynomial, Scalar
from .compose import compose
from .inverse import complement, complement_exact

Split = Callable[[Shape, Stride, Pair], Pair]
Gather = Callable[[Split, Any, Any, object], Pair]
Copies = Callable[[Any, Any, str, Shape], Scalar]


def as_tiler(tiler: object) -> Any:
    """A caller's tiler: ints, layouts, None, symbols, and tuples of them. Raises LayoutError."""
    if tiler.__class__ is int or getattr(tiler.__class__, "_plain", False):
        return tiler
    if tiler.__class__ is tuple:
        for t in tiler:
            if t.__class__ is not int and not getattr(t.__class__, "_plain", False):
                break
        else:
            return tiler
    return as_nested(tiler, "a tiler that is no Layout and no tuple", _entry)


def _entry(x: object, what: str) -> Any:
    # _plain is the mark of a Layout; tensors and arrays have strides too
    if x is None or getattr(x.__class__, "_plain", False) or x.__class__ is Polynomial or is_sympy(x):
        return x
    if hasattr(x, "source_mask"):
        raise LayoutError(
            f"{shown(x)} is no tiler: a swizzle permutes offsets, behind a layout, as {shown(x)} @ layout"
        )
    return as_int(x, what)


def tiler_pair(tiler: Any) -> Pair:
    """Shape and stride of a tiler that is an int or a layout."""
    if tiler.__class__ is int:
        if not 0 < tiler < BEYOND:
            as_int(tiler, "a tiler's extent", least=1)
        return tiler, 1 if tiler > 1 else 0
    if tiler is None or tiler.__class__ is tuple:
        raise LayoutError(f"a tiler for the whole layout is an int or a Layout, not {show_coord(tiler)}")
    return tiler.shape, tiler.stride


def mode(shape: Any, stride: Any, i: int) -> Pair:
    """Mode i as (shape, stride); an integer shape is its own only mode."""
    return (shape[i], stride[i]) if shape.__class__ is tuple else (shape, stride)


def join(pairs: list[Pair]) -> Pair:
    """One layout with the given modes."""
    return tuple([s for s, _ in pairs]), tuple([d for _, d in pairs])


def composed(shape: Shape, stride: Stride, pair: Pair) -> Pair:
    """A o T."""
    return compose(shape, stride, *pair)


def by_mode(split: Split, shape: Any, stride: Any, tiler: object) -> Pair:
    """`split` applied mode by mode; None, and modes without a tiler, stay as they are."""
    if tiler is None:
        return shape, stride
    if tiler.__class__ is tuple:
        shape, stride = modes_for(tiler, shape, stride, "tiler")
        out = [by_mode(split, *mode(shape, stride, i), t) for i, t in enumerate(tiler)]
        return join(out + [mode(shape, stride, i) for i in range(len(tiler), len(shape))])
    return split(shape, stride, tiler_pair(tiler))


def zipped(split: Split, shape: Any, stride: Any, tiler: object) -> Pair:
    """`split` mode by mode: first halves become mode 0. Second halves and the rest mode 1."""
    if tiler is None:
        return (1, shape), (0, stride)
    if tiler.__class__ is tuple:
        if shape.__class__ is not tuple or len(tiler) > len(shape):
            shape, stride = modes_for(tiler, shape, stride, "tiler")
        s0, d0, s1, d1 = [], [], [], []
        for s, d, t in zip(shape, stride, tiler):
            if t.__class__ is int and 0 < t < BEYOND:  # nearly all of them
                s, d = split(s, d, (t, 1 if t > 1 else 0))
            else:
                s, d = zipped(split, s, d, t) if t is None or t.__class__ is tuple else split(s, d, tiler_pair(t))
            s0.append(s[0])
            d0.append(d[0])
            s1.append(s[1])
            d1.append(d[1])
        tail = len(tiler)
        return (tuple(s0), (*s1, *shape[tail:])), (tuple(d0), (*d1, *stride[tail:]))
    return split(shape, stride, tiler_pair(tiler))


def tiled(split: Split, shape: Shape, stride: Stride, tiler: object) -> Pair:
    """`zipped` with the modes of mode 1 at the top."""
    return unpack(zipped(split, shape, stride, tiler), False)


def flat(split: Split, shape: Shape, stride: Stride, tiler: object) -> Pair:
    """`zipped` with the modes of both modes at the top."""
    return unpack(zipped(split, shape, stride, tiler), True)


def unpack(pair: Pair, first: bool) -> Pair:
    """(X, (y, z)) becomes (X, y, z). With `first`, ((w, x), (y, z)) becomes (w, x, y, z)."""
    (s0, s1), (d0, d1) = pair
    if not first or s0.__class__ is not tuple:
        s0, d0 = (s0,), (d0,)
    if s1.__class__ is not tuple:
        s1, d1 = (s1,), (d1,)
    return s0 + s1, d0 + d1


def divide(shape: Shape, stride: Stride, pair: Pair) -> Pair:
    """A o (T, T*), where T* is the complement of T up to size(A). Mode 0 is a tile, mode 1 runs over the tiles.

    T* counts ceil(size(A) / end of T) tiles, so the last ones may hang over the end of A. There A's last entry runs on,
    as in every composition: the definition holds for them too. A is what one tile divides:

        int or Layout   the whole layout, flattened; its end is the end of its last entry, whatever its rank
        tuple           each mode by its own tile, a nested mode as a whole; each has its own end

    So (10):(1) and the first mode of (10,2):(1,60) take tiles of 4. Where no layout is A o (T, T*), the entry in which
    T ends is rounded up to whole tiles, as CuTe rounds it: (5,2):(1,60) by 2 is (2,(3,2)):(1,(2,60)), the divide of
    (6,2):(1,60). Each element of A is in one tile still, and the others lie past the end of that entry. An entry of
    extent 1 at the end has no such place: (10,1):(1,1) is divided as 10:1.
    Raises CompositionError where that has no layout either, and LayoutError where T and its translates leave out an
    element of A. What they leave out past the end of A is no element: (2,2):(3,8) divides 6:1, and not 7:1.
    """
    s, d = pair
    size = product(shape)
    cs, cd = complement_exact(s, d, size, "a divide", size)
    try:
        return compose(shape, stride, (s, cs), (d, cd))
    except CompositionError:
        rounded = _rounded(shape, stride, pair)
        if rounded is None:
            raise
        size = product(rounded[0])
        try:
            cs, cd = complement_exact(s, d, size, "a divide", size)
            return compose(*rounded, (s, cs), (d, cd))
        except LayoutError:
            pass
        raise


def _rounded(shape: Shape, stride: Stride, pair: Pair) -> Pair | None:
    """A with the entry in which T ends rounded up to whole tiles; None where T passes that entry, or begins inside one.

    T reaches no further than that entry, so A and the rounded one have the same values at T.
    """
    S, D = coal(shape, stride)
    entries = [(n, d) for n, d in zip(leaves(pair[0]), leaves(pair[1])) if n != 1]
    reach = 1 + sum([(n - 1) * d for n, d in entries])
    end = max([n * d for n, d in entries], default=1)
    below = 1
    for i, n in enumerate(S):
        if reach <= below * n or i == len(S) - 1:
            if end % below:
                return None
            S[i] = -(-n // (end // below)) * (end // below) if end > below else n
            return pack(S, D)
        below *= n
    return None


def multiply(shape: Shape, stride: Stride, pair: Pair) -> Pair:
    """(A, complement of A o B). Mode 0 is A, mode 1 places copies of it, disjoint, in the order of B."""
    s, d = pair
    reach: Scalar = 1
    for n, e in zip(leaves(s), leaves(d)):
        if e.__class__ is not int:
            refuse_coordinates(s, d)
        if n != 1 and e < 0:
            raise LayoutError(
                f"a product over {show(s)}:{show(d)}: mode {n}:{e} has a negative stride, and copies count up"
            )
        reach += (n - 1) * e
    size = product(shape)
    cs, cd = complement(shape, stride, size * reach)
    if product(cs) < reach:
        # A leaves gaps that its copies do not fill. The copies past its end begin at its end, and go on without one.
        end = max(n * e for n, e in zip(leaves(shape), leaves(stride)))
        cs, cd = complement(shape, stride, end * reach)
    s, d = compose(cs, cd, s, d)
    return (shape, s), (stride, d)


def refuse_coordinates(shape: Shape, stride: Stride) -> None:
    """Raise LayoutError for a product over a layout that leads to coordinates."""
    if has_basis(stride):
        raise LayoutError(f"a product over {show(shape)}:{show(stride)}, which leads to coordinates: copies count")


def blocked(split: Split, shape: Shape, stride: Stride, tiler: object) -> Pair:
    """Both halves of each mode in one mode, the block first."""
    return interleave((shape, stride), tiler, False, split)


def raked(split: Split, shape: Shape, stride: Stride, tiler: object) -> Pair:
    """Both halves of each mode in one mode, coalesced, the tiler first."""
    return interleave((shape, stride), tiler, True, split)


def interleave(block: Pair, tiler: object, raked: bool, split: Split = multiply) -> Pair:
    """Blocked or raked product: the two halves of `split` paired mode by mode."""
    halves = _halves(split, block, whole(tiler))
    return join([pack(*coal((t, s), (e, d))) for (s, t), (d, e) in halves] if raked else halves)


def _halves(split: Split, block: Pair, tiler: Pair) -> list[Pair]:
    """The halves of `split` paired mode by mode, of operands padded to one rank."""
    r = max(rank(block[0]), rank(tiler[0]))
    (s0, s1), (d0, d1) = split(*padded_to(block, r), padded_to(tiler, r))
    return [((s, t), (d, e)) for s, t, d, e in zip(s0, s1, d0, d1)]


def whole(tiler: object) -> Pair:
    """Shape and stride of the tiler of a blocked or raked product. Raises LayoutError for a tuple and None."""
    if tiler is None or tiler.__class__ is tuple:
        what = "None" if tiler is None else f"the tuple {show_coord(tiler)}"
        raise LayoutError(f"a blocked or raked product is over an int or a Layout, not {what}")
    return tiler_pair(tiler)


def padded_to(pair: Pair, r: int) -> Pair:
    """The pair with modes 1:0 appended until it has r of them."""
    s, d = pair
    if s.__class__ is not tuple:
        s, d = (s,), (d,)
    return s + (1,) * (r - len(s)), d + (0,) * (r - len(d))


def ordered(shape: Any, order: Any) -> Any:
    """The strides of the compact layout whose modes come in the given order, smallest first.

    An int of the order ranks a whole mode, whose entries run left to right; no two ranks may be equal.
    """
    flat = leaves(shape)
    ranks = _orders(shape, as_order(order))
    strides: list[StrideEntry] = [0] * len(flat)
    width: Scalar = 1
    for i in sorted(range(len(flat)), key=ranks.__getitem__):
        strides[i] = width
        width *= flat[i]
    entries = iter(strides)
    return transform(lambda _: next(entries), shape)


def _orders(shape: Shape, order: object) -> list[int]:
    """The rank of every entry of the shape, from left to right. Raises LayoutError where two modes share one."""
    groups = _ranks(shape, order)
    if len({rank for rank, _ in groups}) < len(groups):
        raise LayoutError(
            f"order {show_coord(order)}: two modes of {show(shape)} have one rank, and neither comes first"
        )
    return [rank for rank, n in groups for _ in range(n)]


def _ranks(shape: object, order: Any) -> list[tuple[int, int]]:
    """(rank, number of entries) of every mode that the order ranks, from left to right."""
    if order.__class__ is tuple:
        if shape.__class__ is not tuple or len(order) != len(shape):
            raise LayoutError(
                f"order {show_coord(order)} does not have the nesting of {show(shape)}: one rank for each mode"
            )
        return [x for s, o in zip(shape, order) for x in _ranks(s, o)]
    return [(order, len(leaves(shape)))]


def copies(extent: int, size: int, where: str, block: Shape) -> int:
    """The number of blocks along a mode of the target. Raises LayoutError, which begins with `where`."""
    if extent % size:
        raise LayoutError(f"{where} has extent {extent}, no multiple of the block's {size} ({show(block)})")
    return extent // size


def tile_to_shape(
    block: Pair, shape: object, order: object = None, split: Split = multiply, copies: Copies = copies
) -> Pair:
    """The block repeated until it fills `shape`, tiles in `order` (column-major when None)."""
    target = shape if shape.__class__ is tuple else (shape,)
    r = len(target)
    if (len(block[0]) if block[0].__class__ is tuple else 1) > r:
        raise LayoutError(f"a block of shape {show(block[0])} has more modes than the target {show(shape)}")
    tiles = []
    for i, (s, t) in enumerate(zip(padded_to(block, r)[0], target)):
        where = f"tile_to_shape: mode {i} of the target {show(shape)}"
        tiles.append(copies(product(t), product(s), where, block[0]))
    grid = tuple(tiles)
    if all(n.__class__ is int and n == 1 for n in grid):
        # The block itself, which needs no complement: its values may repeat.
        return join([((s, 1), (d, 0)) for s, d in zip(*padded_to(block, r))])
    strides = compact(grid) if order is None else ordered(grid, order)
    # The stride of a single tile is never used; CuTe prints 0.
    strides = tuple([0 if n == 1 else d for n, d in zip(grid, strides)])
    return join(_halves(split, block, (grid, strides)))
