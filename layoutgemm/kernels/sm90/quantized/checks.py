"""The claims about packed weights in a plan: their order, their copies, their way into registers, and banks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ....checks import bank_conflicts
from ....layouts import Layout
from ....report import Check
from .conversions import NumpyPairs, pairs_of, values_of, zero_bits
from .float8 import quads_of
from .formats import MOST_ZERO, UNIT_K, UNIT_ROWS
from .fragments import block_scales, block_values
from .order import VECTOR_BYTES, PackedOrder
from .packing import QuantizedWeights, pack, unpack

if TYPE_CHECKING:
    from ..plan import Sm90Plan
    from .operand import PackedOperand


def packed_checks(plan: Sm90Plan, groups: int) -> list[Check]:
    """Every check of the packed operand; `groups` warpgroups share a tile's rows."""
    operand = plan.a
    order: PackedOrder = operand.packing
    return [
        _bijective("order of codes", order.codes, UNIT_ROWS * UNIT_K),
        _bijective("order of scales", order.scales, UNIT_ROWS * max(1, order.format.groups)),
        _copied(operand),
        conversion_check(order),
        _registers(plan),
        _blocks(plan, groups),
        *_banks(operand),
    ]


def _bijective(name: str, layout: Layout, size: int) -> Check:
    verdict = layout.is_bijective()
    witness = "" if verdict else str(verdict)
    if verdict and layout.size != size:
        witness = f"{layout.size} of {size} elements"
    statement = f"{layout} is a bijection onto the {size} elements of a unit"
    return Check(name, statement, not witness, getattr(verdict, "method", "none"), witness)


def _copied(operand: PackedOperand) -> Check:
    """A K tile's copies bring its own codes and its own groups' scales."""
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
        f"{len(operand.block_copies(0, 0, 1))} bulk cop(ies) bring the {operand.block_bytes} bytes of 64 rows, each "
        f"once, for each of the {operand.parts} K tile(s) of a unit"
    )
    return Check("copy A", statement, not witness, f"exhaustion ({operand.block_bytes} bytes)", witness)


def _wanted(operand: PackedOperand, part: int) -> npt.NDArray[np.int64]:
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


def conversion_check(order: PackedOrder) -> Check:
    """Each code becomes its value exactly: at each place of a word, with each zero point."""
    fmt, witness = order.format, ""
    count, finite = 1 << fmt.bits, np.nonzero(np.isfinite(fmt.facts.values()))[0]
    plain, codes = fmt.facts.values()[finite], finite.astype(np.uint32)
    for zero in range(MOST_ZERO + 1) if fmt.zeros else (None,):
        values = (plain if zero is None else codes - float(zero)).astype(np.float32)
        for others in (0, 0xFFFFFFFF, 0xA5C36987):
            for place in range(order.codes_of_word):
                mask = np.uint32(count - 1 << place * fmt.bits)
                words = np.uint32(others) & ~mask | codes << np.uint32(place * fmt.bits)
                found = _converted(order, words, zero)[:, int(order.word_values(place))] * np.float32(order.factor)
                if (found != values).any():
                    at = int(np.nonzero(found != values)[0][0])
                    less = "" if zero is None else f" less {zero}"
                    witness = witness or f"code {codes[at]}{less} at {place} of a word becomes {found[at]}"
    statement = f"each of {len(codes)} codes of {fmt.code}, at each place of a word, becomes its value as "
    statement += f"{order.target.dtype}" + f", with each zero point up to {MOST_ZERO}" * fmt.zeros
    return Check("conversion A", statement, not witness, f"exhaustion ({count} codes)", witness)


