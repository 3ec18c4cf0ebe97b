"""Bulk copies and asynchronous stores. They are cp.async.bulk, cp.reduce.async.bulk, st.async, red.async.

The copy engine reads and writes through the async proxy. A copy into shared memory counts its bytes down on an mbarrier
of the destination block. A copy into global memory is in its thread's bulk group. With policy "late" a load lands when
nothing else can run, and a store reads when it is waited for.

PTX ISA, "Data Movement and Conversion Instructions: Bulk copy", "cp.async.bulk", "cp.reduce.async.bulk",
"cp.async.bulk.prefetch", "st.async"; "red.async". The multimem forms are not supported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from ....atoms.copy.cp_async import BULK_ALIGNMENT, BULK_MAX
from ....errors import EmulatorError
from ...machine.interpreter import Cta, Fiber
from ...machine.memory import GRANULE, span, span_parts
from ...ptx.codegen import bits_of
from ...ptx.parser import PtxInstruction
from ...ptx.program import Program, Reader, Run
from ...ptx.values import Value, lane_bits
from ...races.clocks import Stamp
from ...races.global_bytes import Addresses, CopyAccess
from ...races.happens_before import MemoryEvent
from ...races.lanes import STRONG
from ..barrier import EmulatedMbarrier, barrier_in, complete, mbarrier_at, signals
from ..memory import UNSIGNED, block_of, blocks_of, copies_global, said, unwritten, updater
from ..registry import counted, known, operation
from . import bulk_groups

Bytes = npt.NDArray[np.uint8]
Combine = Callable[[Bytes, Bytes], Bytes]  # (bytes there, incoming bytes) -> bytes


# What the forms have in common ----------------------------------------------------------------------------------------


def block_size(fiber: Fiber, value: Value) -> int:
    """The size operand of a bulk copy."""
    size = fiber.one(value)
    if size % BULK_ALIGNMENT or not 0 < size <= BULK_MAX:
        raise EmulatorError(f"a bulk copy of {size} bytes: they are multiples of {BULK_ALIGNMENT}, up to {BULK_MAX}")
    return size


def shared_block(cta: Cta, offset: int, size: int, what: str) -> None:
    """Refuse a shared-memory location that is misaligned or outside."""
    if offset % BULK_ALIGNMENT:
        raise EmulatorError(f"{what}: shared offset {offset:#x} is not a multiple of {BULK_ALIGNMENT}")
    if offset + size > cta.shared.size:
        raise EmulatorError(f"{what}: shared offset {offset:#x} and {size} bytes, of {cta.shared.size:#x} bytes")


def global_address(address: int, what: str) -> int:
    """Refuse a misaligned global address."""
    if address % BULK_ALIGNMENT:
        raise EmulatorError(f"{what}: global address {address:#x} is not a multiple of {BULK_ALIGNMENT}")
    return address


def signalled(fiber: Fiber, address: int, cta: Cta, ins: PtxInstruction) -> EmulatedMbarrier:
    """The mbarrier at an address, which has to be in the block that is written."""
    barrier = mbarrier_at(fiber, address)
    if barrier.cta is not cta:
        raise EmulatorError(f"{ins.opcode}: the {barrier} is not in the block that is written")
    return barrier


def own_block(fiber: Fiber, address: int, size: int, ins: PtxInstruction) -> tuple[Cta, int]:
    """The fiber's block and the offset of a source in its shared memory."""
    cta, offset = block_of(fiber, address)
    if cta is not fiber.cta:
        raise EmulatorError(f"{ins.opcode} reads shared memory of another block")
    shared_block(cta, offset, size, ins.opcode)
    return cta, offset


def issuers(fiber: Fiber) -> tuple[int, ...]:
    """The fiber's lanes, each as a bit mask. Every lane issues a copy of its own."""
    return lane_bits(fiber.lanes)


def each_lane(fiber: Fiber, *operands: Reader) -> Iterator[tuple[int, ...]]:
    """(operands..., the lane as a bit mask) of each lane: every lane issues its own."""
    return zip(*[fiber.each(operand(fiber)).tolist() for operand in operands], issuers(fiber))


def reads_shared(
    fiber: Fiber, cta: Cta, offset: int, size: int, event: MemoryEvent, ins: PtxInstruction, by: int = 0
) -> None:
    """Check and record an asynchronous read of shared memory; `by`: the lanes that issued it."""
    unwritten(fiber, ins, cta, np.array([offset]), size)
    fiber.machine.touch(fiber, cta, span(offset, size), False, said(fiber, ins), event, True, by=by)
    # The block must not end and free its memory before the engine has read it.
    cta.remote.append((event, said(fiber, ins)(), ins))


