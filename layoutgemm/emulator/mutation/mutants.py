"""Mutants: kernels with one wrong instruction or operand.

A `Mutant` is a kernel with one instruction deleted or one field of one operand changed. The field is of a matrix
descriptor, an instruction descriptor, a coordinate, a byte count, an arrival count, a parity, a mask or an address.
Mutants are made from any PTX: an instruction put before the use changes the operand. So it does not matter how the
kernel computed it. `alterations` changes what the host passes: boxes and swizzles of tensor maps, and the size of
shared memory.

`run.py` runs them. Meaning of the operands: PTX ISA, by the names of the instructions.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ...atoms.tma.rules import MODES, TensorMap
from ...errors import EmulatorError
from ..machine.interpreter import Launch
from ..machine.tensor_map import decode, encode
from ..ptx.codegen import bits_of
from ..ptx.parser import PtxInstruction, PtxKernel, PtxOperand, read_instruction

# Instructions that order others. A deleted test of a phase reports that the phase has ended.
ORDERING = (
    "bar", "barrier", "fence", "membar", "mbarrier.arrive", "mbarrier.expect_tx", "mbarrier.try_wait",
    "mbarrier.test_wait", "mbarrier.init", "cp.async.commit_group", "cp.async.wait_group", "cp.async.wait_all",
    "cp.async.mbarrier", "cp.async.bulk.commit_group", "cp.async.bulk.wait_group", "wgmma.fence", "wgmma.commit_group",
    "wgmma.wait_group", "tcgen05.commit", "tcgen05.wait", "tcgen05.fence", "griddepcontrol",
)  # fmt: skip
SPARE = "%mutant"  # the register that holds a changed operand


@dataclass(frozen=True)
class Mutant:
    """One change.

    kind    "deletion", or what the changed operand is: "descriptor", "coordinate", ...
    place   the instruction, with its line
    change  what is done to it
    edits   pc -> the instructions in place of that one
    alter   what is done to the launch instead
    """

    kind: str
    place: str
    change: str
    edits: tuple[tuple[int, tuple[PtxInstruction, ...]], ...] = ()
    alter: Callable[[Launch], Launch] | None = None

    def __str__(self) -> str:
        return f"{self.kind}: {self.change}, {self.place}"

    def name(self, kernel: PtxKernel) -> str:
        """The opcode, its number among equal opcodes, and the change. Stable while the compiler emits the same."""
        if not self.edits:
            return f"{self.place}: {self.change}"
        ins = kernel.instructions[self.edits[0][0]]
        number = sum(1 for other in kernel.instructions[: ins.pc] if other.opcode == ins.opcode)
        return f"{ins.opcode} #{number}: {self.change}"

    def origins(self, kernel: PtxKernel) -> list[int]:
        """The pc in the original kernel for each pc of the changed kernel."""
        edits, known = dict(self.edits), {id(ins): ins.pc for ins in kernel.instructions}
        return [known.get(id(one), ins.pc) for ins in kernel.instructions for one in edits.get(ins.pc, (ins,))]

    def kernel(self, kernel: PtxKernel) -> PtxKernel:
        """The kernel with the change in it."""
        return edited(kernel, dict(self.edits)) if self.edits else kernel

    def launch(self, launch: Launch) -> Launch:
        """The launch with the change in it."""
        return launch if self.alter is None else self.alter(launch)


def edited(kernel: PtxKernel, edits: dict[int, tuple[PtxInstruction, ...]]) -> PtxKernel:
    """A kernel with other instructions in the place of some: pc -> what stands there. Labels keep their places.

    >>> from layoutgemm.emulator.ptx.parser import parse
    >>> kernel, = parse('.target sm_90\\n.entry k() { .reg .b32 %r<1>; bar.sync 0; L: mov.b32 %r0, 1; bra L; }')
    >>> after = edited(kernel, {0: ()})
    >>> [i.text for i in after.instructions], after.labels
    (['mov.b32 %r0, 1', 'bra L'], {'L': 0})
    """
    instructions: list[PtxInstruction] = []
    place = {}
    for ins in kernel.instructions:
        place[ins.pc] = len(instructions)
        for one in edits.get(ins.pc, (ins,)):
            pc = len(instructions)
            instructions.append(one if one.pc == pc else dataclasses.replace(one, pc=pc))
    place[len(kernel.instructions)] = len(instructions)
    registers = dict(kernel.registers)
    for made in edits.values():
        for one in made:
            for operand in one.operands:
                if operand.text.startswith(SPARE):
                    registers[operand.text] = f"b{operand.text.removeprefix(SPARE)}"
    labels = {name: place[pc] for name, pc in kernel.labels.items()}
    return dataclasses.replace(kernel, instructions=instructions, labels=labels, registers=registers)


# Deletions ------------------------------------------------------------------------------------------------------------


def deletions(kernel: PtxKernel, names: tuple[str, ...] = ORDERING) -> Iterator[Mutant]:
    """One mutant for each instruction whose opcode begins with one of these names."""
    for ins in kernel.instructions:
        if not any(ins.opcode == name or ins.opcode.startswith(name + ".") for name in names):
            continue
        instead: tuple[PtxInstruction, ...] = ()
        target = ins.operands[0] if ins.operands else None
        if target is not None and target.kind == "reg" and ins.words[0] == "mbarrier":
            text = f"setp.eq.b32 {target.text}, 0, 0" if "wait" in ins.opcode else f"mov.b64 {target.text}, 0"
            instead = (_made(kernel, ins, text),)
        yield Mutant("deletion", str(ins), "deleted", ((ins.pc, instead),))


def _made(kernel: PtxKernel, ins: PtxInstruction, text: str) -> PtxInstruction:
    """An instruction for the place of another, under its predicate."""
    made = read_instruction(kernel, text, ins.line, ins.source)
    return dataclasses.replace(made, predicate=ins.predicate, negated=ins.negated, text=f"{text} (in: {ins.text})")


# Fields of operands ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """A change of an operand's value: `operation` with `amount`, "add", "xor" or "mov"."""

    name: str
    operation: str
    amount: int


