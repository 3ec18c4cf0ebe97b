"""The kernels to compare with: torch.mm, cuBLASLt's proposals, quack-kernels; and compiled CuTe DSL objects.

Each is a `Contender` that is prepared when its turn comes, so that one that is missing or broken is reported by name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.cublaslt import CublasLt, Product
from layoutgemm.bench import Contender, Launch, Operands, Problem

HEURISTICS = 12

# Peers that the table does not run, and why.
LEFT_OUT = {
    "DeepGEMM": "needs its C++ extension and CUTLASS's headers built on the machine that measures",
}


def each(function: Callable[[Any, Any, Any], object]) -> Callable[[Sequence[Operands]], list[Launch]]:
    """`prepare` of a function that takes a, b, c and writes c."""
    return lambda sets: [functools.partial(function, *s) for s in sets]


def torch_mm(problem: Problem) -> list[Contender]:
    """What a torch user gets."""
    return [Contender("torch.mm", each(lambda a, b, c: torch.mm(a, b.T, out=c)), "torch.mm")]


@functools.lru_cache(maxsize=1)
def _cublaslt() -> CublasLt:
    return CublasLt()


def cublaslt(problem: Problem) -> list[Contender]:
    """The first twelve algorithms that cuBLASLt's heuristic proposes with 32 MB of workspace."""
    try:
        product = _cublaslt().product(problem.m, problem.n, problem.k, problem.b_major)
        found = product.algorithms(HEURISTICS)
    except Exception as error:
        return [broken("cublasLt", "cublasLt", error)]
    return [_algorithm(product, i, result) for i, result in enumerate(found)]


def _algorithm(product: Product, index: int, result: Any) -> Contender:
    def prepare(sets: Sequence[Operands]) -> list[Launch]:
        return [product.launch(result, *s) for s in sets]

    return Contender(f"cublasLt#{index}", prepare, "cublasLt", product.describe(result))


def broken(name: str, family: str, error: Exception) -> Contender:
    """One that reports that error when its turn comes."""

    def prepare(sets: Sequence[Operands]) -> list[Launch]:
        raise error

    return Contender(name, prepare, family)


def dsl_object(name: str, path: Path, family: str) -> Contender:
    """A kernel compiled by the CuTe DSL with TVM-FFI, exported with `export_to_c` as `func(a, b, c)`.

    It must have been compiled for torch's current stream (`make_fake_stream(use_tvm_ffi_env_stream=True)`).
    """

    def prepare(sets: Sequence[Operands]) -> list[Launch]:
        return each(_loaded(path))(sets)

    return Contender(name, prepare, family, path.name)


@functools.cache
def _loaded(path: Path) -> Callable[[Any, Any, Any], object]:
    from cutlass.cute.runtime import load_module

    return load_module(str(path), enable_tvm_ffi=True)["func"]
