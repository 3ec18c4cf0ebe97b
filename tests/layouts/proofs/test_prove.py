"""Proofs for all sizes: each verdict checked at many sizes, half of the pairs equal by construction."""

import random

import numpy as np
import pytest

from layoutgemm import CounterExample, Layout, Proof
from layoutgemm.errors import LayoutError
from layoutgemm.layouts import Undecided
from layoutgemm.layouts.basis import E
from layoutgemm.layouts.int_tuple import leaves
from layoutgemm.layouts.proofs.prove import at, bijective, covers, disjoint, injective, prove, sizes
from layoutgemm.layouts.symbols.dims import dim, dims
from layoutgemm.layouts.symbols.facts import Facts
from layoutgemm.layouts.symbols.polynomial import Polynomial, div, gens, val, valuations
from layoutgemm.layouts.symbols.symbolic_layout import generators

M, N, K = dims("M N K")


def pools():
    """Symbols of every kind: free, divisible, bounded, and under the relations ld >= M and T = ceil_div(M, 4)."""
    given = Facts("ld >= M", "BK | K")
    ragged = Facts("T = ceil_div(M, 4)", "N <= 3")
    return [
        list(dims("M N K")),
        [dim("M", multiple_of=4), dim("N", multiple_of=2), dim("K", min=3)],
        [dim("b", max=2), dim("c", max=1) * 2, dim("N")],
        [dim("b", max=3), dim("c", min=2, max=4)],
        [given["M"], given["ld"], given["K"], given["BK"], div(given["K"], given["BK"])],
        [ragged["T"], ragged["M"], ragged["N"], 4 * ragged["T"]],
    ]


POOLS = pools()


def random_layout(rng, symbols):
    n = rng.randint(1, 4)
    shape = [rng.choice([1, 2, 3, 4, *symbols, *symbols]) for _ in range(n)]
    order = rng.sample(range(n), n) if rng.random() < 0.4 else list(range(n))
    stride, w = [0] * n, 1
    for i in order:
        stride[i] = w if rng.random() < 0.9 else rng.choice([0, 1, 2, 5, *symbols])
        w = w * shape[i] * (rng.choice([2, *symbols]) if rng.random() < 0.1 else 1)
    return shape, stride


def same_function(rng, shape, stride, symbols):
    """Other modes for the same function: extents of 1, splits that divide, merges, nesting."""
    S, D = [], []
    for s, d in zip(shape, stride):
        if rng.random() < 0.2:
            S.append(1)
            D.append(rng.choice([0, 7, *symbols]))
        f = rng.choice([2, 4, *symbols])
        q = div(s, f)
        if q is not None and rng.random() < 0.5:
            S += [f, q]
            D += [d, d * f]
        else:
            S.append(s)
            D.append(d)
    i = 0
    while i + 1 < len(S):
        if S[i] * D[i] == D[i + 1] and rng.random() < 0.5:
            S[i] = S[i] * S.pop(i + 1)
            D.pop(i + 1)
        else:
            i += 1
    return nested(rng, S, D)


def nested(rng, S, D):
    if len(S) == 1:
        return Layout(S[0], D[0]) if rng.random() < 0.5 else Layout((S[0],), (D[0],))
    if len(S) > 2 and rng.random() < 0.5:
        k = rng.randint(1, len(S) - 1)
        return Layout((tuple(S[:k]), *S[k:]), (tuple(D[:k]), *D[k:]))
    return Layout(tuple(S), tuple(D))


def mutated(rng, shape, stride, symbols):
    """Nearly the same: one entry changed, two modes swapped, or a symbol for another."""
    S, D = list(shape), list(stride)
    i = rng.randrange(len(S))
    kind = rng.randrange(4)
    if kind == 0:
        D[i] = D[i] + rng.choice([1, -1, 2]) if rng.random() < 0.5 else D[i] * rng.choice([2, *symbols])
    elif kind == 1:
        S[i] = S[i] * rng.choice([1, 2, *symbols])
    elif kind == 2:
        j = rng.randrange(len(S))
        S[i], S[j] = S[j], S[i]
    else:
        S[i] = rng.choice([1, 2, *symbols])
    return nested(rng, S, D)


