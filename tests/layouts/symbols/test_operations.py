"""Layouts with symbols: every operation against its definition at many sizes; refusals, conditions, SymPy."""

import pickle
import random
import subprocess
import sys

import numpy as np
import pytest
import sympy

from layoutgemm import ComposedLayout, E, Layout, Swizzle, parse
from layoutgemm.errors import CompositionError, CoordinateError, LayoutError
from layoutgemm.layouts.int_tuple import leaves
from layoutgemm.layouts.proofs.prove import at
from layoutgemm.layouts.symbols.dims import dim, dims, entry, from_sympy, to_sympy
from layoutgemm.layouts.symbols.facts import Facts
from layoutgemm.layouts.symbols.generators import FactError
from layoutgemm.layouts.symbols.polynomial import MissingFact, Polynomial, div, valuations
from layoutgemm.layouts.symbols.symbolic_layout import SymbolicLayout, generators

REFUSED = (MissingFact, CompositionError, LayoutError)
CAP = 600  # elements looked at


def pool(rng):
    """A few entries to build with: free, divisible and bounded symbols, and symbols under relations."""
    kind = rng.randrange(5)
    if kind == 0:
        return list(dims("M N K"))
    if kind == 1:
        return [dim("M", multiple_of=4), dim("N", multiple_of=2), dim("K", min=3)]
    if kind == 2:
        return [dim("M", multiple_of=4, max=12), dim("b", max=3), dim("N")]
    if kind == 3:
        given = Facts("ld >= M", "BK | K")
        return [given["M"], given["ld"], given["K"], given["BK"], div(given["K"], given["BK"])]
    given = Facts("T = ceil_div(M, 4)", "2 | N")
    return [given["T"], given["M"], given["N"], 4 * given["T"]]


def extent(rng, symbols):
    x = rng.choice([1, 2, 3, 4, 4, 8, *symbols, *symbols])
    if rng.random() < 0.2:
        x = x * rng.choice([2, 3, 4, *symbols])
    if x.__class__ is Polynomial and rng.random() < 0.3:
        x = div(x, rng.choice([2, 4])) or x
    return x


def random_layout(rng, symbols, most=4):
    """Compact in some order, or with gaps, padding, broadcast and arbitrary strides now and then."""
    n = rng.randint(1, most)
    shape = [extent(rng, symbols) for _ in range(n)]
    order = rng.sample(range(n), n) if rng.random() < 0.5 else list(range(n))
    stride = [0] * n
    w = rng.choice([1, 1, 1, 2, rng.choice(symbols)])
    for i in order:
        stride[i] = 0 if rng.random() < 0.06 else w
        w = w * shape[i] * (rng.choice([2, 3, *symbols]) if rng.random() < 0.15 else 1)
        if rng.random() < 0.05:
            w = w + rng.choice([1, 4, 8])
    if rng.random() < 0.1:
        stride[rng.randrange(n)] = rng.choice([1, 2, 3, 5, *symbols])
    if n >= 3 and rng.random() < 0.4:
        return Layout(((shape[0], shape[1]), *shape[2:]), ((stride[0], stride[1]), *stride[2:]))
    return Layout(tuple(shape), tuple(stride)) if n > 1 or rng.random() < 0.5 else Layout(shape[0], stride[0])


def sizes(*layouts, limit=8):
    gs = generators(*[y for x in layouts for y in (x.shape, x.stride)])
    count = 0
    for env in valuations(gs, 5):
        if all(at(x.size, env) <= CAP for x in layouts):
            yield env
            count += 1
            if count == limit:
                return


def value(layout, x):
    """Offsets of indices >= 0 of an integer layout that runs on in its last entry."""
    total = 0
    modes = list(zip(leaves(layout.shape), leaves(layout.stride)))
    for s, d in modes[:-1]:
        total, x = total + x % s * d, x // s
    return total + x * modes[-1][1]


def offsets(layout):
    return value(layout, np.arange(layout.size)).tolist()


def through(layout, indices):
    return value(layout, np.array(indices, np.int64)).tolist()


