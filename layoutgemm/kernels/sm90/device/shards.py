"""The kernels of shards: tiles in an order by shards, waits for flags, and counters. See `kernels.sm90.shards`.

step                     threads             does
---------------------    ----------------    -----------------------------------------------------------------------
a tile's loads           the loader's one    Gathered: of own rows alone, with a tensor map of the own shard
a tile's first loads     the loader's one    Gathered: acquires the flags of the chunks of the tile's rows, and fences.
                                             Scattered, the first tile of all: tells the next rank that this one has
                                             begun
a tile's last loads      the loader's one    Scattered: acquires the flag of what the next rank has sent for the tile,
                                             and prefetches it into L2; a CTA's first tile: acquires that the rank
                                             before has begun. full[stage] hands on to consumers what was acquired
a tile's store           consumers           Scattered: add what has come; store the sum for the rank before, or C by
                                             TMA
the next tile's          the loader's one    Scattered, after a tile that goes on: counts it on its chunk's counter
products                                     (red.release.sys), when the consumers have released a stage of the next
                                             tile: their stores lie before. Consumers would wait for the release
                         consumers           the same, where a tile has too few K tiles for that, and after the last.
                                             In pingpong behind each store: the other one multiplies meanwhile
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr

from ....schedule import ShardByShard
from ...dsl import bridge
from ...dsl.ampere import store_vector
from ...dsl.flags import abort, add_released, global_reads_visible, load_acquired, nanoseconds
from ...dsl.fused import FusedBlock
from ...dsl.math import as_words, from_words, load_sixteen_bytes
from ...dsl.tables import choose, load_word
from ...store import ROWS
from ..plan import Sm90Plan
from ..shards import (
    UNIT_BITS,
    PartialTile,
    Patience,
    ShardWork,
    chunks_of_rows,
    cluster_place,
    place_in_own,
    signals_of_tile,
)
from .epilogue import Sm90Epilogue
from .fused import Sm90FusedKernel
from .loads import Copy


class Sm90ShardsKernel(Sm90FusedKernel):
    """Tiles in an order by shards, and waits for flags."""

    def job_of(
        self, shared: bridge.SharedMemory, place: tuple[Int32, ...], sizes: tuple[Int32, Int32, Int32],
        c: tuple[Int64, Int64, Int64], words: tuple[Int64, ...],
    ) -> bridge.Carried:  # fmt: skip
        """The same, and the shards."""
        job = super().job_of(shared, place, sizes, c, words)
        ranks, chunks = (bridge.uniform(Int32(getattr(job.given, name))) for name in ("ranks", "chunks"))
        return job.extended(
            rank_of_host=Int32(job.given.rank),
            ranks=ranks,
            chunks=chunks,
            shard_rows=bridge.uniform(sizes[0] // ranks),
            chunk_tiles=bridge.uniform(job.count // (ranks * chunks)),
        )

    def origin(self, job: bridge.Carried, tile: Int32) -> bridge.Place:
        """First row and first column of this CTA's tile of C, in the rank's order."""
        plan = self.plan
        share = ShardWork(job.rank_of_host, job.ranks, job.chunks, job.shard_rows)
        place = cluster_place(plan, tile, (job.rows, job.columns), share, cutlass.min)
        row, column = plan.order.within(place, job.rank)
        return row * plan.tile_c[0], column * plan.tile_c[1], Int32(0)

    @cute.jit
    def await_flag(self, job: bridge.Carried, number: Int32, target: Int32) -> None:
        """Wait until a flag has reached a target. Stop the kernel after too long a time."""
        address = job.given.flags + Int64(number) * 4
        seen = load_acquired(address)
        if seen - target < 0:
            loads, limit = Patience.of_word(job.given.patience)
            loads, limit = Int32(loads), Int32(limit)
            start, passed = nanoseconds(), Int32(-1)
            while (seen - target < 0) & (passed < limit):
                left = loads
                while (seen - target < 0) & (left > 0):
                    seen = load_acquired(address)
                    left -= 1
                passed = Int32((nanoseconds() - start) >> UNIT_BITS)
            if seen - target < 0:
                abort(job.given.record, (number + 1, seen, target, job.rank_of_host))


class Sm90GatheredKernel(Sm90ShardsKernel):
    """C = A @ B, where A's rows arrive while the kernel runs."""

    def maps_of_second_pair(
        self, extents: Mapping[str, Int32], words: Sequence[Int64]
    ) -> tuple[list[bridge.TensorMap], list[bridge.TensorMap]]:
        """A map of the own shard's rows."""
        given = dict(zip(self.plan.words, words, strict=True))
        of = {**extents, "m": extents["m"] // Int32(given["ranks"])}
        return [self.map_of_lines(self.plan.a.tma, given["own"], (Int64(extents["k"]),), of)], []

    def copies_of(
        self, job: bridge.Carried, maps: Sequence[bridge.Maps], name: str, origin: Mapping[str, Int32],
        share: Int32 | int, turned: bool = False,
    ) -> list[Copy]:  # fmt: skip
        """The same; a tile of own rows comes from the own shard."""
        gathered, own = maps[0]
        found = super().copies_of(job, ((gathered,), *maps[1:]), name, origin, share)
        if name != "A":
            return found
        [(_, tma, place)] = found
        first = job.rank_of_host * job.shard_rows
        inside, row = place_in_own(origin["m"], self.plan.tile[0], first, job.shard_rows, choose)
        return [(bridge.SelectedTensorMap(inside, own, gathered), tma, {**place, "m": row})]

    @cute.jit
    def before_loads(self, job: bridge.Carried, tile: Int32, m0: Int32, k_tile: Int32) -> None:
        """Acquire the chunks of a tile's rows, but for own ones, when its K begins."""
        if k_tile == 0:
            chunk_rows = job.shard_rows // job.chunks
            first, last = chunks_of_rows(m0, self.plan.tile[0], job.m, chunk_rows, cutlass.min)
            for chunk in cutlass.range(first, last + 1, unroll=1):
                if chunk // job.chunks != job.rank_of_host:
                    self.await_flag(job, chunk, Int32(job.given.target))
            global_reads_visible()


class ScatteredEpilogue(Sm90Epilogue):
    """The store of sums to which the epilogue has been applied."""

    def fused(self, job: bridge.Carried, place: bridge.Place, thread: Int32, part: int) -> FusedBlock | None:
        """None: `Sm90ScatteredKernel.finish_sums` applies it."""
        return None


class Sm90ScatteredKernel(Sm90ShardsKernel):
    """Partial sums that go around the ranks, and the own rows of C."""

    def __init__(self, plan: Sm90Plan):
        super().__init__(plan)
        self.epilogue = ScatteredEpilogue(plan)
        self.partial = PartialTile.of(plan)
        self.signals = signals_of_tile(plan)
        self.counts_at_store = plan.config.schedule == "pingpong"

    def maps_of_c(
        self, c: Int64, extents: Mapping[str, Int32], pitches: Mapping[str, tuple[Int64, Int64]], words: Sequence[Int64]
    ) -> list[bridge.TensorMap]:
        """The maps of the own rows: C has no others."""
        ranks = Int32(dict(zip(self.plan.words, words, strict=True))["ranks"])
        return super().maps_of_c(c, {**extents, "m": extents["m"] // ranks}, pitches, words)

    def numbers(self, job: bridge.Carried, tile: Int32) -> tuple[Int32, Int32, Int32]:
        """A tile's shard, counted from the next rank's, its number there, and its chunk."""
        from_next, number = ShardByShard.place(tile, job.chunk_tiles * job.chunks)
        return from_next, number, number // job.chunk_tiles

    def place_of_sums(self, job: bridge.Carried, rooms: Int64, room: Int32, number: Int32) -> Int64:
        """The address of this CTA's part of a tile's sums in one of some rooms."""
        tiles = room * (job.chunk_tiles * job.chunks) + number
        return rooms + Int64(self.index(job, tiles)) * self.partial.bytes

    # ----------------------------------------------------------------------------------------------------------- loader
    @cute.jit
    def before_loads(self, job: bridge.Carried, tile: Int32, m0: Int32, k_tile: Int32) -> None:
        """Tell the next rank of the start. Before a tile's last K tile, acquire what its store needs."""
        if (tile == 0) & (k_tile == 0) & (job.rank == 0):
            add_released(job.given.told, 1)
        if (k_tile == self.plan.stages) & self.loader_counts(job):
            self.count_tile(job, tile - job.workers, self.signals)
        if k_tile == job.k_tiles - 1:
            calls = load_word(job.given.calls)
            from_next, number, chunk = self.numbers(job, tile)
            if tile < job.workers:
                self.await_flag(job, (job.ranks - 1) * job.chunks, calls)
            if from_next > 0:
                room = from_next - 1
                self.await_flag(job, room * job.chunks + chunk, Int32(job.given.target) * calls)
                bridge.prefetch_bytes(self.place_of_sums(job, job.given.inbox, room, number), self.partial.bytes)

    def index(self, job: bridge.Carried, number: Int32) -> Int32:
        """The number of this CTA's tile in a room."""
        return number * self.plan.cluster_size + job.rank

    # -------------------------------------------------------------------------------------------------------- consumers
    def loader_counts(self, job: bridge.Carried) -> cutlass.Boolean:
        """True if the loader counts tiles. It waits for a stage that was released in a tile, before its last K tile."""
        if self.counts_at_store:
            return cutlass.Boolean(False)
        return job.k_tiles > self.plan.stages + 1

    @cute.jit
    def between_products(self, job: bridge.Carried, tile: Int32, k_tile: Int32) -> None:
        """Count the tile before in one of few K tiles. Before the last, whose loads may wait for a peer."""
        if const_expr(not self.counts_at_store):
            if (k_tile == job.k_tiles - 1) & (job.k_tiles <= self.plan.stages + 1):
                self.count_warp(job, tile - job.workers)

    @cute.jit
    def after_tiles(self, job: bridge.Carried, tile: Int32) -> None:
        """Count the last tile."""
        if const_expr(not self.counts_at_store):
            self.count_warp(job, tile - job.workers)

    @cute.jit
    def count_warp(self, job: bridge.Carried, tile: Int32) -> None:
        """Count this warp's part of a tile."""
        bridge.warp_sync()
        if cute.arch.lane_idx() == 0:
            self.count_tile(job, tile, 1)

    @cute.jit
    def count_tile(self, job: bridge.Carried, tile: Int32, warps: cutlass.Constexpr[int]) -> None:
        """Count some warps of a tile whose sums go on. There may be no such tile."""
        if tile >= 0:
            from_next, _, chunk = self.numbers(job, tile)
            if from_next != job.ranks - 1:
                add_released(job.given.counts + Int64(from_next * job.chunks + chunk) * 4, warps)

    def store_piece(
        self, job: bridge.Carried, maps: Sequence[bridge.Maps], accumulators: Sequence[cute.Tensor],
        at: tuple[Int32, ...], origin: bridge.Place, number: int, part: int,
    ) -> None:  # fmt: skip
        """Add what has come to a piece's sums. Store them for the rank before, of own rows in C."""
        consumer, thread, tile = at
        pieces = self.plan.pieces(part)
        block, columns = pieces[number]
        consumer_of_tile = Int32(0) if self.counts_at_store else consumer
        from_next, of_shard, _ = self.numbers(job, tile)
        accumulator, where = accumulators[block], (consumer_of_tile, block, thread)
        row, column, matrix = origin
        if self.plan.epilogue:
            self.finish_sums(job, accumulator, (row + block * ROWS, column, matrix), thread)
        self.add(job, accumulator, where, from_next, of_shard)
        self.send(job, accumulator, where, from_next, of_shard)
        local = row - job.rank_of_host * job.shard_rows
        self.keep(job, maps, accumulator, (consumer, thread), (local, column, matrix), (block, columns), from_next)
        if self.counts_at_store and number == len(pieces) - 1:
            self.count_warp(job, tile)

    def finish_sums(self, job: bridge.Carried, accumulator: cute.Tensor, place: bridge.Place, thread: Int32) -> None:
        """Apply the epilogue to own sums."""
        fused = FusedBlock(self.plan, job, place, thread)
        for v in bridge.unrolled(self.plan.mma.accumulator_registers // 2):
            accumulator[2 * v], accumulator[2 * v + 1] = fused.values(accumulator, 2 * v, 2)

    @cute.jit
    def add(
        self, job: bridge.Carried, accumulator: cute.Tensor, where: tuple[Int32, int, Int32], from_next: Int32,
        of_shard: Int32,
    ) -> None:  # fmt: skip
        """Add what the next rank has sent, of every shard but the first. Some loads, then their sums."""
        tile = self.partial
        consumer, block, thread = where
        if from_next > 0:
            base = self.place_of_sums(job, job.given.inbox, from_next - 1, of_shard)
            places = [base + tile.byte(Int64(0), consumer, block, i, thread) for i in range(tile.vectors)]
            for first in cutlass.range_constexpr(0, tile.vectors, tile.at_once):
                loaded = [load_sixteen_bytes(place) for place in places[first : first + tile.at_once]]
                for i in cutlass.range_constexpr(len(loaded)):
                    values = from_words(loaded[i], tile.dtype)
                    for e in cutlass.range_constexpr(tile.values):
                        at = (first + i) * tile.values + e
                        accumulator[at] = accumulator[at] + values[e]

    @cute.jit
    def send(
        self, job: bridge.Carried, accumulator: cute.Tensor, where: tuple[Int32, int, Int32], from_next: Int32,
        of_shard: Int32,
    ) -> None:  # fmt: skip
        """Store sums that go on, 16 bytes at a time."""
        tile = self.partial
        consumer, block, thread = where
        if from_next != job.ranks - 1:
            base = self.place_of_sums(job, job.given.outbox, from_next, of_shard)
            for i in cutlass.range_constexpr(tile.vectors):
                first = i * tile.values
                values = [bridge.number(accumulator[v]) for v in range(first, first + tile.values)]
                store_vector(base + tile.byte(Int64(0), consumer, block, i, thread), as_words(values, tile.dtype))
            bridge.warp_sync()  # one lane releases a stage for all, and with it these stores

    @cute.jit
    def keep(
        self, job: bridge.Carried, maps: Sequence[bridge.Maps], accumulator: cute.Tensor, who: tuple[Int32, Int32],
        local: bridge.Place, piece: tuple[int, int], from_next: Int32,
    ) -> None:  # fmt: skip
        """Store own rows in C."""
        if from_next == job.ranks - 1:
            self.epilogue.store(job, maps[2], accumulator, who, local, *piece)
