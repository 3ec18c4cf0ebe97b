"""The pipeline of a Blackwell GEMM: a loader, a warp that multiplies, an epilogue. By one block or a pair of them.

`BlackwellPipeline` builds the model that a plan of the production kernel is proven with. It has the word for
tensor memory's address, both rings, the last commits that a pair's loader waits for, and the release of tensor memory.
The model leaves out tcgen05.fence, which the emulator requires instead. The store of C is a pipeline of its own
(`BlackwellPipeline.store_pipeline`), since each warp stores for itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...checks.pipeline.actions import (
    Action,
    Advance,
    Ahead,
    Arrive,
    ArriveExpect,
    ClusterArrive,
    ClusterWait,
    CommitTo,
    FenceInit,
    ForK,
    ForTiles,
    If,
    InitBarriers,
    Mma,
    OnRank,
    Program,
    Read,
    Sync,
    TmaLoad,
    Wait,
    Write,
)
from ...checks.pipeline.model import CTA, Buffer, Cursor, Mbarrier, NamedBarrier, Pipeline, Role
from ..store_ring import StoreRing, store_pipeline


@dataclass(frozen=True, slots=True)
class BlackwellPipeline:
    """The numbers of the pipeline.

    stages        of A and B
    lands         (A's bytes, B's bytes) that one block loads of a stage
    accumulators  in tensor memory
    pair          cta_group::2: the even block multiplies for both
    warps         of the epilogue
    promotes      each K tile is an accumulator of its own
    store         None: no store through shared memory
    full_bytes, full_arrivals, empty_arrivals, acc_full_arrivals, acc_empty_arrivals
                  what completes a phase; None takes what the others add up to
    """

    stages: int
    lands: tuple[int, int]
    accumulators: int = 2
    pair: bool = False
    warps: int = 4
    store: StoreRing | None = None
    full_bytes: int | None = None
    full_arrivals: int = 1
    empty_arrivals: int = 1
    acc_full_arrivals: int = 1
    acc_empty_arrivals: int | None = None
    promotes: bool = False

    @property
    def size(self) -> int:
        """Blocks of a cluster."""
        return 2 if self.pair else 1

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * (2 + self.warps)

    def cases(self) -> tuple[Pipeline, ...]:
        """The pipelines to prove: for every number of k tiles from 1 on, and of tiles.

        >>> pairs = [BlackwellPipeline(3, (4096, 4096), pair=pair) for pair in (False, True)]
        >>> [bool(case.prove()) for pair in pairs for case in pair.cases()]
        [True, True]
        """
        return (self.pipeline(), *([self.store_pipeline()] if self.store else []))

    def store_pipeline(self) -> Pipeline:
        """One warp's store, of any number of output tiles. Raises PlanError without one."""
        return store_pipeline(self.store)

    def pipeline(self) -> Pipeline:
        """The three roles."""
        full = self.full_bytes if self.full_bytes is not None else self.size * sum(self.lands)
        empty = self.acc_empty_arrivals if self.acc_empty_arrivals is not None else self.size * self.warps
        barriers: list[Mbarrier | NamedBarrier] = [
            Mbarrier("full", self.full_arrivals, self.stages, full),
            Mbarrier("empty", self.empty_arrivals, self.stages),
            Mbarrier("acc_full", self.acc_full_arrivals, self.accumulators),
            Mbarrier("acc_empty", empty, self.accumulators),
        ]
        if not self.pair:
            barriers.append(NamedBarrier(CTA, self.threads))
        return Pipeline(
            f"{'pair' if self.pair else 'block'}, ring of {self.stages}, {self.accumulators} accumulator(s)",
            (
                Role("epilogue", self.warps, self._epilogue(), (Cursor("acc", self.accumulators),)),
                Role("mma", 1, self._mma(), (Cursor("read", self.stages), Cursor("acc", self.accumulators))),
                Role("loader", 1, self._loader(), (Cursor("load", self.stages),)),
            ),
            tuple(barriers),
            (
                Buffer("a", self.stages),
                Buffer("b", self.stages),
                Buffer("acc", self.accumulators, "tmem"),
                Buffer("slot"),
            ),
            cluster=self.size,
            arch="sm_100a",
            k_tiles=(1, False),
        )

    # ------------------------------------------------------------------------------------------------------------ parts
    def _meet(self) -> Program:
        return (ClusterArrive(), ClusterWait()) if self.pair else (Sync(CTA),)

    def _on_leader(self, *program: Action) -> Program:
        return (If(OnRank((0,)), program),) if self.pair else program

    def _loader(self) -> Program:
        signal = 0 if self.pair else "own"
        load: Program = (
            Wait("empty", "load", flip=True),
            *self._on_leader(ArriveExpect("full", "load")),
            TmaLoad("a", "load", "full", self.lands[0], signal=signal),
            TmaLoad("b", "load", "full", self.lands[1], signal=signal),
            Advance("load"),
        )
        tail: Program = (Wait("empty", "load", flip=True), Advance("load")) * self.stages if self.pair else ()
        return (*self._meet(), Read("slot"), ForTiles((ForK(load),)), *tail, *self._meet())

    def _mma(self) -> Program:
        both = ((0, 1), (0, 1)) if self.pair else "own"
        done = CommitTo("acc_full", "acc", both, publishes=("acc",), published_at="acc")
        product: Program = (
            Wait("full", "read"),
            Mma(("a", "b"), "read", "acc", "acc", "tcgen05", "one", both),
            CommitTo("empty", "read", both),
            *((done,) if self.promotes else (If(Ahead(1), (), (done,)),)),
            Advance("read"),
        )
        free_acc, next_acc = Wait("acc_empty", "acc", flip=True), Advance("acc")
        tile: Program = (free_acc, ForK(product), next_acc)
        if self.promotes:
            tile = (ForK((free_acc, *product, next_acc)),)
        free: Program = tuple(Write("acc", i, new=False) for i in range(self.accumulators))
        allocate = Write("slot")
        return (allocate, *self._meet(), Read("slot"), *self._on_leader(ForTiles(tile)), *self._meet(), *free)

    def _epilogue(self) -> Program:
        leader = ((0,), (0,)) if self.pair else "own"
        drain: Program = (
            Wait("acc_full", "acc"),
            Read("acc", "acc"),
            Arrive("acc_empty", "acc", to=leader),
            Advance("acc"),
        )
        drain = (ForK(drain),) if self.promotes else drain
        return (InitBarriers(), FenceInit(), *self._meet(), Read("slot"), ForTiles(drain), *self._meet())
