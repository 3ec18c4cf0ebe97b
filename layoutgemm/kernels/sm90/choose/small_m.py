"""The cost model for M up to 64: the weights' memory traffic decides the time.

Every multiprocessor takes an equal share of them: a block's columns are chosen so that there is one block each. Where
the instruction's 64 rows are better filled with weights, the operands change places. The next kernel's CTAs count too.
With PDL they start wherever an SM is idle. If a grid leaves more than a few idle, they crowd in some GPCs, each of
which has an eighth of the memory rate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ....dtypes import DType
from ...store import WARP_ROWS
from ..config import Sm90Config
from ..multicast import LINE
from ..types import output_of
from .costs import cost_model
from .occupancy import ClusterOccupancy
from .stages import sent

MODEL = cost_model("few_rows")
_SPLITS = 1, 2, 4
_SPLIT_COLUMNS = 80  # at most, of a split-K tile
_HELD = 128  # columns up to which threads store what they hold
_DEEP = 232  # columns up to which three stages of 256 bytes of K fit beside 64 rows of A


def crowded(blocks: int, multiprocessors: int) -> float:
    """The share by which memory takes longer for a single wave, with PDL.

    >>> [round(crowded(blocks, 132), 2) for blocks in (132, 128, 120, 112, 96, 72, 64)]
    [0.0, 0.01, 0.05, 0.1, 0.23, 0.52, 0.02]
    """
    idle = multiprocessors % blocks  # as many grids as fit run, or wait, at a time
    return MODEL.crowded * max(0, idle - MODEL.few_idle) / blocks


def between(asked: tuple[float, float], apart: tuple[int, int]) -> float:
    """Seconds of unaligned 128-byte lines into one SM.

    asked   lines of A and of B that a block asks for: half of what two blocks share, a quarter of what four do
    apart   bytes from one line of the matrix to the next, of A and of B; multiples of 128 cost nothing here

    >>> [round(between((128, 256), (2 * k, 2 * k)) * 1e9) for k in (3008, 3040, 3024, 3000)]
    [0, 582, 644, 939]
    """
    steps = [bytes_ % LINE for bytes_ in apart]
    return sum(lines / MODEL.unaligned[max(16, step & -step)] for lines, step in zip(asked, steps, strict=True) if step)


@dataclass(frozen=True)
class SmallMChoice:
    """The configuration, whether the operands change places, and why."""

    config: Sm90Config
    swapped: bool
    reason: str


@dataclass(frozen=True)
class _Cost:
    """Estimated seconds of one form of the kernel, and its settings."""

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
    """A product, and the GPU that it runs on."""

    m: int
    n: int
    k: int
    batch: int
    kind: DType
    places: ClusterOccupancy
    b_major: str = "K"

    def tile_k(self, columns: int) -> int:
        """256 bytes of K, of the widest half. Deeper tiles leave too few stages, flatter ones cost a barrier more."""
        return (256 if columns <= _DEEP else 128) // self.kind.bytes

    def straight(self, rows: int, columns: int, split: int) -> _Cost:
        """The cost of tiles of `columns` columns of weights."""
        shared = 2 if self.both(rows, columns, split) else 1
        found = self.cost(-(-self.n // columns), columns, split, rows, columns, rows / shared)
        return found.less(MODEL.at_once * (split > 1 and rows <= WARP_ROWS))

    def turned(self, columns: int, split: int) -> _Cost:
        """The cost of tiles of 64 rows of weights: swapped operands."""
        found = self.cost(-(-self.n // 64), columns, split, columns, 64, columns)
        return found.less(MODEL.at_once_swapped * (split > 1 and columns <= WARP_ROWS))

    def both(self, rows: int, columns: int, split: int) -> bool:
        """True if two CTAs share A where that was measured to pay. Long sums and wide tiles of row-major weights gain
        up to 1%, unaligned lines up to a quarter."""
        tiles, apart = -(-self.n // columns), self.apart != (0, 0)
        wide = columns >= 64 and (self.k * self.kind.bytes >= MODEL.long_k or (self.b_major != "K" and columns >= 128))
        # The last of an odd number of tiles is alone in its cluster: its share of A has no other reader.
        even = tiles % 2 == 0 or (apart and tiles >= MODEL.sharing_tiles)
        fit = rows == 64 and even and tiles + tiles % 2 <= self.multiprocessors
        pays = wide or (apart and columns >= MODEL.sharing_columns)
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
        """The cost of `tiles` tiles in `split` parts of K.

        weights, others  lines along K of weights and of the other operand in a tile
        asked            lines of the other operand that a CTA asks for itself
        """
        blocks = tiles * split * self.batch
        waves = -(-blocks // self.multiprocessors)
        each = (others + weights) * self.k * self.kind.bytes / split
        memory, steps = self._memory(weights), self._steps(columns, split, waves)
        one = waves * max(each / MODEL.one_sm, self._lines(blocks, split, (asked, weights)))
        l2 = blocks * each / MODEL.l2
        more = MODEL.start + exchange(64, columns, split)
        if waves > 1:
            idle = -blocks % self.multiprocessors / waves
            limits = memory * (1 + MODEL.last_wave * idle), one, steps, l2
            return _Cost(max(limits) + more + (waves - 1) * MODEL.wave, "start", columns, split, _largest(limits))
        sparse = MODEL.sparse * min(1.0, max(0, self.multiprocessors - MODEL.spare - blocks) / MODEL.many_idle)
        longer = crowded(blocks, self.multiprocessors)
        early = memory * (1 + max(sparse, longer)), one * (1 + MODEL.crowded_one * longer), steps, l2
        late = memory * (1 + sparse), one, steps, l2
        start, end = _both(early) + more, _both(late) + more + MODEL.late
        if start <= end and split <= 2:
            return _Cost(start, "start", columns, split, _largest(early))
        return _Cost(end, "end", columns, split, _largest(late))

    def _memory(self, weights: int) -> float:
        """Seconds of DRAM reads and writes for tiles of `weights` lines of weights."""
        least = (self.m + self.n) * self.k * self.kind.bytes + self.m * self.n * output_of(self.kind).bytes
        return least * self.batch / MODEL.memory * (MODEL.narrow if weights < MODEL.narrow_lines else 1.0)

    def _steps(self, columns: int, split: int, waves: int) -> float:
        """Seconds of a CTA's K tiles, one after another."""
        k_tiles = -(-self.k * self.kind.bytes // 256) / split
        return k_tiles * waves * (MODEL.step + MODEL.step_column * columns)

    def _lines(self, blocks: int, split: int, asked: tuple[float, float]) -> float:
        """Seconds of the unaligned lines into one SM."""
        slow = -(-self.k * self.kind.bytes // LINE) / split * between(asked, self.apart)
        return slow * (MODEL.unaligned_longer / min(MODEL.most_each, max(1.0, self.multiprocessors / blocks)))

    def fits(self, tiles: int, split: int) -> bool:
        """True if clusters of `split` CTAs are resident for all tiles."""
        return split == 1 or tiles * self.batch <= self.places.most(split)


def _both(limits: tuple[float, ...]) -> float:
    return float(sum(limit**MODEL.together for limit in limits) ** (1 / MODEL.together))


def _largest(limits: tuple[float, ...]) -> str:
    return ("memory", "what one multiprocessor loads", "k tiles one after another", "L2")[limits.index(max(limits))]


def exchange(rows: int, columns: int, split: int) -> float:
    """Seconds of the split-K exchange of `split` parts."""
    return MODEL.exchange + MODEL.exchange_kb * sent((rows, columns), split) / 1024 if split > 1 else 0.0


def fetched(stage: int, most: int) -> int:
    """K tiles of `stage` bytes that a block fetches early. Up to `most` bytes, and two."""
    return min(2, max(1, most // stage))


def for_few_rows(
    m: int, n: int, k: int, batch: int, kind: DType, b_major: str, places: ClusterOccupancy, unit: int, swappable: bool
) -> SmallMChoice:
    """The kernel for M up to 64.

    unit        a tile's columns are a multiple of it, in each of K's parts; 1 for one sum an element
    swappable   whether C^T = B^T @ A^T is a way to compute it

    >>> from layoutgemm.dtypes import dtype
    >>> found = for_few_rows(16, 6144, 4096, 1, dtype("bf16"), "K", ClusterOccupancy(), 1, True)
    >>> found.config.tile, found.config.tuning.trigger
    ((64, 48), 'start')
    >>> found = for_few_rows(16, 6144, 4096, 1, dtype("bf16"), "MN", ClusterOccupancy(), 1, True)
    >>> found.config.tile, found.config.tuning.trigger  # 96 blocks: 36 multiprocessors have none
    ((64, 64), 'end')
    """
    problem = _Problem(m, n, k, batch, kind, places, b_major)
    rows = -(-m // 8) * 8
    costs = [
        problem.straight(rows, width, split)
        for split in (_SPLITS if unit == 1 or b_major == "K" else (1,))
        for width in _widths(problem, b_major, unit if unit == 1 else unit * split, split)
        if problem.fits(-(-n // width), split)
    ]
    straight = min(costs, key=lambda cost: (cost.seconds, cost.columns))
    width, tiles = 16 if m <= 16 else 32 if m <= 32 else 64, -(-n // 64)
    turns = [s for s in _SPLITS if width % (8 * s) == 0 and problem.fits(tiles, s)]
    turned = min([problem.turned(width, split) for split in turns], key=lambda cost: cost.seconds)
    # Of weights in rows (MN-major) the halves of K are worth it for M up to 32 alone: at 64 they lose 1%.
    swappable = swappable and (b_major == "K" or m <= 32)
    if swappable and turned.seconds <= straight.seconds * (MODEL.alike if turned.split == 1 else 1):
        return _swapped(problem, turned, straight)
    return _in_place(problem, straight, rows)


def _swapped(problem: _Problem, turned: _Cost, straight: _Cost) -> SmallMChoice:
    """The kernel of C^T = B^T @ A^T."""
    width, split, tile_k = turned.columns, turned.split, problem.tile_k(turned.columns)
    # Of 16 columns in parts of K each thread has few, and stores them at once: 0.5% in the median, and up to 11.
    store = "direct" if split > 1 and width == WARP_ROWS else "tma"
    config = _configured(problem, turned, (64 + width) * tile_k, (64, width), tile_k=tile_k, split=split, store=store)
    return SmallMChoice(config, True, (
        f"operands swapped, {-(-problem.n // 64)} tiles of 64 columns" + f", each of {split} blocks" * (split > 1)
        + f": {turned.seconds * 1e6:.1f} us; {straight.columns} columns a block would take "
        + f"{straight.seconds * 1e6:.1f} us" + _when(config)
    ))  # fmt: skip


def _in_place(problem: _Problem, cost: _Cost, rows: int) -> SmallMChoice:
    """The kernel of C = A @ B, with `rows` loaded rows of A."""
    columns, parts, tile_k = cost.columns, cost.split, problem.tile_k(cost.columns)
    both = problem.both(rows, columns, parts)
    # One warp of the four has rows: its threads store what they hold at once. Up to 0.9%; of 64 rows, or 256 columns,
    # it would cost 1 to 3% (NOTES.md, "The bound of a load-only kernel").
    direct = rows <= WARP_ROWS and columns <= _HELD
    config = _configured(
        problem, cost, (rows + columns) * tile_k, (64, columns), tile_k=tile_k, split=parts, chunks=parts,
        loaded_a_rows=rows if rows < 64 else None, first="B", store="direct" if direct else "tma",
        cluster=(1, 2) if both else (1, 1), along="N" if problem.batch == 1 else "M",
    )  # fmt: skip
    return SmallMChoice(config, False, (
        f"{-(-problem.n // columns)} tiles of {columns} columns" + f", each of {parts} blocks," * (parts > 1)
        + f" on {problem.multiprocessors} multiprocessors; bound by {cost.bound}, {cost.seconds * 1e6:.1f} us"
        + "; two blocks share A" * both + "; threads store what they hold" * direct + _when(config)
    ))  # fmt: skip


def _configured(problem: _Problem, cost: _Cost, elements: int, tile: tuple[int, int], **settings: Any) -> Sm90Config:
    """A configuration with PDL, whose stages hold `elements` elements."""
    early = fetched(elements * problem.kind.bytes, MODEL.fetched) if cost.trigger == "start" else 0
    launch = "tiles" if problem.batch == 1 else "workers"  # of a batch tiles are numbered
    return Sm90Config(
        tile, consumers=1, loader="warp", one_tile_per_cluster=True, launch=launch, overlap=True, trigger=cost.trigger,
        prefetch=early, **settings,
    )  # fmt: skip


def _widths(problem: _Problem, b_major: str, unit: int, split: int) -> list[int]:
    """Columns of a block that may be the fastest: as even a share as there is, or, of rows that begin with the memory's
    lines, whole spans of 128 bytes."""
    n, bytes_, most = problem.n, problem.kind.bytes, problem.multiprocessors
    if b_major != "K" and (split > 1 or not problem.apart[1]):
        step = 128 // bytes_
        widest = min(256, max(step, 3 * n // most))
        if split > 1:
            return [step]
        half = 2 * n <= step * most and n * problem.k * bytes_ <= MODEL.half_spans
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


def _when(config: Sm90Config) -> str:
    why = "clusters of four then find their places" if config.split > 2 else "as too many multiprocessors are idle"
    return f"; the next kernel starts when it leaves, {why}" * (config.tuning.trigger == "end")
