"""An epilogue's steps on a warp's accumulators, before they are stored."""

from __future__ import annotations

import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Numeric

from ...dsl import bridge
from ...dsl.fused import FusedBlock, PartPlan
from ..fragment import WarpFragment
from ..plan import Sm80Plan


class _Numbered:
    """Accumulators by the fragment's numbers."""

    def __init__(self, sums: cute.Tensor, fragment: WarpFragment):
        self.sums, self.fragment = sums, fragment

    def __getitem__(self, value: int) -> Numeric:
        return self.sums[self.fragment.register(value)]


def finished(
    plan: Sm80Plan, sums: cute.Tensor, lane: Int32, sizes: tuple[Int32, ...], place: tuple[Int32, Int32, Int32],
    words: tuple[Int64, ...],
) -> cute.Tensor:  # fmt: skip
    """A warp's accumulators after the epilogue's steps; integers become f32.

    sizes  m, n and others
    place  first row, first column and matrix of the warp's part of C
    words  the plan's, in order
    """
    given = bridge.Carried(**dict(zip(plan.words, words, strict=True)))
    job = bridge.Carried(m=sizes[0], n=sizes[1], given=given)
    fragment = plan.fragment
    count = fragment.accumulator_registers
    block = FusedBlock(PartPlan(plan, fragment), job, place, lane)
    values = block.values(_Numbered(sums, fragment), 0, count)
    block.finish()
    done = cute.make_rmem_tensor(count, Float32) if plan.mma.c_dtype.kind == "int" else sums
    for v, value in enumerate(values):
        done[fragment.register(v)] = value
    return done


__all__ = ["finished"]
