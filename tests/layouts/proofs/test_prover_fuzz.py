"""The provers against enumeration on random statements, the same every time; `prover_fuzz.py` runs as many as asked."""

from __future__ import annotations

import random

import pytest

from layoutgemm import CounterExample, Layout, Proof
from layoutgemm.layouts import Undecided
from layoutgemm.layouts.proofs.prove import prove
from layoutgemm.layouts.symbols.dims import dims
from tests.layouts.proofs import prover_fuzz as fuzz

# family: statements, and the least share of those true by construction that must be proven
COUNTS = {
    "integers": (400, 1.0),
    "symbols": (400, 1.0),
    "bounded": (300, 1.0),
    "relations": (400, 1.0),
    "swizzled": (150, 0.9),
    "formulas": (300, 0.4),
    "injective": (150, 0.95),
    "bijective": (200, 0.95),
    "covers": (100, 0.95),
    "disjoint": (150, 0.95),
}


def test_every_family_is_tried() -> None:
    assert set(COUNTS) == set(fuzz.FAMILIES)


@pytest.mark.parametrize("family", COUNTS)
def test_no_answer_is_wrong(family: str) -> None:
    count, share = COUNTS[family]
    counts, wrong = fuzz.run(family, count, seed=1)
    assert not wrong, "\n".join(wrong[:5])
    true = sum(n for (_, t), n in counts.items() if t)
    assert 0.35 * count < true < 0.65 * count, counts
    assert counts["Proof", True] >= share * true, counts
    assert counts["CounterExample", False] >= 0.05 * count, counts
    assert counts["CounterExample", True] == 0


# The check sees wrong answers -----------------------------------------------------------------------------------------


def statement(family: str, true: bool) -> fuzz.Statement:
    make, pools = fuzz.FAMILIES[family]
    rng = random.Random(7)
    while True:
        s = make(rng, fuzz.POOLS[rng.choice(pools)])
        if s.true is true and isinstance(s.ask(), Proof if true else CounterExample):
            return s


@pytest.mark.parametrize("family", COUNTS)
def test_wrong_answers_are_seen(family: str) -> None:
    rng = random.Random(0)
    false = statement(family, False)
    refutation = false.ask()
    assert fuzz.judge(rng, false, refutation) is None
    # Proven although false: seen as soon as one of the sizes that are looked at shows it.
    shows = [env for env in false.pool.envs if false.size(env) <= 4000 and not false.holds(env)]
    if any(env in false.pool.envs[:6] for env in shows):
        assert "proven, and false" in str(fuzz.judge(rng, false, Proof("none")))
    true = statement(family, True)
    invented = CounterExample((0, 0) if family in ("injective", "disjoint") else 0, 0, 1, 0, sizes=refutation.sizes)
    if set(dict(invented.sizes)) <= set(true.pool.names):
        assert fuzz.judge(rng, true, invented) is not None
    assert fuzz.judge(rng, true, Undecided("")) == "no reason"


def test_a_counterexample_that_is_not_the_first_is_seen() -> None:
    M, N = dims("M N")
    a, b = fuzz.Text(("M", "N"), ("1", "M")), fuzz.Text(("M", "N"), ("1", "2*M"))
    s = fuzz._pair(random.Random(0), fuzz.POOLS["free"], False, a, b)
    right = prove(Layout((M, N)), Layout((M, N), (1, 2 * M)))
    assert isinstance(right, CounterExample)
    sizes = (("M", 2), ("N", 3), ("K", 1))
    first = CounterExample((0, 1), 2, 4, 2, sizes=sizes)
    assert s.refuted(dict(sizes), first)
    assert not s.refuted(dict(sizes), CounterExample((1, 1), 3, 5, 3, sizes=sizes))  # a difference, not the first
    assert not s.refuted(dict(sizes), CounterExample((0, 1), 2, 5, 2, sizes=sizes))  # another value
    assert not s.refuted(dict(sizes), CounterExample((1, 1), 2, 4, 2, sizes=sizes))  # another coordinate


def test_facts_are_enumerated_by_their_own_arithmetic() -> None:
    ragged = fuzz.POOLS["tiles"]
    assert ragged.holds({"K": 7, "BK": 3, "T": 3}) and not ragged.holds({"K": 7, "BK": 3, "T": 2})
    pitch = fuzz.POOLS["64"]
    assert pitch.holds({"M": 65, "T": 2, "ld": 65}) and not pitch.holds({"M": 65, "T": 2, "ld": 64})
