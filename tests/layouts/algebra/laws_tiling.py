"""Laws of what rearranges two layouts: composition, divides and products. See test_laws."""

from __future__ import annotations

import random
from math import prod
from typing import Any

from layoutgemm.layouts import ComposedLayout, Layout, Swizzle, make_layout_tv
from tests.layouts import reference as ref
from tests.layouts.algebra.law_tools import (
    REFUSED,
    attempt,
    compact_strides,
    draw,
    exact_complement,
    image,
    law,
    on,
    parts,
    sizes,
    tile,
)
from tests.layouts.strategies import Pair, inside, random_pair

# ---------------------------------------------------------------- composition and what is defined by it


@law(400)
def compose(rng: random.Random) -> bool:
    left, right = draw(rng, negative=True), draw(rng, 24, 3)
    if rng.random() < 0.6:
        right = inside(rng, left)
    answer = attempt(lambda: Layout(*left) @ Layout(*right))
    truth = on(left, ref.image(*right))
    exists = ref.first_misfit(truth, ref.leaves(right[0])) is None
    assert (answer is not REFUSED) == exists, f"{Layout(*left)} o {Layout(*right)} = {answer}, right is {truth}"
    assert answer is REFUSED or image(answer) == truth, f"{Layout(*left)} o {Layout(*right)} = {answer}"
    return exists


@law(100)
def compose_after_a_swizzle(rng: random.Random) -> bool:
    left, right = draw(rng, 32, 2), draw(rng, 32, 2)
    swizzle = Swizzle(rng.randint(0, 2), rng.randint(0, 2), rng.choice((2, 3, -2)))
    inner = ComposedLayout(swizzle, rng.choice((0, 0, 1, 8)), Layout(*right))
    answer = attempt(lambda: Layout(*left) @ inner)
    truth = on(left, image(inner))
    assert answer is REFUSED or image(answer) == truth, f"{Layout(*left)} o {inner} = {answer}, right is {truth}"
    return answer is not REFUSED


@law(200)
def with_shape(rng: random.Random) -> bool:
    pair = draw(rng)
    n, extents = ref.size(pair[0]), []
    while n > 1 and len(extents) < 3:
        extents.append(rng.choice([k for k in range(1, n + 1) if n % k == 0]))
        n //= extents[-1]
    shape = (*extents, n)
    answer = attempt(lambda: Layout(*pair).with_shape(shape))
    exists = ref.first_misfit(ref.image(*pair), list(shape)) is None
    assert (answer is not REFUSED) == exists, f"{Layout(*pair)}.with_shape({shape})"
    assert answer is REFUSED or (image(answer) == ref.image(*pair) and sizes(answer) == list(shape))
    return exists


# ---------------------------------------------------------------- divides


def divided(pair: Pair, t: Pair) -> tuple[list[int], list[int]] | None:
    """The values of the tile and of the tiles, or None without such a layout.

    They are A o (T, T*). Where that is no layout, A counts with the entry in which T ends rounded up to whole tiles.
    """
    found = exactly_divided(pair, t)
    if found is not None or exact_complement(t, ref.size(pair[0])) is None:
        return found
    extents, strides = ref.canonical(ref.image(*pair)) or ([], [])
    period = len(set(ref.image(*t))) * len(exact_complement(t, 1) or [0])
    for i in range(len(extents)):
        if max(ref.image(*t)) < prod(extents[: i + 1]) or i == len(extents) - 1:
            while prod(extents[: i + 1]) % period:
                extents[i] += 1
                if extents[i] > 1000:
                    return None
            return exactly_divided((tuple(extents), tuple(strides)), t)
    return None


def exactly_divided(pair: Pair, t: Pair) -> tuple[list[int], list[int]] | None:
    """A o (T, T*), or None where no layout has these values."""
    free = exact_complement(t, ref.size(pair[0]))
    if free is None:
        return None
    picks = ref.image(*t)
    values = on(pair, ref.sums(picks, free))
    if ref.first_misfit(values, [*ref.leaves(t[0]), len(free)]) is not None:
        return None
    return on(pair, picks), on(pair, free)


def tiler_of(rng: random.Random, pair: Pair, deep: bool = True) -> Any:
    """An int, a layout, or a tuple of these and None for the first modes."""
    if isinstance(pair[0], tuple) and deep and rng.random() < 0.6:
        return tuple(
            None if rng.random() < 0.15 else tiler_of(rng, part, deep=rng.random() < 0.3)
            for part in parts(pair)[: rng.randint(1, len(pair[0]))]
        )
    t = tile(rng, ref.size(pair[0]))
    return t[0] if t[1] == 1 and isinstance(t[0], int) and rng.random() < 0.7 else Layout(*t)


