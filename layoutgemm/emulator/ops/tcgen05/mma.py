"""Blackwell's matrix product: tcgen05.mma, dense, sparse (.sp) and weight-stationary (.ws), of every kind.

The library's own table (`atoms/smem/instruction_descriptor.py`) decodes the instruction descriptor. Its fields make an
atom (`atoms/mma/tcgen05.py`), which gives the place of accumulators, A and scale factors in tensor memory. Operands in
shared memory are read by their descriptors; a pair of blocks uses the same word in each. PTX ISA, "tcgen05.mma".

Rounding is that of `operands.accumulate`; block-scaled products are summed in float64 and rounded to float32 once. Two
choices here are open in PTX. The upper half of a word that holds an f16 accumulator does not change. Bits 30 and 31 of
a scale factor's address, if set, must repeat the identifier of the instruction descriptor, as in CUTLASS.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import numpy.typing as npt

from ....atoms.mma.tcgen05 import KINDS, Tcgen05Atom, tcgen05_mma
from ....atoms.smem.instruction_descriptor import InstructionDescriptor
from ....atoms.tmem.layout import LANES, WARP_LANES, container_bits, scale_factors
from ....errors import AtomError, DescriptorError, EmulatorError
from ...machine.interpreter import Cta, Fiber
from ...ptx.parser import PtxInstruction, PtxOperand
from ...ptx.program import Program, Reader, Run
from ...ptx.values import M32
from ...races.happens_before import MemoryEvent
from ..memory import said
from ..mma.operands import (
    NEW_SUMS,
    UNWRITTEN,
    Matrix,
    OperandChunks,
    SharedOperandRead,
    accumulate,
    fetch,
    reading,
    shared_read,
)
from ..mma.sparse import dense
from ..registry import operation
from ..swizzles import OnFinding
from .allocation import GROUPS, group_size
from .copy import low_bit
from .shift import ALL, shift_rows
from .sparse import meanings, metadata_column
from .tmem import TmemCoordinates, coordinate, engine_of, group_of, one_thread, tensor_of, touch

# Hints to keep an operand in the collector buffer, without an effect on results.
COLLECTORS = tuple(
    f"collector::{buffer}::{use}"
    for buffer in ("a", "b0", "b1", "b2", "b3")
    for use in ("fill", "use", "lastuse", "discard")
)
VECTORS = ("scale_vec::1X", "scale_vec::2X", "scale_vec::4X", "block16", "block32")


@dataclass(frozen=True, eq=False)
class Tcgen05Operation:
    """A tcgen05.mma as decoded from its opcode and its descriptor.

    d        [row, column] of one block's accumulator
    read_a   each block's read of A in shared memory, or None
    a        [row, k, copy] of one block's A in tensor memory, or None
    scales   [row, factor, copy] of A's and B's scale factors, or None
    metadata  [row, group of K, copy] of a sparse A's metadata, or None
    """

    atom: Tcgen05Atom
    says: InstructionDescriptor
    d: TmemCoordinates
    read_a: SharedOperandRead | None
    read_b: SharedOperandRead
    a: TmemCoordinates | None
    scales: tuple[TmemCoordinates, TmemCoordinates] | None
    metadata: TmemCoordinates | None

    @property
    def parts(self) -> int:
        """Parts of N that different lanes multiply, each with its own copy of A."""
        return self.atom.datapath.parts

    @cached_property
    def sign(self) -> int:
        """-1 if exactly one of A and B is negated, else 1."""
        return -1 if self.says.negate_a != self.says.negate_b else 1


@dataclass(frozen=True)
class MmaWords:
    """The words of an opcode.

    vector   the scale vector's word, "" where there is none
    shifts   .ashift
    """

    kind: str
    ws: bool
    sparse: bool
    vector: str
    shifts: bool


@cache
def _form(form: MmaWords, word: int, group: int, a_source: str) -> Tcgen05Operation:
    """The decoded operation. Raises DescriptorError and AtomError for words without an instruction."""
    says = InstructionDescriptor.decode(word, form.kind)
    if says.sparse != form.sparse:
        a, is_not = ("sparse", "is not") if says.sparse else ("dense", "is")
        raise DescriptorError(f"{word:#x} says that A is {a}; the instruction {is_not} tcgen05.mma.sp")
    depth, per_scale, vector = says.k, None, form.vector
    if vector.startswith("scale_vec"):
        per_scale = depth // (2 if form.sparse else 1) // int(vector[-2])
    elif vector:
        per_scale = int(vector.removeprefix("block"))
    atom = tcgen05_mma(
        form.kind, says.m, says.n, says.a, says.b, says.d, group, a_source, says.scale, per_scale,
        depth if says.k_96 else None, form.ws, form.sparse,
    )  # fmt: skip

    in_smem = a_source == "smem"
    scales = None
    if atom.scale is not None:
        count = depth // atom.scale.vector
        scales = (_scales(atom, "A", says.scale_a_id, count), _scales(atom, "B", says.scale_b_id, count))
    return Tcgen05Operation(
        atom,
        says,
        TmemCoordinates.of(atom.accumulator.layout).select(slice(None), slice(None), 0),
        shared_read(atom, "A", says.a_major) if in_smem else None,
        shared_read(atom, "B", says.b_major),
        None if in_smem else TmemCoordinates.of(atom.operand_a.layout),
        scales,
        TmemCoordinates.of(atom.metadata.layout) if form.sparse else None,
    )


def _scales(atom: Tcgen05Atom, operand: str, first: int, count: int) -> TmemCoordinates:
    """[row, factor, copy] of the factors that begin at byte `first` of their words."""
    assert atom.scale is not None
    m, n, _ = atom.shape_mnk
    halves = atom.datapath.parts if operand == "B" else 1
    rows = m // atom.cta_group if operand == "A" else n
    padded = rows if operand == "A" else -(-n // (32 * halves)) * 32 * halves
    layout = scale_factors(padded, -(-(first + count) // 4) * 4, atom.scale.dtype, halves).layout
    return TmemCoordinates.of(layout).select(slice(rows), slice(first, first + count))


@dataclass(frozen=True, eq=False)
class IssuedTcgen05:
    """One issued product: its operands and the use of its accumulator.

    a, b      descriptors' readings; for A or its address in tensor memory, `a_at`
    d         address of the accumulator
    scales    addresses of the scale factors; metadata: of a sparse A's
    adds      True: the accumulator is added, times `factor`
    disabled  for each block, lanes whose accumulators do not change
    shifts    True: A's rows move by one afterwards (.ashift)
    """

    form: Tcgen05Operation
    blocks: list[Cta]
    a: tuple[OperandChunks, int] | None
    a_at: tuple[int, int]
    b: tuple[OperandChunks, int]
    d: tuple[int, int]
    scales: tuple[tuple[int, int], ...]
    metadata: tuple[int, int]
    adds: bool
    factor: float
    disabled: npt.NDArray[np.bool_] | None
    shifts: bool
    report: OnFinding


@operation("tcgen05.mma")
def product(program: Program, ins: PtxInstruction) -> Run:
    """tcgen05.mma: D = A*B + D, or A*B, into tensor memory. One thread issues it for its block or a pair.

    Operands: [D], A's descriptor or [A], B's descriptor, the instruction descriptor; with block scales [A's], [B's];
    otherwise optionally the disabled lanes; enable-input-d; optionally scale-input-d, or for .ws a zero-column mask.
    .sp has [A's metadata] before the instruction descriptor.
    `.collector` words have no effect; .ashift moves A's rows afterwards (`emulator/ops/tcgen05/shift.py`); a mask that
    zeroes or shifts columns is refused.
    """
    words = _words(ins)
    size = group_size(ins)
    target, first, second, *rest = ins.operands
    a_source = "tmem" if first.kind == "address" else "smem"
    if words.shifts and a_source == "smem":
        raise ValueError(".ashift moves the rows of an A in tensor memory")
    metadata_at = program.address(rest.pop(0), "u32") if words.sparse else None
    says = program.value(rest.pop(0), "u32")
    scale_at = [program.address(rest.pop(0), "u32") for _ in range(2)] if KINDS[words.kind].scales else []
    disable = _disabled(program, rest, size, bool(scale_at) or words.ws)
    adds = program.value(rest.pop(0), "pred")
    mask = program.value(rest.pop(0), "u64") if words.ws and rest else None
    factor = _factor(rest.pop(0), words.kind) if rest and not words.ws else 1.0
    if rest:
        raise ValueError("operands after the last one that is known")
    d_at, b_word = program.address(target, "u32"), program.value(second, "u64")
    a_at = program.address(first, "u32") if a_source == "tmem" else program.value(first, "u64")

    def go(fiber: Fiber) -> None:
        one_thread(fiber)
        if mask is not None:
            _hold_no_mask(fiber.one(mask(fiber)))
        machine, blocks = fiber.machine, group_of(fiber, size)

        def report(kind: str, message: str, orders: str = "") -> None:
            machine.problem(kind, message, fiber, ins, kind == UNWRITTEN, orders)

        form = _decoded(words, fiber.one(says(fiber)), size, a_source, report)
        a = fiber.one(a_at(fiber))
        disabled = None if disable is None else np.array([fiber.one(part(fiber)) for part in disable])
        lane, column = (0, 0) if metadata_at is None else coordinate(fiber.one(metadata_at(fiber)))
        job = IssuedTcgen05(
            form,
            blocks,
            None if form.read_a is None else reading(a, form.read_a, fiber, report),
            coordinate(a) if form.read_a is None else (0, 0),
            reading(fiber.one(b_word(fiber)), form.read_b, fiber, report),
            coordinate(fiber.one(d_at(fiber))),
            _scale_addresses(form, [fiber.one(at(fiber)) for at in scale_at], report),
            (lane, metadata_column(form.atom, column, form.says.sparsity_selector)),
            bool(fiber.one(adds(fiber))),
            factor,
            None if disabled is None else (disabled[:, None] >> np.arange(32) & 1).astype(bool).reshape(size, LANES),
            words.shifts,
            report,
        )
        _record(fiber, ins, job)
        engine_of(fiber).add(fiber, lambda: _run(job))

    return go


def _decoded(words: MmaWords, word: int, size: int, a_source: str, report: OnFinding) -> Tcgen05Operation:
    """The operation of an opcode and an instruction descriptor. Raises EmulatorError for words without one."""
    try:
        form = _form(words, _without_version(word, words.kind, report), size, a_source)
    except (DescriptorError, AtomError) as error:
        report("descriptor", str(error))
        raise EmulatorError(str(error)) from error
    if words.shifts and form.atom.shape_mnk[0] not in (128, 256):
        raise EmulatorError(f".ashift is for M = 128 or 256, not {form.atom.shape_mnk[0]}")
    return form


def _disabled(program: Program, rest: list[PtxOperand], size: int, never: bool) -> list[Reader] | None:
    """Take the vector of disabled lanes off the operands, or None without one."""
    if not rest or rest[0].kind != "vector":
        return None
    disable = program.sources(rest.pop(0), "b32")
    if never or len(disable) != LANES // 32 * size:
        raise ValueError(f"disable-output-lane is a vector of {LANES // 32 * size}, and of the plain form alone")
    return disable


# In the kinds of E2M1 alone, bit 12 is reserved in PTX; NVIDIA/cutlass, cute/arch/mma_sm100_desc.hpp, keeps a version
# of the sparsity format there, which sm_100 does not read.
SPARSITY_VERSION = 1 << 12


def _without_version(word: int, kind: str, report: OnFinding) -> int:
    """The instruction descriptor without its sparsity version, a set one noted."""
    if kind not in ("mxf4", "mxf4nvf4") or not word & SPARSITY_VERSION:
        return word
    text = f"instruction descriptor {word:#x} sets bit 12, the sparsity version, which kind::{kind} reserves"
    report("lint", text, "Leave bit 12 of the instruction descriptor 0.")
    return word & ~SPARSITY_VERSION


def _words(ins: PtxInstruction) -> MmaWords:
    """The words of the opcode. Raises ValueError for unknown ones."""
    words = list(ins.words[2:])
    ws = words[:1] == ["ws"]
    words = words[ws:]
    sparse = words[:1] == ["sp"]
    words = words[sparse:]
    kinds = [word.removeprefix("kind::") for word in words if word.startswith("kind::")]
    if len(kinds) != 1 or kinds[0] not in KINDS:
        raise ValueError(f"its kind is one of {', '.join(KINDS)}")
    kind, scaled = kinds[0], bool(KINDS[kinds[0]].scales)
    vectors = [word for word in words if word in VECTORS]
    if scaled != ("block_scale" in words) or len(vectors) > scaled:
        raise ValueError(f"kind::{kind} {'has' if scaled else 'has no'} .block_scale")
    shifts = "ashift" in words
    if shifts:
        words.remove("ashift")
        if ws or scaled or {"collector::a::fill", "collector::a::use"} & set(words):
            raise ValueError(".ashift is of the plain form, and without .collector::a::fill and ::use")
    for word in words:
        if word not in (*GROUPS, *COLLECTORS, *vectors, f"kind::{kind}", "block_scale"):
            raise ValueError(f".{word} is not emulated")
    if kind == "mxf4nvf4" and not vectors:
        raise ValueError("kind::mxf4nvf4 says how many elements share a scale factor")
    return MmaWords(kind, ws, sparse, vectors[0] if vectors else "", shifts)


# Of a zero-column mask descriptor: bit 39 has the mask generated, bits 56 to 61 shift columns. PTX ISA, "Zero-Column
# Mask Descriptor". Without the two, no column of B is zeroed.
MASK_BITS = 1 << 39 | 0x3F << 56


def _hold_no_mask(word: int) -> None:
    """Raise EmulatorError for a zero-column mask that changes the product."""
    if word & MASK_BITS:
        raise EmulatorError(f"the zero-column mask {word:#x} zeroes or shifts columns of B, which is not emulated")


def _factor(operand: PtxOperand, kind: str) -> float:
    """scale-input-d s: the accumulator is multiplied by 2**-s."""
    if operand.kind != "number" or kind not in ("f16", "tf32"):
        raise ValueError("after enable-input-d comes scale-input-d, a number, of kind::f16 and kind::tf32 alone")
    shift = int(operand.text, 0)
    if not 0 <= shift <= 15:
        raise ValueError(f"scale-input-d is 0..15, not {shift}")
    return 2.0**-shift


def _scale_addresses(form: Tcgen05Operation, addresses: list[int], report: OnFinding) -> tuple[tuple[int, int], ...]:
    found = []
    for address, which in zip(addresses, (form.says.scale_a_id, form.says.scale_b_id)):
        if address >> 30 not in (0, which):
            report(
                "descriptor",
                f"the address {address:#x} of scale factors says byte {address >> 30} of a word, the instruction "
                f"descriptor {which}",
            )
        found.append(coordinate(address & M32 >> 2))
    return tuple(found)


def _record(fiber: Fiber, ins: PtxInstruction, job: IssuedTcgen05) -> None:
    """Check the product's accesses in every block, and record them as one event."""
    form, machine = job.form, fiber.machine
    event, what = engine_of(fiber).event(fiber, ins), said(fiber, ins)
    tensors = [(form.d, job.d, True)]
    if form.a is not None:
        tensors.append((form.a, job.a_at, False))
        if job.shifts:
            tensors.append((ALL, job.a_at, True))
    if form.metadata is not None:
        tensors.append((form.metadata, job.metadata, False))
    if form.scales is not None:
        tensors += [(places, at, False) for places, at in zip(form.scales, job.scales, strict=True)]
    for cta in job.blocks:
        for operand in (job.a, job.b):
            if operand is not None:
                _touch_shared(fiber, cta, operand, what, event)
        for places, (lane, column), writes in tensors:
            tensor_of(cta).check(fiber, lane, column, places.lanes, places.columns)
            if machine.policy.races:
                touch(fiber, cta, places.places(lane, column), writes, what, event)


def _touch_shared(
    fiber: Fiber, cta: Cta, operand: tuple[OperandChunks, int], what: Callable[[], str], event: MemoryEvent
) -> None:
    found, first = operand
    fiber.machine.counts.bytes["shared read by tcgen05.mma"] += found.chunks.size * 16
    if fiber.machine.policy.races:
        fiber.machine.touch(fiber, cta, found.places << first, False, what, event, True)


# Arithmetic -----------------------------------------------------------------------------------------------------------


def _run(job: IssuedTcgen05) -> None:
    """Multiply each block's own rows of A with all of B."""
    form = job.form
    right = np.vstack([_shared(cta, job.b, job.report) for cta in job.blocks]) * form.sign
    n = right.shape[0]
    for number, cta in enumerate(job.blocks):
        total = _accumulator(cta, job)
        found = np.empty_like(total)
        for part in range(form.parts):
            columns = slice(part * n // form.parts, (part + 1) * n // form.parts)
            left = _a(cta, job, part) if job.a is None else _shared(cta, job.a, job.report)
            if form.metadata is not None:
                codes = _metadata(cta, job, form.metadata, part)
                left = dense(left, codes, meanings(form.atom), job.report)
            if form.scales is None:
                half = form.atom.c_dtype.bits == 16
                found[:, columns] = accumulate(
                    total[:, columns], left, right[columns], job.adds, half, form.says.saturate
                )
            else:
                found[:, columns] = _scaled(cta, job, left, right, columns) + (total[:, columns] if job.adds else 0)
        _put(cta, job, number, found)
        if job.shifts:
            _, column = job.a_at
            for first in range(0, LANES, WARP_LANES):
                shift_rows(tensor_of(cta), first, column)


def _shared(cta: Cta, operand: tuple[OperandChunks, int], report: OnFinding) -> Matrix:
    found, first = operand
    return fetch(cta, found, first, report)


def _words_at(
    cta: Cta, job: IssuedTcgen05, places: TmemCoordinates, at: tuple[int, int], what: str, orders: str = ""
) -> npt.NDArray[np.uint32]:
    """Words of tensor memory; reports unwritten ones."""
    tensor = tensor_of(cta)
    fresh = places.unwritten(tensor, *at)
    if fresh is not None:
        said = f"{what} at lane {fresh[0]}, column {fresh[1]} of tensor memory was never written"
        job.report(UNWRITTEN, said, orders)
    return places.read(tensor, *at)


def _accumulator(cta: Cta, job: IssuedTcgen05) -> Matrix:
    """The accumulator's values; arbitrary ones of its type if it is not added."""
    form = job.form
    integer = form.atom.c_dtype.kind != "float"
    if not job.adds:
        return np.zeros(form.d.lane.shape, dtype=np.int64 if integer else np.float32)
    words = _words_at(cta, job, form.d, job.d, "the accumulator", NEW_SUMS)
    if integer:
        return np.ascontiguousarray(words).view(np.int32).astype(np.int64)
    values = form.atom.c_dtype.decode(words & 0xFFFF if form.atom.c_dtype.bits == 16 else np.ascontiguousarray(words))
    return values * np.float32(job.factor) if job.factor != 1 else values


def _a(cta: Cta, job: IssuedTcgen05, part: int) -> Matrix:
    """A's values from tensor memory, the copy that these multipliers read."""
    form, places = job.form, job.form.a
    assert places is not None
    own = _copy(places, part)
    words = _words_at(cta, job, own, job.a_at, "operand A")
    element = form.atom.a_dtype
    bits = container_bits(element, form.atom.kind)
    low = low_bit(element) if bits != element.bits else 0
    fields = words >> (own.bit + low).astype(np.uint32) & np.uint32((1 << element.bits) - 1)
    return element.decode(fields).astype(np.float32, copy=False)


def _metadata(cta: Cta, job: IssuedTcgen05, places: TmemCoordinates, part: int) -> npt.NDArray[np.uint32]:
    """Metadata of a sparse A, 4 bits for each [row, group], of one copy."""
    own = _copy(places, part)
    words = _words_at(cta, job, own, job.metadata, "metadata of A")
    return words >> own.bit.astype(np.uint32) & np.uint32(0xF)


@cache
def _copy(places: TmemCoordinates, number: int) -> TmemCoordinates:
    return places.select(slice(None), slice(None), number)


def _factors(cta: Cta, job: IssuedTcgen05, which: int) -> npt.NDArray[np.float64]:
    """Scale factors [row, block]. Every quarter of the lanes needs its copy; reports copies that differ."""
    assert job.form.scales is not None and job.form.atom.scale is not None
    places, at = job.form.scales[which], job.scales[which]
    words = _words_at(cta, job, places, at, f"a scale factor of {'AB'[which]}")
    fields = words >> places.bit.astype(np.uint32) & np.uint32(0xFF)
    if (fields != fields[:, :, :1]).any():
        row, block, copy = (int(axis[0]) for axis in np.nonzero(fields != fields[:, :, :1]))
        job.report(
            "protocol",
            f"scale factor ({row}, {block}) of {'AB'[which]} differs between the quarters of tensor memory: "
            f"{fields[row, block, 0]:#x}, and {fields[row, block, copy]:#x} in copy {copy}",
            "tcgen05.cp with .warpx4 writes all four copies.",
        )
    return job.form.atom.scale.dtype.decode(fields[:, :, 0]).astype(np.float64)


def _scaled(cta: Cta, job: IssuedTcgen05, left: Matrix, right: Matrix, columns: slice) -> npt.NDArray[np.float32]:
    """The product with its block scales."""
    assert job.form.atom.scale is not None
    vector = job.form.atom.scale.vector
    scale_a, scale_b = _factors(cta, job, 0), _factors(cta, job, 1)[columns]
    out = np.zeros((len(left), len(scale_b)))
    with np.errstate(all="ignore"):
        for block in range(scale_a.shape[1]):
            k = slice(block * vector, (block + 1) * vector)
            part = left[:, k].astype(np.float64) @ right[columns, k].T
            out += part * scale_a[:, block, None] * scale_b[None, :, block]
        return out.astype(np.float32)


def _put(cta: Cta, job: IssuedTcgen05, number: int, found: Matrix) -> None:
    """Write the accumulator, without the disabled lanes."""
    form, tensor = job.form, tensor_of(cta)
    kind = form.atom.c_dtype
    if kind.kind != "float":
        words = (found.astype(np.int64) & M32).astype(np.uint32)
    elif kind.bits == 16:
        before = form.d.read(tensor, *job.d)
        with np.errstate(all="ignore"):
            words = before & np.uint32(0xFFFF0000) | kind.encode(found)
    else:
        words = np.ascontiguousarray(found, dtype=np.float32).view(np.uint32)
    kept = None
    if job.disabled is not None:
        kept = job.disabled[number][form.d.lane + job.d[0]]
    form.d.write(tensor, *job.d, words, kept)
