"""Grouped products over a ragged batch, a mixture of experts. Rows offsets[e] to offsets[e + 1] of A times B[e].

A and C are matrices of all rows, one group after the other; where groups end is known on the device alone. The order of
tiles is the plan's own, group after group, each over the grid of its own rows:

    a table in shared memory, made by every block at its start
        starts[e]    offsets[e]: the group's first row
        first[e]     tiles (of clusters) in the groups before it
    tile t           the last group e with first[e] <= t, an empty one never; tile t - first[e] of its grid

Pairs of CTAs along M share B. With `turn_last_pair` a pair at an odd last row of tiles takes two columns of it, and
shares A. A group of L rows and W columns of tiles has L // 2 * W pairs, then L % 2 * ceil(W / 2) that have turned. A
CTA expects the same bytes, and releases stages to the same CTA, either way.

The W clusters take T tiles in T // W whole rounds and one of T % W. With `halve_last_round` the tiles of a last round
that at most half of the clusters would have are halved: twice as many clusters compute half of a CTA's R rows each.

    turn t                   t < T // W * W    T // W * W + 2 i    T // W * W + 2 i + 1
    tile                     t                 T // W * W + i      T // W * W + i
    its rows that a CTA has  0 to R - 1        0 to R / 2 - 1      R / 2 to R - 1

A half is the first consumer's. It is the last turn of its cluster: the second one only releases the stages.

Tiles of A reach into the rows of the next group: they are loaded, and what comes of them is not stored. A TMA store
ends at its tensor's extents, and a group's end is not one. So C's map has the end as a dimension:

    dimension   extent      distance     coordinate
    n           N           1            column
    m           R           a row        R - valid
    stop        M + 1       a row        the first row that is not stored

over a tensor that begins R rows before C, where R is 16 for a warp's boxes and 64 for a warpgroup's. Row r of the box
lies at row stop - R + r of C, and rows from R on are out of bounds. Exactly the first `valid` rows are stored.

With `shift_last_tile` a tile that would reach beyond A's last row begins earlier, by a multiple of R: its loads have
fewer than R rows behind its group. Boxes in front of the tile's place are other tiles', and m = R leaves them out. A
store's coordinates are not negative, so a box cannot leave out its first rows alone. Where a group ends before row T of
A, of tiles of T rows, no tile begins earlier.

Ends in place of offsets: ends[e] is offsets[e + 1], and rows from the last end on are in no group. Consumers store
zeros there after their tiles where the plan asks for it: rows end + w, end + w + W, ... by warp w of the W of all.

Operands that an epilogue writes end with the group too, by a comparison, and reductions take its rows alone. Rows of no
group are never written there. Columns are reduced in each group: see `kernels.partials`.

Masked groups have a matrix of A and of C each, of which the first counts[e] rows count. The same table has the counts,
0 to M each, in place of the first rows; tiles beyond a group's count have no number. C's map has the group as a fourth
dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ...arguments import shown
from ...atoms import TmaPlan
from ...atoms.tma.engine import global_bits
from ...errors import PlanError
from ...report import Check
from ..derive import either, one_matrix
from ..numbers import W
from ..plan import check_settings, present
from ..ragged import ENTRY_BYTES as ENTRY_BYTES
from ..ragged import GroupOffsets as GroupOffsets
from ..ragged import Ragged as Ragged
from ..ragged import check_ends as check_ends
from ..ragged import sample_offsets as sample_offsets
from ..ragged import sample_sizes as sample_sizes
from ..store import StorePlan

if TYPE_CHECKING:
    from ..derive import Operand
    from ..sm90.config import Sm90Config
    from ..sm90.plan import Sm90Plan


STOP = "stop"  # the dimension of C's tensor map that says where a group ends
START = "start"  # and of the operands' tensor maps, where a group along K begins


def tables(plan: Sm90Plan, numbers: npt.NDArray[np.int64], columns: int | None = None) -> tuple[list[int], list[int]]:
    """starts (or counts) and first, as every block makes them.

    numbers  the offsets, or the counts
    columns  tiles along N; None for the plan's
    """
    ragged, last = present(plan.ragged), len(numbers) - 1
    if ragged.masked:
        starts = [min(max(int(numbers[e]), 0), plan.m) if e <= last else 0 for e in range(ragged.entries)]
    else:
        starts = [int(numbers[min(e, last)]) for e in range(ragged.entries)]
    first = [0]
    for e in range(ragged.capacity):
        start, end = ragged.rows(starts.__getitem__, e)
        first.append(first[-1] + clusters_of(plan, end - start, plan.tiles[1] if columns is None else columns))
    return starts, first


def clusters_of(plan: Sm90Plan, rows: W, columns: W | int) -> W:
    """Tiles of clusters of a group with `rows` rows; `columns` tiles along N. Ints or traced integers."""
    along_m, along_n = plan.config.cluster
    if plan.turns:
        tiles = -(-rows // plan.tile_c[0])
        return tiles // 2 * columns + tiles % 2 * -(-columns // 2)
    return -(-rows // (plan.tile_c[0] * along_m)) * -(-columns // along_n)


def tile_of_group(
    plan: Sm90Plan, number: W, rows: W, columns: W | int, rank: W, of: tuple[Callable[..., W], Callable[..., W]]
) -> tuple[W, W]:
    """Row and column, in tiles of C, of a CTA's tile in its group's grid. Ints or traced integers.

    number   of the cluster's tile in the group
    rows     of the group, in elements; `columns` tiles along N
    of       the smaller of two; (condition, yes, no) -> one of them
    """
    (along_m, along_n), (minimum, choose) = plan.config.cluster, of
    lines = -(-rows // plan.tile_c[0])
    clusters = lines // 2 if plan.turns else -(-lines // along_m)
    whole = choose(clusters > 1, clusters, 1)  # of none the place has no meaning, and divides by no 0
    # Nor is a pair that has turned in the grid: behind it a band of tiles has no height to divide by.
    at = minimum(number, whole * columns - 1) if plan.turns else number
    row, column = plan.order.tile(at, 0, rank, (whole * along_m, -(-columns // along_n) * along_n), minimum)
    if not plan.turns:
        return row, column
    last = number - clusters * columns  # of the pairs at the odd row of tiles, which have two columns each
    return choose(last < 0, row, 2 * clusters), choose(last < 0, column, 2 * last + rank)


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


def stops_in_box(tma: TmaPlan) -> TmaPlan:
    """A store of C with the end of the group as a dimension more. See the module's docstring.

    Raises PlanError for a store that is not of rows.
    """
    if tma.dims != ("n", "m"):
        raise PlanError(f"a store of {tma.box} along {tma.dims}: groups end between rows, and C is stored row-major")
    return tma.batched(STOP)


def ragged_store(store: StorePlan, matrices: bool) -> StorePlan:
    """The store with the maps of `stops_in_box`; `matrices`: each group has a matrix of C."""
    maps = [stops_in_box(tma) for tma in store.maps]
    return replace(store, maps=tuple([tma.batched("l") if matrices else tma for tma in maps]))


def without_groups(tma: TmaPlan) -> TmaPlan:
    """The copies without the end or the start of a group as a dimension. Those of a tensor as it lies."""
    if STOP not in tma.dims and START not in tma.dims:
        return tma
    whole = one_matrix(tma)
    return whole.batched("l") if "l" in tma.dims else whole


def store_extents(m: W, n: W, lines: int) -> dict[str, W | int]:
    """The extents of C's tensor map, which begins the `lines` of a box before C."""
    return {"n": n, "m": lines, STOP: m + 1}


