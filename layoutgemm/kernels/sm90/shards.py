"""Products that overlap with communication: GPUs of one host that gather A's rows, or reduce and scatter C's.

M rows are `ranks` shards of equal size, shard r of rank r; a shard is some chunks of rows. Words in global memory tell
what has arrived. No thread of a kernel moves a shard: copy engines do, beside it.

    part         before a product                        tiles, in order           after a tile
    ---------    ------------------------------------    ----------------------    -----------------------------------
    Gathered     the loader waits for the flag of each   own shard's rows first,   nothing
                 chunk that the tile of A has rows of,   then the next rank's
                 but for its own shard's
    Scattered    nothing                                 the next rank's rows      rows of others: counters[chunk] is
                                                         first, own ones last      one more for each warpgroup's block;
                                                                                   own rows: wait for the flags of all
                                                                                   peers' partial sums of the chunk,
                                                                                   add them in f32, store C

Flag f has arrived when flags[f] - target >= 0, in 32 bits. A wait ends after `polls` loads: the kernel writes
(1 + flag, what it saw, target, rank) to `record` and stops, so that the launch ends with an error.

A rank's own tiles of a Scattered product come last in its order, and persistent CTAs take tiles in order. So a CTA has
done all that a peer may wait for before it waits for a peer, and no two ranks wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ...errors import PlanError
from ...layouts.int_tuple import Integer
from ...layouts.proofs.digits import minimum as least
from ...layouts.proofs.verdicts import Proof
from ...report import Check
from ...schedule import RotatedRows, ShardByShard
from ...schedule.tile_order import Minimum, Tile
from ..numbers import W
from ..plan import present
from ..store import ROWS

if TYPE_CHECKING:
    from ..derive import Operand
    from ..epilogue.chain import Epilogue
    from .config import Sm90Config
    from .plan import Sm90Plan

# The 64-bit parameters: addresses of flags and of the record, the value that a flag has to reach, this rank, chunks of
# a shard, rows of a chunk, and loads of a flag before a wait is given up.
WORDS = ("flags", "target", "rank", "chunks", "chunk_rows", "polls", "record")
RECORD_WORDS = 4  # 32-bit words of a record: 1 + flag, the value seen, the target, the rank that waited
MAX_RANKS = 8  # GPUs of a host


@dataclass(frozen=True, slots=True)
class Gathered:
    """A's rows arrive in shards: flag c says that chunk c of all rows has arrived.

    >>> Gathered().words[:3]
    ('flags', 'target', 'rank')
    """

    words: ClassVar[tuple[str, ...]] = WORDS
    name: ClassVar[str] = "an all-gather"


@dataclass(frozen=True, slots=True)
class Scattered:
    """C's rows are partial sums, of which each rank adds one shard's.

    counters            words in global memory, one for each chunk of all rows
    inbox               the peers' partial sums of the own shard: a matrix of C's type for each peer, in rank order
    result, result_ld   the own shard of C, and its row pitch

    Flag p * chunks + c says that peer p's partial sums of chunk c of the own shard have arrived.

    >>> Scattered().words[-4:]
    ('counters', 'inbox', 'result', 'result_ld')
    """

    words: ClassVar[tuple[str, ...]] = (*WORDS, "counters", "inbox", "result", "result_ld")
    name: ClassVar[str] = "a reduce-scatter"


Shards = Gathered | Scattered


def chunks_of_rows(row: W, rows: W, m: W, chunk_rows: W, minimum: Callable[..., W] = min) -> tuple[W, W]:
    """The first and the last chunk of a tile's rows; ints or traced integers.

    Without rows below M the last one is before the first.

    >>> chunks_of_rows(0, 128, 300, 100), chunks_of_rows(256, 128, 300, 100), chunks_of_rows(384, 128, 300, 100)
    ((0, 1), (2, 2), (3, 2))
    """
    return row // chunk_rows, (minimum(row + rows, m) - 1) // chunk_rows


def cluster_place(
    plan: Sm90Plan, number: Integer, grid: Tile, rank: Integer, ranks: Integer, shard_rows: Integer,
    minimum: Minimum = least,
) -> Tile:  # fmt: skip
    """(Row, column) of the cluster that a rank computes as its number `number`; ints, arrays or traced integers.

    Gathered: rows from the own shard on. Scattered: shard after shard, the own one last.
    """
    schedule = plan.order.schedule
    if isinstance(plan.shards, Gathered):
        first = rank * shard_rows // (plan.tile[0] * plan.config.cluster[0])
        return RotatedRows(schedule).tile(number, grid, first, minimum)
    return ShardByShard(schedule).tile(number, grid, rank + 1, ranks, minimum)


def order_of_rank(plan: Sm90Plan, grid: tuple[int, int], rank: int, ranks: int, shard_rows: int) -> np.ndarray:
    """All clusters of a grid in a rank's order: an array [number] of (row, column)."""
    found: tuple[np.ndarray, np.ndarray]
    found = cluster_place(plan, np.arange(grid[0] * grid[1]), grid, rank, ranks, shard_rows)
    return np.stack(np.broadcast_arrays(*found), axis=1).astype(np.int64)


