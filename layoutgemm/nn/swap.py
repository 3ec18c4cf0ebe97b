"""swap_linears: the linear layers of a model on layoutgemm's kernels, and a report of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import groupby

import torch
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized

from ..arguments import as_bool, refusal, shown
from ..errors import LayoutError, OperandError
from ..kernels.quantized.formats import QuantizedFormat
from ..regex import regex
from ..torch_op.bias_activation import ACTIVATIONS, GATES
from ..torch_op.checks import autocast, check_types
from .adopted import adopt, adopt_method, check_adopted, is_served, keeps_forward, method_to_adopt, reason_of_method
from .experts import ExpertsMLP
from .gated import NAMES, GatedMLP
from .linear import DenseLinear, hooks_of
from .master import MasterLinear
from .packed_experts import packed_mlp
from .quantized import QuantizedLinear
from .scaled import ScaledLinear

Where = Callable[[str, torch.nn.Module], bool]
_WEIGHTS = ("own", "fp8", "master")
# Their matrices are not multiplied, or not by a linear layer's product, or are those of a layer that is reported.
_NO_PRODUCTS = (
    torch.nn.Embedding, torch.nn.EmbeddingBag, torch.nn.modules.conv._ConvNd, torch.nn.LayerNorm, torch.nn.RMSNorm,
    ParametrizationList,
)  # fmt: skip
_NUMBER = regex(r"(\d+)")
_FEW = 4  # layers of one kind that are listed together
_USUAL = frozenset(vars(torch.nn.Linear(1, 1, device="meta")))  # attributes of a linear layer


@dataclass(frozen=True, slots=True)
class Swapped:
    """One linear layer of a model. Its name, and its replacement or the reason against one.

    name    as `named_modules` has it
    by      class of the module in its place, or that its own class was joined with; "" where it was left
    reason  why it was left, "" where it was replaced
    """

    name: str
    by: str = ""
    reason: str = ""

    def __str__(self) -> str:
        return f"replaced  {self.name}  by {self.by}" if self.by else f"left      {self.name}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Swaps:
    """Every linear layer that `swap_linears` met, in the order of `named_modules`.

    others  modules with matrices of their own that are no linear layers, as experts: by is "", reason says which; by
            is "ExpertsMLP" of packed ones
    ours    how many layers were layoutgemm's before, and stay as they are

    Four layers or more of one outcome whose names differ in a number are one line of the text.

    >>> print(Swaps(tuple(Swapped(f"layers.{i}.up", "DenseLinear") for i in range(32))))
    replaced  layers.{0-31}.up  by DenseLinear
    32 of 32 linear layers replaced
    >>> swaps = Swaps((Swapped("0", "Linear"), Swapped("1", reason="a forward hook")))
    >>> [each.name for each in swaps.left], len(swaps.replaced)
    (['1'], 1)
    """

    layers: tuple[Swapped, ...]
    others: tuple[Swapped, ...] = ()
    ours: int = field(default=0, kw_only=True)

    @property
    def replaced(self) -> tuple[Swapped, ...]:
        """The layers that were replaced."""
        return tuple([each for each in self.layers if each.by])

    @property
    def left(self) -> tuple[Swapped, ...]:
        """The layers that were left."""
        return tuple([each for each in self.layers if not each.by])

    def __iter__(self) -> Iterator[Swapped]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    def __str__(self) -> str:
        others = sum(not each.by for each in self.others)
        packed = len(self.others) - others
        many = f"; {packed} module{'s' * (packed != 1)} of experts packed" * bool(packed)
        many += f"; {others} other module{'s' * (others != 1)} left" * bool(others)
        many += f"; {self.ours} of layoutgemm's own stay as they are" * bool(self.ours)
        last = f"{len(self.replaced)} of {len(self)} linear layers replaced{many}"
        return "\n".join([*map(str, [*grouped(self.layers), *grouped(self.others)]), last])


def grouped(found: Iterable[Swapped]) -> Iterator[Swapped]:
    """Those whose names differ in one number as one, where they are four or more."""
    groups: dict[tuple[str, str, str], list[Swapped]] = {}
    for each in found:
        groups.setdefault((_NUMBER.sub("*", each.name), each.by, each.reason), []).append(each)
    for alike in groups.values():
        columns = list(zip(*[_NUMBER.split(each.name) for each in alike], strict=True))
        changing = [i for i, parts in enumerate(columns) if len(set(parts)) > 1]
        if len(alike) < _FEW or len(changing) != 1 or any(str(int(x)) != x for x in columns[changing[0]]):
            yield from alike
            continue
        (at,) = changing
        numbers = sorted(map(int, columns[at]))
        runs = [[b for _, b in run] for _, run in groupby(enumerate(numbers), lambda x: x[1] - x[0])]
        spans = ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
        name = "".join(f"{{{spans}}}" if i == at else parts[0] for i, parts in enumerate(columns))
        yield replace(alike[0], name=name)


def swap_linears(
    model: torch.nn.Module, where: Where | str | Iterable[str] | None = None, *,
    weights: str | QuantizedFormat = "own", gated: bool = False, allow_tf32: bool | None = None,
) -> Swaps:  # fmt: skip
    """Replace the linear layers inside a model by layoutgemm's, in place, and report each.

    model       any module but a linear layer itself
    where       which layers: a function of name and module, or patterns of names as fnmatch has them; default all
    weights     "own" keeps the parameters, the same tensors; "fp8" makes float8 weights with scales of blocks, which
                are not trained; "master" keeps the parameters and multiplies in fp8, gradients too (`MasterLinear`).
                A `QuantizedFormat` packs weights of 4 or 8 bits (`QuantizedLinear`), which are not trained; those of
                experts too (`ExpertsMLP`), where the module's forward agrees
    gated       whether modules of gate_proj, up_proj, down_proj and an act_fn (SiLU, GELU) become GatedMLP of such
                weights, where a run of their own ones on random rows agrees. Gate and up are then one parameter, so
                make optimizers afterwards
    allow_tf32  whether float32 layers may be multiplied as tf32; default as torch is set

    State dicts stay as they are, but for packed weights. Hooks, parametrizations and subclasses with a forward of their
    own are left alone. Other subclasses, as torchtitan's, stay the same objects with their methods and hooks: "own" and
    "master" give them a class of both. Layers of vLLM and SGLang with a dense `quant_method` get a method of both by
    "own". Layers whose weight other modules hold are replaced and stay tied; with float8 and packed weights they are
    left. Modules that hold other matrices, as experts of three dimensions, are left and reported, but for packed ones.

    Raises OperandError for a model that is a linear layer itself, for unknown `weights`, and for packed gated MLPs.

    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 2)).bfloat16()
    >>> print(swap_linears(model, where="0"))
    replaced  0  by DenseLinear
    left      1: not in where='0'
    1 of 2 linear layers replaced
    """
    if not isinstance(model, torch.nn.Module):
        raise OperandError(refusal(model, "model of swap_linears", "a torch.nn.Module"))
    gated = as_bool(gated, "gated of swap_linears", OperandError)
    if allow_tf32 is not None:
        allow_tf32 = as_bool(allow_tf32, "allow_tf32 of swap_linears", OperandError)
    if not isinstance(weights, QuantizedFormat) and not (isinstance(weights, str) and weights in _WEIGHTS):
        example = f"a QuantizedFormat, as {QuantizedFormat.EXAMPLE}"
        raise OperandError(f"weights {shown(weights)}: {', '.join(map(repr, _WEIGHTS))} or {example}")
    if isinstance(model, torch.nn.Linear):
        raise OperandError("model is a linear layer itself, and layers are replaced inside of it: Linear.of(model)")
    found: list[Swapped] = []
    own = DenseLinear, MasterLinear, ScaledLinear, QuantizedLinear
    ours = sum(isinstance(module, own) for module in model.modules())
    if gated:
        if isinstance(weights, QuantizedFormat):
            raise OperandError(f"gated=True with weights of {weights}: a gated MLP has none that are packed")
        found += _swap_gated(model, _asked(where), allow_tf32, weights)
    asked = _asked(where)
    shared = _shared_weights(model)
    made: dict[torch.nn.Module, torch.nn.Module] = {}
    adopted: dict[torch.nn.Module, torch.nn.Module] = {}
    methods: list[torch.nn.Module] = []
    bypassed = _bypassed(model)
    for name, layer in list(model.named_modules()):
        if method_to_adopt(layer) is not None:
            reason = asked(name, layer) or _reason_of_method(layer, weights, allow_tf32)
            found.append(Swapped(name, reason=reason) if reason else Swapped(name, "DenseMethod"))
            methods += [] if reason else [layer]
        if isinstance(layer, DenseLinear | MasterLinear) or not isinstance(layer, torch.nn.Linear):
            continue
        stays = weights in ("own", "master") and keeps_forward(layer)  # the same object, of another class
        said = asked(name, layer) or bypassed.get(layer, "")
        new = said or _replacement(name, layer, weights, allow_tf32, stays, shared)
        if isinstance(new, torch.nn.Module):
            (adopted if stays else made)[layer] = new
        found.append(Swapped(name, reason=new) if isinstance(new, str) else Swapped(name, type(new).__name__))
    beside = []
    for each, module in _other_matrices(model):
        if isinstance(weights, QuantizedFormat):
            reason = asked(each.name, module) or _tied(module, shared) or "it is the model itself" * (module is model)
            mlp = reason or packed_mlp(module, weights)
            if isinstance(mlp, ExpertsMLP):
                made[module], each = mlp, Swapped(each.name, type(mlp).__name__)
            elif mlp:
                each = replace(each, reason=f"{each.reason}; not packed: {mlp}")
        beside.append(each)
    replace_modules(model, made)
    for layer, new in adopted.items():
        adopt(layer, new)
    for layer in methods:
        adopt_method(layer)
    return Swaps(tuple(found), tuple(beside), ours=ours)


def _replacement(
    name: str, layer: torch.nn.Linear, weights: str | QuantizedFormat, allow_tf32: bool | None, stays: bool,
    shared: Mapping[torch.Tensor, set[str]],
) -> torch.nn.Module | str:  # fmt: skip
    """The module in a layer's place, or that it shall multiply like where it `stays`; else why it is left."""
    # float32 layers are rounded to 8 bits by the caller's word, and those that are stored so are refused by `of`
    if reason := reason_to_stay(layer, allow_tf32 or weights != "own", stays):
        return reason
    if weights not in ("own", "master"):
        if others := shared.get(layer.weight):
            return f"its weight is tied to {', '.join(others - {name}) or 'another name'}, which needs it as it is"
        if reason := _lost_with(layer.weight):
            return reason
    try:
        new = _made(layer, weights, allow_tf32)
        if stays:
            check_adopted(layer, new)
    except LayoutError as error:
        return str(error)
    if not stays and (taken := [x for x in own_attributes(layer) if hasattr(new, x)]):
        return f"its attribute {taken[0]} has another meaning in a {type(new).__name__}"
    return new


