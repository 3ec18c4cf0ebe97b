"""Shared-memory tiles that tensor cores and the copy engine agree on.

Both read a tile as *swizzle atoms* laid side by side. An atom is 8 rows of one span (16, 32, 64 or 128 bytes of the
contiguous dimension), in which 16-byte chunks are permuted by an XOR of address bits. A tile here is a plain layout
from tile coordinates to element offsets, plus the swizzle on byte addresses; everything else (box, descriptor) is
derived from those.

Elements narrower than a byte are stored in one of three ways. `packed`: one after another, without gaps, as
tcgen05.mma.kind::mxf4 reads 4-bit elements. `b4x16_p64` and `b6x16_p32`: sixteen elements of 4 or 6 bits, then padding
up to 16 bytes, as the kinds f8f6f4 and mxf8f6f4 read them. The layout of such a tile is that of an 8-bit type.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ...arguments import Integer, checked, settle, shown
from ...dtypes import DType, dtype
from ...errors import AtomError
from ...layouts import ComposedLayout, Layout, Swizzle
from ...layouts.display import HasPage, HasPicture
from ...layouts.proofs.verdicts import Function

MAJORS = ("K", "MN")
# Rows of a swizzle atom, and bytes of the chunk that stays together: PTX ISA, "Shared Memory Matrix Layout", core
# matrix.
ATOM_ROWS = 8
CHUNK_BYTES = 16
CHUNK_BITS = 8 * CHUNK_BYTES
# Packings, with the element width that each holds (None: any that divides a chunk). PTX ISA, "Sub-byte Types" of
# tensors, and "Packing formats of elements in Tensor and Shared memory" of tcgen05.
PACKINGS: dict[str, int | None] = {"packed": None, "b4x16_p64": 4, "b6x16_p32": 6}
PADDED_SLOT_BITS = CHUNK_BITS // 16


@dataclass(frozen=True, slots=True)
class SwizzleMode:
    """One way in which a tile's 16-byte chunks are permuted.

    span     bytes of the contiguous dimension that one swizzle atom covers
    rows     rows of the atom, after which the pattern repeats
    xor      (B, M, S) of the XOR on byte addresses; None where no single XOR of one field of bits gives the pattern
    driver   the name after CU_TENSOR_MAP_SWIZZLE_
    readers  the tensor-core families that can read it through a descriptor
    """

    span: int
    rows: int
    xor: tuple[int, int, int] | None
    driver: str
    readers: tuple[str, ...]


_BOTH = ("wgmma", "tcgen05")
# PTX ISA, "Swizzling Modes" of tensors (the patterns), "Layout for swizzle atoms" of tcgen05 (the rows); CUDA Driver
# API, CUtensorMapSwizzle; cute/atom/mma_traits_sm100.hpp for S<2,5,2>. Of the 8-byte flip PTX says in words and a
# figure that the halves of each 16 bytes change places in every other line: that is a second XOR beside the first.
SWIZZLES: dict[str, SwizzleMode] = {
    "none": SwizzleMode(16, ATOM_ROWS, (0, 4, 3), "NONE", _BOTH),
    "32B": SwizzleMode(32, ATOM_ROWS, (1, 4, 3), "32B", _BOTH),
    "64B": SwizzleMode(64, ATOM_ROWS, (2, 4, 3), "64B", _BOTH),
    "128B": SwizzleMode(128, ATOM_ROWS, (3, 4, 3), "128B", _BOTH),
    "128B_ATOM_32B": SwizzleMode(128, 4, (2, 5, 2), "128B_ATOM_32B", ("tcgen05",)),
    "128B_ATOM_32B_FLIP_8B": SwizzleMode(128, 4, None, "128B_ATOM_32B_FLIP_8B", ()),
    "128B_ATOM_64B": SwizzleMode(128, 2, (1, 6, 1), "128B_ATOM_64B", ()),
}
# The four modes that every reader has, by the names that PTX and the driver use.
SPANS = {name: mode.span for name, mode in SWIZZLES.items() if mode.readers == _BOTH}


def swizzle_mode(name: str) -> SwizzleMode:
    """The mode of that name; raises AtomError, listing them, for another name."""
    if name not in SWIZZLES:
        raise AtomError(f"unknown shared-memory swizzle {shown(name)}; known: {', '.join(SWIZZLES)}")
    return SWIZZLES[name]


@checked(AtomError)
def swizzle_of(name: str) -> Swizzle:
    """The swizzle on byte addresses of a mode of `SWIZZLES`.

    The four common modes permute chunks of 2**4 bytes within a span by the bits just above the 128-byte line: M = 4, S
    = 3. Raises AtomError for another name, and for the mode with the 8-byte flip, which is no single XOR. Source: PTX
    ISA, "Swizzling Modes" of the tensor copies.

    >>> print(swizzle_of("128B"), swizzle_of("64B")(0x80), swizzle_of("128B_ATOM_32B"))
    S<3,4,3>[bytes] 144 S<2,5,2>[bytes]
    """
    mode = swizzle_mode(name)
    if mode.xor is None:
        raise AtomError(f"swizzle {name} also flips 8-byte halves in alternate lines: no XOR of one field gives it")
    return Swizzle(*mode.xor, unit="bytes")


def packing_of(dtype_: DType | str, packing: str | None = None) -> str:
    """The packing of a type: the one asked for, or the only one it has.

    6-bit elements exist only padded. 4-bit elements are packed unless "b4x16_p64" is asked for. Raises AtomError for a
    packing that does not exist or does not hold elements of that width.

    >>> packing_of("e3m2"), packing_of("e2m1"), packing_of("e2m1", "b4x16_p64")
    ('b6x16_p32', 'packed', 'b4x16_p64')
    """
    element = dtype(dtype_)
    if packing is None:
        packing = "packed" if CHUNK_BITS % element.bits == 0 else "b6x16_p32"
    if packing not in PACKINGS:
        raise AtomError(f"unknown packing {shown(packing)}; known: {', '.join(PACKINGS)}")
    bits = PACKINGS[packing]
    if bits is not None and element.bits != bits:
        raise AtomError(f"packing {packing} holds {bits}-bit elements; {element} has {element.bits}")
    if bits is None and CHUNK_BITS % element.bits:
        raise AtomError(
            f"{element} elements of {element.bits} bits do not fill a {CHUNK_BYTES}-byte chunk: {CHUNK_BITS} is no "
            f"multiple of {element.bits}; shared memory holds them as b6x16_p32"
        )
    return packing


def slot_bits(element: DType, packing: str) -> int:
    """Bits that one element takes in a layout. Its own, or 8 where sixteen elements are padded to 16 bytes."""
    return element.bits if packing == "packed" else PADDED_SLOT_BITS


def slot_to_bit(slot: Integer, element: DType, packing: str) -> Any:
    """Slot offset -> bit offset of the element, before the swizzle. Ints, arrays or traced integers alike."""
    if packing == "packed":
        return slot * element.bits
    return slot // 16 * CHUNK_BITS + slot % 16 * element.bits


# Operations of a layout that a tile answers as its `composed`, in elements: all that it does not define itself.
_AS_A_LAYOUT = frozenset(name for name in dir(ComposedLayout) if not name.startswith("_")) - {"parse"}


@dataclass(frozen=True)
class SmemTile(HasPicture, HasPage, Function):
    """One operand tile in shared memory. It goes where a layout goes: as `composed`, (mn, k) -> element.

    dtype         element type
    major         "K" when K is contiguous, "MN" when the other dimension is
    swizzle_name  a mode of `SWIZZLES`
    layout        (mn, k) -> element offset, before the swizzle
    packing       how elements narrower than a byte are stored, a key of `PACKINGS`; in a padded packing the layout
                  counts slots of 8 bits
    offset        elements (slots) that lie before the tile's first, inside the swizzle: not 0 for a part of a tile

    Its modes, slices, proofs, inverses, divides and products are those of `composed`.

    >>> tile = smem_tile((8, 64), "bf16", "K")
    >>> tile(1, 8), tile.is_bijective().ok, tile.shape, str(tile[1, :])
    (64, True, ((8, 1), (64, 1)), 'S<3,3,3>[16b] o 64 o ((64,1)):((1,0))')
    """

    _swizzled = True

    dtype: DType
    major: str
    swizzle_name: str
    layout: Layout
    packing: str = "packed"
    offset: int = 0

    def __post_init__(self) -> None:
        settle(self, AtomError)
        swizzle_mode(self.swizzle_name)
        packing_of(self.dtype, self.packing)
        if self.major not in MAJORS:
            raise AtomError(f"major is {shown(self.major)}; it is 'K' or 'MN'")
        if self.layout.rank != 2:
            raise AtomError(f"a tile's layout has two modes, mn and k; {self.layout} has {self.layout.rank}")
        if isinstance(self.offset, bool) or not isinstance(self.offset, int) or self.offset < 0:
            raise AtomError(f"a tile's offset counts elements from 0; got {shown(self.offset)}")

    @property
    def extent(self) -> tuple[int, int]:
        """(MN, K) extents of the tile, in elements."""
        return (self.layout[0].size, self.layout[1].size)

    @property
    def slot_bits(self) -> int:
        """Bits of one step of the layout."""
        return slot_bits(self.dtype, self.packing)

    @property
    def span(self) -> int:
        """Bytes of the contiguous dimension that one swizzle atom covers."""
        return SWIZZLES[self.swizzle_name].span

    @property
    def span_elements(self) -> int:
        """Elements of the contiguous dimension that one swizzle atom covers."""
        return self.span * 8 // self.slot_bits

    @cached_property
    def swizzle(self) -> Swizzle:
        """The XOR on byte addresses."""
        return swizzle_of(self.swizzle_name)

    @cached_property
    def bytes(self) -> int:
        """Bytes from the tile's start to the end of its last span, padding included."""
        span_bits = self.span * 8
        return -(-(self.offset + self.layout.cosize) * self.slot_bits // span_bits) * self.span

    @property
    def alignment(self) -> int:
        """Alignment of the tile's address in bytes. At its multiples, XORing absolute address bits is XORing offsets.

        The pattern repeats after 8 spans; the copy engine wants 128 bytes at least (PTX ISA, cp.async.bulk.tensor).
        """
        return max(128, ATOM_ROWS * self.span)

    def __getattr__(self, name: str) -> Any:
        """An operation of a layout, of the tile's `composed`. Raises AttributeError for another name."""
        if name in _AS_A_LAYOUT:
            return getattr(self.composed, name)
        raise AttributeError(f"SmemTile has no {name}")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_AS_A_LAYOUT})

    def __call__(self, *coord: object) -> Integer:
        """(mn, k) -> element, swizzled; a flat index too."""
        found: Integer = self.composed(*coord)
        return found

    def __getitem__(self, i: object) -> ComposedLayout:
        """A mode under the swizzle, or `[:, 0]`: see ComposedLayout."""
        return self.composed[i]

    def __len__(self) -> int:
        return 2

    def __bool__(self) -> bool:
        return True

    def __matmul__(self, other: object) -> ComposedLayout:
        return self.composed.compose(other)

    @cached_property
    def composed(self) -> ComposedLayout:
        """(mn, k) -> element offset with the swizzle applied, everything counted in elements (slots)."""
        return ComposedLayout(self.swizzle.recast(self.slot_bits), self.offset, self.layout)

    def byte(self, mn, k):  # type: ignore[no-untyped-def]  # ints, arrays or traced integers alike
        """(mn, k) -> byte address of the element relative to the tile, swizzled.

        Raises AtomError for elements that do not begin on a byte each; `bit` has an answer for those.

        >>> smem_tile((64, 64), "bf16", "K").byte(1, 0), smem_tile((64, 64), "bf16", "K").byte(1, 8)
        (144, 128)
        """
        if self.dtype.bits % 8:
            raise AtomError(f"{self.dtype} elements of {self.dtype.bits} bits do not each begin on a byte: ask bit()")
        slot = self.layout(mn, k)
        # a traced sum with 0 would be an instruction
        return self.swizzle((slot + self.offset if self.offset else slot) * self.dtype.bytes)

    def bit(self, mn, k):  # type: ignore[no-untyped-def]  # ints, arrays or traced integers alike
        """(mn, k) -> bit address of the element relative to the tile, swizzled. For every element width.

        >>> packed, padded = smem_tile((8, 64), "e2m1", "K"), smem_tile((8, 32), "e2m1", "K", packing="b4x16_p64")
        >>> packed.bit(0, 17), padded.bit(0, 15), padded.bit(0, 17)
        (68, 60, 132)
        """
        slot = self.layout(mn, k) + self.offset
        return self.swizzle.recast(1)(slot_to_bit(slot, self.dtype, self.packing))

    def __str__(self) -> str:
        start = f"{self.offset} + " if self.offset else ""
        stored = "" if self.packing == "packed" else f" ({self.packing})"
        return f"{self.swizzle} o {start}{self.layout} x {self.dtype}{stored}"


