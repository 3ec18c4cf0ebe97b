"""Grouped GEMM with packed weights of several experts. Each group of x's rows times its own, in one launch.

The kernel computes the transposed product: packed weights are A, and x's rows are columns of B and of C. Group e is
columns offsets[e] to offsets[e + 1]. Or groups are masked: all have as many columns, and the first counts[e] count. The
numbers are read on the device. A table in shared memory, made by every CTA:

    starts[e]    offsets[e]: the group's first column; of masked groups counts[e]
    first[e]     tiles in the groups before it: row tiles of a weight matrix * column tiles of the group
    tile t       the last group e with first[e] <= t, an empty one never; tile t - first[e] of its grid

A tile of x may reach into the next group: its rows are loaded, and their sums are not stored. The packed weights of an
expert lie behind those of the one before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ....errors import PlanError
from ....report import Check
from ...derive import either
from ...numbers import W
from ...plan import check_settings, present, tile_count
from ...quantized.formats import UNIT_ROWS
from ...ragged import Ragged, check_masked, check_room, check_writes_of_groups, sample_sizes

if TYPE_CHECKING:
    from ...derive import Operand
    from ...epilogue.chain import Epilogue
    from ..config import Sm90Config
    from ..plan import Sm90Plan


def check_experts(
    experts: Ragged, sizes: tuple[int, int, int, int], weights: object, config: Sm90Config, c: Operand,
    epilogue: Epilogue | None,
) -> None:  # fmt: skip
    """Raise PlanError, naming the obstacle, for a problem without a kernel of several experts.

    sizes  m, n, k and the experts
    """
    check_room("experts", experts, Ragged, sizes[3])
    check_masked(experts, sizes[1], sizes[3], "n")
    if weights is None:
        raise PlanError("experts without weights: they are groups of columns of a product with packed weights")
    check_settings(
        config, "a product of several experts takes", cluster=(1, 1), split=1, one_tile_per_cluster=False,
        overlap=False, store="direct", launch="workers",
    )  # fmt: skip
    if c.order != "col":
        raise PlanError(f"c is {c}: a group of rows of x is a group of columns of C, a 'col'")
    check_writes_of_groups(epilogue)


def weight_block(m: W, matrix: W, block: W) -> W:
    """A row block's number among those of all experts, from its number in its own. Ints or traced integers.

    >>> weight_block(100, 3, 1)
    7
    """
    return matrix * tile_count(m, UNIT_ROWS) + block


def tiles_of_group(plan: Sm90Plan, columns: W, row_tiles: W) -> W:
    """Tiles of a group with that many columns; ints or traced integers."""
    return tile_count(columns, plan.tile_c[1]) * row_tiles


def expert_tables(
    plan: Sm90Plan, numbers: npt.NDArray[np.int64], row_tiles: int | None = None
) -> tuple[list[int], list[int]]:
    """starts and first, as every CTA makes them; `row_tiles` along M, or the plan's."""
    experts, last = present(plan.experts), len(numbers) - 1
    rows = plan.tiles[0] if row_tiles is None else row_tiles
    starts = [0 if experts.masked and e > last else int(numbers[min(e, last)]) for e in range(experts.entries)]
    first = [0]
    for e in range(experts.capacity):
        start, end = experts.rows(starts.__getitem__, e)
        first.append(first[-1] + tiles_of_group(plan, end - start, rows))
    return starts, first


def expert_checks(plan: Sm90Plan) -> list[Check]:
    """Checks of the tiles of all groups, and of the weights that they read."""
    return [_tiles_of_experts(plan), _weights_of_experts(plan)]


def _tiles_of_experts(plan: Sm90Plan) -> Check:
    """The numbers of all tiles of sample batches against each group's grid."""
    witness, tiles, row_tiles, experts = "", 0, 3, present(plan.experts)
    sizes = sample_sizes(experts.capacity, plan.tile_c[1])
    for counts in sizes:
        each, offsets = int(counts.max()), np.concatenate([[0], np.cumsum(counts)])
        starts, first = expert_tables(plan, counts if experts.masked else offsets, row_tiles)
        wanted = []
        for e, count in enumerate(counts.tolist()):
            start = e * each if experts.masked else int(offsets[e])
            columns = -(-count // plan.tile_c[1])
            corners = [start + column * plan.tile_c[1] for column in range(columns)]
            wanted += [(e, row, corner) for corner in corners for row in range(row_tiles)]
        found = []
        for tile in range(first[-1]):
            group = experts.find(first.__getitem__, tile, either)
            start, end = experts.lines(starts.__getitem__, group, each)
            grid = (row_tiles, max(tile_count(end - start, plan.tile_c[1]), 1))
            row, column = plan.order.tile(tile - first[group], 0, 0, grid)
            found.append((group, row, start + column * plan.tile_c[1]))
        if sorted(found) != sorted(wanted):
            witness = witness or f"groups of {counts.tolist()}: {len(found)} tiles, {len(wanted)} of their grids"
        tiles += len(wanted)
    statement = f"groups of up to {experts.capacity} experts: each tile of each group's grid has one number"
    return Check("groups", statement, not witness, f"{len(sizes)} ragged batches ({tiles} tiles)", witness)


def _weights_of_experts(plan: Sm90Plan) -> Check:
    """Row blocks of all experts have numbers of their own, without gaps."""
    rows = tile_count(plan.m, UNIT_ROWS)
    found = [weight_block(plan.m, matrix, block) for matrix in range(plan.batch) for block in range(rows)]
    witness = "" if found == list(range(plan.batch * rows)) else f"row blocks are {found[:8]}..."
    statement = f"{plan.batch} expert(s) of {rows} row blocks, those of an expert behind those of the one before"
    return Check("weights of experts", statement, not witness, f"exhaustion ({len(found)} row blocks)", witness)


def explain_experts(plan: Sm90Plan) -> list[str]:
    """The groups and their table."""
    experts = present(plan.experts)
    starts = "counts" if experts.masked else "first columns"
    return [
        f"experts: {plan.batch} weight matrices; {plan.n} columns in as many groups, their {experts.name} "
        f"{experts.offsets} in global memory; tables of {experts.entries} {starts} and first tiles at "
        f"{plan.smem.table_offset}, {experts.bytes} bytes",
    ]