def box_place(first: W, end: W, lines: int, minimum: Callable[..., W]) -> tuple[W, W]:
    """(place along the box, stop) of a box that ends with its group.

    first  line of the group at which the box begins; `lines` of the box

    >>> box_place(32, 100, 16, min), box_place(96, 100, 16, min), box_place(112, 100, 16, min)
    ((0, 48), (12, 100), (28, 100))
    """
    stop = minimum(first + lines, end)
    return first + lines - stop, stop


def store_place(
    row: W, end: W, column: W, lines: int, minimum: Callable[..., W], left_out: W | int = 0
) -> dict[str, W]:
    """Coordinates of a box of `lines` rows from `row` on, up to the group's end. Ints or traced integers.

    left_out  1 for a box of which no row is stored, else 0
    """
    place, stop = box_place(row, end, lines, minimum)
    return {"n": column, "m": place + left_out * lines, STOP: stop}


def check_ragged(ragged: Ragged, groups: int, config: Sm90Config, a: Operand, c: Operand) -> None:
    """Raise PlanError, naming the obstacle, for a problem without a grouped kernel."""
    if not isinstance(ragged, Ragged) or groups > ragged.capacity:
        raise PlanError(f"ragged = {shown(ragged)}, batch = {groups}: Ragged.of(groups) has room for them")
    check_settings(
        config, "a grouped product takes", loaded_a_rows=None, one_tile_per_cluster=False, split=1, prefetch=0,
        store="tma", launch="workers",
    )  # fmt: skip
    if a.order != "row" and not ragged.masked:
        raise PlanError(f"a is {a}: groups begin at any row, and a tensor copy of columns at multiples of 16 bytes")
    if c.order != "row":
        raise PlanError(f"c is {c}: groups end between rows, and a tensor store of columns would go on: plan a 'row' C")


