"""The cost model of products of more than 64 rows on Hopper, 16-bit elements.

The weights are the larger operand. All CTAs of one column of tiles (of the activations) need the same weights. In
different clusters they read them from memory more often. If CTAs of a cluster share the activations and have different
weights, each waits for the other's. So the blocks that share loads share the weights, if they can.
With swapped operands M is split into columns of any multiple of 8: even tiles.

A cluster at the edge of C may have a block without a tile: it loads its share for the others, and stores nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ....checks.budgets import WARPGROUP
from ....dtypes import bf16
from ....schedule.gpc_order import GpcOrder, Rounds
from ...plan import STAGE_BYTES_OF_K
from ...store import ROWS
from ..config import BESIDE_MATRICES, MAX_CLUSTER
from ..multicast import LINE
from .costs import cost_model
from .occupancy import ClusterOccupancy
from .reductions import NO_REDUCTIONS, ReductionCost
from .small_m import between
from .stages import FEW, TALL, buffers, sent, stages, warpgroups

MODEL = cost_model("many_rows")
LONG_WORK = MODEL.long_work  # operations from which several waves take tiles by the GPU's rounds
FMA_PER_CYCLE = 2048  # of one SM: m64n256k16 takes 128 cycles
_LARGEST = 256 * 224  # elements of the tile that others are compared with
_K_TILE = STAGE_BYTES_OF_K // bf16.bytes

# Candidates.
_ROWS = (64, 128, 192, 256)  # of tiles
_WIDTHS = (64, 96, 128, 160, 176, 192, 208, 224, 256)
_IN_TURN = (96, 192)  # columns of 128-row tiles of pingpong
_EVEN = 2048  # columns at most that are shared out to tiles evenly
_NARROWEST, _SHARES = 40, 12  # columns of a tile at least, and such tiles at most
_PAIRS = ((2, 1), (1, 2))  # clusters of two CTAs
_LARGE = ((4, 1), (1, 4), (2, 2), (2, 4), (4, 2))  # clusters of four and eight
_FILLED = 5  # waves at most that tiles of a width of their own fill
_SPLITS, _ROWS_SPLIT = (2, 3, 4), (64, 128)  # parts of K, and rows of their tiles
SPAN = LINE // bf16.bytes  # columns of B's rows in a whole span
WIDE = (128, 256)  # the tile that is finished by halves of its columns, in one wave


@dataclass(frozen=True)
class Estimate:
    """A tile's estimated seconds, and the sentence that explains them.

    swapped   C^T = B^T @ A^T: the tile's rows are columns of C
    pingpong  two warpgroups take tiles in turn
    split     parts of K, a cluster each
    gpc_rounds  rounds in which the GPU deals clusters out, where tiles are taken by them: see `schedule.GpcOrder`
    reduced   seconds of the epilogue's reductions, a part of `seconds`
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
    gpc_rounds: Rounds = ()
    reduced: float = 0.0

    def __str__(self) -> str:
        rows, columns = self.tile
        name = f"{rows}x{columns}" + " of the transposed product" * self.swapped + " in turn" * self.pingpong
        name += f" in {self.split} parts of K" * (self.split > 1) + " dealt out" * bool(self.gpc_rounds)
        return f"{name}: {self.tiles} tiles, {self.waves} wave(s) of {self.workers}, {self.seconds * 1e6:.1f} us" + (
            f", {self.reduced * 1e6:.1f} of them for reductions" if self.reduced else ""
        )


class _Launch(NamedTuple):
    """A candidate launch: tile, cluster, grid of tiles, waves, split-K and schedule."""

    tile: tuple[int, int]
    cluster: tuple[int, int]
    grid: tuple[int, int]
    tiles: int
    waves: int
    split: int
    pingpong: bool
    by_gpc: bool


