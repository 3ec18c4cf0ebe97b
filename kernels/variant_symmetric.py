"""The symmetric product A A^T with half of the tiles. Each tile off the diagonal is stored twice, once transposed.

    python kernels/variant_symmetric.py

Needs: dsl.
"""

import numpy as np

from layoutgemm import Sm90Config, Sm90Plan

n, k = 328, 72
config = Sm90Config((64, 128), consumers=1, cluster=(2, 1), stages=2)  # clusters of 128 x 128 elements
plan = Sm90Plan.derive(n, n, k, b="bf16:col", config=config, order="symmetric")
print(plan.explain(), f"\n\n{len(plan.check().require())} checks hold: {plan.order.schedule.prove().method}\n")
used = plan.compile().resources
print(f"compiled for {plan.arch.name}: {used.registers} registers, {used.local_bytes} bytes of local memory")
a = np.random.default_rng(0).integers(-1, 2, (n, k)).astype(np.float32)
found = plan.run(a, a.T, device="emulator").c
wrong = int((found != a @ a.T).sum())
print(f"emulated: {wrong} of {found.size} elements are wrong")
raise SystemExit(bool(wrong))