def replace_modules(model: torch.nn.Module, made: Mapping[torch.nn.Module, torch.nn.Module]) -> None:
    """Put new modules in the places of others, in each that a shared one has. Attributes of one's own go along."""
    for layer, new in made.items():
        for name, value in own_attributes(layer).items():
            if not hasattr(new, name):
                setattr(new, name, value)
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):  # named_children would name a shared layer once
            if child in made:
                setattr(parent, name, made[child])


def own_attributes(layer: torch.nn.Module) -> dict[str, object]:
    """Public attributes that a linear layer was given, such as a prefix or a loader.

    >>> layer = torch.nn.Linear(2, 2)
    >>> layer.prefix = "model.0"
    >>> own_attributes(layer)
    {'prefix': 'model.0'}
    """
    return {name: value for name, value in vars(layer).items() if name not in _USUAL and not name.startswith("_")}


def _lost_with(weight: torch.Tensor) -> str:
    """Why a weight is needed as it is: attributes and hooks that codes in its place would not have; or ""."""
    own = [name for name in vars(weight) if not name.startswith("_")]
    hooks = [name for name in ("_backward_hooks", "_post_accumulate_grad_hooks") if getattr(weight, name, None)]
    named = [*own, *[name.strip("_") for name in hooks]]
    return f"its weight has {', '.join(named)}, which would be lost" if named else ""


