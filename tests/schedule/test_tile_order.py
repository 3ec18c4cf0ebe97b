"""Tile schedules: proofs for every grid, the same by looking, how work is dealt out, and the reuse that they give."""

import pickle
import random
from collections import Counter

import numpy as np
import pytest

from layoutgemm.errors import PlanError
from layoutgemm.layouts.proofs.verdicts import Proof
from layoutgemm.schedule import Grouped, Hilbert, Linear, Persistent, Schedule, StreamK, reuse, visits_once

GRIDS = [(1, 1), (1, 7), (7, 1), (2, 2), (5, 7), (8, 8), (12, 5), (3, 9), (16, 33), (31, 4)]
SCHEDULES = [
    make
    for along in ("M", "N")
    for make in (
        Linear(along),
        Hilbert(along),
        *[Grouped(along, group, snake) for group in (1, 2, 3, 8, 100) for snake in (False, True)],
    )
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_every_tile_of_every_grid_is_visited_once(schedule: Schedule) -> None:
    assert isinstance(schedule.prove(), Proof)
    for grid in GRIDS:
        table = schedule.table(grid)
        assert visits_once(table, grid), grid
        assert sorted(map(tuple, table.tolist())) == [(r, c) for r in range(grid[0]) for c in range(grid[1])]
        for number in (0, len(table) // 2, len(table) - 1):
            assert schedule.tile(number, grid) == tuple(table[number])
    assert pickle.loads(pickle.dumps(schedule)) == schedule


def test_orders_by_hand() -> None:
    # Triton's order, written out from its tutorial's description: 3 rows in groups of 2, 3 columns.
    assert Grouped(group=2).table((3, 3)).tolist() == [
        [0, 0], [1, 0], [0, 1], [1, 1], [0, 2], [1, 2],
        [2, 0], [2, 1], [2, 2],
    ]  # fmt: skip
    assert Grouped(group=1, serpentine=True).table((3, 2)).tolist() == [[0, 0], [0, 1], [1, 1], [1, 0], [2, 0], [2, 1]]
    assert Linear("N").table((2, 2)).tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert Grouped("N", 2).table((2, 3)).tolist() == [[0, 0], [0, 1], [1, 0], [1, 1], [0, 2], [1, 2]]
    for table in (Hilbert().table((16, 16)), Grouped(group=1, serpentine=True).table((5, 6))):
        assert (abs(np.diff(table, axis=0)).sum(axis=1) == 1).all()  # every step is to a neighbour


class NoShorterGroup(Grouped):
    """Forgets that the last group has fewer rows."""

    def _tile(self, number, rows, columns, group, minimum):
        return super()._tile(number, rows, columns, group, lambda a, b: b)


class WrongPeriod(Grouped):
    def _tile(self, number, rows, columns, group, minimum):
        return super()._tile(number, rows, columns + 1, group, minimum)


class MissingPiece(Grouped):
    """The right order, and an argument that forgets the last group."""

    def _cases(self):
        for case in super()._cases():
            yield case._replace(pieces=case.pieces[:-1] or case.pieces)


class OverlappingPieces(Grouped):
    def _cases(self):
        for case in super()._cases():
            yield case._replace(pieces=[*case.pieces, case.pieces[0]])


class Backwards(Grouped):
    """Turns every group round where only every second one should."""

    def _tile(self, number, rows, columns, group, minimum):
        row, column = Grouped(group=self.group)._tile(number, rows, columns, group, minimum)
        return row, columns - 1 - column


@pytest.mark.parametrize("wrong", [NoShorterGroup, WrongPeriod, MissingPiece, OverlappingPieces, Backwards])
@pytest.mark.parametrize("serpentine", [False, True])
def test_a_wrong_formula_or_argument_is_not_proven(wrong: type[Grouped], serpentine: bool) -> None:
    answer = wrong(group=4, serpentine=serpentine).prove()
    assert not answer
    assert answer.reason


def test_a_curve_that_misses_a_quadrant_is_refuted() -> None:
    class Torn(Hilbert):
        TURNS = (*Hilbert.TURNS[:3], (((1, 1), 2), ((0, 1), 3), ((0, 1), 3), ((1, 0), 1)))

    assert not Torn().prove()


@pytest.mark.parametrize(
    ("order", "witness"),
    [
        ([(0, 0), (0, 1), (1, 0)], "tile (1, 1) is never visited"),
        ([(0, 0), (0, 1), (0, 0), (1, 1)], "tile (0, 0) is visited as number 0 and again as number 2"),
        ([(0, 0), (0, 2), (1, 0), (1, 1)], "number 1 is tile (0, 2), outside 2x2"),
        ([(0, 0), (-1, 0), (1, 0), (1, 1)], "number 1 is tile (-1, 0), outside 2x2"),
    ],
)
def test_a_faulty_order_is_named(order: list[tuple[int, int]], witness: str) -> None:
    check = visits_once(order, (2, 2))
    assert not check and check.witness == witness


@pytest.mark.parametrize("bad", [lambda: Grouped("K"), lambda: Grouped(group=0), lambda: Grouped(group=True),
                                 lambda: Linear().table((0, 3)), lambda: Hilbert().table((2, True)),
                                 lambda: Persistent(Linear(), 0), lambda: Persistent(Linear(), 2, (0, 1)),
                                 lambda: StreamK(0, 1, 1), lambda: StreamK(4, 4, 3, 2), lambda: StreamK(4, 4, 2, 5),
                                 lambda: StreamK(4, 4, 2).segments(2), lambda: reuse([], 4)])  # fmt: skip
def test_what_means_nothing_is_refused(bad) -> None:
    with pytest.raises(PlanError):
        bad()


@pytest.mark.parametrize("cluster", [(1, 1), (2, 1), (1, 2), (2, 2), (4, 1)])
@pytest.mark.parametrize("workers", [1, 3, 8, 200])
def test_persistent_workers_do_every_tile_once(workers: int, cluster: tuple[int, int]) -> None:
    assert Persistent(Grouped(group=3), workers, cluster).prove()
    for grid in GRIDS:
        persistent = Persistent(Grouped(group=3), workers, cluster)
        assert visits_once(persistent.order(grid), grid), grid
        table = persistent.table(grid)
        assert table.shape == (persistent.steps(grid), workers, cluster[0] * cluster[1], 2)
        assert persistent.idle(grid) == table.shape[0] * table.shape[1] * table.shape[2] - grid[0] * grid[1]
        clusters = persistent.clusters(grid)
        for step, worker, rank in np.ndindex(table.shape[:3]):
            if worker + workers * step < clusters[0] * clusters[1]:
                row, column = persistent.tile(worker, step, rank, grid)
                expect = (row, column) if row < grid[0] and column < grid[1] else (-1, -1)
                assert tuple(table[step, worker, rank]) == expect


def test_stream_k_gives_every_k_tile_to_one_worker() -> None:
    rng = random.Random(0)
    for _ in range(200):
        tiles, k_tiles, workers = rng.randint(1, 40), rng.randint(1, 12), rng.randint(1, 20)
        cut = StreamK(tiles, k_tiles, workers)
        assert cut.prove()
        done = Counter((s.tile, k) for w in range(workers) for s in cut.segments(w) for k in range(s.first, s.last + 1))
        assert done == Counter((t, k) for t in range(tiles) for k in range(k_tiles)), (tiles, k_tiles, workers)
        loads = [sum(s.last - s.first + 1 for s in cut.segments(w)) for w in range(workers)]
        streamed = [cut.start(w + 1) - cut.start(w) for w in range(workers)]
        assert max(loads) <= cut.busiest and max(streamed) - min(streamed) <= 1
        assert cut.workspace(1) == sum(len(cut.parts(t)) - 1 for t in range(tiles))
        # Balanced to one K tile, where whole tiles would leave a last wave part empty.
        assert cut.busiest <= -(-tiles // workers) * k_tiles


def test_reuse_is_counted() -> None:
    rng = random.Random(1)
    for _ in range(50):
        grid, wave = (rng.randint(1, 12), rng.randint(1, 12)), rng.randint(1, 20)
        table = rng.choice(SCHEDULES).table(grid)
        counted = reuse(table, wave, (2, 3))
        parts = [table[i : i + wave].tolist() for i in range(0, len(table), wave)]
        assert counted.rows == tuple(len({r for r, _ in part}) for part in parts)
        assert counted.columns == tuple(len({c for _, c in part}) for part in parts)
        assert counted.read == 2 * sum(counted.rows) + 3 * sum(counted.columns)
        assert 1 <= counted.factor <= counted.best + 1e-12
    # A wave of whole columns reads one column panel each; a square wave is best possible.
    assert reuse(Linear().table((4, 4)), 4).factor == 8 / 5
    assert reuse(Hilbert().table((4, 4)), 4).factor == reuse(Hilbert().table((4, 4)), 4).best == 2
