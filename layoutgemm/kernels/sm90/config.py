"""Sm90Config describes a Hopper kernel, Sm90Tuning tunes it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from ...arch import MAX_GRID, Arch
from ...arch import arch as arch_named
from ...arguments import nearest, shown
from ...atoms.copy.base import WARP
from ...atoms.tma.rules import L2_PROMOTION
from ...checks.budgets import WARPGROUP, launch_registers, setmaxnreg_problem
from ...errors import PlanError
from ...graph_marks import NoticedInGraphs, not_in_graphs
from ...schedule import GpcOrder, Grouped, Linear
from ...schedule.gpc_order import Rounds
from ..plan import MAX_TILES, check_fields
from ..store import ROWS, WARP_ROWS

SCHEDULES = ("cooperative", "pingpong", "sliced")
LOADERS = ("self", "warp", "warpgroup")
STORES = ("tma", "direct")
LAUNCHES = ("workers", "tiles")
TRIGGERS = ("start", "end")
PRODUCTS = ("warpgroup", "warp")
FINISHES = (None, "launch", "cluster")
SCALES = ("weights", "sums")
MAX_CONSUMERS, MAX_BESIDE_WARP = 3, 4
HELD = 26  # registers of a consumer beside accumulators and fragments: ptxas asks for 130 where these are 104
HELD_PACKED = 24  # of packed weights, beside fragments and words of a K tile: ptxas takes 93 where these are 73
_PRODUCER_REGISTERS = 24  # the least that setmaxnreg takes: one thread issues copies
_NUMBERS_REGISTERS = 40  # of a producer whose lanes hold the addresses of up to 9 numbers each
_WAITS_REGISTERS = 56  # of a producer that waits for other GPUs: with 40 the compiler spills
_GATHER_REGISTERS = 56  # of a producer whose threads hold the addresses of up to 16 rows each
# Of accumulators, at most, beside an epilogue's matrices in the store's buffers: 224 leave too few.
BESIDE_MATRICES = 192
MAX_GRID_Y = MAX_GRID[1]
MAX_CLUSTER = arch_named("sm_90a").cluster_portable  # blocks


def _check_known(value: Sm90Config | Sm90Tuning, known: dict[str, tuple[str | None, ...]]) -> None:
    """Raise PlanError for a field that holds none of its known names."""
    for name, names in known.items():
        if (given := getattr(value, name)) not in names:
            raise PlanError(f"{name} = {shown(given)}: {nearest(given, names)}known are {', '.join(map(repr, names))}")


@dataclass(frozen=True, slots=True)
class Sm90Tuning:
    """The knobs that tune a Hopper kernel: orders, overlap, L2 and the store's buffers.

    group      clusters of a band of the tile order, and `along` which the bands lie: "M" or "N"
    reverse_odd_tiles   odd tiles of a CTA run through K backwards: fewer DRAM reads, but results depend on a tile's
               position
    overlap    programmatic dependent launch (PDL): the kernel starts while the previous one drains, and waits for it
               before it touches memory
    trigger    when the next kernel's CTAs may start, with its `overlap`: "start", wherever an SM is idle; "end", when
               this kernel's exit. On a grid that leaves SMs idle early CTAs crowd in some GPCs, and each GPC has its
               share of the memory rate and no more
    prefetch   K tiles to prefetch into L2 while the previous kernel runs; needs `overlap`
    first      the operand whose loads of a K tile are issued first, "A" or "B". By default the one that CTAs of the
               cluster share, which takes longest, else A
    l2_promotion   bytes that an L2 miss of a load fetches: "none", "64B", "128B" or "256B"; see `TensorMap`
    chunks, buffers   of the store; see StorePlan
    box_rows   of a box of the store, of a row-major C: 16 are a warp's own, which waits for no other warp. 64 are a
               warpgroup's: a quarter of the boxes
    store_at_once   all rounds of a tile's store have a buffer, and are stored together: one wait and one fence. For a
               main loop that promotes
    products   of packed weights: "warpgroup" is wgmma, "warp" is mma.sync, each warp for its own 16 rows; see
               `quantized.warp_products`
    scales     what the scales of groups of packed weights multiply: "weights", which rounds them, before the products,
               or "sums" of a group, in float32
    features   of packed weights: output features of a tile, whole strips of 16, up to 48 fewer than its rows. Tiles of
               48 features share 6144 among 128 SMs, where those of 64 leave 36 of 132 idle. See `quantized.strips`
    gpc_order  rounds of (places, times) in which the hardware assigns clusters to GPCs, for neighbours that take
               adjacent tiles; see `schedule.GpcOrder`. For a kernel that starts on an idle GPU: with PDL, CTAs start
               wherever earlier ones exit
    blocks_per_sm   CTAs that an SM is to hold, of one tile each: their shared memory and registers are as few. One CTA
               multiplies while the other starts or ends. For grids of more CTAs than SMs: of fewer, some SMs have two
    finish     what combines the tiles of a row that is reduced: "launch", a second one; or "cluster", without partial
               results: its CTAs along N have all columns, and each of several has one tile (launch="tiles"). None:
               a second launch, unless the rule that chooses a product's configuration finds that a cluster can
    skip_empty_blocks   of groups of rows: blocks of 64 rows of a tile behind their group's end are not multiplied. It
               pays where many tiles are partly empty, and costs 1 to 5% where few are
    turn_last_pair   of groups of rows, in clusters of (2, 1): the pair of CTAs at a group's odd last row of tiles takes
               two columns of it, and shares A in place of B. Without, one of the two CTAs has no row there
    halve_last_round   of groups of rows, tiles of two warpgroups: where at most half of the clusters have a tile in the
               last round, twice as many have half of one, a warpgroup's rows. No result changes
    shift_last_tile   of groups of rows: a tile that would reach beyond A's last row begins some boxes of the store
               earlier. Their rows are other tiles', and not stored. TMA loads rows out of bounds slowly

    Raises PlanError, naming the field and its known values.

    >>> Sm90Tuning(trigger="late")
    Traceback (most recent call last):
        ...
    layoutgemm.errors.PlanError: trigger = 'late': known are 'start', 'end'
    """

    group: int = 8
    along: str = "M"
    reverse_odd_tiles: bool = False
    overlap: bool = False
    trigger: str = "start"
    prefetch: int = 0
    first: str | None = None
    l2_promotion: str = "128B"
    chunks: int = 2
    buffers: int = 1
    box_rows: int = WARP_ROWS
    store_at_once: bool = False
    products: str = "warpgroup"
    scales: str = "weights"
    features: int | None = None
    gpc_order: Rounds = ()
    skip_empty_blocks: bool = False
    turn_last_pair: bool = False
    halve_last_round: bool = False
    shift_last_tile: bool = False
    blocks_per_sm: int = 1
    finish: str | None = None

    def __post_init__(self) -> None:
        check_fields(self, prefetch=0)
        _check_known(self, {
            "along": ("M", "N"), "trigger": TRIGGERS, "l2_promotion": tuple(L2_PROMOTION), "first": (None, "A", "B"),
            "products": PRODUCTS, "scales": SCALES, "finish": FINISHES,
        })  # fmt: skip
        if self.box_rows not in (WARP_ROWS, ROWS):
            raise PlanError(f"box_rows = {self.box_rows}: {WARP_ROWS}, a warp's rows, or {ROWS}, a warpgroup's")
        GpcOrder(self.gpc_order)
        if self.prefetch and not self.overlap:
            raise PlanError(f"prefetch = {self.prefetch} before the kernel before has ended: with overlap=True alone")


V = TypeVar("V")
_KNOBS = frozenset(field.name for field in fields(Sm90Tuning))
# Names until version 0.2.
_FORMER = {
    "dealt": "gpc_order", "snake": "reverse_odd_tiles", "single": "one_tile_per_cluster",
    "early": "staged_epilogue_k_tiles", "rows": "loaded_a_rows",
}  # fmt: skip
_FORMER_FIELDS = frozenset(_FORMER.values()) - _KNOBS  # of Sm90Config itself
_USUAL = Sm90Tuning()


def with_current_names(settings: Mapping[str, V]) -> dict[str, V]:
    """The settings under their names of today, as records of older versions have others.

    >>> with_current_names({"snake": True, "split": 2})
    {'reverse_odd_tiles': True, 'split': 2}
    """
    return {_FORMER.get(name, name): value for name, value in settings.items()}


def _warn_of_former(name: str, frames: int = 0) -> None:
    """Warn a caller, `frames` further up, that a knob has another name now."""
    text = f"Sm90Config.{name} is now {_FORMER[name]}; the old name goes in version 0.2"
    warnings.warn(text, DeprecationWarning, stacklevel=3 + frames)


def _renamed(knobs: dict[str, V]) -> dict[str, V]:
    """A caller's knobs by their names of today, with a warning for each former name."""
    for name in knobs.keys() & _FORMER.keys():
        _warn_of_former(name, 1)
    return with_current_names(knobs)


