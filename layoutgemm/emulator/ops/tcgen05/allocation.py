"""Allocation of Blackwell's tensor memory, and completion of operations on it.

Instructions: tcgen05.alloc, dealloc, relinquish_alloc_permit, commit, wait, fence. PTX ISA, "TensorCore 5th Generation
Family Instructions". No device with tensor memory has confirmed this module.

Policy `tensor_strict` is off by default, since official kernels omit tcgen05.wait and tcgen05.fence in places where PTX
asks for them and the hardware does without: that is lint. With it, values of tcgen05.ld may be used only after
tcgen05.wait::ld. Accesses of ld and st are ordered only after tcgen05.wait::ld and ::st. A thread hands its loads and
stores to others only with fence::before_thread_sync, and sees those of others only after fence::after_thread_sync.
Sources: PTX ISA, "Memory Consistency Model for 5th generation of TensorCore operations", "Canonical synchronization
patterns". tcgen05.commit includes the first of the two fences. One rule is not modelled: the two fences alone, without
a commit, order products of one thread before those of another in the tensor cores' pipeline.
"""

from __future__ import annotations

import numpy as np

from ....atoms.tmem.layout import COLUMNS, LANES, MIN_ALLOCATION
from ....errors import EmulatorError
from ...machine.interpreter import BLOCKED, Fiber
from ...machine.memory import OFFSET, RANK_SHIFT, granules, parts_of
from ...ptx.parser import PtxInstruction
from ...ptx.program import Program, Run
from ...ptx.values import Value
from ..barrier import IN_TURN, mbarrier_at
from ..memory import blocks_of, place, said
from ..registry import known, operation
from .tmem import STRIP, coordinate, engine_of, group_of, tensor_of, touch
from .waits import hand_on, hand_on_relaxed, settle, take_over

GROUPS = ("cta_group::1", "cta_group::2")
DEALLOCATION = object()  # the engine of deallocations: those of a pair are one


def group_size(ins: PtxInstruction) -> int:
    """The number of blocks in the opcode. Raises ValueError without one."""
    found = [word for word in ins.words if word in GROUPS]
    if len(found) != 1:
        raise ValueError("it says no .cta_group::1 or .cta_group::2")
    return int(found[0][-1])


def _columns(fiber: Fiber, value: Value) -> int:
    count = fiber.one(value)
    if not MIN_ALLOCATION <= count <= COLUMNS or count & count - 1:
        raise EmulatorError(f"{count} columns: an allocation has a power of two of them, {MIN_ALLOCATION} to {COLUMNS}")
    return count


@operation("tcgen05.alloc", operands=2)
def allocate(program: Program, ins: PtxInstruction) -> Run:
    """tcgen05.alloc: columns of tensor memory, whose address is written to shared memory. Waits until there are enough.

    The blocks of a pair get the same columns for the same request in order. The highest free columns are taken.
    """
    known(ins, "alloc", "sync", "aligned", "shared::cta", "b32", *GROUPS)
    size = group_size(ins)
    address, wanted = program.address(ins.operands[0]), program.value(ins.operands[1], "u32")

    def go(fiber: Fiber) -> int | None:
        fiber.whole()
        blocks, count = group_of(fiber, size), _columns(fiber, wanted(fiber))
        tensors = [tensor_of(cta) for cta in blocks]
        own = tensor_of(fiber.cta)
        if own.relinquished:
            raise EmulatorError("the block has given up its permit to allocate (tcgen05.relinquish_alloc_permit)")
        ahead = next((other for other in tensors if len(other.history) > len(own.history)), None)
        if ahead is not None:
            first, others = ahead.history[len(own.history)]
            if others != count:
                raise EmulatorError(f"the blocks of a pair allocate {count} and {others} columns together")
            free = not own.owned[first : first + count].any()
        else:
            taken = np.logical_or.reduce([other.owned for other in tensors])
            starts = range(COLUMNS - count, -1, -MIN_ALLOCATION)
            found = [start for start in starts if not taken[start : start + count].any()]
            first, free = (found[0], True) if found else (0, False)
        if not free:
            for other in tensors:
                other.waiting.append(fiber)
            return BLOCKED
        own.history.append((first, count))
        own.allocators[first] = fiber.warp.number
        own.allocations[first] = count, ins
        own.owned[first : first + count] = True
        own.words[:, first : first + count] = own.fill
        own.written[:, first : first + count] = False
        cta, offsets = place(fiber, "shared", np.array([fiber.one(address(fiber))]))
        assert cta is not None
        cta.shared.check(offsets, 4, ins.opcode)
        # PTX, "Asynchronous Operations" of tcgen05: an allocation keeps same-address order with other instructions.
        ledger = cta.cluster.ledger
        write = ledger.event(False, fiber.describe)
        write.settled = True
        ledger.learn(fiber.knows, write)
        fiber.machine.touch(fiber, cta, granules(offsets, 4), True, said(fiber, ins), write, parts=parts_of(offsets, 4))
        cta.shared.write(offsets, np.array([[first]], dtype=np.uint32).view(np.uint8))
        return None

    return go


