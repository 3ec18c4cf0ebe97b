"""The configuration of a product with packed weights. Few rows stream weights, many are a GEMM.

Each kind of kernel has an estimate: rounds of its clusters on the GPU's SMs, times the K tiles of a part of K, times
the microseconds of one. What comes once is added. The times were fitted to products with int4 weights of six shapes:
of 16 to 64 rows on an H100 (`benchmarks/NOTES.md`, "Sliced K"), of more on an H200 ("Tiles of packed weights"). Where
scales multiply sums, of up to 64 rows and int4 in groups of 128, they were fitted on an H200 ("Scales on sums").

rows up to 64    tiles of 64, 128 or 256 output features, K in up to 4 parts. First K tiles are brought to L2 before
                 the kernel before it ends. Warpgroups take K tiles in turn (sliced) where a tile has few features
more             tiles of 64 to 256 output features and up to 128, 224 or 256 rows, K in up to 2 parts; where many
                 tiles have the same rows of x, clusters of two share them

Tiles of more than 64 rows are as wide as their kind allows, or share the rows evenly: 768 rows of 6144 features are 128
tiles of 192x192 for 132 SMs, where 192x256 makes 96. A narrower tile saves products, and no conversions.

A warpgroup converts and multiplies in turn. So an SM waits unless there is a second one, or a second block of 64
features. A tile of 64 features is for products that have no more.

With float8 activations a warpgroup also has the registers of a sum of its own: more than 192 rows do not fit beside
it, nor two blocks of 64 features and 128 rows. ptxas computes mma.sync of e4m3 in 16 bits on sm_90a, so warpgroups
multiply few rows, too. Their estimates were fitted to six sizes on an H200 ("Float8 activations without a table").
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ...numbers import W
from ...quantized.blocks import STRIP
from ...quantized.formats import UNIT_K, UNIT_ROWS, QuantizedFormat
from ..choose.occupancy import ClusterOccupancy
from ..config import Sm90Config

Times: TypeAlias = "npt.NDArray[np.float64]"
Counts: TypeAlias = "npt.NDArray[np.int64]"

_FEW = 64  # rows
_TALL = 256  # features
_AHEAD = 4  # K tiles that are brought to L2 ahead
_FEWER_AHEAD = 2  # the same of tiles of 256 features, of more than 32 rows, and of one round: up to 4% faster than 4
_BETWEEN = 16  # rows of the times of few
_PARTS = {64: (1, 2), 128: (1, 2, 4), 256: (1, 2, 4), 192: (1, 2), 448: (1, 2)}  # of K, by features, that are tuned
_SUMMED = 128  # int4 weights of a group whose sum has its scale: others were not measured
_STAGED = (4, 16, 32, _FEW)  # rows, at most, of kernels of few rows with as many stages
_BY_WARPS = 16  # rows: the most of a tile of experts that mma.sync multiplies
_WIDTH = 128  # rows of a tile of many
_STEP = 8  # rows by which tiles differ
_ROW_US = 0.0023  # a row of x takes in the products of 64 features and 128 of K, at 1.74 GHz
_FLOAT8_WIDTH = 160  # rows of a float8 tile that shares rows evenly, at least: narrower ones were not timed
_ROW_FLOAT8_US = 0.00132  # the same of float8: between tiles of 128, 176 and 192 rows
_CONVERTED_US = 0.30  # 64 features and 128 of K take, however few the rows
_CONVERTED_FLOAT8_US = 0.20  # the same of float8, at most: 128 rows take 0.22
_GAIN = 0.95  # of the widest tiles' time, at most, for tiles that share rows evenly; those of one round were timed
# Two launches, each of a part of the features: from as many rows on and up to as many features (others were not timed),
# where the estimate of both is less. The second one takes as many us beside its own.
_TWO_ROWS, _TWO_FEATURES, _SECOND_US, _TWO_GAIN = 256, 32768, 4.0, 0.985
_TWO_TRIED = 4  # cuts that are tuned
SMS = 132  # H100 SXM, H200


@dataclass(frozen=True, slots=True)
class _TileKind:
    """A kind of kernel for more than 64 rows.

    tile         output features, and rows at most
    time, once   us of a K tile of 128 and as many rows, and of what comes once
    each         us that a round takes beside its K tiles
    split        parts of K
    along_m      CTAs of a cluster, which share x
    tile_k       depth of a stage
    bytes_k      that of weights of 8 bits
    consumers, loader  as `Sm90Config` has them
    most         rows of x, at most; None for any number
    single       for a C of one round of tiles, one for each CTA; it starts while the kernel before ends
    of_groups    for weights of 8 bits in groups alone
    row          us of 64 features and 128 of K for a row of x
    converted    us of as many weights, however few the rows
    along        the direction in which tiles are taken, as `Sm90Tuning` has it; None for the usual one
    """

    tile: tuple[int, int]
    time: float
    once: float = 0.0
    each: float = 0.0
    split: int = 1
    along_m: int = 1
    tile_k: int | None = None
    bytes_k: int | None = None
    consumers: int = 2
    loader: str = "warpgroup"
    most: int | None = None
    single: bool = False
    of_groups: bool = False
    row: float = _ROW_US
    converted: float = _CONVERTED_US
    along: str | None = None

    def takes(self, weights: QuantizedFormat | None) -> bool:
        """True if the kind is for a format."""
        return not self.of_groups or (weights is not None and weights.bits == 8 and weights.group is not None)

    def width(self, rows: int, tiles: int) -> int:
        """Rows of x of a tile where `tiles` share them evenly. They are whole vectors of what parts of K exchange."""
        step = _STEP * self.split
        return -(-rows // (tiles * step)) * step

    def ahead(self, k: int, depth: int | None) -> int:
        """K tiles of that depth that are brought to L2 while the kernel before ends."""
        fewer = self.split > 1 and (self.consumers == 3 or self.single)
        most = _FEWER_AHEAD if fewer else _AHEAD
        return min(most, -(-k // (depth or UNIT_K)))

    def config(
        self, rows: int, k: int, store: str, weights: QuantizedFormat | None = None, tiles: int = 0
    ) -> Sm90Config:
        """The configuration for `rows` rows: tiles of up to 128 rows are as narrow as possible.

        weights  their format, where it is known: those of 8 bits have depths of their own, and may overlap
        tiles    that share the rows evenly; 0 for tiles as wide as they may be
        """
        of_bytes = weights is not None and weights.bits == 8
        depth = self.bytes_k or self.tile_k if of_bytes else self.tile_k
        width = min(self.tile[1], -(-rows // 16) * 16) if self.tile[1] == _WIDTH else self.tile[1]
        width = self.width(rows, tiles) if tiles else width
        found = Sm90Config(
            (self.tile[0], width), tile_k=depth, consumers=self.consumers, loader=self.loader, split=self.split,
            one_tile_per_cluster=self.split > 1, cluster=(self.along_m, 1), store=store,
        )  # fmt: skip
        if self.single:
            alone = replace(found, one_tile_per_cluster=True, launch="tiles")
            return alone.tuned(overlap=True, prefetch=self.ahead(k, depth))
        if weights is None:
            return found if self.along is None else found.tuned(along=self.along)
        if self.split > 1:  # of one round
            found = replace(found, launch="tiles")
        if of_bytes and weights.group is None and rows <= _ONE_AHEAD.get((*self.tile, self.split, self.along_m), 0):
            return found.tuned(overlap=True, prefetch=1)
        overlapped = _OVERLAPPED if weights.group is None else {**_OVERLAPPED, **_OVERLAPPED_GROUPS}
        if not of_bytes:
            overlapped = {kind: _OVERLAPPED[kind] for kind in _OF_ANY}
        if rows <= overlapped.get((*self.tile, self.split, self.along_m), 0):
            depth = UNIT_K // 2 if self.split > 1 else depth
            return replace(found, tile_k=depth).tuned(overlap=True, prefetch=self.ahead(k, depth))
        return found.tuned(along="N") if of_bytes and self.along_m > 1 and rows > _ALONG_N else found

    def estimates(self, n: int, rows: int, k: int, sms: int, tiles: Sequence[int]) -> Times | None:
        """Microseconds of each number of tiles, as in `config`. None for rows or a K that the kind is not for.

        Kernels of several parts of K, and of one tile for each CTA, are for one round: more take infinite time.
        """
        widths = np.array([self.width(rows, each) if each else self.tile[1] for each in tiles])
        found = self._times(n, rows, k, sms, widths)
        return None if found is None else np.where((widths > _WIDTH) & (rows <= _WIDTH), np.inf, found)

    def least(self, most: int, rows: int, k: int, sms: int) -> Times | None:
        """The least estimate of 1, 2, ... units of 64 output features, of all numbers of tiles."""
        widths = {self.tile[1], *[self.width(rows, tiles) for tiles in self.shares(rows)]}
        taken = [width for width in widths if not width > _WIDTH >= rows]
        each = self.tile[0] // UNIT_ROWS * self.along_m  # units of a cluster: as many have the same time
        counts = np.arange(1, -(-most // each) + 1) * each * UNIT_ROWS
        found = self._times(counts, rows, k, sms, np.array(taken)[:, None]) if taken else None
        return None if found is None else np.asarray(np.repeat(found.min(axis=0), each)[:most], np.float64)

    def _times(self, n: W, rows: int, k: int, sms: int, width: int | Counts) -> Times | None:
        """The estimate by tiles of `width` rows of x."""
        k_tiles = -(-k // UNIT_K)
        if self.split > k_tiles or rows > (self.most or rows):
            return None
        clusters = -(-n // (self.tile[0] * self.along_m)) * -(-rows // width)
        rounds = _rounds(clusters, self.split * self.along_m, sms)
        blocks = self.tile[0] // UNIT_ROWS
        narrower = self.time - blocks * self.row * (self.tile[1] - width)
        time = np.maximum(narrower, min(self.time, blocks * self.converted))
        found = rounds * (-(-k_tiles // self.split) * time + self.each) + self.once
        return np.where(rounds > 1, np.inf, found) if self.split > 1 or self.single else np.asarray(found, np.float64)

    def shares(self, rows: int) -> range:
        """Numbers of tiles that share rows evenly; none for up to 128 rows.

        A tile has over half of `tile`'s rows; over 128 of a wider one in one round.
        """
        wide = self.single and self.tile[1] > _WIDTH
        least = _WIDTH + _STEP if wide else max(self.tile[1] // 2 + _STEP, _FEW)
        return range(-(-rows // self.tile[1]), rows // least + 1 if rows > _WIDTH else 0)


@dataclass(frozen=True, slots=True)
class _FewKind:
    """A kind of kernel for up to 64 rows.

    tile        output features
    split       parts of K
    time, once  us of a K tile of 128, and of the start, the exchange and the store: of `_BETWEEN` rows
    more        what `_FEW` rows add to each
    consumers   warpgroups, of up to 4, 16, 32 and 64 rows: four hide the conversions' latency, unless their sums are
                many
    stages      of as many rows; () for as many as fit
    single      for a C of one round of tiles, one for each CTA
    most        rows, of as many sums as registers hold
    scales      what the scales of groups multiply, as `Sm90Tuning` has it
    wide_ahead  K tiles brought to L2 ahead, of more than 32 rows
    """

    tile: int
    split: int
    time: float
    once: float
    more: tuple[float, float] = (0.0, 0.0)
    consumers: tuple[int, int, int, int] = (4, 4, 4, 2)
    stages: tuple[int, ...] = ()
    single: bool = False
    most: int = _FEW
    scales: str = "weights"
    wide_ahead: int = _FEWER_AHEAD

    def ahead(self, level: int) -> int:
        """K tiles brought to L2 ahead, for the rows of a level of `_STAGED`."""
        return _FEWER_AHEAD if self.tile == _TALL else self.wide_ahead if level == len(_STAGED) - 1 else _AHEAD


_BY_WEIGHTS = (
    _FewKind(64, 1, 0.18, 2.1, (0.072, 0.9)),
    _FewKind(64, 2, 0.18, 3.6, (0.072, 0.9)),
    _FewKind(128, 1, 0.40, 1.0, (0.085, 1.0)),
    _FewKind(128, 2, 0.40, 2.5, (0.085, 1.0)),
    _FewKind(128, 4, 0.40, 2.5, (0.085, 1.0)),
    _FewKind(256, 1, 0.70, 3.0, (0.15, 1.0), (2, 2, 2, 2)),
    _FewKind(256, 2, 0.70, 4.5, (0.15, 1.0), (2, 2, 2, 2)),
    _FewKind(256, 4, 0.70, 4.5, (0.15, 1.0), (2, 2, 2, 2)),
)
_BY_SUMS = (
    # Stages of 125 to 175 KB: of more, what a CTA needs first waits in the memory's queues behind what it needs last.
    _FewKind(64, 1, 0.136, 2.0, (0.079, 1.4), (4, 3, 2, 2), (24, 18, 14, 8), scales="sums"),
    _FewKind(64, 2, 0.136, 2.4, (0.079, 1.6), (2, 2, 2, 2), (18, 18, 10, 8), scales="sums"),
    _FewKind(128, 1, 0.274, 1.65, (0.176, 0.45), (4, 4, 2, 2), (10, 10, 7, 5), scales="sums"),
    _FewKind(128, 2, 0.24, 3.2, (0.163, 1.25), (4, 4, 2, 2), (10, 10, 7, 5), scales="sums"),
    _FewKind(256, 1, 0.51, 1.85, (0.39, 0.95), (4, 4, 2, 2), (6, 6, 5, 5), single=True, most=56, scales="sums"),
    _FewKind(256, 1, 0.54, 1.85, (0.39, 0.95), (2, 2, 2, 2), most=56, scales="sums"),
    _FewKind(256, 1, 0.70, 3.0, (0.19, 1.0), (2, 2, 2, 2), (4, 4, 4, 4), single=True),
    _FewKind(256, 1, 0.70, 3.0, (0.19, 1.0), (2, 2, 2, 2)),
)
_FLOAT8 = (  # few stages, as int4's have: with all that fit, 16384 x 8192 takes 18.6 us for 18.0 of 16 rows
    _FewKind(64, 1, 0.118, 1.7, (0.037, 0.4), (4, 3, 3, 2), (16, 18, 12, 10)),
    _FewKind(64, 2, 0.118, 2.5, (0.04, 0.0), (3, 3, 3, 2), (18, 18, 12, 10)),
    _FewKind(128, 1, 0.25, 2.0, (0.05, 0.1), (4, 4, 4, 2), (10, 10, 8, 7), single=True),
    _FewKind(128, 1, 0.26, 2.1, (0.08, 0.1)),
    _FewKind(128, 2, 0.225, 2.9, (0.035, 1.0), (4, 4, 4, 2), (10, 10, 8, 7)),
    _FewKind(128, 4, 0.23, 3.4, (0.03, 1.0)),
    _FewKind(256, 1, 0.477, 1.9, (0.17, 0.0), (2, 2, 2, 2), (5, 5, 5, 5), single=True, most=48),
    _FewKind(256, 1, 0.55, 2.0, (0.10, 0.2), (2, 2, 2, 2)),
    _FewKind(256, 2, 0.50, 4.0, (0.26, 0.0), (2, 2, 2, 2)),
    _FewKind(256, 4, 0.50, 4.5, (0.26, 0.0), (2, 2, 2, 2)),
)
_BY_FLOAT8 = tuple([replace(kind, wide_ahead=_AHEAD) for kind in _FLOAT8])  # fewer were not timed
# Kernels of weights of 8 bits that start while the kernel before ends, with stages of 64 of K where K is split:
# (features and rows of a tile, parts of K, CTAs that share x) -> the most rows of x. Others were no faster so.
_OVERLAPPED = {(192, 128, 2, 1): 256, (256, 128, 1, 2): 128, (128, 256, 1, 1): 256, (192, 128, 1, 1): 1024}
_OF_ANY = ((192, 128, 1, 1), (192, 128, 2, 1))  # of these weights of 4 bits overlap, too
_OVERLAPPED_GROUPS = {(128, 128, 2, 1): 128, (128, 256, 2, 1): 256}
# The same with a scale a column, with one K tile ahead and stages of their own: up to 2.7% faster. More are slower.
_ONE_AHEAD = {(64, 128, 2, 1): 128, (128, 128, 2, 1): 128, (256, 128, 2, 1): 128}
_ALONG_N = 1024  # rows, above which clusters of weights of 8 bits take tiles along N
# Weights of 8 bits with a scale a column, tiles in one round: features -> warpgroups, and stages, of about 150 KB. Of
# up to 16 rows, and of 33 to 64.
_OF_BYTES: dict[int, tuple[int, int | None]] = {64: (3, 12), 256: (4, 4)}
_OF_BYTES_MORE: dict[int, tuple[int, int | None]] = {128: (2, None)}
# More than 16 such rows by tiles of 256 features have four warpgroups: 28672 x 4096 takes 35.3 us for 35.9 (64 rows).
# With groups, more than 32 rows with K in two parts, and stages of 64: 16384 x 8192 takes 42.4 for 43.5 (MXFP8).
_TALL_CONSUMERS = 4
_LOADED_APART = 128, 2  # features, parts of K: 33 to 64 rows have a loading warpgroup (1.5%)
_TALL_MORE = (0.25, 1.0)  # us that 64 rows add to a tile of 256 features, of 33 rows and more without groups
# Tiles of strips, of weights of 8 bits with a scale a column: us of a feature and a K tile, and of what comes once, by
# parts of K. Features of the instructions -> warpgroups, stages, K tiles ahead. Narrower tiles were not timed. Up to 32
# rows are loaded by a warpgroup (1 to 6% faster than by a warp), but for 256 features, where four warpgroups multiply.
_STRIP_US, _STRIPS_ONCE, _STRIP_ROWS, _LEAST_STRIPS = 0.0037, {1: 2.3, 2: 3.8, 4: 5.0}, 32, 48
_STRIP_TILES: dict[int, tuple[int, int | None, int]] = {
    64: (3, 12, _AHEAD), 128: (4, 8, _FEWER_AHEAD), 192: (3, 6, _FEWER_AHEAD), 256: (4, None, _FEWER_AHEAD)
}  # fmt: skip
_BY_BYTES = tuple([replace(kind, more=_TALL_MORE) if kind.tile == _TALL else kind for kind in _BY_WEIGHTS])
_MANY = (
    _TileKind((64, 128), 0.43, 2.8, consumers=1, loader="warp"),
    _TileKind((64, 128), 0.424, 2.6, split=2, consumers=1, loader="warp"),
    _TileKind((128, 128), 0.70, 1.4),
    _TileKind((128, 128), 0.63, 5.0, split=2),
    _TileKind((192, 128), 1.09, 2.6, split=2, consumers=3),
    _TileKind((192, 128), 1.03, 1.5, consumers=3, bytes_k=64),
    _TileKind((192, 128), 1.03, 1.4, tile_k=64, consumers=3, single=True, of_groups=True),
    _TileKind((256, 128), 1.30, 1.3, along_m=2, bytes_k=64),
    _TileKind((256, 128), 1.154, 8.7, split=2, bytes_k=64),
    _TileKind((192, 256), 1.94, 2.0, tile_k=64, consumers=3, loader="self", single=True),
    _TileKind((192, 192), 1.451, 2.0, tile_k=64, consumers=3, single=True),  # wider ones have no registers for a loader
    _TileKind((192, 192), 1.451, 4.3, split=2, tile_k=64, consumers=3, single=True),
    _TileKind((128, 192), 0.95, 1.5, tile_k=64, single=True),
    _TileKind((128, 224), 1.13, tile_k=64),
    _TileKind((128, 256), 1.275, along_m=2, tile_k=64),
    _TileKind((128, 256), 1.26, tile_k=64, most=256),
    _TileKind((128, 256), 1.149, 8.0, split=2, tile_k=64),
)
_MANY_FLOAT8 = (
    _TileKind((64, 128), 0.25, 1.85, consumers=1, loader="warp", single=True),
    _TileKind((64, 128), 0.275, 2.2, split=2, consumers=1, loader="warp"),
    _TileKind((64, 128), 0.27, 1.85, consumers=1, loader="warp"),
    _TileKind((128, 128), 0.42, 2.8, single=True),
    _TileKind((128, 128), 0.408, 3.75, split=2, single=True),
    _TileKind((128, 128), 0.44, 2.0, each=1.0),
    _TileKind((128, 192), 0.612, 2.0, each=1.0, row=_ROW_FLOAT8_US, converted=_CONVERTED_FLOAT8_US, along="N"),
)


@cache
def packed_config(
    n: int, rows: int, k: int, sms: int = SMS, become: str = "bf16", weights: QuantizedFormat | None = None
) -> Sm90Config:  # fmt: skip
    """The configuration for `rows` activations and weights (n, k), which become that type.

    weights  their format, where it is known

    >>> packed_config(8192, 16, 8192).tile, packed_config(4096, 128, 14336).split, packed_config(8192, 4096, 8192).tile
    ((64, 16), 2, (128, 256))
    """
    float8 = become == "e4m3"
    if rows > _FEW:
        return _many(n, rows, k, sms, float8, weights)
    if float8:
        return _few(n, rows, k, sms, _BY_FLOAT8, {})
    if weights is None or weights.bits != 8:
        return _few(n, rows, k, sms, _BY_SUMS if _scales(weights, rows, float8) == "sums" else _BY_WEIGHTS, {})
    most = rows > _STAGED[-2]
    if weights.group is not None:
        found = _few(n, rows, k, sms, _BY_WEIGHTS, {})
        tall = found.tile[0] == _TALL and found.split == 2 and most
        return replace(found, tile_k=UNIT_K // 2, consumers=_TALL_CONSUMERS) if tall else found
    own = _OF_BYTES if rows <= _BETWEEN else _OF_BYTES_MORE if most else {}
    found = _few(n, rows, k, sms, _BY_BYTES if most else _BY_WEIGHTS, own)
    if (strips := _by_strips(found, n, rows, k, sms)) is not None:
        return strips
    if found.tile[0] == _TALL and rows > _BETWEEN:
        return replace(found, tile_k=UNIT_K // 2 if found.split == 2 else None, consumers=_TALL_CONSUMERS)
    if (found.tile[0], found.split) == _LOADED_APART and most:
        return replace(found, loader="warpgroup")
    return found


@cache
def packed_parts(
    n: int, rows: int, k: int, sms: int = SMS, become: str = "bf16", weights: QuantizedFormat | None = None
) -> tuple[tuple[int, Sm90Config], ...]:  # fmt: skip
    """(output features, configuration) of two launches that take less time than one. It is () where one is faster.

    152 tiles of 192x256 are two rounds of 132 SMs. As two launches 132 of them are one, and the other features take
    smaller tiles. Both start while the kernel before ends.

    >>> [(features, config.tile) for features, config in packed_parts(7168, 1024, 20480)]
    [(832, (128, 128)), (6336, (192, 256))]
    >>> packed_parts(6144, 1024, 4096)
    ()
    """
    if rows < _TWO_ROWS or n > _TWO_FEATURES or become == "e4m3":
        return ()
    times = _of_two(n, rows, k, sms, weights)
    alone = _least(n, rows, k, sms, weights, 1.0)[0]
    if times.size == 0 or times.min() + _SECOND_US > _TWO_GAIN * alone:
        return ()
    return _two(int(times.argmin() + 1) * UNIT_ROWS, n, rows, k, sms, weights)


def parts_candidates(
    n: int, rows: int, k: int, sms: int = SMS, weights: QuantizedFormat | None = None, most: int = _TWO_TRIED
) -> Iterator[tuple[tuple[int, Sm90Config], ...]]:  # fmt: skip
    """The parts of two launches that could be the fastest, in order of estimates. They are up to `most` cuts of unlike
    tiles.

    >>> [[(count, config.tile) for count, config in parts] for parts in parts_candidates(7168, 1024, 20480, most=2)]
    [[(832, (128, 128)), (6336, (192, 256))], [(3072, (192, 128)), (4096, (128, 256))]]
    """
    if rows < _TWO_ROWS or n > _TWO_FEATURES:
        return
    seen: set[frozenset[Sm90Config]] = set()
    for at in np.argsort(_of_two(n, rows, k, sms, weights), kind="stable"):
        parts = _two(int(at + 1) * UNIT_ROWS, n, rows, k, sms, weights)
        tiles = frozenset(config for _, config in parts)
        if tiles not in seen:
            seen.add(tiles)
            yield parts
        if len(seen) == most:
            return


def packed_candidates(
    n: int, rows: int, k: int, become: str = "bf16", weights: QuantizedFormat | None = None
) -> Iterator[Sm90Config]:  # fmt: skip
    """Configurations that could be the fastest: all kinds of tiles, splits and slices.

    Those of more than 64 rows come with the least estimate first.

    >>> [config.tile for config in packed_candidates(8192, 256, 8192)][:3]
    [(128, 128), (128, 256), (256, 128)]
    """
    store = "tma" if n % 8 == 0 else "direct"
    if rows > _FEW:
        kinds = _MANY_FLOAT8 if become == "e4m3" else [kind for kind in _MANY if kind.takes(weights)]
        found: list[tuple[float, _TileKind, int]] = []
        for kind in kinds:
            shares = [0, *kind.shares(rows)[:2]]
            times = kind.estimates(n, rows, k, SMS, shares)
            found += [(np.inf if times is None else float(times[i]), kind, by) for i, by in enumerate(shares)]
        found.sort(key=lambda each: each[0])
        yield from dict.fromkeys(
            kind.config(rows, k, store, each, by) for _, kind, by in found for each in (None, weights)
        )
        return
    few = list(_few_candidates(rows, -(-k // UNIT_K), _scales(weights, rows, become == "e4m3")))
    for strips in [strips for config in few if (strips := in_strips(config, n)) != config]:
        yield strips
        if strips.consumers < _TALL_CONSUMERS or strips.schedule == "sliced":
            yield replace(strips, loader="warpgroup")
    yield from few


def _few_candidates(rows: int, k_tiles: int, scales: str) -> Iterator[Sm90Config]:
    """Configurations for few rows, and any number of features."""
    for tile, parts in _PARTS.items():
        blocks = tile // UNIT_ROWS
        for split in (split for split in parts if split <= k_tiles):
            for consumers in (consumers for consumers in (1, 2, 3, 4) if blocks % consumers == 0):
                yield _few_config(tile, rows, split, consumers, k_tiles, scales)
            for consumers in (consumers for consumers in (2, 3, 4) if consumers > blocks and consumers % blocks == 0):
                yield _few_config(tile, rows, split, consumers, k_tiles, scales)


def _by_strips(found: Sm90Config, n: int, rows: int, k: int, sms: int) -> Sm90Config | None:
    """The kernel with tiles of strips, where these take less time than a choice's tiles.

    More than 32 rows are bound by conversions and products, which strips are not fewer of. There they are only taken in
    place of several rounds.
    """
    k_tiles, rounds = -(-k // UNIT_K), _rounds(-(-n // found.tile[0]), found.split, sms)

    def us(features: int, split: int, rounds: int = 1) -> float:
        return rounds * -(-k_tiles // split) * features * _STRIP_US + _STRIPS_ONCE[split]

    if rows > _STRIP_ROWS and rounds == 1:
        return None
    each = {split: _strips_of_a_round(n, split, sms) for split in (1, 2) if split <= k_tiles}
    able = {split: f for split, f in each.items() if f % UNIT_ROWS and _LEAST_STRIPS <= f < _TALL}
    split = min(able, key=lambda split: us(able[split], split), default=0)
    if not split or us(able[split], split) >= us(found.tile[0], found.split, rounds):
        return None
    tile = -(-able[split] // UNIT_ROWS) * UNIT_ROWS
    consumers, stages, ahead = _STRIP_TILES[tile]
    if rows > _STRIP_ROWS:  # two warpgroups that take K tiles in turn have registers for more sums
        consumers, stages = max(tile // UNIT_ROWS, min(consumers, 2)), None
    config = replace(_few_config(tile, rows, split, consumers, k_tiles, "weights", ahead), stages=stages)
    loader = "warpgroup" if rows <= _STRIP_ROWS and tile < _TALL else "warp"
    return replace(in_strips(config, n, sms), loader=loader)


def _strips_of_a_round(n: int, split: int, sms: int) -> int:
    """Features of a tile, whole strips, of which one round has all."""
    return -(-n // (STRIP * ClusterOccupancy(sms).resident(split))) * STRIP


def in_strips(config: Sm90Config, n: int, sms: int = SMS) -> Sm90Config:
    """The same kernel with tiles of strips, if one round of them has more CTAs.

    >>> config = Sm90Config((64, 16), consumers=1, store="direct", loader="warp")
    >>> [in_strips(config, n).tuning.features for n in (6144, 8192, 5120, 16384)]
    [48, None, 48, None]
    """
    able = config.loader == "warp" and config.store == "direct" and config.cluster == (1, 1)
    features = _strips_of_a_round(n, config.split, sms)
    if not able or config.tile_k not in (None, UNIT_K) or not config.tile[0] - UNIT_ROWS < features < config.tile[0]:
        return config
    return replace(config, one_tile_per_cluster=True, launch="tiles").tuned(features=features)


def experts_config(rows: int, experts: int, become: str = "bf16") -> Sm90Config:
    """The configuration for groups of rows, each times its expert's weights. Tiles are wide enough for half as many
    rows again as the mean.

    Weights become that type.

    The sizes of groups are known on the device alone. A wider group takes several tiles, which read the weights again.

    >>> experts_config(292, 64).tile, experts_config(4096, 8).tile
    ((128, 8), (128, 128))
    """
    width = max(8, min(_WIDTH, -(-3 * rows // (16 * experts)) * 8))
    products = "warp" if width <= _BY_WARPS and become != "e4m3" else "warpgroup"
    loader = "warpgroup" if become == "e4m3" and width > _FEW else "warp"
    return Sm90Config((128, width), consumers=2, loader=loader, store="direct", products=products)


def _rounds(blocks: W, split: int, sms: int) -> W:
    """Rounds of clusters of `split` blocks: those of four do not cross a GPC, so fewer fit than SMs say."""
    return -(-blocks // ClusterOccupancy(sms).resident(split))


def _scales(weights: QuantizedFormat | None, rows: int, float8: bool) -> str:
    """The target of the scales of groups: sums, of up to 64 rows and int4 in groups of 128, or weights."""
    able = weights is not None and weights.code == "int4" and weights.group == _SUMMED and rows <= _FEW
    return "sums" if able and not float8 else "weights"


def _few(
    n: int, rows: int, k: int, sms: int, kinds: Sequence[_FewKind], own: Mapping[int, tuple[int, int | None]]
) -> Sm90Config:
    """The tile and the parts of K with the least estimate; of equal ones the fewest parts.

    own  warpgroups and stages of tiles in one round, in place of the kind's
    """
    k_tiles, between = -(-k // UNIT_K), max(0, rows - _BETWEEN) / (_FEW - _BETWEEN)
    found = []
    for kind in kinds:
        rounds = _rounds(-(-n // kind.tile), kind.split, sms)
        if kind.split <= k_tiles and rows <= kind.most and not (kind.single and rounds > 1):
            time, once = kind.time + between * kind.more[0], kind.once + between * kind.more[1]
            found.append((rounds * (-(-k_tiles // kind.split) * time + once), kind.split, kind.tile, kind))
    *_, kind = min(found, key=lambda each: each[:3])
    level = bisect_left(_STAGED, rows)
    one_round = _rounds(-(-n // kind.tile), kind.split, sms) == 1
    consumers, stages = kind.consumers[level], kind.stages[level] if kind.stages else None
    if one_round:
        consumers, stages = own.get(kind.tile, (consumers, stages))
    config = _few_config(kind.tile, rows, kind.split, consumers, k_tiles, kind.scales, kind.ahead(level))
    config = replace(config, stages=stages)
    alone = one_round and (kind.scales == "sums" or kind.tile in own)
    return replace(config, one_tile_per_cluster=True, launch="tiles") if kind.single or alone else config


def _few_config(
    tile: int, rows: int, split: int, consumers: int, k_tiles: int, scales: str, ahead: int = _AHEAD
) -> Sm90Config:  # fmt: skip
    """The kernel of few rows with tiles of `tile` features, K in `split` parts."""
    width, sliced = -(-rows // (8 * split)) * (8 * split), consumers > tile // UNIT_ROWS
    config = Sm90Config(
        (tile, width), consumers=consumers, split=split, one_tile_per_cluster=sliced or split > 1, store="direct",
        loader="warp", schedule="sliced" if sliced else "cooperative", overlap=True, prefetch=min(ahead, k_tiles),
        scales=scales,
    )  # fmt: skip
    return replace(config, launch="tiles") if config.one_tile_per_cluster else config


def _least(
    n: int, rows: int, k: int, sms: int, weights: QuantizedFormat | None, gain: float, float8: bool = False
) -> tuple[float, _TileKind, int]:  # fmt: skip
    """(estimate, kind, tiles that share rows evenly) of the least estimate; of equal ones the first.

    gain  by which the estimates of narrower tiles in several rounds are divided
    """
    found: list[tuple[float, _TileKind, int]] = []
    for kind in _MANY_FLOAT8 if float8 else [each for each in _MANY if each.takes(weights)]:
        shares = [0, *[by for by in kind.shares(rows) if not float8 or kind.width(rows, by) >= _FLOAT8_WIDTH]]
        times = kind.estimates(n, rows, k, sms, shares)
        if times is not None:
            narrower = np.array([1.0 if not tiles or kind.single else gain for tiles in shares])
            best = int((times / narrower).argmin())
            found.append((float(times[best] / narrower[best]), kind, shares[best]))
    return min(found, key=lambda each: each[0])


def _of_two(n: int, rows: int, k: int, sms: int, weights: QuantizedFormat | None) -> Times:
    """The sum of the least estimates of two launches, the first of 64, 128, ... output features."""
    units = -(-n // UNIT_ROWS)
    times = [kind.least(units, rows, k, sms) for kind in _MANY if kind.takes(weights)]
    fastest = np.min([each for each in times if each is not None], axis=0)[: units - 1]
    return np.asarray(fastest + fastest[::-1], np.float64)  # a last part's features are as many units


def _two(
    first: int, n: int, rows: int, k: int, sms: int, weights: QuantizedFormat | None
) -> tuple[tuple[int, Sm90Config], ...]:
    """The fastest configurations of two launches, the first of so many output features."""
    parts, store = [], "tma" if n % 8 == 0 else "direct"
    for count in (first, n - first):
        _, kind, tiles = _least(count, rows, k, sms, weights, 1.0)
        config = kind.config(rows, k, store, weights, tiles)
        ahead = min(config.tuning.prefetch or _AHEAD, -(-k // (config.tile_k or UNIT_K)))
        parts.append((count, config.tuned(overlap=True, prefetch=ahead)))
    return tuple(parts)


def _many(n: int, rows: int, k: int, sms: int, float8: bool, weights: QuantizedFormat | None) -> Sm90Config:
    """The kind with the least estimate. Rows are shared evenly where that gains enough."""
    _, kind, tiles = _least(n, rows, k, sms, weights, 1.0 if float8 else _GAIN, float8)
    return kind.config(rows, k, "tma" if n % 8 == 0 else "direct", None if float8 else weights, tiles)
