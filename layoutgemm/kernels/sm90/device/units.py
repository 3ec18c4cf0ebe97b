"""The kernel of packed weights whose K tiles are divided evenly over all CTAs. See `kernels.sm90.quantized.units`."""

from __future__ import annotations

from collections.abc import Sequence

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64

from ....atoms.copy.base import WARP
from ....schedule.persistent import first_unit, worker_of_unit
from ...dsl import bridge
from ...dsl.ampere import store_vector
from ...dsl.flags import take_number
from ...dsl.tables import WordReads, choose
from ...dsl.warp import load_vector
from ...plan import present, tile_count
from ...store import WARPS_OF_GROUP
from ..gated import HALF
from ..quantized.units import SUMS
from .quantized import Sm90QuantizedKernel


class Sm90UnitsKernel(Sm90QuantizedKernel):
    """A CTA has a run of (tile, K tile)."""

    def launch_grid(
        self, sizes: tuple[Int32, Int32, Int32, Int32], workers: Int32, reads: WordReads | None
    ) -> tuple[Int32, Int32 | int, int]:
        """A CTA for each unit, or as many as are resident."""
        m, n, k, _ = sizes
        return cutlass.min(self.grid_of(m, n)[0] * tile_count(k, self.plan.tile[2]), workers), 1, 1

    def job_of(
        self, shared: bridge.SharedMemory, place: tuple[Int32, ...], sizes: tuple[Int32, Int32, Int32],
        c: tuple[Int64, Int64, Int64], words: tuple[Int64, ...],
    ) -> bridge.Carried:  # fmt: skip
        """The same, with the CTA's number, its run, all units and CTAs."""
        job, (ctas, _, _) = super().job_of(shared, place, sizes, c, words), cute.arch.grid_dim()
        cta, units = cute.arch.block_idx()[0], job.rows * job.k_tiles
        start, end = [bridge.uniform(first_unit(units, ctas, cta + i, cutlass.min)) for i in range(2)]
        return job.extended(cta=cta, start=start, end=end, units_of_all=units, ctas=ctas)

    def tiles_of_block(self, job: bridge.Carried, first: Int32) -> tuple[Int32, Int32, Int32]:
        """The CTA's first tile, the one behind its last, and the step."""
        return job.start // job.k_tiles, (job.end + job.k_tiles - 1) // job.k_tiles, Int32(1)

    def origin(self, job: bridge.Carried, tile: Int32) -> bridge.Place:
        """First row of a tile, whose columns are all."""
        return tile * self.plan.tile_c[0], Int32(0), Int32(0)

    def part_of_tile(self, job: bridge.Carried, tile: Int32, mine: Int32) -> Int32:
        """K tiles of a tile that are the CTA's."""
        first = tile * job.k_tiles
        return cutlass.min(job.end, first + job.k_tiles) - cutlass.max(job.start, first)

    # ------------------------------------------------------------------------------------------------------------ loads
    def sources(self, job: bridge.Carried, unit: Int32) -> tuple[Int32, list[Int64]]:
        """A unit's K tile, and the addresses of its row blocks."""
        tile = unit // job.k_tiles
        k_tile = unit - tile * job.k_tiles
        copies = self.packed_copies(job, {"m": tile * self.plan.tile_c[0], "k": k_tile * self.plan.tile[2]})
        return k_tile, [job.packed + copy.source for _, copy in copies]

    def first_loads(self, job: bridge.Carried, ahead: tuple[Int32, ...]) -> tuple[Int32 | Int64, ...]:
        """The bytes that a stage expects, the first K tile, its units' addresses."""
        sent = self.plan.expected({"m": ahead[1], "n": ahead[2]}, job, choose)
        k_tile, sources = self.sources(job, job.start)
        return bridge.uniform(sent), bridge.uniform(k_tile), *[bridge.uniform_address(each) for each in sources]

    @cute.jit
    def fetch_ahead(self, job: bridge.Carried, maps: Sequence[bridge.Maps], first: tuple[Int32, ...]) -> None:
        """Bring the weights of the first units into L2. Only the loader's warp acts."""
        plan = self.plan
        if job.warp == plan.loader_warp:
            if bridge.elect():
                for i in cutlass.range(cutlass.min(job.end - job.start, plan.config.tuning.prefetch), unroll=1):
                    for source in self.sources(job, job.start + i)[1]:
                        bridge.prefetch_bytes(source, plan.a.block_bytes)

    @cute.jit
    def load_only(
        self, job: bridge.Carried, maps: Sequence[bridge.Maps], ahead: tuple[Int32, ...],
        ready: tuple[Int32 | Int64, ...],
    ) -> tuple[Int32, ...]:  # fmt: skip
        """Load the units of the run, by one thread. Only the loader's warp calls it."""
        plan = self.plan
        tile, m0, n0, matrix, _, stage, parity, backwards, share = ahead
        row, k_tile, sources = tile, ready[1], tuple(ready[2:])
        if bridge.elect():
            for _ in cutlass.range(job.end - job.start, unroll=1):
                bridge.barrier_wait(job.shared.empty(stage), parity)
                full = job.shared.full(stage)
                bridge.barrier_expect(full, ready[0])
                self.load_units(job, sources, stage, full)
                origin = {"m": m0, "n": n0, "l": matrix, HALF: Int32(0), "k": k_tile * plan.tile[2]}
                self.issue_mapped(job, maps, origin, stage)
                stage, parity = bridge.next_in_ring(stage, parity, plan.stages)
                sources = tuple([source + Int64(plan.a.packing.unit_bytes) for source in sources])
                k_tile += 1
                if k_tile == job.k_tiles:
                    k_tile = Int32(0)
                    row += 1
                    sources = tuple(self.sources(job, row * job.k_tiles)[1])
        return tile, m0, n0, matrix, Int32(0), stage, parity, backwards, share

    # ------------------------------------------------------------------------------------------------------------- sums
    @cute.jit
    def store_tile(
        self, job: bridge.Carried, maps: Sequence[bridge.Maps], accumulators: Sequence[cute.Tensor],
        at: tuple[Int32, ...], origin: bridge.Place,
    ) -> None:  # fmt: skip
        """Store a tile of the CTA alone; of several, the warp that comes last adds all and stores."""
        consumer, thread, tile = at
        first = worker_of_unit(job.units_of_all, job.ctas, tile * job.k_tiles, cutlass.max)
        last = worker_of_unit(job.units_of_all, job.ctas, (tile + 1) * job.k_tiles - 1, cutlass.max)
        stores = Int32(1)
        if first < last:
            warp = bridge.uniform(consumer * WARPS_OF_GROUP + thread // WARP)
            self.put_sums(job, accumulators, (tile, thread % WARP, warp))
            stores = self.all_are_there(job, (tile, thread % WARP, warp), last - first)
            if stores == 1:
                self.add_sums(job, accumulators, (tile, thread % WARP, warp), (first, last))
        if stores == 1:
            super().store_tile(job, maps, accumulators, at, origin)

    def slot(self, job: bridge.Carried, cta: Int32, tile: Int32) -> tuple[Int64, Int32]:
        """The address of a CTA's slots, and the number of the one for a tile."""
        sums = present(self.plan.units)
        counters = Int64(sums.counters_bytes(job.rows))
        begin = first_unit(job.units_of_all, job.ctas, cta, cutlass.min) // job.k_tiles
        return getattr(job.given, SUMS) + counters + Int64(cta) * sums.cta_bytes, choose(begin == tile, 0, 1)

    def put_sums(self, job: bridge.Carried, accumulators: Sequence[cute.Tensor], at: tuple[Int32, ...]) -> None:
        """The warp's sums into its slot. `at`: tile, lane, warp."""
        (tile, lane, warp), sums = at, present(self.plan.units)
        base, slot = self.slot(job, job.cta, tile)
        for block, values in enumerate(accumulators):
            for v in range(self.plan.mma.accumulator_registers // 4):
                words = [values[4 * v + e].bitcast(Int32) for e in range(4)]
                store_vector(base + Int64(sums.byte(lane, v, block, warp, slot)), words)

    @cute.jit
    def all_are_there(self, job: bridge.Carried, at: tuple[Int32, ...], others: Int32) -> Int32:
        """1 in the warp that comes last of the tile's CTAs, else 0: the sums of all are visible to it."""
        tile, lane, warp = at
        bridge.warp_sync()
        number = Int32(0)
        if lane == 0:
            place = present(self.plan.units).counter(tile, warp)
            number = take_number(getattr(job.given, SUMS) + Int64(place), others)
        number = cute.arch.shuffle_sync(number, 0)
        bridge.warp_sync()
        return choose(number == others, 1, 0)

    @cute.jit
    def add_sums(
        self, job: bridge.Carried, accumulators: Sequence[cute.Tensor], at: tuple[Int32, ...],
        ctas: tuple[Int32, Int32],
    ) -> None:  # fmt: skip
        """The sums of the tile's CTAs, first to last, in their order."""
        (tile, lane, warp), sums = at, present(self.plan.units)
        for total in accumulators:
            total.fill(0)
        for cta in cutlass.range(ctas[0], ctas[1] + 1, unroll=1):
            base, slot = self.slot(job, cta, tile)
            for block in cutlass.range_constexpr(self.plan.blocks):
                for v in cutlass.range_constexpr(self.plan.mma.accumulator_registers // 4):
                    found = load_vector(base + Int64(sums.byte(lane, v, block, warp, slot)), Boolean(True))
                    for e in cutlass.range_constexpr(4):
                        accumulators[block][4 * v + e] = accumulators[block][4 * v + e] + found[e].bitcast(Float32)
