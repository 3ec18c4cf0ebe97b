"""Layers in a model's life: saved, materialised, wrapped, transformed and traced as torch's own, or refused by name."""

from __future__ import annotations

import copy
import io
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from torch.nn.utils import parametrizations, parametrize
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

from layoutgemm.errors import OperandError, TensorError
from layoutgemm.kernels.quantized.formats import QuantizedFormat
from layoutgemm.kernels.quantized.order import PackedOrder
from layoutgemm.kernels.quantized.packing import pack, quantize
from layoutgemm.nn import DenseLinear, GatedMLP, MasterLinear, QuantizedLinear, ScaledLinear, swap_linears
from layoutgemm.nn.experts import PackedGroups
from layoutgemm.torch_op.quantized import QuantizedExperts, QuantizedWeight
from layoutgemm.torch_op.types import C_NAMES

BF16 = torch.bfloat16
INT8 = QuantizedFormat("int8")


def layer() -> Any:
    torch.manual_seed(0)
    return torch.nn.Linear(128, 128, dtype=BF16)


def gated(weights: str) -> Any:
    return GatedMLP.of(layer(), layer(), layer(), weights=weights)


LAYERS: dict[str, Callable[[], Any]] = {
    "dense": lambda: DenseLinear.of(layer()),
    "master": lambda: MasterLinear.of(layer()),
    "float8": lambda: ScaledLinear.of(layer()),
    "packed": lambda: QuantizedLinear.from_linear(layer()),
    "gated": partial(gated, "own"),
    "gated float8": partial(gated, "fp8"),
    "gated master": partial(gated, "master"),
}
X = torch.randn(4, 128, generator=torch.Generator().manual_seed(1)).to(BF16)
EVERY = pytest.mark.parametrize("name", LAYERS)


def cleared(module: Any) -> Any:
    """A copy with zeros in place of all numbers."""
    made = copy.deepcopy(module)
    with torch.no_grad():
        for x in (*made.parameters(), *made.buffers()):
            x.zero_()
    return made


def near(got: Any, want: Any, eps: float = 2.0**-6) -> bool:
    return got.shape == want.shape and bool((got - want).abs().max() <= eps * want.abs().max())


@EVERY
def test_states_are_loaded_in_place_assigned_and_on_meta(name: str, tmp_path: Path) -> None:
    module, file = LAYERS[name](), io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    safetensors = needs.module("safetensors.torch")
    safetensors.save_file(module.state_dict(), tmp_path / "x")
    with torch.no_grad():
        want = module(X)
        for made, assign in (
            (cleared(module), False),
            (cleared(module), True),
            (cleared(module).to("meta"), True),
            (cleared(module).to("meta").to_empty(device="cpu"), False),
        ):
            made.load_state_dict(state, assign=assign)
            assert torch.equal(made(X), want)
        made.load_state_dict(safetensors.load_file(tmp_path / "x"))
        assert torch.equal(made(X), want)
    lost = {key: x for key, x in state.items() if key != min(state)}
    assert min(state) in cleared(module).load_state_dict(lost, strict=False).missing_keys
    for wrong, said in ((lost, f'Missing .*"{min(state)}"'), ({**state, "more": X}, 'Unexpected .*"more"')):
        with pytest.raises(RuntimeError, match=said):
            cleared(module).load_state_dict(wrong)


@EVERY
def test_checkpointed_activations_give_the_same_gradients(name: str) -> None:
    one, two = LAYERS[name](), LAYERS[name]()
    x, y = (X.clone().requires_grad_() for _ in range(2))
    seen: list[Any] = []
    two.register_full_backward_hook(lambda *given: seen.append(given))
    got, want = checkpoint(one, x, use_reentrant=False), two(y)
    got.sum().backward()
    want.sum().backward()
    assert torch.equal(got, want) and torch.equal(x.grad, y.grad) and len(seen) == 1
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(one.parameters(), two.parameters()))


