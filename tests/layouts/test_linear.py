"""Matrices over GF(2) against tables: what they accept, what they refuse, and every answer about functions."""

from __future__ import annotations

import pickle
import random
from itertools import product

import numpy as np
import pytest

from layoutgemm.errors import CoordinateError, LayoutError
from layoutgemm.layouts import ComposedLayout, CounterExample, E, Layout, Proof, Swizzle, parse
from layoutgemm.layouts.linear import LinearLayout
from layoutgemm.layouts.proofs.gf2 import add_constant
from layoutgemm.layouts.proofs.prove import covers
from tests.layouts import reference as ref

SWIZZLES = [(b, m, s) for b in range(4) for m in range(4) for s in (-4, -3, -2, -1, 1, 2, 3, 4) if b <= abs(s)]


def xor_table(values: list[int]) -> list[int]:
    """The affine function that agrees with the values at 0 and at the powers of two."""
    out = [values[0]]
    i = 1
    while i < len(values):
        step = values[i] ^ values[0]
        out += [v ^ step for v in out]
        i *= 2
    return out


def random_source(rng: random.Random) -> tuple[object, list[int]]:
    """A layout of power-of-two extents, plain or composed, and its values from the definition. It is linear or not."""
    shape = ref.like(((0, 0), 0) if rng.random() < 0.5 else (0, 0, 0), [rng.choice((1, 2, 2, 4, 8)) for _ in range(3)])
    if rng.random() < 0.6:
        # powers of two in some order: mostly linear
        order = ref.leaves(shape)
        strides, top = [0] * 3, 1
        for i in rng.sample(range(3), 3):
            strides[i] = top
            top *= order[i] * rng.choice((1, 1, 1, 2))
        if rng.random() < 0.3:
            strides[rng.randrange(3)] = rng.choice((0, 1, 3, 5, 10))
    else:
        strides = [rng.choice((-3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 8, 12, 16)) for _ in range(3)]
    stride = ref.like(shape, strides)
    plain = ref.image(shape, stride)
    if rng.random() < 0.4:
        return Layout(shape, stride), plain
    bms, offset = rng.choice(SWIZZLES), rng.choice((0, 0, 0, 1, 2, 7, 8, 64, 100))
    composed = ComposedLayout(Swizzle(*bms), offset, Layout(shape, stride))
    if min(plain) + offset < 0:
        return composed, [offset + v for v in plain]
    values = [ref.swizzle(*bms, offset + v) for v in plain]
    if rng.random() < 0.2:
        outer, extra = rng.choice(SWIZZLES), rng.choice((0, 0, 1, 16, 256))
        return ComposedLayout(Swizzle(*outer), extra, composed), [ref.swizzle(*outer, extra + v) for v in values]
    return composed, values


def test_accepts_exactly_the_affine_functions() -> None:
    rng = random.Random(1)
    taken = refused = 0
    for _ in range(6000):
        source, values = random_source(rng)
        affine = min(values) >= 0 and values == xor_table(values)
        try:
            linear = LinearLayout.of(source)
        except LayoutError as error:
            refused += 1
            if isinstance(source, ComposedLayout) and isinstance(source.layout, ComposedLayout):
                continue  # taken from the inside out: two offsets that undo each other's carries are refused
            assert not affine, (str(source), values)
            if error.witness is not None and min(values) >= 0:
                plain = values if isinstance(source, Layout) else [source.swizzle(v) for v in values]
                first = next(i for i, (v, w) in enumerate(zip(plain, xor_table(plain), strict=True)) if v != w)
                assert error.witness == first, (str(source), error)
            continue
        assert affine, (str(source), values)
        taken += 1
        assert linear.offsets().tolist() == values
        assert [linear(i) for i in range(len(values))] == values
        assert linear(np.arange(len(values))).tolist() == values
        assert linear.shape == ref_shape(source)
    assert taken > 1500 and refused > 1500, (taken, refused)


