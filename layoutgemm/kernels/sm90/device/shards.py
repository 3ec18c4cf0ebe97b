"""The kernels of shards: tiles in a rotated order, waits for flags, and counters. See `kernels.sm90.shards`.

step                     threads             does
---------------------    ----------------    -----------------------------------------------------------------------
a tile's first loads     the loader's one    Gathered: acquires the flags of the chunks of the tile's rows, and fences
a tile's store           consumers           Scattered, own rows: acquire each peer's flag and add its partial sums;
                                             C goes out by the second tensor map, that of `result`
                         issuers of stores   Scattered, rows of others: wait until their TMA stores are in memory,
                                             then add one to the chunk's counter (red.release.sys)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64, const_expr

from ...dsl import bridge
from ...dsl.copies import wait_stores
from ...dsl.flags import abort, add_released, global_reads_visible, load_acquired
from ...dsl.math import load_two
from ...dsl.tables import choose
from ...plan import present
from ...store import ROWS
from ..shards import chunks_of_rows, cluster_place
from .fused import Sm90FusedKernel


class Sm90ShardsKernel(Sm90FusedKernel):
    """Tiles in the rotated order, and waits for flags."""

    def job_of(
        self, shared: bridge.SharedMemory, place: tuple[Int32, ...], sizes: tuple[Int32, Int32, Int32],
        c: tuple[Int64, Int64, Int64], words: tuple[Int64, ...],
    ) -> bridge.Carried:  # fmt: skip
        """The same, and the shards."""
        job = super().job_of(shared, place, sizes, c, words)
        given = {name: Int32(getattr(job.given, name)) for name in ("rank", "chunks", "chunk_rows")}
        shard_rows = given["chunks"] * given["chunk_rows"]
        return job.extended(
            shard_rows=shard_rows, rank_of_host=given["rank"], chunks=given["chunks"], chunk_rows=given["chunk_rows"],
            ranks=bridge.uniform(sizes[0] // shard_rows),
        )  # fmt: skip

    def origin(self, job: bridge.Carried, tile: Int32) -> bridge.Place:
        """First row and first column of this CTA's tile of C, in the rotated order."""
        plan = self.plan
        grid = job.rows, job.columns
        place = cluster_place(plan, tile, grid, job.rank_of_host, job.ranks, job.shard_rows, cutlass.min)
        row, column = plan.order.within(place, job.rank)
        return row * plan.tile_c[0], column * plan.tile_c[1], Int32(0)

    @cute.jit
    def await_flag(self, job: bridge.Carried, number: Int32) -> None:
        """Wait until a flag has reached its target; stop the kernel after too many loads of it."""
        address = job.given.flags + Int64(number) * 4
        target, left = Int32(job.given.target), Int32(job.given.polls)
        seen = load_acquired(address)
        while (seen - target < 0) & (left > 0):
            seen = load_acquired(address)
            left -= 1
        if seen - target < 0:
            abort(job.given.record, (number + 1, seen, target, job.rank_of_host))


class Sm90GatheredKernel(Sm90ShardsKernel):
    """C = A @ B, where A's rows arrive while the kernel runs."""

    def issue_loads(
        self, job: bridge.Carried, maps: Sequence[bridge.Maps], m0: Int32, n0: Int32, matrix: Int32,
        along_k: dict[str, Int32], stage: Int32,
    ) -> None:  # fmt: skip
        """The same; before a tile's first loads its rows have to be there."""
        self.await_rows(job, m0, along_k["k"])
        super().issue_loads(job, maps, m0, n0, matrix, along_k, stage)

    @cute.jit
    def await_rows(self, job: bridge.Carried, m0: Int32, k: Int32) -> None:
        """Acquire the chunks of a tile's rows, but for own ones, when its K begins."""
        if k == 0:
            first, last = chunks_of_rows(m0, self.plan.tile[0], job.m, job.chunk_rows, cutlass.min)
            for chunk in cutlass.range(first, last + 1, unroll=1):
                if chunk // job.chunks != job.rank_of_host:
                    self.await_flag(job, chunk)
            global_reads_visible()


