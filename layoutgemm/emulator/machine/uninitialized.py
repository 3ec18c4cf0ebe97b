"""Uninitialised registers: the values that depend on one, and where they matter.

A predicated load leaves its register unchanged where the predicate is false. Compilers write arithmetic with that
register, which is harmless if the result is unused. So such a value is followed lane by lane (`values.Undefined`). A
value computed from it is undefined too; a `selp` takes the state of the selected operand. A move within the warp gets
some value and is noted among the suspects (`unwritten_memory.py`). Undefined values are errors in stores to global
memory, branches, predicates, addresses, and other operands of instructions beyond arithmetic. A store to shared memory
leaves the bytes unwritten.

Generated code ignores this: arithmetic with `Undefined` raises TypeError, and the rest of that run is computed here,
instruction by instruction. `Program.doubts` lists, when a kernel is loaded, the operations that may meet one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import EmulatorError
from ..ptx.codegen import bits_of
from ..ptx.parser import PtxInstruction, PtxOperand
from ..ptx.program import CodeSegment, Operation, Program
from ..ptx.values import FULL, NoValue, Register, Undefined, Value, bool_of, defined, lanes_without, mask_of, select64

if TYPE_CHECKING:
    from .interpreter import Fiber

# Operations that move values between lanes: their operands decide nothing.
MOVES = ("shfl", "redux", "movmatrix", "vote", "match", "stmatrix")


def failed_at(segment: CodeSegment, error: BaseException) -> int:
    """The pc of the instruction at which a run of arithmetic raised."""
    traceback, pc = error.__traceback__, getattr(error, "pc", segment.start)
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if code is segment.run.__code__:
            pc = segment.start + traceback.tb_lineno - code.co_firstlineno - 1
        traceback = traceback.tb_next
    return pc


def compute_doubtful(fiber: Fiber, segment: CodeSegment, error: TypeError) -> None:
    """Compute the rest of a run of arithmetic after an undefined register; raise other errors again."""
    program, registers = fiber.machine.program, fiber.registers
    first = failed_at(segment, error)
    for pc in range(first, segment.end):
        ins = program.kernel.instructions[pc]
        doubtful = _settled(fiber, program.registers_read(ins))
        try:
            if doubtful:
                _compute(fiber, ins, doubtful)
            else:
                program.one(pc)(registers, fiber.warp)
        except Exception as other:
            other.pc = pc  # type: ignore[attr-defined]
            raise


def _settled(fiber: Fiber, numbers: list[int] | tuple[int, ...]) -> list[int]:
    """The registers that some lanes have no value of; the others become plain values."""
    registers, found = fiber.registers, []
    for at in numbers:
        value = registers[at]
        if type(value) is Undefined:
            if value.lanes & fiber.lanes:
                found.append(at)
            else:
                registers[at] = value.value
    return found


def _compute(fiber: Fiber, ins: PtxInstruction, doubtful: list[int]) -> None:
    """Compute one arithmetic instruction, some of whose registers are undefined in some lanes."""
    program, registers = fiber.machine.program, fiber.registers

    def without(operand: PtxOperand) -> int:
        found = 0
        for at in program.registers(operand):
            found |= lanes_without(registers[at])
        return found

    gone = 0
    for operand in ins.operands[1:]:
        gone |= without(operand)
    if ins.words[0] == "selp":
        a, b, chosen = ins.operands[1:4]
        taken = _holding(registers[program.index[chosen.text]], chosen.negated)
        gone = without(chosen) | (without(a) & taken) | (without(b) & ~taken)
    targets = [at for at in range(len(registers)) if program.writes[ins.pc] >> at & 1]
    lanes = dict.fromkeys(targets, gone)
    if ins.predicate is not None:
        guard = registers[program.index[ins.predicate]]
        taken = _holding(guard, ins.negated)
        for at in targets:
            lanes[at] = lanes_without(guard) | (gone & taken) | (lanes_without(registers[at]) & ~taken)
    kept = {at: registers[at] for at in doubtful}
    for at, value in kept.items():
        registers[at] = value.value
    program.one(ins.pc)(registers, fiber.warp)
    for at, value in kept.items():
        if at not in lanes:
            registers[at] = value
    of = kept[doubtful[0]].of
    for at, lost in lanes.items():
        if lost & fiber.lanes:
            registers[at] = Undefined(registers[at], lost & fiber.lanes, of)


def _holding(predicate: Register, negated: bool) -> int:
    """The lanes for which a predicate holds; an undefined lane may count as either."""
    return mask_of(defined(predicate) ^ negated, FULL)


def run_doubtful(fiber: Fiber, step: Operation) -> int | None:
    """Execute an operation of maybe undefined registers. Raises EmulatorError where a lane needs a value."""
    doubtful = _settled(fiber, step.doubtful)
    ins = step.ins
    if not doubtful:
        return step.run(fiber)
    machine, registers, lanes = fiber.machine, fiber.registers, fiber.lanes
    program = machine.program
    if ins.predicate is not None:
        guard = registers[program.index[ins.predicate]]
        if lanes_without(guard) & lanes:
            raise EmulatorError(_said(fiber, program.index[ins.predicate]))
        lanes &= _holding(guard, ins.negated)
        if lanes != fiber.lanes and getattr(step.run, "splits", False):
            return step.run(fiber)  # it splits the lanes or does nothing: no operand is read yet
    stored = _stored(ins, program)
    kept = {}
    for at in doubtful:
        value = registers[at]
        if not program.needs[ins.pc] >> at & 1:
            continue
        if value.lanes & lanes:
            if ins.words[0] in MOVES:
                message = f"{ins.opcode} takes it: {_said(fiber, at)}"
                machine.problem("uninitialised", message, fiber, suspect=True)
            elif stored >> at & 1:
                continue
            else:
                raise EmulatorError(_said(fiber, at))
        kept[at] = value
        registers[at] = _filled(value, machine.policy.fill, list(program.kernel.registers.values())[at])
    result = step.run(fiber)
    for at, value in kept.items():
        if not step.writes >> at & 1:
            registers[at] = value
    return result


def _stored(ins: PtxInstruction, program: Program) -> int:
    """The registers whose values a store writes, without its address, as a bit set."""
    out = 0
    if ins.words[0] == "st":
        for at in program.registers(ins.operands[1]):
            out |= 1 << at
        for at in program.registers(ins.operands[0]):
            out &= ~(1 << at)
    return out


def _said(fiber: Fiber, at: int) -> str:
    name, value = list(fiber.machine.program.index)[at], fiber.registers[at]
    return str(value) if name == value.of else f"{value}, and {name} depends on it"


def _filled(value: Undefined, fill: int, kind: str) -> Value:
    """The value with fill bits in its undefined lanes."""
    bits = bits_of(kind)
    some: Value = bool(fill & 1) if bits == 1 else int.from_bytes(bytes([fill]) * (bits // 8), "little")
    return merged(value.value, some, value.lanes, bits == 64) if value.lanes != FULL else some


# Where lanes meet -----------------------------------------------------------------------------------------------------


def merged(value: Value, other: Value, lanes: int, wide: bool) -> Value:
    """These lanes of `other`, the rest of `value`; an array of a 64-bit register is uint64."""
    active = bool_of(lanes)
    return select64(active, other, value) if wide else np.where(active, other, value)


def merged_doubtful(value: Any, other: Any, lanes: int, every: int, wide: bool) -> Any:
    """`merged` for values of which one is `Undefined`; every: the active lanes."""
    for one, another in ((value, other), (other, value)):
        if isinstance(one, NoValue) and type(one) is not Undefined:
            return one if type(another) is Undefined else merged(value, other, lanes, wide)
    gone = (lanes_without(value) & ~lanes | lanes_without(other) & lanes) & every
    a, b = defined(value), defined(other)
    found = a if a is b or (isinstance(a, int) and isinstance(b, int) and a == b) else merged(a, b, lanes, wide)
    if not gone:
        return found
    return Undefined(found, gone, (value if lanes_without(value) & gone else other).of)
