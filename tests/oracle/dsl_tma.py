"""The CuTe DSL's derivations for TMA copies, without jit and without a GPU: JSON lines in, JSON lines out.

Each line of stdin is {"id", "gmem", "smem", "tile", "type", "swizzle", "multicast", "op"}; layouts are {"shape",
"stride"}, nested lists; `swizzle` is B of S<B,4,3>. Each line of stdout is {"id", "answer"} or {"id", "error"}:

    box     extents of the box of one instruction, innermost dimension first, from the type of the atom
    bits    bits that one call of the copy moves
    tensor  text of the TMA tensor's layout: coordinate of the global tensor -> coordinates of the instruction
"""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Any

_TYPE = re.compile(r'copy_bits = (\d+), tma_gbasis = <"([^:]*):')
_TENSOR = re.compile(r" o (.*)>$")


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    import cutlass
    import cutlass.cute as cute
    from cutlass._mlir import ir
    from cutlass.cute.nvgpu import cpasync
    from cutlass.cutlass_dsl import CuTeDSL

    CuTeDSL._get_dsl().envar.arch = "sm_90a"
    types = {"bf16": cutlass.BFloat16, "f32": cutlass.Float32, "u8": cutlass.Uint8}

    def tree(value: Any) -> Any:
        return tuple(tree(v) for v in value) if isinstance(value, list) else value

    def layout(value: Any) -> Any:
        return cute.make_layout(tree(value["shape"]), stride=tree(value["stride"]))

    def box(text: str) -> list[int]:
        """((64,4),8) -> [256, 8]: a nested extent is one dimension."""
        extents = eval(text, {"__builtins__": {}})
        extents = extents if isinstance(extents, tuple) else (extents,)
        return [size(extent) for extent in extents]

    def size(extent: Any) -> int:
        out = 1
        for part in extent if isinstance(extent, tuple) else (extent,):
            out *= size(part) if isinstance(part, tuple) else part
        return out

    def answer(question: dict[str, Any]) -> dict[str, Any]:
        pointer = cute.make_ptr(types[question["type"]], cutlass.Int64(0), cute.AddressSpace.gmem, assumed_align=16)
        tensor = cute.make_tensor(pointer, layout(question["gmem"]))
        smem = layout(question["smem"])
        if question.get("swizzle"):
            smem = cute.make_composed_layout(cute.make_swizzle(question["swizzle"], 4, 3), 0, smem)
        blocks = question.get("multicast", 1)
        op = {
            "load": cpasync.CopyBulkTensorTileG2SOp if blocks == 1 else cpasync.CopyBulkTensorTileG2SMulticastOp,
            "store": cpasync.CopyBulkTensorTileS2GOp,
            "reduce": cpasync.CopyReduceBulkTensorTileS2GOp,
        }[question.get("op", "load")]()
        atom, coordinates = cpasync.make_tiled_tma_atom(op, tensor, smem, tree(question["tile"]), blocks)
        found = _TYPE.search(str(atom._trait.value.type))
        if found is None:
            raise ValueError(str(atom._trait.value.type))
        return {
            "box": box(found[2]),
            "bits": int(found[1]),
            "tensor": _TENSOR.search(str(coordinates))[1],
        }

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
