"""The operators scaled_epilogue_matmul and grouped_epilogue_matmul, as torch's compiler and functorch see them.

The epilogue and its operands are those of `epilogue_matmul`, the other arguments those of `scaled_matmul` and
`grouped_matmul`. vmap computes one product after another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ...errors import OperandError
from ..compiled.traced import CHECKS, checking_operator
from ..operands.operators import function_of_text
from ..operators import (
    Places,
    VmapInfo,
    one_after_another,
    operator_of,
)
from ..scaled_grouped.epilogue_gradients import check_derivable
from ..scaled_grouped.grouped_epilogue import (
    CheckedGroups,
    FurtherMatrices,
    GroupedFactors,
    GroupedFormula,
    GroupedOptions,
    checked_groups,
    grouped_steps,
)
from ..scaled_grouped.operators import plain_config
from ..scaled_grouped.own_epilogue import CheckedScales, ScaledFactors, ScaledFormula, checked, scaled_steps
from ..scaled_grouped.scaled import BiasActivation
from .names import OperandNames
from .operators import check_mapped, epilogue_of_text, operands_of, with_symbols
from .recorded import recorded

# --------------------------------------------------------------------------------------------------------------- scaled


def _checked_scaled(
    a: torch.Tensor, scale_a: torch.Tensor, b: torch.Tensor, scale_b: torch.Tensor | None,
    read: Sequence[torch.Tensor], written: Sequence[torch.Tensor], numbers: Sequence[float], wholes: Sequence[int],
    epilogue: str, out_dtype: torch.dtype | None = None, recipe_a: str = "", recipe_b: str = "",
    use_fast_accum: bool = True, config: str = "", activation: str | None = None, out: torch.Tensor | None = None,
) -> CheckedScales:  # fmt: skip
    steps, every = operands_of(epilogue, read, written, numbers, wholes)
    finish, of = BiasActivation(None, activation, use_fast_accum), ScaledFactors(a, scale_a, b, scale_b)
    recipes = recipe_a or None, recipe_b or None
    return checked(of, steps, every, recipes, finish, out, out_dtype, plain_config(config))


# -------------------------------------------------------------------------------------------------------------- grouped


def further_of(
    function: str, epilogue: str, read: Sequence[torch.Tensor], numbers: Sequence[float]
) -> tuple[FurtherMatrices | None, Sequence[torch.Tensor], Sequence[float]]:
    """The further matrices B with their function, and the epilogue's own operands.

    function       a `Combined.json`, or "" for one B
    read, numbers  of the epilogue, then the matrices and the function's numbers

    Raises OperandError for another number of them.
    """
    if not function:
        return None, read, numbers
    how, names = function_of_text(function), OperandNames.of(epilogue_of_text(epilogue))
    at, first = len(names.read), len(names.numbers)
    for said, values, wanted in (
        ("read", read, at + how.matrices - 1), ("numbers", numbers, first + len(how.numbers))
    ):  # fmt: skip
        if len(values) != wanted:
            raise OperandError(f"{said} has {len(values)} operands, and epilogue and function have {wanted}")
    own = dict(zip(how.numbers, numbers[first:], strict=True))
    return FurtherMatrices(list(read[at:]), how, own), read[:at], numbers[:first]


def _checked_grouped(
    a: torch.Tensor, b: torch.Tensor, groups: torch.Tensor | None, scale_a: torch.Tensor | None,
    scale_b: torch.Tensor | None, rows: torch.Tensor | None, read: Sequence[torch.Tensor],
    written: Sequence[torch.Tensor], numbers: Sequence[float], wholes: Sequence[int], epilogue: str,
    said: str = "offsets", out_dtype: torch.dtype | None = None, recipe_a: str = "", recipe_b: str = "",
    use_fast_accum: bool = True, config: str = "", activation: str | None = None,
    out: torch.Tensor | None = None, function: str = "",
) -> CheckedGroups:  # fmt: skip
    further, read, numbers = further_of(function, epilogue, read, numbers)
    steps, every = operands_of(epilogue, read, written, numbers, wholes)
    finish, recipes = BiasActivation(None, activation, use_fast_accum), (recipe_a or None, recipe_b or None)
    of = GroupedFactors(a, b, groups, said, scale_a, scale_b, rows, further)
    return checked_groups(of, steps, every, GroupedOptions(finish, recipes, out, out_dtype, plain_config(config)))


# -------------------------------------------------------------------------------------------------------- of both kinds

CHECK_SCALED_EPILOGUE = checking_operator("check_scaled_epilogue", _checked_scaled)
CHECK_GROUPED_EPILOGUE = checking_operator("check_grouped_epilogue", _checked_grouped)


def _scaled_call(
    a: torch.Tensor, scale_a: torch.Tensor, b: torch.Tensor, scale_b: torch.Tensor | None,
    read: Sequence[torch.Tensor], written: Sequence[torch.Tensor], numbers: Sequence[float], wholes: Sequence[int],
    epilogue: str, out_dtype: torch.dtype | None = None, recipe_a: str = "", recipe_b: str = "",
    use_fast_accum: bool = True, config: str = "", activation: str | None = None,
) -> tuple[CheckedScales, Sequence[int], tuple[bool, str, str | None]]:  # fmt: skip
    made = _checked_scaled(
        a, scale_a, b, scale_b, read, written, numbers, wholes, epilogue, out_dtype, recipe_a, recipe_b,
        use_fast_accum, config, activation,
    )  # fmt: skip
    return made, wholes, (use_fast_accum, config, activation)


def _scaled_recorded(made: CheckedScales, wholes: Sequence[int], options: tuple[bool, str, str | None]) -> torch.Tensor:
    check_derivable(made.steps, made.call.kind, made.of.tensors, False)
    made = made._replace(operands=with_symbols(made.steps, made.operands, wholes))
    return recorded(ScaledFormula(made, *options))


def _grouped_call(
    a: torch.Tensor, b: torch.Tensor, groups: torch.Tensor | None, scale_a: torch.Tensor | None,
    scale_b: torch.Tensor | None, rows: torch.Tensor | None, read: Sequence[torch.Tensor],
    written: Sequence[torch.Tensor], numbers: Sequence[float], wholes: Sequence[int], epilogue: str,
    said: str = "offsets", out_dtype: torch.dtype | None = None, recipe_a: str = "", recipe_b: str = "",
    use_fast_accum: bool = True, config: str = "", activation: str | None = None, function: str = "",
) -> tuple[CheckedGroups, Sequence[int]]:  # fmt: skip
    made = _checked_grouped(
        a, b, groups, scale_a, scale_b, rows, read, written, numbers, wholes, epilogue, said, out_dtype, recipe_a,
        recipe_b, use_fast_accum, config, activation, None, function,
    )  # fmt: skip
    return made, wholes


def _grouped_recorded(made: CheckedGroups, wholes: Sequence[int]) -> torch.Tensor:
    made.check_derivable()
    return recorded(GroupedFormula(made._replace(operands=with_symbols(made.steps, made.operands, wholes))))


def _empty(made: CheckedScales | CheckedGroups, *_: object) -> torch.Tensor:
    return made.of.a.new_empty(made.call.shape if made.steps.stores_c else (0,), dtype=made.call.kind)


def _mapped(name: str, lists: int) -> Callable[..., tuple[torch.Tensor, int]]:
    """The rule of an operator: one product after another.

    lists  how many arguments are before the epilogue's lists

    Raises OperandError for an operand that each product would write.
    """

    def rule(info: VmapInfo, in_dims: Places, *arguments: object) -> tuple[torch.Tensor, int]:
        steps = epilogue_of_text(str(arguments[lists + 4]))
        for operand, at in zip(steps.writes, in_dims[lists + 1], strict=True):
            check_mapped(steps.named_given(operand), at)
        return one_after_another(info, in_dims, arguments, getattr(torch.ops.layoutgemm, name)), 0

    return rule


operator_of(
    "scaled_epilogue_matmul",
    _scaled_call,
    lambda made, _, options: scaled_steps(made, options[0], plain_config(options[1])).contiguous(),
    _empty,
    _scaled_recorded,
    _mapped("scaled_epilogue_matmul", 4),
    mutates=("written",),
)
operator_of(
    "grouped_epilogue_matmul",
    _grouped_call,
    lambda made, _: grouped_steps(made).contiguous(),
    _empty,
    _grouped_recorded,
    _mapped("grouped_epilogue_matmul", 6),
    mutates=("written",),
    autocast=True,
)


def _check_derivative(text: str, asked: torch.dtype | None, of_rows: bool) -> None:
    """Raise TensorError or OperandError for an epilogue without a derivative."""
    if text:
        check_derivable(epilogue_of_text(text), asked or torch.bfloat16, {}, of_rows)


CHECKS["derivative of groups"] = _check_derivative  # of values that are no tensors, for the compiler