# ---------------------------------------------------------------------------------------------------------------- proof


def ragged_checks(plan: Sm90Plan) -> list[Check]:
    """Every tile of every group is computed once, and every row stored once."""
    halves = [_last_rounds(plan)] if plan.config.tuning.halve_last_round else []
    return [_tiles_of_groups(plan), *halves, *([_ends(plan)] if plan.stores_by_maps else [])]


def _samples(plan: Sm90Plan) -> list[npt.NDArray[np.int64]]:
    """Groups of random sizes, many of them empty or on a tile's border; none, one, and as many as there may be.

    Masked groups have wrong sizes too: below 0, and more rows than A has.
    """
    tile, ragged = plan.tile_c[0] * plan.config.cluster[0], present(plan.ragged)
    if ragged.masked:
        return sample_sizes(ragged.capacity, tile, (-1, plan.m + 1))
    return sample_offsets(ragged.capacity, tile)


def _tiles_of_groups(plan: Sm90Plan) -> Check:
    samples, witness, tiles, ragged = _samples(plan), "", 0, present(plan.ragged)
    columns, tile = plan.order.clusters((1, 3))[1], plan.tile_c[0] * plan.config.cluster[0]
    for numbers in samples:
        said = f"{ragged.name} {numbers.tolist()}"
        starts, first = tables(plan, numbers, 3)
        if ragged.masked:
            groups = [(0, int(end)) for end in np.clip(numbers, 0, plan.m)]
        else:
            groups = list(pairwise(numbers.tolist()))
        if groups != (found := [ragged.rows(starts.__getitem__, e) for e in range(len(groups))]):
            witness = witness or f"{said}: the table has groups {found}"
        sizes = [end - start for start, end in groups]
        expected = [(e, i) for e, rows in enumerate(sizes) for i in range(clusters_of(plan, rows, 3))]
        if plan.turns:
            witness = witness or next(filter(None, (_unlike_grid(plan, rows, 3) for rows in sorted(set(sizes)))), "")
        elif len(expected) != sum(-(-rows // tile) * columns for rows in sizes):
            witness = witness or f"{said}: {len(expected)} tiles of clusters"
        for t, want in enumerate(expected):
            group = ragged.find(first.__getitem__, t, either)
            if (group, t - first[group]) != want:
                witness = witness or f"{said}: tile {t} is {group, t - first[group]}, not {want}"
        if len(expected) != first[-1]:
            witness = witness or f"{said}: {len(expected)} tiles, the table ends at {first[-1]}"
        tiles += len(expected)
    statement = (
        f"groups of up to {ragged.capacity}: tile t is tile t - first[e] of the last group e with first[e] <= t, "
        "each once, and a group's grid has as many as the table says"
    )
    return Check("groups", statement, not witness, f"{len(samples)} ragged batches ({tiles} tiles)", witness)


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


def _ends(plan: Sm90Plan) -> Check:
    """The elements that a box writes, for every end of a group."""
    lines = plan.store.box_rows if plan.store is not None else 0
    witness, m, n = "", 5 * lines, plan.mma.shape_mnk[1]
    matrices = present(plan.ragged).masked and plan.batch > 1
    first = m if matrices else 0  # row 0 of the second group's matrix
    boxes, shifts = 0, plan.config.tuning.shift_last_tile
    for tma in plan.store.maps if plan.store is not None else ():
        pitch = 2 * n
        if tma.dims != ("n", "m", STOP, *["l"] * matrices):
            witness = witness or f"the map's dimensions are {tma.dims}"
            continue
        extents = {**store_extents(m, n, lines), "l": 2}
        strides = [pitch * tma.dtype.bytes] * 2 + [m * pitch * tma.dtype.bytes] * matrices
        tmap = tma.over([extents[name] for name in tma.dims], strides)
        for row in (0, 1, lines, m - lines, m - 1):
            for end in range(max(0, row - 2), m + 1):
                for left_out in (0, 1) if shifts else (0,):
                    place = {**store_place(row, end, 0, lines, min, left_out), "l": 1}
                    if place["m"] < 0 or place[STOP] < 0:
                        witness = witness or f"rows {row} to {end}: a coordinate of {place} is negative"
                        continue
                    bits, inside = global_bits(tmap, [place[name] for name in tma.dims])
                    rows, columns = np.divmod(bits[inside] // tma.dtype.bits, pitch)
                    want = np.arange(row, row if left_out else max(row, min(row + lines, end)))
                    found = np.sort((rows - lines - first) * pitch + columns)
                    right = (want[:, None] * pitch + np.arange(tma.box[0])).reshape(-1)
                    boxes += 1
                    if not np.array_equal(found, right):
                        witness = witness or f"rows {row} to {end} of a group: {found.size} elements, not {right.size}"
    statement = f"a box stores its rows up to its group's end, each once, and no other, for each of {boxes} ends"
    return Check("ends of groups", statement, not witness, "exhaustion", witness)


def explain_ragged(plan: Sm90Plan) -> list[str]:
    """The groups, their table and where stores end."""
    ragged = present(plan.ragged)
    if ragged.masked:
        of, entries = f"{plan.m} rows each, of which as many count as an {ragged.offsets}", "counts"
    else:
        of, entries = f"{plan.m} rows in all, their ends {ragged.offsets}", "first rows"
    ends = "threads store the rows of a group alone"
    if plan.stores_by_maps:
        store = present(plan.store)
        dims = ", ".join(store.maps[0].dims)
        ends = f"a box of {store.box_rows} rows ends with its group: C's map begins as many before C, along ({dims})"
    return [
        f"groups: {plan.batch} of {of} in global memory{' says' * ragged.masked}; tables of "
        f"{ragged.entries} {entries} and first tiles at {plan.smem.table_offset}, {ragged.bytes} bytes",
        f"  {ends}",
        *["  blocks of 64 rows behind a group's end are not multiplied"] * plan.config.tuning.skip_empty_blocks,
        *["  a tile that would reach beyond A's last row begins earlier"] * plan.config.tuning.shift_last_tile,
        *["  pairs at a group's odd last row of tiles have two columns of it, and share A in place of B"] * plan.turns,
        *[f"  tiles of a last round for at most half of the clusters are halved: {plan.tile_c[0] // 2} rows a CTA"]
        * plan.config.tuning.halve_last_round,
    ]
