"""The derivation of an Sm90Plan as text. Its tiles and copies, and who does what and waits for whom, as tables.

`roles` and `barriers` are computed from the plan's pipeline; the kernel's docstring shows the same rows in words.
"""

from __future__ import annotations

from ...checks.pipeline.actions import Arrive, ArriveExpect, ClusterArrive, Mma, Sync, TmaLoad, Wait
from ...checks.pipeline.model import Mbarrier, Pipeline, walk
from ..explain import BarrierRow, RoleRow, aligned, explain_operand, explain_several, explain_workspace
from ..grouped.along_k import explain_along_k
from ..orders import described_order, tiles_of_order
from ..store import distinct_chunks
from .checks import pipeline_of
from .edges import explain_ends
from .grouped import explain_ragged
from .indexed.checks import explain_indexed
from .mainloop import product_of, product_sets
from .operands.prologue import explain_prologue
from .operands.row_sums import explain_row_sums
from .operands.stage_numbers import explain_mainloop
from .plan import WARPGROUP, WARPS_OF_GROUP, Sm90Plan
from .quantized.experts import explain_experts
from .quantized.explain import explain_packed
from .shards import explain_shards
from .triangular.operands import share_of_work


def roles(plan: Sm90Plan) -> tuple[RoleRow, ...]:
    """The loader and the consumers, from the programs of the plan's pipeline."""
    pipeline = _model(plan)
    boxes = [len(tma.instructions) // tma.multicast for op in (plan.a, plan.b) for tma in op.copies]
    rows = []
    for role in pipeline.roles:
        actions = list(walk(role.program))
        loads = any(isinstance(action, TmaLoad) for action in actions)
        if loads:
            which = f"warp {plan.loader_warp}"
            issues = f"issues {sum(boxes)} boxes, {plan.config.order_of_loads[0]}'s first"
            if plan.loader_copies:
                its = "its rows of A" if plan.gathers else "its part of A's strips"
                issues = f"issues {sum(boxes)} boxes of B; each thread copies {its}, and arrives at full[s]"
                if plan.config.loader == "warpgroup":
                    which = f"warps {plan.loader_warp} to {plan.loader_warp + 3}"
            elif plan.weights is not None:
                copies = plan.a.row_blocks * len(plan.a.block_copies(0, 0, 1))
                issues = f"issues {copies} bulk copies of A, then {sum(boxes)} boxes of B"
            does = f"waits for empty[s], arms full[s] with {plan.full_bytes} bytes, {issues}"
            rows.append(RoleRow("loader", which, does))
        if any(isinstance(action, Mma) for action in actions):
            number = int(role.name.removeprefix("math"))
            of, slices = plan.place_of_consumer(number)[1], plan.config.slices
            does = f"waits for full[s], multiplies {plan.blocks} block(s) of 64 rows, releases empty[s], "
            does += "stores" if of == 0 else "sends its sums"
            does += f"; k tiles {of} modulo {slices}" if slices > 1 else ""
            rows.append(RoleRow(f"consumer {number}", f"warps {4 * number} to {4 * number + 3}", does))
    return tuple(sorted(rows))


def barriers(plan: Sm90Plan) -> tuple[BarrierRow, ...]:
    """The arrivals and the waiting roles of each barrier, from the plan's pipeline."""
    pipeline = _model(plan)
    waits: dict[str, list[str]] = {}
    meets: dict[str, list[str]] = {}
    cluster: list[str] = []
    for role in pipeline.roles:
        for action in walk(role.program):
            name = "loader" if isinstance(action, Wait) and action.barrier == "empty" else _said(role.name)
            if isinstance(action, Wait) and name not in waits.setdefault(action.barrier, []):
                waits[action.barrier].append(name)
            elif isinstance(action, Sync) and action.wait and name not in meets.setdefault(action.barrier, []):
                meets[action.barrier].append(name)
            elif isinstance(action, ClusterArrive) and name not in cluster:
                cluster.append(name)
    rows = []
    for barrier in pipeline.barriers:
        if isinstance(barrier, Mbarrier):
            arrivals = _arrivals(plan, barrier.name, barrier.count_of(0))
            shown = barrier.name if barrier.name == "sums" else f"{barrier.name}[s]"
            rows.append(BarrierRow(shown, "mbarrier", arrivals, ", ".join(waits[barrier.name])))
            continue
        kind = barrier.name.rstrip("0123456789")
        number = barrier.name.removeprefix(kind)
        which = {
            "cta": 0,
            "store": plan.store_barrier(int(number or 0)),
            "turn": plan.turn_barrier(int(number or 0)),
            "stages": plan.stages_barrier,
        }[kind]
        shown = "block" if kind == "cta" else kind
        rows.append(
            BarrierRow(f"{shown} {number}".strip(), f"named {which}", f"{barrier.threads} threads",
                       ", ".join(meets[barrier.name]))
        )  # fmt: skip
    if cluster:
        rows.append(
            BarrierRow("cluster", "cluster", f"{plan.cluster_size} * {plan.threads} threads", ", ".join(cluster))
        )
    return tuple(rows)


def _model(plan: Sm90Plan) -> Pipeline:
    """The pipeline of any number of k tiles."""
    return pipeline_of(plan).cases()[-1 if plan.store is None else -2]


def _said(role: str) -> str:
    return role.replace("math", "consumer ")


def _arrivals(plan: Sm90Plan, name: str, count: int) -> str:
    arriving = Arrive if name == "empty" or (name == "sums" and not plan.sends_sums) else ArriveExpect
    roles_ = [
        role for role in _model(plan).roles
        if any(isinstance(a, arriving) and a.barrier == name for a in walk(role.program))
    ]  # fmt: skip
    if name == "full":
        of = "rows" if plan.gathers else "strips" if plan.loader_copies else "numbers"
        who = "threads" if plan.loader_copies else "lanes"
        copies = f"its {who}' {count - 1} copies of {of}"
        lanes = f"s, of the loader and of {copies}" if count > 1 else ", of the loader"
        return f"{count} arrival{lanes}, and {plan.full_bytes} bytes"
    if name == "sums":
        if not plan.sends_sums:
            return f"{count} arrivals, of each warp of {' and '.join(_said(role.name) for role in roles_)}"
        return f"{count} arrival, of {_said(roles_[0].name)}, and {plan.exchange.bytes if plan.exchange else 0} bytes"
    blocks = sum(plan.config.cluster) - 1
    either = " and " if plan.config.schedule == "cooperative" else " or "
    who = either.join(_said(role.name) for role in roles_)
    return f"{count} arrivals, of each warp of {who}" + (f" of {blocks} blocks" if blocks > 1 else "")


def explain_sm90(plan: Sm90Plan) -> str:
    """The whole derivation, section by section, in the order of the data's way."""
    across = plan.order.clusters(plan.tiles)
    lines = [
        str(plan),
        _explain_tiles(plan, across),
        explain_operand(plan.a) if plan.weights is None else explain_packed(plan.a),
        explain_operand(plan.b),
        *explain_ends(plan.a, plan.m),
        *explain_ends(plan.b, plan.n),
        *_explain_launch(plan, across),
        *_explain_parts(plan, across),
    ]
    if plan.dead_runs:
        zeros, rows = sum(count for _, count in plan.dead_runs), plan.config.loaded_a_rows
        lines.append(f"A's tile is loaded up to row {rows}; {zeros} bytes of each stage are zeros, written once")
    lines += ["roles:", *aligned(roles(plan)), "barriers:", *aligned(barriers(plan)), *_explain_store(plan)]
    return "\n".join([*lines, *_explain_resources(plan)])


def _explain_tiles(plan: Sm90Plan, across: tuple[int, int]) -> str:
    """The number of tiles, and their order."""
    (rows, columns), config, schedule = plan.tiles, plan.config, plan.order.schedule
    return (
        f"tiles: {rows} x {columns} of C" + f", {plan.batch} times" * (plan.batch > 1) + f", {plan.k_tiles} along K; "
        f"{across[0]} x {across[1]} for clusters of {config.cluster[0]}x{config.cluster[1]}, in the order of {schedule}"
        + f", {described_order(schedule, across)}" * (not schedule.is_full)
        + f", K in {config.split} parts" * (config.split > 1)
        + f", taken in rounds of {plan.gpc_order}" * bool(config.tuning.gpc_order)
    )


def _explain_parts(plan: Sm90Plan, across: tuple[int, int]) -> list[str]:
    """The parts that a plain product does not have, one by one."""
    lines = explain_several(plan, plan.stored.accumulator_registers, " with a tensor map each,")
    if plan.ragged is not None:
        lines += explain_ragged(plan)
    if plan.experts is not None:
        lines += explain_experts(plan)
    if plan.indexed is not None:
        lines += explain_indexed(plan)
    if plan.prologue is not None:
        lines += explain_prologue(plan)
    if plan.triangles is not None:
        lines.append(described_triangles(plan))
    if plan.mirror is not None:
        room = plan.mirror.bytes(WARPS_OF_GROUP)
        lines.append(
            f"second store: tiles off the diagonal again as {plan.mirror.c}, {len(plan.mirror.rounds)} rounds through "
            f"the same buffers, {room} bytes of each consumer's"
        )
    if plan.along_k is not None:
        lines += explain_along_k(plan)
    if plan.row_sums is not None:
        lines += explain_row_sums(plan)
    if plan.mainloop is not None:
        lines += explain_mainloop(plan)
    return lines + (explain_shards(plan) if plan.shards is not None else [])


def _explain_resources(plan: Sm90Plan) -> list[str]:
    """Shared memory, registers, the instruction and the workspace."""
    smem, config = plan.smem, plan.config
    accumulators, held = plan.blocks, plan.blocks * plan.mma.accumulator_registers
    if plan.mainloop is not None:  # the products of one block of rows, or of half its columns
        sets = product_sets(plan)
        accumulators, held = accumulators + sets, held + sets * product_of(plan)[0].accumulator_registers
    over = " over the stages" if config.one_tile_per_cluster else ""
    asked = f"; {plan.launch_bytes} are asked for, so that two CTAs never share an SM"
    return [
        f"shared memory: A at {smem.a_offset} + stage*{smem.a_stage_bytes}, B at {smem.b_offset} + "
        f"stage*{smem.b_stage_bytes}, C at {smem.c_offset} + buffer*{smem.c_buffer_bytes}{over}, barriers at "
        f"{smem.barrier_offset} and {smem.empty_offset} + stage*{smem.barrier_bytes}; {smem.total} of "
        f"{plan.arch.smem_per_block} bytes, aligned to {smem.alignment}" + asked * (plan.launch_bytes > smem.total),
        f"registers: {held} of {accumulators} accumulator(s) in each of {WARPGROUP * config.consumers} threads; "
        + (f"setmaxnreg: {plan.registers[0]} for the loader, {plan.registers[1]} for consumers" if plan.registers
           else "as launched"),
        f"matrix instruction: {plan.mma}\n"
        f"  accumulator (thread, value) -> row + {plan.mma.shape_mnk[0]}*column: {plan.mma.layout_C}\n"
        f"  as coordinates (row, column): {plan.mma.coords_C}",
        explain_workspace(plan, 0 if plan.exchange is None else plan.exchange.bytes),
    ]  # fmt: skip


def described_triangles(plan: Sm90Plan) -> str:
    """The share of the K tiles that a plan with triangular operands multiplies, in words."""
    found = tiles_of_order(plan.order.schedule, plan.order.clusters(plan.tiles))
    share = f"{share_of_work(plan, found):.1%}" if found is not None else "a share"
    return f"{plan.triangles}: {share} of the K tiles of these tiles of C, the others are zeros"


def _explain_launch(plan: Sm90Plan, across: tuple[int, int]) -> list[str]:
    """The grid of tiles, the L2 prefetch, and the early stores."""
    config, lines = plan.config, []
    if plan.tile_from_block_index:
        x, y = across if config.tuning.along == "M" else across[::-1]
        along = f"along {config.tuning.along} first"
        lines.append(f"launch: a grid of {x * plan.cluster_size} x {y} blocks, {along}, a tile each")
    elif config.launch == "tiles":
        lines.append(f"launch: {across[0] * across[1] * plan.cluster_size} blocks, a tile each, by rounds")
    if config.tuning.prefetch:
        bytes_ = (plan.a.sent_bytes + plan.b.sent_bytes) * config.tuning.prefetch
        tiles = config.tuning.prefetch
        lines.append(f"into L2 before the kernel before has ended: {tiles} k tile(s), {bytes_} bytes a block")
    if config.staged_epilogue_k_tiles:
        pieces = "half of the columns" if plan.half is not None else "block of 64 rows"
        last = config.staged_epilogue_k_tiles
        lines.append(f"the last {last} k tile(s): one {pieces} after the other, each stored when complete")
    return lines


def _explain_store(plan: Sm90Plan) -> list[str]:
    store = plan.store
    if store is None:
        return [f"store: each thread its own values, to {plan.c}"]
    owner = "warp" if store.warps == 1 else "warpgroup"
    chunks = distinct_chunks(store)
    lines = [
        f"store: {plan.c}, {len(store.rounds)} rounds of a consumer through {store.buffers} buffer(s) of "
        f"{store.buffer_bytes} bytes for each {owner}" + ", stored together" * store.at_once
    ]
    for chunk in chunks:
        how = "each thread its own values"
        if chunk.rows is not None:
            how = f"stmatrix x{chunk.matrices}" + " .trans" * (plan.c.order == "col")
        elif chunk.exchange is not None:
            how = f"lanes exchange bytes, stmatrix x{chunk.exchange.matrices} .trans"
        lines.append(
            f"  columns {chunk.column} to {chunk.column + chunk.width - 1}: values {chunk.first_value} to "
            f"{chunk.first_value + chunk.values - 1}, {how}, box {store.maps[chunk.map].box}"
        )
    if plan.exchange is not None:
        lines.append(
            f"partial sums: {plan.exchange.values} values of each part to {plan.exchange.layout} vectors of 16 bytes, "
            f"{plan.exchange.bytes} bytes from byte {plan.exchange.offset} on, counted at the barrier at byte "
            f"{plan.smem.sums_offset}"
        )
    return lines
