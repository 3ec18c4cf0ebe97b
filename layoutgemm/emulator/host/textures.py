"""CUDA arrays of a C++ program, and its texture and surface objects.

An array's texels lie one row after another in an allocation, and its handle is that address. driver_types.h and
texture_types.h of CUDA 13 have the structures that are read here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ...errors import EmulatorError
from ..machine.textures import HANDLES, TextureOf
from ..races.unordered_launches import TouchedBytes
from .arguments import bytes_at
from .cuda_calls import DeviceMemory
from .graphs.graph import GraphWork, NodeKind

Copy = Callable[[str, int, int, int, int], int]  # (function, to, from, bytes, cudaMemcpyKind) -> status
_LAYERED, _SURFACE, _GATHER = 1, 2, 8  # flags of an array
_ARRAY, _LINEAR, _PITCHED = 0, 2, 3  # cudaResourceType
_MODES = ("wrap", "clamp", "mirror", "border")  # cudaTextureAddressMode
_LETTERS = "iuf"  # cudaChannelFormatKind: signed, unsigned, float


class Extent(ctypes.Structure):
    """`cudaExtent`."""

    _fields_ = [(axis, ctypes.c_size_t) for axis in ("width", "height", "depth")]


class Texels(NamedTuple):
    """Texels of one array or piece of memory.

    height, depth  0 where it has no such axis
    pitch          bytes from row to row, 0 for rows without gaps
    """

    address: int
    format: tuple[int, ...]
    width: int
    height: int = 0
    depth: int = 0
    layered: bool = False
    pitch: int = 0

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The type of a channel. Raises EmulatorError for a format without one."""
        *bits, kind = self.format
        size = bits[0]
        if kind >= len(_LETTERS) or size not in (8, 16, 32) or any(one not in (0, size) for one in bits):
            raise EmulatorError(
                f"a channel format of {bits} bits and kind {kind}: 1, 2 or 4 channels of 8, 16 or 32 bits, integers "
                "or floats, have textures here"
            )
        return np.dtype(f"{_LETTERS[kind]}{size // 8}")

    @property
    def channels(self) -> int:
        """The number of channels of a texel."""
        return sum(one > 0 for one in self.format[:4])

    @property
    def texel(self) -> int:
        """Bytes of a texel."""
        return self.dtype.itemsize * self.channels

    @property
    def size(self) -> int:
        """Bytes of all."""
        return self.row * max(self.height, 1) * max(self.depth, 1)

    @property
    def row(self) -> int:
        """Bytes from row to row."""
        return self.pitch or self.width * self.texel

    def texture(self, **facts: object) -> TextureOf:
        """A texture over them."""
        shape = [one for one in (self.depth, self.height) if one]
        values = bytes_at(self.address, self.size, None).reshape(*shape, self.row)[..., : self.width * self.texel]
        values = values.view(self.dtype)
        if self.channels > 1:
            values = values.reshape(*shape, self.width, self.channels)
        return TextureOf(values, self.channels, self.layered, **facts)  # type: ignore[arg-type]


