"""Triton's layouts of a tensor from text: the type of a tensor or of a buffer in shared memory holds both.

tensor<16xf16, #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [4], warpsPerCTA = [4], order = [0]}>>
!ttg.memdesc<64x64xf16, #ttg.swizzled_shared<{vec = 8, perPhase = 1, maxPhase = 8, order = [1, 0]}>, #smem>

#ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [8, 4], warpsPerCTA = [4, 1], order = [1, 0]}>
gl.BlockedLayout([1, 4], [8, 4], [4, 1], [1, 0])     alone: over its own tile, beyond which it repeats

Lines above it may give a layout a name, as a module of the compiler's IR does: #blocked = #ttg.blocked<{...}>.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from ...errors import ParseError
from ..linear import LinearLayout
from .bases import (
    ATTRIBUTE,
    CLASS,
    GLUON,
    LINEAR,
    AttributeValue,
    Basis,
    ListValue,
    Value,
    ValueReader,
    basis_of,
    integers_of,
    made,
)

_TYPE = re.compile(
    r"(?:[%!]\w[\w:]*\s*[=:]\s*|%[^\n]*->\s*|%[^\n]*?:\s*)?(?:!ttg?\.memdesc|tensor)\s*<\s*((?:\d+\s*x\s*)+)(!tt\.ptr<\w+>|[A-Za-z]\w*)\s*,\s*(?=#)"
)
# A line that names a layout; those without fields in braces are passed over
_NAMED = re.compile(r"\s*#(\w+)\s*=\s*(#\w+\.\w+\s*<\s*\{)?[^\n]*\n\s*")
_REST = re.compile(r"(?:\s*,\s*(?:#[\w.]+|mutable|\d+(?:\s*x\s*\d+)*))*\s*>\s*(?:(?://|;)[^\n]*)?\s*\Z")
RANK = 16  # dimensions of a tensor: no program prints more
# Boxes of tensor copies have at most so many elements along a dimension
BOX = 256

Vectors = list[tuple[int, ...]]


def encoded(text: str) -> LinearLayout | None:
    """The linear layout of the tensor whose type the text is, None for another text.

    An attribute without a tensor is read over its own tile, the smallest tensor in which each part of it is once.
    The tile of blocked is sizePerThread x threadsPerWarp x warpsPerCTA, that of nvidia_mma the instruction's shape x
    warpsPerCTA, that of shared memory a period of the swizzle.

    (register, lane, warp, block), or (offset, block) of shared memory, -> flat index of the tensor, whose first
    dimension runs fastest. Reads blocked, slice, linear, nvidia_mma of versions 2 and 3, dot_op of these and of
    blocked, shared_linear, swizzled_shared and nvmma_shared. Tensor memory is (row, col) -> flat index. Raises
    ParseError with the character and what was expected. Source: Triton's LinearLayoutConversions.

    >>> found = encoded(
    ...     "tensor<128xf32, #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [4], warpsPerCTA = [4], order = [0]}>>"
    ... )
    >>> str(found.to_layout())    # three registers more than the layout's own 16 elements: it repeats
    '(8,4,4,1):(16,1,4,0)'
    """
    at, known = 0, dict[str, AttributeValue]()
    while (named := _NAMED.match(text, at)) is not None:
        if named[2]:
            known[named[1]] = ValueReader(text, named.start(2), known).attribute(0)
        at = named.end()
    while text[at : at + 1].isspace():
        at += 1
    found = _TYPE.match(text, at)
    if found is None:
        return _alone(text, at, known)
    shape = [int(extent) for extent in re.findall(r"\d{1,18}", found[1])]
    if len(shape) > RANK:
        raise ParseError(f"expected at most {RANK} dimensions, not {len(shape)}", text, found.start(1))
    for size in shape:
        if size & (size - 1) or not size:
            raise ParseError(f"expected extents that are powers of two, not {size}", text, found.start(1))
    reader = ValueReader(text, found.end(), known)
    attribute = reader.attribute(0)
    if _REST.match(text, reader.at) is None:
        raise reader.fail("'>' and the end of the type")
    return made(text, _bases(text, attribute, shape), shape)


def _alone(text: str, at: int, known: dict[str, AttributeValue]) -> LinearLayout | None:
    """The layout of an attribute without a tensor over its own tile; None for another text."""
    found = ATTRIBUTE.match(text, at)
    called = CLASS.match(text, at)
    if at == len(text) and known:
        *earlier, last = known
        attribute = known[last]
    elif found is not None and found[1] not in LINEAR and found[1] in _TILES:
        reader, earlier = ValueReader(text, text.rindex("#", at, found.start(1)), known), list(known)
        attribute = reader.attribute(0)
        reader.end("")
    elif called is not None and called[1] in GLUON:
        reader, earlier = ValueReader(text, at, known), []
        attribute = reader.called(called, 0)
        reader.end("")
    else:
        return None
    for name in earlier:
        if re.search(rf"#{name}(?!\w)\s*[,}}>]", text) is None:
            raise ParseError(f"expected one layout, not #{name} too", text, known[name].at)
    if attribute.name not in _TILES:
        raise ParseError(f"expected one of {', '.join(_TILES)}", text, attribute.at)
    shape = _own_tile(text, attribute)
    return made(text, _bases(text, attribute, shape), shape)


def _own_tile(text: str, attribute: AttributeValue) -> list[int]:
    """The smallest tensor in which each part of the layout is once."""
    if attribute.name not in _TILES:
        raise ParseError(f"expected one of {', '.join(_TILES)}, not {attribute.name}", text, attribute.at)
    return _TILES[attribute.name](_Given(text, attribute))


def _blocked_tile(given: _Given) -> list[int]:
    rank = len(integers_of(given.text, given.fields.get("order", 0), given.at))
    parts = [given.numbers(name, rank) for name in ("sizePerThread", "threadsPerWarp", "warpsPerCTA")]
    return [a * b * c for a, b, c in zip(*parts, strict=True)]


def _mma_own_tile(given: _Given) -> list[int]:
    size = given.instruction()
    warps = given.numbers("warpsPerCTA", 2)
    return [size[0] * warps[0], (size[1] if len(size) > 1 else 1) * warps[1]]


def _dot_tile(given: _Given) -> list[int]:
    parent = given.fields.get("parent")
    if isinstance(parent, AttributeValue) and parent.name == "blocked":
        tile, k = _blocked_tile(_Given(given.text, parent)), _depth_of(given, 2)
        return [1 if dim == k else extent for dim, extent in enumerate(tile)]
    if not isinstance(parent, AttributeValue) or parent.name != "nvidia_mma":
        raise given.fail(_PARENT)
    rows, _ = _mma_own_tile(_Given(given.text, parent))
    depth, warps = 8 * given.number("kWidth"), _Given(given.text, parent).numbers("warpsPerCTA", 2)
    return [depth, 8 * warps[1]] if given.number("opIdx", power=False) else [rows, depth]


def _slice_tile(given: _Given) -> list[int]:
    dim, parent = given.number("dim", power=False), given.fields.get("parent")
    if not isinstance(parent, AttributeValue):
        raise given.fail("parent = #ttg.blocked<{...}>, or the name of a layout that stands before it,")
    whole = _own_tile(given.text, parent)
    if dim >= len(whole) or len(whole) < 2:
        raise given.fail(f"dim = one of {len(whole)} dimensions, two or more,")
    return [*whole[:dim], *whole[dim + 1 :]]


def _swizzled_tile(given: _Given) -> list[int]:
    order = given.order(len(integers_of(given.text, given.fields.get("order", 0), given.at)))
    vec, each, most = (given.number(name) for name in ("vec", "perPhase", "maxPhase"))
    out = [1] * len(order)
    out[order[0]] = vec * most
    if len(order) > 1:
        out[order[1]] = each * most
    return out


def _nvmma_tile(given: _Given) -> list[int]:
    width, bits = given.number("swizzlingByteWidth", power=False), given.number("elementBitWidth")
    wide = max(1, 8 * (width or 16) // bits)
    return [wide, 8] if given.flag("transposed") else [8, wide]


def _bases(text: str, attribute: AttributeValue, shape: Sequence[int]) -> list[Basis]:
    """The bases of a layout over a tensor of this shape."""
    if attribute.name in ("linear", "shared_linear"):
        return [basis_of(text, key, x, attribute.at) for key, x in attribute.fields.items if isinstance(x, ListValue)]
    if attribute.name not in _KINDS:
        raise ParseError(
            f"expected one of {', '.join(_KINDS)}, linear, shared_linear, not {attribute.name}", text, attribute.at
        )
    found = _KINDS[attribute.name](_Given(text, attribute), shape)
    return [Basis(name, tuple(vectors), attribute.at) for name, vectors in found.items()]


class _Given:
    """The fields of an attribute, with what is expected of each."""

    def __init__(self, text: str, attribute: AttributeValue) -> None:
        self.text, self.name, self.at = text, attribute.name, attribute.at
        self.fields: Mapping[str, Value] = dict(attribute.fields.items)

    def fail(self, expected: str) -> ParseError:
        return ParseError(f"expected {expected} in {self.name}", self.text, self.at)

    def number(self, name: str, *, power: bool = True) -> int:
        value = self.fields.get(name)
        if not isinstance(value, int) or value < 0 or (power and (value < 1 or value & (value - 1))):
            raise self.fail(f"{name} = an integer{', a power of two' if power else ''}")
        return value

    def instruction(self) -> list[int]:
        """The shape of the instruction: [m, n, ...]."""
        if "instrShape" not in self.fields:
            raise self.fail("instrShape = [m, n, ...]")
        return integers_of(self.text, self.fields["instrShape"], self.at)

    def flag(self, name: str) -> bool:
        value = str(self.fields.get(name, "false")).lower()
        if value not in ("true", "false"):
            raise self.fail(f"{name} = true or false")
        return value == "true"

    def numbers(self, name: str, rank: int) -> list[int]:
        """One power of two for each dimension."""
        if name not in self.fields:
            raise self.fail(f"{name} = [...]")
        found = integers_of(self.text, self.fields[name], self.at)
        if len(found) != rank:
            raise self.fail(f"{rank} integers, one a dimension, for {name}, not {found},")
        for n in found:
            if n < 1 or n & (n - 1):
                raise self.fail(f"powers of two for {name}, not {n},")
        return found

    def order(self, rank: int) -> list[int]:
        """The dimensions, fastest first."""
        found = integers_of(self.text, self.fields.get("order", 0), self.at)
        if sorted(found) != list(range(rank)):
            raise self.fail(f"order = a permutation of {rank} dimensions, not {found},")
        return found

    def one_block(self) -> None:
        """Refuse a layout over several blocks of a cluster."""
        for name in ("CTAsPerCGA", "CTASplitNum"):
            each = self.fields.get(name)
            if each is not None and set(integers_of(self.text, each, self.at)) != {1}:
                raise self.fail(f"{name} = 1 along every dimension")
        if isinstance(each := self.fields.get("CGALayout"), ListValue) and each.items:
            raise self.fail("no CGALayout")

    def one_cluster(self) -> None:
        """Refuse tensor memory of two blocks."""
        self.one_block()
        for name, value in (("CTASplitM", 1), ("CTASplitN", 1), ("twoCTAs", "false")):
            if str(self.fields.get(name, value)).lower() != str(value):
                raise self.fail(f"{name} = {value}")


def _unit(dim: int, value: int, rank: int) -> tuple[int, ...]:
    return tuple([value if d == dim else 0 for d in range(rank)])


class _Tile:
    """Bases that grow along the dimensions of a tensor; beyond the tensor they repeat it."""

    def __init__(self, shape: Sequence[int]) -> None:
        self.shape, self.reached = shape, [1] * len(shape)
        self.bases: dict[str, Vectors] = {"register": [], "lane": [], "warp": [], "block": []}

    def grow(self, name: str, dim: int, extent: int, *, repeats: bool = False) -> None:
        """More bits of an input along a dimension; with `repeats` they move nowhere."""
        for _ in range(extent.bit_length() - 1):
            inside = self.reached[dim] < self.shape[dim] and not repeats
            self.bases[name].append(_unit(dim, self.reached[dim] if inside else 0, len(self.shape)))
            self.reached[dim] *= 1 if repeats else 2

    def filled(self, order: Sequence[int]) -> dict[str, Vectors]:
        """The bases, with registers for what is left of the tensor."""
        for dim in order:
            self.grow("register", dim, max(1, self.shape[dim] // self.reached[dim]))
        return self.bases


def _nvidia_mma(given: _Given, shape: Sequence[int]) -> dict[str, Vectors]:
    """The accumulator of mma.sync (version 2) or wgmma (version 3)."""
    version, warps = _mma_of(given, shape)
    size = given.instruction()
    if len(size) < 2 or size[0] % 8 or size[1] % 8 or any(n < 8 or n & (n - 1) for n in size[:2]):
        raise given.fail("instrShape = [m, n, ...], powers of two from 8")
    return _mma_tile(shape, size[0], size[1], 2, (1, 0), warps, version, None)


def _dot_operand(given: _Given, shape: Sequence[int]) -> dict[str, Vectors]:
    """An operand of mma.sync, or A of wgmma, in registers."""
    parent = given.fields.get("parent")
    if isinstance(parent, AttributeValue) and parent.name == "blocked":
        return _fma_operand(given, _Given(given.text, parent), shape)
    if not isinstance(parent, AttributeValue) or parent.name != "nvidia_mma":
        raise given.fail(_PARENT)
    which, version_and_warps = given.number("opIdx", power=False), _mma_of(_Given(given.text, parent), shape)
    version, warps = version_and_warps
    if which > 1 or (which == 1 and version == 3):
        raise given.fail("opIdx = 0, or 1 of version 2")
    depth = 8 * given.number("kWidth")
    if integers_of(given.text, dict(parent.fields.items).get("instrShape", 0), parent.at)[0] != 16:
        raise given.fail("a parent with 16 rows")
    if which == 0:
        return _mma_tile(shape, 16, depth, depth // 8, (1, 0), warps, version, 1)
    return _mma_tile(shape, 8, depth, depth // 8, (0, 1), warps, version, 0)


def _fma_operand(given: _Given, parent: _Given, shape: Sequence[int]) -> dict[str, Vectors]:
    """An operand of a product without matrix instructions: a thread has all of K for its rows or columns."""
    parent.one_block()
    rank, tile = len(shape), _Tile(shape)
    order, k = parent.order(rank), _depth_of(given, rank)
    for name, field in (("register", "sizePerThread"), ("lane", "threadsPerWarp"), ("warp", "warpsPerCTA")):
        extents = parent.numbers(field, rank)
        for dim in order:
            whole = dim == k and name == "register"
            tile.grow(name, dim, shape[dim] if whole else extents[dim], repeats=dim == k and not whole)
    return tile.filled(order)


def _depth_of(given: _Given, rank: int) -> int:
    """The dimension that is K, of the last two."""
    which = given.number("opIdx", power=False)
    if which > 1 or rank < 2:
        raise given.fail("opIdx = 0 or 1, and a tensor of 2 dimensions or more,")
    return rank - 1 - which


def _mma_of(given: _Given, shape: Sequence[int]) -> tuple[int, list[int]]:
    """(version, warps along each dimension) of an nvidia_mma."""
    given.one_block()
    version = given.number("versionMajor", power=False)
    if version not in (2, 3) or len(shape) != 2:
        raise given.fail("versionMajor = 2 (mma.sync) or 3 (wgmma), and a tensor of 2 dimensions,")
    return version, given.numbers("warpsPerCTA", 2)


def _mma_tile(
    shape: Sequence[int], rows: int, depth: int, width: int, order: tuple[int, int], warps: Sequence[int], version: int,
    k: int | None,
) -> dict[str, Vectors]:  # fmt: skip
    """8 rows of 4 lanes that hold `width` neighbours along `order[0]`, repeated to rows x depth.

    Warps along dimension `k` hold the same elements.
    """
    inner, outer = order
    tile = _Tile(shape)
    tile.grow("register", inner, width)
    tile.grow("lane", inner, 4)
    tile.grow("lane", outer, 8)
    tile.grow("register", outer, rows // 8)
    tile.grow("register", inner, depth // (4 * width))
    for dim in (0, 1) if version == 3 else (1, 0):
        tile.grow("warp", dim, warps[dim], repeats=dim == k)
    return tile.filled(order)


def _blocked(given: _Given, shape: Sequence[int]) -> dict[str, Vectors]:
    """Each thread's elements, then lanes, then warps, each along `order`; what is left of the shape is registers."""
    given.one_block()
    rank, tile = len(shape), _Tile(shape)
    order = given.order(rank)
    for name, field in (("register", "sizePerThread"), ("lane", "threadsPerWarp"), ("warp", "warpsPerCTA")):
        extents = given.numbers(field, rank)
        for dim in order:
            tile.grow(name, dim, extents[dim])
    return tile.filled(order)