@dataclass(frozen=True, slots=True, init=False)
class Sm90Config(NoticedInGraphs):
    """The description of a Hopper kernel; None lets the plan choose.

    tile       (M, N) elements of C that a CTA computes at a time: M a multiple of 64, N of 8 up to 256
    tile_k     depth of a stage in elements; default 128 bytes
    stages     K tiles in flight, 2 or more; default as many as fit
    consumers  warpgroups that multiply, 1 to 3, or to 4 beside a loader that is a warp. Cooperative: they share a
               tile's rows; pingpong: each has a tile
    schedule   "cooperative", or "pingpong": two warpgroups in turn, one multiplies while the other stores. "sliced", of
               packed weights: each 64 rows have as many warpgroups as `slices` says, which take K tiles in turn. The
               first one adds the others' sums (CUTLASS calls this sliced-K)
    loader     "self": a consumer warp issues the TMA loads, between its products; all registers are the consumers'.
               "warp": a warp of its own; "warpgroup": a warpgroup, which gives its registers away
    loaded_a_rows   of A's tile, a multiple of 8 and M or more; the rest of the tile is zeros, written once. For
               M below the instruction's 64: out-of-bounds rows cost load time, these cost none
    one_tile_per_cluster   the grid is as large as the problem, and the store's buffers lie over the stages
    cluster    CTAs along M and N that share loads: those along M the tile of B, those along N the tile of A
    launch     "workers": as many clusters as are resident, which take tile after tile. "tiles": one for each tile, in
               a grid of as many rows and columns, `along` first: a CTA finds its tile without a division. No batch
    store      "tma", or "direct": each thread stores its own elements, for a C that TMA cannot store, and for few
               rows, which few threads have: no named barrier, and no way through shared memory
    split      split-K CTAs of a cluster, each with a part of a tile's K; they exchange their partial sums through
               shared memory, and each stores its share of the columns
    staged_epilogue_k_tiles   last K tiles that are multiplied 64 rows by 64 rows, or of 64 rows half by half of the
               columns: the first part is stored while the others' products still run. Fewer than the stages, which hold
               them all, and no more than K has
    tuning     the knobs, an Sm90Tuning. The constructor and `dataclasses.replace` take knobs by their names too, and
               a knob can be read from the configuration: `config.overlap` is `config.tuning.overlap`

    Raises PlanError, naming the field and its known values; `Sm90Plan.derive` checks types and sizes.

    >>> config = Sm90Config((256, 224), cluster=(2, 1), group=4)
    >>> config.tile, config.tuning.group
    ((256, 224), 4)
    >>> Sm90Config((100, 64))
    Traceback (most recent call last):
        ...
    layoutgemm.errors.PlanError: 100 rows for 2 cooperative warpgroup(s): each takes a multiple of 64
    """

    tile: tuple[int, int]
    tile_k: int | None
    stages: int | None
    consumers: int
    schedule: str
    loader: str
    loaded_a_rows: int | None
    one_tile_per_cluster: bool
    cluster: tuple[int, int]
    launch: str
    store: str
    split: int
    staged_epilogue_k_tiles: int
    tuning: Sm90Tuning

    @not_in_graphs
    def __init__(
        self, tile: tuple[int, int] = (128, 256), tile_k: int | None = None, stages: int | None = None,
        consumers: int = 2, schedule: str = "cooperative", loader: str = "self", loaded_a_rows: int | None = None,
        one_tile_per_cluster: bool = False, cluster: tuple[int, int] = (1, 1), launch: str = "workers",
        store: str = "tma", split: int = 1, staged_epilogue_k_tiles: int = 0, tuning: Sm90Tuning = _USUAL, **knobs: Any,
    ) -> None:  # fmt: skip
        given = (
            tile, tile_k, stages, consumers, schedule, loader, loaded_a_rows, one_tile_per_cluster, cluster, launch,
            store, split, staged_epilogue_k_tiles, tuning,
        )  # fmt: skip
        for field, value in zip(fields(self), given, strict=True):
            object.__setattr__(self, field.name, value)
        knobs = _renamed(knobs)
        for name in knobs.keys() & _FORMER_FIELDS:
            object.__setattr__(self, name, knobs.pop(name))
        check_fields(self, staged_epilogue_k_tiles=0)
        if unknown := knobs.keys() - _KNOBS:
            raise TypeError(f"Sm90Config has no field {shown(min(unknown))}, and Sm90Tuning none either")
        if knobs:
            object.__setattr__(self, "tuning", replace(tuning, **knobs))
        self._check()

    if not TYPE_CHECKING:  # the package itself reads knobs from `tuning`

        def __getattr__(self, name: str) -> object:
            if name in _KNOBS:
                return getattr(self.tuning, name)
            if name in _FORMER:
                _warn_of_former(name)
                return getattr(self, _FORMER[name])
            raise AttributeError(f"Sm90Config has no field {name!r}")

    def tuned(self, **knobs: Any) -> Sm90Config:
        """The same kernel with some knobs changed.

        >>> Sm90Config().tuned(overlap=True).tuning.overlap
        True
        """
        return replace(self, tuning=replace(self.tuning, **_renamed(knobs)))

    @property
    def settings(self) -> dict[str, Any]:
        """Every field and every knob by name, as JSON has them. `Sm90Config(**settings)` is the configuration again.

        >>> Sm90Config(**Sm90Config(overlap=True).settings) == Sm90Config(overlap=True)
        True
        """
        return {**{name: getattr(self, name) for name in self.__slots__ if name != "tuning"}, **asdict(self.tuning)}

    def _check(self) -> None:
        """Raise PlanError for fields that do not go together."""
        _check_known(self, {"schedule": SCHEDULES, "loader": LOADERS, "store": STORES, "launch": LAUNCHES})
        blocks = self.cluster[0] * self.cluster[1] * self.split
        if blocks > MAX_CLUSTER:
            of = f" * {self.split} parts of K" if self.split > 1 else ""
            raise PlanError(
                f"{self.cluster[0]} * {self.cluster[1]}{of} = {blocks} blocks of a cluster: every GPU takes "
                f"{MAX_CLUSTER}, and a launch of more has to ask for it"
            )
        if self.schedule == "pingpong" and self.loader == "self":
            raise PlanError(
                "pingpong needs a loader of its own, 'warp' or 'warpgroup': a consumer that loads for both does not "
                "while it waits for its turn, and the other one's tile has more k tiles than there are stages"
            )
        if self.tuning.turn_last_pair and self.cluster != (2, 1):
            raise PlanError(f"turn_last_pair = True in clusters of {self.cluster}: pairs of CTAs along M, (2, 1), turn")
        if self.launch == "tiles" and self.schedule == "pingpong":
            raise PlanError("a grid of tiles leaves a block one tile, and pingpong takes two in turn: launch='workers'")
        if self.one_tile_per_cluster and (self.staged_epilogue_k_tiles or self.schedule == "pingpong"):
            raise PlanError("one tile a cluster leaves nothing to overlap with: no pingpong, no early stores")
        rows = self.loaded_a_rows
        if rows is not None and (not 0 < rows <= ROWS or rows % 8):
            raise PlanError(f"loaded_a_rows = {shown(rows)}: a multiple of 8 up to {ROWS}")
        if rows is not None and (self.tile[0] != ROWS or self.cluster != (1, 1)):
            raise PlanError(f"loaded_a_rows is for a tile of {ROWS} rows that no other block shares")
        if self.split > 1 and not self.one_tile_per_cluster:
            raise PlanError(
                "the parts of a split K exchange partial sums once: one tile a cluster, one_tile_per_cluster=True"
            )
        most = MAX_BESIDE_WARP if self.schedule == "sliced" or self.loader == "warp" else MAX_CONSUMERS
        if self.consumers > most:
            many = {MAX_CONSUMERS: "three", MAX_BESIDE_WARP: "four"}[most]
            raise PlanError(
                f"consumers = {self.consumers}: {many} warpgroups and a producer are all that a block holds"
            )
        if self.schedule == "pingpong" and self.consumers != 2:
            raise PlanError(f"pingpong takes two consumers in turn, not {self.consumers}")
        if self.tuning.blocks_per_sm > 1 and (self.loader == "warpgroup" or not self.one_tile_per_cluster):
            raise PlanError(
                f"blocks_per_sm = {self.tuning.blocks_per_sm} with loader = {shown(self.loader)}, one_tile_per_cluster "
                f"= {self.one_tile_per_cluster}: CTAs that share an SM have one tile each, and no setmaxnreg"
            )
        if self.schedule == "sliced":
            self._check_sliced()
        each = self.tile[0] // self.warpgroups_of_tile
        if each < ROWS or each % ROWS or self.tile[0] % self.warpgroups_of_tile:
            raise PlanError(
                f"{self.tile[0]} rows for {self.consumers} {self.schedule} warpgroup(s): each takes a multiple of "
                f"{ROWS}"
            )

    def _check_sliced(self) -> None:
        """Raise PlanError for warpgroups that cannot take K tiles in turn."""
        rows = self.tile[0] // ROWS
        if not rows or self.consumers % rows or self.consumers == rows:
            raise PlanError(
                f"sliced: {self.consumers} warpgroup(s) for {self.tile[0]} rows: each {ROWS} rows have the same "
                "number, two or more"
            )
        if self.loader == "self" or not self.one_tile_per_cluster:
            raise PlanError(
                "sliced: warpgroups meet once, behind a loader of their own: loader='warp', one_tile_per_cluster=True"
            )

    @property
    def slices(self) -> int:
        """Warpgroups that take a tile's K tiles in turn.

        >>> Sm90Config((128, 16), consumers=4, schedule="sliced", loader="warp", one_tile_per_cluster=True).slices
        2
        """
        return self.consumers // (self.tile[0] // ROWS) if self.schedule == "sliced" else 1

    @property
    def warpgroups_of_tile(self) -> int:
        """Warpgroups that share a tile's rows. In pingpong it is one, of slices those of one, else all consumers.

        >>> Sm90Config((128, 64), schedule="pingpong", loader="warp").warpgroups_of_tile
        1
        """
        return 1 if self.schedule == "pingpong" else self.consumers // self.slices

    @property
    def sources(self) -> int:
        """Partial sums of a tile that are brought together. They are of each part of K, and of each slice."""
        return self.split * self.slices

    @property
    def order_of_loads(self) -> str:
        """The operands in the order in which a stage's loads are issued.

        >>> Sm90Config().order_of_loads, Sm90Config(cluster=(2, 1)).order_of_loads, Sm90Config(first="B").order_of_loads
        ('AB', 'BA', 'BA')
        """
        first = self.tuning.first or ("B" if self.cluster[0] > 1 else "A")
        return "AB" if first == "A" else "BA"


