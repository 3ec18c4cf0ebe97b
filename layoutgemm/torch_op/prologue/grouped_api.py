"""grouped_matmul(a, b, prologue=, given=). A kept launch, or all checks, then a kernel or torch's dispatcher.

Where derivatives are recorded, torch computes the function and derives it, and the product is `grouped_matmul`'s own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from ...kernels.operands.prologue import Prologue
from ...kernels.sm90.config import Sm90Config
from ..checks import copied, derived_by_transform, needs_dispatcher, refuse_traces
from ..compiled.kept_launches import again_or
from ..compiled.traced import refuse
from ..indexed.grouped_rows import Options, checked_rows
from ..prepared import config_text
from ..scaled_grouped.grouped import MASKED_GROUPS, check_expected, groups_of, in_groups
from ..scaled_grouped.recipes import fast_accum
from ..scaled_grouped.scaled import BiasActivation, check_config
from .api import refusal_of_call
from .grouped import GroupedPrologue, checked_groups, computed_groups, function_of_groups, parameter
from .grouped_operators import CHECK_GROUPS
from .product import ALONE
from .rows import of_chosen_rows
from .traced import TracedFinish, traced_operands

Tensors = Mapping[str, torch.Tensor]
_SAID = ("offsets", "offs", "counts")
# Arguments of `grouped_matmul` that a product with a prologue does not take.
_OF_SCALES = ("scale_a", "scale_b", "recipe_a", "recipe_b")
_UNTAKEN = ("epilogue", *_OF_SCALES, "out_rows", "row_weights")


def grouped_prologue_product(
    a: torch.Tensor, b: torch.Tensor, prologue: Prologue, given: Tensors | None, options: Options,
    rows: torch.Tensor | None, multiply: Callable[..., torch.Tensor],
) -> torch.Tensor:  # fmt: skip
    """activation(prologue(a) @ b + bias) in groups.

    options   the other arguments of `grouped_matmul`, by name
    multiply  `grouped_matmul`

    Raises OperandError or TensorError before anything is written, naming the operand. PlanError for a prologue that no
    kernel has.
    """
    traced = torch.compiler.is_dynamo_compiling()
    values: Tensors = {} if given is None else given
    refuse(_refusal(a, b, prologue, values, options, rows, traced))
    if rows is not None:
        a, values = of_chosen_rows(a, rows, prologue, values, options["copy_rows"])
    said = next((name for name in _SAID if options.get(name) is not None), "offsets")
    if traced:
        return _traced(a, b, prologue, values, said, options)
    return _eager(a, b, prologue, values, said, options, multiply)


def with_function_applied(
    a: torch.Tensor, b: torch.Tensor | Sequence[torch.Tensor], prologue: object, given: Mapping[str, object] | None,
    rows: torch.Tensor | None, options: Options,
) -> tuple[torch.Tensor, dict[str, object], Options]:  # fmt: skip
    """f(A) by torch, which derives it too: beside several B, an epilogue, or scales.

    The other operands of `given` and the other arguments follow. Raises as `grouped_prologue_product`.

    >>> twice = Prologue.of(lambda x, i, k, ops, s: x * s, s="k")
    >>> options = {"offs": torch.tensor([1]), "out_dtype": None, "copy_rows": None}
    >>> a, b, s = torch.ones(1, 2).half(), torch.ones(1, 2, 1).half(), torch.tensor([3.0, 4.0])
    >>> with_function_applied(a, (b, b), twice, {"s": s, "more": 1.0}, None, options)[:2]
    (tensor([[3., 4.]], dtype=torch.float16), {'more': 1.0})
    """
    traced = torch.compiler.is_dynamo_compiling()
    first, others = b if isinstance(b, torch.Tensor) else b[0], dict(given or {})
    names = prologue.names if isinstance(prologue, Prologue) else ()
    values: dict[str, torch.Tensor] = {}
    for name in names:  # no comprehension: Dynamo of Python 3.11 reads no name that is bound in one
        x = others.pop(name, None)
        if isinstance(x, torch.Tensor):
            values[name] = x
    beside = {**options, **dict.fromkeys(("epilogue", *_OF_SCALES))}
    refuse(_refusal(a, first, prologue, values, beside, rows, traced))
    if traced:
        said = "prologue beside combine=, a gate, epilogue= or scales: not under torch.compile"
        refuse(f"{said}; compute the function of a first")
    assert isinstance(prologue, Prologue)
    more: Options = {"copy_rows": None}
    if rows is not None:
        if options.get("scale_a") is not None:
            more["scale_a"] = checked_rows(a, rows, options)[2]
        a, values = of_chosen_rows(a, rows, prologue, values, options["copy_rows"])
    said = next((name for name in _SAID if options.get(name) is not None), "offsets")
    nothing = BiasActivation()
    product = checked_groups(a, first, options.get(said), said, prologue, values, nothing, None, options["out_dtype"])
    return function_of_groups(product), others, {**options, **more}


def _refusal(
    a: object, b: object, prologue: object, given: object, options: Options, rows: object, traced: bool
) -> str:  # fmt: skip
    """Why a call's arguments are no product with a prologue, or ""."""
    for name in (*_UNTAKEN, *(("copy_rows",) if rows is None else ())):
        if options.get(name) is not None:
            return f"{name} and prologue: {ALONE}"
    if rows is not None and options.get("counts") is not None:
        return "rows and counts with a prologue: rows of masked groups by index are of products without one"
    if traced and options.get("expected_rows") is not None:
        return "expected_rows: not under torch.compile, where a configuration is given by config="
    said = [name for name in _SAID if options.get(name) is not None]
    if len(said) > 1:
        return f"{said[0]} and {said[1]}: groups are said by one of offsets, offs and counts"
    return refusal_of_call(a, b, prologue, given)


