"""Experts with packed, float8 or master weights, as grouped products of rows.

weights (experts, out, in)  -> rows of each expert, x[g] @ weights[e].T       PackedGroups, ScaledGroups, MasterGroups
two such layers and a gate  -> down(gate(x @ gate_up.T)), weighted and summed  ExpertsMLP
parameters (experts, ...) of a model of transformers, likewise                  experts_forward
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch.autograd.function import FunctionCtx

from ..arguments import having, shown
from ..errors import OperandError
from ..torch_op.autograd.activation import by_autograd
from ..torch_op.checks import autocast_type, check_input, differentiated, needs_dispatcher
from ..torch_op.fp8.api import quantize
from ..torch_op.quantized import QuantizedExperts, quantized_grouped_matmul
from ..torch_op.quantized.experts import experts_of_rows
from ..torch_op.scaled_grouped import grouped_matmul
from ..torch_op.scaled_grouped.grouped_training import fp8_grouped_matmul
from ..torch_op.scaled_grouped.recipes import BLOCK, SQUARE
from .master import MasterGroups
from .quantized import PackedBuffers, check_order
from .recorded_experts import recorded_alone, recorded_experts
from .routing import route_of, routed, shaped_as
from .scaled import FLOAT8, ScaledBuffers, ScaledLinear, dequantized

_FACTS = ("has_gate", "has_bias", "is_transposed", "has_post_expert_norm", "down_proj", "_apply_gate")


class PackedGroups(PackedBuffers):
    """Rows in groups, each times packed weights of its own expert; `QuantizedExperts` has the buffers.

    order  a buffer (experts, in features): the input features in the order in which weights have them; None for theirs
    bias   a parameter (experts, out features), added to the products, or None

    >>> from layoutgemm import QuantizedFormat, QuantizedWeight
    >>> one = QuantizedExperts.of([QuantizedWeight.quantize(torch.eye(2, 128), QuantizedFormat("int8"))] * 2)
    >>> PackedGroups(one)(torch.ones(3, 128).bfloat16(), torch.tensor([0, 1, 3])).shape
    torch.Size([3, 2])
    """

    def __init__(
        self, weights: QuantizedExperts, order: torch.Tensor | None = None, bias: torch.nn.Parameter | None = None
    ) -> None:
        super().__init__(weights.units, weights.scales, order)
        if order is not None:
            check_order(order, weights.k)
            if order.shape != (weights.experts, weights.k):
                raise OperandError(f"order has shape {[*order.shape]}: {[weights.experts, weights.k]}")
        if bias is not None and bias.shape != (weights.experts, weights.n):
            raise OperandError(f"bias has shape {[*bias.shape]}: {[weights.experts, weights.n]}")
        self.bias = bias
        self.format, self.activations = weights.format, weights.activations
        self.experts, self.in_features = weights.experts, weights.k
        self.out_features = self.weight_rows = weights.n

    @property
    def weight(self) -> QuantizedExperts:
        """The packed weights, of input features in `order`."""
        return QuantizedExperts(
            self.format, self.units, self.scales, self.out_features, self.in_features, self.activations
        )

    def forward(self, x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """The products of rows (rows, in features). Group e is rows offsets[e] to offsets[e + 1]."""
        if self.order is not None:
            x = x.gather(1, self.order[experts_of_rows(offsets, x.shape[0])])
        return quantized_grouped_matmul(x, self.weight, offsets, bias=self.bias)

    def dequantized(self) -> torch.Tensor:
        """The weights (experts, out features, in features) in the activations' type."""
        dense = torch.stack([self.weight.expert(e).dense(self.activations) for e in range(self.experts)])
        return dense if self.order is None else dense.gather(2, self.order.argsort(1)[:, None].expand_as(dense))

    def extra_repr(self) -> str:
        """Sizes and format."""
        return f"{self.experts} x (in_features={self.in_features}, out_features={self.out_features}), {self.format}"


