"""Texture and surface objects. Arrays that tex and suld address by coordinates, and how a texture samples.

CUDA's programming guide, "Texture Fetching", with its names: a texture of N texels T along a dimension, at x.

    coordinates   normalised ones times N, in float32
    point         T[floor(x)]
    linear        T[i] (1 - a) + T[i + 1] a, i = floor(x - 0.5), a the fraction in 8 bits; in each dimension
    beyond        clamp: the last texel; border: its value; wrap and mirror: of normalised coordinates, else as clamp
    layers        the nearest layer, without filtering; a negative one is the last

The guide has `a` in 9 bits with 8 of fraction. An H200 rounds it to the nearest, halves up, and so it is here. It
clamps the border of normalised integers to their range, and reverses tld4's texels where mirror does. Its filter of
normalised coordinates and of normalised integers is not float32's: it differs by less than a step of the weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ...arguments import refusal, settle, shown
from ...errors import EmulatorError

FAR = 1 << 40  # texels; beyond, coordinates of float32 are far apart
HANDLES = 0x4A00_0000_0000  # texture objects are numbers from here on, which are no addresses
MODES = ("clamp", "border", "wrap", "mirror")
_KINDS = ("u1", "i1", "u2", "i2", "u4", "i4", "f2", "f4")
Integers: TypeAlias = npt.NDArray[np.int64]
Texels: TypeAlias = npt.NDArray[np.float32] | npt.NDArray[np.int64]  # [texel, four channels]


@dataclass(frozen=True, eq=False)
class TextureOf:
    """A texture or surface object over an array, as an argument of a PTX kernel.

    array       of 8, 16 or 32-bit integers, float16 or float32: (layers,) depth, height, width (, channels)
    channels    1, 2 or 4; more than one are the array's last axis
    layered     whether the first axis is of layers
    address     "clamp", "border", "wrap" or "mirror", or one for each of x, y, z
    filter      "point" or "linear"; linear values are floats
    normalized  whether coordinates are in [0, 1)
    read        "element", or "normalized": integers of 8 and 16 bits as floats in [0, 1] or [-1, 1]
    border      of four channels, outside of the array

    Raises EmulatorError for arrays and modes that a texture does not have.

    >>> TextureOf(np.zeros((3, 5, 4), np.uint8), channels=4).extents
    (5, 3)
    """

    array: npt.NDArray[np.generic]
    channels: int = 1
    layered: bool = False
    address: str | tuple[str, ...] = "clamp"
    filter: str = "point"
    normalized: bool = False
    read: str = "element"
    border: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)

    def __post_init__(self) -> None:
        if not hasattr(self.array, "__array_interface__") and not hasattr(self.array, "data_ptr"):
            raise EmulatorError(refusal(self.array, "array of TextureOf", "an array, or a torch tensor on the CPU"))
        object.__setattr__(self, "array", np.asarray(self.array))
        settle(self, EmulatorError)
        array, axes = self.array, self.array.ndim - (self.channels > 1) - self.layered
        if array.dtype.str[1:] not in _KINDS:
            raise EmulatorError(f"a texture of {array.dtype}: its elements have 8, 16 or 32 bits, or are float16")
        if self.channels not in (1, 2, 4) or (self.channels > 1 and array.shape[-1:] != (self.channels,)):
            raise EmulatorError(
                f"{shown(self.channels)} channels of an array {array.shape}: 1, or 2 or 4 in its last axis"
            )
        rows = array.reshape(-1, *array.shape[-1 - (self.channels > 1) :])[:1] if array.size else array
        if not 1 <= axes <= (2 if self.layered else 3) or not rows.flags.c_contiguous or not array.size:
            raise EmulatorError(
                f"an array {array.shape} is no texture of {self.channels} channel(s){' in layers' * self.layered}: its "
                "rows are contiguous, and it has 1 to 3 dimensions, 1 or 2 in layers"
            )
        for name, value, known in (("filter", self.filter, ("point", "linear")),
                                   ("read", self.read, ("element", "normalized"))):  # fmt: skip
            if value not in known:
                raise EmulatorError(f"{name} = {shown(value)}; it is one of {', '.join(known)}")
        if len(self.modes) != axes or any(mode not in MODES for mode in self.modes):
            raise EmulatorError(
                f"address = {shown(self.address)}: one of {', '.join(MODES)}, or one for each of {axes}"
            )
        if self.read == "normalized" and array.dtype.str[1:] not in ("u1", "i1", "u2", "i2"):
            raise EmulatorError(f"normalized values of {array.dtype}: integers of 8 and 16 bits have them")
        if self.filter == "linear" and not self.floats:
            raise EmulatorError(f"linear values of {array.dtype} as elements: floats alone, or read='normalized'")

    @property
    def modes(self) -> tuple[str, ...]:
        """The address mode of x, y and z."""
        return self.address if isinstance(self.address, tuple) else (self.address,) * len(self.extents)

    @property
    def floats(self) -> bool:
        """True if values are floats."""
        return self.array.dtype.kind == "f" or self.read == "normalized"

    @property
    def extents(self) -> tuple[int, ...]:
        """Width, height and depth, as far as it has them, in texels."""
        shape = self.array.shape[:-1] if self.channels > 1 else self.array.shape
        return shape[self.layered :][::-1]

    @property
    def layers(self) -> int:
        """The number of layers; 1 without."""
        return self.array.shape[0] if self.layered else 1

    @property
    def texel(self) -> int:
        """Bytes of a texel."""
        return self.array.itemsize * self.channels

    @property
    def geometry(self) -> str:
        """Its geometry in PTX.

        >>> [TextureOf(np.zeros((3, 5), np.float32), layered=layered).geometry for layered in (False, True)]
        ['2d', 'a1d']
        """
        return f"{'a' * self.layered}{len(self.extents)}d"

    def offsets(self, at: list[Integers], layer: Integers | int) -> Integers:
        """Bytes from the array's first one to texels inside; at: along x, y, z."""
        found = np.asarray(layer, np.int64) * (self.array.strides[0] if self.layered else 0)
        for place, stride in zip(at[::-1], self.array.strides[self.layered :]):  # without that of channels
            found = found + place * stride
        return found

    def wrapped(self, at: list[Integers]) -> tuple[list[Integers], npt.NDArray[np.bool_]]:
        """Texels by the address modes, and which are inside: the others have the border's value."""
        inside, out = np.ones(len(at[0]), bool), []
        for place, extent, mode in zip(at, self.extents, self.modes, strict=True):
            if mode == "border":
                inside &= (place >= 0) & (place < extent)
            elif mode == "wrap" and self.normalized:
                place = place % extent
            elif mode == "mirror" and self.normalized:
                place = place % (2 * extent)
                place = np.where(place < extent, place, 2 * extent - 1 - place)
            out.append(np.clip(place, 0, extent - 1))
        return out, inside

    def places(self, coordinates: list[npt.NDArray[np.float32]]) -> list[npt.NDArray[np.float32]]:
        """Coordinates in texels; those far outside come nearer, to where the same texels are read."""
        found = []
        for x, extent, mode in zip(coordinates, self.extents, self.modes, strict=True):
            beyond = np.float32(extent + 2)
            if self.normalized:
                x = x * np.float32(extent)
                beyond = np.float32(FAR) if mode in ("wrap", "mirror") else beyond
            found.append(np.clip(x, -beyond, beyond).astype(np.float32))
        return found

    def samples(
        self, coordinates: list[npt.NDArray[np.float32]]
    ) -> list[tuple[list[Integers], npt.NDArray[np.float32]]]:
        """The texels that a fetch combines, before their address modes, and their weights."""
        at = self.places(coordinates)
        if self.filter == "point":
            return [([np.floor(x).astype(np.int64) for x in at], np.ones(len(at[0]), np.float32))]
        low = [np.floor(x - np.float32(0.5)) for x in at]
        part = [np.floor((x - np.float32(0.5) - i) * 256 + np.float32(0.5)) / 256 for x, i in zip(at, low, strict=True)]
        out = []
        for corner in product((0, 1), repeat=len(at)):
            weight = np.ones(len(at[0]), np.float32)
            for up, fraction in zip(corner, part, strict=True):
                weight = weight * (fraction if up else 1 - fraction)
            out.append(([(i + up).astype(np.int64) for i, up in zip(low, corner, strict=True)], weight))
        return out

    def footprint(self, coordinates: list[npt.NDArray[np.float32]]) -> list[list[Integers]]:
        """The four texels around a point, counter-clockwise from the lower left, as tld4 has them."""
        x, y = [np.floor(place - np.float32(0.5)).astype(np.int64) for place in self.places(coordinates)]
        return [[x, y + 1], [x + 1, y + 1], [x + 1, y], [x, y]]

    def decoded(self, raw: npt.NDArray[np.uint8], inside: npt.NDArray[np.bool_]) -> Texels:
        """[texel, four channels] of texels' bytes: float32, or integers as int64.

        Channels that it lacks are 0: PTX leaves them open, and an H200 has it so, beyond a border too.
        """
        kind = self.array.dtype
        values = np.ascontiguousarray(raw).view(kind).reshape(len(raw), self.channels)
        wide: type[np.float32] | type[np.int64] = np.float32 if self.floats else np.int64
        found: npt.NDArray[np.generic] = values.astype(wide)
        if self.read == "normalized":
            found = np.maximum(
                values.astype(np.float32) / np.float32((1 << 8 * kind.itemsize - (kind.kind == "i")) - 1),
                np.float32(-1),
            )
        border = np.array(self.border, wide)[: self.channels]
        if self.read == "normalized":
            border = np.clip(border, -1 if kind.kind == "i" else 0, 1)
        out: Texels = np.zeros((len(raw), 4), np.float32) if self.floats else np.zeros((len(raw), 4), np.int64)
        out[:, : self.channels] = np.where(inside[:, None], found, border)
        return out


@dataclass(frozen=True)
class BoundTexture:
    """A texture whose array lies at an address of a kernel's global memory."""

    texture: TextureOf
    address: int
    name: str