def _tied(module: torch.nn.Module, shared: Mapping[torch.Tensor, set[str]]) -> str:
    """Why parameters are needed as they are: other modules hold them; or ""."""
    tied = [key for key, x in module._parameters.items() if x is not None and (x in shared or _lost_with(x))]
    return f"its {tied[0]} is tied, or has attributes" if tied else ""


def _other_matrices(model: torch.nn.Module) -> Iterator[tuple[Swapped, torch.nn.Module]]:
    """The modules that hold matrices in parameters of their own, and are no linear layers."""
    for name, module in model.named_modules():
        if isinstance(module, (torch.nn.Linear, *_NO_PRODUCTS)) or is_served(module):
            continue
        own = {key: [*x.shape] for key, x in module.named_parameters(recurse=False) if sum(n > 1 for n in x.shape) > 1}
        if own:
            said = ", ".join(f"{key} {shape}" for key, shape in own.items())
            kind = type(module).__qualname__
            way = "; experts_forward computes its products" if hasattr(module, "_apply_gate") else ""
            yield Swapped(name or "the model", reason=f"a {kind} with {said}, which is no linear layer{way}"), module


def _made(layer: torch.nn.Linear, weights: str | QuantizedFormat, allow_tf32: bool | None) -> torch.nn.Module:
    """The module in a layer's place. Raises OperandError or TensorError, as its product does."""
    if isinstance(weights, QuantizedFormat):
        return QuantizedLinear.from_linear(layer, weights)
    if weights == "fp8":
        return ScaledLinear.of(layer)
    if weights == "master":
        return MasterLinear.of(layer)
    return DenseLinear.of(layer, allow_tf32=allow_tf32)


