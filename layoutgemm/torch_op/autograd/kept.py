"""Launches of a backward pass, kept for tensors of the same shapes, strides and types.

forward   a prepared product, launched; its `gradients` hold what its backward passes have launched
backward  the same tensors again: an allocation and a launch for each gradient, and no views
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from ..launch import NewResult, PreparedProblem, making
from ..prepared import Config, of_derivatives, prepare, problem_at
from ..solver import solve
from .bias import WeightAndBias, weight_and_bias
from .products import DerivedProduct, derived_product, is_stretched

Gradients = tuple["torch.Tensor | None", "torch.Tensor | None", "torch.Tensor | None"]  # of a, b and a bias
GradientsCall = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], "Gradients | None"]  # of a, b and dC
MAX_KEPT = 64  # backward passes kept for one forward product; beyond, all go


class GradientLaunch(NamedTuple):
    """The launch of one operand's gradient.

    prepared        the product
    shape, strides  of the gradient
    kind            its type
    swaps           whether dC is the product's B, else its A
    """

    prepared: PreparedProblem
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    kind: torch.dtype
    swaps: bool

    def launch(self, other: int) -> NewResult:
        """The launch of dC, a call's third tensor, and of the operand at place `other`."""
        reads = (other, 2) if self.swaps else (2, other)
        return self.prepared.new_result(self.shape, self.strides, self.kind, reads)


class KeptGradients(NamedTuple):
    """The launches of a backward pass; None for an operand whose gradient is not wanted.

    copies  whether dC is made contiguous first, once for both
    bias    the launch of b's gradient that makes the bias's too, or None
    """

    of_a: GradientLaunch | None
    of_b: GradientLaunch | None
    copies: bool
    bias: WeightAndBias | None = None

    def of_transposed_b(self) -> KeptGradients:
        """The same launches for a b that holds the transpose of what was multiplied. Its gradient lies as it does."""
        if self.of_b is None:
            return self
        *batch, rows, columns = self.of_b.shape
        *steps, step, inner = self.of_b.strides
        turned = self.of_b._replace(shape=(*batch, columns, rows), strides=(*steps, inner, step))
        return self._replace(of_b=turned)

    def call(self) -> GradientsCall:
        """The call of a, b and dC that makes the gradients.

        A bias without a launch has None. None in place of all, where no kernel reads an address.
        """
        launches: list[NewResult] = []
        returns: list[int | None] = [None, None, None]
        if self.of_a is not None:
            returns[0] = 0
            launches.append(self.of_a.launch(1))
        if self.of_b is not None:
            returns[1] = len(launches)
            launches.append(self.of_b.launch(0) if self.bias is None else self.bias.launch(*self.of_b[1:4]))
            returns[2] = None if self.bias is None else len(launches)
        both = making(launches, 3, returns)
        if not self.copies:
            return both
        return lambda a, b, grad: both(a, b, grad.contiguous())


def kept_gradients(
    forward: PreparedProblem, a: torch.Tensor, b: torch.Tensor, grad: torch.Tensor, wants: tuple[bool, bool],
    bias: torch.dtype | None,
) -> KeptGradients | None:  # fmt: skip
    """The launches for such tensors, prepared once. None where the gradients are no single launch each.

    forward  the product that was recorded, which keeps them
    wants    whether each operand's gradient is wanted
    bias     the type of the bias whose gradient is wanted, or None
    """
    key = (a.shape, a.stride(), b.shape, b.stride(), grad.shape, grad.stride(), a.dtype, b.dtype, wants, bias)
    try:
        return forward.gradients[key]  # type: ignore[return-value]  # what this function has put there
    except KeyError:
        pass
    if len(forward.gradients) >= MAX_KEPT:
        forward.gradients.clear()
    found = _prepared(a, b, grad, wants, bias, of_derivatives(forward.solution.kernel.choice))
    forward.gradients[key] = found
    return found


def _prepared(
    a: torch.Tensor, b: torch.Tensor, grad: torch.Tensor, wants: tuple[bool, bool], bias: torch.dtype | None,
    config: Config | None,
) -> KeptGradients | None:  # fmt: skip
    """With dC as it lies, or else made contiguous."""
    wants_a, wants_b = wants
    ways = [grad] if grad.is_contiguous() else [grad.contiguous()] if is_stretched(grad) else [grad, grad.contiguous()]
    for given in ways:
        sources = {x.data_ptr() for x in (a, b, given)}
        of_a = derived_product(given, b.mT, a) if wants_a else None
        of_b = derived_product(a.mT, given, b) if wants_b else None
        wanted = [made for made, wants in ((of_a, wants_a), (of_b, wants_b)) if wants]
        if all(_is_one_launch(made, sources, config) for made in wanted):
            both = weight_and_bias(of_b, bias) if config is None else None  # a kernel of wgmma's
            launches = _launch_of(of_a, a, False, config), _launch_of(of_b, b, True, config)
            return KeptGradients(*launches, given is not grad, both)
    return None


def _is_one_launch(made: DerivedProduct | None, sources: set[int], config: Config | None) -> bool:
    """True if the product reads the given tensors in place, by one launch."""
    if made is None or not {made.left.data_ptr(), made.right.data_ptr()} <= sources:
        return False
    solution = solve(problem_at(made.left, made.right, made.left.dtype, config, None))
    return solution.copies == (None, None, None) and len(solution.launches) == 1


def _launch_of(
    made: DerivedProduct | None, like: torch.Tensor, second: bool, config: Config | None
) -> GradientLaunch | None:
    """The launch of a gradient; `second`: dC is the right operand of its product, unless that is transposed."""
    if made is None:
        return None
    prepared = prepare(made.left, made.right, like.dtype, config)
    shape, strides = prepared.shape, prepared.strides
    if made.transposed:
        shape, strides = (*shape[:-2], shape[-1], shape[-2]), (*strides[:-2], strides[-1], strides[-2])
    return GradientLaunch(prepared, shape, strides, like.dtype, second != made.transposed)


def recorder(function: type[torch.autograd.Function]) -> Callable[..., torch.Tensor]:
    """The `apply` of a function, without the code of Python around it: half the time.

    That code serves torch.func, and operands that it has left behind. Both are to be excluded by the caller. The
    backward pass calls the function's `backward` without torch's search for it.

    >>> class Double(torch.autograd.Function):
    ...     forward, backward = staticmethod(lambda ctx, x: 2 * x), staticmethod(lambda ctx, grad: 2 * grad)
    >>> recorder(Double)(torch.ones(2, requires_grad=True))
    tensor([2., 2.], grad_fn=<DoubleBackward>)
    """
    node, base = getattr(function, "_backward_cls", None), getattr(torch._C, "_FunctionBase", None)
    inner = vars(base).get("apply") if isinstance(base, type) else None
    if inner is None or node is None:
        plain: Callable[..., torch.Tensor] = function.apply
        return plain
    node.apply = function.backward  # what autograd's engine calls
    found: Callable[..., torch.Tensor] = inner.__get__(None, function)
    return found
