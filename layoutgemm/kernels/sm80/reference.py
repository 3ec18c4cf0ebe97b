"""The NumPy executor of the Ampere kernel. A block's shared memory, copies, ldmatrix, mma.sync and store, walked.

The instructions act as PTX defines them on the plan's numbers. Bytes go to the plan's `ThreadAddresses`,
ldmatrix hands a row's bytes to lanes by the atom's map, prmt picks bytes by its selector, and a product takes
registers. A wrong address, map or order gives a wrong result. Time is not modelled: copies land when issued.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from ...atoms import MmaAtom, ldmatrix
from ...atoms.copy.base import VECTOR_BYTES, WARP
from ...errors import PlanError
from ...memo import memoized
from ..derive import either
from ..epilogue.numpy_math import Math
from ..indexed.rows import OUT_ROWS, ROWS
from ..operands.prologue import PrologueElement
from ..orders import reads_on_host, stored_elements
from ..plan import present
from ..ragged import Ragged
from ..run.hardware_model import two_to_a_byte, unpadded
from .groups import border, rows_of_tile
from .operand import Sm80Operand, byte_selector
from .plan import Sm80Plan
from .promoted import numbers_of_blocks
from .quantized.experts import expert_bytes
from .quantized.reference import filled_stage, packed_fragments
from .scale_reference import factors_of_blocks, filled_factors

if TYPE_CHECKING:
    from ..thread_addresses import Index


Bytes = npt.NDArray[np.uint8]


def execute_sm80(
    plan: Sm80Plan, a: np.ndarray, b: np.ndarray, progress: Callable[[int, int], None] | None = None,
    given: Mapping[str, object] | None = None,
) -> np.ndarray:  # fmt: skip
    """C as values, (M, N) or (batch, M, N), of the plan's output type.

    a, b      raw bits of the operands, (batch, lines, elements of a line): lines are contiguous. Packed weights are
              (1, bytes)
    progress  called with (tiles done, tiles in all)
    given     values that the tile order reads
    """
    given = given or {}
    reads = reads_on_host(plan.order, given)
    matrices = plan.matrices_of_c
    c = plan.c.dtype.encode(np.zeros((matrices, plan.rows_of_c, plan.n), np.int64))
    times = np.zeros(c.shape, np.uint8)
    count, each_round = int(plan.order.count(plan.launched_tiles, reads=reads)), _round_of(plan)
    total, wanted = matrices * count, _times_stored(plan, given)
    rows_a = _rows_of(plan, given, ROWS, plan.rows_of_a) if plan.gathers else None
    rows_c = _rows_of(plan, given, OUT_ROWS, plan.rows_of_c) if plan.scatters else None
    for number in range(total):
        matrix, block = divmod(number, count)
        row, column = plan.order.tile(block, plan.launched_tiles, reads=reads)
        rows, part = None if rows_a is None else rows_a[matrix], _part_of_tile(plan, given, matrix, row)
        first, into = part.first, np.arange(plan.m) if rows_c is None else rows_c[matrix]
        into = np.where((np.arange(plan.m) >= first) & (np.arange(plan.m) < part.end), into, -1)
        pairs = _pairs(plan, a, b, given, (matrix, part))
        if plan.prologue is not None:
            vectors = {name: np.asarray(given[name], np.float32) for name in plan.prologue.names}
            numbers = {name: x[part.group] if x.ndim > 1 else x for name, x in vectors.items()}
            pairs[0] = pairs[0]._replace(numbers=numbers)
        sums = _block(plan, pairs, (first, column * plan.tile_c[1], part.group), rows, given)
        if plan.gated is not None:
            sums = {warp: _combined(plan, one, given) for warp, one in sums.items()}
        _store(plan, each_round, sums, c[matrix], times[matrix], first, column * plan.tile_c[1], into)
        if progress is not None:
            progress(number + 1, total)
    if (times != wanted).any():
        at = tuple(int(i) for i in np.argwhere(times != wanted)[0])
        raise PlanError(f"C[{at[1]}, {at[2]}] is stored {int(times[at])} times")
    values = np.asarray(plan.c.dtype.decode(c))
    return values if matrices > 1 else values[0]


class _TilePart(NamedTuple):
    """Rows and K of a tile, and the group whose B it multiplies.

    k  first line and end of K
    """

    first: int
    end: int
    group: int
    k: tuple[int, int]


def _part_of_tile(plan: Sm80Plan, given: Mapping[str, object], matrix: int, row: int) -> _TilePart:
    """The part of a product that tile `row` of a matrix of C is of."""
    first, groups = row * plan.tile_c[0], plan.groups
    if groups is None:
        return _TilePart(first, plan.m, matrix, (0, plan.k))
    numbers = np.asarray(given[groups.name])
    if plan.along_k is not None:
        return _TilePart(first, plan.m, matrix, (int(numbers[matrix]), int(numbers[matrix + 1])))
    if not plan.numbers_tiles:
        group, end = matrix, int(numbers[matrix])
    else:
        assert isinstance(groups, Ragged)
        last = len(numbers) - 1
        group, first, end = rows_of_tile(
            groups, lambda e: int(numbers[min(e, last)]), row, plan.tile_c[0], each=plan.m // plan.batch
        )
    first, end = border(first, end, either)
    return _TilePart(first, end, min(group, plan.batch - 1), (0, plan.k if first < end else 0))


def _times_stored(plan: Sm80Plan, given: Mapping[str, object]) -> np.ndarray | int:
    """Times that each element of C is stored: 1, or 0."""
    if plan.ragged is not None and plan.ragged.masked:
        counts = np.asarray(given[plan.ragged.name]).reshape(-1, 1, 1)
        return (np.arange(plan.m)[:, None] < counts).astype(np.uint8)
    if plan.experts is not None:
        return plan.experts.counting(np.asarray(given[plan.experts.name]), plan.m)[:, None].astype(np.uint8)
    stored = stored_elements(plan, given)
    return 1 if stored is None else stored.astype(np.uint8)


def _rows_of(plan: Sm80Plan, given: Mapping[str, object], name: str, count: int) -> npt.NDArray[np.int64]:
    """The rows of A or C of each matrix's product, (batch, M); -1 for an index outside of its `count` rows."""
    found = np.asarray(given[name], np.int64).reshape(plan.matrices_of_c, plan.m)
    return np.where((found >= 0) & (found < count), found, -1)


