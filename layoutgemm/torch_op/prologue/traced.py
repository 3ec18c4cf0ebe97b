"""A traced call's operands with a prologue, refused under torch.compile.

They are of two matrices, batches or groups.

The compiler's tracer meets no exception of ours: see `torch_op.compiled.traced`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch

from ...kernels.operands.prologue import Prologue
from ..checks import NOT_RECORDED, autocast, differentiated
from ..compiled.traced import check_kinds, named, refusal, refuse, refuse_finish
from .operators import prologue_names


class TracedOperands(NamedTuple):
    """The arguments of an operator: A, B, the prologue's operands in order, its text."""

    a: torch.Tensor
    b: torch.Tensor
    values: list[torch.Tensor]
    text: str


class TracedFinish(NamedTuple):
    """The arguments of a call for its result."""

    bias: torch.Tensor | None
    activation: str | None
    out: torch.Tensor | None
    out_dtype: torch.dtype | None


def traced_operands(
    a: torch.Tensor, b: torch.Tensor, prologue: Prologue, given: Mapping[str, torch.Tensor], finish: TracedFinish,
    config: tuple[str, object], groups: Mapping[str, torch.Tensor | None],
) -> TracedOperands:  # fmt: skip
    """The operands of an operator, whose values that are no tensors have been checked.

    config  the check of a configuration, and the configuration
    groups  offsets or counts by name; empty for products without groups
    """
    bias, activation, out, out_dtype = finish
    text = prologue.json
    refuse(refusal("prologue", text, tuple(given), bias is not None))
    check_kinds({"a": a, "b": b, **named(**groups), **given, **named(bias=bias)}, named(out=out))
    refuse(refusal(*config))
    refuse(refusal("prologue activation", activation))
    refuse_finish(activation, a, out_dtype)
    if out is not None and differentiated(a, b, bias, out, *given.values()):
        refuse(NOT_RECORDED)
    a, b = autocast(a, b)
    return TracedOperands(a, b, [given[name] for name in prologue_names(text)], text)
