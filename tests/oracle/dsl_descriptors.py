"""Words that the CuTe DSL derives: matrix descriptors of both architectures and tcgen05 instruction descriptors.

    python dsl_descriptors.py < questions.jsonl > answers.jsonl

Questions are JSON lines, answers {"id", "answer"} or {"id", "error"}. All words of one architecture (and, for tcgen05,
of one number of blocks: ptxas does not take both in one kernel) come from ONE compiled kernel, read from its PTX.

  {"id", "op": "smem", "arch", "major": "K" | "MN", "swizzle", "dtype", "extent": [mn, k], "rows", "depth"}
      the word of the DSL's own atom tiled to the extent, divided into the instruction's operands, at address 0:
      make_smem_layout_atom, tile_to_shape, zipped_divide, make_gmma_smem_desc or make_umma_smem_desc. A layout that the
      DSL's verifier refuses is an error.
  {"id", "op": "layout", "arch", "major", "swizzle", "dtype", "shape", "stride", "rows", "depth"}
      the same for a layout of ours (mn, k) -> element offset
  {"id", "op": "instruction", "class", "args": [...], "negate": [bool, bool]}
      the instruction descriptor in the PTX of cute.gemm with that atom
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from typing import Any

import cutlass
import cutlass._mlir.dialects.cute_nvgpu as nvgpu
import cutlass.cute as cute
from cutlass import Int64
from cutlass._mlir import ir
from cutlass._mlir.dialects import builtin
from cutlass.cute.nvgpu import OperandMajorMode, tcgen05, warpgroup
from cutlass.cutlass_dsl import CuTeDSL

KINDS = {"none": "INTER", "32B": "SW32", "64B": "SW64", "128B": "SW128", "128B_ATOM_32B": "SW128_32B"}
TYPES = {
    "f16": cutlass.Float16,
    "bf16": cutlass.BFloat16,
    "tf32": cutlass.TFloat32,
    "f32": cutlass.Float32,
    "i32": cutlass.Int32,
    "i8": cutlass.Int8,
    "u8": cutlass.Uint8,
    "e4m3": cutlass.Float8E4M3FN,
    "e5m2": cutlass.Float8E5M2,
    "e3m2": cutlass.Float6E3M2FN,
    "e2m3": cutlass.Float6E2M3FN,
    "e2m1": cutlass.Float4E2M1FN,
    "ue8m0": cutlass.Float8E8M0FNU,
    "ue4m3": cutlass.Float8E4M3FN,
}
STORE = re.compile(r"st\.global\S*\s+\[%rd\d+(?:\+(\d+))?\],\s+(-?\d+);")
MMA = re.compile(r"tcgen05\.mma\S*\s+\[%\w+\],\s*%\w+,\s*%\w+,\s*(%\w+|-?\d+)\s*[,;]")
MOVE = re.compile(r"mov\.b32\s+(%\w+),\s+(-?\d+);")


def tree(value: Any) -> Any:
    return tuple(tree(v) for v in value) if isinstance(value, list) else value


def make_descriptor(question: dict[str, Any]) -> Any:
    """The DSL's descriptor of the first operand of the layout, address 0."""
    module = warpgroup if question["arch"] == "sm_90a" else tcgen05
    kind = getattr(module.SmemLayoutAtomKind, f"{question['major']}_{KINDS[question['swizzle']]}")
    atom = module.make_smem_layout_atom(kind, TYPES[question["dtype"]])
    if question["op"] == "smem":
        order = (0, 1) if question["major"] == "K" else (1, 0)
        layout = cute.tile_to_shape(atom.outer, tuple(question["extent"]), order=order)
    else:
        layout = cute.make_layout(tree(question["shape"]), stride=tree(question["stride"]))
    blocks = cute.zipped_divide(layout, (question["rows"], question["depth"]))
    pointer = cute.make_ptr(TYPES[question["dtype"]], 0, cute.AddressSpace.smem, assumed_align=1024)
    make = nvgpu.make_gmma_smem_desc if question["arch"] == "sm_90a" else nvgpu.make_umma_smem_desc
    return make(
        src=cute.recast_ptr(pointer, atom.inner).value,
        layout=blocks.type.attribute,
        major=ir.Attribute.parse(f"#cute_nvgpu.major<{question['major'].lower()}>"),
    )


def argument(value: Any) -> Any:
    """A JSON argument of an MMA atom's class."""
    if isinstance(value, list):
        return tuple(value)
    named = {"K": OperandMajorMode.K, "MN": OperandMajorMode.MN, "smem": tcgen05.OperandSource.SMEM}
    named |= {1: tcgen05.CtaGroup.ONE, 2: tcgen05.CtaGroup.TWO}
    return named[value] if value in named else TYPES[value]


