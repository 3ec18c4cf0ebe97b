"""The memories of a launch: global buffers, a thread block's shared memory, parameters.

Every access is checked. An address outside a buffer or not aligned is an error that names the buffer and the offset.
Fresh memory holds 0xFF bytes, NaN in every float format that has one. Shared memory tracks which bytes were ever
written.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from ...arguments import shown
from ...dtypes import DType
from ...errors import EmulatorError
from ..ptx.values import any_of
from . import device_heap
from .textures import HANDLES, BoundTexture, TextureOf

Item = TypeVar("Item", np.uint8, np.bool_)
POISON = 0xFF
GRANULE = 16  # bytes that the race checker tracks apart
RANK_SHIFT = 24  # shared::cluster addresses: the block's rank above, its own offset below
OFFSET = (1 << RANK_SHIFT) - 1
# A type of 16 bytes, whose items NumPy copies several times faster than rows of 16 bytes; only bits are meant.
WHOLE = np.complex128
ALL = np.ones(GRANULE, np.uint8).view(WHOLE)[0]


@dataclass(eq=False)
class GlobalBuffer:
    """A piece of global memory: its address, its bytes, and a name for messages.

    allocation  its bytes and those behind it, to the end of its allocation; it gets them if a kernel reaches them
    added       what the bytes behind it held then
    told        whether changes of those bytes were reported
    before      bytes of its allocation that lie before it
    element     floating-point type of the array, until a tensor map was compared with it
    """

    name: str
    address: int
    data: npt.NDArray[np.uint8]
    allocation: npt.NDArray[np.uint8] | None = None
    added: npt.NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))
    before: int = 0
    told: bool = False
    element: DType | None = None

    @property
    def end(self) -> int:
        """The address after the last byte."""
        return self.address + len(self.data)

    def complete(self, content: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """An earlier copy of the bytes, with those that were added since."""
        missing = len(self.data) - len(content)
        return np.concatenate([content, self.added[len(self.added) - missing :]]) if missing else content


@dataclass(frozen=True, eq=False)
class MemorySnapshot:
    """Copies of a memory's buffers, and of the arrays found through pointers."""

    buffers: list[npt.NDArray[np.uint8]]
    followed: list[npt.NDArray[np.uint8]]


