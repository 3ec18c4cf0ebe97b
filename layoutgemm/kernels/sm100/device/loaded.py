"""An epilogue's steps on the registers that a tensor memory load brings.

A thread has one row of C and some columns of it; where each of its registers lies, the load's map says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cutlass import Float32, Int32

from ....atoms import TmemCopyAtom
from ...derive import Operand
from ...dsl import bridge
from ...dsl.fused import CombinedSums, FusedBlock
from ...epilogue.chain import Epilogue
from ...indexed.rows import IndexedRows
from ...partials import PartialResults
from ..plan import Sm100Plan


@dataclass(frozen=True)
class _LoadedValues:
    """A load's fragment map."""

    ld: TmemCopyAtom

    @property
    def accumulator_registers(self) -> int:
        return int(self.ld.registers)

    def coords_C(self, lane: Int32, value: int) -> tuple[Int32, Int32]:
        """(lane, register) -> row and column of the chunk."""
        row, column = self.ld.tmem(lane, value)
        return row, column


@dataclass(frozen=True)
class _LoadedFragment:
    """A load's values as the plan that `FusedBlock` asks."""

    plan: Sm100Plan
    ld: TmemCopyAtom

    @property
    def mma(self) -> _LoadedValues:
        return _LoadedValues(self.ld)

    @property
    def epilogue(self) -> Epilogue:
        return self.plan.epilogue

    @property
    def c(self) -> Operand:
        return self.plan.c

    @property
    def batch(self) -> int:
        return int(self.plan.batch)

    @property
    def indexed(self) -> IndexedRows | None:
        return self.plan.indexed

    @property
    def tile_c(self) -> tuple[int, int]:
        return self.plan.tile_c

    @property
    def partials(self) -> tuple[PartialResults, ...]:
        return ()

    @property
    def row_exchange(self) -> None:
        return None


def fused_values(
    plan: Sm100Plan, job: bridge.Carried, at: tuple[bridge.Place, Int32], ld: TmemCopyAtom, lane: Int32,
    values: Sequence[Float32],
) -> list[Float32]:  # fmt: skip
    """The epilogue's values of the registers that a load brought, of each sum in turn.

    at  row, column and matrix of the first, and the end of the tile's rows
    """
    block = FusedBlock(_LoadedFragment(plan, ld), job, at[0], lane, end=at[1])
    count = len(values) // plan.sums
    held = values if plan.gated is None else CombinedSums(plan, job, values, block, count)
    done = block.values(held, 0, count)
    block.finish()
    return done
