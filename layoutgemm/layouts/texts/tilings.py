"""Tiled layouts from text. XLA's shapes, and the register layouts of JAX's Mosaic GPU and its transforms.

f32[4,8]{0,1}                          XLA's: the dimensions from the fastest one on
bf16[16,256]{1,0:T(8,128)(2,1)}        its tiles, each over the last dimensions of what the one before it leaves
TiledLayout(tiling=Tiling(tiles=((64, 8), (16, 8), (8, 8), (2,))), warp_dims=(-7,), lane_dims=(-3, -2), vector_dim=-1)
#mosaic_gpu.TiledLayout<[[64, 8], [16, 8], [8, 8], [2]], warp_dims = [-7], lane_dims = [-3, -2], vector_dim = -1>
TMEMLayout(tiling=..., ...)            of tensor memory: warps are its groups of 32 lanes
WGStridedFragLayout(shape=(64, 64), vec_size=2)
memref<16x256xf32, #tpu.tiled<(8,128),[2,1]>>            Mosaic's for TPUs: tiles, and the strides of whole tiles
SwizzleTransform(swizzle=128)          a Swizzle that counts bytes

A tile (t, u) splits each of the last two dimensions into its tiles and the place in a tile, which follows as the last.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from typing import NamedTuple, NoReturn

from ...errors import LayoutError, ParseError
from ...regex import regex
from ..layout import Layout
from ..swizzle import Swizzle
from .bases import TextReader

_XLA = regex(
    r"\s*(?:(?:ROOT\s+)?[%\w.-]+\s*[=:]\s*)?(?:pred|[a-z]+\d+\w*)\[([\d,\s]+)\](?:\{([\d,\s]*)(:[^}]*)?\}|\s*\Z)"
)
_TPU = regex(
    r"\s*(?:[%!]\w[\w:]*\s*[=:]\s*)?memref<\s*((?:\d+\s*x\s*)+)[a-z]\w*\s*,\s*#tpu\.tiled<\s*((?:\([\d,\s]*\)\s*)+),\s*\[([\d,\s]*)\]\s*>"
    r"\s*(?:,\s*#tpu\.memory_space<\w+>\s*)?>\s*\Z"
)
_NO_ARRAY = regex(
    r"\s*(?:ROOT\s+)?(?:[%\w.-]+\s*[=:]\s*)?(\((?:[a-z]+\d*\w*)\[[\d,]*\]\{|(?:pred|[a-z]+\d+\w*)\[\]\s*(?:\{|\Z))"
)
_SHAPELESS = regex(
    r"\s*(?:\w+\s*=\s*)?(?:Format\(\s*layout\s*=\s*)?(?:\w+\.)*(?:Device\w*|)Layout\(\s*major_to_minor\s*="
)
_HLO_REST = regex(r"\s*(?:\Z|//|#|;|loc\(|%[\w.-]+\s*\Z|[a-z][\w.-]*\s*\()")  # behind a type: an operation, an operand
_TILES = regex(r"T((?:\(\s*\d+(?:\s*,\s*\d+)*\s*\))+)")
_UNTILED = regex(r"S\(\d+\)|L\(\d+\)|E\(\d+\)")  # a memory space, the tail's alignment, bits of an element
_MOSAIC = regex(
    r"\s*(?:\w+\s*=\s*)?(?:\w+\.)*(?:#mosaic_gpu\.)?(TiledLayout|TMEMLayout|WG(?:Strided|Splat)FragLayout)\s*[<(]"
)
_NAMED = regex(r"\s*<?(?:\w+\.)*(?:Layout\.(\w+)|(\w+)_LAYOUT(\w*))(?::\s*\d+>)?\s*\Z")
# Names of layouts that depend on arguments, which the name alone does not say
_UNSAID = regex(r"\s*<?(?:\w+\.)*((?:TMEM)?Layout\.(?:WG_|TILED|TCGEN05_M64|SMEM_GMEM|SCALES|SPARSE|M64)\w*|Tiling\()")
_TRANSFORM = regex(
    r"\s*(?:\w+\s*=\s*)?[\[(]?\s*(?:\w+\.)*(?:(Swizzle|Til(?:e|ing)|Transpose)Transform\(|#mosaic_gpu\.(swizzle|tile|transpose)<)"
)
_OTHER_TRANSFORM = regex(r"\b(?:Til(?:e|ing)|Transpose)Transform\(|#mosaic_gpu\.(?:tile|transpose)<")
_SWIZZLE = regex(r"\s*(?:swizzle\s*=\s*)?(\d+)\s*[)>]\s*\Z")
_KEY = regex(r"\s*(tiling|tiles|warp_dims?|lane_dims|vector_dim|shape|vec_size|times|_check_canonical)\s*=\s*")
_WORD = regex(r"\s*(?:\w+\.)*(Tiling|Replicated)\s*[(<]|\s*#mosaic_gpu\.(Replicated)\s*<")
_WARPS, _LANES = 4, 32  # of a warpgroup, of a warp
# (tiles, dimensions of warps, of lanes, of the vector); Source: JAX's jax.experimental.mosaic.gpu
_KNOWN = {
    "WGMMA": "(((64, 8), (16, 8), (8, 8), (2,)), (-7,), (-3, -2), -1)",
    "_WGMMA_ACC_32BIT": "(((64, 8), (16, 8), (8, 8), (2,), (1,)), (-8,), (-4, -3), -1)",
    "WGMMA_8BIT": "(((64, 16), (16, 16), (8, 16), (4,)), (-7,), (-3, -2), -1)",
    "WGMMA_UPCAST_2X": "(((64, 16), (16, 16), (8, 16), (8,), (4,)), (-8,), (-4, -2, -3), -1)",
    "WGMMA_UPCAST_4X": "(((64, 32), (16, 32), (8, 32), (8,)), (-7,), (-3, -2), -1)",
    "WGMMA_TRANSPOSED": "(((64, 8), (16, 8), (8, 8), (2, 2), (2, 1)), (-10,), (-6, -3, -5), -2)",
    "WGMMA_ROW": "(((64,), (16,), (8,), (1,)), (-4,), (-2, Replicated(4)), -1)",
    "WGMMA_COL": "(((8,), (2,)), (Replicated(4),), (Replicated(8), -2), -1)",
    "TCGEN05": "(((128, 8), (32, 8), (8, 8), (2,)), (-7,), (-3, -2), -1)",
    "TCGEN05_TRANSPOSED": "(((128, 8), (32, 8), (8, 8), (2, 2), (2, 1)), (-10,), (-6, -3, -5), -2)",
    "TCGEN05_ROW": "(((128,), (32,), (8,), (1,)), (-4,), (-2, Replicated(4)), -1)",
    "TCGEN05_COL": "(((8,), (2,)), (Replicated(4),), (Replicated(8), -2), -1)",
    "TCGEN05_TMEM_NATIVE": "(((128, 2), (32, 2)), (-4,), (-2,), -1)",
    "TMEM_NATIVE": "(((128, 2), (32, 2)), (-4,), (-2,), -1)",
    "TMA_INDICES": "(((16,), (4,)), (-2,), (Replicated(32),), -1)",
    "TMA_INDICES_4": "(((4,),), (Replicated(4),), (Replicated(32),), -1)",
}


class _Copies(NamedTuple):
    """Lanes or warps that hold the same elements."""

    times: int


class _Part(NamedTuple):
    """A dimension after tiling: its extent, the dimension of the array, and its step there."""

    extent: int
    dim: int
    step: int


def tiled(text: str) -> Layout | Swizzle | None:
    """The layout of a text with tiles, None for another.

    XLA's is coordinates -> element of the padded array. Mosaic's is (thread of a warpgroup, value) -> flat index of the
    first tile, whose first dimension runs fastest, as an atom's. Raises ParseError with the character and what was
    expected. Sources: XLA's tiled_layout page; JAX's fragmented_array.

    >>> print(tiled("bf16[16,256]{1,0:T(8,128)(2,1)}"))
    ((2,4,2),(128,2)):((1,256,2048),(2,1024))
    >>> print(tiled("TiledLayout(Tiling(((64, 8), (16, 8), (8, 8), (2,))), (-7,), (-3, -2), -1)"))
    ((4,8,4),(2,2)):((128,1,16),(64,8))
    """
    found = _XLA.match(text)
    if found is not None:
        return _xla(text, found)
    named = _NAMED.match(text)
    name = (named[1] or named[2] + named[3]) if named is not None else ""
    if name in _KNOWN:
        parts = _TupleReader(_KNOWN[name], 0).value()
        return _registers(text, 0, *parts) if isinstance(parts, tuple) else None
    without = _NO_ARRAY.match(text)
    if without is not None:
        raise ParseError("expected one array with dimensions, as in f32[8,128]{1,0}", text, without.start(1))
    unsaid = _UNSAID.match(text)
    if unsaid is not None:
        raise ParseError(
            "expected the tiles and their dimensions, as in TiledLayout(tiling=..., warp_dims=..., ...)",
            text,
            unsaid.start(1),
        )
    if _SHAPELESS.match(text) is not None:
        raise ParseError("expected the array's shape too, as in f32[8,128]{1,0:T(8,128)}", text, 0)
    found = _TPU.match(text)
    if found is not None:
        return _tpu(text, found)
    found = _MOSAIC.match(text)
    if found is not None:
        return _mosaic(text, found)
    found = _TRANSFORM.match(text)
    return None if found is None else _transform(text, found)


# ------------------------------------------------------------------------------------------ tiles


def _split(parts: Sequence[_Part], tile: Sequence[int]) -> list[_Part]:
    """The dimensions after one more tile; those of partial tiles are rounded up."""
    kept, last = list(parts[: -len(tile)]), parts[-len(tile) :]
    outer = [_Part(-(-p.extent // t), p.dim, p.step * t) for p, t in zip(last, tile, strict=True)]
    return [*kept, *outer, *[_Part(t, p.dim, p.step) for p, t in zip(last, tile, strict=True)]]


def _xla(text: str, found: re.Match[str]) -> Layout:
    """The layout of an XLA shape: dimensions are listed from the fastest one on."""
    shape = [int(x) for x in re.findall(r"\d{1,18}", found[1])]
    if found[2] is None:
        fastest = ",".join(map(str, range(len(shape))[::-1]))
        raise ParseError(
            f"expected the order of the dimensions, as in {{{fastest}}} for the last one fastest", text, found.end()
        )
    if _HLO_REST.match(text, found.end()) is None:
        raise ParseError("expected the end of the text, or the operation of this type", text, found.end())
    order = [int(x) for x in re.findall(r"\d{1,3}", found[2])]
    if sorted(order) != list(range(len(shape))):
        raise ParseError(f"expected an order of {len(shape)} dimensions, as in {{1,0}}", text, found.start(2))
    if not all(shape):
        raise ParseError("expected extents from 1", text, found.start(1))
    tiles: list[list[int]] = []
    at = found.start(3) + 1
    while found[3] is not None and at < found.end(3):
        split = _TILES.match(text, at) if not tiles else None
        known = split or _UNTILED.match(text, at)
        if known is None:
            raise ParseError("expected tiles or a memory space, as in {1,0:T(8,128)(2,1)S(1)}", text, at)
        tiles = tiles if split is None else _tiles(split[1])
        at = known.end()
    parts = [_Part(shape[dim], dim, 1) for dim in reversed(order)]
    for tile in tiles:
        parts = _tiled_once(text, found.start(3), parts, tile)
    return _made(text, found, shape, _placed(parts)[0])


def _placed(parts: Sequence[_Part]) -> tuple[list[tuple[_Part, int]], int]:
    """Compact parts with their strides, the last one the fastest; and the size of all."""
    found, stride = [], 1
    for part in reversed(parts):
        found.append((part, stride))
        stride *= part.extent
    return found, stride


def _tiles(said: str) -> list[list[int]]:
    return [[int(x) for x in re.findall(r"\d{1,18}", each)] for each in re.findall(r"\(([^)]*)\)", said)]


def _tiled_once(text: str, at: int, parts: Sequence[_Part], tile: Sequence[int]) -> list[_Part]:
    if not 0 < len(tile) <= len(parts) or not all(tile):
        raise ParseError(f"expected a tile of 1 to {len(parts)} extents from 1, not {tuple(tile)}", text, at)
    return _split(parts, tile)


def _tpu(text: str, found: re.Match[str]) -> Layout:
    """The layout of a memref whose tiles have strides; a tile is compact, in further tiles."""
    shape = [int(x) for x in re.findall(r"\d{1,18}", found[1])]
    tiles, strides = _tiles(found[2]), [int(x) for x in re.findall(r"\d{1,18}", found[3])]
    if len(strides) != len(shape) or not all(shape):
        raise ParseError(f"expected {len(shape)} strides of tiles, not {len(strides)}", text, found.start(3))
    parts = _tiled_once(text, found.start(2), [_Part(extent, dim, 1) for dim, extent in enumerate(shape)], tiles[0])
    inside: list[_Part] = parts[len(shape) :]
    for tile in tiles[1:]:
        inside = _tiled_once(text, found.start(2), inside, tile)
    placed, size = _placed(inside)
    placed += [(part, by * size) for part, by in zip(parts[: len(shape)], strides, strict=True)]
    return _made(text, found, shape, placed)


def _mode(text: str, at: int, extent: int, parts: list[tuple[int, int, int]]) -> tuple[object, object]:
    """The shape and stride of a dimension from (extent, step, stride) of its parts."""
    shape, stride, step = [1], [0], 1
    for size, by, offset in sorted(parts, key=lambda part: part[1]):
        if size == 1:
            continue
        if by != step:
            raise ParseError(f"expected tiles that divide each other: {by} after {step}", text, at)
        step *= size
        if shape == [1]:
            shape, stride = [size], [offset]
        elif offset == stride[-1] * shape[-1]:
            shape[-1] *= size
        else:
            shape.append(size)
            stride.append(offset)
    while len(shape) > 1 and prod(shape[:-1]) >= extent:
        shape.pop()
        stride.pop()
    inner = prod(shape[:-1])
    if extent % inner:
        padded = -(-extent // inner) * inner
        raise ParseError(
            f"expected a multiple of the tile's {inner}, as {padded} for {extent}: no shape:stride ends inside a tile",
            text,
            at,
        )
    shape[-1] = extent // inner
    return (tuple(shape), tuple(stride)) if len(shape) > 1 else (shape[0], stride[0])


def _made(
    text: str, found: re.Match[str], shape: Sequence[int], placed: Sequence[tuple[_Part, int]]
) -> Layout:  # fmt: skip
    """The layout of an array's coordinates from its parts and their strides."""
    modes: list[tuple[object, object]] = []
    for dim, extent in enumerate(shape):
        own = [(part.extent, part.step, stride) for part, stride in placed if part.dim == dim]
        modes.append(_mode(text, found.start(1), extent, own))
    try:
        return Layout(tuple([mode[0] for mode in modes]), tuple([mode[1] for mode in modes]))
    except LayoutError as error:
        raise ParseError(error.reason, text, found.start(1)) from None


