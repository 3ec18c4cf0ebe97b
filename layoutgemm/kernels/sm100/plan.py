"""Sm100Plan: the objects of the production kernel for Blackwell.

They are derived from a problem and a configuration.

    problem, Sm100Config --> tcgen05 atom, instruction descriptor, tiles of A and B, copies, descriptors, columns of
                             tensor memory, store, order of tiles, roles, barriers, shared-memory map, pipeline

No device of this architecture has run what is derived here: see Sm100Plan.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from ...arch import Arch, ArchName
from ...arch import arch as arch_named
from ...arguments import checked, shown
from ...atoms import Tcgen05Atom, tcgen05_mma
from ...atoms.smem.instruction_descriptor import InstructionDescriptor, instruction_descriptor
from ...atoms.smem.operand_read import operand_read
from ...atoms.targets import exists_on
from ...atoms.tmem.layout import COLUMNS, LANES, WARP_LANES, allocation_columns
from ...dtypes import DType, u8
from ...errors import PlanError
from ...graph_marks import NoticedInGraphs
from ...schedule import Grouped, Persistent, Schedule
from ..column_groups import check_groups as check_columns
from ..derive import Operand, OperandPlan, OperandSpec, check_pair, derive_operand, refused_output
from ..epilogue.chain import Epilogue
from ..grouped.along_k import check_along_k, with_starts
from ..grouped.plan import GroupedPlan
from ..grouped.stores import check_orders, ragged_store
from ..indexed.added_rows import check_added
from ..indexed.rows import IndexedRows
from ..operands.block_scales import CHUNK_ROWS, FORMATS, NAMES, ScaleFormat, check_lines, chunks_of, scale_format
from ..operands.combinations import GROUPS, PARTS, SUMS, Asked, check_parts
from ..operands.combined import Combined, check_combined, side_by_side
from ..operands.gated import check_sums, combination, epilogue_behind
from ..operands.pair import SecondPair, pair_of
from ..operands.product import SideBySide
from ..operands.promoted import Promoted
from ..operands.thread_numbers import PromotingPlan
from ..orders import Order, unmirrored
from ..partials import PartialResults, check_reductions, partials_of
from ..plan import (
    BARRIER_BYTES,
    LEAST_STAGES,
    MAX_TILES,
    STAGE_BYTES_OF_K,
    GemmPlan,
    StoreSmemMap,
    check_epilogue,
    check_fields,
    check_sizes,
    check_words,
    fitting_stages,
    present,
    rounded_up,
    stage_depth,
)
from ..ragged import AlongK, Ragged, check_room
from ..store import StoreChunk, StorePlan
from .block_scales import BlockScales
from .fragment import TileRows
from .promoted import promoted_of
from .rows import check_rows, gathered, matrices_by_map, scattered
from .store import derive_store

BLOCK_ROWS = LANES  # of C that one block holds: one to a lane of tensor memory
EPILOGUE_WARPS = LANES // WARP_LANES  # each reaches its own quarter of the lanes
MMA_WARP, LOADER_WARP = EPILOGUE_WARPS, EPILOGUE_WARPS + 1
THREADS = 32 * (LOADER_WARP + 1)
SLOT_BYTES = 8  # of the word in which tcgen05.alloc leaves an address, and what aligns the barriers behind it
# N of an instruction of 128 rows in one block, and of 256 in two: what the PTX ISA's table and CUTLASS both have.
N_STEP = {1: 16, 2: 32}
_KINDS = {
    "bf16": "f16", "f16": "f16", "e4m3": "f8f6f4", "e5m2": "f8f6f4", "tf32": "tf32", "i8": "i8", "u8": "i8",
    "e3m2": "f8f6f4", "e2m3": "f8f6f4", "e2m1": "f8f6f4",
}  # fmt: skip
_OUTPUTS = ("f32", "bf16", "f16", "e4m3", "e5m2")
_INTEGERS = ("i32", *_OUTPUTS)  # of integer sums


@dataclass(frozen=True, slots=True)
class Sm100Config(NoticedInGraphs):
    """The configuration; None lets the plan choose.

    tile          (M, N) elements of C: M = 128 by one block, or 256 by a pair of blocks (cta_group::2), each of which
                  holds half of A's rows and half of B's columns; N a multiple of 16 (32 for a pair) up to 256. Default
                  the tile of `layoutgemm.plan`'s rule; `derive` has 128x256, of block scales 128x128
    tile_k        depth of a stage in elements; default 128 bytes
    stages        k tiles in flight, 2 or more; default as many as fit
    accumulators  in tensor memory: with 2 the epilogue of a tile overlaps the products of the next
    group         tiles of a band of the tile order, and `along` which the bands lie: "M" or "N"
    overlap       programmatic dependent launch: the kernel starts while the one before it drains
    width, chunks, buffers   of the store; see `sm100.store.derive_store`
    """

    tile: tuple[int, int] | None = None
    tile_k: int | None = None
    stages: int | None = None
    accumulators: int = 2
    group: int = 8
    along: str = "M"
    overlap: bool = False
    width: int = 32
    chunks: int = 1
    buffers: int = 2

    def __post_init__(self) -> None:
        check_fields(self)
        if self.along not in ("M", "N"):
            raise PlanError(f"along = {shown(self.along)}: known are 'M', 'N'")
        if self.tile is None:
            return
        rows, columns = self.tile
        if rows not in (BLOCK_ROWS, 2 * BLOCK_ROWS):
            raise PlanError(f"a tile of {rows} rows: one CTA takes {BLOCK_ROWS}, a pair {2 * BLOCK_ROWS}")
        step = N_STEP[self.blocks]
        if columns % step or columns > 256:
            raise PlanError(f"a tile of {columns} columns: a multiple of {step} up to 256 for {rows} rows")
        if (used := self.accumulators * columns) > COLUMNS:
            raise PlanError(
                f"{self.accumulators} accumulators of {columns} columns are {used}; tensor memory has {COLUMNS}"
            )

    @property
    def blocks(self) -> int:
        """Blocks that compute a tile together: the cta_group, and the size of the cluster."""
        return present(self.tile)[0] // BLOCK_ROWS


@dataclass(frozen=True, slots=True)
class Sm100Smem(StoreSmemMap):
    """The map of a Blackwell kernel's shared memory.

    Stages of A, stages of B, C's buffers, then barriers: `full` (`barrier_offset`) and `empty` for each stage,
    `acc_full` and `acc_empty` for each accumulator. The word for tensor memory's address follows, then the groups'
    tables. Stages of block scales, of a plan that has them, lie before C's buffers.
    """

    empty_offset: int
    acc_full_offset: int
    acc_empty_offset: int
    slot_offset: int
    scales_offset: int = 0
    scales_stage_bytes: int = 0
    table_offset: int = 0


@dataclass(frozen=True, kw_only=True)
class Sm100Plan(PromotingPlan, GroupedPlan, Asked):
    """C[l, M, N] = A[l, M, K] @ B[l, K, N] on Blackwell. See `derive` and Sm100Config.

    What it rests on: proofs (`check`), the compiled PTX in the emulator, SASS, and agreement with the CuTe DSL's own
    derivation. No device of this architecture has run it.

    a, b          the operands of one block: tile, copies, descriptor
    mma, word     the instruction and its descriptor
    accumulators  in tensor memory, mma.shape_mnk[1] columns each, of `columns` that are allocated
    order         number of a tile -> its place, a tile being a block's or a pair's
    full_arrivals, full_bytes, empty_arrivals, acc_full_arrivals, acc_empty_arrivals
                  what completes a phase of the barriers; of a pair, full and acc_empty are the even block's
    scales        the block scales' copies and places, or None

    What is asked for beyond a plain product are the fields of `Asked`, as `derive` explains them; n is C's columns.
    """

    m: int
    n: int
    k: int
    arch: Any
    a: OperandPlan
    b: OperandPlan
    c: Operand
    mma: Tcgen05Atom
    word: InstructionDescriptor
    tile: tuple[int, int, int]
    stages: int
    accumulators: int
    columns: int
    store: StorePlan
    order: Persistent
    smem: Sm100Smem
    threads: int
    full_arrivals: int
    full_bytes: int
    empty_arrivals: int
    acc_full_arrivals: int
    acc_empty_arrivals: int
    config: Sm100Config = field(default_factory=Sm100Config)
    epilogue: Epilogue = field(default_factory=Epilogue)
    scales: BlockScales | None = None
    verbs = GemmPlan.verbs | {
        "check": "sm100.checks:check_sm100",
        "execute": "sm100.reference:execute_sm100",
        "explain": "sm100.explain:explain_sm100",
        "fragment": "pictures:tmem_load_svg",
    }

    # ------------------------------------------------------------------------------------------------------- derivation
    @classmethod
    @checked(PlanError)
    def derive(
        cls,
        m: int,
        n: int,
        k: int,
        *,
        arch: ArchName = "sm_100a",
        batch: int = 1,
        a: Operand | DType | str = "bf16",
        b: Operand | DType | str | None = None,
        c: Operand | DType | str | None = None,
        config: Sm100Config | None = None,
        epilogue: Epilogue | None = None,
        order: Order | None = None,
        indexed: IndexedRows | None = None,
        gated: Combined | str | None = None,
        pair: SecondPair | int | None = None,
        scales: ScaleFormat | str | None = None,
        ragged: Ragged | None = None,
        along_k: AlongK | None = None,
        mainloop: Promoted | None = None,
    ) -> Sm100Plan:
        """Derive the kernel for `batch` products C[m, n] = A[m, k] @ B[k, n].

        arch             one with tensor memory, by any of its names: "sm_103a", "sm_110a", "sm_100f"
        m, n, k, batch   any positive sizes; ragged edges are zeros on load and not written on store, but for
                         `bytes_beyond_line`
        a, b             bf16 or f16 alike; e4m3, e5m2, e3m2, e2m3 and e2m1 mixed at will; or, on sm_100a and sm_110a,
                         i8 and u8; ":row" (default) or ":col". Floats of 6 and 4 bits are K-major, and K a multiple of
                         128: tensor maps pad them. Integer sums stop at the ends of int32. tf32 K-major: a
                         "row", b "col"
        c                f32, bf16, f16, e4m3 or e5m2, of integers also i32, ":row" or ":col"; a's type unless given
                         (bf16 for 8-bit floats, f32 for tf32, i32 for integers)
        epilogue         what happens to the sums before they are stored, as in a Hopper kernel: see `kernels.epilogue`
        order            the order of tiles, of all or some of them, as for `Sm90Plan.derive`, but for "symmetric"
        indexed          A's rows are gathered, or C's scattered, by TMA, through vectors of indices; m is the product's
                         rows, and a batch has m indices for each matrix: see `kernels.sm100.rows`
        gated            a Combined, of two to four matrices B, or the name of a gate, whose B has 2n columns; as for
                         `Sm90Plan.derive`. Their sums lie side by side in an accumulator's columns
        pair             K of a second pair of matrices, whose product is added, likewise
        scales           "mxfp8" (a and b e4m3 or e5m2), "mxf8f6f4" (those, e3m2, e2m3 and e2m1, mixed at will), "mxfp4"
                         or "nvfp4" (both e2m1, packed): a factor for every 32 elements of K,
                         of nvfp4 16, of each row of A and column of B. A is a "row" and B a "col"; the tile has 128 or
                         256 columns. See `kernels.operands.block_scales`
        ragged, along_k  groups of rows, masked ones, or groups along K, `batch` of them, as for `Sm90Plan.derive`
        mainloop         what becomes of the sum of each K block: see `kernels.sm100.promoted`

        Raises PlanError naming the argument and the arithmetic when no such kernel exists; passes on AtomError,
        DescriptorError and TmaError.

        >>> plan = Sm100Plan.derive(8192, 8192, 8192, b="bf16:col", config=Sm100Config((256, 256)))
        >>> plan.stages, plan.threads, plan.columns, plan.smem.total, plan.full_bytes
        (6, 192, 512, 213128, 65536)
        >>> hex(plan.word.word), hex(plan.a.descriptor.word)
        ('0x10400490', '0x4000404000010000')
        """
        form = None if scales is None else scale_format(scales)
        config = config or Sm100Config()
        sums = combination(gated)
        if config.tile is None:
            config = gated_scales(config) if form and sums else replace(config, tile=(BLOCK_ROWS, 128 if form else 256))
        tile = present(config.tile)
        check_sizes(m=m, n=n, k=k, batch=batch)
        second = pair_of(pair, sums)
        epilogue = epilogue_behind(sums, epilogue)
        target = arch_named(arch)
        target.require("tcgen05", "this kernel")
        a_spec, b_spec, c_spec = _typed(a, b, c, form)
        asked = Asked(
            gated=sums, pair=second, indexed=indexed, epilogue=epilogue, ragged=ragged, along_k=along_k,
            mainloop=mainloop, batch=batch,
        )  # fmt: skip
        _check_scales(form, (a_spec, b_spec), (n, k), config, asked)
        _check_groups(ragged, along_k, (m, n, k, batch), (a_spec, b_spec, c_spec), config.tile_k)
        check_epilogue(epilogue, c_spec)
        check_parts(asked.parts, batch, (*SUMS, *GROUPS))
        if mainloop is not None and a_spec.dtype.kind != "float":
            raise PlanError(f"mainloop: a is {a_spec.dtype}, whose sums are exact; scales of rows are an epilogue's")
        asked = replace(asked, mainloop=promoted_of(asked, config, c_spec, n))
        columns = tile[1]
        if sums is not None:
            check_sums(sums, b_spec, c_spec)
            own = "a CTA's tile" if config.blocks > 1 else "a tile"
            check_combined(sums, columns // config.blocks, 1, b_spec, own)
            columns //= sums.matrices
        check_reductions(epilogue, (n, columns), c_spec.dtype.name, lane_columns=2)  # a lane has a row, by pairs
        check_rows(indexed, (a_spec, c_spec), epilogue, batch == 1 and ragged is None, target.name)
        plan = cls._of(target, (m, n, k, batch), (a_spec, b_spec, c_spec), config, order, asked, form)
        check_words(plan.words)
        check_columns(epilogue, plan.fragment)
        check_added(plan)
        return plan

    @classmethod
    def _of(
        cls, target: Arch, sizes: tuple[int, int, int, int], operands: tuple[Operand, Operand, Operand],
        config: Sm100Config, order: Order | None, asked: Asked, form: ScaleFormat | None,
    ) -> Sm100Plan:  # fmt: skip
        """The plan of a request that has been checked: each object from those before it."""
        (m, n, k, batch), (a_spec, b_spec, c_spec), indexed = sizes, operands, asked.indexed
        (tile_m, tile_n), blocks = present(config.tile), config.blocks
        atom = _atom(target, config, (a_spec, b_spec), form)
        loop = asked.mainloop
        own = u8 if _pads(atom, k, asked) else a_spec.dtype
        tile_k = stage_depth(config.tile_k if loop is None else loop.depth, STAGE_BYTES_OF_K, own, atom)
        of_a, of_c = matrices_by_map(asked, batch)
        a_plan = gathered(indexed, _operand("A", a_spec, "M", BLOCK_ROWS, tile_k, atom, of_a))
        sums = 1 if asked.gated is None else asked.gated.matrices
        of_b = 1 if asked.along_k is not None else batch
        b_plan = _operand("B", b_spec, "N", tile_n // blocks, tile_k, atom, of_b, sums)
        if asked.along_k is not None and not asked.along_k.in_blocks:
            a_plan, b_plan = with_starts(a_plan), with_starts(b_plan)
        columns = tile_n // sums
        store = derive_store(columns, c_spec, config.width, config.chunks, config.buffers)
        check_shares(store, SideBySide(tile_n, sums, blocks))
        scatters = indexed is not None and indexed.places_rows
        ends = asked.ragged is not None and not scatters
        store = ragged_store(store, of_c > 1) if ends else scattered(indexed, store.of_batch(of_c))
        scales = None if form is None else _scales(form, atom, tile_k, config, asked.ragged, sums)
        groups = asked.ragged or asked.along_k
        table = 0 if groups is None else groups.bytes
        stages = _stages(target, (a_plan, b_plan), store, config, scales, table)
        columns_used = config.accumulators * atom.accumulator.columns + (0 if scales is None else scales.columns)
        schedule = _schedule(order, (tile_m, columns), config, (m, n, batch))
        return cls(
            **{**asked.asked, "batch": batch, "epilogue": asked.epilogue or Epilogue()},
            m=m,
            n=n,
            k=k,
            arch=target,
            a=a_plan,
            b=b_plan,
            c=c_spec,
            mma=atom,
            word=instruction_descriptor(atom, a_plan.major, b_plan.major, saturate=atom.c_dtype.kind == "int"),
            tile=(tile_m, tile_n, tile_k),
            stages=stages,
            accumulators=config.accumulators,
            columns=allocation_columns(columns_used),
            store=store,
            order=Persistent(schedule, 1),
            smem=_smem(a_plan, b_plan, stages, config, store, 0 if scales is None else scales.bytes, table),
            threads=THREADS,
            full_arrivals=1,
            full_bytes=blocks * (a_plan.bytes + b_plan.bytes + (0 if scales is None else scales.bytes)),
            empty_arrivals=1,
            acc_full_arrivals=1,
            acc_empty_arrivals=blocks * EPILOGUE_WARPS,
            config=config,
            scales=scales,
        )

    # ------------------------------------------------------------------------------------------------ what is asked for
    @property
    def blocks(self) -> int:
        """Blocks that compute a tile together: a cluster."""
        return self.config.blocks

    @property
    def cluster_size(self) -> int:
        """Blocks of a cluster."""
        return self.blocks

    @property
    def both(self) -> int | None:
        """The mask of a pair's blocks, to which the products' completion is told. None for a block alone."""
        return (1 << self.blocks) - 1 if self.blocks > 1 else None

    @property
    def fragment(self) -> TileRows:
        """The map of a warp's part of an accumulator."""
        return TileRows(self.store)

    @property
    def warp_columns(self) -> int:
        """Columns of a warp's part of C: a tile's."""
        return self.tile_c[1]

    @property
    def partials(self) -> tuple[PartialResults, ...]:
        """The partial results of the epilogue's reductions. They are of a tile's columns, and of a warp's rows."""
        return partials_of(self.epilogue, self.tile_c[1], rows=WARP_LANES, joined=self.joined_rows)

    @property
    def loads_whole_rows(self) -> bool:
        """True if the epilogue sees a tile's rows as a whole. They are reduced, quantised, or not stored.

        So it does where a load cuts the columns of a function of several.
        """
        along = any(step.axes or step.each for step in self.epilogue.reductions)
        spans = [step.span for step in self.epilogue.groups]
        cut = any(x % span for chunk in self.fragment.chunks for span in spans for x in (chunk.column, chunk.width))
        along = along or self.mainloop is not None
        return along or cut or self.epilogue.quantizes is not None or not self.epilogue.stores_c

    @checked(PlanError)
    def columns_before(self, chunk: StoreChunk) -> int:
        """Columns that are loaded before a chunk of an accumulator is stored. Its own, and those its results need.

        >>> from layoutgemm.kernels.epilogue.chain import Quantize
        >>> wide, scaled = Sm100Config((128, 128)), Epilogue(Quantize())
        >>> plan = Sm100Plan.derive(128, 128, 64, c="e4m3", config=wide, epilogue=scaled)
        >>> plan.columns_before(plan.fragment.chunks[0])
        128
        """
        return rounded_up(chunk.column + chunk.width, self.epilogue.columns_together)

    @property
    def beside(self) -> SideBySide:
        """(column of C, sum) -> column of an accumulator. And rows of B's tile, that of a pair's CTAs together."""
        return SideBySide(self.tile[1], self.sums, self.blocks)

    @property
    def takes_extra_params(self) -> bool:
        """True if the kernel takes words. They are of an epilogue, row indices, further operands, or an order of
        tiles."""
        return bool(self.epilogue) or bool(self.words) or self.indexed is not None

    @property
    def words(self) -> tuple[str, ...]:
        """Names of the 64-bit parameters: of the epilogue first, of block scales last."""
        first = [word for part in (self.mainloop, self.groups) if part is not None for word in part.words]
        own = *self.epilogue.words, *first, *self.operand_words, *self.order.schedule.words, *self.index_words
        return (*own, *(() if self.scales is None else NAMES))

    @property
    def device_kernel(self) -> str:
        """The kernel's class in device code."""
        if self.mainloop is not None:
            kind = "" if self.ragged is None else "IndexedGroups" if self.indexed is not None else "Groups"
            kind = "Indexed" if self.ragged is None and self.indexed is not None else kind
            return f"sm100.device.promoted:Sm100Promoted{kind}"
        if self.ragged is not None:
            return f"sm100.device.grouped:Sm100{'Indexed' if self.indexed is not None else 'Plain'}Groups"
        if self.along_k is not None:
            return "sm100.device.grouped:Sm100GroupsAlongK"
        if self.indexed is not None:
            return "sm100.device.indexed:Sm100IndexedKernel"
        return "sm100.device.fused:Sm100FusedKernel" if self.takes_extra_params else "sm100.device.gemm:Sm100GemmKernel"

    def __str__(self) -> str:
        many = f"{self.stages} stages, {self.accumulators} accumulator(s)"
        return f"{self.described(f' {self.arch.name}')} by {self.blocks} block(s), {many}" + (
            (f", {self.indexed}" if self.indexed is not None else "")
            + (f", {self.gated}" if self.gated is not None else "")
            + (f", and a second pair of K = {self.pair.k}" if self.pair is not None else "")
            + (f", {'masked ' * self.ragged.masked}rows in {self.batch} group(s)" if self.ragged is not None else "")
            + (f", K in {self.batch} group(s)" if self.along_k is not None else "")
            + (f", K blocks of {self.mainloop.depth} promoted" if self.mainloop is not None else "")
            + (f", {self.scales.format.name} scales" if self.scales is not None else "")
        )


