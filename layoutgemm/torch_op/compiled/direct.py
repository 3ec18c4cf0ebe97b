"""The operators' functions as Inductor's code calls them.

They write into a tensor that it has allocated; see `compiled.lowering`.

The graph's fake tensors have passed the operators' checks, and derivatives are products of the graph. Optional tensors
follow the operands in the order of `tensors`, their names. Calls with several results return new tensors, and so do
those of operators that write to their arguments, or whose order leaves tiles out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import torch

from .. import api as _matmul
from ..composed.api import ComposedOptions, composed_product
from ..composed.parts import Parts, named_lists, parts_of_text
from ..fp8 import api as _fp8
from ..fp8.launch import pitched
from ..operands.api import matmul_combined
from ..operands.operators import function_of_text
from ..operators import configured
from ..own_epilogue.operators import operands_of
from ..own_epilogue.scaled_operators import further_of
from ..quantized.launch import quantized_product, scale_recipe
from ..quantized.operators import quantized_call
from ..scaled_grouped import api as _api
from ..scaled_grouped.grouped import grouped_product
from ..scaled_grouped.grouped_epilogue import GroupedFactors, GroupedOptions, grouped_with_epilogue
from ..scaled_grouped.kept import KeptKey, find
from ..scaled_grouped.operators import checked_grouped, plain_config
from ..scaled_grouped.own_epilogue import ScaledFactors, with_epilogue
from ..scaled_grouped.recipes import BLOCK
from ..scaled_grouped.scaled import BiasActivation
from .call_sites import CallSite, View

Tensors = Sequence[torch.Tensor]


def site(
    call: Callable[..., None], /, *, count: int | None = None, views: tuple[View | None, ...] = (), **options: object
) -> Callable[..., None]:
    """A call site of one of these functions on `count` tensors, with all other arguments. `views` as in `CallSite`.

    Inductor keeps generated code on disk: what an earlier version wrote has no `count`, and has to run.
    """
    return CallSite(functools.partial(call, **options), views).of(count)


def matmul(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor, config: str, allow_tf32: bool | None) -> None:
    """a @ b into `out`."""
    _matmul.matmul(a, b, out=out, out_dtype=out.dtype, config=configured(config), allow_tf32=allow_tf32)


def finished(
    a: torch.Tensor, b: torch.Tensor, *bias: torch.Tensor, out: torch.Tensor, activation: str | None, config: str,
    allow_tf32: bool | None, tensors: tuple[str, ...],
) -> None:  # fmt: skip
    """activation(a @ b + bias) into `out`."""
    _matmul.matmul(
        a, b, out=out, bias=bias[0] if bias else None, activation=activation, out_dtype=out.dtype,
        config=configured(config), allow_tf32=allow_tf32,
    )  # fmt: skip


def gated(
    a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor, activation: str, config: str, allow_tf32: bool | None
) -> None:
    """The gated product into `out`."""
    _matmul.matmul(
        a, b, out=out, activation=activation, out_dtype=out.dtype, config=configured(config), allow_tf32=allow_tf32
    )


def combined_matmul(
    a: torch.Tensor, *b: torch.Tensor, out: torch.Tensor, numbers: Sequence[float], function: str, config: str,
    allow_tf32: bool | None,
) -> None:  # fmt: skip
    """The function of the products of a with several matrices, into `out`."""
    how = function_of_text(function)
    given = dict(zip(how.numbers, numbers, strict=True))
    matmul_combined(a, b, how, given, out, configured(config), out.dtype, allow_tf32)


def composed_matmul(
    *tensors: torch.Tensor, out: torch.Tensor, numbers: Sequence[float], wholes: Sequence[int], parts: str, config: str,
    allow_tf32: bool | None,
) -> None:  # fmt: skip
    """The product with several parts into `out`, of which it writes every element."""
    found = parts_of_text(parts)
    count = len(tensors) - len(found.read)  # of A and B
    sums = 1 if found.how is None else found.how.matrices
    of_a = count // (1 + sums)
    values = named_lists(found, tensors[count:], (), numbers, wholes)
    options = ComposedOptions(out, configured(config), out.dtype, allow_tf32)
    _composed(tensors[:of_a], tensors[of_a:count], found, values, options)


def _composed(
    a: Tensors, b: Tensors, parts: Parts, values: Mapping[str, object], options: ComposedOptions
) -> torch.Tensor:  # fmt: skip
    """The product with parts; `values` are their operands by name."""
    own = {name: x for name, x in values.items() if name in parts.own and isinstance(x, torch.Tensor)}
    given = {name: x for name, x in values.items() if name not in own}
    sums = len(b) // len(a)
    right = b if len(a) == 1 or sums == 1 else (b[:sums], b[sums:])
    return composed_product(
        a if len(a) > 1 else a[0], right if len(b) > 1 else b[0], parts.asked, own, given, options
    ).contiguous()


# Calls in the form of their operators: of what they write, and of new results.


def epilogue_matmul(
    a: torch.Tensor, b: torch.Tensor, read: Tensors, written: Tensors, numbers: Sequence[float], wholes: Sequence[int],
    epilogue: str, out_dtype: torch.dtype | None = None, config: str = "", allow_tf32: bool | None = None,
    activation: str | None = None,
) -> torch.Tensor:  # fmt: skip
    """The product with an epilogue, whose launch is kept as an eager call's."""
    steps, given = operands_of(epilogue, read, written, numbers, wholes)
    return _matmul.matmul(
        a, b, epilogue=steps, given=given, activation=activation, out_dtype=out_dtype, config=configured(config),
        allow_tf32=allow_tf32,
    ).contiguous()  # fmt: skip


