"""A gated MLP, whose gate and up projections are one weight and one kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from ..arguments import shown
from ..errors import OperandError
from ..torch_op.bias_activation import GATES
from ..torch_op.checks import PLAIN
from ..torch_op.scaled_grouped import DEPTH
from .linear import DenseLinear, check_features, check_layer
from .master import MasterLinear
from .scaled import ScaledLinear, ScaledWeight

Layer = DenseLinear | ScaledLinear | MasterLinear
WEIGHTS: dict[str, type[Layer]] = {"own": DenseLinear, "fp8": ScaledLinear, "master": MasterLinear}
SCALES = "weight_scale_inv"  # of float8 weights in state dicts
NAMES = ("gate_proj", "up_proj", "down_proj")


class GatedMLP(torch.nn.Module):
    """down(act(x @ gate.T) * (x @ up.T)), as in Llama: two kernels.

    in_features, hidden_features  of x (..., in_features), which is the result's shape too, and of the gate
    activation  "swiglu" or "geglu"
    names       of gate, up and down in the state dict, default those of Llama; each with a weight, and a bias if `bias`
    bias        whether gate, up and down have one
    weights     "own", or the layers of `layoutgemm.nn`: "fp8" of ScaledLinear, "master" of MasterLinear
    allow_tf32  of weights="own"

    The parameter `gate_up.weight` is (2 * hidden_features, in_features): the gate's rows, then the other ones. State
    dicts have them apart, under `names`. Float8 weights are loaded with the scales of each where hidden_features is a
    multiple of 128: else the scales of 128 rows are not those of gate and up side by side.

    Raises OperandError for an activation that gates nothing, unknown weights, and scales that do not lie side by side.

    >>> mlp = GatedMLP(4, 8, dtype=torch.bfloat16)
    >>> sorted(mlp.state_dict())
    ['down_proj.weight', 'gate_proj.weight', 'up_proj.weight']
    >>> mlp(torch.ones(3, 4).bfloat16()).shape
    torch.Size([3, 4])
    """

    def __init__(
        self, in_features: int, hidden_features: int, activation: str = "swiglu", bias: bool = False,
        device: torch.device | str | None = None, dtype: torch.dtype | None = None, *,
        names: tuple[str, str, str] = NAMES, allow_tf32: bool | None = None, weights: str = "own",
    ) -> None:  # fmt: skip
        check_features(in_features=in_features, hidden_features=hidden_features)
        if not isinstance(activation, str) or activation not in GATES:
            raise OperandError(
                f"activation {shown(activation)}: of gated products known are {', '.join(map(repr, GATES))}"
            )
        kind, _ = _layers(weights, allow_tf32)
        super().__init__()
        self.names, self.hidden_features = names, hidden_features
        self.gate_up = kind(in_features, 2 * hidden_features, bias, device, dtype, activation=activation)
        self.down = kind(hidden_features, in_features, bias, device, dtype)
        self.register_state_dict_post_hook(_apart)
        self.register_load_state_dict_pre_hook(_together)
        self.register_load_state_dict_post_hook(_missing_by_name)

    @classmethod
    def of(
        cls, gate: torch.nn.Linear, up: torch.nn.Linear, down: torch.nn.Linear, activation: str = "swiglu", *,
        names: tuple[str, str, str] = NAMES, allow_tf32: bool | None = None, weights: str = "own",
    ) -> GatedMLP:  # fmt: skip
        """The module with the weights of three layers. gate and up are copied side by side, and quantised for "fp8".

        Raises OperandError for layers whose sizes do not meet, or of which only some have a bias.
        """
        for name, layer in zip(("gate", "up", "down"), (gate, up, down), strict=True):
            check_layer(layer, f"{name} of GatedMLP.of")
        sizes = [(x.in_features, x.out_features) for x in (gate, up, down)]
        if sizes[0] != sizes[1] or sizes[2] != sizes[0][::-1]:
            raise OperandError(f"gate, up and down have (in, out) sizes {sizes}: (n, m), (n, m) and (m, n)")
        with_bias = [x.bias is not None for x in (gate, up, down)]
        if len(set(with_bias)) > 1:
            raise OperandError(f"gate, up and down have a bias: {with_bias}; all or none")
        _, of = _layers(weights, allow_tf32)
        dtype = gate.weight.dtype
        made = cls(*sizes[0], activation, with_bias[0], device="meta", dtype=dtype, names=names, weights=weights)
        both = torch.nn.Linear(sizes[0][0], 2 * sizes[0][1], with_bias[0], device="meta", dtype=dtype)
        for name in ("weight", "bias")[: 1 + with_bias[0]]:
            first, second = getattr(gate, name), getattr(up, name)
            setattr(both, name, torch.nn.Parameter(torch.cat([first.detach(), second.detach()]), first.requires_grad))
        made.gate_up = of(both, activation=activation)
        made.down = of(down)
        return made.train(gate.training)

    def __getattr__(self, name: str) -> Any:
        """Layers by their names in a state dict, as torch.distributed.checkpoint asks for them."""
        own = self.__dict__.get("names", ())
        if name not in own or name in self.__dict__.get("_modules", {}):
            return super().__getattr__(name)
        return self.down if name == own[2] else _Half(self.gate_up, own.index(name))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The MLP of x (..., in_features), of its shape."""
        value: torch.Tensor = self.down(self.gate_up(x))
        return value


