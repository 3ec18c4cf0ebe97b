"""C = A @ B with packed weights whose tiles are strips of 16 output features. See `quantized.strips`.

    role        does
    --------    -------------------------------------------------------------------------------------------------------
    loader      a warp: waits for empty[s]; one lane arms full[s] and issues B's TMA loads; then each lane copies its 16
                bytes of every strip (cp.async) and arrives at full[s] when they have landed
    consumer    as in `device.quantized`; rows behind the tile's last strip are multiplied, and not stored
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr

from ....atoms.copy.base import VECTOR_BYTES
from ...dsl import bridge
from ...dsl.ampere import copy_bytes, copy_chunk
from ...plan import present, tile_count
from ...quantized.blocks import STRIP
from ..plan import Sm90Plan
from .epilogue import Sm90Epilogue
from .quantized import Sm90QuantizedKernel


class StripsEpilogue(Sm90Epilogue):
    """Direct stores that end with the tile's last strip."""

    def limits(self, job: bridge.Carried, matrix: Int32) -> tuple[Int32, Int32]:
        """The ends of the tile's rows and of C's columns."""
        return job.end, job.n


class StripsOfLane(bridge.Carried):
    """A lane's copies of a tile's strips.

    strips  of each strip the address of the lane's first vector, and `scales` of each round those of scales
    """

    def __init__(self, plan: Sm90Plan, job: bridge.Carried, first: Int32, lane: Int32):
        self.plan, self.copies = plan, present(plan.a.strips)
        copies, of, last = self.copies, first // STRIP, tile_count(job.m, STRIP) - 1

        def unit(strip: Int32 | int) -> tuple[Int64, Int32]:
            block, quarter = copies.place(of, strip, last, cutlass.min)
            return job.packed + (Int64(block) * job.units + job.k_first) * plan.a.packing.unit_bytes, quarter

        strips, scales = [], []
        for strip in range(copies.strips):
            start, quarter = unit(strip)
            strips.append(start + copies.source(lane, quarter, 0))
        for number in range(copies.scale_rounds):
            start, quarter = unit(copies.scale_strip(lane, number))
            scales.append(start + copies.scale_source(lane, number, quarter))
        super().__init__(strips=tuple(strips), scales=tuple(scales), lane=lane)

    def copy(self, job: bridge.Carried, k_tile: Int32, stage: Int32) -> None:
        """Copy a K tile into a stage. The lane arrives when its copies have landed."""
        copies, base = self.copies, job.shared.a(stage)
        along_k, own = Int64(k_tile) * self.plan.a.packing.unit_bytes, base + copies.target(self.lane, 0, 0)
        for strip, start in enumerate(self.strips):
            for vector in range(copies.order.vectors):
                source = start + along_k + copies.source(0, 0, vector)
                copy_bytes(own + copies.target(0, strip, vector), source, VECTOR_BYTES, Int32(VECTOR_BYTES))
        for number, start in enumerate(self.scales):
            there = copies.scale_strip(self.lane, number) < copies.strips
            copy_chunk(
                base + copies.scale_target(self.lane, number), start + along_k, Int32(VECTOR_BYTES), there
            )  # fmt: skip
        bridge.barrier_arrive_copied(job.shared.full(stage))


class Sm90StripsKernel(Sm90QuantizedKernel):
    """The kernel with packed weights, with tiles of strips."""

    def __init__(self, plan: Sm90Plan):
        super().__init__(plan)
        self.epilogue = StripsEpilogue(plan)

    def job_of(
        self, shared: bridge.SharedMemory, place: tuple[Int32, ...], sizes: tuple[Int32, Int32, Int32],
        c: tuple[Int64, Int64, Int64], words: tuple[Int64, ...],
    ) -> bridge.Carried:  # fmt: skip
        """The same, with the end of the rows of the CTA's only tile."""
        job = super().job_of(shared, place, sizes, c, words)
        first, _, _ = self.origin(job, Int32(0))
        return job.extended(end=cutlass.min(job.m, first + self.plan.tile_c[0]))

    def first_loads(self, job: bridge.Carried, ahead: tuple[Int32, ...]) -> tuple[Int32 | Int64, ...]:
        """No values: lanes have addresses of their own."""
        return ()

    def load_packed(self, job: bridge.Carried, origin: Mapping[str, Int32], stage: Int32, full: cute.Pointer) -> None:
        """No bulk copies: lanes copy the strips."""

    @cute.jit
    def gather_tiles(self, job: bridge.Carried, maps: Sequence[bridge.Maps], tile: Int32, thread: Int32) -> None:
        """The loader's warp: all K tiles of the CTA's only tile."""
        plan = self.plan
        m0, n0, matrix = self.origin(job, tile)
        strips = StripsOfLane(plan, job, m0, thread)
        stage, parity = Int32(0), Int32(1)
        for k_tile in cutlass.range(job.k_tiles, unroll=1):
            bridge.barrier_wait(job.shared.empty(stage), parity)
            if bridge.elect():
                self.issue_loads(job, maps, m0, n0, matrix, self.place_of_k(job, (), k_tile), stage)
            strips.copy(job, k_tile, stage)
            stage, parity = bridge.next_in_ring(stage, parity, plan.stages)
