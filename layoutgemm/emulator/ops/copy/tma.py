"""TMA: cp.async.bulk.tensor both ways, cp.reduce.async.bulk.tensor. The prefetch of a box is here too.

PTX ISA, "Data Movement and Conversion Instructions: cp.async.bulk.tensor, cp.reduce.async.bulk.tensor,
cp.async.bulk.prefetch.tensor". `atoms.tma.engine` defines the source and the destination of each element. Its answer
for each tensor map is kept as indices. A load is an asynchronous event that the mbarrier knows of when it has landed. A
store reads shared memory until the thread waits for its bulk group.

A store writes whole 16-byte units (`atoms.tma.rules.whole_units`), including elements beyond a row that ends within
one. They are written here, as on an H200, and reported, kind "edge". That is right for the tensor map of an output that
owns its pitch; the map of a part of a larger matrix overwrites its neighbours. `Policy(edges=False)` is for the former.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np
import numpy.typing as npt

from ....atoms.tma import engine as tma_engine
from ....atoms.tma import gather, im2col
from ....atoms.tma.rules import EDGE_UNIT, MAX_DIM, RULES, SMEM_UNIT, TensorMap, check_reduction, whole_units
from ....errors import EmulatorError, TmaError
from ...machine.interpreter import Cta, Fiber
from ...machine.memory import ALL, GRANULE, RANK_SHIFT, WHOLE, GlobalBuffer, LoadedBox, TileBox
from ...machine.tensor_map import ALIGN, BYTES, decode, decode_im2col, encode
from ...ptx.codegen import PARAMETER_BASE, SHARED_WINDOW
from ...ptx.parser import PtxInstruction
from ...ptx.program import Program, Run
from ...ptx.values import Value, bool_of, s32
from ...races.clocks import Stamp
from ...races.happens_before import MemoryEvent
from ...races.lanes import one_lane
from ..barrier import EmulatedMbarrier, complete, mbarrier_at, signals
from ..memory import block_of, blocks_of, said, unwritten
from ..registry import ELECT, counted, operation
from ..swizzles import PERIOD, check_stored
from . import bulk_groups
from .bulk import reads_global, writes_global
from .tensormap import check_use

Bytes = npt.NDArray[np.uint8]
WRAP = 1 << 64  # bytes: addresses are of 64 bits
FAR = 1 << 24  # bytes: a tensor that begins further before its buffer is a ragged group's, behind an offset
LOAD = "mbarrier::complete_tx::bytes"
# The engine takes one operation for a warp. ptxas 13.0 turns a load or a reduction into a loop over the active lanes,
# so 32 lanes add 32 times (seen in its SASS, and recorded on an H200); it issues a store once.
EACH = "each its own"
WIDE_PIXELS = {f"im2col::{mode}": mode for mode in im2col.WIDE}
PIXELS = ("im2col", "im2col_no_offs", *WIDE_PIXELS)
FOUR_ROWS = ("tile::gather4", "tile::scatter4")
REDUCTIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")


def _tile(tmap: TensorMap) -> TileBox:
    """The layout of a map's boxes in shared memory."""
    bits = tma_engine.row_bits(tmap.moved[0], tmap.kind.smem_bits, tmap.swizzle)
    return TileBox(tmap.swizzle, 0 if bits % (8 * GRANULE) else bits // (8 * GRANULE))


def _overlap(tmap: TensorMap) -> str:
    """The rows of a tensor map that overlap, for a note; "" if none do. A stride of 0 repeats a row on purpose."""
    row = tmap.extents[0] * tmap.kind.gmem_bits // 8
    steps = [stride for stride, extent in zip(tmap.strides, tmap.extents[1:], strict=True) if stride and extent > 1]
    if not steps or min(steps) >= row:
        return ""
    return (
        f"rows of {row} bytes that begin {min(steps)} bytes apart, so they overlap: the array may be of another major "
        "than the map, or the pitch that of another operand"
    )


# One box --------------------------------------------------------------------------------------------------------------


class TmaTransfer:
    """The elements that one instruction moves with one tensor map, as cached indices."""

    overlap = ""  # of its rows; im2col reads pixels again on purpose
    wraps = False  # its tensor passes address 2^64, where addresses begin again: so maps of ragged groups end at a row

    def __init__(self, content: bytes) -> None:
        self.tmap, self.address = decode(content)
        self.tile = _tile(self.tmap)
        self.written = whole_units(self.tmap)  # written by a store: the same but for the ends of rows
        self.reach = [(count - 1) * step for count, step in zip(self.tmap.moved, self.tmap.steps, strict=True)]
        self.bytes = tma_engine.bytes_moved(self.tmap)
        bits = self.tmap.kind.gmem_bits
        # Elements in 16 bytes if shared memory holds them as global memory does; else 0.
        alike = bits == self.tmap.kind.smem_bits and bits >= 8 and self.tmap.kind.name != "TFLOAT32"
        self.unit = GRANULE * 8 // bits if alike else 0
        self.chunks: Callable[[int], npt.NDArray[np.int64]] = lru_cache(maxsize=None)(self._chunks)
        self.granules: Callable[[int], int] = lru_cache(maxsize=None)(self._granules)
        self.refused: Callable[[int], str] = lru_cache(maxsize=None)(self._refused)
        self.relative = self._relative() if self.unit else np.empty(0, np.int64)
        self.overlap = _overlap(self.tmap)
        self.wraps = self.start([extent - 1 for extent in self.tmap.extents]) >= WRAP

    def _chunks(self, phase: int) -> npt.NDArray[np.int64]:
        """Numbers of the 16-byte chunks of shared memory from `phase` on, in `relative`'s order."""
        where = tma_engine.shared_bits(self.tmap, phase)
        parts = where.reshape(-1, self.unit, *where.shape[1:])
        steps = np.arange(self.unit) * self.tmap.kind.gmem_bits
        if not (parts == parts[:, :1] + steps.reshape(1, -1, *[1] * (where.ndim - 1))).all():
            raise EmulatorError(f"the swizzle of {self.tmap} tears 16-byte chunks apart")
        return np.asarray((parts[:, 0] // (8 * GRANULE)).reshape(-1))

    def _relative(self) -> npt.NDArray[np.int64]:
        """Bytes from the box's first element to each 16-byte chunk, in global memory."""
        endless = replace(self.tmap, extents=(MAX_DIM,) * self.tmap.rank)
        where, _ = tma_engine.global_bits(endless, (0,) * self.tmap.rank)
        return np.asarray((where[:: self.unit] // 8).reshape(-1))

    def _granules(self, phase: int) -> int:
        first = self.shared_bits(phase) // (8 * GRANULE)
        touched = np.zeros(int(first.max()) + 1, dtype=bool)
        touched[first.reshape(-1)] = True
        return int.from_bytes(np.packbits(touched, bitorder="little").tobytes(), "little")

    def _refused(self, inner: int) -> str:
        try:
            tma_engine.box_coordinates(self.tmap, (inner, *(0,) * (self.tmap.rank - 1)))
        except TmaError as error:
            return str(error)
        return ""

    def global_bits(
        self, coordinates: Sequence[int], stores: bool = False
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Bit offset of each element in the tensor, and inside or not. With `stores`, as a store writes them."""
        return tma_engine.global_bits(self.written if stores else self.tmap, coordinates)

    def shared_bits(self, offset: int) -> npt.NDArray[np.int64]:
        """Bit address in shared memory of each element of a box at an offset."""
        return tma_engine.shared_bits(self.tmap, offset)

    def load(self, memory: Bytes, coordinates: Sequence[int], shared: Bytes, offset: int) -> None:
        """Copy the box into shared memory."""
        tma_engine.load(self.tmap, memory, coordinates, shared, offset)

    def store(self, memory: Bytes, coordinates: Sequence[int], shared: Bytes, offset: int, reduces: str = "") -> None:
        """Copy the box into the tensor, or combine it with what is there."""
        if reduces:
            tma_engine.reduce(self.tmap, memory, coordinates, shared, offset, reduces)
        else:
            tma_engine.store(self.tmap, memory, coordinates, shared, offset)

    def check(self, coordinates: Sequence[int], stores: bool) -> None:
        """Raise EmulatorError for a map or coordinates that the engine refuses."""
        if MAX_DIM in self.tmap.extents:
            raise EmulatorError(
                f"a tensor map of {self.tmap.extents} elements: 2^32 is how a map says 0, as "
                "tensormap.replace.global_dim makes it for a group without rows; an H200 reports an illegal "
                "instruction where a copy uses it"
            )
        # Whether it takes the innermost one depends on its last bits: no format has more than 128 of 16 bytes.
        wrong = self.refused(coordinates[0] % (8 * GRANULE))
        if not wrong and stores and min(coordinates) < 0:
            wrong = "no coordinate of a store may be negative"
        if wrong:
            raise EmulatorError(f"a box at {tuple(coordinates)}: {wrong}; {RULES['coordinate'].text}")

    def places(self, offset: int) -> int:
        """The granules of shared memory that the box covers, as a bit set."""
        return self.granules(offset % PERIOD) << offset // PERIOD * (PERIOD // GRANULE)

    def whole(self, coordinates: Sequence[int], stores: bool = False) -> bool:
        """True if all of the box lies in the tensor, or a store writes it."""
        tmap = self.written if stores else self.tmap
        for start, reach, extent in zip(coordinates, self.reach, tmap.extents, strict=True):
            if start < 0 or start + reach >= extent:
                return False
        return True

    def beyond(self, coordinates: Sequence[int]) -> range:
        """The elements that a store of the box writes beyond the ends of rows."""
        line, end, start = self.tmap.extents[0], self.written.extents[0], coordinates[0]
        if line == end or not start < line < start + self.tmap.box[0]:
            return range(0)
        rows = zip(coordinates[1:], self.tmap.extents[1:], strict=True)
        return range(line, end) if all(start < extent for start, extent in rows) else range(0)

    def over(self, buffer: GlobalBuffer, coordinates: Sequence[int]) -> int:
        """The bytes that a store of the box writes beyond the buffer's end."""
        if not self.beyond(coordinates):
            return 0
        where, _ = self.global_bits(coordinates, True)
        return max(0, self.address + int(where.max() + self.tmap.kind.gmem_bits) // 8 - buffer.end)

    def start(self, coordinates: Sequence[int]) -> int:
        """The address of the box's first element, of a whole number of bytes."""
        strides = (self.tmap.kind.gmem_bits // 8, *self.tmap.strides)
        return self.address + sum(at * stride for at, stride in zip(coordinates, strides, strict=True))

    def rows(
        self, buffer: GlobalBuffer, coordinates: Sequence[int], stores: bool = False
    ) -> npt.NDArray[np.int64] | None:
        """The box as aligned 16-byte chunks of the buffer, or None if it is not."""
        if not self.unit or not self.whole(coordinates, stores):
            return None
        start = self.start(coordinates) - buffer.address
        return None if start % GRANULE else self.relative + start

    def addresses(
        self, buffer: GlobalBuffer, coordinates: Sequence[int], stores: bool = False
    ) -> tuple[npt.NDArray[np.int64], int]:
        """The addresses of the box's units in the tensor, and the bytes of each."""
        rows = self.rows(buffer, coordinates, stores)
        if rows is not None:
            return rows + buffer.address, GRANULE
        where, inside = self.global_bits(coordinates, stores)
        return self.address + where[inside] // 8, max(1, self.tmap.kind.gmem_bits // 8)

    def tensor(self, fiber: Fiber, coordinates: Sequence[int]) -> GlobalBuffer:
        """The buffer that holds the box's part of the tensor. Raises EmulatorError if none does."""
        memory = fiber.machine.launch.memory
        if self.whole(coordinates) and self.unit:
            low = self.start(coordinates)
            high = low + int(self.relative.max()) + GRANULE
        else:
            where, inside = self.global_bits(coordinates)
            if not inside.any():
                return memory.near(self.address)
            low = self.address + int(where[inside].min()) // 8
            high = self.address + -(-int(where[inside].max() + self.tmap.kind.gmem_bits) // 8)
        # The tensor of a store may begin before its buffer, if its first rows are never written: only the box counts.
        buffer = memory.near(self.address, low)
        if low < buffer.address:
            memory.find(low)
        if high > buffer.end:
            raise EmulatorError(
                f"the box at {tuple(coordinates)} reaches to byte {high - buffer.address} of buffer {buffer.name}, "
                f"which has {len(buffer.data)}: the tensor map says more than there is, {self.tmap}"
            )
        if buffer.element is not None:
            memory.compare_elements(buffer, self.tmap.dtype)
        if self.overlap and (note := f"a tensor map takes {buffer.name} as {self.overlap}") not in memory.notes:
            memory.notes.append(note)
        return buffer

    def source(self, fiber: Fiber, coordinates: Sequence[int]) -> GlobalBuffer:
        """The same of a load or a prefetch. The tensor begins in the buffer's allocation, wherever its box lies."""
        buffer = self.tensor(fiber, coordinates)
        if not buffer.address - buffer.before <= self.address < buffer.end:
            before = buffer.address - self.address
            place = f"{before} bytes before {buffer.name}" if before > 0 else f"{self.address:#x}, in no buffer"
            raise EmulatorError(
                f"the tensor map's address is {place}: an H100 reports an illegal access of a load where nothing is "
                "mapped there, wherever its box lies"
            )
        return buffer

    def beside(self, buffer: GlobalBuffer, coordinates: list[int]) -> tuple[TmaTransfer, list[int]]:
        """The same box by a map that begins near the buffer."""
        return (self, coordinates) if buffer.address - self.address <= FAR else self.rebased(coordinates)

    def rebased(self, coordinates: list[int]) -> tuple[TmaTransfer, list[int]]:
        """The same box by a map that begins where the box does."""
        tmap = self.tmap
        past = [min(max(at, 0), extent - 1) for at, extent in zip(coordinates, tmap.extents, strict=True)]
        past[0] = 0  # its lines stay: stores end them at whole units
        rest = replace(tmap, extents=tuple([extent - by for extent, by in zip(tmap.extents, past, strict=True)]))
        return _box(encode(rest, self.start(past) % WRAP)), [at - by for at, by in zip(coordinates, past, strict=True)]


class FourRowTransfer(TmaTransfer):
    """The elements of one tile::gather4 or tile::scatter4. They are pieces of four rows, one below the other."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        wrong = gather.broken_rules(self.tmap, self.address)
        if wrong:
            raise EmulatorError(f"the map of four rows: {wrong[0].arithmetic} ({wrong[0].rule.source})")
        self.unit, self.wraps = 0, False
        self.bytes = tma_engine.bytes_moved(gather.four_rows(self.tmap))

    def global_bits(
        self, coordinates: Sequence[int], stores: bool = False
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """The same of four rows: arrays [columns, 4]."""
        return gather.global_bits(self.written if stores else self.tmap, coordinates)

    def shared_bits(self, offset: int) -> npt.NDArray[np.int64]:
        """The same of four rows."""
        return tma_engine.shared_bits(gather.four_rows(self.tmap), offset)

    def load(self, memory: Bytes, coordinates: Sequence[int], shared: Bytes, offset: int) -> None:
        """Copy the rows into shared memory."""
        gather.load(self.tmap, memory, coordinates, shared, offset)

    def store(self, memory: Bytes, coordinates: Sequence[int], shared: Bytes, offset: int, reduces: str = "") -> None:
        """Copy the rows to their places; PTX has no reduction of them."""
        gather.store(self.tmap, memory, coordinates, shared, offset)

    def check(self, coordinates: Sequence[int], stores: bool) -> None:
        """Raise EmulatorError for refused coordinates, and for a row that is stored twice."""
        rows = list(coordinates[1:])
        end = self.tmap.extents[1]  # rows from there on are not written, however often they are named
        twice = next((row for row in rows if stores and row < end and rows.count(row) > 1), None)
        if twice is not None:
            raise EmulatorError(f"a scatter at {tuple(coordinates)} writes row {twice} twice")
        super().check(coordinates, stores)

    def whole(self, coordinates: Sequence[int], stores: bool = False) -> bool:
        """False: the elements are looked at one by one."""
        return False

    def beyond(self, coordinates: Sequence[int]) -> range:
        """The elements that a store writes beyond the ends of its rows."""
        inside = [row for row in coordinates[1:] if row < self.tmap.extents[1]]
        return super().beyond([coordinates[0], inside[0]]) if inside else range(0)

    def beside(self, buffer: GlobalBuffer, coordinates: list[int]) -> tuple[TmaTransfer, list[int]]:
        """The same rows: their map begins in the buffer."""
        return self, coordinates


class PixelTransfer(TmaTransfer):
    """The elements of one im2col copy: a column of pixels. Coordinates are followed by the offsets along W, H, D.

    Those of a wide copy are wHalo and wOffset; a map has a transfer for each wHalo, as it moves other bytes.
    """

    def __init__(self, content: bytes, wide: str = "", halo: int = 0) -> None:
        self.map, self.address = decode_im2col(content, wide)
        self.pixels = im2col.with_halo(self.map, (halo, 0))
        self.tmap = self.written = self.pixels.tiled
        self.bytes, self.unit, self.tile = self.pixels.bytes, 0, _tile(self.tmap)
        self.granules = lru_cache(maxsize=None)(self._granules)

    def _split(self, coordinates: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
        return coordinates[: self.pixels.rank], coordinates[self.pixels.rank :]

    def global_bits(
        self, coordinates: Sequence[int], stores: bool = False
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """The same of pixels: arrays [channels, pixels]."""
        return im2col.global_bits(self.map, *self._split(coordinates))

    def shared_bits(self, offset: int) -> npt.NDArray[np.int64]:
        """The same of pixels, one row each."""
        return tma_engine.shared_bits(self.pixels.column, offset)

    def load(self, memory: Bytes, coordinates: Sequence[int], shared: Bytes, offset: int) -> None:
        """Copy the pixels into shared memory."""
        im2col.load(self.map, memory, *self._split(coordinates), shared, offset)

    def store(self, memory: Bytes, coordinates: Sequence[int], shared: Bytes, offset: int, reduces: str = "") -> None:
        """Copy shared memory into the pixels, or combine it with them."""
        im2col.store(self.pixels, memory, self._split(coordinates)[0], shared, offset, reduces)

    def check(self, coordinates: Sequence[int], stores: bool) -> None:
        """Raise EmulatorError for coordinates that the engine refuses."""
        try:
            self.global_bits(coordinates)
            if stores:
                im2col.check_store(self.pixels)
        except TmaError as error:
            raise EmulatorError(f"a column of pixels at {tuple(coordinates)}: {error}") from None

    def whole(self, coordinates: Sequence[int], stores: bool = False) -> bool:
        """False: the elements are looked at one by one."""
        return False

    def beyond(self, coordinates: Sequence[int]) -> range:
        """No elements: pixels of a store end with a multiple of 16 bytes."""
        return range(0)

    def beside(self, buffer: GlobalBuffer, coordinates: list[int]) -> tuple[TmaTransfer, list[int]]:
        """The same pixels: their map begins in the buffer."""
        return self, coordinates


_box = lru_cache(maxsize=256)(TmaTransfer)
_four_rows = lru_cache(maxsize=256)(FourRowTransfer)
_pixels = lru_cache(maxsize=256)(PixelTransfer)
_wide_pixels = lru_cache(maxsize=256)(PixelTransfer)


def _box_at(fiber: Fiber, address: int, made: Callable[[bytes], TmaTransfer]) -> TmaTransfer:
    """The tensor map at a generic address, as boxes, as four rows, or as pixels."""
    launch = fiber.machine.launch
    if address % ALIGN:
        raise EmulatorError(f"a tensor map at {address:#x}: it must be a multiple of {ALIGN}")
    at = address - PARAMETER_BASE
    if 0 <= at < len(launch.parameters):
        content = launch.parameters[at : at + BYTES]
    elif address >= SHARED_WINDOW:
        raise EmulatorError(f"a tensor map at {address:#x}, in shared memory: it is in parameters or global memory")
    else:
        check_use(fiber, address)
        buffer, offset = launch.memory.find(address, BYTES)
        content = buffer.data[offset : offset + BYTES].tobytes()
    if len(content) != BYTES:
        raise EmulatorError(f"a tensor map at parameter byte {at}, of {len(launch.parameters)}")
    return made(content)


class TmaForm:
    """The parsed opcode: rank, remaining words, and functions of the operands."""

    def __init__(self, program: Program, ins: PtxInstruction, known: tuple[str, ...], place: int) -> None:
        self.rank = 0
        self.words: set[str] = set()
        for word in ins.words[1:]:
            if len(word) == 2 and word[1] == "d" and word[0].isdigit():
                self.rank = int(word[0])
            elif word not in ("async", "bulk", "tensor", "tile", "L2::cache_hint", "reduce", *known):
                raise ValueError(f".{word} is not emulated")
            else:
                self.words.add(word)
        if not 1 <= self.rank <= 5:
            raise ValueError("a tensor has 1 to 5 dimensions")
        self.map, self.coordinates = program.coordinates(ins.operands[place])
        self.rows = bool(self.words.intersection(FOUR_ROWS))
        if self.rows and self.rank != 2:
            raise ValueError(f"{ins.opcode}: four rows are of a tensor of 2 dimensions")
        pixels = self.words.intersection(PIXELS)
        self.made: Callable[[bytes], TmaTransfer] = _four_rows if self.rows else _pixels if pixels else _box
        if pixels and not 3 <= self.rank <= 5:
            raise ValueError(f"{ins.opcode}: an im2col copy has 3 to 5 dimensions")
        count = 1 + gather.ROWS if self.rows else self.rank
        if len(self.coordinates) != count:
            of = f"{count}, a column and {gather.ROWS} rows" if self.rows else f"{count} dimensions"
            raise ValueError(f"{len(self.coordinates)} coordinates for {of}")
        self.wide = WIDE_PIXELS.get(next(iter(pixels), ""), "")
        self.offsets = 2 if self.wide else self.rank - 2 if "im2col" in pixels else 0
        if pixels and not self.offsets:
            self.coordinates += [_no_offset] * (self.rank - 2)

    def take_offsets(self, program: Program, ins: PtxInstruction, at: int) -> int:
        """Add the operand of im2col offsets, if there is one. The number of the next operand."""
        if not self.offsets:
            return at
        given = ins.operands[at] if len(ins.operands) > at else None
        parts = () if given is None else given.parts if len(given.parts) > 0 else (given,)
        if len(parts) != self.offsets:
            wants = "wHalo and wOffset" if self.wide else f"{self.offsets} spatial dimensions"
            raise ValueError(f"{len(parts)} im2col offsets for {wants}")
        self.coordinates += [program.value(part, "b16") for part in parts]
        return at + 1

    def box(self, fiber: Fiber, lane: int | None, where: Sequence[Value]) -> tuple[TmaTransfer, list[int]]:
        """One lane's box and coordinates. `where`: the values of the map's address and of the coordinates."""
        made = partial(_wide_pixels, wide=self.wide, halo=_of(where[-2], lane)) if self.wide else self.made
        box = _box_at(fiber, _of(where[0], lane), made)
        if box.tmap.rank != self.rank:
            raise EmulatorError(
                f"a copy of {self.rank} dimensions with a tensor map of {box.tmap.rank}, extents {box.tmap.extents}: "
                f"encode the map with {self.rank}, or copy by .{box.tmap.rank}d"
            )
        coordinates = [int(s32(_of(value, lane))) for value in where[1:]]
        box.check(coordinates, "bulk_group" in self.words)
        return box.rebased(coordinates) if box.wraps else (box, coordinates)

    def where(self, fiber: Fiber) -> list[Value]:
        """The values of the map's address and of the coordinates."""
        return [self.map(fiber), *[coordinate(fiber) for coordinate in self.coordinates]]


def _no_offset(fiber: Fiber) -> int:
    """The offset along each spatial dimension without .im2col."""
    return 0


def _of(value: Value, lane: int | None) -> int:
    """The value of a lane; of all lanes with None."""
    return int(value[lane]) if lane is not None and isinstance(value, np.ndarray) else int(value)


def _issuers(fiber: Fiber, values: Sequence[Value]) -> list[tuple[int | None, int]]:
    """(a lane, the lanes with equal operands) of each copy; such lanes race as one."""
    if not any(isinstance(value, np.ndarray) for value in values) and (
        one_lane(fiber.lanes) or not fiber.cta.cluster.ledger.reads
    ):
        return [(None, fiber.lanes)]
    lanes = np.flatnonzero(bool_of(fiber.lanes)).tolist()
    if fiber.cta.cluster.ledger.reads:
        return [(lane, 1 << lane) for lane in lanes]
    said_by: dict[tuple[int, ...], list[int]] = {}
    for lane in lanes:
        said_by.setdefault(tuple([_of(value, lane) for value in values]), []).append(lane)
    return [(same[0], sum(1 << lane for lane in same)) for same in said_by.values()]


def _repeated(fiber: Fiber, values: Sequence[Value]) -> bool:
    """True if two lanes issue a copy with the same operands: lanes may each have a box of their own."""
    if not any(isinstance(value, np.ndarray) for value in values):
        return True
    lanes = np.flatnonzero(bool_of(fiber.lanes)).tolist()
    return len({tuple([_of(value, lane) for value in values]) for lane in lanes}) < len(lanes)


def _aligned(offset: int, what: str) -> None:
    if offset % SMEM_UNIT:
        raise EmulatorError(f"{what} {offset:#x}: a tensor copy needs a multiple of {SMEM_UNIT}")


def _fits(cta: Cta, box: TmaTransfer, offset: int) -> None:
    end = box.places(offset).bit_length() * GRANULE
    if end > cta.shared.size:
        raise EmulatorError(
            f"a box of {box.bytes} bytes at shared offset {offset:#x} ends at {end:#x}, of {cta.shared.size:#x} bytes"
        )


# Global to shared -----------------------------------------------------------------------------------------------------


@operation("cp.async.bulk.tensor")
def tensor_copy(program: Program, ins: PtxInstruction) -> Run:
    """cp.async.bulk.tensor: a load into shared memory or a store into global memory."""
    return _store(program, ins, "") if "bulk_group" in ins.words else _load(program, ins)


def _load(program: Program, ins: PtxInstruction) -> Run:
    form = TmaForm(
        program, ins,
        ("shared::cta", "shared::cluster", "global", LOAD, "multicast::cluster", "cta_group::1", "cta_group::2",
         "tile::gather4", "im2col", *WIDE_PIXELS), 1,
    )  # fmt: skip
    own, multicast, pair = "shared::cta" in form.words, "multicast::cluster" in form.words, "cta_group::2" in form.words
    if LOAD not in form.words or "global" not in form.words or own == ("shared::cluster" in form.words):
        raise ValueError("a load is .shared::cta or .shared::cluster, .global, and completes on an mbarrier")
    if own and multicast:
        raise ValueError("a multicast has a .shared::cluster destination")
    address, barrier = program.address(ins.operands[0]), program.address(ins.operands[2])
    next_operand = form.take_offsets(program, ins, 3)
    counted(ins, next_operand + multicast + ("L2::cache_hint" in ins.words))
    mask = program.value(ins.operands[next_operand], "u16") if multicast else None

    def go(fiber: Fiber) -> None:
        where, to, signal = form.where(fiber), address(fiber), barrier(fiber)
        blocks = mask(fiber) if mask is not None else 0
        issuers = _issuers(fiber, [*where, to, signal, blocks])
        count = fiber.lanes.bit_count()
        if count > 1 and _repeated(fiber, [*where, to, signal, blocks]):
            fiber.machine.problem("lint", f"{count} lanes issue a tensor load, {EACH}", fiber, orders=ELECT)
        for lane, by in issuers:
            box, coordinates = form.box(fiber, lane, where)
            at, on = _of(to, lane), _of(signal, lane)
            cta, offset = block_of(fiber, at)
            if own and cta is not fiber.cta:
                raise EmulatorError(
                    f"a .shared::cta destination {at:#x} in block {cta.rank} of the cluster; the thread is in block "
                    f"{fiber.cta.rank}: .shared::cluster writes there"
                )
            if not multicast and not pair and on >> RANK_SHIFT != at >> RANK_SHIFT:
                raise EmulatorError(
                    f"the destination is in block {cta.rank} of the cluster, the mbarrier in {on >> RANK_SHIFT}"
                )
            if pair and on >> RANK_SHIFT + 1 != at >> RANK_SHIFT + 1:
                raise EmulatorError(
                    f"the mbarrier is in block {on >> RANK_SHIFT}, which is not of the destination's pair"
                )
            for rank in blocks_of(fiber, _of(blocks, lane)) if multicast else [cta.rank]:
                # A pair's signal goes to its even or odd block, like the block of the mbarrier itself.
                home = (rank & ~1 | on >> RANK_SHIFT & 1) if pair else rank if multicast else on >> RANK_SHIFT
                signalled = mbarrier_at(fiber, home << RANK_SHIFT | on & (1 << RANK_SHIFT) - 1)
                _land(fiber, ins, box, coordinates, block_of(fiber, rank << RANK_SHIFT | offset), signalled, by)

    return go


def _land(
    fiber: Fiber,
    ins: PtxInstruction,
    box: TmaTransfer,
    coordinates: list[int],
    to: tuple[Cta, int],
    barrier: EmulatedMbarrier,
    by: int,
) -> None:
    """Start the load of a box into one block, issued by the lanes `by`."""
    cta, offset = to
    times = by.bit_count()
    machine, ledger = fiber.machine, cta.cluster.ledger
    _aligned(offset, "shared offset")
    _fits(cta, box, offset)
    signals(fiber, barrier, "a tensor copy")
    buffer = box.source(fiber, coordinates)
    what = said(fiber, ins)
    event = ledger.event(True, what, by=fiber)
    if machine.global_watch is not None:
        reads_global(fiber, ins, *box.addresses(buffer, coordinates), barrier, event)
    machine.touch(fiber, cta, box.places(offset), True, what, event, True, by=by)
    cta.remote.append((event, what(), ins))
    machine.counts.bytes["global to shared"] += box.bytes * times

    def land() -> None:
        _fill(box, buffer, coordinates, cta, offset, what)
        complete(barrier, box.bytes, event)

    for _ in range(times):
        machine.defer(cta.cluster, "loads", land)


def _fill(
    box: TmaTransfer, buffer: GlobalBuffer, coordinates: list[int], cta: Cta, offset: int, what: Callable[[], str]
) -> None:
    """Copy the box into shared memory."""
    rows = box.rows(buffer, coordinates)
    chunks = box.chunks(offset % PERIOD) + offset // PERIOD * (PERIOD // GRANULE) if box.unit else None
    if rows is not None and chunks is not None:
        end = len(buffer.data) // GRANULE * GRANULE
        taken = buffer.data[:end].reshape(-1, GRANULE).take(rows // GRANULE, axis=0)
        content = taken.view(WHOLE).reshape(chunks.shape)
        cta.shared.chunks[chunks] = content
    else:
        box.load(_from_start(box, buffer), coordinates, cta.shared.bytes, offset)
        if chunks is None:
            chunks = np.unique(box.shared_bits(offset) // (8 * GRANULE))
        content = cta.shared.chunks[chunks]
    cta.shared.full_chunks[chunks] = ALL
    end = box.places(offset).bit_length()
    cta.shared.load(offset, LoadedBox(box.tile, offset // GRANULE, end, chunks, content, what))


# Shared to global -----------------------------------------------------------------------------------------------------


class PendingTmaStore:
    """A pending tensor store or reduction, which reads shared memory and later writes global memory."""

    def __init__(
        self, event: MemoryEvent, box: TmaTransfer, buffer: GlobalBuffer, coordinates: list[int], cta: Cta,
        offset: int, reduces: str, times: int,
    ) -> None:  # fmt: skip
        self.event, self.targets = event, cta.cluster.machine.launch.memory.targets(buffer)
        self.box, self.coordinates = box.beside(buffer, coordinates)
        self.cta, self.offset, self.reduces, self.times = cta, offset, reduces, times
        self.taken: npt.NDArray[np.uint8] | None = None
        self.finished = False
        self.written: Stamp | None = None

    def read(self) -> None:
        """Read the box from shared memory, as it is now."""
        if self.taken is None:
            start = self.offset // PERIOD * PERIOD
            end = self.box.places(self.offset).bit_length() * GRANULE
            self.taken = self.cta.shared.bytes[start:end].copy()

    def finish(self) -> None:
        """Write the box to global memory."""
        if self.finished:
            return
        self.read()
        self.finished = True
        for buffer in self.targets:
            self._write(buffer)

    def _write(self, buffer: GlobalBuffer) -> None:
        assert self.taken is not None
        box, phase = self.box, self.offset % PERIOD
        # A row's last 16 bytes may extend over the buffer's end, where nothing is stored.
        over = box.over(buffer, self.coordinates)
        rows = None if self.reduces or over else box.rows(buffer, self.coordinates, stores=True)
        if rows is None:
            held = _from_start(box, buffer)
            memory = np.concatenate([held, np.zeros(over, np.uint8)]) if over else held
            for _ in range(self.times if self.reduces else 1):
                box.store(memory, self.coordinates, self.taken, phase, self.reduces)
            if over:
                held[:] = memory[: held.size]
            if 0 < buffer.address - box.address <= FAR:
                buffer.data[:] = held[buffer.address - box.address :]
        else:
            end = len(buffer.data) // GRANULE * GRANULE
            data = self.taken.reshape(-1, GRANULE).take(box.chunks(phase), axis=0)
            buffer.data[:end].reshape(-1, GRANULE)[rows // GRANULE] = data


def _from_start(box: TmaTransfer, buffer: GlobalBuffer) -> npt.NDArray[np.uint8]:
    """The buffer's bytes from the tensor's first one on. A copy with leading zeros if the tensor begins earlier."""
    start = box.address - buffer.address
    if start < -FAR:
        return buffer.data.copy()  # nothing of the box lies in the tensor: any bytes will do
    return buffer.data[start:] if start >= 0 else np.concatenate([np.zeros(-start, np.uint8), buffer.data])


def _store(program: Program, ins: PtxInstruction, reduces: str) -> Run:
    modes = ("im2col_no_offs", reduces or "tile::scatter4")
    form = TmaForm(program, ins, ("global", "shared::cta", "bulk_group", *modes), 0)
    if not {"global", "shared::cta", "bulk_group"} <= form.words:
        raise ValueError("a store is .global.shared::cta and .bulk_group")
    address = program.address(ins.operands[1])
    counted(ins, 2 + ("L2::cache_hint" in ins.words))

    def go(fiber: Fiber) -> None:
        where, source = form.where(fiber), address(fiber)
        count, machine, ledger = fiber.lanes.bit_count(), fiber.machine, fiber.cta.cluster.ledger
        if count > 1 and _repeated(fiber, [*where, source]):
            kind = f"{reduces} reduction" if reduces else "store"
            machine.problem("lint", f"{count} lanes issue a tensor {kind}, {EACH}", fiber, orders=ELECT)
        for lane, by in _issuers(fiber, [*where, source]):
            times = by.bit_count()
            box, coordinates = form.box(fiber, lane, where)
            cta, offset = block_of(fiber, _of(source, lane))
            if cta is not fiber.cta:
                raise EmulatorError(f"a store from block {cta.rank} of the cluster: it is from the thread's own block")
            _aligned(offset, "shared offset")
            _fits(cta, box, offset)
            if reduces:
                _reducible(reduces, box)
            buffer = box.tensor(fiber, coordinates)
            _written(fiber, ins, box, coordinates, offset)
            _laid_out(fiber, ins, box, offset)
            _edge(fiber, box, buffer, coordinates, reduces)
            what = said(fiber, ins)
            event = ledger.event(True, what)
            machine.touch(fiber, cta, box.places(offset), False, what, event, True, by=by)
            cta.remote.append((event, f"the end of {what()}, which reads its shared memory", ins))
            machine.counts.bytes["shared to global"] += box.bytes * times
            stored = PendingTmaStore(event, box, buffer, coordinates, cta, offset, reduces, times)
            if machine.global_watch is not None:
                places = box.addresses(buffer, coordinates, True)
                stored.written = writes_global(fiber, ins, *places, by, bool(reduces))
            bulk_groups.add(fiber, stored, by)
            machine.defer(cta.cluster, "stores", stored.finish)

    return go


def _reducible(reduces: str, box: TmaTransfer) -> None:
    try:
        check_reduction(reduces, box.tmap.dtype)
    except TmaError as error:
        raise EmulatorError(str(error)) from None


def _edge(fiber: Fiber, box: TmaTransfer, buffer: GlobalBuffer, coordinates: list[int], reduces: str) -> None:
    """Report a store of elements beyond the end of a row, possibly beyond the buffer."""
    beyond = box.beyond(coordinates)
    if not beyond or not fiber.machine.policy.edges:
        return
    who = f"a reduction ({reduces})" if reduces else "a store"
    why = f"the hardware ends a stored line at a multiple of {EDGE_UNIT} bytes"
    one = f"element {beyond[0]}" if len(beyond) == 1 else f"elements {beyond[0]} to {beyond[-1]}"
    line = f"of a line, beyond the tensor's {box.tmap.extents[0]} of {box.tmap.dtype}"
    over = box.over(buffer, coordinates)
    if over:
        line += f" and up to {over} bytes over the end of buffer {buffer.name}"
    fiber.machine.problem(
        "edge",
        f"{who} of the box at {tuple(coordinates)} writes {one} {line}: {why}. Where that is the output's own: "
        "Policy(edges=False)",
        fiber,
    )


def _laid_out(fiber: Fiber, ins: PtxInstruction, box: TmaTransfer, offset: int) -> None:
    """Report a store in another swizzle than stmatrix wrote the box in."""
    shared = fiber.cta.shared
    if shared.origins is None or not box.unit or (box.tile, offset) in shared.compared.reads:
        return
    shared.compared.reads.add((box.tile, offset))

    def report(kind: str, message: str, orders: str = "") -> None:
        fiber.machine.problem(kind, message, fiber, ins, orders=orders)

    chunks = box.chunks(offset % PERIOD) + offset // PERIOD * (PERIOD // GRANULE)
    check_stored(shared, box.tile, offset // GRANULE, chunks, report)


def _written(fiber: Fiber, ins: PtxInstruction, box: TmaTransfer, coordinates: list[int], offset: int) -> None:
    """Report a store of uninitialised bytes. Bytes outside the tensor do not count: their values are unused."""
    shared = fiber.cta.shared
    if box.unit:
        chunks = box.chunks(offset % PERIOD) + offset // PERIOD * (PERIOD // GRANULE)
        if shared.full(chunks):
            return
    _, inside = box.global_bits(coordinates)
    bits = box.shared_bits(offset)[inside]
    size = max(1, box.tmap.kind.gmem_bits // 8)
    if bits.size:
        unwritten(fiber, ins, fiber.cta, bits // 8, size, does="stores")


@operation("cp.reduce.async.bulk.tensor")
def tensor_reduce(program: Program, ins: PtxInstruction) -> Run:
    """cp.reduce.async.bulk.tensor: combine each element into global memory, atomically."""
    named = [word for word in ins.words if word in REDUCTIONS]
    if len(named) != 1:
        raise ValueError(f"a reduction is one of {', '.join(REDUCTIONS)}")
    return _store(program, ins, named[0])


@operation("cp.async.bulk.prefetch.tensor")
def tensor_prefetch(program: Program, ins: PtxInstruction) -> Run:
    """cp.async.bulk.prefetch.tensor: a box into L2. Checks the map and the coordinates; no other effect."""
    form = TmaForm(program, ins, ("prefetch", "L2", "global", "tile::gather4", "im2col", *WIDE_PIXELS), 0)
    counted(ins, form.take_offsets(program, ins, 1) + ("L2::cache_hint" in ins.words))

    def go(fiber: Fiber) -> None:
        where = form.where(fiber)
        for lane, by in _issuers(fiber, where):
            box, coordinates = form.box(fiber, lane, where)
            box.source(fiber, coordinates)
            fiber.machine.counts.bytes["prefetched to L2"] += box.bytes * by.bit_count()

    return go