def _typed(
    a: OperandSpec, b: OperandSpec | None, c: OperandSpec | None, form: ScaleFormat | None
) -> tuple[Operand, Operand, Operand]:
    """The operands' types and orders; raises PlanError for a product without an instruction."""
    a_spec = Operand.parse(a)
    b_spec = Operand.parse(a_spec.dtype if b is None else b)
    own, whole = {4: "bf16", 6: "bf16", 8: "bf16", 16: a_spec.dtype, 32: "f32"}, a_spec.dtype.kind != "float"
    c_spec = Operand.parse(c if c is not None else "i32" if whole else own.get(a_spec.dtype.bits, "f32"))
    for name, spec in (("a", a_spec), ("b", b_spec)):
        known = tuple(_KINDS) if form is None else form.types
        if spec.dtype.name not in known:
            said = "this kernel" if form is None else f"scales = {shown(form.name)}: the kernel"
            raise PlanError(f"{name} is {spec.dtype}; {said} multiplies {', '.join(known)}{_other_way(spec)}")
    outputs = _INTEGERS if whole else _OUTPUTS
    if c_spec.dtype.name not in outputs:
        raise refused_output(c_spec.dtype, a_spec.dtype, outputs)
    if {_KINDS.get(x.dtype.name) for x in (a_spec, b_spec)} != {"f8f6f4"}:
        check_pair(a_spec, b_spec)
    return a_spec, b_spec, c_spec


