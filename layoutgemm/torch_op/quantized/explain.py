"""The kernel that a product with packed weights takes, why, and its copies, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch

from ...errors import OperandError
from ...kernels.plan import GemmPlan, present
from ...kernels.sm80.plan import Sm80Plan
from ...kernels.sm90.plan import Sm90Plan
from ...kernels.streamed.plan import StreamedPlan
from ..epilogue import gate_of
from ..explanation import Explanation, gated_after
from ..prepared import gpu, target
from ..scaled_grouped.grouped import COUNTS, OFFSETS
from ..tuned_store import MEASURED
from ..types import C_NAMES, NAMES
from .configs import PackedConfig, packed_text
from .dense import facts_of
from .experts import INDEX, QuantizedExperts, check_experts, checked_experts, expected_of, experts_plan
from .launch import (
    HOPPER,
    QuantizedCall,
    as_measured,
    check_target,
    flat,
    mma_plan_of,
    plans_of,
    spaced,
    split_bytes,
    streamed_plan_of,
    unreadable,
)
from .operators import checked_call
from .weights import QuantizedWeight, check_halves, check_product


def explain_quantized(
    x: torch.Tensor, weight: QuantizedWeight, scale_x: torch.Tensor | None = None, bias: torch.Tensor | None = None,
    activation: str | None = None, out_dtype: torch.dtype | None = None, config: PackedConfig | None = None,
    untaken: Mapping[str, object] | None = None,
) -> Explanation:  # fmt: skip
    """Which kernel `quantized_matmul` takes for these tensors, why, and what it copies. Raises as that does.

    For CPU tensors it tells what would be done with such tensors on an H200.

    untaken  arguments that such a product does not have, by name: OperandError for one that is not None

    >>> from layoutgemm import QuantizedFormat
    >>> weight = QuantizedWeight.quantize(torch.eye(64, 2048), QuantizedFormat("int4", 128))
    >>> explain_quantized(torch.ones(1, 2048).bfloat16(), weight).why.partition(":")[0]
    '1 row(s) are streamed'
    """
    refuse_untaken(untaken, "a QuantizedWeight")
    check_product(x, weight, config)
    lines, factors = x.reshape(-1, weight.k), flat(scale_x, x)
    facts = facts_of(weight.format, weight.n, weight.k)
    call = checked_call(
        lines, weight.units, weight.scales, bias, activation, facts, out_dtype, packed_text(config), factors
    )
    rows = lines.shape[0]
    if rows == 0:
        return Explanation("no kernel: an empty result", "x has no rows", 0, (), 0)
    check_target(call, lines)
    plan, *others = _plans(call, rows, lines, bias)
    measured = as_measured(call, rows, lines.dtype, None if bias is None else bias.dtype, lines.get_device())
    copies = [
        (rule, size) for rule, size in (unreadable(lines), spaced("scale_x", factors), spaced("bias", bias)) if rule
    ]
    said = tuple([f"{rule}, {size} bytes" for rule, size in copies])
    why = MEASURED if measured is not call else _why(plan, rows, config)
    if others and config is None and measured is call:
        sizes = " and ".join(str(each.m) for each in (plan, *others))
        why = f"{rows} row(s): two launches, of {sizes} output features, have a lesser estimate of time than one"
    own = split_bytes(plan)
    kernel = ", then ".join(map(str, (plan, *others)))
    return Explanation(kernel, why, 1 + len(others) + len(own), said, sum(size for _, size in copies) + sum(own))


def explain_experts(
    x: torch.Tensor, weights: QuantizedExperts, offsets: torch.Tensor | None, scale_x: torch.Tensor | None = None,
    bias: torch.Tensor | None = None, activation: str | None = None, out_dtype: torch.dtype | None = None,
    config: PackedConfig | None = None, untaken: Mapping[str, object] | None = None,
    counts: torch.Tensor | None = None, expected_rows: int | None = None,
) -> Explanation:  # fmt: skip
    """Which kernel `quantized_grouped_matmul` takes for these tensors. Raises as that does; see `explain_quantized`."""
    refuse_untaken(untaken, "QuantizedExperts")
    masked, name, ends = counts is not None or expected_rows is not None, OFFSETS, offsets
    if masked:
        name, ends = COUNTS, counts
    check_experts(x, weights, ends, config, name)
    expected = expected_of(x, weights.experts, offsets, counts, expected_rows) if masked else 0
    factors, facts = flat(scale_x, x), facts_of(weights.format, weights.n, weights.k)
    x = x.flatten(0, 1) if masked else x
    given = x, weights.units, weights.scales, present(ends)
    call = checked_experts(*given, activation, facts, out_dtype, packed_text(config), factors, bias, expected)
    rows, count = x.shape[0], weights.experts
    if rows == 0:
        return Explanation("no kernel: an empty result", "x has no rows", 0, (), 0)
    if x.get_device() >= 0:
        check_target(call, x)
    index = x.get_device()
    on = gpu(index)[0].multiprocessors, *target(index)
    added = None if bias is None else C_NAMES[bias.dtype]
    plan = experts_plan(call, count, rows, NAMES[x.dtype], INDEX[present(ends).dtype], *on, added, expected=expected)
    copies = unreadable(x), spaced("scale_x", factors), spaced("bias", bias), spaced(name, ends)
    said = tuple([f"{rule}, {size} bytes" for rule, size in copies if rule])
    rows_of_tile = plan.tile[isinstance(plan, Sm90Plan)]
    why = "the configuration that was given" if config is not None else (
        f"{expected * count or rows} rows of {count} experts: tiles of {rows_of_tile} rows, half as many again as "
        "a usual group has"
    )  # fmt: skip
    return Explanation(str(plan), f"{why}; the kernel reads the {name}", 1, said, sum(size for _, size in copies))


def explain_packed(
    x: torch.Tensor, weights: QuantizedWeight | QuantizedExperts, bias: torch.Tensor | None,
    offsets: torch.Tensor | None, rest: tuple[torch.Tensor | None, str | None, torch.dtype | None, Any],
    untaken: Mapping[str, object],
) -> Explanation:  # fmt: skip
    """`explain_quantized` or `explain_experts`.

    rest  scale_x, activation, out_dtype and config
    """
    scale_x, activation, out_dtype, config = rest
    gate = gate_of(activation)
    if gate is not None:
        check_halves(weights.n, gate)
        activation, out_dtype = None, torch.float32
    options = bias, activation, out_dtype, config
    if isinstance(weights, QuantizedExperts):
        others = {name: value for name, value in untaken.items() if name not in ("counts", "expected_rows")}
        counts, expected = (untaken.get(name) for name in ("counts", "expected_rows"))
        masked = cast("torch.Tensor | None", counts), cast("int | None", expected)
        found = explain_experts(x, weights, offsets, scale_x, *options, others, *masked)
    else:
        found = explain_quantized(x, weights, scale_x, *options, {**untaken, "offsets": offsets})
    if gate is None or found.launches == 0:
        return found
    why = "different CTAs of packed weights have the features of a gate's two halves"
    return gated_after(found, why, (*x.shape[:-1], weights.n // 2))


def refuse_untaken(untaken: Mapping[str, object] | None, what: str) -> None:
    """Raise OperandError for an argument that a product with packed weights does not have."""
    for name, value in (untaken or {}).items():
        if value is not None:
            raise OperandError(f"{name} is given: a product with {what} takes none")


def _plans(call: QuantizedCall, rows: int, x: torch.Tensor, bias: torch.Tensor | None) -> list[GemmPlan]:
    """The plans of the launches: one, or two of parts of the features."""
    index = x.get_device()
    call = as_measured(call, rows, x.dtype, None if bias is None else bias.dtype, index)
    places, on = gpu(index)[0], target(index)
    types = NAMES[x.dtype], None if bias is None else C_NAMES[bias.dtype]
    streamed = streamed_plan_of(call, rows, *types, places.multiprocessors, *on)
    if streamed is not None:
        return [streamed]
    if on[0] != HOPPER:
        return [mma_plan_of(call, rows, *types, places.multiprocessors, *on)]
    return [plan for _, plan in plans_of(call, rows, *types, places.multiprocessors)]


def _why(plan: GemmPlan, rows: int, config: PackedConfig | None) -> str:
    if config is not None:
        return "the configuration that was given"
    if isinstance(plan, StreamedPlan):
        split = plan.config.split
        who = f"{plan.config.warps} warps" + (f" of {split} blocks" if split > 1 else "")
        return (
            f"{rows} row(s) are streamed: {who} share {plan.units} units of K in {plan.turns} turn(s), and x is "
            f"{plan.b.rows * plan.b.depth * plan.b.dtype.bytes} bytes for each block"
        )
    tile = (
        f"tiles of {plan.tile[1]} x {plan.tile[0]}"
        if isinstance(plan, Sm80Plan)
        else f"tiles of {plan.tile[0]} x {plan.tile[1]}"
    )
    parts = getattr(plan.config, "split", 1)
    return f"{rows} row(s): {tile} (features x rows), K in {parts} part(s), have the least estimate of time"
