"""Layouts and tiles from the texts of a command line."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from ..arguments import shown
from ..atoms import SmemTile, smem_tile
from ..dtypes import DType, dtype
from ..errors import LayoutError, ParseError
from ..layouts import ComposedLayout, CoordinateTensor, Layout, LinearLayout, Swizzle, parse
from ..layouts.basis import ScaledBasis
from ..layouts.listing import Listing
from ..layouts.notation import Parsed, stated_extents
from ..layouts.symbols.facts import Facts
from ..view.grid import Drawable
from .arguments import one_line, size_pair

AnyLayout: TypeAlias = "Layout | ComposedLayout | CoordinateTensor"
Tile: TypeAlias = "AnyLayout | SmemTile"
LAYOUT_HELP = "a layout, as in '(8,64):(64,1)', 'S<3,3,3> o 0 o (8,64):(64,1)', or a tile, as in smem:64x64:bf16:K:128B"
STATED = "a layout is written '(M,N):(N,1)' or 'S<3,3,3> o 0 o (8,64):(64,1)', a tile smem:64x64:bf16:K:128B"
FORMS = "a layout is written '(8,64):(64,1)' or 'S<3,3,3> o 0 o (8,64):(64,1)', a tile smem:64x64:bf16:K:128B"


# Objects that only `show` takes, by their prefix.
NO_TILES = dict.fromkeys(("wgmma", "mma", "tcgen05", "tiled", "copy"), "an instruction, held by threads") | {
    "schedule": "an order of tiles"
}


def tile_of(text: str) -> SmemTile:
    """`smem:MNxK:TYPE[:MAJOR[:SWIZZLE]]` as a shared-memory tile. Defaults: K-major, the widest swizzle that fits.

    >>> print(tile_of("smem:8x64:bf16"), tile_of("smem:64x8:f32:MN:32B"))
    S<3,4,3>[bytes] o (8,64):(64,1) x bf16 S<1,4,3>[bytes] o ((8,8),8):((1,64),8) x f32
    """
    return plain_tile(*parts_of_tile(text))


def parts_of_tile(text: str) -> tuple[tuple[int, int], DType, str, str | None]:
    """The extent, element type, major and swizzle of `smem:MNxK:TYPE[:MAJOR[:SWIZZLE]]`. Raises LayoutError.

    >>> parts_of_tile("smem:8x64:bf16")
    ((8, 64), dtype('bf16'), 'K', None)
    """
    parts = text.split(":")
    if parts[0] != "smem" or not 3 <= len(parts) <= 5:
        raise LayoutError(
            f"{shown(text)}: a tile is written smem:MNxK:TYPE[:MAJOR[:SWIZZLE]], as in smem:64x64:bf16:K:128B"
        )
    extent = size_pair(parts[1], "a tile's extent is written MNxK, as in smem:64x64:bf16")
    return extent, dtype(parts[2]), parts[3] if len(parts) > 3 else "K", parts[4] if len(parts) > 4 else None


def plain_tile(
    extent: tuple[int, int], element: DType | str, major: str, swizzle: str | None, packing: str | None = None
) -> SmemTile:
    """`smem_tile` with its layout coalesced mode by mode, as a user writes it."""
    tile = smem_tile(extent, element, major, swizzle, packing)
    return replace(tile, layout=tile.layout.coalesce((1, 1)))


def stated(text: str, facts: Facts) -> Tile:
    """A layout or a tile of a statement; its names are symbols under the facts.

    Raises LayoutError with the expected form.

    >>> print(stated("(64,M//64):(1,64)", Facts("64 | M")))
    (64,M//64):(1,64)
    """
    if text.startswith("smem:"):
        return tile_of(text)
    family = text.partition(":")[0]
    if family in NO_TILES:  # as a label before a mode of symbols it would be read
        raise LayoutError(
            f"{shown(text)} is {NO_TILES[family]}, and no layout: {STATED}, an operand of an atom wgmma:64:bf16:C"
        )
    return _parsed(text, STATED, facts)


def parsed(text: str, forms: str = FORMS, facts: Facts | tuple[()] = ()) -> Parsed:
    """The value of a text in any notation that is read. Raises LayoutError with the expected form."""
    try:
        return parse(text, facts)
    except ParseError as error:
        needs = getattr(error.__cause__, "needs", ())
        way = f"state a fact, as --given '{needs[0]}'" if needs and forms == STATED else forms
        raise LayoutError(f"{one_line(error)}: {way}") from None


def _parsed(text: str, forms: str, facts: Facts | tuple[()] = ()) -> AnyLayout:
    found = parsed(text, forms, facts)
    if isinstance(found, Swizzle):
        raise LayoutError(f"{text} is a swizzle alone, without extent: write '{found} o 0 o (8,64):(64,1)'")
    if isinstance(found, Listing):
        raise LayoutError(
            f"a listing of {', '.join(found)}: paste the line of one layout, as in LayoutA_TV: (4,2):(1,4)"
        )
    if isinstance(found, ScaledBasis):
        raise LayoutError(f"{text} is a stride alone, without extent: write '(4,8):(E<0>,E<1>)'")
    if isinstance(found, LinearLayout):
        return layout_of_bases(found)
    if not isinstance(found, Layout | ComposedLayout | CoordinateTensor):
        raise LayoutError(f"{text} is an instruction, held by threads, and no layout: {forms}; `show` takes both")
    return found


def layout_of_bases(found: LinearLayout) -> Layout | ComposedLayout:
    """A linear layout of Triton as a layout, under a swizzle if need be. Inputs of one value are left out.

    Raises LayoutError where no layout under a swizzle is it.
    """
    found = LinearLayout(found.columns, tuple([n for n in found.bits if n]), (), found.width, found.offset)
    try:
        return found.to_layout()
    except LayoutError:
        return found.to_composed()


@dataclass(frozen=True)
class LinearTile:
    """A linear layout (thread, value) -> element without a shape:stride, for pictures."""

    linear: LinearLayout

    @property
    def shape(self) -> tuple[int, ...]:
        """The numbers of threads and of values."""
        return self.linear.shape

    def __call__(self, *coord: object) -> object:
        """(thread, value) -> element."""
        return self.linear(*coord)

    def __str__(self) -> str:
        return "a linear layout that no shape:stride is"


def held_tile(text: str) -> tuple[Drawable, tuple[int, int]] | None:
    """Triton's layout of a matrix or a vector in registers. (thread, value) -> element, and the tile it covers.

    None for another text, and for a tensor of several blocks or of other ranks.

    >>> tv, tile = held_tile("BlockedLayout([1, 2], [8, 4], [2, 1], [1, 0])") or (None, None)
    >>> print(tv, tile)
    ((4,16),2):((32,1),16) (16, 8)
    """
    found = parsed(text)
    if not isinstance(found, LinearLayout) or found.names[:3] != ("register", "lane", "warp") or any(found.bits[3:]):
        return None
    extents, values = stated_extents(text), found.bits[0]
    if extents is None or len(extents) > 2:
        return None
    columns = (*found.columns[values:], *found.columns[:values])
    linear = LinearLayout(columns, (len(columns) - values, values), (), found.width, found.offset)
    try:
        tv: Drawable = linear.to_layout()
    except LayoutError:
        try:
            tv = linear.to_composed()
        except LayoutError:
            tv = LinearTile(linear)
    rows, count = extents if len(extents) == 2 else (1, extents[0])
    return tv, (rows, count)


def is_buffer(text: str) -> bool:
    """True for Triton's layout of a buffer in shared memory, offset -> element.

    >>> is_buffer('{"offset": [[0, 1], [1, 0]]}'), is_buffer("(4,8):(8,1)"), is_buffer("smem:64x64:bf16")
    (True, False, False)
    """
    try:
        found = None if text.startswith("smem:") else parse(text)
    except LayoutError:
        return False
    return isinstance(found, LinearLayout) and found.names[:1] == ("offset",)


def tile_in_memory(text: str) -> Tile:
    """`layout_of` of a tile: of a buffer of Triton, offset -> element, the inverse. Raises LayoutError.

    >>> swizzled = "#ttg.swizzled_shared<{vec = 8, perPhase = 1, maxPhase = 8, order = [1, 0]}>"
    >>> print(tile_in_memory(f"!ttg.memdesc<64x64xf16, {swizzled}, #ttg.shared_memory>"))
    S<3,3,3> o 0 o (64,64):(64,1)
    """
    found = None if text.partition(":")[0] in ("smem", *NO_TILES) else parsed(text)
    if not isinstance(found, LinearLayout):
        return layout_of(text)
    if found.names[:1] != ("offset",):
        raise LayoutError(f"{text} is held by threads, and banks are of shared memory: paste a !ttg.memdesc<...>")
    extents = stated_extents(text)
    if extents is None or any(bits > 0 for bits in found.bits[1:]):
        raise LayoutError(
            f"{text} is no buffer of one block with a shape: paste its type, !ttg.memdesc<64x64xf16, ...>"
        )
    to_offset = found.inverse()
    bits = tuple([extent.bit_length() - 1 for extent in extents])
    return layout_of_bases(LinearLayout(to_offset.columns, bits, (), to_offset.width))


def layout_of(text: str) -> Tile:
    """A layout, a swizzled layout or a tile from its text. Raises LayoutError with the expected form.

    >>> print(layout_of("tCsA: Sw<3,4,3>_smem_ptr[16b](0x400) o (_8,_64):(_64,_1)"))
    S<3,3,3>[16b] o 0 o (8,64):(64,1)
    >>> print(layout_of("{'register': [[0, 1]], 'lane': [[1, 0], [2, 0]]}"))
    (2,4):(4,1)
    """
    if text.startswith("smem:"):
        return tile_of(text)
    family = text.partition(":")[0]
    if family in NO_TILES:
        raise LayoutError(f"{text} is {NO_TILES[family]}, and shared memory holds tiles: {FORMS}; `show` takes both")
    return _parsed(text, FORMS)
