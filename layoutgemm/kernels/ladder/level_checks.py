"""Checks of the persistent levels: tile order and output."""

from __future__ import annotations

from ...atoms import SmemTile, TmaPlan
from ...checks import AccessPattern, bank_conflicts, bijective_tile, filled_by
from ...report import Check
from ...schedule import Persistent, Schedule


def every_tile_once(schedule: Schedule | Persistent) -> Check:
    """The schedule visits each tile of every grid once.

    >>> from layoutgemm.schedule import Grouped
    >>> every_tile_once(Grouped(group=8)).ok
    True
    """
    answer = schedule.prove()
    method = getattr(answer, "method", "none")
    return Check("tiles", f"{schedule} visits every tile once", bool(answer), method, "" if answer else str(answer))


def output_checks(tile: SmemTile, store: TmaPlan, access: AccessPattern) -> list[Check]:
    """The output's tile is bijective, emptied by the TMA store, and written without bank conflicts."""
    return [
        bijective_tile("tile C", tile),
        filled_by("store C", tile, store),
        bank_conflicts(tile, access).as_check("banks C"),
    ]
