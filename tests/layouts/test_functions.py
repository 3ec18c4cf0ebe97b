"""A layout as a function: values, coordinates, printing, coalescing, filtering, predicates, against brute force."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import layoutgemm.layouts as layouts
from layoutgemm.errors import CoordinateError, LayoutError
from layoutgemm.layouts import ComposedLayout, E, Layout, LinearLayout, Swizzle, Verdict, idx2crd, int_tuple
from layoutgemm.pytest_plugin import explanation, is_false_verdict
from tests.layouts import reference as ref
from tests.layouts.strategies import INJECTIVE, Pair, pairs, refined, seeds


class Traced:
    """A stand-in for a compiler's traced integer: it has + * % // and nothing else, not even a truth value."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __bool__(self) -> bool:
        raise TypeError("a traced value has no truth value at trace time")

    def __add__(self, other: object) -> Traced:
        return Traced(self.value + plain(other))

    def __mul__(self, other: object) -> Traced:
        return Traced(self.value * plain(other))

    def __mod__(self, other: object) -> Traced:
        return Traced(self.value % plain(other))

    def __floordiv__(self, other: object) -> Traced:
        return Traced(self.value // plain(other))

    __radd__, __rmul__ = __add__, __mul__


def plain(value: object) -> int:
    return value.value if isinstance(value, Traced) else int(value)


def deep(tree: ref.Tree) -> int:
    return 1 + max(deep(t) for t in tree) if isinstance(tree, tuple) else 0


def image(layout: Layout) -> list[int]:
    return [layout(i) for i in range(layout.size)]


# Evaluation -----------------------------------------------------------------------------------------------------------


@given(pairs())
def test_flat_domain(pair: Pair) -> None:
    shape, stride = pair
    layout, truth = Layout(shape, stride), ref.image(shape, stride)
    assert image(layout) == truth
    table = layout.offsets()
    assert table.dtype == np.int64 and table.shape == (len(truth),) and table.tolist() == truth
    assert layout(np.arange(len(truth))).tolist() == truth
    assert (layout.shape, layout.stride) == (shape, stride)
    assert (layout.size, layout.cosize) == (len(truth), max(truth) + 1)
    assert (layout.rank, layout.depth) == (len(ref.modes(shape)), deep(shape))


@given(pairs(limit=400))
def test_nested_coordinates(pair: Pair) -> None:
    shape, stride = pair
    layout, truth = Layout(shape, stride), ref.image(shape, stride)
    for i, coord in enumerate(ref.coordinates(shape)):
        assert layout.coord(i) == coord == idx2crd(i, shape)
        assert layout(coord) == truth[i]
        if isinstance(coord, tuple) and len(coord) > 1:
            assert layout(*coord) == truth[i]
            # weakly congruent: every top-level mode addressed by its own flat index
            assert layout(tuple(ref.flat_index(c, s) for c, s in zip(coord, shape, strict=True))) == truth[i]


@given(pairs(limit=200), st.data())
def test_traced_integers(pair: Pair, data: st.DataObject) -> None:
    shape, stride = pair
    layout = Layout(shape, stride)
    i = data.draw(st.integers(0, layout.size - 1))
    assert plain(layout(Traced(i))) == ref.offset(i, shape, stride)
    coord = ref.like(shape, [Traced(d) for d in ref.leaves(ref.coordinate(i, shape))])
    assert plain(layout(coord)) == ref.offset(i, shape, stride)


class Counted(Traced):
    """Counts the operations that tracing would emit."""

    emitted = 0

    def __mod__(self, other: object) -> Traced:
        Counted.emitted += 1
        return Counted(super().__mod__(other).value)

    def __floordiv__(self, other: object) -> Traced:
        Counted.emitted += 1
        return Counted(super().__floordiv__(other).value)


def test_extents_of_one_cost_traced_code_nothing() -> None:
    """A traced index pays one % and one // a mode at most; modes of extent 1 and the first and last mode pay less."""

    def cost(call: Callable[[Counted], object]) -> int:
        Counted.emitted = 0
        call(Counted(5))
        return Counted.emitted

    plain_layout = Layout((4, 8), (8, 1))
    lean, lean_coord = cost(plain_layout), cost(plain_layout.coord)
    assert lean <= 2 and lean_coord <= 2
    for shape, stride in (
        ((1, 4, 8), (3, 8, 1)),
        ((4, 1, 8), (8, 3, 1)),
        ((4, 8, 1), (8, 1, 3)),
        (((1, 4), (1, (8, 1))), ((3, 8), (3, (1, 3)))),
    ):
        layout = Layout(shape, stride)
        assert cost(layout) <= lean and cost(layout.coord) <= lean_coord, layout
    assert cost(Layout(4)) == cost(Layout(4).coord) == 0


def test_arrays_of_every_integer_kind() -> None:
    """Any integer dtype counts, in int64; floats and bools do not; empty arrays stay empty."""
    layout = Layout((4, (2, 3)), (6, (3, 24)))
    truth = ref.image(layout.shape, layout.stride)
    for dtype in (np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64):
        values = layout(np.arange(24, dtype=dtype))
        assert values.dtype == np.int64 and values.tolist() == truth
    big = Layout((100, 100), (1000, 1))  # 99099 does not fit the int8 that came in
    assert big(np.int8(99), np.int8(99)) == 99099 and big(np.array([99], np.int8), 99).tolist() == [99099]
    for kind in (np.int64, np.uint64):
        assert layout(np.array([], dtype=kind)).shape == (0,)
    for wrong in (np.array([1.0]), np.array([True]), np.array(["1"]), np.array([1 << 63], dtype=np.uint64)):
        with pytest.raises(CoordinateError):
            layout(wrong)


def test_rank_zero() -> None:
    """():() is the one coordinate () at offset 0."""
    empty = Layout(())
    assert (empty.size, empty.rank, empty.cosize) == (1, 0, 1) and empty(()) == 0 == empty(0)
    assert image(empty.coalesce()) == [0] and image(empty.compose(Layout(1))) == [0]
    assert image(Layout((4, 2)).compose(empty)) == [0]
    assert image(empty.compose(Layout(3, 0))) == image(empty.compose(Layout(3))) == [0, 0, 0], "no stride to run on"
    assert image(Layout((4, ()), (3, ()))) == [0, 3, 6, 9]


def test_mixed_array_and_int_coordinates() -> None:
    layout = Layout((4, (2, 3)), (6, (3, 24)))
    columns = np.arange(6)
    assert layout(2, columns).tolist() == [layout(2, int(c)) for c in columns]
    rows = np.arange(4)[:, None]
    assert (layout(rows, columns) == np.array([[layout(r, c) for c in range(6)] for r in range(4)])).all()
    assert layout(3, (1, columns[:3])).tolist() == [layout(3, (1, c)) for c in range(3)]


def test_negative_strides_are_functions_too() -> None:
    assert image(Layout((3, 2), (-1, 10))) == [0, -1, -2, 10, 9, 8]
    assert Layout((3, 2), (-1, 10)).offsets().tolist() == [0, -1, -2, 10, 9, 8]


def test_default_strides_are_column_major() -> None:
    for shape in (7, (7,), (2, 3), (2, (3, 4), 5), ((1, 2), ((3,), 4))):
        assert Layout(shape) == Layout(shape, ref.compact(shape))


def test_modes_by_index() -> None:
    layout = Layout((2, (3, 4)), (12, (4, 1)))
    assert layout[0] == Layout(2, 12)
    assert layout[1] == Layout((3, 4), (4, 1))
    assert layout[-1] == layout[1]
    with pytest.raises(IndexError, match="has no mode 2"):
        layout[2]


# Values: equality, hash, pickle, text ---------------------------------------------------------------------------------


@given(pairs())
def test_text_and_pickle_round_trips(pair: Pair) -> None:
    layout = Layout(*pair)
    assert Layout.parse(str(layout)) == layout
    again = eval(repr(layout), vars(layouts).copy())
    for twin in (again, pickle.loads(pickle.dumps(layout)), copy.deepcopy(layout), Layout(*pair)):
        assert twin == layout and hash(twin) == hash(layout) and type(twin) is Layout
        assert (twin.shape, twin.stride) == pair


def test_text_is_cute_notation() -> None:
    assert str(Layout((2, (3, 4)), (1, (2, 6)))) == "(2,(3,4)):(1,(2,6))"
    assert str(Layout(4, 2)) == "4:2"
    assert str(Layout((4,), (2,))) == "(4):(2)"
    assert Layout.parse(" ( 2 , ( 3 , 4 ) ) : ( 1 , ( 2 , 6 ) ) ") == Layout((2, (3, 4)), (1, (2, 6)))
    assert Layout.parse("3:-1") == Layout(3, -1)
    assert str(Layout((4, 8), (E(0), E(1)))) == "(4,8):(1@0,1@1)"
    assert str(Layout((4, 8), (8 * E(0), E(1)))) == "(4,8):(8@0,1@1)"
    assert str(Swizzle(3, 4, 3)) == "S<3,4,3>"


@pytest.mark.parametrize(
    "value",
    [
        Layout((4, 8), (E(0), E(1))),
        Layout((4, (2, 2)), (8 * E(0), (E(1), 4 * E(0)))),
        Layout((4, 2), (E(0, 1), E(1))),
        Swizzle(3, 4, 3),
        Swizzle(2, 3, -3),
        Swizzle(3, 4, 3, unit="bytes"),
        Swizzle(3, 3, 3, unit=16),
        ComposedLayout(Swizzle(3, 3, 3), 0, Layout((8, 64), (64, 1))),
        ComposedLayout(Swizzle(2, 3, 3, unit=16), 64, Layout((8, 64), (64, 1))),
    ],
    ids=str,
)
def test_other_values_round_trip(value: object) -> None:
    for twin in (eval(repr(value), vars(layouts).copy()), pickle.loads(pickle.dumps(value)), copy.deepcopy(value)):
        assert twin == value and hash(twin) == hash(value) and str(twin) == str(value)


def test_values_cannot_be_changed() -> None:
    for value in (Layout((2, 3)), Swizzle(3, 4, 3), ComposedLayout(Swizzle(1, 0, 1), 0, Layout(4))):
        for name in ("shape", "bits", "offset", "new_attribute"):
            with pytest.raises((AttributeError, TypeError)):
                setattr(value, name, 1)


def test_structural_equality_is_strict() -> None:
    assert Layout(4, 1) != Layout((4,), (1,))
    assert Layout((2, 2), (1, 2)) != Layout(4, 1)
    assert Layout((2, 2), (1, 2)) != ((2, 2), (1, 2))
    assert Swizzle(3, 3, 3) != Swizzle(3, 3, 3, unit=16)
    assert Swizzle(3, 4, 3, unit="bytes") == Swizzle(3, 4, 3, unit=8)
    assert len({Layout(4, 1), Layout(4), Layout((4,), (1,))}) == 2


def test_numpy_integers_become_ints() -> None:
    layout = Layout((np.int64(2), np.int32(3)), (np.int64(3), np.int8(1)))
    assert layout == Layout((2, 3), (3, 1)) and all(type(x) is int for x in (*layout.shape, *layout.stride))
    assert repr(layout) == repr(Layout((2, 3), (3, 1)))


# Coalesce, flatten, filter --------------------------------------------------------------------------------------------


@given(pairs(), seeds)
def test_coalesce_is_canonical(pair: Pair, rng: random.Random) -> None:
    """Equal functions have equal coalesced forms. The form is the one read off the values."""
    layout = Layout(*pair)
    short = layout.coalesce()
    assert image(short) == ref.image(*pair)
    form = ref.canonical(ref.image(*pair))
    assert form is not None
    assert (ref.leaves(short.shape), ref.leaves(short.stride)) == (form if form[0] else ([1], [0]))
    assert short.depth <= 1 and short.coalesce() == short
    assert Layout(*refined(rng, pair)).coalesce() == short


def test_coalesce_distinguishes_all_small_functions() -> None:
    """All layouts of size 12 with strides up to 6, grouped by function: one coalesced form a group, and no sharing."""
    forms: dict[tuple[int, ...], set[Layout]] = {}
    for extents in [(12,), (2, 6), (6, 2), (3, 4), (4, 3), (2, 2, 3), (2, 3, 2), (3, 2, 2), (1, 12), (12, 1)]:
        for flat in np.ndindex(*(7 for _ in extents)):
            stride = tuple(int(d) for d in flat)
            forms.setdefault(tuple(ref.image(extents, stride)), set()).add(Layout(extents, stride).coalesce())
    assert all(len(group) == 1 for group in forms.values())
    assert len({next(iter(group)) for group in forms.values()}) == len(forms)


def test_coalesce_by_profile() -> None:
    layout = Layout(((2, 2), (3, (1, 4)), (2, 2)), ((1, 2), (4, (7, 12)), (48, 96)))
    assert layout.coalesce((1, 1)) == Layout((4, 12, (2, 2)), (1, 4, (48, 96)))
    assert layout.coalesce((1, (1, 1), 1)) == Layout((4, (3, 4), 4), (1, (4, 12), 48))
    assert layout.coalesce(1) == layout.coalesce()
    assert Layout((6, 1), (1, 9)).coalesce((1, 1)) == Layout((6, 1), (1, 0))


@given(pairs(leaves=6), seeds)
def test_coalesce_by_profile_keeps_modes(pair: Pair, rng: random.Random) -> None:
    layout = Layout(*pair)
    marked = rng.randint(1, len(ref.modes(pair[0])))
    if not isinstance(pair[0], tuple):
        return
    short = layout.coalesce((1,) * marked)
    assert image(short) == image(layout)
    for i, mode in enumerate(ref.modes(pair[0])):
        assert ref.size(ref.modes(short.shape)[i]) == ref.size(mode)
        assert short[i] == (layout[i].coalesce() if i < marked else layout[i])


@given(pairs())
def test_flatten(pair: Pair) -> None:
    flat = Layout(*pair).flatten()
    assert ref.leaves(flat.shape) == ref.leaves(pair[0]) and ref.leaves(flat.stride) == ref.leaves(pair[1])
    assert flat.depth <= 1


@given(pairs())
def test_filter_drops_broadcasts(pair: Pair) -> None:
    kept = [(s, d) for s, d in zip(ref.leaves(pair[0]), ref.leaves(pair[1]), strict=True) if s != 1 and d != 0]
    short = Layout(*pair).filter()
    values = ref.image(tuple(s for s, _ in kept) or 1, tuple(d for _, d in kept) or 0)
    assert image(short) == values
    form = ref.canonical(values)
    assert form is not None and (ref.leaves(short.shape), ref.leaves(short.stride)) == (form if form[0] else ([1], [0]))


# Predicates -----------------------------------------------------------------------------------------------------------


@given(pairs())
def test_injective_and_bijective(pair: Pair) -> None:
    layout, values = Layout(*pair), ref.image(*pair)
    assert bool(layout.is_injective()) == (len(set(values)) == len(values))
    assert bool(layout.is_bijective()) == (sorted(values) == list(range(len(values))))


def test_injective_decides_unordered_strides() -> None:
    """No chain of divisible strides here: the question is a knapsack, and still has an answer."""
    rng = random.Random(7)
    for _ in range(1500):
        shape = tuple(rng.randint(1, 6) for _ in range(rng.randint(1, 4)))
        stride = tuple(rng.randint(0, 25) for _ in shape)
        values = ref.image(shape, stride)
        assert bool(Layout(shape, stride).is_injective()) == (len(set(values)) == len(values)), (shape, stride)
        assert bool(Layout(shape, stride).is_bijective()) == (sorted(values) == list(range(len(values))))


@given(pairs(limit=300), pairs(limit=300), seeds, st.booleans())
def test_equivalent(left: Pair, right: Pair, rng: random.Random, same: bool) -> None:
    right = refined(rng, left) if same else right
    a, b = ref.image(*left), ref.image(*right)
    verdict = Layout(*left).equivalent(Layout(*right))
    assert bool(verdict) == (a == b)
    if len(a) == len(b) and a != b:
        first = next(i for i in range(len(a)) if a[i] != b[i])
        coord = verdict.coord if isinstance(verdict.coord, int) else ref.flat_index(verdict.coord, left[0])
        assert (coord, verdict.left, verdict.right) == (first, a[first], b[first])


@given(pairs(limit=300), st.data())
def test_equivalent_finds_one_changed_stride(pair: Pair, data: st.DataObject) -> None:
    """Near misses: one stride off by one must be seen, at its first coordinate."""
    extents, strides = ref.leaves(pair[0]), ref.leaves(pair[1])
    which = data.draw(st.integers(0, len(strides) - 1))
    changed = [d + (i == which) for i, d in enumerate(strides)]
    verdict = Layout(*pair).equivalent(Layout(pair[0], ref.like(pair[0], changed)))
    assert bool(verdict) == (extents[which] == 1)
    if not verdict:
        coord = verdict.coord if isinstance(verdict.coord, int) else ref.flat_index(verdict.coord, pair[0])
        assert coord == ref.size(tuple(extents[:which]) or 1)


def test_congruent_compares_profiles() -> None:
    assert Layout((2, (3, 4))).congruent(Layout((5, (1, 1))))
    assert not Layout((2, (3, 4))).congruent(Layout((2, 3, 4)))
    assert not Layout(6).congruent(Layout((6,)))


# Coordinate-valued layouts --------------------------------------------------------------------------------------------


@given(pairs(families=INJECTIVE, limit=200))
def test_identity_returns_coordinates(pair: Pair) -> None:
    shape = pair[0]
    identity = Layout.identity(shape)
    for i, coord in enumerate(ref.coordinates(shape)):
        point = coord if isinstance(shape, tuple) else (coord,)  # basis elements always make a tuple
        assert identity(i) == point
        assert identity(coord) == point


def test_scaled_basis_strides() -> None:
    layout = Layout((4, 8), (E(0), E(1)))
    assert layout == Layout.identity((4, 8))
    assert layout(1, 2) == (1, 2) and layout(6) == (2, 1)
    # 8@0 moves 8 along the first coordinate: a 64-wide box tiled by 8s
    tiled = Layout(((4, 2), 3), ((E(1), 8 * E(0)), E(0)))
    assert tiled((3, 1), 2) == (10, 3)
    assert [tiled(i) for i in range(4)] == [(0, 0), (0, 1), (0, 2), (0, 3)]
    # one basis element on several modes adds up
    assert Layout((2, 2), (E(0), 2 * E(0)))(1, 1) in (3, (3,))
    assert 2 * (4 * E(1)) == 8 * E(1) == E(1) * 8


def test_a_sum_of_basis_elements_is_a_coordinate() -> None:
    """The linear combination of CUTLASS' page on TMA tensors."""
    assert 2 * E(0, 1) * 2 + 3 * E(1) + 4 * 5 * E(1) + 7 * E(0, 0) == ((7, 4), 23)
    assert sum([E(0), 2 * E(1)]) == (1, 2) and E(0) - 2 * E(1) == (1, -2) and (3, 4) + E(2) == (3, 4, 1)
    with pytest.raises(LayoutError, match=r"1 in a mode, and \(0,1\)"):
        E(0) + E(0, 1)
    with pytest.raises(LayoutError, match="what is added to 1@0 must be a basis element or a coordinate, not 5"):
        E(0) + 5


def test_names_of_cute_take_tuples_too() -> None:
    assert layouts.select((512, 256, 64), mode=[0, 2]) == (512, 64)
    assert layouts.append((1, 2), (3, 4)) == (1, 2, (3, 4)) and layouts.prepend(2, 1) == (1, 2)
    assert layouts.group_modes((1, 2, 3), 0, 2) == ((1, 2), 3)
    with pytest.raises(LayoutError, match=r"\(1,2,3\) has no modes 1..3 to group"):
        layouts.group_modes((1, 2, 3), 1, 4)
    assert layouts.complement(Layout(4, 2), (2, (2, 5))) == layouts.complement(Layout(4, 2), 20)
    with pytest.raises(LayoutError, match="proj names those that it has"):
        layouts.local_tile(Layout((256, 64)), (128, 128, 8), (1, 0, None))


@pytest.mark.parametrize(
    ("of", "like"),
    [(((4, 8), (32, 2)), "(4,8):(8,1)"), (((4, 8), (32, 0)), "(4,8):(1,0)"), (((4, 2), (-1, 4)), "(4,2):(1,4)"),
     (((4, (2, 3)), (6, (3, 1))), "(4,(2,3)):(6,(3,1))"), (((4, 1, 8), (1, 7, 4)), "(4,1,8):(1,0,4)")],
)  # fmt: skip
def test_layouts_like_others_are_those_of_the_dsl(of: Pair, like: str) -> None:
    assert str(layouts.make_layout_like(Layout(*of))) == like


def test_scaled_basis_takes_arrays() -> None:
    layout = Layout((4, (2, 4)), (E(1), (4 * E(0), E(0))))
    flat = np.arange(layout.size)
    columns = layout(flat)
    points = [layout(int(i)) for i in flat]
    assert [c.tolist() for c in columns] == [list(c) for c in zip(*points, strict=True)]


def test_compose_and_slice_keep_the_basis() -> None:
    """The tiles of TMA: a tile of the coordinate tensor, still valued in coordinates."""
    identity = Layout.identity((128, 64))
    tile = identity.compose((Layout(16, 1), Layout(8, 8)))
    assert tile(3, 2) == (3, 16)
    box, offset = identity.slice((5, None))
    assert offset == (5, 0) and box(7) == (0, 7)
    quotient = identity.zipped_divide((16, 8))
    assert quotient((3, 4), (2, 5)) == (2 * 16 + 3, 5 * 8 + 4)


# Of two tuples: the comparison, and the path to the first mode that fails and what is said of it, or None.
COMPARED = [
    (layouts.congruent, (1, (2, 3)), (7, (8, 9)), None), (layouts.congruent, 4, 8, None),
    (layouts.congruent, (4, (2, 3)), (4, 6), ((1,), "(4,(2,3)) is not congruent to (4,6): mode 1 is (2,3) and 6")),
    (layouts.congruent, (1, (2, (3, 4))), (1, (2, (3, (4, 5)))), ((1, 1, 1), "mode 1.1.1 is 4 and (4,5)")),
    (layouts.congruent, (4, 2), (4, 2, 1), ((), "the whole is (4,2) and (4,2,1)")),
    (layouts.compatible, 24, (4, 6), None), (layouts.compatible, (4, 6), (4, (2, 3)), None),
    (layouts.compatible, (4, 6), (4, (2, 5)), ((1,), "mode 1 is 6 and (2,5), of size 10")),
    (layouts.compatible, 24, (4, 5), ((), "the whole is 24 and (4,5), of size 20")),
    (layouts.weakly_congruent, (4, 6), (4, (2, 3)), None),
    (layouts.weakly_congruent, (4, (6, 1)), (4, 6), ((1,), "mode 1 is (6,1) and 6")),
]  # fmt: skip


@pytest.mark.parametrize(("compare", "a", "b", "difference"), COMPARED)
def test_a_comparison_of_tuples_is_a_verdict(compare, a, b, difference) -> None:
    found = compare(a, b)
    assert isinstance(found, Verdict) and found.ok == bool(found) == (difference is None)
    assert (found == True) is (found != False) is found.ok and (not found) is not found.ok  # noqa: E712
    if difference is None:
        assert (found.reason, found.witness) == ("", None)
    else:
        assert is_false_verdict(found) and explanation(found) == found.reason
        assert found.witness == difference[0] and found.reason.endswith(difference[1])


def test_methods_give_the_same_verdicts() -> None:
    a, b = Layout((2, (3, 4))), Layout((2, 12))
    for x, y in ((a, b), (Swizzle(1, 0, 1) @ a, b), (a, Swizzle(1, 0, 1) @ b)):
        assert x.congruent(y) == layouts.congruent(a.shape, b.shape) and not x.congruent(y)
    assert Layout.identity((2, 3)).congruent(Layout.identity((2, 3))).ok
    assert a.congruent((2, 12)).witness == (1,) and a.congruent((5, (1, 1)))


def test_a_verdict_is_equal_to_its_truth_alone() -> None:
    yes, no, other = Verdict(True), Verdict(False, "why"), Verdict(False, "another")
    assert yes == True and no == False and no != other and no == Verdict(False, "why") and yes != no  # noqa: E712
    assert {yes: 1}[True] == 1 and hash(no) == hash(other) == hash(False) and no != "why" and yes != 1


def test_a_value_that_a_matrix_leaves_out_is_said() -> None:
    for columns, offset in (((1, 4), 0), ((1, 4), 2), ((1, 2, 3), 0), ((5, 2), 1)):
        f = LinearLayout(columns, offset=offset)
        found, values = f.is_surjective(), set(f.offsets().tolist())
        assert found.ok == (len(values) == 1 << f.width)
        assert found.ok or (found.witness not in values and str(found.witness) in found.reason)


def test_the_bound_of_offsets_holds() -> None:
    """Sums of arrays are checked against 64 bits by it: nested, ragged, one-element and stretched modes, any index."""
    rng = np.random.default_rng(7)
    for _ in range(400):
        shape = tuple(int(x) for x in rng.integers(1, 6, rng.integers(1, 5)))
        stride = tuple(int(x) for x in rng.integers(-40, 40, len(shape)))
        index = rng.integers(-200 if rng.integers(2) else 0, 200, 50)
        values, bound = int_tuple._offsets_of(index, (shape,), (stride,))
        assert np.abs(values).max() <= bound or (not bound and not values.any()), (shape, stride)


def test_lines_of_the_dsl_run_as_they_stand() -> None:
    """Orders and keywords of the CuTe DSL's functions, and pycute's order of slices."""
    nested, tile = Layout(((2, 2), (2, 2)), ((1, 8), (4, 16))), (128, 256, 64)
    assert layouts.make_layout(shape=nested.shape, stride=nested.stride) == nested
    for coord in ((1, None), ((None, 0), 1), (None, None)):
        for function, method in ((layouts.slice_and_offset, nested.slice(coord)), (layouts.dice, nested.dice(coord))):
            ways = (function(nested, coord), function(coord, nested), function(nested, coord=coord))
            assert set(ways) == {function(coord, layout=nested), function(src=nested, coord=coord), method}
    assert layouts.slice_(nested, (1, None)) == layouts.slice_((1, None), nested) == Layout(((2, 2),), ((4, 16),))
    assert layouts.slice_(tile, (None, 0, None)) == layouts.slice_((None, 0, None), tile) == (128, 64)
    assert layouts.slice_((128, (256, 64)), (None, (0, None))) == (128, 64)  # the DSL's answers
    assert layouts.dice(tile, (None, 0, None)) == (256,) and layouts.slice_(tile, (0, 0, 0)) == ()
    with pytest.raises(CoordinateError, match="nesting"):
        layouts.slice_(tile, (None, 0))
    composed = layouts.make_composed_layout(inner=layouts.make_swizzle(b=3, m=3, s=3), offset=0, outer=Layout((8, 64)))
    assert composed == ComposedLayout(Swizzle(3, 3, 3), 0, Layout((8, 64)))
    threads = Layout((2, 2))
    assert layouts.local_partition(nested, tiler=threads, index=3) == layouts.local_partition(nested, threads, 3)
    assert layouts.group_modes(tile, 1) == (128, (256, 64)) and layouts.complement(Layout(4), cotarget=24) == Layout(
        6, 4
    )
