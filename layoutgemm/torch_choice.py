"""Which kernel for a problem: the caller's, the one that was measured, the likeliest, in this order.

Today every candidate is a configuration of the production kernel of sm_90a. Another family of kernels, as one whose
threads load what tensor copies cannot, would be asked in `_candidates`, and by `torch_problem` before it copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from . import tuned
from .errors import LayoutError, OperandError
from .kernels.compile_apart import Kernel
from .kernels.sm90_choice import Sm90Choice, choose
from .kernels.sm90_plan import MAX_TILES, Sm90Config

if TYPE_CHECKING:
    from .torch_problem import Problem


def choose_kernel(
    problem: Problem, sizes: tuple[int, int, int, int], orders: Sequence[str], names: tuple[str, str, str], direct: bool
) -> tuple[Sm90Choice, str]:
    """The first configuration, of the caller's or of the likeliest, whose plan can be derived."""
    m, n, k, batch = sizes
    last: LayoutError | None = None
    for choice, why in _candidates(problem, sizes, orders):
        if direct:
            choice = replace(choice, config=replace(choice.config, store="direct", split=1, early=0))
        # Of the sizes only K takes part, and only where the last k tiles are multiplied in another order.
        deep = min(k, 1 << 16) if choice.config.early else 1 << 16
        tile, error = _derived(Kernel(choice, names, batch > 1, problem.epilogue), deep)
        if error is not None:
            last = last or error
            continue
        rows, columns = (n, m) if choice.swapped else (m, n)
        along_m, along_n = choice.config.cluster
        across = -(-rows // (tile[0] * along_m)), -(-columns // (tile[1] * along_n))
        if across[0] * across[1] * batch <= MAX_TILES:
            return choice, why
        last = OperandError(f"{across[0]} * {across[1]} * {batch} tiles, which are numbered up to {MAX_TILES}")
    raise OperandError(f"no kernel for a {names[0]}, b {names[1]}, c {names[2]}, {m}x{n}x{k}: {last}") from last


@lru_cache(4096)
def _derived(kernel: Kernel, k: int) -> tuple[tuple[int, int], LayoutError | None]:
    """The tile of a kernel's plan for that K, or the error of its derivation."""
    a, b, c = kernel.operands
    batch = 2 if kernel.batched else 1
    try:
        plan = kernel.choice.plan(1, 1, k, batch=batch, a=a, b=b, c=c, epilogue=kernel.epilogue)
    except LayoutError as error:
        return (0, 0), error.with_traceback(None)
    return plan.tile[:2], None


def _candidates(
    problem: Problem, sizes: tuple[int, int, int, int], orders: Sequence[str]
) -> Iterator[tuple[Sm90Choice, str]]:
    """Choices for the production kernel of sm_90a, the best first. Another family of kernels would be asked here."""
    if problem.config is not None:
        yield problem.config, "given by the caller"
        return
    m, n, k, batch = sizes
    types = problem.a.dtype, problem.b.dtype, problem.c.dtype
    if (found := tuned.lookup(problem.gpu, sizes, types, tuple(orders))) is not None:
        yield found, "measured by layoutgemm.tune"
    k_major = orders[0] == "row", orders[1] == "col"
    # Few columns are few rows of the transposed product.
    flip = n < m and n <= 64
    rows, columns, b_major = (n, m, k_major[0]) if flip else (m, n, k_major[1])
    choice, why = choose(
        rows, columns, k, batch=batch, a=problem.a.dtype, b_major="K" if b_major else "MN",
        multiprocessors=problem.multiprocessors,
    )  # fmt: skip
    swapped = choice.swapped != flip
    why = f"of the transposed product: {why}" if flip else why
    config = choice.config
    # Rows are left out of the copies only where K is contiguous in the kernel's A.
    if config.rows is not None and not k_major[1 if swapped else 0]:
        config = replace(config, rows=None)
    yield Sm90Choice(config, swapped), why
    # The kernel's B with N contiguous comes in whole spans of its tile.
    for tile, consumers in (((128, 128), 2), ((64, 64), 1), ((64, 128), 1)):
        config = Sm90Config(tile, consumers=consumers, loader="warp")
        yield Sm90Choice(config), "the operands' orders leave little choice"
