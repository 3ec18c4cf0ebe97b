"""cp.async: copies of 4, 8 or 16 bytes by each thread, global to shared memory.

They complete later and write through the generic proxy, at some time before the end of the wait for them. With policy
"late" they land when a wait or an mbarrier forces them, with "early" at once. Each instruction is one event in the race
checker, which a thread knows of after waiting for the group.

PTX ISA, "Data Movement and Conversion Instructions: Non-bulk copy", "cp.async", "cp.async.commit_group",
"cp.async.wait_group", "cp.async.mbarrier.arrive".
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ....atoms.copy.cp_async import cp_async
from ....errors import EmulatorError
from ...machine.interpreter import Cta, Fiber
from ...machine.memory import GRANULE, WHOLE, granules, parts_of
from ...ptx.parser import PtxInstruction, PtxOperand
from ...ptx.program import Program, Reader, Run
from ...ptx.values import FULL, Undefined, bool_of, mask_of
from ...races.clocks import Stamp
from ...races.global_bytes import CopyAccess
from ...races.happens_before import Knowledge, MemoryEvent
from ...races.lanes import LaneAccess, divide, learn
from ..barrier import COUNT, TWO_PHASES, EmulatedMbarrier, mbarrier_at
from ..memory import copies_global, count_sectors, lanewise, place, said
from ..registry import HINT, constant, counted, known, operation, taken
from .bulk_groups import AsyncOperation, group_count, groups_of

KIND = "cp.async"
Array = npt.NDArray[np.int64]


class CpAsyncCopy:
    """The copies by the lanes of one cp.async.

    offsets, sources  of each lane: the offset in the block's shared memory, the global address
    written           None: it writes no global memory
    valid             bytes of each lane that are read, the rest of its `size` become zeros; None: all
    """

    def __init__(self, fiber: Fiber, ins: PtxInstruction, cta: Cta, lanes: int, size: int, offsets: Array,
                 sources: Array, valid: Array | None) -> None:  # fmt: skip
        self.ins, self.text = ins, said(fiber, ins)
        self.cta, self.lanes, self.size = cta, lanes, size
        self.offsets, self.sources, self.valid = offsets, sources, valid
        self.memory = fiber.machine.launch.memory
        self.event = cta.cluster.ledger.event(False, fiber.describe)
        self.landed = False
        self.written: Stamp | None = None

    def read(self) -> None:
        """No effect: no wait covers only its reads."""

    def finish(self) -> None:
        """Write the bytes read into shared memory."""
        if self.landed:
            return
        self.landed = True
        if self.valid is None:
            data = self.memory.read(self.sources, self.size)
        else:
            data = np.zeros((len(self.offsets), self.size), dtype=np.uint8)
            for count in set(self.valid.tolist()) - {0}:
                chosen = self.valid == count
                data[chosen, :count] = self.memory.read(self.sources[chosen], count)
        shared = self.cta.shared
        shared.write(self.offsets, data)
        if self.size == GRANULE:
            labels = self.sources if self.valid is None else np.where(self.valid == GRANULE, self.sources, 0)
            shared.came(self.offsets // GRANULE, labels, data.view(WHOLE).reshape(-1), self.ins.pc, self.text)

    def split(self, lanes: int) -> tuple[CpAsyncCopy, CpAsyncCopy]:
        """The copy of these lanes, as a new event, and the copy of the others."""
        one = CpAsyncCopy.__new__(CpAsyncCopy)
        for name, value in vars(self).items():
            setattr(one, name, value)
        inside = bool_of(lanes)[bool_of(self.lanes)]
        ledger, shadow = self.cta.cluster.ledger, self.cta.shadow
        if ledger.lanes:
            one.event = divide(ledger, self.event, lanes)
        else:
            one.event = ledger.event(False, self.event.describe)
            one.event.stamp = self.event.stamp
            self.event.divided += (one.event,)
            halves = (self.offsets[inside], self.offsets[~inside])
            theirs, ours = ((granules(half, self.size), parts_of(half, self.size)) for half in halves)
            shadow.divide(self.event, one.event, theirs, ours)
        one.lanes, self.lanes = lanes, self.lanes & ~lanes
        one.offsets, self.offsets = self.offsets[inside], self.offsets[~inside]
        one.sources, self.sources = self.sources[inside], self.sources[~inside]
        if self.valid is not None:
            one.valid, self.valid = self.valid[inside], self.valid[~inside]
        return one, self


def _without_policy(ins: PtxInstruction, operands: list[PtxOperand]) -> list[PtxOperand]:
    """The operands behind the size without the cache policy. Raises ValueError if that is missing."""
    if HINT not in ins.words:
        return operands
    if not operands:
        raise ValueError(f"{ins.opcode} takes a cache policy of 64 bits as its last operand")
    return operands[:-1]


@operation("cp.async.ca", "cp.async.cg", guards=True)
def copy(program: Program, ins: PtxInstruction) -> Run:
    """cp.async. With src-size, bytes beyond it become zeros; with a true ignore-src, all bytes."""
    words = [word for word in ins.words[3:] if not word.startswith("L2::")]
    if words not in (["shared", "global"], ["shared::cta", "global"]):
        raise ValueError(f"{ins.opcode} is not emulated")
    target, source, bytes_, *rest = ins.operands
    size = cp_async(constant(bytes_), ins.words[2]).bytes
    rest = _without_policy(ins, rest)
    if len(rest) > 1:
        raise ValueError(f"{ins.opcode} with {len(rest)} operands after the size")
    predicate = bool(rest) and program.kernel.registers.get(rest[0].text) == "pred"
    extra = program.value(rest[0], "pred" if predicate else "u32") if rest else None
    destination, origin, lanes_of = program.address(target), program.address(source), taken(program, ins)
    after = ins.pc + 1

    def go(fiber: Fiber) -> int | None:
        lanes = lanes_of(fiber)
        if not lanes:
            return after
        machine = fiber.machine
        cta, offsets = place(fiber, "shared", lanewise(destination(fiber), lanes))
        if cta is not fiber.cta:
            raise EmulatorError("cp.async into shared memory of another block of the cluster")
        sources = lanewise(origin(fiber), lanes).astype(np.int64)
        valid = None
        if extra is not None:
            valid = lanewise(extra(fiber), lanes).astype(np.int64)
            if predicate:
                valid = np.where(valid != 0, 0, size)
            elif (valid > size).any():
                raise EmulatorError(f"cp.async of {size} bytes with src-size {int(valid.max())}: at most {size}")
        cta.shared.check(offsets, size, ins.opcode)
        odd = sources[(sources & size - 1) != 0]  # the instruction takes the address of a lane that reads nothing, too
        if odd.size:
            raise EmulatorError(f"{ins.opcode}: global address {int(odd[0]):#x} is not a multiple of {size}")
        # Here, where the line is known: the bytes may be read at a later instruction.
        for count in {size} if valid is None else set(valid.tolist()) - {0}:
            chosen = sources if valid is None else sources[valid == count]
            for address in (int(chosen.min()), int(chosen.max())):
                machine.launch.memory.find(address, count)
        one = CpAsyncCopy(fiber, ins, cta, lanes, size, offsets, sources, valid)
        if machine.global_watch is not None:
            stamp = machine.global_watch.next_turn((fiber.warp, KIND))
            if machine.global_watch.flagged:
                one.event.stamp = stamp
            for count in {size} if valid is None else set(valid.tolist()) - {0}:
                read = sources if valid is None else sources[valid == count]
                copies_global(fiber, ins, read, count, CopyAccess(stamp, one.event, False), False)
        parts, touch = parts_of(offsets, size), LaneAccess(lanes, offsets, size)
        machine.touch(fiber, cta, touch.places, True, said(fiber, ins), one.event, parts=parts, touch=touch)
        machine.counts.bytes["global to shared"] += size * len(offsets)
        if machine.banks is not None:
            machine.banks.add(ins, "cp.async", size, offsets, lanes)
        count_sectors(fiber, ins, sources if valid is None else sources[valid > 0], size)
        if machine.policy.loads == "early":
            one.finish()
        groups_of(fiber, KIND).add(lanes, one, reads=False)
        return None

    go.unused = _unread(program, rest[0] if rest else None, extra, predicate)  # type: ignore[attr-defined]
    return go


def _unread(
    program: Program, count: PtxOperand | None, value: Reader | None, ignores: bool
) -> Callable[[Fiber], tuple[int, int]]:
    """The source's operand, and the lanes that read none of it: compilers leave their addresses undefined.

    count    the operand with each lane's bytes, or where `ignores` holds, with whether they are ignored
    """

    numbers = [] if count is None else list(program.registers(count))

    def unused(fiber: Fiber) -> tuple[int, int]:
        if value is None or any(type(fiber.registers[at]) is Undefined for at in numbers):
            return 1, 0
        held = value(fiber)
        return 1, mask_of(held != 0 if ignores else held == 0, FULL)

    return unused


@operation("cp.async.commit_group", operands=0)
def commit(program: Program, ins: PtxInstruction) -> Run:
    """cp.async.commit_group: close each thread's open group."""
    known(ins, "async", "commit_group")
    return lambda fiber: groups_of(fiber, KIND).commit(fiber.lanes)


