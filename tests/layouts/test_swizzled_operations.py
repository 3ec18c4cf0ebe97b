"""Laws of swizzled layouts and of subscripts, over nested, ragged and degenerate layouts."""

from __future__ import annotations

import random
from typing import Any

import pytest

from layoutgemm import ComposedLayout, Layout, Swizzle, dim, smem_tile
from layoutgemm.errors import LayoutError
from layoutgemm.layouts import CounterExample, LinearLayout, Proof, Undecided, append, group_modes, prepend, select
from layoutgemm.layouts.proofs.prove import bijective as prove_bijective
from layoutgemm.layouts.proofs.prove import prove
from tests import needs

SEEDS = range(60)


def values(layout: Any) -> list[int]:
    """Every value in order of the flat index, one call at a time."""
    return [layout(i) for i in range(layout.size)]


def some_layout(rng: random.Random, depth: int = 2) -> Layout:
    """A small layout: nested, with extents of 1 and 3, with strides of 0, compact or with gaps."""

    def entry(level: int) -> Any:
        if level and rng.random() < 0.5:
            return tuple(entry(level - 1) for _ in range(rng.randint(1, 3)))
        return rng.choice([1, 2, 2, 3, 4])

    shape = entry(depth)
    if rng.random() < 0.5:
        flat = Layout(shape).flatten()
        order = list(range(flat.rank))
        rng.shuffle(order)
        compact = Layout.ordered(flat.shape, tuple(order) if flat.shape.__class__ is tuple else 0)
        return (
            compact.with_shape(shape)
            if rng.random() < 0.5
            else Layout(shape, same(shape, iter(leaves(compact.stride))))
        )
    return Layout(shape, same(shape, iter(rng.choice([0, 1, 2, 3, 4, 8, 16]) for _ in range(99))))


def leaves(x: Any) -> list[int]:
    return [y for each in x for y in leaves(each)] if isinstance(x, tuple) else [x]


def same(shape: Any, entries: Any) -> Any:
    """A tuple of the nesting of `shape`."""
    return tuple(same(s, entries) for s in shape) if isinstance(shape, tuple) else next(entries)


def some_tile(seed: int) -> ComposedLayout:
    rng = random.Random(seed)
    swizzle = Swizzle(*rng.choice([(0, 0, 1), (1, 0, 1), (1, 0, 2), (2, 0, 2), (2, 1, 3), (1, 2, -2), (3, 0, 3)]))
    return ComposedLayout(swizzle, rng.choice([0, 0, 1, 4, 7]), some_layout(rng))


@pytest.mark.parametrize("seed", SEEDS)
def test_verdicts_on_values(seed: int) -> None:
    tile = some_tile(seed)
    all_ = values(tile)
    injective, bijective = tile.is_injective(), tile.is_bijective()
    assert bool(injective) == (len(set(all_)) == len(all_))
    assert bool(bijective) == (sorted(all_) == list(range(len(all_))))
    if isinstance(injective, CounterExample):
        i, j = injective.coord
        assert i < j and tile(i) == tile(j) == injective.left and str(tile) in injective.statement
    elif isinstance(bijective, CounterExample):
        first = next(i for i, v in enumerate(all_) if not 0 <= v < len(all_))
        assert bijective.index == first and bijective.left == all_[first] and tile(bijective.coord) == all_[first]
    if seed % 2:
        assert bool(LinearLayout.of(Swizzle(2, 0, 2)).is_bijective())


def test_linear_layouts_say_why_they_are_not_bijective() -> None:
    for columns, width in (((1, 2, 3), -1), ((1, 2, 4), 4), ((0,), -1), ((3, 3), 2), ((1,), 1)):
        matrix = LinearLayout(columns, width=width)
        all_ = values(matrix)
        assert bool(matrix.is_injective()) == (len(set(all_)) == len(all_))
        found = matrix.is_bijective()
        assert bool(found) == (sorted(all_) == list(range(1 << matrix.width)))
        if isinstance(found, CounterExample) and found.method != "two coordinates":
            assert found.left == matrix(0) and found.right not in all_


