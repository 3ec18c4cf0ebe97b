"""Checks of indexed rows. Vectors of A's tile and of C's chunks move once, each to its place, without conflicts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ....atoms.copy.base import VECTOR_BYTES, WARP
from ....checks import bank_conflicts
from ....checks.budgets import WARPGROUP
from ....checks.coverage import not_once
from ....report import Check
from ...indexed.added_rows import explain_added
from ...indexed.row_copy import COPIED
from ...plan import present, tile_count
from ...store import WARP_ROWS, RowVectors, distinct_chunks
from ..store_checks import row_vectors_check, vector_banks
from .copies import GatheredOperand
from .row_copy import copied_bytes, copied_shape, row_copy_check

if TYPE_CHECKING:
    from ..plan import Sm90Plan


def indexed_checks(plan: Sm90Plan) -> list[Check]:
    """The copies of gathered rows, and the stores of scattered ones."""
    checks = [_gathered(plan.a), _ends_of_k(plan.a), _gather_banks(plan.a)] if plan.gathers else []
    if plan.copies_rows:
        checks.append(row_copy_check(present(plan.indexed).row_copy, plan.a.dtype))
    if plan.scatters:
        chunks = distinct_chunks(present(plan.store))
        found = [row_vectors_check(chunk, "scatter C", ("stores", "from")) for chunk in chunks]
        checks.append(next((check for check in found if not check), found[0]))
        found = [vector_banks(chunk, "ld.shared", "banks of scatter") for chunk in chunks]
        checks.append(next((check for check in found if not check), found[0]))
    return checks


def _gathered(operand: GatheredOperand) -> Check:
    """Every vector of the tile is copied once, to its place."""
    copy, tile, witness = operand.copy, operand.smem, ""
    width, thread = VECTOR_BYTES // tile.dtype.bytes, np.arange(WARPGROUP)
    times = np.zeros(tile.extent, np.int64)
    for number in range(copy.passes):
        for span in range(copy.spans):
            row, first = copy.row(thread, number), copy.element(thread, span)
            to = np.asarray(copy.byte(thread)) + copy.step(number, span)
            for e in range(width):
                wrong = np.nonzero(to + e * tile.dtype.bytes != tile.byte(row, first + e))[0]
                if len(wrong):
                    at = int(wrong[0])
                    place = f"row {int(row[at])}, k {int(first[at]) + e}"
                    witness = witness or f"{place} lands at byte {int(to[at]) + e * tile.dtype.bytes}"
                np.add.at(times, (row, first + e), 1)
            if (to % VECTOR_BYTES).any():
                witness = witness or f"thread {int(np.argmax(to % VECTOR_BYTES > 0))} copies to an odd byte"
    witness = witness or not_once(times, "row {}, k {} is copied {} times")
    statement = (
        f"{operand.arrivals} threads copy {copy.passes} row(s) each in {copy.spans} vector(s) of 16 bytes: each "
        f"element of {tile.extent[0]}x{tile.extent[1]} once, where its tile has it"
    )
    return Check("copy A", statement, not witness, f"exhaustion ({times.size} elements)", witness)


def _ends_of_k(operand: GatheredOperand) -> Check:
    """The bytes that a vector reads, wherever the row ends."""
    copy, size, witness = operand.copy, operand.dtype.bytes, ""
    tests = range(-operand.smem.extent[1] - 1, operand.smem.extent[1] + VECTOR_BYTES)
    for left in tests:
        inside = sum(e < left for e in range(VECTOR_BYTES // size)) * size
        if copy.valid(left) != inside:
            witness = witness or f"with {left} elements left {copy.valid(left)} bytes are read, not {inside}"
    statement = "a vector reads the bytes of its row up to K, and the others are zeros"
    return Check("ends of K", statement, not witness, f"exhaustion ({len(tests)} ends)", witness)


def _gather_banks(operand: GatheredOperand) -> Check:
    """Writes of a warp's vectors to shared memory."""
    copy, thread = operand.copy, np.arange(WARPGROUP)
    steps = [copy.step(number, span) for number in range(copy.passes) for span in range(copy.spans)]
    bytes_ = np.concatenate([(np.asarray(copy.byte(thread)) + step).reshape(-1, WARP) for step in steps])
    return bank_conflicts(bytes_, VECTOR_BYTES, "cp.async").as_check("banks of copies")


def explain_indexed(plan: Sm90Plan) -> list[str]:
    """The indices, the loader's copies and the stores as text."""
    lines = [f"indexed: {plan.indexed}; an index outside of its matrix reads zeros, or stores nothing"]
    if plan.copies_rows:
        lines.append(_explain_row_copy(plan))
    lines += explain_added(plan)
    if plan.gathers:
        copy = plan.a.copy
        lines.append(
            f"  A: {plan.a.arrivals} threads copy {copy.passes * copy.spans} vectors of 16 bytes each of a K tile "
            f"(cp.async), {copy.tiled.layout_tv}; consumers fence (fence.proxy.async) behind full[s]"
        )
    if plan.scatters:
        chunk = distinct_chunks(present(plan.store))[0]
        lines.append(
            f"  C: {RowVectors(chunk.tile).passes} vectors of 16 bytes a lane of a {WARP_ROWS}x{chunk.width} chunk, "
            "from shared memory; elements one by one where C's rows are not aligned, or at N's end"
        )
    return lines


def _explain_row_copy(plan: Sm90Plan) -> str:
    """The copy of rows as text: its launch and its workspace."""
    copy, size = present(plan.indexed).row_copy, plan.a.dtype.bytes
    matrices, rows, pitch = copied_shape(plan)
    blocks = tile_count(matrices * rows * copy.runs(plan.k, size), copy.warps)
    counted = ", of those that count" if plan.ragged is not None and plan.ragged.masked else ""
    return (
        f"  A: {matrices * rows} rows{counted} are copied first, by {blocks} CTAs of {copy.warps} warps: {copy.run} "
        f"bytes a warp, {copy.vectors} vectors of 16 bytes a lane. The product reads the copy, {copied_bytes(plan)} "
        f"bytes of workspace at '{COPIED}', rows {pitch} elements apart"
    )
