"""What a product of more than 64 rows would take on Hopper, of 16-bit elements: tiles, orientation, clusters, parts.

The weights are the larger operand. Blocks of one column of tiles (of the activations) all need the same weights: where
they are in different clusters, memory's reads of them grow; where blocks of a cluster share the activations and each
has weights of its own, each waits for the other's. So the blocks that share loads share the weights, if they can.
With the operands swapped, M falls into columns of any multiple of 8, and its tiles are as even as can be.

A cluster at the edge of C may have a block without a tile: it loads its share for the others, and stores nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ....dtypes import bf16
from ....schedule.gpc_order import Dealt, Rounds
from ...plan import STAGE_BYTES_OF_K
from ...store import ROWS
from ..config import MAX_CLUSTER
from ..multicast import LINE
from ..stages import FEW, TALL, buffers, sent, stages, warpgroups
from .occupancy import Places
from .small_m import between

# Fitted to 382 shapes on H200s (132 multiprocessors, 1.98 GHz, HBM3e), in which what is cheapest here was 0.5% behind
# the fastest on average; of 20 others 0.5%, over 1% on 3: NOTES.md, "Split-K exchange without a cluster barrier".
# They go together: long kernels run at _CLOCK / (1 + _HEAT).
_CLOCK = 2.68e9
_HEAT, _HEATING = 0.643, 5.93e-6  # the share that the clock falls by in long kernels, and how soon
_COOL = 0.821  # the power of the share of multiprocessors that work, by which it falls less
_TURN_LOSS = 0.0234  # what tiles in turn lose beside that
FMA_PER_CYCLE = 2048  # of one multiprocessor: m64n256k16 takes 128 cycles
_READ_A, _READ_COLUMN = 16, 0.25  # cycles in which an instruction of 64 rows reads A, and each column of B
_READ_HIDDEN = 0.049  # the share of them that other instructions hide
_LINES = 10  # what products lose by a tile's loads, a row or column of it, against 256x224
_HALVED = 0.0677  # what a tile of 128x256 loses that cannot be finished by halves, or shares loads of short sums
# Bytes a second of L2 reads, in one wave and in several; of weights, which come from memory, so many times as long.
_L2, _L2_LATER, _WEIGHTS = 2.56e13, 3.1e13, 2.88
_SHARED, _SHARED_LATER = 0.594, 0.926  # of what two blocks share, the part read
# What sharing loads takes beside that in several waves, by rows of the tile, of clusters (2,1) and (1,2).
_PAIRED = {64: (1.006, 0.987), 128: (0.997, 0.983), 192: (1.004, 0.999), 256: (1.007, 0.981)}
_MEMORY, _AGAIN, _APART = 4.16e12, 0.0649, 1.3  # memory's; more of weights that clusters read again, or apart
_SHALLOW = 0.658  # how much longer memory takes where there are no more than FEW stages
_K_TILE, _STEP = STAGE_BYTES_OF_K // bf16.bytes, 1.01e-7  # of a k tile, which follow one another
_END, _LARGEST = 2.39e-6, 256 * 224  # a tile's end that no product hides, of so many elements; of others by the root
# More of 256 rows and of 192, of 224 columns, and of fewer by these powers; of 64, which are stored in one go.
_END_256, _POWER_256, _END_192, _POWER_192, _END_64 = 8.52e-7, -0.543, 8.15e-7, -0.08, 2.59e-7
_WAVE, _START = 4.16e-7, 2.15e-6  # of each further wave; from one kernel's end to the next one's first product
_CROWDED, _CROWDED_PARTS, _FEW_IDLE = 0.0921, 0.251, 2  # as in `small_m`, of memory and L2, and of parts of K
# Where lines begin between the memory's: their time in several waves, by that in one; what a multiprocessor takes in
# faster while others are idle, at most.
_LATER, _MOST_EACH = 0.685, 1.3
# Of clusters of four and eight: bytes a second that they bring into one multiprocessor, of lines that begin between the
# memory's and with them; the share of a tile's loads that its products wait for.
_FILL, _FILL_WHOLE, _LARGE_LOSS = 1.36e11, 2.03e11, 0.483
_IN_PART = 0.0262  # what tiles of B's rows cost that end within a span
# What boxes cost that two blocks share, and that end between the swizzle's groups of 8 lines, in one wave and several.
_BETWEEN, _BETWEEN_LATER = 0.00854, 0.00519
_WIDE_ALONE = 0.00293  # what a wave of blocks without a cluster gains, for each 256 columns beyond 128
_LOW_SHARING = 0.00993  # what tiles of 64 rows gain whose blocks share columns
# What swapped operands lose, and lose at the end; what an epilogue's matrices, read across their rows, take for a
# warpgroup's elements.
_TURNED, _TURNED_END, _ACROSS = 0.000764, 3.67e-8, 0.15e-9
# The exchange of partial sums, by so many times for 128 rows, for each byte sent, and of clusters of more than two.
_EXCHANGE, _OF_128, _SENT, _MORE_PARTS = 3.57e-7, 1.33, 3.22e-11, 5.56e-8
# What a kernel in parts takes longer that lets the next one come when it leaves, and from how many blocks on one of
# more than two parts lets it come at once: that gains 2%, and up to 10; with fewer blocks, which share no loads or
# some, the next one's crowd, and take up to 26% longer.
_LATE_PARTS, _EARLY_PARTS, _EARLY_SHARING = 3.18e-7, 100, 76
_TOGETHER, _LINES_TOGETHER = 7.35, 4.23  # limits that are near each other add up: norms of these orders
_OF_FOUR = 1.58e-8  # more of clusters of four and eight

# Blocks of one wave that take tiles by the rounds in which they are dealt out: bytes a second that one takes in, and
# what it costs to wait for the kernel before to leave.
_FILL_DEALT, _AFTER = 2.01e11, 5.61e-7
# From so many operations on kernels of several waves take tiles so, and begin on an idle GPU; what clusters of (2,1)
# then take of what is reckoned: those that lie together share rows of A.
_LONG_WORK, _ROUNDS_OF_A = 45e9, 0.982

# Bytes of the operand that a band of tiles goes over again and again: of more than these L2 keeps too little, and bands
# are narrower. 16384^3 takes 0.8% less time.
_BAND, _FEWER = 60e6, 6

_ROWS, _LONG = (64, 128, 192, 256), 4096  # of tiles; elements along K of a sum that is not short
_WIDTHS = (64, 96, 128, 160, 176, 192, 208, 224, 256)
_IN_TURN = (96, 192)  # columns of 128-row tiles that two warpgroups take in turn
_EVEN = 2048  # columns, at most, that are dealt out to tiles evenly
_NARROWEST, _SHARES = 40, 12  # columns of a tile, at least, and such tiles, at most
_EDGE = 5  # tiles, at least, along a dimension where a cluster's last block may have none
# Below so many rows of activations, and from so many times as many of weights, blocks share the weights or nothing:
# what shared the activations took up to 17% longer than what shared nothing.
_MANY, _UNEQUAL = 1024, 4
_PAIRS = ((2, 1), (1, 2))  # clusters of two blocks
_LARGE = ((4, 1), (1, 4), (2, 2), (2, 4), (4, 2))  # clusters of four and eight
_FILLED = 5  # waves, at most, that tiles of a width of their own fill
_SPLITS = (2, 3, 4)
SPAN = LINE // bf16.bytes  # columns of B's rows in a whole span
_ROWS_SPLIT, _LEAST_SPLIT = (64, 128), 4  # of tiles of a part of K; stages, at least: with fewer up to 40% behind
WIDE = (128, 256)  # the tile that is finished by halves of its columns, in one wave


@dataclass(frozen=True)
class Estimate:
    """What a tile would cost: seconds, and the sentence that says how.

    swapped   C^T = B^T @ A^T: the tile's rows are columns of C
    pingpong  two warpgroups take tiles in turn
    split     parts of K, a cluster each
    dealt     rounds in which the GPU deals clusters out, where tiles are taken by them: see `schedule.Dealt`
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
    dealt: Rounds = ()

    def __str__(self) -> str:
        rows, columns = self.tile
        name = f"{rows}x{columns}" + " of the transposed product" * self.swapped + " in turn" * self.pingpong
        name += f" in {self.split} parts of K" * (self.split > 1) + " dealt out" * bool(self.dealt)
        return f"{name}: {self.tiles} tiles, {self.waves} wave(s) of {self.workers}, {self.seconds * 1e6:.1f} us"


