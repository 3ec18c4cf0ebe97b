"""swap_linears: what it replaces, what it leaves and why, on the CPU."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from layoutgemm import nn
from layoutgemm.errors import LayoutError, OperandError
from layoutgemm.kernels.quantized.formats import QuantizedFormat
from layoutgemm.nn import GatedMLP, Linear, QuantizedLinear, ScaledLinear, swap_linears

BF16 = torch.bfloat16


class Mlp(torch.nn.Module):
    """A gated MLP as transformers has it."""

    def __init__(self, act_fn: Any, extra: bool = False) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (torch.nn.Linear(16, 32, bias=False, dtype=BF16) for _ in range(2))
        self.down_proj = torch.nn.Linear(32, 16, bias=False, dtype=BF16)
        self.act_fn, self.extra = act_fn, extra

    def forward(self, x: Any) -> Any:
        value = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
        return value + x if self.extra else value


class Model(torch.nn.Module):
    """Layers of every kind that swap_linears tells apart."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(12, 16, dtype=BF16)
        self.plain = torch.nn.Linear(16, 16, dtype=BF16)
        self.again = self.plain
        self.hooked = torch.nn.Linear(16, 16, dtype=BF16)
        self.hooked.register_forward_hook(lambda *x: None)
        self.normed = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(16, 16, dtype=BF16))
        self.wide = torch.nn.Linear(16, 16)
        self.double = torch.nn.Linear(16, 16, dtype=torch.float64)
        self.attention = torch.nn.MultiheadAttention(16, 2, dtype=BF16)
        self.head = torch.nn.Linear(16, 12, bias=False, dtype=BF16)
        self.head.weight = self.embed.weight

    def forward(self, at: Any) -> Any:
        return self.head(self.again(self.plain(self.embed(at))))


def test_replaced_and_left_with_reasons() -> None:
    model = Model()
    state, at = {key: value.clone() for key, value in model.state_dict().items()}, torch.arange(12)
    parameters, want = list(model.parameters()), model(at).detach()
    swaps = swap_linears(model)
    assert [each.name for each in swaps.replaced] == ["plain", "head"]
    reasons = {each.name: each.reason for each in swaps.left}
    assert "forward_hooks" in reasons["hooked"] and "parametrized: weight" in reasons["normed"]
    assert "tf32" in reasons["wide"] and "float64" in reasons["double"]
    assert "NonDynamicallyQuantizableLinear" in reasons["attention.out_proj"]
    assert isinstance(model.plain, Linear) and model.again is model.plain and model.head.weight is model.embed.weight
    assert all(x is y for x, y in zip(parameters, model.parameters(), strict=True))
    assert list(state) == list(model.state_dict())
    got = model(at).detach()
    assert float((got - want).abs().max()) <= 2.0**-6 * float(want.abs().max())
    assert str(swaps).endswith("2 of 7 linear layers replaced; 1 other module left")
    assert [each.name for each in swaps.others] == ["attention"]
    assert len(swap_linears(model).replaced) == 0


def test_fp8_leaves_tied_weights() -> None:
    model = Model()
    swaps = swap_linears(model, weights="fp8")
    assert [each.by for each in swaps.replaced] == ["ScaledLinear"]
    assert "tied to embed" in next(each.reason for each in swaps.left if each.name == "head")
    assert isinstance(model.plain, ScaledLinear)
    assert set(model.state_dict()) == set(Model().state_dict())
    model.load_state_dict(Model().state_dict())


def test_float32_is_replaced_where_it_may_be_multiplied() -> None:
    assert swap_linears(torch.nn.Sequential(torch.nn.Linear(4, 4)), allow_tf32=True).replaced
    with torch.autocast("cpu", BF16):
        assert swap_linears(torch.nn.Sequential(torch.nn.Linear(4, 4))).replaced


@pytest.mark.parametrize("where", ["0", ["0", "2"], lambda name, module: name == "0"])
def test_where_says_which(where: Any) -> None:
    model = torch.nn.Sequential(*[torch.nn.Linear(4, 4, dtype=BF16) for _ in range(2)])
    swaps = swap_linears(model, where)
    assert [bool(each.by) for each in swaps] == [True, False]
    assert "where" in swaps.left[0].reason and type(model[1]) is torch.nn.Linear


