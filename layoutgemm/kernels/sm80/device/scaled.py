"""C = A @ B with block scales by mma.sync. A stage has the factors of its K tile too, in chunks.

    role    who          does, beside what `device.gemm` does
    ----    ---------    ---------------------------------------------------------------------------------------------
    all     all warps    copy vectors of A's and B's chunks with those of the K tile; load a word of factors for each
                         chunk and register when its first depth is loaded; multiply by them in the instruction

Barriers are those of `device.gemm`. Factors beyond K are zero bits, which are finite numbers, as the elements there
are zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, Numeric

from ....atoms.copy.base import VECTOR_BYTES
from ...dsl import ampere, bridge
from ...operands.block_scales import CHUNK_ROWS, NAMES
from ...plan import present, tile_count
from ..plan import Sm80Plan
from .fused import Sm80FusedKernel
from .gemm import Loads, TileCopies


class Sm120ScaledKernel(Sm80FusedKernel):
    """A block for each tile, with block scales."""

    def copies_of_a(
        self, thread: Int32, a: Int64, lda: Int64, start: Int32, m: Int32, k: Int32, words: tuple[Int64, ...]
    ) -> ScaledCopies:
        """A thread's copies of A and of its factors."""
        base = super().copies_of_a(thread, a, lda, start, m, k, words)
        return ScaledCopies(self.plan, base, 0, thread, self.given(words)[NAMES[0]], start, m, k)

    def copies_of_b(
        self, thread: Int32, b: Int64, ldb: Int64, place: tuple[Int32, Int32], n: Int32, k: Int32,
        words: tuple[Int64, ...],
    ) -> ScaledCopies:  # fmt: skip
        """A thread's copies of B and of its factors."""
        base = super().copies_of_b(thread, b, ldb, place, n, k, words)
        return ScaledCopies(self.plan, base, 1, thread, self.given(words)[NAMES[1]], place[0], n, k)

    def loads_of_a(
        self, lane: Int32, warp: Int32, place: tuple[Int32, Int32], sizes: tuple[Int32, ...], words: tuple[Int64, ...]
    ) -> ScaledLoads:  # fmt: skip
        """A lane's loads of A's fragments and factors."""
        return ScaledLoads(self.plan, 0, lane, warp, place[0])

    def loads_of_b(self, lane: Int32, warp: Int32, first: Int32) -> ScaledLoads:
        """A lane's loads of B's fragments and factors."""
        return ScaledLoads(self.plan, 1, lane, warp, first)

    def registers(self) -> tuple[cute.Tensor, cute.Tensor, cute.Tensor]:
        """A warp's accumulators, and fragments of A and B with words of factors."""
        sums, *held = super().registers()
        counts = [of.shape + present(self.plan.scales).registers(i) for i, of in enumerate(held)]
        return sums, *[cute.make_rmem_tensor(count, Int32) for count in counts]

    def product(
        self, registers: tuple[list[Int32], list[Int32], list[Numeric]], fragments: Sequence[list[Int32]],
        block: tuple[int, int], step: int,
    ) -> list[Numeric]:  # fmt: skip
        """One instruction, with the factors of its rows and columns."""
        scales, words, selectors = present(self.plan.scales), [], []
        for operand, of in enumerate(fragments):
            register, byte_id, thread_id = scales.selected(operand, block[operand], step)
            words.append(of[register - scales.registers(operand)])
            selectors.append((byte_id, thread_id))
        return bridge.multiply_warp_scaled(self.plan.mma, *registers, words, selectors)


