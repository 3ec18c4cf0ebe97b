"""The configuration of a product with indexed rows, and whether A's rows are copied first."""

from __future__ import annotations

from ..choose.costs import cost_model
from ..choose.occupancy import ClusterOccupancy
from ..choose.scaled_grouped import grouped_config
from ..config import Sm90Config

MODEL = cost_model("indexed_rows", "h100")

# Tiles of C, and the warpgroups that multiply them. Columns come by TMA, rows by threads: tiles are wide.
_TILES = {(128, 256): 2, (128, 192): 2, (128, 128): 2, (64, 256): 1, (64, 128): 1, (64, 64): 1}
_HALF_TILE = 64  # rows
_OVERHEAD = 64  # columns of a tile that its start and its store cost
_LEAST_ROWS = 128  # that a tile costs, as far as its columns count


def indexed_config(sizes: tuple[int, int, int, int], gathers: bool, grouped: bool, wide: bool = False) -> Sm90Config:
    """The configuration for M, N, K and the groups. `wide`: C has 32 bits an element.

    >>> indexed_config((8192, 4096, 4096, 1), True, False).tile, indexed_config((32, 4096, 4096, 1), True, False).tile
    ((128, 256), (64, 64))
    >>> indexed_config((32768, 4096, 4096, 8), True, True).loader, indexed_config((160, 4096, 4096, 8), True, True).tile
    ('warpgroup', (64, 256))
    """
    m, n, k, groups = sizes
    rows = -(-m // groups)
    if grouped and not gathers:
        return grouped_config(rows, 2 * k, wide, columns=n, groups=groups)
    tile = _tile_of_groups(rows) if grouped else _tile_of_rounds(m, n)
    pairs = rows > (4 if grouped else 2) * tile[0] and tile[0] == 128
    return Sm90Config(
        tile, consumers=_TILES.get(tile, 3), loader="warpgroup", cluster=(2, 1) if pairs else (1, 1),
        along="N" if pairs and grouped else "M", chunks=1, buffers=1 if wide else 2, l2_promotion="256B",
    )  # fmt: skip


def _tile_of_rounds(m: int, n: int) -> tuple[int, int]:
    """The tile whose rounds over all multiprocessors take least."""
    places = ClusterOccupancy().multiprocessors

    def work(tile: tuple[int, int]) -> int:
        count = -(-m // tile[0]) * -(-n // tile[1])
        return -(-count // places) * max(tile[0], _LEAST_ROWS) * (tile[1] + _OVERHEAD)

    return min(_TILES, key=work)


def _tile_of_groups(rows: int) -> tuple[int, int]:
    """Few rows: a group's weights are read once; many: large tiles. Tiles of 192 rows waste few of 129 to 192.

    Measured on an H100 with 4, 64, 384 and 1024 rows a group (`benchmarks/bench_indexed.py`).
    """
    if rows <= 32:
        return 64, 256
    return (192, 160) if 128 < rows <= 192 else (128, 256)


def copies_first(sizes: tuple[int, int, int, int], size: int, grouped: bool) -> tuple[bool, str]:
    """(True if copying A's rows first is estimated faster, both estimates in words).

    sizes  M, N, K and the groups
    size   bytes of A's elements

    A copy reads and writes M rows. Threads that gather take a share of the product's time longer than TMA.

    >>> copies_first((8192, 4096, 4096, 1), 2, False)
    (True, 'A copied first: 38.0 us, gathered in the kernel: 55.6 us (estimates)')
    >>> copies_first((128, 4096, 4096, 1), 2, False)[0], copies_first((24576, 2816, 2048, 64), 2, True)[0]
    (False, False)
    """
    m, n, k, groups = sizes
    rows = m // groups
    share = MODEL.gathered
    if grouped:
        share = MODEL.gathered_groups[max(least for least in MODEL.gathered_groups if least <= max(rows, 1))]
    computed = m + groups * _HALF_TILE if grouped else m  # groups end within a tile
    rate = MODEL.rate[grouped] * 2 / size
    moved = size * (groups * n * k + m * k) + 2 * m * n
    gathered = share * (MODEL.start + max(2 * computed * n * k / rate, moved / MODEL.memory))
    copied = MODEL.copy + 2 * size * m * k / MODEL.copied
    said = f"A copied first: {copied * 1e6:.1f} us, gathered in the kernel: {gathered * 1e6:.1f} us (estimates)"
    return copied < gathered, said