def _flips(prefix: str, **bits: int) -> tuple[Change, ...]:
    return tuple(Change(f"{prefix}{name.replace('_', ' ')}", "xor", 1 << at) for name, at in bits.items())


# Bits of the shared-memory descriptors: PTX ISA, "Matrix Descriptor Format" of wgmma and of tcgen05.
WGMMA_DESCRIPTOR = _flips(
    "", address_16=0, address_32=1, address_1024=6, leading_offset=16, leading_offset_1024=22, stride_offset=32,
    stride_offset_1024=38, base_offset=49, reserved_46=46, swizzle_low=62, swizzle_high=63,
)  # fmt: skip
TCGEN05_DESCRIPTOR = _flips(
    "", address_16=0, address_32=1, address_1024=6, leading_offset=16, stride_offset=32, stride_offset_1024=38,
    version=46, base_offset=49, swizzle_low=61, swizzle_middle=62, swizzle_high=63,
)  # fmt: skip
# PTX ISA, "Instruction descriptor" of tcgen05, without and with block scales.
INSTRUCTION = _flips(
    "", d_format=4, a_format=7, b_format=10, negate_a=13, negate_b=14, a_major=15, b_major=16, n=17, n_64=20, m=27,
    m_64=26,
)  # fmt: skip
BLOCK_SCALED_INSTRUCTION = _flips(
    "", b_scale_id=4, a_format=7, b_format=10, negate_a=13, a_major=15, b_major=16, n=17, scale_format=23, m=27,
    a_scale_id=29,
)  # fmt: skip
ADDRESS = (Change("16 bytes further", "add", 16), Change("bit 4 flipped", "xor", 16), Change("128 on", "add", 128))
COORDINATE = (Change("8 further", "add", 8), Change("8 before", "add", -8), Change("zero", "mov", 0))
BYTES = (Change("16 more", "add", 16), Change("16 fewer", "add", -16), Change("128 fewer", "add", -128))
COUNT = (Change("one more", "add", 1), Change("one fewer", "add", -1))
PARITY = (Change("flipped", "xor", 1),)
MASK = (Change("bit 0 flipped", "xor", 1), Change("bit 1 flipped", "xor", 2))
COLUMN = (Change("one column on", "add", 1), Change("32 columns on", "add", 32), Change("16 lanes on", "add", 1 << 20))


