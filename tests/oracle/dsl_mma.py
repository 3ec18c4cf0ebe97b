"""Reports the CuTe DSL's matrix instructions of a warp and a warpgroup, without a GPU. It needs no jit.

Run as a program, in a process of its own: JSON lines in, JSON lines out. The answer to {"id", "op": "classes"} is the
names of the operation classes that the DSL's modules define. The answer to {"id", "op": "rows", "class": name} is a row
for every combination of arguments that the class accepts. A row has the arguments and the thread-value layouts of A, B,
C and, where there are block scales, SFA and SFB (there a value counts elements along K, not factors).
"""

from __future__ import annotations

import functools
import inspect
import itertools
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

# Short names on both sides of the pipe -> the DSL's classes.
TYPES = {
    "f64": "Float64", "f32": "Float32", "tf32": "TFloat32", "f16": "Float16", "bf16": "BFloat16",
    "e4m3": "Float8E4M3FN", "e5m2": "Float8E5M2", "e3m2": "Float6E3M2FN", "e2m3": "Float6E2M3FN",
    "e2m1": "Float4E2M1FN", "ue8m0": "Float8E8M0FNU", "i8": "Int8", "u8": "Uint8", "i32": "Int32",
}  # fmt: skip
INPUTS = ("f32", "tf32", "f16", "bf16", "e4m3", "e5m2", "e2m1", "i8", "u8")
ACCUMULATORS = ("f16", "f32", "i32")


def main() -> None:
    # The DSL prints notes of its own: keep the real stdout for answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    import cutlass
    import cutlass.cute as cute
    from cutlass._mlir import ir
    from cutlass.cute import nvgpu
    from cutlass.cute.nvgpu import warp, warpgroup
    from cutlass.cutlass_dsl import CuTeDSL
    from cutlass.utils import blackwell_helpers

    dsl = CuTeDSL._get_dsl()
    types = {short: getattr(cutlass, long) for short, long in TYPES.items() if hasattr(cutlass, long)}
    warp_module, group_module = sys.modules[warp.MmaF16BF16Op.__module__], sys.modules[warpgroup.MmaF8Op.__module__]

    def ints(value: Any) -> Any:
        return [ints(v) for v in value] if isinstance(value, tuple) else int(value)

    def encode(layout: Any) -> dict[str, Any]:
        return {"shape": ints(layout.shape), "stride": ints(layout.stride)}

    def classes() -> list[str]:
        found = []
        for prefix, module in (("warp", warp_module), ("warpgroup", group_module)):
            for name, value in vars(module).items():
                own = inspect.isclass(value) and value.__module__ == module.__name__
                if own and name.endswith("Op") and "_make_trait" in vars(value):
                    found.append(f"{prefix}.{name}")
        return sorted([*found, "universal.MmaUniversalOp"])

    def accepts(build: Any) -> bool:
        try:
            build()
        except Exception:  # a combination outside what the class takes
            return False
        return True

    def candidates(name: str) -> Iterator[tuple[dict[str, Any], Any]]:
        """Arguments as JSON, and a function that builds the operation."""
        if name.startswith("warpgroup."):
            kind = getattr(group_module, name.partition(".")[2])
            majors = {"K": nvgpu.OperandMajorMode.K, "MN": nvgpu.OperandMajorMode.MN}
            sources = {"smem": warpgroup.OperandSource.SMEM, "rmem": warpgroup.OperandSource.RMEM}
            mixed = len(inspect.signature(kind.__init__).parameters) == 8
            for a, b, c in itertools.product(INPUTS, INPUTS if mixed else ("",), ACCUMULATORS):
                inputs = (types[a], types[b], types[c]) if mixed else (types[a], types[c])

                def build(n: int, source: str, a_major: str, b_major: str, inputs: Any = inputs) -> Any:
                    return kind(*inputs, (64, n), sources[source], majors[a_major], majors[b_major])

                if not accepts(lambda build=build: build(64, "smem", "K", "K")):
                    continue
                # Majors change no map: all of them at one N, and every N with both K-major.
                for n, source, a_major, b_major in itertools.product(range(8, 257, 8), sources, majors, majors):
                    if n == 64 or a_major == b_major == "K":
                        row = {"n": n, "a": a, "b": b or a, "c": c, "a_source": source, "majors": [a_major, b_major]}
                        yield row, functools.partial(build, n, source, a_major, b_major)
            return
        if name == "universal.MmaUniversalOp":
            for a in ("f64", "f32", "f16", "bf16", "i8", "i32"):
                yield {"a": a, "c": a}, lambda a=a: nvgpu.MmaUniversalOp(types[a])
            return
        kind = getattr(warp_module, name.partition(".")[2])
        shapes = [(16, 8, k) for k in (4, 8, 16, 32, 64)] + [(8, 8, 4), (8, 8, 16)]
        if name == "warp.MmaTF32Op":
            for shape in shapes:
                yield {"shape": shape, "a": "tf32", "b": "tf32", "c": "f32"}, lambda shape=shape: kind(shape)
        elif name == "warp.MmaMXF8F6F4Op":
            for a, b in itertools.product(types, types):
                row = {"a": a, "b": b, "c": "f32", "scale": "ue8m0"}
                yield row, lambda a=a, b=b: kind(types[a], types[b], types["f32"], types["ue8m0"])
        elif "MX" in name:
            for a, scale in itertools.product(types, ("ue8m0", "e4m3")):
                row = {"a": a, "b": a, "c": "f32", "scale": scale}
                yield row, lambda a=a, scale=scale: kind(types[a], types["f32"], types[scale])
        else:
            tail = (warp_module.SparseMetadataFormat.TID,) if "Sparse" in name else ()
            for a, c, shape in itertools.product(types, ACCUMULATORS, shapes):
                row = {"shape": shape, "a": a, "b": a, "c": c}
                yield row, lambda a=a, c=c, shape=shape: kind(types[a], types[c], shape, *tail)

    def rows(name: str) -> list[dict[str, Any]]:
        if name not in classes():
            raise KeyError(name)
        found: list[dict[str, Any]] = []
        dsl.envar.arch = "sm_120a" if "MX" in name else "sm_90a"
        for row, build in candidates(name):
            try:
                op = build()
                tiled = cute.make_tiled_mma(op)
            except Exception:  # an argument outside what the class takes
                continue
            row["shape"] = ints(tiled.shape_mnk)
            row["threads"] = encode(tiled.thr_id)
            for operand in "ABC":
                row[operand] = encode(getattr(tiled, f"tv_layout_{operand}"))
            if "scale" in row:
                row["vector"] = int(op.sf_vec_size)
                whole = cute.make_tiled_mma(op, permutation_mnk=op.shape_mnk)
                row["SFA"] = encode(blackwell_helpers.get_layoutSFA_TV(whole))
                row["SFB"] = encode(blackwell_helpers.get_layoutSFB_TV(whole))
            found.append(row)
        return found

    with ir.Context(), ir.Location.unknown():
        for line in sys.stdin:
            question = json.loads(line)
            module = ir.Module.create()
            with ir.InsertionPoint(module.body):
                try:
                    answer = classes() if question["op"] == "classes" else rows(question["class"])
                    reply = {"id": question["id"], "answer": answer}
                except Exception as error:  # whatever the DSL says, it is an answer about this question only
                    reply = {"id": question["id"], "error": f"{type(error).__name__}: {error}"[:300]}
            answers.write(json.dumps(reply) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
