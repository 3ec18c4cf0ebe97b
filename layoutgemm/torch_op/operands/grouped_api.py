"""grouped_matmul(a, (b0, b1), combine=). A kept launch, or all checks, then a kernel or torch's dispatcher."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from ...errors import OperandError
from ...kernels.epilogue.chain import Epilogue, refusal_of_type
from ...kernels.operands.combined import Combine, refusal_of_matrices
from ...kernels.run.operand_checks import resolved
from ...kernels.sm90.indexed.row_copy import copied_bytes
from ...kernels.sm90.plan import Sm90Plan
from ...memo import function_key
from ..bias_activation import GATES
from ..checks import (
    NOT_RECORDED,
    autocast,
    copied,
    derived_by_transform,
    differentiated,
    has_tangent,
    refuse_traces,
    seen_and_recorded,
)
from ..compiled.kept_launches import Extras, again_or
from ..compiled.traced import check_kinds, check_number, named, refusal, refuse, refuse_finish
from ..explanation import ZEROS, Explanation, copied_operand, of_plan, of_several
from ..indexed.grouped_rows import Options, checked_rows
from ..own_epilogue.scaled_api import recipe_names, traced_grouped
from ..prepared import config_text
from ..scaled_grouped.explain import explain_grouped, explain_grouped_epilogue
from ..scaled_grouped.grouped import (
    COUNTS,
    ENDS,
    MASKED,
    OFFSETS,
    check_expected,
    finished,
    in_groups,
    in_groups_alone,
)
from ..scaled_grouped.grouped_epilogue import (
    FurtherMatrices,
    GroupedFactors,
    GroupedOptions,
    grouped_call,
    grouped_with_epilogue,
)
from ..scaled_grouped.recipes import fast_accum
from ..scaled_grouped.scaled import BiasActivation, check_config, is_copied
from .api import function_text, numbers_named
from .grouped import GroupedCombined, checked_groups, computed_groups, plan_of_groups
from .grouped_operators import CHECK_GROUPS, derivable, dispatched, recorded
from .scaled_groups import CHECK_SCALED_GROUPS, scaled_groups
from .several import NO_DICT, combined_sums, function_and_numbers

_SAID = (OFFSETS, ENDS, COUNTS)
# Arguments of `grouped_matmul` that a product of several b does not take: why.
_UNTAKEN = {
    "prologue": "compute the function of a first",
    **dict.fromkeys(
        ("out_rows", "row_weights", "add_rows"), "masked rows keep their places; weigh the result afterwards"
    ),
}
_SCALES = ("scale_a", "scale_b", "recipe_a", "recipe_b")
_SCALED = "scales and combine:"


def grouped_combined(
    a: torch.Tensor, b: object, combine: Combine | None, given: Mapping[str, object] | None, options: Options,
    product: Callable[..., torch.Tensor],
) -> torch.Tensor:  # fmt: skip
    """activation(combine(a @ b[0], a @ b[1], ...) + bias) in groups.

    options  the other arguments of `grouped_matmul`, by name
    product  `grouped_matmul`

    Raises OperandError or TensorError before anything is written, naming the operand. PlanError for a configuration
    without a kernel.
    """
    refuse(refusal_of_call(b, combine, options))
    said = next((name for name in _SAID if options.get(name) is not None), OFFSETS)
    assert combine is not None and isinstance(b, (tuple, list))
    if any(options.get(name) is not None for name in _SCALES):
        if torch.compiler.is_dynamo_compiling():
            return _traced(a, b, combine, given, said, options)
        return _of_scaled(a, b, combine, given, said, options, product)
    if options["epilogue"] is not None:
        if torch.compiler.is_dynamo_compiling():
            return traced_grouped(a, b[0], options["rows"], options["epilogue"], given, options, (b, combine))
        return grouped_with_epilogue(*_with_steps(a, b, combine, given, options))
    if torch.compiler.is_dynamo_compiling():
        return _traced(a, b, combine, given, said, options)
    return _eager(a, b, combine, given, said, options)


def refusal_of_call(b: object, combine: object, options: Options) -> str:
    """Why a call's arguments are no product of several matrices, or ""; torch.compile traces it."""
    if combine is None:
        return "b is a tuple of matrices: combine= says what becomes of their products; give one b without it"
    if text := refusal_of_matrices(b):
        return text
    for name, why in _UNTAKEN.items():
        if options.get(name) is not None:
            return f"{name} and combine: a grouped product of several b takes none; {why}"
    if options.get("copy_rows") is False:
        return "copy_rows: False, and rows of a product of several b are copied first"
    if options.get("copy_rows") is not None and options.get("rows") is None:
        return "copy_rows: of a product with rows="
    said = [name for name in _SAID if options.get(name) is not None]
    if len(said) > 1:
        return f"{said[0]} and {said[1]}: groups are said by one of offsets, offs and counts"
    if any(options.get(name) is not None for name in _SCALES):
        return _refusal_of_scales(b, options)
    return ""


