"""Causal scores A B^T: the tiles of C's lower triangle alone, in one launch. Tiles above the diagonal are never taken.

    python kernels/variant_causal.py

Needs: dsl.
"""

import numpy as np

from layoutgemm import Sm90Config, Sm90Plan

n, k = 264, 72  # queries and keys; length of a head
config = Sm90Config((64, 128), consumers=1, stages=2)
plan = Sm90Plan.derive(n, n, k, b="bf16:col", c="f32", config=config, order="lower")
print(plan.explain(), f"\n\n{len(plan.check().require())} checks hold: {plan.order.schedule.prove().method}\n")
used = plan.compile().resources
print(f"compiled for {plan.arch.name}: {used.registers} registers, {used.local_bytes} bytes of local memory")
rng = np.random.default_rng(0)
queries, keys = (rng.integers(-3, 4, (n, k)).astype(np.float32) for _ in range(2))
out = np.full((n, n), -np.inf, np.float32)  # what no tile stores stays as it is
plan.run(queries, keys.T, out=out, device="emulator")
lower = np.tril(np.ones((n, n), bool))
wrong = int((out != queries @ keys.T)[lower].sum())
left = float(np.isneginf(out)[~lower].mean())
print(f"emulated: {wrong} of {lower.sum()} elements are wrong; {left:.0%} of those above the diagonal are untouched")
raise SystemExit(bool(wrong) or left < 0.5)
