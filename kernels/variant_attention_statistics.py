"""Maximum and log-sum-exp of rows of attention scores, without storing the scores.

    python kernels/variant_attention_statistics.py

Needs: dsl.

Scores above the diagonal are masked. Lanes of a row combine their tuples by shuffles, tiles by a second launch.
"""

import numpy as np

from layoutgemm.kernels import Sm90Config, Sm90Plan
from layoutgemm.kernels.epilogue.chain import Custom, Epilogue, RowReduce

queries, keys, depth = 136, 200, 64
masked = Custom.of(lambda x, i, j, ops: ops.where(j <= i, x / 8.0, float("-inf")))
epilogue = Epilogue(masked, RowReduce("softmax", "row"), stores_c=False)
plan = Sm90Plan.derive(queries, keys, depth, b="bf16:col", config=Sm90Config((128, 64)), epilogue=epilogue)
print(f"{len(plan.check().require())} checks hold; partial results take {plan.workspace} bytes")
used = plan.compile().resources
print(f"compiled for {plan.arch.name}: {used.registers} registers, {used.local_bytes} bytes of local memory")
rng = np.random.default_rng(0)
q, k = (rng.integers(-3, 4, shape).astype(np.float32) / 2 for shape in ((queries, depth), (keys, depth)))
found = plan.run(q, k.T, given={}, device="emulator").written
scores = np.where(np.tri(queries, keys, dtype=bool), q.astype(np.float64) @ k.T / 8, -np.inf)
most, exponentials = scores.max(1), np.log(np.exp(scores - scores.max(1)[:, None]).sum(1)) + scores.max(1)
errors = [np.abs(found["row_max"] - most).max(), np.abs(found["row_log_sum_exp"] - exponentials).max()]
print(f"emulated: largest errors {errors[0]:.2g} of the maximum, {errors[1]:.2g} of the log-sum-exp")
raise SystemExit(bool(errors[0] > 0 or errors[1] > 1e-5))
