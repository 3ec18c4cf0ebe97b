"""The kernel that quantises: see `fp8.plan` for its tiles and its arithmetic.

kernel      x         a thread
--------    -------   -----------------------------------------------------------------------------------------------
LineTiles   "row"     loads its vectors, all at once; maxima by shuffles, of squares through shared memory; stores
RowTiles    "row"     the same of a whole row, in two loops over it
Transposed  "col"     loads neighbouring lines; maxima of columns through shared memory; words of four values through
                      shared memory, so that a warp stores 128 bytes of a row
BothWays    "col"     the same, and the maxima of lines by shuffles; stores its vectors of lines too

All wait for the kernel before them, and let the next one begin at once: it waits for all that these write. A launch has
the tiles of one tensor, or of several.
"""

from __future__ import annotations

from collections.abc import Sequence

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64, const_expr

from ....atoms.copy.base import WARP
from ....dtypes import dtype, f32
from ...dsl import bridge
from ...dsl import math as element
from ...dsl.fp8 import four_values, load_bytes, magnitude, store_words
from ...dsl.tables import load_word_shared
from ...plan import tile_count
from ..plan import BLOCK, LEAST, THREADS, BothWaysPlan, JoinedPlan, QuantizePlan

_WARPS = THREADS // WARP
_largest = element.ElementMath.largest


