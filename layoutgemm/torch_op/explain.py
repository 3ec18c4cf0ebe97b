"""layoutgemm.explain_matmul: how a product is taken, in words, without a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

import torch

from ..arguments import names_unknown
from ..errors import OperandError
from ..kernels.epilogue.chain import Epilogue
from ..kernels.operands.combined import Combine
from ..kernels.operands.prologue import Prologue
from ..kernels.orders import Order, leaves_tiles
from ..kernels.run.operand_checks import check_operands
from ..kernels.sm90.quantized.feature_parts import FeatureParts
from ..kernels.sm90.triangular.operands import Triangles
from ..kernels.streamed.plan import StreamedConfig
from .bias_activation import GATES, gated_finish
from .checks import check_activation, check_gated_type, check_out, check_types, output_type
from .compiled.traced import refuse
from .composed.api import ComposedOptions
from .composed.explain import explain_composed
from .composed.parts import OWN, AskedParts, composes, has_batches
from .composed.scaled import NO_OUT_RECIPE, ScaledPart, asks_parts, composed_arguments
from .epilogue import arguments_beside, check_fit, gate_of, given_operands
from .explanation import ZEROS, Explanation, gated_after, of_several, of_solution, sums_again, with_steps
from .indexed.added import check_lines
from .indexed.explain import explain_indexed
from .indexed.grouped_rows import Options, checked_rows, takes_copied_rows
from .indexed.product import IndexedOperands
from .operands.grouped_api import explain_grouped_combined
from .operands.several import explain_combined
from .own_epilogue.derivatives import NO_SUMS, EpilogueProduct, is_linear
from .prepared import NO_FINISH, Config, on_gpu, problem_at, target
from .problem import gated_shapes
from .prologue.explain import explain_prologue
from .quantized.configs import PackedConfig
from .quantized.experts import QuantizedExperts
from .quantized.explain import explain_packed
from .quantized.weights import QuantizedWeight
from .scaled_grouped.api import applies_function, beside_sums, refusal_of_form, takes_placed_rows
from .scaled_grouped.block_scaled import BESIDE, BlockArguments, Scale, asks_block_scales, factors_beside
from .scaled_grouped.explain import (
    explain_block_scaled,
    explain_grouped,
    explain_grouped_epilogue,
    explain_own_epilogue,
    explain_scaled,
)
from .scaled_grouped.grouped import check_expected, groups_of
from .scaled_grouped.grouped_epilogue import grouped_call
from .scaled_grouped.own_epilogue import ScaledFactors
from .scaled_grouped.recipes import SCALES, fast_accum
from .scaled_grouped.scaled import BiasActivation, is_copied, unswapped
from .solver import solve, why_unfused

Packed = QuantizedWeight | QuantizedExperts
__all__ = ["Explanation", "explain_matmul"]

_ADDED = "its rows are added to those that add_rows names"


@names_unknown
def explain_matmul(
    a: torch.Tensor | tuple[torch.Tensor, torch.Tensor], b: torch.Tensor | Sequence[torch.Tensor] | Packed, *,
    out: torch.Tensor | None = None, config: Config | PackedConfig | None = None, out_recipe: object = None,
    out_dtype: torch.dtype | None = None, activation: str | None = None, bias: torch.Tensor | None = None,
    scale_a: Scale | None = None, scale_b: Scale | None = None, recipe_a: object = None, recipe_b: object = None,
    swizzle_a: object = None, swizzle_b: object = None, use_fast_accum: bool = True, copy_rows: bool | None = None,
    offsets: torch.Tensor | None = None, offs: torch.Tensor | None = None, counts: torch.Tensor | None = None,
    expected_rows: int | None = None, combine: Combine | None = None, given: Mapping[str, object] | None = None,
    rows: torch.Tensor | None = None, out_rows: torch.Tensor | None = None, row_weights: torch.Tensor | None = None,
    epilogue: Epilogue | None = None, prologue: Prologue | None = None, order: Order | None = None,
    triangles: Triangles | None = None, add_rows: torch.Tensor | None = None,
) -> Explanation:  # fmt: skip
    """Which kernel a product takes for these tensors, why, and what it copies. Nothing is compiled or launched.

    The product is `matmul`'s. It is `grouped_matmul`'s where one of offsets, offs and counts is given, or scales and a
    bias of each matrix. Else it is `scaled_matmul`'s where scale_a is, with its `out_recipe`. With `combine`, b is the
    tuple that `matmul` takes, and `given` its numbers; two pairs are tuples. With an `order`, or parts together,
    `given` has the operands of all. `epilogue` is that of any of the three, and `given` its operands. `prologue` is
    `matmul`'s, with `given`; the explanation says how often its function is computed.
    With row indices it is `matmul`'s or `grouped_matmul`'s. With a QuantizedWeight as b it is `quantized_matmul`'s,
    with QuantizedExperts and offsets `quantized_grouped_matmul`'s; scale_a is scale_x. The arguments are theirs.

    For CPU tensors it explains the call on an H200, with an Sm100Config on a B200. `matmul`'s bias, and an activation
    that is no gate, are ignored: they change neither copies nor configuration.

    Raises as the product does.

    >>> import torch
    >>> a, b = torch.empty(4096, 4096).bfloat16(), torch.empty(4096, 1023).bfloat16()
    >>> for part in explain_matmul(a, b).copies[0].split("; "):
    ...     print(part)
    b: lines lie 1023 * 2 = 2046 bytes apart, no multiple of 16
    copied row-major, lines 1024 elements apart, 8388608 bytes
    >>> explain_matmul(a, torch.empty(2048, 4096).bfloat16().T, activation="swiglu").kernel.partition(",")[0]
    'Sm90Plan 4096x1024x4096: A bf16 row'
    >>> eight = torch.empty(512, 256, dtype=torch.float8_e4m3fn)
    >>> explain_matmul(eight, eight.T, scale_a=torch.ones(512, 2), scale_b=torch.ones(4, 2)).why.partition(";")[0]
    "scales of K blocks are the main loop's"
    >>> ends = torch.tensor([0, 1000, 4096])
    >>> explain_matmul(a, torch.empty(2, 4096, 64).bfloat16(), offsets=ends).why.partition(";")[0]
    'one launch for all groups, whose ends the kernel reads'
    """
    if isinstance(b, (QuantizedWeight, QuantizedExperts)):
        untaken = {
            "out": out, "scale_b": scale_b, "recipe_a": recipe_a, "recipe_b": recipe_b, "offs": offs, "counts": counts,
            "expected_rows": expected_rows, "combine": combine, "given": given, "rows": rows, "out_rows": out_rows,
            "row_weights": row_weights, "copy_rows": copy_rows, "prologue": prologue, "order": order,
            "add_rows": add_rows,
        }  # fmt: skip
        return explain_packed(a, b, bias, offsets, (scale_a, activation, out_dtype, config), untaken)
    config = _not_streamed(config, any(x is not None for x in (scale_a, offsets, offs, counts)))
    more: Options = {
        "offsets": offsets, "offs": offs, "counts": counts, "expected_rows": expected_rows, "scale_a": scale_a,
        "scale_b": scale_b, "recipe_a": recipe_a, "recipe_b": recipe_b, "bias": bias, "activation": activation,
        "use_fast_accum": use_fast_accum, "out": out, "out_dtype": out_dtype, "config": config, "out_rows": out_rows,
        "row_weights": row_weights, "copy_rows": copy_rows,
    }  # fmt: skip
    functions: Options = {"epilogue": epilogue, "given": given, "prologue": prologue, "combine": combine}
    others: Options = {**more, "rows": rows, "add_rows": add_rows, "out_recipe": out_recipe}
    in_steps = _in_steps(a, b, more, functions, rows, add_rows) if _in_groups(more) else None
    in_steps = in_steps or _of_blocks(a, b, others, functions, (swizzle_a, swizzle_b))
    if found := in_steps or _together(a, b, (order, prologue, combine, epilogue, triangles), given, others):
        return found
    if prologue is not None:
        return explain_prologue(a, b, prologue, given, {"combine": combine, "epilogue": epilogue, **others})
    if rows is not None or out_rows is not None or add_rows is not None:
        if rows is not None and combine is None and getattr(b, "ndim", 0) == 3 and takes_copied_rows(more):
            return _copied_rows(a, b, rows, more)
        untaken = {name: more[name] for name in ("scale_a", "offs", "expected_rows")} | functions
        operands = IndexedOperands(a, b, rows, out_rows, row_weights, offsets, counts, add_rows)
        return explain_indexed(operands, out, activation, out_dtype, config, copy_rows, untaken)
    if TYPE_CHECKING:
        assert isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
    groups, said = groups_of(offsets, offs, counts)
    if given is not None or epilogue is not None:
        if scale_a is not None:
            of, after = ScaledFactors(a, scale_a, b, scale_b), BiasActivation(bias, activation, use_fast_accum)
            return explain_own_epilogue(of, epilogue, given, (recipe_a, recipe_b), after, out, out_dtype, config)
        return _with_epilogue(a, b, out, epilogue, given, config, out_dtype, (bias, activation))
    check_expected(expected_rows, groups, config)
    recipes, after = (recipe_a, recipe_b), BiasActivation(bias, activation, use_fast_accum)
    if groups is not None or (scale_a is not None and out_recipe is None and _is_of_each(a, b, bias)):
        return explain_grouped(
            a, b, groups, said, scale_a, scale_b, after, out, out_dtype, recipes, config, expected_rows
        )
    if scale_a is not None:
        return explain_scaled(a, scale_a, b, scale_b, after, out, out_dtype, recipes, config, out_recipe)
    _check_unscaled({**more, "out_recipe": out_recipe})
    return _plain(a, b, out, config, out_dtype, activation)


def _of_blocks(
    a: torch.Tensor | tuple[torch.Tensor, torch.Tensor], b: torch.Tensor | Sequence[torch.Tensor], options: Options,
    functions: Options, swizzles: tuple[object, object],
) -> Explanation | None:  # fmt: skip
    """The explanation of `scaled_matmul` with block scales; None for other products."""
    scales = options["scale_a"], None if isinstance(b, (tuple, list)) else options["scale_b"]
    if _in_groups(options) or not asks_block_scales(a, *scales, *swizzles):
        return None
    behind = functions["epilogue"] is not None or functions["given"] is not None
    parts = "rows", "add_rows", "out_rows", "row_weights", "copy_rows"
    beside = functions["combine"], functions["prologue"], *[options[name] for name in parts]
    if isinstance(a, tuple) or not isinstance(b, torch.Tensor) or any(x is not None for x in beside):
        raise OperandError(BESIDE)
    names = "bias", "activation", "out", "out_dtype", "out_recipe", "config"
    own = options["recipe_a"], options["recipe_b"], *swizzles, *[options[name] for name in names]
    if behind:
        scale_a, scale_b, recipes = factors_beside(scales, own[:4], options["config"], options["out_recipe"])
        of, after = ScaledFactors(a, scale_a, b, scale_b), BiasActivation(options["bias"], options["activation"])
        asked = (recipes[0] or None, recipes[1] or None), after, options["out"], options["out_dtype"], options["config"]
        return explain_own_epilogue(of, functions["epilogue"], functions["given"], *asked)
    return explain_block_scaled(BlockArguments(a, scales[0], b, scales[1], *own))


def _scaled_parts(
    a: torch.Tensor | tuple[torch.Tensor, torch.Tensor], b: torch.Tensor | Sequence[torch.Tensor],
    parts: tuple[Order | None, Prologue | None, Combine | None, Epilogue | None, Triangles | None],
    given: Mapping[str, object] | None, options: Options,
) -> Explanation | None:  # fmt: skip
    """The explanation of `scaled_matmul` with parts; None for other products, and for several B of a batch."""
    of_each = parts[2] is not None and getattr(a, "ndim", 0) == 3  # which is grouped_matmul's
    asked = AskedParts(*parts[:4], options["activation"], options["copy_rows"], parts[4])
    own = {name: options[name] for name in OWN if name not in SCALES}
    if options["scale_a"] is None or _in_groups(options) or of_each or not asks_parts(asked, own):
        return None
    if options["out_recipe"] is not None:
        raise OperandError(NO_OUT_RECIPE)
    recipes, fast = (options["recipe_a"], options["recipe_b"]), fast_accum(options["use_fast_accum"])
    of = ScaledPart(a, options["scale_a"], b, options["scale_b"], recipes, fast, computes=False)
    result = ComposedOptions(options["out"], options["config"], options["out_dtype"], None)
    made = composed_arguments(of, asked, own, given, result)
    told = explain_composed(*made)
    if asked.prologue is not None and made.asked.prologue is None:
        told = replace(told, kernel=f"torch computes a's function, then {told.kernel}")
    scale_b = made.own.get(SCALES[1], made.given.get(SCALES[1]))
    if asked.combine is None or not isinstance(scale_b, torch.Tensor) or not is_copied(scale_b, options[SCALES[1]]):
        return told
    return replace(told, copies=(*told.copies, f"{of_several(len(b))}, {scale_b.nbytes} bytes"))


def _in_steps(
    a: torch.Tensor | tuple[torch.Tensor, torch.Tensor], b: torch.Tensor | Sequence[torch.Tensor], options: Options,
    functions: Options, rows: torch.Tensor | None, add_rows: torch.Tensor | None,
) -> Explanation | None:  # fmt: skip
    """The explanation of groups with an epilogue, or with steps by torch. None for others."""
    prologue, several = functions["prologue"], functions["combine"] is not None or isinstance(b, (tuple, list))
    if several or any(x is not None for x in [*functions.values(), *beside_sums(options)]):
        behind = _ADDED if add_rows is not None else ""
        if behind or takes_placed_rows(options):
            refuse(refusal_of_form(a, b, {**options, "add_rows": add_rows}))
            check_lines(a, {**options, "rows": rows, "add_rows": add_rows, "epilogue": functions["epilogue"]})
        if add_rows is None and takes_placed_rows(options):
            behind, options = "torch weighs and places its rows", {**options, "out_rows": None, "row_weights": None}
        if behind:
            told = explain_matmul(a, b, **{**options, "out": None}, **functions, rows=rows)
            return replace(told, kernel=f"{told.kernel}; then {behind}")
    steps, given = functions["epilogue"], functions["given"]
    if prologue is None:
        if several or (steps is None and given is None):
            return None
        return explain_grouped_epilogue(*grouped_call(a, b, rows, options), steps, given)
    if not applies_function(several, steps, options):
        return None
    if not isinstance(prologue, Prologue):
        raise OperandError(f"prologue is a {type(prologue).__qualname__}: a Prologue, made by Prologue.of")
    left = {name: x for name, x in (given or {}).items() if name not in prologue.names}
    told = explain_matmul(a, b, **options, **{**functions, "prologue": None, "given": left or None}, rows=rows)
    return replace(told, kernel=f"torch computes a's function, then {told.kernel}")


def _not_streamed(config: Config | PackedConfig | None, unswaps: bool) -> Config | None:
    """A product's configuration. Raises OperandError for that of a product of packed weights.

    unswaps  whether the product takes the configuration of a choice alone
    """
    if isinstance(config, StreamedConfig | FeatureParts):
        raise OperandError(f"config = {config}: it is of products with a QuantizedWeight")
    return unswapped(config) if unswaps else config


def _together(
    a: torch.Tensor | tuple[torch.Tensor, torch.Tensor], b: torch.Tensor | Sequence[torch.Tensor],
    parts: tuple[Order | None, Prologue | None, Combine | None, Epilogue | None, Triangles | None],
    given: Mapping[str, object] | None, options: Options,
) -> Explanation | None:  # fmt: skip
    """The explanation of `matmul` with parts together, or of several matrices; None for other products."""
    order, prologue, combine, epilogue, triangles = parts
    adds = options["add_rows"] is not None and leaves_tiles(order) and options["out_recipe"] is None
    if not adds and (scaled := _scaled_parts(a, b, parts, given, options)) is not None:
        return scaled
    if adds:
        functions = {"given": given, "prologue": prologue, "combine": combine, "epilogue": epilogue}
        alone = {**options, **functions, "out": None, "add_rows": None}
        told = explain_matmul(a, b, **alone, order=order, triangles=triangles)
        return replace(told, kernel=f"{told.kernel}; then {_ADDED}")
    if combine is not None and not isinstance(a, tuple) and (_in_groups(options) or options["scale_a"] is not None):
        _refuse_beside_groups({"order": order, "triangles": triangles, "out_recipe": options["out_recipe"]})
        return explain_grouped_combined(a, b, combine, given, {**options, "epilogue": epilogue, "prologue": prologue})
    asked = AskedParts(*parts[:4], options["activation"], options["copy_rows"], parts[4])
    own = {name: options[name] for name in OWN}
    several = type(a) is tuple or (parts[2] is not None and has_batches(b))
    together = composes(several, asked, own) or (asked.prologue is not None and _by_mma_sync(a))
    if _in_groups(options) or options["scale_a"] is not None or not together:
        if parts[2] is None:
            return None
        return explain_combined(a, b, parts[2], given, options["out"], options["config"], options["out_dtype"])
    result = ComposedOptions(options["out"], options["config"], options["out_dtype"], None)
    return explain_composed(a, b, asked, own, given, result)


def _by_mma_sync(a: object) -> bool:
    """True if `a` is on a GPU without wgmma: a function of A is a part as others there."""
    return isinstance(a, torch.Tensor) and on_gpu(a.get_device()) and target(a.get_device())[0] != "sm_90a"


def _check_unscaled(given: Options) -> None:
    """Raise OperandError for an argument of scales: the product has none."""
    for name in ("scale_b", "recipe_a", "recipe_b", "out_recipe"):
        if given[name] is not None:
            raise OperandError(f"{name} without a scale_a")


def _refuse_beside_groups(given: Options) -> None:
    """Raise OperandError for an argument that no grouped product of several b has."""
    for name, x in given.items():
        if x is not None:
            raise OperandError(f"{name} and combine: a grouped product of several b takes none")


def _in_groups(given: Options) -> bool:
    """True if an argument says groups."""
    return any(given[name] is not None for name in ("offsets", "offs", "counts"))


def _is_of_each(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None) -> bool:
    """True if each matrix of a batch has a bias: `grouped_matmul` takes them, `scaled_matmul` does not."""
    return isinstance(bias, torch.Tensor) and a.ndim == b.ndim == 3 and bias.ndim == 2


def _copied_rows(a: torch.Tensor, b: torch.Tensor, rows: torch.Tensor, given: Options) -> Explanation:
    """The explanation of groups of chosen rows with scales, a bias or ends."""
    groups, said, scale_a = checked_rows(a, rows, given)
    finish = BiasActivation(given["bias"], given["activation"], given["use_fast_accum"])
    recipes = given["recipe_a"], given["recipe_b"]
    return explain_grouped(
        a, b, groups, said, scale_a, given["scale_b"], finish, given["out"], given["out_dtype"], recipes,
        given["config"], rows=rows,
    )  # fmt: skip


def _with_epilogue(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, epilogue: Epilogue | None,
    given: Mapping[str, object] | None, config: Config | None, out_dtype: torch.dtype | None,
    beside: tuple[torch.Tensor | None, str | None],
) -> Explanation:  # fmt: skip
    """The explanation of `matmul` with an epilogue: its partial results are workspace.

    beside  bias, and an activation that may gate
    """
    if epilogue is None:
        raise OperandError("given without epilogue or combine: there is nothing that reads it")
    gate = gate_of(beside[1])
    steps, found_operands = given_operands(epilogue, given, arguments_beside(*beside), gate is not None)
    operands = found_operands.every
    check_operands(
        {"a": a, "b": b, **found_operands.read}, {**found_operands.written, **({} if out is None else {"out": out})}
    )
    check_types(a, b, True)
    kind = output_type(a, b, out_dtype)
    shapes = check_fit(a, b, kind, steps, operands, out, gate)
    if out is not None:
        check_out(out, shapes.result, kind, {"a": a, "b": b})
    if 0 in (*shapes.result, shapes.k):
        return ZEROS
    told = with_steps(a, b, kind, steps, operands, out, config, gate)
    call = EpilogueProduct(a, b, kind, steps, operands, shapes.result, gate, beside[1])
    wants = [x.requires_grad for x in call.tensors]
    if not any(wants):
        return told
    columns = prod(shapes.result[:-1]) * b.shape[-1]
    return replace(told, backward=NO_SUMS if is_linear(call, wants[2:]) else sums_again(columns))


def _plain(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, config: Config | None, out_dtype: torch.dtype | None,
    activation: str | None,
) -> Explanation:  # fmt: skip
    """The explanation of `matmul`'s own product."""
    check_operands({"a": a, "b": b}, {} if out is None else {"out": out})
    check_types(a, b, True)
    check_activation(activation)
    kind = output_type(a, b, out_dtype)
    gated = GATES.get(activation) if activation is not None else None
    shapes = gated_shapes(a.shape, b.shape, gated)
    finish = NO_FINISH if gated is None else gated_finish(str(activation))
    if out is not None:
        check_out(out, shapes.result, kind, {"a": a, "b": b})
    if 0 in (*shapes.result, shapes.k):
        return ZEROS
    unfused = ""
    if gated is not None:
        check_gated_type(kind)
        unfused = why_unfused(problem_at(a, b, kind, config, out, finish))
    if unfused:
        found = solve(problem_at(a, b, torch.float32, config, None))
        kind = torch.float32
    else:
        found = solve(problem_at(a, b, kind, config, out, finish))
    told = of_solution(found, (a.dtype, b.dtype), kind)
    return gated_after(told, unfused, shapes.result) if unfused else told
