"""A Triton kernel in the emulator. It is compiled without a GPU, checked for races, and compared with NumPy.

python kernels/emulate_triton.py

Triton's PTX takes the kernel's arguments and two pointers to scratch memory, which are 0 where it needs none. A block
has 32 threads for each warp, and the shared memory that the metadata names.

Needs: triton.
"""

import numpy as np
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from layoutgemm import emulate_ptx

ROWS, COLUMNS, BLOCK = 3, 100, 128


@triton.jit
def softmax(x, out, columns, BLOCK: tl.constexpr):
    """One row a program."""
    at = tl.arange(0, BLOCK)
    row = tl.load(x + tl.program_id(0) * columns + at, at < columns, other=float("-inf"))
    powers = tl.exp(row - tl.max(row, 0))
    tl.store(out + tl.program_id(0) * columns + at, powers / tl.sum(powers, 0), at < columns)


signature = {"x": "*fp32", "out": "*fp32", "columns": "i32", "BLOCK": "constexpr"}
compiled = triton.compile(
    ASTSource(softmax, signature, {"BLOCK": BLOCK}),
    target=GPUTarget("cuda", 90, 32),
    options={"num_warps": 4},
)
x = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)
out = np.zeros_like(x)
threads, shared = 32 * compiled.metadata.num_warps, compiled.metadata.shared
done = emulate_ptx(compiled.asm["ptx"], grid=ROWS, block=threads, smem=shared, args=[x, out, COLUMNS, 0, 0])
expected = np.exp(x - x.max(axis=1, keepdims=True))
expected /= expected.sum(axis=1, keepdims=True)
assert done.ok, done.report()
assert np.abs(out - expected).max() < 1e-6
print(f"softmax of {ROWS} rows is right; {done.report().splitlines()[-1]}")
