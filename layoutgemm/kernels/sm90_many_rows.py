"""What a product of more than 64 rows would take on Hopper, of 16-bit elements: tiles, orientation, clusters, parts.

The weights are the larger operand. Blocks of one column of tiles (of the activations) all need the same weights: where
they are in different clusters, memory's reads of them grow; where blocks of a cluster share the activations and each
has weights of its own, each waits for the other's. So the blocks that share loads share the weights, if they can.
With the operands swapped, M falls into columns of any multiple of 8, and its tiles are as even as can be.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..dtypes import bf16
from .plan_base import STAGE_BYTES_OF_K
from .sm90_few_rows import exchange, most_split

# Fitted to 1233 kernels of 83 shapes on an H200 (132 multiprocessors, 1.98 GHz, HBM3e), in which what is cheapest here
# was 0.4% behind the fastest on average, over 1% in 13 of 98 comparisons: NOTES.md, "Swapped operands for more rows".
_CLOCK = 1.926e9
_HEAT, _HEATING = 0.09, 150e-6  # the share that the clock falls by in long kernels, and how soon
FMA_PER_CYCLE = 2048  # of one multiprocessor: m64n256k16 takes 128 cycles
_READ_A, _READ_COLUMN = 16, 0.25  # cycles in which an instruction of 64 rows reads A, and each column of B
_READ_HIDDEN = 0.146  # the share of them that other instructions hide
_LINES = 10.2  # what products lose by a tile's loads, a row or column of it, against 256x224
_ALONE = 0.0345  # by several waves of blocks that share nothing, where K is long
_PINGPONG = 0.01  # what two warpgroups in turn gain besides
_HALVED = 0.14  # what a tile of 128x256 loses that cannot be finished by halves, or shares loads of short sums
_BANDS = 0.008  # what tiles of 256 rows gain that share A, in bands as high as C: 0.0 to 0.7% measured (NOTES.md)
_L2, _WEIGHTS = 21e12, 1.735  # bytes a second of L2 reads; of weights, which come from memory, so many times as long
_SHARED = 0.635  # of what two blocks share, the part read
_MEMORY, _AGAIN, _APART = 4.79e12, 0.26, 0.375  # memory's; more of weights that clusters read again; or wait for apart
_K_TILE, _STEP = STAGE_BYTES_OF_K // bf16.bytes, 0.0755e-6  # of a k tile, which follow one another
_END, _LARGEST = 1.46e-6, 256 * 224  # a tile's end that no product hides, of so many elements; of others by the root
_END_256, _END_64 = 3.76e-6, 0.2e-6  # more for 256 rows, which have three stages; of 64, stored in one go
_WAVE, _START = 1.0e-6, 0.87e-6  # of each further wave; from one kernel's end to the next one's first product
_CROWDED, _FEW_IDLE = 0.4, 2  # as in `sm90_few_rows`, of memory and L2; what is in clusters does not crowd
_BETWEEN = 0.02  # what boxes cost that two blocks share, and that end between the swizzle's groups of 8 lines
_TOGETHER = 3  # limits that are near each other add up: the norm of this order

_ROWS, _LONG = (64, 128, 256), 4096  # rows of tiles; elements along K from which sharing pays in several waves
_WIDTHS = (64, 96, 128, 160, 176, 192, 208, 224, 256)
_IN_TURN = (96, 192)  # columns of 128-row tiles that two warpgroups take in turn
EVEN = 2048  # columns, at most, that are dealt out to tiles evenly; rows of operands that are worth swapping
_NARROWEST, _SHARES = 40, 12  # columns of a tile, at least, and such tiles, at most
# Below so many rows of activations, and from so many times as many of weights, blocks share the weights or nothing:
# what shared the activations took up to 17% longer than what shared nothing.
_MANY, _UNEQUAL = 1024, 4
_SPLITS = (2, 4)
_WIDEST_SPLIT = {64: 208, 128: 160}  # columns by rows: wider tiles have too few stages, up to 40% behind estimates
WIDE = (128, 256)  # the tile that is finished by halves of its columns, in one wave


@dataclass(frozen=True)
class Estimate:
    """What a tile would cost: seconds, and the sentence that says how.

    swapped   C^T = B^T @ A^T: the tile's rows are columns of C
    pingpong  two warpgroups take tiles in turn
    split     parts of K, a cluster each
    """

    tile: tuple[int, int]
    seconds: float
    waves: int
    tiles: int
    workers: int
    cluster: tuple[int, int] = (1, 1)
    group: int = 8
    along: str = "M"
    pingpong: bool = False
    split: int = 1
    swapped: bool = False

    def __str__(self) -> str:
        rows, columns = self.tile
        name = f"{rows}x{columns}" + " of the transposed product" * self.swapped + " in turn" * self.pingpong
        name += f" in {self.split} parts of K" * (self.split > 1)
        return f"{name}: {self.tiles} tiles, {self.waves} wave(s) of {self.workers}, {self.seconds * 1e6:.1f} us"


@dataclass(frozen=True)
class ManyRows:
    """Sizes as the kernel has them: rows, columns and depth of one of `batch` products, on so many multiprocessors.

    >>> print(ManyRows(512, 4096, 4096, 1, 132).estimate((128, 128), (2, 1), pingpong=False))
    128x128: 128 tiles, 1 wave(s) of 132, 23.2 us
    """

    m: int
    n: int
    k: int
    batch: int
    multiprocessors: int
    swapped: bool = False

    def estimate(self, tile: tuple[int, int], cluster: tuple[int, int], pingpong: bool, split: int = 1) -> Estimate:
        """The cost of a tile."""
        rows, columns = tile
        line, k = 2 * self.k, self.k / split
        grid = -(-self.m // rows), -(-self.n // columns)
        tiles = grid[0] * grid[1] * self.batch
        waves = -(-tiles // self.multiprocessors)
        single = waves == 1
        feed = max(1.0, (_READ_A + _READ_COLUMN * columns) / (columns / 2) * (1 - _READ_HIDDEN))
        rate = max(0.3, 1 - _LINES * max(0.0, 1 / rows + 1 / columns - 1 / 256 - 1 / 224))
        products = waves * rows * columns * k / FMA_PER_CYCLE / _CLOCK / rate * feed
        if not single and cluster == (1, 1) and self.k >= _LONG:
            products *= 1 + _ALONE
        if pingpong:
            products *= 1 - _PINGPONG
        if single and tile == WIDE and (self.swapped or cluster[1] > 1 or (cluster[0] > 1 and self.k < _LONG)):
            products *= 1 + _HALVED
        if rows == 256 and columns >= 192 and cluster == (1, 2) and not single and grid[0] > 2:
            products *= 1 - _BANDS
        products *= 1 + _HEAT * products / (products + _HEATING)
        reads = [grid[1] * (_SHARED if cluster[1] > 1 else 1), grid[0] * (_SHARED if cluster[0] > 1 else 1)]
        weights = self.weights
        reads[weights] *= _WEIGHTS
        l2 = (self.m * reads[0] + self.n * reads[1]) * self.batch * line / _L2
        again = grid[1 - weights] > cluster[1 - weights]
        apart = single and cluster[weights] > 1
        memory = ((self.m + self.n) * line + 2 * self.m * self.n) * self.batch / _MEMORY
        memory *= (1 + _AGAIN * again) * (1 + _APART * apart)
        if single and cluster == (1, 1) and split == 1 and tiles > self.multiprocessors // 2:
            crowded = 1 + _CROWDED * max(0, self.multiprocessors - tiles - _FEW_IDLE) / tiles
            memory, l2 = memory * crowded, l2 * crowded
        ends = (1 if pingpong else waves) * _END * (rows * columns / _LARGEST) ** 0.5
        ends += (waves - 1) * _WAVE + waves * (_END_256 * (rows == 256) + _END_64 * (rows == 64))
        limits = products + ends, l2, memory, waves * k / _K_TILE * _STEP
        seconds = sum(limit**_TOGETHER for limit in limits) ** (1 / _TOGETHER)
        if cluster[0] > 1 and columns % 16:
            seconds *= 1 + _BETWEEN
        seconds += _START + exchange(rows, columns, split)
        tall = rows == 256 and cluster == (1, 2)
        along_n = grid[0] > 16 if tall else cluster[0] > 1 and (single or (rows == 128 and grid[0] > 8))
        return Estimate(
            tile, seconds, waves, tiles, self.multiprocessors, cluster, 16 if tall and grid[0] <= 16 else 8,
            "N" if along_n else "M", pingpong, split, self.swapped,
        )  # fmt: skip

    @property
    def weights(self) -> int:
        """The larger operand: 0 for A, 1 for B."""
        return 0 if self.m > self.n else 1

    def shares(self, grid: tuple[int, int], cluster: tuple[int, int]) -> bool:
        """Whether the blocks of a cluster may share loads in such a grid: none without a tile, none apart (above)."""
        if grid[0] % cluster[0] or grid[1] % cluster[1]:
            return False
        few = min(self.m, self.n)
        return cluster[self.weights] == 1 or few >= _MANY or max(self.m, self.n) < _UNEQUAL * few

    def widths(self, rows: int) -> set[int]:
        """Columns of tiles that may be the fastest: even shares of few columns; of many also what fills waves."""
        found: set[int] = set()
        if self.n <= EVEN:
            found |= {_rounded(self.n, tiles) for tiles in range(1, _SHARES + 1)}
        if self.n > EVEN or not self.swapped:
            found |= set(_WIDTHS)
            for wave in (1, 2, 3):
                if tiles := wave * self.multiprocessors // (-(-self.m // rows) * self.batch):
                    found.add(_rounded(self.n, tiles))
        return {width for width in found if _NARROWEST <= width <= (224 if rows == 256 else 256)}

    def estimates(self) -> Iterator[Estimate]:
        """Of every tile, cluster and schedule that may be the fastest."""
        for rows in _ROWS:
            for columns in self.widths(rows):
                grid = -(-self.m // rows), -(-self.n // columns)
                several = grid[0] * grid[1] * self.batch > self.multiprocessors
                for cluster in ((1, 1), (2, 1), (1, 2)):
                    if self.shares(grid, cluster):
                        yield self.estimate((rows, columns), cluster, False)
                        if several and rows == 128 and _IN_TURN[0] <= columns <= _IN_TURN[1]:
                            yield self.estimate((rows, columns), cluster, True)

    def in_parts(self) -> Iterator[Estimate]:
        """Of few tiles whose sums over K are shared out to the blocks of a cluster."""
        for split in _SPLITS:
            for rows in (64, 128):
                for columns in self.widths(rows):
                    tiles = -(-self.m // rows) * -(-self.n // columns)
                    fit = columns % (8 * split) == 0 and columns <= _WIDEST_SPLIT[rows]
                    fit = fit and tiles <= most_split(self.multiprocessors, split)
                    if fit and self.k >= 1024 * split:
                        yield self.estimate((rows, columns), (1, 1), False, split)


def _rounded(columns: int, tiles: int) -> int:
    """Columns of each of so many tiles: a multiple of 8, as wgmma has them."""
    return -(-columns // (8 * tiles)) * 8
