"""The derivation of an Sm80Plan as text: tiles, copies, loads, ring, store, with their numbers."""

from __future__ import annotations

from ..explain import explain_several, explain_workspace
from ..indexed.added_rows import explain_added
from ..operands.block_scales import CHUNK_FACTORS, CHUNK_ROWS
from ..operands.prologue import prologue_line
from ..operands.thread_numbers import explain_promoted
from ..orders import described_order
from .groups import explain_groups
from .operand import Sm80Operand
from .plan import Sm80Plan
from .quantized.explain import explain_packed
from .quantized.split import explain_split
from .store import BUFFERS


def explain_sm80(plan: Sm80Plan) -> str:
    """The plan's parts, one line a fact.

    >>> print(explain_sm80(Sm80Plan.derive(4096, 4096, 4096, b="bf16:col")).splitlines()[1])
    instruction  mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32, 2 depths a k tile
    """
    m, n = plan.blocks
    lines = [
        str(plan),
        f"instruction  {plan.mma.ptx}, {plan.steps} depths a k tile",
        f"warps        {plan.warps[0]}x{plan.warps[1]} of {plan.a.warp_extent}x{plan.b.warp_extent}: {m}x{n} products "
        f"a depth, {m * n * plan.mma.accumulator_registers} accumulators a thread",
    ]
    lines += _operand(plan.a)
    lines += _operand(plan.b) if plan.weights is None else explain_packed(plan.b)
    lines += _scales(plan)
    smem = plan.smem
    lines += [
        f"ring         {plan.stages} stages of {smem.a_stage_bytes} bytes, copies {plan.stages - 1} k tiles ahead, "
        f"fragments {'one depth ahead' if plan.config.ahead else 'as they are multiplied'}",
        f"barriers     one group of copies a k tile, {max(0, plan.stages - 2)} pending at the wait; one bar.sync of "
        f"{plan.threads} threads a k tile",
        f"store        rounds of {plan.store.tile.extent[0]} rows through {plan.store.tile}, {BUFFERS} buffers of "
        f"{plan.store.buffer_bytes} bytes a warp, {plan.store.vector} bytes an access to C",
        f"order        {plan.tiles[0]}x{plan.tiles[1]} tiles by {plan.order}"
        + f", {described_order(plan.order, plan.tiles)}" * (not plan.order.is_full),
        f"shared       {smem.total} bytes, {plan.config.blocks_per_sm} block(s) a multiprocessor",
        *explain_split(plan.split),
        *explain_groups(plan),
        *explain_promoted(plan),
        *[
            prologue_line(prologue, plan.a.dtype, plan.n, plan.tile_c[1], plan.warps[1])
            for prologue in (plan.prologue,)
            if prologue is not None
        ],
        *[f"epilogue     {step}" for step in plan.epilogue.steps],
        *explain_several(plan, plan.fragment.accumulator_registers),
        *([] if plan.indexed is None else [_rows(plan), *explain_added(plan)]),
        explain_workspace(plan),
    ]
    return "\n".join(lines)


def _scales(plan: Sm80Plan) -> list[str]:
    """The block scales of a plan that has them."""
    scales = plan.scales
    if scales is None:
        return []
    chunks = " and ".join([f"{groups}x{scales.chunks}" for groups in scales.groups])
    return [
        f"scales       {scales.format.name}: a {scales.format.scale} for every {scales.format.vector} elements of K; "
        f"{chunks} chunks of {CHUNK_ROWS} rows and {CHUNK_FACTORS} factors a stage, {scales.bytes} bytes",
        f"  loads      a word a lane for {scales.depths} depth(s): {scales.registers(0)} of A, "
        f"{scales.registers(1)} of B",
    ]


def _rows(plan: Sm80Plan) -> str:
    how = []
    if plan.gathers:
        how.append(f"a thread reads {plan.a.copy.parts[0]} indices of A, once a tile")
    if plan.scatters:
        how.append(f"a lane reads {plan.blocks[0] * plan.store.drains} indices of C")
    ends = "an index outside of its matrix reads zeros, or stores nothing"
    return f"indexed      {plan.indexed}; {ends}; {'; '.join(how)}"


def _operand(operand: Sm80Operand) -> list[str]:
    copy, load = operand.copy, operand.load
    how = f"elements into {copy.vector_bytes} bytes" if copy.by_elements else f"cp.async of {copy.vector_bytes} bytes"
    return [
        f"{operand.name}            {operand.dtype} {operand.order}-major, {operand.major}-major in {operand.smem}",
        f"  copies     {how}, {len(copy.indices)} a thread and k tile, {len(copy.places.bases)} address(es)",
        f"  loads      {load.kind}, {load.loads} a depth, {load.registers} registers each, {len(load.places.bases)} "
        "address(es) a lane",
    ]
