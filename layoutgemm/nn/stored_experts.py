"""Experts stored one by one, for models with parameters of three dimensions.

    experts.0.gate_proj.weight (n, k)   }
    experts.0.up_proj.weight   (n, k)   }  ->  experts.gate_up_proj (experts, 2n, k)
    experts.1.gate_proj.weight ...      }
    experts.0.down_proj.weight (k, n)      ->  experts.down_proj (experts, k, n)

Packed and float8 weights become an `ExpertsMLP` where the model's own forward, tried on small weights, agrees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from ..errors import LayoutError, OperandError, TensorError
from ..kernels.quantized.packing import QuantizedWeights
from ..torch_op.quantized import QuantizedExperts, QuantizedWeight
from ..torch_op.scaled_grouped import DEPTH
from .checkpoint import StoredTensor, listed_names
from .experts import ExpertsMLP, OwnGate, PackedGroups, ScaledGroups
from .linear import hooks_of
from .packed_layer import FLOAT8_KIND, PACKED_BY, check_size, packed_layer
from .quantized import plain_weights
from .scaled import ScaledLinear

Layers = Mapping[str, Sequence[str]]
Read = Callable[[str], Mapping[str, torch.Tensor]]  # the tensors of a layer, by the last words of their names
# The layers of an expert whose rows a parameter has, first to last; the second product's parameter comes last.
_USUAL: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "gate_up_proj": (("gate_proj", "up_proj"), ("w1", "w3"), ("gate_up_proj",)),
    "up_proj": (("up_proj",),),
    "down_proj": (("down_proj",), ("w2",)),
}
_WAY_OUT = "experts= names the layers of each parameter, such as {'gate_up_proj': ('gate_proj', 'up_proj')}"
_MIDDLE = 8  # the zero point of int4 without zero points


@dataclass(frozen=True, eq=False)
class StoredExperts:
    """A module of experts whose layers a checkpoint has one by one.

    name, module  in the model
    layers        of each parameter: the layers of an expert whose rows it has; that of the second product comes last
    packed        whether they are packed, or float8 with scales of blocks
    reason        why no `ExpertsMLP` can be in the module's place, or ""
    """

    name: str
    module: torch.nn.Module
    layers: Layers
    packed: bool = False
    reason: str = ""

    def parameter(self, key: str) -> torch.Tensor:
        """A parameter of the module."""
        return self.module.get_parameter(key)

    def places(self, key: str) -> list[list[str]]:
        """The names of a parameter's layers, of each expert."""
        front = f"{self.name}." if self.name else ""
        return [[f"{front}{e}.{layer}" for layer in self.layers[key]] for e in range(self.parameter(key).shape[0])]

    @property
    def all_layers(self) -> list[str]:
        """The names of all layers."""
        return [layer for key in self.layers for each in self.places(key) for layer in each]


def find_experts(
    modules: Mapping[str, torch.nn.Module], stored: Mapping[str, StoredTensor], asked: Layers | None
) -> list[StoredExperts]:
    """The modules whose parameters a checkpoint has layer by layer, one expert after another.

    asked  the layers of each parameter; default those of transformers, where the module's forward agrees

    Raises OperandError for layers that are missing, some of which are packed and others not, or in unknown order.
    """
    numbered = _numbered(stored)
    found: dict[torch.nn.Module, StoredExperts] = {}
    for name, module in modules.items():
        front = f"{name}." if name else ""
        joined = [key for key, x in module._parameters.items() if x is not None and x.ndim == 3]
        joined = [key for key in joined if f"{front}{key}" not in stored]
        if not joined or name not in numbered or module in found:
            continue
        layers = _usual(joined, numbered[name]) if asked is None else asked
        if layers is None or {*layers} != {*joined}:
            raise OperandError(
                f"{name or 'the model'} has {listed_names(joined)}, and the checkpoint {listed_names(numbered[name])} "
                f"of each expert: {_WAY_OUT}"
            )
        one = StoredExperts(name, module, layers)
        _check_layers(one)
        packed = _are_packed(one, stored)
        gated = len(first := layers[next(iter(layers))]) == 2 or first == ("gate_up_proj",)
        ordered, reason = compared(module, [*layers], gated)
        if not ordered and asked is None:
            why = reason or "its gate is not act_fn(first half of the columns) * second half"
            raise OperandError(f"{name or 'the model'}: {why}; {_WAY_OUT}")
        found[module] = replace(one, packed=packed, reason=reason or "it is the model itself" * (not name))
    if asked is not None and not found:
        raise OperandError(
            f"experts={dict(asked)}: no module has such parameters, and the layers of experts one by one"
        )
    return list(found.values())