def _other_way(spec: Operand) -> str:
    """The other way to multiply elements of that type, or ""."""
    if spec.dtype.name == "f32":
        return ": say 'tf32' for f32 rounded to 11 bits of its significand"
    forms = [form.name for form in FORMATS.values() if spec.dtype.name in form.types]
    return f"; with block scales it does, scales = {' or '.join(map(repr, forms))}" if forms else ""


def _atom(
    target: Arch, config: Sm100Config, operands: tuple[Operand, Operand], form: ScaleFormat | None
) -> Tcgen05Atom:
    """The instruction. Raises PlanError where the architecture has none for these types."""
    a, b = (spec.dtype for spec in operands)
    kind = _KINDS[a.name] if form is None else form.kind
    factors = () if form is None else (form.scale, form.vector)
    sums = "f32" if a.kind == "float" else "i32"
    atom = tcgen05_mma(kind, *present(config.tile), a, b, sums, config.blocks, "smem", *factors)
    if not exists_on(atom.archs, target):
        raise PlanError(
            f"a is {a}; {atom.ptx} is for {', '.join(atom.archs)}, not for {target.name}; config=Sm80Config() asks for "
            "mma.sync, which multiplies it"
        )
    return atom


def _pads(atom: Tcgen05Atom, k: int, asked: Asked) -> bool:
    """True if an operand's elements are padded to a byte each in shared memory. 6 bits, and 4 beside wider ones.

    Raises PlanError for a K and parts that such a product does not have.
    """
    padded = [name for name in "AB" if operand_read(atom, name).packing != "packed"]
    if not padded:
        return False
    kind = {"A": atom.a_dtype, "B": atom.b_dtype}[padded[0]]
    if k % STAGE_BYTES_OF_K:
        raise PlanError(
            f"k = {k}: a tensor map of padded {kind} has lines of whole {STAGE_BYTES_OF_K} elements; pad K to "
            f"{rounded_up(k, STAGE_BYTES_OF_K)}"
        )
    beside = ("epilogue", "groups of columns", "batch", "groups of rows", "masked groups")
    if taken := [PARTS[part][0] for part in asked.parts if part not in beside]:
        raise PlanError(
            f"{taken[0]}: no kernel has it with padded {kind}; it takes an epilogue, an order, a batch, groups"
        )
    return True


