"""Packed weights of several experts. Each group of x's rows times its own, in one launch.

Group e is rows offsets[e] to offsets[e + 1] of x and of C, and its weights lie behind those of the expert before. The
offsets are read on the device. Tiles of rows have numbers without a table, of height T:

    first(e)    offsets[e] // T + e: the first tile of group e; each group has more numbers than tiles, or as many
    tile r      the last group e with first(e) <= r; rows offsets[e] + (r - first(e)) * T on
    all         M // T + groups, among them some without rows: such a block loads, multiplies and stores nothing
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ....arguments import shown
from ....errors import PlanError
from ....report import Check
from ...derive import either
from ...numbers import W
from ...plan import check_settings, present, tile_count
from ...quantized.formats import UNIT_K, UNIT_ROWS
from ...ragged import Ragged, check_writes_of_groups, sample_offsets

if TYPE_CHECKING:
    from ...epilogue.chain import Epilogue
    from ..plan import Sm80Config, Sm80Plan


def check_experts(experts: Ragged, groups: int, weights: object, config: Sm80Config, epilogue: Epilogue | None) -> None:
    """Raise PlanError, naming the obstacle, for a problem without a kernel of several experts."""
    if experts.masked or experts.ends or groups > experts.capacity:
        raise PlanError(
            f"experts = {shown(experts)}, batch = {groups}: Ragged.of(groups) has room for them, by offsets"
        )
    if weights is None:
        raise PlanError("experts without weights: they are groups of rows of a product with packed weights")
    check_settings(config, "a product of several experts takes", split=1)
    check_writes_of_groups(epilogue)


def row_tiles(m: W, groups: W, height: int) -> W:
    """Numbers of tiles of `height` rows of all groups, some without rows. Ints or traced integers.

    >>> row_tiles(21, 5, 16)
    6
    """
    return m // height + groups


def rows_of_tile(
    experts: Ragged, offset: Callable[[W], W], number: W, height: int,
    choose: Callable[[Any, Any, Any], Any] = either,
) -> tuple[W, W, W]:  # fmt: skip
    """(group, first row, end of the group) of a tile of rows. Ints or traced integers. No rows if first >= end.

    offset  group -> its offset, the last one behind the last group
    choose  (condition, yes, no) -> one of them

    >>> offsets = [0, 3, 3, 40]
    >>> [rows_of_tile(Ragged.of(3), lambda e: offsets[min(e, 3)], r, 16) for r in range(5)]
    [(0, 0, 3), (1, 3, 3), (2, 3, 40), (2, 19, 40), (2, 35, 40)]
    """
    group = experts.find(lambda e: offset(e) // height + e, number, choose)
    start = offset(group)
    return group, start + (number - start // height - group) * height, offset(group + 1)


def expert_bytes(plan: Sm80Plan, n: W, k: W) -> W:
    """Bytes of an expert's packed weights; ints or traced integers."""
    return tile_count(n, UNIT_ROWS) * tile_count(k, UNIT_K) * plan.b.packing.unit_bytes


def expert_checks(plan: Sm80Plan) -> list[Check]:
    """Each row of each group is in one tile, of sample batches."""
    if plan.experts is None:
        return []
    witness, height, count = "", plan.tile[0], 0
    samples = sample_offsets(present(plan.experts).capacity, height)
    for offsets in samples:
        ends, last, found = offsets.tolist(), len(offsets) - 1, np.zeros(int(offsets[-1]), np.int64)
        ends += [ends[-1]] * (plan.experts.entries - last)
        owner = np.repeat(np.arange(last), np.diff(offsets))
        for number in range(row_tiles(int(offsets[-1]), last, height)):
            group, first, end = rows_of_tile(plan.experts, ends.__getitem__, number, height)
            rows = slice(first, max(first, min(first + height, end)))
            found[rows] += 1
            if group >= last or (owner[rows] != group).any():
                witness = witness or f"offsets {offsets.tolist()}: tile {number} is of group {group}, from row {first}"
            count += 1
        if (found != 1).any():
            row = int(np.argmax(found != 1))
            witness = witness or f"offsets {offsets.tolist()}: row {row} is in {found[row]} tiles"
    statement = (
        f"groups of up to {plan.experts.capacity} experts: each row is in one tile of {height} rows of its group"
    )
    return [Check("groups", statement, not witness, f"{len(samples)} ragged batches ({count} tiles)", witness)]


def explain_experts(plan: Sm80Plan) -> list[str]:
    """The groups and their tiles."""
    if plan.experts is None:
        return []
    return [
        f"experts      {plan.batch} weight matrices; {plan.m} rows in as many groups, their offsets "
        f"{plan.experts.offsets} in global memory; tile r is of the last group e with offsets[e] // {plan.tile[0]} + e "
        "<= r"
    ]
