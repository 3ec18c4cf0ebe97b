"""Composition is right or refused: A(B(c)) for every c of size(B), and a refusal only where no layout exists."""

from __future__ import annotations

import random
import re
from itertools import combinations, product

import pytest
from hypothesis import given

from layoutgemm.errors import CompositionError, LayoutError
from layoutgemm.layouts import ComposedLayout, E, Layout, Swizzle, composition
from tests.layouts import reference as ref
from tests.layouts.strategies import Pair, inside, pairs, random_pair


def witness_index(error: CompositionError, right: Layout) -> int:
    """The witness as a flat coordinate of B."""
    witness = error.witness
    return witness if isinstance(witness, int) else ref.flat_index(witness, right.shape)


def judge(left: Pair, right: Pair) -> bool:
    """Check one composition whose B stays inside A's domain; True if it was answered."""
    a, b = Layout(*left), Layout(*right)
    table, picks = ref.image(*left), ref.image(*right)
    assert max(picks) < len(table), "the generator must keep B inside A"
    truth = [table[p] for p in picks]
    misfit = ref.first_misfit(truth, ref.leaves(right[0]))
    try:
        answer = a.compose(b)
    except CompositionError as error:
        assert misfit is not None, f"{a} o {b} refused, but {truth} is a layout: {error}"
        assert witness_index(error, b) == misfit, f"{a} o {b}: first misfit is {misfit}: {error}"
        assert (error.left, error.right) == (a, b)
        assert str(a) in str(error) and str(b) in str(error)
        return False
    assert misfit is None, f"{a} o {b} = {answer}, but no layout has {truth}"
    assert [answer(i) for i in range(answer.size)] == truth, f"{a} o {b} = {answer}"
    # compatible: each coordinate of B is one of the answer, so every leaf of B is a branch of the same size
    assert compatible(b.shape, answer.shape), f"{a} o {b} = {answer}"
    return True


def compatible(shape: ref.Tree, other: ref.Tree) -> bool:
    """Does `other` refine `shape`: same tree, with leaves replaced by trees of the same size?"""
    if not isinstance(shape, tuple):
        return ref.size(other) == shape
    if not isinstance(other, tuple) or len(shape) != len(other):
        return False
    return all(compatible(s, o) for s, o in zip(shape, other, strict=True))


@pytest.mark.parametrize("seed", range(6))
def test_random_compositions(seed: int) -> None:
    """Bulk: both outcomes must occur often, or the generator has gone soft."""
    rng = random.Random(seed)
    answered = refused = 0
    for _ in range(700):
        left = random_pair(rng, limit=400, leaves=4, extents=(1, 2, 2, 3, 4, 5, 6, 8))
        if judge(left, inside(rng, left)):
            answered += 1
        else:
            refused += 1
    assert answered > 250 and refused > 30, (answered, refused)


def test_small_compositions_exhaustively() -> None:
    """Every A of two modes against every small B of one or two. Carries, overlaps and gaps are among them."""
    counts = {True: 0, False: 0}
    lefts = [((s, t), (1, d)) for s, t, d in product((2, 3, 4), (2, 4), (0, 2, 3, 4, 8))]
    lefts += [((s, t), (d, 1)) for s, t, d in product((2, 4), (2, 3, 4), (2, 4, 8))]
    rights: list[Pair] = [(s, d) for s, d in product((2, 3, 4, 6), (1, 2, 3, 4))]
    rights += [((s, t), (d, e)) for s, t, d, e in product((2, 3), (2, 4), (1, 2, 3, 4), (1, 2, 3, 4, 6))]
    for left, right in product(lefts, rights):
        if max(ref.image(*right)) < ref.size(left[0]):
            counts[judge(left, right)] += 1
    assert counts[True] > 800 and counts[False] > 300, counts