@pytest.mark.parametrize(
    ("act", "extra", "fits"),
    [(torch.nn.SiLU(), False, True), (torch.nn.GELU(), False, True), (torch.nn.GELU("tanh"), False, False),
     (torch.nn.SiLU(), True, False)],
)  # fmt: skip
def test_gated_mlps_are_recognised_by_their_values(act: Any, extra: bool, fits: bool) -> None:
    model = torch.nn.ModuleDict({"mlp": Mlp(act, extra)})
    state, x = copy.deepcopy(model.state_dict()), torch.randn(5, 16).to(BF16)
    want = model["mlp"](x).detach()
    swaps = swap_linears(model, gated=True)
    assert {each.by for each in swaps.replaced} == {"GatedMLP" if fits else "DenseLinear"} and len(swaps.replaced) == 3
    assert isinstance(model["mlp"], GatedMLP) == fits
    assert set(state) == set(model.state_dict())
    assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())
    assert float((model["mlp"](x).detach() - want).abs().max()) <= 2.0**-5 * float(want.abs().max())


@pytest.mark.parametrize("weights", ["fp8", "master"])
def test_gated_mlps_become_those_of_the_weights_asked_for(weights: str) -> None:
    model = torch.nn.ModuleDict({"mlp": Mlp(torch.nn.SiLU(), False)})
    keys, x = set(model.state_dict()), torch.randn(5, 16).to(BF16)
    want = model["mlp"](x).detach()
    swaps = swap_linears(model, gated=True, weights=weights)
    assert {each.by for each in swaps.replaced} == {"GatedMLP"} and len(swaps.replaced) == 3
    assert type(model["mlp"].gate_up).__name__ == {"fp8": "ScaledLinear", "master": "MasterLinear"}[weights]
    assert set(model.state_dict()) == keys
    assert float((model["mlp"](x).detach() - want).abs().max()) <= 0.2 * float(want.abs().max())


def test_refusals() -> None:
    with pytest.raises(OperandError, match="a linear layer itself"):
        swap_linears(torch.nn.Linear(4, 4))
    with pytest.raises(OperandError, match="weights 'int4'"):
        swap_linears(torch.nn.Sequential(), weights="int4")


class Routed(torch.nn.Module):
    """Experts as models hold them: parameters of three dimensions, a router, and vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = torch.nn.Linear(128, 4, bias=False, dtype=BF16)
        self.up = torch.nn.Parameter(torch.zeros(4, 128, 64, dtype=BF16))
        self.down = torch.nn.Parameter(torch.zeros(4, 64, 128, dtype=BF16))
        self.norm, self.token = torch.nn.RMSNorm(128), torch.nn.Parameter(torch.zeros(1, 1, 128))


def test_matrices_outside_of_linear_layers_are_reported() -> None:
    model = torch.nn.Sequential(Routed(), torch.nn.Embedding(3, 4), torch.nn.Conv2d(3, 4, 2))
    swaps = swap_linears(model)
    assert [each.name for each in swaps] == ["0.gate"]
    assert str(swaps).splitlines()[1:] == [
        "left      0: a Routed with up [4, 128, 64], down [4, 64, 128], which is no linear layer",
        "1 of 1 linear layers replaced; 1 other module left",
    ]


def test_weights_are_packed_in_a_format() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(*s, dtype=BF16) for s in ((128, 64), (64, 100), (100, 128), (64, 8))])
    model[3].weight = torch.nn.Embedding(8, 64, dtype=BF16).weight
    model.append(torch.nn.Module())
    model[4].weight = model[3].weight
    model.append(torch.nn.Linear(64, 64))
    dense, x = copy.deepcopy(model[0]), torch.randn(3, 128).to(BF16)
    swaps = swap_linears(model, weights=QuantizedFormat("int4", 32))
    assert [(each.name, each.by) for each in swaps.replaced] == [("0", "QuantizedLinear"), ("1", "QuantizedLinear")]
    said = [f"{each.name}: {each.reason}" for each in swaps.left]
    assert said[0].startswith("2: K = 100 is 3 groups of 32 and 4 more"), said
    assert said[1].startswith("3: its weight is tied to 4") and said[2].startswith("5: weight is torch.float32, and x")
    assert torch.equal(model[0](x), QuantizedLinear.from_linear(dense, QuantizedFormat("int4", 32))(x))
    with pytest.raises(OperandError, match="gated=True with weights of int8"):
        swap_linears(model, weights=QuantizedFormat("int8"), gated=True)


@pytest.mark.parametrize("weights", ["own", "fp8", "master", QuantizedFormat("int8")], ids=str)
def test_models_may_cast_to_the_type_of_a_layer_s_weight(weights: Any) -> None:
    """T5, Mamba2 and heads cast x to it: to 8 bits it would be rounded twice, and once without a scale."""
    model = torch.nn.Sequential(torch.nn.Linear(128, 64, dtype=BF16))
    swap_linears(model, weights=weights)
    weight = model[0].weight
    assert (weight.dtype, tuple(weight.shape), weight.device) == (BF16, (64, 128), torch.device("cpu"))
    assert model.half()[0].weight.dtype == (BF16 if isinstance(weights, QuantizedFormat) else torch.float16)


def test_layers_refuse_values_of_other_types_by_name() -> None:
    """Texts were read as True; sizes and modules of other types ended in torch errors."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 4))
    calls: list[tuple[Any, str]] = [
        (lambda: swap_linears([]), "model of swap_linears must be a torch.nn.Module"),
        (lambda: swap_linears(model, gated="no"), "gated of swap_linears must be True or False, not 'no'"),
        (lambda: swap_linears(model, allow_tf32="no"), "allow_tf32 of swap_linears must be True or False, not 'no'"),
        (lambda: swap_linears(model, where=1), "where of swap_linears must be a function, a pattern"),
        (lambda: swap_linears(model, weights=["own"]), r"weights \['own'\]"),
        (lambda: Linear("8", 4), "in_features must be an integer, not '8'"),
        (lambda: ScaledLinear(8, -4), "out_features must be at least 0, not -4"),
        (lambda: nn.MasterLinear(8, 4.0), "out_features must be an integer, not 4.0"),
        (lambda: GatedMLP(8, None), "hidden_features must be an integer"),
        (lambda: GatedMLP(8, 8, ["swiglu"]), "activation .*of gated products known are"),
        (lambda: QuantizedLinear("int8"), "weight of QuantizedLinear must be a QuantizedWeight"),
        (lambda: nn.Checkpoint(3), "path of Checkpoint must be a path"),
    ]
    for call, said in calls:
        with pytest.raises(LayoutError, match=said):
            call()
    assert type(model[0]) is torch.nn.Linear


