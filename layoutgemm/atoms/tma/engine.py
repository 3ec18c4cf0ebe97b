"""The copy engine in NumPy: load, store, reduce, for 1 to 5 dimensions.

This is the other side of `tma_derive`: nothing here sees a layout, a tile or a plan. A function takes what the
instruction takes: a tensor map, the coordinates of a box, a shared-memory address. It moves the bytes that PTX ISA says
it moves, so a wrong number in a plan moves wrong bytes here, as on the GPU.

    box element (i0, i1, ...) is tensor element coordinate + (i0 * step0, i1 * step1, ...), innermost dimension first
    in shared memory the box is compact, i0 fastest; a swizzled row of the box begins at a multiple of its span
    the swizzle XORs bits of the absolute shared address
    elements outside the tensor, below or above, are loaded as zeros (or NaNs), and count as bytes moved
    a store leaves rows outside the tensor alone, but ends a line at a multiple of 16 bytes:
    `atoms.tma.rules.whole_units`

Sources: PTX ISA, "Tensors" (dimensions, bounding box, traversal stride, out-of-boundary access, swizzling modes),
"cp.async.bulk.tensor" and "cp.reduce.async.bulk.tensor". For rows narrower than the span: CUDA Programming Guide, "TMA
swizzle". Loads, stores and reductions were compared with an H200 (tests/vectors/tma_h200.json). The bits of the NaN
fill, the rounding of TFLOAT32 and the rule about coordinates come from there. The ends of stored lines were measured
too (H200, driver 580.159, 2026-11-20; `python benchmarks/verify_copies.py edges`). Those of reduced lines were not:
they are taken to be the stores'.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

from ...dtypes import DType, dtype
from ...errors import TmaError
from ...lazy_numpy import np
from .rules import SMEM_UNIT, TensorMap, check_reduction, whole_units

if TYPE_CHECKING:
    import numpy.typing as npt

Ints: TypeAlias = "npt.NDArray[np.int64]"
# Which bits of a shared address change, and from how much further up their partners come: PTX ISA, "Swizzling Modes".
_XOR = {"none": (0, 3), "32B": (0x10, 3), "64B": (0x30, 3), "128B": (0x70, 3), "128B, atom 32B": (0x60, 2)}
_SPAN = {"none": 0, "32B": 32, "64B": 64, "128B": 128, "128B, atom 32B": 128}


def box_coordinates(tmap: TensorMap, coordinates: Sequence[int]) -> tuple[list[Ints], npt.NDArray[np.bool_]]:
    """Tensor coordinates of the box's elements along each dimension, and which of them are inside.

    The second is an array of the box's shape, innermost dimension first.
    """
    if len(coordinates) != tmap.rank:
        raise TmaError(
            f"{tmap.rank} coordinates for a {tmap.rank}-dimensional map, not {len(coordinates)}", rule="rank"
        )
    if coordinates[0] * tmap.kind.smem_bits % 128:
        raise TmaError(
            f"the innermost coordinate {coordinates[0]} of {tmap.dtype} is no multiple of 16 bytes", rule="coordinate"
        )
    # the innermost step is ignored
    along = [
        start + step * np.arange(n)
        for start, step, n in zip(coordinates, (1, *tmap.steps[1:]), tmap.moved, strict=True)
    ]
    inside = np.ones((), dtype=np.bool_)
    for index, extent in zip(along, tmap.extents, strict=True):
        inside = inside[..., None] & (index >= 0) & (index < extent)
    return along, inside


def global_bits(tmap: TensorMap, coordinates: Sequence[int]) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """The box in global memory: each element's bit offset, and inside or not. Bits count from the tensor's first byte.

    Arrays of the box's shape, innermost first; the offset of an element outside is 0 and means nothing.
    """
    strides = (tmap.kind.gmem_bits, *(8 * stride for stride in tmap.strides))
    if _is_inside(tmap, coordinates):  # most boxes: theirs differ by a constant
        offsets, all_inside = _first_box(tmap.moved, (1, *tmap.steps[1:]), strides)
        return offsets + sum(map(operator.mul, coordinates, strides)), all_inside
    along, inside = box_coordinates(tmap, coordinates)
    offset: Any = np.zeros((), dtype=np.int64)
    for index, stride in zip(along, strides, strict=True):
        offset = offset[..., None] + index * stride
    return np.where(inside, offset, 0), inside


def _is_inside(tmap: TensorMap, coordinates: Sequence[int]) -> bool:
    """True if these are coordinates of the map, and their box is inside the tensor."""
    if len(coordinates) != tmap.rank or coordinates[0] * tmap.kind.smem_bits % 128:
        return False
    ends = zip(coordinates, (1, *tmap.steps[1:]), tmap.moved, tmap.extents, strict=True)
    return all(0 <= start and start + step * (n - 1) < extent for start, step, n, extent in ends)


@lru_cache(maxsize=512)
def _first_box(
    moved: tuple[int, ...], steps: tuple[int, ...], strides: tuple[int, ...]
) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Bit offsets of the box at the tensor's first element. The second array says that all are inside: read-only."""
    offset = np.zeros((), dtype=np.int64)
    for n, step, stride in zip(moved, steps, strides, strict=True):
        offset = offset[..., None] + step * stride * np.arange(n)
    inside = np.ones(moved, dtype=np.bool_)
    inside.flags.writeable = False
    return offset, inside


