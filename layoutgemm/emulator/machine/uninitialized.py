"""Uninitialised registers: the values that depend on one, and where they matter.

A predicated load leaves its register unchanged where the predicate is false. Compilers write arithmetic with that
register, which is harmless if the result is unused. So such a value is followed lane by lane and bit by bit
(`values.Undefined`). A value computed from it is undefined too, with four exceptions:

    selp                    takes the state of the selected operand
    and, or                 a zero of `and`, or a one of `or`, decides the bit
    moves                   packing, shifts, prmt and conversions of integers move the undefined bits
    pairs                   each half of a packed pair stands for itself

A move within the warp, a product and an atomic get some value, and are noted among the suspects
(`unwritten_memory.py`): they count if a result differs with other values there. A shuffle's result is followed on
(`Undefined.reports`), and noted only where an instruction beyond arithmetic takes it. So reductions of Triton run once:
nothing uses the sums of their lanes without a value. A store to global memory is a finding,
and so are a branch and a predicate, which then take some side. Undefined addresses and other operands of instructions
beyond arithmetic are errors, but for addresses that the instruction does not use, as of a cp.async that reads nothing.
A store to shared memory leaves the bytes unwritten.

Generated code ignores this: arithmetic with `Undefined` raises TypeError, and the rest of that run is computed here,
instruction by instruction. `Program.doubts` lists, when a kernel is loaded, the operations that may meet one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ...errors import EmulatorError
from ..ptx.parser import PtxInstruction, PtxOperand
from ..ptx.program import CodeSegment, Operation, Program, set_bits
from ..ptx.values import (
    FULL,
    LANES,
    NO_REPORTS,
    LentRegister,
    NoValue,
    Register,
    Reports,
    Undefined,
    Value,
    bits_without,
    bool_of,
    defined,
    lanes_of,
    lanes_without,
    mask_of,
    reported,
    select64,
    undefined_where,
)

if TYPE_CHECKING:
    from .interpreter import Fiber, PtxMachine

# Operations that move values between lanes, or compute with many: their operands decide nothing.
MOVES = ("shfl", "redux", "movmatrix", "vote", "match", "stmatrix", "mma", "wmma", "wgmma", "atom", "red", "st.async")
_TENSOR_STORE = ("tcgen05", "st")
# Instructions that put bits elsewhere, by their data operands; the others say where to.
CARRIES = {
    "mov": None,
    "prmt": (1, 2),
    "shl": (1,),
    "shr": (1,),
    "shf": (1, 2),
    "bfe": (1,),
    "bfi": (1, 2),
    "cvt": (1,),
}
# Instructions that a machine computes one by one for exchanged values, and more for each SHARE operations.
FEW, SHARE = 256, 4
Bits: TypeAlias = npt.NDArray[np.uint64]  # [lane] -> bits of a register
INTEGER = re.compile(r"[bsu]\d+")


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
    """Compute the rest of a run of arithmetic after an undefined register. Raise other errors again."""
    program = fiber.machine.program
    first = failed_at(segment, error)
    for pc in range(first, segment.end):
        ins = program.kernel.instructions[pc]
        doubtful = _followed(fiber, ins, _settled(fiber, program.registers_read(ins)))
        try:
            if doubtful:
                _compute(fiber, ins, doubtful)
            else:
                _computed_once(fiber, ins)
        except Exception as other:
            other.pc = pc  # type: ignore[attr-defined]
            raise


def _computed_once(fiber: Fiber, ins: PtxInstruction) -> None:
    """Compute one arithmetic instruction; report registers among its operands that a product in flight reads."""
    machine, registers = fiber.machine, fiber.registers
    compute = machine.program.one(ins.pc)
    try:
        compute(registers, fiber.warp)
    except TypeError:
        lent = [at for at in machine.program.registers_read(ins) if isinstance(registers[at], LentRegister)]
        if not lent:
            raise
        says = f"{registers[lent[0]]}: PTX leaves open what a read before that gives"
        machine.problem(
            "protocol", says, fiber, ins, orders="A wgmma.wait_group for the product, before it, orders them."
        )
        for at in lent:
            registers[at] = registers[at].value
        compute(registers, fiber.warp)


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


def _follows(machine: PtxMachine) -> bool:
    """True while few instructions had to be computed for what lanes exchanged: each costs many ordinary ones."""
    return machine.followed <= FEW + machine.operations // SHARE


def _followed(fiber: Fiber, ins: PtxInstruction, doubtful: list[int]) -> list[int]:
    """These undefined registers. Exchanged ones are reported if they were too many, or if others meet theirs.

    Bits of a result that derive from both kinds count as never written, if no others derive from exchanged ones alone.
    """
    machine, registers = fiber.machine, fiber.registers
    exchanged = {at: registers[at] for at in doubtful if registers[at].reports}
    if not exchanged:
        return doubtful
    if _follows(machine):
        machine.followed += 1
        if len(exchanged) == len(doubtful):
            return doubtful
        every = _lost(fiber, ins)
        _write(fiber, {at: value.value for at, value in exchanged.items()})
        own = _lost(fiber, ins)
        _write(fiber, exchanged)
        if all(np.array_equal(bits, own[at]) for at, bits in every.items()):
            return doubtful
    _write(fiber, {at: reported(value) for at, value in exchanged.items()})
    return [at for at in doubtful if at not in exchanged]


def _write(fiber: Fiber, values: Mapping[int, Register]) -> None:
    """Write some registers."""
    for at, value in values.items():
        fiber.registers[at] = value


def _compute(fiber: Fiber, ins: PtxInstruction, doubtful: list[int]) -> None:
    """Compute one arithmetic instruction, some of whose registers are undefined in some lanes."""
    program, registers = fiber.machine.program, fiber.registers
    kept = {at: registers[at] for at in doubtful}
    lost = _lost(fiber, ins)
    for at, value in kept.items():
        registers[at] = value.value
    program.one(ins.pc)(registers, fiber.warp)
    for at, value in kept.items():
        if at not in lost:
            registers[at] = value
    of, reports = _origin(kept.values())
    for at, bits in lost.items():
        registers[at] = undefined_where(defined(registers[at]), bits, fiber.lanes, of, reports)


def _origin(values: Collection[Undefined]) -> tuple[str, Reports]:
    """(the register that was never written, the reports) of what derives from these."""
    never = next((value for value in values if not value.reports), None)
    if never is not None:
        return never.of, NO_REPORTS
    return next(iter(values)).of, {pc: report for value in values for pc, report in value.reports.items()}


def _ones(width: int) -> np.uint64:
    return np.uint64((1 << width) - 1)


def _lost(fiber: Fiber, ins: PtxInstruction) -> dict[int, Bits]:
    """The bits of each target that have no value."""
    program, registers = fiber.machine.program, fiber.registers
    targets = [*set_bits(program.writes[ins.pc])]
    lost = _lost_where_taken(fiber, ins, targets)
    if ins.predicate is not None:
        guard = registers[program.index[ins.predicate]]
        taken, open_ = bool_of(_holding(guard, ins.negated)), bool_of(lanes_without(guard))
        for at in targets:
            before = bits_without(registers[at], program.widths[at])
            lost[at] = np.where(open_, _ones(program.widths[at]), np.where(taken, lost[at], before))
    return lost


def _lost_where_taken(fiber: Fiber, ins: PtxInstruction, targets: list[int]) -> dict[int, Bits]:
    """The bits of each target that have no value, if the instruction executes."""
    program, name = fiber.machine.program, ins.words[0]
    sources = ins.operands[1:]

    def lacks(operand: PtxOperand) -> Bits:
        out = np.zeros(LANES, np.uint64)
        for at in program.registers(operand):
            out |= bits_without(fiber.registers[at], program.widths[at])
        return out

    if name == "selp":
        a, b, chosen = sources
        which = fiber.registers[program.index[chosen.text]]
        either = np.where(bool_of(_holding(which, chosen.negated)), lacks(a), lacks(b))
        return {at: np.where(bool_of(lanes_without(which)), _ones(program.widths[at]), either) for at in targets}
    if name in ("and", "or") and len(sources) == 2:
        return dict.fromkeys(targets, _absorbed(fiber, ins, lacks(sources[0]), lacks(sources[1])))
    if name in ("xor", "not") and ins.words[-1] != "pred":
        return dict.fromkeys(targets, lacks(sources[0]) | lacks(sources[-1]))
    if name in CARRIES and all(INTEGER.fullmatch(word) for word in ins.words[1:] if name == "cvt"):
        carried = CARRIES[name] or tuple(range(1, len(ins.operands)))
        registers_alone = all(_of_registers(ins.operands[n]) for n in carried)
        open_control = any(lacks(operand).any() for n, operand in enumerate(ins.operands) if n and n not in carried)
        if registers_alone and not open_control:
            return _carried(fiber, ins, targets, carried)
    any_bit = [lacks(operand) for operand in sources]
    if ins.words[-1].endswith("x2"):
        widths = [max([program.widths[at] for at in program.registers(one)], default=2) for one in sources]
        return dict.fromkeys(targets, _halves(any_bit, widths, program.widths[targets[0]]))
    if name == "cvt" and len(sources) == 2 and len(targets) == 1 and ins.words[-2].endswith("x2"):
        width = program.widths[targets[0]]
        lost = np.zeros(LANES, np.uint64)
        for bits, upper in zip(any_bit, (True, False), strict=True):  # the first source goes to the upper half
            lost |= np.where(bits != 0, _half(width, upper), np.uint64(0))
        return dict.fromkeys(targets, lost)
    together = sum(any_bit[1:], any_bit[0]) != 0 if any_bit else np.zeros(LANES, bool)
    if name == "setp" and len(sources) == 3 and ins.words[2] in ("and", "or"):
        together &= ~_decided(fiber, sources[2], ins.words[2] == "or") | (lacks(sources[2]) != 0)
    return {at: np.where(together, _ones(program.widths[at]), np.uint64(0)) for at in targets}


def _of_registers(operand: PtxOperand) -> bool:
    """True if an operand is a register, several, or 0: the bits of another number are no undefined ones."""
    if operand.kind == "vector":
        return all(_of_registers(part) for part in operand.parts)
    return operand.kind == "reg" or (operand.kind == "number" and operand.text == "0")


def _absorbed(fiber: Fiber, ins: PtxInstruction, first: Bits, second: Bits) -> Bits:
    """and, or: a bit with a value of 0, or of 1, decides."""
    program = fiber.machine.program
    values = []
    for operand in ins.operands[1:]:
        at = next(iter(program.registers(operand)), None)
        plain = program.value(operand, ins.words[-1])(fiber) if at is None else defined(fiber.registers[at])
        if at is not None and operand.negated:
            plain = plain ^ True
        array = lanes_of(plain).astype(np.uint64)
        values.append(array if ins.words[0] == "and" else ~array)
    return (first | second) & (first | values[0]) & (second | values[1])


def _decided(fiber: Fiber, operand: PtxOperand, value: bool) -> npt.NDArray[np.bool_]:
    """[lane] whether a predicate operand has this value."""
    held = lanes_of(defined(fiber.registers[fiber.machine.program.index[operand.text]])).astype(bool)
    return np.asarray((held ^ operand.negated) == value)


def _carried(fiber: Fiber, ins: PtxInstruction, targets: list[int], carried: Iterable[int]) -> dict[int, Bits]:
    """The undefined bits of the targets: the instruction itself, of bits in place of values."""
    program = fiber.machine.program
    moved: list[Value] = [defined(value) for value in fiber.registers]
    for at in targets:  # before its operands, which may be among them
        moved[at] = 0
    for n in carried:
        for at in program.registers(ins.operands[n]):
            bits = bits_without(fiber.registers[at], program.widths[at])
            moved[at] = bits if program.widths[at] == 64 else bits.astype(np.int64)
    copied = moved[:]
    program.one(ins.pc)(copied, fiber.warp)
    return {at: lanes_of(copied[at]).astype(np.uint64) & _ones(program.widths[at]) for at in targets}


def _halves(parts: list[Bits], widths: list[int], width: int) -> Bits:
    """Undefined bits of a packed pair: a half is undefined if an operand's same half is.

    An operand's register may be narrower or wider."""
    out = np.zeros(LANES, np.uint64)
    for upper in (False, True):
        mask = _half(width, upper)
        for bits, own in zip(parts, widths, strict=True):
            out |= np.where(bits & _half(own, upper) != 0, mask, np.uint64(0))
    return out


