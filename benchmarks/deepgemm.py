"""DeepGEMM's bf16 kernel as a peer, if its package `deep_gemm` is installed.

It has two contenders: the package's default launch, and programmatic dependent launch (`set_pdl(True)`). The kernel
waits for the previous one before it accesses global memory, so both are correct.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Sequence

from benchmarks.peers import LEFT_OUT
from layoutgemm.bench.method import BenchProblem, Contender, Launch, Operands

NAME, PACKAGE = "deepgemm", "deep_gemm"
WAYS = {NAME: False, f"{NAME} pdl": True}  # contender: with programmatic dependent launch?


def installed() -> bool:
    """True if the package `deep_gemm` is installed."""
    return importlib.util.find_spec(PACKAGE) is not None


def version() -> str:
    """The installed package's version, or "none"."""
    try:
        return str(importlib.import_module(PACKAGE).__version__) if installed() else "none"
    except Exception as error:  # an extension module that does not load raises what it likes
        return f"unknown ({type(error).__name__})"


def deepgemm(problem: BenchProblem) -> list[Contender]:
    """The package's kernel with both launches; without the package none, and a line in `LEFT_OUT`."""
    if not installed():
        LEFT_OUT["DeepGEMM"] = f"no package {PACKAGE}"
        return []
    return [Contender(name, functools.partial(_launches, pdl), NAME) for name, pdl in WAYS.items()]


def _launches(pdl: bool, sets: Sequence[Operands]) -> list[Launch]:
    package = importlib.import_module(PACKAGE)

    def one(operands: Operands) -> Launch:
        def run() -> None:
            package.set_pdl(pdl)
            package.bf16_gemm_nt(*operands)

        return run

    return [one(operands) for operands in sets]
