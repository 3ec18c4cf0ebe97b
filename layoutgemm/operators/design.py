"""Metadata of a kernel: enough to build it again in another process."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import NamedTuple

from cutlass.cute.typing import Numeric
from cutlass.operators.metadata import (
    BLASDesignMetadata,
    DenseTensorConstraints,
    GemmOperandsMetadata,
    OperandConstraints,
)
from cutlass.operators.mma import AmpereMma, BlackwellTcgen05Mma, HopperWgmma, MmaInstruction

from ..arguments import having, shown
from ..dtypes import dtype
from ..errors import PlanError
from ..kernels.compile.compiler import kernel_facts
from ..kernels.compile.worker import Kernel, plan_of
from ..kernels.derive import Operand
from ..kernels.operands.combinations import Asked
from ..kernels.plan import GemmPlan
from ..kernels.sm80.choose import Sm80Choice
from ..kernels.sm80.plan import Sm80Plan
from ..kernels.sm90.plan import Sm90Plan
from ..kernels.sm100.choose import Sm100Choice
from ..kernels.sm100.plan import Sm100Plan
from .api import api

TMA_BYTES = 16  # to which TMA needs addresses and pitches aligned


class PlannedKernel(NamedTuple):
    """A kernel of sm_90a with tables or groups, by its plan."""

    planned: Sm90Plan

    @property
    def operands(self) -> tuple[str, str, str]:
        """Types and orders of A, B and C."""
        made = self.planned
        return f"{made.a.dtype.name}:{made.a.order}", f"{made.b.dtype.name}:{made.b.order}", f"{made.c.dtype.name}:row"


@dataclass(kw_only=True)
class ChosenDesign(BLASDesignMetadata):
    """The design of an operator, from which it is built again.

    code    what the kernel is compiled for: "sm_90a"
    kernel  configuration, types and orders of the operands, batch
    why     the sentence of the choice
    """

    code: str
    kernel: Kernel | PlannedKernel
    why: str = ""


def design_of(
    kernel: Kernel | PlannedKernel, code: str, made: Sm90Plan | Sm80Plan | Sm100Plan, why: str
) -> ChosenDesign:
    """The design of a kernel, whose plan is `made`."""
    choice = kernel.choice if isinstance(kernel, Kernel) else None
    mma: type[MmaInstruction] = BlackwellTcgen05Mma if isinstance(choice, Sm100Choice) else HopperWgmma
    if isinstance(choice, Sm80Choice):
        mma = AmpereMma
    cluster = (*getattr(made.config, "cluster", (1, 1)), 1)
    return ChosenDesign(
        mma_instruction_type=mma, tile_shape=tuple(made.tile), cluster_shape=cluster,
        num_smem_stages=made.stages, code=code, kernel=kernel, why=why,
    )  # fmt: skip


def checked_design(metadata: api.OperatorMetadata, *kinds: type[Kernel | PlannedKernel]) -> ChosenDesign:
    """The design of an operator's metadata, which may have been altered since it was made.

    kinds  of kernels that the operator launches

    Raises PlanError, naming the field, for another design, kernel or target, or a kernel for other code.
    """
    having(metadata, "metadata", "an OperatorMetadata", "design", "operator_name", "supported_targets", error=PlanError)
    design, ours = metadata.design, "ask get_operators anew"
    name = f"{metadata.operator_name}: metadata's"
    if not isinstance(design, ChosenDesign):
        raise PlanError(f"{name} design is {shown(design)}, no ChosenDesign, from which an operator is built; {ours}")
    if not isinstance(design.kernel, kinds):
        known = " or ".join(kind.__name__ for kind in kinds)
        raise PlanError(f"{name} design.kernel is a {type(design.kernel).__name__}, no {known}; {ours}")
    if (code := code_of(design.kernel)) != design.code:
        raise PlanError(f"{name} design.code is {shown(design.code)}, and its kernel is of {code}; {ours}")
    if metadata.supported_targets != targets_of(code):
        raise PlanError(f"{name} supported_targets are {shown(metadata.supported_targets)}, and {code} has one; {ours}")
    return design


def code_of(kernel: Kernel | PlannedKernel) -> str:
    """The code that a kernel is compiled for: "sm_90a"."""
    if isinstance(kernel, PlannedKernel):
        return kernel.planned.arch.name
    return kernel.choice.arch if isinstance(kernel.choice, Sm80Choice | Sm100Choice) else "sm_90a"


def unlike(kernel: Kernel | PlannedKernel, needed: Kernel | PlannedKernel) -> str:
    """The difference between an operator's kernel and the one that arguments need.

    >>> from layoutgemm import Sm100Config
    >>> one = Kernel(Sm100Choice(Sm100Config()), ("bf16:row", "bf16:col", "bf16:row"))
    >>> unlike(one, one._replace(operands=("f16:row", "bf16:row", "bf16:row")))
    'A is f16:row and B is bf16:row; the operator takes A as bf16:row and B as bf16:col'
    >>> unlike(one, one._replace(batched=True))
    'A has a batch, and the operator is of matrices'
    """
    pairs = [x for x in zip(("A", "B", "out"), needed.operands, kernel.operands, strict=True) if x[1] != x[2]]
    if pairs:
        given, taken = (" and ".join(f"{x[0]} {word} {x[at]}" for x in pairs) for word, at in (("is", 1), ("as", 2)))
        return f"{given}; the operator takes {taken}"
    if isinstance(kernel, Kernel) and isinstance(needed, Kernel):
        if kernel.batched is not needed.batched:
            found = ("no batch", "batches") if kernel.batched else ("a batch", "matrices")
            return f"A has {found[0]}, and the operator is of {found[1]}"
        if kernel.epilogue != needed.epilogue:
            return "epilogue is another function, or of operands of other shapes, than the operator's"
    new, own = (code_facts(x.planned if isinstance(x, PlannedKernel) else plan_of(x)) for x in (needed, kernel))
    unequal = list(_differences(new, own))
    if not unequal:
        return "A, B and out need the kernel's operands exchanged"
    # What was asked for comes first and the configuration last; between them is what follows from both.
    part = unequal[0][0].removeprefix("plan.").partition(".")[0]
    name, x, y = unequal[0] if part in _ASKED else unequal[-1]
    return f"A, B and out need {name} {shown(x)}, and the operator has {shown(y)}"


_ASKED = {each.name for each in fields(Asked)}


def _differences(x: object, y: object, name: str = "") -> Iterator[tuple[str, object, object]]:
    """The leaves in which two trees of facts differ, in the order of fields."""
    if isinstance(x, dict) and isinstance(y, dict):
        for key, value in x.items():
            yield from _differences(value, y.get(key), f"{name}.{key}".lstrip("."))
    elif x != y:
        yield name, x, y


def name_of(kernel: Kernel | PlannedKernel, code: str, made: GemmPlan, kind: str) -> str:
    """An operator's name. It is made of all that decides the code of its kernel, the same in every process."""
    text = "_".join([text.replace(":", "-") for text in kernel.operands])
    digest = hashlib.sha256(json.dumps(code_facts(made), sort_keys=True).encode()).hexdigest()
    return f"layoutgemm.{kind}_{code}_{text}_{digest[:12]}"