def _check_scales(
    form: ScaleFormat | None, operands: tuple[Operand, Operand], sizes: tuple[int, int], config: Sm100Config,
    asked: Asked,
) -> None:  # fmt: skip
    """Raise PlanError for operands, a tile or parts that a block-scaled kernel does not take. `sizes`: N and K."""
    if form is None:
        return
    n, k = sizes
    check_lines(form, operands, k)
    rows, columns = present(config.tile)
    if columns % CHUNK_ROWS:
        raise PlanError(
            f"a tile of {columns} columns: scales = {shown(form.name)} have chunks of {CHUNK_ROWS}; 128 or 256"
        )
    if asked.ragged is not None and not asked.ragged.masked and config.blocks > 1:
        raise PlanError(
            f"a tile of {rows} rows: factors of groups of rows lie in chunks of {CHUNK_ROWS} rows, one "
            f"for each tile: a tile of {CHUNK_ROWS} rows"
        )
    beside = ("gate", "epilogue", "groups of columns", "batch", "groups of rows", "masked groups")
    if taken := [PARTS[part][0] for part in asked.parts if part not in beside]:
        raise PlanError(
            f"{taken[0]}: no kernel has it with block scales; it takes a gate, an epilogue, an order, a batch, groups"
        )
    if "gate" in asked.parts:
        if (rows, columns) != gated_scales(config).tile:
            raise PlanError(
                f"a tile of {rows}x{columns}: each half of a gate has whole chunks of {CHUNK_ROWS} columns in it, and "
                f"one CTA has both halves' factors; {BLOCK_ROWS}x{2 * CHUNK_ROWS}"
            )
        if n % CHUNK_ROWS:
            raise PlanError(
                f"n = {n}: the second half's factors begin with a chunk of {CHUNK_ROWS} columns; a multiple of it"
            )