@pytest.mark.parametrize("name", ["dense", "float8", "packed", "gated float8"])
def test_transforms_of_functions_give_gradients_maps_and_tangents(name: str) -> None:
    module = LAYERS[name]()
    own = {key: x.detach() for key, x in module.named_parameters()}

    def loss(given: dict[str, Any], x: Any) -> Any:
        return torch.func.functional_call(module, given, (x,)).float().square().sum()

    x = X.clone().requires_grad_()
    module(x).float().square().sum().backward()
    of_own, of_x = torch.func.grad(loss, argnums=(0, 1))(own, X)
    assert near(of_x, x.grad) and all(near(of_own[key], p.grad) for key, p in module.named_parameters())
    assert near(torch.func.vmap(module)(torch.stack([X, 2 * X]))[1], module(2 * X))
    _, tangent = torch.func.jvp(module, (X,), (X,))
    (pulled,) = torch.func.vjp(module, X)[1](X)
    assert (
        abs((tangent.float() * X.float()).sum() - (pulled.float() * X.float()).sum())
        <= 2.0**-5 * X.float().square().sum()
    )


@pytest.mark.parametrize("name", ["dense", "master", "float8", "packed"])
def test_recorded_calls_have_the_bits_of_others(name: str) -> None:
    """A bias is added before the one rounding, with derivatives too."""
    module = LAYERS[name]()
    recorded = module(X.clone().requires_grad_())
    with torch.no_grad():
        assert recorded.requires_grad and torch.equal(recorded, module(X))


def test_float8_layers_map_and_derive_their_bias_alone() -> None:
    module = LAYERS["float8"]()
    biases = torch.stack([module.bias.detach(), torch.ones_like(module.bias)])

    def product(bias: Any, x: Any) -> Any:
        return torch.func.functional_call(module, {"bias": bias}, (x,))

    each = torch.stack([product(bias, X) for bias in biases]).detach()
    assert near(torch.func.vmap(product, (0, None))(biases, X).detach(), each)
    assert near(torch.func.vmap(product)(biases, torch.stack([X, X])).detach(), each)
    _, tangent = torch.func.jvp(lambda bias: product(bias, X), (biases[0],), (biases[1],))
    assert torch.equal(tangent, torch.ones_like(tangent)) and tangent.shape == each[0].shape
    _, tangent = torch.func.jvp(product, (biases[0], X), (biases[1], X))
    assert near(tangent, product(biases[1], X).detach(), 2.0**-5)


@pytest.mark.parametrize("name", ["dense", "float8", "packed"])
def test_maps_of_tangents_and_tangents_of_maps(name: str) -> None:
    """A gradient's product sees a mapped tensor while forward mode is on: torch unpacks no tangent of one."""
    module, x = LAYERS[name]().requires_grad_(False), X[:1]

    def loss(x: Any) -> Any:
        return module(x).float().square().sum()

    assert near(torch.func.hessian(loss)(x), torch.func.jacrev(torch.func.grad(loss))(x))
    _, tangent = torch.func.jvp(torch.func.vmap(module), (x,), (x,))
    assert near(tangent, torch.func.vmap(lambda x: torch.func.jvp(module, (x,), (x,))[1])(x))


def test_float8_layers_are_refused_by_tracers_that_cannot_hold_them() -> None:
    module = LAYERS["float8"]().eval()
    with pytest.raises(OperandError, match=r"ScaledLinear under torch\.jit\.trace: torch\.export takes it"):
        torch.jit.trace(module, (X,))
    with pytest.raises(OperandError, match=r"x is a torch\.fx\.Proxy: make the module a leaf of the Tracer, or use"):
        torch.fx.symbolic_trace(module)


def test_a_dense_layer_is_one_call_to_torch_fx() -> None:
    module = torch.nn.Sequential(DenseLinear.of(layer(), activation="relu"), torch.nn.Identity())
    traced = torch.fx.symbolic_trace(module)
    assert [node.op for node in traced.graph.nodes].count("call_function") == 1
    assert torch.equal(traced(X), module(X)) and "0.weight" in traced.state_dict()


def test_exported_float8_layers_compute_without_gradients_or_refuse() -> None:
    """An exporter traces the inside of the Function, which has no gradient of x."""
    module = LAYERS["gated float8"]()
    with pytest.raises(TensorError, match=r"x requires grad, and quantize has no gradient: use torch\.no_grad\(\)"):
        torch.export.export(module, (X,)).module()(X)
    with torch.no_grad():
        assert torch.equal(torch.export.export(module, (X,)).run_decompositions().module()(X), module(X))
    one = LAYERS["float8"]()
    assert near(torch.export.export(one, (X,)).module()(X).detach(), one(X).detach())  # x takes no gradient


