"""Kernels over a ragged batch: the table of groups, made at the start, and what a tile's number means. See sm90_ragged.

step                          threads     does
--------------------------    --------    --------------------------------------------------------------------------
starts                        all         entry e: offsets[e] from global memory, the last one beyond the last group
barrier 0                     all
first                         all         entry e: the sum of the tiles of the groups before e
barrier 0                     all         from here on both tables are only read
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ...dsl import bridge
from ...dsl.tables import choose, load_word, load_word_shared
from ...plan import tile_count
from ...store import WARP_ROWS
from ..grouped import ENTRY_BYTES, clusters_of, store_extents, store_place
from .epilogue import Sm90Epilogue
from .fused import Sm90FusedKernel
from .promoted import Sm90PromotedKernel


class GroupTable(bridge.Carried):
    """The two tables in a block's shared memory."""

    def __init__(self, plan: Any, shared: Any):
        starts = shared.base + plan.smem.table_offset
        super().__init__(starts=starts, firsts=starts + plan.ragged.entries * ENTRY_BYTES)

    def start(self, group: Any) -> Any:
        """First row of a group; beyond the last group A's rows."""
        return load_word_shared((self.starts + group * ENTRY_BYTES).toint())

    def first(self, group: Any) -> Any:
        """Tiles in the groups before this one; beyond the last group all tiles."""
        return load_word_shared((self.firsts + group * ENTRY_BYTES).toint())


class RaggedEpilogue(Sm90Epilogue):
    """Stores that end with a group."""

    def place(self, job: Any, row: Any, column: Any, matrix: Any) -> dict[str, Any]:
        """A warp's box."""
        return store_place(row, GroupTable(self.plan, job.shared).start(matrix + 1), column, cutlass.min)


class RaggedTiles:
    """The tiles of a ragged batch, in place of a grid for each matrix."""

    plan: Any

    def __init__(self, plan: Any):
        super().__init__(plan)  # type: ignore[call-arg]
        self.epilogue: Sm90Epilogue = RaggedEpilogue(plan)

    def map_of_c(self, tma: Any, c: Any, extents: Any, pitches: Any) -> Any:
        """C's map, with the end of a group as a dimension: it begins some rows before C."""
        plan, pitch = self.plan, pitches["c"][0]
        base = c - Int64(WARP_ROWS) * pitch * plan.c.dtype.bytes
        return bridge.encode_tensor_map(tma, base, store_extents(extents["m"], extents["n"]), pitch, pitch)

    def most_tiles(self, m: Any, n: Any, batch: Any) -> Any:
        """Tiles of clusters, at most: each group may end with a part of one."""
        rows, columns = (
            self.plan.order.clusters((tile_count(m, self.plan.tile_c[0]), 1))[0],
            tile_count(n, self.plan.tile_c[1]),
        )
        return (rows + batch) * self.plan.order.clusters((1, columns))[1]

    @cute.jit
    def count_tiles(self, job: Any, batch: Any, thread: Any) -> Any:
        """Make the table; the number of all tiles of clusters."""
        plan = self.plan
        ragged, table = plan.ragged, GroupTable(plan, job.shared)
        columns = tile_count(job.n, plan.tile_c[1])
        steps = -(-ragged.entries // plan.threads)
        for i in cutlass.range_constexpr(steps):
            entry = i * plan.threads + thread
            if entry < ragged.entries:
                at = Int64(cutlass.min(entry, batch)) * ragged.offset_bytes
                bridge.store_shared((table.starts + entry * ENTRY_BYTES).toint(), (load_word(job.given.offsets + at),))
        bridge.block_sync()
        for i in cutlass.range_constexpr(steps):
            entry = i * plan.threads + thread
            if entry < ragged.entries:
                tiles = Int32(0)
                for group in cutlass.range(cutlass.min(entry, batch), unroll=4):
                    rows = cutlass.max(table.start(group + 1) - table.start(group), 0)
                    tiles += clusters_of(plan, rows, columns)
                bridge.store_shared((table.firsts + entry * ENTRY_BYTES).toint(), (tiles,))
        bridge.block_sync()
        return bridge.uniform(table.first(ragged.capacity))

    def origin(self, job: Any, tile: Any) -> tuple[Any, Any, Any]:
        """First row, first column and group of this CTA's tile of C."""
        plan = self.plan
        table = GroupTable(plan, job.shared)
        group = plan.ragged.find(table.first, tile, choose)
        start = table.start(group)
        along_m, along_n = plan.config.cluster
        rows = cutlass.max(tile_count(table.start(group + 1) - start, plan.tile_c[0] * along_m), 1)
        grid = (rows * along_m, job.columns * along_n)
        row, column = plan.order.tile(tile - table.first(group), 0, job.rank, grid, cutlass.min)
        return start + row * plan.tile_c[0], column * plan.tile_c[1], group


class Sm90RaggedKernel(RaggedTiles, Sm90FusedKernel):
    """The production kernel over a ragged batch."""


class Sm90RaggedPromotedKernel(RaggedTiles, Sm90PromotedKernel):
    """And with a main loop that promotes."""
