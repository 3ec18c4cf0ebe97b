"""Backward dataflow: the instructions that a register's value comes from.

`depends` tells whether an access touches the same bytes in every launch of a kernel, for every size, block and
iteration. Such an address is computed from constants, or from constants and the thread's index.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from ..ptx.parser import PtxInstruction, PtxOperand
from ..ptx.program import Program, set_bits

# Special registers that are the thread's own, in every block and launch.
OF_THREAD = ("%tid", "%laneid", "%warpid", "%lanemask")
# Operations whose results depend on their operands alone, as all of `codegen.py` does.
PURE = ("shfl.sync.idx", "cvta.shared", "cvta.to.shared")


def address_of(ins: PtxInstruction) -> PtxOperand | None:
    """The shared address of an access by ordinary instructions or cp.async; None for others."""
    words = ins.words
    first = ("cp.async.ca", "cp.async.cg", "mbarrier.init", "tcgen05.alloc")
    if words[0] in ("st", "stmatrix", "red") or ins.opcode.startswith(first):
        place = 0
    elif words[0] in ("ld", "ldmatrix", "atom"):
        place = 1
    else:
        return None
    return ins.operands[place] if any(word.startswith("shared") for word in words) else None


def registers_in(operand: PtxOperand, kind: str = "reg") -> Iterable[str]:
    """The names of the registers in an operand, or of its "special" ones."""
    if operand.kind == kind:
        yield operand.text
    for part in operand.parts:
        yield from registers_in(part, kind)


specials_in = partial(registers_in, kind="special")


def depends(program: Program, pc: int) -> str | None:
    """The inputs of an instruction's shared address: "nothing", "thread", or None for others."""
    instructions = program.kernel.instructions
    address = address_of(instructions[pc])
    if address is None or instructions[pc].predicate is not None:
        return None
    what = "nothing"
    definitions: dict[str, list[int]] = {}
    for ins in instructions:
        for register in set_bits(program.writes[ins.pc]):
            definitions.setdefault(program.names[register], []).append(ins.pc)
    wanted, done = list(registers_in(address)), set[str]()
    while wanted:
        name = wanted.pop()
        if name in done:
            continue
        done.add(name)
        made = definitions.get(name, [])
        if len(made) != 1:
            return None
        ins = instructions[made[0]]
        if ins.predicate is not None or not (
            program.generator.statement(ins) is not None or ins.opcode.startswith(PURE)
        ):
            return None
        for operand in ins.operands:
            for special in specials_in(operand):
                if not special.startswith(OF_THREAD):
                    return None
                what = "thread"
            wanted += [register for register in registers_in(operand) if register != name]
            if operand is not ins.operands[0] and name in registers_in(operand):
                return None  # depends on its own last value
    return what
