"""int8 with a scale for each row of A and each column of B. Exact sums in int32 are scaled and rounded once to bf16.

    python kernels/variant_int8.py

Needs: dsl.
"""

import numpy as np

from layoutgemm.kernels import Sm90Config, Sm90Plan
from layoutgemm.kernels.epilogue.chain import Epilogue, VectorScale

m, n, k = 136, 72, 208
epilogue = Epilogue(VectorScale("m", "f32", "row"), VectorScale("n", "f32", "column"))
config = Sm90Config((64, 64), consumers=1, stages=3)
plan = Sm90Plan.derive(m, n, k, a="i8", b="i8:col", c="bf16", config=config, epilogue=epilogue)
print(f"{len(plan.check().require())} checks hold")
used = plan.compile().resources
print(f"compiled for {plan.arch.name}: {used.registers} registers, {used.local_bytes} bytes of local memory")
rng = np.random.default_rng(0)
x, w = rng.standard_normal((m, k)), rng.standard_normal((k, n))
row, column = np.abs(x).max(1) / 127, np.abs(w).max(0) / 127
a, b = np.rint(x / row[:, None]).astype(np.int8), np.rint(w / column).astype(np.int8)
given = {"row": row.astype(np.float32), "column": column.astype(np.float32)}
c = plan.run(a, b, given=given, device="emulator").c
exact = (a.astype(np.int64) @ b) * given["row"][:, None].astype(float) * given["column"]
wrong = int((np.abs(c - exact) > np.abs(exact) * 2.0**-8).sum())
error = np.linalg.norm(c - x @ w) / np.linalg.norm(x @ w)
print(f"emulated: {wrong} of {c.size} elements are wrong; quantised to int8, the product is off by {error:.1%}")
raise SystemExit(bool(wrong))