def ref_shape(source: object) -> tuple[int, ...]:
    return tuple(ref.size(mode) for mode in ref.modes(source.shape))


@pytest.mark.parametrize(
    ("source", "part", "witness"),
    [
        (Layout((4, 6), (1, 4)), "extent 6 is no power of two", None),
        (Layout((4, 2), (1, 3)), "bits 0 and 2 of the coordinate move bit 0", 5),
        (Layout((4, 2), (1, -4)), "index 4 is at -4", None),
        (ComposedLayout(Swizzle(3, 3, 3), 8, Layout((8, 64), (64, 1))), "bits 6 and 7", 64 + 128),
        (Layout.identity((4, 4)), "extents and strides must be integers", None),
        (Layout((2, 2), (E(0), E(1))), "extents and strides must be integers", None),
        (17, "must be a Layout, a Swizzle or a ComposedLayout, not 17", None),
    ],
    ids=str,
)
def test_refusals(source: object, part: str, witness: int | None) -> None:
    with pytest.raises(LayoutError, match=part) as caught:
        LinearLayout.of(source)
    if witness is not None:
        assert caught.value.witness == witness


def test_a_constant_added_to_an_affine_function() -> None:
    rng = random.Random(7)
    answered = 0
    for _ in range(3000):
        n, width = rng.randint(1, 3), 4
        rows = [rng.choice((0, 0, rng.randrange(2 << n), 1 << rng.randrange(n + 1))) for _ in range(width)] + [0] * 3
        constant = rng.randrange(1 << width)

        def value(rows: list[int], x: int, one: int = 1 << n) -> int:
            return sum(((row & (x | one)).bit_count() & 1) << i for i, row in enumerate(rows))

        values = [constant + value(rows, x) for x in range(1 << n)]
        out = add_constant(constant, rows, n)
        assert (out is not None) == (values == xor_table(values)), (rows, constant)
        if out is not None:
            answered += 1
            assert [value(out, x) for x in range(1 << n)] == values
    assert answered > 500


def test_swizzles_alone() -> None:
    for bms in SWIZZLES:
        linear = LinearLayout.of(Swizzle(*bms), bits=10)
        assert linear.offsets().tolist() == [ref.swizzle(*bms, x) for x in range(1 << 10)]
        assert linear @ linear == LinearLayout.identity(10) and linear.inverse() == linear
    with pytest.raises(LayoutError, match="acts on 10 bits, not 9"):
        LinearLayout.of(Swizzle(3, 4, 3), bits=9)


def random_linear(rng: random.Random, n: int, width: int) -> LinearLayout:
    dense = rng.random() < 0.5
    columns = [rng.randrange(1 << width) if dense else 1 << rng.randrange(width) for _ in range(n)]
    for _ in range(rng.randrange(3)):  # some rank lost
        if n > 1:
            i, j, k = (rng.randrange(n) for _ in range(3))
            columns[i] = columns[j] ^ (columns[k] if k != j else 0)
    return LinearLayout(tuple(columns), width=width, offset=rng.choice((0, 0, rng.randrange(1 << width))))


