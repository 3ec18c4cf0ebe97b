"""scaled_matmul with the parts of matmul: rows by index, orders, two b, functions of a.

scales                    applied by
------------------------  -------------------------------------------------------------------------------------------
of blocks                 the promoted main loop; rows by index are copied first. Those of several matrices B lie one
                          behind the other
of rows, of tensors       the epilogue's first steps; of two matrices B, on each product before their function

Beside a promoted main loop torch computes the function of A first. Its results have A's 8 bits, and A's scales.

A kernel reads scales of a's rows through the indices of `rows=`, by either. Calls whose scales are not copied are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch

from ...errors import OperandError
from ...graph_marks import constant_in_graphs
from ...kernels.epilogue.chain import Activation, Bias, Epilogue, Step, VectorScale
from ...kernels.indexed.rows import ROWS
from ...kernels.operands.combinations import refusal as refusal_of_parts
from ...kernels.operands.combined import refusal_of_matrices
from ...kernels.operands.gated import HALVES
from ...kernels.operands.prologue import Prologue, check_chosen
from ...kernels.orders import is_symmetric
from ...kernels.plan import present
from ...kernels.run.operand_checks import check_operands, no_tensor
from ...kernels.sm90.mainloop import DEPTH
from ..bias_activation import GATES
from ..compiled.traced import check_kinds, named, refusal, refuse
from ..epilogue import arguments_beside, refusal_of_epilogue
from ..indexed.grouped_rows import check_row_indices
from ..indexed.torch_rows import selected
from ..own_epilogue.scaled_api import recipe_names
from ..prologue.product import check_names, check_type, check_vectors, function_of
from ..scaled_grouped.epilogue import scale_step
from ..scaled_grouped.operators import CHECK_SCALED, checked_scaled
from ..scaled_grouped.recipes import ROW, SCALES, SQUARE, TENSOR, Recipes, ScaledOperand, recipe_text, recipes_of
from ..scaled_grouped.scaled import BiasActivation, one_behind_the_other, unswapped, vectors_of
from ..types import C_NAMES
from .api import ComposedOptions, Operands, composed_product, refusal_of_kinds, refuse_or_raise
from .parts import BIAS, ROW_WEIGHTS, AskedParts, refusal_of_rows

NO_OUT_RECIPE = (
    "out_recipe: not beside rows, orders, combine, prologue or triangles; an epilogue's last step Quantize() stores "
    "values and scales"
)
SECOND = "scale_b1"  # the epilogue's operand: scales of the second of two matrices
_EACH = "; compute scaled products of each b with out_dtype=torch.float32, and combine them"


class ScaledPart(NamedTuple):
    """Operands of `scaled_matmul` as given, their recipes, and whether sums stay in the tensor core.

    computes  False: an explanation, for which `a` stands for its function's results
    """

    a: torch.Tensor
    scale_a: torch.Tensor
    b: Operands
    scale_b: object
    recipes: tuple[object, object]
    fast: bool
    computes: bool = True


class ComposedArguments(NamedTuple):
    """The arguments of `composed_product` for a product with scales."""

    a: torch.Tensor
    b: Operands
    asked: AskedParts
    own: dict[str, torch.Tensor | None]
    given: dict[str, object]
    options: ComposedOptions
    through: tuple[str, ...]


def asks_parts(asked: AskedParts, own: Mapping[str, object]) -> bool:
    """True if a call of `scaled_matmul` has more parts than scales, bias, activation and epilogue.

    >>> asks_parts(AskedParts(activation="relu"), {"bias": 1}), asks_parts(AskedParts("lower"), {})
    (False, True)
    """
    parts = asked.order, asked.prologue, asked.combine, asked.copy_rows, asked.triangles
    return any(x is not None for x in (*parts, *[x for name, x in own.items() if name != BIAS]))


def scaled_composed(
    of: ScaledPart, asked: AskedParts, own: Mapping[str, torch.Tensor | None], given: Mapping[str, object] | None,
    options: ComposedOptions,
) -> torch.Tensor:  # fmt: skip
    """The product of 8-bit floats with scales and parts.

    own  bias and vectors of rows, by the names of `parts.OWN`; None for those that are not given

    Raises OperandError, PlanError or TensorError, naming the operand or the part, before anything is written.

    >>> a, rows = torch.ones(2, 128).to(torch.float8_e4m3fn), torch.tensor([1, 1, 0])
    >>> of = ScaledPart(a, torch.tensor([1.0, 2.0]), a.T, None, (None, None), True)
    >>> scaled_composed(of, AskedParts(), {"rows": rows}, None, ComposedOptions(None, None, None, None))[:, 0].tolist()
    [256.0, 256.0, 128.0]
    """
    return composed_product(*composed_arguments(of, asked, own, given, options))


def composed_arguments(
    of: ScaledPart, asked: AskedParts, own: Mapping[str, torch.Tensor | None], given: Mapping[str, object] | None,
    options: ComposedOptions,
) -> ComposedArguments:  # fmt: skip
    """The same product with its scales as tables or as steps of an epilogue. Raises likewise."""
    there: dict[str, torch.Tensor] = {}
    for name, x in own.items():
        if x is not None:
            there[name] = x
    refuse_or_raise(refusal_of_kinds(asked, given) or _refusal(of, asked, tuple(there), given))
    bias, weights, values = there.pop(BIAS, None), there.pop(ROW_WEIGHTS, None), dict(given or {})
    several = list(of.b) if asked.combine is not None else [of.b]
    scales = _scales_of(of.scale_b, len(several), asked.combine is not None)
    found = _recipes(of, several, scales, (bias, asked.activation), options)
    recipes, scale_a = found[0], of.scale_a
    through: tuple[str, ...] = ()
    promotes = recipes.in_mainloop or not of.fast
    if promotes:
        why = "scales of blocks" if recipes.in_mainloop else "use_fast_accum=False"
        refuse_or_raise(_refusal_of_loop(asked, why))
        if asked.prologue is not None:
            of, asked = _with_function_applied(of, asked, values, ROWS in there), asked._replace(prologue=None)
    if recipes.in_mainloop and recipes.a != recipes.b and is_symmetric(asked.order):
        two = f"scale_a is of {recipes.a} and scale_b of {recipes.b}, and one matrix has one recipe"
        refuse_or_raise(f"order = 'symmetric': {two}: scaled_matmul(a, s, a.mT, s, order='symmetric')")
    if (rows := there.get(ROWS)) is not None and recipes.a != TENSOR:
        if recipes.a == SQUARE:
            refuse_or_raise(f"rows and scale_a of {SQUARE}: rows by index share no block; give scales of each row of a")
        _check_rows(rows, of.a)
        if torch.compiler.is_dynamo_compiling():  # the compiler's own kernel gathers them
            scale_a = selected(scale_a, rows)
        else:
            through = ("scale_a",)
    scale_b = scales[0]
    if len(several) > 1 and recipes.in_mainloop:
        refuse_or_raise(_refusal_of_recipes([each.b for each in found]))
        scale_b = one_behind_the_other([present(scale) for scale in scales])
    elif len(several) > HALVES:
        of_two = f"scales that are not of blocks are applied to the products of {HALVES}"
        refuse_or_raise(f"b is {len(several)} matrices: {of_two}{_EACH}")
    tables = {"scale_a": scale_a, **named(scale_b=scale_b)}
    if not recipes.in_mainloop:
        values.update(vectors_of(recipes, dict.fromkeys(SCALES, of.a.ndim), tables)[0])
        for each, name, scale in zip(found[1:], (SECOND,), scales[1:]):
            values.update(vectors_of(each, {name: of.a.ndim}, named(**{name: scale}))[0])
    values.update(named(bias=bias, row_weights=weights))
    kind = None if bias is None else C_NAMES[bias.dtype]
    facts = recipes.a, tuple([each.b for each in found]), kind, asked.activation, weights is not None
    if torch.compiler.is_dynamo_compiling():
        steps = _steps_of_text(*facts, None if asked.epilogue is None else asked.epilogue.json)  # type: ignore[union-attr]
    else:
        steps = _steps(*facts, asked.epilogue)  # type: ignore[arg-type]  # an Epilogue, by the refusal
    gate = asked.activation if asked.activation in GATES else None
    groups = None if not promotes else recipes.groups if recipes.in_mainloop else ()
    asked = asked._replace(epilogue=steps, activation=gate, promotes=groups)
    vectors: dict[str, torch.Tensor | None] = {**there, **(tables if recipes.in_mainloop else {})}
    return ComposedArguments(
        of.a, tuple(several) if len(several) > 1 else several[0], asked, vectors, values, options, through
    )


def _refusal(of: ScaledPart, asked: AskedParts, own: Sequence[str], given: object) -> str:
    """Why a call's arguments are no product with scales and parts, or ""; torch.compile traces it."""
    if isinstance(of.a, (tuple, list)):
        return (
            "a is a tuple: a product with scales has one a; a second pair's product may be a residual of its epilogue"
        )
    if asked.combine is None and isinstance(of.b, (tuple, list)):
        return "b is a tuple of matrices: combine= says what becomes of their products; give one b without it"
    if asked.combine is not None:
        if text := refusal_of_matrices(of.b):
            return text
        count = len(of.b)
        if of.scale_b is not None and (not isinstance(of.scale_b, (tuple, list)) or len(of.scale_b) != count):
            said = type(of.scale_b).__qualname__
            return f"scale_b is a {said}: with combine= a tuple of {count}, the scales of each b, or None"
    if asked.epilogue is not None:
        beside = arguments_beside(BIAS if BIAS in own else None, asked.activation)
        if ROW_WEIGHTS in own:
            beside = [*beside, ROW_WEIGHTS]
        gated = asked.combine is not None or asked.activation in GATES
        if text := refusal_of_epilogue(asked.epilogue, given, beside, gated):
            return text
    if isinstance(given, Mapping):
        for name in (*SCALES, *[SECOND] * (asked.combine is not None), *own):
            if name in given:
                return f"two operands of the product are named {name}: give the one in given= another name"
    return refusal_of_rows(asked.copy_rows, own)


