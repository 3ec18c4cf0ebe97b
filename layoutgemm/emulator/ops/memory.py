"""Ordinary loads, stores and atomics.

PTX ISA, "Data Movement and Conversion Instructions": ld, st, atom, red, mapa, isspacep.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...dtypes import dtype
from ...errors import EmulatorError
from ...moved import old_names
from ..findings import LINT
from ..machine.interpreter import Cta, Fiber
from ..machine.memory import OFFSET, RANK_SHIFT, parts_of, pieces, span, span_parts
from ..ptx.codegen import PARAMETER_BASE, SHARED_WINDOW, bits_of
from ..ptx.floats import BINARY, bits32, bits64, decode, encode
from ..ptx.parser import SIZES, PtxInstruction, PtxOperand
from ..ptx.program import Program, Run
from ..ptx.values import (
    LANES,
    Lanes,
    Register,
    Undefined,
    Value,
    any_of,
    bits_without,
    bool_of,
    defined,
    is_uniform,
    lane_bits,
    lanes_without,
    s32,
    s64,
)
from ..races import global_words as lane_words
from ..races.conflicts import BETWEEN_LANES, SaidAccess
from ..races.global_bytes import CopyAccess
from ..races.happens_before import MemoryEvent
from ..races.lanes import LaneAccess, Meets, Same, apart_by_rounding, conflicting, did, strong
from .flags import FlagAccess, learn, tell
from .local import fetch_local, own_memory, store_local
from .registry import HINT, MixedMemories, by_place, constant, counted, guarded, known, operation, taken

UNSIGNED: dict[int, np.dtype[np.generic]] = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}
# Words of ld and st for caches, ordering strength or scope, without an effect on values here.
IGNORED = {
    "weak", "relaxed", "volatile", "cta", "cluster", "gpu", "sys", "ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc",
    "acquire", "release", "acq_rel", "mmio", "noftz", "rn", "unified",
}  # fmt: skip
HALVES = ("bf16", "f16x2", "bf16x2")  # types of an element that no register is declared with
# Words of a load or store that is "strong" in PTX's memory model: two of them are no data race.
STRONG_WORDS = ("relaxed", "acquire", "release", "acq_rel", "mmio", "volatile")
SPACES = (
    "param", "param::entry", "param::func", "global", "const", "local", "shared", "shared::cta", "shared::cluster",
)  # fmt: skip


GENERIC = "a generic address where the instruction takes a shared one: its offset is taken, and PTX leaves that open"


class AccessForm:
    """The parsed words of a load, store or atomic.

    strong  the word that makes a load or store a strong operation, or ""
    flag    its order and scope, where it is strong
    space   state space, "" for generic addresses
    kind    type of an element
    count   elements of a vector
    elements     the offsets of those that a load's kernel uses, or () if it uses all
    noncoherent  whether it reads through the cache of read-only data
    """

    def __init__(self, ins: PtxInstruction, extra: tuple[str, ...] = ()) -> None:
        words = list(ins.words)
        # The examples of PTX's "red", and code in use, write the type of a vector before the operation.
        at = next((n for n in range(len(words) - 1, 0, -1) if words[n] in SIZES or words[n] in HALVES), len(words) - 1)
        self.space, self.kind, self.count = "", words.pop(at), 1
        self.elements: tuple[int, ...] = ()
        self.noncoherent = "nc" in ins.words
        self.strong = next((word for word in ins.words if word in STRONG_WORDS), "")
        has, atomic = {*ins.words}, ins.words[0] in ("atom", "red")
        self.flag = FlagAccess(
            bool(has & {"release", "acq_rel"}), bool(has & {"acquire", "acq_rel"}), atomic, "cta" not in has,
            not has & {"cta", "cluster"}, atomic or "volatile" in has,
        )  # fmt: skip
        for word in words[1:]:
            if word in SPACES:
                self.space = word.removesuffix("::entry").removesuffix("::func")
            elif word in ("v2", "v4", "v8"):
                self.count = int(word[1:])
            elif word not in IGNORED and word not in extra and not word.startswith(("L1::", "L2::")):
                raise ValueError(f".{word} is not emulated")
        self.bytes = bits_of(self.kind) // 8 if self.kind in HALVES else SIZES.get(self.kind, 0)
        if (self.bytes not in UNSIGNED and self.kind != "b128") or self.kind == "pred":
            raise ValueError(f"{self.space or 'generic'} {self.kind} is not emulated")


class PlainForm(AccessForm):
    """The form of an access to single elements of `size` bytes, without any ordering."""

    def __init__(self, space: str, size: int) -> None:
        self.space, self.kind, self.count, self.bytes = space, f"b{8 * size}", 1, size
        self.elements = ()
        self.noncoherent, self.strong, self.flag = False, "", FlagAccess(False, False, False, True, True, False)


def block_of(fiber: Fiber, address: int) -> tuple[Cta, int]:
    """The block and the offset of a shared address. Reports a block that has ended, and a generic address.

    Raises EmulatorError for a block that the cluster does not have.
    """
    if address >= SHARED_WINDOW:  # kernels of CUDA C++ pass a variable's own address to inline PTX
        address -= SHARED_WINDOW
        strict = fiber.machine.policy.strict
        message = GENERIC if strict else f"{GENERIC}; Policy(strict=True) makes this a finding"
        fiber.machine.problem(
            "protocol" if strict else LINT, message, fiber, orders="cvta.to.shared makes a shared address of it."
        )
    rank, offset = address >> RANK_SHIFT, address & OFFSET
    ctas = fiber.cta.cluster.ctas
    if not 0 <= rank < len(ctas):
        raise EmulatorError(
            f"shared address {address:#x} names block {rank} of a cluster of {len(ctas)}: launch clusters of the size "
            "that the kernel was written for, or take the address by mapa"
        )
    if ctas[rank].exited:
        fiber.machine.problem(
            "exit",
            f"{said(fiber, fiber.ins)()} uses shared memory of CTA {ctas[rank].coordinate}, which has ended",
            fiber,
            orders="barrier.cluster.arrive and .wait by all threads of the cluster, after it, keep the block; so does "
            "the block's wait for it, as a pipeline's producer_tail has.",
        )
    elif ctas[rank] is not fiber.cta:
        has_begun(fiber, ctas[rank])
    return ctas[rank], offset


def has_begun(fiber: Fiber, cta: Cta) -> None:
    """Report the use of another block's shared memory that may come before that block begins.

    PTX ISA, "barrier.cluster", and the CUDA programming guide, "Distributed Shared Memory": every block of the cluster
    has to have started. A barrier of the cluster tells so, and so does whatever else follows an action of that block.
    """
    ledger = cta.cluster.ledger
    if not ledger.enabled or cta.began is None or cta.began.id < ledger.base:
        return
    knows, bit = fiber.knows, ledger.bit(cta.began)
    if (knows.seen | knows.past) & bit or any((more.seen | more.past) & bit for _, more in knows.apart):
        return
    fiber.machine.problem(
        "race",
        f"{said(fiber, fiber.ins)()} reaches shared memory of CTA {cta.coordinate}, and nothing orders it after that "
        "block has begun",
        fiber,
        orders="barrier.cluster.arrive and .wait by all threads of the cluster, before it, order them.",
    )


def blocks_of(fiber: Fiber, mask: int) -> list[int]:
    """The ranks in a multicast's mask. Raises EmulatorError for an empty mask, and for blocks that are not there."""
    count = len(fiber.cta.cluster.ctas)
    if not mask or mask >> count:
        wrong = f"block {mask.bit_length() - 1} is not there" if mask else "no block gets the copy"
        raise EmulatorError(
            f"multicast to mask {mask:#x} in a cluster of {count}: {wrong}; launch clusters of the size that the "
            "kernel was written for, or make the mask of this cluster's blocks"
        )
    ranks = [rank for rank in range(count) if mask >> rank & 1]
    for rank in ranks:
        if (cta := fiber.cta.cluster.ctas[rank]) is not fiber.cta:
            has_begun(fiber, cta)
    return ranks


