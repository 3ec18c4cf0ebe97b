"""Operands of an Sm80Plan: lines of any pitch that the plan's alignment states.

An operand that is not so aligned, or is stored in the other order, is copied where the caller allows it, and the result
says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ..derive import memory_unit
from ..indexed.added_rows import added_rows, in_product_order
from ..plan import rounded_up
from ..sm80.operand import Sm80Operand
from ..sm80.plan import Sm80Plan
from ..streamed.operands import StreamedRows
from .arrays import raw_bits, refuse_or_note
from .cpu import progress_line, stored_lines
from .occupancy import resident
from .operand_checks import tensor_misfit
from .partial import written_tensor
from .result import GemmResult
from .torch_tensors import OperandPath, copyable

if TYPE_CHECKING:
    import torch


Lines = Sm80Operand | StreamedRows  # operands that lie in lines of any pitch
WORKERS = 2  # blocks of a persistent grid in the emulator: each has several tiles


def lines_of_bits(operand: Lines, value: np.ndarray) -> np.ndarray:
    """Raw bits as (batch, lines, elements): lines are contiguous in the plan's order."""
    lines = value if operand.order == "row" else value.swapaxes(-1, -2)
    return np.ascontiguousarray(raw_bits(operand, lines.reshape((-1, *lines.shape[-2:])), rounds=True))


def run_on_cpu(
    plan: Sm80Plan, a: np.ndarray | torch.Tensor, b: np.ndarray | torch.Tensor, device: str, why: str, copy: bool,
    values: Mapping[str, object] | None = None, words: tuple[object, ...] = (),
) -> GemmResult:  # fmt: skip
    """Run the NumPy executor ("reference"), or the emulator, on arrays that have been checked.

    copy           unused: these kernels take rows of any pitch
    values, words  further operands by name for the executor, as the launch's last arguments for the kernel
    """
    bits = lines_of_bits(plan.a, a), lines_of_bits(plan.b, b)
    kind = np.float32 if plan.c.dtype.kind == "float" else np.int32
    if device == "reference":
        ordered = {} if values is None else {"given": values}
        product = in_product_order(plan)
        c = np.asarray(product.does("execute")(product, *bits, progress=progress_line(), **ordered), kind)
        return GemmResult(added_rows(plan, c, values), "NumPy executor", why)
    padded = [padded_lines(op, x, plan.config.align[i]) for i, (op, x) in enumerate(zip((plan.a, plan.b), bits))]
    (lines_a, lda), (lines_b, ldb) = padded
    shape = plan.matrices_of_c, plan.rows_of_c, pitch_of_c(plan)
    strides = lines_a[0].size, lines_b[0].size, shape[1] * shape[2]
    sizes = (plan.m, plan.n, plan.k, plan.batch, lda, ldb, shape[2], *strides)
    workers = [WORKERS] * ("workers" in plan.parameters)

    def launch(bits_c: np.ndarray) -> None:
        arguments = (lines_a, lines_b, bits_c, *sizes, *workers, *words)
        plan.does("emulate")(plan, arguments).raise_for_findings()

    bits_c, _ = stored_lines(plan, shape, plan.n, launch)
    found = np.asarray(plan.c.dtype.decode(bits_c[:, :, : plan.n]), kind)
    return GemmResult(found if plan.matrices_of_c > 1 else found[0], "emulator", why)


def pitch_of_c(plan: Sm80Plan) -> int:
    """Elements from line to line of a C that the plan's alignment fits."""
    return rounded_up(plan.n, max(1, plan.config.align[2] // plan.c.dtype.bytes))


def padded_lines(operand: Lines, bits: np.ndarray, align: int) -> tuple[np.ndarray, int]:
    """(lines whose pitch is a multiple of `align` bytes, elements of the pitch)."""
    pitch = rounded_up(bits.shape[2], max(1, align // memory_unit(operand.dtype).bytes))
    out = np.zeros((*bits.shape[:2], pitch), bits.dtype)
    out[:, :, : bits.shape[2]] = bits
    return out, pitch


def target(
    plan: Sm80Plan, out: torch.Tensor | None, device: torch.device, copies: list[str], copy: bool
) -> tuple[torch.Tensor, bool]:
    """(tensor that the kernel writes, whether it is copied into `out` afterwards)."""
    align = plan.config.align[2]
    rule = "" if out is None else tensor_misfit(out, "row", align)
    return written_tensor(plan, out, f"out: {rule}" if rule else "", pitch_of_c(plan), device, copies, copy)


def arguments(
    plan: Sm80Plan, a: tuple[torch.Tensor, int, int], b: tuple[torch.Tensor, int, int], c: torch.Tensor, index: int
) -> tuple[int, ...]:
    """The launch's sizes, leading dimensions, pitches and, of a persistent kernel, workers."""
    ldc, pitch_c = _distances(c)
    sizes = (plan.m, plan.n, plan.k, plan.batch, a[1], b[1], ldc, a[2], b[2], pitch_c)
    return (*sizes, resident(index, 1) * plan.config.blocks_per_sm) if "workers" in plan.parameters else sizes


def _distances(lines: torch.Tensor) -> tuple[int, int]:
    """Elements from line to line, and from matrix to matrix of a batch."""
    leading = int(lines.stride(-2)) if lines.shape[-2] > 1 else int(lines.shape[-1])
    return leading, int(lines.stride(0)) if lines.ndim > 2 and lines.shape[0] > 1 else 0


def lines_of(
    plan: Sm80Plan, name: str, tensor: torch.Tensor, copies: list[str], copy: bool
) -> tuple[torch.Tensor, int, int]:
    """(lines, leading, pitch): the tensor itself, or a copy that the plan can take."""
    import torch

    operand, align = (plan.a, plan.config.align[0]) if name[0] in "Aa" else (plan.b, plan.config.align[1])
    size = memory_unit(operand.dtype).bytes
    lines = tensor if operand.order == "row" else tensor.transpose(-1, -2)
    if rule := tensor_misfit(tensor, operand.order, align):
        refuse_or_note(f"{operand.name.lower()}: {rule}", f"lines at multiples of {align} bytes", copies, copy)
        unit = max(1, align // size)
        width = -(-lines.shape[-1] // unit) * unit
        made = torch.empty((*lines.shape[:-1], width), dtype=tensor.dtype, device=tensor.device)[..., : lines.shape[-1]]
        copyable(made).copy_(copyable(lines))
        lines = made
    leading, pitch = _distances(lines)
    if lines.shape[-2] == 1:  # one line has no pitch; a tensor map wants one that it takes
        unit = max(1, align // size)
        leading = -(-leading // unit) * unit
    return lines, leading, pitch


BY_LINES = OperandPath(partial(raw_bits, rounds=True), run_on_cpu, lines_of, target, arguments)
