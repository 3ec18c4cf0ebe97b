"""Experts stored one by one, in models with parameters of three dimensions."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import needs

torch = needs.module("torch")
needs.module("safetensors.torch")

from layoutgemm import QuantizedFormat, QuantizedWeight
from layoutgemm.errors import OperandError, TensorError
from layoutgemm.nn import Checkpoint, QuantizedLinear, ScaledLinear, load_checkpoint, swap_linears
from layoutgemm.nn.scaled import quantized
from tests.nn.test_loading import normal, sharded

BF16 = torch.bfloat16
EXPERTS, WIDE, HIDDEN = 3, 64, 64
NAMES = "gate_proj", "up_proj", "down_proj"


class Experts(torch.nn.Module):
    """Experts as transformers 5 has them: gate and up are rows of one parameter."""

    def __init__(self, hidden: int = HIDDEN) -> None:
        super().__init__()
        self.gate_up_proj = torch.nn.Parameter(torch.zeros(EXPERTS, 2 * hidden, WIDE, dtype=BF16))
        self.down_proj = torch.nn.Parameter(torch.zeros(EXPERTS, WIDE, hidden, dtype=BF16))
        self.act_fn = torch.nn.SiLU()

    def _apply_gate(self, x: Any) -> Any:
        gate, up = x.chunk(2, -1)
        return self.act_fn(gate) * up

    def forward(self, x: Any, index: Any, weights: Any) -> Any:
        total = torch.zeros_like(x)
        for e in range(EXPERTS):
            rows, places = torch.where(index == e)
            hidden = self._apply_gate(x[rows] @ self.gate_up_proj[e].T)
            total.index_add_(0, rows, (hidden @ self.down_proj[e].T * weights[rows, places, None]).to(x.dtype))
        return total


class Limited(Experts):
    """The gate's rows are limited, by the gate itself or beside it."""

    def _apply_gate(self, x: Any) -> Any:
        return super()._apply_gate(x.clamp(-7, 7))


class LimitedBeside(Experts):
    def forward(self, x: Any, index: Any, weights: Any) -> Any:
        return super().forward(x, index, weights).clamp(-100, 100)


class Interleaved(Experts):
    def _apply_gate(self, x: Any) -> Any:
        return self.act_fn(x[..., ::2]) * x[..., 1::2]


class Model(torch.nn.Module):
    def __init__(self, experts: Callable[[], Any] = Experts) -> None:
        super().__init__()
        self.experts, self.head = experts(), torch.nn.Linear(WIDE, 8, bias=False, dtype=BF16)


def on_meta(experts: Callable[[], Any] = Experts) -> Any:
    with torch.device("meta"):
        return Model(experts)


def words(rng: Any, *shape: int) -> Any:
    return torch.from_numpy(rng.integers(-(2**31), 2**31, shape).astype(np.int32))


