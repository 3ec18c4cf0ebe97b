"""Two products of one A in one kernel. It computes C = f(A @ B0, A @ B1), for weights that lie apart.

    python kernels/variant_dual.py

Needs: dsl.

Each tile of A is loaded once. A thread holds both sums of an element, and applies the traced function, which takes a
number of the launch. layoutgemm/kernels/operands/combined.py derives the tile of several matrices.
"""

import numpy as np

from layoutgemm.kernels import Sm90Config, Sm90Plan
from layoutgemm.kernels.operands.combined import Combined

tokens, hidden, width = 200, 88, 136  # A is tokens x width, each B width x hidden
both = Combined.of(lambda gate, up, ops, s: gate * ops.sigmoid(gate) * up + s * up, numbers=("s",))
config = Sm90Config((128, 64), stages=3)
plan = Sm90Plan.derive(tokens, hidden, width, b="bf16:col", c="f32", gated=both, config=config)
print(f"{plan.explain()}\n\n{len(plan.check().require())} checks hold\n")
used = plan.compile().resources
print(f"compiled for {plan.arch.name}: {used.registers} registers, {used.local_bytes} bytes of local memory")
rng = np.random.default_rng(0)
a, b0, b1 = (rng.integers(-3, 4, s).astype(np.float32) / 8 for s in ((tokens, width), *[(width, hidden)] * 2))
expected = a @ b0 / (1 + np.exp(-(a @ b0))) * (a @ b1) + 0.5 * (a @ b1)
error = np.abs(plan.run(a, b0, given={"b1": b1, "s": 0.5}, device="emulator").c - expected)
print(f"emulated: largest error {error.max():.2g} of values up to {np.abs(expected).max():.3g}")
raise SystemExit(bool((error > 3e-6 * np.abs(expected) + 3e-6).any()))
