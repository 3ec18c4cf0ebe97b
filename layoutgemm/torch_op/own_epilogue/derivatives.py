"""Derivatives of products with an epilogue. The steps by torch, their products by this library's kernels.

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
from .recorded import by_formula, derived
from .recorded import derivable as formula_alone
from .recorded import recorded as kernel_and_formula


class EpilogueProduct(NamedTuple):
    """A product with an epilogue. `every`: the operands by name, `gate`: the function of a gate, or None."""

    a: torch.Tensor
    b: torch.Tensor
    kind: torch.dtype
    epilogue: Epilogue
    every: Tensors
    shape: tuple[int, ...]
    gate: str | None
    activation: str | None
    config: Config | None = None

    @property
    def held(self) -> tuple[str, ...]:
        """Written operands that results are combined with."""
        return combined(self.epilogue.reductions)

    @property
    def read(self) -> tuple[str, ...]:
        """Names of the tensors on which a result depends. Written ones too, where they are combined with results."""
        return (*self.epilogue.reads, *self.held)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors on which a result depends."""
        return [self.a, self.b, *[self.every[name] for name in self.read]]

    def of(self, tensors: Sequence[torch.Tensor], every: Tensors | None = None) -> EpilogueProduct:
        """The same of other `tensors`, or of other operands."""
        a, b, *values = tensors
        if every is None:
            every = {**self.every, **dict(zip(self.read, values, strict=True))}
        return self._replace(a=a, b=b, every=every)

    @property
    def alone(self) -> EpilogueProduct:
        """The same without tensors. `of` puts them back. torch.func unwraps a call's arguments, and none inside one."""
        every = {name: None if isinstance(x, torch.Tensor) else x for name, x in self.every.items()}
        return self._replace(a=_NOTHING, b=_NOTHING, every=every)

    def launched(self) -> torch.Tensor:
        """The product by a kernel, into the operands that it has."""
        if needs_dispatcher(*self.tensors):
            return dispatched(self, self.config)
        return epilogue_product(self.a, self.b, self.kind, self.epilogue, self.every, self.config, None, self.gate)

    def formula(self) -> StepResults:
        """Float32 sums with derivatives, and the steps by torch."""
        sums = differentiable(self.a, self.b, torch.float32)
        return steps_by_torch(self.epilogue, sums, self.every, self.kind, self.gate)

    def gradients(
        self, grads: Sequence[torch.Tensor | None], wants: Sequence[bool], records: bool
    ) -> list[torch.Tensor | None]:
        """The gradients of `tensors`: the steps' by torch, then the products'."""
        if records:
            return by_formula(self, grads, wants, records)
        a, b, *values = self.tensors
        times = differentiable if needs_dispatcher(a, b, *[x for x in grads if x is not None]) else product
        if is_linear(self, wants[2:]):
            sums = a.new_zeros((), dtype=torch.float32).expand(*self.shape[:-1], b.shape[-1])
        else:
            sums = times(a, b, torch.float32)
        with torch.enable_grad():
            sums = sums.detach().requires_grad_(wants[0] or wants[1])
            values = [x.detach().requires_grad_(want) for x, want in zip(values, wants[2:], strict=True)]
            every = self.of([a, b, *values]).every
            made = steps_by_torch(self.epilogue, sums, every, self.kind, self.gate)
            results = [made.c, *[made.written[name] for name in self.epilogue.writes]]
            of_sums, *found = derived(results, [sums, *values], grads)
        return [*gradients(a, b, (wants[0], wants[1]), of_sums, times), *found]


_NOTHING = torch.empty(0)
NO_SUMS = "two products; the steps are linear, and need no sums again"


def _check(call: EpilogueProduct) -> None:
    """Raise TensorError for a product whose derivative is recorded, and which has none."""
    if text := refusal_of_derivatives(call.epilogue, call.a.dtype, call.kind):
        raise TensorError(text)


def refusal_of_derivatives(epilogue: Epilogue | None, multiplied: torch.dtype, kind: torch.dtype) -> str:
    """Why a product of that type, with an epilogue or without, has no derivative. Or ""."""
    if multiplied.itemsize < 2:
        return f"a is {multiplied}, and products of 8 bits have no gradient: give detached tensors"
    if epilogue is not None and (text := refusal_of_derivative(epilogue)):
        return f"an operand requires grad, and the epilogue has no derivative: {text}"
    return f"the product is {kind}: results of 8 bits have no gradient" if kind.itemsize < 2 else ""


def derivable(call: EpilogueProduct, config: Config | None) -> torch.Tensor:
    """The product by operators that have derivatives of every order. What the steps write is copied to its place."""
    _check(call)
    return formula_alone(call)


def recorded(call: EpilogueProduct, config: Config | None) -> torch.Tensor:
    """The product by a kernel, with its gradients. Raises TensorError where it has none."""
    _check(call)
    return kernel_and_formula(call._replace(config=config))


def dispatched(call: EpilogueProduct, config: Config | None) -> torch.Tensor:
    """The product that torch's dispatcher sees, of operands that have been checked."""
    lists = OperandNames.of(call.epilogue).lists(call.every)
    value: torch.Tensor = torch.ops.layoutgemm.epilogue_matmul(
        call.a, call.b, *lists, call.epilogue.json, call.kind, config_text(config), True, call.activation
    )
    return value


def is_linear(call: EpilogueProduct, wants: Sequence[bool]) -> bool:
    """True if no gradient needs the sums. Each step is linear in x, and so is what it is multiplied with."""
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
