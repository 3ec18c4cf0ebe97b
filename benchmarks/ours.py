"""Our kernels as contenders."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.gemm_outcome import OURS
from benchmarks.peers import each
from layoutgemm.bench import Contender, Launch, Operands, Problem

# Name in the table -> "module:function" of a callable that takes torch tensors (a, b, c) and writes c = a @ b.T.
CALLABLES: dict[str, str] = {}


def ours(problem: Problem, callables: dict[str, str] | None = None) -> list[Contender]:
    """Every callable as a contender; it is imported when its turn comes."""
    chosen = CALLABLES if callables is None else callables
    return [Contender(name, _prepare(where), OURS) for name, where in chosen.items()]


def _prepare(where: str) -> Callable[[Sequence[Operands]], Sequence[Launch]]:
    return lambda sets: each(resolve(where))(sets)


def resolve(where: str) -> Callable[[Any, Any, Any], object]:
    """The object named "module:attribute".

    >>> resolve("math:hypot")(3.0, 4.0)
    5.0
    """
    module, _, attribute = where.partition(":")
    found = importlib.import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found  # type: ignore[return-value]