def fuzz(count, seed, operation, check):
    """Run an operation on random layouts; check each answer at many sizes. Answers how many were answered."""
    rng = random.Random(seed)
    answered = 0
    for _ in range(count):
        symbols = pool(rng)
        a, b = random_layout(rng, symbols), random_layout(rng, symbols, 3)
        try:
            r = operation(rng, a, b, symbols)
        except REFUSED as error:
            assert str(error)
            continue
        answered += 1
        for env in sizes(a, b, r):
            check(at(a, env), at(b, env), at(r, env), env)
    return answered


def test_compose_is_the_function_of_the_composition_at_every_size():
    def check(a, b, r, env):
        assert r.size == b.size and offsets(r) == through(a, offsets(b)), (a, b, r, env)

    assert fuzz(1500, 1, lambda rng, a, b, s: a.compose(b), check) > 400


def test_compose_does_not_carry():
    """Each mode of B fits a mode of A, and their sum may not: refused unless it provably does."""
    M, N = dims("M N")
    a = Layout((4 * M, N), (1, 8 * M))
    with pytest.raises(CompositionError, match=r"may carry across 4\*M:1.*needs M >= 2"):
        a.compose(Layout((2, 2), (1, 3)))
    assert str(a.given("M >= 2").compose(Layout((2, 2), (1, 3)))) == "(2,2):(1,3)"

    def check(a, b, r, env):
        assert offsets(r) == through(a, offsets(b)), (a, b, r, env)

    def operation(rng, a, b, symbols):
        small = Layout(tuple(rng.randint(2, 4) for _ in range(2)), (1, rng.randint(1, 6)))
        r = a.compose(small)
        for env in sizes(a):
            check(at(a, env), small, at(r, env), env)
        return r

    assert fuzz(500, 20, operation, lambda a, b, r, env: None) > 100


def test_coalesce_filter_and_flatten_keep_their_function():
    def check(a, b, r, env):
        assert offsets(r) == offsets(a)

    assert fuzz(300, 2, lambda rng, a, b, s: a.coalesce(), check) == 300
    assert fuzz(200, 3, lambda rng, a, b, s: a.flatten(), check) == 200

    def filtered(a, b, r, env):
        assert sorted(set(offsets(r))) == sorted(set(offsets(a)))

    assert fuzz(300, 4, lambda rng, a, b, s: a.filter(), filtered) == 300


def test_complement_is_disjoint_and_fills_what_is_left():
    def check(a, b, r, env):
        # Every translate of a's image by a value of r: no offset twice, beyond what a repeats itself.
        own = sorted(set(offsets(a)))
        sums = [x + y for x in own for y in offsets(r)]
        assert len(set(sums)) == len(sums), (a, r, env)

    def operation(rng, a, b, s):
        return a.complement(rng.choice([None, None, a.size, a.size * 4, rng.choice(s)]))

    assert fuzz(800, 5, operation, check) > 250


def test_inverses():
    def right(a, b, r, env):
        assert through(a, offsets(r)) == list(range(r.size)), (a, r, env)

    assert fuzz(400, 6, lambda rng, a, b, s: a.right_inverse(), right) == 400

    def left(a, b, r, env):
        assert through(r, offsets(a)) == list(range(a.size)), (a, r, env)

    assert fuzz(700, 7, lambda rng, a, b, s: a.left_inverse(), left) > 120


def test_max_common_layout_is_common():
    def check(a, b, r, env):
        n = list(range(r.size))
        assert through(a, offsets(r)) == n == through(b, offsets(r))

    assert fuzz(500, 8, lambda rng, a, b, s: a.max_common_layout(b), check) > 150
    M, N = dims("M N")
    a, b = Layout((M, N)), Layout((M, N), (1, 2 * M))
    assert str(a.max_common_layout(b)) == "M:1" and a.max_common_vector(a) == M * N


