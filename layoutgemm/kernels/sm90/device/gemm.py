"""C = A @ B on Hopper. Persistent, self-loading or warp-specialised, cooperative or pingpong, any tile of the budgets.

Every layout, box, descriptor, byte count, arrive count and barrier is an attribute of the plan (Sm90Plan); this file
holds the order in which things happen. A block takes tile after tile in the plan's order; a ring of stages carries k
tiles from the tensor copies to the products, across the borders of output tiles.

    role        who                                          does
    --------    -----------------------------------------    ----------------------------------------------------------
    loader      one warp: of a consumer ("self"), its own    waits for empty[s], arms full[s] with plan.expected,
                ("warp"), or of a warpgroup of its own       issues its share of the loads of a k tile: `device.loads`
    consumer    1 to 3 warpgroups: of one tile, each some    wait for full[s], multiply, release the stage before;
                rows (cooperative), or of two tiles in       then convert the accumulators and store them through
                turn (pingpong)                              shared memory by tensor stores

    barrier     kind        completed by                                               waited for by
    --------    --------    -------------------------------------------------------    ----------------------------
    full[s]     mbarrier    plan.full_arrivals (the loader's arrive.expect_tx) and     all consumers of the block
                            plan.full_bytes, less what of the tile is outside of
                            the matrix, from all blocks that share it
    empty[s]    mbarrier    plan.empty_arrivals: one of each consumer warp of every    the loader
                            block that shares A or B with this one
    store       named       one consumer's 128 threads: its buffer is free; is full    the same
    turn        named       pingpong: 128 threads that pass the turn, 128 that take    the consumer whose turn it is
                            it
    stages      named       all consumers have read the stages, over which C's         all consumers
                            buffers lie (one tile a cluster); or have cleared the
                            rows of A that are not loaded
    block       named       all threads, at the start of a block without a cluster     the same
    sums        mbarrier    plan.sums_arrivals: at the start, with the bytes that      all consumers
                            a cluster's blocks send; or of each warp that stores
    cluster     cluster     all threads of the cluster, at the start; and where the    the same
                            first block combines whole rows, at the end

One group of wgmmas stays in flight: a stage is released when the group after it has been issued. In a self-loading
kernel that release is followed by the load that refills the oldest free stage. Loads run `stages - 1` K tiles ahead,
into the next output tile, without a producer: its registers go to the accumulators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr

from ....atoms import TmaPlan
from ....checks.budgets import WARPGROUP
from ...derive import OperandPlan
from ...dsl import bridge
from ...dsl.entry import GemmEntry
from ...dsl.tables import WordReads, choose, reads_of
from ...indexed.added_rows import BESIDE
from ...operands.gated import HALF
from ...plan import ALL_SHARED, present, tile_count
from ...store import ROWS
from ..multicast import OTHER_MAPS
from ..plan import Sm90Plan
from .epilogue import Sm90Epilogue
from .loads import Sm90Loads
from .mirror import MirrorStore


class Sm90GemmKernel(Sm90Loads, GemmEntry):
    """The kernel for one plan. What is reachable through `self.plan` is a compile-time constant of the trace."""

    plan: Sm90Plan

    def __init__(self, plan: Sm90Plan):
        self.plan = plan
        self.epilogue: Sm90Epilogue = Sm90Epilogue(plan)
        self.mirror = MirrorStore(plan)

    @cute.jit
    def start(
        self, matrices: Sequence[Int64], sizes: Sequence[Int32], pitches: Mapping[str, tuple[Int64, Int64]],
        workers: Int32 | None, words: Sequence[Int64], stream: bridge.Stream,
    ) -> None:  # fmt: skip
        """Host side: encode the tensor maps, launch at most `workers` clusters. See `TileEntry.start`."""
        plan, several = self.plan, self.plan.config.tuning.blocks_per_sm
        _, b, c = matrices
        m, n, k, batch = sizes
        a, pitches_a = self.prepare_rows(matrices[0], pitches["a"], sizes, words, stream)
        extents = {"m": m, "n": n, "k": k, "l": batch, HALF: Int32(plan.halves)}
        maps_a = self.maps_of_a(a, extents, pitches_a)
        further = [name for name, _ in present(plan.gated).places] if const_expr(plan.gated is not None) else ()
        maps_b = self.maps_of_b((b, pitches["b"]), further, extents, words)
        maps_c = self.maps_of_c(c, extents, pitches, words)
        last_b = self.maps_of_last_rows(plan.b, b, extents, pitches["b"])
        tmas_mirror = present(plan.mirror).maps if const_expr(plan.mirror is not None) else ()
        maps_c += [self.map_of_c(tma, c, extents, pitches) for tma in tmas_mirror]
        maps_a2, maps_b2 = self.maps_of_second_pair(extents, words)
        map_a = [*maps_a, *maps_b][0]
        others = maps_c + maps_a[1:] + maps_a2 + maps_b[1:] + last_b + maps_b2
        assert len(others) <= OTHER_MAPS, f"{len(others)} tensor maps besides the first two"
        others += [map_a] * (OTHER_MAPS - len(others))  # a kernel has a fixed number of parameters
        more = self.kernel_words(words, a, pitches_a)
        self.kernel(map_a, maps_b[0], *others, c, m, n, k, batch, *pitches["c"], more).launch(
            grid=self.launch_grid(m, n, batch, workers, self.reads_of(words)),
            block=(plan.threads, 1, 1),
            cluster=(plan.cluster_size, 1, 1),
            smem=plan.launch_bytes,
            min_blocks_per_mp=several,  # without it the compiler ignores setmaxnreg
            preferred_smem_carveout=ALL_SHARED if several > 1 else None,
            use_pdl=plan.config.tuning.overlap,
            stream=stream,
        )
        self.finish(sizes, words, stream)

    def prepare_rows(
        self, a: Int64, pitches: tuple[Int64, Int64], sizes: Sequence[Int32], words: Sequence[Int64],
        stream: bridge.Stream,
    ) -> tuple[Int64, tuple[Int64, Int64]]:  # fmt: skip
        """A launch before the product's: none. Returns the address and the pitches of the A that the product reads."""
        return a, pitches

    def finish(self, sizes: Sequence[Int32], words: Sequence[Int64], stream: bridge.Stream) -> None:
        """Launches behind the product's: none."""

    def reads_of(self, words: Sequence[Int64]) -> WordReads | None:
        """The words of the order of tiles, if it reads any."""
        return reads_of(self.plan.order.schedule, self.plan.words, words)

    def launch_grid(
        self, m: Int32, n: Int32, batch: Int32, workers: Int32, reads: WordReads | None
    ) -> tuple[Int32, Int32 | int, int]:
        """Blocks of the launch. They are of clusters in a row, or of the grid of tiles itself."""
        plan = self.plan
        if plan.tile_from_block_index:
            rows, columns = plan.order.clusters(self.grid_of(m, n))
            across = (rows, columns) if plan.config.tuning.along == "M" else (columns, rows)
            return across[0] * plan.cluster_size, across[1], 1
        tiles = self.most_tiles(m, n, batch, reads)
        clusters = tiles if plan.one_each else cutlass.min(tiles, workers)
        return clusters * plan.cluster_size, 1, 1

    def maps_of_a(self, a: Int64, extents: Mapping[str, Int32], pitches: tuple[Int64, Int64]) -> list[bridge.TensorMap]:
        """A's tensor maps. Behind the first that of its last rows, and that of pairs that have turned."""
        own = self.map_of_lines(self.plan.a.tma, a, pitches, extents)
        turned = [self.plan.a.turned] if self.plan.turns else []
        return [
            own, *self.maps_of_last_rows(self.plan.a, a, extents, pitches),
            *[self.map_of_lines(tma, a, pitches, extents) for tma in turned],
        ]  # fmt: skip

    def kernel_words(self, words: Sequence[Int64], a: Int64, pitches: tuple[Int64, Int64]) -> Sequence[Int64]:
        """The words of a launch as the kernel takes them. `a` and `pitches` are A's address and distances."""
        return words

    def maps_of_b(
        self, first: tuple[Int64, tuple[Int64, ...]], further: Sequence[str],
        extents: Mapping[str, Int32], words: Sequence[Int64],
    ) -> list[bridge.TensorMap]:  # fmt: skip
        """The tensor maps of a pair's B, of each matrix where there are several.

        first    address and pitches of the first matrix
        further  names of the others
        """
        plan, (b, pitches) = self.plan, first
        of = [first] * len(plan.b.copies)
        if plan.halves > 1:  # the second half of B's columns begins n lines on
            of = [(b, (pitches[0], Int64(extents["n"]) * pitches[0], *pitches[1:]))]
        elif further:
            given = dict(zip(plan.words, words, strict=True))
            of = [first, *[plan.lines_given(name, given) for name in further]]
        return [self.map_of_lines(tma, *place, extents) for tma, place in zip(plan.b.copies, of, strict=True)]

    def maps_of_second_pair(
        self, extents: Mapping[str, Int32], words: Sequence[Int64]
    ) -> tuple[list[bridge.TensorMap], list[bridge.TensorMap]]:
        """The `plan.second_maps` tensor maps: of A2, and of what it multiplies."""
        plan = self.plan
        if plan.pair is None:
            return [], []
        given = dict(zip(plan.words, words, strict=True))
        of = {**extents, "k": Int32(given["k2"])}
        (a2, first), others = [plan.lines_given(x, given) for x in ("a2", plan.pair.of_b[0])], plan.pair.of_b[1:]
        maps_a = [self.map_of_lines(tma, *a2, of) for tma in plan.a.copies]
        return maps_a, self.maps_of_b(first, others, of, words)

    def map_of_lines(
        self, tma: TmaPlan, address: Int64, pitches: tuple[Int64, ...], extents: Mapping[str, Int32]
    ) -> bridge.TensorMap:
        """One of A's or of B's tensor maps."""
        return bridge.encode_tensor_map(tma, address, extents, *pitches[: len(tma.dims) - 1])

    def maps_of_c(
        self, c: Int64, extents: Mapping[str, Int32], pitches: Mapping[str, tuple[Int64, Int64]], words: Sequence[Int64]
    ) -> list[bridge.TensorMap]:
        """The tensor maps of the store, `store_maps` of them."""
        tmas = self.plan.store.maps if self.plan.store is not None else ()
        return [self.map_of_c(tma, c, extents, pitches) for tma in tmas]

    @property
    def store_maps(self) -> int:
        """Tensor maps that the stores use, a symmetric product's second one too."""
        return sum(len(store.maps) for store in (self.plan.store, self.plan.mirror) if store is not None)

    def map_of_c(
        self, tma: TmaPlan, c: Int64, extents: Mapping[str, Int32], pitches: Mapping[str, tuple[Int64, Int64]]
    ) -> bridge.TensorMap:
        """One of C's tensor maps."""
        return bridge.encode_tensor_map(tma, c, extents, *pitches["c"][: len(tma.dims) - 1])

    def maps_of_last_rows(
        self, operand: OperandPlan, address: Int64, extents: Mapping[str, Int32], pitches: Sequence[Int64]
    ) -> list[bridge.TensorMap]:
        """An operand's tensor map where its rows end within a box, if it has one."""
        tma, ends = operand.tma, operand.ends
        if ends is None:
            return []
        box = {ends.dim: ends.last(extents[ends.dim])}
        return [bridge.encode_tensor_map(tma, address, extents, *pitches[: len(tma.dims) - 1], box=box)]

    def most_tiles(self, m: Int32, n: Int32, batch: Int32, reads: WordReads | None) -> Int32:
        """Tiles of clusters, at most: what the host knows of their number."""
        order = self.plan.order
        return order.schedule.count(order.clusters(self.grid_of(m, n)), cutlass.min, reads) * batch

    def grid_of(self, m: Int32, n: Int32) -> tuple[Int32, Int32]:
        """Tiles along M and N."""
        return tile_count(m, self.plan.tile_c[0]), tile_count(n, self.plan.tile_c[1])

    def job_of(
        self, shared: bridge.SharedMemory, place: tuple[Int32, ...], sizes: tuple[Int32, Int32, Int32],
        c: tuple[Int64, Int64, Int64], words: tuple[Int64, ...],
    ) -> bridge.Carried:  # fmt: skip
        """The run-time values that a CTA's roles share; `tiles` is counted afterwards.

        place  rank in the cluster, part of K, warp, CTAs of the launch
        c      address, leading dimension, distance of matrices
        """
        plan, (rank, part, warp, blocks), (m, n, k) = self.plan, place, sizes
        rows, columns = plan.order.clusters(self.grid_of(m, n))
        k_tiles = first_tiles = tile_count(k, plan.tile[2])
        given = bridge.Carried(**dict(zip(plan.words, words, strict=True)))
        if plan.pair is not None:
            k_tiles += tile_count(Int32(given.k2), plan.tile[2])
        k_first, k_end = plan.part_of_k(k_tiles, part)
        count = plan.order.schedule.count((rows, columns), cutlass.min, self.reads_of(words))
        job = bridge.Carried(
            shared=shared, rank=rank % plan.sharing, part=part, warp=warp, rows=rows, columns=columns, count=count,
            tiles=Int32(0), k_first=k_first, k_tiles=k_end - k_first, workers=blocks // plan.cluster_size, m=m, n=n,
            c=c[0], ldc=c[1], stride_c=c[2], given=given,
        )  # fmt: skip
        if plan.row_exchange is not None:
            row, column = plan.sharers.place(job.rank)
            job = job.extended(cluster_row=row, cluster_column=column)
        return job if plan.pair is None else job.extended(first_tiles=first_tiles)

    def maps_of(self, first: bridge.Maps, others: bridge.Maps) -> tuple[bridge.Maps, bridge.Maps, bridge.Maps]:
        """The tensor maps of A, B and C, of `others` the store's first."""
        plan = self.plan
        of_a = self.store_maps
        of_b = of_a + plan.a.maps - 1 + plan.second_maps[0]
        end = of_b + plan.b.maps - 1 + plan.second_maps[1]
        return (first[0], *others[of_a:of_b]), (first[1], *others[of_b:end]), others[:of_a]

    @cute.kernel
    def kernel(
        self,
        map_a: cutlass.GridConstant[bridge.TensorMap],
        map_b: cutlass.GridConstant[bridge.TensorMap],
        map_0: cutlass.GridConstant[bridge.TensorMap],
        map_1: cutlass.GridConstant[bridge.TensorMap],
        map_2: cutlass.GridConstant[bridge.TensorMap],
        map_3: cutlass.GridConstant[bridge.TensorMap],
        map_4: cutlass.GridConstant[bridge.TensorMap],
        map_5: cutlass.GridConstant[bridge.TensorMap],
        c: Int64,
        m: Int32,
        n: Int32,
        k: Int32,
        batch: Int32,
        ldc: Int64,
        stride_c: Int64,
        words: tuple,
    ) -> None:
        """Device side: one block of a persistent grid."""
        plan = self.plan
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        blocks, _, _ = cute.arch.grid_dim()
        warp = bridge.uniform(thread // 32)
        group = bridge.uniform(thread // WARPGROUP)
        rank = bridge.rank_in_cluster() if const_expr(plan.cluster_size > 1) else Int32(0)
        part = rank // plan.sharing  # which part of K: blocks of the same part share loads, those of a tile the sum

        tuning = plan.config.tuning
        # A CTA's exit is a trigger, too. The launches behind partial results are small, and wait for this one.
        if const_expr((tuning.overlap and tuning.trigger == "start") or bool(plan.partials)):
            bridge.allow_next_kernel()
        elif const_expr(plan.adds_rows):
            if m <= BESIDE:
                bridge.allow_next_kernel()

        # 1. Barriers, once; then the whole cluster, since its blocks arrive at each other's.
        shared = bridge.SharedMemory(plan.smem)
        if thread == 0:  # one thread: a thread a stage, or another warp for the maps, took longer
            for tensor_map in (map_a, map_b, map_0):
                bridge.prefetch_map(tensor_map)
            self.init_barriers(shared)
        if const_expr(plan.cluster_size > 1):
            bridge.cluster_arrive(relaxed=True)  # for the barriers, which have a fence: nothing else is written yet

        # 2. Where this block begins: integer divisions, while the others arrive.
        job = self.job_of(shared, (rank, part, warp, blocks), (m, n, k), (c, ldc, stride_c), words)
        if const_expr(plan.counts_groups):  # places hang on the number of groups
            job = job.extended(groups=batch)
        reads_early = tuning.overlap and plan.ragged is not None
        # Where groups end is in global memory. All else before the roles sees none, and hides behind the kernel before.
        if const_expr(reads_early):
            bridge.wait_for_previous_kernel()
        job.tiles = self.count_tiles(job, batch, thread)  # type: ignore[attr-defined]
        job = self.with_rounds(job)
        maps = self.maps_of((map_a, map_b), (map_0, map_1, map_2, map_3, map_4, map_5))
        first = self.first_tile(job, block // plan.cluster_size, blocks // plan.cluster_size)
        if const_expr(plan.config.launch == "tiles"):  # a block has one; its place may say which: see `origin`
            first = Int32(0) if plan.tile_from_block_index else first
            job.tiles, job.workers = first + 1, Int32(1)  # type: ignore[attr-defined]

        # `ahead` is where the loader stands: tile, its origin, k tile, stage, parity, direction through K, and the
        # tile's own share of K, if it has one.
        # Uniform, which also keeps the divisions up here: the compiler would move them to where their results are used.
        place, loaded = self.first_place(job, first)
        share = self.share_of_k(job, place)
        if const_expr(plan.mainloop is not None):
            job = job.extended(first_place=place)
        origin = (loaded, *place[1:])
        ahead = (first, *origin, Int32(0), Int32(0), Int32(1), Int32(0), share)
        ready = self.first_loads(job, ahead)

        if const_expr(tuning.prefetch > 0):
            self.fetch_ahead(job, maps, (first, *origin))

        if const_expr(plan.cluster_size > 1):
            bridge.cluster_wait()
        elif const_expr(plan.groups is None):  # who makes a table of groups meets behind it
            bridge.block_sync()

        # 3. What the kernel before this one wrote is read from here on.
        if const_expr(tuning.overlap and not reads_early):
            bridge.wait_for_previous_kernel()

        # 4. The roles.
        if const_expr(plan.config.loader == "self"):
            for _ in cutlass.range(plan.stages, unroll=1):
                ahead = self.load_next(job, maps, ahead)
            self.consume(job, maps, first, group, thread % WARPGROUP, ahead)
        else:
            if group == plan.config.consumers:
                if const_expr(plan.registers is not None):
                    bridge.give_registers(present(plan.registers)[0])
                if const_expr(plan.loader_copies):
                    self.gather_tiles(job, maps, first, thread % WARPGROUP, ready)
                else:
                    if warp == plan.loader_warp and job.k_tiles > 0:
                        if const_expr(plan.loads_once):
                            ahead = self.load_only(job, maps, ahead, ready)
                        else:
                            while ahead[0] < job.tiles:
                                ahead = self.load_next(job, maps, ahead)
                    if const_expr(plan.drains):
                        self.drain(job, ahead)
                if const_expr(plan.numbers_warp is not None):
                    if warp == plan.numbers_warp:
                        self.feed_numbers(job, ahead)
            else:
                if const_expr(plan.registers is not None):
                    bridge.take_registers(present(plan.registers)[1])
                self.consume(job, maps, first, group, thread % WARPGROUP, ahead)

        # 5. Rows that the cluster has whole: their tuples have come to its first block.
        if const_expr(plan.row_exchange is not None and plan.row_exchange.bytes > 0):
            bridge.cluster_arrive()
            bridge.cluster_wait()
            self.finish_rows(job, first, thread)

        # No block leaves while another may still send into its shared memory or arrive at its barriers: those that
        # share loads know it by their loaders' last waits, those that exchange partial sums by having them all.

    # ------------------------------------------------------------------------------------------------------------ tiles
    def count_tiles(self, job: bridge.Carried, batch: Int32, thread: Int32) -> Int32:
        """The number of all tiles of clusters. Called by all threads, once."""
        return job.count * batch

    def first_tile(self, job: bridge.Carried, cluster: Int32, clusters: Int32) -> Int32:
        """The number of the tile that a cluster of the launch begins with."""
        return self.plan.gpc_order.number(cluster, clusters, cutlass.min)

    def first_place(self, job: bridge.Carried, tile: Int32) -> tuple[bridge.Place, Int32]:
        """The place of the block's first tile, and its first loaded row."""
        row, column, matrix = [bridge.uniform(x) for x in self.origin(job, tile)]
        return (row, column, matrix), self.loaded_row(job, row, matrix)

    def origin(self, job: bridge.Carried, tile: Int32) -> bridge.Place:
        """This CTA's first row, first column and matrix, for a cluster tile's number."""
        plan = self.plan
        matrix = Int32(0)
        if plan.tile_from_block_index:  # as plan.order has it, by the hardware's own division of a block's number
            x, y, _ = cute.arch.block_idx()
            x //= plan.cluster_size
            row, column = plan.order.within((x, y) if plan.config.tuning.along == "M" else (y, x), job.rank)
            return row * plan.tile_c[0], column * plan.tile_c[1], matrix
        if plan.batch > 1:
            matrix = tile // job.count
            tile = tile % job.count
        grid = (job.rows * plan.config.cluster[0], job.columns * plan.config.cluster[1])
        reads = WordReads(job.given) if plan.order.schedule.words else None
        row, column = plan.order.tile(tile, 0, job.rank, grid, cutlass.min, reads)
        return row * plan.tile_c[0], column * plan.tile_c[1], matrix

    # --------------------------------------------------------------------------------------------------------- products
    @cute.jit
    def end_tiles(self, job: bridge.Carried, ahead: tuple[Int32, ...]) -> None:
        """The end of a consumer. All that it has loaded has landed, and its stores have read their buffers."""
        plan = self.plan
        if const_expr(plan.drains and plan.config.loader == "self"):
            self.drain(job, ahead)
        if const_expr(plan.store is not None):
            bridge.wait_stores_read(0)

    @cute.jit
    def consume(
        self, job: bridge.Carried, maps: Sequence[bridge.Maps], tile: Int32, consumer: Int32, thread: Int32,
        ahead: tuple[Int32, ...],
    ) -> None:  # fmt: skip
        """A consumer warpgroup: all its tiles, products and stores."""
        plan = self.plan
        pingpong, skips = plan.config.schedule == "pingpong", plan.config.tuning.skip_empty_blocks
        mma = bridge.Wgmma(plan)
        accumulators = [mma.accumulator() for _ in range(plan.blocks)]
        rows = self.row_sums()
        first_block = Int32(0) if pingpong else consumer * plan.blocks
        a = bridge.WgmmaOperand(plan.a.descriptor, job.shared.a(0), plan.smem.a_stage_bytes, first_block)
        b = bridge.WgmmaOperand(plan.b.descriptor, job.shared.b(0), plan.smem.b_stage_bytes)
        # What the last k tiles are multiplied with where the epilogue is staged: pieces that are complete one by one.
        pieces, finish, b_of, sums = plan.pieces(0), mma, b, accumulators
        if const_expr(plan.half is not None):
            finish = bridge.Wgmma(plan, plan.half)
            b_of = bridge.WgmmaOperand(present(plan.half)[1], job.shared.b(0), plan.smem.b_stage_bytes)
            sums = finish.halves(accumulators[0])
        if const_expr(plan.config.loaded_a_rows is not None):
            self.clear_dead_rows(job.shared, consumer * WARPGROUP + thread)
        stage, parity = Int32(0), Int32(0)
        done = Int32(0)  # pingpong: tiles of the block before this one
        if const_expr(pingpong):
            tile += consumer * job.workers
            done = Int32(consumer)
            if consumer == 1:  # the first turn is consumer 0's
                bridge.named_arrive(plan.turn_barrier(0), plan.turn_threads)

        own_turns = self.own_turns(job, consumer)
        while tile < own_turns:
            if const_expr(plan.shards is None):
                m0, n0, matrix = self.origin(job, tile)
                share = self.share_of_k(job, (m0, n0, matrix))
                k_tiles = self.count_k_tiles(job, share)
            else:
                share, k_tiles = (), job.k_tiles
            if const_expr(pingpong):
                passed = done * job.k_tiles
                stage = passed % plan.stages
                parity = passed // plan.stages & 1
                bridge.named_sync(plan.turn_barrier(consumer), plan.turn_threads)

            # One group in flight: the stage of the group before is released, and refilled, while this one runs.
            before = stage
            for added in rows:
                added.fill(0)
            early = plan.config.staged_epilogue_k_tiles
            present_blocks = Int32(plan.blocks)
            if const_expr(skips):
                present_blocks = self.count_blocks(job, m0 + first_block * ROWS, matrix)
                if present_blocks < plan.blocks:
                    for block in cutlass.range_constexpr(plan.blocks):
                        accumulators[block].fill(0)
            for k_tile in cutlass.range(k_tiles - early, unroll=1):
                stage = bridge.uniform(stage)
                self.between_products(job, tile, k_tile)
                self.await_stage(job, stage, parity)
                if const_expr(not skips):
                    mma.multiply_blocks(accumulators, a, b, stage, k_tile > 0)
                for count in cutlass.range_constexpr(1, plan.blocks + 1 if skips else 1):
                    if present_blocks == count:
                        mma.multiply_blocks(accumulators[:count], a, b, stage, k_tile > 0)
                if const_expr(plan.row_sums is not None):
                    self.add_rows(job, rows, stage, (first_block, thread, n0))
                mma.wait(1)
                if k_tile > 0:
                    self.release(job, before)
                    if const_expr(plan.config.loader == "self"):
                        ahead = self.load_next(job, maps, ahead)
                before = stage
                stage, parity = bridge.next_in_ring(stage, parity, plan.stages)

            # Early: the last k tiles piece by piece, so that one can be stored while the next ones are multiplied.
            held = []
            for step in cutlass.range_constexpr(early):
                stage = bridge.uniform(stage)
                self.await_stage(job, stage, parity)
                if const_expr(step == 0 and plan.half is not None):
                    mma.wait(0)  # only instructions of one shape keep their order over an accumulator by themselves
                keep = k_tiles > early if step == 0 else True
                finish.multiply_block(sums[0], a, b_of, stage, pieces[0][0], pieces[0][1], keep)
                if const_expr(step == 0):
                    mma.wait(1)
                    if k_tiles > early:
                        self.release(job, before)
                        if const_expr(plan.config.loader == "self"):
                            ahead = self.load_next(job, maps, ahead)
                held.append(stage)
                stage, parity = bridge.next_in_ring(stage, parity, plan.stages)
            for number in cutlass.range_constexpr(1, len(pieces) if early else 0):
                for step in cutlass.range_constexpr(early):
                    keep = k_tiles > early if step == 0 else True
                    of = pieces[number]
                    finish.multiply_block(sums[number], a, b_of, held[step], of[0], of[1], keep)
            if const_expr(pingpong):
                if tile + job.workers < job.tiles:  # the other has one more
                    bridge.named_arrive(plan.turn_barrier(1 - consumer), plan.turn_threads)

            if const_expr(plan.shards is not None):  # many divisions, which the last products hide
                m0, n0, matrix = self.origin(job, tile)
            row, at = m0 + first_block * ROWS, (consumer, thread, tile)
            last = len(pieces) - 1 if early else 0  # the piece whose products free the last stage
            # Of a single tile only the blocks of a cluster still ask.
            frees = plan.drains or not plan.config.one_tile_per_cluster
            if const_expr(plan.config.one_tile_per_cluster):
                mma.wait(0)
            if const_expr(plan.config.split > 1):
                if job.k_tiles == 0:
                    for block in cutlass.range_constexpr(plan.blocks):
                        accumulators[block].fill(0)
                mma.settle(*accumulators)
            self.bring_together(job, accumulators, (consumer, thread))
            for number in cutlass.range_constexpr(len(pieces)):
                if const_expr(plan.group_scales is not None and number == 0):
                    mma.wait(0)
                    finish.settle(*sums)
                    self.scale_rows(job, accumulators, (consumer, thread), (row, n0, matrix))
                if const_expr(early and number < last):
                    mma.wait((last - number) * early)
                for step in cutlass.range_constexpr(max(1, early) if number == last and frees else 0):
                    mma.wait(max(1, early) - 1 - step)
                    self.release(job, held[step] if early else before)
                    if const_expr(plan.config.loader == "self"):
                        ahead = self.load_next(job, maps, ahead)
                if const_expr(plan.config.split == 1):
                    finish.settle(sums[number])
                self.settle_group(job, share, [sums[number]])
                for part in cutlass.range_constexpr(plan.config.split):
                    if job.part == part:
                        self.store_piece(job, maps, accumulators, at, (row, n0, matrix), number, part)
            if const_expr(plan.row_sums is not None):
                self.store_rows(job, rows, thread, (row, n0, matrix))
            tile += (2 if pingpong else 1) * job.workers
            done += 2
        ahead = self.pass_turn(job, maps, tile, (stage, parity), ahead)
        self.after_tiles(job, tile)
        self.end_tiles(job, ahead)

    def scale_rows(
        self, job: bridge.Carried, accumulators: Sequence[cute.Tensor], at: tuple[Int32, Int32], origin: bridge.Place
    ) -> None:  # fmt: skip
        """Leave the factors of groups of rows, likewise."""
        raise NotImplementedError

    def finish_rows(self, job: bridge.Carried, tile: Int32, thread: Int32) -> None:
        """Store the reductions of the cluster's rows. Only a kernel with an epilogue does."""
        raise NotImplementedError

    def with_rounds(self, job: bridge.Carried) -> bridge.Carried:
        """The job with its clusters' turns: one for each tile. Groups may halve tiles of the last round."""
        return job

    def own_turns(self, job: bridge.Carried, consumer: Int32) -> Int32:
        """The end of a consumer's turns: behind the last tile."""
        return job.tiles

    @cute.jit
    def pass_turn(
        self, job: bridge.Carried, maps: Sequence[bridge.Maps], tile: Int32, at: tuple[Int32, Int32],
        ahead: tuple[Int32, ...],
    ) -> tuple[Int32, ...]:  # fmt: skip
        """Release the stages of another consumer's half, and load the next ones.

        at  the next stage, and its parity
        """
        plan, stage, parity = self.plan, at[0], at[1]
        if const_expr(plan.config.tuning.halve_last_round):
            k_tiles = choose(tile < job.tiles, job.k_tiles, Int32(0))
            for _ in cutlass.range(k_tiles, unroll=1):
                stage = bridge.uniform(stage)
                self.await_stage(job, stage, parity)
                self.release(job, stage)
                if const_expr(plan.config.loader == "self"):
                    ahead = self.load_next(job, maps, ahead)
                stage, parity = bridge.next_in_ring(stage, parity, plan.stages)
        return ahead

    def count_blocks(self, job: bridge.Carried, row: Int32, matrix: Int32) -> Int32:
        """The blocks of 64 rows, from `row` on, that a consumer multiplies: all. Groups may end before."""
        return Int32(self.plan.blocks)

    def row_sums(self) -> list[cute.Tensor]:
        """A lane's sums of A's rows: none."""
        return []

    def add_rows(
        self, job: bridge.Carried, rows: Sequence[cute.Tensor], stage: Int32, at: tuple[Int32, Int32, Int32]
    ) -> None:  # fmt: skip
        """Add the rows of a K tile of A. Only a kernel with their sums does."""
        raise NotImplementedError

    def store_rows(
        self, job: bridge.Carried, rows: Sequence[cute.Tensor], thread: Int32, origin: bridge.Place
    ) -> None:  # fmt: skip
        """Store the sums of A's rows, likewise."""
        raise NotImplementedError

    def between_products(self, job: bridge.Carried, tile: Int32, k_tile: Int32) -> None:
        """Called by each consumer before it waits for a K tile: nothing to do."""

    def after_tiles(self, job: bridge.Carried, tile: Int32) -> None:
        """Called by each consumer after its last tile. `tile` is the one that it would take next."""

    def await_stage(self, job: bridge.Carried, stage: Int32, parity: Int32) -> None:
        """Wait until a stage has landed. A thread that multiplies what cp.async wrote fences behind the wait."""
        bridge.barrier_wait(job.shared.full(stage), parity)
        if const_expr(self.plan.gathers):
            bridge.shared_writes_visible()

    @cute.jit
    def bring_together(self, job: bridge.Carried, sums: Sequence[cute.Tensor], at: tuple[Int32, ...]) -> None:
        """Between a CTA's only tile and its store. Partial sums of split-K, and the end of the stages."""
        plan = self.plan
        if const_expr(plan.exchange is not None):
            self.epilogue.send(job, sums, at)
        if const_expr(plan.config.one_tile_per_cluster and plan.store is not None):
            # The buffers lie over the stages: all have to have read these.
            bridge.named_sync(plan.stages_barrier, plan.stages_threads)
        if const_expr(plan.config.slices > 1):
            if plan.place_of_consumer(at[0])[1] == 0:
                self.epilogue.reduce(job, sums, at)
        elif const_expr(plan.exchange is not None):
            self.epilogue.reduce(job, sums, at)

    @cute.jit
    def store_pieces(
        self, job: bridge.Carried, maps: Sequence[bridge.Maps], accumulators: Sequence[cute.Tensor],
        at: tuple[Int32, ...], origin: bridge.Place,
    ) -> None:  # fmt: skip
        """The pieces of a warpgroup's rows; of a split K the own part."""
        plan = self.plan
        for number in cutlass.range_constexpr(len(plan.pieces(0))):
            for part in cutlass.range_constexpr(plan.config.split):
                if job.part == part:
                    self.store_piece(job, maps, accumulators, at, origin, number, part)

    def store_piece(
        self, job: bridge.Carried, maps: Sequence[bridge.Maps], accumulators: Sequence[cute.Tensor],
        at: tuple[Int32, ...], origin: bridge.Place, number: int, part: int,
    ) -> None:  # fmt: skip
        """Store the piece of that number of this part of K. `at`: (consumer, thread, number of the tile)."""
        block, columns = self.plan.pieces(part)[number]
        at = at[:2]
        self.epilogue.store(job, maps[2], accumulators[block], at, origin, block, columns)
        if self.mirror.epilogue is not None and number == len(self.plan.pieces(part)) - 1:
            self.mirror.store(job, maps[2], accumulators, at, origin)

    @cute.jit
    def release(self, job: bridge.Carried, stage: Int32) -> None:
        """This warp has read the stage. Tell every block that sends into it, one lane each.

        An arrival tells of the reads of its own lane. Lanes that load from a stage themselves meet behind their loads
        (`warp_sync`): here, between products that run, the compiler would serialise these.
        """
        plan, lane = self.plan, cute.arch.lane_idx()
        needed = lane < plan.sharing
        if const_expr(plan.config.split > 1):
            needed = needed and job.k_tiles > 0  # a part of K may have none, and then has read no stage
        if const_expr(min(plan.config.cluster) > 1):
            # Those of its row send it A, those of its column B. A block of neither may be a round behind: it would
            # count the arrival in the wrong phase.
            (row, column), (own_row, own_column) = plan.sharers.place(lane), plan.sharers.place(job.rank)
            needed = needed and (row == own_row or column == own_column)
        if needed:
            if const_expr(plan.sharing > 1):
                bridge.barrier_arrive_at(job.shared.empty(stage), job.part * plan.sharing + lane)
            else:
                bridge.barrier_arrive(job.shared.empty(stage))
