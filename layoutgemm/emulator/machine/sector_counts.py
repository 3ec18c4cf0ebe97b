"""Sectors of global memory, counted for each instruction.

A warp's request moves each sector of 32 bytes that its lanes touch once (`checks/coalescing.py`). The counts cover each
ld, st, atom and red of global memory, and the global side of cp.async. Bulk and tensor copies are no requests of lanes.
Where lanes split, each part is a request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ...checks.coalescing import LINE, count_sectors
from ..ptx.parser import PtxInstruction, PtxKernel
from .bank_counts import as_table


@lru_cache(maxsize=1 << 14)
def _counted(width: int, offsets: bytes) -> tuple[int, int]:
    """(sectors, least sectors) of a request; offsets: of the lanes, from the beginning of a line."""
    sectors, _, _, least = count_sectors(np.frombuffer(offsets, np.int64)[None], width, 0)[:, 0].tolist()
    return sectors, least


@dataclass
class SectorUse:
    """Sectors that one instruction moved in a run. `minimum` is the number that no arrangement of the same bytes could
    avoid."""

    requests: int = 0
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


@dataclass(frozen=True)
class SectorRow:
    """An instruction and its sectors."""

    ins: PtxInstruction
    use: SectorUse

    def __repr__(self) -> str:
        return f"<SectorRow of {self.ins}: {self.use}>"

    def as_json(self) -> dict[str, object]:
        """As JSON-able data."""
        return {
            "line": self.ins.line, "opcode": self.ins.opcode,
            "source": str(self.ins.source) if self.ins.source else None,
            "requests": self.use.requests, "sectors": self.use.sectors, "minimum": self.use.minimum,
        }  # fmt: skip


def sector_rows(kernel: PtxKernel, uses: Mapping[int, SectorUse]) -> list[SectorRow]:
    """The counted instructions, those with the most excess sectors first."""
    rows = [SectorRow(kernel.instructions[pc], use) for pc, use in uses.items()]
    return sorted(rows, key=lambda row: (-row.use.excess, row.ins.line))


def sector_table(rows: list[SectorRow]) -> str:
    """Rows as text: the sums, then the instructions with excess sectors."""
    total = SectorUse()
    for row in rows:
        total.add(row.use)
    head = f"global memory: {total.requests} accesses move {total.sectors} sectors of 32 bytes, at best {total.minimum}"
    cells = [(row.use.requests, row.use.sectors, row.use.minimum) for row in rows if row.use.excess]
    return as_table(head, ("requests", "sectors", "ideal"), [row.ins for row in rows if row.use.excess], cells)