def _asked(where: Where | str | Iterable[str] | None) -> Callable[[str, torch.nn.Module], str]:
    """Why a layer is not asked for, or ""."""
    if where is None:
        return lambda name, module: ""
    if callable(where):
        return lambda name, module: "" if where(name, module) else "where said no"
    patterns = (where,) if isinstance(where, str) else tuple(where) if isinstance(where, Iterable) else (where,)
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise OperandError(refusal(where, "where of swap_linears", "a function, a pattern of names, or a list of them"))
    said = f"not in where={(where if isinstance(where, str) else list(patterns))!r}"
    return lambda name, module: "" if any(fnmatchcase(name, pattern) for pattern in patterns) else said


def _reason_of_method(layer: torch.nn.Module, weights: object, allow_tf32: bool | None) -> str:
    """Why a server's layer keeps its method, or ""."""
    if weights != "own":
        return f"a {type(layer).__qualname__}, whose method multiplies its own weight: weights='own'"
    try:
        if not (reason := reason_of_method(layer)):
            check_types(layer.weight, layer.weight, allow_tf32)  # type: ignore[arg-type]
        return reason
    except LayoutError as error:
        return str(error).replace("a and b are", "its weight is")


def reason_to_stay(layer: torch.nn.Linear, allow_tf32: bool | None, stays: bool = False) -> str:
    """Why a layer is left, or "". `stays`: the object would stay, with its class's methods, its hooks and buffers."""
    if is_parametrized(layer):
        return f"parametrized: {', '.join(layer.parametrizations)}"
    if any(base.__name__ == "FSDPModule" for base in type(layer).__mro__):
        return "fully_shard has sharded it: swap its layers first"
    if not stays and (kind := type(layer)) is not torch.nn.Linear:
        if kind.forward is not torch.nn.Linear.forward or kind.__module__.startswith("torch."):
            return f"a {kind.__qualname__}, whose forward may be its own"
        return (
            f"a {kind.__module__}.{kind.__qualname__}, whose other methods would be lost: "
            "DenseLinear.of(layer) or MasterLinear.of(layer) in its place has none"
        )
    if "forward" in layer.__dict__:
        return "its forward was replaced"
    if layer.__dict__.get("_compiled_call_impl") is not None:
        return "its compile() was called: compile the model, or the layer in its place"
    others = [*layer._buffers, *layer._modules, *[name for name in layer._parameters if name not in ("weight", "bias")]]
    if not stays and (lost := [*hooks_of(layer), *others]):
        return f"it has {', '.join(lost)}, which would be lost"
    if type(layer.weight) is not torch.nn.Parameter:
        return f"its weight is a {type(layer.weight).__qualname__}"
    try:
        check_types(*autocast(layer.weight, layer.weight), allow_tf32)
    except LayoutError as error:
        return str(error).replace("a and b are", "its weight is")
    return ""