def test_a_dense_layer_takes_parametrizations_optimizers_and_averages_as_torch_s() -> None:
    ours, theirs = DenseLinear.of(layer()), layer()
    for module in (ours, theirs):
        parametrizations.weight_norm(module)
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.01, foreach=True)
        average = AveragedModel(module)
        for _ in range(2):
            module(X).float().square().sum().backward()
            optimizer.step()
            average.update_parameters(module)
        parametrize.remove_parametrizations(module, "weight")
    assert near(ours.weight, theirs.weight, 2.0**-5) and near(ours(X), theirs(X), 2.0**-5)


@pytest.mark.parametrize(("fmt", "k", "kind"), [
    (QuantizedFormat("e2m1", 32), 128, BF16),
    (QuantizedFormat("int4", 32), 128, torch.float16),
    (QuantizedFormat("int4", 64, zeros=True), 128, BF16),
    (QuantizedFormat("int4", 32), 96, BF16),
], ids=str)  # fmt: skip
def test_states_of_other_packed_layers_are_refused_before_they_are_copied(
    fmt: QuantizedFormat, k: int, kind: torch.dtype
) -> None:
    """Their units have as many bytes, in another order or of other codes."""
    made = QuantizedLinear.from_linear(torch.nn.Linear(128, 64, dtype=BF16), QuantizedFormat("int4", 32))
    other = QuantizedLinear.from_linear(torch.nn.Linear(k, 64, dtype=kind), fmt)
    before, want = made.dequantized(), f"packed as {fmt}, 64x{k}, {kind}, and the layer's are int4 in groups of 32, 64"
    assert other.units.shape == made.units.shape
    with pytest.raises(OperandError, match=re.escape(want)):
        made.load_state_dict(other.state_dict())
    assert torch.equal(made.dequantized(), before)


