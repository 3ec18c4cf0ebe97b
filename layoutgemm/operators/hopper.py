"""Products with scales and of groups, on sm_90a: the kernels of scaled_matmul and grouped_matmul.

    arguments                                             kernel
    ----------------------------------------------------  ------------------------------------------------------
    ScaledOperand of (1, 1, 128) or (1, 128, 128) blocks  the promoted main loop; scales (rows, K blocks), float32
    offsets_along="m"                                     the grouped kernel
    offsets_along="n"                                     the same, of the transposed product
    offsets_along="k"                                     the kernel along K

They are described by tensors without memory, and launched by torch_op on torch's tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, NamedTuple

import torch
from cutlass.operators.metadata import (
    DenseTensorConstraints,
    IndexPtrGroupedGemmOperandsMetadata,
    OperandConstraints,
    OperandsMetadata,
    ScaledOperandConstraints,
)
from cutlass.operators.metadata import GemmOperandsMetadata as GemmOperands
from cutlass.operators.utils.tensor import TensorWrapper, normalized_major_stride

from ..errors import LayoutError, OperandError, PlanError
from ..kernels.operands.promoted import DEPTH
from ..kernels.sm90.config import Sm90Config
from ..kernels.sm90.plan import Sm90Plan
from ..torch_op.scaled_grouped.explain import explain_grouped, explain_scaled
from ..torch_op.scaled_grouped.grouped import ALONG_K, ENDS, grouped_product
from ..torch_op.scaled_grouped.grouped import plan_of as plan_of_groups
from ..torch_op.scaled_grouped.operators import checked_grouped, checked_scaled
from ..torch_op.scaled_grouped.recipes import BLOCK, SQUARE
from ..torch_op.scaled_grouped.scaled import NO_FINISH, scaled_product
from ..torch_op.scaled_grouped.scaled import plan_of as plan_of_scaled
from .api import LayoutgemmProvider, api
from .dense import stream_of
from .design import TMA_BYTES, PlannedKernel, checked_design, code_facts, design_of, name_of, targets_of, unlike
from .problems import check_accumulator, check_memory_of_out, code_for, described, torch_type

CODE = "sm_90a"
_MODES = {(1, DEPTH): BLOCK, (DEPTH, DEPTH): SQUARE}


class Tensors(NamedTuple):
    """The tensors of a call, as torch_op takes them; scales or groups, or neither."""

    a: torch.Tensor
    b: torch.Tensor
    out: torch.Tensor
    scale_a: torch.Tensor | None = None
    scale_b: torch.Tensor | None = None
    groups: torch.Tensor | None = None


def running(tensor: TensorWrapper) -> torch.Tensor:
    """The tensor of the caller. Raises OperandError for one that is not torch's."""
    found = tensor.runtime_tensor
    if not isinstance(found, torch.Tensor):
        raise OperandError(
            f"a {type(found).__name__}: these kernels take torch's tensors, with GlobalOptions().use_tvm_ffi = True"
        )
    return found


