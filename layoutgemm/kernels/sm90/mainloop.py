"""The main loop that promotes, by wgmma. Its instruction of wide tiles, and what configuration has one.

The loader's side copies a K block's numbers into its stage, beside A and B: see `operands.stage_numbers`. The main loop
itself, and its tables, are those of `kernels.operands.promoted`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...arguments import shown
from ...atoms import MmaAtom, wgmma
from ...atoms.copy.base import WARP
from ...atoms.smem.descriptor import OperandDescriptor
from ...atoms.smem.descriptor import derive as derive_descriptor
from ...checks import read_by
from ...errors import PlanError
from ...report import Check
from ..operands.promoted import DEPTH as DEPTH
from ..operands.promoted import NUMBER_BYTES as NUMBER_BYTES
from ..operands.promoted import TOTAL as TOTAL
from ..operands.promoted import Promoted as Promoted
from ..operands.promoted import Table as Table
from ..operands.promoted import as_promoted
from ..operands.promoted import mainloop_of as mainloop_of
from ..operands.promoted import said as said
from ..plan import check_settings

if TYPE_CHECKING:
    from .config import Sm90Config
    from .plan import Sm90Plan

BULK = 16  # bytes: the address and the size of a bulk copy are multiples of it (PTX ISA, "cp.async.bulk")
MOST_SUMS = 192  # registers of a thread's totals and products; of more, parts of the columns are multiplied
COPY_ARRIVALS = WARP  # at a stage's barrier: each lane of the loader's warp copies numbers, and arrives for its own


def product_sets(plan: Sm90Plan) -> int:
    """Sets of product registers: two for a warpgroup that multiplies alone, else one.

    Of two sets one product runs while the one before is promoted. Where another warpgroup multiplies meanwhile, they
    cost 2 to 3%. One set is left to a consumer that loads for itself, or skips blocks, and where two find no room.
    """
    config, tuning = plan.config, plan.config.tuning
    alone = config.consumers == 1 and config.loader != "self"
    if not alone or tuning.skip_empty_blocks or tuning.blocks_per_sm > 1 or plan.mainloop is None:
        return 1
    return 2 if _sums(plan, 2, _parts(plan, 2)) <= MOST_SUMS else 1


def product_of(plan: Sm90Plan) -> tuple[MmaAtom, OperandDescriptor, int]:
    """The instruction of a K block's products, B's descriptor, and its parts of the columns.

    Of parts it is that of one, issued for each: more totals and products than `MOST_SUMS` would take all of a thread's
    registers.
    """
    mma, parts = plan.mma, 1 if plan.mainloop is None else _parts(plan, product_sets(plan))
    if parts == 1:
        return mma, plan.b.descriptor, 1
    part = wgmma(plan.tile[1] // parts, mma.a_dtype, mma.b_dtype, mma.c_dtype)
    return part, derive_descriptor(plan.b.smem, part, "B"), parts


def _parts(plan: Sm90Plan, sets: int) -> int:
    """The fewest parts of the columns, 1, 2 or 4, whose products fit beside the totals."""
    fitting = [1, *[parts for parts in (2, 4) if plan.b.order == "col" and plan.tile[1] % (8 * parts) == 0]]
    return next((parts for parts in fitting if _sums(plan, sets, parts) <= MOST_SUMS), fitting[0])


def _sums(plan: Sm90Plan, sets: int, parts: int) -> int:
    """Registers of a thread's totals, and of its sets of a part's products."""
    each = plan.mma.accumulator_registers
    return plan.blocks * each + sets * each // parts


def products_check(plan: Sm90Plan) -> Check:
    """The halves' instruction reads its columns, into the total's registers."""
    half, descriptor, parts = product_of(plan)
    found = read_by("products", plan.b.smem, descriptor, half, "B")
    thread, value = np.arange(half.threads)[:, None], np.arange(half.accumulator_registers)[None, :]
    witness, width = found.witness, half.shape_mnk[1]
    own = half.coords_C(thread, value)
    for part in range(parts):
        whole = plan.mma.coords_C(thread, value + part * half.accumulator_registers)
        wrong = np.argwhere((whole[0] != own[0]) | (whole[1] != own[1] + part * width))
        if len(wrong) and not witness:
            t, v = (int(x) for x in wrong[0])
            witness = f"part {part}: thread {t}, value {v} is not the total's"
    statement = f"{found.statement}; value v of part i is value v + {half.accumulator_registers} i of the total"
    return Check("products", statement, found.ok and not witness, found.method, witness)


def check_promoted(loop: Promoted, config: Any, a: Any, c: Any, gated: Any, sums: str, k: int) -> None:
    """Raise PlanError with the reason if no kernel has this main loop."""
    as_promoted(loop)
    if sums != "f32" or c.dtype.kind != "float":
        raise PlanError(f"a is {a}, c is {c}: a main loop that promotes computes in f32, and stores floats")
    if config.tile_k not in (None, loop.depth):
        raise PlanError(f"tile_k = {config.tile_k}: a k tile is what is promoted at a time, {loop.depth} elements")
    check_settings(
        config, "a main loop that promotes takes", schedule="cooperative", staged_epilogue_k_tiles=0,
        reverse_odd_tiles=False,
    )  # fmt: skip
    if config.split > 1 and not loop.adds:
        raise PlanError(
            f"split = {config.split}: parts of K are totalled apart, then added, and total = {said(loop.expression)} "
            "does more than add to the total"
        )
    if loop.span > 1:
        if k % (loop.depth * loop.span):
            raise PlanError(
                f"K = {k}: numbers of {loop.span} K blocks come together, so K is a multiple of {loop.depth} * "
                f"{loop.span}"
            )
        if config.loader == "self" or config.split > 1:
            raise PlanError(
                f"loader = {shown(config.loader)}, split = {config.split}: numbers of {loop.span} K blocks come "
                "together by "
                "a warp of their own, for all of K"
            )
    tile_n = config.tile[1] // (1 if gated is None else gated.matrices)
    for table in loop.tables:
        segment = table.segment(tile_n)
        if table.axis == "n" and 8 % segment and segment % 8:
            raise PlanError(
                f"{table.name}: a number for every {table.group} columns, in tiles of {tile_n}: tiles have it change "
                f"after every {segment} columns, and threads where {segment} divides 8 or is a multiple of it"
            )


def takes_together(config: Sm90Config) -> bool:
    """True if a kernel may read numbers of several K blocks together. A loader of many registers, all of K.

    Kernels of few rows have other loaders. They gain nothing by it.
    """
    return config.loader == "warpgroup" and config.split == 1
