"""Undecidable statements say so, with the reason, and are never answered wrongly.

Every statement below is true (enumerated at small sizes here) and beyond the methods. They have radices of which none
divides the other, bits without an end, swizzle bits that depend on a symbol, products of variables, or orders that need
squares. With numbers for the symbols each must be proven, and its false neighbour must not be proven
at any size. A case that becomes decided belongs among the theorems.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

import pytest

from layoutgemm import CounterExample, Layout, Proof, Swizzle
from layoutgemm.errors import LayoutError
from layoutgemm.layouts import Undecided
from layoutgemm.layouts.proofs.digits import maximum, minimum
from layoutgemm.layouts.proofs.index_formulas import prove_formulas
from layoutgemm.layouts.proofs.prove import bijective, covers, disjoint, injective
from layoutgemm.layouts.symbols.dims import dim, dims
from layoutgemm.layouts.symbols.facts import Facts
from layoutgemm.layouts.symbols.generators import FactError
from layoutgemm.layouts.symbols.polynomial import MissingFact

SYMBOLS = ("M", "N", "K")
Env = dict[str, Any]


FUNCTIONS = {"minimum": minimum, "maximum": maximum, "S": Swizzle(3, 3, 3), "divmod": divmod}


@functools.cache
def compiled(text: str) -> CodeType:
    return compile(text, text, "eval")


def value(text: str, env: Env) -> Any:
    return eval(compiled(text), FUNCTIONS, env)


def used(*texts: str) -> list[str]:
    return [n for n in SYMBOLS if any(n in t for t in texts)]


def small_sizes(names: list[str], top: int) -> Iterator[Env]:
    for values in itertools.product(range(1, top + 1), repeat=len(names)):
        yield dict(zip(names, values))


# Formulas: (left, right, extents, reason) -----------------------------------------------------------------------------

X, XY = {"x": "M"}, {"x": "M", "y": "N"}
DIVIDE, BITS, SUM = "what .* does not divide is not below it", "their bits are endless", "as bits: .* carries"

FORMULAS: list[tuple[str, str, dict[str, str], str]] = [
    # Radices of which none divides the other, sums that cross a divisor.
    ("x // M + x // N", "x // N + x // M", {"x": "K"}, r"needs .* \| "),
    ("x // 8 + x // M", "x // M + x // 8", {"x": "8*M*N"}, "what M does not divide"),
    ("(x + 1) // M", "(1 + x) // M", {"x": "M"}, "what M does not divide"),
    ("(x + y) // M", "(y + x) // M", {"x": "M", "y": "M"}, "what M does not divide"),
    ("S(48 * x + y)", "S(y + 48 * x)", {"x": "M", "y": "48"}, DIVIDE),
    ("x // M * M + x % M", "x // N * N + x % N", {"x": "K"}, r"needs N \| M"),
    ("(x + M) % N", "(M + x) % N", {"x": "K"}, r"needs N \| M"),
    ("(3 * x) % M", "(x + 2 * x) % M", {"x": "N"}, "what M does not divide"),
    ("(x + y) % M // 2", "(y + x) % M // 2", {"x": "M", "y": "M"}, "what M does not divide"),
    ("(x + y) // 2048", "(y + x) // 2048", XY, DIVIDE),
    ("x % 4096 % 5000 + x % 3000", "x % 3000 + x % 4096 % 5000", X, DIVIDE),
    # Bits without an end, and bits that depend on a symbol.
    ("(x ^ y) ^ y", "x", XY, BITS),
    ("(x & y) + (x | y)", "x + y", XY, BITS),
    ("x + y - (x ^ y)", "2 * (x & y)", XY, BITS),
    ("(x + y) ^ (x + y)", "0", XY, BITS),
    ("(x ^ y) & y", "y - (x & y)", XY, BITS),
    ("(x + y) ^ x", "x ^ (y + x)", XY, BITS),
    ("x & (x >> 1)", "(x >> 1) & x", X, BITS),
    ("x & ~x", "0", X, BITS),
    ("x ^ M", "M ^ x", X, "bits are endless|unsupported"),
    ("64 * x + (y ^ (x % 8 * M))", "(M * (x % 8) ^ y) + 64 * x", {"x": "N", "y": "64"}, r"needs 64 \| M"),
    ("S(M * x + y)", "S(y + M * x)", {"x": "N", "y": "M"}, r"needs 8 \| M"),
    ("(M * x) ^ 3", "3 ^ (x * M)", {"x": "N"}, r"needs 4 \| M"),
    ("S(x + M)", "S(M + x)", {"x": "N"}, r"needs 8 \| M|the low"),
    # Products of variables, powers, division by a variable.
    ("x * y", "y * x", XY, "not linear in the digits"),
    ("(x + y) * (x - y)", "x * x - y * y", XY, "not linear in the digits"),
    ("x * (x + 1) // 2 * 2", "x * x + x", X, "not linear in the digits"),
    ("x ** 2", "x * x", X, "cannot be evaluated on digits|not linear"),
    ("x * y // 2", "y * x // 2", XY, "not linear in the digits"),
    ("x * y % 8", "y * x % 8", XY, "not linear in the digits"),
    ("x // (x + 1)", "0", X, "which has digits"),
    ("x // (y + 1)", "x // (1 + y)", XY, "which has digits"),
    ("x % (y + 1)", "x - x // (1 + y) * (y + 1)", XY, "which has digits"),
    # Gathers, branches, order of values.
    ("x if x < 5 else 5 + (x - 5)", "x", X, "cannot branch on it"),
    ("abs(x - 5)", "abs(5 - x)", X, "depends on the coordinate"),
    ("abs(x - y)", "maximum(x, y) - minimum(x, y)", XY, "depends on the coordinate"),
    ("bin(x).count('1') % 2", "bin(2 * x).count('1') % 2", X, "no single number"),
    ("minimum(x, N)", "x - maximum(x - N, 0)", {"x": "M"}, "needs N"),
    ("minimum(x, 7)", "minimum(7, x)", X, "needs M <= 8"),
    ("minimum(x, M - x)", "minimum(M - x, x)", X, "needs M <= 2"),
    ("minimum(x, y)", "x + y - maximum(x, y)", XY, "needs"),
    ("maximum(x % 4, x // 4)", "maximum(x // 4, x % 4)", X, "needs|max"),
]


# No linear form of the digits, but one in each of finitely many cases: (left, right, extents).
BY_CASES: list[tuple[str, str, dict[str, str]]] = [
    ("x // 3 * 3 + x % 3", "x // 4 * 4 + x % 4", X),
    ("x // 3 + x // 4", "x // 4 + x // 3", X),
    ("x % 4 + x // 6", "x // 6 + x % 4", X),
    ("x % 6 % 4 + x % 4", "x % 4 + x % 6 % 4", X),
    ("x // 2 % 3 + x % 4", "x % 4 + x // 2 % 3", X),
    ("x % 10 // 4", "x % 10 // 2 // 2 + 0 * (x // 4)", X),
    ("(x + y) // 8", "(y + x) // 8", XY),
    ("(x + y) % 8", "(x % 8 + y % 8) % 8", XY),
    ("(x + 1) % 4", "(x % 4 + 1) % 4", X),
    ("3 * x // 8", "3 * (x // 8) + 3 * (x % 8) // 8", X),
    ("-x // 8", "-((x + 7) // 8)", X),
    ("(7 * x) % 5", "(2 * x) % 5", X),
    ("(x + 8 * y) // 6", "(8 * y + x) // 6", {"x": "8", "y": "N"}),
    ("(x + y) ^ 1", "(y + x) ^ 1", XY),
    ("(3 * x) ^ 5", "5 ^ (x + 2 * x)", X),
    ("(x + y) & 6", "(y + x) & 6", XY),
    ("(x + y % 8) ^ 7", "7 ^ (y % 8 + x)", XY),
    ("S(64 * x + 11 * y)", "S(11 * y + 64 * x)", {"x": "M", "y": "8"}),
    ("(x + 3) ^ 3", "(3 + x) ^ 3", X),
    ("[3, 1, 2, 0][x % 4]", "(3, 1, 2, 0)[x % 4]", X),
    # Quotients rounded up, by numbers and by a symbol.
    ("-(-x // 64)", "(x + 63) // 64", X),
    ("-(-x // N)", "(x + N - 1) // N", X),
    ("(x + 15) & ~15", "(x + 15) // 16 * 16", X),
    ("(-x) % 128", "(x + 127) // 128 * 128 - x", X),
    ("(x + 1) % M", "0 if x == M - 1 else x + 1", X),
    # Branches, orders and products that few digits decide.
    ("x % 8 if x // 8 % 2 == 0 else 7 - x % 8", "x % 8 ^ 7 * (x // 8 % 2)", X),
    ("maximum(x % 8, 3)", "x % 8 + 3 - minimum(3, x % 8)", X),
    ("abs(x % 8 - 4)", "4 - x % 8 if x % 8 < 4 else x % 8 - 4", X),
    ("x % 4 * y", "y * (x % 4)", XY),
    ("x // (y % 4 + 1)", "x // (1 + y % 4)", XY),
    ("(x & y % 8) + (x | y % 8)", "x + y % 8", XY),
]


@pytest.mark.parametrize("left, right, extents", BY_CASES, ids=[f[0] for f in BY_CASES])
def test_formula_by_cases(left: str, right: str, extents: dict[str, str]) -> None:
    names = used(left, right, *extents.values())
    symbols = {n: dim(n, min=3) if "M - 1" in right else dim(n) for n in names}

    def ask(wrong: str) -> Any:
        return prove_formulas(
            lambda **at: value(left, {**symbols, **at}),
            lambda **at: value(f"({right}){wrong}", {**symbols, **at}),
            {v: value(n, symbols) for v, n in extents.items()},
        )

    answer = ask("")
    assert isinstance(answer, Proof) and answer.method == "digits", answer
    assert re.search(r"equal forms in each of \d+ cases", answer.explain())
    for wrong in (" + 1", " + x // 5 % 2"):  # the second differs from x = 5 on
        false = ask(wrong)
        assert isinstance(false, CounterExample), false
    for env in small_sizes(names, 9 if len(names) == 1 else 4):
        for at in itertools.product(*[range(value(n, env)) for n in extents.values()]):
            coordinate = {**env, **dict(zip(extents, at))}
            assert value(left, coordinate) == value(right, coordinate), "the case itself is false"


# False in one half of the cases alone.
FALSE_IN_SOME_CASES = [
    ("-(-x // 64)", "(x + 62) // 64"),
    ("-(-x // 64)", "(x + 64) // 64"),
    ("-(-x // N)", "(x + N) // N"),
    ("x % 8 if x // 8 % 2 == 0 else 7 - x % 8", "x % 8"),
    ("[0, 1, 2, 3, 4, 5, 7, 6][x % 8]", "x % 8"),
]


@pytest.mark.parametrize("left, right", FALSE_IN_SOME_CASES)
def test_every_case_is_looked_at(left: str, right: str) -> None:
    n = dim("N")
    answer = prove_formulas(
        lambda x: value(left, {"x": x, "N": n}), lambda x: value(right, {"x": x, "N": n}), x=dim("M")
    )
    assert isinstance(answer, CounterExample) and answer.left != answer.right


@pytest.mark.parametrize("left, right, extents, reason", FORMULAS, ids=[f[0] for f in FORMULAS])
def test_formula(left: str, right: str, extents: dict[str, str], reason: str) -> None:
    names = used(left, right, *extents.values())

    def ask(env: Env, wrong: str = "") -> Any:
        sizes = {v: value(n, env) for v, n in extents.items()}
        return prove_formulas(
            lambda **at: value(left, {**env, **at}), lambda **at: value(f"({right}){wrong}", {**env, **at}), sizes
        )

    answer = ask({n: dim(n) for n in names})
    assert isinstance(answer, Undecided), answer
    assert re.search(reason, answer.why), answer.why
    assert not answer and answer.explain().startswith("undecided: ")
    assert not ask({n: dim(n) for n in names}, " + 1"), "the false neighbour"
    for env in small_sizes(names, 13 if len(names) == 1 else 4):
        boxes = [range(value(n, env)) for n in extents.values()]
        for at in itertools.product(*boxes):
            coordinate = {**env, **dict(zip(extents, at))}
            assert value(left, coordinate) == value(right, coordinate), "the case itself is false"
        assert isinstance(ask(env), Proof), env
        assert isinstance(ask(env, " + 1"), CounterExample), env


# Statements about layouts: (question, true at all sizes, reason) ------------------------------------------------------

NO_ARGUMENT = "no argument of this method decides it, and no size that refutes it was found"

STATEMENTS: list[tuple[str, str]] = [
    # Strides that do not grow past each other, and are injective by divisibility or by number theory.
    ("injective(Layout((M, M), (M + 1, M)))", "M:M"),
    ("injective(Layout((M, M + 1), (M + 1, M)))", "overlap in span"),
    ("injective(Layout((2, 3, M), (3 * M, 2 * M, 1)))", "overlap in span"),
    ("injective(Layout((2, 3, M), (3 * M, 2 * M, 6 * M * M)))", "overlap in span"),
    ("injective(Layout((M, M, 2), (M + 1, M, 2 * M * M * M)))", "overlap in span"),
    ("injective(Layout((2, M), (2 * N + 1, 2)))", "overlap in span"),
    ("injective(Layout((M, M + 2), (2 * M + 3, 2 * M + 1)))", "overlap in span"),
    # A stride whose sign takes a square to see.
    ("injective(Layout((M, N), (1, M * M - 2 * M * N + N * N + M)))", "either sign"),
    ("injective(Layout(M, M * M + N * N - M * N))", "either sign"),
    # Images without a right inverse among the modes.
    ("covers(Layout((M, N), (1, M - 1)), M * N - N + 1)", NO_ARGUMENT),
    ("covers(Layout((3, 2 * M), (1, 2)), 4 * M)", NO_ARGUMENT),
    ("covers(Layout((4, N), (1, 3)), 3 * N)", NO_ARGUMENT),
    ("covers(Layout((M + 1, N), (1, M)), M * N)", NO_ARGUMENT),
    ("covers(Layout((2, M, N), (M, 1, 2 * M - 1)), (2 * M - 1) * N)", NO_ARGUMENT),
    # Residues that no stride shows by itself.
    ("disjoint(Layout(M, 2 * N), Layout(M, 4 * K), 1)", NO_ARGUMENT),
    ("disjoint(Layout(M, N * N + N), Layout(K, 2), 1)", NO_ARGUMENT),
    ("disjoint(Layout(M, 3 * K), Layout(N, 6 * M), 2)", NO_ARGUMENT),
    ("disjoint(Layout(M), Layout(N), M * M + N * N - M * N + M)", NO_ARGUMENT),
]
QUESTIONS = {"Layout": Layout, "injective": injective, "bijective": bijective, "covers": covers, "disjoint": disjoint}


def enumerate_layout(shape: Any, stride: Any = 1) -> list[int]:
    pairs = list(zip(shape, stride)) if isinstance(shape, tuple) else [(shape, stride)]
    return [sum(x * d for x, (_, d) in zip(at, pairs)) for at in itertools.product(*[range(s) for s, _ in pairs])]


TRUTH: dict[str, Callable[..., Any]] = {
    "Layout": enumerate_layout,
    "injective": lambda a: len(set(a)) == len(a),
    "covers": lambda a, n: set(range(n)) <= set(a),
    "disjoint": lambda a, b, offset: not set(a) & {offset + x for x in b},
}


@pytest.mark.parametrize("text, reason", STATEMENTS, ids=[s[0] for s in STATEMENTS])
def test_statement(text: str, reason: str) -> None:
    names = used(text)
    answer = eval(text, QUESTIONS, {n: dim(n) for n in names})
    assert isinstance(answer, Undecided), answer
    assert reason in answer.why, answer.why
    for env in small_sizes(names, 5):
        assert eval(text, TRUTH, dict(env)), f"the case itself is false at {env}"
        assert isinstance(eval(text, QUESTIONS, dict(env)), Proof), env


def test_sizes_too_large_to_look_at() -> None:
    """Beyond the sizes that are tried, and the coordinates that are enumerated: no answer rests on a sample."""
    x = dim("x", min=1000)
    assert not bijective(Layout((9, 9), (9, 8)))
    for answer in (injective(Layout((x, x), (x, x - 1))), bijective(Layout((x, x), (x, x - 1)))):
        assert isinstance(answer, Undecided) and "no size that refutes it was found" in answer.why
    assert injective(Layout((9, 9), (9, 8)))
    n = 1 << 13
    answer = prove_formulas(lambda x, y: (x + y) ^ (3 * x), lambda x, y: (3 * x) ^ (y + x), x=n, y=n)
    assert isinstance(answer, Undecided) and f"{n * n} coordinates are too many to try" in answer.why
    assert prove_formulas(lambda x, y: (x + y) ^ (3 * x), lambda x, y: (3 * x) ^ (y + x), x=16, y=16)


# Facts that are no substitution: refused by name, not forgotten -------------------------------------------------------

REFUSED = [
    ("64 | M*N", "M\\*N has more than one symbol"),
    ("64 | M + N", "M\\+N has more than one symbol"),
    ("M | N*K", "no single symbol"),
    ("K | M + N", "no single symbol"),
    ("M | 8", "finitely many cases"),
    ("M*N < 2**31", "cannot be solved for one symbol"),
    ("M*N <= 100", "cannot be solved for one symbol"),
    ("M*N >= K", "cannot be solved for one symbol"),
    ("M**2 >= N", "cannot be solved for one symbol"),
    ("M*M >= N*N", "cannot be solved for one symbol"),
    ("M + N >= K", "cannot be solved for one symbol"),
    ("2*M >= 3*N", "cannot be solved for one symbol"),
    ("M*N == 64", "no symbol stands alone"),
    ("M*N == K*L", "no symbol stands alone"),
    ("M + N == 2*K", "cannot be solved for one symbol"),
    ("T = ceil_div(M*N, 64)", "not solvable for one symbol"),
    ("T = ceil_div(M + N, 64)", "not solvable for one symbol"),
    ("T = ceil_div(M, N*K)", "divisor K\\*N is no symbol"),
    ("T = M // 4", "M is in 1.."),
    ("M % 4 == N", "N is not provably in 0..3"),
    ("M % N == 1", "not provably in 0..N-1"),
    ("M // 4 == N // 4", "needs 4 \\| M"),
    ("M != N", "cannot read the fact"),
    ("M & 7 == 0", "no integer expression"),
    ("T = min(M, 64)", "no integer expression"),
    ("gcd(M, N) == 1", "no integer expression"),
    ("isprime(M)", "is no fact"),
]


@pytest.mark.parametrize("fact, reason", REFUSED, ids=[f for f, _ in REFUSED])
def test_fact_refused_by_name(fact: str, reason: str) -> None:
    given = Facts("8 | K")
    with pytest.raises(LayoutError, match=reason):
        given.given(fact)
    # And it left nothing behind.
    assert given == Facts("8 | K") and given.statements == ("8 | K",)


def test_bounds_that_would_shape_one_symbol_twice() -> None:
    for first, second in (("M >= N", "M >= K"), ("M >= N", "M <= 64"), ("M | K", "K >= 5")):
        with pytest.raises(FactError, match="cannot be solved for one symbol"):
            Facts(first, second)


# Orders that need squares, quotients that are no polynomials ----------------------------------------------------------


def test_orders_and_quotients_beyond_coefficients() -> None:
    M, N, K = dims("M N K")
    for relation in (M * M + N * N >= 2 * M * N, M * M + N * N + K * K >= M * N + N * K + K * M, M >= N):
        with pytest.raises(MissingFact, match="whether"):
            bool(relation)
    for numerator, divisor in ((M * (M + 1), 2), (M * (M + 1) * (M + 2), 3), (M * M - M, 2)):
        with pytest.raises(MissingFact, match=f"needs {divisor}"):
            numerator // divisor
    # As soon as one step is a number, coefficients decide.
    assert M * M + 1 >= 2 * M and M * M * M + 2 >= 3 * M


def test_there_are_enough() -> None:
    assert len(FORMULAS) + len(STATEMENTS) >= 50


def test_arithmetic_of_symbols_alone_heeds_the_facts() -> None:
    """`N // 3` was decided without the facts, and no sizes were tried."""
    n = dim("n_alone")
    formulas = lambda x: n // 3 * 3 + x, lambda x: n + x
    proven = prove_formulas(*formulas, x=4, given="3 | n_alone")
    assert isinstance(proven, Proof) and proven.conditions == ("3 | n_alone",)
    refuted = prove_formulas(*formulas, x=4)
    assert isinstance(refuted, CounterExample) and refuted.statement.endswith("at n_alone=1; a proof lacks 3 | n_alone")
    assert prove_formulas("n_alone % 3 + x", "n_alone + x", x=4).explain().startswith("not equivalent at n_alone=3")
    branch = prove_formulas(lambda x: x if n < 8 else 0 * x, "x", x=4, given="n_alone <= 5")
    assert isinstance(branch, Proof) and branch.conditions == ("n_alone <= 5",)
    assert prove_formulas("(n_alone >> 1) + x", "n_alone // 2 + x", x=4, given="2 | n_alone").ok
    assert (n << 3) >> 2 == 2 * n


def test_formulas_are_texts_too_or_refused() -> None:
    assert prove_formulas(("i", "i ^ j"), lambda i, j: (i, j ^ i), i=8, j=4).ok
    for formula in (3, None, 1.5):
        with pytest.raises(LayoutError, match="a formula must be a function, a SymPy expression or a text"):
            prove_formulas(formula, "i", i=4)
    with pytest.raises(LayoutError, match=r"z is neither a variable \(i\) nor a size"):
        prove_formulas("i + z", "i", i=4)
