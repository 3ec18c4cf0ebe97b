"""Polynomial entries: arithmetic, exact quotients and decisions, against evaluation at many values of the symbols."""

import pickle
import random
import subprocess
import sys

import numpy as np
import pytest

from layoutgemm.errors import LayoutError
from layoutgemm.layouts.symbols.dims import dim, dims, parse_entry
from layoutgemm.layouts.symbols.facts import Facts
from layoutgemm.layouts.symbols.generators import GENERATORS, FactError, check_symbols, generator
from layoutgemm.layouts.symbols.polynomial import (
    MissingFact,
    Polynomial,
    div,
    floordiv,
    fresh_symbol,
    ge0,
    gen,
    gens,
    make,
    needs_div,
    needs_ge,
    substitute,
    val,
    valuations,
)

M, N, K = dims("M N K")
A = dim("A", multiple_of=64)
B = dim("B", min=2, max=5)
C = dim("C", min=-3)
D = dim("D", multiple_of=4, min=-8, max=12)
SYMBOLS = [M, N, K, A, B, C, D]


def symbol(low, high):
    """A symbol with one bound, or none: dim() always has a lower one."""
    return gen(generator(f"x_{low}_{high}".replace("-", "m"), low, high))


FREE, BELOW = symbol(None, None), symbol(None, 4)


def random_entry(rng, symbols, depth=3):
    if depth == 0 or rng.random() < 0.2:
        return rng.choice([rng.randint(-9, 9), rng.choice(symbols), rng.choice(symbols)])
    a, b = (random_entry(rng, symbols, depth - 1) for _ in range(2))
    return rng.choice([lambda: a + b, lambda: a - b, lambda: a * b, lambda: a * rng.randint(-4, 8)])()


def points(entries, totals=4, limit=120):
    out = []
    for env in valuations(gens(*entries), totals):
        out.append(env)
        if len(out) == limit:
            break
    return out


def test_arithmetic_equals_evaluation_at_every_point():
    rng = random.Random(1)
    for _ in range(1500):
        p, q = random_entry(rng, SYMBOLS), random_entry(rng, SYMBOLS)
        k = rng.randint(-5, 5)
        for env in points([p, q], 3, 20):
            x, y = val(p, env), val(q, env)
            assert val(p + q, env) == x + y
            assert val(p - q, env) == x - y
            assert val(p * q, env) == x * y
            assert (val(k + p, env), val(k - p, env), val(k * p, env)) == (k + x, k - x, k * x)
            assert val(-p, env) == -x
    assert M**3 == M * M * M and M**0 == 1


def test_a_polynomial_is_never_constant():
    for p, value in ((M - M, 0), (M + 3 - M, 3), (0 * M, 0), ((M + 1) * (M - 1) - M * M, -1)):
        assert p.__class__ is int and p == value
    assert make({(): 7}) == 7 and make({}) == 0 and make({(): 0}) == 0
    assert dim("one", min=3, max=3) == 3


def test_equal_polynomials_are_one_key():
    assert hash(M * N + 1) == hash(1 + N * M)
    assert {M * N: "x"}[N * M] == "x"
    assert M != N and M != 3 and not M == 1 and M != "M" and M != None  # noqa: E711
    assert (M == np.int64(3)) is False


def test_numpy_integers_are_integers():
    assert M + np.int64(2) == M + 2 and np.int64(3) * M == 3 * M
    assert A // np.int32(64) == A // 64 and M - np.int8(1) == M - 1
    with pytest.raises(LayoutError, match=r"what M is added to must be an integer or a symbol, not 1.5 \(float\)"):
        M + 1.5
    with pytest.raises(LayoutError, match="what M is multiplied by must be an integer or a symbol, not 'a'"):
        M * "a"


def test_div_is_the_exact_quotient_or_none():
    rng = random.Random(2)
    found = 0
    for _ in range(3000):
        p, q = random_entry(rng, SYMBOLS, 2), random_entry(rng, SYMBOLS, 2)
        if q == 0:
            continue
        assert div(p * q, q) == p  # a quotient that exists is found
        x = div(p, q)
        if x is None:
            continue
        found += 1
        assert x * q == p
        for env in points([p, q], 3, 12):
            if val(q, env):
                assert val(p, env) == val(x, env) * val(q, env)
    assert found > 150
    assert div(M, 0) is None and div(0, M) == 0 and div(3, M) is None and div(7, 2) is None
    assert div(M * (M + 1), 2) is None  # an integer at every M, but no polynomial with integer coefficients


