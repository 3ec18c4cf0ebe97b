"""Blackwell GEMMs of groups of rows, and of groups along K. The tables are those of `dsl.group_table`.

role        groups of rows                                      groups along K
--------    ------------------------------------------------    --------------------------------------------------------
all         make the tables before the first tile               make the table of lines
loader      loads A's rows of a tile, those behind the          counts K tiles from the group's end: boxes have zeros in
            group's end too                                     place of the lines before it
mma         as ever                                             multiplies as many K tiles
epilogue    a box of 32 rows ends with its group                as ever; of blocks of K it stores NaN where a group
                                                                begins or ends inside of one
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import cutlass
from cutlass import Boolean, Float32, Int32, Int64

from ....atoms import TmaPlan, TmemCopyAtom
from ...dsl import bridge
from ...dsl.group_table import GroupTable, TablesOfGroups, end_of_rows
from ...dsl.tables import WordReads, choose
from ...grouped.along_k import is_refused, load_extents, place_in_group
from ...grouped.rows import tile_of_group
from ...grouped.stores import store_extents, store_place
from ...plan import present, tile_count
from ..block_scales import first_chunks
from ..plan import BLOCK_ROWS, Sm100Plan
from .epilogue import Sm100Epilogue
from .fused import Sm100FusedKernel
from .indexed import Sm100IndexedKernel, Sm100ScatterEpilogue


class EndOfGroup(Sm100Epilogue):
    """Stores and writes that end with a group: `job.end`."""

    def end(self, job: bridge.Carried) -> Int32:
        """The row behind the last of the tile's group."""
        return job.end

    def place(self, job: bridge.Carried, corner: bridge.Place, column: int) -> dict[str, Int32]:
        """The box of a warp's rows, up to the group's end."""
        lines = self.plan.store.box_rows
        return {**store_place(corner[0], job.end, corner[1] + column, lines, cutlass.min), "l": corner[2]}


class ScatterOfGroup(EndOfGroup, Sm100ScatterEpilogue):
    """Scattered rows, up to the group's end."""


class GroupsOfRows(TablesOfGroups, Sm100FusedKernel):
    """The tiles of groups of rows, in place of a grid for each matrix."""

    plan: Sm100Plan

    def __init__(self, plan: Sm100Plan):
        super().__init__(plan)
        self.epilogue = ScatterOfGroup(plan) if plan.scatters else EndOfGroup(plan)

    def encoded(
        self, name: str, tma: TmaPlan, address: Int64, extents: Mapping[str, Int32], pitches: Sequence[Int64],
        words: Sequence[Int64],
    ) -> bridge.TensorMap:  # fmt: skip
        """Host side: the tensor map of a matrix. C's begins a box before C, and has the group's end as a dimension."""
        if name == "c" and not self.plan.scatters:
            lines, pitch = self.plan.store.box_rows, pitches[0]
            address -= Int64(lines) * pitch * self.plan.c.dtype.bytes
            extents = {**extents, **store_extents(extents["m"], extents["n"], lines)}
            pitches = pitch, pitch, *pitches[1:]
        return super().encoded(name, tma, address, extents, pitches, words)

    def most_tiles(self, across: tuple[Int32, Int32], batch: Int32, reads: WordReads | None) -> Int32:
        """Host side: tiles at most. Each group may end with a part of one, or, masked, have all its rows."""
        rows = across[0] * batch if present(self.plan.ragged).masked else across[0] + batch
        return rows * across[1]

    def count_tiles(self, job: bridge.Carried, batch: Int32, thread: Int32) -> Int32:
        """Make the tables; the number of all tiles."""
        return self.make_tables(job, batch, thread)

    def origin(self, job: bridge.Carried, tile: Int32) -> bridge.Place:
        """This CTA's first row, first column and group of a tile of C."""
        plan, table = self.plan, GroupTable(self.plan, job.shared)
        ragged = present(plan.ragged)
        group = ragged.find(table.first, tile, choose)
        start, end = ragged.rows(table.entry, group)
        number, columns = tile - table.first(group), tile_count(job.n, plan.tile_c[1])
        row, column = tile_of_group(plan, number, end - start, columns, Int32(0), (cutlass.min, choose))
        return start + row * plan.tile_c[0] + job.rank * BLOCK_ROWS, column * plan.tile_c[1], group

    def of_loaded_tile(self, job: bridge.Carried, row: Int32, matrix: Int32) -> bridge.Carried:
        """With the tile's number among those of 128 rows, for block scales."""
        if self.plan.scales is not None and self.plan.scales.joined:
            table, columns = GroupTable(self.plan, job.shared), tile_count(job.n, self.plan.tile_c[1])
            chunks = first_chunks(self.plan, row, table.entry(matrix), table.first(matrix), columns)
            job = job.extended(first_chunks=chunks)
        return super().of_loaded_tile(job, row, matrix)

    def of_stored_tile(self, job: bridge.Carried, row: Int32, matrix: Int32) -> bridge.Carried:
        """With the end of the tile's group."""
        return super().of_stored_tile(job.extended(end=end_of_rows(self.plan, job, matrix)), row, matrix)


