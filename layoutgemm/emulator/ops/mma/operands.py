"""Shared-memory operands of tensor-core instructions: the chunks of a descriptor word, and their values.

A word is read once for each form of the operand. `reading` evaluates the hardware's interpretation (`element_bits`)
with the address reduced to the swizzle's period, and keeps the 16-byte chunks in the order of the operand. Fetching is
then one indexed load. Illegal descriptors are reported: bits outside its fields, and an address whose upper bits (the
block's rank) reach the next field.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ....atoms.mma.base import MmaAtom
from ....atoms.smem.descriptor import SmemDescriptor, element_bits
from ....atoms.smem.descriptor_words import smem_table
from ....atoms.smem.operand_read import operand_read
from ....atoms.smem.tile import CHUNK_BITS, CHUNK_BYTES, slot_bits, slot_to_bit
from ....dtypes import DType
from ....errors import DescriptorError, EmulatorError
from ...machine.interpreter import Cta, Fiber
from ...machine.memory import RANK_SHIFT, CtaSharedMemory
from ...ptx.values import any_of
from ..swizzles import PERIOD, OnFinding, check_operand

CHUNK_SHIFT = CHUNK_BYTES.bit_length() - 1


Matrix: TypeAlias = npt.NDArray[np.float32 | np.int64]
UNWRITTEN = "uninitialised"  # the kind of finding for an operand with uninitialised bytes
NEW_SUMS = "The first product of a tile does not add to its accumulator, or zeros are written before it."


@dataclass(frozen=True)
class SharedOperandRead:
    """The part of one block's shared memory that an operand's read covers.

    rows, depth  elements along M (or N) and along K
    packing      how elements narrower than a byte are stored
    arch         of the descriptor word
    """

    major: str
    rows: int
    depth: int
    dtype: DType
    packing: str
    arch: str


def shared_read(atom: MmaAtom, operand: str, major: str) -> SharedOperandRead:
    """The read of an atom's operand. Raises DescriptorError for a major that the atom does not take."""
    found = operand_read(atom, operand)
    if major not in found.majors:
        raise DescriptorError(f"operand {operand} of {atom} is {' or '.join(found.majors)}-major")
    return SharedOperandRead(major, found.rows, found.depth, found.dtype, found.packing, found.arch)