def multiply(question: dict[str, Any]) -> None:
    """One cute.gemm with the question's atom, on descriptors of address 0."""
    op = getattr(tcgen05, question["class"])(*map(argument, question["args"]))
    mma = cute.make_tiled_mma(op)
    one = cute.make_layout((1, 1, 1), stride=(0, 0, 0))
    a, b = (cute.make_tensor(tcgen05.int_to_smem_descriptor(Int64(0)), one) for _ in "ab")
    layout = mma.make_fragment_C(mma.partition_shape_C(op.shape_mnk[:2])).layout
    pointer = cute.make_ptr(op.acc_dtype, 0, cute.AddressSpace.tmem, assumed_align=16)
    accumulator = cute.make_tensor(pointer, layout)
    for field, value in zip((tcgen05.Field.NEGATE_A, tcgen05.Field.NEGATE_B), question["negate"], strict=True):
        if value:
            mma.set(field, True)
    if hasattr(op, "sf_dtype"):
        scales = cute.make_ptr(op.sf_dtype, 0, cute.AddressSpace.tmem, assumed_align=16)
        mma.set(tcgen05.Field.SFA, scales)
        mma.set(tcgen05.Field.SFB, scales)
    cute.gemm(mma, accumulator, a[None, None, 0], b[None, None, 0], accumulator)


def emit(questions: list[dict[str, Any]], out: Any) -> None:
    for index, question in enumerate(questions):
        if question["op"] == "instruction":
            multiply(question)
        else:
            word = builtin.unrealized_conversion_cast([Int64.mlir_type], [make_descriptor(question)])
            out[index] = Int64(word)


class Probe:
    """A kernel that holds every word of its questions as a constant."""

    def __init__(self, questions: list[dict[str, Any]]):
        self.questions = questions

    @cute.jit
    def __call__(self, address: Int64):
        self.kernel(address).launch(grid=(1, 1, 1), block=(128, 1, 1))

    @cute.kernel
    def kernel(self, address: Int64):
        pointer = cute.make_ptr(Int64, address, cute.AddressSpace.gmem)
        emit(self.questions, cute.make_tensor(pointer, cute.make_layout(len(self.questions))))


def refusal(question: dict[str, Any]) -> str | None:
    """The DSL's objection outside of any kernel but inside an IR context, or None."""
    CuTeDSL._get_dsl().envar.arch = question["arch"]
    with ir.InsertionPoint(ir.Module.create().body):
        try:
            make_descriptor(question).owner.verify()
        except Exception as error:  # the DSL has no one base of its errors
            return str(error).replace("\n", " ")[:200]
    return None


def words(questions: list[dict[str, Any]], arch: str) -> list[int]:
    """The constants of one kernel, in order of the questions."""
    CuTeDSL._get_dsl().envar.arch = arch
    with tempfile.TemporaryDirectory() as dump:
        options = f"--gpu-arch {arch} --keep-ptx --keep-cubin --dump-dir {dump}"
        ptx = cute.compile(Probe(questions), Int64(0), options=options).__ptx__
    stores = {int(m[1] or 0) // 8: int(m[2]) % (1 << 64) for m in STORE.finditer(ptx)}
    moves = {m[1]: int(m[2]) for m in MOVE.finditer(ptx)}
    uses = iter([m[1] for m in MMA.finditer(ptx)])
    found = []
    for index, question in enumerate(questions):
        if question["op"] == "instruction":
            use = next(uses)
            found.append((moves[use] if use.startswith("%") else int(use)) % (1 << 32))
        else:
            found.append(stores[index])
    if next(uses, None) is not None or len(stores) != sum(q["op"] != "instruction" for q in questions):
        raise AssertionError(f"the PTX of {arch} does not hold one word for each question")
    return found


def main() -> None:
    # The DSL prints notes of its own: keep the real stdout for answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    asked = list(map(json.loads, sys.stdin))
    with ir.Context(), ir.Location.unknown():
        objections = {q["id"]: refusal(q) for q in asked if q["op"] != "instruction"}
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for question in asked:
        if question["op"] == "instruction":
            groups.setdefault(("sm_100a", 2 if 2 in question["args"] else 1), []).append(question)
        elif objections[question["id"]] is None:
            groups.setdefault((question["arch"], 1), []).append(question)
        else:
            answers.write(json.dumps({"id": question["id"], "error": objections[question["id"]]}) + "\n")
    for (arch, _), questions in groups.items():
        for question, word in zip(questions, words(questions, arch), strict=True):
            answers.write(json.dumps({"id": question["id"], "answer": word}) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