class GlobalMemory:
    """Buffers at addresses far apart, so that an access beyond one hits no other.

    >>> memory = GlobalMemory()
    >>> a = memory.add("a", np.arange(4, dtype=np.float32))
    >>> float(memory.read(np.array([a.address + 4]), 4).view(np.float32)[0, 0])
    1.0
    """

    START, GAP = 0x7000_0000_0000, 1 << 32

    def __init__(self) -> None:
        self.buffers: list[GlobalBuffer] = []
        # Arrays of this process that pointers in memory lead to, at their own addresses; and their finder.
        self.followed: list[GlobalBuffer] = []
        self.before: list[npt.NDArray[np.uint8] | None] = []  # what each held when it was found; None: an argument
        self.follow: Callable[[int], tuple[str, int, npt.NDArray[np.uint8]] | None] | None = None
        # (address of this process, bytes) -> the bytes of each device that a multicast window there stands for, or None
        self.windows: Callable[[int, int], list[npt.NDArray[np.uint8]] | None] | None = None
        self.given: dict[str, npt.NDArray[np.uint8]] = {}  # the bytes of module variables by name
        self.kept: tuple[object, ...] = ()  # objects whose memory the buffers are, where they hold it by address alone
        self.notes: list[str] = []  # lint of the arguments: their layouts differ from the compiled ones
        self.heap = device_heap.DeviceHeap()
        self.textures: dict[int, BoundTexture] = {}  # texture and surface objects, by their numbers

    def add(self, name: str, values: npt.NDArray[np.generic], offset: int = 0) -> GlobalBuffer:
        """Add a buffer over a contiguous array's bytes, `offset` bytes past a 4 GiB boundary."""
        if not values.flags.c_contiguous:
            raise EmulatorError(f"buffer {name} is not contiguous")
        at = self.START + self.GAP * len(self.buffers) + offset
        buffer = GlobalBuffer(name, at, values.reshape(-1).view(np.uint8))
        if len(buffer.data) > self.GAP:
            raise EmulatorError(f"buffer {name} has {len(buffer.data)} bytes, more than the {self.GAP} of its window")
        self.buffers.append(buffer)
        return buffer

    def bind(self, texture: TextureOf, address: int, handle: int = 0) -> int:
        """The object of a texture or surface whose array is at an address.

        handle  its number, 0 for a new one
        """
        handle = handle or HANDLES + 16 * len(self.textures)
        self.textures[handle] = BoundTexture(texture, address, self.find(address)[0].name)
        return handle

    def find(self, address: int, size: int = 1) -> tuple[GlobalBuffer, int]:
        """The buffer that holds [address, address + size), and the offset in it. Raises EmulatorError."""
        number = (address - self.START) // self.GAP
        if 0 <= number < len(self.buffers):
            buffer = self.buffers[number]
            if buffer.address <= address and address + size <= buffer.end:
                return buffer, address - buffer.address
            side = address - buffer.address
            if self._widened(buffer, address, size):
                return buffer, side
            raise EmulatorError(
                f"global address {address:#x} is byte {side} of buffer {buffer.name}, which has {len(buffer.data)}: "
                f"{size} bytes there are outside of it"
            )
        buffer = self._followed(address)
        if address + size > buffer.end:
            raise EmulatorError(f"global address {address:#x} and {size} bytes leave {buffer.name}")
        return buffer, address - buffer.address

    def _widened(self, buffer: GlobalBuffer, address: int, size: int) -> bool:
        """Let the buffer be its whole allocation, if the place lies there."""
        whole, held = buffer.allocation, len(buffer.data)
        if whole is None or address < buffer.address or address + size > buffer.address + len(whole):
            return False
        self.notes.append(
            f"byte {address - buffer.address} of {buffer.name} is accessed, which has {held}: it lies in the tensor's "
            "storage, behind the elements of the tensor that was passed"
        )
        buffer.data, buffer.allocation, buffer.added = whole, None, whole[held:].copy()
        return True

    def compare_elements(self, buffer: GlobalBuffer, kind: DType) -> None:
        """Note once that a tensor map takes a floating-point array for one of another type."""
        given, buffer.element = buffer.element, None
        other = given is not None and (given.bits != kind.bits or (given.bits == 16 and given != kind))
        if other and kind.kind == "float":
            self.notes.append(
                f"a tensor map takes {buffer.name} as {kind}, and the array is {given}: a kernel gets its bytes as "
                f"they are. Where values are meant, pass dtype({kind.name!r}).encode(x)"
            )

    def written_behind(self) -> Iterator[tuple[str, int, int]]:
        """(name, bytes, first byte) of changes in the storage behind each passed tensor, said once.

        It is asked after each launch, so that the launch that made a change is the one that has it.
        """
        for buffer in self.buffers:
            held = len(buffer.data) - len(buffer.added)
            changed = np.flatnonzero(buffer.data[held:] != buffer.added)
            if changed.size and not buffer.told:
                buffer.told = True
                yield buffer.name, changed.size, held + int(changed[0])

    def address_of(self, buffer: GlobalBuffer, offset: int) -> int | None:
        """The address here of a byte of another memory's buffer, or None. The byte is of the same place in this
        process."""
        place = buffer.data.__array_interface__["data"][0] + offset
        for one in (*self.buffers, *self.followed):
            low = one.data.__array_interface__["data"][0]
            if low <= place < low + len(one.data):
                return one.address + place - low
        return None

    def replicas(self, buffer: GlobalBuffer) -> list[npt.NDArray[np.uint8]] | None:
        """The bytes of each device, for a buffer in a multicast window. None for ordinary memory."""
        if self.windows is None:
            return None
        return self.windows(buffer.data.__array_interface__["data"][0], len(buffer.data))

    def targets(self, buffer: GlobalBuffer) -> list[GlobalBuffer]:
        """The memory that a copy to a buffer writes. The buffer, or of a multicast window each device's."""
        parts = self.replicas(buffer)
        return [buffer] if parts is None else [GlobalBuffer(buffer.name, buffer.address, part) for part in parts]

    def _followed(self, address: int) -> GlobalBuffer:
        """The array of this process at an address that the kernel read from memory. Raises EmulatorError."""
        if device_heap.START <= address < device_heap.END:
            return GlobalBuffer(*self.heap.find(address, 1))
        for buffer in self.followed:
            if buffer.address <= address < buffer.end:
                return buffer
        for buffer in self.buffers:
            low = buffer.data.__array_interface__["data"][0]
            if low <= address < low + len(buffer.data):
                self.followed.append(GlobalBuffer(buffer.name, low, buffer.data))
                self.before.append(None)
                return self.followed[-1]
        found = self.follow(address) if self.follow is not None else None
        if found is None:
            raise EmulatorError(f"global address {address:#x} lies in no buffer, and in no array of the callers")
        name, low, data = found
        self.followed.append(GlobalBuffer(name, low, data))
        self.before.append(data.copy())
        return self.followed[-1]

    def define(self, name: str, address: int, first: npt.NDArray[np.uint8] | None) -> None:
        """Place a module's variable at its address, unless it is there. `given` holds what stands for some.

        first  its initial bytes; None: defined elsewhere. Raises EmulatorError for one that is not given, or of
               another size.
        """
        if any(buffer.address == address for buffer in self.followed):
            return
        data = self.given.get(name, first)
        if data is None:
            raise EmulatorError(
                f"the variable {name} is external: pass its bytes as variables={{{shown(name)}: array}}"
            )
        if first is not None and first.size and data.size != first.size:
            raise EmulatorError(f"the variable {name} has {first.size} bytes, and {data.size} were given")
        self.followed.append(GlobalBuffer(name, address, data))
        self.before.append(data.copy())

    def contents(self) -> MemorySnapshot:
        """A copy of each buffer, and of the arrays found through pointers so far."""
        return MemorySnapshot([b.data.copy() for b in self.buffers], [b.data.copy() for b in self.followed])

    def restore(self, saved: MemorySnapshot) -> None:
        """Write the copies back into writeable buffers. Arrays found later return to their first content."""
        self.heap.clear()
        every = list(zip(self.buffers, saved.buffers, strict=True))
        for number, (buffer, before) in enumerate(zip(self.followed, self.before, strict=True)):
            if before is not None:
                every.append((buffer, saved.followed[number] if number < len(saved.followed) else before))
        # An array may be part of one that was passed or followed before it, whose copy is the older one.
        for buffer, content in reversed(every):
            if buffer.data.flags.writeable:
                buffer.data[:] = buffer.complete(content)

    def differing(self, saved: MemorySnapshot) -> Iterator[tuple[GlobalBuffer, int]]:
        """(buffer, first byte) of each buffer that differs from its copy."""
        for buffer, content in (*zip(self.buffers, saved.buffers, strict=True), *zip(self.followed, saved.followed)):
            if (differ := buffer.data != buffer.complete(content)).any():
                yield buffer, int(differ.argmax())

    def near(self, address: int, used: int | None = None) -> GlobalBuffer:
        """The buffer that holds the address, or the next one after it. A tensor may begin before its buffer.

        used  a byte of the tensor that is accessed, whose buffer it is if the tensor begins far from all of them (maps
              for ragged groups begin gigabytes before); None: no byte is, and any buffer will do
        """
        number = (address - self.START) // self.GAP
        if 0 <= number < len(self.buffers) and address < self.buffers[number].end:
            return self.buffers[number]
        if -1 <= number < len(self.buffers) - 1:
            return self.buffers[number + 1]
        try:
            return self._followed(address)
        except EmulatorError:
            if used is None and self.buffers:
                return self.buffers[0]
            return self.find(address if used is None else used)[0]

    def _offsets(
        self, addresses: npt.NDArray[np.int64], size: int
    ) -> tuple[GlobalBuffer, npt.NDArray[np.int64]] | None:
        """(The buffer that holds all addresses, their offsets); None for several buffers."""
        every = addresses.tolist()  # for a few numbers, Python finds the minimum and the maximum sooner than NumPy
        low, high = min(every), max(every)
        buffer, _ = self.find(low, size)
        if self.windows is not None and self.replicas(buffer) is not None:
            raise EmulatorError(
                f"global address {low:#x} is a multicast address, {buffer.name}: multimem instructions and stores of "
                "the copy engine alone may use it"
            )
        if high + size > buffer.end:
            self.find(high, size)
            return None
        return buffer, addresses - buffer.address

    def read(self, addresses: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.uint8]:
        """[n] addresses -> [n, size] bytes."""
        if addresses.size == 0:
            return np.empty((0, size), dtype=np.uint8)
        found = self._offsets(addresses, size)
        if found is None:
            return np.concatenate([self.read(addresses[n : n + 1], size) for n in range(len(addresses))])
        buffer, offsets = found
        return pieces(buffer.data, offsets, size)

    def write(self, addresses: npt.NDArray[np.int64], data: npt.NDArray[np.uint8]) -> None:
        """Store [n, size] bytes at [n] addresses."""
        if addresses.size:
            found = self._offsets(addresses, data.shape[1])
            if found is None:
                for n in range(len(addresses)):
                    self.write(addresses[n : n + 1], data[n : n + 1])
                return
            buffer, offsets = found
            buffer.data[_bytes(offsets, data.shape[1])] = data