def _refusal_of_loop(asked: AskedParts, why: str) -> str:
    """Why a main loop that promotes has not these parts, or "". `why`: the argument that asks for the loop."""
    if asked.prologue is not None and is_symmetric(asked.order):
        return refusal_of_parts(("prologue", "symmetric order"))
    if asked.prologue is not None and torch.compiler.is_dynamo_compiling():
        return f"prologue and {why}: not under torch.compile; compute the function of a first"
    if asked.copy_rows is False:
        return f"copy_rows: False, and rows of a product with {why} are copied first"
    return ""


def _with_function_applied(of: ScaledPart, asked: AskedParts, values: dict[str, object], chooses: bool) -> ScaledPart:
    """The operands with f(A) in A's place, by torch. The function's vectors leave `values`.

    chooses  whether rows of A are chosen, whose numbers are not those of the product's rows
    """
    prologue = asked.prologue
    assert isinstance(prologue, Prologue)  # by `refusal_of_kinds`
    own: dict[str, torch.Tensor] = {}
    for name in prologue.names:
        if name in values:
            own[name] = values.pop(name)  # type: ignore[assignment]  # a tensor, by the checks below
    check_names(prologue, own, False)
    check_operands({"a": of.a, **own})
    check_type(of.a)
    lines, columns = of.a.shape[:-1], (*of.a.shape[:-2], of.a.shape[-1])
    check_vectors(prologue, own, {"m": [lines], "k": [columns]})
    if chooses:
        check_chosen(prologue)
    return of._replace(a=function_of(of.a, prologue, own)) if of.computes else of


