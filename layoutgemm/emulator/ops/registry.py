"""Registration of operations, and helpers for all of them."""

from __future__ import annotations

from collections.abc import Callable

from ..machine.interpreter import Fiber, lanes_where
from ..ptx.parser import PtxInstruction, PtxOperand
from ..ptx.program import Program, Run

Builder = Callable[[Program, PtxInstruction], Run]
BUILDERS: dict[str, Builder] = {}  # opcode, or the beginning of one up to a dot -> builder
GUARDS: set[str] = set()  # builders of these handle the predicate themselves
TAKEN = object()  # marks a fiber that was split off to execute one predicated instruction


def operation(*names: str, guards: bool = False) -> Callable[[Builder], Builder]:
    """Register a builder for opcodes that begin so; guards: it handles the predicate, lane by lane."""

    def register(builder: Builder) -> Builder:
        for name in names:
            BUILDERS[name] = builder
            if guards:
                GUARDS.add(name)
        return builder

    return register


def known(ins: PtxInstruction, *words: str) -> set[str]:
    """The words of an opcode after the first. Raises ValueError for others than these."""
    for word in ins.words[1:]:
        if word not in words:
            raise ValueError(f".{word} is not known here")
    return set(ins.words[1:])


def counted(ins: PtxInstruction, expected: int) -> None:
    """Refuse another number of operands."""
    if len(ins.operands) != expected:
        raise ValueError(f"{ins.opcode} has {expected} operands, not {len(ins.operands)}")


def constant(operand: PtxOperand) -> int:
    """The value of a literal operand. Raises ValueError for any other."""
    if operand.kind != "number":
        raise ValueError(f"{operand.text} is not a constant")
    return int(operand.text, 0)


def taken(program: Program, ins: PtxInstruction) -> Callable[[Fiber], int]:
    """A function that returns the lanes where an instruction's predicate holds."""
    if ins.predicate is None:
        return lambda fiber: fiber.lanes
    at, negated = program.index[ins.predicate], ins.negated
    return lambda fiber: lanes_where(fiber, fiber.registers[at], negated)


def guarded(program: Program, ins: PtxInstruction, run: Run) -> Run:
    """The operation under its predicate. Lanes that disagree split for this one instruction."""
    lanes_of, after = taken(program, ins), ins.pc + 1

    def go(fiber: Fiber) -> int | None:
        if fiber.scratch is TAKEN:
            fiber.scratch = None
            return run(fiber)
        lanes = lanes_of(fiber)
        if lanes == fiber.lanes:
            return run(fiber)
        if lanes == 0:
            return after
        parts = [(ins.pc, lanes, TAKEN), (after, fiber.lanes & ~lanes, None)]
        fiber.machine.counts.instructions[ins.opcode] -= 1  # the first part executes it
        return fiber.machine.split(fiber, after, parts)

    go.splits = True  # type: ignore[attr-defined]
    return go
