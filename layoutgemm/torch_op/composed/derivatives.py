"""Derivatives of composed products.

Those of a sum of products come by products, others of the parts as torch computes them.

    forward    the kernel, what an epilogue writes into new tensors
    backward   of a sum of products, the products of each pair; else float32 sums again, and the parts by torch
    otherwise  `derivable`, of every order: forward mode, torch.func, derivatives of derivatives

Where an order leaves tiles out, gradients of C are zero there; what an epilogue writes keeps its values there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import FunctionCtx

from ...errors import TensorError
from ...kernels.epilogue.chain import Epilogue
from ...kernels.epilogue.reduce import combined
from ...kernels.sm90.triangular.operands import Triangles
from ..autograd.products import check_derivable, dense, gradients
from ..checks import derived_by_func, differentiated, has_tangent, needs_dispatcher
from ..compute import product
from ..operators import Places, VmapInfo, bias_gradient, differentiable, in_front
from ..own_epilogue.derivatives import refusal_of_derivatives
from ..own_epilogue.formula import StepResults, steps_by_torch
from ..own_epilogue.recorded import SummedProduct, by_formula
from ..own_epilogue.recorded import derivable as formula_alone
from ..own_epilogue.recorded import recorded as kernel_and_formula
from ..prepared import Config, config_text
from ..scaled_grouped.recipes import BLOCK, SCALES, SQUARE, TENSOR
from .checks import ComposedCall, checked, sums_gate
from .parts import BIAS, AskedParts, lists_of, parts_of_text, parts_text
from .product import computed, factors, finished, placed, together


class _VisitedPart(torch.autograd.Function):
    """The operator `visited_part` with its derivatives, which are itself.

    call     without tensors, which follow in their order: functorch unwraps arguments, and nothing inside of one
    """

    @staticmethod
    def forward(x: torch.Tensor, call: ComposedCall, config: Config | None, *tensors: torch.Tensor) -> torch.Tensor:
        of = with_tensors(call, tensors)
        read, _, numbers, wholes = lists_of(of.parts, {**dict.fromkeys(of.parts.written), **of.values})
        value: torch.Tensor = torch.ops.layoutgemm.visited_part(
            x, of.a, of.b, read, numbers, wholes, of.parts.text, of.kind, config_text(config)
        )
        return value

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: Places, output: torch.Tensor) -> None:
        _, call, config, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        ctx.facts = call, config

    @staticmethod
    def backward(ctx: FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        tensors = ctx.saved_tensors
        return (_VisitedPart.apply(grad, *ctx.facts, *tensors), None, None, *[None] * len(tensors))

    @staticmethod
    def jvp(ctx: FunctionCtx, tangent: torch.Tensor, *others: None) -> torch.Tensor:
        value: torch.Tensor = _VisitedPart.apply(tangent, *ctx.facts, *ctx.saved_tensors)
        return value

    @staticmethod
    def vmap(
        info: VmapInfo, in_dims: Places, x: torch.Tensor, call: ComposedCall, config: Config | None,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, int]:  # fmt: skip
        one = [y if at is None else y.select(at, 0) for y, at in zip(tensors, in_dims[3:], strict=True)]
        return _VisitedPart.apply(in_front(x, in_dims[0], info.batch_size), call, config, *one), 0


def visited_part(x: torch.Tensor, call: ComposedCall, config: Config | None) -> torch.Tensor:
    """x where the call's order visits tiles, zeros elsewhere; with its derivatives."""
    if call.parts.order is None:
        return x
    value: torch.Tensor = _VisitedPart.apply(
        x, without_tensors(call), config, *[t.detach() for t in dependencies(call)]
    )
    return value


def held(call: ComposedCall) -> tuple[str, ...]:
    """Names of the written operands whose values before the launch are part of a result."""
    epilogue = call.parts.epilogue
    if epilogue is None:
        return ()
    left = [x.name for x in epilogue.given if x.written and x.axes == "mn" and call.parts.order is not None]
    return (*combined(epilogue.reductions), *left)


def dependencies(call: ComposedCall) -> list[torch.Tensor]:
    """The tensors on which a result depends, in the order of `with_tensors`."""
    return [*call.a, *call.b, *[call.values[name] for name in (*call.parts.read, *held(call))]]


def without_tensors(call: ComposedCall) -> ComposedCall:
    """The call with places in place of its tensors: `with_tensors` puts them back."""
    tensors = {*call.parts.read, *call.parts.written}
    values = {name: x for name, x in call.values.items() if name not in tensors}
    return call._replace(a=[_NOTHING] * len(call.a), b=[_NOTHING] * len(call.b), values=values)


