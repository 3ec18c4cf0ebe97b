"""TMA loads of convolution windows (im2col mode). The tensor map, the coordinates, and the element at each address.

A convolution is a GEMM whose matrix A has a row an output pixel and a column (channel, filter tap). Memory holds the
activations only, channels innermost. An im2col load builds a tile of A from them, with zeros in the padding:

    base pixel      walks along W, then H, then D, then the images, inside the pixel box
    pixel box       from the lower corner to (extent - 1 + upper corner) along each spatial dimension, both included
    traversal       every steps[i]-th pixel of the box: the stride of the convolution
    offsets         added to every base pixel: the filter tap times the dilation
    shared memory   one row a pixel, of `channels` elements; rows are compact and swizzled, as in tiled mode

A wide copy (im2col::w, im2col::w::128, of sm_100a) keeps H and D. It walks along W and the images: its pixel box has
W alone, and follows the coordinates along H and D. It may begin left of the box, and it has two operands:

    wHalo           pixels of the walk beyond the column, in the rows behind it; a first layer of a filter's later taps
    wOffset         added to W and to the box

im2col::w::128 has columns of 128 pixels. Where its halo lies in shared memory PTX shows in a figure alone, so one is
refused.

`Im2colMap` is what the driver encodes, `Im2colPlan` what a kernel needs to fill one tile of A, `tma_im2col` derives it.

Sources: PTX ISA, "im2col mode" and cp.async.bulk.tensor; CUDA Driver API, cuTensorMapEncodeIm2col. NVIDIA/cutlass,
cute/atom/copy_traits_sm90_im2col.hpp (corners in the order W, H, D). For wide copies PTX ISA, "im2col::w and
im2col::w::128 modes", and cuTensorMapEncodeIm2colWide. No im2col load has run on hardware here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ...arguments import IntTuple, checked, shown
from ...dtypes import DType
from ...errors import TmaError
from ...layouts import Layout
from ...layouts.display import HasPicture
from ...lazy_numpy import np
from . import engine
from .derive import tma_load
from .plan import TmaCopy
from .rules import EDGE_UNIT, MODES, RULES, RuleViolation, TensorMap, broken

if TYPE_CHECKING:
    import numpy.typing as npt

MAX_PIXELS = 1024
CORNER_BITS = {1: 16, 2: 8, 3: 5}  # bits of a corner and of an offset, by the number of spatial dimensions
SPATIAL = ("W", "H", "D")
WIDE = {"w": 0, "w::128": 128}  # modes of wide copies -> pixels of a column, 0: as the map has it
WIDE_BITS = 16  # of a wide map's corners, and of the operands of its copies
WIDE_SWIZZLES = ("32B", "64B", "128B")


@dataclass(frozen=True)
class Im2colMap:
    """The arguments of cuTensorMapEncodeIm2col: a global tensor, its pixel box, and one column of pixels.

    dtype           element type
    extents         channels, W, then H and D where the tensor has them, images; elements
    strides         bytes, of every dimension but the channels
    lower, upper    corners of the pixel box, W first: pixels from the first and from the last of the tensor
    channels        elements of a pixel that one instruction moves
    pixels          pixels that one instruction moves
    steps           traversal strides of all dimensions; 1 for the channels and the images
    swizzle, format, l2_promotion, oob_fill   as of `TensorMap`
    wide            "w" or "w::128": of wide copies, whose corners are of W alone; the arguments are those of
                    cuTensorMapEncodeIm2colWide
    """

    dtype: DType
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    lower: tuple[int, ...]
    upper: tuple[int, ...]
    channels: int
    pixels: int
    steps: tuple[int, ...]
    swizzle: str = "none"
    format: str = ""
    l2_promotion: str = "128B"
    oob_fill: str = "zeros"
    wide: str = ""

    @property
    def rank(self) -> int:
        """The number of dimensions, 3 to 5."""
        return len(self.extents)

    @property
    def spatial(self) -> tuple[int, ...]:
        """The extents of W, H and D, as far as the tensor has them."""
        return self.extents[1:-1]

    @property
    def tiled(self) -> TensorMap:
        """The tiled map of one pixel of the same tensor. The rules that both modes share are stated there."""
        box = (self.channels, *(1,) * (self.rank - 1))
        return self._as_tiled(self.extents, self.strides, box, self.steps)

    @property
    def column(self) -> TensorMap:
        """A tiled map whose box fills shared memory as one instruction does: `channels` x `pixels`."""
        box = (self.channels, WIDE.get(self.wide) or self.pixels)
        return self._as_tiled(box, (0,), box, (1, 1))

    def _as_tiled(
        self, extents: tuple[int, ...], strides: tuple[int, ...], box: tuple[int, ...], steps: tuple[int, ...]
    ) -> TensorMap:
        return TensorMap(
            self.dtype, extents, strides, box, steps, self.swizzle, self.format, self.l2_promotion, self.oob_fill
        )

    @property
    def box(self) -> tuple[tuple[int, int], ...]:
        """The first and the last base pixel along W, H and D. Of a wide map along W."""
        parts = zip(self.spatial[: len(self.lower)], self.lower, self.upper, strict=True)
        return tuple((low, extent - 1 + high) for extent, low, high in parts)

    @property
    def visited(self) -> tuple[int, ...]:
        """Base pixels that the traversal visits along W, H and D, as `box`. The extents of the convolution's output.

        >>> from layoutgemm.dtypes import dtype
        >>> strides = (128, 128 * 9, 128 * 63)
        >>> Im2colMap(dtype("bf16"), (64, 9, 7, 2), strides, (-1, -1), (-1, -1), 64, 32, (1, 2, 1, 1)).visited
        (5, 7)
        """
        return tuple((last - first) // step + 1 for (first, last), step in zip(self.box, self.steps[1:-1]))

    @property
    def bytes(self) -> int:
        """Bytes that one instruction reports to its barrier; elements out of bounds count."""
        return engine.bytes_moved(self.column)

    def encode_arguments(self) -> dict[str, Any]:
        """The arguments of cuTensorMapEncodeIm2col(Wide) but the addresses, by their names, enumerators as numbers."""
        shared = self.tiled.encode_arguments()
        del shared["boxDim"]
        shared |= {"channelsPerPixel": self.channels, "pixelsPerColumn": self.pixels}
        if self.wide:
            width = {"pixelBoxLowerCornerWidth": self.lower[0], "pixelBoxUpperCornerWidth": self.upper[0]}
            return shared | width | {"mode": list(WIDE).index(self.wide)}
        return shared | {"pixelBoxLowerCorner": self.lower, "pixelBoxUpperCorner": self.upper}


def broken_rules(tmap: Im2colMap, address: int = 0) -> Iterator[RuleViolation]:
    """Every rule that an im2col map breaks, those that it shares with tiled maps included.

    >>> from layoutgemm.dtypes import dtype
    >>> tmap = Im2colMap(dtype("bf16"), (64, 9, 7, 2), (128, 1152, 8064), (-1, -129), (-1, -1), 64, 32, (1, 1, 1, 1))
    >>> for fault in broken_rules(tmap):
    ...     print(fault.rule.name, "|", fault.arithmetic)
    corner | the lower corner of H is -129; at rank 4 a corner is -128 to 127
    """
    if not 3 <= tmap.rank <= 5:
        yield RuleViolation(RULES["im2col rank"], f"{tmap.rank} dimensions {tmap.extents}; an im2col map has 3 to 5")
        return
    if tmap.wide not in ("", *WIDE):
        yield RuleViolation(RULES["im2col rank"], f"a map of mode {tmap.wide!r}: it is one of {', '.join(WIDE)}, or ''")
        return
    if not len(tmap.lower) == len(tmap.upper) == (1 if tmap.wide else tmap.rank - 2):
        corners = f"corners {tmap.lower} and {tmap.upper} for the {tmap.rank - 2} spatial dimensions of {tmap.extents}"
        yield RuleViolation(RULES["im2col rank"], corners)
        return
    names = ("C", *SPATIAL[: tmap.rank - 2], "N")
    shared = list(broken(tmap.tiled, address, "load", names))
    yield from shared
    if any(fault.rule.name == "rank" for fault in shared):
        return
    reach = 1 << ((WIDE_BITS if tmap.wide else CORNER_BITS[tmap.rank - 2]) - 1)
    if tmap.wide and tmap.swizzle not in WIDE_SWIZZLES:
        text = f"swizzle {tmap.swizzle} of a copy im2col::{tmap.wide}; it is {', '.join(WIDE_SWIZZLES)}"
        yield RuleViolation(RULES["im2col swizzle"], text)
    for side, corner in (("lower", tmap.lower), ("upper", tmap.upper)):
        for name, at in zip(SPATIAL, corner):
            if not -reach <= at < reach:
                text = f"the {side} corner of {name} is {at}; at rank {tmap.rank} a corner is {-reach} to {reach - 1}"
                yield RuleViolation(RULES["corner"], text)
    for name, (first, last) in zip(SPATIAL, tmap.box):
        if last < first:
            yield RuleViolation(
                RULES["pixel box"], f"the pixel box runs from {first} to {last} along {name}: it is empty"
            )
    if tmap.steps[-1] != 1:
        yield RuleViolation(RULES["step"], f"N is traversed in steps of {tmap.steps[-1]}: every image is visited")
    if not 1 <= tmap.pixels <= MAX_PIXELS:
        yield RuleViolation(RULES["pixels"], f"a column of {tmap.pixels} pixels; one has 1 to {MAX_PIXELS}")


# ---------------------------------------------------------------------------------------------------- one instruction


def base_pixels(tmap: Im2colMap, coordinates: Sequence[int]) -> list[engine.Ints]:
    """The base pixels of one instruction. Arrays of `pixels` coordinates along W, H, D and the images.

    coordinates: of the first pixel, (channel, W, H, D, image). Raises TmaError, rule "first pixel", for a pixel that
    the traversal does not visit.
    """
    if len(coordinates) != tmap.rank:
        raise TmaError(f"{len(coordinates)} coordinates {tuple(coordinates)} for rank {tmap.rank}", rule="rank")
    counts, numbers = tmap.visited, []
    for name, at, (first, last), step in zip(SPATIAL, coordinates[1:-1], tmap.box, tmap.steps[1:-1]):
        if not first <= at <= last or (at - first) % step:
            raise TmaError(
                f"a column begins at {name} = {at}; the pixel box has {first} to {last} in steps of {step}",
                rule="first pixel",
            )
        numbers.append((at - first) // step)
    weights = [1, *itertools.accumulate(counts, int.__mul__)]
    start = sum(n * weight for n, weight in zip((*numbers, coordinates[-1]), weights, strict=True))
    walk = start + np.arange(tmap.pixels, dtype=np.int64)
    found = [
        first + step * (walk // weight % count)
        for (first, _), step, weight, count in zip(tmap.box, tmap.steps[1:-1], weights, counts)
    ]
    return [*found, walk // weights[-1]]


def wide_pixels(tmap: Im2colMap, coordinates: Sequence[int], halo: int) -> list[engine.Ints]:
    """The base pixels of one wide copy and its halo. They are coordinates along W, H, D and the images.

    Raises TmaError, rule "first pixel", for one right of the pixel box; and for a halo of im2col::w::128.
    """
    if len(coordinates) != tmap.rank:
        raise TmaError(f"{len(coordinates)} coordinates {tuple(coordinates)} for rank {tmap.rank}", rule="rank")
    if halo and WIDE[tmap.wide]:
        raise TmaError(
            f"a halo of {halo} pixels of im2col::{tmap.wide}: PTX shows its place in shared memory in a figure alone; "
            "im2col::w has one",
            rule="offset",
        )
    (first, last), step, start = tmap.box[0], tmap.steps[1], coordinates[1]
    if start > last or (start >= first and (start - first) % step):
        raise TmaError(
            f"a column begins at W = {start}; the pixel box has {first} to {last} in steps of {step}, and it may begin "
            "left of that",
            rule="first pixel",
        )
    walk = np.arange(tmap.column.box[1] + halo, dtype=np.int64)
    begun, row = (last - start) // step + 1, tmap.visited[0]  # pixels of the first row of the walk, and of the others
    later = walk - begun
    at = np.where(later < 0, start + step * walk, first + step * (later % row))
    rest = [np.full_like(walk, fixed) for fixed in coordinates[2:-1]]
    return [at, *rest, coordinates[-1] + np.where(later < 0, 0, 1 + later // row)]


def global_bits(
    tmap: Im2colMap, coordinates: Sequence[int], offsets: Sequence[int]
) -> tuple[engine.Ints, npt.NDArray[np.bool_]]:
    """Bit offsets in the tensor and inside or not, two arrays [channels, pixels].

    offsets: im2col offsets along W, H and D; of a wide copy wHalo and wOffset, with the halo's pixels behind the
    others. Raises TmaError for an offset that the instruction cannot hold, and for a first channel that is not at a
    multiple of 16 bytes.
    """
    if tmap.wide:
        return _global_bits(tmap, coordinates, *_wide_at(tmap, coordinates, offsets))
    reach = 1 << CORNER_BITS[tmap.rank - 2]
    if len(offsets) != tmap.rank - 2 or not all(0 <= offset < reach for offset in offsets):
        raise TmaError(
            f"im2col offsets {tuple(offsets)}; rank {tmap.rank} takes {tmap.rank - 2} of 0 to {reach - 1}",
            rule="offset",
        )
    return _global_bits(tmap, coordinates, base_pixels(tmap, coordinates), offsets)


def _wide_at(
    tmap: Im2colMap, coordinates: Sequence[int], offsets: Sequence[int]
) -> tuple[list[engine.Ints], tuple[int, ...]]:
    """The pixels of a wide copy, and their offsets along W, H and D. Raises TmaError."""
    reach = 1 << WIDE_BITS - 1
    if len(offsets) != 2 or not all(0 <= offset < reach for offset in offsets):
        raise TmaError(f"wHalo and wOffset {tuple(offsets)}: two numbers of 0 to {reach - 1}", rule="offset")
    halo, offset = offsets
    return wide_pixels(tmap, coordinates, halo), (offset, *(0,) * (tmap.rank - 3))


def _global_bits(
    tmap: Im2colMap, coordinates: Sequence[int], base: list[engine.Ints], offsets: Sequence[int]
) -> tuple[engine.Ints, npt.NDArray[np.bool_]]:
    """`global_bits` of these base pixels."""
    if coordinates[0] * tmap.tiled.kind.smem_bits % 128:
        raise TmaError(f"channel {coordinates[0]} of {tmap.dtype} is no multiple of 16 bytes", rule="coordinate")
    at = [pixel + offset for pixel, offset in zip(base, (*offsets, 0), strict=True)]
    channel = coordinates[0] + np.arange(tmap.channels, dtype=np.int64)[:, None]
    inside = (channel >= 0) & (channel < tmap.extents[0])
    where = channel * tmap.tiled.kind.gmem_bits
    for index, extent, stride in zip(at, tmap.extents[1:], tmap.strides, strict=True):
        inside = inside & (index >= 0) & (index < extent)
        where = where + index * stride * 8
    return np.where(inside, where, 0), inside


def load(
    tmap: Im2colMap, memory: npt.NDArray[np.uint8], coordinates: Sequence[int], offsets: Sequence[int],
    shared: npt.NDArray[np.uint8], address: int,
) -> int:  # fmt: skip
    """cp.async.bulk.tensor in im2col mode: copies one column of pixels. Returns the bytes reported to the barrier.

    A wide copy's halo counts among them.

    memory   the tensor's bytes, from its first one on
    shared   shared memory's bytes, from address 0 on
    """
    source, inside = global_bits(tmap, coordinates, offsets)
    column = with_halo(tmap, offsets).column
    engine.move_in(tmap.tiled, memory, source, inside, shared, engine.shared_bits(column, address))
    return engine.bytes_moved(column)


def with_halo(tmap: Im2colMap, offsets: Sequence[int]) -> Im2colMap:
    """The map of a column that has a wide copy's halo, too. What the copy fills in shared memory."""
    halo = offsets[0] if tmap.wide else 0
    return replace(tmap, pixels=tmap.pixels + halo) if halo else tmap


