"""Sub-layouts by coordinate, and changes of the element width, against the values they stand for."""

from __future__ import annotations

import random
from math import gcd

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layoutgemm.errors import LayoutError
from layoutgemm.layouts import ComposedLayout, Layout, Swizzle, parse
from tests.layouts import reference as ref
from tests.layouts.strategies import Pair, pairs, random_pair, seeds


def image(layout: Layout) -> list[int]:
    return [layout(i) for i in range(layout.size)]


# Slice and dice -------------------------------------------------------------------------------------------------------


def holes(rng: random.Random, shape: ref.Tree, coord: ref.Tree) -> ref.Tree:
    """The coordinate with some branches left open (None) and some given as one flat index."""
    if rng.random() < 0.35:
        return None
    if not isinstance(shape, tuple):
        return coord
    if rng.random() < 0.2:
        return ref.flat_index(coord, shape)
    return tuple(holes(rng, s, c) for s, c in zip(shape, coord, strict=True))


def open_branches(pattern: ref.Tree, shape: ref.Tree, stride: ref.Tree) -> list[Pair]:
    """The branches that None selects in the pattern, left to right."""
    if pattern is None:
        return [(shape, stride)]
    if isinstance(pattern, tuple):
        parts = zip(pattern, shape, stride, strict=True)
        return [branch for p, s, d in parts for branch in open_branches(p, s, d)]
    return []


def fixed(pattern: ref.Tree, shape: ref.Tree, stride: ref.Tree) -> int:
    """The offset of the fixed part: open branches stand at 0."""
    if pattern is None:
        return 0
    if isinstance(pattern, tuple):
        return sum(fixed(p, s, d) for p, s, d in zip(pattern, shape, stride, strict=True))
    return ref.offset(pattern, shape, stride)


@given(pairs(limit=300), st.data())
def test_slice(pair: Pair, data: st.DataObject) -> None:
    """L at every coordinate that matches the pattern is the slice's value plus the offset."""
    rng = data.draw(seeds)
    pattern = holes(rng, pair[0], ref.coordinate(rng.randrange(ref.size(pair[0])), pair[0]))
    part, offset = Layout(*pair).slice(pattern)
    kept = open_branches(pattern, *pair)
    assert offset == fixed(pattern, *pair)
    assert image(part) == (ref.sums(*(ref.image(*k) for k in kept)) if kept else [0]), f"{pattern}"
    if len(kept) > 1:
        assert [ref.size(s) for s in ref.modes(part.shape)] == [ref.size(s) for s, _ in kept]


@given(pairs(limit=300), st.data())
def test_dice_keeps_what_slice_drops(pair: Pair, data: st.DataObject) -> None:
    rng = data.draw(seeds)
    if not isinstance(pair[0], tuple):
        return
    pattern = tuple(rng.choice((None, 0)) for _ in pair[0])
    part = Layout(*pair).dice(pattern)
    kept = [(s, d) for p, s, d in zip(pattern, *pair, strict=True) if p is not None]
    assert image(part) == (ref.sums(*(ref.image(*k) for k in kept)) if kept else [0])


def test_slice_examples() -> None:
    layout = Layout((4, (2, 3)), (6, (3, 1)))
    row, offset = layout.slice((2, None))
    assert offset == 12 and image(row) == [0, 3, 1, 4, 2, 5]
    part, offset = layout.slice((None, (1, None)))
    assert offset == 3 and image(part) == [6 * i + j for j in range(3) for i in range(4)]
    point, offset = layout.slice((3, (1, 2)))
    assert offset == 23 and image(point) == [0]


def test_slice_of_a_swizzled_layout_keeps_its_values() -> None:
    """The offset goes inside the swizzle, where it belongs; a well-known implementation crashes here."""
    inner = Layout((8, 64), (64, 1))
    composed = ComposedLayout(Swizzle(3, 3, 3), 0, inner)
    result = composed.slice((5, None))
    part, extra = result if isinstance(result, tuple) else (result, 0)
    assert [part(j) + extra for j in range(64)] == [ref.swizzle(3, 3, 3, 5 * 64 + j) for j in range(64)]


# Recast ---------------------------------------------------------------------------------------------------------------


