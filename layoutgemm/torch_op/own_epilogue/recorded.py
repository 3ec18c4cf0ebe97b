"""Derivatives of a product whose formula torch derives: the kernel forward, float32 sums and the steps backward.

    forward    the kernel, and what the steps write into new tensors
    backward   the formula again, with its products by this library's kernels; torch derives it
    otherwise  `derivable`: the formula alone, for forward mode and torch.func

`SummedProduct` says what a product is to this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch.autograd.function import FunctionCtx

from ...kernels.epilogue.chain import Epilogue
from ..epilogue import Tensors
from .derivatives import derived
from .formula import StepResults


class SummedProduct(Protocol):
    """A checked product with an epilogue.

    steps, every  the epilogue, and its operands by name
    held          written operands whose values before the launch are part of a result
    tensors       on which a result depends; `of` puts others in their places, `alone` leaves the places empty
    """

    @property
    def steps(self) -> Epilogue:
        """The epilogue."""

    @property
    def every(self) -> Tensors:
        """The epilogue's operands by name."""

    @property
    def held(self) -> tuple[str, ...]:
        """Written operands that results are combined with."""

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors that autograd keeps."""

    @property
    def alone(self) -> SummedProduct:
        """The product without tensors."""

    def of(self, tensors: Sequence[torch.Tensor], every: Tensors | None = None) -> SummedProduct:
        """The product of other tensors, and of other operands of the epilogue."""

    def launched(self) -> torch.Tensor:
        """The product by a kernel."""

    def formula(self) -> StepResults:
        """Sums and steps with derivatives."""


def derivable(call: SummedProduct) -> torch.Tensor:
    """The product by its formula, which has derivatives of every kind that its products have."""
    return _placed(call, _held_apart(call).formula())


def recorded(call: SummedProduct) -> torch.Tensor:
    """The product by a kernel, with its gradients."""
    forms = [call.every[name].detach() for name in call.steps.writes]
    c, *written = _RecordedSteps.apply(call.alone, forms, *_held_apart(call).tensors)
    return _placed(call, StepResults(c, dict(zip(call.steps.writes, written, strict=True))))


def _held_apart(call: SummedProduct) -> SummedProduct:
    """The same with copies of what is held: autograd keeps them, and the launch changes the others."""
    return call.of(call.tensors, {**call.every, **{name: call.every[name].clone() for name in call.held}})


def _placed(call: SummedProduct, made: StepResults) -> torch.Tensor:
    for name, value in made.written.items():
        target = call.every[name]
        target.copy_(value.reshape(target.shape))
    return made.c if call.steps.stores_c else made.c.new_empty(0)


class _RecordedSteps(torch.autograd.Function):
    """A product with an epilogue, computed by a kernel into new tensors, with its gradients."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, call: SummedProduct, forms: Sequence[torch.Tensor], *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.save_for_backward(*tensors)
        ctx.call = call
        ctx.set_materialize_grads(False)
        of, names = call.of(tensors), call.steps.writes
        written = {
            name: of.every[name].clone() if name in call.held else torch.empty_like(form)
            for name, form in zip(names, forms, strict=True)
        }
        c = of.of(of.tensors, {**of.every, **written}).launched()
        empty = () if call.steps.stores_c else (c,)
        ctx.mark_non_differentiable(*empty, *[x for x in written.values() if not x.is_floating_point()])
        return (c, *written.values())

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        wants, records = ctx.needs_input_grad[2:], torch.is_grad_enabled()
        with torch.enable_grad():  # of views where these are recorded themselves: two operands may be one tensor
            tensors = [
                x.view_as(x) if records else x.detach().requires_grad_(want)
                for x, want in zip(ctx.saved_tensors, wants, strict=True)
            ]
            made = ctx.call.of(tensors).formula()
        results = [made.c, *[made.written[name] for name in ctx.call.steps.writes]]
        return None, None, *derived(results, tensors, grads, records)