class QuantizeKernel:
    """The common part of all four: loads, scales and stores."""

    def __init__(self, plan: QuantizePlan):
        self.plan, self.values = plan, dtype(plan.values)

    def tiles(self, m: Int32, k: Int32) -> Int32:
        """CTAs of a matrix."""
        raise NotImplementedError

    def run_tile(self, given: tuple, thread: Int32, block: Int32, tiles: Int32, shared: Int32) -> None:
        """Device side: a CTA's tile. `given` are the plan's parameters, `tiles` those of a matrix."""
        matrix, tile = element.parts_of(block, tiles)
        job = self.job(given, matrix)
        bridge.wait_for_previous_kernel()
        bridge.allow_next_kernel()
        self.run(job, thread, tile, shared)

    @cute.jit
    def run_between(
        self, given: tuple, thread: Int32, block: Int32, tiles: Int32, shared: Int32, first: Int32, end: Int32
    ) -> None:
        """The same for the CTAs from `first` to `end`; nothing for others."""
        if (block >= first) & (block < end):
            self.run_tile(given, thread, block - first, tiles, shared)

    def job(self, given: tuple, matrix: Int32) -> bridge.Carried:
        """The arguments for one matrix of the batch."""
        x, values, scales, m, k, _, ldx, stride_x, ldv, stride_v, scale_m, scale_k, stride_s = given
        return bridge.Carried(
            x=x + Int64(matrix) * stride_x * self.plan.x.bytes, values=values + Int64(matrix) * stride_v,
            scales=scales + Int64(matrix) * stride_s * f32.bytes, m=m, k=k, ldx=ldx, ldv=ldv, scale_m=scale_m,
            scale_k=scale_k,
        )  # fmt: skip

    def run(self, job: bridge.Carried, thread: Int32, tile: Int32, shared: Int32) -> None:
        """One tile."""
        raise NotImplementedError

    def load(self, job: bridge.Carried, line: Int32, place: Int32, room: Int32) -> list[Float32]:
        """A thread's vector at a place of a line of x; `room` elements are inside."""
        plan = self.plan
        size, count = plan.x.bytes, plan.access // plan.x.bytes  # of an access
        address = job.x + (Int64(line) * job.ldx + place) * size
        words: list[Int32] = []
        for first in range(0, plan.vector, count):
            words += load_bytes(address + first * size, room > first, plan.access)
        if plan.access < 4:  # two halves are a word
            words = [words[i] | words[i + 1] << 16 for i in range(0, len(words), 2)]
        return [value for word in words for value in bridge.floats_of(word, plan.x)]

    @staticmethod
    def amax(values: Sequence[Float32]) -> Float32:
        """The largest magnitude of a thread's values, NaN where one is."""
        found = magnitude(values[0])
        for value in values[1:]:
            found = _largest(found, magnitude(value))
        return found

    @staticmethod
    def across(found: Float32, lanes: int, least: int = 1) -> Float32:
        """The largest of `lanes` neighbouring lanes; of every `least`-th of them."""
        distance = lanes // 2
        while distance >= least:
            found = _largest(found, cute.arch.shuffle_sync_bfly(found, distance))
            distance //= 2
        return found

    def across_warps(self, shared: Int32, thread: Int32, found: Float32) -> Float32:
        """The largest of all lanes of the CTA."""
        bridge.store_shared(shared + thread // WARP * 4, [found])  # the same from all lanes
        bridge.block_sync()
        found = Float32(0.0)
        for warp in range(_WARPS):
            found = _largest(found, _number(shared + warp * 4))
        return found

    def scaled(self, amax: Float32) -> tuple[Float32, Float32]:
        """The scale, and the factor of the values."""
        amax = _largest(amax, LEAST)
        scale = element.divided(amax, self.plan.most)
        if not self.plan.powers:
            return scale, element.divided(1.0, amax) * self.plan.most
        bits = scale.bitcast(Int32)
        power = ((bits + 0x7FFFFF) & Int32(-0x800000)).bitcast(Float32)  # the exponent above, but for powers
        scale = element.ElementMath.where(scale == scale, power, scale)
        return scale, element.divided(1.0, scale)

    def words_of(self, values: Sequence[Float32], inverse: Float32 | Sequence[Float32]) -> list[Int32]:
        """Values times their inverses, as words of four."""
        each = [inverse] * len(values) if isinstance(inverse, Float32) else inverse
        scaled = [value * factor for value, factor in zip(values, each, strict=True)]
        return [four_values(scaled[i : i + 4], self.values) for i in range(0, len(values), 4)]

    def store_scale(self, job: bridge.Carried, group: Int32, k_block: Int32, scale: Float32, inside: Boolean) -> None:
        """One scale."""
        offset = Int64(group) * job.scale_m + Int64(k_block) * job.scale_k
        element.store_value(job.scales + offset * f32.bytes, scale, f32, inside)


class LineTiles(QuantizeKernel):
    """Blocks of 1x128, or squares, of rows."""

    def tiles(self, m: Int32, k: Int32) -> Int32:
        """CTAs of a matrix."""
        blocks = tile_count(k, BLOCK)
        return tile_count(m * blocks, self.plan.lines) if self.plan.group == 1 else tile_count(m, BLOCK) * blocks

    def run(self, job: bridge.Carried, thread: Int32, tile: Int32, shared: Int32) -> None:
        """Load all lines, find the maxima, store."""
        plan = self.plan
        places = self.places(job, thread, tile)
        held = [self.load_line(job, place) for place in places]
        found = [self.amax(values) for values in held]
        leads = thread % plan.lanes == 0
        if plan.group == 1:
            for (row, k_block, column, room), values, own in zip(places, held, found, strict=True):
                scale, inverse = self.scaled(self.across(own, plan.lanes))
                self.store_scale(job, row, k_block, scale, leads & (room > 0))
                self.store_line(job, (row, k_block, column, room), self.words_of(values, inverse))
            return
        most = found[0]
        for own in found[1:]:
            most = _largest(most, own)
        scale, inverse = self.scaled(self.across_warps(shared, thread, self.across(most, WARP)))
        row, k_block, _, _ = places[0]
        self.store_scale(job, row // BLOCK, k_block, scale, thread == 0)
        for place, values in zip(places, held, strict=True):
            self.store_line(job, place, self.words_of(values, inverse))

    def places(self, job: bridge.Carried, thread: Int32, tile: Int32) -> list[tuple[Int32, Int32, Int32, Int32]]:
        """Row, K block, first column, and how many columns are inside. They are of each of a thread's lines.

        The lines of a tile of blocks are numbered along rows. So the next of a thread's, 32 further, is as many rows
        and K blocks on for all threads, and at most one row more.
        """
        plan = self.plan
        blocks = tile_count(job.k, BLOCK)
        first = plan.tile(thread, 0)
        step = plan.tile(0, plan.vector * plan.vectors) // BLOCK
        if plan.group == 1:
            row, k_block = element.parts_of(tile * plan.lines + first // BLOCK, blocks)
            rows, across = element.parts_of(Int32(step), blocks)
        else:
            square, k_block = element.parts_of(tile, blocks)
            row, rows, across = square * BLOCK + first // BLOCK, Int32(step), Int32(0)
        found = []
        for number in range(plan.passes):
            if number:
                row, k_block = row + rows, k_block + across
                if plan.group == 1:
                    over = k_block >= blocks
                    row = element.ElementMath.where(over, row + 1, row)
                    k_block = element.ElementMath.where(over, k_block - blocks, k_block)
            column = k_block * BLOCK + first % BLOCK
            found.append((row, k_block, column, element.ElementMath.where(row < job.m, job.k - column, Int32(0))))
        return found

    def load_line(self, job: bridge.Carried, place: tuple[Int32, Int32, Int32, Int32]) -> list[Float32]:
        """A thread's vectors of a line."""
        row, _, column, room = place
        step = self.plan.lanes * self.plan.vector
        parts = [self.load(job, row, column + i * step, room - i * step) for i in range(self.plan.vectors)]
        return [value for part in parts for value in part]

    def store_line(
        self, job: bridge.Carried, place: tuple[Int32, Int32, Int32, Int32], words: Sequence[Int32]
    ) -> None:  # fmt: skip
        """A thread's values of a line."""
        row, _, column, room = place
        step, each = self.plan.lanes * self.plan.vector, self.plan.vector // 4
        for i in range(self.plan.vectors):
            self.store(job, row, column + i * step, words[i * each : (i + 1) * each], room - i * step)

    def store(self, job: bridge.Carried, row: Int32, column: Int32, words: Sequence[Int32], room: Int32) -> None:
        """A vector of values; rows are as long as whole vectors."""
        store_words(job.values + Int64(row) * job.ldv + column, words, room > 0)


class RowTiles(LineTiles):
    """A scale of each row."""

    def tiles(self, m: Int32, k: Int32) -> Int32:
        """CTAs of a matrix."""
        return m

    @cute.jit
    def run(self, job: bridge.Carried, thread: Int32, tile: Int32, shared: Int32) -> None:
        """The row's maximum, then its values."""
        vector = self.plan.vector
        vectors = tile_count(job.k, vector)
        found = Float32(0.0)
        for number in cutlass.range(thread, vectors, THREADS, unroll=4):
            at = number * vector
            found = _largest(found, self.amax(self.load(job, tile, at, job.k - at)))
        scale, inverse = self.scaled(self.across_warps(shared, thread, self.across(found, WARP)))
        self.store_scale(job, tile, Int32(0), scale, thread == 0)
        for number in cutlass.range(thread, vectors, THREADS, unroll=4):
            at = number * vector
            values = self.load(job, tile, at, job.k - at)
            self.store(job, tile, at, self.words_of(values, inverse), job.k - at)


class Transposed(QuantizeKernel):
    """Tiles of 128x128 whose rows are not contiguous in x."""

    def tiles(self, m: Int32, k: Int32) -> Int32:
        """CTAs of a matrix."""
        return tile_count(m, BLOCK) * tile_count(k, BLOCK)

    def run(self, job: bridge.Carried, thread: Int32, tile: Int32, shared: Int32) -> None:
        """Load all lines, find the maxima, store through shared memory."""
        plan = self.plan
        k_block, down = element.parts_of(tile, tile_count(job.m, BLOCK))  # neighbouring CTAs read neighbours of a line
        row0 = down * BLOCK
        first = plan.tile(thread, 0)
        row, line = row0 + first % BLOCK, first // BLOCK
        held = []
        for number in range(plan.passes):
            at = k_block * BLOCK + line + number
            room = element.ElementMath.where(at < job.k, job.m - row, Int32(0))
            held.append(self.load(job, at, row, room))
        self.store_lines(job, thread, held, (k_block * BLOCK + line, row, down))
        own = [self.amax([values[i] for values in held]) for i in range(plan.vector)]
        words = shared + (_WARPS + 1) * BLOCK * 4
        if plan.group == 1:
            inverses: list[Float32] = self.of_rows(job, thread, shared, own, row0, k_block)
        else:
            most = self.across_warps(shared, thread, self.across(self.amax(own), WARP))
            scale, inverse = self.scaled(most)
            self.store_scale(job, row0 // BLOCK, k_block, scale, thread == 0)
            inverses = [inverse] * plan.vector
        for i, inverse in enumerate(inverses):
            made = self.words_of([values[i] for values in held], inverse)
            for number, word in enumerate(made):
                at = plan.words(first % BLOCK + i, line // 4 + number)
                bridge.store_shared(words + at * 4, [word])
        bridge.block_sync()
        self.store_rows(job, thread, words, row0, k_block)

    def store_lines(
        self, job: bridge.Carried, thread: Int32, held: Sequence[Sequence[Float32]], place: tuple[Int32, Int32, Int32]
    ) -> None:
        """Store the lines themselves; here they are not wanted."""

    def of_rows(
        self, job: bridge.Carried, thread: Int32, shared: Int32, own: Sequence[Float32], row0: Int32, k_block: Int32
    ) -> list[Float32]:
        """Scales of 1x128: the inverses of a thread's rows."""
        plan = self.plan
        own = [self.across(value, WARP, plan.lanes) for value in own]
        place = plan.tile(thread, 0) % BLOCK
        for i, value in enumerate(own):  # lanes of one place have the same
            bridge.store_shared(shared + (thread // WARP * BLOCK + place + i) * 4, [value])
        bridge.block_sync()
        row = thread % BLOCK
        found = Float32(0.0)
        for warp in range(_WARPS):
            found = _largest(found, _number(shared + (warp * BLOCK + row) * 4))
        scale, inverse = self.scaled(found)
        self.store_scale(job, row0 + row, k_block, scale, (thread < BLOCK) & (row0 + row < job.m))
        inverses = shared + _WARPS * BLOCK * 4
        _store_first(thread, inverses + row * 4, inverse)
        bridge.block_sync()
        return [_number(inverses + (place + i) * 4) for i in range(plan.vector)]

    def store_rows(self, job: bridge.Carried, thread: Int32, words: Int32, row0: Int32, k_block: Int32) -> None:
        """Each warp stores rows of 128 values, a word a lane."""
        lane, warp = thread % WARP, thread // WARP
        column = k_block * BLOCK + lane * 4
        for number in range(BLOCK // _WARPS):
            row = warp + number * _WARPS
            word = load_word_shared(words + self.plan.words(row, lane) * 4)
            address = job.values + Int64(row0 + row) * job.ldv + column
            store_words(address, [word], (row0 + row < job.m) & (column < job.k))


class BothWays(Transposed):
    """The same tiles, whose lines are quantised too."""

    def job(self, given: tuple, matrix: Int32) -> bridge.Carried:
        """The arguments of columns, and of lines."""
        line_values, line_scales, ldl, stride_l, line_m, line_k, stride_ls = given[13:]
        return QuantizeKernel.job(self, given[:13], matrix).extended(
            line_values=line_values + Int64(matrix) * stride_l,
            line_scales=line_scales + Int64(matrix) * stride_ls * f32.bytes, ldl=ldl, line_m=line_m, line_k=line_k,
        )  # fmt: skip

    def store_lines(
        self, job: bridge.Carried, thread: Int32, held: Sequence[Sequence[Float32]], place: tuple[Int32, Int32, Int32]
    ) -> None:
        """Each line's scale and values, from the registers of the lanes that loaded it.

        place  the first line, the first element of the thread's vectors, and the block of 128 elements
        """
        first, start, block = place
        lane, leader = thread % self.plan.lanes, thread % WARP // self.plan.lanes * self.plan.lanes
        maxima = [self.across(self.amax(values), self.plan.lanes) for values in held]
        own = maxima[0]
        for number, found in enumerate(maxima):  # each lane divides for one line
            own = element.ElementMath.where(lane == number, found, own)
        scale, inverse = self.scaled(own)
        at = Int64(first + lane) * job.line_m + Int64(block) * job.line_k
        mine = (lane < len(held)) & (first + lane < job.k)
        element.store_value(job.line_scales + at * f32.bytes, scale, f32, mine)
        for number, values in enumerate(held):
            line, factor = first + number, cute.arch.shuffle_sync(inverse, leader + number)
            address = job.line_values + Int64(line) * job.ldl + start
            store_words(address, self.words_of(values, factor), (line < job.k) & (start < job.m))


@cute.jit
def _store_first(thread: Int32, address: Int32, value: Float32) -> None:
    """Store a row's number, by the first of the two threads that have it."""
    if thread < BLOCK:
        bridge.store_shared(address, [value])


def _number(address: Int32) -> Float32:
    """A number in shared memory."""
    return bridge.as_floats([load_word_shared(address)])[0]


class QuantizeLaunch:
    """A launch with a CTA for each tile of one tensor, or of several."""

    def __init__(self, parts: Sequence[QuantizeKernel]):
        self.parts = parts
        self.shared_bytes = max(part.plan.shared_bytes for part in parts)

    @cute.jit
    def __call__(self, *given: object) -> None:
        """Host side: the parameters of each plan, one plan's behind the other's, and the stream."""
        self.launch(given[:-1], given[-1])

    def launch(self, given: Sequence, stream: bridge.Stream) -> None:
        """Host side: the CTAs of each tensor behind those of the one before."""
        own: list[tuple] = []
        tiles: list[Int32] = []
        ends: list[Int32] = []
        for part in self.parts:
            names, first = list(part.plan.parameters), sum(map(len, own))
            own.append(tuple(given[first : first + len(names)]))
            m, k, batch = (own[-1][names.index(name)] for name in ("m", "k", "batch"))
            tiles.append(part.tiles(m, k))
            ends.append(tiles[-1] * batch + (ends[-1] if ends else Int32(0)))
        self.kernel(tuple(own), tuple(tiles), tuple(ends)).launch(
            grid=(ends[-1], 1, 1), block=(THREADS, 1, 1), smem=self.shared_bytes, use_pdl=True, stream=stream
        )

    @cute.kernel
    def kernel(self, given: tuple, tiles: tuple, ends: tuple) -> None:
        """Device side."""
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        shared = Int32(0)
        if const_expr(self.shared_bytes > 0):
            shared = cutlass.memory.SmemAllocator().allocate(self.shared_bytes, 16).toint()
        self.run(given, tiles, ends, (thread, block, shared))

    def run(self, given: tuple, tiles: tuple, ends: tuple, place: tuple[Int32, Int32, Int32]) -> None:
        """The tile of the CTA that is `place`: its thread, block and shared memory."""
        thread, block, shared = place
        if len(self.parts) == 1:
            self.parts[0].run_tile(given[0], thread, block, tiles[0], shared)
            return
        first = Int32(0)
        for part, own, count, end in zip(self.parts, given, tiles, ends, strict=True):
            part.run_between(own, thread, block, count, shared, first, end)
            first = end


def kernel_of(plan: QuantizePlan | JoinedPlan) -> QuantizeLaunch:
    """The kernel of a plan."""
    return QuantizeLaunch([_part_of(part) for part in (plan.parts if isinstance(plan, JoinedPlan) else (plan,))])


def _part_of(plan: QuantizePlan) -> QuantizeKernel:
    if isinstance(plan, BothWaysPlan):
        return BothWays(plan)
    kind = Transposed if plan.order == "col" else LineTiles if plan.group else RowTiles
    return kind(plan)