def _converted(order: PackedOrder, words: npt.NDArray[np.uint32], zero: int | None) -> npt.NDArray[np.float32]:
    """(words, values of a word's registers), by the kernel's steps, unscaled."""
    fmt, ops, taken = order.format, NumpyPairs(order.target), []
    if zero is not None:
        taken = [np.uint32(int(zero_bits(order.target, zero)) * 0x10001)] * (order.codes_of_word // order.target.values)
    registers = quads_of(fmt, words, ops, taken) if order.scales_sums else pairs_of(
        fmt.code, order.target, words, ops, taken
    )  # fmt: skip
    return np.concatenate([values_of(register, order.target) for register in registers], axis=1)


def _registers(plan: Sm90Plan) -> Check:
    """The fragments that threads make of their own words are those that the instruction multiplies."""
    operand: PackedOperand = plan.a
    order, depth = operand.packing, operand.smem.extent[1]
    weights, witness = _probe(order), ""
    units = pack(weights, order.activations).units.reshape(-1)
    wanted, factors = _multiplied(order, weights)
    again = unpack(pack(weights, order.activations))
    if not np.array_equal(again.codes, weights.codes):
        witness = "unpack is not the inverse of pack"
    for part in range(operand.parts):
        block = np.zeros(operand.block_bytes, np.uint8)
        for copy in operand.block_copies(0, part, 1):
            block[copy.target : copy.target + copy.bytes] = units[copy.source : copy.source + copy.bytes]
        found = block_values(order, block, depth)
        wrong = np.argwhere(found != wanted[:, part * depth : (part + 1) * depth])
        if len(wrong):
            row, column = (int(x) for x in wrong[0])
            witness = witness or f"row {row}, column {column} of K tile {part} of a unit is {found[row, column]}"
        if order.scales_sums:
            scales = block_scales(order, block, depth)
            groups = part * depth // (order.format.group or UNIT_K) + np.arange(operand.sums)
            wrong = np.argwhere(scales != factors[:, groups])
            if len(wrong):
                row, group = (int(x) for x in wrong[0])
                witness = witness or f"sum {group} of row {row} of K tile {part} is multiplied by {scales[row, group]}"
    if plan.mma.layout_A != order.atom.layout_A:
        witness = witness or f"the instruction's map of A is {plan.mma.layout_A}, the order's {order.atom.layout_A}"
    statement = (
        f"what a thread makes of its {operand.vectors} vector(s) of 16 bytes is its {depth // order.depth} fragments "
        "of A, each with the scale of its row and group"
    )
    return Check("fragments A", statement, not witness, f"exhaustion ({UNIT_ROWS}x{UNIT_K} weights)", witness)


def _multiplied(
    order: PackedOrder, weights: QuantizedWeights
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """A unit's (rows, columns) as the instruction takes them, and (rows, groups) factors of sums."""
    fmt, kind = order.format, order.target.dtype
    dense = weights.dense() if fmt.group else fmt.facts.values()[weights.codes]
    factors = np.full((UNIT_ROWS, max(1, fmt.groups)), order.factor, np.float32)
    if order.scales_sums and fmt.group:
        scales = np.asarray(weights.scales, np.float64)
        dense = dense / np.repeat(scales, fmt.group, axis=1) / order.factor
        factors = (scales * order.factor).astype(np.float32)
    return np.asarray(kind.decode(kind.encode(dense)), np.float32), factors


def _probe(order: PackedOrder) -> QuantizedWeights:
    """Weights of a unit in which neighbours, rows and groups differ."""
    fmt = order.format
    finite = np.nonzero(np.isfinite(fmt.facts.values()))[0]
    row, column = np.indices((UNIT_ROWS, UNIT_K))
    codes = finite[(row * 37 + column * 11 + row * column) % len(finite)].astype(np.uint8)
    if fmt.group is None:
        return QuantizedWeights(fmt, codes, np.ones(UNIT_ROWS, np.float32))
    row, group = np.indices((UNIT_ROWS, fmt.groups))
    scales = (64 + row) * 2.0 ** -(group + 6)
    return QuantizedWeights(fmt, codes, scales, (row * 3 + group) % 17 if fmt.zeros else None)


def _blocks(plan: Sm90Plan, groups: int) -> Check:
    """Consumer g begins with row block g * blocks."""
    want = groups * plan.blocks
    witness = "" if plan.a.row_blocks == want else f"a stage has {plan.a.row_blocks} row blocks"
    statement = f"{groups} consumer(s) with {plan.blocks} block(s) of A, {plan.a.block_bytes} bytes apart"
    return Check("blocks A", statement, not witness, "arithmetic", witness)


def _banks(operand: PackedOperand) -> list[Check]:
    """Loads of vectors and of scales, warp by warp."""
    order, thread = operand.packing, np.arange(128)
    codes = [np.asarray(order.vector_bytes(thread, vector)).reshape(4, 32) for vector in range(operand.vectors)]
    found = [bank_conflicts(np.concatenate(codes), VECTOR_BYTES, "ld.shared").as_check("banks A")]
    if operand.groups:
        scales = [np.asarray(order.scale_bytes(thread, group)).reshape(4, 32) for group in range(operand.groups)]
        report = bank_conflicts(np.concatenate(scales), 4 * order.scale_words, "ld.shared")
        found.append(report.as_check("banks of scales"))
    return found
