"""Inputs and expected outputs of an example, in NumPy.

Inputs are small integers (and scales powers of two), so every sum is exact in any order. Results are compared bit by
bit after one rounding to the type of the output.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from layoutgemm.dtypes import dtype
from tests.emulator.official.examples import Example, Matrix, Number, Pointer, Scales, Shape

Array = npt.NDArray[Any]
KINDS = {"s8": "i8", "s32": "i32"}  # this library's names of types that PTX calls so
LARGEST = {"e4m3": 448.0, "e5m2": 57344.0}  # conversion saturates
BLOCK = 128  # of blockwise scales, and of the rows that a tile of scale factors has


def storage(values: Array, kind: str) -> Array:
    """Values -> the bits in memory, of the same shape (narrower than a byte: two elements of the last mode a byte)."""
    if kind in LARGEST:
        values = np.clip(values, -LARGEST[kind], LARGEST[kind])
    target = dtype({"tf32": "f32"}.get(kind, KINDS.get(kind, kind)))
    if kind == "u8":
        values = values.astype(np.int64) & 0xFF  # the conversion keeps the low bits
    bits = np.asarray(target.encode(values if target.kind == "float" else values.astype(np.int64)))
    if kind == "e2m1":
        packed = (bits[..., 0::2] | bits[..., 1::2] << 4).astype(np.uint8)
        # As much again lies behind it: who counts elements as bytes stays in memory that is there.
        room = np.zeros(2 * packed.size, dtype=np.uint8)
        room[: packed.size] = packed.reshape(-1)
        return room[: packed.size].reshape(packed.shape)
    return bits


@dataclass
class Tensor:
    """A tensor in memory: its bits, contiguous, with the slowest mode first.

    shape, strides  in elements, modes in the order of the host function
    values          what it holds, modes in that order; None for an output
    """

    name: str
    bits: Array
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    values: Array | None = None


@dataclass
class Inputs:
    """The tensors of one case by name, and what the output has to hold: bits in the layout of its tensor."""

    shape: Shape
    tensors: dict[str, Tensor]
    expected: dict[str, Array] = field(default_factory=dict)
    ulps: int = 0  # by how many steps of the last bit a result may differ, where the epilogue is approximate

    def wrong(self) -> str | None:
        """The first wrong element of an output, or None."""
        for name, expected in self.expected.items():
            got = self.tensors[name].bits
            off = np.abs(_ordered(got) - _ordered(expected)) if self.ulps else got != expected
            different = np.argwhere(off > self.ulps)
            if len(different):
                at = tuple(different[0].tolist())
                count = f"{len(different)} of {got.size} elements of {name} are wrong"
                return f"{count}, the first at {at}: {got[at]:#x} for {expected[at]:#x}"
        return None


def _ordered(bits: Array) -> Array:
    """Bits of 16-bit floats as integers in the order of their values."""
    return np.where(bits >> 15, -(bits & 0x7FFF).astype(np.int64), bits.astype(np.int64))


def _extents(modes: str, shape: Shape) -> tuple[int, ...]:
    m, n, k, batches = shape
    sizes = {"m": m, "n": n, "k": k, "l": batches, "1": 1, "K": -(-k // BLOCK), "N": -(-n // BLOCK)}
    return tuple(sizes[mode] for mode in modes) or (1,)


def _order(matrix: Matrix) -> list[int]:
    """The modes from the slowest to the contiguous one."""
    first = [i for i, mode in enumerate(matrix.modes) if mode == "l"]
    rest = [i for i, mode in enumerate(matrix.modes) if mode not in ("l", matrix.major)]
    return [*first, *rest, *[i for i, mode in enumerate(matrix.modes) if mode == matrix.major]] or [0]


def _tensor(matrix: Matrix, extents: tuple[int, ...], values: Array | None) -> Tensor:
    order = _order(matrix)
    strides = [0] * len(extents)
    step = 1
    for i in reversed(order):
        strides[i] = step
        step *= extents[i]
    laid = np.full([extents[i] for i in order], np.nan) if values is None else np.transpose(values, order)
    if values is None:
        kind = dtype({"tf32": "f32"}.get(matrix.dtype, KINDS.get(matrix.dtype, matrix.dtype)))
        bits = np.full(laid.shape, (1 << kind.bits) - 1, dtype=kind.storage)
    else:
        bits = storage(laid, matrix.dtype)
    return Tensor(
        matrix.name, bits if matrix.dtype == "e2m1" else np.ascontiguousarray(bits), extents, tuple(strides), values
    )


def _scales(scales: Scales, shape: Shape, random: np.random.Generator) -> Tensor:
    """Powers of two; in memory (l, rows / 128, k / (4 vector), 32, 4, 4), of which row 32 i + j is at [j, i]."""
    m, n, k, batches = shape
    rows, columns = (m if scales.rows == "m" else n), -(-k // scales.vector)
    tiles = (batches, -(-rows // 128), -(-columns // 4), 32, 4, 4)
    values = 2.0 ** random.integers(-1, 2, tiles)
    modes = (32, 4, tiles[1], 4, tiles[2], batches)
    strides = (16, 4, 512 * tiles[2], 1, 512, 512 * tiles[1] * tiles[2])
    plain = values.transpose(1, 4, 3, 2, 5, 0).reshape(tiles[1] * 128, tiles[2] * 4, batches)[:rows]
    return Tensor(scales.name, storage(values, scales.dtype), modes, strides, plain)


def inputs(example: Example, shape: Shape, seed: int = 0) -> Inputs:
    """Random inputs of one shape (m, n, k, l), and the example's expected outputs."""
    random = np.random.default_rng([seed, *shape])
    tensors: dict[str, Tensor] = {}
    output = "d" if any(matrix.name == "d" for matrix in example.matrices) else "c"
    for argument in example.arguments:
        of = argument.of if isinstance(argument, Pointer) else argument
        if isinstance(of, Scales):
            tensors[of.name] = _scales(of, shape, random)
        elif isinstance(of, Matrix):
            extents = _extents(of.modes, shape)
            values: Array | None = None
            if of.name in ("a", "b", "c") and of.name != output:
                low = 0 if of.dtype == "u8" else -2
                values = random.integers(low, 3, extents).astype(np.float64)
            elif of.name in ("sfa", "sfb"):
                values = 2.0 ** random.integers(-1, 2, extents)
            elif of.name == "scale_a":
                values = np.full(extents, example.scale)
            elif of.name in ("scale_b", "amax"):
                values = np.full(extents, float(of.name == "scale_b"))
            tensors[of.name] = _tensor(of, extents, values)
    result = Inputs(shape, tensors, ulps=64 if "gelu" in example.tags else 0)
    target = next(matrix for matrix in example.matrices if matrix.name == output)
    product = _product(example, tensors, shape)
    if target.modes == "mn":
        product = product[:, :, 0]
    result.expected[output] = storage(np.transpose(product, _order(target)), target.dtype)
    if "amax" in tensors:
        result.expected["amax"] = storage(np.abs(product).max().reshape(1), "f32")
    return result


