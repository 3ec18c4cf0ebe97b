"""Cross-entropy of logits X @ W.T over a vocabulary, without storing the logits.

    python kernels/variant_cross_entropy.py

Needs: dsl.

loss = log_sum_exp(row) - row[label]: the label's logit is the sum of the row where the column is the label.
"""

import numpy as np

from layoutgemm.kernels import Sm90Config, Sm90Plan
from layoutgemm.kernels.epilogue.chain import Custom, Epilogue, EpilogueOperand, RowReduce

tokens, words, width = 72, 330, 64
picked = Custom.of(
    lambda x, i, j, ops, label: ops.where(ops.float(j) == label, x, 0.0), EpilogueOperand("label", "m", "f32")
)
epilogue = Epilogue(RowReduce("log_sum_exp", "all"), picked, RowReduce("sum", "own"), stores_c=False)
plan = Sm90Plan.derive(tokens, words, width, b="bf16:col", config=Sm90Config((128, 128)), epilogue=epilogue)
print(f"{len(plan.check().require())} checks hold; partial results take {plan.workspace} bytes")
used = plan.compile().resources
print(f"compiled for {plan.arch.name}: {used.registers} registers, {used.local_bytes} bytes of local memory")
rng = np.random.default_rng(0)
x, w = (rng.integers(-3, 4, shape).astype(np.float32) / 4 for shape in ((tokens, width), (words, width)))
labels = rng.integers(0, words, tokens)
found = plan.run(x, w.T, given={"label": labels.astype(np.float32)}, device="emulator").written
logits = x.astype(np.float64) @ w.T
expected = np.log(np.exp(logits - logits.max(1)[:, None]).sum(1)) + logits.max(1) - logits[np.arange(tokens), labels]
error = np.abs(found["all"] - found["own"] - expected).max()
print(f"emulated: largest error of the loss {error:.2g}, of values up to {expected.max():.3g}")
raise SystemExit(bool(error > 1e-5))
