"""Copies to and from tensor memory.

They are tcgen05.ld and tcgen05.st (registers), and tcgen05.cp (from shared memory).

A load or store moves some lanes times some columns between tensor memory and the registers of one warp. One table says
for each shape which lane and column the first registers of a thread have; repetition goes on along the columns. From it
follow the thread-value maps onto a reference tile, and the explicit maps onto lanes and columns.

What the maps rest on: the PTX ISA's text and tables, CUTLASS's traits, and agreement with the CuTe DSL; no device with
tensor memory has run them.

Left out: the .spcompress loads of sm_107a, whose compressed registers no document read here describes, and
tcgen05.shift, of which the PTX ISA's text does not say what the last row receives.

Sources: PTX ISA, "Data Movement Shape", "Packing and Unpacking", "tcgen05.ld", "tcgen05.st", "tcgen05.cp", "Optional
Decompression"; cute/atom/copy_traits_sm100.hpp.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ...arguments import checked, shown
from ...dtypes import DType, dtype, f32
from ...errors import AtomError
from ...layouts import E, Layout
from ...layouts.int_tuple import StrideEntry
from ..targets import TENSOR_MEMORY_ARCHS
from ..tmem.layout import COLUMNS, WARP_LANES, WORD_BITS
from .base import CopyAtom

REPETITIONS = (1, 2, 4, 8, 16, 32, 64, 128)
MAX_REGISTERS = 128


@dataclass(frozen=True)
class MovementShape:
    """One repetition of a tcgen05.ld or .st shape, for the threads of a warp.

    lanes      lanes that it covers
    thread     thread -> (lane, column) of its first register; a thread mode without a stride is the half split
    registers  further registers of the repetition -> (lane, column), as (extent, lane step, column step)
    columns    columns that the next repetition lies further on
    """

    lanes: int
    thread: tuple[tuple[int, int, int], ...]
    registers: tuple[tuple[int, int, int], ...]
    columns: int


# PTX ISA, "Data Movement Shape", figures "Matrix Fragment for shape ...": (extent, lanes, columns) of each mode. The
# second mode of 16x32bx2 moves on by the half split, an operand of the instruction.
FRAGMENTS: dict[str, MovementShape] = {
    "32x32b": MovementShape(32, ((32, 1, 0),), (), 1),
    "16x64b": MovementShape(16, ((2, 8, 0), (2, 0, 1), (8, 1, 0)), (), 2),
    "16x128b": MovementShape(16, ((4, 0, 1), (8, 1, 0)), ((2, 8, 0),), 4),
    "16x256b": MovementShape(16, ((4, 0, 2), (8, 1, 0)), ((2, 0, 1), (2, 8, 0)), 8),
    "16x32bx2": MovementShape(16, ((16, 1, 0), (2, 0, 0)), (), 1),
}
HALVED = "16x32bx2"
_ORIGIN = Layout(1, E(0))


@dataclass(frozen=True)
class TmemCopyAtom(CopyAtom):
    """A copy to or from tensor memory, with the places it touches.

    shape     the PTX shape
    repeat    repetitions along the columns
    tmem      loads and stores: (thread, value) -> (lane, column[, bit]) from the instruction's address; values are
              elements, in the order of the registers and of their bits.
              tcgen05.cp: (row, bit of the row, copy) -> (lane, column, bit)
    pack      .pack::16b or .unpack::16b: a register holds the low halves of two columns side by side
    split     columns between the halves of 16x32bx2, or None
    reduction tcgen05.ld.red: what one more register receives of the values loaded, "min", "max.abs", ...; or ""
    unpacked  tcgen05.cp that decompresses: (element, group of 16) -> bit of the row in shared memory; None otherwise
    """

    shape: str = ""
    repeat: int = 1
    tmem: Layout = _ORIGIN
    pack: bool = False
    split: int | None = None
    reduction: str = ""
    unpacked: Layout | None = None

    @property
    def registers(self) -> int:
        """32-bit registers of each thread, without the one of a reduction; none for tcgen05.cp.

        >>> tcgen05_ld("16x256b", 32).registers, tcgen05_cp("128x256b").registers
        (128, 0)
        """
        if "rmem" not in (self.source, self.target):
            return 0
        side = self.layout_dst if self.target == "rmem" else self.layout_src
        return int(side[1].size) * self.element.bits // WORD_BITS


def repetitions(shape: str) -> tuple[int, ...]:
    """The repetitions of a load or store shape. Powers of two, as far as 128 registers of a thread go.

    >>> repetitions("16x256b"), repetitions("16x128b")[-1], repetitions("32x32b")[-1]
    ((1, 2, 4, 8, 16, 32), 64, 128)
    """
    fragment = FRAGMENTS[shape]
    each = fragment.lanes * fragment.columns * (2 if shape == HALVED else 1) // WARP_LANES
    return tuple(r for r in REPETITIONS if r * each <= MAX_REGISTERS)


def _basis(lane: int, column: int) -> StrideEntry:
    assert not (lane and column)
    return lane * E(0) if lane else column * E(1) if column else 0


def _mode(parts: list[tuple[int, StrideEntry]]) -> Layout:
    """One mode of the given extents and strides, without those of extent 1."""
    kept = [(s, d) for s, d in parts if s > 1] or [(1, 0)]
    if len(kept) == 1:
        return Layout(*kept[0])
    return Layout(tuple([s for s, _ in kept]), tuple([d for _, d in kept]))


def _places(shape: str, repeat: int, split: int, stretch: int, first: list[tuple[int, StrideEntry]]) -> Layout:
    """(thread, value) -> place. `stretch` columns for each register's column; `first`: the values within a register."""
    fragment = FRAGMENTS[shape]
    thread = [(s, _basis(lane, column * stretch)) for s, lane, column in fragment.thread]
    if shape == HALVED:
        thread[1] = (2, _basis(0, split))
    values = [(s, _basis(lane, column * stretch)) for s, lane, column in fragment.registers]
    repeats = (repeat, _basis(0, fragment.columns * stretch))
    return Layout.join(_mode(thread), _mode([*first, *values, repeats]))


