"""A Hopper GEMM that gathers rows of A, or scatters rows of C. See `kernels.indexed.rows`.

role        does
--------    -------------------------------------------------------------------------------------------------------
loader      gathers: all four warps wait for empty[s]; one thread arms full[s] and issues B's TMA loads; then each
            thread copies its vectors of A (cp.async) and arrives at full[s] when they have landed. It reads its
            rows' indices once for each tile of C
consumer    gathers: fences behind full[s]: wgmma reads what cp.async wrote through the generic proxy. Of a prologue
            threads read it through that proxy themselves: no fence
            scatters: a warp writes a round's buffer as for a TMA store, then its lanes read 16-byte vectors of it
            and store them, each to its own row of C
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64, const_expr

from ....atoms.copy.base import VECTOR_BYTES
from ...dsl import bridge
from ...dsl.ampere import copy_bytes, load_words, store_part, store_vector
from ...dsl.group_table import end_of_rows
from ...dsl.tables import choose, load_index
from ...indexed.rows import OUT_ROWS
from ...indexed.rows import ROWS as GATHERED_ROWS
from ...plan import present
from ...store import ROWS, WARP_ROWS, RowVectors, StoreChunk
from ..plan import Sm90Plan
from .epilogue import Sm90Epilogue
from .fused import Sm90FusedKernel
from .grouped import RaggedEpilogue, RaggedTiles
from .prologue import Sm90PrologueKernel
from .promoted import Sm90PromotedKernel


def matrix_of_rows(plan: Sm90Plan, matrix: Int32) -> Int32 | None:
    """The matrix of a batch whose rows the indices are of. None for one matrix, which all groups of rows share."""
    return matrix if plan.batch > 1 and not plan.joined_rows else None


class GatheredRows(bridge.Carried):
    """The rows of A that one loader thread copies for a tile of C.

    starts   of each row, the address of the thread's first element of K
    inside   bit i: row i is one of A's
    target   the byte of the thread's first vector in a stage
    element  its first element of K
    """

    def __init__(
        self, plan: Sm90Plan, job: bridge.Carried, first: Int32, end: Int32, thread: Int32, of_batch: Int32 | None
    ):
        self.plan, copy = plan, plan.a.copy
        start = job.a if of_batch is None else job.a + Int64(of_batch) * job.stride_a * plan.a.dtype.bytes
        element, size = copy.element(thread, 0), plan.a.dtype.bytes
        starts, inside = [], Int32(0)
        for number in range(copy.passes):
            place = first + copy.row(thread, number)
            row = load_index(present(plan.indexed), job, GATHERED_ROWS, place, end, of_batch)
            starts.append(start + (cutlass.max(row, Int64(0)) * job.lda + element) * size)
            inside |= choose(row >= 0, 1 << number, 0)
        super().__init__(starts=tuple(starts), inside=inside, target=Int32(copy.byte(thread)), element=Int32(element))

    def copy(self, job: bridge.Carried, k: Int32, stage: Int32) -> None:
        """Copy the K tile from element k on. The thread arrives when its vectors have landed."""
        copy, size = self.plan.a.copy, self.plan.a.dtype.bytes
        base = job.shared.a(stage) + self.target
        for span in range(copy.spans):
            further = copy.element(0, span) - copy.element(0, 0)
            valid = copy.valid(job.k - k - self.element - further, cutlass.min, cutlass.max)
            for number in range(copy.passes):
                read = choose((self.inside >> number) & 1 == 1, valid, 0)
                source = self.starts[number] + Int64(k + further) * size
                copy_bytes(base + copy.step(number, span), source, VECTOR_BYTES, read)
        bridge.barrier_arrive_copied(job.shared.full(stage))


class ScatterEpilogue(Sm90Epilogue):
    """Stores of a warp's rows to wherever they belong."""

    @cute.jit
    def store_tensor(
        self, job: bridge.Carried, maps: bridge.Maps, accumulator: cute.Tensor, at: tuple[Int32, ...],
        origin: bridge.Place, block: int, part: int,
    ) -> None:  # fmt: skip
        """Round by round: convert, write the buffer, and store its vectors row by row."""
        store = present(self.plan.store)
        consumer, thread = at
        row, column, matrix = origin
        warp, lane = bridge.uniform(thread // 32), thread % 32
        owner = consumer * (ROWS // WARP_ROWS) + warp
        first = row + (block * ROWS + warp * WARP_ROWS)
        fused = self.fused(job, (row + block * ROWS, column, matrix), thread, part)
        rows = ScatteredRows(self.plan, job, first, self.end(job, matrix), lane, matrix_of_rows(self.plan, matrix))
        for i, round_ in store.rounds_of(block, part):
            buffer = self.buffer(job, owner, i)
            packed = [self.convert(job, accumulator, chunk, fused) for chunk in round_.chunks]
            self.meet(consumer)  # the lanes have read the buffer
            for chunk, values in zip(round_.chunks, packed, strict=True):
                self.fill(values, buffer + chunk.offset, chunk, lane)
            self.meet(consumer)
            for chunk in round_.chunks:
                rows.store(job, chunk, buffer + chunk.offset, column + chunk.column)
        if const_expr(fused is not None):
            present(fused).finish()

    def end(self, job: bridge.Carried, matrix: Int32) -> Int32:
        """The row of the product from which on none is stored."""
        return end_of_rows(self.plan, job, matrix)


class ScatteredRows:
    """The rows of C of a warp's 16 rows, as its lanes store them. Read once for each width of a chunk."""

    def __init__(
        self, plan: Sm90Plan, job: bridge.Carried, first: Int32, end: Int32, lane: Int32, of_batch: Int32 | None
    ):
        self.plan, self.lane, size = plan, lane, plan.c.dtype.bytes
        self.c = job.c if of_batch is None else job.c + Int64(of_batch) * job.stride_c * size
        self.aligned = (self.c | job.ldc * size) % VECTOR_BYTES == 0
        indexed = present(plan.indexed)
        self.rows: dict[int, list[Int64]] = {}  # vectors of a row -> a lane's rows, pass by pass
        for chunk in [c for r in present(plan.store).rounds for c in r.chunks]:
            scatter = RowVectors(chunk.tile)
            if scatter.vectors not in self.rows:
                places = [scatter.place(number, lane)[0] for number in range(scatter.passes)]
                ends = [end if scatter.is_even else choose(i < WARP_ROWS, end, 0) for i in places]
                self.rows[scatter.vectors] = [
                    load_index(indexed, job, OUT_ROWS, first + i, last, of_batch)
                    for i, last in zip(places, ends, strict=True)
                ]

    def store(self, job: bridge.Carried, chunk: StoreChunk, tile: cute.Pointer, column: Int32) -> None:
        """Store a chunk; `column` is its first one in C."""
        scatter, size = RowVectors(chunk.tile), self.plan.c.dtype.bytes
        for number, row in enumerate(self.rows[scatter.vectors]):
            i, j = scatter.place(number, self.lane)
            i = i if const_expr(scatter.is_even) else choose(i < WARP_ROWS, i, 0)
            words = load_words(tile + scatter.byte((i, j)), VECTOR_BYTES // 4)
            address = self.c + (row * job.ldc + Int64(column + j)) * size
            store_row(words, address, (row >= 0, self.aligned), job.n - (column + j), size)


@cute.jit
def store_row(
    words: list[Int32], address: Int64, when: tuple[Boolean, Boolean], left: Int32, size: cutlass.Constexpr
) -> None:
    """Store a vector's elements, of which `left` are in C.

    when  (whether its row is one of C's, whether vectors of C are aligned)
    """
    width = VECTOR_BYTES // size
    inside, aligned = when
    if inside:
        if aligned & (left >= width):
            store_vector(address, words)
        else:
            for e in cutlass.range_constexpr(width):
                if e < left:
                    bits = 8 * size
                    store_part(address + e * size, words[e * bits // 32], e * bits % 32 // bits, bits)


class IndexedRowsKernel:
    """The loads and the store of a plan with indexed rows."""

    plan: Any

    def __init__(self, plan: Sm90Plan):
        super().__init__(plan)  # type: ignore[call-arg]
        if plan.scatters:
            self.epilogue: Sm90Epilogue = ScatterEpilogue(plan)
        elif plan.ragged is not None:
            self.epilogue = RaggedEpilogue(plan)

    def maps_of_a(self, a: Int64, extents: Mapping[str, Int32], pitches: tuple[Int64, Int64]) -> list[bridge.TensorMap]:
        """Gathered rows have no tensor map."""
        return [] if self.plan.gathers else super().maps_of_a(a, extents, pitches)  # type: ignore[misc]

    def maps_of_c(
        self, c: Int64, extents: Mapping[str, Int32], pitches: Mapping[str, tuple[Int64, Int64]], words: Sequence[Int64]
    ) -> list[bridge.TensorMap]:
        """Scattered rows have none either."""
        if self.plan.scatters:
            return []
        return super().maps_of_c(c, extents, pitches, words)  # type: ignore[misc]

    @property
    def store_maps(self) -> int:
        """Tensor maps that the store uses."""
        return 0 if self.plan.scatters else super().store_maps  # type: ignore[misc]

    def kernel_words(self, words: Sequence[Int64], a: Int64, pitches: tuple[Int64, Int64]) -> Sequence[Int64]:
        """The plan's words, then A's address, its pitch and the distance of a batch's matrices."""
        return (*words, a, *pitches)

    def job_of(
        self, shared: bridge.SharedMemory, place: tuple[Int32, ...], sizes: tuple[Int32, Int32, Int32],
        c: tuple[Int64, Int64, Int64], words: tuple[Int64, ...],
    ) -> bridge.Carried:  # fmt: skip
        """The same, with A's address, its pitch, and K. The job of a prologue has K already."""
        *own, a, lda, stride_a = words
        job = super().job_of(shared, place, sizes, c, tuple(own))  # type: ignore[misc]
        return job.extended(
            a=a, lda=lda, stride_a=stride_a, **({} if self.plan.prologue is not None else {"k": sizes[2]})
        )

    @property
    def mapped_operands(self) -> str:
        """The operands with tensor maps, in the order of their loads."""
        return "B" if self.plan.gathers else super().mapped_operands  # type: ignore[misc]

    @cute.jit
    def gather_tiles(
        self, job: bridge.Carried, maps: Sequence[bridge.Maps], tile: Int32, thread: Int32,
        ready: tuple[Int32 | Int64, ...],
    ) -> None:  # fmt: skip
        """The loader's warpgroup: all tiles of this CTA."""
        plan = self.plan
        stage, parity = Int32(0), Int32(1)
        while tile < job.tiles:
            place = self.origin(job, tile)  # type: ignore[attr-defined]
            of_batch = matrix_of_rows(plan, place[2])
            rows = GatheredRows(plan, job, place[0], end_of_rows(plan, job, place[2]), thread, of_batch)
            stage, parity = self.gather_tile(job, maps, rows, place, stage, parity)
            tile += job.workers
        if const_expr(plan.drains):
            if job.warp == plan.loader_warp:
                for _ in cutlass.range(plan.stages, unroll=1):
                    bridge.barrier_wait(job.shared.empty(stage), parity)
                    stage, parity = bridge.next_in_ring(stage, parity, plan.stages)

    @cute.jit
    def gather_tile(
        self, job: bridge.Carried, maps: Sequence[bridge.Maps], rows: GatheredRows, place: bridge.Place, stage: Int32,
        parity: Int32,
    ) -> tuple[Int32, Int32]:  # fmt: skip
        """All K tiles of one tile of C: B by TMA, A by every thread."""
        plan = self.plan
        m0, n0, matrix = place
        for k_tile in cutlass.range(job.k_tiles, unroll=1):
            k = k_tile * plan.tile[2]
            bridge.barrier_wait(job.shared.empty(stage), parity)
            if job.warp == plan.loader_warp:
                if bridge.elect():
                    self.issue_loads(job, maps, m0, n0, matrix, {"k": k}, stage)  # type: ignore[attr-defined]
            rows.copy(job, k, stage)
            stage, parity = bridge.next_in_ring(stage, parity, plan.stages)
        return stage, parity


class Sm90IndexedKernel(IndexedRowsKernel, Sm90FusedKernel):
    """The production kernel with indexed rows."""


class Sm90IndexedGroupsKernel(IndexedRowsKernel, RaggedTiles, Sm90FusedKernel):
    """And over groups of rows."""


class Sm90IndexedPromotedKernel(IndexedRowsKernel, Sm90PromotedKernel):
    """With a main loop that promotes. Its rows of A are in order, or copied first."""


class Sm90IndexedGroupsPromotedKernel(IndexedRowsKernel, RaggedTiles, Sm90PromotedKernel):
    """And over groups of rows."""


class Sm90IndexedPrologueKernel(IndexedRowsKernel, Sm90PrologueKernel):
    """With a function of A's elements."""


class Sm90IndexedGroupsPrologueKernel(IndexedRowsKernel, RaggedTiles, Sm90PrologueKernel):
    """And over groups of rows."""
