"""The NumPy executor of the streamed kernel. Slots, lines of x, fragments, mma.sync and sums, walked.

Bytes go where the plan's own copies and loads have them, so a wrong address or order gives a wrong result. Time is not
modelled: copies land when issued.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from ...atoms import MmaAtom, ldmatrix
from ...atoms.copy.base import VECTOR_BYTES, WARP
from ...checks.coverage import not_once
from ...errors import PlanError
from ...memo import memoized
from ..quantized.blocks import STRIP
from ..quantized.conversions import FusedPairs, NumpyPairs, values_of
from ..quantized.fragments import fragment, words_of
from ..quantized.order import WORDS
from .operands import StreamedRows
from .plan import BUFFERS, F32, StreamedPlan

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint32]
Floats = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
CLUSTERS = 3  # of the grid that is walked


def execute_streamed(
    plan: StreamedPlan, units: Bytes, x: np.ndarray, progress: Callable[[int, int], None] | None = None
) -> Floats:
    """C as values, (m, n), of the plan's output type.

    units     the packed weights' bytes
    x         raw bits of x, (n, k)
    progress  called with (clusters done, clusters in all)

    Raises PlanError if an element of C is not stored once.
    """
    times, c = np.zeros((plan.m, plan.n), np.int64), np.zeros((plan.m, plan.n), np.float32)
    split, bands, at_once = plan.config.split, plan.bands, plan.config.strips // plan.config.band
    memories, clusters = [_lines(plan, x, part) for part in range(split)], min(CLUSTERS, bands)
    for cluster in range(clusters):
        first, last = plan.share(cluster, clusters, bands)
        for start in range(first, last, at_once):
            count, buffer = min(at_once, last - start), (start - first) // at_once % BUFFERS
            summed = [_summed(plan, units, memories[part], (start, count), part) for part in range(split)]
            if split > 1:
                summed = _received(plan, summed, count, buffer)
            for part, found in enumerate(summed):
                _store(plan, found, (start, count), (part, buffer), c, times)
        if progress is not None:
            progress(cluster + 1, clusters)
    if wrong := not_once(times, "C[{}, {}] is stored {} times"):
        raise PlanError(wrong)
    return np.asarray(plan.c.dtype.decode(plan.c.dtype.encode(c)), np.float32)


def _lines(plan: StreamedPlan, x: np.ndarray, part: int) -> Bytes:
    """x in the shared memory of a cluster's block: 0xFF where no thread copies."""
    b, size = plan.b, plan.b.dtype.bytes
    memory = np.full(b.bytes, 0xFF, np.uint8)
    raw = np.zeros((b.rows, b.depth * plan.config.split * size), np.uint8)
    raw[: plan.n, : plan.k * size] = np.ascontiguousarray(x.reshape(plan.n, plan.k).astype(b.dtype.storage)).view(
        np.uint8
    )
    run = np.arange(VECTOR_BYTES)
    row, byte = (np.asarray(v) for v in b.chunk(np.arange(b.unit_chunks)))
    for warp in range(plan.config.warps):
        for turn in range(plan.turns):
            target = byte + int(plan.place_of(warp, turn)) * b.unit_step
            source = byte + int(plan.unit_of(warp, turn, part)) * b.unit_step
            memory[(np.asarray(b.byte(row, 0)) + target)[:, None] + run] = raw[row[:, None], source[:, None] + run]
    return memory


