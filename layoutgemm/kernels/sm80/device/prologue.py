"""The mma.sync kernel with a function of A's elements. Fragments as loaded, computed in f32, multiplied.

    before the tile     numbers of the lane's rows are read, once
    each depth          a fragment is loaded, numbers of its columns are read, f is computed and rounded to A's type

Behind the last column of K, where B is 0, a fragment is 0 too: f of zeros may be infinite.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy as shallow_copy

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from ...dsl import bridge
from ...dsl import math as element
from ...operands.prologue import PrologueElement, PrologueOperand
from ...plan import present
from ..plan import Sm80Plan
from .fused import Sm80FusedKernel
from .gemm import DepthLoads, Loads


class Sm80PrologueKernel(Sm80FusedKernel):
    """A block for each tile, with f(A) in place of A."""

    def loads_of_a(
        self, lane: Int32, warp: Int32, place: tuple[Int32, Int32], sizes: tuple[Int32, ...], words: tuple[Int64, ...]
    ) -> FunctionLoads:  # fmt: skip
        """A lane's fragments of f(A). `place`: first row of the tile, and matrix."""
        row = place[0] + warp * self.plan.a.warp_extent
        return FunctionLoads(self.plan, lane, warp, (row, place[1]), (sizes[0], sizes[2]), self.given(words))

    def of_k_tile(self, load: DepthLoads, left: Int32) -> DepthLoads:
        """The loads of the K tile that is multiplied. Copies have `left` elements of K before them."""
        assert isinstance(load, FunctionLoads)
        return load.at(left + (self.plan.stages - 1) * self.plan.tile[2])


class FunctionLoads:
    """A lane's fragments of A, depth by depth, after the function.

    place  row of the warp's first element in A, and the matrix
    sizes  M and K
    """

    def __init__(
        self, plan: Sm80Plan, lane: Int32, warp: Int32, place: tuple[Int32, Int32], sizes: tuple[Int32, Int32],
        given: Mapping[str, Int64],
    ):  # fmt: skip
        self.plan, self.load = plan, Loads(plan.a, plan.smem.a_offset, lane, warp)
        (self.row, self.matrix), (self.m, self.k), self.given = place, sizes, given
        self.column = Int32(0)  # of A: the first of the K tile
        count = plan.mma.registers("A") * 32 // plan.a.dtype.bits
        of = plan.mma.coords("A")
        # Where thread 0 has a value: those of one row, or of one column, are so in every lane.
        self.keys = [tuple(int(x) for x in of(0, v)) for v in range(count)]
        # Bytes with contiguous columns are loaded in an order of rows of their own.
        self.values = [(plan.a.mn_order(i), j) for i, j in (of(lane, v) for v in range(count))]
        height = int(plan.mma.shape_mnk[0])
        self.rows = {
            (operand.name, block, key[0]): self.number(operand, self.row + (block * height + own[0]), self.m)
            for operand in present(plan.prologue).operands
            if operand.axis == "m"
            for block in range(plan.blocks[0])
            for key, own in zip(self.keys, self.values, strict=True)
        }

    def at(self, left: Int32) -> FunctionLoads:
        """The same loads in another K tile; `left`: elements of K from its begin on."""
        twin = shallow_copy(self)
        twin.column = self.k - left
        return twin

    def begin(self, held: list[Int32]) -> None:
        """Begin a K tile."""
        self.load.begin(held)

    def number(self, operand: PrologueOperand, at: Int32, end: Int32) -> Float32:
        """An operand's number of a row or column. Beyond the last one that of the last one."""
        address = self.given[operand.name] + Int64(cutlass.min(at, end - 1)) * operand.dtype.bytes
        if self.plan.batch > 1:
            address += Int64(self.matrix) * self.given[f"{operand.name}_batch"] * operand.dtype.bytes
        return element.load_value(address, operand.dtype)

    def fragments(self, stage: cute.Pointer, step: int) -> list[Int32]:
        """Registers of one depth. The first depth is the next K tile's where fragments are loaded ahead."""
        plan, kind, prologue = self.plan, self.plan.a.dtype, present(self.plan.prologue)
        words, each = self.load.fragments(stage, step), plan.mma.registers("A")
        further = plan.tile[2] if plan.config.ahead and step == 0 else 0
        column = self.column + (further + step * int(plan.mma.shape_mnk[2]))
        columns = {key[1]: column + own[1] for key, own in zip(self.keys, self.values, strict=True)}
        numbers = {
            (operand.name, key): self.number(operand, at, self.k)
            for operand in prologue.operands
            if operand.axis == "k"
            for key, at in columns.items()
        }
        maths, per, found = element.ElementMath(False, kind.mantissa <= 8), 32 // kind.bits, []
        for block in range(plan.blocks[0]):
            row = self.row + block * int(plan.mma.shape_mnk[0])
            given = [x for word in words[block * each : (block + 1) * each] for x in bridge.floats_of(word, kind)]
            results = []
            for x, (i, j), own in zip(given, self.keys, self.values, strict=True):
                read = {
                    operand.name: self.rows[operand.name, block, i] if operand.axis == "m" else numbers[operand.name, j]
                    for operand in prologue.operands
                }
                value = Float32(prologue.apply(x, PrologueElement(row + own[0], columns[j], read, maths)))
                results.append(maths.where(columns[j] < self.k, value, 0.0))
            found += [bridge.join(results[at : at + per], kind) for at in range(0, len(results), per)]
        return found
