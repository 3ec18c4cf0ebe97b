"""Marks of functions for torch.compile, without an import of torch.

constant_in_graphs    a trace calls the function once, and keeps the result
NoticedInGraphs       a base of objects with slots, whose end a graph hears of
not_in_graphs         a trace of fullgraph=True is refused there, in words of ours; else the graph breaks
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

F = TypeVar("F", bound=Callable[..., object])

_MADE_BEFORE = (
    "epilogues, prologues, layouts and configurations of layoutgemm are made before the compiled function is called; "
    "epilogues and prologues also by Epilogue.named, by from_json, or in a function marked by "
    "torch.compiler.assume_constant_result"
)


def constant_in_graphs(function: F) -> F:
    """The function, marked: a trace calls it and keeps the result.

    torch.compiler.assume_constant_result sets the same mark, but imports the whole compiler.

    >>> constant_in_graphs(lambda: 3)()
    3
    """
    function.__dict__["_dynamo_marked_constant"] = True
    return function


def not_in_graphs(function: F) -> F:
    """The function, marked: torch.compile does not trace it, and says what to do.

    torch.compiler.disable sets the same marks, but imports the whole compiler.

    No constant function can make an epilogue of steps that the trace has made: torch 2.13 hands it frozen classes
    without the values of their fields.

    >>> not_in_graphs(lambda: 3)()
    3
    """
    function.__dict__["_torchdynamo_disable"] = True
    function.__dict__["_torchdynamo_disable_msg"] = _MADE_BEFORE
    return function


class NoticedInGraphs:
    """An object with slots whose end a compiled graph hears of.

    A graph keeps constants that were made of it. Without a weak reference another object at the same address is taken
    for it.
    """

    __slots__ = ("__weakref__",)