def check_store(tmap: Im2colMap) -> None:
    """Raises TmaError unless pixels end at a multiple of 16 bytes. No source says where other stores end."""
    line = tmap.extents[0] * tmap.tiled.kind.gmem_bits
    if line % (8 * EDGE_UNIT):
        raise TmaError(
            f"an im2col store to pixels of {line // 8} bytes, no multiple of {EDGE_UNIT}: where it ends is not known",
            rule="coordinate",
        )


def store(
    tmap: Im2colMap, memory: npt.NDArray[np.uint8], coordinates: Sequence[int], shared: npt.NDArray[np.uint8],
    address: int, operation: str = "",
) -> None:  # fmt: skip
    """Copies one column of pixels to the base pixels that lie in the tensor.

    The instruction is cp.async.bulk.tensor.im2col_no_offs, or cp.reduce.async of it by the operation.
    Raises TmaError as `check_store` and `engine.reduce` do.
    """
    check_store(tmap)
    target, inside = global_bits(tmap, coordinates, (0,) * (tmap.rank - 2))
    engine.move_out(tmap.tiled, memory, target, inside, shared, engine.shared_bits(tmap.column, address), operation)


# ---------------------------------------------------------------------------------------------------------- a tile


@dataclass(frozen=True)
class Im2colCopy:
    """One instruction of a tile. Coordinates of its first pixel, offsets of its tap, and its shared byte.

    coordinates   (channel, W, H, D, image) of the first base pixel
    offsets       along W, H, D
    smem_offset   bytes from the tile's start
    """

    coordinates: tuple[int, ...]
    offsets: tuple[int, ...]
    smem_offset: int


