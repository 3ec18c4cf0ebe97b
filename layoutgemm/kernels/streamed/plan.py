"""StreamedPlan: C = weights @ x for packed weights and up to eight rows of x.

It runs at the speed of reading the weights.

    cluster  a contiguous run of bands: of 1, 2 or 4 strips of 16 output features
    block    every `split`-th unit of 128 along K of its cluster's bands
    warp     every `warps`-th of its block's units
    lane     copies its own share of a unit into its own slot by cp.async, `slots` units ahead; loads and converts it,
             and multiplies with x from shared memory by mma.sync

Warps meet once for `strips` strips: each thread then adds the warps' sums of its elements, in the order of the warps,
and stores them. In a cluster of several blocks it sends them to the block that stores the strip. That adds what came,
in the order of the blocks, one meeting later. So equal calls give equal bits.

problem, StreamedConfig --> instruction, slots, lines of x, partial sums, shared-memory map
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

from ...arch import Arch, ArchName
from ...arch import arch as arch_named
from ...arguments import as_number, check_range, checked
from ...atoms import MmaAtom, mma_sync
from ...atoms.copy.base import VECTOR_BYTES, WARP
from ...errors import PlanError
from ...graph_marks import NoticedInGraphs
from ...layouts import Layout
from ..derive import Operand, OperandSpec
from ..epilogue.chain import Epilogue
from ..numbers import W
from ..partials import PartialResults
from ..plan import (
    BARRIER_BYTES,
    MAX_COORDINATE,
    GemmPlan,
    StoreSmemMap,
    check_fields,
    fitting_stages,
    launch_bytes,
    parameters_with,
    rounded_up,
    tile_count,
)
from ..quantized.blocks import QUARTERS, STRIP, PackedTile
from ..quantized.formats import FLOAT8, UNIT_K, UNIT_ROWS, QuantizedFormat
from ..quantized.order import PackedOrder
from ..quantized.packing import units_of
from .operands import COLUMNS, StreamedRows, StreamedWeights

BANDS = (1, 2, 4)
TYPES = ("bf16", "f16")
F32 = 4  # bytes of a sum
PAIR = 2  # neighbours along a row of C that a thread adds and stores
LANES_ROWS = 8  # neighbours along a column that a warp's lanes add: the rows of C that an mma.sync's lanes have
BUFFERS = 2  # of sums from other blocks: one is filled while the other is added
_GAP = 4  # floats from column to column beside the strip's: eight rows of four pairs of columns then lie in 32 banks


@dataclass(frozen=True, slots=True)
class StreamedConfig(NoticedInGraphs):
    """The configuration of a streamed product.

    warps          of a block: each takes every so-manieth of its units along K
    slots          units of a warp in flight, 2 or more
    strips         strips whose sums wait in shared memory until all warps meet
    blocks_per_sm  how many blocks a multiprocessor is to hold: bounds registers and shared memory
    overlap        programmatic dependent launch (sm_90 on): the kernel starts while the one before it drains
    prefetch       units of a warp that it then brings to L2; needs `overlap`
    band           strips that a warp multiplies with the same registers of x: 1, 2 or 4
    split          blocks of a cluster, which share K and each copy a part of x; a divisor of `strips`
    constant_weights  no kernel in flight writes the weights: their first units are copied before the kernel before has
                   ended, and only x waits for it. The caller's word, which nothing checks; needs `overlap`
    one_shift      int4 is converted by one shift a word in place of three
    """

    warps: int = 16
    slots: int = 4
    strips: int = 4
    blocks_per_sm: int = 1
    overlap: bool = False
    prefetch: int = 0
    band: int = 1
    split: int = 1
    constant_weights: bool = False
    one_shift: bool = False

    def __post_init__(self) -> None:
        check_fields(self, slots=2, prefetch=0)
        if self.band not in BANDS:
            raise PlanError(f"band = {self.band}: 1, 2 or 4 of the {QUARTERS} strips of a packed unit")
        for name in ("band", "split"):
            if self.strips % getattr(self, name):
                raise PlanError(
                    f"strips = {self.strips}: a multiple of {name} = {getattr(self, name)}, for whole ones wait"
                )
        if self.prefetch and not self.overlap:
            raise PlanError(f"prefetch = {self.prefetch} before the kernel before has ended: with overlap=True alone")
        if self.constant_weights and (self.prefetch or not self.overlap):
            raise PlanError(
                f"constant_weights with prefetch = {self.prefetch}, overlap = {self.overlap}: slots are filled before "
                "the kernel before has ended, with overlap=True and prefetch=0 alone"
            )


@dataclass(frozen=True, slots=True)
class StreamedSmem(StoreSmemMap):
    """The map of shared memory. Slots warp by warp, x, the sums of `strips` strips, and sums from other blocks.

    It has no mbarriers.
    """

    received_offset: int
    received_bytes: int


@dataclass(frozen=True)
class StreamedPlan(GemmPlan):
    """A product of packed weights A and up to eight columns of B; see `derive`.

    The kernel is compiled for its k and for 1, 2, 4 or 8 rows of x, and takes any m up to that.
    """

    m: int
    n: int
    k: int
    arch: Arch
    a: StreamedWeights
    b: StreamedRows
    c: Operand
    mma: MmaAtom
    tile: tuple[int, int, int]
    stages: int
    smem: StreamedSmem
    weights: QuantizedFormat
    config: StreamedConfig = field(default_factory=StreamedConfig)
    epilogue: Epilogue = field(default_factory=Epilogue)
    batch: int = 1
    verbs = GemmPlan.verbs | {
        "check": "streamed.checks:check_streamed",
        "emulate": "run.emulated:emulate_launch",
        "execute": "streamed.reference:execute_streamed",
        "explain": "streamed.explain:explain_streamed",
    }

    @classmethod
    @checked(PlanError)
    def derive(
        cls,
        m: int,
        n: int,
        k: int,
        *,
        weights: QuantizedFormat,
        arch: ArchName = "sm_90a",
        a: OperandSpec = "bf16",
        b: OperandSpec | None = None,
        c: OperandSpec | None = None,
        config: StreamedConfig | None = None,
        epilogue: Epilogue | None = None,
    ) -> StreamedPlan:
        """Derive the kernel of C[m, n] = weights[m, k] @ B[k, n].

        m, n, k   output features, rows of x (1 to 8), and depth
        weights   the format of A, packed for the type of a
        a, b, c   a and b bf16 or f16, b ":col": rows of x with K contiguous; c bf16, f16 or f32, ":col"
        epilogue  `weights.epilogue(*steps, axis="m")`, None for no steps

        Raises PlanError naming the argument and the arithmetic when no such kernel exists.

        >>> plan = StreamedPlan.derive(8192, 1, 8192, weights=QuantizedFormat("int4", 128))
        >>> str(plan).partition(", tile ")[2]
        '16x8x128, 16 warps of 4 slots, int4 in groups of 128'
        """
        config, target = config or StreamedConfig(), arch_named(arch)
        check_range(PlanError, MAX_COORDINATE, f"it is 1 to {MAX_COORDINATE}", m=m, k=k)
        check_range(PlanError, COLUMNS, f"a streamed product has 1 to {COLUMNS} rows of x", n=n)
        a_spec, b_spec, c_spec = _operands(a, b, c)
        weights.check_depth(k)
        _check_epilogue(weights, Epilogue() if epilogue is None else epilogue)
        if config.overlap:
            target.require("griddepcontrol", "overlap=True")
        if config.split > 1:
            target.require("cluster", f"split={config.split}")
            if config.split > target.cluster_portable:
                raise PlanError(f"split = {config.split}: a cluster has up to {target.cluster_portable} blocks")
        if (threads := WARP * config.warps) > target.threads_per_block:
            raise PlanError(f"{config.warps} warps are {threads} threads; a block has {target.threads_per_block}")
        order, atom = PackedOrder(weights, a_spec.dtype.name), mma_sync((STRIP, COLUMNS, 16), a_spec.dtype)
        tile = PackedTile((UNIT_ROWS, UNIT_K), order.unit_bytes)
        left = StreamedWeights(order, tile, a_spec.dtype, band=config.band, by_shift=config.one_shift)
        turns = tile_count(tile_count(k, UNIT_K), config.warps * config.split)
        right = StreamedRows(b_spec.dtype, 1 << (n - 1).bit_length(), turns * config.warps * UNIT_K, atom)
        smem = _map(target, left, right, config)
        return cls(
            m=m, n=n, k=k, arch=target, a=left, b=right, c=c_spec, mma=atom, tile=(STRIP, COLUMNS, UNIT_K),
            stages=config.slots, smem=smem, weights=weights, config=config, epilogue=epilogue or Epilogue(),
        )  # fmt: skip

    def for_any_size(self) -> StreamedPlan:
        """The plan of the same kernel for one feature and all its rows of x. k stays.

        >>> of_rows = [StreamedPlan.derive(64, n, 2048, weights=QuantizedFormat("int4", 128)) for n in (3, 4, 5)]
        >>> [plan.for_any_size().n for plan in of_rows]
        [4, 4, 8]
        """
        return replace(self, m=1, n=self.b.rows)

    # ------------------------------------------------------------------------------------------------ the launch
    @property
    def parameters(self) -> dict[str, str]:
        """The launch parameters, name -> kind, in order; sixteen words, the first the epilogue's."""
        return parameters_with(self.words)

    @property
    def words(self) -> tuple[str, ...]:
        """Names of the epilogue's 64-bit parameters."""
        return self.epilogue.words

    @property
    def partials(self) -> tuple[PartialResults, ...]:
        """Partial results of an epilogue's reductions: none."""
        return ()

    @property
    def device_kernel(self) -> str:
        """The kernel's class in device code."""
        return "streamed.device.kernel:StreamedKernel"

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return WARP * self.config.warps

    @property
    def launch_bytes(self) -> int:
        """Bytes of shared memory that a launch asks for: see `kernels.plan.launch_bytes`.

        Four unlike products in turn, one row of x, took 33.5 us in place of 51.6 by it.

        >>> from layoutgemm import QuantizedFormat
        >>> int4, config = QuantizedFormat("int4", 128), StreamedConfig(overlap=True)
        >>> plan = StreamedPlan.derive(8192, 1, 4096, weights=int4, config=config)
        >>> plan.smem.total, plan.launch_bytes
        (86032, 115713)
        """
        return launch_bytes(self.arch, self.smem.total, self.config.overlap, self.config.blocks_per_sm)

    @property
    def fused(self) -> bool:
        """True if differences and products of conversions are fused multiply-adds. Before sm_90 bf16 has no others."""
        return self.a.packing.activations == "bf16" and "griddepcontrol" not in self.arch.features

    # ------------------------------------------------------------------------------------------------ who does what
    @property
    def tiles(self) -> tuple[int, int]:
        """Strips, and tiles of rows: one."""
        return tile_count(self.m, STRIP), 1

    @property
    def cluster_size(self) -> int:
        """Blocks of a cluster."""
        return self.config.split

    @property
    def bands(self) -> int:
        """Bands of C."""
        return tile_count(self.m, STRIP * self.config.band)

    @staticmethod
    @checked(PlanError)
    def share(cluster: W, clusters: W, bands: W, least: Callable[..., W] = min) -> tuple[W, W]:
        """(first band, band behind the last) of a cluster. Runs that differ by one band at most.

        >>> [StreamedPlan.share(cluster, 3, 8) for cluster in range(3)]
        [(0, 3), (3, 6), (6, 8)]
        """
        clusters = as_number(clusters, "clusters", PlanError, least=1)
        each, more = bands // clusters, bands % clusters
        return cluster * each + least(cluster, more), (cluster + 1) * each + least(cluster + 1, more)

    @property
    def units(self) -> int:
        """Units along K."""
        return units_of(1, self.k)[1]

    @property
    def turns(self) -> int:
        """Units of a warp for a band; zeros beyond K."""
        return self.b.depth // UNIT_K // self.config.warps

    def place_of(self, warp: W, turn: W) -> W:
        """The place of a warp's unit of a turn among the block's own."""
        return warp + turn * self.config.warps

    def unit_of(self, warp: W, turn: W, part: W) -> W:
        """The unit along K of a warp's turn, in that block of the cluster."""
        return self.place_of(warp, turn) * self.config.split + part

    @property
    def groups_of_x(self) -> int:
        """Groups of copies of x alone, behind those of the first slots. 0 where x comes with the weights."""
        return int(self.config.constant_weights)

    def item(self, number: W) -> tuple[W, W]:
        """(bands further on, turn) of a warp's unit with that number."""
        return number // self.turns, number % self.turns

    def slot(self, warp: W, slot: W) -> W:
        """The first byte of a warp's slot."""
        return self.smem.a_offset + (warp * self.config.slots + slot) * self.a.slot_bytes

    @property
    def smem_regions(self) -> list[tuple[str, int, int, int | None, str, str]]:
        """(name, first byte, bytes, number, note, numbered thing) of each region of shared memory."""
        smem, config, own = self.smem, self.config, self.stages * self.a.slot_bytes
        said = f"{self.stages} slots of {self.a.slot_bytes} bytes for each warp"
        slots = [("slots", int(self.slot(w, 0)), own, w, said, "warp") for w in range(config.warps)]
        sums = [("sums", smem.c_offset + s * smem.c_buffer_bytes, smem.c_buffer_bytes, s, "of all warps", "strip")
                for s in range(config.strips)]  # fmt: skip
        x = ("x", smem.b_offset, self.b.bytes, None, f"{self.b.rows} line(s) of {self.b.depth}", "stage")
        buffer = smem.received_bytes // BUFFERS
        received = [("received", smem.received_offset + i * buffer, buffer, i, "sums of the cluster's blocks", "buffer")
                    for i in range(BUFFERS if buffer else 0)]  # fmt: skip
        return [*slots, x, *sums, *received]

    # ------------------------------------------------------------------------------------------------ sums of warps
    @property
    def column_pitch(self) -> int:
        """Sums from column to column of a strip."""
        return _column_pitch(self.b.rows)

    @cached_property
    def sums(self) -> Layout:
        """(row of a strip, column, warp, strip) -> float32 among the sums."""
        columns, warps, pitch = self.b.rows, self.config.warps, self.column_pitch
        shape = STRIP, columns, warps, self.config.strips
        return Layout(shape, (1, pitch, pitch * columns, pitch * columns * warps))

    @property
    def band_registers(self) -> int:
        """Sums of a lane for a band."""
        return self.config.band * self.mma.accumulator_registers

    @property
    def own_strips(self) -> int:
        """Strips of `strips` that a block of the cluster stores."""
        return self.config.strips // self.config.split

    @cached_property
    def received(self) -> Layout:
        """(row of a strip, column, sender, own strip, buffer) -> float32 among received sums."""
        columns, split, own, pitch = self.b.rows, self.config.split, self.own_strips, self.column_pitch
        block = pitch * columns
        return Layout((STRIP, columns, split, own, BUFFERS), (1, pitch, block, block * split, block * split * own))

    @cached_property
    def rows_of_sums(self) -> tuple[int, ...]:
        """The row, 0 or 1, of each of a lane's sums, in the order of the scales.

        >>> from layoutgemm import QuantizedFormat
        >>> StreamedPlan.derive(64, 1, 128, weights=QuantizedFormat("int4", 128)).rows_of_sums
        (0, 0, 1, 1)
        """
        rows = [int(self.mma.coords_C(0, v)[0]) for v in range(self.mma.accumulator_registers)]
        own = sorted({int(self.a.packing.scales(row, 0, 0, 0)) for row in range(len(set(rows)))})
        return tuple([own.index(row) for row in rows])

    @property
    def pairs(self) -> int:
        """Pairs of columns of a strip that are added. Some may be of no row of x."""
        return max(1, self.b.rows // PAIR)

    def values_of(self, strips: int) -> int:
        """Values of a thread when all threads add the sums of `strips` strips. Pairs, some of no element."""
        return PAIR * tile_count(strips * STRIP * self.pairs, self.threads)

    @property
    def accumulator_registers(self) -> int:
        """Values of a thread when it stores."""
        return self.values_of(self.own_strips)

    def coords_C(self, thread: W, value: int) -> tuple[W, W]:
        """(thread, value) -> (row, column) of strips: neighbours in a row are a thread's.

        The lanes of a warp have eight rows, then pairs of columns, as those of an mma.sync.
        """
        number, pairs = thread + value // PAIR * self.threads, self.pairs
        row, pair, half = number % LANES_ROWS, number // LANES_ROWS % pairs, number // (LANES_ROWS * pairs)
        return row + half * LANES_ROWS, pair * PAIR + value % PAIR

    def __str__(self) -> str:
        head = self.described(f" {self.arch.name}")
        config = self.config
        rest = [f"{config.warps} warps of {self.stages} slots", *[f"bands of {config.band} strips"] * (config.band > 1)]
        rest += [f"K in {config.split} parts"] * (config.split > 1)
        return ", ".join([head, *rest, str(self.weights)])


def _operands(a: OperandSpec, b: OperandSpec | None, c: OperandSpec | None) -> tuple[Operand, Operand, Operand]:
    """The operands; raises PlanError for others than a streamed product has."""
    left = Operand.parse(a)
    right = Operand.parse(Operand(left.dtype, "col") if b is None else b)
    out = Operand.parse(Operand(left.dtype, "col") if c is None else c)
    if left.dtype.name in FLOAT8 or right.dtype.name in FLOAT8:
        raise PlanError(f"a is {left.dtype} and b {right.dtype}: streamed products are of {' and '.join(TYPES)}")
    if left.dtype.name not in TYPES or right.dtype != left.dtype:
        raise PlanError(f"a is {left.dtype} and b {right.dtype}: packed weights become bf16 or f16, as b is")
    if right.order != "col" or left.order != "row":
        raise PlanError(f"a is {left} and b {right}: a streamed product takes K contiguous, a 'row' and a 'col'")
    if out.dtype.name not in ("bf16", "f16", "f32") or out.order != "col":
        raise PlanError(f"c is {out}: a streamed product stores bf16, f16 or f32, 'col', since x's rows are columns")
    return left, right, out


def _check_epilogue(weights: QuantizedFormat, epilogue: Epilogue) -> None:
    weights.check_epilogue(epilogue)
    for step in epilogue.reductions:
        raise PlanError(f"{step.name}: {type(step).__name__} reduces C, and a streamed product has no reductions")
    for group in epilogue.groups:
        raise PlanError(f"{group}: x's rows are columns of a streamed product, and a thread has none of C's neighbours")
    if (last := epilogue.quantizes) is not None:
        raise PlanError(f"{type(last).__name__} scales groups of C's columns; a streamed product has at most {COLUMNS}")


def _column_pitch(rows: int) -> int:
    """Sums from column to column of a strip. Fewer than eight columns take the fewest bytes."""
    return STRIP + (_GAP if rows >= COLUMNS else 0)


def _map(target: Arch, a: StreamedWeights, b: StreamedRows, config: StreamedConfig) -> StreamedSmem:
    """The map; raises PlanError where it does not fit."""
    x = rounded_up(b.bytes, VECTOR_BYTES)
    strip = _column_pitch(b.rows) * b.rows * F32
    sums = config.warps * strip
    received = BUFFERS * config.strips * strip if config.split > 1 else 0
    each, beside = config.warps * a.slot_bytes, x + config.strips * sums + received
    taken = f"{each} bytes for {config.warps} warps beside x {x} and sums {config.strips * sums + received}"
    fitting_stages(target, config.slots, 1, each, beside, taken, blocks_per_sm=config.blocks_per_sm)
    end = config.slots * each
    total = end + beside
    return StreamedSmem(
        a_offset=0, a_stage_bytes=each, b_offset=end, b_stage_bytes=x, c_offset=end + x, c_buffer_bytes=sums,
        received_offset=total - received, received_bytes=received,
        barrier_offset=total, barrier_bytes=BARRIER_BYTES, total=total, alignment=VECTOR_BYTES,
    )  # fmt: skip
