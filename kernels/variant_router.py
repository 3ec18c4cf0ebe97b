"""Top-1 routing of tokens to experts, without storing the logits.

It gives the largest logit of X @ W and its expert.

    python kernels/variant_router.py

Needs: dsl.

Of equal logits the lower expert wins, whatever the order in which lanes and tiles combine their tuples.
"""

import numpy as np

from layoutgemm.kernels import Sm90Config, Sm90Plan
from layoutgemm.kernels.epilogue.chain import Bias, Epilogue, RowReduce

tokens, experts, width = 200, 72, 136
epilogue = Epilogue(Bias(), RowReduce("argmax", "best"), stores_c=False)
plan = Sm90Plan.derive(
    tokens, experts, width, b="bf16:col", config=Sm90Config((64, 64), consumers=1), epilogue=epilogue
)
print(f"{len(plan.check().require())} checks hold; partial results take {plan.workspace} bytes")
used = plan.compile().resources
print(f"compiled for {plan.arch.name}: {used.registers} registers, {used.local_bytes} bytes of local memory")
rng = np.random.default_rng(0)
x, w, bias = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((tokens, width), (width, experts), experts))
found = plan.run(x, w, given={"bias": bias}, device="emulator").written
logits = x @ w + bias
ties = int(((logits == logits.max(1)[:, None]).sum(1) > 1).sum())
wrong = int((found["best_index"] != logits.argmax(1)).sum() + (found["best_value"] != logits.max(1)).sum())
print(f"emulated: {wrong} of {tokens} tokens go to a wrong expert; {ties} have more than one largest logit")
raise SystemExit(bool(wrong))
