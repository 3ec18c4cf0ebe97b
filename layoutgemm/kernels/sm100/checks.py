"""All that an Sm100Plan claims, checked in the order of the data's way. Tiles, copies, products, tensor memory, store.

Each check takes its numbers from the plan's own objects, and recomputes them from the hardware's rules. A plan with a
changed number fails the check of that number.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from ...atoms.smem.instruction_descriptor import InstructionDescriptor
from ...atoms.smem.operand_read import operand_read
from ...atoms.targets import exists_on
from ...atoms.tmem.layout import COLUMNS, LANES, WARP_LANES, allocation_columns, warp_lanes
from ...checks import registers, shared_memory_of, tensor_memory
from ...checks.coverage import not_once
from ...errors import LayoutError
from ...report import Check, Report
from ..column_groups import groups_check
from ..derivation import checked
from ..derive import OperandPlan
from ..grouped.along_k import along_k_checks
from ..grouped.rows import tiles_check
from ..grouped.stores import ends_check
from ..indexed.added_rows import added_checks
from ..operands.block_scales import CHUNK_BYTES
from ..operands.pair import pair_check
from ..operands.sum_checks import filled_side_by_side
from ..operands.thread_numbers import number_checks
from ..partials import reductions_check
from ..plan import MOST_BYTES, rounded_up
from ..plan_checks import (
    Region,
    barriers_at,
    buffers_of_c,
    misplaced,
    operand_checks,
    pipelines,
    stage_budget,
    stages_of,
    tiles_of_c,
    tiles_of_k,
)
from ..store import distinct_chunks
from ..store_ring import StoreRing
from .pipeline_model import BlackwellPipeline
from .plan import BLOCK_ROWS, EPILOGUE_WARPS, LOADER_WARP, MMA_WARP, SLOT_BYTES, Sm100Plan
from .promoted import promoted_registers
from .reference import places
from .rows_checks import rows_checks
from .scale_checks import scale_checks
from .store import load_of
from .store_checks import store_checks

HELD = 56  # registers of an epilogue thread beside what it loads: converted values, addresses, counters


def check_sm100(plan: Sm100Plan) -> Report:
    """Every check of the plan."""
    return checked(plan, _checks, arch=plan.arch)


def _checks(plan: Sm100Plan, explored: bool) -> list[Check]:
    checks: list[Check] = [_tiles_of_c(plan), tiles_of_k(plan, "", "the copies' zeros")]
    for operand in (plan.a, plan.b):
        checks += _operand(plan, operand)
    checks += [_instruction(plan), _tensor_columns(plan), tensor_memory(plan.arch, _columns(plan)), _loads(plan)]
    checks += [tiles_check(plan), *([] if plan.scatters else [ends_check(plan)])] if plan.ragged is not None else []
    checks += along_k_checks(plan, 1) if plan.along_k is not None else []
    checks += scale_checks(plan) if plan.scales is not None else []
    checks += store_checks(plan)
    checks += [*rows_checks(plan), *added_checks(plan)] if plan.indexed is not None else []
    checks += [_barriers(plan), *(_pipelines(plan) if explored else [])]
    checks += [_shared_map(plan), _shared_memory(plan), _threads(plan)]
    if plan.pair is not None:
        checks.append(pair_check(plan))
    if plan.loads_whole_rows:
        checks.append(reductions_check(plan, plan.fragment, range(plan.fragment.accumulator_registers)))
    if plan.epilogue.groups:
        checks.append(groups_check(plan.epilogue, plan.fragment, range(plan.fragment.accumulator_registers)))
    load = max(load_of(chunk).registers for chunk in distinct_chunks(plan.store))
    load = max(load, plan.epilogue.columns_together)
    load *= plan.sums
    held = {"loaded columns": load, "the epilogue's other values": HELD, **promoted_registers(plan)}
    checks += [*number_checks(plan), registers(plan.arch, plan.threads, held)]
    return checks


def pipeline_of(plan: Sm100Plan) -> BlackwellPipeline:
    """The plan's pipeline as numbers: see `kernels.sm100.pipeline_model`."""
    store = plan.store
    rounds = tuple((i % store.buffers, store.pending(i)) for i, _ in store.rounds_of(0, 0))
    return BlackwellPipeline(
        stages=plan.stages,
        lands=(plan.a.bytes, plan.b.bytes + factor_bytes(plan)),  # one warp reads both: block scales go with B
        accumulators=plan.accumulators,
        pair=plan.blocks > 1,
        warps=EPILOGUE_WARPS,
        store=StoreRing(store.warps, store.buffers, (rounds,)),
        full_bytes=plan.full_bytes,
        full_arrivals=plan.full_arrivals,
        empty_arrivals=plan.empty_arrivals,
        acc_full_arrivals=plan.acc_full_arrivals,
        acc_empty_arrivals=plan.acc_empty_arrivals,
        promotes=plan.mainloop is not None,
    )


