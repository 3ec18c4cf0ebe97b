"""Experts with packed, float8 or master weights, as grouped products of rows.

weights (experts, out, in)  -> rows of each expert, x[g] @ weights[e].T       PackedGroups, ScaledGroups, MasterGroups
two such layers and a gate  -> down(gate(x @ gate_up.T)), weighted and summed  ExpertsMLP
parameters (experts, ...) of a model of transformers, likewise                  experts_forward
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch.autograd.function import FunctionCtx

from ..arguments import having, shown
from ..errors import OperandError, TensorError
from ..torch_op.checks import autocast_type, cast, check_input, differentiated
from ..torch_op.fp8.api import quantize
from ..torch_op.quantized import QuantizedExperts, quantized_grouped_matmul
from ..torch_op.scaled_grouped import grouped_matmul
from ..torch_op.scaled_grouped.grouped_training import fp8_grouped_matmul
from ..torch_op.scaled_grouped.recipes import BLOCK, SQUARE
from .master import MasterGroups
from .quantized import PackedBuffers
from .scaled import FLOAT8, ScaledBuffers, ScaledLinear, dequantized

Mlp = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # (rows of all experts, offsets) -> as many rows
_FACTS = ("has_gate", "has_bias", "is_transposed", "has_post_expert_norm", "down_proj", "_apply_gate")


class PackedGroups(PackedBuffers):
    """Rows in groups, each times packed weights of its own expert; `QuantizedExperts` has the buffers.

    order  a buffer (experts, in features): the input features in the order in which weights have them; None for theirs

    >>> from layoutgemm import QuantizedFormat, QuantizedWeight
    >>> one = QuantizedExperts.of([QuantizedWeight.quantize(torch.eye(2, 128), QuantizedFormat("int8"))] * 2)
    >>> PackedGroups(one)(torch.ones(3, 128).bfloat16(), torch.tensor([0, 1, 3])).shape
    torch.Size([3, 2])
    """

    def __init__(self, weights: QuantizedExperts, order: torch.Tensor | None = None) -> None:
        super().__init__(weights.units, weights.scales, order)
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
        """The products of rows (rows, in features); group e is rows offsets[e] to offsets[e + 1]."""
        if self.order is not None:
            rows = torch.arange(x.shape[0], device=x.device)
            x = x.gather(1, self.order[torch.searchsorted(offsets[1:], rows, right=True)])
        return quantized_grouped_matmul(x, self.weight, offsets)

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
        """The products of rows (rows, in features); group e is rows offsets[e] to offsets[e + 1]."""
        given = x, self.codes, self.weight_scale, offsets, autocast_type(x) or self.wide
        value: torch.Tensor = _StraightThroughGroups.apply(*given) if differentiated(x) else _scaled_product(*given)
        return value

    def dequantized(self) -> torch.Tensor:
        """The weights (experts, out features, in features) in the type of the dense ones."""
        return _dense(self.codes, self.weight_scale, self.wide)

    def extra_repr(self) -> str:
        """Sizes."""
        return f"{self.experts} x (in_features={self.in_features}, out_features={self.out_features})"


def routed(x: torch.Tensor, index: torch.Tensor, weights: torch.Tensor, experts: int, mlp: Mlp) -> torch.Tensor:
    """The sums for x (..., features), of x's shape.

    index, weights  (rows of x, k): each row's experts, and their factors. An index of no expert counts as 0
    mlp             of rows (rows, features), where expert e has offsets[e] to offsets[e + 1]

    Raises OperandError for indices that are no integers, TensorError for other shapes.
    """
    rows = cast(x.reshape(-1, x.shape[-1]), autocast_type(x))
    if index.dtype not in (torch.int32, torch.int64):
        raise OperandError(f"index is {index.dtype}: a row's experts are int32 or int64")
    if index.ndim != 2 or index.shape[0] != rows.shape[0] or index.shape != weights.shape:
        raise TensorError(
            f"index has shape {list(index.shape)} and weights {list(weights.shape)}: both are ({rows.shape[0]}, k), k "
            f"experts for each row of x of shape {list(x.shape)}"
        )
    of_rows, order = index.reshape(-1).clamp(0, experts - 1).sort(stable=True)
    every = torch.arange(experts + 1, device=of_rows.device, dtype=of_rows.dtype)
    offsets = torch.searchsorted(of_rows, every)
    back = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device=order.device))
    each = mlp(rows[order // index.shape[-1]], offsets)[back].view(*index.shape, x.shape[-1])
    factors = weights.masked_fill((index < 0) | (index >= experts), 0).float()
    return (each * factors[..., None]).sum(-2).to(rows.dtype).view(x.shape)


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

    def product(x: torch.Tensor, name: str, offsets: torch.Tensor) -> torch.Tensor:
        own: torch.Tensor = getattr(module, name)
        b = own if experts.is_transposed else own.mT
        if weights == "master":
            return fp8_grouped_matmul(x, b, offsets)
        return grouped_matmul(x, b, offsets, bias=getattr(module, f"{name}_bias") if experts.has_bias else None)

    def mlp(x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        if experts.has_gate:
            hidden = experts._apply_gate(product(x, "gate_up_proj", offsets))
        else:
            hidden = experts.act_fn(product(x, "up_proj", offsets))
        value = product(hidden, "down_proj", offsets)
        return experts.post_expert_norm(value) if experts.has_post_expert_norm else value

    return routed(hidden_states, top_k_index, top_k_weights, experts.down_proj.shape[0], mlp)


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
