"""scaled_matmul and grouped_matmul with an epilogue under torch.compile.

A refusal is an operator's: the tracer meets no exception of this package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ...kernels.epilogue.chain import Epilogue
from ...kernels.operands.combined import Combine
from ...kernels.sm90.config import Sm90Config
from ..checks import NOT_RECORDED, autocast, copied, differentiated
from ..compiled.constant_objects import constant_of_objects
from ..compiled.traced import check_number, named, refusal, refuse, refuse_finish
from ..epilogue import arguments_beside, gate_of
from ..indexed.grouped_rows import Options, checked_rows
from ..operands.api import function_text
from ..operands.several import NO_DICT
from ..prepared import config_text
from ..scaled_grouped.grouped_epilogue import in_place_of_rows, refusal_beside
from ..scaled_grouped.operators import WAY_OUT
from ..scaled_grouped.own_epilogue import ScaledFactors
from ..scaled_grouped.recipes import fast_accum, recipe_text
from .api import traced_operands
from .operators import operand_names
from .scaled_operators import CHECK_GROUPED_EPILOGUE, CHECK_SCALED_EPILOGUE

_SAID = ("offsets", "offs", "counts")
QUANTIZES = "out_recipe and epilogue: one or the other; Quantize() is a step of the latter"


def traced_scaled(
    of: ScaledFactors, epilogue: Epilogue | None, given: Mapping[str, object] | None, options: Options
) -> torch.Tensor:
    """The product with scales. `options`: the other arguments of `scaled_matmul`, by name."""
    if options["out_recipe"] is not None:
        refuse(QUANTIZES)
    activation = options["activation"]
    beside, gated = arguments_beside(options["bias"], activation), gate_of(activation) is not None
    out, out_dtype, config = options["out"], options["out_dtype"], options["config"]
    text, lists = traced_operands(epilogue, given, beside, of.tensors, out, gated)
    _refuse_underived(text, lists, of.tensors, of.tensors, out, out_dtype, False)
    names = recipe_names(options["recipe_a"], options["recipe_b"], config, of.scale_a, of.scale_b)
    refuse_finish(None, of.a, out_dtype)
    fast, of_config = fast_accum(options["use_fast_accum"]), config_text(config)
    arguments = (*of, *lists, text)
    gate = activation if gated else None
    CHECK_SCALED_EPILOGUE(*arguments, out_dtype, *names, fast, of_config, gate, out)
    value: torch.Tensor = torch.ops.layoutgemm.scaled_epilogue_matmul(
        *arguments, out_dtype, *names, fast, of_config, gate
    )
    return copied(value, out)


def traced_grouped(
    a: torch.Tensor, b: torch.Tensor, rows: torch.Tensor | None, epilogue: Epilogue | None,
    given: Mapping[str, object] | None, options: Options,
    several: tuple[Sequence[torch.Tensor], Combine] | None = None,
) -> torch.Tensor:  # fmt: skip
    """The product in groups. `options`: the other arguments of `grouped_matmul`, by name.

    several  matrices B, of which b is the first, and the function of their products; or None
    """
    if options["expected_rows"] is not None:
        refuse("expected_rows: not under torch.compile, where a configuration is given by config=")
    refuse(refusal_beside(rows is not None, options))
    said = [name for name in _SAID if options[name] is not None]
    if len(said) > 1:
        refuse(f"{said[0]} and {said[1]}: groups are said by one of offsets, offs and counts")
    by, scale_a, scale_b = (said[0] if said else "offsets"), options["scale_a"], options["scale_b"]
    groups, out, out_dtype, config = options[by], options["out"], options["out_dtype"], options["config"]
    if rows is not None and by != "counts":
        groups, by, scale_a = checked_rows(a, rows, options)
    tensors = {"a": a, "b": b, **named(**{by: groups}, scale_a=scale_a, scale_b=scale_b, rows=rows)}
    activation = options["activation"]
    gated = gate_of(activation) is not None
    beside = arguments_beside(options["bias"], activation)
    further: list[torch.Tensor] = []
    of_function: list[float] = []
    function = ""
    if several is not None:
        given, further, of_function, function = _function_apart(a, *several, given, epilogue)
        for i, x in enumerate(several[0]):
            tensors[f"b[{i}]"] = x
    text, lists = traced_operands(epilogue, given, beside, tensors, out, gated)
    constants = tensors if scale_a is not None or a.dtype.itemsize == 1 else {}
    _refuse_underived(text, lists, tensors, constants, out, out_dtype, b.ndim == 3 and a.ndim == 2)
    names = recipe_names(options["recipe_a"], options["recipe_b"], config, scale_a, scale_b)
    refuse_finish(None, a, out_dtype)
    a, b = autocast(a, b)
    read, written, numbers, wholes = lists
    read, numbers = [*read, *further], [*numbers, *of_function]
    arguments = (a, b, groups, scale_a, scale_b, rows, read, written, numbers, wholes, text, by)
    fast, of_config = fast_accum(options["use_fast_accum"]), config_text(config)
    gate = activation if gated else None
    CHECK_GROUPED_EPILOGUE(*arguments, out_dtype, *names, fast, of_config, gate, out, function)
    value: torch.Tensor = torch.ops.layoutgemm.grouped_epilogue_matmul(
        *arguments, out_dtype, *names, fast, of_config, gate, function
    )
    leaves_rows = by != "offsets" and not a.ndim == b.ndim == 2
    return in_place_of_rows(value, out, by if leaves_rows else "", groups)


def _function_apart(
    a: torch.Tensor, b: Sequence[torch.Tensor], combine: Combine, given: Mapping[str, object] | None,
    epilogue: Epilogue | None,
) -> tuple[dict[str, object], list[torch.Tensor], list[float], str]:  # fmt: skip
    """The operands of the epilogue alone; the further matrices, the function's numbers and its text."""
    if given is not None and not isinstance(given, Mapping):
        refuse(NO_DICT.format(type(given).__qualname__))
    every: dict[str, object] = {} if given is None else dict(given)
    names: list[str] = []
    if isinstance(epilogue, Epilogue):
        for each in operand_names(epilogue.json):
            names += each
    own: dict[str, object] = {}
    for name in list(every):
        if name not in names:
            own[name] = every.pop(name)
    text, values = function_text(combine, len(b), own)
    for name, x in values.items():
        check_number(name, x, False)
    matrices = [autocast(a, x)[1] for x in b[1:]]
    return every, matrices, [float(x) for x in values.values()], text  # type: ignore[arg-type]  # by the check


