"""RMSNorm's mean square of each row behind a product. It computes C = A @ B + residual, and 1 / rms of its rows.

    python kernels/variant_rms_norm.py

Needs: dsl.

The reduction's last function makes 1 / rms of the sum, so that the next kernel scales by it.
"""

import numpy as np

from layoutgemm.kernels import Sm90Config, Sm90Plan
from layoutgemm.kernels.epilogue.chain import Epilogue, Reduction, Residual, RowReduce

tokens, width, k = 136, 200, 72
inverse_rms = Reduction.of(
    lambda x, i, j, ops: x * x, lambda a, b, ops: a[0] + b[0], [0.0], lambda a, ops: ops.rsqrt(a[0] / width + 1e-6)
)
epilogue = Epilogue(Residual("f32", beta=None), RowReduce(inverse_rms, "inverse_rms"))
plan = Sm90Plan.derive(tokens, width, k, b="bf16:col", c="f32", config=Sm90Config((128, 64)), epilogue=epilogue)
print(f"{len(plan.check().require())} checks hold; partial results take {plan.workspace} bytes")
used = plan.compile().resources
print(f"compiled for {plan.arch.name}: {used.registers} registers, {used.local_bytes} bytes of local memory")
rng = np.random.default_rng(0)
a, b, d = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((tokens, k), (k, width), (tokens, width)))
result, c = plan.run(a, b, given={"d": d}, device="emulator"), a.astype(np.float64) @ b + d
error = np.abs(result.written["inverse_rms"] * np.sqrt((c**2).mean(1) + 1e-6) - 1).max()
print(f"emulated: C {'equal' if np.array_equal(result.c, c) else 'different'}, relative error of 1 / rms {error:.2g}")
raise SystemExit(bool(error > 1e-6 or not np.array_equal(result.c, c)))
