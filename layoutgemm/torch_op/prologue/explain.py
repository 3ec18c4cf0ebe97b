"""The kernel, copies and workspace of a product with a prologue, in words."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ...errors import OperandError
from ...kernels.plan import tile_count
from ...kernels.sm90.operands.prologue import Prologue
from ..explanation import ZEROS, Explanation, of_plan
from ..indexed.grouped_rows import Options
from ..types import READ
from .api import check_call_kinds
from .product import check_config, checked_product, plan_of_product

_TAKEN = ("bias", "activation", "out", "out_dtype", "config")
_USUAL = {"use_fast_accum": True}  # of arguments that are never None


def explain_prologue(
    a: torch.Tensor, b: torch.Tensor, prologue: Prologue, given: Mapping[str, torch.Tensor] | None, options: Options
) -> Explanation:
    """Which kernel a product with a prologue takes, why, and what it copies; raises as the product does.

    options  the other arguments of `explain_matmul`, by name: those that the product does not take are refused

    >>> silu = Prologue.of(lambda x, i, k, ops: x * ops.sigmoid(x))
    >>> x, w = torch.empty(4096, 4096).bfloat16(), torch.empty(8192, 4096).bfloat16().T
    >>> nothing = dict.fromkeys(("bias", "activation", "out", "out_dtype", "config"))
    >>> print(explain_prologue(x, w, silu, None, nothing).why)
    a's function is computed 32 times for each element, once for each tile of 256 columns; (128, 256) tiles take \
least time (an estimate)
    """
    for name, value in options.items():
        if name not in _TAKEN and value is not _USUAL.get(name):
            raise OperandError(f"{name} and prologue: a prologue goes with bias and activation alone")
    values = {} if given is None else given
    check_call_kinds(a, b, prologue, values)
    bias, activation, out, out_dtype, config = [options[name] for name in _TAKEN]
    check_config(config)
    product = checked_product(a, b, prologue, values, bias, activation, out, out_dtype)
    if 0 in (*product.shape, product.a.shape[-1]):
        return ZEROS
    copies = [
        (f"{name}: elements lie {x.stride(-1)} apart, and a kernel's are contiguous", x.nbytes)
        for name, x in values.items()
        if x.stride(-1) != 1
    ]
    by_torch = bias is not None and (bias.dtype not in READ or bias.stride(0) != 1)
    fused = product._replace(bias=None, activation=None) if by_torch else product
    plan, why = plan_of_product(fused, config)
    times = tile_count(plan.n, plan.tile_c[1])
    often = f"{times} times" if times > 1 else "once"
    each = f"a's function is computed {often} for each element, once for each tile of {plan.tile_c[1]} columns"
    return of_plan(plan, product.a, product.b, out, f"{each}; {why}", copies)
