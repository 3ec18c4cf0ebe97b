"""Groups of asynchronous copies, which give a thread's wait its set of copies.

A commit gathers a thread's issued copies into a group, and a wait ends when at most N of its most recent groups are
pending. cp.async has such groups. cp.async.bulk has others, for bulk copies, tensor copies and reductions. `add` puts a
bulk operation of any module into its threads' open group.

PTX ISA, "Data Movement and Conversion Instructions: cp.async.commit_group, cp.async.wait_group,
cp.async.bulk.commit_group, cp.async.bulk.wait_group".
"""

from __future__ import annotations

from typing import Protocol

from ....errors import EmulatorError
from ...machine.interpreter import Fiber
from ...ptx.parser import PtxInstruction
from ...ptx.program import Program, Run
from ...ptx.values import FULL, Value
from ...races.clocks import Stamp
from ...races.happens_before import MemoryEvent
from ...races.lanes import learn
from ..registry import constant, known, operation


class AsyncOperation(Protocol):
    """An asynchronous operation that a wait can force. Repeated calls of its methods have no effect.

    event   its event in the race checker
    written the turn of its writes to global memory, or None
    read    read the source
    finish  complete the operation
    """

    event: MemoryEvent
    written: Stamp | None

    def read(self) -> None:
        """Read the source."""

    def finish(self) -> None:
        """Complete the operation."""


class BulkGroups:
    """The groups of a warp's threads.

    Threads with equally many commits are kept together: `classes` are (lanes, groups that they committed), and a list
    of operations has (lanes, number of the group, operation). An operation of several lanes may have a method
    `split(lanes)`, which returns the operations of these lanes and of its others. It is split when lanes wait for it
    separately.
    """

    def __init__(self) -> None:
        self.classes: list[tuple[int, int]] = [(FULL, 0)]
        self.unread: list[tuple[int, int, AsyncOperation]] = []
        self.unfinished: list[tuple[int, int, AsyncOperation]] = []

    def add(self, lanes: int, operation: AsyncOperation, reads: bool = True) -> None:
        """Add an operation of these lanes to each one's open group. reads: waits for reads cover it."""
        for members, count in self.classes:
            part = members & lanes
            if part:
                lanes &= ~part
                one, operation = _separate(operation, part, lanes)
                if reads:
                    self.unread.append((part, count, one))
                self.unfinished.append((part, count, one))

    def commit(self, lanes: int) -> None:
        """Close the groups of these lanes, empty ones too."""
        counts: dict[int, int] = {}
        for members, count in self.classes:
            for part, now in ((members & lanes, count + 1), (members & ~lanes, count)):
                if part:
                    counts[now] = counts.get(now, 0) | part
        self.classes = [(members, count) for count, members in counts.items()]

    def taken(self, lanes: int, left: int, read: bool = False) -> list[tuple[int, AsyncOperation]]:
        """(lanes, operation) of all but the `left` most recent groups; these are no longer pending.

        left  -1: also the operations of the open group
        read  only their reads are waited for: the operations themselves stay pending
        """
        if read:
            found, self.unread = self._split(self.unread, lanes, left)
            return found
        found, self.unfinished = self._split(self.unfinished, lanes, left)
        self.unread = self._split(self.unread, lanes, left)[1]
        return found

    def of(self, lanes: int) -> list[AsyncOperation]:
        """The pending operations of these lanes; they stay pending."""
        found, kept = [], []
        for members, number, what in self.unfinished:
            mine, others = members & lanes, members & ~lanes
            one, other = _separate(what, mine, others) if mine else (what, what)
            if mine:
                found.append(one)
                kept.append((mine, number, one))
            if others:
                kept.append((others, number, other))
        self.unfinished = kept
        return found

    def _split(
        self, waiting: list[tuple[int, int, AsyncOperation]], lanes: int, left: int
    ) -> tuple[list[tuple[int, AsyncOperation]], list[tuple[int, int, AsyncOperation]]]:
        found, rest = [], []
        for members, number, what in waiting:
            done = 0
            for same, count in self.classes:
                if number < count - left:
                    done |= members & same & lanes
            others = members & ~done
            if done:
                one, what = _separate(what, done, others)
                found.append((done, one))
            if others:
                rest.append((others, number, what))
        return found, rest


def _separate(operation: AsyncOperation, lanes: int, others: int) -> tuple[AsyncOperation, AsyncOperation]:
    """The operation of these lanes and of the others; the same one if it cannot be split."""
    if others and hasattr(operation, "split"):
        return operation.split(lanes)
    return operation, operation


def groups_of(fiber: Fiber, kind: str) -> BulkGroups:
    """The warp's groups of a kind: "bulk" or "cp.async"."""
    found = fiber.warp.scratch.get(kind)
    if found is None:
        found = fiber.warp.scratch[kind] = BulkGroups()
    return found


def add(fiber: Fiber, operation: AsyncOperation, lanes: int = 0) -> None:
    """Put a bulk operation of some lanes (0: all) into their open group."""
    groups_of(fiber, "bulk").add(lanes or fiber.lanes, operation)


def group_count(fiber: Fiber, value: Value) -> int:
    """The N of a wait instruction."""
    count = fiber.one(value)
    if count >> 31:
        raise EmulatorError(f"a wait for all but {count - (1 << 32)} groups: N is 0 or more")
    return count


@operation("cp.async.bulk.commit_group", operands=0)
def bulk_commit(program: Program, ins: PtxInstruction) -> Run:
    """cp.async.bulk.commit_group: close each thread's open group."""
    known(ins, "async", "bulk", "commit_group")
    return lambda fiber: groups_of(fiber, "bulk").commit(fiber.lanes)


@operation("cp.async.bulk.wait_group", operands=1)
def bulk_wait(program: Program, ins: PtxInstruction) -> Run:
    """Waits until at most N of the thread's groups are pending, or (.read) unread. The instruction is
    cp.async.bulk.wait_group."""
    known(ins, "async", "bulk", "wait_group", "read")
    constant(ins.operands[0])
    left, read = program.value(ins.operands[0], "u32"), "read" in ins.words

    def go(fiber: Fiber) -> None:
        ledger = fiber.cta.cluster.ledger
        for lanes, what in groups_of(fiber, "bulk").taken(fiber.lanes, group_count(fiber, left(fiber)), read):
            if read:
                what.read()
            else:
                what.finish()
                if what.written is not None:
                    fiber.knows.clocks = fiber.knows.clocks.after(what.written, True)
            learn(ledger, fiber, lanes, what.event)

    return go
