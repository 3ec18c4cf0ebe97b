"""The kernels of shards: tiles in an order by shards, waits for flags, and counters. See `kernels.sm90.shards`.

step                     threads             does
---------------------    ----------------    -----------------------------------------------------------------------
a tile's loads           the loader's one    Gathered: of own rows alone, with a tensor map of the own shard
a tile's first loads     the loader's one    Gathered: acquires the flags of the chunks of the tile's rows, and fences.
                                             Scattered, the first tile of all: tells each peer that this rank has begun
a tile's last loads      the loader's one    Scattered, own rows: acquires the flag of each peer's chunk, and prefetches
                                             its partial sums into L2; rows of others: acquires that their owner has
                                             begun. full[stage] hands on to the consumers what was acquired
a tile's store           consumers           Scattered, own rows: add each peer's partial sums, and store C by TMA;
                                             rows of others: store partial sums
the next tile's          consumers           Scattered, after a tile with rows of others: one more on its chunk's
products                                     counter (red.release.sys), before the loader waits for peers. The stores
                                             have arrived by then: right behind them the release took longer
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr

from ....schedule import ShardByShard
from ...dsl import bridge
from ...dsl.ampere import store_vector
from ...dsl.flags import abort, add_released, global_reads_visible, load_acquired, load_address, prefetch_bytes
from ...dsl.fused import FusedBlock
from ...dsl.math import as_words, from_words, load_sixteen_bytes
from ...dsl.tables import choose, load_word
from ...store import ROWS
from ..plan import Sm90Plan
from ..shards import PEER_WORDS, PartialTile, Share, chunks_of_rows, cluster_place, place_in_own
from .epilogue import Sm90Epilogue
from .fused import Sm90FusedKernel
from .loads import Copy

SIGNAL_AFTER = 4  # K tiles of the next tile: 3 us at least, in which a tile's stores arrive


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

    def lag(self, job: bridge.Carried) -> Int32:
        """Chunks that the own shard comes behind the others."""
        return Int32(0)

    def origin(self, job: bridge.Carried, tile: Int32) -> bridge.Place:
        """First row and first column of this CTA's tile of C, in the rank's order."""
        plan = self.plan
        share = Share(job.rank_of_host, job.ranks, job.chunks, self.lag(job), job.shard_rows)
        place = cluster_place(plan, tile, (job.rows, job.columns), share, cutlass.min)
        row, column = plan.order.within(place, job.rank)
        return row * plan.tile_c[0], column * plan.tile_c[1], Int32(0)

    @cute.jit
    def await_flag(self, job: bridge.Carried, number: Int32, target: Int32) -> None:
        """Wait until a flag has reached a target; stop the kernel after too many loads of it."""
        address = job.given.flags + Int64(number) * 4
        left = Int32(job.given.polls)
        seen = load_acquired(address)
        while (seen - target < 0) & (left > 0):
            seen = load_acquired(address)
            left -= 1
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
        self, job: bridge.Carried, maps: Sequence[bridge.Maps], name: str, origin: Mapping[str, Int32]
    ) -> list[Copy]:
        """The same; a tile of own rows comes from the own shard."""
        gathered, own = maps[0]
        found = super().copies_of(job, ((gathered,), *maps[1:]), name, origin)
        if name != "A":
            return found
        [(_, tma, place, share)] = found
        first = job.rank_of_host * job.shard_rows
        inside, row = place_in_own(origin["m"], self.plan.tile[0], first, job.shard_rows, choose)
        return [(bridge.EitherMap(inside, own, gathered), tma, {**place, "m": row}, share)]

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
        """None: `Sm90ScatteredKernel.finished` applies it."""
        return None


class Sm90ScatteredKernel(Sm90ShardsKernel):
    """Partial sums for other ranks, and the own rows of C with theirs added."""

    def __init__(self, plan: Sm90Plan):
        super().__init__(plan)
        self.epilogue = ScatteredEpilogue(plan)
        self.partial = PartialTile.of(plan)

    def maps_of_c(
        self, c: Int64, extents: Mapping[str, Int32], pitches: Mapping[str, tuple[Int64, Int64]], words: Sequence[Int64]
    ) -> list[bridge.TensorMap]:
        """The maps of the own rows: C has no others."""
        ranks = Int32(dict(zip(self.plan.words, words, strict=True))["ranks"])
        return super().maps_of_c(c, {**extents, "m": extents["m"] // ranks}, pitches, words)

    def lag(self, job: bridge.Carried) -> Int32:
        """As the launch says."""
        return Int32(job.given.lag)

    def numbers(self, job: bridge.Carried, tile: Int32) -> tuple[Int32, Int32, Int32]:
        """A tile's shard, counted from the next rank's, its number there, and its chunk."""
        each = job.chunk_tiles
        from_next, number = ShardByShard.place(tile, each, job.ranks, job.chunks, self.lag(job), cutlass.min)
        return from_next, number, number // each

    def room(self, job: bridge.Carried, slot: Int32) -> Int64:
        """Bytes of the inbox before a peer's room."""
        return Int64(slot) * (job.chunk_tiles * job.chunks * self.plan.cluster_size) * self.partial.bytes

    # ----------------------------------------------------------------------------------------------------------- loader
    @cute.jit
    def before_loads(self, job: bridge.Carried, tile: Int32, m0: Int32, k_tile: Int32) -> None:
        """Tell peers of the start, before the first tile; acquire what a tile's store needs, before its last K tile."""
        if (tile == 0) & (k_tile == 0) & (job.rank == 0):
            for q in cutlass.range(job.ranks, unroll=1):
                if q != job.rank_of_host:
                    add_released(self.peer(job, q, 2), 1)
        if k_tile == job.k_tiles - 1:
            calls = load_word(job.given.calls)
            from_next, number, chunk = self.numbers(job, tile)
            if from_next == job.ranks - 1:
                for p in cutlass.range(job.ranks - 1, unroll=1):
                    self.await_flag(job, p * job.chunks + chunk, Int32(job.given.target) * calls)
                    sums = self.room(job, p) + Int64(self.index(job, number)) * self.partial.bytes
                    prefetch_bytes(job.given.inbox + sums, self.partial.bytes)
            else:
                owner = (job.rank_of_host + 1 + from_next) % job.ranks
                slot = owner - Int32(owner > job.rank_of_host)
                self.await_flag(job, (job.ranks - 1) * job.chunks + slot, calls)

    def peer(self, job: bridge.Carried, rank: Int32, word: int) -> Int64:
        """An address of the table of peers."""
        return load_address(job.given.peers + Int64(rank * PEER_WORDS + word) * 8)

    def index(self, job: bridge.Carried, number: Int32) -> Int32:
        """The number of this CTA's tile in a room."""
        return number * self.plan.cluster_size + job.rank

    # -------------------------------------------------------------------------------------------------------- consumers
    @cute.jit
    def between_products(self, job: bridge.Carried, tile: Int32, k_tile: Int32) -> None:
        """Count the tile before, some K tiles into this one: before the last, whose loads may wait for a peer."""
        if k_tile == cutlass.min(SIGNAL_AFTER, job.k_tiles - 1):
            self.count_tile(job, tile - job.workers)

    @cute.jit
    def after_tiles(self, job: bridge.Carried, tile: Int32) -> None:
        """Count the last tile."""
        self.count_tile(job, tile - job.workers)

    @cute.jit
    def count_tile(self, job: bridge.Carried, tile: Int32) -> None:
        """One more on the counter of a tile's chunk, if there is such a tile and it has rows of another rank."""
        if tile >= 0:
            from_next, _, chunk = self.numbers(job, tile)
            if from_next != job.ranks - 1:
                owner = (job.rank_of_host + 1 + from_next) % job.ranks
                bridge.warp_sync()
                if cute.arch.lane_idx() == 0:
                    add_released(self.peer(job, owner, 1) + Int64(chunk) * 4, 1)

    def store_piece(
        self, job: bridge.Carried, maps: Sequence[bridge.Maps], accumulators: Sequence[cute.Tensor],
        at: tuple[Int32, ...], origin: bridge.Place, number: int, part: int,
    ) -> None:  # fmt: skip
        """Store a piece's partial sums in their owner's room; of own rows the sum of all ranks in C."""
        consumer, thread, tile = at
        from_next, of_shard, _ = self.numbers(job, tile)
        where = consumer, thread, from_next, self.index(job, of_shard)
        piece = self.plan.pieces(part)[number]
        self.send(job, accumulators, where, origin, piece)
        self.keep(job, maps, accumulators, where, origin, piece)

    def fused(self, job: bridge.Carried, origin: bridge.Place, thread: Int32, block: int) -> FusedBlock | None:
        """The epilogue of a block of rows, or None."""
        row, column, matrix = origin
        place = row + block * ROWS, column, matrix
        return FusedBlock(self.plan, job, place, thread) if self.plan.epilogue else None

    def finished(self, accumulator: cute.Tensor, fused: FusedBlock | None, first: int, count: int) -> list[Float32]:
        """Own sums after the epilogue."""
        if fused is None:
            return [bridge.number(accumulator[v]) for v in range(first, first + count)]
        return fused.values(accumulator, first, count)

    @cute.jit
    def send(
        self, job: bridge.Carried, accumulators: Sequence[cute.Tensor], where: tuple[Int32, ...], origin: bridge.Place,
        piece: tuple[int, int],
    ) -> None:  # fmt: skip
        """Store another rank's partial sums, 16 bytes at a time."""
        tile, block = self.partial, piece[0]
        consumer, thread, from_next, index = where
        if from_next != job.ranks - 1:
            owner = (job.rank_of_host + 1 + from_next) % job.ranks
            base = self.peer(job, owner, 0)
            fused = self.fused(job, origin, thread, block)
            for i in cutlass.range_constexpr(tile.vectors):  # factors are loaded vector by vector: all would not fit
                values = self.finished(accumulators[block], fused, i * tile.values, tile.values)
                place = tile.byte(Int64(index), consumer, block, i, thread)
                store_vector(base + place, as_words(values, tile.dtype))

    @cute.jit
    def keep(
        self, job: bridge.Carried, maps: Sequence[bridge.Maps], accumulators: Sequence[cute.Tensor],
        where: tuple[Int32, ...], origin: bridge.Place, piece: tuple[int, int],
    ) -> None:  # fmt: skip
        """Add peers' partial sums, in the order of ranks, and store own rows in C."""
        block, columns = piece
        consumer, thread, from_next, index = where
        row, column, matrix = origin
        if from_next == job.ranks - 1:
            accumulator = accumulators[block]
            if const_expr(bool(self.plan.epilogue)):
                fused = self.fused(job, origin, thread, block)
                for v in bridge.unrolled(self.plan.mma.accumulator_registers // 2):
                    pair = self.finished(accumulator, fused, 2 * v, 2)
                    accumulator[2 * v], accumulator[2 * v + 1] = pair
            for p in cutlass.range(job.ranks - 1, unroll=1):
                self.add(accumulator, job.given.inbox + self.room(job, p), (index, consumer, block, thread))
            local = row - job.rank_of_host * job.shard_rows
            self.epilogue.store(
                job, maps[2], accumulator, (consumer, thread), (local, column, matrix), block, columns
            )  # fmt: skip

    def add(self, accumulator: cute.Tensor, room: Int64, at: tuple[Int32, Int32, int, Int32]) -> None:
        """Add one peer's partial sums: all loads, then the sums. `at`: (tile in the room, consumer, block, thread)."""
        tile = self.partial
        index, consumer, block, thread = at
        places = [tile.byte(Int64(index), consumer, block, i, thread) for i in range(tile.vectors)]
        loaded = [load_sixteen_bytes(room + place) for place in places]
        for i, words in enumerate(loaded):
            for e, value in enumerate(from_words(words, tile.dtype)):
                accumulator[i * tile.values + e] = accumulator[i * tile.values + e] + value


__all__ = ["Sm90GatheredKernel", "Sm90ScatteredKernel", "Sm90ShardsKernel"]