def with_tensors(call: ComposedCall, tensors: Sequence[torch.Tensor]) -> ComposedCall:
    """The call with these tensors in place of its own, in their order."""
    of_a, of_b = len(call.a), len(call.b)
    values = dict(zip((*call.parts.read, *held(call)), tensors[of_a + of_b :], strict=True))
    a, b = list(tensors[:of_a]), list(tensors[of_a : of_a + of_b])
    return call._replace(a=a, b=b, values={**call.values, **values})


_NOTHING = torch.empty(0)


# -------------------------------------------------------------------------------------------------------- products


def dispatched(call: ComposedCall, config: Config | None) -> torch.Tensor:
    """The product that torch's dispatcher sees, of operands that have been checked."""
    read, written, numbers, wholes = lists_of(call.parts, call.values)
    if written:
        value: torch.Tensor = torch.ops.layoutgemm.composed_matmul_writing(
            call.a, call.b, read, written, numbers, wholes, call.parts.text, call.kind, config_text(config), True
        )
        return value
    value = torch.ops.layoutgemm.composed_matmul(
        call.a, call.b, read, numbers, wholes, call.parts.text, call.kind, config_text(config), True
    )
    return value


@dataclass(frozen=True, eq=False)
class ComposedFormula(SummedProduct):
    """A checked product with several parts, as `own_epilogue.recorded` derives it."""

    call: ComposedCall
    config: Config | None

    @property
    def epilogue(self) -> Epilogue | None:
        """The steps, if there are any."""
        return self.call.parts.epilogue

    @property
    def every(self) -> dict[str, Any]:
        """The operands by name."""
        return self.call.values

    @property
    def held(self) -> tuple[str, ...]:
        """Names of the written operands whose values before the launch are part of a result."""
        return held(self.call)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors on which a result depends."""
        return dependencies(self.call)

    @property
    def alone(self) -> ComposedFormula:
        """The same without tensors."""
        return ComposedFormula(without_tensors(self.call), self.config)

    def of(self, tensors: Sequence[torch.Tensor], every: dict[str, Any] | None = None) -> ComposedFormula:
        """The same of other tensors, or of other operands."""
        call = with_tensors(self.call, tensors)
        return ComposedFormula(call if every is None else call._replace(values=every), self.config)

    def launched(self) -> torch.Tensor:
        """The product by a kernel, into the operands that it has."""
        if needs_dispatcher(*self.tensors):
            return dispatched(self.call, self.config)
        return computed(self.call, self.config, None)

    def formula(self) -> StepResults:
        """C in its place, and what the epilogue writes, by operators that have derivatives."""
        return _formula(self.call, self.config)

    def gradients(
        self, grads: Sequence[torch.Tensor | None], wants: Sequence[bool], records: bool
    ) -> list[torch.Tensor | None]:
        """The gradients of `tensors`. Of a sum of products by operators that are recorded where it is asked for."""
        if self.call.parts.linear:
            return _linear_gradients(self.call, self.config, grads[0], wants)
        return by_formula(self, grads, wants, records)


def derivable(call: ComposedCall, config: Config | None) -> torch.Tensor:
    """The product by operators that have derivatives: float32 sums, and the parts by torch."""
    _check(call)
    return formula_alone(ComposedFormula(call, config))


def recorded(call: ComposedCall, config: Config | None) -> torch.Tensor:
    """The product by a kernel, with its gradients. Raises TensorError where it has none."""
    _check(call)
    return kernel_and_formula(ComposedFormula(call, config))


def _check(call: ComposedCall) -> None:
    multiplied = multiplied_type(*call.a, *call.b)
    if text := refusal_of_derivatives(call.parts.epilogue, multiplied, call.kind):
        raise TensorError(text)


def multiplied_type(*matrices: torch.Tensor) -> torch.dtype:
    """The type of matrices with derivatives; float32, which every product derives, for those without any."""
    derived = [x for x in matrices if differentiated(x) or has_tangent(x)]
    return derived[0].dtype if derived else torch.float32


def _formula(call: ComposedCall, config: Config | None) -> StepResults:
    """C in its place, and what the epilogue writes, by operators that have derivatives."""
    first = len(call.b) // len(call.a)  # the products of the first pair
    sums = [_sum(call, a, b, i < first) for i, (a, b) in enumerate(factors(call))]
    value, parts = together(call, sums), call.parts
    if parts.epilogue is None:
        return StepResults(placed(call, visited_part(finished(call, value), call, config), None, None), {})
    inside = None
    if parts.order is not None:
        inside = visited_part(value.detach().new_ones(call.shape), call, config) != 0
    made = steps_by_torch(parts.epilogue, value, call.values, call.kind, sums_gate(call), inside)
    c = placed(call, made.c, inside, None) if parts.stores_c else value.new_empty(0, dtype=call.kind)
    return made._replace(c=c)


def _sum(call: ComposedCall, a: torch.Tensor, b: torch.Tensor, first: bool) -> torch.Tensor:
    """a @ b in float32 with its derivatives; torch.func derives the full product of the triangles.

    first  whether they are the first pair's, of which triangles are
    """
    triangles, promotes = call.parts.triangles if first else None, call.parts.promotes
    if promotes is not None:
        tables = [call.values[name] for name in SCALES if name in call.parts.own]
        scale_a, scale_b = (*tables, None, None)[:2] if tables else (a.new_ones(1, dtype=torch.float32), None)
        names = [SQUARE if group > 1 else BLOCK for group in promotes] or [TENSOR]
        sums: torch.Tensor = torch.ops.layoutgemm.scaled_matmul(
            a, scale_a, b, scale_b, None, None, torch.float32, *[*names, ""][:2], False
        )
        return sums
    if triangles is None:
        return differentiable(a, b, torch.float32)
    if derived_by_func() or has_tangent(a) or has_tangent(b):
        return differentiable(of_triangle(a, triangles.a), of_triangle(b, triangles.b), torch.float32)
    return _product_of_triangles(a, b, AskedParts(triangles=triangles), torch.float32)


def of_triangle(x: torch.Tensor, half: str | None) -> torch.Tensor:
    """The half of a matrix, with zeros elsewhere; all of it for None.

    >>> of_triangle(torch.ones(2, 2), "lower").tolist(), of_triangle(torch.ones(1, 2), None).tolist()
    ([[1.0, 0.0], [1.0, 1.0]], [[1.0, 1.0]])
    """
    return x if half is None else x.tril() if half == "lower" else x.triu()


def _product_of_triangles(a: torch.Tensor, b: torch.Tensor, asked: AskedParts, kind: torch.dtype) -> torch.Tensor:
    """a @ b of triangular operands, or a triangle of it, by this package's own operator."""
    call = checked([a], [b], parts_of_text(parts_text(asked, 1, (), ())), {}, None, kind, True)
    if needs_dispatcher(a, b):
        return dispatched(call, None)
    return computed(call, None, None)


