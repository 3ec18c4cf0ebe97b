"""Functions that torch.compile calls once, while it traces: their results are constants of the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

F = TypeVar("F", bound=Callable[..., object])


def constant_in_graphs(function: F) -> F:
    """The function, marked: a trace calls it and keeps the result.

    torch.compiler.assume_constant_result sets the same mark, but imports the whole compiler.

    >>> constant_in_graphs(lambda: 3)()
    3
    """
    function.__dict__["_dynamo_marked_constant"] = True
    return function
