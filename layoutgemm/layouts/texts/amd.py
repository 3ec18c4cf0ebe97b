"""Triton's layouts of AMD's matrix instructions from text: accumulators and operands of MFMA and WMMA.

#ttg.amd_mfma<{version = 3, warpsPerCTA = [2, 2], instrShape = [32, 32, 8], isTransposed = true}>
AMDMFMALayout(version=3, instr_shape=[32, 32, 8], transposed=True, warps_per_cta=[2, 2])
#ttg.amd_wmma<{version = 2, isTranspose = true, ctaLayout = {warp = [[0, 1], [1, 0]]}, instrShape = [16, 16, 16]}>
AMDWMMALayout(version=2, transposed=True, warp_bases=[[0, 1], [1, 0]])

A wavefront of MFMA has 64 lanes, one of WMMA 32. The lanes run along one dimension of the accumulator and the
registers along the other, M unless the result is transposed.
"""

from __future__ import annotations

from collections.abc import Sequence

from .bases import FieldsValue, basis_of
from .parts import AttributeFields, Tile, Vectors, unit

_MFMA = "version versionMajor versionMinor warpsPerCTA instrShape isTransposed tilesPerWarp elementBitWidth elementType"
_WMMA = "version isTranspose isTransposed warpsPerCTA ctaLayout instrShape tilesPerWarp rank"
_LANES = 64  # of a wavefront that runs MFMA
# Instructions of a version, and kWidth of their operands; Source: Triton's verifier of AMDWmmaEncodingAttr
_WMMA_SIZES = {
    1: [[16, 16, 16]],
    2: [[16, 16, 16], [16, 16, 32]],
    3: [[16, 16, 4], [16, 16, 32], [16, 16, 64], [16, 16, 128], [32, 16, 64], [32, 16, 128]],
}
_WMMA_WIDTHS = {1: (8, 16), 2: (4, 8, 16)}
_SIZES = [[32, 32], [16, 16], [64, 4], [4, 64]]


class _Mfma:
    """The checked fields of an amd_mfma."""

    def __init__(self, given: AttributeFields) -> None:
        given.only(*_MFMA.split())
        version = given.number("version" if "version" in given.fields else "versionMajor", power=False)
        self.size, self.transposed = given.instruction()[:2], given.flag("isTransposed")
        if version not in (1, 2, 3, 4) or self.size not in _SIZES:
            raise given.fail(
                "version = 1 to 4 and instrShape = [32, 32, ...], [16, 16, ...], [64, 4, ...] or [4, 64, ...]"
            )
        if self.size == [64, 4] and not self.transposed:
            raise given.fail("isTransposed = true for instrShape = [64, 4, ...]")
        width = given.fields.get("elementBitWidth", 64 if given.fields.get("elementType") == "f64" else 32)
        if width not in (32, 64) or (width == 64 and self.size != [16, 16]):
            raise given.fail("elementBitWidth = 32, or 64 for instrShape = [16, 16, ...]")
        self.group = 1 if width == 64 else 4  # rows in neighbouring registers
        self.warps = given.extents("warpsPerCTA")
        self.rank = len(self.warps)
        self.tiles = given.tiles(self.rank)


def mfma_tile(given: AttributeFields) -> list[int]:
    """The part of the accumulator that all warps have once."""
    mfma = _Mfma(given)
    sizes = [1] * (mfma.rank - 2) + mfma.size
    return [a * b * c for a, b, c in zip(sizes, mfma.tiles, mfma.warps, strict=True)]


def _check_rank(given: AttributeFields, found: _Mfma | _Wmma, shape: Sequence[int]) -> None:
    if len(shape) != found.rank:
        raise given.fail(f"a tensor of {found.rank} dimensions")


def _lanes_and_registers(given: AttributeFields, found: _Mfma | _Wmma, shape: Sequence[int]) -> tuple[int, int]:
    """The dimension of the accumulator's lanes, and that of its registers."""
    _check_rank(given, found, shape)
    m, n = len(shape) - 2, len(shape) - 1
    return (m, n) if found.transposed else (n, m)