def _gradients_of_triangles(
    call: ComposedCall, grad: torch.Tensor, wants: tuple[bool, bool]
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """The gradients of A and B: a triangular operand has one triangle of it, by that triangle's tiles alone."""
    halves, (a, b) = call.parts.triangles, (call.a[0], call.b[0])
    assert halves is not None
    check_derivable(a)
    grad = dense(grad.to(a.dtype))
    of_a = _triangle_of_product(grad, b.mT, halves.a, (None, _TURNED[halves.b])) if wants[0] else None
    of_b = _triangle_of_product(a.mT, grad, halves.b, (_TURNED[halves.a], None)) if wants[1] else None
    return of_a, of_b


_TURNED = {None: None, "lower": "upper", "upper": "lower"}


def _triangle_of_product(
    a: torch.Tensor, b: torch.Tensor, half: str | None, triangles: tuple[str | None, str | None]
) -> torch.Tensor:
    """A triangle of a @ b, or all of it, with triangular operands or full ones."""
    if half is None and not any(triangles):
        return differentiable(a, b, a.dtype) if needs_dispatcher(a, b) else product(a, b, a.dtype)
    asked = AskedParts(half, triangles=Triangles(*triangles) if any(triangles) else None)
    return of_triangle(_product_of_triangles(a, b, asked, a.dtype), half)


def _linear_gradients(
    call: ComposedCall, config: Config | None, grad: torch.Tensor | None, wants: Sequence[bool]
) -> list[torch.Tensor | None]:
    """The gradients of a sum of products: those of each pair, and the bias's."""
    if grad is None:
        return [None] * len(wants)
    grad = visited_part(grad, call, config)
    times = differentiable if needs_dispatcher(grad, *call.a, *call.b) else product
    count = len(call.a)
    found = [
        gradients(a, b, (wants[i], wants[count + i]), grad, times)
        if i or call.parts.triangles is None
        else _gradients_of_triangles(call, grad, (wants[0], wants[count]))
        for i, (a, b) in enumerate(zip(call.a, call.b))
    ]
    bias: torch.Tensor | None = None
    if BIAS in call.parts.own and wants[2 * count + call.parts.read.index(BIAS)]:
        bias = bias_gradient(grad, call.values[BIAS].dtype)
    rest = [bias if name == BIAS and BIAS in call.parts.own else None for name in call.parts.read]
    return [*[of_a for of_a, _ in found], *[of_b for _, of_b in found], *rest]
