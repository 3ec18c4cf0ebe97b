"""Plans in the emulator: the compiled kernel and its compiled host function, executed on the CPU and race-checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..emulator.api import Emulation, emulate_host
from ..emulator.host import HostFunction, HostParameter
from ..emulator.machine import Policy
from .compile import compile_plan
from .plan import GemmPlan
from .run import padded_leading
from .silicon import GlobalMatrix

# The launch's parameters, as `CompiledGemm.launch` takes them.
PARAMETERS = [
    *[HostParameter(name, "scalar", "int64_t") for name in ("a", "b", "c")],
    *[HostParameter(name, "scalar", "int32_t") for name in ("m", "n", "k")],
    *[HostParameter(name, "scalar", "int64_t") for name in ("lda", "ldb", "ldc")],
    HostParameter("stream", "stream"),
]
_HOSTS: dict[str, HostFunction] = {}


def emulate_plan(
    plan: GemmPlan, a: GlobalMatrix, b: GlobalMatrix, policy: Policy | None = None, progress: bool = True
) -> tuple[npt.NDArray[Any], Emulation]:
    """Run the plan's compiled kernel: the raw bits of C, (M, N), and what the emulator found.

    a, b  the operands as they lie in global memory
    """
    compiled = compile_plan(plan)
    host = _HOSTS.get(compiled.symbol)
    if host is None:
        host = _HOSTS[compiled.symbol] = HostFunction.link(compiled.object, compiled.ptx, PARAMETERS)
    words = plan.c.dtype.encode(np.full((plan.m, plan.n), np.nan, np.float32))
    # A matrix of one line has no pitch; the tensor map wants one that it takes.
    leading = [
        padded_leading(operand.dtype, matrix.extents[0]) if matrix.extents[1] == 1 else matrix.leading
        for operand, matrix in ((plan.a, a), (plan.b, b))
    ]
    sizes = (plan.m, plan.n, plan.k, *leading, plan.n)
    return words, emulate_host(host, (a.bits, b.bits, words, *sizes), policy=policy, progress=progress)


def execute_compiled(plan: GemmPlan, a: GlobalMatrix, b: GlobalMatrix) -> npt.NDArray[np.float32]:
    """C as float32 values. Raises EmulatorError with the report when anything was found."""
    words, emulation = emulate_plan(plan, a, b)
    emulation.raise_for_findings()
    return np.asarray(plan.c.dtype.decode(words), dtype=np.float32)