KINDS = {"own": "own", "master": "master", "fp8": "fp8", "packed": QuantizedFormat("int4", 128)}


@pytest.mark.parametrize("kind", KINDS)
def test_attributes_of_layers_and_parameters_stay_or_keep_the_layer(kind: str) -> None:
    """Loaders that walk parameters find the attributes that a library has put there."""
    kept = kind in ("own", "master")
    model = torch.nn.Sequential(*[torch.nn.Linear(128, 128, dtype=BF16) for _ in range(4)])
    model[0].prefix = "model.0"
    model[1].weight.weight_loader = print
    model[2].weight.register_hook(lambda grad: grad)
    model[3].extra_repr = model[3].weights = "taken"  # one that every module has, and one that none has
    weight = model[1].weight
    swaps = swap_linears(model, weights=KINDS[kind])
    assert swaps.layers[0].by and model[0].prefix == "model.0"
    assert (model[1].weight is weight) and bool(swaps.layers[1].by) is kept
    if not kept:
        assert swaps.layers[1].reason == "its weight has weight_loader, which would be lost"
        assert swaps.layers[2].reason == "its weight has backward_hooks, which would be lost"
    assert "its attribute extra_repr has another meaning in a " in swaps.layers[3].reason


def test_layers_with_state_of_their_own_are_left() -> None:
    model = torch.nn.Sequential(*[torch.nn.Linear(16, 16, dtype=BF16) for _ in range(5)])
    model[0].register_buffer("mask", torch.ones(16))
    model[1].lora = torch.nn.Linear(16, 1)
    model[2].register_parameter("scale", torch.nn.Parameter(torch.ones(16)))
    model[3].register_load_state_dict_post_hook(lambda *x: None)
    model[4]._compiled_call_impl = model[4]._call_impl  # as compile() leaves it
    keys = [*model.state_dict()]
    reasons = [each.reason.partition(",")[0] for each in swap_linears(model) if len(each.name) == 1]
    assert reasons[:4] == ["it has mask", "it has lora", "it has scale", "it has load_state_dict_post_hooks"]
    assert reasons[4].startswith("its compile() was called") and [*model.state_dict()] == keys


def test_a_gate_joins_no_layers_with_attributes() -> None:
    model = torch.nn.Sequential(Mlp(torch.nn.SiLU()), Mlp(torch.nn.SiLU()))
    model[0].up_proj.weight.weight_loader = print
    swap_linears(model, gated=True)
    assert not isinstance(model[0], GatedMLP) and isinstance(model[1], GatedMLP)
    assert model[0].up_proj.weight.weight_loader is print


class Configured(torch.nn.Linear):
    """A layer of another library: torch's forward, and methods that a replacement would not have."""

    def described(self) -> str:
        return f"{self.in_features} to {self.out_features}"


class Clashing(torch.nn.Linear):
    """A layer with an attribute of another meaning."""

    activation = 3


class Doubled(torch.nn.Linear):
    """A layer with a forward of its own."""

    def forward(self, x: Any) -> Any:
        return 2 * super().forward(x)