def test_carries_that_cancel() -> None:
    """A carry over the first boundary adds k1 = d1 - a, over the next k2; with k1 = -k2 a carry through both is no
    carry at all. Whether a composition exists is then a matter of every single value.
    """
    rng = random.Random(31)
    counts = {True: 0, False: 0}
    while min(counts.values()) < 60:
        a, b, c = rng.choice((2, 3, 4)), rng.choice((2, 3)), rng.choice((3, 4, 8))
        d = rng.choice([x for x in range(1, 8) if x != a])
        left = (a, b, c), (1, d, b * d - d + a)
        shape = tuple(rng.choice((2, 2, 3)) for _ in range(rng.randint(2, 4)))
        right = shape, tuple(rng.randint(0, a * b + 2) for _ in shape)
        if min(left[1]) > 0 and max(ref.image(*right)) < a * b * c:
            if any(x % a + y % a >= a for x, y in combinations(right[1], 2)):
                counts[judge(left, right)] += 1
        assert sum(counts.values()) < 20000, counts


@given(pairs(limit=300, leaves=4))
def test_hypothesis_compositions(left: Pair) -> None:
    judge(left, inside(random.Random(repr(left)), left))


@pytest.mark.parametrize(
    ("left", "right", "misfit"),
    [
        # B's modes carry across A's boundary: 1 + 3 = 4 wraps into A's second mode
        ("(4,2):(1,8)", "(2,2):(1,3)", 3),
        # B overlaps itself: 1 + 1 = 2
        ("(2,8):(1,4)", "(2,2):(1,1)", 3),
        # the mode itself is no layout: 0, 6, 1, ...
        ("(4,3):(4,48)", "3:2", 2),
        ("(10,4):(1,100)", "(2,2):(2,8)", 3),
    ],
)
def test_known_wrong_answers_are_refused(left: str, right: str, misfit: int) -> None:
    """Each of these is answered wrongly, in silence, by at least one well-known implementation."""
    a, b = Layout.parse(left), Layout.parse(right)
    truth = [a(b(i)) for i in range(b.size)]
    assert ref.first_misfit(truth, ref.leaves(b.shape)) == misfit
    with pytest.raises(CompositionError) as caught:
        a.compose(b)
    error = caught.value
    assert isinstance(error, LayoutError) and isinstance(error, ValueError)
    assert witness_index(error, b) == misfit
    assert left in str(error) and right in str(error) and error.reason
    assert str(error) == f"cannot compose {a} o {b}: {error.reason}"


def test_the_arithmetic_of_a_refusal_is_true() -> None:
    """A message that says `at (..) the offset is .. = x, which the left one sends to y` says it of the witness."""
    said = re.compile(r"at \(([\d,]+)\) the offset is ([\d +]+) = (\d+), which the left (?:one|operand) sends to (\d+)")
    rng, found = random.Random(17), 0
    for _ in range(1500):
        left = random_pair(rng, limit=200, leaves=4)
        a, b = Layout(*left), Layout(*inside(rng, left))
        try:
            a.compose(b)
        except CompositionError as error:
            claim = said.search(str(error))
            if claim is None:
                continue
            digits = [int(i) for i in claim[1].split(",")]
            terms = [int(t) for t in claim[2].split("+")]
            index = witness_index(error, b)
            assert digits == ref.leaves(ref.coordinate(index, b.shape)), str(error)
            assert sum(terms) == int(claim[3]) == b(index) and int(claim[4]) == a(b(index)), str(error)
            found += 1
    assert found > 30, "refusals no longer say where and why"


def test_a_refusal_shows_the_parts_of_a_mode_that_was_split() -> None:
    """4:3 over rows of 8 is (2,2):(3,6): at 3 the parts 3 and 6 carry, and neither is the whole mode."""
    with pytest.raises(CompositionError) as caught:
        Layout((4, 8), (8, 1)) @ Layout(4, 3)
    assert "the offset is 3 + 6 = 9, which the left one sends to 10" in caught.value.reason
    assert "(24 + 17 part by part, mode 0 being (2,2):(3,6))" in caught.value.reason


