"""Grouped GEMM in one launch, without padding.

It computes rows offsets[e] to offsets[e + 1] of A times matrix e of B.

    python kernels/variant_grouped.py

Needs: dsl.
"""

import numpy as np

from layoutgemm.kernels import Ragged, Sm90Config, Sm90Plan

n, k, sizes = 72, 104, (70, 0, 1, 64, 0, 33)  # rows of each expert; only the kernel reads the group offsets
offsets = np.cumsum([0, *sizes]).astype(np.int32)
m, experts = sum(sizes), len(sizes)
config = Sm90Config((64, 64), consumers=1, stages=3)
plan = Sm90Plan.derive(m, n, k, batch=experts, b="bf16:col", c="f32", config=config, ragged=Ragged.of(experts))
print(plan.explain(), f"\n\n{len(plan.check().require())} checks hold\n")
used = plan.compile().resources
print(f"compiled for {plan.arch.name}: {used.registers} registers, {used.local_bytes} bytes of local memory")
rng = np.random.default_rng(0)
a, b = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((m, k), (experts, k, n)))
expected = np.concatenate([a[offsets[e] : offsets[e + 1]] @ b[e] for e in range(experts)])
wrong = int((plan.run(a, b, given={"offsets": offsets}, device="emulator").c != expected).sum())
print(f"emulated: {wrong} of {expected.size} elements are wrong")
raise SystemExit(bool(wrong))
