"""Actions of an asynchronous kernel's roles: waits, arrivals, copies, products, fences, and loops of them.

An action is a frozen value that names barriers, buffers and cursors of a `Pipeline`; nothing here knows how it runs.
Two fields recur:

    at   the stage: a cursor of the role (its index; waits also use its phase), or a fixed number
    by   who performs it: "warp" every warp of the role, through one elected lane where that matters; "one" the role's
         first warp alone, through one lane; "lanes" all 32 lanes of every warp
    to   the CTAs it reaches: "own", "all", or for each rank of the cluster the ranks reached

Sources: PTX ISA, "mbarrier", "cp.async", "cp.async.bulk", "wgmma.wait_group", "bar, barrier", "barrier.cluster",
"tcgen05.commit", "st.async", "Async proxy", "membar / fence".
"""

from __future__ import annotations

from dataclasses import dataclass

At = str | int
Targets = str | tuple[tuple[int, ...], ...]
BY = ("warp", "one", "lanes")
OWN = "own"
ALL = "all"


# ----------------------------------------------------------------------------------------------------------- barriers
@dataclass(frozen=True, slots=True)
class InitBarriers:
    """mbarrier.init of every stage of the named mbarriers of the own CTA (default: all)."""

    barriers: tuple[str, ...] = ()
    by: str = "one"


@dataclass(frozen=True, slots=True)
class FenceInit:
    """fence.mbarrier_init: the caller's initialisations become visible to the cluster and to the async proxy."""

    by: str = "one"


@dataclass(frozen=True, slots=True)
class Wait:
    """mbarrier.try_wait.parity until it holds. Passes when the phase of that parity is not the current one.

    The parity is the cursor's phase, flipped when `flip`; `parity` gives it outright instead.
    """

    barrier: str
    at: At
    flip: bool = False
    by: str = "warp"
    parity: int | None = None


@dataclass(frozen=True, slots=True)
class Arrive:
    """mbarrier.arrive, one for every performing lane and every CTA reached."""

    barrier: str
    at: At
    by: str = "warp"
    to: Targets = OWN


@dataclass(frozen=True, slots=True)
class ArriveExpect:
    """mbarrier.arrive.expect_tx on the own CTA's barrier; `bytes` None takes what the barrier declares."""

    barrier: str
    at: At
    bytes: int | None = None
    by: str = "one"


@dataclass(frozen=True, slots=True)
class Expect:
    """mbarrier.expect_tx without an arrival."""

    barrier: str
    at: At
    bytes: int | None = None
    by: str = "one"


@dataclass(frozen=True, slots=True)
class Sync:
    """bar.sync on a named barrier of the CTA; with wait=False bar.arrive."""

    barrier: str
    wait: bool = True


@dataclass(frozen=True, slots=True)
class ClusterArrive:
    """barrier.cluster.arrive by every warp; `relaxed` orders barrier initialisations but no data."""

    relaxed: bool = False


@dataclass(frozen=True, slots=True)
class ClusterWait:
    """barrier.cluster.wait: until every warp of the cluster has arrived or exited."""


# ------------------------------------------------------------------------------------------------------------- copies
@dataclass(frozen=True, slots=True)
class TmaLoad:
    """cp.async.bulk.tensor from global to shared memory. It writes the buffer through the async proxy, then
    complete_tx(bytes).

    bytes    that land in each CTA reached; None takes what the barrier declares
    to       the CTAs written (multicast); the bytes are counted at the same stage of the barrier of each
    part     "whole" buffer, "rank": the share that carries the issuing CTA's rank, or "warp": the issuing warp's share
    signal   "own": each CTA's own barrier counts what lands in it; else the one rank whose barrier counts it all
    """

    buffer: str
    at: At
    barrier: str
    bytes: int | None = None
    to: Targets = OWN
    by: str = "one"
    part: str = "whole"
    signal: str | int = OWN


@dataclass(frozen=True, slots=True)
class TmaStore:
    """cp.async.bulk.tensor shared -> global. Reads the buffer through the async proxy, until its bulk group is done."""

    buffer: str
    at: At
    by: str = "one"


@dataclass(frozen=True, slots=True)
class CpAsync:
    """cp.async global -> shared. Writes each warp's share through the generic proxy, until its group is done.

    new   False for zeros that nobody has to read: src-size 0, where there is nothing to copy
    """

    buffer: str
    at: At
    new: bool = True


@dataclass(frozen=True, slots=True)
class CpAsyncArrive:
    """cp.async by all lanes of a warp, then cp.async.mbarrier.arrive.noinc. A lane arrives when its copies have landed.

    The copies write the buffer through the generic proxy. The issuing warp does not know when they land.
    """

    buffer: str
    at: At
    barrier: str
    by: str = "one"


@dataclass(frozen=True, slots=True)
class Write:
    """Generic-proxy stores (st.shared, stmatrix): each warp its share, or the "whole" buffer.

    to   the CTAs whose shared memory is written (st.shared::cluster): each writing warp of each CTA has its own share
    new  False for values that nobody has to read: memory that is used again for something else, or padding
    """

    buffer: str
    at: At = 0
    part: str = "warp"
    by: str = "warp"
    to: Targets = OWN
    new: bool = True