@dataclass(frozen=True)
class Im2colPlan(HasPicture):
    """The im2col loads that fill one tile of a convolution's matrix A.

    A has a row an output pixel (W fastest, then H, D, image) and a column a (channel, tap W, tap H, tap D), channels
    padded to whole tiles. A tile has two numbers: of its rows, and of its columns.

    tensor_map    for the host to encode
    taps          of the filter along W, H, D
    dilation      pixels between two taps
    tile          rows and columns of the tile
    boxes         (first row, first column) and shared byte of each instruction
    stages, stage_bytes   copies of the tile in shared memory, and how far apart they are
    smem          the shared layout that the plan was derived from
    """

    tensor_map: Im2colMap
    taps: tuple[int, ...]
    dilation: tuple[int, ...]
    tile: tuple[int, int]
    boxes: tuple[TmaCopy, ...]
    stages: int = 1
    stage_bytes: int = 0
    smem: Any = field(default=None, repr=False)

    @property
    def outputs(self) -> tuple[int, ...]:
        """The extents of the convolution's output along W, H and D."""
        return self.tensor_map.visited

    @property
    def grid(self) -> tuple[int, int]:
        """The number of tiles along the rows and along the columns of A."""
        rows = math.prod(self.outputs) * self.tensor_map.extents[-1]
        return -(-rows // self.tile[0]), self._channel_tiles * math.prod(self.taps)

    @property
    def _channel_tiles(self) -> int:
        return -(-self.tensor_map.extents[0] // self.tile[1])

    @property
    def bytes(self) -> int:
        """Bytes that arrive for the tile: what its barrier expects."""
        return self.tensor_map.bytes * len(self.boxes)

    @property
    def alignment(self) -> int:
        """Bytes that the tile's shared address is a multiple of."""
        return MODES[self.tensor_map.swizzle].period

    @checked(TmaError)
    def tap(self, column_tile: int) -> tuple[int, tuple[int, ...]]:
        """First channel and tap (W, H, D) of a tile number along the columns."""
        left, channel = divmod(column_tile, self._channel_tiles)
        found = []
        for count in self.taps:
            found.append(left % count)
            left //= count
        return channel * self.tile[1], tuple(found)

    @checked(TmaError)
    def copies(self, index: tuple[int, int]) -> tuple[Im2colCopy, ...]:
        """The instructions of the tile of that number. Raises TmaError for a tile outside of `grid`.

        >>> from layoutgemm.atoms import smem_tile
        >>> images = Layout((2, 7, 9, 64), (4032, 576, 64, 1))
        >>> plan = tma_im2col(images, smem_tile((64, 64), "bf16", "K"), filter=(3, 3), padding=1)
        >>> plan.copies((1, 5))
        (Im2colCopy(coordinates=(0, 0, -1, 1), offsets=(2, 1), smem_offset=0),)
        """
        if not all(0 <= at < count for at, count in zip(index, self.grid, strict=True)):
            raise TmaError(f"tile {index}; A has {self.grid[0]} x {self.grid[1]} tiles", rule="tile")
        tmap, (first, tap) = self.tensor_map, self.tap(index[1])
        offsets = tuple(number * apart for number, apart in zip(tap, self.dilation, strict=True))
        out = []
        for box in self.boxes:
            row, at = index[0] * self.tile[0] + box.coord_offset[1], []
            for count, low, step in zip(self.outputs, tmap.lower, tmap.steps[1:-1], strict=True):
                at.append(low + step * (row % count))
                row //= count
            out.append(Im2colCopy((first + box.coord_offset[0], *at, row), offsets, box.smem_offset))
        return tuple(out)

    @checked(TmaError)
    def landing(self, index: tuple[int, int], address: int = 0) -> list[tuple[engine.Ints, npt.NDArray[np.bool_], Any]]:
        """Source and destination of each element, one triple of arrays an instruction.

        The arrays are [channels, pixels]: bit offset in the tensor, True where that is inside, shared bit address.
        """
        return [
            (
                *global_bits(self.tensor_map, copy.coordinates, copy.offsets),
                engine.shared_bits(self.tensor_map.column, address + copy.smem_offset),
            )
            for copy in self.copies(index)
        ]

    @property
    def ptx(self) -> str:
        """The instruction. Source: PTX ISA, cp.async.bulk.tensor, `.im2col`."""
        rank = self.tensor_map.rank
        return f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"

    def explain(self) -> str:
        """The map and the instructions of a tile, as text.

        >>> from layoutgemm.atoms import smem_tile
        >>> images = Layout((2, 7, 9, 64), (4032, 576, 64, 1))
        >>> print(tma_im2col(images, smem_tile((64, 64), "bf16", "K"), filter=(3, 3), padding=1).explain())
        im2col load of 64 pixels x 64 channels bf16, swizzle 128B, 8192 bytes, 1 instruction a tile
          tensor C 64, W 9, H 7, N 2; strides in bytes (128, 1152, 8064)
          pixel box W -1..7, H -1..5 in steps of 1, 1; taps W 3, H 3, 1, 1 apart
          A has 126 rows and 9 x 64 columns: 2 x 9 tiles
          pixel +0, channel +0 -> shared byte +0
        """
        tmap, names = self.tensor_map, SPATIAL[: self.tensor_map.rank - 2]
        extents = zip(("C", *names, "N"), tmap.extents, strict=True)
        box = ", ".join(f"{name} {first}..{last}" for name, (first, last) in zip(names, tmap.box, strict=True))
        taps = ", ".join(f"{name} {count}" for name, count in zip(names, self.taps, strict=True))
        count = len(self.boxes)
        rows = math.prod(self.outputs) * tmap.extents[-1]
        return "\n".join([
            f"im2col load of {tmap.pixels} pixels x {tmap.channels} channels {tmap.dtype}, swizzle {tmap.swizzle}, "
            f"{tmap.bytes} bytes, {count} instruction{'s' * (count > 1)} a tile",
            f"  tensor {', '.join(f'{name} {extent}' for name, extent in extents)}; strides in bytes {tmap.strides}",
            f"  pixel box {box} in steps of {', '.join(map(str, tmap.steps[1:-1]))}; taps {taps}, "
            f"{', '.join(map(str, self.dilation))} apart",
            f"  A has {rows} rows and {self.grid[1]} x {self.tile[1]} columns: {self.grid[0]} x {self.grid[1]} tiles",
            *(
                f"  pixel +{box.coord_offset[1]}, channel +{box.coord_offset[0]} -> shared byte +{box.smem_offset}"
                for box in self.boxes
            ),
        ])  # fmt: skip


@checked(TmaError)
def tma_im2col(
    gmem: Layout, smem: Any, dtype: DType | str | None = None, *, filter: IntTuple,
    padding: IntTuple = 0, stride: IntTuple = 1, dilation: IntTuple = 1, format: str | None = None,
    l2_promotion: str = "128B", oob_fill: str = "zeros", address: int = 0,
) -> Im2colPlan:  # fmt: skip
    """Derives the im2col loads of a tile of a convolution's matrix A.

    gmem      activations: modes (image, [D,] [H,] W, channel), channels contiguous; offsets in elements
    smem      tile coordinate (row, column) -> offset in elements: a Layout, a ComposedLayout or an SmemTile
    dtype     element type (an SmemTile knows its own)
    filter    taps along each spatial mode, in gmem's order
    padding   pixels before and after each spatial mode: an int, one int a mode, or a pair (before, after) a mode
    stride, dilation   an int, or one a spatial mode
    address   of the tensor's first byte, or what it is known to be a multiple of

    The columns of A are padded to whole tiles of channels for each tap. Raises TmaError with the rule that forbids the
    load, as `tma_load` does.

    >>> from layoutgemm.atoms import smem_tile
    >>> images = Layout((2, 7, 9, 64), (4032, 576, 64, 1))
    >>> tma_im2col(images, smem_tile((64, 64), "bf16", "K"), filter=(3, 3), padding=200)
    Traceback (most recent call last):
        ...
    layoutgemm.errors.TmaError: the lower corner of W is -200; at rank 4 a corner is -128 to 127
    """
    if gmem.has_basis or not all(isinstance(n, int) for n in (*_flat(gmem.shape), *_flat(gmem.stride))):
        raise TmaError(f"an im2col map needs numbers for the extents and strides of {gmem}", rule="tile")
    shape, strides = _flat(gmem.shape), _flat(gmem.stride)
    if gmem.rank != len(shape) or not 3 <= gmem.rank <= 5:
        raise TmaError(
            f"activations have 3 to 5 modes without nesting, (image, [D,] [H,] W, channel), not {gmem}",
            rule="im2col rank",
        )
    if strides[-1] != 1 and shape[-1] > 1:
        raise TmaError(f"channels of {gmem} are {strides[-1]} elements apart, not contiguous", rule="contiguous")
    spatial = gmem.rank - 2
    taps = _each("filter", filter, spatial)
    steps, apart = _each("stride", stride, spatial), _each("dilation", dilation, spatial)
    pads = _pads(padding, spatial)
    plain = _plain_matrix(shape, taps, steps, apart, pads)
    try:
        matrix = tma_load(plain, smem, dtype, names=("pixels", "channels"), format=format, l2_promotion=l2_promotion,
                          oob_fill=oob_fill)  # fmt: skip
    except TmaError as error:  # another layout of A is no remedy: A is not in memory
        remedy = error.nearest if str(error.nearest).startswith("shared layout") else None
        raise TmaError(error.arithmetic, error.witness, error.rule, remedy) from None
    bits = matrix.kind.gmem_bits
    if len(matrix.box) != 2 or matrix.steps or any(step * bits % 8 for step in strides[:-1]):
        raise TmaError(f"a box {matrix.box} of {matrix.dims} is not rows of pixels", rule="run")
    lower = tuple(-before for before, _ in pads)
    upper = tuple(after - (n - 1) * by for (_, after), n, by in zip(pads, taps, apart))
    tmap = Im2colMap(
        matrix.dtype, shape[::-1], tuple(step * bits // 8 for step in strides[-2::-1]), lower, upper,
        matrix.box[0], matrix.box[1], (1, *steps, 1), matrix.swizzle, matrix.format, l2_promotion, oob_fill,
    )  # fmt: skip
    for fault in broken_rules(tmap, address):
        raise TmaError(fault.arithmetic, rule=fault.rule.name)
    _check_offsets(taps, apart)
    rows, columns = (part for part in matrix.tile)
    assert isinstance(rows, int) and isinstance(columns, int)
    return Im2colPlan(tmap, taps, apart, (rows, columns), matrix.instructions, matrix.stages, matrix.stage_bytes, smem)


def _check_offsets(taps: tuple[int, ...], dilation: tuple[int, ...]) -> None:
    reach = 1 << CORNER_BITS[len(taps)]
    for name, count, by in zip(SPATIAL, taps, dilation):
        if (count - 1) * by >= reach:
            raise TmaError(
                f"the last of {count} taps along {name} is {(count - 1) * by} pixels off; rank {len(taps) + 2} takes "
                f"offsets of 0 to {reach - 1}",
                rule="offset",
            )


def _plain_matrix(
    shape: tuple[int, ...], taps: tuple[int, ...], steps: tuple[int, ...], apart: tuple[int, ...],
    pads: tuple[tuple[int, int], ...],
) -> Layout:  # fmt: skip
    """A as if it lay in memory, one tap of it: the same tile, box and shared offsets, in tiled mode."""
    rows = shape[0]
    for name, extent, n, step, by, (before, after) in zip(SPATIAL, shape[-2:0:-1], taps, steps, apart, pads):
        room = extent + before + after - (n - 1) * by
        if room < 1:
            raise TmaError(
                f"{n} taps along {name}, {by} apart, do not fit {before} + {extent} + {after} pixels", rule="pixel box"
            )
        rows *= (room - 1) // step + 1
    pitch = 2 * -(-shape[-1] // 256) * 256  # of a row: longer than the row, so that rows do not merge
    return Layout((rows, shape[-1]), (pitch, 1))


def _each(name: str, value: IntTuple, count: int) -> tuple[int, ...]:
    """One positive int a spatial mode, W first."""
    parts = value if isinstance(value, tuple) else (value,) * count
    if len(parts) != count or not all(isinstance(part, int) and part >= 1 for part in parts):
        raise TmaError(f"{name} is one positive int for each of {count} spatial modes, not {shown(value)}", rule="tile")
    return tuple(part for part in parts[::-1] if isinstance(part, int))


def _pads(padding: IntTuple, count: int) -> tuple[tuple[int, int], ...]:
    """(before, after) of each spatial mode, W first."""
    out: list[tuple[int, int]] = []
    for part in padding if isinstance(padding, tuple) else (padding,) * count:
        pair = part if isinstance(part, tuple) else (part, part)
        if len(pair) != 2 or not all(isinstance(n, int) and n >= 0 for n in pair):
            raise TmaError(f"padding is an int of 0 or more, or a pair (before, after); got {shown(part)}", rule="tile")
        before, after = pair
        assert isinstance(before, int) and isinstance(after, int)
        out.append((before, after))
    if len(out) != count:
        raise TmaError(f"padding {shown(padding)} for {count} spatial modes", rule="tile")
    return tuple(out[::-1])


def _flat(entry: object) -> tuple[Any, ...]:
    return tuple(entry) if isinstance(entry, tuple) else (entry,)
