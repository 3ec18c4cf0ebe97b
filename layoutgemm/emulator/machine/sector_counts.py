"""Sectors of global memory, counted for each instruction.

A warp's request moves each sector of 32 bytes that its lanes touch once (`checks/coalescing.py`). The counts cover each
ld, st, atom and red of global memory, and the global side of cp.async. Bulk and tensor copies are no requests of lanes.
Where lanes split, each part is a request.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ...checks.coalescing import LINE, count_sectors
from ..ptx.parser import PtxInstruction
from .bank_counts import CountedRow, CountedUse, as_table


@lru_cache(maxsize=1 << 14)
def _counted(width: int, offsets: bytes) -> tuple[int, int]:
    """(sectors, least sectors) of a request; offsets: of the lanes, from the beginning of a line."""
    sectors, _, _, least = count_sectors(np.frombuffer(offsets, np.int64)[None], width, 0)[:, 0].tolist()
    return sectors, least


@dataclass
class SectorUse(CountedUse):
    """Sectors that one instruction moved in a run. `minimum` is the number that no arrangement of the same bytes could
    avoid."""

    sectors: int = 0
    minimum: int = 0

    def add(self, other: SectorUse) -> None:
        """Add another count."""
        self.requests += other.requests
        self.sectors += other.sectors
        self.minimum += other.minimum

    @property
    def excess(self) -> int:
        """Sectors beyond the minimum."""
        return self.sectors - self.minimum


class SectorCounter:
    """Counts for one run. uses: pc -> the sectors of the instruction there."""

    def __init__(self) -> None:
        self.uses: dict[int, SectorUse] = {}

    def add(self, ins: PtxInstruction, width: int, addresses: npt.NDArray[np.int64]) -> None:
        """One access of a warp: `width` bytes at each address, a multiple of `width`."""
        relative = addresses - int(addresses.min()) // LINE * LINE
        self.uses.setdefault(ins.pc, SectorUse()).add(SectorUse(1, *_counted(width, relative.tobytes())))


@dataclass(frozen=True, repr=False)
class SectorRow(CountedRow):
    """An instruction and its sectors."""

    use: SectorUse


def sector_table(rows: list[SectorRow]) -> str:
    """Rows as text: the sums, then the instructions with excess sectors."""
    total = SectorUse()
    for row in rows:
        total.add(row.use)
    head = f"global memory: {total.requests} accesses move {total.sectors} sectors of 32 bytes, at best {total.minimum}"
    cells = [(row.use.requests, row.use.sectors, row.use.minimum) for row in rows if row.use.excess]
    return as_table(head, ("requests", "sectors", "ideal"), [row.ins for row in rows if row.use.excess], cells)
