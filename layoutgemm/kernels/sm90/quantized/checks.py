"""The claims about packed weights in a plan: their order, their copies, their way into registers, and banks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ....report import Check
from ...plan_checks import tile_checks
from ...quantized.checks import bank_checks, conversion_check, copied_check, fragments_check, order_checks
from ...quantized.order import PackedOrder
from ..operands.fragment_loads import fragment_loads, store_checks

if TYPE_CHECKING:
    from ..plan import Sm90Plan


def packed_checks(plan: Sm90Plan, groups: int) -> list[Check]:
    """Every check of the packed operand; `groups` warpgroups share a tile's rows."""
    operand = plan.a
    order: PackedOrder = operand.packing
    unlike, stored = "", []
    if operand.converted is not None:
        tile = operand.converted.smem
        stores = store_checks(fragment_loads(order.atom, tile))
        own = [*tile_checks("A", tile, operand.descriptor, plan.mma), *stores]
        stored = [replace(check, name=f"converted {check.name}") for check in own]
    elif plan.mma.layout_A != order.atom.layout_A:
        unlike = f"the instruction's map of A is {plan.mma.layout_A}, the order's {order.atom.layout_A}"
    return [
        *order_checks(order),
        copied_check(operand),
        conversion_check(order, one_shift=operand.one_shift),
        fragments_check(operand, unlike),
        _blocks(plan, groups),
        *bank_checks(operand),
        *stored,
    ]


def _blocks(plan: Sm90Plan, groups: int) -> Check:
    """Consumer g begins with row block g * blocks."""
    want = groups * plan.blocks
    witness = "" if plan.a.row_blocks == want else f"a stage has {plan.a.row_blocks} row blocks"
    statement = f"{groups} consumer(s) with {plan.blocks} block(s) of A, {plan.a.block_bytes} bytes apart"
    return Check("blocks A", statement, not witness, "arithmetic", witness)
