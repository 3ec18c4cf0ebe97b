"""A gated MLP, whose gate and up projections are one weight and one kernel."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..errors import OperandError
from ..torch_op.bias_activation import GATES
from .linear import DenseLinear

NAMES = ("gate_proj", "up_proj", "down_proj")


class GatedMLP(torch.nn.Module):
    """down(act(x @ gate.T) * (x @ up.T)), as in Llama: two kernels.

    in_features, hidden_features  of x (..., in_features), which is the result's shape too, and of the gate
    activation  "swiglu" or "geglu"
    names       of gate, up and down in the state dict, default those of Llama; each with a weight, and a bias if `bias`
    bias        whether gate, up and down have one

    The parameter `gate_up.weight` is (2 * hidden_features, in_features): the gate's rows, then the other ones. State
    dicts have them apart, under `names`.

    Raises OperandError for an activation that gates nothing.

    >>> mlp = GatedMLP(4, 8, dtype=torch.bfloat16)
    >>> sorted(mlp.state_dict())
    ['down_proj.weight', 'gate_proj.weight', 'up_proj.weight']
    >>> mlp(torch.ones(3, 4).bfloat16()).shape
    torch.Size([3, 4])
    """

    def __init__(
        self, in_features: int, hidden_features: int, activation: str = "swiglu", bias: bool = False,
        device: torch.device | str | None = None, dtype: torch.dtype | None = None, *,
        names: tuple[str, str, str] = NAMES, allow_tf32: bool | None = None,
    ) -> None:  # fmt: skip
        if activation not in GATES:
            raise OperandError(f"activation {activation!r}: of gated products known are {', '.join(map(repr, GATES))}")
        super().__init__()
        self.names = names
        self.gate_up = DenseLinear(
            in_features, 2 * hidden_features, bias, device, dtype, activation=activation, allow_tf32=allow_tf32
        )
        self.down = DenseLinear(hidden_features, in_features, bias, device, dtype, allow_tf32=allow_tf32)
        self.register_state_dict_post_hook(_apart)
        self.register_load_state_dict_pre_hook(_together)

    @classmethod
    def of(
        cls, gate: torch.nn.Linear, up: torch.nn.Linear, down: torch.nn.Linear, activation: str = "swiglu", *,
        names: tuple[str, str, str] = NAMES, allow_tf32: bool | None = None,
    ) -> GatedMLP:  # fmt: skip
        """The module with the weights of three layers; gate and up are copied side by side.

        Raises OperandError for layers whose sizes do not meet, or of which only some have a bias.
        """
        sizes = [(x.in_features, x.out_features) for x in (gate, up, down)]
        if sizes[0] != sizes[1] or sizes[2] != sizes[0][::-1]:
            raise OperandError(f"gate, up and down have (in, out) sizes {sizes}: (n, m), (n, m) and (m, n)")
        with_bias = [x.bias is not None for x in (gate, up, down)]
        if len(set(with_bias)) > 1:
            raise OperandError(f"gate, up and down have a bias: {with_bias}; all or none")
        made = cls(*sizes[0], activation, with_bias[0], device="meta", names=names, allow_tf32=allow_tf32)
        for name in ("weight", "bias")[: 1 + with_bias[0]]:
            first, second = getattr(gate, name), getattr(up, name)
            joined = torch.nn.Parameter(torch.cat([first.detach(), second.detach()]), first.requires_grad)
            setattr(made.gate_up, name, joined)
            setattr(made.down, name, getattr(down, name))
        return made.train(gate.training)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The MLP of x (..., in_features), of its shape."""
        value: torch.Tensor = self.down(self.gate_up(x))
        return value


def _pairs(module: GatedMLP) -> list[tuple[str, str]]:
    """(parameter's name, and the name in state dicts of the down projection's)."""
    return [(name, f"{module.names[2]}.{name}") for name, _ in module.down.named_parameters()]


def _apart(module: GatedMLP, state: dict[str, torch.Tensor], prefix: str, *others: object) -> None:
    """Take gate and up apart in a state dict that was just made."""
    for name, down in _pairs(module):
        joined = state.pop(f"{prefix}gate_up.{name}")
        moved = state.pop(f"{prefix}down.{name}")
        for key, part in zip(module.names, joined.chunk(2)):
            state[f"{prefix}{key}.{name}"] = part
        state[prefix + down] = moved


def _together(
    module: GatedMLP, state: dict[str, torch.Tensor], prefix: str, metadata: Mapping[str, object], strict: bool,
    missing: list[str], *others: object,
) -> None:  # fmt: skip
    """Put gate and up side by side in a state dict that is being loaded."""
    for name, down in _pairs(module):
        keys = [f"{prefix}{key}.{name}" for key in module.names[:2]]
        if all(key in state for key in keys):
            state[f"{prefix}gate_up.{name}"] = torch.cat([state.pop(key) for key in keys])
        if prefix + down in state:
            state[f"{prefix}down.{name}"] = state.pop(prefix + down)
