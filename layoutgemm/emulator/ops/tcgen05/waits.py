"""What tcgen05.ld and tcgen05.st have not completed, and what no fence has handed on, under `tensor_strict`.

A load or store is an event of its own. tcgen05.wait::ld or ::st tells the warp that it has happened, for what the warp
itself does with tensor memory; tcgen05.fence::before_thread_sync puts it among what the warp hands to others when it
arrives at a barrier. tcgen05.commit contains that fence.
"""

from __future__ import annotations

from typing import Any

from ...machine.interpreter import Fiber
from ...ptx.parser import PtxInstruction
from ...races.happens_before import Knowledge, MemoryEvent
from ..in_flight import InFlightRegister


class Loading(InFlightRegister):
    """A register that a tcgen05.ld fills until tcgen05.wait::ld, and the value that it gets."""

    def __init__(self, ins: PtxInstruction, value: Any) -> None:
        self.ins, self.value = ins, value

    def __str__(self) -> str:
        return f"the register is filled by {self.ins}, and no tcgen05.wait::ld has been executed since"


def begin(fiber: Fiber, way: str, ins: PtxInstruction) -> MemoryEvent | None:
    """The event of a load ("ld") or store ("st") that is waited for; None where waiting is not asked for."""
    if not fiber.machine.policy.tensor_strict:
        return None
    ledger, who = fiber.cta.cluster.ledger, fiber.describe()
    event = ledger.event(True, lambda: f"{ins.opcode} at {ins.where} by {who}")
    fiber.warp.scratch.setdefault(f"tensor {way}", []).append(event)
    return event


def settle(fiber: Fiber, way: str) -> None:
    """The warp knows that its loads or stores have completed, and loaded registers have their values."""
    ledger, scratch = fiber.cta.cluster.ledger, fiber.warp.scratch
    waited = scratch.pop(f"tensor {way}", [])
    if not fiber.machine.policy.tensor_strict:
        return
    fenced = fenced_knowledge(fiber)
    for event in waited:
        ledger.learn(fenced, event)
    scratch.setdefault("tensor waited", []).extend(waited)
    if way == "ld":
        for register, value in enumerate(fiber.registers):
            if type(value) is Loading:
                fiber.registers[register] = value.value
                fiber.written |= 1 << register


def hand_on(fiber: Fiber) -> None:
    """tcgen05.fence::before_thread_sync: loads and stores that were waited for go with what the warp releases."""
    for event in fiber.warp.scratch.pop("tensor waited", ()):
        fiber.cta.cluster.ledger.learn(fiber.knows, event)


def take_over(fiber: Fiber) -> None:
    """tcgen05.fence::after_thread_sync: what the warp has acquired counts for tensor memory."""
    ledger, scratch = fiber.cta.cluster.ledger, fiber.warp.scratch
    fenced = scratch["tensor fenced"] = ledger.knowledge(fiber.knows)
    for event in scratch.get("tensor waited", ()):
        ledger.learn(fenced, event)


def fenced_knowledge(fiber: Fiber) -> Knowledge:
    """What the warp knows when it touches tensor memory: its own doing, and what it had at its last fence."""
    scratch = fiber.warp.scratch
    if "tensor fenced" not in scratch:
        scratch["tensor fenced"] = fiber.cta.cluster.ledger.knowledge()
    found: Knowledge = scratch["tensor fenced"]
    return found
