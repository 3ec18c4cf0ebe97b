"""Metadata of a kernel: enough to build it again in another process."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import NamedTuple

from cutlass.cute.typing import Numeric
from cutlass.operators.metadata import (
    BLASDesignMetadata,
    DenseTensorConstraints,
    GemmOperandsMetadata,
    OperandConstraints,
)
from cutlass.operators.mma import AmpereMma, BlackwellTcgen05Mma, HopperWgmma, MmaInstruction

from ..dtypes import dtype
from ..kernels.compile.compiler import kernel_facts
from ..kernels.compile.worker import Kernel
from ..kernels.derive import Operand
from ..kernels.epilogue.chain import Epilogue
from ..kernels.plan import GemmPlan
from ..kernels.planner import plan
from ..kernels.sm80.choose import Sm80Choice
from ..kernels.sm80.plan import Sm80Plan
from ..kernels.sm90.plan import Sm90Plan
from ..kernels.sm100.plan import Sm100Config, Sm100Plan
from .api import api

TMA_BYTES = 16  # to which TMA needs addresses and pitches aligned


class BlackwellKernel(NamedTuple):
    """A kernel of tcgen05, as `Kernel` is of the others: configuration, types and orders, batch, epilogue, target."""

    config: Sm100Config
    operands: tuple[str, str, str]
    batched: bool = False
    epilogue: Epilogue | None = None
    code: str = "sm_100a"

    def plan(self, m: int, n: int, k: int, batch: int) -> GemmPlan:
        """The kernel's plan for these sizes."""
        a, b, c = self.operands
        return plan(
            m, n, k, batch=batch, arch=self.code, a=a, b=b, c=c, config=self.config, epilogue=self.epilogue,
        )  # fmt: skip


class PlannedKernel(NamedTuple):
    """A kernel of sm_90a with tables or groups, by its plan."""

    planned: Sm90Plan

    @property
    def operands(self) -> tuple[str, str, str]:
        """Types and orders of A, B and C."""
        made = self.planned
        return f"{made.a.dtype.name}:{made.a.order}", f"{made.b.dtype.name}:{made.b.order}", f"{made.c.dtype.name}:row"


AnyKernel = Kernel | BlackwellKernel


@dataclass(kw_only=True)
class ChosenDesign(BLASDesignMetadata):
    """The design of an operator, from which it is built again.

    code    what the kernel is compiled for: "sm_90a"
    kernel  configuration, types and orders of the operands, batch
    why     the sentence of the choice
    """

    code: str
    kernel: AnyKernel | PlannedKernel
    why: str = ""


def design_of(
    kernel: AnyKernel | PlannedKernel, code: str, made: Sm90Plan | Sm80Plan | Sm100Plan, why: str
) -> ChosenDesign:
    """The design of a kernel, whose plan is `made`."""
    mma: type[MmaInstruction] = BlackwellTcgen05Mma if isinstance(kernel, BlackwellKernel) else HopperWgmma
    if isinstance(kernel, Kernel) and isinstance(kernel.choice, Sm80Choice):
        mma = AmpereMma
    cluster = (*getattr(made.config, "cluster", (1, 1)), 1)
    return ChosenDesign(
        mma_instruction_type=mma, tile_shape=tuple(made.tile), cluster_shape=cluster,
        num_smem_stages=made.stages, code=code, kernel=kernel, why=why,
    )  # fmt: skip


def name_of(kernel: AnyKernel | PlannedKernel, code: str, made: GemmPlan, kind: str) -> str:
    """An operator's name: of all that decides the code of its kernel, the same in every process."""
    text = "_".join([text.replace(":", "-") for text in kernel.operands])
    digest = hashlib.sha256(json.dumps(code_facts(made), sort_keys=True).encode()).hexdigest()
    return f"layoutgemm.{kind}_{code}_{text}_{digest[:12]}"


def code_facts(made: GemmPlan) -> dict[str, object]:
    """All of a plan that decides the code of its kernel: plans for other sizes have equal facts."""
    facts = kernel_facts(made)
    return {name: facts[name] for name in ("arch", "kernel", "plan")}


def targets_of(code: str) -> list[api.TargetSm]:
    """The one target of a kernel: the GPUs of the code that it is compiled for, and those that run such code."""
    return [api.TargetSm(code.removeprefix("sm_"))]


def operands_of(
    kernel: AnyKernel, types: tuple[type[Numeric], ...], accumulator: type[Numeric]
) -> GemmOperandsMetadata:
    """The constraints of A, B and C: types, contiguous index, alignment of pitches and addresses."""
    made = [_constraint(text, kind, bytes_) for text, kind, bytes_ in zip(kernel.operands, types, _alignment(kernel))]
    return GemmOperandsMetadata(*made, accumulator_type=accumulator)


def _constraint(text: str, kind: type[Numeric], alignment: int) -> OperandConstraints:
    stride = (0, 0, 1) if Operand.parse(text).order == "row" else (0, 1, 0)
    return DenseTensorConstraints(kind, stride, max(1, alignment * 8 // kind.width), alignment)


def _alignment(kernel: AnyKernel) -> tuple[int, ...]:
    """Bytes that A, B and C are aligned to."""
    if isinstance(kernel, Kernel) and isinstance(kernel.choice, Sm80Choice):
        a, b, c = kernel.choice.config.align
        return (b, a, c) if kernel.choice.swapped else (a, b, c)
    stored = TMA_BYTES
    if isinstance(kernel, Kernel) and getattr(kernel.choice.config, "store", "") == "direct":
        stored = dtype(Operand.parse(kernel.operands[2]).dtype).bytes
    return TMA_BYTES, TMA_BYTES, stored