def check_dense(one: StoredExperts, stored: Mapping[str, StoredTensor]) -> None:
    """Raise OperandError or TensorError unless dense layers are the rows of the parameters."""
    for key in one.layers:
        x = one.parameter(key)
        for layers in one.places(key):
            of = [stored[f"{layer}.weight"] for layer in layers]
            _check_rows(layers, [each.shape for each in of], x)
            for layer, each in zip(layers, of):
                if not each.dtype.is_floating_point or each.dtype.itemsize == 1:
                    raise OperandError(f"{layer}.weight is {each.dtype} in the checkpoint, and {x.dtype} in the model")


def joined_weights(one: StoredExperts, key: str, kind: str, read: Read) -> torch.Tensor:
    """A parameter (experts, n, k), joined of dense or dequantised layers.

    Raises OperandError or TensorError, naming the layer, for packed layers that do not fit.
    """
    x = one.parameter(key)
    made = torch.empty(x.shape, dtype=x.dtype, device="cpu")
    for e, layers in enumerate(one.places(key)):
        at = 0
        for layer in layers:
            rows = x.shape[1] // len(layers)
            if one.packed:
                part = packed_layer(layer, _without_bias(layer, read), kind, (rows, x.shape[2]), x.dtype).dequantized()
            else:
                part = read(layer)["weight"]
            made[e, at : at + part.shape[0]] = part
            at += part.shape[0]
    return made


def packed_experts(one: StoredExperts, kind: str, read: Read) -> ExpertsMLP:
    """The module in the place of packed experts, on the CPU.

    Raises OperandError or TensorError, naming the layer, for layers that do not fit.
    """
    first, down = (
        _scaled_groups(one, key, read) if kind == FLOAT8_KIND else _packed_groups(one, key, kind, read)
        for key in one.layers
    )
    gated = 2 * down.in_features == first.out_features
    return ExpertsMLP(first, down, OwnGate(one.module, gated)).train(one.module.training)


# --------------------------------------------------------------------------------------------------------------- names


def _numbered(stored: Iterable[str]) -> dict[str, list[str]]:
    """The layers below numbers, by the name before them: {"experts": ["down_proj", ...]}."""
    found: dict[str, dict[str, None]] = {}
    for name in stored:
        *front, number, layer, _ = ("", "", *name.split("."))
        if number.isdigit():
            found.setdefault(".".join(filter(None, front)), {})[layer] = None
    return {front: [*layers] for front, layers in found.items()}


def _usual(joined: Sequence[str], there: Sequence[str]) -> dict[str, tuple[str, ...]] | None:
    """The layers of each parameter, by the usual names; None for others."""
    found = {
        key: layers for key, several in _USUAL.items() if key in joined for layers in several if {*layers} <= {*there}
    }
    return found if len(found) == len(joined) else None


def _check_layers(one: StoredExperts) -> None:
    """Raise OperandError for parameters whose rows no layers of equal rows make up."""
    for key, layers in one.layers.items():
        experts, rows, _ = one.parameter(key).shape
        if not experts or not layers or rows % len(layers):
            said = f"{rows} rows of {experts} experts, in layers {listed_names(layers)} of equal rows"
            raise OperandError(f"{one.name or 'the model'}.{key}: {said}")


def _are_packed(one: StoredExperts, stored: Mapping[str, StoredTensor]) -> bool:
    """True if all layers are packed, False if none is. Raises OperandError for missing layers, and for a mixture."""
    packed = {layer: any(f"{layer}.{key}" in stored for key in PACKED_BY) for layer in one.all_layers}
    dense = [f"{layer}.weight" for layer, is_packed in packed.items() if not is_packed]
    missing = [name for name in dense if name not in stored]
    if missing:
        said = f"{listed_names(missing)} {'is' if len(missing) == 1 else 'are'} missing in the checkpoint"
        raise OperandError(f"{said}, which has other experts of {one.name or 'the model'}")
    if len({*packed.values()}) > 1:
        yes, no = (next(layer for layer, is_packed in packed.items() if is_packed is want) for want in (True, False))
        raise OperandError(f"{yes} is packed in the checkpoint, and {no} is not: experts are alike")
    return next(iter(packed.values()))


