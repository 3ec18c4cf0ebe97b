"""Numbers of a main loop that promotes, in threads' registers.

A thread has one number of each row that it has elements of, and of each segment of its columns. Rows and columns
outside of the matrix, or of the tile's group, have the numbers of the last one inside: they are not stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import gcd
from typing import Protocol

import numpy as np

from ...atoms import MmaAtom
from ...atoms.copy.base import WARP
from ...errors import PlanError
from ...report import Check
from ..derive import Operand
from ..indexed.rows import IndexedProduct
from ..numbers import W
from ..plan import present
from .product import SeveralOperands
from .promoted import Promoted, Table, as_promoted, columns_between, said


class _NumberedValues(Protocol):
    @property
    def accumulator_registers(self) -> int: ...
    @property
    def lane_columns(self) -> int: ...
    def register(self, value: int) -> int: ...
    def coords_C(self, lane: W, value: int) -> tuple[W, W]: ...


class PromotingPlan(SeveralOperands, IndexedProduct):
    """A plan whose threads may promote sums. `fragment` maps a warp's values to its part of a tile."""

    mainloop: Promoted | None

    @property
    def fragment(self) -> _NumberedValues:
        """(lane, value) -> row and column of a warp's part of C."""
        raise NotImplementedError

    @property
    def warp_columns(self) -> int:
        """Columns of a warp's part of C."""
        raise NotImplementedError


def check_promotes(loop: Promoted | None, atom: MmaAtom, c: Operand) -> None:
    """Raise PlanError for anything but a Promoted, and for products that are no floats."""
    if loop is None:
        return
    as_promoted(loop)
    if atom.c_dtype.name != "f32" or c.dtype.kind != "float":
        raise PlanError(f"sums of {atom.c_dtype}, c is {c}: a main loop that promotes computes in f32, stores floats")


@dataclass(frozen=True)
class ThreadNumbers:
    """A table's numbers in a thread's registers.

    segment  neighbouring columns of a warp's part that have one number wherever the tile lies; else 1
    sums     of an element of C, each of which reads its own columns of the table
    """

    table: Table
    fragment: _NumberedValues
    segment: int
    sums: int

    @property
    def along(self) -> int:
        """The coordinate that the numbers are along: 0 of rows, 1 of columns."""
        return 0 if self.table.axis == "m" else 1

    @cached_property
    def first(self) -> tuple[tuple[int, int], ...]:
        """(a value with the number, the value's sum) of each slot, in order."""
        found: dict[tuple[int, int], tuple[int, int]] = {}
        for half in range(self.sums if self.along else 1):
            for value in range(self.fragment.accumulator_registers):
                found.setdefault(self._key(value, half), (value, half))
        return tuple(found.values())

    @cached_property
    def _keys(self) -> dict[tuple[int, int], int]:
        return {self._key(value, half): slot for slot, (value, half) in enumerate(self.first)}

    def _key(self, value: int, half: int) -> tuple[int, int]:
        at = int(self.fragment.coords_C(0, value)[self.along])
        return at // self.segment, half if self.along else 0

    def slot(self, value: int, half: int) -> int:
        """The slot of a value's number; `half`: the sum that it is of."""
        return self._keys[self._key(value, half)]

    def place(self, lane: W, slot: int) -> W:
        """The row, or column, in the warp's part whose number a slot has."""
        value, _ = self.first[slot]
        at = self.fragment.coords_C(lane, value)[self.along]
        if self.segment == 1:
            return at
        return lane * 0 + int(self.fragment.coords_C(0, value)[1]) // self.segment * self.segment


def number_slots(plan: PromotingPlan) -> tuple[ThreadNumbers, ...]:
    """The numbers of each table that a thread holds."""
    found = []
    for table in present(plan.mainloop).tables if plan.mainloop is not None else ():
        segment = 1 if table.axis == "m" else gcd(table.segment(plan.tile_c[1]), plan.warp_columns)
        segment = segment if segment % plan.fragment.lane_columns == 0 else 1
        found.append(ThreadNumbers(table, plan.fragment, segment, plan.sums))
    return tuple(found)


def number_checks(plan: PromotingPlan) -> list[Check]:
    """Each element is promoted with its own row's and column's numbers, wherever the tile lies."""
    if plan.mainloop is None:
        return []
    witness, count, lanes = "", 0, np.arange(WARP)
    for each in number_slots(plan):
        unit = plan.warp_columns if each.along else 1
        for first in (0, unit, 3 * unit):
            for value in range(plan.fragment.accumulator_registers):
                own = np.asarray(plan.fragment.coords_C(lanes, value)[each.along]) + first
                at = np.asarray(each.place(lanes, each.slot(value, 0))) + first
                wrong = np.argwhere(own // each.table.group != at // each.table.group)
                count += own.size
                if len(wrong) and not witness:
                    lane = int(wrong[0][0])
                    witness = (
                        f"{each.table.name}: lane {lane}, value {value} is of {own[lane]}, its number of {at[lane]}"
                    )
    held = ", ".join(f"{len(each.first)} of {each.table.name}" for each in number_slots(plan)) or "none"
    statement = f"total = {said(present(plan.mainloop).expression)}; a thread holds {held} for each K block"
    return [Check("numbers", statement, not witness, f"exhaustion ({count} elements)", witness)]


def explain_promoted(plan: PromotingPlan) -> list[str]:
    """The main loop and its numbers."""
    if plan.mainloop is None:
        return []
    held = ", ".join(f"{len(each.first)} of {each.table.name}" for each in number_slots(plan)) or "no numbers"
    return [
        f"main loop    total = {said(plan.mainloop.expression)}, for each {plan.mainloop.depth} of K; a thread reads "
        f"{held}, one K block ahead"
    ]


def numbers_at(
    plan: PromotingPlan, tables: Mapping[str, object], at: tuple[int, int, int], k_block: int, end: int | None = None
) -> dict[str, np.ndarray]:
    """Each table's numbers of a K block, (register, lane) of a warp's part.

    at   first row, first column and group of the warp's part
    end  of its rows; None for the product's
    """
    row, column, group = at
    found: dict[str, np.ndarray] = {}
    for each in number_slots(plan):
        value = np.asarray(tables[each.table.name], np.float32)
        value = value[group] if value.ndim > 2 else value
        count, lanes = plan.fragment.accumulator_registers, np.arange(WARP)
        made = np.empty((plan.sums * count, WARP), np.float32)
        for half in range(plan.sums):
            for v in range(count):
                place = np.asarray(each.place(lanes, each.slot(v, half))) + (column if each.along else row)
                line = np.minimum(place, (plan.n if each.along else end or plan.m) - 1)
                line = line + half * columns_between(each.table, plan.n) * each.along
                made[plan.fragment.register(v) + half * count] = value[line // each.table.group, k_block]
        found[each.table.name] = made
    return found