def writes_shared(
    fiber: Fiber, cta: Cta, offset: int, size: int, event: MemoryEvent, ins: PtxInstruction, by: int = 0
) -> None:
    """Record an asynchronous write to a block's shared memory; the block must outlive it."""
    places, parts = span(offset, size), span_parts(offset, size)
    fiber.machine.touch(fiber, cta, places, True, said(fiber, ins), event, event.asynchronous, parts, by=by)
    cta.remote.append((event, said(fiber, ins)(), ins))


def land(cta: Cta, offset: int, data: Bytes, ins: PtxInstruction, combine: Combine | None = None) -> None:
    """Write bytes into a block's shared memory; report a block that has ended."""
    if cta.exited:
        cta.cluster.machine.problem(
            "exit", f"an asynchronous copy lands in CTA {cta.coordinate}, which has ended", ins=ins, cta=cta
        )
    where = slice(offset, offset + len(data))
    cta.shared.bytes[where] = data if combine is None else combine(cta.shared.bytes[where], data)
    cta.shared.written[where] = True


def reads_global(
    fiber: Fiber, ins: PtxInstruction, addresses: Addresses, size: int, barrier: EmulatedMbarrier, event: MemoryEvent
) -> None:
    """Check and record a copy's reads of global memory, which end with the mbarrier's phase."""
    watch = fiber.machine.global_watch
    if watch is not None:
        stamp = watch.next_turn(barrier, barrier.phase + 1)
        if watch.flagged:
            event.stamp = stamp
        copies_global(fiber, ins, addresses, size, CopyAccess(stamp, event), False)


def writes_global(
    fiber: Fiber, ins: PtxInstruction, addresses: Addresses, size: int, by: int, reduces: bool
) -> Stamp | None:
    """Check and record a copy's writes or reductions of global memory by some lanes. Returns their turn."""
    watch = fiber.machine.global_watch
    if watch is None:
        return None
    stamp = watch.next_turn((fiber.warp, by))
    copies_global(fiber, ins, addresses, size, CopyAccess(stamp), True, reduces)
    return stamp


def units(address: int, size: int) -> Addresses:
    """The addresses of a bulk copy's units of 16 bytes."""
    return np.arange(address, address + size, GRANULE)


class BulkStore:
    """A bulk copy out of shared memory, as a member of a bulk group."""

    def __init__(self, event: MemoryEvent, take: Callable[[], None], written: Stamp | None) -> None:
        self.event, self.take, self.written = event, take, written
        self.done = False

    def read(self) -> None:
        """Read shared memory and write the bytes on. No access to global memory can come in between."""
        if not self.done:
            self.done = True
            self.take()

    def finish(self) -> None:
        """Complete the copy."""
        self.read()


# cp.async.bulk --------------------------------------------------------------------------------------------------------


_COMMON = ("async", "bulk", "mbarrier::complete_tx::bytes", "bulk_group", "L2::cache_hint", "global")


@operation("cp.async.bulk.shared::cluster", "cp.async.bulk.shared::cta")
def into_shared(program: Program, ins: PtxInstruction) -> Run:
    """cp.async.bulk into shared memory, from global memory or from another block's shared memory."""
    words = known(ins, *_COMMON, "shared::cluster", "shared::cta", "multicast::cluster")
    if ins.words[3:5] == ("shared::cluster", "shared::cta") and "mbarrier::complete_tx::bytes" in words:
        return _between_blocks(program, ins, None)
    if ins.words[4] != "global" or "mbarrier::complete_tx::bytes" not in words:
        raise ValueError(f"{ins.opcode} is not emulated")
    destination, origin = program.address(ins.operands[0]), program.address(ins.operands[1])
    size_of, barrier_of = program.value(ins.operands[2], "u32"), program.address(ins.operands[3])
    spread = "multicast::cluster" in words
    counted(ins, 4 + spread + ("L2::cache_hint" in words))
    mask_of = program.value(ins.operands[4], "u16") if spread else None

    def go(fiber: Fiber) -> None:
        machine, cluster = fiber.machine, fiber.cta.cluster
        size = block_size(fiber, size_of(fiber))
        for target, source, mark, lane in each_lane(fiber, destination, origin, barrier_of):
            own, offset = block_of(fiber, target)
            if mask_of is None:
                barrier, ranks = signalled(fiber, mark, own, ins), [own.rank]
            else:
                barrier, ranks = mbarrier_at(fiber, mark), blocks_of(fiber, fiber.one(mask_of(fiber)))
            machine.launch.memory.find(global_address(source, ins.opcode), size)
            event = cluster.ledger.event(True, fiber.describe, by=fiber)
            reads_global(fiber, ins, units(source, size), GRANULE, barrier, event)
            for rank in ranks:
                cta = cluster.ctas[rank]
                shared_block(cta, offset, size, ins.opcode)
                writes_shared(fiber, cta, offset, size, event, ins, lane)
                signals(fiber, barrier_in(cta, barrier.offset), "a bulk copy")
            machine.counts.bytes["global to shared"] += size * len(ranks)

            def arrive(source: int = source, offset: int = offset, ranks: list[int] = ranks, at: int = barrier.offset,
                       event: MemoryEvent = event) -> None:  # fmt: skip
                data = machine.launch.memory.read(np.array([source]), size)[0]
                for rank in ranks:
                    land(cluster.ctas[rank], offset, data, ins)
                    complete(barrier_in(cluster.ctas[rank], at), size, event)

            machine.defer(cluster, "loads", arrive)

    return go


