"""Contenders available wherever torch is: torch.mm and the algorithms that cuBLASLt's heuristic proposes.

Each is a `Contender` that is prepared when its turn comes. A missing or broken contender is then reported by name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .cublaslt import CublasLt, CublasLtProduct, HeuristicResult
from .method import BenchProblem, Contender, Launch, Operands

if TYPE_CHECKING:
    import torch

HEURISTICS = 12
KEEP = {"cublasLt": 2, "quack": 2}  # algorithms of such a family that stay after the short round


def each(
    function: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object],
) -> Callable[[Sequence[Operands]], list[Launch]]:
    """The `prepare` function of a kernel that takes a, b, c and writes c."""
    return lambda sets: [functools.partial(function, *s) for s in sets]


def torch_mm(problem: BenchProblem) -> list[Contender]:
    """torch.mm: the product that a torch user gets."""

    def prepare(sets: Sequence[Operands]) -> list[Launch]:
        import torch

        return each(lambda a, b, c: torch.mm(a, b.T, out=c))(sets)

    return [Contender("torch.mm", prepare, "torch.mm")]


@functools.lru_cache(maxsize=1)
def _cublaslt() -> CublasLt:
    return CublasLt()


def cublaslt_version() -> str:
    """The version of cuBLASLt, or why it cannot be read."""
    try:
        return str(_cublaslt().version)
    except Exception as error:
        return f"unknown ({type(error).__name__})"


def cublaslt(problem: BenchProblem) -> list[Contender]:
    """Up to twelve algorithms that cuBLASLt's heuristic proposes with 32 MB of workspace."""
    try:
        product = _cublaslt().product(problem.m, problem.n, problem.k, problem.b_major)
        found = product.algorithms(HEURISTICS)
    except Exception as error:
        return [broken("cublasLt", "cublasLt", error)]
    return [_algorithm(product, i, result) for i, result in enumerate(found)]


def _algorithm(product: CublasLtProduct, index: int, result: HeuristicResult) -> Contender:
    def prepare(sets: Sequence[Operands]) -> list[Launch]:
        return [product.launch(result, *s) for s in sets]

    return Contender(f"cublasLt#{index}", prepare, "cublasLt", product.describe(result))


def broken(name: str, family: str, error: Exception) -> Contender:
    """A contender that raises `error` when its turn comes."""

    def prepare(sets: Sequence[Operands]) -> list[Launch]:
        raise error

    return Contender(name, prepare, family)
