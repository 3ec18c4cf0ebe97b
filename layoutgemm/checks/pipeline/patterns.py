"""Common pipelines, each a few lines: rings, clusters, self-loading, pingpong, sm_80, tcgen05, epilogues.

Every constructor returns a `Pipeline`; the teaching kernel has its own from here, and the kernels of an architecture
from `kernels/*/pipeline*`. The pieces (`start`, `store_ring`) are there for kernels that are like none of these.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...arch import arch
from ...arguments import as_int, checked, shown
from ...errors import PlanError
from .actions import (
    Action,
    Advance,
    Ahead,
    Arrive,
    ArriveExpect,
    ClusterArrive,
    ClusterWait,
    Commit,
    CommitTo,
    CpAsync,
    FenceInit,
    FenceProxy,
    ForK,
    ForTiles,
    If,
    InitBarriers,
    Later,
    Mma,
    OnRank,
    Program,
    Read,
    Sync,
    Targets,
    TileIs,
    TmaLoad,
    TmaStore,
    Wait,
    WaitGroup,
    Write,
)
from .model import CTA, Buffer, Cursor, Mbarrier, NamedBarrier, Pipeline, Role

# The most stages, warps or groups of a pattern: no CTA has more threads, nor room for more stages.
MOST = arch("sm_90a").threads_per_block


def _check_counts(**counts: int | tuple[int, ...] | None) -> None:
    """Raise PlanError for a count below 1 or beyond what a block can have; `lag` may be 0, `lands` counts bytes."""
    for name, count in counts.items():
        for number in count if isinstance(count, tuple) else () if count is None else (count,):
            as_int(number, name, PlanError, 0 if name in ("lag", "lands") else 1, None if name == "lands" else MOST)


def start(first: bool, cluster: int = 1) -> Program:
    """Barriers are initialised by the first role and made visible. Then the CTA, or the cluster, meets.

    The arrival at the cluster barrier may be relaxed, since fence.mbarrier_init is what orders the initialisation.
    """
    init: Program = (InitBarriers(), FenceInit()) if first else ()
    return (*init, *((ClusterArrive(relaxed=True), ClusterWait()) if cluster > 1 else (Sync(CTA),)))


def store_ring(buffer: str, barrier: str, depth: int, subtiles: int, cursor: str = "store") -> Program:
    """An epilogue through shared memory. Each subtile waits for a free buffer, is written, fenced, and stored by TMA.

    The first warp issues the stores, so it alone can wait for them; the barrier then tells the others.
    """
    one: Program = (
        WaitGroup("bulk", depth - 1, by="one"),
        Sync(barrier),
        Write(buffer, cursor),
        FenceProxy(),
        Sync(barrier),
        TmaStore(buffer, cursor),
        Commit("bulk", by="one"),
        Advance(cursor),
    )
    return one * subtiles


@checked(PlanError)
def ring(
    stages: int,
    bytes: int,
    *,
    consumers: int = 1,
    warps: int = 4,
    lag: int = 0,
    persistent: bool = False,
    store: tuple[int, int] | None = None,
    registers: tuple[int, int] | None = None,
) -> Pipeline:
    """A producer warp fills a ring by TMA. Consumer warpgroups multiply each stage by wgmma and release it.

    bytes       of one stage, A and B together
    consumers   warpgroups that each read every stage
    warps       of a consumer: each arrives once at empty
    lag         wgmma groups left in flight: a stage is released `lag` k tiles later
    persistent  the roles walk through output tiles
    store       (buffers, subtiles) of an epilogue by TMA stores; None stores registers directly
    registers   (producer, consumer) after setmaxnreg; the producer is then a whole warpgroup

    >>> print(ring(stages=4, bytes=32768, consumers=2).explain())
    ring of 4: 9 warps
      producer     1 warp      TMA
      math0        4 warps     wgmma
      math1        4 warps     wgmma
      ab           TMA: producer -> math0, math1, 4 stages
        full       1 arrival: producer expecting 32768 bytes; lands 32768 = producer ab 32768
        empty      8 arrivals: math0 4 warps + math1 4 warps; waited for by producer
      cta          bar.sync: 288 threads = producer 32 + math0 128 + math1 128
    """
    _check_counts(stages=stages, consumers=consumers, warps=warps, lag=lag, store=store)
    mine, theirs = registers or (None, None)
    math = _Consumers(consumers, warps, stages, lag, persistent, store, theirs)
    load = _loads(TmaLoad("ab", "load", "full"))
    producer = (*start(True), *_tiles(persistent, (ForK(load),)))
    roles = (
        Role("producer", 4 if registers else 1, producer, (Cursor("load", stages),), mine),
        *math.roles(start(False), _products(lag)),
    )
    barriers: tuple[Mbarrier | NamedBarrier, ...] = (
        Mbarrier("full", 1, stages, bytes),
        Mbarrier("empty", consumers * warps, stages),
        NamedBarrier(CTA, 32 * sum(role.warps for role in roles)),
        *math.barriers,
    )
    title = f"ring of {stages}" + (", persistent" if persistent else "") + (", TMA store" if store else "")
    return Pipeline(title, roles, barriers, (Buffer("ab", stages), Buffer("acc", space="reg"), *math.buffers))


@dataclass(frozen=True)
class _Consumers:
    """Warpgroups that each read every stage, and store through buffers of their own: see `ring`."""

    count: int
    warps: int
    stages: int
    lag: int
    persistent: bool
    store: tuple[int, int] | None
    registers: int | None

    def roles(self, begin: Program, products: Program, after: Program = (), end: Program = ()) -> list[Role]:
        """A role each. They are at the start, for the products of a tile, behind its store, at the end."""
        cursors = [Cursor("read", self.stages), Cursor("release", self.stages)][: 1 + bool(self.lag)]
        cursors += [Cursor("store", self.store[0])] if self.store else []
        roles = []
        for i in range(self.count):
            stores = store_ring(f"c{i}", f"store{i}", *self.store) if self.store else ()
            tile = (*products, Read("acc"), *stores, *after)
            program = (*begin, *_tiles(self.persistent, tile), *_stored(self.store), *end)
            name = f"math{i}" if self.count > 1 else "math"
            roles.append(Role(name, self.warps, program, tuple(cursors), self.registers))
        return roles

    @property
    def barriers(self) -> list[NamedBarrier]:
        """The named barriers of the stores."""
        return [NamedBarrier(f"store{i}", 32 * self.warps) for i in range(self.count) if self.store]

    @property
    def buffers(self) -> list[Buffer]:
        """The buffers of the stores."""
        return [Buffer(f"c{i}", self.store[0]) for i in range(self.count) if self.store]


def _loads(*loads: Action) -> Program:
    """One thread's loads of a stage, when it is free."""
    return (Wait("empty", "load", flip=True, by="one"), ArriveExpect("full", "load"), *loads, Advance("load"))


