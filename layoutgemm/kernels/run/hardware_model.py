"""NumPy models of the hardware: shared memory, barriers, TMA, wgmma, stmatrix.

Nothing here looks at a layout, a tile or a fragment map of the plan. Each model takes what the instruction takes (a
tensor map, coordinates, an address, a 64-bit descriptor) and does what PTX ISA says the instruction does with it. So a
wrong bit in a plan gives a wrong result here, as it would on the GPU. What is not modelled is time: copies land when
they are issued.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ...atoms import MmaAtom, TmaPlan
from ...atoms.smem.descriptor import element_addresses
from ...atoms.tma import gather
from ...atoms.tma.engine import bytes_moved, global_bits, move_in, rounded, shared_bits
from ...atoms.tma.gather import one_row
from ...atoms.tma.plan import TmaCopy
from ...atoms.tma.rules import TensorMap, whole_units
from ...dtypes import DType
from ...errors import PlanError, TmaError
from ..derive import Operand, padded_leading

POISON = 0xFF  # every byte of fresh shared memory: read as bf16 or f16 it is NaN, so an unwritten element shows


def unwritten(dtype: DType, shape: int | tuple[int, ...]) -> np.ndarray:
    """The bits of a C that nothing has stored yet. All ones, a NaN of every float type, -1 of an integer one."""
    return np.full(shape, -1, dtype=np.int64).astype(dtype.storage)


def values_of(dtype: DType, words: np.ndarray) -> np.ndarray:
    """C's bits as values: float32 for every float type, else integers."""
    return np.asarray(dtype.decode(words), dtype=np.float32 if dtype.kind == "float" else None)


