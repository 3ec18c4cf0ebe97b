"""alloca, stacksave and stackrestore. Memory of a thread whose size is known only when it runs.

The stack of each thread lies behind its variables in local memory and grows until stackrestore. PTX frees it when the
function returns. Functions are part of the kernel here (`ptx/inlining.py`), so the stack stays until the thread ends.

PTX ISA, "Stack Manipulation Instructions".
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...errors import EmulatorError
from ..machine.interpreter import Fiber
from ..ptx.parser import MAX_LOCAL_BYTES, PtxInstruction
from ..ptx.program import LOCAL_START, Program, Run
from ..ptx.values import LANE, bool_of
from .local import memory_of
from .registry import constant, operation

Tops = npt.NDArray[np.int64]  # of each lane's stack, as addresses of local memory
ALIGNMENT = 8  # of an allocation without one
_REGISTER = {"u32": np.dtype(np.int64), "u64": np.dtype(np.uint64)}  # as lanes of a register hold them


@operation("alloca")
def allocate(program: Program, ins: PtxInstruction) -> Run:
    """alloca: the address of that many new bytes on each thread's stack."""
    _checked(program, ins, 2, 3)
    size, target = program.value(ins.operands[1], ins.words[1]), program.result(ins.operands[0], ins.words[1])
    align = constant(ins.operands[2]) if len(ins.operands) == 3 else ALIGNMENT
    if align < 1 or align & align - 1:
        raise ValueError(f"an alignment of {align} bytes is not a power of two")

    def go(fiber: Fiber) -> None:
        tops, lanes = _tops(program, fiber), LANE[bool_of(fiber.lanes)]
        sizes = np.broadcast_to(np.asarray(size(fiber)), LANE.shape)[lanes].astype(np.uint64)
        first = tops[lanes] + align - 1 & -align
        most = int(sizes.max())
        if most > MAX_LOCAL_BYTES or int(first.max()) - LOCAL_START + most > MAX_LOCAL_BYTES:
            raise EmulatorError(f"alloca of {most} bytes: a thread has {MAX_LOCAL_BYTES} bytes of local memory")
        ends = first + sizes.astype(np.int64)
        memory = memory_of(fiber)
        memory.reserve(int(ends.max()) - LOCAL_START)
        for lane, low, high in zip(lanes.tolist(), first.tolist(), ends.tolist(), strict=True):
            memory.clear(np.array([lane]), low, high - low)
        tops[lanes] = ends
        if target is not None:
            fiber.registers[target] = fiber.spread(first.astype(_REGISTER[ins.words[1]]))

    return go


@operation("stacksave")
def save(program: Program, ins: PtxInstruction) -> Run:
    """stacksave: the top of each thread's stack."""
    _checked(program, ins, 1, 1)
    target = program.result(ins.operands[0], ins.words[1])

    def go(fiber: Fiber) -> None:
        if target is not None:
            tops = _tops(program, fiber)[LANE[bool_of(fiber.lanes)]]
            fiber.registers[target] = fiber.spread(tops.astype(_REGISTER[ins.words[1]]))

    return go


@operation("stackrestore")
def restore(program: Program, ins: PtxInstruction) -> Run:
    """stackrestore: free what each thread has allocated since it saved the top."""
    _checked(program, ins, 1, 1)
    given = program.value(ins.operands[0], ins.words[1])

    def go(fiber: Fiber) -> None:
        tops, lanes = _tops(program, fiber), LANE[bool_of(fiber.lanes)]
        saved = np.broadcast_to(np.asarray(given(fiber)), LANE.shape)[lanes].astype(np.int64)
        wrong = (saved > tops[lanes]) | (saved < _bottom(program))
        if wrong.any():
            raise EmulatorError(f"stackrestore of {int(saved[wrong][0]):#x}, which stacksave did not give")
        tops[lanes] = saved

    return go


def _checked(program: Program, ins: PtxInstruction, least: int, most: int) -> None:
    """Raise ValueError for another type or number of operands, and beside routines."""
    if ins.words[1:] not in (("u32",), ("u64",)) or not least <= len(ins.operands) <= most:
        raise ValueError(f"{ins.words[0]} is .u32 or .u64, with {least} to {most} operands")
    if any(one.words[0] == "routine" for one in program.kernel.instructions):
        raise ValueError(f"{ins.words[0]} in a kernel whose functions call themselves is not emulated")


def _bottom(program: Program) -> int:
    return -(-program.local_end // 16) * 16


def _tops(program: Program, fiber: Fiber) -> Tops:
    found: Tops | None = fiber.warp.scratch.get("stack")
    if found is None:
        found = fiber.warp.scratch["stack"] = np.full(LANE.shape, _bottom(program), dtype=np.int64)
    return found
