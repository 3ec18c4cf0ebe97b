"""Checks of a Hopper plan's store: columns, boxes, buffers, stmatrix, partial sums."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

from ...atoms import smem_tile, stmatrix, wgmma
from ...atoms.copy.base import VECTOR_BYTES, WARP
from ...atoms.copy.feeds_mma import feeds, row_addresses
from ...checks import bank_conflicts
from ...checks.coverage import not_once
from ...errors import CoordinateError
from ...layouts import Proof
from ...memo import memoized
from ...report import Check
from ..derive import Operand
from ..partials import WORD_BYTES, GroupScales, RowExchange, quantized_rows, whole_rows
from ..plan import present
from ..plan_checks import boxes_of_c
from ..store import ROWS, WARP_ROWS, ByteExchange, RowVectors, StoreChunk, StorePlan, distinct_chunks, rows_of_values
from .plan import WARPGROUP, WARPS_OF_GROUP, Sm90Plan


def store_checks(plan: Sm90Plan, store: StorePlan) -> list[Check]:
    """Columns, boxes, buffers, and what the threads write into them."""
    checks = [_columns(plan, store), boxes_of_c(plan, store, ROWS // WARPS_OF_GROUP * store.warps), _buffers(store)]
    written = [
        _written_by_bytes(plan, chunk, chunk.exchange)
        if chunk.exchange is not None
        else _written_one_by_one(plan, chunk)
        if chunk.rows is None
        else _written(chunk, plan.c)
        for chunk in distinct_chunks(store)
    ]
    return [*checks, next((check for check in written if not check), written[0])]


def neighbours_check(plan: Sm90Plan) -> Check:
    """Threads that store directly hold pairs of neighbours of a row, even columns first."""
    rows, thread = rows_of_values(plan.stored), np.arange(WARPGROUP)[:, None]
    witness = "" if plan.tile_c[1] % 2 == 0 else f"a tile of {plan.tile_c[1]} columns"
    for values in rows:
        i, j = np.broadcast_arrays(*plan.stored.coords_C(thread, np.asarray(values)[None, :]))
        pairs = len(values) % 2 == 0 and (j[:, 1::2] == j[:, ::2] + 1).all() and (j[:, ::2] % 2 == 0).all()
        if not pairs or (i != i[:, :1]).any():
            witness = witness or f"values {values} are no pairs of neighbours in one row"
    count = plan.stored.accumulator_registers
    if sorted(v for values in rows for v in values) != list(range(count)):
        witness = witness or f"the rows have {sum(map(len, rows))} of {count} values"
    statement = f"a thread's {count} values are pairs of neighbours in {len(rows)} rows of C, even columns first"
    return Check("neighbours", statement, not witness, f"exhaustion ({WARPGROUP * count} values)", witness)


def matrices_check(plan: Sm90Plan, store: StorePlan) -> Check:
    """A warp's matrices fill its buffer line by line without conflicts.

    ldmatrix reads where stmatrix writes.
    """
    chunks = distinct_chunks(store)
    covered = [row_vectors_check(chunk, "matrices", ("loads", "to")) for chunk in chunks]
    banks = [vector_banks(chunk, "st.shared", "banks of matrices") for chunk in chunks]
    names = ", ".join(operand.name for operand in plan.buffered_matrices)
    found = next((check for check in (*covered, *banks) if not check), covered[0])
    return replace(found, statement=f"{names}: {found.statement}")


def row_vectors_check(chunk: StoreChunk, name: str, does: tuple[str, str]) -> Check:
    """Every element of a warp's chunk is in one lane's vector, at its place.

    does  what a lane does, and whether it moves vectors "to" or "from" the tile
    """
    vectors, witness = RowVectors(chunk.tile), ""
    times, size = np.zeros(chunk.tile.extent, np.int64), chunk.tile.dtype.bytes
    for row, column, bytes_ in _lanes(chunk):
        lanes = row >= 0
        for e in range(vectors.width):
            at = (row[lanes], column[lanes] + e)
            np.add.at(times, at, 1)
            wrong = np.nonzero(bytes_[lanes] + e * size != chunk.tile.byte(*at))[0]
            if len(wrong):
                place = f"row {at[0][wrong[0]]}, column {at[1][wrong[0]]}"
                witness = witness or f"{place} is at byte {bytes_[lanes][wrong[0]] + e * size}"
    if chunk.tile.extent[0] != WARP_ROWS or chunk.column * size % VECTOR_BYTES:
        witness = witness or f"a chunk of {chunk.tile.extent[0]} rows from column {chunk.column} on"
    witness = witness or not_once(times, "row {}, column {} is moved {} times")
    statement = (
        f"a lane {does[0]} {vectors.passes} vector(s) of 16 bytes of {WARP_ROWS} rows of {chunk.width} columns: each "
        f"element once, {does[1]} where its tile has it"
    )
    return Check(name, statement, not witness, f"exhaustion ({times.size} elements)", witness)


def vector_banks(chunk: StoreChunk, instruction: str, name: str) -> Check:
    """A warp's accesses to its buffer by vectors."""
    bytes_ = np.stack([bytes_ for _, _, bytes_ in _lanes(chunk)])
    return bank_conflicts(bytes_, VECTOR_BYTES, instruction).as_check(name)