def test_subclasses_stay_with_their_methods_or_are_left() -> None:
    torch.manual_seed(0)
    configured = Configured(16, 16, dtype=BF16)
    model = torch.nn.Sequential(configured, Doubled(16, 16, dtype=BF16), Clashing(16, 16, dtype=BF16))
    configured.register_buffer("own", torch.ones(1))
    calls: list[Any] = []
    configured.register_forward_hook(lambda *x: calls.append(x))
    kept, x = dict(model.named_parameters()), torch.randn(4, 16).to(BF16)
    want, state = model[0](x), list(model.state_dict())
    first, *others = swap_linears(model)
    assert first.by == "DenseLinear" and [each.reason for each in others] == [
        "a Doubled, whose forward may be its own",
        "activation of a Clashing has another meaning in a DenseLinear",
    ]
    assert model[0] is configured and isinstance(configured, Configured) and isinstance(configured, Linear)
    assert all(value is kept[name] for name, value in model.named_parameters()) and [*model.state_dict()] == state
    assert torch.equal(model[0](input=x), want) and len(calls) == 2 and configured.described() == "16 to 16"
    assert type(configured)(16, 8).weight.shape == (8, 16)
    configured._forward_hooks.clear()
    for again in (copy.deepcopy(configured), pickle.loads(pickle.dumps(configured))):
        assert type(again) is type(configured) and torch.equal(again(x), want)
    assert [each.name for each in swap_linears(model)] == ["1", "2"], "a layer that was replaced is not met again"


def test_subclasses_train_in_fp8_and_keep_their_methods() -> None:
    model = torch.nn.Sequential(Configured(256, 128, dtype=BF16))
    assert swap_linears(model, weights="fp8").left[0].reason.startswith(f"a {__name__}.Configured, whose other methods")
    assert swap_linears(model, weights="master").replaced[0].by == "MasterLinear"
    model(torch.ones(2, 256, dtype=BF16)).sum().backward()
    assert model[0].weight.grad.shape == (128, 256) and model[0].described() == "256 to 128"


class Served(torch.nn.Module):
    """A linear layer of a server: its product is a method's, and the bias may come beside the result."""

    def __init__(self, method: Any):
        super().__init__()
        self.weight, self.bias = (torch.nn.Parameter(torch.randn(*n, dtype=BF16)) for n in ((8, 16), (8,)))
        self.quant_method = method

    def forward(self, x: Any) -> Any:
        return self.quant_method.apply(self, x), self.bias


class UnquantizedLinearMethod:
    """The dense method of vLLM and of SGLang, by its name."""

    __module__ = "vllm.model_executor.layers.linear"

    def apply(self, layer: Any, x: Any, bias: Any = None) -> Any:
        raise AssertionError("the server's own product")

    def create_weights(self) -> str:
        return "theirs"


def test_layers_of_servers_get_a_method_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, wide = Served(UnquantizedLinearMethod()), Served(UnquantizedLinearMethod())
    wide.cpu_linear = print  # type: ignore[assignment]
    model, x = (
        torch.nn.ModuleDict({"layer": layer, "wide": wide, "other": Served(object())}),
        torch.ones(2, 16).to(BF16),
    )
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    assert swap_linears(model).left[0].reason.startswith("VLLM_BATCH_INVARIANT asks")
    monkeypatch.delenv("VLLM_BATCH_INVARIANT")
    assert "weights='own'" in swap_linears(model, weights="fp8").left[0].reason
    swaps = swap_linears(model)
    assert [each.name for each in swaps.replaced] == ["layer"] and [each.name for each in swaps.others] == ["other"]
    assert swaps.left[0].reason == "its weight is packed for a CPU: it has cpu_linear"
    value, bias = copy.deepcopy(model)["layer"](x)
    assert torch.equal(value, torch.nn.functional.linear(x, layer.weight)) and torch.equal(bias, layer.bias)
    assert isinstance(layer.quant_method, UnquantizedLinearMethod) and layer.quant_method.create_weights() == "theirs"
    assert type(wide.quant_method) is UnquantizedLinearMethod
    assert [each.name for each in swap_linears(model)] == ["wide"]


def test_the_report_is_short_for_many_layers_and_counts_our_own() -> None:
    model = torch.nn.ModuleDict({"layers": torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(6)).bfloat16()})
    first = swap_linears(model, where=["layers.[0-3]", "layers.5"])
    assert len(first) == 6 and str(first).splitlines() == [
        "replaced  layers.{0-3,5}  by DenseLinear",
        "left      layers.4: not in where=['layers.[0-3]', 'layers.5']",
        "5 of 6 linear layers replaced",
    ]
    assert str(swap_linears(model)).endswith("1 of 1 linear layers replaced; 5 of layoutgemm's own stay as they are")
