"""Plans with an epilogue, run on NumPy arrays. The compiled kernel on a GPU or in the emulator, operands by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, cast

import numpy as np

from ...dtypes import DType
from ...errors import OperandError
from ..epilogue.arrays import Arrays
from ..epilogue.chain import MAX_WORDS
from ..epilogue.numpy_math import Math
from ..epilogue.parameters import check_names, words_of
from ..operands.block_scales import NAMES
from ..operands.gated import HALVES
from ..orders import stored_elements
from ..sm80.plan import Sm80Plan
from ..sm90.plan import Sm90Plan
from ..sm100.plan import Sm100Plan
from .arrays import batched, check_arrays, check_shapes
from .epilogue_operands import names_read, through, values_read, words_of_tensors, words_read
from .operand_checks import check_operands, resolved
from .result import GemmResult
from .torch_tensors import check_tensors, chosen_device, launch, require_gpu, run_on_device

if TYPE_CHECKING:
    import torch

Plan = Sm80Plan | Sm90Plan | Sm100Plan
# It checks and places an epilogue's tensors. It imports this package, and so is named as data.
_TORCH_OP = f"{__name__.partition('.')[0]}.torch_op"


def run_fused(
    plan: Plan, a: np.ndarray | torch.Tensor, b: np.ndarray | torch.Tensor, given: Mapping[str, object],
    out: np.ndarray | torch.Tensor | None, device: str | None, copy: bool,
) -> GemmResult:  # fmt: skip
    """C = epilogue(A @ B): `numpy_arrays.run_plan` for a plan with an epilogue.

    NumPy arrays, or CUDA tensors of a plan that reads A, B, block scales and the epilogue's operands. What the steps
    write are results of NumPy arrays, and tensors in `given` of tensors.

    given   what the epilogue reads, by name: numbers, vectors along M or N, matrices of C's shape; with a main loop's
            tables, the offsets or counts of groups, further matrices and numbers
    device  "cuda", "emulator", or None: the GPU when there is one that can run the plan, else the emulator.
            "reference", of A, B, further matrices, a function of A and the epilogue: `Epilogue.reference` of float64
            products, whose function of several sums is in float32

    Raises OperandError for another device or tensors, and for operands that the epilogue does not take. Raises
    PlanError if the GPU cannot run the plan, and EmulatorError with the emulator's report.
    """
    others = _others(plan) if device == "reference" else ""
    arrays = isinstance(a, np.ndarray) and isinstance(b, np.ndarray)
    if getattr(a, "is_cuda", False) and device in (None, "cuda") and not set(names_read(plan)) - set(NAMES):
        return run_fused_on_tensors(plan, a, b, given, out, copy)
    if device not in (None, "cuda", "emulator", "reference") or others or not arrays:
        names = ", ".join(operand.name for operand in plan.epilogue.given) or "no operands"
        beside = f" beside {others}" if others else ""
        raise OperandError(
            f"the plan has an epilogue ({names}){beside}, which run() executes on NumPy arrays with device='cuda' or "
            "'emulator'; its reference is plan.epilogue.reference(a @ b, ...), and tensors go to "
            "layoutgemm.matmul(a, b, epilogue=, given=)"
        )
    if out is not None and not plan.epilogue.stores_c:
        raise OperandError("out is given, and the epilogue stores no C (stores_c=False)")
    check_shapes(plan, a, b)
    check_arrays(plan, a, b, out)
    if device == "reference":
        return _referred(plan, a, b, given).into(out)
    more = {name: given[name] for name in names_read(plan) if name in given}
    rest = {name: value for name, value in given.items() if name not in more}
    groups, of_a = plan.batch if plan.joined_rows else 0, dict.fromkeys(through(plan), plan.rows_of_a)
    first = plan.first_partials
    besides = Arrays(plan.epilogue, batched(plan, (plan.m, plan.n)), rest, plan.partial_bytes, groups, first, of_a)
    words, own = besides.words, len(plan.epilogue.words)
    if len(plan.words) > own:
        words = (*words[:own], *words_read(plan, values_read(plan, more)))[:MAX_WORDS]
    chosen, why = chosen_device(plan, device, otherwise="emulator")
    result = run_on_device(plan, a, b, chosen, why, copy, None, words)
    if not plan.epilogue.stores_c:
        return replace(result, c=None, written=besides.written())
    return replace(result.into(out), written=besides.written())


def run_fused_on_tensors(
    plan: Plan, a: torch.Tensor, b: torch.Tensor, given: Mapping[str, object], out: torch.Tensor | None, copy: bool
) -> GemmResult:
    """The kernel on CUDA tensors, read and written in place. `copy` is of A, B and C."""
    import torch

    of, fill = import_module(f"{_TORCH_OP}.epilogue"), import_module(f"{_TORCH_OP}.launch").fill
    steps, shape = plan.epilogue, batched(plan, (plan.m, plan.n))
    scales = {name: given[name] for name in names_read(plan) if name in given}  # block scales alone
    given = {name: value for name, value in given.items() if name not in scales}
    check_names([operand.name for operand in steps.given], given)
    if steps.pairs or steps.lines:
        raise OperandError(
            "the plan reads two or more columns of an operand at once: matmul makes and checks such plans"
        )
    tensors = {operand.name: cast("torch.Tensor", given[operand.name]) for operand in steps.given if not operand.host}
    read, written = ({name: tensors[name] for name in names} for names in (steps.reads, steps.writes))
    check_tensors(plan, a, b, out, read)
    check_operands({"a": a, "b": b, **read}, {**written, **({} if out is None else {"out": out})})
    placed = {operand.name: given[operand.name] for operand in steps.numbers}
    for operand in steps.given:
        if operand.name in tensors:
            x = tensors[operand.name]
            of.check_operand(operand, x, shape)
            if operand.rank == 2 and of.order_of(operand, x) != operand.order and min(x.shape[-2:]) > 1:
                raise OperandError(f"{operand.name}: the plan takes it {operand.order}-major, strides {x.stride()}")
            placed[operand.name] = of.placed_of(operand, x, plan.batch > 1)
    require_gpu(plan, a.device.index)
    memory = torch.empty(max(16, plan.partial_bytes), dtype=torch.uint8, device=a.device)
    fill(memory, plan.first_partials)
    words = words_of(steps, placed, memory.data_ptr())
    if names_read(plan):
        words = (*words[: len(steps.words)], *words_of_tensors(plan, scales, a.device))[:MAX_WORDS]
    result = launch(plan, resolved(a.detach()), resolved(b.detach()), out, "", copy, words)
    return replace(result, c=result.c if steps.stores_c else None, written=written)


def _others(plan: Plan) -> str:
    """A part of the plan that no reference of an epilogue has, or ""."""
    parts = [name for name in ("mainloop", "triangles") if getattr(plan, name, None) is not None]
    own = {*plan.further, *plan.numbers_given, *(() if plan.prologue is None else plan.prologue.names)}
    return ", ".join((*parts, *[name for name in names_read(plan) if name not in own]))


def _referred(plan: Plan, a: np.ndarray, b: np.ndarray, given: Mapping[str, object]) -> GemmResult:
    """The epilogue by NumPy, on float64 products. Values are rounded to A's and B's types."""
    own = {name: given[name] for name in names_read(plan) if name in given}
    read, how = values_read(plan, own), plan.gated

    def exact(kind: DType, value: object) -> np.ndarray:
        return np.asarray(kind.decode(kind.encode(np.asarray(value))), np.float64)

    left = exact(plan.a.dtype, a)
    if plan.prologue is not None:
        left = exact(plan.a.dtype, plan.prologue.reference(left.astype(np.float32), read))
    further = {name: exact(operand.dtype, given[name]) for name, (operand, _) in plan.further.items()}
    names = [name for name, _ in how.places] if how is not None else []
    sums = [left @ matrix for matrix in (exact(plan.b.dtype, b), *[further[name] for name in names])]
    if plan.pair is not None:
        sums = [x + further["a2"] @ further[name] for x, name in zip(sums, plan.pair.of_b, strict=True)]
    gate = None if how is None else partial(how.apply, math=Math, numbers={name: read[name] for name in how.numbers})
    visited, total = stored_elements(plan, {}), np.concatenate(sums, -1)
    if gate is not None and len(sums) > HALVES:  # no steps precede a function of more
        total, gate = np.asarray(gate([x.astype(np.float32) for x in sums])), None
    steps = {name: value for name, value in given.items() if name not in own}
    found = plan.epilogue.reference_of_sums(total, gate, visited, **steps)
    if not plan.epilogue.stores_c:
        return GemmResult(None, "NumPy", written=found.written)
    c = np.asarray(plan.c.dtype.decode(plan.c.dtype.encode(found.c)), np.float32)
    c = c if visited is None else np.where(visited, c, np.float32(0))
    return GemmResult(c, "NumPy", written=found.written)
