"""Consecutive conversions of float32 to packed pairs as one call on all their registers.

An epilogue converts its accumulators by 4 to 64 `cvt.rn.f16x2.f32` in a row. NumPy takes nearly as long for the lanes
of one register as for those of sixteen. The call stands on the line of the first conversion, the others do nothing.
After an undefined register the machine goes on there, one instruction at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

from .codegen import CodeGenerator, kind_of
from .parser import PtxInstruction

EMPTY = "    pass"
PAIRS = {f"cvt.rn.{kind}x2.f32": kind for kind in ("f16", "bf16")}


def batched(generator: CodeGenerator, instructions: Sequence[PtxInstruction], lines: Sequence[str]) -> list[str]:
    """The lines of a run of arithmetic, with one call for each series of conversions."""
    out, at = list(lines), 0
    while at < len(out):
        count = _series(instructions[at:], out[at:])
        if count > 1:
            out[at] = _call(generator, instructions[at : at + count])
            out[at + 1 : at + count] = [EMPTY] * (count - 1)
        at += max(count, 1)
    return out


def _series(instructions: Sequence[PtxInstruction], lines: Sequence[str]) -> int:
    """The number of equal conversions at the beginning, none of another's result."""
    written: set[str] = set()
    for count, (ins, line) in enumerate(zip(instructions, lines, strict=True)):
        if ins.opcode not in PAIRS or ins.opcode != instructions[0].opcode or ins.predicate or line == EMPTY:
            return count
        target, *sources = ins.operands
        if target.kind != "reg" or any(x.kind != "reg" or x.text in written for x in sources):
            return count
        written.add(target.text)
    return len(instructions)


def _call(generator: CodeGenerator, series: Sequence[PtxInstruction]) -> str:
    """The assignment of all results."""
    targets = ", ".join(f"R[{generator.index[ins.operands[0].text]}]" for ins in series)
    sources = ", ".join(generator.read(operand) for ins in series for operand in ins.operands[1:])
    return f"    {targets} = packed_pairs({kind_of(PAIRS[series[0].opcode])}, {sources})"
