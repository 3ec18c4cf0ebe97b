"""The 64-bit word by which wgmma finds an operand in shared memory, derived from the operand's layout.

The word holds a start address and two strides; together with the swizzle mode they span a *canonical layout*. `derive`
reads the strides off a tile, and then compares the address that the hardware's arithmetic gives for every element, at
every step along K, with the address that the tile gives. A tile that no word describes is refused with the first
element that lands elsewhere.

Sources: PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout" and "Matrix Descriptor Format";
cute/arch/mma_sm90_desc.hpp for the bit positions, cute/atom/mma_traits_sm90_gmma.hpp for the canonical layouts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..dtypes import DType
from ..errors import DescriptorError
from .mma import MmaAtom
from .smem import ATOM_ROWS, CHUNK_BYTES, SPANS, SmemTile, swizzle_of


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a descriptor word: its bits [low, low + width), and how many low bits of its value are dropped."""

    name: str
    low: int
    width: int
    shift: int
    meaning: str

    def encode(self, value: int) -> int:
        """Value -> its bits in place; raises DescriptorError when the value does not fit or loses bits."""
        if value < 0 or value % (1 << self.shift) or value >> self.shift >= 1 << self.width:
            raise DescriptorError(
                f"{self.name} = {value} does not fit: it must be a multiple of {1 << self.shift} from 0 to "
                f"{((1 << self.width) - 1) << self.shift}"
            )
        return (value >> self.shift) << self.low

    def decode(self, word: int) -> int:
        """Word -> the field's value."""
        return ((word >> self.low) & ((1 << self.width) - 1)) << self.shift


SM90_FIELDS = (
    Field("address", 0, 14, 4, "start address in shared memory, bytes"),
    Field("leading_bytes", 16, 14, 4, "leading dimension byte offset"),
    Field("stride_bytes", 32, 14, 4, "stride dimension byte offset"),
    Field("base_offset", 49, 3, 0, "phase of the swizzle pattern at the start address"),
    Field("swizzle_mode", 62, 2, 0, "0 none, 1 128B, 2 64B, 3 32B"),
)
SM90_MODES = {"none": 0, "128B": 1, "64B": 2, "32B": 3}
# Shared addresses have 18 bits in a descriptor: bits above name the block of the cluster and must not reach a field.
ADDRESS_MASK = (1 << (SM90_FIELDS[0].width + SM90_FIELDS[0].shift)) - 1


@dataclass(frozen=True, slots=True)
class SmemDescriptor:
    """The fields of one sm_90 shared-memory matrix descriptor, in bytes.

    >>> d = SmemDescriptor(swizzle_name="128B", stride_bytes=1024, leading_bytes=16)
    >>> hex(d.word), hex(d.at(0x8400).word)
    ('0x4000004000010000', '0x4000004000010840')
    >>> SmemDescriptor.decode(0x4000004000010840) == d.at(0x8400)
    True
    """

    swizzle_name: str
    stride_bytes: int
    leading_bytes: int
    base_offset: int = 0
    address: int = 0

    def _values(self) -> dict[str, int]:
        return {
            "address": self.address,
            "leading_bytes": self.leading_bytes,
            "stride_bytes": self.stride_bytes,
            "base_offset": self.base_offset,
            "swizzle_mode": SM90_MODES[self.swizzle_name],
        }

    @property
    def word(self) -> int:
        """The 64-bit word; raises DescriptorError when a field does not fit."""
        swizzle_of(self.swizzle_name)
        values = self._values()
        return sum(field.encode(values[field.name]) for field in SM90_FIELDS)

    def at(self, address: int) -> SmemDescriptor:
        """The same descriptor starting at a shared-memory byte address, a multiple of 16 below 2**18."""
        return replace(self, address=address)

    @classmethod
    def decode(cls, word: int) -> SmemDescriptor:
        """Word -> fields; raises DescriptorError when a bit outside every field is set.

        >>> SmemDescriptor.decode(0x400000400000c840)
        Traceback (most recent call last):
        ...
        layoutgemm.errors.DescriptorError: 0x400000400000c840 sets bits 14, 15, outside the sm_90 fields
        """
        if not 0 <= word < 1 << 64:
            raise DescriptorError(f"{word:#x} is no 64-bit word")
        rest = word
        for field in SM90_FIELDS:
            rest &= ~(((1 << field.width) - 1) << field.low)
        if rest:
            bits = ", ".join(str(i) for i in range(64) if rest >> i & 1)
            raise DescriptorError(f"{word:#x} sets bits {bits}, outside the sm_90 fields")
        values = {field.name: field.decode(word) for field in SM90_FIELDS}
        names = {mode: name for name, mode in SM90_MODES.items()}
        return cls(names[values.pop("swizzle_mode")], **values)

    def explain(self) -> str:
        """A table of the word's fields: bits, raw value, and what the value means.

        >>> print(SmemDescriptor("128B", 1024, 16).explain())
        0x4000004000010000
          [ 0,14) address          0x0     0 bytes: start address in shared memory, bytes
          [16,30) leading_bytes    0x1    16 bytes: leading dimension byte offset
          [32,46) stride_bytes    0x40  1024 bytes: stride dimension byte offset
          [49,52) base_offset      0x0     0      : phase of the swizzle pattern at the start address
          [62,64) swizzle_mode     0x1  128B      : 0 none, 1 128B, 2 64B, 3 32B
        """
        lines = [f"{self.word:#018x}"]
        values = self._values()
        for field in SM90_FIELDS:
            value = values[field.name]
            shown = self.swizzle_name if field.name == "swizzle_mode" else str(value)
            unit = "bytes" if field.shift else ""
            lines.append(
                f"  [{field.low:2},{field.low + field.width:2}) {field.name:<13} {value >> field.shift:#6x} "
                f"{shown:>5} {unit:<5}: {field.meaning}"
            )
        return "\n".join(lines)


