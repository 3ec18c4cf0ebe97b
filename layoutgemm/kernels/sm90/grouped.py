"""Grouped products over a ragged batch, a mixture of experts. Rows offsets[e] to offsets[e + 1] of A times B[e].

A and C are matrices of all rows, one group after the other; where groups end is known on the device alone. Tiles come
group after group, each over the grid of its own rows: see `kernels.grouped.rows`.

Pairs of CTAs along M share B. With `turn_last_pair` a pair at an odd last row of tiles takes two columns of it, and
shares A. A group of L rows and W columns of tiles has L // 2 * W pairs, then L % 2 * ceil(W / 2) that have turned. A
CTA expects the same bytes, and releases stages to the same CTA, either way.

The W clusters take T tiles in T // W whole rounds and one of T % W. With `halve_last_round` the tiles of a last round
that at most half of the clusters would have are halved: twice as many clusters compute half of a CTA's R rows each.

    turn t                   t < T // W * W    T // W * W + 2 i    T // W * W + 2 i + 1
    tile                     t                 T // W * W + i      T // W * W + i
    its rows that a CTA has  0 to R - 1        0 to R / 2 - 1      R / 2 to R - 1

A half is the first consumer's. It is the last turn of its cluster: the second one only releases the stages.

Tiles of A reach into the rows of the next group: they are loaded, and what comes of them is not stored, as stores end
with their group: see `kernels.grouped.stores`. A box has R rows, 16 of a warp and 64 of a warpgroup.

With `shift_last_tile` a tile that would reach beyond A's last row begins earlier, by a multiple of R: its loads have
fewer than R rows behind its group. Boxes in front of the tile's place are other tiles', and m = R leaves them out. A
store's coordinates are not negative, so a box cannot leave out its first rows alone. Where a group ends before row T of
A, of tiles of T rows, no tile begins earlier.

Ends in place of offsets: ends[e] is offsets[e + 1], and rows from the last end on are in no group. Consumers store
zeros there after their tiles where the plan asks for it: rows end + w, end + w + W, ... by warp w of the W of all.

Operands that an epilogue writes end with the group too, by a comparison, and reductions take its rows alone. Rows of no
group are never written there. Columns are reduced in each group: see `kernels.partials`.

Masked groups have a matrix of A and of C each, of which the first counts[e] rows count. Tiles beyond a group's count
have no number.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ...report import Check
from ..derive import either
from ..grouped.rows import clusters_of, tile_of_group, tiles_check
from ..grouped.stores import check_orders, ends_check, explain_groups
from ..numbers import W
from ..plan import check_settings, present
from ..ragged import Ragged, check_room

if TYPE_CHECKING:
    from ..derive import Operand
    from ..sm90.config import Sm90Config
    from ..sm90.plan import Sm90Plan


def is_turned(plan: Sm90Plan, row: W, start: W, end: W) -> W:
    """True if the tile's pair has turned. Its group has an odd number of rows of tiles, and this is the last.

    row         the first of a tile, or of a half of one; ints or traced integers
    start, end  of its group's rows
    """
    tile = plan.tile_c[0]
    line = (row - start) // tile
    return (line % 2 == 0) & (end - start - line * tile <= tile)


def rows_before(plan: Sm90Plan, row: W, rows: tuple[W, W], m: W, choose: Callable[..., W]) -> W | int:
    """Rows by which a tile begins before its place. Of a tile that reaches beyond A's last row; else 0.

    row   the first of a tile, or of a half of one; ints or traced integers
    rows  the first and the end of its group; m of A
    """
    if not plan.config.tuning.shift_last_tile:
        return 0
    start, end = rows
    behind, lines = first_of_tile(plan, row, start) + plan.tile_c[0], present(plan.store).box_rows
    return choose((behind > m) & (end >= plan.tile_c[0]), (behind - end) // lines * lines, 0)


def first_of_tile(plan: Sm90Plan, row: W, start: W) -> W:
    """The first row of a row's tile, of a group from `start` on."""
    return start + (row - start) // plan.tile_c[0] * plan.tile_c[0]


def last_round(tiles: W, clusters: W, choose: Callable[..., W]) -> tuple[W, W]:
    """(tiles that are whole, the clusters' turns) of rounds whose last one is halved. Ints or traced integers.

    >>> [last_round(tiles, 8, either) for tiles in (3, 8, 19, 21)]
    [(0, 6), (8, 8), (16, 22), (21, 21)]
    """
    whole = tiles // clusters * clusters
    rest = tiles - whole
    fits = 2 * rest <= clusters
    return choose(fits, whole, tiles), choose(fits, tiles + rest, tiles)


