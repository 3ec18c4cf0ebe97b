"""Answers layout-algebra questions with the CuTe DSL, without jit and without a GPU: JSON lines in, JSON lines out.

Run as a program, in a process of its own: the DSL does not refuse ill-formed algebra and sometimes takes the process
down with it. Each line of stdin is {"id", "op", "args"}; each line of stdout is {"id", "answer"} or {"id", "error"},
flushed at once, so that whoever started this knows which question killed it. A layout travels as
{"shape": ..., "stride": ...} with nested lists, an int tuple as nested lists, a tiler as {"tiler": [...]}. A swizzled
layout comes as {"swizzle": [B, M, S], "offset", "layout"} and leaves as {"text"}.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def main() -> None:
    # The DSL prints notes of its own: keep the real stdout for answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    import cutlass.cute as cute
    from cutlass._mlir import ir

    def ints(value: Any) -> Any:
        if isinstance(value, tuple):
            return [ints(v) for v in value]
        return None if value is None else int(value)

    def tree(value: Any) -> Any:
        return tuple(tree(v) for v in value) if isinstance(value, list) else value

    def decode(value: Any) -> Any:
        if isinstance(value, dict) and "swizzle" in value:
            return cute.make_composed_layout(
                cute.make_swizzle(*value["swizzle"]), value["offset"], decode(value["layout"])
            )
        if isinstance(value, dict) and "shape" in value:
            return cute.make_layout(tree(value["shape"]), stride=tree(value["stride"]))
        if isinstance(value, dict):
            return tuple(decode(v) for v in value["tiler"])
        return tree(value)

    def encode(value: Any) -> Any:
        if hasattr(value, "inner"):
            return {"text": str(value)}
        if hasattr(value, "shape") and hasattr(value, "stride"):
            return {"shape": ints(value.shape), "stride": ints(value.stride)}
        return ints(value)

    operations = {
        "call": lambda layout, coord: layout(coord),
        "size": lambda layout: cute.size(layout),
        "cosize": lambda layout: cute.cosize(layout),
        "coalesce": lambda layout: cute.coalesce(layout),
        "composition": cute.composition,
        "complement": cute.complement,
        "right_inverse": cute.right_inverse,
        "left_inverse": cute.left_inverse,
        "logical_divide": cute.logical_divide,
        "zipped_divide": cute.zipped_divide,
        "tiled_divide": cute.tiled_divide,
        "flat_divide": cute.flat_divide,
        "logical_product": cute.logical_product,
        "zipped_product": cute.zipped_product,
        "tiled_product": cute.tiled_product,
        "flat_product": cute.flat_product,
        "blocked_product": cute.blocked_product,
        "raked_product": cute.raked_product,
        "max_common_layout": cute.max_common_layout,
        "max_common_vector": cute.max_common_vector,
        "tile_to_shape": cute.tile_to_shape,
        "ordered": lambda shape, order: cute.make_ordered_layout(shape, order),
        "filter": cute.filter,
        "slice": lambda layout, coord: cute.slice_(layout, coord),
        "dice": lambda layout, coord: cute.dice(layout, coord),
        "recast": lambda layout, new, old: cute.recast_layout(new, old, layout),
    }

    with ir.Context(), ir.Location.unknown():
        for line in sys.stdin:
            question = json.loads(line)
            module = ir.Module.create()
            with ir.InsertionPoint(module.body):
                try:
                    answer = operations[question["op"]](*(decode(a) for a in question["args"]))
                    reply = {"id": question["id"], "answer": encode(answer)}
                except Exception as error:  # whatever the DSL says, it is an answer about this question only
                    reply = {"id": question["id"], "error": f"{type(error).__name__}: {error}"[:300]}
            answers.write(json.dumps(reply) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
