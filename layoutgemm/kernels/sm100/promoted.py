"""The main loop that promotes, by tcgen05. Each K block is an accumulator of its own, the totals are registers.

    role        plain                                   promotes
    --------    ------------------------------------    ------------------------------------------------------------
    mma         acc_empty[i] and acc_full[i] once       once for each K block, whose products begin at 0
                a tile
    epilogue    loads a tile's sums, gives them back    loads each K block's sums, gives them back, and computes the
                                                        totals of its row; after the last one they are stored

The ring of accumulators then carries K blocks: one is promoted while the next is multiplied. A thread has a row of C:
a number for it, and one of each segment of its columns, which it loads one K block ahead.

Sources: NVIDIA, CUTLASS, example 81 ("blackwell_gemm_blockwise"), has the same division of work. No device of this
architecture has run it: the emulator and ptxas have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import PlanError
from ..derive import Operand
from ..operands.combinations import Asked, check_parts
from ..operands.promoted import Promoted, as_promoted
from ..operands.thread_numbers import number_slots
from ..plan import present

if TYPE_CHECKING:
    from .plan import Sm100Config, Sm100Plan


def promoted_of(asked: Asked, config: Sm100Config, c: Operand, n: int) -> Promoted | None:
    """The main loop as a plan has it. Raises PlanError where no kernel has it.

    n  C's columns: of several sums the tables are in as many places
    """
    if asked.mainloop is None:
        return None
    loop = as_promoted(asked.mainloop)
    # TMA gathers rows, and threads read numbers of the product's rows.
    check_parts([part for part in asked.parts if part != "gathered rows"], asked.batch, ("main loop",))
    if asked.along_k is not None:
        raise PlanError("mainloop and along_k: by tcgen05 K blocks are those of a whole K; scale A and B first")
    if c.dtype.kind != "float":
        raise PlanError(f"c is {c}: a main loop that promotes computes in f32, stores floats")
    if config.tile_k not in (None, loop.depth):
        raise PlanError(f"tile_k = {config.tile_k}: a k tile is what is promoted at a time, {loop.depth} elements")
    return loop.of_sums(asked.gated, n, present(config.tile)[1])


def promoted_registers(plan: Sm100Plan) -> dict[str, int]:
    """Registers of an epilogue thread's totals, and numbers of two K blocks."""
    if plan.mainloop is None:
        return {}
    numbers = 2 * sum(len(each.first) for each in number_slots(plan))
    return {"totals": plan.sums * plan.fragment.accumulator_registers, "numbers of two K blocks": numbers}
