"""Which Hopper kernel for M up to 64, where the weights come through memory once and decide the time.

Every multiprocessor takes an equal share of them: a block's columns are chosen so that there is one block each. Where
the instruction's 64 rows are better filled with weights, the operands change places. What counts is also where the
next kernel's blocks begin: launched early they go wherever a multiprocessor is idle, and where a grid leaves more than
a few idle they crowd in some graphics clusters (GPCs), each of which has an eighth of the memory's rate to itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..dtypes import DType
from .sm90_config import Sm90Config
from .sm90_types import output_of

# Measured on an H200 (132 multiprocessors, 1.98 GHz, HBM3e): benchmarks/NOTES.md, "Few rows" and "Where blocks begin".
DRAM = 4.2e12  # bytes a second that memory brings to all
_L2, ONE = 12e12, 120e9  # bytes a second: all L2 reads together, one multiprocessor's
LAUNCH = 2.0e-6  # from one kernel's end to the next one's first product, with programmatic dependent launch
_LATE = 0.7e-6  # more where the next kernel's blocks come when this one's have left
_SWAPPED = 0.1e-6  # of a kernel with swapped operands, whose columns of C cross its warps
_STEP = 0.165e-6  # of a k tile of 128 elements in a block of 64 rows: eight products that wait for each other
_EXCHANGE, _EXCHANGE_ROWS = 0.1e-6, 0.9e-6  # of partial sums between two blocks, of weights in rows and in columns
_NARROW, _LINES = 0.35e-6, 64  # of copies with fewer lines than these
_WAVE = 1.0e-6  # of each further wave: a block's first loads
# Of the memory's time: for idle multiprocessors beyond a few that the grids in flight leave, as a share of a grid's
# blocks; up to a tenth where a grid itself fills few; for each idle one in the last of several waves, where whoever is
# done first takes the next block.
_CROWDED, _FEW_IDLE, _SPARSE, _MANY_IDLE, _LAST_WAVE = 0.55, 4, 0.1, 40, 0.0025
# Bytes that a block brings into L2 before the kernel before has ended: more keep the copy engine from the first loads.
_FETCHED = 64 << 10
_LONG = 16384  # bytes along K from which sharing the rows of A pays
_DEEP = 232  # columns up to which three stages of 256 bytes of K fit beside 64 rows of A


def crowded(blocks: int, multiprocessors: int) -> float:
    """What memory takes longer for a single wave of so many blocks, if the next kernel's come early; a share.

    >>> [round(crowded(blocks, 132), 2) for blocks in (132, 128, 120, 112, 96, 72, 64)]
    [0.0, 0.0, 0.04, 0.08, 0.18, 0.43, 0.0]
    """
    idle = multiprocessors % blocks  # as many grids as fit run, or wait, at a time
    return _CROWDED * max(0, idle - _FEW_IDLE) / blocks


@dataclass(frozen=True)
class FewRows:
    """The configuration, whether the operands change places, and why."""

    config: Sm90Config
    swapped: bool
    reason: str


@dataclass(frozen=True)
class _Cost:
    seconds: float
    trigger: str


@dataclass(frozen=True)
class _Problem:
    m: int
    n: int
    k: int
    batch: int
    kind: DType
    multiprocessors: int

    def tile_k(self, columns: int) -> int:
        """256 bytes of K, of the widest half: deeper tiles leave too few stages, flatter ones cost a barrier more."""
        return (256 if columns <= _DEEP else 128) // self.kind.bytes

    def cost(self, tiles: int, rows: int, width: int, split: int = 1, exchange: float = 0.0) -> _Cost:
        """Of so many tiles, each of which loads `rows` and `width` lines of K, in `split` parts that they exchange."""
        bytes_, blocks = self.kind.bytes, tiles * split * self.batch
        each = (rows + width) * self.k * bytes_ / split
        waves = -(-blocks // self.multiprocessors)
        least = (self.m + self.n) * self.k * bytes_ + self.m * self.n * output_of(self.kind).bytes
        memory = least * self.batch / DRAM
        steps = -(-self.k * bytes_ // 256) / split * _STEP * waves
        others = max(blocks * each / _L2, waves * each / ONE, steps)
        more = LAUNCH + exchange + _NARROW * (rows + width < _LINES)
        if waves > 1:
            idle = -blocks % self.multiprocessors / waves
            return _Cost(max(memory * (1 + _LAST_WAVE * idle), others) + more + (waves - 1) * _WAVE, "start")
        sparse = _SPARSE * min(1.0, max(0, self.multiprocessors - _FEW_IDLE - blocks) / _MANY_IDLE)
        longer = max(sparse, crowded(blocks, self.multiprocessors))
        start = max(memory * (1 + longer), others) + more
        end = max(memory * (1 + sparse), others) + more + _LATE
        return _Cost(start, "start") if start <= end else _Cost(end, "end")

    def best_split(self, tiles: int, rows: int, width: int, exchange: float) -> tuple[_Cost, int]:
        """The cheaper of one and two parts of K: two where all of the next kernel's blocks may come early."""
        whole = self.cost(tiles, rows, width)
        if 2 * tiles * self.batch <= self.multiprocessors:
            halves = self.cost(tiles, rows, width, 2, exchange)
            if halves.trigger == "start" and halves.seconds < whole.seconds:
                return halves, 2
        return whole, 1


