"""Packed weights of experts: biases, gates and epilogues, by the kernels and on the CPU, with gradients."""

from __future__ import annotations

from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from layoutgemm import QuantizedFormat, QuantizedWeight, explain_matmul, quantize
from layoutgemm.errors import LayoutError
from layoutgemm.kernels.epilogue.chain import Bias, ColumnReduce, Epilogue, Quantize, Residual, VectorScale
from layoutgemm.torch_op.quantized import QuantizedExperts, quantized_grouped_matmul
from layoutgemm.torch_op.quantized.dense import facts_of
from tests.torch_op.door_launches import every_door

BF16, F64 = torch.bfloat16, torch.float64
ROWS, N, K, OFFSETS = 7, 72, 128, (0, 4, 4, 7)
EXPERT = torch.tensor([0, 0, 0, 0, 2, 2, 2])  # of each row
INT4, INT8 = QuantizedFormat("int4", 64), QuantizedFormat("int8")
STEPS = Epilogue(Bias(), Residual(), VectorScale("m"))
SUMMED = Epilogue(Bias(), ColumnReduce("sum", "sums"))


def weights_of(fmt: QuantizedFormat, kind: Any = BF16) -> QuantizedExperts:
    made = torch.Generator().manual_seed(1)
    return QuantizedExperts.of(
        [QuantizedWeight.quantize(torch.randn(N, K, generator=made), fmt, kind) for _ in range(3)]
    )


def operands() -> tuple[Any, Any, dict[str, Any]]:
    made = torch.Generator().manual_seed(2)
    given = {
        "bias": torch.randn(3, N, generator=made), "d": torch.randn(ROWS, N, generator=made).to(BF16), "beta": 2.0,
        "scale": torch.rand(ROWS, generator=made) + 0.5,
    }  # fmt: skip
    return torch.randn(ROWS, K, generator=made).to(BF16), torch.tensor(OFFSETS), given


def dense(weights: QuantizedExperts) -> Any:
    """The weights that each row is multiplied by, as the kernels round them."""
    kind = torch.float32 if weights.format.group is None else BF16
    return torch.stack([weights.expert(e).dense(kind).double() for e in range(3)])[EXPERT]


def sums_of(x: Any, weights: QuantizedExperts) -> Any:
    return torch.einsum("rk,rnk->rn", x.double(), dense(weights))


def close(have: Any, want: Any, share: float = 2.0**-8) -> bool:
    return torch.allclose(have.double(), want, rtol=share, atol=share * float(want.abs().max()))