@operation("cp.async.wait_group", "cp.async.wait_all")
def wait(program: Program, ins: PtxInstruction) -> Run:
    """cp.async.wait_group: wait until at most N of the most recent groups are pending. wait_all: none."""
    known(ins, "async", "wait_group", "wait_all")
    every = "wait_all" in ins.words
    counted(ins, 0 if every else 1)
    if not every:
        constant(ins.operands[0])
    left: Reader = (lambda fiber: 0) if every else program.value(ins.operands[0], "u32")

    def go(fiber: Fiber) -> None:
        ledger, groups = fiber.cta.cluster.ledger, groups_of(fiber, KIND)
        waited = fiber.warp.scratch.get("cp.async waited")
        for lanes, one in groups.taken(fiber.lanes, -1 if every else group_count(fiber, left(fiber))):
            one.finish()
            learn(ledger, fiber, lanes, one.event)
            if waited is None:
                waited = fiber.warp.scratch["cp.async waited"] = ledger.knowledge()
            ledger.learn_open(waited, one.event)

    return go


@operation("cp.async.mbarrier.arrive", operands=1)
def arrive(program: Program, ins: PtxInstruction) -> Run:
    """cp.async.mbarrier.arrive: each lane arrives when all its copies so far are complete.

    Without .noinc the barrier's pending count grows first, so the arrival is in addition to the expected ones.
    """
    known(ins, "async", "mbarrier", "arrive", "noinc", "shared", "shared::cta", "b64")
    address, counted = program.address(ins.operands[0]), "noinc" in ins.words

    def go(fiber: Fiber) -> None:
        machine, ledger = fiber.machine, fiber.cta.cluster.ledger
        for at in set(fiber.each(address(fiber)).tolist()):
            lanes = fiber.lanes
            given = address(fiber)
            if isinstance(given, np.ndarray):
                lanes &= mask_of(given == at, lanes)
            barrier = mbarrier_at(fiber, int(at))
            count = lanes.bit_count()
            if not counted:
                barrier.pending += count
            copies = groups_of(fiber, KIND).of(lanes)
            barrier.users[fiber.warp] = arrival = fiber.epoch
            ledger.renew(fiber)
            handed = ledger.knowledge(fiber.warp.scratch.get("cp.async waited"))
            for one in copies:
                ledger.learn_open(handed, one.event)
            # The arrival releases the copies alone, but comes after what the thread has waited for.
            handed.past |= fiber.knows.seen | fiber.knows.past
            knows = ledger.knowledge(fiber.knows)

            def land(barrier: EmulatedMbarrier = barrier, copies: list[AsyncOperation] = copies, count: int = count,
                     handed: Knowledge = handed, arrival: MemoryEvent = arrival,
                     knows: Knowledge = knows) -> None:  # fmt: skip
                for one in copies:
                    one.finish()
                barrier.knows.merge(handed)
                phase = barrier.phase
                for _ in range(count):
                    if barrier.phase != phase:
                        machine.problem("protocol", TWO_PHASES.format(barrier), fiber, ins, orders=COUNT)
                        phase = barrier.phase
                    barrier.arrive(1, arrival, knows)

            machine.defer(fiber.cta.cluster, "loads", land)

    return go
