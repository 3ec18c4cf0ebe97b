"""C = A @ B by mma.sync with packed weights as B. Copied by cp.async, converted in registers, multiplied from there.

As `device.gemm`, whose loop it is. What is other:

    copies    16 bytes of packed units, in the order of the threads; K tiles are counted, a unit is one or two. Rows of
              x beyond the last are zeros, and not read: of few rows, x would be as many bytes as the weights
    loads     ld.shared of 16 bytes: the lane's own words of 16 features, for all depths that they hold
    between   the words of the next depth become registers of B while those of this depth are multiplied
    store     behind the epilogue's steps on the warp's accumulators. Of a K in parts, by a second launch that adds them
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64, const_expr

from ....atoms.copy.base import VECTOR_BYTES
from ...dsl import ampere, bridge
from ...dsl.entry import FusedEntry
from ...dsl.packed_weights import DevicePairs
from ...dsl.reductions import launch_finish
from ...plan import present, tile_count
from ...quantized.formats import UNIT_K, UNIT_ROWS
from ...quantized.fragments import fragment, rows_of, words_of
from ...quantized.order import WORDS
from ..quantized.operand import Sm80PackedOperand
from ..quantized.split import SPLIT_SUMS, VECTOR
from .gemm import Copies, Sm80GemmKernel


class Sm80QuantizedKernel(FusedEntry, Sm80GemmKernel):
    """The kernel for one plan with packed weights."""

    @cute.jit
    def start(
        self, matrices: Sequence[Int64], sizes: Sequence[Int32], pitches: Mapping[str, tuple[Int64, Int64]],
        workers: Int32 | None, words: Sequence[Int64], stream: bridge.Stream,
    ) -> None:  # fmt: skip
        """Host side: launch a block for each tile of C; the batch is one matrix. See `TileEntry.start`."""
        plan = self.plan
        m, n, k, batch = sizes
        blocks = plan.order.count((tile_count(m, plan.tile[0]), tile_count(n, plan.tile[1])), cutlass.min)
        pitch, parts = [pitches[name][0] for name in "abc"], 1 if plan.split is None else plan.split.parts
        self.quantized_kernel(*matrices, m, n, k, *pitch, tuple(words)).launch(
            grid=(blocks, 1, parts), stream=stream, **self.launch_options()
        )
        if const_expr(plan.split is not None):
            self.adding_kernel(matrices[2], m, n, pitch[2], tuple(words)).launch(
                grid=(blocks, 1, 1), stream=stream, **self.launch_options(), use_pdl=self.overlaps
            )
        launch_finish(plan, words, (m, n, batch), stream)

    @cute.kernel
    def quantized_kernel(
        self, a: Int64, b: Int64, c: Int64, m: Int32, n: Int32, k: Int32, lda: Int64, ldb: Int64, ldc: Int64,
        words: tuple,
    ) -> None:  # fmt: skip
        """Device side: one block, one tile of C."""
        self.compute_tile((a, b, c), (m, n, k), (lda, ldb, ldc), words)

    @property
    def overlaps(self) -> bool:
        """True if the second launch starts while the first one's last blocks end."""
        return "griddepcontrol" in self.plan.arch.features

    def beginning(self, k: Int32, *steps: Int64) -> tuple[Int32, Int64, Int64]:
        """The block's part of K. Elements, none of a part without K tiles, and both offsets."""
        plan = self.plan
        if plan.split is None:
            return super().beginning(k, *steps)
        _, _, part = cute.arch.block_idx()
        first, end = plan.split.range_of(part, tile_count(k, plan.tile[2]))
        left = cutlass.max(cutlass.min(k, end * plan.tile[2]) - first * plan.tile[2], Int32(0))
        return left, *[Int64(first) * step for step in steps]

    def store(
        self, sums: cute.Tensor, shared: cute.Pointer, at: tuple[Int32, Int32], c: Int64, ldc: Int64,
        sizes: tuple[Int32, ...], place: tuple[Int32, Int32, Int32, Int32], words: tuple[Int64, ...],
    ) -> None:  # fmt: skip
        """The epilogue and C; of a K in parts the accumulators as they lie."""
        if self.plan.split is None:
            super().store(sums, shared, at, c, ldc, sizes, place, words)
            return
        for vector, address in enumerate(self.kept(words, place[2])):
            found = [sums[VECTOR * vector + v] for v in range(VECTOR)]
            ampere.store_vector(address, [value.bitcast(Int32) for value in found])

    def kept(self, words: tuple[Int64, ...], part: Int32) -> list[Int64]:
        """Addresses of the thread's vectors of a part's sums."""
        plan, split = self.plan, present(self.plan.split)
        thread, _, _ = cute.arch.thread_idx()
        tile, _, _ = cute.arch.block_idx()
        first = words[plan.words.index(SPLIT_SUMS)] + Int64(tile) * split.tile_bytes + split.places(thread, 0, part)
        return [first + int(split.places(0, vector, 0)) for vector in range(split.registers // VECTOR)]

    @cute.kernel
    def adding_kernel(self, c: Int64, m: Int32, n: Int32, ldc: Int64, words: tuple) -> None:
        """Device side of the second launch: one block, one tile of C."""
        if const_expr(self.overlaps):
            bridge.wait_for_previous_kernel()
        self.add_parts(c, (m, n), ldc, words)

    @cute.jit
    def add_parts(self, c: Int64, sizes: tuple[Int32, ...], ldc: Int64, words: tuple[Int64, ...]) -> None:
        """The parts' sums of a tile in order, then the epilogue and C."""
        plan, split = self.plan, present(self.plan.split)
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        lane, warp = thread % 32, bridge.uniform(thread // 32)
        warp_m, warp_n = plan.warp_place(warp)
        grid = (tile_count(sizes[0], plan.tile[0]), tile_count(sizes[1], plan.tile[1]))
        row, column = plan.order.tile(block, grid, cutlass.min)
        sums, _, _ = self.registers()
        for part in cutlass.range_constexpr(split.parts):
            for vector, address in enumerate(self.kept(words, Int32(part))):
                found = bridge.as_floats(ampere.load_vector(address, VECTOR))
                for v, value in enumerate(found):
                    at = VECTOR * vector + v
                    sums[at] = value if part == 0 else sums[at] + value
        place = row * plan.tile[0] + warp_m * plan.a.warp_extent, column * plan.tile[1] + warp_n * plan.b.warp_extent
        shared = bridge.SharedMemory(plan.smem).base
        Sm80GemmKernel.store(self, sums, shared, (warp, lane), c, ldc, sizes, (*place, Int32(0), sizes[0]), words)

    def copies_of_a(
        self, thread: Int32, a: Int64, lda: Int64, start: Int32, m: Int32, k: Int32, words: tuple[Int64, ...]
    ) -> InsideCopies:
        """A thread's copies of x, whose tile begins at row `start`."""
        return InsideCopies(self.plan.a, self.plan.smem.a_offset, thread, a, lda, start, m, k)

    def copies_of_b(
        self, thread: Int32, b: Int64, ldb: Int64, place: tuple[Int32, Int32], n: Int32, k: Int32,
        words: tuple[Int64, ...],
    ) -> PackedCopies:  # fmt: skip
        """A thread's copies of packed weights; `place` is its tile's first feature, and the matrix."""
        return PackedCopies(self.plan.b, self.plan.smem.b_offset, thread, b, place[0], n, k)

    def loads_of_b(self, lane: Int32, warp: Int32, first: Int32) -> PackedLoads:
        """A lane's loads of its words; `warp` is the warp's number along N."""
        return PackedLoads(self.plan.b, self.plan.smem.b_offset, lane, warp)


class InsideCopies(Copies):
    """A thread's copies of an operand with K contiguous. No line beyond the matrix is read."""

    def lines(self, start: Int32) -> tuple[list[Int64], list[Int32]]:
        """The same addresses. And for each line its vectors' bytes, or 0 of one beyond the matrix."""
        anchors, rooms = super().lines(start)
        if self.by_k:
            mn, extent, copy = self.others[2], self.others[5], self.copy
            rows = [start + mn + self.away[i, 0][0] for i in range(copy.parts[0])]
            rooms = [cutlass.select_(row < extent, Int32(copy.vector_bytes), Int32(0)) for row in rows]
        return anchors, rooms


class PackedCopies(bridge.Rebuilt):
    """A thread's copies of packed weights: where they come from, and where they go."""

    held = ("anchors", "steps", "others")

    def __init__(
        self, operand: Sm80PackedOperand, first: int, thread: Int32, packed: Int64, start: Int32, n: Int32, k: Int32
    ):  # fmt: skip
        """Addresses of the thread's chunks in the first K tile.

        first   byte of the packed weights in a stage
        packed  global address; `start` is the tile's first feature
        """
        self.operand, self.first = operand, first
        units, last = tile_count(k, UNIT_K), tile_count(n, UNIT_ROWS) - 1
        self.anchors, self.steps = [], []
        for number in range(operand.rounds):
            block, inside = operand.chunk(thread, number)
            base, step = operand.source(inside)
            row_block = cutlass.min(start // UNIT_ROWS + block, last)  # a block beyond the last is the last once more
            self.anchors.append(packed + (Int64(row_block) * units * operand.packing.unit_bytes + base))
            if operand.parts > 1:
                self.steps.append(Int32(step))
        self.others = [thread]

    @property
    def step(self) -> Int64:
        """K tiles from one to the next."""
        return Int64(1)

    def work(self, stage: cute.Pointer, offset: Int64, left: Int32) -> list[Callable[[], None]]:
        """A function for each copy of the K tile with number `offset`. `left` elements of K are left from it on."""
        return [partial(self.one, number, stage, offset, left) for number in range(self.operand.rounds)]

    def issue(self, stage: cute.Pointer, offset: Int64, left: Int32) -> None:
        """All copies of one K tile."""
        for copy in self.work(stage, offset, left):
            copy()

    def one(self, number: int, stage: cute.Pointer, offset: Int64, left: Int32) -> None:
        """One chunk: zeros for a K tile that is not there."""
        operand, (thread,) = self.operand, self.others
        source = self.anchors[number]
        if operand.parts > 1:
            unit, part = offset // operand.parts, offset % operand.parts
            source = source + unit * operand.packing.unit_bytes + part * Int64(self.steps[number])
        else:
            source = source + offset * operand.packing.unit_bytes
        destination = stage + (self.first + number * operand.threads * VECTOR_BYTES) + thread * VECTOR_BYTES
        valid = cutlass.select_(left > 0, Int32(VECTOR_BYTES), Int32(0))
        if operand.whole(number):
            ampere.copy_bytes(destination, source, VECTOR_BYTES, valid)
        else:
            there: Boolean = thread < operand.chunks - number * operand.threads
            ampere.copy_chunk(destination, source, valid, there)


class PackedLoads(bridge.Rebuilt):
    """A lane's loads of packed words, and their conversion to registers of B."""

    held = ("words", "scales")

    def __init__(self, operand: Sm80PackedOperand, first: int, lane: Int32, warp: Int32):
        """Addresses of the lane in the first stage; `warp` is the warp's number along N."""
        self.operand, self.order = operand, operand.packing
        self.ops = DevicePairs(self.order.activations, operand.fused)
        self.words = [first + operand.word_byte(lane, warp, index) for index in operand.words.bases]
        self.scales = [first + operand.scale_byte(lane, warp, index) for index in operand.scales.bases]
        self.loaded: dict[tuple[str, int, int], list[Int32]] = {}

    def begin(self, held: list[Int32]) -> None:
        """Begin a K tile; words loaded before are of another tile."""
        self.loaded = {}

    def fragments(self, stage: cute.Pointer, step: int) -> list[Int32]:
        """Registers of one depth, 8 features after the other."""
        if step == 0:
            self.begin([])
        order, found = self.order, []
        for piece in range(self.operand.pieces):
            at = words_of(order, step)
            held = self.load(stage, "words", (piece, at[0] // WORDS), WORDS)
            words = [held[word % WORDS] for word in at]
            rows, zeros = self.numbers(stage, (piece, order.group_of(step)))
            registers = fragment(order, words, rows, zeros, self.ops)
            found += [registers[r] for half in self.operand.halves for r in half]
        return found

    def numbers(self, stage: cute.Pointer, index: tuple[int, int]) -> tuple[list[Int32], list[Int32]]:
        """Scales and zeros of the lane's two features, each twice in a word."""
        if not self.operand.groups:
            return [], []
        return rows_of(self.order, self.load(stage, "scales", index, self.order.scale_words), self.ops)

    def load(self, stage: cute.Pointer, what: str, index: tuple[int, int], count: int) -> list[Int32]:
        """A lane's words of a piece, once for each K tile."""
        key = (what, *index)
        if key not in self.loaded:
            places, bases = (self.operand.words, self.words) if what == "words" else (self.operand.scales, self.scales)
            base, constant = places.of[index]
            self.loaded[key] = ampere.load_words(stage + bases[base] + constant, count)
        return self.loaded[key]