Move = tuple[DType, Layout, Layout, Layout, int | None]


def _move(name: str, shape: str, repeat: int, pack: bool, split: int | None, element: DType | str) -> Move:
    """Element type, maps of tensor memory and registers onto the reference tile, places and split."""
    if shape not in FRAGMENTS:
        raise AtomError(f"{name} has the shapes {', '.join(FRAGMENTS)}, not {shown(shape)}")
    fragment = FRAGMENTS[shape]
    legal = repetitions(shape)
    if repeat not in legal:
        raise AtomError(
            f"{name}.{shape} fills a thread's {MAX_REGISTERS} registers at x{legal[-1]}: "
            f"repetitions {', '.join(f'x{r}' for r in legal)}, not {shown(repeat)}"
        )
    kind = dtype(element)
    if WORD_BITS % kind.bits or (pack and kind.bits != 16):
        packs = "two 16-bit elements" if pack else "whole elements of 4, 8, 16 or 32 bits"
        raise AtomError(f"a register of {name}.{shape} holds {packs}, not {kind}")
    width = repeat * fragment.columns
    if shape == HALVED:
        # With nothing said, the second half follows the first one.
        split = width * (2 if pack else 1) if split is None else split
        if not 0 <= split < COLUMNS:
            raise AtomError(f"the half split of {name}.{shape} is 0..{COLUMNS - 1} columns, not {shown(split)}")
    elif split is not None:
        raise AtomError(f"only {HALVED} has a half split; {name}.{shape} has none")
    per_word = WORD_BITS // kind.bits
    # The reference tile counts elements along a lane, and lanes after that; halves lie side by side in it.
    row = width * (2 if shape == HALVED else 1)
    tile = Layout((fragment.lanes, row), (per_word * row, per_word))
    words = tile.compose(_places(shape, repeat, width, 1, []))
    elements = Layout.join(words[0], _mode([(per_word, 1), *_flat_modes(words[1])]))
    warp = Layout((WARP_LANES, fragment.lanes * row * per_word), (0, 1))
    within = E(1) if pack else kind.bits * E(2)
    places = _places(shape, repeat, split or 0, 2 if pack else 1, [(per_word, within)])
    return kind, warp, elements, places, split


def _flat_modes(layout: Layout) -> list[tuple[int, StrideEntry]]:
    flat = layout.flatten()
    return list(zip(flat.shape, flat.stride)) if isinstance(flat.shape, tuple) else [(flat.shape, flat.stride)]


_SOURCE = 'PTX ISA, "Data Movement Shape" and "{}"; cute/atom/copy_traits_sm100.hpp; no device has run it here'


