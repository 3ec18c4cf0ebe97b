"""Triton's layouts of a tensor from text. The type of a tensor or of a buffer in shared memory holds both.

tensor<16xf16, #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [4], warpsPerCTA = [4], order = [0]}>>
!ttg.memdesc<64x64xf16, #ttg.swizzled_shared<{vec = 8, perPhase = 1, maxPhase = 8, order = [1, 0]}>, #smem>

#ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [8, 4], warpsPerCTA = [4, 1], order = [1, 0]}>
gl.BlockedLayout([1, 4], [8, 4], [4, 1], [1, 0])     alone: over its own tile, beyond which it repeats

Lines above it may give a layout a name, as a module of the compiler's IR does: #blocked = #ttg.blocked<{...}>.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeAlias, cast

from ...errors import LayoutError, ParseError
from ...regex import regex
from ..layout import Layout
from ..linear import LinearLayout
from ..swizzle import ComposedLayout
from .amd import lanes_along_k, mfma, mfma_operand, mfma_tile, wmma, wmma_operand, wmma_tile
from .bases import (
    ATTRIBUTE,
    CLASS,
    GLUON,
    LINEAR,
    AttributeValue,
    Basis,
    FieldsValue,
    ListValue,
    Value,
    ValueReader,
    inputs_of,
    integers_of,
    made,
)
from .parts import AttributeFields, Tile, Vectors, end_of_gluon_type, end_of_type, unit

_TYPE = regex(
    r"(?:[%!]\w[\w:]*\s*[=:]\s*|%[^\n]*->\s*|%[^\n]*?:\s*)?"
    r"(?P<described>!tt\.tensordesc\s*<\s*)?(?:!ttg?\.memdesc\s*<|tensor\s*<|(?<=<))\s*"
    r"(?P<shape>(?:\d+\s*x\s*)+)(?P<element>!tt\.ptr<[\w, ]+>|[A-Za-z]\w*)\s*,\s*(?=#)"
)
# Gluon's types: <[64, 32], fp16, BlockedLayout(...)>, shared_memory_descriptor<fp16, [64, 32], ..., [2, 64, 32]>
_GLUON_TYPE = regex(
    r"\s*(?:\w+\s*[:=]\s*)?(?:(?P<memory>shared|tensor)_memory_descriptor<\s*\w+\s*,\s*\[(?P<in_memory>[\d,\s]*)\]\s*,"
    r"|<\s*\[(?P<shape>[\d,\s'\"]*)\]\s*,\s*(?:pointer<\w+>|\w+)\s*,)\s*(?=\w*Layout\()"
)
# A line that names a layout; those without fields are passed over
_NAMED = regex(r"\s*#(\w+)\s*=\s*(#\w+\.\w+\s*<(?!\s*\[)|#\w+\s*(?=\n))?[^\n]*\n\s*")
_NAME = regex(r"#\w+\s*\Z")
RANK = 16  # dimensions of a tensor: no program prints more
# The most elements of a TMA box along a dimension
BOX = 256
AnyRead: TypeAlias = "LinearLayout | Layout | ComposedLayout"


def encoded(text: str) -> AnyRead | None:
    """The linear layout of the tensor whose type the text is, None for another text.

    Where a count of buffers is no power of two it is the layout (buffer, coordinates) -> element, swizzled or not.

    An attribute without a tensor is read over its own tile, the smallest tensor in which each part of it is once.
    The tile of blocked is sizePerThread x threadsPerWarp x warpsPerCTA, that of nvidia_mma the instruction's shape x
    warpsPerCTA, that of shared memory a period of the swizzle.

    (register, lane, warp, block), or (offset, block) of shared memory, -> flat index of the tensor, whose first
    dimension runs fastest. Reads blocked, slice, linear, nvidia_mma of versions 2 and 3, AMD's matrix instructions,
    dot_op of these and of blocked, shared_linear, swizzled_shared, nvmma_shared. Tensor memory is (row, col) -> flat
    index. Registers that repeat an element are kept, as Triton up to 3.6 does. Raises ParseError with the character and
    what was expected. Source: Triton's LinearLayoutConversions.

    >>> found = encoded(
    ...     "tensor<128xf32, #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [4], warpsPerCTA = [4], order = [0]}>>"
    ... )
    >>> str(found.to_layout())    # three registers more than the layout's own 16 elements: it repeats
    '(8,4,4,1):(16,1,4,0)'
    """
    found = shaped(text)
    return None if found is None else found[0]


def shaped(text: str) -> tuple[AnyRead, list[int]] | None:
    """`encoded` with the shape of the tensor, None for another text.

    >>> shaped("#ttg.swizzled_shared<{vec = 8, perPhase = 1, maxPhase = 8, order = [1, 0]}>")[1]
    [8, 64]
    """
    at, known = 0, dict[str, AttributeValue]()
    if "\n" in text.strip():
        text += "\n" * (not text.endswith("\n"))  # the last line may name a layout, too
    while (named := _NAMED.match(text, at)) is not None:
        if named[2]:
            known[named[1]] = ValueReader(text, named.start(2), known).attribute(0)
        at = named.end()
    while text[at : at + 1].isspace():
        at += 1
    gluon = _GLUON_TYPE.match(text, at)
    if gluon is not None:
        return _of_gluon(text, gluon)
    found = _TYPE.match(text, at)
    if found is None:
        return _alone(text, at, known)
    shape = [int(extent) for extent in re.findall(r"\d{1,18}", found["shape"])]
    if len(shape) > RANK:
        raise ParseError(f"expected at most {RANK} dimensions, not {len(shape)}", text, found.start("shape"))
    reader = ValueReader(text, found.end(), known)
    attribute = reader.attribute(0)
    end_of_type(reader, shape, described=found["described"] is not None)
    return _over(text, found.start("shape"), attribute, shape, in_memory="memdesc" in found[0]), shape


def _of_gluon(text: str, found: re.Match[str]) -> tuple[AnyRead, list[int]]:
    """The layout of a type that Gluon prints."""
    group = "in_memory" if found["memory"] else "shape"
    shape = [int(extent) for extent in re.findall(r"\d{1,18}", found[group])]
    called = CLASS.match(text, found.end())
    if called is None or called[1] not in GLUON or not 0 < len(shape) <= RANK:
        raise ParseError(f"expected 1 to {RANK} extents and one of {', '.join(GLUON)}", text, found.start(group))
    reader = ValueReader(text, found.end())
    attribute = reader.called(called, 0)
    end_of_gluon_type(reader, shape)
    return _over(text, found.start(group), attribute, shape, in_memory=found["memory"] is not None), shape


def _over(text: str, at: int, attribute: AttributeValue, shape: list[int], *, in_memory: bool) -> AnyRead:
    """The layout of an attribute over a tensor, or over buffers in memory."""
    buffers = shape[0] if in_memory and len(shape) == _buffer_rank(text, attribute) + 1 else 0
    one = shape[1:] if buffers else shape
    for size in one:
        if size & (size - 1) or not size:
            raise ParseError(f"expected extents that are powers of two, not {size}", text, at)
    bases = _bases(text, attribute, one)
    if buffers & (buffers - 1):
        return _several(text, at, made(text, bases, one), buffers, one)
    return made(text, _buffered(text, at, bases, buffers, one) if buffers else bases, shape)


def _several(text: str, at: int, one: LinearLayout, buffers: int, shape: Sequence[int]) -> Layout | ComposedLayout:
    """(buffer, coordinates) -> element of buffers one behind another, whose count is no power of two."""
    said = "x".join(map(str, shape))
    if one.bits[1:] != (0,) or one.names[0] != "offset" or not one.is_bijective():
        raise ParseError(f"expected a power of two of buffers, not {buffers}; one of them is {said}", text, at)
    places = LinearLayout(one.inverse().columns, tuple([size.bit_length() - 1 for size in shape]), width=one.width)
    try:
        found = places.to_composed()
    except LayoutError as error:
        raise ParseError(f"expected a power of two of buffers, not {buffers}: {error.reason}", text, at) from None
    inner = cast("Layout", found.layout)
    modes = [inner] if len(shape) == 1 else [cast("Layout", inner[i]) for i in range(len(shape))]
    whole = Layout.join(Layout(buffers, one.size), *modes)
    return ComposedLayout(found.swizzle, found.offset, whole) if found.swizzle.bits else whole


def _buffer_rank(text: str, attribute: AttributeValue) -> int:
    """The dimensions of one buffer in memory: a type may have another in front that counts buffers."""
    fields = dict(attribute.fields.items)
    if attribute.name == "shared_linear":
        return len(_linear_tile(AttributeFields(text, attribute)))
    for name in ("order", "CTAOrder", "CTAsPerCGA"):
        if isinstance(value := fields.get(name), ListValue):
            return len(value.items)
    rank = fields.get("rank", 2)
    if (
        isinstance(value := fields.get("CGALayout"), ListValue)
        and value.items
        and isinstance(value.items[0], ListValue)
    ):
        return len(value.items[0].items)
    return rank if isinstance(rank, int) else 2


def _buffered(text: str, at: int, bases: list[Basis], buffers: int, one: Sequence[int]) -> list[Basis]:
    """The bases of several buffers, one behind another in shared memory."""
    follow = [(1 << i, *[0] * len(one)) for i in range(buffers.bit_length() - 1)]
    said = "x".join(map(str, one))
    if follow and all(basis.name != "offset" for basis in bases):
        raise ParseError(f"expected one buffer of tensor memory, as in {said}, not {buffers}", text, at)
    out = []
    for basis in bases:
        vectors = [(0, *vector) for vector in basis.vectors]
        out.append(Basis(basis.name, (*vectors, *follow) if basis.name == "offset" else tuple(vectors), basis.at))
    return out


def _alone(text: str, at: int, known: dict[str, AttributeValue]) -> tuple[LinearLayout, list[int]] | None:
    """The layout of an attribute without a tensor over its own tile; None for another text."""
    found = ATTRIBUTE.match(text, at)
    called = CLASS.match(text, at)
    named = _NAME.match(text, at)
    if named is not None:
        attribute = ValueReader(text, at, known).attribute(0)
        earlier = [name for name in known if known[name] is not attribute]
    elif at == len(text) and known:
        *earlier, last = known
        attribute = known[last]
    elif found is not None and found[1] in _TILES and (known or found[1] not in LINEAR):
        reader, earlier = ValueReader(text, text.rindex("#", at, found.start(1)), known), list(known)
        attribute = reader.attribute(0)
        reader.end("")
    elif called is not None and called[1] in GLUON and called[1] not in LINEAR:
        reader, earlier = ValueReader(text, at, known), []
        attribute = reader.called(called, 0)
        reader.end("")
    elif known and text[at:].strip() and (found is None or found[1] not in LINEAR):
        raise ParseError("expected the type of a tensor behind the lines that name layouts, or nothing", text, at)
    else:
        return None
    for name in earlier:
        if re.search(rf"#{name}(?!\w)(?:\s*[,}}>]|[ \t]*\n)", text) is None:
            raise ParseError(f"expected one layout, not #{name} too", text, known[name].at)
    if attribute.name not in _TILES:
        raise ParseError(f"expected one of {', '.join(_TILES)}", text, attribute.at)
    shape = _own_tile(text, attribute)
    return made(text, _bases(text, attribute, shape), shape), shape


def _own_tile(text: str, attribute: AttributeValue) -> list[int]:
    """The smallest tensor in which each part of the layout is once."""
    if attribute.name not in _TILES:
        raise ParseError(f"expected one of {', '.join(_TILES)}, not {attribute.name}", text, attribute.at)
    tile = _TILES[attribute.name](AttributeFields(text, attribute))
    if attribute.name in ("slice", "linear", "generic_linear"):
        return tile
    for vector in _cluster(AttributeFields(text, attribute), len(tile)):
        tile = [extent << (x > 0) for extent, x in zip(tile, vector, strict=True)]
    return tile


def _cluster(given: AttributeFields, rank: int) -> Vectors:
    """The bases of the blocks of a cluster; those of an operand are its parent's, and K is not split."""
    if given.name != "dot_op":
        return given.cluster(rank)
    k = given.depth(rank)
    return [tuple([0 if d == k else x for d, x in enumerate(v)]) for v in _parent(given).cluster(rank)]


