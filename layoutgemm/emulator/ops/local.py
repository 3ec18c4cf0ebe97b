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


def own_memory(space: str, where: Value, lanes: int) -> str:
    """The memory that an access reaches: "local", "param" for the kernel's parameters, or "" for another.

    space  the access's state space ("": generic). A function's .param variables are local.

    Raises MixedMemories where the lanes reach different ones.
    """
    if space not in ("param", ""):
        return space if space == "local" else ""
    other = "local" if space else ""
    if not isinstance(where, np.ndarray):
        if PARAMETER_BASE <= where < PARAMETER_BASE + MAX_PARAMETER_BYTES:
            return "param"
        return "local" if LOCAL_WINDOW <= where < LOCAL_WINDOW + LOCAL_BYTES else other
    places = where[bool_of(lanes)].astype(np.int64)
    given = (places >= PARAMETER_BASE) & (places < PARAMETER_BASE + MAX_PARAMETER_BYTES)
    found = given * 2 if space else given * 2 + ((places >= LOCAL_WINDOW) & (places < LOCAL_WINDOW + LOCAL_BYTES))
    if any_of(found != found[0]):
        raise MixedMemories(found.tolist())
    return (other, "local", "param")[int(found[0])]


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