class TileBox(NamedTuple):
    """The layout of a map's boxes. The swizzle's mode, and 16-byte chunks of a row (0: not whole)."""

    swizzle: str
    pitch: int


class LoadedBox(NamedTuple):
    """The box that a tensor load wrote into shared memory.

    start    the box's first chunk, before the swizzle, and end: behind its last
    chunks   the 16-byte chunks that it filled, and content: what with
    text     the load, for messages
    """

    tile: TileBox
    start: int
    end: int
    chunks: npt.NDArray[np.int64]
    content: npt.NDArray[np.complex128]
    text: Callable[[], str]


class ChunkOrigins:
    """The origins of 16-byte chunks of shared memory that threads wrote.

    label    [chunk] -> 0 for unknown, else the address in global memory, or the number of the stmatrix matrix: it grows
             evenly along a column of a tile
    content  [chunk] -> the bytes that were written
    by       [chunk] -> the number of the instruction, and texts: its last execution, for messages
    """

    def __init__(self, chunks: int) -> None:
        self.label = np.zeros(chunks, np.int64)
        self.content = np.zeros(chunks, WHOLE)
        self.by = np.zeros(chunks, np.int64)
        self.texts: dict[int, Callable[[], str]] = {}
        self._matrices = 0

    def add(
        self, chunks: npt.NDArray[np.int64], labels: npt.NDArray[np.int64], content: npt.NDArray[np.complex128],
        pc: int, text: Callable[[], str],
    ) -> None:  # fmt: skip
        """Note chunks that an instruction wrote."""
        self.label[chunks], self.content[chunks], self.by[chunks] = labels, content, pc
        self.texts[pc] = text

    def matrices(self, rows: int, each: int) -> npt.NDArray[np.int64]:
        """Labels of the rows of new matrices with `each` rows."""
        first = self._matrices + 1
        self._matrices += rows // each
        return np.arange(first, self._matrices + 1).repeat(each)


