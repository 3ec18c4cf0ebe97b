"""The NumPy executor of the Blackwell kernel. Blocks, or pairs of them, walked as the kernel walks them.

Each CTA's part of a tile lands in its own shared memory. Products read it through the descriptors into tensor memory,
and C leaves through the loads' maps, buffers and TMA stores. The hardware's models are in `silicon`, what tensor memory
does in `atoms.tmem`; every number is the plan's. A wrong box, count or address gives a wrong result or a stated
failure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from ...atoms.smem.descriptor import element_addresses
from ...atoms.tma.gather import ROWS as FOUR
from ...atoms.tma.plan import TmaCopy, TmaPlan
from ...atoms.tmem.layout import COLUMNS, LANES, WARP_LANES, WORD_BITS, scale_factors
from ...dtypes import u8
from ...layouts import Layout
from ...layouts.basis import component
from ...schedule.listed import OnHost
from ..derive import OperandPlan, either
from ..epilogue.numpy_math import Math
from ..grouped.along_k import is_refused, k_tiles_of, line_table, of_lines, place_in_group
from ..grouped.rows import tables, tile_of_group
from ..grouped.stores import output_of_groups, store_place
from ..indexed.rows import OUT_ROWS, ROWS
from ..operands.block_scales import NAMES
from ..operands.thread_numbers import numbers_at
from ..orders import reads_on_host, stored_elements
from ..plan import present, rounded_up
from ..run.hardware_model import (
    CLUSTERS,
    POISON,
    Barrier,
    GlobalMatrix,
    Output,
    Progress,
    SharedBytes,
    copy_boxes,
    gather_rows,
    scatter_rows,
    take_tiles,
    two_to_a_byte,
    unpadded,
)
from ..store import StoreChunk
from .block_scales import BlockScales, first_chunks
from .plan import BLOCK_ROWS, EPILOGUE_WARPS, Sm100Plan
from .store import load_of

Values = npt.NDArray[np.float32]
POISON_SUM = np.iinfo(np.int32).min + 12345  # of integers that no product has written


def _stopped(sums: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """Sums of integers that stop at the ends of int32, as the instruction descriptor says."""
    ends = np.iinfo(np.int32)
    return np.asarray(np.clip(sums, ends.min, ends.max).astype(np.int32))


def places(layout: Layout, *axes: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(lane, column) arrays of a layout into tensor memory at broadcast coordinates."""
    lane, column = (Layout(layout.shape, component(layout.stride, (path,))) for path in (0, 1))
    return np.asarray(lane(*axes)), np.asarray(column(*axes))


def execute_sm100(
    plan: Sm100Plan, a: GlobalMatrix, b: GlobalMatrix, progress: Progress | None = None, clusters: int = CLUSTERS,
    given: Mapping[str, object] | None = None,
) -> Values:  # fmt: skip
    """C as a float32 array, rounded to the plan's output type. (M, N) or (batch, M, N).

    a, b      the operands' bits, innermost extent first
    progress  called with (tiles done, tiles in all) after each tile
    clusters  how many blocks, or pairs, run at a time
    given     values of the words that the order of tiles reads, and the row indices

    Raises PlanError when a barrier would never complete, shared memory is left, or an element of C is not stored once.
    """
    numbers = np.asarray((given or {})[plan.groups.name]) if plan.groups is not None else np.zeros(0, np.int64)
    if plan.ragged is not None and not plan.scatters:
        c = output_of_groups(plan, numbers)
        c.stored = [int(numbers[-1])] if plan.ragged.ends else c.stored
    else:
        c = Output(plan.c, plan.rows_of_c, plan.n, plan.matrices_of_c)
    if plan.along_k is not None and not plan.along_k.in_blocks:
        a, b = of_lines(plan, a), of_lines(plan, b)
    c.wanted = stored_elements(plan, given or {})
    reads = reads_on_host(plan.order.schedule, given or {})
    tiles = int(plan.order.schedule.count(plan.tiles, reads=reads)) * plan.batch
    tiles = tables(plan, numbers)[1][-1] if plan.ragged is not None else tiles
    take_tiles(tiles, min(tiles, clusters), lambda: _Group(plan, a, b, c, reads, given or {}), progress)
    return c.values()


def _four(box: TmaCopy, rows: npt.NDArray[np.int64], column: int) -> list[int]:
    """The coordinates of a gather or scatter: its column, and its four rows of those of the tile."""
    first = box.coord_offset[1]
    return [column + box.coord_offset[0], *map(int, rows[first : first + FOUR])]