class _Half:
    """The gate's or the other half of a joined layer: views of its tensors."""

    def __init__(self, joined: torch.nn.Module, at: int):
        self._joined, self._at = joined, at

    def __getattr__(self, name: str) -> object:
        value = getattr(self._joined, name)
        value = value.dense() if isinstance(value, ScaledWeight) else value
        return value.chunk(2)[self._at] if isinstance(value, torch.Tensor) and name in _STATE else value


def _layers(weights: str, allow_tf32: bool | None) -> tuple[Callable[..., Layer], Callable[..., Layer]]:
    """The layers' class and its `of`. Raises OperandError for unknown weights."""
    if not isinstance(weights, str) or weights not in WEIGHTS:
        raise OperandError(f"weights {shown(weights)}: {', '.join(map(repr, WEIGHTS))}")
    if weights == "own":
        return partial(DenseLinear, allow_tf32=allow_tf32), partial(DenseLinear.of, allow_tf32=allow_tf32)
    return WEIGHTS[weights], WEIGHTS[weights].of


_STATE = ("weight", "bias", SCALES)  # what a layer may have in a state dict


def _apart(module: GatedMLP, state: dict[str, torch.Tensor], prefix: str, *others: object) -> None:
    """Take gate and up apart in a state dict that was just made."""
    for name in _STATE:
        joined, moved = (state.pop(f"{prefix}{layer}.{name}", None) for layer in ("gate_up", "down"))
        for key, part in zip(module.names, () if joined is None else joined.chunk(2)):
            state[f"{prefix}{key}.{name}"] = part
        if moved is not None:
            state[f"{prefix}{module.names[2]}.{name}"] = moved


def _together(
    module: GatedMLP, state: dict[str, torch.Tensor], prefix: str, metadata: Mapping[str, object], strict: bool,
    missing: list[str], *others: object,
) -> None:  # fmt: skip
    """Put gate and up side by side in a state dict that is being loaded; one of them alone beside the own other."""
    absent: dict[str, list[str]] = {}
    for name in _STATE:
        *keys, down = [f"{prefix}{key}.{name}" for key in module.names]
        lost, own = [key for key in keys if key not in state], getattr(module.gate_up, name, None)
        if len(lost) == 1 and isinstance(own, torch.Tensor) and type(own) in PLAIN and not own.is_meta:
            at = keys.index(lost[0])
            state[lost[0]] = own.detach().chunk(2)[at].to(state[keys[1 - at]].device)
            missing += lost
        elif lost:
            absent[f"{prefix}gate_up.{name}"] = lost
        if all(key in state for key in keys):
            if name == SCALES and module.hidden_features % DEPTH:
                raise OperandError(
                    f"{keys[0]}: scales of {DEPTH} rows, and gate and up of {module.hidden_features} lie side by side"
                )
            joined = torch.cat([state.pop(key) for key in keys])
            state[f"{prefix}gate_up.{name}"] = _placed(joined, own)
        if down in state:
            state[f"{prefix}down.{name}"] = _placed(state.pop(down), getattr(module.down, name, None))
        absent[f"{prefix}down.{name}"] = [down]
    module.__dict__["_absent"] = absent


def _missing_by_name(module: GatedMLP, keys: tuple[list[str], list[str]]) -> None:
    """Name missing tensors as a state dict has them: gate's and up's in place of those of both."""
    missing, absent = keys[0], module.__dict__.pop("_absent", {})  # by the names of the joined ones
    missing[:] = [name for key in missing for name in absent.get(key, [key])]


def _placed(value: torch.Tensor, own: object) -> torch.Tensor:
    """A whole tensor sharded as the module's own is: torch shards only those of a parameter's name."""
    if type(value) is not torch.Tensor or not isinstance(own, torch.Tensor) or not hasattr(own, "device_mesh"):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(own.device), own.device_mesh, own.placements)
