"""The Ampere kernel on a GPU, any from sm_80 on: against exact integers, odd pitches and views, the same bits twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from layoutgemm.errors import OperandError
from layoutgemm.kernels.run.torch_tensors import target_here
from layoutgemm.kernels.sm80.plan import Sm80Config, Sm80Plan
from tests import needs
from tests.kernels.sm80.table import TABLE, Product
from tests.kernels.sm80.test_fused import FORMS, equals_numpy
from tests.kernels.sm80.test_orders import FORMS as ORDERED
from tests.kernels.sm80.test_orders import ordered

torch = needs.module("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.dsl]
KINDS = {"bf16": "bfloat16", "f16": "float16", "tf32": "float32", "i8": "int8", "u8": "uint8",
         "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}  # fmt: skip


def here() -> str:
    return target_here(("sm_80", "sm_90a", "sm_100a", "sm_120a"), "sm_80")


def tensors(product: Product, plan: Sm80Plan) -> tuple[Any, Any, Any]:
    a, b, want = (torch.from_numpy(x if product.batch > 1 else x[0]) for x in product.values())
    made = []
    for operand, values in ((plan.a, a), (plan.b, b)):
        kind = getattr(torch, KINDS[operand.dtype.name])
        lines = values if operand.order == "row" else values.transpose(-1, -2)
        tensor = lines.float().contiguous().cuda().to(kind)
        made.append(tensor if operand.order == "row" else tensor.transpose(-1, -2))
    return made[0], made[1], want


@pytest.mark.parametrize("name", [n for n, p in TABLE.items() if p.config.blocks_per_sm == 1])
def test_exact(name: str) -> None:
    product = replace(TABLE[name], arch=here())
    if product.a.startswith("e4m3") and here() == "sm_80":
        pytest.skip("needs a GPU from sm_89 on, for fp8")
    plan = product.plan()
    a, b, want = tensors(product, plan)
    first, second = (plan.run(a, b).c for _ in range(2))
    assert torch.equal(first.cpu().double(), want.to(first.dtype).double())
    assert torch.equal(first, second)


@pytest.mark.parametrize("form", list(ORDERED))
def test_an_order_reads_a_list_or_numbers(form: str) -> None:
    if ORDERED[form][2].get("config", Sm80Config()).loads == "tma" and here() == "sm_80":
        pytest.skip("needs a GPU from sm_90 on, for TMA")
    ordered(form, "cuda", here())


def test_an_order_of_tensors_reads_a_list() -> None:
    a, b = (torch.randint(-3, 4, shape, device="cuda").bfloat16() for shape in ((136, 72), (72, 100)))
    tiles = torch.tensor([1 + 2 * 65536, 0], dtype=torch.int32).cuda()
    config = Sm80Config((64, 32), warps=(2, 1))
    for order, given in (("hilbert", {}), ("list", {"tiles": tiles})):
        plan = Sm80Plan.derive(136, 100, 72, arch=here(), c="f32", config=config, order=order)
        out = torch.full((136, 100), 7.0, device="cuda")
        plan.run(a, b, out=out, given=given)
        want = a.float() @ b.float()
        if order == "list":
            kept = torch.full_like(want, 7)
            kept[64:128, 64:96], kept[:64, :32] = want[64:128, 64:96], want[:64, :32]
            want = kept
        assert torch.equal(out, want)


@pytest.mark.parametrize("name", list(FORMS))
def test_epilogues_and_reductions_equal_numpys(name: str) -> None:
    of = replace(FORMS[name], arch=here())
    if of.config.loads == "tma" and here() == "sm_80":
        pytest.skip("needs a GPU from sm_90 on, for TMA")
    equals_numpy(of, "cuda")


@pytest.mark.parametrize("size", [(1024, 1024, 1024), (1000, 1032, 1104), (4096, 512, 2048)])
def test_random_values(size: tuple[int, int, int]) -> None:
    m, n, k = size
    plan = Sm80Plan.derive(m, n, k, arch=here(), b="bf16:col", c="f32", config=Sm80Config(group=16))
    a, b = (torch.randn(rows, k, device="cuda").bfloat16() for rows in (m, n))
    got = plan.run(a, b.T).c
    exact = a.double() @ b.double().T
    assert float((got.double() - exact).abs().max()) < 1e-3 * k**0.5
    torch.testing.assert_close(got.double(), exact, rtol=1e-3, atol=2e-3)


def test_views_are_taken_as_they_lie_or_copied_by_name() -> None:
    whole = torch.randn(100, 104, device="cuda").bfloat16()
    plan = Sm80Plan.derive(64, 64, 64, arch=here(), b="bf16:col")
    a, b = whole[:64, 8:72], whole[30:94, :64]
    exact = a.double() @ b.double().T
    result = plan.run(a, b.T)
    assert not result.copies
    torch.testing.assert_close(result.c.double(), exact, rtol=1e-2, atol=1e-2)
    with pytest.raises(OperandError, match="out, which is written to, shares memory with a"):
        plan.run(a, b.T, out=a)
    shifted = plan.run(whole[:64, 1:65], b.T)
    assert "a: its address is a multiple of 2 bytes, not of 16" in shifted.copies[0]
    with pytest.raises(OperandError, match="a: its address is a multiple of 2 bytes, not of 16"):
        plan.run(whole[:64, 1:65], b.T, copy=False)
    config = Sm80Config((64, 64), 32, 3, (2, 2), align=(2, 2, 2))
    odd = Sm80Plan.derive(64, 64, 64, arch=here(), b="bf16:col", config=config)
    assert not odd.run(whole[:64, 1:65], b.T, copy=False).copies
