"""Budget checks of an Sm90Plan: shared memory, threads, registers."""

from __future__ import annotations

from dataclasses import replace

from ...atoms.copy.base import WARP
from ...checks import shared_memory_of
from ...checks.budgets import launch_registers, role_registers
from ...report import Check
from ..plan import present
from ..plan_checks import Region, barriers_at, buffers_of_c, misplaced, stage_budget, stages_of
from .config import HELD, HELD_PACKED, loader_threads
from .mainloop import product_of, product_sets
from .operands.fragment_loads import IN_FLIGHT, groups_of, loads_of
from .operands.row_sums import ROW_VECTOR, VECTOR_WORDS
from .operands.stage_numbers import table_registers
from .plan import WARPGROUP, WARPS_OF_GROUP, Sm90Plan

# The same of a main loop that promotes: ptxas takes 153 where accumulators and tables are 143. And of packed weights as
# float8 beside a loading warpgroup: it takes 227 where 128x192 tiles have 217.
HELD_PROMOTED = 16


def budget_checks(plan: Sm90Plan) -> list[Check]:
    """Shared memory, threads and registers."""
    return [_shared_map(plan), _shared_memory(plan), _threads(plan), *_registers(plan)]


def _regions(plan: Sm90Plan) -> tuple[list[Region], list[Region]]:
    """The regions of shared memory: permanent ones, and those while C is stored."""
    smem, lasting = plan.smem, stages_of(plan)
    rings = {"full": (smem.barrier_offset, plan.stages), "empty": (smem.empty_offset, plan.stages)}
    barriers = barriers_at(smem.barrier_bytes, **rings)
    if plan.exchange is not None:
        barriers.append(("partial sums", plan.exchange.offset, plan.exchange.bytes, 16))
        barriers.append(("sums", smem.sums_offset, 8, 8))
    if plan.row_exchange is not None and plan.row_exchange.bytes:
        barriers.append(("rows", plan.row_exchange.offset, plan.row_exchange.bytes, 16))
    if plan.group_scales is not None:
        barriers.append(("scales of rows", plan.group_scales.offset, plan.group_scales.bytes, 16))
    if plan.groups is not None:
        lasting.append(("groups", smem.table_offset, plan.groups.bytes, 16))
    if plan.numbers.parts:
        lasting.append(("numbers", smem.numbers_offset, plan.stages * smem.numbers_bytes, 16))
    late = []
    if plan.store is not None:
        late = buffers_of_c(smem, plan.store, plan.config.consumers * WARPS_OF_GROUP // plan.store.warps)
    if not plan.config.one_tile_per_cluster:
        return [*lasting, *late, *barriers], []
    return [*lasting, *barriers], [*late, *barriers]


def _shared_map(plan: Sm90Plan) -> Check:
    """Stages, buffers and barriers: aligned, disjoint, inside the total; what lies over the stages, apart from them."""
    always, late = _regions(plan)
    smem = plan.smem
    witness = misplaced(always, smem.alignment, smem.total) or misplaced(late, smem.alignment, smem.total)
    over = f", and {len(late)} while C is stored over the stages" if late else ""
    statement = f"{len(always)} regions{over} are aligned and disjoint within {plan.smem.total} bytes"
    return Check("shared map", statement, not witness, "arithmetic", witness)


def _shared_memory(plan: Sm90Plan) -> Check:
    smem = plan.smem
    parts = stage_budget(plan)
    if plan.store is not None and not plan.config.one_tile_per_cluster:
        parts["buffers of C"] = plan.store.bytes(WARPS_OF_GROUP * plan.config.consumers)
    if plan.exchange is not None:
        parts["partial sums"] = plan.exchange.bytes
    if plan.row_exchange is not None:
        parts["tuples of rows"] = plan.row_exchange.bytes
    if plan.group_scales is not None:
        parts["scales of rows"] = plan.group_scales.bytes
    if plan.groups is not None:
        parts["table of groups"] = plan.groups.bytes
    if plan.numbers.parts:
        parts[f"{plan.stages} stages of numbers"] = plan.stages * smem.numbers_bytes
    barriers = 2 * plan.stages + (plan.exchange is not None)
    several = plan.config.tuning.blocks_per_sm
    return shared_memory_of(plan.arch, parts, smem.total, barriers * smem.barrier_bytes, blocks_per_sm=several)


def _threads(plan: Sm90Plan) -> Check:
    """Whole warpgroups of consumers first, then the loader's warps; the warp that loads is one of the block's."""
    loader = loader_threads(plan.config.loader, plan.numbers_warp is not None)
    consumers = WARPGROUP * plan.config.consumers
    witness = ""
    if plan.threads != consumers + loader:
        witness = f"the block has {plan.threads}"
    elif plan.threads > plan.arch.threads_per_block:
        witness = f"a block has {plan.arch.threads_per_block} at most"
    elif plan.mma.threads != WARPGROUP or not 0 <= plan.loader_warp < plan.threads // 32:
        witness = f"warp {plan.loader_warp} loads, {plan.mma.threads} threads multiply"
    elif plan.numbers_warp is not None and not consumers <= plan.numbers_warp * WARP < plan.threads:
        witness = f"warp {plan.numbers_warp} copies numbers"
    statement = f"{consumers} threads multiply and {loader} load: {plan.threads}, loads by warp {plan.loader_warp}"
    return Check("threads", statement, not witness, "arithmetic", witness)


def registers_fit(plan: Sm90Plan) -> bool:
    """True if a thread of each role has the registers that it needs."""
    return all(check.ok for check in _registers(plan))


def _registers(plan: Sm90Plan) -> list[Check]:
    """A consumer's registers against those of the launch or of setmaxnreg."""
    promoted = plan.mainloop is not None  # beside the totals, sets of products of one block of rows
    packed = plan.weights is not None
    sets = product_sets(plan) if promoted else int(plan.sums_apart)
    accumulators, own = plan.blocks + sets, product_of(plan)[0] if promoted else plan.mma
    held = plan.blocks * plan.mma.accumulator_registers + sets * own.accumulator_registers
    read = table_registers(plan)
    read += (
        plan.a.registers(plan.mma, plan.blocks)
        if packed
        else _prologue_registers(plan)
        if plan.prologue is not None
        else 0
    )
    several = plan.config.tuning.blocks_per_sm
    at_launch = min(launch_registers(plan.arch, plan.threads, several), plan.arch.registers_per_thread)
    read += plan.blocks * ROW_VECTOR + VECTOR_WORDS if plan.row_sums is not None else 0
    apart = packed and plan.a.packing.scales_sums and plan.registers is not None
    beside = HELD_PROMOTED if promoted or apart else HELD_PACKED if packed else HELD
    have = plan.registers[1] if plan.registers is not None else at_launch
    over = held + read + beside - have
    instruction = _instruction_registers(plan)
    witness = f"{over} too many" if over > 0 else ""
    if instruction > at_launch:
        witness = witness or (
            f"ptxas compiles {plan.mma} with {instruction} registers or more, setmaxnreg or not, and a launch of "
            f"{plan.threads} threads has {at_launch}"
        )
    source = "after setmaxnreg" if plan.registers is not None else f"of a launch of {plan.threads} threads"
    checks = [
        Check(
            "registers",
            f"{accumulators} accumulator(s) {held}"
            + f" + tables {read}" * promoted
            + f" + fragments and words of weights {read}" * packed
            + f" + fragments and numbers of a prologue {read}" * (plan.prologue is not None)
            + f" + sums of A's rows {read}" * (plan.row_sums is not None)
            + f" + descriptors, addresses and counters {beside} = {held + read + beside} registers "
            f"of a consumer <= {have} {source}",
            not witness,
            "arithmetic",
            witness,
        )
    ]
    if plan.registers is not None:
        loader, consumer = plan.registers
        roles = {
            "loader": (plan.threads - WARPGROUP * plan.config.consumers, loader),
            "consumers": (WARPGROUP * plan.config.consumers, consumer),
        }
        checks.append(replace(role_registers(plan.arch, roles), name="setmaxnreg"))
    return checks


def _instruction_registers(plan: Sm90Plan) -> int:
    """Registers below which ptxas 13.0 to 13.4 refuses one wgmma of the plan (C7602): its own, and `HELD`."""
    if plan.products is not None:
        return 0
    atom = product_of(plan)[0] if plan.mainloop is not None else plan.mma
    return int(atom.accumulator_registers + (atom.registers("A") if atom.a_source == "rmem" else 0) + HELD)


def _prologue_registers(plan: Sm90Plan) -> int:
    """Registers of a block's K tile, of fragments of two groups, and of the numbers."""
    loads, prologue = loads_of(plan), present(plan.prologue)
    each = plan.mma.registers("A")
    rows, columns = [len({place[axis] for place in loads.values}) for axis in range(2)]
    numbers = {"m": rows * plan.blocks, "k": 2 * columns * loads.steps}  # of columns, the next K tile's too
    fragments = IN_FLIGHT * max(len(group) for group in groups_of(plan)) * each
    return int(loads.steps * each + fragments + sum(numbers[operand.axis] for operand in prologue.operands))
