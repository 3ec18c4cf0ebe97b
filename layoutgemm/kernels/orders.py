"""Orders of tiles as callers ask for them, and the stored elements of C.

given                       order
------------------------    ----------------------------------------------------------------------------------------
a Schedule                  the same, for the plan's tiles
"columns", "rows"           Linear("M"), Linear("N")
"grouped", "snake"          Grouped in bands of the configuration's `group`; every second band walked back
"hilbert"                   Hilbert's curve, from a list
"lower", "upper"            Triangular: the tiles of one triangle of C alone
"symmetric"                 the same, each tile off the diagonal stored twice, once transposed
"list"                      TileList: `given["tiles"]` of each launch
a Layout                    tile number -> row + rows * column, or (row, column)
a function                  (number, rows, columns, ops) -> (row, column), traced: `Formula.of`
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import lcm
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from ..arguments import nearest, shown
from ..errors import OperandError, PlanError
from ..layouts import Layout
from ..layouts.proofs.verdicts import Answer
from ..memo import memoized
from ..report import Check
from ..schedule import (
    Formula,
    Grouped,
    Hilbert,
    LayoutOrder,
    Linear,
    Persistent,
    Rotated,
    Schedule,
    TileList,
    Triangular,
    visits_once,
)
from ..schedule.listed import OnHost, listed
from ..schedule.text import refused_order

if TYPE_CHECKING:
    from .plan import GemmPlan

T = TypeVar("T")
Order: TypeAlias = Schedule | Layout | str | Callable[..., Any]
MOST_LOOKED_AT = 1 << 22  # tiles of a grid that a check goes through one by one


def order_for(order: Order | None, usual: Linear | Grouped, tile: tuple[int, int], grid: tuple[int, int]) -> Schedule:
    """The schedule that a caller asks for; `usual` for None.

    usual  the configuration's
    tile   elements of C in a tile of the grid, a cluster's
    grid   rows and columns of such tiles

    Raises PlanError for an unknown name, a layout of another grid, and anything else that is no order.

    >>> order_for("lower", Grouped(), (256, 256), (32, 32)).count((32, 32))
    528
    >>> order_for("spiral", Grouped(), (256, 256), (32, 32))
    Traceback (most recent call last):
        ...
    layoutgemm.errors.PlanError: order = 'spiral': known are columns, rows, grouped, snake, hilbert, lower, upper, symmetric, list
    """  # noqa: E501
    if order is None:
        return usual
    if isinstance(order, str):
        check_name(order)
        order = _named(usual)[order]
    elif isinstance(order, Layout):
        order = LayoutOrder(layout=order)
    elif not isinstance(order, Schedule):
        if not callable(order):
            raise PlanError(refused_order(order))
        order = Formula.of(order)
    if isinstance(order, LayoutOrder):
        order.check_grid(grid)
    return listed(order.on(tile))


def _named(usual: Linear | Grouped) -> dict[str, Schedule]:
    group = usual.group if isinstance(usual, Grouped) else 1
    return {
        "columns": Linear("M"),
        "rows": Linear("N"),
        "grouped": Grouped(usual.along, group),
        "snake": Grouped(usual.along, group, True),
        "hilbert": Hilbert(usual.along),
        "lower": Triangular("lower"),
        "upper": Triangular("upper"),
        "symmetric": Triangular("lower", mirror=True),
        "list": TileList(),
    }


def check_name(order: str) -> None:
    """Raise PlanError for a name that no order has."""
    if order not in (known := _named(Grouped())):
        raise PlanError(f"order = {shown(order)}: {nearest(order, known)}known are {', '.join(known)}")


def schedule_of(plan: Any) -> Schedule:
    """The order of a plan's tiles, without its clusters."""
    order: Schedule | Persistent = plan.order
    return order.schedule if isinstance(order, Persistent) else order


_NOMINAL = 128  # elements along both sides of a tile, to count an order's share before the tile is chosen