def _linear_tile(given: AttributeFields) -> list[int]:
    vectors = [v for basis in inputs_of(given.text, given.name, given.fields, given.at) for v in basis.vectors]
    rank = len(vectors[0]) if vectors else 1
    if any(len(v) != rank or min(v) < 0 for v in vectors):
        raise given.fail(f"vectors of {rank} integers from 0")
    return [1 << max([v[d].bit_length() for v in vectors], default=0) for d in range(rank)]


def _blocked_tile(given: AttributeFields) -> list[int]:
    rank = len(integers_of(given.text, given.fields.get("order", 0), given.at))
    parts = [given.numbers(name, rank) for name in ("sizePerThread", "threadsPerWarp", "warpsPerCTA")]
    return [a * b * c for a, b, c in zip(*parts, strict=True)]


def _mma_own_tile(given: AttributeFields) -> list[int]:
    size, warps = given.instruction(), given.extents("warpsPerCTA")
    size = [1] * (len(warps) - 2) + [*size, 1][:2]
    return [a * b for a, b in zip(size, warps, strict=True)]


def _dot_tile(given: AttributeFields) -> list[int]:
    parent = _parent(given)
    tile = _TILES[parent.name](parent)
    k = given.depth(len(tile))
    free = 2 * len(tile) - 3 - k
    if parent.name == "blocked":
        tile[k] = 1
    elif parent.name == "nvidia_mma":
        tile[k] = 8 * given.number("kWidth")
        tile[free] = (16 if k > free else 8) * parent.extents("warpsPerCTA")[free]
    else:
        tile[k] = given.number("kWidth") * lanes_along_k(parent, free - (len(tile) - 2))
    return tile


