"""The NumPy executor of the streamed kernel: slots, lines of x, fragments, mma.sync and the warps' sums, walked.

Bytes go where the plan's own copies and loads have them, so a wrong address or order gives a wrong result. Time is not
modelled: copies land when issued.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ...atoms import ldmatrix
from ...atoms.copy.base import WARP
from ...errors import PlanError
from ...memo import memoized
from ..quantized.blocks import STRIP
from ..quantized.conversions import FusedPairs, NumpyPairs, values_of
from ..quantized.fragments import fragment, words_of
from ..quantized.order import VECTOR_BYTES, WORDS
from .operands import StreamedRows
from .plan import StreamedPlan

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint32]
Floats = npt.NDArray[np.float32]
BLOCKS = 3  # of the grid that is walked


def execute_streamed(
    plan: StreamedPlan, units: Bytes, x: np.ndarray, progress: Callable[[int, int], None] | None = None
) -> Floats:
    """C as values, (m, n), of the plan's output type.

    units     the packed weights' bytes
    x         raw bits of x, (n, k)
    progress  called with (blocks done, blocks in all)

    Raises PlanError if an element of C is not stored once.
    """
    times, c = np.zeros((plan.m, plan.n), np.int64), np.zeros((plan.m, plan.n), np.float32)
    memory, strips = _lines(plan, x), plan.tiles[0]
    blocks = min(BLOCKS, strips)
    for block in range(blocks):
        first, last = plan.share(block, blocks, strips)
        for start in range(first, last, plan.config.strips):
            count = min(plan.config.strips, last - start)
            sums = np.full(plan.smem.c_buffer_bytes // 4 * plan.config.strips, np.nan, np.float32)
            for done in range(count):
                for warp in range(plan.config.warps):
                    _put(plan, sums, _strip(plan, units, memory, start + done, warp), warp, done)
            _store(plan, sums, (start, count), c, times)
        if progress is not None:
            progress(block + 1, blocks)
    if (times != 1).any():
        i, j = (int(v) for v in np.argwhere(times != 1)[0])
        raise PlanError(f"C[{i}, {j}] is stored {times[i, j]} times")
    return np.asarray(plan.c.dtype.decode(plan.c.dtype.encode(c)), np.float32)


def _lines(plan: StreamedPlan, x: np.ndarray) -> Bytes:
    """x in shared memory: 0xFF where no thread copies."""
    b, size = plan.b, plan.b.dtype.bytes
    memory = np.full(b.bytes, 0xFF, np.uint8)
    raw = np.zeros((b.rows, b.depth * size), np.uint8)
    raw[: plan.n, : plan.k * size] = np.ascontiguousarray(x.reshape(plan.n, plan.k).astype(b.dtype.storage)).view(
        np.uint8
    )
    run = np.arange(VECTOR_BYTES)
    row, byte = (np.asarray(v) for v in b.chunk(np.arange(b.unit_chunks)))
    for unit in range(b.depth * size // b.unit_step):
        at = byte + unit * b.unit_step
        memory[(np.asarray(b.byte(row, 0)) + at)[:, None] + run] = raw[row[:, None], at[:, None] + run]
    return memory


def _strip(plan: StreamedPlan, units: Bytes, memory: Bytes, strip: int, warp: int) -> Floats:
    """A warp's sums of a strip: (lane, value)."""
    total = np.zeros((WARP, plan.mma.accumulator_registers), np.float32)
    block, quarter = plan.a.unit(strip)
    for turn in range(plan.turns):
        unit = int(plan.unit_of(warp, turn))
        slot = np.zeros(plan.a.slot_bytes, np.uint8)
        if unit < plan.units:
            slot = filled_slot(plan, units, (int(block) * plan.units + unit) * plan.a.packing.unit_bytes, int(quarter))
        a, factors = slot_fragments(plan, slot), slot_scales(plan, slot)
        b, held = _fragments_of_x(plan, memory, unit), np.zeros_like(total)
        for number in range(plan.b.fragments):
            held += _product(plan, a[number], b[number])
            group = plan.a.packing.group_of(number)
            if number == plan.b.fragments - 1 or plan.a.packing.group_of(number + 1) != group:
                total += held * factors[group] if factors else held
                held = np.zeros_like(total)
    return total


def filled_slot(plan: StreamedPlan, units: Bytes, first: int, quarter: int) -> Bytes:
    """A slot after its lanes' copies of a unit that begins at a byte: 0xFF where none of them wrote."""
    slot, lanes = np.full(plan.a.slot_bytes, 0xFF, np.uint8), np.arange(WARP)
    for source, target, size in plan.a.copies(lanes, quarter):
        run = np.arange(size)
        slot[np.asarray(target)[:, None] + run] = units[first + np.asarray(source)[:, None] + run]
    return slot


