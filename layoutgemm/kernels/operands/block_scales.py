"""Block scales of A and B: formats, and the order of factors in memory.

Each row of A and each column of B has a factor for every few elements of K.

A chunk has four factors of each of 128 rows, in 512 bytes: see `atoms.tmem.layout.scale_chunk`. Chunks along K lie one
behind the other, then those of the next 128 rows, then those of the next matrix of a batch. So cuBLAS takes factors,
and torch as SwizzleType.SWIZZLE_32_4_4. Rows and factors are padded to whole chunks, by any factor but NaN. A stage
holds the chunks of a K tile.

Groups of rows have the chunks of each group one behind the other, each group's rows padded to 128: as torch and cuBLAS
take them for grouped products.

The instructions that read them: tcgen05.mma (`sm100.block_scales`), and mma.sync of sm_120a (`sm80.block_scales`).

Sources: PTX ISA, "Block Scaling"; cuBLAS, "1D Block Scaling Factors Layout".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from ...arguments import nearest, shown
from ...atoms.mma.base import NARROW
from ...atoms.tmem.layout import LANES, block_scale_layout, scale_chunk
from ...dtypes import DType, dtype, i32
from ...errors import OperandError, PlanError
from ..derive import ORDERS, Operand
from ..numbers import W
from ..plan import present, tile_count

NAMES = ("scale_a", "scale_b")
CHUNK_ROWS, CHUNK_FACTORS = LANES, scale_chunk()[1].size
CHUNK_BYTES = scale_chunk().size
CHUNK_WORDS = CHUNK_BYTES // i32.bytes


@dataclass(frozen=True, slots=True)
class ScaleFormat:
    """A format of block-scaled operands.

    name    as `FORMATS` lists it
    kind    of tcgen05.mma, and of mma.sync
    types   of A and B
    scale   type of a factor
    vector  elements of K that share one
    """

    name: str
    kind: str
    types: tuple[str, ...]
    scale: DType
    vector: int

    @property
    def chunk_k(self) -> int:
        """Elements of K that a chunk has factors of."""
        return self.vector * CHUNK_FACTORS


FORMATS = {
    form.name: form
    for form in (
        ScaleFormat("mxfp8", "mxf8f6f4", ("e4m3", "e5m2"), dtype("ue8m0"), 32),
        ScaleFormat("mxfp4", "mxf4", ("e2m1",), dtype("ue8m0"), 32),
        ScaleFormat("nvfp4", "mxf4nvf4", ("e2m1",), dtype("ue4m3"), 16),
        ScaleFormat("mxf8f6f4", "mxf8f6f4", NARROW, dtype("ue8m0"), 32),
    )
}


def scale_format(name: str | ScaleFormat) -> ScaleFormat:
    """The format of that name. Raises PlanError for another, with those there are.

    >>> scale_format("mxfp8").chunk_k, scale_format("nvfp4").chunk_k
    (128, 64)
    """
    if isinstance(name, ScaleFormat):
        return name
    if not isinstance(name, str) or name not in FORMATS:
        raise PlanError(f"scales = {shown(name)}: {nearest(name, FORMATS)}known are {', '.join(map(repr, FORMATS))}")
    return FORMATS[name]


def check_lines(form: ScaleFormat | None, operands: tuple[Operand, Operand], k: int) -> None:
    """Raise PlanError unless both operands lie along K as their factors do, in whole bytes. None: no scales."""
    if form is None:
        return
    for name, spec, order in zip("ab", operands, ORDERS, strict=True):
        if spec.order != order:
            raise PlanError(
                f"{name} is {spec}: factors lie along K, and so do the operands of a block-scaled product; a 'row' A "
                "and a 'col' B"
            )
    if k * operands[0].dtype.bits % 8:
        raise PlanError(f"k = {k}: elements of {operands[0].dtype} lie two to a byte along K; pad K to {k + 1}")


def chunks_of(form: ScaleFormat, tile_k: int) -> int:
    """Chunks of a K tile, for 128 rows. Raises PlanError for a part of a chunk.

    >>> chunks_of(scale_format("nvfp4"), 128)
    2
    """
    if tile_k % form.chunk_k:
        raise PlanError(
            f"tile_k = {tile_k}: a chunk of {form.name} has four factors of {form.vector} elements, {form.chunk_k} of K"
        )
    return tile_k // form.chunk_k


@dataclass(frozen=True, kw_only=True)
class BlockedFactors:
    """The factors of A and of B, in memory and in a stage.

    format   of the operands
    chunks   of a K tile, for 128 rows
    groups   of 128 rows of A and of columns of B in one block's tile
    joined   A's rows are groups of rows, each of which begins with a chunk: see `chunk_rows`
    halves   of B, of N columns each, that a tile's columns are of: 2 with a gate, each with whole chunks
    """

    format: ScaleFormat
    chunks: int
    groups: tuple[int, int]
    joined: bool = False
    halves: int = 1

    def extents(self, operand: int, rows: W, k: W, batch: W) -> dict[str, W]:
        """Extents of the tensor map of A's (0) or B's (1) factors. `rows` are of a matrix, or half of B."""
        joined = self.joined and operand == 0
        rows = rows * self.halves if operand else rows
        group = chunk_rows(rows, batch) if joined else tile_count(rows, CHUNK_ROWS) * batch
        return {"word": CHUNK_WORDS, "chunk": tile_count(k, self.format.chunk_k), "group": group}

    def pitches(self, k: W) -> tuple[W, W]:
        """Elements of the tensor map from chunk to chunk, and from group to group."""
        return CHUNK_WORDS, tile_count(k, self.format.chunk_k) * CHUNK_WORDS

    @property
    def bytes(self) -> int:
        """Bytes of a block's chunks of a K tile, A's first."""
        return sum(self.groups) * self.chunks * CHUNK_BYTES

    def offset(self, operand: int) -> int:
        """The first byte of A's (0) or B's (1) chunks in a stage."""
        return (0, self.groups[0] * self.chunks * CHUNK_BYTES)[operand]

    def shapes(self, sizes: tuple[int, int, int, int]) -> dict[str, tuple[int, ...]]:
        """Name -> shape of the factors as values.

        They are (rows of A or columns of B, blocks of K), a batch in front.
        """
        m, n, k, batch = sizes
        front, blocks = (batch,) * (batch > 1), tile_count(k, self.format.vector)
        of_b = (*front, n * self.halves, blocks)
        return {"scale_a": (*(front if not self.joined else ()), m, blocks), "scale_b": of_b}

    def blocked_bytes(self, operand: int, rows: int, k: int, batch: int) -> int:
        """Bytes of the blocked factors of A (0) or B (1). `rows` are of a matrix, or half of B."""
        extents = self.extents(operand, rows, k, batch)
        return extents["group"] * extents["chunk"] * CHUNK_BYTES

    def take(
        self,
        given: Mapping[str, object],
        sizes: tuple[int, int, int, int],
        offsets: npt.NDArray[np.int64] | None = None,
    ) -> dict[str, npt.NDArray[np.uint8]]:
        """The blocked factors of NumPy values, float32. Raises OperandError for a value that the type lacks.

        offsets  of groups of rows, whose factors are blocked one group after the other
        """
        found = {}
        for name, shape in self.shapes(sizes).items():
            value: Any = given[name]
            if not isinstance(value, np.ndarray) or value.dtype.name != "float32" or value.shape != shape:
                said = f"{value.dtype} of shape {value.shape}" if isinstance(value, np.ndarray) else shown(value)
                raise OperandError(f"{name} is {said}: it takes float32 of shape {shape}, a factor for every "
                                   f"{self.format.vector} elements of K")  # fmt: skip
            bits = self.format.scale.encode(value)
            wrong = np.argwhere(np.asarray(self.format.scale.decode(bits)) != value)
            if len(wrong):
                at = tuple(map(int, wrong[0]))
                raise OperandError(f"{name}{list(at)} is {value[at]}, and no {self.format.scale}: round it first")
            found[name] = blocked(bits)
            if self.joined and name == "scale_a":
                parts = [blocked(bits[first:end]) for first, end in pairwise(present(offsets).tolist()) if end > first]
                found[name] = np.zeros(self.blocked_bytes(0, sizes[0], sizes[2], sizes[3]), np.uint8)
                made = np.concatenate([*parts, np.empty(0, np.uint8)])
                found[name][: len(made)] = made
        return found


def chunk_rows(rows: W, groups: W) -> W:
    """Spans of 128 rows, at most, of `rows` rows in `groups` groups that begin with one.

    >>> [chunk_rows(rows, groups) for rows, groups in ((256, 1), (257, 1), (256, 3), (2, 3))]
    [2, 3, 4, 2]
    """
    return rows // CHUNK_ROWS + (rows % CHUNK_ROWS + (CHUNK_ROWS - 1) * groups) // CHUNK_ROWS


def blocked(factors: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The bits of factors as a kernel reads them, padded by zero bits.

    factors  ([batch,] rows, blocks of K)

    >>> blocked(np.arange(8, dtype=np.uint8).reshape(2, 4))[[0, 1, 16, 17]]
    array([0, 1, 4, 5], dtype=uint8)
    """
    *front, rows, count = factors.shape
    shape, strides = blocked_view(rows, count, prod(front))
    padded = np.zeros((*front, prod(shape[1:4]), prod(shape[4:])), np.uint8)
    padded[..., :rows, :count] = factors
    found = np.empty(padded.size, np.uint8)
    np.lib.stride_tricks.as_strided(found, shape, strides)[...] = padded.reshape(shape)
    return found


def blocked_view(rows: int, count: int, matrices: int = 1) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides by which blocked factors are row-major matrices (matrices, rows, count), padded.

    >>> blocked_view(200, 6)
    ((1, 2, 4, 32, 2, 4), (2048, 1024, 4, 16, 512, 1))
    """
    groups, chunks = tile_count(rows, CHUNK_ROWS), tile_count(count, CHUNK_FACTORS)
    layout = block_scale_layout(groups * CHUNK_ROWS, chunks * CHUNK_FACTORS)
    modes = [
        mode
        for of in (layout[0].flatten(), layout[1].flatten())
        for mode in zip(of.shape[::-1], of.stride[::-1], strict=True)
    ]
    shape, strides = zip((matrices, layout.size), *modes, strict=True)
    return shape, strides
