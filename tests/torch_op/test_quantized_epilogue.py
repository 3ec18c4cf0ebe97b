"""quantized_matmul with steps of the caller's own, and into a given tensor: kernels, the CPU, and refusals."""

from __future__ import annotations

from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from torch.utils.flop_counter import FlopCounterMode

from layoutgemm import QuantizedFormat, QuantizedWeight, Sm90Config, quantize, quantized_matmul
from layoutgemm.errors import LayoutError, OperandError, TensorError
from layoutgemm.kernels import FeatureParts
from layoutgemm.kernels.epilogue.chain import (
    Activation,
    Amax,
    Aux,
    Bias,
    ColumnReduce,
    Epilogue,
    Quantize,
    Residual,
    RowReduce,
    Scale,
    VectorScale,
)
from layoutgemm.nn import QuantizedLinear
from tests.torch_op.door_launches import every_door

INT4, BF16, FP8 = QuantizedFormat("int4", 128), torch.bfloat16, torch.float8_e4m3fn
STEPS = Epilogue(Scale(), Bias(), Aux("f32"), Activation("relu"), Residual())


def packed(n: int, k: int, fmt: QuantizedFormat = INT4, kind: Any = BF16) -> QuantizedWeight:
    made = torch.Generator().manual_seed(n + k)
    return QuantizedWeight.quantize(torch.randn(n, k, generator=made), fmt, kind)


def operands(rows: int, n: int) -> dict[str, Any]:
    made = torch.Generator().manual_seed(rows)
    return {
        "alpha": 0.5, "beta": 2.0, "bias": torch.randn(n, generator=made), "aux": torch.zeros(rows, n),
        "d": torch.randn(rows, n, generator=made).to(BF16),
    }  # fmt: skip


def by_hand(x: Any, weight: QuantizedWeight, given: dict[str, Any]) -> tuple[Any, Any]:
    """The results of STEPS, and the written matrix, in float64."""
    aux = 0.5 * (x.double() @ weight.dense(torch.float64).T) + given["bias"].double()
    return aux.relu() + 2 * given["d"].double(), aux


def close(have: Any, want: Any, share: float = 2.0**-8) -> bool:
    return torch.allclose(have.double(), want, rtol=share, atol=share * float(want.abs().max()))


CASES = [
    ("sm_90a", INT4, (20, 72, 128)), ("sm_80", QuantizedFormat("e4m3"), (17, 64, 64)),
    pytest.param("sm_90a", QuantizedFormat("int8"), (9, 71, 40), marks=pytest.mark.slow),
    pytest.param("sm_90a", INT4, (2, 40, 2048), marks=pytest.mark.slow),
    pytest.param("sm_80", INT4, (18, 72, 2304), marks=pytest.mark.slow),
]  # fmt: skip