def shared_bits(tmap: TensorMap, address: int) -> Ints:
    """The box in shared memory. Absolute bit address of each element, an array of the box's shape.

    Raises TmaError for an address that is no multiple of 128.
    """
    if address % SMEM_UNIT:
        raise TmaError(
            f"a tensor copy at shared address {address:#x}: it must be a multiple of 128", rule="shared address"
        )
    return _shared_bits(tmap.moved, tmap.kind.gmem_bits, tmap.kind.smem_bits, tmap.swizzle, address)


def row_bits(moved: int, smem_bits: int, swizzle: str) -> int:
    """Bits from one row of a box to the next in shared memory. A narrower row has the swizzle's whole span."""
    return max(moved * smem_bits, 8 * _SPAN[swizzle])


@lru_cache(maxsize=512)
def _shared_bits(moved: tuple[int, ...], gmem_bits: int, smem_bits: int, swizzle: str, address: int) -> Ints:
    if gmem_bits == smem_bits:
        offset: Any = np.arange(moved[0], dtype=np.int64) * gmem_bits
    else:  # 16 elements, packed, at the start of each 16 bytes
        offset = np.arange(moved[0], dtype=np.int64) // 16 * 128 + np.arange(moved[0], dtype=np.int64) % 16 * gmem_bits
    pitch = row_bits(moved[0], smem_bits, swizzle)
    for extent in moved[1:]:
        offset = offset[..., None] + np.arange(extent) * pitch
        pitch *= extent
    mask, up = _XOR[swizzle]
    where = address + offset // 8
    return np.asarray((where ^ (where >> up & mask)) * 8 + offset % 8)


def bytes_moved(tmap: TensorMap) -> int:
    """Bytes that one instruction reports to its barrier. They are of the whole box, elements outside the tensor
    included."""
    bits = tmap.kind.gmem_bits
    for extent in tmap.moved:
        bits *= extent
    return bits // 8


def load(
    tmap: TensorMap, memory: npt.NDArray[np.uint8], coordinates: Sequence[int], shared: npt.NDArray[np.uint8],
    address: int,
) -> int:  # fmt: skip
    """Copies the box from global to shared memory, as cp.async.bulk.tensor. Returns the bytes reported to the barrier.

    memory   the tensor's bytes, from its first one on
    shared   shared memory's bytes, from address 0 on
    """
    source, inside = global_bits(tmap, coordinates)
    move_in(tmap, memory, source, inside, shared, shared_bits(tmap, address))
    return bytes_moved(tmap)


def move_in(
    tmap: TensorMap, memory: npt.NDArray[np.uint8], source: Ints, inside: npt.NDArray[np.bool_],
    shared: npt.NDArray[np.uint8], target: Ints,
) -> None:  # fmt: skip
    """Copies elements from global to shared memory, at these bit offsets. The map's fill where `inside` is False.

    The map says the format and the fill. The three arrays have one shape.
    """
    bits = tmap.kind.gmem_bits
    values = np.where(inside, rounded(tmap, _read(memory, source, bits)), _fill(tmap))
    _write(shared, target, values, bits)


def move_out(
    tmap: TensorMap, memory: npt.NDArray[np.uint8], target: Ints, inside: npt.NDArray[np.bool_],
    shared: npt.NDArray[np.uint8], source: Ints, operation: str = "",
) -> None:  # fmt: skip
    """Copies elements from shared to global memory, at these bit offsets, where `inside` is True.

    operation  by which they are combined with what global memory holds, or ""
    Raises TmaError as `reduce` does.
    """
    bits = tmap.kind.gmem_bits
    new = _read(shared, source, bits)[inside]
    if operation:
        check_reduction(operation, tmap.dtype)
        new = _combine(operation, tmap.dtype, _read(memory, target[inside], bits), new)
    _write(memory, target[inside], new, bits)


