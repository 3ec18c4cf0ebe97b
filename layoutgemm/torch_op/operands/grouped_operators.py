"""torch.ops.layoutgemm.combined_grouped_matmul: a function of several grouped products, as torch's compiler sees it.

`function` is `Combined.json`, and `numbers` has its numbers in their order. `said` is the argument of
`layoutgemm.grouped_matmul` that `groups` is. Gradients recompute the products in float32, and torch derives the
function. vmap computes one product after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ...errors import OperandError, TensorError
from ..checks import needs_dispatcher
from ..compiled.traced import checking_operator
from ..epilogue import Tensors
from ..operators import operator_of
from ..own_epilogue.formula import StepResults
from ..own_epilogue.recorded import SummedProduct
from ..own_epilogue.recorded import derivable as formula_alone
from ..own_epilogue.recorded import recorded as kernel_and_formula
from ..scaled_grouped.grouped import finished, in_groups_alone
from ..scaled_grouped.operators import differentiable, plain_config
from ..scaled_grouped.scaled import BiasActivation
from .grouped import GroupedCombined, checked_groups, computed_groups
from .operators import function_of_text
from .several import combined_sums


def _checked(
    a: torch.Tensor, b: Sequence[torch.Tensor], groups: torch.Tensor | None, numbers: Sequence[float], function: str,
    said: str, rows: torch.Tensor | None, bias: torch.Tensor | None, activation: str | None, out: torch.Tensor | None,
    out_dtype: torch.dtype | None,
) -> GroupedCombined:  # fmt: skip
    how = function_of_text(function)
    if len(numbers) != len(how.numbers):
        raise OperandError(f"numbers has {len(numbers)}, and the function takes {', '.join(how.numbers) or 'none'}")
    given, finish = dict(zip(how.numbers, numbers, strict=True)), BiasActivation(bias, activation)
    return checked_groups(a, b, groups, said, how, given, finish, rows, out, out_dtype)


def _call(
    a: torch.Tensor, b: Sequence[torch.Tensor], groups: torch.Tensor | None, numbers: Sequence[float], function: str,
    said: str = "offsets", rows: torch.Tensor | None = None, bias: torch.Tensor | None = None,
    activation: str | None = None, out_dtype: torch.dtype | None = None, config: str = "",
) -> tuple[GroupedCombined, str]:  # fmt: skip
    product = _checked(a, b, groups, numbers, function, said, rows, bias, activation, None, out_dtype)
    plain_config(config)
    return product, config


def dispatched(product: GroupedCombined, config: str) -> torch.Tensor:
    """The product that torch's dispatcher sees, of operands that have been checked; `config` is text."""
    call, a, b, groups, how, numbers, finish, rows, _ = product
    value: torch.Tensor = torch.ops.layoutgemm.combined_grouped_matmul(
        a, b, groups, [numbers[name] for name in how.numbers], how.json, call.said, rows, finish.bias,
        finish.activation, call.kind, config,
    )  # fmt: skip
    return value


@dataclass(frozen=True, eq=False)
class CombinedGroupsFormula(SummedProduct):
    """A checked product in groups, as `own_epilogue.recorded` derives it. `config` is text.

    It has no epilogue: bias and activation are part of the formula.
    """

    made: GroupedCombined
    config: str

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors that the result depends on."""
        return self.made.tensors

    @property
    def alone(self) -> CombinedGroupsFormula:
        """The same without tensors."""
        return self.of([torch.empty(0)] * len(self.tensors))

    def of(self, tensors: Sequence[torch.Tensor], every: Tensors | None = None) -> CombinedGroupsFormula:
        """The same of other tensors."""
        return CombinedGroupsFormula(self.made.of(tensors), self.config)

    def launched(self) -> torch.Tensor:
        """The product by a kernel."""
        if needs_dispatcher(*self.tensors):
            return dispatched(self.made, self.config)
        return computed_groups(self.made, plain_config(self.config))

    def formula(self) -> StepResults:
        """Float32 sums with derivatives; the function, bias and activation by torch."""
        made, call = self.made.chosen(), self.made.call
        sums = [differentiable(made.a, b, made.groups, call.said, torch.float32) for b in made.b]
        value = finished(call, combined_sums(made.how, sums, made.numbers), made.groups, made.finish)
        return StepResults(in_groups_alone(call, value, made.groups), {})


def derivable(product: GroupedCombined, config: str) -> torch.Tensor:
    """The product by operators that have derivatives of every order."""
    _check(product)
    return formula_alone(CombinedGroupsFormula(product, config))


def recorded(product: GroupedCombined, config: str) -> torch.Tensor:
    """The product by a kernel, with its gradients. Raises TensorError for 8-bit operands."""
    _check(product)
    return kernel_and_formula(CombinedGroupsFormula(product, config))


def _check(product: GroupedCombined) -> None:
    if product.a.dtype.itemsize < 2 or product.call.kind.itemsize < 2:
        kind = product.a.dtype if product.a.dtype.itemsize < 2 else product.call.kind
        raise TensorError(f"a product of {kind} has no gradient, as 8 bits are too coarse: give detached tensors")


operator_of(
    "combined_grouped_matmul",
    _call,
    lambda product, config: computed_groups(product, plain_config(config)).contiguous(),
    lambda product, _: product.a.new_empty(product.call.shape, dtype=product.call.kind),
    recorded,
    autocast=True,
    function="grouped_matmul",
)
CHECK_GROUPS = checking_operator("check_combined_groups", _checked)