def _eager(
    a: torch.Tensor, b: torch.Tensor, prologue: Prologue, given: Tensors, said: str, options: Options,
    multiply: Callable[..., torch.Tensor],
) -> torch.Tensor:  # fmt: skip
    groups, _ = groups_of(options.get("offsets"), options.get("offs"), options.get("counts"))
    out, config, expected = options["out"], options["config"], options["expected_rows"]
    finish = BiasActivation(options["bias"], options["activation"], fast_accum(options["use_fast_accum"]))
    check_expected(expected, options.get("counts"), config, MASKED_GROUPS)

    def make() -> torch.Tensor:
        refuse_traces("prologue=")
        check_config(config)
        product = checked_groups(a, b, groups, said, prologue, given, finish, out, options["out_dtype"])
        if not needs_dispatcher(*product.tensors, out):
            return computed_groups(product, config, out, expected)
        if derived_by_transform():
            return multiply(
                function_of_groups(product), product.b, **{said: groups}, bias=finish.bias,
                activation=finish.activation, out=out, out_dtype=product.call.kind, config=config,
            )  # fmt: skip
        return _placed(product, _dispatched(product, config), out)

    if groups is None:
        return make()
    read = {"a": a, "b": b, parameter(said): groups, **given, "bias": finish.bias}
    key = "grouped_matmul, prologue=", prologue, finish[1:], config, options["out_dtype"], expected
    return again_or(make, key, read, out)


def _dispatched(product: GroupedPrologue, config: Sm90Config | None) -> torch.Tensor:
    """The product that torch's dispatcher sees, of operands that have been checked."""
    _, a, b, groups, prologue, given, finish = product
    values = [given[name] for name in prologue.names]
    value: torch.Tensor = torch.ops.layoutgemm.prologue_grouped_matmul(
        a, b, groups, values, prologue.json, product.call.said, finish.bias, finish.activation, product.call.kind,
        config_text(config),
    )  # fmt: skip
    return value


def _placed(product: GroupedPrologue, value: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    """The result, or `out` with its rows that are in a group."""
    if out is not None and product.call.leaves_rows:
        value = torch.where(in_groups(value.shape, product.call.said, product.groups), value, out)
    return copied(value, out)


def _traced(
    a: torch.Tensor, b: torch.Tensor, prologue: Prologue, given: Tensors, said: str, options: Options
) -> torch.Tensor:
    """The same under torch.compile, whose tracer meets no exception of ours."""
    groups, config = options.get(said), options["config"]
    finish = TracedFinish(*[options[name] for name in TracedFinish._fields])
    a, b, values, text = traced_operands(a, b, prologue, given, finish, ("plain config", config), {said: groups})
    bias, activation, out, out_dtype = finish
    CHECK_GROUPS(a, b, groups, values, text, said, bias, activation, out, out_dtype)
    value: torch.Tensor = torch.ops.layoutgemm.prologue_grouped_matmul(
        a, b, groups, values, text, said, bias, activation, out_dtype, config_text(config)
    )
    if out is not None and said != "offsets":
        value = torch.where(in_groups(value.shape, said, groups), value, out)
    return copied(value, out)