def test_rank_kernel_image_inverses() -> None:
    rng = random.Random(2)
    seen = dict.fromkeys(("injective", "surjective", "bijective", "right"), 0)
    for _ in range(3000):
        n, width = rng.randint(1, 6), rng.randint(1, 6)
        f = random_linear(rng, n, width)
        values = f.offsets().tolist()
        assert 1 << f.rank == len(set(values))
        span = {0}
        for k in f.kernel():
            span |= {x ^ k for x in span}
        assert span == {x for x in range(1 << n) if values[x] == f.offset} and len(span) == 1 << len(f.kernel())
        span = {f.offset}
        for v in f.image():
            span |= {x ^ v for x in span}
        assert span == set(values) and len(span) == 1 << len(f.image())
        assert bool(f.is_injective()) == (len(set(values)) == len(values))
        assert f.is_surjective() == (len(set(values)) == 1 << width)
        assert bool(f.is_bijective()) == (sorted(values) == list(range(1 << width)))
        for v in range(1 << width):
            x = f.solve(v)
            assert (x is None) == (v not in values) and (x is None or values[x] == v)
        if f.is_injective():
            seen["injective"] += 1
            back = f.left_inverse()
            assert all(back(v) == x for x, v in enumerate(values)) and back.size == 1 << width
        else:
            with pytest.raises(LayoutError) as caught:
                f.left_inverse()
            assert caught.value.witness == next(x for x, v in enumerate(values) if v in values[:x])
        if f.is_bijective():
            seen["bijective"] += 1
            assert f.inverse() @ f == f @ f.inverse() == LinearLayout.identity(n)
        else:
            with pytest.raises(LayoutError):
                f.inverse()
        seen["surjective"] += bool(f.is_surjective())
        reach = next(k for k in range(width, -2, -1) if k < 0 or set(range(1 << k)) <= set(values))
        if reach < 0:
            with pytest.raises(LayoutError, match="no right inverse"):
                f.right_inverse()
            continue
        right = f.right_inverse()
        seen["right"] += right.size > 1
        assert right.size == 1 << reach and [f(right(y)) for y in range(right.size)] == list(range(right.size))
    assert min(seen.values()) > 50, seen


def test_right_inverse_reaches_at_least_as_far_as_the_algebra() -> None:
    rng = random.Random(3)
    for _ in range(500):
        extents = [rng.choice((2, 4, 8)) for _ in range(3)]
        strides, top = [0] * 3, 1
        for i in rng.sample(range(3), 3):
            strides[i] = top
            top *= extents[i] * rng.choice((1, 1, 2))
        layout = Layout(tuple(extents), tuple(strides))
        matrix = LinearLayout.of(layout).right_inverse()
        other = layout.right_inverse()
        assert matrix.size >= other.size and all(layout(matrix(y)) == y for y in range(matrix.size))
        assert other.size == 1 or matrix.offsets()[: other.size].tolist() == other.offsets().tolist()


def test_composition() -> None:
    rng = random.Random(4)
    for _ in range(1000):
        a, b = random_linear(rng, rng.randint(1, 6), 6), random_linear(rng, rng.randint(1, 5), rng.randint(1, 6))
        values = b.offsets().tolist()
        if max(values) >= a.size:
            with pytest.raises(LayoutError, match="outside the domain") as caught:
                a.compose(b)
            assert caught.value.witness == next(x for x, v in enumerate(values) if v >= a.size)
        else:
            assert (a @ b).offsets().tolist() == [a(v) for v in values]


def test_equivalence_and_its_mutations() -> None:
    rng = random.Random(5)
    equal = different = 0
    for _ in range(4000):
        source, values = random_source(rng)
        other, theirs = (source, values) if rng.random() < 0.3 else random_source(rng)
        try:
            a, b = LinearLayout.of(source), LinearLayout.of(other)
        except LayoutError:
            continue
        columns = list(a.columns)
        if columns and rng.random() < 0.5:
            columns[rng.randrange(len(columns))] ^= rng.choice((0, 1, 4, 64))
            b = LinearLayout(tuple(columns), offset=a.offset ^ rng.choice((0, 0, 0, 2)))
            theirs = b.offsets().tolist()
        answer = a.equivalent(b)
        if values == theirs:
            equal += 1
            assert isinstance(answer, Proof)
            continue
        different += 1
        both = min(len(values), len(theirs))
        first = next((i for i in range(both) if values[i] != theirs[i]), both)
        assert isinstance(answer, CounterExample) and answer.index == first
        assert answer.left == (values[first] if first < len(values) else None)
        assert answer.right == (theirs[first] if first < len(theirs) else None)
    assert equal > 300 and different > 300, (equal, different)


