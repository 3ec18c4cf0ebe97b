"""The theorems of `theorems.py`: proven by the method that is named, false where they are changed, true where tried."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from layoutgemm import CounterExample, Layout, Proof
from layoutgemm.layouts import make_layout
from layoutgemm.layouts.proofs.index_formulas import prove_formulas
from layoutgemm.layouts.proofs.prove import bijective, covers, prove
from layoutgemm.layouts.symbols.dims import dim, dims
from layoutgemm.layouts.symbols.facts import Facts
from tests.layouts.proofs import theorems as th


@pytest.mark.parametrize("name", th.THEOREMS)
def test_theorem(name: str) -> None:
    parts = list(th.THEOREMS[name].parts())
    assert len(parts) >= 4
    for part in parts:
        assert isinstance(part.answer, Proof), (part.text, part.answer)
        assert part.answer.method == part.method, (part.text, part.answer.method)
        assert part.answer.steps, part.text


@pytest.mark.parametrize("name", th.THEOREMS)
def test_what_looks_alike_and_is_false_is_not_proven(name: str) -> None:
    parts = list(th.THEOREMS[name].mutants())
    assert len(parts) >= 3
    for part in parts:
        assert isinstance(part.answer, CounterExample), (part.text, part.answer)
        sizes = dict(part.answer.sizes)
        if "down" not in part.text:  # a quotient of symbols stays an expression
            assert all(map(str.isidentifier, sizes)), (part.text, sizes)
            assert not {"K", "BK", "T"} <= set(sizes) or sizes["T"] == -(-sizes["K"] // sizes["BK"])


# The facts that a proof needs: listed in it, and without them a counterexample ----------------------------------------


def test_facts_are_listed() -> None:
    conditions = {p.text: p.answer.conditions for p in th.k_split()}
    assert conditions["every k in some tile"] == ("BK*T >= K",)
    assert conditions["the last tile is not empty"] == ("BK+K > BK*T",)
    (by_modes,) = [p for p in th.divide() if p.text.endswith("by modes")]
    assert by_modes.answer.conditions == ("BM | M", "BN | N")


def test_the_hypothesis_of_associativity_is_needed() -> None:
    """C runs past the end of B: (A o B) goes on as B's last mode does, and A turns to its next mode."""
    c, N, ld = dims("c N ld")
    A, B, C = Layout((2 * c, N), (1, ld)), Layout(c), Layout(4 * c)
    assert str(A.compose(B).compose(C)) == "4*c:1" and str(A.compose(B.compose(C))) == "(2*c,2):(1,ld)"
    answer = prove(A.compose(B).compose(C), A.compose(B.compose(C)))
    assert answer.explain() == "not equivalent at c=1, ld=1: 2 gives 2 and 1"
    # With a pitch that makes A one run, both sides are the same again.
    assert prove(A.compose(B).compose(C), A.compose(B.compose(C)), "ld == 2*c")


def test_the_hypothesis_of_the_divide_is_needed() -> None:
    """A last tile that hangs over: more elements than before. Without them, the same."""
    T = dim("T")
    tiles, M = Layout((64, T), (1, 64)), dim("M")
    answer = prove(tiles, Layout(M), "T = ceil_div(M, 64)")
    assert isinstance(answer, CounterExample) and answer.left == dict(answer.sizes)["M"] and answer.right is None
    assert prove(tiles, Layout(M), ("T = ceil_div(M, 64)", "64 | M"))


def test_covering_k_needs_the_quotient_rounded_up() -> None:
    BK, T, K = dims("BK T K")
    tiles = Layout((BK, T), (1, BK))
    assert covers(tiles, K, given="T = ceil_div(K, BK)")
    missing = covers(tiles, K, given=("K >= BK", "T = K // BK"))
    sizes = dict(missing.sizes)
    assert sizes["BK"] * sizes["T"] == missing.coord < sizes["K"]
    assert covers(tiles, K, given=("BK | K", "T = K // BK"))


# The statements say what they mean: their formulas and hypotheses at small sizes, by Python's own arithmetic ----------


def test_every_grid_is_one_of_the_cases() -> None:
    for rows, G in itertools.product(range(1, 25), range(1, 25)):
        q, r = divmod(rows, G)
        cases = [r > 0 and q > 0, r == 0, q == 0]
        assert sum(cases) == 1
        (case,) = [name for name, true in zip(th.GRIDS, cases) if true]
        values = {"rows": rows, "G": G, "q": max(q, 1), "r": max(r, 1)}
        for fact in th.GRIDS[case].statements:
            assert eval(fact, {}, values), (fact, values)


