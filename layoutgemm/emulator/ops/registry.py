"""Registration of operations, and helpers for all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..machine.interpreter import Fiber, lanes_where
from ..ptx.parser import PtxInstruction
from ..ptx.program import Program, Run

Builder = Callable[[Program, PtxInstruction], Run]
BUILDERS: dict[str, Builder] = {}  # opcode, or the beginning of one up to a dot -> builder
GUARDS: set[str] = set()  # builders of these handle the predicate themselves
TAKEN = object()  # marks a fiber that was split off to execute one predicated instruction


def operation(*names: str, guards: bool = False) -> Callable[[Builder], Builder]:
    """Register a builder for opcodes that begin with these names; the longest match counts.

    guards  the builder handles the predicate itself, lane by lane; else lanes that disagree split for one instruction
    """

    def register(builder: Builder) -> Builder:
        for name in names:
            BUILDERS[name] = builder
            if guards:
                GUARDS.add(name)
        return builder

    return register


def known(ins: PtxInstruction, *words: str) -> None:
    """Refuse an opcode with words, after the first, other than these."""
    for word in ins.words[1:]:
        if word not in words:
            raise ValueError(f".{word} is not known here")


def taken(program: Program, ins: PtxInstruction) -> Callable[[Fiber], int]:
    """A function that returns the lanes where an instruction's predicate holds."""
    if ins.predicate is None:
        return lambda fiber: fiber.lanes
    at, negated = program.index[ins.predicate], ins.negated
    return lambda fiber: lanes_where(fiber, fiber.registers[at], negated)


def guarded(program: Program, ins: PtxInstruction, run: Run) -> Run:
    """The operation under its predicate. Lanes that disagree split for this one instruction."""
    lanes_of, after = taken(program, ins), ins.pc + 1

    def go(fiber: Fiber) -> Any:
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