def as_composed(values: list[int], limit: int) -> bool:
    """True if some swizzle, offset and layout have these values: by trying every swizzle."""
    for b, m, s in product(range(limit), range(limit), range(-limit, limit + 1)):
        if b > abs(s) or (s == 0 and (b or m)):
            continue
        plain = [ref.swizzle(b, m, s, v) for v in values]
        i = 1
        table = [plain[0]]
        while i < len(plain):
            table += [v + plain[i] - plain[0] for v in table]
            i *= 2
        if table == plain:
            return True
    return False


def test_back_to_layouts_where_one_exists() -> None:
    rng = random.Random(6)
    plain = composed = none = 0
    for _ in range(1500):
        n, width = rng.randint(1, 4), rng.randint(1, 5)
        if rng.random() < 0.6:
            f = random_linear(rng, n, width)
        else:
            # a permuted compact layout under a swizzle, so that one exists
            bits = rng.sample(range(5), n)
            sw = Swizzle(*rng.choice(SWIZZLES))
            f = LinearLayout(tuple(sw(1 << b) for b in bits), offset=sw(rng.choice((0, 0, 1, 6, 32))))
        values = f.offsets().tolist()
        size = range(len(values))
        additive = values[0] == 0 and all(
            values[i | j] == values[i] + values[j] for i in size for j in size if not i & j
        )
        try:
            layout = f.to_layout()
        except LayoutError as error:
            assert not additive
            at = error.witness
            assert at == 0 or f(at) != f(at & -at) + f(at & (at - 1))
        else:
            plain += 1
            assert additive and layout.offsets().tolist() == values
        try:
            back = f.to_composed("bytes")
        except LayoutError:
            none += 1
            assert not as_composed(values, 6), f
        else:
            composed += 1
            assert back.offsets().tolist() == values and back.swizzle.unit == 8
            assert LinearLayout.of(back).equivalent(f)
    assert min(plain, composed, none) > 100, (plain, composed, none)


def test_known_layouts_come_back() -> None:
    """Modes stay, and the swizzle is the one that a person would write."""
    for text in (
        "S<3,3,3> o 0 o (8,64):(64,1)",
        "S<3,4,3> o 0 o (8,128):(128,1)",
        "S<2,3,3> o 0 o (32,64):(1,32)",
        "S<1,3,3> o 512 o (16,16):(16,1)",
        "S<2,0,-3> o 0 o (8,(4,2)):(1,(16,8))",
    ):
        composed = ComposedLayout.parse(text)
        assert str(LinearLayout.of(composed).to_composed()) == text
    for text in ("(8,64):(64,1)", "((4,8,4),(2,2,8)):((128,1,16),(64,8,512))", "(2,4):(4,1)", "16:3"):
        if text != "16:3":
            assert str(LinearLayout.of(Layout.parse(text)).to_layout()) == text
    with pytest.raises(LayoutError, match="to_composed"):
        LinearLayout((1, 3)).to_layout()
    assert str(LinearLayout((1,), offset=1).to_composed().layout) == "2:-1"  # 1, 0


def test_two_to_the_forty() -> None:
    """The size costs nothing: only the number of bits does."""
    a = ComposedLayout(Swizzle(3, 4, 3), 0, Layout((1 << 20, 1 << 20), (1 << 20, 1)))
    b = ComposedLayout(Swizzle(3, 4, 3), 0, Layout(((1 << 10, 1 << 10), 1 << 20), ((1 << 20, 1 << 30), 1)))
    c = ComposedLayout(Swizzle(2, 4, 3), 0, Layout((1 << 20, 1 << 20), (1 << 20, 1)))
    assert LinearLayout.of(a).equivalent(b)
    answer = LinearLayout.of(a).equivalent(c)
    assert isinstance(answer, CounterExample) and answer.coord == (0, 1 << 9)
    assert (answer.left, answer.right) == (512 ^ 64, 512)
    assert LinearLayout.of(a).is_bijective() and LinearLayout.of(a).inverse() @ a == LinearLayout(
        tuple(1 << i for i in range(40)), (20, 20)
    )
    huge = LinearLayout.of(Layout((1 << 50, 1 << 50)))
    assert huge((1 << 99) + 5) == (1 << 99) + 5 and huge.rank == 100
    assert huge(np.array([3, 5]), np.array([1, 2])).tolist() == [3 + (1 << 50), 5 + (2 << 50)]