def by_mode(pair: Pair, tiler: Any) -> Any:
    """The tables of a divide, or "none" where no layout has them.

    (tile, tiles) for a tile, a list for a tuple, the mode's values for None.
    """
    if tiler is None:
        return ref.image(*pair)
    if isinstance(tiler, tuple):
        modes = [by_mode(part, t) for part, t in zip(parts(pair), tiler, strict=False)]
        modes += [ref.image(*part) for part in parts(pair)[len(tiler) :]]
        return "none" if "none" in modes else modes
    t = (tiler, 1) if isinstance(tiler, int) else (tiler.shape, tiler.stride)
    found = divided(pair, t)
    return "none" if found is None else found


def flat_values(truth: Any) -> list[int]:
    """The values of logical_divide over its flat index."""
    if isinstance(truth, list) and truth and isinstance(truth[0], int):
        return truth
    return ref.sums(*[flat_values(mode) for mode in truth])


def halves(truth: Any) -> tuple[list[list[int]], list[list[int]]]:
    """The tiles' and the rests' tables of a zipped divide, one for each mode."""
    if isinstance(truth, tuple):
        return [truth[0]], [truth[1]]
    if isinstance(truth[0], int):
        return [[0]], [truth]
    both = [halves(mode) for mode in truth]
    return [t for first, _ in both for t in first], [t for _, second in both for t in second]


def zipped_values(truth: Any, tiler: Any, pair: Pair) -> tuple[list[int], list[int]]:
    if isinstance(truth, tuple):
        return truth
    inner, outer = [], []
    for i, mode in enumerate(truth):
        if i >= len(tiler):
            outer.append(mode)
            continue
        first, second = halves(mode)
        inner += first
        outer += second
    return ref.sums(*inner), ref.sums(*outer)


@law(600)
def divides(rng: random.Random) -> bool:
    pair = draw(rng, 48) if rng.random() < 0.5 else draw(rng, 200, rank=rng.randint(1, 3))
    tiler = tiler_of(rng, pair)
    a, truth = Layout(*pair), by_mode(pair, tiler)
    logical, zipped, tiled, flat = (
        attempt(lambda: divide(tiler))  # noqa: B023
        for divide in (a.logical_divide, a.zipped_divide, a.tiled_divide, a.flat_divide)
    )
    text = f"{a} by {tiler}: {logical}, {zipped}"
    if truth == "none":
        assert logical is zipped is tiled is flat is REFUSED, text
        return False
    assert logical is not REFUSED and zipped is not REFUSED, text
    assert image(logical) == flat_values(truth), text
    first, second = zipped_values(truth, tiler, pair)
    assert sizes(zipped) == [len(first), len(second)], text
    assert image(zipped) == ref.sums(first, second) == image(tiled) == image(flat), text
    assert sizes(tiled)[0] == len(first) and prod(sizes(flat)) == prod(sizes(tiled)) == len(first) * len(second), text
    return True


# ---------------------------------------------------------------- products


def placed(pair: Pair, other: Pair) -> list[int] | None:
    """The offsets of A's copies in the order of B: A* o B, with A* up to cosize(B) copies; None for no layout."""
    picks = ref.image(*other)
    reach = max(picks) + 1
    end = max(1, *(n * d for n, d in zip(ref.leaves(pair[0]), ref.leaves(pair[1]), strict=True)))
    rest = ref.complement(*pair, end * reach)
    if rest is None:
        return None
    free = ref.image(tuple(rest[0]), tuple(rest[1]))
    second = [free[p] for p in picks]
    return second if ref.first_misfit(second, ref.leaves(other[0])) is None else None


def small(rng: random.Random) -> Pair:
    return random_pair(rng, ("compact", "permuted", "broadcast", "padded"), limit=12, leaves=3, extents=(1, 2, 3, 4))


@law(300)
def products(rng: random.Random) -> bool:
    pair, other = draw(rng, 30, 3), small(rng)
    a, b = Layout(*pair), Layout(*other)
    truth = placed(pair, other)
    answers = [attempt(lambda: p(b)) for p in (a.logical_product, a.zipped_product, a.tiled_product, a.flat_product)]  # noqa: B023
    text = f"{a} x {b}: {answers[0]}, right is {truth}"
    if truth is None:
        assert answers == [REFUSED] * 4, text
        return False
    assert REFUSED not in answers, text
    assert all(image(x) == ref.sums(ref.image(*pair), truth) for x in answers), text
    assert answers[0][0] == a and sizes(answers[0]) == [a.size, b.size], text
    return True


