"""The activity of each warp and asynchronous engine, in order, as data to draw.

A row is a warp of a block, or an engine of one: TMA loads and stores, cp.async, and the tensor cores of one warp or
warpgroup. A span covers one activity between two times. Times are logical: a warp's clock counts its executed
instructions. After a wait, the clock jumps to the time of the awaited event (L. Lamport, "Time, clocks, and the
ordering of events in a distributed system", 1978). So times show which event must precede which in every schedule. They
are not cycles: the emulator does not know how long a copy or a product takes. An engine's span begins at its issue and
ends when the first waiting thread knows of its completion. Every cluster begins at 0, as if all ran at once.

A warp's role (`TimelineRow.role`) follows from its executed instructions, not from its number (`roles.py`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from ...layouts.display import HasPicture
from ..ptx.parser import PtxInstruction
from ..races.happens_before import MemoryEvent

if TYPE_CHECKING:
    from .interpreter import Cluster, Fiber

LIMIT = 20_000  # spans that a run keeps
NEAR = 16  # ticks between two equal spans that merge into one
# Kinds of spans, and the letter of each in text.
KINDS = {
    "load": "L", "store": "S", "mma": "M", "copy": "C", "read": "r", "write": "w", "accumulators": "a", "arrive": "^",
    "wait": ".", "atomic": "x", "setup": "i",
}  # fmt: skip
BLANK = " "
ENGINES = {"load": "copy engine, loads", "store": "copy engine, stores"}


# The beginning of an opcode, as a pattern -> its kind of span; the first that matches. "schedule" is shown as a load.
KIND_OF = (
    (r"cp\.(.*\.)?wait_(group|all)", "wait"),
    (r"cp\.(.*\.)?(commit_group|prefetch)(\.|$)", ""),
    (r"cp\.(.*\.)?mbarrier(\.|$)", "arrive"),
    (r"cp\.(.*\.)?bulk_group(\.|$)", "store"),
    (r"cp\.", "load"),
    (r"(wgmma\.mma_async|tcgen05\.mma|mma)(\.|$)", "mma"),
    (r"(wgmma\.wait_group|tcgen05\.wait|mbarrier\.(try|test)_wait|setmaxnreg|griddepcontrol)", "wait"),
    (r"(tcgen05\.(de)?alloc|mbarrier\.init)(\.|$)", "setup"),
    (r"tcgen05\.(ld|st)(\.|$)", "accumulators"),
    (r"tcgen05\.(cp|shift)(\.|$)", "copy"),
    (r"(tcgen05\.commit|mbarrier\.arrive)", "arrive"),
    (r"bar(rier)?\.(.*\.)?warp(\.|$)", ""),
    (r"bar(rier)?\.(.*\.)?(sync|wait)(\.|$)", "wait"),
    (r"bar(rier)?\.", "arrive"),
    (r"clusterlaunchcontrol\.try_cancel", "schedule"),
    (r"ldu?\.(.*\.)?param(\.|$)", ""),
    (r"(ldu?|ldmatrix)(\.|$)", "read"),
    (r"st\.(.*\.)?global(\.|$)", "store"),
    (r"(st|stmatrix)(\.|$)", "write"),
    (r"(atom|red)(\.|$)", "atomic"),
)


def kind_of(ins: PtxInstruction) -> str:
    """The kind of span of an instruction, or "" if not shown."""
    return next((kind for opcode, kind in KIND_OF if re.match(opcode, ins.opcode)), "")


@dataclass(slots=True)
class Span:
    """An activity from `begin` to `end`, with end >= begin.

    kind    of `KINDS`
    detail  what was waited for, or the opcode
    line    of the PTX; of the first where `times` like ones follow one another
    """

    kind: str
    begin: int
    end: int
    detail: str
    line: int
    times: int = 1

    def as_json(self) -> list[str | int]:
        """[kind, begin, end, detail, line, times]."""
        return [self.kind, self.begin, self.end, self.detail, self.line, self.times]


@dataclass
class TimelineRow:
    """A row of spans in order. A warp (by number) or an engine (by name) of a block."""

    cta: tuple[int, int, int]
    warp: int | None = None
    engine: str = ""
    role: str = ""
    spans: list[Span] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The row's label for people."""
        return f"CTA {self.cta} " + (f"warp {self.warp}: {self.role}" if self.warp is not None else self.engine)

    def __repr__(self) -> str:
        return f"<TimelineRow {self.name}: {len(self.spans)} spans>"

    def waited(self) -> Counter[str]:
        """Ticks of waiting, by awaited event."""
        out: Counter[str] = Counter()
        for span in self.spans:
            if span.kind == "wait":
                out[span.detail] += span.end - span.begin
        return out


