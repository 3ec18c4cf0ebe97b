"""C = weights @ x for few rows of x: each warp streams its own units of weights through slots of its own.

    step     who           does
    -----    ----------    ------------------------------------------------------------------------------------------
    1        each warp     fills its slots; with the units of its first strip come the same columns of x
    2        each warp     strip by strip, unit by unit: waits for its oldest slot, loads and converts its own words,
                           multiplies them with x, and refills the slot; at a strip's end stores its sums
    3        block         meets; each thread adds the warps' sums of its elements, applies the epilogue, and stores

    barrier    kind              completed by                          waited for by
    -------    --------------    ----------------------------------    --------------------------------------------
    group      cp.async group    a lane's copies of one unit           the same lane, until slots - 1 are pending
    warp       bar.warp.sync     a warp's 32 lanes                     the same, in the first strip: x is there for all
    block      bar.sync          all threads                           the same, around step 3

A lane reads from a slot only what it copied there itself, and copies again only behind that. A column of x is one
warp's alone, as its unit is. So x comes unit by unit beside the weights, and no warp waits for all of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int16, Int32, Int64, const_expr

from ....atoms.copy.base import WARP
from ...dsl import ampere, bridge
from ...dsl.entry import FusedEntry
from ...dsl.fused import FusedBlock
from ...dsl.packed_weights import DevicePairs, multiply_add, prefetch_bytes
from ...dsl.types import element_type
from ...plan import tile_count
from ...quantized.blocks import STRIP
from ...quantized.conversions import HALF
from ...quantized.fragments import ROW_SELECTORS, fragment, words_of
from ...quantized.order import VECTOR_BYTES, WORDS
from ..plan import F32, StreamedPlan

ALL_SHARED = 100  # percent of what shared memory and L1 have in common, for several blocks a multiprocessor
UNROLLED = 8  # turns of a strip that are unrolled: more are too many instructions


class StreamedKernel(FusedEntry):
    """The kernel for one plan. What is reachable through `self.plan` is a compile-time constant of the trace."""

    plan: StreamedPlan

    def __init__(self, plan: StreamedPlan):
        self.plan = plan

    @cute.jit
    def start(
        self, matrices: Sequence[Int64], sizes: Sequence[Int32], pitches: Mapping[str, tuple[Int64, Int64]],
        workers: Int32 | None, words: Sequence[Int64], stream: bridge.Stream,
    ) -> None:  # fmt: skip
        """Host side: as many blocks as run at a time, or strips. See `TileEntry.start`."""
        plan, several = self.plan, self.plan.config.blocks_per_sm > 1
        m, n, _, _ = sizes
        blocks = cutlass.min(tile_count(m, STRIP), workers)
        self.kernel(*matrices, m, n, pitches["b"][0], pitches["c"][0], tuple(words)).launch(
            grid=(blocks, 1, 1), block=(plan.threads, 1, 1), smem=plan.smem.total, stream=stream,
            min_blocks_per_mp=plan.config.blocks_per_sm, use_pdl=plan.config.overlap,
            preferred_smem_carveout=ALL_SHARED if several else None,
        )  # fmt: skip

    @cute.kernel
    def kernel(
        self, packed: Int64, x: Int64, c: Int64, m: Int32, n: Int32, ldx: Int64, ldc: Int64, words: tuple
    ) -> None:
        """Device side: one block, a run of strips."""
        self.compute((packed, x, c), (m, n), (ldx, ldc), words)

    @cute.jit
    def compute(
        self, matrices: tuple[Int64, Int64, Int64], sizes: tuple[Int32, Int32], pitches: tuple[Int64, Int64],
        words: tuple[Int64, ...],
    ) -> None:  # fmt: skip
        """The block's strips.

        matrices  addresses of the packed weights, x and C
        sizes     features, and rows of x
        pitches   elements from line to line of x and C
        """
        plan = self.plan
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        blocks, _, _ = cute.arch.grid_dim()
        lane, warp = thread % WARP, bridge.uniform(thread // WARP)
        strip, last = plan.share(block, blocks, tile_count(sizes[0], STRIP), cutlass.min)
        shared = bridge.SharedMemory(plan.smem).base
        stream = WarpStream(plan, shared, (matrices[0], matrices[1], pitches[0], sizes[1]), (lane, warp), (strip, last))
        if const_expr(plan.config.overlap):
            bridge.allow_next_kernel()
            stream.prefetch(strip)
            bridge.wait_for_previous_kernel()
        for number in cutlass.range_constexpr(plan.config.slots):
            further, turn = plan.item(number)
            stream.fill(strip + further, turn, Int32(number))
        slot = Int32(0)
        sums = cute.make_rmem_tensor(plan.mma.accumulator_registers, Float32)
        while strip < last:
            count = cutlass.min(last - strip, plan.config.strips)
            for done in cutlass.range(0, count, 1, unroll=1):
                sums.fill(0.0)
                if const_expr(plan.turns <= UNROLLED):
                    for turn in cutlass.range_constexpr(plan.turns):
                        slot = stream.take(sums, strip + done, turn, slot)
                else:
                    for turn in cutlass.range(0, plan.turns, 1, unroll=1):
                        slot = stream.take(sums, strip + done, turn, slot)
                self.put(shared, sums, lane, warp, done)
            bridge.block_sync()
            self.store(shared, thread, (strip, count), sizes, (matrices[2], pitches[1]), words)
            strip += count
            if strip < last:  # the next strips' sums go to the same places
                bridge.block_sync()

    @cute.jit
    def put(self, shared: cute.Pointer, sums: cute.Tensor, lane: Int32, warp: Int32, strip: Int32) -> None:
        """A warp's sums of a strip to where the block adds them; those of no row of x are left out."""
        plan = self.plan
        for v in cutlass.range_constexpr(plan.mma.accumulator_registers):
            row, column = plan.mma.coords_C(lane, v)
            if column < plan.b.rows:
                at = shared + (plan.smem.c_offset + F32 * plan.sums(row, column, warp, strip))
                bridge.store_shared(at.toint(), (sums[v],))

    @cute.jit
    def store(
        self, shared: cute.Pointer, thread: Int32, strips: tuple[Int32, Int32], sizes: tuple[Int32, Int32],
        c: tuple[Int64, Int64], words: tuple[Int64, ...],
    ) -> None:  # fmt: skip
        """Each thread's elements: the warps' sums, the epilogue, C.

        strips  the first, and how many
        sizes   features, and rows of x
        c       address and pitch
        """
        plan, first = self.plan, strips[0] * STRIP
        limit = cutlass.min(sizes[0], first + strips[1] * STRIP)
        values = cute.make_rmem_tensor(plan.accumulator_registers, Float32)
        for v in cutlass.range_constexpr(plan.accumulator_registers):
            values[v] = Float32(0.0)
            row, column = plan.coords_C(thread, v)
            if (first + row < limit) & (column < sizes[1]):
                values[v] = self.added(shared, row, column)
        done = [values[v] for v in range(plan.accumulator_registers)]
        if const_expr(bool(plan.epilogue)):
            given = bridge.Carried(**dict(zip(plan.words, words, strict=True)))
            job = bridge.Carried(m=limit, n=sizes[1], given=given)
            done = FusedBlock(Summed(plan), job, (first, Int32(0), Int32(0)), thread).values(values, 0, len(done))
        for v in cutlass.range_constexpr(plan.accumulator_registers):
            row, column = plan.coords_C(thread, v)
            if (first + row < limit) & (column < sizes[1]):
                at = c[0] + (Int64(column) * c[1] + first + row) * plan.c.dtype.bytes
                bridge.store_element(at, done[v], plan.c.dtype)

    def added(self, shared: cute.Pointer, row: Int32, column: Int32) -> Float32:
        """The sum over the warps of an element, in their order."""
        plan, total = self.plan, None
        for warp in range(plan.config.warps):
            index = plan.sums(row % STRIP, column, warp, row // STRIP)
            word = ampere.load_word(shared + (plan.smem.c_offset + F32 * index)).bitcast(Float32)
            total = word if total is None else total + word
        return total


class Summed:
    """The sums of a thread as `FusedBlock` sees them."""

    def __init__(self, plan: StreamedPlan):
        self.epilogue, self.c, self.batch, self.partials, self.mma = plan.epilogue, plan.c, 1, plan.partials, plan


class WarpStream(ampere.Held):
    """A lane's slots: filled with its share of units, and multiplied."""

    held = ("values",)

    def __init__(
        self, plan: StreamedPlan, shared: cute.Pointer, sources: tuple[Int64, Int64, Int64, Int32],
        who: tuple[Int32, Int32], strips: tuple[Int32, Int32],
    ):  # fmt: skip
        """Slots of a lane.

        sources  addresses of the packed weights and of x, the elements from line to line of x, and its rows
        who      lane and warp
        strips   the block's first strip, and the one behind its last
        """
        self.plan = plan
        (base,) = plan.b.places.bases
        lines = plan.smem.b_offset + plan.b.line_byte(who[0], base[0], cutlass.min)
        self.values = [shared, *sources, *who, *strips, lines]

    def address(self, strip: Int32, turn: Int32 | int) -> Int64:
        """The address of the unit that the warp takes of a strip in a turn."""
        plan, (_, packed, _, _, _, _, warp, *_) = self.plan, self.values
        block, _ = plan.a.unit(strip)
        unit = Int64(block) * plan.units + plan.unit_of(warp, turn)
        return packed + unit * plan.a.packing.unit_bytes

    def there(self, strip: Int32, turn: Int32 | int) -> cutlass.Boolean:
        """True if a strip is the block's and the warp has that unit."""
        plan, (warp, _, last) = self.plan, self.values[6:9]
        ragged = plan.turns * plan.config.warps > plan.units
        return (strip < last) & (plan.unit_of(warp, turn) < plan.units) if ragged else strip < last

    def fill(self, strip: Int32, turn: Int32 | int, slot: Int32) -> None:
        """Copy the lane's share of a unit into a slot, as one group; a missing unit is zeros."""
        plan, (shared, _, _, _, _, lane, warp, *_) = self.plan, self.values
        _, quarter = plan.a.unit(strip)
        there, source, base = self.there(strip, turn), self.address(strip, turn), shared + plan.slot(warp, slot)
        for unit_byte, slot_byte, size in plan.a.copies(lane, quarter):
            valid = cutlass.select_(there, Int32(size), Int32(0))
            ampere.copy_bytes(base + slot_byte, source + Int64(unit_byte), size, valid)
        self.copy_x(strip, turn)
        bridge.commit_copies()

    @cute.jit
    def copy_x(self, strip: Int32, turn: Int32 | int) -> None:
        """With a unit of the block's first strip: the same columns of x, zeros beyond K and beyond the last row."""
        plan, b, (shared, _, x, ldx, rows, lane, warp, first, *_) = self.plan, self.plan.b, self.values
        if strip == first:
            unit = plan.unit_of(warp, turn)
            for number in cutlass.range_constexpr(tile_count(b.unit_chunks, WARP)):
                chunk = lane + number * WARP
                row, byte = b.chunk(chunk)
                byte = byte + unit * b.unit_step
                valid = cutlass.max(cutlass.min(plan.k * b.dtype.bytes - byte, VECTOR_BYTES), 0)
                valid = cutlass.select_(row < rows, valid, Int32(0))
                destination = shared + (plan.smem.b_offset + b.byte(row, 0) + byte)
                address = x + Int64(row) * ldx * b.dtype.bytes + byte
                if const_expr((number + 1) * WARP <= b.unit_chunks):
                    ampere.copy_bytes(destination, address, VECTOR_BYTES, valid)
                else:
                    ampere.copy_chunk(destination, address, valid, chunk < b.unit_chunks)

    @cute.jit
    def prefetch(self, strip: Int32) -> None:
        """Bring the warp's first units to L2: what its lanes copy of each is contiguous for each vector and group."""
        plan, lane = self.plan, self.values[5]
        for number in cutlass.range_constexpr(plan.config.prefetch):
            further, turn = plan.item(number)
            if (lane == 0) & self.there(strip + further, turn):
                address = self.address(strip + further, turn)
                _, quarter = plan.a.unit(strip + further)
                for first, size in plan.a.runs(quarter):
                    prefetch_bytes(address + Int64(first), size)

    @cute.jit
    def take(self, sums: cute.Tensor, strip: Int32, turn: Int32 | int, slot: Int32) -> Int32:
        """Multiply the oldest unit, refill its slot, and give the number of the next one."""
        plan, (shared, _, _, _, _, lane, warp, first, _, lines) = self.plan, self.values
        bridge.wait_copies(plan.config.slots - 1)
        if strip == first:
            bridge.warp_sync()
        base = shared + plan.slot(warp, slot)
        words, numbers = self.loaded(base, lane)
        x = shared + (lines + plan.unit_of(warp, turn) * plan.b.unit_step)
        self.multiply(sums, words, numbers, x)
        further, next_turn = plan.item(turn + plan.config.slots)
        self.fill(strip + further, next_turn, slot)
        return cutlass.select_(slot == plan.config.slots - 1, Int32(0), slot + 1)

    def loaded(self, base: cute.Pointer, lane: Int32) -> tuple[list[Int32], list[list[Int32]]]:
        """The lane's words of codes, and of each group's scales and zeros."""
        a = self.plan.a
        words = [w for v in range(a.vectors) for w in ampere.load_words(base + a.codes(lane, v), WORDS)]
        count = a.packing.scale_words
        return words, [
            ampere.load_words(base + (a.slot_codes + a.numbers(lane, group)), count) for group in range(a.groups)
        ]

    def multiply(
        self, sums: cute.Tensor, words: list[Int32], numbers: list[list[Int32]], x: cute.Pointer
    ) -> None:  # fmt: skip
        """All fragments of a unit, converted, times x: each group's sum is multiplied by its row's scale in float32."""
        plan, order = self.plan, self.plan.a.packing
        ops, lines, loads = DevicePairs(order.activations, plan.fused), plan.b.places, {}
        held = [Float32(0.0) if numbers else sums[v] for v in range(plan.mma.accumulator_registers)]
        for number in range(plan.b.fragments):
            load, first = plan.b.load_of(number)
            if load not in loads:
                loads[load] = bridge.load_matrices(x + lines.of[load,][1], 4)
            group = order.group_of(number)
            zeros = [ops.twice(numbers[group][1], each) for each in ROW_SELECTORS] if order.format.zeros else []
            a = fragment(order, [words[w] for w in words_of(order, number)], [], zeros, ops)
            b = loads[load][first : first + plan.mma.registers("B")]
            held = bridge.multiply_warp(plan.mma, a, b, held)
            if not numbers:
                continue
            if number == plan.b.fragments - 1 or order.group_of(number + 1) != group:
                scales = self.scales(numbers[group][0])
                for v, value in enumerate(held):
                    sums[v] = multiply_add(value, scales[plan.rows_of_sums[v]], sums[v])
                held = [Float32(0.0)] * len(held)
        for v, value in enumerate(held if not numbers else []):
            sums[v] = value

    def scales(self, word: Int32) -> list[Float32]:
        """The scales of the lane's two rows as float32."""
        kind = element_type(self.plan.a.packing.target.scales)
        return [Int16(word >> (HALF * half)).bitcast(kind).to(Float32) for half in range(2)]
