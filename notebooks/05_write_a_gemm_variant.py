# ---
# jupyter:
#   kernelspec: {name: python3, display_name: Python 3, language: python}
# ---

# %% [markdown]
# # Write a GEMM variant
#
# Needs: dsl
#
# A kernel of your own at a desk without a GPU: say what is new, have everything else derived and checked, compile it,
# run what the compiler made, and see what a mistake looks like. The variant: C = relu(A B + bias)^2, which also
# writes what went into the activation, for its gradient. It takes a minute to write, so the rest of the page is about
# trust.

# %%
from dataclasses import replace

import numpy as np

from layoutgemm import PlanError, Sm90Config, Sm90Plan, smem_tile
from layoutgemm.checks import why_not
from layoutgemm.kernels.epilogue.chain import Aux, Bias, Custom, Epilogue

# %% [markdown]
# ## What is new
#
# A function of one element: x is the sum at row i and column j. It is traced once into an expression, so Python's own
# `if` has no meaning in it, and says so.

# %%
try:
    Custom.of(lambda x, i, j, ops: x * x if x > 0 else 0.0)
except PlanError as error:
    print(error)

squared_relu = Custom.of(lambda x, i, j, ops: ops.where(x > 0, x * x, 0.0))
epilogue = Epilogue(Bias(), Aux("bf16"), squared_relu)
assert epilogue.reference(np.array([[-2.0, 3.0]]), bias=[1.0, 1.0]).c.tolist() == [[0.0, 16.0]]

# %% [markdown]
# ## What is derived
#
# Boxes, swizzles, descriptors, stages, barriers with their arrival counts and bytes, who loads and who stores, shared
# memory to the byte. Sizes are ragged on purpose.

# %%
m, n, k = 136, 88, 200
plan = Sm90Plan.derive(
    m, n, k, a="bf16", b="bf16:col", c="f32", config=Sm90Config((128, 64), stages=3), epilogue=epilogue
)
print(plan.explain())

# %% [markdown]
# ## What is checked
#
# Each line a statement with its method; those on the pipeline hold for any number of k tiles.

# %%
report = plan.check()
assert report and len(report.require()) > 20
print(report)

# %% [markdown]
# ## A mistake, before it is compiled
#
# Somebody gives A's tile the 64-byte swizzle and leaves the rest. Two checks fail, each with the element that shows
# it, and a third names the field that was exchanged:

# %%
wrong = replace(plan, a=replace(plan.a, smem=smem_tile((128, 64), "bf16", "K", "64B")))
failures = [str(check) for check in wrong.check().failures]
assert len(failures) == 3 and "element (mn, k) = (1, 0) read at byte 144, held at 64" in failures[1]
print("\n".join(failures))

# %% [markdown]
# And a configuration that cannot be is refused with the arithmetic, and with what would fit:

# %%
try:
    Sm90Plan.derive(m, n, k, b="bf16:col", config=Sm90Config((128, 256), stages=5))
except PlanError as error:
    assert "4 fit" in str(error)
    print(error)
print(why_not("sm_90a", (128, 256, 64), 4, warpgroups=2, epilogue=(128, 256)).failures[0].witness)

# %% [markdown]
# ## What the compiler made
#
# The plan is compiled for `sm_90a`; no GPU is needed for that. Then PTX and host function run on the CPU: tensor
# cores, copy engine and barriers with asynchronous work as late as it may be, under a checker that reports every
# access that nothing orders. Small integers are exact in bf16 and f32, so C has to be equal, not near.

# %%
used = plan.compile().resources
assert used.local_bytes == 0  # no spills
print(used)

rng = np.random.default_rng(0)
a, b = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((m, k), (k, n)))
bias = rng.integers(-8, 9, n).astype(np.float32)
result = plan.run(a, b, given={"bias": bias}, device="emulator")

expected = epilogue.reference(a @ b, bias=bias)
assert np.array_equal(result.c, expected.c)
assert np.array_equal(result.written["aux"], expected.written["aux"])
print(f"{result.ran_on}: {result.c.shape} equal in every element, nothing found")

# %% [markdown]
# ## On a GPU
#
# The same epilogue goes to torch tensors, at any shape, with the configuration that a heuristic or your own
# measurement chooses: `layoutgemm.matmul(a, b, epilogue=epilogue, given={"bias": bias, "aux": before})`.
#
# A variant that changes more than the end of the tile starts from one of the ladder's programs,
# `kernels/hopper_*.py`: each is one file with its own plan, checks, kernel and emulated run.
# `kernels/variant_swiglu.py` changes the tile of B.
