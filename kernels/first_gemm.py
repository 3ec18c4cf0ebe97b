"""The first GEMM on Hopper: one warpgroup, a 64x64 tile of C, tensor copies, wgmma, an explicit store of the fragment.

    python kernels/first_gemm.py            # on a GPU where there is one, else in the NumPy executor

What the kernel does is in layoutgemm/kernels/teaching/device/kernel.py; this program shows what it is made of and that
it is right.

One block computes one tile. Thread 0 asks for the first k tiles of A and B, each into a stage of its own; then, k tile
by k tile, all 128 threads wait for the stage's bytes, multiply, and wait for the product. With a single buffer, thread
0 would now overwrite it, knowing only that *its own* warp's product is done: nothing says that the other three warps
have read their operands. So every k tile ends with a barrier of the whole block, and only then is its stage asked for
again.
"""

import numpy as np

from layoutgemm.kernels import GemmPlan, error_bound

m, n, k = 200, 136, 264
plan = GemmPlan.derive(m, n, k, a="bf16", b="bf16:col", c="f32")
print(plan.explain())
plan.check().require()

rng = np.random.default_rng(0)
# bf16 values, so that float64 multiplies the same numbers
a = plan.a.dtype.decode(plan.a.dtype.encode(rng.standard_normal((m, k), dtype=np.float32)))
b = plan.b.dtype.decode(plan.b.dtype.encode(rng.standard_normal((k, n), dtype=np.float32)))
result = plan.run(a, b)
error = np.abs(np.asarray(result) - a.astype(np.float64) @ b.astype(np.float64))
share = float((error / error_bound(plan, a, b)).max())
print(f"\nran on {result.ran_on}: largest error {error.max():.3g}, {share:.3f} of what f32 accumulation may leave")
raise SystemExit(share > 1)