def test_every_sum_in_a_refusal_has_two_terms() -> None:
    said = re.compile(
        r"the offset is ([\d +]+) = (\d+), which the left one sends to (\d+);.* \(([-\d +]+) (?:mod|part)"
    )
    rng, found = random.Random(29), 0
    for _ in range(2000):
        left = random_pair(rng, limit=200, leaves=4)
        right = inside(rng, left)
        try:
            Layout(*left) @ Layout(*right)
        except CompositionError as error:
            claim = said.search(str(error))
            if claim is None:
                continue
            terms = [int(t) for t in claim[1].split("+")]
            alone = [int(t) for t in claim[4].split("+")]
            table = ref.image(*left)
            assert len(terms) > 1 and sum(terms) == int(claim[2]), str(error)
            assert alone == [table[t] for t in terms] and sum(alone) != int(claim[3]) == table[sum(terms)], str(error)
            found += 1
    assert found > 30, found


@pytest.mark.parametrize(
    ("left", "right", "image"),
    [
        # refused by the mode-wise rule, yet a layout
        ("((2,3),2):((1,36),6)", "1:5", [0]),
        ("(3,8,4):(32,4,1)", "6:4", [0, 36, 72, 16, 52, 88]),
        ("(4,5):(1,8)", "(2,2):(5,5)", [0, 9, 9, 18]),
    ],
)
def test_answers_that_the_mode_rule_misses(left: str, right: str, image: list[int]) -> None:
    answer = Layout.parse(left).compose(Layout.parse(right))
    assert [answer(i) for i in range(answer.size)] == image


@given(pairs(limit=200, leaves=4))
def test_tuple_tilers_compose_by_mode(left: Pair) -> None:
    """A tuple tiler acts mode by mode; None leaves a mode alone, and modes beyond the tiler stay."""
    if not isinstance(left[0], tuple):
        return
    rng = random.Random(repr(left))
    a = Layout(*left)
    tiler, expected = [], []
    for i in range(rng.randint(1, a.rank)):
        kind = rng.choice(("none", "int", "layout"))
        size = a[i].size
        if kind == "none":
            tiler.append(None)
            expected.append(a[i])
        else:
            pick = Layout(rng.choice([n for n in range(1, size + 1) if size % n == 0]))
            if kind == "layout":
                pick = Layout(*inside(rng, (a[i].shape, a[i].stride)))
            tiler.append(pick.size if kind == "int" else pick)
            try:
                expected.append(a[i].compose(pick))
            except CompositionError:
                with pytest.raises(CompositionError) as caught:
                    a.compose((*tiler, None)) if i + 1 < a.rank else a.compose(tuple(tiler))
                assert caught.value.left == a[i], "the error names the mode of A that the tiler failed on"
                return
    expected += [a[i] for i in range(len(tiler), a.rank)]
    answer = a.compose(tuple(tiler))
    # An implementation may drop the modes that the tiler does not name (CuTe does, pycute does not); both are seen
    # in the wild, so compare the modes that must be there.
    for i in range(len(tiler)):
        assert [answer[i](c) for c in range(answer[i].size)] == [expected[i](c) for c in range(expected[i].size)]
    assert answer.rank in (len(tiler), a.rank)


def test_spellings_agree() -> None:
    a, b = Layout((6, 2), (8, 2)), Layout((4, 3), (3, 1))
    assert a @ b == a.compose(b) == composition(a, b)
    assert a.compose(6) == a.compose(Layout(6, 1))
    assert a.compose((3, None)) == a.compose((Layout(3), None))


def test_identity_is_neutral() -> None:
    rng = random.Random(5)
    for _ in range(300):
        pair = random_pair(rng, limit=200)
        layout = Layout(*pair)
        whole = layout.compose(Layout(layout.size))
        assert [whole(i) for i in range(whole.size)] == ref.image(*pair)
        same = Layout(layout.cosize).compose(layout)
        assert [same(i) for i in range(same.size)] == ref.image(*pair)


def test_associative_where_images_fit() -> None:
    rng = random.Random(11)
    checked = 0
    while checked < 200:
        left = random_pair(rng, limit=200, leaves=3)
        middle = inside(rng, left)
        right = inside(rng, middle)
        try:
            once = Layout(*left).compose(Layout(*middle)).compose(Layout(*right))
            twice = Layout(*left).compose(Layout(*middle).compose(Layout(*right)))
        except CompositionError:
            continue
        assert [once(i) for i in range(once.size)] == [twice(i) for i in range(twice.size)]
        checked += 1


