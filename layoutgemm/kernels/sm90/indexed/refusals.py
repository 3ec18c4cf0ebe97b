"""Products with row indices that no Hopper kernel has, refused by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....arguments import shown
from ....errors import PlanError
from ...indexed.rows import IndexedRows, check_rows_lie
from ...plan import check_settings

if TYPE_CHECKING:
    from ...derive import Operand
    from ...epilogue.chain import Epilogue
    from ...operands.promoted import Promoted
    from ...ragged import Ragged
    from ..config import Sm90Config


def check_indexed(
    indexed: IndexedRows, config: Sm90Config, operands: tuple[Operand, Operand], ragged: Ragged | None,
    epilogue: Epilogue | None, mainloop: Promoted | None, batch: int,
) -> None:  # fmt: skip
    """Raise PlanError, naming the obstacle, for a problem without a kernel of indexed rows.

    operands  A and C
    """
    a, c = operands
    tables = [] if mainloop is None else [x.name for x in mainloop.tables if x.axis == "m" and x.group == 1]
    check_rows_lie(indexed, a, c, epilogue, tables, batch == 1 and ragged is None)
    if not indexed.places_rows and (indexed.copies or indexed.gather is None):
        return  # the product between copies and sums is an ordinary one
    moved = "scattered" if indexed.copies else "indexed"
    check_settings(
        config, f"a product with {moved} rows takes", loaded_a_rows=None, one_tile_per_cluster=False, split=1,
        store="tma", launch="workers",
    )  # fmt: skip
    if indexed.gather is not None and not indexed.copies:
        _check_gather(config, a)
    if indexed.scatter is not None and ragged is not None and ragged.clears:
        raise PlanError("ragged: clears = True, and rows of C are scattered: a row of no group is no row of C")


def _check_gather(config: Sm90Config, a: Operand) -> None:
    """Raise PlanError for a configuration or a type without a loader that gathers."""
    if a.dtype.name == "tf32":
        raise PlanError(
            "a is tf32: TMA rounds float32 as it copies, and cp.async, which gathers rows, does not; copy=True copies "
            "rows first"
        )
    if config.loader != "warpgroup":
        raise PlanError(f"loader = {shown(config.loader)}: rows are gathered by a warpgroup, loader='warpgroup'")
    if config.cluster[1] != 1:
        raise PlanError(f"cluster = {config.cluster}: cp.async does not multicast A along N; take (rows, 1)")
    for name in ("reverse_odd_tiles", "prefetch"):
        if found := getattr(config.tuning, name):
            raise PlanError(f"{name} = {shown(found)}: gathered rows are loaded in order of K, and not prefetched")
