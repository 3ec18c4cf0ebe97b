"""Tensor copies (TMA): the boxes that fill a shared-memory tile, derived from the global and the shared layout.

One instruction copies a box of a global tensor, a run along each dimension, into consecutive bytes of shared memory,
and swizzles as it writes. To find the boxes of a tile, invert its layout: consecutive offsets walk along the contiguous
dimension, then along the next, and so on; the longest such walk within the hardware's rules is the box, the rest are
further instructions.

Sources: PTX ISA, "cp.async.bulk.tensor" and "Tensors" (dimensions, bounding box, swizzling); CUDA Driver API,
cuTensorMapEncodeTiled, for the limits of each argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..dtypes import DType
from ..errors import OperandError, TmaError
from ..layouts import Layout
from .smem import SmemTile, swizzle_of

MAX_RANK = 5
MAX_BOX = 256  # elements along each dimension of the box
STRIDE_UNIT = 16  # bytes: every global stride but the first, and the base address, are multiples
MAX_DIM = 1 << 32
MAX_STRIDE = 1 << 40
# CUtensorMapSwizzle: the driver's numbers, which are not the descriptor's.
DRIVER_SWIZZLE = {"none": 0, "32B": 1, "64B": 2, "128B": 3}


@dataclass(frozen=True, slots=True)
class TmaCopy:
    """One instruction of a tile: where its box starts.

    coord_offset  in the tile, elements, innermost dimension first
    smem_offset   in the tile's shared memory, bytes
    """

    coord_offset: tuple[int, ...]
    smem_offset: int


@dataclass(frozen=True, slots=True)
class TmaPlan:
    """The copies that fill one tile.

    dtype         element type
    dims          names of the global dimensions, innermost (contiguous) first
    box           box extents in elements, innermost first
    swizzle       "none", "32B", "64B" or "128B"
    instructions  one entry an instruction, in order of shared-memory offset
    """

    dtype: DType
    dims: tuple[str, ...]
    box: tuple[int, ...]
    swizzle: str
    instructions: tuple[TmaCopy, ...]

    @property
    def box_bytes(self) -> int:
        """Bytes that one instruction writes and reports to the barrier; elements outside the tensor count, as zeros."""
        size = self.dtype.bytes
        for extent in self.box:
            size *= extent
        return size

    @property
    def bytes(self) -> int:
        """Bytes that all instructions of the tile report."""
        return self.box_bytes * len(self.instructions)

    @property
    def driver_swizzle(self) -> int:
        """The CUtensorMapSwizzle enumerator."""
        return DRIVER_SWIZZLE[self.swizzle]

    def box_addresses(self, smem_address: int) -> npt.NDArray[np.int64]:
        """Where one box lands: array [innermost, ..., outermost] of the shared byte address of each element.

        The hardware writes the box compactly, innermost first, and XORs absolute address bits. Nothing here looks at
        the tile: this is what the checks and the NumPy executor hold the tile's layout against.
        """
        linear = np.arange(int(np.prod(self.box)), dtype=np.int64) * self.dtype.bytes
        address = swizzle_of(self.swizzle)(linear + smem_address)
        return np.asarray(address).reshape(self.box, order="F")

    def check_global(self, name: str, address: int, shape: Sequence[int], strides: Sequence[int]) -> None:
        """Hold a global tensor against the rules of the tensor map.

        name     how errors call the tensor
        address  bytes; shape in elements, innermost first; strides in elements of every dimension but the innermost

        Raises OperandError naming the tensor, the rule and the numbers.
        """
        if len(shape) != len(self.box):
            raise OperandError(f"{name} has {len(shape)} dimensions, its box has {len(self.box)}")
        if address % STRIDE_UNIT:
            raise OperandError(
                f"{name} starts at address {address:#x}, {address % STRIDE_UNIT} bytes past a multiple of "
                f"{STRIDE_UNIT}: a tensor map needs a 16-byte aligned address"
            )
        for dim, extent in zip(self.dims, shape, strict=True):
            if not 1 <= extent <= MAX_DIM:
                raise OperandError(f"{name}: dimension {dim} has {extent} elements, a tensor map takes 1 to 2**32")
        for dim, stride in zip(self.dims[1:], strides, strict=True):
            step = stride * self.dtype.bits // 8
            if step % STRIDE_UNIT:
                raise OperandError(
                    f"{name}: stride of {dim} is {stride} elements * {self.dtype.bytes} = {step} bytes, "
                    f"a tensor map needs a multiple of {STRIDE_UNIT} bytes"
                )
            if not 0 < step < MAX_STRIDE:
                raise OperandError(f"{name}: stride of {dim} is {step} bytes, a tensor map takes 16 to 2**40 - 16")

    def explain(self) -> str:
        """The box and its instructions, as a table.

        >>> from layoutgemm.atoms import smem_tile
        >>> print(derive(smem_tile((64, 128), "bf16", "K"), ("k", "m")).explain())
        box (k 64, m 64) of bf16, swizzle 128B, 8192 bytes, 2 instructions
          at (k +0, m +0) -> shared byte +0
          at (k +64, m +0) -> shared byte +8192
        """
        box = ", ".join(f"{dim} {extent}" for dim, extent in zip(self.dims, self.box, strict=True))
        count = len(self.instructions)
        lines = [
            f"box ({box}) of {self.dtype}, swizzle {self.swizzle}, {self.box_bytes} bytes, "
            f"{count} instruction{'s' if count > 1 else ''}"
        ]
        for copy in self.instructions:
            at = ", ".join(f"{dim} +{offset}" for dim, offset in zip(self.dims, copy.coord_offset, strict=True))
            lines.append(f"  at ({at}) -> shared byte +{copy.smem_offset}")
        return "\n".join(lines)


def derive(tile: SmemTile, dims: tuple[str, str]) -> TmaPlan:
    """The boxes that fill a tile from a global matrix whose innermost dimension is the tile's contiguous one.

    dims  the names of the two global dimensions, innermost first

    Raises TmaError naming the rule and the arithmetic when a rule of the hardware forbids the copy.

    >>> from layoutgemm.atoms import smem_tile
    >>> plan = derive(smem_tile((64, 64), "bf16", "MN", "none"), ("n", "k"))
    >>> plan.box, len(plan.instructions)
    ((8, 64), 8)
    """
    if len(dims) != 2 or dims[0] == dims[1]:
        raise TmaError(f"a matrix has two dimensions of different names, innermost first; got {dims!r}")
    inner = 1 if tile.major == "K" else 0
    order = (inner, 1 - inner)
    # offset -> (inner, outer) coordinate: the walk that consecutive bytes of the tile take through the matrix
    flat = Layout.identity(tile.extent).compose(tile.layout.right_inverse())
    if flat.size != tile.layout.size:
        raise TmaError(
            f"{tile.layout} is not compact: {tile.layout.size} elements, of which only {flat.size} lie one after "
            "another; a box fills consecutive bytes"
        )
    walk = [(extent, *_step(stride)) for extent, stride in zip(*_modes(flat), strict=True)]
    box, rest = _box(tile, walk, order)
    if tile.swizzle_name != "none" and box[0] * tile.dtype.bytes != tile.span:
        raise TmaError(
            f"the box's inner {box[0]} elements are {box[0] * tile.dtype.bytes} bytes; swizzle {tile.swizzle_name} "
            f"permutes chunks within rows of {tile.span} bytes"
        )
    if (box[0] * tile.dtype.bytes) % STRIDE_UNIT:
        inner_bytes = box[0] * tile.dtype.bytes
        raise TmaError(f"the box's inner {box[0]} elements of {tile.dtype} are {inner_bytes} bytes, no multiple of 16")
    copies = [TmaCopy((0, 0), 0)]
    offset = box[0] * box[1] * tile.dtype.bytes
    for extent, axis, step in rest:
        position = order.index(axis)
        copies = [
            TmaCopy(
                tuple(c + i * step * (p == position) for p, c in enumerate(copy.coord_offset)),
                copy.smem_offset + i * offset,
            )
            for i in range(extent)
            for copy in copies
        ]
        offset *= extent
    for copy in copies:
        if copy.smem_offset % 128:
            raise TmaError(
                f"the box at {copy.coord_offset} would start at shared byte +{copy.smem_offset}; a tensor copy writes "
                "to a multiple of 128 bytes"
            )
    return TmaPlan(tile.dtype, dims, box, tile.swizzle_name, tuple(copies))


def _modes(layout: Layout) -> tuple[list[int], list[object]]:
    flat = layout.flatten()
    if flat.rank == 1 and not isinstance(flat.shape, tuple):
        return [flat.shape], [flat.stride]
    return list(flat.shape), list(flat.stride)


def _step(stride: object) -> tuple[int, int]:
    """A coordinate stride 8@1 as (axis 1, step 8)."""
    return stride.path[0], stride.value  # type: ignore[attr-defined]


def _box(
    tile: SmemTile, walk: list[tuple[int, int, int]], order: tuple[int, int]
) -> tuple[tuple[int, int], list[tuple[int, int, int]]]:
    """Split the walk into the box and what further instructions must do: (extents, remaining (extent, axis, step))."""
    rest = [mode for mode in walk if mode[0] != 1]
    box = [1, 1]
    for position, axis in enumerate(order):
        if not rest or rest[0][1] != axis or rest[0][2] != 1:
            if position == 0:
                raise TmaError(
                    f"in {tile.layout} consecutive elements do not run along the contiguous dimension of the matrix: "
                    "the box has no inner run"
                )
            continue
        extent = rest.pop(0)[0]
        fits = next(size for size in range(min(extent, MAX_BOX), 0, -1) if extent % size == 0)
        box[position] = fits
        if fits != extent:
            rest.insert(0, (extent // fits, axis, fits))
            if position == 0:
                break
    return (box[0], box[1]), rest
