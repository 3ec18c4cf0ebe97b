"""The bridge's instructions of packed weights: conversions in words, wgmma with A in registers.

    library object                    function here               instruction
    ------------------------------    -----------------------     ------------------------------------------------
    conversions.pairs_of              DevicePairs                 lop3, shl, shr, shf, sub, mul or fma of 16-bit pairs
    float8.quads_of                   DevicePairs                 lop3, shl, shr, mad, prmt, add, sub
    sums times their scales           multiply_add                fma.rn.f32
    MmaAtom.ptx, A in registers       RegisterWgmma               wgmma.mma_async

Sources: PTX ISA, "lop3", "sub", "mul", "prmt", "fma", "wgmma.mma_async".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64
from cutlass.cute.nvgpu import warpgroup

from layoutgemm.atoms import MmaAtom

from ..quantized.conversions import NEGATIVE_ZERO, TARGETS
from .ampere import permute
from .types import assembly, element_type
from .wgmma import Wgmma, WgmmaOperand, as_signed

# lop3's tables of (a & b) | c and of a ^ (~b | c), from those of a, b and c: 0xF0, 0xCC, 0xAA
_SELECT = 0xF0 & 0xCC | 0xAA
_DIFFER = 0xF0 ^ (~0xCC & 0xFF | 0xAA)


class DevicePairs:
    """`kernels.quantized.conversions.PairMath` on registers, pairs of a type "bf16" or "f16".

    fused  differences and products are each a fused multiply-add: `conversions.FusedPairs`
    """

    def __init__(self, dtype: str, fused: bool = False):
        self.dtype, self.fused = dtype, fused

    def constant(self, word: int) -> Int32:
        """A word."""
        return Int32(as_signed(word, 32))

    def select(self, word: Int32, mask: int, rest: Int32) -> Int32:
        """(word & mask) | rest, in one instruction."""
        return self._logic(_SELECT, word, self.constant(mask), rest)

    def differ(self, x: Int32, y: Int32, rest: int) -> Int32:
        """x ^ (~y | rest), in one instruction."""
        return self._logic(_DIFFER, x, y, self.constant(rest))

    def shifted(self, word: Int32, left: int) -> Int32:
        """The word shifted left, or right for a negative count, by zeros."""
        name, count = ("shl", left) if left > 0 else ("shr", -left)
        return assembly(f"{name}.b32 $0, $1, {count};", "=r,r", [Int32(word)], (Int32,), pure=True)[0]

    def rotated(self, word: Int32, left: int) -> Int32:
        """The word rotated left."""
        text = f"shf.l.wrap.b32 $0, $1, $1, {left};"
        return assembly(text, "=r,r", [Int32(word)], (Int32,), pure=True)[0]

    def sub(self, x: Int32, y: Int32) -> Int32:
        """Two differences, rounded to nearest."""
        if self.fused:
            return self.fma(y, self.constant(TARGETS[self.dtype].word(-1.0)), x)
        return self._pair("sub", x, y)

    def mul(self, x: Int32, y: Int32) -> Int32:
        """Two products, rounded to nearest."""
        return self.fma(x, y, self.constant(NEGATIVE_ZERO)) if self.fused else self._pair("mul", x, y)

    def twice(self, word: Int32, half: int) -> Int32:
        """One half of a word in both. A modifier of the instruction that takes it, where ptxas folds it."""
        text = f"{{ .reg .b16 h<2>; mov.b32 {{h0, h1}}, $1; mov.b32 $0, {{h{half}, h{half}}}; }}"
        return assembly(text, "=r,r", [Int32(word)], (Int32,), pure=True)[0]

    def permute(self, x: Int32, y: Int32, selector: Int32) -> Int32:
        """Four bytes of the eight of x and y."""
        return permute(x, y, selector)

    def plus(self, x: Int32, y: Int32) -> Int32:
        """The sum of two words."""
        return Int32(x) + Int32(y)

    def minus(self, x: Int32, y: Int32) -> Int32:
        """Their difference."""
        return Int32(x) - Int32(y)

    def times_plus(self, x: Int32, factor: int, y: Int32) -> Int32:
        """x * factor + y, modulo 2**32, in one instruction."""
        text = f"mad.lo.s32 $0, $1, {factor}, $2;"
        return assembly(text, "=r,r,r", [Int32(x), Int32(y)], (Int32,), pure=True)[0]

    def _logic(self, table: int, x: Int32, y: Int32, z: Int32) -> Int32:
        text, operands = f"lop3.b32 $0, $1, $2, $3, {table};", [Int32(x), Int32(y), Int32(z)]
        return assembly(text, "=r,r,r,r", operands, (Int32,), pure=True)[0]

    def _pair(self, name: str, x: Int32, y: Int32) -> Int32:
        text, operands = f"{name}.rn.{self.dtype}x2 $0, $1, $2;", [Int32(x), Int32(y)]
        return assembly(text, "=r,r,r", operands, (Int32,), pure=True)[0]

    def fma(self, x: Int32, y: Int32, z: Int32) -> Int32:
        """Twice x * y + z, rounded once."""
        text, operands = f"fma.rn.{self.dtype}x2 $0, $1, $2, $3;", [Int32(x), Int32(y), Int32(z)]
        return assembly(text, "=r,r,r,r", operands, (Int32,), pure=True)[0]


class RegisterWgmma(Wgmma):
    """wgmma.mma_async of one atom: A in registers, B from shared memory. Its accumulators are tied to themselves.

    plan   its `mma` takes A from registers
    """

    def __init__(self, plan: Any):
        self.atom, self.b = plan.mma, plan.b.descriptor
        self.shape, self.tied, self.tiled_mma = self.atom.shape_mnk, True, None
        self.c_type = element_type(self.atom.c_dtype)
        self.transposed = int(plan.b.major == "MN")

    def multiply_fragments(
        self, accumulator: cute.Tensor, fragments: Sequence[Sequence[Int32]], b: WgmmaOperand, stage: Int32 | int,
        first: int, keep: Boolean | bool,
    ) -> None:  # fmt: skip
        """Fragments along K times B's K blocks from `first` on. A wgmma each, then commit the group.

        keep  the first one adds to the accumulator, else it replaces it
        """
        settled = held(fragments)
        warpgroup.fence()  # behind the last write of a fragment's register
        for i, given in enumerate(settled):
            registers = [accumulator[v] for v in range(self.atom.accumulator_registers)]
            word = b.at(stage, first + i)
            kept = keep if i == 0 else True
            for v, value in enumerate(_multiply(self.atom, registers, given, word, kept, self.transposed)):
                accumulator[v] = value
        warpgroup.commit_group()


def multiply_add(x: Float32, y: Float32, z: Float32) -> Float32:
    """x * y + z, rounded once."""
    operands = [Float32(value) for value in (x, y, z)]
    return assembly("fma.rn.f32 $0, $1, $2, $3;", "=f,f,f,f", operands, (Float32,), pure=True)[0]


def held(fragments: Sequence[Sequence[Int32]]) -> list[list[Int32]]:
    """The same registers, computed above whatever stands below: LLVM would move conversions beyond a fence."""
    registers, size = [register for fragment in fragments for register in fragment], len(fragments[0])
    count = len(registers)
    ties = ",".join(["=r"] * count + [str(v) for v in range(count)])
    found = assembly("// held", ties, registers, (Int32,) * count)
    return [list(found[i : i + size]) for i in range(0, count, size)]


def _multiply(
    atom: MmaAtom, registers: Sequence[Float32], a: Sequence[Int32], word_b: Int64, keep: Boolean | bool,
    transposed: int,
) -> list[Float32]:  # fmt: skip
    """The atom's wgmma.mma_async on f32 accumulators; each register comes back as itself."""
    count, of_a = len(registers), len(a)
    names = ", ".join(f"${v}" for v in range(count))
    names_a = ", ".join(f"${count + v}" for v in range(of_a))
    b, predicate = count + of_a, count + of_a + 1
    order = f", {transposed}" if atom.b_dtype.bits == 16 else ""  # others are K-major alone
    return assembly(
        f"{{ .reg .pred keep; setp.ne.b32 keep, ${predicate}, 0; "
        f"{atom.ptx} {{{names}}}, {{{names_a}}}, ${b}, keep, 1, 1{order}; }}",
        ",".join(["=f"] * count + ["r"] * of_a + ["l", "r"] + [str(v) for v in range(count)]),
        [*map(Int32, a), Int64(word_b), Int32(keep), *map(Float32, registers)],
        (Float32,) * count,
    )
