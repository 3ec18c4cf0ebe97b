"""layoutgemm.nn.Linear, GatedMLP and ScaledLinear beside torch's modules, on the CPU."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from layoutgemm import QuantizedFormat, scaled_matmul
from layoutgemm.errors import LayoutError, OperandError, TensorError
from layoutgemm.nn import GatedMLP, Linear, MasterLinear, QuantizedLinear, ScaledLinear, scaled
from layoutgemm.nn.scaled import dequantized, quantized
from layoutgemm.torch_op.api import linear

BF16 = torch.bfloat16


def normal(*shape: int, dtype: Any = BF16) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def near(got: Any, want: Any, eps: float = 2.0**-7) -> bool:
    return got.shape == want.shape and bool((got.double() - want.double()).abs().max() <= eps * want.abs().max())


@pytest.mark.parametrize("bias", [True, False])
def test_linear_is_torch_linear_in_values_and_gradients(bias: bool) -> None:
    theirs = torch.nn.Linear(24, 16, bias=bias, dtype=BF16)
    ours = copy.deepcopy(Linear.of(theirs))
    assert list(ours.state_dict()) == list(theirs.state_dict())
    x, y = (normal(2, 5, 24).requires_grad_() for _ in range(2))
    one, two = ours(x), theirs(y)
    assert near(one, two) and one.dtype == two.dtype
    one.square().sum().backward()
    two.square().sum().backward()
    assert near(x.grad, y.grad, 2.0**-5)
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert near(mine.grad, other.grad, 2.0**-5)


def test_a_training_step_moves_the_parameters_as_torch_does() -> None:
    theirs = torch.nn.Linear(16, 8, dtype=BF16)
    ours = copy.deepcopy(Linear.of(theirs))
    for layer in (ours, theirs):
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        layer(normal(4, 16)).float().square().mean().backward()
        optimizer.step()
    assert near(ours.weight, theirs.weight)


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "swiglu"])
def test_activation_in_eval_and_in_training_agree(activation: str) -> None:
    torch.manual_seed(7)  # the weights, as `normal` seeds x
    layer = Linear(16, 8, dtype=BF16, activation=activation)
    x = normal(4, 16)
    with torch.no_grad():
        want = layer(x)
    assert near(layer(x), want) and want.shape == (4, 4 if activation == "swiglu" else 8)


def test_a_layer_reads_the_tensors_that_its_attributes_are() -> None:
    """A property of a subclass, and a plain tensor in a parameter's place."""

    class Halved(Linear):
        weight = property(lambda self: self._parameters["weight"] / 2)

    x, layer = normal(2, 4), Linear(4, 3, dtype=BF16)
    whole = layer(x)
    layer.__class__ = Halved
    assert torch.equal(layer(x), linear(x, layer.weight, layer.bias)) and not torch.equal(layer(x), whole)
    layer.__class__ = Linear
    del layer.weight
    layer.weight = normal(3, 4)
    assert torch.equal(layer(x), linear(x, layer.weight, layer.bias))


def test_autocast_multiplies_float32_weights_in_bfloat16() -> None:
    layer = Linear(16, 8)
    with pytest.raises(OperandError, match="tf32"):
        layer(normal(4, 16, dtype=torch.float32))
    with torch.autocast("cpu", BF16):
        value = layer(normal(4, 16, dtype=torch.float32))
    assert value.dtype == BF16
    value.float().sum().backward()
    assert layer.weight.grad is not None and layer.weight.grad.dtype == torch.float32


@pytest.mark.parametrize("make", [
    lambda: Linear(16, 8, dtype=BF16, activation="relu"), lambda: GatedMLP(16, 32, dtype=BF16),
    lambda: ScaledLinear.of(torch.nn.Linear(16, 8, dtype=BF16)),
])  # fmt: skip
def test_copies_and_compiled_modules_agree(make: Any) -> None:
    layer, x = make(), normal(4, 16)
    with torch.no_grad():
        want = layer(x)
        for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            assert torch.equal(other(x), want)
        torch._dynamo.reset()
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(x), want)
    trained = torch.compile(layer, fullgraph=True, backend="aot_eager")(x)
    assert near(trained, want)
    trained.float().sum().backward()
    assert all(p.grad is not None for p in layer.parameters())


