"""Groups of columns in registers. Where a thread finds the members of each of its values' groups.

    a group in one thread      its members are values of the thread          wgmma: columns 2 t and 2 t + 1
    a group in several lanes   member k: value v_k of the lane whose bits    wgmma: four columns, of lanes t and t ^ 1
                               under a mask are lane_k

All of it follows from the fragment map (lane, value) -> (row, column), and is proven by exhaustion.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import lcm
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..atoms import wgmma
from ..atoms.copy.base import WARP
from ..errors import PlanError
from ..report import Check
from .epilogue.chain import Epilogue
from .numbers import W
from .partials import LANE_COLUMNS

MOST_COLUMNS = 256  # of a tile, in every kernel


class LaneValues(Protocol):
    """A map (lane, value) -> (row, column) of a warp's accumulators."""

    @property
    def accumulator_registers(self) -> int: ...
    @property
    def coords_C(self) -> Callable[..., tuple[W, W]]: ...
    def __hash__(self) -> int: ...


@dataclass(frozen=True)
class Members:
    """The places of a group's members, in the order of their columns.

    values  number of each in its thread
    lanes   bits of its lane, under the mask
    mask    bits in which the lanes of a group differ; 0 for a group in one thread
    """

    values: tuple[int, ...]
    lanes: tuple[int, ...]
    mask: int


@cache
def members_of(fragment: LaneValues, columns: int, distance: int) -> tuple[Members, ...]:
    """The members of the group of each value.

    Raises PlanError where a member lies in another warp or tile, or as another value in some lanes.

    >>> from layoutgemm.atoms import wgmma
    >>> of_64 = wgmma(64, "bf16", "bf16", "f32")
    >>> members_of(of_64, 2, 1)[0], members_of(of_64, 2, 16)[0].values
    (Members(values=(0, 1), lanes=(0, 0), mask=0), (0, 8))
    >>> members_of(of_64, 4, 1)[0]
    Members(values=(0, 1, 0, 1), lanes=(0, 0, 1, 1), mask=1)
    """
    rows, places = _places(fragment)
    where = {(int(rows[at]), int(places[at])): at for at in np.ndindex(rows.shape)}
    found = []
    for v in range(rows.shape[1]):
        lanes = np.zeros((columns, WARP), int)
        values = []
        for k in range(columns):
            wanted = _column(places[:, v], columns, distance, k)
            at = [where.get((int(row), int(column))) for row, column in zip(rows[:, v], wanted, strict=True)]
            if None in at:
                lane = at.index(None)
                raise PlanError(
                    f"a function of {columns} columns {distance} apart: lane {lane} has column {places[lane, v]} of "
                    f"row {rows[lane, v]}, and its warp no column {wanted[lane]} of it"
                )
            own = [place for place in at if place is not None]
            if len(others := sorted({value for _, value in own})) > 1:
                raise PlanError(
                    f"a function of {columns} columns {distance} apart: column {k} of value {v} is value "
                    f"{others[0]} or {others[1]} by the lane"
                )
            values.append(others[0])
            lanes[k] = [lane for lane, _ in own]
        mask = int(np.bitwise_or.reduce((lanes ^ np.arange(WARP)).ravel()))
        bits = lanes & mask
        if not np.array_equal(lanes, (np.arange(WARP) & ~mask) | bits[:, :1]):
            raise PlanError(
                f"a function of {columns} columns {distance} apart: lanes {lanes[:, 0].tolist()} hold the group of "
                f"value {v} of lane 0, and no mask of lanes gives those of all"
            )
        found.append(Members(tuple(values), tuple(int(x) for x in bits[:, 0]), mask))
    return tuple(found)


def _places(fragment: LaneValues) -> tuple[np.ndarray, np.ndarray]:
    """(lane, value) -> row, and -> column."""
    lanes = np.arange(WARP)
    each: list[tuple[npt.NDArray[np.int64], ...]] = [
        fragment.coords_C(lanes, v) for v in range(fragment.accumulator_registers)
    ]
    rows, columns = (np.stack([np.broadcast_to(np.asarray(x[at]), (WARP,)) for x in each], 1) for at in (0, 1))
    return rows, columns


def _column(column: np.ndarray, columns: int, distance: int, k: int) -> np.ndarray:
    """The column of member k of a column's group."""
    span = columns * distance
    return column // span * span + column % distance + k * distance


def check_groups(epilogue: Epilogue, fragment: LaneValues | None = None) -> None:
    """Raise PlanError for functions of columns that no lanes have.

    fragment  the map of a kernel's accumulators; None: wgmma's of the narrowest tile with whole groups

    >>> from layoutgemm.kernels.epilogue.chain import ColumnGroup
    >>> check_groups(Epilogue(ColumnGroup.of(lambda x, i, j, ops: (x[1], x[0]), distance=5)))
    Traceback (most recent call last):
        ...
    layoutgemm.errors.PlanError: a function of 2 columns 5 apart: column 0 of value 0 is value 0 or 1 by the lane
    """
    for step in epilogue.groups:
        width = lcm(step.span, LANE_COLUMNS)
        if fragment is None and width > MOST_COLUMNS:
            raise PlanError(f"{step}: whole groups are of {width} columns, and a tile has at most {MOST_COLUMNS}")
        members_of(fragment or wgmma(width, "bf16", "bf16", "f32"), step.columns, step.distance)


def groups_check(epilogue: Epilogue, fragment: LaneValues, values: Sequence[int]) -> Check:
    """Each function of several columns reads its own group's members.

    Each value takes its own column's result.

    values  those of a thread that are stored
    """
    witness, said = "", []
    rows, places = _places(fragment)
    lane = np.arange(WARP)
    for step in epilogue.groups:
        found = members_of(fragment, step.columns, step.distance)
        masks = {found[v].mask for v in values}
        said.append(f"{step}, in {_lanes(masks)}")
        for v in values:
            group, taken = found[v], np.zeros(WARP, int)
            for k, (value, bits) in enumerate(zip(group.values, group.lanes, strict=True)):
                source = (lane & ~group.mask) | bits
                wanted = _column(places[:, v], step.columns, step.distance, k)
                wrong = (rows[source, value] != rows[:, v]) | (places[source, value] != wanted)
                if wrong.any() and not witness:
                    at = int(np.argmax(wrong))
                    read = int(rows[source, value][at]), int(places[source, value][at])
                    witness = f"{step}: value {v} of lane {at} reads {read} as ({rows[at, v]}, {wanted[at]})"
                taken += (value == v) & ((lane & group.mask) == bits)
            if not witness and (taken != 1).any():
                at = int(np.argmax(taken != 1))
                witness = f"{step}: value {v} of lane {at} takes the results of {taken[at]} columns"
    elements = WARP * len(values)
    return Check("column groups", "; ".join(said), not witness, f"exhaustion ({elements} elements)", witness)


def _lanes(masks: set[int]) -> str:
    """The lanes of a group, by the masks of their numbers.

    >>> _lanes({0}), _lanes({1, 3})
    ('one lane', 'lanes whose numbers differ under the mask 1 or 3')
    """
    said = " or ".join(map(str, sorted(masks)))
    return "one lane" if masks == {0} else f"lanes whose numbers differ under the mask {said}"


__all__ = ["Members", "check_groups", "groups_check", "members_of"]
