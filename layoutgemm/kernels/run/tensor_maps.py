"""Tensors as TMA takes them: lines of 16-byte units, or copies into such lines. C by tensor stores, or by threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ...atoms import TmaPlan
from ...atoms.tma.rules import STRIDE_UNIT
from ...dtypes import DType
from ..alignment import rows_misfit
from ..derive import OperandPlan, is_padded, memory_unit, padded_leading
from ..grouped.stores import without_groups
from ..operands.gated import as_one_matrix
from ..plan import GemmPlan, present
from ..sm90.plan import Sm90Plan
from ..sm100.plan import Sm100Plan
from .arrays import raw_bits, refuse_or_note
from .cpu import run_on_cpu
from .occupancy import resident
from .operand_checks import tensor_misfit
from .partial import written_tensor
from .torch_tensors import OperandPath, copyable

if TYPE_CHECKING:
    import torch


# Plans whose kernels take pitches of a batch and a number of workers.
PERSISTENT = (Sm90Plan, Sm100Plan)


def lines_of(
    plan: GemmPlan, name: str, tensor: torch.Tensor, copies: list[str], copy: bool
) -> tuple[torch.Tensor, int, int]:
    """(lines, leading, pitch) of "A", "B", or a further matrix by its name. A gated product's B is one matrix."""
    if name == "A" and isinstance(plan, Sm90Plan) and plan.copies_rows and tensor.stride(-1) == 1:
        # Threads copy its rows, which may lie at any distance. Tensor copies read those of an A2.
        return tensor, int(tensor.stride(-2)), int(tensor.stride(0)) if tensor.ndim > 2 else 0
    return tma_operand(plan.a if name[0] in "Aa" else as_one_matrix(plan.b), tensor, copies, copy)


def tma_operand(
    operand: OperandPlan, tensor: torch.Tensor, copies: list[str], copy: bool
) -> tuple[torch.Tensor, int, int]:
    """(lines, leading, pitch). The tensor itself where tensor copies can read it in the plan's order, else a copy.

    Rules: the plan's contiguous index has stride 1; lines do not overlap; the leading dimension, and the distance of a
    batch's matrices, are multiples of 16 bytes; the address is a multiple of 16 bytes. Of padded elements it is 32.
    """
    name = operand.name.lower()
    lines = tensor if operand.order == "row" else tensor.transpose(-1, -2)
    rows, extent = lines.shape[-2:]
    leading, pitch = _distances(lines, memory_unit(operand.dtype))
    made = padded_leading(memory_unit(operand.dtype), extent)
    rule = tensor_misfit(tensor, operand.order, operand.tma.kind.unit if is_padded(operand) else STRIDE_UNIT)
    if not rule and lines.ndim > 2 and pitch <= 0:
        rule = f"matrices of the batch lie {pitch} elements apart, and a tensor map's at a positive distance"
    if not rule and lines.ndim > 2 and all(_has_rows_alone(tma) for tma in operand.copies):
        rule = rows_misfit(leading, pitch)
    if not rule:
        _check_maps(operand, name, lines, leading, pitch)
        return lines, leading, pitch
    refuse_or_note(f"{name}: {rule}", f"pitch {made}", copies, copy)
    copied = LineCopy(operand.order != "row", made).of(tensor)
    _check_maps(operand, name, copied, made, rows * made)
    return copied, made, rows * made