def _half(width: int, upper: bool) -> np.uint64:
    """The bits of one half of a register."""
    return _ones(width // 2) << np.uint64(width // 2 * upper)


def _holding(predicate: Register, negated: bool) -> int:
    """The lanes for which a predicate holds; an undefined lane may count as either."""
    return mask_of(defined(predicate) ^ negated, FULL)


def run_doubtful(fiber: Fiber, step: Operation) -> int | None:
    """Execute an operation of maybe undefined registers. Raises EmulatorError where an address or a size is one."""
    doubtful = _settled(fiber, step.doubtful)
    ins = step.ins
    if not doubtful:
        return step.run(fiber)
    machine, registers, lanes = fiber.machine, fiber.registers, fiber.lanes
    program = machine.program
    if ins.predicate is not None:
        guard = program.index[ins.predicate]
        if type(registers[guard]) is Undefined and registers[guard].reports:
            registers[guard] = reported(registers[guard])
        if lanes_without(registers[guard]) & lanes:
            machine.problem("uninitialised", _said(fiber, guard), fiber)
            registers[guard] = filled(registers[guard], machine.policy.fill, 1)
        lanes &= _holding(registers[guard], ins.negated)
        if lanes != fiber.lanes and getattr(step.run, "splits", False):
            return step.run(fiber)  # it splits the lanes or does nothing: no operand is read yet
    addresses, values = _parts(ins, program)
    exchanged = _exchanged(ins, program)
    unused = _unused(step, fiber, doubtful)
    kept = {}
    for at in doubtful:
        value = registers[at]
        if not program.needs[ins.pc] >> at & 1 or type(value) is not Undefined:
            continue
        if at in unused and not value.lanes & lanes & ~unused[at]:
            kept[at], registers[at] = value, value.value
            continue
        if value.lanes & lanes:
            if at == exchanged and _follows(machine):
                kept[at] = value
                if not value.reports:
                    report = partial(_report_move, fiber, ins, at, value)
                    some = filled(value, machine.policy.fill, program.widths[at])
                    registers[at] = Undefined(some, value.lanes, value.of, value.bits, {ins.pc: report})
                continue
            if value.reports:
                registers[at] = reported(value)
                continue
            if ins.words[0] in MOVES and not addresses >> at & 1:
                _report_move(fiber, ins, at, value)
            elif values >> at & 1 and not addresses >> at & 1:
                continue
            else:
                raise EmulatorError(_said(fiber, at))
        kept[at] = value
        registers[at] = filled(value, machine.policy.fill, program.widths[at])
    try:
        result = step.run(fiber)
    except Exception:  # it may be executed again, with other lanes
        for at, value in kept.items():
            registers[at] = value
        raise
    for at, value in kept.items():
        if not step.writes >> at & 1:
            registers[at] = value
    return result


def _unused(step: Operation, fiber: Fiber, doubtful: Iterable[int]) -> dict[int, int]:
    """Register of an address alone -> the lanes whose address the instruction does not use.

    An operation says so by its `unused`: a function that returns the operand's number and those lanes.
    """
    says, program = getattr(step.run, "unused", None), fiber.machine.program
    if says is None:
        return {}
    number, lanes = says(fiber)
    others = {at for n, operand in enumerate(step.ins.operands) if n != number for at in program.registers(operand)}
    return {at: lanes for at in program.registers(step.ins.operands[number]) if at in doubtful and at not in others}


def _parts(ins: PtxInstruction, program: Program) -> tuple[int, int]:
    """The registers of addresses, and those that a store writes, as bit sets."""
    addresses = values = 0
    for operand in ins.operands:
        if operand.kind == "address":
            for at in program.registers(operand):
                addresses |= 1 << at
    stored = ins.operands[1:2] if ins.words[0] == "st" else ins.operands[-1:] if ins.words[:2] == _TENSOR_STORE else ()
    for operand in stored:
        for at in program.registers(operand):
            values |= 1 << at
    return addresses, values


def _exchanged(ins: PtxInstruction, program: Program) -> int | None:
    """The register whose value a shuffle moves, if it needs that register for nothing else."""
    if ins.words[0] != "shfl" or ins.operands[1].kind != "reg":
        return None
    at = program.index[ins.operands[1].text]
    return None if any(at in program.registers(one) for one in ins.operands[2:]) else at


def _report_move(fiber: Fiber, ins: PtxInstruction, at: int, value: Undefined) -> None:
    """Report a suspect: an instruction that moves or combines lanes' values gives a register's undefined bits some."""
    message = f"{ins.opcode} takes it: {_said(fiber, at, value)}"
    fiber.machine.problem("uninitialised", message, fiber, ins, suspect=True)


def _said(fiber: Fiber, at: int, value: Undefined | None = None) -> str:
    name = fiber.machine.program.names[at]
    value = fiber.registers[at] if value is None else value
    return str(value) if name == value.of else f"{value}, and {name} depends on it"


def filled(value: Undefined, fill: int, width: int) -> Value:
    """The value with fill bits in place of its undefined ones."""
    if value.lanes == FULL and value.bits is None:
        return bool(fill & 1) if width == 1 else int.from_bytes(bytes([fill]) * (width // 8), "little")
    bits, pattern = bits_without(value, width), np.uint64(int.from_bytes(bytes([fill]) * 8, "little"))
    found = lanes_of(value.value).astype(np.uint64) & ~bits | pattern & bits
    return found if width == 64 else found.astype(bool) if width == 1 else found.astype(np.int64)


# Where lanes meet -----------------------------------------------------------------------------------------------------


def merged(value: Value, other: Value, lanes: int, wide: bool) -> Value:
    """These lanes of `other`, the rest of `value`. An array of a 64-bit register is uint64."""
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
    both = [(value, ~lanes & every), (other, lanes)]
    undefined = [one for one, of_it in both if lanes_without(one) & of_it]
    if any(one.reports for one in undefined) and not all(one.reports for one in undefined):
        plain = [reported(one) if type(one) is Undefined and one.reports else one for one, _ in both]
        return merged_doubtful(plain[0], plain[1], lanes, every, wide)
    bits = np.where(bool_of(lanes), bits_without(other, 64), bits_without(value, 64))
    return undefined_where(found, bits, every, *_origin(undefined))