@dataclass(eq=False)
class ComparedSwizzles:
    """The reads and stores of a launch whose swizzle was compared with the writer's.

    The blocks of a launch do alike, so that the first that comes to one compares it.

    reads  since the last tensor load of another kind; loads: those kinds
    """

    reads: set[Hashable] = field(default_factory=set)
    loads: set[Hashable] = field(default_factory=set)


class CtaSharedMemory:
    """One block's shared memory: bytes, views of wider units, and written flags.

    size      bytes that the kernel may use, from offset 0; a multiple of 16 is made of it
    fill      what each byte is before anything is written
    compared  shared by the blocks of a launch
    """

    def __init__(self, size: int, fill: int = POISON, compared: ComparedSwizzles | None = None) -> None:
        size = -(-size // GRANULE) * GRANULE
        self.size, self.fill = size, fill
        self.bytes = np.full(size, fill, dtype=np.uint8)
        self.chunks = self.bytes.view(WHOLE)  # 16-byte chunks
        self.written = np.zeros(size, dtype=bool)
        self.full_chunks = self.written.view(WHOLE)  # equal to `ALL` where the chunk was written
        self.complete: set[Hashable] = set()  # reads of which all bytes were found written
        self.boxes: dict[int, LoadedBox] = {}  # the last tensor load to each offset, the latest one last
        self.compared = compared if compared is not None else ComparedSwizzles()
        self.origins: ChunkOrigins | None = None

    def came(
        self, chunks: npt.NDArray[np.int64], labels: npt.NDArray[np.int64] | int, content: npt.NDArray[np.complex128],
        pc: int, text: Callable[[], str],
    ) -> None:  # fmt: skip
        """Note where chunks came from. They came from labels, or the rows of each matrix for matrices of stmatrix."""
        if self.origins is None:
            self.origins = ChunkOrigins(len(self.chunks))
        if isinstance(labels, int):
            labels = self.origins.matrices(len(chunks), labels)
        self.origins.add(chunks, labels, content, pc, text)

    def load(self, offset: int, box: LoadedBox) -> None:
        """Note that a tensor load filled a box there."""
        self.boxes.pop(offset, None)
        self.boxes[offset] = box
        if (offset, box.tile, box.end) not in self.compared.loads:
            self.compared.loads.add((offset, box.tile, box.end))
            self.compared.reads.clear()

    def check(self, offsets: npt.NDArray[np.int64], size: int, what: str) -> None:
        """Raise EmulatorError for bytes outside or for misaligned addresses."""
        every = offsets.tolist()
        low, high = min(every), max(every)
        if low < 0 or high + size > self.size:
            bad = low if low < 0 else high
            raise EmulatorError(f"{what}: shared offset {bad:#x} and {size} bytes, of {self.size:#x} bytes")
        if size & (size - 1) == 0 and any_of(offsets & size - 1):
            bad = int(offsets[(offsets & size - 1) != 0][0])
            raise EmulatorError(f"{what}: shared offset {bad:#x} is not a multiple of {size}")

    def read(self, offsets: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.uint8]:
        """[n] offsets -> [n, size] bytes."""
        return pieces(self.bytes, offsets, size)

    def write(self, offsets: npt.NDArray[np.int64], data: npt.NDArray[np.uint8]) -> None:
        """Store [n, size] bytes at [n] offsets."""
        where = _bytes(offsets, data.shape[1])
        self.bytes[where] = data
        self.written[where] = True

    def forget(self, offsets: npt.NDArray[np.int64], which: npt.NDArray[np.bool_]) -> None:
        """Mark bytes at [n] offsets as never written; which: [n, size] flags."""
        where = _bytes(offsets, which.shape[1])[which]
        self.bytes[where] = self.fill
        self.written[where] = False
        self.complete.clear()

    def full(self, chunks: npt.NDArray[np.int64]) -> bool:
        """True if each of these chunks was written."""
        return np.count_nonzero(self.full_chunks[chunks] == ALL) == chunks.size

    def unwritten(self, offsets: npt.NDArray[np.int64], size: int) -> int | None:
        """The first byte of the access that was never written, or None."""
        written = pieces(self.written, offsets, size)
        if np.count_nonzero(written) == written.size:
            return None
        lane, byte = np.argwhere(~written)[0]
        return int(offsets[lane] + byte)


def pieces(data: npt.NDArray[Item], offsets: npt.NDArray[np.int64], size: int) -> npt.NDArray[Item]:
    """[n] offsets -> [n, size] bytes of an array of them.

    >>> pieces(np.arange(9, dtype=np.uint8), np.array([4, 0]), 2).tolist()
    [[4, 5], [0, 1]]
    """
    return data.take(_bytes(offsets, size))


_COUNT = np.arange(64)


def _bytes(offsets: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.int64]:
    """[n] offsets -> [n, size] offsets of bytes."""
    return offsets[:, None] + (_COUNT[:size] if size <= len(_COUNT) else np.arange(size))


def span(offset: int, size: int) -> int:
    """The granules of [offset, offset + size), as a bit set."""
    first, last = offset // GRANULE, (offset + size - 1) // GRANULE
    return ((1 << last - first + 1) - 1) << first


def span_parts(offset: int, size: int) -> dict[int, int]:
    """Bytes of the partial first and last granules of [offset, offset + size), as bit sets.

    >>> span_parts(20, 12), span_parts(28, 8), span_parts(16, 32)
    ({1: 65520}, {1: 61440, 2: 15}, {})
    """
    parts: dict[int, int] = {}
    for place in (offset // GRANULE, (offset + size - 1) // GRANULE):
        low, end = max(offset - place * GRANULE, 0), min(offset + size - place * GRANULE, GRANULE)
        if end - low < GRANULE:
            parts[place] = (1 << end) - (1 << low)
    return parts


def granules(offsets: npt.NDArray[np.int64], size: int) -> int:
    """The granules that accesses of `size` bytes at these offsets touch, as a bit set."""
    return _touched(offsets.tobytes(), size)[0]


def parts_of(offsets: npt.NDArray[np.int64], size: int) -> Mapping[int, int]:
    """Bytes of partially touched granules, as bit sets, for accesses of `size` bytes.

    >>> dict(parts_of(np.array([32, 36, 48, 56]), 8))
    {2: 4095}
    """
    return _touched(offsets.tobytes(), size)[1]


@lru_cache(maxsize=1 << 13)
def _touched(raw: bytes, size: int) -> tuple[int, Mapping[int, int]]:
    """The granules of accesses, and the bytes of those touched in part; most threads access the same places again."""
    offsets = set(np.frombuffer(raw, dtype=np.int64).tolist())
    places, width = 0, max(1, size // GRANULE)
    for first in {offset // GRANULE for offset in offsets}:
        places |= (1 << width) - 1 << first
    parts: dict[int, int] = {}
    if size < GRANULE:
        ones, all_ = (1 << size) - 1, (1 << GRANULE) - 1
        for offset in offsets:
            place = offset // GRANULE
            parts[place] = parts.get(place, 0) | ones << offset % GRANULE
        parts = {place: mask & all_ for place, mask in parts.items() if mask & all_ != all_}
    return places, MappingProxyType(parts)