def fetched(stage: int, most: int) -> int:
    """K tiles of `stage` bytes that a block fetches early: up to `most` bytes, and two."""
    return min(2, max(1, most // stage))


def for_few_rows(
    m: int, n: int, k: int, batch: int, kind: DType, b_major: str, multiprocessors: int, unit: int, swappable: bool
) -> FewRows:
    """The kernel for M up to 64.

    unit        a tile's columns are a multiple of it
    swappable   whether C^T = B^T @ A^T is a way to compute it

    >>> from layoutgemm.dtypes import dtype
    >>> found = for_few_rows(16, 6144, 4096, 1, dtype("bf16"), "K", 132, 1, True)
    >>> found.config.tile, found.config.trigger
    ((64, 48), 'start')
    >>> found = for_few_rows(16, 6144, 4096, 1, dtype("bf16"), "MN", 132, 1, True)
    >>> found.config.tile, found.config.trigger  # 96 blocks: 36 multiprocessors have none
    ((64, 64), 'end')
    """
    problem = _Problem(m, n, k, batch, kind, multiprocessors)
    rows = -(-m // 8) * 8
    costs = {width: (problem.cost(-(-n // width), rows, width), 1) for width in _widths(problem, b_major, unit)}
    if b_major != "K":  # K-major blocks can be narrower instead
        span = min(costs)
        costs[span] = problem.best_split(-(-n // span), rows, span, _EXCHANGE_ROWS)
    columns = min(costs, key=lambda width: (costs[width][0].seconds, width))
    straight, parts = costs[columns]
    width = 16 if m <= 16 else 32 if m <= 32 else 64
    tiles = -(-n // 64)
    turned, split = problem.best_split(tiles, width, 64, _EXCHANGE)
    swapped = turned.seconds + _SWAPPED
    shared: dict[str, Any] = {"consumers": 1, "loader": "warp", "single": True}
    if batch == 1:  # of a batch tiles are numbered
        shared["launch"] = "tiles"
    # Of weights in rows (MN-major) the halves of K are worth it for M up to 32 alone: at 64 they lose 1%.
    swappable = swappable and (b_major == "K" or m <= 32)
    if swappable and swapped < 0.99 * straight.seconds:
        tile_k = problem.tile_k(width)
        launched = _overlap(turned, (64 + width) * tile_k * kind.bytes)
        config = Sm90Config((64, width), tile_k=tile_k, split=split, along="M", **shared, **launched)
        return FewRows(config, True, (
            f"operands swapped, {tiles} tiles of 64 columns" + f", each of {split} blocks" * (split > 1)
            + f": {swapped * 1e6:.1f} us; {columns} columns a block would take {straight.seconds * 1e6:.1f} us"
            + _when(config)
        ))  # fmt: skip
    tile_k, tiles = problem.tile_k(columns), -(-n // columns)
    # Two blocks share A where that was measured to pay, by up to 1%: long sums, and wide tiles of weights in rows.
    long = k * kind.bytes >= _LONG or (b_major != "K" and columns >= 128)
    both = long and rows == 64 <= columns and tiles % 2 == 0 and tiles <= multiprocessors
    both = both and batch == parts == 1 and kind.bits == 16
    config = Sm90Config(
        (64, columns), tile_k=tile_k, split=parts, chunks=parts, rows=rows if rows < 64 else None, first="B",
        cluster=(1, 2) if both else (1, 1), along="N" if batch == 1 else "M",
        **shared, **_overlap(straight, (rows + columns) * tile_k * kind.bytes),
    )  # fmt: skip
    return FewRows(config, False, (
        f"{tiles} tiles of {columns} columns" + f", each of {parts} blocks," * (parts > 1)
        + f" on {multiprocessors} multiprocessors; bound by memory, {straight.seconds * 1e6:.1f} us"
        + "; two blocks share A" * both + _when(config)
    ))  # fmt: skip


def _widths(problem: _Problem, b_major: str, unit: int) -> list[int]:
    """Columns of a block that may be the fastest: as even a share as there is, or whole 128-byte spans."""
    n, bytes_, most = problem.n, problem.kind.bytes, problem.multiprocessors
    if b_major != "K":
        step = 128 // bytes_
        return list(range(step, 257, step))
    columns = min(256, max(-(-n // (most * 8)) * 8, 24 if problem.k * bytes_ < 8192 else 8))
    columns = -(-columns // unit) * unit
    if problem.kind.kind != "float" and columns > 24:  # the instruction's widths for integers
        columns = -(-columns // 16) * 16
    return [columns]


def _overlap(cost: _Cost, stage: int) -> dict[str, Any]:
    """Programmatic dependent launch, and how many stages of so many bytes are fetched early."""
    early = fetched(stage, _FETCHED)
    return {"overlap": True, "trigger": cost.trigger, "prefetch": early if cost.trigger == "start" else 0}


def _when(config: Sm90Config) -> str:
    return "; the next kernel starts when it leaves, as too many multiprocessors are idle" * (config.trigger == "end")