def counted(point: int | tuple[int, ...]) -> int:
    """A point of two axes as one integer; an answer without a step along an axis leaves that axis out."""
    x, y, *_ = (point, 0) if isinstance(point, int) else (*point, 0)
    return x + 1000 * y


def test_strides_along_axes_compose_like_integers_or_are_refused() -> None:
    """The reference counts two axes as digits of one integer; a stride along both at once is refused."""
    rng = random.Random(21)
    answered = refused = mixed = 0
    for _ in range(600):
        shape = tuple(rng.randint(2, 6) for _ in range(rng.randint(2, 3)))
        left = Layout(shape, tuple(rng.randint(1, 3) * E(rng.randint(0, 1)) for _ in shape))
        right = inside(rng, (left.shape, left.stride))
        picks = ref.image(*right)
        values = [counted(left(i)) for i in picks]
        try:
            answer = left.compose(Layout(*right))
        except CompositionError as error:
            refused += 1
            mixed += "at once" in str(error)
            assert "at once" in str(error) or ref.first_misfit(values, ref.leaves(right[0])) is not None, error
            continue
        answered += 1
        assert [counted(answer(i)) for i in range(answer.size)] == values, f"{left} o {Layout(*right)} = {answer}"
    assert answered > 200 and refused > 200 and mixed > 5, (answered, refused, mixed)


def test_beyond_the_domain_is_the_last_mode_running_on_or_a_refusal() -> None:
    """Overhang: CuTe lets A's last mode run on. An answer must be that function; refusing is right too."""
    rng = random.Random(3)
    answered = 0
    for _ in range(800):
        left, right = random_pair(rng, limit=24, leaves=3), random_pair(rng, limit=24, leaves=2)
        picks = ref.image(*right)
        if max(picks) < ref.size(left[0]):
            continue
        extents = [s for s in ref.leaves(left[0]) if s != 1] or [1]
        strides = [d for s, d in zip(ref.leaves(left[0]), ref.leaves(left[1]), strict=True) if s != 1] or [
            ref.leaves(left[1])[-1]
        ]
        readings = [
            [ref.offset(p, left[0], left[1], wrap_last=False) for p in picks],
            [ref.offset(p, tuple(extents), tuple(strides), wrap_last=False) for p in picks],
            [
                ref.offset(p, tuple(extents), tuple(strides), wrap_last=False)
                if len(extents) > 1 or extents != [1]
                else 0
                for p in picks
            ],
        ]
        try:
            answer = Layout(*left).compose(Layout(*right))
        except CompositionError:
            continue
        answered += 1
        assert [answer(i) for i in range(answer.size)] in readings, f"{Layout(*left)} o {Layout(*right)} = {answer}"
    assert answered > 100


def test_negative_strides_right_or_refused() -> None:
    """A negative stride in A is a function like any other; in B it leaves the domain and must be refused or exact."""
    rng = random.Random(23)
    for _ in range(400):
        left = random_pair(rng, limit=60, leaves=3)
        left = (left[0], ref.like(left[0], [d * rng.choice((1, -1)) for d in ref.leaves(left[1])]))
        right = inside(rng, left)
        judge(left, right)
    with pytest.raises(ValueError, match="2:-1, reaches negative offsets"):
        Layout((4, 2), (1, 8)).compose(Layout((2, 2), (-1, 3)))


@pytest.mark.parametrize(
    ("left", "right", "answer"),
    [
        ("(8,1):(1,100)", 16, None),  # offset 9 is A(9) = 101
        ("(8,1):(4,0)", 16, None),
        ("(8,1):(4,0)", 8, "S<1,2,3> o 0 o 8:4"),  # stays below 8: the last entry is not reached
        ("(9,1):(4,0)", 9, None),  # 8 moves to 9, which is the end
        ("(8,1):(1,8)", 16, "S<1,0,3> o 0 o 16:1"),  # the last entry goes on as the first does
        ("1:4", 16, "S<1,2,3> o 0 o 16:4"),
        ("(1,8):(5,2)", 16, "S<1,1,3> o 0 o 16:2"),
    ],
)
def test_a_layout_after_a_swizzle_runs_on_in_its_last_entry(left: str, right: int, answer: str | None) -> None:
    a, b = Layout.parse(left), Swizzle(1, 0, 3) @ Layout(right)
    if answer is None:
        with pytest.raises(CompositionError, match="a plain layout after a swizzle"):
            a @ b
        return
    assert str(a @ b) == answer
    truth = [ref.offset(b(i), a.shape, a.stride, wrap_last=False) for i in range(right)]
    assert [(a @ b)(i) for i in range(right)] == truth