def composed_result(
    a: Tensors, b: Tensors, read: Tensors, numbers: Sequence[float], wholes: Sequence[int], parts: str,
    out_dtype: torch.dtype | None = None, config: str = "", allow_tf32: bool | None = None,
) -> torch.Tensor:  # fmt: skip
    """The product with several parts as a new tensor. It has zeros where an order leaves tiles out."""
    return composed_matmul_writing(a, b, read, (), numbers, wholes, parts, out_dtype, config, allow_tf32)


def composed_matmul_writing(
    a: Tensors, b: Tensors, read: Tensors, written: Tensors, numbers: Sequence[float], wholes: Sequence[int],
    parts: str, out_dtype: torch.dtype | None = None, config: str = "", allow_tf32: bool | None = None,
) -> torch.Tensor:  # fmt: skip
    """The same with an epilogue that writes."""
    found = parts_of_text(parts)
    values = named_lists(found, read, written, numbers, wholes)
    return _composed(a, b, found, values, ComposedOptions(None, configured(config), out_dtype, allow_tf32))


def scaled_epilogue_matmul(
    a: torch.Tensor, scale_a: torch.Tensor, b: torch.Tensor, scale_b: torch.Tensor | None, read: Tensors,
    written: Tensors, numbers: Sequence[float], wholes: Sequence[int], epilogue: str,
    out_dtype: torch.dtype | None = None, recipe_a: str = "", recipe_b: str = "", use_fast_accum: bool = True,
    config: str = "", activation: str | None = None,
) -> torch.Tensor:  # fmt: skip
    """The product of scaled operands with an epilogue."""
    steps, given = operands_of(epilogue, read, written, numbers, wholes)
    return with_epilogue(
        ScaledFactors(a, scale_a, b, scale_b), steps, given, (recipe_a or None, recipe_b or None),
        BiasActivation(None, activation, use_fast_accum), None, out_dtype, plain_config(config),
    ).contiguous()  # fmt: skip


def grouped_epilogue_matmul(
    a: torch.Tensor, b: torch.Tensor, groups: torch.Tensor | None, scale_a: torch.Tensor | None,
    scale_b: torch.Tensor | None, rows: torch.Tensor | None, read: Tensors, written: Tensors,
    numbers: Sequence[float], wholes: Sequence[int], epilogue: str, said: str = "offsets",
    out_dtype: torch.dtype | None = None, recipe_a: str = "", recipe_b: str = "", use_fast_accum: bool = True,
    config: str = "", activation: str | None = None, function: str = "",
) -> torch.Tensor:  # fmt: skip
    """The product of groups with an epilogue; rows in no group are zeros."""
    further, read, numbers = further_of(function, epilogue, read, numbers)
    steps, given = operands_of(epilogue, read, written, numbers, wholes)
    finish, recipes = BiasActivation(None, activation, use_fast_accum), (recipe_a or None, recipe_b or None)
    asked = GroupedOptions(finish, recipes, None, out_dtype, plain_config(config))
    of = GroupedFactors(a, b, groups, said, scale_a, scale_b, rows, further)
    return grouped_with_epilogue(of, asked, steps, given).contiguous()


