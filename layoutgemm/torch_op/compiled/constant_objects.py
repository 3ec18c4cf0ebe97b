"""Constant functions of objects, in every torch: a trace calls them once and keeps the result.

torch before 2.13 makes a constant of no object but those that it can rebuild, and raises NotImplementedError for a
configuration or a layout. So a traced call hands on where an object lies. A trace guards that: the same object.
"""

from __future__ import annotations

import ctypes
import enum
import functools
import types
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

from ...graph_marks import constant_in_graphs

F = TypeVar("F", bound=Callable[..., object])

# What every torch makes a constant of
_CONSTANTS = (
    bool, int, float, str, type(None), type, enum.Enum, torch.dtype, torch.device, torch.Tensor, types.FunctionType,
    types.CodeType, torch.SymInt, torch.SymFloat, torch.SymBool,
)  # fmt: skip
_AT, _AS_IS, _TAPE = "at", "as it is", "tape"  # a tape's tuple, of constants alone, begins with its name


def constant_of_objects(function: F) -> F:
    """The function, marked: a trace calls it and keeps the result, whatever objects are given.

    >>> constant_of_objects(lambda x, y: (x, y))(3, [object])
    (3, [<class 'object'>])
    """

    @constant_in_graphs
    def handed(*given: Any) -> object:
        return function(*[_object(x) for x in given])

    @functools.wraps(function)
    def called(*given: object) -> object:
        return handed(*[_handle(x) for x in given]) if torch.compiler.is_dynamo_compiling() else function(*given)

    return cast(F, called)


def _handle(x: object) -> object:
    """An object's address, as a trace takes it, behind the word for one. Constants as they are."""
    if isinstance(x, _CONSTANTS):
        return x
    if isinstance(x, (tuple, list)):
        if x and type(x[0]) is str and x[0] == _TAPE:
            return _AS_IS, x
        return type(x), [_handle(each) for each in x]
    return _AT, id(x)


def _object(x: Any) -> object:
    if type(x) is not tuple:
        return x
    kind, value = x
    if kind == _AT:  # alive: the trace that took the address holds it
        return ctypes.cast(value, ctypes.py_object).value
    if kind == _AS_IS:
        return value
    parts = [_object(each) for each in value]
    return kind(parts) if kind in (tuple, list) else kind(*parts)
