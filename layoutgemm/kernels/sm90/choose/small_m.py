"""Which Hopper kernel for M up to 64, where the weights come through memory once and decide the time.

Every multiprocessor takes an equal share of them: a block's columns are chosen so that there is one block each. Where
the instruction's 64 rows are better filled with weights, the operands change places. What counts is also where the
next kernel's blocks begin: launched early they go wherever a multiprocessor is idle, and where a grid leaves more than
a few idle they crowd in some graphics clusters (GPCs), each of which has an eighth of the memory's rate to itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ....dtypes import DType
from ...store import WARP_ROWS
from ..config import Sm90Config
from ..multicast import LINE
from ..stages import sent
from ..types import output_of
from .occupancy import Places

# Fitted to 101 shapes on H200s (132 multiprocessors, 1.98 GHz, HBM3e), in which what is cheapest here was 0.15% behind
# the fastest on average, 3.5% at most: NOTES.md, "Split-K exchange without a cluster barrier".
_MEMORY, _ONE, _L2 = 4.4e12, 140e9, 19e12  # bytes a second: memory's, into one multiprocessor, all L2 reads together
_START = 1.50e-6  # from one kernel's end to the next one's first product, with programmatic dependent launch
_LATE = 0.65e-6  # more where the next kernel's blocks come when this one's have left
_STEP, _STEP_COLUMN = 0.133e-6, 0.00049e-6  # of a k tile of 256 bytes in a block of 64 rows, which follow one another
_EXCHANGE, _EXCHANGE_KB = 0.175e-6, 0.0147e-6  # of partial sums, and more for each 1024 bytes that a block sends
_AT_ONCE, _AT_ONCE_TURNED = 0.054e-6, 0.13e-6  # less of parts of K where threads store what they hold
_NARROW, _LINES = 1.025, 48  # memory's time for blocks with fewer lines of weights than these
_TOGETHER = 6  # limits that are near each other add up: the norm of this order
_WAVE = 1.0e-6  # of each further wave: a block's first loads
# Of the memory's time: for idle multiprocessors beyond a few that the grids in flight leave, as a share of a grid's
# blocks; a little where a grid itself fills few; for each idle one in the last of several waves, where whoever is done
# first takes the next block.
_CROWDED, _FEW_IDLE, _LAST_WAVE = 0.64, 2, 0.0025
_SPARSE, _SPARE, _MANY_IDLE = 0.07, 4, 40
_CROWDED_ONE = 0.45  # of that, of what goes into one multiprocessor
_ALIKE = 0.98  # what whole sums of swapped operands have to take of the others' time
_SPLITS = 1, 2, 4
_SPLIT_COLUMNS = 80  # at most, of a block whose sums are brought together
# Lines of 128 bytes a second into one multiprocessor, where lines of a matrix begin between: at 64, 32 or 16. Fitted to
# 107 products of more rows, up to 16 kernels each; fewer rows take longer, and few blocks get more each: NOTES.md,
# "Rows not aligned to 128 bytes".
_BETWEEN = {64: 660e6, 32: 596e6, 16: 409e6}
_LONGER, _MOST_EACH = 1.12, 2.56
# Bytes that a block brings into L2 before the kernel before has ended: more keep the copy engine from the first loads.
_FETCHED = 64 << 10
_LONG = 16384  # bytes along K from which sharing the rows of A pays
_LEAST_SHARING, _EDGE = 24, 5  # columns from which it does where lines begin between; tiles, if their number is odd
_HALF_SPANS = 20e6  # bytes of weights in rows up to which half a span pays where whole ones leave most blocks idle
_HELD = 128  # columns up to which threads store what they hold
_DEEP = 232  # columns up to which three stages of 256 bytes of K fit beside 64 rows of A


def crowded(blocks: int, multiprocessors: int) -> float:
    """What memory takes longer for a single wave of so many blocks, if the next kernel's come early; a share.

    >>> [round(crowded(blocks, 132), 2) for blocks in (132, 128, 120, 112, 96, 72, 64)]
    [0.0, 0.01, 0.05, 0.1, 0.23, 0.52, 0.02]
    """
    idle = multiprocessors % blocks  # as many grids as fit run, or wait, at a time
    return _CROWDED * max(0, idle - _FEW_IDLE) / blocks


def between(asked: tuple[float, float], apart: tuple[int, int]) -> float:
    """Seconds in which one multiprocessor takes in lines of 128 bytes, where a matrix's lines begin between them.

    asked   lines of A and of B that a block asks for: half of what two blocks share, a quarter of what four do
    apart   bytes from one line of the matrix to the next, of A and of B; multiples of 128 cost nothing here

    >>> [round(between((128, 256), (2 * k, 2 * k)) * 1e9) for k in (3008, 3040, 3024, 3000)]
    [0, 582, 644, 939]
    """
    steps = [bytes_ % LINE for bytes_ in apart]
    return sum(lines / _BETWEEN[max(16, step & -step)] for lines, step in zip(asked, steps, strict=True) if step)


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
    columns: int
    split: int
    bound: str

    def less(self, seconds: float) -> _Cost:
        """So much less."""
        return replace(self, seconds=self.seconds - seconds)


@dataclass(frozen=True)
class _Problem:
    m: int
    n: int
    k: int
    batch: int
    kind: DType
    places: Places
    b_major: str = "K"

    def tile_k(self, columns: int) -> int:
        """256 bytes of K, of the widest half: deeper tiles leave too few stages, flatter ones cost a barrier more."""
        return (256 if columns <= _DEEP else 128) // self.kind.bytes

    def straight(self, rows: int, columns: int, split: int) -> _Cost:
        """Of tiles of so many columns of weights."""
        shared = 2 if self.both(rows, columns, split) else 1
        found = self.cost(-(-self.n // columns), columns, split, rows, columns, rows / shared)
        return found.less(_AT_ONCE * (split > 1 and rows <= WARP_ROWS))

    def turned(self, columns: int, split: int) -> _Cost:
        """Of tiles of 64 rows of weights: operands swapped."""
        found = self.cost(-(-self.n // 64), columns, split, columns, 64, columns)
        return found.less(_AT_ONCE_TURNED * (split > 1 and columns <= WARP_ROWS))

    def both(self, rows: int, columns: int, split: int) -> bool:
        """Whether two blocks share A where that was measured to pay: long sums and wide tiles of weights in rows, by up
        to 1%, and lines that begin between, by up to a quarter."""
        tiles, apart = -(-self.n // columns), self.apart != (0, 0)
        wide = columns >= 64 and (self.k * self.kind.bytes >= _LONG or (self.b_major != "K" and columns >= 128))
        # The last of an odd number of tiles is alone in its cluster, which loads its share of A for nobody else.
        even = tiles % 2 == 0 or (apart and tiles >= _EDGE)
        fit = rows == 64 and even and tiles + tiles % 2 <= self.multiprocessors
        pays = wide or (apart and columns >= _LEAST_SHARING)
        return pays and fit and self.batch == split == 1 and self.kind.bits == 16

    @property
    def multiprocessors(self) -> int:
        return self.places.multiprocessors

    @property
    def apart(self) -> tuple[int, int]:
        """Bytes from line to line of A and of B beyond the memory's lines."""
        of_b = self.k if self.b_major == "K" else self.n
        return self.k * self.kind.bytes % LINE, of_b * self.kind.bytes % LINE

    def cost(self, tiles: int, columns: int, split: int, others: int, weights: int, asked: float) -> _Cost:
        """Of so many tiles in `split` parts of K, of which each loads so many lines of K of weights and of the other
        operand, and asks for so many of the latter."""
        bytes_, blocks = self.kind.bytes, tiles * split * self.batch
        each = (others + weights) * self.k * bytes_ / split
        waves = -(-blocks // self.multiprocessors)
        least = (self.m + self.n) * self.k * bytes_ + self.m * self.n * output_of(self.kind).bytes
        memory = least * self.batch / _MEMORY * (_NARROW if weights < _LINES else 1.0)
        steps = -(-self.k * bytes_ // 256) / split * waves * (_STEP + _STEP_COLUMN * columns)
        slow = -(-self.k * bytes_ // LINE) / split * between((asked, weights), self.apart)
        slow *= _LONGER / min(_MOST_EACH, max(1.0, self.multiprocessors / blocks))
        one, l2 = waves * max(each / _ONE, slow), blocks * each / _L2
        more = _START + exchange(64, columns, split)
        if waves > 1:
            idle = -blocks % self.multiprocessors / waves
            limits = memory * (1 + _LAST_WAVE * idle), one, steps, l2
            return _Cost(max(limits) + more + (waves - 1) * _WAVE, "start", columns, split, _largest(limits))
        sparse = _SPARSE * min(1.0, max(0, self.multiprocessors - _SPARE - blocks) / _MANY_IDLE)
        longer = crowded(blocks, self.multiprocessors)
        early = memory * (1 + max(sparse, longer)), one * (1 + _CROWDED_ONE * longer), steps, l2
        late = memory * (1 + sparse), one, steps, l2
        start, end = _both(early) + more, _both(late) + more + _LATE
        if start <= end and split <= 2:
            return _Cost(start, "start", columns, split, _largest(early))
        return _Cost(end, "end", columns, split, _largest(late))

    def fits(self, tiles: int, split: int) -> bool:
        """Whether so many clusters of parts of K run at a time."""
        return split == 1 or tiles * self.batch <= self.places.most(split)


def _both(limits: tuple[float, ...]) -> float:
    return float(sum(limit**_TOGETHER for limit in limits) ** (1 / _TOGETHER))


def _largest(limits: tuple[float, ...]) -> str:
    return ("memory", "what one multiprocessor loads", "k tiles one after another", "L2")[limits.index(max(limits))]


def exchange(rows: int, columns: int, split: int) -> float:
    """Seconds in which the blocks of a tile bring the partial sums of `split` parts of K together."""
    return _EXCHANGE + _EXCHANGE_KB * sent((rows, columns), split) / 1024 if split > 1 else 0.0


def fetched(stage: int, most: int) -> int:
    """K tiles of `stage` bytes that a block fetches early: up to `most` bytes, and two."""
    return min(2, max(1, most // stage))


def for_few_rows(
    m: int, n: int, k: int, batch: int, kind: DType, b_major: str, places: Places, unit: int, swappable: bool
) -> FewRows:
    """The kernel for M up to 64.

    unit        a tile's columns are a multiple of it
    swappable   whether C^T = B^T @ A^T is a way to compute it

    >>> from layoutgemm.dtypes import dtype
    >>> found = for_few_rows(16, 6144, 4096, 1, dtype("bf16"), "K", Places(), 1, True)
    >>> found.config.tile, found.config.tuning.trigger
    ((64, 48), 'start')
    >>> found = for_few_rows(16, 6144, 4096, 1, dtype("bf16"), "MN", Places(), 1, True)
    >>> found.config.tile, found.config.tuning.trigger  # 96 blocks: 36 multiprocessors have none
    ((64, 64), 'end')
    """
    problem = _Problem(m, n, k, batch, kind, places, b_major)
    rows = -(-m // 8) * 8
    costs = [
        problem.straight(rows, width, split)
        for split in (_SPLITS if unit == 1 else (1,))
        for width in _widths(problem, b_major, unit, split)
        if problem.fits(-(-n // width), split)
    ]
    straight = min(costs, key=lambda cost: (cost.seconds, cost.columns))
    columns, parts = straight.columns, straight.split
    width, tiles = 16 if m <= 16 else 32 if m <= 32 else 64, -(-n // 64)
    turns = [s for s in _SPLITS if width % (8 * s) == 0 and problem.fits(tiles, s)]
    turned = min([problem.turned(width, split) for split in turns], key=lambda cost: cost.seconds)
    swapped, split = turned.seconds, turned.split
    shared: dict[str, Any] = {"consumers": 1, "loader": "warp", "single": True}
    if batch == 1:  # of a batch tiles are numbered
        shared["launch"] = "tiles"
    # Of weights in rows (MN-major) the halves of K are worth it for M up to 32 alone: at 64 they lose 1%.
    swappable = swappable and (b_major == "K" or m <= 32)
    if swappable and swapped <= straight.seconds * (_ALIKE if split == 1 else 1):
        tile_k = problem.tile_k(width)
        launched = _overlap(turned, (64 + width) * tile_k * kind.bytes)
        # Of 16 columns in parts of K each thread has few, and stores them at once: 0.5% in the median, and up to 11.
        store = "direct" if split > 1 and width == WARP_ROWS else "tma"
        config = Sm90Config((64, width), tile_k=tile_k, split=split, along="M", store=store, **shared, **launched)
        return FewRows(config, True, (
            f"operands swapped, {tiles} tiles of 64 columns" + f", each of {split} blocks" * (split > 1)
            + f": {swapped * 1e6:.1f} us; {columns} columns a block would take {straight.seconds * 1e6:.1f} us"
            + _when(config)
        ))  # fmt: skip
    tile_k, tiles = problem.tile_k(columns), -(-n // columns)
    both = problem.both(rows, columns, parts)
    # One warp of the four has rows: its threads store what they hold at once. Up to 0.9%; of 64 rows, or 256 columns,
    # it would cost 1 to 3% (NOTES.md, "The bound of a load-only kernel").
    direct = rows <= WARP_ROWS and columns <= _HELD
    config = Sm90Config(
        (64, columns), tile_k=tile_k, split=parts, chunks=parts, rows=rows if rows < 64 else None, first="B",
        store="direct" if direct else "tma", cluster=(1, 2) if both else (1, 1), along="N" if batch == 1 else "M",
        **shared, **_overlap(straight, (rows + columns) * tile_k * kind.bytes),
    )  # fmt: skip
    return FewRows(config, False, (
        f"{tiles} tiles of {columns} columns" + f", each of {parts} blocks," * (parts > 1)
        + f" on {places.multiprocessors} multiprocessors; bound by {straight.bound}, {straight.seconds * 1e6:.1f} us"
        + "; two blocks share A" * both + "; threads store what they hold" * direct + _when(config)
    ))  # fmt: skip


def _widths(problem: _Problem, b_major: str, unit: int, split: int) -> list[int]:
    """Columns of a block that may be the fastest: as even a share as there is, or, of rows that begin with the memory's
    lines, whole spans of 128 bytes."""
    n, bytes_, most = problem.n, problem.kind.bytes, problem.multiprocessors
    if b_major != "K" and (split > 1 or not problem.apart[1]):
        step = 128 // bytes_
        widest = min(256, max(step, 3 * n // most))
        if split > 1:
            return [step]
        half = 2 * n <= step * most and n * problem.k * bytes_ <= _HALF_SPANS
        return [step // 2] * half + list(range(step, widest + 1, step))
    integer = problem.kind.kind != "float"
    if integer and split > 1:
        return []
    least = 8 * split  # each part stores whole groups of 8 columns
    if not problem.places.most(split):
        return []
    share = -(-n // (problem.places.most(split) * least)) * least
    found = sorted({-(-max(share, width) // unit) * unit for width in (16, 24, 32, 64) if width % least == 0})
    if integer:  # the instruction's widths, beyond 24
        found = sorted({width if width <= 24 else -(-width // 16) * 16 for width in found})
    return [width for width in found if width <= (256 if split == 1 else _SPLIT_COLUMNS)] or [256] * (split == 1)


def _overlap(cost: _Cost, stage: int) -> dict[str, Any]:
    """Programmatic dependent launch, and how many stages of so many bytes are fetched early."""
    early = fetched(stage, _FETCHED)
    return {"overlap": True, "trigger": cost.trigger, "prefetch": early if cost.trigger == "start" else 0}


def _when(config: Sm90Config) -> str:
    why = "clusters of four then find their places" if config.split > 2 else "as too many multiprocessors are idle"
    return f"; the next kernel starts when it leaves, {why}" * (config.tuning.trigger == "end")
