"""All that an Sm90Plan claims, checked in the order of the data's way. Tiles, copies, products, store, budgets.

Each check takes its numbers from the plan's own objects, and recomputes them from the hardware's rules. A plan with a
changed number fails the check of that number.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ...atoms.tma.engine import shared_bits
from ...checks import bijective_tile
from ...checks.coverage import not_once
from ...checks.pipeline.model import MOST_NAMED, NamedBarrier
from ...layouts.symbols.facts import Facts
from ...layouts.symbols.polynomial import ge0, show
from ...report import Check, Report
from ..column_groups import groups_check
from ..derivation import checked
from ..derive import OperandPlan, one_matrix
from ..grouped.along_k import along_k_checks
from ..indexed.added_rows import added_checks
from ..operands.pair import pair_check
from ..operands.sum_checks import filled_side_by_side
from ..partials import reductions_check
from ..plan import MOST_BYTES
from ..plan_checks import copy_check, fragment_checks, pipelines, tile_checks, tiles_of_c, tiles_of_k
from ..store import ROWS
from ..store_ring import StoreRing
from .budget_checks import budget_checks
from .config import loader_threads
from .edges import ends_check
from .grouped import ragged_checks
from .indexed.checks import indexed_checks
from .indexed.copies import GatheredOperand
from .mainloop import COPY_ARRIVALS, product_of, product_sets, products_check
from .multicast import uneven_shares
from .operands.fragment_loads import fragment_load_checks, groups_of
from .operands.row_sums import row_sums_check
from .operands.stage_numbers import promotion_check
from .operands.sum_checks import filled_by_halves, halves_meet
from .pipeline_model import HopperPipeline
from .plan import WARPS_OF_GROUP, Sm90Plan
from .quantized.checks import packed_checks
from .quantized.experts import expert_checks
from .quantized.warp_products import warp_checks
from .shards import shard_checks
from .store_checks import exchange_check, group_scales_check, matrices_check, neighbours_check, rows_check, store_checks
from .triangular.mirror import mirror_check
from .triangular.operands import triangles_check


def check_sm90(plan: Sm90Plan) -> Report:
    """Every check of the plan."""
    return checked(plan, _checks)


def _checks(plan: Sm90Plan, explored: bool) -> list[Check]:
    checks = [_tiles_of_c(plan)]
    if plan.along_k is None:
        checks.append(_tiles_of_k(plan))
    else:  # a case with an exact number of K tiles has the same in all tiles
        least = [case.k_tiles[0] for case in pipeline_of(plan).cases() if not case.k_tiles[1]]
        checks += along_k_checks(plan, max(least))
    if plan.config.tuning.gpc_order:
        checks.append(plan.gpc_order.check())
    if plan.weights is not None:
        checks += packed_checks(plan, plan.config.warpgroups_of_tile)
    if plan.indexed is not None:
        checks += [*indexed_checks(plan), *added_checks(plan)]
    if plan.prologue is not None:
        checks += fragment_load_checks(plan)
    if plan.row_sums is not None:
        checks.append(row_sums_check(plan))
    if plan.gathers:
        checks += [*_read(plan, plan.a), _blocks(plan, plan.a, plan.config.warpgroups_of_tile)]
    mapped = [(plan.a, plan.config.warpgroups_of_tile)] if plan.weights is None and not plan.gathers else []
    for operand, groups in [*mapped, (plan.b, 1)]:
        checks += _operand(plan, operand, groups)
        if operand.ends is not None:
            checks.append(ends_check(operand, plan.tile["mn".index(operand.ends.dim)], plan.c.dtype))
    checks += [_barriers(plan), *(_pipelines(plan) if explored else []), *fragment_checks(plan.mma)]
    if plan.gated is not None:
        checks.append(halves_meet(plan))
    if plan.pair is not None:
        checks.append(pair_check(plan))
    if plan.ragged is not None:
        checks += ragged_checks(plan)
    if plan.experts is not None:
        checks += expert_checks(plan)
    if plan.products is not None:
        checks += warp_checks(plan)
    if plan.triangles is not None:
        checks.append(triangles_check(plan))
    if plan.mirror is not None:
        checks.append(mirror_check(plan))
    if plan.mainloop is not None:
        checks.append(promotion_check(plan))
        checks += [products_check(plan)] if product_of(plan)[2] > 1 else []
    if plan.shards is not None:
        checks += shard_checks(plan)
    checks += _lanes(plan)
    if plan.store is None:
        checks.append(neighbours_check(plan))
    else:
        checks += store_checks(plan, plan.store)
        if plan.buffered_matrices:
            checks.append(matrices_check(plan, plan.store))
    if plan.exchange is not None:
        checks.append(exchange_check(plan))
    if plan.row_exchange is not None:
        checks.append(rows_check(plan, plan.row_exchange))
    if plan.group_scales is not None:
        checks.append(group_scales_check(plan, plan.group_scales))
    checks += [_named_barriers(plan), *budget_checks(plan)]
    return checks


def _lanes(plan: Sm90Plan) -> list[Check]:
    """Checks of the lanes that an epilogue reduces or exchanges values among."""
    values, checks = plan.stored_values(0) if plan.half is None else range(plan.stored.accumulator_registers), []
    if plan.epilogue.reductions or plan.epilogue.quantizes is not None:
        checks.append(reductions_check(plan, plan.stored, values))
    if plan.epilogue.groups:
        checks.append(groups_check(plan.epilogue, plan.stored, values))
    return checks


def pipeline_of(plan: Sm90Plan) -> HopperPipeline:
    """The plan's pipeline as numbers: see `kernels.sm90.pipeline_model`."""
    config = plan.config
    ring = None
    if plan.store is not None:
        part = [plan.store.rounds_of(*piece) for piece in plan.pieces(0)]
        rounds = tuple(tuple((i % plan.store.buffers, plan.store.pending(i)) for i, _ in of_block) for of_block in part)
        ring = StoreRing(plan.store.warps, plan.store.buffers, rounds, threads=plan.scatters)
        if plan.store.at_once:  # as one round of one larger buffer
            ring = StoreRing(plan.store.warps, 1, (*[()] * (len(part) - 1), ((0, 0),)))
    return HopperPipeline(
        stages=plan.stages,
        lands=(plan.operand("A", plan.turns).sent_bytes, plan.b.sent_bytes),
        full_bytes=plan.full_bytes,
        full_arrivals=plan.full_arrivals,
        empty_arrivals=plan.empty_arrivals,
        cluster=config.cluster,
        split=config.split,
        sends=plan.exchange.sends if plan.exchange is not None else 0,
        sums_bytes=plan.exchange.bytes if plan.exchange is not None and plan.sends_sums else None,
        sums_arrivals=plan.sums_arrivals,
        consumers=config.consumers,
        blocks=len(plan.pieces(0)),
        pingpong=config.schedule == "pingpong",
        slices=config.slices,
        loader=plan.threads // 32 - WARPS_OF_GROUP * config.consumers,
        store=ring,
        one_tile_per_cluster=config.one_tile_per_cluster,
        staged_epilogue_k_tiles=config.staged_epilogue_k_tiles,
        padding=config.loaded_a_rows is not None,
        registers=plan.registers,
        promoted=plan.mainloop is not None,
        column_parts=product_of(plan)[2],
        product_sets=product_sets(plan),
        numbers=bool(plan.numbers.parts),
        bulk_numbers=plan.numbers.bulk_bytes if plan.numbers_warp is not None else 0,
        packed=_groups_of_registers(plan),
        apart=plan.a.sums if plan.sums_apart else 0,
        by_warps=plan.products is not None,
        gathers=plan.loader_copies,
        adds_rows=plan.row_sums is not None,
        turns=plan.turns,
    )