@pytest.mark.parametrize("seed", SEEDS)
def test_inverses(seed: int) -> None:
    tile = some_tile(seed)
    all_ = values(tile)
    try:
        left = tile.left_inverse()
    except LayoutError as error:
        assert str(tile) in str(error)
        assert len(set(all_)) < len(all_) if "no left inverse" in str(error) else "not linear over GF(2)" in str(error)
    else:
        assert [left(v) for v in all_] == list(range(len(all_)))
    try:
        right = tile.right_inverse()
    except LayoutError as error:
        assert 0 not in all_ if "no right inverse" in str(error) else "not linear over GF(2)" in str(error)
    else:
        n = right.size
        assert [tile(right(i)) for i in range(n)] == list(range(n))
        assert n in (1 << 10, len(all_)) or not set(range(2 * n)) <= set(all_)  # the largest power of two


@pytest.mark.parametrize("seed", SEEDS)
def test_modes(seed: int) -> None:
    tile, rng = some_tile(seed), random.Random(seed)
    rank = tile.rank
    assert [str(mode) for mode in tile] == [str(tile[i]) for i in range(rank)]
    chosen = tuple(rng.randrange(rank) for _ in range(rng.randint(1, 3)))
    picked = tile.select(*chosen)
    assert str(picked) == str(select(tile, chosen))
    for i in range(picked.size):
        coord = picked.coord(i)
        inner = sum(tile.layout[k](c) for k, c in zip(chosen, coord, strict=True))
        assert picked(i) == tile.swizzle(tile.offset + inner)
    begin = rng.randrange(rank)
    end = rng.randint(begin + 1, rank)
    grouped = tile.group(begin, end)
    assert str(grouped) == str(group_modes(tile, begin, end)) and grouped.rank == rank - (end - begin) + 1
    assert values(grouped) == values(tile)
    more = some_layout(rng, 1)
    longer, sooner = append(tile, more), prepend(tile, more)
    assert longer.rank == sooner.rank == rank + 1
    for i in range(longer.size):
        *head, last = longer.coord(i)
        assert longer(i) == tile.swizzle(
            tile.offset + sum(m(c) for m, c in zip(tile.layout, head, strict=True)) + more(last)
        )
        first, *tail = sooner.coord(i)
        assert sooner(i) == tile.swizzle(
            tile.offset + more(first) + sum(m(c) for m, c in zip(tile.layout, tail, strict=True))
        )
    kept = tile.filter()
    assert set(values(kept)) == set(values(tile))
    assert 0 not in leaves(kept.layout.stride) or kept.size == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_divides_and_products_are_those_of_the_layout_inside(seed: int) -> None:
    tile, rng = some_tile(seed), random.Random(seed)
    for name in (
        "logical_divide", "zipped_divide", "tiled_divide", "flat_divide", "logical_product", "zipped_product",
        "tiled_product", "flat_product", "blocked_product", "raked_product",
    ):  # fmt: skip
        tiler = rng.choice([2, 3, Layout(2, 2)])
        try:
            inner = getattr(tile.layout, name)(tiler)
        except LayoutError:
            with pytest.raises(LayoutError):
                getattr(tile, name)(tiler)
            continue
        found = getattr(tile, name)(tiler)
        assert values(found) == [tile.swizzle(tile.offset + x) for x in values(inner)]