def lanewise(value: Value, lanes: int) -> Lanes:
    """A value in each of these lanes, in their order."""
    return value[bool_of(lanes)] if isinstance(value, np.ndarray) else np.full(lanes.bit_count(), value)


def unwritten(
    fiber: Fiber, ins: PtxInstruction, cta: Cta, offsets: npt.NDArray[np.int64], size: int, suspect: bool = False,
    does: str = "reads",
) -> None:  # fmt: skip
    """Report the first byte of a read of shared memory that was never written."""
    fresh = cta.shared.unwritten(offsets, size)
    if fresh is not None:
        message = f"{ins.opcode} {does} shared offset {fresh:#x}, never written"
        fiber.machine.problem("uninitialised", message, fiber, suspect=suspect)


def place(fiber: Fiber, space: str, addresses: Lanes) -> tuple[Cta | None, npt.NDArray[np.int64]]:
    """(block, offsets) for shared addresses, (None, addresses) for global ones; others raise MixedMemories."""
    places = addresses.astype(np.int64)
    if not space:
        inside = places >= SHARED_WINDOW
        count = np.count_nonzero(inside)
        if not count:
            return None, places
        places = places - SHARED_WINDOW
        if count < len(inside):
            raise MixedMemories(np.where(inside, places >> RANK_SHIFT, -1).tolist())
    elif space in ("global", "const"):
        return None, places
    ranks = places >> RANK_SHIFT
    if any_of(ranks != ranks[0]):
        raise MixedMemories(ranks.tolist())
    cta, _ = block_of(fiber, int(places[0]))
    return cta, places & OFFSET