def _groups_of_registers(plan: Sm90Plan) -> int:
    """Groups of products of a K tile whose A threads hold; 0 of an A in shared memory."""
    if plan.weights is not None:
        return int(plan.a.product_groups(plan.blocks))
    return len(groups_of(plan)) if plan.prologue is not None else 0


# ---------------------------------------------------------------------------------------------------------------- tiles


def _tiles_of_c(plan: Sm90Plan) -> Check:
    """The order visits each tile of each grid once, and the tiles cover C."""
    across = plan.order.clusters(plan.tiles)
    statement = (
        f"{plan.tiles[0]}x{plan.tiles[1]} tiles of {plan.tile_c[0]}x{plan.tile_c[1]} cover {plan.m}x{plan.n}"
        + f" of each of {plan.batch} matrices" * (plan.batch > 1)
        + f", and {plan.order.schedule} over {across[0]}x{across[1]} clusters visits each "
        + "of its set " * (not plan.order.schedule.is_full)
        + "once, for any number of clusters that run at a time"
    )
    unlike = ""
    if plan.order.cluster != plan.config.cluster:
        unlike = f"the order is of clusters of {plan.order.cluster}, the launch of {plan.config.cluster}"
    return tiles_of_c(plan, statement, plan.tile_c, unlike)


def _tiles_of_k(plan: Sm90Plan) -> Check:
    """Parts of K are consecutive k tiles, and all of them: T = split * q + r for every remainder r."""
    split, witness = plan.config.split, ""
    q = Facts()["q"]
    for rest in range(split):
        k_tiles = split * q + rest
        parts = [plan.part_of_k(k_tiles, part) for part in range(split)]
        ends = [0, *(end for _, end in parts)]
        for part, (first, end) in enumerate(parts):
            if first != ends[part] or not ge0(end - first):
                witness = witness or (
                    f"of {show(k_tiles)} k tiles part {part} has {show(first)} to {show(end)}, after {show(ends[part])}"
                )
        if ends[-1] != k_tiles:
            witness = witness or f"the parts end at {show(ends[-1])} of {show(k_tiles)} k tiles"
    in_parts = f" in {split} part(s), each once," if split > 1 else ""
    method = "polynomials, for every number of k tiles"
    return tiles_of_k(plan, in_parts, "zeros by the copies' fill", method, witness)


