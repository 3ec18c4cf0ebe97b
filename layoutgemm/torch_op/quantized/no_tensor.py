"""Weights that are no tensors: attributes and arithmetic of tensors are refused with the way out.

weight.data, weight @ x, x * weight --> an error that names dense()
"""

from __future__ import annotations

from typing import NoReturn

from ...errors import OperandError


class NoTensor:
    """A weight of packed or float8 values: operators of Python refuse it by name.

    Raises AttributeError for attributes that tensors have, OperandError for arithmetic.

    >>> NoTensor() @ 2
    Traceback (most recent call last):
    ...
    layoutgemm.errors.OperandError: NoTensor is no tensor to compute with, dense() gives one: a module that reads a \
layer's weight itself keeps that layer, by where= of swap_linears
    """

    def __getattr__(self, name: str) -> NoReturn:
        said = f"{type(self).__name__!r} has no attribute {name!r}"
        raise AttributeError(f"{said}: it is no tensor, and dense() or dequantized() gives one")

    def _refused(self, other: object) -> NoReturn:
        raise OperandError(
            f"{type(self).__name__} is no tensor to compute with, dense() gives one: a module that reads a layer's "
            "weight itself keeps that layer, by where= of swap_linears"
        )

    __matmul__ = __rmatmul__ = __mul__ = __rmul__ = __add__ = __radd__ = __sub__ = __rsub__ = _refused
    __truediv__ = __rtruediv__ = _refused
