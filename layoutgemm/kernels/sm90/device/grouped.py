"""Kernels over a ragged batch: each tile's group. See `sm90.grouped`; the tables are `dsl.group_table`'s."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ....atoms.copy.base import VECTOR_BYTES, WARP
from ....atoms.tma.plan import TmaPlan
from ...dsl import bridge
from ...dsl.ampere import store_part, store_vector
from ...dsl.group_table import GroupTable, TablesOfGroups, end_of_rows
from ...dsl.tables import WordReads, choose, load_words_shared
from ...grouped.rows import tile_of_group
from ...grouped.stores import store_extents, store_place
from ...plan import present, tile_count
from ...store import ROWS, WARPS_OF_GROUP
from ..grouped import first_of_tile, is_turned, last_round, rows_before, tile_of_turn
from ..multicast import TURNED
from ..plan import Sm90Plan
from .epilogue import Sm90Epilogue
from .fused import Sm90FusedKernel
from .prologue import Sm90PrologueKernel
from .promoted import Sm90PromotedKernel


class RaggedEpilogue(Sm90Epilogue):
    """Stores that end with a group."""

    def place(self, job: bridge.Carried, row: Int32, column: Int32, matrix: Int32) -> dict[str, Int32]:
        """The box of an owner's rows."""
        plan, lines = self.plan, present(self.plan.store).box_rows
        if not plan.config.tuning.shift_last_tile:
            end = end_of_rows(plan, job, matrix)
            return {**store_place(row, end, column, lines, cutlass.min), "l": matrix}
        start, end = present(plan.ragged).rows(GroupTable(plan, job.shared).entry, matrix)
        before = rows_before(plan, row, (start, end), job.m, choose)
        first = row - before
        left_out = choose(first < first_of_tile(plan, row, start), Int32(1), Int32(0))
        return {**store_place(first, end, column, lines, cutlass.min, left_out), "l": matrix}