# ------------------------------------------------------------------------------------------ Mosaic


class _TupleReader(TextReader):
    """Reads tuples of integers, and copies, of Python or of an attribute."""

    def value(self) -> object:
        """An integer, a tuple, copies, or the tuple of a call."""
        word = _WORD.match(self.text, self.at)
        if word is not None:
            self.at = word.end()
            key = _KEY.match(self.text, self.at)
            self.at = key.end() if key is not None else self.at
            inside = self.value()
            if self.peek() not in (")", ">"):
                raise self.fail("')'")
            self.at += 1
            if word[1] == "Tiling":
                return inside
            return _Copies(inside) if isinstance(inside, int) else self.wrong("Replicated(times)")
        sign = self.peek()
        if sign and sign in "[(":
            self.at += 1
            items = []
            while self.peek() != "])"[sign == "("]:
                items.append(self.value())
                self.comma_or("])")
            self.at += 1
            return tuple(items)
        number = regex(r"-?\d{1,9}(?![\w.])(?:\s*:\s*i\d+)?").match(self.text, self.at)
        if number is None:
            raise self.fail("an integer, or a tuple of them")
        self.at = number.end()
        return int(number[0].partition(":")[0])

    def wrong(self, expected: str) -> NoReturn:
        """Raise the error of the position."""
        raise self.fail(expected)

    def comma_or(self, closing: str) -> None:
        """Go past a comma, or stay at a closing bracket. Raises ParseError for anything else."""
        if self.peek() == ",":
            self.at += 1
        elif self.peek() not in tuple(closing):
            raise self.fail("',' or ')'")

    def arguments(self, names: Sequence[str]) -> dict[str, object]:
        """The arguments behind the bracket of a call or an attribute."""
        out: dict[str, object] = {}
        while self.peek() not in (")", ">"):
            key = _KEY.match(self.text, self.at)
            name = key[1] if key is not None else names[len(out)] if len(out) < len(names) else self.wrong("')'")
            self.at = key.end() if key is not None else self.at
            if name == "_check_canonical":
                self.at = self.text.find(")", self.at) if ")" in self.text[self.at :] else len(self.text)
                continue
            out["warp_dims" if name == "warp_dim" else name] = self.value()
            self.comma_or(")>")
        self.at += 1
        if self.peek():
            raise self.fail("the end of the text")
        return out


