"""Linear layers of other libraries in place. Class, methods, parameters and hooks stay, the product is layoutgemm's.

subclass of torch.nn.Linear, with its forward        the same object, of a class of both          torchtitan
layer whose `quant_method` multiplies a dense weight  the same object, with a method of both       vLLM, SGLang
"""

from __future__ import annotations

import copy
import os
from typing import Any

import torch

from ..errors import OperandError
from ..torch_op.api import linear

_USUAL = frozenset(vars(torch.nn.Linear(1, 1, device="meta")))
_SERVERS = ("vllm", "sglang")  # whose method of this name is F.linear(x, layer.weight, bias) on NVIDIA's GPUs
_METHOD = "UnquantizedLinearMethod"
_INVARIANT = "VLLM_BATCH_INVARIANT"  # vLLM then takes another product
_PACKED = ("cpu_linear", "use_intel_amx_backend")  # attributes of layers whose weight was packed for a CPU


class DenseMethod:
    """x @ layer.weight.T + bias in one kernel, in the place of a server's method."""

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """The product of a layer, of its local shard."""
        weight = layer.weight
        assert isinstance(weight, torch.Tensor)
        # vLLM's parameters are a class of torch.nn.Parameter's, whose calls torch hands to that class first.
        return linear(x, weight if weight.requires_grad else weight.data, bias)


def keeps_forward(layer: torch.nn.Module) -> bool:
    """True for a subclass of torch.nn.Linear, not torch's own, that has its forward.

    >>> keeps_forward(type("Configured", (torch.nn.Linear,), {"__module__": "here"})(2, 2))
    True
    >>> keeps_forward(torch.nn.Linear(2, 2)), keeps_forward(torch.nn.MultiheadAttention(2, 1).out_proj)
    (False, False)
    """
    kind = type(layer)
    return (
        isinstance(layer, torch.nn.Linear) and kind is not torch.nn.Linear
        and kind.forward is torch.nn.Linear.forward and not kind.__module__.startswith("torch.")
    )  # fmt: skip


_JOINED: dict[tuple[type, type], Any] = {}


def joined(ours: Any, kind: Any) -> Any:
    """The class of both: the product is that of `ours`, all else of `kind`.

    Raises OperandError where a name means two things, or Python joins no such classes.
    """
    if (ours, kind) in _JOINED:
        return _JOINED[ours, kind]
    names = [name for each in _own(ours) for name in vars(each) if not name.startswith("__")]
    theirs = [name for each in _own(kind) for name in vars(each)]
    if clash := [name for name in names if name in theirs and name not in ("forward", "extra_repr", "apply")]:
        raise OperandError(f"{clash[0]} of a {kind.__qualname__} has another meaning in a {ours.__name__}")
    space: dict[str, Any] = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__init__": kind.__init__,
    }
    if "extra_repr" in theirs:
        space["extra_repr"] = kind.extra_repr  # type: ignore[attr-defined]

    def reduced(self: Any, protocol: int) -> object:
        """Pickled by both classes: nothing can import the joined one."""
        _, _, *rest = super(made, self).__reduce_ex__(max(2, protocol))
        return (_empty, (ours, kind), *rest)

    made: Any = None
    try:
        made = type(kind)(kind.__name__, (ours, kind), {**space, "__reduce_ex__": reduced})
        object.__new__(kind).__class__ = made
    except TypeError as error:
        raise OperandError(f"a {kind.__qualname__} and a {ours.__name__} are no class together: {error}") from error
    return _JOINED.setdefault((ours, kind), made)


def _own(kind: type) -> list[type]:
    """The classes in front of torch's and Python's own."""
    return [each for each in kind.__mro__ if each is not object and not each.__module__.startswith("torch.")]


def _empty(ours: type, kind: type) -> object:
    return object.__new__(joined(ours, kind))


def check_adopted(layer: torch.nn.Module, like: torch.nn.Module) -> None:
    """Raise OperandError unless a subclass of torch.nn.Linear can multiply as `like` does."""
    joined(type(like), type(layer))
    if taken := [name for name in _options(like) if name in vars(layer)]:
        raise OperandError(f"its attribute {taken[0]} has another meaning in a {type(like).__name__}")


def adopt(layer: torch.nn.Module, like: torch.nn.Module) -> None:
    """Make a subclass of torch.nn.Linear multiply as `like`, a layer of ours."""
    rows = layer.__dict__.pop("out_features")
    layer.__class__ = joined(type(like), type(layer))
    for name, value in {**_options(like), "out_features": rows}.items():
        setattr(layer, name, value)


def _options(like: torch.nn.Module) -> dict[str, Any]:
    """The attributes of a layer of ours that torch.nn.Linear does not have."""
    return {name: x for name, x in vars(like).items() if name not in _USUAL and name != "weight_rows"}


def method_to_adopt(module: torch.nn.Module) -> object:
    """The dense method of a server's linear layer, or None."""
    method = getattr(module, "quant_method", None)
    kind = type(method)
    is_one = (
        kind.__qualname__ == _METHOD
        and not isinstance(method, DenseMethod)
        and kind.__module__.partition(".")[0] in _SERVERS
    )
    return method if is_one and isinstance(getattr(module, "weight", None), torch.Tensor) else None


def is_served(module: torch.nn.Module) -> bool:
    """True for a server's linear layer with a dense method, its own or ours."""
    return method_to_adopt(module) is not None or isinstance(getattr(module, "quant_method", None), DenseMethod)


def reason_of_method(module: torch.nn.Module) -> str:
    """Why a server's layer keeps its method, or ""."""
    weight = module.weight
    if os.environ.get(_INVARIANT, "0") not in ("", "0"):
        return f"{_INVARIANT} asks for rows whose bits do not depend on the others, and the kernel's choice does"
    if packed := [name for name in _PACKED if getattr(module, name, None)]:
        return f"its weight is packed for a CPU: it has {packed[0]}"
    if not isinstance(weight, torch.Tensor) or weight.ndim != 2 or weight.numel() == 0:
        return f"its weight has shape {list(weight.shape)}, which is no matrix: load the model first"  # type: ignore[union-attr]
    joined(DenseMethod, type(module.quant_method))
    return ""


def adopt_method(module: torch.nn.Module) -> None:
    """Give a server's layer a copy of its method that multiplies by layoutgemm."""
    method = copy.copy(method_to_adopt(module))
    method.__class__ = joined(DenseMethod, type(method))
    module.quant_method = method  # type: ignore[assignment]