def factor_bytes(plan: Sm100Plan) -> int:
    """Bytes of block scales that one block loads of a K tile; 0 without any."""
    return 0 if plan.scales is None else plan.scales.bytes


# ---------------------------------------------------------------------------------------------------------------- tiles


def _tiles_of_c(plan: Sm100Plan) -> Check:
    """The order visits each tile of each grid once, and the tiles cover C."""
    rows, columns = plan.tiles
    statement = (
        f"{rows} x {columns} tiles of {plan.tile_c[0]}x{plan.tile_c[1]} cover {plan.m}x{plan.n}"
        + f", {plan.batch} times" * (plan.batch > 1)
        + f", and {plan.order.schedule} visits each {'' if plan.order.schedule.is_full else 'of its set '}once, for "
        f"any number of workers; {plan.blocks} block(s) of {BLOCK_ROWS} rows have each"
    )
    unlike = ""
    if plan.blocks * BLOCK_ROWS != plan.tile[0]:
        unlike = f"{plan.blocks} * {BLOCK_ROWS} rows of {plan.tile[0]}"
    elif plan.order.cluster != (1, 1):
        unlike = f"the order is of clusters of {plan.order.cluster} tiles, a pair computes one tile"
    return tiles_of_c(plan, statement, plan.tile_c, unlike)


# ------------------------------------------------------------------------------------------------------------- operands


def _operand(plan: Sm100Plan, operand: OperandPlan) -> list[Check]:
    name, tile = operand.name, operand.smem
    read = operand_read(plan.mma, name)
    blocks, extent = len(operand.descriptor.mn_steps), tile.extent[0]
    witness = ""
    if extent != read.rows:
        witness = f"the tile has {extent} rows, the instruction reads {read.rows} of one block"
    elif blocks != 1 or len(operand.descriptor.k_steps) * read.depth != tile.extent[1]:
        witness = f"{blocks} blocks of {len(operand.descriptor.k_steps)} * {read.depth} along K"
    elif operand.tma.multicast != 1:
        witness = f"the copies are dealt out to {operand.tma.multicast} blocks"
    share = Check(
        f"share {name}",
        f"each of {plan.blocks} block(s) holds {extent} rows of {name}, which the instruction reads there",
        not witness,
        "arithmetic",
        witness,
    )
    bijective, filled, *reads = operand_checks(operand, plan.mma)
    if operand.others:
        filled = filled_side_by_side(operand, plan.sums)
    return [bijective, filled, share, *reads]


def _instruction(plan: Sm100Plan) -> Check:
    """The decoded instruction descriptor agrees with the tiles and the atom."""
    word, mma = plan.word.word, plan.mma
    witness = ""
    try:
        says = InstructionDescriptor.decode(word, mma.kind)
    except LayoutError as error:
        return Check("instruction", f"{word:#010x} is a word of kind::{mma.kind}", False, "decoding", str(error))
    stops = mma.c_dtype.kind == "int"  # sums of integers stop at the ends of int32
    for what, have, want in (
        ("M, N", (says.m, says.n), plan.tile[:2]),
        ("the atom's M, N", mma.shape_mnk[:2], plan.tile[:2]),
        ("types", (says.a, says.b, says.d), (plan.a.dtype, plan.b.dtype, mma.c_dtype)),
        ("majors", (says.a_major, says.b_major), (plan.a.major, plan.b.major)),
        ("K", says.k, mma.shape_mnk[2]),
        ("blocks", mma.cta_group, plan.blocks),
        ("modifiers", (says.negate_a, says.negate_b, says.sparse, says.max_shift), (False,) * 3 + (0,)),
        ("saturate", says.saturate, stops),
    ):
        if have != want and not witness:
            witness = f"{what}: {have}, should be {want}"
    if not exists_on(mma.archs, plan.arch):
        witness = witness or f"{mma} exists on {', '.join(mma.archs)}"
    statement = (
        f"{word:#010x} says M {says.m}, N {says.n}, A {says.a} {says.a_major}-major, B {says.b} {says.b_major}-major, "
        f"D {says.d}"
    )
    return Check("instruction", statement, not witness, "decoding", witness)


# -------------------------------------------------------------------------------------------------------- tensor memory


