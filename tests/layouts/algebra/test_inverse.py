"""Complement, inverses, kernels and common vectors: their laws, and the rule where CuTe's definition is a rule."""

from __future__ import annotations

import itertools
import random
from itertools import pairwise, permutations, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layoutgemm.errors import LayoutError
from layoutgemm.layouts import E, Layout
from layoutgemm.layouts.algebra import inverse as inverses
from layoutgemm.layouts.algebra.compose import compose
from layoutgemm.layouts.symbols.dims import dim
from tests.layouts import reference as ref
from tests.layouts.strategies import INJECTIVE, Pair, pairs, random_pair, random_stride, refined, seeds


def image(layout: Layout) -> list[int]:
    return [layout(i) for i in range(layout.size)]


def moving(pair: Pair) -> Pair:
    """The modes that move: extent above 1 and stride not 0."""
    kept = [(s, d) for s, d in zip(ref.leaves(pair[0]), ref.leaves(pair[1]), strict=True) if s != 1 and d != 0]
    return tuple(s for s, _ in kept) or 1, tuple(d for _, d in kept) or 0


# Complement -----------------------------------------------------------------------------------------------------------


@given(pairs(limit=200), st.integers(1, 400))
def test_complement(pair: Pair, bound: int) -> None:
    layout, truth = Layout(*pair), ref.complement(*pair, bound)
    if truth is None:
        with pytest.raises(LayoutError):
            layout.complement(bound)
        return
    rest = layout.complement(bound)
    assert image(rest) == ref.image(tuple(truth[0]), tuple(truth[1])), f"complement({layout}, {bound}) = {rest}"
    # the laws that the rule exists for
    values, covered = image(rest), ref.image(*moving(pair))
    assert all(a < b for a, b in pairwise(values)), "ordered"
    both = ref.sums(covered, values)
    assert len(set(both)) == len(both), "disjoint: layout and complement never meet"
    strides = sorted(zip(*(ref.leaves(x) for x in reversed(moving(pair))), strict=True))
    tops = [1, *(d * s for d, s in strides)]
    if all(d % top == 0 for (d, _), top in zip(strides, tops, strict=False)):
        assert sorted(both) == list(range(len(both))), "without uneven gaps the two together are everything"
        top = tops[-1] if strides and strides[0][0] else 1
        assert len(both) == top * -(-bound // top) >= bound, "the bound is met, rounded up to whole repetitions"


def test_complement_bound_rounds_up() -> None:
    """CuTe's definition: as many repetitions as it takes to reach the bound, so 7 and 8 are alike."""
    assert image(Layout(4, 2).complement(15)) == image(Layout(4, 2).complement(16)) == [0, 1, 8, 9]
    assert image(Layout(4, 2).complement(17)) == [0, 1, 8, 9, 16, 17]
    assert image(Layout(2, 3).complement(8)) == [0, 1, 2, 6, 7, 8]
    assert Layout((5, 6), (6, 32)).complement(185).coalesce() == Layout(6, 1)


@given(pairs(limit=200))
def test_complement_without_bound_ends_with_the_layout(pair: Pair) -> None:
    """No bound: fill the gaps below the last stride and repeat nothing."""
    truth = ref.complement(*pair, 1)
    if truth is None:
        with pytest.raises(LayoutError):
            Layout(*pair).complement()
    else:
        assert image(Layout(*pair).complement()) == ref.image(tuple(truth[0]), tuple(truth[1]))


@given(pairs(families=INJECTIVE, limit=200), st.integers(1, 300), seeds)
def test_complement_depends_on_the_function(pair: Pair, bound: int, rng: random.Random) -> None:
    other = refined(rng, pair)
    mine, theirs = ref.complement(*pair, bound), ref.complement(*other, bound)
    if mine is not None and theirs is not None:
        assert image(Layout(*pair).complement(bound)) == image(Layout(*other).complement(bound))


def test_complement_refusals_name_the_overlap() -> None:
    for text in ("(8,3,2):(2,12,12)", "(2,4,2):(2,12,8)", "(6,4):(12,4)", "(4,4):(1,2)", "(4,4):(1,1)"):
        with pytest.raises(LayoutError) as caught:
            Layout.parse(text).complement(64)
        assert text in str(caught.value) and any(c.isdigit() for c in str(caught.value).replace(text, ""))


# Inverses -------------------------------------------------------------------------------------------------------------


@given(pairs())
def test_right_inverse(pair: Pair) -> None:
    layout = Layout(*pair)
    inverse = layout.right_inverse()
    assert inverse.size >= ref.right_inverse_size(*pair), "shorter than CuTe's rule reaches"
    assert [layout(inverse(i)) for i in range(inverse.size)] == list(range(inverse.size))
    assert max(image(inverse)) < layout.size, "the inverse must stay inside the layout's domain"


@given(pairs(families=("compact", "permuted"), limit=2000))
def test_right_inverse_of_a_permutation_is_whole(pair: Pair) -> None:
    layout = Layout(*pair)
    assert layout.right_inverse().size == layout.size
    assert image(layout.right_inverse()) == image(layout.left_inverse())


@given(pairs(limit=300))
def test_left_inverse(pair: Pair) -> None:
    layout, values = Layout(*pair), ref.image(*pair)
    shape, stride = moving(pair)
    ordered = sorted(zip(ref.leaves(stride), ref.leaves(shape), strict=True))
    apart = all(d and above % d == 0 and d * s <= above for (d, s), (above, _) in itertools.pairwise(ordered))
    even = (apart and ordered[0][0] > 0) or shape == 1
    if len(set(values)) < len(values):
        with pytest.raises(LayoutError):
            layout.left_inverse()
        return
    try:
        inverse = layout.left_inverse()
    except LayoutError:
        assert not even, f"{layout} is injective with strides that divide each other: it has a left inverse"
        return
    assert [inverse(v) for v in values] == list(range(len(values))), f"left_inverse({layout}) = {inverse}"
    assert max(values) < inverse.size, "the inverse must be defined wherever the layout points"


def test_left_inverse_of_a_padded_tile_is_its_digits() -> None:
    assert str(Layout((8, 4), (1, 12)).left_inverse()) == "(12,4):(1,8)"
    assert str(Layout((128, 64), (72, 1)).left_inverse()) == "(72,128):(128,1)"
    with pytest.raises(LayoutError, match="the stride 100 is no multiple of 12"):
        Layout((2, 4), (6, 100)).left_inverse()


def test_left_inverse_never_wrong_on_uneven_strides() -> None:
    """Padded pitches that do not divide: a layout may or may not invert them; a wrong one is never returned."""
    rng = random.Random(2)
    answered = refused = 0
    for _ in range(1500):
        shape = tuple(rng.randint(2, 6) for _ in range(rng.randint(1, 3)))
        layout = Layout(shape, tuple(rng.randint(1, 40) for _ in shape))
        values = ref.image(layout.shape, layout.stride)
        try:
            inverse = layout.left_inverse()
        except LayoutError:
            refused += 1
            continue
        answered += 1
        assert [inverse(v) for v in values] == list(range(len(values))), f"left_inverse({layout}) = {inverse}"
    assert answered > 100 and refused > 100


# Kernel and common vectors --------------------------------------------------------------------------------------------


@given(pairs())
def test_nullspace(pair: Pair) -> None:
    """All flat coordinates that the layout sends to 0 (strides are not negative here), in order."""
    kernel = Layout(*pair).nullspace()
    assert sorted(image(kernel)) == [i for i, v in enumerate(ref.image(*pair)) if v == 0]


def common_prefix(left: Pair, right: Pair) -> int | None:
    """The extent to which left o right^-1 is the identity: the first extent of that function; None if it is no
    layout."""
    inverse = Layout(*right).right_inverse()
    table = ref.image(*left)
    values = [table[i] for i in image(inverse) if i < len(table)]
    form = ref.canonical(values) if len(values) == inverse.size else None
    if form is None:
        return None
    return form[0][0] if form[0] and form[1][0] == 1 else 1


@given(pairs(limit=200), seeds, st.integers(0, 3))
def test_max_common(left: Pair, rng: random.Random, kind: int) -> None:
    right = [
        lambda: (left[0], random_stride(rng, left[0], "permuted")),
        lambda: refined(rng, left),
        lambda: (left[0], ref.like(left[0], [d * rng.choice((1, 1, 2)) for d in ref.leaves(left[1])])),
        lambda: random_pair(rng, limit=200),
    ][kind]()
    a, b = Layout(*left), Layout(*right)
    expected = common_prefix(left, right)
    count, common = a.max_common_vector(b), a.max_common_layout(b)
    assert max(image(common)) < min(a.size, b.size), "the common part must lie inside both"
    if common.size > 1:  # law: the first elements in memory are the same logical elements, in the same order
        assert [a(i) for i in image(common)] == [b(i) for i in image(common)] == list(range(common.size))
    assert count == common.size
    if expected is not None:
        assert count == expected, f"{a} and {b}"


def test_max_common_vector_examples() -> None:
    assert Layout((8, 8)).max_common_vector(Layout((8, 8))) == 64
    assert Layout((8, 8)).max_common_vector(Layout((8, 8), (1, 10))) == 8
    assert Layout((8, 8)).max_common_vector(Layout((8, 8), (8, 1))) == 1
    assert Layout(((4, 2), 8), ((1, 64), 4)).max_common_vector(Layout((8, 8))) == 4


def test_inverses_of_every_small_permutation() -> None:
    """All orders of strides over shapes of 2s, 3s and 4s: merging in the inverse must never join strangers."""
    for shape in product((2, 4), (2, 3), (3, 4), (2, 4)):
        for order in permutations(range(4)):
            strides, top = [0] * 4, 1
            for mode in order:
                strides[mode] = top
                top *= shape[mode]
            layout = Layout(shape, tuple(strides))
            values = ref.image(shape, tuple(strides))
            for inverse in (layout.right_inverse(), layout.left_inverse()):
                table = [inverse(i) for i in range(top)]
                assert [values[i] for i in table] == list(range(top)), f"{layout}: {inverse}"
                assert inverse == inverse.coalesce(), "an inverse comes out coalesced"


def test_right_inverse_chooses_the_longest_chain() -> None:
    """Overlapping strides leave a choice; the law holds for every choice, and the longest chain of modes is taken."""
    rng = random.Random(21)
    for _ in range(1200):
        shape = tuple(rng.choice((1, 2, 2, 3, 4)) for _ in range(5))
        stride = tuple(rng.choice((0, 1, 1, 2, 2, 4, 4, 6, 8, 12, 16)) for _ in shape)
        layout, values = Layout(shape, stride), ref.image(shape, stride)
        inverse = layout.right_inverse()
        assert [values[inverse(i)] for i in range(inverse.size)] == list(range(inverse.size)), f"{layout}: {inverse}"
        assert inverse.size >= longest_chain(list(zip(shape, stride, strict=True))), f"{layout}: {inverse}"
        assert inverse == inverse.coalesce()


def longest_chain(modes: list[tuple[int, int]], top: int = 1) -> int:
    """The largest end of a chain of modes whose strides are 1, s1, s1*s2, ...: every choice tried."""
    ends = [
        longest_chain([m for m in modes if m is not mode], top * mode[0])
        for mode in modes
        if mode[1] == top and mode[0] > 1
    ]
    return max([top, *ends])


@pytest.mark.parametrize("shape", [1, (1,), (1, 1), dim("rows_of_one")])  # a name that no other test prints
def test_coordinates_of_extent_1_are_no_offsets_either(shape: Any) -> None:
    """Their products had offsets and coordinates for strides, which is no layout."""
    layout = Layout(shape, E(0) if shape.__class__ is not tuple else tuple(E(i) for i in range(len(shape))))
    for call in (
        layout.right_inverse, layout.left_inverse, lambda: layout.complement(8), lambda: layout.logical_product(3),
        lambda: layout.blocked_product(Layout(3)), lambda: layout.raked_product(Layout(3)),
        lambda: Layout(1, E(0)).tile_to_shape((4,)), lambda: layout.zipped_product(Layout(3)),
    ):  # fmt: skip
        with pytest.raises(LayoutError, match="its values are coordinates"):
            call()


def test_max_common_composes_a_few_times_for_many_modes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It composed once a mode: 1,000 modes took 107 s."""
    order = random.Random(1).sample(range(200), 200)
    layout = Layout((2,) * 200, tuple(2**i for i in order))
    calls: list[object] = []
    monkeypatch.setattr(inverses, "compose", lambda *a: calls.append(a) or compose(*a))
    assert layout.max_common_vector(layout) == 2**200
    longer = Layout((2,) * 200, tuple(2**i * (3 if i == 150 else 1) for i in order))
    assert layout.max_common_vector(longer) == 2**150
    assert len(calls) < 20


def test_messages_show_the_begin_and_end_of_many_modes() -> None:
    many = Layout((2,) * 1000)
    with pytest.raises(LayoutError, match=r"^\(2,2,2,.*[0-9]\.\.\.[0-9].*to draw, more than 65536") as caught:
        many.show()
    assert len(str(caught.value)) < 3000 and len(caught.value.reason) > 100_000