def store(
    tmap: TensorMap, memory: npt.NDArray[np.uint8], coordinates: Sequence[int], shared: npt.NDArray[np.uint8],
    address: int,
) -> None:  # fmt: skip
    """Copies the box's part in the tensor from shared to global memory. The instruction is cp.async.bulk.tensor.

    Of a line's last 16 bytes all are written, those beyond the tensor too.
    """
    target, inside = _stored(tmap, coordinates)
    move_out(tmap, memory, target, inside, shared, shared_bits(tmap, address))


def reduce(
    tmap: TensorMap, memory: npt.NDArray[np.uint8], coordinates: Sequence[int], shared: npt.NDArray[np.uint8],
    address: int, operation: str,
) -> None:  # fmt: skip
    """Combines the box's part in the tensor into global memory. The instruction is cp.reduce.async.bulk.tensor.

    Whole 16-byte units, as `store` writes them: measured on an H200 with add, by `benchmarks/verify_copies.py edges`.

    Raises TmaError for an operation that does not exist for the type. Floats are added and rounded to their format.
    """
    target, inside = _stored(tmap, coordinates)
    move_out(tmap, memory, target, inside, shared, shared_bits(tmap, address), operation)


_BITWISE: dict[str, Callable[[Any, Any], Any]] = {
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
}


def _combine(operation: str, dtype: DType, old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Raw bits x raw bits -> raw bits. inc and dec wrap at the operand: PTX ISA, "red"."""
    if operation in _BITWISE:
        return _BITWISE[operation](old, new)
    storage = dtype.storage
    old, new = old.astype(storage), new.astype(storage)
    if operation == "inc":
        return np.where(old >= new, storage(0), old + storage(1))
    if operation == "dec":
        return np.where((old == 0) | (old > new), new, old - storage(1))
    a, b = dtype.decode(old), dtype.decode(new)
    if operation == "add":
        if dtype.kind != "float":
            return old + new  # two's complement: the sum's bits do not depend on the sign
        with np.errstate(invalid="ignore", over="ignore"):
            return dtype.encode(a + b)
    return dtype.encode(np.minimum(a, b) if operation == "min" else np.maximum(a, b))


def _stored(tmap: TensorMap, coordinates: Sequence[int]) -> tuple[Ints, npt.NDArray[np.bool_]]:
    if min(coordinates) < 0:
        raise TmaError(f"a store at {tuple(coordinates)}: no coordinate may be negative", rule="coordinate")
    return global_bits(whole_units(tmap), coordinates)


def _fill(tmap: TensorMap) -> int:
    """The fill outside the tensor: zeros, or the NaN 0x7ff7 in every 16 bits, as an H200 fills it."""
    return int("7ff7" * (tmap.kind.gmem_bits // 16), 16) if tmap.oob_fill == "nan" else 0


def rounded(tmap: TensorMap, bits: object) -> Any:
    """TFLOAT32 elements rounded by 13 bits, ties to even; all other elements unchanged.

    A NaN stays one. Which bits of it stay was not measured.
    """
    if tmap.kind.name != "TFLOAT32":
        return bits
    return dtype("tf32").encode(np.asarray(bits, dtype=np.uint32).view(np.float32))


def _words(bits: int) -> type:
    return {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}[bits]


def _read(memory: npt.NDArray[np.uint8], where: Ints, bits: int) -> np.ndarray:
    """Raw bits of the elements at bit offsets. Offsets are multiples of the width, or of less than a byte."""
    if bits % 8 == 0:
        return memory[: memory.size // (bits // 8) * (bits // 8)].view(_words(bits))[where // bits]
    at = where[..., None] + np.arange(bits)
    return ((memory[at // 8].astype(np.uint64) >> (at % 8).astype(np.uint64) & np.uint64(1)) << np.arange(
        bits, dtype=np.uint64
    )).sum(axis=-1, dtype=np.uint64)  # fmt: skip


def _write(memory: npt.NDArray[np.uint8], where: Ints, values: np.ndarray, bits: int) -> None:
    if bits % 8 == 0:
        words = _words(bits)
        memory[: memory.size // (bits // 8) * (bits // 8)].view(words)[where // bits] = values.astype(words)
        return
    for i in range(bits):
        at = where + i
        one = (values.astype(np.uint64) >> np.uint64(i) & np.uint64(1)).astype(np.uint8)
        place = (at % 8).astype(np.uint8)
        np.bitwise_and.at(memory, at // 8, ~(np.uint8(1) << place))
        np.bitwise_or.at(memory, at // 8, one << place)