def gated_scales(config: Sm100Config) -> Sm100Config:
    """The configuration of a gate with block scales. 128 columns of each half leave room for one accumulator.

    >>> gated_scales(Sm100Config()).tile
    (128, 256)
    """
    return replace(config, tile=(BLOCK_ROWS, 2 * CHUNK_ROWS), accumulators=1)


def _scales(
    form: ScaleFormat, atom: Tcgen05Atom, tile_k: int, config: Sm100Config, ragged: Ragged | None, halves: int
) -> BlockScales:
    """The block scales of the plan's tiles; raises PlanError where tensor memory or the depth has no room for them."""
    chunks = chunks_of(form, tile_k)
    taken, joined = config.accumulators * atom.accumulator.columns, ragged is not None and not ragged.masked
    groups = 1, present(config.tile)[1] // CHUNK_ROWS
    found = BlockScales(format=form, mma=atom, chunks=chunks, groups=groups, column=taken, joined=joined, halves=halves)
    if taken + found.columns > COLUMNS:
        raise PlanError(
            f"{config.accumulators} accumulators of {atom.accumulator.columns} columns and {found.columns} of block "
            f"scales are {taken + found.columns}; tensor memory has {COLUMNS}. One accumulator, or 128 columns"
        )
    return found


def _operand(
    name: str, spec: Operand, free: str, extent: int, tile_k: int, atom: Tcgen05Atom, batch: int, matrices: int = 1
) -> OperandPlan:
    """One CTA's part of an operand, of which several matrices lie side by side."""
    if spec.dtype.bits == 32 and (spec.order == "row") != (name == "A"):
        raise PlanError(
            f"{name.lower()} is {spec}: the instruction reads an MN-major tf32 under the swizzle 128B_ATOM_32B only, "
            "which no tensor copy here is derived for"
        )
    plan = derive_operand(name, spec, free, extent, tile_k, None, atom)
    if matrices > 1:
        plan = side_by_side(plan, matrices)
    if batch == 1:
        return plan
    return replace(plan, tma=plan.tma.batched("l"), others=tuple([tma.batched("l") for tma in plan.others]))


