"""The swizzle that wrote a tile in shared memory against the one that reads it.

Every byte may be written and every access in order, and the values wrong: the writer and the reader put a row's 16-byte
chunks in different order. A tensor map and a descriptor name their swizzle. Threads name none. But the 8 rows of one
matrix of ldmatrix or stmatrix are a column of chunks, in the tile that TMA loads or stores, and in the global memory
that cp.async read. Where they are no column, and are one by another swizzle, the writer and the reader differ by it.
"""

from __future__ import annotations

from functools import cache
from itertools import combinations
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ...atoms.smem.tile import CHUNK_BYTES, swizzle_of
from ...atoms.tma.rules import MODES
from ...layouts.swizzle import Swizzle
from ..machine.memory import CtaSharedMemory, LoadedBox, TileBox

PERIOD = 1024  # bytes after which every swizzle repeats
ROWS = 8  # of a matrix
SAME = "One swizzle for the tensor map and for the threads' addresses keeps the rows."
Chunks = npt.NDArray[np.int64]


class OnFinding(Protocol):
    """A function that reports a finding of an operand. `orders`: its remedy, where its kind has none."""

    def __call__(self, kind: str, message: str, orders: str = "") -> None:
        """Report a finding."""


@cache
def _turned(swizzle: Swizzle) -> Chunks:
    """[chunk of a period] -> the chunk that the swizzle puts in its place; each swizzle is its own inverse."""
    return np.asarray(swizzle(np.arange(0, PERIOD, CHUNK_BYTES)) // CHUNK_BYTES)


def _turn(swizzle: Swizzle, chunks: Chunks) -> Chunks:
    within = chunks & PERIOD // CHUNK_BYTES - 1
    return chunks - within + _turned(swizzle)[within]


def _words(chunks: npt.NDArray[np.complex128]) -> npt.NDArray[np.uint64]:
    """The bits of 16-byte chunks."""
    return np.ascontiguousarray(chunks).view(np.uint64).reshape(-1, 2)


def check_operand(shared: CtaSharedMemory, swizzle: str, chunks: Chunks, report: OnFinding) -> None:
    """Report an operand that a descriptor reads in another swizzle than its writer's.

    It is reported where its values differ by the swizzle. A chunk from a load of the right mode excuses it: unused rows
    may lie in another tensor's tile. A tensor that was loaded without a swizzle may lie swizzled in global memory, so
    that is lint.

    swizzle  the descriptor's mode; "": its pattern begins elsewhere than at a multiple of `PERIOD`
    """
    if not swizzle:
        return
    lines = chunks[: len(chunks) // ROWS * ROWS][: ROWS * ROWS]
    if _crossed(shared, lines.reshape(-1, ROWS, chunks.shape[1]).swapaxes(1, 2).reshape(-1, ROWS), report, "its word"):
        return
    reads, first, last = swizzle_of(swizzle), int(chunks.min()), int(chunks.max())
    near = [box for box in reversed(shared.boxes.values()) if box.start <= last and first < box.end]
    if all(_alike(MODES[box.tile.swizzle].swizzle, reads) for box in near):
        return
    asked, wrong = np.unique(chunks), None
    taken = np.zeros(len(shared.chunks), dtype=bool)
    for box in near:
        read = ~taken[box.chunks] & np.isin(box.chunks, asked)
        taken[box.chunks] = True
        if not read.any():
            continue
        wrote = MODES[box.tile.swizzle].swizzle
        if _alike(wrote, reads):
            return
        if wrong is None and _moved(shared, box, read, wrote, reads):
            wrong = box
    if wrong is None:
        return
    plain = wrong.tile.swizzle == "none"
    report(
        "lint" if plain else "descriptor",
        f"it reads with swizzle {swizzle} what {wrong.text()} wrote with swizzle {wrong.tile.swizzle}: chunks of a row "
        "trade places",
        "One swizzle for the tensor map and the descriptor keeps the rows"
        + (", unless global memory holds the tile swizzled." if plain else "."),
    )


def _alike(one: Swizzle, other: Swizzle) -> bool:
    return one == other or one.bits == other.bits == 0


def _moved(
    shared: CtaSharedMemory, box: LoadedBox, read: npt.NDArray[np.bool_], wrote: Swizzle, reads: Swizzle
) -> bool:
    """True if the box is as loaded, and the two swizzles read different bytes."""
    now = _words(shared.chunks[box.chunks])
    if not np.array_equal(now, _words(box.content)):
        return False
    right = _turn(wrote, _turn(reads, box.chunks[read]))
    inside = np.isin(right, box.chunks)
    return bool((now[read][inside] != _words(shared.chunks[right[inside]])).any())


def _upright(tile: TileBox, start: int, matrices: Chunks) -> bool:
    """True if each of [n, 8] chunks is a tile's column, or of fewer rows.

    start  the tile's first chunk
    """
    if tile.pitch <= 1:
        return True
    own = _turn(MODES[tile.swizzle].swizzle, matrices) - start
    columns = own % tile.pitch
    return bool((columns == columns[:, :1]).all() or all(len({*row}) < ROWS for row in (own // tile.pitch).tolist()))


def _other(tile: TileBox, start: int, rows: Chunks) -> str:
    """The swizzle by which 8 chunks are a column of a tile at chunk `start`.

    "" if they are a column by the tile's own swizzle, or by none of them.
    """
    if _upright(tile, start, rows.reshape(1, ROWS)):
        return ""
    for name, mode in MODES.items():
        column = (_turn(mode.swizzle, rows) - start) % tile.pitch
        if name != tile.swizzle and (column == column[0]).all():
            return name
    return ""


# Bits by which the common swizzles differ -> their names.
_APART = {
    masks[0] ^ masks[1]: f"{names[0]} and {names[1]}"
    for names in combinations(("none", "32B", "64B", "128B"), 2)
    for masks in [[(1 << MODES[name].bits) - 1 for name in names]]
}


def _even(labels: npt.NDArray[np.int64]) -> bool:
    """True if the labels of columns [n, 8] are known and grow by one step: they are columns of one tile."""
    steps = labels[:, 1:] - labels[:, :-1]
    return bool(labels.all() and (steps == steps[0, 0]).all())


def _crossed(shared: CtaSharedMemory, columns: Chunks, report: OnFinding, what: str) -> bool:
    """Report columns of 8 chunks that are read in another swizzle than threads wrote.

    columns  [n, 8] chunk numbers; those of which the writer is not known are left out
    """
    origins = shared.origins
    if origins is None:
        return False
    columns = columns[(origins.label[columns] > 0).all(axis=1)]
    if not columns.size or _even(origins.label[columns]):
        return False
    for mask, names in _APART.items():
        other = columns ^ (columns >> 3 & mask)
        both = np.concatenate([columns, other])
        if _even(origins.label[other]) and np.array_equal(_words(shared.chunks[both]), _words(origins.content[both])):
            writer = origins.texts[int(origins.by[columns[0, 0]])]()
            report(
                "lint",
                f"{what} and {writer} have different swizzles, {names}: rows come from different columns",
                "One swizzle for the writer and the reader keeps the rows.",
            )
            return True
    return False


def check_loaded(shared: CtaSharedMemory, rows: Chunks, report: OnFinding) -> None:
    """Report matrices of ldmatrix whose 8 rows are no column of what was written there."""
    matrices, first, last = rows.reshape(-1, ROWS), int(rows.min()), int(rows.max())
    if _crossed(shared, matrices, report, "its addresses"):
        return
    near = [box for box in reversed(shared.boxes.values()) if box.start <= last and first < box.end]
    if near and near[0].start <= first and last < near[0].end and _upright(near[0].tile, near[0].start, matrices):
        return
    for matrix in matrices:
        for box in near:
            inside = np.isin(matrix, box.chunks)
            if not inside.any():
                continue
            found = _other(box.tile, box.start, matrix) if inside.all() else ""
            if found and np.array_equal(_words(shared.chunks[box.chunks]), _words(box.content)):
                report(
                    "lint",
                    f"its addresses have swizzle {found}, and {box.text()} wrote with swizzle {box.tile.swizzle}: the "
                    "rows of a matrix come from different columns",
                    SAME,
                )
                return
            break


def check_stored(shared: CtaSharedMemory, tile: TileBox, start: int, chunks: Chunks, report: OnFinding) -> None:
    """Report a tensor store of a tile that stmatrix wrote in another swizzle."""
    origins = shared.origins
    if origins is None:
        return
    kept = (_words(shared.chunks[chunks]) == _words(origins.content[chunks])).all(axis=1)
    written = chunks[kept & (origins.label[chunks] > 0)]
    order = np.argsort(origins.label[written], kind="stable")
    _, counts = np.unique(origins.label[written], return_counts=True)
    for matrix in np.split(written[order], np.cumsum(counts)[:-1]):
        found = _other(tile, start, matrix) if len(matrix) == ROWS else ""
        if found:
            writer = origins.texts[int(origins.by[matrix[0]])]()
            report(
                "lint",
                f"it stores with swizzle {tile.swizzle} what {writer} wrote with swizzle {found}: the rows of a matrix "
                "go to different columns",
                SAME,
            )
            return