def _parent(given: AttributeFields) -> AttributeFields:
    """The layout of the accumulator that an operand belongs to."""
    parent = given.fields.get("parent")
    if not isinstance(parent, AttributeValue) or parent.name not in _OPERANDS:
        raise given.fail(_PARENT)
    return AttributeFields(given.text, parent)


def _slice_tile(given: AttributeFields) -> list[int]:
    dim, parent = given.number("dim", power=False), given.fields.get("parent")
    if not isinstance(parent, AttributeValue):
        raise given.fail("parent = #ttg.blocked<{...}>, or the name of a layout that stands before it,")
    whole = _own_tile(given.text, parent)
    if dim >= len(whole) or len(whole) < 2:
        raise given.fail(f"dim = one of {len(whole)} dimensions, two or more,")
    return [*whole[:dim], *whole[dim + 1 :]]


def _swizzled_tile(given: AttributeFields) -> list[int]:
    order = given.order(len(integers_of(given.text, given.fields.get("order", 0), given.at)))
    vec, each, most = (given.number(name) for name in ("vec", "perPhase", "maxPhase"))
    out = [1] * len(order)
    out[order[0]] = vec * most
    if len(order) > 1:
        out[order[1]] = each * most
    return out


def _rotating_tile(given: AttributeFields) -> list[int]:
    out, order = (
        _swizzled_tile(given),
        given.order(len(integers_of(given.text, given.fields.get("order", 0), given.at))),
    )
    if len(order) > 1:
        out[order[1]] *= given.number("maxPhase")
    return out


