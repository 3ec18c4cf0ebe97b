"""Divides and products against their defining equations, and the rearrangements against each other."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layoutgemm import dim
from layoutgemm.errors import CompositionError, LayoutError
from layoutgemm.layouts import E, Layout, make_layout_tv
from tests.layouts import reference as ref
from tests.layouts.strategies import INJECTIVE, Pair, inside, pairs, random_pair, random_shape, random_stride, seeds


def image(layout: Layout) -> list[int]:
    return [layout(i) for i in range(layout.size)]


def sizes(layout: Layout) -> list[int]:
    return [ref.size(s) for s in ref.modes(layout.shape)]


def table(pair: Pair) -> list[int]:
    return ref.image(*pair)


# Divide ---------------------------------------------------------------------------------------------------------------


def quotient(pair: Pair, tile: Pair) -> tuple[list[int], list[int]] | None:
    """A o (T, T*) by definition: its values and the extents of its modes; None where no T* leaves nothing out.

    Past the end of A its last entry runs on, so every value is defined, those of tiles that hang over included.
    """
    rest = ref.complement(*tile, ref.size(pair[0]))
    if rest is None:
        return None
    covered = sorted(set(ref.sums(table(tile), ref.image(tuple(rest[0]), tuple(rest[1])))))
    if covered != list(range(len(covered))):
        return None
    free = ref.image(tuple(rest[0]), tuple(rest[1]))
    picks = ref.sums(table(tile), free)
    shape, stride = pair
    values = [ref.offset(p, shape, stride, wrap_last=False) for p in picks]
    return values, [*ref.leaves(tile[0]), *(ref.canonical(free) or ([], []))[0]]


def judge_divide(pair: Pair, tile: Pair, answer: Layout | LayoutError) -> bool:
    """One divide by one tile: True where the defining equation has a layout, which must then be the answer."""
    text = f"{Layout(*pair)} / {Layout(*tile)}: {answer}"
    truth = quotient(pair, tile)
    if truth is None:
        assert isinstance(answer, LayoutError), text
        return False
    values, extents = truth
    misfit = ref.first_misfit(values, extents)
    if misfit is not None:
        if isinstance(answer, LayoutError):
            assert answer.witness == misfit, f"{text}: misfit at {misfit}"
        else:
            judge_rounded(pair, tile, answer)
        return False
    assert not isinstance(answer, LayoutError), text
    assert image(answer) == values, text
    assert sizes(answer) == [ref.size(tile[0]), len(values) // ref.size(tile[0])], text
    return True


def judge_rounded(pair: Pair, tile: Pair, answer: Layout) -> None:
    """A divide with an entry rounded up: the tile lies as in A, and each element of A is at one place.

    The places are coordinates of the coalesced A, which the same divide of the identity gives.
    """
    text = f"{Layout(*pair)} / {Layout(*tile)}: {answer}"
    extents, strides = ref.canonical(table(pair)) or ([], [])
    broadcast = ref.size(tile[0]) // len(set(table(tile)))
    places = Layout(tuple(extents), tuple(E(i) for i in range(len(extents)))).logical_divide(Layout(*tile))
    coords = [places(i) for i in range(places.size)]
    assert image(answer) == [sum(x * d for x, d in zip(c, strides, strict=True)) for c in coords], text
    inside = [c for c in coords if all(x < n for x, n in zip(c, extents, strict=True))]
    assert sorted(inside) == sorted(list(ref.coordinates(tuple(extents))) * broadcast), text
    first = [ref.offset(x, tuple(extents), tuple(strides), wrap_last=False) for x in table(tile)]
    assert image(answer)[: len(first)] == first and sizes(answer)[0] == len(first), text


def attempt(call: Callable[[], Layout]) -> Layout | LayoutError:
    try:
        return call()
    except LayoutError as error:
        return error


@given(pairs(limit=120), seeds)
def test_logical_divide_by_a_layout(left: Pair, rng: random.Random) -> None:
    """A / T = A o (T, T*): the tile's positions, then the tile repeated over what it leaves free."""
    tile = inside(rng, left, ("compact", "permuted", "padded", "broadcast"))
    a, t = Layout(*left), Layout(*tile)
    answer = attempt(lambda: a.logical_divide(t))
    judge_divide(left, tile, answer)
    if isinstance(answer, Layout):  # one layout as tiler: all rearrangements are the same values
        for other in (a.zipped_divide(t), a.tiled_divide(t), a.flat_divide(t)):
            assert image(other) == image(answer)
        assert sizes(a.zipped_divide(t)) == sizes(answer)