def _refusal_of_scales(b: object, options: Options) -> str:
    """Why several products with scales have no such call, or ""."""
    assert isinstance(b, (tuple, list))
    scales = options.get("scale_b")
    if not isinstance(scales, (tuple, list)) or len(scales) != len(b):
        of = f"{type(scales).__qualname__}" + (f" of {len(scales)}" if isinstance(scales, (tuple, list)) else "")
        return f"scale_b is a {of}: with combine= a tuple of {len(b)}, the scales of each b"
    if options.get("epilogue") is not None:
        return f"{_SCALED} torch combines these products, and an epilogue is a kernel's; a gate of one b takes it"
    if isinstance(options["activation"], str) and options["activation"] in GATES:
        return "activation and combine: the function of the products has the gate"
    return ""


def _of_scaled(
    a: torch.Tensor, b: Sequence[torch.Tensor], combine: Combine, given: Mapping[str, object] | None, said: str,
    options: Options, product: Callable[..., torch.Tensor],
) -> torch.Tensor:  # fmt: skip
    """A product of 8-bit floats. Scales of blocks are one kernel's.

    Else each product is computed in float32 with its scales; torch combines them and rounds once.
    """
    of = scaled_groups(a, b, combine, given, said, options)
    call, out, finish, how, numbers = of.call, options["out"], of.finish, of.how, of.numbers
    if of.scales and not any(seen_and_recorded([*of.tensors, *of.scales], out)):
        return computed_groups(of, options["config"], out, options["expected_rows"])
    scales = options["scale_b"]
    changed = {"bias": None, "activation": None, "out": None, "out_dtype": torch.float32}
    alone = {name: x for name, x in {**options, **changed}.items() if name not in _UNTAKEN and name != "epilogue"}
    wide = [product(a, x, **{**alone, "scale_b": scale}) for x, scale in zip(b, scales, strict=True)]
    value = finished(call, combined_sums(how, wide, numbers), options[said], finish)
    return _placed(in_groups_alone(call, value, options[said]), out, call.leaves_rows, said, options[said])


def _with_steps(
    a: torch.Tensor, b: Sequence[torch.Tensor], combine: Combine, given: Mapping[str, object] | None, options: Options
) -> tuple[GroupedFactors, GroupedOptions, object, dict[str, object]]:
    """The product of a call with an epilogue: its operands, options, epilogue, and the operands of that."""
    if given is not None and not isinstance(given, Mapping):
        raise OperandError(NO_DICT.format(type(given).__qualname__))
    steps = options["epilogue"]
    if not isinstance(steps, Epilogue):
        raise OperandError(refusal_of_type(steps))
    of, asked, names = *grouped_call(a, b[0], options["rows"], options), [operand.name for operand in steps.given]
    how, numbers = function_and_numbers(b, combine, {x: y for x, y in (given or {}).items() if x not in names})
    read = {name: x for name, x in (given or {}).items() if name in names}
    return of._replace(further=FurtherMatrices(list(b[1:]), how, numbers)), asked, steps, read


def _checked(
    a: torch.Tensor, b: Sequence[torch.Tensor], combine: Combine, given: Mapping[str, object] | None, said: str,
    options: Options,
) -> GroupedCombined:  # fmt: skip
    check_config(options["config"])
    check_expected(options["expected_rows"], options.get(said), options["config"])
    finish = BiasActivation(options["bias"], options["activation"], fast_accum(options["use_fast_accum"]))
    return checked_groups(
        a, b, options.get(said), said, combine, given, finish, options.get("rows"), options["out"],
        options["out_dtype"],
    )  # fmt: skip


