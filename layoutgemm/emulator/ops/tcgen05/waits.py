"""Pending loads and stores of tensor memory (tcgen05.ld, st).

A load or store is an event of its own. tcgen05.wait::ld or ::st makes it known to the warp. Official kernels leave
wait::ld out where they use the loaded registers before they release anything: there a load counts as done once no
register of it is needed any more. No kernel leaves out wait::st.

By PTX only the waits count, for the warp's own use of tensor memory. tcgen05.fence::before_thread_sync adds what was
waited for to the knowledge that the warp releases at a barrier. tcgen05.commit contains that fence. Until then the
events are `Knowledge.unfenced`. A knowledge for tensor memory (`fenced_knowledge`) has what PTX orders: the warp's own
completed accesses, and all that its last tcgen05.fence::after_thread_sync took over. What lies between the two is lint,
and a finding under `tensor_strict`, where registers hold no value until the wait.
"""

from __future__ import annotations

from functools import reduce
from operator import or_

from ...machine.interpreter import Fiber
from ...ptx.parser import PtxInstruction
from ...ptx.program import Program
from ...ptx.values import Lanes
from ...races.happens_before import Knowledge, MemoryEvent
from ..barrier import HANDED, RELAXED
from ..in_flight import InFlightRegister

LOADED = "tensor loaded"  # in a warp's scratch: (event, registers, early use) of loads without a wait so far
UNWAITED = (
    "no tcgen05.wait::ld stands between the two: PTX asks for one, and Policy(tensor_strict=True) makes this an error"
)
WAIT = "tcgen05.wait::ld by the warp, after the load and before the use, orders them."
KNOWN = "tensor known"  # in a warp's scratch: what relaxed waits and a fence told of tensor memory


class LoadingRegister(InFlightRegister):
    """A register that a tcgen05.ld fills until tcgen05.wait::ld, and its value."""

    def __init__(self, ins: PtxInstruction, value: Lanes) -> None:
        self.ins, self.value = ins, value

    def __str__(self) -> str:
        return f"the register is filled by {self.ins}, and no tcgen05.wait::ld has been executed since"


class EarlyUse:
    """The first use of a tcgen05.ld's registers that no tcgen05.wait::ld precedes. It is reported once for its line.

    certain  each path from the load comes to one
    """

    def __init__(self, program: Program, ins: PtxInstruction) -> None:
        self.ins = ins
        uses, self.certain = program.reads_before(ins.pc, program.writes[ins.pc], _waits)
        self.use = program.kernel.instructions[min(uses)] if uses else None

    def report(self, fiber: Fiber) -> None:
        """Report it as lint."""
        use, told = self.use, fiber.machine.scratch.setdefault("early uses told", set())
        self.use = None
        if use is not None and (line := use.source or use.pc) not in told:
            told.add(line)
            message = f"it uses a register that {self.ins.opcode} at {self.ins.where} fills; {UNWAITED}"
            fiber.machine.problem("lint", message, fiber, use, orders=WAIT)


def _waits(ins: PtxInstruction) -> bool:
    return ins.words[:2] == ("tcgen05", "wait::ld")


def begin(fiber: Fiber, way: str, ins: PtxInstruction) -> MemoryEvent | None:
    """The event of a load ("ld") or store ("st") until its wait. None where no races are looked for."""
    machine, ledger, who, scratch = fiber.machine, fiber.cta.cluster.ledger, fiber.describe(), fiber.warp.scratch
    strict, early = machine.policy.tensor_strict, None
    if way == "ld" and not strict:
        found = machine.scratch.setdefault("early uses", {})
        early = found.get(ins.pc) or found.setdefault(ins.pc, EarlyUse(machine.program, ins))
        if early.certain:
            early.report(fiber)
    if not ledger.enabled and not strict:
        return None
    event = ledger.event(True, lambda: f"{ins.opcode} at {ins.where} by {who}")
    scratch.setdefault(f"tensor {way}", []).append(event)
    if early is not None:
        scratch.setdefault(LOADED, []).append((event, machine.program.writes[ins.pc], early))
        fiber.warp.settles = used_up
    return event


