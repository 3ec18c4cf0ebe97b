"""Calls of functions that reach themselves, and their returns.

`ptx/inlining.py` puts such a function behind the kernel as a routine, and these two instructions for its calls and its
end. A routine begins with its arguments in a new frame of each thread's local memory. It ends with the caller's
registers as they were, and with its results in the caller's variables.

Semantics: PTX ISA, "call", "ret"; most local memory of a thread: CUDA C++ Programming Guide, "Compute Capabilities".
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...errors import EmulatorError
from ..machine.interpreter import Fiber, RoutineCall
from ..ptx.inlining import FRAME
from ..ptx.parser import MAX_LOCAL_BYTES, PtxInstruction
from ..ptx.program import LOCAL_START, Program, Reader, Run
from ..ptx.values import LANE, bool_of
from .local import memory_of
from .registry import operation

Move = tuple[int, Reader, int]  # (address of a formal parameter in frame 0, the actual one's address, bytes)


def _lanes(fiber: Fiber) -> npt.NDArray[np.int64]:
    return LANE[bool_of(fiber.lanes)]


def _addresses(fiber: Fiber, address: Reader) -> npt.NDArray[np.int64]:
    """An address for each active lane."""
    return np.broadcast_to(np.asarray(address(fiber)), LANE.shape)[bool_of(fiber.lanes)].astype(np.int64)


def _moves(program: Program, ins: PtxInstruction) -> list[Move]:
    parts = ins.operands[2:]
    return [
        (program.symbols[own.text], program.value(actual, "b64"), int(size.text))
        for own, actual, size in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    ]


@operation("routine.call")
def call(program: Program, ins: PtxInstruction) -> Run:
    """Begin a routine in a new frame, with its arguments there."""
    entry, frame, size = program.target(ins), program.index[FRAME], program.frame_bytes
    moves, results = _moves(program, ins), int(ins.operands[1].text)
    first = -(-program.local_end // 16) * 16

    def give(fiber: Fiber, at: int) -> None:
        lanes = _lanes(fiber)
        for own, actual, count in moves[:results]:
            memory_of(fiber).copy(lanes, _addresses(fiber, actual), np.full(len(lanes), own + at), count)

    def go(fiber: Fiber) -> int:
        at = fiber.one(fiber.registers[frame]) + size
        end = first + at + size - LOCAL_START
        if end > MAX_LOCAL_BYTES:
            raise EmulatorError(
                f"{ins.operands[0].text.partition('@')[2]} calls itself {at // size} times deep: with frames of {size} "
                f"bytes that is more than the {MAX_LOCAL_BYTES} of a thread's local memory"
            )
        memory, lanes = memory_of(fiber), _lanes(fiber)
        memory.reserve(end)
        memory.clear(lanes, first + at, size)
        for own, actual, count in moves[results:]:
            memory.copy(lanes, np.full(len(lanes), own + at), _addresses(fiber, actual), count)
        fiber.stack = RoutineCall(ins.pc + 1, list(fiber.registers), give, fiber.stack)
        fiber.registers[frame] = at
        return entry

    return go


@operation("routine.return")
def back(program: Program, ins: PtxInstruction) -> Run:
    """End a routine. The caller goes on with its registers, and the results in its variables."""
    frame = program.index[FRAME]

    def go(fiber: Fiber) -> int:
        ended, at = fiber.stack, fiber.one(fiber.registers[frame])
        assert ended is not None
        fiber.stack = ended.below
        fiber.registers[:] = ended.registers
        ended.give(fiber, at)
        return ended.after

    return go
