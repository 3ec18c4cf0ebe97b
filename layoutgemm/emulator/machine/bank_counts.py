"""Wavefronts of shared memory, counted for each instruction.

The measured model of `checks/smem/bank_conflicts.py` judges each pattern of addresses of an instruction once. It covers
every ld, st, atom and red that reaches the CTA's own shared memory, every ldmatrix and stmatrix, and the shared side of
cp.async. A pattern is relative to its lowest address, rounded down to a multiple of 4, which rotates all banks alike.
So a loop costs one look-up for each instruction.

Three costs are not counted. Accesses to another CTA of the cluster, TMA and the tensor cores use the banks in
undocumented ways. Lanes of an atomic that name one address wait for each other, so the counts of atomics are lower
bounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...checks.smem.access_patterns import WIDTHS
from ...checks.smem.bank_conflicts import BANK_BYTES, BankReport, judge
from ..ptx.parser import PtxInstruction, PtxKernel
from ..ptx.values import LANES, bool_of

KEPT = 1 << 14  # patterns
_judged: dict[tuple[str, int, int, bytes], tuple[int, int, int]] = {}


def wavefronts(kind: str, width: int, offsets: npt.NDArray[np.int64], lanes: int) -> tuple[int, int, int]:
    """(wavefronts, least wavefronts for these bytes, ways of the worst phase) of a warp access.

    kind     as `checks.smem.access_patterns` has it; width: bytes for a lane
    offsets  of the lanes in `lanes`, in order, or one for all of them

    >>> wavefronts("ld.shared", 4, 1024 + 8 * np.arange(32), 0xFFFFFFFF)
    (2, 1, 2)
    >>> wavefronts("ld.shared", 4, np.array([1024]), 0xFFFFFFFF)
    (1, 1, 1)
    """
    low = int(offsets.min()) // BANK_BYTES * BANK_BYTES
    relative = offsets - low
    key = (kind, width, lanes, relative.tobytes())
    found = _judged.get(key)
    if found is None:
        if len(_judged) >= KEPT:
            _judged.clear()
        table = np.full((1, LANES), -1, np.int64)
        table[0, bool_of(lanes)] = relative
        report = BankReport((judge(kind, kind, table, width),))
        found = _judged[key] = (report.wavefronts, report.minimum, report.ways)
    return found


@dataclass
class BankUse:
    """Bank use of one instruction in a run.

    requests    executions by a warp, or a part of one
    wavefronts  passes over the banks; minimum: that no arrangement of the same bytes could avoid
    ways        wavefronts of the worst phase: 1 is free of conflicts
    """

    requests: int = 0
    wavefronts: int = 0
    minimum: int = 0
    ways: int = 0

    def add(self, other: BankUse) -> None:
        """Add the same instruction's use from another count."""
        self.requests += other.requests
        self.wavefronts += other.wavefronts
        self.minimum += other.minimum
        self.ways = max(self.ways, other.ways)

    @property
    def excess(self) -> int:
        """Wavefronts beyond the minimum."""
        return self.wavefronts - self.minimum


class BankCounter:
    """Counts for one run. uses: pc -> bank use of the instruction there."""

    def __init__(self) -> None:
        self.uses: dict[int, BankUse] = {}

    def add(self, ins: PtxInstruction, kind: str, width: int, offsets: npt.NDArray[np.int64], lanes: int) -> None:
        """One access of a warp, as for `wavefronts`."""
        if width not in WIDTHS[kind]:
            return
        passes, minimum, ways = wavefronts(kind, width, offsets, lanes)
        use = self.uses.get(ins.pc)
        if use is None:
            use = self.uses[ins.pc] = BankUse()
        use.requests += 1
        use.wavefronts += passes
        use.minimum += minimum
        use.ways = max(use.ways, ways)


@dataclass(frozen=True)
class BankRow:
    """An instruction and its bank use."""

    ins: PtxInstruction
    use: BankUse

    @property
    def at_least(self) -> bool:
        """True if its wavefronts are a lower bound, as for an atomic."""
        return self.ins.words[0] in ("atom", "red")

    def __repr__(self) -> str:
        return f"<BankRow of {self.ins}: {self.use}>"

    def as_json(self) -> dict[str, object]:
        """As JSON-able data."""
        return {
            "line": self.ins.line, "opcode": self.ins.opcode,
            "source": str(self.ins.source) if self.ins.source else None,
            "requests": self.use.requests, "wavefronts": self.use.wavefronts, "minimum": self.use.minimum,
            "ways": self.use.ways, "at_least": self.at_least,
        }  # fmt: skip


def bank_rows(kernel: PtxKernel, uses: Mapping[int, BankUse]) -> list[BankRow]:
    """The counted instructions, those with the most excess wavefronts first."""
    rows = [BankRow(kernel.instructions[pc], use) for pc, use in uses.items()]
    return sorted(rows, key=lambda row: (-row.use.excess, row.ins.line))


def bank_table(rows: list[BankRow]) -> str:
    """Rows as text: the sums, then the instructions with excess wavefronts."""
    total = BankUse()
    for row in rows:
        total.add(row.use)
    bound = any(row.at_least for row in rows)
    taken = f"{'at least ' * bound}{total.wavefronts} wavefronts"
    head = f"shared memory: {total.requests} accesses take {taken}, at best {total.minimum}"
    head += "; those of atomics are lower bounds: lanes that name one address wait for each other" * bound
    worse = [row for row in rows if row.use.excess]
    cells = [
        (row.use.requests, f"{'>=' if row.at_least else ''}{row.use.wavefronts}", row.use.minimum, row.use.ways)
        for row in worse
    ]
    return as_table(head, ("requests", "wavefronts", "ideal", "ways"), [row.ins for row in worse], cells)


def as_table(
    head: str, names: Sequence[str], instructions: Sequence[PtxInstruction], cells: Sequence[Sequence[object]],
    most: int = 20,
) -> str:  # fmt: skip
    """The head, and a line for each instruction with its counts, `most` of them."""
    if not instructions:
        return head
    lines = [("PTX line", *names, "instruction")]
    for ins, counts in zip(instructions[:most], cells):
        lines.append((str(ins.line), *map(str, counts), ins.opcode + (f"  {ins.source}" if ins.source else "")))
    widths = [max(len(line[i]) for line in lines) for i in range(len(names) + 1)]
    rows = ["  " + "  ".join([*(cell.rjust(width) for cell, width in zip(line, widths)), line[-1]]) for line in lines]
    beyond = len(instructions) - most
    return "\n".join([head, *rows, *([f"  and {beyond} more instructions"] if beyond > 0 else [])])
