"""The derivation of an Sm100Plan as text. Its tiles, copies and words, and who does what and waits for whom, as tables.

`roles` and `barriers` are computed from the plan's pipeline; the kernel's docstring shows the same rows in words.
"""

from __future__ import annotations

from ...atoms.copy.base import WARP
from ...atoms.tma.gather import one_row
from ...checks.pipeline.actions import Arrive, ArriveExpect, CommitTo, Mma, Read, TmaLoad, Wait
from ...checks.pipeline.model import Mbarrier, walk
from ..explain import BarrierRow, RoleRow, aligned, explain_operand, explain_several, explain_workspace
from ..grouped.along_k import explain_along_k
from ..grouped.stores import explain_groups
from ..indexed.added_rows import explain_added
from ..operands.thread_numbers import explain_promoted
from ..orders import described_order
from ..plan import present
from ..store import distinct_chunks
from .checks import pipeline_of
from .choose import choose_sm100
from .plan import EPILOGUE_WARPS, LOADER_WARP, MMA_WARP, Sm100Plan
from .rows import READ_BY_LANES
from .store import load_of

_ARRIVALS = {Arrive: "warps", ArriveExpect: "arrive.expect_tx", CommitTo: "commit"}


def roles(plan: Sm100Plan) -> tuple[RoleRow, ...]:
    """The three roles, from the programs of the plan's pipeline."""
    boxes = sum(len(tma.instructions) for op in (plan.a, plan.b) for tma in op.copies) + 2 * (plan.scales is not None)
    steps = len(plan.a.descriptor.k_steps)
    rows = []
    for role in pipeline_of(plan).pipeline().roles:
        actions = list(walk(role.program))
        waits = " and ".join(dict.fromkeys(_slot(a.barrier) for a in actions if isinstance(a, Wait)))
        if any(isinstance(a, TmaLoad) for a in actions):
            does = f"waits for {waits}, arms full[s] with {plan.full_bytes} bytes, issues {boxes} boxes"
            rows.append(RoleRow("loader", f"warp {LOADER_WARP}", does))
        elif any(isinstance(a, Mma) for a in actions):
            told = " and ".join(dict.fromkeys(_slot(a.barrier) for a in actions if isinstance(a, CommitTo)))
            who = f"warp {MMA_WARP}" + " of the even block" * (plan.blocks > 1)
            rows.append(RoleRow("mma", who, f"waits for {waits}, multiplies {steps} times, commits to {told}"))
        elif any(isinstance(a, Read) and a.buffer == "acc" for a in actions):
            gives = " and ".join(dict.fromkeys(_slot(a.barrier) for a in actions if isinstance(a, Arrive)))
            does = f"waits for {waits}, loads {plan.tile[1]} columns, arrives at {gives}, stores"
            rows.append(RoleRow("epilogue", f"warps 0 to {EPILOGUE_WARPS - 1}", does))
    return tuple(rows)


def barriers(plan: Sm100Plan) -> tuple[BarrierRow, ...]:
    """The arrivals and the waiting roles of each barrier, from the plan's pipeline."""
    pipeline = pipeline_of(plan).pipeline()
    rows = []
    for barrier in pipeline.barriers:
        if not isinstance(barrier, Mbarrier):
            rows.append(BarrierRow("block", "named 0", f"{barrier.threads} threads", "all roles"))
            continue
        arrives, waits = [], []
        for role in pipeline.roles:
            for action in walk(role.program):
                if isinstance(action, (Arrive, ArriveExpect, CommitTo)) and action.barrier == barrier.name:
                    arrives.append(f"{role.name}'s {_ARRIVALS[type(action)]}")
                elif isinstance(action, Wait) and action.barrier == barrier.name and role.name not in waits:
                    waits.append(role.name)
        count = barrier.count_of(0)
        completed = f"{count} arrival{'s' * (count != 1)}, the {', the '.join(dict.fromkeys(arrives))}"
        completed += f", and {barrier.bytes} bytes" if barrier.bytes else ""
        rows.append(BarrierRow(_slot(barrier.name), "mbarrier", completed, ", ".join(waits)))
    if plan.blocks > 1:
        rows.append(BarrierRow("cluster", "cluster", f"{plan.blocks} * {plan.threads} threads", "all roles"))
    return tuple(rows)


def _slot(barrier: str) -> str:
    """A barrier's name with its index: stages are s, accumulators i."""
    return f"{barrier}[{'i' if barrier.startswith('acc') else 's'}]"


