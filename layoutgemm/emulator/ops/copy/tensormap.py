"""Tensor maps changed by a kernel: tensormap.replace, tensormap.cp_fenceproxy, fence.proxy.tensormap.

PTX ISA, "tensormap.replace", "tensormap.cp_fenceproxy", "membar, fence". A map is 128 bytes in shared or global memory;
replacing a field reads and writes all of them. The copy engine reads maps through a proxy of its own. It sees a change
in global memory after two fences. The changing thread releases it: cp_fenceproxy, or
fence.proxy.tensormap::generic.release. Then fence.proxy.tensormap::generic.acquire of that map follows, by the copying
thread or before a barrier that it passed. A copy that uses a changed map checks both. Effects of replacement on each
field are an H200's (tests/emulator/ops/copy/test_tensormap.py). .swizzle_atomicity, of later architectures, follows
PTX's text alone.

Not checked: ordinary stores into a map in global memory, and a change while an earlier copy still reads.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ....errors import EmulatorError
from ...machine.interpreter import Cluster, Cta, Fiber
from ...machine.memory import span
from ...machine.tensor_map import ALIGN, BYTES, FIELDS, ORDERED, READ, replaced
from ...ptx.parser import PtxInstruction
from ...ptx.program import Program, Reader, Run
from ...races.happens_before import MemoryEvent
from ..barrier import barriers_of
from ..memory import place, said, unwritten
from ..registry import constant, operation

SCOPES = ("cta", "cluster", "gpu", "sys")


@dataclass
class ModifiedTensorMap:
    """A map in global memory that the kernel has changed.

    cluster   that changed it last; text: the instruction
    change    the event of the change; releases: of its release to the copy engine; acquires: of its acquisition
    """

    cluster: Cluster
    text: str
    change: MemoryEvent
    releases: list[MemoryEvent] = field(default_factory=list)
    acquires: list[MemoryEvent] = field(default_factory=list)


def changed_maps(fiber: Fiber) -> dict[int, ModifiedTensorMap]:
    """The changed maps of the launch, by address."""
    found: dict[int, ModifiedTensorMap] = fiber.machine.scratch.setdefault("tensor maps", {})
    return found


def check_use(fiber: Fiber, address: int) -> None:
    """Report a tensor copy that uses a changed map without the fences."""
    found = changed_maps(fiber).get(address)
    if found is None or not fiber.machine.policy.races or found.cluster is not fiber.cta.cluster:
        return
    ledger, what = fiber.cta.cluster.ledger, f"the tensor map at {address:#x}, which {found.text} has changed"
    if not found.releases:
        lacks = "the change was not released to the copy engine (fence.proxy.tensormap::generic.release)"
    elif not any(ledger.knows(fiber.knows, event) for event in found.acquires):
        lacks = "no fence.proxy.tensormap::generic.acquire of it stands before this"
    else:
        return
    fiber.machine.problem("race", f"a tensor copy uses {what}: {lacks}", fiber)


def _mark(fiber: Fiber) -> MemoryEvent:
    """The event of the fiber's accesses so far. It is still used after their records are gone."""
    event = fiber.epoch
    barriers_of(fiber.cta)
    fiber.cta.scratch["events"].append(event)
    fiber.cta.cluster.ledger.renew(fiber)
    return event


def _address(at: int, what: str) -> int:
    if at % ALIGN:
        raise EmulatorError(f"{what}: a tensor map at {at:#x}: it must be a multiple of {ALIGN}")
    return at


def _in_shared(fiber: Fiber, ins: PtxInstruction, cta: Cta, offset: int, write: bool) -> None:
    """Check and record the access to a map in the block's shared memory."""
    if cta is not fiber.cta:
        raise EmulatorError(f"{ins.opcode}: the tensor map is not in the block's own shared memory")
    cta.shared.check(np.arange(_address(offset, ins.opcode), offset + BYTES, ALIGN), ALIGN, ins.opcode)
    unwritten(fiber, ins, cta, np.array([offset]), READ)  # whatever the rest is, a map is the same
    fiber.machine.touch(fiber, cta, span(offset, BYTES), write, said(fiber, ins))