@checked(AtomError)
def smem_atom(dtype_: DType | str, major: str, swizzle: str, packing: str | None = None) -> Layout:
    """The swizzle atom as a layout (mn, k) -> element offset. 8 spans, one under another.

    The 128-byte mode with 32-byte atoms has 4 of them, and only MN-major. Raises AtomError for an unknown major or
    swizzle. Source: cute/atom/mma_traits_sm90_gmma.hpp and mma_traits_sm100.hpp, the canonical layouts.

    >>> print(smem_atom("bf16", "K", "128B"), smem_atom("bf16", "MN", "32B"), smem_atom("tf32", "MN", "128B_ATOM_32B"))
    (8,64):(64,1) (16,8):(1,16) (32,4):(1,32)
    """
    mode = swizzle_mode(swizzle)
    if major not in MAJORS:
        raise AtomError(f"major is {shown(major)}; it is 'K' or 'MN'")
    element = dtype(dtype_)
    width = mode.span * 8 // slot_bits(element, packing_of(element, packing))
    if major == "K":
        return Layout((mode.rows, width), (width, 1))
    return Layout((width, mode.rows), (1, width))


@checked(AtomError)
def smem_tile(
    extent: tuple[int, int],
    dtype_: DType | str,
    major: str,
    swizzle: str | None = None,
    packing: str | None = None,
    order: tuple[int, int] | None = None,
) -> SmemTile:
    """The tile of (mn, k) elements in swizzle atoms, one TMA copy a span.

    The contiguous dimension is cut into spans; within a span the other dimension runs in full, then comes the next
    span. So each span is one TMA box, and consecutive atoms are 8 spans apart.

    extent   (mn, k) in elements
    major    "K" or "MN": which dimension is contiguous
    swizzle  a mode of `SWIZZLES`, or None for the widest of the common ones whose span divides the contiguous dimension
    packing  for elements narrower than a byte, as `packing_of` has it
    order    the order of the atoms along (mn, k), smallest stride first; None runs across the spans first, so that a
             span is one box

    A tile of fewer rows than an atom's is the first rows of one: it moves as a box of its rows. Raises AtomError,
    naming the arithmetic, when the atom does not divide the tile.

    >>> print(smem_tile((64, 128), "bf16", "K").layout)
    ((8,8),(64,2)):((64,512),(1,4096))
    >>> print(smem_tile((64, 64), "bf16", "MN", "64B").layout)
    ((32,2),(8,8)):((1,2048),(32,256))
    >>> print(smem_tile((16, 128), "bf16", "K", order=(1, 0)).layout, smem_tile((4, 128), "bf16", "K").layout)
    ((8,2),(64,2)):((64,1024),(1,512)) ((4,1),(64,2)):((64,0),(1,256))
    """
    element = dtype(dtype_)
    if major not in MAJORS:
        raise AtomError(f"major is {shown(major)}; it is 'K' or 'MN'")
    stored = packing_of(element, packing)
    contiguous = 1 if major == "K" else 0
    if swizzle is None:
        swizzle = widest_swizzle(extent[contiguous], element, stored)
    atom = smem_atom(element, major, swizzle, stored)
    across = 1 - contiguous
    if 0 < extent[across] < atom[across].size:
        fewer = tuple(extent[i] if i == across else atom[i].size for i in (0, 1))
        atom = Layout(fewer, atom.stride)
    for axis, name in enumerate(("MN", "K")):
        if extent[axis] % atom[axis].size:
            raise AtomError(
                f"a {extent[0]}x{extent[1]} tile of {element}, {major}-major, swizzle {swizzle}: its {name} extent "
                f"{extent[axis]} is no multiple of the atom's {atom[axis].size}"
            )
    # The dimension across the span is tiled first, so a whole column of atoms is one box.
    order = order or ((0, 1) if major == "K" else (1, 0))
    if sorted(order) != [0, 1]:
        raise AtomError(f"an order of the atoms along (mn, k) is (0, 1) or (1, 0), not {shown(order)}")
    return SmemTile(element, major, swizzle, atom.tile_to_shape(extent, order), stored)


