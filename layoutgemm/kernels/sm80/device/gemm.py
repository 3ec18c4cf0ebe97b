"""C = A @ B by mma.sync.

It has cp.async into a ring of stages, ldmatrix from swizzled tiles, and fragments double-buffered.

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
from ...operands.device.promotion import Promotion
from ...operands.pair import passes_on
from ...plan import ALL_SHARED, present, tile_count
from ..operand import Sm80Operand, byte_selector
from ..plan import Sm80Plan
from .epilogue import RowPlaces, Sm80Epilogue
from .steps import finished


class TileCopies(Protocol):
    """A thread's copies of an operand's K tiles.

    step  is added to the offset from one K tile to the next
    """

    @property
    def step(self) -> Int64:
        """See the class."""

    def work(self, stage: cute.Pointer, offset: Int64, left: Int32) -> list[Callable[[], None]]:
        """A function for each copy of one K tile."""

    def issue(self, stage: cute.Pointer, offset: Int64, left: Int32) -> None:
        """All copies of one K tile."""


class DepthLoads(Protocol):
    """A lane's loads of an operand's fragments, depth by depth of a K tile."""

    def begin(self, held: list[Int32]) -> None:
        """Begin a K tile. `held`: registers of its first depth, or none."""

    def fragments(self, stage: cute.Pointer, step: int) -> list[Int32]:
        """Registers of one depth."""


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
        grid_of_tiles = tile_count(m, plan.tile_c[0]), tile_count(n, plan.tile_c[1])
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
            a += Int64(matrix) * stride_a * plan.a.unit.bytes
            b += Int64(matrix) * stride_b * plan.b.unit.bytes
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
        plan, (_, n, *_) = self.plan, sizes
        thread, _, _ = cute.arch.thread_idx()
        block, _, matrix = cute.arch.block_idx()
        lane, warp = thread % 32, bridge.uniform(thread // 32)
        warp_m, warp_n = plan.warp_place(warp)

        # 1. The tile of C that this block owns; where its threads copy from and to, where its lanes read.
        grid = self.grid_of_tiles(sizes)
        row, column = plan.order.tile(block, grid, cutlass.min, reads_of(plan.order, plan.words, words))
        m0, end, k, matrix, weights = self.place_of_rows(row, sizes, matrix, matrices[1], words)
        n0 = column * plan.tile_c[1]
        shared = bridge.SharedMemory(plan.smem).base
        copy_a = self.copies_of_a(thread, matrices[0], pitches[0], m0, end, k, words)
        copy_b = self.copies_of_b(thread, weights, pitches[1], (n0, matrix), n, k, words)
        load_a = self.loads_of_a(lane, warp_m, (m0, matrix), (end, n, k), words)
        load_b = self.loads_of_b(lane, warp_n, n0)
        pitch = plan.smem.a_stage_bytes

        # 2. Fill all stages but one. A k tile that is not there becomes zeros: no branch, and always one group each.
        # The cursor: K left, bytes along K of A and B, K of the pair that follows.
        left, offset_a, offset_b = self.beginning(k, copy_a.step, copy_b.step)
        k_tiles, ahead_k = self.k_tiles(left, words), (left, offset_a, offset_b, self.second_k(words))
        for s in cutlass.range_constexpr(plan.stages - 1):
            copy_a.issue(shared + s * pitch, ahead_k[1], ahead_k[0])
            copy_b.issue(shared + s * pitch, ahead_k[2], ahead_k[0])
            bridge.commit_copies()
            copy_a, copy_b, ahead_k = self.next_k_tile(copy_a, copy_b, ahead_k, (m0, n0, matrix), n, words)
        # 3. The main loop. `held_a` and `held_b` carry the first fragments of a k tile into it.
        sums, held_a, held_b = self.registers()
        sums.fill(0)
        corner = m0 + warp_m * plan.a.warp_extent, n0 + warp_n * plan.warp_columns, matrix, end
        totals, numbers, promotion = self.promoted(sums, lane, corner, (n, k_tiles), words)
        if const_expr(plan.config.ahead):
            self.meet()
            keep(held_a, self.of_k_tile(load_a, ahead_k[0] + plan.tile[2]).fragments(shared, 0))
            keep(held_b, load_b.fragments(shared, 0))
        read, write = Int32(0), Int32((plan.stages - 1) * pitch)
        for k_tile in cutlass.range(k_tiles, unroll=1):
            following = [] if promotion is None else promotion.load(k_tile + 1)
            if const_expr(not plan.config.ahead):
                self.meet()
            place = shared + write
            copies = copy_a.work(place, ahead_k[1], ahead_k[0]) + copy_b.work(place, ahead_k[2], ahead_k[0])
            loads = self.of_k_tile(load_a, ahead_k[0]), load_b
            read = self.multiply_k_tile((sums, held_a, held_b), loads, copies, shared, read)
            if const_expr(promotion is not None):
                present(promotion).promote(totals, sums, numbers)
                keep(numbers, following)
                sums.fill(0)
            write = next_stage(write, pitch, plan.stages)
            copy_a, copy_b, ahead_k = self.next_k_tile(copy_a, copy_b, ahead_k, (m0, n0, matrix), n, words)

        # 4. C, through the stages' memory: all copies have landed and been read.
        bridge.wait_copies(0)
        bridge.block_sync()
        self.store(totals, shared, (warp, lane), matrices[2], pitches[2], sizes, corner, words)

    def promoted(
        self, sums: cute.Tensor, lane: Int32, corner: tuple[Int32, Int32, Int32, Int32], sizes: tuple[Int32, Int32],
        words: tuple[Int64, ...],
    ) -> tuple[cute.Tensor, cute.Tensor, Promotion | None]:  # fmt: skip
        """(totals, first K block's scales, promotion). Where K blocks are only added, the sums themselves.

        corner  of the warp's part of C, its matrix, and the end of its rows
        sizes   columns of C, K tiles
        """
        if self.plan.mainloop is None:
            return sums, sums, None
        promotion = Promotion(self.plan, lane, corner, *sizes, self.given(words))
        totals, scales = self.registers()[0], cute.make_rmem_tensor(promotion.count, Float32)
        totals.fill(0)
        keep(scales, promotion.load(Int32(0)))
        return totals, scales, promotion

    def grid_of_tiles(self, sizes: tuple[Int32, ...]) -> tuple[Int32, Int32]:
        """Tiles along M and N of a launch of such sizes: m, n, k."""
        height, width = self.plan.tile_c
        return tile_count(sizes[0], height), tile_count(sizes[1], width)

    def place_of_rows(
        self, row: Int32, sizes: tuple[Int32, ...], matrix: Int32, b: Int64, words: tuple[Int64, ...]
    ) -> tuple[Int32, Int32, Int32, Int32, Int64]:
        """(first row, end of rows, K, matrix, address of B) of a tile along M."""
        return row * self.plan.tile_c[0], sizes[0], sizes[2], matrix, b

    def given(self, words: tuple[Int64, ...]) -> dict[str, Int64]:
        """The launch's words by name."""
        return dict(zip(self.plan.words, words, strict=True))

    def second_k(self, words: tuple[Int64, ...]) -> Int32:
        """K of the second pair, or 0."""
        return Int32(self.given(words)["k2"]) if self.plan.pair is not None else Int32(0)

    def k_tiles(self, k: Int32, words: tuple[Int64, ...]) -> Int32:
        """K tiles of both pairs; `k` is the block's part of K."""
        depth = self.plan.tile[2]
        return tile_count(k, depth) + (tile_count(self.second_k(words), depth) if self.plan.pair is not None else 0)

    @cute.jit
    def next_k_tile(
        self, copy_a: Copies, copy_b: Copies, ahead: tuple[Int32, Int64, Int64, Int32],
        corner: tuple[Int32, Int32, Int32], n: Int32, words: tuple[Int64, ...],
    ) -> tuple[Copies, Copies, tuple[Int32, Int64, Int64, Int32]]:  # fmt: skip
        """The cursor's next K tile. Behind the first pair's last one, the first one of the second pair.

        corner  first row and column of the tile of C, and its matrix
        n       C's columns

        Behind the last K tile nothing of K is left: copies are zeros.
        """
        plan = self.plan
        left, offset_a, offset_b, behind = ahead
        left, offset_a, offset_b = left - plan.tile[2], offset_a + copy_a.step, offset_b + copy_b.step
        if const_expr(plan.pair is not None):
            if passes_on(left, behind):
                left, behind, offset_a, offset_b = behind, Int32(0), Int64(0), Int64(0)
                copy_a = copy_a.switched(*self.further_lines(("a2",), words, corner[2]), corner[0])
                of_b = self.further_lines(present(plan.pair).of_b, words, corner[2])
                copy_b = copy_b.switched(*self.matrices_of_b(*of_b, n), corner[1])
        return copy_a, copy_b, (left, offset_a, offset_b, behind)

    def further_lines(
        self, names: Sequence[str], words: tuple[Int64, ...], matrix: Int32
    ) -> tuple[list[Int64], list[Int64]]:
        """(addresses, pitches) of further matrices; of a batch or groups those of one product."""
        given = self.given(words)
        addresses, pitches = [], []
        for name in names:
            address, (pitch, *distance) = self.plan.lines_given(name, given)
            if distance:
                address += Int64(matrix) * distance[0] * self.plan.further[name][0].dtype.bytes
            addresses.append(address)
            pitches.append(pitch)
        return addresses, pitches

    def matrices_of_b(
        self, matrices: Sequence[Int64], pitches: Sequence[Int64], n: Int32
    ) -> tuple[Sequence[Int64], Sequence[Int64]]:
        """(addresses, pitches) of all matrices of B's tile. A gate's halves are one matrix of 2n lines."""
        if self.plan.halves == 1:
            return matrices, pitches
        (address,), (pitch,) = matrices, pitches
        half = Int64(n) * pitch * self.plan.b.dtype.bytes
        return [address + i * half for i in range(self.plan.halves)], [pitch] * self.plan.halves

    def copies_of_a(
        self, thread: Int32, a: Int64, lda: Int64, start: Int32, m: Int32, k: Int32, words: tuple[Int64, ...]
    ) -> TileCopies:
        """A thread's copies of A, whose tile begins at row `start`; `words` are the launch's."""
        return Copies(self.plan.a, self.plan.smem.a_offset, thread, a, lda, start, m, k)

    def copies_of_b(
        self, thread: Int32, b: Int64, ldb: Int64, place: tuple[Int32, Int32], n: Int32, k: Int32,
        words: tuple[Int64, ...],
    ) -> TileCopies:  # fmt: skip
        """A thread's copies of B.

        place  its tile's first column, and its matrix;   words   the launch's
        """
        plan, (start, matrix) = self.plan, place
        at = plan.b, plan.smem.b_offset, thread
        if plan.gated is None:
            return Copies(*at, b, ldb, start, n, k)
        addresses, pitches = self.further_lines([name for name, _ in plan.gated.places], words, matrix)
        return SeveralCopies(*at, *self.matrices_of_b([b, *addresses], [ldb, *pitches], n), start, n)

    def beginning(self, k: Int32, *steps: Int64) -> tuple[Int32, Int64, Int64]:
        """Elements of K of the block, and the offsets at which A and B begin.

        steps  of A's and B's offsets from one K tile to the next
        """
        return k, Int64(0), Int64(0)

    def loads_of_a(
        self, lane: Int32, warp: Int32, place: tuple[Int32, Int32], sizes: tuple[Int32, ...], words: tuple[Int64, ...]
    ) -> DepthLoads:  # fmt: skip
        """A lane's loads of A's fragments; `warp` is the warp's number along M.

        place  first row of the tile, and matrix
        sizes  m, n and k
        """
        return Loads(self.plan.a, self.plan.smem.a_offset, lane, warp)

    def of_k_tile(self, load: DepthLoads, left: Int32) -> DepthLoads:
        """A's loads in the K tile that is multiplied. `left`: elements of K before the copies, which are ahead."""
        return load

    def loads_of_b(self, lane: Int32, warp: Int32, first: Int32) -> DepthLoads:
        """A lane's loads of B's fragments. `warp`: its number along N; `first`: the tile's first column."""
        return Loads(self.plan.b, self.plan.smem.b_offset, lane, warp)

    def store(
        self, sums: cute.Tensor, shared: cute.Pointer, at: tuple[Int32, Int32], c: Int64, ldc: Int64,
        sizes: tuple[Int32, ...], place: tuple[Int32, Int32, Int32, Int32], words: tuple[Int64, ...],
    ) -> None:  # fmt: skip
        """The epilogue on a warp's accumulators, and its part of C.

        at     warp and lane
        place  first row, first column and matrix of the warp's part, and the end of its rows
        """
        plan = self.plan
        if plan.epilogue or plan.gated is not None:
            sums = finished(plan, sums, at[1], sizes, place, words)
        if plan.epilogue.stores_c:
            rows = self.row_places(place[3], words)
            self.epilogue.store(sums, shared, at[0], at[1], c, ldc, place[3], sizes[1], place[0], place[1], rows)

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
        self, registers: tuple[cute.Tensor, ...], loads: Sequence[DepthLoads], copies: list[Callable[[], None]],
        shared: cute.Pointer, read: Int32,
    ) -> Int32:  # fmt: skip
        """All products of one k tile, among them the copies of another. Gives the first byte of the next stage.

        registers  accumulators, fragments of A and B, as `registers` makes them
        loads      of A and B
        read       first byte of the k tile's stage
        """
        plan, ahead, (sums, *held) = self.plan, self.plan.config.ahead, registers
        totals = [sums[i] for i in bridge.unrolled(sums.shape)]
        fragments = [[of[i] for i in range(of.shape)] if ahead else [] for of in held]
        for load, first in zip(loads, fragments, strict=True):
            load.begin(first)
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
            self.multiply(totals, now if ahead else fragments, work, step)
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
        """The copies that are issued among the products of one depth. All of them before the block meets."""
        steps = max(1, self.plan.steps - 1) if self.plan.config.ahead else self.plan.steps
        each = -(-len(copies) // steps)
        return copies[step * each : (step + 1) * each]

    def multiply(
        self, totals: list[Numeric], fragments: Sequence[list[Int32]], work: list[Callable[[], None]], step: int
    ) -> None:
        """All products of one depth; the work is spread among them.

        step  number of the depth in a K tile
        """
        plan = self.plan
        values, each_a, each_b = plan.mma.accumulator_registers, plan.mma.registers("A"), plan.mma.registers("B")
        a, b = fragments
        every = max(1, len(plan.products) // (len(work) + 1))
        for number, (i, j) in enumerate(plan.products):
            if number % every == 0 and 0 < number // every <= len(work):
                work[number // every - 1]()
            at = values * (i + plan.blocks[0] * j)
            registers = a[i * each_a : (i + 1) * each_a], b[j * each_b : (j + 1) * each_b], totals[at : at + values]
            totals[at : at + values] = self.product(registers, fragments, (i, j), step)
        done = (len(plan.products) - 1) // every
        for item in work[done:]:
            item()

    def product(
        self, registers: tuple[list[Int32], list[Int32], list[Numeric]], fragments: Sequence[list[Int32]],
        block: tuple[int, int], step: int,
    ) -> list[Numeric]:  # fmt: skip
        """One instruction. Registers of A, B and C -> those of D.

        fragments  all registers of the depth, number `step` of a K tile
        block      number of the instruction along M and N
        """
        return bridge.multiply_warp(self.plan.mma, *registers)


def keep(tensor: cute.Tensor, values: Sequence[Numeric]) -> None:
    """Put values into registers that the traced loop carries."""
    for i, value in enumerate(values):
        tensor[i] = value


def next_stage(offset: Int32, pitch: int, stages: int) -> Int32:
    """First byte of the stage after the one that begins at `offset`."""
    ahead = offset + pitch
    return cutlass.select_(ahead == stages * pitch, Int32(0), ahead)


class Copies(bridge.Rebuilt):
    """A thread's copies of one operand's tiles. Where they come from, where they go, and how many bytes are there."""

    held: tuple[str, ...] = ("anchors", "bases", "rooms", "others")

    def __init__(
        self, operand: Sm80Operand, first: int, thread: Int32, matrix: Int64, pitch: Int64, start: Int32, extent: Int32,
        k: Int32,
    ):  # fmt: skip
        """Addresses of the thread's vectors at K = 0.

        first   byte of the tile in a stage;   matrix, pitch   global address, and elements from line to line
        start, extent   the tile's first index along M or N, and M or N
        """
        copy = operand.copy
        self.operand, self.copy = operand, copy
        self.by_k = operand.major == "K"
        mn, depth = copy.coordinates(thread, 0, 0)
        zero = copy.coordinates(0, 0, 0)
        # (mn, k) distances of a thread's vectors from its first one: the same for all threads
        self.away = {
            (i, j): tuple(int(x - y) for x, y in zip(copy.coordinates(0, i, j), zero)) for i, j in copy.indices
        }
        self.others = [depth, self.step_of(pitch), mn, matrix, pitch, extent]
        self.anchors, self.rooms = self.lines(start)
        self.bases = [first + operand.smem.byte(*copy.coordinates(thread, *index)) for index in copy.places.bases]

    def lines(self, start: Int32) -> tuple[list[Int64], list[Int32]]:
        """Addresses of the thread's lines at K = 0, and bytes. The tile begins at index `start` along M or N.

        The bytes are those from each of its vectors to the line's end; none where K is contiguous.
        """
        depth, _, mn, matrix, pitch, extent = self.others
        copy, size = self.copy, self.operand.unit.bytes
        if self.by_k:  # a line beyond the matrix repeats the last one: what it gives is not stored
            rows = [cutlass.min(start + mn + self.away[i, 0][0], extent - 1) for i in range(copy.parts[0])]
            if self.operand.padded:
                own = self.operand.memory_bytes(depth)
                return [matrix + (Int64(row) * pitch + own) for row in rows], []
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

    def switched(self, matrices: Sequence[Int64], pitches: Sequence[Int64], start: Int32) -> Copies:
        """The same thread's copies from another matrix of as many lines."""
        (matrix,), (pitch,), twin = matrices, pitches, shallow_copy(self)
        depth, _, mn, _, _, extent = self.others
        twin.others = [depth, self.step_of(pitch), mn, matrix, pitch, extent]
        twin.anchors, twin.rooms = twin.lines(start)
        return twin

    def step_of(self, pitch: Int64) -> Int64:
        """Bytes of global memory from one k tile to the next."""
        size, depth = self.operand.unit.bytes, self.operand.smem.extent[1]
        return Int64(self.operand.memory_bytes(depth)) if self.by_k else depth * size * pitch

    @property
    def step(self) -> Int64:
        """Bytes of global memory from one k tile to the next."""
        return self.others[1]

    def work(self, stage: cute.Pointer, offset: Int64, left: Int32) -> list[Callable[[], None]]:
        """A function for each copy of one k tile. `left` elements of K are left from its beginning on."""
        return [partial(self.one, (i, j), stage, offset, left) for i, j in self.copy.indices]

    def issue(self, stage: cute.Pointer, offset: Int64, left: Int32) -> None:
        """All copies of one k tile."""
        for copy in self.work(stage, offset, left):
            copy()

    def source(self, index: tuple[int, int], offset: Int64) -> Int64:
        """The address of a vector, `offset` bytes along K from the first K tile's."""
        (i, j), (mn, k), size = index, self.away[index], self.operand.unit.bytes
        if self.by_k:
            return self.anchors[i] + offset + self.operand.memory_bytes(k)
        return self.anchors[j] + offset + mn * size

    def one(self, index: tuple[int, int], stage: cute.Pointer, offset: Int64, left: Int32) -> None:
        """One vector: bytes beyond the matrix become zeros."""
        i, _ = index
        size, width = self.operand.unit.bytes, self.copy.vector_bytes
        base, constant = self.copy.places.of[index]
        destination = stage + (self.bases[base] + constant)
        _, k = self.away[index]
        there = (left if self.operand.per_unit == 1 else left // self.operand.per_unit) - self.others[0] - k
        source = self.source(index, offset)
        if self.by_k:
            valid = clamp(self.operand.memory_bytes(there), width)
            if self.rooms:
                valid = cutlass.min(valid, self.rooms[i])
        else:
            valid = cutlass.select_(there > 0, self.rooms[i], Int32(0))
        if not self.copy.by_elements:
            each = self.copy.access
            for at in range(0, width, each):
                own = valid if each == width else clamp(valid - at, each)
                ampere.copy_bytes(destination + at if at else destination, source + at if at else source, each, own)
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


class SeveralCopies(Copies):
    """A thread's copies of a tile of several matrices B, side by side.

    A row of the tile tells its matrix: addresses and pitches of the thread's lines are selected once a tile of C.
    Where N is contiguous, pitches differ from vector to vector, and offsets along K count elements.
    """

    held = ("anchors", "bases", "rooms", "others", "matrices", "pitches", "steps")

    def __init__(
        self, operand: Sm80Operand, first: int, thread: Int32, matrices: Sequence[Int64], pitches: Sequence[Int64],
        start: Int32, extent: Int32,
    ):  # fmt: skip
        """See `Copies`; `matrices` and `pitches` are those of all matrices."""
        self.matrices, self.pitches = list(matrices), list(pitches)
        self.steps: list[Int64] = []
        super().__init__(operand, first, thread, matrices[0], pitches[0], start, extent, Int32(0))

    def lines(self, start: Int32) -> tuple[list[Int64], list[Int32]]:
        """Addresses of the thread's vectors at K = 0, and bytes to the line's end."""
        depth, _, mn, _, _, extent = self.others
        size, anchors, rooms, steps = self.operand.unit.bytes, [], [], []
        for i in range(self.copy.parts[0]):
            column, which = present(self.operand.beside).source(mn + self.away[i, 0][0])
            matrix, pitch = (self.selected(of, which) for of in (self.matrices, self.pitches))
            if self.by_k:
                row = cutlass.min(start + column, extent - 1)
                anchors.append(matrix + (Int64(row) * pitch + depth) * size)
                continue
            steps.append(pitch * size)
            rooms.append(clamp((extent - start - column) * size, self.copy.vector_bytes))
            for j in range(self.copy.parts[1]):
                anchors.append(matrix + (Int64(depth + self.away[0, j][1]) * pitch + (start + column)) * size)
        self.steps = steps
        return anchors, rooms

    def selected(self, values: Sequence[Int64], which: Int32) -> Int64:
        """The value of a matrix."""
        found = values[0]
        for number, value in enumerate(values[1:], 1):
            found = ampere.select_word(which == number, value, found)
        return found

    def switched(self, matrices: Sequence[Int64], pitches: Sequence[Int64], start: Int32) -> Copies:
        """The same thread's copies from other matrices of as many lines."""
        twin = shallow_copy(self)
        twin.matrices, twin.pitches = list(matrices), list(pitches)
        twin.anchors, twin.rooms = twin.lines(start)
        return twin

    def step_of(self, pitch: Int64) -> Int64:
        """The step of an offset from one k tile to the next. Bytes, or elements of K."""
        return super().step_of(pitch) if self.by_k else Int64(self.operand.smem.extent[1])

    def source(self, index: tuple[int, int], offset: Int64) -> Int64:
        """The address of a vector."""
        i, j = index
        if self.by_k:
            return super().source(index, offset)
        return self.anchors[i * self.copy.parts[1] + j] + offset * self.steps[i]


def clamp(value: Int32, most: int) -> Int32:
    """Cut to 0..most."""
    return cutlass.max(cutlass.min(value, Int32(most)), Int32(0))


class Loads(bridge.Rebuilt):
    """A lane's loads of one operand's fragments."""

    held: tuple[str, ...] = ("bases", "selectors")

    def __init__(self, operand: Sm80Operand, first: int, lane: Int32, warp: Int32):
        """Addresses of the lane in the tile of the first stage. `warp` is the warp's number along M or N."""
        self.operand, self.load, tile = operand, operand.load, operand.smem
        self.bases = [first + self.load.byte(tile, lane, warp, index) for index in self.load.places.bases]
        late = lane % 4 >= 2
        self.selectors = [
            cutlass.select_(late, Int32(byte_selector(1, odd)), Int32(byte_selector(0, odd))) for odd in range(2)
        ]

    def begin(self, held: list[Int32]) -> None:
        """Begin a K tile; no registers are kept from the one before."""

    def fragments(self, stage: cute.Pointer, step: int) -> list[Int32]:
        """Registers of one depth, block by block along M or N."""
        load, found = self.load, []
        for number in range(load.loads):
            if load.words:
                found += [ampere.load_word(self.place(stage, (number, step, w))) for w in range(len(load.words))]
                continue
            place = self.place(stage, (number, step, 0))
            if self.operand.padded:
                low = present(self.operand.container).low
                found += [word << low if low else word for word in ampere.load_padded(place, self.operand.matrices)]
                continue
            words = ampere.load_fragment(place, load.kind != "ldmatrix")
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