def signals_of_tile(plan: Sm90Plan) -> int:
    """Signals of a tile of another rank: one from each owner of a store's buffer and piece.

    >>> from layoutgemm.kernels import Sm90Config, Sm90Plan
    >>> signals_of_tile(Sm90Plan.derive(512, 512, 512, config=Sm90Config((256, 128)), shards=Scattered()))
    16
    """
    warps = present(plan.store).warps
    return plan.tile[0] // ROWS * len({part for _, part in plan.pieces(0)}) * (4 // warps)


def signals_of_chunk(plan: Sm90Plan, chunk_rows: int) -> int:
    """The value of a chunk's counter when every tile of it is in memory."""
    return chunk_rows // plan.tile[0] * -(-plan.n // plan.tile[1]) * signals_of_tile(plan)


# ------------------------------------------------------------------------------------------------------------- refusals


def check_shards(shards: Shards, batch: int, config: Sm90Config, c: Operand, epilogue: Epilogue | None) -> None:
    """Raise PlanError, naming the obstacle, for a problem without a kernel of shards."""
    if not isinstance(shards, (Gathered, Scattered)):
        raise PlanError(f"shards = {shards!r}: Gathered() or Scattered()")
    if batch > 1:
        raise PlanError(f"batch = {batch}: {shards.name} is of one matrix")
    usual: dict[str, object] = {"rows": None, "single": False, "split": 1, "launch": "workers"}
    knobs: dict[str, object] = {"overlap": False, "snake": False, "along": "M", "dealt": ()}
    if isinstance(shards, Scattered):
        usual |= {"schedule": "cooperative", "store": "tma", "early": 0}
        if epilogue:
            raise PlanError(f"{epilogue}: an epilogue is of whole sums, and {shards.name} stores partial ones")
        if c.order != "row" or c.dtype.name not in ("f32", "bf16", "f16"):
            raise PlanError(f"c is {c}: partial sums are rows of f32, bf16 or f16")
    for name, value in (*usual.items(), *knobs.items()):
        found = getattr(config.tuning if name in knobs else config, name)
        if found != value:
            raise PlanError(f"{name} = {found!r}: {shards.name} takes {value!r}")


