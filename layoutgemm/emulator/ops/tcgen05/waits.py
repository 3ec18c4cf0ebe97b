"""Pending loads and stores of tensor memory (tcgen05.ld, st).

A load or store is an event of its own. tcgen05.wait::ld or ::st makes it known to the warp. Official kernels leave
wait::ld out where they use the loaded registers before they release anything: there a load counts as done once no
register of it is needed any more. No kernel leaves out wait::st.

Under `tensor_strict` only the waits count, for the warp's own use of tensor memory. tcgen05.fence::before_thread_sync
adds what was waited for to the knowledge that the warp releases at a barrier. tcgen05.commit contains that fence.
"""

from __future__ import annotations

from ...machine.interpreter import Fiber
from ...ptx.parser import PtxInstruction
from ...ptx.values import Lanes
from ...races.happens_before import Knowledge, MemoryEvent
from ..barrier import HANDED, RELAXED
from ..in_flight import InFlightRegister

LOADED = "tensor loaded"  # in a warp's scratch: (event, registers) of loads without a wait so far
KNOWN = "tensor known"  # in a warp's scratch: what relaxed waits and a fence told of tensor memory


class LoadingRegister(InFlightRegister):
    """A register that a tcgen05.ld fills until tcgen05.wait::ld, and its value."""

    def __init__(self, ins: PtxInstruction, value: Lanes) -> None:
        self.ins, self.value = ins, value

    def __str__(self) -> str:
        return f"the register is filled by {self.ins}, and no tcgen05.wait::ld has been executed since"


def begin(fiber: Fiber, way: str, ins: PtxInstruction) -> MemoryEvent | None:
    """The event of a load ("ld") or store ("st") until its wait. None where no races are looked for."""
    ledger, who, strict = fiber.cta.cluster.ledger, fiber.describe(), fiber.machine.policy.tensor_strict
    if not ledger.enabled and not strict:
        return None
    # The stores of one warp to one place are left alone.
    engine = None if strict or way == "ld" else fiber.warp
    event = ledger.event(True, lambda: f"{ins.opcode} at {ins.where} by {who}", engine)
    fiber.warp.scratch.setdefault(f"tensor {way}", []).append(event)
    if way == "ld" and not strict:
        fiber.warp.scratch.setdefault(LOADED, []).append((event, fiber.machine.program.writes[ins.pc]))
        fiber.warp.settles = used_up
    return event


def used_up(fiber: Fiber) -> None:
    """Learn of the warp's loads whose registers are needed no more."""
    warp, ledger = fiber.warp, fiber.cta.cluster.ledger
    live = fiber.machine.program.live_after(fiber.ins.pc) if fiber.ins is not None else -1
    left = []
    for event, registers in warp.scratch.get(LOADED, ()):
        if registers & live:
            left.append((event, registers))
        else:
            ledger.learn(fiber.knows, event)
    warp.scratch[LOADED] = left
    if not left:
        warp.settles = None


def settle(fiber: Fiber, way: str) -> None:
    """Complete the warp's loads or stores; loaded registers get their values."""
    ledger, scratch = fiber.cta.cluster.ledger, fiber.warp.scratch
    waited = scratch.pop(f"tensor {way}", [])
    if not fiber.machine.policy.tensor_strict:
        for event in waited:
            ledger.learn(fiber.knows, event)
        if way == "ld":
            scratch.pop(LOADED, None)
            fiber.warp.settles = None
        return
    fenced = fenced_knowledge(fiber)
    for event in waited:
        ledger.learn(fenced, event)
    scratch.setdefault("tensor waited", []).extend(waited)
    if way == "ld":
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
