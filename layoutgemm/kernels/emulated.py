"""Plans in the emulator: the compiled kernel and its compiled host function, executed on the CPU and race-checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ..emulator.api import Emulation, emulate_host
from ..emulator.host import HostFunction, HostParameter
from ..emulator.machine import Policy
from .compile import CompiledGemm, Plan, compile_plan
from .plan import GemmPlan
from .run import padded_leading
from .silicon import GlobalMatrix

_C_TYPES = {"address": "int64_t", "size": "int32_t", "stride": "int64_t"}
_HOSTS: dict[str, HostFunction] = {}


def emulate_plan(
    plan: GemmPlan, a: GlobalMatrix, b: GlobalMatrix, policy: Policy | None = None, progress: bool = True
) -> tuple[npt.NDArray[Any], Emulation]:
    """Run the plan's compiled kernel: the raw bits of C, (M, N), and what the emulator found.

    a, b  the operands as they lie in global memory
    """
    words = plan.c.dtype.encode(np.full((plan.m, plan.n), np.nan, np.float32))
    # A matrix of one line has no pitch; the tensor map wants one that it takes.
    leading = [
        padded_leading(operand.dtype, matrix.extents[0]) if matrix.extents[1] == 1 else matrix.leading
        for operand, matrix in ((plan.a, a), (plan.b, b))
    ]
    sizes = (plan.m, plan.n, plan.k, *leading, plan.n)
    return words, emulate_launch(plan, (a.bits, b.bits, words, *sizes), policy, progress)


def emulate_launch(
    plan: Plan, arguments: tuple[Any, ...], policy: Policy | None = None, progress: bool = True
) -> Emulation:
    """Run the plan's compiled kernel on the arguments of `CompiledGemm.launch`, arrays in place of addresses."""
    return emulate_host(linked(plan), arguments, policy=policy, progress=progress)


def linked(plan: Plan) -> HostFunction:
    """The plan's compiled host function, linked; its kernels are with it."""
    return host_of(compile_plan(plan))


def host_of(compiled: CompiledGemm) -> HostFunction:
    """A compiled kernel's host function, linked, with the parameters that its plan names."""
    host = _HOSTS.get(compiled.symbol)
    if host is None:
        parameters = host_parameters(compiled.plan.parameters)
        host = _HOSTS[compiled.symbol] = HostFunction.link(compiled.object, compiled.ptx, parameters)
    return host


def host_parameters(parameters: Mapping[str, str]) -> list[HostParameter]:
    """A kernel's parameters, name -> kind, as its compiled host function has them; the stream comes last."""
    scalars = [HostParameter(name, "scalar", _C_TYPES[kind]) for name, kind in parameters.items()]
    return [*scalars, HostParameter("stream", "stream")]


def execute_compiled(plan: GemmPlan, a: GlobalMatrix, b: GlobalMatrix) -> npt.NDArray[np.float32]:
    """C as float32 values. Raises EmulatorError with the report when anything was found."""
    words, emulation = emulate_plan(plan, a, b)
    emulation.raise_for_findings()
    return np.asarray(plan.c.dtype.decode(words), dtype=np.float32)