def scaled_matmul(
    a: torch.Tensor, scale_a: torch.Tensor, b: torch.Tensor, *others: torch.Tensor, out: torch.Tensor,
    activation: str | None, recipe_a: str, recipe_b: str, use_fast_accum: bool, config: str, tensors: tuple[str, ...],
) -> None:  # fmt: skip
    """The product of scaled operands into `out`."""
    given = dict(zip(tensors, others))
    _api.scaled_matmul(
        a, scale_a, b, given.get("scale_b"), bias=given.get("bias"), activation=activation, out=out,
        out_dtype=out.dtype, recipe_a=recipe_a or None, recipe_b=recipe_b or None, use_fast_accum=use_fast_accum,
        config=plain_config(config),
    )  # fmt: skip


def grouped_matmul(
    a: torch.Tensor, b: torch.Tensor, *others: torch.Tensor, out: torch.Tensor, said: str, activation: str | None,
    recipe_a: str, recipe_b: str, use_fast_accum: bool, config: str, tensors: tuple[str, ...],
) -> None:  # fmt: skip
    """The product of groups into `out`. Rows in no group are zeros, as those of a new result are."""
    given = dict(zip(tensors, others))
    groups, scale_a, scale_b = given.get("groups"), given.get("scale_a"), given.get("scale_b")
    finish = BiasActivation(given.get("bias"), activation, use_fast_accum)
    key: tuple[object, ...] = ()
    if groups is not None:
        options = "new", said, config, recipe_a, recipe_b, activation, use_fast_accum
        key, found = find(a, b, groups, scale_a, (scale_b, finish.bias), out, options)
        if found is not None:
            return
    call = checked_grouped(a, b, groups, said, scale_a, scale_b, finish, out, out.dtype, recipe_a, recipe_b)
    chosen, keeping = plain_config(config), KeptKey(key)
    grouped_product(call, a, b, groups, scale_a, scale_b, finish, chosen, out, keeping, clears=True)


def quantized_matmul(
    x: torch.Tensor, units: torch.Tensor, *others: torch.Tensor, out: torch.Tensor, activation: str | None, code: str,
    group: int, zeros: bool, n: int, k: int, config: str, tensors: tuple[str, ...],
) -> None:  # fmt: skip
    """The product with packed weights into `out`."""
    given = dict(zip(tensors, others))
    scale_x = given.get("scale_x")
    scale = scale_recipe(scale_x, x.shape[0], x.dtype)
    call = quantized_call((code, group, zeros, n, k), activation, out.dtype, config, scale)
    quantized_product(call, x, units, given.get("scales"), given.get("bias"), scale_x, out)


def quantize(
    x: torch.Tensor, *, recipe: str, dtype: torch.dtype | None, power_of_two: bool, scale_major: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and scales of x."""
    kind = dtype or torch.float8_e4m3fn
    return _fp8.quantize(x, recipe, dtype=kind, power_of_two=power_of_two, scale_major=scale_major)


def quantize_both(
    x: torch.Tensor, *, dtype: torch.dtype | None, power_of_two: bool, scale_major: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Values and scales of x, and of its transpose."""
    kind = dtype or torch.float8_e4m3fn
    lines, columns = _fp8.quantize_both(x, dtype=kind, power_of_two=power_of_two, scale_major=scale_major)
    return *lines, *columns


def quantize_together(*xs: torch.Tensor, recipes: str, both: Sequence[bool]) -> list[torch.Tensor]:
    """Values and scales of each of several tensors, and of its transpose."""
    pairs, _ = _fp8.quantize_together([*zip(xs, recipes.split(","), both)])
    return [part for pair in pairs for part in pair]


def scaled_matmul_quantized(
    a: torch.Tensor, scale_a: torch.Tensor, b: torch.Tensor, *others: torch.Tensor, out_dtype: torch.dtype | None,
    activation: str | None, recipe_a: str, recipe_b: str, use_fast_accum: bool, config: str, tensors: tuple[str, ...],
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The product of scaled operands, quantised, with rows as the operator's lie, and its scales."""
    given = dict(zip(tensors, others))
    c, scales = _api.scaled_matmul(
        a, scale_a, b, given.get("scale_b"), bias=given.get("bias"), activation=activation, out_dtype=out_dtype,
        out_recipe=BLOCK, recipe_a=recipe_a or None, recipe_b=recipe_b or None, use_fast_accum=use_fast_accum,
        config=plain_config(config),
    )  # fmt: skip
    return pitched(c), scales