def columns_of_order(order: Order, m: int, n: int) -> int:
    """Columns of a full C with as many elements as an order's tiles.

    >>> columns_of_order("lower", 8192, 8192), columns_of_order("rows", 8192, 8192)
    (4160, 8192)
    """
    if isinstance(order, TileList) and order.schedule is not None:
        order = order.schedule
    if isinstance(order, (Layout, LayoutOrder, TileList)) or order == "list":
        return n
    grid = -(-m // _NOMINAL), -(-n // _NOMINAL)
    schedule = order_for(order, Grouped(), (_NOMINAL, _NOMINAL), grid)
    if schedule.is_full:
        return n
    return max(1, min(n, -(-n * int(schedule.count(grid)) // (grid[0] * grid[1]))))


def diagonal_pattern(order: Order, tile: tuple[int, int]) -> int:
    """Tiles of the period of a triangle's diagonal, 1 for other orders.

    >>> diagonal_pattern("lower", (256, 256)), diagonal_pattern("lower", (256, 176)), diagonal_pattern("rows", (1, 2))
    (1, 16, 1)
    """
    if not isinstance(order, Triangular) and order not in ("lower", "upper", "symmetric"):
        return 1
    period = lcm(*tile)
    return period // min(tile)


def asked_order(plan: GemmPlan) -> dict[str, Schedule]:
    """The argument `order` of `derive` that gives the plan's order. None for bands, which configurations have."""
    schedule = schedule_of(plan)
    return {"order": schedule} if isinstance(schedule, _ASKED) else {}


_ASKED = (Formula, LayoutOrder, Rotated, TileList, Triangular)


def is_symmetric(order: Order | None) -> bool:
    """True for the order of a symmetric product, whose tiles are stored twice.

    >>> is_symmetric("symmetric"), is_symmetric(Triangular(mirror=True)), is_symmetric("lower")
    (True, True, False)
    """
    return (isinstance(order, str) and order == "symmetric") or (isinstance(order, Triangular) and order.mirror)


def leaves_tiles(order: object) -> bool:
    """True for a named order or a schedule of some tiles. Of a function it is not known yet.

    >>> leaves_tiles("lower"), leaves_tiles(TileList()), leaves_tiles("hilbert"), leaves_tiles(None)
    (True, True, False, False)
    """
    schedule = _named(Grouped()).get(order) if isinstance(order, str) else order
    return isinstance(schedule, Schedule) and not schedule.is_full


def unmirrored(
    order: Order | None, usual: Grouped, tile: tuple[int, int], grid: tuple[int, int], kernel: str
) -> Schedule:
    """`order_for` a kernel without a second store; raises PlanError for an order that needs one."""
    if is_symmetric(order):
        raise PlanError(f"order = 'symmetric': {kernel} stores no transposed tile; order='lower' stores one triangle")
    return order_for(order, usual, tile, grid)


@memoized(256)
def order_proof(order: Schedule | Persistent) -> Answer:
    """The order's `prove()`."""
    return order.prove()


def order_check(schedule: Schedule, grid: tuple[int, int]) -> Check:
    """The order visits each tile of its set once. Proven for every grid, or else looked at in this one.

    grid  rows and columns of tiles

    >>> order_check(Linear(), (3, 4)).method
    'pieces, for every grid'
    >>> twice = Formula.of(lambda t, rows, columns: (t % rows, t % columns))
    >>> check = order_check(twice, (2, 2))
    >>> check.ok, check.witness
    (False, 'tile (0, 0) is visited as number 0 and again as number 2')
    """
    statement = f"{schedule} visits each tile of its set once"
    answer = order_proof(schedule)
    if answer:
        return Check("order", statement, True, getattr(answer, "method", "none"), "")
    if grid[0] * grid[1] > MOST_LOOKED_AT:
        witness = f"{answer}; and a grid of {grid[0]}x{grid[1]} tiles is not looked at one by one"
        return Check("order", statement, False, "none", witness)
    found: Check | None = None
    for one in _ranks(schedule):
        try:
            found = visits_once(one.table(grid), grid, "order", one.visited(grid))
        except (PlanError, OperandError) as error:
            return Check("order", statement, False, "exhaustion", str(error))
        if not found:
            return found
    assert found is not None  # an order has a rank
    return found


def check_order(plan: GemmPlan) -> None:
    """Raise PlanError for a plan whose order visits a tile twice."""
    check = order_check(schedule_of(plan), clusters_of_plan(plan))
    if not check:
        raise PlanError(f"order: {check.witness}")


def _ranks(schedule: Schedule) -> list[Schedule]:
    """The schedule for each rank that it may be given."""
    if isinstance(schedule, Rotated) and schedule.fixed is None:
        return [schedule.for_rank(rank) for rank in range(schedule.ranks)]
    return [schedule]


def tiles_of_order(schedule: Schedule, grid: tuple[int, int]) -> npt.NDArray[np.int64] | None:
    """The tiles (row, column) that an order visits, in no order. None for a list that each launch has.

    >>> tiles_of_order(Rotated(Linear(), ranks=2), (1, 2)).tolist()
    [[0, 0], [0, 1]]
    """
    if isinstance(schedule, TileList) and schedule.schedule is None:
        return None
    return np.argwhere(schedule.visited(grid))


def described_order(schedule: Schedule, grid: tuple[int, int]) -> str:
    """The tiles that an order visits, and their share of the grid.

    >>> described_order(Triangular(tile_shape=(64, 64)), (8, 8))
    '36 of 64 tiles, 56.2% of the grid'
    """
    if isinstance(schedule, TileList) and schedule.schedule is None:
        return "the tiles that each launch lists"
    count, every = int(schedule.count(grid)), grid[0] * grid[1]
    return f"{count} of {every} tiles, {count / every:.1%} of the grid"


# ------------------------------------------------------------------------------------------------------------ at launch


def order_values(plan: GemmPlan, given: Mapping[str, object]) -> dict[str, Any]:
    """The values of the words that the plan's order reads. Numbers, and the list of tiles.

    Raises OperandError for one that is missing or out of range.
    """
    schedule = schedule_of(plan)
    values: dict[str, Any] = {}
    if isinstance(schedule, TileList):
        try:
            values["tiles"] = schedule.list_for(clusters_of_plan(plan), given.get("tiles"))
        except OperandError as error:
            high, wide = cluster_tile(plan)
            raise OperandError(f"{error}; a tile of the order is {high}x{wide} elements of C, a cluster's") from None
        values["tile_count"] = len(values["tiles"])
        return values
    for name in schedule.words:
        value = given.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not 0 <= int(value) < 1 << 31:
            raise OperandError(f"{name} is an integer from 0 on that the order of tiles reads, not {shown(value)}")
        if isinstance(schedule, Rotated) and name == schedule.name and value >= schedule.ranks:
            raise OperandError(f"{name} = {value}: the order is of {schedule.ranks} ranks, from 0 on")
        values[name] = int(value)
    return values


def given_names(plan: GemmPlan) -> tuple[str, ...]:
    """The names in `given` that the plan's order reads. Those a caller gives, and no others."""
    return names_in_given(schedule_of(plan))


def names_in_given(order: Order) -> tuple[str, ...]:
    """The names in `given` that an order reads, as a caller asks for it.

    >>> names_in_given("list"), names_in_given("lower"), names_in_given(Rotated(Linear("N"), ranks=2))
    (('tiles',), (), ('rank',))
    """
    if isinstance(order, TileList) or order == "list":
        return ("tiles",) if not isinstance(order, TileList) or order.schedule is None else ()
    if not isinstance(order, Schedule):
        return Formula.of(order).words if callable(order) and not isinstance(order, Layout) else ()
    return order.words


def reads_on_host(schedule: Schedule, values: Mapping[str, object]) -> OnHost | None:
    """The values of an order's words as the order reads them. None for one without words."""
    return OnHost(values) if schedule.words else None


def clusters_of_plan(plan: Any) -> tuple[int, int]:
    """Rows and columns of the grid of the plan's order."""
    rows, columns = plan.order.clusters(plan.tiles) if hasattr(plan.order, "clusters") else plan.tiles
    return int(rows), int(columns)


def stored_elements(plan: GemmPlan, values: Mapping[str, object]) -> npt.NDArray[np.bool_] | None:
    """True for each element ([matrix,] row, column) that the plan stores; None for all.

    values  of the order's words, as `order_values` gives them
    """
    visited = visited_elements(plan, values)
    if (rows := plan.stored_rows(values)) is None:
        return visited
    found = np.zeros((*rows.shape[:-1], plan.rows_of_c, plan.n), dtype=bool)
    for matrix, of_matrix in zip(found.reshape(-1, plan.rows_of_c, plan.n), np.atleast_2d(rows), strict=True):
        matrix[of_matrix] = True if visited is None else visited
    return found


def visited_elements(plan: GemmPlan, values: Mapping[str, object]) -> npt.NDArray[np.bool_] | None:
    """True for each element (row, column) in a tile of the order; None for all."""
    visited = visited_tiles(plan, values)
    return None if visited is None else spread_to_elements(plan, visited, np.repeat)


def visited_tiles(plan: GemmPlan, values: Mapping[str, object]) -> npt.NDArray[np.bool_] | None:
    """True for each tile (row, column) of the order's grid that a launch visits. None for all.

    values  of the order's words, as `order_values` gives them
    """
    schedule = schedule_of(plan)
    if schedule.is_full or (isinstance(schedule, Triangular) and schedule.mirror):
        return None
    grid = clusters_of_plan(plan)
    if not isinstance(schedule, TileList) or schedule.schedule is not None:
        return schedule.visited(grid)
    visited, of = np.zeros(grid, dtype=bool), OnHost(values)
    for number in range(int(of.word("tile_count"))):
        row, column = schedule.tile(number, grid, reads=of)
        visited[row, column] = True
    return visited


def spread_to_elements(plan: GemmPlan, tiles: T, repeat: Callable[[T, int, int], T]) -> T:
    """The values (row, column) of tiles at each element of C. `repeat` is NumPy's, or torch's."""
    high, wide = cluster_tile(plan)
    found = repeat(repeat(tiles, high, 0), wide, 1)
    return found[: plan.m, : plan.n]  # type: ignore[index, no-any-return]  # arrays, or tensors


def cluster_tile(plan: Any) -> tuple[int, int]:
    """Rows and columns of C in a tile of the plan's order. Those of a cluster.

    >>> from layoutgemm import Sm90Config, Sm90Plan
    >>> cluster_tile(Sm90Plan.derive(512, 512, 64, config=Sm90Config((128, 64), cluster=(2, 1)), order="list"))
    (256, 64)
    """
    tile, cluster = getattr(plan, "tile_c", plan.tile[:2]), getattr(plan.order, "cluster", (1, 1))
    return tile[0] * cluster[0], tile[1] * cluster[1]
