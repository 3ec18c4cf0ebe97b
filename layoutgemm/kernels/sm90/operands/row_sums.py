"""Sums of A's rows beside a product. The gradient of a bias in the kernel of its weight's gradient.

    dW = dY^T @ X, db = sum over the rows of dY    A is dY^T, so db[m] is the sum of A's row m over K

A's tiles are in shared memory for the products. The consumers of the tiles with column 0 of C read them once more while
the tensor cores multiply, and add in f32. Each row of tiles has one such tile, so nothing is added between CTAs, and
the order of the sums is fixed. Of a block of 64 rows and a K tile:

    warp w                rows 16 w to 16 w + 15
    lane l, load i        8 neighbouring rows of one element of K, 16 bytes: `FIRST_ROW` and `ELEMENT`
    lanes of equal l % 2  one element of each 16 of K: their sums meet by shuffles behind the last K tile

Even elements of K come before odd ones, so that the lanes of a quarter-warp read different banks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ....arguments import settle, shown
from ....atoms.copy.base import VECTOR_BYTES, WARP
from ....checks import bank_conflicts
from ....dtypes import DType, bf16, f16, f32
from ....errors import OperandError, PlanError
from ....layouts import Layout
from ....report import Check
from ...numbers import W
from ...plan import check_settings, present
from ...store import ROWS, WARP_ROWS, WARPS_OF_GROUP

if TYPE_CHECKING:
    from ...derive import Operand
    from ..config import Sm90Config
    from ..plan import Sm90Plan

ROW_VECTOR = VECTOR_BYTES // bf16.bytes  # neighbouring rows in the 16 bytes that a lane loads
VECTOR_WORDS = VECTOR_BYTES // f32.bytes  # registers of such a load
EXCHANGES = (2, 4, 8, 16)  # lanes whose sums are of the same rows
_DEPTH = WARP * ROW_VECTOR // WARP_ROWS  # elements of K that a warp's load covers
# (lane, warp) -> the first of the rows of a block that a lane loads; lane -> its element of a load's K.
FIRST_ROW = Layout(((2, _DEPTH), WARPS_OF_GROUP), ((ROW_VECTOR, 0), WARP_ROWS))
ELEMENT = Layout((2, 4, 2, 2), (0, 2, 1, 8))


@dataclass(frozen=True, slots=True)
class RowSums:
    """The vector that takes the sums of A's rows. It is f32, bf16 or f16 of (M,), or (batch, M).

    >>> RowSums("bf16").words
    ('row_sums', 'row_sums_batch')
    """

    kind: str = "f32"

    def __post_init__(self) -> None:
        settle(self, PlanError)
        if self.kind not in ("f32", "bf16", "f16"):
            raise PlanError(f"row_sums of {shown(self.kind)}: 'f32', 'bf16' or 'f16'")

    @property
    def dtype(self) -> DType:
        """The type of a sum."""
        return {"f32": f32, "bf16": bf16, "f16": f16}[self.kind]

    @property
    def words(self) -> tuple[str, ...]:
        """The kernel's parameters. The vector's address, and elements from one of a batch to the next."""
        return "row_sums", "row_sums_batch"

    def take(self, given: Mapping[str, object], sizes: tuple[int, int]) -> npt.NDArray[np.generic]:
        """The NumPy array that is written, of the bits of the type. Raises OperandError for another.

        sizes  M and the batch
        """
        found, shape = given.get("row_sums"), sizes[:1] if sizes[1] == 1 else sizes[::-1]
        wanted = np.dtype(self.dtype.storage) if self.kind != "f32" else np.dtype(np.float32)
        if not isinstance(found, np.ndarray) or found.shape != shape or found.dtype != wanted:
            said = f"{found.dtype} of shape {found.shape}" if isinstance(found, np.ndarray) else shown(found)
            raise OperandError(f"row_sums is {said}: it takes contiguous {wanted} of {shape}, the bits of {self.kind}")
        if not found.flags.c_contiguous or not found.flags.writeable:
            raise OperandError("row_sums is written: it must be contiguous, and not read-only")
        return found


def column_of(lane: W, load: int) -> W:
    """The element of a K tile that a lane loads; ints, arrays or traced integers.

    >>> [column_of(lane, 1) for lane in range(0, 32, 2)]
    [16, 18, 20, 22, 17, 19, 21, 23, 24, 26, 28, 30, 25, 27, 29, 31]
    """
    return ELEMENT(lane) + load * _DEPTH


def loads_of_block(plan: Sm90Plan) -> int:
    """Loads of a lane for a block of rows and a K tile."""
    return int(plan.tile[2]) // _DEPTH


def check_row_sums(sums: RowSums, config: Sm90Config, a: Operand, tile_k: int) -> None:
    """Raise PlanError, naming the obstacle, for a product whose rows of A no kernel adds."""
    if not isinstance(sums, RowSums):
        raise PlanError(f"row_sums = {shown(sums)}: a RowSums")
    if a.dtype.bits != 16 or a.order != "col":
        raise PlanError(f"a is {a}: sums of its rows are of bf16 and f16 with M contiguous, as a gradient's transpose")
    if tile_k % _DEPTH:
        raise PlanError(f"tile_k = {tile_k}: sums of A's rows take {_DEPTH} of K at a time")
    check_settings(
        config, "sums of A's rows take", split=1, staged_epilogue_k_tiles=0, loaded_a_rows=None, launch="workers",
    )  # fmt: skip


def row_sums_check(plan: Sm90Plan) -> Check:
    """Lanes read each element of A's tile once, without bank conflicts."""
    lanes, warps = np.arange(WARP)[:, None, None], np.arange(WARPS_OF_GROUP)[None, :, None]
    loads = np.arange(loads_of_block(plan))[None, None, :]
    row, column = np.broadcast_arrays(FIRST_ROW(lanes, warps), column_of(lanes, 0) + loads * _DEPTH)
    each = np.zeros((ROWS, plan.tile[2]), np.int64)
    for v in range(ROW_VECTOR):
        np.add.at(each, (row + v, column), 1)
    witness = ""
    if (each != 1).any():
        at = tuple(int(x) for x in np.argwhere(each != 1)[0])
        witness = f"element {at} of a block is read {each[at]} times"
    for distance in EXCHANGES:
        if (np.asarray(FIRST_ROW(lanes ^ distance, warps)) != np.asarray(FIRST_ROW(lanes, warps))).any():
            witness = witness or f"lanes {distance} apart have other rows"
    first = np.asarray(plan.a.smem.byte(row, column))
    for v in range(ROW_VECTOR):
        if (np.asarray(plan.a.smem.byte(row + v, column)) != first + 2 * v).any():
            witness = witness or f"row {v} of a load is no neighbour"
    banks = bank_conflicts(first.reshape(WARP, -1).T, VECTOR_BYTES)
    if not banks:
        witness = witness or str(banks.witness)
    statement = (
        f"the lanes of a warpgroup read each element of {ROWS} rows and {plan.tile[2]} of K once, {ROW_VECTOR} rows at "
        f"a time, without bank conflicts; lanes {', '.join(map(str, EXCHANGES))} apart have the same rows"
    )
    return Check("sums of A's rows", statement, not witness, "exhaustion", witness)


def explain_row_sums(plan: Sm90Plan) -> list[str]:
    """The vector, and who adds."""
    sums = present(plan.row_sums)
    return [
        f"sums of A's rows: {sums.kind} of {plan.m}, by the consumers of each tile with column 0, "
        f"{loads_of_block(plan)} loads of 16 bytes a lane, a block of 64 rows and a K tile; in f32, in a fixed order"
    ]