def _columns(plan: Sm100Plan) -> dict[str, int]:
    width = plan.mma.accumulator.columns
    found = {f"{plan.accumulators} accumulators of {plan.mma.datapath.rows}x{width}": plan.accumulators * width}
    return found if plan.scales is None else {**found, "block scales": plan.scales.columns}


def _tensor_columns(plan: Sm100Plan) -> Check:
    """Each accumulator has its own columns in the allocation, and each row a lane."""
    width, home = plan.mma.accumulator.columns, plan.mma.accumulator.layout
    rows, columns = np.arange(BLOCK_ROWS)[:, None], np.arange(plan.tile[1])[None, :]
    lane, column = places(home, rows, columns, np.zeros_like(rows))
    lane, column = np.broadcast_arrays(lane, column)
    times = np.zeros((LANES, COLUMNS + plan.accumulators * width), dtype=np.int64)
    for number in range(plan.accumulators):
        np.add.at(times, (lane, number * width + column), 1)
    witness = ""
    if times.max() > 1:
        at = np.argwhere(times > 1)[0]
        witness = f"lane {int(at[0])}, column {int(at[1])} belongs to two elements"
    elif times[:, plan.columns :].any():
        witness = f"column {int(np.argwhere(times.any(axis=0))[-1][0])} of {plan.columns} allocated"
    elif plan.columns != allocation_columns(plan.columns):
        witness = f"{plan.columns} columns: an allocation has a power of two of them"
    elif not np.array_equal(lane, np.broadcast_to(rows, lane.shape)):
        witness = "a row of C has another lane than its own"
    statement = (
        f"{plan.accumulators} accumulator(s), {width} columns apart, have disjoint places in {plan.columns} allocated "
        "columns, row i of the block in lane i"
    )
    return Check("columns", statement, not witness, f"exhaustion ({int(times.sum())} places)", witness)


def _loads(plan: Sm100Plan) -> Check:
    """The epilogue loads each element once, into the register that stores it."""
    times = np.zeros((BLOCK_ROWS, plan.tile[1]), dtype=np.int64)
    home = plan.mma.accumulator.layout
    rows, columns = np.arange(BLOCK_ROWS)[:, None], np.arange(plan.tile[1])[None, :]
    lane, column = np.broadcast_arrays(*places(home, rows, columns, np.zeros_like(rows)))
    held = np.full((LANES, COLUMNS), -1, dtype=np.int64)
    held[lane, column] = rows * plan.tile[1] + columns
    witness, names = "", []
    for chunk in distinct_chunks(plan.store):
        ld = load_of(chunk)
        names.append(ld.repeat)
        if ld.registers != chunk.width:
            witness = witness or f"{ld} for {chunk.width} columns"
            continue
        for warp, number in product(range(EPILOGUE_WARPS), range(plan.sums)):
            first = plan.beside.row(chunk.column, number)
            at_lane, at_column = places(ld.tmem, np.arange(WARP_LANES)[:, None], np.arange(chunk.width)[None, :])
            at_lane = np.broadcast_arrays(at_lane, at_column)[0] + warp * WARP_LANES
            element = held[at_lane, first + at_column]
            if at_lane.min() not in warp_lanes(warp) or at_lane.max() not in warp_lanes(warp):
                witness = witness or f"warp {warp} loads lanes {at_lane.min()} to {at_lane.max()}"
            row, col = element // plan.tile[1], element % plan.tile[1]
            want_row = warp * WARP_LANES + np.arange(WARP_LANES)[:, None]
            want_col = plan.beside.row(chunk.column + at_column, number)
            if (element < 0).any() or (row != want_row).any() or (col != want_col).any():
                witness = witness or f"warp {warp}, column {chunk.column}: a thread loads another's element"
                continue
            np.add.at(times, (row, col), 1)
    witness = witness or not_once(times, "element ({}, {}) is loaded {} times")
    statement = (
        f"four warps load each of {BLOCK_ROWS}x{plan.tile[1]} elements once by 32x32b of "
        f"{', '.join(f'x{n}' for n in sorted(set(names), reverse=True))}, a row of C in each thread"
    )
    return Check("loads", statement, not witness, f"exhaustion ({times.size} elements)", witness)


# ------------------------------------------------------------------------------------------------ barriers and pipeline


