"""Derivatives of products with an epilogue: the steps by torch, their products by this library's kernels.

    forward    the kernel: C and what the steps write, in tensors of their own; nothing of C's size is kept
    backward   float32 sums again by one product; torch derives the steps; two products, for A and for B
    otherwise  `derivable`: forward mode, torch.func, and derivatives of derivatives, by operators that have them

Steps that are linear in the sums need no sums again. What the steps write takes part: a copy into the caller's tensors
carries the gradient, as torch's own operations in place do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.autograd.function import FunctionCtx

from ...errors import TensorError
from ...kernels.epilogue.chain import Aux, Bias, Dropout, Epilogue, ReductionStep, Residual, Scale, Step, VectorScale
from ...kernels.epilogue.reduce import combined
from ..autograd.products import gradients
from ..checks import needs_dispatcher
from ..compute import product
from ..epilogue import Tensors, epilogue_product
from ..operators import differentiable
from ..prepared import Config, config_text
from .formula import StepResults, refusal_of_derivative, steps_by_torch
from .names import OperandNames


class EpilogueProduct(NamedTuple):
    """A product with an epilogue; `every`: the operands by name, `gate`: the function of a gate, or None."""

    a: torch.Tensor
    b: torch.Tensor
    kind: torch.dtype
    epilogue: Epilogue
    every: Tensors
    shape: tuple[int, ...]
    gate: str | None
    activation: str | None

    @property
    def read(self) -> tuple[str, ...]:
        """Names of the tensors on which a result depends: written ones too, where they are combined with results."""
        return (*self.epilogue.reads, *combined(self.epilogue.reductions))

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors on which a result depends."""
        return [self.a, self.b, *[self.every[name] for name in self.read]]

    def of(self, tensors: Sequence[torch.Tensor]) -> EpilogueProduct:
        """The same of other `tensors`."""
        a, b, *values = tensors
        return self._replace(a=a, b=b, every={**self.every, **dict(zip(self.read, values, strict=True))})

    @property
    def alone(self) -> EpilogueProduct:
        """The same without tensors: `of` puts them back. torch.func unwraps a call's arguments, and none inside one."""
        every = {name: None if isinstance(x, torch.Tensor) else x for name, x in self.every.items()}
        return self._replace(a=_NOTHING, b=_NOTHING, every=every)


_NOTHING = torch.empty(0)
NO_SUMS = "two products; the steps are linear, and need no sums again"


def _check(call: EpilogueProduct) -> None:
    """Raise TensorError for a product whose derivative is recorded, and which has none."""
    if text := refusal_of_derivatives(call.epilogue, call.a.dtype, call.kind):
        raise TensorError(text)


def refusal_of_derivatives(epilogue: Epilogue | None, multiplied: torch.dtype, kind: torch.dtype) -> str:
    """Why a product of that type, with an epilogue or without, has no derivative; or ""."""
    if multiplied.itemsize < 2:
        return f"a is {multiplied}, and products of 8 bits have no gradient: give detached tensors"
    if epilogue is not None and (text := refusal_of_derivative(epilogue)):
        return f"an operand requires grad, and the epilogue has no derivative: {text}"
    return f"the product is {kind}: results of 8 bits have no gradient" if kind.itemsize < 2 else ""


def derivable(call: EpilogueProduct, config: Config | None) -> torch.Tensor:
    """The product by operators that have derivatives of every order; what the steps write is copied to its place."""
    _check(call)
    return _placed(call, _formula(_held_apart(call)))


def recorded(call: EpilogueProduct, config: Config | None) -> torch.Tensor:
    """The product by a kernel, with its gradients. Raises TensorError where it has none."""
    _check(call)
    forms = [call.every[name].detach() for name in call.epilogue.writes]
    c, *written = _RecordedEpilogue.apply(call.alone, config, forms, *_held_apart(call).tensors)
    return _placed(call, StepResults(c, dict(zip(call.epilogue.writes, written, strict=True))))


def _held_apart(call: EpilogueProduct) -> EpilogueProduct:
    """The same with the values before the launch of what results are combined with: autograd keeps them."""
    held = {name: call.every[name].clone() for name in combined(call.epilogue.reductions)}
    return call._replace(every={**call.every, **held})


def _placed(call: EpilogueProduct, made: StepResults) -> torch.Tensor:
    for name, value in made.written.items():
        target = call.every[name]
        target.copy_(value.reshape(target.shape))
    return made.c if call.epilogue.stores_c else call.a.new_empty(0, dtype=call.kind)


