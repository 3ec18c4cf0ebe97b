"""Products that overlap with communication. GPUs of one host that gather A's rows, or reduce and scatter C's.

M rows are `ranks` shards of equal size, shard r of rank r; a shard is some chunks. Words in global memory tell what has
arrived.

    part         before a product                        tiles, in order           after a tile
    ---------    ------------------------------------    ----------------------    -----------------------------------
    Gathered     the loader waits for the flag of each   own shard's rows first,   nothing
                 chunk that the tile of A has rows of,   then the next rank's
                 but for its own shard's, which it
                 loads from where they lie
    Scattered    before its last K tile the loader       shard by shard, from the  the rank before has partial
                 waits for the flag of what the next     next rank's on to the     sums of it too: what came is
                 rank has sent for the tile: none for    own one                   added, the sum goes on to the
                 the first shard                                                   rank before; of own rows it is C

A chunk of a Gathered product is rows of A. Copy engines move it beside the kernel, then set its flag.

Partial sums of a shard go around a ring, each time one rank down, and end at their owner: rank r computes shard r + 1
first, which begins there, and its own last. So each rank receives from the next one alone: of copies to several ranks
at once, two would meet at one receiver and both be slow. A chunk of a Scattered product is consecutive tiles of a
shard, in the order of the schedule: in a room of partial sums it is consecutive bytes. A rank has a room for each shard
but the first. Rooms that are written lie in the memory of the rank before (the kernel's stores cross NVLink), or in the
own (copy engines move complete chunks).

Flag f has arrived when flags[f] - target >= 0, in 32 bits. A wait has a limit by the GPU's clock (`Patience`). Beyond
it the kernel writes (1 + flag, what it saw, target, rank) to `record` and stops: the launch ends with an error.

Persistent CTAs take tiles in order. A tile waits for tiles that the next rank takes a whole shard before, so the first
tile that is not done on any rank waits for none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from ...arguments import Integer, shown
from ...atoms.copy.base import VECTOR_BYTES
from ...checks.budgets import WARPGROUP, launch_registers
from ...dtypes import DType
from ...errors import PlanError
from ...layouts import Layout
from ...layouts.proofs.digits import minimum as least
from ...layouts.proofs.verdicts import Proof
from ...report import Check
from ...schedule import RotatedRows, ShardByShard
from ...schedule.tile_order import Grid, Minimum, Tile
from ..derive import either
from ..epilogue.steps import Scale, VectorScale
from ..numbers import W
from ..plan import check_settings
from ..store import WARPS_OF_GROUP

if TYPE_CHECKING:
    from ..derive import Operand
    from ..epilogue.chain import Epilogue
    from .config import Sm90Config
    from .plan import Sm90Plan

# The 64-bit parameters: addresses of flags and of the record, the value that a flag has to reach, this rank, the ranks,
# chunks of a shard, and how long a wait may take: `Patience.word`.
WORDS = ("flags", "target", "rank", "ranks", "chunks", "patience", "record")
RECORD_WORDS = 4  # 32-bit words of a record: 1 + flag, the value seen, the target, the rank that waited
MAX_RANKS = 8  # GPUs of a host
MAX_CHUNKS = 32  # of a shard
UNIT_BITS = 20  # a unit of a wait's limit is 2**20 ns, about a millisecond
_LOADS = 1 << 13  # of a flag between two looks at the clock: 2 to 7 ms
_VECTOR_REGISTERS = VECTOR_BYTES // 4
_OTHER_REGISTERS = 24  # of a consumer, beside its sums and the loads of partial ones: addresses, the place of a tile
_LEAST_LOADS = 4  # vectors of partial sums that are loaded at once, however few registers are left


class Patience(NamedTuple):
    """The limit of a kernel's wait for a flag.

    loads  of the flag between two looks at the GPU's clock
    limit  of a wait, in units of 2**20 ns; 0: one round of loads

    A load of a flag takes 0.2 to 0.8 us, by the GPU and by what it shares: loads alone measure no time.

    >>> Patience.of_seconds(5.0)
    Patience(loads=8192, limit=4769)
    >>> Patience.of_word(Patience.of_seconds(5.0).word)
    (8192, 4769)
    """

    loads: int
    limit: int

    @classmethod
    def of_seconds(cls, seconds: float) -> Patience:
        """At least these seconds, and at most the 26 days that 31 bits of units have."""
        return cls(_LOADS, min((1 << 31) - 1, math.ceil(seconds * 1e9 / (1 << UNIT_BITS))))

    @property
    def word(self) -> int:
        """The kernel's 64-bit parameter."""
        return self.limit << 32 | self.loads

    @staticmethod
    def of_word(word: int) -> tuple[int, int]:
        """(loads, limit) of that parameter, an int or a traced integer."""
        return word & 0xFFFFFFFF, word >> 32


