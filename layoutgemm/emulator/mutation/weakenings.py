"""Mutants that weaken or move one ordering instruction, in place of deleting it.

A weaker form of an instruction orders less: a relaxed arrival, a fence of a smaller scope or of global memory alone, an
arrival at a barrier without the wait, another barrier. A moved one stands one access too early or too late, as where a
fence follows the barrier, or a buffer is released before its last read.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

from ..ops import program_of
from ..ptx.parser import PtxInstruction, PtxKernel, PtxOperand
from ..ptx.program import BRANCHES, Program
from .mutants import ORDERING, Mutant

# The beginning of an opcode as a pattern, its replacement, and the name of the change. Only the first that fits counts.
_SCOPED = r"(?P<what>mbarrier\.\w+(\.expect_tx|\.parity)?)"
WEAKER: tuple[tuple[str, str, str], ...] = (
    (r"fence\.proxy\.async(\.shared::\w+)?$", "fence.proxy.async.global", "of global memory alone"),
    (r"fence\.(?P<sem>acq_rel|sc)\.(gpu|sys|cluster)$", r"fence.\g<sem>.cta", "of the CTA's scope"),
    (r"barrier\.cluster\.arrive(\.release)?(?P<rest>(\.aligned)?)$", r"barrier.cluster.arrive.relaxed\g<rest>",
     "relaxed"),
    (_SCOPED + r"\.(release|acquire)\.(?P<rest>(cta|cluster)\..*)", r"\g<what>.relaxed.\g<rest>", "relaxed"),
    (r"(?P<what>mbarrier\.(arrive(\.expect_tx)?|(try|test)_wait(\.parity)?))\.(?P<rest>(shared|b64).*)",
     r"\g<what>.relaxed.cluster.\g<rest>", "relaxed"),
    (r"cp\.async\.bulk\.wait_group$", "cp.async.bulk.wait_group.read", "of the reads alone"),
    (r"(?P<what>ld)\.acquire(?P<rest>\..*)", r"\g<what>.relaxed\g<rest>", "relaxed"),
    (r"(?P<what>st|red|atom)\.(release|acq_rel)(?P<rest>\..*)", r"\g<what>.relaxed\g<rest>", "relaxed"),
)  # fmt: skip
# First words of instructions that an ordering instruction may stand before or after.
_ACCESSES = (
    "ld", "st", "atom", "red", "ldmatrix", "stmatrix", "cp", "wgmma", "tcgen05", "mbarrier", "bar", "barrier", "fence",
    "membar",
)  # fmt: skip


def weakenings(kernel: PtxKernel) -> Iterator[Mutant]:
    """One mutant for each weaker form and for each move of an ordering instruction."""
    program = program_of(kernel)
    for ins in kernel.instructions:
        yield from _weaker(ins)
        if _orders(ins):
            yield from _moved(program, ins)


def _orders(ins: PtxInstruction) -> bool:
    return any(ins.opcode == name or ins.opcode.startswith(name + ".") for name in ORDERING)


def _weaker(ins: PtxInstruction) -> Iterator[Mutant]:
    """Mutants of an instruction with weaker qualifiers, or at another barrier."""

    def mutant(change: str, opcode: str, operands: tuple[PtxOperand, ...]) -> Mutant:
        text = ins.text.replace(ins.opcode, opcode, 1) if opcode != ins.opcode else ins.text
        made = dataclasses.replace(ins, opcode=opcode, words=tuple(opcode.split(".")), operands=operands, text=text)
        return Mutant("weakening", str(ins), change, ((ins.pc, (made,)),))

    for pattern, instead, change in WEAKER:
        if re.match(pattern, ins.opcode):
            yield mutant(change, re.sub(pattern, instead, ins.opcode), ins.operands)
            break
    if ins.words[0] in ("bar", "barrier") and not {"warp", "cluster", "red"} & {*ins.words}:
        if len(ins.operands) != 2:  # of the whole block, which meets at one instruction as a rule
            return
        if "sync" in ins.words:
            yield mutant("arrives without a wait", ins.opcode.replace("sync", "arrive"), ins.operands)
        number = ins.operands[0]
        if number.kind == "number":
            other = PtxOperand("number", str(int(number.text) ^ 8))
            yield mutant("at another barrier", ins.opcode, (other, *ins.operands[1:]))


def _moved(program: Program, ins: PtxInstruction) -> Iterator[Mutant]:
    """The instruction after the next access, and before the last one."""
    instructions = program.kernel.instructions
    for step, change in ((1, "one access later"), (-1, "one access earlier")):
        at = ins.pc + step
        while 0 <= at < len(instructions) and _may_pass(program, ins.pc, at, step):
            other = instructions[at]
            if other.words[0] in _ACCESSES:
                if other.opcode != ins.opcode and (step > 0 or not _orders(other)):  # else it is the other's move
                    pair = (other, ins) if step > 0 else (ins, other)
                    yield Mutant("order", str(ins), change, ((ins.pc, ()), (at, pair)))
                break
            at += step


def _may_pass(program: Program, pc: int, at: int, step: int) -> bool:
    """True if an instruction may change places with another one of its basic block."""
    border = at if step > 0 else at + 1
    if border in program.kernel.labels.values() or program.kernel.instructions[at].words[0] in BRANCHES:
        return False
    own, other = program.writes[pc], program.writes[at]
    return not (own & (program.reads[at] | other) or other & program.reads[pc])