def test_divides_by_the_hundred() -> None:
    rng = random.Random(8)
    exact = 0
    for _ in range(500):
        left = random_pair(rng, limit=80, leaves=3)
        tile = inside(rng, left, ("compact", "permuted", "broadcast"))
        exact += judge_divide(left, tile, attempt(lambda: Layout(*left).logical_divide(Layout(*tile))))  # noqa: B023
    assert exact > 150, exact


@pytest.mark.parametrize(
    ("layout", "tile", "answer"),
    [
        ("5:1", "2:1", "(2,3):(1,2)"),
        ("10:3", "4:1", "(4,3):(3,12)"),
        ("10:1", "2:4", "(2,(4,2)):(4,(1,8))"),
        ("4:1", "8:1", "(8,1):(1,0)"),  # a tile larger than the layout
        ("(4,5):(1,8)", "8:1", "((4,2),3):((1,8),16)"),  # the whole of a matrix ends in its last mode
        ("((4,5),3):((1,8),40)", "16:1", "((4,4),4):((1,8),32)"),
    ],
)
def test_overhanging_tiles(layout: str, tile: str, answer: str) -> None:
    """Over the end of what is divided its last entry runs on."""
    a, t, want = (Layout.parse(text) for text in (layout, tile, answer))
    assert judge_divide((a.shape, a.stride), (t.shape, t.stride), a.logical_divide(t))
    assert image(a.logical_divide(t)) == image(want)


@pytest.mark.parametrize(
    ("layout", "tile", "answer"),
    [
        ("(3,4):(1,6)", "2:1", "(2,(2,4)):(1,(2,6))"),
        ("(6,5):(4,8)", "4:1", "(4,(2,5)):(4,(16,8))"),
        ("(5,4):(1,8)", "2:2", "(2,(2,8)):(2,(1,4))"),
        ("(6,2):(1,60)", "2:4", "(2,(4,2)):(4,(1,60))"),
        ("(5,2):(1,60)", "2:1", "(2,(3,2)):(1,(2,60))"),
        ("((3,4),2):((1,6),24)", "2:1", "(2,(2,8)):(1,(2,6))"),
        ("(5,2):(1@0,1@1)", "2:1", "(2,(3,2)):(1@0,(2@0,1@1))"),
        # an entry of extent 1 at the end has no place past its end
        ("(10,1):(1,1)", "4:1", "(4,3):(1,4)"),
        ("(5,1):(1,100)", "2:1", "(2,3):(1,2)"),
        ("(4,2,1):(2,8,1)", "5:1", "(5,2):(2,10)"),
    ],
)
def test_a_tile_that_ends_inside_an_entry_rounds_it_up(layout: str, tile: str, answer: str) -> None:
    """The CuTe DSL 4.8.1 gives the same functions, but for (6,2) by 2:4: there it leaves out the second entry."""
    a, t = Layout.parse(layout), Layout.parse(tile)
    assert a.can_divide(t)
    assert str(a.logical_divide(t)) == answer == str(a.zipped_divide(t))
    if "@" not in layout:
        assert str(Layout.join(Layout(2), a).logical_divide((2, t))[1]) == answer
        judge_rounded((a.shape, a.stride), (t.shape, t.stride), a.logical_divide(t))


@pytest.mark.parametrize(
    ("layout", "tile", "misfit"),
    [
        ("(2,2):(2,1)", "5:1", 2),  # the tile passes an entry, and is no layout itself
        ("(5,2):(1,60)", "6:1", 5),
        ("(4,2):(12,1)", "6:1", 4),
    ],
)
def test_a_tile_that_passes_an_entry_is_refused(layout: str, tile: str, misfit: int) -> None:
    a, t = Layout.parse(layout), Layout.parse(tile)
    for divide in (a.logical_divide, a.zipped_divide, a.tiled_divide, a.flat_divide):
        with pytest.raises(CompositionError) as caught:
            divide(t)
        assert caught.value.witness == misfit == a.can_divide(t).witness
        assert str(a) in str(caught.value)
    # as the mode of a tuple tiler it is refused alike, and elsewhere the same tile may be right
    with pytest.raises(CompositionError):
        Layout.join(Layout(2), a).zipped_divide((2, t))


