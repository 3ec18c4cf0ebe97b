"""Dense and batched products: C = A @ B of matrices, or of as many of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from cutlass.operators.metadata import EpilogueMetadata
from cutlass.operators.utils.device import to_cuda_stream

from ..errors import LayoutError, PlanError
from ..kernels.compile.worker import Kernel, plan_of
from ..torch_op.launch import PreparedProblem, compiled_kernel
from ..torch_op.prepared import LaunchEpilogue
from .api import LayoutgemmProvider, api
from .design import checked_design, design_of, name_of, operands_of, targets_of
from .epilogues import finish_for
from .problems import by, check_memory, choose, code_for, has_tensor_memory, problem_of, solution_of, torch_type

MAX_KEPT = 256  # launches of one operator that are kept ready
_current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)


def stream_of(stream: object) -> int:
    """The address of a stream: of torch's, of cuda.bindings', or the number itself."""
    if isinstance(stream, torch.cuda.Stream):  # what torch passes; the API's own conversion takes longer than a launch
        return stream.cuda_stream
    return stream if isinstance(stream, int) else int(to_cuda_stream(stream, skip_if_ffi=False))


@LayoutgemmProvider.register
class DenseOperator(api.Operator):
    """A dense or batched product by one kernel, of any size that `_supports` takes."""

    supported_args_type: ClassVar[type] = api.GemmArguments
    designed_for_min_cc: ClassVar[int] = 80

    def __init__(self, metadata: api.OperatorMetadata) -> None:
        super().__init__(metadata)
        design = checked_design(metadata, Kernel)
        self.code: str = design.code
        self.kernel: Kernel = design.kernel  # type: ignore[assignment]
        if (self.kernel.epilogue is None) is not (metadata.epilogue is None):
            raise PlanError(
                f"{metadata.operator_name}: metadata and kernel disagree on an epilogue; ask for operators anew"
            )
        self._kept: dict[tuple[object, ...], PreparedProblem] = {}

    @classmethod
    def _generate_operators(
        cls, metadata_filter: Callable[[api.OperatorMetadata], bool], epilogue_args: object = None,
        target_sm: api.TargetSm | None = None, args: api.GemmArguments | None = None,
    ) -> list[api.Operator]:  # fmt: skip
        """The operator of a problem, or none; none either without arguments, which are the problem."""
        if args is None:
            return []
        try:
            code = code_for(target_sm)
            kernel, why = choose(problem_of(args, code, finish_for(args)))
            made = plan_of(kernel)
        except LayoutError:
            return []
        types = args.A.dtype, args.B.dtype, args.out.dtype
        metadata = api.OperatorMetadata(
            operator_name=name_of(kernel, code, made, "Dense"), operator_class=cls, supported_targets=targets_of(code),
            operands=operands_of(kernel, types, args.accumulator_type), design=design_of(kernel, code, made, why),
            epilogue=None if args.epilogue is None else EpilogueMetadata.from_args(args.epilogue),
        )  # fmt: skip
        return [cls(metadata)] if metadata_filter(metadata) else []

    def _supports(self, args: api.GemmArguments, target_sm: api.TargetSm | None = None) -> api.Status:
        """Success, or why this kernel does not compute these arguments on the target."""
        try:
            self._check_target(target_sm)
            solution_of(problem_of(args, self.code, finish_for(args)), self.kernel)
        except LayoutError as error:
            return api.Status.fail(error)
        return api.Status.success()

    def _check_code(self, target_sm: api.TargetSm | None) -> None:
        """Raise PlanError for a target of other code."""
        if target_sm is not None and (code := code_for(target_sm)) != self.code:
            raise PlanError(f"target {target_sm} runs {code}, and the operator is of {self.code}")

    def _check_target(self, target_sm: api.TargetSm | None) -> None:
        """Raise PlanError for a target of other code, or a kernel compiled only."""
        self._check_code(target_sm)
        if has_tensor_memory(self.code) and torch.cuda.is_available():
            raise PlanError(f"{self.code}: its kernels are compiled only, and launched nowhere yet")

    def _compile(self, args: api.GemmArguments, target_sm: api.TargetSm | None = None) -> api.CompiledArtifact:
        """Compile for any sizes, by metadata alone."""
        self._check_code(target_sm)
        return api.CompiledArtifact(compiled_kernel(self.kernel), self, targets_of(self.code)[0])

    def _run(
        self, args: api.GemmArguments, compiled_artifact: api.CompiledArtifact, stream: object, workspace: object = None
    ) -> None:
        """Launch on the current GPU. Raises PlanError where the kernel is compiled only, or CUDA refuses."""
        a, b, c = args.A.tensor, args.B.tensor, args.out.tensor
        of_a, of_b, of_c = int(a.data_ptr), int(b.data_ptr), int(c.data_ptr)
        finish = finish_for(args)
        device = _current_device()
        check_memory(args, device)
        aligned = (of_a & 15, of_b & 15, of_c & 15)
        more, words = ((), ()) if finish is None else (finish.key, finish.words)
        key = (device, a.shape, a.stride, b.shape, b.stride, c.shape, c.stride, aligned, more)
        prepared = self._kept.get(key)
        if prepared is None:
            prepared = self._keep(key, args, finish, device)
        prepared.launch(of_a, of_b, of_c, stream_of(stream), words)

    def _keep(
        self, key: tuple[object, ...], args: api.GemmArguments, finish: LaunchEpilogue | None, device: int
    ) -> PreparedProblem:
        """The launch for these shapes, strides and alignments on a GPU, kept."""
        self._check_target(None)
        problem = problem_of(args, self.code, finish)
        solution_of(problem, self.kernel)
        if len(self._kept) >= MAX_KEPT:
            self._kept.clear()
        kind = torch_type(args.out, "out")
        found = self._kept[key] = PreparedProblem(by(self.kernel, problem), problem.c.shape, kind, device)
        return found
