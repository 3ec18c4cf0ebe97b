"""Registration of operations, and helpers for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..machine.interpreter import Fiber, lanes_where
from ..ptx.codegen import number
from ..ptx.parser import PtxInstruction, PtxOperand
from ..ptx.program import Program, Reader, Run
from ..ptx.values import is_uniform, lane_bits

Builder = Callable[[Program, PtxInstruction], Run]
BUILDERS: dict[str, Builder] = {}  # opcode, or the beginning of one up to a dot -> builder
GUARDS: set[str] = set()  # builders of these handle the predicate themselves
COUNTS: dict[str, int] = {}  # operands of those whose builders and spellings do not count them
HINT = "L2::cache_hint"  # the word of an instruction whose last operand is a cache policy
ELECT = "One lane, as elect.sync chooses it, does it for the warp."  # the remedy where several lanes do what one should
TAKEN = object()  # marks a fiber that was split off to execute one predicated instruction


class MixedMemories(Exception):
    """Lanes of one access that do it apart, as of different memories. `keys`: which part, of each lane in its order."""

    def __init__(self, keys: Sequence[int]) -> None:
        super().__init__("generic addresses of one access lie in several memories")
        self.keys = keys


def operation(*names: str, guards: bool = False, operands: int | None = None) -> Callable[[Builder], Builder]:
    """Register a builder for opcodes that begin so. With `guards`, it handles the predicate, lane by lane.

    operands  how many the instruction has, unless the builder or `spellings.py` counts them
    """

    def register(builder: Builder) -> Builder:
        for name in names:
            BUILDERS[name] = builder
            if operands is not None:
                COUNTS[name] = operands
            if guards:
                GUARDS.add(name)
        return builder

    return register


def known(ins: PtxInstruction, *words: str) -> set[str]:
    """The words of an opcode after the first. Raises ValueError for others than these."""
    for word in ins.words[1:]:
        if word not in words:
            raise ValueError(f".{word} is not emulated")
    return set(ins.words[1:])


def spelled(ins: PtxInstruction, opcode: str, *optional: str) -> None:
    """Raises ValueError unless an instruction has an opcode's words, which ptxas takes in any order."""
    mine, wanted = ([word for word in words if word not in optional] for words in (ins.words, opcode.split(".")))
    if sorted(mine) != sorted(wanted):
        raise ValueError(f"the emulator knows this as {opcode}")


def counted(ins: PtxInstruction, expected: int) -> None:
    """Refuse another number of operands."""
    if len(ins.operands) != expected:
        raise ValueError(f"{ins.opcode} has {expected} operand{'s' * (expected != 1)}, not {len(ins.operands)}")


def constant(operand: PtxOperand) -> int:
    """The value of an integer literal. Raises ValueError for any other operand."""
    digits = operand.text.removeprefix("-")
    if operand.kind != "number" or "." in digits or digits[:2].lower() in ("0f", "0d"):
        raise ValueError(f"{operand.text} is not a constant integer")
    return number(digits, 64) * (-1 if operand.text[0] == "-" else 1)


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


def by_place(program: Program, ins: PtxInstruction, run: Run) -> Run:
    """An access by the lanes where its predicate holds. Those of different memories do it group by group."""
    lanes_of, after = taken(program, ins), ins.pc + 1

    def go(fiber: Fiber) -> int | None:
        try:
            return run(fiber)
        except MixedMemories as found:
            groups: dict[int, int] = {}
            lanes = lanes_of(fiber)
            for key, bit in zip(found.keys, lane_bits(lanes), strict=True):
                groups[key] = groups.get(key, 0) | bit
        parts: list[tuple[int, int, object]] = [(ins.pc, members, None) for members in groups.values()]
        if rest := fiber.lanes & ~lanes:
            parts.append((after, rest, None))
        fiber.machine.counts.instructions[ins.opcode] -= 1  # the parts execute it
        return fiber.machine.split(fiber, after, parts)

    return go


def by_mask(ins: PtxInstruction, mask: Reader, run: Run) -> Run:
    """An operation on the lanes of a member mask. Lanes of different masks do it group by group."""

    def go(fiber: Fiber) -> int | None:
        masks = mask(fiber)
        if is_uniform(masks):
            return run(fiber)
        groups: dict[int, int] = {}
        for one, bit in zip(fiber.each(masks).tolist(), lane_bits(fiber.lanes), strict=True):
            groups[one] = groups.get(one, 0) | bit
        if len(groups) == 1:
            return run(fiber)
        fiber.machine.counts.instructions[ins.opcode] -= 1  # the parts execute it
        return fiber.machine.split(fiber, ins.pc + 1, [(ins.pc, members, None) for members in groups.values()])

    return go