@dataclass(frozen=True, slots=True)
class StoreAsync:
    """st.async of each warp's share of a buffer of other CTAs, from registers. Then complete_tx(bytes) there.

    Through the generic proxy, and done when it lands: the warp that issues it does not know when that is.

    bytes  of each warp's share, counted at the same stage of the barrier of each CTA reached
    to     the CTAs whose shared memory is written
    """

    buffer: str
    at: At
    barrier: str
    bytes: int
    to: Targets


@dataclass(frozen=True, slots=True)
class Read:
    """Generic-proxy loads (ld.shared, ldmatrix, tcgen05.ld, registers) with values at the action's end.

    last  False when the role reads the same data once more later

    A read of tensor memory stands for tcgen05.ld with its wait::ld; tcgen05.fence is neither modelled nor demanded.
    """

    buffer: str
    at: At = 0
    by: str = "warp"
    last: bool = True


@dataclass(frozen=True, slots=True)
class FenceProxy:
    """fence.proxy.async: generic-proxy writes become visible to the async proxy."""

    by: str = "warp"


# ----------------------------------------------------------------------------------------------------------- products
@dataclass(frozen=True, slots=True)
class Mma:
    """An asynchronous product. Reads the buffers of a stage through the async proxy and accumulates into another.

    pipe    "wgmma": complete for the warp at WaitGroup("wgmma", n); "tcgen05": complete at CommitTo's barrier
    ctas    the CTAs with the shared memory that it reads; all of the pair for cta_group::2
    last    False when another product of the role reads the same stage
    """

    reads: tuple[str, ...]
    at: At
    into: str
    into_at: At = 0
    pipe: str = "wgmma"
    by: str = "warp"
    ctas: Targets = OWN
    last: bool = True


@dataclass(frozen=True, slots=True)
class Commit:
    """Closes a group of asynchronous operations: pipe "wgmma", "cp.async" or "bulk"."""

    pipe: str
    by: str = "warp"


@dataclass(frozen=True, slots=True)
class WaitGroup:
    """Waits until at most `pending` of the caller's newest groups of that pipe are incomplete.

    For "bulk" this is cp.async.bulk.wait_group.read: the stores have read shared memory, and no more is asked here.
    """

    pipe: str
    pending: int = 0
    by: str = "warp"


@dataclass(frozen=True, slots=True)
class CommitTo:
    """tcgen05.commit. An mbarrier gets one arrival when all tcgen05 operations issued so far are complete.

    publishes  accumulator buffers that are whole now, at stage `published_at`, for their readers
    """

    barrier: str
    at: At
    to: Targets = OWN
    by: str = "one"
    publishes: tuple[str, ...] = ()
    published_at: At = 0


# --------------------------------------------------------------------------------------------------------------- flow
@dataclass(frozen=True, slots=True)
class Advance:
    """Moves a cursor on: index + 1. At the wrap it takes index 0 and, unless flip is False, the other phase."""

    cursor: str
    flip: bool = True


@dataclass(frozen=True, slots=True)
class Reset:
    """Sets a cursor back to where the role declared it."""

    cursor: str


@dataclass(frozen=True, slots=True)
class Ahead:
    """Is there a k tile `distance` after the current one: k + distance < K."""

    distance: int = 0


@dataclass(frozen=True, slots=True)
class Later:
    """Is this k tile number `k` or a later one."""

    k: int = 1


@dataclass(frozen=True, slots=True)
class Onward:
    """The question whether there is a k tile `distance` after the current one. It may be in this output tile or in one
    that follows it."""

    distance: int = 0


@dataclass(frozen=True, slots=True)
class MoreTiles:
    """Is there an output tile `distance` after the current one."""

    distance: int = 1


@dataclass(frozen=True, slots=True)
class OnRank:
    """Does the role run in a CTA of one of these ranks."""

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TileIs:
    """Is the number of the current output tile congruent to `remainder` modulo `modulus`."""

    modulus: int
    remainder: int


@dataclass(frozen=True, slots=True)
class KIs:
    """Is the number of this k tile congruent to `remainder` modulo `modulus`."""

    modulus: int
    remainder: int


Condition = Ahead | Onward | MoreTiles | Later | OnRank | TileIs | KIs


@dataclass(frozen=True, slots=True)
class If:
    """Performs `then` where the condition holds, else `orelse`."""

    condition: Condition
    then: Program
    orelse: Program = ()


@dataclass(frozen=True, slots=True)
class ForK:
    """For k = 0, 1, ..., K-1. K is any number, 0 included, the same in every role, and may differ from tile to tile."""

    body: Program


@dataclass(frozen=True, slots=True)
class ForTiles:
    """For every output tile of a persistent CTA. Their number is any, 0 included, and the same in every role."""

    body: Program


Action = (
    InitBarriers | FenceInit | Wait | Arrive | ArriveExpect | Expect | Sync | ClusterArrive | ClusterWait | TmaLoad
    | TmaStore | CpAsync | CpAsyncArrive | Write | StoreAsync | Read | FenceProxy | Mma | Commit | WaitGroup | CommitTo
    | Advance | Reset | If | ForK | ForTiles
)  # fmt: skip
Program = tuple[Action, ...]

# Deleting one of these leaves a program whose data flow is the same: what the mutation tests delete.
SYNCHRONISING = (
    InitBarriers, FenceInit, Wait, Arrive, ArriveExpect, Sync, ClusterArrive, ClusterWait, FenceProxy, Commit,
    WaitGroup, CommitTo, Advance,
)  # fmt: skip