def _stored(store: tuple[int, int] | None) -> Program:
    """The last wait of a role that stores by TMA."""
    return (WaitGroup("bulk", 0, by="one"),) if store else ()


def _products(lag: int, release_to: Targets = "own", reads: tuple[str, ...] = ("ab",)) -> Program:
    """The consumer's k loop: wait, multiply, and release the stage that is `lag` k tiles behind."""
    free: Program = (Arrive("empty", "release" if lag else "read", to=release_to),)
    multiply: Program = (Wait("full", "read"), Mma(reads, "read", "acc"), Commit("wgmma"), WaitGroup("wgmma", lag))
    if not lag:
        return (ForK((*multiply, *free, Advance("read"))),)
    free += (Advance("release"),)
    # After the loop k is K: the last min(lag, K) stages are still held.
    rest = tuple(If(Later(i + 1), free) for i in range(lag))
    return (ForK((*multiply, If(Later(lag), free), Advance("read"))), WaitGroup("wgmma", 0), *rest)


def _tiles(persistent: bool, body: Program) -> Program:
    return (ForTiles(body),) if persistent else body


@checked(PlanError)
def cluster_ring(
    stages: int,
    bytes_a: int,
    bytes_b: int,
    cluster: tuple[int, int] = (2, 1),
    *,
    consumers: int = 1,
    warps: int = 4,
    lag: int = 0,
    persistent: bool = False,
    meet: bool = False,
    senders: str = "all",
    store: tuple[int, int] | None = None,
    registers: tuple[int, int] | None = None,
    tail: str = "wait",
) -> Pipeline:
    """A ring in each CTA of a cluster of (M, N) CTAs with multicast loads.

    CTAs along N need the same A, those along M the same B. One A and one B land in a CTA, however they share them. A
    stage is free when the consumers of every receiving CTA have released it. Rank r is CTA (r % M, r // M).

    lag, persistent, store, registers  as in `ring`
    meet     the roles of a CTA meet after each output tile, so that none begins the next one before the others
    senders  "all": each CTA loads its share and sends it to all that need it; "first": the first of them sends all of
             it, and the others wait for none but their own loads
    tail     how a CTA stays until the arrivals of the others are in: "wait" the producer waits once more for every
             stage, "sync" the cluster meets at the end

    >>> print(cluster_ring(4, 16384, 16384, (2, 1)).prove().states)
    16
    >>> cluster_ring(4, 16384, 16384, (2, 1), senders="first").mbarrier("empty").count
    (8, 4)
    """
    _check_counts(stages=stages, cluster=cluster, consumers=consumers, warps=warps, lag=lag, store=store)
    along_m, along_n = cluster
    size = along_m * along_n
    if bytes_a % along_n or bytes_b % along_m:
        raise PlanError(f"A's {bytes_a} bytes in {along_n} shares, B's {bytes_b} in {along_m}: no whole bytes")
    if tail not in ("wait", "sync"):
        raise PlanError(f"tail = {shown(tail)}: 'wait' or 'sync'")
    if senders not in ("all", "first"):
        raise PlanError(f"senders = {shown(senders)}: 'all' or 'first'")
    loads, release = _multicast(bytes_a, bytes_b, cluster, senders)
    drain: Program = (Wait("empty", "load", flip=True, by="one"), Advance("load")) * stages if tail == "wait" else ()
    end: Program = (ClusterArrive(), ClusterWait()) if tail == "sync" else ()
    after: Program = (Sync(CTA),) if meet else ()
    mine, theirs = registers or (None, None)
    math = _Consumers(consumers, warps, stages, lag, persistent, store, theirs)
    producer = (*start(True, size), *_tiles(persistent, (ForK(_loads(*loads)), *after)), *drain, *end)
    roles = (
        Role("producer", 4 if registers else 1, producer, (Cursor("load", stages),), mine),
        *math.roles(start(False, size), _products(lag, release, ("a", "b")), after, end),
    )
    meeting = [NamedBarrier(CTA, 32 * sum(role.warps for role in roles))] if meet else []
    arrivals = tuple(consumers * warps * sum(r in to for to in release) for r in range(size))
    return Pipeline(
        f"cluster {along_m}x{along_n}, ring of {stages}",
        roles,
        (
            Mbarrier("full", 1, stages, bytes_a + bytes_b),
            Mbarrier("empty", arrivals[0] if len(set(arrivals)) == 1 else arrivals, stages),
            *math.barriers,
            *meeting,
        ),
        (Buffer("a", stages), Buffer("b", stages), Buffer("acc", space="reg"), *math.buffers),
        cluster=size,
    )