@pytest.mark.parametrize("seed", SEEDS)
def test_max_common_layout_is_the_largest(seed: int) -> None:
    tile, rng = some_tile(seed), random.Random(seed + 1000)
    for other in (some_layout(rng), tile.layout, Layout(tile.shape), tile, some_tile(seed + 1)):
        shared = tile.max_common_layout(other)
        n = shared.size
        assert tile.max_common_vector(other) == n
        at = values(shared)
        assert [tile(i) - tile(0) for i in at] == [other(i) - other(0) for i in at] == list(range(n))
        plain = getattr(other, "layout", other)
        if isinstance(plain, Layout):
            assert tile.layout.max_common_layout(tile).size == tile.max_common_layout(tile.layout).size
            whole = values(tile.layout.max_common_layout(plain))
            runs = [k for k in range(1, len(whole) + 1) if all(x(whole[k - 1]) - x(0) == k - 1 for x in (tile, other))]
            longest = next((k for k in range(1, len(whole) + 1) if k not in runs), len(whole) + 1) - 1
            assert n <= longest
            assert n == longest or longest % n or (longest // n < 2)  # no more whole modes fit


@pytest.mark.parametrize("seed", SEEDS)
def test_the_complement_fills_what_the_layout_inside_leaves(seed: int) -> None:
    tile = some_tile(seed)
    try:
        rest = tile.layout.complement(4 * tile.size)
    except LayoutError:
        assert not tile.can_complement(4 * tile.size)
        return
    assert tile.complement(4 * tile.size) == rest and tile.can_complement(4 * tile.size)
    if tile.is_injective():
        assert tile.append(rest).is_injective() or not tile.layout.append(rest).is_injective()


def test_a_swizzled_layout_says_why_it_has_no_strides() -> None:
    tile = Swizzle(3, 3, 3) @ Layout((8, 64), (64, 1))
    assert not hasattr(tile, "stride") and not tile.has_basis
    with pytest.raises(LayoutError, match=r"has no strides: .* inside are \(64,1\)"):
        _ = tile.stride
    assert ComposedLayout(Swizzle(0, 0, 0), 64, Layout((8, 64), (64, 1))).stride == (64, 1)


def test_a_shared_memory_tile_answers_what_its_layout_answers() -> None:
    tile = smem_tile((8, 64), "f16", "K")
    inside = tile.composed
    makers = {"from_expr", "identity", "join", "ordered", "parse"}
    for name in {name for name in dir(Layout(4)) if name[0] != "_"} - makers - {"stride"}:
        assert hasattr(tile, name) and hasattr(inside, name) and name in dir(tile), name
    assert tile.upcast(2) == inside.upcast(2) and tile.complement(1024) == inside.complement(1024)
    assert Layout((8, 64), (64, 1)).covers(tile) and inside.covers(tile)
    assert inside.max_common_layout(tile) == inside.max_common_layout(inside)
    assert ComposedLayout(Swizzle(1, 0, 3, 16), 0, tile) == ComposedLayout(Swizzle(1, 0, 3, 16), 0, inside)
    with pytest.raises(LayoutError, match="must be a Layout"):
        inside.after(3)


def test_a_layout_does_not_cover_more_offsets_than_it_has_coordinates() -> None:
    for layout in (Layout(4), Swizzle(1, 0, 1) @ Layout(4), Swizzle(1, 1, 1) @ Layout(4, 2)):
        found = layout.covers(10**30)
        assert isinstance(found, CounterExample)
        assert found.coord == next(i for i in range(5) if i not in values(layout))


@pytest.mark.parametrize("seed", SEEDS)
def test_closed_forms(seed: int) -> None:
    tile = some_tile(seed)
    sympy = needs.module("sympy")
    names = [f"c{i}" for i in range(tile.rank)]
    form = tile.expr(*names)
    call = sympy.lambdify(names, form)
    flat = [mode.size for mode in tile]
    coords = [Layout(tuple(flat)).coord(i) for i in range(tile.size)]
    assert [call(*c) for c in coords] == values(tile)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_subscript_with_several_modes_is_the_rest_of_the_function(seed: int) -> None:
    rng = random.Random(seed)
    for layout in (some_layout(rng), some_tile(seed)):
        if layout.rank < 2:
            continue
        at = [rng.randrange(mode.size) if rng.random() < 0.5 else slice(None) for mode in layout]
        if slice(None) not in at:
            at[0] = slice(None)
        rest = layout[tuple(at)]
        free = [i for i, x in enumerate(at) if isinstance(x, slice)]
        assert rest.rank == len(free)
        for i in range(rest.size):
            coord = list(at)
            for k, c in zip(free, rest.coord(i), strict=True):
                coord[k] = c
            assert rest(i) == layout(tuple(coord))
        assert str(layout[tuple(None if isinstance(x, slice) else x for x in at)]) == str(rest)


def test_subscripts_with_symbols_and_refusals() -> None:
    n = dim("N")
    row = Layout((n, 4), (1, n))[:, 3]
    assert str(row) == "S<0,0,0> o 3*N o (N):(1)"
    with pytest.raises(LayoutError, match="a part of a mode is a tile"):
        Layout((8, 4))[0:4, 0]
    with pytest.raises(LayoutError, match=r"coordinate 4 is outside 0\.\.3"):
        Layout((8, 4))[:, 4]
    with pytest.raises(LayoutError, match=r"does not have the nesting of shape \(8,4\)"):
        Layout((8, 4))[:, 0, 0]


def test_symbols_under_a_swizzle_are_undecided_not_refused() -> None:
    tile = Swizzle(3, 3, 3) @ Layout((8, dim("K", multiple_of=64)), (64, 1))
    assert isinstance(prove_bijective(tile), Undecided)
    assert isinstance(prove(tile, tile), Proof)
