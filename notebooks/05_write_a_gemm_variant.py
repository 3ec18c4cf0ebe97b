# ---
# jupyter:
#   kernelspec: {name: python3, display_name: Python 3, language: python}
# ---

# %% [markdown]
# # Write a GEMM variant
#
# Needs: dsl
#
# This notebook writes a GEMM variant without a GPU: define the new part, derive and check the rest, compile, and run
# the PTX in the emulator. It also shows the effect of a mistake. The variant computes C = relu(A B + bias)^2, and also
# writes the activation's input for its gradient.

# %%
from dataclasses import replace

import numpy as np

from layoutgemm import Sm90Config, Sm90Plan, smem_tile
from layoutgemm.checks import why_not
from layoutgemm.errors import PlanError
from layoutgemm.kernels.epilogue.chain import Aux, Bias, Custom, Epilogue

# %% [markdown]
# ## The new part
#
# The epilogue is a function of one element: x is the accumulator at row i and column j. It is traced once into an
# expression, so a Python `if` raises an error.

# %%
try:
    Custom.of(lambda x, i, j, ops: x * x if x > 0 else 0.0)
except PlanError as error:
    print(error)

squared_relu = Custom.of(lambda x, i, j, ops: ops.where(x > 0, x * x, 0.0))
epilogue = Epilogue(Bias(), Aux("bf16"), squared_relu)
assert epilogue.reference([[-2.0, 3.0]], bias=[1.0, 1.0]).c.tolist() == [[0.0, 16.0]]

# %% [markdown]
# ## The derived parts
#
# Boxes, swizzles, descriptors, stages, mbarriers with arrive counts and bytes, load and store roles, and the
# shared-memory map are derived. The sizes are ragged on purpose.

# %%
m, n, k = 136, 88, 200
plan = Sm90Plan.derive(
    m, n, k, a="bf16", b="bf16:col", c="f32", config=Sm90Config((128, 64), stages=3), epilogue=epilogue
)
print(plan.explain())

# %% [markdown]
# ## The checks
#
# Each line is a statement with its method. Pipeline statements hold for any number of K tiles.

# %%
report = plan.check()
assert report and len(report.require()) > 20
print(report)

# %% [markdown]
# ## A mistake before compilation
#
# Give A's tile the 64-byte swizzle and leave the rest. Two checks fail, each with a failing element, and a third names
# the changed field:

# %%
wrong = replace(plan, a=replace(plan.a, smem=smem_tile((128, 64), "bf16", "K", "64B")))
failures = [str(check) for check in wrong.check().failures]
assert len(failures) == 3 and "element (mn, k) = (1, 0) read at byte 144, held at 64" in failures[1]
print("\n".join(failures))

# %% [markdown]
# An impossible configuration is refused with the arithmetic and with the largest that fits:

# %%
try:
    Sm90Plan.derive(m, n, k, b="bf16:col", config=Sm90Config((128, 256), stages=5))
except PlanError as error:
    assert "4 fit" in str(error)
    print(error)
print(why_not("sm_90a", (128, 256, 64), 4, warpgroups=2, epilogue=(128, 256)).failures[0].witness)

# %% [markdown]
# ## The compiled kernel
#
# The plan compiles for `sm_90a` without a GPU. Then PTX and host function run on the CPU, with tensor cores, TMA and
# barriers. Asynchronous operations complete as late as possible, and a race checker reports every unordered access.
# Small integers are exact in bf16 and f32, so C must be equal bit by bit.

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
# The same epilogue applies to torch tensors of any shape. The heuristic or your own measurement chooses the
# configuration: `layoutgemm.matmul(a, b, epilogue=epilogue, given={"bias": bias, "aux": before})`.
#
# To change more than the epilogue, start from one of the ladder's programs, `kernels/hopper_*.py`. Each is one file
# with its plan, checks, kernel and emulated run. `kernels/variant_swiglu.py` changes the tile of B.