def _multicast(
    bytes_a: int, bytes_b: int, cluster: tuple[int, int], senders: str
) -> tuple[Program, tuple[tuple[int, ...], ...]]:
    """The loads of a stage, and the ranks that each rank's consumers release it to."""
    along_m, along_n = cluster
    ranks = range(along_m * along_n)
    same_m = tuple(tuple(s for s in ranks if s % along_m == r % along_m) for r in ranks)
    same_n = tuple(tuple(s for s in ranks if s // along_m == r // along_m) for r in ranks)
    if senders == "all":
        release = tuple(tuple(sorted({*m, *n})) for m, n in zip(same_m, same_n))
        return (
            TmaLoad("a", "load", "full", bytes_a // along_n, same_m, part="rank"),
            TmaLoad("b", "load", "full", bytes_b // along_m, same_n, part="rank"),
        ), release
    release = tuple(tuple(sorted({r, m[0], n[0]})) for r, (m, n) in enumerate(zip(same_m, same_n)))
    return (
        If(OnRank(tuple(sorted({m[0] for m in same_m}))), (TmaLoad("a", "load", "full", bytes_a, same_m),)),
        If(OnRank(tuple(sorted({n[0] for n in same_n}))), (TmaLoad("b", "load", "full", bytes_b, same_n),)),
    ), release


@checked(PlanError)
def self_loading(stages: int, bytes: int, *, warps: int = 4, arrivals: int = 1, lands: int | None = None) -> Pipeline:
    """One warpgroup that loads for itself. Its first warp refills a stage when the block has met behind the products.

    There is no empty barrier: the block's barrier does its work. This is the model of the first kernel, whose plan
    gives stages, the bytes and arrivals that its barriers expect, and the bytes that its copies bring.

    >>> self_loading(1, 16384).prove().states
    4
    """
    _check_counts(stages=stages, warps=warps, arrivals=arrivals, lands=lands)

    def load(at: str | int) -> Program:
        return (ArriveExpect("full", at), TmaLoad("ab", at, "full", lands))

    body: Program = (
        Wait("full", "read"),
        Mma(("ab",), "read", "acc"),
        Commit("wgmma"),
        WaitGroup("wgmma", 0),
        Sync(CTA),
        If(Ahead(stages), load("read")),
        Advance("read"),
    )
    program = (*start(True), *(If(Ahead(s), load(s)) for s in range(stages)), ForK(body), Read("acc"))
    return Pipeline(
        f"self-loading, {stages} stage{'s' * (stages != 1)}",
        (Role("math", warps, program, (Cursor("read", stages),)),),
        (Mbarrier("full", arrivals, stages, bytes), NamedBarrier(CTA, 32 * warps)),
        (Buffer("ab", stages), Buffer("acc", space="reg")),
    )


@checked(PlanError)
def pingpong(stages: int, bytes: int, *, warps: int = 4, store: tuple[int, int] | None = (2, 2)) -> Pipeline:
    """Two warpgroups take output tiles in turn: while one multiplies, the other stores.

    An order barrier hands the tensor cores over. A warpgroup walks its place in the ring over the other's k tiles.

    >>> bool(pingpong(4, 32768).prove())
    True
    """
    _check_counts(stages=stages, warps=warps, store=store)
    load: Program = (
        Wait("empty", "load", flip=True),
        ArriveExpect("full", "load"),
        TmaLoad("ab", "load", "full"),
        Advance("load"),
    )
    roles = [Role("producer", 1, (*start(True), ForTiles((ForK(load),))), (Cursor("load", stages),))]
    for i in range(2):
        mine: Program = (
            Wait(f"turn{i}", "turn", flip=i == 0),  # the first warpgroup need not wait for its first turn
            *_products(0),
            Arrive(f"turn{1 - i}", 0),
            Advance("turn"),
            Read("acc"),
            *(store_ring(f"c{i}", f"store{i}", *store) if store else ()),
        )
        cursors = [Cursor("read", stages), Cursor("turn", 1), *([Cursor("store", store[0])] if store else [])]
        tiles = ForTiles((If(TileIs(2, i), mine, (ForK((Advance("read"),)),)),))
        roles.append(Role(f"math{i}", warps, (*start(False), tiles, *_stored(store)), tuple(cursors)))
    return Pipeline(
        f"pingpong, ring of {stages}",
        tuple(roles),
        (
            Mbarrier("full", 1, stages, bytes),
            Mbarrier("empty", warps, stages),
            *(Mbarrier(f"turn{i}", warps) for i in range(2)),
            NamedBarrier(CTA, 32 * (1 + 2 * warps)),
            *(NamedBarrier(f"store{i}", 32 * warps) for i in range(2) if store),
        ),
        (
            Buffer("ab", stages, either=("math0", "math1")),
            Buffer("acc", space="reg"),
            *(Buffer(f"c{i}", store[0]) for i in range(2) if store),
        ),
    )


@checked(PlanError)
def multistage(stages: int, *, warps: int = 4) -> Pipeline:
    """The sm_80 loop, in which every warp copies its share by cp.async. Copies are stages - 1 k tiles ahead, and
    ldmatrix reads all of the stage.

    Groups are committed even when nothing is left to copy, so that the count of pending groups stays what it is.

    >>> bool(multistage(3).prove())
    True
    """
    _check_counts(stages=stages, warps=warps)
    if stages == 1:
        body: Program = (
            CpAsync("ab", 0), Commit("cp.async"), WaitGroup("cp.async", 0), Sync(CTA), Read("ab", 0), Sync(CTA),
        )  # fmt: skip
        program: Program = (ForK(body),)
        cursors: tuple[Cursor, ...] = ()
    else:
        fill: list[Action] = []
        for s in range(stages - 1):
            fill += [If(Ahead(s), (CpAsync("ab", s),)), Commit("cp.async")]
        body = (
            WaitGroup("cp.async", stages - 2),
            Sync(CTA),
            Read("ab", "read"),
            If(Ahead(stages - 1), (CpAsync("ab", "load"),)),
            Commit("cp.async"),
            Advance("read"),
            Advance("load"),
        )
        program = (*fill, ForK(body))
        cursors = (Cursor("read", stages), Cursor("load", stages, index=stages - 1))
    return Pipeline(
        f"cp.async, {stages} stage{'s' * (stages != 1)}",
        (Role("math", warps, program, cursors),),
        (NamedBarrier(CTA, 32 * warps),),
        (Buffer("ab", stages),),
        arch="sm_80",
    )


@checked(PlanError)
def tcgen05_ring(
    stages: int,
    bytes: int,
    *,
    accumulators: int = 2,
    pair: bool = False,
    warps: int = 4,
    store: tuple[int, int] | None = None,
) -> Pipeline:
    """The persistent sm_100 loop of loads, tcgen05.mma, and the accumulator's emptying. One warp loads, one issues,
    four empty the accumulator in tensor memory.

    tcgen05.commit releases the stage, and at the end of a tile hands the accumulator over; with two accumulators the
    products of the next tile overlap the epilogue.

    bytes  of one stage in one CTA
    pair   cta_group::2: the even CTA issues the products of both, whose loads all count at its barrier

    >>> bool(tcgen05_ring(4, 32768).prove()), bool(tcgen05_ring(4, 32768, pair=True).prove())
    (True, True)
    """
    _check_counts(stages=stages, accumulators=accumulators, warps=warps, store=store)
    size = 2 if pair else 1
    load, tile, drain = _tcgen05_programs(bytes, pair, store)
    meet: Program = (ClusterArrive(), ClusterWait()) if pair else ()
    epilogue_cursors = (Cursor("acc", accumulators), *([Cursor("store", store[0])] if store else []))
    return Pipeline(
        f"tcgen05{' pair' if pair else ''}, ring of {stages}, {accumulators} accumulator{'s' * (accumulators != 1)}",
        (
            Role("load", 1, (*start(True, size), ForTiles((ForK(load),)), *meet), (Cursor("load", stages),)),
            Role(
                "mma",
                1,
                (*start(False, size), *_on_leader(pair, ForTiles(tile)), *meet),
                (Cursor("read", stages), Cursor("acc", accumulators)),
            ),
            Role("epilogue", warps, (*start(False, size), ForTiles(drain), *_stored(store), *meet), epilogue_cursors),
        ),
        (
            Mbarrier("full", 1, stages, bytes * size),
            Mbarrier("empty", 1, stages),
            Mbarrier("acc_full", 1, accumulators),
            Mbarrier("acc_empty", warps * size, accumulators),
            *([] if pair else [NamedBarrier(CTA, 32 * (2 + warps))]),
            *([NamedBarrier("store", 32 * warps)] if store else []),
        ),
        (Buffer("ab", stages), Buffer("acc", accumulators, "tmem"), *([Buffer("c", store[0])] if store else [])),
        cluster=size,
        arch="sm_100a",
    )


def _tcgen05_programs(
    bytes: int, pair: bool, store: tuple[int, int] | None
) -> tuple[Program, Program, Program]:  # fmt: skip
    """The loads of a stage, the products of a tile, and its epilogue."""
    both = ((0, 1), (0, 1)) if pair else "own"
    leader = ((0,), (0,)) if pair else "own"
    load: Program = (
        Wait("empty", "load", flip=True),
        *_on_leader(pair, ArriveExpect("full", "load")),
        TmaLoad("ab", "load", "full", bytes, signal=0 if pair else "own"),
        Advance("load"),
    )
    product: Program = (
        Wait("full", "read"),
        Mma(("ab",), "read", "acc", "acc", "tcgen05", "one", both),
        CommitTo("empty", "read", both),
        Advance("read"),
    )
    tile: Program = (
        Wait("acc_empty", "acc", flip=True),
        ForK(product),
        CommitTo("acc_full", "acc", both, publishes=("acc",), published_at="acc"),
        Advance("acc"),
    )
    drain: Program = (
        Wait("acc_full", "acc"),
        Read("acc", "acc"),
        Arrive("acc_empty", "acc", to=leader),
        Advance("acc"),
        *(store_ring("c", "store", *store) if store else ()),
    )
    return load, tile, drain


def _on_leader(pair: bool, *program: Action) -> Program:
    return (If(OnRank((0,)), program),) if pair else program
