"""The operator quantized_epilogue_matmul, as torch's compiler, fake tensors and functorch see it.

The epilogue and its operands are those of `epilogue_matmul`, the other arguments those of `quantized_matmul`. vmap
computes one product after another. x of 16 bits and the epilogue's operands have derivatives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ...kernels.epilogue.chain import Epilogue
from ..checks import NOT_RECORDED, autocast_type, cast, copied, differentiated
from ..compiled.traced import named, refusal, refuse
from ..operators import VmapInfo, one_after_another, operator_of
from ..own_epilogue.api import traced_operands
from ..own_epilogue.operators import check_mapped, epilogue_of_text, operands_of, with_symbols
from ..own_epilogue.recorded import derivable, recorded
from .configs import PackedConfig, packed_text
from .dense import facts_of, format_of, packed_for
from .experts import QuantizedExperts, checked_experts
from .launch import flat
from .operators import checked_call
from .own_epilogue import OwnEpilogue, PackedFormula, checked_product, computed
from .weights import QuantizedWeight

_NAME, _LISTS = "quantized_epilogue_matmul", 4


def _call(
    x: torch.Tensor, units: torch.Tensor, scales: torch.Tensor | None, scale_x: torch.Tensor | None,
    read: Sequence[torch.Tensor], written: Sequence[torch.Tensor], numbers: Sequence[float], wholes: Sequence[int],
    epilogue: str, code: str, group: int, zeros: bool, n: int, k: int, out_dtype: torch.dtype | None = None,
    config: str = "", offsets: torch.Tensor | None = None,
) -> tuple[PackedFormula, Sequence[int]]:  # fmt: skip
    steps, every = operands_of(epilogue, read, written, numbers, wholes)
    facts = code, group, zeros, n, k
    packed = format_of(code, group, zeros), units, scales, n, k, packed_for(x.dtype) or x.dtype
    weight: QuantizedWeight | QuantizedExperts
    if offsets is None:
        call = checked_call(x, units, scales, None, None, facts, out_dtype, config, scale_x)
        weight = QuantizedWeight(*packed)
    else:
        call = checked_experts(x, units, scales, offsets, None, facts, out_dtype, config, scale_x)
        weight = QuantizedExperts(*packed)
    made = checked_product(call, x, weight, scale_x, OwnEpilogue(steps, every, None), None, offsets)
    return PackedFormula(made, facts, config), wholes


def _recorded(of: PackedFormula, wholes: Sequence[int]) -> torch.Tensor:
    of.made.check_derivable()
    operands = with_symbols(of.made.steps, of.made.operands, wholes)
    return recorded(replace(of, made=of.made._replace(operands=operands)))


def _mapped(info: VmapInfo, in_dims: Sequence[Any], *arguments: object) -> tuple[torch.Tensor, int]:
    steps = epilogue_of_text(str(arguments[_LISTS + 4]))
    for operand, at in zip(steps.writes, in_dims[_LISTS + 1], strict=True):
        check_mapped(steps.named_given(operand), at)
    return one_after_another(info, in_dims, arguments, getattr(torch.ops.layoutgemm, _NAME)), 0  # type: ignore[arg-type]


operator_of(
    _NAME,
    _call,
    lambda of, _: (derivable(of) if of.made.is_formula else computed(of.made)).contiguous(),
    lambda of, _: of.made.x.new_empty(of.made.shape if of.epilogue.stores_c else (0,), dtype=of.made.call.kind),
    _recorded,
    _mapped,
    mutates=("written",),
    function="quantized_matmul",
)


def traced(
    x: torch.Tensor, weight: QuantizedWeight | QuantizedExperts, scale_x: torch.Tensor | None,
    epilogue: Epilogue | None, given: Mapping[str, object] | None, out: torch.Tensor | None, beside: list[str],
    out_dtype: torch.dtype | None, config: PackedConfig | None, offsets: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """The product under torch.compile, whose tracer meets no exception of ours."""
    read = {"x": x, **named(scale_x=scale_x, offsets=offsets)}
    text, lists = traced_operands(epilogue, given, beside, read, out)
    if differentiated(x, scale_x, out, *lists[0], *lists[1]):  # type: ignore[arg-type]  # tensors, by the checks
        refuse(NOT_RECORDED if out is not None else refusal("derivative", text, torch.bfloat16, out_dtype))
    x = cast(x, autocast_type(x))
    value: torch.Tensor = torch.ops.layoutgemm.quantized_epilogue_matmul(
        x, weight.units, weight.scales, flat(scale_x, x), *lists, text, *facts_of(weight.format, weight.n, weight.k),
        out_dtype, packed_text(config), offsets,
    )  # fmt: skip
    return copied(value, out)