def test_a_compiled_linear_is_one_product_with_its_bias_and_activation() -> None:
    seen: list[str] = []

    def backend(graph: Any, inputs: Any) -> Any:
        seen.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    with torch.no_grad():
        torch.compile(Linear(16, 8, dtype=BF16, activation="gelu"), fullgraph=True, backend=backend)(normal(4, 16))
    assert [name for name in seen if "layoutgemm" in name and "check" not in name] == ["layoutgemm.finished"]
    assert not any("gelu" in name or "add" in name for name in seen)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("activation", [None, "relu"])
def test_a_traced_linear_is_the_same_graph_with_and_without_gradients(activation: Any) -> None:
    """torch.jit.trace traces twice, the second time without recording, and compares the graphs."""
    layer, x = Linear(6, 8, dtype=BF16, activation=activation), normal(4, 6)
    for given in (x, x.clone().requires_grad_()):
        assert torch.equal(torch.jit.trace(layer, (given,))(x), layer(x))


def test_modules_on_meta_have_shapes_and_load() -> None:
    with torch.device("meta"):
        layers = Linear(16, 8, dtype=BF16), GatedMLP(16, 32, dtype=BF16), ScaledLinear(16, 8)
    for layer in layers[:2]:
        assert layer(torch.empty(3, 16, dtype=BF16, device="meta")).shape[:1] == (3,)
    real = torch.nn.Linear(16, 8, dtype=BF16)
    layers[0].load_state_dict(real.state_dict(), assign=True)
    assert torch.equal(layers[0](normal(4, 16)), Linear.of(real)(normal(4, 16)))
    layers[2].to_empty(device="cpu").load_state_dict(real.state_dict())
    assert torch.equal(layers[2](normal(4, 16)), ScaledLinear.of(real)(normal(4, 16)))


def test_gated_mlp_has_llamas_state_dict_and_values() -> None:
    ours, parts = GatedMLP(16, 32, dtype=BF16), [torch.nn.Linear(*s, bias=False, dtype=BF16) for s in
                                                 ((16, 32), (16, 32), (32, 16))]  # fmt: skip
    state = {f"{name}.weight": part.weight for name, part in zip(ours.names, parts, strict=True)}
    ours.load_state_dict(state)
    again = ours.state_dict()
    assert set(again) == set(state) and all(torch.equal(again[key], state[key]) for key in state)
    x = normal(4, 16)
    gate, up, down = parts
    assert near(ours(x), down(torch.nn.functional.silu(gate(x)) * up(x)), 2.0**-6)
    assert torch.equal(GatedMLP.of(gate, up, down)(x), ours(x))
    half = ours.load_state_dict({"up_proj.weight": up.weight + 1}, strict=False)
    assert half.missing_keys == ["gate_proj.weight", "down_proj.weight"] and not half.unexpected_keys
    assert torch.equal(ours.up_proj.weight, up.weight + 1) and torch.equal(ours.gate_proj.weight, gate.weight)
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "0.down_proj.weight"\. $'):
        torch.nn.Sequential(ours).load_state_dict({f"0.{name}": x for name, x in state.items() if "down" not in name})
    with pytest.raises(
        RuntimeError, match=r'Missing .* "0.gate_proj.weight", "0.up_proj.weight", "0.down_proj.weight"'
    ):
        torch.nn.Sequential(ours).load_state_dict({})


@pytest.fixture
def one_rank() -> Any:
    """A process group of this process alone, and its mesh."""
    dist = torch.distributed
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize("sharded", [False, True])
def test_distributed_checkpoints_have_gate_and_up_apart(sharded: bool, one_rank: Any) -> None:
    """torch.distributed.checkpoint asks for layers by the names of a state dict."""
    options = StateDictOptions(full_state_dict=True)
    models = [torch.nn.Sequential(GatedMLP(64, 128, dtype=BF16)) for _ in range(2)]
    x = normal(3, 64)
    want = models[0](x)
    if sharded:
        for model in models:
            fully_shard(model, mesh=one_rank)
    state = get_model_state_dict(models[0], options=options)
    assert sorted(state) == [f"0.{name}_proj.weight" for name in ("down", "gate", "up")]
    set_model_state_dict(models[1], state, options=options)
    assert torch.equal(models[1](x), want)
    with pytest.raises(AttributeError, match="'side_proj'"):
        getattr(models[0][0], "side_proj")  # noqa: B009  # no name of its own


