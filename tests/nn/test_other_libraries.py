"""Layers with an activation refuse tools that take them for x @ weight.T + bias; others give right results."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.utils.fusion import fuse_linear_bn_eval
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from layoutgemm.errors import LayoutError, OperandError
from layoutgemm.kernels.quantized.formats import QuantizedFormat
from layoutgemm.nn import DenseLinear, GatedMLP, MasterLinear, QuantizedLinear, ScaledLinear, swap_linears

BF16 = torch.bfloat16
LAYERS: dict[str, Callable[..., Any]] = {
    "dense": DenseLinear.of,
    "master": MasterLinear.of,
    "float8": ScaledLinear.of,
    "packed": QuantizedLinear.from_linear,
}
EVERY = pytest.mark.parametrize("name", LAYERS)


def layer() -> Any:
    torch.manual_seed(0)
    return torch.nn.Linear(128, 128, dtype=BF16)


def batch_norm() -> Any:
    norm = torch.nn.BatchNorm1d(128, dtype=BF16).eval()
    norm.running_mean.normal_()
    norm.weight.data.uniform_(0.5, 2)
    return norm


@EVERY
def test_a_layer_with_an_activation_has_no_out_features(name: str) -> None:
    """PEFT's adapters and bitsandbytes' layers read them, and leave the activation in front or out."""
    made = LAYERS[name](layer(), activation="relu")
    with pytest.raises(OperandError, match=r"out_features of a \w+ with activation='relu': adapters, folds and repl"):
        made.out_features  # noqa: B018
    assert made.weight_rows == 128 and "out_features=128, bias=True" in repr(made)
    assert LAYERS[name](layer()).out_features == 128
    assert len(inspect.getmembers(made)) > 10  # of every other attribute
    LAYERS[name](layer(), activation="relu").load_state_dict(made.state_dict())


class Sized(torch.nn.Module):
    """A module around a layer, with sizes that it has not read from it: they are its weight's."""

    def __init__(self, layer: Any, **others: Any):
        super().__init__()
        self.layer, self.out_features = layer, 128
        for name, x in others.items():
            setattr(self, name, x)


@EVERY
def test_an_adapter_that_reads_no_out_features_takes_no_activated_layer_s_place(name: str) -> None:
    model = torch.nn.Sequential(LAYERS[name](layer(), activation="gelu"), LAYERS[name](layer()))
    activated, plain = model
    with pytest.raises(OperandError, match=r"^0 is a \w+ with activation='gelu', and a module of Sized with"):
        model[0] = Sized(activated)
    assert model[0] is activated
    model[1] = Sized(plain)
    model[0] = Sized(activated, parameter_name="weight")  # adds to the weight, in front of the activation


def test_modules_that_call_a_layer_take_its_place() -> None:
    model = torch.nn.Sequential(DenseLinear.of(layer(), activation="gelu"))
    model[0] = torch.nn.Sequential(model[0], torch.nn.Linear(128, 2))
    model[0][0] = checkpoint_wrapper(model[0][0])
    model[0][0] = torch.nn.Linear(128, 128)


@EVERY
def test_a_batch_norm_is_folded_in_front_of_no_activation(name: str) -> None:
    norm, x = batch_norm(), torch.randn(4, 128).to(BF16)
    with pytest.raises(OperandError, match="activation='gelu'"):
        fuse_linear_bn_eval(LAYERS[name](layer(), activation="gelu").eval(), norm)
    plain = LAYERS[name](layer()).eval()
    if name in ("float8", "packed"):
        with pytest.raises(OperandError, match="Weight is no tensor to compute with, dense"):
            fuse_linear_bn_eval(plain, norm)
        return
    with torch.no_grad():
        got, want = fuse_linear_bn_eval(plain, norm)(x), norm(plain(x))
    assert float((got - want).abs().max()) <= 0.05 * float(want.abs().max())