@pytest.mark.parametrize(
    ("layout", "tiler", "answer"),
    [
        # each mode of a tuple tiler has its own end, over which its last entry runs on
        ("(5,2):(1,60)", (2,), "((2,3),2):((1,2),60)"),
        ("(5,3):(1,60)", (2, 2), "((2,3),(2,2)):((1,2),(60,120))"),
        ("((4,5),3):((1,8),100)", (8, 2), "(((4,2),3),(2,2)):(((1,8),16),(100,200))"),
        ("((4,5),3):((1,8),100)", ((None, 2), None), "((4,(2,3)),3):((1,(8,16)),100)"),
    ],
)
def test_overhang_by_mode(layout: str, tiler: tuple, answer: str) -> None:
    a, want = Layout.parse(layout), Layout.parse(answer)
    assert a.logical_divide(tiler) == want


@given(pairs(limit=120), seeds)
def test_logical_divide_by_an_int_takes_blocks(pair: Pair, rng: random.Random) -> None:
    a = Layout(*pair)
    n = rng.choice([k for k in range(1, a.size + 1) if a.size % k == 0])
    answer = attempt(lambda: a.logical_divide(n))
    if judge_divide(pair, (n, 1), answer):
        assert isinstance(answer, Layout) and image(answer) == table(pair)
        assert image(a.logical_divide(Layout(n, 1))) == image(answer)


