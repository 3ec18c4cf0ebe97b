"""Packed weights of several experts in one launch: the tiles of groups of C's columns. See `quantized.experts`."""

from __future__ import annotations

from collections.abc import Callable

import cutlass
from cutlass import Int32, Int64

from ...dsl import bridge
from ...dsl.group_table import GroupTable
from ...dsl.tables import WordReads
from ...plan import present, tile_count
from ..plan import Sm90Plan
from ..quantized.experts import tiles_of_group
from .epilogue import Sm90Epilogue
from .grouped import RaggedTiles
from .quantized import Sm90QuantizedKernel


class ExpertsEpilogue(Sm90Epilogue):
    """Direct stores that end with a group."""

    def limits(self, job: bridge.Carried, matrix: Int32) -> tuple[Int32, Int32]:
        """Rows of C, and the end of the group's columns."""
        _, end = columns_of(self.plan, job, GroupTable(self.plan, job.shared).entry, matrix)
        return job.m, end


def columns_of(
    plan: Sm90Plan, job: bridge.Carried, entry: Callable[[Int32], Int32], group: Int32
) -> tuple[Int32, Int32]:
    """The first column and the end of a group."""
    experts = present(plan.experts)
    each = job.n // job.groups if experts.masked else Int32(0)
    return experts.lines(entry, group, each)


class Sm90ExpertsKernel(RaggedTiles, Sm90QuantizedKernel):
    """The kernel with packed weights over groups of columns."""

    def __init__(self, plan: Sm90Plan):
        super().__init__(plan)
        self.epilogue = ExpertsEpilogue(plan)

    def job_of(
        self, shared: bridge.SharedMemory, place: tuple[Int32, ...], sizes: tuple[Int32, Int32, Int32],
        c: tuple[Int64, Int64, Int64], words: tuple[Int64, ...],
    ) -> bridge.Carried:  # fmt: skip
        """The same; C is one matrix."""
        return super().job_of(shared, place, sizes, (c[0], c[1], Int64(0)), words)

    def most_tiles(self, m: Int32, n: Int32, batch: Int32, reads: WordReads | None) -> Int32:
        """Tiles at most: each group may end with a part of one."""
        rows, columns = self.grid_of(m, n)
        return rows * (columns + batch)

    def most_rows(self, job: bridge.Carried, batch: Int32) -> Int32:
        """The columns of a masked group."""
        return job.n // batch

    def group_tiles(self, job: bridge.Carried, lines: Int32) -> Int32:
        """Tiles of a group of that many columns."""
        return tiles_of_group(self.plan, lines, tile_count(job.m, self.plan.tile_c[0]))

    def place_in(
        self, job: bridge.Carried, group: Int32, number: Int32, rows: tuple[Int32, Int32], line: Int32 | int
    ) -> bridge.Place:
        """First row, first column and expert of a tile of an expert with these columns."""
        plan, (start, end) = self.plan, rows
        columns = cutlass.max(tile_count(end - start, plan.tile_c[1]), 1)
        row, column = plan.order.tile(number, 0, job.rank, (job.rows, columns), cutlass.min)
        first = group * (job.n // job.groups) if present(plan.experts).masked else start
        return row * plan.tile_c[0], first + column * plan.tile_c[1], group
