"""Tiles of groups of rows. Each block makes a table of them at its start.

    starts[e]    offsets[e]: the group's first row; of masked groups counts[e], 0 to M
    first[e]     tiles (of clusters) in the groups before it
    tile t       the last group e with first[e] <= t, an empty one never; tile t - first[e] of its grid

The order of tiles in a grid is the plan's own.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ...report import Check
from ..derive import either
from ..numbers import W
from ..plan import present
from ..ragged import Ragged, masked_rows, sample_offsets, sample_sizes
from .plan import GroupedPlan


def tables(
    plan: GroupedPlan, numbers: npt.NDArray[np.int64], columns: int | None = None
) -> tuple[list[int], list[int]]:
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


def clusters_of(plan: GroupedPlan, rows: W, columns: W | int) -> W:
    """Tiles of clusters of a group with `rows` rows; `columns` tiles along N. Ints or traced integers."""
    along_m, along_n = plan.order.cluster
    if plan.turns:
        tiles = -(-rows // plan.tile_c[0])
        return tiles // 2 * columns + tiles % 2 * -(-columns // 2)
    return -(-rows // (plan.tile_c[0] * along_m)) * -(-columns // along_n)


def tile_of_group(
    plan: GroupedPlan, number: W, rows: W, columns: W | int, rank: W, of: tuple[Callable[..., W], Callable[..., W]]
) -> tuple[W, W]:
    """Row and column, in tiles of C, of a CTA's tile in its group's grid. Ints or traced integers.

    number   of the cluster's tile in the group
    rows     of the group, in elements; `columns` tiles along N
    of       the smaller of two; (condition, yes, no) -> one of them
    """
    (along_m, along_n), (minimum, choose) = plan.order.cluster, of
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


def rows_of_group(m: int, groups: int, ragged: Ragged | None) -> int:
    """The rows of a group that tiles are chosen for. Of groups along K, and of a batch, all of a matrix.

    >>> rows_of_group(1000, 3, Ragged.of(3)), rows_of_group(1000, 3, None)
    (334, 1000)
    """
    if ragged is None:
        return m
    return masked_rows(m) if ragged.masked else -(-m // groups)


# ---------------------------------------------------------------------------------------------------------------- proof


def _samples(plan: GroupedPlan) -> list[npt.NDArray[np.int64]]:
    """Groups of random sizes, many of them empty or on a tile's border; none, one, and as many as there may be.

    Masked groups have wrong sizes too: below 0, and more rows than A has.
    """
    tile, ragged = plan.tile_c[0] * plan.order.cluster[0], present(plan.ragged)
    if ragged.masked:
        return sample_sizes(ragged.capacity, tile, (-1, plan.m + 1))
    return sample_offsets(ragged.capacity, tile)


def tiles_check(plan: GroupedPlan, unlike: Callable[[int, int], str] | None = None) -> Check:
    """Tiles of sample batches are of the right groups, each once.

    unlike  (rows, columns) -> the first tile of a group's grid that is not computed once, or ""; None for plain grids
    """
    samples, witness, tiles, ragged = _samples(plan), "", 0, present(plan.ragged)
    columns, tile = plan.order.clusters((1, 3))[1], plan.tile_c[0] * plan.order.cluster[0]
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
        if unlike is not None:
            witness = witness or next(filter(None, (unlike(rows, 3) for rows in sorted(set(sizes)))), "")
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