def _check_groups(
    ragged: Ragged | None, along_k: AlongK | None, sizes: tuple[int, int, int, int],
    operands: tuple[Operand, Operand, Operand], tile_k: int | None,
) -> None:  # fmt: skip
    """Raise PlanError, naming the obstacle, for groups without a kernel."""
    if ragged is not None:
        check_room("ragged", ragged, Ragged, sizes[3])
        check_orders(ragged, operands[0], operands[2])
        if ragged.clears:
            raise PlanError("clears: this kernel leaves rows of no group as they are; a new result begins with zeros")
    if along_k is not None and operands[0].dtype.kind != "float":
        raise PlanError(
            f"a is {operands[0].dtype}: groups along K are of 16-bit and of 8-bit floats; convert a and b to bf16"
        )
    if along_k is not None:
        check_along_k(along_k, sizes, operands[:2], ("tcgen05.mma", (8, 16)), tile_k)


def check_shares(store: StorePlan, beside: SideBySide) -> None:
    """Raise PlanError for loads that cross a CTA's share of a sum's columns."""
    for chunk in (chunk for _, round_ in store.rounds_of(0, 0) for chunk in round_.chunks):
        if beside.matrices > 1 and chunk.column // beside.share != (chunk.column + chunk.width - 1) // beside.share:
            raise PlanError(
                f"a load of columns {chunk.column} to {chunk.column + chunk.width - 1} of C: each CTA of the pair has "
                f"{beside.share} columns of each sum; width = {beside.share & -beside.share} divides them"
            )