class CudaArrays:
    """The functions of CUDA's runtime for arrays and textures.

    textures  that a launch sees: handle -> (object, address of its first texel)
    """

    def __init__(self, memory: DeviceMemory, copy: Copy, enqueue: Callable[[int, GraphWork], int]) -> None:
        self.memory, self.copy, self.enqueue = memory, copy, enqueue
        self.textures: dict[int, tuple[TextureOf, int]] = {}
        self._arrays: dict[int, Texels] = {}
        self._made = 0

    def functions(self) -> dict[str, Callable[..., int | None]]:
        """The functions by name."""

        def plain(out: int, format: int, width: int, height: int, flags: int) -> None:
            self._allocate(out, format, (width, height, 0), flags & 0xFFFFFFFF)

        def cubic(out: int, format: int, extent: Extent, flags: int) -> None:
            self._allocate(out, format, (extent.width, extent.height, extent.depth), flags & 0xFFFFFFFF)

        def pitched(out: int, extent: Extent) -> None:
            row = -(-extent.width // 512) * 512
            made = self.memory.allocate(row * extent.height * extent.depth)
            (ctypes.c_size_t * 4).from_address(out)[:] = [made, row, extent.width, extent.height]

        def free(array: int) -> None:
            if array:
                self._array(array)
                del self._arrays[array]
                self.memory.free(array)

        def texture(out: int, resource: int, description: int, view: int) -> None:
            if view:
                raise EmulatorError("cudaCreateTextureObject with a resource view: leave it out")
            self._bind(out, resource, description)

        def surface(out: int, resource: int) -> None:
            self._bind(out, resource, 0)

        def destroy(handle: int) -> None:
            self.textures.pop(handle, None)

        def format_from(out: int, x: int, y: int, z: int, w: int, kind: int) -> int:
            # C++ returns a structure of this size at an address that it passes before the parameters.
            (ctypes.c_uint32 * 5).from_address(out)[:] = [word & 0xFFFFFFFF for word in (x, y, z, w, kind)]
            return out

        def format_of(out: int, array: int) -> None:
            (ctypes.c_int * 5).from_address(out)[:] = [*self._array(array).format]

        return self._copies() | {
            "cudaMallocArray": plain, "cudaMalloc3DArray": cubic, "cudaMalloc3D": pitched, "cudaFreeArray": free,
            "cudaCreateTextureObject": texture, "cudaCreateSurfaceObject": surface,
            "cudaDestroyTextureObject": destroy, "cudaDestroySurfaceObject": destroy, "cudaGetChannelDesc": format_of,
            "cudaCreateChannelDesc": format_from,
        }  # fmt: skip

    def _copies(self) -> dict[str, Callable[..., int | None]]:
        """Copies to and from arrays."""

        def into(array: int, x: int, y: int, source: int, pitch: int, width: int, height: int, kind: int) -> int:
            return into_async(array, x, y, source, pitch, width, height, kind, 0)

        def into_async(
            array: int, x: int, y: int, source: int, pitch: int, width: int, height: int, kind: int, stream: int
        ) -> int:
            to, row = self._place(array, x, y)
            return self._rows("cudaMemcpy2DToArray", to, row, source, pitch, width, height, kind, stream)

        def out_of(to: int, pitch: int, array: int, x: int, y: int, width: int, height: int, kind: int) -> int:
            return out_of_async(to, pitch, array, x, y, width, height, kind, 0)

        def out_of_async(
            to: int, pitch: int, array: int, x: int, y: int, width: int, height: int, kind: int, stream: int
        ) -> int:
            source, row = self._place(array, x, y)
            return self._rows("cudaMemcpy2DFromArray", to, pitch, source, row, width, height, kind, stream)

        def straight(array: int, x: int, y: int, source: int, size: int, kind: int) -> int:
            return self._rows("cudaMemcpyToArray", self._place(array, x, y)[0], size, source, size, size, 1, kind, 0)

        return {
            "cudaMemcpy2DToArray": into, "cudaMemcpy2DToArrayAsync": into_async, "cudaMemcpy2DFromArray": out_of,
            "cudaMemcpy2DFromArrayAsync": out_of_async, "cudaMemcpyToArray": straight,
        }  # fmt: skip

    def _array(self, handle: int) -> Texels:
        if handle not in self._arrays:
            raise EmulatorError(f"{handle:#x} is no CUDA array of this program")
        return self._arrays[handle]

    def _allocate(self, out: int, format: int, sizes: tuple[int, int, int], flags: int) -> None:
        if flags & ~(_LAYERED | _SURFACE | _GATHER):
            raise EmulatorError(f"a CUDA array with flags {flags:#x}: cubemaps and sparse arrays are not emulated")
        made = Texels(0, tuple((ctypes.c_int * 5).from_address(format)), *sizes, bool(flags & _LAYERED))
        self._made += 1
        address = self.memory.allocate(made.size, f"CUDA array {self._made}")
        self._arrays[address] = made._replace(address=address)
        ctypes.c_uint64.from_address(out).value = address

    def _place(self, handle: int, x: int, y: int) -> tuple[int, int]:
        """(The address of a byte of an array, bytes from row to row)."""
        array = self._array(handle)
        return array.address + y * array.row + x, array.row

    def _rows(
        self, name: str, to: int, to_pitch: int, source: int, pitch: int, width: int, height: int, kind: int,
        stream: int,
    ) -> int:  # fmt: skip
        rows = [(to + n * to_pitch, source + n * pitch) for n in range(height)]
        touched = [TouchedBytes(at, width, writes) for pair in rows for at, writes in zip(pair, (True, False))]

        def run() -> None:
            for one, other in rows:
                self.copy(name, one, other, width, kind)

        return self.enqueue(stream, GraphWork(NodeKind.MEMCPY, run, f"{name} to {to:#x}", tuple(touched)))

    def rows_of(self, words: Sequence[int]) -> list[tuple[int, int, int]]:
        """The rows of a cudaMemcpy3DParms, as (to, from, bytes). An array counts texels in place of bytes."""
        (source, pitch, slice_of), (to, to_pitch, to_slice) = self._side(words[:8]), self._side(words[8:16])
        width, height, depth = words[16:19]
        width *= next((self._array(one).texel for one in (words[0], words[8]) if one), 1)
        return [
            (to + plane * to_slice + row * to_pitch, source + plane * slice_of + row * pitch, width)
            for plane in range(depth)
            for row in range(height)
        ]

    def _side(self, words: Sequence[int]) -> tuple[int, int, int]:
        """One side of cudaMemcpy3D: (its first byte, bytes from row to row, from plane to plane)."""
        handle, x, y, z, address, pitch, _, rows = words
        if handle:
            array = self._array(handle)
            address, pitch, rows = array.address, array.row, max(array.height, 1)
            x *= array.texel
        return address + x + y * pitch + z * pitch * rows, pitch, pitch * rows

    def _bind(self, out: int, resource: int, description: int) -> None:
        """Make an object of a cudaResourceDesc, and of a cudaTextureDesc or none."""
        kind = ctypes.c_int.from_address(resource).value
        at = ctypes.c_uint64.from_address(resource + 8).value
        format = tuple((ctypes.c_int * 5).from_address(resource + 16))
        sizes = (ctypes.c_size_t * 3).from_address(resource + 40)
        if kind == _ARRAY:
            found = self._array(at)
        elif kind == _LINEAR:
            found = Texels(at, format, 1)
            found = found._replace(width=sizes[0] // found.texel)
        elif kind == _PITCHED:
            found = Texels(at, format, sizes[0], sizes[1], pitch=sizes[2])
        else:
            raise EmulatorError(f"a texture of resource type {kind}: mipmapped arrays are not emulated")
        facts: dict[str, object] = {}
        if description:
            *modes, linear, normalized, standard = (ctypes.c_int * 6).from_address(description)
            colour = tuple((ctypes.c_float * 4).from_address(description + 24))
            if standard:
                raise EmulatorError("a texture with sRGB conversion is not emulated")
            axes = sum(one > 0 for one in (found.width, found.height, found.depth)) - found.layered
            facts = {
                "address": tuple(_MODES[mode] for mode in modes[:axes]), "filter": ("point", "linear")[linear],
                "read": ("element", "normalized")[normalized], "border": colour,
                "normalized": bool(ctypes.c_int.from_address(description + 40).value),
            }  # fmt: skip
            if kind == _LINEAR:  # texels behind the end are 0
                facts |= {"address": "border", "border": (0.0,) * 4}
        handle = HANDLES + 16 * len(self.textures)
        while handle in self.textures:
            handle += 16
        self.textures[handle] = found.texture(**facts), found.address
        ctypes.c_uint64.from_address(out).value = handle
