"""K tiles divided evenly over all CTAs (stream-K): each has a run of units, which are (tile, K tile).

    unit = tile * K tiles + K tile         CTA w has units first_unit(w) to first_unit(w + 1) - 1

A tile of several CTAs is summed in device memory. Each warp adds for itself, since equal threads of the CTAs hold the
same elements:

    1. it stores its sums in its CTA's slot of the tile: slot 0 of the CTA's first tile, slot 1 of any other
    2. one lane takes a number from the counter of the tile and warp, by an atomic with release and acquire
    3. the warp with the last number loads all slots in the order of the CTAs, adds, and stores C

So equal calls give equal bits, and no CTA waits for another. The counter is 0 again behind the last number. A CTA has
parts of two tiles at most that others share: its first and its last.

Source: Osama et al., "Stream-K: Work-centric Parallel Decomposition for Dense Matrix-Matrix Multiplication on the GPU".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ....atoms.copy.base import WARP
from ....errors import PlanError
from ....layouts import Layout
from ....report import Check
from ....schedule import StreamK
from ...numbers import W
from ...plan import check_settings, tile_count
from ...quantized.formats import UNIT_K
from ...store import WARPS_OF_GROUP

if TYPE_CHECKING:
    from ...epilogue.chain import Epilogue
    from ..config import Sm90Config
    from ..plan import Sm90Plan

SUMS = "unit_sums"  # the kernel's parameter: the address of counters and slots
SLOTS = 2  # of a CTA
_COUNTER, _VECTOR, _LINE = 4, 16, 128  # bytes


@dataclass(frozen=True)
class UnitSums:
    """Device memory of the sums of tiles that several CTAs share: counters, then slots.

    warps  of a CTA that hold sums
    slots  (lane, vector of 4 sums, accumulator, warp, slot) -> vectors of 16 bytes in a CTA's slots

    >>> sums = UnitSums(8, Layout((32, 2, 1, 8, 2)))
    >>> sums.counters_bytes(48), sums.bytes(48, 132), sums.byte(0, 1, 0, 0, 0)
    (1536, 2164224, 512)
    """

    warps: int
    slots: Layout

    @property
    def words(self) -> tuple[str, ...]:
        """The kernel's parameter."""
        return (SUMS,)

    @property
    def cta_bytes(self) -> int:
        """Bytes of a CTA's slots."""
        return int(self.slots.size) * _VECTOR

    def counter(self, tile: W, warp: W) -> W:
        """The byte of the counter of a tile and a warp. Ints or traced integers."""
        return (tile * self.warps + warp) * _COUNTER

    def counters_bytes(self, tiles: W) -> W:
        """Bytes of all counters, which lie before the slots. Ints or traced integers."""
        return tile_count(tiles * self.warps * _COUNTER, _LINE) * _LINE

    def byte(self, lane: W, vector: int, block: int, warp: W, slot: W) -> W:
        """The byte of a vector in a CTA's slots. Ints or traced integers."""
        found: W = self.slots((lane, vector, block, warp, slot)) * _VECTOR
        return found

    def bytes(self, tiles: int, ctas: int) -> int:
        """Bytes of the memory, zeros before the first launch; launches that may overlap have one each."""
        return self.counters_bytes(tiles) + ctas * self.cta_bytes


def unit_sums(plan: Sm90Plan) -> UnitSums:
    """The memory of a plan's sums."""
    warps = WARPS_OF_GROUP * plan.config.consumers
    return UnitSums(warps, Layout((WARP, plan.mma.accumulator_registers // 4, plan.blocks, warps, SLOTS)))


def runs_of(plan: Sm90Plan, workers: int) -> StreamK:
    """The runs of units of as many CTAs, or of one for each unit."""
    tiles = plan.tiles[0]
    return StreamK(tiles, plan.k_tiles, min(workers, tiles * plan.k_tiles), tiles)


def check_units(config: Sm90Config, sizes: tuple[int, int, int, int], epilogue: Epilogue | None) -> None:
    """Raise PlanError, naming the obstacle, for a kernel whose K tiles are not divided evenly."""
    takes = "launch = 'units': a run of K tiles takes"
    check_settings(
        config, takes, schedule="cooperative", cluster=(1, 1), split=1, store="direct", one_tile_per_cluster=False,
        reverse_odd_tiles=False, gpc_order=(),
    )  # fmt: skip
    if config.loader == "self" or config.tile_k not in (None, UNIT_K):
        raise PlanError(
            f"loader = {config.loader!r}, tile_k = {config.tile_k}: runs of K tiles are loaded by a warp of their own, "
            f"unit by unit of {UNIT_K}: loader='warp'"
        )
    if sizes[1] > config.tile[1]:
        raise PlanError(f"n = {sizes[1]} in tiles of {config.tile[1]}: runs of K tiles are of one tile along N")
    if epilogue is not None and epilogue.reductions:
        raise PlanError("launch = 'units': warps of several CTAs store a tile, and reductions are of one")
    units = tile_count(sizes[0], config.tile[0]) * tile_count(sizes[2], UNIT_K)
    if units > np.iinfo(np.int32).max:
        raise PlanError(f"{units} K tiles of all tiles: numbers of units are signed 32-bit integers")


def units_check(plan: Sm90Plan, workers: int) -> Check:
    """Each unit is one CTA's, and the slots of a tile's CTAs are its own."""
    cut, witness = runs_of(plan, workers), ""
    taken: dict[tuple[int, int], int] = {}  # slot -> its tile
    for worker in range(cut.workers):
        segments = cut.segments(worker)
        for segment in segments:
            whole = segment.last - segment.first + 1 == cut.k_tiles
            for k_tile in (segment.first, segment.last):
                found = cut.worker(segment.tile * cut.k_tiles + k_tile)
                if found != worker:
                    witness = witness or f"K tile {k_tile} of tile {segment.tile}: CTA {found}, not {worker}"
            slot = worker, min(segment.tile - segments[0].tile, 1)
            if not whole and taken.setdefault(slot, segment.tile) != segment.tile:
                witness = witness or f"slot {slot}: of tiles {taken[slot]} and {segment.tile}"
    answer = cut.prove()
    statement = f"each of {cut.units} K tiles is that of one of {cut.workers} CTAs, and parts of tiles have slots"
    return Check("units", statement, bool(answer) and not witness, "proof, for all sizes; exhaustion", witness)


def explain_units(plan: Sm90Plan, workers: int) -> list[str]:
    """The runs, and the memory of shared tiles' sums."""
    cut = runs_of(plan, workers)
    size = unit_sums(plan).bytes(cut.tiles, cut.workers)
    return [
        f"units: {cut.units} (tile, K tile), in runs of up to {cut.busiest} for {cut.workers} CTAs; tiles of several "
        f"CTAs are summed in {size} bytes of device memory"
    ]