def _refusal_of_recipes(recipes: Sequence[str]) -> str:
    """Why a main loop has not the scales of several matrices B, or "".

    >>> _refusal_of_recipes(["BlockWise1x128", "BlockWise128x128"]).partition(":")[0]
    'scale_b[1] is of BlockWise128x128 and scale_b[0] of BlockWise1x128'
    """
    for i, recipe in enumerate(recipes):
        if recipe != recipes[0]:
            of = f"scale_b[{i}] is {f'of {recipe}' if recipe else 'None'} and scale_b[0] of {recipes[0]}"
            way = "repeat_interleave(128, -2)[..., :n, :] makes 1x128 of 128x128" if recipe else "ones change nothing"
            return f"{of}: one main loop has one recipe; {way}"
    return ""


def _scales_of(scale_b: object, count: int, combines: bool) -> list[torch.Tensor | None]:
    """The scales of each matrix B."""
    if combines:
        return [None] * count if scale_b is None else list(scale_b)  # type: ignore[call-overload]  # by the refusal
    return [scale_b]  # type: ignore[list-item]  # a tensor or None, by the checks


def _recipes(
    of: ScaledPart, several: Sequence[torch.Tensor], scales: Sequence[torch.Tensor | None],
    finish: tuple[torch.Tensor | None, str | None], options: ComposedOptions,
) -> list[Recipes]:  # fmt: skip
    """The recipes of each product, whose operands are checked. Raises OperandError or TensorError."""
    (bias, activation), found = finish, []
    traced = torch.compiler.is_dynamo_compiling()
    if traced:
        names = recipe_names(*of.recipes, unswapped(options.config))
    else:
        names = recipe_text("recipe_a", of.recipes[0]), recipe_text("recipe_b", of.recipes[1])
    said = names
    for b, scale in zip(several, scales):
        if len(several) > 1:
            names = _of_rows(said[0], of.a, -2, of.scale_a), _of_rows(said[1], b, -1, scale)
        if not traced:
            checking = BiasActivation(bias, activation, of.fast)
            call = checked_scaled(of.a, of.scale_a, b, scale, checking, None, options.out_dtype, *names)
            found.append(call.recipes)
            continue
        check_kinds({"a": of.a, "scale_a": of.scale_a, "b": b, **named(scale_b=scale, bias=bias)}, {})
        CHECK_SCALED(of.a, of.scale_a, b, scale, bias, None, activation, options.out_dtype, *names, "")
        front, blocks = tuple(of.a.shape[:-2]), -(-of.a.shape[-1] // DEPTH)
        sides = ScaledOperand("a", front, of.a.shape[-2], blocks), ScaledOperand("b", front, b.shape[-1], blocks)
        found.append(recipes_of(sides[0], of.scale_a, names[0], sides[1], scale, names[1]))
    return found


def _of_rows(name: str, x: object, side: int, scale: object) -> str:
    """A recipe by name, or by a shape that scales of whole sums have. "" for others.

    So a scale of a single K block, which is one of rows too, is applied before a function of several products.

    side  -2 for a's rows, -1 for b's columns
    """
    if name or not isinstance(x, torch.Tensor) or not isinstance(scale, torch.Tensor) or x.ndim < 2:
        return name
    operand = ScaledOperand("ab"[side + 2], tuple(x.shape[:-2]), x.shape[side], 0)
    return next((recipe for recipe in (ROW, TENSOR) if operand.fits(recipe, scale)), "")


def _check_rows(rows: torch.Tensor, a: torch.Tensor) -> None:
    """Raise OperandError or TensorError for indices of another type or rank, and for a batch."""
    if torch.compiler.is_dynamo_compiling():
        check_kinds({"rows": rows}, {})
        refuse(refusal("rows by index", rows.dtype, rows.ndim, a.ndim))
    elif not isinstance(rows, torch.Tensor):
        raise OperandError(no_tensor("rows", rows))
    else:
        check_row_indices(rows.dtype, rows.ndim, a.ndim)


@lru_cache(256)
def _steps(
    recipe_a: str, recipes_b: tuple[str, ...], bias: str | None, activation: str | None, weighted: bool,
    epilogue: Epilogue | None,
) -> Epilogue | None:  # fmt: skip
    """The epilogue of a product: scales that no main loop applies, then the caller's steps or bias and activation.

    recipes_b  of each matrix B, whose function is between the scales and the rest
    bias       its type, or None
    weighted   whether rows have weights

    >>> [type(step).__name__ for step in _steps("RowWise", ("TensorWise",), "bf16", "relu", False, None).steps]
    ['VectorScale', 'Scale', 'Bias', 'Activation']
    >>> [step.of_sum for step in _steps("TensorWise", ("RowWise", "TensorWise"), None, None, False, None).steps]
    [None, 0, 1]
    """
    gated, combined = activation in GATES, len(recipes_b) > 1
    first: list[Step] = []
    if not Recipes(recipe_a, "").in_mainloop:
        first += scale_step("scale_a", "m", recipe_a)
        for number, (name, recipe) in enumerate(zip(("scale_b", SECOND), recipes_b)):
            first += scale_step(name, "n", recipe, number if combined else None)
    if epilogue is not None:
        sums = len(first) + epilogue.sums if gated or combined else 0
        return Epilogue(*first, *epilogue.steps, stores_c=epilogue.stores_c, sums=sums)
    sums = len(first) + (gated and bias is not None) if gated or combined else 0
    if bias is not None:
        first.append(Bias("n", bias))
    if activation is not None and not gated:
        first.append(Activation(activation))
    if weighted:
        first.append(VectorScale("m", "f32", ROW_WEIGHTS))
    return Epilogue(*first, sums=sums) if first else None


@constant_in_graphs
def _steps_of_text(
    recipe_a: str, recipes_b: tuple[str, ...], bias: str | None, activation: str | None, weighted: bool,
    text: str | None,
) -> Epilogue | None:  # fmt: skip
    """The same of an epilogue's text: a constant to the compiler."""
    own = None if text is None else Epilogue.from_json(text)
    return _steps(recipe_a, recipes_b, bias, activation, weighted, own)