def _between_blocks(program: Program, ins: PtxInstruction, combine: Combine | None) -> Run:
    """shared::cta to shared::cluster."""
    destination, origin = program.address(ins.operands[0]), program.address(ins.operands[1])
    size_of, barrier_of = program.value(ins.operands[2], "u32"), program.address(ins.operands[3])
    counted(ins, 4)

    def go(fiber: Fiber) -> None:
        machine, cluster = fiber.machine, fiber.cta.cluster
        size = block_size(fiber, size_of(fiber))
        for target, source, mark, lane in each_lane(fiber, destination, origin, barrier_of):
            (own, at), (cta, offset) = own_block(fiber, source, size, ins), block_of(fiber, target)
            barrier = signalled(fiber, mark, cta, ins)
            signals(fiber, barrier, "a bulk copy")
            shared_block(cta, offset, size, ins.opcode)
            event = wrote = cluster.ledger.event(True, fiber.describe, by=fiber)
            if combine is not None:  # reductions do not race with each other, though other reads and writes may
                wrote = cluster.ledger.event(True, fiber.describe, STRONG, by=fiber)
                unwritten(fiber, ins, cta, np.array([offset]), size, suspect=True, does="reduces")
            reads_shared(fiber, own, at, size, event, ins, lane)
            writes_shared(fiber, cta, offset, size, wrote, ins, lane)
            machine.counts.bytes["shared to shared"] += size

            def arrive(own: Cta = own, at: int = at, cta: Cta = cta, offset: int = offset,
                       barrier: EmulatedMbarrier = barrier, event: MemoryEvent = event,
                       wrote: MemoryEvent = wrote) -> None:  # fmt: skip
                land(cta, offset, own.shared.bytes[at : at + size].copy(), ins, combine)
                cluster.ledger.learn_open(barrier.knows, wrote)
                complete(barrier, size, event)

            machine.defer(cluster, "loads", arrive)

    return go


@operation("cp.async.bulk.global")
def into_global(program: Program, ins: PtxInstruction) -> Run:
    """cp.async.bulk from shared to global memory, in the thread's bulk group. With .cp_mask: some bytes of every 16."""
    words = known(ins, *_COMMON, "shared::cta", "cp_mask")
    if ins.words[4] != "shared::cta" or "bulk_group" not in words:
        raise ValueError(f"{ins.opcode} is not emulated")
    mask_of = program.value(ins.operands[-1], "u16") if "cp_mask" in words else None
    expected = 3 + ("cp_mask" in words) + ("L2::cache_hint" in words)
    return _outward(program, ins, None, mask_of, expected)