def _stages(
    target: Arch, operands: tuple[OperandPlan, OperandPlan], store: StorePlan, config: Sm100Config,
    scales: BlockScales | None, table: int,
) -> int:  # fmt: skip
    """The stages, as many as asked for or as fit; raises PlanError. `table`: bytes of the groups' tables."""
    a, b = operands
    c_bytes = store.bytes(EPILOGUE_WARPS)
    factors = 0 if scales is None else scales.bytes
    each = rounded_up(a.smem.bytes, 1024) + rounded_up(b.smem.bytes, 1024) + factors + 2 * BARRIER_BYTES
    beside = c_bytes + 2 * config.accumulators * BARRIER_BYTES + SLOT_BYTES + rounded_up(table, 16)
    own = f"A {a.smem.bytes} + B {b.smem.bytes}" + f" + scales {factors}" * bool(factors)
    # C's buffers begin at a multiple of 1024 bytes, behind the scales.
    beside += rounded_up(factors, 1024) - factors
    taken = f"{own} bytes beside {c_bytes} of the store"
    return fitting_stages(target, config.stages, LEAST_STAGES, each, beside, taken)


def _schedule(order: Order | None, tile: tuple[int, int], config: Sm100Config, sizes: tuple[int, int, int]) -> Schedule:
    """The order of tiles of M, N and a batch; raises PlanError for more than have numbers."""
    m, n, batch = sizes
    across = -(-m // tile[0]), -(-n // tile[1])
    if (tiles := across[0] * across[1] * batch) > MAX_TILES:
        raise PlanError(f"{across[0]} * {across[1]} * {batch} = {tiles} tiles: a tile's number goes up to {MAX_TILES}")
    return unmirrored(order, Grouped(config.along, config.group), tile, across, "sm_100a's kernel")


def _smem(
    a: OperandPlan, b: OperandPlan, stages: int, config: Sm100Config, store: StorePlan, factors: int, table: int
) -> Sm100Smem:
    """The map; `factors`: bytes of a stage's block scales, `table`: of the groups' tables."""
    accumulators = config.accumulators
    a_stage, b_stage = rounded_up(a.smem.bytes, a.smem.alignment), rounded_up(b.smem.bytes, b.smem.alignment)
    b_offset = rounded_up(stages * a_stage, 1024)
    scales_offset = rounded_up(b_offset + stages * b_stage, 1024)
    c_offset = rounded_up(scales_offset + stages * factors, 1024)
    barriers = c_offset + store.bytes(EPILOGUE_WARPS)
    acc_full = barriers + 2 * stages * BARRIER_BYTES
    slot = acc_full + 2 * accumulators * BARRIER_BYTES
    table_offset = rounded_up(slot + SLOT_BYTES, 16) if table else 0
    return Sm100Smem(
        a_offset=0,
        a_stage_bytes=a_stage,
        b_offset=b_offset,
        b_stage_bytes=b_stage,
        c_offset=c_offset,
        c_buffer_bytes=store.buffer_bytes,
        barrier_offset=barriers,
        empty_offset=barriers + stages * BARRIER_BYTES,
        acc_full_offset=acc_full,
        acc_empty_offset=acc_full + accumulators * BARRIER_BYTES,
        slot_offset=slot,
        scales_offset=scales_offset,
        scales_stage_bytes=factors,
        barrier_bytes=BARRIER_BYTES,
        table_offset=table_offset,
        total=table_offset + table if table else slot + SLOT_BYTES,
        alignment=1024,
    )
