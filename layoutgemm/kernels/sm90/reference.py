"""The NumPy executor of the production kernel. Clusters of blocks that share loads, walked as the kernel walks them.

Multicast shares land in the shared memory of every CTA that needs them, and products read it through the descriptors.
Split-K partial sums are exchanged through it, and C leaves through stmatrix, buffers and TMA stores. The hardware's
models are in `silicon`; every number is the plan's. A wrong share, count, address or box gives a wrong result or a
stated failure.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...dtypes import f32
from ...schedule.listed import OnHost
from ..derive import OperandPlan, either
from ..epilogue.numpy_math import Math
from ..grouped.along_k import first_block, is_refused, k_tiles_of, line_table, of_lines, place_in_group
from ..grouped.rows import tables, tile_of_group
from ..grouped.stores import output_of_groups, store_place
from ..operands.gated import HALF
from ..operands.pair import SECOND, place_in_pairs
from ..orders import stored_elements
from ..plan import present, tile_count
from ..run.hardware_model import (
    CLUSTERS,
    Barrier,
    GlobalMatrix,
    Output,
    Progress,
    SharedBytes,
    accumulated,
    accumulator_registers,
    copy_boxes,
    register_product,
    store_matrices,
    take_tiles,
    wgmma_product,
)
from ..store import ROWS, WARP_ROWS, StoreChunk, StorePlan
from .grouped import first_of_tile, is_turned, last_round, rows_before, tile_of_turn
from .indexed.reference import copied_matrix, gather_tile, scatter_chunk
from .mainloop import COPY_ARRIVALS, NUMBER_BYTES, product_of
from .operands.prologue import first_column, prologue_values, values_in_stage
from .plan import WARPGROUP, WARPS_OF_GROUP, Sm90Plan
from .quantized.experts import expert_tables
from .quantized.reference import block_in_stage, load_blocks, scales_in_stage
from .triangular.mirror import is_off_diagonal

Values = np.ndarray  # float32, or int32 of integers


def execute_sm90(
    plan: Sm90Plan, a: GlobalMatrix, b: GlobalMatrix, progress: Progress | None = None, clusters: int = CLUSTERS,
    given: dict[str, Any] | None = None,
) -> Values:  # fmt: skip
    """C as (M, N) or (batch, M, N) float32 values, rounded to its type. Integers as int32.

    a, b      the operands' bits, innermost extent first
    progress  called with (tiles done, tiles in all) after each tile of a cluster
    clusters  how many run at a time
    given     what the plan reads besides, by name: tables, ends of groups, numbers, and `further` matrices

    Raises PlanError when a barrier would never complete, shared memory is left, or an element of C is not stored once.
    """
    numbers = given[plan.ragged.name] if plan.ragged is not None and given else np.zeros(0, np.int64)
    if plan.ragged is None or not plan.stores_by_maps:
        c = Output(plan.c, plan.rows_of_c, plan.n, plan.matrices_of_c)
    else:  # its map begins some lines before C
        c = output_of_groups(plan, numbers)
    if plan.ragged is not None and plan.ragged.ends:
        c.stored = [int(numbers[-1])]
        if plan.ragged.clears:
            c.matrix.bits.reshape(-1, c.leading)[-c.lines :][c.stored[0] :] = 0
    if plan.copies_rows:
        a = copied_matrix(plan, a, given or {})
    if plan.along_k is not None and not plan.along_k.in_blocks:
        a, b = of_lines(plan, a), of_lines(plan, b)
    b = of_halves(plan, b)
    across = plan.order.clusters(plan.tiles)
    c.wanted = stored_elements(plan, given or {})
    tiles = int(plan.order.schedule.count(across, reads=OnHost(given or {}) if plan.order.schedule.words else None))
    tiles *= plan.batch
    if plan.ragged is not None:
        tiles = tables(plan, numbers)[1][-1]
    if plan.experts is not None:
        ends = np.asarray((given or {})[plan.experts.name])
        tiles = expert_tables(plan, ends)[1][-1]
        c.wanted = np.broadcast_to(plan.experts.counting(ends, plan.n), (plan.m, plan.n))
    workers, whole = tiles if plan.config.one_tile_per_cluster else min(tiles, clusters), tiles
    if plan.config.tuning.halve_last_round:
        whole, tiles = last_round(tiles, max(1, workers), either)
    take_tiles(tiles, workers, lambda: _Cluster(plan, a, b, c, given or {}, whole), progress)
    return c.values()


def of_halves(plan: Sm90Plan, b: GlobalMatrix) -> GlobalMatrix:
    """A gate's matrix with a dimension of two halves. The second half of its columns begins n lines on."""
    if plan.halves == 1:
        return b
    inner, _, *groups = b.extents
    return GlobalMatrix(b.bits, b.leading, (inner, plan.n, plan.halves, *groups), plan.n * b.leading, (b.pitch,))