def test_tile_to_shape():
    M, N = dim("M", multiple_of=8), dim("N", multiple_of=64)
    r = Layout((8, 64), (64, 1)).tile_to_shape((M, N), (1, 0))
    assert str(r) == "((8,M//8),(64,N//64)):((64,8*N),(1,512))" and r.conditions == ("8 | M", "64 | N")
    for env in sizes(r):
        m, n = at(M, env), at(N, env)
        assert at(r, env) == Layout((8, 64), (64, 1)).tile_to_shape((m, n), (1, 0)) or 1 in (m // 8, n // 64)
        assert offsets(at(r, env)) == offsets(Layout((8, 64), (64, 1)).tile_to_shape((m, n), (1, 0)))
    with pytest.raises(MissingFact, match=r"needs 8 \| Q"):
        Layout((8, 8)).tile_to_shape((dim("Q"), 8))


def test_widths():
    def up(a, b, r, env):
        expected = a.upcast(4)
        assert offsets(r) == offsets(expected), (a, r, expected, env)

    assert fuzz(400, 9, lambda rng, a, b, s: a.upcast(4), up) > 60

    def down(a, b, r, env):
        expected = a.downcast(2)
        assert offsets(r) == offsets(expected), (a, r, expected, env)

    # refused where a symbolic stride may be 1: a mode of stride 1 takes in the parts
    assert 200 < fuzz(300, 10, lambda rng, a, b, s: a.downcast(2), down) < 300
    with pytest.raises(MissingFact, match="needs N >= 2"):
        Layout((dim("M"), dim("N")), (dim("N"), 1)).downcast(2)
    M = dim("M", multiple_of=8)
    assert str(Layout((M, 4), (1, M)).recast(16, 8)) == "(M//2,4):(1,M//2)"
    assert (
        str(Layout((dim("L", multiple_of=3), 4), (1, dim("L", multiple_of=3))).recast(24, 16))
        == "(2*L//3,4):(1,2*L//3)"
    )
    with pytest.raises(MissingFact, match=r"needs 16 \| M"):
        Layout((M, 4), (M, 1)).upcast(16)


def test_slices_and_coordinates():
    M, N = dims("M N")
    i, j = dim("i", min=0), dim("j", min=0)
    a = Layout((M, (N, 4)), (4 * N, (1, N)))
    rest, offset = a.slice((i, (None, 3)))
    assert str(rest) == "(N):(1)" and offset == 4 * N * i + 3 * N
    assert str(a.dice((None, (0, None)))) == "(N):(1)"
    assert a(i, (j, 2)) == 4 * N * i + j + 2 * N and a(2, (0, 1)) == 9 * N
    assert a.coord(0) == (0, (0, 0)) and a(0) == 0
    assert Layout((4, M), (1, 8))(9) == 17  # 9 = 1 + 2*4
    with pytest.raises(CoordinateError, match=r"coordinate 4 is outside 0\.\.3"):
        a(0, (0, 4))
    with pytest.raises(CoordinateError, match=r"coordinate -1 is outside 0\.\.M-1"):
        a(-1, (0, 0))
    with pytest.raises(MissingFact, match="5 % M: needs M >= 6"):
        Layout((M, N))(5)
    with pytest.raises(LayoutError, match="put numbers in first"):
        a.offsets()
    with pytest.raises(LayoutError, match="a layout with symbols takes no arrays"):
        Layout((M, N))(np.arange(3))


def test_properties():
    M, N = dim("M", multiple_of=64), dim("N")
    a = Layout((M, (N, 4)))
    assert isinstance(a, SymbolicLayout) and isinstance(a, Layout)
    assert (a.size, a.rank, a.depth, a.stride) == (4 * M * N, 2, 2, (1, (M, M * N)))
    assert Layout((M, N), (2 * N, 2)).cosize == 2 * M * N - 1
    assert a.symbols == ("M", "N") and len(a) == 2 and [str(x) for x in a] == ["M:1", "(N,4):(M,M*N)"]
    assert a == Layout((M, (N, 4))) and hash(a) == hash(Layout((M, (N, 4)))) and a != Layout((M, (N, 4)), (1, (M, 1)))
    assert a.at(M=64, N=2) == Layout((64, (2, 4))) and a.at(M=64, N=2).__class__ is Layout
    assert Layout.ordered((M, N), (1, 0)).stride == (N, 1)
    assert str(Layout.join(Layout(M), Layout(4, 3))) == "(M,4):(1,3)"
    assert a.group(0, 2).rank == 1 and str(Layout((M, 3), (0, 1)).nullspace()) == "M:1"


def test_the_first_two_lines_of_a_session():
    M, N = dim("M", multiple_of=64), dim("N")
    tiles = Layout((M, N), (N, 1)).zipped_divide((64, None))
    assert str(tiles) == "((64,1),(M//64,N)):((N,0),(64*N,1))"
    assert tiles.conditions == ("64 | M",)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda M, N: Layout((M, N)).logical_divide((64, None)), r"needs 64 \| M or M <= 64"),
        (lambda M, N: Layout((4, M), (1, 8)).compose(Layout((N, 2), (2, 1))), r"2 \| N"),
        (lambda M, N: Layout((M, N), (N, 1)).compose(Layout(8, 3)), r"needs 3 \| M or M >= 22"),
        (lambda M, N: Layout((M, N), (1, 1)).left_inverse(), "needs"),
        (lambda M, N: Layout((M, N), (0, 1)).left_inverse(), "M == 1"),
        (lambda M, N: Layout((M, N)).with_shape((N, M + 1)), "coordinates"),
        (lambda M, N: Layout((M, N), (N, M)).complement(), "needs"),
        (lambda M, N: Layout(M).complement(N), r"needs M \| N or N <= M|M >= N"),
        (lambda M, N: Layout(M, -1 * N).complement(), "complement of M:-N"),
        (lambda M, N: Layout((M - 1, N)), r"needs M >= 2"),
        (lambda M, N: Layout((M, N), (1,)), "congruent"),
        (lambda M, N: Layout((M, N), (E(0), N)), "mix"),
    ],
)
def test_refusals_name_what_is_missing(call, text):
    M, N = dims("M N")
    with pytest.raises(LayoutError, match=text):
        call(M, N)