class ScaledCopies(bridge.Rebuilt):
    """A thread's copies of an operand's tiles and of their factors."""

    held = ("base", "sources", "chunks", "others")

    def __init__(
        self, plan: Sm80Plan, base: TileCopies, operand: int, thread: Int32, factors: Int64, start: Int32,
        extent: Int32, k: Int32,
    ):  # fmt: skip
        """Addresses of the thread's vectors of factors at K = 0.

        base     the copies of elements;   operand  0 of A, 1 of B
        factors  global address
        start, extent   the tile's first index along M or N, and M or N
        """
        self.base, self.scales, self.operand = base, present(plan.scales), operand
        self.first = plan.smem.scales_offset + self.scales.offset(operand)
        _, _, matrix = cute.arch.block_idx()
        groups = tile_count(extent, CHUNK_ROWS)
        before = Int64(matrix) * groups if plan.batch > 1 else Int64(0)
        self.sources, self.chunks = [], []
        for number in range(self.scales.rounds(operand)):
            group, chunk, byte = self.scales.vector(operand, thread, number)
            own = cutlass.min(start // CHUNK_ROWS + group, groups - 1)  # rows beyond the matrix: the last ones again
            self.sources.append(factors + self.scales.source(before + own, byte, k))
            self.chunks.append(Int32(chunk))
        self.others = [thread, k]

    @property
    def step(self) -> Int64:
        """Bytes of the operand from one K tile to the next."""
        return self.base.step

    def work(self, stage: cute.Pointer, offset: Int64, left: Int32) -> list[Callable[[], None]]:
        """A function for each copy of one K tile. `left` elements of K are left from its beginning on."""
        own = [partial(self.one, number, stage, left) for number in range(self.scales.rounds(self.operand))]
        return self.base.work(stage, offset, left) + own

    def issue(self, stage: cute.Pointer, offset: Int64, left: Int32) -> None:
        """All copies of one K tile."""
        for copy in self.work(stage, offset, left):
            copy()

    def one(self, number: int, stage: cute.Pointer, left: Int32) -> None:
        """One vector of factors: zeros for a chunk that is not there."""
        scales, (thread, k) = self.scales, self.others
        source = self.sources[number] + Int64(k - left) * scales.bytes_per_k
        at = thread + number * scales.threads
        destination = stage + self.first + at * VECTOR_BYTES
        valid = cutlass.select_(left > self.chunks[number] * scales.format.chunk_k, Int32(VECTOR_BYTES), Int32(0))
        if (number + 1) * scales.threads <= scales.vectors(self.operand):
            ampere.copy_bytes(destination, source, VECTOR_BYTES, valid)
        else:
            ampere.copy_chunk(destination, source, valid, at < scales.vectors(self.operand))


class ScaledLoads(Loads):
    """A lane's loads of an operand's fragments, the words of their factors behind them."""

    held = ("bases", "selectors", "factors")

    def __init__(self, plan: Sm80Plan, operand: int, lane: Int32, warp: Int32, first: Int32):
        """Addresses of the lane.

        warp   its number along M or N;   first  the tile's first row of A (0) or column of B (1)
        """
        of, scales = (plan.a, plan.b)[operand], present(plan.scales)
        super().__init__(of, (plan.smem.a_offset, plan.smem.b_offset)[operand], lane, warp)
        self.scales, self.number, self.places = scales, operand, scales.places(operand, of.warps)
        begins = plan.smem.scales_offset + scales.offset(operand) + scales.inside(operand, first)
        self.factors = [begins + scales.word(operand, lane, warp, index) for index in self.places.bases]
        self.words: list[Int32] = []

    def begin(self, held: list[Int32]) -> None:
        """Begin a K tile, whose first depth's words are the last of `held`."""
        self.words = held[len(held) - self.scales.registers(self.number) :] if held else []

    def fragments(self, stage: cute.Pointer, step: int) -> list[Int32]:
        """Registers of one depth, then the words that have its factors."""
        chunk, later = divmod(step, self.scales.depths)
        if not later:
            places = [self.places.of[r, chunk] for r in range(self.scales.registers(self.number))]
            self.words = [ampere.load_word(stage + self.factors[base] + constant) for base, constant in places]
        return [*super().fragments(stage, step), *self.words]
