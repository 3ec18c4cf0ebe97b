"""The torch functions on an emulated GPU: their kernels run, their results are right, and nothing is kept behind it."""

from __future__ import annotations

from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")
pytestmark = needs.DSL

import layoutgemm
from layoutgemm import QuantizedFormat, QuantizedWeight, emulated_gpu, matmul
from layoutgemm.errors import OperandError
from layoutgemm.torch_op import prepared
from layoutgemm.torch_op.quantized import dense


def close(found: Any, want: Any) -> None:
    """Within the rounding of bf16, of the norms."""
    off = (found.detach().cpu().double() - want.cpu()).norm() / want.cpu().norm()
    assert found.is_cuda and off < 2**-8, float(off)


def operands(m: int, n: int, k: int) -> tuple[Any, Any]:
    a, b = torch.randn(m, k, device="cuda"), torch.randn(k, n, device="cuda")
    return a.bfloat16(), b.bfloat16()


@pytest.mark.parametrize("arch", ["sm_90a", "sm_80"])
def test_products_and_gradients_are_launched(arch: str) -> None:
    with emulated_gpu(arch) as gpu:
        a, b = operands(40, 64, 72)
        a.requires_grad_(), b.requires_grad_()
        c = matmul(a, b)
        grad = torch.randn(40, 64, device="cuda").bfloat16()
        c.backward(grad)
        wide = a.detach().double(), b.detach().double(), grad.double()
        close(c, wide[0] @ wide[1])
        close(a.grad, wide[2] @ wide[1].T)
        close(b.grad, wide[0].T @ wide[2])
    assert gpu.ok and sum(len(run.launches) for run in gpu.runs) == 3
    assert {launch.kernel.target for run in gpu.runs for launch in run.launches} == {arch}


def test_other_functions_are_launched() -> None:
    with emulated_gpu() as gpu:
        a, b = operands(24, 64, 128)
        x, scale = layoutgemm.quantize(a)
        of_b, scale_b = layoutgemm.quantize(b.mT, "RowWise")
        a_wide, b_wide = x.double() * scale.double(), (of_b.double() * scale_b.double()).mT
        close(layoutgemm.scaled_matmul(x, scale, of_b.mT, scale_b.mT), a_wide @ b_wide)
        offsets = torch.tensor([0, 10, 24], device="cuda", dtype=torch.int32)
        found = layoutgemm.grouped_matmul(a, torch.stack([b, -b]), offsets)
        close(found, torch.cat([a[:10].double(), -a[10:].double()]) @ b.double())
        weight = QuantizedWeight.quantize(b.mT.float().cpu(), QuantizedFormat("int4", 64)).to("cuda")
        a.requires_grad_()
        product = layoutgemm.quantized_matmul(a, weight)
        product.sum().backward()
        exact = weight.dense(torch.bfloat16).double()
        close(product, a.detach().double() @ exact.mT)
        close(a.grad, torch.ones(24, 64, device="cuda").double() @ exact)
    assert gpu.ok and len(gpu.runs) == 7, "two quantise, three multiply, one unpacks, one more multiplies"


def test_a_race_of_two_streams_is_found() -> None:
    with emulated_gpu() as gpu:
        a, b = operands(16, 64, 64)
        other = torch.cuda.Stream()
        other.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(other):
            c = matmul(a, b)
        torch.ops.layoutgemm.matmul.default(c, b)  # reads c, and waits for nothing
    (race,) = gpu.findings
    assert "reads a bfloat16 tensor (16, 64)" in str(race) and "nothing orders this behind it" in str(race)


def test_nothing_of_an_emulated_gpu_stays() -> None:
    for _ in range(2):
        with emulated_gpu("sm_100a"):
            a, b = operands(16, 64, 64)
            with pytest.raises(OperandError, match="cuda:0 is NVIDIA B200"):
                matmul(a, b)
        with emulated_gpu("sm_90a") as gpu:
            a, b = operands(16, 64, 64)
            matmul(a, b)
            weight = QuantizedWeight.quantize(torch.ones(64, 64), QuantizedFormat("int8")).to("cuda")
            dense.dense_weights(weight.units, weight.scales, torch.bfloat16, ("int8", 0, False, 64, 64))
            assert len(gpu.runs) == 2 and dense.READY
        assert not dense.READY and not prepared.PREPARED
    c = matmul(torch.ones(2, 8).bfloat16(), torch.ones(8, 8).bfloat16())
    assert c.device.type == "cpu" and len(gpu.runs) == 2


@pytest.mark.slow
def test_compiled_code_launches_products() -> None:
    """Inductor's code of the CPU allocates buffers that torch's Python does not see."""
    with emulated_gpu() as gpu:
        a, b = operands(16, 64, 64)
        a.requires_grad_()
        found = torch.compile(lambda a, b: matmul(a, b, activation="relu"))(a, b)
        found.sum().backward()
        close(found, (a.detach().double() @ b.double()).relu())
        close(a.grad, (found.detach() > 0).double() @ b.double().mT)
    assert gpu.ok and len(gpu.runs) >= 1