class HopperOperator(api.Operator):
    """The part that both operators share. A plan of sm_90a, chosen by torch_op for described tensors."""

    supported_args_type: ClassVar[type] = api.RuntimeArguments
    designed_for_min_cc: ClassVar[int] = 90
    kind: ClassVar[str]

    def __init__(self, metadata: api.OperatorMetadata) -> None:
        super().__init__(metadata)
        self.plan: Sm90Plan = checked_design(metadata, PlannedKernel).kernel.planned  # type: ignore[union-attr]

    @classmethod
    def tensors(cls, args: api.RuntimeArguments, of: Callable[[TensorWrapper], torch.Tensor]) -> Tensors:
        """The tensors of the arguments. Raises OperandError for arguments of another kind."""
        raise NotImplementedError

    @classmethod
    def planned(cls, made: Tensors, config: Sm90Config | None) -> tuple[Sm90Plan, str, tuple[str, ...]]:
        """The plan, the reason for it, and its copies. Raises OperandError or TensorError, naming the operand."""
        raise NotImplementedError

    @classmethod
    def constraints(cls, args: api.RuntimeArguments) -> OperandsMetadata:
        """The operands' metadata."""
        raise NotImplementedError

    @classmethod
    def chosen(cls, args: api.RuntimeArguments, config: Sm90Config | None = None) -> tuple[Sm90Plan, str]:
        """The plan for these arguments, and why. Raises LayoutError where no kernel takes them in place."""
        if args.epilogue is not None:
            raise OperandError(f"an epilogue: {cls.kind} products take none here")
        made = cls.tensors(args, described)
        check_accumulator(made.a.dtype, args.accumulator_type)
        if 0 in (*made.a.shape, *made.b.shape):
            raise OperandError(f"A and B have shapes {list(made.a.shape)} and {list(made.b.shape)}: a size is 0")
        check_memory_of_out(args)
        try:
            plan, why, copies = cls.planned(made, config)
        except LayoutError as error:
            raise OperandError(f"{error}{cls.turned(args)}") from error
        if copies:
            raise OperandError(f"{copies[0]}: an operator copies nothing{cls.turned(args)}")
        return plan, why

    @classmethod
    def turned(cls, args: api.RuntimeArguments) -> str:
        """The operands' names in a refusal of the transposed product, or ""."""
        return ". It computes out.mT: here a is B.mT, b is A.mT" if getattr(args, "offsets_along", "") == "n" else ""

    @classmethod
    def _generate_operators(
        cls, metadata_filter: Callable[[api.OperatorMetadata], bool], epilogue_args: object = None,
        target_sm: api.TargetSm | None = None, args: api.RuntimeArguments = None,
    ) -> list[api.Operator]:  # fmt: skip
        """The operator of a problem, or none."""
        if args is None:
            return []
        try:
            if code_for(target_sm) != CODE:
                return []
            plan, why = cls.chosen(args)
        except LayoutError:
            return []
        kernel = PlannedKernel(plan)
        metadata = api.OperatorMetadata(
            operator_name=name_of(kernel, CODE, plan, cls.kind), operator_class=cls, supported_targets=targets_of(CODE),
            operands=cls.constraints(args), design=design_of(kernel, CODE, plan, why),
        )  # fmt: skip
        return [cls(metadata)] if metadata_filter(metadata) else []

    def _supports(self, args: api.RuntimeArguments, target_sm: api.TargetSm | None = None) -> api.Status:
        """Success, or why this kernel does not compute these arguments on the target."""
        try:
            if (code := code_for(target_sm)) != CODE:
                raise PlanError(f"target {target_sm or code} runs {code}, and {self.kind} products are of {CODE}")
            plan, _ = self.chosen(args, self.plan.config)
            if code_facts(plan) != code_facts(self.plan):
                raise PlanError(unlike(PlannedKernel(self.plan), PlannedKernel(plan)))
        except LayoutError as error:
            return api.Status.fail(error)
        return api.Status.success()

    def _compile(self, args: api.RuntimeArguments, target_sm: api.TargetSm | None = None) -> api.CompiledArtifact:
        """Compile by metadata alone; no GPU is needed."""
        if target_sm is not None and (code := code_for(target_sm)) != CODE:
            raise PlanError(f"target {target_sm} runs {code}, and {self.kind} products are of {CODE}")
        return api.CompiledArtifact(self.plan.compile(), self, targets_of(CODE)[0])

    def _run(
        self,
        args: api.RuntimeArguments,
        compiled_artifact: api.CompiledArtifact,
        stream: object,
        workspace: object = None,
    ) -> None:
        """Launch on the stream. Raises OperandError for tensors that are not torch's."""
        made = self.tensors(args, running)
        with torch.cuda.stream(torch.cuda.ExternalStream(stream_of(stream), made.a.device)):
            self.launch(made)

    def launch(self, made: Tensors) -> None:
        """The product on the current stream, by this operator's configuration."""
        raise NotImplementedError


