"""Branches and the end of threads. PTX ISA, "Control Flow Instructions"."""

from __future__ import annotations

from ...errors import EmulatorError
from ..machine.interpreter import Fiber
from ..ptx.parser import PtxInstruction
from ..ptx.program import Program, Run
from ..ptx.values import lane_bits
from .memory import lanewise
from .registry import HINT, known, operation, taken


@operation("bra", guards=True)
def branch(program: Program, ins: PtxInstruction) -> Run:
    """bra: branch to the label where the predicate holds. Lanes that disagree take both paths until they reconverge."""
    known(ins, "uni")
    target, after = program.target(ins), ins.pc + 1
    if ins.predicate is None:
        return lambda fiber: target
    lanes_of, meet = taken(program, ins), program.meets[ins.pc]

    def go(fiber: Fiber) -> int | None:
        lanes = lanes_of(fiber)
        if lanes == fiber.lanes:
            return target
        if lanes == 0:
            return after
        return fiber.machine.split(fiber, meet, [(target, lanes, None), (after, fiber.lanes & ~lanes, None)])

    return go


@operation("brx.idx", guards=True)
def indexed_branch(program: Program, ins: PtxInstruction) -> Run:
    """brx.idx: branch to the label that an index selects. Lanes with different ones go their ways until they meet."""
    known(ins, "idx", "uni")
    targets, after = program.targets_of(ins), ins.pc + 1
    index, lanes_of, meet = program.value(ins.operands[0], "u32"), taken(program, ins), program.meets[ins.pc]

    def go(fiber: Fiber) -> int | None:
        lanes = lanes_of(fiber)
        ways: dict[int, int] = {after: fiber.lanes & ~lanes} if lanes != fiber.lanes else {}
        for at, bit in zip(lanewise(index(fiber), lanes).tolist(), lane_bits(lanes), strict=True):
            if at >= len(targets):
                raise EmulatorError(f"brx.idx with index {at} of {len(targets)} targets")
            ways[targets[at]] = ways.get(targets[at], 0) | bit
        if len(ways) == 1:
            return next(iter(ways))
        return fiber.machine.split(fiber, meet, [(pc, members, None) for pc, members in ways.items()])

    return go


@operation("ret", "exit", operands=0)
def end(program: Program, ins: PtxInstruction) -> Run:
    """ret, exit: the thread ends; in a kernel the two are the same."""
    known(ins, "uni")
    return lambda fiber: fiber.machine.exit(fiber)


@operation("trap", "brkpt", operands=0)
def trap(program: Program, ins: PtxInstruction) -> Run:
    """trap: the kernel is aborted."""

    def go(fiber: Fiber) -> None:
        raise EmulatorError(f"{ins.opcode} was executed")

    return go


@operation("nanosleep", "pmevent", "prefetch", "prefetchu", "applypriority", "discard", "cp.async.bulk.prefetch.L2",
)  # fmt: skip
def hint(program: Program, ins: PtxInstruction) -> Run:
    """Instructions without an effect on results: delays and cache hints."""
    for operand in ins.operands[: -1 if HINT in ins.words else None]:
        if operand.kind == "address":
            program.address(operand)
        else:
            program.value(operand, "u32")
    return lambda fiber: None


@operation("griddepcontrol.launch_dependents", "griddepcontrol.wait")
def dependent_grid(program: Program, ins: PtxInstruction) -> Run:
    """griddepcontrol: wait for the launches before this one, or let the next begin. Races with them are looked for."""
    if len(ins.words) != 2 or ins.operands:
        raise ValueError(f"{ins.text} is not emulated")
    waits = ins.words[1] == "wait"

    def go(fiber: Fiber) -> None:
        watch = fiber.machine.global_watch
        if watch is not None and watch.dependent is not None:
            if waits:
                watch.dependent.wait(fiber)
            else:
                watch.dependent.trigger(fiber)

    return go