# tcgen05.ld.red: shapes, architectures, and for each type what it can compute. PTX ISA, "tcgen05.ld".
REDUCING_SHAPES = ("32x32b", HALVED)
REDUCING_ARCHS = ("sm_103a", "sm_110a")
REDUCTIONS: dict[str, tuple[str, ...]] = {
    "f32": ("min", "max", "min.abs", "max.abs", "min.NaN", "max.NaN", "min.abs.NaN", "max.abs.NaN"),
    "i32": ("min", "max"),
    "u32": ("min", "max"),
}
_SIGNS = {"f32": "f32", "i32": "s32", "u32": "u32"}


def _reducing(shape: str, repeat: int, pack: bool, kind: DType, reduce: str) -> None:
    """Raise AtomError where tcgen05.ld.red has no such form."""
    if shape not in REDUCING_SHAPES or repeat == 1 or pack:
        raise AtomError(
            f"tcgen05.ld.red has the shapes {' and '.join(REDUCING_SHAPES)} from x2 on, without .pack::16b; "
            f"not {shape}.x{repeat}{'.pack::16b' if pack else ''}"
        )
    if reduce not in REDUCTIONS.get(kind.name, ()):
        known = "; ".join(f"{name}: {', '.join(ways)}" for name, ways in REDUCTIONS.items())
        raise AtomError(f"tcgen05.ld.red computes {known}; not {shown(reduce)} of {kind}")


@checked(AtomError)
def tcgen05_ld(
    shape: str,
    repeat: int,
    pack: bool = False,
    split: int | None = None,
    element: DType | str = f32,
    reduce: str = "",
) -> TmemCopyAtom:
    """tcgen05.ld: one warp reads `shape` times `repeat` columns of tensor memory into its registers.

    shape    "32x32b", "16x64b", "16x128b", "16x256b" or "16x32bx2": lanes x bits of one repetition
    repeat   1, 2, 4, ... 128, as far as a thread's registers go (128)
    pack     .pack::16b: a register takes the low 16 bits of two columns side by side, so twice the columns are read
    split    16x32bx2: columns from the first half's address to the second's (default: side by side)
    element  what the maps count; with `pack` a 16-bit type
    reduce   tcgen05.ld.red of sm_103a: "min", "max", of f32 also with .abs, .NaN, .abs.NaN, into one more register

    The reference tile counts elements along a lane, then lanes: element = columns * lane + column for 32-bit ones.
    The warp reads the lanes of its own quarter; the address's lane is 32*(warp % 4), or 16 more for the shapes of 16
    lanes. Raises AtomError for every other combination. Source: PTX ISA, "tcgen05.ld".

    >>> ld = tcgen05_ld("32x32b", 4)
    >>> print(ld, ld.layout_dst, ld.tmem)
    tcgen05.ld.sync.aligned.32x32b.x4.b32 (32,4):(4,1) (32,4):(1@0,1@1)
    >>> for shape in ("16x64b", "16x128b", "16x256b", "16x32bx2"):
    ...     print(tcgen05_ld(shape, 2).tmem)
    ((2,2,8),2):((8@0,1@1,1@0),2@1)
    ((4,8),(2,2)):((1@1,1@0),(8@0,4@1))
    ((4,8),(2,2,2)):((2@1,1@0),(1@1,8@0,8@1))
    ((16,2),2):((1@0,2@1),1@1)
    >>> print(tcgen05_ld("16x64b", 2, pack=True, element="f16").tmem)
    ((2,2,8),(2,2)):((8@0,2@1,1@0),(1@1,4@1))
    >>> print(tcgen05_ld("32x32b", 8, reduce="max.abs"))
    tcgen05.ld.red.sync.aligned.32x32b.x8.max.abs.f32
    """
    moved = _move("tcgen05.ld", shape, repeat, pack, split, element)
    if not reduce:
        return _copy("tcgen05.ld", ".pack::16b.b32" if pack else ".b32", moved, shape, repeat, pack)
    _reducing(shape, repeat, pack, moved[0], reduce)
    suffix = f".{reduce}.{_SIGNS[moved[0].name]}"
    return replace(_copy("tcgen05.ld.red", suffix, moved, shape, repeat, pack), archs=REDUCING_ARCHS, reduction=reduce)