@dataclass(frozen=True)
class ManyRows:
    """Sizes as the kernel has them: rows, columns and depth of one of `batch` products, on so many multiprocessors.

    swapped   rows are columns of C
    matrices  whether an epilogue reads or writes matrices of C's shape
    rows_of   elements of a line of B, if they are not K's: those of the kernel's A if swapped

    >>> print(ManyRows(512, 4096, 4096, 1, Places()).estimate((128, 128), (2, 1), pingpong=False))
    128x128: 128 tiles, 1 wave(s) of 132, 22.5 us
    """

    m: int
    n: int
    k: int
    batch: int
    places: Places
    swapped: bool = False
    matrices: bool = False
    rows_of: int | None = None

    @property
    def multiprocessors(self) -> int:
        """The GPU's."""
        return self.places.multiprocessors

    def grid(self, tile: tuple[int, int], cluster: tuple[int, int] = (1, 1)) -> tuple[int, int]:
        """Tiles along M and N, in whole clusters."""
        (rows, columns), (along_m, along_n) = tile, cluster
        return -(-self.m // (rows * along_m)) * along_m, -(-self.n // (columns * along_n)) * along_n

    def estimate(
        self, tile: tuple[int, int], cluster: tuple[int, int], pingpong: bool, split: int = 1, dealt: bool = False
    ) -> Estimate:
        """The cost of a tile.

        dealt  whether blocks of one wave take tiles by the rounds in which they are dealt out
        """
        rows, columns = tile
        k, grid = -(-self.k // _K_TILE) * _K_TILE / split, self.grid(tile, cluster)
        tiles = grid[0] * grid[1] * self.batch
        waves = -(-tiles // self.multiprocessors)
        products = self._products(tile, cluster, waves, k, tiles * split / waves / self.multiprocessors)
        l2, memory = self._reads(tile, cluster, waves, grid, split, pingpong, dealt)
        ends = (1 if pingpong else waves) * _END * (rows * columns / _LARGEST) ** 0.5 + (waves - 1) * _WAVE
        if rows > 128:
            more, power = (_END_256, _POWER_256) if rows == 256 else (_END_192, _POWER_192)
            ends += waves * more * (columns / 224) ** power
        ends += waves * _END_64 * (rows == 64)
        tiles_of_k = waves * k / _K_TILE
        seconds = _norm(_TOGETHER, products + ends, l2, memory, tiles_of_k * _STEP)
        lines, filled = self._lines(tile, cluster, waves, tiles * split)
        filled += sum(tile) * LINE / _FILL_DEALT * dealt
        seconds = _norm(_LINES_TOGETHER, seconds, tiles_of_k * lines, tiles_of_k * filled)
        if self.rows_of is not None and not self.swapped and columns % SPAN:
            seconds *= 1 + _IN_PART
        if columns % (8 * cluster[0]):
            seconds *= 1 + (_BETWEEN if waves == 1 else _BETWEEN_LATER)
        long = waves > 1 and 2 * self.m * self.n * self.k * self.batch >= _LONG_WORK
        rounds = self.places.dealt(cluster[0] * cluster[1]) if (dealt or long) and split == 1 else ()
        if waves > 1 and cluster in _PAIRS:
            seconds *= _PAIRED[rows][_PAIRS.index(cluster)]
            if rounds and cluster == (2, 1):
                seconds *= _ROUNDS_OF_A
        seconds *= 1 + _TURN_LOSS * pingpong
        if cluster == (1, 1) and waves == 1:
            seconds *= 1 - _WIDE_ALONE * (columns - 128) / 256
        if cluster[0] > 1 and rows == 64:
            seconds *= 1 - _LOW_SHARING
        seconds = seconds * (1 + _TURNED * self.swapped) + _START + _OF_FOUR * (cluster in _LARGE) + _AFTER * dealt
        if split > 1:
            seconds += _EXCHANGE * (_OF_128 if rows > 64 else 1) + _SENT * sent(tile, split)
            seconds += _MORE_PARTS * (cluster[0] * cluster[1] * split > 2)
            seconds += _LATE_PARTS * (not early_parts(cluster, split, tiles))
        seconds += _TURNED_END * self.swapped
        if self.swapped and self.matrices:
            seconds += _ACROSS * waves * rows * columns / warpgroups(tile, waves == 1, pingpong)
        group, along = self._order(tile, cluster, waves, grid, bool(rounds))
        return Estimate(
            tile, seconds, waves, tiles, self.multiprocessors, cluster, group, along, pingpong, split, self.swapped,
            rounds,
        )  # fmt: skip

    def _order(
        self, tile: tuple[int, int], cluster: tuple[int, int], waves: int, grid: tuple[int, int], dealt: bool
    ) -> tuple[int, str]:
        """Clusters of a band, and along which dimension the bands lie."""
        tall = tile[0] == 256 and cluster == (1, 2)
        if waves == 1:
            along_n = self._weights_first(cluster) == (self.weights == 1)
        elif dealt:  # those that lie together share what the blocks of a cluster do not
            along_n = cluster[0] >= cluster[1]
        else:
            along_n = grid[0] > 16 if tall else cluster[0] > 1 and tile[0] in (128, TALL) and grid[0] > 8
        group = 16 if tall and grid[0] <= 16 and not dealt else 8
        side = tile[1] * cluster[1] if along_n else tile[0] * cluster[0]
        if dealt and waves > 1 and group * side * self.k * bf16.bytes > _BAND:
            group = _FEWER
        return group, "N" if along_n else "M"

    def _products(self, tile: tuple[int, int], cluster: tuple[int, int], waves: int, k: float, busy: float) -> float:
        """Seconds of the tensor cores, for the products of `k` of K; `busy`: the share of them that have a tile."""
        rows, columns = tile
        feed = max(1.0, (_READ_A + _READ_COLUMN * columns) / (columns / 2) * (1 - _READ_HIDDEN))
        lost = _LINES * max(0.0, 1 / rows + 1 / columns - 1 / 256 - 1 / 224)
        rate = max(0.3, 1 - lost * (_LARGE_LOSS if cluster in _LARGE else 1.0))
        found = waves * rows * columns * k / FMA_PER_CYCLE / _CLOCK / rate * feed
        if waves == 1 and tile == WIDE:
            short = cluster[0] > 1 and self.k < _LONG
            found *= 1 + _HALVED * (self.swapped or cluster[1] > 1 or short)
        return found * (1 + _HEAT * busy**_COOL * found / (found + _HEATING))

    def _reads(
        self, tile: tuple[int, int], cluster: tuple[int, int], waves: int, grid: tuple[int, int], split: int,
        pingpong: bool, dealt: bool,
    ) -> tuple[float, float]:  # fmt: skip
        """Seconds of L2's reads, and of memory's."""
        line, weights, single = bf16.bytes * self.k, self.weights, waves == 1
        shared = _SHARED if single else _SHARED_LATER
        reads = [grid[1] * shared ** (cluster[1] // 2), grid[0] * shared ** (cluster[0] // 2)]  # of 1, 2 or 4 blocks
        if dealt:  # of the blocks of a place, those of the same rows or columns ask once
            together = Dealt(self.places.dealt(1)).most
            across = min(grid[1 - weights], together)
            reads[weights] /= across
            reads[1 - weights] /= together / across
        reads[weights] *= _WEIGHTS
        l2 = (self.m * reads[0] + self.n * reads[1]) * self.batch * line / (_L2 if single else _L2_LATER)
        memory = ((self.m + self.n) * line + bf16.bytes * self.m * self.n) * self.batch / _MEMORY
        memory *= 1 + _AGAIN * (grid[1 - weights] > cluster[1 - weights])
        memory *= 1 + _APART * (single and cluster[weights] == 2 and cluster not in _LARGE)
        consumers = warpgroups(tile, single, pingpong)
        has = stages(tile, consumers, 0 if split > 1 else buffers(tile, consumers), sent(tile, split))
        memory *= 1 + _SHALLOW * (has <= FEW)
        blocks = grid[0] * grid[1] * self.batch * split
        # What is in clusters that share loads does not crowd, nor what begins when the kernel before has ended.
        soon = not dealt and (split == 1 or early_parts(cluster, split, grid[0] * grid[1]))
        if single and cluster == (1, 1) and soon and blocks > self.multiprocessors // 2:
            share = _CROWDED_PARTS if split > 1 else _CROWDED
            crowded = 1 + share * max(0, self.multiprocessors - blocks - _FEW_IDLE) / blocks
            memory, l2 = memory * crowded, l2 * crowded
        return l2, memory

    def _lines(self, tile: tuple[int, int], cluster: tuple[int, int], waves: int, blocks: int) -> tuple[float, float]:
        """Seconds of a k tile's lines in one multiprocessor: of those that begin between the memory's, as far as it
        asks for them itself (half of what two blocks share); and of all that clusters of four and more bring in."""
        (rows, columns), (along_m, along_n) = tile, cluster
        lines = between((rows / along_n, columns / along_m), self._apart)
        if waves == 1:
            lines /= min(_MOST_EACH, max(1.0, self.multiprocessors / blocks))
        else:
            lines *= _LATER
        if cluster not in _LARGE:
            return lines, 0.0
        steps = zip((rows, columns), self._apart, strict=True)
        return lines, sum(side * LINE / (_FILL if step % LINE else _FILL_WHOLE) for side, step in steps)

    def _weights_first(self, cluster: tuple[int, int]) -> bool:
        """Whether consecutive clusters of one wave have other weights: where most blocks of a cluster share theirs.

        Blocks that begin one after the other ask at about the same time: the activations then, or else the weights.
        """
        return cluster[1 - self.weights] > cluster[self.weights]

    @property
    def _apart(self) -> tuple[int, int]:
        """Bytes from line to line of A, and of B."""
        lines = (self.k if self.rows_of is None else self.rows_of) * bf16.bytes
        return (lines, self.k * bf16.bytes) if self.swapped else (self.k * bf16.bytes, lines)

    @property
    def weights(self) -> int:
        """The larger operand: 0 for A, 1 for B."""
        return 0 if self.m > self.n else 1

    def shares(self, tile: tuple[int, int], cluster: tuple[int, int]) -> bool:
        """Whether the blocks of a cluster may share loads: few without a tile, none apart (above).

        Four and eight do where all find their places at a time: up to a fifth less time where lines begin between the
        memory's, up to a tenth elsewhere.
        """
        grid = self.grid(tile)
        if any(tiles % blocks and tiles < _EDGE for tiles, blocks in zip(grid, cluster, strict=True)):
            return False
        if cluster in _LARGE:
            (across, down), blocks = self.grid(tile, cluster), cluster[0] * cluster[1]
            fit = across * down * self.batch <= blocks * self.places.most(blocks)
            # Rows of MN-major operands are whole spans, which four cannot share out.
            return fit and self.rows_of is None
        few = min(self.m, self.n)
        return cluster[self.weights] == 1 or few >= _MANY or max(self.m, self.n) < _UNEQUAL * few

    def widths(self, rows: int) -> set[int]:
        """Columns of tiles that may be the fastest: even shares of few columns; of many also what fills waves."""
        found: set[int] = set()
        if self.n <= _EVEN:
            found |= {_rounded(self.n, tiles, 8) for tiles in range(1, _SHARES + 1)}
        if self.n > _EVEN or not self.swapped:
            found |= set(_WIDTHS)
            for wave in range(1, _FILLED + 1):
                if tiles := wave * self.multiprocessors // (-(-self.m // rows) * self.batch):
                    found.add(_rounded(self.n, tiles, 8))
        if self.rows_of is None:  # what fills the places of large clusters
            for along_m, along_n in _LARGE:
                blocks = along_m * along_n
                if down := self.places.most(blocks) // (-(-self.m // (rows * along_m)) * self.batch):
                    found.add(_rounded(self.n, down * along_n, 8))
        return {width for width in found if _NARROWEST <= width <= (224 if rows > 128 else 256)}

    def estimates(self) -> Iterator[Estimate]:
        """Of every tile, cluster and schedule that may be the fastest."""
        for rows in _ROWS:
            for columns in self.widths(rows):
                for cluster in ((1, 1), *_PAIRS, *_LARGE):
                    if self.shares((rows, columns), cluster):
                        found = self.estimate((rows, columns), cluster, False)
                        yield found
                        if found.waves == 1 and cluster == (1, 1) and self._may_be_dealt(found):
                            yield self.estimate((rows, columns), cluster, False, dealt=True)
                        if found.waves > 1 and rows == 128 and _IN_TURN[0] <= columns <= _IN_TURN[1]:
                            yield self.estimate((rows, columns), cluster, True)

    def _may_be_dealt(self, of: Estimate) -> bool:
        """Whether blocks of one wave may take their tiles by rounds: several share weights, and each has one tile."""
        several = min(self.grid(of.tile)) > 1 and self.batch == 1 and of.tile != WIDE
        return several and bool(self.places.dealt(1)) and of.tiles > self.multiprocessors // 2

    def in_parts(self) -> Iterator[Estimate]:
        """Of few tiles whose sums over K are shared out to the blocks of a cluster, which may share loads as well."""
        whole = {rows: self.widths(rows) for rows in _ROWS_SPLIT}
        for split in _SPLITS:
            for cluster in ((1, 1), *_PAIRS, *_LARGE):
                blocks = cluster[0] * cluster[1] * split
                if blocks > MAX_CLUSTER or self.k < 1024 * split:
                    continue
                for rows, widths in whole.items():
                    for columns in self._widths_of_parts(rows, widths, cluster, split):
                        tile = rows, columns
                        across, down = self.grid(tile, cluster)
                        fit = across * down * split <= blocks * self.places.resident(blocks)
                        if fit and self.shares(tile, cluster):
                            yield self.estimate(tile, cluster, False, split)

    def _widths_of_parts(self, rows: int, whole: set[int], cluster: tuple[int, int], split: int) -> set[int]:
        """Columns of tiles that have the stages, a part whole groups of 8: those of whole sums, even shares, and what
        fills the places."""
        unit, (along_m, along_n) = 8 * split, cluster
        found = set(whole)
        if self.n <= _EVEN:
            found |= {_rounded(self.n, tiles, unit) for tiles in range(1, _SHARES + 1)}
        clusters = self.places.resident(along_m * along_n * split)
        if down := clusters // -(-self.m // (rows * along_m)):
            found.add(_rounded(self.n, down * along_n, unit))
        return {
            columns
            for columns in found
            if columns % unit == 0 and _NARROWEST <= columns <= 256
            and stages((rows, columns), rows // ROWS, 0, sent((rows, columns), split)) >= _LEAST_SPLIT
        }  # fmt: skip


def early_parts(cluster: tuple[int, int], split: int, tiles: int) -> bool:
    """Whether a kernel of so many tiles in parts of K lets the next one come before it leaves.

    >>> [early_parts((1, 1), 3, tiles) for tiles in (39, 30)], early_parts((2, 1), 2, 40)
    ([True, False], True)
    """
    if cluster == (1, 1):
        return split == 2 or tiles * split >= _EARLY_PARTS
    return tiles * split >= _EARLY_SHARING


def _norm(order: float, *limits: float) -> float:
    total: float = sum([limit**order for limit in limits if limit > 0], 0.0)
    found: float = total ** (1 / order)
    return found


def _rounded(columns: int, tiles: int, unit: int) -> int:
    """Columns of each of so many tiles: a multiple of `unit`; of 8, as wgmma has them."""
    return -(-columns // (unit * tiles)) * unit
