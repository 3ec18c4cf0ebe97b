"""Canonical layouts of matrix descriptors, with the two byte offsets as strides.

A descriptor holds a swizzle mode and two offsets, and the instruction knows whether the operand is K- or MN-major.
Together they are one layout (mn, k) -> offset, followed by the XOR of the mode on address bits. With T the elements of
16 bytes and W those of a span:

    K-major, none          ((8,m),(T,k)) : ((T,stride),(1,leading))
    K-major, swizzled      ((8,m),W)     : ((W,stride),1)
    MN-major, none         ((T,m),(8,k)) : ((1,stride),(T,leading))
    MN-major, swizzled     ((W,m),(8,k)) : ((1,leading),(W,stride))
    MN-major, 32-byte atom ((W,m),(4,k)) : ((1,leading),(W,stride))

In the third the two offsets change places against the fourth. Sources: cute/atom/mma_traits_sm90_gmma.hpp and
mma_traits_sm100.hpp; PTX ISA, "Canonical Layouts" and "Strides" of wgmma and of tcgen05. For wgmma the first four are
also what an H200 did, element by element, for strides of any multiple of 16 (tests/vectors/h200_operand_reads.json).
"""

from __future__ import annotations

from typing import Any

from ...arguments import shown
from ...dtypes import DType
from ...errors import DescriptorError
from ...layouts import Layout
from ...layouts.int_tuple import Pair
from .tile import CHUNK_BITS, MAJORS, slot_bits, swizzle_mode, swizzle_of


def canonical_modes(major: str, mode_name: str, bits: int, leading: object, stride: object) -> Pair:
    """The dimensions mn and k of a canonical layout, each with its repetition's stride. Each is ((inner extent,
    stride), (stride of the repetition)).

    The one place where the five layouts are written down. leading and stride are in elements (slots) of `bits`, and may
    be texts. Raises DescriptorError for the layouts that do not exist.
    """
    mode = swizzle_mode(mode_name)
    if major not in MAJORS:
        raise DescriptorError(f"major is {shown(major)}; it is 'K' or 'MN'")
    width = mode.span * 8 // bits
    chunk = CHUNK_BITS // bits
    if major == "K":
        if mode.rows != 8:
            raise DescriptorError(f"swizzle {mode_name} has no K-major canonical layout")
        # swizzled, the span holds all of the instruction's depth, and `leading` has nothing to repeat
        along_k = ((chunk, 1), leading) if mode_name == "none" else ((width, 1), None)
        return ((mode.rows, width), stride), along_k
    if mode_name == "none":
        leading, stride = stride, leading
    return ((width, 1), leading), ((mode.rows, width), stride)


def canonical_layout(
    major: str, mode_name: str, bits: int, extent: tuple[int, int], leading: int, stride: int
) -> Layout:
    """(mn, k) -> offset in elements of `bits`, before the swizzle, for at least `extent` elements.

    leading, stride  the descriptor's two offsets, in bytes. An extent that is no multiple of the atom is rounded up: an
                     instruction of N = 8 reads a part of a 64-wide atom.

    Raises DescriptorError when K-major elements lie beyond a swizzled span.

    >>> print(canonical_layout("K", "128B", 16, (64, 16), 16, 1024))
    ((8,8),64):((64,512),1)
    >>> print(canonical_layout("MN", "none", 16, (64, 16), 128, 1024))
    ((8,8),(8,2)):((1,512),(8,64))
    """
    shape: list[Any] = []
    strides: list[Any] = []
    slots = (leading * 8 // bits, stride * 8 // bits)
    for name, size, (inner, outer) in zip(
        ("mn", "k"), extent, canonical_modes(major, mode_name, bits, *slots), strict=True
    ):
        count = -(-size // inner[0])
        if outer is None:
            if count > 1:
                raise DescriptorError(
                    f"{size} elements along {name} are {size * bits // 8} bytes, wider than the {inner[0] * bits // 8}-"
                    f"byte span of swizzle {mode_name}"
                )
            shape.append(inner[0])
            strides.append(inner[1])
        else:
            shape.append((inner[0], count))
            strides.append((inner[1], outer))
    return Layout(tuple(shape), tuple(strides))


def canonical_notation(major: str, mode_name: str, dtype: DType, packing: str, leading: int, stride: int) -> str:
    """The canonical layout in CuTe's notation, with m and k for the instruction's repetitions.

    >>> from layoutgemm.dtypes import bf16
    >>> canonical_notation("MN", "64B", bf16, "packed", 4096, 512)
    'S<2,4,3>[bytes] o ((32,m),(8,k)):((1,2048),(32,256)) x bf16'
    """
    bits = slot_bits(dtype, packing)
    shape, strides = [], []
    for letter, (inner, outer) in zip(
        "mk", canonical_modes(major, mode_name, bits, leading * 8 // bits, stride * 8 // bits), strict=True
    ):
        shape.append(str(inner[0]) if outer is None else f"({inner[0]},{letter})")
        strides.append(str(inner[1]) if outer is None else f"({inner[1]},{outer})")
    stored = "" if packing == "packed" else f" ({packing})"
    return f"{swizzle_of(mode_name)} o ({','.join(shape)}):({','.join(strides)}) x {dtype}{stored}"
