"""grouped_matmul(a, b, rows=, ...) with scales, a bias or `offs`. A's rows are copied first, in the same launch.

    a (rows of A, K)  scale_a, rows of A each  --rows-->  (M, K), in groups  -->  (M, N), gated or not

Scales of rows are gathered by torch, one number for each row, or for 128 of K. Where torch has to see the product, and
on the CPU, it gathers A too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...errors import OperandError, TensorError
from ...kernels.indexed.rows import check_inside
from ...kernels.run.operand_checks import check_operands
from ...kernels.sm90.config import Sm90Config
from ..checks import needs_dispatcher
from ..compiled.traced import CHECKS, check_kinds, named, refusal, refuse
from ..scaled_grouped.grouped import INTS, grouped_product
from ..scaled_grouped.kept import KeptKey, find
from ..scaled_grouped.operators import checked_grouped
from ..scaled_grouped.recipes import TENSOR, fast_accum, named_recipes
from ..scaled_grouped.scaled import BiasActivation, check_config
from ..types import of_mask
from .torch_rows import gathered, known_indices, of_rows, selected

_autocast = torch._C._is_any_autocast_enabled
Options = dict[str, Any]  # all other arguments of a call, by name
Multiply = Callable[..., torch.Tensor]
_SAID = "offsets", "offs"
_WAYS = {
    "out_rows": "; offsets= alone goes with it, or place the result's rows: out[out_rows] = c",
    "row_weights": "; VectorScale('m') of an epilogue weighs rows",
}


def takes_copied_rows(options: Options) -> bool:
    """True for options beside which rows by index are copied: scales, a bias, ends.

    >>> takes_copied_rows({"bias": torch.ones(2), "offs": None}), takes_copied_rows({"offs": None})
    (True, False)
    """
    return any(options.get(name) is not None for name in ("offs", "scale_a", "scale_b", "bias"))


def grouped_rows(
    a: torch.Tensor, b: torch.Tensor, rows: torch.Tensor, options: Options, multiply: Multiply
) -> torch.Tensor:
    """The grouped product of A's chosen rows.

    options   all other arguments of `grouped_matmul`, by name, None for those that are not given
    multiply  `grouped_matmul`

    Raises OperandError, or TensorError in torch's words, naming the operand.

    >>> x, w = torch.eye(2).bfloat16(), torch.ones(1, 2, 2).bfloat16()
    >>> given = dict.fromkeys(("scale_a", "scale_b", "out")) | {"offs": torch.tensor([3])}
    >>> grouped_rows(x, w, torch.tensor([1, 0, 1]), given, lambda a, b, **_: a @ b[0]).tolist()
    [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]]
    """
    _, _, scale_a = checked_rows(a, rows, options)
    given = {**options, "scale_a": scale_a}
    read = [x for x in (a, b, rows, *given.values()) if isinstance(x, torch.Tensor)]
    if torch.compiler.is_dynamo_compiling() or _autocast() or needs_dispatcher(*read):
        return multiply(gathered(a, rows), b, **_without_rows(given))
    return _product(a, b, rows, given)


def checked_rows(
    a: torch.Tensor, rows: torch.Tensor, options: Options
) -> tuple[torch.Tensor, str, torch.Tensor | None]:
    """The groups, the argument that says them, and the scales of the chosen rows.

    Raises OperandError or TensorError for operands and options that do not go with row indices.
    """
    traced = torch.compiler.is_dynamo_compiling()
    tell = refuse if traced else _raise
    tell(_refused(options))
    if traced:
        check_kinds({"a": a, "rows": rows, **named(scale_a=options["scale_a"])}, {})
        tell(refusal("rows by index", rows.dtype, rows.ndim, a.ndim))
    else:
        check_operands({"a": a, "rows": rows, **named(scale_a=options["scale_a"])}, named(out=options["out"]))
        check_row_indices(rows.dtype, rows.ndim, a.ndim)
    said = next(name for name in _SAID if options.get(name) is not None)
    scale_a, recipe = options["scale_a"], options.get("recipe_a")
    if scale_a is not None and not _is_shared(scale_a, recipe, a.shape[0]):
        if scale_a.shape[0] != a.shape[0]:
            shapes = f"scale_a has shape {list(scale_a.shape)}, and a {list(a.shape)}"
            tell(f"{shapes}: with rows= a scale is of each row of a")
        scale_a = selected(scale_a, rows)
    return options[said], said, scale_a


def _product(a: torch.Tensor, b: torch.Tensor, rows: torch.Tensor, given: Options) -> torch.Tensor:
    """The product of plain tensors."""
    said = next(name for name in _SAID if given.get(name) is not None)
    groups = given[said]
    finish = BiasActivation(given.get("bias"), given.get("activation"), fast_accum(given.get("use_fast_accum", True)))
    config: Sm90Config | None = given.get("config")
    scales, out, asked = (given["scale_a"], given["scale_b"]), given["out"], given.get("out_dtype")
    recipes = given.get("recipe_a"), given.get("recipe_b")
    options = "rows", said, asked, config, *recipes, *finish[1:]
    key, found = find(a, b, rows, None, (groups, *scales, finish.bias), out, options)
    if found is not None:
        return found
    check_config(config)
    if (known := known_indices(rows)) is not None:
        check_inside("rows", known, a.shape[0], "a")
    names = named_recipes(recipes, *scales)
    call = checked_grouped(of_rows(a, rows), b, groups, said, *scales, finish, out, asked, *names)
    return grouped_product(call, a, b, groups, *scales, finish, config, out, KeptKey(key), rows)


def _without_rows(given: Options) -> Options:
    """The arguments of the product of rows that torch gathers: its operators have all derivatives and transforms."""
    return {name: x for name, x in given.items() if name not in ("out_rows", "row_weights", "copy_rows")}


def _is_shared(scale: torch.Tensor, recipe: object, rows: int) -> bool:
    """True for scales of all rows together: one element, unless a has one row."""
    return scale.ndim == 0 or (scale.numel() == 1 and (rows != 1 or getattr(recipe, "name", recipe) == TENSOR))


def _refused(options: Options) -> str:
    """Why no product has these arguments beside row indices, or ""."""
    for name in ("out_rows", "row_weights", "counts", "expected_rows"):
        if options.get(name) is not None:
            beside = "a product with row indices, and with scales, a bias, offs or an epilogue, takes none"
            return f"{name}: {beside}{_WAYS.get(name, '')}"
    if options.get("copy_rows") is False:
        return "copy_rows: False, and rows of a product with scales, a bias, offs or an epilogue are copied first"
    if all(options.get(name) is None for name in _SAID):
        return "rows: with scales, a bias or an epilogue they are of groups, by offsets or offs"
    if all(options.get(name) is not None for name in _SAID):
        return "offsets and offs: groups are said by one of offsets, offs and counts"
    return ""


def check_row_indices(kind: torch.dtype, rank: int, rank_of_a: int) -> None:
    """Raise OperandError or TensorError for rows or an A of another type or rank."""
    if kind not in INTS or rank != 1:
        said, mask = f"rows is {kind} of {rank} dimensions", of_mask("rows", kind)
        raise OperandError(f"{said}: int32 or int64, a vector of the product's rows{mask}")
    if rank_of_a != 2:
        raise TensorError(f"a has {rank_of_a} dimensions: row indices take (rows, K) and (groups, K, N)")


def _raise(text: str) -> None:
    if text:
        raise OperandError(text)


CHECKS["rows by index"] = check_row_indices
