"""Answers questions about tcgen05 atoms and tensor memory with the CuTe DSL: JSON lines in, JSON lines out.

Run as a program, in a process of its own. Each line of stdin is {"id", "op", "arch", ...}; each line of stdout is
{"id", "answer"} or {"id", "error"}, flushed at once. A layout travels as {"shape", "stride"} with nested lists.
Operations:

    mma    {"cls", "args", "tiles", "vector"}: an MMA op class of the DSL and its arguments. Answers the thread-value
           layouts A, B, C; the accumulator's layout and columns in tensor memory for one tile and for `tiles` of M and
           N; A's layout where it comes from tensor memory; with `vector`, the layouts and columns of the scale factors
           for `depth` instructions along K
    copy   {"cls", "args", "element"}: a copy op class. Answers its src and dst thread-value layouts
    alloc  {"n"}: the columns that the DSL allocates for an accumulator of 128 x n
    chunk  {"vector"}: the layout of a chunk of scale factors in shared memory

Arguments are words: "bf16" a type, "cta:2", "from:tmem", "major:K", "x16", "pack", "unpack", "none" (no packing),
"reduce:MAX", "tid"; lists are tuples.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from typing import Any

_TYPES = {
    "f32": "Float32",
    "f16": "Float16",
    "bf16": "BFloat16",
    "e4m3": "Float8E4M3FN",
    "e5m2": "Float8E5M2",
    "e3m2": "Float6E3M2FN",
    "e2m3": "Float6E2M3FN",
    "e2m1": "Float4E2M1FN",
    "ue8m0": "Float8E8M0FNU",
    "ue4m3": "Float8E4M3FN",
    "i32": "Int32",
    "u32": "Uint32",
    "i8": "Int8",
    "u8": "Uint8",
}


def main() -> None:
    # The DSL prints notes of its own: keep the real stdout for answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    import cutlass
    import cutlass.cute as cute
    from cutlass import memory
    from cutlass._mlir import ir
    from cutlass.cute.nvgpu import OperandMajorMode, tcgen05
    from cutlass.cute.nvgpu.tcgen05 import copy as copies
    from cutlass.cute.nvgpu.tcgen05 import mma as products
    from cutlass.cutlass_dsl import CuTeDSL
    from cutlass.utils import blockscaled_layout

    warnings.simplefilter("ignore")
    environment = CuTeDSL._get_dsl().envar

    def word(value: Any) -> Any:
        if isinstance(value, list):
            return tuple(word(v) for v in value)
        if not isinstance(value, str):
            return value
        name, _, rest = value.partition(":")
        if name == "cta":
            return tcgen05.CtaGroup.ONE if rest == "1" else tcgen05.CtaGroup.TWO
        if name == "from":
            return tcgen05.OperandSource.SMEM if rest == "smem" else tcgen05.OperandSource.TMEM
        if name == "major":
            return getattr(OperandMajorMode, rest)
        if name in _TYPES:
            return getattr(cutlass, _TYPES[name])
        if name.startswith("x") and name[1:].isdigit():
            return getattr(tcgen05.Repetition, name)
        if name == "reduce":
            return getattr(tcgen05.TmemLoadRedOp, rest)
        return {
            "none": tcgen05.Pack.NONE,
            "pack": tcgen05.Pack.PACK_16b_IN_32b,
            "unpack": tcgen05.Unpack.UNPACK_32b_IN_16b,
            "tid": products.SparseMetadataFormat.TID,
        }[name]

    def ints(value: Any) -> Any:
        return [ints(v) for v in value] if isinstance(value, tuple) else int(value)

    def encode(layout: Any) -> Any:
        return {"shape": ints(layout.shape), "stride": ints(layout.stride)}

    def columns(tensor: Any) -> int:
        return int(tcgen05.find_tmem_tensor_col_offset(tensor))

    def mma(question: dict[str, Any]) -> dict[str, Any]:
        op = getattr(products, question["cls"])(*map(word, question["args"]))
        tiled = cute.make_tiled_mma(op)
        m, n, k = op.shape_mnk
        out: dict[str, Any] = {"A": encode(tiled.tv_layout_A), "B": encode(tiled.tv_layout_B)}
        out["C"] = encode(tiled.tv_layout_C)
        tiles = question["tiles"]
        for name, extent in (("one", (m, n)), ("many", (m * tiles[0], n * tiles[1]))):
            fragment = tiled.make_fragment_C(tiled.partition_shape_C(extent))
            out[name] = {"layout": encode(fragment.layout), "columns": columns(fragment)}
        if op.a_src == tcgen05.OperandSource.TMEM:
            fragment = tiled.make_fragment_A(tiled.partition_shape_A((m, k)))
            out["a"] = {"layout": encode(fragment.layout), "columns": columns(fragment)}
        if question.get("vector"):
            vector, tiler = question["vector"], (m, n, k * question["depth"])
            prefix = "sm103_" if k == 96 else ""
            for name in "ab":
                shared = getattr(blockscaled_layout, f"{prefix}make_smem_layout_sf{name}")(tiled, tiler, vector, 1)
                stage = cute.slice_(shared, (None, None, None, 0))
                layout = getattr(blockscaled_layout, f"make_tmem_layout_sf{name}")(tiled, tiler, vector, stage)
                pointer = cute.make_ptr(op.sf_dtype, 0, cute.AddressSpace.tmem)
                out[f"scale_{name}"] = {
                    "layout": encode(layout),
                    "columns": columns(cute.make_tensor(pointer, layout)),
                }
        return out

    def copy(question: dict[str, Any]) -> dict[str, Any]:
        op = getattr(copies, question["cls"])(*map(word, question["args"]))
        atom = cute.make_copy_atom(op, word(question["element"]))
        return {"src": encode(atom.layout_src_tv), "dst": encode(atom.layout_dst_tv)}

    def alloc(question: dict[str, Any]) -> int:
        pointer = cute.make_ptr(cutlass.Float32, 0, cute.AddressSpace.tmem)
        layout = cute.make_layout((128, question["n"]), stride=(65536, 1))
        return int(memory.get_num_tmem_alloc_cols(cute.make_tensor(pointer, layout)))

    def chunk(question: dict[str, Any]) -> dict[str, Any]:
        return encode(blockscaled_layout.BlockScaledBasicChunk(question["vector"]).layout)

    operations = {"mma": mma, "copy": copy, "alloc": alloc, "chunk": chunk}
    with ir.Context(), ir.Location.unknown():
        for line in sys.stdin:
            question = json.loads(line)
            environment.arch = question.get("arch", "sm_100a")
            module = ir.Module.create()
            with ir.InsertionPoint(module.body):
                try:
                    reply = {"id": question["id"], "answer": operations[question["op"]](question)}
                except Exception as error:  # whatever the DSL says, it is an answer about this question only
                    reply = {"id": question["id"], "error": f"{type(error).__name__}: {error}"[:300]}
            answers.write(json.dumps(reply) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
