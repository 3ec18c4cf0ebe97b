"""The tables of groups in shared memory, and the end of a tile's rows."""

from __future__ import annotations

from typing import Any

from cutlass import Int32

from ...dsl import bridge
from ...dsl.tables import load_word_shared
from ..grouped import ENTRY_BYTES
from ..plan import Sm90Plan


class GroupTable(bridge.Carried):
    """The two tables in a block's shared memory, and the place of its first tile."""

    def __init__(self, plan: Any, shared: bridge.SharedMemory):
        starts = shared.base + plan.smem.table_offset
        place = starts + plan.groups.place_offset
        super().__init__(starts=starts, firsts=starts + plan.groups.entries * ENTRY_BYTES, place=place)

    def enter(self, group: Int32, number: Int32, tiles: Int32) -> None:
        """Write a group's entries of both tables."""
        for start, value in ((self.starts, number), (self.firsts, tiles)):
            bridge.store_shared((start + group * ENTRY_BYTES).toint(), (value,))

    def entry(self, group: Int32) -> Int32:
        """First row of a group; beyond the last group A's rows. Of masked groups the rows that count."""
        return load_word_shared((self.starts + group * ENTRY_BYTES).toint())

    def first(self, group: Int32) -> Int32:
        """Tiles in the groups before this one; beyond the last group all tiles."""
        return load_word_shared((self.firsts + group * ENTRY_BYTES).toint())


def end_of_rows(plan: Sm90Plan, job: bridge.Carried, matrix: Int32) -> Int32:
    """The row of the product at which the rows of a tile end. Its last one, or that of the tile's group."""
    if plan.ragged is None:
        return job.m
    _, end = plan.ragged.rows(GroupTable(plan, job.shared).entry, matrix)
    return end