@dataclass(frozen=True, slots=True)
class Gathered:
    """A's rows arrive in shards. Flag c says that chunk c of all rows has arrived.

    own  address of the own shard's rows, one behind the other: tiles of them alone are loaded from there, and never
         from the gathered matrix

    >>> Gathered().words[-1:]
    ('own',)
    """

    words: ClassVar[tuple[str, ...]] = (*WORDS, "own")
    name: ClassVar[str] = "an all-gather"


@dataclass(frozen=True, slots=True)
class Scattered:
    """C's rows are partial sums, of which each rank adds one shard's. C of a launch is the own shard alone.

    calls    address of a 32-bit number of launches, this one counted: flags go up by `target` in each
    outbox   address of the rooms for partial sums that go on to the rank before: one a shard, but for the own one
    counts   address of their counters, one a chunk
    told     address of a word of the next rank that counts this one's launches: it may send
    inbox    address of the rooms for what comes from the next rank: one a shard, but for the first

    Flag d * chunks + c counts what has come of chunk c of the shard of room d; the flag behind them counts the launches
    that the rank before has begun. An epilogue is applied to the sums of each rank before they are added.

    >>> Scattered().words[-5:]
    ('calls', 'outbox', 'counts', 'told', 'inbox')
    """

    words: ClassVar[tuple[str, ...]] = (*WORDS, "calls", "outbox", "counts", "told", "inbox")
    name: ClassVar[str] = "a reduce-scatter"


Shards = Gathered | Scattered


def chunks_of_rows(row: W, rows: W, m: W, chunk_rows: W, minimum: Callable[..., W] = min) -> tuple[W, W]:
    """The first and the last chunk of a tile's rows; ints or traced integers.

    Without rows below M the last one is before the first.

    >>> chunks_of_rows(0, 128, 300, 100), chunks_of_rows(256, 128, 300, 100), chunks_of_rows(384, 128, 300, 100)
    ((0, 1), (2, 2), (3, 2))
    """
    return row // chunk_rows, (minimum(row + rows, m) - 1) // chunk_rows


def place_in_own(row: W, rows: W, first: W, shard_rows: W, choose: Callable[[Any, Any, Any], Any]) -> tuple[Any, Any]:
    """(True for a tile of own rows alone, its first row where it lies).

    Others are loaded from the gathered matrix, in which the own shard's first row is `first`.

    >>> from layoutgemm.kernels.derive import either
    >>> [place_in_own(row, 128, 256, 256, either) for row in (128, 256, 384, 448)]
    [(False, 128), (True, 0), (True, 128), (False, 448)]
    """
    inside = (row >= first) & (row + rows <= first + shard_rows)
    return inside, row - choose(inside, first, 0)


def crosses_shards(plan: Sm90Plan, ranks: int) -> bool:
    """True if a tile has rows of two shards. Own rows then have to lie in the gathered matrix, too."""
    return plan.m // ranks % plan.tile[0] != 0


