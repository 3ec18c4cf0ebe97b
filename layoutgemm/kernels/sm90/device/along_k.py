"""The kernel of groups along K. The table of their lines, and K tiles that begin with their group.

step                          threads     does
--------------------------    --------    --------------------------------------------------------------------------
a tile's share of K           loader,     its group's first line and end, and its K tiles
                              consumers
behind a tile's products      consumers   of groups in blocks of K: zeros for an empty group, NaN for one that begins or
                                          ends inside of a block

See `kernels.grouped.along_k`; the table is that of `dsl.group_table`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from ....atoms import TmaPlan
from ...dsl import bridge
from ...dsl.group_table import TablesOfGroups
from ...dsl.tables import choose
from ...grouped.along_k import first_block, is_refused, load_extents, place_in_group
from ...plan import present
from .fused import Sm90FusedKernel
from .prologue import Sm90PrologueKernel
from .promoted import Sm90PromotedKernel


class GroupsAlongK(TablesOfGroups, Sm90FusedKernel):
    """K tiles of a group each."""

    def map_of_lines(
        self, tma: TmaPlan, address: Int64, pitches: tuple[Int64, ...], extents: Mapping[str, Int32]
    ) -> bridge.TensorMap:
        """One of the operands' tensor maps, the first line that is read a dimension."""
        if present(self.plan.along_k).in_blocks:
            return super().map_of_lines(tma, address, pitches, extents)
        pitch = pitches[0]
        of = {**extents, **load_extents(extents["k"], self.plan.tile[2])}
        return bridge.encode_tensor_map(tma, address, of, pitch, pitch)

    def job_of(
        self, shared: bridge.SharedMemory, place: tuple[Int32, ...], sizes: tuple[Int32, Int32, Int32],
        c: tuple[Int64, Int64, Int64], words: tuple[Int64, ...],
    ) -> bridge.Carried:  # fmt: skip
        """The same, and K, to which offsets are held. The job of a prologue has K already."""
        job = super().job_of(shared, place, sizes, c, words)
        return job if self.plan.prologue is not None else job.extended(k=sizes[2])

    def count_tiles(self, job: bridge.Carried, batch: Int32, thread: Int32) -> Int32:
        """Make the table; the number of all tiles of clusters."""
        self.make_lines(job, batch, thread)
        return job.count * batch

    def share_of_k(self, job: bridge.Carried, place: bridge.Place) -> tuple[Int32, ...]:
        """(first line, end, K tiles) of a group."""
        return self.lines_of_group(job, place[2])

    def lines_of_k(self, job: bridge.Carried, share: tuple[Int32, ...]) -> tuple[Int32, Int32]:
        """The first line of a group, and its end."""
        return share[0], share[1]

    def count_k_tiles(self, job: bridge.Carried, share: tuple[Int32, ...]) -> Int32:
        """K tiles of a group."""
        return share[2]

    def place_of_k(self, job: bridge.Carried, share: tuple[Int32, ...], k_tile: Int32) -> dict[str, Int32]:
        """Coordinates along K of one of a group's K tiles."""
        return place_in_group(self.plan, share[:2], k_tile, job.k, choose, cutlass.max)

    def first_number(self, job: bridge.Carried, share: tuple[Int32, ...]) -> Int32:
        """The K block that a group begins with."""
        return first_block(self.plan, share[0], job.k, cutlass.min)

    @cute.jit
    def settle_group(
        self, job: bridge.Carried, share: tuple[Int32, ...], sums: Sequence[cute.Tensor]
    ) -> None:  # fmt: skip
        """Zeros for an empty group in blocks of K, whose numbers are another's. NaN for one inside of a block."""
        if cutlass.const_expr(present(self.plan.along_k).in_blocks):
            refused = is_refused(self.plan, share[0], share[1], job.k)
            if refused or share[1] <= share[0]:
                value = cutlass.select_(refused, Float32(math.nan), Float32(0))
                for number in cutlass.range_constexpr(len(sums)):
                    sums[number].fill(value)


class Sm90AlongKKernel(GroupsAlongK):
    """The production kernel with K tiles of a group each."""


class Sm90AlongKPromotedKernel(GroupsAlongK, Sm90PromotedKernel):
    """And with a main loop that promotes."""


class Sm90AlongKPrologueKernel(GroupsAlongK, Sm90PrologueKernel):
    """And with a function of A's elements."""