def _slice(given: _Given, shape: Sequence[int]) -> dict[str, Vectors]:
    """The parent's layout without one dimension; registers that held that dimension alone are gone."""
    dim, parent = given.number("dim", power=False), given.fields.get("parent")
    if not isinstance(parent, AttributeValue):
        raise given.fail("parent = #ttg.blocked<{...}>, or the name of a layout that stands before it,")
    if dim > len(shape):
        raise given.fail(f"dim = at most {len(shape)}")
    whole = _bases(given.text, parent, [*shape[:dim], 1, *shape[dim:]])
    left = {basis.name: [(*v[:dim], *v[dim + 1 :]) for v in basis.vectors] for basis in whole}
    return {name: [v for v in vectors if name != "register" or any(v)] for name, vectors in left.items()}


def _swizzled(given: _Given, shape: Sequence[int]) -> dict[str, Vectors]:
    """Rows whose groups of `vec` elements are XORed with the row's phase; further dimensions follow."""
    given.one_block()
    rank = len(shape)
    order = given.order(rank)
    vec, each, most = (given.number(name) for name in ("vec", "perPhase", "maxPhase"))
    bits = [_unit(order[0], 1 << i, rank) for i in range(shape[order[0]].bit_length() - 1)]
    for dim in order[1:2]:
        for row in (1 << i for i in range(shape[dim].bit_length() - 1)):
            column = vec * (row // each % most) % shape[order[0]]
            bits.append(tuple([row if d == dim else column if d == order[0] else 0 for d in range(rank)]))
    for dim in order[2:]:
        bits += [_unit(dim, 1 << i, rank) for i in range(shape[dim].bit_length() - 1)]
    return {"offset": bits, "block": []}


def _nvmma(given: _Given, shape: Sequence[int]) -> dict[str, Vectors]:
    """Boxes as wide as the swizzle, 8 rows a pattern: rows first, then the next box."""
    given.one_block()
    width, bits = given.number("swizzlingByteWidth", power=False), given.number("elementBitWidth")
    if len(shape) != 2 or given.flag("fp4Padded"):
        raise given.fail("a tensor of 2 dimensions, not padded,")
    column, row = (0, 1) if given.flag("transposed") else (1, 0)
    if width not in (0, 32, 64, 128) or bits > 32 or bits < 4:
        raise given.fail("swizzlingByteWidth = 0, 32, 64 or 128 and elements of 4 to 32 bits")
    wide = min(8 * width // bits or BOX, shape[column])
    if max(shape[row], wide) > BOX or (width and (shape[row] < 8 or wide < 8 * width // bits)):
        raise given.fail(f"8 to {BOX} rows and whole patterns of {width} bytes")
    vec, phases = 128 // bits, width // 16
    found = [_unit(column, 1 << i, 2) for i in range(wide.bit_length() - 1)]
    for at in (1 << i for i in range(shape[row].bit_length() - 1)):
        shifted = vec * (at % 8 * width // 128 % phases) if phases else 0
        found.append((shifted, at) if column == 0 else (at, shifted))
    found += [_unit(column, wide << i, 2) for i in range((shape[column] // wide).bit_length() - 1)]
    return {"offset": found, "block": []}


def _shared(given: _Given, shape: Sequence[int]) -> dict[str, Vectors]:
    """The older name of swizzled_shared."""
    if given.flag("hasLeadingOffset"):
        raise given.fail("hasLeadingOffset = false")
    return _swizzled(given, shape)


def _tmem_tile(given: _Given) -> list[int]:
    return [given.number("blockM"), given.number("blockN")]


def _tmem(given: _Given, shape: Sequence[int]) -> dict[str, Vectors]:
    """Tensor memory: (row, column) of its 128 lanes and its columns; bits that move nowhere hold no element.

    Of 64 rows, a warp's 16 upper lanes hold what follows: the next 64 rows, the next columns, or nothing. Further tiles
    follow along the columns, those of rows first. Source: Triton's tensorMemoryToLinearLayout.
    """
    given.one_cluster()
    apart = 1 if "unpacked" in given.fields else given.number("colStride")  # older versions count columns of 16 bits
    rows, columns = given.number("blockM"), given.number("blockN")
    if len(shape) != 2 or rows not in (64, 128) or shape[0] < rows:
        raise given.fail("blockM = 64 or 128, and a tensor of 2 dimensions with as many rows,")
    columns = min(columns, shape[1])
    col: Vectors = [*[(0, 0)] * (apart.bit_length() - 1), *[(0, 1 << i) for i in range(columns.bit_length() - 1)]]
    row: Vectors = [(1 << i, 0) for i in range(rows.bit_length() - 1)]
    height, width = rows, columns
    if rows == 64:
        more = (64, 0) if shape[0] > rows else (0, columns) if shape[1] > columns else (0, 0)
        height, width = rows + more[0], columns + more[1]
        row = [*row[:4], more, *row[4:]]
    col += [(height << i, 0) for i in range((shape[0] // height).bit_length() - 1)]
    col += [(0, width << i) for i in range((shape[1] // width).bit_length() - 1)]
    return {"row": row, "col": col}


def _tmem_scales(given: _Given, shape: Sequence[int]) -> dict[str, Vectors]:
    """Scale factors in tensor memory: 32 rows that each warp has again, by four columns of bytes.

    Source: Triton's tensorMemoryScalesToLinearLayout; PTX ISA, "tcgen05.mma", scale factor A layout.
    """
    given.one_cluster()
    if len(shape) != 2 or shape[0] < 64 or shape[1] < 4:
        raise given.fail("a tensor of 64 rows and 4 columns or more")
    row: Vectors = [*[(1 << i, 0) for i in range(5)], (0, 0), (0, 0)]
    col: Vectors = [(0, 1), (0, 2), (32, 0)]
    col += [(64 << i, 0) for i in range((shape[0] // 64).bit_length() - 1)]
    col += [(0, 4 << i) for i in range((shape[1] // 4).bit_length() - 1)]
    return {"row": row, "col": col}


_PARENT = "parent = #ttg.nvidia_mma<{...}> or #ttg.blocked<{...}>, or the name of one that stands before it,"
_TILES: dict[str, Callable[[_Given], list[int]]] = {
    "blocked": _blocked_tile,
    "nvidia_mma": _mma_own_tile,
    "dot_op": _dot_tile,
    "slice": _slice_tile,
    "swizzled_shared": _swizzled_tile,
    "shared": _swizzled_tile,
    "nvmma_shared": _nvmma_tile,
    "tensor_memory_encoding": _tmem_tile,
    "tensor_memory_scales_encoding": lambda given: [128, 4],
}
_KINDS: dict[str, Callable[[_Given, Sequence[int]], dict[str, Vectors]]] = {
    "blocked": _blocked,
    "nvidia_mma": _nvidia_mma,
    "dot_op": _dot_operand,
    "slice": _slice,
    "swizzled_shared": _swizzled,
    "shared": _shared,
    "nvmma_shared": _nvmma,
    "tensor_memory_encoding": _tmem,
    "tensor_memory_scales_encoding": _tmem_scales,
}
