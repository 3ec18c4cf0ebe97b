"""Rows of a mixture of experts: sorted by expert, multiplied in groups, weighted and summed.

routed(x, index, weights, experts, mlp)   rows -> mlp(rows of each expert, offsets) -> sums of each row's experts
experts_forward(module, x, ...)           that of a module whose parameters are (experts, ...), as transformers calls it
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from ..arguments import shown
from ..errors import OperandError, TensorError
from ..torch_op.checks import autocast_type, cast
from ..torch_op.scaled_grouped import grouped_matmul
from ..torch_op.scaled_grouped.grouped_training import fp8_grouped_matmul

Mlp = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # (rows of all experts, offsets) -> as many rows
_FACTS = ("has_gate", "has_bias", "is_transposed", "has_post_expert_norm", "down_proj", "_apply_gate")


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
    each = mlp(rows[order // index.shape[-1]], offsets)[order.argsort()].view(*index.shape, x.shape[-1])
    factors = weights.masked_fill((index < 0) | (index >= experts), 0).float()
    return (each.float() * factors[..., None]).sum(-2).to(rows.dtype).view(x.shape)


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
