"""Products with packed weights on a Hopper GPU: values of both instructions, and CUDA graphs."""

from __future__ import annotations

import pytest

from tests import needs

torch = needs.module("torch")

from layoutgemm import QuantizedFormat, QuantizedWeight, quantize, quantized_matmul
from layoutgemm.kernels.sm90.config import Sm90Config
from layoutgemm.kernels.sm90.quantized.choose import packed_config
from layoutgemm.torch_op.quantized import QuantizedExperts, quantized_grouped_matmul

pytestmark = [pytest.mark.gpu, pytest.mark.dsl]
FEW = [QuantizedFormat("int4", 128), QuantizedFormat("int4", 32, zeros=True), QuantizedFormat("e4m3"),
       QuantizedFormat("e2m1", 16)]  # fmt: skip
WARPS = Sm90Config((128, 16), loader="warp", store="direct", products="warp")


def weights_of(count: int) -> list[QuantizedWeight]:
    fmt = QuantizedFormat("int4", 128)
    return [QuantizedWeight.quantize(torch.randn(328, 384), fmt).to("cuda") for _ in range(count)]


def near(found: torch.Tensor, x: torch.Tensor, weight: QuantizedWeight, rounded: bool = True) -> bool:
    dense = weight.dense(torch.bfloat16).double() if rounded else weight.dense(torch.float64)
    want, size = x.double() @ dense.T, x.double().abs() @ dense.abs().T
    return bool(((found.double() - want).abs() <= 2.0**-8 * want.abs() + 2.0**-17 * size).all())


@pytest.mark.parametrize("config", [None, WARPS], ids=["default", "warps"])
def test_a_captured_product_follows_its_input(config: Sm90Config | None) -> None:
    weight, rounded = weights_of(1)[0], config is not None  # as chosen, scales multiply sums
    x = torch.randn(13, 384, device="cuda").bfloat16()
    assert near(quantized_matmul(x, weight, config=config), x, weight, rounded)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = quantized_matmul(x, weight, config=config)
    x.copy_(torch.randn(13, 384))
    graph.replay()
    assert near(found, x, weight, rounded)


@pytest.mark.parametrize("config", [None, WARPS], ids=["default", "warps"])
def test_a_captured_product_follows_its_offsets(config: Sm90Config | None) -> None:
    weights = weights_of(3)
    experts = QuantizedExperts.of(weights)
    x = torch.randn(40, 384, device="cuda").bfloat16()
    offsets = torch.tensor([0, 40, 40, 40], dtype=torch.int32, device="cuda")
    assert near(quantized_grouped_matmul(x, experts, offsets, config=config), x, weights[0])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = quantized_grouped_matmul(x, experts, offsets, config=config)
    offsets.copy_(torch.tensor([0, 7, 7, 40]))
    graph.replay()
    assert near(found[:7], x[:7], weights[0]) and near(found[7:], x[7:], weights[2])


@pytest.mark.parametrize("config", [None, WARPS], ids=["default", "warps"])
def test_a_captured_product_follows_its_counts(config: Sm90Config | None) -> None:
    weights = weights_of(3)
    experts = QuantizedExperts.of(weights)
    x = torch.randn(3, 40, 384, device="cuda").bfloat16()
    counts = torch.tensor([40, 0, 1], dtype=torch.int32, device="cuda")
    assert near(quantized_grouped_matmul(x, experts, counts=counts, config=config)[0], x[0], weights[0])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = quantized_grouped_matmul(x, experts, counts=counts, config=config)
    for each in ([7, 40, 0], [0, 9, 40]):
        counts.copy_(torch.tensor(each))
        found.fill_(torch.nan)
        graph.replay()
        for e, count in enumerate(each):
            assert count == 0 or near(found[e, :count], x[e, :count], weights[e])
            assert found[e, count:].isnan().all()


@pytest.mark.parametrize("rows", [1, 13, 300])
@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8_activations_match_float64(rows: int, kind: torch.dtype) -> None:
    """8-bit products are added with 14 bits in the tensor core."""
    for fmt in (QuantizedFormat("int4", 32, zeros=True), QuantizedFormat("int4"), QuantizedFormat("e2m1", 32)):
        weight = QuantizedWeight.quantize(torch.randn(328, 1152), fmt, torch.float8_e4m3fn).to("cuda")
        x, scale = quantize(torch.randn(rows, 1152, device="cuda"), "RowWise", dtype=kind)
        found = quantized_matmul(x, weight, scale_x=scale)
        wide, dense = x.double() * scale.double(), weight.dense(torch.float64)
        want, size = wide @ dense.T, wide.abs() @ dense.abs().T
        assert ((found.double() - want).abs() <= 2.0**-8 * want.abs() + 2.0**-12 * size).all()


@pytest.mark.parametrize("rows", [1, 3, 4])
@pytest.mark.parametrize("fmt", FEW, ids=str)
def test_few_rows_are_streamed_with_the_same_bits_every_time(fmt: QuantizedFormat, rows: int) -> None:
    """No weight is rounded; x begins inside of a larger matrix, and a graph reads what is there when it runs."""
    weight = QuantizedWeight.quantize(torch.randn(333, 2304), fmt).to("cuda")
    wide, bias = torch.randn(rows, 2344, device="cuda").bfloat16(), torch.randn(333, device="cuda").bfloat16()
    x = wide[:, 8:2312]
    found = quantized_matmul(x, weight, bias=bias, activation="relu")
    dense = weight.dense(torch.float64)

    def right(c: torch.Tensor) -> bool:
        want, size = x.double() @ dense.T + bias.double(), x.double().abs() @ dense.abs().T
        return bool(((c.double() - want.relu()).abs() <= 2.0**-8 * want.abs() + 2.0**-17 * size).all())

    assert right(found)
    assert all(torch.equal(found, quantized_matmul(x, weight, bias=bias, activation="relu")) for _ in range(20))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = quantized_matmul(x, weight, bias=bias, activation="relu")
    wide.copy_(torch.randn(rows, 2344))
    graph.replay()
    assert right(captured)


@pytest.mark.parametrize("fmt", FEW, ids=str)
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_slices_of_k_give_the_same_bits_every_time(fmt: QuantizedFormat, kind: torch.dtype) -> None:
    """As chosen, for rows that no other test has; the parts of K are few or many, and end anywhere."""
    sliced = 0
    for n, k in ((333, 2304), (8192, 256), (4096, 1664), (64, 128)):
        weight = QuantizedWeight.quantize(torch.randn(n, k), fmt, kind).to("cuda")
        for rows in (5, 8, 16, 21, 32, 47, 64):
            config = packed_config(n, rows, k, weights=fmt)
            sliced += config.schedule == "sliced"
            rounds = fmt.group is not None and config.tuning.scales == "weights"
            dense = weight.dense(kind).double() if rounds else weight.dense(torch.float64)
            x = torch.randn(rows, k, device="cuda").to(kind)
            found = quantized_matmul(x, weight)
            want, size = x.double() @ dense.T, x.double().abs() @ dense.abs().T
            assert ((found.double() - want).abs() <= 2.0**-8 * want.abs() + 2.0**-17 * size).all(), (n, k, rows)
            assert all(torch.equal(found, quantized_matmul(x, weight)) for _ in range(10))
    assert sliced >= 20