@checked(AtomError)
def widest_swizzle(contiguous: int, dtype_: DType | str, packing: str | None = None) -> str:
    """The widest common swizzle whose span divides `contiguous` elements. Raises AtomError when not even 16 bytes do.

    >>> widest_swizzle(64, "bf16"), widest_swizzle(96, "bf16"), widest_swizzle(24, "bf16")
    ('128B', '64B', 'none')
    """
    element = dtype(dtype_)
    size = contiguous * slot_bits(element, packing_of(element, packing))
    for name in sorted(SPANS, key=SPANS.__getitem__, reverse=True):
        if size % (SPANS[name] * 8) == 0:
            return name
    raise AtomError(
        f"{contiguous} elements of {element} are {size / 8:g} bytes, no multiple of a {CHUNK_BYTES}-byte chunk"
    )


@checked(AtomError)
def as_tile(
    layout: Layout | ComposedLayout | SmemTile,
    dtype_: DType | str,
    swizzle: str | None = None,
    major: str | None = None,
    packing: str | None = None,
) -> SmemTile:
    """Any shared layout as a tile. A plain layout with the name of a swizzle, or a layout under a swizzle.

    layout   (mn, k) -> offset. A plain layout counts elements. Under a swizzle it counts the swizzle's unit: elements,
             or bytes where the swizzle acts on bytes; a swizzle without unit acts on elements
    swizzle  for a plain layout; None is "none". A layout under a swizzle has its own
    major    which dimension is contiguous; None finds the one along which neighbours are one element apart

    Raises AtomError when the layout is not of two modes, when its swizzle is no mode of shared memory, when its strides
    split elements, or when no dimension is contiguous.

    >>> from layoutgemm import Swizzle
    >>> print(as_tile(Swizzle(3, 3, 3, unit=16) @ Layout((64, 64), (64, 1)), "bf16"))
    S<3,4,3>[bytes] o (64,64):(64,1) x bf16
    """
    if isinstance(layout, SmemTile):
        if swizzle not in (None, layout.swizzle_name) or major not in (None, layout.major):
            raise AtomError(f"the tile {layout} has a swizzle and a major of its own")
        return layout
    element = dtype(dtype_)
    stored = packing_of(element, packing)
    bits = slot_bits(element, stored)
    offset: int = 0
    if isinstance(layout, ComposedLayout):
        if swizzle is not None:
            raise AtomError(f"{layout} has a swizzle of its own; another, {shown(swizzle)}, is named")
        inner, offset, unit = layout.layout, layout.offset, layout.swizzle.unit or bits
        if not isinstance(inner, Layout):
            raise AtomError(f"{layout} is under more than one swizzle; shared memory has one")
        swizzle = _mode_name(layout.swizzle, unit)
        if unit != bits:
            inner = Layout(inner.shape, _rescaled(inner.stride, unit, bits, layout))
            offset = _rescaled(offset, unit, bits, layout)
    else:
        inner, swizzle = layout, swizzle or "none"
    if inner.rank != 2:
        raise AtomError(f"a tile's layout has two modes, mn and k; {inner} has {inner.rank}")
    found = major or _major(inner)
    return SmemTile(element, found, swizzle, inner, stored, offset)