class _Pair(NamedTuple):
    """A, the matrices B that it multiplies, and their K."""

    a: np.ndarray
    b: list[np.ndarray]
    k: int
    numbers: Mapping[str, np.ndarray] | None = None  # the prologue's, of the matrix; None for an A as it lies


def _pairs(
    plan: Sm80Plan, a: np.ndarray, b: np.ndarray, given: Mapping[str, object], at: tuple[int, _TilePart]
) -> list[_Pair]:  # fmt: skip
    """The pairs of a tile's loop over K: a gate's halves are lines of one matrix.

    at  number of C's matrix, and the part that the tile is of
    """
    (matrix, part), lines = at, slice(*at[1].k)

    def of_b(names: Sequence[str], first: Sequence[np.ndarray] = ()) -> list[np.ndarray]:
        found = [*first, *[np.asarray(given[name])[part.group] for name in names]]
        return found if plan.halves == 1 else [found[0][i * plan.n : (i + 1) * plan.n] for i in range(plan.halves)]

    if plan.along_k is not None:
        return [_Pair(a[0][lines], [b[0][lines]], part.k[1] - part.k[0])]
    if plan.weights is not None:
        size = expert_bytes(plan, plan.n, plan.k)
        return [_Pair(a[matrix], [b[0][part.group * size : (part.group + 1) * size]], part.k[1])]
    further = [name for name, _ in plan.gated.places] if plan.gated is not None else []
    pairs = [_Pair(a[matrix], of_b(further, [b[part.group]]), part.k[1])]
    if plan.pair is not None:
        pairs.append(_Pair(np.asarray(given["a2"])[matrix], of_b(plan.pair.of_b), plan.pair.k))
    return pairs


def _combined(plan: Sm80Plan, total: np.ndarray, given: Mapping[str, object]) -> np.ndarray:
    """A warp's values of C, of sums that are its blocks along N."""
    sums = np.split(total.astype(np.float32), plan.sums, axis=1)
    return np.asarray(present(plan.gated).apply(sums, Math, dict(given)), np.float32)


