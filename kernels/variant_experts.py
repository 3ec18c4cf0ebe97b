"""A mixture-of-experts layer in two launches.

Gathered tokens times expert weights, and weighted rows scattered back.

    python kernels/variant_experts.py

Needs: dsl.

No copy of the tokens and no sorted copy of the results: the kernels read rows, and write them, through indices.
"""

from typing import Any

import numpy as np

from layoutgemm.kernels import IndexedRows, Ragged, RowIndices, Sm90Config, Sm90Plan
from layoutgemm.kernels.epilogue.chain import Activation, Epilogue, VectorScale

tokens, choices, experts, width, hidden = 50, 2, 4, 72, 136
rng = np.random.default_rng(0)
chosen = np.stack([rng.permutation(experts)[:choices] for _ in range(tokens)]).reshape(-1)
order = np.argsort(chosen, kind="stable").astype(np.int32)  # product rows by expert: token * choices + choice
offsets = np.append(0, np.cumsum(np.bincount(chosen, minlength=experts))).astype(np.int32)
gate, rows, m = rng.integers(1, 3, tokens * choices).astype(np.float32), (order // choices).astype(np.int32), len(order)
common: dict[str, Any] = {"batch": experts, "ragged": Ragged.of(experts), "b": "bf16:col", "c": "bf16"}
config = Sm90Config((64, 64), consumers=1, stages=3, loader="warpgroup")
up = Sm90Plan.derive(m, hidden, width, config=config, epilogue=Epilogue(Activation("relu")),
                     indexed=IndexedRows(gather=RowIndices(tokens)), **common)  # fmt: skip
down = Sm90Plan.derive(m, width, hidden, config=config, epilogue=Epilogue(VectorScale("m", "f32", "gate")),
                       indexed=IndexedRows(scatter=RowIndices(m)), **common)  # fmt: skip
print(f"{len(up.check().require()) + len(down.check().require())} checks hold")
x, w1, w2 = (rng.integers(-1, 2, s).astype(np.float32) for s in
             ((tokens, width), (experts, width, hidden), (experts, hidden, width)))  # fmt: skip
h = up.run(x, w1, given={"rows": rows, "offsets": offsets}, device="emulator").c
given = {"out_rows": order, "offsets": offsets, "gate": gate[order]}
y = down.run(h, w2, given=given, device="emulator").c.reshape(tokens, choices, width).sum(1)
half = [np.maximum(x[i // choices] @ w1[chosen[i]], 0) @ w2[chosen[i]] * gate[i] for i in range(m)]
wrong = int((np.abs(np.reshape(half, (tokens, choices, width)).sum(1) - y) > np.abs(y) / 64 + 2).sum())
print(f"emulated: {wrong} of {y.size} elements are wrong")
raise SystemExit(bool(wrong))
