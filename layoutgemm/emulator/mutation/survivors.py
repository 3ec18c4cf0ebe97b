"""Reasons why a mutant survives, from comparing its runs with the kernel's.

A mutant that no case catches needs a shape that the cases lack, or it changes nothing. `Explainer` tells them apart by
executing both and comparing their accesses and their order (`trace.py`):

    same      every access touches the same bytes, and is ordered after the same others: whatever the change is, in
              these cases no instruction can notice it. An address field that the hardware does not read, a barrier
              whose order another one gives too; another barrier in its place
    stricter  the same accesses, ordered after more
    looser    the same accesses, some of them no longer ordered; none of these pairs touch the same bytes, one of them
              writing, or it would be a race. A wait for something that is never used again
    apart     so, and which bytes each thread touches with these instructions depends on nothing but the thread, so that
              it is the same in any other case
    end       so, and it is only the end of a warp that comes after less
    other     other accesses, and the same bytes in memory at the end
    unread    the question to an mbarrier is asked, and nothing reads the answer: no order can be relied on
    idle      the operand has the value that it is given in every case anyway: it always has, or a shape is missing
    unreached no case executes the instruction: nothing is known
    unseen    the instruction is there for what the emulator does not model: nothing is known either

The order of a kernel without races is the same in every schedule that takes the same branches, so one run of each shape
covers those. A peek at an mbarrier is a branch: mutants that concern barriers run in other orders too, with copies that
land early among them. A barrier that counts in another order in another schedule is reported (`ops/barrier.py`).
`Explainer.partner` looks for the other instruction that makes a deletion redundant: with both deleted the kernel is
caught.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ...errors import EmulatorError
from ..findings import Counts
from ..machine.interpreter import Launch
from ..ops import program_of
from ..ptx.parser import PtxKernel
from .dataflow import depends
from .mutants import SPARE, Mutant
from .run import FACTOR, SLACK, LaunchCase, MutantOutcome, ShowsProgress, Survey, judged, verdict
from .trace import END, AccessTrace, TraceDifference, difference

KINDS = ("same", "stricter", "looser", "apart", "end", "other", "unread", "idle", "unreached", "unseen")
SAME, STRICTER, LOOSER, APART, ENDS, OTHER, UNREAD, IDLE, UNREACHED, UNSEEN = KINDS
PROVEN = (SAME, STRICTER, APART, ENDS, UNREAD)  # unnoticeable in every schedule
# Instructions whose deletion the emulator cannot notice, and why; unless the named field of the policy is set
# set.
BLIND = (
    ("bar.warp.sync", "lanes", 'lanes of a warp are one thread with `Policy(lanes="off")`'),
    ("griddepcontrol", "", "one grid runs at a time"),
    ("wgmma.fence", "register_strict", "registers are checked with `Policy(register_strict=True)`"),
    ("tcgen05.wait", "tensor_strict", "waits for tensor memory are checked with `Policy(tensor_strict=True)`"),
    ("tcgen05.fence", "tensor_strict", "fences of tensor memory are checked with `Policy(tensor_strict=True)`"),
)
# Kinds of mutants that leave every barrier alone: one schedule covers all.
PLAIN = ("descriptor", "instruction", "flag", "column", "coordinate", "matrix address", "shared address", "registers")


@dataclass(frozen=True)
class SurvivalReason:
    """The reason why a mutant is not caught: one of `KINDS`, and in words."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass
class _Run:
    """A case, and the kernel's own run of it."""

    case: LaunchCase
    trace: AccessTrace
    memory: tuple[bytes, ...]
    limit: int
    steps: int
    caught: int = 0

    @property
    def worth(self) -> float:
        """Catches for each second of the case."""
        return (1 + self.caught) / (1 + self.steps)