def in_flight(fiber: Fiber) -> int:
    """The warp's stores that it has not waited for, as a bit set. Practice leaves several to one place alone."""
    return reduce(or_, map(fiber.cta.cluster.ledger.bit, fiber.warp.scratch.get("tensor st", ())), 0)


def _learn(fiber: Fiber, event: MemoryEvent) -> None:
    """Learn by practice of a load or store that no fence has handed on."""
    ledger, knows = fiber.cta.cluster.ledger, fiber.knows
    ledger.learn(knows, event)
    knows.unfenced |= ledger.bit(event)


def used_up(fiber: Fiber) -> None:
    """Learn of the warp's loads whose registers are needed no more."""
    warp = fiber.warp
    live = fiber.machine.program.live_after(fiber.ins.pc) if fiber.ins is not None else -1
    left = []
    for event, registers, early in warp.scratch.get(LOADED, ()):
        if registers & live:
            left.append((event, registers, early))
        else:
            _learn(fiber, event)
            early.report(fiber)
    warp.scratch[LOADED] = left
    if not left:
        warp.settles = None


def settle(fiber: Fiber, way: str) -> None:
    """Complete the warp's loads or stores; loaded registers get their values."""
    ledger, scratch = fiber.cta.cluster.ledger, fiber.warp.scratch
    waited, strict = scratch.pop(f"tensor {way}", []), fiber.machine.policy.tensor_strict
    fenced = fenced_knowledge(fiber)
    for event in waited:
        ledger.learn(fenced, event)
        if not strict:
            _learn(fiber, event)
    scratch.setdefault("tensor waited", []).extend(waited)
    if way == "ld" and not strict:
        scratch.pop(LOADED, None)
        fiber.warp.settles = None
    elif way == "ld":
        for register, value in enumerate(fiber.registers):
            if type(value) is LoadingRegister:
                fiber.registers[register] = value.value
                fiber.written |= 1 << register


def hand_on(fiber: Fiber) -> None:
    """tcgen05.fence::before_thread_sync: add completed loads and stores to the warp's releases."""
    for event in fiber.warp.scratch.pop("tensor waited", ()):
        fiber.cta.cluster.ledger.learn(fiber.knows, event)


def hand_on_relaxed(fiber: Fiber) -> None:
    """The same, and relaxed arrives after it hand on accesses to tensor memory."""
    ledger, scratch = fiber.cta.cluster.ledger, fiber.warp.scratch
    hand_on(fiber)
    scratch[HANDED] = ledger.knowledge()
    ledger.release(fiber, scratch[HANDED])


def take_over(fiber: Fiber) -> None:
    """tcgen05.fence::after_thread_sync: apply the warp's acquired knowledge to tensor memory.

    So is that of relaxed waits before it (PTX ISA, "tcgen05", "Canonical synchronization patterns").
    """
    ledger, scratch = fiber.cta.cluster.ledger, fiber.warp.scratch
    if RELAXED in scratch:
        scratch.setdefault(KNOWN, ledger.knowledge()).merge(scratch.pop(RELAXED))
    fenced = scratch["tensor fenced"] = ledger.knowledge(fiber.knows)
    if KNOWN in scratch:
        fenced.merge(scratch[KNOWN])
    for event in scratch.get("tensor waited", ()):
        ledger.learn(fenced, event)


def known_beside(fiber: Fiber) -> Knowledge | None:
    """The warp's knowledge of tensor memory from relaxed waits, or None."""
    found: Knowledge | None = fiber.warp.scratch.get(KNOWN)
    return found


def fenced_knowledge(fiber: Fiber) -> Knowledge:
    """The warp's knowledge for tensor memory: its own accesses, and its last fence's."""
    scratch = fiber.warp.scratch
    if "tensor fenced" not in scratch:
        scratch["tensor fenced"] = fiber.cta.cluster.ledger.knowledge()
    found: Knowledge = scratch["tensor fenced"]
    return found
