"""All that a TeachingPlan claims, checked. Fragment map, tiles, copies, descriptors, barriers, tiles of C, budgets."""

from __future__ import annotations

from ...checks import check_pipeline, registers, self_loading, shared_memory
from ...layouts import Layout
from ...report import Check, Report
from ..derivation import checked
from ..plan_checks import fragment_checks, misplaced, operand_checks, stage_budget, stages_of
from .plan import TeachingPlan


def check_plan(plan: TeachingPlan) -> Report:
    """Every check of the plan, in the order of the data flow."""
    return checked(plan, _checks, arch=plan.arch)


def _checks(plan: TeachingPlan, explored: bool) -> list[Check]:
    checks: list[Check] = [_tile_coverage(plan), _k_coverage(plan)]
    for operand in (plan.a, plan.b):
        checks += operand_checks(operand, plan.mma)
    checks += [_barrier(plan), *([_pipeline(plan)] if explored else [])]
    checks += [*fragment_checks(plan.mma), _smem_overlap(plan)]
    parts = {**stage_budget(plan), "barriers": plan.smem.total - plan.smem.barrier_offset}
    checks.append(shared_memory(plan.arch, parts))
    held = {"accumulator": plan.mma.accumulator_registers, "two descriptors": 4, "addresses, sizes and counters": 16}
    checks.append(registers(plan.arch, plan.threads, held))
    return checks


def _tile_coverage(plan: TeachingPlan) -> Check:
    """The block number is a mixed-radix number with digits (tile along N, tile along M): a bijection, at every size."""
    tiles_m, tiles_n, _ = plan.tiles
    order = Layout((tiles_n, tiles_m))
    back = plan.tile_origin(plan.grid[0] - 1)
    edge = (back[0] < plan.m <= back[0] + plan.tile[0]) and (back[1] < plan.n <= back[1] + plan.tile[1])
    bijective = bool(order.is_bijective()) and order.size == plan.grid[0]
    witness = "" if edge and bijective else f"last block {plan.grid[0] - 1} starts at {back} of {plan.m}x{plan.n}"
    statement = (
        f"{plan.grid[0]} blocks cover {plan.m}x{plan.n} with tiles of {plan.tile[0]}x{plan.tile[1]}, each element once"
    )
    return Check("tiles of C", statement, not witness, f"{order} is a bijection", witness)


def _k_coverage(plan: TeachingPlan) -> Check:
    tiles, depth = plan.tiles[2], plan.tile[2]
    ok = (tiles - 1) * depth < plan.k <= tiles * depth
    statement = (
        f"{tiles} k tiles of {depth} cover K = {plan.k} once; the last {tiles * depth - plan.k} are zeros by TMA fill"
    )
    return Check("tiles of K", statement, ok, "arithmetic", "" if ok else f"{tiles} * {depth} against {plan.k}")


def _barrier(plan: TeachingPlan) -> Check:
    boxes = [f"{len(op.tma.instructions)} * {op.tma.box_bytes}" for op in (plan.a, plan.b)]
    landed = plan.a.tma.bytes + plan.b.tma.bytes
    tiles = plan.a.smem.bytes + plan.b.smem.bytes
    ok = landed == plan.barrier.bytes == tiles and plan.barrier.count == plan.stages and plan.barrier.arrivals == 1
    statement = (
        f"a stage expects {plan.barrier.bytes} bytes and {plan.barrier.arrivals} arrival; its copies bring "
        f"{' + '.join(boxes)} = {landed}, the tiles hold {tiles}"
    )
    return Check("barrier", statement, ok, "arithmetic", "" if ok else f"{plan.barrier} for {plan.stages} stages")


def _pipeline(plan: TeachingPlan) -> Check:
    """The kernel's loop has no race and no deadlock, for any number of K tiles."""
    warps = -(-plan.threads // plan.arch.warp_size)
    lands = plan.a.tma.bytes + plan.b.tma.bytes
    loop = self_loading(plan.stages, plan.barrier.bytes, warps=warps, arrivals=plan.barrier.arrivals, lands=lands)
    return check_pipeline(loop)


def _smem_overlap(plan: TeachingPlan) -> Check:
    """Stages of A, stages of B and barriers, as intervals: aligned, disjoint, inside the total."""
    smem = plan.smem
    regions = stages_of(plan)
    regions += [(f"full[{s}]", smem.barrier_offset + s * smem.barrier_bytes, 8, 8) for s in range(plan.barrier.count)]
    witness = misplaced(regions, smem.alignment, smem.total)
    statement = f"{len(regions)} regions of shared memory are aligned and disjoint within {smem.total} bytes"
    return Check("shared map", statement, not witness, "arithmetic", witness)
