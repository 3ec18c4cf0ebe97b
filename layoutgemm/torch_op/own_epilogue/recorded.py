"""Derivatives of a product whose formula torch derives. The kernel forward, float32 sums and the steps backward.

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
from .formula import StepResults


class SummedProduct(Protocol):
    """A checked product with an epilogue.

    epilogue, every  the steps, if there are any, and their operands by name
    held          written operands whose values before the launch are part of a result
    tensors       on which a result depends; `of` puts others in their places, `alone` leaves the places empty
    """

    @property
    def epilogue(self) -> Epilogue | None:
        """The epilogue, if the product has one."""
        return None

    @property
    def every(self) -> Tensors:
        """The epilogue's operands by name."""
        return {}

    @property
    def held(self) -> tuple[str, ...]:
        """Written operands that results are combined with."""
        return ()

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

    def gradients(
        self, grads: Sequence[torch.Tensor | None], wants: Sequence[bool], records: bool
    ) -> list[torch.Tensor | None]:
        """The gradients of `tensors`; `records`: they are recorded themselves."""
        return by_formula(self, grads, wants, records)


def _writes(call: SummedProduct) -> tuple[str, ...]:
    return () if call.epilogue is None else call.epilogue.writes


def _stores_c(call: SummedProduct) -> bool:
    return call.epilogue is None or call.epilogue.stores_c


def derivable(call: SummedProduct) -> torch.Tensor:
    """The product by its formula, which has derivatives of every kind that its products have."""
    return _placed(call, _held_apart(call).formula())


def recorded(call: SummedProduct) -> torch.Tensor:
    """The product by a kernel, with its gradients."""
    forms = [call.every[name].detach() for name in _writes(call)]
    c, *written = _RecordedSteps.apply(call.alone, forms, *_held_apart(call).tensors)
    return _placed(call, StepResults(c, dict(zip(_writes(call), written, strict=True))))


def _held_apart(call: SummedProduct) -> SummedProduct:
    """The same with copies of what is held: autograd keeps them, and the launch changes the others."""
    return call.of(call.tensors, {**call.every, **{name: call.every[name].clone() for name in call.held}})


def _placed(call: SummedProduct, made: StepResults) -> torch.Tensor:
    for name, value in made.written.items():
        target = call.every[name]
        target.copy_(value.reshape(target.shape))
    return made.c if _stores_c(call) else made.c.new_empty(0)


class _RecordedSteps(torch.autograd.Function):
    """A product with an epilogue, computed by a kernel into new tensors, with its gradients."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, call: SummedProduct, forms: Sequence[torch.Tensor], *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.save_for_backward(*tensors)
        ctx.call = call
        ctx.set_materialize_grads(False)
        of, names = call.of(tensors), _writes(call)
        written = {
            name: of.every[name].clone() if name in call.held else torch.empty_like(form)
            for name, form in zip(names, forms, strict=True)
        }
        c = of.of(of.tensors, {**of.every, **written}).launched()
        empty = () if _stores_c(call) else (c,)
        ctx.mark_non_differentiable(*empty, *[x for x in written.values() if not x.is_floating_point()])
        return (c, *written.values())

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        of, wants = ctx.call.of(ctx.saved_tensors), ctx.needs_input_grad[2:]
        return None, None, *of.gradients(grads, wants, torch.is_grad_enabled())


def by_formula(
    call: SummedProduct, grads: Sequence[torch.Tensor | None], wants: Sequence[bool], records: bool
) -> list[torch.Tensor | None]:
    """The gradients of a product's tensors, derived from its formula.

    records  whether they are recorded themselves: then of views, since two operands may be one tensor
    """
    with torch.enable_grad():
        tensors = [
            x.view_as(x) if records else x.detach().requires_grad_(want)
            for x, want in zip(call.tensors, wants, strict=True)
        ]
        made = call.of(tensors).formula()
    return derived([made.c, *[made.written[name] for name in _writes(call)]], tensors, grads, records)


def derived(
    results: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], grads: Sequence[torch.Tensor | None],
    create_graph: bool = False,
) -> list[torch.Tensor | None]:  # fmt: skip
    """The gradients of a formula's inputs by torch; None for those that want none.

    >>> x = torch.ones(2, requires_grad=True)
    >>> derived([2 * x, x.detach()], [x, x.detach()], [torch.ones(2), None])
    [tensor([2., 2.]), None]
    """
    pairs = [(x, g) for x, g in zip(results, grads, strict=True) if g is not None and x.requires_grad]
    wanted = [x for x in inputs if x.requires_grad]
    if not (pairs and wanted):
        return [None] * len(inputs)
    values, of_values = [x for x, _ in pairs], [g.reshape(x.shape) for x, g in pairs]
    found = iter(torch.autograd.grad(values, wanted, of_values, allow_unused=True, create_graph=create_graph))
    return [next(found) if x.requires_grad else None for x in inputs]
