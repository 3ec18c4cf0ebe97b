"""A function of A's elements in the Hopper kernel. The values of a stage, the refusals, the explanation.

    step          instruction        place
    ----------    ---------------    -----------------------------------------------------
    load          ldmatrix.x4        16x16 elements of a warp, of 8 bits 16x32: `FragmentLoads`
    f             f32 arithmetic     a thread's 8 or 16 values of them; outside of the tile's share of K they are 0
    round         cvt                to A's type; of 8 bits beyond the largest value, to that
    multiply      wgmma, A in rmem   64 rows of A, B from shared memory

Groups along K share one A: its columns, and numbers along "k", are counted from the first group's begin. Of two pairs f
is of the first one's A. The second one's registers are taken as ldmatrix loads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...epilogue.numpy_math import Math
from ...grouped.along_k import START
from ...operands.prologue import PrologueElement, check_types, prologue_line
from ...plan import check_settings, present
from .fragment_loads import loads_of

if TYPE_CHECKING:
    from ...derive import Operand
    from ...run.hardware_model import SharedBytes
    from ..config import Sm90Config
    from ..plan import Sm90Plan


def values_in_stage(
    plan: Sm90Plan, smem: SharedBytes, tile: int, part: tuple[int, int]
) -> npt.NDArray[np.float32]:  # fmt: skip
    """The (64, depth) values of an instruction's A as they lie in a stage. Arguments as for `prologue_values`."""
    loads, (height, depth) = loads_of(plan), (int(plan.mma.shape_mnk[0]), int(plan.mma.shape_mnk[2]))
    m, k = np.arange(height)[:, None], depth * part[1] + np.arange(depth)[None, :]
    addresses = tile + np.asarray(loads.tile.byte(m + height * part[0], k), np.int64)
    return loads.tile.dtype.decode(smem.read(addresses, loads.tile.dtype)).astype(np.float32)


def first_column(place: Mapping[str, Any]) -> Any:
    """The column of A with which a K tile begins, of its coordinates. Before 0 where a group's last lines are fewer.

    >>> first_column({"k": 64}), first_column({"k": -48, "start": 40})
    (64, -8)
    """
    return place["k"] + place.get(START, 0)


def prologue_values(
    plan: Sm90Plan, given: Mapping[str, npt.ArrayLike], smem: SharedBytes, tile: int, part: tuple[int, int],
    place: tuple[int, int, int], lines: tuple[int, int],
) -> npt.NDArray[np.float32]:  # fmt: skip
    """The (64, depth) values of an instruction's A. They are f of what lies in a stage, rounded to A's type; else 0.

    tile   the address of A's tile in shared memory
    part   (block of 64 rows, K block) of the tile
    place  row and column of A of the block's and the tile's first element, and the matrix
    lines  the columns of the tile's share of K, beyond which A is 0
    """
    prologue, x = present(plan.prologue), values_in_stage(plan, smem, tile, part)
    height, depth = x.shape
    rows, columns = place[0] + np.arange(height)[:, None], place[1] + depth * part[1] + np.arange(depth)[None, :]
    values = {}
    for operand in prologue.operands:
        vector = np.asarray(given[operand.name])
        vector = vector[place[2]] if vector.ndim > 1 else vector
        at = np.clip(rows if operand.axis == "m" else columns, 0, vector.shape[0] - 1)
        values[operand.name] = vector[at].astype(np.float32)
    with np.errstate(all="ignore"):
        found = np.asarray(prologue.apply(x, PrologueElement(rows, columns, values, Math)), np.float32)
        inside = (columns >= lines[0]) & (columns < lines[1])
        found = np.where(inside, np.broadcast_to(found, x.shape), np.float32(0))
        return plan.a.dtype.decode(plan.a.dtype.encode(found)).astype(np.float32)


def check_prologue(prologue: object, config: Sm90Config, a: Operand, b: Operand) -> None:
    """Raise PlanError, naming the obstacle, for a product without a kernel with a prologue."""
    check_types(prologue, a, b)
    check_settings(
        config, "a product with a prologue takes", schedule="cooperative", staged_epilogue_k_tiles=0,
        reverse_odd_tiles=False, loaded_a_rows=None, products="warpgroup",
    )  # fmt: skip


def explain_prologue(plan: Sm90Plan) -> list[str]:
    """The function, where it is computed, and how often."""
    prologue, loads = present(plan.prologue), loads_of(plan)
    values = plan.blocks * loads.steps * int(loads.atom.layout_A[1].size)
    lines = [
        prologue_line(prologue, plan.a.dtype, plan.n, plan.tile_c[1]),
        f"  a thread computes {values} values a K tile, from {plan.blocks * loads.steps} {loads.copy.ptx}",
    ]
    for operand in prologue.operands:
        each = "row, read once a tile" if operand.axis == "m" else "column, read in each K tile"
        lines.append(f"  {operand.name}: {operand.dtype}, a number a {each}, from global memory")
    if plan.pair is not None:
        lines.append("  of the first pair's A; the second pair's is multiplied as it is")
    return lines