def test_floordiv_and_mod_are_right_at_every_point():
    rng = random.Random(3)
    found = 0
    for _ in range(4000):
        p = random_entry(rng, SYMBOLS, 2)
        q = rng.choice([2, 3, 4, 8, 64, M, B, A, 3 * M, M + 5, -4])
        x = floordiv(p, q)
        if x is None:
            continue
        found += 1
        for env in points([p, q], 4, 40):
            assert val(x, env) == val(p, env) // val(q, env), (p, q, env)
    assert found > 500
    assert (A + 63) // 64 == A // 64 and (A + 63) % 64 == 63
    assert (M + 3 * K * M) // M == 3 * K + 1
    assert 5 // (M + 5) == 0 and 5 % (M + 5) == 5
    assert divmod(A + 1, 32) == (A // 32, 1)


def test_ge0_never_claims_what_fails_at_a_point():
    rng = random.Random(4)
    yes = 0
    for _ in range(6000):
        p = random_entry(rng, [*SYMBOLS, FREE, BELOW], 2)
        if ge0(p):
            yes += 1
            for env in points([p], 6, 200):
                assert val(p, env) >= 0, (p, env)
    assert yes > 800


def test_ge0_is_exact_for_linear_polynomials():
    """A linear polynomial is >= 0 everywhere exactly when its worst corner is."""
    rng = random.Random(5)
    for _ in range(3000):
        p = rng.randint(-40, 40)
        worst = p
        for x in SYMBOLS:
            c = rng.choice([0, 0, 1, -1, 2, -3])
            p = p + c * x
            (g,) = gens(x)
            G, scale = GENERATORS[g], next(iter(x.terms.values()))
            bound = G.low if c > 0 else G.high
            if c:
                worst = None if worst is None or bound is None else worst + c * scale * bound
        assert ge0(p) == (worst is not None and worst >= 0), p


def test_a_symbol_that_may_be_negative_does_not_pass_as_nonnegative():
    assert not ge0(C) and ge0(C + 3) and not ge0(C + 2)
    assert not ge0(FREE) and not ge0(FREE * FREE) and not ge0(BELOW) and ge0(4 - BELOW)
    assert not ge0(C * M) and ge0(C * M + 3 * M)


def test_bounded_symbols_are_tried_one_by_one():
    b = dim("b", min=0, max=3)
    assert ge0(b * b - 3 * b + 2)  # 2, 0, 0, 2: no coefficient shows it
    assert not ge0(b * b - 3 * b + 1)


def test_relations_are_decided_or_raise():
    assert (M >= 1) and not (M < 1) and (A > 63) and (B <= 5) and not (B > 5) and (M * N >= M)
    for relation, need in ((M >= 21, "M >= 21"), (M < N, "N > M"), (A <= 640, "A <= 640"), (M * N < 9, "M*N <= 8")):
        with pytest.raises(MissingFact) as caught:
            bool(relation)
        assert caught.value.needs == (need,)
    assert max(M, M + 3) == M + 3
    with pytest.raises(MissingFact, match="needs N > M"):
        max(M, N)


@pytest.mark.parametrize(
    ("d", "p", "needs"),
    [
        (64, M, ("64 | M",)),
        (48, A, ("192 | A",)),
        (64, 16 * M * N, ("4 | M", "4 | N")),
        (64, 64 * N + 16 * M, ("4 | M",)),
        (8, N + 8, ("8 | N",)),
        (8, N + M, ("8 | M+N",)),
        (8, N + 4, ("8 | N+4",)),
        (M, N, ("M | N",)),
        (4 * M, 64 * N * K, ("M | N", "M | K")),
        (M + 1, N, ("M+1 | N",)),
        (64, A, ()),
        (M, 8, ()),
    ],
)
def test_missing_divisibility_is_named_in_the_users_symbols(d, p, needs):
    assert needs_div(d, p) == needs


def test_each_named_fact_is_enough():
    rng = random.Random(6)
    tried = 0
    for _ in range(400):
        p, q = random_entry(rng, [M, N, K, A], 2), rng.choice([2, 6, 8, 64, 128, K, 4 * N])
        for fact in needs_div(q, p):
            try:
                x, y = Facts(fact)(p, q)
            except FactError:
                continue  # `2 | M*N+1`: named, and no fact for one symbol
            tried += 1
            assert div(x, y) is not None, (p, q, fact)
        for fact in needs_ge(p):
            try:
                x = Facts(fact)(p)
            except FactError:
                continue
            tried += 1
            assert ge0(x), (p, fact)
    assert tried > 100


def test_texts_are_in_the_users_symbols_and_read_back():
    assert [str(x) for x in (A, A // 64, A * N // 32, 2 * M - N, 64 * N - A + 8)] == [
        "A",
        "A//64",
        "A*N//32",
        "2*M-N",
        "64*N-A+8",
    ]
    # A name in a text is the symbol last made under it.
    dims("M N K")
    dim("A", multiple_of=64)
    dim("D", multiple_of=4, min=-8, max=12)
    rng = random.Random(7)
    for _ in range(500):
        p = random_entry(rng, [M, N, K, A, A // 64, D // 4], 3)
        assert parse_entry(str(p)) == p, str(p)


def test_pickle_survives_another_process():
    p = A * N // 8 + 3 * D
    code = (
        "import pickle, sys\n"
        "from layoutgemm.layouts.symbols.dims import dim, dims\n"
        "dims('z y x')\n"  # other generator numbers than here
        f"p = pickle.loads(bytes.fromhex('{pickle.dumps(p).hex()}'))\n"
        "A, N = dim('A', multiple_of=64), dim('N')\n"
        "D = dim('D', multiple_of=4, min=-8, max=12)\n"
        "assert p == A * N // 8 + 3 * D and 'sympy' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert pickle.loads(pickle.dumps(p)) == p


def test_two_symbols_of_one_name_are_noticed():
    plain = dim("W")
    other = dim("W", multiple_of=8)
    assert plain != other and dim("W") == plain
    with pytest.raises(FactError, match="two symbols are called W"):
        check_symbols(gens(plain * other))
    check_symbols(gens(plain * M))


def test_empty_and_wrong_declarations_raise():
    with pytest.raises(FactError, match=r"no multiple of 64 in 1\.\.63"):
        dim("W", multiple_of=64, max=63)
    with pytest.raises(FactError, match=r"no multiple of 1 in 5\.\.4"):
        dim("W", min=5, max=4)
    for bad in ({"multiple_of": 0}, {"min": 1.5}, {"max": True}):
        with pytest.raises(LayoutError):
            dim("W", **bad)
    with pytest.raises(LayoutError, match="not '3M'"):
        dim("3M")
    with pytest.raises(TypeError, match=r"made by dim\(\)"):
        Polynomial()


def test_truth_of_a_symbol_is_decided_or_raises():
    assert bool(M) and bool(A)
    with pytest.raises(MissingFact, match="whether C is 0: needs C >= 1"):
        bool(C)


def test_substitute_and_valuations():
    rng = random.Random(8)
    for _ in range(300):
        p = random_entry(rng, [M, N, B], 3)
        (m,), (n,) = gens(M), gens(N)
        q = substitute(p, {m: N + 2, n: 3})
        for env in points([M, N, B], 3, 15):
            assert val(q, {**env, m: 99}) == val(p, {**env, m: env[n] + 2, n: 3})
    seen = [tuple(env.values()) for env in valuations(gens(M, B), 9)]
    assert len(seen) == len(set(seen)) and (1, 2) == seen[0] and max(b for _, b in seen) == 5
    assert len([1 for _ in valuations(gens(B), 99)]) == 4
    assert {env[gens(FREE)[0]] for env in valuations(gens(FREE), 5)} == {0, 1, -1, 2, -2}
    assert fresh_symbol("t") != fresh_symbol("t")


def test_division_by_zero_and_inexact_quotients_raise():
    for divided in (lambda: M // 0, lambda: M % 0, lambda: divmod(M, 0)):
        with pytest.raises(LayoutError, match="0: a division by zero"):
            divided()
    with pytest.raises(MissingFact, match=r"M // 64: needs 64 \| M or M <= 63"):
        M // 64
    with pytest.raises(MissingFact, match=r"\(M\*N\) % 64: needs 64 \| M or 64 \| N or M\*N <= 63"):
        M * N % 64


@pytest.mark.parametrize("least", [0, -3])
def test_a_divisor_that_may_be_0_is_refused(least):
    """z // z is 1 at every z but 0, where it has no value."""
    z = dim(f"z{-least}", min=least)
    for p in (z, 4 * z, z * z, 0):
        for divide in (lambda p: p // z, lambda p: p % z, lambda p: divmod(p, z)):
            with pytest.raises(MissingFact, match=rf"a division by zero where {z} is 0: needs {z} >= 1"):
                divide(p)
    negative = symbol(None, -1)
    assert 4 * negative // negative == 4