@pytest.mark.parametrize("name", ["float8", "packed"])
def test_a_module_that_multiplies_by_a_layer_s_weight_is_refused(name: str) -> None:
    """As Mamba's and EVA's do: for weights in their own type it is right."""
    weight, x = LAYERS[name](layer()).weight, torch.ones(128, 2, dtype=BF16)
    for compute in (
        lambda: weight @ x, lambda: x.mT @ weight, lambda: 2 * weight, lambda: x + weight, lambda: weight - x,
        lambda: torch.nn.functional.linear(x.mT, weight), lambda: torch.mm(input=weight, mat2=x),
        lambda: torch.cat([weight, weight]),
    ):  # fmt: skip
        said = "a module that reads a layer's weight itself keeps that layer, by where= .*; here it reads .*128"
        with pytest.raises(OperandError, match=said):
            compute()


@pytest.mark.parametrize("make", [*LAYERS.values(), lambda x: GatedMLP.of(x, layer(), layer())])
def test_layers_are_made_of_layers_without_an_activation(make: Callable[..., Any]) -> None:
    """The activation of the layer before was dropped."""
    with pytest.raises(OperandError, match="activation='silu'"):
        make(DenseLinear.of(layer(), activation="silu"))


@pytest.mark.parametrize("weights", ["own", "fp8", QuantizedFormat("int8")], ids=str)
def test_encoder_layers_that_read_weights_themselves_keep_them(weights: Any, monkeypatch: Any) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.TransformerEncoderLayer(128, 2, 128, batch_first=True, dtype=BF16)).eval()
    x = torch.randn(1, 3, 128).to(BF16)
    with torch.no_grad():
        want = model(x)
        swaps = swap_linears(model, weights=weights)
        said = {each.name: each.reason for each in swaps}
        assert "in eval mode 0, a TransformerEncoderLayer, reads its weight" in said["0.linear1"] and said["0.linear2"]
        assert torch.equal(model(x), want)
        calls: list[Any] = []
        monkeypatch.setattr(torch.backends.mha, "_is_fastpath_enabled", False)
        assert [each.name for each in swap_linears(model, weights=weights).replaced] == ["0.linear1", "0.linear2"]
        model[0].linear1.register_forward_hook(lambda *given: calls.append(given))
        assert float((model(x) - want).abs().max()) <= 0.1 and len(calls) == 1


def test_refusals_are_the_package_s_own_errors() -> None:
    with pytest.raises(LayoutError):
        getattr(MasterLinear(128, 128, activation="relu"), "out_features", None)


@pytest.mark.parametrize("name", ["float8", "packed"])
def test_averages_of_a_model_copy_codes(name: str) -> None:
    """Codes have no mean: torch averages parameters, and copies buffers unless it is told otherwise."""
    first, second = (LAYERS[name](torch.nn.Linear(128, 128, dtype=BF16)) for _ in range(2))
    average = AveragedModel(first, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    average.update_parameters(first)
    average.update_parameters(second)
    x, bias = torch.randn(4, 128).to(BF16), (first.bias + second.bias).detach() / 2
    with torch.no_grad():
        second.bias.copy_(bias)
        assert torch.equal(average(x), second(x))


class Packed(torch.Tensor):
    """A weight of another library, whose class multiplies as torch.nn.functional.linear alone."""

    @staticmethod
    def __new__(cls, inner: Any) -> Any:
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.nn.functional.linear:
            return torch.nn.functional.linear(args[0], args[1].inner, *args[2:])
        return super().__torch_function__(function, types, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "detach" in str(function):
            return cls(args[0].inner)
        raise NotImplementedError(f"unimplemented {function}")


def test_a_weight_whose_class_refuses_the_product_is_named() -> None:
    """torchao's `quantize_` puts such weights into our layers, which are subclasses of torch.nn.Linear."""
    made, theirs, x = DenseLinear.of(layer()), layer(), torch.ones(2, 128, dtype=BF16)
    for each in (made, theirs):
        each.weight = torch.nn.Parameter(Packed(each.weight.detach()), requires_grad=False)
    with pytest.raises(
        OperandError, match=r"weight is a tests\.nn\.\w+\.Packed, a class without a rule .* torch.nn.Linear"
    ):
        made(x)
    assert theirs(x).shape == (2, 128) and "its weight is a Packed" in str(swap_linears(torch.nn.Sequential(theirs)))