def _mosaic(text: str, found: re.Match[str]) -> Layout:
    """The layout of registers that Mosaic's text names."""
    reader, at = _TupleReader(text, found.end()), found.start(1)
    if found[1] == "WGSplatFragLayout":
        raise ParseError(
            "expected a layout of elements: in a WGSplatFragLayout every thread holds the same value", text, at
        )
    if found[1] == "WGStridedFragLayout":
        given = reader.arguments(("shape", "vec_size"))
        return _strided(text, at, given.get("shape"), given.get("vec_size"))
    given = reader.arguments(("tiling", "warp_dims", "lane_dims", "vector_dim"))
    values = [given.get(name) for name in ("tiling", "warp_dims", "lane_dims", "vector_dim")]
    return _registers(text, at, *values)


def _integers(text: str, at: int, value: object, what: str) -> tuple[int, ...]:
    found = value if isinstance(value, tuple) else (value,)
    if not found or any(not isinstance(x, int) or isinstance(x, _Copies) for x in found):
        raise ParseError(f"expected {what}, integers", text, at)
    return found


def _registers(text: str, at: int, tiling: object, warps: object, lanes: object, vector: object) -> Layout:
    """(thread, value) -> flat index of the first tile. The vector's elements are the fastest values."""
    if not isinstance(tiling, tuple) or not tiling:
        raise ParseError("expected tiling = ((64, 8), ...)", text, at)
    tiles = [_integers(text, at, tile, "a tile") for tile in tiling]
    first = tiles[0]
    if any(len(tile) > len(first) for tile in tiles) or min(min(tile) for tile in tiles) < 1:
        raise ParseError(f"expected tiles of at most {len(first)} extents from 1", text, at)
    parts = [_Part(1, dim, extent) for dim, extent in enumerate(first)]
    parts += [_Part(extent, dim, 1) for dim, extent in enumerate(first)]
    for tile in tiles[1:]:
        if any(part.extent % t for part, t in zip(parts[-len(tile) :], tile, strict=True)):
            raise ParseError(f"expected a tile that divides the one before it, not {tile}", text, at)
        parts = _split(parts, tile)
    parts = parts[len(first) :]
    steps = [prod(first[:dim]) for dim in range(len(first))]  # the first dimension runs fastest

    def of(dims: object, name: str, times: int) -> list[tuple[int, int]]:
        out = []
        for d in reversed(dims if isinstance(dims, tuple) else (dims,)):
            if isinstance(d, _Copies):
                out.append((d.times, 0))
                continue
            if not isinstance(d, int) or not -len(parts) <= d < 0 or d in used:
                raise ParseError(f"expected {name} = dimensions from -{len(parts)} to -1, each once, not {d}", text, at)
            used.add(d)
            part = parts[d]
            out.append((part.extent, part.step * steps[part.dim]))
        if times and prod(extent for extent, _ in out) != times:
            raise ParseError(f"expected {name} with {times} in all, not {prod(e for e, _ in out)}", text, at)
        return out

    used: set[int] = set()
    lane, warp = of(lanes, "lane_dims", _LANES), of(warps, "warp_dims", _WARPS)
    value = of(vector, "vector_dim", 0)
    value += [
        (part.extent, part.step * steps[part.dim])
        for d, part in zip(range(-1, -len(parts) - 1, -1), reversed(parts), strict=True)
        if d not in used and part.extent > 1
    ]
    modes = [lane + warp, value]
    return Layout(
        tuple(tuple(e for e, _ in mode) for mode in modes), tuple(tuple(s for _, s in mode) for mode in modes)
    )