def order_of(config: Sm90Config) -> Linear | Grouped:
    """The order of clusters: bands. Or that of a grid's blocks, whose number grows along its first dimension first."""
    tuning = config.tuning
    return Linear(tuning.along) if config.launch == "tiles" else Grouped(tuning.along, tuning.group)


def check_tiles(config: Sm90Config, across: tuple[int, int], batch: int, ragged: bool) -> None:
    """Raise PlanError for more tiles than a kernel counts or a grid holds."""
    tiles = (across[0] + batch) * across[1] if ragged else across[0] * across[1] * batch
    if config.launch == "tiles" and batch > 1:
        raise PlanError(f"batch = {batch}: a grid of tiles is that of one matrix; launch='workers' takes more")
    if config.launch == "tiles" and not config.tuning.gpc_order:
        other = "N" if config.tuning.along == "M" else "M"
        if across["MN".index(other)] > MAX_GRID_Y:
            raise PlanError(
                f"{across[0]} x {across[1]} tiles of clusters along M and N: a grid holds {MAX_GRID_Y} along its "
                f"second dimension, which is {other}; along={shown(other)}, or launch='workers'"
            )
    if tiles > MAX_TILES:  # of a ragged batch each group may end with a part of a tile
        of = f"({across[0]} + {batch}) * {across[1]}" if ragged else f"{across[0]} * {across[1]} * {batch}"
        raise PlanError(f"{of} = {tiles} tiles of clusters: a tile's number goes up to {MAX_TILES}")


