"""Findings and counts of an emulated run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from .machine.bank_counts import BankUse
from .machine.roles import ALONE, NOTHING, PARTS
from .machine.sector_counts import SectorUse
from .ptx.parser import PtxInstruction, PtxKernel, SourceLine

WARP = re.compile(r"CTA \((\d+), (\d+), (\d+)\) warp (\d+)(?!\d| \()")
PLACE = re.compile(r"CTA \(\d+, \d+, \d+\)(?: warp \d+)?")
# What differs between findings of one line of the program: PTX lines, places, numbers, registers, and roles of warps.
NUMBERS = re.compile(rf" \((?:{'|'.join((*PARTS, *ALONE, NOTHING))})[^)]*\)|\b0x[0-9a-f]+|%[a-z]+\d+|(?<![\w.:])\d+")
# What else differs between lints of one cause at several instructions: the places of both accesses, the lanes, the
# registers, and how many words a load of tensor memory has.
SITES = re.compile(
    r" at PTX line \d+(?: \((?:[^()]|\([^()]*\))*\))?| lanes 0x[0-9a-f]+|\d+\.\.\d+|\.x\d+\b|%\w+| \(\d+ times\)"
)
NAMED = 4  # other places of a lint that its text names
LONG = re.compile(r"(\{%\w+, %\w+, )(?:%\w+, ){6,}(%\w+\})")  # many registers of an instruction
ALIKE = 4  # findings of one line of the program that are kept
LINT = "lint"  # the kind of a finding that is legal and suspicious
EDGE = "edge"  # of one that wrote beyond what was passed
RoleOf = Callable[[tuple[int, int, int], int], str]  # (block, number of a warp) -> its role, "" if unknown
Site = tuple[int, SourceLine | None]  # a PTX line, and the line of the original program
# Kinds of findings -> one sentence: the change that removes them, where the finding has none of its own.
REMEDIES = {
    "race": "A barrier or an mbarrier between the two orders them.",
    "uninitialised": "Write it before, or keep what is computed from it out of results, addresses and branches.",
    "descriptor": "A descriptor that is derived from the tile's layout agrees with the tile and the instruction.",
    "divergence": "Converge the warp first: bar.warp.sync, or move the instruction out of the branch.",
    "edge": "A box or a predicate that ends with the tensor keeps the store inside of it.",
    "exit": "A wait before the exit for what is still to come, or a last barrier.cluster, orders them.",
}


@dataclass(frozen=True)
class Finding:
    """An error, an undefined result, or hardware behaviour that PTX does not define.

    kind     "edge" is what a store writes beyond a line or behind the tensor that was passed, "lint" is legal and
             suspicious; others are named as what they break
    message  what happened, with both sides of a race
    line     the PTX line of the instruction, 0 where there is none
    text     the instruction
    source   the line of the original program, where it is known
    cta      coordinates of the thread block, or None for a copy that no block made
    warp     its number in the block; None where no warp did it
    lanes    the lanes that executed it, as a bit mask
    role     of the warp, by what it does (`machine/roles.py`)
    orders   one sentence: what would order the two accesses, or remove the finding
    also     of lint: the other instructions with the same cause, as of an unrolled loop
    reads    of a race of a load with a store in global memory: the load's pc
    """

    kind: str
    message: str
    line: int = 0
    text: str = ""
    source: SourceLine | None = None
    cta: tuple[int, int, int] | None = (0, 0, 0)
    warp: int | None = None
    lanes: int = 0
    role: str = ""
    orders: str = ""
    also: tuple[Site, ...] = ()
    reads: int | None = None

    @property
    def alike(self) -> tuple[str, str, str]:
        """A key that findings of one kind and line share, and lints of one cause.

        A cause is the opcodes, the reason and the remedy.

        >>> one, other = (Finding("lint", f"ld.x{n} at PTX line {n} (f.py:{n}) uses it", n) for n in (2, 4))
        >>> one.alike == other.alike
        True
        >>> one, other = (Finding("race", f"%f{n} is read", n, source=SourceLine("f.cu", 7)) for n in (2, 4))
        >>> one.alike == other.alike
        True
        """
        if self.kind == LINT and self.line:
            return self.kind, self.orders, NUMBERS.sub("", SITES.sub("", self.message))
        return self.kind, str(self.source or self.line), NUMBERS.sub("", self.message)

    @property
    def sites(self) -> tuple[Site, ...]:
        """All its places."""
        return (self.line, self.source), *self.also

    def __str__(self) -> str:
        place = f"CTA {self.cta}" + (f" warp {self.warp}" if self.warp is not None else "")
        place += f" ({self.role})" if self.role else ""
        if self.lanes and self.lanes != 0xFFFFFFFF:
            place += f" lanes {self.lanes:#x}"
        line = f" at PTX line {self.line}" + (f" ({self.source})" if self.source else "") if self.line else ""
        text = ": " + LONG.sub(r"\1..., \2", self.text) if self.text else ""
        more = f"\n  {self._others()}" if self.also else ""
        where = "" if self.cta is None else f"\n  {place}{line}{text}"
        return f"{self.kind}: {self.message}{where}{more}" + (f"\n  {self.orders}" if self.orders else "")

    def as_json(self) -> dict[str, object]:
        """All of it as JSON-able data."""
        return {
            "kind": self.kind, "message": self.message, "line": self.line, "text": self.text,
            "source": str(self.source) if self.source else None, "cta": self.cta, "warp": self.warp,
            "lanes": self.lanes, "role": self.role, "orders": self.orders,
            "also": [[line, str(source) if source else None] for line, source in self.also],
        }  # fmt: skip

    def _others(self) -> str:
        """The other places: their number and the first of them."""
        names = list(dict.fromkeys([str(source or f"PTX line {line}") for line, source in self.also]))
        rest = f"; and {len(names) - NAMED} more lines" if len(names) > NAMED else ""
        count = len(self.also)
        return f"also at {count} more instruction{'s' * (count > 1)}: {'; '.join(names[:NAMED])}{rest}"


def joined(alike: Sequence[Finding]) -> Finding:
    """The first of findings that are alike; a lint with the places of all.

    >>> print(joined([Finding("lint", "no fence", 7), Finding("lint", "no fence", 9)]))
    lint: no fence
      CTA (0, 0, 0) at PTX line 7
      also at 1 more instruction: PTX line 9
    """
    first = alike[0]
    if first.kind != LINT:
        return first
    sites = dict.fromkeys([site for one in alike for site in one.sites if site[0] != first.line])
    return replace(first, also=tuple(sites))


def with_roles(text: str, role: RoleOf) -> str:
    """The text with the role of each warp that it names.

    >>> with_roles("a store by CTA (0, 0, 0) warp 3 lanes 0x1", lambda cta, warp: "loads by TMA")
    'a store by CTA (0, 0, 0) warp 3 (loads by TMA) lanes 0x1'
    >>> with_roles("CTA (0, 0, 0) warp 10 (stores): waits", lambda cta, warp: "loads by TMA")
    'CTA (0, 0, 0) warp 10 (stores): waits'
    """

    def named(match: re.Match[str]) -> str:
        x, y, z, warp = (int(part) for part in match.groups())
        did = role((x, y, z), warp)
        return f"{match[0]} ({did})" if did else match[0]

    return WARP.sub(named, text)


@dataclass
class Findings:
    """All findings of a run, up to a limit. Those of a kind count once for an instruction. Lint has no limit.

    Lints of an instruction count once for each remedy. Lints of one cause at several instructions are one.

    Findings without an instruction, at the end of a block, count once for all blocks and warps. Of several instructions
    of one line of the program, such as an unrolled loop's, `ALIKE` are kept.

    >>> found = Findings()
    >>> for block in range(3):
    ...     found.add(Finding("exit", f"CTA ({block}, 0, 0) ends without knowing of a copy by warp 4"))
    >>> len(found.found)
    1
    """

    limit: int = 50
    found: list[Finding] = field(default_factory=list)
    times: Counter[tuple[str, int, str]] = field(default_factory=Counter)
    lines: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    causes: dict[tuple[str, str, str], int] = field(default_factory=dict)  # of lints -> their number in `found`

    def add(self, finding: Finding) -> None:
        """Keep a finding, unless the same instruction had one of the same kind."""
        # Lints of one instruction differ by their remedies; races that may prove harmless hide no others.
        what = finding.orders if finding.kind == LINT else "" if finding.reads is None else "reads"
        key = (finding.kind, finding.line, what if finding.line else PLACE.sub("", finding.message))
        self.times[key] += 1
        if self.times[key] == 1:
            alike = finding.alike
            if finding.kind == LINT and finding.line:
                at = self.causes.setdefault(alike, len(self.found))
                if at < len(self.found):
                    self.found[at] = joined([self.found[at], finding])
                    return
            self.lines[alike] += finding.source is not None
            if self.lines[alike] <= ALIKE:
                self.found.append(finding)

    def name_roles(self, role: RoleOf) -> None:
        """Add the roles of warps to findings and to their messages. role: of a block's warp, "" if unknown."""
        for number, finding in enumerate(self.found):
            if not finding.role:
                cta, warp = finding.cta, finding.warp
                own = role(cta, warp) if cta is not None and warp is not None else ""
                self.found[number] = replace(finding, role=own, message=with_roles(finding.message, role))

    @property
    def full(self) -> bool:
        """True at the limit of distinct findings that are no lint, when the run stops."""
        return len(self.found) >= self.limit and sum(one.kind != LINT for one in self.found) >= self.limit


