"""The 128 bytes of a tensor map, encoded and decoded.

NVIDIA documents no layout. This one was found by encoding 295 maps with the driver of an H200 (580.159.04, CUDA 13.0),
one argument varied at a time and then at random. Every field below reproduces the arguments of all of them. The CuTe
DSL writes the same words without the driver. The narrow formats and the 32-byte atom, which that driver refuses, come
from the DSL; that 16U4_ALIGN16B is format 12 follows from its neighbours alone. As 32-bit words, from 0:

    0, 1    address of the tensor
    2       bits 4-6 rank - 1; 7-10 element format; 11-12 interleave; 13-14 swizzle; 15 NaN fill; 16 TF32 rounding;
            17-18 L2 promotion; 19-20 atom of the swizzle, 0 for 16 bytes, 1 for 32. The DSL sets bit 1, and bit 21 for
            a tensor that is known to be aligned to 32 bytes; the driver does not
    3-6     low 32 bits of stride / 16 bytes, of dimensions 1 to 4; word 7 has their bits 32-35, 4 bits each
    8-12    extent - 1, of dimensions 0 to 4
    13      bits 0-14 traversal step - 1, 3 bits each; bits 24-31 box extent - 1 of dimension 0
    14      box extent - 1 of dimensions 1 to 4, 8 bits each
    15      of an im2col map alone: pixels - 1
    16      bytes of floor(box / step) elements; 18 a number that follows from the swizzle: what uses them is not known

An im2col map has bit 0 of word 2. Channels - 1 stand in place of the innermost box extent. Word 14 has the corners
of the pixel box, W first: lower ones from bit 0, upper ones from bit 16, of 16, 8 or 5 bits. The CuTe DSL 4.8.1 wrote
24 such maps, each with another argument. The driver's were not looked at.

How a wide im2col map (cuTensorMapEncodeIm2colWide) is laid out is not known. Here it has the corners of W in 16 bits,
and in word 31, which no other map uses, 1 for W and 2 for W128. Such a map comes from this module alone.

So `decode` reads a tensor map from its bytes in parameter space or in global memory.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from ...atoms.tma.im2col import CORNER_BITS, WIDE, WIDE_BITS, Im2colMap, broken_rules
from ...atoms.tma.rules import (
    FORMATS,
    L2_PROMOTION,
    MODES,
    NO_STRIDE,
    OOB_FILL,
    STRIDE_UNIT,
    RuleViolation,
    TensorMap,
    broken,
    format_of,
)
from ...dtypes import DType, dtype
from ...errors import EmulatorError

BYTES, ALIGN = 128, 64
READ = 64  # first bytes, which have all fields: the CuTe DSL copies these alone into shared memory (4.8.1, sm_100a)
# The field of the element format, and whether values are rounded to TF32 -> the format, and a type that it holds.
_FORMAT = {
    (0, 0): ("UINT8", "u8"),
    (1, 0): ("UINT16", "u16"),
    (2, 0): ("UINT32", "u32"),
    (3, 0): ("INT32", "i32"),
    (4, 0): ("UINT64", "u64"),
    (5, 0): ("INT64", "i64"),
    (6, 0): ("FLOAT16", "f16"),
    (7, 0): ("FLOAT32", "f32"),
    (9, 0): ("FLOAT64", "f64"),
    (10, 0): ("BFLOAT16", "bf16"),
    (7, 1): ("TFLOAT32", "tf32"),
    (11, 0): ("16U4_ALIGN8B", "e2m1"),
    (12, 0): ("16U4_ALIGN16B", "e2m1"),
    (13, 0): ("16U6_ALIGN16B", "e2m3"),
}
_FIELD = {name: key for key, (name, _) in _FORMAT.items()}
# The formats that a map has to name, as its type has another by default.
_NAMED = {name: name for name, kind in _FORMAT.values() if format_of(dtype(kind)).name != name}
_FLUSHED = {(8, 0): "FLOAT32_FTZ", (8, 1): "TFLOAT32_FTZ"}
# The fields of the swizzle and of its atom.
_SWIZZLE_FIELDS = {"none": (0, 0), "32B": (1, 0), "64B": (2, 0), "128B": (3, 0), "128B, atom 32B": (3, 1)}
_SWIZZLES = {fields: name for name, fields in _SWIZZLE_FIELDS.items()}
_MODES = {mode.driver: name for name, mode in MODES.items()}
_IM2COL = 1  # bit of word 2
_WIDE_WORD, _WIDE = 31, ("", *WIDE)
_KNOWN = 0x3FFFF3  # bits of word 2
_PROMOTIONS = {number: name for name, number in L2_PROMOTION.items()}
_FILLS = {number: name for name, number in OOB_FILL.items()}
_TYPES = {FORMATS[name].driver: (name, kind) for name, kind in _FORMAT.values()}
_SWIZZLE_WORD = {"none": 0x10, "32B": 0x100, "64B": 0x200, "128B": 0x400, "128B, atom 32B": 0x400}


def encode(tmap: TensorMap, address: int) -> bytes:
    """The 128 bytes of a tensor map at an address. Raises EmulatorError for a map that breaks a rule.

    >>> from layoutgemm.dtypes import dtype
    >>> tmap = TensorMap(dtype("bf16"), (1000, 900), (2048,), (32, 8), (1, 1), "128B")
    >>> [hex(word) for word in struct.unpack("<32I", encode(tmap, 0x7FFF12345600))[:3]]
    ['0x12345600', '0x7fff', '0x46510']
    >>> decode(encode(tmap, 0x7FFF12345600)) == (tmap, 0x7FFF12345600)
    True
    """
    _refuse(broken(tmap, address))
    words = _shared_words(tmap, address)
    for i, extent in enumerate(tmap.box[1:]):
        words[14] |= extent - 1 << 8 * i
    bits = tmap.kind.gmem_bits
    for extent, step in zip(tmap.box, tmap.steps, strict=True):
        bits *= extent // step
    words[16] = bits // 8
    words[18] = _SWIZZLE_WORD[tmap.swizzle]
    return struct.pack("<32I", *words)


def encode_im2col(tmap: Im2colMap, address: int) -> bytes:
    """The 128 bytes of an im2col map of a tensor at an address. Raises EmulatorError for a map that breaks a rule.

    >>> from layoutgemm.dtypes import dtype
    >>> tmap = Im2colMap(dtype("bf16"), (64, 9, 7, 2), (128, 1152, 8064), (-3, -1), (-1, 0), 64, 96, (1, 1, 2, 1))
    >>> [hex(word) for word in struct.unpack("<32I", encode_im2col(tmap, 0x7FFF12345600))[13:16]]
    ['0x3f000040', '0xfffffd', '0x5f']
    >>> decode_im2col(encode_im2col(tmap, 0x7FFF12345600)) == (tmap, 0x7FFF12345600)
    True
    """
    _refuse(broken_rules(tmap, address))
    words = _shared_words(tmap.tiled, address)
    words[2] |= _IM2COL
    bits = WIDE_BITS if tmap.wide else CORNER_BITS[tmap.rank - 2]
    words[_WIDE_WORD] = _WIDE.index(tmap.wide)
    for first, corners in ((0, tmap.lower), (16, tmap.upper)):
        for i, corner in enumerate(corners):
            words[14] |= (corner & (1 << bits) - 1) << first + bits * i
    words[15] = tmap.pixels - 1
    return struct.pack("<32I", *words)


def _refuse(faults: Iterator[RuleViolation]) -> None:
    """Raise EmulatorError with the first rule that a map breaks."""
    wrong = next(faults, None)
    if wrong is not None:
        raise EmulatorError(f"no tensor map can say this: {wrong.arithmetic} ({wrong.rule.source})")


def _shared_words(tmap: TensorMap, address: int) -> list[int]:
    """The 32 words with the fields that maps of both modes have."""
    if tmap.swizzle not in _SWIZZLE_WORD:
        raise EmulatorError(f"how a tensor map of {tmap.kind.name}, swizzle {tmap.swizzle}, is encoded is not known")
    (field, rounds), (mode, atom) = _FIELD[tmap.kind.name], _SWIZZLE_FIELDS[tmap.swizzle]
    words = [0] * (BYTES // 4)
    words[0], words[1] = address & 0xFFFFFFFF, address >> 32
    words[2] = (
        tmap.rank - 1 << 4 | field << 7 | mode << 13 | atom << 19 | OOB_FILL[tmap.oob_fill] << 15
        | rounds << 16 | L2_PROMOTION[tmap.l2_promotion] << 17
    )  # fmt: skip
    for i, stride in enumerate(tmap.strides):
        words[3 + i] = stride // STRIDE_UNIT & 0xFFFFFFFF
        words[7] |= (stride // STRIDE_UNIT >> 32) << 4 * i
    for i, extent in enumerate(tmap.extents):
        words[8 + i] = extent - 1
    for i, step in enumerate(tmap.steps):
        words[13] |= step - 1 << 3 * i
    words[13] |= tmap.box[0] - 1 << 24
    return words


@lru_cache(maxsize=256)
def decode(content: bytes) -> tuple[TensorMap, int]:
    """The tensor map and the tensor's address in 128 bytes. Raises EmulatorError for other bytes, or unknown fields."""
    words = struct.unpack("<32I", content)
    if words[2] & _IM2COL:
        raise EmulatorError("the tensor map is an im2col map, and the instruction has no .im2col")
    tmap, address = _decoded(words)
    box = [(words[14] >> 8 * i & 255) + 1 for i in range(tmap.rank - 1)]
    tmap = replace(tmap, box=(tmap.box[0], *box))
    _refuse_read(broken(tmap, address), address)
    return tmap, address


