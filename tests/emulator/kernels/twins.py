"""Kernels as users write them, with mistakes that a run-time number chooses.

0 is the right kernel. A number in place of a constant, so that one compilation has all of a kernel's mistakes.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
import cutlass.utils.blackwell_helpers as sm100_utils
from cutlass import Boolean, Float16, Float32, Int32, Int64, pipeline
from cutlass.cute.nvgpu import cpasync, tcgen05

(COUNT, RELEASE, TAIL, PHASE, REUSE, NAMED, CLUSTER, FENCE) = range(1, 9)  # of Ring
(GROUP, EMPTY_COMMIT, SWIZZLE) = range(1, 4)  # of Stages
(COMMIT, DEALLOC, ACCUMULATE, FULL) = range(1, 5)  # of Accumulators


class Ring:
    """Sums of tiles in a persistent kernel: y[32 t + i, j] = (rank + 1) * sum over c of x[32 t + i, 32 c + j].

    Two CTAs of a cluster load half of each tile for both. Warp 2 loads; warps 0 and 1 add, and warp 0 stores. y has the
    tiles of both, one below the other.
    """

    STAGES, CHUNKS, TILES = 2, 3, 2
    SIZE = 32

    @cute.jit
    def __call__(self, x: cute.Tensor, y: cute.Tensor, mistake: Int32) -> None:
        tile = (self.SIZE, self.SIZE)
        load, loaded = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileG2SMulticastOp(), x, self.layout(), tile, num_multicast=2
        )
        store, stored = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), y, self.layout(), tile)
        self.kernel(load, loaded, store, stored, mistake).launch(grid=(2, 1, 1), block=(96, 1, 1), cluster=(2, 1, 1))

    def layout(self) -> Any:
        return cute.make_composed_layout(
            cute.make_swizzle(3, 4, 3), 0, cute.make_layout((self.SIZE, self.SIZE), stride=(self.SIZE, 1))
        )

    @cute.kernel
    def kernel(self, load: cute.CopyAtom, x: cute.Tensor, store: cute.CopyAtom, y: cute.Tensor, mistake: Int32) -> None:
        thread, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
        allocator = cutlass.memory.SmemAllocator()
        one = self.layout()
        staged = cute.tile_to_shape(one, (self.SIZE, self.SIZE, self.STAGES), (0, 1, 2))
        sX = allocator.allocate_tensor(Float32, staged.outer, 1024, staged.inner)
        sY = allocator.allocate_tensor(Float32, one.outer, 1024, one.inner)
        # Each of two warps of each CTA releases a stage to both CTAs.
        releases = 4 - 2 * Int32(mistake == COUNT)
        ring = pipeline.PipelineTmaAsync.create(
            num_stages=self.STAGES,
            producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, releases),
            tx_count=4 * self.SIZE * self.SIZE,
            barrier_storage=allocator.allocate_array(Int64, 2 * self.STAGES),
            cta_layout_vmnk=cute.make_layout((1, 2, 1, 1)),
            defer_sync=True,
        )
        cute.arch.mbarrier_init_fence()
        cute.arch.cluster_arrive_relaxed()
        if mistake != CLUSTER:
            cute.arch.cluster_wait()
        tXs, tXg = cpasync.tma_partition(
            load, rank, cute.make_layout(2), cute.group_modes(sX, 0, 2),
            cute.group_modes(cute.local_tile(x, (self.SIZE, self.SIZE), (None, None)), 0, 2),
        )  # fmt: skip
        tYs, tYg = cpasync.tma_partition(
            store, 0, cute.make_layout(1), cute.group_modes(sY, 0, 2),
            cute.group_modes(cute.local_tile(y, (self.SIZE, self.SIZE), (None, 0)), 0, 2),
        )  # fmt: skip
        if warp == 2:
            self.produce(ring, load, tXg, tXs, mistake)
        else:
            self.consume(ring, sX, sY, store, tYs, tYg, mistake, thread, warp, rank)

    @cute.jit
    def produce(self, ring: Any, load: cute.CopyAtom, tXg: Any, tXs: Any, mistake: Int32) -> None:
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, self.STAGES)
        for tile in cutlass.range(self.TILES, unroll=1):
            for chunk in cutlass.range(self.CHUNKS, unroll=1):
                ring.producer_acquire(state)
                cute.copy(
                    load, tXg[None, tile, chunk], tXs[None, state.index],
                    tma_bar_ptr=ring.producer_get_barrier(state), mcast_mask=cutlass.Int16(3),
                )  # fmt: skip
                ring.producer_commit(state)
                state.advance()
        if mistake != TAIL:
            ring.producer_tail(state)

    @cute.jit
    def consume(
        self, ring: Any, sX: Any, sY: Any, store: cute.CopyAtom, tYs: Any, tYg: Any, mistake: Int32, thread: Int32,
        warp: Int32, rank: Int32,
    ) -> None:  # fmt: skip
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, self.STAGES)
        sums = cute.make_rmem_tensor(self.SIZE * self.SIZE // 64, Float32)
        for tile in cutlass.range(self.TILES, unroll=1):
            if mistake == PHASE:
                state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, self.STAGES)
            sums.fill(0.0)
            for chunk in cutlass.range(self.CHUNKS, unroll=1):
                ring.consumer_wait(state)
                for n in cutlass.range_constexpr(cute.size(sums)):
                    i = thread + 64 * n
                    sums[n] = sums[n] + sX[i // self.SIZE, i % self.SIZE, state.index]
                if Boolean(mistake != RELEASE) | (chunk < self.CHUNKS - 1):
                    ring.consumer_release(state)
                state.advance()
            if warp == 0:
                if mistake != REUSE:
                    cute.arch.cp_async_bulk_wait_group(0, read=True)
            threads = 64 + 32 * Int32(mistake == NAMED)
            cute.arch.barrier(barrier_id=1, number_of_threads=threads)
            for n in cutlass.range_constexpr(cute.size(sums)):
                i = thread + 64 * n
                sY[i // self.SIZE, i % self.SIZE] = sums[n] * Float32(rank + 1)
            if mistake != FENCE:
                cute.arch.fence_proxy("async.shared", space="cta")
            cute.arch.barrier(barrier_id=2, number_of_threads=64)
            if warp == 0:
                cute.copy(store, tYs, tYg[None, tile + rank * self.TILES])
                cute.arch.cp_async_bulk_commit_group()
        if warp == 0:
            cute.arch.cp_async_bulk_wait_group(0, read=False)


class Stages:
    """Sums of chunks by cp.async in three stages: y[i] = sum over chunks of x[chunk, 255 - i]."""

    STAGES = 3

    @cute.jit
    def __call__(self, x: cute.Tensor, y: cute.Tensor, mistake: Int32) -> None:
        self.kernel(x, y, mistake).launch(grid=(1, 1, 1), block=(64, 1, 1))

    @cute.kernel
    def kernel(self, x: cute.Tensor, y: cute.Tensor, mistake: Int32) -> None:
        thread, _, _ = cute.arch.thread_idx()
        chunks = cute.size(x, mode=[0])
        layout = cute.make_layout((256, self.STAGES))
        allocator = cutlass.memory.SmemAllocator()
        sX = allocator.allocate_tensor(Float32, layout, 128, cute.make_swizzle(3, 4, 3))
        other = cute.make_tensor(cute.recast_ptr(sX.iterator, cute.make_swizzle(2, 4, 3)), layout)
        atom = cute.make_copy_atom(cpasync.CopyG2SOp(), Float32, num_bits_per_copy=128)
        for chunk in cutlass.range_constexpr(self.STAGES - 1):
            if chunk < chunks:
                self.load(atom, x, sX, chunk, thread)
            cute.arch.cp_async_commit_group()
        sums = cute.make_rmem_tensor(4, Float32)
        sums.fill(0.0)
        for chunk in cutlass.range(chunks, unroll=1):
            if mistake == GROUP:
                cute.arch.cp_async_wait_group(self.STAGES - 1)
            else:
                cute.arch.cp_async_wait_group(self.STAGES - 2)
            cute.arch.sync_threads()
            # The buffer of the chunk before: all threads have read it. Behind the last chunk the groups are empty.
            ahead = chunk + self.STAGES - 1
            if ahead < chunks:
                self.load(atom, x, sX, ahead, thread)
                if mistake == EMPTY_COMMIT:
                    cute.arch.cp_async_commit_group()
            if mistake != EMPTY_COMMIT:
                cute.arch.cp_async_commit_group()
            for n in cutlass.range_constexpr(4):
                at = 255 - 4 * thread - n
                if mistake == SWIZZLE:
                    sums[n] = sums[n] + other[at, chunk % self.STAGES]
                else:
                    sums[n] = sums[n] + sX[at, chunk % self.STAGES]
        for n in cutlass.range_constexpr(4):
            y[4 * thread + n] = sums[n]

    @cute.jit
    def load(self, atom: cute.CopyAtom, x: cute.Tensor, sX: cute.Tensor, chunk: Int32, thread: Int32) -> None:
        source = cute.local_tile(x[chunk, None], (4,), (thread,))
        cute.copy(atom, source, cute.local_tile(sX[None, chunk % self.STAGES], (4,), (thread,)))


class Accumulators:
    """c = a b^T by tcgen05, f16: one tile of 128x64, K of two tiles of 64."""

    TILE = (128, 64, 64)
    STAGES, THREADS = 2, 128

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, mistake: Int32) -> None:
        mma = cute.make_tiled_mma(tcgen05.MmaF16BF16Op(
            Float16, Float32, (128, 64, 16), tcgen05.CtaGroup.ONE, tcgen05.OperandSource.SMEM,
            cute.nvgpu.OperandMajorMode.K, cute.nvgpu.OperandMajorMode.K,
        ))  # fmt: skip
        layouts = (
            sm100_utils.make_smem_layout_a(mma, self.TILE, Float16, self.STAGES),
            sm100_utils.make_smem_layout_b(mma, self.TILE, Float16, self.STAGES),
        )
        one = [cute.select(layout, mode=[0, 1, 2]) for layout in layouts]
        op = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.ONE)
        load_a, a_tiles = cute.nvgpu.make_tiled_tma_atom_A(op, a, one[0], self.TILE, mma)
        load_b, b_tiles = cute.nvgpu.make_tiled_tma_atom_B(op, b, one[1], self.TILE, mma)
        self.kernel(mma, load_a, a_tiles, load_b, b_tiles, c, layouts[0], layouts[1], mistake).launch(
            grid=(1, 1, 1), block=(self.THREADS, 1, 1)
        )

    @cute.kernel
    def kernel(
        self, mma: cute.TiledMma, load_a: cute.CopyAtom, a: cute.Tensor, load_b: cute.CopyAtom, b: cute.Tensor,
        c: cute.Tensor, a_layout: cute.ComposedLayout, b_layout: cute.ComposedLayout, mistake: Int32,
    ) -> None:  # fmt: skip
        thread, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        allocator = cutlass.memory.SmemAllocator()
        sA = allocator.allocate_tensor(Float16, a_layout.outer, 1024, a_layout.inner)
        sB = allocator.allocate_tensor(Float16, b_layout.outer, 1024, b_layout.inner)
        meet = pipeline.NamedBarrier(barrier_id=1, num_threads=self.THREADS)
        tmem = cutlass.memory.TmemAllocator(allocator.allocate_array(Int32, 1), barrier_for_retrieve=meet)
        tmem.allocate(64)
        sizes = [cute.size_in_bytes(Float16, cute.select(one, mode=[0, 1, 2])) for one in (a_layout, b_layout)]
        one_thread = pipeline.CooperativeGroup(pipeline.Agent.Thread)
        loads, loaded = pipeline.PipelineTmaUmma.create(
            num_stages=self.STAGES, producer_group=one_thread, consumer_group=one_thread, tx_count=sum(sizes),
            barrier_storage=allocator.allocate_array(Int64, 2 * self.STAGES),
        ).make_participants()  # fmt: skip
        products, multiplied = pipeline.PipelineUmmaAsync.create(
            num_stages=1, producer_group=one_thread,
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, self.THREADS),
            barrier_storage=allocator.allocate_array(Int64, 2),
        ).make_participants()  # fmt: skip
        gA = cute.local_tile(a, self.TILE, (0, 0, None), proj=(1, None, 1))
        gB = cute.local_tile(b, self.TILE, (0, 0, None), proj=(None, 1, 1))
        gC = cute.local_tile(c, self.TILE, (0, 0, None), proj=(1, 1, None))
        part = mma.get_slice(0)
        tCgC = part.partition_C(gC)
        tCrA, tCrB = mma.make_fragment_A(sA), mma.make_fragment_B(sB)
        tAsA, tAgA = cpasync.tma_partition(
            load_a, 0, cute.make_layout(1), cute.group_modes(sA, 0, 3), cute.group_modes(part.partition_A(gA), 0, 3)
        )
        tBsB, tBgB = cpasync.tma_partition(
            load_b, 0, cute.make_layout(1), cute.group_modes(sB, 0, 3), cute.group_modes(part.partition_B(gB), 0, 3)
        )
        tmem.wait_for_alloc()
        start = tmem.retrieve_ptr(Float32)
        tCtC = cute.make_tensor(start, mma.make_fragment_C(mma.partition_shape_C(self.TILE[:2])).layout)
        whole = ((cute.size(tCtC, mode=[0, 0]), cute.size(tCtC, mode=[0, 1])),)
        copy = tcgen05.make_tmem_copy(
            cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition.x64), Float32),
            cute.zipped_divide(tCtC, whole)[None, 0],
        )
        tDtC = copy.get_slice(thread).partition_S(cute.zipped_divide(tCtC, whole))
        tDgC = copy.get_slice(thread).partition_D(cute.zipped_divide(tCgC, whole))
        values = cute.make_rmem_tensor(tDgC[None, None, 0].shape, Float32)
        if warp == 0:
            mma.set(tcgen05.Field.ACCUMULATE, mistake == ACCUMULATE)
            empty = products.acquire_and_advance()
            for _ in cutlass.range(cute.size(gA, mode=[2]), unroll=1):
                free = loads.acquire_and_advance()
                cute.copy(load_a, tAgA[None, free.count], tAsA[None, free.index], tma_bar_ptr=free.barrier)
                cute.copy(load_b, tBgB[None, free.count], tBsB[None, free.index], tma_bar_ptr=free.barrier)
                full = loaded.wait_and_advance()
                for k in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):
                    at = (None, None, k, full.index)
                    cute.gemm(mma, tCtC, tCrA[at], tCrB[at], tCtC)
                    mma.set(tcgen05.Field.ACCUMULATE, True)
                full.release()
            if mistake != COMMIT:
                empty.commit()
        tmem.relinquish_alloc_permit()
        if mistake != FULL:
            done = multiplied.wait_and_advance()
            done.release()
        cute.copy(copy, tDtC[None, None, 0], values)
        cute.autovec_copy(values, tDgC[None, None, 0])
        if mistake != DEALLOC:
            pipeline.sync(barrier_id=1)
        tmem.free(start)