def _product(example: Example, tensors: dict[str, Tensor], shape: Shape) -> Array:
    """scale * A B^T, and whatever the example's epilogue makes of it: modes (m, n, l)."""
    m, n, k, _ = shape
    a, b = (_whole(tensors[name]) for name in "ab")
    for name, rows in (("sfa", m), ("sfb", n)):
        if name in tensors:
            scale = _whole(tensors[name])
            across = BLOCK if scale.shape[0] < rows else 1
            vector = next((x.vector for x in _all_scales(example) if x.name == name), BLOCK)
            spread = np.repeat(np.repeat(scale, across, axis=0)[:rows], vector, axis=1)[:, :k]
            a, b = (a * spread, b) if name == "sfa" else (a, b * spread)
    numbers = {x.name: x.value for x in example.arguments if isinstance(x, Number)}
    c = np.einsum("mkl,nkl->mnl", a, b, optimize=True) * example.scale
    if "alpha" in numbers:
        c = numbers["alpha"] * c + numbers["beta"] * _whole(tensors["c"])
    if "gelu" in example.tags:
        c = 0.5 * c * (1 + np.frompyfunc(functools.partial(math.erf), 1, 1)(c / math.sqrt(2)).astype(np.float64))
    return c


def _all_scales(example: Example) -> list[Scales]:
    found = [a.of if isinstance(a, Pointer) else a for a in example.arguments]
    return [a for a in found if isinstance(a, Scales)]


def _whole(tensor: Tensor) -> Array:
    """The values with an l mode."""
    assert tensor.values is not None, tensor.name
    return tensor.values if tensor.values.ndim == 3 else tensor.values[:, :, None]