class _Block:
    """One thread block: its place in the cluster, its shared memory, its barriers."""

    def __init__(self, plan: Sm90Plan, rank: int) -> None:
        self.part, self.place = divmod(rank, plan.sharing)
        self.turned = False  # whether its tile is that of a pair that has turned
        self.kept = 0  # the first row of a tile that begins earlier
        self.halved = False  # whether it has half of a tile's rows, and its second consumer none
        self.smem = SharedBytes(plan.smem.total)
        self.full = [Barrier(f"full[{s}] of block {rank}", plan.full_arrivals) for s in range(plan.stages)]
        self.empty = [Barrier(f"empty[{s}] of block {rank}", plan.empty_arrivals) for s in range(plan.stages)]
        self.loaded = 0  # k tiles so far, over all output tiles
        self.origin: dict[str, int] = {}
        self.first_k = 0  # of the K tile that was loaded last
        self.second = False  # whether that is one of the second pair's
        self.sums: dict[tuple[int, int], Values] = {}  # (consumer, block of rows) -> accumulator
        self.totals: dict[tuple[int, int], Values] = {}  # of a main loop that promotes
        self.numbers: dict[tuple[str, int, int], list[Values]] = {}  # of its tables, in registers: a list of K blocks

    def registers(self, key: tuple[int, int]) -> Values:
        """[thread, value] of an accumulator."""
        return accumulator_registers(self.sums[key])


