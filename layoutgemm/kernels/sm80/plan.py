"""Sm80Plan: the objects of the mma.sync kernel, for Ampere and later. They are derived from a problem.

problem, Sm80Config --> mma.sync atom, tiles of A and B, cp.async maps, fragment loads, store, order of tiles,
                        shared-memory map, pipeline

B may be packed weights of 4 and 8 bits: `kernels.sm80.quantized`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...arch import MAX_GRID, Arch, ArchName, with_feature
from ...arch import arch as arch_named
from ...arguments import check_range, checked, shown
from ...atoms import MmaAtom, mma_sync
from ...atoms.copy.base import WARP
from ...atoms.mma.base import NARROW
from ...atoms.targets import exists_on
from ...dtypes import u8
from ...errors import PlanError
from ...graph_marks import NoticedInGraphs
from ...schedule import Grouped, Schedule
from ..column_groups import check_groups
from ..derive import Operand, OperandSpec, check_pair, memory_unit, refused_output
from ..epilogue.chain import Epilogue
from ..indexed.added_rows import check_added
from ..indexed.rows import IndexedRows, check_rows_lie
from ..numbers import W
from ..operands.block_scales import NAMES, ScaleFormat, check_lines, scale_format
from ..operands.combinations import SUMS, Asked, check_parts
from ..operands.combined import Combined
from ..operands.gated import check_sums, combination, epilogue_behind
from ..operands.pair import SecondPair, pair_of
from ..operands.product import SideBySide
from ..operands.prologue import Prologue, check_types
from ..operands.promoted import Promoted
from ..operands.thread_numbers import PromotingPlan, check_promotes
from ..orders import Order, unmirrored
from ..partials import PartialResults, ReducingPlan, check_reductions, partials_of
from ..plan import (
    BARRIER_BYTES,
    BATCH_PARAMETERS,
    DEFAULT_STAGES,
    LEAST_STAGES,
    MAX_COORDINATE,
    PERSISTENT_PARAMETERS,
    GemmPlan,
    StoreSmemMap,
    check_epilogue,
    check_fields,
    check_words,
    fitting_stages,
    parameters_with,
    present,
    rounded_up,
    stage_depth,
    tile_count,
)
from ..quantized.formats import UNIT_K, QuantizedFormat
from ..quantized.order import WORDS
from ..ragged import AlongK, Ragged
from .block_scales import SCALED_K, Sm80Scales, check_scales, scaled_atom, scales_of
from .fragment import WarpFragment
from .groups import check_groups as check_groups_of
from .groups import launched_rows
from .narrow import check_narrow, check_padded, narrow_types
from .operand import Sm80Operand, by_tensor_copy, derive_operand
from .promoted import promoted_of
from .quantized.experts import check_experts
from .quantized.operand import Sm80PackedOperand, check_packed, packed_b
from .quantized.split import SPLIT_SUMS, SplitK, split_of
from .store import BUFFERS, Sm80Store

ARCHES = with_feature("mma.sync")  # every architecture has the kernel's instruction
LOADS = ("cp.async", "tma")
_STORED_FLOATS = ("f32", "bf16", "f16")  # types of C
_EIGHT_BITS = ("e4m3", "e5m2")  # from sm_89 on, which converts to them


def stored_floats(target: str) -> tuple[str, ...]:
    """The types of floats that mma.sync's kernel stores on an architecture.

    >>> stored_floats("sm_80"), stored_floats("sm_120a")[3:]
    (('f32', 'bf16', 'f16'), ('e4m3', 'e5m2'))
    """
    return _STORED_FLOATS + _EIGHT_BITS * ("mma.sync.e4m3" in arch_named(target).features)


ALIGNMENTS = (16, 8, 4, 2, 1)
MAX_BATCH = MAX_GRID[2]  # a matrix of the batch is a place along z
_INSTRUCTIONS = {"bf16": "m16n8k16", "f16": "m16n8k16", "tf32": "m16n8k8",
                 "e4m3": "m16n8k32", "e5m2": "m16n8k32", "i8": "m16n8k32", "u8": "m16n8k32"}  # fmt: skip
_STAGE_BYTES_OF_K = 64
OperandOfB = Sm80Operand | Sm80PackedOperand


@dataclass(frozen=True, slots=True)
class Sm80Config(NoticedInGraphs):
    """The configuration; None lets the plan choose.

    tile       (M, N) elements of C of a block
    tile_k     depth of a stage in elements; default 64 bytes
    stages     k tiles in the ring, 2 or more; default as many as fit, up to 4
    warps      along M and N: each multiplies a contiguous part of the tile
    group      tiles of a band of the tile order, and `along` which the bands lie: "M" or "N"
    blocks_per_sm   how many blocks a multiprocessor is to hold: bounds registers and shared memory
    ahead      take a depth's fragments while the one before it is multiplied, across k tiles too; False leaves their
               registers to larger tiles
    persistent a block takes tile after tile, and copies run on into the next one; of one product, by cp.async
    split      parts of K of packed weights: each has blocks of its own, and a second launch adds their sums in order
    loads      "cp.async" by all threads, or "tma": one thread issues tensor copies (sm_90 on)
    stmatrix   put C's fragments into shared memory by stmatrix (sm_90 on, 16-bit outputs)
    align      bytes that addresses, pitches and the distance of a batch's matrices are multiples of, for A, B and C:
               16, 8 or 4 give vectors of that size, 2 and 1 accesses of single elements
    """

    tile: tuple[int, int] = (128, 256)
    tile_k: int | None = None
    stages: int | None = None
    warps: tuple[int, int] = (2, 4)
    group: int = 16
    along: str = "M"
    blocks_per_sm: int = 1
    ahead: bool = True
    persistent: bool = False
    split: int = 1
    loads: str = "cp.async"
    stmatrix: bool = False
    align: tuple[int, int, int] = (16, 16, 16)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.loads not in LOADS:
            raise PlanError(f"loads = {shown(self.loads)}: known are {', '.join(map(repr, LOADS))}")
        if self.persistent and self.loads != "cp.async":
            raise PlanError("a persistent kernel copies by cp.async")
        if self.loads == "tma" and self.align[:2] != (16, 16):
            raise PlanError(f"tensor copies take A and B aligned to 16 bytes; align = {shown(self.align)}")
        if self.along not in ("M", "N"):
            raise PlanError(f"along = {shown(self.along)}: known are 'M', 'N'")
        for bytes_ in self.align:
            if bytes_ not in ALIGNMENTS:
                raise PlanError(f"align = {shown(self.align)}: each is one of {', '.join(map(str, ALIGNMENTS))} bytes")


PACKED = Sm80Config((64, 128), UNIT_K, None, (1, 4), 8)  # of packed weights, where none is given


@dataclass(frozen=True, slots=True)
class Sm80Smem(StoreSmemMap):
    """The map of an Ampere kernel's shared memory.

    A stage holds a tile of A and one of B. C's buffers lie over the stages, which are free
    when C is stored, or behind them in a persistent kernel. TMA loads have an mbarrier a stage behind them.

    scales_offset  of the block scales in a stage, behind B; of a plan that has none, that of the next tile
    """

    scales_offset: int = 0


@dataclass(frozen=True, kw_only=True)
class Sm80Plan(PromotingPlan, ReducingPlan, GemmPlan, Asked):
    """C[l, M, N] = A[l, M, K] @ B[l, K, N] by mma.sync. See `derive` and Sm80Config.

    b         an Sm80Operand; an Sm80PackedOperand where B is packed weights
    weights   the format of B where it is packed weights, or None; see `kernels.sm80.quantized`
    split     the parts of K, or None; see `kernels.sm80.quantized.split`
    scales    the block scales, or None; see `kernels.sm80.block_scales`

    What is asked for beyond a plain product are the fields of `Asked`, as `derive` explains them; n is C's columns.
    """

    m: int
    n: int
    k: int
    arch: Arch
    a: Sm80Operand
    b: Any
    c: Operand
    mma: MmaAtom
    tile: tuple[int, int, int]
    stages: int
    warps: tuple[int, int]
    store: Sm80Store
    order: Schedule
    smem: Sm80Smem
    config: Sm80Config = field(default_factory=Sm80Config)
    epilogue: Epilogue = field(default_factory=Epilogue)
    split: SplitK | None = None
    scales: Sm80Scales | None = None
    operand_path = "run.ampere:BY_LINES"
    verbs = GemmPlan.verbs | {
        "check": "sm80.checks:check_sm80",
        "emulate": "run.emulated:emulate_launch",
        "execute": "sm80.reference:execute_sm80",
        "explain": "sm80.explain:explain_sm80",
    }

    @property
    def parameters(self) -> dict[str, str]:
        """The launch parameters, name -> kind, in order; `workers` bounds a persistent grid.

        Sixteen words follow where it `takes_words`: the epilogue's, the order's, then anything.
        """
        if self.takes_words:
            return parameters_with(self.words)
        return PERSISTENT_PARAMETERS if self.config.persistent else BATCH_PARAMETERS

    @property
    def words(self) -> tuple[str, ...]:
        """Names of the 64-bit parameters: the epilogue's, further operands', the order of tiles', row indices'. Block
        scales' are the last."""
        groups = () if self.mainloop is None else self.mainloop.words
        groups += () if self.groups is None else self.groups.words
        own = (SPLIT_SUMS,) * (self.split is not None)
        own += () if self.prologue is None else self.prologue.words
        own += () if self.scales is None else NAMES
        return (*self.epilogue.words, *groups, *self.operand_words, *self.order.words, *self.index_words, *own)

    @property
    def split_bytes(self) -> int:
        """Bytes of device memory of the parts' sums. 0 of a K that is not split.

        >>> weights, config = QuantizedFormat("int4", 128), Sm80Config((16, 64), 128, warps=(1, 4), split=2)
        >>> Sm80Plan.derive(16, 8192, 8192, weights=weights, config=config).split_bytes
        1048576
        """
        return 0 if self.split is None else int(self.order.count(self.tiles)) * self.split.tile_bytes

    @property
    def workspace(self) -> int:
        """Bytes of device memory for partial results, added rows, and parts of K."""
        return super().workspace + self.split_bytes

    @property
    def takes_words(self) -> bool:
        """True if the kernel has parameters for an epilogue, an order's words, or row indices."""
        return (
            any(part is not None for part in (self.weights, self.prologue)) or bool(self.epilogue) or bool(self.words)
        )

    @property
    def partials(self) -> tuple[PartialResults, ...]:
        """The partial results of the epilogue's reductions: of a warp's columns, and of its rows."""
        return partials_of(self.epilogue, self.warp_columns, rows=self.a.warp_extent, joined=self.joined_rows)

    @property
    def fragment(self) -> WarpFragment:
        """The map of a warp's accumulators."""
        return WarpFragment(self.store, (self.blocks[0], self.blocks[1] // self.sums))

    @classmethod
    @checked(PlanError)
    def derive(
        cls,
        m: int,
        n: int,
        k: int,
        *,
        arch: ArchName = "sm_80",
        a: OperandSpec = "bf16",
        b: OperandSpec | None = None,
        c: OperandSpec | None = None,
        batch: int = 1,
        config: Sm80Config | None = None,
        order: Order | None = None,
        weights: QuantizedFormat | None = None,
        epilogue: Epilogue | None = None,
        indexed: IndexedRows | None = None,
        gated: Combined | str | None = None,
        pair: SecondPair | int | None = None,
        experts: Ragged | None = None,
        prologue: Prologue | None = None,
        ragged: Ragged | None = None,
        along_k: AlongK | None = None,
        mainloop: Promoted | None = None,
        scales: ScaleFormat | str | None = None,
    ) -> Sm80Plan:
        """Derive the kernel of `batch` products C[m, n] = A[m, k] @ B[k, n].

        m, n, k  any positive sizes: what lies beyond is filled with zeros on load and guarded on store
        arch     the target of the code, by any of its names; see `layoutgemm.arch`
        a, b     bf16, f16, tf32 (f32 in memory, of which the instruction reads the upper 19 bits), i8, u8, and from
                 sm_89 on e4m3, e5m2; ":row" (default) or ":col". b defaults to a's type, row-major. From sm_120a on
                 e3m2, e2m3 and e2m1 too, mixed at will with each other, e4m3 and e5m2: a "row" A and a "col" B of
                 these, and K a multiple of 16
        c        f32, bf16 or f16 of float inputs (default: the inputs' type where it has 16 bits, else f32), i32 of
                 integer ones, and these floats behind an epilogue; row-major
        batch    matrices
        order    the order of tiles, of all or some of them, as for `Sm90Plan.derive`, but for "symmetric"
        weights  B is packed weights of that format, of n output features: a is bf16 or f16, b the same and "col"
        epilogue what happens to the sums before they are stored, as in a Hopper kernel: see `kernels.epilogue`; with
                 packed weights `weights.epilogue(*steps, axis="n")`
        indexed  A's rows are gathered, or C's scattered, through vectors of indices; m is the product's rows, and a
                 batch has m indices for each matrix
        gated    a Combined, of two to four matrices B, or the name of a gate, whose B has 2n columns; as for
                 `Sm90Plan.derive`
        pair     K of a second pair of matrices, whose product is added, likewise
        experts  `Ragged.of(batch)`: A's m rows are as many groups, each times the packed weights of its own expert
        prologue a function of A's elements, in registers before they are multiplied: see `kernels.operands.prologue`
        ragged, along_k  groups of rows, masked ones, or groups along K, `batch` of them, as for `Sm90Plan.derive`: see
                 `kernels.sm80.groups`
        mainloop what happens to the sum of each K block, where it is more than added: see `kernels.operands.promoted`
        scales   "mxfp8" (a and b e4m3 or e5m2), "mxf8f6f4" (those, e3m2, e2m3 and e2m1, mixed at will), "mxfp4" or
                 "nvfp4" (both e2m1): a factor for every 32 elements of K, or 16, of each row of A and column of B, from
                 sm_120a on; a "row" A and a "col" B. The launch's last words
                 are the factors, "scale_a" and "scale_b". See `kernels.operands.block_scales`

        Raises PlanError naming the argument and the arithmetic when no such kernel exists, and passes on AtomError.

        >>> print(Sm80Plan.derive(4096, 4096, 4096, b="bf16:col"))
        Sm80Plan 4096x4096x4096 sm_80: A bf16 row, B bf16 col, C bf16 row-major, tile 128x256x32, 4 stages, 2x4 warps
        """
        config = config or (Sm80Config() if weights is None else PACKED)
        target = arch_named(arch)
        _check_sizes((m, n, k), batch)
        b, config = _checked_packed(weights, experts, (m, k, batch), config, (a, b), epilogue)
        second = pair_of(pair, sums := combination(gated))
        epilogue = epilogue_behind(sums, epilogue)
        a_spec, b_spec, atom, form = _typed(a, b, target, scales, k)
        c_spec = _output(c, a_spec, atom, bool(epilogue) or sums is not None, target.name)
        _check_stored(epilogue, mainloop, atom, c_spec)
        _check_rows(indexed, (a_spec, c_spec), config, weights, epilogue, batch == 1 and ragged is None)
        tile_k = _stage_depth(config, mainloop, form, a_spec, atom)
        threads = _checked_threads(config, target, batch)
        asked = Asked(
            gated=sums, pair=second, indexed=indexed, batch=batch, weights=weights, prologue=prologue, ragged=ragged,
            along_k=along_k, epilogue=epilogue, mainloop=mainloop,
        )  # fmt: skip
        mainloop = promoted_of(mainloop, asked, config, n)
        _check_asked(asked, (a_spec, b_spec), config, order, form)
        vectors = _vectors(config.align, (a_spec, b_spec, c_spec))
        (tile_m, tile_n), (along_m, along_n) = config.tile, config.warps
        a_plan, b_plan = _operand_plans((a_spec, b_spec, c_spec), config, tile_k, (threads, *vectors), atom, asked)
        columns = tile_n // (along_n * (1 if sums is None else sums.matrices))
        store = Sm80Store.derive(atom, columns, c_spec, vectors[2], (a_plan.mn_order, b_plan.mn_order), config.stmatrix)
        factors = scales_of(form, atom, (tile_m, tile_n, tile_k), config.warps)
        stages, smem = _ring(target, a_plan, b_plan, store, config, factors)
        schedule = _schedule(order, (tile_m, columns * along_n), config, (m, n), weights)
        sums_of_lane = tile_m // along_m * (tile_n // along_n) // WARP
        split = split_of(config.split, threads, sums_of_lane, tile_count(k, tile_k), weights)
        made = cls(
            m=m, n=n, k=k, batch=batch, arch=target, a=a_plan, b=b_plan, c=c_spec, mma=atom, indexed=indexed,
            split=split, experts=experts, tile=(*config.tile, tile_k), stages=stages, warps=config.warps, store=store,
            order=schedule, smem=smem, config=config, weights=weights, epilogue=epilogue, gated=sums, pair=second,
            prologue=prologue, ragged=ragged, along_k=along_k, mainloop=mainloop, scales=factors,
        )  # fmt: skip
        return _checked_plan(made)

    # ------------------------------------------------------------------------------------------------ what is asked for
    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps[0] * self.warps[1]

    @property
    def launched_tiles(self) -> tuple[int, int]:
        """The grid of a launch: the tiles. Of groups of rows the numbers of all groups' tiles, some without rows."""
        return launched_rows(self, self.m, self.batch, tile_count), self.tiles[1]

    @property
    def numbers_tiles(self) -> bool:
        """True if groups of rows of one matrix have tiles of their own: see `sm80.groups`."""
        return self.joined_rows or self.experts is not None

    @property
    def leaves_rows(self) -> bool:
        """True if rows of C may be in no group. The kernel leaves them."""
        return self.groups is not None and self.groups.leaves_rows

    def stored_rows(self, values: Mapping[str, Any]) -> Any:
        """The rows of C that are stored. None for all, and for masked groups.

        values  that the plan reads, by name
        """
        rows = super().stored_rows(values)
        if not self.leaves_rows:
            return rows
        last = int(values[present(self.groups).name][-1])
        return np.arange(last) if rows is None else rows[:last]

    @property
    def matrices_of_c(self) -> int:
        """Matrices of C: one for each product; one of all groups of rows."""
        return 1 if self.numbers_tiles else self.batch

    @property
    def steps(self) -> int:
        """Depths of the instruction in a k tile."""
        return self.tile[2] // self.mma.shape_mnk[2]

    @property
    def blocks(self) -> tuple[int, int]:
        """Instructions of a warp along M and N."""
        m, n, _ = self.mma.shape_mnk
        return self.a.warp_extent // m, self.b.warp_extent // n

    @property
    def warp_columns(self) -> int:
        """Columns of C of one warp. Of several sums, they are their share of the columns that it multiplies."""
        return int(self.b.warp_extent) // self.sums

    def warp_place(self, warp: W) -> tuple[W, W]:
        """Which part of the tile a warp multiplies: its number along M and along N."""
        return warp % self.warps[0], warp // self.warps[0]

    @property
    def products(self) -> tuple[tuple[int, int], ...]:
        """(block along M, block along N) of a depth's products, in order. Neighbours share B, and at the turns A."""
        m, n = self.blocks
        return tuple((i if j % 2 == 0 else m - 1 - i, j) for j in range(n) for i in range(m))

    @property
    def packed_registers(self) -> int:
        """Registers of a thread's packed words and scales; 0 without packed weights."""
        if self.weights is None:
            return 0
        return self.b.pieces * (WORDS + (self.b.packing.scale_words if self.b.groups else 0))

    @property
    def scale_registers(self) -> int:
        """Registers of a thread's words of block scales; 0 without them."""
        return 0 if self.scales is None else self.scales.registers(0) + self.scales.registers(1)

    @property
    def full_bytes(self) -> int:
        """Bytes that a stage's mbarrier expects: both tiles' TMA loads."""
        return sum(operand.tma.bytes for operand in (self.a, self.b) if operand.tma is not None)

    @property
    def device_kernel(self) -> str:
        """The kernel's class in device code."""
        if self.groups is not None:
            kind = "Prologue" if self.prologue is not None else "Indexed" if self.indexed is not None else "Plain"
            return f"sm80.device.grouped:Sm80{'Experts' if self.experts is not None else kind}Groups"
        if self.indexed is not None:
            persistent = "Persistent" * self.config.persistent
            name = "Sm120IndexedKernel" if self.config.loads == "tma" else f"Sm80Indexed{persistent}Kernel"
            return f"sm80.device.indexed:{name}"
        if self.prologue is not None:
            return "sm80.device.prologue:Sm80PrologueKernel"
        if self.weights is not None:
            return "sm80.device.quantized:Sm80QuantizedKernel"
        if self.scales is not None:
            return "sm80.device.scaled:Sm120ScaledKernel"
        if self.config.loads == "tma":
            return "sm80.device.fused:Sm120FusedKernel" if self.takes_words else "sm80.device.gemm_tma:Sm120GemmKernel"
        if self.config.persistent:
            fused = "sm80.device.fused:Sm80FusedPersistentKernel"
            return fused if self.takes_words else "sm80.device.persistent:Sm80PersistentKernel"
        return "sm80.device.fused:Sm80FusedKernel" if self.takes_words else "sm80.device.gemm:Sm80GemmKernel"

    def __str__(self) -> str:
        head = self.described(f" {self.arch.name}")
        packed = f", B packed {self.weights}" * (self.weights is not None)
        packed += f", K in {self.config.split} parts" * (self.split is not None)
        packed += f", K blocks of {self.mainloop.depth} promoted" if self.mainloop is not None else ""
        several = f", {self.gated}" if self.gated is not None else ""
        several += f", {self.scales.format.name} scales" if self.scales is not None else ""
        several += f", {self.prologue}" if self.prologue is not None else ""
        several += f", and a second pair of K = {self.pair.k}" if self.pair is not None else ""
        several += f", {'K' if self.along_k else 'rows'} in {self.batch} group(s)" if self.groups is not None else ""
        return f"{head}, {self.stages} stages, {self.warps[0]}x{self.warps[1]} warps{packed}{several}"


def _checked_packed(
    weights: QuantizedFormat | None, experts: Ragged | None, sizes: tuple[int, int, int], config: Sm80Config,
    operands: tuple[OperandSpec, OperandSpec | None], epilogue: Epilogue | None,
) -> tuple[OperandSpec | None, Sm80Config]:  # fmt: skip
    """(B, configuration) of packed weights, or as they are. Raises PlanError where there is no such kernel.

    sizes  M, K and batch
    """
    (m, k, batch), (a, b) = sizes, operands
    if experts is not None:
        check_experts(experts, m, batch, weights, config, Epilogue.of(epilogue))
    if weights is None:
        return b, config
    b = _like(a) if b is None else b
    taken = Operand.parse(a), Operand.parse(b)
    check_packed(weights, (k, batch if experts is None else 1), config, taken, epilogue)
    return b, replace(config, tile_k=config.tile_k or UNIT_K)


def _like(a: OperandSpec) -> Operand:
    """Packed weights as an operand, for activations of a type."""
    return Operand(Operand.parse(a).dtype, "col")


def _check_sizes(sizes: tuple[int, int, int], batch: int) -> None:
    """Raise PlanError for M, N, K or a batch outside of their ranges."""
    m, n, k = sizes
    check_range(PlanError, MAX_COORDINATE, f"it is 1 to {MAX_COORDINATE}", m=m, n=n, k=k)
    check_range(PlanError, MAX_BATCH, f"it is 1 to {MAX_BATCH}", batch=batch)


def _stage_depth(
    config: Sm80Config, mainloop: Promoted | None, form: ScaleFormat | None, a: Operand, atom: MmaAtom
) -> int:
    """Elements of K in a stage: a main loop's K block, as asked, or by the type or format."""
    asked = config.tile_k or (None if form is None else SCALED_K)
    kind = a.dtype if atom.a_container is None else u8
    return stage_depth(mainloop.depth if mainloop else asked, _STAGE_BYTES_OF_K, kind, atom)


def _typed(
    a: OperandSpec, b: OperandSpec | None, target: Arch, scales: ScaleFormat | str | None, k: int
) -> tuple[Operand, Operand, MmaAtom, ScaleFormat | None]:
    """The operands' types and orders, their instruction, and the format of block scales.

    Raises PlanError where the architecture has no such instruction.
    """
    form = None if scales is None else scale_format(scales)
    a_spec = Operand.parse(a)
    b_spec = Operand.parse(a_spec.dtype if b is None else b)
    for name, spec in (("a", a_spec), ("b", b_spec)):
        known = tuple(dict.fromkeys([*_INSTRUCTIONS, *NARROW])) if form is None else form.types
        if spec.dtype.name not in known:
            said = "this kernel" if form is None else f"scales = {shown(form.name)}: the kernel"
            raise PlanError(f"{name} is {spec.dtype}; {said} multiplies {', '.join(known)}")
    if form is None and narrow_types(a_spec, b_spec):
        atom = mma_sync(_INSTRUCTIONS["e4m3"], a_spec.dtype, b_spec.dtype, kind="f8f6f4")
    elif form is None:
        check_pair(a_spec, b_spec)
        atom = mma_sync(_INSTRUCTIONS[a_spec.dtype.name], a_spec.dtype, b_spec.dtype)
    else:
        atom = scaled_atom(form, a_spec.dtype, b_spec.dtype)
    if not exists_on(atom.archs, target):
        raise PlanError(f"a is {a_spec.dtype}: {target.name} has no {atom.ptx}; it exists from {atom.archs[0]} on")
    check_lines(form, (a_spec, b_spec), k)
    check_padded((a_spec, b_spec), atom, k)
    return a_spec, b_spec, atom, form


def _check_stored(epilogue: Epilogue, mainloop: Promoted | None, atom: MmaAtom, c: Operand) -> None:
    """Raise PlanError for an epilogue or main loop that C's type does not have."""
    check_epilogue(epilogue, c)
    check_promotes(mainloop, atom, c)


def _check_rows(
    indexed: IndexedRows | None, operands: tuple[Operand, Operand], config: Sm80Config, weights: QuantizedFormat | None,
    epilogue: Epilogue, alone: bool,
) -> None:  # fmt: skip
    """Raise PlanError, naming the obstacle, for a product with indices that this kernel has not.

    operands  A and C
    alone     whether the product is one of two matrices
    """
    if indexed is None:
        return
    if weights is not None:
        raise PlanError("indexed and weights: the kernel of packed weights takes rows in order; index x and y instead")
    if indexed.copies:
        raise PlanError("indexed: this kernel gathers rows as it copies them, and copies none first; leave copy out")
    check_rows_lie(indexed, *operands, epilogue, alone=alone)
    if indexed.gather is not None and config.loads != "cp.async":
        raise PlanError(f"loads = {shown(config.loads)}: rows of A are gathered by cp.async, loads='cp.async'")


def _check_prologue(asked: Asked, operands: tuple[Operand, Operand], config: Sm80Config) -> None:
    """Raise PlanError, naming the obstacle, for a function of A that this kernel has not; `operands`: A and B."""
    if asked.prologue is None:
        return
    check_types(asked.prologue, *operands)
    if asked.weights is not None:
        raise PlanError("prologue and weights: the kernel of packed weights makes B's elements in registers, not A's")
    for name, part in (("indexed", asked.indexed), ("pair", asked.pair)):
        if part is not None:
            raise PlanError(f"prologue and {name}: by mma.sync a function is of one A whose rows are in order")
    if config.loads != "cp.async" or config.persistent:
        raise PlanError(
            f"loads = {shown(config.loads)}, persistent = {config.persistent}: a prologue takes a block for each tile, "
            "fed by cp.async"
        )


def _checked_plan(plan: Sm80Plan) -> Sm80Plan:
    """The plan. Raises PlanError for more words than a kernel has, and for columns that its warps do not hold."""
    check_words(plan.words)
    check_reductions(plan.epilogue, (plan.n, plan.warp_columns), plan.c.dtype.name, plan.fragment.lane_columns)
    check_groups(plan.epilogue, plan.fragment)
    check_added(plan)
    return plan


def _checked_threads(config: Sm80Config, target: Arch, batch: int) -> int:
    """Threads of a block; raises PlanError for too many, and for warps among which the tile cannot be divided."""
    warps = config.warps[0] * config.warps[1]
    threads = 32 * warps
    if config.persistent and batch > 1:
        raise PlanError(f"batch = {batch}: a persistent kernel multiplies one pair of matrices")
    if config.loads == "tma":
        target.require("cp.async.bulk.tensor", "loads='tma'")
    if config.stmatrix:
        target.require("stmatrix", "stmatrix=True")
    if threads > target.threads_per_block:
        raise PlanError(f"{warps} warps are {threads} threads; a block has up to {target.threads_per_block}")
    for what, extent, count in (("M", config.tile[0], config.warps[0]), ("N", config.tile[1], config.warps[1])):
        if extent % (16 * count):
            raise PlanError(
                f"{extent} of {what} for {count} warp(s): each takes a multiple of 16, {extent} = "
                f"{extent // (16 * count)}*{16 * count} + {extent % (16 * count)}"
            )
    return threads


def _check_asked(
    asked: Asked, operands: tuple[Operand, Operand], config: Sm80Config, order: Order | None,
    form: ScaleFormat | None,
) -> None:  # fmt: skip
    """Raise PlanError for a configuration that cannot hold the sums, or load what is asked.

    So it does for one that has no function of A. `operands`: A and B.
    """
    check_groups_of(asked, config, operands, order)
    check_scales(form, asked, config)
    check_narrow(operands, asked, config)
    _check_prologue(asked, operands, config)
    sums, pair = asked.gated, asked.pair
    if sums is None and pair is None:
        return
    if asked.weights is not None:
        raise PlanError("gated and pair: packed weights are one matrix B; leave weights out, or multiply twice")
    check_parts(asked.parts, asked.batch, SUMS)
    if config.loads != "cp.async":
        raise PlanError(f"loads = {shown(config.loads)}: several matrices come by cp.async, loads='cp.async'")
    if pair is not None and config.persistent:
        raise PlanError("pair: copies of a persistent kernel run on from tile to tile of one pair; persistent=False")
    if sums is not None and config.tile[1] % (unit := 16 * config.warps[1] * sums.matrices):
        raise PlanError(
            f"a tile of {config.tile[1]} columns, {config.warps[1]} warp(s) along N, of {sums.matrices} matrices B: a "
            f"warp takes a multiple of 16 of each, {config.tile[1]} = {config.tile[1] // unit}*{unit} + "
            f"{config.tile[1] % unit}"
        )


def _operand_plans(
    specs: tuple[Operand, Operand, Operand], config: Sm80Config, tile_k: int, access: tuple[int, ...], atom: MmaAtom,
    asked: Asked,
) -> tuple[Sm80Operand, OperandOfB]:  # fmt: skip
    """The tiles of A and B, and the copies and loads of each.

    access  the block's threads; bytes of an access to A and to B
    """
    a, b, c = specs
    (tile_m, tile_n), (along_m, along_n), (threads, *vectors) = config.tile, config.warps, access
    a_plan = derive_operand("A", a, tile_m, tile_k, along_m, threads, vectors[0], atom)
    if asked.weights is not None:
        return a_plan, packed_b(asked.weights, b, (tile_n, tile_k), along_n, threads, atom)
    b_plan = derive_operand("B", b, tile_n, tile_k, along_n, threads, vectors[1], atom)
    if config.loads == "tma":
        a_plan, b_plan = by_tensor_copy(a_plan, asked.batch), by_tensor_copy(b_plan, asked.batch)
    return a_plan, _beside(b_plan, asked.gated, (b, c))


def _beside(b: Sm80Operand, sums: Combined | None, operands: tuple[Operand, Operand]) -> Sm80Operand:
    """B's tile with columns of several matrices; `operands`: B and C. Raises PlanError for others."""
    if sums is None:
        return b
    check_sums(sums, *operands)
    return replace(b, beside=SideBySide(b.smem.extent[0], sums.matrices, b.warps))


def _vectors(align: tuple[int, int, int], specs: tuple[Operand, Operand, Operand]) -> list[int]:
    """Bytes of an access to A, B and C; raises PlanError for an alignment below an element's bytes."""
    for name, bytes_, spec in zip("abc", align, specs, strict=True):
        if bytes_ < memory_unit(spec.dtype).bytes:
            raise PlanError(f"{name} is {spec.dtype}, aligned to {spec.dtype.bytes} bytes at least, not {bytes_}")
    return [bytes_ if bytes_ >= 4 else memory_unit(spec.dtype).bytes for bytes_, spec in zip(align, specs, strict=True)]


def _output(c: OperandSpec | None, a: Operand, atom: MmaAtom, fused: bool, target: str) -> Operand:
    floats = stored_floats(target)
    whole = atom.c_dtype.name == "i32"
    default = "i32" if whole else a.dtype if a.dtype.bits == 16 else "f32"
    spec = Operand.parse(default if c is None else c)
    known = ("i32", *floats * fused) if whole else floats
    if spec.dtype.name not in known:
        raise refused_output(spec.dtype, a.dtype, known, _way_to(spec.dtype.name, floats, whole, fused))
    if spec.order != "row":
        raise PlanError(f"c is {spec}; this kernel stores row-major. Compute the transpose: C^T = B^T @ A^T")
    return spec


def _way_to(c: str, floats: Sequence[str], whole: bool, fused: bool) -> str:
    """The way to a C of a type that the kernel does not store; "" if only a conversion leads there."""
    if whole and not fused and c in floats:
        return f"behind an epilogue it stores {c}, as in epilogue=Epilogue(Scale())"
    if c in _EIGHT_BITS:
        return (
            f"store f32{' behind an epilogue' * (whole and not fused)} and convert it; {c} is stored from sm_89 on, "
            "which has the conversion"
        )
    return ""


def _schedule(
    order: Order | None, tile: tuple[int, int], config: Sm80Config, sizes: tuple[int, int],
    weights: QuantizedFormat | None,
) -> Schedule:  # fmt: skip
    """The order of tiles of M and N; raises PlanError for too many tiles, and an order that this kernel has not."""
    m, n = sizes
    across = -(-m // tile[0]), -(-n // tile[1])
    if (tiles := across[0] * across[1]) > MAX_COORDINATE:
        raise PlanError(f"{m}x{n} in tiles of {tile} are {tiles} tiles; a grid holds 2**31 - 1 blocks")
    found = unmirrored(order, Grouped(config.along, config.group), tile, across, "the kernel of mma.sync")
    if weights is not None and found.words:
        raise PlanError(f"order = {found}: a launch of packed weights has no words of an order; take a formula")
    return found


def _ring(
    target: Arch, a: Sm80Operand, b: OperandOfB, store: Sm80Store, config: Sm80Config, scales: Sm80Scales | None
) -> tuple[int, Sm80Smem]:
    alignment = max(a.smem.alignment, b.smem.alignment, store.tile.alignment)
    b_offset = rounded_up(a.smem.bytes, b.smem.alignment)
    scales_offset, factors = b_offset + b.smem.bytes, 0 if scales is None else scales.bytes
    pitch = rounded_up(scales_offset + factors, alignment)
    barrier = BARRIER_BYTES if config.loads == "tma" else 0
    buffers = config.warps[0] * config.warps[1] * BUFFERS * store.buffer_bytes
    beside = buffers if config.persistent else 0
    taken = f"A {a.smem.bytes} + B {b.smem.bytes} bytes" + f" + scales {factors}" * (factors > 0)
    taken += f" beside {beside} of the store" * (beside > 0)
    stages = fitting_stages(
        target, config.stages, LEAST_STAGES, pitch + barrier, beside, taken, DEFAULT_STAGES, config.blocks_per_sm
    )
    end = stages * pitch + buffers if config.persistent else max(stages * pitch, buffers)
    if end + stages * barrier > target.smem_per_block:
        rows, columns = config.warps
        raise PlanError(
            f"{rows} x {columns} warps' buffers of C, {BUFFERS} of {store.buffer_bytes} bytes each, are {buffers}, "
            f"and a block of {target.name} has {target.smem_per_block} of shared memory. Take a smaller tile, or "
            "more of the warps along N"
        )
    return stages, Sm80Smem(
        a_offset=0,
        a_stage_bytes=pitch,
        b_offset=b_offset,
        b_stage_bytes=pitch,
        scales_offset=scales_offset,
        c_offset=stages * pitch if config.persistent else 0,
        c_buffer_bytes=store.buffer_bytes,
        barrier_offset=end,
        barrier_bytes=BARRIER_BYTES,
        total=end + stages * barrier,
        alignment=alignment,
    )
