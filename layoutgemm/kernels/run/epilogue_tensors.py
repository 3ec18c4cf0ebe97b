"""An epilogue's operands as CUDA tensors: checked, and placed as a kernel's parameters carry them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import OperandError, TensorError
from ..epilogue.parameters import PlacedOperand
from ..epilogue.steps import EpilogueOperand
from .torch_tensors import torch_type

if TYPE_CHECKING:
    import torch


def check_operand(operand: EpilogueOperand, x: torch.Tensor, shape: tuple[int, ...], joined: int = 0) -> None:
    """Raise TensorError or OperandError for another type, shape or strides than a kernel takes.

    shape   of C, a batch in front
    joined  groups that share the rows of one C, each with columns of its own
    """
    name = operand.name
    if x.dtype != torch_type(operand.dtype):
        way = f": {name}.int()" if operand.dtype.kind == "int" and not operand.written else ""
        raise TensorError(f"{name} is {x.dtype}; the epilogue's step says {torch_type(operand.dtype)}{way}")
    *batch, m, n = shape
    one = operand.shape(m, n)
    several = (joined, *one) if joined and operand.axes == "n" else (*batch, *one)
    fits = [one, several] if operand.axes else [(), (1,)]
    if operand.written and operand.axes:
        fits = fits[1:]
    if tuple(x.shape) not in fits:
        texts = " or ".join(str(list(fit)) for fit in dict.fromkeys(fits))
        raise TensorError(f"{name} has shape {list(x.shape)}; for a product of shape {list(shape)} it is {texts}")
    way = f"write to a contiguous tensor, and copy it to {name}" if operand.written else f"{name}.contiguous()"
    if len(operand.axes) == 1 and x.shape[-1] > 1 and x.stride(-1) != 1:
        raise OperandError(f"{name}: elements lie {x.stride(-1)} apart, strides {x.stride()}; {way}")
    if operand.count > 1 and x.shape[-2] > 1 and x.stride(-2) != x.shape[-1]:
        raise OperandError(f"{name}: lines of {x.shape[-1]} lie {x.stride(-2)} apart, and a kernel's are side by side")
    if operand.axes == "mn" and not order_of_matrices(x):
        raise OperandError(f"{name}: strides {x.stride()} leave neither rows nor columns contiguous; {way}")


def order_of_matrices(x: torch.Tensor) -> str:
    """Which index of the matrices is contiguous: "row" for the column index; "" for neither."""
    rows, columns = x.shape[-2:]
    if columns == 1 or x.stride(-1) == 1:
        return "row"
    return "col" if rows == 1 or x.stride(-2) == 1 else ""


def placed_of(operand: EpilogueOperand, x: torch.Tensor, several: bool = True) -> PlacedOperand:
    """The place of a tensor's elements.

    several  matrices, each with operands of its own where x has one rank more
    """
    if not operand.axes:
        return PlacedOperand(x.data_ptr())
    leading = 0
    if operand.axes == "mn":
        across, along = (-2, -1) if order_of_matrices(x) == "row" else (-1, -2)
        leading = x.stride(across) if x.shape[across] > 1 else x.shape[along]
    return PlacedOperand(x.data_ptr(), leading, x.stride(0) if several and x.ndim > operand.rank else 0)


__all__ = ["check_operand", "order_of_matrices", "placed_of"]
