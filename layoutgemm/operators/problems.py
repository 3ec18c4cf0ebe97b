"""Arguments of the Operator API as problems of torch_op, which chooses the kernel.

GemmArguments, target  --problem_of-->  Problem  --choose-->  Chosen: kernel, why
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from cutlass.cute.typing import Numeric
from cutlass.operators.utils.dtype import to_cutlass_type, torch_type_from_cutlass_type
from cutlass.operators.utils.tensor import TensorWrapper

from ..arch import arch, of_capability, with_feature
from ..errors import OperandError
from ..kernels.compile.worker import Kernel
from ..kernels.run.operand_checks import check_operands, same_memory
from ..kernels.sm90.choose.occupancy import ClusterOccupancy
from ..kernels.sm90.choose.rules import Sm90Choice
from ..kernels.sm100.choose import Sm100Choice
from ..kernels.sm100.plan import Sm100Config
from ..torch_op.compute import wide_type
from ..torch_op.prepared import LaunchEpilogue, alignment_of, gpu, target
from ..torch_op.problem import Problem, Solution, StridedOperand
from ..torch_op.solver import solve
from ..torch_op.types import C_NAMES, NAMES
from .api import api
from .design import unlike

RESULT = "D"  # the epilogue's name of `out`


class TargetGpu(NamedTuple):
    """The GPU of a problem. Its resident clusters, its name, and bytes of shared memory of a block (0: at most)."""

    places: ClusterOccupancy
    gpu: str
    smem: int


def code_for(asked: api.TargetSm | None) -> str:
    """The code of a target. Without one, of the current GPU, or sm_90a on a machine without.

    Raises OperandError for a target without kernels, and for a GPU without.

    >>> [code_for(api.TargetSm(text)) for text in ("86", "90a", "103a", "120a")]
    ['sm_86', 'sm_90a', 'sm_103a', 'sm_120a']
    """
    if asked is None:
        return target(torch.cuda.current_device() if torch.cuda.is_available() else -1)[0]
    found = of_capability((asked.major, asked.minor))
    if found is None or not api.TargetSm(found.name.removeprefix("sm_")).is_portable_to(asked):
        known = ", ".join(name.removeprefix("sm_") for name in with_feature("mma.sync"))
        raise OperandError(f"target {asked}: layoutgemm's kernels are for {known}")
    return found.name


def has_tensor_memory(code: str) -> bool:
    """True for the codes whose products are those of tcgen05: `Sm100Plan` computes them."""
    return "tcgen05" in arch(code).features


def room_of(code: str) -> TargetGpu:
    """The current GPU where it runs that code; else one as large as an H200."""
    if torch.cuda.is_available():
        index = torch.cuda.current_device()
        try:
            runs, smem = target(index)
        except OperandError:  # a GPU for which nothing is compiled here
            runs, smem = "", 0
        if runs == code:
            return TargetGpu(*gpu(index), smem)
    return TargetGpu(ClusterOccupancy(), "", 0)


def torch_type(operand: api.DenseTensor, name: str) -> torch.dtype:
    """The torch type of a dense operand. Raises OperandError, naming it, for one that no kernel multiplies."""
    if not isinstance(operand, api.DenseTensor):
        raise OperandError(f"{name} is a {type(operand).__name__}, not a DenseTensor")
    try:
        kind: torch.dtype = torch_type_from_cutlass_type(operand.dtype)
    except KeyError:
        raise OperandError(f"{name} is {operand.dtype.__name__}, which no kernel here takes") from None
    if name == "out":
        if kind not in C_NAMES:
            raise OperandError(f"out is {kind}: known are {', '.join(map(str, C_NAMES))}")
    elif kind is torch.float32:
        raise OperandError(
            f"{name} is torch.float32: kernels round it to tf32, which arguments of the API cannot allow"
        )
    elif kind not in NAMES:
        raise OperandError(f"{name} is {kind}: known are {', '.join(map(str, NAMES))}")
    return kind


def check_accumulator(kind: torch.dtype, asked: type[Numeric]) -> None:
    """Raise OperandError unless sums of that type are kept as asked."""
    ours = to_cutlass_type(wide_type(kind))
    if asked != ours:
        raise OperandError(f"accumulator_type is {asked.__name__}: sums of {kind} are kept in {ours.__name__}")


def strided(tensor: TensorWrapper, name: str) -> StridedOperand:
    """A tensor of the arguments as part of a problem."""
    shape, stride = tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride))
    return StridedOperand(shape, stride, name, alignment_of(int(tensor.data_ptr)))


def check_memory(args: api.GemmArguments, device: int) -> None:
    """Raise OperandError for a tensor of torch in other memory than that GPU's. A launch passes its address."""
    read = {"A": args.A.tensor, "B": args.B.tensor, "out": args.out.tensor}
    more = {} if args.epilogue is None else args.epilogue.tensors
    for name, x in (*read.items(), *more.items()):
        found = x.runtime_tensor if isinstance(x, TensorWrapper) else None
        if isinstance(found, torch.Tensor) and found.get_device() != device:
            raise OperandError(f"{name} is on {found.device}, and the launch on cuda:{device}")