def _summed(plan: StreamedPlan, units: Bytes, memory: Bytes, bands: tuple[int, int], part: int) -> Floats:
    """The sums of a block's warps as they lie in shared memory."""
    sums = np.full(plan.smem.c_buffer_bytes // F32 * plan.config.strips, np.nan, np.float32)
    for done in range(bands[1]):
        for warp in range(plan.config.warps):
            _put(plan, sums, _band(plan, units, memory, bands[0] + done, (warp, part)), warp, done)
    return sums


def _band(plan: StreamedPlan, units: Bytes, memory: Bytes, band: int, who: tuple[int, int]) -> Floats:
    """A warp's sums of a band: (strip, lane, value). `who` is warp and part."""
    a, b, count = plan.a, plan.b, plan.mma.accumulator_registers
    total = np.zeros((a.band, WARP, count), np.float32)
    block, quarter = a.unit(band)
    for turn in range(plan.turns):
        unit, place = int(plan.unit_of(who[0], turn, who[1])), int(plan.place_of(who[0], turn))
        slot = np.zeros(a.slot_bytes, np.uint8)
        if unit < plan.units:
            slot = filled_slot(plan, units, (int(block) * plan.units + unit) * a.packing.unit_bytes, int(quarter))
        x = _fragments_of_x(plan, memory, place)
        for strip in range(a.band):
            piece = slot[strip * a.strip_bytes : (strip + 1) * a.strip_bytes]
            fragments, factors = strip_fragments(plan, piece), strip_scales(plan, piece)
            held = np.zeros((WARP, count), np.float32)
            for number in range(b.fragments):
                held += _product(plan, fragments[number], x[number])
                group = a.packing.group_of(number)
                if number == b.fragments - 1 or a.packing.group_of(number + 1) != group:
                    total[strip] += held * factors[group] if factors else held
                    held = np.zeros_like(held)
    return total


def filled_slot(plan: StreamedPlan, units: Bytes, first: int, quarter: int) -> Bytes:
    """A slot after its lanes' copies of a unit that begins at a byte. 0xFF where none of them wrote."""
    slot, lanes = np.full(plan.a.slot_bytes, 0xFF, np.uint8), np.arange(WARP)
    for source, target, size, count in plan.a.copies(lanes, quarter):
        run = np.arange(size)
        slot[np.asarray(target)[:count, None] + run] = units[first + np.asarray(source)[:count, None] + run]
    return slot


def strip_fragments(plan: StreamedPlan, slot: Bytes) -> Floats:
    """Values of a strip's bytes of a slot, divided and not scaled. The map is (fragment, lane, value)."""
    a, order, lanes, numbers = plan.a, plan.a.packing, np.arange(WARP), range(plan.b.fragments)
    ops = (FusedPairs if plan.fused else NumpyPairs)(order.target)
    words = [_word(slot, np.asarray(a.codes(lanes, v)) + 4 * w) for v in range(a.vectors) for w in range(WORDS)]
    taken = np.array([[words[w] for w in words_of(order, number)] for number in numbers])
    zeros: list[Words] = []
    if order.format.zeros:
        halves = np.array([_halves(plan, slot, order.group_of(number), 1) for number in numbers])
        zeros = [half | half << np.uint32(16) for half in halves.swapaxes(0, 1)]
    registers = fragment(order, list(taken.swapaxes(0, 1)), [], zeros, ops, plan.a.one_shift)
    return np.concatenate([values_of(register, order.target) for register in registers], axis=-1)


def _word(slot: Bytes, first: IntArray) -> Words:
    return np.ascontiguousarray(slot[first[:, None] + np.arange(4)]).view("<u4")[:, 0].astype(np.uint32)


def _halves(plan: StreamedPlan, slot: Bytes, group: int, number: int) -> list[Words]:
    """The 16-bit halves of each lane's word of a group: the scales of its two rows (0), or their zeros (1)."""
    word = _word(slot, plan.a.strip_codes + np.asarray(plan.a.numbers(np.arange(WARP), group)) + 4 * number)
    return [word & np.uint32(0xFFFF), word >> np.uint32(16)]


def strip_scales(plan: StreamedPlan, slot: Bytes) -> list[Floats]:
    """Factors of a lane's sums, for each group of a strip: (lane, value). [] without any."""
    found, kind = [], plan.a.packing.target.scales
    for group in range(plan.a.groups):
        rows = [np.asarray(kind.decode(half.astype(np.uint16)), np.float32) for half in _halves(plan, slot, group, 0)]
        found.append(np.stack([rows[row] for row in plan.rows_of_sums], axis=1))
    return found


@memoized(256)
def register_bytes(b: StreamedRows) -> IntArray:
    """The byte of x for each byte of a lane's registers. (load, lane, register, byte), of the first unit."""
    lanes, found = np.arange(WARP), []
    element = np.asarray(ldmatrix(4, element="u8").layout_dst.offsets(), np.int64).reshape(-1, WARP).T
    (base,) = b.places.bases
    for load in range(b.loads):
        first = np.asarray(b.line_byte(lanes, base[0], np.minimum)) + b.places.of[load,][1]
        rows = first[:, None] + np.arange(VECTOR_BYTES)
        found.append(rows[element // VECTOR_BYTES, element % VECTOR_BYTES].reshape(WARP, 4, 4))
    return np.stack(found)


def _fragments_of_x(plan: StreamedPlan, memory: Bytes, place: int) -> list[Floats]:
    """Values of each fragment of x in the block's unit at a place: (lane, value)."""
    b, found = plan.b, []
    places = register_bytes(b) + place * b.unit_step
    for number in range(b.fragments):
        load, first = b.load_of(number)
        raw = np.ascontiguousarray(memory[places[load, :, first : first + plan.mma.registers("B")]])
        found.append(np.asarray(b.dtype.decode(raw.reshape(WARP, -1).view(b.dtype.storage)), np.float32))
    return found


@memoized(64)
def _coordinates(mma: MmaAtom, operand: str, values: int) -> tuple[IntArray, IntArray]:
    """The row and the column of each of an operand's values: (lane, value)."""
    i, j = np.broadcast_arrays(*map(np.asarray, mma.coords(operand)(np.arange(WARP)[:, None], np.arange(values)[None])))
    return i, j


def _product(plan: StreamedPlan, a: Floats, b: Floats) -> Floats:
    """One mma.sync, each operand as the instruction's own map reads its registers."""
    m, n, k = plan.mma.shape_mnk
    left, right = np.zeros((m, k), np.float32), np.zeros((n, k), np.float32)
    left[_coordinates(plan.mma, "A", a.shape[1])] = a
    right[_coordinates(plan.mma, "B", b.shape[1])] = b
    whole = left.astype(np.float64) @ right.T.astype(np.float64)
    return np.asarray(whole[_coordinates(plan.mma, "C", plan.mma.accumulator_registers)], np.float32)


def _put(plan: StreamedPlan, sums: Floats, held: Floats, warp: int, band: int) -> None:
    """A warp's sums of a band to where the block adds them."""
    i, j = _coordinates(plan.mma, "C", held.shape[-1])
    inside = j < plan.b.rows
    for strip in range(plan.a.band):
        at = np.asarray(plan.sums(i[inside], j[inside], warp, band * plan.a.band + strip))
        sums[at] = held[strip][inside]


def _elements(plan: StreamedPlan, strips: int, rows: int) -> Iterator[tuple[IntArray, IntArray]]:
    """(rows of strips, columns) of all threads' elements of `strips` strips, value by value."""
    for value in range(plan.values_of(strips)):
        row, column = np.broadcast_arrays(
            *(np.asarray(v) for v in plan.coords_C(np.arange(plan.threads), value))
        )  # fmt: skip
        inside = (row < rows) & (column < plan.n)
        yield row[inside], column[inside]


def _added(plan: StreamedPlan, sums: Floats, row: IntArray, column: IntArray) -> Floats:
    """The warps' sums of elements, in their order."""
    total = np.zeros(row.shape, np.float32)
    for warp in range(plan.config.warps):
        total += sums[np.asarray(plan.sums(row % STRIP, column, warp, row // STRIP))]
    return total * np.float32(plan.a.total_factor)


def _received(plan: StreamedPlan, summed: list[Floats], count: int, buffer: int) -> list[Floats]:
    """The sums that each block of a cluster received: NaN where no thread sent."""
    split, own = plan.config.split, plan.own_strips
    found = [np.full(plan.smem.received_bytes // F32, np.nan, np.float32) for _ in range(split)]
    for part, sums in enumerate(summed):
        for row, column in _elements(plan, plan.config.strips, count * plan.a.band * STRIP):
            values, strip = _added(plan, sums, row, column), row // STRIP
            place = np.asarray(plan.received(row % STRIP, column, part, strip % own, buffer))
            for receiver in range(split):
                mine = strip // own == receiver
                found[receiver][place[mine]] = values[mine]
    return found


def _store(
    plan: StreamedPlan, found: Floats, bands: tuple[int, int], where: tuple[int, int], c: Floats, times: IntArray
) -> None:  # fmt: skip
    """The elements of C that a block of a cluster stores. `where` is its number, and the buffer."""
    own, high, (part, buffer) = plan.own_strips * STRIP, plan.a.band * STRIP, where
    limit, first = min(plan.m, sum(bands) * high), bands[0] * high + part * own
    for row, column in _elements(plan, plan.own_strips, min(own, limit - first)):
        if plan.config.split == 1:
            total = _added(plan, found, row, column)
        else:
            total = np.zeros(row.shape, np.float32)
            for other in range(plan.config.split):
                total += found[np.asarray(plan.received(row % STRIP, column, other, row // STRIP, buffer))]
        c[first + row, column] = total
        np.add.at(times, (first + row, column), 1)
