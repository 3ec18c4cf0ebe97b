"""The NumPy executor: one plan, walked element by element as the kernel walks it.

Data goes from global to shared memory through box and swizzle, and to the tensor core through the descriptor's address
arithmetic. Registers go to C through the plan's fragment map, with the plan's barriers and stages. The models of the
hardware are in `silicon`; the plan supplies every number. A wrong descriptor bit, swizzle, box, byte count or fragment
map therefore gives a wrong result or a stated failure.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..run.hardware_model import (
    Barrier,
    GlobalMatrix,
    Output,
    Progress,
    SharedBytes,
    accumulator_registers,
    copy_boxes,
    wgmma_product,
)
from .plan import TeachingPlan


def execute(
    plan: TeachingPlan, a: GlobalMatrix, b: GlobalMatrix, progress: Progress | None = None
) -> npt.NDArray[np.float32]:
    """C as an (M, N) float32 array, rounded to the plan's output type.

    a, b      the matrices' bits, innermost extent first
    progress  called with (blocks done, blocks in all) after each block

    Raises PlanError when a barrier would never complete, shared memory is left, or an element of C is not stored once.
    """
    c = Output(plan.c, plan.m, plan.n, 1)
    blocks = plan.grid[0]
    for block in range(blocks):
        _run_block(plan, block, a, b, c)
        if progress is not None:
            progress(block + 1, blocks)
    return c.values()


def _run_block(plan: TeachingPlan, block: int, a: GlobalMatrix, b: GlobalMatrix, c: Output) -> None:
    smem = SharedBytes(plan.smem.total)
    full = [Barrier(f"{plan.barrier.name}[{s}]", plan.barrier.arrivals) for s in range(plan.barrier.count)]
    m0, n0 = plan.tile_origin(block)
    k_tiles, tile_k = plan.tiles[2], plan.tile[2]

    def load(k_tile: int) -> None:
        """Thread 0: promise the stage's bytes, then issue every copy of both operands."""
        stage = k_tile % plan.stages
        full[stage].arrive_expect(plan.barrier.bytes)
        origin = {"m": m0, "n": n0, "k": k_tile * tile_k}
        for operand, matrix in ((plan.a, a), (plan.b, b)):
            tma, address = operand.tma, smem.base + plan.smem.stage(operand.name, stage)
            copy_boxes(tma, tma.instructions, matrix, origin, smem, address, full[stage])

    for k_tile in range(min(plan.stages, k_tiles)):
        load(k_tile)
    accumulator = np.zeros((1, 1), dtype=np.float32)
    for k_tile in range(k_tiles):
        stage = k_tile % plan.stages
        full[stage].wait(k_tile // plan.stages & 1)
        address_a = smem.base + plan.smem.stage("A", stage)
        address_b = smem.base + plan.smem.stage("B", stage)
        for step, (step_a, step_b) in enumerate(zip(plan.a.descriptor.k_steps, plan.b.descriptor.k_steps, strict=True)):
            product = wgmma_product(
                plan.mma,
                smem,
                plan.a.descriptor.base.at(address_a + step_a).word,
                plan.a.descriptor.major,
                plan.b.descriptor.base.at(address_b + step_b).word,
                plan.b.descriptor.major,
            )
            # scale-d is 0 for the very first product: D = A*B, the old accumulator is not read
            accumulator = product if k_tile == step == 0 else accumulator + product
        if k_tile + plan.stages < k_tiles:
            load(k_tile + plan.stages)
    bits = plan.c.dtype.encode(accumulator_registers(accumulator))
    c.store_registers(plan.mma, (m0, n0, 0), (plan.m, plan.n), bits, range(bits.shape[1]))