def recastable(rng: random.Random) -> tuple[Pair, int]:
    """A random layout: its unit-stride mode holds whole groups of n, other strides are multiples of n."""
    n = rng.choice((2, 4, 8))
    shape, stride = random_pair(rng, ("compact", "permuted", "broadcast"), limit=100, leaves=3)
    extents, strides = ref.leaves(shape), ref.leaves(stride)
    which = rng.randrange(len(extents))
    extents = [s * n if i == which else s for i, s in enumerate(extents)]
    top = max([1, *(d * s for d, s in zip(strides, extents, strict=True))])
    strides = [1 if i == which else d * n * top for i, d in enumerate(strides)]
    return (ref.like(shape, extents), ref.like(shape, strides)), n


def test_upcast_counts_wide_elements() -> None:
    """n narrow elements are one wide element: the wide layout visits exactly the wide elements that hold the narrow."""
    rng = random.Random(1)
    for _ in range(400):
        pair, n = recastable(rng)
        layout = Layout(*pair)
        wide = layout.upcast(n)
        values = ref.image(*pair)
        assert sorted(set(image(wide))) == sorted({v // n for v in values}), f"{layout}.upcast({n}) = {wide}"
        assert wide.size * n == layout.size
        # the group of narrow elements is the fastest part of the unit-stride mode; it goes, and the order stays
        assert image(wide) == [v // n for v in values if v % n == 0]
        if ref.leaves(wide.stride).count(1) == 1:  # else the way back does not know which of the modes to widen
            assert image(wide.downcast(n)) == values, "there and back"


def test_downcast_counts_narrow_elements() -> None:
    """One wide element is n narrow ones: each wide offset w becomes n*w .. n*w + n - 1."""
    rng = random.Random(2)
    for _ in range(400):
        shape, stride = random_pair(rng, ("compact", "permuted"), limit=100, leaves=3)
        n = rng.choice((2, 3, 4, 8))
        if [d for d, s in zip(ref.leaves(stride), ref.leaves(shape), strict=True) if d == 1] != [1]:
            continue
        layout = Layout(shape, stride)
        narrow = layout.downcast(n)
        assert narrow.size == layout.size * n
        assert sorted(image(narrow)) == sorted(v * n + k for v in ref.image(shape, stride) for k in range(n))
        assert image(narrow.upcast(n)) == image(layout)


@given(pairs(limit=300), st.integers(1, 8))
def test_upcast_is_never_silently_wrong_on_a_mode(pair: Pair, n: int) -> None:
    """Whatever the strides: an answer's modes each visit the wide elements of their own mode, in order."""
    layout = Layout(*pair)
    try:
        wide = layout.upcast(n)
    except LayoutError:
        strides = [d for s, d in zip(ref.leaves(pair[0]), ref.leaves(pair[1]), strict=True) if s != 1]
        fits = [d % n == 0 for d in strides]
        assert not all(fits), f"every stride of {layout} is a multiple of {n}"
        return
    for s, d, t, e in zip(*map(ref.leaves, (*pair, wide.shape, wide.stride)), strict=True):
        if s == 1:
            assert t == 1
            continue
        step = -(-n // d) if 0 < d < n else 1  # narrow entries to a wide one
        assert [i * e for i in range(t)] == [i * d // n for i in range(0, s, step)], f"{s}:{d} by {n} is {t}:{e}"
        if d and gcd(d, n) in (n, d):
            assert [i * e for i in range(t)] == sorted({i * d // n for i in range(s)}), f"{s}:{d} by {n} is {t}:{e}"


def test_recast_changes_width() -> None:
    """From 16-bit to 8-bit elements is a downcast by 2, to 32-bit an upcast by 2; equal widths change nothing."""
    layout = Layout((8, 64), (64, 1))
    assert layout.recast(8, 16) == layout.downcast(2) == Layout((8, 128), (128, 1))
    assert layout.recast(32, 16) == layout.upcast(2) == Layout((8, 32), (32, 1))
    assert layout.recast(16, 16) == layout
    with pytest.raises(LayoutError, match="no multiple of it, so its entries begin inside groups"):
        Layout((3, 5), (5, 3)).recast(16, 8)


@pytest.mark.parametrize(
    ("layout", "new", "old", "answer"),
    [
        ("(1,4):(1,1)", 8, 16, "(1,8):(2,1)"),  # the longer mode of stride 1 takes in the parts, once
        ("(4,1):(1,1)", 8, 16, "(8,1):(1,2)"),
        ("1:1", 8, 32, "4:1"),
        ("(2,4):(1,2)", 32, 8, "(1,2):(1,1)"),  # 2 bytes, and the next mode goes on where they end
        ("(6,3):(1,6)", 12, 8, "(4,3):(1,4)"),
        ("4:2", 32, 8, "2:1"),  # padding is part of the wider elements
    ],
)
def test_recast_keeps_the_bits(layout: str, new: int, old: int, answer: str) -> None:
    assert str(Layout.parse(layout).recast(new, old)) == answer


def test_an_answer_of_recast_has_every_bit() -> None:
    """All bits of the old elements, and no new element without one; narrower elements have no other bits."""
    rng = random.Random(5)
    answered = refused = 0
    for _ in range(600):
        shape, stride = random_pair(rng, limit=60, leaves=3)
        old, new = rng.choice(((16, 8), (32, 4), (8, 6), (6, 8), (8, 16), (12, 8), (16, 32)))
        try:
            recast = Layout(shape, stride).recast(new, old)
        except LayoutError:
            refused += 1
            continue
        answered += 1
        bits = {v * old + bit for v in ref.image(shape, stride) for bit in range(old)}
        found = {v * new + bit for v in image(recast) for bit in range(new)}
        text = f"{Layout(shape, stride)}.recast({new}, {old}) = {recast}"
        assert bits == found if old % new == 0 else bits <= found, text
        assert {v // new for v in bits} == set(image(recast)), text
    assert answered > 200 and refused > 100


@pytest.mark.parametrize("layout", ["2:2", "(6,4):(12,7)", "1:0", "(2,M):(M,0)", "(1,4):(29,8)"])
def test_recast_refuses_parts_that_no_mode_takes_in(layout: str) -> None:
    """The first part of each element is downcast's answer, and not all of the bits."""
    whole = parse(layout, "64 | M")
    with pytest.raises(LayoutError, match=r"from 32 to 8 bits: no mode has stride 1.*parts are 0 to 3"):
        whole.recast(8, 32)
    assert whole.recast(32, 32) == whole and whole.downcast(4).size == whole.size


@pytest.mark.parametrize(
    ("layout", "new", "old"),
    [("4:1", 6, 8), ("5:1", 6, 8), ("3:1", 16, 8), ("(3,4):(1,3)", 16, 8), ("(2,4):(1,8)", 32, 8), ("4:2", 24, 8)],
)
def test_recast_refuses_fractions_of_an_element(layout: str, new: int, old: int) -> None:
    a = Layout.parse(layout)
    with pytest.raises(LayoutError, match=f"from {old} to {new} bits.*no whole number of elements"):
        a.recast(new, old)
    assert not a.can_recast(new, old)


@pytest.mark.parametrize(
    ("layout", "new", "old", "span"),
    [("(6,4):(1,1)", 8, 4, 3), ("(8,2,4):(4,8,2)", 64, 8, 11), ("(M,4):(1,1)", 16, 8, 3)],
)
def test_recast_refuses_overlapping_modes_that_share_an_element(layout: str, new: int, old: int, span: int) -> None:
    """Both modes step inside one element, whose parts then reach into the next: (6,4):(1,1) has parts 0 to 8."""
    with pytest.raises(LayoutError, match=rf"modes overlap.*span.* {span}\b"):
        parse(layout, "64 | M").recast(new, old)


def test_recast_through_the_common_width() -> None:
    """12-bit to 8-bit and back, where the unit mode holds whole groups: through the bits both share."""
    narrow = Layout((4, 12), (12, 1)).recast(8, 12)
    assert narrow == Layout((4, 18), (18, 1)) and narrow.recast(12, 8) == Layout((4, 12), (12, 1))


@pytest.mark.parametrize("n", [0, -1, -2])
def test_recast_refuses_counts_that_are_none(n: int) -> None:
    for call in (Layout(8).upcast, Layout(8).downcast):
        with pytest.raises(LayoutError):
            call(n)