def _lanes(chunk: StoreChunk) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(row, column, byte) of each lane's vector for each pass; -1 where it has none."""
    vectors, found = RowVectors(chunk.tile), []
    for number in range(vectors.passes):
        row, column = (np.asarray(x) for x in vectors.place(number, np.arange(WARP)))
        inside = row < chunk.tile.extent[0]
        bytes_ = np.asarray(vectors.byte((np.where(inside, row, 0), column)))
        found.append((np.where(inside, row, -1), column, np.where(inside, bytes_, -1)))
    return found


def _columns(plan: Sm90Plan, store: StorePlan) -> Check:
    """Each accumulator's columns are stored once, and chunks are runs of a thread's values."""
    columns, parts = plan.stored.shape_mnk[1], store.parts
    layout = plan.stored.layout_C
    witness = ""
    for block in range(plan.blocks):
        times = np.zeros(columns, dtype=np.int64)
        for part in range(parts):
            for _, round_ in store.rounds_of(block, part):
                for chunk in round_.chunks:
                    end = chunk.column + chunk.width
                    times[chunk.column : end] += 1
                    inside = part * columns // parts <= chunk.column and end <= (part + 1) * columns // parts
                    if not inside:
                        witness = witness or f"part {part} stores columns {chunk.column}..{end - 1}"
                    if store.c != plan.c or chunk.tile.dtype != plan.c.dtype:
                        witness = witness or f"the store is of {store.c}, C is {plan.c}"
        witness = witness or not_once(times, f"column {{}} of block {block} is stored {{}} times")
    for chunk in distinct_chunks(store):
        values = np.arange(chunk.first_value, chunk.first_value + chunk.values)
        if chunk.values < 1 or values[-1] >= int(layout[1].size):
            witness = witness or f"values {values[0]} to {values[-1]} of {int(layout[1].size)}"
            continue
        at = layout(np.arange(WARPGROUP)[:, None], values[None, :])
        want = np.arange(chunk.column * ROWS, (chunk.column + chunk.width) * ROWS)
        if not np.array_equal(np.sort(np.asarray(at), axis=None), want):
            witness = witness or (
                f"values {values[0]} to {values[-1]} are not columns {chunk.column} to {chunk.column + chunk.width - 1}"
            )
    widths = "+".join(str(chunk.width) for chunk in distinct_chunks(store))
    statement = f"chunks of {widths} columns store each of {columns} columns of {plan.blocks} block(s) once"
    return Check("columns of C", statement, not witness, f"exhaustion ({ROWS * columns} elements)", witness)


