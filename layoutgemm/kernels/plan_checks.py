"""Checks that the plans of several architectures share: operands, and the accumulator's fragment map."""

from __future__ import annotations

import numpy as np

from ..atoms import MmaAtom
from ..checks import bank_conflicts, bijective_tile, filled_by, matrix_access, read_by
from ..report import Check
from .derive import OperandPlan


def operand_checks(operand: OperandPlan, mma: MmaAtom) -> list[Check]:
    """The tile's layout is one, the copies fill it, the descriptor reads it for the instruction, without conflicts."""
    name, tile = operand.name, operand.smem
    banks = bank_conflicts(tile, matrix_access(tile.extent, tile.dtype, tile.major, "wgmma"))
    return [
        bijective_tile(f"tile {name}", operand.smem),
        filled_by(f"copy {name}", operand.smem, operand.tma),
        read_by(f"descriptor {name}", operand.smem, operand.descriptor, mma, name),
        banks.as_check(f"banks {name}"),
    ]


def fragment_checks(mma: MmaAtom) -> list[Check]:
    """The accumulator's fragment map is a bijection, and its coordinates say the same."""
    layout, (rows, columns) = mma.layout_C, mma.tile_of("C")
    verdict = layout.is_bijective()
    size = rows * columns
    bijective = bool(verdict) and layout.size == size
    checks = [
        Check(
            "fragment map",
            f"{layout} puts each of {rows}x{columns} elements in one (thread, value)",
            bijective,
            "normal form",
            "" if bijective else str(verdict),
        )
    ]
    row, column = mma.coords_C(np.arange(layout.size))
    wrong = np.nonzero(np.asarray(row) + rows * np.asarray(column) != layout.offsets())[0]
    witness = "" if not len(wrong) else f"(thread, value) number {int(wrong[0])}"
    checks.append(
        Check(
            "coordinates", f"{mma.coords_C} is the same map", not witness, f"exhaustion ({size} elements)", witness
        )
    )
    return checks