def _strided(text: str, at: int, shape: object, vector: object) -> Layout:
    """(thread, value) -> flat index of an array whose rows the threads take in vectors."""
    extents, width = _integers(text, at, shape, "shape"), _integers(text, at, vector, "vec_size")[0]
    each = _WARPS * _LANES * width
    if min(extents) < 1 or width < 1 or prod(extents) % each:
        raise ParseError(f"expected a shape with a multiple of {each} elements", text, at)
    strides = [prod(extents[:dim]) for dim in range(len(extents))]
    rows = Layout(extents[::-1], tuple(strides[::-1]))  # index along the rows -> flat index
    try:
        return rows.compose(Layout((_WARPS * _LANES, (width, prod(extents) // each)), (width, (1, each))))
    except LayoutError as error:
        raise ParseError(f"expected threads that take whole parts of rows: {error.reason}", text, at) from None


def _transform(text: str, found: re.Match[str]) -> Swizzle:
    """The swizzle of a transform; the others change the shape of an array that the text does not have."""
    at = found.start(1) if found[1] else found.start(2)
    if (found[1] or found[2]).lower() != "swizzle" or _OTHER_TRANSFORM.search(text, found.end()) is not None:
        raise ParseError(
            "expected a layout, not a change of an array's shape: a tiled f16[64,64] is f16[64,64]{1,0:T(8,64)}",
            text,
            at,
        )
    width = _SWIZZLE.match(text, found.end())
    spans = {16: 0, 32: 1, 64: 2, 128: 3}
    if width is None or int(width[1]) not in spans:
        raise ParseError("expected 16, 32, 64 or 128 bytes", text, found.end())
    return Swizzle(spans[int(width[1])], 4, 3, "bytes")
