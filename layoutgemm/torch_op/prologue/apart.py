"""The faster of two ways for a function of A, by estimates. Torch before the product, or the kernel in it.

    in the kernel    each element once for each tile of columns, by mma.sync by each warp along N too
    by torch         a pass over A in float32 for each operation, and two more for its types

The first grows with N, the second does not. The costs were fitted to `benchmarks/results/prologue_h200.json`, and of
mma.sync to benchmarks/NOTES.md, "Functions of neighbouring columns": one H200. Other GPUs are taken to compute by their
multiprocessors, and to read memory at a quarter of an H200's rate.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ...kernels.operands.prologue import Prologue
from ...kernels.plan import tile_count
from ...kernels.sm80.plan import Sm80Plan
from ...kernels.sm90.plan import Sm90Plan

# Seconds of one evaluation on a GPU of 132 multiprocessors: a scale of rows took 0.026e-12, SiLU 0.23e-12, RMSNorm's
# function, which reads a vector along K, 0.16e-12 more than the product alone.
_OPERATION, _SPECIAL, _ALONG_K, _BY_MMA_SYNC = 0.02e-12, 0.1e-12, 0.13e-12, 0.3e-12
_SPECIALS = {"exp": 1, "log": 1, "sqrt": 1, "rsqrt": 1, "tanh": 2, "erf": 2, "normal": 2, "sigmoid": 2, "div": 1}
_MULTIPROCESSORS = 132
_MEMORY = {"sm_90a": 4.0e12}  # bytes a second that torch's passes move
_LEAST_MEMORY = 1.0e12
_PASS = 4e-6  # seconds of a launch by torch
_WIDE = 4  # bytes of an element in float32
_AHEAD = 0.8  # of the kernel's time: torch's way takes memory, and the estimates are off by some percent


class Ways(NamedTuple):
    """Both estimates, in seconds, and the memory in bytes of torch's way."""

    in_kernel: float
    by_torch: float
    memory: int

    @property
    def apart(self) -> bool:
        """True if torch computes the function first. Where it takes a fifth less, since its way needs memory."""
        return self.by_torch < _AHEAD * self.in_kernel

    def __str__(self) -> str:
        if self.in_kernel == math.inf:
            return "a's function by torch first: by mma.sync no kernel has one of two pairs"
        first, other = self.in_kernel * 1e6, self.by_torch * 1e6
        said = f"in the kernel {first:.0f} us more, by torch first {other:.0f} us (estimates)"
        return f"a's function by torch first: {said}" if self.apart else f"a's function {said}"


def ways_of(plan: Sm80Plan | Sm90Plan, prologue: Prologue, multiprocessors: int) -> Ways:
    """Both ways of a function of A, for a plan that computes it.

    >>> from layoutgemm.kernels import plan
    >>> silu = Prologue.of(lambda x, i, k, ops: x * ops.sigmoid(x))
    >>> wide, narrow = (plan(4096, n, 4096, b="bf16:col", prologue=silu) for n in (65536, 4096))
    >>> print(ways_of(wide, silu, 132))
    a's function by torch first: in the kernel 1031 us more, by torch first 133 us (estimates)
    >>> ways_of(narrow, silu, 132).apart
    False
    """
    operations = prologue.operations
    along_k = sum(operand.axis == "k" for operand in prologue.operands)
    each = len(operations) * _OPERATION + sum(_SPECIALS.get(name, 0) for name in operations) * _SPECIAL
    times = tile_count(plan.n, plan.tile_c[1])
    if isinstance(plan, Sm80Plan):
        each, times = each + _BY_MMA_SYNC, times * plan.config.warps[1]
    elements = plan.m * plan.k * plan.batch
    in_kernel = elements * times * (each + along_k * _ALONG_K) * _MULTIPROCESSORS / multiprocessors
    size = plan.a.dtype.bytes
    moved = 2 * (size + _WIDE) + len(operations) * 2 * _WIDE  # to float32, each operation, and back
    passes = 2 + len(operations)
    rate = _MEMORY.get(plan.arch.name, _LEAST_MEMORY)
    return Ways(in_kernel, passes * _PASS + moved * elements / rate, elements * (size + 2 * _WIDE))
