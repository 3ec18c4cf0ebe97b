"""The tables of groups in shared memory, which each block makes at its start. See `kernels.grouped`.

step                          threads     does
--------------------------    --------    --------------------------------------------------------------------------
starts                        a warp      entry e: offsets[e] from global memory, or the end before it, the last one
                                          beyond the last group;
                                          of masked groups counts[e], from 0 to M, and 0 beyond the last group
first                         the same    entry e: the sum of the tiles of the groups before e, by shuffles
place                         a lane      of the block's first tile, where the kernel says it: the lane with its group
barrier 0                     all         from here on both tables are only read

Groups along K have the first table alone, whose entries are lines of K.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...atoms.copy.base import WARP
from ..grouped.along_k import k_tiles_of
from ..grouped.plan import GroupedPlan
from ..grouped.rows import clusters_of
from ..plan import present, tile_count
from ..ragged import ENTRY_BYTES
from . import bridge
from .tables import group_entry, load_first, load_word_shared, sum_of_lanes_before


class GroupTable(bridge.Carried):
    """The two tables in a block's shared memory, and the place of its first tile."""

    def __init__(self, plan: GroupedPlan, shared: bridge.SharedMemory):
        starts, groups = shared.base + plan.smem.table_offset, present(plan.groups)
        firsts, place = starts + groups.entries * ENTRY_BYTES, starts + groups.place_offset
        super().__init__(starts=starts, firsts=firsts, place=place)

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


def end_of_rows(plan: GroupedPlan, job: bridge.Carried, matrix: Int32) -> Int32:
    """The row of the product at which the rows of a tile end. Its last one, or that of the tile's group."""
    if plan.ragged is None:
        return job.m
    _, end = plan.ragged.rows(GroupTable(plan, job.shared).entry, matrix)
    return end


class TablesOfGroups:
    """A kernel whose blocks make the tables of their groups."""

    plan: Any  # of each kernel's own type

    @cute.jit
    def make_tables(self, job: bridge.Carried, batch: Int32, thread: Int32) -> Int32:
        """Make both tables, of groups of rows, by one warp.

        Returns the number of all tiles of clusters. A lane has some neighbouring groups.
        """
        plan = self.plan
        groups, table, lane = plan.groups, GroupTable(plan, job.shared), thread % WARP
        if bridge.uniform(thread // WARP) == plan.threads // WARP - 1:  # the first one sets up barriers
            each, given = groups.capacity // WARP, getattr(job.given, groups.name)
            most = self.most_rows(job, batch)
            numbers = [group_entry(groups, given, lane * each + i, batch, most) for i in range(each + 1)]
            firsts = [Int32(0)]
            for group in cutlass.range_constexpr(each):
                start, end = groups.rows(numbers.__getitem__, group)
                firsts.append(firsts[-1] + self.group_tiles(job, cutlass.max(end - start, 0)))
            before = sum_of_lanes_before(firsts[-1], lane)
            for i in cutlass.range_constexpr(each):
                table.enter(lane * each + i, numbers[i], before + firsts[i])
            if lane == WARP - 1:
                table.enter(Int32(groups.capacity), numbers[each], before + firsts[each])
            counted = job.extended()
            counted.tiles = cute.arch.shuffle_sync(before + firsts[each], WARP - 1)  # type: ignore[attr-defined]
            self.say_first(counted, table, [before + first for first in firsts], numbers)
        bridge.block_sync()
        return bridge.uniform(table.first(groups.capacity))

    def say_first(
        self, job: bridge.Carried, table: GroupTable, firsts: Sequence[Int32], numbers: Sequence[Int32]
    ) -> None:
        """Write the place of the block's first tile, if the kernel reads it. `job`: with the number of tiles.

        firsts, numbers  a lane's entries of both tables
        """

    def most_rows(self, job: bridge.Carried, batch: Int32) -> Int32:
        """The rows of a masked group, as many as may count."""
        return job.m

    def group_tiles(self, job: bridge.Carried, lines: Int32) -> Int32:
        """Tiles of clusters of a group of that many rows."""
        return clusters_of(self.plan, lines, tile_count(job.n, self.plan.tile_c[1]))

    @cute.jit
    def make_lines(self, job: bridge.Carried, batch: Int32, thread: Int32) -> None:
        """Make the table of groups along K: their first lines, held to K."""
        plan = self.plan
        along_k, table = present(plan.along_k), GroupTable(plan, job.shared)
        for i in cutlass.range_constexpr(-(-along_k.entries // plan.threads)):
            entry = i * plan.threads + thread
            if entry < along_k.entries:
                offset = load_first(getattr(job.given, along_k.name), entry, batch, along_k.offset_bytes, along_k.ends)
                held = cutlass.max(cutlass.min(offset, job.k), 0)
                bridge.store_shared((table.starts + entry * ENTRY_BYTES).toint(), (held,))
        bridge.block_sync()

    def lines_of_group(self, job: bridge.Carried, matrix: Int32) -> tuple[Int32, Int32, Int32]:
        """(first line, end, K tiles) of a group along K. Of a tile beyond the last one of some group."""
        group = cutlass.min(matrix, present(self.plan.along_k).capacity - 1)
        table = GroupTable(self.plan, job.shared)
        start, end = [bridge.uniform(table.entry(group + i)) for i in range(2)]
        return start, end, k_tiles_of(self.plan, cutlass.max(end - start, 0), cutlass.max)
