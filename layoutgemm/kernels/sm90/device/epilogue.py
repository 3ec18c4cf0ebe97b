"""The end of a tile in a Hopper kernel: partial sums exchanged, C stored. See `kernels.store`.

Everything here runs in a consumer warpgroup, for one block of 64 rows; addresses, boxes and register numbers come from
the plan's StorePlan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Numeric, const_expr

from ...dsl import bridge
from ...dsl.ampere import permute
from ...dsl.fused import CombinedSums, FusedBlock
from ...dsl.group_table import end_of_rows
from ...dsl.tables import load_word_shared
from ...plan import present
from ...store import ROWS, WARP_ROWS, WARPS_OF_GROUP, ByteExchange, StoreChunk, rows_of_values
from ..plan import Sm90Plan
from .matrices import BufferedMatrices


class Sm90Epilogue:
    """The store of one plan; `job` is what the kernel knows at run time."""

    def __init__(self, plan: Sm90Plan):
        self.plan = plan

    @cute.jit
    def store(
        self, job: bridge.Carried, maps: bridge.Maps, accumulator: cute.Tensor, at: tuple[Int32, ...],
        origin: bridge.Place, block: int, part: int,
    ) -> None:  # fmt: skip
        """Store one block: the columns of one part of it. `at`: (consumer, thread); `origin`: row, column, matrix."""
        plan = self.plan
        if const_expr(plan.store is not None):
            self.store_tensor(job, maps, accumulator, at, origin, block, part)
        else:
            self.store_direct(job, accumulator, at, origin, block, part)

    @cute.jit
    def store_tensor(
        self, job: bridge.Carried, maps: bridge.Maps, accumulator: cute.Tensor, at: tuple[Int32, ...],
        origin: bridge.Place, block: int, part: int,
    ) -> None:  # fmt: skip
        """Round by round: convert, wait for the buffer, write it, fence, store it by TMA."""
        store, (consumer, thread), (row, column, matrix) = present(self.plan.store), at, origin
        owner, inside, rows = self.owner(consumer, thread)
        fused = self.scaled(self.fused(job, (row + block * ROWS, column, matrix), thread, part), at, block)
        matrices = self.matrices(fused, row + (block * ROWS + rows), inside)
        if const_expr(matrices is not None):
            present(matrices).begin([each for _, each in store.rounds_of(block, part)])
        place = self.place(job, row + (block * ROWS + rows), column, matrix)  # in front of the fences it costs no time
        for i, round_ in store.rounds_of(block, part):
            buffer = self.buffer(job, owner, i)
            if const_expr(matrices is None):
                packed = [self.convert(job, accumulator, chunk, fused) for chunk in round_.chunks]
            # One thread issues the stores, so it alone can wait until they have read the buffer; then it tells.
            if inside == 0:
                bridge.wait_stores_read(store.pending(i))
            self.meet(consumer)
            if const_expr(matrices is not None):
                present(matrices).take(round_, buffer)
                packed = [self.convert(job, accumulator, chunk, fused) for chunk in round_.chunks]
            for chunk, values in zip(round_.chunks, packed, strict=True):
                self.fill(values, buffer + chunk.offset, chunk, inside)
            bridge.shared_writes_visible()
            self.meet(consumer)
            if inside == 0:
                for chunk in round_.chunks:
                    corner = {**place, "n": column + chunk.column}
                    bridge.store_tile(maps[chunk.map], store.maps[chunk.map], corner, buffer + chunk.offset)
                bridge.commit_stores()
        if const_expr(fused is not None):
            present(fused).finish()

    @cute.jit
    def store_at_once(
        self, job: bridge.Carried, maps: bridge.Maps, accumulators: Sequence[cute.Tensor], at: tuple[Int32, ...],
        origin: bridge.Place,
    ) -> None:  # fmt: skip
        """Store all blocks at once, each round in a buffer of its own. One wait, one fence and one meeting for all."""
        store, (consumer, thread), (row, column, matrix) = present(self.plan.store), at, origin
        owner, inside, rows = self.owner(consumer, thread)
        places = [self.place(job, row + (block * ROWS + rows), column, matrix) for block in range(self.plan.blocks)]
        if inside == 0:
            bridge.wait_stores_read(store.pending(0))
        self.meet(consumer)
        for block in cutlass.range_constexpr(self.plan.blocks):
            fused = self.scaled(self.fused(job, (row + block * ROWS, column, matrix), thread, 0), at, block)
            for i, round_ in store.rounds_of(block, 0):
                for chunk in round_.chunks:
                    values = self.convert(job, accumulators[block], chunk, fused)
                    into = self.buffer(job, owner, i) + chunk.offset
                    self.fill(values, into, chunk, inside)
            if const_expr(fused is not None):
                present(fused).finish()
        bridge.shared_writes_visible()
        self.meet(consumer)
        if inside == 0:
            for i, round_ in enumerate(store.rounds):
                for chunk in round_.chunks:
                    corner = {**places[round_.block], "n": column + chunk.column}
                    from_ = self.buffer(job, owner, i) + chunk.offset
                    bridge.store_tile(maps[chunk.map], store.maps[chunk.map], corner, from_)
            bridge.commit_stores()

    def owner(self, consumer: Int32, thread: Int32) -> tuple[Int32, Int32, Int32 | int]:
        """A thread's owner of buffers, its number in it, and the owner's first row."""
        warps = present(self.plan.store).warps
        warp, lane = bridge.uniform(thread // 32), thread % 32
        number = (consumer * WARPS_OF_GROUP + warp) // warps
        return (number, lane, warp * WARP_ROWS) if warps == 1 else (number, thread, 0)

    def buffer(self, job: bridge.Carried, owner: Int32, number: int) -> cute.Pointer:
        """The buffer of an owner's round."""
        buffers = present(self.plan.store).buffers
        return job.shared.c(owner * buffers + number % buffers)

    def place(self, job: bridge.Carried, row: Int32, column: Int32, matrix: Int32) -> dict[str, Int32]:
        """The coordinates of a chunk in C's tensor map."""
        return {"m": row, "n": column, "l": matrix}

    def fused(self, job: bridge.Carried, place: bridge.Place, thread: Int32, part: int) -> FusedBlock | None:
        """The plan's epilogue on 64 rows and a part of their columns, or None."""
        if not self.plan.epilogue:
            return None
        # A tile reaches into the next group's rows, or into those of the next tile of strips.
        reaches = self.plan.ragged is not None or self.plan.config.tuning.features is not None
        ends = reaches and self.plan.epilogue.writes
        end = cutlass.min(self.limits(job, place[2])[0], job.m) if ends else None
        return FusedBlock(self.plan, job, place, thread, part, end, self.held(part))

    def held(self, part: int) -> Sequence[int]:
        """The numbers of the values that a block stores of a part of the columns."""
        store = self.plan.store
        if store is None:
            return self.plan.stored_values(part)
        chunks = [chunk for _, each in store.rounds_of(0, part) for chunk in each.chunks]
        return [chunk.first_value + v for chunk in chunks for v in range(chunk.values)]

    def scaled(self, fused: FusedBlock | None, at: tuple[Int32, ...], block: int) -> FusedBlock | None:
        """The epilogue with the factors of the block's columns, where groups of rows have scales."""
        scales, (consumer, thread) = self.plan.group_scales, at
        if scales is not None and fused is not None:
            group, base = block * scales.groups // self.plan.blocks, fused.job.shared.base

            def factor(v: int) -> Float32:
                _, column = self.plan.mma.coords_C(thread, v)
                return load_word_shared((base + scales.byte(consumer, group, scales.factors, column)).toint()).bitcast(
                    Float32
                )

            fused.factor = factor
        return fused

    def matrices(self, fused: FusedBlock | None, first: Int32, lane: Int32) -> BufferedMatrices | None:
        """The epilogue's matrices that come through a warp's buffers, or None. `first` is the warp's first row."""
        read = self.plan.buffered_matrices
        return BufferedMatrices(read, present(fused), first, lane) if read else None

    def meet(self, consumer: Int32) -> None:
        """The threads that share a buffer meet."""
        if present(self.plan.store).warps == 1:
            bridge.warp_sync()
        else:
            bridge.named_sync(self.plan.store_barrier(consumer), self.plan.store_threads)

    def stored(
        self, job: bridge.Carried, accumulator: cute.Tensor, fused: FusedBlock | None
    ) -> cute.Tensor | CombinedSums:
        """The values that are stored, before the epilogue. The accumulator's own, or those of several sums."""
        if self.plan.gated is None:
            return accumulator
        return CombinedSums(self.plan, job, accumulator, fused, self.plan.stored.accumulator_registers)

    def sums(self, accumulator: cute.Tensor, first: int, count: int) -> list[Numeric]:
        """Values of an accumulator. Sums of integers as f32, unless C has them as they are."""
        values = [accumulator[v] for v in range(first, first + count)]
        return values if self.plan.c.dtype.kind == "int" else [bridge.number(value) for value in values]

    def convert(
        self, job: bridge.Carried, accumulator: cute.Tensor, chunk: StoreChunk, fused: FusedBlock | None
    ) -> list[Numeric]:
        """A chunk's values in C's type, as they go into shared memory. Pairs in one register, or pairs of f32."""
        accumulator = self.stored(job, accumulator, fused)
        if fused is not None:
            values = fused.values(accumulator, chunk.first_value, chunk.values)
        else:
            values = self.sums(accumulator, chunk.first_value, chunk.values)
        pairs = zip(values[::2], values[1::2], strict=True)
        if self.plan.c.dtype.bits == 32:
            return list(pairs)
        return [(bridge.convert_pair(low, high, self.plan.c.dtype),) for low, high in pairs]

    def fill(self, pairs: Sequence[Numeric], tile: cute.Pointer, chunk: StoreChunk, thread: Int32) -> None:
        """One chunk of a thread's registers into shared memory; `thread` counts in the tile's owner."""
        dtype, by_row = self.plan.c.dtype, self.plan.c.order == "row"
        alone = present(self.plan.store).warps == 1
        if chunk.rows is not None:
            for i in range(len(pairs) // chunk.matrices):
                offset = chunk.rows((thread % 32, (i, 0 if alone else thread // 32))) * dtype.bytes
                matrices = pairs[i * chunk.matrices : (i + 1) * chunk.matrices]
                bridge.store_matrices(tile + offset, [pair for (pair,) in matrices], transpose=not by_row)
            return
        if chunk.exchange is not None:
            self.fill_columns(pairs, tile, chunk, chunk.exchange, thread)
            return
        for v, pair in enumerate(pairs):
            i, j = self.plan.mma.coords_C(thread, chunk.first_value + 2 * v)
            j = j - chunk.column
            if by_row:
                bridge.store_shared((tile + chunk.tile.byte(i, j)).toint(), pair)
            else:  # neighbours along a row of C are a column apart in memory
                for step, value in enumerate(bridge.split_pair(pair, dtype)):
                    bridge.store_shared((tile + chunk.tile.byte(i, j + step)).toint(), (value,))

    def fill_columns(
        self, pairs: Sequence[Numeric], tile: cute.Pointer, chunk: StoreChunk, exchange: ByteExchange, thread: Int32
    ) -> None:  # fmt: skip
        """Columns of 8 bits. Lanes exchange halves of words, so that each has neighbours of a column for stmatrix."""
        warp, lane = bridge.uniform(thread // 32), thread % 32
        even, odd = exchange.sources(lane)
        selector, words = exchange.selector(lane), []
        for (low,), (high,) in zip(pairs[::2], pairs[1::2], strict=True):
            word = bridge.join_pairs(low, high)
            words.append(permute(cute.arch.shuffle_sync(word, even), cute.arch.shuffle_sync(word, odd), selector))
        for i in range(len(words) // exchange.matrices):
            offset = chunk.tile.byte(*exchange.place(warp, i, lane))
            bridge.store_matrices(tile + offset, words[i * exchange.matrices :][: exchange.matrices], transpose=True)

    @cute.jit
    def store_direct(
        self, job: bridge.Carried, accumulator: cute.Tensor, at: tuple[Int32, ...], origin: bridge.Place, block: int,
        part: int,
    ) -> None:  # fmt: skip
        """Each thread its own elements, guarded. Neighbours in a row of C together where its lines allow it."""
        plan, (_, thread) = self.plan, at
        mine = plan.stored_values(part)
        row, column, matrix = origin
        row += block * ROWS
        base = job.c + Int64(matrix) * job.stride_c * plan.c.dtype.bytes
        fused = self.scaled(self.fused(job, (row, column, matrix), thread, part), at, block)
        sums, take = self.stored(job, accumulator, fused), self.sums if fused is None else fused.values
        values = dict(zip(mine, take(sums, mine.start, len(mine)), strict=True))
        if const_expr(fused is not None):
            present(fused).finish()
        if const_expr(plan.epilogue.stores_c):
            self.store_values(job, values, base, (row, column, matrix), thread)

    def limits(self, job: bridge.Carried, matrix: Int32) -> tuple[Int32, Int32]:
        """The ends of a tile's rows and columns. They are of a direct store, and of the epilogue's writes."""
        return end_of_rows(self.plan, job, matrix), job.n

    @cute.jit
    def store_values(
        self,
        job: bridge.Carried,
        values: Mapping[int, Numeric],
        base: Int64,
        origin: bridge.Place,
        thread: Int32,
    ) -> None:
        """A thread's values, by their numbers, to C."""
        plan, (row, column, matrix) = self.plan, origin
        limits = self.limits(job, matrix)
        size = plan.c.dtype.bytes
        paired = base % (2 * size) == 0 and job.ldc % 2 == 0 and column <= limits[1] - plan.tile_c[1]
        if const_expr(plan.c.order == "row"):
            if paired:
                self.store_pairs(job, values, base, (row, column), limits, thread)
            else:
                self.store_elements(job, values, base, (row, column), limits, thread)
        else:
            self.store_elements(job, values, base, (row, column), limits, thread)

    @cute.jit
    def store_pairs(
        self, job: bridge.Carried, values: Mapping[int, Numeric], base: Int64, origin: tuple[Int32, Int32],
        limits: tuple[Int32, Int32], thread: Int32,
    ) -> None:  # fmt: skip
        """Neighbours in a row of C in one store. All columns of the tile are in C, so that only rows are asked for."""
        atom, size = self.plan.stored, self.plan.c.dtype.bytes
        row, column = origin
        rows = rows_of_values(atom, list(values))
        for r in cutlass.range_constexpr(len(rows)):
            i, _ = atom.coords_C(thread, rows[r][0])
            if i < limits[0] - row:
                line = base + (Int64(row + i) * job.ldc + column) * size
                for e in cutlass.range_constexpr(0, len(rows[r]), 2):
                    low, high = rows[r][e], rows[r][e + 1]
                    _, j = atom.coords_C(thread, low)
                    bridge.store_neighbours(line + Int64(j) * size, values[low], values[high], self.plan.c.dtype)

    @cute.jit
    def store_elements(
        self, job: bridge.Carried, values: Mapping[int, Numeric], base: Int64, origin: tuple[Int32, Int32],
        limits: tuple[Int32, Int32], thread: Int32,
    ) -> None:  # fmt: skip
        """Element by element, each asked whether it is in C."""
        atom, dtype = self.plan.stored, self.plan.c.dtype
        row, column = origin
        for v in tuple(values):
            i, j = atom.coords_C(thread, v)
            if i < limits[0] - row and j < limits[1] - column:
                if const_expr(self.plan.c.order == "row"):
                    element = Int64(row + i) * job.ldc + (column + j)
                else:
                    element = Int64(column + j) * job.ldc + (row + i)
                bridge.store_element(base + element * dtype.bytes, values[v], dtype)

    @cute.jit
    def send(self, job: bridge.Carried, accumulators: Sequence[cute.Tensor], at: tuple[Int32, ...]) -> None:
        """Send partial sums of a split K. Each other block gets the registers of its columns.

        They go straight into its shared memory, whose barrier counts their bytes; a thread there holds the same
        elements, so a register travels to its own place. Without a cluster a warp stores them, and then arrives.
        """
        plan = self.plan
        parts, sent, slices = plan.config.split, present(plan.exchange), plan.config.slices
        (consumer, slice_), thread = plan.place_of_consumer(at[0]), at[1]
        for target in cutlass.range_constexpr(parts):
            if job.part != target or slice_ != 0:
                rank = target * plan.sharing + job.rank
                there, barrier = Int32(job.shared.base.toint()), job.shared.sums()
                if const_expr(plan.sends_sums):
                    there, barrier = bridge.remote(job.shared.base, rank), bridge.remote(barrier, rank)
                slot, theirs = sent.slot(job.part * slices + slice_, target * slices), plan.summed_values(target)
                for block in cutlass.range_constexpr(plan.blocks):
                    for i in cutlass.range_constexpr(sent.vectors):
                        first = theirs[4 * i]
                        values = [accumulators[block][first + e] for e in range(4)]
                        place = there + sent.byte(slot, consumer, block, i, thread)
                        if const_expr(plan.sends_sums):
                            bridge.send(place, bridge.as_floats(values), barrier)
                        else:
                            bridge.store_shared(place, values)
                if const_expr(not plan.sends_sums):
                    bridge.warp_sync()
                    if cute.arch.lane_idx() == 0:
                        bridge.barrier_arrive(barrier)

    @cute.jit
    def reduce(self, job: bridge.Carried, accumulators: Sequence[cute.Tensor], at: tuple[Int32, ...]) -> None:
        """Bring the partial sums together. Block `part` of the cluster ends up with part `part` of all columns.

        The sums are taken in the order of the blocks, whoever takes them. When all have arrived, no CTA writes this
        block's memory any more.
        """
        plan = self.plan
        parts, slices, sent = plan.config.split, plan.config.slices, present(plan.exchange)
        (consumer, _), thread = plan.place_of_consumer(at[0]), at[1]
        bridge.barrier_wait(job.shared.sums(), 0)
        for mine in cutlass.range_constexpr(parts):
            if job.part == mine:
                summed = plan.summed_values(mine)
                for block in cutlass.range_constexpr(plan.blocks):
                    for i in cutlass.range_constexpr(sent.vectors):
                        first = summed[4 * i]
                        own = [accumulators[block][first + e] for e in range(4)]
                        terms = [
                            own
                            if source == mine * slices
                            else self.sent(job, source, mine * slices, (consumer, block, i, thread))
                            for source in range(parts * slices)
                        ]
                        total = self.summed(terms)
                        for e in cutlass.range_constexpr(4):
                            accumulators[block][first + e] = total[e]

    def sent(self, job: bridge.Carried, source: int, target: int, at: tuple[Int32, ...]) -> list[Float32]:
        """The values that block `source` sent to `target`. `at`: (consumer, accumulator, vector, thread)."""
        sent = present(self.plan.exchange)
        values = bridge.load_shared(job.shared.base + sent.byte(sent.slot(source, target), *at))
        return bridge.from_floats(values, self.plan.mma.c_dtype)

    def summed(self, terms: list[list[Float32]]) -> list[Float32]:
        """Value by value, the sum of the terms in their order."""
        total = terms[0]
        for term in terms[1:]:
            total = [x + y for x, y in zip(total, term, strict=True)]
        return total