@needs.DSL
@pytest.mark.dsl
@pytest.mark.parametrize(("code", "fmt", "size"), CASES)
def test_steps_of_kernels_equal_their_formula(
    code: str, fmt: QuantizedFormat, size: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, n, k = size
    weight, given = packed(n, k, fmt), operands(rows, n)
    x, out = torch.randn(rows, k).to(BF16), torch.zeros(rows, n, dtype=BF16)
    want, aux = by_hand(x, weight, given)
    with every_door(monkeypatch, code) as made:
        assert quantized_matmul(x, weight, epilogue=STEPS, given=given, out=out) is out
    assert len(made) == 1 and close(out, want) and close(given["aux"], aux)


@needs.DSL
@pytest.mark.dsl
@pytest.mark.parametrize("code", ["sm_90a", pytest.param("sm_80", marks=pytest.mark.slow)])
def test_reductions_of_kernels_equal_their_formula(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weight, x = packed(72, 128, QuantizedFormat("int4", 64)), torch.randn(20, 128).to(BF16)
    steps = Epilogue(
        VectorScale("m"), RowReduce("sum", "rows"), ColumnReduce("sum", "columns"), Amax("most"), stores_c=False
    )
    factors = torch.rand(20) + 0.5
    given = {"vector": factors, "rows": torch.zeros(20), "columns": torch.zeros(72), "most": torch.zeros(1)}
    given[next(one.name for one in steps.given if one.axes == "m" and not one.written)] = given.pop("vector")
    want = (x.double() @ weight.dense(torch.float64).T) * factors.double()[:, None]
    with every_door(monkeypatch, code):
        assert quantized_matmul(x, weight, epilogue=steps, given=given).shape == (0,)
    for name, of in {"rows": want.sum(1), "columns": want.sum(0), "most": want.abs().max()[None]}.items():
        assert close(given[name], of), name


def test_the_cpu_has_the_same_steps() -> None:
    weight, x, given = packed(40, 128), torch.randn(6, 128).to(BF16), operands(6, 40)
    want, aux = by_hand(x, weight, given)
    assert close(quantized_matmul(x, weight, epilogue=STEPS, given=given), want) and close(given["aux"], aux)
    into = given["d"]  # the residual, replaced by the result
    assert quantized_matmul(x, weight, epilogue=STEPS, given=given, out=into) is into and close(into, want)
    with torch.autocast("cpu", dtype=BF16):
        assert close(quantized_matmul(x.float(), weight, epilogue=STEPS, given=operands(6, 40)), want)


@pytest.mark.parametrize("strided", [False, True])
def test_out_alone_has_the_bias_and_the_activation(strided: bool) -> None:
    weight, x, bias = packed(40, 128), torch.randn(6, 128).to(BF16), torch.randn(40)
    out = torch.zeros(6, 48, dtype=BF16)[:, :40] if strided else torch.zeros(6, 40, dtype=BF16)
    assert quantized_matmul(x, weight, bias=bias, activation="silu", out=out) is out
    assert close(out, quantized_matmul(x, weight, bias=bias, activation="silu").double())  # steps are float32 there
    assert close(quantized_matmul(x, weight, out=out), quantized_matmul(x, weight).double())


def test_float8_activations_have_steps_behind_their_scales() -> None:
    weight = packed(40, 128, kind=torch.float8_e4m3fn)
    x, scale = quantize(torch.randn(6, 128), "RowWise")
    given = operands(6, 40)
    want, _ = by_hand(x.double() * scale.double().reshape(-1, 1), weight, given)
    assert close(quantized_matmul(x, weight, scale_x=scale, epilogue=STEPS, given=given), want)
    nothing = quantized_matmul(
        x[:0], weight, scale_x=scale[:0], epilogue=Epilogue(Bias()), given={"bias": torch.ones(40)}
    )
    assert nothing.shape == (0, 40)


REFUSED = [
    ({"epilogue": Epilogue(Bias())}, {}, OperandError, "bias is missing"),
    ({"given": {"bias": torch.ones(40)}}, {}, OperandError, "there is no epilogue"),
    ({"epilogue": Epilogue(Bias()), "given": {"bias": torch.ones(41)}}, {}, TensorError, r"bias has shape \[41\]"),
    ({"epilogue": STEPS, "bias": torch.ones(40)}, {}, OperandError, "bias and epilogue: one or the other"),
    ({"epilogue": STEPS, "activation": "relu"}, {}, OperandError, "activation and epilogue: one or the other"),
    ({"out": torch.ones(6, 41).bfloat16()}, {}, TensorError, r"out has shape \[6, 41\]"),
    ({"out": torch.ones(6, 40)}, {}, TensorError, "Expected out tensor to have dtype"),
    ({"out": 3}, {}, OperandError, "out"),
    ({"epilogue": Epilogue(Scale("scale_x")), "given": {"scale_x": 2.0}}, {}, OperandError, "scale_x names what"),
    ({"out": torch.ones(6, 40).bfloat16()}, {"ndim": 3}, TensorError, r"x has shape \[1, 6, 128\]: \(rows, k\)"),
    ({"out": torch.ones(6, 40).bfloat16()}, {"grad": True}, TensorError, "support automatic differentiation"),
    ({"epilogue": Epilogue(), "given": {}, "out_dtype": torch.float8_e4m3fn}, {"grad": True}, TensorError, "8 bits"),
    ({"out": torch.ones(6, 40).bfloat16(), "activation": "swiglu"}, {}, TensorError, r"the product \[6, 20\]"),
    ({"epilogue": Epilogue(Bias(), sums=1), "given": {"bias": torch.ones(40)}}, {}, OperandError, "there is none"),
    ({"epilogue": Epilogue(Quantize()), "given": {"scales": torch.ones(6, 1)}, "activation": "swiglu",
      "out_dtype": FP8}, {}, OperandError, "behind a gate of packed weights, which torch computes: .* 8 bits"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "how", "kind", "said"), REFUSED)
def test_what_does_not_fit_is_refused(given: dict[str, Any], how: dict[str, Any], kind: type, said: str) -> None:
    x = torch.randn(6, 128).to(BF16).requires_grad_(how.get("grad", False))
    with pytest.raises(kind, match=said):
        quantized_matmul(x[None] if how.get("ndim") else x, packed(40, 128), **given)


@pytest.mark.parametrize("fmt", [INT4, QuantizedFormat("e4m3")])
def test_a_gate_takes_a_bias_steps_on_both_sides_and_gradients(fmt: QuantizedFormat) -> None:
    weight, x = packed(80, 128, fmt), torch.randn(6, 128).to(BF16).requires_grad_()
    bias, d = torch.randn(80), torch.randn(6, 40).to(BF16)
    gate, up = (x.double() @ weight.dense(torch.float64).T + bias).chunk(2, -1)
    want = torch.nn.functional.gelu(gate) * up
    with torch.no_grad():
        c = quantized_matmul(x, weight, bias=bias, activation="geglu")
        out = quantized_matmul(x, weight, bias=bias, activation="geglu", out=torch.empty(6, 40, dtype=BF16))
        batch = quantized_matmul(x[None], weight, bias=bias, activation="geglu")
        layer = QuantizedLinear(weight, torch.nn.Parameter(bias), activation="geglu")
        assert torch.equal(layer(x), c) and torch.equal(batch, c[None])
    assert close(c, want) and torch.equal(c, out) and close(layer(x), want)  # recorded sums are rounded before the bias
    given = {"bias": bias, "beta": 2.0, "d": d, "rows": torch.empty(6)}
    steps = Epilogue(Bias(), Residual(), RowReduce("sum", "rows"), sums=1)
    own = quantized_matmul(x, weight, activation="geglu", epilogue=steps, given=given)
    assert close(own, want + 2 * d.double()) and close(given["rows"], (want + 2 * d.double()).sum(1))
    (found,) = torch.autograd.grad(own.double().sum() + given["rows"].double().sum(), x)
    assert close(found, torch.autograd.grad(2 * want.sum(), x)[0].double(), 2.0**-7)


def test_a_gate_under_a_compiler_takes_no_epilogue() -> None:
    weight, x = packed(80, 128), torch.randn(6, 128).to(BF16)
    call = torch.compile(lambda x: quantized_matmul(x, weight, activation="swiglu", epilogue=STEPS, given={}))
    with pytest.raises(torch._dynamo.exc.TorchRuntimeError, match=r"a gate of packed weights under torch\.compile"):
        call(x)


DERIVED = Epilogue(Scale(), Bias(), Aux("f32"), Activation("silu"), Residual(), RowReduce("sum", "rows"))


def loss(c: Any, given: dict[str, Any]) -> Any:
    """A number in which each element of all results counts."""
    return (c.double() * torch.arange(c.shape[1])).sum() + given["aux"].double().square().sum() + given["rows"].sum()


def by_kernel(x: Any, weight: QuantizedWeight, given: dict[str, Any]) -> Any:
    return loss(quantized_matmul(x, weight, epilogue=DERIVED, given=given), given)


def by_formula(x: Any, weight: QuantizedWeight, given: dict[str, Any]) -> Any:
    aux = given["alpha"] * (x.double() @ weight.dense(torch.float64).T) + given["bias"]
    c = torch.nn.functional.silu(aux) + given["beta"] * given["d"].double()
    return loss(c, {"aux": aux, "rows": c.sum(1)})


def gradients(of: Any, x: Any, weight: QuantizedWeight) -> list[Any]:
    given = operands(6, 40) | {"rows": torch.zeros(6)}
    wanted = [given[name].requires_grad_() for name in ("bias", "d")] + [x.clone().requires_grad_()] * (x.itemsize > 1)
    return list(torch.autograd.grad(of(wanted[-1] if x.itemsize > 1 else x, weight, given), wanted))


def test_x_and_the_operands_have_gradients_through_the_steps() -> None:
    weight, x = packed(40, 128), torch.randn(6, 128).to(BF16)
    want = gradients(by_formula, x, weight)
    compiled = torch.compile(by_kernel, backend="aot_eager", fullgraph=True)
    for of in (by_kernel, compiled):
        assert all(close(found, each.double(), 2.0**-6) for found, each in zip(gradients(of, x, weight), want))

    def of_x(x: Any) -> Any:
        return by_kernel(x, weight, operands(6, 40) | {"aux": x.new_zeros(6, 40).float(), "rows": torch.zeros(6)})

    assert close(torch.func.grad(of_x)(x), want[2].double(), 2.0**-6)
    slope = torch.func.jvp(of_x, (x,), (x,))[1]
    assert float(slope) == pytest.approx(float((want[2].double() * x.double()).sum()), rel=0.02)


def test_operands_behind_float8_activations_have_gradients() -> None:
    weight, x = packed(40, 128, kind=torch.float8_e4m3fn), torch.randn(6, 128).to(torch.float8_e4m3fn)
    want = gradients(by_formula, x, weight)
    assert all(close(found, each.double(), 2.0**-6) for found, each in zip(gradients(by_kernel, x, weight), want))
    with pytest.raises(TensorError, match="x requires grad"):
        quantized_matmul(x.requires_grad_(), weight, epilogue=Epilogue(), given={})


def test_compilers_and_transforms_see_one_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, x, given = packed(40, 128), torch.randn(6, 128).to(BF16), operands(6, 40)
    want = quantized_matmul(x, weight, epilogue=STEPS, given=given)
    aux = given["aux"].clone()
    graphs = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def call(x: Any, given: Any, out: Any = None) -> Any:
        return quantized_matmul(x, weight, epilogue=STEPS, given=given, out=out)

    given["aux"].zero_()
    out = torch.zeros(6, 40, dtype=BF16)
    assert torch.compile(call, backend=backend, fullgraph=True)(x, given, out) is out
    assert torch.equal(out, want) and torch.equal(given["aux"], aux)
    assert sum("quantized_epilogue_matmul" in str(node.target) for node in graphs[0].graph.nodes) == 1
    biased, bias = Epilogue(Bias()), {"bias": given["bias"]}
    with FlopCounterMode(display=False) as counted:
        quantized_matmul(x, weight, epilogue=biased, given=bias)
    assert counted.get_total_flops() == 2 * 6 * 40 * 128
    many = torch.randn(2, 6, 128).to(BF16)
    each = [quantized_matmul(one, weight, epilogue=biased, given=bias) for one in many]
    mapped = torch.func.vmap(lambda x: quantized_matmul(x, weight, epilogue=biased, given=bias))(many)
    assert torch.equal(mapped, torch.stack(each))
    tall, steps = packed(128, 128), {"bias": torch.ones(128)}
    parts = FeatureParts(((64, Sm90Config((64, 64), consumers=1)),) * 2)
    with every_door(monkeypatch, "sm_90a"), pytest.raises(LayoutError, match="FeatureParts"):
        quantized_matmul(x, tall, epilogue=biased, given=steps, config=parts)
