"""Running a plan with packed weights on NumPy arrays. The executor, the emulator, or the kernel on a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...atoms.copy.base import VECTOR_BYTES
from ...errors import OperandError, PlanError
from ..compile.compiler import compile_plan
from ..epilogue.arrays import Arrays
from ..plan import MAX_WORDS
from ..quantized.formats import COLUMN_SCALE
from ..quantized.packing import PackedWeights
from ..sm80.plan import Sm80Plan
from ..sm90.plan import Sm90Plan
from ..streamed.plan import StreamedPlan
from .ampere import lines_of_bits, padded_lines, pitch_of_c
from .arrays import check_device_name, check_numpy_out, check_numpy_type, check_shape, global_matrix
from .cpu import executed, progress_line, stored_lines
from .hardware_model import CLUSTERS, GlobalMatrix, values_of
from .occupancy import resident
from .result import GemmResult
from .torch_tensors import chosen_device, require_gpu, torch_type

if TYPE_CHECKING:
    import torch


Plan = Sm80Plan | Sm90Plan | StreamedPlan


def run_quantized(
    plan: Plan, a: object, b: object, given: Mapping[str, object], out: np.ndarray | None, device: str | None,
    copy: bool,
) -> GemmResult:  # fmt: skip
    """C = A @ B and its epilogue, of PackedWeights a and a NumPy b. Of an Sm80Plan b is packed, and a is not.

    Of a plan of experts, `a` is a sequence of as many PackedWeights, and `given` has the offsets. The scale of whole
    columns is the weights' own. Raises OperandError for operands that are not the plan's, PlanError where the NumPy
    executor is asked for an epilogue.
    """
    packed, x = check_operands_of(plan, a, b, out)
    check_device_name(device)
    chosen, why = chosen_device(plan, device, otherwise="emulator" if plan.epilogue else "reference")
    if plan.epilogue and chosen == "reference":
        raise PlanError("the plan has an epilogue, which the NumPy executor does not compute: device='emulator'")
    offsets, rest = _offsets(plan, given)
    besides = _epilogue_arrays(plan, packed, rest)
    words: tuple[Any, ...] = () if besides is None else besides.words[: len(plan.epilogue.words)]
    words = (*words, *offsets.values())
    if isinstance(plan, Sm80Plan) and plan.split is not None:
        words = (*words, np.full(plan.split_bytes, 0xFF, np.uint8))  # of a sum that no block writes: NaN
    words = (*words, *[0] * (MAX_WORDS - len(words)))
    copies: list[str] = []
    units = np.concatenate([each.units.reshape(-1) for each in packed])
    if isinstance(plan, (Sm80Plan, StreamedPlan)):
        c = _by_lines(plan, x, units, chosen, words, offsets)
    else:
        matrix = global_matrix(plan.b, x, copies, copy)
        if chosen == "cuda":
            c = _on_gpu(plan, (units, matrix.bits), matrix.leading, words)
        else:
            c = executed(plan, GlobalMatrix(units, units.size, (units.size, 1)), matrix, chosen, offsets, words)
    where = {"cuda": "GPU", "emulator": "emulator"}.get(chosen, "NumPy executor")
    written = {} if besides is None else besides.written()
    return GemmResult(c, where, why, tuple(copies), written=written).into(out)


def _by_lines(
    plan: Sm80Plan | StreamedPlan, x: np.ndarray, units: np.ndarray, device: str, words: tuple[object, ...],
    offsets: Mapping[str, np.ndarray],
) -> np.ndarray:  # fmt: skip
    """C by mma.sync, or streamed: lines of x have the pitch that the alignment asks for.

    offsets  those of experts, by their name
    """
    streamed = isinstance(plan, StreamedPlan)
    operand, align = (plan.b, VECTOR_BYTES) if isinstance(plan, StreamedPlan) else (plan.a, plan.config.align[0])
    bits = lines_of_bits(operand, x)
    if device == "reference":
        matrices = (units, bits) if streamed else (bits, units[None])
        of_experts = {} if streamed else {"given": offsets}
        return np.asarray(plan.does("execute")(plan, *matrices, progress=progress_line(), **of_experts), np.float32)
    lines, pitch = padded_lines(operand, bits, align)
    matrices = (units, lines) if streamed else (lines, units)
    if device == "cuda":
        return _on_gpu(plan, matrices, pitch, words)
    inner, shape = (
        (plan.m, (plan.n, plan.m + 1)) if isinstance(plan, StreamedPlan) else (plan.n, (plan.m, pitch_of_c(plan)))
    )
    sizes = (*_sizes(plan, pitch), shape[1], 0, 0, shape[0] * shape[1], CLUSTERS if streamed else 1)
    c, _ = stored_lines(
        plan, shape, inner,
        lambda c: plan.does("emulate")(plan, (*matrices, c, *sizes, *words)).raise_for_findings(),
    )  # fmt: skip
    values = values_of(plan.c.dtype, c[:, :inner])
    return np.ascontiguousarray(values.T) if streamed else values


def _sizes(plan: Plan, pitch: int) -> tuple[int, ...]:
    """A launch's sizes, and the pitches of A and B: `pitch` is that of the operand that is not packed."""
    pitches = (pitch, plan.k) if isinstance(plan, Sm80Plan) else (plan.k, pitch)
    return (plan.m, plan.n, plan.k, plan.batch, *pitches)


