"""The report of a deadlock. Each waiting warp, and each barrier that something arrived at or waits for.

A barrier's own lines come from its operation (`ops/barrier.py`), registered in the cluster's or the block's scratch
under "states".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...errors import EmulatorError
from ..findings import with_roles

if TYPE_CHECKING:
    from ..ptx.parser import PtxInstruction
    from .interpreter import Cluster, Cta, Fiber

POLLS_ANYWHERE = re.compile(r"ld\.(?:.*\.)?(?:acquire|relaxed|volatile|mmio)\b|atom\.")  # of any memory
WAITING = re.compile(r"bra\b|nanosleep")  # beside the loads of a loop that polls
STATES = "states"  # key of the scratch
MOST = 60  # lines of a report
CAUSE = "    cause: "  # the beginning of a line that says why a barrier's phase does not end


def numbered(numbers: Iterable[int]) -> str:
    """Numbers as ranges.

    >>> numbered([0, 1, 2, 3, 8])
    '0..3, 8'
    """
    out: list[list[int]] = []
    for number in sorted(set(numbers)):
        if out and out[-1][1] == number - 1:
            out[-1][1] = number
        else:
            out.append([number, number])
    return ", ".join([str(first) if first == last else f"{first}..{last}" for first, last in out])


def warps(cta: Cta, numbers: Iterable[int]) -> str:
    """Warps of a block by their roles: "warps 0..3 (multiplies), warp 4 (loads by TMA)"."""
    by_role: dict[str, list[int]] = {}
    for number in sorted(set(numbers)):
        by_role.setdefault(cta.warps[number].role(), []).append(number)
    return ", ".join([
        f"warp{'s' if len(some) > 1 else ''} {numbered(some)} ({role})" for role, some in by_role.items()
    ])  # fmt: skip


def fibers(waiting: Sequence[Fiber]) -> list[str]:
    """Waiting warps with their instructions, those of one block, instruction and role together."""
    groups: dict[tuple[str, str, bool], list[Fiber]] = {}
    for fiber in waiting:
        whole = fiber.lanes == fiber.warp.alive
        ins = polled(fiber)
        place = str(ins or fiber.ins or "its first instruction") + (_word(fiber, ins) if ins is not None else "")
        groups.setdefault((str(fiber.cta.coordinate), place, whole), []).append(fiber)
    lines = []
    for (coordinate, place, whole), some in groups.items():
        lanes = "" if whole else f", lanes {', '.join(sorted({hex(fiber.lanes) for fiber in some}))} of them"
        named = warps(some[0].cta, [fiber.warp.number for fiber in some])
        lines.append(f"CTA {coordinate} {named}{lanes}: {place}")
    return lines


def polled(fiber: Fiber) -> PtxInstruction | None:
    """The load or atomic before a fiber's branch, with which it polls."""
    if fiber.ins is None or not WAITING.match(fiber.ins.opcode):
        return None
    before = fiber.machine.program.kernel.instructions[: fiber.ins.pc]
    return next((ins for ins in reversed(before) if POLLS_ANYWHERE.match(ins.opcode)), None)


def _word(fiber: Fiber, ins: PtxInstruction) -> str:
    """The word of global memory that a poll reads, and what it holds; "" of other polls, and where that is unknown."""
    size = re.search(r"\.[busf](8|16|32|64)$", ins.opcode)
    if "global" not in ins.words or size is None or len(ins.operands) < 2 or ins.operands[1].kind != "address":
        return ""
    memory, count = fiber.machine.launch.memory, int(size[1]) // 8
    try:
        at = int(fiber.each(fiber.machine.program.address(ins.operands[1])(fiber))[0])
        buffer, offset = memory.find(at, count)
        held = memory.read(np.array([at], np.int64), count)
    except EmulatorError:
        return ""
    return f"; byte {offset} of {buffer.name} holds {int.from_bytes(held.tobytes(), 'little')}"


def stuck(cluster: Cluster) -> str:
    """All that a person needs to see why no thread can go on."""
    lines = ["no thread can go on:", *[f"  {line}" for line in fibers(cluster.fibers)]]
    for scratch in (cluster.scratch, *[cta.scratch for cta in cluster.ctas]):
        for state in scratch.get(STATES, ()):
            lines += [f"  {line}" for line in state()]
    causes = [line.replace("cause", "likely cause", 1) for line in lines if line.startswith(CAUSE)]
    lines[1:1] = dict.fromkeys(f"{line[2:]}" for line in causes)
    if len(lines) > MOST:
        lines = [*lines[:MOST], f"  and {len(lines) - MOST} more lines"]
    return with_roles("\n".join(lines), cluster.role)
