"""Facts: what they allow, against enumeration of the values that satisfy them; refusals and contradictions."""

import itertools
import pickle
import random
import re
import subprocess
import sys

import pytest

from layoutgemm.errors import LayoutError
from layoutgemm.layouts.symbols.dims import dim, dims
from layoutgemm.layouts.symbols.facts import Facts
from layoutgemm.layouts.symbols.generators import GENERATORS, FactError
from layoutgemm.layouts.symbols.polynomial import MissingFact, div, ge0, gens, val

M, N, K, BK, ld = dims("M N K BK ld")
NAMES = ("M", "N", "K")
TOP = 12  # values 1..TOP of each symbol are enumerated


def ceil_div(a, b):
    return -(-a // b)


def satisfying(facts, names=NAMES, low=1):
    """All values of the symbols up to TOP for which the texts hold. Python's own arithmetic decides."""
    tests = []
    for fact in facts:
        text = fact.replace(" = ", " == ")
        if " | " in text:
            d, x = text.split(" | ")
            text = f"({x}) % ({d}) == 0"
        tests.append(compile(text, fact, "eval"))
    out = set()
    for values in itertools.product(range(low, TOP + 1), repeat=len(names)):
        env = dict(zip(names, values), ceil_div=ceil_div)
        if all(eval(t, {}, env) for t in tests):
            out.add(values)
    return out


def reached(given, names=NAMES):
    """All values up to TOP that the generators within their bounds give; and whether any value is reached twice."""
    entries = [given[n] for n in names]
    gs = gens(*entries)
    ranges = []
    for g in gs:
        G = GENERATORS[g]
        ranges.append(range(G.low, min(TOP, TOP if G.high is None else G.high) + 1))
    seen = {}
    for values in itertools.product(*ranges):
        env = dict(zip(gs, values))
        point = tuple(val(p, env) for p in entries)
        seen[point] = seen.get(point, 0) + 1
    return seen


def check(facts, names=NAMES):
    """The generators reach exactly the values that the facts allow, each once."""
    given = Facts(*facts)
    allowed, seen = satisfying(facts, names), reached(given, names)
    inside = {p for p in seen if all(1 <= x <= TOP for x in p)}
    assert inside == allowed, (facts, sorted(inside ^ allowed)[:3])
    assert all(seen[p] == 1 for p in inside), facts
    for point in seen:  # beyond TOP as well, no value breaks a fact
        assert all(x >= 1 for x in point), (facts, point)


SOLVABLE = [
    ["4 | M"],
    ["4 | M", "6 | M"],
    ["4 | M + 2"],
    ["3 | M - 1", "2 | M"],
    ["M % 4 == 3"],
    ["M >= 5"],
    ["2 <= M", "M <= 9", "3 | M"],
    ["3 | M", "M <= 10", "M > 3"],
    ["M == N"],
    ["M == N", "N <= 7", "M >= 3"],
    ["M == 2*N"],
    ["M == N + 3"],
    ["4 | M", "6 | N", "M == N"],
    ["2*M == 3*N"],
    ["N >= M"],
    ["N > M"],
    ["M <= 6", "N >= M"],
    ["N >= M", "K >= N"],
    ["4 | N", "N >= M"],
    ["4 | N", "2 | M", "N >= M"],
    ["4 | N", "2 | N", "N >= 2*M"],
    ["N >= 2*M + 1"],
    ["K == M + N"],
    ["K == M * N"],
    ["M | K"],
    ["M | K", "3 | M"],
    ["2*M | K"],
    ["N = ceil_div(M, 4)"],
    ["N = ceil_div(M, 4)", "K >= N"],
    ["N = ceil_div(M, 4)", "4 | M"],
    ["N = ceil_div(M, 4)", "M >= 7"],
    ["N = ceil_div(M, 4)", "N <= 2"],
    ["2 | N", "N = ceil_div(M, 4)"],
    ["N = ceil_div(M, K)"],
    ["M >= 4", "N = M // 4"],
    ["M >= K", "N = M // K"],
    ["M <= 12", "N = ceil_div(M, 4)"],
    ["N = ceil_div(M + 3, 4)"],
    ["M == 8"],
    ["M + N == 2*K"],
    ["M == K, N == K"],
]


@pytest.mark.parametrize("facts", SOLVABLE, ids=" ; ".join)
def test_the_generators_reach_exactly_what_the_facts_allow(facts):
    try:
        check([f for fact in facts for f in fact.split(", ")] if "ceil" not in str(facts) else facts)
    except FactError as error:
        # Some pairs leave no box in this order of facts; they must say so, and the list says which.
        assert facts in REFUSED_PAIRS, error


# Two bounds that shape one symbol at once: sound to refuse, listed so that a change is seen.
REFUSED_PAIRS = [
    ["N = ceil_div(M, 4)", "M >= 7"],
    ["N = ceil_div(M + 3, 4)"],
    ["M + N == 2*K"],
]


def random_fact(rng):
    a, b, c = rng.sample(NAMES, 3)
    k = rng.randint(2, 6)
    return rng.choice(
        [
            f"{k} | {a}",
            f"{k} | {a}",
            f"{k} | {a} + {rng.randint(-5, 5)}",
            f"{a} >= {rng.randint(1, 7)}",
            f"{a} <= {rng.randint(2, 13)}",
            f"{a} >= {b}",
            f"{a} > {b}",
            f"{a} == {b}",
            f"{a} == {rng.randint(1, 3)}*{b} + {rng.randint(-2, 2)}",
            f"{a} | {b}",
            f"{a} >= {b} + {c}",
            f"{a} == {b} + {c}",
            f"{a} == {b} * {c}",
            f"{a} = ceil_div({b}, {k})",
            f"{a} = ceil_div({b}, {c})",
            f"{a} = {b} // {k}",
            f"{a} = {b} // {c}",
        ]
    )


def test_random_facts_are_exact_or_refused():
    """Every accepted set reaches exactly its values; a set reported contradictory has none."""
    rng = random.Random(11)
    accepted = refused = contradictory = 0
    for _ in range(400):
        facts = [random_fact(rng) for _ in range(rng.randint(1, 3))]
        try:
            Facts(*facts)
        except FactError as error:
            refused += 1
            if "make it false" in str(error) or "never" in str(error) or "leave no value" in str(error):
                contradictory += 1
                assert not satisfying(facts), (facts, error)
            continue
        accepted += 1
        check(facts)
    assert accepted > 140 and refused > 60 and contradictory > 10, (accepted, refused, contradictory)


@pytest.mark.parametrize(
    "facts",
    [
        ["M >= 5", "M <= 4"],
        ["M == 3", "2 | M"],
        ["M % 8 == 3", "2 | M"],
        ["8 | M", "M == 12"],
        ["M < N", "N < M"],
        ["M == N + 1", "N == M + 1"],
        ["64 | M", "M <= 63"],
        ["M >= N", "N >= M + 1"],
        ["T = ceil_div(M, 8)", "M <= 8", "T >= 2"],
        ["0 | M"],
        ["M <= 0"],
    ],
    ids=" ; ".join,
)
def test_contradictions_raise(facts):
    with pytest.raises(FactError):
        Facts(*facts)


@pytest.mark.parametrize(
    "fact", ["64 | M*N", "M*N < 2**31", "M | N*K", "M | 8", "M*M == N*K", "64*M >= N*K", "M*N >= M*K", "M*N == 5*K"]
)
def test_what_is_not_solvable_for_one_symbol_is_refused_by_name(fact):
    with pytest.raises(FactError, match=r"cannot take `.*` as a fact"):
        Facts(fact)


@pytest.mark.parametrize("fact", ["M != 3", "M +", "M", "M in N", "f(M) >= 3", "M >= 1.5", "M >= 'a'", 3, None])
def test_what_is_no_fact_is_refused(fact):
    with pytest.raises(LayoutError):
        Facts(fact)


def test_a_refused_fact_leaves_the_others_untouched():
    given = Facts("64 | M")
    with pytest.raises(FactError, match="`M <= 63` as a fact: the other facts make it false"):
        given.given("M <= 63")
    with pytest.raises(FactError, match=r"-M\*N\+7 >= 0"):
        given.given("ld >= M", "M*N <= 7")
    assert given(M) // 64 == dim("M", multiple_of=64) // 64 and given.statements == ("64 | M",)


def test_facts_extend_and_equal_facts_give_equal_symbols():
    a = Facts("64 | M").given("48 | M")
    b = Facts("192 | M")
    assert a(M) == b(M) == dim("M", multiple_of=192)
    assert a == b and hash(a) == hash(b)
    assert (Facts("8 | M") & "8 | N" & (ld >= M)).statements == ("8 | M", "8 | N", "ld >= M")


def test_relations_are_facts():
    given = Facts(ld >= M, N <= 8)
    assert ge0(given(ld) - given(M)) and ge0(8 - given(N))
    with pytest.raises(FactError, match="`M < 1` as a fact: the other facts make it false"):
        Facts(M >= 1, M < 1)


def test_ragged_tiles_for_every_tile_size():
    """T = ceil_div(K, BK) as (T-1)*BK < K <= T*BK, both sides of it decided."""
    given = Facts("T = ceil_div(K, BK)")
    k, bk, t = given(K), given(BK), given["T"]
    assert ge0(bk * t - k) and ge0(k - bk * (t - 1) - 1)
    assert not ge0(k - bk * t)
    assert str(k) == "K" and str(bk) == "BK" and str(bk * t - k) == "BK*T-K"


def test_results_read_in_the_users_symbols():
    given = Facts("64 | M", "ld >= M", "BK | K")
    assert [str(given(x)) for x in (M, ld, ld - M, K, M * N)] == ["M", "ld", "ld-M", "K", "M*N"]
    assert str(given(K) // given(BK)) == "K//BK" and str(given(M) // 16) == "M//16"
    given = Facts("T = ceil_div(M, 64)")
    assert str(given(M)) == "M" and str(64 * given["T"] - given(M)) == "64*T-M"


def test_values_of_eliminated_symbols():
    given = Facts("M == 2*N", "ld >= M")
    env = dict.fromkeys(gens(*given(N, ld, M)), 3)
    assert given.on(N, ld, M).values(env) == {"M": 6, "N": 3, "ld": 9}


def test_facts_apply_to_tuples_and_ints():
    given = Facts("M == N")
    assert given((M, (N, 3))) in ((N, (N, 3)), (M, (M, 3))) and given(7) == 7
    import numpy as np

    assert given(np.int64(4)) == 4
    with pytest.raises(LayoutError, match=r"not 1\.5 \(float\)"):
        given(1.5)


def test_facts_are_about_the_symbols_they_meet():
    other = dim("M", multiple_of=8)
    given = Facts("64 | M", "ld >= M")
    assert given(other) == given(M) == dim("M", multiple_of=64)
    assert given(ld, other)[0] - given(other) == given(ld, M)[0] - given(M)
    bounded = dim("M", max=100)
    assert given(bounded) // 64 == 1
    with pytest.raises(FactError, match="the facts about M leave no value"):
        given(dim("M", max=63))


def test_a_bound_with_a_symbol_is_stated_as_a_relation():
    for bound, relation in (({"min": 2 * M}, "ld >= 2*M"), ({"max": M}, "ld <= M")):
        with pytest.raises(LayoutError, match=f"must be an integer; state a relation by given='{re.escape(relation)}'"):
            dim("ld", **bound)


def test_a_name_alone_is_a_symbol_of_at_least_one():
    dim("Q", multiple_of=8, max=64)  # another symbol, which facts about the name do not depend on
    assert div(Facts("16 | Q")["Q"], 16) is not None and ge0(Facts("R >= 5")["R"] - 5)
    assert Facts("Q >= 100")["Q"] >= 100
    with pytest.raises(FactError, match="Q-100 >= 0"):
        Facts("Q >= 100")(dim("Q", max=64))


def test_pickle_survives_another_process():
    given = Facts("64 | M", "T = ceil_div(K, BK)", "ld >= M")
    assert pickle.loads(pickle.dumps(given)) == given
    code = (
        "import pickle, sys\n"
        "from layoutgemm.layouts.symbols.dims import dims\n"
        "dims('z y x w v')\n"
        f"given = pickle.loads(bytes.fromhex('{pickle.dumps(given).hex()}'))\n"
        "from layoutgemm.layouts.symbols.facts import Facts\n"
        "assert given(dims('M')[0]) % 64 == 0 and given.statements[2] == 'ld >= M'\n"
        "assert given == Facts('64 | M', 'T = ceil_div(K, BK)', 'ld >= M') and 'sympy' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_facts_are_frozen():
    with pytest.raises(AttributeError, match="Facts are frozen"):
        Facts("8 | M").statements = ()


def test_a_missing_fact_says_all_ways_out():
    with pytest.raises(MissingFact) as caught:
        (M * 16) // 64
    assert caught.value.needs == ("4 | M", "M <= 3")
