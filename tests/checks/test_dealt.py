"""Clusters dealt out to places: each number is taken once, and neighbours take neighbouring tiles."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layoutgemm.checks import Dealt
from layoutgemm.errors import PlanError

ROUNDS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=4).map(tuple)


@given(ROUNDS, st.integers(1, 300))
def test_each_number_is_taken_once(rounds: tuple[tuple[int, int], ...], count: int) -> None:
    assert sorted(Dealt(rounds).table(count)) == list(range(count))


@given(ROUNDS)
def test_one_place_takes_consecutive_numbers(rounds: tuple[tuple[int, int], ...]) -> None:
    """Of full rounds: the clusters that come to a place in turn have numbers that follow one another."""
    table, start = Dealt(rounds).table(sum(p * t for p, t in rounds) + 3), 0
    for places, times in rounds:
        for place in range(places):
            taken = [table[start + place + time * places] for time in range(times)]
            assert taken == list(range(taken[0], taken[0] + times))
        start += places * times
    assert table[start:] == [start, start + 1, start + 2]  # later ones stay as they are


def test_the_check_sees_a_number_taken_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """And names the first count that shows it."""
    assert Dealt(((4, 1), (8, 4), (7, 4))).check().ok
    right = Dealt.number
    monkeypatch.setattr(Dealt, "number", lambda self, nth, count, minimum=min: right(self, nth // 2, count, minimum))
    check = Dealt(((2, 2),)).check()
    assert not check.ok and check.witness == "2 clusters take [0, 0]"


@pytest.mark.parametrize("rounds", [((0, 2),), ((3,),), ((2, True),), [(2, 2)], ((1 << 10, 1 << 10),)])
def test_rounds_that_mean_nothing(rounds: object) -> None:
    with pytest.raises(PlanError, match="dealt = "):
        Dealt(rounds)  # type: ignore[arg-type]
