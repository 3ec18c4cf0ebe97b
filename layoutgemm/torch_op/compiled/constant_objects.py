"""Constant functions of objects: a trace calls them once and keeps the result.

torch before 2.13 makes a constant of no object but those that it can rebuild, and raises NotImplementedError for a
configuration or a layout. So a call that it traces hands on where an object lies. A trace guards that: the same object.
"""

from __future__ import annotations

import ctypes
import enum
import functools
import types
from collections.abc import Callable
from typing import TypeVar, cast

import torch

from ...graph_marks import constant_in_graphs

F = TypeVar("F", bound=Callable[..., object])

BY_ADDRESS = torch.__version__ < (2, 13)

# What every torch makes a constant of. The items of a tuple may be a constant function's, which no trace looks at.
_CONSTANTS = (
    bool, int, float, str, type(None), type, tuple, list, dict, enum.Enum, torch.dtype, torch.device, torch.Tensor,
    types.FunctionType, types.BuiltinFunctionType, types.CodeType, torch._ops.OpOverload, torch.SymInt, torch.SymFloat,
    torch.SymBool,
)  # fmt: skip


def constant_of_objects(function: F) -> F:
    """The function, marked: a trace calls it and keeps the result, whatever objects are given.

    torch before 2.13 refuses a tuple, a list or a dict that has objects.

    >>> constant_of_objects(lambda x, y: (x, y))(3, object)
    (3, <class 'object'>)
    """

    @constant_in_graphs
    def whole(*given: object) -> object:
        return function(*given)

    @constant_in_graphs
    def by_address(addressed: tuple[bool, ...], *given: object) -> object:
        return function(*[_object_at(x) if at else x for at, x in zip(addressed, given, strict=True)])

    @functools.wraps(function)
    def called(*given: object) -> object:
        if not torch.compiler.is_dynamo_compiling():
            return function(*given)
        if not BY_ADDRESS:
            return whole(*given)
        addressed = tuple([not _is_constant(x) for x in given])
        return by_address(addressed, *[id(x) if at else x for at, x in zip(addressed, given)])

    return cast(F, called)


def _is_constant(x: object) -> bool:
    """True for what every torch makes a constant of. No enumeration of C++, such as torch's ScalingType, is one."""
    return isinstance(x, _CONSTANTS)


def _object_at(address: object) -> object:
    """The object there. It is alive: the trace that took its address holds it."""
    return ctypes.cast(cast(int, address), ctypes.py_object).value
