"""Kernels of products of shards: the tile, the cluster and the chunks for a problem.

>>> choice = gather_choice(4096, 7168, 4096, ranks=2)
>>> choice.plan.config.tile, choice.chunks
((128, 256), 1)
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ..arguments import as_int, shown
from ..atoms.copy.base import VECTOR_BYTES
from ..dtypes import dtype as dtype_named
from ..errors import PlanError
from ..kernels.epilogue.chain import Epilogue
from ..kernels.plan import present
from ..kernels.sm90.choose.occupancy import ClusterOccupancy
from ..kernels.sm90.config import Sm90Config
from ..kernels.sm90.plan import Sm90Plan
from ..kernels.sm90.shards import (
    Gathered,
    Scattered,
    Shards,
    check_division,
    room_bytes,
    signals_of_chunk,
    tiles_of_shard,
)
from .gathered_rows import divisor, sent_chunks

# Measured between H200s of one host: copies of 8, 16, 32 and 64 MiB reached 302, 336, 362 and 376 GB/s, and the
# kernel's own stores 230.
_COPIED_BYTES = 32 << 20  # bytes of sums from which a rank sends them by copy engines, below by stores
_RATE = {1: 1300e12, 2: 700e12}  # operations a second, by the bytes of an element
_HIDING = 120e9  # bytes a second: where the product takes longer than the sums at this rate, copies took less, too
_COPIED_CHUNKS, _STORED_CHUNKS = (2, 4), 16  # of a scattered shard: copied, and counted as the kernel stores it
_COPIED_CHUNK = 8 << 20  # bytes of a copied chunk, above the fewest chunks
_DEFAULT = ClusterOccupancy(132)
_TURNS = "pingpong"  # one consumer stores while the other one multiplies


class _Candidate(NamedTuple):
    """Configurations to choose from.

    cost  the time of a tile for its area, over that of 128x256 without turns
    """

    tile: tuple[int, int]
    clusters: tuple[tuple[int, int], ...]
    cost: float
    schedule: str = "cooperative"


# Measured on two H100s. A loader of its own, which waits for flags while consumers multiply, took 0.67 to 1.04 of the
# time of consumers that load. Scatters in pingpong took 0.83 to 0.96: loads of partial sums, and the release behind
# their stores, hide behind the other consumer's products. 256x224 spills beside the waits.
_GATHERS = (
    _Candidate((128, 256), ((2, 1), (1, 1)), 1.0),
    _Candidate((128, 192), ((2, 1),), 0.985, _TURNS),
    _Candidate((128, 240), ((2, 1),), 1.03),
    _Candidate((128, 224), ((2, 1),), 1.07),
    _Candidate((128, 208), ((2, 1),), 1.03),
    _Candidate((128, 192), ((2, 1),), 1.05),
    _Candidate((256, 192), ((2, 1), (1, 2), (1, 1)), 1.1),
    _Candidate((128, 128), ((1, 1),), 1.1),
)
_SCATTERS = (  # 256x192 spills: the loads of a peer's partial sums take 48 registers beside 192 accumulators
    _Candidate((128, 192), ((2, 1), (1, 1)), 0.9, _TURNS),
    _Candidate((128, 176), ((2, 1),), 0.905, _TURNS),
    _Candidate((128, 160), ((2, 1),), 0.93, _TURNS),
    _Candidate((128, 128), ((2, 1), (1, 1)), 0.97, _TURNS),
    _Candidate((128, 256), ((2, 1), (1, 2), (1, 1)), 1.0),
    _Candidate((128, 128), ((1, 1),), 1.1),
    _Candidate((64, 256), ((1, 1),), 1.3),
    _Candidate((64, 128), ((1, 1),), 1.5),
)


@dataclass(frozen=True)
class Transfer:
    """The way of shards between GPUs; None lets the plan choose.

    chunks  of a shard, each with a flag of its own: of rows of a gather, of tiles of a scatter
    by      of a scatter: "stores", by the kernel, across NVLink; "copies", by copy engines as chunks are complete

    Raises PlanError for another value of `by`, and for chunks below 1; the plan checks what they divide.

    >>> Transfer(chunks=2)
    Transfer(chunks=2, by=None)
    """

    chunks: int | None = None
    by: str | None = None

    def __post_init__(self) -> None:
        if self.by not in (None, "stores", "copies"):
            raise PlanError(f"by = {shown(self.by)}: known are 'stores', 'copies' and None")
        if self.chunks is not None:
            as_int(self.chunks, "chunks of Transfer", PlanError, least=1)


@dataclass(frozen=True)
class ShardChoice:
    """A plan, and its shards' way.

    ready  the GPUs for which it is compiled
    """

    plan: Sm90Plan
    ranks: int
    transfer: Transfer
    ready: set[int] = field(default_factory=set, compare=False)

    @property
    def chunks(self) -> int:
        """Chunks of a shard."""
        return present(self.transfer.chunks)

    @functools.cached_property
    def done(self) -> int:
        """The signals of a scattered chunk in one launch."""
        return signals_of_chunk(self.plan, self.ranks, self.chunks)

    @functools.cached_property
    def room_bytes(self) -> int:
        """Bytes of the partial sums of a scattered shard."""
        return room_bytes(self.plan, self.ranks)


def gather_choice(
    m: int, n: int, k: int, *, ranks: int, kind: str = "bf16", order: str = "col", transfer: Transfer | None = None,
    config: Sm90Config | None = None, epilogue: Epilogue | None = None, places: ClusterOccupancy = _DEFAULT,
) -> ShardChoice:  # fmt: skip
    """The kernel of C = A @ B, where each rank has m / ranks rows of A.

    m, n, k      sizes of the gathered product on one rank

    kind, order  of A and B, and of B: "col" where K is contiguous; transfer, config: None to choose

    Raises PlanError for sizes that do not divide, rows of no whole 16 bytes, and a configuration without a kernel.
    """
    given, row = transfer or Transfer(), k * dtype_named(kind).bytes
    if row % VECTOR_BYTES:
        raise PlanError(f"rows of K = {k} {kind} are {row} bytes, one behind the other: {row} % {VECTOR_BYTES} != 0")
    if given.chunks is None:
        given = replace(given, chunks=sent_chunks(m // ranks, row))
    return _chosen(Gathered(), (m, n, k), ranks, kind, order, given, config, epilogue, places)


def scatter_choice(
    m: int, n: int, k: int, *, ranks: int, kind: str = "bf16", order: str = "col", transfer: Transfer | None = None,
    config: Sm90Config | None = None, epilogue: Epilogue | None = None, places: ClusterOccupancy = _DEFAULT,
) -> ShardChoice:  # fmt: skip
    """The kernel of partial sums A @ B, of which each rank adds m / ranks rows.

    m, n, k  sizes of the partial product on one rank

    >>> choice = scatter_choice(4096, 14336, 2048, ranks=2)
    >>> choice.plan.config.tile, choice.transfer
    ((128, 176), Transfer(chunks=4, by='copies'))

    Raises PlanError for rows that are no shards of whole tiles, and a configuration without a kernel.
    """
    return _chosen(Scattered(), (m, n, k), ranks, kind, order, transfer or Transfer(), config, epilogue, places)


@functools.lru_cache(1024)
def _chosen(
    shards: Shards, sizes: tuple[int, int, int], ranks: int, kind: str, order: str, transfer: Transfer,
    config: Sm90Config | None, epilogue: Epilogue | None, places: ClusterOccupancy,
) -> ShardChoice:  # fmt: skip
    candidates = [config] if config is not None else list(_candidates(shards, sizes, places))
    refused: PlanError | None = None
    for one in candidates:
        try:
            plan = Sm90Plan.derive(*sizes, a=kind, b=f"{kind}:{order}", config=one, epilogue=epilogue, shards=shards)
            found = transfer
            if isinstance(shards, Scattered):
                check_division(plan, ranks, 1)
                found = _scattered(transfer, sizes, plan, ranks)
            check_division(plan, ranks, present(found.chunks))
        except PlanError as error:
            refused = refused or error
            continue
        return ShardChoice(plan, ranks, found)
    assert refused is not None
    raise refused


def _scattered(transfer: Transfer, sizes: tuple[int, int, int], plan: Sm90Plan, ranks: int) -> Transfer:
    """The way of a scatter's partial sums."""
    room = room_bytes(plan, ranks)
    moved, seconds = (ranks - 1) * room, 2 * math.prod(sizes) / _RATE[plan.a.dtype.bytes]
    hides = moved >= _COPIED_BYTES or seconds > moved / _HIDING
    by = transfer.by or ("copies" if hides else "stores")
    most = _STORED_CHUNKS
    if by == "copies":
        fewest, many = _COPIED_CHUNKS
        most = min(many, max(fewest, room // _COPIED_CHUNK))
    return replace(transfer, by=by, chunks=transfer.chunks or divisor(tiles_of_shard(plan, ranks), most))


def _candidates(shards: Shards, sizes: tuple[int, int, int], places: ClusterOccupancy) -> Iterator[Sm90Config]:
    """Configurations by estimated time: waves of tiles, times a tile's area and its cost."""
    m, n, _ = sizes
    found: list[tuple[float, int, Sm90Config]] = []
    for tile, clusters, cost, schedule in _GATHERS if isinstance(shards, Gathered) else _SCATTERS:
        for cluster in clusters:
            across = -(-m // (tile[0] * cluster[0])) * -(-n // (tile[1] * cluster[1]))
            blocks = cluster[0] * cluster[1]
            waves = -(-across // places.resident(blocks))
            single = 1.0 if blocks > 1 else 1.02  # loads of a pair are shared
            consumers = 1 if tile[0] == 64 else 2
            config = Sm90Config(
                tile, cluster=cluster, consumers=consumers, schedule=schedule, loader="warpgroup", chunks=1, buffers=2,
                l2_promotion="256B",
            )  # fmt: skip
            found.append((waves * tile[0] * tile[1] * cost * single, len(found), config))
    for _, _, config in sorted(found, key=lambda each: each[:2]):
        yield config