# ------------------------------------------------------------------------------------------------------------- operands


def _operand(plan: Sm90Plan, operand: OperandPlan, groups: int) -> list[Check]:
    name, tile = operand.name, operand.smem
    blocks = plan.config.cluster[1 if name == "A" else 0]
    if name == "A" and plan.config.loaded_a_rows is not None:
        filled = _filled_rows(plan, plan.config.loaded_a_rows)
    elif name == "B" and tile.extent[0] != plan.tile[1]:
        filled = _filled_columns(plan)
    elif name == "B" and plan.gated is not None:
        filled = filled_side_by_side(operand, plan.sums) if plan.gated.separate else filled_by_halves(plan)
    else:
        filled = copy_check(name, tile, operand.tma)
    problem, turned = "", []
    for tma in operand.copies:
        problem = problem or uneven_shares(tma)
        if tma.multicast != blocks:
            problem = f"the copies are dealt out to {tma.multicast} blocks"
    if operand.turned is not None:
        turned = [copy_check("A of a turned pair", tile, operand.turned)]
        problem = problem or uneven_shares(operand.turned)
        if operand.turned.multicast != plan.sharing:
            problem = f"the copies of a turned pair are dealt out to {operand.turned.multicast} blocks"
    boxes = sum(len(tma.instructions) for tma in operand.copies)
    shares = Check(
        f"shares {name}",
        f"each of {blocks} block(s) sends {boxes // max(1, blocks)} box(es) of {name} to all, "
        "rank times a distance from the first one's",
        not problem,
        "exhaustion",
        problem,
    )
    bijective, *read = _read(plan, operand)
    return [bijective, filled, *turned, shares, *read, _blocks(plan, operand, groups)]


def _read(plan: Sm90Plan, operand: OperandPlan | GatheredOperand) -> tuple[Check, ...]:
    """The tile as products read it: a bijection first."""
    if operand.name == "A" and plan.prologue is not None:  # through registers: `fragment_load_checks`
        return (bijective_tile("tile A", operand.smem),)
    return tile_checks(operand.name, operand.smem, operand.descriptor, plan.mma)


def _blocks(plan: Sm90Plan, operand: OperandPlan | GatheredOperand, groups: int) -> Check:
    """Consumer g begins with block g * blocks, a constant distance from the one before."""
    steps = operand.descriptor.mn_steps
    distances = {b - a for a, b in pairwise(steps)}
    want = groups * plan.blocks if operand.name == "A" else 1
    witness = ""
    if len(steps) != want:
        witness = f"the tile has {len(steps)} blocks"
    elif len(distances) > 1:
        witness = f"blocks at bytes {steps} are not evenly apart"
    each = f"{groups} consumer(s) with {plan.blocks} block(s)" if operand.name == "A" else "one block for all"
    statement = f"{each} of {operand.name}, {distances.pop() if distances else 0} bytes apart"
    return Check(f"blocks {operand.name}", statement, not witness, "arithmetic", witness)


