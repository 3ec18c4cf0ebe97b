"""The claims about packed weights as B in an Sm80Plan: copies, loads, conversions, registers, banks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ....atoms.copy.base import VECTOR_BYTES, WARP
from ....checks import bank_conflicts
from ....report import Check
from ...quantized.blocks import QUARTERS, STRIP
from ...quantized.checks import conversion_check, copied_check, fragments_check, order_checks
from ...quantized.formats import UNIT_ROWS
from .operand import Sm80PackedOperand

if TYPE_CHECKING:
    from ..plan import Sm80Plan


def packed_checks(plan: Sm80Plan) -> list[Check]:
    """Every check of the packed operand."""
    operand: Sm80PackedOperand = plan.b
    return [
        *order_checks(operand.packing),
        copied_check(operand, "run(s) of chunks"),
        _chunks(operand),
        conversion_check(operand.packing, operand.pairs, "B"),
        fragments_check(operand, _unlike(plan), operand.pairs, "pieces of B"),
        _addresses(operand),
        *_banks(operand),
    ]


def _chunks(operand: Sm80PackedOperand) -> Check:
    """The threads' chunks bring what `block_copies` says, each once, for each part of a unit."""
    witness, threads, units = "", np.arange(operand.threads), 7
    for k_tile in range(5 * operand.parts, 6 * operand.parts):
        wanted = np.full(operand.bytes, -1)
        for block in range(operand.row_blocks):
            for copy in operand.block_copies(3 + block, k_tile, units):
                at = block * operand.block_bytes + copy.target
                wanted[at : at + copy.bytes] = copy.source + np.arange(copy.bytes)
        found, times = np.full(operand.bytes, -1), np.zeros(operand.bytes, np.int64)
        unit, part = divmod(k_tile, operand.parts)
        for number in range(operand.rounds):
            target = (threads + number * operand.threads) * VECTOR_BYTES
            there = threads[target < operand.bytes]
            if (len(there) == len(threads)) != operand.whole(number):
                witness = witness or f"round {number} is of {len(there)} threads"
            row_block, inside = (np.asarray(x) for x in operand.chunk(there, number))
            base, step = (np.asarray(x) for x in operand.source(inside))
            source = ((3 + row_block) * units + unit) * operand.packing.unit_bytes + base + part * step
            for byte in range(VECTOR_BYTES):
                found[target[: len(there)] + byte] = source + byte
                times[target[: len(there)] + byte] += 1
        wrong = np.nonzero((found != wanted) | (times != 1))[0]
        if len(wrong):
            at = int(wrong[0])
            witness = witness or f"K tile {k_tile}, byte {at}: {times[at]} time(s), from {found[at]}, not {wanted[at]}"
    statement = (
        f"{operand.threads} threads with {operand.rounds} chunk(s) of {VECTOR_BYTES} bytes copy each of "
        f"{operand.bytes} bytes of a stage once"
    )
    return Check("chunks B", statement, not witness, f"exhaustion ({operand.bytes} bytes)", witness)


def _unlike(plan: Sm80Plan) -> str:
    """The first register of a piece that is not the instruction's B, or ""."""
    operand: Sm80PackedOperand = plan.b
    order, atom, lanes = operand.packing, plan.mma, np.arange(WARP)[:, None]
    width, of_b = int(atom.shape_mnk[1]), int(atom.layout_B[1].size)
    n, k = (np.asarray(x) for x in atom.coords("B")(lanes, np.arange(of_b)[None, :]))
    values = np.arange(int(order.atom.layout_A[1].size))[None, :]
    for quarter in range(QUARTERS):
        row, column = (np.asarray(x) for x in order.atom.coords("A")(lanes + WARP * quarter, values))
        for half, registers in enumerate(operand.halves):
            taken = [2 * register + e for register in registers for e in range(2)]
            rows, columns = row[:, taken], column[:, taken]
            wrong = np.argwhere((rows != n + STRIP * quarter + width * half) | (columns != k))
            if len(wrong):
                lane, v = (int(x) for x in wrong[0])
                return (
                    f"quarter {quarter}, features {width * half} on, lane {lane}, value {v} is of row {rows[lane, v]}, "
                    f"column {columns[lane, v]}"
                )
    if sorted(r for half in operand.halves for r in half) != list(range(values.size // 2)):
        return f"registers {operand.halves} are not all of a fragment"
    return ""


def _addresses(operand: Sm80PackedOperand) -> Check:
    """Warps have all pieces of the tile; a lane's addresses plus constants are its loads."""
    witness, lanes = "", np.arange(WARP)
    pieces = [operand.place(warp, piece) for warp in range(operand.warps) for piece in range(operand.pieces)]
    if pieces != [(block, quarter) for block in range(operand.row_blocks) for quarter in range(QUARTERS)]:
        witness = f"pieces {pieces} are not all of {operand.row_blocks} unit(s), in order"
    if operand.pieces * STRIP * operand.warps != operand.row_blocks * UNIT_ROWS:
        witness = witness or f"{operand.warps} warps of {operand.pieces} pieces are not {operand.smem.extent[0]} rows"
    for what, places, byte, indices in (
        ("vector", operand.words, operand.word_byte, operand.vector_indices),
        ("scales", operand.scales, operand.scale_byte, operand.scale_indices),
    ):
        for warp in range(operand.warps):
            for index in indices:
                base, constant = places.of[index]
                have = np.asarray(byte(lanes, warp, places.bases[base])) + constant
                if (have != byte(lanes, warp, index)).any():
                    witness = witness or f"{what} {index} of warp {warp} is not {constant} bytes from its base"
    statement = (
        f"a lane's {len(operand.vector_indices)} vectors and {len(operand.scale_indices)} scales of a K tile come from "
        f"{len(operand.words.bases)} + {len(operand.scales.bases)} address(es) plus constants"
    )
    return Check("addresses B", statement, not witness, f"exhaustion ({operand.warps} warps)", witness)


def _banks(operand: Sm80PackedOperand) -> list[Check]:
    """Loads of vectors and of scales by the plan's own addresses, warp by warp; copies are contiguous."""
    lanes, warps = np.arange(WARP), range(operand.warps)
    order = operand.packing
    codes = [np.asarray(operand.word_byte(lanes, warp, index)) for warp in warps for index in operand.vector_indices]
    found = [bank_conflicts(np.stack(codes), VECTOR_BYTES, "ld.shared").as_check("banks B")]
    if operand.groups:
        scales = [np.asarray(operand.scale_byte(lanes, warp, at)) for warp in warps for at in operand.scale_indices]
        found.append(bank_conflicts(np.stack(scales), 4 * order.scale_words, "ld.shared").as_check("banks of scales"))
    return found