class ScaledGroups(ScaledBuffers):
    """Rows in groups, each times float8 weights of its own expert, with block scales.

    layers  of all experts, alike in sizes and type, without biases and activations

    The gradient of x is by the weights, as `ScaledLinear` has it.

    >>> layer = ScaledLinear(128, 2, bias=False)
    >>> ScaledGroups([layer, layer])(torch.ones(3, 128).bfloat16(), torch.tensor([0, 1, 3])).shape
    torch.Size([3, 2])
    """

    def __init__(self, layers: Sequence[ScaledLinear]) -> None:
        codes, scales = [each.codes for each in layers], [each.weight_scale for each in layers]
        super().__init__(torch.stack(codes), torch.stack(scales), layers[0].wide)
        self.experts, self.in_features, self.out_features = len(layers), layers[0].in_features, layers[0].out_features

    def forward(self, x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """The products of rows (rows, in features). Group e is rows offsets[e] to offsets[e + 1]."""
        given = x, self.codes, self.weight_scale, offsets, autocast_type(x) or self.wide
        value: torch.Tensor = _StraightThroughGroups.apply(*given) if differentiated(x) else _scaled_product(*given)
        return value

    def dequantized(self) -> torch.Tensor:
        """The weights (experts, out features, in features) in the type of the dense ones."""
        return _dense(self.codes, self.weight_scale, self.wide)

    def extra_repr(self) -> str:
        """Sizes."""
        return f"{self.experts} x (in_features={self.in_features}, out_features={self.out_features})"


class ExpertsMLP(torch.nn.Module):
    """Gated MLPs of experts: each row's own experts, weighted and summed.

    first  (experts, 2 * hidden, features): rows of the gate, then the other ones; without a gate (experts, hidden, ...)
    down   (experts, features, hidden)
    gate   from what `first` gives, (rows, 2 * hidden) or (rows, hidden), to (rows, hidden)

    Raises OperandError for layers whose sizes do not meet.

    >>> first, down = (ScaledGroups([ScaledLinear(128, n, bias=False)] * 3) for n in (256, 128))
    >>> mlp = ExpertsMLP(first, down, lambda x: x[:, :128] * x[:, 128:])
    >>> mlp(torch.ones(2, 128).bfloat16(), torch.tensor([[0, 2], [1, 0]]), torch.ones(2, 2)).shape
    torch.Size([2, 128])
    """

    def __init__(
        self, first: PackedGroups | ScaledGroups | MasterGroups, down: PackedGroups | ScaledGroups | MasterGroups,
        gate: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:  # fmt: skip
        for name, layer in (("first", first), ("down", down)):
            having(layer, name, "a layer of experts", "experts", "in_features", "out_features", error=OperandError)
        sizes = [(x.experts, x.in_features, x.out_features) for x in (first, down)]
        if sizes[0][:2] != (sizes[1][0], sizes[1][2]) or sizes[0][2] not in (sizes[1][1], 2 * sizes[1][1]):
            raise OperandError(f"first and down have (experts, in, out) sizes {sizes}: (e, n, m or 2m) and (e, m, n)")
        for name, layer in (("first", first), ("down", down)):
            if isinstance(layer, MasterGroups) and layer.multiple > 1:
                raise OperandError(f"{name}: multiple = {layer.multiple}, and an expert's rows begin anywhere")
        super().__init__()
        self.first, self.down, self.gate = first, down, gate

    def forward(self, x: torch.Tensor, index: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """The sums for x (..., features), of x's shape.

        index, weights  (rows of x, k): each row's experts, and their factors. An index of no expert counts as 0
        """
        check_input(x, self.first.in_features)

        def mlp(rows: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
            value: torch.Tensor = self.down(self.gate(self.first(rows, offsets)), offsets)
            return value

        return routed(x, index, weights, self.first.experts, mlp)


class OwnGate(torch.nn.Module):
    """The gate of another module of experts, which is kept without its parameters.

    own    a copy of the module: its `_apply_gate` of [gate | up] if it has one, else its `act_fn`
    gated  whether rows of the gate and of the other half come side by side
    """

    def __init__(self, module: torch.nn.Module, gated: bool) -> None:
        super().__init__()
        self.own, self.gated = copy.copy(module), gated
        self.own._parameters, self.own._modules = {}, dict(module._modules)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The hidden rows, from the products of the first layer."""
        if not self.gated:
            value: torch.Tensor = self.own.act_fn(x)
            return value
        if hasattr(self.own, "_apply_gate"):
            value = self.own._apply_gate(x)
            return value
        gate, up = x.chunk(2, -1)
        value = self.own.act_fn(gate) * up
        return value


class _Experts(Protocol):
    """The facts of experts that transformers' `use_experts_implementation` decorates."""

    has_gate: bool
    has_bias: bool
    is_transposed: bool
    has_post_expert_norm: bool
    down_proj: torch.Tensor

    def act_fn(self, x: torch.Tensor, /) -> torch.Tensor: ...

    def _apply_gate(self, x: torch.Tensor, /) -> torch.Tensor: ...

    def post_expert_norm(self, x: torch.Tensor, /) -> torch.Tensor: ...


def experts_forward(
    module: torch.nn.Module, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor,
    *, weights: str = "own",
) -> torch.Tensor:  # fmt: skip
    """The experts of a module of transformers, in two grouped products.

    transformers calls it by name: `ALL_EXPERTS_FUNCTIONS.register("layoutgemm", experts_forward)`, then
    `model.set_experts_implementation("layoutgemm")`. Parameters, state dict and routing stay.

    weights  "own" multiplies in the parameters' type, "master" in fp8, and x's gradient too

    Raises OperandError for a module without the facts of such experts, and for biases of fp8 products.
    """
    if weights not in ("own", "master"):
        raise OperandError(f"weights {shown(weights)}: 'own' or 'master'")
    if missing := [name for name in _FACTS if not hasattr(module, name)]:
        raise OperandError(
            f"a {type(module).__qualname__} has no {missing[0]}: experts of transformers have it, by "
            "use_experts_implementation"
        )
    experts: _Experts = module  # type: ignore[assignment]
    if weights == "master" and experts.has_bias:
        raise OperandError(f"the experts of a {type(module).__qualname__} have biases, and fp8 products none: 'own'")

    def matrices(name: str) -> torch.Tensor:
        own: torch.Tensor = getattr(module, name)
        return own if experts.is_transposed else own.mT

    first, down = matrices("gate_up_proj" if experts.has_gate else "up_proj"), matrices("down_proj")
    apart = weights == "master" or experts.has_bias or experts.has_post_expert_norm
    if not apart and not needs_dispatcher(hidden_states, top_k_index, top_k_weights, first, down):
        return _by_index(experts, hidden_states, top_k_index, top_k_weights, first, down)

    gate = None if apart or not experts.has_gate or torch.compiler.is_compiling() else usual_gate(experts)
    if gate is not None and recorded_alone(hidden_states, top_k_index, top_k_weights, first, down):
        rows = hidden_states.reshape(-1, hidden_states.shape[-1])
        return shaped_as(recorded_experts(rows, top_k_index, top_k_weights, first, down, gate), hidden_states)

    def product(x: torch.Tensor, b: torch.Tensor, name: str, offsets: torch.Tensor) -> torch.Tensor:
        if weights == "master":
            return fp8_grouped_matmul(x, b, offsets)
        return grouped_matmul(x, b, offsets, bias=getattr(module, f"{name}_bias") if experts.has_bias else None)

    def mlp(x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        if experts.has_gate:
            both = product(x, first, "gate_up_proj", offsets)
            gate = None if torch.compiler.is_compiling() else usual_gate(experts)
            hidden = experts._apply_gate(both) if gate is None else by_autograd(both, gate)
        else:
            hidden = experts.act_fn(product(x, first, "up_proj", offsets))
        value = product(hidden, down, "down_proj", offsets)
        return experts.post_expert_norm(value) if experts.has_post_expert_norm else value

    return routed(hidden_states, top_k_index, top_k_weights, down.shape[0], mlp)


def _by_index(
    experts: _Experts, x: torch.Tensor, index: torch.Tensor, weights: torch.Tensor, first: torch.Tensor,
    down: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """The sums of plain products: the first reads rows of x by index and gates, the second weighs and returns rows."""
    rows = x.reshape(-1, x.shape[-1])
    route = route_of(x, rows.shape[0], index, weights, down.shape[0])
    gate = usual_gate(experts) if experts.has_gate else None
    hidden = grouped_matmul(rows, first, route.offsets, rows=route.sources, activation=gate)
    if gate is None:
        hidden = experts._apply_gate(hidden) if experts.has_gate else experts.act_fn(hidden)
    each = hidden.new_empty(index.numel(), down.shape[-1])  # the order names each row once
    factors = route.sorted_factors
    grouped_matmul(hidden, down, route.offsets, out_rows=route.order, row_weights=factors, out=each)
    return shaped_as(each.view(*index.shape, x.shape[-1]).sum(-2), x)


def usual_gate(experts: object) -> str | None:
    """The kernels' gate that transformers' own `_apply_gate` computes with the module's `act_fn`, or None.

    >>> usual_gate(torch.nn.Linear(1, 1)) is None
    True
    """
    moe = sys.modules.get("transformers.integrations.moe")
    usual = getattr(moe, "_default_apply_gate", None)
    if usual is None or getattr(type(experts), "_apply_gate", None) is not usual:
        return None
    act = getattr(experts, "act_fn", None)
    if not isinstance(act, torch.nn.Module) or act._forward_hooks or act._forward_pre_hooks:
        return None
    theirs = sys.modules.get("transformers.activations")
    if type(act) in (torch.nn.SiLU, getattr(theirs, "SiLUActivation", None)):
        return "swiglu"
    plain = type(act) is torch.nn.GELU and act.approximate == "none"
    wrapped = type(act) is getattr(theirs, "GELUActivation", None) and act.act is torch.nn.functional.gelu
    return "geglu" if plain or wrapped else None


def _scaled_product(
    x: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor, offsets: torch.Tensor, kind: torch.dtype
) -> torch.Tensor:
    eight, of_rows = quantize(x, BLOCK, power_of_two=True)
    return grouped_matmul(
        eight, codes.view(FLOAT8).mT, offsets, scale_a=of_rows, scale_b=scale, recipe_a=BLOCK, recipe_b=SQUARE,
        out_dtype=kind,
    )  # fmt: skip


def _dense(codes: torch.Tensor, scale: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    return torch.stack([dequantized(one, each, kind) for one, each in zip(codes.view(FLOAT8), scale)])


_Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.dtype]


class _StraightThroughGroups(torch.autograd.Function):
    """The product with the gradient of x: rounding x to 8 bits counts as the identity."""

    @staticmethod
    def forward(
        x: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor, offsets: torch.Tensor, kind: torch.dtype
    ) -> torch.Tensor:
        return _scaled_product(x, codes, scale, offsets, kind)

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: _Inputs, output: torch.Tensor) -> None:
        ctx.save_for_backward(*inputs[1:4])
        ctx.like = inputs[0].dtype

    @staticmethod
    def backward(ctx: FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        codes, scale, offsets = ctx.saved_tensors
        dense = _dense(codes, scale, grad.dtype)
        return grouped_matmul(grad, dense, offsets).to(ctx.like), None, None, None, None