def slot_fragments(plan: StreamedPlan, slot: Bytes) -> list[Floats]:
    """Values of each fragment of a slot's unit, not scaled: (lane, value)."""
    a, order, lanes = plan.a, plan.a.packing, np.arange(WARP)
    ops = (FusedPairs if plan.fused else NumpyPairs)(order.target)
    words = [_word(slot, np.asarray(a.codes(lanes, v)) + 4 * w) for v in range(a.vectors) for w in range(WORDS)]
    found = []
    for number in range(plan.b.fragments):
        zeros = _halves(plan, slot, order.group_of(number), 1) if order.format.zeros else []
        twice = [half | half << np.uint32(16) for half in zeros]
        registers = fragment(order, [words[w] for w in words_of(order, number)], [], twice, ops)
        found.append(np.concatenate([values_of(register, order.target) for register in registers], axis=1))
    return found


def _word(slot: Bytes, first: npt.NDArray[np.int64]) -> Words:
    return np.ascontiguousarray(slot[first[:, None] + np.arange(4)]).view("<u4")[:, 0].astype(np.uint32)


def _halves(plan: StreamedPlan, slot: Bytes, group: int, number: int) -> list[Words]:
    """The 16-bit halves of each lane's word of a group: the scales of its two rows (0), or their zeros (1)."""
    word = _word(slot, plan.a.slot_codes + np.asarray(plan.a.numbers(np.arange(WARP), group)) + 4 * number)
    return [word & np.uint32(0xFFFF), word >> np.uint32(16)]


def slot_scales(plan: StreamedPlan, slot: Bytes) -> list[Floats]:
    """The factor of each of a lane's sums, for each group of a slot's unit: (lane, value); [] without any."""
    found, kind = [], plan.a.packing.target.scales
    for group in range(plan.a.groups):
        rows = [np.asarray(kind.decode(half.astype(np.uint16)), np.float32) for half in _halves(plan, slot, group, 0)]
        found.append(np.stack([rows[row] for row in plan.rows_of_sums], axis=1))
    return found


@memoized(256)
def register_bytes(b: StreamedRows) -> npt.NDArray[np.int64]:
    """The byte of x for each byte of a lane's registers: (load, lane, register, byte), of the first unit."""
    lanes, found = np.arange(WARP), []
    element = np.asarray(ldmatrix(4, element="u8").layout_dst.offsets(), np.int64).reshape(-1, WARP).T
    (base,) = b.places.bases
    for load in range(b.loads):
        first = np.asarray(b.line_byte(lanes, base[0], np.minimum)) + b.places.of[load,][1]
        rows = first[:, None] + np.arange(VECTOR_BYTES)
        found.append(rows[element // VECTOR_BYTES, element % VECTOR_BYTES].reshape(WARP, 4, 4))
    return np.stack(found)


def _fragments_of_x(plan: StreamedPlan, memory: Bytes, unit: int) -> list[Floats]:
    """Values of each fragment of x in a unit: (lane, value)."""
    b, found = plan.b, []
    places = register_bytes(b) + unit * b.unit_step
    for number in range(b.fragments):
        load, first = b.load_of(number)
        raw = np.ascontiguousarray(memory[places[load, :, first : first + plan.mma.registers("B")]])
        found.append(np.asarray(b.dtype.decode(raw.reshape(WARP, -1).view(b.dtype.storage)), np.float32))
    return found


def _product(plan: StreamedPlan, a: Floats, b: Floats) -> Floats:
    """One mma.sync, each operand as the instruction's own map reads its registers."""
    m, n, k = plan.mma.shape_mnk
    lanes = np.arange(WARP)[:, None]
    left, right = np.zeros((m, k), np.float32), np.zeros((n, k), np.float32)
    left[plan.mma.coords("A")(lanes, np.arange(a.shape[1])[None, :])] = a
    right[plan.mma.coords("B")(lanes, np.arange(b.shape[1])[None, :])] = b
    whole = left.astype(np.float64) @ right.T.astype(np.float64)
    i, j = plan.mma.coords("C")(lanes, np.arange(plan.mma.accumulator_registers)[None, :])
    return np.asarray(whole[i, j], np.float32)


def _put(plan: StreamedPlan, sums: Floats, held: Floats, warp: int, strip: int) -> None:
    """A warp's sums to where the block adds them."""
    i, j = plan.mma.coords("C")(np.arange(WARP)[:, None], np.arange(held.shape[1])[None, :])
    i, j = np.broadcast_arrays(np.asarray(i), np.asarray(j))
    inside = j < plan.b.rows
    sums[np.asarray(plan.sums(i[inside], j[inside], warp, strip))] = held[inside]


def _store(plan: StreamedPlan, sums: Floats, strips: tuple[int, int], c: Floats, times: npt.NDArray[np.int64]) -> None:
    """Each thread's elements of C."""
    thread, first = np.arange(plan.threads), strips[0] * STRIP
    limit = min(plan.m, first + strips[1] * STRIP)
    for value in range(plan.accumulator_registers):
        row, column = np.broadcast_arrays(*(np.asarray(v) for v in plan.coords_C(thread, value)))
        inside = (first + row < limit) & (column < plan.n)
        row, column = row[inside], column[inside]
        total = np.zeros(row.shape, np.float32)
        for warp in range(plan.config.warps):
            total += sums[np.asarray(plan.sums(row % STRIP, column, warp, row // STRIP))]
        c[first + row, column] = total
        np.add.at(times, (first + row, column), 1)
