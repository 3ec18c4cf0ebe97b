"""malloc and free of device code: each thread's block of the launch's heap (`machine/device_heap.py`)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ..machine.interpreter import Fiber
from ..ptx.parser import PtxInstruction
from ..ptx.program import Reader, Run
from ..ptx.values import LANE, bool_of

Results = Callable[[Fiber, npt.NDArray[np.int64]], None]


def allocating(ins: PtxInstruction, size: Reader, give: Results) -> Run:
    """malloc(bytes): the address of a block for each thread, or 0."""

    def go(fiber: Fiber) -> None:
        sizes, made = np.broadcast_to(np.asarray(size(fiber)), LANE.shape), np.zeros(LANE.shape, dtype=np.int64)
        heap = fiber.machine.launch.memory.heap
        for lane in LANE[bool_of(fiber.lanes)].tolist():
            made[lane] = heap.allocate(int(sizes[lane]) & (1 << 64) - 1, f"{ins.where}, {fiber.describe()} lane {lane}")
        give(fiber, made)

    return go


def releasing(ins: PtxInstruction, address: Reader) -> Run:
    """free(address), for each thread's allocation."""

    def go(fiber: Fiber) -> None:
        given = np.broadcast_to(np.asarray(address(fiber)), LANE.shape)
        for lane in LANE[bool_of(fiber.lanes)].tolist():
            fiber.machine.launch.memory.heap.release(int(given[lane]), f"{ins.where}, {fiber.describe()} lane {lane}")

    return go