def offsets(layout):
    total, x = 0, np.arange(layout.size)
    modes = list(zip(leaves(layout.shape), leaves(layout.stride)))
    for s, d in modes:
        total, x = total + x % s * d, x // s
    return (total + np.zeros(layout.size, int)).tolist()


def small_sizes(*layouts, limit):
    gs = generators(*[y for x in layouts for y in (x.shape, x.stride)])
    count = 0
    for env in valuations(gs, 6):
        if all(val(x.size, env) <= 600 for x in layouts):
            yield env
            count += 1
            if count == limit:
                return


def check(a, b, answer, seen):
    seen[type(answer)] = seen.get(type(answer), 0) + 1
    if isinstance(answer, Proof):
        for env in small_sizes(a, b, limit=6):
            assert offsets(at(a, env)) == offsets(at(b, env)), (a, b, env)
    elif isinstance(answer, CounterExample):
        numbers = dict(answer.sizes)
        env = env_of(numbers, a, b)
        x, y = at(a, env), at(b, env)
        i = answer.index
        if max(x.size, y.size) <= 20000:
            p, q = offsets(x), offsets(y)
            assert p[:i] == q[:i] and p[i : i + 1] != q[i : i + 1], (a, b, answer)
        assert answer.left == (x(i) if i < x.size else None) and answer.right == (y(i) if i < y.size else None)
        assert answer.coord == (x if i < x.size else y).coord(i)


def env_of(numbers, *layouts):
    """The generators' values from the reported sizes: the report must determine them."""
    gs = generators(*[y for x in layouts for y in (x.shape, x.stride)])
    for env in valuations(gs, 14):
        if sizes(env) == numbers:
            return env
    raise AssertionError(f"no generators give {numbers}")


@pytest.mark.parametrize("seed", range(4))
def test_every_verdict_on_random_pairs_is_right(seed):
    rng = random.Random(seed)
    seen = {}
    for _ in range(700):
        symbols = rng.choice(POOLS)
        shape, stride = random_layout(rng, symbols)
        a = nested(rng, shape, stride)
        if rng.random() < 0.5:
            b = same_function(rng, shape, stride, symbols)
            answer = prove(a, b)
            assert isinstance(answer, Proof), (a, b, answer)
        else:
            try:
                b = mutated(rng, shape, stride, symbols)
            except LayoutError:
                continue
            answer = prove(a, b)
        check(a, b, answer, seen)
    assert seen[Proof] > 300 and seen[CounterExample] > 150 and not seen.get(Undecided), seen


def test_normal_form():
    assert prove(Layout((M, N)), Layout(M * N)).method == "coalesced normal form"
    answer = prove(Layout((M, N), (N, 1)), Layout((M, N)))
    assert answer.explain() == "not equivalent at M=2, N=2: (1,0) gives 2 and 1"
    assert (answer.coord, answer.left, answer.right, answer.sizes) == ((1, 0), 2, 1, (("M", 2), ("N", 2)))
    assert not answer and prove(Layout((M, N)), Layout(M * N))
    different = prove(Layout(M), Layout(N))
    assert "elements" in different.explain() and different.sizes == (("M", 2), ("N", 1))


def test_facts_given_to_a_proof():
    a, b = Layout((M, N), (N, 1)), Layout((M, N), (M, 1))
    assert prove(a, b, "M == N") and not prove(a, b)
    T = dim("T")
    BK = dim("BK")
    assert prove(Layout((BK, T), (1, BK)), Layout(BK * T), given="T = ceil_div(K, BK)")
    A = Layout((M, 8), (1, M))
    B = A.given("8 | M").logical_divide((8, None))
    assert prove(A, B, "8 | M").conditions == ("8 | M",)


