"""The derivation of a streamed product as text."""

from __future__ import annotations

from ..explain import explain_workspace
from .plan import StreamedPlan


def explain_streamed(plan: StreamedPlan) -> str:
    """The plan's parts, one line a fact.

    >>> from layoutgemm import QuantizedFormat
    >>> plan = StreamedPlan.derive(8192, 1, 8192, weights=QuantizedFormat("int4", 128))
    >>> print(explain_streamed(plan).splitlines()[1])
    instruction  mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32, weights are its A, 8 a unit
    """
    config, smem, order = plan.config, plan.smem, plan.a.packing
    split, early = (
        config.split,
        f"starts early, brings {config.prefetch} unit(s) a warp to L2" if config.overlap else "starts in turn",
    )
    lines = [
        str(plan),
        f"instruction  {plan.mma.ptx}, weights are its A, {plan.b.fragments} a unit",
        f"codes        ((code, word), thread, vector) -> row + 64*column: {order.codes}",
        *([f"scales       (row, lane's row, warp, group) -> row + 64*group: {order.scales}"] * bool(plan.a.groups)),
        f"bands        {plan.bands} of {16 * config.band} features: each {_who(plan)} has a contiguous run of them",
        *([f"parts of K   {split}: block r of a cluster has units r, r + {split}, ..."] * (split > 1)),
        f"units        {plan.units} of 128 along K: warp w of {config.warps} has its block's units w, "
        f"w + {config.warps}, ..., {plan.turns} a band",
        f"slots        {plan.stages} of {plan.a.slot_bytes} bytes a warp, {len(plan.a.copies(0, 0))} cp.async a lane",
        f"x            {plan.b.rows} line(s) of {plan.b.pitch} bytes in shared memory, {plan.b.loads} ldmatrix a unit",
        f"sums         of {config.strips} strips, {smem.c_buffer_bytes} bytes each: added in the order of the warps",
        *([f"exchange     {smem.received_bytes} bytes: a block stores {plan.own_strips} strip(s) of {config.strips}, "
           "and adds the blocks' sums in their order"] * (split > 1)),
        f"shared       {smem.total} bytes, {config.blocks_per_sm} block(s) a multiprocessor{_asked(plan)}",
        f"launch       {early}",
        *[f"epilogue     {step}" for step in plan.epilogue.steps],
        explain_workspace(plan),
    ]  # fmt: skip
    return "\n".join(lines)


def _asked(plan: StreamedPlan) -> str:
    asked = plan.launch_bytes
    return f": {asked} are asked for, so that two never share one" * (asked > plan.smem.total)


def _who(plan: StreamedPlan) -> str:
    return "cluster" if plan.config.split > 1 else "block"