@dataclass(frozen=True)
class LargeMModel:
    """Sizes as the kernel has them. Rows, columns and depth of one of `batch` products, on `places` multiprocessors.

    swapped   rows are columns of C
    matrices  whether an epilogue reads or writes matrices of C's shape
    read      (matrices of C's shape that it reads in whole lines, reductions of rows)
    reduced   its reductions, of the kernel's rows and columns
    rows_of   elements of a line of B, if they are not K's: those of the kernel's A if swapped

    >>> print(LargeMModel(512, 4096, 4096, 1, ClusterOccupancy()).estimate((128, 128), (2, 1), pingpong=False))
    128x128: 128 tiles, 1 wave(s) of 132, 22.5 us
    """

    m: int
    n: int
    k: int
    batch: int
    places: ClusterOccupancy
    swapped: bool = False
    matrices: bool = False
    rows_of: int | None = None
    read: tuple[int, int] = (0, 0)
    reduced: ReductionCost = NO_REDUCTIONS

    @property
    def multiprocessors(self) -> int:
        """The GPU's."""
        return self.places.multiprocessors

    def grid(self, tile: tuple[int, int], cluster: tuple[int, int] = (1, 1)) -> tuple[int, int]:
        """Tiles along M and N, in whole clusters."""
        (rows, columns), (along_m, along_n) = tile, cluster
        return -(-self.m // (rows * along_m)) * along_m, -(-self.n // (columns * along_n)) * along_n

    def estimate(
        self, tile: tuple[int, int], cluster: tuple[int, int], pingpong: bool, split: int = 1, by_gpc: bool = False
    ) -> Estimate:
        """The cost of a tile.

        by_gpc  True if CTAs of one wave take tiles by the rounds in which the GPU deals them out
        """
        rows, columns = tile
        grid = self.grid(tile, cluster)
        tiles = grid[0] * grid[1] * self.batch
        waves = -(-tiles // self.multiprocessors)
        launch = _Launch(tile, cluster, grid, tiles, waves, split, pingpong, by_gpc)
        crowding = self._crowding(launch)
        tiles_of_k = waves * self._depth(split) / _K_TILE
        seconds = _norm(
            MODEL.together, self._products(launch) + self._ends(launch), self._l2(launch) * crowding,
            self._memory(launch) * crowding, tiles_of_k * MODEL.step,
        )  # fmt: skip
        lines, filled = self._lines(launch), self._fill(launch)
        seconds = _norm(MODEL.lines_together, seconds, tiles_of_k * lines, tiles_of_k * filled)
        if self.rows_of is not None and not self.swapped and columns % SPAN:
            seconds *= 1 + MODEL.part_span
        if columns % (8 * cluster[0]):
            seconds *= 1 + (MODEL.between if waves == 1 else MODEL.between_later)
        long = waves > 1 and 2 * self.m * self.n * self.k * self.batch >= LONG_WORK
        rounds = self.places.gpc_rounds(cluster[0] * cluster[1]) if (by_gpc or long) and split == 1 else ()
        if waves > 1 and cluster in _PAIRS:
            seconds *= MODEL.paired[rows][_PAIRS.index(cluster)]
            if rounds and cluster == (2, 1):
                seconds *= MODEL.rounds_of_a
        seconds *= 1 + MODEL.turn_loss * pingpong
        if cluster == (1, 1) and waves == 1:
            seconds *= 1 - MODEL.wide_alone * (columns - 128) / 256
        if cluster[0] > 1 and rows == 64:
            seconds *= 1 - MODEL.low_sharing
        seconds *= 1 + MODEL.swapped * self.swapped
        seconds = seconds + MODEL.start + MODEL.large * (cluster in _LARGE) + MODEL.after * by_gpc
        if split > 1:
            seconds += MODEL.exchange * (MODEL.exchange_128 if rows > 64 else 1) + MODEL.sent * sent(tile, split)
            seconds += MODEL.more_parts * (cluster[0] * cluster[1] * split > 2)
            seconds += MODEL.late_split * (not early_parts(cluster, split, tiles))
        seconds += MODEL.swapped_end * self.swapped
        reduced = self._reductions(launch)
        seconds += self._matrices(launch) + reduced
        group, along = self._order(launch, bool(rounds))
        return Estimate(
            tile, seconds, waves, tiles, self.multiprocessors, cluster, group, along, pingpong, split, self.swapped,
            rounds, reduced,
        )  # fmt: skip

    def _reductions(self, launch: _Launch) -> float:
        """Seconds of an epilogue's reductions; those of rows beside matrices that are read are counted with them."""
        cost = self.reduced
        if launch.waves > 1 and self.read[0]:
            cost = cost._replace(columns=(0, 0)) if self.swapped else cost._replace(rows=(0, 0))
        return cost.seconds(launch.waves * launch.tile[0] * launch.tile[1])

    def _matrices(self, launch: _Launch) -> float:
        """Seconds of an epilogue's matrices of C's shape. Lines that are read in one wave were not measured."""
        (rows, columns), waves, pingpong = launch.tile, launch.waves, launch.pingpong
        elements = waves * rows * columns
        if waves > 1 and self.read[0]:
            buffered, alone, in_turn, across = MODEL.read
            held = rows * columns // WARPGROUP // (1 if pingpong else warpgroups(launch.tile, once=False))
            of = across if self.swapped else alone if held > BESIDE_MATRICES else in_turn if pingpong else buffered
            return float(elements * sum(count * each for count, each in zip(self.read, of, strict=True)))
        if not (self.swapped and self.matrices):
            return 0.0
        return float(MODEL.across * elements / warpgroups(launch.tile, waves == 1, pingpong))

    def _order(self, launch: _Launch, by_gpc: bool) -> tuple[int, str]:
        """Clusters of a band, and the dimension along which the bands lie."""
        tile, cluster, grid, waves = launch.tile, launch.cluster, launch.grid, launch.waves
        tall = tile[0] == 256 and cluster == (1, 2)
        if waves == 1:
            along_n = self._weights_first(cluster) == (self.weights == 1)
        elif by_gpc:
            along_n = dealt_along(cluster) == "N"
        else:
            along_n = grid[0] > 16 if tall else cluster[0] > 1 and tile[0] in (128, TALL) and grid[0] > 8
        group = 16 if tall and grid[0] <= 16 and not by_gpc else 8
        side = tile[1] * cluster[1] if along_n else tile[0] * cluster[0]
        if by_gpc and waves > 1 and group * side * self.k * bf16.bytes > MODEL.band:
            group = MODEL.narrow_band
        return group, "N" if along_n else "M"

    def _depth(self, split: int) -> float:
        """Elements along K of a CTA, in whole K tiles."""
        return -(-self.k // _K_TILE) * _K_TILE / split

    def _products(self, launch: _Launch) -> float:
        """Seconds of the tensor cores."""
        (rows, columns), cluster, waves = launch.tile, launch.cluster, launch.waves
        busy = launch.tiles * launch.split / waves / self.multiprocessors  # the share of SMs that have a tile
        feed = max(1.0, (MODEL.read_a + MODEL.read_column * columns) / (columns / 2) * (1 - MODEL.read_hidden))
        lost = MODEL.lines * max(0.0, 1 / rows + 1 / columns - 1 / 256 - 1 / 224)
        rate = max(0.3, 1 - lost * (MODEL.large_loss if cluster in _LARGE else 1.0))
        found = waves * rows * columns * self._depth(launch.split) / FMA_PER_CYCLE / MODEL.clock / rate * feed
        if waves == 1 and launch.tile == WIDE:
            short = cluster[0] > 1 and self.k < MODEL.long_k
            found *= 1 + MODEL.halved * (self.swapped or cluster[1] > 1 or short)
        return found * (1 + MODEL.heat * busy**MODEL.cool * found / (found + MODEL.heating))

    def _ends(self, launch: _Launch) -> float:
        """Seconds of the tiles' ends that no product hides, and of further waves."""
        (rows, columns), waves = launch.tile, launch.waves
        turns = 1 if launch.pingpong else waves
        ends = turns * MODEL.end * (rows * columns / _LARGEST) ** 0.5 + (waves - 1) * MODEL.wave
        if rows > 128:
            more, power = (MODEL.end_256, MODEL.power_256) if rows == 256 else (MODEL.end_192, MODEL.power_192)
            ends += waves * more * (columns / 224) ** power
        return ends + waves * MODEL.end_64 * (rows == 64)

    def _l2(self, launch: _Launch) -> float:
        """Seconds of all L2 reads."""
        grid, cluster, weights, single = launch.grid, launch.cluster, self.weights, launch.waves == 1
        shared = MODEL.shared if single else MODEL.shared_later
        reads = [grid[1] * shared ** (cluster[1] // 2), grid[0] * shared ** (cluster[0] // 2)]  # of 1, 2 or 4 blocks
        if launch.by_gpc:  # of the blocks of a place, those of the same rows or columns ask once
            together = GpcOrder(self.places.gpc_rounds(1)).most
            across = min(grid[1 - weights], together)
            reads[weights] /= across
            reads[1 - weights] /= together / across
        reads[weights] *= MODEL.weights
        moved = (self.m * reads[0] + self.n * reads[1]) * self.batch * (bf16.bytes * self.k)
        return moved / (MODEL.l2 if single else MODEL.l2_later)

    def _memory(self, launch: _Launch) -> float:
        """Seconds of DRAM reads and writes."""
        tile, cluster, weights, split = launch.tile, launch.cluster, self.weights, launch.split
        single, line = launch.waves == 1, bf16.bytes * self.k
        memory = ((self.m + self.n) * line + bf16.bytes * self.m * self.n) * self.batch / MODEL.memory
        memory *= 1 + MODEL.again * (launch.grid[1 - weights] > cluster[1 - weights])
        memory *= 1 + MODEL.apart * (single and cluster[weights] == 2 and cluster not in _LARGE)
        consumers = warpgroups(tile, single, launch.pingpong)
        has = stages(tile, consumers, 0 if split > 1 else buffers(tile, consumers), sent(tile, split))
        return memory * (1 + MODEL.shallow * (has <= FEW))

    def _crowding(self, launch: _Launch) -> float:
        """The factor of memory's and L2's time for SMs that a single wave leaves idle.

        Clusters that share loads do not crowd, nor does a kernel that starts when the previous one has ended.
        """
        grid, split = launch.grid, launch.split
        blocks = launch.tiles * split
        soon = not launch.by_gpc and (split == 1 or early_parts(launch.cluster, split, grid[0] * grid[1]))
        if launch.waves > 1 or launch.cluster != (1, 1) or not soon or blocks <= self.multiprocessors // 2:
            return 1.0
        share = MODEL.crowded_split if split > 1 else MODEL.crowded
        return 1 + share * max(0, self.multiprocessors - blocks - MODEL.few_idle) / blocks

    def _lines(self, launch: _Launch) -> float:
        """Seconds of a K tile's unaligned lines that a CTA asks for itself."""
        (rows, columns), (along_m, along_n) = launch.tile, launch.cluster
        lines = between((rows / along_n, columns / along_m), self._apart)
        if launch.waves > 1:
            return lines * MODEL.later
        blocks = launch.tiles * launch.split
        return lines / min(MODEL.most_each, max(1.0, self.multiprocessors / blocks))

    def _fill(self, launch: _Launch) -> float:
        """Seconds of all lines of a K tile into one SM: of clusters of four and eight, and of tiles by GPC."""
        filled = 0.0
        if launch.cluster in _LARGE:
            steps = zip(launch.tile, self._apart, strict=True)
            filled = sum(side * LINE / (MODEL.fill if step % LINE else MODEL.fill_whole) for side, step in steps)
        return filled + sum(launch.tile) * LINE / MODEL.fill_dealt * launch.by_gpc

    def _weights_first(self, cluster: tuple[int, int]) -> bool:
        """True if consecutive clusters of one wave have different weights: most CTAs of a cluster share theirs.

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
        """True if the CTAs of a cluster may share loads. Few without a tile, none apart (above).

        Four and eight do where all find their places at a time: up to a fifth less time where lines begin between the
        memory's, up to a tenth elsewhere.
        """
        grid = self.grid(tile)
        if any(tiles % blocks and tiles < MODEL.edge for tiles, blocks in zip(grid, cluster, strict=True)):
            return False
        if cluster in _LARGE:
            (across, down), blocks = self.grid(tile, cluster), cluster[0] * cluster[1]
            fit = across * down * self.batch <= blocks * self.places.most(blocks)
            # Rows of MN-major operands are whole spans, which four cannot share out.
            return fit and self.rows_of is None
        few = min(self.m, self.n)
        return cluster[self.weights] == 1 or few >= MODEL.many or max(self.m, self.n) < MODEL.unequal * few

    def widths(self, rows: int) -> set[int]:
        """Columns of tiles that may be the fastest: even shares of few columns. Of many also what fills waves."""
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
        """Estimates of every tile, cluster and schedule that may be the fastest."""
        for rows in _ROWS:
            for columns in self.widths(rows):
                for cluster in ((1, 1), *_PAIRS, *_LARGE):
                    if self.shares((rows, columns), cluster):
                        found = self.estimate((rows, columns), cluster, False)
                        yield found
                        if found.waves == 1 and cluster == (1, 1) and self._may_order_by_gpc(found):
                            yield self.estimate((rows, columns), cluster, False, by_gpc=True)
                        if found.waves > 1 and rows == 128 and _IN_TURN[0] <= columns <= _IN_TURN[1]:
                            yield self.estimate((rows, columns), cluster, True)

    def _may_order_by_gpc(self, of: Estimate) -> bool:
        """True if CTAs of one wave may take tiles by rounds: several share weights, and each has one tile."""
        several = min(self.grid(of.tile)) > 1 and self.batch == 1 and of.tile != WIDE
        return several and bool(self.places.gpc_rounds(1)) and of.tiles > self.multiprocessors // 2

    def in_parts(self) -> Iterator[Estimate]:
        """Estimates of split-K: few tiles, whose CTAs may share loads as well."""
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
            and stages((rows, columns), rows // ROWS, 0, sent((rows, columns), split)) >= MODEL.least_split
        }  # fmt: skip


def dealt_along(cluster: tuple[int, int]) -> str:
    """The axis of the bands of tiles that are dealt out by GPC. Those together share what a cluster does not.

    >>> dealt_along((2, 1)), dealt_along((1, 2))
    ('N', 'M')
    """
    return "N" if cluster[0] >= cluster[1] else "M"


def early_parts(cluster: tuple[int, int], split: int, tiles: int) -> bool:
    """True if a split-K kernel of `tiles` tiles has trigger="start".

    >>> [early_parts((1, 1), 3, tiles) for tiles in (39, 30)], early_parts((2, 1), 2, 40)
    ([True, False], True)
    """
    if cluster == (1, 1):
        return split == 2 or tiles * split >= MODEL.early_split
    return tiles * split >= MODEL.early_sharing


def _norm(order: float, *limits: float) -> float:
    total: float = sum([limit**order for limit in limits if limit > 0], 0.0)
    found: float = total ** (1 / order)
    return found


def _rounded(columns: int, tiles: int, unit: int) -> int:
    """Columns of each of `tiles` tiles: a multiple of `unit`; of 8, as wgmma has them."""
    return -(-columns // (unit * tiles)) * unit
