"""Configurations of scaled and grouped products, as measured on an H100 and an H200.

A scaled product is estimated for each kind of kernel, tile and split of K: memory against products, waves of CTAs, the
exchange of partial sums. Groups have one rule each for their average rows: the record has too few of them for a model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from math import prod
from random import Random
from typing import Any, NamedTuple

from ....dtypes import dtype
from ...operands.gated import HALVES
from ...plan import STAGE_BYTES_OF_K
from ...store import ROWS, WARP_ROWS
from ..budget_checks import registers_fit
from ..config import Sm90Config
from ..mainloop import DEPTH, Promoted, mainloop_of, takes_together
from ..plan import Sm90Plan
from .costs import CostModel, changed, cost_model
from .large_m import LargeMModel
from .occupancy import ClusterOccupancy
from .rules import choose, whole_columns
from .stages import stages, warpgroups

MODEL = cost_model("promoted", "h100")
KINDS = {"one": 0, "few": 1, "full": 2}  # of kernels, and their places in the model's `start` and `memory`
_FULL_WAVE, _FULL_WAVE_GAIN = 0.95, 1.05  # one wave of whole tiles on this share of the places or more: rate of memory
_AHEAD = 2  # K tiles that go to L2 while the kernel before ends, of CTAs that compute one tile
_MOST_WAVES = 4  # of CTAs that compute one tile; more are persistent ones' business
_EACH_COLUMN = 64  # columns of a tile at most if each has a scale, of which a thread reads a quarter of the tile's
_EACH_LINE = (128, 128)  # the tile of groups along K with a scale of each row and column
_FEW_ROWS = 128  # up to which "full" kernels were not timed
_ALONG_K = ((64, 64), (64, 128), (64, 256), (128, 128), (128, 192), (128, 256), (256, 128), (256, 192))  # tiles
_MAX_LOADED_ROWS = 56  # rows of A's tile that are loaded apart from zeros: less than all 64
STORE_UNIT = 16  # bytes of a row of C that a TMA store is a multiple of
_ONE_TILE = 64  # rows of a group that are one tile
_FEW_ROWS_WIDTHS, _FEW_ROWS_SCALED_WIDTHS = range(256, 48, -16), (128, 96, 192, 64)  # of the tiles of few rows
_MANY_WIDTH, _MANY_ROUNDS = 128, 4  # the width from this many rounds of tiles on, where the last round does not count
_START_COLUMNS = 48  # of a tile of few rows without scales, that its start and its rows of A cost
_LARGEST = (128, 256)  # tile of full kernels
_NARROWER, _NARROWER_COST = (128, 192), 1.02  # groups' tile where its rounds are fewer columns, and time a column
# Rows of groups on average. A group of 0.7 to 1.3 of them has, up to the first number, one or two tiles of 128 rows,
# and up to the second one tile of 256. Up to the third, pairs of tiles of 128 waste more rows than sharing B gains.
# From the last number on bands lie along N, or tiles are larger.
_TWO_TILES, _ONE_TALL, _UNEVEN, _LARGER_GROUP = 128, 224, 384, 1024
# Seconds a row, of which the least matters, of equal groups by the rows of a CTA's tile, or of a pair of CTAs along M:
_EQUAL_SCALED_COSTS, _EQUAL_COSTS = {128: 1.035, 192: 1.055, 256: 1.0}, {128: 1.01, 192: 1.0, 256: 0.95}
# Time of a round of tiles that few groups have, of one of the largest: in pairs along M, or of 64 rows alone. Those
# behind the first four stand for a group's one tile of rows. And of a last round that is halved, of a whole one. By
# results/groups_halved_h200.json, for 16 bits and for scales of blocks.
_ROUND_COSTS = {
    (128, 256): 1.0, (128, 192): 0.79, (128, 128): 0.635, (64, 192): 0.5, (64, 128): 0.405, (64, 64): 0.39,
    (256, 128): 0.97, (192, 160): 1.0,
}  # fmt: skip
_SCALED_ROUND_COSTS = {
    (128, 256): 1.0, (128, 192): 0.82, (128, 128): 0.57, (64, 192): 0.55, (64, 128): 0.435, (64, 64): 0.36,
    (256, 128): 1.03,
}  # fmt: skip
_HALVED_ROUNDS = {(128, 256): 0.65, (128, 192): 0.65, (128, 128): 0.9}
_SCALED_HALVED_ROUNDS = {(128, 256): 0.8, (128, 192): 0.8, (128, 128): 0.95}
_LARGE_TILES, _FEW_TILES, _TALL = 2, 6, ((256, 128), (192, 160), _NARROWER)
# Tiles of single CTAs, the last of which begins earlier at A's end. By rows, and whether they are taken as the GPU
# deals CTAs out: us of a round for a KiB of K, and more for a column. Then us of a launch beside its rounds, TB/s at
# which B is read, and the power of the share of multiprocessors that a round of few tiles takes. By
# results/groups_dealt_h200.json, and with scales of 64 rows by results/products_in_turn_h200.json.
_CTA_COSTS = {
    (64, True): (0.558, 0.00797), (128, True): (0.408, 0.01745), (64, False): (0.5, 0.019),
    (128, False): (0.38, 0.0219),
}  # fmt: skip
_SCALED_CTA_COSTS = {
    (64, True): (0.445, 0.01124), (128, True): (0.652, 0.01976), (64, False): (0.27, 0.0131),
    (128, False): (0.513, 0.02188),
}  # fmt: skip
_CTA_START = {(64, True): 3.1, (128, True): 3.1, (64, False): 2.0, (128, False): 2.0}
_SCALED_CTA_START = {(64, True): 4.0, (128, True): 4.1, (64, False): 3.6, (128, False): 3.0}
_CTA_READS, _SCALED_CTA_READS = {True: 4.07, False: 3.9}, {True: 4.7, False: 3.86}
_CTA_WIDTHS = {64: range(64, 257, 16), 128: range(96, 193, 16)}
_SCALED_CTA_WIDTHS = {64: range(64, 193, 32), 128: range(64, 193, 32)}  # of others few columns share a scale
_CTA_PART, _CTA_TOGETHER = 0.26, 3
_CTA_ROUNDS = 1.3  # on average, up to which they were timed
_LARGE_START = 2.2e-6  # seconds of a launch of other tiles beside their rounds
_IDLE_SHARE = 0.05  # of multiprocessors without a tile, from which CTAs that start early crowd in some GPCs
_FEW_ROUNDS = 4  # of the largest tiles, up to which others were timed
_ROUND, _SCALED_ROUND = 5.25e-9, 6.3e-9  # seconds a byte of K of a round of the largest tiles, by the same record
_READ_SHARE = 0.72  # of the memory's rate, at which groups' matrices B are read
_GAIN = 0.95  # of the expected time, above which a tile stays
_PAIRED_K = 4096  # bytes of K from which pairs of tiles of 64 rows that share B are faster than single ones
_UNEVEN_SHARE, _DRAWS = (0.7, 1.3), 24  # of the average's rows, that groups have; and how often they are drawn
_SHORT_K = 6144  # bytes of K up to which stores that hide behind another tile's products gain more than larger tiles
_USUAL_K = 8192  # likewise up to which tiles of 128 rows, of which a group's last one wastes fewer, gain more
_QUANTIZE_START, _QUANTIZE_RATE = 1.1e-6, 3.2e12  # a kernel that quantises a product: seconds, and bytes a second
_QUANTIZED_COLUMNS = 128  # of C that share a scale, and that a CTA of one kernel has
_QUANTIZE_BYTES = 9  # an element of float32, written and read, and its 8 bits
_QUANTIZED_GATE_START = 3e-6  # seconds, and of a K block of 128 and 256 columns of B, by rows of the tile:
_USUAL_BAND = 8
_PAIR = 2  # CTAs of a cluster
_ALONG_N = ((128, 192), _LARGEST)  # tiles of which bands along N were faster
_AT_ONCE_K = {_LARGEST: range(512, 2049), _NARROWER: range(512, 7169)}  # where a store at once is faster, by tile:
# it takes the memory of a stage, and leaves three of the larger tile, four of the other
_AT_ONCE_ROWS = 256  # up to which, and behind a gate, the narrower one was faster in rounds
_AT_ONCE_CHUNKS = {_LARGEST: 2, _NARROWER: 3}  # whole rounds of 16 bits: a round with room to spare costs a stage, too
_AT_ONCE_GAIN = {_LARGEST: 0.28e-6}  # seconds a tile. The narrower one's is left out: tiles stay those that were timed
_QUANTIZED_GATE_STEP = {64: 0.44e-6, 128: 0.755e-6}


@lru_cache(4096)
def scaled_config(
    m: int, n: int, k: int, *, batch: int = 1, each_column: bool = False, columns: int = 1, c: str = "bf16",
    sums: int = 1, places: ClusterOccupancy | None = None, adds: bool = False,
) -> Sm90Config:  # fmt: skip
    """The configuration of a scaled product that is estimated fastest.

    each_column  every column of B has a scale
    columns      a CTA stores a multiple of this many columns of C, unless there is no such tile
    c            the result's type: a CTA stores whole 16 bytes of a row
    sums         of an element of C: 2 of a gated product, which is estimated as one of twice the columns
    places       of the GPU, or None for an H100's. Clusters of several waves of the largest tile take tiles as the GPU
                 deals clusters out to its GPCs
    adds         the main loop adds K blocks without scales

    >>> scaled_config(64, 2112, 7168).tile, scaled_config(64, 2112, 7168).split
    ((64, 32), 2)
    >>> scaled_config(4096, 7168, 16384).tile, scaled_config(4096, 2112, 7168).tile
    ((128, 256), (128, 192))
    >>> [scaled_config(4096, 7168, 2048, c=c).tuning.store_at_once for c in ("bf16", "f32")]
    [True, False]
    >>> [scaled_config(4096, 2112, k).tuning.chunks for k in (7168, 8192)]
    [3, 1]
    >>> scaled_config(64, 576, 7168).tile, scaled_config(64, 576, 7168, c="e4m3").tile
    ((64, 32), (64, 64))
    >>> scaled_config(4096, 7168, 7168, sums=2).tile, scaled_config(64, 2048, 7168, sums=2).split
    ((128, 256), 2)
    >>> others = ClusterOccupancy(132, (66, 36, 26, 14))  # how that GPU deals clusters out is not known
    >>> [len(scaled_config(4096, 7168, 16384, places=places).tuning.gpc_order) for places in (None, others)]
    [3, 0]
    >>> [scaled_config(128, 7168, 16384, places=x).split for x in (ClusterOccupancy(), ClusterOccupancy(memory=3.4))]
    [2, 1]
    >>> scaled_config(4096, 7168, 16384, adds=True).tile
    (256, 128)
    """
    model = _model_of(MODEL.dram if places is None else places.memory)
    config, _ = _fastest((m, n, k, batch), each_column, MODEL.multiprocessors, columns, c, sums, (model, adds))
    large = config.tile == _LARGEST and sums == batch == 1
    return _as_dealt(config, _tiles((m, n, k, batch), config.tile, config.cluster), places) if large else config


@lru_cache(16)
def _model_of(memory: float) -> CostModel:
    """The model for a GPU whose memory has that rate, in TB/s."""
    return changed(MODEL, memory=tuple([rate * memory / MODEL.dram for rate in MODEL.memory]))


def _as_dealt(config: Sm90Config, clusters: int, places: ClusterOccupancy | None) -> Sm90Config:
    """The configuration whose pairs take tiles as the GPU deals them to its GPCs.

    clusters  tiles of clusters of the product

    It stays as it is for a single wave, and on GPUs of which that order is not known.
    """
    places = places or ClusterOccupancy()
    rounds = places.gpc_rounds(_PAIR) if config.cluster[0] * config.cluster[1] == _PAIR else ()
    if not rounds or clusters <= places.resident(_PAIR):
        return config
    tuning = replace(config.tuning, overlap=False, gpc_order=rounds)  # only an idle GPU deals as it is known to
    return replace(config, tuning=tuning)


def plan_with_scales(
    sizes: tuple[int, int, int, int], types: tuple[str, str, str], groups: tuple[int, ...] | None, config: Sm90Config,
    span: int = 1, **more: Any,
) -> Sm90Plan:  # fmt: skip
    """The plan of a product with scales, read for `span` K blocks together if possible.

    sizes   M, N, K and the batch
    types   of A, B and C
    groups  rows of A, and columns of B, that share a scale; None for a main loop that only adds
    span    K blocks whose scales lie together
    more    what else `Sm90Plan.derive` takes

    >>> config = scaled_config(4096, 7168, 2048)
    >>> types = "e4m3", "e4m3:col", "bf16"
    >>> [plan_with_scales((4096, 7168, 2048, 1), types, (1, 128), config, span).numbers.span for span in (1, 4)]
    [1, 4]
    """
    (m, n, k, batch), (a, b, c) = sizes, types

    def plan(loop: Promoted | None) -> Sm90Plan:
        return Sm90Plan.derive(m, n, k, batch=batch, a=a, b=b, c=c, config=config, mainloop=loop, **more)

    if groups and span > 1 and takes_together(config):
        together = plan(mainloop_of(groups, span))
        if registers_fit(together):
            return together
    return plan(None if groups is None else mainloop_of(groups))


_WHOLE = Sm90Config((64, 128), consumers=1, loader="warp")  # of columns that share a scale, each with one of its own


def _fastest(
    sizes: tuple[int, int, int, int], each_column: bool, places: int, columns: int, c: str, sums: int,
    of: tuple[CostModel, bool] = (MODEL, False),
) -> tuple[Sm90Config, float]:  # fmt: skip
    """`scaled_config`, and the estimated seconds; `of`: the model, and whether the main loop only adds."""
    m, n, k, batch = sizes
    wide, unit = (m, n * sums, k, batch), STORE_UNIT // dtype(c).bytes
    stored = [
        (config.tile[1] // config.split // sums, kind, config)
        for kind, config in _ranked(wide, each_column, places, dtype(c).bits <= 16, *of, gated=sums > 1)
        if config.tile[1] % (8 * sums * config.split) == 0
    ]
    found = [(width, kind, config) for width, kind, config in stored if width % unit == 0]
    width, kind, config = next((x for x in found if x[0] % columns == 0), found[0])
    if width % columns and sums == 1 and _WHOLE.tile[1] % columns == 0:  # slower, and the only one that has them
        config = _WHOLE
    return config, estimate(of[0], wide, kind, config, places)


@lru_cache(4096)
def quantizes_apart(
    m: int, n: int, k: int, *, batch: int = 1, sums: int = 1, multiprocessors: int | None = None
) -> bool:
    """True if a product and a kernel that quantises it are estimated to be faster.

    sums  of an element of C: 2 of a gated product

    One kernel has few CTAs for few rows. Of two the product is in float32. The times of gated ones are those of
    `benchmarks/results/gated_scaled_tiles_h100.json`.

    >>> [quantizes_apart(m, 2048, 7168, sums=2) for m in (1, 512, 1024)], quantizes_apart(512, 14336, 4096, sums=2)
    ([True, True, False], False)
    >>> quantizes_apart(64, 7168, 16384), quantizes_apart(4096, 7168, 2048)
    (True, False)
    """
    places, sizes = multiprocessors or MODEL.multiprocessors, (m, n, k, batch)
    _, product = _fastest(sizes, False, places, 1, "f32", sums)
    apart = product + _QUANTIZE_START + batch * m * n * _QUANTIZE_BYTES / _QUANTIZE_RATE
    if sums == 1:
        return apart < _fastest(sizes, False, places, _QUANTIZED_COLUMNS, "e4m3", 1)[1]
    rows = quantized_gate_config(m, n, k, batch).tile[0]
    waves = -(-_tiles(sizes, (rows, _QUANTIZED_COLUMNS)) // places)
    steps = waves * -(-k // DEPTH) * _QUANTIZED_GATE_STEP[rows]
    bytes_ = batch * (m * k + sums * n * k + m * n)
    return apart < _QUANTIZED_GATE_START + max(steps, bytes_ / MODEL.memory[KINDS["full"]])


def quantized_gate_config(m: int, n: int, k: int, batch: int = 1) -> Sm90Config:
    """The configuration of a gated product that is quantised. A tile has 128 columns of C.

    n  columns of C

    >>> quantized_gate_config(4096, 2048, 7168).tile, quantized_gate_config(16, 2048, 7168).loaded_a_rows
    ((128, 256), 16)
    """
    if m <= _ONE_TILE:
        rows = -(-m // 8) * 8 if m <= _MAX_LOADED_ROWS else None
        return Sm90Config((_ONE_TILE, 256), consumers=1, loader="warp", loaded_a_rows=rows, chunks=1, buffers=1)
    sharing = _sharing((m, HALVES * n, k, batch), (128, 256))
    return Sm90Config((128, 256), loader="warpgroup", cluster=sharing, chunks=1, buffers=1)


def scaled_candidates(sizes: tuple[int, int, int, int], places: int) -> list[Sm90Config]:
    """The configurations of a block-scaled product for `places` multiprocessors, the one estimated fastest first.

    sizes  M, N, K and the batch

    >>> [config.tile for config in scaled_candidates((64, 24576, 1536, 1), 132)][:2]
    [(64, 192), (64, 96)]
    """
    return [config for _, config in _ranked(sizes, False, places)]


def _ranked(
    sizes: tuple[int, int, int, int], each_column: bool, places: int, narrow: bool = True, model: CostModel = MODEL,
    adds: bool = False, gated: bool = False,
) -> list[tuple[str, Sm90Config]]:  # fmt: skip
    """(kind, configuration) of all that may be chosen, the one estimated fastest first.

    adds   the main loop only adds: its registers spill with the largest tile
    gated  an element of C has two sums
    """
    kernels = _kernels(sizes, each_column, places, narrow, gated)
    return sorted(
        [found for found in kernels if not (adds and found[1].tile == _LARGEST)],
        key=lambda found: estimate(model, sizes, found[0], found[1], places),
    )


def estimate(model: CostModel, sizes: tuple[int, int, int, int], kind: str, config: Sm90Config, places: int) -> float:
    """Seconds of a kernel. Products and memory overlap in part, as the model's `power` has it.

    kind  of `KINDS`

    >>> config = Sm90Config((64, 64), consumers=1, loader="warp", one_tile_per_cluster=True, split=2)
    >>> round(estimate(MODEL, (64, 4096, 7168, 1), "one", config, 132) * 1e6, 1)
    13.1
    """
    m, n, k, batch = sizes
    tile, parts, (along_m, along_n) = config.tile, config.split, config.cluster
    blocks = along_m * along_n * parts
    tiles = _tiles(sizes, tile, config.cluster)
    resident = min(model.resident[blocks] * places // model.multiprocessors, places // blocks)
    k_blocks = -(-k // DEPTH)
    steps = -(-k_blocks // parts)
    waves = -(-tiles // max(1, resident))
    end = getattr(model, f"{kind}_end")[tile] - config.tuning.store_at_once * _AT_ONCE_GAIN.get(tile, 0.0)
    products = waves * (steps * getattr(model, f"{kind}_step")[tile] + end)
    loads = tiles * along_m * along_n * k * (tile[0] / along_n + tile[1] / along_m) / model.l2
    rate = model.memory[KINDS[kind]]
    if kind == "one" and parts == 1 and _FULL_WAVE * resident <= tiles <= resident:
        rate *= _FULL_WAVE_GAIN
    memory = max(batch * (m * k + n * k + 2 * m * n) / rate, loads)
    overlapped = (products**model.power + memory**model.power) ** (1 / model.power)
    return float(model.start[KINDS[kind]] + overlapped + model.exchange[parts])


@lru_cache(4096)
def _config(tile: tuple[int, int], **settings: Any) -> Sm90Config:
    """A configuration, made and checked once: each choice goes through all of them."""
    return Sm90Config(tile, **settings)


def _kernels(
    sizes: tuple[int, int, int, int], each_column: bool, places: int, narrow: bool, gated: bool
) -> Iterator[tuple[str, Sm90Config]]:
    """(kind, configuration) of all that may be chosen.

    "one": CTAs that compute one tile each, or a part of its K. "few": persistent CTAs without registers to hand over.
    "full": persistent clusters with a warpgroup that loads.

    narrow  C has at most 16 bits an element: a whole tile fits beside the stages
    """
    m, _, k, _ = sizes
    rows = -(-m // 8) * 8 if m <= _MAX_LOADED_ROWS else None
    alone = partial(_config, loader="warp", chunks=1, overlap=True)
    for tile in MODEL.one_step:
        of_rows = rows if tile[0] == 64 else None
        for parts in MODEL.exchange:
            waves = -(-_tiles(sizes, tile) * parts // places)
            if parts > -(-k // DEPTH) or waves > _MOST_WAVES or tile[1] % (8 * parts):  # each stores 8 columns or more
                continue
            if each_column and tile[1] > _EACH_COLUMN * 64 // tile[0]:  # what the launch's threads have registers for
                continue
            consumers = tile[0] // 64
            yield (
                "one",
                alone(
                    tile,
                    consumers=consumers,
                    loaded_a_rows=of_rows,
                    one_tile_per_cluster=True,
                    split=parts,
                    buffers=1,
                    prefetch=_AHEAD,
                ),
            )
    for tile in MODEL.few_step:
        if tile[1] <= _EACH_COLUMN or not each_column:
            of_rows = rows if tile[0] == 64 else None
            yield "few", alone(tile, consumers=tile[0] // 64, loaded_a_rows=of_rows, buffers=2)
    for tile in MODEL.full_step if m > _FEW_ROWS else ():
        if not each_column:
            three, at_once = tile[0] == 192, narrow and k in _AT_ONCE_K.get(tile, ())
            at_once &= tile != _NARROWER or (not gated and m > _AT_ONCE_ROWS)
            yield "full", _config(
                tile, consumers=3 if three else 2, loader="warpgroup", cluster=_sharing(sizes, tile),
                chunks=_AT_ONCE_CHUNKS[tile] if at_once else 2 if three else 1,
                buffers=2 if tile == (128, 128) else 1, overlap=True,
                store_at_once=at_once, box_rows=ROWS if at_once else WARP_ROWS, along="N" if tile in _ALONG_N else "M",
                group=_band(sizes, tile),
            )  # fmt: skip


def _band(sizes: tuple[int, int, int, int], tile: tuple[int, int]) -> int:
    """Columns of tiles of a band along N: all of them, if a second band would have fewer than a whole one."""
    columns = -(-sizes[1] // tile[1])
    return columns if tile == _NARROWER and _USUAL_BAND < columns < 2 * _USUAL_BAND else _USUAL_BAND


def _sharing(sizes: tuple[int, int, int, int], tile: tuple[int, int]) -> tuple[int, int]:
    """The CTAs of a cluster that share loads: two, unless more than 3% of the CTAs would be outside of C.

    Two along N share A, the larger load of a tile of 256 rows.
    """
    pairs = ((1, 2), (2, 1)) if tile[0] > 192 else ((2, 1), (1, 2))
    return next((x for x in pairs if 2 * _tiles(sizes, tile, x) <= 1.03 * _tiles(sizes, tile)), (1, 1))


def _tiles(sizes: tuple[int, int, int, int], tile: tuple[int, int], cluster: tuple[int, int] = (1, 1)) -> int:
    """Tiles of clusters of a product."""
    m, n, _, batch = sizes
    return -(-m // (tile[0] * cluster[0])) * -(-n // (tile[1] * cluster[1])) * batch


def grouped_config(
    rows: int, k_bytes: int = 1 << 16, wide: bool = False, *, columns: int = 1 << 14, groups: int = 8
) -> Sm90Config:
    """The configuration for groups of `rows` rows on average. A tile is one group's.

    k_bytes  bytes of a row of A: a tile that is finished by blocks has two k tiles or more
    wide     C has 32 bits an element: its store takes the shared memory of stages
    columns  of B, for groups of few rows: their tiles share it out among the multiprocessors
    groups   that have rows

    >>> grouped_config(8192).tile, grouped_config(8192, 4096).tile, grouped_config(192).tile
    ((256, 192), (128, 192), (256, 128))
    >>> [grouped_config(rows).tile for rows in (128, 256, 512)]
    [(192, 160), (128, 256), (128, 256)]
    >>> [grouped_config(20, columns=n, groups=6).tile[1] for n in (4096, 6144, 7168)]
    [192, 144, 176]
    """
    if rows <= _ONE_TILE:
        tile = _ONE_TILE, _evenly(_FEW_ROWS_WIDTHS, columns, groups, _START_COLUMNS)
        last = "start" if _tiles_of_few(tile[1], columns, groups) > _MANY_ROUNDS * MODEL.multiprocessors else "end"
        return Sm90Config(
            tile, consumers=1, loader="warp", chunks=1, buffers=2, l2_promotion="256B", overlap=True, trigger=last
        )
    if wide:
        return Sm90Config((128, 256), cluster=(1, 2), chunks=1, buffers=1, l2_promotion="256B")
    usual = partial(Sm90Config, chunks=1, buffers=2, l2_promotion="256B")
    if rows <= _TWO_TILES:
        return usual((192, 160), consumers=3, cluster=(1, 2), overlap=True, skip_empty_blocks=True)
    if rows < _ONE_TALL:
        return usual((256, 128), cluster=(1, 2), skip_empty_blocks=True)
    if rows < _LARGER_GROUP:
        return usual(_LARGEST, cluster=(2, 1), turn_last_pair=True, skip_empty_blocks=True, halve_last_round=True)
    if k_bytes <= _SHORT_K:
        return usual((128, 192), schedule="pingpong", loader="warpgroup", cluster=(1, 2), group=16)
    if k_bytes <= _USUAL_K:
        return usual(_LARGEST, cluster=(1, 2), group=16, halve_last_round=True)
    return usual((256, 192), cluster=(1, 2), staged_epilogue_k_tiles=2, halve_last_round=True)


def _tiles_of_few(width: int, columns: int, groups: int) -> int:
    """Tiles of groups of which each has one tile of rows."""
    return -(-columns // width) * groups


def _evenly(widths: Sequence[int], columns: int, groups: int, start: int = 0) -> int:
    """The tile's width with which the busiest multiprocessor has least to do.

    groups  of which each has one tile of rows
    start   columns of a tile that its start costs; none where the kernel before hides it
    """

    def work(width: int) -> int:
        return -(-_tiles_of_few(width, columns, groups) // MODEL.multiprocessors) * (width + start)

    return min(widths, key=work)


@lru_cache(4096)
def along_k_config(
    m: int, n: int, k: int, groups: int, wide: bool = False, places: ClusterOccupancy | None = None, columns: int = 1
) -> Sm90Config:
    """The configuration for groups along K that is estimated fastest.

    k        of all groups together
    wide     C has 32 bits an element: its store takes the shared memory of stages
    columns  a CTA stores a multiple of this many columns of C, where there is such a tile

    >>> along_k_config(4096, 7168, 32768, 4).tile, along_k_config(256, 128, 4096, 8).tile
    ((256, 192), (64, 64))
    >>> along_k_config(4096, 7168, 32768, 4, columns=128).tile
    (128, 256)
    """
    found = along_k_candidates((m, n, k, groups), wide, places)
    return next((config for config in found if config.tile[1] % columns == 0), found[0])


def along_k_candidates(
    sizes: tuple[int, int, int, int], wide: bool = False, places: ClusterOccupancy | None = None
) -> list[Sm90Config]:
    """The configurations for groups along K, the one estimated fastest first.

    sizes  M, N, K of all groups, and the groups

    They are estimated as a batch of groups of as many lines each, by the model of many rows. Tiles are whole spans of
    both operands, whose lines run along M and N. A consumer that loads for itself has as many K tiles of a group as
    stages, so it is for groups that are deeper.

    >>> [(config.tile, config.cluster) for config in along_k_candidates((7168, 2048, 32768, 8))][:2]
    [((128, 256), (2, 1)), ((128, 256), (1, 2))]
    """
    m, n, k, groups = sizes
    lines = -(-k // groups)
    product = LargeMModel(m, n, lines, groups, places or ClusterOccupancy(), rows_of=n)
    found = []
    for tile in _ALONG_K:
        consumers = warpgroups(tile, once=False)
        deep = lines > stages(tile, consumers, 2) * STAGE_BYTES_OF_K // 2
        for cluster in ((1, 1), (2, 1), (1, 2)):
            if not product.shares(tile, cluster) or (cluster[0] > 1 and tile[1] % (64 * cluster[0])):
                continue
            best = product.estimate(tile, cluster, pingpong=False)
            config = Sm90Config(
                tile, consumers=consumers, loader="warp" if consumers == 1 else "self" if deep else "warpgroup",
                cluster=cluster, staged_epilogue_k_tiles=2 if tile[0] == 256 and deep and not wide else 0,
                group=best.group, along=best.along, chunks=1, buffers=1 if wide else 2, l2_promotion="256B",
            )  # fmt: skip
            found.append((best.seconds, config))
    return [config for _, config in sorted(found, key=lambda candidate: candidate[0])]


@lru_cache(4096)
def k_blocks_config(
    m: int, n: int, k: int, groups: int, scales: tuple[int, ...] | None, c: str = "bf16",
    places: ClusterOccupancy | None = None, columns: int = 1,
) -> Sm90Config:  # fmt: skip
    """The configuration for groups along K of 8-bit floats that is estimated fastest.

    A batch of products of as many lines each is estimated, by persistent kernels of scaled products. Sums that stay in
    the tensor core are estimated as 16-bit groups with K tiles of as many bytes.

    k        of all groups together
    scales   rows of A, and columns of B, that share one; None for sums that stay in the tensor core
    columns  a CTA stores a multiple of this many columns of C, where there is such a tile

    >>> [k_blocks_config(7168, 2048, 32768, 8, scales).tile for scales in ((1, 128), (1, 1), None)]
    [(128, 256), (128, 128), (128, 256)]
    >>> [k_blocks_config(m, 512, 4096, 8, (1, 1)).tile for m in (512, 64)]
    [(128, 128), (64, 64)]
    """
    places, wide = places or ClusterOccupancy(), dtype(c).bits == 32
    if scales is None:
        return along_k_config(m, n, -(-k // 2), groups, wide, places, columns)
    each, unit = scales[1:] == (1,), STORE_UNIT // dtype(c).bytes
    sizes = m, n, -(-k // groups), groups
    ranked = _ranked(sizes, each, places.multiprocessors, not wide, adds=scales == ())
    found = [_own_rows(config) for kind, config in ranked if kind != "one" and config.tile[1] % unit == 0]
    if each and m > ROWS:
        sharing = _sharing(sizes, _EACH_LINE)
        found.insert(0, Sm90Config(_EACH_LINE, loader="warpgroup", cluster=sharing, chunks=1, buffers=1))
    return next((config for config in found if config.tile[1] % columns == 0), found[0])


def _own_rows(config: Sm90Config) -> Sm90Config:
    """The configuration as groups along K have it: all rows are loaded, and no kernel before is overlapped."""
    tuning = replace(config.tuning, overlap=False, store_at_once=False, box_rows=WARP_ROWS)
    return replace(config, loaded_a_rows=None, tuning=tuning)


def grouped_scaled_config(
    rows: int, each_column: bool = False, *, columns: int = 1 << 14, groups: int = 8, narrow: bool = True,
    adds: bool = False,
) -> Sm90Config:  # fmt: skip
    """The same for groups whose products are scaled.

    narrow  C has at most 16 bits an element: a whole tile fits beside the stages
    adds    the main loop adds K blocks without scales

    >>> grouped_scaled_config(8192).tile, grouped_scaled_config(192).tile, grouped_scaled_config(64, True).tile
    ((128, 256), (256, 128), (64, 64))
    >>> [grouped_scaled_config(rows).cluster for rows in (128, 223, 256)]
    [(1, 2), (1, 2), (2, 1)]
    >>> [grouped_scaled_config(20, columns=n, groups=6).tile[1] for n in (4096, 6144, 7168)]
    [96, 96, 128]
    >>> [grouped_scaled_config(8192, narrow=narrow).tuning.store_at_once for narrow in (True, False)]
    [True, False]
    >>> [grouped_scaled_config(1024, columns=n, groups=6).tile for n in (4096, 7168)]
    [(128, 256), (128, 192)]
    """
    if rows <= _ONE_TILE:
        many = _tiles_of_few(_MANY_WIDTH, columns, groups) > _MANY_ROUNDS * MODEL.multiprocessors
        evenly = _MANY_WIDTH if many else _evenly(_FEW_ROWS_SCALED_WIDTHS, columns, groups)
        width = _EACH_COLUMN if each_column else evenly
        buffers = 1 if each_column else 2
        return Sm90Config(
            (_ONE_TILE, width), consumers=1, loader="warp", chunks=1, buffers=buffers, l2_promotion="256B", overlap=True
        )
    usual = partial(Sm90Config, loader="warpgroup", chunks=1, buffers=1)
    if each_column:
        return usual((128, _EACH_COLUMN))
    if rows <= _TWO_TILES:
        return usual(_NARROWER, cluster=(1, 2))
    if rows < _ONE_TALL:
        return usual((256, 128), cluster=(1, 2), skip_empty_blocks=True, l2_promotion="256B")
    if adds:
        return usual((256, 128), cluster=(1, 2))
    tile = _large_tile(rows, columns, groups) if narrow and rows >= _UNEVEN else _LARGEST
    return usual(
        tile, cluster=(2, 1), along="N" if rows >= _LARGER_GROUP else "M",
        chunks=_AT_ONCE_CHUNKS[tile] if narrow else 1, store_at_once=narrow, box_rows=ROWS if narrow else WARP_ROWS,
        turn_last_pair=rows < _LARGER_GROUP, halve_last_round=True,
    )  # fmt: skip


def _large_tile(rows: int, columns: int, groups: int) -> tuple[int, int]:
    """The tile of groups of many rows with the fewest columns to multiply.

    Those of all rounds of pairs of CTAs.
    """

    def cost(tile: tuple[int, int]) -> float:
        rounds = -(-_tiles((rows, columns, 0, groups), tile, (_PAIR, 1)) // (MODEL.multiprocessors // _PAIR))
        return rounds * tile[1] * (_NARROWER_COST if tile == _NARROWER else 1)

    return min(_LARGEST, _NARROWER, key=cost)


def read_each_column(scales: tuple[int, ...], n: int, sums: int) -> bool:
    """True if a thread reads a number for each of its columns. Each has one, or up's groups begin between any two.

    scales  rows of A, and columns of B, that share a number
    n       columns of C

    >>> read_each_column((1, 1), 256, 1), read_each_column((1, 128), 88, 2), read_each_column((1, 128), 97, 2)
    (True, False, True)
    """
    return scales[1:] == (1,) or (sums > 1 and len(scales) > 1 and n % 2 == 1)


def usual_config(
    sizes: tuple[int, int, int, int], types: tuple[str, str, str], scales: tuple[int, ...] | None, sums: int = 1,
    columns: int = 1, places: ClusterOccupancy | None = None, equal: bool = False, masked: bool = False,
    shifts: bool = False,
) -> Sm90Config:  # fmt: skip
    """The configuration of a grouped product, unless it was measured or given.

    sizes    M, N, K and the groups
    scales   rows of A, and columns of B, that share one; None for a main loop that only adds
    sums     of an element of C: 2 of a gated product
    columns  a CTA stores a multiple of this many columns of C, where there is such a tile
    places   of the GPU, or None for an H100's
    equal    all groups have as many rows
    masked   M is what `masked_rows` takes the groups' rows to be
    shifts   the last tile may begin earlier: nothing but the product is stored

    >>> types = ("e4m3", "e4m3:col", "e4m3")
    >>> usual_config((160, 3072, 4096, 8), types, None).tile, usual_config((160, 3072, 4096, 8), types, None, 2).tile
    ((64, 192), (64, 192))
    >>> usual_config((160, 3072, 4096, 8), types, None, columns=128).tile
    (64, 128)
    >>> [usual_config((1600, 3072, 4096, 8), types, (1, 128), sums, 128).tile for sums in (1, 2)]
    [(128, 128), (128, 256)]
    """
    m, n, k, experts = sizes
    rows, wide = -(-m // experts), dtype(types[2]).bits == 32
    alike = _equal_config(rows, types, scales) if equal and not read_each_column(scales or (), n, sums) else None
    if alike is not None:
        return whole_columns(whole_stores(alike, types[2], sums), columns * sums)
    if scales is not None:
        each_column = read_each_column(scales, n, sums)
        found = grouped_scaled_config(
            rows, each_column, columns=n * sums, groups=experts, narrow=not wide, adds=scales == ()
        )
        found = found if each_column else whole_columns(found, columns * sums)
    else:
        k_bytes = k * dtype(types[0].partition(":")[0]).bytes
        found = grouped_config(rows, k_bytes, wide, columns=n * sums, groups=experts)
        found = whole_columns(whole_stores(found, types[2], sums), columns * sums)
    size = dtype(types[0].partition(":")[0]).bytes
    few = found
    if sums == 1 and found.tile in _ALONG_N and found.tuning.turn_last_pair:
        few = _of_few_tiles(found, found, sizes, size, scales is not None, places, shifts)
    elif sums == 1 and _ONE_TILE < rows < _ONE_TALL and not (wide or masked) and found.tile in _TALL:
        large = grouped_config(_ONE_TALL) if scales is None else grouped_scaled_config(_ONE_TALL)
        few = _of_few_tiles(found, large, sizes, size, scales is not None, places, shifts)
    if few != found:
        return whole_columns(whole_stores(few, types[2], sums), columns)
    if rows < _UNEVEN or sums > 1:
        return found
    return _as_dealt(found, _tiles((rows, n, k, experts), found.tile, found.cluster), places)


def _of_few_tiles(
    usual: Sm90Config, large: Sm90Config, sizes: tuple[int, int, int, int], size: int, promoted: bool,
    places: ClusterOccupancy | None, shifts: bool,
) -> Sm90Config:  # fmt: skip
    """The configuration of groups that have few of the largest tiles: their last round leaves most of the GPU idle.

    large     that of pairs of the largest tiles
    sizes     M, N, K and the groups
    size      bytes of an element of A
    promoted  the main loop has scales
    shifts    the last tile may begin earlier

    >>> few = usual_config((600, 2048, 4096, 2), ("bf16", "bf16:col", "bf16"), None)
    >>> few.tile, usual_config((1200, 4096, 4096, 4), ("bf16", "bf16:col", "bf16"), None).tile
    ((64, 192), (128, 192))
    >>> [usual_config((rows, 4096, 4096, 3), ("bf16", "bf16:col", "bf16"), None).tile for rows in (600, 6000)]
    [(128, 192), (128, 256)]
    >>> scaled = usual_config((1200, 4096, 4096, 4), ("e4m3", "e4m3:col", "bf16"), (1, 128))
    >>> scaled.tile, scaled.cluster, scaled.tuning.store_at_once
    ((128, 192), (1, 1), True)
    >>> [usual_config((600, 2048, k, 2), ("e4m3", "e4m3:col", "bf16"), (1, 128)).cluster for k in (2048, 4096)]
    [(1, 1), (2, 1)]
    """
    m, n, k, groups = sizes
    places = places or ClusterOccupancy()
    time = _FewTiles(m, n, groups, promoted, places.multiprocessors, places.memory)
    most = _FEW_ROUNDS * places.multiprocessors
    if m * n > most * prod(usual.tile) or sum(time.rounds(usual.tile)) > _DRAWS * _FEW_ROUNDS:
        return usual
    promotion = "128B" if promoted else "256B"
    # Beside tiles of single CTAs only pairs of the larger ones are of use.
    tile = min([*time.costs][: _LARGE_TILES if shifts else _FEW_TILES], key=time.expected)
    if time.expected(tile) > (1 if usual is large else _GAIN) * time.expected(usual.tile):
        tile = usual.tile
    single = time.alone(k * size, places) if shifts else None
    if single is not None:
        rounds = time.expected(tile) * (_SCALED_ROUND if promoted else _ROUND) * k * size
        if single[0] < _LARGE_START + rounds:
            return single[1].tuned(l2_promotion=promotion)
    if tile == usual.tile:
        return usual
    if tile[0] == ROWS:
        pairs = k * size >= _PAIRED_K
        return Sm90Config(
            tile, consumers=1, loader="warp", cluster=(2, 1) if pairs else (1, 1), chunks=1, buffers=2, overlap=True,
            turn_last_pair=pairs, l2_promotion=promotion,
        )  # fmt: skip
    if tile == large.tile:
        return large
    found = Sm90Config(
        tile, loader=large.loader, cluster=large.cluster, chunks=1, buffers=1 if promoted and tile[1] > 128 else 2,
        overlap=True, turn_last_pair=True, halve_last_round=True, skip_empty_blocks=not promoted,
        l2_promotion=promotion,
    )  # fmt: skip
    if not (tile == _NARROWER and large.tuning.store_at_once and k in _AT_ONCE_K[tile]):
        return found
    # stored at once, tiles alone were faster than pairs
    alone = found.tuned(turn_last_pair=False, store_at_once=True, chunks=_AT_ONCE_CHUNKS[tile], box_rows=ROWS)
    return replace(alone, cluster=(1, 1))


class _FewTiles(NamedTuple):
    """Time of few groups, in rounds of the largest tiles. The host knows the rows of all groups together.

    memory  TB/s
    """

    rows: int
    columns: int
    groups: int
    promoted: bool
    workers: int
    memory: float

    @property
    def costs(self) -> dict[tuple[int, int], float]:
        """A round's time by tile."""
        return _SCALED_ROUND_COSTS if self.promoted else _ROUND_COSTS

    def alone(self, k_bytes: int, places: ClusterOccupancy) -> tuple[float, Sm90Config] | None:
        """(seconds, configuration) of the fastest tile of single CTAs; None of many rounds.

        k_bytes  of a row of A. The last tile begins earlier

        CTAs of one GPC take neighbouring tiles, where the GPU's order is known: L2 serves their reads of the same rows
        once. CTAs that start where others exit are in no order.
        """
        costs, widths = (_SCALED_CTA_COSTS, _SCALED_CTA_WIDTHS) if self.promoted else (_CTA_COSTS, _CTA_WIDTHS)
        rounds = places.gpc_rounds(1)
        timed = [
            (self._alone((rows, width), dealt, k_bytes), (rows, width), dealt)
            for rows, dealt in costs for width in widths[rows]
            if (rounds or not dealt) and self._rounds((rows, width)) <= _CTA_ROUNDS
        ]  # fmt: skip
        if not timed:
            return None
        seconds, (rows, columns), dealt = min(timed)
        early = not dealt
        idle = sum(max(0.0, 1 - each) for each in self.rounds((rows, columns))) / _DRAWS
        return seconds, Sm90Config(
            (rows, columns), consumers=rows // ROWS, loader="warp" if rows == ROWS else "warpgroup", chunks=1,
            buffers=1 if self.promoted and columns > 128 else 2, shift_last_tile=True, overlap=early,
            trigger="end" if early and idle > _IDLE_SHARE else "start", gpc_order=() if early else rounds,
        )  # fmt: skip

    def _rounds(self, tile: tuple[int, int]) -> float:
        """Rounds of a tile on average over the draws."""
        return sum(self.rounds(tile)) / _DRAWS

    def _alone(self, tile: tuple[int, int], dealt: bool, k_bytes: int) -> float:
        """Seconds of such a tile, on average over the draws."""
        if self.promoted:
            costs, starts, reads = _SCALED_CTA_COSTS, _SCALED_CTA_START, _SCALED_CTA_READS[dealt]
        else:
            costs, starts, reads = _CTA_COSTS, _CTA_START, _CTA_READS[dealt]
        of_k, of_column = costs[tile[0], dealt]
        each = (of_k + of_column * tile[1]) * k_bytes / 1024
        read = self.groups * self.columns * k_bytes / (reads * self.memory / ClusterOccupancy().memory) / 1e6
        parts = [divmod(rounds, 1) for rounds in self.rounds(tile)]
        busy = [((whole + rest**_CTA_PART) * each) ** _CTA_TOGETHER for whole, rest in parts]
        return 1e-6 * (
            starts[tile[0], dealt] + sum((x + read**_CTA_TOGETHER) ** (1 / _CTA_TOGETHER) for x in busy) / _DRAWS
        )

    def rounds(self, tile: tuple[int, int]) -> list[float]:
        """Rounds of a tile for each draw of rows."""
        of_line = -(-self.columns // tile[1]) / self.workers
        return [of_line * lines for lines in _lines(self.rows, self.groups, tile[0])]

    def expected(self, tile: tuple[int, int]) -> float:
        """The time with a tile, on average over the draws."""
        return sum(self._time(tile, rounds) for rounds in self.rounds(tile)) / _DRAWS

    def _time(self, tile: tuple[int, int], rounds: float) -> float:
        """The time of rounds: of products or of reading B. A last one of few tiles is halved, and reads slowly."""
        whole, rest = divmod(rounds, 1)
        halved = _SCALED_HALVED_ROUNDS if self.promoted else _HALVED_ROUNDS
        last = halved.get(tile, 1.0) if whole and 2 * rest <= 1 else 1.0
        second = (_SCALED_ROUND if self.promoted else _ROUND) * _READ_SHARE * self.memory * 1e12
        cost, reads = self.costs[tile], self.groups * self.columns / (second * rounds)
        return whole * max(cost, reads) + (rest > 0) * max(last * cost, rest**0.5 * reads)


@lru_cache(256)
def _lines(rows: int, groups: int, of_tile: int) -> tuple[int, ...]:
    """Tiles of rows of all groups, for each draw of `_shares`."""
    return tuple([sum(-(-round(rows * x) // of_tile) for x in shares) for shares in _shares(groups)])


@lru_cache(256)
def _shares(groups: int) -> tuple[tuple[float, ...], ...]:
    """Each group's share of all rows, in draws of 0.7 to 1.3 of the average: the same ones every time."""
    draw, found = Random(groups), []
    for _ in range(_DRAWS):
        each = [draw.uniform(*_UNEVEN_SHARE) for _ in range(groups)]
        found.append(tuple([x / sum(each) for x in each]))
    return tuple(found)


def _equal_config(rows: int, types: tuple[str, str, str], scales: tuple[int, ...] | None) -> Sm90Config | None:
    """The configuration of groups that all have `rows` rows; None where it was not measured to differ.

    Tiles fill a group's rows as far as they can: each has a cost for a row, with those of its last tile that a group
    does not have. Fitted to `results/groups_equal_h200.json`.

    >>> types = "e4m3", "e4m3:col", "bf16"
    >>> [config and config.tile for config in (_equal_config(rows, types, (1, 128)) for rows in (64, 128, 192, 384))]
    [None, (128, 256), (192, 128), (128, 256)]
    >>> [config and config.tile for config in (_equal_config(rows, types, (1, 128)) for rows in (256, 576, 768, 1024))]
    [(256, 128), (192, 128), None, None]
    >>> types = "bf16", "bf16:col", "bf16"
    >>> [config and config.tile for config in (_equal_config(rows, types, None) for rows in (128, 192, 384, 768))]
    [(128, 256), (192, 128), (192, 160), (256, 192)]
    """
    promoted = scales is not None
    bits = [dtype(each.partition(":")[0]).bits for each in (types[0], types[2])]
    if not _ONE_TILE < rows < _LARGER_GROUP or scales == () or bits != [8 if promoted else 16, 16]:
        return None
    costs = _EQUAL_SCALED_COSTS if promoted else _EQUAL_COSTS
    tall = min(costs, key=lambda each: -(-rows // each) * each * costs[each])
    if promoted:
        usual = partial(Sm90Config, loader="warpgroup", buffers=1)
        if tall == 192:
            return usual((192, 128), consumers=3, cluster=(1, 2), chunks=2)
        if tall == 128:
            return usual(_LARGEST, cluster=(1, 2), chunks=_AT_ONCE_CHUNKS[_LARGEST], store_at_once=True, box_rows=ROWS)
        one = rows <= tall
        return usual((256, 128), cluster=(1, 2), chunks=1, l2_promotion="256B") if one else None
    usual = partial(Sm90Config, chunks=1, buffers=2, l2_promotion="256B")
    if tall == 192:
        one = rows <= tall
        return usual((192, 128 if one else 160), consumers=3, cluster=(1, 2), overlap=not one)
    if tall == 128:
        return usual((128, 256), cluster=(1, 2))
    return usual((128, 256), cluster=(2, 1), along="N") if rows <= tall else usual((256, 192), cluster=(1, 2))


def gated_config(
    sizes: tuple[int, int, int, int], types: tuple[str, str, str], gate: str, places: ClusterOccupancy
) -> tuple[Sm90Config, str]:
    """The configuration of a gated product without scales in its main loop, and why.

    That of `matmul`'s gated product; of a batch, that of groups of as many rows.

    sizes  M, N, K and the batch; N is C's columns

    >>> types = ("e4m3", "e4m3:col", "bf16")
    >>> gated_config((64, 2048, 4096, 1), types, "silu", ClusterOccupancy())[0].tile
    (64, 32)
    >>> gated_config((200, 2048, 4096, 4), types, "silu", ClusterOccupancy())[0].tuning.skip_empty_blocks
    False
    """
    m, n, k, batch = sizes
    if batch > 1:
        config = usual_config((m * batch, n, k, batch), types, None, HALVES, places=places)
        # A matrix of a batch has all rows, and the host knows the tiles.
        config = config.tuned(skip_empty_blocks=False, turn_last_pair=False, halve_last_round=False)
        return config, f"{m} rows a matrix, gated: tiles of {'x'.join(map(str, config.tile))}"
    choice, why = choose(m, n, k, a=types[0], multiprocessors=places, gated=gate)
    return whole_stores(choice.config, types[2], HALVES), why


def whole_stores(config: Sm90Config, c: str, sums: int) -> Sm90Config:
    """The configuration with a tile whose rows of C are whole 16 bytes.

    c     the result's type
    sums  of an element of C: 2 of a gated product

    >>> config = Sm90Config((64, 208), consumers=1, loader="warp")
    >>> whole_stores(config, "e4m3", 2).tile, whole_stores(config, "bf16", 2).tile
    ((64, 192), (64, 208))
    >>> whole_stores(Sm90Config((64, 16), consumers=1), "e4m3", 2).tile
    (64, 32)
    """
    unit, (rows, columns) = STORE_UNIT // dtype(c).bytes * sums * config.split, config.tile
    return config if columns % unit == 0 else replace(config, tile=(rows, max(unit, columns // unit * unit)))