def _landed(operand: OperandPlan) -> tuple[npt.NDArray[np.int64], str]:
    """The number of copies of each element (mn, k), and the first misplaced one, or ""."""
    tile, across = operand.smem, operand.major == "K"  # the box's first dimension is the contiguous one
    times, witness = np.zeros(tile.extent, dtype=np.int64), ""
    for tma in [one_matrix(copies) for copies in operand.copies]:
        box = tma.over([1 << 31] * 2, (0,))
        for copy in tma.instructions:
            at = shared_bits(box, copy.smem_offset) // 8
            inner, outer = [first + np.arange(n) for first, n in zip(copy.coord_offset, at.shape, strict=True)]
            mn, k = (outer[None, :], inner[:, None]) if across else (inner[:, None], outer[None, :])
            if mn.max() >= tile.extent[0] or k.max() >= tile.extent[1]:
                witness = witness or f"the box at {copy.coord_offset} is not all of the tile"
                continue
            wrong = np.argwhere(at != tile.byte(mn, k))
            if len(wrong) and not witness:
                place = tuple(int(x) for x in wrong[0])
                where = [int(np.broadcast_to(x, at.shape)[place]) for x in (mn, k)]
                line = "row" if operand.name == "A" else "column"
                witness = f"{line} {where[0]}, k {where[1]} lands at byte {int(at[place])}"
            times[mn, k] += 1
    return times, witness


def _filled_rows(plan: Sm90Plan, rows: int) -> Check:
    """The loaded rows of A are in place, and all other bytes are zeros."""
    tile, tma = plan.a.smem, one_matrix(plan.a.tma)
    loaded, witness = _landed(plan.a)
    times = np.zeros(tile.bytes, dtype=np.int64)
    first_byte = tile.byte(*np.indices(tile.extent))
    for byte in range(tile.dtype.bytes):
        np.add.at(times, first_byte + byte, loaded)
    for first, count in plan.dead_runs:
        if first % 16 or count % 16:
            witness = witness or f"zeros are written 16 bytes at a time, the run is {first}..{first + count - 1}"
        times[first : first + count] += 1
    witness = witness or not_once(times, "byte {} of the tile is written {} times, should be 1")
    if not witness and (loaded[:rows] != 1).any():
        witness = f"of {rows} rows {int((loaded[:rows] == 1).all(axis=1).sum())} are loaded once"
    statement = (
        f"{len(tma.instructions)} box(es) {tma.box} bring {rows} of {ROWS} rows to their places, and "
        f"{len(plan.dead_runs)} run(s) of zeros are the rest of the tile"
    )
    return Check("copy A", statement, not witness, f"exhaustion ({tile.bytes} bytes)", witness)


def _filled_columns(plan: Sm90Plan) -> Check:
    """Every column of B's tile is copied once, to its place. The unread rest of the last span is not copied."""
    tile, columns = plan.b.smem, plan.tile[1]
    times, witness = _landed(plan.b)
    if tile.extent[0] - columns >= tile.span_elements:
        witness = witness or f"room for {tile.extent[0]} of {columns} columns"
    wrong = np.argwhere(times != (np.arange(tile.extent[0]) < columns)[:, None])
    if len(wrong) and not witness:
        column, at_k = (int(x) for x in wrong[0])
        witness = f"column {column}, k {at_k} is copied {int(times[column, at_k])} times"
    boxes = " and ".join(f"{len(tma.instructions)} box(es) {tma.box}" for tma in plan.b.copies)
    statement = f"{boxes} bring {columns} columns, each element once, in its place, into room for {tile.extent[0]}"
    return Check("copy B", statement, not witness, f"exhaustion ({times.size} elements)", witness)


# ------------------------------------------------------------------------------------------------ barriers and pipeline


