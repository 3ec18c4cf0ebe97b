"""Several grouped products of 8-bit floats with scales, combined, and their operator.

Scales of blocks are one kernel's. Others: each product in float32 with its scales, then the function by torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ...errors import OperandError
from ...kernels.operands.combined import Combine
from ..compiled.traced import checking_operator
from ..indexed.grouped_rows import Options, checked_rows
from ..indexed.torch_rows import gathered, of_rows
from ..operators import operator_of
from ..scaled_grouped.grouped import MASKED, ROWS, check_expected, finished, in_groups_alone
from ..scaled_grouped.operators import checked_grouped, plain_config
from ..scaled_grouped.recipes import fast_accum
from ..scaled_grouped.scaled import BiasActivation, check_config, one_behind_the_other, widest_span_of
from .grouped import GroupedCombined, check_numbers, computed_groups
from .operators import function_of_text
from .several import check_alike, combined_sums, function_and_numbers

_NAME = "torch.ops.layoutgemm.combined_scaled_grouped_matmul"


def scaled_groups(
    a: torch.Tensor, b: Sequence[torch.Tensor], combine: Combine, given: Mapping[str, object] | None, said: str,
    options: Options,
) -> GroupedCombined:  # fmt: skip
    """The checked product of 8-bit floats. Its `scales` are () where no kernel applies those of all b.

    options  the other arguments of `grouped_matmul`, by name

    Raises OperandError or TensorError for operands that do not fit.
    """
    how, numbers = function_and_numbers(b, combine, given)
    finish = BiasActivation(options["bias"], options["activation"], fast_accum(options["use_fast_accum"]))
    check_alike(b)
    check_config(options["config"])
    check_expected(options["expected_rows"], options.get(said), options["config"])
    scales, rows, out = options["scale_b"], options.get("rows"), options["out"]
    left, scale_a = a, options["scale_a"]
    if rows is not None:
        _, _, scale_a = checked_rows(a, rows, options)
        left = of_rows(a, rows)
    kinds = options["out_dtype"], options["recipe_a"], options["recipe_b"]
    call, *others = [
        checked_grouped(left, x, options[said], said, scale_a, scale, finish, out, *kinds)
        for x, scale in zip(b, scales, strict=True)
    ]
    of, tables = call.recipes, tuple[torch.Tensor, ...]()
    blocks = of is not None and of.in_mainloop and not of.by_instruction and all(x.recipes == of for x in others)
    if blocks and call.form in (ROWS, MASKED) and 0 not in (*call.shape, *a.shape, call.experts):
        check_numbers(numbers, said, len(b))
        tables = scale_a.resolve_neg(), one_behind_the_other(scales)
        call = call._replace(span=widest_span_of(a.shape[-1], *tables))
    return GroupedCombined(call, a, list(b), options[said], how, numbers, finish, rows, tables)


def _checked(
    a: torch.Tensor, b: Sequence[torch.Tensor], groups: torch.Tensor | None, scale_a: torch.Tensor | None,
    scale_b: Sequence[torch.Tensor], numbers: Sequence[float], function: str, said: str, rows: torch.Tensor | None,
    bias: torch.Tensor | None, activation: str | None, out: torch.Tensor | None, out_dtype: torch.dtype | None,
    recipe_a: str, recipe_b: str, use_fast_accum: bool, config: str,
) -> tuple[GroupedCombined, Options]:  # fmt: skip
    how = function_of_text(function)
    if len(numbers) != len(how.numbers) or len(scale_b) != len(b):
        raise OperandError(
            f"numbers has {len(numbers)}, and the function takes {', '.join(how.numbers) or 'none'}; scale_b has "
            f"{len(scale_b)}, and b {len(b)}"
        )
    options: Options = {
        said: groups, "scale_a": scale_a, "scale_b": scale_b, "rows": rows, "bias": bias, "activation": activation,
        "out": out, "out_dtype": out_dtype, "recipe_a": recipe_a or None, "recipe_b": recipe_b or None,
        "use_fast_accum": use_fast_accum, "config": plain_config(config), "expected_rows": None,
    }  # fmt: skip
    return scaled_groups(a, b, how, dict(zip(how.numbers, numbers)), said, options), options


def _call(
    a: torch.Tensor, b: Sequence[torch.Tensor], groups: torch.Tensor | None, scale_a: torch.Tensor | None,
    scale_b: Sequence[torch.Tensor], numbers: Sequence[float], function: str, said: str = "offsets",
    rows: torch.Tensor | None = None, bias: torch.Tensor | None = None, activation: str | None = None,
    out_dtype: torch.dtype | None = None, recipe_a: str = "", recipe_b: str = "", use_fast_accum: bool = True,
    config: str = "",
) -> tuple[GroupedCombined, Options, str]:  # fmt: skip
    of, options = _checked(
        a, b, groups, scale_a, scale_b, numbers, function, said, rows, bias, activation, None, out_dtype, recipe_a,
        recipe_b, use_fast_accum, config,
    )  # fmt: skip
    return of, options, config


def _computed(of: GroupedCombined, options: Options, config: str) -> torch.Tensor:
    if of.scales:
        return computed_groups(of, options["config"]).contiguous()
    call, rows, scale_a = of.call, of.rows, options["scale_a"]
    left = of.a if rows is None else gathered(of.a, rows)
    if rows is not None:
        _, _, scale_a = checked_rows(of.a, rows, options)
    names = options["recipe_a"] or "", options["recipe_b"] or ""
    sums = [
        torch.ops.layoutgemm.grouped_matmul(
            left, x, of.groups, call.said, scale_a, scale, torch.float32, *names, config, None, None,
            options["use_fast_accum"],
        )
        for x, scale in zip(of.b, options["scale_b"], strict=True)
    ]  # fmt: skip
    value = finished(call, combined_sums(of.how, sums, of.numbers), of.groups, of.finish)
    return in_groups_alone(call, value, of.groups).contiguous()


def _recorded(of: GroupedCombined, options: Options, config: str) -> torch.Tensor:
    raise OperandError(f"{_NAME} has no derivative: layoutgemm.grouped_matmul has a bias's, outside of torch.compile")


operator_of(
    "combined_scaled_grouped_matmul",
    _call,
    _computed,
    lambda of, *_: of.a.new_empty(of.call.shape, dtype=of.call.kind),
    _recorded,
    function="grouped_matmul",
)
CHECK_SCALED_GROUPS = checking_operator("check_combined_scaled_groups", _checked)