@dataclass(frozen=True)
class Site:
    """An operand that may be changed. A path of indices into the operands and their parts."""

    kind: str
    name: str
    path: tuple[int, ...]
    changes: tuple[Change, ...]
    bits: int = 32


def _descriptor(name: str, at: int, fields: tuple[Change, ...] = TCGEN05_DESCRIPTOR) -> Site:
    return Site("descriptor", name, (at,), fields, 64)


NEXT = (Change("the next one", "add", 8),)
# The beginning of an opcode, as a pattern -> operands that decide which bytes it touches, where it has them.
SITES: tuple[tuple[str, tuple[Site, ...]], ...] = (
    (r"wgmma\.mma_async", (_descriptor("of A", 1, WGMMA_DESCRIPTOR), _descriptor("of B", 2, WGMMA_DESCRIPTOR))),
    (r"tcgen05\.mma", (_descriptor("of A", 1), _descriptor("of B", 2))),
    (r"tcgen05\.mma(?!.*block_scale)", (Site("instruction", "descriptor", (3,), INSTRUCTION),)),
    (r"tcgen05\.mma.*block_scale", (Site("instruction", "descriptor", (3,), BLOCK_SCALED_INSTRUCTION),)),
    (r"tcgen05\.mma", (Site("column", "of D", (0, 0), COLUMN[:2]),)),
    (r"tcgen05\.mma.*block_scale", (Site("column", "of the scales of A", (4, 0), COLUMN[:1]),)),
    (r"tcgen05\.mma.*block_scale", (Site("column", "of the scales of B", (5, 0), COLUMN[:1]),)),
    (r"tcgen05\.cp", (Site("column", "of the target", (0, 0), COLUMN[:2]), _descriptor("of the source", 1))),
    (r"tcgen05\.(shift|st)", (Site("column", "", (0, 0), COLUMN),)),
    (r"tcgen05\.ld", (Site("column", "", (1, 0), COLUMN),)),
    (r"tcgen05\.commit", (Site("barrier", "", (0, 0), NEXT),)),
    (r"tcgen05\.commit.*multicast::cluster", (Site("mask", "of blocks", (1,), MASK),)),
    (r"stmatrix", (Site("matrix address", "", (0, 0), ADDRESS),)),
    (r"ldmatrix", (Site("matrix address", "", (1, 0), ADDRESS),)),
    (r"mbarrier\.init", (Site("count", "of arrivals", (1,), COUNT),)),
    (r"mbarrier\.arrive", (Site("barrier", "", (0, 0), NEXT), Site("barrier", "", (1, 0), NEXT))),
    (r"mbarrier\.arrive.*expect_tx", (Site("bytes", "expected", (1,), BYTES), Site("bytes", "expected", (2,), BYTES))),
    (r"mbarrier\.(try|test)_wait", (Site("parity", "", (2,), PARITY), Site("barrier", "", (1, 0), NEXT))),
    (r"cp\.async\.c", (Site("shared address", "", (0, 0), ADDRESS[:2]),)),
    (r"cp\.async\.c", (Site("bytes", "copied", (3,), (Change("all", "mov", 16),)),)),
    (r"ld\.(.*\.)?shared", (Site("shared address", "", (1, 0), (Change("16 bytes on", "add", 16),)),)),
    (r"st\.(.*\.)?shared", (Site("shared address", "", (0, 0), (Change("16 bytes on", "add", 16),)),)),
    (r"mapa", (Site("rank", "", (2,), (Change("of the neighbour", "xor", 1),)),)),
)


def sites(ins: PtxInstruction) -> list[Site]:
    """The operands of an instruction that decide which bytes it touches, with their changes."""
    if ins.opcode.startswith("cp.async.bulk.tensor"):
        return _bulk_sites(ins)
    found = [site for opcode, own in SITES if re.match(opcode, ins.opcode) for site in own]
    return [site for site in found if _operand(ins, site) is not None]


