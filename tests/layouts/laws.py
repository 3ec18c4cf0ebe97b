"""Every operation of the algebra against its definition, on random layouts: nested, ragged and degenerate ones.

A law draws operands, asks the library, and judges the answer with `reference`, which knows no algebra. It returns
whether the operation answered, so that a caller sees that both outcomes occurred. A refusal is judged too where the
operation promises to answer whenever an answer exists.

    python -m tests.layouts.laws [FACTOR] [SEED]     FACTOR times as many cases as the tests take
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from math import prod
from typing import Any

from layoutgemm.errors import LayoutError
from layoutgemm.layouts import ComposedLayout, Layout, Swizzle, append, make_layout_tv, prepend, select
from tests.layouts import reference as ref
from tests.layouts.strategies import FAMILIES, Pair, inside, random_pair

Law = Callable[[random.Random], bool]
LAWS: dict[str, tuple[Law, int]] = {}
REFUSED = None


def law(count: int) -> Callable[[Law], Law]:
    """Register a law with the number of cases that a test run takes."""

    def register(f: Law) -> Law:
        LAWS[f.__name__] = f, count
        return f

    return register


# ---------------------------------------------------------------- operands and values


def draw(rng: random.Random, limit: int = 60, leaves: int = 4, negative: bool = False, rank: int = 0) -> Pair:
    """A layout of any family; extents of 1 with any stride, now and then negative strides or a given rank."""
    if rank:
        parts = [draw(rng, max(2, limit // (6 * rank - 5)), 2) for _ in range(rank)]
        flat = [s for part in parts for s in ref.leaves(part[0])]
        shape = ref.like(tuple(part[0] for part in parts), flat)
        stride = _strides(rng, flat)
        return shape, ref.like(shape, stride)
    pair = random_pair(rng, FAMILIES, limit=limit, leaves=leaves)
    strides = ref.leaves(pair[1])
    strides = [
        rng.choice((0, 1, d, 7, 100)) if s == 1 else d for s, d in zip(ref.leaves(pair[0]), strides, strict=True)
    ]
    if negative and rng.random() < 0.3:
        strides = [d * rng.choice((1, -1)) for d in strides]
    return pair[0], ref.like(pair[0], strides)


def _strides(rng: random.Random, extents: list[int]) -> list[int]:
    order, strides, top = list(range(len(extents))), [0] * len(extents), 1
    rng.shuffle(order)
    for i in order:
        strides[i] = 0 if rng.random() < 0.05 else top
        top *= extents[i] * rng.choice((1, 1, 1, 2, 3))
    return strides


def tile(rng: random.Random, size: int) -> Pair:
    """A tile for a mode of so many elements: often one that divides, often one that does not."""
    if rng.random() < 0.5:
        n = rng.choice([k for k in range(1, size + 1) if size % k == 0] if rng.random() < 0.6 else range(1, size + 3))
        return n, 1
    pair = random_pair(rng, ("compact", "permuted", "padded", "broadcast"), limit=8, leaves=2, extents=(1, 2, 2, 3, 4))
    step = rng.choice((1, 1, 2, 3, 4))
    return pair[0], ref.like(pair[0], [step * d for d in ref.leaves(pair[1])])


def image(layout: Any) -> list[int]:
    return [int(layout(i)) for i in range(layout.size)]


def on(pair: Pair, indices: list[int]) -> list[int]:
    """The values of flat indices; past the end the last entry runs on."""
    return [ref.offset(i, *pair, wrap_last=False) for i in indices]


def sizes(layout: Any) -> list[int]:
    return [ref.size(s) for s in ref.modes(layout.shape)]


def attempt(call: Callable[[], Any]) -> Any:
    """The answer, or None for a refusal; any other exception is a failure."""
    try:
        return call()
    except LayoutError:
        return REFUSED


def parts(pair: Pair) -> list[Pair]:
    """The top-level modes as pairs."""
    return list(zip(ref.modes(pair[0]), ref.modes(pair[1]), strict=True))


def exact_complement(t: Pair, bound: int) -> list[int] | None:
    """The translates of a tile that tile 0..n-1 without a gap, n >= bound; None where none do."""
    rest = ref.complement(*t, bound)
    if rest is None:
        return None
    free = ref.image(tuple(rest[0]), tuple(rest[1]))
    covered = set(ref.sums(ref.image(*t), free))
    return free if covered == set(range(len(covered))) and len(covered) >= bound else None


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
    """A o (T, T*): the values of the tile's mode and of the tiles' mode, or None where no layout has them all."""
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
    """The truth of a divide: (tile, tiles) for a tile, a list for a tuple, the values for None; "none" for no layout."""
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
    """The offsets of A's copies in the order of B: A* o B, with A* up to size(A) * cosize(B); None for no layout."""
    picks = ref.image(*other)
    reach = max(picks) + 1
    rest = ref.complement(*pair, ref.size(pair[0]) * reach)
    if rest is None:
        return None
    free = ref.image(tuple(rest[0]), tuple(rest[1]))
    if reach > len(free):
        return None
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
    threads, values = (Layout(s, ref.like(s, _compact(rng, list(s)))) for s in shapes)
    tiler, tv = make_layout_tv(threads, values)
    assert list(tiler) == [s * t for s, t in zip(*shapes, strict=True)]
    for i, c in enumerate(ref.coordinates(tuple(tiler))):
        t = threads(tuple(x // v for x, v in zip(c, shapes[1], strict=True)))
        v = values(tuple(x % v for x, v in zip(c, shapes[1], strict=True)))
        assert tv(t, v) == i, f"{threads}, {values}: {tv}"
    return True


def _compact(rng: random.Random, extents: list[int]) -> list[int]:
    order, strides, top = list(range(len(extents))), [0] * len(extents), 1
    rng.shuffle(order)
    for i in order:
        strides[i], top = top, top * extents[i]
    return strides


# ---------------------------------------------------------------- complement and inverses


@law(300)
def complement(rng: random.Random) -> bool:
    pair = draw(rng, negative=True)
    bound = rng.choice((None, rng.randint(1, 100), ref.size(pair[0]), 2 * ref.size(pair[0])))
    answer = attempt(lambda: Layout(*pair).complement(bound))
    long = [(s, d) for s, d in zip(ref.leaves(pair[0]), ref.leaves(pair[1]), strict=True) if s > 1]
    truth = None if any(d < 0 for _, d in long) else ref.complement(*pair, bound or 1)
    assert (answer is REFUSED) == (truth is None), f"complement of {Layout(*pair)} to {bound}: {answer}"
    if truth is None:
        return False
    assert image(answer) == ref.image(tuple(truth[0]), tuple(truth[1])), f"{Layout(*pair)} to {bound}: {answer}"
    own = set(ref.image(*pair))
    assert len({x + y for x in own for y in image(answer)}) == len(own) * answer.size, "translates overlap"
    return True


@law(200)
def right_inverse(rng: random.Random) -> bool:
    pair = draw(rng, 36, negative=True)
    values = ref.image(*pair)
    answer = Layout(*pair).right_inverse()
    found = image(answer)
    assert [values[x] for x in found] == list(range(len(found))), f"{Layout(*pair)}: {answer}"
    if min(values) >= 0 and len(set(values)) == len(values):
        # no larger one: a right inverse of size m is these indices, where they are a layout
        place = {v: i for i, v in enumerate(values)}
        for m in range(len(found) + 1, len(values) + 1):
            if m - 1 not in place:
                break
            longer = [place[i] for i in range(m)]
            assert not ref.is_layout_function(longer), f"{Layout(*pair)}: {answer}, and {longer} is larger"
    return answer.size > 1


@law(200)
def left_inverse(rng: random.Random) -> bool:
    pair = draw(rng, 36, negative=True)
    values = ref.image(*pair)
    answer = attempt(lambda: Layout(*pair).left_inverse())
    if answer is not REFUSED:
        assert on((answer.shape, answer.stride), values) == list(range(len(values))), f"{Layout(*pair)}: {answer}"
        return True
    if min(values) >= 0 and len(set(values)) == len(values):
        assert exact_complement(pair, 1) is None, f"{Layout(*pair)} has a left inverse"
    return False


@law(200)
def nullspace(rng: random.Random) -> bool:
    pair = draw(rng)
    layout, values = Layout(*pair), ref.image(*pair)
    extents, strides = ref.leaves(pair[0]), ref.leaves(pair[1])
    answer = layout.nullspace()
    assert answer.size == prod(s for s, d in zip(extents, strides, strict=True) if d == 0)
    spent = image(answer)
    for x in range(len(values)):
        digits = ref.digits(x, extents)
        if all(i == 0 for i, d in zip(digits, strides, strict=True) if d == 0):
            assert {values[x + r] for r in spent} == {values[x]}, f"{layout}: {answer}"
    return len(set(spent)) == answer.size


@law(200)
def max_common(rng: random.Random) -> bool:
    a = draw(rng, 36, negative=True)
    b = a if rng.random() < 0.2 else draw(rng, 36, negative=True)
    if rng.random() < 0.4:
        b = a[0], ref.like(a[0], [d if rng.random() < 0.8 else d + 1 for d in ref.leaves(a[1])])
    left, right = Layout(*a), Layout(*b)
    answer = left.max_common_layout(right)
    x, y, found = ref.image(*a), ref.image(*b), image(answer)
    assert len(found) == left.max_common_vector(right)
    assert [x[i] for i in found] == [y[i] for i in found] == list(range(len(found))), f"{left}, {right}: {answer}"
    # the largest along the right inverse: it takes whole modes of it, and the last one as far as it goes
    inverse = right.right_inverse()
    table, end = image(inverse), 1
    for s in ref.leaves(inverse.coalesce().shape):
        for n in range(1, s + 1):
            if end * n > len(found):
                reached = [i < len(x) and x[i] == j for j, i in enumerate(table[: end * n])]
                assert not all(reached), f"{left}, {right}: {answer}, and {end * n} agree"
        end *= s
    return answer.size > 1


# ---------------------------------------------------------------- the same function, other modes


@law(200)
def coalesce_and_flatten(rng: random.Random) -> bool:
    pair = draw(rng, negative=True)
    layout, values = Layout(*pair), ref.image(*pair)
    form = ref.canonical(values)
    assert form is not None
    least, flat = layout.coalesce(), layout.flatten()
    assert image(least) == image(flat) == values, f"{layout}: {least}"
    assert (ref.leaves(least.shape), ref.leaves(least.stride)) == (form if form[0] else ([1], [0])), (
        f"{layout}: {least}"
    )
    assert ref.leaves(flat.shape) == ref.leaves(pair[0]) and ref.leaves(flat.stride) == ref.leaves(pair[1])
    profile = tuple(rng.choice((1, 1, None)) for _ in ref.modes(pair[0]))
    kept = layout.coalesce(profile)
    for part, mode, marked in zip(parts(pair), kept, profile, strict=True):
        assert mode == (Layout(*part).coalesce() if marked else Layout(*part)), f"{layout}, {profile}: {kept}"
    return True


@law(100)
def filter_zeros(rng: random.Random) -> bool:
    pair = draw(rng)
    moving = [(s, d) for s, d in zip(ref.leaves(pair[0]), ref.leaves(pair[1]), strict=True) if d != 0]
    truth = ref.image(tuple(s for s, _ in moving), tuple(d for _, d in moving))
    answer = Layout(*pair).filter()
    assert image(answer) == truth and set(truth) == set(ref.image(*pair)), f"{Layout(*pair)}: {answer}"
    return True


@law(100)
def grouped_and_chosen_modes(rng: random.Random) -> bool:
    rank = rng.randint(1, 4)
    pair, other = draw(rng, 60, rank=rank), draw(rng, 6, 2)
    layout, extra = Layout(*pair), Layout(*other)
    tables = [ref.image(*part) for part in parts(pair)]
    begin = rng.randrange(rank)
    end = rng.randint(begin + 1, rank)
    grouped = layout.group(begin, end)
    assert image(grouped) == ref.sums(*tables)
    assert sizes(grouped) == [*map(len, tables[:begin]), prod(map(len, tables[begin:end])), *map(len, tables[end:])]
    for wrong in ((end, end), (end, begin), (-1, end), (begin, rank + 1)):
        assert attempt(lambda: layout.group(*wrong)) is REFUSED, f"{layout}.group{wrong}"  # noqa: B023
    chosen = [rng.randrange(rank) for _ in range(rng.randint(1, 3))]
    picked = select(layout, tuple(chosen))
    assert image(picked) == ref.sums(*[tables[i] for i in chosen]) and sizes(picked) == [len(tables[i]) for i in chosen]
    assert image(append(layout, extra)) == ref.sums(*tables, ref.image(*other))
    assert image(prepend(layout, extra)) == ref.sums(ref.image(*other), *tables)
    return True


@law(200)
def slices_and_dices(rng: random.Random) -> bool:
    pair = draw(rng, negative=True)
    layout = Layout(*pair)

    def pattern(shape: Any) -> Any:
        if isinstance(shape, tuple) and rng.random() < 0.7:
            return tuple(pattern(s) for s in shape)
        return None if rng.random() < 0.5 else rng.randrange(ref.size(shape))

    def walk(p: Any, shape: Any, stride: Any) -> Iterator[tuple[Any, Pair]]:
        if isinstance(p, tuple):
            for x, s, d in zip(p, shape, stride, strict=True):
                yield from walk(x, s, d)
        else:
            yield p, (shape, stride)

    coord = pattern(pair[0])
    entries = list(walk(coord, *pair))
    rest, offset = layout.slice(coord)
    assert offset == sum(ref.offset(p, *part) for p, part in entries if p is not None), f"{layout}, {coord}"
    assert image(rest) == ref.sums(*[ref.image(*part) for p, part in entries if p is None]), (
        f"{layout}, {coord}: {rest}"
    )
    if coord is not None:
        diced = layout.dice(coord)
        assert image(diced) == ref.sums(*[ref.image(*part) for p, part in entries if p is not None]), (
            f"{layout}: {diced}"
        )
    return True


@law(100)
def ordered(rng: random.Random) -> bool:
    extents = [rng.randint(1, 5) for _ in range(rng.randint(1, 4))]
    order = list(range(len(extents)))
    rng.shuffle(order)
    layout, top = Layout.ordered(tuple(extents), tuple(order)), 1
    for mode in sorted(range(len(extents)), key=lambda m: order[m]):
        assert image(layout[mode]) == [i * top for i in range(extents[mode])], f"{extents}, {order}: {layout}"
        top *= extents[mode]
    return True


# ---------------------------------------------------------------- other widths of elements


@law(300)
def upcast(rng: random.Random) -> bool:
    """R(c) = L(k*c) // n with k = ceil(n / stride) in each mode of a stride below n."""
    pair, n = draw(rng, 48, negative=True), rng.choice((2, 2, 3, 4, 8))
    layout = Layout(*pair)
    answer = attempt(lambda: layout.upcast(n))
    if answer is REFUSED:
        return False
    steps = [-(-n // d) if 0 < d < n else 1 for d in ref.leaves(pair[1])]
    extents = [-(-s // k) for s, k in zip(ref.leaves(pair[0]), steps, strict=True)]
    assert ref.leaves(answer.shape) == extents, f"{layout} by {n}: {answer}"
    for c in ref.coordinates(tuple(extents)):
        start = sum(x * k * d for x, k, d in zip(c, steps, ref.leaves(pair[1]), strict=True))
        assert answer(ref.like(pair[0], list(c))) == start // n, f"{layout} by {n}: {answer} at {c}"
    return True


@law(300)
def recast(rng: random.Random) -> bool:
    """The same bits. Of a layout without gaps: each bit in one element before and after, and the elements are whole."""
    old, new = rng.choice(((8, 16), (16, 8), (8, 32), (8, 12), (12, 8), (8, 6), (6, 8), (24, 16), (16, 24), (8, 8)))
    flat = [rng.choice((1, 2, 3, 4, 6, 8)) for _ in range(rng.randint(1, 3))]
    pair = tuple(flat), tuple(_compact(rng, flat))
    layout = Layout(*pair)
    answer = attempt(lambda: layout.recast(new, old))
    before, bits = sorted(ref.image(*pair)), prod(flat) * old
    if answer is REFUSED:
        return False
    assert before == list(range(prod(flat)))
    after = sorted(image(answer))
    if prod(flat) > 1 or new <= old:
        assert bits % new == 0 and after == list(range(bits // new)), f"{layout} from {old} to {new}: {answer}"
    return True


@law(200)
def downcast(rng: random.Random) -> bool:
    """n parts of each element, in the mode of stride 1 where there is one."""
    pair, n = draw(rng, 36), rng.choice((1, 2, 3, 4))
    layout, strides = Layout(*pair), ref.leaves(pair[1])
    answer = attempt(lambda: layout.downcast(n))
    if answer is REFUSED:
        return False
    if strides.count(1) == 0:
        assert image(answer) == [n * v for v in ref.image(*pair)]
    elif strides.count(1) == 1:
        where = strides.index(1)
        for i, c in enumerate(ref.coordinates(tuple(ref.leaves(answer.shape)))):
            element = [x // n if j == where else x for j, x in enumerate(c)]
            value = sum(x * d for x, d in zip(element, strides, strict=True))
            assert answer(i) == n * value + c[where] % n, f"{layout} by {n}: {answer} at {c}"
    return True


# ---------------------------------------------------------------- statements


@law(200)
def statements(rng: random.Random) -> bool:
    pair = draw(rng, 48, negative=True)
    layout, values = Layout(*pair), ref.image(*pair)
    seen: dict[int, int] = {}
    clash = next(((seen[v], i) for i, v in enumerate(values) if seen.setdefault(v, i) != i), None)
    verdict = layout.is_injective()
    assert verdict.ok == (clash is None) and verdict.witness == clash, f"{layout}: {verdict}"
    assert clash is None or f"indices {clash[0]} and {clash[1]} both give {values[clash[0]]}" in verdict.explain()
    assert layout.is_bijective().ok == (sorted(values) == list(range(len(values))))
    other = draw(rng, 48, negative=True) if rng.random() < 0.5 else (pair[0], pair[1])
    same = layout.equivalent(Layout(*other))
    assert same.ok == (values == ref.image(*other)), f"{layout}, {Layout(*other)}: {same}"
    if not same.ok:
        theirs = ref.image(*other)
        common = min(len(values), len(theirs))
        first = next((i for i in range(common) if values[i] != theirs[i]), common)
        assert same.index == first, f"{layout}, {Layout(*other)}: {same}"
    return clash is None


def run(name: str, factor: int = 1, seed: int = 0) -> tuple[int, int]:
    """How many cases of a law were answered, and how many were drawn."""
    check, count = LAWS[name]
    rng = random.Random(f"{name} {seed}")
    return sum(check(rng) for _ in range(count * factor)), count * factor


if __name__ == "__main__":
    for law_name in LAWS:
        print(law_name, *run(law_name, *map(int, sys.argv[1:3])), flush=True)