def check_division(plan: Sm90Plan, ranks: int, chunks: int) -> None:
    """Raise PlanError for rows that do not divide into shards and chunks.

    >>> from layoutgemm.kernels import Sm90Config, Sm90Plan
    >>> check_division(Sm90Plan.derive(384, 64, 64, config=Sm90Config((128, 64)), shards=Scattered()), 2, 1)
    Traceback (most recent call last):
        ...
    layoutgemm.errors.PlanError: M = 384 in 2 shards of 1 chunk(s): 192 rows each, no multiple of a cluster's 128
    """
    if not 2 <= ranks <= MAX_RANKS:
        raise PlanError(f"{ranks} rank(s): 2 to {MAX_RANKS} GPUs of one host")
    if chunks < 1 or plan.m % (ranks * chunks):
        raise PlanError(f"M = {plan.m} rows in {ranks} shards of {chunks} chunk(s): {plan.m} % {ranks * chunks} != 0")
    rows, unit = plan.m // (ranks * chunks), plan.tile[0] * plan.config.cluster[0]
    if isinstance(plan.shards, Scattered) and rows % unit:
        raise PlanError(
            f"M = {plan.m} in {ranks} shards of {chunks} chunk(s): {rows} rows each, no multiple of a cluster's {unit}"
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
        return [*checks, _flags_of_tiles(plan)]
    return [*checks, _counters(plan), _own_rows_last(plan)]


def _divisions(plan: Sm90Plan) -> Iterator[tuple[int, int, int]]:
    """(ranks, chunks, rows of a chunk) of small problems, whole clusters if needed."""
    unit = plan.tile[0] * plan.config.cluster[0]
    ragged = () if isinstance(plan.shards, Scattered) else (1, unit - 1, unit // 2 + 1, unit + 1, 2 * unit + 3)
    for ranks in range(2, MAX_RANKS + 1):
        for chunks in (1, 2, 3):
            for rows in (unit, 2 * unit, *ragged):
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


def _counters(plan: Sm90Plan) -> Check:
    """A chunk's counter reaches its end only when all of its tiles are stored."""
    store, witness = present(plan.store), ""
    owners = plan.config.consumers * 4 // store.warps
    pieces = [piece for piece in plan.pieces(0) for _ in range(owners)]
    if len(pieces) != signals_of_tile(plan):
        witness = f"{len(pieces)} signals of a tile, {signals_of_tile(plan)} expected"
    for ranks, chunks, rows in _divisions(plan):
        unit = plan.tile[0] * plan.config.cluster[0]
        grid = ranks * chunks * rows // unit, 1
        for rank in range(ranks):
            order = order_of_rank(plan, grid, rank, ranks, chunks * rows)
            found = np.bincount(order[:, 0] * unit // rows, minlength=ranks * chunks)
            if set(found.tolist()) != {rows // unit}:
                witness = witness or f"rank {rank} of {ranks}: chunks have {found.tolist()} rows of clusters"
    statement = (
        f"each of {owners} owners of a buffer signals each of {len(plan.pieces(0))} piece(s) of a tile once; a chunk "
        "is whole rows of clusters"
    )
    return Check("counters", statement, not witness, "exhaustion", witness)


def _own_rows_last(plan: Sm90Plan) -> Check:
    """In a rank's order all tiles of other ranks come before all of its own."""
    witness, orders, unit = "", 0, plan.tile[0] * plan.config.cluster[0]
    for ranks, chunks, rows in _divisions(plan):
        shard = chunks * rows
        for columns in (1, 3):
            grid = ranks * shard // unit, columns
            for rank in range(ranks):
                own = order_of_rank(plan, grid, rank, ranks, shard)[:, 0] * unit // shard == rank
                orders += 1
                if not own[np.argmax(own) :].all():
                    witness = witness or f"rank {rank} of {ranks}, {grid} clusters: a tile of others after an own one"
    statement = "a rank's own tiles, which wait for peers, come after all tiles that peers wait for"
    return Check("own rows last", statement, not witness, f"exhaustion ({orders} orders)", witness)


def explain_shards(plan: Sm90Plan) -> list[str]:
    """Shards, flags and the order, as text."""
    order = f"tiles in the order of {plan.order.schedule}"
    if isinstance(plan.shards, Gathered):
        return [
            f"shards: A's rows arrive by chunks; {order}, its rows rotated to begin with the own shard; the loader "
            "waits for the flag of each chunk of a tile's rows, loads and fences (ld.acquire.sys, fence.proxy.async)"
        ]
    return [
        f"shards: C's rows are partial sums; {order}, shard after shard, the own one last; a tile of another rank adds "
        f"{signals_of_tile(plan)} to its chunk's counter, an own one adds the peers' partial sums in f32"
    ]