def _outward(
    program: Program, ins: PtxInstruction, combine: Combine | None, mask_of: Reader | None, expected: int
) -> Run:
    destination, origin = program.address(ins.operands[0]), program.address(ins.operands[1])
    size_of = program.value(ins.operands[2], "u32")
    counted(ins, expected)

    def go(fiber: Fiber) -> None:
        machine, cluster = fiber.machine, fiber.cta.cluster
        size, chosen = block_size(fiber, size_of(fiber)), None
        if mask_of is not None:
            mask = fiber.one(mask_of(fiber))
            chosen = np.tile(mask >> np.arange(16) & 1, size // 16).astype(bool)
        for target, source, lane in each_lane(fiber, destination, origin):
            own, at = own_block(fiber, source, size, ins)
            machine.launch.memory.find(global_address(target, ins.opcode), size)
            event = cluster.ledger.event(True, fiber.describe)
            reads_shared(fiber, own, at, size, event, ins, lane)
            machine.counts.bytes["shared to global"] += size

            def take(own: Cta = own, at: int = at, target: int = target) -> None:
                buffer, first = machine.launch.memory.find(target, size)
                data = own.shared.bytes[at : at + size]
                for one in machine.launch.memory.targets(buffer):
                    there = one.data[first : first + size]
                    if chosen is not None:
                        there[chosen] = data[chosen]
                    else:
                        there[:] = data if combine is None else combine(there, data)

            written = writes_global(fiber, ins, units(target, size), GRANULE, lane, combine is not None)
            store = BulkStore(event, take, written)
            bulk_groups.add(fiber, store, lane)
            machine.defer(cluster, "stores", store.read)

    return go


# Reductions -----------------------------------------------------------------------------------------------------------

# PTX ISA, "cp.reduce.async.bulk": operations and types by destination.
_REDUCTIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")


def _combine(name: str, kind: str) -> Combine:
    update = updater(name, kind)
    dtype = UNSIGNED[bits_of(kind) // 8]

    def combine(there: Bytes, coming: Bytes) -> Bytes:
        old, new = (np.ascontiguousarray(x).view(dtype).tolist() for x in (there, coming))
        return np.array([update(a, b, 0) for a, b in zip(old, new)], dtype=dtype).view(np.uint8)

    return combine


@operation("cp.reduce.async.bulk.shared::cluster", "cp.reduce.async.bulk.global")
def reduce_bulk(program: Program, ins: PtxInstruction) -> Run:
    """cp.reduce.async.bulk: an operation of shared memory on global or another block's memory. It works element by
    element."""
    words = known(ins, *_COMMON, "reduce", "shared::cluster", "shared::cta", "noftz", *_REDUCTIONS, ins.words[-1])
    name = next(word for word in _REDUCTIONS if word in words)
    combine = _combine(name, ins.words[-1])
    if ins.words[4:6] == ("shared::cluster", "shared::cta") and "mbarrier::complete_tx::bytes" in words:
        return _between_blocks(program, ins, combine)
    if ins.words[4:6] == ("global", "shared::cta") and "bulk_group" in words:
        return _outward(program, ins, combine, None, 3 + ("L2::cache_hint" in words))
    raise ValueError(f"{ins.opcode} is not emulated")


# st.async, red.async --------------------------------------------------------------------------------------------------


def _remote_store(program: Program, ins: PtxInstruction, count: int, kind: str, combine: Combine | None) -> Run:
    destination, barrier_of = program.address(ins.operands[0]), program.address(ins.operands[2])
    sources = program.sources(ins.operands[1], kind)
    if len(sources) != count:
        raise ValueError(f"{len(sources)} registers for {count} elements")
    dtype = UNSIGNED[bits_of(kind) // 8]
    size = dtype.itemsize * count

    def go(fiber: Fiber) -> None:
        machine, cluster = fiber.machine, fiber.cta.cluster
        values = [fiber.each(source(fiber)) for source in sources]
        event = cluster.ledger.event(False, fiber.describe, None if combine is None else STRONG, by=fiber)
        parts = []
        for n, (target, mark, lane) in enumerate(each_lane(fiber, destination, barrier_of)):
            cta, offset = block_of(fiber, target)
            barrier = signalled(fiber, mark, cta, ins)
            cta.shared.check(np.array([offset]), size, ins.opcode)
            if combine is not None:
                unwritten(fiber, ins, cta, np.array([offset]), size, suspect=True, does="reduces")
            writes_shared(fiber, cta, offset, size, event, ins, lane)
            data = np.array([int(value[n]) for value in values], dtype=dtype).view(np.uint8)
            parts.append((cta, offset, data, barrier))
        machine.counts.bytes["shared write"] += size * len(parts)

        def arrive() -> None:
            for cta, offset, data, barrier in parts:
                land(cta, offset, data, ins, combine)
                complete(barrier, size, event)

        machine.defer(cluster, "loads", arrive)

    return go


@operation("st.async")
def store_async(program: Program, ins: PtxInstruction) -> Run:
    """st.async of a register or a vector to the shared memory of a block. The block's mbarrier counts the bytes."""
    kind = ins.words[-1]
    words = known(ins, "async", "weak", "shared::cluster", "mbarrier::complete_tx::bytes", "v2", "v4", kind)
    count = next((int(word[1:]) for word in words if word in ("v2", "v4")), 1)
    if "mbarrier::complete_tx::bytes" not in words or kind[0] not in "busf" or bits_of(kind) not in (32, 64):
        raise ValueError(f"{ins.opcode} is not emulated")
    return _remote_store(program, ins, count, kind, None)


@operation("red.async")
def reduce_async(program: Program, ins: PtxInstruction) -> Run:
    """red.async, an operation on the shared memory of a block. The block's mbarrier counts the bytes."""
    kind, scope = ins.words[-1], ("relaxed", "cluster", "shared::cluster")
    words = known(ins, "async", *scope, "mbarrier::complete_tx::bytes", *_REDUCTIONS, kind)
    if "mbarrier::complete_tx::bytes" not in words or kind not in ("u32", "s32", "u64", "s64", "b32"):
        raise ValueError(f"{ins.opcode} is not emulated")
    name = next(word for word in _REDUCTIONS if word in words)
    return _remote_store(program, ins, 1, kind, _combine(name, kind))
