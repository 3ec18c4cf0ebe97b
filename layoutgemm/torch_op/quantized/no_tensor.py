"""Weights that are no tensors. Attributes, arithmetic and functions of tensors are refused with the way out.

weight.data, weight @ x, torch.nn.functional.linear(x, weight) --> an error that names dense()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from ...arguments import shown
from ...errors import OperandError


class NoTensor:
    """A weight of packed or float8 values. Operators of Python and functions of torch refuse it by name.

    Raises AttributeError for attributes that tensors have, OperandError for arithmetic and for torch's functions.

    >>> class Weight(NoTensor):
    ...     def __repr__(self) -> str:
    ...         return "Weight([4, 2])"
    >>> Weight() @ 2
    Traceback (most recent call last):
    ...
    layoutgemm.errors.OperandError: Weight is no tensor to compute with, dense() gives one: a module that reads a \
layer's weight itself keeps that layer, by where= of swap_linears; here it reads Weight([4, 2])
    """

    def __getattr__(self, name: str) -> NoReturn:
        said = f"{type(self).__name__!r} has no attribute {name!r}"
        raise AttributeError(f"{said}: it is no tensor, and dense() or dequantized() gives one")

    def _refused(self, other: object) -> NoReturn:
        raise OperandError(
            f"{type(self).__name__} is no tensor to compute with, dense() gives one: a module that reads a layer's "
            f"weight itself keeps that layer, by where= of swap_linears; here it reads {shown(self)}"
        )

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., object], types: Sequence[type], args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> NoReturn:  # fmt: skip
        """Refuse a function of torch, which would say that an argument must be a Tensor."""
        given = [*args, *(kwargs or {}).values()]
        inside = [x for each in given for x in (each if isinstance(each, (list, tuple)) else [each])]
        next(x for x in inside if isinstance(x, NoTensor))._refused(function)

    __matmul__ = __rmatmul__ = __mul__ = __rmul__ = __add__ = __radd__ = __sub__ = __rsub__ = _refused
    __truediv__ = __rtruediv__ = _refused
