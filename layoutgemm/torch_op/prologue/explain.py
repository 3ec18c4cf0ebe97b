"""The kernel, copies and workspace of a product with a prologue, in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from ...errors import OperandError
from ...kernels.operands.prologue import Prologue
from ...kernels.plan import tile_count
from ..explanation import ZEROS, Explanation, of_plan, of_solution
from ..indexed.grouped_rows import Options
from ..prepared import problem_at
from ..scaled_grouped.grouped import check_expected
from ..scaled_grouped.scaled import BiasActivation
from ..scaled_grouped.scaled import check_config as check_plain_config
from ..solver import solve
from ..types import READ, GroupsPlan
from .api import check_call_kinds
from .grouped import checked_groups, plan_of_groups
from .product import ALONE, check_config, checked_product, plan_of_product, ways_of_product
from .rows import chosen_text, of_chosen_rows

_TAKEN = ("bias", "activation", "out", "out_dtype", "config")
_OF_GROUPS = ("offsets", "offs", "counts")
_USUAL = {"use_fast_accum": True}  # of arguments that are never None


def explain_prologue(
    a: torch.Tensor, b: torch.Tensor, prologue: Prologue, given: Mapping[str, torch.Tensor] | None, options: Options
) -> Explanation:
    """Which kernel a product with a prologue takes, why, and what it copies. Raises as the product does.

    options  the other arguments of `explain_matmul`, by name: those that the product does not take are refused

    >>> silu = Prologue.of(lambda x, i, k, ops: x * ops.sigmoid(x))
    >>> x, w = torch.empty(4096, 4096).bfloat16(), torch.empty(8192, 4096).bfloat16().T
    >>> nothing = dict.fromkeys(("bias", "activation", "out", "out_dtype", "config"))
    >>> for part in explain_prologue(x, w, silu, None, nothing).why.split("; "):
    ...     print(part)
    a's function is computed 32 times for each element, once for each tile of 256 columns
    (128, 256) tiles take least time (an estimate)
    a's function in the kernel 129 us more, by torch first 133 us (estimates)
    """
    said = [name for name in _OF_GROUPS if options.get(name) is not None]
    of_rows = ("rows", "copy_rows") if options.get("rows") is not None else ()
    taken = (*_TAKEN, *of_rows, *said, *(("expected_rows",) if said else ()))
    for name, value in options.items():
        if name not in taken and value is not _USUAL.get(name):
            raise OperandError(f"{name} and prologue: {ALONE}")
    values = {} if given is None else given
    check_call_kinds(a, b, prologue, values)
    chosen: list[tuple[str, int]] = []
    if of_rows:
        a, values = of_chosen_rows(a, options["rows"], prologue, values, options.get("copy_rows"))
        chosen = [chosen_text(a)]
    if said:
        return _of_groups(a, b, prologue, values, said, options, chosen)
    bias, activation, out, out_dtype, config = [options[name] for name in _TAKEN]
    check_config(config)
    product = checked_product(a, b, prologue, values, bias, activation, out, out_dtype)
    if 0 in (*product.shape, product.a.shape[-1]):
        return ZEROS
    copies = [*chosen, *_copied(values)]
    by_torch = bias is not None and (bias.dtype not in READ or bias.stride(0) != 1)
    fused = product._replace(bias=None, activation=None) if by_torch else product
    planned = plan_of_product(fused, config)
    ways = ways_of_product(fused, planned)
    if ways is not None and ways.apart:
        found = solve(problem_at(product.a, product.b, product.kind, None, out))
        told = of_solution(found, (product.a.dtype, product.b.dtype), product.kind)
        copied = f"a: torch computes its function first, in float32; {ways.memory} bytes"
        return replace(
            told, why=f"{ways}; {told.why}", copies=(copied, *told.copies), workspace=told.workspace + ways.memory
        )
    why = planned.why if ways is None else f"{planned.why}; {ways}"
    return of_plan(planned.plan, product.a, product.b, out, f"{_how_often(planned.plan)}; {why}", copies)


def _of_groups(
    a: torch.Tensor, b: torch.Tensor, prologue: Prologue, given: Mapping[str, torch.Tensor], said: list[str],
    options: Options, chosen: list[tuple[str, int]],
) -> Explanation:  # fmt: skip
    """The same of groups. `said`: the argument that says them."""
    if len(said) > 1:
        raise OperandError(f"{said[0]} and {said[1]}: groups are said by one of offsets, offs and counts")
    bias, activation, out, out_dtype, config = [options[name] for name in _TAKEN]
    expected = options.get("expected_rows")
    check_expected(expected, options.get("counts"), config)
    check_plain_config(config)
    finish, groups = BiasActivation(bias, activation), options[said[0]]
    product = checked_groups(a, b, groups, said[0], prologue, given, finish, out, out_dtype)
    if 0 in (*product.call.shape, product.call.experts, product.a.shape[-1]):
        return ZEROS
    plan, why = plan_of_groups(product, config, out is None, expected)
    copies = [*chosen, *_copied(given)]
    if not groups.is_contiguous():
        copies.append(
            (f"{said[0]}: stride {groups.stride(0)}, and the kernel reads one after the other", groups.nbytes)
        )
    a, b = product.a, product.b
    if not product.joined and product.call.experts == 1:
        a, b = [x if x.ndim == 2 else x[0] for x in (a, b)]
        out = None if out is None else out[0]
    return of_plan(plan, a, b, out, f"one launch for all groups; {_how_often(plan)}; {why}", copies)


def _how_often(plan: GroupsPlan) -> str:
    times = tile_count(plan.n, plan.tile_c[1])
    often = f"{times} times" if times > 1 else "once"
    return f"a's function is computed {often} for each element, once for each tile of {plan.tile_c[1]} columns"


def _copied(given: Mapping[str, torch.Tensor]) -> list[tuple[str, int]]:
    """Vectors that are copied first: why, and bytes."""
    return [
        (f"{name}: elements lie {x.stride(-1)} apart, and a kernel's are contiguous", x.nbytes)
        for name, x in given.items()
        if x.stride(-1) != 1
    ]
