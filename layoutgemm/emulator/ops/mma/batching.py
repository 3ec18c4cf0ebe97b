"""Consecutive products of a warp, multiplied as one matrix product.

Compilers unroll the tiles of a warp: 32 and more mma.sync in a row, each of a few A's with each of a few B's. All A's
stacked, times all B's side by side, is one matrix product, and every instruction takes its block. The registers of all
of them are gathered and scattered with one `take` each. Results equal those of single instructions. A run ends before
an instruction that reads an earlier one's result, and at every label. Unusual operands, such as a constant or an
unwritten register, are left to the single instructions.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...machine.interpreter import Fiber
from ...ptx.parser import PtxInstruction
from ...ptx.program import Program
from ...ptx.values import LANES
from .operands import products

if TYPE_CHECKING:
    from .sync import WarpOperand

Array = npt.NDArray[Any]
MOST = 64  # maximum number of instructions of a run
WASTE = 2  # computed blocks allowed for each used one


class BatchedOperand:
    """One operand of all instructions of a run. Its fragment, and each distinct set of registers."""

    def __init__(self, fragment: WarpOperand, places: list[tuple[int, ...]], apart: bool = False) -> None:
        """apart: every instruction has its own set of registers."""
        self.fragment = fragment
        different = places if apart else list(dict.fromkeys(places))
        self.count = len(different)
        self.which = np.arange(len(places)) if apart else np.array([different.index(each) for each in places])
        self.registers = [register for each in different for register in each]
        self.take = fragment.index.reshape(-1)

    def held(self, fiber: Fiber) -> list[Any]:
        """The registers' contents."""
        registers = fiber.registers
        return [registers[place] for place in self.registers]

    def matrices(self, values: list[Any]) -> Array:
        """The matrices [which, row, column]. Raises TypeError for a register without a value."""
        fragment = self.fragment
        try:
            joined = np.concatenate(values)
        except ValueError:  # with uniform values among them, as in fresh accumulators
            joined = np.concatenate([x if isinstance(x, np.ndarray) else np.full(LANES, x) for x in values])
        units = joined.astype(fragment.word).view(fragment.unit).reshape(self.count, -1)
        return fragment.decode(units.take(self.take, axis=1).reshape(self.count, *fragment.index.shape))


class InstructionRun:
    """Instructions of one opcode in a row from `first` on. `finish` maps (sums of products, C) -> D."""

    def __init__(
        self,
        program: Program,
        first: PtxInstruction,
        count: int,
        places: list[dict[str, tuple[int, ...]]],
        maps: dict[str, WarpOperand],
        finish: Callable[[Array, Array], Array],
    ) -> None:
        self.first, self.after, self.count, self.finish = first, first.pc + count, count, finish
        self.a, self.b = (BatchedOperand(maps[name], [each[name] for each in places]) for name in "AB")
        self.c, self.d = (BatchedOperand(maps[name], [each[name] for each in places], True) for name in "CD")
        self.put = maps["D"].place
        self.writes = 0
        for register in self.d.registers:
            self.writes |= 1 << register

    @property
    def worth(self) -> bool:
        """True if multiplying every A with every B is not too much work."""
        return self.count > 2 and self.a.count * self.b.count <= WASTE * self.count

    def go(self, fiber: Fiber) -> int | None:
        """Execute all instructions and return the pc after them. None if they must run one by one."""
        try:
            a, b, c = self.a.matrices(self.a.held(fiber)), self.b.matrices(self.b.held(fiber)), self._sums(fiber)
        except (ValueError, TypeError):
            fiber.warp.scratch["mma.sync one by one"] = self.first.pc, self.after
            return None
        rows, depth = a.shape[1:]
        columns = b.shape[2]
        product = products(a.reshape(-1, depth), b.transpose(1, 0, 2).reshape(depth, -1))
        blocks = product.reshape(self.a.count, rows, self.b.count, columns)[self.a.which, :, self.b.which, :]
        found = self.finish(blocks, c)
        fragment = self.d.fragment
        words = found.reshape(self.count, -1).take(self.put, axis=1).view(fragment.word)
        if fragment.word.itemsize != 8:
            words = words.astype(np.int64)
        values = list(words.reshape(-1, LANES))
        registers = fiber.registers
        for place, value in zip(self.d.registers, values):
            registers[place] = value
        fiber.warp.scratch["mma.sync sums"] = values, found
        fiber.written |= self.writes
        fiber.dirty |= self.writes
        fiber.machine.also(fiber, self.first, self.count - 1)
        return self.after

    def _sums(self, fiber: Fiber) -> Array:
        """C: the previous run's results if these registers still hold them; registers never change."""
        values = self.c.held(fiber)
        before = fiber.warp.scratch.get("mma.sync sums")
        if before is not None and self.c.fragment is self.d.fragment and len(before[0]) == len(values):
            for value, known in zip(values, before[0]):
                if value is not known:
                    break
            else:
                same: Array = before[1]
                return same
        return self.c.matrices(values)


def instructions_in_a_row(program: Program, first: PtxInstruction) -> list[PtxInstruction]:
    """The instructions of one opcode from `first` on that do not depend on each other."""
    leaders, instructions = program.leaders, program.kernel.instructions
    at = bisect_right(leaders, first.pc)
    end = min(leaders[at] if at < len(leaders) else program.size, first.pc + MOST)
    found, written = [], 0
    for ins in instructions[first.pc : end]:
        if ins.opcode != first.opcode or ins.predicate is not None or program.reads[ins.pc] & written:
            break
        found.append(ins)
        written |= program.writes[ins.pc]
    return found
