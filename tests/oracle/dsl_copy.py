"""Answers questions about the CuTe DSL's copy atoms, without a GPU: JSON lines in, JSON lines out.

    {"id", "op": "warp", "name": "LdMatrix8x8x16bOp", "args": [transpose, count, unpack], "element": "Float16"}
    {"id", "op": "simt", "module": "nvgpu" | "cpasync", "name": "CopyUniversalOp", "args": [...], "element", "bits"}
        -> {"src": layout, "dst": layout, "threads": layout}, the thread-value maps
    {"id", "op": "ptx", "loads": [{keyword: "Enum.MEMBER"}], "stores": [...]}
        -> [[instruction names of the loads], [of the stores]], as one kernel compiled with them has them, for 128 bits

A layout travels as {"shape", "stride"} with nested lists. Run in a process of its own.
"""

# No postponed annotations: the DSL reads those of kernels as types, and `cute` is a local name here.
import json
import os
import sys
import tempfile
from typing import Any


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    os.environ.setdefault("CUTE_DSL_DUMP_DIR", tempfile.mkdtemp(prefix="dsl_copy"))
    import cutlass
    import cutlass.cute as cute
    from cutlass._mlir import ir
    from cutlass.cute import nvgpu
    from cutlass.cute.nvgpu import cpasync, warp
    from cutlass.cutlass_dsl import CuTeDSL

    def ints(value: Any) -> Any:
        return [ints(v) for v in value] if isinstance(value, tuple) else int(value)

    def encode(layout: Any) -> Any:
        return {"shape": ints(layout.shape), "stride": ints(layout.stride)}

    def member(text: Any) -> Any:
        if not isinstance(text, str):
            return text
        kind, _, name = text.partition(".")
        return getattr(getattr(nvgpu, kind), name)

    def maps(question: dict[str, Any]) -> Any:
        element = getattr(cutlass, question["element"])
        if question["op"] == "warp":
            atom = cute.make_copy_atom(getattr(warp, question["name"])(*question["args"]), element)
        else:
            module = {"nvgpu": nvgpu, "cpasync": cpasync}[question["module"]]
            op = getattr(module, question["name"])(*map(member, question["args"]))
            atom = cute.make_copy_atom(op, element, num_bits_per_copy=question["bits"])
        return {"src": encode(atom.layout_src_tv), "dst": encode(atom.layout_dst_tv), "threads": encode(atom.thr_id)}

    def ptx(question: dict[str, Any]) -> Any:
        loads, stores = ([{k: member(v) for k, v in row.items()} for row in question[x]] for x in ("loads", "stores"))

        @cute.kernel
        def body(a: cute.Tensor, b: cute.Tensor):
            for i in cutlass.range_constexpr(len(loads)):
                atom = cute.make_copy_atom(nvgpu.CopyG2ROp(), cutlass.Float32, num_bits_per_copy=128, **loads[i])
                r = cute.make_rmem_tensor(cute.make_layout(4), cutlass.Float32)
                cute.copy(atom, cute.local_tile(a, (4,), (i,)), r)
                plain = cute.make_copy_atom(nvgpu.CopyR2GOp(), cutlass.Float32, num_bits_per_copy=128)
                cute.copy(plain, r, cute.local_tile(b, (4,), (i,)))
            for i in cutlass.range_constexpr(len(stores)):
                r = cute.make_rmem_tensor(cute.make_layout(4), cutlass.Float32)
                r.fill(1.0 + i)
                atom = cute.make_copy_atom(nvgpu.CopyR2GOp(), cutlass.Float32, num_bits_per_copy=128, **stores[i])
                cute.copy(atom, r, cute.local_tile(b, (4,), (i + len(loads),)))

        @cute.jit
        def host(a: cute.Tensor, b: cute.Tensor):
            body(a, b).launch(grid=[1, 1, 1], block=[1, 1, 1])

        fake = cute.runtime.make_fake_compact_tensor(cutlass.Float32, (1024,), assumed_align=32)
        text = cute.compile(host, fake, fake, options="--gpu-arch sm_100a --keep-ptx").__ptx__
        words = [line.split()[0] for line in text.splitlines() if line.strip()]
        names = [word for word in words if word[:2] in ("ld", "st") and ".global" in word]
        at_store = [i for i, name in enumerate(names) if name.startswith("st")]
        return [
            [name for name in names if name.startswith("ld")],
            [names[i] for i in at_store[len(loads) :]],
        ]

    with ir.Context(), ir.Location.unknown():
        CuTeDSL._get_dsl().envar.arch = "sm_100a"
        module = ir.Module.create()
        compiles = []
        with ir.InsertionPoint(module.body):
            for line in sys.stdin:
                question = json.loads(line)
                if question["op"] == "ptx":
                    compiles.append(question)  # outside of this module: a kernel makes its own
                    continue
                try:
                    reply = {"id": question["id"], "answer": maps(question)}
                except Exception as error:  # whatever the DSL says, it is an answer about this question only
                    reply = {"id": question["id"], "error": f"{type(error).__name__}: {error}"[:300]}
                print(json.dumps(reply), file=answers, flush=True)
    for question in compiles:
        try:
            reply = {"id": question["id"], "answer": ptx(question)}
        except Exception as error:
            reply = {"id": question["id"], "error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(reply), file=answers, flush=True)


if __name__ == "__main__":
    main()