def test_compose_names_all_ways_out():
    M, N = dims("M N")
    with pytest.raises(CompositionError) as caught:
        Layout((M, N), (N, 1)).compose(Layout(8))
    assert caught.value.needs == ("M >= 8",)
    with pytest.raises(CompositionError) as caught:
        Layout((M, N), (1, 2 * M)).compose(Layout(4, 2))
    assert caught.value.needs == ("2 | M", "M >= 7")
    for fact in caught.value.needs[1:]:
        assert str(Layout((M, N), (1, 2 * M)).given(fact).compose(Layout(4, 2))) == "4:2"


def test_conditions_say_what_was_used_and_no_more():
    M, N = dim("M", multiple_of=64), dim("N", multiple_of=8, min=32)
    a = Layout((M, N))
    assert a.compose(Layout((M, N))).conditions == ()
    assert a.logical_divide((16, None)).conditions == ("16 | M",)
    assert a.logical_divide((16, 8)).conditions == ("16 | M", "8 | N")
    assert a.logical_divide((16, 8))[0].conditions == ("16 | M", "8 | N")
    assert Layout((M, N), (1, 2 * M)).compose(Layout(20)).conditions == ("M >= 20",)
    assert str(Layout((M, N), (1, 2 * M)).compose(Layout(20))) == "20:1" and Layout(20).conditions == ()
    given = Facts("BK | K")
    K, BK = given(*dims("K BK"))
    assert Layout((M, K), (K, 1)).zipped_divide((None, BK)).conditions == ("BK | K",)
    assert Layout((M, N)).right_inverse().conditions == ()


def test_right_inverse_takes_the_longest_chain_of_overlapping_modes() -> None:
    """The first chain was taken: (n,2*n+1):(1,1) gave n:1, which is shorter at every size."""
    n = dim("n")
    assert str(Layout((n, 2 * n + 1), (1, 1)).right_inverse()) == "2*n+1:n"
    assert str(Layout((n, 8), (1, 1)).given("n <= 8").right_inverse()) == "8:n"
    assert str(Layout((n, 8), (1, 1)).right_inverse()) == "n:1"  # either may be longer


def test_conditions_are_sufficient():
    """Take away all facts and state the conditions alone: the operation must go through again."""
    rng = random.Random(12)
    redone = 0
    for _ in range(500):
        strong = {"M": dim("M", multiple_of=16, min=32), "N": dim("N", multiple_of=8), "K": dim("K", min=20)}
        text = str(random_layout(rng, list(strong.values())))
        tiler = (rng.choice([2, 4, 8]), *[None] * 0)
        a = parse(text)
        try:
            r = a.logical_divide(tiler[0])
        except LayoutError:
            continue
        if not isinstance(r, SymbolicLayout) or "//" in text:
            continue
        dims("M N K")
        weak = parse(text)
        try:
            facts = Facts(*r.conditions)
        except FactError:
            continue
        again = facts(weak)
        again = again.logical_divide(tiler[0])
        redone += 1
        assert str(again) == str(r)
    assert redone > 100


