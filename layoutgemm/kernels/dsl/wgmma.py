"""The bridge's wgmma. It has descriptors from the plan's words, accumulators, and the products of one k tile.

    plan object                       here                        instruction
    ------------------------------    -----------------------     ------------------------------------------------
    OperandDescriptor.word, .k_steps  Wgmma                       the two 64-bit operands of wgmma.mma_async
    MmaAtom.shape_mnk, types          Wgmma                       wgmma.mma_async.m64nNkK.{f32,f16,s32}.{types}
    OperandPlan.major                 Wgmma                       wgmma's imm-trans-a, imm-trans-b
    MmaAtom.ptx                       _multiply_tied              the instruction itself, where the DSL has none of it

Source: PTX ISA, "Asynchronous warpgroup level matrix instructions".
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64, Uint32
from cutlass.cute.nvgpu import tcgen05, warpgroup

from layoutgemm.atoms import MmaAtom
from layoutgemm.atoms.smem.descriptor import ADDRESS_MASK, SM90_FIELDS, OperandDescriptor
from layoutgemm.errors import PlanError

from .sync import uniform
from .types import MAJOR_MODES, Rebuilt, assembly, element_type

# The descriptor's address field: its unit, and by ADDRESS_MASK its width. A shared-memory address inside a cluster
# carries the rank of its block from bit 24 on; everything above the field must go, or it lands in the leading offset.
ADDRESS_UNIT = 1 << SM90_FIELDS[0].shift
LOW_WORD = (1 << 32) - 1


def matrix_descriptor(word: int, pointer: cute.Pointer) -> Int64:
    """The descriptor of an operand tile. Constant bits of the plan, address field of the traced pointer.

    `word` is OperandDescriptor.word, whose address field is zero; `pointer` is the tile's first byte in shared memory.
    """
    address = Int64(pointer.toint()) & ADDRESS_MASK
    return Int64(as_signed(word)) | (address >> SM90_FIELDS[0].shift)


def as_signed(word: int, bits: int = 64) -> int:
    """A bit pattern as the signed integer of the same bits, for the DSL's Int64."""
    return word - (1 << bits) if word >> (bits - 1) else word