def _barriers(plan: Sm100Plan) -> Check:
    """Arrivals and bytes of each barrier against those that are sent."""
    factors = factor_bytes(plan)
    landed = plan.blocks * (plan.a.bytes + plan.b.bytes + factors)
    warps = plan.blocks * EPILOGUE_WARPS
    witness = ""
    if plan.full_bytes != landed:
        witness = f"{landed} bytes land, {plan.full_bytes} are expected"
    elif landed > MOST_BYTES:
        witness = f"a phase counts up to {MOST_BYTES} bytes"
    elif (plan.full_arrivals, plan.empty_arrivals, plan.acc_full_arrivals) != (1, 1, 1):
        witness = "one thread arms a stage, and one commit releases it, and the accumulator"
    elif plan.acc_empty_arrivals != warps:
        witness = f"{warps} warps load an accumulator"
    statement = (
        f"a stage is full with {plan.full_arrivals} arrival and {plan.blocks} * ({plan.a.bytes} + "
        f"{plan.b.bytes}{f' + {factors}' * bool(factors)}) = {plan.full_bytes} bytes, empty with "
        f"{plan.empty_arrivals} commit; an accumulator is full with {plan.acc_full_arrivals} commit, empty with "
        f"{plan.acc_empty_arrivals} arrivals of {warps} warps"
    )
    return Check("barriers", statement, not witness, "arithmetic", witness)


def _pipelines(plan: Sm100Plan) -> list[Check]:
    """No deadlock and no race, for any number of k tiles and of tiles."""
    cases = pipeline_of(plan).cases()
    statement = f"{' and '.join(case.name for case in cases)}: no deadlock, no race, however many k tiles and tiles"
    return [pipelines(cases, statement)]


# -------------------------------------------------------------------------------------------------------------- budgets


def _regions(plan: Sm100Plan) -> list[Region]:
    """The regions of shared memory."""
    smem, regions = plan.smem, stages_of(plan)
    if plan.scales is not None:
        regions += [
            (f"scales[{s}]", smem.scales_offset + s * smem.scales_stage_bytes, plan.scales.bytes, CHUNK_BYTES)
            for s in range(plan.stages)
        ]
    regions += buffers_of_c(smem, plan.store, EPILOGUE_WARPS)
    regions += barriers_at(
        smem.barrier_bytes, full=(smem.barrier_offset, plan.stages), empty=(smem.empty_offset, plan.stages),
        acc_full=(smem.acc_full_offset, plan.accumulators), acc_empty=(smem.acc_empty_offset, plan.accumulators),
    )  # fmt: skip
    regions.append(("address", smem.slot_offset, SLOT_BYTES, 8))
    return regions if plan.groups is None else [*regions, ("tables", smem.table_offset, plan.groups.bytes, 16)]


def _shared_map(plan: Sm100Plan) -> Check:
    """Stages, buffers, barriers and the address: aligned, disjoint, inside the total."""
    regions = _regions(plan)
    witness = misplaced(regions, plan.smem.alignment, plan.smem.total)
    statement = f"{len(regions)} regions are aligned and disjoint within {plan.smem.total} bytes"
    return Check("shared map", statement, not witness, "arithmetic", witness)


def _shared_memory(plan: Sm100Plan) -> Check:
    smem = plan.smem
    parts = {**stage_budget(plan)}
    if plan.scales is not None:
        parts[f"{plan.stages} stages of scales"] = smem.c_offset - smem.scales_offset
    parts = {**parts, "buffers of C": plan.store.bytes(EPILOGUE_WARPS)}
    needed = 2 * (plan.stages + plan.accumulators) * smem.barrier_bytes + SLOT_BYTES
    if plan.groups is not None:
        needed += rounded_up(plan.groups.bytes, 16)
    return shared_memory_of(plan.arch, parts, smem.total, needed)


def _threads(plan: Sm100Plan) -> Check:
    """The epilogue's warps come first, so that warp i reaches the lanes from 32 * i on; the others follow."""
    witness = ""
    if plan.threads != 32 * (EPILOGUE_WARPS + 2):
        witness = f"the block has {plan.threads}"
    elif plan.threads > plan.arch.threads_per_block:
        witness = f"a block has {plan.arch.threads_per_block} at most"
    elif [warp_lanes(warp)[0] for warp in range(EPILOGUE_WARPS)] != list(range(0, LANES, WARP_LANES)):
        witness = "the epilogue's warps do not reach all lanes"
    elif sorted((MMA_WARP, LOADER_WARP)) != [EPILOGUE_WARPS, EPILOGUE_WARPS + 1]:
        witness = f"warps {MMA_WARP} and {LOADER_WARP} multiply and load"
    statement = f"warps 0 to {EPILOGUE_WARPS - 1} store, warp {MMA_WARP} multiplies, warp {LOADER_WARP} loads"
    return Check("threads", statement, not witness, "arithmetic", witness)
