"""The pipeline of a Hopper GEMM in all its forms. Who loads, how consumers share the work, how C leaves.

`HopperPipeline` builds the model that a plan of the production kernel is proven with, action by action. The
model leaves out:

- In a split K the blocks of different parts may have different numbers of k tiles; the model gives all the same. Parts
  interact only at the cluster's barrier and in the exchange of sums, so their numbers are independent.
- The store of C is a pipeline of its own (`store_pipeline`). Its buffers, named barriers and groups are one
  consumer's. It shares only the warps' barrier with the rest, which has one there too.
- Buffers of C that lie over the stages are buffers of their own. That the stages are free by then is what the writes
  with new=False say: each consumer warp writes to every stage where the kernel begins to use it for something else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...checks.pipeline.actions import (
    Action,
    Advance,
    Ahead,
    Arrive,
    ArriveExpect,
    ClusterArrive,
    ClusterWait,
    Commit,
    CpAsyncArrive,
    Expect,
    FenceInit,
    FenceProxy,
    ForK,
    ForTiles,
    If,
    InitBarriers,
    KIs,
    Later,
    Mma,
    MoreTiles,
    Onward,
    Program,
    Read,
    StoreAsync,
    Sync,
    TileIs,
    TmaLoad,
    Wait,
    WaitGroup,
    Write,
)
from ...checks.pipeline.model import CTA, Buffer, Cursor, Mbarrier, NamedBarrier, Pipeline, Role
from ...errors import PlanError
from ..store_ring import WARPS, StoreRing, store_pipeline


@dataclass(frozen=True, slots=True)
class HopperPipeline:
    """The numbers of the pipeline; defaults are those of one warpgroup that loads for itself.

    stages            of A and B
    lands             (A's bytes, B's bytes) that one block of a cluster brings into each block that needs them
    full_bytes, full_arrivals, empty_arrivals   what completes a phase; None takes what the others add up to
    cluster, split    blocks that share loads; parts of K that a cluster's blocks have
    sends             bytes of partial sums that a consumer warp sends to each other part
    sums_bytes, sums_arrivals   what completes the phase in which they come; None takes what the others add up to
    consumers, blocks warpgroups, and accumulators of each
    pingpong          each tile is one consumer's, in turn, instead of all consumers'
    slices            consumers that take k tiles in turn; the others' sums come to the first of each such set
    loader            warps of a loader; 0 for the last consumer's first warp
    store             None: each thread stores its own values
    one_tile_per_cluster   one output tile a cluster; buffers of C lie over the stages
    staged_epilogue_k_tiles   last k tiles, which every tile has, that are multiplied accumulator by accumulator,
                      each stored while the others are computed; 0 for none
    padding           parts of the stages ("zeros") are never loaded: the consumers write them once, while the first
                      loads are under way
    registers         (loader's, consumers') after setmaxnreg
    promoted          products of one accumulator are waited for and read before the next ones are issued, into the same
                      registers
    column_parts      of an accumulator that such products are of, one after the other
    product_sets      registers of such products: with 2 sets in turn, one product runs while the one before is read
    numbers           the loader's lanes copy what a promotion reads into the stage, and arrive at its barrier for it
    bulk_numbers      bytes of it that a loader of its own has by bulk copies, in some tiles; 0 in none
    packed            groups of products of a k tile whose A is packed weights, which threads read; 0 without them
    apart             sums of a k tile, each of one or more of these groups, and read before the next one begins in the
                      same registers; 0 where all groups add to one
    by_warps          mma.sync multiplies them: a k tile is read by threads alone, and done when it is released
    adds_rows         consumers read A themselves, too, while products of it run
    turns             in every second tile CTAs share the other operand, as a cluster of (N, M). `lands` are then the
                      shares of both, and a CTA sends itself each share of the operand that it needs alone
    gathers           the loader's warps copy A by cp.async, and a thread arrives for its own copies; consumers fence
    """

    stages: int
    lands: tuple[int, int]
    full_bytes: int | None = None
    full_arrivals: int = 1
    empty_arrivals: int | None = None
    cluster: tuple[int, int] = (1, 1)
    split: int = 1
    sends: int = 512
    sums_bytes: int | None = None
    sums_arrivals: int | None = None
    consumers: int = 1
    blocks: int = 1
    pingpong: bool = False
    slices: int = 1
    loader: int = 0
    store: StoreRing | None = None
    one_tile_per_cluster: bool = False
    staged_epilogue_k_tiles: int = 0
    padding: bool = False
    registers: tuple[int, int] | None = None
    promoted: bool = False
    column_parts: int = 1
    product_sets: int = 1
    numbers: bool = False
    bulk_numbers: int = 0
    packed: int = 0
    apart: int = 0
    by_warps: bool = False
    gathers: bool = False
    adds_rows: bool = False
    turns: bool = False

    @property
    def sharing(self) -> int:
        """Blocks that share loads."""
        return self.cluster[0] * self.cluster[1]

    @property
    def size(self) -> int:
        """Blocks of a cluster: rank = part of K * sharing + place. Place = row + rows * column."""
        return self.sharing * self.split

    @property
    def rows(self) -> int:
        """Consumers that share a k tile. Consumer = rows of the tile + `rows` * slice."""
        return self.consumers // self.slices

    @property
    def sources(self) -> int:
        """Partial sums of a tile."""
        return self.split * self.slices

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * (WARPS * self.consumers + self.loader)

    def cases(self) -> tuple[Pipeline, ...]:
        """The pipelines to prove: together they stand for every number of k tiles.

        A consumer that loads for itself looks `stages` k tiles ahead, into the following output tiles. All tiles have
        the same number of k tiles; fewer than that are a case each, and more are one case.

        >>> [case.name for case in HopperPipeline(2, (16384, 16384)).cases()]
        ['ring of 2, self-loading, 1 consumer, 1 k tile(s)', 'ring of 2, self-loading, 1 consumer']
        """
        many = self._pipeline()
        few: list[Pipeline] = []
        if self.bulk_numbers:
            every = replace(self, bulk_numbers=0)._pipeline()
            few.append(replace(every, name=f"{every.name}, numbers copied one by one"))
        if not (self.loader or self.one_tile_per_cluster):
            counts = range(max(1, self.staged_epilogue_k_tiles), self.stages)
            few = [replace(many, name=f"{many.name}, {k} k tile(s)", k_tiles=(k, True)) for k in counts]
        return (*few, many, *([self.store_pipeline()] if self.store else []))

    def store_pipeline(self) -> Pipeline:
        """One consumer's store, of any number of output tiles. Raises PlanError without one."""
        return store_pipeline(self.store, self.one_tile_per_cluster)

    # ------------------------------------------------------------------------------------------------------------ parts
    def _pipeline(self) -> Pipeline:
        if self.pingpong and self.consumers != 2:
            raise PlanError(f"pingpong takes two consumers in turn, not {self.consumers}")
        if self.split > 1 and not self.one_tile_per_cluster:
            raise PlanError("parts of K meet once: one output tile a cluster")
        roles = [Role(f"math{i}", WARPS, self._consumer(i), self._cursors(i), self._count(1))
                 for i in range(self.consumers)]  # fmt: skip
        if self.loader:
            cursors, registers = (Cursor("load", self.stages),), self._count(0)
            if self.numbers:
                roles.insert(0, Role("numbers", 1, self._feeder(), cursors, registers))
            roles.insert(0, Role("loader", self.loader - self.numbers, self._loader(), cursors, registers))
        full = (
            self.full_bytes
            if self.full_bytes is not None
            else sum(
                lands * (self.sharing if self.turns else blocks)
                for lands, blocks in zip(self.lands, self.cluster[::-1])
            )
        )
        readers = 1 if self.pingpong else self.rows
        empty = self.empty_arrivals if self.empty_arrivals is not None else readers * WARPS * (sum(self.cluster) - 1)
        turns: list[tuple[int, ...]] = [(0, 1)] if self.pingpong else []
        if self.slices > 1:
            turns = [tuple(range(row, self.consumers, self.rows)) for row in range(self.rows)]
        either = tuple(tuple(f"math{i}" for i in of) for of in turns)
        barriers: list[Mbarrier | NamedBarrier] = [
            Mbarrier("full", self.full_arrivals, self.stages, full),
            Mbarrier("empty", empty, self.stages),
        ]
        buffers = [Buffer("a", self.stages, either=either), Buffer("b", self.stages, either=either)]
        buffers += [Buffer(f"acc{i}", space="reg") for i in range(self._asynchronous)]
        if self.size == 1:
            barriers.append(NamedBarrier(CTA, self.threads))
        if self.pingpong:
            barriers += [NamedBarrier(f"turn{i}", 32 * WARPS * 2) for i in range(2)]
        buffers += [Buffer("zeros", self.stages, kept=True)] if self.padding else []
        buffers += [Buffer("numbers", self.stages)] if self.numbers else []
        if self.padding or (self.one_tile_per_cluster and self.store):
            barriers.append(NamedBarrier("stages", 32 * WARPS * self.consumers))
        if self.sources > 1:
            sent = (self.sources - 1) * WARPS * self.rows  # by warps
            arrive, come = (1, sent * self.sends) if self.size > 1 else (sent, 0)
            arrive = arrive if self.sums_arrivals is None else self.sums_arrivals
            barriers.append(Mbarrier("sums", arrive, bytes=come if self.sums_bytes is None else self.sums_bytes))
            buffers.append(Buffer("sums"))
        if self.store and self.store.warps == WARPS:
            barriers += [NamedBarrier(f"store{i}", 32 * WARPS) for i in range(self.rows)]
        least = self.staged_epilogue_k_tiles if self.loader or self.one_tile_per_cluster else self.stages
        return Pipeline(
            self._name(), tuple(roles), tuple(barriers), tuple(buffers), cluster=self.size, k_tiles=(least, False)
        )

    def _name(self) -> str:
        kind = "pingpong" if self.pingpong else f"{self.consumers} consumer{'s' * (self.consumers > 1)}"
        loads = f"loader of {self.loader} warp{'s' * (self.loader > 1)}" if self.loader else "self-loading"
        more = [f"cluster {self.cluster[0]}x{self.cluster[1]}"] if self.sharing > 1 else []
        more += [f"K in {self.split} parts"] if self.split > 1 else []
        more += [f"k tiles in turn by {self.slices} consumers"] if self.slices > 1 else []
        more += ["one tile"] if self.one_tile_per_cluster else []
        more += [f"the last {self.staged_epilogue_k_tiles} k tile(s) by block"] if self.staged_epilogue_k_tiles else []
        more += ["each k tile promoted" + " in turn" * (self.product_sets > 1)] if self.promoted else []
        by_warps = ["A converted, multiplied by warps"]
        converted = [f"A converted in {self.packed} group(s) of products"]
        converted += [f"{self.apart} sum(s) read apart"] if self.apart else []
        more += by_warps if self.by_warps else converted if self.packed else []
        more += ["A gathered"] if self.gathers else []
        more += ["A's rows added"] if self.adds_rows else []
        more += ["every second tile turned"] if self.turns else []
        return ", ".join([f"ring of {self.stages}", loads, kind, *more])

    def _count(self, which: int) -> int | None:
        return self.registers[which] if self.registers else None

    def _cursors(self, consumer: int) -> tuple[Cursor, ...]:
        mine = [Cursor("read", self.stages), Cursor("release", self.stages)]
        if self._loads_for_itself(consumer):
            mine.append(Cursor("load", self.stages))
        return (*mine, *[Cursor(f"again{block}", self.stages) for block in self._later_blocks])

    @property
    def _asynchronous(self) -> int:
        """Accumulators that wgmma writes."""
        return 0 if self.by_warps else self.product_sets if self.promoted else 1 if self.apart else self.blocks

    @property
    def _later_blocks(self) -> range:
        """Accumulators whose share of the last k tiles is multiplied behind the first one's."""
        return range(1, self.blocks if self.staged_epilogue_k_tiles else 0)

    def _loads_for_itself(self, consumer: int) -> bool:
        return not self.loader and consumer == self.consumers - 1

    def _part(self, rank: int) -> range:
        """Ranks of the same part of K."""
        return range(rank // self.sharing * self.sharing, (rank // self.sharing + 1) * self.sharing)

    def _start(self, first: bool) -> Program:
        init: Program = (InitBarriers(), FenceInit()) if first else ()
        if first and self.sources > 1 and self.size > 1:
            init += (ArriveExpect("sums", 0),)
        meet: Program = (Sync(CTA),) if self.size == 1 else (ClusterArrive(relaxed=True), ClusterWait())
        return (*init, *meet)

    @property
    def _drain(self) -> Program:
        """Those that share loads alone: the loader waits for every stage once more."""
        if self.sharing == 1:
            return ()
        return (Wait("empty", "load", flip=True, by="one"), Advance("load")) * self.stages

    def sharers(self, turned: bool = False) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
        """Each rank's sharers of A (along N) and of B (along M). `turned`: of the cluster (N, M)."""
        rows, ranks = self.cluster[turned], range(self.size)
        first = [rank - rank % self.sharing % rows for rank in ranks]
        same_a = tuple(tuple(r for r in self._part(rank) if (r - rank) % rows == 0) for rank in ranks)
        return same_a, tuple(tuple(range(f, f + rows)) for f in first)

    @property
    def _load(self) -> Program:
        """One k tile: this block's share of A and of B."""
        copies = self._copies(False)
        if self.turns:  # a warp that loads for itself turns tiles ahead: it does so in all CTAs at once, all the same
            copies = (If(TileIs(2, 1), self._copies(True), copies),)
        numbers = (CpAsyncArrive("numbers", "load", "full"),) if self.numbers and not self.loader else ()
        rows = (CpAsyncArrive("a", "load", "full", by="warp"),) if self.gathers else ()
        return (
            Wait("empty", "load", flip=True, by="warp" if self.gathers else "one"), ArriveExpect("full", "load"),
            *copies, *rows, *numbers, Advance("load"),
        )  # fmt: skip

    def _copies(self, turned: bool) -> Program:
        """The copies of one k tile; `turned`: of the cluster (N, M)."""
        copies: list[Action] = []
        cluster = self.cluster[::-1] if turned else self.cluster
        for name, lands, to, blocks in zip("ab", self.lands, self.sharers(turned), cluster[::-1]):
            if name == "a" and self.gathers:
                continue
            alone = blocks == 1
            sent = lands * self.sharing if alone and self.turns else lands
            part = "whole" if alone else "rank"
            copies.append(TmaLoad(name, "load", "full", sent, "own" if alone else to, part=part))
        return tuple(copies)

    def _tiles(self, *body: Action) -> Program:
        return body if self.one_tile_per_cluster else (ForTiles(body),)

    def _feeder(self) -> Program:
        """The warp that copies numbers, beside a loader. Every second tile has bulk copies, if some tiles have."""
        free, size = Wait("empty", "load", flip=True, by="one"), self.bulk_numbers
        tile: Program = (ForK((free, CpAsyncArrive("numbers", "load", "full"), Advance("load"))),)
        if size:
            # The kernel's fence behind a tile of cp.async is left out: no order that is asked for here rests on it.
            load = (Expect("full", "load", size), TmaLoad("numbers", "load", "full", size, part="warp"))
            whole: Program = (ForK((free, *load, Arrive("full", "load", by="lanes"), Advance("load"))),)
            tile = whole if self.one_tile_per_cluster else (If(TileIs(2, 0), whole, tile),)
        return (*self._start(False), *self._tiles(*tile))

    def _loader(self) -> Program:
        return (*self._start(False), *self._tiles(ForK(self._load)), *self._drain)

    def _ahead(self, distance: int) -> Ahead | Onward:
        return Ahead(distance) if self.one_tile_per_cluster else Onward(distance)

    def _release(self, consumer: int, distance: int | None = None) -> Program:
        """The oldest stage is free; the self-loading warp refills it, `distance` k tiles ahead of the current one.

        Where k tiles are promoted it is filled a k tile later: another consumer may not have read it yet.
        """
        # Blocks that share neither A nor B do not wait for each other, and may be two rounds apart.
        to = tuple(tuple(sorted({*a, *b})) for a, b in zip(*self.sharers())) if self.sharing > 1 else "own"
        free: Program = (Arrive("empty", "release", to=to), *(Advance("release"),) * self.slices)
        return free if self.promoted else (*free, *self._refill(consumer, distance))

    def _refill(self, consumer: int, distance: int | None = None) -> Program:
        """The oldest free stage is filled anew by whoever loads for itself."""
        if not self._loads_for_itself(consumer):
            return ()
        return (If(self._ahead(self.stages - 1 if distance is None else distance), self._load),)

    def _consumer(self, i: int) -> Program:
        if self.by_warps:
            return self._by_warps(i)
        names = [f"acc{block}" for block in range(self.blocks)]
        reads = ("a", "b", "zeros") if self.padding else ("a", "b")
        products = [Mma(reads, "read", name, last=block == self.blocks - 1) for block, name in enumerate(names)]
        earlier = If(Later(self.slices), self._release(i))  # of the own k tile before
        # Behind the products in the kernel: both come before the release, and neither writes.
        added = (Read("a", "read", last=False),) if self.adds_rows else ()
        step: Program = (*added, *products, Commit("wgmma"), WaitGroup("wgmma", 1), earlier)
        if self.promoted:
            step = self._promoted(i, reads) if self.product_sets == 1 else self._promoted_in_turn(i, reads)
        if self.apart:
            step = self._apart(earlier)
        elif self.packed:
            step = ()
            for group in range(self.packed):
                last = group == self.packed - 1
                for block, name in enumerate(names):
                    product = Mma(("b",), "read", name, last=last and block == self.blocks - 1)
                    loads = (Read("a", "read", last=block == self.blocks - 1),) if group == 0 else ()
                    free = (earlier,) if group == block == 0 else ()
                    step += (*loads, product, Commit("wgmma"), WaitGroup("wgmma", 1), *free)
        behind: list[Action] = []
        if self.staged_epilogue_k_tiles:
            # The first accumulator takes the last k tiles one by one; the others follow, on cursors that stay behind.
            follow: Program = tuple(Advance(f"again{block}") for block in self._later_blocks)
            first_one: Program = (
                Mma(reads, "read", names[0], last=self.blocks == 1), Commit("wgmma"),
                If(Ahead(self.staged_epilogue_k_tiles - 1), (WaitGroup("wgmma", 1), earlier)),
            )  # fmt: skip
            step = (If(Ahead(self.staged_epilogue_k_tiles), (*step, *follow), first_one),)
            for block in self._later_blocks:
                product = Mma(reads, f"again{block}", names[block], last=block == self.blocks - 1)
                behind += [product, Commit("wgmma"), Advance(f"again{block}")] * self.staged_epilogue_k_tiles
        # cp.async writes through the generic proxy: a fence of the threads that multiply, who know of the copies.
        # Threads that read A themselves read through the same proxy.
        landed: Program = (Wait("full", "read"), *([FenceProxy()] if self.gathers and not self.packed else []))
        tile: list[Action] = [*self._slice_begins(i), self._own_k_tiles(i, (*landed, *step)), *behind]
        if self.pingpong:
            pass_on = If(MoreTiles(1), (Sync(f"turn{1 - i}", wait=False),))
            tile = [Sync(f"turn{i}"), *tile, pass_on]
        tile += self._single_end(i) if self.one_tile_per_cluster else self._tile_end(i)
        whole: Program = tuple(tile)
        if self.pingpong:
            mine = (cursor.name for cursor in self._cursors(i))  # a loader of its own: none of them is a load
            others = ForK(tuple(Advance(name) for name in mine))
            whole = (If(TileIs(2, i), whole, (others,)),)
        first: Program = ()
        if self._loads_for_itself(i):
            first = tuple(If(self._ahead(s), self._load) for s in range(self.stages))
        if self.padding:
            first += (*(Write("zeros", s) for s in range(self.stages)), FenceProxy(), Sync("stages"))
        if self.pingpong and i == 1:
            first += (Sync("turn0", wait=False),)  # the first turn is consumer 0's
        drain = self._drain if self._loads_for_itself(i) else ()
        return (*self._start(i == 0), *first, *self._tiles(*whole), *drain)

    def _slice_begins(self, i: int) -> Program:
        """A slice releases the stages of its own k tiles."""
        return (Advance("release"),) * (i // self.rows if self.slices > 1 else 0)

    def _own_k_tiles(self, i: int, body: Program) -> ForK:
        """The consumer's k tiles: all, or those of its slice."""
        step = (*body, Advance("read"))
        if self.slices == 1:
            return ForK(step)
        return ForK((If(KIs(self.slices, i // self.rows), step, (Advance("read"),)),))

    def _promoted(self, i: int, reads: tuple[str, ...]) -> Program:
        """A k tile whose products, all in the same registers, are read one by one."""
        refill = (If(Later(1), self._refill(i)),) if self._loads_for_itself(i) else ()
        step: Program = ()
        products = self.blocks * self.column_parts
        for number in range(products):
            last = number == products - 1
            numbers = (Read("numbers", "read", last=last),) if self.numbers else ()
            product = Mma(reads, "read", "acc0", last=last)
            free = (*self._release(i), *refill) if last else ()
            step += (*numbers, product, Commit("wgmma"), WaitGroup("wgmma", 0), *free, Read("acc0"))
        return step

    def _promoted_in_turn(self, i: int, reads: tuple[str, ...]) -> Program:
        """A k tile whose products alternate between two sets: each is read while the next one runs."""
        products = self.blocks * self.column_parts

        def beginning(first: int) -> Program:
            step: Program = ()
            for number in range(products):
                own, before = (first + number) % 2, (first + number + 1) % 2
                step += (Mma(reads, "read", f"acc{own}", last=number == products - 1), Commit("wgmma"))
                if number == 0:
                    step += (If(Later(1), self._read_last(i, before, 1)),)
                else:
                    step += (WaitGroup("wgmma", 1), Read(f"acc{before}"))
            return step

        return beginning(0) if products % 2 == 0 else (If(KIs(2, 0), beginning(0), beginning(1)),)

    def _read_last(self, i: int, which: int, pending: int = 0) -> Program:
        """The wait for a k tile's last product, behind which its stage is released."""
        numbers = (Read("numbers", "release"),) if self.numbers else ()
        return (*numbers, WaitGroup("wgmma", pending), *self._release(i), Read(f"acc{which}"))

    def _last_in_turn(self, i: int) -> list[Action]:
        """A tile's last product, behind its k tiles. Nothing without products in turn."""
        if self.product_sets == 1:
            return []
        read: Program = self._read_last(i, 1)
        if self.blocks * self.column_parts % 2:
            read = (If(KIs(2, 0), read, self._read_last(i, 0)),)
        return [If(Later(1), read)]

    def _apart(self, earlier: Action) -> Program:
        """A k tile whose sums are read one by one: while a group of products runs, A is converted for the next."""
        step: Program = ()
        sums, parts = self.apart * self.blocks, self.packed // self.apart
        for number in range(sums):
            loads = (Read("a", "read", last=number == self.blocks - 1),) if number < self.blocks else ()
            release = () if number else (earlier,)
            read: Program = (Read("acc0"),) if number else (If(Later(self.slices), (Read("acc0"),)),)
            step += (*loads, WaitGroup("wgmma", 0), *release, *read)
            for part in range(parts):
                last = number == sums - 1 and part == parts - 1
                step += (Mma(("b",), "read", "acc0", last=last), Commit("wgmma"), WaitGroup("wgmma", 1))
        return step

    def _by_warps(self, i: int) -> Program:
        """A consumer whose warps multiply by mma.sync, and release a stage when they have."""
        step: Program = (Read("a", "read"), Read("b", "read"), *self._release(i))
        tile: list[Action] = [*self._slice_begins(i), self._own_k_tiles(i, (Wait("full", "read"), *step))]
        tile += self._single_end(i) if self.one_tile_per_cluster else self._tile_end(i)
        return (*self._start(i == 0), *self._tiles(*tile))

    def _tile_end(self, i: int) -> list[Action]:
        """Store block by block; the stages of the last k tiles are free when the last of their products are done."""
        last = self.blocks - 1 if self.staged_epilogue_k_tiles else 0
        actions: list[Action] = [WaitGroup("wgmma", 0), Read("acc0")] if self.apart and not self.by_warps else []
        actions += self._last_in_turn(i)
        for block in range(self.blocks):
            if block < last:
                actions.append(WaitGroup("wgmma", (last - block) * self.staged_epilogue_k_tiles))
            if block == last and self.promoted:
                actions += [If(Later(1), self._refill(i))] if self._loads_for_itself(i) else []
            elif block == last and not self.staged_epilogue_k_tiles and not self.by_warps:
                actions += [WaitGroup("wgmma", 0), If(Later(1), self._release(i))]
            if block == last:
                for step in range(self.staged_epilogue_k_tiles):
                    actions.append(WaitGroup("wgmma", self.staged_epilogue_k_tiles - 1 - step))
                    actions += self._release(i, self.stages - self.staged_epilogue_k_tiles + step)
            actions += self._stored(i, block)
        return actions

    def _single_end(self, i: int) -> list[Action]:
        """The cluster's only tile: parts of K exchange their sums, consumers meet, and C goes over the stages."""
        actions: list[Action] = self._last_in_turn(i) + ([] if self.by_warps else [WaitGroup("wgmma", 0)])
        actions += [Read("acc0")] if self.apart and not self.by_warps else []
        stages = [(name, s) for name in ("a", "b") for s in range(self.stages)]
        first = i < self.rows  # a slice behind the first sends its sums, and stores nothing
        if self.sources > 1 and self.size == 1 and not first:
            actions += [Write("sums"), Arrive("sums", 0)]
        elif self.sources > 1 and (self.split > 1 or not first):
            # Blocks of the same place in another part: they have the same tile.
            others = tuple(
                tuple(r for r in range(self.size) if (r != rank or not first) and (r - rank) % self.sharing == 0)
                for rank in range(self.size)
            )
            actions.append(StoreAsync("sums", 0, "sums", self.sends, others))
        if self.store:
            actions.append(Sync("stages"))
        if self.sources > 1 and first:
            actions += [Wait("sums", 0), Read("sums")]
        if self._drain and not self.promoted and not self.by_warps:
            actions.append(If(Later(1 + i // self.rows * (self.slices > 1)), self._release(i)))
        if not first:
            return actions
        if self.store:
            actions += [Write(name, s, new=False) for name, s in stages]
        for block in range(self.blocks):
            actions += self._stored(i, block)
        return actions

    def _stored(self, i: int, block: int) -> list[Action]:
        together = self.store is not None and self.store.warps == WARPS
        # Sums that are read one by one have been, and mma.sync waits for its own.
        done = self.promoted or self.apart or self.by_warps
        read = [] if done else [Read(f"acc{block}")]
        return [*read, *([Sync(f"store{i}")] if together else [])]