@lru_cache(maxsize=256)
def decode_im2col(content: bytes, wide: str = "") -> tuple[Im2colMap, int]:
    """The im2col map and the tensor's address in 128 bytes. Raises EmulatorError as `decode` does.

    wide  the mode of the instruction, and of the map: "" or one of `WIDE`
    """
    words = struct.unpack("<32I", content)
    tiled, address = _decoded(words)
    if not words[2] & _IM2COL:
        raise EmulatorError("the instruction is .im2col, and the tensor map is of a box, not of pixels")
    if not 3 <= tiled.rank <= 5:
        raise EmulatorError(f"an im2col map of rank {tiled.rank}: it has 3 to 5 dimensions")
    mode = _WIDE[words[_WIDE_WORD]] if words[_WIDE_WORD] < len(_WIDE) else ""
    if mode != wide:
        said = [f"im2col::{one}" if one else "im2col" for one in (wide, mode)]
        raise EmulatorError(f"the instruction is .{said[0]}, and the tensor map is of {said[1]}")
    bits, count = (WIDE_BITS, 1) if wide else (CORNER_BITS[tiled.rank - 2], tiled.rank - 2)
    lower, upper = (
        tuple([((words[14] >> first + bits * i) + half & 2 * half - 1) - half for i in range(count)])
        for first, half in ((0, 1 << bits - 1), (16, 1 << bits - 1))
    )
    tmap = Im2colMap(
        tiled.dtype, tiled.extents, tiled.strides, lower, upper, tiled.box[0], words[15] + 1, tiled.steps,
        tiled.swizzle, tiled.format, tiled.l2_promotion, tiled.oob_fill, wide,
    )  # fmt: skip
    _refuse_read(broken_rules(tmap, address), address)
    return tmap, address