def _bulk_sites(ins: PtxInstruction) -> list[Site]:
    """cp.async.bulk.tensor: [dst], [map, {x, y}], [mbar], mask, policy; stores: [map, {x, y}], [src]."""
    loads = ins.words[5].startswith("shared") and "prefetch" not in ins.words  # words[4] is the rank, "2d"
    at = 1 if loads else 0
    count = len(ins.operands[at].parts) - 1
    found = [Site("coordinate", f"{i}", (at, 1 + i), COORDINATE) for i in range(count)]
    if "prefetch" in ins.words:
        return []
    address = (Change("128 bytes on", "add", 128), Change("1024 bytes on", "add", 1024))
    found.append(Site("shared address", "", (0 if loads else 1, 0), address))
    if "multicast::cluster" in ins.words:
        found.append(Site("mask", "of blocks", (3,), MASK))
    return found


def _replaced(operands: tuple[PtxOperand, ...], path: tuple[int, ...], new: PtxOperand) -> tuple[PtxOperand, ...]:
    at, *rest = path
    if rest:
        old = operands[at]
        parts = _replaced(old.parts, tuple(rest), new)
        inside = ", ".join(part.text for part in parts[1:])
        plus = f"+{old.offset}" if old.offset else ""
        new = old._replace(parts=parts, text=f"[{parts[0].text}{plus}{', {' + inside + '}' if inside else ''}]")
    return (*operands[:at], new, *operands[at + 1 :])


def _operand(ins: PtxInstruction, site: Site) -> PtxOperand | None:
    """The operand of a site, if the instruction has such a value there."""
    operands, found = ins.operands, None
    for at in site.path:
        if at >= len(operands):
            return None
        found, operands = operands[at], operands[at].parts
    return found if found is not None and found.kind in ("reg", "number", "symbol") else None


def changed(kernel: PtxKernel, ins: PtxInstruction, site: Site, change: Change) -> Mutant | None:
    """The mutant with one operand changed; None where the instruction has no such operand."""
    operand = _operand(ins, site)
    if operand is None:
        return None
    bits = bits_of(kernel.registers[operand.text]) if operand.kind == "reg" else site.bits
    register = PtxOperand("reg", f"{SPARE}{bits}")
    source = "" if change.operation == "mov" else f"{operand.text}, "
    text = f"{change.operation}.{'u' if change.operation == 'add' else 'b'}{bits} {register.text}, {source}"
    spared = dataclasses.replace(kernel, registers={**kernel.registers, register.text: f"b{bits}"})
    before = _made(spared, ins, f"{text}{change.amount}")
    after = dataclasses.replace(ins, operands=_replaced(ins.operands, site.path, register))
    name = f"{site.name} {change.name}".strip()
    return Mutant(site.kind, str(ins), name, ((ins.pc, (before, after)),))


def fields(kernel: PtxKernel) -> Iterator[Mutant]:
    """One mutant for each operand change, and for each flag, count and elected lane."""
    for ins in kernel.instructions:
        for site in sites(ins):
            for change in site.changes:
                mutant = changed(kernel, ins, site, change)
                if mutant is not None:
                    yield mutant
        yield from _others(kernel, ins)


def _others(kernel: PtxKernel, ins: PtxInstruction) -> Iterator[Mutant]:
    """Changes that need no inserted instruction: numbers, predicates and the order of registers."""

    def with_operands(kind: str, change: str, operands: tuple[PtxOperand, ...]) -> Mutant:
        return Mutant(kind, str(ins), change, ((ins.pc, (dataclasses.replace(ins, operands=operands),)),))

    def renumbered(at: int, number: int) -> tuple[PtxOperand, ...]:
        return (*ins.operands[:at], PtxOperand("number", str(number)), *ins.operands[at + 1 :])

    op, operands = ins.opcode, ins.operands
    if op.startswith("elect.sync"):
        lane, predicate = operands[0].parts
        texts = [f"setp.eq.b32 {predicate.text}, 0, 0"]
        texts += [f"mov.b32 {lane.text}, 0"] if lane.kind == "reg" else []
        made = tuple(_made(kernel, ins, text) for text in texts)
        yield Mutant("elect", str(ins), "every lane", ((ins.pc, made),))
    elif op.startswith("wgmma.mma_async"):
        names = ("scale of A", "scale of B", "transposition of A", "transposition of B")
        for at, name in zip(range(len(operands) - 1, 3, -1), reversed(names[: len(operands) - 4]), strict=False):
            number = int(operands[at].text)
            yield with_operands("flag", f"{name} the other", renumbered(at, -number if "scale" in name else 1 - number))
    elif op.startswith(("wgmma.wait_group", "cp.async.wait_group", "cp.async.bulk.wait_group")):
        yield with_operands("group", "one more may be pending", renumbered(0, int(operands[0].text) + 1))
    elif ins.words[0] in ("bar", "barrier") and len(operands) > 1 and operands[1].kind == "number":
        for by in (32, -32):
            yield with_operands("count", f"of threads {by:+d}", renumbered(1, int(operands[1].text) + by))
    elif op.startswith(("stmatrix", "st.shared.v")) and len(operands[1].parts) > 1:
        parts = operands[1].parts
        if parts[0].text == parts[1].text:
            return
        swapped = operands[1]._replace(parts=(parts[1], parts[0], *parts[2:]))
        yield with_operands("registers", "the first two swapped", (operands[0], swapped))