def _eager(
    a: torch.Tensor, b: Sequence[torch.Tensor], combine: Combine, given: Mapping[str, object] | None, said: str,
    options: Options,
) -> torch.Tensor:  # fmt: skip
    out, config, expected, rows = (options[name] for name in ("out", "config", "expected_rows", "rows"))

    def make() -> torch.Tensor:
        refuse_traces("combine=")
        product = _checked(a, b, combine, given, said, options)
        sees, records = seen_and_recorded(product.tensors, out)
        if not (sees or records):
            return computed_groups(product, config, out, expected)
        text = config_text(
            config if expected is None else plan_of_groups(product, None, out is None, expected)[0].config
        )
        if sees:
            derives = derived_by_transform() or any(has_tangent(x) for x in product.tensors)
            value = (derivable if derives else dispatched)(product, text)
            return _placed(value, out, product.call.leaves_rows, said, product.groups)
        return recorded(product, text)

    values, groups = {} if given is None else given, options.get(said)
    if groups is None or type(values) is not dict or not all(type(name) is str for name in values):
        return make()
    fast_accum(options["use_fast_accum"])  # a key takes 1 for True, and 1.0 for 1
    check_expected(expected, groups, config)
    extras = Extras(numbers=numbers_named(tuple(values)), given=values)
    kept_by = options["activation"], config, options["out_dtype"], expected
    key = ("grouped_matmul, combine=", function_key(combine), tuple(values), *kept_by)
    matrices = {f"b{i}" if i else "b": x for i, x in enumerate(b)}
    read = {"a": a, **matrices, "ends" if said == ENDS else said: groups, "rows": rows, "bias": options["bias"]}
    return again_or(make, key, read, out, extras)


def _placed(
    value: torch.Tensor, out: torch.Tensor | None, leaves_rows: bool, said: str, groups: torch.Tensor | None
) -> torch.Tensor:
    """The result, or `out` with its rows that are in a group."""
    if out is not None and leaves_rows and groups is not None:
        value = torch.where(in_groups(value.shape, said, groups), value, out)
    return copied(value, out)


def _traced(
    a: torch.Tensor, b: Sequence[torch.Tensor], combine: Combine, given: Mapping[str, object] | None, said: str,
    options: Options,
) -> torch.Tensor:  # fmt: skip
    """The same under torch.compile, whose tracer meets no exception of ours."""
    groups, rows, bias, out = options.get(said), options["rows"], options["bias"], options["out"]
    activation, out_dtype, config = options["activation"], options["out_dtype"], options["config"]
    if options["expected_rows"] is not None:
        refuse("expected_rows: not under torch.compile, where a configuration is given by config=")
    text, values = function_text(combine, len(b), given)
    tensors = {"a": a, **named(**{said: groups}, rows=rows, bias=bias, scale_a=options["scale_a"])}
    scales = options["scale_b"]
    for name, matrices in (("b", b), ("scale_b", () if scales is None else scales)):
        for i, x in enumerate(matrices):
            tensors[f"{name}[{i}]"] = x
    check_kinds(tensors, named(out=out))
    for name, x in values.items():
        check_number(name, x, False)
    numbers = [float(x) for x in values.values()]  # type: ignore[arg-type]  # each is a number, by the check
    refuse(refusal("plain config", config))
    refuse_finish(activation, a, out_dtype)
    if out is not None and differentiated(a, *b, bias, out):
        refuse(NOT_RECORDED)
    if scales is not None:
        return _traced_scaled(a, b, numbers, text, said, options)
    left = autocast(a, b[0])[0]
    matrices = [autocast(a, x)[1] for x in b]
    CHECK_GROUPS(left, matrices, groups, numbers, text, said, rows, bias, activation, out, out_dtype)
    value: torch.Tensor = torch.ops.layoutgemm.combined_grouped_matmul(
        left, matrices, groups, numbers, text, said, rows, bias, activation, out_dtype, config_text(config)
    )
    return _placed(value, out, said != OFFSETS, said, groups)