def element_addresses(word: int, major: str, extent: tuple[int, int], dtype: DType) -> npt.NDArray[np.int64]:
    """The hardware's reading of a descriptor: array [mn, k] of the byte address of each element of the operand.

    This is the canonical layout of the word's own fields, one formula for each major and mode, followed by the XOR on
    absolute address bits. Nothing here looks at a tile: it is what `derive` and the NumPy executor hold a tile against.

    word     a descriptor with its address; major "K" or "MN"; extent (mn, k) of the instruction's operand, in elements

    In units of bytes, with w the span and T = 16 bytes of elements:
      K-major, none      (mn%8)*16 + (mn//8)*stride       + (k%T)*size + (k//T)*leading
      K-major, swizzled  (mn%8)*w  + (mn//8)*stride       + k*size
      MN-major, none     (mn%T)*size + (mn//T)*stride     + (k%8)*16 + (k//8)*leading
      MN-major, swizzled (mn%w)*size + (mn//w)*leading    + (k%8)*w  + (k//8)*stride
    (In the third, the two offsets change places against the fourth: so cute/atom/mma_traits_sm90_gmma.hpp has it.)
    """
    fields = SmemDescriptor.decode(word)
    mn = np.arange(extent[0], dtype=np.int64)[:, None]
    k = np.arange(extent[1], dtype=np.int64)[None, :]
    size, span = dtype.bytes, SPANS[fields.swizzle_name]
    leading, stride = fields.leading_bytes, fields.stride_bytes
    per_span, rows = span // size, ATOM_ROWS
    if major == "K":
        along_k = k * size if fields.swizzle_name != "none" else (k % per_span) * size + (k // per_span) * leading
        offset = (mn % rows) * span + (mn // rows) * stride + along_k
    else:
        if fields.swizzle_name == "none":
            leading, stride = stride, leading
        offset = (mn % per_span) * size + (mn // per_span) * leading + (k % rows) * span + (k // rows) * stride
    address = fields.address + offset
    swizzle = swizzle_of(fields.swizzle_name)
    # The pattern is a function of absolute address bits; base_offset turns it back by whole 128-byte lines.
    phase = address - (fields.base_offset << 7)
    return np.asarray((address ^ (swizzle(phase) ^ phase)) & ADDRESS_MASK)


@dataclass(frozen=True)
class OperandDescriptor:
    """How one operand's tile is handed to the instruction.

    base      the descriptor at address 0
    major     "K" or "MN"
    k_steps   byte offset of each K block of the instruction within the tile
    mn_steps  byte offset of each block of the instruction's M (or N) within the tile
    reasons   field name -> how its value was read off the layout
    """

    base: SmemDescriptor
    major: str
    k_steps: tuple[int, ...]
    mn_steps: tuple[int, ...]
    reasons: tuple[tuple[str, str], ...]

    @property
    def word(self) -> int:
        """The constant bits: the word with address 0."""
        return self.base.word

    def explain(self) -> str:
        """The fields, why each has its value, and the advance along K."""
        why = "\n".join(f"  {name}: {reason}" for name, reason in self.reasons)
        return f"{self.base.explain()}\n{why}\n  advance per K block, bytes: {', '.join(map(str, self.k_steps))}"


def derive(tile: SmemTile, atom: MmaAtom, operand: str) -> OperandDescriptor:
    """The descriptor of operand "A" or "B" of a wgmma atom over a shared-memory tile, read off the tile's layout.

    Raises DescriptorError when the tile is no multiple of the instruction's operand, when a stride does not fit its
    field, or when no canonical layout gives the tile's addresses; it names the first (step, mn, k) that lands
    elsewhere.

    >>> from layoutgemm.atoms import smem_tile, wgmma
    >>> d = derive(smem_tile((64, 64), "bf16", "K"), wgmma(64), "A")
    >>> hex(d.word), d.k_steps
    ('0x4000004000010000', (0, 32, 64, 96))
    """
    rows, depth = atom.tile_of(operand)
    if tile.extent[0] % rows or tile.extent[1] % depth:
        raise DescriptorError(
            f"operand {operand} of {atom} is {rows}x{depth}; the tile's "
            f"{tile.extent[0]}x{tile.extent[1]} is no multiple of it"
        )
    expected = atom.a_dtype if operand == "A" else atom.b_dtype
    if tile.dtype != expected:
        raise DescriptorError(f"operand {operand} of {atom} is {expected}, the tile holds {tile.dtype}")
    size, wide = tile.dtype.bytes, tile.span_elements
    swizzled = tile.swizzle_name != "none"

    def distance(mn: int, k: int) -> int:
        """Bytes from element (0, 0) to (mn, k), or 0 where the instruction never goes that far."""
        return tile.layout(mn, k) * size if mn < rows and k < depth else 0

    if tile.major == "K":
        stride, stride_why = distance(ATOM_ROWS, 0), f"from row 0 to row {ATOM_ROWS}, the next atom"
        if swizzled:
            # The hardware ignores the field here and the reference implementation writes 1, that is 16 bytes.
            leading, leading_why = CHUNK_BYTES, "not used: a K block lies inside one span; written as 1"
        else:
            leading, leading_why = distance(0, wide), f"from k = 0 to k = {wide}, the next 16-byte chunk"
    elif swizzled:
        stride, stride_why = distance(0, ATOM_ROWS), f"from k = 0 to k = {ATOM_ROWS}, the next atom"
        leading, leading_why = distance(wide, 0), f"from mn = 0 to mn = {wide}, the next span"
        if rows <= wide:
            leading_why = f"not used: {rows} elements lie inside one span"
    else:
        stride, stride_why = distance(wide, 0), f"from mn = 0 to mn = {wide}, the next 16-byte chunk"
        leading, leading_why = distance(0, ATOM_ROWS), f"from k = 0 to k = {ATOM_ROWS}, the next atom"
    base = SmemDescriptor(tile.swizzle_name, stride, leading)
    derived = OperandDescriptor(
        base,
        tile.major,
        tuple(int(tile.layout(0, k) * size) for k in range(0, tile.extent[1], depth)),
        tuple(int(tile.layout(mn, 0) * size) for mn in range(0, tile.extent[0], rows)),
        (("leading_bytes", leading_why), ("stride_bytes", stride_why), ("swizzle_mode", f"the tile's {tile.swizzle}")),
    )
    misfit = first_misfit(derived, tile, atom, operand)
    if misfit is not None:
        mn, k, have, want = misfit
        raise DescriptorError(
            f"no sm_90 descriptor gives the addresses of {tile} as operand {operand} of {atom}: with {base} element "
            f"(mn, k) = ({mn}, {k}) would be read at byte {have}, the tile holds it at byte {want}"
        )
    return derived


def first_misfit(
    derived: OperandDescriptor, tile: SmemTile, atom: MmaAtom, operand: str
) -> tuple[int, int, int, int] | None:
    """Hold every element of every block against the tile: the first (mn, k, read at, held at) that differs, or None."""
    rows, depth = atom.tile_of(operand)
    mn = np.arange(rows)[:, None]
    k = np.arange(depth)[None, :]
    for j, mn_step in enumerate(derived.mn_steps):
        for i, k_step in enumerate(derived.k_steps):
            have = element_addresses(derived.base.at(mn_step + k_step).word, derived.major, (rows, depth), tile.dtype)
            want: npt.NDArray[Any] = tile.byte(mn + j * rows, k + i * depth)
            if not np.array_equal(have, want):
                # colexicographic: mn runs fastest
                at_k, at_mn = (int(axis[0]) for axis in np.nonzero((have != want).T))
                return at_mn + j * rows, at_k + i * depth, int(have[at_mn, at_k]), int(want[at_mn, at_k])
    return None