# What the host passes -------------------------------------------------------------------------------------------------

Codec = tuple[Callable[[bytes], tuple[TensorMap, int]], Callable[[TensorMap, int], bytes]]


def alterations(kernel: PtxKernel, launch: Launch, codec: Codec | None = None) -> Iterator[Mutant]:
    """One mutant for each tensor map change and one with less shared memory. `codec` is decode, encode."""
    if codec is None:
        codec = (decode, encode)
    for parameter in kernel.parameters:
        if parameter.size != 128:
            continue
        try:
            tmap, address = codec[0](launch.parameters[parameter.offset : parameter.offset + 128])
        except EmulatorError:
            continue
        for name, change in _maps(tmap):
            try:
                codec[1](change(tmap), address)
            except EmulatorError:  # no driver would accept it
                continue
            yield Mutant("tensor map", f"parameter {parameter.name}", name, (), _with(parameter.offset, change, codec))
    if launch.dynamic_shared:
        less = launch.dynamic_shared - 1024

        def smaller(launch: Launch) -> Launch:
            return dataclasses.replace(launch, dynamic_shared=less)

        yield Mutant("launch", "dynamic shared memory", "1024 bytes fewer", (), smaller)


def _with(offset: int, change: Callable[[TensorMap], TensorMap], codec: Codec) -> Callable[[Launch], Launch]:
    """A function that changes the tensor map at an offset of any launch."""

    def alter(launch: Launch) -> Launch:
        tmap, address = codec[0](launch.parameters[offset : offset + 128])
        content = codec[1](change(tmap), address)
        parameters = launch.parameters[:offset] + content + launch.parameters[offset + len(content) :]
        return dataclasses.replace(launch, parameters=parameters)

    return alter


def _maps(tmap: TensorMap) -> Iterator[tuple[str, Callable[[TensorMap], TensorMap]]]:
    """Changes of one field of a tensor map, by name."""

    def at(field: str, i: int, change: Callable[[int], int]) -> Callable[[TensorMap], TensorMap]:
        def changed(tmap: TensorMap) -> TensorMap:
            values = getattr(tmap, field)
            instead: dict[str, Any] = {field: (*values[:i], change(values[i]), *values[i + 1 :])}
            return dataclasses.replace(tmap, **instead)

        return changed

    def swizzled(mode: str) -> Callable[[TensorMap], TensorMap]:
        return lambda tmap: dataclasses.replace(tmap, swizzle=mode)

    for swizzle in MODES:
        if swizzle != tmap.swizzle:
            yield f"swizzle {swizzle}", swizzled(swizzle)
    for i, extent in enumerate(tmap.box):
        if extent >= 2:
            yield f"box {i} of half the extent", at("box", i, lambda extent: extent // 2)
        if 2 * extent <= 256:
            yield f"box {i} of twice the extent", at("box", i, lambda extent: 2 * extent)
    for i in range(len(tmap.strides)):
        yield f"stride {i} 16 bytes more", at("strides", i, lambda stride: stride + 16)
    for i, extent in enumerate(tmap.extents):
        if extent > 1:
            yield f"extent {i} one less", at("extents", i, lambda extent: extent - 1)
