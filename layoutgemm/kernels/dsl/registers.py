"""The bridge's stores of registers. Conversion in pairs, stmatrix, stores to shared and to global memory.

Sources: PTX ISA, "cvt", "stmatrix", "st".
"""

from __future__ import annotations

from collections.abc import Sequence

import cutlass.cute as cute
from cutlass import Boolean, Float32, Int8, Int16, Int32, Int64, Numeric
from cutlass.experimental import primitives

from layoutgemm.dtypes import DType, f16
from layoutgemm.errors import PlanError

from .ampere import store_part, store_vector
from .types import assembly, element_type, raw

# cvt of two f32 into one register, the second operand in the low half; fp8 saturates, as its conversions do in torch
_PAIRS = {
    "bf16": ("cvt.rn.bf16x2.f32", 32),
    "f16": ("cvt.rn.f16x2.f32", 32),
    "e4m3": ("cvt.rn.satfinite.e4m3x2.f32", 16),
    "e5m2": ("cvt.rn.satfinite.e5m2x2.f32", 16),
}


def _convert_pair(low: Float32, high: Float32, name: str, bits: int) -> Int32 | Int16:
    result, register = (Int32, "=r") if bits == 32 else (Int16, "=h")
    operands = [Float32(value) for value in (high, low)]
    return assembly(f"{name} $0, $1, $2;", f"{register},f,f", operands, (result,), pure=True)[0]


def convert_pair(low: Float32, high: Float32, dtype: DType) -> Int32 | Int16:
    """Two f32 values as neighbours of a narrower type, `low` at the lower address. 32 bits, or 16 for 8-bit types.

    Rounds to nearest even; e4m3 and e5m2 saturate at their largest finite value.
    """
    if dtype.name not in _PAIRS:
        raise PlanError(f"no conversion of pairs to {dtype}; there are {', '.join(_PAIRS)}")
    return _convert_pair(low, high, *_PAIRS[dtype.name])


def join(values: Sequence[Float32], dtype: DType) -> Int32:
    """32 bits of two or four f32 values, rounded as by `convert_pair`, the first one lowest."""
    pairs = [convert_pair(low, high, dtype) for low, high in zip(values[::2], values[1::2], strict=True)]
    if len(pairs) == 1:
        return Int32(pairs[0])
    return join_pairs(*pairs)


def join_pairs(low: Int16, high: Int16) -> Int32:
    """32 bits of two `convert_pair` results of 8-bit values."""
    return assembly("mov.b32 $0, {$1, $2};", "=r,h,h", [low, high], (Int32,), pure=True)[0]


def floats_of(word: Int32, dtype: DType) -> list[Float32]:
    """The f32 values of a word, as `join` has them. Four of e4m3 or e5m2, two of bf16 or f16, or one f32.

    Raises PlanError for another type.
    """
    if dtype.name == "f32":
        return [word.bitcast(Float32)]
    if dtype.name == "bf16":
        return [(word << 16).bitcast(Float32), (word & Int32(-65536)).bitcast(Float32)]
    if dtype.name in ("e4m3", "e5m2"):
        pairs = assembly(
            "{ .reg .b16 l; .reg .b16 h; mov.b32 {l, h}, $2; "
            f"cvt.rn.f16x2.{dtype.name}x2 $0, l; cvt.rn.f16x2.{dtype.name}x2 $1, h; }}",
            "=r,=r,r", [word], (Int32, Int32), pure=True,
        )  # fmt: skip
        return [x for pair in pairs for x in floats_of(pair, f16)]
    if dtype.name != "f16":
        raise PlanError(f"a word of {dtype}: floats_of takes e4m3, e5m2, bf16, f16 and f32")
    return assembly(
        "{ .reg .b16 l; .reg .b16 h; mov.b32 {l, h}, $2; cvt.f32.f16 $0, l; cvt.f32.f16 $1, h; }",
        "=f,=f,r", [word], (Float32, Float32), pure=True,
    )  # fmt: skip


def store_matrices(address: cute.Pointer, registers: Sequence[Int32], transpose: bool = False) -> None:
    """stmatrix of 1, 2 or 4 matrices of 8x8 16-bit elements. Lane i gives the address of row i % 8 of matrix i // 8."""
    order = primitives.MMALayout.COL if transpose else primitives.MMALayout.ROW
    primitives.stmatrix(raw(address), list(registers), order)


def store_shared(address: Int32, values: Sequence[Numeric]) -> None:
    """st.shared of one 8-, 16- or 32-bit value or a vector. A vector has 2 or 4 32-bit values; `address` is an Int32 in
    bytes."""
    kinds = {8: ("b8", "h"), 16: ("b16", "h"), 32: ("b32", "r")}
    width, register = kinds[values[0].width]
    values = [value.bitcast(Int32) if isinstance(value, Float32) else value for value in values]
    values = [Int16(value) if width == "b8" else value for value in values]
    vector = "" if len(values) == 1 else f".v{len(values)}"
    names = ", ".join(f"${i + 1}" for i in range(len(values)))
    assembly(
        f"st.shared{vector}.{width} [$0], {{{names}}};",
        ",".join(["r", *[register] * len(values), "~{memory}"]),
        [Int32(address), *values],
    )