def _buffers(store: StorePlan) -> Check:
    """A round's chunks are disjoint in its buffer, aligned for their swizzle."""
    witness = ""
    for number, round_ in enumerate(store.rounds):
        end = 0
        for chunk in sorted(round_.chunks, key=lambda chunk: chunk.offset):
            if chunk.offset < end:
                witness = witness or f"round {number}: byte {chunk.offset} is used twice"
            if chunk.offset % chunk.tile.alignment or store.buffer_bytes % chunk.tile.alignment:
                witness = witness or (
                    f"round {number}: offset {chunk.offset} in buffers of {store.buffer_bytes} bytes, which is no "
                    f"multiple of {chunk.tile.alignment}"
                )
            end = chunk.offset + chunk.tile.bytes
        if end > store.buffer_bytes:
            witness = witness or f"round {number} ends at byte {end} of {store.buffer_bytes}"
    statement = f"{len(store.rounds)} rounds fit into buffers of {store.buffer_bytes} bytes, {store.buffers} an owner"
    return Check("buffers of C", statement, not witness, "arithmetic", witness)


def _owners_warps(chunk: StoreChunk) -> int:
    """Warps that fill a chunk's tile: each has 16 of its rows."""
    return chunk.tile.extent[0] // WARP_ROWS


@memoized(256)
def _written(chunk: StoreChunk, c: Operand) -> Check:
    """Registers of a chunk go where its tile has them, by stmatrix without bank conflicts."""
    by_row = c.order == "row"
    copy = stmatrix(chunk.matrices, transpose=not by_row)
    whole = smem_tile((ROWS, chunk.width), chunk.tile.dtype, chunk.tile.major, chunk.tile.swizzle_name)
    atom = wgmma(chunk.width, "bf16")
    proof = feeds(copy, whole, atom, "C")
    name = f"stmatrix x{chunk.matrices}" + ("" if by_row else " .trans")
    statement = f"{name} puts columns {chunk.column} to {chunk.column + chunk.width - 1} where their tile has them"
    if not isinstance(proof, Proof):
        return Check("rows of C", statement, False, "composition of layouts", proof.explain())
    right = row_addresses(copy, whole, atom, "C")
    lanes = copy.address_threads(copy.side_in("smem"))
    requests = chunk.values // 2 // chunk.matrices
    # Where a warp's rows are a tile of their own, they are those of warp 0 in the tile of all 64.
    warps = range(_owners_warps(chunk))

    def offsets(rows: Any) -> Any:
        return np.asarray([[[int(rows(lane, (i, w))) for lane in lanes] for i in range(requests)] for w in warps])

    try:
        have, want = offsets(chunk.rows), offsets(right)
    except CoordinateError as error:
        return Check("rows of C", statement, False, proof.method, f"{requests} instructions: {error}")
    wrong = np.argwhere(have != want)
    witness = ""
    if len(wrong):
        warp, i, at = (int(x) for x in wrong[0])
        found, wanted = int(have[warp, i, at]), int(want[warp, i, at])
        witness = f"warp {warp}, instruction {i}, lane {lanes[at]}: element {found}, not {wanted}"
    width = c.dtype.bytes
    if not witness and (have.max() + 8) * width > chunk.tile.bytes:
        witness = f"a row ends at byte {(have.max() + 8) * width} of {chunk.tile.bytes}"
    if not witness:
        banks = bank_conflicts(have.reshape(-1, len(lanes)) * width, 16, "stmatrix")
        witness = "" if banks else str(banks.witness)
        statement += f", {banks.ways}-way in its banks"
    return Check("rows of C", statement, not witness, proof.method, witness)


