"""Answers questions about tiled products and tiled copies with the CuTe DSL: JSON lines in, JSON lines out.

Run as a program, in a process of its own (see runner.py). A question is {"id", "mma": {...}, "copy": {...}, ...} and an
answer a dictionary of layouts. A layout travels as {"shape", "stride"} with nested lists, a basis stride as
{"e": [value, mode, ...]}, a partition as [layout, where the thread begins].

    mma   {"family": "warp" or "wgmma", "shape": [m, n, k], "atoms": layout, "permutation": [tiler or null] * 3}
    copy  {"op": "ldmatrix", "stmatrix" or "universal", "count"/"transpose" or "bits",
           "make": "tv" with "thr" and "val", "A"/"B"/"C"/"C_atom" of the mma, "S"/"D" of the copy under "of"}
    extent, thread     what is partitioned, and whose part of it
    fragment           a layout that the copy retiles
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from typing import Any


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    os.environ["CUTE_DSL_ARCH"] = "sm_90a"
    warnings.simplefilter("ignore")
    import cutlass
    import cutlass.cute as cute
    from cutlass._mlir import ir
    from cutlass.cute.nvgpu import CopyUniversalOp, OperandMajorMode, warp, warpgroup

    def ints(value: Any) -> Any:
        if isinstance(value, tuple):
            return [ints(v) for v in value]
        if isinstance(value, cute.ScaledBasis):
            return {"e": [int(value.value), *map(int, value.mode)]}
        if hasattr(value, "shape") and hasattr(value, "stride"):
            return {"shape": ints(value.shape), "stride": ints(value.stride)}
        return None if value is None else int(value)

    def tree(value: Any) -> Any:
        return tuple(tree(v) for v in value) if isinstance(value, list) else value

    def layout(value: Any) -> Any:
        if isinstance(value, dict):
            return cute.make_layout(tree(value["shape"]), stride=tree(value["stride"]))
        return value

    def part(tensor: Any) -> Any:
        return [ints(tensor.layout), ints(tensor.iterator)]

    def make_mma(q: dict[str, Any]) -> Any:
        shape = tuple(q["shape"])
        if q["family"] == "warp":
            op = warp.MmaF16BF16Op(cutlass.BFloat16, cutlass.Float32, shape)
        else:
            k = OperandMajorMode.K
            op = warpgroup.MmaF16BF16Op(cutlass.BFloat16, cutlass.Float32, shape, warpgroup.OperandSource.SMEM, k, k)
        return cute.make_tiled_mma(op, layout(q["atoms"]), tuple(layout(p) for p in q["permutation"]))

    def make_copy(q: dict[str, Any], mma: Any) -> Any:
        if q["op"] == "universal":
            atom = cute.make_copy_atom(CopyUniversalOp(), cutlass.BFloat16, num_bits_per_copy=q["bits"])
        else:
            op = {"ldmatrix": warp.LdMatrix8x8x16bOp, "stmatrix": warp.StMatrix8x8x16bOp}[q["op"]]
            atom = cute.make_copy_atom(op(q["transpose"], q["count"]), cutlass.BFloat16)
        make = q["make"]
        if make == "tv":
            return cute.make_tiled_copy_tv(atom, layout(q["thr"]), layout(q["val"]))
        if make in "SD":
            return {"S": cute.make_tiled_copy_S, "D": cute.make_tiled_copy_D}[make](atom, make_copy(q["of"], mma))
        return getattr(cute, f"make_tiled_copy_{make}")(atom, mma)

    def answer(q: dict[str, Any]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        mma = make_mma(q["mma"]) if "mma" in q else None
        thread = q.get("thread", 0)
        if mma is not None and "copy" not in q:
            m, n, k = q["extent"]
            out["atom"] = {"A": ints(mma.tv_layout_A), "B": ints(mma.tv_layout_B), "C": ints(mma.tv_layout_C)}
            out["tv"] = {x: ints(getattr(mma, f"tv_layout_{x}_tiled")) for x in "ABC"}
            out["threads"] = ints(mma.thr_layout_vmnk)
            out["tile"] = [ints(mma.get_tile_size(i)) for i in range(3)]
            extents = {"A": (m, k), "B": (n, k), "C": (m, n)}
            for x, extent in extents.items():
                out[f"shape_{x}"] = ints(getattr(mma, f"partition_shape_{x}")(extent))
                tensor = cute.make_identity_tensor((*extent, 3))
                out[f"part_{x}"] = part(getattr(mma.get_slice(thread), f"partition_{x}")(tensor))
                row_major = cute.make_layout((*extent, 2), stride=(extent[1], 1, extent[0] * extent[1]))
                out[f"thrfrg_{x}"] = ints(getattr(mma, f"_thrfrg_{x}")(row_major))
        if "copy" in q:
            copy = make_copy(q["copy"], mma)
            out["atom"] = {"src": ints(copy.layout_src_tv), "dst": ints(copy.layout_dst_tv)}
            out["tv"] = ints(copy.layout_tv_tiled)
            out["tile"] = [ints(cute.size(t)) for t in copy.tiler_mn]
            out["tiler"] = [ints(t) for t in copy.tiler_mn]
            out["src"], out["dst"] = ints(copy.layout_src_tv_tiled), ints(copy.layout_dst_tv_tiled)
            tensor = cute.make_identity_tensor((*q["extent"], 3))
            one = copy.get_slice(thread)
            out["part_src"], out["part_dst"] = part(one.partition_S(tensor)), part(one.partition_D(tensor))
            if "fragment" in q:
                registers = cute.make_rmem_tensor(layout(q["fragment"]), cutlass.BFloat16)
                out["retile"] = ints(copy.retile(registers).layout)
        return out

    with ir.Context(), ir.Location.unknown():
        for line in sys.stdin:
            question = json.loads(line)
            module = ir.Module.create()
            with ir.InsertionPoint(module.body):
                try:
                    reply = {"id": question["id"], "answer": answer(question)}
                except Exception as error:  # whatever the DSL says, it is an answer about this question only
                    reply = {"id": question["id"], "error": f"{type(error).__name__}: {error}"[:300]}
            answers.write(json.dumps(reply) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
