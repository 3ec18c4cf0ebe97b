"""Loads and stores of the memory that each thread has for itself."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..machine.interpreter import Fiber
from ..machine.local_memory import LocalMemory
from ..ptx.codegen import LOCAL_BYTES, LOCAL_WINDOW, PARAMETER_BASE
from ..ptx.parser import MAX_PARAMETER_BYTES, PtxInstruction
from ..ptx.program import LOCAL_START
from ..ptx.values import LANE, Value, any_of, bool_of
from .registry import MixedMemories


def is_local(space: str, where: Value, lanes: int) -> bool:
    """True if an access at these addresses is to the thread's own memory. `space` is the access's state space ("":
    generic).

    Raises MixedMemories where that holds for some of the lanes.
    """
    if space == "local":
        return True
    if space not in ("param", ""):
        return False
    low, size = LOCAL_WINDOW, LOCAL_BYTES
    if space == "param":
        low, size = PARAMETER_BASE, MAX_PARAMETER_BYTES
    if not isinstance(where, np.ndarray):
        inside = low <= where < low + size
    else:
        places = where[bool_of(lanes)].astype(np.int64)
        found = (places >= low) & (places < low + size)
        inside = bool(found[0])
        if any_of(found != inside):
            raise MixedMemories(found.tolist())
    return inside is not (space == "param")


def memory_of(fiber: Fiber) -> LocalMemory:
    """The local memory of the fiber's warp."""
    found: LocalMemory | None = fiber.warp.scratch.get("local")
    if found is None:
        size = fiber.machine.program.local_end - LOCAL_START
        found = fiber.warp.scratch["local"] = LocalMemory(size, fiber.machine.policy.fill)
    return found


def places(where: Value, lanes: int, space: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(Lanes, their addresses in local memory) of an access."""
    active = LANE[bool_of(lanes)]
    addresses = np.broadcast_to(np.asarray(where), LANE.shape)[active].astype(np.int64)
    return active, addresses if space else addresses - LOCAL_WINDOW


def fetch_local(
    fiber: Fiber, ins: PtxInstruction, where: Value, lanes: int, space: str, size: int
) -> npt.NDArray[np.uint8]:
    """The bytes [lane, size] of a load; unwritten ones are noted."""
    memory, (active, addresses) = memory_of(fiber), places(where, lanes, space)
    data = memory.read(active, addresses, size)
    fresh = memory.unwritten(active, addresses, size)
    if fresh is not None:
        message = f"{ins.opcode} reads local offset {fresh:#x}, never written"
        fiber.machine.problem("uninitialised", message, fiber, suspect=True)
    fiber.machine.counts.bytes["local read"] += data.size
    return data


def store_local(
    fiber: Fiber, where: Value, lanes: int, space: str, raw: npt.NDArray[np.uint8], gone: npt.NDArray[np.bool_] | None
) -> None:
    """Store [lane, size] bytes; gone: those of them that have no value."""
    memory, (active, addresses) = memory_of(fiber), places(where, lanes, space)
    memory.write(active, addresses, raw)
    fiber.machine.counts.bytes["local write"] += raw.size
    if gone is not None:
        memory.forget(active, addresses, gone)