@operation("tensormap.replace")
def replace(program: Program, ins: PtxInstruction) -> Run:
    """tensormap.replace: change one field of a map. Extents and strides are given by dimension."""
    words = list(ins.words[2:])
    name = words[1] if len(words) > 1 else ""
    space = next((word for word in words if word in ("global", "shared::cta")), "")
    kind = "b64" if name in ("global_address", "global_stride") else "b32"
    if words != [word for word in ("tile", name, space, "b1024", kind) if word] or name not in FIELDS:
        raise ValueError(f"{ins.opcode} is not emulated")
    ordered = name in ORDERED
    if len(ins.operands) != 2 + ordered:
        raise ValueError(f".{name} has {2 + ordered} operands")
    dimension = constant(ins.operands[1]) if ordered else 0
    if not 0 <= dimension < ORDERED.get(name, 1):
        raise ValueError(f".{name} of dimension {dimension}")
    if kind == "b32" and not ordered and name != "rank":  # a choice, which PTX wants as an immediate
        constant(ins.operands[-1])
    address, value = program.address(ins.operands[0]), program.value(ins.operands[-1], kind)

    def go(fiber: Fiber) -> None:
        number = fiber.one(value(fiber))
        for at in sorted(set(fiber.each(address(fiber)).tolist())):
            cta, (offset,) = place(fiber, space or "", np.array([at]))
            if cta is not None:
                _in_shared(fiber, ins, cta, int(offset), True)
                content = cta.shared.bytes[offset : offset + BYTES]
            else:
                memory = fiber.machine.launch.memory
                buffer, first = memory.find(_address(int(offset), ins.opcode), BYTES)
                content = buffer.data[first : first + BYTES]
                changed_maps(fiber)[int(offset)] = ModifiedTensorMap(fiber.cta.cluster, said(fiber, ins)(), fiber.epoch)
            content[:] = np.frombuffer(replaced(content.tobytes(), name, dimension, number), np.uint8)

    return go


@operation("tensormap.cp_fenceproxy")
def copy_and_release(program: Program, ins: PtxInstruction) -> Run:
    """tensormap.cp_fenceproxy by a whole warp. It copies a map from shared to global memory and releases it."""
    expected = ("cp_fenceproxy", "global", "shared::cta", "tensormap::generic", "release", "sync", "aligned")
    words = [word for word in ins.words[1:] if word not in SCOPES]
    if tuple(words) != expected or len(ins.words) != 9 or constant(ins.operands[2]) != BYTES:
        raise ValueError(f"{ins.opcode} of {ins.operands[2].text} bytes is not emulated")
    target, source = program.address(ins.operands[0]), program.address(ins.operands[1])

    def go(fiber: Fiber) -> None:
        fiber.whole()
        to = _address(fiber.one(target(fiber)), ins.opcode)
        cta, (offset,) = place(fiber, "shared", np.array([fiber.one(source(fiber))]))
        assert cta is not None
        _in_shared(fiber, ins, cta, int(offset), False)
        # Bytes behind the fields that no thread wrote stay as they are there: results do not depend on them.
        buffer, first = fiber.machine.launch.memory.find(to, BYTES)
        written = cta.shared.written[offset : offset + BYTES]
        content = np.where(written, cta.shared.bytes[offset : offset + BYTES], buffer.data[first : first + BYTES])
        fiber.machine.launch.memory.write(np.array([to]), content[None])
        fiber.machine.counts.bytes["shared to global"] += BYTES
        made = _mark(fiber)
        changed_maps(fiber)[to] = ModifiedTensorMap(fiber.cta.cluster, said(fiber, ins)(), made, [made])

    return go


@operation("fence.proxy.tensormap::generic")
def fence(program: Program, ins: PtxInstruction) -> Run:
    """fence.proxy.tensormap::generic: release the thread's changes in global memory; acquire one map."""
    words = [word for word in ins.words[3:] if word not in SCOPES]
    if words not in (["release"], ["acquire"]) or len(ins.words) != 5:
        raise ValueError(f"{ins.opcode} is not emulated")
    if words == ["release"]:
        if ins.operands:
            raise ValueError("a release names no address")
        return _release
    if len(ins.operands) != 2 or constant(ins.operands[1]) != BYTES:
        raise ValueError(f"an acquire is of an address and {BYTES} bytes")
    return _acquire(program.address(ins.operands[0]))


def _follows(fiber: Fiber, event: MemoryEvent) -> bool:
    """True if an event comes before what the fiber does now: its own, one of its lanes', or one that it knows."""
    ledger = fiber.cta.cluster.ledger
    return event is fiber.epoch or ledger.knows(fiber.knows, event) or bool(fiber.knows.own & ledger.bit(event))


def _release(fiber: Fiber) -> None:
    known = [
        found
        for found in changed_maps(fiber).values()
        if found.cluster is fiber.cta.cluster and not found.releases and _follows(fiber, found.change)
    ]
    made = _mark(fiber)
    for found in known:
        found.releases.append(made)


def _acquire(address: Reader) -> Run:
    def go(fiber: Fiber) -> None:
        for at in set(fiber.each(address(fiber)).tolist()):
            found = changed_maps(fiber).get(int(at))
            if found is not None and found.cluster is fiber.cta.cluster:
                if any(_follows(fiber, event) for event in found.releases):
                    found.acquires.append(_mark(fiber))

    return go
