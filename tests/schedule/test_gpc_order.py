"""Clusters dealt out to places: each number is taken once, and neighbours take neighbouring tiles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layoutgemm.errors import PlanError
from layoutgemm.schedule import GpcOrder
from layoutgemm.schedule.gpc_order import Rounds

PLACES = st.sets(st.integers(0, 12), min_size=1, max_size=9).map(lambda found: tuple(sorted(found)))
ROUNDS = st.lists(st.tuples(PLACES, st.integers(1, 9)), max_size=4).map(tuple)


@given(ROUNDS, st.integers(1, 300))
def test_each_number_is_taken_once(rounds: Rounds, count: int) -> None:
    assert sorted(GpcOrder(rounds).table(count)) == list(range(count))


@given(ROUNDS, st.data())
def test_one_place_takes_consecutive_numbers(rounds: Rounds, data: st.DataObject) -> None:
    """By hand: all clusters of the first place in the order in which they come, then the second's. That holds for any
    launch that reaches the last round, where later clusters stay as they are. A smaller launch stays as it is."""
    at = [place for places, times in rounds for _ in range(times) for place in places]
    before_last = len(at) - len(rounds[-1][0]) * rounds[-1][1] if rounds else 0
    count = data.draw(st.integers(1, len(at) + 5))
    expected = list(range(count))
    if count > before_last:
        order = sorted(range(min(count, len(at))), key=lambda nth: (at[nth], nth))
        for number, nth in enumerate(order):
            expected[nth] = number
    assert GpcOrder(rounds).table(count) == expected


def test_the_check_sees_a_number_taken_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """And names the first count that shows it."""
    assert GpcOrder((((0, 1), 4), ((1, 2), 4))).check().ok
    right = GpcOrder.number
    monkeypatch.setattr(GpcOrder, "number", lambda self, nth, count, minimum=min: right(self, nth // 2, count, minimum))
    check = GpcOrder((((0, 1), 2),)).check()
    assert not check.ok and check.witness == "of 0 tiles, clusters take [0, 0, 1, 1, 2, 2]"


def test_further_clusters_of_a_launch_keep_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grouped launch may have more clusters than tiles. Dealt out too, one would repeat another's tile."""
    order = GpcOrder((((0, 1, 2), 1), ((1, 2), 2)))
    assert order.check().ok and order.table(5, clusters=8) == [0, 1, 3, 2, 4, 5, 6, 7]
    right = GpcOrder.number
    monkeypatch.setattr(GpcOrder, "number", lambda self, nth, count, minimum=min: right(self, nth, nth + 1, minimum))
    check = order.check()
    assert not check.ok and "of 0 tiles, clusters take" in check.witness


@pytest.mark.parametrize(
    "rounds",
    [
        (((), 2),), (((0, 1), 0),), (((0, 1),),), (((0, 1), True),), (((1, 0), 2),), (((1, 1), 2),),
        (((-1, 0), 2),), ((2, 2),), (((0, 1), 1 << 20),), (((0, 1 << 20), 1),), (((0, "1"), 1),),
    ],
    ids=str,
)  # fmt: skip
def test_rounds_that_mean_nothing(rounds: object) -> None:
    with pytest.raises(PlanError, match=r"gpc_order = |rounds of GpcOrder must be a tuple of"):
        GpcOrder(rounds)


def test_rounds_in_lists_and_in_integers_of_numpy() -> None:
    assert GpcOrder([([0, np.int64(1)], np.uint8(2))]) == GpcOrder((((0, 1), 2),))
