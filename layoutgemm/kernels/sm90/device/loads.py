"""The loader of a Hopper kernel. One warp that waits for free stages, and issues this block's share of the copies.

step           when                       does
-----------    -----------------------    -------------------------------------------------------------------------
init_barriers  at the start, by one       sets up full[s] and empty[s]; and the barrier of partial sums, which
               thread                     expects all that a cluster's blocks will send
fetch_ahead    before the kernel          first k tiles into L2: nobody sees them there, so that kernel may still
               before this has ended      write them; later copies find what it wrote
load_next      for each k tile            waits for empty[s], arms full[s], issues the copies; a kernel of shards waits
                                          for its flags before
drain          at the end, where blocks   waits for every empty[s] once more: no block sends to this one, or arrives
               share loads                at its barriers, after that
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr

from ....atoms import TmaPlan
from ...dsl import bridge
from ...dsl.tables import choose
from ...operands.gated import HALF
from ...operands.pair import SECOND, place_in_pairs
from ..multicast import TURNED
from ..plan import Sm90Plan

Copy: TypeAlias = "tuple[bridge.TensorMap | bridge.SelectedTensorMap, TmaPlan, Mapping[str, Int32]]"


class Sm90Loads:
    """The loads of an Sm90Plan's kernel. `origin` is the kernel's: a tile's number -> its first element."""

    plan: Sm90Plan

    def origin(self, job: bridge.Carried, tile: Int32) -> bridge.Place:
        """First row, first column and matrix of this block's tile of C."""
        raise NotImplementedError

    def init_barriers(self, shared: bridge.SharedMemory) -> None:
        """Every barrier of the block's shared memory; other blocks see them when all have met."""
        plan = self.plan
        for s in range(plan.stages):
            bridge.barrier_init(shared.full(s), plan.full_arrivals)
            bridge.barrier_init(shared.empty(s), plan.empty_arrivals)
        if plan.exchange is not None:
            bridge.barrier_init(shared.sums(), plan.sums_arrivals)
        bridge.barriers_visible()
        if plan.exchange is not None and plan.sends_sums:
            bridge.barrier_expect(shared.sums(), plan.exchange.bytes)

    @cute.jit
    def load_next(
        self, job: bridge.Carried, maps: Sequence[bridge.Maps], ahead: tuple[Int32, ...]
    ) -> tuple[Int32, ...]:
        """Load the next K tile, if there is one, and step on. Only the loader's warp acts."""
        plan = self.plan
        tile, m0, n0, matrix, k_tile, stage, parity, backwards, share = ahead
        if job.warp == plan.loader_warp:
            if tile < job.tiles and k_tile < self.count_k_tiles(job, share):
                bridge.barrier_wait(job.shared.empty(stage), parity)
                if bridge.elect():
                    at = k_tile
                    if const_expr(plan.config.tuning.reverse_odd_tiles):
                        at = k_tile + backwards * (job.k_tiles - 1 - 2 * k_tile)
                    self.before_loads(job, tile, m0, k_tile)
                    self.issue_loads(job, maps, m0, n0, matrix, self.place_of_k(job, share, at), stage)
                if const_expr(plan.config.loader == "self"):
                    self.copy_numbers(job, (m0, n0, matrix), job.k_first + k_tile, stage)
                stage, parity = bridge.next_in_ring(stage, parity, plan.stages)
                k_tile += 1
                if k_tile == self.count_k_tiles(job, share):
                    k_tile = Int32(0)
                    backwards ^= 1
                    tile += job.workers
                    if const_expr(not plan.stays):
                        m0, n0, matrix = self.origin(job, tile)
                        share = self.share_of_k(job, (m0, n0, matrix))
                        m0 = self.loaded_row(job, m0, matrix)
        return tile, m0, n0, matrix, k_tile, stage, parity, backwards, share

    def first_loads(self, job: bridge.Carried, ahead: tuple[Int32, ...]) -> tuple[Int32 | Int64, ...]:
        """Values that `load_only` and `gather_tiles` take, computed while the kernel before ends."""
        return ()

    def load_only(
        self, job: bridge.Carried, maps: Sequence[bridge.Maps], ahead: tuple[Int32, ...],
        ready: tuple[Int32 | Int64, ...],
    ) -> tuple[Int32, ...]:  # fmt: skip
        """Load all K tiles of the block's only tile. Only a kernel of packed weights does so."""
        raise NotImplementedError

    def loaded_row(self, job: bridge.Carried, row: Int32, matrix: Int32) -> Int32:
        """The row of A that a tile's loads begin at: its first one. Groups of rows may end in front of it."""
        return row

    def before_loads(self, job: bridge.Carried, tile: Int32, m0: Int32, k_tile: Int32) -> None:
        """Called by the loading thread before each K tile's loads: nothing to wait for."""

    def share_of_k(self, job: bridge.Carried, place: bridge.Place) -> tuple[Int32, ...]:
        """The tile's own share of K, where its place decides on it. (first K tile, K tiles); else ().

        Of two pairs, also the K tiles of the first.
        """
        plan, between = self.plan, (cutlass.min, cutlass.max)
        if plan.triangles is None:
            return ()
        found: tuple[Int32, ...]
        if plan.pair is None:
            found = plan.triangles.k_tiles(plan, place, job.k_tiles, *between)
        else:
            found = plan.triangles.share_of_pairs(plan, place, (job.first_tiles, job.k_tiles), *between)
        return tuple([bridge.uniform(x) for x in found])

    def count_k_tiles(self, job: bridge.Carried, share: tuple[Int32, ...]) -> Int32:
        """K tiles of a tile with that share of K."""
        return job.k_tiles if self.plan.triangles is None else share[1]

    def first_number(self, job: bridge.Carried, share: tuple[Int32, ...]) -> Int32:
        """The first K tile of a tile of C. It is also the K block of its first numbers."""
        return job.k_first if self.plan.triangles is None else share[0]

    def settle_group(self, job: bridge.Carried, share: tuple[Int32, ...], sums: Sequence[cute.Tensor]) -> None:
        """Called by each consumer before it stores sums: they are a product's."""

    def place_of_k(self, job: bridge.Carried, share: tuple[Int32, ...], k_tile: Int32) -> dict[str, Int32]:
        """Coordinates along K of one of a tile's K tiles. Of two pairs, also which it is of."""
        depth = self.plan.tile[2]
        if self.plan.pair is not None and self.plan.triangles is not None:
            return place_in_pairs(k_tile, share[2], depth, choose, share[0])
        if self.plan.pair is not None:
            return place_in_pairs(job.k_first + k_tile, job.first_tiles, depth, choose)
        return {"k": (self.first_number(job, share) + k_tile) * depth}

    @cute.jit
    def drain(self, job: bridge.Carried, ahead: tuple[Int32, ...]) -> None:
        """Wait until all blocks that share loads with this one have released every stage. Only the loader's warp acts.

        Their last arrivals are then in, and each has what this block sent: it may leave without meeting them.
        """
        plan = self.plan
        stage, parity = ahead[5], ahead[6]
        if job.warp == plan.loader_warp:
            for _ in cutlass.range(plan.stages, unroll=1):
                bridge.barrier_wait(job.shared.empty(stage), parity)
                stage, parity = bridge.next_in_ring(stage, parity, plan.stages)

    @cute.jit
    def fetch_ahead(self, job: bridge.Carried, maps: Sequence[bridge.Maps], first: tuple[Int32, ...]) -> None:
        """Bring this block's share of the first k tiles of its first tile into L2. Only the loader's warp acts."""
        plan = self.plan
        tile, m0, n0, matrix = first
        if job.warp == plan.loader_warp and tile < job.tiles:
            if bridge.elect():
                for i in cutlass.range(cutlass.min(job.k_tiles, plan.config.tuning.prefetch), unroll=1):
                    along_k = {"k": (job.k_first + i) * plan.tile[2]}
                    if const_expr(plan.pair is not None):
                        along_k = self.place_of_k(job, (), i)
                    origin = {"m": m0, "n": n0, **along_k, "l": matrix, HALF: Int32(0)}
                    self.issue_prefetches(job, maps, origin)

    def issue_prefetches(self, job: bridge.Carried, maps: Sequence[bridge.Maps], origin: Mapping[str, Int32]) -> None:
        """This block's share of one k tile into L2, as `issue_loads` would load it. Called by one thread."""
        if const_expr(self.plan.weights is not None):
            self.prefetch_packed(job, origin)
        for operand in self.mapped_operands:
            share = self.plan.sharers.share(operand, job.rank) if self.shares_of(operand) > 1 else 0
            for tensor_map, tma, place in self.copies_of(job, maps, operand, origin, share):
                bridge.prefetch_share(tensor_map, tma, place, share)

    def issue_loads(
        self, job: bridge.Carried, maps: Sequence[bridge.Maps], m0: Int32, n0: Int32, matrix: Int32,
        along_k: dict[str, Int32], stage: Int32,
    ) -> None:  # fmt: skip
        """Arm full[stage] and issue this block's share of both tiles. Called by one thread.

        along_k  the tiles' coordinates along K
        """
        plan = self.plan
        origin = {"m": m0, "n": n0, **along_k, "l": matrix, HALF: Int32(0)}
        full = job.shared.full(stage)
        bridge.barrier_expect(full, plan.expected(origin, job, choose))
        if const_expr(plan.weights is not None):
            self.load_packed(job, origin, stage, full)
        self.issue_mapped(job, maps, origin, stage)

    def issue_mapped(
        self, job: bridge.Carried, maps: Sequence[bridge.Maps], origin: Mapping[str, Int32], stage: Int32
    ) -> None:
        """Issue this block's share of the tiles with tensor maps into an armed stage. Called by one thread."""
        if self.plan.turns:
            self.issue_either(job, maps, origin, stage)
        else:
            self.issue_shares(job, maps, origin, stage)

    @cute.jit
    def issue_either(
        self, job: bridge.Carried, maps: Sequence[bridge.Maps], origin: Mapping[str, Int32], stage: Int32
    ) -> None:
        """The same for pairs that turn."""
        if origin[TURNED] != 0:
            self.issue_shares(job, maps, origin, stage, True)
        else:
            self.issue_shares(job, maps, origin, stage)

    def issue_shares(
        self, job: bridge.Carried, maps: Sequence[bridge.Maps], origin: Mapping[str, Int32], stage: Int32,
        turned: bool = False,
    ) -> None:  # fmt: skip
        """Issue the shares of both tiles that this block sends to those that need them."""
        plan, full = self.plan, job.shared.full(stage)
        part, sharers = job.part * plan.sharing, plan.sharers_of(turned)
        for operand in self.mapped_operands:
            destination = job.shared.a(stage) if operand == "A" else job.shared.b(stage)
            for share, (blocks, first, step) in sharers.sent(operand, job.rank, self.shares_of(operand, turned)):
                mask = bridge.cluster_mask(blocks, part + first, step) if blocks > 1 else None
                for tensor_map, tma, place in self.copies_of(job, maps, operand, origin, share, turned):
                    bridge.load_share(tensor_map, tma, place, destination, full, share, mask)

    def shares_of(self, operand: str, turned: bool = False) -> int:
        """The shares into which an operand's copies are dealt out."""
        return self.plan.operand(operand, turned).tma.multicast

    @property
    def mapped_operands(self) -> str:
        """The operands with tensor maps, in the order of their loads."""
        return self.plan.config.order_of_loads if self.plan.weights is None else "B"

    def gather_tiles(
        self, job: bridge.Carried, maps: Sequence[bridge.Maps], tile: Int32, thread: Int32,
        ready: tuple[Int32 | Int64, ...],
    ) -> None:  # fmt: skip
        """Load all tiles of a kernel whose whole loader copies A. `ready` as `first_loads` has it."""
        raise NotImplementedError

    def load_packed(self, job: bridge.Carried, origin: Mapping[str, Int32], stage: Int32, full: cute.Pointer) -> None:
        """Copy packed weights into A's stage. Only a kernel that multiplies them has any."""
        raise NotImplementedError

    def prefetch_packed(self, job: bridge.Carried, origin: Mapping[str, Int32]) -> None:
        """Bring packed weights into L2, likewise."""
        raise NotImplementedError

    def copy_numbers(self, job: bridge.Carried, place: bridge.Place, k_tile: Int32, stage: Int32) -> None:
        """Copy the main loop's numbers into the stage, by the whole warp. The plain main loop reads none."""

    def feed_numbers(self, job: bridge.Carried, ahead: tuple[Int32, ...]) -> None:
        """Copy the main loop's numbers for all tiles, by a warp of their own."""

    def copies_of(
        self, job: bridge.Carried, maps: Sequence[bridge.Maps], name: str, origin: Mapping[str, Int32],
        share: Int32 | int, turned: bool = False,
    ) -> list[Copy]:  # fmt: skip
        """(tensor map, its copies, where they begin) of a share of an operand's tile."""
        plan = self.plan
        operand, own = plan.operand(name, turned), maps[0] if name == "A" else maps[1]
        if operand.turned is not None:
            own = own[1:] if turned else own[:1]
        if plan.pair is not None:
            first, second = own[: len(operand.copies)], own[len(operand.copies) :]
            either = [
                bridge.SelectedTensorMap(origin[SECOND], two, one) for one, two in zip(first, second, strict=True)
            ]
            return [(one, tma, origin) for one, tma in zip(either, operand.copies, strict=True)]
        if operand.ends is None:
            return [(tensor_map, tma, origin) for tensor_map, tma in zip(own, operand.copies, strict=True)]
        ends = operand.ends
        whole, row = ends.place(getattr(job, ends.dim), origin[ends.dim], share, choose)
        return [(bridge.SelectedTensorMap(whole, *own), operand.tma, {**origin, ends.dim: row})]

    @cute.jit
    def clear_dead_rows(self, shared: bridge.SharedMemory, thread: Int32) -> None:
        """Zeros for the rows of A's tiles that are never loaded. Their products are not stored, but they are read.

        The consumers write them while the first loads are under way, and meet before the first product.
        """
        plan = self.plan
        writers = plan.stages_threads
        for s in cutlass.range_constexpr(plan.stages):
            for first, count in plan.dead_runs:
                for i in cutlass.range_constexpr((count + 16 * writers - 1) // (16 * writers)):
                    offset = 16 * (i * writers + thread)
                    if offset < count:
                        zero = Int32(0)
                        bridge.store_shared((shared.a(s) + (first + offset)).toint(), [zero, zero, zero, zero])
        bridge.shared_writes_visible()
        bridge.named_sync(plan.stages_barrier, writers)