def _refuse_read(faults: Iterator[RuleViolation], address: int) -> None:
    """Raise EmulatorError with the first rule that a map in memory breaks."""
    wrong = next(faults, None)
    if wrong is not None:
        raise EmulatorError(f"the tensor map at {address:#x} breaks a rule: {wrong.arithmetic} ({wrong.rule.source})")


def _decoded(words: Sequence[int]) -> tuple[TensorMap, int]:
    """The fields that maps of both modes have, and the address; the box has its innermost extent alone."""
    flags = words[2]
    if flags & ~_KNOWN or not any(words):
        raise EmulatorError(f"these 128 bytes are not a tensor map of a known format: word 2 is {flags:#x}")
    rank = (flags >> 4 & 7) + 1
    key = (flags >> 7 & 15, flags >> 16 & 1)
    if key in _FLUSHED:
        raise EmulatorError(f"a tensor map of {_FLUSHED[key]}, which flushes denormals, is not emulated")
    if flags >> 11 & 3:
        raise EmulatorError("an interleaved tensor map (NC/8HWC8 or NC/16HWC16) is not emulated")
    if key not in _FORMAT or rank > 5:
        raise EmulatorError(f"a tensor map of element format {key[0]} and rank {rank} is not known")
    swizzle = (flags >> 13 & 3, flags >> 19 & 3)
    if swizzle not in _SWIZZLES:
        raise EmulatorError(f"a tensor map of swizzle {swizzle[0]} with atom {swizzle[1]} is not known")
    name, kind = _FORMAT[key]
    units = [words[3 + i] | (words[7] >> 4 * i & 15) << 32 for i in range(rank - 1)]
    if NO_STRIDE in units:
        raise EmulatorError(
            f"the tensor map was encoded with a stride of dimension {units.index(NO_STRIDE) + 1} that is no multiple "
            f"of {STRIDE_UNIT} bytes, where each row has to begin"
        )
    strides = tuple([STRIDE_UNIT * count for count in units])
    tmap = TensorMap(
        dtype(kind),
        tuple([words[8 + i] + 1 for i in range(rank)]),
        strides,
        ((words[13] >> 24) + 1, *(1,) * (rank - 1)),
        # The engine ignores the innermost step: the driver's documentation, elementStrides.
        (1, *[(words[13] >> 3 * i & 7) + 1 for i in range(1, rank)]),
        _SWIZZLES[swizzle],
        _NAMED.get(name, ""),
        _PROMOTIONS[flags >> 17 & 3],
        _FILLS[flags >> 15 & 1],
    )
    return tmap, words[0] | words[1] << 32