def test_calls() -> None:
    f = LinearLayout.of(Swizzle(3, 3, 3) @ Layout((8, 64), (64, 1)), names=("m", "k"))
    assert f(3, 17) == f((3, 17)) == f(m=3, k=17) == f(3 + 8 * 17) and f(k=17) == f(0, 17)
    m, k = np.meshgrid(np.arange(8), np.arange(64), indexing="ij")
    assert (f(m, k) == 64 * m + (k ^ (m * 8))).all() and f(3, np.arange(64)).tolist() == [f(3, x) for x in range(64)]
    for bad in ((8, 0), (0, 64), (512,), (-1,), (1, 2, 3), (np.array([0.5]),)):
        with pytest.raises(CoordinateError):
            f(*bad)
    with pytest.raises(CoordinateError, match="named"):
        f(row=1)


def test_the_value() -> None:
    f = LinearLayout.of(Swizzle(1, 0, 2) @ Layout((2, 4), (4, 1)), names=("m", "k"))
    assert f.matrix().dtype == np.uint8 and LinearLayout.from_matrix(f.matrix(), (1, 2), ("m", "k")) == f
    assert eval(repr(f)) == f and pickle.loads(pickle.dumps(f)) == f and hash(f) == hash(eval(repr(f)))
    assert LinearLayout.of(Layout(1)).offsets().tolist() == [0] and str(LinearLayout.of(Layout(1))) is not None
    assert str(LinearLayout((2,), offset=1)).splitlines()[2:] == ["bit 0: . ^ 1", "bit 1: 1"]
    for bad in (
        lambda: LinearLayout((1, 2), (1,)),
        lambda: LinearLayout((4,), width=2),
        lambda: LinearLayout((-1,)),
        lambda: LinearLayout((1, 2), (1, 1), ("a",)),
        lambda: LinearLayout.from_matrix([[2]]),
    ):
        with pytest.raises(LayoutError):
            bad()


def test_a_large_matrix_prints_on_one_screen() -> None:
    text = str(LinearLayout.of(Layout((1 << 20, 1 << 20)))).split("\n")
    assert len(text) == 28 and text[-1] == "and 15 bits more" and text[-2].startswith("bit 24: ")


def test_bases_are_read_back_by_parse() -> None:
    rng = random.Random(5)
    for _ in range(30):
        shape = tuple(1 << rng.randint(0, 3) for _ in range(rng.randint(1, 3)))
        columns = [1 << i for i in range(sum(x.bit_length() - 1 for x in shape))]
        rng.shuffle(columns)
        cut = rng.randint(0, len(columns))
        linear = LinearLayout(tuple(columns), (cut, len(columns) - cut), ("register", "lane"))
        if len(columns) > 1 and 0 < cut < len(columns):
            assert parse(str(linear.bases(shape))).equivalent(linear)
    for shape, match in (((8, 4), "4 bits are not those"), ((6, 4), "power of two"), (8, "a tuple of integers")):
        with pytest.raises(LayoutError, match=match):
            LinearLayout((1, 2, 4, 8), (2, 2), ("register", "lane")).bases(shape)  # type: ignore[arg-type]
    with pytest.raises(LayoutError, match="modes have no names"):
        LinearLayout((1, 2)).bases((4,))


def test_a_matrix_in_a_sentence_is_one_line():
    matrix = LinearLayout((1, 2, 4, 8), bits=(2, 2), names=("register", "lane"))
    assert f"{matrix}" == "a matrix over GF(2) of register 4, lane 4" and len(str(matrix).splitlines()) > 4
    missing = covers(LinearLayout((1, 2, 4, 8), (2, 2)), 17).explain()
    assert missing.startswith("a matrix over GF(2) of 4 x 4 does not cover 0..16")