def dense_constraint(x: api.DenseTensor, alignment: int = TMA_BYTES) -> OperandConstraints:
    """The constraint of one operand: its type, its contiguous index, and alignment in bytes."""
    stride = normalized_major_stride(tuple(x.shape), tuple(x.stride))
    return DenseTensorConstraints(x.dtype, stride, max(1, alignment * 8 // x.dtype.width), alignment)


@LayoutgemmProvider.register
class ScaledOperator(HopperOperator):
    """A product of 8-bit floats with float32 scales of blocks of 128 along K."""

    supported_args_type: ClassVar[type] = api.GemmArguments
    designed_for_min_cc: ClassVar[int] = 90
    kind = "Scaled"

    @classmethod
    def tensors(cls, args: api.GemmArguments, of: Callable[[TensorWrapper], torch.Tensor]) -> Tensors:
        """A, B and out, with scales (rows, K blocks). A batch of one is a matrix."""
        found, scales = [], []
        for name, x in (("A", args.A), ("B", args.B)):
            if not isinstance(x, api.ScaledOperand):
                raise OperandError(f"{name} is a {type(x).__name__}, not a ScaledOperand")
            torch_type(x.quantized, name)
            found.append(of(x.quantized.tensor))
            outer = found[-1].shape[-2 if name == "A" else -1]
            scales.append(_scales(name, x, of, outer, found[-1].shape[-1 if name == "A" else -2]))
        made = Tensors(found[0], found[1], of(args.out.tensor), scales[0], scales[1])
        if made.a.ndim == 3 and made.a.shape[0] == 1:
            a, b, out, *scales = [x[0] for x in made[:5] if x is not None]
            return Tensors(a, b, out, *scales)
        return made

    @classmethod
    def planned(cls, made: Tensors, config: Sm90Config | None) -> tuple[Sm90Plan, str, tuple[str, ...]]:
        """The plan of the promoted main loop."""
        a, b, out, scale_a, scale_b, _ = made
        assert scale_a is not None
        call = checked_scaled(a, scale_a, b, scale_b, NO_FINISH, out, out.dtype, None, None)
        said = explain_scaled(a, scale_a, b, scale_b, NO_FINISH, out, out.dtype, (None, None), config)
        plan, why = plan_of_scaled(call, a, b, NO_FINISH, config)
        assert isinstance(plan, Sm90Plan), plan
        return plan, why, said.copies

    @classmethod
    def constraints(cls, args: api.GemmArguments) -> GemmOperands:
        """Both operands with their scales, and out."""
        both = [
            ScaledOperandConstraints(
                dense_constraint(x.quantized), DenseTensorConstraints(x.scale.dtype, None, 1, 4), x.mode, x.swizzle
            )
            for x in (args.A, args.B)
        ]
        return GemmOperands(*both, dense_constraint(args.out), accumulator_type=args.accumulator_type)

    def launch(self, made: Tensors) -> None:
        """scaled_matmul into out."""
        a, b, out, scale_a, scale_b, _ = made
        assert scale_a is not None
        call = checked_scaled(a, scale_a, b, scale_b, NO_FINISH, out, out.dtype, None, None)
        scaled_product(call, a, scale_a, b, scale_b, NO_FINISH, self.plan.config, out)


def _scales(
    name: str, x: api.ScaledOperand, of: Callable[[TensorWrapper], torch.Tensor], outer: int, k: int
) -> torch.Tensor:
    """The scales as torch_op has them, (batch, rows or columns, K blocks). Raises OperandError for other modes."""
    mode = tuple(x.mode) if isinstance(x.mode, tuple) else tuple(x.mode.value)
    known = mode[-2:] if all(extent == 1 for extent in mode[:-2]) else ()
    if known not in _MODES:
        raise OperandError(f"{name} has scales of {mode} blocks: kernels here have (1, 1, 128) and (1, 128, 128)")
    if x.swizzle != api.ScaleSwizzleMode.SwizzleNone:
        raise OperandError(f"{name} has scales in {x.swizzle.name}: kernels here read them in SwizzleNone")
    front = tuple(map(int, x.quantized.tensor.shape[:-2]))
    shape = (*front, -(-outer // known[0]), -(-k // DEPTH))
    scale = of(x.scale.tensor)
    if scale.numel() != torch.Size(shape).numel() or not scale.is_contiguous():
        raise OperandError(
            f"{name} has scales of shape {list(scale.shape)}: contiguous {list(shape)} for {mode} blocks"
        )
    return scale.view(shape)


@LayoutgemmProvider.register
class GroupedOperator(HopperOperator):
    """A grouped product whose groups lie one after the other along M, N or K."""

    supported_args_type: ClassVar[type] = api.IndexPtrGroupedGemmArguments
    designed_for_min_cc: ClassVar[int] = 90
    kind = "Grouped"

    @classmethod
    def tensors(cls, args: api.RuntimeArguments, of: Callable[[TensorWrapper], torch.Tensor]) -> Tensors:
        """A, B, out and the groups' ends. Groups of columns are rows of the transposed product."""
        for name, x in (("A", args.A), ("B", args.B), ("out", args.out)):
            torch_type(x, name)
        a, b, out, ends = (of(x.tensor) for x in (args.A, args.B, args.out, args.offsets))
        return (
            Tensors(b.mT, a.mT, out.mT, groups=ends) if args.offsets_along == "n" else Tensors(a, b, out, groups=ends)
        )

    @classmethod
    def planned(cls, made: Tensors, config: Sm90Config | None) -> tuple[Sm90Plan, str, tuple[str, ...]]:
        """The plan of groups of rows or along K."""
        a, b, out, _, _, groups = made
        assert groups is not None
        call = checked_grouped(a, b, groups, ENDS, None, None, NO_FINISH, out, out.dtype, None, None)
        if call.form == ALONG_K and call.experts == 1:
            raise OperandError("one group along K is a dense product: GemmArguments")
        said = explain_grouped(a, b, groups, ENDS, None, None, NO_FINISH, out, out.dtype, (None, None), config)
        plan, why = plan_of_groups(call, a, b, groups, NO_FINISH, config, call.said == ENDS)
        assert isinstance(plan, Sm90Plan), plan
        return plan, why, said.copies

    @classmethod
    def constraints(cls, args: api.RuntimeArguments) -> IndexPtrGroupedGemmOperandsMetadata:
        """A, B, out and the offsets."""
        a, b, out = (dense_constraint(x) for x in (args.A, args.B, args.out))
        ends = dense_constraint(args.offsets, args.offsets.dtype.width // 8)
        return IndexPtrGroupedGemmOperandsMetadata(a, b, out, ends, args.offsets_along, args.accumulator_type)

    def launch(self, made: Tensors) -> None:
        """grouped_matmul into out; rows of no group stay unchanged."""
        a, b, out, _, _, groups = made
        call = checked_grouped(a, b, groups, ENDS, None, None, NO_FINISH, out, out.dtype, None, None)
        grouped_product(call, a, b, groups, config=self.plan.config, out=out)
