"""torch.ops.layoutgemm.prologue_grouped_matmul: grouped products with a prologue, as torch's compiler sees them.

`said` is the argument of `layoutgemm.grouped_matmul` that `groups` is. Where a derivative is recorded, torch computes
the function, which it derives, and the product is `grouped_matmul`'s own. vmap computes one product after another.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..compiled.traced import checking_operator
from ..operators import operator_of
from ..scaled_grouped.operators import plain_config
from ..scaled_grouped.scaled import BiasActivation
from .grouped import GroupedPrologue, checked_groups, computed_groups, function_of_groups
from .operators import operands_of


def _checked(
    a: torch.Tensor, b: torch.Tensor, groups: torch.Tensor | None, given: Sequence[torch.Tensor], prologue: str,
    said: str, bias: torch.Tensor | None, activation: str | None, out: torch.Tensor | None,
    out_dtype: torch.dtype | None,
) -> GroupedPrologue:  # fmt: skip
    function, values = operands_of(prologue, given)
    finish = BiasActivation(bias, activation)
    return checked_groups(a, b, groups, said, function, values, finish, out, out_dtype)


def _call(
    a: torch.Tensor, b: torch.Tensor, groups: torch.Tensor | None, given: Sequence[torch.Tensor], prologue: str,
    said: str = "offsets", bias: torch.Tensor | None = None, activation: str | None = None,
    out_dtype: torch.dtype | None = None, config: str = "",
) -> tuple[GroupedPrologue, str]:  # fmt: skip
    product = _checked(a, b, groups, given, prologue, said, bias, activation, None, out_dtype)
    plain_config(config)
    return product, config


def _recorded(product: GroupedPrologue, config: str) -> torch.Tensor:
    call, finish = product.call, product.finish
    value: torch.Tensor = torch.ops.layoutgemm.grouped_matmul(
        function_of_groups(product), product.b, product.groups, call.said, None, None, call.kind, "", "", config,
        finish.bias, finish.activation,
    )  # fmt: skip
    return value


operator_of(
    "prologue_grouped_matmul",
    _call,
    lambda product, config: computed_groups(product, plain_config(config)).contiguous(),
    lambda product, _: product.a.new_empty(product.call.shape, dtype=product.call.kind),
    _recorded,
    autocast=True,
)
CHECK_GROUPS = checking_operator("check_prologue_groups", _checked)