class ShardWork(NamedTuple):
    """A rank's part of a product; ints, arrays or traced integers."""

    rank: Any
    ranks: Any
    chunks: Any
    shard_rows: Any


def cluster_place(plan: Sm90Plan, number: Integer, grid: Grid, share: ShardWork, minimum: Minimum = least) -> Tile:
    """(Row, column) of the cluster that a rank computes as its number `number`. Ints, arrays or traced integers.

    Gathered: rows from the own shard on. Scattered: shard by shard, from the next rank's on.
    """
    schedule = plan.order.schedule
    if isinstance(plan.shards, Gathered):
        first = share.rank * share.shard_rows // (plan.tile[0] * plan.config.cluster[0])
        return RotatedRows(schedule).tile(number, grid, first, minimum)
    return ShardByShard(schedule).tile(number, grid, share.rank + 1, share.ranks, minimum)


def order_of_rank(plan: Sm90Plan, grid: tuple[int, int], share: ShardWork) -> np.ndarray:
    """All clusters of a grid in a rank's order: an array [number] of (row, column)."""
    found: tuple[np.ndarray, np.ndarray]
    found = cluster_place(plan, np.arange(grid[0] * grid[1]), grid, share)
    return np.stack(np.broadcast_arrays(*found), axis=1).astype(np.int64)


