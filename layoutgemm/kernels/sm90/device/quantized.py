"""C = A @ B on Hopper with packed weights as A. Copied in bulk, converted in registers, multiplied from there.

    role        does
    --------    -------------------------------------------------------------------------------------------------------
    loader      as in `device.gemm`; A's K tile is bulk copies of each 64 rows: a unit, or the half of one
    consumer    for each K tile: loads its own words and scales (16-byte vectors), and, for each 64 of K and each of its
                blocks of 64 rows: converts the fragments, while the products of the group before
                run, multiplies them with B from shared memory, and waits for the group before

A stage is released behind the first group of the next K tile: all products that read it are done then.

Weights that become e4m3 are summed apart: where scales of groups are not exact as e4m3, they multiply the f32 sums.

    consumer    for each sum of K, a group or a K tile, and each of its blocks of 64 rows: converts fragments, while the
                last products of the sum before run, waits for these, computes total += scale * sum, and multiplies into
                the same registers

No more than 128 products are so added in the tensor core's registers, which keep 14 bits of 8-bit products (DeepSeek-V3
Technical Report, 3.5.2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import cutlass
import cutlass.cute as cute
import numpy as np
from cutlass import Float32, Int16, Int32, Int64, const_expr

from ....atoms.copy.base import WARP
from ...dsl import bridge
from ...dsl.ampere import load_words
from ...dsl.packed_weights import DevicePairs, RegisterWgmma, held, multiply_add
from ...dsl.tables import choose
from ...dsl.types import element_type
from ...dsl.warp import load_matrices, multiply_warp
from ...operands.gated import HALF as GATE
from ...plan import present, tile_count
from ...quantized.blocks import BlockCopy
from ...quantized.conversions import HALF
from ...quantized.formats import UNIT_K, UNIT_ROWS
from ...quantized.fragments import fragment, rows_of, words_of
from ...store import ROWS
from ..plan import Sm90Plan
from ..quantized.experts import weight_block
from ..quantized.warp_products import CHAINS
from .fused import Sm90FusedKernel


class Sm90QuantizedKernel(Sm90FusedKernel):
    """The production kernel with packed weights in place of A's tiles."""

    def maps_of_a(self, a: Int64, extents: Mapping[str, Int32], pitches: tuple[Int64, Int64]) -> list[bridge.TensorMap]:
        """Packed weights have no tensor map."""
        return []

    def kernel_words(self, words: Sequence[Int64], a: Int64, pitches: tuple[Int64, Int64]) -> Sequence[Int64]:
        """The epilogue's words, then the address of the packed weights."""
        return (*words, a)

    def job_of(
        self, shared: bridge.SharedMemory, place: tuple[Int32, ...], sizes: tuple[Int32, Int32, Int32],
        c: tuple[Int64, Int64, Int64], words: tuple[Int64, ...],
    ) -> bridge.Carried:  # fmt: skip
        """The same, with the packed weights and their units of a row block."""
        job = super().job_of(shared, place, sizes, c, words[:-1])
        return job.extended(packed=words[-1], units=tile_count(sizes[2], UNIT_K))

    def packed_copies(self, job: bridge.Carried, origin: Mapping[str, Int32]) -> list[tuple[int, BlockCopy]]:
        """(byte of the stage's row block, copy) of a K tile. Row blocks behind the last one are the last once more."""
        operand, last = self.plan.a, (job.m - 1) // UNIT_ROWS
        k_tile, found = Int64(origin["k"] // self.plan.tile[2]), []
        for number in range(operand.row_blocks):
            block = cutlass.min(origin["m"] // UNIT_ROWS + number, last)
            if self.plan.experts is not None:
                block = weight_block(job.m, origin["l"], block)
            copies = operand.block_copies(Int64(block), k_tile, Int64(job.units))
            found += [(number * operand.block_bytes, copy) for copy in copies]
        return found

    def load_packed(self, job: bridge.Carried, origin: Mapping[str, Int32], stage: Int32, full: cute.Pointer) -> None:
        """Copy A's K tile into its stage. Called by one thread."""
        for first, copy in self.packed_copies(job, origin):
            bridge.load_bytes(job.shared.a(stage) + (first + copy.target), job.packed + copy.source, copy.bytes, full)

    def first_loads(self, job: bridge.Carried, ahead: tuple[Int32, ...]) -> tuple[Int32 | Int64, ...]:
        """The bytes that a stage expects, then the addresses of the first K tile's units.

        Else about 80 instructions in a chain stand between the wait for the kernel before and the first copy. The
        compiler keeps uniform values above the wait where a prefetch takes the addresses, too.
        """
        plan, (_, m0, n0, matrix, *_, share) = self.plan, ahead
        if not plan.loads_once:
            return ()
        first = {"m": m0, "n": n0, "l": matrix, GATE: Int32(0), **self.place_of_k(job, share, Int32(0))}
        sent = bridge.uniform(plan.expected(first, job, choose))
        if plan.a.parts > 1:
            return (sent,)
        return sent, *[bridge.uniform_address(job.packed + copy.source) for _, copy in self.packed_copies(job, first)]

    @cute.jit
    def load_only(
        self, job: bridge.Carried, maps: Sequence[bridge.Maps], ahead: tuple[Int32, ...],
        ready: tuple[Int32 | Int64, ...],
    ) -> tuple[Int32, ...]:  # fmt: skip
        """Load all K tiles of the block's only tile, by one thread. Only the loader's warp calls it.

        The tile's place is the same in each turn, so what hangs on it is computed once. Addresses of whole units are
        carried: the thread issues a K tile in a chain of instructions, among those of four warpgroups.
        """
        plan = self.plan
        tile, m0, n0, matrix, _, stage, parity, backwards, share = ahead
        count, sources = self.count_k_tiles(job, share), ready[1:]
        if tile < job.tiles:
            if bridge.elect():
                place = {"m": m0, "n": n0, "l": matrix, GATE: Int32(0)}
                for k_tile in cutlass.range(count, unroll=1):
                    bridge.barrier_wait(job.shared.empty(stage), parity)
                    origin, full = {**place, **self.place_of_k(job, share, k_tile)}, job.shared.full(stage)
                    bridge.barrier_expect(full, ready[0])
                    if const_expr(plan.a.parts == 1):
                        self.load_units(job, sources, stage, full)
                        sources = tuple([source + Int64(plan.a.packing.unit_bytes) for source in sources])
                    else:
                        self.load_packed(job, origin, stage, full)
                    self.issue_mapped(job, maps, origin, stage)
                    stage, parity = bridge.next_in_ring(stage, parity, plan.stages)
            stage, parity = count % plan.stages, 1 - count // plan.stages % 2
        return tile + job.workers, m0, n0, matrix, Int32(0), stage, parity, backwards, share

    def load_units(self, job: bridge.Carried, sources: Sequence[Int64], stage: Int32, full: cute.Pointer) -> None:
        """Copy a unit of each row block, at those addresses, into a stage. Called by one thread."""
        operand = self.plan.a
        for number, source in enumerate(sources):
            bridge.load_bytes(job.shared.a(stage) + number * operand.block_bytes, source, operand.block_bytes, full)

    def prefetch_packed(self, job: bridge.Carried, origin: Mapping[str, Int32]) -> None:
        """Bring A's K tile into L2. Called by one thread."""
        for _, copy in self.packed_copies(job, origin):
            bridge.prefetch_bytes(job.packed + copy.source, copy.bytes)

    @cute.jit
    def consume(
        self, job: bridge.Carried, maps: Sequence[bridge.Maps], tile: Int32, consumer: Int32, thread: Int32,
        ahead: tuple[Int32, ...],
    ) -> None:  # fmt: skip
        """A consumer warpgroup: all its tiles, conversions, products and stores."""
        if const_expr(self.plan.products is not None):
            self.consume_by_warps(job, maps, tile, consumer, thread)
        elif const_expr(self.plan.sums_apart):
            self.consume_apart(job, maps, tile, consumer, thread, ahead)
        else:
            self.consume_by_warpgroup(job, maps, tile, consumer, thread, ahead)

    def slice_of(self, job: bridge.Carried, consumer: Int32) -> tuple[Int32, Int32, Int32, Int32]:
        """A consumer's first block of rows. Its first stage, with its parity; how many K tiles are its slice's."""
        rows, slice_ = self.plan.place_of_consumer(consumer)
        return rows * self.plan.blocks, Int32(slice_), Int32(0), self.plan.slice_of_k(job.k_tiles, slice_)

    @cute.jit
    def consume_by_warpgroup(
        self, job: bridge.Carried, maps: Sequence[bridge.Maps], tile: Int32, consumer: Int32, thread: Int32,
        ahead: tuple[Int32, ...],
    ) -> None:  # fmt: skip
        """Products by wgmma with A in registers."""
        plan = self.plan
        mma = RegisterWgmma(plan)
        accumulators = [mma.accumulator() for _ in range(plan.blocks)]
        first_block, stage, parity, mine = self.slice_of(job, consumer)
        b = bridge.WgmmaOperand(plan.b.descriptor, job.shared.b(0), plan.smem.b_stage_bytes)
        packed = PackedFragments(plan, first_block, thread)
        turns = plan.a.turns
        while tile < job.tiles:
            origin = self.origin(job, tile)
            before = stage
            for k_tile in cutlass.range(mine, unroll=1):
                stage = bridge.uniform(stage)
                bridge.barrier_wait(job.shared.full(stage), parity)
                if const_expr(turns == 1):
                    ahead = self.multiply_turn(
                        job, maps, (mma, accumulators, packed, b), (k_tile, 0, stage, before), ahead
                    )
                else:
                    for turn in cutlass.range(turns, unroll=1):
                        at = k_tile, bridge.uniform(turn), stage, before
                        ahead = self.multiply_turn(job, maps, (mma, accumulators, packed, b), at, ahead)
                before = stage
                stage, parity = bridge.next_in_ring(stage, parity, plan.stages, plan.config.slices)

            mma.wait(0)
            if const_expr(plan.config.sources > 1):
                if mine == 0:
                    for block in cutlass.range_constexpr(plan.blocks):
                        accumulators[block].fill(0)
            mma.settle(*accumulators)
            self.bring_together(job, accumulators, (consumer, thread))
            if const_expr(plan.drains or not plan.config.one_tile_per_cluster):
                if mine > 0:
                    self.release(job, before)
                if const_expr(plan.config.loader == "self"):
                    ahead = self.load_next(job, maps, ahead)
            self.store_tile(job, maps, accumulators, (consumer, thread, tile), origin)
            tile += job.workers
        self.end_tiles(job, ahead)

    @cute.jit
    def multiply_turn(
        self, job: bridge.Carried, maps: Sequence[bridge.Maps], products: tuple[Any, ...],
        at: tuple[Int32, Int32 | int, Int32, Int32], ahead: tuple[Int32, ...],
    ) -> tuple[Int32, ...]:  # fmt: skip
        """The products of a turn of a K tile. Behind the first ones the stage before is released.

        products  the instruction, accumulators, fragments of A, and B
        at        K tile, turn, stage, and the stage before
        """
        plan, (mma, accumulators, packed, b), (k_tile, turn, stage, before) = self.plan, products, at
        turns, of_turn = plan.a.turns, b.of_turn(turn, plan.a.turns)
        groups = plan.a.product_groups(plan.blocks) // turns
        each = plan.tile[2] // plan.a.packing.depth // groups // turns
        words = [packed.load(job.shared, stage, block, turn) for block in range(plan.blocks)]
        bridge.warp_sync()  # see `release`
        for group in cutlass.range_constexpr(groups):
            for block in cutlass.range_constexpr(plan.blocks):
                fragments = [packed.fragment(words[block], group * each + i) for i in range(each)]
                keep = True
                if const_expr(group == 0):
                    keep = k_tile > 0 if turns == 1 else (k_tile > 0) | (turn > 0)
                mma.multiply_fragments(accumulators[block], fragments, of_turn, stage, group * each, keep)
                mma.wait(1)
                if const_expr(group == 0 and block == 0):
                    if k_tile > 0 if turns == 1 else (k_tile > 0) & (turn == 0):
                        self.release(job, before)
                        if const_expr(plan.config.loader == "self"):
                            ahead = self.load_next(job, maps, ahead)
        return ahead

    @cute.jit
    def consume_apart(
        self, job: bridge.Carried, maps: Sequence[bridge.Maps], tile: Int32, consumer: Int32, thread: Int32,
        ahead: tuple[Int32, ...],
    ) -> None:  # fmt: skip
        """Products by wgmma, where each sum of K has registers of its own. Each is multiplied by its scale.

        The totals are float32.
        """
        plan = self.plan
        mma = RegisterWgmma(plan)
        first_block, stage, parity, mine = self.slice_of(job, consumer)
        products, totals = mma.accumulator(), [mma.accumulator() for _ in range(plan.blocks)]
        b = bridge.WgmmaOperand(plan.b.descriptor, job.shared.b(0), plan.smem.b_stage_bytes)
        packed = PackedFragments(plan, first_block, thread)
        scales = ScaledSums(plan)
        groups = plan.a.product_groups(plan.blocks)
        fragments = plan.tile[2] // plan.a.packing.depth // groups  # of a group
        parts = groups // plan.a.sums  # groups of a sum
        while tile < job.tiles:
            origin = self.origin(job, tile)
            before = stage
            products.fill(0)  # the sum before the first one
            scales.clear()
            for total in totals:
                total.fill(0)
            for k_tile in cutlass.range(mine, unroll=1):
                stage = bridge.uniform(stage)
                bridge.barrier_wait(job.shared.full(stage), parity)
                if const_expr(not plan.a.packing.converts):
                    mma.wait(0)  # the products that run read the registers that are loaded now
                words = [packed.load(job.shared, stage, block) for block in range(plan.blocks)]
                bridge.warp_sync()  # see `release`
                for group in cutlass.range_constexpr(plan.a.sums * plan.blocks * parts):
                    block, begins = group // parts % plan.blocks, group % parts == 0
                    number, part = group // (parts * plan.blocks), group % parts
                    first = (number * parts + part) * fragments
                    converted = [packed.fragment(words[block], first + i) for i in range(fragments)]
                    if const_expr(begins):
                        converted = held(converted)  # while the sum before still runs
                        mma.wait(0, products)
                        if const_expr(group == 0):
                            if k_tile > 0:
                                self.release(job, before)
                                if const_expr(plan.config.loader == "self"):
                                    ahead = self.load_next(job, maps, ahead)
                        scales.add(totals[(block - 1) % plan.blocks], products)
                        scales.take(packed, words[block], number)
                    mma.multiply_fragments(products, converted, b, stage, first, not begins)
                    mma.wait(1)
                before = stage
                stage, parity = bridge.next_in_ring(stage, parity, plan.stages, plan.config.slices)

            mma.wait(0, products)
            scales.add(totals[plan.blocks - 1], products)
            scales.finish(totals)
            self.bring_together(job, totals, (consumer, thread))
            if const_expr(plan.drains or not plan.config.one_tile_per_cluster):
                if mine > 0:
                    self.release(job, before)
                if const_expr(plan.config.loader == "self"):
                    ahead = self.load_next(job, maps, ahead)
            self.store_tile(job, maps, totals, (consumer, thread, tile), origin)
            tile += job.workers
        self.end_tiles(job, ahead)

    @cute.jit
    def consume_by_warps(
        self, job: bridge.Carried, maps: Sequence[bridge.Maps], tile: Int32, consumer: Int32, thread: Int32
    ) -> None:  # fmt: skip
        """Products by mma.sync: a stage is released when the warp has multiplied it."""
        plan = self.plan
        mma = WarpMultiply(plan, thread)
        first_block, stage, parity, mine = self.slice_of(job, consumer)
        accumulators = [mma.accumulator() for _ in range(plan.blocks)]
        packed = PackedFragments(plan, first_block, thread)
        while tile < job.tiles:
            origin = self.origin(job, tile)
            chains = [[mma.accumulator() for _ in range(plan.blocks)] for _ in range(CHAINS)]
            for chain in chains:
                for accumulator in chain:
                    accumulator.fill(0)
            for _ in cutlass.range(mine, unroll=1):
                stage = bridge.uniform(stage)
                bridge.barrier_wait(job.shared.full(stage), parity)
                words = [packed.load(job.shared, stage, block) for block in range(plan.blocks)]
                columns = mma.load(job.shared, stage)
                if const_expr(plan.sums_apart):
                    self.multiply_apart(mma, packed, words, columns, chains)
                else:
                    for number in cutlass.range_constexpr(plan.tile[2] // plan.a.packing.depth):
                        for block in cutlass.range_constexpr(plan.blocks):
                            a = packed.fragment(words[block], number)
                            mma.multiply(chains[number % CHAINS][block], a, columns, number)
                bridge.warp_sync()  # see `release`
                self.release(job, stage)
                stage, parity = bridge.next_in_ring(stage, parity, plan.stages, plan.config.slices)
            for block in cutlass.range_constexpr(plan.blocks):
                mma.add_up(accumulators[block], [chain[block] for chain in chains])
            if const_expr(plan.sums_apart):
                ScaledSums(plan).finish(accumulators)
            self.bring_together(job, accumulators, (consumer, thread))
            self.store_tile(job, maps, accumulators, (consumer, thread, tile), origin)
            tile += job.workers
        if const_expr(plan.store is not None):
            bridge.wait_stores_read(0)

    def multiply_apart(
        self, mma: WarpMultiply, packed: PackedFragments, words: Sequence[Words], columns: list[list[Int32]],
        chains: Sequence[Sequence[cute.Tensor]],
    ) -> None:  # fmt: skip
        """Add a K tile's sums, each multiplied by its scale, to the chains: mma.sync."""
        plan, sums = self.plan, self.plan.a.sums
        fragments = plan.tile[2] // plan.a.packing.depth // sums
        scales = ScaledSums(plan)
        for number in range(sums):
            for block in range(plan.blocks):
                products = mma.accumulator()
                products.fill(0)
                for i in range(number * fragments, (number + 1) * fragments):
                    mma.multiply(products, packed.fragment(words[block], i), columns, i)
                scales.take(packed, words[block], number)
                scales.add(chains[number % CHAINS][block], products)

    @cute.jit
    def store_tile(
        self, job: bridge.Carried, maps: Sequence[bridge.Maps], accumulators: Sequence[cute.Tensor],
        at: tuple[Int32, ...], origin: bridge.Place,
    ) -> None:  # fmt: skip
        """Store the warpgroup's share of a tile, piece by piece. Of a split K the own part."""
        plan, (m0, n0, matrix) = self.plan, origin
        rows, slice_ = plan.place_of_consumer(at[0])
        if const_expr(plan.config.slices > 1):
            if slice_ == 0:
                self.store_pieces(job, maps, accumulators, at, (m0 + rows * plan.blocks * ROWS, n0, matrix))
        else:
            self.store_pieces(job, maps, accumulators, at, (m0 + rows * plan.blocks * ROWS, n0, matrix))


Words = tuple[list[Int32], list[list[Int32]]]  # a thread's words of a block's K tile, and its scales by group


class WarpMultiply(bridge.Carried):
    """A lane's share of mma.sync products. The addresses of its rows of B, and the instruction.

    bases  the lane's bytes in a tile of B, as `WarpProducts.places` has them
    """

    def __init__(self, plan: Sm90Plan, thread: Int32):
        self.products, self.count = present(plan.products), plan.mma.accumulator_registers
        bases = {
            f"base{number}": self.products.byte(thread % WARP, 0, load)
            for number, (load,) in enumerate(self.products.places.bases)
        }
        super().__init__(**bases)

    def accumulator(self) -> Any:
        """Registers for a block of rows, as wgmma has them."""
        return cute.make_rmem_tensor(cute.make_layout(self.count), Float32)

    def load(self, shared: bridge.SharedMemory, stage: Int32) -> list[list[Int32]]:
        """The registers of every load of B's K tile."""
        places, tile = self.products.places, shared.b(stage)
        at = [places.of[(load,)] for load in range(self.products.loads)]
        return [load_matrices(tile + (getattr(self, f"base{base}") + further), 4) for base, further in at]

    def multiply(self, accumulator: cute.Tensor, a: Sequence[Int32], columns: list[list[Int32]], fragment: int) -> None:
        """accumulator += A's fragment of that number along K @ B, an mma.sync for each 8 columns."""
        atom = self.products.atom
        of_c, of_b = int(atom.registers("C")), int(atom.registers("B"))
        for column in range(self.products.blocks[0]):
            load, first = self.products.load_of(column, fragment)
            sums = [accumulator[of_c * column + v] for v in range(of_c)]
            found = multiply_warp(atom, a, columns[load][first : first + of_b], sums)
            for v, value in enumerate(found):
                accumulator[of_c * column + v] = value

    def add_up(self, accumulator: cute.Tensor, chains: Sequence[cute.Tensor]) -> None:
        """accumulator = the sum of the chains, in order."""
        for v in range(self.count):
            total = chains[0][v]
            for chain in chains[1:]:
                total = total + chain[v]
            accumulator[v] = total


class PackedFragments(bridge.Carried):
    """One thread's words of packed weights: the bytes that depend on the thread.

    first   byte of a stage at which the warpgroup's first unit begins
    vector  the thread's first 16 bytes in a unit
    scale   the bytes of its rows' scales in a unit

    Of a tile of strips each row block has a vector and a scale: a warp behind the last strip reads those of that one.
    """

    def __init__(self, plan: Sm90Plan, first_block: Int32, thread: Int32):
        self.plan, self.order = plan, plan.a.packing
        threads = [thread]
        if (strips := plan.a.strips) is not None:
            quarters = [strips.quarter_read(thread // WARP, first_block + i, cutlass.min) for i in range(plan.blocks)]
            threads = [thread % WARP + WARP * quarter for quarter in quarters]
        super().__init__(
            first=first_block * plan.a.block_bytes,
            vector=tuple([self.order.vector_bytes(each, 0) for each in threads]),
            scale=tuple([plan.a.code_bytes + self.order.scale_bytes(each, 0) for each in threads]),
        )

    @property
    def ops(self) -> DevicePairs:
        """The arithmetic of words."""
        return DevicePairs(self.order.activations)

    def load(self, shared: bridge.SharedMemory, stage: Int32, block: int, turn: Int32 | int = 0) -> Words:
        """The thread's words of a turn of one block, and its scales by group."""
        order, operand = self.order, self.plan.a
        unit = shared.a(stage) + (self.first + block * operand.block_bytes)
        vector, scale = [each[block % len(each)] for each in (self.vector, self.scale)]
        words: list[Int32] = []
        for at, count in operand.turn_words(turn):
            words += load_words(unit + (vector + at), count)
        scales = [load_words(unit + (scale + at), order.scale_words) for at in operand.turn_scales(turn)]
        return words, scales

    def fragment(self, held: Words, number: int) -> list[Int32]:
        """The registers of the K tile's fragment of that number along K."""
        order, operand, (words, scales) = self.order, self.plan.a, held
        rows: list[Int32] = []
        zeros: list[Int32] = []
        if scales and (not operand.scales_sums or order.format.zeros):
            rows, zeros = rows_of(order, scales[order.group_of(number)], self.ops)
            rows = [] if operand.scales_sums else rows
        return fragment(
            order, [words[word] for word in words_of(order, number)], rows, zeros, self.ops, operand.one_shift
        )

    def factors(self, held: Words, number: int) -> list[Float32]:
        """The float32 scales of the thread's two rows for a sum of the K tile.

        A bf16 is the upper half of its float32.
        """
        word, kind = held[1][number][0], self.order.target.scales
        if kind.name == "bf16":
            halves = self.ops.shifted(word, HALF), self.ops.select(word, 0xFFFF << HALF, self.ops.constant(0))
            values = bridge.as_floats(halves)
        else:
            values = [Int16(word >> (HALF * half)).bitcast(element_type(kind)).to(Float32) for half in range(2)]
        factor = self.order.factor
        return [value if factor == 1 else value * Float32(factor) for value in values]


class ScaledSums(bridge.Carried):
    """total += scale * sum, for the two rows of each of a thread's accumulators.

    scales  of the sum that runs; without groups a sum is added as it is
    """

    def __init__(self, plan: Sm90Plan):
        self.plan, self.grouped = plan, plan.a.groups > 0
        rows, _ = plan.mma.coords("C")(0, np.arange(plan.mma.accumulator_registers))
        self.rows = [int(row > 0) for row in np.broadcast_to(rows, plan.mma.accumulator_registers)]
        super().__init__(**({"scales": cute.make_rmem_tensor(cute.make_layout(2), Float32)} if self.grouped else {}))

    def clear(self) -> None:
        """Scales of 0, for the sum before the first one."""
        if self.grouped:
            self.scales.fill(0)

    def take(self, packed: PackedFragments, words: Words, number: int) -> None:
        """The scales of a sum that begins."""
        if self.grouped:
            for row, scale in enumerate(packed.factors(words, number)):
                self.scales[row] = scale

    def add(self, total: cute.Tensor, products: cute.Tensor) -> None:
        """Add the sum that has ended."""
        for v, row in enumerate(self.rows):
            if self.grouped:
                total[v] = multiply_add(products[v], self.scales[row], total[v])
            else:
                total[v] = total[v] + products[v]

    def finish(self, totals: Sequence[cute.Tensor]) -> None:
        """Multiply the totals by the number that the values were divided by."""
        factor = self.plan.a.total_factor
        for total in totals if factor != 1 else ():
            for v in range(len(self.rows)):
                total[v] = total[v] * Float32(factor)
