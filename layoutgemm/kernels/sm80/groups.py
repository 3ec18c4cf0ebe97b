"""Groups of rows, masked groups, and groups along K by mma.sync. Where groups end is known on the device alone.

    groups        A             B             C             a block's tile
    ----------    ----------    ----------    ----------    ---------------------------------------------------------
    of rows       (M, K)        (E, K, N)     (M, N)        of one group: rows offsets[e] to offsets[e + 1] of A and C
    masked        (E, M, K)     (E, K, N)     (E, M, N)     of one matrix, of which the first counts[e] rows count
    along K       (M, K)        (K, N)        (E, M, N)     of one matrix: lines offsets[e] to offsets[e + 1] of K

Tiles of groups of rows have numbers without a table, of height T:

    first(e)    offsets[e] // T + e: the first tile of group e; each group has more numbers than tiles, or as many
    tile r      the last group e with first(e) <= r; rows offsets[e] + (r - first(e)) * T on
    all         M // T + groups, among them some without rows: such a block loads, multiplies and stores nothing

A tile's rows end with its group: copies repeat the group's last row, and rows behind it are not stored. Numbers outside
of A become its borders. Lines of K in another group are filled with zeros, as those behind K are.

Masked groups that multiply packed weights lie in one matrix, each of as many rows, R of them:

    tile r      group r // ceil(R / T); rows R * group + (r % ceil(R / T)) * T on, of which those before counts[e] count

Rows of no group, behind the last of `ends`, are not stored: a new result begins with zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...arguments import shown
from ...errors import PlanError
from ...report import Check
from ..derive import Operand, either
from ..numbers import W
from ..operands.combinations import GROUPS, Asked, check_parts
from ..plan import check_settings, present, tile_count
from ..ragged import AlongK, Ragged, check_room, sample_offsets, sample_sizes

if TYPE_CHECKING:
    from .plan import Sm80Config, Sm80Plan

_MAJORS = (("a", "col"), ("b", "row"))  # of groups along K


def check_groups(asked: Asked, config: Sm80Config, operands: Sequence[Operand], order: object) -> None:
    """Raise PlanError, naming the obstacle, for groups without a kernel.

    operands  A and B
    """
    groups = asked.ragged or asked.along_k
    if groups is None:
        return
    name = "ragged" if asked.ragged is not None else "along_k"
    kind = Ragged if asked.ragged is not None else AlongK
    check_room(name, groups, kind, asked.batch)
    check_parts(asked.parts, asked.batch, GROUPS)
    check_settings(config, "a grouped product by mma.sync takes", loads="cp.async", persistent=False)
    if order is not None and isinstance(groups, Ragged):
        raise PlanError(f"order = {shown(order)}: {GROUPS[groups.masked]} take the configuration's own; leave it out")
    if isinstance(groups, Ragged):
        if groups.clears:
            raise PlanError("clears: this kernel leaves rows of no group as they are; a new result begins with zeros")
        return
    if asked.prologue is not None:
        raise PlanError("prologue and along_k: by mma.sync a function is of an A whose columns are one group's")
    if groups.in_blocks:
        raise PlanError(f"multiple = {groups.multiple}: by mma.sync groups of K begin at any line: AlongK.of(groups)")
    for (name, order_), spec in zip(_MAJORS, operands, strict=True):
        if spec.order != order_:
            raise PlanError(
                f"{name} is {spec}: groups begin at any line of K, and K is not to be contiguous: {shown(order_)}"
            )


def row_tiles(m: W, groups: W, height: int) -> W:
    """Numbers of tiles of `height` rows of all groups, some without rows. Ints or traced integers.

    >>> row_tiles(21, 5, 16)
    6
    """
    return m // height + groups


def rows_of_tile(
    groups: Ragged, offset: Callable[[W], W], number: W, height: int,
    choose: Callable[..., W] = either, each: W | None = None,
) -> tuple[W, W, W]:  # fmt: skip
    """(group, first row, end of the group) of a tile of rows. Ints or traced integers. No rows if first >= end.

    offset  group -> its offset, the last one behind the last group; of a masked group its count
    choose  (condition, yes, no) -> one of them
    each    rows of a masked group

    >>> offsets = [0, 3, 3, 40]
    >>> [rows_of_tile(Ragged.of(3), lambda e: offsets[min(e, 3)], r, 16) for r in range(5)]
    [(0, 0, 3), (1, 3, 3), (2, 3, 40), (2, 19, 40), (2, 35, 40)]
    """
    if groups.masked:
        rows = present(each)
        group, tile = number // tile_count(rows, height), number % tile_count(rows, height)
        first, end = groups.lines(offset, group, rows)
        return group, first + tile * height, end
    group = groups.find(lambda e: offset(e) // height + e, number, choose)
    start = offset(group)
    return group, start + (number - start // height - group) * height, offset(group + 1)


def border(first: W, end: W, choose: Callable[..., W]) -> tuple[W, W]:
    """(first row, end) of a tile, both of at least one row of a matrix. A tile without rows begins at its end.

    >>> border(16, 40, either), border(16, 3, either), border(0, 0, either)
    ((16, 40), (16, 3), (1, 1))
    """
    whole = choose(end > 1, end, 1)
    return choose(first < end, first, choose(first > whole, first, whole)), whole


def launched_rows(plan: Sm80Plan, m: W, groups: W, count: Callable[[W, int], W]) -> W:
    """Tiles along M of a launch, or their numbers. Ints or traced integers.

    count  (extent, tile) -> tiles
    """
    if plan.experts is not None and plan.experts.masked:
        return groups * count(m // groups, plan.tile_c[0])
    return row_tiles(m, groups, plan.tile_c[0]) if plan.numbers_tiles else count(m, plan.tile_c[0])


# ---------------------------------------------------------------------------------------------------------------- proof


def group_checks(plan: Sm80Plan) -> list[Check]:
    """Each row of each group is in one tile, of sample batches."""
    groups, height = plan.groups, plan.tile_c[0]
    if groups is None:
        return []
    if not plan.numbers_tiles:
        return [_own_matrices(plan)]
    assert isinstance(groups, Ragged)
    if groups.masked:
        return [_masked_tiles(plan, groups)]
    witness, count, samples = "", 0, sample_offsets(groups.capacity, height)
    for offsets in samples:
        ends, last, found = offsets.tolist(), len(offsets) - 1, np.zeros(int(offsets[-1]), np.int64)
        ends += [ends[-1]] * (groups.entries - last)
        owner = np.repeat(np.arange(last), np.diff(offsets))
        behind = (2 * height + 3) * groups.leaves_rows  # rows of no group
        for number in range(row_tiles(int(offsets[-1]) + behind, last, height)):
            group, first, end = rows_of_tile(groups, ends.__getitem__, number, height)
            first, end = border(first, end, either)
            rows = slice(first, max(first, min(first + height, end)))
            found[rows] += 1
            if (owner[rows] != group).any():
                witness = witness or f"offsets {offsets.tolist()}: tile {number} is of group {group}, from row {first}"
            count += 1
        if (found != 1).any():
            row = int(np.argmax(found != 1))
            witness = witness or f"offsets {offsets.tolist()}: row {row} is in {found[row]} tiles"
    statement = f"groups of up to {groups.capacity}: each row is in one tile of {height} rows of its group"
    return [Check("groups", statement, not witness, f"{len(samples)} ragged batches ({count} tiles)", witness)]


def _masked_tiles(plan: Sm80Plan, groups: Ragged) -> Check:
    """Rows that count are in one tile of their group, and no others."""
    witness, count, height, samples = "", 0, plan.tile_c[0], sample_sizes(groups.capacity, plan.tile_c[0])
    for counts in samples:
        each = int(counts.max()) + 3
        found, owner = np.zeros(each * len(counts), np.int64), np.repeat(np.arange(len(counts)), each)
        for number in range(len(counts) * tile_count(each, height)):
            group, first, end = rows_of_tile(groups, counts.__getitem__, number, height, each=each)
            first, end = border(first, end, either)
            rows = slice(first, max(first, min(first + height, end)))
            found[rows] += 1
            if (owner[rows] != group).any():
                witness = witness or f"counts {counts.tolist()}: tile {number} is of group {group}, from row {first}"
            count += 1
        if (wrong := found != groups.counting(counts, len(found))).any():
            row = int(np.argmax(wrong))
            witness = witness or f"counts {counts.tolist()}: row {row} is in {found[row]} tiles"
    statement = f"masked groups, up to {groups.capacity}: each row that counts is in one tile of {height} of its group"
    return Check("groups", statement, not witness, f"{len(samples)} ragged batches ({count} tiles)", witness)


def _own_matrices(plan: Sm80Plan) -> Check:
    """Rows that count are in the tiles of their matrix, and no other rows."""
    height, witness, count = plan.tile_c[0], "", 0
    counts = sorted({int(x) for each in sample_sizes(4, height) for x in each})
    for end in counts:
        stored = np.zeros(max(counts) + height, np.int64)
        for row in range(-(-max(counts) // height)):
            first, last = border(row * height, end, either)
            stored[first : max(first, min(first + height, last))] += 1
            count += 1
        if not np.array_equal(stored, np.arange(len(stored)) < end):
            witness = witness or f"{end} rows count: {int(stored.sum())} are stored"
    statement = f"a matrix of C for each group, whose first rows that count are stored, for {len(counts)} counts"
    if plan.along_k is not None:
        statement = "a matrix of C for each group; its K is the group's lines, and those behind them are zeros"
    return Check("groups", statement, not witness, f"exhaustion ({count} tiles)", witness)


def explain_groups(plan: Sm80Plan) -> list[str]:
    """The groups and their tiles."""
    groups, height = plan.groups, plan.tile_c[0]
    if groups is None:
        return []
    if plan.along_k is not None:
        of = f"K = {plan.k} in {plan.batch} groups, their {groups.name} {groups.offsets} in global memory"
        return [f"groups       {of}; a matrix of C for each, whose K is its group's lines"]
    if not plan.numbers_tiles:
        of = f"{plan.batch} of {plan.m} rows each, of which as many count as an {groups.offsets} in global memory says"
        return [f"groups       {of}; a tile without such rows loads and stores nothing"]
    what = f"{plan.batch} weight matrices; " * (plan.experts is not None)
    which = f"the last group e with offsets[e] // {height} + e <= r"
    if isinstance(groups, Ragged) and groups.masked:
        which = f"group r // {tile_count(plan.m // plan.batch, height)}"
    return [
        f"{'groups ' if plan.experts is None else 'experts'}      {what}{plan.m} rows in {plan.batch} groups, their "
        f"{groups.name} {groups.offsets} in global memory; tile r is of {which}"
    ]
