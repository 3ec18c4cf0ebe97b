"""Matrices in the registers of warps: an atom's thread-value layout as index arrays, evaluated once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ....atoms.mma.base import MmaAtom
from ....dtypes import DType
from ...ptx.values import LANES, Lanes, Value

Indices = npt.NDArray[np.int64]


def words_of(values: Sequence[Value]) -> npt.NDArray[np.uint64]:
    """Values of registers as [register, lane]. Raises TypeError for a missing value."""
    out = np.empty((len(values), LANES), dtype=np.uint64)
    if all(type(value) is int for value in values):  # the same in all lanes
        out[:] = np.array(values, dtype=np.uint64)[:, None]
        return out
    for row, value in zip(out, values, strict=True):
        row[:] = value
    return out


@dataclass(frozen=True, eq=False)
class RegisterFragment:
    """One operand of an atom in the registers of its warps.

    dtype      of an element
    shape      (rows, columns) of the matrix
    registers  32-bit registers of a thread
    register   value -> its register; low: value -> its lowest bit there
    index      warp -> [value, lane] -> place in the matrix, row by row
    rows       warp -> the rows that it holds
    """

    dtype: DType
    shape: tuple[int, int]
    registers: int
    register: Indices
    low: Indices
    index: tuple[Indices, ...]
    rows: tuple[Indices, ...]

    @classmethod
    def of(cls, atom: MmaAtom, operand: str) -> RegisterFragment:
        """The fragment of operand "A", "B" or "C" of an atom."""
        layout, (rows, columns) = atom.layout(operand), atom.tile_of(operand)
        values, threads = layout[1].size, layout[0].size
        element = np.asarray(layout.offsets()).reshape(values, threads)
        places = element % rows * columns + element // rows
        index = tuple([np.ascontiguousarray(part) for part in np.split(places, threads // LANES, axis=1)])
        slots = np.array([atom.slot(operand, value) for value in range(values)])
        return cls(
            atom.dtype_of(operand),
            (rows, columns),
            atom.registers(operand),
            slots[:, 0],
            slots[:, 1],
            index,
            tuple([np.unique(part // columns) for part in index]),
        )

    def put(self, matrix: npt.NDArray[np.float32 | np.int64], warp: int, values: Sequence[Value]) -> None:
        """Decode a warp's registers into the matrix."""
        bits = words_of(values)[self.register] >> self.low[:, None].astype(np.uint64)
        mask = np.uint64((1 << self.dtype.bits) - 1)
        matrix.reshape(-1)[self.index[warp]] = self.dtype.decode(bits & mask)

    def take(self, matrix: npt.NDArray[np.float32 | np.int64], warp: int) -> list[Lanes]:
        """The values of a warp's registers for its part of the matrix."""
        part = matrix.reshape(-1)[self.index[warp]]
        if self.dtype.kind == "float":
            with np.errstate(all="ignore"):
                bits = self.dtype.encode(part).astype(np.int64)
        else:
            bits = part.astype(np.int64) & (1 << self.dtype.bits) - 1
        if self.dtype.bits == 32:
            return list(bits)
        out = np.zeros((self.registers, LANES), dtype=np.int64)
        for low in np.unique(self.low).tolist():
            chosen = self.low == low
            out[self.register[chosen]] |= bits[chosen] << low
        return list(out)