class Sm100PlainGroups(GroupsOfRows):
    """Groups of rows in order."""


class Sm100IndexedGroups(GroupsOfRows, Sm100IndexedKernel):
    """Groups of rows that are gathered, or scattered."""


class RefusedGroups(Sm100Epilogue):
    """Sums of a group along K. NaN where it begins or ends inside of a block: `job.refused`."""

    def loaded(self, job: bridge.Carried, ld: TmemCopyAtom, own: Int32, column: Int32 | int) -> list[Float32]:
        """The values of each sum for the columns of C from `column` on."""
        values = super().loaded(job, ld, own, column)
        return [Float32(cutlass.select_(Boolean(job.refused), Float32(math.nan), x)) for x in values]


class Sm100GroupsAlongK(TablesOfGroups, Sm100FusedKernel):
    """K tiles of a group each."""

    plan: Sm100Plan

    def __init__(self, plan: Sm100Plan):
        super().__init__(plan)
        if present(plan.along_k).in_blocks:
            self.epilogue = RefusedGroups(plan)

    def encoded(
        self, name: str, tma: TmaPlan, address: Int64, extents: Mapping[str, Int32], pitches: Sequence[Int64],
        words: Sequence[Int64],
    ) -> bridge.TensorMap:  # fmt: skip
        """Host side: the tensor map of a matrix. Those of A and B have the first line that is read as a dimension."""
        if name != "c" and not present(self.plan.along_k).in_blocks:
            extents, pitches = {**extents, **load_extents(extents["k"], self.plan.tile[2])}, (pitches[0],) * 2
        return super().encoded(name, tma, address, extents, pitches, words)

    def count_tiles(self, job: bridge.Carried, batch: Int32, thread: Int32) -> Int32:
        """Make the table; the number of all tiles."""
        self.make_lines(job, batch, thread)
        return super().count_tiles(job, batch, thread)

    def of_loaded_tile(self, job: bridge.Carried, row: Int32, matrix: Int32) -> bridge.Carried:
        """With the lines of the tile's group, and its K tiles."""
        return super().of_loaded_tile(job.extended(lines=self.lines_of_group(job, matrix)), row, matrix)

    def count_k_tiles(self, job: bridge.Carried) -> Int32:
        """K tiles of a group."""
        return job.lines[2]

    def k_tiles_of_tile(self, job: bridge.Carried, tile: Int32) -> Int32:
        """K tiles of a tile's group."""
        return self.lines_of_group(job, self.origin(job, tile)[2])[2]

    def place_of_k(self, job: bridge.Carried, k_tile: Int32) -> dict[str, Int32]:
        """Coordinates along K of one of a group's K tiles."""
        return place_in_group(self.plan, job.lines[:2], k_tile, job.k, choose, cutlass.max)

    def of_stored_tile(self, job: bridge.Carried, row: Int32, matrix: Int32) -> bridge.Carried:
        """With 1 for a group of blocks of K that is refused, else 0."""
        if present(self.plan.along_k).in_blocks:
            start, end, _ = self.lines_of_group(job, matrix)
            job = job.extended(refused=choose(is_refused(self.plan, start, end, job.k), 1, 0))
        return super().of_stored_tile(job, row, matrix)