def check_whole_rows(config: Sm90Config, columns: int, n: int, batch: int) -> None:
    """Raise PlanError for clusters without whole rows of C, or with several tiles.

    columns  of C in a tile;   n  of C

    >>> check_whole_rows(Sm90Config((128, 128), finish="cluster"), 128, 129, 1)
    Traceback (most recent call last):
        ...
    layoutgemm.errors.PlanError: finish = 'cluster': 1 CTA(s) of 128 columns have 128 of 129; finish='launch' takes any
    """
    if config.tuning.finish != "cluster":
        return
    across = config.cluster[1]
    if n > columns * across:
        raise PlanError(
            f"finish = 'cluster': {across} CTA(s) of {columns} columns have {columns * across} of {n}; "
            "finish='launch' takes any"
        )
    if across > 1 and (config.launch != "tiles" or batch > 1):
        raise PlanError("finish = 'cluster' of several CTAs: each has one tile, launch='tiles', and no batch")


def loader_threads(loader: str, numbers: bool) -> int:
    """Threads of a loader. Those of a warp that copies a main loop's numbers are beside the one that loads tiles.

    >>> [loader_threads(loader, numbers=True) for loader in LOADERS]
    [0, 64, 128]
    """
    return {"self": 0, "warp": WARP * (1 + numbers), "warpgroup": WARPGROUP}[loader]


def registers_of(
    config: Sm90Config, arch: Arch, threads: int, numbers: bool = False, waits: bool = False, gathers: bool = False
) -> tuple[int, int] | None:
    """The (producer's, consumers') registers after setmaxnreg, or None without it.

    numbers  a warp of the producer's copies a main loop's numbers, and holds the addresses of its own
    waits    the loader waits for other GPUs
    gathers  all threads of the producer's copy A, its rows or its strips

    Only whole warpgroups may execute it (PTX ISA, setmaxnreg): a loader that is one warp leaves registers as they are.
    Raises PlanError for counts that the instruction does not take.
    """
    if config.loader != "warpgroup" or launch_registers(arch, threads) >= 240:
        return None
    pool = threads * launch_registers(arch, threads) // WARPGROUP
    producer = _NUMBERS_REGISTERS if numbers else _WAITS_REGISTERS if waits else _PRODUCER_REGISTERS
    producer = _GATHER_REGISTERS if gathers else producer
    consumer = min((pool - producer) // config.consumers // 8 * 8, 240)
    for count in (producer, consumer):
        problem = setmaxnreg_problem(count)
        if problem:
            raise PlanError(problem)
    return producer, consumer