def described(tensor: TensorWrapper) -> torch.Tensor:
    """A tensor without memory, of the same shape, strides and type."""
    shape, stride = tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride))
    return torch.empty_strided(shape, stride, dtype=torch_type_from_cutlass_type(tensor.dtype), device="meta")


def given_tensor(tensor: TensorWrapper) -> object:
    """The tensor of the caller; None for a fake one, which has no memory."""
    try:
        return tensor.runtime_tensor
    except ValueError:
        return None


def named_tensors(args: api.RuntimeArguments) -> dict[str, TensorWrapper]:
    """Every tensor that a kernel reads, by the name of its argument, and `out`."""
    found: dict[str, TensorWrapper] = {}
    for name, x in (("A", args.A), ("B", args.B), ("offsets", getattr(args, "offsets", None))):
        if isinstance(x, api.ScaledOperand):
            found |= {name: x.quantized.tensor, f"the scales of {name}": x.scale.tensor}
        elif isinstance(x, api.DenseTensor):
            found[name] = x.tensor
    more = {} if args.epilogue is None else args.epilogue.tensors
    read = {name: x for name, x in more.items() if name != RESULT and isinstance(x, TensorWrapper)}
    return {**found, **read, **({"out": args.out.tensor} if isinstance(args.out, api.DenseTensor) else {})}


def check_memory_of_out(args: api.RuntimeArguments) -> None:
    """Raise unless `out` is written once, and not where the kernel reads.

    An operand of the epilogue may be `out` itself: each element is read before it is written.

    Raises OperandError for torch's negative bit, which addresses do not have; TensorError for memory.
    """
    found = {name: given_tensor(x) for name, x in named_tensors(args).items()}
    for name, x in found.items():
        if isinstance(x, torch.Tensor) and x.is_neg():
            raise OperandError(
                f"{name} has torch's negative bit: an operator copies nothing; {name}.resolve_neg() does"
            )
    out = found.pop("out", None)
    if not isinstance(out, torch.Tensor):  # a fake tensor, or one of the DSL's, which the API makes of other arrays
        check_operands({}, {"out": described(args.out.tensor)})
        return
    epilogue = () if args.epilogue is None else args.epilogue.tensors
    read = {
        name: x for name, x in found.items()
        if isinstance(x, torch.Tensor) and not (name in epilogue and same_memory(x, out))
    }  # fmt: skip
    check_operands(read, {"out": out})


def problem_of(args: api.GemmArguments, code: str, finish: LaunchEpilogue | None = None) -> Problem:
    """Dense arguments as a problem of that code. Raises OperandError, naming the operand."""
    kinds = torch_type(args.A, "A"), torch_type(args.B, "B")
    check_accumulator(kinds[0], args.accumulator_type)
    into = C_NAMES[torch_type(args.out, "out")]
    a, b = (strided(x.tensor, NAMES[kind]) for x, kind in zip((args.A, args.B), kinds))
    c = strided(args.out.tensor, into)
    for name, x in (("A", a), ("B", b), ("out", c)):
        if 0 in x.shape:
            raise OperandError(f"{name} has shape {list(x.shape)}: a size is 0, and there is nothing to launch")
    check_memory_of_out(args)
    room = room_of(code)
    epilogue, separate = (None, False) if finish is None else (finish.epilogue, finish.keep_batch_separate)
    asked = Sm100Choice(Sm100Config(), code) if has_tensor_memory(code) else None
    return Problem(a, b, c, room.places, room.gpu, asked, epilogue, separate, code, room.smem)


def by(kernel: Kernel, problem: Problem) -> Problem:
    """The problem with the kernel's configuration as the caller's, where torch_op takes one."""
    given = isinstance(kernel.choice, Sm90Choice | Sm100Choice)
    return replace(problem, config=kernel.choice) if given else problem  # type: ignore[arg-type]


def solution_of(problem: Problem, kernel: Kernel | None = None) -> Solution:
    """The one launch of a problem: by that kernel, or by the best.

    Raises OperandError for a problem that needs copies or several launches, and for one that the kernel does not take.
    """
    found = solve(problem if kernel is None else by(kernel, problem))
    for copy in found.copies:
        if copy is not None:
            raise OperandError(f"{copy.why}: an operator copies nothing; layoutgemm.matmul does")
    if len(found.launches) != 1:
        raise OperandError(f"{len(found.launches)} launches: an operator is one; layoutgemm.matmul makes them")
    if kernel is not None and found.kernel != kernel:
        raise OperandError(unlike(kernel, found.kernel))
    return found


def choose(problem: Problem) -> tuple[Kernel, str]:
    """The kernel of a problem and why. Raises OperandError where none takes it in one launch, without copies."""
    found = solution_of(problem)
    return found.kernel, found.why
