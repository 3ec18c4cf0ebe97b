"""Layouts to formulas and back: what comes back is the function, what is refused is no layout."""

from __future__ import annotations

import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from layoutgemm.atoms import mma_sync
from layoutgemm.errors import LayoutError, ParseError
from layoutgemm.layouts import ComposedLayout, E, Layout, Swizzle
from layoutgemm.layouts.formulas import expr, from_expr
from layoutgemm.layouts.proofs.digits import maximum, minimum
from layoutgemm.layouts.proofs.index_formulas import prove_formulas, tabulate
from layoutgemm.layouts.symbols.dims import dim
from layoutgemm.layouts.symbols.polynomial import MissingFact
from tests.layouts import reference as ref
from tests.layouts.strategies import random_pair

FRAGMENT = "((4,8,4),(2,2,8)):((128,1,16),(64,8,512))"


def get_coord_m64n64(tid: Any, reg: Any) -> Any:
    """A published accumulator map of wgmma m64n64k16, as it was written: the position in a column-major tile."""
    t0, t1, t2 = tid % 4, (tid // 4) % 8, tid // 32
    r0, r1, r2 = reg % 2, (reg // 2) % 2, reg // 4
    return t0 * 128 + t1 + t2 * 16 + r0 * 64 + r1 * 8 + r2 * 512


# Formulas that people write -------------------------------------------------------------------------------------------

KNOWN: list[tuple[Any, dict[str, Any], str]] = [
    (get_coord_m64n64, {"tid": 128, "reg": 32}, FRAGMENT),
    (
        "t % 4 * 128 + t // 4 % 8 + t // 32 * 16 + r % 2 * 64 + r // 2 % 2 * 8 + r // 4 * 512",
        {"t": 128, "r": 32},
        FRAGMENT,
    ),
    ("64*m + k", {"m": 8, "k": 64}, "(8,64):(64,1)"),
    ("m*64 + (k ^ ((m % 8) * 8))", {"m": 128, "k": 64}, "S<3,3,3> o 0 o (128,64):(64,1)"),
    ("m*128 + (k*2 ^ ((m % 8) * 16))", {"m": 100, "k": 64}, "S<3,4,3> o 0 o (100,64):(128,2)"),
    (
        "(k//64)*64*128 + (m*64 + k%64 ^ ((m % 8) * 8))",
        {"m": 128, "k": 128},
        "S<3,3,3> o 0 o (128,(64,2)):(64,(1,8192))",
    ),
    ("64*m + 16*k + 8 ^ ((64*m + 16*k + 8) >> 3 & 56)", {"m": 8, "k": 4}, "S<3,3,3> o 8 o (8,4):(64,16)"),
    ("512 + 64*m + k ^ ((512 + 64*m + k) >> 3 & 56)", {"m": 8, "k": 64}, "S<3,3,3> o 512 o (8,64):(64,1)"),
    ("x + 5", {"x": 10}, "S<0,4,3> o 5 o 10:1"),
    ("7 - x", {"x": 8}, "S<0,4,3> o 7 o 8:-1"),
    ("7 ^ x", {"x": 8}, "S<0,4,3> o 7 o 8:-1"),
    ("x % 8", {"x": 64}, "(8,8):(1,0)"),
    ("x // 4", {"x": 12}, "(4,3):(0,1)"),
    ("x % 4 + x // 4", {"x": 12}, "(4,3):(1,1)"),
    ("x % 8 + x // 8 * 8", {"x": 12}, "12:1"),
    ("x + x // 3 * 10", {"x": 12}, "(3,4):(1,13)"),
    ("min(x, 100)", {"x": 50}, "50:1"),
    ("x & 5 | x & 2", {"x": 8}, "8:1"),
    ("-x", {"x": 4}, "4:-1"),
    ("0", {"x": 4, "y": 6}, "(4,6):(0,0)"),
    ("x*x % 4", {"x": 12}, "(2,6):(1,0)"),  # needs values: a product
    ("(x + x // 2 % 2 * 2) % 4", {"x": 8}, "(2,4):(1,0)"),
    ("(t % 4 * 2, t // 4)", {"t": 32}, "(4,8):(2@0,1@1)"),
    ("64*m + k", {"m": (4, 2), "k": (8, 8)}, "((4,2),(8,8)):((64,256),(1,8))"),
    ("x", {"x": 1 << 50}, "1125899906842624:1"),
    ("x >> 3 << 3 | x & 7", {"x": 1 << 50}, "1125899906842624:1"),
]


@pytest.mark.parametrize(("formula", "extents", "text"), KNOWN, ids=[k[2] for k in KNOWN])
def test_formula_in_layout_out(formula: Any, extents: dict[str, Any], text: str) -> None:
    layout = from_expr(formula, **extents)
    assert str(layout) == text
    sizes = {k: ref.size(v) for k, v in extents.items()}
    if ref.size(tuple(sizes.values())) <= 1 << 14 and not text.count("@"):
        table = tabulate(
            lambda **v: eval(formula, {"min": minimum}, v) if isinstance(formula, str) else formula(**v), sizes
        )
        assert layout.offsets().tolist() == table[0].tolist()


def test_symbolic_formulas() -> None:
    N, M, rows = dim("N", multiple_of=8), dim("M"), dim("rows")
    wide = from_expr(get_coord_m64n64, tid=128, reg=N // 2)
    assert str(wide) == "((4,8,4),(2,2,N//8)):((128,1,16),(64,8,512))"
    assert str(from_expr(lambda m, k: 64 * m + (k ^ (m % 8 * 8)), m=8 * M, k=64)) == "S<3,3,3> o 0 o (8*M,64):(64,1)"
    assert str(from_expr(lambda i, j: i + M * j, i=M, j=N)) == "(M,N):(1,M)"
    assert str(from_expr("i + M * j", i=M, j=N)) == "(M,N):(1,M)"
    assert str(from_expr(lambda i: (i % 8) * M + i // 8, i=N)) == "(8,N//8):(M,1)"
    with pytest.raises(MissingFact, match=r"needs 8 \| rows"):
        from_expr(lambda i: (i % 8) * M + i // 8, i=rows)
    with pytest.raises(MissingFact, match="product"):
        from_expr(lambda i, j: i * j, i=M, j=N)
    with pytest.raises(MissingFact, match="would have to be an integer"):
        from_expr(lambda i: i + M, i=M)


REFUSED: list[tuple[Any, dict[str, Any], Any, str]] = [
    ("m*16 + (k + m) % 16", {"m": 4, "k": 16}, (3, 13), "gives 48, but"),
    ("x // 3", {"x": 10}, (3,), "a run of 3 that does not divide the 10"),
    ("x * x", {"x": 4}, (3,), "gives 9, but the runs of 2 before it make it 5"),
    ("x * y", {"x": 4, "y": 4}, (1, 1), "gives 1, but (1,0) and (0,1) make it 0"),
    ("x // 4 * 8 + x % 4 + x // 12", {"x": 16}, (12,), "a run of 3 that does not divide the 4"),
    ("max(x, 3)", {"x": 9}, (4,), "gives 4"),
    ("(x ^ y) * 3", {"x": 6, "y": 5}, (1, 1), "gives 0, but"),
]


@pytest.mark.parametrize(("formula", "extents", "witness", "part"), REFUSED, ids=[r[0] for r in REFUSED])
def test_refused_with_the_first_misfit(formula: str, extents: dict[str, Any], witness: Any, part: str) -> None:
    with pytest.raises(LayoutError) as caught:
        from_expr(formula, **extents)
    assert caught.value.witness == witness and part in str(caught.value)


def test_bad_input() -> None:
    for bad, extents, error in [
        ("x +", {"x": 4}, ParseError),
        ("x + unheard_of", {"x": 4}, ParseError),
        ("x / 2", {"x": 4}, ParseError),
        ("__import__('os')", {"x": 4}, ParseError),
        ("x.real", {"x": 4}, ParseError),
        ("x", {}, LayoutError),
        (17, {"x": 4}, LayoutError),
        (lambda x: x / 2, {"x": 4}, LayoutError),
        (lambda x: x, {"x": 2.5}, LayoutError),
        (lambda x: "a", {"x": 4}, LayoutError),
    ]:
        with pytest.raises(error):
            from_expr(bad, **extents)
    with pytest.raises(LayoutError, match="by keyword"):
        from_expr("x + y", (4, 4))
    with pytest.raises(LayoutError, match="not both"):
        from_expr("x", 4, x=4)
    dim("x")  # that a size has this name, too, changes nothing
    assert str(from_expr("x", 4)) == "4:1" and str(from_expr(lambda a, b: a + 4 * b, (4, 2))) == "(4,2):(1,4)"


def test_python_that_numpy_cannot_run() -> None:
    table = [0, 8, 1, 9, 2, 10]
    assert str(from_expr(lambda x: table[x], x=6)) == "(2,3):(8,1)"
    assert str(from_expr(lambda x: x if x % 2 == 0 else x - 1, x=8)) == "(2,4):(0,2)"
    assert str(from_expr(lambda x: max(x, 0), x=8)) == "8:1"
    assert str(from_expr(lambda x: maximum(x, 0), x=8)) == "8:1"


# Closed forms ---------------------------------------------------------------------------------------------------------

EXPRESSIONS: list[tuple[Any, tuple[str, ...], str]] = [
    (Layout.parse(FRAGMENT), ("t", "r"), "512*(r//4) + 16*(t//32) + 64*(r%2) + 128*(t%4) + 8*((r//2)%2) + (t//4)%8"),
    (Layout.parse("(8,64):(64,1)"), (), "64*i + j"),
    (Layout.parse("(8,64):(64,1)"), ("x",), "x//8 + 64*(x%8)"),
    (Layout.parse("8:3"), (), "3*i"),
    (Layout.parse("(4,8):(0,0)"), (), "0"),
    (Swizzle(3, 4, 3), ("x",), "x ^ 16*((x//128)%8)"),
    (Swizzle(2, 0, -3), ("x",), "x ^ 8*(x%4)"),
    (Swizzle(0, 4, 3), ("x",), "x"),
    (Swizzle(3, 3, 3) @ Layout((64, 64), (64, 1)), ("m", "k"), "64*m + (k ^ 8*(m%8))"),
    (ComposedLayout(Swizzle(3, 3, 3), 64, Layout(64)), ("k",), "(k ^ 8) + 64"),
    (Layout((4, 8), (2 * E(0), E(1))), ("t", "r"), "(2*t, r)"),
    (Layout((4, 8), (-3, 1)), ("x",), "x//4 - 3*(x%4)"),
    (Layout((4, 8), (1, -3)), ("x",), "-3*(x//4) + x%4"),
    (Swizzle(3, 3, 3) @ Layout((12, 64), (64, 1)), ("x",), "(x//12 ^ 8*((x%12)%8)) + 64*(x%12)"),
    (Swizzle(2, 3, 3) @ Layout((12, 64), (32, 1)), ("x",), ""),
    (Swizzle(1, 0, 2) @ Layout((3, 10), (16, 3)), ("m", "k"), "(3*k + 16*m) ^ ((3*k + 16*m)//4)%2"),
]


@pytest.mark.parametrize(("source", "names", "text"), EXPRESSIONS, ids=[e[2] for e in EXPRESSIONS])
def test_expressions_print_as_people_write(source: Any, names: tuple[str, ...], text: str) -> None:
    e = expr(source, *names)
    assert not text or str(e) == text
    if isinstance(source, (Layout, ComposedLayout)) and len(names) == 1:
        assert [eval(str(e), {}, {names[0]: i}) for i in range(source.size)] == source.offsets().tolist()


def test_symbolic_expressions() -> None:
    M, N = dim("M"), dim("N", multiple_of=64)
    assert str(expr(Layout((M, N), (N, 1)))) == "N*i + j"
    assert str(expr(Layout((M, N)), "x")) == "x"
    assert str(expr(Layout(((64, N // 64), M), ((1, 64 * M), 64)), "k", "m")) == "64*M*(k//64) + 64*m + k%64"
    assert str(expr(Layout((N // 64, M), (M, 1)), "x")) == "M*(x%(N//64)) + x//(N//64)"
    swizzled = Swizzle(3, 3, 3) @ Layout((M, 64), (64, 1))
    assert str(expr(swizzled, "m", "k")) == "64*m + (k ^ 8*(m%8))"
    assert from_expr(expr(swizzled, "m", "k"), m=M, k=64) == swizzled


def test_latex_and_subs() -> None:
    import sympy

    e = expr(Layout((4, 8), (8, 1)), "x")
    x = next(iter(e.free_symbols))
    assert e.subs(x, 13) == (13 % 4) * 8 + 13 // 4
    assert sympy.latex(e) == r"\left\lfloor \frac{x}{4} \right\rfloor + 8 \left(x \bmod 4\right)"
    assert sympy.latex(expr(Swizzle(3, 4, 3), "x")).count(r"\oplus") == 1
    assert e.rewrite(sympy.floor).subs(x, 13).has(sympy.floor) is False
    assert e.is_integer and e.is_nonnegative and (e + 1).is_positive
    assert str(from_expr(sympy.floor(x / 4) + 8 * sympy.Mod(x, 4), x=32)) == "(4,8):(8,1)"


def random_source(rng: random.Random) -> tuple[Any, list[int]]:
    shape, stride = random_pair(rng, limit=300)
    values = ref.image(shape, stride)
    if rng.random() < 0.5:
        return Layout(shape, stride), values
    b, m, s = rng.choice([(1, 0, 1), (2, 1, 3), (3, 0, 3), (2, 2, -3), (1, 3, -2), (0, 4, 3)])
    offset = rng.choice((0, 0, 0, 1, 8, 20))
    return ComposedLayout(Swizzle(b, m, s), offset, Layout(shape, stride)), [
        ref.swizzle(b, m, s, offset + v) for v in values
    ]


def test_there_and_back() -> None:
    """expr, evaluated by Python, NumPy and SymPy, is the layout; from_expr of it is a layout of the same values."""
    import sympy

    rng = random.Random(11)
    for _ in range(80):
        source, values = random_source(rng)
        flat = rng.random() < 0.4
        sizes = [ref.size(mode) for mode in ref.modes(source.shape)]
        names = ("x",) if flat else tuple(f"x{i}" for i in range(len(sizes)))
        extents = {"x": len(values)} if flat else dict(zip(names, sizes, strict=True))
        e = expr(source, *names)
        text = str(e)
        coords = [ref.digits(i, list(extents.values())) for i in range(len(values))]
        assert [eval(text, {}, dict(zip(names, c, strict=True))) for c in coords] == values, text
        assert len(values) > 20 or prove_formulas(e, text, **extents).ok, text  # SymPy's expression and its text
        f = sympy.lambdify([sympy.Symbol(n, integer=True, nonnegative=True) for n in names], e, "numpy")
        got = np.broadcast_to(f(*np.array(coords).T), len(values))
        assert got.tolist() == values, text
        for formula in (e, text):
            back = from_expr(formula, **extents)
            assert back.offsets().tolist() == values, (text, str(back))


def test_random_functions_are_read_or_refused() -> None:
    """Layouts, swizzled ones and near misses as tables: exactly the layouts are found, misfits are the first ones."""
    rng = random.Random(12)
    found = refused = swizzled = 0
    for _ in range(700):
        source, values = random_source(rng)
        sizes = [ref.size(mode) for mode in ref.modes(source.shape)]
        values = list(values)
        kind = rng.random()
        if kind < 0.3:
            values[rng.randrange(len(values))] += rng.choice((1, -1, 8))
        elif kind < 0.4:
            values = [v + (i * i) % 3 for i, v in enumerate(values)]
        extents = {f"x{i}": n for i, n in enumerate(sizes)}
        weights = [ref.size(tuple(sizes[:i])) for i in range(len(sizes))]

        def formula(values: list[int] = values, weights: list[int] = weights, **v: Any) -> Any:
            return values[sum(x * w for x, w in zip(v.values(), weights, strict=True))]

        misfit = ref.first_misfit([v - values[0] for v in values], sizes)
        try:
            layout = from_expr(formula, **extents)
        except LayoutError as error:
            refused += 1
            assert misfit is not None
            assert error.witness == tuple(ref.digits(misfit, sizes)), (values, sizes, error)
            assert not (isinstance(source, (Layout, ComposedLayout)) and kind >= 0.4), (str(source), error)
            continue
        assert layout.offsets().tolist() == values
        if misfit is None:
            found += 1
            assert isinstance(layout, Layout) or layout.swizzle.bits == 0
        else:
            swizzled += 1
            assert layout.swizzle.bits > 0
    assert min(found, refused, swizzled) > 50, (found, refused, swizzled)


def test_methods_of_layout() -> None:
    layout = Layout.parse(FRAGMENT)
    assert (
        Layout.from_expr(get_coord_m64n64, (128, 32)) == layout == Layout.from_expr(layout.expr("t", "r"), t=128, r=32)
    )
    assert layout.expr("t", "r") == expr(layout, "t", "r") and str(Layout((4, 2)).expr()) == "i + 4*j"


def test_sympy_is_loaded_only_by_expr() -> None:
    code = (
        "import sys; from layoutgemm.layouts.formulas import from_expr, expr; from layoutgemm.layouts import Layout;"
        "from_expr('x % 4', x=8); a = 'sympy' in sys.modules; expr(Layout(4)); print(a, 'sympy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_a_coordinate_has_no_name_of_a_size() -> None:
    layout = Layout((dim("i"), 8), (8, 1))
    assert str(layout.expr()) == "8*j + k"
    assert str(layout.expr("m", "k")) == "k + 8*m"
    with pytest.raises(LayoutError, match="an identifier that no size is called, not 'i'"):
        layout.expr("i", "k")
    with pytest.raises(LayoutError, match="an identifier that no size is called, not 'a b'"):
        layout.expr("a b", "k")


def test_two_coordinates_have_two_names() -> None:
    for layout in (Layout((4, 8)), Swizzle(1, 0, 3) @ Layout((4, 8)), mma_sync("m16n8k16").layout_C):
        with pytest.raises(LayoutError, match=r"two coordinates of .* have the name 'm'"):
            layout.expr("m", "m")
    with pytest.raises(LayoutError, match="have the name 't'"):
        mma_sync("m16n8k16").formula("A", "t", "t")
