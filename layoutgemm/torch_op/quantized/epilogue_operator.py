"""The operator quantized_epilogue_matmul, as torch's compiler, fake tensors and functorch see it.

The epilogue and its operands are those of `epilogue_matmul`, the other arguments those of `quantized_matmul`. vmap
computes one product after another. Nothing has a derivative.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ...errors import OperandError
from ...kernels.epilogue.chain import Epilogue
from ..checks import autocast_type, cast, copied, differentiated
from ..compiled.traced import named, refuse
from ..operators import VmapInfo, one_after_another, operator_of, with_autograd
from ..own_epilogue.api import traced_operands
from ..own_epilogue.names import OperandNames
from ..own_epilogue.operators import check_mapped, epilogue_of_text, operands_of
from .configs import PackedConfig, packed_text
from .launch import flat
from .operators import checked_call, facts_of, format_of
from .own_epilogue import NO_DERIVATIVE, CheckedPacked, OwnEpilogue, checked_product, computed
from .weights import QuantizedWeight, packed_for

_NAME, _LISTS = "quantized_epilogue_matmul", 4


def _call(
    x: torch.Tensor, units: torch.Tensor, scales: torch.Tensor | None, scale_x: torch.Tensor | None,
    read: Sequence[torch.Tensor], written: Sequence[torch.Tensor], numbers: Sequence[float], wholes: Sequence[int],
    epilogue: str, code: str, group: int, zeros: bool, n: int, k: int, out_dtype: torch.dtype | None = None,
    config: str = "",
) -> tuple[CheckedPacked, Sequence[int]]:  # fmt: skip
    steps, every = operands_of(epilogue, read, written, numbers, wholes)
    facts = code, group, zeros, n, k
    call = checked_call(x, units, scales, None, None, facts, out_dtype, config, scale_x)
    weight = QuantizedWeight(format_of(code, group, zeros), units, scales, n, k, packed_for(x.dtype) or x.dtype)
    return checked_product(call, x, weight, scale_x, OwnEpilogue(steps, every, None)), wholes


def _mapped(info: VmapInfo, in_dims: Sequence[Any], *arguments: object) -> tuple[torch.Tensor, int]:
    steps = epilogue_of_text(str(arguments[_LISTS + 4]))
    for operand, at in zip(steps.writes, in_dims[_LISTS + 1], strict=True):
        check_mapped(steps.named_given(operand), at)
    return one_after_another(info, in_dims, arguments, getattr(torch.ops.layoutgemm, _NAME)), 0  # type: ignore[arg-type]


operator_of(
    _NAME,
    _call,
    lambda made, _: computed(made).contiguous(),
    lambda made, _: made.x.new_empty(
        (made.x.shape[0], made.weight.n) if made.steps.stores_c else (0,), dtype=made.call.kind
    ),
    mapped=_mapped,
    mutates=("written",),
)


def _refused(*arguments: object) -> torch.Tensor:
    raise OperandError(NO_DERIVATIVE)


with_autograd(_NAME, _refused)


def dispatched(made: CheckedPacked, config: PackedConfig | None) -> torch.Tensor:
    """The product that torch's dispatcher sees, of operands that have been checked."""
    weight, lists = made.weight, OperandNames.of(made.steps).lists(made.operands.every)
    facts = facts_of(weight.format, weight.n, weight.k)
    value: torch.Tensor = torch.ops.layoutgemm.quantized_epilogue_matmul(
        made.x, weight.units, weight.scales, made.scale_x, *lists, made.steps.json, *facts, made.call.kind,
        packed_text(config),
    )  # fmt: skip
    return value


def traced(
    x: torch.Tensor, weight: QuantizedWeight, scale_x: torch.Tensor | None, epilogue: Epilogue | None,
    given: Mapping[str, object] | None, out: torch.Tensor | None, beside: list[str], out_dtype: torch.dtype | None,
    config: PackedConfig | None,
) -> torch.Tensor:  # fmt: skip
    """The product under torch.compile, whose tracer meets no exception of ours."""
    read = {"x": x, **named(scale_x=scale_x)}
    text, lists = traced_operands(epilogue, given, beside, read, out)
    if differentiated(x, scale_x, out, *lists[0], *lists[1]):  # type: ignore[arg-type]  # tensors, by the checks
        refuse(NO_DERIVATIVE)
    x = cast(x, autocast_type(x))
    value: torch.Tensor = torch.ops.layoutgemm.quantized_epilogue_matmul(
        x, weight.units, weight.scales, flat(scale_x, x), *lists, text, *facts_of(weight.format, weight.n, weight.k),
        out_dtype, packed_text(config),
    )  # fmt: skip
    return copied(value, out)
