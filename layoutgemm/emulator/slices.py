"""What a register's value is made of: the instructions that it comes from, followed back through a kernel.

`by_thread` says whether an access touches, in each thread, the same bytes in every launch of a kernel, whatever its
sizes, its block and how often it was executed before: its address is computed from the thread's index and constants.
"""

from __future__ import annotations

from collections.abc import Iterable

from .program import Program
from .ptx import Instruction, Operand

# Special registers that a thread of a block has for itself, whichever block it is and whatever is launched.
OF_THREAD = ("%tid", "%laneid", "%warpid", "%lanemask")
# Operations whose results are functions of their operands alone; what is computed by `codegen.py` is, too.
PURE = ("shfl.sync.idx", "cvta.shared", "cvta.to.shared")


def address_of(ins: Instruction) -> Operand | None:
    """The shared address of an access by ordinary instructions or cp.async; None for others."""
    words = ins.words
    if words[0] in ("st", "stmatrix", "red") or ins.opcode.startswith(("cp.async.ca", "cp.async.cg")):
        place = 0
    elif words[0] in ("ld", "ldmatrix", "atom"):
        place = 1
    else:
        return None
    return ins.operands[place] if any(word.startswith("shared") for word in words) else None


def registers_in(operand: Operand) -> Iterable[str]:
    """The names of the registers in an operand."""
    if operand.kind == "reg":
        yield operand.text
    for part in operand.parts:
        yield from registers_in(part)


def specials_in(operand: Operand) -> Iterable[str]:
    """The names of the special registers in an operand."""
    if operand.kind == "special":
        yield operand.text
    for part in operand.parts:
        yield from specials_in(part)


def by_thread(program: Program, pc: int) -> bool:
    """Whether the instruction there is executed without a predicate and its shared address is a function of the thread
    alone: each register on the way to it has one definition, which computes it from such.
    """
    instructions = program.kernel.instructions
    address = address_of(instructions[pc])
    if address is None or instructions[pc].predicate is not None:
        return False
    definitions: dict[str, list[int]] = {}
    names = list(program.index)
    for ins in instructions:
        written = program.writes[ins.pc]
        while written:
            low = written & -written
            written ^= low
            definitions.setdefault(names[low.bit_length() - 1], []).append(ins.pc)
    wanted, done = list(registers_in(address)), set[str]()
    while wanted:
        name = wanted.pop()
        if name in done:
            continue
        done.add(name)
        made = definitions.get(name, [])
        if len(made) != 1:
            return False
        ins = instructions[made[0]]
        if ins.predicate is not None or not (
            program.generator.statement(ins) is not None or ins.opcode.startswith(PURE)
        ):
            return False
        for operand in ins.operands:
            if any(not special.startswith(OF_THREAD) for special in specials_in(operand)):
                return False
            wanted += [register for register in registers_in(operand) if register != name]
            if operand is not ins.operands[0] and name in registers_in(operand):
                return False  # of its own last value
    return True
