"""The first GEMM on Hopper: one warpgroup and a 64x64 tile per CTA. It has TMA loads, wgmma, and direct stores.

    python kernels/first_gemm.py            # on a GPU if there is one, else in the NumPy executor

layoutgemm/kernels/teaching/device/kernel.py is the kernel. This program shows its parts and checks its result.

One CTA computes one tile. Thread 0 loads the first K tiles of A and B, each into its own stage. For each K tile all 128
threads wait for the stage's bytes, multiply, and wait for the wgmma. wgmma.wait_group covers only the own warp, and the
other three warps may still read their operands. So a CTA barrier ends every K tile, and thread 0 refills the stage only
after that barrier.
"""

import numpy as np

from layoutgemm.kernels import TeachingPlan, error_bound

m, n, k = 200, 136, 264
plan = TeachingPlan.derive(m, n, k, a="bf16", b="bf16:col", c="f32")
print(plan.explain())
plan.check().require()

rng = np.random.default_rng(0)
# bf16 values, so that float64 multiplies the same numbers
a = plan.a.dtype.decode(plan.a.dtype.encode(rng.standard_normal((m, k), dtype=np.float32)))
b = plan.b.dtype.decode(plan.b.dtype.encode(rng.standard_normal((k, n), dtype=np.float32)))
result = plan.run(a, b)
error = np.abs(np.asarray(result) - a.astype(np.float64) @ b.astype(np.float64))
share = float((error / error_bound(plan, a, b)).max())
print(f"\nran on {result.ran_on}: largest error {error.max():.3g}, {share:.3f} of the f32 error bound")
raise SystemExit(share > 1)