def tilings(seed: int, count: int) -> Iterator[tuple[Pair, Layout, tuple, Layout]]:
    """Random layouts with a tuple tiler that divides them exactly, and the logical divide."""
    rng = random.Random(seed)
    while count:
        extents = [rng.choice((2, 3, 4, 6, 8, 12)) for _ in range(rng.randint(1, 3))]
        shape = tuple(
            (s // k, k) if (k := rng.choice([d for d in range(1, s + 1) if s % d == 0])) > 1 else s for s in extents
        )
        pair = shape, random_stride(rng, shape, rng.choice(("compact", "permuted", "padded", "broadcast")))
        tiler, exact = [], True
        for i, extent in enumerate(extents[: rng.randint(1, len(extents))]):
            size = rng.choice([d for d in range(1, extent + 1) if extent % d == 0])
            step = rng.choice([d for d in range(1, extent // size + 1) if (extent // size) % d == 0])
            tiler.append(rng.choice((size, Layout(size, step), Layout(size, 1))))
            tile = tiler[i] if isinstance(tiler[i], Layout) else Layout(tiler[i])
            truth = quotient((pair[0][i], pair[1][i]), (tile.shape, tile.stride))
            exact = exact and truth is not None and ref.first_misfit(*truth) is None
        if exact:
            a = Layout(*pair)
            yield pair, a, tuple(tiler), a.logical_divide(tuple(tiler))
            count -= 1


def test_logical_divide_by_mode_is_the_divide_of_each_mode() -> None:
    for pair, a, tiler, answer in tilings(1, 200):
        assert answer.rank == a.rank
        for i in range(a.rank):
            mode = a[i].shape, a[i].stride
            if i >= len(tiler):
                assert image(answer[i]) == table(mode)
                continue
            tile = tiler[i] if isinstance(tiler[i], Layout) else Layout(tiler[i])
            assert judge_divide(mode, (tile.shape, tile.stride), answer[i])
        assert sorted(image(answer)) == sorted(table(pair))


def test_divide_rearrangements_hold_the_same_elements() -> None:
    """zipped ((tiles), (rests)), tiled ((tiles), rest, rest), flat (tile, tile, rest, rest): one set of coordinates."""
    for pair, a, tiler, logical in tilings(2, 100):
        k = len(tiler)
        zipped, tiled, flat = a.zipped_divide(tiler), a.tiled_divide(tiler), a.flat_divide(tiler)
        inner = [sizes(logical[i])[0] for i in range(k)]
        outer = [sizes(logical[i])[1] for i in range(k)] + [a[i].size for i in range(k, a.rank)]
        assert sizes(zipped) == [ref.size(tuple(inner)), ref.size(tuple(outer))]
        assert sizes(zipped[0]) == inner and sizes(zipped[1]) == outer
        assert sizes(tiled) == [ref.size(tuple(inner)), *outer]
        assert sizes(flat) == [*inner, *outer]
        assert image(zipped) == image(tiled) == image(flat), f"{a} by {tiler}"
        assert sorted(image(zipped)) == sorted(table(pair))
        for i, coord in enumerate(ref.coordinates(tuple(inner + outer))):
            inner_at, outer_at = coord[:k], coord[k:]
            by_mode = [(x, y) for x, y in zip(inner_at, outer_at, strict=False)] + list(outer_at[k:])
            assert logical(tuple(by_mode)) == flat(i) == zipped(inner_at, outer_at)


def test_tiles_of_a_matrix() -> None:
    """128x64 row-major in 64x16 tiles: tile (i, j) starts at (64 i, 16 j)."""
    a = Layout((128, 64), (64, 1))
    tiles = a.zipped_divide((64, 16))
    for i, j in ((0, 0), (1, 0), (0, 3), (1, 2)):
        for r, c in ((0, 0), (5, 7), (63, 15)):
            assert tiles((r, c), (i, j)) == (64 * i + r) * 64 + 16 * j + c


def test_divide_refuses_more_tiles_than_modes() -> None:
    with pytest.raises(LayoutError, match=r"a tiler of 3 modes for \(4,8\)"):
        Layout((4, 8)).logical_divide((2, 2, 2))
    with pytest.raises(LayoutError, match=r"a tiler of 3 modes for \(4,8\)"):
        Layout((4, 8)).zipped_divide((2, 2, 2))


# Products -------------------------------------------------------------------------------------------------------------


def product_pairs(rng: random.Random) -> tuple[Pair, Pair]:
    left = random_pair(rng, limit=60, leaves=3)
    right = random_pair(rng, ("compact", "permuted", "broadcast", "padded"), limit=24, leaves=3)
    return left, right


@pytest.mark.parametrize("seed", range(4))
def test_logical_product(seed: int) -> None:
    """A x B = (A, A* o B). A* is the complement of A up to size(A) * cosize(B)."""
    rng = random.Random(seed)
    answered = 0
    for _ in range(150):
        left, right = product_pairs(rng)
        a, b = Layout(*left), Layout(*right)
        rest = ref.complement(*left, a.size * b.cosize)
        if rest is None:
            with pytest.raises(LayoutError):
                a.logical_product(b)
            continue
        free = ref.image(tuple(rest[0]), tuple(rest[1]))
        picks = table(right)
        if max(picks) >= len(free):  # only where A has gaps that do not divide, or repeats
            continue
        second = [free[p] for p in picks]
        misfit = ref.first_misfit(second, ref.leaves(right[0]))
        try:
            answer = a.logical_product(b)
        except LayoutError as error:
            assert misfit is not None, f"{a} x {b}: {error}"
            continue
        answered += 1
        assert misfit is None
        assert image(answer[0]) == table(left) and answer[0] == a
        assert image(answer[1]) == second and sizes(answer) == [a.size, b.size]
        assert image(answer) == ref.sums(table(left), second)
        if len(set(table(left))) == a.size and len(set(picks)) == b.size:
            assert len(set(image(answer))) == answer.size, "copies of an injective tile must not overlap"
        # one layout as tiler: all rearrangements are the same two modes
        for other in (a.zipped_product(b), a.tiled_product(b), a.flat_product(b)):
            assert image(other) == image(answer)
    assert answered > 70


def test_product_by_an_int_repeats() -> None:
    """A known trap: one reference implementation divides here."""
    assert image(Layout(8, 1).logical_product(2)) == list(range(16))
    assert sizes(Layout((2, 3)).logical_product(3)) == [6, 3]
    assert Layout((2, 3)).logical_product(3) == Layout((2, 3)).logical_product(Layout(3, 1))
    assert image(Layout(4, 2).logical_product(2)) == [0, 2, 4, 6, 1, 3, 5, 7]


def test_modes_of_one_element_count_no_copies() -> None:
    """A negative stride that no coordinate multiplies is no direction to count in."""
    n = dim("N")
    for a, b in [(Layout(3), Layout((2, 1), (1, -4))), (Layout((2, 2), (1, 2)), Layout((3, (1, 1)), (1, (-1, 5))))]:
        plain = Layout(b.shape, ref.like(b.shape, [d if d > 0 else 0 for d in ref.leaves(b.stride)]))
        assert image(a.logical_product(b)) == image(a.logical_product(plain))
    assert str(Layout(3).logical_product(Layout((n, 1), (1, -1)))[1]) == "(N,1):(3,0)"
    with pytest.raises(LayoutError, match="mode 2:-1 has a negative stride"):
        Layout(3).logical_product(Layout((2, 2), (2, -1)))


def matrices(seed: int, count: int) -> Iterator[tuple[Pair, Pair, list[int], list[int]]]:
    """A tile, an arrangement of the same rank, A's values and where each copy starts."""
    rng = random.Random(seed)
    while count:
        rank = rng.randint(1, 3)
        limit = (0, 12, 6, 4)[rank]
        shapes = [tuple(random_shape(rng, limit, 2, (1, 2, 3, 4), depth=1) for _ in range(rank)) for _ in range(2)]
        left, right = ((s, random_stride(rng, s, rng.choice(("compact", "permuted")))) for s in shapes)
        size = ref.size(left[0])
        count -= 1
        yield left, right, table(left), [size * v for v in table(right)]


def test_blocked_and_raked_products() -> None:
    """blocked: mode m is (A_m, B_m), whole tiles side by side; raked: (B_m, A_m), tiles interleaved."""
    for left, right, values, starts in matrices(4, 80):
        a, b = Layout(*left), Layout(*right)
        blocked, raked = a.blocked_product(b), a.raked_product(b)
        inner, outer = [ref.size(s) for s in left[0]], [ref.size(s) for s in right[0]]
        both = [s * t for s, t in zip(inner, outer, strict=True)]
        assert sizes(blocked) == sizes(raked) == both
        for i, c in enumerate(ref.coordinates(tuple(both))):
            assert blocked(i) == pick(values, c, inner, 0) + pick(starts, c, inner, 1, outer)
            assert raked(i) == pick(values, c, outer, 1, inner) + pick(starts, c, outer, 0)


def test_blocked_and_raked_products_of_plain_ints() -> None:
    """Rank 1 without a tuple around it, and ranks that differ: the missing modes have extent 1."""
    assert image(Layout(3).blocked_product(Layout(2))) == [0, 1, 2, 3, 4, 5]
    assert image(Layout(3).raked_product(Layout(2))) == [0, 3, 1, 4, 2, 5]
    assert image(Layout(3).blocked_product(2)) == [0, 1, 2, 3, 4, 5]
    assert sizes(Layout(3).blocked_product(Layout((2, 2)))) == [6, 2]
    assert sizes(Layout((3, 5)).raked_product(Layout(2))) == [6, 5]
    assert Layout(3).blocked_product(Layout(2)).rank == Layout(3).raked_product(Layout(2)).rank == 1


def pick(table: list[int], coord: tuple, fast: list[int], which: int, shape: list[int] | None = None) -> int:
    """Split each digit by the fast extents, select the fast (0) or slow (1) parts. Look them up."""
    parts = tuple(divmod(x, f)[1 - which] for x, f in zip(coord, fast, strict=True))
    return table[ref.flat_index(parts, tuple(shape or fast))]


def test_tile_to_shape() -> None:
    """The tile repeated until the shape is full, copies in the given order of modes. The lowest number comes first."""
    rng = random.Random(6)
    for left, _, values, _ in matrices(7, 80):
        rank, inner = len(left[0]), [ref.size(s) for s in left[0]]
        counts = [rng.choice((1, 2, 3)) for _ in range(rank)]
        order = list(range(rank))
        rng.shuffle(order)
        target = tuple(s * n for s, n in zip(inner, counts, strict=True))
        answer = Layout(*left).tile_to_shape(target, tuple(order))
        steps, top = [0] * rank, ref.size(left[0])
        for mode in sorted(range(rank), key=lambda m: order[m]):
            steps[mode] = top
            top *= counts[mode]
        assert sizes(answer) == list(target)
        for i, c in enumerate(ref.coordinates(target)):
            base = sum(x // s * d for x, s, d in zip(c, inner, steps, strict=True))
            at = tuple(x % s for x, s in zip(c, inner, strict=True))
            assert answer(i) == base + values[ref.flat_index(at, tuple(inner))]
        default = Layout(*left).tile_to_shape(target)
        assert image(default) == image(Layout(*left).tile_to_shape(target, tuple(range(rank))))


def test_a_block_of_the_targets_shape_fills_it_whatever_its_values() -> None:
    """One copy needs no complement, which a layout of overlapping modes has not."""
    block, M = Layout((4, 3), (1, 2)), dim("M")
    assert str(block.tile_to_shape((4, 3))) == "((4,1),(3,1)):((1,0),(2,0))"
    assert str(Layout((4, M), (1, 2)).tile_to_shape((4, M))) == "((4,1),(M,1)):((1,0),(2,0))"
    with pytest.raises(LayoutError, match="mode 3:2 begins at 2, below 4"):
        block.tile_to_shape((8, 3))


def test_tile_to_shape_refuses_what_does_not_divide() -> None:
    with pytest.raises(LayoutError, match="extent 6, no multiple of the block's 4"):
        Layout((4, 8)).tile_to_shape((6, 8))
    with pytest.raises(LayoutError, match=r"order \(0,0,1\): two modes"):
        Layout((4, 8)).tile_to_shape((4, 8, 2), (0, 0, 1))
    with pytest.raises(LayoutError, match=r"order \(0,0\): two modes"):
        Layout((4, 8)).tile_to_shape((8, 8), (0, 0))


# Ordered and reshaped layouts, thread-value layouts -------------------------------------------------------------------


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), seeds)
def test_ordered(extents: list[int], rng: random.Random) -> None:
    order = list(range(len(extents)))
    rng.shuffle(order)
    layout = Layout.ordered(tuple(extents), tuple(order))
    top = 1
    for mode in sorted(range(len(extents)), key=lambda m: order[m]):
        assert extents[mode] == 1 or layout.stride[mode] == top
        top *= extents[mode]
    assert layout.shape == tuple(extents) and sorted(image(layout)) == list(range(top))


@given(pairs(families=INJECTIVE, limit=400), seeds)
def test_with_shape(pair: Pair, rng: random.Random) -> None:
    """The same flat function with other coordinates, or a refusal where they do not fit."""
    layout, values = Layout(*pair), table(pair)
    left = layout.size
    extents = []
    while left > 1 and len(extents) < 3:
        extents.append(rng.choice([k for k in range(1, left + 1) if left % k == 0]))
        left //= extents[-1]
    shape = (*extents, left)
    try:
        answer = layout.with_shape(shape)
    except LayoutError:
        assert ref.first_misfit(values, list(shape)) is not None
        return
    assert image(answer) == values and sizes(answer) == list(shape)


def test_with_shape_refuses_another_size() -> None:
    for shape in (25, (5, 6), (24, 2)):
        with pytest.raises(LayoutError):
            Layout((4, 6), (6, 1)).with_shape(shape)


def test_make_layout_tv_refuses_layouts_that_number_nothing() -> None:
    """A map past the end of their right inverse misses elements or repeats them."""
    for threads, values, said in (
        (Layout((4, 8), (9, 1)), Layout((2, 2)), "the thread layout (4,8):(9,1) is to number 32 threads 0 to 31"),
        (Layout((4, 8), (16, 2)), Layout(1), "thread layout (4,8):(16,2)"),
        (Layout((4, 2), (1, 0)), Layout(4), "indices 0 and 4 both give 0"),
        (Layout(4), Layout(4, 2), "the value layout 4:2 is to number 4 values 0 to 3, each once"),
        (Layout((4, 8), (8, 1)), Layout((2, 2), (5, 1)), "(1,1) gives 6"),
        (Layout((dim("M"), 4), (5, 1)), Layout(2), "thread layout (M,4):(5,1)"),
    ):
        with pytest.raises(LayoutError) as error:
            make_layout_tv(threads, values)
        assert said in str(error.value)


def test_make_layout_tv() -> None:
    """(thread, value) -> position in the tile, inverse to the raked product of threads and values."""
    rng = random.Random(9)
    for _ in range(120):
        shapes = [tuple(rng.choice((1, 2, 4, 3)) for _ in range(2)) for _ in range(2)]
        threads, values = (Layout(s, random_stride(rng, s, rng.choice(("compact", "permuted")))) for s in shapes)
        tiler, tv = make_layout_tv(threads, values)
        tile = [ref.size(t) for t in tiler]
        assert tile == [s * t for s, t in zip(*shapes, strict=True)]
        assert sizes(tv) == [threads.size, values.size]
        owner = {}
        for t in range(threads.size):
            for v in range(values.size):
                owner[tv(t, v)] = (t, v)
        assert sorted(owner) == list(range(tile[0] * tile[1])), "every element has one owner"
        for i, (m, n) in enumerate(ref.coordinates(tuple(tile))):
            at_thread = m // shapes[1][0], n // shapes[1][1]
            at_value = m % shapes[1][0], n % shapes[1][1]
            assert owner[i] == (threads(at_thread), values(at_value))