def _offsets(plan: Plan, given: Mapping[str, object]) -> tuple[dict[str, np.ndarray], dict[str, object]]:
    """The checked offsets of a plan of experts, by their name; and the other operands."""
    if isinstance(plan, StreamedPlan) or plan.experts is None:
        return {}, dict(given)
    rows = plan.m if isinstance(plan, Sm80Plan) else plan.n
    name, rest = plan.experts.name, dict(given)
    if rest.get(name) is None:
        raise OperandError(f"{name} is missing: {plan.experts.missing}, {plan.experts.numbers(plan.batch)} numbers")
    each = rows // plan.batch if plan.experts.masked else rows
    found = plan.experts.take(rest.pop(name), (each, plan.m, plan.k, plan.batch))
    return {name: found.astype(np.int32 if plan.experts.offsets == "i32" else np.int64)}, rest


def _epilogue_arrays(plan: Plan, packed: Sequence[PackedWeights], given: Mapping[str, object]) -> Arrays | None:
    """The epilogue's operands, the weights' own scales among them; None without an epilogue."""
    if not plan.epilogue:
        if given:
            raise OperandError(f"given = {', '.join(given)}: the plan reads a and b alone")
        return None
    scales = [each.scales for each in packed if each.scales is not None]
    own: dict[str, object] = {COLUMN_SCALE: np.stack(scales) if len(scales) > 1 else scales[0]} if scales else {}
    shape = (plan.m, plan.n) if plan.batch == 1 else (plan.batch, plan.m, plan.n)
    own_bytes = 0 if isinstance(plan, StreamedPlan) else plan.partial_bytes
    return Arrays(plan.epilogue, shape, {**given, **own}, own_bytes)


def check_operands_of(plan: Plan, a: object, b: object, out: object) -> tuple[tuple[PackedWeights, ...], np.ndarray]:
    """(packed weights, the other operand); raises OperandError unless they are the plan's."""
    name, weights, other, x = ("b", b, "a", a) if isinstance(plan, Sm80Plan) else ("a", a, "b", b)
    operand, shape = (plan.a, (plan.m, plan.k)) if name == "b" else (plan.b, (plan.k, plan.n))
    several = tuple(weights) if isinstance(weights, (list, tuple)) and _has_experts(plan) else (weights,)
    if len(several) != plan.batch:
        raise OperandError(f"{name} is {len(several)} PackedWeights: the plan takes a list of {plan.batch}")
    packed = tuple([_packed(plan, each, name) for each in several])
    if not isinstance(x, np.ndarray):
        raise OperandError(
            f"{other} is a {type(x).__qualname__}: a NumPy array; for tensors call layoutgemm.quantized_matmul"
        )
    check_shape(other, x, shape)
    check_numpy_type(operand, x)
    if out is not None:
        check_numpy_out(plan, out)
    return packed, x


def _has_experts(plan: Plan) -> bool:
    return not isinstance(plan, StreamedPlan) and plan.experts is not None


def _packed(plan: Plan, given: object, name: str) -> PackedWeights:
    if not isinstance(given, PackedWeights):
        raise OperandError(
            f"{name} is a {type(given).__qualname__}: the plan multiplies PackedWeights, as `pack` makes them"
        )
    features = plan.n if isinstance(plan, Sm80Plan) else plan.m
    have = given.format, given.activations, given.n, given.k
    want = plan.weights, plan.a.dtype.name, features, plan.k
    if have != want:
        raise OperandError(
            f"{name} is {given.n}x{given.k}, {given.format}, for {given.activations}; the plan takes {want}"
        )
    return given


def _on_gpu(plan: Plan, matrices: tuple[np.ndarray, np.ndarray], leading: int, words: tuple[Any, ...]) -> np.ndarray:
    """C by the kernel on torch's current GPU.

    matrices, leading  A and B as they lie in memory, and the pitch of the one that is not packed
    """
    require_gpu(plan, None)
    import torch

    def there(x: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(x).view(np.uint8).reshape(-1)).cuda()

    arrays = [word for word in words if isinstance(word, np.ndarray)]
    tensors = [there(x) for x in (*matrices, *arrays)]
    addresses = iter([x.data_ptr() for x in tensors[2:]])
    numbers = [next(addresses) if isinstance(word, np.ndarray) else word for word in words]
    lines, inner = (plan.m, plan.n) if plan.c.order == "row" else (plan.n, plan.m)
    pitch = -(-inner // 16) * 16
    c = torch.zeros((lines, pitch), dtype=torch_type(plan.c.dtype), device="cuda")
    index = torch.cuda.current_device()
    clusters = 1 if isinstance(plan, Sm80Plan) else plan.cluster_size
    sizes = (*_sizes(plan, leading), pitch, 0, 0, lines * pitch)
    stream = torch.cuda.current_stream().cuda_stream
    pointers = [x.data_ptr() for x in (*tensors[:2], c)]
    compile_plan(plan).launch(*pointers, *sizes, resident(index, clusters), *numbers, stream=stream)
    for array, tensor in zip(arrays, tensors[2:], strict=True):
        array.reshape(-1).view(np.uint8)[...] = tensor.cpu().numpy()
    found = c[:, :inner].float().cpu().numpy()
    return found if plan.c.order == "row" else np.ascontiguousarray(found.T)
