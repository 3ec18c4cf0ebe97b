"""matmul(prologue=): on the CPU against torch, gradients, refusals, and on a GPU against float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from layoutgemm import matmul
from layoutgemm.errors import OperandError
from layoutgemm.kernels import Prologue

NORM = Prologue.of(lambda x, i, k, ops, rstd, w: x * rstd * w, rstd="m", w="k:bf16")
GELU = Prologue.of(lambda x, i, k, ops: x * ops.normal(x))


def drawn(device: str = "cpu", m: int = 5, n: int = 8, k: int = 16, batch: int = 0) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    lead = (batch,) if batch else ()
    x, w = torch.randn(*lead, m, k, device=device).bfloat16(), torch.randn(*lead, k, n, device=device).bfloat16()
    return x, w, torch.rand(*lead, m, device=device) + 0.5, torch.rand(*lead, k, device=device).bfloat16()


def normalised(x: torch.Tensor, rstd: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
    return (x.float() * rstd[..., :, None] * gamma.float()[..., None, :]).to(x.dtype)


def test_the_product_with_bias_and_activation() -> None:
    x, w, rstd, gamma = drawn()
    bias, out = torch.linspace(-1, 1, 8), torch.empty(5, 8, dtype=torch.float32)
    given = {"rstd": rstd, "w": gamma}
    got = matmul(x, w, prologue=NORM, given=given, bias=bias, activation="relu", out=out, out_dtype=torch.float32)
    want = torch.relu(normalised(x, rstd, gamma).double() @ w.double() + bias)
    assert got is out and (got - want).abs().max() <= 1e-6 * want.abs().max()
    x, w, rstd, gamma = drawn(batch=3)
    got = matmul(x, w, prologue=NORM, given={"rstd": rstd, "w": gamma})
    assert torch.equal(got, (normalised(x, rstd, gamma).double() @ w.double()).bfloat16())


def test_gradients_are_those_of_torch() -> None:
    tensors = [t.requires_grad_() for t in drawn()]
    x, w, rstd, gamma = tensors
    matmul(x, w, prologue=NORM, given={"rstd": rstd, "w": gamma}).sum().backward()
    got = [t.grad.clone() for t in tensors if t.grad is not None]
    for t in tensors:
        t.grad = None
    (normalised(x, rstd, gamma) @ w).sum().backward()
    for mine, t in zip(got, tensors, strict=True):
        assert t.grad is not None
        assert (mine.float() - t.grad.float()).abs().max() <= 0.02 * t.grad.float().abs().max()


def test_coordinates_are_rows_and_columns_of_a() -> None:
    causal = Prologue.of(lambda x, i, k, ops: ops.where(k <= i, x, 0.0) + ops.float(k % 2))
    x, w, *_ = drawn()
    want = (torch.tril(x.float()) + torch.arange(16) % 2).bfloat16().double() @ w.double()
    assert torch.equal(matmul(x, w, prologue=causal), want.bfloat16())
    x.requires_grad_()
    assert torch.equal(matmul(x, w, prologue=causal).detach(), want.bfloat16())


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"given": {"rstd": None}}, "the prologue reads rstd, w: w is missing"),
        ({"given": {"z": None}}, "z is no operand of it"),
        ({"given": {"rstd": torch.ones(4)}}, "rstd is torch.float32 of shape [4]: it takes torch.float32 of"),
        ({"given": {"w": torch.ones(16)}}, "w is torch.float32 of shape [16]: it takes torch.bfloat16"),
        ({"order": "lower"}, "order and prologue"),
        ({"activation": "swiglu"}, "others are not gates"),
        ({"prologue": lambda x: x}, "a Prologue, made by Prologue.of"),
    ],
)  # fmt: skip
def test_refusals(more: dict[str, Any], message: str) -> None:
    x, w, rstd, gamma = drawn()
    given = {"rstd": rstd, "w": gamma}
    changed = dict(more.pop("given", {}))
    if changed.get("rstd", 0) is None:
        given = {"rstd": rstd}
    elif "z" in changed:
        given["z"] = rstd
    else:
        given |= changed
    with pytest.raises(OperandError) as found:
        matmul(x, w, **{"prologue": NORM, "given": given, **more})
    assert message in str(found.value)


def test_a_bias_of_two_meanings() -> None:
    x, w, rstd, _ = drawn()
    scaled = Prologue.of(lambda x, i, k, ops, bias: x * bias, bias="m")
    with pytest.raises(OperandError, match="the prologue reads an operand of that name"):
        matmul(x, w, prologue=scaled, given={"bias": rstd}, bias=torch.ones(8))


def test_types_that_have_none() -> None:
    x = torch.ones(16, 16)
    with pytest.raises(OperandError, match="a prologue is of bfloat16 or float16"):
        matmul(x, x, prologue=GELU, allow_tf32=True)


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [(5, 8, 16), (300, 264, 520), (1000, 1032, 72), (4096, 4096, 1024)])
@pytest.mark.parametrize("prologue", [NORM, GELU], ids=["norm", "gelu"])
def test_on_a_gpu(sizes: tuple[int, int, int], prologue: Prologue) -> None:
    m, n, k = sizes
    for batch, turned in ((0, False), (2, False), (0, True)):
        x, w, rstd, gamma = drawn("cuda", m, n, k, batch)
        if turned:
            x = x.mT.contiguous().mT
        given = {"rstd": rstd, "w": gamma} if prologue is NORM else {}
        exact = normalised(x, rstd, gamma) if given else (x.float() * torch.special.ndtr(x.float())).bfloat16()
        want = exact.double() @ w.double()
        for _ in range(2):  # the second call is a kept one
            got = matmul(x, w, prologue=prologue, given=given, out_dtype=torch.float32)
        # An approximated function may round to the neighbour: 2**-8 of a term, of K of random sign.
        bound = 2.0**-7 * (exact.double().abs() @ w.double().abs()) / k**0.5 + 1e-3
        assert bool(((got - want).abs() <= 4 * bound).all())
