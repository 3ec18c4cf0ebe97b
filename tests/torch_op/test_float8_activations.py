"""quantized_matmul of float8 activations: values, scales, compilers, launches, kept calls, the layer, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests import needs

torch = needs.module("torch")

from layoutgemm import QuantizedFormat, QuantizedWeight, quantize, quantized_matmul
from layoutgemm.errors import LayoutError
from layoutgemm.kernels.quantized.formats import MXFP4, NVFP4
from layoutgemm.kernels.run.emulated import emulate_launch
from layoutgemm.nn import QuantizedLinear
from layoutgemm.torch_op.quantized import QuantizedExperts, quantized_grouped_matmul
from layoutgemm.torch_op.quantized.dense import facts_of
from layoutgemm.torch_op.quantized.experts import experts_plan
from layoutgemm.torch_op.quantized.launch import QuantizedCall, arguments_of, plan_of

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
INT4 = QuantizedFormat("int4", 128)
FORMATS = [INT4, QuantizedFormat("int4", 32, zeros=True), QuantizedFormat("int4"), MXFP4, QuantizedFormat("e4m3", 64)]


def weight_of(fmt: QuantizedFormat) -> QuantizedWeight:
    dense = torch.randn(100, 384, generator=torch.Generator().manual_seed(0))
    return QuantizedWeight.quantize(dense, fmt, E4M3)


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_values_match_float64(fmt: QuantizedFormat) -> None:
    weight = weight_of(fmt)
    dense = weight.dense(torch.float64)
    assert np.array_equal(weight.plain().dense().astype(np.float32), dense.numpy().astype(np.float32))
    x, scale = quantize(torch.randn(2, 5, 384), "RowWise")
    want = (x.double() * scale.double()) @ dense.T
    found = quantized_matmul(x, weight, scale_x=scale)
    assert found.dtype == torch.bfloat16 and torch.allclose(found.double(), want, rtol=2**-8, atol=1e-6)
    assert torch.equal(found, quantized_matmul(x, weight, scale_x=scale[..., 0]))
    bias = torch.randn(100)
    x = torch.randn(7, 384).to(E5M2)
    found = quantized_matmul(
        x, weight, scale_x=torch.tensor([[0.5]]), bias=bias, activation="relu", out_dtype=torch.float32
    )
    want = torch.relu(x.double() @ dense.T * 0.5 + bias.double())
    assert torch.allclose(found.double(), want, rtol=2**-20, atol=1e-5)
    assert torch.equal(quantized_matmul(x, weight), quantized_matmul(x, weight, scale_x=torch.ones(7, 1)))


def test_compilers_and_vmap_see_one_operator() -> None:
    weight = weight_of(INT4)
    x, scale = quantize(torch.randn(3, 4, 384), "RowWise")
    want = quantized_matmul(x, weight, scale_x=scale)

    def product(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return quantized_matmul(x, weight, scale_x=scale)

    torch._dynamo.reset()
    assert torch.equal(torch.compile(product, backend="eager", fullgraph=True)(x, scale), want)
    assert torch.equal(torch.vmap(product)(x, scale), want)
    same = scale[0].expand_as(scale)
    assert torch.equal(torch.vmap(product, (0, None))(x, scale[0]), product(x, same))
    one = torch.tensor(2.0)
    assert torch.equal(torch.vmap(product, (0, None))(x, one), quantized_matmul(x, weight, scale_x=one))
    assert quantized_matmul(x.to("meta"), weight.to("meta"), scale_x=scale.to("meta")).shape == (3, 4, 100)
    assert quantized_matmul(x[:, :0], weight, scale_x=scale[:, :0]).shape == (3, 0, 100)


@pytest.mark.parametrize("fmt", FORMATS[:3], ids=str)
def test_the_operator_passes_torchs_checks(fmt: QuantizedFormat) -> None:
    weight, x = weight_of(fmt), torch.randn(5, 384).to(E4M3)
    facts, own = facts_of(fmt, weight.n, weight.k), torch.ops.layoutgemm.quantized_matmul.default
    checks = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")  # torch scales no float8
    for scale in (torch.rand(5), torch.rand(1), None):
        given = (x, weight.units, weight.scales, torch.randn(100), "silu", *facts, torch.bfloat16, "", scale)
        assert {*torch.library.opcheck(own, given, test_utils=checks).values()} == {"SUCCESS"}


def test_compiled_code_calls_the_product_with_its_scales() -> None:
    layer = QuantizedLinear.from_linear(torch.nn.Linear(128, 64, dtype=torch.bfloat16), INT4, activations=E4M3)
    x = torch.randn(2, 3, 128).bfloat16()
    torch._dynamo.reset()
    with torch.no_grad():
        assert torch.equal(torch.compile(layer, fullgraph=True)(x), layer(x))


def test_a_bias_has_a_gradient_and_x_has_none() -> None:
    weight, bias = weight_of(INT4), torch.zeros(100, requires_grad=True)
    x, scale = quantize(torch.randn(5, 384), "RowWise")
    quantized_matmul(x, weight, scale_x=scale, bias=bias).sum().backward()
    assert torch.equal(bias.grad, torch.full((100,), 5.0))
    for name, given in {"x": (x.detach().requires_grad_(), scale), "scale_x": (x, scale.requires_grad_())}.items():
        with pytest.raises(LayoutError, match=f"{name} requires grad, and this product has no gradient"):
            quantized_matmul(given[0], weight, scale_x=given[1])


@needs.DSL
@pytest.mark.dsl
def test_the_launch_writes_what_the_cpu_computes() -> None:
    fmt = QuantizedFormat("int4")
    weight = QuantizedWeight.quantize(torch.randn(72, 128), fmt, E4M3)
    x, scale = quantize(torch.randn(3, 128), "RowWise")
    bias = torch.randn(72)
    plan = plan_of(QuantizedCall(fmt, (72, 128), "relu", torch.bfloat16, None, "RowWise"), 3, "e4m3", "f32", 4)
    assert [given.name for given in plan.epilogue.given] == ["weight_scale", "scale_x", "bias"]
    numbers, places = arguments_of(plan, 128, 2)
    c = np.zeros((3, 72), np.uint16)
    arrays = [weight.units.numpy().reshape(-1), x.view(torch.uint8).numpy(), c, weight.scales.numpy(),
              scale.reshape(-1).numpy(), bias.numpy()]  # fmt: skip
    arguments = list(numbers)
    for place, array in zip(places, arrays, strict=True):
        arguments[place] = array
    emulate_launch(plan, tuple(arguments), progress=False).raise_for_findings()
    found = torch.from_numpy(c.view(np.int16)).view(torch.bfloat16)
    want = quantized_matmul(x, weight, scale_x=scale, bias=bias, activation="relu")
    assert torch.allclose(found.float(), want.float(), rtol=2**-7, atol=1e-2)


def experts_of(fmt: QuantizedFormat) -> QuantizedExperts:
    rng = torch.Generator().manual_seed(1)
    return QuantizedExperts.of(
        [QuantizedWeight.quantize(torch.randn(72, 128, generator=rng), fmt, E4M3) for _ in range(3)]
    )


def test_groups_of_rows_have_their_experts_weights_and_their_own_scales() -> None:
    x, scale = quantize(torch.randn(7, 128), "RowWise")
    for fmt in (INT4, QuantizedFormat("int4")):
        weights = experts_of(fmt)
        found = quantized_grouped_matmul(x, weights, torch.tensor([0, 4, 4, 7]), scale_x=scale, activation="relu")
        want = [
            quantized_matmul(x[:4], weights.expert(0), scale_x=scale[:4], activation="relu"),
            quantized_matmul(x[4:], weights.expert(2), scale_x=scale[4:], activation="relu"),
        ]
        assert torch.equal(found, torch.cat(want))
    one, offsets = torch.tensor(0.5), torch.tensor([0, 0, 7, 7])
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x, at: quantized_grouped_matmul(x, weights, at, scale_x=one), backend="eager", fullgraph=True
    )
    assert torch.equal(compiled(x, offsets), quantized_matmul(x, weights.expert(1), scale_x=one))


@needs.DSL
@pytest.mark.dsl
def test_the_launch_of_experts_writes_what_the_cpu_computes() -> None:
    weights, (x, scale) = experts_of(QuantizedFormat("int4")), quantize(torch.randn(11, 128), "RowWise")
    offsets = torch.tensor([0, 4, 4, 11], dtype=torch.int32)
    call = QuantizedCall(weights.format, (72, 128), None, torch.bfloat16, None, "RowWise")
    plan = experts_plan(call, 3, 11, "e4m3", "i32")
    plan.check().require()
    numbers, places = arguments_of(plan, 128, 2)
    c = np.zeros((11, 72), np.uint16)
    arrays = [weights.units.numpy().reshape(-1), x.view(torch.uint8).numpy(), c, weights.scales.numpy(),
              scale.reshape(-1).numpy(), offsets.numpy()]  # fmt: skip
    arguments = list(numbers)
    for place, array in zip(places, arrays, strict=True):
        arguments[place] = array
    emulate_launch(plan, tuple(arguments)).raise_for_findings()
    found = torch.from_numpy(c.view(np.int16)).view(torch.bfloat16)
    want = quantized_grouped_matmul(x, weights, offsets, scale_x=scale)
    assert torch.allclose(found.float(), want.float(), rtol=2**-7, atol=2**-6)


def test_a_layer_quantises_x_with_a_scale_a_row() -> None:
    layer = torch.nn.Linear(256, 64, dtype=torch.bfloat16)
    made = QuantizedLinear.from_linear(layer, QuantizedFormat("int4", 32, zeros=True), activations=E4M3)
    x = torch.randn(2, 7, 256).bfloat16()
    with torch.no_grad():
        values, scale = quantize(x, "RowWise")
        want = (values.double() * scale.double()) @ made.dequantized().double().T + layer.bias.double()
        assert made(x).dtype == torch.bfloat16 and torch.allclose(made(x).double(), want, rtol=2**-8, atol=1e-4)
        assert made(x.half()).dtype == torch.float16
    with pytest.raises(LayoutError, match="x requires grad, and quantize has no gradient"):
        made(x.requires_grad_())


REFUSED: dict[str, tuple[Callable[[torch.Tensor, QuantizedWeight], Any], str]] = {
    "int8": (
        lambda x, w: QuantizedWeight.quantize(torch.ones(64, 128), QuantizedFormat("int8"), E4M3),
        "weights are int8 with a scale a column, for float8 activations: code 17 of int8 is 17, and the nearest e4m3",
    ),
    "small groups": (
        lambda x, w: QuantizedWeight.quantize(torch.ones(64, 128), NVFP4, E4M3),
        "groups of 16: an instruction of float8 sums 32 of K",
    ),
    "x": (lambda x, w: quantized_matmul(x.bfloat16(), w), "x is torch.bfloat16, and the weights are packed for"),
    "shape": (
        lambda x, w: quantized_matmul(x, w, scale_x=torch.ones(5, 384)),
        "scale_x has shape [5, 384]: [5, 1] or [5], a scale of each row, or one element",
    ),
    "scale": (
        lambda x, w: quantized_matmul(x, w, scale_x=torch.ones(5, 1).bfloat16()),
        "scale_x is torch.bfloat16 of shape [5]: float32, one for each of 5 rows, or one element",
    ),
    "16 bits": (
        lambda x, w: quantized_matmul(
            x.bfloat16(), QuantizedWeight.quantize(torch.ones(64, 384), INT4), scale_x=torch.ones(5, 1)
        ),
        "scale_x is given, and x is torch.bfloat16: scales are of float8 activations",
    ),
    "rows of experts": (
        lambda x, w: quantized_grouped_matmul(
            x, QuantizedExperts.of([w, w]), torch.tensor([0, 2, 5]), scale_x=torch.ones(4)
        ),
        "scale_x has shape [4]: [5, 1] or [5], a scale of each row, or one element",
    ),
    "experts": (
        lambda x, w: quantized_grouped_matmul(x.half(), QuantizedExperts.of([w, w]), torch.tensor([0, 2, 5])),
        "x is torch.float16, and the weights are packed for torch.float8_e4m3fn",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refusals_name_the_operand(what: str) -> None:
    call, said = REFUSED[what]
    with pytest.raises(LayoutError) as refused:
        call(torch.ones(5, 384).to(E4M3), weight_of(INT4))
    assert said in str(refused.value)