def _formula(call: EpilogueProduct) -> StepResults:
    sums = differentiable(call.a, call.b, torch.float32)
    return steps_by_torch(call.epilogue, sums, call.every, call.kind, call.gate)


class _RecordedEpilogue(torch.autograd.Function):
    """A product with an epilogue, computed by a kernel into new tensors, with its gradients."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, call: EpilogueProduct, config: Config | None, forms: Sequence[torch.Tensor],
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        ctx.save_for_backward(*tensors)
        ctx.call = call
        ctx.set_materialize_grads(False)
        held = combined(call.epilogue.reductions)
        written = [
            torch.empty_like(x) if name not in held else x.clone()
            for name, x in zip(call.epilogue.writes, forms, strict=True)
        ]
        of = call.of(tensors)
        of = of._replace(every={**of.every, **dict(zip(call.epilogue.writes, written, strict=True))})
        c = dispatched(of, config) if needs_dispatcher(*tensors) else _computed(of, config)
        empty = () if call.epilogue.stores_c else (c,)
        ctx.mark_non_differentiable(*empty, *[x for x in written if not x.is_floating_point()])
        return (c, *written)

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        call = ctx.call.of(ctx.saved_tensors)
        again = _gradients_recorded if torch.is_grad_enabled() else _gradients
        return None, None, None, *again(call, grads, ctx.needs_input_grad[3:])


def _computed(call: EpilogueProduct, config: Config | None) -> torch.Tensor:
    return epilogue_product(call.a, call.b, call.kind, call.epilogue, call.every, config, None, call.gate)


def dispatched(call: EpilogueProduct, config: Config | None) -> torch.Tensor:
    """The product that torch's dispatcher sees, of operands that have been checked."""
    lists = OperandNames.of(call.epilogue).lists(call.every)
    value: torch.Tensor = torch.ops.layoutgemm.epilogue_matmul(
        call.a, call.b, *lists, call.epilogue.json, call.kind, config_text(config), True, call.activation
    )
    return value


def _gradients(
    call: EpilogueProduct, grads: Sequence[torch.Tensor | None], wants: Sequence[bool]
) -> list[torch.Tensor | None]:
    """The gradients of the call's tensors: the steps' by torch, then the products'."""
    a, b, *values = call.tensors
    times = differentiable if needs_dispatcher(a, b, *[x for x in grads if x is not None]) else product
    if is_linear(call, wants[2:]):
        columns = call.b.shape[-1]
        sums = a.new_zeros((), dtype=torch.float32).expand(*call.shape[:-1], columns)
    else:
        sums = times(a, b, torch.float32)
    with torch.enable_grad():
        sums = sums.detach().requires_grad_(wants[0] or wants[1])
        values = [x.detach().requires_grad_(want) for x, want in zip(values, wants[2:], strict=True)]
        of = call.of([a, b, *values])
        made = steps_by_torch(call.epilogue, sums, of.every, call.kind, call.gate)
        of_sums, *found = derived(_results(call, made), [sums, *values], grads)
    of_a, of_b = gradients(a, b, (wants[0], wants[1]), of_sums, times)
    return [of_a, of_b, *found]


def _gradients_recorded(
    call: EpilogueProduct, grads: Sequence[torch.Tensor | None], wants: Sequence[bool]
) -> list[torch.Tensor | None]:
    """The same where they are recorded themselves: for derivatives of derivatives."""
    own = [x.view_as(x) for x in call.tensors]  # a and b may be views of one tensor, and each has a gradient
    return derived(_results(call, _formula(call.of(own))), own, grads, create_graph=True)


def _results(call: EpilogueProduct, made: StepResults) -> list[torch.Tensor]:
    """C and what the steps write, in the order of the function's results."""
    return [made.c, *[made.written[name] for name in call.epilogue.writes]]


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


def is_linear(call: EpilogueProduct, wants: Sequence[bool]) -> bool:
    """True if no gradient needs the sums: each step is linear in x, and so is what it is multiplied with."""
    factors = {name for name, want in zip(call.read, wants, strict=True) if want}
    return call.gate is None and all(_is_linear_step(step, factors) for step in call.epilogue.steps)


def _is_linear_step(step: Step, wanted: set[str]) -> bool:
    if isinstance(step, (Scale, VectorScale)):
        return step.name not in wanted
    if isinstance(step, ReductionStep):
        return getattr(step, "operation", "") == "sum"
    return isinstance(step, (Bias, Residual, Aux, Dropout))


__all__ = [
    "NO_SUMS",
    "EpilogueProduct",
    "derivable",
    "derived",
    "dispatched",
    "is_linear",
    "recorded",
    "refusal_of_derivatives",
]
