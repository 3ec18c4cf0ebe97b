"""Shared-memory tiles that tensor cores and the copy engine agree on.

Both read a tile as *swizzle atoms* laid side by side: 8 rows of one span (16, 32, 64 or 128 bytes of the contiguous
dimension), in which 16-byte chunks are permuted by an XOR of address bits. A tile here is a plain layout from tile
coordinates to element offsets, plus the swizzle on byte addresses; everything else (box, descriptor) is derived from
those.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ..dtypes import DType, dtype
from ..errors import AtomError
from ..layouts import ComposedLayout, Layout, Swizzle

MAJORS = ("K", "MN")
# Rows of a swizzle atom, and bytes of the chunk that stays together: PTX ISA, "Shared Memory Matrix Layout", core
# matrix.
ATOM_ROWS = 8
CHUNK_BYTES = 16
# The four spans by the names that PTX and the driver use. B of the swizzle is log2(span / 16): the XOR takes that many
# bits, from the row number within the atom, onto the number of the 16-byte chunk within the span.
SPANS = {"none": 16, "32B": 32, "64B": 64, "128B": 128}


def swizzle_of(name: str) -> Swizzle:
    """The swizzle on byte addresses of mode "none", "32B", "64B" or "128B".

    Chunks of 2**4 bytes are permuted within a span by the bits just above the span's 128-byte line number: M = 4, S =
    3. Raises AtomError for another name. Source: PTX ISA, "Swizzling Modes" of the tensor copies.

    >>> print(swizzle_of("128B"), swizzle_of("64B")(0x80))
    S<3,4,3>[bytes] 144
    """
    if name not in SPANS:
        raise AtomError(f"unknown shared-memory swizzle {name!r}; known: {', '.join(SPANS)}")
    return Swizzle((SPANS[name] // CHUNK_BYTES).bit_length() - 1, 4, 3, unit="bytes")


@dataclass(frozen=True)
class SmemTile:
    """One operand tile in shared memory.

    dtype         element type
    major         "K" when K is contiguous, "MN" when the other dimension is
    swizzle_name  "none", "32B", "64B" or "128B"
    layout        (mn, k) -> element offset, before the swizzle
    """

    dtype: DType
    major: str
    swizzle_name: str
    layout: Layout

    @property
    def extent(self) -> tuple[int, int]:
        """(MN, K) extents of the tile, in elements."""
        return (self.layout[0].size, self.layout[1].size)

    @property
    def span(self) -> int:
        """Bytes of the contiguous dimension that one swizzle atom covers."""
        return SPANS[self.swizzle_name]

    @property
    def span_elements(self) -> int:
        """Elements of the contiguous dimension that one swizzle atom covers."""
        return self.span * 8 // self.dtype.bits

    @cached_property
    def swizzle(self) -> Swizzle:
        """The XOR on byte addresses."""
        return swizzle_of(self.swizzle_name)

    @property
    def bytes(self) -> int:
        """Bytes of the tile; the layout is compact, so this is its size in elements times their width."""
        return self.layout.size * self.dtype.bits // 8

    @property
    def alignment(self) -> int:
        """Bytes that the tile's address is to be a multiple of, so that XORing absolute address bits is XORing offsets.

        The pattern repeats after 8 spans; the copy engine wants 128 bytes at least (PTX ISA, cp.async.bulk.tensor).
        """
        return max(128, ATOM_ROWS * self.span)

    @cached_property
    def composed(self) -> ComposedLayout:
        """(mn, k) -> element offset with the swizzle applied, everything counted in elements."""
        return ComposedLayout(self.swizzle.recast(self.dtype.bits), 0, self.layout)

    def byte(self, mn, k):  # type: ignore[no-untyped-def]  # ints, arrays or traced integers alike
        """(mn, k) -> byte address of the element relative to the tile, swizzled.

        >>> smem_tile((64, 64), "bf16", "K").byte(1, 0), smem_tile((64, 64), "bf16", "K").byte(1, 8)
        (144, 128)
        """
        return self.swizzle(self.layout(mn, k) * self.dtype.bytes)

    def __str__(self) -> str:
        return f"{self.swizzle} o {self.layout} x {self.dtype}"


def smem_atom(dtype_: DType | str, major: str, swizzle: str) -> Layout:
    """The swizzle atom as a layout (mn, k) -> element offset: 8 spans, one under another.

    Raises AtomError for an unknown major or swizzle. Source: cute/atom/mma_traits_sm90_gmma.hpp, the canonical layouts.

    >>> print(smem_atom("bf16", "K", "128B"), smem_atom("bf16", "MN", "32B"))
    (8,64):(64,1) (16,8):(1,16)
    """
    swizzle_of(swizzle)
    if major not in MAJORS:
        raise AtomError(f"major is {major!r}; it is 'K' or 'MN'")
    width = SPANS[swizzle] * 8 // dtype(dtype_).bits
    if major == "K":
        return Layout((ATOM_ROWS, width), (width, 1))
    return Layout((width, ATOM_ROWS), (1, width))


def smem_tile(extent: tuple[int, int], dtype_: DType | str, major: str, swizzle: str | None = None) -> SmemTile:
    """The tile of (mn, k) elements made of swizzle atoms, as one tensor copy per span writes it.

    The contiguous dimension is cut into spans; within a span the other dimension runs in full, then comes the next
    span. So each span is one box of the copy engine, and atoms that follow one another are 8 spans apart.

    extent   (mn, k) in elements
    major    "K" or "MN": which dimension is contiguous
    swizzle  a mode of `SPANS`, or None for the widest whose span divides the contiguous dimension

    Raises AtomError, naming the arithmetic, when the atom does not divide the tile.

    >>> print(smem_tile((64, 128), "bf16", "K").layout)
    ((8,8),(64,2)):((64,512),(1,4096))
    >>> print(smem_tile((64, 64), "bf16", "MN", "64B").layout)
    ((32,2),(8,8)):((1,2048),(32,256))
    """
    element = dtype(dtype_)
    if major not in MAJORS:
        raise AtomError(f"major is {major!r}; it is 'K' or 'MN'")
    contiguous = 1 if major == "K" else 0
    if swizzle is None:
        swizzle = widest_swizzle(extent[contiguous], element)
    atom = smem_atom(element, major, swizzle)
    for axis, name in enumerate(("MN", "K")):
        if extent[axis] % atom[axis].size:
            raise AtomError(
                f"a {extent[0]}x{extent[1]} tile of {element}, {major}-major, swizzle {swizzle}: its {name} extent "
                f"{extent[axis]} is no multiple of the atom's {atom[axis].size}"
            )
    # The dimension across the span is tiled first, so a whole column of atoms is one box.
    order = (0, 1) if major == "K" else (1, 0)
    return SmemTile(element, major, swizzle, atom.tile_to_shape(extent, order))


def widest_swizzle(contiguous: int, dtype_: DType | str) -> str:
    """The widest swizzle whose span divides `contiguous` elements; raises AtomError when not even 16 bytes do.

    >>> widest_swizzle(64, "bf16"), widest_swizzle(96, "bf16"), widest_swizzle(24, "bf16")
    ('128B', '64B', 'none')
    """
    element = dtype(dtype_)
    size = contiguous * element.bits
    for name in sorted(SPANS, key=SPANS.__getitem__, reverse=True):
        if size % (SPANS[name] * 8) == 0:
            return name
    raise AtomError(
        f"{contiguous} elements of {element} are {size / 8:g} bytes, no multiple of a {CHUNK_BYTES}-byte chunk"
    )