def _nvmma_tile(given: AttributeFields) -> list[int]:
    width, bits = given.number("swizzlingByteWidth", power=False), given.number("elementBitWidth")
    wide = max(1, 8 * (width or 16) // bits // (2 if given.flag("fp4Padded") else 1))
    rank = given.number("rank", power=False) if "rank" in given.fields else 2
    if not 2 <= rank <= RANK:
        raise given.fail(f"rank = 2 to {RANK}")
    if not given.flag("transposed") or not width:
        return [*[1] * (rank - 2), 8, wide]
    return [wide, *[1] * (rank - 2), 8]


def _bases(text: str, attribute: AttributeValue, shape: Sequence[int]) -> list[Basis]:
    """The bases of a layout over a tensor of this shape."""
    if attribute.name in ("linear", "generic_linear", "shared_linear"):
        own = inputs_of(text, attribute.name, dict(attribute.fields.items), attribute.at)
        return _fitted(text, attribute, own, shape)
    if attribute.name not in _KINDS:
        raise ParseError(
            f"expected one of {', '.join(_KINDS)}, linear, shared_linear, not {attribute.name}", text, attribute.at
        )
    given = AttributeFields(text, attribute)
    if attribute.name == "slice":
        found = _KINDS[attribute.name](given, shape)
    else:
        blocks = _cluster(given, len(shape))
        part = list(shape)  # of one block
        for vector in blocks:
            part = [max(1, extent >> (x > 0)) for extent, x in zip(part, vector, strict=True)]
        found = _KINDS[attribute.name](given, part)
        if not blocks and attribute.name.startswith("tensor_memory"):
            return [Basis(name, tuple(vectors), attribute.at) for name, vectors in found.items()]
        found["block"] = [
            tuple([x * by if x * by < extent else 0 for x, by, extent in zip(v, part, shape, strict=True)])
            for v in blocks
        ]
    return [Basis(name, tuple(vectors), attribute.at) for name, vectors in found.items()]


def _fitted(text: str, attribute: AttributeValue, own: list[Basis], shape: Sequence[int]) -> list[Basis]:
    """A linear layout over a tensor of this shape: a larger one is in further registers.

    The further registers run along the dimensions in the order in which the layout's registers do, then the last first.
    Beyond a smaller tensor lanes and warps repeat it, and there are no registers. Source: Triton's LinearEncodingAttr.
    """
    rank = len(shape)
    vectors = [vector for basis in own for vector in basis.vectors]
    if any(len(vector) != rank or min(vector) < 0 for vector in vectors):
        wrong = next(vector for vector in vectors if len(vector) != rank or min(vector) < 0)
        raise ParseError(f"expected vectors of {rank} integers from 0, not {list(wrong)}", text, attribute.at)
    extents = [1 << max([v[d].bit_length() for v in vectors], default=0) for d in range(rank)]
    if extents == list(shape):
        return own
    if attribute.name not in ("linear", "generic_linear") or not any(basis.name == "register" for basis in own):
        raise ParseError(f"expected a tensor of the layout's shape {extents}, not {list(shape)}", text, attribute.at)
    if any(x >= size and x & (x - 1) for v in vectors for x, size in zip(v, shape, strict=True)):
        raise ParseError(f"expected a tensor of {extents} or more, not {list(shape)}", text, attribute.at)
    of_registers = [v for basis in own if basis.name == "register" for v in basis.vectors]
    order = [d for v in of_registers for d in range(rank) if v[d]]
    more = [
        unit(dim, 1 << i, rank)
        for dim in dict.fromkeys([*order, *range(rank)[::-1]])
        for i in range(extents[dim].bit_length() - 1, shape[dim].bit_length() - 1)
    ]
    out = []
    for basis in own:
        inside = [tuple([x if x < size else 0 for x, size in zip(v, shape, strict=True)]) for v in basis.vectors]
        if basis.name == "register":
            inside = [v for v, before in zip(inside, basis.vectors, strict=True) if v == before] + more
        out.append(Basis(basis.name, tuple(inside), basis.at))
    return out


def _nvidia_mma(given: AttributeFields, shape: Sequence[int]) -> dict[str, Vectors]:
    """The accumulator of mma.sync (version 2) or wgmma (version 3)."""
    version, warps = _mma_of(given, shape)
    size = given.instruction()
    if len(size) < 2 or any(n < 8 or n & (n - 1) for n in size[:2]):
        raise given.fail("instrShape = [m, n, ...], powers of two from 8")
    n = len(shape) - 1
    return _mma_tile(shape, size[0], size[1], 2, (n, n - 1), warps, version, None)


def _dot_operand(given: AttributeFields, shape: Sequence[int]) -> dict[str, Vectors]:
    """An operand of a product in registers: of mma.sync, of AMD's instructions, or A of wgmma."""
    given.only("opIdx", "parent", "kWidth")
    parent = _parent(given)
    return _OPERANDS[parent.name](given, parent, shape)


def _nvidia_operand(given: AttributeFields, parent: AttributeFields, shape: Sequence[int]) -> dict[str, Vectors]:
    """An operand of mma.sync, or A of wgmma, in registers."""
    k, (version, warps) = given.depth(len(shape)), _mma_of(parent, shape)
    free = 2 * len(shape) - 3 - k
    if k < free and version == 3:
        raise given.fail("opIdx = 0, or 1 of version 2")
    depth, size = 8 * given.number("kWidth"), parent.instruction()
    if size[0] != 16:
        raise given.fail("a parent with 16 rows")
    return _mma_tile(shape, 16 if k > free else 8, depth, depth // 8, (k, free), warps, version, k)


def _fma_operand(given: AttributeFields, parent: AttributeFields, shape: Sequence[int]) -> dict[str, Vectors]:
    """An operand of a product without matrix instructions: a thread has all of K for its rows or columns."""
    rank, tile = len(shape), Tile(shape)
    order, k = parent.order(rank), given.depth(rank)
    for name, field in (("register", "sizePerThread"), ("lane", "threadsPerWarp"), ("warp", "warpsPerCTA")):
        extents = parent.numbers(field, rank)
        for dim in order:
            whole = dim == k and name == "register"
            tile.grow(name, dim, shape[dim] if whole else extents[dim], repeats=dim == k and not whole)
    return tile.filled(order)


def _mma_of(given: AttributeFields, shape: Sequence[int]) -> tuple[int, list[int]]:
    """(version, warps along each dimension) of an nvidia_mma."""
    given.only("versionMajor", "versionMinor", "warpsPerCTA", "instrShape")
    version, rank = given.number("versionMajor", power=False), len(shape)
    if version not in (2, 3) or rank not in (2, 3) or (version == 3 and rank == 3):
        raise given.fail("versionMajor = 2 (mma.sync) or 3 (wgmma), and a tensor of 2 dimensions, or 3 of version 2,")
    return version, given.numbers("warpsPerCTA", rank)


def _mma_tile(
    shape: Sequence[int], rows: int, depth: int, width: int, order: tuple[int, int], warps: Sequence[int], version: int,
    k: int | None,
) -> dict[str, Vectors]:  # fmt: skip
    """8 rows of 4 lanes that hold `width` neighbours along `order[0]`, repeated to rows x depth; a batch comes last.

    Warps along dimension `k` hold the same elements.
    """
    inner, outer = order
    tile = Tile(shape)
    tile.grow("register", inner, width)
    tile.grow("lane", inner, 4)
    tile.grow("lane", outer, 8)
    tile.grow("register", outer, rows // 8)
    tile.grow("register", inner, depth // (4 * width))
    dims = range(len(shape))
    for dim in dims if version == 3 else dims[::-1]:
        tile.grow("warp", dim, warps[dim], repeats=dim == k)
    return tile.filled((*order, *range(len(shape) - 2)))


def _blocked(given: AttributeFields, shape: Sequence[int]) -> dict[str, Vectors]:
    """Each thread's elements, then lanes, then warps along `order`; the rest of the shape is registers."""
    given.only("sizePerThread", "threadsPerWarp", "warpsPerCTA", "order")
    rank, tile = len(shape), Tile(shape)
    order = given.order(rank)
    for name, field in (("register", "sizePerThread"), ("lane", "threadsPerWarp"), ("warp", "warpsPerCTA")):
        extents = given.numbers(field, rank)
        for dim in order:
            tile.grow(name, dim, extents[dim])
    return tile.filled(order)


def _slice(given: AttributeFields, shape: Sequence[int]) -> dict[str, Vectors]:
    """The parent's layout without one dimension; registers that held that dimension alone are gone."""
    given.only("dim", "parent")
    dim, parent = given.number("dim", power=False), given.fields.get("parent")
    if not isinstance(parent, AttributeValue):
        raise given.fail("parent = #ttg.blocked<{...}>, or the name of a layout that stands before it,")
    if dim > len(shape):
        raise given.fail(f"dim = at most {len(shape)}")
    whole = _bases(given.text, parent, [*shape[:dim], 1, *shape[dim:]])
    left = {basis.name: [(*v[:dim], *v[dim + 1 :]) for v in basis.vectors] for basis in whole}
    return {name: [v for v in vectors if name != "register" or any(v)] for name, vectors in left.items()}


def _swizzled(given: AttributeFields, shape: Sequence[int], *, rotating: bool = False) -> dict[str, Vectors]:
    """Rows whose groups of `vec` elements are XORed with the row's phase; further dimensions follow.

    rotating  the phases of each `maxPhase` groups of rows are XORed with the group's number too
    """
    given.only("vec", "perPhase", "maxPhase", "order", "hasLeadingOffset")
    rank = len(shape)
    order = given.order(rank)
    vec, each, most = (given.number(name) for name in ("vec", "perPhase", "maxPhase"))
    bits = [unit(order[0], 1 << i, rank) for i in range(shape[order[0]].bit_length() - 1)]
    for dim in order[1:2]:
        for row in (1 << i for i in range(shape[dim].bit_length() - 1)):
            phase = row // each % most ^ (row // each // most % most if rotating else 0)
            column = vec * phase % shape[order[0]]
            bits.append(tuple([row if d == dim else column if d == order[0] else 0 for d in range(rank)]))
    for dim in order[2:]:
        bits += [unit(dim, 1 << i, rank) for i in range(shape[dim].bit_length() - 1)]
    return {"offset": bits}


def _rotating(given: AttributeFields, shape: Sequence[int]) -> dict[str, Vectors]:
    """AMD's rotating swizzle: over `maxPhase` groups of rows every phase meets every group's number."""
    return _swizzled(given, shape, rotating=True)


def _nvmma(given: AttributeFields, shape: Sequence[int]) -> dict[str, Vectors]:
    """Boxes of TMA, as wide as the swizzle: rows first, then further boxes, those along the first dimension first.

    Without a swizzle the further boxes along the fastest dimension come first.

    fp4Padded: 16 bytes of a box hold 16 elements of 4 bits, so 8 bytes of the tensor, and 8 bytes of padding.
    """
    given.only("swizzlingByteWidth", "transposed", "elementBitWidth", "fp4Padded", "rank")
    width, bits = given.number("swizzlingByteWidth", power=False), given.number("elementBitWidth")
    rank, packed = len(shape), 2 if given.flag("fp4Padded") else 1
    if width not in (0, 32, 64, 128) or bits > 32 or bits < 4 or (packed > 1 and (width != 128 or bits != 8)):
        raise given.fail("swizzlingByteWidth = 0, 32, 64 or 128 and elements of 4 to 32 bits, 128 and 8 of fp4Padded")
    transposed = given.flag("transposed")
    if rank < 2:
        raise given.fail("a tensor of 2 dimensions or more")
    if transposed and not width and sum(extent > 1 for extent in shape) > 1:
        raise given.fail(_UNSWIZZLED)
    order = [0, *range(1, rank)[::-1]] if transposed and width else list(range(rank))[::-1]  # fastest first
    box = [min(BOX, extent) for extent in shape]
    wide = 8 * width // bits if width else box[order[0]]  # with padding
    box[order[0]] = wide // packed if width else wide
    rows, rest = _rows_of_box(box, order, transposed=transposed and width > 0)
    if width and (shape[order[0]] < box[order[0]] or len(rows) < 3):
        raise given.fail(f"8 rows or more and whole patterns of {width} bytes")
    vec, phases = 128 // bits, width // 16
    found = [unit(order[0], _unpadded(1 << i, packed), rank) for i in range(wide.bit_length() - 1)]
    for i, row in enumerate(rows):
        shifted = _unpadded(vec * ((1 << i) % 8 * width // 128 % phases), packed) if phases else 0
        found.append(tuple([shifted if d == order[0] else at for d, at in enumerate(row)]))
    found += rest
    for dim in range(rank) if width else order:
        found += [unit(dim, box[dim] << i, rank) for i in range((shape[dim] // box[dim]).bit_length() - 1)]
    return {"offset": found}


def _rows_of_box(box: Sequence[int], order: Sequence[int], *, transposed: bool) -> tuple[Vectors, Vectors]:
    """The bits of a box beyond its fastest dimension: those of its rows, and those that follow them.

    Transposed, Triton counts the last dimension alone as rows, and then splits the number of an element along `order`.
    """
    bits = [unit(dim, 1 << i, len(box)) for dim in order[1:] for i in range(box[dim].bit_length() - 1)]
    rows = box[-1].bit_length() - 1 if transposed else len(bits)
    return bits[len(bits) - rows :], bits[: len(bits) - rows]


_UNSWIZZLED = (
    "transposed = false with swizzlingByteWidth = 0 (Triton up to 3.7 passes over transposed = true there, and from "
    "3.8 the first dimension is the fastest: #ttg.shared_linear<{...}> says which)"
)


def _unpadded(column: int, packed: int) -> int:
    """The tensor's column at a column of the buffer; packed, every second 8 are padding."""
    return column if packed == 1 else column // 16 * 8 + column % 8


def _shared(given: AttributeFields, shape: Sequence[int]) -> dict[str, Vectors]:
    """The older name of swizzled_shared, and with hasLeadingOffset of nvmma_shared."""
    return _swizzled(given, shape) if not given.flag("hasLeadingOffset") else _nvmma(_as_nvmma(given), shape)


def _shared_tile(given: AttributeFields) -> list[int]:
    return _swizzled_tile(given) if not given.flag("hasLeadingOffset") else _nvmma_tile(_as_nvmma(given))


def _as_nvmma(given: AttributeFields) -> AttributeFields:
    """The fields of nvmma_shared for hasLeadingOffset; groups of `vec` have 16 bytes."""
    given.only("vec", "perPhase", "maxPhase", "order", "hasLeadingOffset")
    phases, vec, order = (given.number("perPhase"), given.number("maxPhase")), given.number("vec"), given.order(2)
    if phases not in ((4, 2), (2, 4), (1, 8)) or vec not in (4, 8, 16):
        raise given.fail("perPhase, maxPhase = 4, 2 or 2, 4 or 1, 8 and vec = 4, 8 or 16 with hasLeadingOffset")
    fields: list[tuple[str, Value]] = [("swizzlingByteWidth", 16 * phases[1]), ("elementBitWidth", 128 // vec)]
    fields.append(("transposed", str(order[0] == 0).lower()))
    return AttributeFields(given.text, AttributeValue(given.at, given.name, FieldsValue(given.at, tuple(fields))))


def _tmem_tile(given: AttributeFields) -> list[int]:
    return [given.number("blockM"), given.number("blockN")]


def _tmem(given: AttributeFields, shape: Sequence[int]) -> dict[str, Vectors]:
    """Tensor memory: (row, column) of its 128 lanes and its columns; bits that move nowhere hold no element.

    Of 64 rows, a warp's 16 upper lanes hold what follows: the next 64 rows, the next columns, or nothing. Further tiles
    follow along the columns, those of rows first. Of 64 rows of each of two CTAs, the upper 64 lanes hold the upper
    half of the columns. Source: Triton's tensorMemoryToLinearLayout.
    """
    given.one_split()
    given.only("blockM", "blockN", "colStride", "unpacked", "CTASplitM", "CTASplitN", "twoCTAs", "fp4Padded")
    if given.flag("fp4Padded"):
        raise given.fail("fp4Padded = false")
    apart = 1 if "unpacked" in given.fields else given.number("colStride")  # older versions count columns of 16 bits
    rows, columns = given.number("blockM"), given.number("blockN")
    if len(shape) != 2 or rows not in (64, 128) or shape[0] < rows:
        raise given.fail("blockM = 64 or 128, and a tensor of 2 dimensions with as many rows,")
    columns = min(columns, shape[1])
    col: Vectors = [*[(0, 0)] * (apart.bit_length() - 1), *[(0, 1 << i) for i in range(columns.bit_length() - 1)]]
    row: Vectors = [(1 << i, 0) for i in range(rows.bit_length() - 1)]
    height, width = rows, columns
    if rows == 64 and given.flag("twoCTAs"):
        if columns < 2:
            raise given.fail("2 columns or more with twoCTAs = true")
        row.append(col.pop())
    elif rows == 64:
        more = (64, 0) if shape[0] > rows else (0, columns) if shape[1] > columns else (0, 0)
        height, width = rows + more[0], columns + more[1]
        row = [*row[:4], more, *row[4:]]
    col += [(height << i, 0) for i in range((shape[0] // height).bit_length() - 1)]
    col += [(0, width << i) for i in range((shape[1] // width).bit_length() - 1)]
    return {"row": row, "col": col}


def _tmem_scales(given: AttributeFields, shape: Sequence[int]) -> dict[str, Vectors]:
    """Scale factors in tensor memory: 32 rows that each warp has again, by four columns of bytes.

    Source: Triton's tensorMemoryScalesToLinearLayout; PTX ISA, "tcgen05.mma", scale factor A layout.
    """
    given.one_split()
    given.only("CTASplitM", "CTASplitN", "twoCTAs")
    if len(shape) != 2 or shape[0] < 32 or shape[1] < 4:
        raise given.fail("a tensor of 32 rows and 4 columns or more")
    row: Vectors = [*[(1 << i, 0) for i in range(5)], (0, 0), (0, 0)]
    col: Vectors = [(0, 1), (0, 2), (32 if shape[0] > 32 else 0, 0)]
    col += [(64 << i, 0) for i in range((shape[0] // 64).bit_length() - 1)]
    col += [(0, 4 << i) for i in range((shape[1] // 4).bit_length() - 1)]
    return {"row": row, "col": col}


_OPERANDS: dict[str, Callable[[AttributeFields, AttributeFields, Sequence[int]], dict[str, Vectors]]] = {
    "nvidia_mma": _nvidia_operand,
    "blocked": _fma_operand,
    "amd_mfma": mfma_operand,
    "amd_wmma": wmma_operand,
}
_PARENT = "parent = #ttg.nvidia_mma<{...}>, amd_mfma, amd_wmma or blocked, or the name of one that stands before it,"
_TILES: dict[str, Callable[[AttributeFields], list[int]]] = {
    "linear": _linear_tile,
    "generic_linear": _linear_tile,
    "blocked": _blocked_tile,
    "nvidia_mma": _mma_own_tile,
    "dot_op": _dot_tile,
    "slice": _slice_tile,
    "swizzled_shared": _swizzled_tile,
    "shared": _shared_tile,
    "nvmma_shared": _nvmma_tile,
    "amd_mfma": mfma_tile,
    "amd_wmma": wmma_tile,
    "amd_rotating_shared": _rotating_tile,
    "tensor_memory_encoding": _tmem_tile,
    "tensor_memory_scales_encoding": lambda given: [128, 4],
}
_KINDS: dict[str, Callable[[AttributeFields, Sequence[int]], dict[str, Vectors]]] = {
    "blocked": _blocked,
    "nvidia_mma": _nvidia_mma,
    "dot_op": _dot_operand,
    "slice": _slice,
    "swizzled_shared": _swizzled,
    "shared": _shared,
    "nvmma_shared": _nvmma,
    "amd_mfma": mfma,
    "amd_wmma": wmma,
    "amd_rotating_shared": _rotating,
    "tensor_memory_encoding": _tmem,
    "tensor_memory_scales_encoding": _tmem_scales,
}