def _word_by_word(fiber: Fiber, form: AccessForm, addresses: Lanes) -> None:
    """Part lanes that release at several words: each tells of its own accesses. Raises MixedMemories."""
    if form.strong and form.flag.releases and fiber.cta.cluster.ledger.lanes and any_of(addresses != addresses[0]):
        raise MixedMemories(addresses.tolist())


def signed_to(values: npt.NDArray[Any], kind: str, width: int) -> Lanes:
    """Loaded elements as register values, sign-extended to the register's width."""
    if kind == "b128":
        found: Lanes = values
        return found
    wide = np.uint64 if width == 64 else np.int64
    if kind[0] == "s":
        signed = values.view(f"i{values.dtype.itemsize}").astype(np.int64)
        return signed.view(np.uint64) if width == 64 else signed & ((1 << max(width, 8)) - 1)
    return values.astype(wide)


def elements(raw: npt.NDArray[np.uint8], size: int) -> npt.NDArray[Any]:
    """Bytes as unsigned elements of `size` bytes; of 16 bytes: as Python's ints."""
    if size in UNSIGNED:
        return raw.reshape(-1).view(UNSIGNED[size])
    pairs = raw.reshape(-1).view(np.uint64).reshape(-1, 2).tolist()
    return np.array([low | up << 64 for low, up in pairs], dtype=object)