def tile_of_turn(plan: Sm90Plan, turn: W, whole: W, choose: Callable[..., W]) -> tuple[W, W]:
    """(tile of a cluster, first row in a CTA's tile) of a turn. Ints or traced integers.

    whole  tiles that are not halved
    """
    further = turn - whole
    half = further % 2 * (plan.tile_c[0] // 2)
    return choose(further < 0, turn, whole + further // 2), choose(further < 0, 0, half)


def check_ragged(ragged: Ragged, groups: int, config: Sm90Config, a: Operand, c: Operand) -> None:
    """Raise PlanError, naming the obstacle, for a problem without a grouped kernel."""
    check_room("ragged", ragged, Ragged, groups)
    check_settings(
        config, "a grouped product takes", loaded_a_rows=None, one_tile_per_cluster=False, split=1, prefetch=0,
        store="tma", launch="workers",
    )  # fmt: skip
    check_orders(ragged, a, c)


# ---------------------------------------------------------------------------------------------------------------- proof


def ragged_checks(plan: Sm90Plan) -> list[Check]:
    """Every tile of every group is computed once, and every row stored once."""
    halves = [_last_rounds(plan)] if plan.config.tuning.halve_last_round else []
    unlike = partial(_unlike_grid, plan) if plan.turns else None
    ends = [ends_check(plan, plan.config.tuning.shift_last_tile)] if plan.stores_by_maps else []
    return [tiles_check(plan, unlike), *halves, *ends]


def _unlike_grid(plan: Sm90Plan, rows: int, columns: int) -> str:
    """The first tile of a group that its pairs do not compute once, or "".

    Or the first pair whose CTAs do not share the operand that they both send: rows of A, or columns of B.
    """
    lines, tile_m = -(-rows // plan.tile_c[0]), plan.tile_c[0]
    times = dict.fromkeys(((row, column) for row in range(lines) for column in range(columns)), 0)
    for number in range(clusters_of(plan, rows, columns)):
        pair = [tile_of_group(plan, number, rows, columns, rank, (min, either)) for rank in range(plan.sharing)]
        turned = {is_turned(plan, row * tile_m, 0, rows) for row, _ in pair}
        if len(turned) > 1 or len({place[0 if True in turned else 1] for place in pair}) > 1:
            return f"{rows} rows: pair {number} has tiles {pair}, turned {sorted(turned)}"
        for at in pair:
            if at in times:
                times[at] += 1
            elif at[0] >= lines or at[1] > columns:
                return f"{rows} rows: pair {number} has tile {at} of {lines}x{columns}"
    wrong = next((at for at, count in times.items() if count != 1), None)
    return "" if wrong is None else f"{rows} rows: tile {wrong} of {lines}x{columns} is computed {times[wrong]} times"


def _last_rounds(plan: Sm90Plan) -> Check:
    """Turns have each tile once, or both halves; a half is a cluster's last."""
    witness, tile, counts, clusters = "", plan.tile_c[0], 0, (1, 2, 3, 8, 33, 66)
    for many in clusters:
        for tiles in range(2 * many + many // 2 + 2):
            whole, turns = last_round(tiles, many, either)
            found = [tile_of_turn(plan, turn, whole, either) for turn in range(turns)]
            halves = [(t, row) for t in range(whole, tiles) for row in (0, tile // 2)]
            if found != [*[(t, 0) for t in range(whole)], *halves] or turns - whole > many:
                witness = witness or f"{tiles} tiles of {many} clusters: turns {found}"
            counts += 1
    for rows in range(1, 3 * tile + 1) if plan.turns else ():
        for line in range(0, rows, tile // 2):
            turned = [is_turned(plan, row, 0, rows) for row in (line // tile * tile, line)]
            if turned[0] != turned[1]:
                witness = witness or f"{rows} rows, row {line}: the tile has turned: {turned[0]}, its half {turned[1]}"
    statement = (
        f"up to {clusters[-1]} clusters: a turn is a tile, or {tile // 2} of its {tile} rows as its cluster's last; "
        "half a tile has turned if the tile has"
    )
    return Check("last rounds", statement, not witness, f"{counts} numbers of tiles, 1 to {3 * tile} rows", witness)


def explain_ragged(plan: Sm90Plan) -> list[str]:
    """The groups, their table and where stores end."""
    return [
        *explain_groups(plan),
        *["  blocks of 64 rows behind a group's end are not multiplied"] * plan.config.tuning.skip_empty_blocks,
        *["  a tile that would reach beyond A's last row begins earlier"] * plan.config.tuning.shift_last_tile,
        *["  pairs at a group's odd last row of tiles have two columns of it, and share A in place of B"] * plan.turns,
        *[f"  tiles of a last round for at most half of the clusters are halved: {plan.tile_c[0] // 2} rows a CTA"]
        * plan.config.tuning.halve_last_round,
    ]