def test_coordinate_layouts():
    M, N = dim("M", multiple_of=64), dim("N", multiple_of=64)
    grid = Layout.identity((M, N))
    tiles = grid.zipped_divide((64, 64))
    assert str(tiles) == "((64,64),(M//64,N//64)):((1@0,1@1),(64@0,64@1))"
    assert tiles((3, 5), (1, 2)) == (67, 133)
    BK, K = Facts("BK | K")(*dims("BK K"))
    assert str(Layout.identity((M, K)).zipped_divide((64, BK))[1]) == "(M//64,K//BK):(64@0,BK@1)"
    assert str(Layout((M, N), (E(1), E(0)))) == "(M,N):(1@1,1@0)"
    assert (M * E(0)).value == M and str(E(0) * M) == "M@0"


def test_swizzles_over_symbolic_extents():
    M = dim("M", multiple_of=8)
    atom = Swizzle(3, 3, 3) @ Layout((8, 64), (64, 1))
    tile = atom.tile_to_shape((M, 64))
    assert str(tile) == "S<3,3,3> o 0 o ((8,M//8),(64,1)):((64,512),(1,0))" and tile.size == 64 * M
    assert str(tile.logical_divide((8, None)).layout) == "((8,M//8),(64,1)):((64,512),(1,0))"
    assert ComposedLayout(Swizzle(3, 3, 3), 64 * M, Layout((M, 64), (64, 1))).offset == 64 * M
    rest, _ = (Swizzle(3, 3, 3) @ Layout((M, 64), (64, 1))).slice((dim("i", min=0), None))
    assert str(rest.offset) == "64*i"
    for env in sizes(tile.layout):
        numbers = ComposedLayout(tile.swizzle, tile.offset, at(tile.layout, env))
        expected = atom.tile_to_shape((at(M, env), 64))
        assert (numbers.offsets() == expected.offsets()).all()


def test_sympy_symbols_are_accepted_where_symbols_are():
    m = sympy.Symbol("M", integer=True, positive=True)
    n = sympy.Symbol("N", integer=True, positive=True)
    M, N = dims("M N")
    assert Layout((m, n), (n, 1)) == Layout((M, N), (N, 1))
    assert Layout((m, 2 * n + 2)).size == 2 * M * N + 2 * M
    assert Layout((8, 8)).tile_to_shape((8 * m, 16)) == Layout((8, 8)).tile_to_shape((8 * M, 16))
    assert Layout((m, n)).logical_divide((m, None)) == Layout((M, N)).logical_divide((M, None))
    assert str(Layout((m, n))(sympy.Symbol("i", integer=True, nonnegative=True), 1)) == "M + i"
    even = sympy.Symbol("P", integer=True, positive=True, even=True)
    assert str(Layout(even).logical_divide(2)) == "(2,P//2):(1,2)"
    for bad in (sympy.Symbol("x"), m / 2, sympy.sqrt(m), sympy.Rational(1, 2)):
        with pytest.raises(LayoutError):
            Layout((bad, 4))
    with pytest.raises(LayoutError, match="needs Q >= 1"):
        Layout((sympy.Symbol("Q", integer=True), 4))
    assert Layout((4, sympy.Integer(3))) == Layout((4, 3)) and Layout((4, sympy.Integer(3))).__class__ is Layout


@pytest.mark.parametrize("lost", ["odd", "prime", "composite", "nonzero"])
def test_a_sympy_assumption_that_an_entry_does_not_keep_is_refused(lost):
    """4:p and 4:0 differ at p = 0 only where p may be 0: a counterexample must not break an assumption."""
    with pytest.raises(LayoutError, match=f"p has the assumptions .*{lost}=True"):
        Layout(4, sympy.Symbol("p", integer=True, **{lost: True}))


def test_two_sympy_dummies_of_one_name_are_not_one_symbol():
    with pytest.raises(LayoutError, match="_t is a Dummy of SymPy"):
        Layout(4, sympy.Dummy("t", integer=True))


