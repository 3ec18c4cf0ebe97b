"""Kernels of products of shards: the tile, the cluster and the chunks for a problem.

>>> choice = gather_choice(4096, 7168, 4096, ranks=2)
>>> choice.plan.config.tile, choice.chunks
((128, 256), 2)
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..errors import PlanError
from ..kernels.sm90.choose.occupancy import Places
from ..kernels.sm90.config import Sm90Config
from ..kernels.sm90.plan import Sm90Plan
from ..kernels.sm90.shards import Gathered, Scattered, Shards, check_division

_CHUNK_BYTES = 8 << 20  # of a gathered chunk at least: a copy of less does not reach the link's rate
_MAX_CHUNKS = 4  # more copies cost more launches of the host than they hide
_CHUNK_ROWS = 1024  # of a scattered chunk at least: fewer lose reuse of B in L2
_DEFAULT = Places(132)
# Tile, clusters to try, and the time of a tile for its area, over that of 256x208. 256x224 spills beside the waits.
_GATHERS = (
    ((256, 208), ((1, 2), (2, 1), (1, 1)), 1.0),
    ((256, 192), ((1, 2), (2, 1), (1, 1)), 1.0),
    ((128, 256), ((2, 1), (1, 1)), 1.02),
    ((128, 128), ((1, 1),), 1.1),
)
_SCATTERS = (
    ((256, 192), ((2, 1), (1, 1)), 1.0),
    ((128, 256), ((2, 1), (1, 2), (1, 1)), 1.02),
    ((128, 128), ((1, 1),), 1.1),
    ((64, 256), ((1, 1),), 1.3),
    ((64, 128), ((1, 1),), 1.5),
)


@dataclass(frozen=True)
class ShardChoice:
    """A plan, the chunks of each shard, and the GPUs for which it is compiled."""

    plan: Sm90Plan
    chunks: int
    ready: set[int] = field(default_factory=set, compare=False)


def gather_choice(
    m: int, n: int, k: int, *, ranks: int, kind: str = "bf16", order: str = "col", chunks: int | None = None,
    config: Sm90Config | None = None, places: Places = _DEFAULT,
) -> ShardChoice:  # fmt: skip
    """The kernel of C = A @ B, where each rank has m / ranks rows of A.

    m, n, k      sizes of the gathered product on one rank

    kind, order  of A and B, and of B: "col" where K is contiguous; chunks, config: None to choose

    Raises PlanError for sizes that do not divide, and a configuration without a kernel.
    """
    if chunks is None:
        shard_bytes = m // ranks * k * 2
        chunks = _divisor(m // ranks, min(_MAX_CHUNKS, max(1, shard_bytes // _CHUNK_BYTES)))
    return _chosen(Gathered(), (m, n, k), ranks, kind, order, chunks, config, places)


def scatter_choice(
    m: int, n: int, k: int, *, ranks: int, kind: str = "bf16", order: str = "col", chunks: int | None = None,
    config: Sm90Config | None = None, places: Places = _DEFAULT,
) -> ShardChoice:  # fmt: skip
    """The kernel of partial sums A @ B, of which each rank adds m / ranks rows.

    m, n, k  sizes of the partial product on one rank

    >>> choice = scatter_choice(4096, 14336, 2048, ranks=2)
    >>> choice.plan.config.tile, choice.chunks
    ((128, 256), 2)

    Raises PlanError for rows that are no shards of whole tiles, and a configuration without a kernel.
    """
    return _chosen(Scattered(), (m, n, k), ranks, kind, order, chunks, config, places)


@functools.lru_cache(1024)
def _chosen(
    shards: Shards, sizes: tuple[int, int, int], ranks: int, kind: str, order: str, chunks: int | None,
    config: Sm90Config | None, places: Places,
) -> ShardChoice:  # fmt: skip
    candidates = [config] if config is not None else list(_candidates(shards, sizes, places))
    refused: PlanError | None = None
    for one in candidates:
        try:
            rows = sizes[0] // ranks // (one.tile[0] * one.cluster[0])
            count = chunks or _divisor(rows, min(_MAX_CHUNKS, max(1, sizes[0] // ranks // _CHUNK_ROWS)))
            if isinstance(shards, Scattered) and config is None:
                one = one.tuned(group=max(1, min(8, rows // count)))
            plan = Sm90Plan.derive(*sizes, a=kind, b=f"{kind}:{order}", config=one, shards=shards)
            check_division(plan, ranks, count)
        except PlanError as error:
            refused = refused or error
            continue
        return ShardChoice(plan, count)
    assert refused is not None
    raise refused


def _candidates(shards: Shards, sizes: tuple[int, int, int], places: Places) -> Iterator[Sm90Config]:
    """Configurations by estimated time: waves of tiles, times a tile's area and its cost."""
    m, n, _ = sizes
    found: list[tuple[float, int, Sm90Config]] = []
    for tile, clusters, cost in _GATHERS if isinstance(shards, Gathered) else _SCATTERS:
        for cluster in clusters:
            across = -(-m // (tile[0] * cluster[0])) * -(-n // (tile[1] * cluster[1]))
            blocks = cluster[0] * cluster[1]
            waves = -(-across // places.resident(blocks))
            single = 1.0 if blocks > 1 else 1.02  # loads of a pair are shared
            consumers = 1 if tile[0] == 64 else 2
            config = Sm90Config(tile, cluster=cluster, consumers=consumers, chunks=1, buffers=2, l2_promotion="256B")
            found.append((waves * tile[0] * tile[1] * cost * single, len(found), config))
    for _, _, config in sorted(found, key=lambda each: each[:2]):
        yield config


def _divisor(value: int, most: int) -> int:
    """The largest divisor of a value up to `most`, 1 at least.

    >>> _divisor(12, 5), _divisor(7, 4)
    (4, 1)
    """
    return next((count for count in range(most, 1, -1) if value % count == 0), 1)
