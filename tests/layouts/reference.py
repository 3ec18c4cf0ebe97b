"""Brute-force truth about layouts, in plain Python and from the definitions only.

A layout here is a pair (shape, stride) of congruent nested tuples of ints. Everything works on lists of values, one per
flat coordinate (colexicographic order, first mode fastest), so that nothing in this file shares an idea with an algebra
that manipulates modes. It is slow on purpose. Never import the package from here.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product as cartesian
from math import prod
from typing import Any

Tree = Any  # an int or a (nested) tuple of trees


def leaves(tree: Tree) -> list[Any]:
    """The leaves of a tree, left to right: ((2, 3), 4) -> [2, 3, 4]."""
    return [leaf for branch in tree for leaf in leaves(branch)] if isinstance(tree, tuple) else [tree]


def modes(tree: Tree) -> tuple:
    """The top-level branches; an int is its own only mode."""
    return tree if isinstance(tree, tuple) else (tree,)


def size(shape: Tree) -> int:
    return prod(leaves(shape))


def like(tree: Tree, flat: list[Any]) -> Tree:
    """The values of `flat` arranged as `tree` is."""
    source = iter(flat)

    def build(branch: Tree) -> Tree:
        return tuple(build(b) for b in branch) if isinstance(branch, tuple) else next(source)

    return build(tree)


def digits(index: int, extents: list[int], wrap_last: bool = True) -> list[int]:
    """Mixed-radix digits of an index, first extent fastest; without wrap_last the last digit takes all that is left."""
    result = []
    for position, extent in enumerate(extents):
        if position == len(extents) - 1 and not wrap_last:
            result.append(index)
        else:
            result.append(index % extent)
            index //= extent
    return result


def offset(index: int, shape: Tree, stride: Tree, wrap_last: bool = True) -> int:
    """The layout's value at a flat coordinate: the sum of digit times stride."""
    return sum(i * d for i, d in zip(digits(index, leaves(shape), wrap_last), leaves(stride), strict=True))


def image(shape: Tree, stride: Tree) -> list[int]:
    """All values over the flat domain, in colexicographic order."""
    extents, steps = leaves(shape), leaves(stride)
    return [sum(i * d for i, d in zip(digits(n, extents), steps, strict=True)) for n in range(prod(extents))]


def coordinate(index: int, shape: Tree) -> Tree:
    """The nested coordinate of a flat index."""
    return like(shape, digits(index, leaves(shape)))


def flat_index(coord: Tree, shape: Tree) -> int:
    """The flat index of a coordinate that is weakly congruent with the shape. An int may stand for a whole branch."""
    if not isinstance(shape, tuple):
        assert not isinstance(coord, tuple)
        return coord
    if not isinstance(coord, tuple):
        return coord
    total, scale = 0, 1
    for c, s in zip(coord, shape, strict=True):
        total += flat_index(c, s) * scale
        scale *= size(s)
    return total


def coordinates(shape: Tree) -> Iterator[Tree]:
    """Every nested coordinate in colexicographic order."""
    return (coordinate(i, shape) for i in range(size(shape)))


def compact(shape: Tree) -> Tree:
    """Column-major strides: each leaf's stride is the product of the extents before it."""
    strides, top = [], 1
    for extent in leaves(shape):
        strides.append(top)
        top *= extent
    return like(shape, strides)


# Which functions are layouts ----------------------------------------------------------------------------------------


def is_layout_function(values: list[int], n: int | None = None) -> bool:
    """True if a layout of size n begins with these values. Tries every ordered factorisation of n.

    A layout is (s : d, rest): its first extent s divides n, its value at i is (i % s)*d + rest(i // s). Strides are
    forced by the values at 1, s, s*s', ...; a prefix leaves the strides that it does not reach free. The rest after
    extents of product m depends on m only, so each m is looked at once.
    """
    n = len(values) if n is None else n
    assert len(values) <= n
    settled: dict[int, bool] = {}

    def fits(m: int) -> bool:
        if m not in settled:
            rest, size = values[::m], n // m
            extents = [s for s in range(2, size + 1) if size % s == 0]
            settled[m] = len(rest) == 1 or any(
                all(v == (i % s) * rest[1] + rest[i - i % s] for i, v in enumerate(rest)) and fits(m * s)
                for s in extents
            )
        return settled[m]

    return not values or (values[0] == 0 and fits(1))


def canonical(values: list[int]) -> tuple[list[int], list[int]] | None:
    """Extents and strides of the shortest layout with these values, or None.

    Reads the first mode as far as the values grow evenly; ([], []) stands for the constant of size 1.
    """
    extents: list[int] = []
    strides: list[int] = []
    while len(values) > 1:
        step = values[1]
        run = next((i for i, v in enumerate(values) if v != i * step), len(values))
        if len(values) % run or values[0] != 0:
            return None
        if any(v != (i % run) * step + values[i - i % run] for i, v in enumerate(values)):
            return None
        extents.append(run)
        strides.append(step)
        values = values[::run]
    return extents, strides


def first_misfit(values: list[int], extents: list[int]) -> int | None:
    """The first flat coordinate c at which layouts that refine these extents fail, else None. None of them agrees with
    the values on 0..c.

    A layout refines the extents if every coordinate of them is a coordinate of it: its value is a sum of one layout
    function per extent. On 0..c each such function is known at i where i times the earlier extents is at most c.
    """

    def agrees(last: int) -> bool:
        tables, scale = [], 1
        for extent in extents:
            known = [values[i * scale] for i in range(extent) if i * scale <= last]
            if not is_layout_function(known, extent):
                return False
            tables.append(known)
            scale *= extent
        return all(
            values[c] == sum(table[i] for table, i in zip(tables, digits(c, extents), strict=True))
            for c in range(last + 1)
        )

    if agrees(len(values) - 1):
        return None
    low, high = 0, len(values) - 1  # agreement can only get lost as c grows, so bisect for the first loss
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if agrees(middle) else (low, middle)
    return low


# The partial operations, by definition --------------------------------------------------------------------------------


def complement(shape: Tree, stride: Tree, bound: int) -> tuple[list[int], list[int]] | None:
    """CuTe's complement: fill each gap below the next stride, then repeat up to ceil(bound / what is covered).

    None where a mode starts inside what earlier modes cover: no ordered layout is disjoint from it then.
    """
    extents, strides, top = [], [], 1
    for d, s in sorted(zip(leaves(stride), leaves(shape), strict=True)):
        if d == 0 or s == 1:
            continue
        if d < top:
            return None
        extents.append(d // top)
        strides.append(top)
        top = d * s
    extents.append(-(-bound // top))
    strides.append(top)
    return extents, strides


def right_inverse_size(shape: Tree, stride: Tree) -> int:
    """The size that CuTe's rule reaches: follow strides 1, s1, s1*s2, ... as long as the next stride is the top."""
    top = 1
    for d, s in sorted(zip(leaves(stride), leaves(shape), strict=True)):
        if s == 1 or d == 0:
            continue
        if d != top:
            break
        top = d * s
    return top


def swizzle(b: int, m: int, s: int, x: int) -> int:
    """Swizzle<B, M, S>: XOR the B bits at M + max(S, 0) into the B bits at M + max(-S, 0)."""
    source, target = m + max(s, 0), m + max(-s, 0)
    return x ^ (((x >> source) & ((1 << b) - 1)) << target)


def sums(*tables: list[int]) -> list[int]:
    """The values of a layout whose modes have these tables: first table fastest."""
    return [sum(reversed(pick)) for pick in cartesian(*reversed(tables))]
