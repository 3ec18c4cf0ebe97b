"""All that an Sm80Plan claims, checked in the order of the data's way. Tiles, copies, fragments, ring, store, budgets.

Each check takes its numbers from the plan's own objects, and recomputes them from the atoms. A plan with a changed
number fails the check of that number.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import numpy.typing as npt

from ...atoms import MmaAtom
from ...atoms.copy.base import VECTOR_BYTES, WARP
from ...checks import (
    AccessPattern,
    PipelineProof,
    bank_conflicts,
    bijective_tile,
    filled_by,
    matrix_access,
    registers,
    sectors,
    shared_memory_of,
)
from ...checks.coverage import not_once
from ...layouts import Layout
from ...memo import memoized
from ...report import Check, Report
from ..column_groups import groups_check
from ..derivation import checked
from ..derive import one_matrix
from ..indexed.added_rows import added_checks
from ..operands.pair import pair_check
from ..operands.thread_numbers import number_checks
from ..partials import reductions_check
from ..plan_checks import fragment_checks, tiles_of_c, tiles_of_k
from .fragment import WarpFragment
from .groups import group_checks
from .operand import Sm80Operand, byte_selector, in_units
from .pipeline import proven
from .plan import Sm80Plan
from .promoted import promoted_registers
from .quantized.checks import packed_checks
from .quantized.split import split_checks
from .scale_checks import scale_checks
from .store import BUFFERS
from .store_checks import numbered_check, store_checks

HELD = 20  # registers of a thread beside accumulators and fragments: addresses of copies and loads, counters
IntArray = npt.NDArray[np.int64]


def check_sm80(plan: Sm80Plan) -> Report:
    """Every check of the plan."""
    return checked(plan, _checks, arch=plan.arch)


def _checks(plan: Sm80Plan, explored: bool) -> list[Check]:
    checks: list[Check] = [_tiles_of_c(plan), _tiles_of_k(plan)]
    checks += operand_checks(plan.a, plan.threads, in_units(plan.mma))
    checks += operand_checks(plan.b, plan.threads, in_units(plan.mma)) if plan.weights is None else packed_checks(plan)
    checks += [*scale_checks(plan), *split_checks(plan), *group_checks(plan), *added_checks(plan), *number_checks(plan)]
    checks += [_warps(plan), *([_pipeline(plan)] if explored else [])]
    checks += [*fragment_checks(plan.mma), *store_checks(plan), _stages(plan)]
    parts = {f"{plan.stages} stages of A and B": plan.stages * plan.smem.a_stage_bytes}
    rest, blocks = "C's buffers beyond them, barriers", plan.config.blocks_per_sm
    checks.append(shared_memory_of(plan.arch, parts, plan.smem.total, 0, rest, blocks))
    m, n = plan.blocks
    held = {
        "accumulators": m * n * plan.mma.accumulator_registers,
        "fragments": m * plan.mma.registers("A") + n * plan.mma.registers("B") + plan.packed_registers,
        "totals and their numbers": promoted_registers(plan),
        "block scales": plan.scale_registers,
        "addresses and counters": HELD,
    }
    checks.append(registers(plan.arch, plan.threads, held, plan.config.blocks_per_sm))
    if plan.gated is not None:
        checks.append(_sums(plan))
    if plan.pair is not None:
        checks.append(pair_check(plan))
    if plan.epilogue or plan.gated is not None:
        checks.append(numbered_check(plan))
    if plan.epilogue.reductions:
        checks.append(reductions_check(plan, plan.fragment, range(plan.fragment.accumulator_registers)))
    if plan.epilogue.groups:
        checks.append(groups_check(plan.epilogue, plan.fragment, range(plan.fragment.accumulator_registers)))
    return checks


# ---------------------------------------------------------------------------------------------------------------- tiles


def _tiles_of_c(plan: Sm80Plan) -> Check:
    statement = (
        f"{plan.tiles[0]}x{plan.tiles[1]} tiles of {plan.tile_c[0]}x{plan.tile_c[1]} cover {plan.m}x{plan.n}"
        + f" of each of {plan.batch} matrices" * (plan.matrices_of_c > 1)
        + f", and {plan.order} visits each {'' if plan.order.is_full else 'of its set '}once"
    )
    return tiles_of_c(plan, statement, plan.tile_c, batched=False)


def _tiles_of_k(plan: Sm80Plan) -> Check:
    depth = plan.mma.shape_mnk[2]
    unlike = "" if plan.steps * depth == plan.tile[2] else f"{plan.steps} products of depth {depth}"
    return tiles_of_k(plan, f", {plan.steps} products deep,", "zeros by the copies' fill", unlike=unlike)


# ------------------------------------------------------------------------------------------------------------- operands


@memoized(256)
def operand_checks(operand: Sm80Operand, threads: int, mma: MmaAtom) -> tuple[Check, ...]:
    """The tile, the copies that fill it, the loads that read it."""
    tile, name = operand.smem, operand.name
    copied = _copied(operand, threads)
    written = AccessPattern(f"cp.async of {name}", "cp.async", copied)
    if operand.copy.by_elements:
        written = AccessPattern(f"st.shared of {name}", "st.shared", copied)
    banks = [bank_conflicts(tile, written).as_check(f"banks of copies {name}")] if operand.tma is None else []
    if operand.load.words:
        banks.append(bank_conflicts(tile, _words_read(operand)).as_check(f"banks of loads {name}"))
    elif operand.load.kind == "bytes":
        banks.append(bank_conflicts(tile, _rows_read(operand)).as_check(f"banks of loads {name}"))
    else:
        banks.append(
            bank_conflicts(tile, matrix_access(tile.extent, tile.dtype, tile.major)).as_check(f"banks of loads {name}")
        )
    filled = [_copies(operand, threads)]
    if operand.copy.access == operand.copy.vector_bytes or operand.copy.by_elements:
        filled.append(_coalesced(operand, copied))  # an access of 4 bytes of every 12 leaves the others to L1: no claim
    if operand.tma is not None:
        filled = [filled_by(f"copies {name}", tile, one_matrix(operand.tma))]
    return (
        bijective_tile(f"tile {name}", tile), *filled, _addresses(operand, threads), _fed(operand, mma), *banks,
    )  # fmt: skip


def _copied(operand: Sm80Operand, threads: int) -> IntArray:
    """The flat coordinates mn + MN * k of all vectors: (request, lane, element)."""
    copy, extent = operand.copy, operand.smem.extent
    width = copy.span // operand.unit.bytes
    step = (0, 1) if operand.major == "K" else (1, 0)
    lanes, run = np.arange(threads)[:, None], np.arange(width)[None, :]
    found = []
    for index in copy.indices:
        mn, k = copy.coordinates(lanes, *index)
        found.append((mn + step[0] * run) + extent[0] * (k + step[1] * run))
    return np.stack(found).reshape(len(found) * (threads // WARP), WARP, width)


def _copies(operand: Sm80Operand, threads: int) -> Check:
    """Each element of the tile is in one vector, and vectors are contiguous bytes."""
    copy, tile = operand.copy, operand.smem
    coords = _copied(operand, threads)
    size = tile.extent[0] * tile.extent[1]
    times = np.bincount(coords.ravel(), minlength=size) if coords.min() >= 0 else np.zeros(size, np.int64)
    witness = ""
    if len(times) != size or (times != 1).any():
        at = int(np.nonzero(times[:size] != 1)[0][0])
        witness = f"element {(at % tile.extent[0], at // tile.extent[0])} is copied {int(times[at])} times"
    mn, k = coords % tile.extent[0], coords // tile.extent[0]
    bytes_ = tile.byte(mn, k)
    crooked = (bytes_ != bytes_[..., :1] + np.arange(coords.shape[2]) * tile.dtype.bytes).any()
    if crooked or (bytes_[..., 0] % copy.span).any():
        witness = witness or f"a vector of {copy.span} bytes is no run of bytes of {tile}"
    away = {(i, j): tuple(int(x) for x in copy.coordinates(0, i, j)) for i, j in copy.indices}
    for index, distance in away.items():
        steps = [x - y for x, y in zip(copy.coordinates(np.arange(threads), *index),
                                       copy.coordinates(np.arange(threads), 0, 0))]  # fmt: skip
        if any((step != d - z).any() for step, d, z in zip(steps, distance, away[0, 0])):
            witness = witness or f"vector {index} is not as far from the first in all threads"
    how = "elements gathered into" if copy.by_elements else "cp.async of"
    statement = (
        f"{threads} threads with {len(copy.indices)} vector(s) each, {how} {copy.vector_bytes} bytes, copy each of "
        f"{size} elements of {operand.name} once"
    )
    return Check(f"copies {operand.name}", statement, not witness, f"exhaustion ({size} elements)", witness)


def _coalesced(operand: Sm80Operand, copied: IntArray) -> Check:
    """A warp's request touches as few sectors as its bytes need, for an aligned pitch."""
    extent, element = operand.smem.extent, operand.unit
    # a pitch of an odd number of vectors: contiguous lines would hide what is scattered
    pitch = extent[1 if operand.major == "K" else 0] + 128 // element.bytes
    if operand.padded:  # bytes of packed elements in global memory
        mn, k = copied[..., 0] % extent[0], operand.memory_bytes(copied[..., 0] // extent[0])
        run = np.arange(operand.copy.vector_bytes)
        extent = extent[0], operand.memory_bytes(extent[1])
        copied = mn[..., None] + extent[0] * (k[..., None] + run)
    lines = Layout(extent, (pitch, 1) if operand.major == "K" else (1, pitch))
    width = min(copied.shape[2] * element.bytes, VECTOR_BYTES)
    asked = AccessPattern(f"reads of {operand.name}", "ld.global", copied[:, :, : width // element.bytes])
    return sectors(lines, asked, element=element).as_check(f"coalescing {operand.name}")


def _addresses(operand: Sm80Operand, threads: int) -> Check:
    """The few addresses of a thread plus constants are the tile's bytes: of every copy, and of every load."""
    tile, copy, load = operand.smem, operand.copy, operand.load
    t = np.arange(threads)
    witness = ""
    bases = [np.asarray(tile.byte(*copy.coordinates(t, *index))) for index in copy.places.bases]
    for index in copy.indices:
        base, constant = copy.places.of[index]
        if (bases[base] + constant != tile.byte(*copy.coordinates(t, *index))).any():
            witness = witness or f"copy {index}: its address is not {constant} bytes from that of {base}"
    lanes, warps = np.arange(WARP)[:, None], np.arange(operand.warps)[None, :]
    bases = [np.asarray(load.byte(tile, lanes, warps, index)) for index in load.places.bases]
    for index in product(range(load.loads), range(load.steps), range(len(load.words) or 1)):
        base, constant = load.places.of[index]
        if (bases[base] + constant != load.byte(tile, lanes, warps, index)).any():
            witness = witness or f"load {index}: its address is not {constant} bytes from that of {base}"
    statement = (
        f"a thread's {len(copy.indices)} copies of {operand.name} go to {len(copy.places.bases)} address(es) plus "
        f"constants, its {len(load.places.of)} loads come from {len(load.places.bases)}"
    )
    return Check(f"addresses {operand.name}", statement, not witness, f"exhaustion ({threads} threads)", witness)


def held_after(operand: Sm80Operand, load: int, step: int) -> tuple[IntArray, IntArray]:
    """The coordinates (mn, k) that one load brings: each (lane, register, element).

    From the addresses that the lanes give, and from the map of ldmatrix, of a plain load, or of prmt.
    """
    how, bits = operand.load, operand.unit.bits
    lanes = np.arange(WARP)
    if how.words:
        mn, k = how.rows(lanes, load, step)
        away = np.asarray(how.words)
        return (np.asarray(mn)[:, None, None] + away[None, :, :1], np.asarray(k)[:, None, None] + away[None, :, 1:])
    along_k = operand.major == "K"
    copy = operand.matrices
    width = VECTOR_BYTES * 8 // bits
    element = np.asarray(copy.layout_dst.offsets(), np.int64).reshape(-1, WARP).T  # (lane, value)
    row, inside = element // width, element % width
    mn, k = (np.asarray(x) + np.zeros(WARP, np.int64) for x in how.rows(lanes, load, step))
    mn, k = mn[row] + (0 if along_k else inside), k[row] + (inside if along_k else 0)
    per = 32 // bits
    mn, k = (np.asarray(x, np.int64).reshape(WARP, 4, per) for x in (mn, k))
    if how.kind != "bytes":
        return mn, k
    late = (lanes % 4 >= 2).astype(int)
    parted = np.empty((2, 2, 2, WARP, per), np.int64)  # (what, odd, half of K, lane, byte)
    for odd, half, lane in product(range(2), range(2), range(WARP)):
        selector = byte_selector(int(late[lane]), odd)
        for byte in range(4):
            register, which = divmod(selector >> 4 * byte & 15, 4)
            parted[0, odd, half, lane, byte] = mn[lane, 2 * half + register, which]
            parted[1, odd, half, lane, byte] = k[lane, 2 * half + register, which]
    order = ((0, 0), (1, 0), (0, 1), (1, 1)) if how.blocks == 1 else ((0, 0), (0, 1), (1, 0), (1, 1))
    made = parted[:, [odd for odd, _ in order], [half for _, half in order]].swapaxes(1, 2)
    return np.asarray(made[0], np.int64), np.asarray(made[1], np.int64)


def _fed(operand: Sm80Operand, atom: MmaAtom) -> Check:
    """Every element of every register is the one that the instruction expects."""
    load, name = operand.load, operand.name
    lanes = np.arange(WARP)[:, None]
    per, block = 32 // operand.unit.bits, atom.tile_of(name)[0]
    places, depth = atom.coords(name), atom.shape_mnk[2]
    values = np.arange(int(places[1].size))[None, :]
    rows, ks = (np.asarray(x) for x in places(lanes, values))
    witness = ""
    count = 0
    for number, step in product(range(load.loads), range(load.steps)):
        mn, k = held_after(operand, number, step)
        for b in range(load.blocks):
            want = 16 * number + np.asarray(load.order(rows + b * block)), ks + step * depth
            part = slice(b * atom.registers(name), (b + 1) * atom.registers(name))
            got = mn[:, part].reshape(WARP, -1), k[:, part].reshape(WARP, -1)
            wrong = np.argwhere((got[0] != want[0]) | (got[1] != want[1]))
            count += got[0].size
            if len(wrong) and not witness:
                lane, value = (int(x) for x in wrong[0])
                witness = (
                    f"load {number}, depth {step}, lane {lane}, value {value} of block {b} is element "
                    f"({int(got[0][lane, value])}, {int(got[1][lane, value])}), the product expects "
                    f"({int(want[0][lane, value])}, {int(want[1][lane, value])})"
                )
    if per * load.registers != load.blocks * int(places[1].size):
        witness = witness or f"a load has {load.registers} registers of {per}, {load.blocks} block(s) have {places[1]}"
    if load.loads * 16 != operand.warp_extent or load.steps * depth != operand.smem.extent[1]:
        witness = witness or f"{load.loads} loads of 16 and {load.steps} depths are not {operand.warp_extent} wide"
    statement = f"{load.kind} brings each element of {name} into the register in which mma.sync expects it"
    return Check(f"fragments {name}", statement, not witness, f"exhaustion ({count} elements)", witness)


def _flat(operand: Sm80Operand, mn: IntArray, k: IntArray) -> IntArray:
    return np.asarray(mn + operand.smem.extent[0] * k, np.int64)


def _rows_read(operand: Sm80Operand) -> AccessPattern:
    """The rows that ldmatrix reads by the plan's own addresses: (request, lane, element)."""
    load = operand.load
    run = np.arange(VECTOR_BYTES // operand.unit.bytes)
    found = []
    for number, step in product(range(load.loads), range(load.steps)):
        mn, k = (np.asarray(x) + np.zeros(WARP, np.int64) for x in load.rows(np.arange(WARP), number, step))
        found.append(_flat(operand, mn[:, None] + run, k[:, None]))
    return AccessPattern(f"ldmatrix.trans of {operand.name}", "ldmatrix", np.stack(found))


def _words_read(operand: Sm80Operand) -> AccessPattern:
    """The words that a warp's loads read: (request, lane, 1)."""
    found = []
    for number, step in product(range(operand.load.loads), range(operand.load.steps)):
        mn, k = held_after(operand, number, step)
        found += [_flat(operand, mn[:, w], k[:, w]) for w in range(mn.shape[1])]
    return AccessPattern(f"ld.shared of {operand.name}", "ld.shared", np.stack(found))


# ------------------------------------------------------------------------------------------------- warps and pipeline


def _warps(plan: Sm80Plan) -> Check:
    """The warps' parts are the tile, each element once; and the products are all pairs of blocks, each once."""
    (wide_m, wide_n), (tile_m, tile_n, _) = (plan.a.warp_extent, plan.b.warp_extent), plan.tile
    times = np.zeros((tile_m, tile_n), np.int64)
    for warp in range(plan.threads // WARP):
        i, j = plan.warp_place(warp)
        times[i * wide_m : (i + 1) * wide_m, j * wide_n : (j + 1) * wide_n] += 1
    witness = not_once(times, "element ({}, {}) of the tile is multiplied by {} warps")
    if sorted(plan.products) != sorted(product(range(plan.blocks[0]), range(plan.blocks[1]))):
        witness = witness or f"the products {plan.products} are not all of {plan.blocks} blocks"
    if (plan.a.warps, plan.b.warps) != plan.warps:
        witness = witness or f"{plan.a.warps} and {plan.b.warps} warps share the operands, {plan.warps} the tile"
    statement = (
        f"{plan.warps[0]}x{plan.warps[1]} warps of {wide_m}x{wide_n} have each element of the tile once, in "
        f"{len(plan.products)} products a depth"
    )
    return Check("warps", statement, not witness, "exhaustion", witness)


def _sums(plan: Sm80Plan) -> Check:
    """Each column of each matrix has a row of B's tile; its sum is in a register of the lane that stores C's column."""
    beside, fragment, witness = plan.b.beside, plan.fragment, ""
    width, count = plan.tile_c[1], plan.fragment.accumulator_registers
    rows = np.array([[int(beside.row(j, i)) for j in range(width)] for i in range(plan.sums)])
    if not np.array_equal(np.sort(rows, axis=None), np.arange(plan.tile[1])):
        witness = f"rows {rows.tolist()} of B's tile are not all of {plan.tile[1]}"
    back = np.stack([np.asarray(x) for x in beside.source(rows)])
    if (back != np.stack(np.meshgrid(np.arange(width), np.arange(plan.sums)))).any():
        witness = witness or "a row of B's tile is copied from another column or matrix"
    whole, lanes = WarpFragment(plan.store, plan.blocks), np.arange(WARP)
    per_block, down = plan.mma.accumulator_registers, plan.blocks[0]
    at = {}  # register -> (row, column) of the warp's products, by lane
    for register in range(whole.accumulator_registers):
        block, inside = divmod(register, per_block)
        row, column = plan.store.place(lanes, block // down * per_block + inside)
        at[register] = row + block % down * int(plan.mma.shape_mnk[0]), column
    for warp, number, value in product(range(plan.warps[1]), range(plan.sums), range(count)):
        row, column = fragment.coords_C(lanes, value)
        held = at[fragment.register(value) + number * count]
        want = np.asarray(beside.row(column + warp * plan.warp_columns, number)) - warp * plan.b.warp_extent
        wrong = np.argwhere((held[0] != row) | (held[1] != want))
        if len(wrong):
            lane = int(wrong[0][0])
            witness = witness or f"warp {warp}, lane {lane}, value {value} of sum {number} is of another element"
    statement = (
        f"{plan.sums} sums of {plan.warp_columns} columns of a warp, of matrices side by side in B's tile: a value of "
        f"C has its sums {count} registers apart"
    )
    return Check("gated", statement, not witness, f"exhaustion ({plan.sums * count * WARP} values)", witness)


def _pipeline(plan: Sm80Plan) -> Check:
    found = proven(
        plan.stages,
        plan.threads // WARP,
        plan.config.ahead,
        plan.config.persistent,
        plan.full_bytes,
        plan.a.smem.bytes + plan.b.smem.bytes,
    )
    holds = isinstance(found, PipelineProof)
    where = "beside" if plan.config.persistent else "over"
    statement = f"a ring of {plan.stages} stages, C's buffers {where} it: no race, for any number of k tiles"
    method = f"happens-before, closed after {found.states} states" if holds else "happens-before"
    return Check("pipeline", statement, holds, method, "" if holds else str(found))


def _stages(plan: Sm80Plan) -> Check:
    """A stage's tiles are disjoint and aligned, and C's buffers fit."""
    smem, witness = plan.smem, ""
    a_end, b_end = smem.a_offset + plan.a.smem.bytes, smem.b_offset + plan.b.smem.bytes
    if not a_end <= smem.b_offset or not b_end <= smem.a_stage_bytes == smem.b_stage_bytes:
        witness = f"A's tile ends at {a_end}, B's is {smem.b_offset} to {b_end} of {smem.a_stage_bytes}"
    for name, offset, alignment in (
        ("A", smem.a_offset, plan.a.smem.alignment), ("B", smem.b_offset, plan.b.smem.alignment),
        ("a stage", smem.a_stage_bytes, max(plan.a.smem.alignment, plan.b.smem.alignment)),
        ("C", smem.c_offset, plan.store.tile.alignment), ("a buffer", smem.c_buffer_bytes, plan.store.tile.alignment),
    ):  # fmt: skip
        if offset % alignment or smem.alignment % alignment:
            witness = witness or f"{name} is at {offset}, no multiple of its {alignment}"
    buffers = plan.threads // WARP * BUFFERS * smem.c_buffer_bytes
    if smem.c_buffer_bytes < plan.store.tile.bytes or smem.c_offset + buffers > smem.total:
        witness = witness or f"buffers of {smem.c_buffer_bytes} bytes, {buffers} in all, do not fit in {smem.total}"
    end = smem.barrier_offset + plan.stages * smem.barrier_bytes * (plan.full_bytes > 0)
    if smem.barrier_offset < max(plan.stages * smem.a_stage_bytes, smem.c_offset + buffers) or end > smem.total:
        witness = witness or f"barriers from byte {smem.barrier_offset} to {end} of {smem.total}"
    if plan.stages * smem.a_stage_bytes > smem.total:
        witness = witness or f"{plan.stages} stages of {smem.a_stage_bytes} bytes do not fit in {smem.total}"
    statement = f"stages of {smem.a_stage_bytes} bytes hold A and B, {buffers} bytes of them C's buffers"
    return Check("stages", statement, not witness, "arithmetic", witness)