class _PairBlock:
    """One thread block: shared memory, tensor memory, barriers."""

    def __init__(self, plan: Sm100Plan, rank: int) -> None:
        self.rank = rank
        self.smem = SharedBytes(plan.smem.total)
        whole = plan.mma.c_dtype.kind == "int"
        self.tensor = np.full((LANES, COLUMNS), *((POISON_SUM, np.int32) if whole else (np.nan, np.float32)))
        self.factors = np.full((LANES, COLUMNS, WORD_BITS // 8), POISON, np.uint8)  # the bytes of the same words
        self.full = [Barrier(f"full[{s}] of block {rank}", plan.full_arrivals) for s in range(plan.stages)]
        self.empty = [Barrier(f"empty[{s}] of block {rank}", plan.empty_arrivals) for s in range(plan.stages)]
        count = range(plan.accumulators)
        self.acc_full = [Barrier(f"acc_full[{i}] of block {rank}", plan.acc_full_arrivals) for i in count]
        self.acc_empty = [Barrier(f"acc_empty[{i}] of block {rank}", plan.acc_empty_arrivals) for i in count]


class _Group:
    """The block, or the pair of blocks, that computes tile after tile."""

    def __init__(
        self, plan: Sm100Plan, a: GlobalMatrix, b: GlobalMatrix, c: Output, reads: OnHost | None,
        given: Mapping[str, object],
    ) -> None:  # fmt: skip
        self.plan, self.a, self.b, self.c, self.reads, self.given = plan, a, b, c, reads, given
        self.blocks = [_PairBlock(plan, rank) for rank in range(plan.blocks)]
        further = {name: x for name, x in given.items() if isinstance(x, GlobalMatrix)}
        of_b = [further[name] for name, _ in plan.gated.places] if plan.gated is not None else []
        self.pairs = [({"A": [a], "B": self._halves([b, *of_b])}, plan.k)]
        if plan.pair is not None:
            second = [further[name] for name in plan.pair.of_b]
            self.pairs.append(({"A": [further["a2"]], "B": self._halves(second)}, plan.pair.k))
        self.loaded = 0  # k tiles so far, over all output tiles
        self.drained = 0  # accumulators so far
        self.totals: dict[tuple[int, int, int, int], Values] = {}  # of block, warp, first column and sum
        self.end, self.refused = plan.m, False  # of the rows of the tile's group, and whether its sums are NaN

    def _halves(self, matrices: list[GlobalMatrix]) -> list[GlobalMatrix]:
        """The matrices of B's tile: a gate's second half begins n lines into the one matrix."""
        plan = self.plan
        if plan.halves == 1:
            return matrices
        (one,), (k, _, *batch) = matrices, matrices[0].extents
        own = [one.bits.reshape(-1)[i * plan.n * one.leading :] for i in range(plan.halves)]
        return [replace(one, bits=bits, extents=(k, plan.n, *batch)) for bits in own]

    def compute(self, tile: int, step: int) -> None:
        """Tile number `tile` of all, this group's number `step`: load, multiply, store."""
        plan, leader = self.plan, self.blocks[0]
        origin, self.totals = self._origin(tile), {}
        for number, (matrices, at_k) in enumerate(self._k_tiles(origin["l"])):
            stage, parity = self.loaded % plan.stages, self.loaded // plan.stages & 1
            for block in self.blocks:
                block.empty[stage].wait(parity ^ 1)
            leader.full[stage].arrive_expect(plan.full_bytes)
            for block in self.blocks:
                at = {**origin, **at_k}
                at["m"] += block.rank * BLOCK_ROWS
                at["n"] += block.rank * plan.beside.share
                for operand in (plan.a, plan.b):
                    for tma, source in zip(operand.copies, matrices[operand.name], strict=True):
                        self._load(operand, tma, source, at, stage, block)
                if plan.scales is not None:
                    self._load_scales(plan.scales, at, stage, block)
            leader.full[stage].wait(parity)
            begins = number == 0 or plan.mainloop is not None
            first = self._accumulator(begins)
            self._multiply(stage, first, not begins)
            for block in self.blocks:
                block.empty[stage].arrive()
            self.loaded += 1
            if plan.mainloop is not None:
                self._drain(partial(self._promote, number), origin)
        if plan.mainloop is None:
            self._drain(self._store, origin)
            return
        for block in self.blocks:
            for warp in range(EPILOGUE_WARPS):
                self._store(block, warp, 0, origin)

    def _accumulator(self, begins: bool) -> int:
        """The first column of the accumulator in use. `begins`: it is to be free."""
        which, turn = self.drained % self.plan.accumulators, self.drained // self.plan.accumulators & 1
        if begins:
            self.blocks[0].acc_empty[which].wait(turn ^ 1)
        return int(which * self.plan.mma.accumulator.columns)

    def _drain(self, take: Callable[[_PairBlock, int, int, dict[str, int]], None], origin: dict[str, int]) -> None:
        """Each epilogue warp takes the accumulator in use, and gives it back."""
        which, turn = self.drained % self.plan.accumulators, self.drained // self.plan.accumulators & 1
        first = self._accumulator(False)
        for block in self.blocks:
            block.acc_full[which].arrive()
            block.acc_full[which].wait(turn)
            for warp in range(EPILOGUE_WARPS):
                take(block, warp, first, origin)
                self.blocks[0].acc_empty[which].arrive()
        self.drained += 1

    def _promote(self, k_block: int, block: _PairBlock, warp: int, first: int, origin: dict[str, int]) -> None:
        """One warp's totals after another K block."""
        plan, count = self.plan, self.plan.fragment.accumulator_registers
        corner = origin["m"] + block.rank * BLOCK_ROWS + warp * WARP_LANES, origin["n"], origin["l"]
        numbers = numbers_at(plan, self.given, corner, k_block, self.end)
        for chunk in plan.fragment.chunks:
            for i, product in enumerate(self._sums(block, warp, first, chunk)):
                own = slice(i * count + chunk.first_value, i * count + chunk.first_value + chunk.width)
                total = self.totals.get((block.rank, warp, chunk.column, i), np.zeros_like(product))
                read = {name: value[own].T for name, value in numbers.items()}
                total = np.asarray(present(plan.mainloop).apply(total, product, read), np.float32)
                self.totals[block.rank, warp, chunk.column, i] = total

    def _origin(self, tile: int) -> dict[str, int]:
        """First row, first column and matrix of a tile. The end of its rows is `self.end`."""
        plan = self.plan
        if plan.ragged is None:
            matrix, number = divmod(tile, int(plan.order.schedule.count(plan.tiles, reads=self.reads)))
            row, column = plan.order.tile(number, 0, 0, plan.tiles, reads=self.reads)
            return {"m": row * plan.tile_c[0], "n": column * plan.tile_c[1], "l": matrix}
        starts, first = tables(plan, np.asarray(self.given[plan.ragged.name]))
        group = plan.ragged.find(first.__getitem__, tile, either)
        start, self.end = plan.ragged.rows(starts.__getitem__, group)
        row, column = tile_of_group(plan, tile - first[group], self.end - start, plan.tiles[1], 0, (min, either))
        return {"m": start + row * plan.tile_c[0], "n": column * plan.tile_c[1], "l": group}

    def _k_tiles(self, matrix: int) -> list[tuple[dict[str, list[GlobalMatrix]], dict[str, int]]]:
        """(matrices, coordinates along K) of each K tile of a tile. `self.refused`: its group has no product."""
        plan, depth = self.plan, self.plan.tile[2]
        if plan.along_k is None:
            return [(of, {"k": at}) for of, k in self.pairs for at in range(0, k, depth)]
        starts = line_table(plan, np.asarray(self.given[plan.along_k.name]))
        lines, of = (starts[matrix], starts[matrix + 1]), self.pairs[0][0]
        self.refused = plan.along_k.in_blocks and bool(is_refused(plan, *lines, plan.k))
        count = k_tiles_of(plan, lines[1] - lines[0], max)
        return [(of, place_in_group(plan, lines, i, plan.k, either, max)) for i in range(count)]

    def _load(
        self, operand: OperandPlan, tma: TmaPlan, source: GlobalMatrix, at: dict[str, int], stage: int,
        block: _PairBlock,
    ) -> None:  # fmt: skip
        address = block.smem.base + self.plan.smem.stage(operand.name, stage)
        full = self.blocks[0].full[stage]
        at = {**at, "k": at["k"] // operand.per_unit}
        if operand is not self.plan.a or not self.plan.gathers:
            copy_boxes(tma, tma.instructions, source, at, block.smem, address, full)
            return
        rows = self._rows(ROWS, at, self.plan.rows_of_a, source, self.plan.m)
        for box in tma.instructions:
            place = _four(box, rows, at["k"])
            gather_rows(tma, source.as_rows(), place, block.smem, address + box.smem_offset, full)

    def _load_scales(self, scales: BlockScales, at: dict[str, int], stage: int, block: _PairBlock) -> None:
        """Load a K tile's chunks for one block: its rows of A, all columns of B."""
        plan, address = self.plan, block.smem.base + self.plan.smem.scales_offset + stage * scales.bytes
        first = {"scale_a": (at["m"], plan.m), "scale_b": (at["n"] - block.rank * plan.beside.share, plan.n)}
        for operand, (name, tma) in enumerate(zip(NAMES, scales.copies, strict=True)):
            extents = scales.extents(operand, first[name][1], plan.k, plan.batch)
            chunk, group = scales.pitches(plan.k)
            bits = np.asarray(self.given[name]).view(tma.dtype.storage)
            source = GlobalMatrix(bits, chunk, tuple([extents[dim] for dim in tma.dims]), group)
            loads = scales.loads(operand, first[name][0], at["l"], first[name][1])
            if scales.joined and operand == 0:
                starts, before = tables(plan, np.asarray(self.given[present(plan.ragged).name]))
                loads = [(first_chunks(plan, at["m"], starts[at["l"]], before[at["l"]], plan.tiles[1]), loads[0][1])]
            for at_group, offset in loads:
                place = scales.place(at["k"] // plan.tile[2], at_group)
                copy_boxes(tma, tma.instructions, source, place, block.smem, address + offset,
                           self.blocks[0].full[stage])  # fmt: skip

    def _copy_scales(self, scales: BlockScales, stage: int, block: _PairBlock) -> None:
        """tcgen05.cp of a stage's chunks: rows through the descriptor, to every place that the atom's map names."""
        rows, bits, copies = (scales.cp.tmem[mode].size for mode in range(3))
        row, byte, copy = np.meshgrid(np.arange(rows), np.arange(bits // 8), np.arange(copies), indexing="ij")
        lane, column = places(scales.cp.tmem, row, 8 * byte, copy)
        for offset, first in scales.chunk_places():
            address = block.smem.base + self.plan.smem.scales_offset + stage * scales.bytes + offset
            read = element_addresses(scales.descriptor.base.at(address).word, "K", (rows, bits // 8), u8, "sm_100a")
            block.factors[lane, first + column, byte % (WORD_BITS // 8)] = block.smem.read(read, u8)[row, byte]

    def _factors(self, scales: BlockScales, k_block: int, block: _PairBlock, name: str) -> Values:
        """The factor of each row and element of K, read in tensor memory. `name`: "A" or "B"."""
        plan, depth = self.plan, self.plan.mma.shape_mnk[2]
        word, first = scales.read(plan.word, k_block)
        operand, at = ("A", "B").index(name), word.scale_a_id if name == "A" else word.scale_b_id
        count = BLOCK_ROWS if name == "A" else plan.tile[1]
        layout = scale_factors(rounded_up(count, 32), depth // scales.format.vector, scales.format.scale).layout
        row, k = np.arange(count)[:, None], np.arange(depth)[None, :] // scales.format.vector
        lane, column = np.broadcast_arrays(*places(layout, row, k, np.zeros_like(row)))
        found = block.factors[lane, first[operand] + column, np.broadcast_to(at + k, lane.shape)]
        return np.asarray(scales.format.scale.decode(found), np.float32)

    def _rows(self, name: str, at: dict[str, int], count: int, matrix: GlobalMatrix, end: int) -> npt.NDArray[np.int64]:
        """The rows of A or C from at["m"] on, counted over the batch's matrices.

        count  rows of one matrix; an index outside of it, and a row from `end` on, is the number of all rows
        """
        numbers, indices = np.arange(at["m"], at["m"] + BLOCK_ROWS), np.asarray(self.given[name])
        of = at["l"] if self.plan.matrices_of_c > 1 else 0
        found = indices.reshape(-1, self.plan.m)[of, np.minimum(numbers, self.plan.m - 1)]
        inside = (numbers < end) & (found >= 0) & (found < count)
        return np.where(inside, found + of * matrix.rows_apart, matrix.as_rows().extents[1])

    def _multiply(self, stage: int, first: int, accumulate: bool) -> None:
        """The product of each CTA's rows of A with all of B, from both CTAs."""
        plan, accumulator = self.plan, self.plan.mma.accumulator.layout
        rows, columns = np.arange(BLOCK_ROWS)[:, None], np.arange(plan.tile[1])[None, :]
        lane, column = places(accumulator, rows, columns, np.zeros_like(rows))
        scales = plan.scales
        if scales is not None:
            for block in self.blocks:
                self._copy_scales(scales, stage, block)
        for k_block in range(len(plan.a.descriptor.k_steps)):
            right = np.vstack([self._operand(plan.b, block, stage, k_block) for block in self.blocks])
            for block in self.blocks:
                old = block.tensor[lane, first + column] if accumulate or k_block else 0
                if plan.mma.c_dtype.kind == "int":
                    whole = self._operand(plan.a, block, stage, k_block).astype(np.int64) @ right.T.astype(np.int64)
                    block.tensor[lane, first + column] = _stopped(old + whole)
                    continue
                with np.errstate(invalid="ignore", over="ignore"):
                    left, across = self._operand(plan.a, block, stage, k_block), right
                    if scales is not None:
                        left = left * self._factors(scales, k_block, block, "A")
                        across = right * self._factors(scales, k_block, block, "B")
                    product = np.asarray(left.astype(np.float64) @ across.T, dtype=np.float32)
                block.tensor[lane, first + column] = old + product

    def _operand(self, operand: OperandPlan, block: _PairBlock, stage: int, k_block: int) -> npt.NDArray[np.float32]:
        depth, word = self.plan.mma.shape_mnk[2], operand.descriptor
        base = word.base.at(block.smem.base + self.plan.smem.stage(operand.name, stage) + word.k_steps[k_block]).word
        extent = operand.smem.extent[0], depth // operand.per_unit
        at = element_addresses(base, operand.major, extent, operand.unit, "sm_100a")
        bits = block.smem.read(at, operand.unit)
        if operand.padded:
            return operand.dtype.decode(unpadded(bits, operand.dtype.bits)).astype(np.float32)
        return operand.dtype.decode(bits if operand.per_unit == 1 else two_to_a_byte(bits)).astype(np.float32)

    # --------------------------------------------------------------------------------------------------------- the end
    def _store(self, block: _PairBlock, warp: int, first: int, origin: dict[str, int]) -> None:
        """One warp's 32 rows of the accumulator."""
        plan, store = self.plan, self.plan.store
        for i, round_ in store.rounds_of(0, 0):
            buffer = warp * store.buffers + i % store.buffers
            address = block.smem.base + plan.smem.c_offset + buffer * plan.smem.c_buffer_bytes
            for chunk in round_.chunks:
                self._fill(block, warp, first, address + chunk.offset, chunk)
            for chunk in round_.chunks:
                tma = store.maps[chunk.map]
                row = origin["m"] + block.rank * BLOCK_ROWS + warp * WARP_LANES
                place = {"m": row, "n": origin["n"] + chunk.column, "l": origin["l"]}
                if plan.ragged is not None and not plan.scatters:
                    place |= store_place(row, self.end, place["n"], store.box_rows, min)
                if not plan.scatters:
                    self.c.store(tma, place, block.smem, address + chunk.offset)
                    continue
                rows = self._rows(OUT_ROWS, place, plan.rows_of_c, self.c.matrix, self.end)
                for box in tma.instructions:
                    to, at = _four(box, rows, place["n"]), address + chunk.offset + box.smem_offset
                    scatter_rows(tma, self.c.matrix.as_rows(), to, block.smem, at, self.c.times)

    def _sums(self, block: _PairBlock, warp: int, first: int, chunk: StoreChunk) -> list[Values]:
        """A load's values of each sum, (thread, register)."""
        ld, beside = load_of(chunk), self.plan.beside
        lane, column = places(ld.tmem, np.arange(WARP_LANES)[:, None], np.arange(ld.repeat)[None, :])
        own = warp * WARP_LANES + lane
        sums = [block.tensor[own, first + beside.row(chunk.column, i) + column] for i in range(self.plan.sums)]
        return [x.astype(np.float32) for x in sums] if self.plan.c.dtype.kind == "float" else sums

    def _fill(self, block: _PairBlock, warp: int, first: int, address: int, chunk: StoreChunk) -> None:
        """A chunk's loads, converted, into its tile: register v of a thread holds where the load's map says."""
        ld, dtype = load_of(chunk), self.plan.c.dtype
        lane, column = places(ld.tmem, np.arange(WARP_LANES)[:, None], np.arange(ld.repeat)[None, :])
        if self.totals:
            sums = [self.totals[block.rank, warp, chunk.column, i] for i in range(self.plan.sums)]
        else:
            sums = self._sums(block, warp, first, chunk)
        sums = [np.full_like(x, np.nan) if self.refused else x for x in sums]
        held = sums[0] if self.plan.gated is None else self.plan.gated.apply(sums, Math, self.given)
        block.smem.write(address + np.asarray(chunk.tile.byte(lane, column)), dtype.encode(held), dtype)
