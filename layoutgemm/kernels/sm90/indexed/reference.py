"""The NumPy executor's share of indexed rows. Copies to a workspace or into a stage, and stores of a chunk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ....atoms.copy.base import VECTOR_BYTES, WARP
from ....checks.budgets import WARPGROUP
from ...indexed.rows import OUT_ROWS, ROWS
from ...plan import present
from ...run.hardware_model import GlobalMatrix, Output, SharedBytes, unwritten
from ...store import RowVectors, StoreChunk
from .row_copy import copied_shape

if TYPE_CHECKING:
    from ..plan import Sm90Plan


def rows_found(
    plan: Sm90Plan, given: dict[str, Any], name: str, numbers: npt.NDArray[np.int64], end: int, matrix: int
) -> npt.NDArray[np.int64]:
    """The rows of A or of C that are rows `numbers` of the product. -1 from row `end` on, and outside of the matrix.

    matrix  of a batch, whose indices lie one matrix behind the other
    """
    rows = plan.rows_of_a if name == ROWS else plan.rows_of_c
    found = given[name][matrix * plan.m + np.minimum(numbers, plan.m - 1)]
    return np.where((numbers < end) & (found >= 0) & (found < rows), found, -1)


def copied_matrix(plan: Sm90Plan, a: GlobalMatrix, given: dict[str, Any]) -> GlobalMatrix:
    """The workspace as the copy kernel leaves it. Of masked groups, rows that do not count are not written."""
    matrices, rows, pitch = copied_shape(plan)
    bits, ragged = unwritten(plan.a.dtype, (matrices, rows, pitch)), plan.ragged
    indices, last = np.reshape(given[ROWS], (matrices, rows)), present(present(plan.indexed).gather).rows
    for matrix in range(matrices):
        counted = rows if ragged is None or not ragged.masked else min(max(int(given[ragged.name][matrix]), 0), rows)
        found = indices[matrix, :counted]
        inside = (found >= 0) & (found < last)
        first = matrix * a.pitch + np.where(inside, found, 0) * a.leading
        values = a.bits[first[:, None] + np.arange(plan.k)]
        bits[matrix, :counted, : plan.k] = np.where(inside[:, None], values, values.dtype.type(0))
    extents = (plan.k, rows, *[matrices] * (matrices > 1))
    return GlobalMatrix(bits.reshape(-1), pitch, extents, rows * pitch)


def gather_tile(
    plan: Sm90Plan, given: dict[str, object], a: GlobalMatrix, origin: dict[str, int], end: int, smem: SharedBytes,
    address: int,
) -> None:  # fmt: skip
    """A's K tile by the loader's threads, from the rows that the indices name."""
    copy, dtype, thread = plan.a.copy, plan.a.dtype, np.arange(WARPGROUP)
    elements, matrix = np.arange(VECTOR_BYTES // dtype.bytes), 0 if plan.joined_rows else origin["l"]
    for number in range(copy.passes):
        rows = rows_found(plan, given, ROWS, origin["m"] + np.asarray(copy.row(thread, number)), end, matrix)
        for span in range(copy.spans):
            first = origin["k"] + np.asarray(copy.element(thread, span))
            valid = np.asarray(copy.valid(plan.k - first, np.minimum, np.maximum))
            read = (rows[:, None] >= 0) & (elements * dtype.bytes < valid[:, None])
            source = np.where(read, matrix * a.pitch + rows[:, None] * a.leading + first[:, None] + elements, 0)
            bits = np.where(read, a.bits[source], a.bits.dtype.type(0))
            to = address + np.asarray(copy.byte(thread)) + copy.step(number, span)
            smem.write(to[:, None] + elements * dtype.bytes, bits, dtype)


def scatter_chunk(
    plan: Sm90Plan, given: dict[str, object], c: Output, chunk: StoreChunk, place: tuple[int, int, int], end: int,
    smem: SharedBytes, address: int,
) -> None:  # fmt: skip
    """A warp's chunk, in a buffer, to the rows that the indices name. `place`: its first row and column, and matrix."""
    scatter, dtype, lane = RowVectors(chunk.tile), plan.c.dtype, np.arange(WARP)
    elements, matrix = np.arange(scatter.width), 0 if plan.joined_rows else place[2]
    for number in range(scatter.passes):
        row, column = (np.asarray(x) for x in scatter.place(number, lane))
        row, column = row[row < chunk.tile.extent[0]], column[row < chunk.tile.extent[0]]
        rows = rows_found(plan, given, OUT_ROWS, place[0] + row, end, matrix)
        bits = smem.read(address + np.asarray(scatter.byte((row, column)))[:, None] + elements * dtype.bytes, dtype)
        columns = place[1] + column[:, None] + elements
        stored = (rows[:, None] >= 0) & (columns < plan.n)
        at = ((matrix * plan.rows_of_c + rows[:, None]) * c.leading + columns)[stored]
        c.matrix.bits[at] = bits[stored]
        np.add.at(c.times, at, 1)
