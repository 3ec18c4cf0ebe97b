"""C = weights @ x for few rows of x. Each warp streams its own units of weights through slots of its own.

    step     who           does
    -----    ----------    ------------------------------------------------------------------------------------------
    1        each warp     fills its slots; with the units of its first band come the same columns of x
    2        each warp     band by band, unit by unit: waits for its oldest slot, loads and converts its own words,
                           multiplies them with x, and refills the slot; at a band's end stores its sums
    3        block         meets; each thread adds the warps' sums of its elements, applies the epilogue, and stores
    3'       cluster       in place of 3: each thread sends the warps' sums of its elements to the block that stores
                           them. That block adds them one meeting later, when the next strips are multiplied

    barrier    kind              completed by                          waited for by
    -------    --------------    ----------------------------------    --------------------------------------------
    group      cp.async group    a lane's copies of one unit           the same lane, until slots - 1 are pending
    warp       bar.warp.sync     a warp's 32 lanes                     the same: in the first band for x; of shared
                                                                       scales behind a group and before a refill
    block      bar.sync          all threads                           the same, around step 3
    cluster    barrier.cluster   all threads, at the start and when    the same, before they send and before they add
                                 they have sent                        what was sent

A lane reads what it copied itself, but for scales of several groups, which lanes of its warp copied. A column of x is
one warp's alone, as its unit is. So x comes unit by unit beside the weights, and no warp waits for all of it.
Sums are sent to two buffers in turn. A block that sends to one has waited for a barrier at which the receiver arrived
behind its last reads from there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int16, Int32, Int64, const_expr

from ....atoms.copy.base import VECTOR_BYTES, WARP
from ...dsl import ampere, bridge
from ...dsl.entry import FusedEntry
from ...dsl.fused import FusedBlock
from ...dsl.packed_weights import DevicePairs, multiply_add
from ...dsl.types import element_type
from ...plan import ALL_SHARED, tile_count
from ...quantized.blocks import STRIP
from ...quantized.conversions import HALF
from ...quantized.fragments import fragment, rows_of, words_of
from ...quantized.order import WORDS
from ..plan import F32, StreamedPlan

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
        """Host side: as many clusters as run at a time, or bands. See `TileEntry.start`."""
        plan, several = self.plan, self.plan.config.blocks_per_sm > 1
        m, n, _, _ = sizes
        clusters = cutlass.min(self.bands(m), workers)
        self.kernel(*matrices, m, n, pitches["b"][0], pitches["c"][0], tuple(words)).launch(
            grid=(clusters * plan.cluster_size, 1, 1), block=(plan.threads, 1, 1), stream=stream,
            cluster=(plan.cluster_size, 1, 1) if plan.cluster_size > 1 else None, smem=plan.launch_bytes,
            min_blocks_per_mp=plan.config.blocks_per_sm, use_pdl=plan.config.overlap,
            preferred_smem_carveout=ALL_SHARED if several else None,
        )  # fmt: skip

    def bands(self, m: Int32) -> Int32:
        """Bands of `m` features."""
        return tile_count(m, STRIP * self.plan.config.band)

    @cute.kernel
    def kernel(
        self, packed: Int64, x: Int64, c: Int64, m: Int32, n: Int32, ldx: Int64, ldc: Int64, words: tuple
    ) -> None:
        """Device side: one block, its part of a run of bands."""
        rows = cutlass.min(n, self.plan.b.rows)  # known to the compiler, which leaves out the columns beyond
        self.compute((packed, x, c), (m, rows), (ldx, ldc), words)

    @cute.jit
    def compute(
        self, matrices: tuple[Int64, Int64, Int64], sizes: tuple[Int32, Int32], pitches: tuple[Int64, Int64],
        words: tuple[Int64, ...],
    ) -> None:  # fmt: skip
        """The block's part of the cluster's bands.

        matrices  addresses of the packed weights, x and C
        sizes     features, and rows of x
        pitches   elements from line to line of x and C
        """
        plan, split = self.plan, self.plan.config.split
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        blocks, _, _ = cute.arch.grid_dim()
        part = bridge.rank_in_cluster() if const_expr(split > 1) else Int32(0)
        if const_expr(split > 1):
            bridge.cluster_arrive(relaxed=True)  # nothing is sent to a block that has not begun
        lane, warp = thread % WARP, bridge.uniform(thread // WARP)
        band, last = plan.share(block // split, blocks // split, self.bands(sizes[0]), cutlass.min)
        shared = bridge.SharedMemory(plan.smem).base
        stream = WarpStream(
            plan, shared, (matrices[0], matrices[1], pitches[0], sizes[1]), (lane, warp, part), (band, last)
        )
        stream.begin(band)
        slot, buffer, before = Int32(0), Int32(0), Int32(0)
        sums = cute.make_rmem_tensor(plan.band_registers, Float32)
        at_once = plan.config.strips // plan.config.band
        while band < last:
            count = cutlass.min(last - band, at_once)
            for done in cutlass.range(0, count, 1, unroll=1):
                sums.fill(0.0)
                if const_expr(plan.turns <= UNROLLED):
                    for turn in cutlass.range_constexpr(plan.turns):
                        slot = stream.take(sums, band + done, turn, slot)
                else:
                    for turn in cutlass.range(0, plan.turns, 1, unroll=1):
                        slot = stream.take(sums, band + done, turn, slot)
                self.put(shared, sums, lane, warp, done)
            bridge.block_sync()
            if const_expr(split == 1):
                self.store(shared, thread, (band, count, part, buffer), sizes, (matrices[2], pitches[1]), words)
            else:
                bridge.cluster_wait()
                if before > 0:
                    self.store(
                        shared, thread, (band - at_once, Int32(at_once), part, 1 - buffer), sizes,
                        (matrices[2], pitches[1]), words,
                    )  # fmt: skip
                self.send(shared, thread, (count, part, buffer), sizes[1])
                bridge.cluster_arrive()
                before, buffer = count, 1 - buffer
            band += count
            if band < last:  # the next strips' sums go to the same places
                bridge.block_sync()
        if const_expr(split > 1):
            bridge.cluster_wait()
            self.store(
                shared, thread, (band - before, before, part, 1 - buffer), sizes, (matrices[2], pitches[1]), words
            )  # fmt: skip

    @cute.jit
    def put(self, shared: cute.Pointer, sums: cute.Tensor, lane: Int32, warp: Int32, band: Int32) -> None:
        """Write a warp's sums of a band for the block to add.

        Sums beyond the rows of x are left out.
        """
        plan, count = self.plan, self.plan.mma.accumulator_registers
        for strip in cutlass.range_constexpr(plan.config.band):
            for v in cutlass.range_constexpr(count):
                row, column = plan.mma.coords_C(lane, v)
                if column < plan.b.rows:
                    place = plan.sums(row, column, warp, band * plan.config.band + strip)
                    at = shared + (plan.smem.c_offset + F32 * place)
                    bridge.store_shared(at.toint(), (sums[strip * count + v],))

    @cute.jit
    def send(self, shared: cute.Pointer, thread: Int32, strips: tuple[Int32, Int32, Int32], rows: Int32) -> None:
        """The warps' sums of each element to the block that stores it.

        strips  how many bands, the block's number in the cluster, and the buffer
        rows    of x
        """
        plan, (count, part, buffer) = self.plan, strips
        limit, own = count * plan.config.band * STRIP, plan.own_strips
        for v in cutlass.range_constexpr(plan.values_of(plan.config.strips)):
            row, column = plan.coords_C(thread, v)
            if (row < limit) & (column < rows):
                strip = row // STRIP
                place = plan.received(row % STRIP, column, part, strip % own, buffer)
                at = shared + (plan.smem.received_offset + F32 * place)
                bridge.store_remote(bridge.remote(at, strip // own), self.added(shared, row, column))

    @cute.jit
    def store(
        self, shared: cute.Pointer, thread: Int32, bands: tuple[Int32, Int32, Int32, Int32],
        sizes: tuple[Int32, Int32], c: tuple[Int64, Int64], words: tuple[Int64, ...],
    ) -> None:  # fmt: skip
        """Each thread's elements: sums of warps or of blocks, the epilogue, C.

        bands  the first, how many, the block's number in the cluster, and the buffer
        sizes  features, and rows of x
        c      address and pitch
        """
        plan, (band, count, part, buffer) = self.plan, bands
        high = STRIP * plan.config.band
        limit = cutlass.min(sizes[0], (band + count) * high)
        first = band * high + part * (plan.own_strips * STRIP)
        values = cute.make_rmem_tensor(plan.accumulator_registers, Float32)
        for v in cutlass.range_constexpr(plan.accumulator_registers):
            values[v] = Float32(0.0)
            row, column = plan.coords_C(thread, v)
            if self.stores(row, first, limit) & (column < sizes[1]):
                if const_expr(plan.config.split > 1):
                    values[v] = self.gathered(shared, row, column, buffer)
                else:
                    values[v] = self.added(shared, row, column)
        done = [values[v] for v in range(plan.accumulator_registers)]
        if const_expr(bool(plan.epilogue)):
            given = bridge.Carried(**dict(zip(plan.words, words, strict=True)))
            job = bridge.Carried(m=limit, n=sizes[1], given=given)
            done = FusedBlock(StreamedSums(plan), job, (first, Int32(0), Int32(0)), thread).values(values, 0, len(done))
        for v in cutlass.range_constexpr(plan.accumulator_registers):
            row, column = plan.coords_C(thread, v)
            if self.stores(row, first, limit) & (column < sizes[1]):
                at = c[0] + (Int64(column) * c[1] + first + row) * plan.c.dtype.bytes
                bridge.store_element(at, done[v], plan.c.dtype)

    def stores(self, row: Int32, first: Int32, limit: Int32) -> cutlass.Boolean:
        """True if a row is the block's."""
        inside, own = first + row < limit, self.plan.own_strips * STRIP
        return inside & (row < own) if self.plan.config.split > 1 else inside

    def gathered(self, shared: cute.Pointer, row: Int32, column: Int32, buffer: Int32) -> Float32:
        """The sum over the cluster's blocks of an element, in their order."""
        plan, total = self.plan, None
        for part in range(plan.config.split):
            place = plan.received(row % STRIP, column, part, row // STRIP, buffer)
            word = ampere.load_word(shared + (plan.smem.received_offset + F32 * place)).bitcast(Float32)
            total = word if total is None else total + word
        return total

    def added(self, shared: cute.Pointer, row: Int32, column: Int32) -> Float32:
        """The sum over the warps of an element, in their order."""
        plan, total = self.plan, None
        for warp in range(plan.config.warps):
            index = plan.sums(row % STRIP, column, warp, row // STRIP)
            word = ampere.load_word(shared + (plan.smem.c_offset + F32 * index)).bitcast(Float32)
            total = word if total is None else total + word
        return total if plan.a.total_factor == 1 else total * Float32(plan.a.total_factor)


class StreamedSums:
    """The sums of a thread as `FusedBlock` sees them."""

    def __init__(self, plan: StreamedPlan):
        self.epilogue, self.c, self.batch, self.partials, self.mma = plan.epilogue, plan.c, 1, plan.partials, plan
        self.row_exchange, self.indexed, self.tile_c = None, None, (0, 0)  # bands of features are no tiles of columns


class WarpStream(bridge.Rebuilt):
    """A lane's slots: filled with its share of units, and multiplied."""

    held = ("values",)

    def __init__(
        self, plan: StreamedPlan, shared: cute.Pointer, sources: tuple[Int64, Int64, Int64, Int32],
        who: tuple[Int32, Int32, Int32], bands: tuple[Int32, Int32],
    ):  # fmt: skip
        """Slots of a lane.

        sources  addresses of the packed weights and of x, the elements from line to line of x, and its rows
        who      lane, warp, and the block's number in the cluster
        bands    the cluster's first band, and the one behind its last
        """
        self.plan = plan
        (base,) = plan.b.places.bases
        lines = plan.smem.b_offset + plan.b.line_byte(who[0], base[0], cutlass.min)
        self.values = [shared, *sources, *who, *bands, lines]

    def unit(self, turn: Int32 | int) -> Int32:
        """The unit along K that the warp takes in a turn."""
        warp, part = self.values[6:8]
        return self.plan.unit_of(warp, turn, part)

    def address(self, band: Int32, turn: Int32 | int) -> Int64:
        """The address of the unit that the warp takes of a band in a turn."""
        plan, packed = self.plan, self.values[1]
        block, _ = plan.a.unit(band)
        unit = Int64(block) * plan.units + self.unit(turn)
        return packed + unit * plan.a.packing.unit_bytes

    def there(self, band: Int32, turn: Int32 | int) -> cutlass.Boolean:
        """True if a band is the block's and the warp has that unit."""
        plan, last = self.plan, self.values[9]
        ragged = plan.turns * plan.config.warps * plan.config.split > plan.units
        return (band < last) & (self.unit(turn) < plan.units) if ragged else band < last

    def fill(self, band: Int32, turn: Int32 | int, slot: Int32, brings_x: bool) -> None:
        """Copy the lane's share of a unit into a slot, as one group. A missing unit is zeros.

        brings_x  the band may be the cluster's first
        """
        plan, (shared, _, _, _, _, lane, warp, *_) = self.plan, self.values
        _, quarter = plan.a.unit(band)
        there, source, base = self.there(band, turn), self.address(band, turn), shared + plan.slot(warp, slot)
        for unit_byte, slot_byte, size, lanes in plan.a.copies(lane, quarter):
            valid = cutlass.select_(there, Int32(size), Int32(0))
            if lanes == WARP:
                ampere.copy_bytes(base + slot_byte, source + Int64(unit_byte), size, valid)
            else:
                ampere.copy_chunk(base + slot_byte, source + Int64(unit_byte), valid, lane < lanes)
        if brings_x:
            self.copy_x(band, turn)
        bridge.commit_copies()

    @cute.jit
    def copy_x(self, band: Int32, turn: Int32 | int) -> None:
        """With a unit of the cluster's first band. The same columns of x, zeros beyond K and beyond the last row."""
        plan, b, (shared, _, x, ldx, rows, lane, warp, _, first, *_) = self.plan, self.plan.b, self.values
        if band == first:
            place, source = plan.place_of(warp, turn) * b.unit_step, self.unit(turn) * b.unit_step
            for number in cutlass.range_constexpr(tile_count(b.unit_chunks, WARP)):
                chunk = lane + number * WARP
                row, byte = b.chunk(chunk)
                valid = cutlass.max(cutlass.min(plan.k * b.dtype.bytes - source - byte, VECTOR_BYTES), 0)
                valid = cutlass.select_(row < rows, valid, Int32(0))
                destination = shared + (plan.smem.b_offset + b.byte(row, 0) + byte + place)
                address = x + Int64(row) * ldx * b.dtype.bytes + byte + source
                if const_expr((number + 1) * WARP <= b.unit_chunks):
                    ampere.copy_bytes(destination, address, VECTOR_BYTES, valid)
                else:
                    ampere.copy_chunk(destination, address, valid, chunk < b.unit_chunks)

    @cute.jit
    def begin(self, band: Int32) -> None:
        """Fill the slots behind the kernel before. Of constant weights while it ends, and x behind it."""
        config = self.plan.config
        if const_expr(config.overlap):
            bridge.allow_next_kernel()
            self.prefetch(band)
        if const_expr(config.overlap and not config.constant_weights):
            bridge.wait_for_previous_kernel()
        for number in cutlass.range_constexpr(config.slots):
            further, turn = self.plan.item(number)
            self.fill(band + further, turn, Int32(number), further == 0 and not config.constant_weights)
        if const_expr(config.constant_weights):
            bridge.wait_for_previous_kernel()
            self.fill_x(band)

    def fill_x(self, band: Int32) -> None:
        """Copy x's columns of the first slots, and wait for them and the slots."""
        for number in range(min(self.plan.config.slots, self.plan.turns)):
            self.copy_x(band, number)
        bridge.commit_copies()
        bridge.wait_copies(0)

    @cute.jit
    def prefetch(self, band: Int32) -> None:
        """Bring the warp's first units to L2. What its lanes copy of each is contiguous for each vector and group."""
        plan, lane = self.plan, self.values[5]
        for number in cutlass.range_constexpr(plan.config.prefetch):
            further, turn = plan.item(number)
            if (lane == 0) & self.there(band + further, turn):
                address = self.address(band + further, turn)
                _, quarter = plan.a.unit(band + further)
                for first, size in plan.a.runs(quarter):
                    bridge.prefetch_bytes(address + Int64(first), size)

    @cute.jit
    def take(self, sums: cute.Tensor, band: Int32, turn: Int32 | int, slot: Int32) -> Int32:
        """Multiply the oldest unit, refill its slot, and give the number of the next one."""
        plan, (shared, _, _, _, _, lane, warp, _, first, _, lines) = self.plan, self.values
        bridge.wait_copies(plan.config.slots - 1)
        if const_expr(plan.a.shares_scales):
            bridge.warp_sync()
        elif band == first:
            bridge.warp_sync()
        base = shared + plan.slot(warp, slot)
        x = shared + (lines + plan.place_of(warp, turn) * plan.b.unit_step)
        self.multiply_band(sums, base, lane, x)
        if const_expr(plan.a.shares_scales):
            bridge.warp_sync()  # no lane refills scales that another one has still to load
        further, next_turn = plan.item(turn + plan.config.slots)
        later = plan.turns <= UNROLLED and turn + plan.config.slots >= plan.turns  # of a later band, as is known here
        self.fill(band + further, next_turn, slot, not later)
        return cutlass.select_(slot == plan.config.slots - 1, Int32(0), slot + 1)

    def multiply_band(self, sums: cute.Tensor, base: cute.Pointer, lane: Int32, x: cute.Pointer) -> None:
        """All strips of a slot times the same registers of x."""
        loads: dict[int, list[Int32]] = {}
        for strip in range(self.plan.config.band):
            words = self.loaded(base + strip * self.plan.a.strip_bytes, lane)
            self.multiply(sums, strip, words, x, loads)

    def loaded(self, base: cute.Pointer, lane: Int32) -> tuple[list[Int32], list[list[Int32]]]:
        """The lane's words of a strip's codes, and of each group's scales and zeros."""
        a = self.plan.a
        words = [w for v in range(a.vectors) for w in ampere.load_words(base + a.codes(lane, v), WORDS)]
        count = a.packing.scale_words
        return words, [
            ampere.load_words(base + (a.strip_codes + a.numbers(lane, group)), count) for group in range(a.groups)
        ]

    def multiply(
        self, sums: cute.Tensor, strip: int, loaded: tuple[list[Int32], list[list[Int32]]], x: cute.Pointer,
        loads: dict[int, list[Int32]],
    ) -> None:  # fmt: skip
        """All fragments of a strip's unit, converted, times x.

        Each group's sum is multiplied by its row's scale in float32.
        """
        plan, order, (words, numbers) = self.plan, self.plan.a.packing, loaded
        ops, count = DevicePairs(order.activations, plan.fused), plan.mma.accumulator_registers
        own = range(strip * count, (strip + 1) * count)
        held = [Float32(0.0) if numbers else sums[v] for v in own]
        for number in range(plan.b.fragments):
            group = order.group_of(number)
            zeros = rows_of(order, numbers[group], ops)[1] if numbers else []
            a = fragment(order, [words[w] for w in words_of(order, number)], [], zeros, ops, plan.a.one_shift)
            held = bridge.multiply_warp(plan.mma, a, self.columns(x, loads, number), held)
            if not numbers:
                continue
            if number == plan.b.fragments - 1 or order.group_of(number + 1) != group:
                scales = self.scales(numbers[group][0])
                for v, value in zip(own, held, strict=True):
                    sums[v] = multiply_add(value, scales[plan.rows_of_sums[v % count]], sums[v])
                held = [Float32(0.0)] * len(held)
        for v, value in zip(own, held if not numbers else [], strict=False):
            sums[v] = value

    def columns(self, x: cute.Pointer, loads: dict[int, list[Int32]], number: int) -> list[Int32]:
        """The registers of x for a fragment of a unit."""
        b = self.plan.b
        load, first = b.load_of(number)
        if load not in loads:
            loads[load] = bridge.load_matrices(x + b.places.of[load,][1], 4)
        return loads[load][first : first + self.plan.mma.registers("B")]

    def scales(self, word: Int32) -> list[Float32]:
        """The scales of the lane's two rows as float32."""
        kind = element_type(self.plan.a.packing.target.scales)
        return [Int16(word >> (HALF * half)).bitcast(kind).to(Float32) for half in range(2)]
