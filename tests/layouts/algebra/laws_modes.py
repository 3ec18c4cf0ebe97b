"""Laws of operations on one layout, of max_common and of statements. See test_laws."""

from __future__ import annotations

import random
from collections.abc import Iterator
from math import prod
from typing import Any

from layoutgemm.layouts import Layout, append, prepend, select
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
)
from tests.layouts.strategies import Pair

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
        assert exact_complement(pair, max(values) + 1) is None, f"{Layout(*pair)} has a left inverse"
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
    """R(c) = L(k*c) // n with k = ceil(n / stride) for strides below n."""
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
    pair = tuple(flat), tuple(compact_strides(rng, flat))
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
