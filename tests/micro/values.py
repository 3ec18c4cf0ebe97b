"""Small integers as bits of number formats, and fragments as the registers that hold them.

Everything here goes through the atom's maps: a matrix element reaches the register that the thread-value layout names,
and a result is read back from where it says. Nothing is rounded: a value that a format has not is an error.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from layoutgemm.atoms import MmaAtom
from layoutgemm.atoms.mma.block_scales import provider
from layoutgemm.dtypes import DType

# Exponent bits, stored mantissa bits and exponent bias of the floats: IEEE 754, and the OCP formats of 8, 6 and 4 bits.
_FLOATS = {
    "f64": (11, 52, 1023), "f32": (8, 23, 127), "tf32": (8, 23, 127), "f16": (5, 10, 15), "bf16": (8, 7, 127),
    "e4m3": (4, 3, 7), "e5m2": (5, 2, 15), "e3m2": (3, 2, 3), "e2m3": (2, 3, 1), "e2m1": (2, 1, 1),
    "ue8m0": (8, 0, 127), "ue4m3": (4, 3, 7),
}  # fmt: skip


def encode(dtype: DType, values: npt.ArrayLike) -> npt.NDArray[np.uint64]:
    """Integers -> raw bits, exactly; raises ValueError for an integer that the format has not."""
    given = np.asarray(values, dtype=np.int64)
    table = {int(value): encode_one(dtype, int(value)) for value in np.unique(given)}
    keys = np.array(sorted(table), dtype=np.int64)
    bits = np.array([table[int(key)] for key in keys], dtype=np.uint64)
    return bits[np.searchsorted(keys, given)]


def encode_one(dtype: DType, value: int) -> int:
    if dtype.kind != "float":
        low = -(1 << (dtype.bits - 1)) if dtype.kind == "int" else 0
        if not low <= value < low + (1 << dtype.bits):
            raise ValueError(f"{dtype} has no {value}")
        return value & ((1 << dtype.bits) - 1)
    exponent_bits, mantissa_bits, bias = _FLOATS[dtype.name]
    if value == 0 and dtype.name != "ue8m0":
        return 0
    sign, size = int(value < 0), abs(value)
    exponent = size.bit_length() - 1
    fraction = (size << mantissa_bits) - (1 << (mantissa_bits + exponent))
    field = exponent + bias
    # The formats without infinities use their top exponent; no value here is near it.
    if value == 0 or fraction % (1 << exponent) or field >= 1 << exponent_bits or (sign and dtype.name[0] == "u"):
        raise ValueError(f"{dtype} has no {value}")
    return (sign << (exponent_bits + mantissa_bits)) | (field << mantissa_bits) | (fraction >> exponent)


def decode(dtype: DType, bits: npt.NDArray[np.uint64]) -> npt.NDArray[Any]:
    """Raw bits of an accumulator format -> values."""
    raw, real = {
        "f64": (np.uint64, np.float64), "f32": (np.uint32, np.float32), "f16": (np.uint16, np.float16),
        "i32": (np.uint32, np.int32),
    }[dtype.name]  # fmt: skip
    return bits.astype(raw).view(real).astype(np.float64)


def range_of(dtype: DType) -> tuple[int, int]:
    """The integers that random fragments are made of: low, high inclusive; every format has them exactly."""
    if dtype.bits == 1:
        return 0, 1
    return (0, 3) if dtype.kind == "uint" else (-2, 2)


def lanes(atom: MmaAtom, operand: str) -> npt.NDArray[np.int64]:
    """[product, lane of the group] -> lane of the warp or thread of the warpgroup. A quad pair has four products."""
    threads = atom.layout(operand)[0].size
    if atom.thread_ids is None:
        return np.arange(threads)[None, :]
    own = np.asarray(atom.thread_ids.offsets())
    return own[None, :] + 4 * np.arange(32 // threads)[:, None]


def products(atom: MmaAtom) -> int:
    """Independent products of one instruction: four for the quad pairs of a warp, else one."""
    return 1 if atom.thread_ids is None else 32 // atom.threads


def pack(atom: MmaAtom, operand: str, matrices: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
    """[case, product, row, column] integers -> [case, lane, register]."""
    layout = atom.layout(operand)
    cases, count, rows, columns = matrices.shape
    threads, values = layout[0].size, layout[1].size
    element = np.asarray(layout.offsets()).reshape(values, threads)
    bits = encode(atom.dtype_of(operand), matrices)
    flat = bits.transpose(0, 1, 3, 2).reshape(cases, count, rows * columns)
    place = lanes(atom, operand)
    registers = np.zeros((cases, place.size, atom.registers(operand)), dtype=np.uint64)
    wide = atom.element_bits(operand) == 64
    for value in range(values):
        register, low = atom.slot(operand, value)
        held = flat[:, :, element[value]]
        registers[:, place, register] |= (held & 0xFFFFFFFF) << np.uint64(low)
        if wide:
            registers[:, place, register + 1] |= held >> np.uint64(32)
    return registers.astype(np.uint32)


def unpack(atom: MmaAtom, operand: str, registers: npt.NDArray[np.uint32]) -> npt.NDArray[Any]:
    """[case, lane, register] -> [case, product, row, column] values, read at the places of the maps."""
    layout, (rows, columns) = atom.layout(operand), atom.tile_of(operand)
    threads, values = layout[0].size, layout[1].size
    element = np.asarray(layout.offsets()).reshape(values, threads)
    place, words = lanes(atom, operand), registers.astype(np.uint64)
    bits = atom.element_bits(operand)
    flat = np.zeros((len(words), len(place), rows * columns), dtype=np.uint64)
    for value in range(values):
        register, low = atom.slot(operand, value)
        held = words[:, place, register] >> np.uint64(low)
        if bits == 64:
            held |= words[:, place, register + 1] << np.uint64(32)
        flat[:, :, element[value]] = held if bits == 64 else held & np.uint64((1 << bits) - 1)
    matrices = flat.reshape(len(words), len(place), columns, rows).transpose(0, 1, 3, 2)
    return decode(atom.dtype_of(operand), np.ascontiguousarray(matrices))


def pack_scales(atom: MmaAtom, operand: str, factors: npt.NDArray[np.int64], byte_id: int, thread_id: int) -> Any:
    """[case, row, block] factors -> [case, lane, 1] metadata registers. Only the bytes that the selectors read are
    set."""
    assert atom.scale is not None
    registers = np.zeros((len(factors), 32, 1), dtype=np.uint32)
    bits = encode(atom.scale.dtype, factors).astype(np.uint32)
    for row in range(factors.shape[1]):
        for block in range(factors.shape[2]):
            lane, byte = provider(atom, operand, row, block, byte_id, thread_id)
            registers[:, lane, 0] |= bits[:, row, block] << np.uint32(8 * byte)
    return registers


def multiply(
    atom: MmaAtom,
    a: npt.NDArray[np.int64],
    b: npt.NDArray[np.int64],
    c: npt.NDArray[np.int64],
    scale_a: npt.NDArray[np.int64] | None = None,
    scale_b: npt.NDArray[np.int64] | None = None,
) -> npt.NDArray[np.float64]:
    """The instruction's exact result for [case, product, row, column] integers: A B^T + C, exact; i32 clamps or
    wraps."""
    left, right = a.astype(np.float64), b.astype(np.float64)
    if scale_a is not None and scale_b is not None and atom.scale is not None:
        left = left * np.repeat(scale_a, atom.scale.vector, axis=2)[:, None]
        right = right * np.repeat(scale_b, atom.scale.vector, axis=2)[:, None]
    exact = left @ right.swapaxes(2, 3)
    if ".xor." in atom.ptx:
        # popc(x ^ y) = popc(x) + popc(y) - 2 popc(x & y)
        exact = left.sum(3)[:, :, :, None] + right.sum(3)[:, :, None, :] - 2 * exact
    exact = exact + c
    if atom.c_dtype.name == "i32":
        span, half = 2.0**32, 2.0**31
        exact = np.clip(exact, -half, half - 1) if "satfinite" in atom.ptx else (exact + half) % span - half
    return np.asarray(exact)