def _traced_scaled(
    a: torch.Tensor, b: Sequence[torch.Tensor], numbers: list[float], text: str, said: str, options: Options
) -> torch.Tensor:
    """The operator of 8-bit floats with scales, of operands of the right kinds."""
    groups, bias, out, config = options.get(said), options["bias"], options["out"], options["config"]
    if differentiated(a, *b, bias):
        refuse(f"{_SCALED} gradients, of a bias too, are not under torch.compile")
    names = recipe_names(options["recipe_a"], options["recipe_b"], config)
    read = (a, [*b], groups, options["scale_a"], [*options["scale_b"]], numbers, text, said, options["rows"], bias)
    last = (options["out_dtype"], *names, fast_accum(options["use_fast_accum"]), config_text(config))
    CHECK_SCALED_GROUPS(*read, options["activation"], out, *last)
    value: torch.Tensor = torch.ops.layoutgemm.combined_scaled_grouped_matmul(*read, options["activation"], *last)
    return _placed(value, out, said != OFFSETS, said, groups)


def explain_grouped_combined(
    a: torch.Tensor, b: object, combine: Combine | None, given: Mapping[str, object] | None, options: Options
) -> Explanation:
    """Which kernel the product takes, why, and what it copies; raises as the product does.

    >>> a, b, ends = torch.empty(512, 256).half(), torch.empty(4, 512, 256).half().mT, torch.tensor([9, 99, 200, 512])
    >>> names = "bias activation out out_dtype config expected_rows rows copy_rows".split()
    >>> told = explain_grouped_combined(
    ...     a, (b, b), "silu", None, {**dict.fromkeys(names), "offs": ends, "use_fast_accum": True}
    ... )
    >>> told.launches, "2 matrices B combined" in told.kernel, told.copies
    (1, True, ())
    """
    refuse(refusal_of_call(b, combine, options))
    said = next((name for name in _SAID if options.get(name) is not None), OFFSETS)
    assert combine is not None and isinstance(b, (tuple, list))
    scaled = None
    if options.get("scale_b") is not None:
        scaled = scaled_groups(a, b, combine, given, said, options)
    if scaled is not None and not scaled.scales:
        rows, scale_a = options.get("rows"), options["scale_a"]
        if rows is not None:
            _, _, scale_a = checked_rows(a, rows, options)
        told = explain_grouped(
            a, b[0], options[said], said, scale_a, options["scale_b"][0], BiasActivation(), None, torch.float32,
            (options.get("recipe_a"), options.get("recipe_b")), options["config"], options["expected_rows"], rows=rows,
        )  # fmt: skip
        kernel = f"{told.kernel}, for each of {len(b)} b; then torch combines them"
        return replace(told, kernel=kernel, launches=told.launches * len(b))
    if options.get("epilogue") is not None:
        return explain_grouped_epilogue(*_with_steps(a, b, combine, given, options))
    product, out = scaled or _checked(a, b, combine, given, said, options), options["out"]
    call = product.call
    if 0 in (*call.shape, call.experts, *product.a.shape):
        return ZEROS
    plan, why = plan_of_groups(product, options["config"], out is None, options["expected_rows"])
    left, right = resolved(product.a), [resolved(x) for x in product.b]
    if call.in_batch_of_one:
        left, right, out = left[0], [x[0] for x in right], None if out is None else out[0]
    copies = [copy for i, x in enumerate(right[1:], 1) for copy in copied_operand(plan, "B", x, f"b[{i}]")]
    if not product.groups.is_contiguous():
        copies.append(
            (f"{said}: stride {product.groups.stride(0)}, and the kernel reads stride 1", product.groups.nbytes)
        )
    if product.rows is not None and isinstance(plan, Sm90Plan):
        copies.append((f"a: {product.rows.shape[0]} chosen rows", copied_bytes(plan)))
    if product.scales and is_copied(product.scales[1], options["scale_b"]):
        copies.append((of_several(len(b)), product.scales[1].nbytes))
    of = "counts of rows" if call.form == MASKED else "ends"
    return of_plan(plan, left, right[0], out, f"one launch for all groups, whose {of} the kernel reads; {why}", copies)
