"""Orders that begin at a run-time row or shard: each tile once, and shards one after the other."""

from __future__ import annotations

import pytest

from layoutgemm.errors import PlanError
from layoutgemm.schedule import Grouped, Linear, RotatedRows, ShardByShard, visits_once

BASES = (Linear("N"), Grouped(group=2), Grouped("N", 3))


@pytest.mark.parametrize("base", BASES, ids=str)
def test_both_orders_are_proven_and_visit_each_tile_once(base: Linear | Grouped) -> None:
    assert RotatedRows(base).prove().ok
    assert ShardByShard(base).prove().ok
    for rows, columns in ((1, 1), (5, 3), (6, 4)):
        for first in range(rows):
            table = RotatedRows(base).table((rows, columns), first)
            assert visits_once(table, (rows, columns)).ok
            assert table[0, 0] == first
        for shards in [count for count in range(1, rows + 1) if rows % count == 0]:
            each = rows // shards
            for first in range(shards):
                table = ShardByShard(base).table((rows, columns), first, shards)
                assert visits_once(table, (rows, columns)).ok
                order = (table[:, 0] // each).reshape(shards, -1)
                assert (order == (order[:, :1])).all()
                assert order[:, 0].tolist() == [(first + i) % shards for i in range(shards)]


def test_a_rotation_alone_mixes_two_shards_in_a_band() -> None:
    table = RotatedRows(Grouped(group=2)).table((2, 3), 1)
    assert table[:, 0].tolist() == [1, 0, 1, 0, 1, 0]


def test_bad_places_are_refused() -> None:
    with pytest.raises(PlanError, match="first row of tiles"):
        RotatedRows(Linear()).table((3, 2), 3)
    with pytest.raises(PlanError, match="3 rows of tiles in 2 shards"):
        ShardByShard(Linear()).table((3, 2), 0, 2)
    with pytest.raises(PlanError, match=r"must be a Schedule, not \(3, 2\)"):
        RotatedRows((3, 2))
