"""torch.nn.Linear with its product, bias and activation by `layoutgemm.matmul`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..arguments import as_int, refusal, shown
from ..errors import OperandError
from ..torch_op.api import linear
from ..torch_op.checks import check_activation
from ..torch_op.prepared import Config, choice_of

_is_traced = torch.compiler.is_dynamo_compiling  # a constant to Dynamo
torch.fx.wrap("linear")  # torch.fx.symbolic_trace records the call, and does not look inside


_HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks",
    "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks",
)  # fmt: skip


def hooks_of(module: torch.nn.Module) -> list[str]:
    """The kinds of hooks that a module has."""
    return [name.strip("_") for name in _HOOKS if getattr(module, name)]


def check_features(**features: object) -> None:
    """Raise OperandError for a number of features that is no integer of 0 or more."""
    for name, count in features.items():
        as_int(count, name, OperandError, least=0)


def check_layer(layer: object, what: str) -> None:
    """Raise OperandError unless a layer has torch.nn.Linear's attributes, its weight a tensor."""
    has_sizes = all(hasattr(layer, name) for name in ("in_features", "out_features", "bias"))
    if not has_sizes or not isinstance(getattr(layer, "weight", None), torch.Tensor):
        way_out = "; its dequantized() is the weight of one" if hasattr(layer, "dequantized") else ""
        raise OperandError(refusal(layer, what, "a torch.nn.Linear or a layer with its attributes") + way_out)


def attributes(layer: torch.nn.Module, kind: type[torch.nn.Module], *names: str) -> list[torch.Tensor]:
    """A layer's parameters and buffers by name, as its attributes are.

    torch finds such an attribute where Python has found none: 6 thousand instructions each, a quarter of a product's.
    A subclass of `kind`, as a parametrized layer is one, may have properties: its attributes are asked for.

    >>> layer = torch.nn.Linear(2, 3)
    >>> [x is y for x, y in zip(attributes(layer, torch.nn.Linear, "weight", "bias"), layer.parameters())]
    [True, True]
    """
    if type(layer) is kind and not _is_traced():
        own, parameters, buffers = vars(layer), layer._parameters, layer._buffers
        try:
            return [
                own[name] if name in own else parameters[name] if name in parameters else buffers[name]
                for name in names
            ]  # type: ignore[misc]
        except KeyError:  # one is an attribute of another kind
            pass
    return [getattr(layer, name) for name in names]


def weight_and_bias(layer: torch.nn.Module, kind: type[torch.nn.Module]) -> Sequence[torch.Tensor]:
    """`attributes` of a linear layer's two, without a list."""
    if type(layer) is kind and not _is_traced():
        own = layer._parameters
        try:
            return own["weight"], own["bias"]  # type: ignore[return-value]
        except KeyError:  # one is a buffer, or an attribute
            pass
    return attributes(layer, kind, "weight", "bias")


class ActivatedLayer:
    """`out_features` of a layer whose kernel may compute an activation: refused where it does.

    Adapters beside a linear layer, batch norms folded into it and layers put in its place read `out_features`. They
    take the layer for x @ weight.T + bias, and would be silently wrong about one with an activation.

    activation   of the layer, or None
    weight_rows  rows of its weight, with an activation too

    Raises OperandError where `out_features` of a layer with an activation is read.

    >>> DenseLinear(2, 3).out_features, DenseLinear(2, 3, activation="relu").weight_rows
    (3, 3)
    """

    activation: str | None = None
    weight_rows: int
    in_features: int
    __constants__ = ("in_features",)  # torch.jit reads them
    bias: torch.nn.Parameter | None

    @property
    def out_features(self) -> int:
        """Rows of the weight, of a layer without an activation."""
        if self.activation is None:
            return self.weight_rows
        said = f"out_features of a {type(self).__name__} with activation={self.activation!r}"
        raise OperandError(
            f"{said}: adapters, folds and replacements take a layer that has them for x @ weight.T + bias; "
            f"weight_rows is {self.weight_rows}"
        )

    @out_features.setter
    def out_features(self, rows: int) -> None:
        self.weight_rows = rows

    def extra_repr(self) -> str:
        """Sizes as torch.nn.Linear prints them, then options that differ from its defaults."""
        said = f"in_features={self.in_features}, out_features={self.weight_rows}, bias={self.bias is not None}"
        said += "".join(f", {option}" for option in self._told)
        return said if self.activation is None else f"{said}, activation={self.activation!r}"

    @property
    def _told(self) -> tuple[str, ...]:
        """Further options that `extra_repr` tells."""
        return ()

    def __prepare_scriptable__(self) -> object:
        """Raise OperandError: torch.jit.script, which asks here, compiles no kernel's call."""
        raise OperandError(f"a {type(self).__name__} under torch.jit.script: torch.export and torch.compile take it")

    def __dir__(self) -> list[str]:
        """Attributes that can be read: tracers read each of them."""
        return [name for name in super().__dir__() if name != "out_features" or self.activation is None]


