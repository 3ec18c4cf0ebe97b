"""C = A @ B with packed weights whose tiles are strips of 16 output features. See `quantized.strips`.

role        does
--------    -------------------------------------------------------------------------------------------------------
loader      a warp or a warpgroup: waits for empty[s]; one lane arms full[s] and issues B's TMA loads; each thread
            copies its 16 bytes of strips (cp.async), and arrives at full[s] when they have landed
consumer    as in `device.quantized`; rows behind the tile's last strip are multiplied, and not stored
"""

from __future__ import annotations

from collections.abc import Sequence

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr

from ....atoms.copy.base import VECTOR_BYTES
from ....checks.budgets import WARPGROUP
from ...dsl import bridge
from ...dsl.ampere import copy_bytes, copy_chunk
from ...dsl.tables import choose
from ...operands.gated import HALF as GATE
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


class StripsOfThread(bridge.Carried):
    """A thread's copies of a tile's strips.

    starts  of each round the address of the thread's first vector of K tile 0, then of each one of scales
    """

    def __init__(self, plan: Sm90Plan, thread: Int32, starts: Sequence[Int64]):
        self.plan, self.copies = plan, present(plan.a.strips)
        super().__init__(thread=thread, starts=tuple(starts))

    @classmethod
    def addresses(cls, plan: Sm90Plan, job: bridge.Carried, first: Int32, thread: Int32) -> list[Int64]:
        """The starts, for a tile's first row."""
        copies, of, last = present(plan.a.strips), first // STRIP, tile_count(job.m, STRIP) - 1

        def unit(strip: Int32 | int) -> tuple[Int64, Int32]:
            block, quarter = copies.place(of, strip, last, cutlass.min)
            return job.packed + (Int64(block) * job.units + job.k_first) * plan.a.packing.unit_bytes, quarter

        found = []
        for number in range(copies.rounds):
            start, quarter = unit(copies.strip_of(thread, number))
            found.append(start + copies.source(thread, quarter, 0))
        for number in range(copies.scale_rounds):
            start, quarter = unit(copies.scale_strip(thread, number))
            found.append(start + copies.scale_source(thread, number, quarter))
        return found

    def copy(self, job: bridge.Carried, k_tile: Int32, stage: Int32) -> None:
        """Copy a K tile into a stage. The thread arrives when its copies have landed."""
        copies, base, each = self.copies, job.shared.a(stage), Int32(VECTOR_BYTES)
        along_k = Int64(k_tile) * self.plan.a.packing.unit_bytes
        for number, start in enumerate(self.starts[: copies.rounds]):
            strip = copies.strip_of(self.thread, number)
            for vector in copies.vectors:
                target, source = base + copies.target(self.thread, strip, vector), start + along_k
                source += copies.source(0, 0, vector)
                if const_expr(copies.strip_of(copies.threads - 1, number) < copies.strips):
                    copy_bytes(target, source, VECTOR_BYTES, each)
                else:
                    copy_chunk(target, source, each, strip < copies.strips)
        for number, start in enumerate(self.starts[copies.rounds :]):
            there = copies.scale_strip(self.thread, number) < copies.strips
            copy_chunk(base + copies.scale_target(self.thread, number), start + along_k, each, there)
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
        """The bytes that a stage expects, then a thread's addresses, as for bulk copies."""
        plan, (_, m0, n0, matrix, *_) = self.plan, ahead
        first = {"m": m0, "n": n0, "l": matrix, GATE: Int32(0), "k": Int32(0)}
        starts = StripsOfThread.addresses(plan, job, m0, cute.arch.thread_idx()[0] % WARPGROUP)
        sent = bridge.uniform(plan.expected(first, job, choose))
        return sent, *[bridge.lane_address(start) for start in starts]

    @cute.jit
    def gather_tiles(
        self, job: bridge.Carried, maps: Sequence[bridge.Maps], tile: Int32, thread: Int32,
        ready: tuple[Int32 | Int64, ...],
    ) -> None:  # fmt: skip
        """The loader's threads: all K tiles of the CTA's only tile."""
        plan = self.plan
        m0, n0, matrix = self.origin(job, tile)
        strips, place = StripsOfThread(plan, thread, ready[1:]), {"m": m0, "n": n0, "l": matrix, GATE: Int32(0)}
        stage, parity = Int32(0), Int32(1)
        for k_tile in cutlass.range(job.k_tiles, unroll=1):
            bridge.barrier_wait(job.shared.empty(stage), parity)
            if job.warp == plan.loader_warp:
                if bridge.elect():
                    bridge.barrier_expect(job.shared.full(stage), ready[0])
                    self.issue_mapped(job, maps, {**place, **self.place_of_k(job, (), k_tile)}, stage)
            strips.copy(job, k_tile, stage)
            stage, parity = bridge.next_in_ring(stage, parity, plan.stages)