def test_entries_to_sympy_and_back():
    M, N, A = dim("M"), dim("N"), dim("A", multiple_of=64, max=4096)
    rng = random.Random(13)
    for _ in range(200):
        p = rng.randint(-5, 5)
        for _ in range(3):
            p = p + rng.randint(-4, 4) * rng.choice([M, N, A, A // 64, M * N, A * N // 8, M * M])
        assert from_sympy(to_sympy(p)) == p
        assert pickle.loads(pickle.dumps(to_sympy(p))) == to_sympy(p)
    assert (
        to_sympy(M * N + 1)
        == sympy.Symbol("M", integer=True, positive=True) * sympy.Symbol("N", integer=True, positive=True) + 1
    )
    plain, scaled = to_sympy(dim("A")), to_sympy(A)
    assert plain != scaled and scaled.is_even and str(scaled) == "A"
    x = sympy.Symbol("M", integer=True, positive=True)
    assert entry(sympy.floor((64 * x + 3) / 64)) == M and entry(sympy.Mod(64 * x + 3, 64)) == 3
    assert entry(sympy.ceiling((64 * x + 3) / 64)) == M + 1
    assert x + M == 2 * x and M + x == 2 * x and M * sympy.Integer(2) == 2 * x
    with pytest.raises(MissingFact, match=r"needs 8 \| M"):
        entry(sympy.floor(x / 8))


def test_notation_is_read_back():
    M, N = dim("M", multiple_of=64), dim("N")
    for layout in (
        Layout((M, (N, 4)), (4 * N, (4, 1))),
        Layout((M // 64, 64), (64, 1)),
        Layout((M, N), (1, M + 8)),
        Layout(M),
        Layout((M,), (N,)),
        Layout((M * N + 8, 2), (2 * M * N, 1)),
        Layout.identity((M, N)).zipped_divide((64, None)),
    ):
        assert parse(str(layout)) == layout, str(layout)
        assert eval(repr(layout), {"Layout": Layout, "M": M, "N": N, "E": E}) == layout
    assert parse("(2*(M+1),(3)):(1,(0))").shape == (2 * M + 2, (3,))
    swizzled = Swizzle(3, 3, 3) @ Layout((M, 64), (64, 1))
    assert parse(str(swizzled)) == swizzled
    for bad in ("(M:1", "M N:1", "(M,N):(1,x y)", "f(M):1", "M:"):
        with pytest.raises(LayoutError):
            parse(bad)


def test_pickles():
    M, N = dim("M", multiple_of=64), dim("N")
    tiles = Layout((M, N), (N, 1)).zipped_divide((64, None))
    again = pickle.loads(pickle.dumps(tiles))
    assert again == tiles and again.conditions == tiles.conditions and isinstance(again, SymbolicLayout)


def test_traced_integers_go_through():
    class Traced:
        """Records what is done with it, as a compiler's integers do."""

        def __init__(self, text):
            self.text = text

        def __mul__(self, other):
            return Traced(f"{self.text}*{other}")

        def __add__(self, other):
            return Traced(f"{self.text}+{getattr(other, 'text', other)}")

        def __mod__(self, other):
            return Traced(f"({self.text}%{other})")

        def __floordiv__(self, other):
            return Traced(f"({self.text}//{other})")

        __rmul__, __radd__ = __mul__, __add__

    M, N = dims("M N")
    assert Layout((M, N), (N, 1))(Traced("m"), Traced("n")).text == "m*N+n"
    assert Layout((M, N), (N, 1))(Traced("i")).text == "(i%M)*N+(i//M)"


def test_two_symbols_of_one_name_raise_where_they_meet():
    M, other = dim("M"), dim("M", multiple_of=64)
    with pytest.raises(FactError, match="two symbols are called M"):
        Layout((M, other))
    with pytest.raises(FactError, match="two symbols are called M"):
        Layout(M).compose(Layout(other))
    with pytest.raises(FactError, match="two symbols are called M"):
        Layout.join(Layout(M), Layout(other))
    assert Layout(M).given("64 | M").compose(Layout(other)) == Layout(other)


def test_integers_do_not_load_sympy():
    code = (
        "import sys\n"
        "from layoutgemm import Layout\n"
        "from layoutgemm.layouts.symbols.dims import dim\n"
        "M = dim('M', multiple_of=64)\n"
        "Layout((M, 8)).zipped_divide((64, 8)).coalesce(); Layout((4, 8)).compose(Layout(8)); str(Layout((M, 8)))\n"
        "assert 'sympy' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
