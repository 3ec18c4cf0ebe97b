"""Running a plan with packed weights on NumPy arrays: the executor, the emulator, or the kernel on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import OperandError, PlanError
from ..compile.compiler import compile_plan
from ..epilogue.arrays import Arrays
from ..plan import MAX_WORDS
from ..sm90.plan import Sm90Plan
from ..sm90.quantized.formats import COLUMN_SCALE
from ..sm90.quantized.packing import PackedWeights
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

    The scale of whole columns is the weights' own. Raises OperandError for operands that are not the plan's, PlanError
    where the NumPy executor is asked for an epilogue.
    """
    packed, x = check_operands_of(plan, a, b, out)
    if device not in (None, *DEVICES):
        raise OperandError(f"device {device!r}: known are {', '.join(map(repr, DEVICES))}, or None to choose")
    chosen, why = chosen_device(plan, device, otherwise="emulator" if plan.epilogue else "reference")
    words: tuple[Any, ...] = (0,) * MAX_WORDS
    written: dict[str, np.ndarray] = {}
    if plan.epilogue:
        if chosen == "reference":
            raise PlanError("the plan has an epilogue, which the NumPy executor does not compute: device='emulator'")
        own = {} if packed.scales is None else {COLUMN_SCALE: packed.scales}
        besides = Arrays(plan.epilogue, (plan.m, plan.n), {**given, **own})
        words = besides.words
    elif given:
        raise OperandError(f"given = {', '.join(given)}: the plan reads a and b alone")
    copies: list[str] = []
    matrix = global_matrix(plan.b, x, copies, copy)
    if chosen == "cuda":
        c, where = _on_gpu(plan, packed, matrix, words), "GPU"
    else:
        bits = packed.units.reshape(-1)
        c = executed(plan, GlobalMatrix(bits, bits.size, (bits.size, 1)), matrix, chosen, words=words)
        where = "emulator" if chosen == "emulator" else "NumPy executor"
    if plan.epilogue:
        written = besides.written()
    return GemmResult(c, where, why, tuple(copies), written=written).into(out)


def check_operands_of(plan: Sm90Plan, a: object, b: object, out: object) -> tuple[PackedWeights, np.ndarray]:
    """The operands; raises OperandError unless they are the plan's."""
    if not isinstance(a, PackedWeights):
        raise OperandError(f"a is a {type(a).__qualname__}: the plan multiplies PackedWeights, as `pack` makes them")
    if not isinstance(b, np.ndarray):
        raise OperandError(
            f"b is a {type(b).__qualname__}: a NumPy array; for tensors call layoutgemm.quantized_matmul"
        )
    have, want = (a.format, a.activations, a.n, a.k), (plan.weights, plan.b.dtype.name, plan.m, plan.k)
    if have != want:
        raise OperandError(f"a is {a.n}x{a.k}, {a.format}, for {a.activations}; the plan takes {want}")
    check_shape("b", b, (plan.k, plan.n))
    check_numpy_type(plan.b, b)
    if out is not None:
        check_numpy_out(plan, out)
    return a, b


def _on_gpu(plan: Sm90Plan, packed: PackedWeights, b: GlobalMatrix, words: tuple[Any, ...]) -> np.ndarray:
    """C by the kernel on torch's current GPU."""
    require_gpu(plan, None)
    import torch

    def there(x: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(x).view(np.uint8).reshape(-1)).cuda()

    arrays = [word for word in words if isinstance(word, np.ndarray)]
    tensors = [there(packed.units), there(b.bits), *[there(x) for x in arrays]]
    addresses = iter([x.data_ptr() for x in tensors[2:]])
    numbers = [next(addresses) if isinstance(word, np.ndarray) else word for word in words]
    lines, inner = (plan.m, plan.n) if plan.c.order == "row" else (plan.n, plan.m)
    pitch = -(-inner // 16) * 16
    c = torch.zeros((lines, pitch), dtype=torch_type(plan.c.dtype), device="cuda")
    index = torch.cuda.current_device()
    sizes = (plan.m, plan.n, plan.k, 1, plan.k, b.leading, pitch, 0, 0, lines * pitch)
    stream = torch.cuda.current_stream().cuda_stream
    pointers = [x.data_ptr() for x in (*tensors[:2], c)]
    compile_plan(plan).launch(*pointers, *sizes, resident(index, plan.cluster_size), *numbers, stream=stream)
    for array, tensor in zip(arrays, tensors[2:], strict=True):
        array.reshape(-1).view(np.uint8)[...] = tensor.cpu().numpy()
    found = c[:, :inner].float().cpu().numpy()
    return found if plan.c.order == "row" else np.ascontiguousarray(found.T)
