"""The store of C through buffers in shared memory, as a pipeline to prove.

One owner's rounds, of any number of tiles.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..checks.pipeline.actions import (
    Action,
    Commit,
    FenceProxy,
    ForTiles,
    Program,
    Read,
    Sync,
    TmaStore,
    WaitGroup,
    Write,
)
from ..checks.pipeline.model import Buffer, NamedBarrier, Pipeline, Role
from ..errors import PlanError

WARPS = 4  # of a consumer: wgmma is a warpgroup's


@dataclass(frozen=True, slots=True)
class StoreRing:
    """A consumer's ring of store buffers in shared memory.

    warps    of an owner of buffers: 1, each warp for itself, or 4, the warpgroup together
    buffers  of an owner
    rounds   of one accumulator: (buffer, groups that may be pending when it is written), in order, for each accumulator
    threads  read a buffer and store what it holds, instead of TMA
    """

    warps: int
    buffers: int
    rounds: tuple[tuple[tuple[int, int], ...], ...]
    threads: bool = False


def store_pipeline(ring: StoreRing | None, single: bool = False) -> Pipeline:
    """One consumer's store, of any number of output tiles or of a `single` one. Raises PlanError for no ring."""
    if ring is None:
        raise PlanError("threads store their own values: there are no buffers to prove anything of")
    together = ring.warps == WARPS
    by, meet = ("one", (Sync("store"),)) if together else ("warp", ())
    rounds: list[Action] = []
    for buffer, pending in (one for block in ring.rounds for one in block):
        if ring.threads:
            rounds += [*meet, Write("c", buffer), *meet, Read("c", buffer)]
            continue
        rounds += [WaitGroup("bulk", pending, by=by), *meet, Write("c", buffer), FenceProxy(), *meet]
        rounds += [TmaStore("c", buffer, by=by), Commit("bulk", by=by)]
    tiles: Program = tuple(rounds) if single else (ForTiles(tuple(rounds)),)
    count = sum(map(len, ring.rounds))
    return Pipeline(
        f"store in {count} rounds through {ring.buffers} buffer(s)",
        (Role("math", ring.warps, tiles if ring.threads else (*tiles, WaitGroup("bulk", 0))),),
        (NamedBarrier("store", 32 * WARPS),) if together else (),
        (Buffer("c", ring.buffers, "smem" if together else "warp"),),
    )
