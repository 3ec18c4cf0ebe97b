"""A Blackwell GEMM that gathers rows of A, or scatters rows of C. See `kernels.sm100.rows`.

role        does
--------    -------------------------------------------------------------------------------------------------------
loader      once for each tile of C a lane reads the indices of four rows, and shuffles give all lanes all of them;
            for each K tile one thread arms full[s], issues A's gathers and B's loads
epilogue    scatters: once for each tile a lane reads the index of its row; lane 0 issues the scatters of a round's
            buffers where it stores them else, and commits them as one group
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64

from ....atoms import TmaPlan
from ....atoms.copy.base import WARP
from ....atoms.tma.gather import one_row
from ....atoms.tmem.layout import WARP_LANES
from ...dsl import bridge
from ...dsl.tables import load_index
from ...indexed.rows import OUT_ROWS, ROWS
from ...plan import present
from ...store import StoreRound
from ..plan import Sm100Plan
from ..rows import READ_BY_LANES
from .epilogue import Sm100Epilogue
from .fused import Sm100FusedKernel


class Sm100ScatterEpilogue(Sm100Epilogue):
    """Stores of a warp's rows to wherever they belong. `job.out_row` is the row of C of the lane's own."""

    @cute.jit
    def issue(
        self, job: bridge.Carried, maps: bridge.Maps, corner: bridge.Place, round_: StoreRound, buffer: cute.Pointer,
        lane: Int32,
    ) -> None:  # fmt: skip
        """The scatters of a round whose chunks are in their buffer. `corner`: the warp's row, column, matrix."""
        rows = bridge.Carried(of=tuple([cute.arch.shuffle_sync(job.out_row, i) for i in range(WARP_LANES)]))
        bridge.shared_writes_visible()
        bridge.warp_sync()
        if lane == 0:
            for chunk in round_.chunks:
                origin = {"n": corner[1] + chunk.column}
                tma = self.plan.store.maps[chunk.map]
                bridge.scatter_tile(maps[chunk.map], tma, origin, rows.of, buffer + chunk.offset)
            bridge.commit_stores()


class Sm100IndexedKernel(Sm100FusedKernel):
    """The production kernel with indexed rows."""

    def __init__(self, plan: Sm100Plan):
        super().__init__(plan)
        if plan.scatters:
            self.epilogue: Sm100Epilogue = Sm100ScatterEpilogue(plan)

    def encoded(
        self, name: str, tma: TmaPlan, address: Int64, extents: Mapping[str, Int32], pitches: Sequence[Int64],
        words: Sequence[Int64],
    ) -> bridge.TensorMap:  # fmt: skip
        """Host side: the tensor map of a matrix. Its boxes have one row where its rows are chosen."""
        if name in self.chosen:
            rows = dict(zip(self.plan.words, words, strict=True))[f"{name}_rows"]
            if self.plan.matrices_of_c > 1:
                rows += Int64(extents["l"] - 1) * rows_apart(pitches)
            tma, extents, pitches = one_row(tma), {**extents, "m": Int32(rows)}, pitches[:1]
        return super().encoded(name, tma, address, extents, pitches, words)

    @property
    def apart(self) -> tuple[str, ...]:
        """Names of the kernel's further words: rows between the matrices of a batch."""
        return tuple([f"{name}_apart" for name in self.chosen]) if self.plan.matrices_of_c > 1 else ()

    def kernel_words(self, words: Sequence[Int64], pitches: Mapping[str, tuple[Int64, Int64]]) -> Sequence[Int64]:
        """Host side: the plan's words, then those of `apart`."""
        return (*words, *[rows_apart(pitches[name[0]]) for name in self.apart])

    def given(self, words: Sequence[Int64]) -> bridge.Carried:
        """The kernel's words by name."""
        return bridge.Carried(**dict(zip((*self.plan.words, *self.apart), words, strict=True)))

    @property
    def chosen(self) -> tuple[str, ...]:
        """The matrices whose rows are chosen."""
        return ("a",) * self.plan.gathers + ("c",) * self.plan.scatters

    def of_loaded_tile(self, job: bridge.Carried, row: Int32, matrix: Int32) -> bridge.Carried:
        """With the rows of A of this block's rows of a tile, in every lane. Registers, as K tiles read them again."""
        if not self.plan.gathers:
            return job
        lane, values = cute.arch.lane_idx(), READ_BY_LANES.shape[0]
        own = [self.row_of(job, ROWS, row + READ_BY_LANES(v, lane), matrix, job.m) for v in range(values)]
        every = {READ_BY_LANES(v, of): cute.arch.shuffle_sync(own[v], of) for v in range(values) for of in range(WARP)}
        return job.extended(rows_of_a=tuple([every[i] for i in range(len(every))]))

    def load_a(
        self, job: bridge.Carried, tensor_map: bridge.TensorMap, origin: Mapping[str, Int32],
        destination: cute.Pointer, full: cute.Pointer,
    ) -> None:  # fmt: skip
        """Issue the gathers of A's tile. Called by one thread."""
        if not self.plan.gathers:
            super().load_a(job, tensor_map, origin, destination, full)
            return
        tma, pair = self.plan.a.tma, self.plan.blocks > 1
        bridge.gather_tile(tensor_map, tma, origin, job.rows_of_a, destination, full, pair)

    def of_stored_tile(self, job: bridge.Carried, row: Int32, matrix: Int32) -> bridge.Carried:
        """With the row of C of the lane's row."""
        if not self.plan.scatters:
            return job
        number = row + job.warp * WARP_LANES + cute.arch.lane_idx()
        return job.extended(out_row=self.row_of(job, OUT_ROWS, number, matrix, self.epilogue.end(job)))

    def row_of(self, job: bridge.Carried, name: str, number: Int32, matrix: Int32, end: Int32) -> Int32:
        """The row of A or C that is row `number` of the product. The number of all rows for one outside.

        end  row behind the product's last
        Rows are counted over the matrices of a batch, `matrix` being the product's.
        """
        indexed, of_batch = present(self.plan.indexed), self.plan.matrices_of_c > 1
        found = load_index(indexed, job, name, number, end, matrix if of_batch else None)
        operand = indexed.of(name)[1]
        outside, row = Int64(getattr(job.given, f"{operand}_rows")), found
        if of_batch:
            apart = getattr(job.given, f"{operand}_apart")
            outside, row = outside + Int64(job.batch - 1) * apart, found + Int64(matrix) * apart
        return Int32(cutlass.select_(Boolean(found >= 0), row, outside))


def rows_apart(pitches: Sequence[Int64]) -> Int64:
    """Rows from matrix to matrix, of (elements from row to row, from matrix to matrix)."""
    return pitches[1] // pitches[0]
