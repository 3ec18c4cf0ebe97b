"""Orders of some tiles: triangles, functions, layouts, lists, ranks."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from layoutgemm.errors import OperandError, PlanError
from layoutgemm.kernels.orders import order_check
from layoutgemm.layouts import E, Layout
from layoutgemm.schedule import (
    Banded,
    Formula,
    Grouped,
    Hilbert,
    LayoutOrder,
    Linear,
    Persistent,
    Rotated,
    TileList,
    Triangular,
    visits_once,
)
from layoutgemm.schedule.listed import OnHost, encoded, listed

TILES = ((4, 4), (4, 8), (8, 4), (8, 7), (2, 3))  # their ratio decides the pattern
GRIDS = tuple(product(range(1, 12), repeat=2)) + ((40, 3), (3, 40), (33, 33))


@pytest.mark.parametrize("half", ["lower", "upper"])
@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("group", [1, 3])
def test_triangular_visits_each_tile_of_the_triangle(half: str, tile: tuple[int, int], group: int) -> None:
    order = Triangular(half, group, tile)
    for rows, columns in GRIDS:
        table = order.table((rows, columns))
        elements = np.tril if half == "lower" else np.triu
        inside = elements(np.ones((rows * tile[0], columns * tile[1]), np.uint8))
        wanted = inside.reshape(rows, tile[0], columns, tile[1]).any(axis=(1, 3))
        check = visits_once(table, (rows, columns), visited=wanted)
        assert check, check
        assert len(table) == order.count((rows, columns)) == wanted.sum()


@pytest.mark.parametrize("half", ["lower", "upper"])
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_triangular_is_proven_for_every_grid(half: str, tile: tuple[int, int]) -> None:
    answer = Triangular(half, 2, tile).prove()
    assert answer.ok and answer.method == "pieces, for every grid"
    assert any("band nth" in step for step in answer.steps)


class _Broken(Triangular):
    """Its shorter bands begin a tile too late."""

    def _of_pair(self, nth, place, cut, minimum):
        band, inside = super()._of_pair(nth, place, cut, minimum)
        return band, inside + 1 - minimum(1, band)


class _TooFew(Triangular):
    """Its diagonal blocks lack a tile."""

    @property
    def firsts(self) -> tuple[int, ...]:
        return tuple(first + 1 for first in super().firsts)


@pytest.mark.parametrize("kind", [_Broken, _TooFew])
def test_a_wrong_triangular_order_is_not_proven_and_its_first_tile_is_named(kind: type[Triangular]) -> None:
    order = kind("lower", 2, (128, 128))
    assert not order.prove().ok
    check = order_check(order, (6, 6))
    assert not check and "tile (" in check.witness


def test_triangular_refuses() -> None:
    for bad, said in (
        ({"half": "left"}, "known are 'lower', 'upper'"),
        ({"group": 0}, "group must be at least 1"),
        ({"tile_shape": (128, 129)}, "a pattern of 129x128 tiles"),
        ({"tile_shape": (128, 256), "mirror": True}, "a symmetric product needs square tiles"),
    ):
        with pytest.raises(PlanError, match=said):
            Triangular(**{"group": 1, **bad})
    with pytest.raises(PlanError, match="of tiles of some size"):
        Triangular().count((2, 2))


def test_clusters_of_a_triangle_are_dealt_to_workers() -> None:
    order = Persistent(Triangular(group=1, tile_shape=(128, 128)), workers=2, cluster=(2, 1))
    table = order.table((4, 2))
    assert order.steps((4, 2)) == 2 and sorted(map(tuple, table[table[..., 0] >= 0])) == [
        (0, 0), (1, 0), (2, 0), (2, 1), (3, 0), (3, 1),
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ functions


def test_a_function_is_the_kernels_expression() -> None:
    order = Formula.of(lambda t, rows, columns, ops: (ops.minimum(t % rows, rows - 1), t // rows))
    assert order.row == ("minimum", ("%", ("number",), ("rows",)), ("-", ("rows",), ("int", 1)))
    assert np.array_equal(order.table((3, 5)), Linear().table((3, 5)))
    assert order == Formula.of(lambda t, rows, columns, ops: (ops.minimum(t % rows, rows - 1), t // rows))


def test_a_function_equal_to_a_proven_order_is_proven_for_every_grid_and_others_are_looked_at() -> None:
    assert Formula.of(lambda t, rows, columns: (t % rows, t // rows)).prove().ok
    snake = Formula.of(
        lambda t, rows, columns: (t // columns, t % columns + (t // columns) % 2 * (columns - 1 - 2 * (t % columns)))
    )
    assert not snake.prove().ok
    check = order_check(snake, (5, 7))
    assert check and check.method == "exhaustion (35 tiles)"


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda t, rows, columns: (t % rows, t % columns), "is visited as number 0 and again as number"),
        (lambda t, rows, columns: (0, 0), "tile (0, 0) is visited as number 0 and again as number 1"),
        (lambda t, rows, columns: (t % rows, t // rows + 1), "outside 4x6"),
        (lambda t, rows, columns: ((t - 1) % rows, t // rows), "the kernel's is of no negatives"),
    ],
)
def test_a_wrong_function_is_refused_with_the_first_tile(function: object, said: str) -> None:
    check = order_check(Formula.of(function), (4, 6))
    assert not check and said in check.witness


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda t, rows, columns: t % rows, "gives 2 integer"),
        (lambda t, rows, columns: (t / rows, 0), "take"),
        (lambda t, rows, columns: (t, 0) if t < rows else (0, t), "traced once"),
        (lambda t, rows, columns: (t % 2.5, 0), "32-bit integers"),
        (lambda t, rows, columns: (t % undefined, 0), "raised NameError"),  # noqa: F821
        (lambda t, rows, columns: (t + (1 << 31), 0), "32-bit integers"),
    ],
)
def test_functions_that_compute_something_else_are_refused(function: object, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        Formula.of(function)


def test_a_function_of_some_tiles_is_held_to_its_set() -> None:
    def order(first: int) -> Formula:
        return Formula.of(
            lambda t, rows, columns: (t // columns + first, t % columns),
            lambda rows, columns: (rows - 1) * columns,
            lambda row, column, rows, columns, ops: ops.minimum(row, 1),
        )

    assert order_check(order(1), (4, 3)) and not order(1).is_full
    wrong = order_check(order(0), (4, 3))
    assert not wrong and wrong.witness == "tile (3, 0) is never visited"
    with pytest.raises(PlanError, match="how many"):
        Formula.of(lambda t, rows, columns: (t, 0), lambda rows, columns: rows)


def test_a_layout_orders_one_grid() -> None:
    rows = LayoutOrder(layout=Layout((5, 4), (4, 1)))
    assert np.array_equal(rows.table((4, 5)), Linear("N").table((4, 5)))
    assert np.array_equal(LayoutOrder(layout=Layout((5, 4), (E(1), E(0)))).table((4, 5)), rows.table((4, 5)))
    assert order_check(rows, (4, 5)) and not order_check(LayoutOrder(layout=Layout((5, 4), (4, 2))), (4, 5))
    with pytest.raises(PlanError, match="a layout of 20 tiles"):
        rows.table((4, 6))


# ---------------------------------------------------------------------------------------------------------------- lists


def test_a_list_has_the_tiles_of_its_schedule() -> None:
    order = listed(Hilbert())
    assert isinstance(order, TileList) and order.words == ("tiles", "tile_count")
    tiles = order.list_for((5, 6))
    reads = OnHost({"tiles": tiles, "tile_count": len(tiles)})
    found = np.stack(order.tile(np.arange(30), (5, 6), reads=reads), axis=1)
    assert np.array_equal(found, Hilbert().table((5, 6)))
    assert order.tile(99, (5, 6), reads=reads) == tuple(Hilbert().table((5, 6))[-1])  # a kernel looks beyond the end


def test_a_callers_list_is_looked_at() -> None:
    order = TileList()
    assert order.list_for((3, 3), np.array([[2, 1], [0, 0]])).tolist() == encoded([(2, 1), (0, 0)]).tolist()
    for tiles, said in (
        ([[0, 0], [0, 0]], "visited as number 0 and again as number 1"),
        ([[3, 0]], "outside 3x3"),
        ([0, 1], "missing, or no array"),
        (None, "missing"),
    ):
        with pytest.raises(OperandError, match=said):
            order.list_for((3, 3), None if tiles is None else np.array(tiles))


@pytest.mark.parametrize("band", [(0, 0), (100, 0), (64, 64), (0, 500)])
def test_a_band_visits_each_tile_with_an_element_in_it(band: tuple[int, int]) -> None:
    below, above = band
    order = Banded("N", below, above, (64, 96))
    row, column = np.arange(5 * 64)[:, None], np.arange(4 * 96)[None, :]
    inside = (column - row >= -below) & (column - row <= above)
    wanted = inside.reshape(5, 64, 4, 96).any(axis=(1, 3))
    assert np.array_equal(order.visited((5, 4)), wanted)
    assert visits_once(order.table((5, 4)), (5, 4), visited=wanted) and order.count((5, 4)) == wanted.sum()


# ---------------------------------------------------------------------------------------------------------------- ranks


@pytest.mark.parametrize("axis", ["M", "N"])
def test_a_rotated_order_begins_at_its_ranks_shard(axis: str) -> None:
    order = Rotated(Grouped("M" if axis == "M" else "N", 2), ranks=4, axis=axis)
    assert order.prove().ok and order.words == ("rank",)
    for rank in range(4):
        table = order.for_rank(rank).table((8, 8))
        assert visits_once(table, (8, 8))
        assert set(table[:16, int(axis == "N")].tolist()) == {2 * rank, 2 * rank + 1}
        assert order.tile(0, (8, 8), reads=OnHost({"rank": rank})) == tuple(table[0])


def test_a_rotated_order_of_rows_that_ranks_do_not_divide_visits_each_tile() -> None:
    order = Rotated(Linear("N"), ranks=3)
    for rows, rank in product(range(1, 8), range(3)):
        assert visits_once(order.for_rank(rank).table((rows, 2)), (rows, 2))


def test_rotated_refuses() -> None:
    for inner in (Triangular(), Hilbert()):
        with pytest.raises(PlanError, match="formula for every tile"):
            Rotated(inner, ranks=2)
    with pytest.raises(PlanError, match="at most 1"):
        Rotated(Linear(), ranks=2).for_rank(2)
    with pytest.raises(PlanError, match="rank, a kernel parameter"):
        Rotated(Linear(), ranks=2).table((2, 2))
    assert replace(Rotated(Linear(), ranks=2), name="mine").words == ("mine",)