def _bypassed(model: torch.nn.Module) -> dict[torch.nn.Module, str]:
    """Layers that their parent does not call in eval mode, with the reason.

    It multiplies by their weights itself.
    """
    found: dict[torch.nn.Module, str] = {}
    for name, module in model.named_modules():
        fast = isinstance(module, torch.nn.TransformerEncoderLayer) and module.activation_relu_or_gelu
        if fast and torch.backends.mha.get_fastpath_enabled():
            said = (
                f"in eval mode {name or 'the model'}, a TransformerEncoderLayer, reads its weight and does not call it"
            )
            found |= dict.fromkeys(
                (module.linear1, module.linear2), f"{said}: torch.backends.mha.set_fastpath_enabled(False) first"
            )
    return found


def _shared_weights(model: torch.nn.Module) -> dict[torch.Tensor, set[str]]:
    """Weights that several modules hold, with the modules' names."""
    owners: dict[torch.Tensor, set[str]] = {}
    for name, module in model.named_modules():
        for parameter in module.parameters(recurse=False):
            owners.setdefault(parameter, set()).add(name)
    return {parameter: names for parameter, names in owners.items() if len(names) > 1}


# ---------------------------------------------------------------------------------------------------------- gated MLPs


def _swap_gated(
    model: torch.nn.Module, asked: Callable[[str, torch.nn.Module], str], allow_tf32: bool | None, weights: str
) -> list[Swapped]:
    """Replace the gated MLPs that can be, and report the layers of those only."""
    found: list[Swapped] = []
    shared = _shared_weights(model)
    for name, module in list(model.named_modules()):
        parts = [getattr(module, each, None) for each in NAMES]
        if not name or not all(isinstance(part, torch.nn.Linear) for part in parts):
            continue
        layers = [part for part in parts if isinstance(part, torch.nn.Linear)]
        names = [f"{name}.{each}" for each in NAMES]
        reason = next(
            filter(None, [asked(x, layer) or _reason_alone(layer, allow_tf32) for x, layer in zip(names, layers)]), ""
        )
        if not reason and any(layer.weight in shared for layer in layers):
            reason = "a weight is tied to another module's"
        made = None if reason else _gated(module, layers, allow_tf32, weights)
        if made is not None:
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, made)
            found += [Swapped(x, "GatedMLP") for x in names]
    return found


def _reason_alone(layer: torch.nn.Linear, allow_tf32: bool | None) -> str:
    """Why a layer is not joined with another one, or ""."""
    own = list(own_attributes(layer))
    said = f"it has {', '.join(own)}, which would be lost" if own else ""
    return reason_to_stay(layer, allow_tf32) or said or _lost_with(layer.weight)


def _gated(
    module: torch.nn.Module, layers: list[torch.nn.Linear], allow_tf32: bool | None, weights: str
) -> GatedMLP | None:
    """The module as a GatedMLP, where both agree by their own weights; else None."""
    weight, activation = layers[0].weight, _gate_of(module)
    own = {*module.parameters()}
    if weight.device.type == "meta" or not activation or own != {p for layer in layers for p in layer.parameters()}:
        return None
    try:
        made = GatedMLP.of(layers[0], layers[1], layers[2], activation, allow_tf32=allow_tf32)
    except LayoutError:
        return None
    x = torch.randn(8, layers[0].in_features, device=weight.device).to(weight.dtype)
    with torch.no_grad():
        want, got = module(x), made(x)
    if got.shape != want.shape:
        return None
    # Both round twice: the gated rows, and the result.
    off = (got - want).abs().max() / want.abs().max()
    if float(off) > 8 * torch.finfo(want.dtype).eps:
        return None
    if weights != "own":
        try:
            made = GatedMLP.of(layers[0], layers[1], layers[2], activation, weights=weights)
        except LayoutError:
            return None
    return made.train(module.training)


def _gate_of(module: torch.nn.Module) -> str:
    """The gate whose activation the module holds as `act_fn`, compared at 4097 points in float64; "" for none."""
    act = getattr(module, "act_fn", None)
    if not callable(act):
        return ""
    x = torch.linspace(-8, 8, 4097, dtype=torch.float64)
    values = act(x)
    same = [gate for gate, name in GATES.items() if torch.allclose(values, ACTIVATIONS[name](x), rtol=0, atol=1e-6)]
    return same[0] if same else ""
