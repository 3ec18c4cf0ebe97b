"""The claims about packed weights in a plan. Their order, their copies, their way into registers, and banks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ....report import Check
from ...quantized.checks import bank_checks, conversion_check, copied_check, fragments_check, order_checks
from ...quantized.fragments import words_of
from ...quantized.order import WORDS, PackedOrder
from .strips import strips_check

if TYPE_CHECKING:
    from ..plan import Sm90Plan
    from .operand import PackedOperand


def packed_checks(plan: Sm90Plan, groups: int) -> list[Check]:
    """Every check of the packed operand; `groups` warpgroups share a tile's rows."""
    operand = plan.a
    order: PackedOrder = operand.packing
    unlike = ""
    if plan.mma.layout_A != order.atom.layout_A:
        unlike = f"the instruction's map of A is {plan.mma.layout_A}, the order's {order.atom.layout_A}"
    return [
        *order_checks(order),
        copied_check(operand) if operand.strips is None else strips_check(operand, operand.strips, plan.tile_c[0]),
        conversion_check(order, one_shift=operand.one_shift),
        fragments_check(operand, unlike),
        _blocks(plan, groups),
        *bank_checks(operand),
        *([_turns(operand)] if operand.turns > 1 else []),
    ]


def _turns(operand: PackedOperand) -> Check:
    """A turn loads the words and scales of its fragments, the next ones along K."""
    order, witness = operand.packing, ""
    each, vectors = operand.smem.extent[1] // order.depth // operand.turns, np.arange(operand.vectors)[:, None]
    words = (np.asarray(order.vector_bytes(0, vectors)) + 4 * np.arange(WORDS)).reshape(-1)
    for turn in range(operand.turns):
        found = [int(at) + 4 * i for at, count in operand.turn_words(turn) for i in range(count)]
        scales = operand.turn_scales(turn)
        for own in range(each):
            number = turn * each + own
            if [found[i] for i in words_of(order, own)] != [int(words[i]) for i in words_of(order, number)]:
                witness = witness or f"fragment {number}, {own} of turn {turn}, is of other words"
            if scales and scales[order.group_of(own)] != order.scale_bytes(0, order.group_of(number)):
                witness = witness or f"fragment {number}, {own} of turn {turn}, is of another group"
    statement = f"{operand.turns} turn(s) of a K tile load words and scales of {each} fragment(s) each"
    return Check("turns A", statement, not witness, "exhaustion", witness)


def _blocks(plan: Sm90Plan, groups: int) -> Check:
    """Consumer g begins with row block g * blocks."""
    want = groups * plan.blocks
    witness = "" if plan.a.row_blocks == want else f"a stage has {plan.a.row_blocks} row blocks"
    statement = f"{groups} consumer(s) with {plan.blocks} block(s) of A, {plan.a.block_bytes} bytes apart"
    return Check("blocks A", statement, not witness, "arithmetic", witness)