@pytest.mark.parametrize("of", [Linear.of, ScaledLinear.of, MasterLinear.of, QuantizedLinear.from_linear])
def test_data_parallel_processes_send_parameters_and_buffers(of: Any, one_rank: Any) -> None:
    """gloo sends no float8, so buffers have their bytes."""
    model = torch.nn.Sequential(of(torch.nn.Linear(128, 64, dtype=BF16)))
    x = normal(3, 128)
    want = model(x)
    got = torch.nn.parallel.DistributedDataParallel(model, device_mesh=one_rank)(x)
    got.sum().backward()
    assert torch.equal(got, want) and model[0].bias.grad is not None


def test_gated_mlp_inside_a_model_keeps_the_prefix() -> None:
    model = torch.nn.ModuleDict({"mlp": GatedMLP(8, 8, dtype=BF16, bias=True)})
    names = {f"mlp.{part}.{kind}" for part in ("gate_proj", "up_proj", "down_proj") for kind in ("weight", "bias")}
    assert set(model.state_dict()) == names
    other = copy.deepcopy(model)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other["mlp"](normal(2, 8)), model["mlp"](normal(2, 8)))


@pytest.mark.parametrize("shape", [(128, 256), (200, 130), (5, 7)])
def test_quantized_weights_are_within_half_a_step_and_save_exactly(shape: tuple[int, int]) -> None:
    weight = normal(*shape, dtype=torch.float32)
    value, scale = quantized(weight)
    assert bool((value.float().abs() <= 448).all()) and torch.equal(scale.log2(), scale.log2().round())
    wide = dequantized(value, scale, torch.float32)
    # 3 bits behind the point: half a step is 2**-4 of the value, or half of the least step of the block.
    bound = torch.maximum(weight.abs() * 2.0**-4, torch.full_like(weight, float(scale.max()) * 2.0**-10))
    assert bool(((wide - weight).abs() <= bound).all())
    layer = ScaledLinear(shape[1], shape[0])
    layer.load_state_dict({"weight": weight, "bias": weight[:, 0]})
    state = layer.state_dict()
    assert list(state) == ["weight", "bias"] and state["weight"].dtype == BF16
    other = ScaledLinear(shape[1], shape[0])
    other.load_state_dict(state)
    assert torch.equal(other.state_dict()["weight"], state["weight"])


def test_scaled_linear_is_near_the_product_and_derives_x() -> None:
    theirs = torch.nn.Linear(256, 64, dtype=BF16)
    ours, x = ScaledLinear.of(theirs), normal(8, 256)
    assert near(ours(x), theirs(x), 0.1)
    x.requires_grad_()
    ours(x).float().sum().backward()
    want = torch.ones(8, 64).double() @ ours.dequantized().double()
    assert near(x.grad, want, 2.0**-6) and ours.bias.grad is not None


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", ["swiglu", "geglu"])
def test_a_scaled_linear_has_a_gate_in_its_product(activation: str, bias: bool, monkeypatch: Any) -> None:
    """One product without derivatives, of gate and up; the same values and the gradient of x with them."""
    seen: list[Any] = []
    monkeypatch.setattr(scaled, "scaled_matmul", lambda *x, **o: seen.append(o) or scaled_matmul(*x, **o))
    layer = ScaledLinear.of(torch.nn.Linear(256, 176, bias=bias, dtype=BF16), activation=activation)
    x = normal(2, 3, 256)
    act = {"swiglu": torch.nn.functional.silu, "geglu": torch.nn.functional.gelu}[activation]
    with torch.no_grad():
        got = layer(x)
        gate, up = torch.nn.functional.linear(x, layer.dequantized(), layer.bias).float().chunk(2, -1)
    assert got.shape == (2, 3, 88) and near(got, act(gate) * up, 0.1)
    assert [each["activation"] for each in seen] == [activation]
    leaf = x.clone().requires_grad_()
    again = layer(leaf)
    assert near(again, got, 2.0**-5)
    again.float().sum().backward()
    wide = x.clone().requires_grad_()
    gate, up = torch.nn.functional.linear(wide, layer.dequantized(), layer.bias).chunk(2, -1)
    (act(gate) * up).float().sum().backward()
    assert near(leaf.grad, wide.grad, 0.1)


@pytest.mark.parametrize("weights", ["fp8", "master"])
def test_gated_mlps_in_fp8_have_llamas_state_dict(weights: str) -> None:
    parts = [torch.nn.Linear(*s, dtype=BF16) for s in ((256, 128), (256, 128), (128, 256))]
    own, ours = GatedMLP.of(*parts), GatedMLP.of(*parts, weights=weights)
    x = normal(4, 256)
    assert near(ours(x), own(x), 0.15)
    state = ours.state_dict()
    assert list(state) == list(own.state_dict()) and all(
        x.shape == own.state_dict()[key].shape for key, x in state.items()
    )
    again = GatedMLP(256, 128, bias=True, dtype=BF16, weights=weights)
    again.load_state_dict(state)
    with torch.no_grad():
        assert torch.equal(again(x), ours(x))