class SharedBytes:
    """One block's shared memory: bytes at addresses from `base`, poisoned until written.

    base  the address of the first byte; not 0, so that a forgotten base address shows
    """

    def __init__(self, total: int, base: int = 1 << 14) -> None:
        self.base = base
        self.data = np.full(total, POISON, dtype=np.uint8)

    def _index(self, addresses: npt.NDArray[np.int64], dtype: DType, what: str) -> npt.NDArray[np.int64]:
        low, high = self.base, self.base + self.data.size - dtype.bytes
        outside = (addresses < low) | (addresses > high)
        if outside.any():
            first = int(addresses[outside].flat[0])
            raise PlanError(f"{what} at shared address {first:#x}, outside {low:#x}..{low + self.data.size - 1:#x}")
        return (addresses - self.base) // dtype.bytes

    def _words(self, dtype: DType) -> np.ndarray:
        return self.data[: self.data.size // dtype.bytes * dtype.bytes].view(dtype.storage)

    def read(self, addresses: npt.NDArray[np.int64], dtype: DType) -> np.ndarray:
        """Raw bits of the elements at byte addresses."""
        return self._words(dtype)[self._index(addresses, dtype, "read")]

    def write(self, addresses: npt.NDArray[np.int64], bits: np.ndarray, dtype: DType) -> None:
        """Store raw bits of elements at byte addresses."""
        self._words(dtype)[self._index(addresses, dtype, "write")] = bits


class Barrier:
    """An mbarrier: a phase ends when no arrival is pending and no byte is outstanding. PTX ISA, "mbarrier"."""

    def __init__(self, name: str, arrivals: int) -> None:
        self.name, self.count = name, arrivals
        self.phase, self.pending, self.bytes = 0, arrivals, 0

    def arrive_expect(self, nbytes: int) -> None:
        """mbarrier.arrive.expect_tx: promise bytes, then arrive once."""
        self.bytes += nbytes
        if self.pending == 0:
            raise PlanError(f"{self.name}: an arrival beyond the {self.count} that its phase counts")
        self.pending -= 1
        self._settle()

    def arrive(self, count: int = 1) -> None:
        """mbarrier.arrive, `count` times."""
        for _ in range(count):
            self.arrive_expect(0)

    def complete(self, nbytes: int) -> None:
        """mbarrier.complete_tx, as a tensor copy does for the bytes it wrote."""
        self.bytes -= nbytes
        self._settle()

    def _settle(self) -> None:
        if self.pending == 0 and self.bytes == 0:
            self.phase ^= 1
            self.pending = self.count

    def wait(self, parity: int) -> None:
        """Pass when the phase of that parity has ended. Raises PlanError where the hardware would wait for ever."""
        if self.phase == parity:
            raise PlanError(
                f"{self.name} never completes the phase of parity {parity}: {self.pending} arrival(s) and {self.bytes} "
                "byte(s) are outstanding"
            )


@dataclass(frozen=True, eq=False)
class GlobalMatrix:
    """A matrix in global memory, or a batch of them. Raw element bits, contiguous along one dimension.

    leading  elements from line to line
    extents  innermost first; a third one is the batch
    pitch    elements from matrix to matrix of a batch
    further  the same along further dimensions
    """

    bits: np.ndarray
    leading: int
    extents: tuple[int, ...]
    pitch: int = 0
    further: tuple[int, ...] = ()

    def map(self, plan: TmaPlan) -> TensorMap:
        """The tensor map of a plan's copies over this matrix."""
        size = 1 if plan.dtype.bits < 8 else plan.dtype.bytes  # lines of narrower elements are counted in bytes
        strides = [step * size for step in (self.leading, self.pitch, *self.further)]
        return plan.over(self.extents, strides[: len(self.extents) - 1])

    @property
    def rows_apart(self) -> int:
        """Rows from matrix to matrix of a batch, as one matrix of rows has them."""
        return self.pitch // self.leading

    def as_rows(self) -> GlobalMatrix:
        """A batch as one matrix, which has all of its rows."""
        inner, rows, *batch = self.extents
        return replace(self, extents=(inner, rows + sum(count - 1 for count in batch) * self.rows_apart))


def tensor_copy(
    plan: TmaPlan, matrix: GlobalMatrix, coordinate: Sequence[int], smem: SharedBytes, address: int, barrier: Barrier
) -> None:
    """cp.async.bulk.tensor into shared memory. It copies the box at `coordinate`, innermost first; beyond edges are
    zeros.

    A map of TFLOAT32 rounds what it copies.
    """
    tmap = matrix.map(plan)
    if plan.format:  # 16 elements of 4 or 6 bits, packed at the start of 16 bytes
        source, inside = global_bits(tmap, coordinate)
        move_in(tmap, matrix.bits, source, inside, smem.data, shared_bits(tmap, address) - 8 * smem.base)
        barrier.complete(bytes_moved(tmap))
        return
    size = plan.dtype.bytes
    source, inside = global_bits(tmap, coordinate)
    bits = np.where(inside, matrix.bits[source // (8 * size)], matrix.bits.dtype.type(0))
    smem.write(_in_shared(tmap, address) // 8, rounded(tmap, bits), plan.dtype)
    barrier.complete(bytes_moved(tmap))


def tensor_store(
    plan: TmaPlan, matrix: GlobalMatrix, coordinate: Sequence[int], smem: SharedBytes, address: int,
    times: npt.NDArray[np.uint8],
) -> None:  # fmt: skip
    """cp.async.bulk.tensor from shared to global memory. It stores the box's part inside; `times` counts stores of each
    element.

    Lines are stored to the end of their last 16 bytes.
    """
    tmap = whole_units(matrix.map(plan))
    target, inside = global_bits(tmap, coordinate)
    bits = smem.read(_in_shared(tmap, address) // 8, plan.dtype)
    at = target[inside] // plan.dtype.bits
    matrix.bits[at] = bits[inside]
    np.add.at(times, at, 1)


def gather_rows(
    plan: TmaPlan, matrix: GlobalMatrix, coordinate: Sequence[int], smem: SharedBytes, address: int, barrier: Barrier
) -> None:
    """cp.async.bulk.tensor of tile::gather4. It takes a column, and four rows; those outside are zeros.

    plan  copies cut by `atoms.tma.gather.in_fours`
    """
    tmap = matrix.map(one_row(plan))
    source, inside = gather.global_bits(tmap, coordinate)
    bits = np.where(inside, matrix.bits[np.where(inside, source, 0) // plan.dtype.bits], matrix.bits.dtype.type(0))
    smem.write(_in_shared(gather.four_rows(tmap), address) // 8, rounded(tmap, bits), plan.dtype)
    barrier.complete(bytes_moved(gather.four_rows(tmap)))


def scatter_rows(
    plan: TmaPlan, matrix: GlobalMatrix, coordinate: Sequence[int], smem: SharedBytes, address: int,
    times: npt.NDArray[np.uint8],
) -> None:  # fmt: skip
    """cp.async.bulk.tensor of tile::scatter4. It stores four rows from shared memory, those inside, as
    `tensor_store`."""
    tmap = whole_units(matrix.map(one_row(plan)))
    target, inside = gather.global_bits(tmap, coordinate)
    bits = smem.read(_in_shared(gather.four_rows(tmap), address) // 8, plan.dtype)
    at = target[inside] // plan.dtype.bits
    matrix.bits[at] = bits[inside]
    np.add.at(times, at, 1)


def _in_shared(tmap: TensorMap, address: int) -> npt.NDArray[np.int64]:
    """The shared bit addresses of a box; raises PlanError for an address that no tensor copy takes."""
    try:
        return shared_bits(tmap, address)
    except TmaError as error:
        raise PlanError(str(error)) from None


def copy_boxes(
    plan: TmaPlan, copies: Iterable[TmaCopy], matrix: GlobalMatrix, origin: Mapping[str, int],
    smem: SharedBytes, address: int, barrier: Barrier,
) -> None:  # fmt: skip
    """Some boxes of a tile: coordinates from `origin` on, bytes from `address` on."""
    for where, at in _placed(plan, copies, origin, address):
        tensor_copy(plan, matrix, where, smem, at, barrier)


def _placed(
    plan: TmaPlan, copies: Iterable[TmaCopy], origin: Mapping[str, int], address: int
) -> Iterator[tuple[list[int], int]]:
    """(coordinates, shared address) of each box."""
    for copy in copies:
        where = [origin[dim] + offset for dim, offset in zip(plan.dims, copy.coord_offset, strict=True)]
        yield where, address + copy.smem_offset


class Output:
    """C in global memory with the number of stores of each element.

    c       type and order
    before  lines before C's first one
    stored  lines of each matrix that are to be stored, the others not; None for all
    """

    def __init__(self, c: Operand, m: int, n: int, batch: int, before: int = 0) -> None:
        self.c, self.batch = c, batch
        self.lines, self.inner = (m, n) if c.order == "row" else (n, m)
        self.leading = padded_leading(c.dtype, self.inner)
        words = unwritten(c.dtype, (before + batch * self.lines) * self.leading)
        extents = (self.inner, self.lines, batch)[: 2 + (batch > 1)]
        self.matrix = GlobalMatrix(words, self.leading, extents, self.lines * self.leading)
        self.times = np.zeros(words.size, dtype=np.uint8)
        self._first = before * self.leading
        self.stored: Sequence[int] | None = None
        self.wanted: npt.NDArray[np.bool_] | None = None  # ([matrix,] row, column): elements that are stored

    def store(self, tma: TmaPlan, origin: Mapping[str, int], smem: SharedBytes, address: int) -> None:
        """All boxes of a tile in shared memory."""
        for where, at in _placed(tma, tma.instructions, origin, address):
            tensor_store(tma, self.matrix, where, smem, at, self.times)

    def store_registers(
        self, atom: MmaAtom, first: tuple[int, int, int], extent: tuple[int, int], bits: np.ndarray, values: range
    ) -> None:
        """Threads' own elements of a tile, those that are inside.

        first   row, column and matrix of the tile;   extent  rows and columns of C
        bits    [thread, value] of an accumulator of `atom`, of which `values` are stored
        """
        mine = np.asarray(values)
        i, j = atom.coords_C(np.arange(bits.shape[0])[:, None], mine[None, :])
        i, j = np.broadcast_arrays(first[0] + i, first[1] + j)
        inside = (i < extent[0]) & (j < extent[1])
        line, at = (i, j) if self.c.order == "row" else (j, i)
        element = (first[2] * self.matrix.pitch + line * self.leading + at)[inside]
        self.matrix.bits[element] = bits[:, mine][inside]
        np.add.at(self.times, element, 1)

    def values(self) -> np.ndarray:
        """C as (M, N) or (batch, M, N) values. Raises PlanError if an element was not stored once.

        Lines that are not to be stored keep the bits of `unwritten`.
        """
        shape = self.batch, self.lines, self.leading
        times = self.times[self._first :].reshape(shape)[..., : self.inner]
        wanted = np.ones_like(times)
        for matrix, lines in enumerate(self.stored or ()):
            wanted[matrix, lines:] = 0
        if self.wanted is not None:
            wanted[:] = self.wanted if self.c.order == "row" else self.wanted.swapaxes(-1, -2)
        wrong = np.argwhere(times != wanted)
        if len(wrong):
            matrix, line, at = (int(i) for i in wrong[0])
            row, column = (line, at) if self.c.order == "row" else (at, line)
            where = f"C[{row}, {column}]" + f" of matrix {matrix}" * (self.batch > 1)
            count = times[matrix, line, at]
            want = "once" if wanted[matrix, line, at] else "never"
            raise PlanError(f"{where} is stored {count} times; {len(wrong)} elements are not stored {want}")
        values = values_of(self.c.dtype, self.matrix.bits[self._first :]).reshape(shape)[..., : self.inner]
        values = values if self.c.order == "row" else values.swapaxes(1, 2)
        return np.ascontiguousarray(values if self.batch > 1 else values[0])


class TileWorker(Protocol):
    """The CTAs of a cluster, which compute tile after tile."""

    def compute(self, tile: int, step: int) -> None:
        """Tile number `tile` of all, this worker's number `step`."""


def take_tiles(tiles: int, workers: int, start: Callable[[], TileWorker], progress: Progress | None) -> None:
    """Persistent workers take tiles: worker w those numbered w, w + workers, and so on.

    start     makes a worker
    progress  called with (tiles done, tiles in all) after each tile
    """
    done = 0
    for first in range(workers):
        worker = start()
        for step, tile in enumerate(range(first, tiles, workers)):
            worker.compute(tile, step)
            done += 1
            if progress is not None:
                progress(done, tiles)


def store_matrices(
    smem: SharedBytes, rows: npt.NDArray[np.int64], registers: np.ndarray, dtype: DType, transpose: bool
) -> None:
    """stmatrix of 8x8 matrices of 16-bit elements by one warp.

    rows       the addresses that lanes give: row i % 8 of matrix i // 8 from lane i
    registers  [lane, matrix, element]: the two elements that a lane has of each matrix; [..., byte] where an element
               is two values of 8 bits

    PTX ISA, "stmatrix": lane t holds elements (t / 4, 2 * (t % 4)) and the next of the row; with .trans (row, column)
    change places.
    """
    lane, element = np.arange(32)[:, None], np.arange(2)[None, :]
    along, across = np.broadcast_arrays(lane // 4, 2 * (lane % 4) + element)
    row, column = (across, along) if transpose else (along, across)
    for matrix in range(registers.shape[1]):
        at = rows[8 * matrix + row] + column * 2
        smem.write(at if registers.ndim == 3 else at[..., None] + element[0], registers[:, matrix], dtype)


@lru_cache(maxsize=512)
def _operand_addresses(word: int, major: str, extent: tuple[int, int], dtype: DType) -> npt.NDArray[np.int64]:
    return element_addresses(word, major, extent, dtype)


def wgmma_product(atom: MmaAtom, smem: SharedBytes, word_a: int, major_a: str, word_b: int, major_b: str) -> np.ndarray:
    """wgmma.mma_async on two descriptors. The product A B^T of one instruction as a (64, N) float32 or int32 matrix.

    A and B are read through their descriptors' own arithmetic. The sum of the products is rounded to float32 once; the
    hardware's order of sums is not specified. 32 products of 8-bit integers fit into 32.
    """
    m, _, k = atom.shape_mnk
    a = atom.a_dtype.decode(smem.read(_operand_addresses(word_a, major_a, (m, k), atom.a_dtype), atom.a_dtype))
    return register_product(atom, smem, a, word_b, major_b)


def register_product(atom: MmaAtom, smem: SharedBytes, a: np.ndarray, word_b: int, major_b: str) -> np.ndarray:
    """The same of an A in registers: its values, (64, K of the instruction)."""
    _, n, k = atom.shape_mnk
    b = atom.b_dtype.decode(smem.read(_operand_addresses(word_b, major_b, (n, k), atom.b_dtype), atom.b_dtype))
    if atom.c_dtype.kind == "int":
        return np.asarray(a.astype(np.int64) @ b.T.astype(np.int64)).astype(np.int32)
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(a.astype(np.float64) @ b.T, dtype=np.float32)  # in no BLAS's order


def accumulated(atom: MmaAtom, sums: np.ndarray, product: np.ndarray) -> np.ndarray:
    """The accumulator after another product. Integers stop at the ends of int32 where the instruction saturates.

    >>> from layoutgemm.atoms import wgmma
    >>> most, one = np.array([2**31 - 1], np.int32), np.array([1], np.int32)
    >>> [int(accumulated(wgmma(8, "i8", saturate=s), most, one)[0]) for s in (True, False)]
    [2147483647, -2147483648]
    """
    if atom.c_dtype.kind != "int":
        return np.asarray(sums + product)
    exact = sums.astype(np.int64) + product
    ends = np.iinfo(np.int32)
    return (np.clip(exact, ends.min, ends.max) if ".satfinite" in atom.ptx else exact).astype(np.int32)


def accumulator_registers(d: np.ndarray) -> np.ndarray:
    """A (64, N) accumulator -> array [thread, value] of the registers' values.

    PTX ISA, figure "WGMMA .m64nNk16 register fragment layout for accumulator matrix D": warp w holds rows 16w to
    16w+15. In register pair p its lane l holds columns 2*(l%4) and the next of column group p//2, in row l//4 +
    8*(p%2).
    """
    thread = np.arange(128)[:, None]
    value = np.arange(d.shape[1] // 2)[None, :]
    warp, lane, pair = thread // 32, thread % 32, value // 2
    row = 16 * warp + lane // 4 + 8 * (pair % 2)
    column = 8 * (pair // 2) + 2 * (lane % 4) + value % 2
    return np.asarray(d[row, column])


Progress = Callable[[int, int], None]  # (tiles done, tiles in all)
CLUSTERS = 4  # that run at a time: more of them have fewer tiles each, and share less of the kernel's way


def two_to_a_byte(bits: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The 4-bit elements of bytes along the last dimension, the low one first."""
    return np.stack([bits & 15, bits >> 4], -1).reshape(*bits.shape[:-1], -1)


def unpadded(slots: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.uint8]:
    """The padded elements of slots of a byte each. 16 lie packed at the start of 16 bytes.

    >>> unpadded(np.arange(16, dtype=np.uint8)[None], 6)[0, :5]
    array([ 0,  4, 32,  0,  3], dtype=uint8)
    """
    each = np.unpackbits(slots.reshape(*slots.shape[:-1], -1, 16), axis=-1, bitorder="little")[..., : 16 * bits]
    found = np.packbits(each.reshape(*each.shape[:-1], 16, bits), axis=-1, bitorder="little")
    return found.reshape(slots.shape)
