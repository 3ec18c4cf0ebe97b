"""Index formulas over digits against tables: nothing is answered wrongly, and what is not answered says why."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from typing import Any

import pytest

from layoutgemm.errors import LayoutError
from layoutgemm.layouts import ComposedLayout, CounterExample, Layout, Proof, Swizzle, Undecided
from layoutgemm.layouts.proofs.digits import CannotRewrite, call, maximum, minimum, rewrite
from layoutgemm.layouts.proofs.index_formulas import first_nonzero, prove_formulas, prove_layouts, tabulate
from layoutgemm.layouts.symbols.dims import dim
from tests.layouts import reference as ref
from tests.layouts.strategies import random_pair, refined

Formula = Callable[..., Any]
M, N, K = dim("M"), dim("N"), dim("K")


def swizzle(x: Any, b: int, m: int, s: int) -> Any:
    return x ^ ((x >> s) & (((1 << b) - 1) << m))


# Known equalities -----------------------------------------------------------------------------------------------------

# (left, right, extents)
X, Y = dim("X"), dim("Y")
EQUAL: list[tuple[Formula, Formula, dict[str, Any]]] = [
    (lambda m, k: swizzle(64 * m + k, 3, 3, 3), lambda m, k: 64 * m + (k ^ ((m % 8) * 8)), {"m": M, "k": 64}),
    (
        lambda m, k: swizzle(128 * m + 2 * k, 3, 4, 3),
        lambda m, k: 2 * (64 * m + (k ^ ((m % 8) * 8))),
        {"m": M, "k": 64},
    ),
    (lambda x: swizzle(swizzle(x, 3, 4, 3), 3, 4, 3), lambda x: x, {"x": 1 << 40}),
    (lambda x: swizzle(swizzle(x, 3, 4, 3), 3, 4, 3), lambda x: x, {"x": M}),
    (lambda x: x // 8 * 8 + x % 8, lambda x: x, {"x": M}),
    (lambda x: (x // 4) // 8, lambda x: x // 32, {"x": N}),
    (lambda x: (x // 32) * 32 + (x % 32 // 4) * 4 + x % 4, lambda x: x, {"x": 100}),
    (lambda i, j: (M * j + i) % M, lambda i, j: i, {"i": M, "j": N}),
    (lambda i, j: (M * j + i) // M, lambda i, j: j, {"i": M, "j": N}),
    (lambda i, j: ((M * j + i) % M, (M * j + i) // M), lambda i, j: (i, j), {"i": M, "j": N}),
    (lambda x: (x + 8) // 8, lambda x: x // 8 + 1, {"x": M}),
    (lambda x: (x - 8) % 8, lambda x: x % 8, {"x": M}),
    (lambda x: (5 * x + 3) // 5, lambda x: x, {"x": M}),
    (lambda x: 6 * x // 4, lambda x: x + x // 2, {"x": M}),
    (lambda x: -x // 4 + (x + 3) // 4, lambda x: 0, {"x": 64}),
    (lambda x: ~x, lambda x: -x - 1, {"x": M}),
    (lambda x: x ^ 5 ^ 5, lambda x: x, {"x": M}),
    (lambda x: (x & ~7) | (x & 7), lambda x: x, {"x": M}),
    (lambda x: x & 0b101101, lambda x: x % 2 + x // 4 % 4 * 4 + x // 32 % 2 * 32, {"x": M}),
    (lambda x: (x ^ 63) + (x & 63), lambda x: x // 64 * 64 + 63, {"x": M}),
    (lambda x: minimum(x, M), lambda x: x, {"x": M}),
    (lambda x: maximum(x, 0), lambda x: x, {"x": M}),
    (lambda x: (M - 1 - x) % M, lambda x: M - 1 - x, {"x": M}),  # backwards
    (lambda x: x % 8 + x // 8 * 8 + x // M, lambda x: x, {"x": M}),  # the bound of x itself, over-covered by 8
    # x % 6 // 2 % 2 and x % 6 // 4 are never both 1, though the digits of x could be
    (lambda x: (x % 6 // 2 % 2) ^ (x % 6 // 4), lambda x: x % 6 // 2 % 2 + x % 6 // 4, {"x": 30}),
    (lambda x: minimum(x // 8 * 8, 8), lambda x: x // 8 * 8, {"x": 9}),
    (lambda x: 3 * x ^ (x & 1), lambda x: 3 * x - (x & 1), {"x": 2}),
    (Layout((4, (2, 3))), lambda i: i, {"i": 24}),
    (Layout((4, 6), (6, 1)), lambda i, j: 6 * i + j, {"i": 4, "j": 6}),
    (Swizzle(3, 3, 3) @ Layout((64, 64), (64, 1)), lambda m, k: 64 * m + (k ^ 8 * (m % 8)), {"m": 64, "k": 64}),
    (
        lambda m, k: (k // 64) * 64 * 8 * M + swizzle(m * 64 + k % 64, 3, 3, 3),
        lambda m, k: swizzle((k // 64) * 64 * 8 * M + m * 64 + k % 64, 3, 3, 3),
        {"m": 8 * M, "k": 64 * K},
    ),
    (
        lambda row, col: (col // 64) * 128 * 128 + swizzle(row * 128 + (col % 64) * 2, 3, 4, 3),
        lambda row, col: (col // 64) * 128 * 128 + row * 128 + ((col % 64 // 8) ^ (row % 8)) * 16 + col % 8 * 2,
        {"row": 128, "col": 256},
    ),
    # by cases of a digit
    (lambda i: -i % X, lambda i: (-i) % X, {"i": Y}),
    (lambda i: (Y - i) % Y, lambda i: (2 * Y - i) % Y, {"i": M}),
    (lambda i: i // 3 + i // 4, lambda i: i // 4 + i // 3, {"i": X}),
    (lambda i: i % 4 * (i // 4 % 4), lambda i: i // 4 % 4 * (i % 4), {"i": X}),
    (lambda i: (i + i // 2) ^ 1, lambda i: (i // 2 + i) ^ 1, {"i": X}),
    (lambda i, j: (i % 8 + j % 8) ^ 1, lambda i, j: (j % 8 + i % 8) ^ 1, {"i": X, "j": Y}),
    (lambda i, j: (i + j) % 8, lambda i, j: (j + i) % 8, {"i": X, "j": Y}),
    (lambda i, j: (i % 8 + j % 8) // 8, lambda i, j: (j % 8 + i % 8) // 8, {"i": X, "j": Y}),
    (lambda i, j: (i + j) ^ 3, lambda i, j: (j + i) ^ 3, {"i": X, "j": Y}),
    (lambda i, j: (i + j) & 1, lambda i, j: (j + i) & 1, {"i": X, "j": Y}),
    (lambda i: 5 * i // 3, lambda i: (i + 4 * i) // 3, {"i": X}),
    (lambda i: i % 16 & i // 16 % 16, lambda i: i // 16 % 16 & i % 16, {"i": X}),
    (lambda i: i % 16 | i // 16 % 16, lambda i: i // 16 % 16 | i % 16, {"i": X}),
]


@pytest.mark.parametrize(("left", "right", "extents"), EQUAL)
def test_equal(left: Formula, right: Formula, extents: dict[str, Any]) -> None:
    answer = prove_formulas(left, right, extents)
    assert isinstance(answer, Proof) and answer.method in ("digits", "exhaustion"), answer
    assert answer.explain()
    # The same with the last variable added.
    mutant = prove_formulas(left, lambda **v: add(right, v, next(reversed(v.values()))), extents)
    assert not isinstance(mutant, Proof), mutant


def add(formula: Formula, variables: dict[str, Any], extra: Any) -> Any:
    value = call(formula, variables)
    return tuple(v + extra for v in value) if isinstance(value, tuple) else value + extra


# (left, right, extents, coordinate, values, part of the statement)
DIFFERENT: list[tuple[Formula, Formula, dict[str, Any], Any, tuple[Any, Any], str]] = [
    (lambda m, k: swizzle(128 * m + k, 3, 3, 3), lambda m, k: 128 * m + (k ^ (m % 8 * 8)), {"m": M, "k": 128},
     (0, 64), (72, 64), "at M=1"),
    (lambda x: x % 8, lambda x: x, {"x": M}, 8, (0, 8), "at M=9"),
    (lambda x: x % 8, lambda x: x, {"x": 12}, 8, (0, 8), "not equivalent"),
    (lambda x: x // 2 * 2, lambda x: x, {"x": 1 << 40}, 1, (0, 1), "not equivalent"),
    (lambda x: x ^ (x >> 20), lambda x: x, {"x": 1 << 40}, 1 << 20, ((1 << 20) ^ 1, 1 << 20), "not equivalent"),
    (lambda i, j: i + M * j, lambda i, j: i + N * j, {"i": M, "j": N}, (0, 1), (1, 2), "at M=1, N=2"),
    (lambda x: x ^ (x >> 1), lambda x: (x ^ (x >> 1)) + ((x % 2) ^ (x // 2)) - x % 2 - x // 2, {"x": 4}, 3, (2, 0), ""),
    (lambda x: minimum(x // 8 * 8, 7), lambda x: x // 8 * 8, {"x": 9}, 8, (7, 8), "not equivalent"),
    (lambda x: x // 8 * 8 + x % 8 + x // 11, lambda x: x, {"x": 12}, 11, (12, 11), "not equivalent"),
    (lambda i: i * i // 2, lambda i: i // 2, {"i": M}, 2, (2, 1), "at M=3"),  # beyond the normal form, by its values
    (lambda x: x % 6 + x % 4, lambda x: x % 4 + x % 6 + x // 500, {"x": M}, 500, (2, 3), "at M=501"),
    (lambda x, y: x + (y ^ x % 2 * (x // 96 % 2)), lambda x, y: x + y, {"x": M, "y": N}, (97, 0), (98, 97),
     "at M=98, N=1"),
    (lambda x: (x, x), lambda x: (x, x + x // 3), {"x": 9}, 3, ((3, 3), (3, 4)), "not equivalent"),
]  # fmt: skip


@pytest.mark.parametrize(("left", "right", "extents", "coord", "values", "statement"), DIFFERENT)
def test_different(
    left: Formula, right: Formula, extents: dict[str, Any], coord: Any, values: Any, statement: str
) -> None:
    answer = prove_formulas(left, right, extents)
    assert isinstance(answer, CounterExample), answer
    assert (answer.coord, (answer.left, answer.right)) == (coord, values), answer
    assert statement in answer.explain()


def test_no_difference_at_equal_sizes() -> None:
    """M and N of one value agree: the first sizes at which they differ are named."""
    answer = prove_formulas(lambda i: i % M + 0 * i, lambda i: i, {"i": M})
    assert isinstance(answer, Proof)


# What is not decided --------------------------------------------------------------------------------------------------

ROWS, S = dim("rows"), dim("S", min=2, max=5)

# (left, right, extents, part of the reason). Each is beyond the normal form, whatever the truth is.
UNDECIDED: list[tuple[Formula, Formula, dict[str, Any], str]] = [
    (lambda i, j: i * j, lambda i, j: j * i, {"i": X, "j": Y}, "product"),
    (lambda i: i // X + i // Y, lambda i: i // Y + i // X, {"i": M}, "not below it: needs Y | X"),
    (lambda i, j: i ^ j, lambda i, j: j ^ i, {"i": X, "j": Y}, "endless"),
    (lambda i, j: i & j, lambda i, j: j & i, {"i": 1 << 30, "j": 1 << 30}, "AND of two different bits"),
    (lambda i: i // (X - 1), lambda i: 0 * i, {"i": X}, "needs X >= 2"),
    (lambda i, j: i // (j + 1), lambda i, j: i // (1 + j), {"i": X, "j": Y}, "division by"),
    (lambda i: minimum(i, 64), lambda i: minimum(64, i), {"i": X}, "min"),
    (lambda i: maximum(i, X - i), lambda i: maximum(X - i, i), {"i": X}, "max"),
    (lambda i: (M * i) % 8, lambda i: (i * M) % 8, {"i": X}, "needs 8 | M"),
    (lambda i: (M * i) ^ 1, lambda i: 1 ^ (M * i), {"i": X}, "needs 2 | M"),
    (lambda i: X // 2 + i * 0, lambda i: X // 2 + i * 0, {"i": Y}, "needs"),
    (lambda i: i * i + i, lambda i: i * (i + 1), {"i": X}, "product"),
    (lambda i, j: i * j % 8, lambda i, j: j * i % 8, {"i": X, "j": Y}, "product"),
    (lambda i: i ^ (i << 1), lambda i: (i << 1) ^ i, {"i": X}, "endless"),
    (lambda i: 3 * i ^ i, lambda i: i ^ 3 * i, {"i": X}, "endless"),
    (lambda i, j: maximum(i, j), lambda i, j: maximum(j, i), {"i": X, "j": Y}, "max"),
    (lambda i: (i + 1) // X, lambda i: (1 + i) // X, {"i": X}, "not below it"),
    (lambda i: (i + Y) % X, lambda i: (Y + i) % X, {"i": X}, "needs X | Y"),
    (lambda i: (X * Y + i) // (X + Y), lambda i: (i + X * Y) // (Y + X), {"i": X}, "not below it"),
    (lambda i: (i + X) // 8, lambda i: (X + i) // 8, {"i": 8}, "needs 8 | X"),
    (lambda i: (i * 2 + 1) // X, lambda i: (1 + i * 2) // X, {"i": X}, "not below it"),
]


@pytest.mark.parametrize(("left", "right", "extents", "reason"), UNDECIDED)
def test_undecided_says_why(left: Formula, right: Formula, extents: dict[str, Any], reason: str) -> None:
    answer = prove_formulas(left, right, extents)
    assert isinstance(answer, Undecided) and not answer, answer
    assert reason in answer.why, answer.why


def test_given_the_fact_it_is_decided() -> None:
    answers = [
        prove_formulas(
            lambda m, k, rows=rows: swizzle((k // 64) * 64 * rows + m * 64 + k % 64, 3, 3, 3),
            lambda m, k, rows=rows: (k // 64) * 64 * rows + 64 * m + ((k % 64) ^ ((m % 8) * 8)),
            m=rows,
            k=dim("KK", multiple_of=64),
            given=given,
        )
        for rows, given in ((ROWS, ()), (ROWS, "8 | rows"), (8 * ROWS, ()), (dim("rows8", multiple_of=8), ()))
    ]
    assert answers[0].explain() == "not equivalent at KK=128, rows=1; a proof lacks 8 | rows: (0,64) gives 72 and 64"
    assert all(isinstance(answer, Proof) for answer in answers[1:])
    assert [set(answer.conditions) for answer in answers[1::2]] == [{"64 | KK", "8 | rows"}, {"64 | KK", "8 | rows8"}]
    assert prove_formulas(lambda x: x % S, lambda x: x, x=S).conditions == ("S >= 2", "S <= 5")


def test_facts_about_the_symbols_of_formulas() -> None:
    """Proofs that need `given`, which hold at no size without it; symbols that no extent has take part."""
    claims: list[tuple[Callable[..., Any], Callable[..., Any], str]] = [
        (lambda x, X, Y: x % X % Y, lambda x, X, Y: x % Y, "Y | X"),
        (lambda x, X, Y: x % Y, lambda x, X, Y: x, "Y >= M"),
        (lambda x, X, Y: x ^ Y, lambda x, X, Y: x + Y, "8 | Y"),
        (lambda x, X, Y: (Y - x) % Y, lambda x, X, Y: Y - x, "M == Y"),
    ]
    X_, Y_ = dim("X"), dim("Y")
    for f, g, fact in claims:
        for given in {fact, ""}:
            extent = 8 if "8" in fact else M
            answer = prove_formulas(
                lambda x, f=f: f(x, X_, Y_), lambda x, g=g: g(x, X_, Y_), x=extent, given=given or ()
            )
            sizes = {"M": extent, **dict(getattr(answer, "sizes", ()))}
            if isinstance(answer, CounterExample):
                at = sizes.get("X", 1), sizes["Y"]
                assert f(answer.coord, *at) == answer.left != answer.right == g(answer.coord, *at)
                assert all(f(x, *at) == g(x, *at) for x in range(answer.index)) and answer.index < sizes["M"]
            else:
                assert isinstance(answer, Proof) and given, (fact, given, answer)
        assert isinstance(answer, CounterExample) == (given == "" or fact == "M == Y"), (fact, answer)
    with pytest.raises(LayoutError, match="a fact is a text"):
        prove_formulas(lambda x: x, lambda x: x, x=M, given=5)
    named = prove_formulas(lambda given: given % M, lambda given: given, {"given": M})
    assert isinstance(named, Proof)


# Random formulas ------------------------------------------------------------------------------------------------------

Tree = tuple[Any, ...]
OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod,
              "^": operator.xor, "&": operator.and_, "|": operator.or_, ">>": operator.rshift,
              "min": minimum, "max": maximum}  # fmt: skip


def random_tree(rng: random.Random, names: list[str], sizes: list[str], depth: int) -> Tree:
    """A random formula: ("x",), (7,), (operation, tree, tree)."""
    if depth == 0 or rng.random() < 0.15:
        return (rng.choice(names),)
    op = rng.choices(list(OPERATIONS), (6, 2, 4, 5, 5, 4, 2, 1, 1, 1, 1))[0]
    left = random_tree(rng, names, sizes, depth - 1)
    if op in ("*", "//", "%"):
        size = sizes and rng.random() < 0.3
        return op, left, (rng.choice(sizes),) if size else (rng.choice((2, 2, 4, 4, 8, 8, 16, 3, 5, 6, 12)),)
    if op == ">>":
        return op, left, (rng.randrange(5),)
    if rng.random() < 0.25:
        return op, left, (rng.choice((1, 3, 4, 7, 8, 16, 24)),)
    return op, left, random_tree(rng, names, sizes, depth - 1)


def evaluate(tree: Tree, at: dict[str, Any]) -> Any:
    if len(tree) == 1:
        return at[tree[0]] if isinstance(tree[0], str) else tree[0]
    return OPERATIONS[tree[0]](evaluate(tree[1], at), evaluate(tree[2], at))


def rearranged(rng: random.Random, tree: Tree) -> Tree:
    """The same function, written differently."""
    if len(tree) == 1:
        return tree
    op, a, b = tree[0], rearranged(rng, tree[1]), rearranged(rng, tree[2])
    if op in ("+", "^", "&", "|", "min", "max") and rng.random() < 0.5:
        a, b = b, a
    if op == "//" and isinstance(b[0], int) and b[0] % 2 == 0 and rng.random() < 0.5:
        return "//", ("//", a, (2,)), (b[0] // 2,)
    if op == "%" and rng.random() < 0.5:
        return "-", a, ("*", ("//", a, b), b)
    if op == "*" and rng.random() < 0.3:
        return "+", ("*", a, b), ("-", a, a)
    if op == "-" and rng.random() < 0.5:
        return "+", a, ("*", b, (-1,))
    if rng.random() < 0.1:
        return "+", ("*", ("//", (op, a, b), (4,)), (4,)), ("%", (op, a, b), (4,))
    return op, a, b


def mutated(rng: random.Random, tree: Tree) -> Tree:
    """One constant or operation changed."""
    if len(tree) == 1:
        return (tree[0] + rng.choice((1, 2, -1)),) if isinstance(tree[0], int) else ("+", tree, (1,))
    op, a, b = tree
    if op in (">>", "//", "%") or rng.random() < 0.7:
        return op, mutated(rng, a), b
    return op, a, mutated(rng, b)


def second(rng: random.Random, tree: Tree, names: list[str], sizes: list[str]) -> Tree:
    r = rng.random()
    if r < 0.5:
        return rearranged(rng, tree)
    return mutated(rng, rearranged(rng, tree)) if r < 0.8 else random_tree(rng, names, sizes, 3)


@pytest.mark.parametrize("seed", range(4))
def test_random_static_formulas(seed: int) -> None:
    """Every verdict by digits against the table; every counterexample is the first one."""
    rng = random.Random(seed)
    tally = {"Proof": 0, "CounterExample": 0, "stuck": 0}
    for _ in range(900):
        extents = rng.choice(
            ({"x": 32, "y": 24}, {"x": 12, "y": 16}, {"x": 7, "y": 64}, {"x": 48}, {"x": 4, "y": 6, "z": 8})
        )
        names = list(extents)
        a = random_tree(rng, names, [], rng.randint(1, 4))
        b = second(rng, a, names, [])
        f, g = (lambda t: lambda **v: evaluate(t, v))(a), (lambda t: lambda **v: evaluate(t, v))(b)
        truth = tabulate(f, extents)[0], tabulate(g, extents)[0]
        wrong = (truth[0] != truth[1]).nonzero()[0]
        answer = prove_formulas(f, g, extents)
        if answer.method == "exhaustion":
            tally["stuck"] += 1
        else:
            tally[type(answer).__name__] += 1
        if len(wrong):
            assert isinstance(answer, CounterExample), (a, b, extents, answer)
            i = int(wrong[0])
            assert (answer.index, answer.left, answer.right) == (i, truth[0][i], truth[1][i]), (a, b, extents, answer)
            coord = ref.digits(i, list(extents.values()))
            assert answer.coord == (tuple(coord) if len(coord) > 1 else coord[0])
        else:
            assert isinstance(answer, Proof), (a, b, extents, answer)
    assert min(tally.values()) > 50, tally


SIZES = {"M": dim("M"), "N": dim("N"), "R": dim("R", multiple_of=8), "S": S}


@pytest.mark.parametrize("seed", range(4))
def test_random_symbolic_formulas(seed: int) -> None:
    """Every proof holds at all small sizes; every counterexample is one, and the first at its sizes."""
    rng = random.Random(100 + seed)
    tally = {"Proof": 0, "CounterExample": 0, "Undecided": 0}
    for _ in range(500):
        sizes = rng.sample(list(SIZES), 2)
        extents: dict[str, Any] = {
            "x": SIZES[sizes[0]] * rng.choice((1, 1, 2, 4)),
            "y": rng.choice((8, 6, SIZES[sizes[1]])),
        }
        a = random_tree(rng, ["x", "y"], sizes, rng.randint(1, 3))
        b = second(rng, a, ["x", "y"], sizes)
        answer = prove_formulas(
            lambda t=a, **v: evaluate(t, {**SIZES, **v}), lambda t=b, **v: evaluate(t, {**SIZES, **v}), extents
        )
        tally[type(answer).__name__] += 1
        if isinstance(answer, Undecided):
            assert answer.why
            continue
        candidates = [
            {"M": m, "N": n, "R": r, "S": s}
            for m in ((1, 2, 3, 5, 8, 12) if "M" in sizes else (1,))
            for n in ((1, 2, 3, 7, 8) if "N" in sizes else (1,))
            for r in ((8, 16, 24) if "R" in sizes else (8,))
            for s in ((2, 3, 4, 5) if "S" in sizes else (2,))
        ]
        if isinstance(answer, CounterExample):
            candidates = [{"M": 1, "N": 1, "R": 8, "S": 2, **dict(answer.sizes)}]
        for at in candidates:
            static = {v: n if isinstance(n, int) else value_at(n, at) for v, n in extents.items()}
            left = tabulate(lambda t=a, at=at, **v: evaluate(t, {**at, **v}), static)[0]
            right = tabulate(lambda t=b, at=at, **v: evaluate(t, {**at, **v}), static)[0]
            wrong = (left != right).nonzero()[0]
            if isinstance(answer, Proof):
                assert not len(wrong), (a, b, extents, at)
            else:
                i = int(wrong[0])
                assert (answer.index, answer.left, answer.right) == (i, left[i], right[i]), (a, b, extents, answer)
    assert min(tally.values()) > 20, tally


def value_at(p: Any, at: dict[str, int]) -> int:
    return int(eval(str(p), {}, at))


def test_random_layouts() -> None:
    """Plain and swizzled layouts against their tables. They have any extents; half of the pairs are equal by
    construction."""
    rng = random.Random(200)
    tally = {"digits": 0, "exhaustion": 0, "different": 0}
    for _ in range(700):
        pair = random_pair(rng, limit=300)
        other = refined(rng, pair) if rng.random() < 0.5 else random_pair(rng, limit=300)
        if ref.size(pair[0]) != ref.size(other[0]):
            assert isinstance(prove_layouts(Layout(*pair), Layout(*other)), Undecided)
            continue
        parameters, offset = (
            rng.choice(((2, 0, 2), (1, 1, 2), (3, 0, 3), (2, 1, -2), (0, 4, 3))),
            rng.choice((0, 0, 3, 16)),
        )
        mutant = rng.random() < 0.2
        a: Any = Layout(*pair)
        b: Any = Layout(*other)
        if rng.random() < 0.7:
            a = ComposedLayout(Swizzle(*parameters), offset, a)
            b = ComposedLayout(Swizzle(*((1, 0, 1) if mutant else parameters)), offset, b)
        left, right = a.offsets().tolist(), b.offsets().tolist()
        wrong = [i for i in range(len(left)) if left[i] != right[i]]
        answer = prove_layouts(a, b)
        if wrong:
            tally["different"] += 1
            assert isinstance(answer, CounterExample)
            assert (answer.index, answer.left, answer.right) == (wrong[0], left[wrong[0]], right[wrong[0]])
            assert a(answer.coord) == answer.left
        else:
            tally[answer.method] += 1
            assert isinstance(answer, Proof)
    assert min(tally.values()) > 20, tally


# Parts ----------------------------------------------------------------------------------------------------------------


def test_first_nonzero_is_first() -> None:
    rng = random.Random(9)
    for _ in range(3000):
        extents = [rng.choice((2, 2, 2, 3)) for _ in range(rng.randint(1, 5))]
        bits = sum(1 << i for i, e in enumerate(extents) if e == 2)
        terms: dict[int, int] = {}
        for _ in range(rng.randint(0, 5)):
            s = rng.randrange(1, 1 << len(extents))
            s = s & bits if s & (s - 1) else s
            if s:
                terms[s] = rng.choice((-2, -1, 1, 2))
        constant = rng.choice((0, 0, 0, 1))

        def value(x: list[int]) -> int:
            total = constant  # noqa: B023
            for s, c in terms.items():  # noqa: B023
                part = [x[i] for i in range(len(x)) if s >> i & 1]
                total += c * (part[0] if len(part) == 1 else sum(part) % 2)
            return total

        table = [ref.digits(i, extents) for i in range(ref.size(tuple(extents)))]
        assert first_nonzero(constant, terms, len(extents)) == next((x for x in table if value(x)), None)


def test_normal_forms_print() -> None:
    box, (f,) = rewrite({"m": M, "k": 64}, lambda m, k: 64 * m + (k ^ ((m % 8) * 8)))
    assert "8*(k.3 ^ m.0)" in str(f) and box.digits["k"] == [2] * 6 and box.missing() == ("8 | M",)
    _, (g,) = rewrite({"x": 10}, lambda x: 3)
    assert str(g) == "3"
    for branch in (
        lambda x: 1 if x else 0,
        lambda x: 1 if x == 3 else 0,
        lambda x: 1 if x % 2 != 0 else 0,
        lambda x: 1 if x < 3 else 0,
        lambda x: 1 if x >= 3 else 0,
        lambda x: 1 if 3 > x else 0,
    ):
        with pytest.raises(CannotRewrite, match="cannot branch"):
            rewrite({"x": 10}, branch)
    _, (h,) = rewrite({"x": 10}, lambda x: 5 if x < 10 and x >= 0 and x != 10 and x > -1 and x + 1 and x <= 9 else 6)
    assert str(h) == "5"
    with pytest.raises(CannotRewrite, match="no integer"):
        rewrite({"x": 10}, lambda x: 1.5)
    for at in (-M, -2, M - M * N):
        with pytest.raises(CannotRewrite, match="across its digits"):
            box.split("m", at)
    with pytest.raises(CannotRewrite, match="needs n >= 1"):
        rewrite({"x": dim("n", min=0)}, lambda x: x)


def test_a_digit_that_is_no_divisor_in_the_middle() -> None:
    """x = i + M*j, asked for the low bits of i: i is rounded up to eights below j, which keeps its weight M."""
    x = {"x": M * N}
    low = prove_formulas(lambda x: (x % M) // 8 * 8 + (x % M) % 8 + x // M * M, lambda x: x, x)
    assert isinstance(low, Proof)
    assert isinstance(
        prove_formulas(lambda x: swizzle(64 * (x % M) + x // M, 3, 3, 3) // 64, lambda x: x % M, x=M * 64), Proof
    )
    answer = prove_formulas(lambda x: (x % M) // 8 * 8 + x // M * M, lambda x: x, x)
    assert isinstance(answer, CounterExample) and "at M=2, N=1" in answer.explain() and answer.coord == 1
    answer = prove_formulas(lambda x: (x % M) // 8 * 7, lambda x: (x % M) // 8 * 8, x)
    assert isinstance(answer, CounterExample) and "at M=9, N=1" in answer.explain() and answer.coord == 8
    box, (_, g) = rewrite({"x": 30}, lambda x: x % 6, lambda x: x % 6 // 4)
    assert box.weights["x"] == [1, 4, 6] and box.digits["x"] == [4, 2, 5] and str(g) == "x.1"


def test_large_boxes_do_not_enumerate() -> None:
    a = ComposedLayout(Swizzle(3, 4, 3), 0, Layout((1 << 20, 3 << 20), (3 << 20, 1)))
    b = ComposedLayout(Swizzle(3, 4, 3), 0, Layout((1 << 20, (1 << 20, 3)), (3 << 20, (1, 1 << 20))))
    c = ComposedLayout(Swizzle(2, 4, 3), 0, Layout((1 << 20, (1 << 20, 3)), (3 << 20, (1, 1 << 20))))
    assert isinstance(prove_formulas(a, b, m=1 << 20, k=3 << 20), Proof)
    answer = prove_formulas(a, c, m=1 << 20, k=3 << 20)
    assert isinstance(answer, CounterExample) and answer.coord == (0, 512) and (answer.left, answer.right) == (576, 512)


def test_forms_without_coordinates_are_compared_by_their_constants() -> None:
    _, forms = rewrite({"x": 10}, lambda x: 1 if x + 1 == x + 1 else 2, lambda x: 1 if x + 1 == x else 2)
    assert [str(form) for form in forms] == ["1", "2"]


M128, N64 = dim("M", multiple_of=128), dim("N", multiple_of=64)
BEYOND: list[tuple[Formula, Formula, dict[str, Any], dict[str, int], Any]] = [
    (lambda m: m % 500, lambda m: m, {"m": dim("M")}, {"M": 501}, 500),
    (lambda m: m // 4096, lambda m: 0 * m, {"m": dim("M")}, {"M": 4097}, 4096),
    (lambda m: m % (100 * dim("N")), lambda m: m, {"m": dim("M")}, {"M": 101, "N": 1}, 100),
    (lambda m, n: m // 1024, lambda m, n: m // 2048 * 2, {"m": N64, "n": M128}, {"M": 128, "N": 1088}, (1024, 0)),
    (Swizzle(1, 20, 3), lambda m: m, {"m": dim("M")}, {"M": (1 << 23) + 1}, 1 << 23),
]


@pytest.mark.parametrize("left, right, extents, sizes, coord", BEYOND)
def test_a_size_that_passes_a_constant_refutes(
    left: Formula, right: Formula, extents: dict[str, Any], sizes: dict[str, int], coord: Any
) -> None:
    answer = prove_formulas(left, right, extents)
    assert isinstance(answer, CounterExample), answer
    assert (dict(answer.sizes), answer.coord) == (sizes, coord)


def test_tuples_of_other_lengths_differ_at_the_first_coordinate() -> None:
    answer = prove_formulas(lambda m: (m, m), lambda m: m, m=dim("M"))
    assert isinstance(answer, CounterExample) and (answer.coord, answer.left, answer.right) == (0, (0, 0), 0)


def test_texts_have_no_marks_of_extents_that_were_rounded_up() -> None:
    answer = prove_formulas(lambda x: (x // N) // K, lambda x: x // (N * K), x=dim("M"))
    assert answer.explain().splitlines()[1:] == ["  x in 0..M-1, digits N x K x ceil(ceil(M/N)/K)", "  both are x.2"]


def test_what_digits_do_not_compute_is_named() -> None:
    answer = prove_formulas(lambda m: m / 8, lambda m: m // 8, m=dim("M"))
    assert isinstance(answer, Undecided) and "which have + - * // % & | ^ ~ << >>: " in answer.why
    assert "NormalForm" not in answer.why
    with pytest.raises(LayoutError, match="the extent of m must be an integer or a symbol, not 'M'"):
        prove_formulas(lambda m: m, lambda m: m, m="M")


def test_an_empty_box_is_refused() -> None:
    """Any two formulas agree on a box without coordinates."""
    for n in (0, -2):
        with pytest.raises(LayoutError, match=f"the extent of x is {n}: .* at least 1"):
            prove_formulas(lambda x: x, lambda x: x + 1, x=n)
    for least in (0, -3):
        extent = dim(f"e{-least}", min=least)
        for f in (lambda x: 5 % M + x * 0, lambda x, n=extent: n * x):
            answer = prove_formulas(f, f, x=extent)
            assert isinstance(answer, Undecided) and f"needs {extent} >= 1" in answer.why


def test_a_quotient_by_a_symbol_that_may_be_0_is_not_proven() -> None:
    z = dim("zero", min=0)
    for f, g in ((lambda x: x * z // z, lambda x: x), (lambda x: x * z % z, lambda x: 0)):
        answer = prove_formulas(f, g, x=4)
        assert isinstance(answer, Undecided) and "needs zero >= 1" in answer.why


def test_a_formula_that_takes_no_arrays_is_tried_at_few_coordinates() -> None:
    """Its values come one by one: all small sizes would take most of a minute."""
    calls = 0

    def slow(x: Any, y: Any) -> Any:
        nonlocal calls
        calls += 1
        return (minimum(M + 3, y) + x) % 3

    assert isinstance(prove_formulas(slow, slow, x=M, y=5), Undecided)
    assert calls < 20_000


@pytest.mark.parametrize(
    ("formula", "said"),
    [
        (lambda x: 7 // (x - 3), "no value at 3: ZeroDivisionError"),
        (lambda x: [5, 4, 6][x], "no value at 3: IndexError"),
        (lambda x: 1 << (x - 3), "no value at 0: ValueError: negative shift count"),
        (lambda x: x << -1, "no value at 0: ValueError: negative shift count"),
    ],
)
def test_a_formula_that_fails_is_undecided_with_its_coordinate(formula: Formula, said: str) -> None:
    answer = prove_formulas(formula, formula, x=8)
    assert isinstance(answer, Undecided) and said in answer.why
    assert isinstance(prove_formulas(formula, formula, x=M), Undecided)


def test_a_list_of_values_is_a_tuple() -> None:
    for n in (8, M):
        assert prove_formulas(lambda x: [x, x // 2], lambda x: (x, x // 2), x=n).ok


def test_a_formula_of_other_variables_is_refused() -> None:
    with pytest.raises(
        LayoutError, match=r"the right formula takes m, k, and has extents of m, n: .* variables by name"
    ):
        prove_formulas(lambda m, n: m, lambda m, k: m, m=M, n=8)
    assert prove_formulas(lambda **v: v["m"], lambda m, k=0: m + k, m=M)


def test_a_counterexample_names_a_fact_only_where_it_helps() -> None:
    """The false one stops at `K | M`, and is false under it too."""
    X = dim("X")
    false = prove_formulas(lambda x: x % (M * K) // M, lambda x: x // K % M, x=X)
    assert isinstance(false, CounterExample) and "lacks" not in false.statement
    true = prove_formulas(lambda x: x % M % 8, lambda x: x % 8, x=X)
    assert isinstance(true, CounterExample) and true.statement.endswith("a proof lacks 8 | M")


def test_cases_are_few_or_refused() -> None:
    n = 1 << 30
    assert prove_formulas(lambda x: -(-x // 64), lambda x: (x + 63) // 64, x=n)
    assert isinstance(prove_formulas(lambda x, y: (x + y) // 1000, lambda x, y: (y + x) // 1000, x=n, y=n), Undecided)
