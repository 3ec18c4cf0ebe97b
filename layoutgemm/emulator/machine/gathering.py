"""Lanes of a warp that took different ways and execute one instruction together.

An instruction with `.aligned`, or with a member mask, waits until all lanes that it names have come to it. PTX does not
ask that they have taken the same way, so a branch may lead lane 0 to the barrier that the other lanes reach by another.
An `.aligned` instruction has to be the same one for all lanes. One with a member mask may be another of the same form:
the same opcode and mask, with other registers.

A fiber that lacks lanes raises `Apart`. When the rest have come, one fiber of all lanes executes the instruction
(`Gathering`). Then each goes on its own way again. Where no lane of the warp can come any more, the fiber executes the
instruction alone, which is reported as divergence.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..ptx.parser import PtxInstruction
from ..ptx.program import Program
from ..ptx.values import Register, Undefined
from .uninitialized import merged, merged_doubtful

if TYPE_CHECKING:
    from .interpreter import Fiber

Form = tuple[object, ...]
_NAME = re.compile(r"%[\w$]+")


class Apart(Exception):
    """A fiber has come to an instruction that needs lanes which took another way.

    needed  all lanes that it needs; form: of the instruction, which the other lanes' has to equal
    """

    def __init__(self, needed: int, form: Form) -> None:
        super().__init__("lanes on another way")
        self.needed, self.form = needed, form


class Gathering:
    """Fibers that execute an instruction as one, with the registers of all of them.

    members    the fibers, each at its own instruction of the same form
    registers  those of the fiber that stands for all of them, at the first member's instruction
    """

    def __init__(self, program: Program, members: Sequence[Fiber]) -> None:
        self.program, self.members = program, members
        first, *others = members
        self.pc = first.pc
        names = [registers_in_order(program, self._at(fiber)) for fiber in members]
        self.names = [dict(zip(names[0], mine, strict=True)) for mine in names]
        self.registers = list(first.registers)
        used = program.live_after(self.pc) | program.reads[self.pc] | program.writes[self.pc]
        for fiber, names_there in zip(others, self.names[1:], strict=True):
            every = sum(one.lanes for one in members)
            for at in range(len(self.registers)):
                if used >> at & 1:
                    other = fiber.registers[names_there.get(at, at)]
                    wide = bool(program.wide >> at & 1)
                    self.registers[at] = merged_register(self.registers[at], other, fiber.lanes, every, wide)
        self.before = list(self.registers)

    def _at(self, fiber: Fiber) -> PtxInstruction:
        return self.program.kernel.instructions[fiber.pc]

    def give_back(self, together: Fiber) -> None:
        """Hand the results to each member, which goes on behind its own instruction."""
        changed = [at for at, value in enumerate(together.registers) if value is not self.before[at]]
        for fiber, names in zip(self.members, self.names, strict=True):
            for at in changed:
                fiber.registers[names.get(at, at)] = together.registers[at]
            fiber.written |= self.program.writes[fiber.pc] | together.written
            fiber.pc += 1


def registers_in_order(program: Program, ins: PtxInstruction) -> list[int]:
    """The registers of an instruction as they stand in its text. Its predicate, then its operands."""
    return [program.index[name] for name in _NAME.findall(ins.text) if name in program.index]


def form_of(program: Program, ins: PtxInstruction) -> tuple[str, tuple[int, ...]]:
    """An instruction's text without its registers' names, and which of those are the same."""
    found = registers_in_order(program, ins)
    text = _NAME.sub(lambda name: "%" if name[0] in program.index else name[0], ins.text)
    return text, tuple(found.index(at) for at in found)


def merged_register(value: Register, other: Register, lanes: int, every: int, wide: bool) -> Register:
    """A register of several fibers: `other` for these lanes, `value` for the rest of `every`."""
    if value is other or (isinstance(value, int) and isinstance(other, int) and value == other):
        return value
    if isinstance(value, Undefined) or isinstance(other, Undefined):
        return merged_doubtful(value, other, lanes, every, wide)
    return merged(value, other, lanes, wide)
