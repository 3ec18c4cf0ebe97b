"""The main loop that promotes, by mma.sync. What a thread reads of each K block's numbers, and when.

    registers            hold
    -----------------    ------------------------------------------------------------------------------------------
    sums                 the product of one K block, which is a k tile; they begin at 0 in each
    totals               the totals, of as many elements
    numbers              one of each row that the thread has elements of, and of each segment of its columns

A thread loads the next K block's numbers before it multiplies this one, from global memory. Rows and columns outside of
the matrix, or of the tile's group, have the numbers of the last one inside: they are not stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import gcd
from typing import TYPE_CHECKING

import numpy as np

from ...atoms import MmaAtom
from ...atoms.copy.base import WARP
from ...errors import PlanError
from ...report import Check
from ..derive import Operand
from ..numbers import W
from ..operands.combinations import Asked, check_parts
from ..operands.promoted import Promoted, Table, as_promoted, columns_between, said
from ..plan import check_settings, present
from .fragment import WarpFragment

if TYPE_CHECKING:
    from .plan import Sm80Config, Sm80Plan

_LOOP = ("main loop",)  # the part of a product


def promoted_of(loop: Promoted | None, asked: Asked, config: Sm80Config, n: int) -> Promoted | None:
    """The main loop as a plan has it. Raises PlanError where no kernel has it.

    Of several sums its tables are in as many places.
    """
    if loop is None:
        return None
    # Threads gather rows as they copy them, and read numbers of the product's rows.
    check_parts([part for part in asked.parts if part != "gathered rows"], asked.batch, _LOOP)
    if asked.along_k is not None:
        raise PlanError("mainloop and along_k: by mma.sync K blocks are those of a whole K; scale A and B first")
    check_settings(config, "a main loop that promotes takes", loads="cp.async", persistent=False)
    if config.tile_k not in (None, loop.depth):
        raise PlanError(f"tile_k = {config.tile_k}: a k tile is what is promoted at a time, {loop.depth} elements")
    return loop.of_sums(asked.gated, n, config.tile[1])


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
    fragment: WarpFragment
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


def number_slots(plan: Sm80Plan) -> tuple[ThreadNumbers, ...]:
    """The numbers of each table that a thread holds."""
    found = []
    for table in present(plan.mainloop).tables if plan.mainloop is not None else ():
        segment = 1 if table.axis == "m" else gcd(table.segment(plan.tile_c[1]), plan.warp_columns)
        segment = segment if segment % plan.fragment.lane_columns == 0 else 1
        found.append(ThreadNumbers(table, plan.fragment, segment, plan.sums))
    return tuple(found)


def promoted_registers(plan: Sm80Plan) -> int:
    """Registers of a thread's totals and numbers, with those of the K block that follows."""
    if plan.mainloop is None:
        return 0
    m, n = plan.blocks
    return m * n * plan.mma.accumulator_registers + 2 * sum(len(each.first) for each in number_slots(plan))


def number_checks(plan: Sm80Plan) -> list[Check]:
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


def explain_promoted(plan: Sm80Plan) -> list[str]:
    """The main loop and its numbers."""
    if plan.mainloop is None:
        return []
    held = ", ".join(f"{len(each.first)} of {each.table.name}" for each in number_slots(plan)) or "no numbers"
    return [
        f"main loop    total = {said(plan.mainloop.expression)}, for each {plan.mainloop.depth} of K; a thread reads "
        f"{held}, one K block ahead"
    ]


def numbers_at(
    plan: Sm80Plan, tables: Mapping[str, object], at: tuple[int, int, int], k_block: int
) -> dict[str, np.ndarray]:
    """Each table's numbers of a K block.

    They are of a warp's values: (block along M, block along N, lane, value).

    at  first row, first column and group of the warp's part
    """
    row, column, group = at
    m, n = plan.blocks
    found: dict[str, np.ndarray] = {}
    for each in number_slots(plan):
        value = np.asarray(tables[each.table.name], np.float32)
        value = value[group] if value.ndim > 2 else value
        made = np.empty((m * n * plan.mma.accumulator_registers, WARP), np.float32)
        count, lanes = plan.fragment.accumulator_registers, np.arange(WARP)
        for half in range(plan.sums):
            for v in range(count):
                place = np.asarray(each.place(lanes, each.slot(v, half))) + (column if each.along else row)
                line = np.minimum(place, (plan.n if each.along else plan.m) - 1)
                line = line + half * columns_between(each.table, plan.n) * each.along
                made[plan.fragment.register(v) + half * count] = value[line // each.table.group, k_block]
        # registers of the warp: value + 4 * (block along M + blocks * block along N)
        found[each.table.name] = made.reshape(n, m, plan.mma.accumulator_registers, WARP).transpose(1, 0, 3, 2)
    return found