def code_facts(made: GemmPlan) -> dict[str, object]:
    """All of a plan that decides the code of its kernel. Plans for other sizes have equal facts."""
    facts = kernel_facts(made)
    return {name: facts[name] for name in ("arch", "kernel", "plan")}


def targets_of(code: str) -> list[api.TargetSm]:
    """The one target of a kernel. The GPUs of the code that it is compiled for, and those that run such code."""
    return [api.TargetSm(code.removeprefix("sm_"))]


def operands_of(kernel: Kernel, types: tuple[type[Numeric], ...], accumulator: type[Numeric]) -> GemmOperandsMetadata:
    """The constraints of A, B and C: types, contiguous index, alignment of pitches and addresses."""
    made = [_constraint(text, kind, bytes_) for text, kind, bytes_ in zip(kernel.operands, types, _alignment(kernel))]
    return GemmOperandsMetadata(*made, accumulator_type=accumulator)


def _constraint(text: str, kind: type[Numeric], alignment: int) -> OperandConstraints:
    stride = (0, 0, 1) if Operand.parse(text).order == "row" else (0, 1, 0)
    return DenseTensorConstraints(kind, stride, max(1, alignment * 8 // kind.width), alignment)


def _alignment(kernel: Kernel) -> tuple[int, ...]:
    """Bytes that A, B and C are aligned to."""
    if isinstance(kernel.choice, Sm80Choice):
        a, b, c = kernel.choice.config.align
        return (b, a, c) if kernel.choice.swapped else (a, b, c)
    stored = TMA_BYTES
    if getattr(kernel.choice.config, "store", "") == "direct":
        stored = dtype(Operand.parse(kernel.operands[2]).dtype).bytes
    return TMA_BYTES, TMA_BYTES, stored