@pytest.mark.parametrize(
    ("code", "group", "kind"),
    [
        ("e4m3", None, BF16), ("e5m2", None, BF16), ("e4m3", 32, torch.float16), ("int4", 128, torch.float8_e4m3fn),
        ("e2m1", None, torch.float8_e4m3fn),
    ],
)  # fmt: skip
@pytest.mark.parametrize("assign", [False, True])
def test_a_state_whose_codes_lie_side_by_side_is_loaded_with_its_bits_moved(
    code: str, group: int | None, kind: Any, assign: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fmt, dense, name = QuantizedFormat(code, group), torch.nn.Linear(256, 72, dtype=BF16), C_NAMES[kind]
    model = torch.nn.Sequential(QuantizedLinear.from_linear(dense, fmt, activations=kind))
    now, want = model.state_dict(), model[0].dequantized()
    with monkeypatch.context() as patched:
        patched.setattr(PackedOrder, "moves", ())
        patched.setattr(PackedOrder, "stored", ())
        earlier = pack(quantize(dense.weight.detach().double().numpy(), fmt, name), name)
    text = model[0].packed_as.removesuffix(", bits in place")
    said = torch.tensor([*text.encode()], dtype=torch.uint8)
    state = {**now, "0.units": torch.from_numpy(earlier.units), "0._extra_state": said}
    assert not torch.equal(state["0.units"], now["0.units"])
    empty = torch.nn.Sequential(cleared(model[0]))
    empty.load_state_dict(state, assign=assign)
    assert torch.equal(empty[0].units, now["0.units"]) and torch.equal(empty[0].dequantized(), want)
    assert state["0._extra_state"] is said  # the caller's state stays


ORDER = torch.arange(128).flip(0)
TORN: list[tuple[dict[str, Any], str]] = [
    ({"scales": None}, "units without 0.scales: codes and scales are of one weight"),
    ({"units": None}, "scales without 0.units: codes and scales are of one weight"),
    ({"units": lambda x: x.bfloat16()}, "units is torch.bfloat16: torch.uint8, which no cast has changed"),
    ({"scales": lambda x: x.int()}, "scales is torch.int32: floats"),
    ({"order": lambda x: x.float()}, r"order is torch.float32 of shape \[128\]: int64 of \[..., 128\]"),
    ({"order": lambda x: x.clamp(min=3)}, "order has no 0: each of 128 input features once, in each line"),
]


@pytest.mark.parametrize(("change", "said"), TORN, ids=[said for _, said in TORN])
def test_parts_of_packed_states_are_refused_before_they_are_copied(change: dict[str, Any], said: str) -> None:
    """With strict=False torch copies what is there, and leaves other codes' scales."""
    made, other = (
        QuantizedLinear(QuantizedWeight.quantize(torch.randn(64, 128), QuantizedFormat("int8")), order=ORDER)
        for _ in range(2)
    )
    state, before = other.state_dict(), made.dequantized()
    for name, cut in change.items():
        value = state.pop(name)
        state |= {} if cut is None else {name: cut(value)}
    with pytest.raises(OperandError, match=said):
        torch.nn.Sequential(made).load_state_dict({f"0.{name}": x for name, x in state.items()}, strict=False)
    assert torch.equal(made.dequantized(), before)


def test_an_order_that_is_none_is_refused() -> None:
    weight = QuantizedWeight.quantize(torch.randn(64, 128), QuantizedFormat("int8"))
    with pytest.raises(OperandError, match="order has no 0"):
        QuantizedLinear(weight, order=ORDER.clamp(min=1))
    with pytest.raises(OperandError, match="order has no 127"):
        PackedGroups(QuantizedExperts.of([weight] * 2), torch.stack([ORDER, ORDER.clamp(max=126)]))


def test_dense_states_other_types_and_other_modules_have_a_way_out() -> None:
    packed = LAYERS["packed"]()
    with pytest.raises(
        RuntimeError, match=r"up\.weight is dense: load it into the dense layer, and pack that by from_l"
    ):
        torch.nn.ModuleDict({"up": packed}).load_state_dict({"up.weight": layer().weight, "up.bias": layer().bias})
    wide = torch.nn.Linear(128, 8)
    with pytest.raises(OperandError, match=r"weight is torch\.float32, .*activations=torch\.bfloat16"):
        QuantizedLinear.from_linear(wide)
    assert QuantizedLinear.from_linear(wide, activations=BF16)(X).dtype == BF16
    makers: list[Callable[[Any], Any]] = [DenseLinear.of, MasterLinear.of, ScaledLinear.of, QuantizedLinear.from_linear]
    makers.append(lambda other: GatedMLP.of(layer(), other, layer()))
    for make in makers:
        with pytest.raises(
            OperandError, match=r"must be a torch.nn.Linear or a layer with its attributes, not Conv1d\("
        ):
            make(torch.nn.Conv1d(128, 128, 1))
        with pytest.raises(OperandError, match=r"QuantizedLinear.*; its dequantized\(\) is the weight of one"):
            make(packed)


def test_packed_layers_are_made_on_meta_for_a_state_to_come() -> None:
    for fmt in (QuantizedFormat("int4", 64, zeros=True), INT8):
        dense = [torch.nn.Sequential(torch.nn.Linear(128, 64, dtype=BF16)) for _ in range(2)]
        dense[1].to("meta")
        for model in dense:
            assert swap_linears(model, weights=fmt).replaced
        packed, empty = dense
        assert all(x.is_meta for x in (*empty.parameters(), *empty.buffers()))
        empty.load_state_dict(packed.state_dict(), assign=True)
        assert torch.equal(empty(X), packed(X))
    odd = torch.nn.Linear(96, 8, device="meta", dtype=BF16)
    with pytest.raises(OperandError, match="K = 96 is 1 groups of 64 and 32 more"):
        QuantizedLinear.from_linear(odd, QuantizedFormat("int4", 64))


@pytest.mark.parametrize("name", ["float8", "packed"])
def test_weights_that_are_no_tensors_say_where_one_is(name: str) -> None:
    """As PEFT meets them, which merges an adapter into `weight.data`."""
    weight = LAYERS[name]().weight
    with pytest.raises(AttributeError, match=r"has no attribute 'data': .* dense\(\) or dequantized\(\) gives one"):
        weight.data  # noqa: B018
    assert not hasattr(weight, "requires_grad") and len(repr(weight)) < 90
    assert copy.deepcopy(weight).shape == weight.shape


def test_packed_weights_are_not_cast() -> None:
    with pytest.raises(OperandError, match=r"to\(torch.float32\): packed weights are not cast"):
        LAYERS["packed"]().weight.to(torch.float32)