class WgmmaOperand(Rebuilt):
    """One operand's descriptors: the constant half, and the half that moves, in a uniform register.

    Of the 64 bits only the low 32 hold the address; stages and K blocks are added to these alone, so that the loop has
    32-bit uniform adds and nothing else.
    """

    held = ("low",)

    def __init__(self, descriptor: OperandDescriptor, pointer: cute.Pointer, stage_bytes: int, block: Int32 | int = 0):
        """Takes `pointer` to stage 0's first byte. `block` is the first block of M (or N) that this warpgroup
        multiplies."""
        self.word, self.major = descriptor.word, descriptor.major
        self.k_steps = tuple(step // ADDRESS_UNIT for step in descriptor.k_steps)
        self.mn_steps = tuple((step - descriptor.mn_steps[0]) // ADDRESS_UNIT for step in descriptor.mn_steps)
        self.stage_units = stage_bytes // ADDRESS_UNIT
        step = self.mn_steps[1] if len(self.mn_steps) > 1 else 0
        if self.mn_steps != tuple(i * step for i in range(len(self.mn_steps))):
            raise PlanError(f"blocks at {self.mn_steps} are not evenly apart, and each warpgroup has some of them")
        address = pointer.toint() & ADDRESS_MASK
        constant = as_signed(self.word & LOW_WORD, 32)
        self.low = uniform((address >> SM90_FIELDS[0].shift) + block * step | constant)

    def of_turn(self, turn: Int32 | int, turns: int) -> WgmmaOperand:
        """The operand of one of so many equal parts of a K tile. Raises PlanError if they are not evenly apart."""
        each = len(self.k_steps) // turns
        own, step = self.k_steps[:each], self.k_steps[each] - self.k_steps[0] if turns > 1 else 0
        if self.k_steps != tuple(part * step + first for part in range(turns) for first in own):
            raise PlanError(f"K blocks at {self.k_steps} are not {turns} equal parts")
        twin = copy.copy(self)
        twin.low, twin.k_steps = (self.low if turns == 1 else uniform(self.low + turn * step)), own
        return twin

    def at(self, stage: Int32 | int, k_block: int, block: int = 0) -> Int64:
        """The descriptor of one instruction's operand."""
        low = self.low + stage * self.stage_units + (self.k_steps[k_block] + self.mn_steps[block])
        return Int64(as_signed(self.word & ~LOW_WORD)) | Int64(Uint32(low))


class Wgmma(Rebuilt):
    """wgmma.mma_async of one atom, both operands from shared memory, accumulators in registers.

    Built from a plan's MmaAtom (shape, types) and the operands' majorness. `accumulator()` gives the calling thread's
    registers for one instruction's tile: element v is value v of the atom's C layout.

    The DSL has an operation for 16-bit types, 8-bit floats and integers. tf32 it has not: its instruction is written
    out, with the accumulator's registers tied to themselves.

    half  (atom, B's descriptor) of a plan whose products are of parts of the columns, in place of its own: of one of
          the `halves` of an accumulator, or into registers of their own
    """

    def __init__(self, plan: Any, half: Any = None):
        self.atom, self.b = half or (plan.mma, plan.b.descriptor)
        self.a, self.shape = plan.a.descriptor, self.atom.shape_mnk
        if (len(self.b.mn_steps) > 1) != (half is not None):
            raise PlanError(f"the tile is {len(self.b.mn_steps)} instructions of {self.atom} wide")
        self.tied = self.atom.a_dtype.name in _TIED
        self.held = () if self.tied else ("tiled_mma",)
        self.tiled_mma: Any = None if self.tied else cute.make_tiled_mma(_operation(plan, self.atom), (1, 1, 1))
        self.c_type = element_type(self.atom.c_dtype)

    def accumulator(self) -> cute.Tensor:
        """Registers for one tile of C, not initialised: the first `multiply` does not read them."""
        m, n, _ = self.shape
        if self.tied:
            return cute.make_rmem_tensor(cute.make_layout(self.atom.accumulator_registers), self.c_type)
        return cute.make_rmem_tensor(self.tiled_mma.get_slice(0).partition_shape_C((m, n)), self.c_type)

    def halves(self, accumulator: cute.Tensor) -> list[cute.Tensor]:
        """The accumulator of an instruction twice as wide, as two of this one. Its values are those of the left columns
        first.
        """
        layout, count = self.accumulator().layout, self.atom.accumulator_registers
        return [cute.make_tensor(accumulator.iterator + count * i, layout) for i in range(2)]

    def multiply(self, accumulator: cute.Tensor, a: WgmmaOperand, b: WgmmaOperand, accumulate: Boolean | bool) -> None:
        """One k tile: accumulator (+)= A tile @ B tile. One wgmma for each K block, then a commit of the group.

        `a` and `b` point at the stage's tiles; the K blocks lie at the plan's byte offsets from them. `accumulate` is
        wgmma's scale-d for the first block (false: D = A*B, the old accumulator is not read) and true after it.
        """
        word_a = matrix_descriptor(self.a.word, a)
        word_b = matrix_descriptor(self.b.word, b)
        # wgmma.fence orders register accesses, the accumulator's here. It stands inside the k loop, before the first
        # wgmma of each tile: hoisted out of the loop of a longer kernel, ptxas serialised every wgmma without a word.
        warpgroup.fence()
        for step_a, step_b in zip(self.a.k_steps, self.b.k_steps, strict=True):
            self._issue(accumulator, word_a + step_a // ADDRESS_UNIT, word_b + step_b // ADDRESS_UNIT, accumulate)
            accumulate = True
        warpgroup.commit_group()

    def multiply_blocks(
        self, accumulators: Sequence[cute.Tensor], a: WgmmaOperand, b: WgmmaOperand, stage: Int32 | int,
        accumulate: Boolean | bool,
    ) -> None:  # fmt: skip
        """One k tile of several blocks of M, each with its accumulator. `multiply` with descriptors that stay put.

        K blocks outside, blocks of M inside: two instructions in a row then read the same B. Raises PlanError, while
        tracing, for one accumulator that is not in a list.
        """
        if isinstance(accumulators, cute.Tensor):
            raise PlanError("accumulators of multiply_blocks must be a list, one for each block of M: [sums], not sums")
        warpgroup.fence()
        for k_block in range(len(a.k_steps)):
            for block, accumulator in enumerate(accumulators):
                self._one(accumulator, a, b, stage, k_block, block, accumulate)
        warpgroup.commit_group()

    def multiply_block(
        self, accumulator: cute.Tensor, a: WgmmaOperand, b: WgmmaOperand, stage: Int32 | int, block: int, column: int,
        accumulate: Boolean | bool,
    ) -> None:  # fmt: skip
        """One K tile of one block of M and one of N, a wgmma group.

        The block's sums are complete before the others'.
        """
        warpgroup.fence()
        for k_block in range(len(a.k_steps)):
            self._one(accumulator, a, b, stage, k_block, block, accumulate, column)
        warpgroup.commit_group()

    def _one(
        self, accumulator: cute.Tensor, a: WgmmaOperand, b: WgmmaOperand, stage: Int32 | int, k_block: int, block: int,
        keep: Boolean | bool, column: int = 0,
    ) -> None:  # fmt: skip
        for name, given, own in (("A", a, self.a), ("B", b, self.b)):
            if given.major != own.major:
                raise PlanError(
                    f"operand {name} of the product: its descriptor is {given.major}-major, and the instruction reads "
                    f"{own.major}-major, as the plan's {name.lower()} is: both come from one operand"
                )
        words = a.at(stage, k_block, block), b.at(stage, k_block, column)
        self._issue(accumulator, *words, keep if k_block == 0 else True)

    def _issue(self, accumulator: cute.Tensor, word_a: Int64, word_b: Int64, keep: Boolean | bool) -> None:
        """One instruction: two descriptors, and scale-d."""
        if self.tied:
            registers = [accumulator[v] for v in range(self.atom.accumulator_registers)]
            for v, value in enumerate(_multiply_tied(self.atom, registers, word_a, word_b, keep)):
                accumulator[v] = value
            return
        self.tiled_mma.set(warpgroup.Field.ACCUMULATE, keep)
        fragments = _descriptor_fragment(word_a), _descriptor_fragment(word_b)
        cute.gemm(self.tiled_mma, accumulator, *fragments, accumulator)

    def wait(self, pending: int = 0, *accumulators: cute.Tensor) -> None:
        """Until all but `pending` of this thread's groups have finished: operand tiles read. `settle` these sums.

        Any that is read behind this belongs here, or to `settle`, where more than a store takes it first.
        """
        warpgroup.wait_group(pending)
        self.settle(*accumulators)

    def settle(self, *accumulators: cute.Tensor) -> None:
        """Nothing reads these sums above this, which stands behind the `wait` that completes them.

        `wait` names no register. Where what is done with a sum takes nothing else, as of relu, LLVM moves it up to the
        last wgmma, above the wait; ptxas then waits for every wgmma by itself. Here each register comes back as itself,
        by no instruction. CUTLASS's warpgroup_fence_operand (include/cute/arch/mma_sm90_gmma.hpp) does so, too.
        """
        count = self.atom.accumulator_registers
        letter, kind = ("r", Int32) if self.c_type is Int32 else ("f", Float32)
        ties = ",".join([f"={letter}"] * count + [str(v) for v in range(count)])
        for accumulator in accumulators:
            values = assembly("// settled", ties, [kind(accumulator[v]) for v in range(count)], (kind,) * count)
            for v, value in enumerate(values):
                accumulator[v] = value


def _operation(plan: Any, atom: MmaAtom) -> warpgroup.MmaF16BF16Op | warpgroup.MmaF8Op:
    majors = (MAJOR_MODES[plan.a.major], MAJOR_MODES[plan.b.major])
    a_type, b_type, c_type = (element_type(t) for t in (atom.a_dtype, atom.b_dtype, atom.c_dtype))
    shape, source = tuple(atom.shape_mnk), warpgroup.OperandSource.SMEM
    if atom.a_dtype.name in ("bf16", "f16"):
        if a_type is not b_type:
            raise PlanError(f"wgmma takes one type for A and B, not {atom.a_dtype} and {atom.b_dtype}")
        return warpgroup.MmaF16BF16Op(a_type, c_type, shape, source, *majors)
    if atom.a_dtype.name in ("e4m3", "e5m2"):
        return warpgroup.MmaF8Op(a_type, b_type, c_type, shape, source, *majors)
    if atom.a_dtype.name in ("i8", "u8"):
        return warpgroup.MmaI8Op(a_type, b_type, c_type, shape, source, *majors)
    raise PlanError(f"the DSL has no wgmma operation for {atom.a_dtype} and {atom.b_dtype}")


def _descriptor_fragment(word: Int64) -> cute.Tensor:
    """A 64-bit descriptor as the operand that cute.gemm takes: one MMA atom along M (or N), one along K."""
    return cute.make_tensor(tcgen05.int_to_smem_descriptor(word), cute.make_layout((1, 1, 1), stride=(0, 0, 0)))


# Types of A whose instructions the DSL's operations lack.
_TIED = ("tf32",)


def _multiply_tied(
    atom: MmaAtom, registers: Sequence[Float32], word_a: Int64, word_b: Int64, keep: Boolean | bool
) -> list[Float32]:
    """The atom's wgmma.mma_async on f32 accumulators and K-major operands; each register comes back as itself."""
    count = len(registers)
    names = ", ".join(f"${v}" for v in range(count))
    return assembly(
        f"{{ .reg .pred keep; setp.ne.b32 keep, ${count + 2}, 0; "
        f"{atom.ptx} {{{names}}}, ${count}, ${count + 1}, keep, 1, 1; }}",
        ",".join(["=f"] * count + ["l", "l", "r"] + [str(v) for v in range(count)]),
        [Int64(word_a), Int64(word_b), Int32(keep), *map(Float32, registers)],
        (Float32,) * count,
    )