def _written_by_bytes(plan: Sm90Plan, chunk: StoreChunk, exchange: ByteExchange) -> Check:
    """Lanes exchange bytes, and stmatrix puts each value where its tile has it."""
    lanes, values = np.arange(WARP), chunk.first_value + np.arange(chunk.values)
    witness, requests, banks = "", chunk.values // 4 // exchange.matrices, None
    for warp in range(_owners_warps(chunk)):
        i, j = plan.mma.coords_C((WARP * warp + lanes)[:, None], values[None, :])
        own = np.asarray(chunk.tile.byte(i, j - chunk.column)).reshape(WARP, -1, 4)
        words = exchange.exchanged(own)
        for number in range(requests):
            rows = np.asarray(chunk.tile.byte(*exchange.place(warp, number, lanes[: 8 * exchange.matrices])))
            banks = bank_conflicts(rows[None], 16, "stmatrix")
            for matrix in range(exchange.matrices):
                # Of matrix `matrix`, a lane has two columns of two bytes, in the line of its row pair.
                found = words[:, number * exchange.matrices + matrix].reshape(WARP, 2, 2)
                line = rows[8 * matrix + 2 * (lanes % 4)[:, None] + np.arange(2)]
                want = line[:, :, None] + 2 * (lanes // 4)[:, None, None] + np.arange(2)
                wrong = np.argwhere(found != want)
                if len(wrong):
                    at = tuple(int(x) for x in wrong[0])
                    witness = witness or (
                        f"warp {warp}, instruction {number}, matrix {matrix}, lane {at[0]}: the byte of place "
                        f"{int(found[at])} goes to {int(want[at])}"
                    )
    if requests * exchange.matrices * 4 != chunk.values:
        witness = witness or f"{requests} instructions of {exchange.matrices} words store {chunk.values} values"
    statement = (
        f"lanes exchange bytes; stmatrix x{exchange.matrices} .trans puts columns {chunk.column} to "
        f"{chunk.column + chunk.width - 1} where their tile has them"
    )
    if banks is not None:
        statement += f", {banks.ways}-way in its banks"
    return Check("rows of C", statement, not witness, f"exhaustion ({ROWS * chunk.width} elements)", witness)


def _written_one_by_one(plan: Sm90Plan, chunk: StoreChunk) -> Check:
    """Threads store their own values: each element of the owner's tile once."""
    threads = np.arange(WARP * _owners_warps(chunk))[:, None]
    i, j = plan.mma.coords_C(threads, chunk.first_value + np.arange(chunk.values)[None, :])
    rows, columns = chunk.tile.extent
    witness = ""
    found = np.sort(np.asarray(chunk.tile.byte(i, j - chunk.column)), axis=None)
    want = np.arange(rows * columns) * chunk.tile.dtype.bytes
    if not np.array_equal(found, want):
        witness = f"{found.size} values reach {np.unique(found).size} of {want.size} elements"
    statement = (
        f"threads store columns {chunk.column} to {chunk.column + chunk.width - 1} of {plan.c.dtype} each its own "
        "values, each element of the tile once"
    )
    return Check("rows of C", statement, not witness, f"exhaustion ({want.size} elements)", witness)


def rows_check(plan: Sm90Plan, rows: RowExchange) -> Check:
    """A cluster has all columns; each number of a tuple has its own place."""
    words = sum(len(step.reduction.kinds) for step in whole_rows(plan.epilogue))
    columns, covered = plan.config.cluster[1], plan.tile_c[1] * plan.config.cluster[1]
    witness = ""
    if plan.n > covered:
        witness = f"column {covered} of {plan.n} is of no CTA of the first cluster"
    elif (rows.columns, rows.rows, rows.words) != (columns, plan.tile_c[0], words):
        witness = f"{rows} for {columns} CTAs of {plan.tile_c[0]} rows and {words} numbers"
    elif rows.columns > 1 and plan.config.launch != "tiles":
        witness = "a CTA's next tile would send to places that are read"
    if rows.columns > 1:
        places = sorted(int(rows.byte(c, w, r)) for c in range(columns) for w in range(words) for r in range(rows.rows))
        if places != list(range(rows.offset, rows.offset + rows.bytes, WORD_BYTES)):
            witness = witness or f"{len(set(places))} places of {len(places)} numbers"
        if rows.offset + rows.bytes > plan.smem.total:
            witness = witness or f"bytes {rows.offset} to {rows.offset + rows.bytes} of {plan.smem.total}"
    way = f"are combined by the first of {columns} CTAs, from {rows.bytes} bytes" if columns > 1 else "are one CTA's"
    return Check("whole rows", f"{words} numbers of each row {way}", not witness, "exhaustion (places)", witness)


def group_scales_check(plan: Sm90Plan, scales: GroupScales) -> Check:
    """Each group is of whole blocks of one consumer. Each maximum and each factor has its own place."""
    each, blocks = present(quantized_rows(plan.epilogue)).each, plan.blocks
    consumers, columns = plan.config.consumers, plan.mma.shape_mnk[1]
    places = [
        int(scales.byte(consumer, group, line, column))
        for consumer in range(scales.consumers)
        for group in range(scales.groups)
        for line in range(scales.warps + 1)
        for column in range(scales.columns)
    ]
    met = next((place for place, count in Counter(places).items() if count > 1), None)
    witness = "" if met is None else f"byte {met} is the place of two numbers"
    if scales.groups * each != blocks * ROWS or blocks % scales.groups:
        witness = f"{scales.groups} groups of {each} rows of {blocks} blocks of {ROWS}"
    elif (scales.columns, scales.warps, scales.consumers) != (columns, WARPS_OF_GROUP, consumers):
        witness = f"{scales} for {consumers} consumers of {WARPS_OF_GROUP} warps and {columns} columns"
    elif min(places) < scales.offset or max(places) + WORD_BYTES > min(scales.offset + scales.bytes, plan.smem.total):
        witness = f"bytes {min(places)} to {max(places) + WORD_BYTES} of {scales.offset} to {plan.smem.total}"
    statement = (
        f"{scales.groups} group(s) of {each} rows of a consumer have scales, from {scales.bytes} bytes of maxima and "
        "factors"
    )
    return Check("scales of rows", statement, not witness, "exhaustion (places)", witness)


def exchange_check(plan: Sm90Plan) -> Check:
    """Partial sums: every register of a part has a place, none twice. The places are in memory of their own, and so has
    every block a place."""
    sent, split, slices, sources = plan.exchange, plan.config.split, plan.config.slices, plan.config.sources
    assert sent is not None
    held = plan.mma.accumulator_registers
    shape = (WARPGROUP, sent.vectors, plan.blocks, plan.config.warpgroups_of_tile, sources - 1)
    targets = [part * slices for part in range(split)]  # the first slice of each part adds
    slots = [sorted(sent.slot(source, own) for source in range(sources) if source != own) for own in targets]
    witness = ""
    if sent.values * split != held or sent.values % 4:
        witness = f"{split} parts of {sent.values} values, of {held}"
    elif tuple(sent.layout.shape) != shape or not sent.layout.is_bijective():
        witness = f"{sent.layout} for {shape}"
    elif wrong := [(target, found) for target, found in enumerate(slots) if found != list(range(sources - 1))]:
        witness = f"the other blocks' slots in block {wrong[0][0]} are {wrong[0][1]}"
    elif sent.offset + sent.bytes > plan.smem.barrier_offset:
        witness = f"{sent.bytes} bytes from byte {sent.offset} on, the barriers begin at {plan.smem.barrier_offset}"
    elif sorted(sum([plan.summed_values(part) for part in range(split)], ())) != list(range(held)):
        witness = f"the parts sum values {[plan.summed_values(part) for part in range(split)]}, of {held}"
    elif plan.store is not None:
        for part in range(split):
            values = [
                value
                for _, round_ in plan.store.rounds_of(0, part)
                for chunk in round_.chunks
                for value in range(chunk.first_value, chunk.first_value + chunk.values)
            ]
            summed = plan.summed_values(part)
            if sorted(values) != list(summed[: sent.values // plan.sums]):
                witness = witness or f"part {part} sums values {summed}, and stores {values[:1]} on"
    statement = (
        f"{sent.values} of {held} values go to each of {split} parts, to {sent.layout}, one to one onto {sent.bytes} "
        "bytes"
    )
    return Check("exchange", statement, not witness, "normal form", witness)