def test_counterexamples_report_eliminated_symbols():
    """With M == 2*N given, only N is left inside; the report must still say M."""
    answer = prove(Layout((M, N), (1, M + 1)), Layout((M, N)), given="M == 2*N")
    assert isinstance(answer, CounterExample) and set(dict(answer.sizes)) == {"M", "N"}
    assert dict(answer.sizes)["M"] == 2 * dict(answer.sizes)["N"]
    given = Facts("T = ceil_div(M, 4)")
    m, t = given["M"], given["T"]
    answer = prove(Layout((4, t), (1, 4)), Layout(m))
    values = dict(answer.sizes)
    assert -(-values["M"] // 4) == values["T"] and values["M"] != 4 * values["T"]


def test_bounded_symbols_are_enumerated():
    b, c = dim("b", max=2), dim("c", min=1, max=1)
    assert c == 1
    wrong = prove(Layout((b, 2), (7, 1)), Layout(2 * b))
    assert isinstance(wrong, CounterExample) and wrong.sizes == (("b", 2),)
    x = dim("x", min=1, max=2)
    # 3*x - 2 is x*x at 1 and 2, and nowhere else: no polynomial identity.
    assert prove(Layout((4, N), (1, 3 * x - 2)), Layout((4, N), (1, x * x))).method.endswith(
        "each value of the bounded symbols"
    )
    y = dim("y", min=1, max=3)
    refuted = prove(Layout((4, N), (1, 3 * y - 2)), Layout((4, N), (1, y * y)))
    assert isinstance(refuted, CounterExample) and dict(refuted.sizes)["y"] == 3


def test_injective_and_bijective():
    ld = dim("ld")
    A = Layout((M, N), (1, ld))
    assert injective(A, "ld >= M").conditions == ("ld >= M",)
    wrong = injective(A)
    i, j = wrong.coord
    x = A.at(**dict(wrong.sizes))
    assert x(i) == x(j) and i != j
    assert injective(Layout((2, 3, M), (3, 2, 8))).ok and not injective(Layout((2, 3, M), (3, 2, 7))).ok
    assert injective(Layout((2, 3, M), (1, 4 * M, 2)))
    assert injective(Layout.identity((M, N))) and not injective(Layout((M, N), (0, 1)))
    assert bijective(Layout((M, N), (N, 1))) and not bijective(Layout((M, N), (N, 2)))
    assert bijective(Layout((M, (4, N)), (4 * N, (N, 1)))).ok
    assert Layout((M, N)).is_bijective() and Layout((M, N), (1, 2 * M)).is_injective()
    undecided = injective(Layout((M, N), (N + 1, M + 1)))
    assert not undecided


@pytest.mark.parametrize("statement", [injective, bijective])
def test_statements_about_one_layout_are_right(statement):
    rng = random.Random(5)
    seen = {}
    for _ in range(500):
        symbols = rng.choice(POOLS)
        try:
            a = nested(rng, *random_layout(rng, symbols))
        except LayoutError:
            continue
        answer = statement(a)
        seen[type(answer)] = seen.get(type(answer), 0) + 1
        if isinstance(answer, Proof):
            for env in small_sizes(a, limit=8):
                x = offsets(at(a, env))
                assert len(set(x)) == len(x), (a, env)
                assert statement is injective or sorted(x) == list(range(len(x)))
        elif isinstance(answer, CounterExample):
            env = env_of(dict(answer.sizes), a) if generators(a.shape, a.stride) else {}
            x = offsets(at(a, env))
            if statement is injective:
                i, j = answer.coord
                assert i < j and x[i] == x[j] and len(set(x[:j])) == j
            else:
                assert sorted(x) != list(range(len(x)))
    assert seen[Proof] > 60 and seen[CounterExample] > 60, seen


def test_covers():
    assert covers(Layout((M, N), (N, 1)), (M, N)) and covers(Layout((M, N, 3), (N, 1, 0)), M * N)
    missing = covers(Layout((M, N), (N, 2)), M * N)
    x = Layout((M, N), (N, 2)).at(**dict(missing.sizes))
    values = set(offsets(x))
    assert missing.coord not in values and set(range(missing.coord)) <= values
    T, BK = dims("T BK")
    tiles = Layout((BK, T), (1, BK))
    assert covers(tiles, K, given="T = ceil_div(K, BK)")
    assert isinstance(covers(tiles, K + BK, given="T = ceil_div(K, BK)"), CounterExample)


def test_covers_is_exact_to_the_last_offset():
    assert covers(Layout(M), M) and not covers(Layout(M), M + 1)
    assert covers(Layout((M, 2), (1, M)), 2 * M) and not covers(Layout((M, 2), (1, M)), 2 * M + 1)


def test_the_last_value_of_a_bounded_symbol_is_looked_at():
    """3000 offsets are not covered by 2999, and no other value of x shows it."""
    x = dim("x", max=3000)
    answer = covers(Layout(2999), x)
    assert isinstance(answer, CounterExample) and answer.sizes == (("x", 3000),) and answer.coord == 2999
    assert covers(Layout(3000), x)


def test_sizes_are_those_of_the_users_symbols():
    A = dim("A", multiple_of=64)
    assert prove(Layout((A, N), (N, 1)), Layout((A, N))).sizes == (("A", 64), ("N", 2))
    given = Facts("ld >= A")
    a, ld = given(A, dim("ld"))
    answer = prove(Layout((a, N), (1, ld)), Layout((a, N)))
    assert answer.sizes == (("A", 64), ("N", 2), ("ld", 65)) and (answer.left, answer.right) == (65, 64)


def test_a_size_too_large_to_look_at_settles_nothing():
    """1 is missing at every x, in layouts of more elements than are looked at."""
    x = dim("x", min=1 << 20, max=(1 << 20) + 2)
    answer = covers(Layout((x, 2), (2, 3)), 2 * x)
    assert isinstance(answer, Undecided) and "x=1048576" in answer.why


def test_integers_are_looked_at_whole():
    assert covers(Layout((3, 2), (1, 2)), 4) and not covers(Layout((3, 2), (1, 2)), 6)
    assert disjoint(Layout(2, 6), Layout(2, 8), 1) and not disjoint(Layout(2, 6), Layout(2, 8), 6)


def test_a_size_that_passes_a_constant_refutes():
    """Beyond the small sizes one size grows; the counterexample is at the smallest size that has one."""
    M, N, Q = dim("M"), dim("N"), dim("Q", multiple_of=64)
    for layout, found in (
        (Layout((M, N), (1, 1000)), {"M": 1001, "N": 2}),
        (Layout((N, M), (100000, 1)), {"M": 100001, "N": 2}),
        (Layout((Q, N), (1, 10000)), {"N": 2, "Q": 10048}),
        (Layout((M, 2, N), (1, 300, 700)), {"M": 301, "N": 1}),
    ):
        answer = injective(layout)
        assert isinstance(answer, CounterExample) and dict(answer.sizes) == found, answer
        assert layout.at(**found).is_injective().coord == answer.coord
        for name in found:  # one step below, it is injective
            step = 64 if name == "Q" else 1
            if found[name] > step:
                assert layout.at(**{**found, name: found[name] - step}).is_injective().ok
    answer = disjoint(Layout(M, 2), Layout(N, 2), 1000)
    assert (dict(answer.sizes), answer.coord) == ({"M": 501, "N": 1}, (500, 0))
    assert not isinstance(injective(Layout((dim("B", max=1000), N), (1, 1000))), CounterExample)


def test_a_residue_beyond_one_period_keeps_layouts_apart():
    M, N = dims("M N")
    assert disjoint(Layout(M, 2), Layout(N, 2), 1001).steps == ("modulo 2 the difference lies in 1..1",)
    assert disjoint(Layout((M, 3), (8, 1)), Layout((N, 3), (8, 1)), -45).ok
    assert isinstance(disjoint(Layout((M, 3), (8, 1)), Layout((N, 3), (8, 1)), -42), CounterExample)


def test_disjoint():
    assert disjoint(Layout((M, N), (1, 2 * M)), Layout((M, N), (1, 2 * M)), M)
    assert disjoint(Layout(M), Layout(N), K, "K >= M")
    meet = disjoint(Layout(M), Layout(N), K)
    i, j = meet.coord
    assert i == dict(meet.sizes)["K"] + j
    rng = random.Random(6)
    seen = {}
    for _ in range(300):
        symbols = rng.choice(POOLS)
        a, b = (nested(rng, *random_layout(rng, symbols)) for _ in range(2))
        shift = rng.choice([0, 1, *symbols]) * rng.choice([1, 2, *symbols])
        answer = disjoint(a, b, shift)
        seen[type(answer)] = seen.get(type(answer), 0) + 1
        if isinstance(answer, Proof):
            for env in valuations(
                gens(*[x for y in (a.shape, a.stride, b.shape, b.stride, shift) for x in leaves(y)]), 4
            ):
                if max(val(a.size, env), val(b.size, env)) <= 400:
                    x, y = set(offsets(at(a, env))), {v + val(shift, env) for v in offsets(at(b, env))}
                    assert not x & y, (a, b, shift, env)
        elif isinstance(answer, CounterExample):
            i, j = answer.coord
            assert answer.left == answer.right
    assert seen[CounterExample] > 50 and seen.get(Proof, 0) > 10, seen


def test_what_is_not_decided_says_so():
    # The facts allow only sizes too many to take one by one, and no argument holds at all of them.
    big = dim("big", min=1, max=100000)
    answer = injective(Layout((2, 2), (1, big * big + 1)))
    assert answer.ok
    undecided = bijective(Layout((M, N), (1, M + (M - 1) * (N - 1) * 0)))
    assert undecided.ok
    x = dim("x", min=1000)
    wide = injective(Layout((x, x + 1), (x + 1, x)))  # the first clash lies just outside: no method here sees it
    assert isinstance(wide, Undecided) and "needs" in wide.explain() and not wide


def test_first_differing_coordinate_has_a_closed_form():
    """The sizes are far too large for a table."""
    big = dim("H", min=1 << 40)
    answer = prove(Layout((big, N), (1, 2 * big)), Layout((big, N), (1, 2 * big + 1)))
    assert answer.index == 1 << 40 and answer.sizes == (("H", 1 << 40), ("N", 2))


def test_clashing_symbols_and_wrong_kinds_raise():
    other = dim("M", multiple_of=8)
    with pytest.raises(LayoutError, match="two symbols are called M"):
        prove(Layout((M, 4)), Layout((other, 4)))
    with pytest.raises(LayoutError):
        prove(Layout.identity((M, N)), Layout((M, N)))
    assert isinstance(M * N, Polynomial)


@pytest.mark.parametrize("facts", [{}, {"min": 2}, {"multiple_of": 4}])
def test_a_broadcast_mode_beside_coordinates_is_no_injection(facts: dict[str, int]) -> None:
    found = Layout((4, dim("n", **facts)), (E(0), 0)).is_injective()
    assert isinstance(found, CounterExample) and found.index == 4
    assert Layout((4, 1), (E(0), 0)).is_injective() and Layout((dim("n", **facts), 4), (E(0), E(1))).is_injective()


def test_disjoint_by_what_all_strides_have_in_common():
    """6i and 3 + 4j differ modulo 2, at every size."""
    assert disjoint(Layout(M, 6), Layout(N, 4), 3).steps == ("modulo 2 the difference lies in 1..1",)
    assert not disjoint(Layout(M, 6), Layout(N, 4), 2)


def test_undecided_states_the_question():
    for answer, question in (
        (covers(Layout((3, M), (1, 2)), 2 * M + 1), "(3,M):(1,2) covering 0..2*M: "),
        (disjoint(Layout(M, 6), Layout(N, 10), 15 * 10**8 + 2), "M:6 and 1500000002 + N:10 sharing no value: "),
        (injective(Layout((M + 1, M), (M, M + 1))), "(M+1,M):(M,M+1) being injective: "),
    ):
        assert isinstance(answer, Undecided) and answer.why.startswith(question)
