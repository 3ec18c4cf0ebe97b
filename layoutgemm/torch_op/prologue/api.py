"""matmul(a, b, prologue=...). A function of a's elements before they are multiplied, in the kernel's registers.

    norm = Prologue.of(lambda x, i, k, ops, rstd, w: x * rstd * w, rstd="m", w="k:bf16")
    matmul(x, w, prologue=norm, given={"rstd": rstd, "w": gamma})          RMSNorm(x) @ w, without a normalised copy

The function is computed in float32 and rounded to a's type, on the CPU too; there the product is in float64. Where
derivatives are recorded, torch computes the function and derives it, and the product is `matmul`'s own.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ...errors import OperandError
from ...kernels.operands.prologue import Prologue
from ..checks import copied, derived_by_transform, needs_dispatcher, refuse_traces
from ..compiled.kept_launches import again_or
from ..compiled.traced import refuse
from ..prepared import Config, config_text
from .operators import CHECK_PROLOGUE, derivable
from .product import PrologueProduct, check_config, checked_product, computed
from .rows import of_chosen_rows
from .traced import TracedFinish, traced_operands


def prologue_product(
    a: torch.Tensor, b: torch.Tensor, prologue: Prologue, given: Mapping[str, torch.Tensor], *,
    bias: torch.Tensor | None, activation: str | None, out: torch.Tensor | None, config: Config | None,
    out_dtype: torch.dtype | None, rows: torch.Tensor | None = None, copy_rows: object = None,
) -> torch.Tensor:  # fmt: skip
    """activation(prologue(a) @ b + bias): see the module's docstring, and `torch_op.matmul`.

    rows, copy_rows  of a, as `matmul` has them: torch copies the rows first

    Raises OperandError for vectors, batches that broadcast, operands that do not fit, types other than bfloat16 and
    float16, and a GPU without such kernels. PlanError for a prologue that no kernel has.

    >>> x = torch.tensor([[-1.0, 2.0]]).half()
    >>> twice = Prologue.of(lambda x, i, k, ops, s: ops.maximum(x, 0.0) * s, s="m")
    >>> nothing = dict.fromkeys(("bias", "activation", "out", "config", "out_dtype"))
    >>> prologue_product(x, torch.eye(2).half(), twice, {"s": torch.tensor([3.0])}, **nothing)
    tensor([[0., 6.]], dtype=torch.float16)
    """
    refuse(refusal_of_call(a, b, prologue, given))
    if rows is not None:
        a, given = of_chosen_rows(a, rows, prologue, given, copy_rows)
    if torch.compiler.is_dynamo_compiling():
        return _traced(a, b, prologue, given, TracedFinish(bias, activation, out, out_dtype), config)

    def make() -> torch.Tensor:
        refuse_traces("prologue=")
        check_config(config)
        product = checked_product(a, b, prologue, given, bias, activation, out, out_dtype)
        if not needs_dispatcher(*product.tensors, out):
            return computed(product, config, out)
        return copied(_dispatched(product, config), out)

    options = ("matmul, prologue=", prologue, activation, config, out_dtype)
    return again_or(make, options, {"a": a, "b": b, **given, "bias": bias}, out)


def check_call_kinds(a: object, b: object, prologue: object, given: object) -> None:
    """Raise OperandError for several matrices, a prologue of another class, and operands in no dict."""
    if text := refusal_of_call(a, b, prologue, given):
        raise OperandError(text)


def refusal_of_call(a: object, b: object, prologue: object, given: object) -> str:
    """Why a call has several matrices, no Prologue, or operands in no dict; or ""."""
    if isinstance(a, (tuple, list)) or isinstance(b, (tuple, list)):
        return "prologue: of one a and one b, not of several"
    if not isinstance(prologue, Prologue):
        return f"prologue is a {type(prologue).__qualname__}: a Prologue, made by Prologue.of"
    if not isinstance(given, Mapping):
        return f"given is a {type(given).__qualname__}; it is a dict, the prologue's operands by name"
    return ""


def _dispatched(product: PrologueProduct, config: Config | None) -> torch.Tensor:
    """The product that torch's dispatcher sees, of operands that have been checked."""
    if derived_by_transform():
        return derivable(product, config)
    a, b, prologue, given, bias, activation, kind = product
    values = [given[name] for name in prologue.names]
    value: torch.Tensor = torch.ops.layoutgemm.prologue_matmul(
        a, b, values, prologue.json, bias, activation, kind, config_text(config)
    )
    return value


def _traced(
    a: torch.Tensor, b: torch.Tensor, prologue: Prologue, given: Mapping[str, torch.Tensor], finish: TracedFinish,
    config: Config | None,
) -> torch.Tensor:  # fmt: skip
    """The same under torch.compile, whose tracer meets no exception of ours."""
    a, b, values, text = traced_operands(a, b, prologue, given, finish, ("prologue config", config), {})
    bias, activation, out, out_dtype = finish
    CHECK_PROLOGUE(a, b, values, text, bias, activation, out, out_dtype)
    value: torch.Tensor = torch.ops.layoutgemm.prologue_matmul(
        a, b, values, text, bias, activation, out_dtype, config_text(config)
    )
    return copied(value, out)
