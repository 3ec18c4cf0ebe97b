"""The claims about packed weights that hold on every architecture: order, copies, conversions, fragments, banks."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...atoms.copy.base import VECTOR_BYTES
from ...checks import bank_conflicts
from ...layouts import Layout
from ...report import Check
from .blocks import PackedBlocks
from .conversions import NumpyPairs, pairs_of, values_of, zero_bits
from .float8 import quads_of
from .formats import MOST_ZERO, UNIT_K, UNIT_ROWS
from .fragments import block_scales, block_values
from .order import THREADS, PackedOrder
from .packing import QuantizedWeights, pack, unpack


def order_checks(order: PackedOrder) -> list[Check]:
    """Both orders of a unit are bijections."""
    return [
        _bijective("order of codes", order.codes, UNIT_ROWS * UNIT_K),
        _bijective("order of scales", order.scales, UNIT_ROWS * max(1, order.format.groups)),
    ]


def _bijective(name: str, layout: Layout, size: int) -> Check:
    verdict = layout.is_bijective()
    witness = "" if verdict else str(verdict)
    if verdict and layout.size != size:
        witness = f"{layout.size} of {size} elements"
    statement = f"{layout} is a bijection onto the {size} elements of a unit"
    return Check(name, statement, not witness, getattr(verdict, "method", "none"), witness)


def copied_check(operand: PackedBlocks, how: str = "bulk cop(ies)") -> Check:
    """A K tile's copies bring its own codes and its own groups' scales.

    how  the copies in words
    """
    order, witness = operand.packing, ""
    for part in range(operand.parts):
        times = np.zeros(operand.block_bytes, np.int64)
        source = np.full(operand.block_bytes, -1)
        for copy in operand.block_copies(3, 5 * operand.parts + part, 7):
            if any(x % VECTOR_BYTES for x in (copy.source, copy.target, copy.bytes)):
                witness = witness or f"{copy}: not all multiples of {VECTOR_BYTES}"
            times[copy.target : copy.target + copy.bytes] += 1
            source[copy.target : copy.target + copy.bytes] = copy.source + np.arange(copy.bytes)
        wanted = (3 * 7 + 5) * order.unit_bytes + _wanted(operand, part)
        wrong = np.nonzero((times != 1) | (source != wanted))[0]
        if len(wrong):
            at = int(wrong[0])
            witness = witness or f"K tile {part} of a unit, byte {at}: {times[at]} time(s), from {source[at]}"
    if operand.block_bytes % operand.smem.alignment:
        witness = witness or f"a block of {operand.block_bytes} bytes, alignment {operand.smem.alignment}"
    statement = (
        f"{len(operand.block_copies(0, 0, 1))} {how} bring the {operand.block_bytes} bytes of 64 rows, each "
        f"once, for each of the {operand.parts} K tile(s) of a unit"
    )
    return Check(f"copy {operand.name}", statement, not witness, f"exhaustion ({operand.block_bytes} bytes)", witness)


def _wanted(operand: PackedBlocks, part: int) -> npt.NDArray[np.int64]:
    """The unit's bytes of a K tile: its vectors, then the scales of the groups that its columns lie in."""
    order, depth = operand.packing, operand.smem.extent[1]
    first, step = part * operand.vectors, int(order.vector_bytes(0, 1)) if order.vectors > 1 else order.code_bytes
    codes = first * step + np.arange(operand.vectors * step)
    if order.format.group is None:
        return codes
    columns = part * depth + np.arange(depth)
    groups = np.unique(columns // order.format.group)
    scales = order.code_bytes + groups[:, None] * order.group_bytes + np.arange(order.group_bytes)
    return np.concatenate([codes, scales.reshape(-1)])


def conversion_check(
    order: PackedOrder, pairs: type[NumpyPairs] = NumpyPairs, name: str = "A", one_shift: bool = False
) -> Check:
    """Each code becomes its value exactly. That holds at each place of a word, with each zero point.

    pairs      the arithmetic of an architecture; `name` is the operand's
    one_shift  values are divided by the order's `division`
    """
    fmt, witness, ops, division = order.format, "", pairs(order.target), order.division if one_shift else 1.0
    factor = np.float32(order.factor * division)
    count, finite = 1 << fmt.bits, np.nonzero(np.isfinite(fmt.facts.values()))[0]
    plain, codes = fmt.facts.values()[finite], finite.astype(np.uint32)
    digits = np.asarray(order.stored, np.uint32)[codes] if order.stored else codes
    places, words = list(range(order.codes_of_word)), []
    for others in (0, 0xFFFFFFFF, 0xA5C36987):
        for place in places:
            word = np.full(codes.shape, others, np.uint32)
            for bit, at in enumerate(order.bits_of(place)):
                word = word & ~np.uint32(1 << at) | (digits >> np.uint32(bit) & np.uint32(1)) << np.uint32(at)
            words.append(word)
    chosen = [int(order.word_values(place)) for place in places] * (len(words) // len(places))
    for zero in range(MOST_ZERO + 1) if fmt.zeros else (None,):
        values = (plain if zero is None else codes - float(zero)).astype(np.float32)
        registers = _converted(order, np.concatenate(words), zero, ops, one_shift).reshape(len(words), len(codes), -1)
        found = registers[np.arange(len(words)), :, chosen] * factor
        if not witness and (found != values).any():
            number, at = (int(i) for i in np.argwhere(found != values)[0])
            less = "" if zero is None else f" less {zero}"
            witness = f"code {codes[at]}{less} at {places[number % len(places)]} of a word becomes {found[number, at]}"
    statement = f"each of {len(codes)} codes of {fmt.code}, at each place of a word, becomes its value as "
    statement += f"{order.target.dtype}" + f", divided by {division:g}" * (division != 1)
    statement += f", with each zero point up to {MOST_ZERO}" * fmt.zeros
    return Check(f"conversion {name}", statement, not witness, f"exhaustion ({count} codes)", witness)


def _converted(
    order: PackedOrder, words: npt.NDArray[np.uint32], zero: int | None, ops: NumpyPairs, one_shift: bool
) -> npt.NDArray[np.float32]:  # fmt: skip
    """(words, values of a word's registers), by the kernel's steps, unscaled."""
    fmt, taken = order.format, []
    if zero is not None:
        taken = [np.uint32(int(zero_bits(order.target, zero)) * 0x10001)] * (order.codes_of_word // order.target.values)
    registers = quads_of(fmt, words, ops, taken) if order.scales_sums else pairs_of(
        fmt.code, order.target, words, ops, taken, one_shift
    )  # fmt: skip
    return np.concatenate([values_of(register, order.target) for register in registers], axis=1)


def fragments_check(
    operand: PackedBlocks, unlike: str = "", pairs: type[NumpyPairs] = NumpyPairs, of: str = "fragments of A"
) -> Check:
    """The fragments that threads make of their own words are those that the instruction multiplies.

    unlike  how the instruction's map of its fragments differs from the order's, or ""
    pairs   the arithmetic of an architecture
    of      the fragments in words
    """
    order, depth = operand.packing, operand.smem.extent[1]
    weights, witness = probe(order), ""
    units = pack(weights, order.activations).units.reshape(-1)
    wanted, factors = _multiplied(order, weights, operand.scales_sums)
    wanted = wanted / np.float32(operand.total_factor)
    again = unpack(pack(weights, order.activations))
    if not np.array_equal(again.codes, weights.codes):
        witness = "unpack is not the inverse of pack"
    for part in range(operand.parts):
        block = np.zeros(operand.block_bytes, np.uint8)
        for copy in operand.block_copies(0, part, 1):
            block[copy.target : copy.target + copy.bytes] = units[copy.source : copy.source + copy.bytes]
        found = block_values(order, block, depth, pairs, not operand.scales_sums, operand.one_shift)
        wrong = np.argwhere(found != wanted[:, part * depth : (part + 1) * depth])
        if len(wrong):
            row, column = (int(x) for x in wrong[0])
            witness = witness or f"row {row}, column {column} of K tile {part} of a unit is {found[row, column]}"
        if operand.scales_sums:
            scales = block_scales(order, block, depth)
            groups = part * depth // (order.format.group or UNIT_K) + np.arange(operand.sums)
            wrong = np.argwhere(scales != factors[:, groups])
            if len(wrong):
                row, group = (int(x) for x in wrong[0])
                witness = witness or f"sum {group} of row {row} of K tile {part} is multiplied by {scales[row, group]}"
    witness = witness or unlike
    statement = (
        f"what a thread makes of its {operand.vectors} vector(s) of 16 bytes is its {depth // order.depth} "
        f"{of}, each {'beside' if operand.scales_sums else 'with'} the scale of its row and group"
    )
    return Check(
        f"fragments {operand.name}", statement, not witness, f"exhaustion ({UNIT_ROWS}x{UNIT_K} weights)", witness
    )


def _multiplied(
    order: PackedOrder, weights: QuantizedWeights, scales_sums: bool
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """A unit's (rows, columns) as the instruction takes them, and (rows, groups) factors of sums."""
    fmt, kind = order.format, order.target.dtype
    dense = weights.dense() if fmt.group else fmt.facts.values()[weights.codes]
    factors = np.ones((UNIT_ROWS, max(1, fmt.groups)), np.float32)
    if scales_sums and fmt.group:
        scales = np.asarray(weights.scales, np.float64)
        dense = dense / np.repeat(scales, fmt.group, axis=1) / order.factor
        factors = (scales * order.factor).astype(np.float32)
    return np.asarray(kind.decode(kind.encode(dense)), np.float32), factors


def probe(order: PackedOrder) -> QuantizedWeights:
    """Weights of a unit in which neighbours, rows and groups differ."""
    fmt = order.format
    finite = np.nonzero(np.isfinite(fmt.facts.values()))[0]
    row, column = np.indices((UNIT_ROWS, UNIT_K))
    codes = finite[(row * 37 + column * 11 + row * column) % len(finite)].astype(np.uint8)
    if fmt.group is None:
        return QuantizedWeights(fmt, codes, np.ones(UNIT_ROWS, np.float32))
    row, group = np.indices((UNIT_ROWS, fmt.groups))
    # Below 2; below 1 for e5m2 as f16, which holds no twice 57344: one infinity is equal to another weight's.
    kind = order.target.dtype
    small = order.scales_sums or np.isfinite(kind.decode(kind.encode(np.array([2 * fmt.facts.largest])))[0])
    scales = (64 + row) * 2.0 ** -(group + (6 if small else 7))
    return QuantizedWeights(fmt, codes, scales, (row * 3 + group) % 17 if fmt.zeros else None)


def bank_checks(operand: PackedBlocks) -> list[Check]:
    """Loads of vectors and of scales, warp by warp."""
    order, thread = operand.packing, np.arange(THREADS)
    codes = [np.asarray(order.vector_bytes(thread, vector)).reshape(4, 32) for vector in range(operand.vectors)]
    found = [bank_conflicts(np.concatenate(codes), VECTOR_BYTES, "ld.shared").as_check(f"banks {operand.name}")]
    if operand.groups:
        scales = [np.asarray(order.scale_bytes(thread, group)).reshape(4, 32) for group in range(operand.groups)]
        report = bank_conflicts(np.concatenate(scales), 4 * order.scale_words, "ld.shared")
        found.append(report.as_check("banks of scales"))
    return found