def test_gated_mlps_load_the_scales_of_gate_and_up() -> None:
    state: dict[str, Any] = {}
    for name, shape in zip(("gate_proj", "up_proj", "down_proj"), ((256, 128), (256, 128), (128, 256)), strict=True):
        state[f"{name}.weight"], state[f"{name}.weight_scale_inv"] = quantized(normal(*shape, dtype=torch.float32))
    mlp = GatedMLP(128, 256, dtype=BF16, weights="fp8")
    mlp.load_state_dict(state)
    again = mlp.state_dict()
    assert set(again) == set(state)
    assert all(torch.equal(again[key].float(), state[key].float()) for key in state)
    odd = {key: x if "scale" in key else x[:200] for key, x in state.items()}
    odd["down_proj.weight"] = state["down_proj.weight"][:, :200].contiguous()
    with pytest.raises(OperandError, match=r"gate_proj\.weight_scale_inv: scales of 128 rows, and gate and up of 200"):
        GatedMLP(128, 200, dtype=BF16, weights="fp8").load_state_dict(odd)


def test_float8_checkpoints_are_kept_as_they_are() -> None:
    value, scale = quantized(normal(128, 256, dtype=torch.float32))
    state = {"weight": value, "weight_scale_inv": scale * 1.25}
    layer = ScaledLinear(256, 128, bias=False)
    layer.load_state_dict(state)
    again = layer.state_dict()
    assert set(again) == set(state) and torch.equal(again["weight_scale_inv"], state["weight_scale_inv"])
    with pytest.raises(OperandError, match="without weight_scale_inv"):
        layer.load_state_dict({"weight": value})
    with pytest.raises(LayoutError, match=r"\[1, 1\].*\[1, 2\]"):
        layer.load_state_dict({"weight": value, "weight_scale_inv": scale[:, :1]})


def test_casting_a_scaled_linear_leaves_its_eight_bits() -> None:
    layer = ScaledLinear.of(torch.nn.Linear(16, 8, dtype=BF16)).to(BF16).half().bfloat16()
    assert layer.weight.values.dtype == torch.float8_e4m3fn and layer.weight_scale.dtype == torch.float32
    assert layer.to("meta").weight.device.type == "meta" and layer.weight.values.dtype == torch.float8_e4m3fn


def test_refusals_name_the_argument() -> None:
    with pytest.raises(OperandError, match="activation 'mish'"):
        Linear(4, 4, activation="mish")
    with pytest.raises(OperandError, match="activation 'relu'"):
        GatedMLP(4, 4, activation="relu")
    with pytest.raises(OperandError, match=r"dtype torch\.float32"):
        ScaledLinear(4, 4, dtype=torch.float32)
    with pytest.raises(TensorError, match="b has 5 columns: a gated product"):
        ScaledLinear(4, 5, activation="swiglu")
    with pytest.raises(OperandError, match="weights 'int4': 'own', 'fp8', 'master'"):
        GatedMLP(4, 4, weights="int4")
    with pytest.raises(OperandError, match=r"\(4, 8\), \(4, 6\)"):
        GatedMLP.of(*[torch.nn.Linear(*s) for s in ((4, 8), (4, 6), (8, 4))])
    layer = Linear(4, 4, dtype=BF16)
    with pytest.raises(LayoutError, match="meta"):
        layer(torch.ones(2, 4, device="meta", dtype=BF16))


@pytest.mark.parametrize("kind", [Linear, MasterLinear, ScaledLinear, QuantizedLinear])
def test_the_operand_has_torchs_name_and_script_is_refused(kind: Any) -> None:
    own = torch.nn.Linear(128, 16, dtype=BF16)
    packed = kind is QuantizedLinear
    layer = kind.from_linear(own, QuantizedFormat("int8", 128)) if packed else kind.of(own)
    x = torch.ones(2, 128, dtype=BF16)
    assert torch.equal(layer(input=x), layer(x))
    with pytest.raises(OperandError, match=r"under torch\.jit\.script: torch\.export and torch\.compile take it"):
        torch.jit.script(layer)