def split_pair(pair: Sequence[Numeric], dtype: DType) -> tuple[Numeric, Numeric]:
    """The two values of a `convert_pair` result, or of a pair of f32."""
    if len(pair) == 2:
        return pair[0], pair[1]
    half, kind = (Int16, Int16) if dtype.bits == 16 else (Int8, Int8)
    return kind(half(pair[0])), kind(half(pair[0] >> dtype.bits))


def number(value: Numeric) -> Float32:
    """An accumulator's value, f32 or i32, as f32. Rounded to nearest, which is exact below 2**24."""
    return value if isinstance(value, Float32) else value.to(Float32)


def as_floats(values: Sequence[Numeric]) -> list[Float32]:
    """32-bit registers, f32 or i32, as f32 registers of the same bits, for `send`."""
    return [value if isinstance(value, Float32) else value.bitcast(Float32) for value in values]


def from_floats(values: Sequence[Numeric], dtype: DType) -> list[Numeric]:
    """f32 registers as values of an accumulator's type with the same bits: what `load_shared` brings."""
    kind = element_type(dtype)
    return [value if kind is Float32 else value.bitcast(kind) for value in values]


def remote(pointer: cute.Pointer, block: Int32) -> Int32:
    """mapa: an address of the same place in another block's shared memory. The address is an Int32, the block is
    `block` of the cluster."""
    text, operands = "mapa.shared::cluster.u32 $0, $1, $2;", [Int32(pointer.toint()), Int32(block)]
    return assembly(text, "=r,r,r", operands, (Int32,), pure=True)[0]


def store_remote(address: Int32, value: Float32) -> None:
    """st.shared::cluster of one f32 to another block's shared memory; a `remote` address."""
    assembly("st.shared::cluster.f32 [$0], $1;", "r,f,~{memory}", [Int32(address), Float32(value)])


def send(address: Int32, values: Sequence[Numeric], barrier: Int32) -> None:
    """st.async of four f32 to another block's shared memory, whose mbarrier counts their bytes. `remote` addresses."""
    assembly(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [$0], {$1, $2, $3, $4}, [$5];",
        "r,f,f,f,f,r,~{memory}",
        [Int32(address), *map(Float32, values), Int32(barrier)],
    )


def load_shared(pointer: cute.Pointer) -> list[Float32]:
    """ld.shared.v4.f32: four neighbours."""
    text, operands = "ld.shared.v4.f32 {$0, $1, $2, $3}, [$4];", [Int32(pointer.toint())]
    return assembly(text, "=f,=f,=f,=f,r,~{memory}", operands, (Float32,) * 4)


def store_element(address: Int64, value: Numeric, dtype: DType) -> None:
    """Store one accumulator value at a global address in bytes, converted to `dtype` with round-to-nearest-even.

    A 64-bit address, because CuTe layouts count in 32 bits and a matrix may have more than 2**31 elements.
    """
    target = element_type(dtype)
    pointer = cute.make_ptr(target, address, cute.AddressSpace.gmem, assumed_align=dtype.bytes)
    cute.make_tensor(pointer, cute.make_layout(1))[0] = value.to(target)


def store_neighbours(address: Int64, low: Numeric, high: Numeric, dtype: DType) -> None:
    """Store two values as neighbours of `dtype` in one instruction. The address in bytes is a multiple of both's."""
    if dtype.bits == 32:
        store_vector(address, [x.bitcast(Int32) if isinstance(x, Float32) else x for x in (low, high)])
    elif dtype.bits == 16:
        store_vector(address, [convert_pair(low, high, dtype)])
    else:
        store_part(address, Int32(convert_pair(low, high, dtype)), 0, 2 * dtype.bits)


def _store_two(address: Int64, low: Numeric, high: Numeric) -> None:
    assembly("st.global.v2.f32 [$0], {$1, $2};", "l,f,f,~{memory}", [Int64(address), Float32(low), Float32(high)])


@cute.jit
def store_pair(address: Int64, low: Float32, high: Float32, room: Int32, aligned: Boolean) -> None:
    """Store the first `room` (2, 1 or 0) of two f32 neighbours of a row.

    `aligned` says that the address is a multiple of 8: then both go in one 64-bit store.
    """
    if aligned and room > 1:
        _store_two(address, low, high)
    else:
        if room > 0:
            _store_one(address, low)
        if room > 1:
            _store_one(address + 4, high)


def _store_one(address: Int64, value: Numeric) -> None:
    cute.make_tensor(cute.make_ptr(Float32, address, cute.AddressSpace.gmem, assumed_align=4), cute.make_layout(1))[
        0
    ] = value