@dataclass(frozen=True)
class PartialTile:
    """A tile's partial sums in a room, as the threads hold them. Vectors of 16 bytes.

    dtype    of a partial sum, C's
    layout   (thread, vector, accumulator, consumer) -> vectors of 16 bytes
    at_once  vectors that a thread loads before it adds them

    >>> from layoutgemm.kernels import Sm90Config, Sm90Plan
    >>> config = Sm90Config((128, 256), loader="warp")
    >>> tile = PartialTile.of(Sm90Plan.derive(512, 512, 512, config=config, shards=Scattered()))
    >>> tile.values, tile.vectors, tile.bytes, tile.byte(0, 1, 0, 2, 1)
    (8, 16, 65536, 36880)
    """

    dtype: DType
    layout: Layout
    at_once: int

    @classmethod
    def of(cls, plan: Sm90Plan) -> PartialTile:
        """A plan's; whole vectors of each accumulator, as `check_shards` asks."""
        vectors = plan.mma.accumulator_registers * plan.c.dtype.bytes // VECTOR_BYTES
        registers = plan.registers[1] if plan.registers else launch_registers(plan.arch, plan.threads)
        free = registers - plan.mma.accumulator_registers * plan.blocks - _OTHER_REGISTERS
        at_once = max(_LEAST_LOADS, min(vectors, free // _VECTOR_REGISTERS))
        return cls(plan.c.dtype, Layout((WARPGROUP, vectors, plan.blocks, plan.config.warpgroups_of_tile)), at_once)

    @property
    def values(self) -> int:
        """Values of a vector."""
        return VECTOR_BYTES // self.dtype.bytes

    @property
    def vectors(self) -> int:
        """Vectors of one accumulator of a thread."""
        return int(self.layout[1].size)

    @property
    def bytes(self) -> int:
        """Bytes of a tile."""
        return int(self.layout.size) * VECTOR_BYTES

    def byte(self, tile: W, consumer: W, block: W, vector: W, thread: W) -> W:
        """The byte of a room at which a vector of its tile number `tile` lies."""
        return tile * self.bytes + self.layout((thread, vector, block, consumer)) * VECTOR_BYTES


def tiles_of_shard(plan: Sm90Plan, ranks: int) -> int:
    """Clusters' tiles of a shard."""
    rows, columns = plan.order.clusters(plan.tiles)
    return rows // ranks * columns


def room_bytes(plan: Sm90Plan, ranks: int) -> int:
    """Bytes of one rank's partial sums of a shard."""
    return tiles_of_shard(plan, ranks) * plan.cluster_size * PartialTile.of(plan).bytes


def signals_of_chunk(plan: Sm90Plan, ranks: int, chunks: int) -> int:
    """The signals of a chunk in a launch: one of each consumer warp, each tile.

    >>> from layoutgemm.kernels import Sm90Config, Sm90Plan
    >>> config = Sm90Config((256, 128), loader="warp")
    >>> signals_of_chunk(Sm90Plan.derive(512, 512, 512, config=config, shards=Scattered()), 2, 4)
    8
    """
    tiles = tiles_of_shard(plan, ranks) // chunks * plan.cluster_size
    return tiles * signals_of_tile(plan)


def signals_of_tile(plan: Sm90Plan) -> int:
    """The signals of a tile that goes on: one of each warp that stores it."""
    return plan.config.warpgroups_of_tile * WARPS_OF_GROUP


# ------------------------------------------------------------------------------------------------------------- refusals


def check_shards(shards: Shards, config: Sm90Config, c: Operand, epilogue: Epilogue | None) -> None:
    """Raise PlanError, naming the obstacle, for a problem without a kernel of shards."""
    if not isinstance(shards, (Gathered, Scattered)):
        raise PlanError(f"shards = {shown(shards)}: Gathered() or Scattered()")
    takes = f"{shards.name} takes"
    if isinstance(shards, Scattered):
        _check_partial_sums(shards, config, c, epilogue)
        check_settings(config, takes, store="tma", staged_epilogue_k_tiles=0)
    check_settings(
        config, takes, loaded_a_rows=None, one_tile_per_cluster=False, split=1, launch="workers", overlap=False,
        reverse_odd_tiles=False, along="M", gpc_order=(),
    )  # fmt: skip


def _check_partial_sums(shards: Scattered, config: Sm90Config, c: Operand, epilogue: Epilogue | None) -> None:
    """Raise PlanError for partial vectors, and for an epilogue of more than factors."""
    if (
        others := [str(step) for step in epilogue.steps if not isinstance(step, (Scale, VectorScale))]
        if epilogue
        else []
    ):
        raise PlanError(f"{others[0]}: an epilogue of whole sums, and {shards.name} has partial ones: scales alone")
    if c.order != "row" or c.dtype.name not in ("f32", "bf16", "f16"):
        raise PlanError(f"c is {c}: partial sums are rows of f32, bf16 or f16")
    if config.loader == "self":  # it would wait for peers' sums of its next tile before it stores those they wait for
        raise PlanError(f"loader = 'self': {shards.name} takes 'warp' or 'warpgroup', which wait while consumers store")
    if config.tile[1] // 2 * c.dtype.bytes % VECTOR_BYTES:
        raise PlanError(
            f"tile = {config.tile}: a thread has {config.tile[1] // 2} partial sums of a row of {c.dtype.name}, which "
            f"are no whole {VECTOR_BYTES} bytes"
        )


def check_division(plan: Sm90Plan, ranks: int, chunks: int) -> None:
    """Raise PlanError for rows that do not divide into shards and chunks.

    >>> from layoutgemm.kernels import Sm90Config, Sm90Plan
    >>> config = Sm90Config((128, 64), loader="warp")
    >>> check_division(Sm90Plan.derive(384, 64, 64, config=config, shards=Scattered()), 2, 1)
    Traceback (most recent call last):
        ...
    layoutgemm.errors.PlanError: M = 384 in 2 shards: 192 rows each, no multiple of a cluster's 128
    """
    if not 2 <= ranks <= MAX_RANKS:
        raise PlanError(f"{ranks} rank(s): 2 to {MAX_RANKS} GPUs of one host")
    if isinstance(plan.shards, Gathered):
        if chunks < 1 or plan.m % (ranks * chunks):
            raise PlanError(
                f"M = {plan.m} rows in {ranks} shards of {chunks} chunk(s): {plan.m} % {ranks * chunks} != 0"
            )
        return
    if plan.m % ranks:
        raise PlanError(f"M = {plan.m} rows in {ranks} shards: {plan.m} % {ranks} != 0")
    rows, unit = plan.m // ranks, plan.tile[0] * plan.config.cluster[0]
    if rows % unit:
        raise PlanError(f"M = {plan.m} in {ranks} shards: {rows} rows each, no multiple of a cluster's {unit}")
    tiles = tiles_of_shard(plan, ranks)
    if not 1 <= chunks <= MAX_CHUNKS or tiles % chunks:
        raise PlanError(
            f"{tiles} tiles of clusters of a shard in {chunks} chunks: a divisor of them, up to {MAX_CHUNKS}"
        )


# ---------------------------------------------------------------------------------------------------------------- proof


def shard_checks(plan: Sm90Plan) -> list[Check]:
    """The rank's order, flags and counters, and the absence of circular waits."""
    gathers = isinstance(plan.shards, Gathered)
    order = RotatedRows(plan.order.schedule) if gathers else ShardByShard(plan.order.schedule)
    answer = order.prove()
    statement = f"{order} visits each tile once, wherever a rank begins"
    witness = "" if answer.ok else str(answer.reason)
    method = answer.method if isinstance(answer, Proof) else ""
    checks = [Check("rank's order", statement, answer.ok, method, witness)]
    if gathers:
        return [*checks, _flags_of_tiles(plan), _own_tiles(plan)]
    return [*checks, _partial_tile(plan), _counters(plan), _no_circle(plan)]


def _divisions(plan: Sm90Plan) -> Iterator[tuple[int, int, int]]:
    """(ranks, chunks, rows of a chunk) of small gathers."""
    unit = plan.tile[0] * plan.config.cluster[0]
    for ranks in range(2, MAX_RANKS + 1):
        for chunks in (1, 2, 3):
            for rows in (unit, 2 * unit, 1, unit - 1, unit // 2 + 1, unit + 1, 2 * unit + 3):
                yield ranks, chunks, rows


def _flags_of_tiles(plan: Sm90Plan) -> Check:
    """Chunks that a tile waits for are those of its rows."""
    witness, tiles, tile = "", 0, plan.tile[0]
    for ranks, chunks, rows in _divisions(plan):
        m = ranks * chunks * rows
        clusters = -(-m // (tile * plan.config.cluster[0]))
        for row in range(0, clusters * tile * plan.config.cluster[0], tile):
            first, last = chunks_of_rows(row, tile, m, rows)
            want = sorted({r // rows for r in range(row, min(row + tile, m))})
            tiles += 1
            if list(range(first, last + 1)) != want:
                witness = witness or f"{m} rows in chunks of {rows}: rows from {row} on wait for {first} to {last}"
    statement = f"a tile of {tile} rows waits for the flags of the chunks that it has rows of, and no other"
    return Check("flags", statement, not witness, f"exhaustion ({tiles} tiles)", witness)


def _own_tiles(plan: Sm90Plan) -> Check:
    """Tiles of own rows alone are loaded from the own shard."""
    witness, tiles, tile = "", 0, plan.tile[0]
    for ranks, chunks, rows in _divisions(plan):
        shard = chunks * rows
        for rank in range(ranks):
            own = range(rank * shard, (rank + 1) * shard)
            for row in range(0, ranks * shard, tile):
                inside, first = place_in_own(row, tile, own.start, shard, either)
                want = all(each in own for each in range(row, row + tile))
                tiles += 1
                if inside != want or first + (own.start if inside else 0) != row:
                    witness = witness or f"{ranks} shards of {shard} rows, rank {rank}: rows from {row} on"
    statement = f"a tile of {tile} rows is loaded from the own shard if all of its rows are of it"
    return Check("own rows", statement, not witness, f"exhaustion ({tiles} tiles)", witness)


def _partial_tile(plan: Sm90Plan) -> Check:
    """Every value of every thread has a place of its own in a room."""
    tile = PartialTile.of(plan)
    threads = plan.config.warpgroups_of_tile * WARPGROUP
    want = threads * plan.blocks * plan.mma.accumulator_registers * plan.c.dtype.bytes
    answer = tile.layout.is_bijective()
    witness = "" if answer and tile.bytes == want else f"{tile.layout}: {tile.bytes} bytes for values of {want}"
    statement = f"{threads} threads' partial sums of a tile fill {want} bytes, each {VECTOR_BYTES} once"
    return Check("partial sums", statement, not witness, "bijective", witness)


def _orders(plan: Sm90Plan) -> Iterator[tuple[ShardWork, tuple[int, int], np.ndarray, np.ndarray]]:
    """Orders of small scatters: the share, the grid of clusters, and the shard and the chunk of each number."""
    unit = plan.tile[0] * plan.config.cluster[0]
    for ranks in range(2, MAX_RANKS + 1):
        for rows, columns, chunks in ((1, 1, 1), (2, 3, 2), (2, 3, 3), (4, 2, 8)):
            for rank in range(ranks):
                share, tiles = ShardWork(rank, ranks, chunks, rows * unit), rows * columns
                part, within = ShardByShard.place(np.arange(ranks * tiles), tiles)
                yield share, (ranks * rows, columns), (part + rank + 1) % ranks, within // (tiles // chunks)


def _counters(plan: Sm90Plan) -> Check:
    """A chunk's counter reaches its end only when all of its tiles are stored."""
    witness = ""
    for share, grid, shard, chunk in _orders(plan):
        found = np.bincount(shard * share.chunks + chunk, minlength=share.ranks * share.chunks)
        order = order_of_rank(plan, grid, share)
        if set(found.tolist()) != {grid[0] // share.ranks * grid[1] // share.chunks}:
            witness = witness or f"{share}: chunks have {found.tolist()} tiles"
        if not np.array_equal(order[:, 0] // (grid[0] // share.ranks), shard):
            witness = witness or f"{share}: tiles of {shard.tolist()} have rows of other shards"
    statement = f"each of {signals_of_tile(plan)} warps of a tile signals each tile of a chunk once"
    return Check("counters", statement, not witness, "exhaustion", witness)


def _no_circle(plan: Sm90Plan) -> Check:
    """Each tile that is waited for comes a whole shard earlier on the next rank."""
    witness, orders = "", 0
    for share, grid, shard, _ in _orders(plan):
        orders += 1
        tiles = len(shard) // share.ranks
        mine = order_of_rank(plan, grid, share)[tiles:]  # the first shard waits for nothing
        theirs = order_of_rank(plan, grid, share._replace(rank=(share.rank + 1) % share.ranks))[:-tiles]
        if not np.array_equal(mine, theirs):
            witness = witness or f"{share}: {tiles} tiles later than the next rank it takes others than that one"
    statement = "a tile comes a whole shard later than on the next rank, whose partial sums of it are waited for"
    return Check("no circular wait", statement, not witness, f"exhaustion ({orders} orders)", witness)


def explain_shards(plan: Sm90Plan) -> list[str]:
    """Shards, flags and the order, as text."""
    order = f"tiles in the order of {plan.order.schedule}"
    if isinstance(plan.shards, Gathered):
        return [
            f"shards: A's rows arrive by chunks; {order}, its rows rotated to begin with the own shard; the loader "
            "waits for the flag of each chunk of a tile's rows, loads and fences (ld.acquire.sys, fence.proxy.async); "
            "tiles of own rows alone come from where those lie"
        ]
    tile = PartialTile.of(plan)
    return [
        f"shards: C's rows are partial sums; {order}, shard by shard, the own one last; to a tile what came of it from "
        f"the next rank is added in f32, {tile.bytes} bytes as the threads hold them; the sum goes on to the rank "
        f"before and counts {signals_of_tile(plan)} there, or is C"
    ]