def gptq(rng: Any, n: int, k: int, symmetric: bool = True, order: Any = None) -> dict[str, Any]:
    zeros = torch.full((k // 32, n // 8), 0x77777777, dtype=torch.int32) if symmetric else words(rng, k // 32, n // 8)
    scales = torch.from_numpy(rng.uniform(0.01, 0.02, (k // 32, n))).half()
    index = {} if order is None else {"g_idx": torch.from_numpy(order // 32).int()}
    return {"qweight": words(rng, k // 8, n), "qzeros": zeros, "scales": scales, **index}


def awq(rng: Any, n: int, k: int) -> dict[str, Any]:
    scales = torch.from_numpy(rng.uniform(0.01, 0.02, (k // 32, n))).half()
    return {"qweight": words(rng, k, n // 8), "qzeros": words(rng, k // 32, n // 8), "scales": scales}


def compressed(rng: Any, n: int, k: int) -> dict[str, Any]:
    scales = torch.from_numpy(rng.uniform(0.01, 0.02, (n, k // 32))).to(BF16)
    return {"weight_packed": words(rng, n, k // 8), "weight_scale": scales, "weight_shape": torch.tensor([n, k])}


def float4(rng: Any, n: int, k: int) -> dict[str, Any]:
    codes = torch.from_numpy(rng.integers(0, 256, (n, k // 2)).astype(np.uint8))
    scales = torch.from_numpy(rng.uniform(1, 2, (n, k // 16))).to(torch.float8_e4m3fn)
    return {"weight_packed": codes, "weight_scale": scales, "weight_global_scale": torch.tensor([rng.uniform(50, 90)])}


def float8(rng: Any, n: int, k: int) -> dict[str, Any]:
    value, scale = quantized(torch.from_numpy(rng.normal(size=(n, k)) / 8).to(BF16))
    return {"weight": value, "weight_scale_inv": scale * 0.75}


def whole_bytes(rng: Any, n: int, k: int) -> dict[str, Any]:
    codes = torch.from_numpy(rng.integers(-127, 128, (n, k)).astype(np.int8))
    return {"weight": codes, "weight_scale": torch.from_numpy(rng.uniform(0.001, 0.002, (n, 1)))}


KINDS: dict[str, tuple[str, Callable[..., dict[str, Any]]]] = {
    "gptq": ("gptq", gptq), "awq": ("awq", awq), "compressed-tensors": ("compressed-tensors", compressed),
    "nvfp4": ("compressed-tensors", float4), "fp8": ("fp8", float8), "int8": ("int-quantized", whole_bytes),
}  # fmt: skip


def stored(make: Callable[..., dict[str, Any]], names: Sequence[str] = NAMES, hidden: int = HIDDEN) -> Any:
    """The tensors of all experts."""
    rng, found = np.random.default_rng(0), {"head.weight": normal(8, WIDE)}
    sizes = [(hidden, WIDE), (hidden, WIDE), (WIDE, hidden)]
    for e in range(EXPERTS):
        for name, (n, k) in zip(names, sizes, strict=True):
            found |= {f"experts.{e}.{name}.{key}": x for key, x in make(rng, n, k).items()}
    return found


def plain(rng: Any, n: int, k: int) -> dict[str, Any]:
    return {"weight": torch.from_numpy(rng.normal(size=(n, k)) / 8).to(BF16)}


def alone(path: Path, kind: str, layer: str) -> Any:
    """The dense weights of one stored layer."""
    tensors = Checkpoint(path).under(layer)
    if kind != "fp8":
        return QuantizedLinear.from_checkpoint(tensors, kind, dtype=BF16).dequantized()
    n, k = tensors["weight"].shape
    one = ScaledLinear(k, n, bias=False)
    one.load_state_dict(tensors)
    return one.dequantized()


BUFFERS = {"gptq": ("units", "_extra_state"), "fp8": ("codes", "weight_scale")}


def rows_for(*, large: float = 1.0) -> tuple[Any, Any, Any]:
    """Rows, the experts of each, and their factors; the last expert has none."""
    return normal(5, WIDE) * large, torch.tensor([[0, 1], [1, 0], [0, 1], [1, 0], [0, 1]]), normal(5, 2).abs().float()


def near(got: Any, want: Any, eps: float = 2.0**-6) -> bool:
    return bool((got.double() - want.double()).abs().max() <= eps * want.double().abs().max())


@pytest.mark.parametrize("name", KINDS)
def test_packed_experts_are_those_of_each_layer_alone(name: str, tmp_path: Path) -> None:
    (kind, make), hidden = KINDS[name], 128 if name == "fp8" else HIDDEN  # scales are of 128
    path, model = sharded(tmp_path, stored(make, hidden=hidden)), on_meta(lambda: Experts(hidden))
    loaded = load_checkpoint(model, path, kind)
    assert [str(each) for each in loaded.others] == ["replaced  experts  by ExpertsMLP"]
    assert str(loaded).endswith("0 of 1 linear layers packed, 1 of 1 modules of experts, of 1 file")
    first, down = model.experts.first.dequantized(), model.experts.down.dequantized()
    for e in (0, 2):
        gate, up, last = (alone(path, kind, f"experts.{e}.{each}") for each in NAMES)
        assert torch.equal(first[e], torch.cat([gate, up])) and torch.equal(down[e], last)
    want = Experts(hidden)
    want.gate_up_proj.data, want.down_proj.data = first, down
    x, index, factors = rows_for()
    x.requires_grad_()
    got, dense = model.experts(x, index, factors), want(x, index, factors)
    assert got.dtype == BF16 and near(got, dense, 2.0**-3 if kind == "fp8" else 2.0**-6)
    one, two = (torch.autograd.grad(y.sum(), x)[0] for y in (got, dense))
    assert near(one, two, 2.0**-3 if kind == "fp8" else 2.0**-5)


@pytest.mark.parametrize("name", ["gptq", "fp8"])
def test_packed_experts_are_copied_saved_cast_and_compiled(name: str, tmp_path: Path) -> None:
    (kind, make), hidden = KINDS[name], 128 if name == "fp8" else HIDDEN
    model, (x, index, factors) = on_meta(lambda: Experts(hidden)), rows_for()
    load_checkpoint(model, sharded(tmp_path, stored(make, hidden=hidden)), kind)
    copied, file = copy.deepcopy(model.experts).half().to(BF16), io.BytesIO()
    torch.save(model.experts.state_dict(), file)
    file.seek(0)
    state = torch.load(file)
    assert {*state} == {f"{at}.{of}" for at in ("first", "down") for of in BUFFERS[kind]}
    for each in copied.buffers():
        each.zero_()
    copied.load_state_dict(state)
    with torch.no_grad():
        want = model.experts(x, index, factors)
        assert model.experts(x[:0], index[:0], factors[:0]).shape == (0, WIDE)
        assert torch.equal(copied(x, index, factors), want)
        if kind == "gptq":
            assert torch.equal(torch.compile(copied, backend="eager", fullgraph=True)(x, index, factors), want)
        beyond = torch.where(index == 1, EXPERTS, index)  # an index of no expert counts as 0
        assert torch.equal(copied(x, beyond, factors), copied(x, index, factors * (index != 1)))
        with torch.autocast("cpu", dtype=BF16):
            assert near(copied(x.float(), index, factors), want)


def test_dense_experts_are_joined(tmp_path: Path) -> None:
    """By the names of Llama or of Mixtral, or by those that are given; in models on the meta device and in memory."""
    for names, asked in (
        (("gate_proj", "up_proj", "down_proj"), None),
        (("w1", "w3", "w2"), None),
        (("a", "b", "c"), {"gate_up_proj": ("a", "b"), "down_proj": ("c",)}),
    ):
        tensors = stored(plain, names)
        for model in (on_meta(), Model()):
            own = model.experts.down_proj
            loaded = load_checkpoint(model, sharded(tmp_path, tensors), experts=asked)
            assert str(loaded.others[0]) == "left      experts: 3 experts of the checkpoint are joined"
            for e in range(EXPERTS):
                gate, up, down = (tensors[f"experts.{e}.{name}.weight"] for name in names)
                assert torch.equal(model.experts.gate_up_proj[e], torch.cat([gate, up]))
                assert torch.equal(model.experts.down_proj[e], down)
            assert own.is_meta or model.experts.down_proj is own
    with pytest.raises(OperandError, match=r"experts has down_proj, gate_up_proj, and the checkpoint a, b, c of each"):
        load_checkpoint(Model(), tmp_path)


def test_torch_s_defaults_change_nothing(tmp_path: Path) -> None:
    for make, kind in ((plain, None), (gptq, "gptq")):
        path, model = sharded(tmp_path, stored(make)), Model()
        want = str(load_checkpoint(model, path, kind).others[0])
        torch.set_default_dtype(BF16)
        try:
            with torch.device("meta"):
                made = Model()
                assert str(load_checkpoint(made, path, kind).others[0]) == want
        finally:
            torch.set_default_dtype(torch.float32)
        assert all(torch.equal(x, made.state_dict()[name]) for name, x in model.state_dict().items())


def test_experts_in_another_order_of_input_features(tmp_path: Path) -> None:
    random, same = np.random.default_rng(1), []

    def make(rng: Any, n: int, k: int) -> dict[str, Any]:
        same.append(random.permutation(k) if len(same) % 3 != 1 else same[-1])  # of up as of gate
        return gptq(rng, n, k, order=same[-1])

    model = on_meta()
    load_checkpoint(model, sharded(tmp_path, stored(make)), "gptq")
    first = model.experts.first
    assert first.order.shape == (EXPERTS, WIDE)
    assert torch.equal(first.dequantized()[2, :HIDDEN], alone(tmp_path, "gptq", "experts.2.gate_proj"))
    x, offsets = normal(4, WIDE), torch.tensor([0, 1, 1, 4])
    want = torch.cat([x[:1] @ first.dequantized()[0].T, x[1:] @ first.dequantized()[2].T])
    assert near(first(x, offsets), want)
    other = stored(lambda rng, n, k: gptq(rng, n, k, order=rng.permutation(k)))
    with pytest.raises(OperandError, match=r"experts.0.gate_proj and experts.0.up_proj have groups in different"):
        load_checkpoint(on_meta(), sharded(tmp_path, other), "gptq")


def test_symmetric_experts_beside_others_have_zero_points_in_the_middle(tmp_path: Path) -> None:
    kinds = iter([True, False, True] * EXPERTS)
    model = on_meta()
    load_checkpoint(model, sharded(tmp_path, stored(lambda *given: gptq(*given, symmetric=next(kinds)))), "gptq")
    assert model.experts.first.format.zeros and not model.experts.down.format.zeros
    assert torch.equal(model.experts.first.dequantized()[1, :HIDDEN], alone(tmp_path, "gptq", "experts.1.gate_proj"))


def test_other_forwards_keep_their_parameters(tmp_path: Path) -> None:
    """A limit in the gate is kept by its own gate; one beside it is not the same, nor are rows of turns."""
    path, (x, index, factors) = sharded(tmp_path, stored(gptq)), rows_for(large=40.0)
    limited, beside = on_meta(Limited), on_meta(LimitedBeside)
    assert load_checkpoint(limited, path, "gptq").others[0].by == "ExpertsMLP"
    said = str(load_checkpoint(beside, path, "gptq").others[0])
    assert said.startswith("left      experts: 3 experts of the checkpoint are joined, dequantised: its forward gives")
    assert torch.equal(beside.experts.down_proj, limited.experts.down.dequantized())
    dense = Model(Limited).experts
    dense.load_state_dict(beside.experts.state_dict())
    assert near(limited.experts(x, index, factors), dense(x, index, factors))
    assert not near(Experts.forward(beside.experts, x, index, factors), dense(x, index, factors))
    with pytest.raises(OperandError, match=r"experts: its gate is not act_fn\(first half .* experts= names the layers"):
        load_checkpoint(on_meta(Interleaved), path, "gptq")


def test_float8_halves_that_share_scales_are_dequantised(tmp_path: Path) -> None:
    path, model = sharded(tmp_path, stored(float8)), on_meta()
    (said,) = load_checkpoint(model, path, "fp8").others
    assert said.reason.endswith("dequantised: gate_proj has 64 rows, and a scale is of 128")
    tensors = Checkpoint(path).under("experts.1.up_proj")
    want = tensors["weight"].float() * tensors["weight_scale_inv"]
    assert torch.equal(model.experts.gate_up_proj[1, 64:], want.to(BF16))


def lost(tensors: dict[str, Any], pattern: str) -> dict[str, Any]:
    return {name: x for name, x in tensors.items() if pattern not in name}


ONE = "experts.1.up_proj"
SQUARE = {f"{ONE}.weight": torch.ones(64, 64)}
WRONG: list[tuple[str, Callable[[], dict[str, Any]], str]] = [
    ("gptq", lambda: lost(stored(gptq), "1.up_proj"), "^experts.1.up_proj.weight is missing in the checkpoint"),
    ("gptq", lambda: lost(stored(gptq), "1.up_proj.scales"), "^experts.1.up_proj: scales is missing"),
    ("gptq", lambda: lost(stored(gptq), "experts.2"), "^experts.2.down_proj.weight, experts.2.gate_proj.weight, e"),
    ("gptq", lambda: stored(gptq) | {"experts.3.up_proj.scales": torch.ones(1)}, "^experts.3.up_proj.scales: in the"),
    ("gptq", lambda: stored(gptq) | {f"{ONE}.bias": torch.ones(64)}, "^experts.1.up_proj.bias: in the checkpoint"),
    (
        "gptq",
        lambda: lost(stored(gptq), ONE) | SQUARE,
        "^experts.0.gate_proj is packed in .*, and experts.1.up_proj is",
    ),
    ("gptq", lambda: stored(gptq, hidden=32), "^experts.0.gate_proj has 32x64 weights in the checkpoint, and 64x64"),
    ("fp8", lambda: stored(float8, hidden=128), r"^experts.0.gate_proj: weight is .* of \[64, 64\]"),
    ("", lambda: lost(stored(plain), ONE), "^experts.1.up_proj.weight is missing in the checkpoint"),
    ("", lambda: stored(plain, hidden=32), r"^experts.0.gate_proj has shape \[32, 64\] in .* \[64, 64\] in the model"),
    ("", lambda: stored(plain) | {f"{ONE}.bias": torch.ones(64)}, "^experts.1.up_proj.bias: in the checkpoint"),
    (
        "",
        lambda: stored(plain) | {f"{ONE}.weight": SQUARE[f"{ONE}.weight"].int()},
        "^experts.1.up_proj.weight is torch",
    ),
    ("", lambda: stored(plain) | {"experts.down_proj": torch.ones(3, 64, 64)}, "^experts: it has down_proj, gate_up"),
]


@pytest.mark.parametrize(("kind", "tensors", "said"), WRONG, ids=[said for *_, said in WRONG])
def test_experts_that_do_not_fit_are_refused_before_the_model_changes(
    kind: str, tensors: Callable[[], dict[str, Any]], said: str, tmp_path: Path
) -> None:
    model = Model()
    with pytest.raises((OperandError, TensorError), match=said):
        load_checkpoint(model, sharded(tmp_path, tensors()), kind or None)
    assert type(model.experts) is Experts and not any(x.any() for x in model.experts.parameters())


@pytest.mark.parametrize("kind", [Experts, Limited, Interleaved])
def test_swapped_experts_are_packed_where_their_forward_agrees(kind: Any) -> None:
    model, (x, index, weights) = torch.nn.ModuleDict({"experts": kind(), "out": torch.nn.Linear(64, 64)}), rows_for()
    for parameter in model["experts"].parameters():
        torch.nn.init.normal_(parameter, std=0.125)
    fmt, plain = QuantizedFormat("int8"), copy.deepcopy(model["experts"])
    swaps = swap_linears(model, "experts", weights=fmt)
    assert "replaced  experts  by ExpertsMLP" in str(swaps) and str(swaps).endswith("; 1 module of experts packed")
    for name, own in (("first", "gate_up_proj"), ("down", "down_proj")):
        dense = getattr(plain, own)
        for e in range(EXPERTS):
            dense.data[e] = QuantizedWeight.quantize(dense[e], fmt).dense(BF16)
        assert torch.equal(getattr(model["experts"], name).dequantized(), dense)
    assert near(model["experts"](x, index, weights), plain(x, index, weights))


class Transposed(torch.nn.Module):
    """As gpt-oss has them: (experts, in features, out features), with biases."""

    is_transposed = True

    def __init__(self, biased: bool = True) -> None:
        super().__init__()
        self.gate_up_proj = torch.nn.Parameter(torch.randn(EXPERTS, WIDE, 2 * HIDDEN).to(BF16) / 8)
        self.down_proj = torch.nn.Parameter(torch.randn(EXPERTS, HIDDEN, WIDE).to(BF16) / 8)
        self.gate_up_proj_bias = torch.nn.Parameter(torch.randn(EXPERTS, 2 * HIDDEN).to(BF16))
        self.down_proj_bias = torch.nn.Parameter(torch.randn(EXPERTS, WIDE).to(BF16))

    def _apply_gate(self, x: Any) -> Any:
        return torch.nn.functional.silu(x[..., ::2]) * (x[..., 1::2] + 1)

    def forward(self, x: Any, index: Any, weights: Any) -> Any:
        total = torch.zeros_like(x)
        for e in range(EXPERTS):
            rows, places = torch.where(index == e)
            hidden = self._apply_gate(x[rows] @ self.gate_up_proj[e] + self.gate_up_proj_bias[e])
            one = (hidden @ self.down_proj[e] + self.down_proj_bias[e]) * weights[rows, places, None]
            total.index_add_(0, rows, one.to(x.dtype))
        return total


def test_swapped_experts_keep_biases_orders_and_reasons() -> None:
    x, index, weights = rows_for()
    fmt, made = QuantizedFormat("int8"), Transposed()
    model = torch.nn.ModuleDict({"a": made, "b": LimitedBeside(), "c": Experts(), "d": copy.deepcopy(made)})
    model["c"].gate_up_proj = model["b"].gate_up_proj
    want = made(x, index, weights)
    swaps = swap_linears(model, ["a", "b", "c"], weights=fmt)
    assert model["a"].first.bias is made.gate_up_proj_bias and near(model["a"](x, index, weights), want, 2.0**-4)
    reasons = {each.name: each.reason for each in swaps.others}
    assert reasons["a"] == "" and reasons["d"].endswith("not packed: not in where=['a', 'b', 'c']")
    assert "not packed: its gate_up_proj is tied" in reasons["b"] and "not packed: its gate_up_proj" in reasons["c"]
    alone = torch.nn.ModuleDict({"b": LimitedBeside(), "c": Experts().to("meta")})
    (left,) = [each for each in swap_linears(alone, weights=fmt).others if not each.by]
    assert left.name == "b" and left.reason.endswith("not packed: its forward gives other values than down(act(gate) * "
                                                     "up) of rows in order")  # fmt: skip
    assert alone["c"].first.units.is_meta
    odd = swap_linears(torch.nn.ModuleDict({"a": Transposed()}), weights=QuantizedFormat("int4", 128))
    assert "not packed: K = 64 is 0 groups of 128" in str(odd)


class OddRows(Experts):
    """A row more than two layers of equal rows have."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj = torch.nn.Parameter(torch.zeros(EXPERTS, 2 * HIDDEN + 1, WIDE, dtype=BF16))


@pytest.mark.parametrize("kind", ["gptq", "fp8", ""])
def test_rows_that_no_layer_has_are_refused(kind: str, tmp_path: Path) -> None:
    """The last row of packed experts would be whatever memory held."""
    model, make = Model(OddRows), KINDS[kind][1] if kind else plain
    layers = {"gate_up_proj": NAMES[:2], "down_proj": NAMES[2:]}
    with pytest.raises((OperandError, TensorError), match="129"):
        load_checkpoint(model, sharded(tmp_path, stored(make)), kind or None, experts=layers)
    assert type(model.experts) is OddRows
