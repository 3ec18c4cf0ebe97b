"""The bridge's conversions between wider floats and 8-bit ones. Loads of up to 16 bytes, words of four values.

Sources: PTX ISA, "ld", "st", "cvt", "mov", "max".
"""

from __future__ import annotations

from collections.abc import Sequence

from cutlass import Boolean, Float32, Int32, Int64

from ...dtypes import DType
from .ampere import load_element
from .types import assembly
from .warp import load_vector

_PAIRS = {"e4m3": "cvt.rn.satfinite.e4m3x2.f32", "e5m2": "cvt.rn.satfinite.e5m2x2.f32"}


def load_bytes(address: Int64, inside: Boolean, count: int) -> list[Int32]:
    """ld.global of 16, 8, 4 or 2 bytes as words, the last with zeros above. Zeros, and no access, if not inside."""
    if count == 16:
        return load_vector(address, inside)
    if count == 2:
        return [load_element(address, inside, 16)]
    names, zeros = ("$0", "mov.b32 $0, 0;") if count == 4 else ("{$0, $1}", "mov.b32 $0, 0; mov.b32 $1, 0;")
    words = count // 4
    kind = "ld.global.b32" if words == 1 else "ld.global.v2.b32"
    return assembly(
        f"{{ .reg .pred p; setp.ne.b32 p, ${words + 1}, 0; {zeros} @p {kind} {names}, [${words}]; }}",
        ",".join(["=&r"] * words + ["l", "r"]),
        [Int64(address), Int32(inside)],
        (Int32,) * words,
    )


def store_words(address: Int64, words: Sequence[Int32], inside: Boolean) -> None:
    """st.global of one or two words, aligned to their size, where `inside` holds."""
    names = ", ".join(f"${i + 1}" for i in range(len(words)))
    target, at = ("b32", names) if len(words) == 1 else ("v2.b32", f"{{{names}}}")
    assembly(
        f"{{ .reg .pred p; setp.ne.b32 p, ${len(words) + 1}, 0; @p st.global.{target} [$0], {at}; }}",
        ",".join(["l", *["r"] * len(words), "r", "~{memory}"]),
        [Int64(address), *words, Int32(inside)],
    )


def four_values(values: Sequence[Float32], dtype: DType) -> Int32:
    """Four f32 as neighbours of an 8-bit type. Rounded to nearest even, saturating, NaN as 0x7f."""
    name = _PAIRS[dtype.name]
    return assembly(
        f"{{ .reg .b16 l; .reg .b16 h; {name} l, $2, $1; {name} h, $4, $3; mov.b32 $0, {{l, h}}; }}",
        "=r,f,f,f,f", list(map(Float32, values)), (Int32,), pure=True,
    )[0]  # fmt: skip


def magnitude(x: Float32) -> Float32:
    """|x|."""
    return assembly("abs.f32 $0, $1;", "=f,f", [Float32(x)], (Float32,), pure=True)[0]