def refuse_adapters(parent: torch.nn.Module, name: str, module: torch.nn.Module | None) -> None:
    """Raise OperandError where a module with out_features takes an activated layer's place, and holds it.

    Adapters that read the weight's shape, as those of DTensors do, read no `out_features` of the layer. One with a
    `parameter_name` adds to that parameter, in front of the activation.
    """
    layer = parent._modules.get(name)
    if not isinstance(layer, ActivatedLayer) or layer.activation is None or layer not in _children(module):
        return
    held, kind = vars(module), type(module)
    has_sizes = "out_features" in held or hasattr(kind, "out_features")
    if not has_sizes or "parameter_name" in held:
        return
    raise OperandError(
        f"{name} is a {type(layer).__name__} with activation={shown(layer.activation)}, and a module of "
        f"{kind.__qualname__} with out_features takes its place: "
        "adapters take it for x @ weight.T + bias, and add behind the activation"
    )


def _children(module: torch.nn.Module | None) -> list[torch.nn.Module | None]:
    return [] if module is None else [*module._modules.values()]


# Modules are not asked before another one takes their place, so torch's hook sees each registration.
torch.nn.modules.module.register_module_module_registration_hook(refuse_adapters)


class DenseLinear(ActivatedLayer, torch.nn.Linear):
    """activation(x @ weight.T + bias): torch.nn.Linear in one kernel.

    in_features, out_features, bias, device, dtype  as torch.nn.Linear has them; x is (..., in_features)
    activation  None, relu, relu_sq, gelu, gelu_tanh, silu, sigmoid, tanh; "swiglu" and "geglu" gate the first half of
                the columns with the second, and the result has out_features / 2
    allow_tf32  whether float32 weights may be multiplied as tf32; default as `layoutgemm.matmul`
    config      the kernel's configuration, as of `layoutgemm.matmul`; `swap_linears` leaves it out

    Parameters and state dict are torch.nn.Linear's. Trains, and works under autocast and torch.compile. While
    derivatives are recorded, the kernel computes bias and relu, another kernel a gate, and torch other activations.

    Raises OperandError or TensorError as `layoutgemm.matmul`; OperandError for an activation that is not known.

    >>> layer = DenseLinear(2, 2, activation="relu", dtype=torch.bfloat16)
    >>> _ = layer.load_state_dict({"weight": torch.eye(2), "bias": torch.tensor([0.0, -3.0])})
    >>> layer(torch.tensor([[1.0, 2.0]]).bfloat16()).tolist()
    [[1.0, 0.0]]
    """

    config: Config | None = None  # of a layer that an older version saved

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True,
        device: torch.device | str | None = None, dtype: torch.dtype | None = None, *,
        activation: str | None = None, allow_tf32: bool | None = None, config: Config | None = None,
    ) -> None:  # fmt: skip
        check_activation(activation)
        choice_of(config)
        check_features(in_features=in_features, out_features=out_features)
        super().__init__(in_features, out_features, bias, device, dtype)
        self.activation, self.allow_tf32, self.config = activation, allow_tf32, config

    @classmethod
    def of(
        cls, layer: torch.nn.Linear, *, activation: str | None = None, allow_tf32: bool | None = None,
        config: Config | None = None,
    ) -> DenseLinear:  # fmt: skip
        """The layer with the parameters of another. The same tensors, so that ties and optimizers stay.

        >>> layer = torch.nn.Linear(2, 3)
        >>> DenseLinear.of(layer).weight is layer.weight
        True
        """
        check_layer(layer, "layer of DenseLinear.of")
        sizes = layer.in_features, layer.out_features
        options = {"activation": activation, "allow_tf32": allow_tf32, "config": config}
        made = cls(*sizes, layer.bias is not None, device="meta", **options)  # type: ignore[arg-type]
        made.weight, made.bias = layer.weight, layer.bias
        return made.train(layer.training)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """activation(x @ weight.T + bias), of shape (..., out_features)."""
        weight, bias = weight_and_bias(self, DenseLinear)
        return linear(input, weight, bias, self.activation, self.allow_tf32, self.config)
