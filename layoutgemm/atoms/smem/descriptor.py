"""Matrix descriptors derived from layouts. Which word, if any, makes an instruction read a shared-memory layout.

The word holds a start address and two strides; together with the swizzle mode they span a *canonical layout*. `derive`
reads the strides off a layout, and then compares the address that the hardware's arithmetic gives for every element, at
every step along K, with the address that the layout gives. A layout that no word describes is refused with the reason
and the first element that lands elsewhere.

Sources: PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout" and "Matrix Descriptor Format", and the
same of tcgen05. Bit positions: cute/arch/mma_sm90_desc.hpp and mma_sm100_desc.hpp; canonical layouts:
cute/atom/mma_traits_sm90_gmma.hpp and mma_traits_sm100.hpp. The reads of wgmma for a word were measured on an H200,
element by element. They cover every mode and major, strides that are no multiple of the pattern's period, every start
and base offset. The reads of sm_100a are those of the documents and of the DSL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...arch import Arch
from ...arguments import checked, shown
from ...dtypes import DType
from ...errors import AtomError, DescriptorError
from ...layouts import ComposedLayout, Layout
from ...layouts.display import HasPicture
from ...lazy_numpy import np
from ...memo import memoized
from ..mma.base import MmaAtom
from .bit_fields import Field, FieldTable
from .canonical_layouts import canonical_layout
from .descriptor_words import ADDRESS_MASK, SM90, SM90_FIELDS, SM100, SmemDescriptor
from .operand_read import OperandRead, operand_read
from .tile import CHUNK_BITS, CHUNK_BYTES, SWIZZLES, SmemTile, as_tile, packing_of, slot_bits, slot_to_bit, swizzle_of

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "ADDRESS_MASK",
    "SM90",
    "SM90_FIELDS",
    "SM100",
    "Field",
    "FieldTable",
    "OperandDescriptor",
    "SmemDescriptor",
    "derive",
    "element_addresses",
    "element_bits",
    "first_misfit",
    "layout_of_values",
]


LINE_BYTES = SWIZZLES["128B"].span


def element_bits(
    word: int,
    major: str,
    extent: tuple[int, int],
    dtype: DType,
    arch: Arch | str = "sm_90a",
    packing: str | None = None,
) -> npt.NDArray[np.int64]:
    """The hardware's reading of a descriptor. Array [mn, k] of the bit address of each element of the operand.

    This is the canonical layout of the word's own fields, followed by the XOR on absolute address bits. Nothing here
    looks at a tile: it is what `derive` and the NumPy executor hold a tile against.

    word     a descriptor with its address
    major    "K" or "MN"
    extent   (mn, k) of the instruction's operand, in elements
    packing  how elements narrower than a byte are stored, as `packing_of` has it

    Raises DescriptorError when the word is not of this architecture, or has no such layout.
    """
    fields = SmemDescriptor.decode(word, arch)
    stored = packing_of(dtype, packing)
    layout = canonical_layout(
        major, fields.swizzle_name, slot_bits(dtype, stored), extent, fields.leading_bytes, fields.stride_bytes
    )
    mn = np.arange(extent[0], dtype=np.int64)[:, None]
    k = np.arange(extent[1], dtype=np.int64)[None, :]
    address = fields.address * 8 + np.asarray(slot_to_bit(layout(mn, k), dtype, stored))
    beyond = _beyond_line(fields, major, k, dtype, stored)
    if beyond is not None:
        address[:, beyond] += (fields.leading_bytes - fields.address // LINE_BYTES * LINE_BYTES - LINE_BYTES) * 8
    swizzle = swizzle_of(fields.swizzle_name).recast(1)
    # The pattern is a function of absolute address bits; base_offset turns it back by whole 128-byte lines.
    phase = address - (fields.base_offset << 10)
    return np.asarray((address ^ (swizzle(phase) ^ phase)) & (ADDRESS_MASK << 3 | 7))


def _beyond_line(
    fields: SmemDescriptor, major: str, k: npt.NDArray[np.int64], dtype: DType, packing: str
) -> npt.NDArray[np.bool_] | None:
    """Flags of the k that lie beyond the 128-byte line of the start.

    An operand of 48 bytes along K has them at the leading address; None for other operands. Source: PTX ISA, "Leading
    dimension byte offset" of tcgen05 (sm_103a, K = 96). Raises DescriptorError where the word says the leading
    dimension in a way that the operand does not have.
    """
    deep = np.asarray(slot_to_bit(k[0], dtype, packing))
    in_line = major == "K" and fields.swizzle_name == "128B" and k.size * dtype.bits == 48 * 8
    beyond = np.asarray(fields.address % LINE_BYTES * 8 + deep >= LINE_BYTES * 8)
    if fields.leading_mode and not in_line:
        raise DescriptorError(
            f"{fields.word:#x} gives the leading dimension as an absolute address, which only K-major operands of 48 "
            "bytes along K with swizzle 128B have (sm_103a)"
        )
    if not fields.leading_mode and in_line and beyond.any():
        raise DescriptorError(
            f"{fields.word:#x}: 48 bytes along K from byte {fields.address % LINE_BYTES} of a line leave it, and the "
            "leading dimension is no absolute address"
        )
    return beyond if fields.leading_mode else None


def element_addresses(
    word: int,
    major: str,
    extent: tuple[int, int],
    dtype: DType,
    arch: Arch | str = "sm_90a",
    packing: str | None = None,
) -> npt.NDArray[np.int64]:
    """The same in bytes: array [mn, k] of the byte address of each element. See `element_bits`.

    Raises DescriptorError for elements that do not begin on a byte each.
    """
    if dtype.bits % 8:
        raise DescriptorError(f"{dtype} elements of {dtype.bits} bits do not each begin on a byte: ask element_bits()")
    return element_bits(word, major, extent, dtype, arch, packing) >> 3


def layout_of_values(values: tuple[int, ...]) -> Layout:
    """The coalesced layout i -> values[i] - values[0]. Raises DescriptorError when no layout has these values.

    >>> print(layout_of_values((0, 2, 512, 514)))
    (2,2):(2,512)
    """
    offsets = [value - values[0] for value in values]
    shape, strides, rest = [], [], offsets
    while len(rest) > 1:
        run = next((i for i in range(len(rest)) if rest[i] != i * rest[1]), len(rest))
        extent = next(size for size in range(run, 0, -1) if len(rest) % size == 0)
        if extent == 1:
            break
        shape.append(extent)
        strides.append(rest[1])
        rest = rest[::extent]
    found = Layout(tuple(shape), tuple(strides)) if shape else Layout(1, 0)
    if found.size != len(offsets) or not np.array_equal(found.offsets(), offsets):
        raise DescriptorError(f"the steps {values} are no layout")
    return found.coalesce()


@dataclass(frozen=True)
class OperandDescriptor(HasPicture):
    """One operand's tile, as an instruction takes it.

    base         the descriptor at address 0
    major        "K" or "MN"
    k_steps      byte offset of each K block of the instruction within the tile
    mn_steps     byte offset of each block of the instruction's M (or N) within the tile
    reasons      field name -> how its value was read off the layout
    alignment    bytes that the tile's address is a multiple of
    stage_bytes  from one stage of the pipeline to the next
    """

    base: SmemDescriptor
    major: str
    k_steps: tuple[int, ...]
    mn_steps: tuple[int, ...]
    reasons: tuple[tuple[str, str], ...]
    alignment: int = 128
    stage_bytes: int = 0

    @property
    def word(self) -> int:
        """The constant bits: the word with address 0."""
        return self.base.word

    @property
    def k_advance(self) -> Layout:
        """K block -> addend of the word, in units of 16 bytes. Raises DescriptorError if no layout fits.

        >>> from layoutgemm.atoms import smem_tile, wgmma
        >>> print(derive(smem_tile((128, 64), "bf16", "K", "64B"), wgmma(64), "A").k_advance)
        (2,2):(2,512)
        """
        return layout_of_values(tuple(step // CHUNK_BYTES for step in self.k_steps))

    @checked(DescriptorError)
    def advance(self, k_block: int, mn_block: int = 0) -> int:
        """The increment of the word for one block of the tile, in units of 16 bytes."""
        for name, block, steps in (("K", k_block, self.k_steps), ("M or N", mn_block, self.mn_steps)):
            if not 0 <= block < len(steps):
                raise DescriptorError(
                    f"the tile has {len(steps)} block(s) along {name}; there is no block {shown(block)}"
                )
        return (self.k_steps[k_block] + self.mn_steps[mn_block] - self.mn_steps[0]) // CHUNK_BYTES

    @checked(DescriptorError)
    def at(self, address: int, k_block: int = 0, mn_block: int = 0, pattern_start: int | None = None) -> SmemDescriptor:
        """The descriptor of one block of the tile at a shared-memory byte address.

        pattern_start  where the swizzle pattern begins, a multiple of 128, when the tile was written with a pattern of
                       its own there; None: the pattern is that of absolute addresses, as the copy engine writes it

        Raises DescriptorError for an address at which the tile's layout is not what the instruction would read.
        """
        step = self.advance(k_block, mn_block) * CHUNK_BYTES
        if pattern_start is None:
            if address % self.alignment:
                phase = address // 128 % 8
                raise DescriptorError(
                    f"the tile at address {address:#x} is not aligned to {self.alignment}: its swizzle pattern would "
                    f"begin at line {phase} of 8; say pattern_start={address:#x} if it was written so"
                )
            return self.base.at(address + step)
        if pattern_start % 128 or (address - pattern_start) % self.alignment:
            raise DescriptorError(
                f"a pattern at {pattern_start:#x} for a tile at {address:#x}: it begins at a multiple of 128, whole "
                f"periods of {self.alignment} bytes before the tile"
            )
        return replace(self.base, address=address + step, base_offset=pattern_start >> 7 & 7)

    @checked(DescriptorError)
    def stage(self, index: int, address: int = 0, k_block: int = 0, mn_block: int = 0) -> SmemDescriptor:
        """The descriptor of one block of stage `index`; stages follow each other from `address`.

        >>> from layoutgemm.atoms import smem_tile, wgmma
        >>> d = derive(smem_tile((128, 64), "bf16", "K"), wgmma(64), "A")
        >>> d.stage_bytes, hex(d.stage(2, 1024, k_block=1).word)
        (16384, '0x4000004000010842')
        """
        if index < 0:
            raise DescriptorError(f"stages are counted from 0; there is no stage {shown(index)}")
        return self.at(address + index * self.stage_bytes, k_block, mn_block)

    def explain(self) -> str:
        """The fields, the reason of each value, and the advance along K and between stages."""

        def units(steps: Sequence[int]) -> str:
            counted = ", ".join(str(step // CHUNK_BYTES) for step in steps)
            return f"{', '.join(map(str, steps))} ({counted} in 16-byte units)"

        stages = f"\n  advance per stage, bytes: {units((self.stage_bytes,))}" if self.stage_bytes else ""
        return f"{self.base.explain(dict(self.reasons))}\n  advance per K block, bytes: {units(self.k_steps)}{stages}"


@checked(DescriptorError)
def derive(
    layout: SmemTile | Layout | ComposedLayout,
    atom: MmaAtom | OperandRead,
    operand: str,
    *,
    swizzle: str | None = None,
    major: str | None = None,
    stage_bytes: int | None = None,
) -> OperandDescriptor:
    """The descriptor of operand "A" or "B" over a shared-memory layout, read off the layout.

    layout   a tile, or any layout (mn, k) -> offset as `as_tile` takes it: plain (in elements, with the name of a
             swizzle) or under a swizzle on bytes or on elements
    atom     a wgmma or tcgen05 atom, or what it reads (`operand_read`, `tcgen05_read`)
    stage_bytes  from one stage of a pipeline to the next; default the tile's bytes, rounded up to its alignment

    Strides between atoms may be larger than compact. Raises DescriptorError when the layout is no multiple of the
    instruction's operand, or when the hardware does not read such a layout (major, swizzle, type). It also raises when
    rows or chunks do not lie as an atom has them, when a stride does not fit its field, or when K blocks do not begin
    on 16 bytes. For any other fault it names the first (mn, k) that lands elsewhere.

    >>> from layoutgemm.atoms import smem_tile, wgmma
    >>> d = derive(smem_tile((64, 64), "bf16", "K"), wgmma(64), "A")
    >>> hex(d.word), d.k_steps
    ('0x4000004000010000', (0, 32, 64, 96))
    >>> padded = Layout(((8, 8), 64), ((64, 1024), 1))  # atoms 2048 bytes apart
    >>> derive(padded, wgmma(64), "A", swizzle="128B").base.stride_bytes
    2048
    >>> derive(Layout((64, 64), (72, 1)), wgmma(64), "A", swizzle="128B")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    layoutgemm.errors.DescriptorError: ... the rows of an atom lie 128 bytes apart, the layout's 144 ...
    """
    read = operand_read(atom, operand)
    if isinstance(layout, SmemTile):
        if layout.dtype != read.dtype:
            raise DescriptorError(f"{read.text} is {read.dtype}, the tile holds {layout.dtype}")
        if layout.packing != read.packing:
            raise DescriptorError(f"{read.text} is stored as {read.packing}, the tile's elements are {layout.packing}")
    try:
        tile = as_tile(layout, read.dtype, swizzle, major, read.packing)
    except AtomError as error:
        raise DescriptorError(f"{read.text}: {error}") from error
    if tile.extent[0] % read.rows or tile.extent[1] % read.depth:
        raise DescriptorError(
            f"{read.text} is {read.rows}x{read.depth}; the tile's {tile.extent[0]}x{tile.extent[1]} is no multiple of "
            "it"
        )
    head = f"{read.text}, {tile.major}-major, swizzle {tile.swizzle_name}"
    objection = read.objection(tile.major, tile.swizzle_name)
    if objection is not None:
        raise DescriptorError(f"{head}: {objection}")
    base, reasons = _offsets(tile, read, head)
    steps = _steps(tile, read, head)
    if stage_bytes is None:
        stage_bytes = -(-tile.bytes // tile.alignment) * tile.alignment
    if stage_bytes % tile.alignment:
        raise DescriptorError(
            f"{head}: stages of {stage_bytes} bytes; the tile's address must stay a multiple of {tile.alignment}"
        )
    derived = OperandDescriptor(base, tile.major, *steps, reasons, tile.alignment, stage_bytes)
    # a field that does not fit is refused here, with its name
    _ = derived.word
    misfit = first_misfit(derived, tile, read, operand)
    if misfit is not None:
        mn, k, have, want = misfit
        unit = "bit" if tile.dtype.bits % 8 else "byte"
        raise DescriptorError(
            f"{head}: {_diagnosis(tile, read)}no {base.table.name} descriptor gives the addresses of {tile}: with "
            f"{base.word:#018x} element (mn, k) = ({mn}, {k}) would be read at {unit} {have}, the tile holds it at "
            f"{unit} {want}"
        )
    return derived


def _offsets(tile: SmemTile, read: OperandRead, head: str) -> tuple[SmemDescriptor, tuple[tuple[str, str], ...]]:
    """Read the two offsets off the layout; (descriptor at address 0, reasons). Refuses no multiple of 16."""
    wide, rows = tile.span_elements, SWIZZLES[tile.swizzle_name].rows
    k_major, swizzled = tile.major == "K", tile.swizzle_name != "none"
    atom_axis, span_axis = (0, 1) if k_major else (1, 0)

    def distance(axis: int, count: int, unit: str) -> tuple[int, str]:
        """Bytes from element (0, 0) to `count` elements along an axis, before the swizzle. The sign is the axis's
        direction."""
        name = ("mn", "k")[axis]
        if count >= (read.rows, read.depth)[axis]:
            return 0, f"not used: {(read.rows, read.depth)[axis]} elements along {name} lie inside one {unit}"
        to = (count, 0) if axis == 0 else (0, count)
        bits = int(tile.layout(*to) - tile.layout(0, 0)) * tile.slot_bits
        way = f"from {name} = 0 to {name} = {count}, the next {unit}"
        if bits % CHUNK_BITS:
            raise DescriptorError(
                f"{head}: element (mn, k) = {to} lies {bits / 8:g} bytes after the first, no multiple of {CHUNK_BYTES} "
                f"({way})"
            )
        return bits // 8, way

    between_atoms = distance(atom_axis, rows, "atom")
    between_spans = distance(span_axis, wide, "span" if swizzled else "16-byte chunk")
    if k_major and swizzled:
        # The hardware ignores the field here and the reference implementation writes 1, that is 16 bytes.
        between_spans = CHUNK_BYTES, "not used: a K block lies inside one span; written as 1"
    leading, stride = between_spans, between_atoms
    if not k_major and not swizzled:
        leading, stride = stride, leading
    base = SmemDescriptor(tile.swizzle_name, stride[0], leading[0], arch=read.arch)
    return base, (
        ("leading_bytes", leading[1]),
        ("stride_bytes", stride[1]),
        ("swizzle_mode", f"the layout's {tile.swizzle}"),
    )


def _diagnosis(tile: SmemTile, read: OperandRead) -> str:
    """The difference from an atom, in a layout that no word describes: chunks, then rows; "" when both are."""
    bits, mode = tile.slot_bits, SWIZZLES[tile.swizzle_name]
    k_major = tile.major == "K"
    axis = int(k_major)
    origin = int(tile.layout(0, 0))

    def step(along: int, count: int) -> int:
        return (int(tile.layout(*((count, 0) if along == 0 else (0, count)))) - origin) * bits

    for i in range(1, min(CHUNK_BITS // bits, (read.rows, read.depth)[axis])):
        if step(axis, i) != i * bits:
            return (
                f"elements {i - 1} and {i} along {('mn', 'k')[axis]} are not neighbours, and a chunk is {CHUNK_BYTES} "
                "bytes of consecutive elements; "
            )
    pitch = step(1 - axis, 1) / 8
    if pitch != mode.span:
        fit = [name for name, other in SWIZZLES.items() if read.family in other.readers and other.span == pitch]
        hint = f"swizzle {fit[0]} has rows of that many" if fit else "no swizzle has rows of that many"
        return f"the rows of an atom lie {mode.span} bytes apart, the layout's {pitch:g} ({hint}); "
    return ""


def _steps(tile: SmemTile, read: OperandRead, head: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Byte offsets of the instruction's blocks along K and M or N, before the swizzle."""

    def along(axis: int, step: int) -> tuple[int, ...]:
        starts = []
        for i in range(0, tile.extent[axis], step):
            bit = int(tile.layout(*((i, 0) if axis == 0 else (0, i))) + tile.offset) * tile.slot_bits
            if bit % CHUNK_BITS:
                name = "mn" if axis == 0 else "k"
                raise DescriptorError(
                    f"{head}: the block at {name} = {i} begins {bit / 8:g} bytes into the tile; a start address is a "
                    f"multiple of {CHUNK_BYTES}"
                )
            starts.append(bit // 8)
        return tuple(starts)

    return along(1, read.depth), along(0, read.rows)


@memoized(512)
def first_misfit(
    derived: OperandDescriptor, tile: SmemTile, atom: MmaAtom | OperandRead, operand: str
) -> tuple[int, int, int, int] | None:
    """Hold every element of every block against the tile. The first (mn, k, read at, held at) that differs, or None.

    Addresses are bytes, or bits for elements that do not begin on a byte each.
    """
    read = operand_read(atom, operand)
    unit = 1 if tile.dtype.bits % 8 else 8
    mn = np.arange(read.rows)[:, None]
    k = np.arange(read.depth)[None, :]
    origin = derived.mn_steps[0] if derived.mn_steps else 0
    for j, mn_step in enumerate(derived.mn_steps):
        for i, k_step in enumerate(derived.k_steps):
            word = derived.base.at(mn_step + k_step - origin).word
            have = element_bits(word, derived.major, (read.rows, read.depth), tile.dtype, read.arch, tile.packing)
            want: npt.NDArray[Any] = np.asarray(tile.bit(mn + j * read.rows, k + i * read.depth))
            if not np.array_equal(have, want):
                # colexicographic: mn runs fastest
                at_k, at_mn = (int(axis[0]) for axis in np.nonzero((have != want).T))
                places = (int(have[at_mn, at_k]) // unit, int(want[at_mn, at_k]) // unit)
                return at_mn + j * read.rows, at_k + i * read.depth, *places
    return None
