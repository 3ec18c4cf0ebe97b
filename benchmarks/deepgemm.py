"""DeepGEMM's kernels as peers, if its package `deep_gemm` is installed.

It has two contenders: the package's default launch, and programmatic dependent launch (`set_pdl(True)`). The kernel
waits for the previous one before it accesses global memory, so both are correct.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

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


def grouped_launches(
    a: Any, b: Any, rows: Sequence[int], scales: tuple[Any, Any] | None = None
) -> dict[str, list[Callable[[], Any]]]:
    """The package's grouped kernel with both launches.

    rows     of each group
    a, b     (all rows, K) and (groups, N, K). The package asks for groups that start at a multiple of its
             alignment: the padding is done here once, outside of what is timed
    scales   of 1 x 128 of A and of 128 x 128 of B
    """
    import torch

    package = importlib.import_module(PACKAGE)
    n = b.shape[1]
    alignment = importlib.import_module(f"{PACKAGE}.utils.layout").get_mk_alignment_for_contiguous_layout()
    padded = [-(-size // alignment) * alignment for size in rows]
    starts = [0, *accumulate(padded)]
    layout = torch.full((starts[-1],), -1, device=a.device, dtype=torch.int32)
    for group, (size, start) in enumerate(zip(rows, starts, strict=False)):
        layout[start : start + size] = group

    def pad(x: Any) -> Any:
        whole = torch.zeros(starts[-1], x.shape[-1], device=x.device, dtype=x.dtype)
        for part, start in zip(x.split(list(rows)), starts, strict=False):
            whole[start : start + len(part)] = part
        return whole

    left = pad(a)
    c = torch.empty(starts[-1], n, device=a.device, dtype=torch.bfloat16)
    aligned = package.get_mn_major_tma_aligned_tensor(pad(scales[0])) if scales else None

    def launch(pdl: bool) -> None:
        package.set_pdl(pdl)
        if scales:
            package.m_grouped_fp8_gemm_nt_contiguous(
                (left, aligned), (b, scales[1]), c, layout, disable_ue8m0_cast=True
            )
        else:
            package.m_grouped_bf16_gemm_nt_contiguous(left, b, c, layout)

    return {name: [functools.partial(launch, pdl)] for name, pdl in WAYS.items()}


def along_k_launches(a: Any, b: Any, rows: int, scales: tuple[Any, Any]) -> dict[str, list[Callable[[], Any]]]:
    """The package's kernel of groups along K with both launches. It adds the products to a float32 result.

    a, b     (M, groups * rows) and (N, groups * rows), K contiguous. The package takes each group's columns as a
             matrix of its own: they are copied here once, outside of what is timed
    scales   of 1 x 128 of each, in either order
    """
    import torch

    package = importlib.import_module(PACKAGE)
    groups = a.shape[1] // rows
    apart = [x.view(x.shape[0], groups, rows).transpose(0, 1).contiguous().view(-1) for x in (a, b)]
    aligned = [package.get_mn_major_tma_aligned_tensor(x) for x in scales]
    c = torch.zeros(groups, a.shape[0], b.shape[0], device=a.device)
    sizes = [rows] * groups
    on_device = torch.tensor(sizes, device=a.device, dtype=torch.int32)

    def launch(pdl: bool) -> Any:
        package.set_pdl(pdl)
        package.k_grouped_fp8_gemm_nt_contiguous(
            (apart[0], aligned[0]), (apart[1], aligned[1]), c, sizes, on_device, c=c
        )
        return c

    return {name: [functools.partial(launch, pdl)] for name, pdl in WAYS.items()}
