"""Products that overlap with communication: all-gather, then multiply; multiply, then reduce and scatter.

    all_gather_matmul(a_shard, b)     C (M, N) = all ranks' rows of A, (M, K), @ B (K, N), the rank's own columns
    matmul_reduce_scatter(a, b)       this rank's rows of the sum over ranks of A (M, K) @ B (K, N), the rank's own K

On GPUs of one host (`kernels.sm90.shards`): one persistent kernel takes tiles in the order in which they can be
computed, beside the transfer of shards through symmetric memory. On a CPU group, such as gloo's, the same sums are
computed without overlap, for tests (`reference`).
"""

from __future__ import annotations

import math

import torch

from ..arguments import refusal
from ..errors import OperandError
from ..kernels.sm90.config import Sm90Config
from ..torch_op.checks import autocast, autocast_type, differentiated, needs_dispatcher, seen_by_autograd_alone
from ..torch_op.compiled.traced import refuse
from .calls import Scales
from .checks import Group, check_own_part, group_of
from .kept import find
from .operators import name_of, recorded
from .products import GATHER, PRODUCTS, SCATTER, OverlapOptions
from .shard_plans import Transfer
from .workspaces import raise_if_given_up

TIMEOUT = 30.0  # seconds


def all_gather_matmul(
    a_shard: torch.Tensor, b: torch.Tensor, group: Group = None, *, scale_a: torch.Tensor | None = None,
    scale_b: torch.Tensor | None = None, out: torch.Tensor | None = None, transfer: Transfer | None = None,
    config: Sm90Config | None = None, timeout: float = TIMEOUT,
) -> torch.Tensor:  # fmt: skip
    """C = A @ b, where each rank has M / ranks rows of A. Products of rows that are here hide the others' transfer.

    a_shard  (M / ranks, K), bf16, f16 or float8, rows contiguous, in the order of ranks
    b        (K, N) of the same type, K or N contiguous (float8: K); N may differ between ranks
    group    2 to 8 ranks, one GPU each, of one host; default all. A CPU group computes a reference without overlap
    scale_a, scale_b  of float8, float32: for a_shard (M / ranks, 1) or one element, for b (1, N) or one element
    out      (M, N), rows contiguous: a's type, bf16 of float8
    transfer, config  of the shards, and of the kernel; None: chosen
    timeout  seconds to wait for a rank or a chunk, above 0. Then the kernel stops: the process's CUDA context ends with
             a launch failure, and `check_ranks` names rank and flag

    All ranks call alike, on one stream. The result has the same bits in every run. Flags begin at 0 in each call, so
    that a CUDA graph's replays are right too, where the driver captures stream memory operations.

    An operator of torch: it compiles, takes part in autocast, and has a gradient, but of float8. The gradient of
    a_shard is a `matmul_reduce_scatter`, which wants shards of whole 64 rows; that of b gathers the rows once more.

    Raises OperandError, before anything is written, for tensors, groups and sizes without a kernel; RankError where an
    earlier call's rank did not come.
    """
    return _product(GATHER, a_shard, b, group, (scale_a, scale_b), out, OverlapOptions(transfer, config, timeout))


def matmul_reduce_scatter(
    a: torch.Tensor, b: torch.Tensor, group: Group = None, *, scale_a: torch.Tensor | None = None,
    scale_b: torch.Tensor | None = None, out: torch.Tensor | None = None, transfer: Transfer | None = None,
    config: Sm90Config | None = None, timeout: float = TIMEOUT,
) -> torch.Tensor:  # fmt: skip
    """This rank's M / ranks rows of the sum over ranks of a @ b. Other ranks' rows are computed and sent on first.

    a        (M, K), bf16, f16 or float8, rows contiguous; each rank has its own part of K
    b        (K, N) of the same type, K or N contiguous (float8: K)
    scale_a, scale_b  of float8, float32, of the rank's own a and b: (M, 1) or one element, (1, N) or one element
    out      (M / ranks, N), rows contiguous: a's type, bf16 of float8
    group, transfer, config, timeout  as for `all_gather_matmul`

    A shard's sums go around the ranks and end at its owner, as in a ring of NCCL. Each rank adds its own f32 sums,
    scaled, and rounds to C's type. So |error| <= 2**-8 * (the sum over ranks of |what each rounds|)
    for bf16, 2**-11 for f16, beside the f32 products'. The same bits in every run, and in a CUDA graph's replays.

    The gradient of a is an `all_gather_matmul`; that of b gathers those of the result's rows.

    Raises as `all_gather_matmul` does; OperandError too where M / ranks rows are no whole tiles (multiples of 64), or
    for transfer by "copies" with CUDA_LAUNCH_BLOCKING=1, under which a kernel cannot wait for later launches.
    """
    return _product(SCATTER, a, b, group, (scale_a, scale_b), out, OverlapOptions(transfer, config, timeout))