def explain_sm100(plan: Sm100Plan) -> str:
    """The whole derivation, section by section, in the order of the data's way."""
    rows, columns = plan.tiles
    smem, store, width = plan.smem, plan.store, plan.mma.accumulator.columns
    lines = [
        str(plan),
        f"tiles: {rows} x {columns} of C" + f", {plan.batch} times" * (plan.batch > 1) + f", "
        f"{plan.k_tiles} along K, in the order of {plan.order.schedule}"
        + f", {described_order(plan.order.schedule, plan.tiles)}"
        * (not plan.order.schedule.is_full),
        explain_operand(plan.a).replace("wgmma", "tcgen05.mma"),
        explain_operand(plan.b).replace("wgmma", "tcgen05.mma"),
        f"instruction: {plan.mma}",
        *("  " + line for line in plan.word.explain().splitlines()),
        f"tensor memory: {plan.columns} columns allocated, accumulator i at column i*{width}; {plan.mma.accumulator}",
        "roles:",
        *aligned(roles(plan)),
        "barriers:",
        *aligned(barriers(plan)),
        f"store: {plan.c}, {len(store.rounds)} rounds of a warp through {store.buffers} buffer(s) of "
        f"{store.buffer_bytes} bytes",
    ]
    for chunk in distinct_chunks(store):
        lines.append(
            f"  columns {chunk.column} to {chunk.column + chunk.width - 1}: {load_of(chunk)}, box "
            f"{store.maps[chunk.map].box}"
        )
    lines.append(
        f"shared memory: A at {smem.a_offset} + stage*{smem.a_stage_bytes}, B at {smem.b_offset} + "
        f"stage*{smem.b_stage_bytes}, C at {smem.c_offset} + buffer*{smem.c_buffer_bytes}, barriers at "
        f"{smem.barrier_offset}, {smem.empty_offset}, {smem.acc_full_offset} and {smem.acc_empty_offset}, the address "
        f"of tensor memory at {smem.slot_offset}; {smem.total} of {plan.arch.smem_per_block} bytes"
    )
    lines += explain_several(plan, plan.fragment.accumulator_registers, " with a tensor map each,")
    lines += explain_promoted(plan)
    lines += explain_groups(plan) if plan.ragged is not None else []
    lines += explain_along_k(plan) if plan.along_k is not None else []
    lines += _explain_rows(plan) if plan.indexed is not None else []
    lines += _explain_scales(plan) if plan.scales is not None else []
    lines.append(explain_workspace(plan))
    if plan.gated is None:
        _, why = choose_sm100(
            plan.m, plan.n, batch=plan.batch, arch=plan.arch, unit=plan.epilogue.columns,
            scaled=plan.scales is not None, ragged=plan.ragged, mainloop=plan.mainloop,
        )  # fmt: skip
        lines.append(f"the rule's tile for these sizes: {why}")
    lines.append("rests on: proofs, compilation, the emulator; no device of this architecture has run it here")
    return "\n".join(lines)


def _explain_scales(plan: Sm100Plan) -> list[str]:
    """The block scales, from global to tensor memory."""
    scales = present(plan.scales)
    form, (of_a, of_b) = scales.format, scales.copies
    return [
        f"{form.name} scales: a {form.scale} for {form.vector} elements of K; boxes {of_a.box} and {of_b.box} of "
        f"words, chunks and groups of rows to shared memory at {plan.smem.scales_offset} + stage*{scales.bytes}; "
        f"{len(scales.chunk_places())} x {scales.cp} a K tile, to columns {scales.column} to "
        f"{scales.column + scales.columns - 1} of tensor memory"
    ]


def _explain_rows(plan: Sm100Plan) -> list[str]:
    """The row indices, and the instructions that move chosen rows."""
    lines = [
        f"indexed: {plan.indexed}; an index outside of its matrix becomes the matrix's number of rows, from where TMA "
        "loads zeros, and where it stores nothing"
    ]
    if plan.gathers:
        values, lanes = READ_BY_LANES.shape
        lines.append(
            f"  A: {len(plan.a.tma.instructions)} x gather4 of a K tile, through a tensor map with boxes of "
            f"{one_row(plan.a.tma).box}; {lanes} lanes of warp {LOADER_WARP} read {values} indices each, once a tile"
        )
    if plan.scatters:
        counts = sorted({len(tma.instructions) for tma in plan.store.maps})
        lines.append(
            f"  C: {' or '.join(map(str, counts))} x scatter4 of a chunk of {WARP} rows, an index read by each lane"
        )
    lines += explain_added(plan)
    lines.append("  not measured: gather4 and scatter4 have run in the emulator alone")
    return lines
