"""The request of a Hopper plan. Its arguments, read and checked, and each object that they decide.

`Sm90Plan.derive` asks for the objects in order; each is derived from the arguments and from the objects before it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...arch import arch as arch_named
from ...atoms import MmaAtom, wgmma
from ...atoms.smem.descriptor import OperandDescriptor
from ...atoms.smem.descriptor import derive as derive_descriptor
from ...checks.budgets import WARPGROUP, launch_registers
from ...errors import PlanError
from ...layouts import Layout
from ...schedule import LayoutOrder, Schedule
from ..derive import Operand, OperandPlan, OperandSpec, derive_operand, with_copies
from ..epilogue.chain import Epilogue
from ..grouped.along_k import with_starts
from ..grouped.stores import ragged_store
from ..indexed.rows import IndexedProduct
from ..operands.combinations import PARTS, Asked, check_parts, order_parts
from ..operands.combined import Combined, check_combined, side_by_side
from ..operands.gated import check_gated, check_sums, in_halves
from ..operands.pair import SecondPair
from ..orders import Order, order_for
from ..partials import GroupScales, RowExchange, quantized_rows, whole_rows
from ..plan import LEAST_STAGES, STAGE_BYTES_OF_K, check_epilogue, fitting_stages, present, stage_depth
from ..quantized.formats import UNIT_K, QuantizedFormat
from ..ragged import Ragged
from ..store import ROWS, TILE_ALIGNMENT, WARP_ROWS, WARPS_OF_GROUP, StorePlan
from .along_k import check_along_k
from .config import HELD_PACKED, Sm90Config, check_tiles, check_whole_rows, loader_threads, order_of, registers_of
from .edges import with_ends
from .grouped import check_ragged
from .indexed.copies import GatheredOperand, RowGather
from .indexed.refusals import check_indexed
from .mainloop import Promoted, check_promoted
from .multicast import OTHER_MAPS, check_maps, columns_of, few_rows, shared
from .operands.fragment_loads import product_groups
from .operands.prologue import check_prologue
from .operands.row_sums import check_row_sums
from .operands.stage_numbers import StageNumbers
from .quantized.experts import check_experts
from .quantized.operand import PackedOperand, check_packed, check_types, packed_operand
from .quantized.strips import check_features
from .quantized.warp_products import warp_products
from .shards import Gathered, Shards, check_shards
from .smem import Sm90Smem, SplitKExchange, exchange_bytes, smem_map, stage_bytes
from .triangular.mirror import check_mirror, is_mirrored, mirror_of
from .triangular.operands import check_triangles
from .types import accumulator_of, operands

_WITH_WHOLE_ROWS = ("gate", "several B", "second pair", "batch", "epilogue", "groups of columns", "other orders")
_WITH_GROUP_SCALES = ("batch", "epilogue")
_SHIFTED = ("groups of rows", "main loop", "batch", "other orders")  # parts whose last tile may begin earlier
OperandOfA = OperandPlan | PackedOperand | GatheredOperand


def second_maps(pair: SecondPair | None, shards: Shards | None, a: OperandOfA, b: OperandPlan) -> tuple[int, int]:
    """Tensor maps of a second A and B, or of own rows of gathered A."""
    if pair is not None:
        return len(a.copies), len(b.copies)
    return int(isinstance(shards, Gathered)), 0


def check_rows(config: Sm90Config, m: int) -> None:
    """Raise PlanError if fewer rows of A's tile are loaded than the product has.

    >>> check_rows(Sm90Config((64, 64), consumers=1, loaded_a_rows=16), 17)
    Traceback (most recent call last):
        ...
    layoutgemm.errors.PlanError: loaded_a_rows = 16 of A's tile are loaded, and the product has 17
    """
    if config.loaded_a_rows is not None and m > config.loaded_a_rows:
        raise PlanError(f"loaded_a_rows = {config.loaded_a_rows} of A's tile are loaded, and the product has {m}")


def check_skipped(asked: Asked, config: Sm90Config) -> None:
    """Raise PlanError for empty blocks to skip in other kernels than those of groups.

    A prologue's kernel, with A in registers, multiplies all blocks.

    >>> check_skipped(Asked(), Sm90Config(skip_empty_blocks=True))
    Traceback (most recent call last):
        ...
    layoutgemm.errors.PlanError: skip_empty_blocks = True: only groups of rows end within a tile
    """
    if config.tuning.skip_empty_blocks and (asked.ragged is None or asked.prologue is not None):
        why = "only groups of rows end within a tile" if asked.ragged is None else "a prologue's loop multiplies all"
        raise PlanError(f"skip_empty_blocks = True: {why}")


def check_turned(asked: Asked, config: Sm90Config) -> None:
    """Raise PlanError for pairs that turn, or tiles that are halved, in other kernels.

    >>> check_turned(Asked(), Sm90Config(cluster=(2, 1), turn_last_pair=True))
    Traceback (most recent call last):
        ...
    layoutgemm.errors.PlanError: turn_last_pair = True: only groups of rows have a last row of tiles each
    """
    if config.tuning.turn_last_pair:
        if asked.ragged is None:
            raise PlanError("turn_last_pair = True: only groups of rows have a last row of tiles each")
        if asked.indexed is not None and asked.indexed.gather is not None and not asked.indexed.copies:
            raise PlanError("turn_last_pair = True: a turned pair shares A, and cp.async gathers rows for one CTA")
        if asked.pair is not None:
            raise PlanError("turn_last_pair = True: a turned pair of CTAs shares A alone, and the product has an A2")
    if config.tuning.shift_last_tile:
        parts = [part for part in asked.parts if part not in _SHIFTED]
        if asked.ragged is None or parts:
            why = f"not with {PARTS[parts[0]][1]}" if parts else "only groups of rows end between tiles"
            raise PlanError(f"shift_last_tile = True: {why}")
    if config.tuning.halve_last_round:
        if asked.pair is not None:
            raise PlanError("halve_last_round = True: half a tile is of one A, and the product has an A2")
        if asked.ragged is None or asked.prologue is not None:
            why = (
                "only groups of rows count tiles on the GPU" if asked.ragged is None else "a prologue's loop takes all"
            )
            raise PlanError(f"halve_last_round = True: {why}")
        pair = config.cluster[0] * config.cluster[1] <= 2
        if config.schedule != "cooperative" or config.consumers != 2 or not pair:
            raise PlanError(
                f"halve_last_round = True, {config.schedule}, {config.consumers} consumer(s), clusters of "
                f"{config.cluster}: half a tile is one of two cooperative warpgroups' rows, in pairs of CTAs at most"
            )


class ProductParts(IndexedProduct):
    """Facts that the parts of a product decide, for a request and for its plan."""

    config: Sm90Config
    gated: Combined | None
    mainloop: Promoted | None
    ragged: Ragged | None

    @property
    def numbers(self) -> StageNumbers:
        """The numbers that the main loop reads in a stage."""
        config, through = self.config, () if self.indexed is None else self.indexed.through
        sums = 1 if self.gated is None else self.gated.matrices
        # Of few tiles of groups. One of 64x64 took 4% longer with it.
        slack = config.tuning.shift_last_tile and config.loader != "self" and config.tile != (ROWS, ROWS)
        return StageNumbers.of(self.mainloop, config.tile, not self.joined_rows, sums, through, slack)


@dataclass(frozen=True, kw_only=True)
class Sm90Request(ProductParts, Asked):
    """The arguments of `Sm90Plan.derive`, read and checked against each other."""

    sizes: tuple[int, int, int, int]
    operands: tuple[Operand, Operand, Operand]
    config: Sm90Config

    @classmethod
    def of(
        cls, sizes: tuple[int, int, int, int], given: tuple[OperandSpec, OperandSpec | None, OperandSpec | None],
        config: Sm90Config, asked: Asked,
    ) -> Sm90Request:  # fmt: skip
        """The request of a caller's arguments; raises PlanError."""
        gated, mainloop, weights = asked.gated, asked.mainloop, asked.weights
        if weights is not None:  # their types first: for others a conversion of A is no way out
            check_types(weights, Operand.parse(given[0]), Operand.parse(given[0] if given[1] is None else given[1]))
        a, b, c = operands(*given)
        check_epilogue(present(asked.epilogue), c)
        if gated is not None:
            check_sums(gated, b, c)
            if gated.separate:
                check_combined(gated, config.tile[1], config.split, b)
            else:
                check_gated(config.tile[1], config.split)
        if mainloop is not None:
            if isinstance(mainloop, Promoted):
                mainloop = mainloop.of_sums(gated, sizes[1], config.tile[1])
            check_promoted(mainloop, config, a, c, gated, accumulator_of(a.dtype), sizes[2])
            config = replace(config, tile_k=mainloop.depth)
        if asked.ragged is not None:
            check_ragged(asked.ragged, sizes[3], config, a, c)
        check_skipped(asked, config)
        check_turned(asked, config)
        if asked.along_k is not None:
            check_along_k(asked.along_k, sizes, config, (a, b), mainloop)
        if asked.experts is not None:
            check_experts(asked.experts, sizes, weights, config, c, asked.epilogue)
        if weights is not None:
            check_packed(weights, sizes, config, (a, b), asked.epilogue)
            config = replace(config, tile_k=config.tile_k or UNIT_K)
            check_features(config, asked.epilogue, asked.experts is not None)
        if asked.indexed is not None:
            check_indexed(asked.indexed, config, (a, c), asked.ragged, asked.epilogue, mainloop, sizes[3])
        if asked.prologue is not None:
            check_prologue(asked.prologue, config, a, b)
        if asked.row_sums is not None:
            check_row_sums(asked.row_sums, config, a, config.tile_k or STAGE_BYTES_OF_K // a.dtype.bytes)
        if asked.shards is not None:
            check_shards(asked.shards, config, c, asked.epilogue)
        if asked.triangles is not None:
            check_triangles(asked.triangles, sizes, config, gated, mainloop)
        return cls(**{**asked.asked, "mainloop": mainloop}, sizes=sizes, operands=(a, b, c), config=config)

    def gather_arrivals(self, a: OperandOfA) -> int:
        """Arrivals at a stage's barrier of threads that copy A."""
        return a.arrivals if isinstance(a, GatheredOperand | PackedOperand) else 0

    @property
    def grouped_lines(self) -> bool:
        """True if groups are lines of one C. Each may end with a part of a tile."""
        return self.joined_rows or self.experts is not None

    @property
    def named(self) -> list[str]:
        """Names of the arguments that ask for more than a plain product."""
        names = ("gated", "mainloop", "ragged", "along_k", "pair", "prologue")
        return [name for name in names if getattr(self, name) is not None]

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return WARPGROUP * self.config.consumers + loader_threads(self.config.loader, bool(self.numbers.parts))

    def check_early(self, stages: int, tile_k: int) -> None:
        """Raise PlanError for more early k tiles than stages, or than K has."""
        early, k = self.config.staged_epilogue_k_tiles, self.sizes[2]
        if early and not early < stages:
            raise PlanError(
                f"staged_epilogue_k_tiles = {early}: fewer than the {stages} stages, one of which is being refilled"
            )
        if early > -(-k // tile_k) and self.along_k is None:
            raise PlanError(f"staged_epilogue_k_tiles = {early} of {tile_k}: K = {k} has {-(-k // tile_k)}")

    def check_products(self, b: OperandPlan, tile_k: int) -> None:
        """Raise PlanError for products of warps that the kernel has not."""
        if self.weights is None and self.config.schedule == "sliced":
            raise PlanError("schedule = 'sliced': only the loop of packed weights takes K tiles in turn")
        if self.prologue is not None:
            product_groups(tile_k // int(self.instruction(self.config.tile[1]).shape_mnk[2]), self.blocks)
        if self.config.tuning.products == "warp":
            if self.weights is None:
                raise PlanError("products = 'warp': only those of packed weights are by mma.sync")
            warp_products(self.config, b, tile_k)
        if self.config.tuning.features is not None and self.weights is None:
            raise PlanError(f"features = {self.config.tuning.features}: only packed weights have strips of 16")
        if self.config.tuning.scales == "sums" and (self.weights is None or not self.weights.group):
            what = "no packed weights" if self.weights is None else f"weights {self.weights}"
            raise PlanError(f"scales = 'sums' of {what}: there are no scales of groups")

    def check_maps(self, stores: tuple[StorePlan | None, StorePlan | None], a: OperandOfA, b: OperandPlan) -> None:
        """Raise PlanError for more tensor maps than the kernel has parameters for.

        stores  C's, and a symmetric product's second one
        """
        check_maps(stores, self.further_maps(a, b))

    def further_maps(self, a: OperandOfA, b: OperandPlan) -> int:
        """Tensor maps of A and B after the first of each."""
        return a.maps + b.maps - 2 + sum(second_maps(self.pair, self.shards, a, b))

    def schedule(self, order: Order | None) -> Schedule:
        """The order of clusters' tiles; raises PlanError for one that the kernel has not."""
        config, (m, n, _, batch) = self.config, self.sizes
        rows = config.tuning.features or config.tile[0]
        tile = rows * config.cluster[0], self.columns * config.cluster[1]
        across = -(-m // tile[0]), -(-n // tile[1])
        check_tiles(config, across if self.experts is None else across[::-1], batch, self.grouped_lines)
        usual = order_of(self.config)
        if order is None:
            return usual
        found = order_for(order, usual, tile, across)
        check_parts((*self.parts, *order_parts(found, usual)), batch)
        if self.row_exchange is not None and not found.is_full:
            raise PlanError(
                f"finish = 'cluster' and an order of some tiles: rows of no tile have results; order = {found}"
            )
        if found == usual:
            return usual
        if self.config.launch == "tiles":
            raise PlanError(f"order = {found}: a grid of tiles has its own order; launch='workers' takes any")
        if self.ragged is not None and isinstance(found, LayoutOrder):
            raise PlanError(f"order = {found}: each group has a grid of its own, and a layout is of one")
        if is_mirrored(found):
            check_mirror(self.sizes, self.config, self.mainloop)
        return found

    def mirror(self, store: StorePlan | None, schedule: Schedule) -> StorePlan | None:
        """The second store of a symmetric product, or None."""
        if not is_mirrored(schedule) or store is None:
            return None
        stored, chunks = self.instruction(self.columns), self.config.tuning.chunks
        return mirror_of(store, stored, self.blocks, chunks, self.sizes[3])

    @property
    def groups(self) -> int:
        """Warpgroups that share a tile's rows."""
        return self.config.warpgroups_of_tile

    @property
    def blocks(self) -> int:
        """Accumulators of a warpgroup."""
        return self.config.tile[0] // ROWS // self.groups

    @property
    def columns(self) -> int:
        """Columns of C in a tile."""
        return self.config.tile[1] // (1 if self.gated is None else self.gated.matrices)

    @property
    def halved(self) -> bool:
        """True if a single block of rows is finished by halves of its columns."""
        return bool(self.config.staged_epilogue_k_tiles) and self.blocks == 1

    def instruction(self, columns: int) -> MmaAtom:
        """The wgmma of `columns` columns, as the DSL issues it."""
        a, b, _ = self.operands
        sums = accumulator_of(a.dtype)
        source = "smem" if self.weights is None and self.prologue is None else "rmem"
        return wgmma(columns, a.dtype, b.dtype, sums, source, saturate=sums == "i32")

    def tile_k(self, atom: MmaAtom) -> int:
        """The depth of a stage in elements; raises PlanError."""
        return stage_depth(self.config.tile_k, STAGE_BYTES_OF_K, self.operands[0].dtype, atom)

    def operand_plans(self, atom: MmaAtom, tile_k: int) -> tuple[OperandOfA, OperandPlan]:
        """A and B: tiles, shared copies, edge boxes; raises PlanError."""
        if self.weights is not None:
            return self.packed_plans(self.weights, atom, tile_k)
        config, (a_spec, b_spec, c_spec), (m, _, _, batch) = self.config, self.operands, self.sizes
        (tile_m, tile_n), (along_m, along_n) = config.tile, config.cluster
        matrices = batch > 1 and self.along_k is None
        batched_a, batched_b = matrices and not self.joined_rows, matrices or self.joined_rows
        by_descriptor = atom  # A's tile is that of a product from shared memory, wherever it goes from there
        if self.prologue is not None:
            by_descriptor = wgmma(tile_n, a_spec.dtype, b_spec.dtype, atom.c_dtype)
        a_whole = derive_operand("A", a_spec, "M", tile_m, tile_k, None, by_descriptor)
        a_plan = shared(a_whole, along_n, batched_a)
        if config.loaded_a_rows is not None:
            a_plan = few_rows(a_plan, config.loaded_a_rows, batched_a)
            check_rows(config, m)
        b_whole = columns_of(b_spec, tile_n, tile_k, atom, halved=self.halved)
        apart = self.gated is not None and self.gated.separate
        if self.gated is not None:
            several = self.gated.matrices
            b_whole = side_by_side(b_whole, several) if apart else replace(b_whole, tma=in_halves(b_whole.tma))
        a_plan, b_plan = [
            with_copies(x, [replace(tma, l2_promotion=config.tuning.l2_promotion) for tma in x.copies])
            for x in (a_plan, shared(b_whole, along_m, batched_b))
        ]
        if (
            config.tuning.turn_last_pair
        ):  # whole boxes of A where both CTAs need another tile: they cost less than halves
            turned = shared(a_whole, along_m, batched_a).tma
            a_plan = replace(a_plan, turned=replace(turned, l2_promotion=config.tuning.l2_promotion))
        if self.along_k is not None and not self.along_k.in_blocks:
            return with_starts(a_plan), with_starts(b_plan)
        # Beside loads between the products it costs 1%; halves of a tile ptxas serialises then (as with `stays`): 5%.
        further = apart or self.pair is not None  # whose tensor maps leave no room for those of last rows
        ends = config.loader != "self" and not self.halved and not further
        own_rows = isinstance(self.shards, Gathered)  # have a map of their own, whatever rows are last
        if self.gathers:
            copy = RowGather.derive(a_plan.smem)
            gathered = GatheredOperand(a_plan.dtype, a_plan.smem, a_plan.descriptor, copy)
            return gathered, with_ends(b_plan, "n", tile_n, c_spec.dtype, ends)
        return (
            with_ends(
                a_plan,
                "m",
                tile_m,
                c_spec.dtype,
                ends and config.loaded_a_rows is None and self.ragged is None and not own_rows,
            ),
            with_ends(b_plan, "n", tile_n, c_spec.dtype, ends and self.gated is None),
        )

    def packed_plans(self, weights: QuantizedFormat, atom: MmaAtom, tile_k: int) -> tuple[PackedOperand, OperandPlan]:
        """A of packed weights, and B as everywhere."""
        config, (a_spec, b_spec, c_spec) = self.config, self.operands
        tile_m, tile_n = config.tile
        b_plan = shared(columns_of(b_spec, tile_n, tile_k, atom, halved=False), config.cluster[0], False)
        b_plan = with_copies(b_plan, [replace(tma, l2_promotion=config.tuning.l2_promotion) for tma in b_plan.copies])
        ends = config.loader != "self" and self.experts is None  # groups begin at any column
        tuning = config.tuning
        threads = loader_threads(config.loader, numbers=False)
        strips = None if tuning.features is None else (tuning.features, threads)
        packed = packed_operand(weights, tile_m, tile_k, a_spec, tuning.scales, strips)
        packed = replace(packed, turns=self.turns(packed, atom))
        return packed, with_ends(b_plan, "n", tile_n, c_spec.dtype, ends)

    def turns(self, packed: PackedOperand, atom: MmaAtom) -> int:
        """The turns of a K tile of packed weights. As few as leave registers for two sets of fragments.

        With fewer registers ptxas waits for each wgmma by itself (C7510), in silence. If none fits, there is one.
        """
        if self.blocks > 1 or self.config.tuning.products == "warp" or packed.scales_sums:
            return 1
        arch, steps = arch_named("sm_90a"), packed.smem.extent[1] // packed.packing.depth
        launched = launch_registers(arch, self.threads, self.config.tuning.blocks_per_sm)
        _, have = registers_of(self.config, arch, self.threads) or (0, launched)
        for turns in (1, 2, 4):
            trial = replace(packed, turns=turns)
            if steps % trial.product_groups(1):
                continue
            if atom.accumulator_registers + trial.registers(atom, 1) + HELD_PACKED <= have:
                return turns
        return 1

    def half(self, b_plan: OperandPlan) -> tuple[MmaAtom, OperandDescriptor] | None:
        """The instruction of half the columns and B's descriptor, if halves are finished."""
        if not self.halved:
            return None
        if self.gated is not None or self.config.store == "direct" or not (self.epilogue or Epilogue()).stores_c:
            what = "gated products halve them, too" if self.gated is not None else "those leave by tensor stores alone"
            raise PlanError(
                f"staged_epilogue_k_tiles = {self.config.staged_epilogue_k_tiles} of a single block of rows halves its "
                f"columns: {what}"
            )
        small = self.instruction(self.config.tile[1] // 2)
        return small, derive_descriptor(b_plan.smem, small, "B")

    def store(self, halved: bool, copies: int) -> StorePlan | None:
        """The store through shared memory, or None for direct stores; raises PlanError.

        copies  tensor maps of A and B after the first of each
        """
        config, tuning = self.config, self.config.tuning
        if config.store != "tma" or (self.epilogue is not None and not self.epilogue.stores_c):
            return None
        self.check_store()
        stored, parts = self.instruction(self.columns), 2 if halved else config.split
        store = StorePlan.derive(
            stored,
            self.blocks,
            self.operands[2],
            tuning.chunks,
            tuning.buffers,
            parts,
            part_per_cta=config.split > 1,
            rows=tuning.box_rows,
            at_once=tuning.store_at_once,
            maps=max(1, OTHER_MAPS - copies),
        )
        if self.scatters:
            return store  # by vectors of C's rows, wherever they are
        if self.ragged is not None:
            return ragged_store(store, self.sizes[3] > 1 and not self.joined_rows)
        return store.of_batch(self.sizes[3])

    def check_store(self) -> None:
        """Raise PlanError for a way to store that the kernel has not."""
        tuning, named = self.config.tuning, [*self.named, *["indexed"] * self.scatters]
        if tuning.store_at_once and (self.mainloop is None or self.config.split > 1):
            raise PlanError(
                "store_at_once: the store of a main loop that promotes, and of a K in one part; this product has "
                f"{'no such loop' if self.mainloop is None else f'split = {self.config.split}'}"
            )
        other = next((name for name in named if name not in ("mainloop", "gated", "ragged")), None)
        if other is not None and (tuning.store_at_once or tuning.box_rows != WARP_ROWS):
            raise PlanError(f"box_rows = {tuning.box_rows}, store_at_once = {tuning.store_at_once}: not with {other}")

    @property
    def table_bytes(self) -> int:
        """Shared memory of the table of groups."""
        groups = self.ragged or self.along_k or self.experts
        return 0 if groups is None else groups.bytes

    def exchange(self, atom: MmaAtom) -> SplitKExchange | None:
        """The split-K exchange, not yet placed."""
        sources = self.config.sources
        if sources == 1:
            return None
        split, columns = self.config.split, self.columns
        if columns % (8 * split):
            raise PlanError(
                f"split = {split} of {columns} columns: a thread sends vectors of 4 sums, so each part takes a "
                "multiple of 8 columns"
            )
        values = atom.accumulator_registers // split
        return SplitKExchange(values, Layout((WARPGROUP, values // 4, self.blocks, self.groups, sources - 1)))

    @property
    def row_exchange(self) -> RowExchange | None:
        """The exchange of rows' tuples, not yet placed, or None. Raises PlanError for one that no kernel has."""
        config, epilogue, (_, n, _, batch) = self.config, self.epilogue or Epilogue(), self.sizes
        if config.tuning.finish != "cluster" or not whole_rows(epilogue):
            return None
        check_whole_rows(config, self.columns, n, batch)
        if config.split > 1 or self.halved:
            raise PlanError("finish = 'cluster': a CTA has whole rows of its tile, no parts of K and no halves")
        if other := next((part for part in self.parts if part not in _WITH_WHOLE_ROWS), None):
            raise PlanError(f"finish = 'cluster' and {other}: finish='launch' has both")
        words = sum(len(step.reduction.kinds) for step in whole_rows(epilogue))
        return RowExchange(config.cluster[1], config.tile[0], words)

    @property
    def rows_of_consumer(self) -> int:
        """Rows of C that one consumer has at a time."""
        return self.blocks * ROWS

    @property
    def group_scales(self) -> GroupScales | None:
        """The scales of groups of rows, not yet placed, or None. Raises PlanError for a kernel without them."""
        step, config = quantized_rows(self.epilogue or Epilogue()), self.config
        if step is None or self.rows_of_consumer % step.each:
            return None
        if config.split > 1 or self.halved or config.staged_epilogue_k_tiles:
            raise PlanError(
                f"{step.name}: a scale is of {step.each} rows, all complete before one is stored: no parts "
                f"of K (split = {config.split}), no staged epilogue (staged_epilogue_k_tiles = "
                f"{config.staged_epilogue_k_tiles})"
            )
        if other := next((part for part in self.parts if part not in _WITH_GROUP_SCALES), None):
            raise PlanError(f"{step.name}: scales of rows of a transposed product and {other}")
        before = [given.name for each in present(self.epilogue).steps[:-1] for given in each.given if given.written]
        if before:
            what = f"{step.name}: scales of rows are of values that are computed twice"
            raise PlanError(f"{what}, and {before[0]} is written once")
        groups = self.rows_of_consumer // step.each
        return GroupScales(groups, self.columns, WARPS_OF_GROUP, config.consumers)

    def stages(self, a: OperandOfA, b: OperandPlan, c_bytes: int, exchange: SplitKExchange | None) -> int:
        """The stages, as many as asked for or as fit; raises PlanError."""
        table = self.table_bytes + 16 if self.table_bytes else 0  # and up to 16 to align it
        table += 16 if self.numbers.parts else 0
        sums = exchange.bytes if exchange is not None else 0
        if (rows := self.row_exchange) is not None and rows.bytes:
            table += rows.bytes + 16
        if (scales := self.group_scales) is not None:
            table += scales.bytes + 16
        beside = (0 if self.config.one_tile_per_cluster else c_bytes) + table
        packed = self.weights is not None
        beside += TILE_ALIGNMENT if packed else 0  # between the stages of A and of B
        alignment = a.smem.alignment if packed else TILE_ALIGNMENT
        each = stage_bytes(a.smem.bytes, b.smem.bytes, alignment, self.numbers.bytes)
        taken = f"A {a.smem.bytes} + B {b.smem.bytes} bytes beside {beside} of the store and {sums} of partial sums"
        arch = arch_named("sm_90a")
        slices = self.config.slices  # a stage is one slice's: another would not see its phase complete
        if (self.config.stages or 0) % slices:
            raise PlanError(
                f"stages = {self.config.stages} of {slices} slices: each stage is one slice's; take a multiple"
            )
        least = LEAST_STAGES * slices
        found = fitting_stages(
            arch, self.config.stages, least, each, beside + exchange_bytes(sums), taken,
            blocks_per_sm=self.config.tuning.blocks_per_sm,
        )  # fmt: skip
        return found // slices * slices

    def store_bytes(self, store: StorePlan | None) -> int:
        """Shared memory of the store's buffers."""
        return store.bytes(self.config.consumers * WARPS_OF_GROUP) if store else 0

    def memory(
        self, a: OperandOfA, b: OperandPlan, stages: int, store: StorePlan | None,
        exchange: SplitKExchange | None,
    ) -> tuple[Sm90Smem, SplitKExchange | None, RowExchange | None, GroupScales | None]:  # fmt: skip
        """The map of shared memory, and the exchanges at their places; raises PlanError."""
        single, c_bytes = self.config.one_tile_per_cluster, self.store_bytes(store)
        sums_bytes = exchange.bytes if exchange is not None else 0
        rows, scales = self.row_exchange, self.group_scales
        beside = [each.bytes for each in (rows, scales) if each is not None]
        smem = smem_map(
            a, b, stages, c_bytes, store, single, self.table_bytes, sums_bytes, self.numbers.bytes,
            sum(beside),
        )  # fmt: skip
        end = smem.barrier_offset - sums_bytes
        if single and c_bytes > end:
            raise PlanError(f"the store's buffers take {c_bytes} bytes, the stages {end}")
        placed = None if rows is None else replace(rows, offset=smem.rows_offset)
        behind = smem.rows_offset + (0 if rows is None else rows.bytes)
        held = None if scales is None else replace(scales, offset=behind)
        return smem, None if exchange is None else replace(exchange, offset=end), placed, held