@pytest.mark.parametrize(
    "rows, columns, G", [(1, 1, 1), (5, 3, 2), (6, 4, 3), (2, 5, 4), (7, 1, 8), (8, 3, 1), (9, 7, 5)]
)
def test_grouped_order_is_a_bijection_at_sizes(rows: int, columns: int, G: int) -> None:
    tiles = [th.grouped(pid, rows, columns, G) for pid in range(rows * columns)]
    assert sorted(tiles) == list(itertools.product(range(rows), range(columns)))


def test_the_false_orders_are_refuted_at_sizes() -> None:
    """Their symbolic statements are beyond the method; with numbers they are not."""
    G, n, q, r = 3, 2, 1, 2
    rows, start = G * q + r, G * n * q
    for formula in (lambda pid: pid // (G * n) * G + pid % (G * n) % G, lambda pid: th.grouped(pid, rows, n + 1, G)[0]):
        answer = prove_formulas(
            lambda pid, f=formula: f(pid + start), lambda pid: th.grouped(pid + start, rows, n, G)[0], pid=r * n
        )
        assert isinstance(answer, CounterExample)


def test_box_partition_at_sizes() -> None:
    for M, K, BM, BK in itertools.product(range(1, 8), range(1, 6), range(1, 5), range(1, 4)):
        TM, TK = -(-M // BM), -(-K // BK)
        places = itertools.product(range(BM), range(TM), range(BK), range(TK))
        met = [(x + BM * tx, y + BK * ty) for x, tx, y, ty in places]
        inside = [(m, k) for m, k in met if m < M and k < K]
        assert sorted(inside) == list(itertools.product(range(M), range(K))), (M, K, BM, BK)
        assert len({(m // BM, k // BK) for m, k in inside}) == TM * TK


def test_boxes_fill_the_padded_tensor() -> None:
    given = Facts("TM = ceil_div(M, BM)", "TK = ceil_div(K, BK)")
    BM, BK, TM, TK = (given[x] for x in ("BM", "BK", "TM", "TK"))
    strides = ((1, BM * TM), (BM, BM * TM * BK))
    assert bijective(Layout(((BM, BK), (TM, TK)), strides)).method == "injective onto its span"
    assert isinstance(bijective(Layout(((BM, BK), (TM, TK + 1)), ((1, BM * TM), (BM, BM * TM)))), CounterExample)


def test_128_byte_swizzle_at_sizes() -> None:
    for m, k in itertools.product(range(40), range(64)):
        x = 128 * m + 2 * k
        assert x ^ (x >> 3 & 0x70) == 2 * th.by_hand(m, k, 64)


# Random layouts under the same hypotheses -----------------------------------------------------------------------------


def random_bijections(seed: int, count: int) -> Any:
    """Layouts of all offsets 0..size-1, modes in any order, extents numbers and symbols."""
    rng = random.Random(seed)
    symbols = dims("a b c d")
    for _ in range(count):
        shape = [rng.choice([2, 3, 4, *symbols]) for _ in range(rng.randint(2, 4))]
        order = rng.sample(range(len(shape)), len(shape))
        stride: list[Any] = [0] * len(shape)
        end: Any = 1
        for i in order:
            stride[i], end = end, end * shape[i]
        yield Layout(tuple(shape), tuple(stride))


def test_inverses_of_random_layouts() -> None:
    for L in random_bijections(1, 150):
        R = L.right_inverse()
        assert R.size == L.size
        assert isinstance(prove(L.compose(R), Layout(L.size)), Proof), L
        assert isinstance(prove(R.compose(L), Layout(L.size)), Proof), L
        assert prove(L, Layout(L.size)).ok == (L.coalesce() == Layout(L.size))


def test_divides_of_random_layouts() -> None:
    """Tiles that are any of the modes of a bijection: their complement is the rest."""
    for k, L in enumerate(random_bijections(2, 150)):
        whole = L.right_inverse()
        T = whole[k % whole.rank] if isinstance(whole.shape, tuple) else whole
        A = Layout(L.size, dim("ld"))
        rest = T.complement(A.size)
        order = make_layout(T, rest).right_inverse()
        assert T.size * rest.size == A.size == order.size
        tiles = A.logical_divide(T)
        assert isinstance(prove(tiles.compose(order), A), Proof), (T, A)
