"""Sm90Plan: the objects of the production kernel for Hopper. They are derived from a problem and a configuration.

problem, Sm90Config --> wgmma atom, tiles of A and B, multicast copies, descriptors, store, order of tiles,
                        roles and registers, shared-memory map, pipeline
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from ...arch import arch as arch_named
from ...arguments import checked
from ...atoms import MmaAtom, wgmma
from ...atoms.smem.descriptor import OperandDescriptor
from ...checks.budgets import WARPGROUP
from ...dtypes import DType
from ...errors import PlanError
from ...schedule import GpcOrder, Persistent
from ..column_groups import check_groups
from ..derive import Operand, OperandPlan
from ..epilogue.chain import Epilogue, EpilogueOperand
from ..grouped.plan import GroupedPlan
from ..indexed.added_rows import check_added
from ..indexed.rows import IndexedRows
from ..numbers import W
from ..operands.combinations import Asked, check_parts
from ..operands.combined import Combined
from ..operands.gated import combination, epilogue_behind
from ..operands.pair import SecondPair, pair_of
from ..operands.prologue import Prologue
from ..orders import Order, is_symmetric
from ..partials import GroupScales, PartialResults, RowExchange, check_reductions, partials_of
from ..plan import GemmPlan, check_sizes, check_words, launch_bytes
from ..quantized.formats import QuantizedFormat
from ..ragged import AlongK, Ragged
from ..store import ROWS, WARPS_OF_GROUP, StorePlan
from .config import BESIDE_MATRICES, Sm90Config, registers_of
from .indexed.row_copy import copied_bytes
from .mainloop import COPY_ARRIVALS, Promoted
from .named_barriers import NamedBarriers
from .operands.row_sums import RowSums
from .quantized.warp_products import WarpProducts, warp_products
from .request import ProductParts, Sm90Request, second_maps
from .shards import Gathered, Shards
from .smem import Sm90Smem, SplitKExchange
from .triangular.mirror import is_mirrored
from .triangular.operands import Triangles


@dataclass(frozen=True, kw_only=True)
class Sm90Plan(ProductParts, NamedBarriers, GroupedPlan, Asked):
    """C[l, M, N] = A[l, M, K] @ B[l, K, N] on Hopper. See `derive` and Sm90Config.

    What is asked for beyond a plain product are the fields of `Asked`, as `derive` explains them. Of a Gated, B has
    twice n columns; else each sum is of a matrix of its own, see `further`.

    a, b          the operands: tile of a block, copies (dealt out to the cluster's blocks), descriptors
    blocks        accumulators of a warpgroup, each 64 rows
    half          where a single block is finished half by half: the instruction of half the columns, and B's descriptor
                  for it
    order         number of a tile -> its place, for every cluster and rank
    full_arrivals, full_bytes, empty_arrivals   what completes a phase of the stages' barriers; see `expected`
    registers     (producer's, consumers') after setmaxnreg, or None where nothing changes hands
    mirror        the second store of a symmetric product, or None
    row_exchange  where a cluster has whole rows, the shared memory in which it combines their reductions, or None
    group_scales  shared memory of the scales of groups of rows, where the epilogue quantises those, or None
    """

    m: int
    n: int
    k: int
    arch: Any
    a: Any  # an OperandPlan; a PackedOperand where A is packed weights, a GatheredOperand where its rows are gathered
    b: OperandPlan
    c: Operand
    mma: MmaAtom
    tile: tuple[int, int, int]
    stages: int
    blocks: int
    store: StorePlan | None
    order: Persistent
    smem: Sm90Smem
    exchange: SplitKExchange | None
    threads: int
    full_arrivals: int
    full_bytes: int
    empty_arrivals: int
    registers: tuple[int, int] | None
    config: Sm90Config = field(default_factory=Sm90Config)
    epilogue: Epilogue = field(default_factory=Epilogue)
    half: tuple[MmaAtom, OperandDescriptor] | None = None
    mirror: StorePlan | None = None
    row_exchange: RowExchange | None = None
    group_scales: GroupScales | None = None
    remedy = ", unless store is 'direct'"
    verbs = GemmPlan.verbs | {
        "check": "sm90.checks:check_sm90",
        "execute": "sm90.reference:execute_sm90",
        "explain": "sm90.explain:explain_sm90",
    }

    @property
    def gpc_order(self) -> GpcOrder:
        """Which number of the order the nth cluster of a launch begins with."""
        return GpcOrder(self.config.tuning.gpc_order)

    @property
    def tile_from_block_index(self) -> bool:
        """True if a CTA's index in a two-dimensional grid gives its tile."""
        return self.config.launch == "tiles" and not self.config.tuning.gpc_order

    @property
    def one_each(self) -> bool:
        """True if each cluster computes exactly one tile."""
        return self.config.one_tile_per_cluster or self.config.launch == "tiles"

    @property
    def products(self) -> WarpProducts | None:
        """The products by mma.sync, where warps multiply packed weights, or None."""
        if self.config.tuning.products == "warpgroup":
            return None
        return warp_products(self.config, self.b, self.tile[2])

    @property
    def sums_apart(self) -> bool:
        """True if the scales of packed weights multiply sums, which have registers of their own."""
        return self.weights is not None and self.a.scales_sums

    @property
    def tile_c(self) -> tuple[int, int]:
        """Rows and columns of C in a tile. Of a tile of strips its features.

        >>> from layoutgemm.kernels.quantized.formats import QuantizedFormat
        >>> config = Sm90Config((64, 16), consumers=1, store="direct", loader="warp", launch="tiles", features=48)
        >>> plan = Sm90Plan.derive(6144, 16, 4096, b="bf16:col", weights=QuantizedFormat("int4", 128), config=config)
        >>> plan.tile_c, plan.tiles
        ((48, 16), (128, 1))
        """
        rows, columns = super().tile_c
        return self.config.tuning.features or rows, columns

    @property
    def loader_copies(self) -> bool:
        """True if all threads of the loader copy A, and arrive for their copies."""
        return self.gathers or self.config.tuning.features is not None

    @property
    def least_k_tiles(self) -> int:
        """K tiles of a group along K at least. An empty one has zeros, and a consumer that loads looks as far ahead."""
        return max(1, self.config.staged_epilogue_k_tiles, self.stages if self.config.loader == "self" else 0)

    # ------------------------------------------------------------------------------------------------------- derivation
    @classmethod
    @checked(PlanError)
    def derive(
        cls,
        m: int,
        n: int,
        k: int,
        *,
        batch: int = 1,
        a: Operand | DType | str = "bf16",
        b: Operand | DType | str | None = None,
        c: Operand | DType | str | None = None,
        config: Sm90Config | None = None,
        epilogue: Epilogue | None = None,
        gated: Combined | str | None = None,
        mainloop: Promoted | None = None,
        ragged: Ragged | None = None,
        along_k: AlongK | None = None,
        pair: SecondPair | int | None = None,
        shards: Shards | None = None,
        weights: QuantizedFormat | None = None,
        experts: Ragged | None = None,
        order: Order | None = None,
        triangles: Triangles | None = None,
        indexed: IndexedRows | None = None,
        prologue: Prologue | None = None,
        row_sums: RowSums | None = None,
    ) -> Sm90Plan:
        """Derive the kernel for `batch` products C[m, n] = A[m, k] @ B[k, n].

        m, n, k, batch   any positive sizes; ragged edges are zeros on load and not written on store, but for
                         `bytes_beyond_line`
        a, b             bf16, f16, tf32, e4m3 or e5m2 each, i8 or u8 each, ":row" (default) or ":col"; all but 16-bit
                         ones K-major: a "row", b "col". tf32 is given as float32, and rounded by the tensor copy
        c                f32, bf16, f16, e4m3 or e5m2, of integers also i32, ":row" or ":col"; unless given a's type,
                         bf16 of 8-bit floats, f32 of tf32, i32 of integers: the table is in `kernels.sm90.types`
        epilogue         what happens to the sums before they are stored, see `kernels.epilogue`; `sums` precede a gate
        gated            "silu", "gelu", ...: C = act(A @ B[:, :n]) * (A @ B[:, n:]) for a "col" B of 2n columns, each
                         tile half of either; the epilogue comes after it. See `operands.gated`. Or a Combined: C
                         is a function of A @ B0, A @ B1, ..., of as many matrices. See `operands.combined`
        mainloop         what happens to the sum of each K block, where it is more than added; see
                         `kernels.sm90.mainloop`
        ragged           A's m rows are `batch` groups, each of which multiplies its own matrix of B; or, masked, of m
                         rows of each group as many are computed as count: see `kernels.sm90.grouped`
        along_k          K is `batch` groups, each of which has its own matrix of C: see `kernels.sm90.along_k`
        pair             K of a second pair: C = A @ B + A2 @ B2, in one accumulator; of several sums, in each. See
                         `kernels.operands.pair`
        shards           A's rows arrive from other GPUs, or C's are reduced with theirs: see `kernels.sm90.shards`
        weights          A is packed weights of that format, in a kernel's order; `a` is the type they become: see
                         `kernels.sm90.quantized`
        experts          C's n columns are `batch` groups, each times packed weights of its own: see
                         `kernels.sm90.quantized.experts`
        order            the order of tiles, of all or some of them: a Schedule, a name such as "lower", a Layout, or a
                         function of the tile's number; see `kernels.orders`. None: the configuration's bands
        triangles        A or B is triangular, and K tiles of zeros are skipped: see `triangular.operands`
        indexed          A's rows are gathered, or C's scattered, through vectors of indices; m is the product's rows:
                         see `kernels.indexed.rows`
        prologue         a function of A's elements, in registers before they are multiplied: see
                         `kernels.operands.prologue`
        row_sums         the sums of A's rows along K are stored too, as a bias's gradient beside its weight's: see
                         `kernels.sm90.operands.row_sums`

        Raises PlanError naming the argument and the arithmetic when no such kernel exists; passes on AtomError,
        DescriptorError and TmaError.

        >>> plan = Sm90Plan.derive(8192, 8192, 8192, b="bf16:col", config=Sm90Config((256, 224), cluster=(2, 1)))
        >>> plan.stages, plan.threads, plan.smem.total, plan.full_bytes
        (3, 256, 217136, 61440)
        """
        check_sizes(m=m, n=n, k=k, batch=batch)
        how = combination(gated)
        asked = Asked(
            how, mainloop, ragged, along_k, pair_of(pair, how), indexed, prologue, weights, experts, shards,
            triangles, epilogue_behind(how, epilogue), batch,
            is_symmetric(order), row_sums,
        )  # fmt: skip
        check_parts(asked.parts, batch)
        kernel = Sm90Request.of((m, n, k, batch), (a, b, c), config or _usual(triangles), asked)
        plan = cls._of(kernel, order)
        check_words(plan.words)
        check_reductions(plan.epilogue, (n, plan.columns_at_a_time), plan.c.dtype.name, rows=kernel.rows_of_consumer)
        check_groups(plan.epilogue, plan.stored)
        check_added(plan)
        return plan

    @classmethod
    def _of(cls, kernel: Sm90Request, order: Order | None) -> Sm90Plan:
        """The plan of a request: each object from those before it."""
        config, c_spec = kernel.config, kernel.operands[2]
        (m, n, k, _), arch = kernel.sizes, arch_named("sm_90a")
        atom, blocks, groups = kernel.instruction(config.tile[1]), kernel.blocks, kernel.groups
        tile_k, (along_m, along_n) = kernel.tile_k(atom), config.cluster
        a_plan, b_plan = kernel.operand_plans(atom, tile_k)
        half = kernel.half(b_plan)
        store = kernel.store(half is not None, kernel.further_maps(a_plan, b_plan))
        exchange = kernel.exchange(atom)
        stages = kernel.stages(a_plan, b_plan, kernel.store_bytes(store), exchange)
        kernel.check_early(stages, tile_k)
        kernel.check_products(b_plan, tile_k)
        numbers, threads = kernel.numbers, kernel.threads
        schedule = kernel.schedule(order)
        mirror = kernel.mirror(store, schedule)
        kernel.check_maps((store, mirror), a_plan, b_plan)
        smem, exchange, row_exchange, group_scales = kernel.memory(a_plan, b_plan, stages, store, exchange)
        return cls(
            **{**kernel.asked, "epilogue": kernel.epilogue or Epilogue()},
            m=m,
            n=n,
            k=k,
            arch=arch,
            a=a_plan,
            b=b_plan,
            c=c_spec,
            mma=atom,
            tile=(*config.tile, tile_k),
            stages=stages,
            blocks=blocks,
            store=store,
            order=Persistent(schedule, 1, config.cluster),
            smem=smem,
            exchange=exchange,
            threads=threads,
            full_arrivals=1 + COPY_ARRIVALS * bool(numbers.parts) + kernel.gather_arrivals(a_plan),
            full_bytes=a_plan.bytes * (kernel.config.tuning.features is None) + b_plan.bytes,
            empty_arrivals=groups * WARPS_OF_GROUP * (along_m + along_n - 1),
            registers=registers_of(
                config,
                arch,
                threads,
                bool(numbers.parts),
                kernel.shards is not None,
                kernel.gathers or config.tuning.features is not None,
            ),
            config=config,
            half=half,
            mirror=mirror,
            row_exchange=row_exchange,
            group_scales=group_scales,
        )

    # ------------------------------------------------------------------------------------------------ what is asked for
    @property
    def takes_extra_params(self) -> bool:
        """True if the kernel takes words."""
        return (
            bool(self.epilogue)
            or self.weights is not None
            or any(
                part is not None
                for part in (self.mainloop, self.groups, self.shards, self.indexed, self.prologue, self.row_sums)
            )
            or bool(self.words)
        )

    @property
    def words(self) -> tuple[str, ...]:
        """Names of the 64-bit parameters: of epilogue, main loop, groups, shards, further operands, order, rows."""
        first, last = [
            [word for part in parts if part is not None for word in part.words] for parts in self._with_words
        ]
        return (*self.epilogue.words, *first, *self.operand_words, *last)

    @property
    def _with_words(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Parts that may take words, before and after further operands; None for those that are not asked for."""
        first = self.mainloop, self.groups, self.shards
        return first, (self.order.schedule, self.indexed, self.prologue, self.row_sums)

    @property
    def stores_by_maps(self) -> bool:
        """True if TMA stores C: scattered rows are stored by threads."""
        return self.store is not None and not self.scatters

    @property
    def stored(self) -> MmaAtom:
        """The instruction whose accumulator has the columns that are stored. `mma`, but for a gated product."""
        if self.gated is None:
            return self.mma
        return wgmma(self.tile_c[1], self.mma.a_dtype, self.mma.b_dtype, self.mma.c_dtype)

    @property
    def buffered_matrices(self) -> tuple[EpilogueOperand, ...]:
        """The epilogue's matrices that a warp reads line by line, through its buffer: see `sm90.device.matrices`.

        They need registers beside the accumulators, which a tile of 256x224 does not leave.

        >>> from layoutgemm.kernels.epilogue.chain import Epilogue, Residual
        >>> lines = Epilogue(Residual("bf16")).in_pairs(lines=True)
        >>> [len(Sm90Plan.derive(512, 448, 64, config=Sm90Config(tile), epilogue=lines).buffered_matrices)
        ...  for tile in ((128, 224), (256, 224))]
        [1, 0]
        """
        store, epilogue = self.store, self.epilogue
        plain = self.mainloop is None and self.weights is None and self.prologue is None and self.shards is None
        by_warps = store is not None and store.warps == 1 and not store.at_once and not self.scatters
        fits = self.blocks * self.mma.accumulator_registers <= BESIDE_MATRICES
        if not (epilogue.lines and plain and by_warps and fits and self.c.dtype.bits == 16):
            return ()
        return tuple(each for each in epilogue.matrices if each.dtype.bits == 16 and each.order == "row")

    @checked(PlanError)
    def pieces(self, part: int) -> tuple[tuple[int, int], ...]:
        """The pieces that a consumer stores, in order: (block of rows, part of its columns).

        part  of K, whose block of the cluster this is

        >>> Sm90Plan.derive(256, 256, 256, config=Sm90Config((128, 128), staged_epilogue_k_tiles=1)).pieces(0)
        ((0, 0), (0, 1))
        """
        if self.half is not None:
            return ((0, 0), (0, 1))
        return tuple((block, part) for block in range(self.blocks))

    @checked(PlanError)
    def stored_values(self, part: int) -> range:
        """Values of each accumulator's threads that the block with a part of K stores. All, or a part of the columns.

        >>> config = Sm90Config((64, 32), consumers=1, split=2, one_tile_per_cluster=True)
        >>> Sm90Plan.derive(64, 32, 256, config=config).stored_values(1)
        range(8, 16)
        """
        count = self.stored.accumulator_registers // self.config.split
        return range(part * count, (part + 1) * count)

    @checked(PlanError)
    def summed_values(self, part: int) -> tuple[int, ...]:
        """Accumulator values that the CTA with this part of K adds. Those that it stores, of each sum.

        >>> config = Sm90Config((64, 64), consumers=1, split=2, one_tile_per_cluster=True)
        >>> plan = Sm90Plan.derive(64, 32, 256, b="bf16:col", config=config, gated="silu")
        >>> plan.summed_values(1) == (*range(8, 16), *range(24, 32))
        True
        """
        count = self.stored.accumulator_registers
        return tuple([i * count + value for i in range(self.sums) for value in self.stored_values(part)])

    @property
    def columns_at_a_time(self) -> int:
        """Columns of a tile that a thread stores at a time. All, of a split K its part, or a half."""
        return self.tile_c[1] // (2 if self.half is not None else self.config.split)

    @property
    def counts_groups(self) -> bool:
        """True if places hang on the number of groups.

        Those of reduced rows do, and those of masked groups in one matrix.
        """
        return (self.joined_rows and bool(self.partials)) or (self.experts is not None and self.experts.masked)

    @property
    def partials(self) -> tuple[PartialResults, ...]:
        """The partial results of the epilogue's reductions."""
        joined, mirrored = self.joined_rows, is_mirrored(self.order.schedule)
        found = partials_of(self.epilogue, self.columns_at_a_time, joined=joined, mirrored=mirrored)
        return tuple(each for each in found if self.row_exchange is None or each.step.axes != "m")

    @property
    def workspace(self) -> int:
        """Bytes of device memory of partial results, copied rows and added rows.

        >>> from layoutgemm.kernels import IndexedRows, RowIndices
        >>> Sm90Plan.derive(512, 512, 64, indexed=IndexedRows(RowIndices(9), copy=True)).workspace
        65536
        """
        return super().workspace + copied_bytes(self)

    @property
    def launch_bytes(self) -> int:
        """Bytes of shared memory that a launch asks for: see `kernels.plan.launch_bytes`.

        >>> config = Sm90Config((64, 64), consumers=1, stages=2)
        >>> [Sm90Plan.derive(64, 64, 256, config=each).launch_bytes for each in (config, config.tuned(overlap=True))]
        [40992, 115713]
        """
        tuning = self.config.tuning
        return launch_bytes(self.arch, self.smem.total, tuning.overlap, tuning.blocks_per_sm)

    @property
    def loads_once(self) -> bool:
        """True if a loader of its own has the K tiles of a single tile.

        Of packed weights alone: other kernels were not measured with that loop.
        """
        return self.one_each and self.config.loader != "self" and self.weights is not None

    def place_of_consumer(self, consumer: W) -> tuple[W, W | int]:
        """(which rows of the tile a consumer has, its slice)."""
        groups = self.config.warpgroups_of_tile
        return (consumer % groups, consumer // groups) if self.config.slices > 1 else (consumer, 0)

    def slice_of_k(self, k_tiles: W, number: W | int) -> W:
        """A slice's share of a part's K tiles. Those whose number is its own, modulo the slices."""
        slices = self.config.slices
        return (k_tiles + (slices - 1 - number)) // slices if slices > 1 else k_tiles

    def part_of_k(self, k_tiles: W, part: W) -> tuple[W, W]:
        """First and end k tile of one part."""
        split = self.config.split
        return (k_tiles * part // split, k_tiles * (part + 1) // split) if split > 1 else (part, k_tiles)

    @property
    def loader_warp(self) -> int:
        """The warp of the block that issues the loads. The first after the consumers, or the last consumer's first."""
        return WARPS_OF_GROUP * (self.config.consumers - (self.config.loader == "self"))

    @property
    def numbers_warp(self) -> int | None:
        """The warp that copies the main loop's numbers, if they have one. A consumer that loads copies them itself."""
        return self.loader_warp + 1 if self.numbers.parts and self.config.loader != "self" else None

    @property
    def second_maps(self) -> tuple[int, int]:
        """Tensor maps of further matrices that are loaded as A is, and as B is."""
        return second_maps(self.pair, self.shards, self.a, self.b)

    @property
    def stays(self) -> bool:
        """True if the loader's one tile begins at constants."""
        return self.config.launch == "tiles" and self.half is None

    def operand(self, name: str, turned: bool = False) -> OperandPlan:
        """A or B, with the copies of a pair that has turned or has not."""
        found: OperandPlan = self.a if name == "A" else self.b
        return replace(found, tma=found.turned) if turned and found.turned is not None else found

    def expected(self, origin: Any, sizes: Any, choose: Any) -> Any:
        """Bytes that a stage's barrier expects, for the tile at an origin. Ints or traced integers. See `edges`."""
        found = self.full_bytes
        for operand in (self.a, self.b):
            if (ends := operand.ends) is not None:
                extent = getattr(sizes, ends.dim)
                found += ends.expected(extent, origin[ends.dim], ends.last(extent), choose) - ends.bytes
        return found

    @property
    def dead_runs(self) -> tuple[tuple[int, int], ...]:
        """The runs of A's tile that no copy writes, (first byte, bytes): zeros, written once."""
        if self.config.loaded_a_rows in (None, ROWS):
            return ()
        tile, rows = self.a.smem, self.config.loaded_a_rows
        span = tile.span_elements
        runs = [(int(tile.byte(rows, k)), (ROWS - rows) * tile.span) for k in range(0, tile.extent[1], span)]
        return tuple((first - first % tile.span, count) for first, count in runs)

    @property
    def device_kernel(self) -> str:
        """The kernel's class in device code."""
        if self.shards is not None:
            which = "Sm90GatheredKernel" if isinstance(self.shards, Gathered) else "Sm90ScatteredKernel"
            return f"sm90.device.shards:{which}"
        if self.experts is not None:
            return "sm90.device.experts:Sm90ExpertsKernel"
        if self.config.tuning.features is not None:
            return "sm90.device.strips:Sm90StripsKernel"
        if self.weights is not None:
            return "sm90.device.quantized:Sm90QuantizedKernel"
        loop = "Promoted" if self.mainloop is not None else "Prologue" if self.prologue is not None else ""
        if self.row_sums is not None:
            return f"sm90.device.row_sums:Sm90{'AlongK' if self.along_k is not None else ''}RowSumsKernel"
        if self.along_k is not None:
            return f"sm90.device.along_k:Sm90AlongK{loop}Kernel"
        if self.gathers or self.scatters:
            return f"sm90.device.indexed:Sm90Indexed{'Groups' if self.ragged is not None else ''}{loop}Kernel"
        if self.ragged is not None:
            return f"sm90.device.grouped:Sm90Ragged{loop}Kernel"
        if self.prologue is not None:
            return "sm90.device.prologue:Sm90PrologueKernel"
        if self.mainloop is not None:
            return "sm90.device.promoted:Sm90PromotedKernel"
        return "sm90.device.fused:Sm90FusedKernel" if self.takes_extra_params else "sm90.device.gemm:Sm90GemmKernel"

    def __str__(self) -> str:
        cluster = "x".join(map(str, self.config.cluster))
        return (
            f"{self.described()}, {self.stages} stages, {self.config.schedule}, "
            f"{self.config.consumers} consumer(s), loads by {self.config.loader}, cluster {cluster}"
            + (f", {self.gated}" if self.gated is not None else "")
            + (f", K blocks of {self.mainloop.depth} promoted" if self.mainloop is not None else "")
            + (f", {'masked ' * self.ragged.masked}rows in {self.batch} group(s)" if self.ragged is not None else "")
            + (f", K in {self.batch} group(s)" if self.along_k is not None else "")
            + (f", and a second pair of K = {self.pair.k}" if self.pair is not None else "")
            + (f", {self.shards.name}" if self.shards is not None else "")
            + (f", A is packed {self.weights}" if self.weights is not None else "")
            + (f", columns in {self.batch} group(s)" if self.experts is not None else "")
            + (f", {self.triangles}" if self.triangles is not None else "")
            + (", each tile off the diagonal stored twice" if self.mirror is not None else "")
            + (f", {self.indexed}" if self.indexed is not None else "")
            + (f", {self.prologue}" if self.prologue is not None else "")
            + (f", sums of A's rows in {self.row_sums.kind}" if self.row_sums is not None else "")
        )


__all__ = ["WARPGROUP", "WARPS_OF_GROUP", "Sm90Config", "Sm90Plan"]


def _usual(triangles: Triangles | None) -> Sm90Config:
    """The configuration of a caller who gives none."""
    return Sm90Config() if triangles is None else Sm90Config(loader="warpgroup")