def bytes_of(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Unsigned elements as bytes, which `elements` reads back."""
    if values.dtype != object:
        return values.view(np.uint8)
    return np.frombuffer(b"".join([int(one).to_bytes(16, "little") for one in values.reshape(-1)]), np.uint8).copy()


def _width(program: Program, operand: PtxOperand, form: AccessForm) -> int:
    """Bits of an operand's registers, or of an element. Raises ValueError for another number of them."""
    parts = operand.parts if operand.kind == "vector" else (operand,)
    if len(parts) != form.count:
        raise ValueError(f"{operand.text} for {form.count} elements")
    held = [bits_of(program.kernel.registers[part.text]) for part in parts if part.kind == "reg"]
    return held[0] if held else 8 * form.bytes


@operation("ld", "ldu", guards=True)
def load(program: Program, ins: PtxInstruction) -> Run:
    """ld: elements of consecutive addresses into one register each."""
    form = AccessForm(ins)
    targets, width = program.targets(ins.operands[0], form.kind, True), _width(program, ins.operands[0], form)
    if targets == [None]:
        raise ValueError(f"the result of {ins.words[0]} cannot be dropped")
    address, lanes_of, after = program.address(ins.operands[1]), taken(program, ins), ins.pc + 1
    size, count, kind = form.bytes, form.count, form.kind
    # A compiler that joins loads may read elements between them, whose registers nothing reads: they order nothing.
    used = [at for at, register in enumerate(targets) if register is not None and program.is_read(register)]
    if 0 < len(used) < count and not form.strong:
        form.elements = tuple([at * size for at in used])
    own = form.space in ("", "local", "param")

    def go(fiber: Fiber) -> int | None:
        lanes = lanes_of(fiber)
        if not lanes:
            return after
        where = address(fiber)
        uniform = not isinstance(where, np.ndarray)
        memory = own_memory(form.space, where, lanes) if own else ""
        if memory == "local":
            raw, uniform = fetch_local(fiber, ins, where, lanes, form.space, size * count), False
        else:
            addresses = where[bool_of(lanes)] if isinstance(where, np.ndarray) else np.array([where])
            of = _parameters if memory else fetch
            raw = of(fiber, form, addresses, lanes, ins)
        columns = signed_to(elements(raw, size), kind, width).reshape(-1, count)
        for at, register in enumerate(targets):
            if register is None:
                continue
            if uniform and lanes == fiber.lanes:
                fiber.registers[register] = int(columns[0, at])
                continue
            assign(fiber, register, lanes, columns[:, at])
        return None

    return _ordering(program, ins, form, go)


def _ordering(program: Program, ins: PtxInstruction, form: AccessForm, go: Run) -> Run:
    """The access: one that releases or acquires does so for the lanes where its predicate holds, which split."""
    run = by_place(program, ins, go)
    orders = form.strong and (form.flag.releases or form.flag.acquires)
    return guarded(program, ins, run) if orders and ins.predicate is not None else run


def assign(fiber: Fiber, register: int, lanes: int, values: Lanes) -> None:
    """Write the values of some of the fiber's lanes; the others keep theirs."""
    out, gone = np.zeros(LANES, dtype=values.dtype), 0
    before = fiber.registers[register]
    if lanes != fiber.lanes:
        gone = lanes_without(before) & ~lanes & fiber.lanes
        out[:] = defined(before)
    out[bool_of(lanes)] = values
    fiber.registers[register] = Undefined(out, gone, before.of, before.bits, before.reports) if gone else out


def fetch(fiber: Fiber, form: AccessForm, addresses: Lanes, lanes: int, ins: PtxInstruction) -> npt.NDArray[np.uint8]:
    """The bytes [lane, bytes of all elements] of a load, checked and recorded."""
    machine, size = fiber.machine, form.bytes * form.count
    cta, offsets = place(fiber, form.space, addresses)
    if cta is None:
        if form.space == "const":
            machine.counts.bytes["constant read"] += size * lanes.bit_count()
            return machine.launch.memory.read(offsets, size)
        machine.counts.bytes["global read"] += size * lanes.bit_count()
        if form.strong:
            learn(fiber, form.flag, offsets, lanes, True)
        if form.elements:
            _aligned(offsets, size)
        count_sectors(fiber, ins, offsets, size)
        for at in form.elements or (0,):
            _read_global(fiber, ins, form, offsets + at, form.bytes if form.elements else size, lanes)
        raw = machine.launch.memory.read(offsets, size)
        return raw if machine.replaced_reads is None else machine.replaced_reads.replaced(fiber, offsets, raw)
    cta.shared.check(offsets, size, ins.opcode)
    if form.elements:
        for at in form.elements:
            unwritten(fiber, ins, cta, offsets + at, form.bytes, suspect=True)
            _touch_shared(fiber, ins, cta, offsets + at, form.bytes, lanes, "ld.shared", banks=False)
        _count_banks(fiber, ins, cta, offsets, size, lanes, "ld.shared")
    else:
        unwritten(fiber, ins, cta, offsets, size, suspect=True)
        _touch_strongly(fiber, ins, form, cta, offsets, size, lanes, "ld.shared")
    machine.counts.bytes["shared read"] += size * lanes.bit_count()
    if form.strong:
        learn(fiber, form.flag, offsets + (cta.rank << RANK_SHIFT), lanes, False)
    return cta.shared.read(offsets, size)


def _read_global(
    fiber: Fiber, ins: PtxInstruction, form: AccessForm, addresses: npt.NDArray[np.int64], size: int, lanes: int
) -> None:
    """Check and record a load of global memory."""
    watch = fiber.machine.global_watch
    if form.noncoherent and watch is not None and (writer := watch.written_by(addresses, size)) is not None:
        message = f"{said(fiber, ins)()} reads, as data that is read only, what {writer} wrote in this launch"
        fiber.machine.problem("race", message, fiber, orders="ld.global without .nc reads what has been written.")
    _touch_global(fiber, ins, addresses, size, lanes, "reads", bool(form.strong))


def said(fiber: Fiber, ins: PtxInstruction | None) -> Callable[[], str]:
    """A function that describes this instruction and its warp, for the race checker's reports."""
    assert ins is not None
    return SaidAccess(fiber, ins)


def _touch_global(
    fiber: Fiber, ins: PtxInstruction, addresses: npt.NDArray[np.int64], size: int, lanes: int, does: str,
    strong: bool = False, same: Same = lambda meets: False,
) -> None:  # fmt: skip
    """Check and record an access to global memory; does: "reads", "writes", or of an atomic "changes" or "adds to".

    same  of a write, whether memory holds what it writes
    """
    _aligned(addresses, size)
    race = lane_words.touch(
        fiber,
        addresses,
        size,
        lanes,
        does != "reads",
        strong,
        does in ("reads", "writes"),
        same if does == "writes" else None,
    )
    if race is not None:
        message = f"{said(fiber, ins)()} {does} {race}"
        fiber.machine.problem("race", message, fiber, orders=BETWEEN_LANES)
    watch = fiber.machine.global_watch
    if fiber.machine.writers is not None and does != "reads":
        adds = does == "adds to"
        fiber.machine.writers.note(fiber, ins, said(fiber, ins), addresses, size, lanes, adds)
    # Locks, counters and maxima are built of other atomic operations, with ordinary accesses that may come too early.
    if watch is not None and (does != "changes" or not strong):
        where = addresses[:1] if len(addresses) > 1 and not any_of(addresses != addresses[0]) else addresses
        if does == "reads" and strong:
            found = watch.polled(fiber, said(fiber, ins), where, size, lanes)
        else:
            same_bytes = None if does == "reads" else same
            found = watch.access(fiber, ins.pc, said(fiber, ins), where, size, same_bytes, None, strong, lanes)
        if found is not None:
            fiber.machine.conflict(found, fiber)


def count_sectors(fiber: Fiber, ins: PtxInstruction, addresses: npt.NDArray[np.int64], size: int) -> None:
    """Count a request's sectors of global memory, where that is asked for."""
    if fiber.machine.sectors is not None and addresses.size:
        fiber.machine.sectors.add(ins, size, addresses)


def _aligned(addresses: npt.NDArray[np.int64], size: int) -> None:
    """Refuse an address in global memory that is not a multiple of the access's size."""
    wrong = addresses & size - 1
    if any_of(wrong):
        bad = int(addresses[wrong != 0][0])
        raise EmulatorError(f"global address {bad:#x} is not a multiple of the access's {size} bytes")


def copies_global(
    fiber: Fiber, ins: PtxInstruction, addresses: npt.NDArray[np.int64], size: int, copying: CopyAccess, writes: bool,
    strong: bool = False,
) -> None:  # fmt: skip
    """Check and record a copy's access to global memory. `size` bytes at each address; strong: a reduction."""
    watch = fiber.machine.global_watch
    if writes and fiber.machine.writers is not None and len(addresses):
        fiber.machine.writers.note(fiber, ins, said(fiber, ins), addresses, size, fiber.lanes, strong)
    if watch is not None and len(addresses):
        same = _never if writes else None
        found = watch.access(fiber, ins.pc, said(fiber, ins), addresses, size, same, copying, strong)
        if found is not None:
            fiber.machine.conflict(found, fiber)


def touches_texels(
    fiber: Fiber, ins: PtxInstruction, addresses: npt.NDArray[np.int64], size: int, lanes: int, does: str
) -> None:
    """Check and record an access to an array's texels. `does` is "reads", "writes", or of a texture "samples"."""
    watch = fiber.machine.global_watch
    if does == "samples" and watch is not None and (writer := watch.written_by(addresses, size)) is not None:
        message = f"{said(fiber, ins)()} samples what {writer} wrote in this launch, and textures are read only"
        fiber.machine.problem("race", message, fiber, orders="A surface, or ld.global, reads what has been written.")
    _touch_global(fiber, ins, addresses, size, lanes, "writes" if does == "writes" else "reads")


def _never(meets: Meets) -> bool:
    return False


def _touch_shared(
    fiber: Fiber, ins: PtxInstruction, cta: Cta, offsets: npt.NDArray[np.int64], size: int, lanes: int, kind: str,
    event: MemoryEvent | None = None, same: Same | None = None, banks: bool = True,
) -> None:  # fmt: skip
    """Record an access to shared memory; kind: "ld.shared" or "st.shared"; same: see `PtxMachine.touch`.

    banks  False for one element of an instruction, whose banks are counted together
    """
    machine, touch = fiber.machine, LaneAccess(lanes, offsets, size)
    what, parts = said(fiber, ins), parts_of(offsets, size)
    machine.touch(fiber, cta, touch.places, kind == "st.shared", what, event, parts=parts, touch=touch, same=same)
    if banks:
        _count_banks(fiber, ins, cta, offsets, size, lanes, kind)


def _count_banks(
    fiber: Fiber, ins: PtxInstruction, cta: Cta, offsets: npt.NDArray[np.int64], size: int, lanes: int, kind: str
) -> None:
    if fiber.machine.banks is not None and cta is fiber.cta:
        fiber.machine.banks.add(ins, kind, size, offsets, lanes)


def _touch_strongly(
    fiber: Fiber, ins: PtxInstruction, form: AccessForm, cta: Cta, offsets: npt.NDArray[np.int64], size: int,
    lanes: int, kind: str, same: Same | None = None,
) -> None:  # fmt: skip
    """Record an access to shared memory; a strong one as an event of its own, which does not race with others."""
    event, ledger = None, cta.cluster.ledger
    if form.strong and ledger.enabled:
        # Lanes of one warp that exchange volatile values rely on their order, which nothing gives.
        event = strong(ledger, fiber, fiber.warp if form.strong == "volatile" else None)
    _touch_shared(fiber, ins, cta, offsets, size, lanes, kind, event, same)
    if event is not None:
        did(ledger, fiber, event)


def _parameters(
    fiber: Fiber, form: AccessForm, addresses: Lanes, lanes: int, ins: PtxInstruction
) -> npt.NDArray[np.uint8]:
    """The bytes [lane, bytes of all elements] of a load from the kernel's parameters."""
    data = np.frombuffer(fiber.machine.launch.parameters, np.uint8)
    places, size = addresses.astype(np.int64) - PARAMETER_BASE, form.bytes * form.count
    last = int(places.max())
    if last + size > len(data):
        raise EmulatorError(f"parameter bytes {last} to {last + size - 1}, of {len(data)}")
    return pieces(data, places, size)


@operation("st", guards=True)
def store(program: Program, ins: PtxInstruction) -> Run:
    """st: one register or a vector of them to consecutive addresses."""
    form = AccessForm(ins)
    if form.space == "const":
        raise ValueError("constant memory cannot be written")
    own = form.space in ("", "local", "param")
    address, lanes_of, after = program.address(ins.operands[0]), taken(program, ins), ins.pc + 1
    sources = program.sources(ins.operands[1], form.kind, True)
    dtype, size = UNSIGNED.get(form.bytes, np.dtype(object)), form.bytes * form.count
    keeps = (1 << 8 * form.bytes) - 1 if _width(program, ins.operands[1], form) > 8 * form.bytes else 0

    def go(fiber: Fiber) -> int | None:
        lanes = lanes_of(fiber)
        if not lanes:
            return after
        active = bool_of(lanes)
        where = address(fiber)
        addresses = lanewise(where, lanes)
        data = np.empty((len(addresses), form.count), dtype=dtype)
        gone: npt.NDArray[np.generic] | None = None
        why = ""
        for at, source in enumerate(sources):
            held: Register = source(fiber)
            if (
                form.bytes <= 8
                and isinstance(held, Undefined)
                and (lost := bits_without(held, 8 * form.bytes)[active]).any()
            ):
                gone = np.zeros_like(data) if gone is None else gone
                gone[:, at], why = lost, str(held)
            value = defined(held)
            column = value[active] if isinstance(value, np.ndarray) else value
            data[:, at] = column & keeps if keeps else column
        raw = bytes_of(data).reshape(len(addresses), size)
        lost_bytes = gone.view(np.uint8).reshape(len(addresses), size) != 0 if gone is not None else None
        memory = own_memory(form.space, where, lanes) if own else ""
        if memory == "param":
            raise EmulatorError(f"{ins.opcode} writes byte {int(addresses[0]) - PARAMETER_BASE} of the parameters")
        if memory:
            store_local(fiber, where, lanes, form.space, raw, lost_bytes)
            return None
        put(fiber, form, addresses, lanes, ins, raw, lost_bytes, why)
        return None

    return _ordering(program, ins, form, go)


def put(
    fiber: Fiber, form: AccessForm, addresses: Lanes, lanes: int, ins: PtxInstruction, raw: npt.NDArray[np.uint8],
    lost: npt.NDArray[np.bool_] | None = None, why: str = "",
) -> None:  # fmt: skip
    """Write the bytes [lane, bytes of all elements] of a store, checked and recorded. `lost`: those without a value."""
    machine, size = fiber.machine, form.bytes * form.count
    _word_by_word(fiber, form, addresses)
    if fiber.cta.cluster.ledger.lanes and (both := conflicting(addresses, raw, form.bytes)) is not None:
        at, rounded = both
        message = f"lanes of one {ins.opcode} write different values to address {at:#x}"
        if rounded:
            message += "; they are floats apart by rounding, and one of them stays"
            message += "" if machine.policy.strict else "; Policy(strict=True) makes this a race"
        machine.problem(
            "lint" if rounded and not machine.policy.strict else "race", message, fiber,
            orders="One lane stores it, or all lanes store the same bits.",
        )  # fmt: skip
    cta, offsets = place(fiber, form.space, addresses)
    if cta is None:
        if lost is not None:
            machine.problem("uninitialised", f"{why}, and it is stored", fiber)
        machine.counts.bytes["global write"] += raw.size

        def holds(meets: Meets) -> bool:
            if lost is not None:
                return False
            at = offsets[:, None] + np.arange(size)
            return bool((machine.launch.memory.read(offsets, size) == raw)[meets(at)].all())

        _touch_global(fiber, ins, offsets, size, lanes, "writes", bool(form.strong), holds)
        count_sectors(fiber, ins, offsets, size)
        if form.strong:
            tell(fiber, form.flag, offsets, lanes, True)
        machine.launch.memory.write(offsets, raw)
        return
    cta.shared.check(offsets, size, ins.opcode)

    def same(meets: Meets) -> bool:
        met = meets(offsets[:, None] + np.arange(size)).reshape(-1, form.bytes).any(axis=1)  # elements
        own = offsets.repeat(form.count)[met] + np.tile(np.arange(0, size, form.bytes), len(offsets))[met]
        if lost is not None or cta.shared.unwritten(own, form.bytes) is not None:
            return False
        held, new = cta.shared.read(own, form.bytes), raw.reshape(-1, form.bytes)[met]
        return bool((held == new).all()) or (not machine.policy.strict and apart_by_rounding(held, new, form.bytes))

    _touch_strongly(fiber, ins, form, cta, offsets, size, lanes, "st.shared", same)
    machine.counts.bytes["shared write"] += raw.size
    if cta is not fiber.cta:
        cta.remote.append((fiber.epoch, said(fiber, ins)(), ins))
    if form.strong:
        tell(fiber, form.flag, offsets + (cta.rank << RANK_SHIFT), lanes, False)
    cta.shared.write(offsets, raw)
    if lost is not None:
        cta.shared.forget(offsets, lost)


# Atomics --------------------------------------------------------------------------------------------------------------


def _integer_update(name: str, kind: str) -> Callable[[int, int, int], int]:
    bits = bits_of(kind)
    mask = (1 << bits) - 1

    def view(x: int) -> int:
        if kind[0] != "s":
            return x
        return int(s64(x) if bits == 64 else s32(x))

    updates: dict[str, Callable[[int, int, int], int]] = {
        "add": lambda old, b, c: old + b,
        "and": lambda old, b, c: old & b,
        "or": lambda old, b, c: old | b,
        "xor": lambda old, b, c: old ^ b,
        "exch": lambda old, b, c: b,
        "cas": lambda old, b, c: c if old == b else old,
        "inc": lambda old, b, c: 0 if old >= b else old + 1,
        "dec": lambda old, b, c: b if old == 0 or old > b else old - 1,
        "min": lambda old, b, c: old if view(old) <= view(b) else b,
        "max": lambda old, b, c: old if view(old) >= view(b) else b,
    }
    update = updates[name]
    return lambda old, b, c: update(old, b, c) & mask


def _float_update(name: str, kind: str) -> Callable[[int, int, int], int]:
    base = dtype(kind.removesuffix("x2"))
    function = BINARY[name]

    def one(old: int, new: int) -> int:
        with np.errstate(all="ignore"):
            value = function(np.float64(decode(old, base)), np.float64(decode(new, base)))
        return int(bits32(value) if kind == "f32" else bits64(value) if kind == "f64" else encode(value, base))

    if not kind.endswith("x2"):
        return lambda old, b, c: one(old, b)
    return lambda old, b, c: one(old & 0xFFFF, b & 0xFFFF) | one(old >> 16, b >> 16) << 16


def updater(name: str, kind: str) -> Callable[[int, int, int], int]:
    """The function of an atomic operation: (old bits, operand, second operand) -> new bits."""
    if name not in ATOMICS:
        raise ValueError(f".{name} is not an atomic operation")
    return _float_update(name, kind) if "f" in kind else _integer_update(name, kind)


ATOMICS = ("add", "and", "or", "xor", "exch", "cas", "inc", "dec", "min", "max")


def _used(program: Program, targets: Sequence[int | None]) -> bool:
    """True if an instruction reads one of these registers: a word whose old value is used is a counter."""
    wanted = sum(1 << one for one in set(targets) if one is not None)
    return any(needed & wanted for needed in program.needs)


@operation("atom", "red", guards=True)
def atomic(program: Program, ins: PtxInstruction) -> Run:
    """atom, red: read, change and write back, in the order of lanes. PTX leaves the order open."""
    form = AccessForm(ins, ATOMICS)
    form.strong = form.strong or "relaxed"
    name = next(word for word in ins.words if word in ATOMICS)
    update = updater(name, form.kind)
    returns = ins.words[0] == "atom"
    targets = program.targets(ins.operands[0], form.kind) if returns else [None] * form.count
    address = program.address(ins.operands[1 if returns else 0])
    operands = ins.operands[2 if returns else 1 : -1 if HINT in ins.words else None]  # the last is a cache policy
    values = [program.sources(operand, form.kind) for operand in operands]
    lanes_of, after = taken(program, ins), ins.pc + 1
    sums = name == "add" and not _used(program, targets)
    if len(values) != (2 if name == "cas" else 1):
        raise ValueError(f"{name} with {len(values)} values")
    for operand in [*ins.operands[: 1 if returns else 0], *operands]:
        if operand.kind != "sink":
            _width(program, operand, form)
    dtype, size = UNSIGNED.get(form.bytes, np.dtype(object)), form.bytes
    held = np.dtype(object if size == 16 else np.uint64 if size == 8 else np.int64)

    def go(fiber: Fiber) -> int | None:
        lanes = lanes_of(fiber)
        if not lanes:
            return after
        machine = fiber.machine
        _word_by_word(fiber, form, where := lanewise(address(fiber), lanes))
        cta, offsets = place(fiber, form.space, where)
        total = size * form.count
        if cta is None:
            _touch_global(fiber, ins, offsets, total, lanes, "adds to" if sums else "changes", True)
            count_sectors(fiber, ins, offsets, total)
        else:
            cta.shared.check(offsets, total, ins.opcode)
            unwritten(fiber, ins, cta, offsets, total, suspect=True)
            _touch_strongly(fiber, ins, form, cta, offsets, total, lanes, "st.shared")
        flags = offsets if cta is None else offsets + (cta.rank << RANK_SHIFT)
        tell(fiber, form.flag, flags, lanes, cta is None)
        if returns:
            learn(fiber, form.flag, flags, lanes, cta is None)
        columns = [[lanewise(source(fiber), lanes).tolist() for source in group] for group in values]
        before = np.zeros((len(offsets), form.count), dtype=dtype)
        memory = machine.launch.memory if cta is None else cta.shared
        apart = len(set(offsets.tolist())) == len(offsets)  # then all lanes are read and written at once
        for some in [range(len(offsets))] if apart else [range(n, n + 1) for n in range(len(offsets))]:
            at = offsets[some.start : some.stop]
            words = elements(memory.read(at, total), size).reshape(-1, form.count).copy()
            before[some.start : some.stop] = words
            for n, row in zip(some, words, strict=True):
                for k in range(form.count):
                    given = [int(group[k][n]) for group in columns] + [0]
                    row[k] = update(int(row[k]), given[0], given[1])
            machine.changes += int((words != before[some.start : some.stop]).any(axis=1).sum())
            memory.write(at, bytes_of(words).reshape(-1, total))
        for k, register in enumerate(targets):
            if register is not None:
                assign(fiber, register, lanes, before[:, k].astype(held))
        return None

    return _ordering(program, ins, form, go)


# What createpolicy gives for the whole of an access; no cache is modelled, and so the bits mean nothing here.
POLICIES = {"L2::evict_first": 0x12F0 << 48, "L2::evict_last": 0x14F0 << 48, "L2::evict_unchanged": 0x16F0 << 48}


@operation("createpolicy")
def create_policy(program: Program, ins: PtxInstruction) -> Run:
    """createpolicy: a cache policy, opaque, of the first priority that is named."""
    kind = ins.words[1]
    if kind not in ("fractional", "range", "cvt"):
        raise ValueError(f".{kind} is not emulated")
    if "global" in ins.words and kind != "range":
        raise ValueError(f"createpolicy.{kind} has no state space")
    if len(ins.operands) > (4 if kind == "range" else 2):
        raise ValueError(f"{ins.opcode} has fewer operands than {len(ins.operands)}")
    target = program.result(ins.operands[0], "u64")
    for operand in ins.operands[1:]:
        if operand.kind == "address":
            program.address(operand)
        else:
            program.value(operand, {"fractional": "f32", "range": "u32", "cvt": "u64"}[kind])
    policy = next((POLICIES[word] for word in ins.words if word in POLICIES), 0x10F0 << 48)

    def go(fiber: Fiber) -> None:
        fiber.registers[target] = policy

    return go


@operation("st.bulk")
def store_zeros(program: Program, ins: PtxInstruction) -> Run:
    """st.bulk: zeros into shared memory of the block, by each lane."""
    known(ins, "bulk", "weak", "shared::cta")
    counted(ins, 3)
    if constant(ins.operands[2]):
        raise ValueError(f"{ins.operands[2].text} is not 0, the only value that st.bulk stores")
    address, count = program.address(ins.operands[0]), program.value(ins.operands[1], "u64")
    space = "shared" if "shared::cta" in ins.words else ""

    def go(fiber: Fiber) -> None:
        for at, size, bit in zip(fiber.each(address(fiber)), fiber.each(count(fiber)).tolist(), lane_bits(fiber.lanes)):
            cta, (offset,) = place(fiber, space, np.array([at]))
            if cta is None:
                raise EmulatorError(f"{ins.opcode} stores to global address {int(at):#x}: it is for shared memory")
            if size % 8 or offset % 8 or offset + size > cta.shared.size:
                raise EmulatorError(f"{ins.opcode} of {size} bytes at {offset:#x}: multiples of 8, inside of the block")
            places, parts = span(int(offset), size), span_parts(int(offset), size)
            fiber.machine.touch(fiber, cta, places, True, said(fiber, ins), parts=parts, by=bit)
            cta.shared.bytes[offset : offset + size] = 0
            cta.shared.written[offset : offset + size] = True

    return go


@operation("mapa", operands=3)
def map_address(program: Program, ins: PtxInstruction) -> Run:
    """mapa: this location in another block of the cluster. For a missing block an unusable address."""
    target, kind = program.result(ins.operands[0], ins.words[-1]), ins.words[-1]
    address, rank = program.value(ins.operands[1], kind), program.value(ins.operands[2], "u32")
    shared = any(word.startswith("shared") for word in ins.words)

    def go(fiber: Fiber) -> None:
        where, to = address(fiber), rank(fiber)
        if not shared:
            where = where - SHARED_WINDOW
        if is_uniform(where) and is_uniform(to):
            found: Value = where & OFFSET | to << RANK_SHIFT
        else:
            found = np.asarray(where).astype(np.int64) & OFFSET | np.asarray(to).astype(np.int64) << RANK_SHIFT
        if not shared:
            found = found + SHARED_WINDOW
            found = found.astype(np.uint64) if isinstance(found, np.ndarray) else found
        fiber.registers[target] = found

    return go


@operation("getctarank", operands=2)
def rank_of(program: Program, ins: PtxInstruction) -> Run:
    """getctarank: the block of a shared address."""
    target, address = program.result(ins.operands[0], "u32"), program.value(ins.operands[1], ins.words[-1])

    def go(fiber: Fiber) -> None:
        where = address(fiber)
        if not any(word.startswith("shared") for word in ins.words):
            where = where - SHARED_WINDOW
        where = where.astype(np.int64) if isinstance(where, np.ndarray) else where
        fiber.registers[target] = where >> RANK_SHIFT

    return go


__getattr__ = old_names(__name__)
