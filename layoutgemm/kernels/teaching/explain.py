"""The derivation of a plan as text, and its fragment map as a drawing."""

from __future__ import annotations

from ..explain import explain_operand, explain_workspace
from .plan import TeachingPlan


def explain_plan(plan: TeachingPlan) -> str:
    """The whole derivation, section by section, in the order of the data's way."""
    m, n, k = plan.tiles
    smem = plan.smem
    sections = [
        str(plan),
        f"tiles: {m} x {n} of C, {k} along K; one block of {plan.threads} threads a tile, block b at rows "
        f"{plan.tile[0]}*(b//{n}), columns {plan.tile[1]}*(b%{n})",
        explain_operand(plan.a),
        explain_operand(plan.b),
        f"barrier {plan.barrier.name}[0..{plan.barrier.count - 1}]: {plan.barrier.arrivals} arrival (thread 0) and "
        f"{plan.barrier.bytes} bytes a phase = A {plan.a.tma.bytes} + B {plan.b.tma.bytes}",
        f"shared memory: A at {smem.a_offset} + stage*{smem.a_stage_bytes}, B at {smem.b_offset} + "
        f"stage*{smem.b_stage_bytes}, "
        f"barriers at {smem.barrier_offset} + stage*{smem.barrier_bytes}; {smem.total} of {plan.arch.smem_per_block} "
        f"bytes, aligned to {smem.alignment}",
        f"matrix instruction: {plan.mma}\n"
        f"  accumulator (thread, value) -> row + {plan.mma.shape_mnk[0]}*column: {plan.mma.layout_C}\n"
        f"  as coordinates (row, column): {plan.mma.coords_C}\n"
        f"  {plan.mma.accumulator_registers} registers a thread",
        explain_workspace(plan),
    ]
    return "\n".join(sections)