@operation("tcgen05.dealloc", operands=2)
def deallocate(program: Program, ins: PtxInstruction) -> Run:
    """tcgen05.dealloc: free the columns of one alloc. All work on those columns must be done. For a pair that includes
    the other block's work ("issuing warp and peer CTA warp must synchronize Tensor Memory accesses").
    """
    known(ins, "dealloc", "sync", "aligned", "b32", *GROUPS)
    size = group_size(ins)
    address, wanted = program.value(ins.operands[0], "u32"), program.value(ins.operands[1], "u32")

    def go(fiber: Fiber) -> None:
        fiber.whole()
        blocks, count = group_of(fiber, size, False), _columns(fiber, wanted(fiber))
        lane, column = coordinate(fiber.one(address(fiber)))
        tensor = tensor_of(fiber.cta)
        have = tensor.allocations.get(column)
        if lane or have is None or have[0] != count:
            if column in tensor.freed and not (lane or tensor.owned[column : column + count].any()):
                before = tensor.freed[column][1]()
                fiber.machine.problem(
                    "protocol",
                    f"frees {count} columns from {column} that were freed before: {before}",
                    fiber,
                    orders="The warp that allocated the columns frees them, after a barrier of all that use them.",
                )
                return
            raise EmulatorError(f"dealloc of {count} columns from ({lane}, {column}); allocated are: {tensor.live}")
        places = 0
        for strip in range(LANES // STRIP):
            places |= (1 << count) - 1 << strip * COLUMNS + column
        if (by := tensor.allocators.get(column)) != fiber.warp.number:
            message = f"warp {fiber.warp.number} frees what warp {by} allocated: PTX has one warp of the block do both"
            fiber.machine.problem("lint", message, fiber, orders="The warp that allocated the columns frees them.")
        ledger, knows = fiber.cta.cluster.ledger, fiber.knows
        event = ledger.event(False, fiber.describe, DEALLOCATION)
        for cta in blocks:
            touch(fiber, cta, places, True, said(fiber, ins), event)
        knows.seen |= ledger.bit(event)
        knows.own |= ledger.bit(event)
        del tensor.allocations[column]
        if not any(column in tensor_of(cta).allocations for cta in blocks):
            for cta in blocks:
                tensor_of(cta).forget(places)
        tensor.owned[column : column + count] = False
        tensor.freed |= dict.fromkeys(range(column, column + count), (event, said(fiber, ins)))
        for cta in blocks:
            cta.cluster.wake(tensor_of(cta).waiting)

    return go


@operation("tcgen05.relinquish_alloc_permit", operands=0)
def relinquish(program: Program, ins: PtxInstruction) -> Run:
    """tcgen05.relinquish_alloc_permit: the block allocates no more."""
    known(ins, "relinquish_alloc_permit", "sync", "aligned", *GROUPS)
    size = group_size(ins)

    def go(fiber: Fiber) -> None:
        fiber.whole()
        group_of(fiber, size, False)
        tensor_of(fiber.cta).relinquished = True

    return go


@operation("tcgen05.commit")
def commit(program: Program, ins: PtxInstruction) -> Run:
    """tcgen05.commit: one arrival at an mbarrier when this thread's tensor-core operations have completed.

    With .multicast::cluster the arrival is at the mbarrier of that offset in each block of a mask. The arrival hands on
    the thread's knowledge and the completion of its operations.
    """
    arrives, multicast = "mbarrier::arrive::one", "multicast::cluster"
    known(ins, "commit", "shared::cluster", "b64", arrives, multicast, *GROUPS)
    if arrives not in ins.words or len(ins.operands) != 1 + (multicast in ins.words):
        raise ValueError("it has .mbarrier::arrive::one, and a mask with .multicast::cluster")
    size = group_size(ins)
    address = program.address(ins.operands[0])
    mask = program.value(ins.operands[1], "u16") if multicast in ins.words else None

    def go(fiber: Fiber) -> None:
        group_of(fiber, size, False)
        cluster, machine, engine = fiber.cta.cluster, fiber.machine, engine_of(fiber)
        engine.open = None
        ledger, text = cluster.ledger, said(fiber, ins)()
        handed = ledger.knowledge()
        hand_on(fiber)
        ledger.release(fiber, handed)
        handed.merge(engine.issued)
        event = ledger.event(True, lambda: text)
        ledger.learn(handed, event)
        targets = []
        for at in fiber.each(address(fiber)).tolist():
            if mask is None:
                targets.append(int(at))
            else:
                ranks = blocks_of(fiber, fiber.one(mask(fiber)))
                targets += [int(at) & OFFSET | rank << RANK_SHIFT for rank in ranks]
        ended = [target for target in targets if cluster.ctas[target >> RANK_SHIFT].exited]
        for target in ended:
            there = cluster.ctas[target >> RANK_SHIFT].coordinate
            machine.problem("exit", f"{ins.opcode} arrives at an mbarrier of CTA {there}, which has ended", fiber)
        barriers = [mbarrier_at(fiber, target) for target in targets if target not in ended]
        for barrier in barriers:
            if barrier.cta is not fiber.cta:
                barrier.cta.remote.append((event, text, ins))
        last = engine.queue[-1] if engine.queue else None

        def land() -> None:
            if last is not None and last in engine.queue:
                engine.run(engine.queue.index(last) + 1)
            for barrier in barriers:
                barrier.knows.merge(handed)
                try:
                    early = barrier.arrive(1, event, handed)
                except EmulatorError as error:
                    raise EmulatorError(f"{error}\n  at {ins}") from error
                if early is not None:
                    machine.problem("protocol", early, fiber, ins, orders=IN_TURN)

        machine.defer(cluster, "products", land)

    return go


@operation("tcgen05.fence::before_thread_sync", "tcgen05.fence::after_thread_sync", operands=0)
def fence(program: Program, ins: PtxInstruction) -> Run:
    """tcgen05.fence: order the thread's tcgen05 operations with other threads', before or after synchronising.

    Without `tensor_strict` ordinary synchronisation orders these accesses too, with lint where PTX asks for a fence,
    and relaxed arrives and waits do with it.
    """
    if len(ins.words) != 2:
        raise ValueError("the fence has no further words")
    return take_over if ins.words[1] == "fence::after_thread_sync" else hand_on_relaxed


@operation("tcgen05.wait::ld", "tcgen05.wait::st", operands=0)
def wait(program: Program, ins: PtxInstruction) -> Run:
    """tcgen05.wait::ld, ::st: until the warp's loads, or stores, have completed."""
    known(ins, "wait::ld", "wait::st", "sync", "aligned")
    way = ins.words[1][-2:]

    def go(fiber: Fiber) -> None:
        fiber.whole()
        settle(fiber, way)

    return go
