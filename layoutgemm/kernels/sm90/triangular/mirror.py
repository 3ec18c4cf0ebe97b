"""The second store of a symmetric product: each tile off the diagonal again, transposed.

C = A A^T is computed in the tiles of its lower triangle. A tile's transpose is a tile of the upper one, since a
cluster's tiles are square. A column-major C has element (m, n) at m + n * pitch. A row-major C has element (n, m)
there. So the same accumulators leave twice: by C's own store, and by that of the other order. The second one has
stmatrix.trans, and tensor maps of its own over the same memory.

The second store's epilogue is transposed, as where operands change places: it reads a bias or a matrix at the place
of the upper tile. A row's reduction becomes a column's, so rows get what the upper tiles have of them: their partial
results have lines of their own, and the second launch combines both. Groups of columns would be groups of rows, and
are refused.

The second store uses the buffers of the first. Between them, and before the next tile, each thread that issued stores
waits until they have read the buffers, and the warpgroup meets.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ....errors import PlanError
from ....report import Check
from ....schedule import Schedule, Triangular
from ...derive import Operand
from ...numbers import W
from ...operands.promoted import Promoted, said
from ...plan import PersistentPlan, check_settings, present
from ...plan_checks import boxes_of_c
from ...store import ROWS, WARPS_OF_GROUP, StorePlan

if TYPE_CHECKING:
    from ....atoms import MmaAtom
    from ..config import Sm90Config
    from ..plan import Sm90Plan


def other_order(c: Operand) -> Operand:
    """C with its other index contiguous."""
    return replace(c, order="col" if c.order == "row" else "row")


def is_mirrored(schedule: Schedule) -> bool:
    """True if tiles are stored twice."""
    return isinstance(schedule, Triangular) and schedule.mirror


def check_mirror(sizes: tuple[int, int, int, int], config: Sm90Config, mainloop: Promoted | None) -> None:
    """Raise PlanError, naming the obstacle, for a problem without a symmetric product's kernel."""
    if mainloop is not None and not mainloop.is_symmetric:
        tables = ", ".join(f"{table.name}: {table.said}" for table in mainloop.tables)
        raise PlanError(
            f"order = 'symmetric': total (i, j) is stored at (j, i) too, so A's and B's numbers have one group and are "
            f"exchanged without a change; total = {said(mainloop.expression)}, {tables}"
        )
    if sizes[0] != sizes[1]:
        raise PlanError(f"order = 'symmetric': C is square, not {sizes[0]}x{sizes[1]}")
    check_settings(config, "a symmetric product takes", store="tma", split=1, staged_epilogue_k_tiles=0)


def mirror_of(store: StorePlan, stored: MmaAtom, blocks: int, chunks: int, batch: int) -> StorePlan:
    """The store of the transposed tiles, through the buffers of C's own. As many chunks a round as fit.

    Raises PlanError where one chunk does not fit.
    """
    room = store.bytes(WARPS_OF_GROUP)
    need = room
    for count in range(chunks, 0, -1):
        found = StorePlan.derive(stored, blocks, other_order(store.c), count, 1)
        need = found.bytes(WARPS_OF_GROUP)
        if need <= room:
            return found.of_batch(batch)
    raise PlanError(
        f"a warpgroup's buffers of C have {room} bytes, and a transposed chunk {need}: more chunks or buffers"
    )


def is_off_diagonal(plan: Sm90Plan, row: W, column: W) -> bool:
    """True for a CTA's tile whose cluster lies off the diagonal. A traced condition for traced integers."""
    side = plan.tile_c[0] * plan.config.cluster[0]
    return row // side != column // side


def mirror_check(plan: Sm90Plan) -> Check:
    """The transposed store writes each element once, through the room of C's buffers."""
    mirror, store = present(plan.mirror), present(plan.store)
    of_mirror: PersistentPlan = replace(plan, c=mirror.c, store=mirror)
    boxes = boxes_of_c(of_mirror, mirror, ROWS // WARPS_OF_GROUP * mirror.warps)
    witness = "" if boxes else boxes.witness
    if mirror.c != other_order(store.c):
        witness = witness or f"the second store is of {mirror.c}, the first of {store.c}"
    if mirror.bytes(WARPS_OF_GROUP) > store.bytes(WARPS_OF_GROUP):
        witness = witness or f"{mirror.bytes(WARPS_OF_GROUP)} bytes of {store.bytes(WARPS_OF_GROUP)}"
    high, wide = (t * c for t, c in zip(plan.tile_c, plan.config.cluster, strict=True))
    if high != wide or plan.m != plan.n:
        witness = witness or f"a cluster's tile has {high}x{wide} elements, C {plan.m}x{plan.n}"
    for block in range(plan.blocks):
        columns = [0] * plan.tile_c[1]
        for _, round_ in mirror.rounds_of(block, 0):
            for chunk in round_.chunks:
                for column in range(chunk.column, chunk.column + chunk.width):
                    columns[column] += 1
        if set(columns) != {1}:
            witness = witness or f"column {next(i for i, n in enumerate(columns) if n != 1)} of block {block}"
    statement = (
        f"clusters off the diagonal store their {high}x{wide} elements twice, the second time as {mirror.c}, in "
        f"{len(mirror.rounds)} rounds of {mirror.bytes(WARPS_OF_GROUP)} bytes"
    )
    return Check("transposed store", statement, not witness, "exhaustion (columns)", witness)
