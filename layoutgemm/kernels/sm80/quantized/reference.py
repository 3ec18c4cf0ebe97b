"""The NumPy executor's packed weights. Chunks into a stage, and a warp's pieces of one depth as registers of B."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ....atoms.copy.base import VECTOR_BYTES, WARP
from ...quantized.conversions import values_of
from ...quantized.formats import UNIT_ROWS
from ...quantized.fragments import fragment, rows_of, words_of
from ...quantized.order import WORDS
from ...quantized.packing import units_of

if TYPE_CHECKING:
    from ...thread_addresses import ThreadAddresses
    from ..plan import Sm80Plan
    from .operand import Sm80PackedOperand

Bytes = npt.NDArray[np.uint8]


def filled_stage(plan: Sm80Plan, units: Bytes, n0: int, k0: int) -> Bytes:
    """A stage's bytes after the threads' chunks; 0xFF where none of them wrote."""
    operand: Sm80PackedOperand = plan.b
    (rows, along_k), (unit, part) = units_of(plan.n, plan.k), divmod(k0 // plan.tile[2], operand.parts)
    memory, threads = np.full(operand.bytes, 0xFF, np.uint8), np.arange(operand.threads)
    for number in range(operand.rounds):
        there = threads if operand.whole(number) else threads[: operand.chunks - number * operand.threads]
        block, inside = (np.asarray(x) for x in operand.chunk(there, number))
        base, step = (np.asarray(x) for x in operand.source(inside))
        row_block = np.minimum(n0 // UNIT_ROWS + block, rows - 1)
        source = (row_block * along_k + unit) * operand.packing.unit_bytes + base + part * step
        target = (there + number * operand.threads) * VECTOR_BYTES
        run = np.arange(VECTOR_BYTES)
        memory[target[:, None] + run] = units[source[:, None] + run]
    return memory


def packed_fragments(plan: Sm80Plan, stage: Bytes, step: int) -> npt.NDArray[np.float32]:
    """Values of one depth, of all warps along N: (warp, 8 features, lane, value)."""
    operand: Sm80PackedOperand = plan.b
    order, ops = operand.packing, operand.pairs(operand.packing.target)
    words = [_word(operand, stage, word) for word in words_of(order, step)]
    numbers = _numbers(operand, stage, order.group_of(step)) if operand.groups else []
    rows, zeros = rows_of(order, numbers, ops) if numbers else ([], [])
    registers = fragment(order, words, rows, zeros, ops)
    shape = operand.warps, operand.pieces, WARP
    found = []
    for half in operand.halves:
        held = [values_of(np.broadcast_to(registers[r], shape), order.target) for r in half]
        found.append(np.concatenate(held, axis=-1))
    return np.stack(found, axis=2).reshape(operand.warps, -1, WARP, found[0].shape[-1])


def _loaded(stage: Bytes, first: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
    raw = np.ascontiguousarray(stage[first[..., None] + np.arange(4)])
    return raw.view("<u4")[..., 0].astype(np.uint32)


def _word(operand: Sm80PackedOperand, stage: Bytes, word: int) -> npt.NDArray[np.uint32]:
    """One word of each piece: (warp, piece, lane)."""
    vector, inside = divmod(word, WORDS)
    first = _first(operand, operand.words, operand.word_byte, vector)
    return _loaded(stage, first + 4 * inside)


def _first(
    operand: Sm80PackedOperand, places: ThreadAddresses, byte: Callable[..., object], number: int
) -> npt.NDArray[np.int64]:
    """First bytes of the lanes' loads of a vector, or of scales: (warp, piece, lane)."""
    lanes, found = np.arange(WARP), []
    for warp in range(operand.warps):
        of_warp = [places.of[piece, number] for piece in range(operand.pieces)]
        found.append([np.asarray(byte(lanes, warp, places.bases[base])) + constant for base, constant in of_warp])
    return np.asarray(found)


def _numbers(operand: Sm80PackedOperand, stage: Bytes, group: int) -> list[npt.NDArray[np.uint32]]:
    """The words of a group: the scales of the lanes' two features, then their zero points; each (warp, piece, lane)."""
    first = _first(operand, operand.scales, operand.scale_byte, group)
    return [_loaded(stage, first + 4 * word) for word in range(operand.packing.scale_words)]
