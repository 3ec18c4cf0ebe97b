"""Checks of block scales: each factor comes to the place that an instruction reads."""

from __future__ import annotations

import numpy as np

from ...atoms.smem.descriptor import element_addresses
from ...atoms.tmem.layout import COLUMNS, LANES, WORD_BITS
from ...dtypes import u8
from ...report import Check
from ..grouped.rows import tables
from ..operands.block_scales import CHUNK_BYTES, CHUNK_FACTORS, CHUNK_ROWS, blocked, chunk_rows
from ..plan import present
from ..ragged import sample_offsets
from .block_scales import BlockScales, first_chunks
from .plan import Sm100Plan
from .reference import places

_NUMBERS = 251  # different factors: a prime, so that no power of two repeats them


def scale_checks(plan: Sm100Plan) -> list[Check]:
    """The checks of the block scales."""
    scales = present(plan.scales)
    witness = places_witness(plan, scales, copied(scales))
    rows, columns = scales.groups[0] * CHUNK_ROWS, scales.groups[1] * CHUNK_ROWS
    count = (rows + columns) * scales.chunks * CHUNK_FACTORS
    statement = (
        f"a K tile has {scales.chunks} chunk(s) of {scales.groups[0]} and {scales.groups[1]} group(s) of {CHUNK_ROWS} "
        f"rows; each factor comes to where {plan.mma} reads it, behind the accumulators, from column {scales.column} on"
    )
    found = [Check("block scales", statement, not witness, f"exhaustion ({count} factors)", witness)]
    if scales.halves > 1:
        found.append(_chunks_of_halves(plan, scales))
    return found if not scales.joined else [*found, _chunks_of_groups(plan)]


def _chunks_of_groups(plan: Sm100Plan) -> Check:
    """Each tile of a group loads its own rows' factors, of sample batches; the tensor map has them all."""
    witness, tiles, groups = "", 0, sample_offsets(present(plan.ragged).capacity, CHUNK_ROWS)
    for offsets in groups:
        starts, first = tables(plan, offsets, 3)
        sizes = np.diff(offsets)
        padded = -(-sizes // CHUNK_ROWS)
        before = np.cumsum([0, *padded])
        for e, count in enumerate(padded.tolist()):
            for tile in range(count):
                found = first_chunks(plan, starts[e] + tile * plan.tile_c[0], starts[e], first[e], 3)
                tiles += 1
                if found != before[e] + tile:
                    witness = witness or f"sizes {sizes.tolist()}: tile {tile} of group {e} loads chunks {found}"
        if before[-1] > chunk_rows(int(offsets[-1]), len(sizes)):
            witness = witness or f"sizes {sizes.tolist()}: {before[-1]} groups of {CHUNK_ROWS} rows, outside of the map"
    statement = f"a tile of a group loads the chunks of its {CHUNK_ROWS} rows, each group's behind the one before"
    return Check("chunks of groups", statement, not witness, f"{len(groups)} ragged batches ({tiles} tiles)", witness)


def _chunks_of_halves(plan: Sm100Plan, scales: BlockScales) -> Check:
    """Each column of a gated tile has its own half's factors. Of the first tiles and the last."""
    witness, tiles = "", sorted({0, plan.tile_c[1] % plan.n, (plan.tiles[1] - 1) * plan.tile_c[1]})
    for first in tiles:
        loads = scales.loads(1, first, 0, plan.n)
        for row in range(plan.tile[1]):
            column, half = plan.beside.source(row)
            want = half * plan.n + first + column
            number, inside = divmod(row, CHUNK_ROWS)
            group, offset = loads[number]
            at = offset - scales.offset(1) - number * scales.chunks * CHUNK_BYTES
            if (group * CHUNK_ROWS + inside, at) != (want, 0):
                witness = (
                    witness or f"column {row} of the tile from {first} has the factors of {group * CHUNK_ROWS + inside}"
                )
    statement = f"the {scales.halves} halves of a tile have the chunks of B's columns from {plan.n} columns on"
    return Check("chunks of halves", statement, not witness, f"exhaustion ({len(tiles)} tiles)", witness)


def numbered(scales: BlockScales, operand: int) -> np.ndarray:
    """Numbers in place of the factors of a tile of A (0) or B (1): (row, factor)."""
    shape = scales.groups[operand] * CHUNK_ROWS, scales.chunks * CHUNK_FACTORS
    return ((np.arange(shape[0] * shape[1]) * 7 + operand) % _NUMBERS).astype(np.uint8).reshape(shape)


def copied(scales: BlockScales) -> np.ndarray:
    """Bytes of tensor memory, (lane, column, byte), after the copies of `numbered` tiles. -1: none."""
    shared = np.concatenate([blocked(numbered(scales, operand)) for operand in range(2)])
    found = np.full((LANES, COLUMNS, WORD_BITS // 8), -1, np.int64)
    rows, bits, copies = (scales.cp.tmem[mode].size for mode in range(3))
    row, byte, copy = np.meshgrid(np.arange(rows), np.arange(bits // 8), np.arange(copies), indexing="ij")
    lane, column = places(scales.cp.tmem, row, 8 * byte, copy)
    read = element_addresses(scales.descriptor.base.at(0).word, "K", (rows, bits // 8), u8, "sm_100a")
    for offset, first in scales.chunk_places():
        chunk = shared[offset : offset + CHUNK_BYTES]
        found[lane, (first + column) % COLUMNS, byte % (WORD_BITS // 8)] = chunk[read % CHUNK_BYTES][row, byte]
    return found


def places_witness(plan: Sm100Plan, scales: BlockScales, held: np.ndarray) -> str:
    """The first factor that an instruction reads elsewhere, or ""."""
    if scales.column < plan.accumulators * plan.mma.accumulator.columns:
        return f"column {scales.column} is an accumulator's"
    each = plan.mma.shape_mnk[2] // scales.format.vector
    for operand, name in enumerate("AB"):
        layout, want = plan.mma.scale_layout(name).layout, numbered(scales, operand)
        count = (CHUNK_ROWS, plan.tile[1])[operand]
        for k_block in range(len(plan.a.descriptor.k_steps)):
            word, first = scales.read(plan.word, k_block)
            byte = (word.scale_a_id, word.scale_b_id)[operand]
            for copy in range(layout[2].size):
                row, k = np.arange(count)[:, None], np.arange(each)[None, :]
                lane, column = np.broadcast_arrays(*places(layout, row, k, np.full_like(row, copy)))
                read = held[lane, first[operand] + column, byte + np.broadcast_to(k, lane.shape)]
                if (wrong := np.argwhere(read != want[:count, k_block * each : (k_block + 1) * each])).size:
                    at = tuple(map(int, wrong[0]))
                    return f"instruction {k_block} reads {name}'s factor {at} at lane {int(lane[at])} of another"
    return ""