def _block(
    plan: Sm80Plan, pairs: Sequence[_Pair], place: tuple[int, int, int], rows: npt.NDArray[np.int64] | None,
    given: Mapping[str, object],
) -> dict[int, np.ndarray]:  # fmt: skip
    """The sums of every warp: (block along M, block along N, lane, value); `rows` are A's where they are gathered."""
    parts = [(0, max(pair.k for pair in pairs))]
    if plan.split is not None:
        ranges = [plan.split.range_of(part, -(-plan.k // plan.tile[2])) for part in range(plan.split.parts)]
        parts = [(first * plan.tile[2], min(end * plan.tile[2], plan.k)) for first, end in ranges]
    whole = [_part(plan, pairs, place, part, rows, given) for part in parts]
    return {warp: functools.reduce(np.add, [sums[warp] for sums in whole]) for warp in whole[0]}


def _part(
    plan: Sm80Plan, pairs: Sequence[_Pair], corner: tuple[int, int, int], of_k: tuple[int, int],
    rows: npt.NDArray[np.int64] | None, given: Mapping[str, object],
) -> dict[int, np.ndarray]:  # fmt: skip
    """The sums of every warp over a range of K."""
    (m0, n0, group), kind = corner, np.int64 if plan.mma.c_dtype.name == "i32" else np.float32
    sums = {
        warp: np.zeros((*plan.blocks, WARP, plan.mma.accumulator_registers), kind)
        for warp in range(plan.threads // WARP)
    }
    totals = {warp: np.zeros_like(one) for warp, one in sums.items()}
    for pair, k0 in ((one, k0) for one in pairs for k0 in range(of_k[0], min(of_k[1], one.k), plan.tile[2])):
        tile_a = _filled(plan, plan.a, [pair.a], m0, plan.m, (k0, pair.k), rows)
        if plan.weights is None:
            tile_b = _filled(plan, plan.b, pair.b, n0, plan.n, (k0, pair.k))
        else:
            tile_b = filled_stage(plan, pair.b[0], n0, k0)
        factors = None if plan.scales is None else filled_factors(plan, given, corner, k0)
        for step in range(plan.steps):
            packed = None if plan.weights is None else packed_fragments(plan, tile_b, step)
            for warp, total in sums.items():
                at = plan.warp_place(warp)
                fa = _fragments(plan, plan.a, tile_a, at[0], step)
                if pair.numbers is not None:
                    place = m0 + at[0] * plan.a.warp_extent, k0 + step * plan.mma.shape_mnk[2]
                    fa = _function(plan, fa, place, pair.numbers)
                fb = _fragments(plan, plan.b, tile_b, at[1], step) if packed is None else packed[at[1]]
                scales = None if factors is None else factors_of_blocks(plan, factors, corner, at, step)
                _multiply(plan, fa, fb, total, scales)
        if plan.mainloop is not None:
            for warp, product_ in sums.items():
                at = plan.warp_place(warp)
                part = m0 + at[0] * plan.a.warp_extent, n0 + at[1] * plan.warp_columns, group
                numbers = numbers_of_blocks(plan, given, part, k0 // plan.tile[2])
                totals[warp] = np.asarray(plan.mainloop.apply(totals[warp], product_, numbers), np.float32)
                sums[warp] = np.zeros_like(product_)
    return sums if plan.mainloop is None else totals


def _function(
    plan: Sm80Plan, fragments: np.ndarray, place: tuple[int, int], numbers: Mapping[str, np.ndarray]
) -> np.ndarray:
    """f of A's fragments (block, lane, value), rounded to A's type; 0 behind K. `place`: first row and column."""
    i, j = _held(plan.mma, "A", fragments.shape[2])
    blocks = np.arange(fragments.shape[0])[:, None, None] * plan.mma.shape_mnk[0]
    row = np.asarray(plan.a.mn_order(i))
    rows, columns = (np.broadcast_to(x, fragments.shape) for x in (place[0] + blocks + row, place[1] + j))
    read = {}
    for operand in present(plan.prologue).operands:
        at, of = (rows, plan.m) if operand.axis == "m" else (columns, plan.k)
        read[operand.name] = numbers[operand.name][np.minimum(at, of - 1)]
    with np.errstate(all="ignore"):
        at_place = PrologueElement(rows, columns, read, Math)
        found = np.asarray(present(plan.prologue).apply(fragments.astype(np.float32), at_place), np.float32)
    found = np.where(columns < plan.k, found, np.float32(0))
    return np.asarray(plan.a.dtype.decode(plan.a.dtype.encode(found)), np.float32)


def _filled(
    plan: Sm80Plan, operand: Sm80Operand, matrices: Sequence[np.ndarray], first: int, extent: int,
    along_k: tuple[int, int], rows: npt.NDArray[np.int64] | None = None,
) -> Bytes:  # fmt: skip
    """One stage's tile after the copies: 0xFF where none of them wrote; `rows` are those that are gathered.

    along_k  the K tile's first element, and K
    """
    k0, k_end = along_k
    copy, tile, size = operand.copy, operand.smem, operand.unit.bytes
    k0, k_end = (operand.memory_bytes(x // operand.per_unit) // size for x in (k0, k_end))
    memory = np.full(tile.bytes, 0xFF, np.uint8)
    threads = np.arange(plan.threads)
    run = np.arange(copy.vector_bytes // size)
    for index in copy.indices:
        mn, k = (np.asarray(x) for x in copy.coordinates(threads, *index))
        k = operand.memory_bytes(k) // size
        which = np.zeros_like(mn)
        if operand.beside is not None:
            mn, which = (np.asarray(x) for x in operand.beside.source(mn))
        base, constant = copy.places.of[index]
        to = np.asarray(tile.byte(*copy.coordinates(threads, *copy.places.bases[base]))) + constant
        if operand.major == "K":
            line = np.minimum(first + mn, extent - 1)[:, None] + 0 * run  # beyond the matrix: the last one again
            at, inside = (k0 + k)[:, None] + run, (k0 + k)[:, None] + run < k_end
            if rows is not None:
                inside = inside & (first + mn < extent)[:, None] & (rows[line] >= 0)
                line = rows[line]
        else:
            line, at = (k0 + k)[:, None] + 0 * run, (first + mn)[:, None] + run
            inside = (line < k_end) & (at < extent)
        line, at = np.where(inside, line, 0), np.where(inside, at, 0)
        values = np.zeros(line.shape, operand.unit.storage)
        for number, matrix in enumerate(matrices):
            own = inside & (which == number)[:, None]
            values[own] = matrix[line[own], at[own]]
        raw = np.ascontiguousarray(values).view(np.uint8).reshape(plan.threads, copy.vector_bytes)
        memory[to[:, None] + np.arange(copy.vector_bytes)] = raw
    return memory


def _fragments(plan: Sm80Plan, operand: Sm80Operand, tile: Bytes, warp: int, step: int) -> np.ndarray:
    """Values of one depth: (block along M or N, lane, value)."""
    tile = unpadded(tile, operand.dtype.bits) if operand.padded else tile
    raw = np.ascontiguousarray(tile[_places_read(operand, warp, step)])
    each = plan.mma.registers(operand.name)
    codes = raw.view(operand.unit.storage)
    codes = codes if operand.per_unit == 1 else two_to_a_byte(codes)
    values = operand.dtype.decode(codes).reshape(WARP, raw.shape[1] // each, -1)
    return np.moveaxis(np.asarray(values), 1, 0)


@memoized(1024)
def _places_read(operand: Sm80Operand, warp: int, step: int) -> npt.NDArray[np.int64]:
    """The byte of the tile that lands in each byte of a lane's registers: (lane, register, byte)."""
    load, lanes = operand.load, np.arange(WARP)
    registers = []
    for number in range(load.loads):
        if load.words:
            for word in range(len(load.words)):
                at = _address(operand, lanes, warp, (number, step, word))
                registers.append(at[:, None] + np.arange(4))
            continue
        at = _address(operand, lanes, warp, (number, step, 0))
        rows = at[:, None] + np.arange(VECTOR_BYTES)  # (row, byte)
        copy = operand.matrices if operand.padded else ldmatrix(4, transpose=load.kind != "ldmatrix", element="u8")
        element = np.asarray(copy.layout_dst.offsets(), np.int64).reshape(-1, WARP).T
        words = rows[element // VECTOR_BYTES, element % VECTOR_BYTES].reshape(WARP, 4, 4)
        if load.kind == "bytes":
            words = _parted(words, load.blocks)
        registers += [words[:, r] for r in range(4)]
    return np.stack(registers, axis=1)


def _address(operand: Sm80Operand, lanes: npt.NDArray[np.int64], warp: int, index: Index) -> npt.NDArray[np.int64]:
    base, constant = operand.load.places.of[index]
    byte = operand.load.byte(operand.smem, lanes, warp, operand.load.places.bases[base])
    return np.asarray(byte + constant) + np.zeros(WARP, np.int64)


def _parted(words: npt.NDArray[np.int64], blocks: int) -> npt.NDArray[np.int64]:
    """prmt of the registers of two matrices: even neighbours, then odd ones, of each half of K."""
    made = np.empty_like(words)
    for odd, half, lane in product(range(2), range(2), range(WARP)):
        selector = byte_selector(int(lane % 4 >= 2), odd)
        both = words[lane, 2 * half : 2 * half + 2].reshape(8)
        made[lane, odd + 2 * half if blocks == 1 else 2 * odd + half] = [both[selector >> 4 * i & 7] for i in range(4)]
    return made


@memoized(256)
def _held(atom: MmaAtom, name: str, values: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The coordinates of each lane's values of an operand: rows, columns."""
    i, j = atom.coords(name)(np.arange(WARP)[:, None], np.arange(values)[None, :])
    return np.asarray(i), np.asarray(j)


def _multiply(
    plan: Sm80Plan, a: np.ndarray, b: np.ndarray, sums: np.ndarray, scales: Sequence[np.ndarray] | None = None
) -> None:
    """All products of a depth, each operand as the instruction's own map reads its registers.

    scales  factors of A's elements, (block, row, k), and of B's; None without block scales
    """
    atom = plan.mma
    m, n, k = atom.shape_mnk

    def matrix(name: str, rows: int, values: np.ndarray) -> np.ndarray:
        i, j = _held(atom, name, values.shape[2])
        out = np.zeros((values.shape[0], rows, k), values.dtype)
        out[:, i, j] = values
        return out

    left, right = matrix("A", m, a), matrix("B", n, b)
    wide = np.int64 if atom.c_dtype.name == "i32" else np.float64  # exact, or rounded once
    left, right = left.astype(wide), right.astype(wide)
    if scales is not None:
        left, right = left * scales[0], right * scales[1]
    i, j = _held(atom, "C", atom.accumulator_registers)
    whole = np.einsum("xik,yjk->xyij", left, right)
    sums += whole[:, :, i, j].astype(sums.dtype)


class _Round(NamedTuple):
    """A warp's accesses of the buffer in a round, alike for all tiles.

    pairs   for each pair of registers its number, and the bytes of both values: (lane, byte)
    chunks  for each chunk of a lane the bytes that it takes, (lane, byte), and its row and chunk of the round
    """

    pairs: list[tuple[int, npt.NDArray[np.int64]]]
    chunks: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]]


def _round_of(plan: Sm80Plan) -> _Round:
    store, size, lanes = plan.store, plan.c.dtype.bytes, np.arange(WARP)
    made = _Round([], [])
    for (number,), (base, constant) in store.pairs.of.items():
        first = store.registers[store.pairs.bases[base][0]][0]
        at = np.asarray(store.tile.byte(*store.place(lanes, first))) + constant
        made.pairs.append((number, at[:, None] + np.arange(2 * size)))
    for (drain,), (base, constant) in store.chunks.of.items():
        row, chunk = store.chunk_of(lanes, store.chunks.bases[base][0])
        at = np.asarray(store.tile.byte(row % store.tile.extent[0], chunk * (VECTOR_BYTES // size))) + constant
        made.chunks.append((at[:, None] + np.arange(VECTOR_BYTES), *store.chunk_of(lanes, drain)))
    return made


def _store(
    plan: Sm80Plan, each_round: _Round, sums: dict[int, np.ndarray], c: np.ndarray, times: np.ndarray, m0: int, n0: int,
    row_of_c: npt.NDArray[np.int64],
) -> None:  # fmt: skip
    """A warp's rounds: pairs into the buffer, and its chunks inside the matrix to C.

    row_of_c  of each row of the product, -1 for one that is not stored
    """
    store, dtype = plan.store, plan.c.dtype
    size, values = dtype.bytes, plan.mma.accumulator_registers
    for warp, total in sums.items():
        place = plan.warp_place(warp)
        row0, column0 = m0 + place[0] * plan.a.warp_extent, n0 + place[1] * plan.warp_columns
        for block in range(plan.blocks[0]):
            memory = np.full(store.tile.bytes, 0xFF, np.uint8)
            for number, at in each_round.pairs:
                both = np.stack([total[block, r // values, :, r % values] for r in store.registers[number]], axis=1)
                memory[at] = dtype.encode(both).view(np.uint8).reshape(WARP, 2 * size)
            for at, row, chunk in each_round.chunks:
                words = np.ascontiguousarray(memory[at]).view(dtype.storage)
                rows = row0 + block * plan.mma.shape_mnk[0] + row[:, None] + 0 * words.astype(np.int64)
                columns = column0 + (chunk * (VECTOR_BYTES // size))[:, None] + np.arange(VECTOR_BYTES // size)
                inside = (row[:, None] < store.tile.extent[0]) & (rows < plan.m) & (columns < plan.n)
                to = row_of_c[np.minimum(rows, plan.m - 1)]
                inside &= to >= 0
                c[to[inside], columns[inside]] = words[inside]
                np.add.at(times, (to[inside], columns[inside]), 1)