class _Cluster:
    """The blocks of one cluster, which compute tile after tile."""

    def __init__(
        self, plan: Sm90Plan, a: GlobalMatrix, b: GlobalMatrix, c: Output, given: dict[str, Any], whole: int
    ) -> None:
        self.given, self.whole = given, whole  # tiles that are not halved
        self.end = plan.m  # of the group that is computed
        self.columns_end = plan.n  # of the group of columns
        self.lines = 0, plan.k  # of it, along K
        self.first_number = 0  # the K block that it begins with
        self.first_pair = tile_count(plan.k, plan.tile[2]), 0  # K tiles of the first pair, and those in front of them
        self.rows: dict[tuple[int, int], Values] = {}  # sums of A's rows, by matrix and first row
        self.plan, self.a, self.c = plan, a, c
        further = plan.gated.places if plan.gated is not None else ()
        self.matrices = {"A": [a], "B": [b, *[given[name] for name, _ in further]]}
        if plan.pair is not None:
            second = [of_halves(plan, given[name]) for name in plan.pair.of_b]
            self.second = {"A": [given["a2"]], "B": second}
        self.blocks = [_Block(plan, rank) for rank in range(plan.cluster_size)]
        for block in self.blocks:
            for stage in range(plan.stages):
                for first, count in plan.dead_runs:
                    at = self._stage(block, plan.a, stage) - block.smem.base + first
                    block.smem.data[at : at + count] = 0

    @property
    def _room(self) -> int:
        """Bytes of a consumer's buffers of C."""
        store = present(self.plan.store)
        return WARPS_OF_GROUP // store.warps * store.buffers * self.plan.smem.c_buffer_bytes

    def compute(self, tile: int, step: int) -> None:
        """Tile number `tile` of all, this cluster's number `step`: load, multiply, bring together, store."""
        plan = self.plan
        rows, columns = plan.order.clusters(plan.tiles)
        reads = OnHost(self.given) if plan.order.schedule.words else None
        matrix, number = divmod(tile, int(plan.order.schedule.count((rows, columns), reads=reads)))
        start, line, halved = 0, 0, tile >= self.whole
        if plan.ragged is not None:
            tile, line = tile_of_turn(plan, tile, self.whole, either)
            starts, first = tables(plan, self.given[plan.ragged.name])
            matrix = plan.ragged.find(first.__getitem__, tile, either)
            start, self.end = plan.ragged.rows(starts.__getitem__, matrix)
            number = tile - first[matrix]
        first_column = 0
        if plan.experts is not None:
            starts, first = expert_tables(plan, self.given[plan.experts.name])
            matrix = plan.experts.find(first.__getitem__, tile, either)
            first_column, self.columns_end = plan.experts.lines(starts.__getitem__, matrix, plan.n // plan.batch)
            number, columns = tile - first[matrix], tile_count(self.columns_end - first_column, plan.tile_c[1])
        grid = rows * plan.config.cluster[0], columns * plan.config.cluster[1]
        for block in self.blocks:
            if plan.ragged is None:
                row, column = plan.order.tile(number, 0, block.place, grid, reads=reads)
            else:
                row, column = tile_of_group(plan, number, self.end - start, plan.tiles[1], block.place, (min, either))
            block.halved = halved
            corner = {
                "m": start + row * plan.tile_c[0] + line,
                "n": first_column + column * plan.tile_c[1],
                "l": matrix,
            }
            block.origin = {**corner, HALF: 0}
            block.turned = plan.turns and bool(is_turned(plan, corner["m"], start, self.end))
            if plan.ragged is not None:
                before = rows_before(plan, corner["m"], (start, self.end), plan.m, either)
                block.origin["m"] -= before
                block.kept = first_of_tile(plan, corner["m"], start) if before else 0
            block.sums = {}
        pingpong = plan.config.schedule == "pingpong"
        consumers = [step % 2] if pingpong else list(range(plan.config.consumers))
        k_tiles = plan.k_tiles
        if plan.along_k is not None:
            starts = line_table(plan, self.given[plan.along_k.name])
            self.lines = starts[matrix], starts[matrix + 1]
            k_tiles = k_tiles_of(plan, self.lines[1] - self.lines[0], max)
            self.first_number = first_block(plan, self.lines[0], plan.k, min)
        for part in range(plan.config.split):
            begin, end = plan.part_of_k(k_tiles, part)
            if plan.triangles is not None:
                corner, of_pairs = self.blocks[0].origin, (tile_count(plan.k, plan.tile[2]), k_tiles)
                at_k, many, own = plan.triangles.share_of_pairs(plan, (corner["m"], corner["n"]), of_pairs, min, max)
                begin, end = (at_k, at_k + many) if plan.pair is None else (0, many)
                self.first_pair = own, at_k
            self._multiply([b for b in self.blocks if b.part == part], begin, end - begin, step, consumers)
        held = {(block.part, block.place): block for block in self.blocks}
        finals = self._exchange(held, consumers)
        for (part, place), registers in finals.items():
            for (consumer, number), values in registers.items():
                for columns in (piece for of, piece in plan.pieces(part) if of == number):
                    self._store(held[part, place], consumer, number, columns, values)

    # ----------------------------------------------------------------------------------------------- loads and products
    def _multiply(self, blocks: list[_Block], first: int, count: int, step: int, consumers: list[int]) -> None:
        """The k tiles of one part, by the blocks that share its loads."""
        plan = self.plan
        for i in range(count):
            at = count - 1 - i if plan.config.tuning.reverse_odd_tiles and step % 2 else i
            stage, parity = blocks[0].loaded % plan.stages, blocks[0].loaded // plan.stages & 1
            for block in blocks:
                block.empty[stage].wait(parity ^ 1)
                block.full[stage].arrive_expect(plan.expected(block.origin, plan, either))
            for block in blocks:
                origin = {**block.origin, "k": (first + at) * plan.tile[2]}
                of = self.matrices
                if plan.pair is not None:
                    own, skipped = self.first_pair
                    origin |= place_in_pairs(first + at, own, plan.tile[2], either, skipped)
                    of = self.second if origin[SECOND] else of
                if plan.along_k is not None:
                    origin |= place_in_group(plan, self.lines, first + at, plan.k, either, max)
                block.first_k, block.second = first_column(origin), bool(origin.get(SECOND, False))
                if plan.gathers:
                    at_stage = self._stage(block, plan.a, stage)
                    gather_tile(plan, self.given, self.a, origin, self.end, block.smem, at_stage)
                    block.full[stage].arrive(plan.a.arrivals)
                elif plan.weights is None:
                    self._share(plan.a, of["A"], origin, stage, block, blocks)
                else:
                    load_blocks(plan, self.a.bits, origin, block.smem, self._stage(block, plan.a, stage))
                    block.full[stage].complete(plan.a.sent_bytes)
                    block.full[stage].arrive(plan.a.arrivals)
                self._share(plan.b, of["B"], origin, stage, block, blocks)
            for block in blocks:
                self._copy_numbers(block, stage, self.first_number + first + at)
            turn = [consumer for consumer in consumers if plan.place_of_consumer(consumer)[1] == i % plan.config.slices]
            for block in blocks:
                block.full[stage].wait(parity)
                for consumer in turn:
                    for number in range(plan.blocks):
                        self._product(block, consumer, number, stage)
                        if plan.mainloop is not None:
                            self._promote(block, consumer, number, stage)
                        if plan.row_sums is not None and block.origin["n"] == 0:
                            self._add_rows(block, consumer, number, stage)
                block.loaded += 1
            for block in blocks:
                for other in blocks:
                    (row, column), (own_row, own_column) = [plan.sharers.place(x.place) for x in (other, block)]
                    if row == own_row or column == own_column:
                        other.empty[stage].arrive(WARPS_OF_GROUP * len(turn))
        for block in blocks:
            for consumer in consumers:
                for number in range(plan.blocks):
                    key = (consumer, number)
                    if plan.mainloop is not None:
                        block.sums[key] = block.totals.pop(key, self._nothing())
                    block.sums.setdefault(key, self._nothing())
                    self._settle_group(block.sums[key])

    def _add_rows(self, block: _Block, consumer: int, number: int, stage: int) -> None:
        """Add a K tile of a block's rows of A to their sums."""
        plan = self.plan
        rows = (number + self._first_block(consumer)) * ROWS + np.arange(ROWS)
        at = self._stage(block, plan.a, stage) + plan.a.smem.byte(rows[:, None], np.arange(plan.tile[2]))
        values = np.asarray(plan.a.dtype.decode(block.smem.read(at, plan.a.dtype)), np.float32)
        key = block.origin["l"], block.origin["m"] + int(rows[0])
        self.rows[key] = self.rows.get(key, np.zeros(ROWS, np.float32)) + values.sum(1, dtype=np.float32)
        kind, into = present(plan.row_sums).dtype, self.given["row_sums"].reshape(-1, plan.m)
        inside = into[key[0], key[1] : key[1] + ROWS]
        inside[...] = kind.encode(self.rows[key][: len(inside)]).view(inside.dtype)

    def _settle_group(self, sums: Values) -> None:
        """Zeros for an empty group in blocks of K, NaN for one that is refused."""
        if self.plan.along_k is not None and self.plan.along_k.in_blocks:
            start, end = self.lines
            if is_refused(self.plan, start, end, self.plan.k):
                sums[...] = np.nan
            elif end <= start:
                sums[...] = 0

    def _first_block(self, consumer: int) -> int:
        """The first block of rows of a consumer's."""
        plan = self.plan
        return 0 if plan.config.schedule == "pingpong" else int(plan.place_of_consumer(consumer)[0]) * plan.blocks

    def _nothing(self) -> Values:
        """The sum of no products."""
        kind = np.float32 if self.plan.mma.c_dtype.kind == "float" else np.int32
        return np.zeros(self.plan.mma.shape_mnk[:2], kind)

    def _share(
        self, operand: OperandPlan, matrices: list[GlobalMatrix], origin: dict[str, int], stage: int, block: _Block,
        blocks: list[_Block],
    ) -> None:  # fmt: skip
        """One block's boxes of a tile, into every block that needs it; of each matrix, or all of the only one."""
        operand = self.plan.operand(operand.name, block.turned)
        sharers = self.plan.sharers_of(block.turned)
        for share, (count, first, step) in sharers.sent(operand.name, block.place, operand.tma.multicast):
            targets = [blocks[first + i * step] for i in range(count)]
            self._send(operand, matrices, origin, stage, share, targets)

    def _send(
        self, operand: OperandPlan, matrices: list[GlobalMatrix], origin: dict[str, int], stage: int, rank: int,
        targets: list[_Block],
    ) -> None:  # fmt: skip
        """The boxes of one share of a tile."""
        copies, ends = operand.copies, operand.ends
        if ends is not None:
            extent = getattr(self.plan, ends.dim)
            whole, row = ends.place(extent, origin[ends.dim], rank, either)
            origin = {**origin, ends.dim: row}
            copies = (operand.tma if whole else ends.of_last_rows(operand.tma, extent),)
        for number, tma in enumerate(copies):
            matrix = matrices[min(number, len(matrices) - 1)]
            for block in targets:
                address = self._stage(block, operand, stage)
                copy_boxes(tma, tma.issued_by(rank), matrix, origin, block.smem, address, block.full[stage])

    def _product(self, block: _Block, consumer: int, number: int, stage: int) -> None:
        plan = self.plan
        of_rows = number + self._first_block(consumer)
        if plan.weights is not None:
            self._packed_product(block, (consumer, number), of_rows, stage)
            return
        if plan.prologue is not None:
            self._prologue_product(block, (consumer, number), of_rows, stage)
            return
        a = plan.a.descriptor
        half, b, parts = product_of(plan)
        first_a = self._stage(block, plan.a, stage) + a.mn_steps[of_rows] - a.mn_steps[0]
        first_b = self._stage(block, plan.b, stage)
        key = consumer, number
        for step_a, step_b in zip(a.k_steps, b.k_steps, strict=True):
            word_a = a.base.at(first_a + step_a).word
            columns = []
            for part in range(parts):
                word_b = b.base.at(first_b + step_b + b.mn_steps[part] - b.mn_steps[0]).word
                columns.append(wgmma_product(half, block.smem, word_a, a.major, word_b, b.major))
            product = columns[0] if parts == 1 else np.concatenate(columns, axis=1)
            block.sums[key] = accumulated(plan.mma, block.sums[key], product) if key in block.sums else product

    def _prologue_product(self, block: _Block, key: tuple[int, int], of_rows: int, stage: int) -> None:
        """A K tile of f(A), each instruction's share from registers, times B's K blocks."""
        plan, b = self.plan, self.plan.b.descriptor
        first_b = self._stage(block, plan.b, stage)
        place = block.origin["m"] + ROWS * of_rows, block.first_k, block.origin["l"]
        tile = self._stage(block, plan.a, stage)
        for number, step in enumerate(b.k_steps):
            if block.second:
                values = values_in_stage(plan, block.smem, tile, (of_rows, number))
            else:
                values = prologue_values(plan, self.given, block.smem, tile, (of_rows, number), place, self.lines)
            word = b.base.at(first_b + step).word
            product = register_product(plan.mma, block.smem, values, word, b.major)
            block.sums[key] = accumulated(plan.mma, block.sums[key], product) if key in block.sums else product

    def _packed_product(self, block: _Block, key: tuple[int, int], of_rows: int, stage: int) -> None:
        """A K tile of packed weights, converted, times B's K blocks."""
        plan, b, depth = self.plan, self.plan.b.descriptor, self.plan.mma.shape_mnk[2]
        weights = block_in_stage(plan, block.smem, self._stage(block, plan.a, stage), of_rows)
        first_b = self._stage(block, plan.b, stage)
        apart: dict[int, Values] = {}  # where scales multiply sums: by the sum's number
        for number, step in enumerate(b.k_steps):
            word = b.base.at(first_b + step).word
            values = weights[:, number * depth : (number + 1) * depth]
            product = register_product(plan.mma, block.smem, values, word, b.major)
            if plan.sums_apart:
                which = number * plan.a.sums // len(b.k_steps)
                apart[which] = accumulated(plan.mma, apart[which], product) if which in apart else product
                continue
            block.sums[key] = accumulated(plan.mma, block.sums[key], product) if key in block.sums else product
        for which, product in apart.items():
            scales = scales_in_stage(plan, block.smem, self._stage(block, plan.a, stage), of_rows)
            total = block.sums.get(key, self._nothing())
            times = scales[:, which, None].astype(np.float64) * plan.a.total_factor
            block.sums[key] = (total + times * product).astype(np.float32)

    def _copy_numbers(self, block: _Block, stage: int, k_tile: int) -> None:
        """The loader's copies of numbers into a stage: those of a K block, or of the `span` from it on."""
        plan = self.plan
        for part in plan.numbers.parts if k_tile % plan.numbers.span == 0 else ():
            table, size = part.table, plan.m if part.table.axis == "m" else plan.n
            slots = np.arange(part.slots)
            group = part.line(block.origin[table.axis], slots * part.segment, size, np.minimum) // table.group
            of_matrix = self.given[table.name]
            of_rows = (of_matrix[block.origin["l"]] if of_matrix.ndim > 2 else of_matrix)[group]
            first = self._numbers(block, stage) + part.byte(slots * part.segment)
            for ahead in range(part.span):
                found = f32.encode(of_rows[:, k_tile + ahead])
                block.smem.write(first + ahead * NUMBER_BYTES, found, f32)
        if plan.numbers.parts:
            block.full[stage].arrive(COPY_ARRIVALS)

    def _promote(self, block: _Block, consumer: int, number: int, stage: int) -> None:
        """Add the sum of one K block to the total; after the last one it is the sum."""
        plan, loop, key = self.plan, present(self.plan.mainloop), (consumer, number)
        values = {}
        ahead = block.loaded % plan.numbers.span  # a matrix's K blocks are a multiple of the span
        for part in plan.numbers.parts:
            of_rows, name = part.table.axis == "m", part.table.name
            if ahead == 0:  # into registers, for the K blocks from this one on
                lines = (consumer * plan.blocks + number) * ROWS + np.arange(ROWS)
                along = lines if of_rows else np.arange(plan.tile[1])
                at = self._numbers(block, stage) + part.byte(along)
                each = [block.smem.read(at + later * NUMBER_BYTES, f32) for later in range(part.span)]
                block.numbers[(name, *key)] = [f32.decode(bits) for bits in each]
            found = block.numbers[(name, *key)][ahead]
            values[name] = found[:, None] if of_rows else found[None, :]
        total = block.totals.get(key, self._nothing())
        block.totals[key] = loop.apply(total, block.sums.pop(key), values)

    def _numbers(self, block: _Block, stage: int) -> int:
        return block.smem.base + self.plan.smem.numbers_offset + stage * self.plan.smem.numbers_bytes

    def _stage(self, block: _Block, operand: OperandPlan, stage: int) -> int:
        return block.smem.base + self.plan.smem.stage(operand.name, stage)

    # --------------------------------------------------------------------------------------------------------- the end
    def _exchange(
        self, held: dict[tuple[int, int], _Block], consumers: list[int]
    ) -> dict[tuple[int, int], dict[tuple[int, int], Values]]:
        """The registers of each (part, place), with the sums of all parts."""
        plan = self.plan
        keys = [(consumer, number) for consumer in consumers for number in range(plan.blocks)]
        registers = {at: {key: block.registers(key) for key in keys} for at, block in held.items()}
        if plan.exchange is None:
            return registers
        sent, parts, kind, slices = plan.exchange, range(plan.config.split), plan.mma.c_dtype, plan.config.slices
        vector, thread = np.arange(sent.vectors)[None, :], np.arange(WARPGROUP)[:, None]

        def places(block: _Block, source: int, target: int, key: tuple[int, int]) -> npt.NDArray[np.int64]:
            rows, _ = plan.place_of_consumer(key[0])
            at = np.asarray(sent.byte(sent.slot(source, target * slices), rows, key[1], vector, thread))
            return block.smem.base + at[..., None] + 4 * np.arange(4)

        def own(values: Values, part: int) -> Values:
            return values[:, plan.summed_values(part)].reshape(WARPGROUP, sent.vectors, 4)

        for (part, place), given in registers.items():
            for target in parts:
                block = held[target, place]
                for key in keys:
                    source = part * slices + plan.place_of_consumer(key[0])[1]
                    if source != target * slices:
                        block.smem.write(places(block, source, target, key), kind.encode(own(given[key], target)), kind)
        keys = [key for key in keys if plan.place_of_consumer(key[0])[1] == 0]
        for (part, place), given in registers.items():
            block = held[part, place]
            for key in keys:
                terms = [
                    own(given[key], part) if source == part * slices
                    else np.asarray(kind.decode(block.smem.read(places(block, source, part, key), kind)))
                    for source in range(plan.config.sources)
                ]  # fmt: skip
                total = terms[0]
                for term in terms[1:]:
                    total = total + term
                given[key][:, plan.summed_values(part)] = total.reshape(WARPGROUP, -1)
        return {at: {key: given[key] for key in keys} for at, given in registers.items()}

    def _store(self, block: _Block, consumer: int, number: int, part: int, registers: Values) -> None:
        """One accumulator, 64 rows: one part of its columns."""
        plan = self.plan
        if block.halved and consumer > 0:
            return
        first = number + self._first_block(consumer)
        row, column = block.origin["m"] + first * ROWS, block.origin["n"]
        if plan.gated is not None:
            sums = registers.astype(np.float32)
            count = plan.stored.accumulator_registers
            parts = [sums[:, i * count : (i + 1) * count] for i in range(plan.sums)]
            registers = plan.gated.apply(parts, Math, self.given)
        floats = plan.c.dtype.kind == "float"  # sums of integers go through f32 to a C of floats
        bits = plan.c.dtype.encode(registers.astype(np.float32) if floats else registers)
        if plan.store is None:
            corner = row, column, 0 if plan.experts is not None else block.origin["l"]
            end = min(plan.m, block.origin["m"] + plan.tile_c[0])
            self.c.store_registers(plan.mma, corner, (end, self.columns_end), bits, plan.stored_values(part))
            return
        self._store_tensor(plan.store, block, (consumer, number, part), (row, column), bits)
        if plan.mirror is not None and is_off_diagonal(plan, block.origin["m"], column):
            self._store_tensor(plan.mirror, block, (consumer, number, part), (row, column), bits)

    def _store_tensor(
        self, store: StorePlan, block: _Block, of: tuple[int, int, int], place_of_c: tuple[int, int], bits: np.ndarray
    ) -> None:
        """One accumulator's rounds through the buffers; `of`: consumer, block of rows, part of its columns."""
        plan, (consumer, number, part), (row, column) = self.plan, of, place_of_c
        # The device reads the size of C's own buffers in the map of shared memory; a mirror's lie in their place.
        size = plan.smem.c_buffer_bytes if store is plan.store else store.buffer_bytes
        for i, round_ in store.rounds_of(number, part):
            for owner in range(WARPS_OF_GROUP // store.warps):
                buffer = owner * store.buffers + i % store.buffers
                address = block.smem.base + plan.smem.c_offset + consumer * self._room + buffer * size
                for chunk in round_.chunks:
                    self._fill(store, block.smem, address + chunk.offset, chunk, owner, bits)
                for chunk in round_.chunks:
                    if plan.scatters:
                        first = row + owner * WARP_ROWS, column + chunk.column, block.origin["l"]
                        scatter_chunk(
                            plan, self.given, self.c, chunk, first, self.end, block.smem, address + chunk.offset
                        )
                        continue
                    tma = store.maps[chunk.map]
                    place = {"m": row + owner * (ROWS // WARPS_OF_GROUP), "n": column + chunk.column,
                             "l": block.origin["l"]}  # fmt: skip
                    if plan.ragged is not None:
                        row_, lines = place["m"], store.box_rows
                        left_out = int(row_ < block.kept)
                        place = {**place, **store_place(row_, self.end, place["n"], lines, min, left_out)}
                    self.c.store(tma, place, block.smem, address + chunk.offset)

    def _fill(
        self, store: StorePlan, smem: SharedBytes, address: int, chunk: StoreChunk, owner: int, bits: np.ndarray
    ) -> None:
        """An owner's registers of a chunk into its tile."""
        plan, dtype, warps = self.plan, self.plan.c.dtype, store.warps
        values = chunk.first_value + np.arange(chunk.values)
        for warp in range(owner * warps, owner * warps + warps):
            mine = bits[32 * warp : 32 * warp + 32][:, values]
            inside = warp - owner * warps
            if chunk.rows is not None:
                words = mine.reshape(32, -1, chunk.matrices, 2)
                lanes = np.arange(8 * chunk.matrices)
                for i in range(words.shape[1]):
                    rows = address + np.asarray(chunk.rows(lanes, (i, inside))) * dtype.bytes
                    store_matrices(smem, rows, words[:, i], dtype, store.c.order == "col")
                continue
            if chunk.exchange is not None:
                words = chunk.exchange.exchanged(mine.reshape(32, -1, 4)).reshape(32, -1, chunk.exchange.matrices, 2, 2)
                lanes = np.arange(8 * chunk.exchange.matrices)
                for i in range(words.shape[1]):
                    rows = address + np.asarray(chunk.tile.byte(*chunk.exchange.place(inside, i, lanes)))
                    store_matrices(smem, rows, words[:, i], dtype, transpose=True)
                continue
            thread = 32 * inside + np.arange(32)[:, None]
            row, column = plan.mma.coords_C(thread, values[None, :])
            at = address + np.asarray(chunk.tile.byte(row, column - chunk.column))
            smem.write(at, mine, dtype)