@dataclass(frozen=True, eq=False)
class OperandChunks:
    """The chunks that a word names, from the last multiple of `PERIOD` before its address.

    chunks   [line, chunk] numbers; a line is a row of a K-major operand, else a k
    first    the lowest of them, and last: the highest
    places   their bit set
    swizzle  the word's mode, "" where its pattern begins elsewhere than at a multiple of `PERIOD`
    """

    read: SharedOperandRead
    chunks: npt.NDArray[np.int64]
    first: int
    last: int
    places: int
    swizzle: str

    def part(self, rows: npt.NDArray[np.int64]) -> int:
        """The bit set of the chunks that hold some of the operand's rows."""
        per_chunk = CHUNK_BITS // slot_bits(self.read.dtype, self.read.packing)
        if self.read.major == "K":
            return bits_of(self.chunks[rows])
        return bits_of(self.chunks[:, np.unique(rows // per_chunk)])


def bits_of(chunks: npt.NDArray[np.int64]) -> int:
    """Numbers as a bit set."""
    flags = np.zeros(int(chunks.max()) + 1, dtype=bool)
    flags[chunks] = True
    return int.from_bytes(np.packbits(flags, bitorder="little").tobytes(), "little")


@cache
def _reading(word: int, read: SharedOperandRead) -> OperandChunks:
    bits = element_bits(word, read.major, (read.rows, read.depth), read.dtype, read.arch, read.packing)
    lines = bits if read.major == "K" else bits.T
    per_chunk = CHUNK_BITS // slot_bits(read.dtype, read.packing)
    whole = -(-lines.shape[1] // per_chunk) * per_chunk
    first = lines[:, ::per_chunk]
    within = np.asarray(slot_to_bit(np.arange(whole) % per_chunk, read.dtype, read.packing))
    expected = np.repeat(first, per_chunk, axis=1)[:, : lines.shape[1]] + within[: lines.shape[1]]
    if (first % CHUNK_BITS).any() or not np.array_equal(expected, lines):
        raise EmulatorError(f"descriptor {word:#x}: elements of one 16-byte chunk do not lie together")
    chunks = np.ascontiguousarray(first // CHUNK_BITS)
    fields = SmemDescriptor.decode(word, read.arch)
    swizzle = "" if fields.base_offset else fields.swizzle_name
    return OperandChunks(read, chunks, int(chunks.min()), int(chunks.max()), bits_of(chunks), swizzle)


@lru_cache(1 << 14)
def _resolved(word: int, read: SharedOperandRead, rank: int) -> tuple[OperandChunks, int, tuple[str, ...]]:
    """(the reading, its first chunk, the errors of the word)."""
    table = smem_table(read.arch)
    stray, problems = table.stray(word), []
    if stray:
        problems.append(f"{word:#x} sets bits {', '.join(map(str, stray))}, outside the {table.name} fields")
    clean = word
    for bit in stray:
        clean &= ~(1 << bit)
    fields = SmemDescriptor.decode(clean, read.arch)
    # The block's rank, the upper bits of a shared::cluster address, is harmless where the hardware ignores the
    # leading offset: no wrong value would show it.
    leading = table.by_name["leading_bytes"].mask
    if rank and read.major == "K" and fields.swizzle_name != "none":
        if (clean & leading) >> RANK_SHIFT - CHUNK_SHIFT == rank:
            problems.append(
                f"{word:#x}: the upper bits of the shared address, the block's rank {rank}, reach leading_bytes: mask "
                "the address to 18 bits"
            )
    base = 0 if fields.leading_mode else fields.address // PERIOD * PERIOD  # the leading address does not move with it
    found = _reading(fields.at(fields.address - base).word, read)
    return found, base // CHUNK_BYTES, tuple(problems)


def reading(word: int, read: SharedOperandRead, fiber: Fiber, report: OnFinding) -> tuple[OperandChunks, int]:
    """The reading of a descriptor word, and its first chunk. Raises EmulatorError for words without one."""
    try:
        found, first, problems = _resolved(word, read, fiber.cta.rank)
    except DescriptorError as error:
        report("descriptor", str(error))
        raise EmulatorError(f"descriptor {word:#x}: {error}") from error
    for problem in problems:
        report("descriptor", problem)
    if (first + found.last + 1) * CHUNK_BYTES > fiber.cta.shared.size:
        raise EmulatorError(
            f"descriptor {word:#x} reaches shared offset {(first + found.last) * CHUNK_BYTES:#x}, of "
            f"{fiber.cta.shared.size:#x} bytes"
        )
    return found, first


_FULL = np.uint64(0x0101010101010101)
# The padding of a chunk need not be written.
_NEEDED = {
    "packed": np.array([_FULL, _FULL]),
    "b4x16_p64": np.array([_FULL, 0], dtype=np.uint64),
    "b6x16_p32": np.array([_FULL, 0x01010101], dtype=np.uint64),
}


def lines(
    cta: Cta, found: OperandChunks, first: int, report: OnFinding, packing: str | None = None
) -> npt.NDArray[np.uint8]:
    """The bytes of the operand's chunks, [line, byte]. Reports unwritten ones, except padding of `packing`."""
    chunks = found.chunks + first if first else found.chunks
    shared, packing = cta.shared, packing or found.read.packing
    if (found, first, packing) not in shared.complete:
        if check_written(shared, chunks, packing, report):
            shared.complete.add((found, first, packing))
    if (shared.boxes or shared.origins) and (found, first) not in shared.compared.reads:
        check_operand(shared, found.swizzle, chunks, report)
        shared.compared.reads.add((found, first))
    return np.asarray(shared.chunks[chunks].view(np.uint8))


def fetch(cta: Cta, found: OperandChunks, first: int, report: OnFinding) -> Matrix:
    """The operand's values, [mn, k]: float32, or integers as float32 (exact). Reports unwritten bytes."""
    read = found.read
    count = read.depth if read.major == "K" else read.rows
    values = numbers(lines(cta, found, first, report), read.dtype, read.packing)[:, :count]
    return values if read.major == "K" else values.T


def check_written(shared: CtaSharedMemory, chunks: npt.NDArray[np.int64], packing: str, report: OnFinding) -> bool:
    """True if every byte of these chunks was written, but for padding. Else report the first one."""
    needed = _NEEDED[packing]
    have = shared.written.view(np.uint64).reshape(-1, 2)[chunks]
    short = (have & needed) != needed
    if any_of(short):
        line = tuple(int(axis[0]) for axis in np.nonzero(short.any(axis=-1)))
        at = int(chunks[line]) * CHUNK_BYTES
        byte = int(np.nonzero(~shared.written[at : at + CHUNK_BYTES])[0][0])
        report(UNWRITTEN, f"it reads shared offset {at + byte:#x}, never written")
        return False
    return True


def numbers(raw: npt.NDArray[np.uint8], dtype: DType, packing: str = "packed") -> npt.NDArray[np.float32]:
    """Bytes [line, byte] -> values [line, element], float32."""
    if dtype.bits >= 8:
        return dtype.decode(np.ascontiguousarray(raw).view(dtype.storage)).astype(np.float32, copy=False)
    return dtype.decode(codes(raw, dtype.bits, packing)).astype(np.float32, copy=False)


def codes(raw: npt.NDArray[np.uint8], bits: int, packing: str) -> npt.NDArray[np.uint8]:
    """Elements narrower than a byte, [line, byte] -> [line, element], lowest bits first."""
    if packing == "b6x16_p32":
        words = raw.reshape(len(raw), -1, CHUNK_BYTES)[:, :, :12].reshape(len(raw), -1, 3).astype(np.uint32)
        joined = words[:, :, 0] | words[:, :, 1] << 8 | words[:, :, 2] << 16
        four = (joined[:, :, None] >> np.arange(0, 24, 6, dtype=np.uint32)) & 63
        return four.reshape(len(raw), -1).astype(np.uint8)
    if packing == "b4x16_p64":
        raw = np.ascontiguousarray(raw.reshape(len(raw), -1, CHUNK_BYTES)[:, :, :8]).reshape(len(raw), -1)
    if bits == 1:
        return np.unpackbits(raw, axis=1, bitorder="little")
    steps = np.arange(0, 8, bits, dtype=np.uint8)
    return np.asarray((raw[:, :, None] >> steps) & ((1 << bits) - 1)).reshape(len(raw), -1)


def products(left: Matrix, right: Matrix) -> npt.NDArray[np.float32]:
    """left * right in their type. Sums of float32 products are made in float64 and rounded once.

    So they depend on no order: a BLAS has another one for each shape, and on each CPU. Products of elements of up to 16
    bits are exact there.

    >>> thirds = np.full((16, 1), 1 / 3, np.float16).astype(np.float32)
    >>> bool(products(thirds.T, thirds).item() == np.float32(16 * float(np.float16(1 / 3)) ** 2))
    True
    """
    both = (left.astype(np.float64, copy=False), right.astype(np.float64, copy=False))
    found: npt.NDArray[np.float32] = np.matmul(*both).astype(left.dtype, copy=False)
    return found


def accumulate(
    total: Matrix, left: Matrix, right: Matrix, adds: bool, half: bool = False, saturates: bool = False
) -> Matrix:
    """left * right^T (+ total). The type is float32, float32 rounded to f16, or i32 (in int64) that wraps or clamps."""
    found = products(left, right.T)
    if total.dtype == np.int64:
        whole = found.astype(np.int64) + (total.astype(np.int64) if adds else 0)
        if saturates:
            return np.asarray(np.clip(whole, -(1 << 31), (1 << 31) - 1))
        return np.asarray((whole + (1 << 31) & 0xFFFFFFFF) - (1 << 31))
    if adds:
        found += total
    return np.asarray(found.astype(np.float16).astype(np.float32) if half else found)
