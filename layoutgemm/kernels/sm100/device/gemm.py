"""C = A @ B on Blackwell: persistent, warp-specialised, accumulators in tensor memory. By one block or a pair.

Every layout, box, descriptor, byte count, arrive count and barrier is an attribute of the plan (Sm100Plan); this file
holds the order in which things happen. A CTA, or a pair of CTAs, takes tile after tile in the plan's order. A ring of
stages carries K tiles from the TMA loads to the products. A ring of accumulators carries tiles of C to the epilogue,
which stores a tile while the next one is multiplied.

    role        who          does
    --------    ---------    ------------------------------------------------------------------------------------------
    loader      warp 5       waits for empty[s], arms full[s] with plan.full_bytes, issues the loads of a k
                             tile; of a pair it waits at the end for the last commits
    mma         warp 4       waits for acc_empty[i], then for full[s] of each k tile; copies block scales, where there
                             are any, to tensor memory; multiplies, and commits the stage
                             to empty[s], the tile to acc_full[i]. It allocates tensor memory and frees it
    epilogue    warps 0-3    wait for acc_full[i], load their lanes, arrive at acc_empty[i], convert and store, each
                             warp its 32 rows

    barrier         kind        completed by                                               waited for by
    ------------    --------    -------------------------------------------------------    ----------------------
    full[s]         mbarrier    plan.full_arrivals (the loader's arrive.expect_tx) and     mma
                                plan.full_bytes, of a pair both blocks'
    empty[s]        mbarrier    plan.empty_arrivals: the commit of the stage's products    the loader
    acc_full[i]     mbarrier    plan.acc_full_arrivals: the commit of the tile's           the epilogue's warps
                                products
    acc_empty[i]    mbarrier    plan.acc_empty_arrivals: one of each epilogue warp         mma
    block           named 0     all threads, at the start and at the end; of a pair the    the same
                                cluster's barrier instead

In a pair the even CTA's mma multiplies for both. Its full barrier counts the bytes of both CTAs' loads, its acc_empty
the arrivals of both epilogues. Its commits arrive at both CTAs' empty and acc_full.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr

from ....atoms import TmaPlan
from ...dsl import bridge
from ...dsl import tcgen05 as tensor
from ...dsl.entry import GemmEntry
from ...dsl.reductions import launch_finish
from ...dsl.tables import WordReads, choose, reads_of
from ...operands.block_scales import NAMES
from ...operands.pair import SECOND, place_in_pairs
from ...plan import present, tile_count
from ..plan import BLOCK_ROWS, EPILOGUE_WARPS, LOADER_WARP, MMA_WARP, Sm100Plan
from .epilogue import Sm100Epilogue

FURTHER_MAPS = 6  # of three matrices B and a second pair: two, and four; four matrices have no words left for a pair


class Sm100GemmKernel(GemmEntry):
    """The kernel for one plan. What is reachable through `self.plan` is a compile-time constant of the trace."""

    plan: Sm100Plan

    def __init__(self, plan: Sm100Plan):
        self.plan = plan
        self.epilogue = Sm100Epilogue(plan)

    @cute.jit
    def start(
        self, matrices: Sequence[Int64], sizes: Sequence[Int32], pitches: Mapping[str, tuple[Int64, Int64]],
        workers: Int32 | None, words: Sequence[Int64], stream: bridge.Stream,
    ) -> None:  # fmt: skip
        """Host side: encode the tensor maps, launch at most `workers` blocks, or pairs. See `TileEntry.start`."""
        plan = self.plan
        a, b, c = matrices
        m, n, k, batch = sizes
        extents = {"m": m, "n": n, "k": k, "l": batch}
        map_a = self.encoded("a", plan.a.tma, a, extents, pitches["a"], words)
        map_b, *further = self.encoded_b((b, pitches["b"]), extents, words)
        stored = plan.store.maps if plan.epilogue.stores_c else ()
        maps_c = [self.encoded("c", tma, c, extents, pitches["c"], words) for tma in stored]
        maps_c = (maps_c + [map_b] * 4)[:4]  # a kernel has a fixed number of parameters
        if const_expr(plan.pair is not None):
            further += self.encoded_second(extents, words)
        if const_expr(plan.scales is not None):
            further += self.encoded_scales(extents, words)
        across = tile_count(m, plan.tile_c[0]), tile_count(n, plan.tile_c[1])
        reads = reads_of(plan.order.schedule, plan.words, words)
        tiles = self.most_tiles(across, batch, reads)
        arguments = *maps_c, m, n, k, batch, self.kernel_words(words, pitches)
        if const_expr(bool(further)):
            further = (further + [map_b] * FURTHER_MAPS)[:FURTHER_MAPS]
            launched = self.several_kernel(map_a, map_b, *further, *arguments)
        else:
            launched = self.kernel(map_a, map_b, *arguments)
        launched.launch(
            grid=(cutlass.min(tiles, workers) * plan.blocks, 1, 1),
            block=(plan.threads, 1, 1),
            cluster=(plan.blocks, 1, 1),
            smem=plan.smem.total,
            min_blocks_per_mp=1,
            use_pdl=plan.config.overlap,
            stream=stream,
        )
        launch_finish(plan, words, (m, n, batch), stream)

    def encoded(
        self, name: str, tma: TmaPlan, address: Int64, extents: Mapping[str, Int32], pitches: Sequence[Int64],
        words: Sequence[Int64],
    ) -> bridge.TensorMap:  # fmt: skip
        """Host side: the tensor map of matrix `name`, "a", "b" or "c"."""
        if const_expr(self.plan.a.per_unit > 1 and name != "c"):
            extents = {**extents, "k": extents["k"] // self.plan.a.per_unit}
        return bridge.encode_tensor_map(tma, address, extents, *pitches[: len(tma.dims) - 1])

    def most_tiles(self, across: tuple[Int32, Int32], batch: Int32, reads: WordReads | None) -> Int32:
        """Host side: tiles at most, of a grid for each matrix."""
        return self.plan.order.schedule.count(across, cutlass.min, reads) * batch

    def host_given(self, words: Sequence[Int64]) -> bridge.Carried:
        """Host side: the plan's words by name."""
        return bridge.Carried(**dict(zip(self.plan.words, words, strict=True)))

    def encoded_b(
        self, first: tuple[Int64, Sequence[Int64]], extents: Mapping[str, Int32], words: Sequence[Int64],
        names: Sequence[str] | None = None,
    ) -> list[bridge.TensorMap]:  # fmt: skip
        """Host side: the tensor maps of the matrices side by side in B's tile. A gate's halves are of one matrix.

        first  address and pitches of the first
        names  of further ones; default those of the plan's function
        """
        plan, given = self.plan, dict(zip(self.plan.words, words, strict=True))
        address, pitches = first
        if names is None:
            names = [name for name, _ in plan.gated.places] if plan.gated is not None else []
        at = [(address, pitches), *[plan.lines_given(name, given) for name in names]]
        if plan.halves > 1:
            half = Int64(extents["n"]) * pitches[0] * plan.b.unit.bytes
            at = [(address + i * half, pitches) for i in range(plan.halves)]
        return [self.encoded("b", tma, *where[:1], extents, where[1], words)
                for tma, where in zip(plan.b.copies, at, strict=True)]  # fmt: skip

    def encoded_second(self, extents: Mapping[str, Int32], words: Sequence[Int64]) -> list[bridge.TensorMap]:
        """Host side: the tensor maps of the second pair. They are of A2 and the matrices that it multiplies."""
        plan, given = self.plan, dict(zip(self.plan.words, words, strict=True))
        extents = {**extents, "k": Int32(given["k2"])}
        a2, pitches = plan.lines_given("a2", given)
        map_a = self.encoded("a2", plan.a.tma, a2, extents, pitches, words)
        first, *others = present(plan.pair).of_b
        return [map_a, *self.encoded_b(plan.lines_given(first, given), extents, words, others)]

    def encoded_scales(self, extents: Mapping[str, Int32], words: Sequence[Int64]) -> list[bridge.TensorMap]:
        """Host side: the tensor maps of the block scales of A and B."""
        given, scales = dict(zip(self.plan.words, words, strict=True)), present(self.plan.scales)
        pitches = [Int64(pitch) for pitch in scales.pitches(extents["k"])]
        return [
            bridge.encode_tensor_map(
                tma, given[name], scales.extents(operand, extents[dim], extents["k"], extents["l"]), *pitches
            )
            for operand, (name, dim, tma) in enumerate(zip(NAMES, "mn", scales.copies, strict=True))
        ]

    def kernel_words(self, words: Sequence[Int64], pitches: Mapping[str, tuple[Int64, Int64]]) -> Sequence[Int64]:
        """Host side: the words that the kernel takes; the plan's come first."""
        return words

    def given(self, words: Sequence[Int64]) -> bridge.Carried:
        """The kernel's words by name."""
        return self.host_given(words)

    @cute.kernel
    def kernel(
        self,
        map_a: cutlass.GridConstant[bridge.TensorMap],
        map_b: cutlass.GridConstant[bridge.TensorMap],
        map_c0: cutlass.GridConstant[bridge.TensorMap],
        map_c1: cutlass.GridConstant[bridge.TensorMap],
        map_c2: cutlass.GridConstant[bridge.TensorMap],
        map_c3: cutlass.GridConstant[bridge.TensorMap],
        m: Int32,
        n: Int32,
        k: Int32,
        batch: Int32,
        words: tuple,
    ) -> None:
        """Device side: one block of a persistent grid."""
        self.run((map_a, map_b), (map_c0, map_c1, map_c2, map_c3), (m, n, k, batch), words)

    @cute.kernel
    def several_kernel(
        self,
        map_a: cutlass.GridConstant[bridge.TensorMap],
        map_b: cutlass.GridConstant[bridge.TensorMap],
        further0: cutlass.GridConstant[bridge.TensorMap],
        further1: cutlass.GridConstant[bridge.TensorMap],
        further2: cutlass.GridConstant[bridge.TensorMap],
        further3: cutlass.GridConstant[bridge.TensorMap],
        further4: cutlass.GridConstant[bridge.TensorMap],
        further5: cutlass.GridConstant[bridge.TensorMap],
        map_c0: cutlass.GridConstant[bridge.TensorMap],
        map_c1: cutlass.GridConstant[bridge.TensorMap],
        map_c2: cutlass.GridConstant[bridge.TensorMap],
        map_c3: cutlass.GridConstant[bridge.TensorMap],
        m: Int32,
        n: Int32,
        k: Int32,
        batch: Int32,
        words: tuple,
    ) -> None:
        """Device side, with tensor maps of several matrices B, and of a second pair."""
        maps = (map_a, map_b, further0, further1, further2, further3, further4, further5)
        self.run(maps, (map_c0, map_c1, map_c2, map_c3), (m, n, k, batch), words)

    @cute.jit
    def run(self, maps: bridge.Maps, maps_c: bridge.Maps, sizes: tuple[Int32, ...], words: tuple[Int64, ...]) -> None:
        """One block of a persistent grid.

        maps  of A and the matrices B, then of A2 and its matrices B
        """
        plan, (m, n, k, batch) = self.plan, sizes
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        blocks, _, _ = cute.arch.grid_dim()
        warp = bridge.uniform(thread // 32)
        rank = bridge.rank_in_cluster() if const_expr(plan.blocks > 1) else Int32(0)

        if const_expr(plan.config.overlap):
            bridge.allow_next_kernel()

        # 1. Barriers and tensor memory, once. Then the block meets, or the pair, whose blocks arrive at each other's.
        shared = tensor.TensorShared(plan.smem)
        if thread == 0:
            for tensor_map in (*maps[:2], maps_c[0]):
                bridge.prefetch_map(tensor_map)
            self.init_barriers(shared)
        if warp == MMA_WARP:
            tensor.tensor_allocate(shared.slot, plan.columns, plan.blocks)
            tensor.tensor_relinquish(plan.blocks)
        self.meet()
        accumulators = tensor.tensor_address(shared.slot)

        rows, columns = tile_count(m, plan.tile_c[0]), tile_count(n, plan.tile_c[1])
        given = self.given(words)
        reads = WordReads(given) if plan.order.schedule.words else None
        count = plan.order.schedule.count((rows, columns), cutlass.min, reads)
        job = bridge.Carried(
            shared=shared,
            accumulators=accumulators,
            rank=rank,
            warp=warp,
            rows=rows,
            columns=columns,
            count=count,
            tiles=Int32(0),
            k_tiles=self.k_tiles(k, given),
            first_tiles=tile_count(k, plan.tile[2]),
            first=block // plan.blocks,
            workers=blocks // plan.blocks,
            m=m,
            n=n,
            k=k,
            batch=batch,
            groups=batch,
            given=given,
        )

        # 2. Everything above touched no global memory, and ran while the kernel before this one drained.
        if const_expr(plan.config.overlap):
            bridge.wait_for_previous_kernel()
        job.tiles = self.count_tiles(job, batch, thread)  # type: ignore[attr-defined]

        # 3. The roles.
        if warp == LOADER_WARP:
            self.load(job, maps)
        if warp == MMA_WARP and rank == 0:
            self.multiply(job)
        if warp < EPILOGUE_WARPS:
            self.drain(job, maps_c)

        # 4. Tensor memory is freed when all its loads are done, and no block leaves while another may arrive at it.
        tensor.fence_before_sync()
        self.meet()
        if warp == MMA_WARP:
            tensor.fence_after_sync()
            tensor.tensor_free(accumulators, plan.columns, plan.blocks)

    def count_tiles(self, job: bridge.Carried, batch: Int32, thread: Int32) -> Int32:
        """The number of all tiles. Called by all threads, once."""
        return job.count * batch

    def init_barriers(self, shared: tensor.TensorShared) -> None:
        """Every barrier of the CTA's shared memory. Called by one thread."""
        plan = self.plan
        for stage in range(plan.stages):
            bridge.barrier_init(shared.full(stage), plan.full_arrivals)
            bridge.barrier_init(shared.empty(stage), plan.empty_arrivals)
        for number in range(plan.accumulators):
            bridge.barrier_init(shared.acc_full(number), plan.acc_full_arrivals)
            bridge.barrier_init(shared.acc_empty(number), plan.acc_empty_arrivals)
        bridge.barriers_visible()

    def meet(self) -> None:
        """All threads that work together: of the block, or of the pair."""
        if self.plan.blocks > 1:
            bridge.cluster_arrive()
            bridge.cluster_wait()
        else:
            bridge.block_sync()

    def origin(self, job: bridge.Carried, tile: Int32) -> bridge.Place:
        """This CTA's first row, first column and matrix of a tile of C."""
        plan = self.plan
        matrix = Int32(0)
        if plan.batch > 1:
            matrix = tile // job.count
            tile = tile % job.count
        reads = WordReads(job.given) if plan.order.schedule.words else None
        row, column = plan.order.tile(tile, 0, 0, (job.rows, job.columns), cutlass.min, reads)
        return row * plan.tile_c[0] + job.rank * BLOCK_ROWS, column * plan.tile_c[1], matrix

    # ------------------------------------------------------------------------------------------------------------ loads
    @cute.jit
    def load(self, job: bridge.Carried, maps: bridge.Maps) -> None:
        """The loader's warp: this block's part of every k tile of every tile."""
        plan = self.plan
        tile, stage, parity = job.first, Int32(0), Int32(1)
        while tile < job.tiles:
            m0, n0, matrix = self.origin(job, tile)
            own = self.of_loaded_tile(job, m0, matrix)
            for k_tile in cutlass.range(self.count_k_tiles(own), unroll=1):
                stage = bridge.uniform(stage)
                bridge.barrier_wait(job.shared.empty(stage), parity)
                if bridge.elect():
                    self.issue_loads(own, maps, m0, n0, matrix, k_tile, stage)
                stage, parity = bridge.next_in_ring(stage, parity, plan.stages)
            tile += job.workers
        # The even block's commits arrive here: this block stays until the last of them has.
        if const_expr(plan.blocks > 1):
            for _ in cutlass.range(plan.stages, unroll=1):
                bridge.barrier_wait(job.shared.empty(stage), parity)
                stage, parity = bridge.next_in_ring(stage, parity, plan.stages)

    @cute.jit
    def issue_loads(
        self, job: bridge.Carried, maps: bridge.Maps, m0: Int32, n0: Int32, matrix: Int32, k_tile: Int32, stage: Int32
    ) -> None:
        """Arm full[stage] and issue this block's part of both tiles. Called by one thread."""
        plan, place = self.plan, {"l": matrix, **self.place_of_k(job, k_tile)}
        of_a, of_b = maps[0], maps[1 : 1 + len(plan.b.copies)]
        if const_expr(plan.pair is not None):
            second, place = maps[1 + len(of_b) :], place_in_pairs(k_tile, job.first_tiles, plan.tile[2], choose)
            place["l"] = matrix
            of_a, *of_b = [bridge.SelectedTensorMap(place[SECOND], *two)
                           for two in zip(second, (of_a, *of_b), strict=False)]  # fmt: skip
        full, a, b = job.shared.full(stage), job.shared.a(stage), job.shared.b(stage)
        if job.rank == 0:
            bridge.barrier_expect(full, plan.full_bytes)
        self.load_a(job, of_a, {**place, "m": m0}, a, full)
        n_own = n0 + job.rank * plan.beside.share
        load = tensor.load_for_pair if const_expr(plan.blocks > 1) else bridge.load_tile
        if const_expr(plan.scales is not None):
            self.load_scales(job, maps[1 + len(plan.b.copies) :], (m0, n0, matrix), k_tile, stage)
        for tensor_map, tma in zip(of_b, plan.b.copies, strict=True):
            load(tensor_map, tma, {**place, "n": n_own}, b, full)

    def load_scales(
        self, job: bridge.Carried, maps: bridge.Maps, origin: bridge.Place, k_tile: Int32, stage: Int32
    ) -> None:
        """Issue the loads of a k tile's block scales. B's are those of all columns."""
        scales, (m0, n0, matrix) = present(self.plan.scales), origin
        load = tensor.load_for_pair if const_expr(self.plan.blocks > 1) else bridge.load_tile
        for operand, (first, rows) in enumerate(((m0, job.m), (n0, job.n))):
            for group, offset in scales.loads(operand, first, matrix, rows):
                if const_expr(scales.joined and operand == 0):
                    group = job.first_chunks
                target = job.shared.scales(stage) + offset
                load(maps[operand], scales.copies[operand], scales.place(k_tile, group), target, job.shared.full(stage))

    def k_tiles(self, k: Int32, given: bridge.Carried) -> Int32:
        """K tiles of a tile of C, of both pairs."""
        first, depth = tile_count(k, self.plan.tile[2]), self.plan.tile[2]
        return first if self.plan.pair is None else first + tile_count(Int32(given.k2), depth)

    def count_k_tiles(self, job: bridge.Carried) -> Int32:
        """K tiles of a tile, in the job of the loader."""
        return job.k_tiles

    def place_of_k(self, job: bridge.Carried, k_tile: Int32) -> dict[str, Int32]:
        """Coordinates along K of a K tile, in the loader's job."""
        return {"k": k_tile * (self.plan.tile[2] // self.plan.a.per_unit)}

    def of_loaded_tile(self, job: bridge.Carried, row: Int32, matrix: Int32) -> bridge.Carried:
        """The job of a tile for the loader's warp, all lanes alike. `row`: the first of this block."""
        return job

    def of_stored_tile(self, job: bridge.Carried, row: Int32, matrix: Int32) -> bridge.Carried:
        """The job of a tile for a lane of an epilogue warp. `row`: the first of this block."""
        return job

    def load_a(
        self, job: bridge.Carried, tensor_map: bridge.TensorMap, origin: Mapping[str, Int32],
        destination: cute.Pointer, full: cute.Pointer,
    ) -> None:  # fmt: skip
        """Issue the loads of A's tile. Called by one thread."""
        load = tensor.load_for_pair if const_expr(self.plan.blocks > 1) else bridge.load_tile
        load(tensor_map, self.plan.a.tma, origin, destination, full)

    # --------------------------------------------------------------------------------------------------------- products
    @cute.jit
    def multiply(self, job: bridge.Carried) -> None:
        """The mma warp, of a pair the even block's: all products, one thread issuing them."""
        plan = self.plan
        a = tensor.TensorOperand(plan.a.descriptor, job.shared.a(0), plan.smem.a_stage_bytes)
        b = tensor.TensorOperand(plan.b.descriptor, job.shared.b(0), plan.smem.b_stage_bytes)
        chunks = self.scales_operand(job)
        tile, stage, parity = job.first, Int32(0), Int32(0)
        done = Int32(0)
        while tile < job.tiles:
            number, turn = done % plan.accumulators, done // plan.accumulators & 1
            bridge.barrier_wait(job.shared.acc_empty(number), turn ^ 1)  # it is free at first
            tensor.fence_after_sync()
            target = job.accumulators + number * plan.mma.accumulator.columns
            k_tiles = self.k_tiles_of_tile(job, tile)
            for k_tile in cutlass.range(k_tiles, unroll=1):
                stage = bridge.uniform(stage)
                bridge.barrier_wait(job.shared.full(stage), parity)
                if bridge.elect():
                    if const_expr(plan.scales is not None):
                        self.copy_scales(job, present(chunks), stage)
                    for k_block in cutlass.range_constexpr(len(plan.a.descriptor.k_steps)):
                        words = a.word_at(stage, k_block), b.word_at(stage, k_block)
                        keep = k_tile > 0 if const_expr(k_block == 0) else True
                        if const_expr(plan.scales is None):
                            tensor.tensor_multiply(plan.mma, plan.word.word, target, *words, keep)
                        else:
                            word, columns = present(plan.scales).read(plan.word, k_block)
                            factors = tuple([job.accumulators + column for column in columns])
                            tensor.tensor_multiply_scaled(plan.mma, word.word, target, words, factors, keep)
                    tensor.tensor_commit(job.shared.empty(stage), plan.blocks, plan.both)
                    if k_tile == k_tiles - 1:
                        tensor.tensor_commit(job.shared.acc_full(number), plan.blocks, plan.both)
                stage, parity = bridge.next_in_ring(stage, parity, plan.stages)
            done += 1
            tile += job.workers

    def k_tiles_of_tile(self, job: bridge.Carried, tile: Int32) -> Int32:
        """K tiles of a tile, by its number."""
        return job.k_tiles

    def scales_operand(self, job: bridge.Carried) -> tensor.TensorOperand | None:
        """The descriptors of a stage's chunks of block scales; None without scales."""
        scales = self.plan.scales
        return None if scales is None else tensor.TensorOperand(scales.descriptor, job.shared.scales(0), scales.bytes)

    def copy_scales(self, job: bridge.Carried, chunks: tensor.TensorOperand, stage: Int32) -> None:
        """Copy a stage's block scales to tensor memory. The thread's next products see them."""
        scales = present(self.plan.scales)
        for number, (_, column) in enumerate(scales.chunk_places()):
            tensor.tensor_copy(scales.cp, job.accumulators + column, chunks.word_at(stage, number))

    # --------------------------------------------------------------------------------------------------------- epilogue
    @cute.jit
    def drain(self, job: bridge.Carried, maps: bridge.Maps) -> None:
        """An epilogue warp: its rows of every tile."""
        plan = self.plan
        tile, done = job.first, Int32(0)
        while tile < job.tiles:
            number, turn = done % plan.accumulators, done // plan.accumulators & 1
            m0, n0, matrix = self.origin(job, tile)
            bridge.barrier_wait(job.shared.acc_full(number), turn)
            tensor.fence_after_sync()
            self.epilogue.store(self.of_stored_tile(job, m0, matrix), maps, number, (m0, n0, matrix))
            done += 1
            tile += job.workers
        bridge.wait_stores_read(0)