class LineCopy(NamedTuple):
    """A copy of an operand that TMA cannot read, into lines along its contiguous index.

    transposed  whether the lines are the tensor's columns
    pitch       elements from line to line
    matrices    of a batch for which the kernel reads a matrix each; () for one. A tensor without them is all of them

    >>> import torch
    >>> copied = LineCopy(True, 8).of(torch.arange(6).view(2, 3))
    >>> copied.tolist(), copied.stride()
    ([[0, 3], [1, 4], [2, 5]], (8, 1))
    """

    transposed: bool
    pitch: int
    matrices: tuple[int, ...] = ()

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The lines (..., lines, elements), copied from a tensor (..., rows, columns)."""
        lines = tensor.transpose(-1, -2) if self.transposed else tensor
        if len(self.matrices) > lines.ndim - 2:
            lines = lines.expand(*self.matrices, *lines.shape[-2:])
        *front, extent = lines.shape
        made = tensor.new_empty((*front, self.pitch)).narrow(-1, 0, extent)
        copyable(made).copy_(copyable(lines))
        return made


def _distances(lines: torch.Tensor, dtype: DType) -> tuple[int, int]:
    """Elements from line to line and from matrix to matrix; where there is one alone, any that a tensor map takes."""
    rows, extent = lines.shape[-2:]
    leading = int(lines.stride(-2)) if rows > 1 else padded_leading(dtype, extent)
    return leading, int(lines.stride(0)) if lines.ndim > 2 and lines.shape[0] > 1 else rows * leading


def _check_maps(operand: OperandPlan, name: str, lines: torch.Tensor, leading: int, pitch: int) -> None:
    shape = tuple(reversed(lines.shape))
    if is_padded(operand):  # whose map counts elements
        bits = operand.dtype.bits
        leading, pitch, shape = leading * 8 // bits, pitch * 8 // bits, (shape[0] * 8 // bits, *shape[1:])
    for tma in operand.copies:
        _check_map(tma, name, lines.data_ptr(), shape, leading, pitch)


def _check_map(tma: TmaPlan, name: str, address: int, shape: tuple[int, ...], leading: int, pitch: int) -> None:
    if len(shape) > 2 and _has_rows_alone(tma):
        shape = shape[0], shape[1] + (shape[2] - 1) * (pitch // leading)
    without_groups(tma).check_global(name, address, shape, (leading, pitch)[: len(shape) - 1])


def _has_rows_alone(tma: TmaPlan) -> bool:
    """True if the tensor map has a batch's matrices as rows of one matrix."""
    return len(without_groups(tma).dims) == 2


def arguments(
    plan: GemmPlan, a: tuple[torch.Tensor, int, int], b: tuple[torch.Tensor, int, int], c: torch.Tensor, index: int
) -> tuple[int, ...]:
    """The launch's sizes, leading dimensions, pitches and workers."""
    (_, lda, pitch_a), (_, ldb, pitch_b) = a, b
    if not isinstance(plan, PERSISTENT):
        return (plan.m, plan.n, plan.k, lda, ldb, c.stride(0) if plan.m > 1 else plan.n)
    ldc, pitch_c = _distances(c if plan.c.order == "row" else c.transpose(-1, -2), plan.c.dtype)
    sizes = (plan.m, plan.n, plan.k, plan.batch, lda, ldb, ldc, pitch_a, pitch_b, pitch_c)
    return (*sizes, resident(index, plan.cluster_size))


def target(
    plan: GemmPlan, out: torch.Tensor | None, device: torch.device, copies: list[str], copy: bool
) -> tuple[torch.Tensor, bool]:
    """(tensor that the kernel writes, whether it is copied into `out` afterwards)."""
    extent = plan.n if plan.c.order == "row" else plan.m
    through_maps = isinstance(plan, PERSISTENT) and plan.store is not None
    pitch = padded_leading(plan.c.dtype, extent) if through_maps else extent
    rule = _store_rule(plan, out) if out is not None and isinstance(plan, PERSISTENT) else ""
    return written_tensor(plan, out, rule, pitch, device, copies, copy)


def _store_rule(plan: Sm90Plan | Sm100Plan, out: torch.Tensor) -> str:
    """Why the kernel cannot write into `out`, or ""."""
    lines = out if plan.c.order == "row" else out.transpose(-1, -2)
    if rule := tensor_misfit(out, plan.c.order, STRIDE_UNIT if plan.stores_by_maps else 1):
        return f"out: {rule}"
    if not plan.stores_by_maps:
        return ""
    if plan.line_overrun:  # what follows a line of the caller's tensor may belong to another tensor
        return plan.line_overrun
    tma, (leading, pitch) = present(plan.store).maps[0], _distances(lines, plan.c.dtype)
    if lines.ndim > 2 and _has_rows_alone(tma) and (rule := rows_misfit(leading, pitch)):
        return f"out: {rule}"
    _check_map(tma, "out", lines.data_ptr(), tuple(reversed(lines.shape)), leading, pitch)
    return ""


BY_MAPS = OperandPath(raw_bits, run_on_cpu, lines_of, target, arguments)
