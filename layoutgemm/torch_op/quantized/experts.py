"""Rows in groups, times packed weights of several experts: the operator quantized_grouped_matmul.

Each group has its own expert's weights, all in one launch. Rows of a group follow each other, by offsets; or groups are
masked: each has as many rows, and its first ones count.

The gradient of x is a grouped product with dequantised weights. On the CPU groups are multiplied one by one in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import torch

from ...arguments import as_int, refusal
from ...atoms.copy.base import VECTOR_BYTES
from ...dtypes import dtype
from ...errors import OperandError
from ...kernels.compile.worker import compile_apart
from ...kernels.derive import padded_leading
from ...kernels.epilogue.chain import Epilogue
from ...kernels.quantized.formats import FLOAT8, QuantizedFormat
from ...kernels.ragged import Ragged, masked_rows
from ...kernels.run.capture import first_call
from ...kernels.run.operand_checks import addressed, check_operands, resolved
from ...kernels.sm80.plan import Sm80Plan
from ...kernels.sm80.quantized import choose as by_mma
from ...kernels.sm90.plan import Sm90Plan
from ...kernels.sm90.quantized.choose import SMS, experts_config
from ...kernels.sm90.quantized.feature_parts import FeatureParts
from ...kernels.streamed.plan import StreamedConfig
from ..bias_activation import by_torch
from ..checks import (
    PLAIN,
    check_device,
    derived_by_func,
    has_tangent,
    refuse_derivatives,
    seen_by_autograd_alone,
    stored_as,
)
from ..compiled.traced import named
from ..launch import DirectLaunch, raw_stream
from ..operators import operator_of, with_autograd
from ..prepared import alignment_of, gpu, on_gpu, target
from ..scaled_grouped.api import grouped_matmul
from ..scaled_grouped.grouped import COUNTS, OFFSETS, check_values, counted
from ..scaled_grouped.operators import plain_config
from ..scaled_grouped.scaled import check_config
from ..types import C_NAMES, NAMES
from .dense import Facts, dense_of, format_of, packed_for, unpacked
from .launch import (
    BIAS,
    HOPPER,
    QuantizedCall,
    arguments_of,
    check_bias,
    check_target,
    epilogue_of,
    in_place,
    mma_arguments_of,
    readable,
    scale_recipe,
)
from .operators import check_gateless, check_rows
from .weights import QuantizedWeight, multiplied, unlike

_WAY_OUT = "x of 16 bits has one; give its detach()"
INDEX = {torch.int32: "i32", torch.int64: "i64"}


@dataclass(frozen=True, eq=False)
class QuantizedExperts:
    """Packed weights (experts, out features, in features) of 4 or 8 bits.

    units        uint8 (experts, row blocks, K units, bytes)
    scales       float32 (experts, n): of whole columns; None where groups have scales
    n, k         out and in features of each expert
    activations  torch.bfloat16 or torch.float16: the type of x; torch.float8_e4m3fn: x is float8_e4m3fn or float8_e5m2

    >>> one = QuantizedWeight.quantize(torch.eye(64, 128), QuantizedFormat("int8"))
    >>> QuantizedExperts.of([one, one, one]).units.shape
    torch.Size([3, 1, 1, 8192])
    """

    format: QuantizedFormat
    units: torch.Tensor
    scales: torch.Tensor | None
    n: int
    k: int
    activations: torch.dtype = torch.bfloat16

    def __post_init__(self) -> None:
        if not isinstance(self.units, torch.Tensor):
            raise OperandError(refusal(self.units, "units", "a tensor"))
        if self.units.ndim != 4 or self.units.shape[0] == 0 or not self.units.is_contiguous():
            raise OperandError(f"units have shape {list(self.units.shape)}: contiguous (experts, rows, K, bytes)")
        if self.scales is not None and self.scales.shape != (self.experts, self.n):
            raise OperandError(f"scales have shape {list(self.scales.shape)}: {[self.experts, self.n]}")
        self.expert(0)

    @classmethod
    def of(cls, weights: Sequence[QuantizedWeight]) -> QuantizedExperts:
        """The packed weights of all experts, alike in format, sizes and device. Raises OperandError for others."""
        if not weights:
            raise OperandError("weights are empty: a product has one expert or more")
        first = weights[0]
        for e, each in enumerate(weights):
            if not isinstance(each, QuantizedWeight):
                raise OperandError(f"weights[{e}] is a {type(each).__qualname__}: a QuantizedWeight")
            have, want = [(w.format, w.n, w.k, w.activations, w.units.device) for w in (each, first)]
            if have != want:
                raise OperandError(f"weights[{e}] is {have}, and weights[0] {want}: experts are alike")
        scales = [each.scales for each in weights if each.scales is not None]
        units = torch.stack([each.units for each in weights])
        return cls(first.format, units, torch.stack(scales) if scales else None, first.n, first.k, first.activations)

    @property
    def experts(self) -> int:
        """The number of experts."""
        return int(self.units.shape[0])

    def expert(self, e: int) -> QuantizedWeight:
        """The weights of one expert: a view."""
        scales = None if self.scales is None else self.scales[e]
        return QuantizedWeight(self.format, self.units[e], scales, self.n, self.k, self.activations)

    def to(self, device: torch.device | str) -> QuantizedExperts:
        """The same on a device."""
        scales = None if self.scales is None else self.scales.to(device)
        return replace(self, units=self.units.to(device), scales=scales)


def check_experts(x: object, weights: object, ends: object, config: object, said: str = OFFSETS) -> None:
    """Raise OperandError for what `quantized_grouped_matmul` does not multiply.

    ends  offsets, or counts, as `said` names them
    """
    if not isinstance(weights, QuantizedExperts):
        raise OperandError(f"weights are a {type(weights).__qualname__}: QuantizedExperts, as QuantizedExperts.of")
    if not isinstance(x, torch.Tensor) or not isinstance(ends, torch.Tensor):
        found = type(ends if isinstance(x, torch.Tensor) else x).__qualname__
        raise OperandError(f"x and {said} are torch tensors; got a {found}")
    if not weights.expert(0).takes(x.dtype):
        raise OperandError(unlike(x.dtype, weights.activations))
    check_config(config)


def expected_of(x: torch.Tensor, experts: int, offsets: object, counts: torch.Tensor | None, rows: int | None) -> int:
    """The rows that each masked group of x is taken to have. Raises OperandError for others."""
    if counts is None:
        raise OperandError("expected_rows: it chooses tiles of masked groups, and there are no counts")
    if offsets is not None:
        raise OperandError("offsets and counts: groups are said by one of them")
    if x.ndim != 3 or x.shape[0] != experts:
        raise OperandError(f"x has shape {list(x.shape)}: with counts ({experts}, rows, k), a matrix of each expert")
    most = max(1, int(x.shape[1]))
    return masked_rows(most) if rows is None else min(most, as_int(rows, "expected_rows", OperandError, least=1))


# ----------------------------------------------------------------------------------------------------------- operator


def checked_experts(
    x: torch.Tensor, units: torch.Tensor, scales: torch.Tensor | None, offsets: torch.Tensor, activation: str | None,
    facts: Facts, out_dtype: torch.dtype | None, config: str, scale_x: torch.Tensor | None,
    bias: torch.Tensor | None = None, expected: int = 0,
) -> QuantizedCall:  # fmt: skip
    """The checked product. Raises OperandError or TensorError, naming the operand.

    expected  0; or the rows that a masked group is taken to have, and `offsets` are counts
    """
    others, said = named(scales=scales, scale_x=scale_x, bias=bias), COUNTS if expected else OFFSETS
    check_operands({"x": x, "units": units, said: offsets, **others})
    check_device(x)
    fmt, (n, k) = format_of(*facts[:3]), facts[3:]
    weights = QuantizedExperts(fmt, units, scales, n, k, packed_for(x.dtype) or x.dtype)
    check_rows(x, n, k)
    if expected and x.shape[0] % weights.experts:
        raise OperandError(f"x has {x.shape[0]} rows: masked groups of {weights.experts} experts are of one size")
    count = weights.experts + (said == OFFSETS)
    if offsets.dtype not in INDEX or tuple(offsets.shape) != (count,):
        raise OperandError(f"{said} are {offsets.dtype} of shape {list(offsets.shape)}: int32 or int64 of [{count}]")
    if addressed(offsets) and offsets.device.type == "cpu":
        groups = x if said == OFFSETS else x.unflatten(0, (weights.experts, x.shape[0] // weights.experts))
        check_values(offsets.tolist(), said, groups, units[..., 0], "x")
    check_gateless(activation)
    check_bias(bias, n, weights.experts)
    scale = scale_recipe(scale_x, x.shape[0], x.dtype)
    return QuantizedCall(fmt, (n, k), activation, stored_as(x.dtype, out_dtype), plain_config(config), scale)


def _call(
    x: torch.Tensor, units: torch.Tensor, scales: torch.Tensor | None, offsets: torch.Tensor, activation: str | None,
    code: str, group: int, zeros: bool, n: int, k: int, out_dtype: torch.dtype | None = None, config: str = "",
    scale_x: torch.Tensor | None = None, bias: torch.Tensor | None = None, expected: int = 0,
) -> tuple[object, ...]:  # fmt: skip
    facts = code, group, zeros, n, k
    call = checked_experts(x, units, scales, offsets, activation, facts, out_dtype, config, scale_x, bias, expected)
    return call, x, units, scales, offsets, scale_x, bias, expected


operator_of(
    "quantized_grouped_matmul",
    _call,
    lambda call, *operands: experts_product(call, *operands),
    lambda call, x, *_: x.new_empty((x.shape[0], call.size[0]), dtype=call.kind),
)


class _ExpertsProduct(torch.autograd.Function):
    """x[g] @ weights[e].T with the gradient of x."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, x: torch.Tensor, units: torch.Tensor, scales: torch.Tensor | None,
        offsets: torch.Tensor, facts: Facts, kind: torch.dtype, config: str, expected: int,
    ) -> torch.Tensor:  # fmt: skip
        ctx.save_for_backward(units, scales, offsets)
        ctx.facts, ctx.like, ctx.expected = facts, x.dtype, expected
        value: torch.Tensor = torch.ops.layoutgemm.quantized_grouped_matmul(
            x, units, scales, offsets, None, *facts, kind, config, None, None, expected
        )
        return value

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        units, scales, offsets = ctx.saved_tensors
        if type(units) in PLAIN and seen_by_autograd_alone():
            dense = unpacked(units, scales, ctx.like, ctx.facts)
        else:
            dense = torch.ops.layoutgemm.dequantized(units, scales, ctx.like, *ctx.facts)
        if not ctx.expected:
            return grouped_matmul(grad.to(ctx.like), dense, offsets), *[None] * 7
        counts_here, each = counting(offsets, grad.shape[0]), (units.shape[0], grad.shape[0] // units.shape[0])
        rows = grouped_matmul(
            grad.to(ctx.like).unflatten(0, each), dense, counts=offsets, expected_rows=ctx.expected
        ).flatten(0, 1)
        return torch.where(counts_here, rows, 0), *[None] * 7


def _recorded(
    x: torch.Tensor, units: torch.Tensor, scales: torch.Tensor | None, offsets: torch.Tensor, activation: str | None,
    code: str, group: int, zeros: bool, n: int, k: int, out_dtype: torch.dtype | None = None, config: str = "",
    scale_x: torch.Tensor | None = None, bias: torch.Tensor | None = None, expected: int = 0,
) -> torch.Tensor:  # fmt: skip
    """The product as autograd records it; torch computes the activation. Rows that do not count become zeros."""
    derived = {"x": x} if x.dtype.itemsize == 1 or has_tangent(x) else {}
    refuse_derivatives({**derived, "scales": scales, "scale_x": scale_x}, _WAY_OUT)
    if bias is not None and has_tangent(bias):
        refuse_derivatives({"bias": bias}, _WAY_OUT)
    if derived_by_func():
        raise OperandError("x is differentiated by torch.func, and quantized_grouped_matmul by backward() alone")
    facts = code, group, zeros, n, k
    call = checked_experts(x, units, scales, offsets, activation, facts, out_dtype, config, scale_x, bias, expected)
    finishes = bias is not None or activation is not None
    kind = torch.float32 if finishes else call.kind
    value = derivable_experts(x, units, scales, offsets, facts, kind, config, scale_x, expected)
    mask = counting(offsets, x.shape[0]) if expected else None
    if mask is not None:  # what is there may be NaN, of which an activation's derivative is
        value = torch.where(mask, value, 0)
    if finishes:
        value = by_torch(value, of_rows(bias, offsets, x.shape[0], bool(expected)), activation, call.kind)
    return value if mask is None or not finishes else torch.where(mask, value, 0)


def derivable_experts(
    x: torch.Tensor, units: torch.Tensor, scales: torch.Tensor | None, offsets: torch.Tensor, facts: Facts,
    kind: torch.dtype, config: str, scale_x: torch.Tensor | None = None, expected: int = 0,
) -> torch.Tensor:  # fmt: skip
    """The product alone, with the gradient of an x of 16 bits."""
    if x.dtype.itemsize == 1:
        value: torch.Tensor = torch.ops.layoutgemm.quantized_grouped_matmul(
            x, units, scales, offsets, None, *facts, kind, config, scale_x, None, expected
        )
    else:
        value = _ExpertsProduct.apply(x, units, scales, offsets, facts, kind, config, expected)
    return value


def counting(counts: torch.Tensor, rows: int) -> torch.Tensor:
    """Which rows of masked groups count, (rows, 1).

    >>> counting(torch.tensor([1, 0]), 4).squeeze(-1).tolist()
    [True, False, False, False]
    """
    return counted(counts, rows // counts.shape[0]).flatten(0, 1)


def of_rows(bias: torch.Tensor | None, offsets: torch.Tensor, rows: int, masked: bool = False) -> torch.Tensor | None:
    """A bias as it is added to rows: a line of each, or one.

    >>> of_rows(torch.tensor([[1.0], [2.0]]), torch.tensor([0, 1, 3]), 3).tolist()
    [[1.0], [2.0], [2.0]]
    """
    if bias is None or bias.ndim == 1:
        return bias
    return bias.repeat_interleave(rows // bias.shape[0], 0) if masked else bias[experts_of_rows(offsets, rows)]


def experts_of_rows(offsets: torch.Tensor, rows: int) -> torch.Tensor:
    """The expert of each row."""
    line = torch.arange(rows, device=offsets.device)
    return torch.searchsorted(offsets[1:].long(), line, right=True).clamp(max=offsets.shape[0] - 2)


with_autograd("quantized_grouped_matmul", _recorded)


# ------------------------------------------------------------------------------------------------------------- product


def experts_product(
    call: QuantizedCall, x: torch.Tensor, units: torch.Tensor, scales: torch.Tensor | None, offsets: torch.Tensor,
    scale_x: torch.Tensor | None = None, bias: torch.Tensor | None = None, expected: int = 0,
) -> torch.Tensor:  # fmt: skip
    """activation(scale_x[g] * x[g] @ weights[e].T + bias[e]): a checked call. See `checked_experts`."""
    rows, n = x.shape[0], call.size[0]
    if not on_gpu(x.get_device()):
        if call.config is not None and rows:  # refused as on an H200
            experts_plan(call, units.shape[0], rows, NAMES[x.dtype], INDEX[offsets.dtype], expected=expected)
        return _on_cpu(call, x, units, scales, offsets, scale_x, bias, bool(expected))
    check_target(call, x)
    c = torch.empty((rows, n), dtype=call.kind, device=x.device)
    if rows == 0:
        return c
    lines, ends = readable(resolved(x)), offsets.contiguous()
    added = None if bias is None else (bias.dtype, bias.ndim > 1)
    key = (call, units.shape[0], rows, lines.stride(0), x.dtype, offsets.dtype, added, x.get_device(), expected)
    with torch.cuda.device(x.device):
        direct = _prepared(*key)
        vectors = [scales, *[None if v is None else in_place(v) for v in (scale_x, bias)]]
        vectors = [v for v in vectors if v is not None]  # in the order of the epilogue's steps
        direct.launch([t.data_ptr() for t in (units, lines, c, *vectors, ends)], raw_stream(x.get_device()))
    return c


def _on_cpu(
    call: QuantizedCall, x: torch.Tensor, units: torch.Tensor, scales: torch.Tensor | None, offsets: torch.Tensor,
    scale_x: torch.Tensor | None, bias: torch.Tensor | None, masked: bool,
) -> torch.Tensor:  # fmt: skip
    added = None if bias is None else of_rows(resolved(bias.detach()), offsets, x.shape[0], masked)
    value = experts_sums(call, x, units, scales, offsets, scale_x, masked)
    return by_torch(value, added, call.activation, call.kind)


def experts_sums(
    call: QuantizedCall, x: torch.Tensor, units: torch.Tensor, scales: torch.Tensor | None, offsets: torch.Tensor,
    scale_x: torch.Tensor | None, masked: bool = False,
) -> torch.Tensor:  # fmt: skip
    """The sums of a checked call on the CPU, with all scales, in float64. Rows that do not count are zeros."""
    found = torch.zeros((x.shape[0], call.size[0]), dtype=torch.float64)
    numbers, each = offsets.tolist(), x.shape[0] // units.shape[0]
    groups = [(e * each, e * each + count) for e, count in enumerate(numbers)] if masked else pairwise(numbers)
    for e, (start, end) in enumerate(groups):
        if start == end:
            continue
        wide = dense_of(call.format, x.dtype, units[e], None if scales is None else scales[e], call.size)
        dense = multiplied(call.format, wide, x.dtype).double()
        found[start:end] = resolved(x[start:end].detach()).double() @ dense.T
    return found if scale_x is None else found * resolved(scale_x.detach()).double().reshape(-1, 1)


@lru_cache(maxsize=4096)
@first_call()
def _prepared(
    call: QuantizedCall, experts: int, rows: int, stride: int, x: torch.dtype, offsets: torch.dtype,
    bias: tuple[torch.dtype, bool] | None, device: int, expected: int,
) -> DirectLaunch:  # fmt: skip
    """The launch of a product for x of such lines.

    bias      its type, and whether each expert has its own; or None
    expected  as `checked_experts` has it

    It takes addresses: weights, x, C, the scales of columns, of x, the bias, the offsets.
    """
    places, added = gpu(device)[0], None if bias is None else C_NAMES[bias[0]]
    on = places.multiprocessors, *target(device)
    plan = experts_plan(call, experts, rows, NAMES[x], INDEX[offsets], *on, added, expected=expected)
    pitch = stride if rows > 1 else padded_leading(dtype(NAMES[x]), call.size[1])
    of_all = () if bias is None or bias[1] else (BIAS,)
    if isinstance(plan, Sm80Plan):
        return DirectLaunch(compile_apart(plan), *mma_arguments_of(plan, pitch, of_all), device, plan)
    numbers, at = arguments_of(plan, pitch, places.resident(1), of_all=of_all)
    return DirectLaunch(compile_apart(plan), numbers, at, device, plan)


def forget() -> None:
    """Drop every prepared product; what was compiled stays."""
    _prepared.cache_clear()


@lru_cache(maxsize=1024)
def experts_plan(
    call: QuantizedCall, experts: int, rows: int, x: str, offsets: str, sms: int = SMS, code: str = HOPPER,
    shared: int = 0, bias: str | None = None, steps: Epilogue | None = None, expected: int = 0,
) -> Sm80Plan | Sm90Plan:  # fmt: skip
    """The plan of a product of that many rows, all groups together.

    sms, code, shared  the GPU's multiprocessors, its target, and bytes of shared memory that a block may have
    bias   its type, or None
    steps  an epilogue of (rows, n) in place of bias and activation, scales and all
    expected  0, or the rows that a masked group is taken to have
    """
    if isinstance(call.config, StreamedConfig):
        raise OperandError(f"config = {call.config}: groups of rows are not streamed; an Sm90Config, or None to choose")
    if isinstance(call.config, FeatureParts):
        raise OperandError(f"config = {call.config}: groups of rows are one launch; an Sm90Config, or None to choose")
    groups, become = Ragged.of(experts, offsets, masked=expected > 0), "e4m3" if x in FLOAT8 else x
    counted_rows = expected * experts or rows
    if code != HOPPER:
        (n, k), kind = call.size, C_NAMES[call.kind]
        config = by_mma.experts_config(call.format, counted_rows, experts, n, sms, shared, code)
        return Sm80Plan.derive(
            rows, n, k, arch=code, batch=experts, a=x, c=kind, weights=call.format, experts=groups,
            config=replace(config, align=(VECTOR_BYTES, VECTOR_BYTES, alignment_of(n * dtype(kind).bytes))),
            epilogue=(epilogue_of(call.format, bias, call.activation, axis="n") if steps is None else steps) or None,
        )  # fmt: skip
    (n, k), epilogue = call.size, epilogue_of(call.format, bias, call.activation, call.scale)
    epilogue = epilogue if steps is None else steps.transposed()
    return Sm90Plan.derive(
        n, rows, k, batch=experts, a=become, b=f"{x}:col", c=f"{C_NAMES[call.kind]}:col",
        config=call.config or experts_config(counted_rows, experts, become), weights=call.format,
        experts=groups, epilogue=epilogue or None,
    )  # fmt: skip
