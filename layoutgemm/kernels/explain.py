"""Text that the plans of all architectures explain themselves with."""

from __future__ import annotations

from typing import NamedTuple

from .derive import OperandPlan
from .plan import GemmPlan


def explain_workspace(plan: GemmPlan, exchanged: int = 0) -> str:
    """The workspace in words; `exchanged` bytes of partial sums lie in shared memory.

    >>> from layoutgemm.kernels import TeachingPlan
    >>> explain_workspace(TeachingPlan.derive(64, 64, 64))
    'device memory: operands and output, and a workspace of 0 bytes'
    """
    text = f"device memory: operands and output, and a workspace of {plan.workspace} bytes"
    return text + (f"; partial sums, {exchanged} bytes a block, go through shared memory" if exchanged else "")


def explain_operand(operand: OperandPlan) -> str:
    """An operand's tile, copies and descriptor."""
    tile = operand.smem
    extent = "x".join(map(str, tile.extent))
    given = ", given as f32 and rounded to nearest by the copy" if operand.dtype.name == "tf32" else ""
    lines = [
        f"{operand.name}: {operand.dtype}, {operand.order}-major in global memory, so {operand.major}-major for wgmma"
        + given,
        f"  shared tile {extent} (mn, k) -> {tile.swizzle} o {tile.layout} elements, {tile.bytes} bytes, aligned to "
        f"{tile.alignment}",
        *("  " + line for tma in operand.copies for line in tma.explain().splitlines()),
        *("  " + line for line in operand.descriptor.explain().splitlines()),
    ]
    return "\n".join(lines)


class RoleRow(NamedTuple):
    """name, who: warps of the block; does: what it issues and waits for."""

    name: str
    who: str
    does: str


class BarrierRow(NamedTuple):
    """name; kind: mbarrier, named or cluster; completed: by how many arrivals and bytes; waits: who waits for it."""

    name: str
    kind: str
    completed: str
    waits: str


def aligned(rows: tuple[tuple[str, ...], ...]) -> list[str]:
    """Rows of texts as lines, each column as wide as its widest text."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths)).rstrip() for row in rows]