class RaggedTiles(TablesOfGroups):
    """The tiles of a ragged batch, in place of a grid for each matrix."""

    def __init__(self, plan: Sm90Plan):
        super().__init__(plan)  # type: ignore[call-arg]
        self.epilogue: Sm90Epilogue = RaggedEpilogue(plan)

    def map_of_c(
        self, tma: TmaPlan, c: Int64, extents: Mapping[str, Int32], pitches: Mapping[str, tuple[Int64, Int64]]
    ) -> bridge.TensorMap:
        """C's map, with the end of a group as a dimension. It begins some rows before C."""
        pitch, matrices = pitches["c"]
        lines = present(self.plan.store).box_rows
        base = c - Int64(lines) * pitch * self.plan.c.dtype.bytes
        of = {**store_extents(extents["m"], extents["n"], lines), "l": extents["l"]}
        return bridge.encode_tensor_map(tma, base, of, *(pitch, pitch, matrices)[: len(tma.dims) - 1])

    def most_tiles(self, m: Int32, n: Int32, batch: Int32, reads: WordReads | None) -> Int32:
        """Tiles of clusters, at most. Each group may end with a part of one, or, masked, have all its rows."""
        rows, columns = self.plan.order.clusters(self.grid_of(m, n))  # type: ignore[attr-defined]
        return (rows * batch if self.plan.ragged.masked else rows + batch) * columns

    def count_tiles(self, job: bridge.Carried, batch: Int32, thread: Int32) -> Int32:
        """Make the tables; the number of all tiles of clusters."""
        return self.make_tables(job, batch, thread)

    @cute.jit
    def say_first(
        self, job: bridge.Carried, table: GroupTable, firsts: Sequence[Int32], numbers: Sequence[Int32]
    ) -> None:
        """Write the place of the block's first tile, by the lane that has its group. A block without one has zeros."""
        job = self.with_rounds(job)
        ragged, lane = present(self.plan.groups), cute.arch.lane_idx()
        block, size = cute.arch.block_idx()[0], self.plan.cluster_size
        turn = self.first_tile(job, block // size, cute.arch.grid_dim()[0] // size)
        tile, line = self.tile_of(job, turn)
        if lane == 0 and turn >= job.tiles:
            bridge.store_shared(table.place.toint(), [Int32(0)] * 4)
        each, last, number = len(firsts) - 1, Int32(0), tile - firsts[0]
        rows = ragged.rows(numbers.__getitem__, 0)
        for i in cutlass.range_constexpr(1, each):  # the last group with a first tile that is not behind
            behind, of = firsts[i] > tile, ragged.rows(numbers.__getitem__, i)
            last, number = choose(behind, last, i), choose(behind, number, tile - firsts[i])
            rows = choose(behind, rows[0], of[0]), choose(behind, rows[1], of[1])
        if turn < job.tiles and firsts[0] <= tile and tile < firsts[each]:
            place = self.place_in(job, lane * each + last, number, rows, line)
            loaded = place[0] - rows_before(self.plan, place[0], rows, job.m, choose)
            bridge.store_shared(table.place.toint(), [*place, loaded])

    def first_place(self, job: bridge.Carried, tile: Int32) -> tuple[bridge.Place, Int32]:
        """The place of the block's first tile, and its first loaded row, from the table."""
        row, column, group, loaded = map(
            bridge.uniform, load_words_shared(GroupTable(self.plan, job.shared).place.toint())
        )
        return (row, column, group), loaded

    def with_rounds(self, job: bridge.Carried) -> bridge.Carried:
        """The job with the clusters' turns, of a last round that may be halved."""
        if not self.plan.config.tuning.halve_last_round:
            return job
        whole, turns = last_round(job.tiles, job.workers, choose)
        job = job.extended(whole=bridge.uniform(whole))
        job.tiles = bridge.uniform(turns)  # type: ignore[attr-defined]
        return job

    def own_turns(self, job: bridge.Carried, consumer: Int32) -> Int32:
        """The end of a consumer's turns: the second one has no halves."""
        if not self.plan.config.tuning.halve_last_round:
            return job.tiles
        return choose(consumer > 0, job.whole, job.tiles)

    def count_blocks(self, job: bridge.Carried, row: Int32, matrix: Int32) -> Int32:
        """The blocks of 64 rows, from `row` on, that begin before the group's end. A consumer has so many at most."""
        rows = end_of_rows(self.plan, job, matrix) - self.loaded_row(job, row, matrix)
        return cutlass.min(tile_count(cutlass.max(rows, 0), ROWS), self.plan.blocks)

    @cute.jit
    def after_tiles(self, job: bridge.Carried, tile: Int32) -> None:
        """Store zeros in rows of no group, where the plan asks for it."""
        if cutlass.const_expr(self.plan.ragged.clears):
            warps, size = self.plan.config.consumers * WARPS_OF_GROUP, self.plan.c.dtype.bytes
            thread, _, _ = cute.arch.thread_idx()
            block, _, _ = cute.arch.block_idx()
            blocks, _, _ = cute.arch.grid_dim()
            end = GroupTable(self.plan, job.shared).entry(Int32(self.plan.ragged.capacity))
            warp = bridge.uniform(thread // WARP % warps)  # of the consumers, whose warps are neighbours
            row = cutlass.max(end, 0) + block * warps + warp
            while row < job.m:
                line = job.c + Int64(row) * job.ldc * size
                if (line | Int64(job.n * size)) % VECTOR_BYTES == 0:
                    for at in cutlass.range(thread % WARP * VECTOR_BYTES, job.n * size, WARP * VECTOR_BYTES):
                        store_vector(line + at, [Int32(0)] * 4)
                else:
                    for at in cutlass.range(thread % WARP, job.n, WARP):
                        store_part(line + at * size, Int32(0), 0, 8 * size)
                row += blocks * warps

    def first_tile(self, job: bridge.Carried, cluster: Int32, clusters: Int32) -> Int32:
        """Likewise. A launch may have more clusters than tiles: those that have one are dealt out."""
        return self.plan.gpc_order.number(cluster, cutlass.min(clusters, job.tiles), cutlass.min)

    def origin(self, job: bridge.Carried, tile: Int32) -> bridge.Place:
        """First row, first column and group of this CTA's tile of C."""
        tile, line = self.tile_of(job, tile)
        table, groups = GroupTable(self.plan, job.shared), present(self.plan.groups)
        group = groups.find(table.first, tile, choose)
        return self.place_in(job, group, tile - table.first(group), groups.rows(table.entry, group), line)

    def tile_of(self, job: bridge.Carried, turn: Int32) -> tuple[Int32, Int32 | int]:
        """The tile of a turn, and a row in it: that of a half."""
        halves = self.plan.config.tuning.halve_last_round
        return tile_of_turn(self.plan, turn, job.whole, choose) if halves else (turn, 0)

    def place_in(
        self, job: bridge.Carried, group: Int32, number: Int32, rows: tuple[Int32, Int32], line: Int32 | int
    ) -> bridge.Place:
        """First row, first column and group of a tile of a group with these rows. `line`: the first row in the tile."""
        plan, (start, end) = self.plan, rows
        columns = tile_count(job.n, plan.tile_c[1])
        row, column = tile_of_group(plan, number, end - start, columns, job.rank, (cutlass.min, choose))
        return start + row * plan.tile_c[0] + line, column * plan.tile_c[1], group

    def loaded_row(self, job: bridge.Carried, row: Int32, matrix: Int32) -> Int32:
        """The row of A that a tile's loads begin at."""
        plan = self.plan
        if not plan.config.tuning.shift_last_tile:
            return row
        rows = plan.ragged.rows(GroupTable(plan, job.shared).entry, matrix)
        return bridge.uniform(row - rows_before(plan, row, rows, job.m, choose))

    def share_of_k(self, job: bridge.Carried, place: bridge.Place) -> tuple[Int32, ...]:
        """(1 if the tile's pair has turned, else 0), in the place of a share of K. It is () without such pairs."""
        plan, (row, _, matrix) = self.plan, place
        if not plan.turns:
            return ()
        start, end = plan.ragged.rows(GroupTable(plan, job.shared).entry, matrix)
        return (bridge.uniform(choose(is_turned(plan, row, start, end), Int32(1), Int32(0))),)

    def place_of_k(self, job: bridge.Carried, share: tuple[Int32, ...], k_tile: Int32) -> dict[str, Int32]:
        """Coordinates along K, and whether a pair has turned."""
        found: dict[str, Int32] = super().place_of_k(job, (), k_tile)  # type: ignore[misc]
        return {**found, TURNED: share[0]} if self.plan.turns else found


class Sm90RaggedKernel(RaggedTiles, Sm90FusedKernel):
    """The production kernel over a ragged batch."""


class Sm90RaggedPromotedKernel(RaggedTiles, Sm90PromotedKernel):
    """And with a main loop that promotes."""


class Sm90RaggedPrologueKernel(RaggedTiles, Sm90PrologueKernel):
    """And with a function of A's elements."""