@checked(AtomError)
def tcgen05_st(
    shape: str, repeat: int, unpack: bool = False, split: int | None = None, element: DType | str = f32
) -> TmemCopyAtom:
    """tcgen05.st, the way back of `tcgen05_ld`. `unpack` (.unpack::16b) lays a register's halves into two columns.

    >>> st = tcgen05_st("16x128b", 1)
    >>> print(st, st.layout_src, st.layout_dst)
    tcgen05.st.sync.aligned.16x128b.x1.b32 ((4,8),2):((1,4),32) (32,64):(0,1)
    >>> st.tmem == tcgen05_ld("16x128b", 1).tmem
    True
    """
    moved = _move("tcgen05.st", shape, repeat, unpack, split, element)
    return _copy("tcgen05.st", f"{'.unpack::16b' if unpack else ''}.b32", moved, shape, repeat, unpack)


def _copy(name: str, suffix: str, moved: Move, shape: str, repeat: int, packed: bool) -> TmemCopyAtom:
    """The load or store `name` of what `_move` found."""
    kind, warp, elements, places, gap = moved
    (source, layout_src), (target, layout_dst) = ("tmem", warp), ("rmem", elements)
    if name == "tcgen05.st":
        (source, layout_src), (target, layout_dst) = ("rmem", elements), ("tmem", warp)
    return TmemCopyAtom(
        ptx=f"{name}.sync.aligned.{shape}.x{repeat}{suffix}",
        archs=TENSOR_MEMORY_ARCHS,
        element=kind,
        threads=WARP_LANES,
        source=source,
        target=target,
        layout_src=layout_src,
        layout_dst=layout_dst,
        reference=_SOURCE.format(name.removesuffix(".red")),
        shape=shape,
        repeat=repeat,
        tmem=places,
        pack=packed,
        split=gap,
    )


@dataclass(frozen=True)
class LaneSpread:
    """The rows of shared memory over the lanes, by tcgen05.cp.

    rows    modes of the rows, as (extent, lanes between)
    bits    bits of a row
    copies  modes of the copies, likewise
    """

    rows: tuple[tuple[int, int], ...]
    bits: int
    copies: tuple[int, int] = (1, 0)


# (shape, multicast) -> where rows go. PTX ISA, "tcgen05.cp": warp pairs 02, 13 or 01, 23 hold equal rows;
# cute/atom/copy_traits_sm100.hpp, SM100_UTCCP_*.
SPREADS: dict[tuple[str, str], LaneSpread] = {
    ("128x256b", ""): LaneSpread(((128, 1),), 256),
    ("128x128b", ""): LaneSpread(((128, 1),), 128),
    ("4x256b", ""): LaneSpread(((4, 32),), 256),
    ("64x128b", "warpx2::02_13"): LaneSpread(((64, 1),), 128, (2, 64)),
    ("64x128b", "warpx2::01_23"): LaneSpread(((32, 1), (2, 64)), 128, (2, 32)),
    ("32x128b", "warpx4"): LaneSpread(((32, 1),), 128, (4, 32)),
}
# .src_fmt -> bits of an element; 16 of them lie in 128 bits, padding after them. PTX ISA, "Optional Decompression".
FORMATS = {"b6x16_p32": 6, "b4x16_p64": 4}
CHUNK_ELEMENTS = 16


