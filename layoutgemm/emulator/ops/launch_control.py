"""clusterlaunchcontrol: a running cluster takes over a cluster that has not begun.

PTX ISA, "clusterlaunchcontrol.try_cancel". The other cluster leaves the grid and will not run. Its first block's
coordinates come back in a 16-byte handle, whose form PTX leaves open. Here bit 0 is set if a cluster was taken, and x,
y and z are the words 1 to 3.
"""

from __future__ import annotations

import numpy as np

from ...errors import EmulatorError
from ..machine.interpreter import Fiber
from ..machine.memory import span
from ..ptx.parser import PtxInstruction
from ..ptx.program import Program, Run
from .barrier import barrier_in, complete, mbarrier_at
from .memory import block_of, said
from .registry import known, operation

HANDLE_BYTES = 16
TAKEN_BIT = 1
SHIFTS = {"x": 32, "y": 64, "z": 96}


@operation("clusterlaunchcontrol.try_cancel")
def try_cancel(program: Program, ins: PtxInstruction) -> Run:
    """try_cancel: a handle, written asynchronously, completes 16 bytes on the mbarrier of each target."""
    known(ins, "try_cancel", "async", "shared::cta", "mbarrier::complete_tx::bytes", "multicast::cluster::all", "b128")
    address, barrier = program.address(ins.operands[0]), program.address(ins.operands[1])
    everywhere = "multicast::cluster::all" in ins.words

    def go(fiber: Fiber) -> None:
        if fiber.lanes.bit_count() != 1:
            raise EmulatorError(f"{ins.opcode} by {fiber.lanes.bit_count()} threads: each of them asks for a cluster")
        machine, cluster = fiber.machine, fiber.cta.cluster
        home, offset = block_of(fiber, fiber.one(address(fiber)))
        at = mbarrier_at(fiber, fiber.one(barrier(fiber)))
        if offset % HANDLE_BYTES:
            raise EmulatorError(f"the handle at {offset:#x} is not {HANDLE_BYTES}-byte aligned")
        event = cluster.ledger.event(True, said(fiber, ins), by=fiber)
        targets = cluster.ctas if everywhere else [home]
        for cta in targets:
            machine.touch(fiber, cta, span(offset, HANDLE_BYTES), True, said(fiber, ins), event, True)
            if cta is not fiber.cta:
                cta.remote.append((event, said(fiber, ins)(), ins))
        taken = machine.take_cluster()
        handle = 0
        if taken is not None:
            handle = TAKEN_BIT | sum(place << shift for place, shift in zip(taken, SHIFTS.values(), strict=True))

        def land() -> None:
            data = np.frombuffer(handle.to_bytes(HANDLE_BYTES, "little"), dtype=np.uint8)
            for cta in targets:
                cta.shared.write(np.array([offset]), data[None])
                complete(barrier_in(cta, at.offset), HANDLE_BYTES, event)

        machine.defer(cluster, "loads", land)

    return go


@operation("clusterlaunchcontrol.query_cancel")
def query_cancel(program: Program, ins: PtxInstruction) -> Run:
    """query_cancel: whether a handle names a cluster, or its first block's coordinate. The coordinate is undefined
    without a cluster."""
    question, handle = ins.words[2], program.value(ins.operands[1], "b128")
    targets = program.targets(ins.operands[0], "pred" if question == "is_canceled" else "b32")
    axis = question.rpartition("::")[2]
    axes = [0] if question == "is_canceled" else [SHIFTS[axis]] if axis in SHIFTS else [*SHIFTS.values()]
    if question not in ("is_canceled", "get_first_ctaid", f"get_first_ctaid::{axis}"):
        raise ValueError(f".{question} is not emulated")
    if len(targets) != (4 if question == "get_first_ctaid" else 1):
        raise ValueError(f"{ins.operands[0].text} for the result of {ins.opcode}")

    def go(fiber: Fiber) -> None:
        value = fiber.one(handle(fiber))
        for target, shift in zip(targets, axes, strict=False):  # the fourth of a vector is undefined
            if target is not None:
                found = value >> shift
                fiber.registers[target] = bool(found & TAKEN_BIT) if question == "is_canceled" else found & 0xFFFFFFFF

    return go