def _product(
    name: str,
    a: torch.Tensor,
    b: torch.Tensor,
    group: Group,
    scales: Scales,
    out: torch.Tensor | None,
    way: OverlapOptions,
) -> torch.Tensor:
    """The product of that name: computed now, or by its operator where torch has to see it."""
    _check_options(way)
    if torch.compiler.is_dynamo_compiling():
        return _seen_by_torch(name, *autocast(a, b), group, scales, out, way)
    try:
        return _eager(name, a, b, group, scales, out, way)
    except RuntimeError as error:  # of a context that an earlier call's kernel has ended, or of torch's checks
        raise_if_given_up(error)
        raise


def _eager(
    name: str,
    a: torch.Tensor,
    b: torch.Tensor,
    group: Group,
    scales: Scales,
    out: torch.Tensor | None,
    way: OverlapOptions,
) -> torch.Tensor:
    """The product, called outside of the compiler."""
    found = group_of(group)
    key, kept = find(name, found, (a, b), scales, out, way)
    if kept is not None:
        return kept.run(a, b, scales, out)
    check_own_part({("a_shard" if name == GATHER else "a"): a, "b": b})
    if isinstance(a, torch.Tensor) and autocast_type(a) is not None:
        a, b = autocast(a, b)  # outside of the region calls are kept
        with torch.autocast(a.device.type, enabled=False):
            return _eager(name, a, b, group, scales, out, way)
    if needs_dispatcher(*[x for x in (a, b, *scales, out) if isinstance(x, torch.Tensor)]):
        return _seen_by_torch(name, a, b, group, scales, out, way)
    return PRODUCTS[name](a, b, found, scales, out, way, key)


def _check_options(way: OverlapOptions) -> None:
    """Raise OperandError for options of another type, and a time that no kernel waits."""
    for name, x, kind in (("transfer", way.transfer, Transfer), ("config", way.config, Sm90Config)):
        if x is not None and not isinstance(x, kind):
            _refuse(refusal(x, name, f"a {kind.__name__} or None"))
    seconds = way.timeout
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < math.inf:
        _refuse(refusal(seconds, "timeout", "seconds above 0, and finite"))


def _seen_by_torch(
    name: str,
    a: torch.Tensor,
    b: torch.Tensor,
    group: Group,
    scales: Scales,
    out: torch.Tensor | None,
    way: OverlapOptions,
) -> torch.Tensor:
    """The product of that name by its operator."""
    given = [x for x in (a, b, *scales, out) if isinstance(x, torch.Tensor)]
    if way.transfer is not None or way.config is not None:
        _refuse(f"transfer and config: {name} takes none where it is recorded or traced")
    if out is not None and differentiated(*given):
        _refuse(f"out: {name} does not record a result that is given")
    arguments = a, b, *scales, name_of(group), way.timeout
    if not torch.compiler.is_compiling() and seen_by_autograd_alone():  # the derivative is what is recorded
        value = recorded(name, *arguments)
    else:
        value = getattr(torch.ops.layoutgemm, name)(*arguments)
    return value if out is None else out.copy_(value)


def _refuse(text: str) -> None:
    if torch.compiler.is_dynamo_compiling():
        refuse(text)
    raise OperandError(text)
