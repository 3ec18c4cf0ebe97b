"""torch.ops.layoutgemm.prologue_matmul: products with a prologue, as torch's compiler and autograd see them.

`prologue` is `Prologue.to_json()`, and `given` has its operands in their order. Where a derivative is recorded, torch
computes the function, which it derives, and the product is `matmul`'s own, with its derivatives. vmap makes a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch

from ...errors import OperandError, PlanError
from ...graph_marks import constant_in_graphs
from ...kernels.operands.prologue import Prologue
from ..bias_activation import by_torch
from ..compiled.traced import CHECKS, checking_operator
from ..operators import Places, VmapInfo, configured, in_front, operator_of, recorded_product
from ..prepared import Config
from .product import PrologueProduct, check_config, check_gate, check_names, checked_product, computed, function_of


@lru_cache(256)
def prologue_of(text: str) -> Prologue:
    """The prologue that `to_json` wrote. Raises OperandError for another text."""
    try:
        return Prologue.from_json(text)
    except PlanError as error:
        raise OperandError(str(error)) from error


@constant_in_graphs
def prologue_names(text: str) -> tuple[str, ...]:
    """The names of the operands of a prologue as text."""
    return prologue_of(text).names


def _check_names(text: str, given: Sequence[str], has_bias: bool) -> None:
    check_names(prologue_of(text), dict.fromkeys(given), has_bias)


def operands_of(text: str, given: Sequence[torch.Tensor]) -> tuple[Prologue, dict[str, torch.Tensor]]:
    """The prologue of a text, and its operands by name. Raises OperandError for another number of them."""
    function = prologue_of(text)
    if len(given) != len(function.operands):
        read = ", ".join(function.names) or "no operands"
        raise OperandError(f"given has {len(given)} tensors, and the prologue reads {read}")
    return function, dict(zip(function.names, given, strict=True))


def _checked(
    a: torch.Tensor, b: torch.Tensor, given: Sequence[torch.Tensor], prologue: str, bias: torch.Tensor | None,
    activation: str | None, out: torch.Tensor | None, out_dtype: torch.dtype | None,
) -> PrologueProduct:  # fmt: skip
    function, values = operands_of(prologue, given)
    return checked_product(a, b, function, values, bias, activation, out, out_dtype)


def _call(
    a: torch.Tensor, b: torch.Tensor, given: Sequence[torch.Tensor], prologue: str, bias: torch.Tensor | None = None,
    activation: str | None = None, out_dtype: torch.dtype | None = None, config: str = "",
) -> tuple[PrologueProduct, Config | None]:  # fmt: skip
    product, found = _checked(a, b, given, prologue, bias, activation, None, out_dtype), configured(config)
    check_config(found)
    return product, found


CHECK_PROLOGUE = checking_operator("check_prologue", _checked)


def derivable(product: PrologueProduct, config: Config | None) -> torch.Tensor:
    """The product by operators that have derivatives: the function by torch."""
    a, b, prologue, given, bias, activation, kind = product
    return recorded_product(function_of(a, prologue, given), b, None, bias, activation, kind, config)


def _mapped(
    info: VmapInfo, in_dims: Places, a: torch.Tensor, b: torch.Tensor, given: Sequence[torch.Tensor],
    prologue: str, bias: torch.Tensor | None = None, activation: str | None = None,
    out_dtype: torch.dtype | None = None, config: str = "",
) -> tuple[torch.Tensor, int]:  # fmt: skip
    """A batch of all slices; a mapped bias is added by torch."""
    places = in_dims[0], in_dims[1], *in_dims[2]
    moved = [in_front(x, at, info.batch_size) for x, at in zip((a, b, *given), places, strict=True)]
    front = moved[0].shape[: moved[0].ndim - 2]
    if moved[0].ndim > 3:
        moved = [x.reshape(-1, *x.shape[2:]) for x in moved]
    of_bias = in_dims[4] if len(in_dims) > 4 else None
    left, right, *values = moved
    if bias is None or of_bias is None:
        value = torch.ops.layoutgemm.prologue_matmul(left, right, values, prologue, bias, activation, out_dtype, config)
        return value.reshape(*front, *value.shape[-2:]), 0
    wide = torch.ops.layoutgemm.prologue_matmul(left, right, values, prologue, None, None, torch.float32, config)
    lines = bias.movedim(of_bias, 0)
    lines = lines.reshape(lines.shape[0], *(1,) * len(front), lines.shape[1])
    kind = a.dtype if out_dtype is None else out_dtype
    return by_torch(wide.reshape(*front, *wide.shape[-2:]), lines, activation, kind), 0


operator_of(
    "prologue_matmul",
    _call,
    lambda product, config: computed(product, config).contiguous(),
    lambda product, _: product.a.new_empty(product.shape, dtype=product.kind),
    derivable,
    _mapped,
    autocast=True,
)

# A call's values that are no tensors, for the compiler.
CHECKS["prologue"] = _check_names
CHECKS["prologue config"] = check_config
CHECKS["prologue activation"] = check_gate