def _barriers(plan: Sm90Plan) -> Check:
    """Arrivals and bytes of the full and empty barriers against those that are sent."""
    rows, columns = plan.config.cluster
    sent = [f"{blocks} * {op.sent_bytes}" for op, blocks in ((plan.a, columns), (plan.b, rows))]
    landed = plan.a.sent_bytes * columns + plan.b.sent_bytes * rows
    warps = plan.config.warpgroups_of_tile * WARPS_OF_GROUP
    reach = rows + columns - 1
    copied = COPY_ARRIVALS if plan.numbers.parts else 0
    gathered = plan.a.arrivals if plan.loader_copies else 0
    witness = ""
    if plan.full_bytes != landed:
        witness = f"{landed} bytes land"
    elif plan.turns and plan.operand("A", True).bytes != plan.a.bytes:
        witness = f"{plan.operand('A', True).bytes} bytes of A land where a pair has turned"
    elif landed > MOST_BYTES:
        witness = f"a phase counts up to {MOST_BYTES} bytes"
    elif plan.full_arrivals != 1 + copied + gathered:
        witness = f"{plan.full_arrivals} arrivals: one thread arms the stage, and {copied} lanes copy numbers"
        witness += f", {gathered} threads rows" * bool(gathered)
    elif gathered and gathered != loader_threads(plan.config.loader, False):
        witness = f"{gathered} threads copy rows, and the loader is a {plan.config.loader}"
    elif plan.empty_arrivals != warps * reach:
        witness = f"{warps * reach} arrive"
    else:
        witness = _unlike_groups(plan)
    statement = (
        f"a stage is full with {1 + copied + gathered} arrival(s) and {' + '.join(sent)} = {plan.full_bytes} bytes, "
        f"and empty with {plan.empty_arrivals} arrivals: {warps} warps of {reach} block(s)"
    )
    return Check("barriers", statement, not witness, "arithmetic", witness)


def _unlike_groups(plan: Sm90Plan) -> str:
    """The first tile that other CTAs share than in the proven pipeline, or ""."""
    for turned in (False, True)[: 1 + plan.turns]:
        sharers = plan.sharers_of(turned)
        for name, groups in zip("AB", pipeline_of(plan).sharers(turned), strict=True):
            for rank in range(plan.sharing):
                count, first, step = sharers.group(name, rank)
                found = tuple(range(first, first + count * step, step))
                if found != groups[rank] or found[sharers.share(name, rank)] != rank:
                    sends = f"block {rank} sends share {sharers.share(name, rank)} of {name} to blocks {found}"
                    return f"{sends}, and {groups[rank]} need the same"
    return ""


def _pipelines(plan: Sm90Plan) -> list[Check]:
    """No deadlock and no race, for any number of k tiles and of tiles; and the registers that change hands."""
    cases = pipeline_of(plan).cases()
    statement = f"{cases[-1 if plan.store is None else -2].name}: no deadlock, no race, for any number of k tiles"
    ring = len(cases) - (plan.store is not None)
    return [pipelines(cases, statement, anyones=ring if plan.loader_copies else 0)]


def _named_barriers(plan: Sm90Plan) -> Check:
    """Barriers of the consumers' stores, of their turns and of the stages: none twice, none the block's; their threads
    are those that the proven pipeline has meet there."""
    named = {"the block": 0}
    for consumer in range(plan.config.consumers):
        named[f"store {consumer}"] = plan.store_barrier(consumer)
        if plan.config.schedule == "pingpong":
            named[f"turn {consumer}"] = plan.turn_barrier(consumer)
    named["stages"] = plan.stages_barrier
    times = Counter(named.values())
    twice = [f"{name} is {number}" for name, number in named.items() if times[number] > 1]
    beyond = [f"{name} is {number}" for name, number in named.items() if not 0 <= number < MOST_NAMED]
    meet = {"store": plan.store_threads, "turn": plan.turn_threads, "stages": plan.stages_threads, "cta": plan.threads}
    barriers = [barrier for case in pipeline_of(plan).cases() for barrier in case.barriers]
    unlike = [
        f"{count} threads of the plan meet at {barrier.name}, and {barrier.threads} of the pipeline that is proven"
        for barrier in barriers
        if isinstance(barrier, NamedBarrier)
        for count in [meet[barrier.name.rstrip("0123456789")]]
        if count != barrier.threads
    ]
    witness = " and ".join(twice) or (beyond + unlike + [""])[0]
    statement = f"named barriers {', '.join(f'{name} {number}' for name, number in named.items())} are different ones"
    return Check("named barriers", statement, not witness, f"exhaustion, below {MOST_NAMED}", witness)