class Sm90ScatteredKernel(Sm90ShardsKernel):
    """Partial sums for other ranks, and the own rows of C with theirs added."""

    def maps_of_c(
        self, c: Int64, extents: Mapping[str, Int32], pitches: Mapping[str, tuple[Int64, Int64]], words: Sequence[Int64]
    ) -> list[bridge.TensorMap]:
        """The maps of the partial sums, then those of the own rows."""
        of = dict(zip(self.plan.words, words, strict=True))
        own = {**extents, "m": Int32(of["chunks"]) * Int32(of["chunk_rows"])}
        pitch = {**pitches, "c": (of["result_ld"], Int64(0))}
        return [
            *super().maps_of_c(c, extents, pitches, words),
            *super().maps_of_c(of["result"], own, pitch, words),
        ]

    @property
    def store_maps(self) -> int:
        """Tensor maps that the store uses: of partial sums, and of own rows."""
        return 2 * super().store_maps

    def store_piece(
        self, job: bridge.Carried, maps: Sequence[bridge.Maps], accumulators: Sequence[cute.Tensor],
        at: tuple[Int32, ...], origin: bridge.Place, number: int, part: int,
    ) -> None:  # fmt: skip
        """Store a piece among the partial sums; of own rows the sum of all ranks in C."""
        block, columns = self.plan.pieces(part)[number]
        row, column, matrix = origin
        own = row // job.shard_rows == job.rank_of_host
        local = row - job.rank_of_host * job.shard_rows
        self.add_partial_sums(job, accumulators[block], at[1], (own, local + block * ROWS, column))
        half = self.store_maps // 2
        chosen = [bridge.EitherMap(own, maps[2][half + i], maps[2][i]) for i in range(half)]
        place = choose(own, local, row), column, matrix
        self.epilogue.store(job, chosen, accumulators[block], at, place, block, columns)
        self.signal(job, at[1], own, (row, column))

    @cute.jit
    def add_partial_sums(
        self, job: bridge.Carried, accumulator: cute.Tensor, thread: Int32, of: tuple[Boolean, Int32, Int32]
    ) -> None:
        """Add peers' partial sums, in the order of ranks, to a block of own rows.

        of  whether it is one; its first row in the shard, and first column
        """
        own, row, column = of
        if own:
            chunk = row // job.chunk_rows
            for peer in cutlass.range(job.ranks - 1, unroll=1):
                self.await_flag(job, peer * job.chunks + chunk)
                self.add_peer(job, accumulator, thread, (peer, row, column))

    def add_peer(
        self, job: bridge.Carried, accumulator: cute.Tensor, thread: Int32, of: tuple[Int32, Int32, Int32]
    ) -> None:
        """Add one peer's partial sums to the accumulator; columns beyond N are read at its end, and not stored."""
        atom, dtype = self.plan.stored, self.plan.c.dtype
        peer, row, column = of
        base = job.given.inbox + Int64(peer * job.shard_rows + row) * job.n * dtype.bytes
        for v in range(0, atom.accumulator_registers, 2):
            i, j = atom.coords_C(thread, v)
            place = cutlass.min(column + j, job.n - 2)
            pair = load_two(base + (Int64(i) * job.n + place) * dtype.bytes, dtype)
            for e in range(2):
                accumulator[v + e] = accumulator[v + e] + Float32(pair[e])

    @cute.jit
    def signal(self, job: bridge.Carried, thread: Int32, own: Boolean, place: tuple[Int32, Int32]) -> None:
        """Threads that issued stores of another rank's rows count them when they are in memory."""
        row, column = place
        issuer = thread % 32 if const_expr(present(self.plan.store).warps == 1) else thread
        if (issuer == 0) & (own == Boolean(False)) & (row < job.m) & (column < job.n):
            wait_stores(0)
            add_released(job.given.counters + Int64(row // job.chunk_rows) * 4, 1)


__all__ = ["Sm90GatheredKernel", "Sm90ScatteredKernel", "Sm90ShardsKernel"]
