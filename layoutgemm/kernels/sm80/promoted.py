"""The main loop that promotes, by mma.sync. What a thread reads of each K block's numbers, and when.

    registers            hold
    -----------------    ------------------------------------------------------------------------------------------
    sums                 the product of one K block, which is a k tile; they begin at 0 in each
    totals               the totals, of as many elements
    numbers              one of each row that the thread has elements of, and of each segment of its columns

A thread loads the next K block's numbers before it multiplies this one, from global memory: see
`operands.thread_numbers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ...atoms.copy.base import WARP
from ...errors import PlanError
from ..operands.combinations import Asked, check_parts
from ..operands.promoted import Promoted
from ..operands.thread_numbers import number_slots, numbers_at
from ..plan import check_settings

if TYPE_CHECKING:
    from .plan import Sm80Config, Sm80Plan

_LOOP = ("main loop",)  # the part of a product


def promoted_of(loop: Promoted | None, asked: Asked, config: Sm80Config, n: int) -> Promoted | None:
    """The main loop as a plan has it. Raises PlanError where no kernel has it.

    Of several sums its tables are in as many places.
    """
    if loop is None:
        return None
    # Threads gather rows as they copy them, and read numbers of the product's rows.
    check_parts([part for part in asked.parts if part != "gathered rows"], asked.batch, _LOOP)
    if asked.along_k is not None:
        raise PlanError("mainloop and along_k: by mma.sync K blocks are those of a whole K; scale A and B first")
    check_settings(config, "a main loop that promotes takes", loads="cp.async", persistent=False)
    if config.tile_k not in (None, loop.depth):
        raise PlanError(f"tile_k = {config.tile_k}: a k tile is what is promoted at a time, {loop.depth} elements")
    return loop.of_sums(asked.gated, n, config.tile[1])


def promoted_registers(plan: Sm80Plan) -> int:
    """Registers of a thread's totals and numbers, with those of the K block that follows."""
    if plan.mainloop is None:
        return 0
    m, n = plan.blocks
    return m * n * plan.mma.accumulator_registers + 2 * sum(len(each.first) for each in number_slots(plan))


def numbers_of_blocks(
    plan: Sm80Plan, tables: Mapping[str, object], at: tuple[int, int, int], k_block: int
) -> dict[str, np.ndarray]:
    """Each table's numbers of a K block, (block along M, block along N, lane, value).

    at  first row, first column and group of the warp's part
    """
    m, n = plan.blocks  # registers of the warp: value + 4 * (block along M + blocks * block along N)
    found = numbers_at(plan, tables, at, k_block)
    return {name: x.reshape(n, m, -1, WARP).transpose(1, 0, 3, 2) for name, x in found.items()}
