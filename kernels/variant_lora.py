"""A low-rank update of weights in one kernel. It computes C = X @ W + (X @ D) @ U, in one accumulator.

    python kernels/variant_lora.py

Needs: dsl.

The loop over K runs over the K tiles of X and W, and then over those of H = X @ D and U, whose K is the rank. Both
pairs share boxes, stages and barriers, and have tensor maps of their own: layoutgemm/kernels/operands/pair.py.
"""

import numpy as np

from layoutgemm.kernels import Sm90Config, Sm90Plan

tokens, hidden, width, rank = 200, 88, 136, 24  # X is tokens x width, W width x hidden
config = Sm90Config((128, 64), stages=3)
plan = Sm90Plan.derive(tokens, hidden, width, b="bf16:col", c="f32", pair=rank, config=config)
print(f"{plan.explain()}\n\n{len(plan.check().require())} checks hold\n")
used = plan.compile().resources
print(f"compiled for {plan.arch.name}: {used.registers} registers, {used.local_bytes} bytes of local memory")
rng = np.random.default_rng(0)
shapes = (tokens, width), (width, hidden), (tokens, rank), (rank, hidden)
x, w, h, u = (rng.integers(-3, 4, shape).astype(np.float32) for shape in shapes)
found = plan.run(x, w, given={"a2": h, "b2": u}, device="emulator").c
wrong = np.argwhere(found != x @ w + h @ u)
print(f"emulated: {found.size - len(wrong)} of {found.size} elements are exact")
raise SystemExit(bool(len(wrong)))
