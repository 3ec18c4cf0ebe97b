"""Text that the plans of all architectures explain themselves with."""

from __future__ import annotations

from typing import NamedTuple

from .derive import OperandPlan
from .operands.gated import Gated
from .operands.product import SeveralOperands
from .plan import GemmPlan, tile_count


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


def explain_several(plan: SeveralOperands, count: int, each: str = "") -> list[str]:
    """The sums of an element and the second pair, a line each. None for a plain product.

    count  values of a thread between the sums of an element
    each   what each matrix B has of its own
    """
    lines, how, width = [], plan.gated, plan.tile_c[1]
    if isinstance(how, Gated):
        lines.append(
            f"gated: a tile is {width} columns of C; value v of a thread becomes {how.kind}(value v) * value "
            f"v + {count}, for v < {count}"
        )
    elif how is not None:
        values = ", ".join(["v", *[f"v + {i * count}" for i in range(1, plan.sums)]])
        given = f"; numbers {', '.join(how.numbers)}" if how.numbers else ""
        lines.append(
            f"combined: a tile is {width} columns of C, and of each of {plan.sums} matrices B,{each} one load of A "
            f"serves all. An element of C is a function of values {values} of a thread, for v < {count}{given}"
        )
    if plan.pair is not None:
        second = plan.k_tiles - tile_count(plan.k, plan.tile[2])
        lines.append(
            f"second pair: {second} of {plan.k_tiles} K tiles, the last ones, are of A2 and "
            f"{', '.join(plan.pair.of_b).upper()}, with {'tensor maps' if each else 'addresses'} of their own"
        )
    return lines


class RoleRow(NamedTuple):
    """name, who: warps of the block; does: what it issues and waits for."""

    name: str
    who: str
    does: str


class BarrierRow(NamedTuple):
    """A barrier's name, its kind (mbarrier, named or cluster), what completes it, and who waits. `completed` tells by
    how many arrivals and bytes."""

    name: str
    kind: str
    completed: str
    waits: str


def aligned(rows: tuple[tuple[str, ...], ...]) -> list[str]:
    """Rows of texts as lines, each column as wide as its widest text."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths)).rstrip() for row in rows]
