"""scaled_matmul with an epilogue of the caller's own: on the CPU, by its kernels in the emulator, and refusals."""

from __future__ import annotations

from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from layoutgemm import explain_matmul, scaled_matmul
from layoutgemm.errors import LayoutError
from layoutgemm.kernels.epilogue.chain import Activation, Amax, Epilogue, Quantize, Residual, RowReduce, Scale
from tests.torch_op.test_operator import BF16, F32, emulated, integers
from tests.torch_op.test_scaled_kernels import E4M3, FEW, SMALL, powers, scaled_case

STEPS = Epilogue(Scale("half"), Residual("f32", beta=None), Activation("relu"), RowReduce("sum", "sums"), Amax())
CASES = ("tensors", "rows", "rows, of one", "1x128, 128x128", "1x128, 1x128")


def operands(m: int = 70, n: int = 48) -> dict[str, Any]:
    return {"half": 0.5, "d": integers(m, n, dtype=F32), "sums": torch.zeros(m), "amax": torch.zeros(1)}


def check(given: dict[str, Any], want: Any, **options: Any) -> None:
    """Against float64: every result is exact."""
    of = operands()
    value = torch.relu(0.5 * want + of["d"])
    got = scaled_matmul(**given, epilogue=STEPS, given=of, out_dtype=F32, **options)
    assert torch.equal(got.double(), value) and torch.equal(of["sums"].double(), value.sum(1))
    assert of["amax"].item() == value.max()
    out = torch.empty(70, 48, dtype=BF16)
    assert scaled_matmul(**given, epilogue=STEPS, given=operands(), out=out, **options) is out
    assert out.shape == (70, 48)
    alone, sums = Epilogue(RowReduce("sum", "sums"), stores_c=False), {"sums": torch.zeros(70)}
    assert scaled_matmul(**given, epilogue=alone, given=sums, **options).shape == (0,)
    assert torch.equal(sums["sums"].double(), want.sum(1))


@pytest.mark.parametrize("name", CASES)
def test_the_definition_on_the_cpu(name: str) -> None:
    check(*scaled_case(name))


@pytest.mark.dsl
@pytest.mark.parametrize("name", [x if x in FEW else pytest.param(x, marks=pytest.mark.slow) for x in CASES])
def test_by_the_kernels(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with emulated(monkeypatch) as calls:
        check(*scaled_case(name), config=SMALL)
        assert len(calls) == 3


@pytest.mark.dsl
def test_exact_sums_and_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    given, want = scaled_case("rows")
    steps, k = Epilogue(RowReduce("max", "most")), 144
    a, b = integers(2, 20, k, dtype=E4M3), integers(2, 40, k, dtype=E4M3).mT
    of_a, of_b = powers(2, 20, 2), powers(2, 1, 2)
    wide = [(x.double() * s.repeat_interleave(128, -1)[..., :k].double()) for x, s in ((a, of_a), (b.mT, of_b))]
    whole = wide[0] @ wide[1].mT
    with emulated(monkeypatch):
        most = torch.zeros(70)
        got = scaled_matmul(
            **given, use_fast_accum=False, epilogue=steps, given={"most": most}, out_dtype=F32, config=SMALL
        )
        assert torch.equal(got.double(), want) and torch.equal(most.double(), want.amax(1))
        each = torch.zeros(2, 20)
        got = scaled_matmul(a, of_a, b, of_b, epilogue=steps, given={"most": each}, out_dtype=F32, config=SMALL)
        assert torch.equal(got.double(), whole) and torch.equal(each.double(), whole.amax(2))
        one = [x[:1] for x in (a, of_a, b, of_b)]  # a plan of a batch of one has no batch
        each, out = torch.zeros(1, 20), torch.zeros(1, 20, 40)
        assert scaled_matmul(*one, epilogue=steps, given={"most": each}, out=out, out_dtype=F32, config=SMALL) is out
        assert torch.equal(out.double(), whole[:1]) and torch.equal(each.double(), whole[:1].amax(2))
        alone = Epilogue(RowReduce("max", "most"), stores_c=False)
        assert scaled_matmul(*one, epilogue=alone, given={"most": each.zero_()}, config=SMALL).shape == (0,)
        assert torch.equal(each.double(), whole[:1].amax(2))
        how = explain_matmul(a[:1], b[:1], scale_a=of_a[:1], scale_b=of_b[:1], epilogue=steps, given={"most": each})
        assert "K blocks of 128 promoted" in how.kernel


@pytest.mark.parametrize("name", FEW)
def test_explanations_count_what_is_allocated(name: str) -> None:
    given, _ = scaled_case(name)
    how = explain_matmul(**given, epilogue=STEPS, given=operands(), config=SMALL)
    assert "scales of" in how.why and how.launches == 1
    assert how.workspace == 70 * 4 and how.copies == (f"reductions: partial results of the tiles, {70 * 4} bytes",)


def test_sizes_of_zero() -> None:
    a, b = torch.zeros(0, 128).to(E4M3), torch.zeros(128, 16).to(E4M3)
    sums = torch.zeros(0)
    epilogue = Epilogue(RowReduce("sum", "sums"))
    got = scaled_matmul(a, torch.zeros(0, 1), b, torch.ones(16, 1), epilogue=epilogue, given={"sums": sums})
    assert got.shape == (0, 16)


def test_refusals_name_the_operand() -> None:
    given, _ = scaled_case("rows")
    rows = Epilogue(RowReduce("sum", "sums"))
    for text, epilogue, own, more in (
        ("bias and epilogue", rows, {"sums": torch.zeros(70)}, {"bias": torch.zeros(48)}),
        ("out_recipe and epilogue", rows, {"sums": torch.zeros(70)}, {"out_recipe": "BlockWise1x128"}),
        ("no epilogue", None, {"sums": torch.zeros(70)}, {}),
        ("sums is missing", rows, {}, {}),
        ("sums has shape", rows, {"sums": torch.zeros(71)}, {}),
        ("named scale_a", Epilogue(RowReduce("sum", "scale_a")), {"scale_a": torch.zeros(70)}, {}),
        ("Quantize gives e4m3", Epilogue(Quantize()), {"scales": torch.zeros(70, 1)}, {}),
        ("stores no C", Epilogue(RowReduce("sum", "sums"), stores_c=False), {"sums": torch.zeros(70)},
         {"out": torch.empty(70, 48, dtype=BF16)}),
        ("shares memory", rows, {"sums": given["scale_a"].view(70)}, {}),
    ):  # fmt: skip
        with pytest.raises(LayoutError, match=text):
            scaled_matmul(**given, epilogue=epilogue, given=own, **more)


@pytest.mark.dsl
def test_negated_views_of_block_scales_are_read_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A view with torch's negative bit: its memory holds the opposite values."""
    a, b = (torch.randint(-2, 3, (rows, 128)).to(torch.float8_e4m3fn) for rows in (40, 16))
    scale = torch._neg_view(-(2.0 ** torch.randint(-1, 2, (40, 1)).float()))
    given, steps = {"most": torch.zeros(1)}, Epilogue(Amax("most"))
    options = {"recipe_a": "BlockWise1x128", "out_dtype": torch.float32}
    with emulated(monkeypatch):
        got = scaled_matmul(a, scale, b.T, epilogue=steps, given=given, **options)
    want = (a.double() * scale.resolve_neg().double()) @ b.double().T
    assert torch.equal(got.double(), want) and given["most"].item() == want.abs().max().item()