@checked(AtomError)
def tcgen05_cp(
    shape: str, multicast: str = "", cta_group: int = 1, source_format: str = "", element: DType | str = "u8"
) -> TmemCopyAtom:
    """tcgen05.cp: copies rows that a matrix descriptor names from shared to tensor memory.

    shape, multicast  "128x256b", "128x128b", "4x256b", "64x128b" with "warpx2::02_13" or "warpx2::01_23", "32x128b"
                      with "warpx4": rows x bits, and which quarters of the lanes hold equal rows; in one as PTX has it,
                      "32x128b.warpx4", too
    cta_group         2 copies into both blocks of a pair
    source_format     "b6x16_p32" or "b4x16_p64": 16 elements of 6 or 4 bits and their padding become 16 bytes
    element           what the maps onto the reference tile count

    `tmem` maps (row, bit of the row, copy) to (lane, column, bit). The reference tile is CUTLASS's: bits are counted
    along the rows first, then along a row, then copies, and `element` groups that count. 4x256b counts within a tile of
    128 rows, of which it names every 32nd. Raises AtomError otherwise. Source: PTX ISA, "tcgen05.cp".

    >>> cp = tcgen05_cp("32x128b", "warpx4")
    >>> print(cp, cp.tmem)
    tcgen05.cp.cta_group::1.32x128b.warpx4 (32,(32,4),4):(1@0,(1@2,1@1),32@0)
    >>> print(tcgen05_cp("64x128b", "warpx2::01_23").tmem)
    ((32,2),(32,4),2):((1@0,64@0),(1@2,1@1),32@0)
    >>> print(tcgen05_cp("128x256b").tmem, tcgen05_cp("4x256b").tmem, tcgen05_cp("128x128b").tmem[1].size)
    (128,(32,8),1):(1@0,(1@2,1@1),0) (4,(32,8),1):(32@0,(1@2,1@1),0) 128
    >>> print(tcgen05_cp("64x128b", "warpx2::02_13").tmem)
    (64,(32,4),2):(1@0,(1@2,1@1),64@0)
    """
    shape, _, named = shape.partition(".")
    multicast = multicast or named
    if (shape, multicast) not in SPREADS:
        known = ", ".join(name + (f".{way}" if way else "") for name, way in SPREADS)
        raise AtomError(f"tcgen05.cp has {known}; not {shown(shape + (f'.{multicast}' if multicast else ''))}")
    if cta_group not in (1, 2):
        raise AtomError(f"cta_group of tcgen05.cp is 1 or 2, not {shown(cta_group)}")
    if source_format and source_format not in FORMATS:
        raise AtomError(f"tcgen05.cp decompresses {', '.join(FORMATS)}, not {shown(source_format)}")
    kind = dtype(element)
    spread = SPREADS[shape, multicast]
    rows = _mode([(count, lanes * E(0)) for count, lanes in spread.rows])
    bits = Layout((WORD_BITS, spread.bits // WORD_BITS), (E(2), E(1)))
    copies = Layout(spread.copies[0], spread.copies[1] * E(0) if spread.copies[0] > 1 else 0)
    # The order of the reference tile: the first mode of rows, bits, further modes of rows, copies.
    first, *further = [count for count, _ in spread.rows]
    if shape == "4x256b":
        source = target = Layout((first, spread.bits), (spread.rows[0][1], spread.rows[0][1] * first))
    else:
        extents = (first, spread.bits, *further, spread.copies[0])
        compact = Layout(extents)
        source = Layout(extents, (*compact.stride[:-1], 0)) if spread.copies[0] > 1 else compact
        target = Layout(compact.size)
    packed = FORMATS.get(source_format)
    unpacked = None
    if packed is not None:
        groups = spread.bits // (8 * CHUNK_ELEMENTS)
        unpacked = Layout((CHUNK_ELEMENTS, groups), (packed, 8 * CHUNK_ELEMENTS))
    return TmemCopyAtom(
        ptx=f"tcgen05.cp.cta_group::{cta_group}.{shape}{f'.{multicast}' if multicast else ''}"
        f"{f'.b8x16.{source_format}' if source_format else ''}",
        archs=TENSOR_MEMORY_ARCHS,
        element=kind,
        threads=cta_group,
        source="smem",
        target="tmem",
        layout_src=Layout.join(Layout(cta_group, 0), source.upcast(kind.bits)),
        layout_dst=Layout.join(Layout(cta_group, 0), target.upcast(kind.bits)),
        reference=_SOURCE.format("tcgen05.cp"),
        shape=shape,
        tmem=Layout.join(rows, bits, copies),
        unpacked=unpacked,
    )


def tcgen05_copies() -> Iterator[TmemCopyAtom]:
    """Every tcgen05.ld, .ld.red, .st and .cp. They have all shapes, repetitions, packings, reductions, multicasts and
    formats.

    >>> sum(1 for _ in tcgen05_copies())
    352
    """
    for make in (tcgen05_ld, tcgen05_st):
        for shape in FRAGMENTS:
            for repeat in repetitions(shape):
                for pack in (False, True):
                    yield make(shape, repeat, pack, element="f16" if pack else f32)
    for shape in REDUCING_SHAPES:
        for repeat in repetitions(shape)[1:]:
            for name, ways in REDUCTIONS.items():
                for way in ways:
                    yield tcgen05_ld(shape, repeat, element=name, reduce=way)
    for shape, multicast in SPREADS:
        for group in (1, 2):
            for source_format in ("", *FORMATS):
                yield tcgen05_cp(shape, multicast, group, source_format)
