"""What tcgen05.ld and tcgen05.st have not completed yet, under the policy's `tensor_strict`."""

from __future__ import annotations

from typing import Any

from ..machine import Fiber
from ..order import Event
from ..ptx import Instruction
from .held import Held


class Loading(Held):
    """A register that a tcgen05.ld fills until tcgen05.wait::ld, and the value that it gets."""

    def __init__(self, ins: Instruction, value: Any) -> None:
        self.ins, self.value = ins, value

    def __str__(self) -> str:
        return f"the register is filled by {self.ins}, and no tcgen05.wait::ld has been executed since"


def begin(fiber: Fiber, way: str, ins: Instruction) -> Event | None:
    """The event of a load ("ld") or store ("st") that is waited for; None where waiting is not asked for."""
    if not fiber.machine.policy.tensor_strict:
        return None
    ledger, who = fiber.cta.cluster.ledger, fiber.describe()
    event = ledger.event(True, lambda: f"{ins.opcode} at {ins.where} by {who}")
    fiber.warp.scratch.setdefault(f"tensor {way}", []).append(event)
    return event


def settle(fiber: Fiber, way: str) -> None:
    """The warp knows that its loads or stores have completed, and loaded registers have their values."""
    ledger = fiber.cta.cluster.ledger
    for event in fiber.warp.scratch.pop(f"tensor {way}", ()):
        ledger.learn(fiber.knows, event)
        if "fenced tensor" in fiber.warp.scratch:
            ledger.learn(fiber.warp.scratch["fenced tensor"], event)
    if way == "ld" and fiber.machine.policy.tensor_strict:
        for register, value in enumerate(fiber.registers):
            if type(value) is Loading:
                fiber.registers[register] = value.value
                fiber.written |= 1 << register