def _refuse_underived(
    text: str, lists: Sequence[Sequence[torch.Tensor | int | float]], tensors: Mapping[str, torch.Tensor],
    constants: Mapping[str, torch.Tensor], out: torch.Tensor | None, out_dtype: torch.dtype | None, of_rows: bool,
) -> None:  # fmt: skip
    """Refuse a derivative that is recorded, and that the product does not have.

    constants, of_rows  as `check_derivable` has them
    """
    own = [x for each in lists[:2] for x in each]
    if not differentiated(out, *tensors.values(), *own):  # type: ignore[arg-type]  # tensors, by the checks
        return
    if out is not None:
        refuse(NOT_RECORDED)
    for name, x in constants.items():
        if differentiated(x):
            refuse(f"{name} requires grad, and this product has no gradient: {WAY_OUT}")
    refuse(refusal("derivative of groups", text, out_dtype, of_rows))


def recipe_names(
    recipe_a: object, recipe_b: object, config: Sm90Config | None, *scales: torch.Tensor | None
) -> tuple[str, str]:
    """The recipes' names, refused under the compiler, as a configuration of another class is.

    scales  of both operands, for recipes that are of one type of scales alone
    """
    kind_a, kind_b = [getattr(x, "dtype", None) for x in scales] or (None, None)
    for name, recipe, kind in (("recipe_a", recipe_a, kind_a), ("recipe_b", recipe_b, kind_b)):
        refuse(refusal("recipe", name, recipe, kind))
    refuse(refusal("plain config", config))
    return _text(recipe_a, kind_a), _text(recipe_b, kind_b)


@constant_of_objects
def _text(recipe: object, kind: torch.dtype | None) -> str:
    """The name of a recipe that has been checked: a constant to the compiler. `kind`: of the scales."""
    return recipe_text("recipe", recipe, kind)
