"""The Blackwell GEMM kernel: derived, proven, compiled, emulated and explained without a GPU.

    python kernels/blackwell_gemm.py

Needs: dsl.

A CTA pair computes tiles of 256 rows. One warp loads, one issues the MMAs for both CTAs, and four store. Tensor memory
holds two accumulators, so that one tile is stored while the next is multiplied. The evidence is proofs, the compiler
and the emulator, which runs the compiled PTX in several event orders with its race checker. No GPU of this architecture
has run it.
"""

from dataclasses import replace

import numpy as np

from layoutgemm import Sm100Config
from layoutgemm import plan as planned
from layoutgemm.emulator.api import ORDERS
from layoutgemm.kernels.run.arrays import global_matrix
from layoutgemm.kernels.run.emulated import emulate_plan

m, n, k = 300, 72, 328
plan = planned(m, n, k, b="bf16:col", arch="blackwell", config=Sm100Config((256, 64), stages=3))
print(plan.explain(), "\n")
report = plan.check().require()
print(f"{len(report)} checks hold\n")

compiled = plan.compile()
used = compiled.resources
print(f"compiled for {plan.arch.name}: {used.registers} registers, {used.local_bytes} bytes of local memory")
try:
    code = compiled.sass()
    kinds = ("UTCHMMA", "UTCBAR", "UTMALDG", "LDTM", "UTMASTG")
    print(f"{len(code.instructions)} instructions: " + ", ".join(f"{code.count(kind)} {kind}" for kind in kinds), "\n")
except Exception as error:  # no nvdisasm
    print(f"not disassembled: {error}\n")

# Small integers, so that every sum is exact.
rng = np.random.default_rng(0)
a, b = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((m, k), (k, n)))
of_a, of_b = [global_matrix(operand, value, [], True) for operand, value in ((plan.a, a), (plan.b, b))]
want = plan.c.dtype.encode(a @ b)
for order in ORDERS[:2]:
    words, done = emulate_plan(plan, of_a, of_b, replace(order, tensor_strict=True), progress=False)
    done.raise_for_findings()
    if not np.array_equal(words, want):
        raise SystemExit(f"{int((words != want).sum())} elements of C are wrong")
print(f"{m}x{n}x{k} emulated in two orders of events: exact, nothing found")