@dataclass
class Timeline(HasPicture):
    """The rows of a run, in order of blocks, warps before engines.

    cut  instructions whose spans were dropped after `LIMIT` spans
    """

    rows: list[TimelineRow] = field(default_factory=list)
    cut: int = 0
    _drawn_by: ClassVar[str] = "layoutgemm.emulator.pictures"

    def __repr__(self) -> str:
        return f"<Timeline of {len(self.rows)} rows, {sum(len(row.spans) for row in self.rows)} spans>"

    def as_json(self) -> dict[str, object]:
        """As JSON-able data: spans as [kind, begin, end, detail, line, times]."""
        rows = [
            {
                "cta": list(row.cta), "warp": row.warp, "engine": row.engine, "role": row.role,
                "spans": [span.as_json() for span in row.spans],
            }
            for row in self.rows
        ]  # fmt: skip
        return {"unit": "instructions of a warp", "kinds": list(KINDS), "cut": self.cut, "rows": rows}

    def text(self, width: int = 96, most: int = 40) -> str:
        """`most` rows of `width` characters. Each few ticks show the kind that took most of them."""
        rows = [row for row in self.rows if row.spans][:most]
        end = max((span.end for row in rows for span in row.spans), default=0)
        step = -(-max(end, 1) // width)
        wide = max((len(row.name) for row in rows), default=0)
        lines = [f"a character is {step} instruction{'s' if step > 1 else ''} of a warp; "
                 + ", ".join(f"{letter} {kind}" for kind, letter in KINDS.items())]  # fmt: skip
        lines += [f"{row.name:<{wide}} |{_drawn(row.spans, step, -(-end // step))}|{_waits(row)}" for row in rows]
        left = sum(1 for row in self.rows if row.spans) - len(rows)
        if left:
            lines.append(f"and {left} more rows")
        if self.cut:
            lines.append(f"cut: {self.cut} instructions came after the last of the spans that are kept")
        return "\n".join(lines)


def _drawn(spans: Sequence[Span], step: int, width: int) -> str:
    cells: list[Counter[str]] = [Counter() for _ in range(width)]
    for span in spans:
        for cell in range(span.begin // step, min(width, max(span.begin, span.end - 1) // step + 1)):
            part = min(span.end, (cell + 1) * step) - max(span.begin, cell * step)
            # Any activity takes precedence over waiting.
            cells[cell][KINDS[span.kind]] += max(part, 1) * (1 if span.kind == "wait" else 1000)
    return "".join([cell.most_common(1)[0][0] if cell else BLANK for cell in cells])


def _waits(row: TimelineRow) -> str:
    waited = row.waited()
    if row.warp is None or not waited:
        return ""
    ((what, ticks),) = waited.most_common(1)
    total = max(span.end for span in row.spans)
    return f" waits {sum(waited.values())} of {total}, {ticks} for {what}" if ticks else ""


class Recorder:
    """Makes the timeline while a machine runs."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit, self.kept, self.cut = limit, 0, 0
        self.kinds: dict[int, str] = {}
        self.rows: dict[tuple[tuple[int, int, int], int, str], TimelineRow] = {}
        # Clusters that poll take turns: each has its own, by its first block.
        self.flying: dict[tuple[int, int, int], list[tuple[list[MemoryEvent], Span]]] = {}
        self.created: list[MemoryEvent] = []
        self.start = 0  # of the instruction that runs

    def begin(self, cluster: Cluster) -> None:
        """A cluster starts."""
        self.rows |= {
            (cta.coordinate, warp.number, ""): TimelineRow(cta.coordinate, warp.number)
            for cta in cluster.ctas
            for warp in cta.warps
        }
        self.flying[cluster.ctas[0].coordinate] = []
        cluster.ledger.created = self.created

    def end(self, cluster: Cluster) -> None:
        """End a cluster, with the operations that no thread waited for."""
        for cta in cluster.ctas:
            for warp in cta.warps:
                self.rows[cta.coordinate, warp.number, ""].role = warp.role()
        last = max(self._ends(cluster), default=0)
        for _, span in self.flying.pop(cluster.ctas[0].coordinate):
            span.end = max(span.begin + 1, last)

    def _ends(self, cluster: Cluster) -> list[int]:
        places = {cta.coordinate for cta in cluster.ctas}
        return [row.spans[-1].end for key, row in self.rows.items() if key[0] in places and row.spans]

    def before(self, fiber: Fiber) -> None:
        """Note that a fiber is about to execute an instruction other than arithmetic."""
        self.created.clear()
        self.start = fiber.knows.time
        fiber.cta.cluster.ledger.clock = self.start + 1

    def step(self, fiber: Fiber, ins: PtxInstruction, blocked: bool) -> None:
        """Note that a fiber executed an instruction, or is blocked in it."""
        kind = self.kinds.get(ins.pc)
        if kind is None:
            kind = self.kinds[ins.pc] = kind_of(ins)
        now = fiber.knows.time
        if not blocked:
            fiber.knows.time = now + 1
        if not kind:
            return
        row = self.rows[fiber.cta.coordinate, fiber.warp.number, ""]
        if kind == "wait":
            self._wait(row, fiber, ins, now, blocked)
            return
        if not blocked:
            shown = "load" if kind == "schedule" else kind
            if shown in ("load", "store", "mma", "copy") and (events := self._events(fiber, ins)):
                self._issue(fiber, shown, ins, now, events)
            self._put(row, shown, self.start, now + 1, ins.opcode, ins.line)

    def _events(self, fiber: Fiber, ins: PtxInstruction) -> list[MemoryEvent]:
        """The asynchronous operations that the instruction began."""
        copies = ins.words[:2] == ("cp", "async")  # some of them not of the async proxy
        return [event for event in self.created if event is not fiber.epoch and (event.asynchronous or copies)]

    def _issue(self, fiber: Fiber, kind: str, ins: PtxInstruction, now: int, events: list[MemoryEvent]) -> None:
        """Start the span of an asynchronous operation."""
        number = fiber.warp.number
        if ins.words[0] == "wgmma":
            name = f"wgmma of warps {number // 4 * 4}..{number // 4 * 4 + 3}"
        elif ins.words[0] == "tcgen05":
            name = f"tcgen05 of warp {number}"
        elif ins.words[:3] in (("cp", "async", "ca"), ("cp", "async", "cg")):
            name = f"cp.async of warp {number}"
        else:
            name = ENGINES[kind]
        key = (fiber.cta.coordinate, len(fiber.cta.warps), name)
        row = self.rows.get(key)
        if row is None:
            row = self.rows[key] = TimelineRow(fiber.cta.coordinate, None, name)
        if self.kept >= self.limit:
            self.cut += 1
            return
        self.kept += 1
        span = Span(kind, now, now + 1, ins.opcode, ins.line)
        row.spans.append(span)
        self.flying[fiber.cta.cluster.ctas[0].coordinate].append((events, span))

    def _wait(self, row: TimelineRow, fiber: Fiber, ins: PtxInstruction, now: int, blocked: bool) -> None:
        """Begin, continue or end a wait."""
        scratch = fiber.warp.scratch
        began = scratch.get(("waits", ins.pc))
        in_vain = ins.words[0] == "mbarrier" and not blocked and not fiber.registers[self._answer(fiber, ins)]
        if blocked or in_vain:
            if began is None:
                scratch["waits", ins.pc] = now, self._said(fiber, ins)
            return
        scratch.pop(("waits", ins.pc), None)
        begin, detail = began if began is not None else (now, self._said(fiber, ins))
        self._put(row, "wait", begin, max(now, begin + 1), detail, ins.line)
        cluster, still = fiber.cta.cluster, []
        first = cluster.ctas[0].coordinate
        for events, span in self.flying[first]:
            if any(cluster.ledger.knows(fiber.knows, event) for event in events):
                span.end = max(span.begin + 1, now)
            else:
                still.append((events, span))
        self.flying[first] = still

    @staticmethod
    def _answer(fiber: Fiber, ins: PtxInstruction) -> int:
        return fiber.machine.program.index[ins.operands[0].text]

    @staticmethod
    def _said(fiber: Fiber, ins: PtxInstruction) -> str:
        """The awaited event, in words."""
        program = fiber.machine.program
        if ins.words[0] == "mbarrier":
            at = fiber.one(program.address(ins.operands[1])(fiber))
            kind, said = ("u32", "parity") if "parity" in ins.words else ("u64", "phase")
            phase = fiber.one(program.value(ins.operands[2], kind)(fiber))
            place = f" of rank {at >> 24}" if at >> 24 != fiber.cta.rank else ""
            return f"mbarrier {at & 0xFFFFFF:#x}{place} {said} {phase}"
        if ins.words[0] in ("bar", "barrier") and "cluster" not in ins.words and "warp" not in ins.words:
            number = program.value(ins.operands[0], "u32")
            return f"barrier {fiber.one(number(fiber))}"
        if ins.words[0] == "barrier":
            return "the cluster"
        return ".".join(ins.words[:3]) + (f" {ins.operands[0].text}" if ins.operands else "")

    def _put(self, row: TimelineRow, kind: str, begin: int, end: int, detail: str, line: int) -> None:
        if self.kept >= self.limit:
            self.cut += 1
            return
        last = row.spans[-1] if row.spans else None
        if last is not None and last.kind == kind != "wait" and last.detail == detail and begin - last.end <= NEAR:
            last.end, last.times = max(end, last.end), last.times + max(1, end - begin)
            return
        self.kept += 1
        times = 1 if kind == "wait" else max(1, end - begin)
        row.spans.append(Span(kind, begin, end, detail, line, times))

    def timeline(self) -> Timeline:
        """All rows so far, with the warps' roles."""
        for row in self.rows.values():
            if row.warp is not None:
                row.spans.sort(key=lambda span: span.begin)
        return Timeline([self.rows[key] for key in sorted(self.rows)], self.cut)