class Explainer:
    """Runs mutants of a kernel and explains why they survive.

    cases   are run with a trace
    others  are run for mutants whose survival those do not prove, and those that concern barriers

    Raises EmulatorError when the kernel itself fails a case.
    """

    def __init__(self, kernel: PtxKernel, cases: Sequence[LaunchCase], others: Sequence[LaunchCase] = ()) -> None:
        self.kernel, self.others = kernel, others
        self.program = program_of(kernel)
        self.settled: dict[int, bool] = {}
        self.executed = bytearray(len(kernel.instructions))
        self.runs = [self._plain(case) for case in cases]
        # A mutant's run of these is not compared with the kernel's: a trace would only cost time.
        self.limits = [FACTOR * self._steps(case, *verdict(kernel, case)) + SLACK for case in others]

    def _plain(self, case: LaunchCase) -> _Run:
        trace = AccessTrace()
        wrong, memory, counts = _traced(self.kernel, case, None, None, trace)
        steps = self._steps(case, wrong, counts)
        return _Run(case, trace, memory, FACTOR * steps + SLACK, steps)

    def _steps(self, case: LaunchCase, wrong: str, counts: Counts) -> int:
        """The instructions of the kernel's own run, which are noted as executed; raises EmulatorError if it failed."""
        if wrong:
            raise EmulatorError(f"the kernel without any change fails {case.name}: {wrong}")
        self.executed = bytearray(a | b for a, b in zip(self.executed, counts.executed, strict=True))
        return sum(counts.instructions.values())

    def say(self, pc: int) -> str:
        """An instruction in short form."""
        if pc == END:
            return "the end of a warp"
        ins = self.kernel.instructions[pc]
        return f"{ins.opcode} (PTX line {ins.line})"

    def row(self, mutant: Mutant) -> MutantOutcome:
        """The outcome of a mutant, with the reason if it survives."""
        origins = mutant.origins(self.kernel)
        found: list[TraceDifference] = []
        for run in sorted(self.runs, key=lambda run: -run.worth):
            trace = AccessTrace(run.trace, origins)
            how, memory, _ = _traced(self.kernel, run.case, mutant, run.limit, trace)
            if how:
                run.caught += 1
                return MutantOutcome(mutant, run.case.name, how)
            if memory != run.memory:
                one = TraceDifference("other bytes in memory, that the case lets pass")
            else:
                one = difference(run.trace, trace, self.say)
            if one.accesses:
                one = replace(one, accesses=f"{run.case.name}: {one.accesses}")
            found.append(one)
        reason = self._judge(mutant, found)
        if reason.kind not in PROVEN and self._unread(mutant):
            reason = SurvivalReason(UNREAD, "nothing reads the answer")
        if reason.kind not in PROVEN or mutant.kind not in PLAIN:
            for case, limit in zip(self.others, self.limits, strict=True):
                how, _ = verdict(self.kernel, case, mutant, limit)
                if how:
                    return MutantOutcome(mutant, case.name, how)
        return MutantOutcome(mutant, reason=str(reason))

    def _judge(self, mutant: Mutant, found: list[TraceDifference]) -> SurvivalReason:
        if mutant.edits and not any(self.executed[pc] for pc, _ in mutant.edits):
            return SurvivalReason(UNREACHED, "no case executes the instruction")
        if mutant.kind == "deletion" and (why := self._blind(mutant)):
            return SurvivalReason(UNSEEN, why)
        accesses = [one.accesses for one in found if one.accesses]
        if accesses:
            return SurvivalReason(OTHER, accesses[0])
        lost = {pair for one in found for pair in one.lost | one.hidden}
        if lost and all(later == END for _, later in lost):
            who = "; ".join(self.say(earlier) for earlier, _ in sorted(lost)[:3])
            return SurvivalReason(ENDS, f"a warp may end before it knows of {who}")
        if lost:
            pairs = sorted(lost, key=lambda pair: (pair[1] == END, pair))
            text = "; ".join(f"{self.say(earlier)}, {self.say(later)}" for earlier, later in pairs[:2])
            more = f"; {len(pairs) - 2} more" if len(pairs) > 2 else ""
            if all(self._settled(pc) for pair in pairs for pc in pair if pc != END):
                return SurvivalReason(APART, f"no longer in order, and on other bytes in any case: {text}{more}")
            return SurvivalReason(LOOSER, f"no longer in order, and never on the same bytes: {text}{more}")
        if any(one.gained for one in found):
            return SurvivalReason(STRICTER, "the same accesses, ordered after more")
        made = [one.text for _, instead in mutant.edits for one in instead]
        if any(text.startswith(tuple([f"mov.b{bits} {SPARE}" for bits in (16, 32, 64)])) for text in made):
            return SurvivalReason(IDLE, "the operand has this value in every case")
        uses = [one.uses for one in found if one.uses]
        text = "every access touches the same bytes, after the same others"
        return SurvivalReason(SAME, f"{text}, though {uses[0]}" if uses else text)

    def _unread(self, mutant: Mutant) -> bool:
        """True if the mutant changes only mbarrier tests whose answers are not read."""
        for pc, _ in mutant.edits:
            if not self.kernel.instructions[pc].opcode.startswith(("mbarrier.try_wait", "mbarrier.test_wait")):
                return False
            if any(self.program.writes[pc] & reads for reads in self.program.reads):
                return False
        return bool(mutant.edits)

    def _settled(self, pc: int) -> bool:
        """True if all warps execute it and its bytes depend on constants or the thread."""
        if pc not in self.settled:
            traced = self.runs[0].trace
            warps, have = set(), set()
            for part in traced.parts.values():
                warps |= {name.warp for name in part.names if name.pc == END}
                have |= {name.warp for name in part.names if name.pc == pc}
            of = depends(self.program, pc)
            self.settled[pc] = of == "nothing" or (of == "thread" and have == warps)
        return self.settled[pc]

    def _blind(self, mutant: Mutant) -> str:
        """The reason why the deletion cannot be noticed, or ""."""
        opcode = self.kernel.instructions[mutant.edits[0][0]].opcode
        policies = [case.policy for case in (*(run.case for run in self.runs), *self.others)]
        for name, switch, why in BLIND:
            looked = switch and any(getattr(policy, switch) not in (False, "off") for policy in policies)
            if opcode.startswith(name) and not looked:
                return why
        return ""

    def partner(self, mutant: Mutant, others: Iterable[Mutant]) -> Mutant | None:
        """The first surviving mutant that together with this one is caught."""
        for other in others:
            if {pc for pc, _ in mutant.edits} & {pc for pc, _ in other.edits}:
                continue
            both = replace(mutant, edits=tuple(sorted((*mutant.edits, *other.edits), key=lambda edit: edit[0])))
            if any(verdict(self.kernel, run.case, both, run.limit)[0] for run in self.runs):
                return other
        return None


def _traced(
    kernel: PtxKernel, case: LaunchCase, mutant: Mutant | None, limit: int | None, trace: AccessTrace
) -> tuple[str, tuple[bytes, ...], Counts]:
    """The verdict on a run, what memory holds after it, and its counts."""
    memory: list[bytes] = []

    def check(launch: Launch) -> str | None:
        memory.extend(buffer.data.tobytes() for buffer in launch.memory.buffers)
        return case.check(launch)

    how, counts = verdict(kernel, replace(case, check=check), mutant, limit, trace)
    return how, tuple(memory), counts


def explained(
    kernel: PtxKernel,
    cases: Sequence[LaunchCase],
    mutants: Iterable[Mutant],
    progress: ShowsProgress | None = None,
) -> Survey:
    """`run.survey`, with a reason for each survivor.

    The cases in the first case's order are compared with the kernel's own runs. Cases in other orders run for mutants
    that the comparison does not prove harmless.
    """
    first = [case for case in cases if case.policy == cases[0].policy]
    explainer = Explainer(kernel, first, [case for case in cases if case.policy != cases[0].policy])
    return judged(explainer.row, mutants, progress)