@dataclass
class Counts:
    """Counts of executed instructions, waits, bytes and bank use.

    instructions  opcode -> how often a warp, or part of one, executed it
    executed      for each pc, whether it was ever executed
    waits         opcode and PTX line -> how often a fiber had to wait there
    bytes         kind of traffic -> bytes: "global to shared", "shared to global", "shared read by wgmma", ...
    banks         pc -> what the instruction there did to the banks of shared memory, where that was counted
    sectors       pc -> the sectors of global memory that the instruction there moved, likewise
    """

    instructions: Counter[str] = field(default_factory=Counter)
    executed: bytearray = field(default_factory=bytearray)
    waits: Counter[tuple[str, int]] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    banks: dict[int, BankUse] = field(default_factory=dict)
    sectors: dict[int, SectorUse] = field(default_factory=dict)

    def __repr__(self) -> str:
        moved = f", {sum(self.bytes.values())} bytes moved" if self.bytes else ""
        waits = sum(self.waits.values())
        return f"<Counts: {sum(self.instructions.values())} instructions other than arithmetic, {waits} waits{moved}>"

    def unreached(self, kernel: PtxKernel) -> list[PtxInstruction]:
        """The instructions that no warp executed."""
        return [ins for ins in kernel.instructions if not self.executed[ins.pc]]

    def merge(self, other: Counts) -> None:
        """Add the counts of another run of the same kernel."""
        self.instructions += other.instructions
        self.waits += other.waits
        self.bytes += other.bytes
        for pc, use in other.banks.items():
            self.banks.setdefault(pc, BankUse()).add(use)
        for pc, moved in other.sectors.items():
            self.sectors.setdefault(pc, SectorUse()).add(moved)
        self.executed = bytearray(a | b for a, b in zip(self.executed, other.executed, strict=True))
