"""Rotary embedding behind a projection. Columns j and j + 64 of each head of 128 turn by an angle of their row.

    python kernels/variant_rotary.py

Needs: dsl.

Cosines and sines lie in one matrix of C's shape, as the columns that they turn: [cos, sin] for each head.
"""

import numpy as np

from layoutgemm.kernels import Sm90Config, Sm90Plan
from layoutgemm.kernels.epilogue.chain import ColumnGroup, Epilogue, EpilogueOperand

tokens, heads, head, width = 136, 2, 128, 72
turn = EpilogueOperand("turn", "mn", "f32")
rotary = ColumnGroup.of(
    lambda x, i, j, ops, t: (x[0] * t[0] - x[1] * t[1], x[0] * t[1] + x[1] * t[0]), turn, distance=head // 2
)
plan = Sm90Plan.derive(
    tokens, heads * head, width, b="bf16:col", c="f32", config=Sm90Config((128, 128)), epilogue=Epilogue(rotary)
)
checks = plan.check().require()
print(f"{len(checks)} checks hold; {next(check.statement for check in checks if check.name == 'column groups')}")
used = plan.compile().resources
print(f"compiled for {plan.arch.name}: {used.registers} registers, {used.local_bytes} bytes of local memory")
rng = np.random.default_rng(0)
x, w = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((tokens, width), (width, heads * head)))
angle = np.arange(tokens)[:, None] / 10000 ** (np.arange(head // 2) / (head // 2))
table = np.tile(np.concatenate([np.cos(angle), np.sin(angle)], 1), heads).astype(np.float32)
found = plan.run(x, w, given={"turn": table}, device="emulator").c
y = (x @ w).reshape(tokens, heads, 2, head // 2)
z = (y[:, :, 0] + 1j * y[:, :, 1]) * np.exp(1j * angle)[:, None]
error = np.abs(found - np.stack([z.real, z.imag], 2).reshape(found.shape)).max()
print(f"emulated: {heads} heads of {tokens} tokens, largest error {error:.2g}")
raise SystemExit(bool(error > 1e-4))
