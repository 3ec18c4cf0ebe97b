"""A thread's registers of packed weights. The way from its words to the fragments that wgmma takes, as the kernel goes.

The functions take a `PairMath`, and so run in a kernel on traced words and here on arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .conversions import HALF, NumpyPairs, PairMath, pairs_of, values_of
from .float8 import quads_of
from .formats import UNIT_K, UNIT_ROWS
from .order import THREADS, WORDS, PackedOrder

ROWS = 2  # of a thread, in a fragment


def rows_of(order: PackedOrder, words: Sequence[object], ops: PairMath) -> tuple[list[Any], list[Any]]:
    """The scales of a thread's two rows and their zeros, each twice in a word.

    words  those of a group: `order.scale_words`, of the two rows each

    The exponent's bias of float8 multiplies a group's word once, not each row's or each register.
    """
    scale, *zeros = words
    if order.bias_factor != 1:
        scale = ops.mul(scale, ops.constant(order.target.word(order.bias_factor)))
    scales = [ops.twice(scale, half) for half in range(ROWS)]
    return scales, [ops.twice(zero, half) for zero in zeros for half in range(ROWS)]


def fragment(
    order: PackedOrder, words: Sequence[object], rows: Sequence[object], zeros: Sequence[object], ops: PairMath,
    one_shift: bool = False,
) -> list[Any]:  # fmt: skip
    """The registers of one fragment.

    words  the fragment's words: `order.words_of_fragment`
    rows   the scale of each of the thread's two rows, as `rows_of` has them; empty where a column has one. Scales that
           multiply sums are not used
    zeros  the zero points of each of the two rows, as `zero_bits` has them, twice; empty without them
    one_shift  values are divided by `order.division`, which the totals are multiplied by
    """
    registers: list[Any] = []
    placed = bool(rows) and order.bias_factor != 1
    for word in words:
        # Each register is of one of the two rows, and a word begins with the first.
        taken = [zeros[order.row_of(i)] for i in range(order.codes_of_word // order.target.values)] if zeros else ()
        if order.scales_sums:
            registers += quads_of(order.format, word, ops, taken)
        else:
            registers += pairs_of(order.format.code, order.target, word, ops, taken, one_shift, placed)
    if not rows or order.scales_sums:
        return registers
    return [ops.mul(register, rows[order.row_of(i)]) for i, register in enumerate(registers)]


def words_of(order: PackedOrder, fragment: int) -> range:
    """The words of a unit's fragment, among the thread's words of all its vectors.

    >>> from .formats import QuantizedFormat
    >>> words_of(PackedOrder(QuantizedFormat("e4m3"), "bf16"), 3)
    range(6, 8)
    """
    first = fragment * order.words_of_fragment
    return range(first, first + order.words_of_fragment)


def block_values(
    order: PackedOrder, block: npt.NDArray[np.uint8], depth: int = UNIT_K, pairs: type[NumpyPairs] = NumpyPairs,
    scaled: bool = True, one_shift: bool = False,
) -> npt.NDArray[np.float32]:  # fmt: skip
    """(64, depth) weights as the instruction takes them from the registers of all threads.

    block   the bytes of a row block's K tile in a stage: codes, then scales
    pairs   the arithmetic of an architecture
    scaled  False if the scales of groups multiply sums, and not weights
    one_shift  as `fragment` takes it

    Weights are where the instruction's own map of A has each thread's values.
    """
    ops, thread, vectors = pairs(order.target), np.arange(THREADS), order.vectors * depth // UNIT_K
    as_words = np.ascontiguousarray(block).view("<u4").astype(np.uint32)
    firsts = [np.asarray(order.vector_bytes(thread, vector)) // 4 for vector in range(vectors)]
    words = [as_words[first + word] for first in firsts for word in range(WORDS)]
    row, column = order.atom.coords("A")(thread[:, None], np.arange(int(order.atom.layout_A[1].size))[None, :])
    values = np.zeros((UNIT_ROWS, depth), np.float32)
    fragments, more = range(depth // order.depth), as_words[order.code_bytes * depth // UNIT_K // 4 :]
    taken = np.array([[words[word] for word in words_of(order, number)] for number in fragments])
    numbers = np.array([_numbers(order, more, thread, order.group_of(number)) for number in fragments])
    rows, zeros = rows_of(order, list(numbers.swapaxes(0, 1)), ops) if numbers.size else ([], [])
    registers = fragment(order, list(taken.swapaxes(0, 1)), rows if scaled else [], zeros, ops, one_shift)
    held = np.concatenate([values_of(register, order.target) for register in registers], axis=-1)
    for number in fragments:
        values[row, column + number * order.depth] = held[number]
    return values


def block_scales(order: PackedOrder, block: npt.NDArray[np.uint8], depth: int = UNIT_K) -> npt.NDArray[np.float32]:
    """(64, sums) factors of a K tile's sums, where scales multiply sums. As the threads of the rows read them.

    block  as `block_values` takes it

    A K tile has a sum for each of its groups, or one.
    """
    sums = depth // min(order.format.group or depth, depth)
    row, _ = order.atom.coords("A")(np.arange(THREADS)[:, None], np.arange(int(order.atom.layout_A[1].size))[None, :])
    found = np.ones((UNIT_ROWS, sums), np.float32)
    if not order.format.groups:
        return found
    as_words = np.ascontiguousarray(block).view("<u4").astype(np.uint32)[order.code_bytes * depth // UNIT_K // 4 :]
    for number in range(sums):
        word = _numbers(order, as_words, np.arange(THREADS), number)[0]
        for i in range(ROWS):
            value = order.target.scales.decode((word >> np.uint32(HALF * i) & np.uint32(0xFFFF)).astype(np.uint16))
            found[row[:, order.target.values * i], number] = value * np.float32(order.factor)
    return found


def _numbers(
    order: PackedOrder, scales: npt.NDArray[np.uint32], thread: npt.NDArray[np.int64], group: int
) -> list[npt.NDArray[np.uint32]]:
    """Each thread's words of a group: the scales of its two rows, then their zero points."""
    if not order.format.groups:
        return []
    first = np.asarray(order.scale_bytes(thread, group)) // 4
    return [scales[first + word] for word in range(order.scale_words)]
