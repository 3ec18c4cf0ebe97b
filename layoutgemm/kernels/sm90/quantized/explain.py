"""Packed weights as text."""

from __future__ import annotations

from .operand import PackedOperand


def explain_packed(operand: PackedOperand) -> str:
    """The order of packed weights, their copies, and a thread's share."""
    order, fmt = operand.packing, operand.packing.format
    rows, depth = operand.smem.extent
    lines = [
        f"A: packed {fmt}, converted to {order.target.dtype} in registers",
        f"  unit 64x128: {order.code_bytes} bytes of codes, {order.unit_bytes - order.code_bytes} of scales",
        f"  codes ((code, word), thread, vector) -> row + 64*column: {order.codes}",
    ]
    if fmt.groups:
        lines.append(f"  scales (row of a thread, lane's row, warp, group) -> row + 64*group: {order.scales}")
    how = f"{len(operand.block_copies(0, 0, 1))} bulk cop(ies) each"
    if (strips := operand.strips) is not None:
        copies = strips.rounds * len(strips.vectors) + strips.scale_rounds
        how = f"{strips.strips} strips of 16 features, {copies} cp.async a thread"
    lines += [
        f"  shared tile {rows}x{depth}: {operand.row_blocks} block(s) of {operand.block_bytes} bytes, {how}",
        f"  a thread loads {operand.vectors} vector(s) of 16 bytes a block and K tile: "
        f"{depth // order.depth} fragments",
    ]
    if operand.scales_sums:
        each = f"of {min(fmt.group or depth, depth)} of K"
        by = f", times {order.factor:g}" if order.factor != 1 else ""
        times = "added" if fmt.group is None else f"multiplied by its row's scale{by} and added"
        last = f"; totals times {operand.total_factor:g}" if operand.total_factor != 1 else ""
        lines.append(
            f"  {operand.sums} sum(s) {each} in a K tile, each in registers of its own, {times} in float32{last}"
        )
    return "\n".join(lines)
