"""An epilogue's steps on a warp's accumulators, before they are stored."""

from __future__ import annotations

import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Numeric

from ...dsl import bridge
from ...dsl.fused import CombinedSums, FusedBlock, PartPlan
from ..fragment import WarpFragment
from ..plan import Sm80Plan


class _Numbered:
    """Accumulators by the fragment's numbers; those of further sums follow, each `accumulator_registers` on."""

    def __init__(self, sums: cute.Tensor, fragment: WarpFragment):
        self.sums, self.fragment = sums, fragment

    def __getitem__(self, value: int) -> Numeric:
        sum_, own = divmod(value, self.fragment.accumulator_registers)
        return self.sums[self.fragment.register(own) + sum_ * self.fragment.accumulator_registers]


def finished(
    plan: Sm80Plan, sums: cute.Tensor, lane: Int32, sizes: tuple[Int32, ...],
    place: tuple[Int32, Int32, Int32, Int32], words: tuple[Int64, ...],
) -> cute.Tensor:  # fmt: skip
    """A warp's accumulators after the function of several sums, and the epilogue's steps. Integers become f32.

    sizes  m, n, k and groups
    place  first row, first column and matrix of the warp's part of C, and the end of its rows
    words  the plan's, in order
    """
    given = bridge.Carried(**dict(zip(plan.words, words, strict=True)))
    job = bridge.Carried(m=sizes[0], n=sizes[1], given=given)
    job = job if len(sizes) < 4 else job.extended(groups=sizes[3])
    fragment = plan.fragment
    count = fragment.accumulator_registers
    block = FusedBlock(PartPlan(plan, fragment), job, place[:3], lane, end=place[3], held=range(count))
    held: _Numbered | CombinedSums = _Numbered(sums, fragment)
    if plan.gated is not None:
        held = CombinedSums(plan, job, held, block, count)
    values = block.values(held, 0, count)
    block.finish()
    done = cute.make_rmem_tensor(count, Float32) if plan.mma.c_dtype.kind == "int" or plan.sums > 1 else sums
    for v, value in enumerate(values):
        done[fragment.register(v)] = value
    return done