def _without_bias(layer: str, read: Read) -> Mapping[str, torch.Tensor]:
    """A layer's tensors. Raises OperandError for a bias."""
    tensors = read(layer)
    if "bias" in tensors:
        raise OperandError(f"{layer}.bias: in the checkpoint, and experts have none in the model")
    return tensors


def _check_rows(layers: Sequence[str], shapes: Sequence[tuple[int, ...]], x: torch.Tensor) -> None:
    """Raise TensorError unless layers of equal rows make up a parameter's rows."""
    want = x.shape[1] // len(layers), x.shape[2]
    for layer, shape in zip(layers, shapes):
        if tuple(shape) != want:
            raise TensorError(f"{layer} has shape {[*shape]} in the checkpoint, and {[*want]} in the model")


# ------------------------------------------------------------------------------------------------------ packed weights


def _packed_groups(one: StoredExperts, key: str, kind: str, read: Read) -> PackedGroups:
    """The packed layers of a parameter, one below another."""
    x, weights, orders = one.parameter(key), [], []
    for layers in one.places(key):
        parts = []
        for layer in layers:
            tensors = _without_bias(layer, read)
            try:
                parts.append(plain_weights(tensors, kind))
            except LayoutError as error:
                raise OperandError(f"{layer}: {error}") from error
            check_size(layer, parts[-1][0].codes.shape, (x.shape[1] // len(layers), x.shape[2]))
            if not _same(parts[0][1], parts[-1][1]):
                raise OperandError(f"{layers[0]} and {layer} have groups in different orders (g_idx)")
        weights.append([plain for plain, _ in parts])
        orders.append(parts[0][1])
    zeros = any(plain.format.zeros for each in weights for plain in each)
    try:
        packed = [QuantizedWeight.pack(_stacked(each, zeros), x.dtype) for each in weights]
        experts = QuantizedExperts.of(packed)
    except LayoutError as error:
        raise OperandError(f"{one.name}.{key}: {error}") from error
    if all(order is None for order in orders):
        return PackedGroups(experts)
    own = np.arange(experts.k)
    return PackedGroups(experts, torch.from_numpy(np.stack([own if order is None else order for order in orders])))


def _same(one: npt.NDArray[np.int64] | None, two: npt.NDArray[np.int64] | None) -> bool:
    """True for equal orders, or none."""
    return one is two or (one is not None and two is not None and np.array_equal(one, two))


def _stacked(parts: Sequence[QuantizedWeights], zeros: bool) -> QuantizedWeights:
    """Plain weights one below another, of one format.

    zeros  whether they have zero points; those of weights without are in the middle
    """
    full = [each if each.format.zeros or not zeros else _with_zeros(each) for each in parts]
    if other := [each for each in full if each.format != full[0].format]:
        raise OperandError(f"weights are of {full[0].format} and of {other[0].format}: experts are alike")
    points = [each.zeros for each in full if each.zeros is not None]
    return QuantizedWeights(
        full[0].format, np.concatenate([each.codes for each in full]), np.concatenate([each.scales for each in full]),
        np.concatenate(points) if points else None,
    )  # fmt: skip


def _with_zeros(plain: QuantizedWeights) -> QuantizedWeights:
    """Weights of groups with zero points that change nothing. Raises OperandError for weights that can have none."""
    fmt = replace(plain.format, zeros=True)
    return QuantizedWeights(fmt, plain.codes, plain.scales, np.full(np.shape(plain.scales), _MIDDLE))


def _scaled_groups(one: StoredExperts, key: str, read: Read) -> ScaledGroups:
    """The float8 layers of a parameter, one below another with their scales."""
    x, made = one.parameter(key), []
    for layers in one.places(key):
        size = x.shape[1] // len(layers), x.shape[2]
        parts = [packed_layer(layer, _without_bias(layer, read), FLOAT8_KIND, size, x.dtype) for layer in layers]
        codes, scales = ([getattr(part, name) for part in parts] for name in ("codes", "weight_scale"))
        joined = ScaledLinear(x.shape[2], x.shape[1], False, dtype=x.dtype)
        joined.codes, joined.weight_scale = torch.cat(codes), torch.cat(scales)
        made.append(joined)
    return ScaledGroups(made)


# ------------------------------------------------------------------------------------------------------ the own forward


def reason_against(one: StoredExperts, kind: str) -> str:
    """Why packed experts are dequantised in place of an `ExpertsMLP`, or ""."""
    for key, layers in one.layers.items():
        rows = one.parameter(key).shape[1] // len(layers)
        if not one.reason and kind == FLOAT8_KIND and len(layers) > 1 and rows % DEPTH:
            return f"{layers[0]} has {rows} rows, and a scale is of {DEPTH}"
    return one.reason


def compared(
    module: torch.nn.Module, keys: Sequence[str], gated: bool, transposed: bool = False, biased: bool = False
) -> tuple[bool, str]:
    """True if a forward shows its rows' order; and why `ExpertsMLP` differs, or "".

    Its forward is called with small weights, and biases, in the place of its own.

    keys        of the parameters of both products
    transposed  whether these are (experts, in features, out features)
    biased      whether biases are taken: a parameter with "_bias" behind each key
    """
    own = [key for key, x in module._parameters.items() if x is not None]
    names = [f"{key}_bias" for key in keys] * biased
    if len(keys) != 2 or sorted(own) != sorted([*keys, *names]) or len([*module.buffers()]):
        wanted = "two weights" + " and their biases" * biased
        return False, f"it has {listed_names([*module._parameters])}, and a gated MLP {wanted}"
    if hooks := hooks_of(module):
        return False, f"it has {', '.join(hooks)}"
    made = torch.Generator().manual_seed(0)
    wide, deep, experts = 32, 16, module.get_parameter(keys[0]).shape[0]
    sizes = (experts, (1 + gated) * deep, wide), (experts, wide, deep)
    kind = {"generator": made, "dtype": torch.float32, "device": "cpu"}  # whatever torch's defaults are
    weights = [torch.randn(size, **kind) / 4 for size in sizes]
    x, factors = torch.randn(6, wide, **kind), torch.rand(6, min(2, experts), **kind)
    index = torch.randint(experts, factors.shape, generator=made, device="cpu")
    biases = [torch.randn(size[:2], **kind) * biased for size in sizes]
    gate, ordered = OwnGate(module, gated), False
    given = dict(zip([*keys, *names], [*[w.mT if transposed else w for w in weights], *biases]))
    try:
        with torch.no_grad():
            for size in (1.0, 100.0):  # limits of activations show in large values alone
                got = torch.func.functional_call(module, given, (x * size, index, factors))
                want = _by_hand(weights, biases, x * size, index, factors, gate)
                if got.shape != want.shape or not torch.allclose(
                    got, want, rtol=1e-3, atol=1e-3 * float(want.abs().max())
                ):
                    return ordered, "its forward gives other values than down(act(gate) * up) of rows in order"
                if size == 1.0:
                    ordered = not gated or _is_in_order(module, gate, deep)
    except Exception as error:
        return ordered, f"its forward, tried on (rows, features), experts and factors of rows, raised {error!r}"
    return ordered, ""


def _by_hand(
    weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor], x: torch.Tensor, index: torch.Tensor,
    factors: torch.Tensor, gate: torch.nn.Module,
) -> torch.Tensor:  # fmt: skip
    """The sums that an `ExpertsMLP` of dense weights gives."""
    total = torch.zeros_like(x)
    for experts, factor in zip(index.T, factors.T):
        hidden = gate(torch.einsum("rk,rnk->rn", x, weights[0][experts]) + biases[0][experts])
        total += factor[:, None] * (torch.einsum("rn,rkn->rk", hidden, weights[1][experts]) + biases[1][experts])
    return total


def _is_in_order(module: torch.nn.Module, gate: torch.nn.Module, columns: int) -> bool:
    """True if the gate is act_fn of the first columns times the other ones; SiLU in a module without act_fn."""
    act, x = (
        getattr(module, "act_fn", torch.nn.functional.silu),
        torch.linspace(-1, 1, 4 * columns, dtype=torch.float32, device="cpu").view(2, -1),
    )
    return callable(act) and torch.allclose(gate(x), act(x[:, :columns]) * x[:, columns:])