@pytest.mark.parametrize(
    ("left", "swizzle", "answer"),
    [
        ("(8,8):(8,1)", Swizzle(2, 0, -3), "S<2,0,3> o 0 o (8,8):(1,8)"),  # of CUTLASS' tests: they change places
        ("(8,8):(8,1)", Swizzle(3, 0, 3), "S<3,0,-3> o 0 o (8,8):(1,8)"),
        ("(8,8):(1,16)", Swizzle(3, 0, 3), "S<3,0,4> o 0 o (8,8):(16,1)"),  # they move apart
        ("(8,8):(9,1)", Swizzle(3, 0, 3), "two fields of bits: S<3,0,3>'s go to 7 and 63"),
        ("(2,32):(32,1)", Swizzle(3, 0, 3), "two fields of bits"),
        ("(8,8,2):(8,1,8)", Swizzle(3, 0, 3), "S<3,0,-3> o 0 o (8,8):(1,8)"),  # the overlap is not reached
    ],
)
def test_a_layout_after_a_swizzle_moves_its_fields(left: str, swizzle: Swizzle, answer: str) -> None:
    a, b = Layout.parse(left), swizzle @ Layout((8, 8), (8, 1))
    if not answer.startswith("S"):
        with pytest.raises(CompositionError, match=re.escape(answer)):
            a @ b
        return
    assert str(a @ b) == answer
    assert [(a @ b)(i) for i in range(64)] == [a(b(i)) for i in range(64)]
    row = b[3, :]  # begins at an offset
    assert [(a @ row)(i) for i in range(8)] == [a(row(i)) for i in range(8)]


def test_a_layout_after_a_swizzle_is_compared_at_all_coordinates() -> None:
    """Offset 64 goes to 8, as offset 1 does: the sum carries where the swizzle sets no bit twice."""
    a, b = Layout((8, 8, 2), (8, 1, 8)), Swizzle(3, 0, 3) @ Layout((8, 8, 2), (8, 1, 64))
    with pytest.raises(CompositionError, match="is no S<3,0,-3> o 0 o ") as refused:
        a @ b
    at = refused.value.witness
    assert at is not None and f"it is {a(b(at))} at" in str(refused.value)


def test_swizzled_left_operand() -> None:
    """Composing with a swizzle in front moves the inner layout and keeps swizzle and offset."""
    inner = Layout((8, 64), (64, 1))
    composed = ComposedLayout(Swizzle(3, 3, 3), 64, inner)
    tile = Layout((4, 8), (8, 64))  # rows 0..., columns: inside 8x64 as flat indices
    answer = composed.compose(tile)
    assert isinstance(answer, ComposedLayout)
    for i in range(tile.size):
        assert answer(i) == ref.swizzle(3, 3, 3, 64 + inner(tile(i))) == composed(tile(i))


def test_large_compositions_stay_exact_or_say_so() -> None:
    """Sizes far beyond enumeration: closed forms answer, and nothing is guessed."""
    big = Layout((2**20, 2**20), (2**20, 1))
    answer = big.compose(Layout(2**30, 2**5))
    assert answer.size == 2**30
    for i in (0, 1, 2**15 - 1, 2**15, 2**15 + 1, 2**29 + 12345, 2**30 - 1):
        assert answer(i) == big(i * 2**5)
    with pytest.raises(LayoutError, match="takes the left one in steps of 3"):
        Layout((2**20, 2**20), (1, 2**30)).compose(Layout((2**19, 2**19), (3, 1)))