# Fields that tensormap.replace names (PTX ISA, "tensormap.replace"), and how many dimensions those have that take one.
FIELDS = (
    "global_address", "rank", "box_dim", "global_dim", "global_stride", "element_stride", "elemtype",
    "interleave_layout", "swizzle_mode", "swizzle_atomicity", "fill_mode",
)  # fmt: skip
ORDERED = {"box_dim": 5, "global_dim": 5, "global_stride": 4, "element_stride": 5}
# .elemtype -> (field of the format, rounding).
_ELEMENTS = {**{n: (n, 0) for n in range(11)}, 11: (7, 1), 12: (8, 1), 13: (11, 0), 14: (12, 0), 15: (13, 0)}


def replaced(content: bytes, name: str, dimension: int, value: int) -> bytes:
    """The 128 bytes with one field replaced, in tensormap.replace's encoding. Raises EmulatorError.

    .rank is given as one less; strides are of dimension + 1, in bytes (NVIDIA/cutlass, cute/arch/copy_sm90_desc.hpp:
    since CUDA 12.5). Whether the map breaks a rule is seen when it is used.
    """
    words = list(struct.unpack("<32I", content))

    def put(word: int, low: int, bits: int, field: int) -> None:
        if not 0 <= field < 1 << bits:
            raise EmulatorError(f"tensormap.replace.{name} with {value}: it does not fit")
        words[word] = words[word] & ~(((1 << bits) - 1) << low) | field << low

    if name == "global_address":
        put(0, 0, 32, value & 0xFFFFFFFF)
        put(1, 0, 32, value >> 32)
    elif name == "rank":
        put(2, 4, 3, value if value < 5 else -1)
    elif name == "box_dim":
        put(*((13, 24) if dimension == 0 else (14, 8 * (dimension - 1))), 8, value - 1)
    elif name == "global_dim":
        put(8 + dimension, 0, 32, (value or 1 << 32) - 1)  # as an H200 does for 0; no copy may use it
    elif name == "global_stride":
        put(3 + dimension, 0, 32, value // STRIDE_UNIT & 0xFFFFFFFF if value % STRIDE_UNIT == 0 else -1)
        put(7, 4 * dimension, 4, value // STRIDE_UNIT >> 32)
    elif name == "element_stride":
        put(13, 3 * dimension, 3, value - 1)
    elif name == "elemtype":
        if value not in _ELEMENTS:
            raise EmulatorError(f"tensormap.replace.elemtype with {value}: how a map says this is not known")
        field, rounds = _ELEMENTS[value]
        put(2, 7, 4, field)
        put(2, 16, 1, rounds)
    else:
        low, bits = {
            "interleave_layout": (11, 2), "swizzle_mode": (13, 2), "swizzle_atomicity": (19, 2), "fill_mode": (15, 1),
        }[name]  # fmt: skip
        put(2, low, bits, value)
    return struct.pack("<32I", *words)


def from_driver(
    kind: int, address: int, dims: Sequence[int], strides: Sequence[int], box: Sequence[int], steps: Sequence[int],
    interleave: int, swizzle: int, promotion: int, fill: int,
) -> bytes:  # fmt: skip
    """The map's bytes from cuTensorMapEncodeTiled's arguments, enumerators as numbers. Raises EmulatorError."""
    element, named = _enumerators(kind, interleave, swizzle, promotion, fill)
    return encode(TensorMap(element, tuple(dims), tuple(strides), tuple(box), (1, *steps[1:]), *named), address)


def from_driver_im2col(
    kind: int, address: int, dims: Sequence[int], strides: Sequence[int], lower: Sequence[int], upper: Sequence[int],
    channels: int, pixels: int, steps: Sequence[int], interleave: int, swizzle: int, promotion: int, fill: int,
) -> bytes:  # fmt: skip
    """The map's bytes from cuTensorMapEncodeIm2col's arguments, enumerators as numbers. Raises EmulatorError."""
    element, named = _enumerators(kind, interleave, swizzle, promotion, fill)
    tmap = Im2colMap(
        element, tuple(dims), tuple(strides), tuple(lower), tuple(upper), channels, pixels, (1, *steps[1:]), *named
    )
    return encode_im2col(tmap, address)


def _enumerators(
    kind: int, interleave: int, swizzle: int, promotion: int, fill: int
) -> tuple[DType, tuple[str, str, str, str]]:
    """The element type, and a map's last four fields, from the driver's numbers. Raises EmulatorError."""
    if interleave:
        raise EmulatorError("an interleaved tensor map (NC/8HWC8 or NC/16HWC16) is not emulated")
    for what, value, known in (("type", kind, _TYPES), ("swizzle", swizzle, _MODES), ("L2 promotion", promotion,
        _PROMOTIONS), ("fill", fill, _FILLS)):  # fmt: skip
        if value not in known:
            raise EmulatorError(f"a tensor map of {what} {value} is not known")
    name, element = _TYPES[kind]
    return dtype(element), (_MODES[swizzle], _NAMED.get(name, ""), _PROMOTIONS[promotion], _FILLS[fill])
