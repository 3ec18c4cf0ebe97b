"""Block-scaled fp8 by 128-wide blocks of K.

C = sum over K blocks of scale_a[i, kb] * scale_b[j // 128, kb] * (A @ B).

    python kernels/variant_scaled.py

Needs: dsl.
"""

import numpy as np

from layoutgemm.kernels import Promoted, Sm90Config, Sm90Plan, Table

m, n, k = 200, 136, 328
mainloop = Promoted.of(  # traced once; each thread applies it to its f32 accumulators after every K block
    lambda total, product, scale_a, scale_b: total + scale_a * scale_b * product,
    Table("scale_a", "m"), Table("scale_b", "n", 128), depth=128,
)  # fmt: skip
plan = Sm90Plan.derive(m, n, k, a="e4m3", b="e4m3:col", c="f32", config=Sm90Config((128, 128)), mainloop=mainloop)
print(plan.explain(), f"\n\n{len(plan.check().require())} checks hold\n")
used = plan.compile().resources
print(f"compiled for {plan.arch.name}: {used.registers} registers, {used.local_bytes} bytes of local memory")
rng = np.random.default_rng(0)
a, b = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((m, k), (k, n)))
scales = {"scale_a": rng.random((m, 3), np.float32), "scale_b": rng.random((2, 3), np.float32)}
error = np.abs(plan.run(a, b, given=scales, device="emulator").c - mainloop.reference(a, b, **scales)).max()
print(f"emulated: largest error {error:.2g}")
raise SystemExit(bool(error > 1e-3))