@law(200)
def products_by_mode(rng: random.Random) -> bool:
    rank = rng.randint(1, 3)
    pair = draw(rng, 60, rank=rank)
    others = [small(rng) for _ in range(rng.randint(1, rank))]
    tiler = tuple(rng.choice((Layout(*o), Layout(*o), None)) for o in others)
    a, truth, starts = Layout(*pair), [], []
    for part, t in zip(parts(pair), tiler, strict=False):
        start = [0] if t is None else placed(part, (t.shape, t.stride))
        truth.append(ref.image(*part))
        starts.append(start)
    logical, zipped = attempt(lambda: a.logical_product(tiler)), attempt(lambda: a.zipped_product(tiler))
    if None in starts:
        assert logical is zipped is REFUSED, f"{a} x {tiler} = {logical}"
        return False
    rest = [ref.image(*part) for part in parts(pair)[len(tiler) :]]
    whole = [x for table, start in zip(truth, starts, strict=True) for x in (table, start)]
    assert image(logical) == ref.sums(*whole, *rest), f"{a} x {tiler} = {logical}"
    # None leaves a mode alone: all of it is in the second half
    first = [[0] if t is None else table for table, t in zip(truth, tiler, strict=True)]
    second = [table if t is None else start for table, start, t in zip(truth, starts, tiler, strict=True)]
    assert image(zipped) == ref.sums(*first, *second, *rest), f"{a} x {tiler} = {zipped}"
    return True


@law(200)
def blocked_and_raked_products(rng: random.Random) -> bool:
    rank, other_rank = rng.randint(1, 3), rng.randint(1, 3)
    pair, other = draw(rng, 16, rank=rank), draw(rng, 12, rank=other_rank)
    a, b = Layout(*pair), Layout(*other)
    n = max(rank, other_rank)
    truth = placed(pair, other)
    blocked, raked = attempt(lambda: a.blocked_product(b)), attempt(lambda: a.raked_product(b))
    if truth is None:
        assert blocked is raked is REFUSED, f"{a} x {b}: {blocked}"
        return False
    assert blocked is not REFUSED and raked is not REFUSED, f"{a} x {b}"
    inner = [ref.size(s) for s in pair[0]] + [1] * (n - rank)
    outer = [ref.size(s) for s in other[0]] + [1] * (n - other_rank)
    both = tuple(s * t for s, t in zip(inner, outer, strict=True))
    assert sizes(blocked) == sizes(raked) == list(both)
    values = ref.image(*pair)

    def value(fast: tuple[int, ...], slow: tuple[int, ...]) -> int:
        return values[ref.flat_index(fast, tuple(inner))] + truth[ref.flat_index(slow, tuple(outer))]

    for i, c in enumerate(ref.coordinates(both)):
        at = tuple(x % s for x, s in zip(c, inner, strict=True)), tuple(x // s for x, s in zip(c, inner, strict=True))
        assert blocked(i) == value(*at), f"{a} blocked by {b}: {blocked} at {c}"
        at = tuple(x // t for x, t in zip(c, outer, strict=True)), tuple(x % t for x, t in zip(c, outer, strict=True))
        assert raked(i) == value(*at), f"{a} raked by {b}: {raked} at {c}"
    return True


@law(200)
def tile_to_shape(rng: random.Random) -> bool:
    rank = rng.randint(1, 3)
    pair = draw(rng, 24, rank=rank)
    inner = [ref.size(s) for s in pair[0]]
    wrong = rng.random() < 0.15
    counts = [rng.choice((1, 1, 2, 3)) for _ in inner]
    target = tuple(s * n + wrong for s, n in zip(inner, counts, strict=True))
    order = list(range(rank))
    rng.shuffle(order)
    answer = attempt(lambda: Layout(*pair).tile_to_shape(target, tuple(order)))
    if any(t % s for s, t in zip(inner, target, strict=True)):
        assert answer is REFUSED
        return False
    counts = [t // s for s, t in zip(inner, target, strict=True)]
    steps, top = [0] * rank, 1
    for mode in sorted(range(rank), key=lambda m: order[m]):
        steps[mode], top = top, top * counts[mode]
    starts = placed(pair, (tuple(counts), tuple(steps)))
    assert (answer is REFUSED) == (starts is None), f"{Layout(*pair)} to {target}"
    if starts is None:
        return False
    values = ref.image(*pair)
    assert sizes(answer) == list(target)
    for i, c in enumerate(ref.coordinates(target)):
        at = ref.flat_index(tuple(x % s for x, s in zip(c, inner, strict=True)), tuple(inner))
        block = ref.flat_index(tuple(x // s for x, s in zip(c, inner, strict=True)), tuple(counts))
        assert answer(i) == values[at] + starts[block], f"{Layout(*pair)} to {target}, {order}: {answer} at {c}"
    return True


@law(100)
def thread_value_layouts(rng: random.Random) -> bool:
    rank = rng.randint(1, 2)
    shapes = [tuple(rng.choice((1, 2, 3, 4)) for _ in range(rank)) for _ in range(2)]
    threads, values = (Layout(s, ref.like(s, compact_strides(rng, list(s)))) for s in shapes)
    tiler, tv = make_layout_tv(threads, values)
    assert list(tiler) == [s * t for s, t in zip(*shapes, strict=True)]
    for i, c in enumerate(ref.coordinates(tuple(tiler))):
        t = threads(tuple(x // v for x, v in zip(c, shapes[1], strict=True)))
        v = values(tuple(x % v for x, v in zip(c, shapes[1], strict=True)))
        assert tv(t, v) == i, f"{threads}, {values}: {tv}"
    return True