def _free(given: AttributeFields, found: _Mfma | _Wmma, shape: Sequence[int], k: int) -> int:
    """The one of an operand's last two dimensions that is not K."""
    _check_rank(given, found, shape)
    return 2 * len(shape) - 3 - k


def mfma(given: AttributeFields, shape: Sequence[int]) -> dict[str, Vectors]:
    """The accumulator of MFMA. Four rows in registers, then lanes along the columns, then lanes along the rows.

    Source: AMD's matrix instruction calculator.
    """
    found = _Mfma(given)
    across, along = _lanes_and_registers(given, found, shape)
    sizes = dict(zip(range(len(shape) - 2, len(shape)), found.size, strict=True))
    tile = Tile(shape)
    tile.grow("register", along, found.group)
    tile.grow("lane", across, sizes[across])
    tile.grow("lane", along, _LANES // sizes[across])
    tile.grow("register", along, sizes[along] * sizes[across] // (_LANES * found.group))
    return _repeated(tile, found.tiles, found.warps, None)


def mfma_operand(given: AttributeFields, parent: AttributeFields, shape: Sequence[int]) -> dict[str, Vectors]:
    """An operand of MFMA. `kWidth` neighbours along K in registers, lanes along the other dimension, then along K."""
    found, k = _Mfma(parent), given.depth(len(shape))
    free = _free(given, found, shape, k)
    wide = found.size[free - (len(shape) - 2)]
    tile = Tile(shape)
    tile.grow("register", k, given.number("kWidth"))
    tile.grow("lane", free, wide)
    tile.grow("lane", k, _LANES // wide)
    deep = given.number("kWidth") * (_LANES // min(found.size))  # K of one instruction
    tile.grow("register", k, max(1, max(deep, shape[k]) // tile.reached[k]))
    return _repeated(tile, found.tiles, found.warps, k)


def _repeated(tile: Tile, tiles: Sequence[int], warps: Sequence[int], k: int | None) -> dict[str, Vectors]:
    """The tile in a warp's registers, then in each warp, then in registers; warps along K hold the same elements.

    All registers along a dimension stand before those along the next.
    """
    rank = len(warps)
    order = list(range(rank))[::-1]
    apart: list[Vectors] = [[] for _ in range(rank)]
    for dim in order:
        apart[dim] += tile.taken(dim, 1 if dim == k else tiles[dim])
    for dim in order:
        tile.grow("warp", dim, warps[dim], repeats=dim == k)
    for dim in order if k is None else sorted(order, key=lambda dim: (dim != k, -dim)):
        apart[dim] += tile.taken(dim, max(1, tile.shape[dim] // tile.reached[dim]))
        tile.bases["register"] += apart[dim]
    return tile.bases


class _Wmma:
    """The checked fields of an amd_wmma."""

    def __init__(self, given: AttributeFields) -> None:
        given.only(*_WMMA.split())
        self.version = given.number("version", power=False)
        self.transposed = given.flag("isTransposed" if "isTransposed" in given.fields else "isTranspose")
        self.size = given.instruction() if "instrShape" in given.fields else [16, 16, 16]
        sizes = _WMMA_SIZES.get(self.version)
        if sizes is None:
            raise given.fail(f"version = 1 to 3, not {self.version},")
        if "instrShape" in given.fields and self.size not in sizes:
            raise given.fail(f"instrShape = one of {sizes} of version {self.version}, not {self.size},")
        self.registers: Vectors = []
        self.warps: Vectors = []
        cta = given.fields.get("ctaLayout")
        if isinstance(cta, FieldsValue):
            parts = {name: basis_of(given.text, name, value, cta.at).vectors for name, value in cta.items}
            if not set(parts) <= {"register", "warp"}:
                raise given.fail("ctaLayout = {register = [...], warp = [...]}")
            self.registers, self.warps = list(parts.get("register", ())), list(parts.get("warp", ()))
            ranks = {len(vector) for vector in (*self.registers, *self.warps)}
            rank = given.fields.get("rank", next(iter(ranks), 2))
            if not isinstance(rank, int) or not ranks <= {rank} or rank not in (2, 3):
                raise given.fail("ctaLayout of bases with 2 or 3 integers")
            self.rank = rank
        else:
            warps = given.extents("warpsPerCTA")
            self.rank = len(warps)
            ones = [1] * self.rank
            tiles = given.tiles(self.rank)
            self.registers, self.warps = _row_major(ones, tiles), _row_major(tiles, warps)
        for vector in (*self.registers, *self.warps):
            if any(x < 0 or x & (x - 1) for x in vector) or sum(1 for x in vector if x) > 1:
                raise given.fail(f"bases of one power of two, not {list(vector)},")
        self.extents = [  # of what registers and warps repeat
            1 << max([v[d].bit_length() for v in (*self.registers, *self.warps)], default=0) for d in range(self.rank)
        ]


def lanes_along_k(given: AttributeFields, which: int) -> int:
    """Groups of lanes along K of an operand, A (0) or B (1)."""
    if given.name == "amd_mfma":
        return _LANES // _Mfma(given).size[which]
    return 1 if _Wmma(given).version == 1 else 2


def _row_major(inside: Sequence[int], extents: Sequence[int]) -> Vectors:
    """The bases of a compact grid, its last dimension first, beyond `inside`."""
    rank = len(extents)
    return [
        unit(dim, inside[dim] << i, rank) for dim in range(rank)[::-1] for i in range(extents[dim].bit_length() - 1)
    ]


def wmma_tile(given: AttributeFields) -> list[int]:
    """The part of the accumulator that all warps have once."""
    wmma = _Wmma(given)
    size = wmma.size[1::-1] if wmma.transposed else wmma.size[:2]
    return [a * b for a, b in zip([1] * (wmma.rank - 2) + size, wmma.extents, strict=True)]


def wmma(given: AttributeFields, shape: Sequence[int]) -> dict[str, Vectors]:
    """The accumulator of WMMA: eight rows in registers. Version 1 has alternate rows in the two halves of a warp."""
    found = _Wmma(given)
    across, along = _lanes_and_registers(given, found, shape)
    tile = Tile(shape)
    if found.version > 1:
        tile.grow("register", along, 8)
    tile.grow("lane", across, 16)
    tile.grow("lane", along, 2)
    tile.grow("register", along, found.size[0] // (16 if found.version > 1 else 2))
    return _placed(tile, found, None)


def wmma_operand(given: AttributeFields, parent: AttributeFields, shape: Sequence[int]) -> dict[str, Vectors]:
    """An operand of WMMA. `kWidth` neighbours along K, then the halves of a warp, which are equal in version 1."""
    found, k = _Wmma(parent), given.depth(len(shape))
    free = _free(given, found, shape, k)
    tall = (free == len(shape) - 1) == found.transposed  # along the larger side of a 32 x 16 instruction
    width, widths = given.number("kWidth"), _WMMA_WIDTHS.get(found.version)
    if widths is not None and width not in widths:
        raise given.fail(f"kWidth = one of {widths} of version {found.version}, not {width},")
    tile = Tile(shape)
    tile.grow("register", k, width)
    tile.grow("lane", free, 16)
    tile.grow("lane", k, 2, repeats=found.version == 1)
    tile.grow("register", k, max(1, found.size[2] // (2 * width)))  # both halves count, equal or not
    tile.grow("register", free, found.size[0] // 16 if tall else 1)
    return _placed(tile, found, k)


def _placed(tile: Tile, found: _Wmma, k: int | None) -> dict[str, Vectors]:
    """The tile at the bases of registers and warps, then in further registers."""
    registers = [v for v in found.registers if k is None or any(x for d, x in enumerate(v) if d != k) or not any(v)]
    tile.place("register", registers, zeroed=k)
    tile.place("warp", found.warps, zeroed=k)
    for dim, extent in enumerate(found.extents):
        tile.reached[dim] *= 1 if dim == k else extent
    order = list(range(found.rank))[::-1]
    return tile.filled(order if k is None else sorted(order, key=lambda dim: (dim != k, -dim)))
