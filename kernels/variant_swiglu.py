"""SwiGLU in one kernel, with both weights in one matrix. It computes C = silu(A @ W_gate) * (A @ W_up).

    python kernels/variant_swiglu.py

Needs: dsl.

Each tile of the weights is half gate and half up. A thread holds both accumulators and stores one product, and the
accumulators never go through memory. layoutgemm/kernels/operands/gated.py derives the tile of two halves.
"""

import numpy as np

from layoutgemm.kernels import Sm90Config, Sm90Plan

tokens, hidden, width = 200, 88, 136  # A is tokens x width, W_gate and W_up hidden x width each
config = Sm90Config((128, 64), stages=3)
plan = Sm90Plan.derive(tokens, hidden, width, b="bf16:col", c="f32", gated="silu", config=config)
print(plan.explain(), "\n")
print(f"{len(plan.check().require())} checks hold\n")
used = plan.compile().resources
print(f"compiled for {plan.arch.name}: {used.registers} registers, {used.local_bytes} bytes of local memory")
rng = np.random.default_rng(0)
a = rng.integers(-3, 4, (tokens, width)).astype(np.float32) / 8
weights = rng.integers(-3, 4, (2 * hidden, width)).astype(np.float32) / 8  # [W_gate; W_up]
gate, up = a @ weights[:hidden].T, a @ weights[hidden:].T
expected = gate / (1 + np.exp(-gate)) * up
error = np.abs(plan.run(a, weights.T, device="emulator").c - expected)
print(f"emulated: largest error {error.max():.2g} of values up to {np.abs(expected).max():.3g}")
raise SystemExit(bool((error > 3e-6 * np.abs(expected) + 3e-6).any()))
