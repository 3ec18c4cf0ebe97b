"""Packed weights as B, as text."""

from __future__ import annotations

from .operand import Sm80PackedOperand


def explain_packed(operand: Sm80PackedOperand) -> list[str]:
    """The order of packed weights, their copies, and a lane's share."""
    order, fmt = operand.packing, operand.packing.format
    rows, depth = operand.smem.extent
    lines = [
        f"B            packed {fmt}, converted to {order.target.dtype} in registers"
        + ", differences and products by fma" * operand.fused,
        f"  unit       64x128: {order.code_bytes} bytes of codes, {order.unit_bytes - order.code_bytes} of scales",
        f"  codes      ((code, word), thread, vector) -> row + 64*column: {order.codes}",
    ]
    if fmt.groups:
        lines.append(f"  scales     (row of a thread, lane's row, warp, group) -> row + 64*group: {order.scales}")
    halves = ", ".join(str(list(half)) for half in operand.halves)
    return [
        *lines,
        f"  tile       {rows}x{depth}: {operand.row_blocks} block(s) of {operand.block_bytes} bytes, {operand.rounds} "
        f"cp.async of 16 bytes a thread",
        f"  loads      {len(operand.vector_indices)} vector(s) of 16 bytes and {len(operand.scale_indices)} scale(s) a "
        f"lane and k tile, {len(operand.words.bases)} + {len(operand.scales.bases)} address(es)",
        f"  registers  {halves} of a fragment of 16 features are mma.sync's B for each 8 of them",
    ]
