"""Running a plan with packed weights on NumPy arrays: the executor, the emulator, or the kernel on a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import OperandError, PlanError
from ..compile.compiler import compile_plan
from ..epilogue.arrays import Arrays
from ..plan import MAX_WORDS
from ..quantized.formats import COLUMN_SCALE
from ..quantized.packing import PackedWeights
from ..sm90.plan import Sm90Plan
from .arrays import check_numpy_out, check_numpy_type, check_shape, global_matrix
from .cpu import executed
from .hardware_model import GlobalMatrix
from .occupancy import resident
from .result import DEVICES, GemmResult
from .torch_tensors import chosen_device, require_gpu, torch_type

if TYPE_CHECKING:
    import torch


def run_quantized(
    plan: Sm90Plan, a: object, b: object, given: Mapping[str, object], out: np.ndarray | None, device: str | None,
    copy: bool,
) -> GemmResult:  # fmt: skip
    """C = A @ B and its epilogue, of PackedWeights a and a NumPy b.

    Of a plan of experts, `a` is a sequence of as many PackedWeights, and `given` has the offsets. The scale of whole
    columns is the weights' own. Raises OperandError for operands that are not the plan's, PlanError where the NumPy
    executor is asked for an epilogue.
    """
    packed, x = check_operands_of(plan, a, b, out)
    if device not in (None, *DEVICES):
        raise OperandError(f"device {device!r}: known are {', '.join(map(repr, DEVICES))}, or None to choose")
    chosen, why = chosen_device(plan, device, otherwise="emulator" if plan.epilogue else "reference")
    if plan.epilogue and chosen == "reference":
        raise PlanError("the plan has an epilogue, which the NumPy executor does not compute: device='emulator'")
    offsets, rest = _offsets(plan, given)
    besides = _epilogue_arrays(plan, packed, rest)
    words: tuple[Any, ...] = () if besides is None else besides.words[: len(plan.epilogue.words)]
    words = (*words, *offsets.values())
    words = (*words, *[0] * (MAX_WORDS - len(words)))
    copies: list[str] = []
    matrix = global_matrix(plan.b, x, copies, copy)
    units = np.concatenate([each.units.reshape(-1) for each in packed])
    if chosen == "cuda":
        c, where = _on_gpu(plan, units, matrix, words), "GPU"
    else:
        c = executed(plan, GlobalMatrix(units, units.size, (units.size, 1)), matrix, chosen, offsets, words)
        where = "emulator" if chosen == "emulator" else "NumPy executor"
    written = {} if besides is None else besides.written()
    return GemmResult(c, where, why, tuple(copies), written=written).into(out)


def _offsets(plan: Sm90Plan, given: Mapping[str, object]) -> tuple[dict[str, np.ndarray], dict[str, object]]:
    """The checked offsets of a plan of experts, by their name; and the other operands."""
    if plan.experts is None:
        return {}, dict(given)
    name, rest = plan.experts.name, dict(given)
    if rest.get(name) is None:
        raise OperandError(f"{name} is missing: {plan.experts.missing}, {plan.experts.numbers(plan.batch)} numbers")
    found = plan.experts.take(rest.pop(name), (plan.n, plan.m, plan.k, plan.batch))
    return {name: found.astype(np.int32 if plan.experts.offsets == "i32" else np.int64)}, rest


def _epilogue_arrays(plan: Sm90Plan, packed: Sequence[PackedWeights], given: Mapping[str, object]) -> Arrays | None:
    """The epilogue's operands, the weights' own scales among them; None without an epilogue."""
    if not plan.epilogue:
        if given:
            raise OperandError(f"given = {', '.join(given)}: the plan reads a and b alone")
        return None
    scales = [each.scales for each in packed if each.scales is not None]
    own: dict[str, object] = {COLUMN_SCALE: np.stack(scales) if len(scales) > 1 else scales[0]} if scales else {}
    shape = (plan.m, plan.n) if plan.batch == 1 else (plan.batch, plan.m, plan.n)
    return Arrays(plan.epilogue, shape, {**given, **own})


def check_operands_of(
    plan: Sm90Plan, a: object, b: object, out: object
) -> tuple[tuple[PackedWeights, ...], np.ndarray]:
    """The operands; raises OperandError unless they are the plan's."""
    several = tuple(a) if plan.experts is not None and isinstance(a, (list, tuple)) else (a,)
    if len(several) != plan.batch:
        raise OperandError(f"a is {len(several)} PackedWeights: the plan takes a list of {plan.batch}")
    packed = tuple([_packed(plan, each) for each in several])
    if not isinstance(b, np.ndarray):
        raise OperandError(
            f"b is a {type(b).__qualname__}: a NumPy array; for tensors call layoutgemm.quantized_matmul"
        )
    check_shape("b", b, (plan.k, plan.n))
    check_numpy_type(plan.b, b)
    if out is not None:
        check_numpy_out(plan, out)
    return packed, b


def _packed(plan: Sm90Plan, a: object) -> PackedWeights:
    if not isinstance(a, PackedWeights):
        raise OperandError(f"a is a {type(a).__qualname__}: the plan multiplies PackedWeights, as `pack` makes them")
    have, want = (a.format, a.activations, a.n, a.k), (plan.weights, plan.a.dtype.name, plan.m, plan.k)
    if have != want:
        raise OperandError(f"a is {a.n}x{a.k}, {a.format}, for {a.activations}; the plan takes {want}")
    return a


def _on_gpu(plan: Sm90Plan, units: np.ndarray, b: GlobalMatrix, words: tuple[Any, ...]) -> np.ndarray:
    """C by the kernel on torch's current GPU."""
    require_gpu(plan, None)
    import torch

    def there(x: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(x).view(np.uint8).reshape(-1)).cuda()

    arrays = [word for word in words if isinstance(word, np.ndarray)]
    tensors = [there(units), there(b.bits), *[there(x) for x in arrays]]
    addresses = iter([x.data_ptr() for x in tensors[2:]])
    numbers = [next(addresses) if isinstance(word, np.ndarray) else word for word in words]
    lines, inner = (plan.m, plan.n) if plan.c.order == "row" else (plan.n, plan.m)
    pitch = -(-inner // 16) * 16
    c = torch.zeros((lines, pitch), dtype=torch_type(plan.c.dtype), device="cuda")
    index = torch.cuda.current_device()
    sizes = (plan.m, plan.n, plan.k, plan.batch, plan.k, b.leading, pitch, 0, 0, lines * pitch)
    stream = torch.cuda.current_stream().cuda_stream
    pointers = [x.data_ptr() for x in (*tensors[:2], c)]
    compile_plan(plan).launch(*pointers, *sizes, resident(index, plan.cluster_size), *numbers, stream=stream)
    for array, tensor in zip(arrays, tensors[2:], strict=True):
        array.reshape(-1).view(np.uint8)[...] = tensor.cpu().numpy()
    found = c[:, :inner].float().cpu().numpy()
    return found if plan.c.order == "row" else np.ascontiguousarray(found.T)