def _mode_name(swizzle: Swizzle, unit: int) -> str:
    on_bytes = Swizzle(swizzle.bits, swizzle.base, swizzle.shift, unit).recast("bytes")
    for name, mode in SWIZZLES.items():
        if mode.xor is not None and (swizzle_of(name) == on_bytes or on_bytes.bits == 0 == mode.xor[0]):
            return name
    known = ", ".join(f"{name} {swizzle_of(name)}" for name, mode in SWIZZLES.items() if mode.xor is not None)
    raise AtomError(f"{on_bytes} is no swizzle of shared memory; the modes are {known}")


def _rescaled(value: Any, old: int, new: int, layout: object) -> Any:
    if isinstance(value, tuple):
        return tuple(_rescaled(entry, old, new, layout) for entry in value)
    if value * old % new:
        raise AtomError(f"in {layout} a stride of {value} units of {old} bits is no whole number of {new}-bit elements")
    return value * old // new


def _major(layout: Layout) -> str:
    mn, k = layout[0].size, layout[1].size
    steps = {"K": layout(0, 1) - layout(0, 0) if k > 1 else 0, "MN": layout(1, 0) - layout(0, 0) if mn > 1 else 0}
    for name, step in steps.items():
        if step == 1:
            return name
    raise AtomError(
        f"in {layout} neither dimension is contiguous: the next element along mn is {steps['MN']} away, along k "
        f"{steps['K']}"
    )
