"""Sums of A's rows beside a product.

step             when                                         does
-------------    -----------------------------------------    ------------------------------------------------------
add_rows         a K tile's products are under way            ld.shared of the tile of A, added in f32; only for
                                                              tiles with column 0
store_rows       behind a tile's products                     shuffles, and stores by the lanes that lead

See `kernels.sm90.operands.row_sums`.
"""

from __future__ import annotations

from collections.abc import Sequence

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from ....atoms.copy.base import WARP
from ...dsl import bridge
from ...dsl.math import store_value
from ...dsl.tables import load_words_shared
from ...plan import present
from ...store import ROWS
from ..operands.row_sums import EXCHANGES, FIRST_ROW, ROW_VECTOR, column_of, loads_of_block
from .along_k import GroupsAlongK
from .fused import Sm90FusedKernel


class AddedRows(Sm90FusedKernel):
    """Consumers that add the rows of A."""

    def row_sums(self) -> list[cute.Tensor]:
        """A lane's sums: 8 rows of each block."""
        return [cute.make_rmem_tensor(cute.make_layout(ROW_VECTOR), Float32) for _ in range(self.plan.blocks)]

    @cute.jit
    def add_rows(
        self, job: bridge.Carried, rows: Sequence[cute.Tensor], stage: Int32, at: tuple[Int32, Int32, Int32]
    ) -> None:
        """Add a K tile. `at`: (the warpgroup's first block, thread, first column of C)."""
        plan = self.plan
        first, thread, column = at
        if column == 0:
            lane, warp = thread % WARP, thread // WARP
            for block in cutlass.range_constexpr(plan.blocks):
                for load in cutlass.range_constexpr(loads_of_block(plan)):
                    row = (first + block) * ROWS + FIRST_ROW(lane, warp)
                    address = (job.shared.a(stage) + plan.a.smem.byte(row, column_of(lane, load))).toint()
                    values = [x for word in load_words_shared(address) for x in bridge.floats_of(word, plan.a.dtype)]
                    for v in cutlass.range_constexpr(ROW_VECTOR):
                        rows[block][v] += values[v]
            bridge.warp_sync()  # see `release`

    @cute.jit
    def store_rows(self, job: bridge.Carried, rows: Sequence[cute.Tensor], thread: Int32, origin: bridge.Place) -> None:
        """Bring the lanes' sums together and store them. `origin`: of the warpgroup's first block."""
        plan, (first, column, matrix) = self.plan, origin
        if column == 0:
            lane, warp, kind = thread % WARP, thread // WARP, present(plan.row_sums).dtype
            for block in cutlass.range_constexpr(plan.blocks):
                row = first + block * ROWS + FIRST_ROW(lane, warp)
                for v in cutlass.range_constexpr(ROW_VECTOR):
                    total = rows[block][v]
                    for distance in EXCHANGES:
                        total += cute.arch.shuffle_sync_bfly(total, distance)
                    place = Int64(row + v)
                    if cutlass.const_expr(plan.batch > 1):
                        place += Int64(matrix) * job.given.row_sums_batch
                    address = job.given.row_sums + place * kind.bytes
                    store_value(address, total, kind, (lane < EXCHANGES[0]) & (row + v < job.m))


class Sm90RowSumsKernel(AddedRows):
    """The production kernel with the sums of A's rows."""


class Sm90AlongKRowSumsKernel(AddedRows, GroupsAlongK):
    """And with K tiles of a group each."""