def gated(sums: Any) -> Any:
    return torch.nn.functional.silu(sums[:, : N // 2]) * sums[:, N // 2 :]


@needs.DSL
@pytest.mark.dsl
@pytest.mark.parametrize(
    ("code", "fmt"),
    [("sm_90a", INT4), pytest.param("sm_90a", INT8, marks=pytest.mark.slow), ("sm_80", INT8),
     pytest.param("sm_80", INT4, marks=pytest.mark.slow)],
)  # fmt: skip
def test_biases_gates_and_steps_of_kernels_equal_their_formula(
    code: str, fmt: QuantizedFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, (x, offsets, given), sums = weights_of(fmt), operands(), torch.zeros(3, N)
    with_bias = sums_of(x, weights) + given["bias"].double()[EXPERT]
    with every_door(monkeypatch, code) as made:
        own = quantized_grouped_matmul(x, weights, offsets, bias=given["bias"], activation="relu")
        common = quantized_grouped_matmul(x, weights, offsets, bias=given["bias"][0].to(BF16))
        gate = quantized_grouped_matmul(x, weights, offsets.int(), bias=given["bias"], activation="swiglu")
        steps = quantized_grouped_matmul(x, weights, offsets, epilogue=STEPS, given=given)
        summed = {"bias": given["bias"], "sums": sums}
        assert close(quantized_grouped_matmul(x, weights, offsets, epilogue=SUMMED, given=summed), with_bias)
    assert len(made) == 5  # one launch each; gate and sums are torch's, behind
    assert close(own, with_bias.relu()) and close(gate, gated(with_bias))
    assert close(common, sums_of(x, weights) + given["bias"][0].to(BF16).double())
    assert close(steps, (with_bias + 2 * given["d"].double()) * given["scale"].double()[:, None])
    assert close(sums, torch.zeros(3, N, dtype=F64).index_add(0, EXPERT, with_bias))


@needs.DSL
@pytest.mark.dsl
def test_float8_activations_have_biases_and_steps_behind_their_scales(monkeypatch: pytest.MonkeyPatch) -> None:
    weights, (wide, offsets, given) = weights_of(QuantizedFormat("e4m3"), torch.float8_e4m3fn), operands()
    x, scale = quantize(wide, "RowWise")
    sums = torch.einsum(
        "rk,rnk->rn", x.double() * scale.double().reshape(-1, 1),
        torch.stack([weights.expert(e).dense(F64) for e in range(3)])[EXPERT],
    )  # fmt: skip
    with every_door(monkeypatch):
        got = quantized_grouped_matmul(x, weights, offsets, scale_x=scale, epilogue=STEPS, given=given)
        plain = quantized_grouped_matmul(x, weights, offsets, scale_x=scale, bias=given["bias"], activation="geglu")
    sums = sums + given["bias"].double()[EXPERT]
    assert close(got, (sums + 2 * given["d"].double()) * given["scale"].double()[:, None])
    assert close(plain, torch.nn.functional.gelu(sums[:, : N // 2]) * sums[:, N // 2 :])


@pytest.mark.parametrize("fmt", [INT4, INT8], ids=str)
@pytest.mark.parametrize("how", ["bias", "gate", "steps", "sums"])
def test_x_and_the_operands_have_gradients(how: str, fmt: QuantizedFormat) -> None:
    weights, (x, offsets, given) = weights_of(fmt), operands()
    x, bias, d = (t.detach().clone().requires_grad_() for t in (x, given["bias"], given["d"]))
    exact, of_bias, of_d = (t.detach().double().requires_grad_() for t in (x, bias, d))
    want = torch.einsum("rk,rnk->rn", exact, dense(weights)) + of_bias[EXPERT]
    if how == "bias":
        got, want = quantized_grouped_matmul(x, weights, offsets, bias=bias, activation="relu"), want.relu()
    elif how == "gate":
        got, want = quantized_grouped_matmul(x, weights, offsets, bias=bias, activation="swiglu"), gated(want)
    elif how == "steps":
        got = quantized_grouped_matmul(x, weights, offsets, epilogue=STEPS, given={**given, "bias": bias, "d": d})
        want = (want + 2 * of_d) * given["scale"].double()[:, None]
    else:
        sums = torch.empty(3, N)
        got = quantized_grouped_matmul(x, weights, offsets, epilogue=SUMMED, given={"bias": bias, "sums": sums})
        got, want = torch.cat([got, sums]), torch.cat([want, torch.zeros(3, N, dtype=F64).index_add(0, EXPERT, want)])
    grad = torch.randn(want.shape, generator=torch.Generator().manual_seed(3))
    got.backward(grad.to(got.dtype))
    want.backward(grad.to(got.dtype).double())
    assert close(got, want.detach()) and close(bias.grad, of_bias.grad, 2.0**-7)
    assert close(x.grad, exact.grad, 2.0**-6) and (how != "steps" or close(d.grad, of_d.grad))


@pytest.mark.parametrize("how", ["gate", "steps", "sums"])
def test_compilers_see_operators(how: str) -> None:
    weights, (x, offsets, given) = weights_of(INT8), operands()

    def product(x: Any, offsets: Any, bias: Any, sums: Any) -> Any:
        if how == "gate":
            return quantized_grouped_matmul(x, weights, offsets, bias=bias, activation="swiglu")
        steps, more = (STEPS, given) if how == "steps" else (SUMMED, {"sums": sums})
        return quantized_grouped_matmul(x, weights, offsets, epilogue=steps, given={**more, "bias": bias})

    bias = given["bias"].clone().requires_grad_(how != "sums")
    compiled, found = torch.compile(product, backend="aot_eager", fullgraph=True), []
    for function in (product, compiled):
        bias.grad, sums = None, torch.zeros(3, N)
        value = function(x, offsets, bias, sums)
        if how != "sums":
            value.sum().backward()
        found.append((value, sums, bias.grad))
    for one, two in zip(*found, strict=True):
        assert one is two is None or torch.equal(one, two)


def test_a_gate_goes_into_out_and_is_explained() -> None:
    weights, (x, offsets, given) = weights_of(INT8), operands()
    out = torch.zeros(ROWS, N // 2, dtype=BF16)
    want = quantized_grouped_matmul(x, weights, offsets, bias=given["bias"], activation="swiglu")
    options = {"bias": given["bias"], "activation": "swiglu"}
    assert quantized_grouped_matmul(x, weights, offsets, **options, out=out) is out and torch.equal(out, want)
    told = explain_matmul(x, weights, offsets=offsets, **options)
    assert told.kernel.endswith("; then torch gates it") and told.workspace >= ROWS * N * 4
    wide = quantized_grouped_matmul(x, weights, offsets, bias=given["bias"], out=torch.zeros(ROWS, N, dtype=BF16))
    assert torch.equal(wide, quantized_grouped_matmul(x, weights, offsets, bias=given["bias"]))


def test_no_row_and_one_expert_have_results() -> None:
    weights, (x, _, given) = weights_of(INT8), operands()
    none, ends, sums = x[:0], torch.zeros(4, dtype=torch.int32), torch.ones(3, N)
    assert quantized_grouped_matmul(none, weights, ends, bias=given["bias"], activation="swiglu").shape == (0, N // 2)
    quantized_grouped_matmul(none, weights, ends, epilogue=SUMMED, given={"bias": given["bias"], "sums": sums})
    assert not sums.any()
    one = QuantizedExperts.of([weights.expert(1)])
    got = quantized_grouped_matmul(x, one, torch.tensor([0, ROWS]), bias=given["bias"][:1])
    assert close(got, x.double() @ weights.expert(1).dense(torch.float32).double().T + given["bias"][0].double())


# -------------------------------------------------------------------------------------------------------- masked groups

EACH, COUNTS = 5, (4, 0, 3)  # rows of each group, and those that count


def masked() -> tuple[Any, Any, Any]:
    """x, the counts, and the places of rows that count. x is NaN elsewhere."""
    x, counts = torch.full((3, EACH, K), torch.nan, dtype=BF16), torch.tensor(COUNTS)
    places = torch.arange(EACH) < counts[:, None]
    x[places] = operands()[0]
    return x, counts, places


@needs.DSL
@pytest.mark.dsl
@pytest.mark.parametrize(
    ("code", "fmt"), [("sm_90a", INT4), ("sm_80", INT8), pytest.param("sm_90a", INT8, marks=pytest.mark.slow)]
)
def test_kernels_multiply_the_rows_that_count(code: str, fmt: QuantizedFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    """As groups of the same rows by offsets, to the bit."""
    weights, (rows, offsets, given), (x, counts, places) = weights_of(fmt), operands(), masked()
    options = {"bias": given["bias"], "activation": "silu"}
    with torch.no_grad(), every_door(monkeypatch, code) as launches:
        want = quantized_grouped_matmul(rows, weights, offsets, **options)
        got = quantized_grouped_matmul(x, weights, counts=counts.int(), **options)
        assert got.shape == (3, EACH, N) and torch.equal(got[places], want)
        again = quantized_grouped_matmul(x, weights, counts=counts, expected_rows=2, **options)
        gate = quantized_grouped_matmul(x, weights, counts=counts, activation="swiglu")
        assert len(launches) == 4
    assert torch.equal(again[places], want)
    assert close(gate[places], gated(sums_of(rows, weights)))


def test_masked_groups_on_the_cpu_and_where_they_are_explained() -> None:
    weights, (rows, offsets, given), (x, counts, places) = weights_of(INT8), operands(), masked()
    want = quantized_grouped_matmul(rows, weights, offsets, bias=given["bias"], activation="swiglu")
    got = quantized_grouped_matmul(x, weights, counts=counts, bias=given["bias"], activation="swiglu")
    assert torch.equal(got[places], want) and got.shape == (3, EACH, N // 2)
    told = explain_matmul(x, weights, counts=counts)
    assert (
        told.why == "15 rows of 3 experts: tiles of 8 rows, half as many again as a usual group has; the kernel "
        "reads the counts"
    )
    assert explain_matmul(x, weights, counts=counts, expected_rows=1).why.startswith("3 rows of 3 experts")
    none = quantized_grouped_matmul(x[:, :0], weights, counts=torch.zeros(3, dtype=torch.int32))
    assert none.shape == (3, 0, N)


@pytest.mark.parametrize("activation", [None, "silu", "swiglu"])
def test_rows_that_do_not_count_have_no_gradients(activation: str | None) -> None:
    """Whatever x, and the gradient, hold there."""
    weights, (rows, offsets, given), (x, counts, places) = weights_of(INT8), operands(), masked()
    found = []
    for operand, how in ((rows, {"offsets": offsets}), (x, {"counts": counts})):
        leaf, bias = operand.clone().requires_grad_(), given["bias"].clone().requires_grad_()
        value = quantized_grouped_matmul(leaf, weights, **how, bias=bias, activation=activation)
        grad = torch.ones_like(value)
        if "counts" in how:
            grad[~places] = 1e30
        value.backward(grad)
        found.append((value.detach(), leaf.grad, bias.grad))
    (want, of_rows, of_bias), (got, of_x, again) = found
    assert torch.equal(got[places], want) and torch.equal(of_x[places], of_rows) and torch.equal(again, of_bias)
    assert not of_x[~places].any()


def test_compilers_see_masked_groups() -> None:
    weights, (x, counts, places) = weights_of(INT8), masked()

    def product(x: Any, counts: Any) -> Any:
        return quantized_grouped_matmul(x, weights, counts=counts, activation="swiglu")

    compiled = torch.compile(product, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x, counts)[places], product(x, counts)[places])
    rest = None, *facts_of(weights.format, weights.n, weights.k), None, "", None, None, EACH
    torch.library.opcheck(
        torch.ops.layoutgemm.quantized_grouped_matmul,
        (x.nan_to_num().flatten(0, 1), weights.units, weights.scales, counts, *rest),
    )


MASKED_REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"offsets": torch.tensor(OFFSETS)}, "offsets and counts: groups are said by one of them"),
    ({"counts": None, "expected_rows": 3}, "x and counts are torch tensors; got a NoneType"),
    ({"expected_rows": 0}, "expected_rows must be at least 1, not 0"),
    ({"counts": torch.tensor([1, 2])}, r"counts are torch.int64 of shape \[2\]: int32 or int64 of \[3\]"),
    ({"counts": torch.tensor([1, 6, 2])}, r"counts\[1\] = 6: a has 0 to 5 rows in a group"),
    ({"out": torch.zeros(3, EACH, N)}, "masked groups take a bias and an activation, no epilogue=, given= or out="),
    ({"x": torch.ones(ROWS, K).to(BF16)}, r"x has shape \[7, 128\]: with counts \(3, rows, k\)"),
]


@pytest.mark.parametrize(("how", "said"), MASKED_REFUSED)
def test_masked_groups_that_do_not_fit_are_refused(how: dict[str, Any], said: str) -> None:
    x, counts, _ = masked()
    with pytest.raises(LayoutError, match=said):
        quantized_grouped_matmul(**{"x": x, "weights": weights_of(INT8), "counts": counts, **how})


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"bias": torch.ones(2, N)}, r"bias is torch.float32 of shape \[2, 72\]: .* of \[72\] or \[3, 72\]"),
    ({"bias": torch.ones(3, N).double()}, "bias is torch.float64"),
    ({"epilogue": Epilogue(Bias()), "given": {"bias": torch.ones(4, N)}}, r"\[72\] or \[3, 72\]"),
    ({"epilogue": STEPS, "given": {}}, "bias"),
    ({"epilogue": Epilogue(Bias()), "bias": torch.ones(N)}, "bias and epilogue: one or the other"),
    (
        {"epilogue": Epilogue(Quantize()), "given": {"scales": torch.ones(ROWS, 1)}, "out_dtype": torch.float8_e4m3fn},
        "epilogue of groups that writes, which torch computes: .* 8 bits",
    ),
    ({"epilogue": Epilogue(Bias("n", "f32", "offsets")), "given": {"offsets": torch.ones(N)}}, "another name"),
    ({"out": torch.zeros(ROWS, N)}, "out"),
    ({"activation": "glu"}, "activation 'glu'"),
]


@pytest.mark.parametrize(("how", "said"), REFUSED)
def test_what_does_not_fit_is_refused(how: dict[str, Any], said: str) -> None:
    weights, (x, offsets, _) = weights_of(INT8), operands()
    with pytest.raises(LayoutError, match=said):
        quantized_grouped_matmul(x, weights, offsets, **how)


def test_a_gate_of_odd_features_is_refused() -> None:
    odd = QuantizedExperts.of([QuantizedWeight.quantize(torch.randn(71, K), INT8)])
    with pytest.raises(LayoutError, match="n = 71: a gate takes two halves"):
        quantized_grouped_matmul(torch.ones(2, K, dtype=BF16), odd, torch.tensor([0, 2]), activation="swiglu")
