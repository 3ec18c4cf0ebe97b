"""C = A @ B by mma.sync: cp.async into a ring of stages, ldmatrix from swizzled tiles, fragments double-buffered.

Every layout, swizzle, byte and count is an attribute of the plan (Sm80Plan); this file holds the order in which things
happen. A block does one tile of C; all of its warps do the same.

    role    who          does, k tile by k tile, depth by depth of the instruction
    ----    ---------    ---------------------------------------------------------------------------------------------
    all     all warps    load the next depth's fragments, multiply this depth's, and in between copy their share of
                         the k tile that is stages - 1 ahead; before a k tile's last products: wait for the own copies
                         of the next one, meet, and take its first fragments

    barrier       kind                completed by                       waited for by
    ----------    ----------------    -------------------------------    --------------------------------------------
    group         cp.async group      a thread's copies of one k tile    the thread, until stages - 2 are pending
    block         bar.sync            all threads                        the same, once a k tile: the next one is there
                                                                         for all, and the last one's stage is free
    warp          bar.warp.sync       a warp's 32 threads                the same, once a round of the store

A fragment is in registers one depth before it is multiplied, also from one K tile to the next. The stage that a K tile
leaves has been read before the CTA's barrier, and copies into it begin behind that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy as shallow_copy
from functools import partial
from typing import Protocol

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Numeric, const_expr

from ...dsl import ampere, bridge
from ...dsl.entry import TileEntry
from ...dsl.reductions import launch_finish
from ...dsl.tables import reads_of
from ...plan import ALL_SHARED, tile_count
from ..operand import Sm80Operand, byte_selector
from ..plan import Sm80Plan
from .epilogue import RowPlaces, Sm80Epilogue
from .steps import finished


class _TileCopies(Protocol):
    """A thread's copies of an operand's K tiles.

    step  is added to the offset from one K tile to the next
    """

    @property
    def step(self) -> Int64: ...
    def work(self, stage: cute.Pointer, offset: Int64, left: Int32) -> list[Callable[[], None]]: ...
    def issue(self, stage: cute.Pointer, offset: Int64, left: Int32) -> None: ...


class _FragmentLoads(Protocol):
    """A lane's loads of an operand's fragments, depth by depth of a K tile."""

    def begin(self) -> None: ...
    def fragments(self, stage: cute.Pointer, step: int) -> list[Int32]: ...


class Sm80GemmKernel(TileEntry):
    """The kernel for one plan. What is reachable through `self.plan` is a compile-time constant of the trace."""

    plan: Sm80Plan

    def __init__(self, plan: Sm80Plan):
        self.plan = plan
        self.epilogue = Sm80Epilogue(plan)

    @cute.jit
    def start(
        self, matrices: Sequence[Int64], sizes: Sequence[Int32], pitches: Mapping[str, tuple[Int64, Int64]],
        workers: Int32 | None, words: Sequence[Int64], stream: bridge.Stream,
    ) -> None:  # fmt: skip
        """Host side: launch a block for each tile of C. See `TileEntry.start`."""
        plan = self.plan
        m, n, k, batch = sizes
        pitch, stride = ([pitches[name][i] for name in "abc"] for i in range(2))
        grid_of_tiles = tile_count(m, plan.tile[0]), tile_count(n, plan.tile[1])
        blocks = plan.order.count(grid_of_tiles, cutlass.min, reads_of(plan.order, plan.words, words))
        grid = (blocks, 1, batch if const_expr(plan.batch > 1) else 1)
        self.kernel(*matrices, m, n, k, *pitch, *stride, tuple(words)).launch(
            grid=grid, stream=stream, **self.launch_options()
        )
        launch_finish(plan, words, (m, n, batch), stream)

    @cute.kernel
    def kernel(
        self,
        a: Int64,
        b: Int64,
        c: Int64,
        m: Int32,
        n: Int32,
        k: Int32,
        lda: Int64,
        ldb: Int64,
        ldc: Int64,
        stride_a: Int64,
        stride_b: Int64,
        stride_c: Int64,
        words: tuple,
    ) -> None:
        """Device side: one block, one tile of C."""
        plan = self.plan
        _, _, matrix = cute.arch.block_idx()
        if const_expr(plan.batch > 1):
            a += Int64(matrix) * stride_a * plan.a.dtype.bytes
            b += Int64(matrix) * stride_b * plan.b.dtype.bytes
            c += Int64(matrix) * stride_c * plan.c.dtype.bytes
        self.compute_tile((a, b, c), (m, n, k), (lda, ldb, ldc), words)

    @cute.jit
    def compute_tile(
        self, matrices: tuple[Int64, ...], sizes: tuple[Int32, ...], pitches: tuple[Int64, ...],
        words: tuple[Int64, ...],
    ) -> None:  # fmt: skip
        """The block's tile of C.

        matrices, pitches  addresses of A, B and C, and elements from line to line
        words              that the epilogue reads
        """
        plan, (m, n, k, *_) = self.plan, sizes
        thread, _, _ = cute.arch.thread_idx()
        block, _, matrix = cute.arch.block_idx()
        lane, warp = thread % 32, bridge.uniform(thread // 32)
        warp_m, warp_n = plan.warp_place(warp)

        # 1. The tile of C that this block owns; where its threads copy from and to, where its lanes read.
        grid = self.grid_of_tiles(sizes)
        row, column = plan.order.tile(block, grid, cutlass.min, reads_of(plan.order, plan.words, words))
        m0, m, k, matrix, weights = self.place_of_rows(row, sizes, matrix, matrices[1], words)
        n0 = column * plan.tile[1]
        shared = bridge.SharedMemory(plan.smem).base
        copy_a = self.copies_of_a(thread, matrices[0], pitches[0], m0, m, k, words)
        copy_b = self.copies_of_b(thread, weights, pitches[1], n0, n, k)
        load_a = Loads(plan.a, plan.smem.a_offset, lane, warp_m)
        load_b = self.loads_of_b(lane, warp_n)
        pitch = plan.smem.a_stage_bytes

        # 2. Fill all stages but one. A k tile that is not there becomes zeros: no branch, and always one group each.
        left, offset_a, offset_b = self.beginning(k, copy_a.step, copy_b.step)
        k_tiles = tile_count(left, plan.tile[2])
        for s in cutlass.range_constexpr(plan.stages - 1):
            copy_a.issue(shared + s * pitch, offset_a, left)
            copy_b.issue(shared + s * pitch, offset_b, left)
            bridge.commit_copies()
            left, offset_a, offset_b = left - plan.tile[2], offset_a + copy_a.step, offset_b + copy_b.step
        # 3. The main loop. `held_a` and `held_b` carry the first fragments of a k tile into it.
        sums, held_a, held_b = self.registers()
        sums.fill(0)
        ahead = plan.config.ahead
        if const_expr(ahead):
            self.meet()
            keep(held_a, load_a.fragments(shared, 0))
            keep(held_b, load_b.fragments(shared, 0))
        read, write = Int32(0), Int32((plan.stages - 1) * pitch)
        for _ in cutlass.range(k_tiles, unroll=1):
            if const_expr(not ahead):
                self.meet()
            copies = copy_a.work(shared + write, offset_a, left) + copy_b.work(shared + write, offset_b, left)
            read = self.multiply_k_tile((sums, held_a, held_b), (load_a, load_b), copies, shared, read)
            write = next_stage(write, pitch, plan.stages)
            left, offset_a, offset_b = left - plan.tile[2], offset_a + copy_a.step, offset_b + copy_b.step

        # 4. C, through the stages' memory: all copies have landed and been read.
        bridge.wait_copies(0)
        bridge.block_sync()
        place = m0 + warp_m * plan.a.warp_extent, n0 + warp_n * plan.b.warp_extent
        self.store(sums, shared, (warp, lane), matrices[2], pitches[2], (m, n, k), (*place, matrix), words)

    def grid_of_tiles(self, sizes: tuple[Int32, ...]) -> tuple[Int32, Int32]:
        """Tiles along M and N of a launch of such sizes: m, n, k."""
        return tile_count(sizes[0], self.plan.tile[0]), tile_count(sizes[1], self.plan.tile[1])

    def place_of_rows(
        self, row: Int32, sizes: tuple[Int32, ...], matrix: Int32, b: Int64, words: tuple[Int64, ...]
    ) -> tuple[Int32, Int32, Int32, Int32, Int64]:
        """(first row, end of rows, K, matrix, address of B) of a tile along M."""
        return row * self.plan.tile[0], sizes[0], sizes[2], matrix, b

    def copies_of_a(
        self, thread: Int32, a: Int64, lda: Int64, start: Int32, m: Int32, k: Int32, words: tuple[Int64, ...]
    ) -> _TileCopies:
        """A thread's copies of A, whose tile begins at row `start`; `words` are the launch's."""
        return Copies(self.plan.a, self.plan.smem.a_offset, thread, a, lda, start, m, k)

    def copies_of_b(self, thread: Int32, b: Int64, ldb: Int64, start: Int32, n: Int32, k: Int32) -> _TileCopies:
        """A thread's copies of B, whose tile begins at column `start`."""
        return Copies(self.plan.b, self.plan.smem.b_offset, thread, b, ldb, start, n, k)

    def beginning(self, k: Int32, *steps: Int64) -> tuple[Int32, Int64, Int64]:
        """Elements of K of the block, and the offsets at which A and B begin.

        steps  of A's and B's offsets from one K tile to the next
        """
        return k, Int64(0), Int64(0)

    def loads_of_b(self, lane: Int32, warp: Int32) -> _FragmentLoads:
        """A lane's loads of B's fragments; `warp` is the warp's number along N."""
        return Loads(self.plan.b, self.plan.smem.b_offset, lane, warp)

    def store(
        self, sums: cute.Tensor, shared: cute.Pointer, at: tuple[Int32, Int32], c: Int64, ldc: Int64,
        sizes: tuple[Int32, ...], place: tuple[Int32, Int32, Int32], words: tuple[Int64, ...],
    ) -> None:  # fmt: skip
        """The epilogue on a warp's accumulators, and its part of C.

        at     warp and lane
        place  first row, first column and matrix of the warp's part
        """
        plan = self.plan
        if plan.epilogue:
            sums = finished(plan, sums, at[1], sizes, place, words)
        if plan.epilogue.stores_c:
            rows = self.row_places(sizes[0], words)
            self.epilogue.store(sums, shared, at[0], at[1], c, ldc, sizes[0], sizes[1], place[0], place[1], rows)

    def row_places(self, m: Int32, words: tuple[Int64, ...]) -> RowPlaces:
        """The rows of C of the product's rows; `words` are the launch's."""
        return RowPlaces()

    def launch_options(self) -> dict[str, object]:
        """The options of a launch that the plan decides."""
        plan, several = self.plan, self.plan.config.blocks_per_sm > 1
        return {
            "block": (plan.threads, 1, 1), "smem": plan.smem.total, "min_blocks_per_mp": plan.config.blocks_per_sm,
            "preferred_smem_carveout": ALL_SHARED if several else None,
        }  # fmt: skip

    def registers(self) -> tuple[cute.Tensor, cute.Tensor, cute.Tensor]:
        """A warp's accumulators, and the fragments of A and B between K tiles."""
        mma, (count_m, count_n) = self.plan.mma, self.plan.blocks
        sums = cute.make_rmem_tensor(
            count_m * count_n * mma.accumulator_registers, Int32 if mma.c_dtype.name == "i32" else Float32
        )
        held_a = cute.make_rmem_tensor(count_m * mma.registers("A"), Int32)
        return sums, held_a, cute.make_rmem_tensor(count_n * mma.registers("B"), Int32)

    def multiply_k_tile(
        self, registers: tuple[cute.Tensor, ...], loads: Sequence[_FragmentLoads], copies: list[Callable[[], None]],
        shared: cute.Pointer, read: Int32,
    ) -> Int32:  # fmt: skip
        """All products of one k tile, among them the copies of another; gives the first byte of the next stage.

        registers  accumulators, fragments of A and B, as `registers` makes them
        loads      of A and B
        read       first byte of the k tile's stage
        """
        plan, ahead, (sums, *held) = self.plan, self.plan.config.ahead, registers
        for load in loads:
            load.begin()
        totals = [sums[i] for i in bridge.unrolled(sums.shape)]
        fragments = [[of[i] for i in range(of.shape)] for of in held] if ahead else []
        for step in range(plan.steps):
            work, now, depth = self.share(copies, step), fragments, step
            if ahead:
                depth = (step + 1) % plan.steps
                if step == plan.steps - 1:
                    for copy in work:
                        copy()
                    work = []
                    bridge.commit_copies()
                    self.meet()
                    read = next_stage(read, plan.smem.a_stage_bytes, plan.stages)
            place = shared + read
            fragments = [load.fragments(place, depth) for load in loads]
            self.multiply(totals, now if ahead else fragments, work)
        if ahead:
            for of, values in zip(held, fragments, strict=True):
                keep(of, values)
        else:
            bridge.commit_copies()
            read = next_stage(read, plan.smem.a_stage_bytes, plan.stages)
        keep(sums, totals)
        return read

    def meet(self) -> None:
        """Wait until the next K tile has landed and the last one has been read."""
        bridge.wait_copies(self.plan.stages - 2)
        bridge.block_sync()

    def share(self, copies: list[Callable[[], None]], step: int) -> list[Callable[[], None]]:
        """The copies that are issued among the products of one depth; all of them before the block meets."""
        steps = max(1, self.plan.steps - 1) if self.plan.config.ahead else self.plan.steps
        each = -(-len(copies) // steps)
        return copies[step * each : (step + 1) * each]

    def multiply(self, totals: list[Numeric], fragments: Sequence[list[Int32]], work: list[Callable[[], None]]) -> None:
        """All products of one depth; the work is spread among them."""
        plan = self.plan
        values, each_a, each_b = plan.mma.accumulator_registers, plan.mma.registers("A"), plan.mma.registers("B")
        a, b = fragments
        every = max(1, len(plan.products) // (len(work) + 1))
        for number, (i, j) in enumerate(plan.products):
            if number % every == 0 and 0 < number // every <= len(work):
                work[number // every - 1]()
            at = values * (i + plan.blocks[0] * j)
            totals[at : at + values] = bridge.multiply_warp(
                plan.mma, a[i * each_a : (i + 1) * each_a], b[j * each_b : (j + 1) * each_b], totals[at : at + values]
            )
        done = (len(plan.products) - 1) // every
        for item in work[done:]:
            item()


def keep(tensor: cute.Tensor, values: Sequence[Numeric]) -> None:
    """Put values into registers that the traced loop carries."""
    for i, value in enumerate(values):
        tensor[i] = value


def next_stage(offset: Int32, pitch: int, stages: int) -> Int32:
    """First byte of the stage after the one that begins at `offset`."""
    ahead = offset + pitch
    return cutlass.select_(ahead == stages * pitch, Int32(0), ahead)


class Copies(ampere.LoopCarried):
    """A thread's copies of one operand's tiles: where they come from, where they go, and how many bytes are there."""

    held = ("anchors", "bases", "rooms", "others")

    def __init__(
        self, operand: Sm80Operand, first: int, thread: Int32, matrix: Int64, pitch: Int64, start: Int32, extent: Int32,
        k: Int32,
    ):  # fmt: skip
        """Addresses of the thread's vectors at K = 0.

        first   byte of the tile in a stage;   matrix, pitch   global address, and elements from line to line
        start, extent   the tile's first index along M or N, and M or N
        """
        copy, size = operand.copy, operand.dtype.bytes
        self.operand, self.copy = operand, copy
        self.by_k = operand.major == "K"
        mn, depth = copy.coordinates(thread, 0, 0)
        zero = copy.coordinates(0, 0, 0)
        # (mn, k) distances of a thread's vectors from its first one: the same for all threads
        self.away = {
            (i, j): tuple(int(x - y) for x, y in zip(copy.coordinates(0, i, j), zero)) for i, j in copy.indices
        }
        step = Int64(operand.smem.extent[1] * size) if self.by_k else operand.smem.extent[1] * size * pitch
        self.others = [depth, step, mn, matrix, pitch, extent]
        self.anchors, self.rooms = self.lines(start)
        self.bases = [first + operand.smem.byte(*copy.coordinates(thread, *index)) for index in copy.places.bases]

    def lines(self, start: Int32) -> tuple[list[Int64], list[Int32]]:
        """Addresses of the thread's lines at K = 0, and bytes. The tile begins at index `start` along M or N.

        The bytes are those from each of its vectors to the line's end; none where K is contiguous.
        """
        depth, _, mn, matrix, pitch, extent = self.others
        copy, size = self.copy, self.operand.dtype.bytes
        if self.by_k:  # a line beyond the matrix repeats the last one: what it gives is not stored
            rows = [cutlass.min(start + mn + self.away[i, 0][0], extent - 1) for i in range(copy.parts[0])]
            return [matrix + (Int64(row) * pitch + depth) * size for row in rows], []
        return [
            matrix + (Int64(depth + self.away[0, j][1]) * pitch + (start + mn)) * size for j in range(copy.parts[1])
        ], [
            clamp((extent - start - mn - self.away[i, 0][0]) * size, copy.vector_bytes) for i in range(copy.parts[0])
        ]  # fmt: skip

    def moved(self, start: Int32) -> Copies:
        """The same thread's copies for another tile."""
        twin = shallow_copy(self)
        twin.anchors, twin.rooms = self.lines(start)
        return twin

    @property
    def step(self) -> Int64:
        """Bytes of global memory from one k tile to the next."""
        return self.others[1]

    def work(self, stage: cute.Pointer, offset: Int64, left: Int32) -> list[Callable[[], None]]:
        """A function for each copy of one k tile; `left` elements of K are left from its beginning on."""
        return [partial(self.one, (i, j), stage, offset, left) for i, j in self.copy.indices]

    def issue(self, stage: cute.Pointer, offset: Int64, left: Int32) -> None:
        """All copies of one k tile."""
        for copy in self.work(stage, offset, left):
            copy()

    def one(self, index: tuple[int, int], stage: cute.Pointer, offset: Int64, left: Int32) -> None:
        """One vector: bytes beyond the matrix become zeros."""
        i, j = index
        size, width = self.operand.dtype.bytes, self.copy.vector_bytes
        base, constant = self.copy.places.of[index]
        destination = stage + (self.bases[base] + constant)
        mn, k = self.away[index]
        there = left - self.others[0] - k
        if self.by_k:
            source = self.anchors[i] + offset + k * size
            valid = clamp(there * size, width)
            if self.rooms:
                valid = cutlass.min(valid, self.rooms[i])
        else:
            source = self.anchors[j] + offset + mn * size
            valid = cutlass.select_(there > 0, self.rooms[i], Int32(0))
        if not self.copy.by_elements:
            ampere.copy_bytes(destination, source, width, valid)
            return
        bits, per_word = size * 8, 4 // size
        words = []
        for w in range(width // 4):
            word = Int32(0)
            for e in range(per_word):
                at = (w * per_word + e) * size
                word = word | (ampere.load_element(source + at, valid > at, bits) << (e * bits))
            words.append(word)
        bridge.store_shared(destination.toint(), words)


def clamp(value: Int32, most: int) -> Int32:
    """Cut to 0..most."""
    return cutlass.max(cutlass.min(value, Int32(most)), Int32(0))


class Loads(ampere.LoopCarried):
    """A lane's loads of one operand's fragments."""

    held = ("bases", "selectors")

    def __init__(self, operand: Sm80Operand, first: int, lane: Int32, warp: Int32):
        """Addresses of the lane in the tile of the first stage; `warp` is the warp's number along M or N."""
        self.load, tile = operand.load, operand.smem
        self.bases = [first + self.load.byte(tile, lane, warp, index) for index in self.load.places.bases]
        late = lane % 4 >= 2
        self.selectors = [
            cutlass.select_(late, Int32(byte_selector(1, odd)), Int32(byte_selector(0, odd))) for odd in range(2)
        ]

    def begin(self) -> None:
        """Begin a K tile; no registers are kept from the one before."""

    def fragments(self, stage: cute.Pointer, step: int) -> list[Int32]:
        """Registers of one depth, block by block along M or N."""
        load, found = self.load, []
        for number in range(load.loads):
            if load.words:
                found += [ampere.load_word(self.place(stage, (number, step, w))) for w in range(len(load.words))]
                continue
            words = ampere.load_fragment(self.place(stage, (number, step, 0)), load.kind != "ldmatrix")
            if load.kind == "bytes":  # of each half of K the even neighbours along M or N, and the odd ones
                parted = [
                    [ampere.permute(words[2 * half], words[2 * half + 1], selector) for half in range(2)]
                    for selector in self.selectors
                ]
                even, odd = parted
                words = [even[0], odd[0], even[1], odd[1]] if load.blocks == 1 else [*even, *odd]
            found += words
        return found

    def place(self, stage: cute.Pointer, index: tuple[int, ...]) -> cute.Pointer:
        """The address for one access."""
        base, constant = self.load.places.of[index]
        return stage + self.bases[base] + constant
