"""The tcgen05 kernel by the torch functions. An Sm100Config asks for it, and CPU tensors stand for a B200's.

Fast tests look at plans, arguments and refusals; the slow ones run each function's kernel in the emulator.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.functional import silu

from layoutgemm import explain_matmul, gemm, grouped_matmul, matmul, scaled_matmul
from layoutgemm.errors import OperandError
from layoutgemm.kernels import Prologue, Sm80Config, Sm90Config, Sm100Config
from layoutgemm.nn import DenseLinear
from layoutgemm.torch_op import prepared
from layoutgemm.torch_op.operators import configured
from layoutgemm.torch_op.scaled_grouped.operators import plain_config
from tests import needs
from tests.torch_op.door_launches import every_door
from tests.torch_op.host_launches import host_launches

ASKED, F32 = Sm100Config(), torch.float32
slow = [needs.DSL, needs.C_COMPILER, pytest.mark.dsl, pytest.mark.slow]


def integers(*shape: int, kind: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(sum(shape))).to(kind)


A, B = integers(40, 64), integers(64, 48)


def test_the_tile_is_the_callers_or_the_rules() -> None:
    told = explain_matmul(A, B, config=ASKED)
    assert "sm_100a" in told.kernel and "tile 128x32x64" in told.kernel and told.copies == ()
    assert told.why == "tiles of 128x32 by the rule, not measured; tcgen05 was asked for"
    told = explain_matmul(A, B, config=Sm100Config((128, 64)))
    assert "tile 128x64x64" in told.kernel and told.why == "given by the caller"
    eight = integers(64, 48, kind=torch.float8_e4m3fn)  # N contiguous, which wgmma does not read
    assert explain_matmul(integers(40, 64, kind=torch.float8_e5m2), eight, config=ASKED).copies == ()
    assert "94 bytes" in explain_matmul(A, B[:, :47], config=ASKED).copies[0]
    whole = explain_matmul(A.to(torch.int8), B.to(torch.uint8), config=ASKED)  # N contiguous
    assert "A i8 row, B u8 row, C i32" in whole.kernel and whole.copies == ()


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_products_and_both_gradients_are_its_launches(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call and a kept one; of a result that TMA stores beside `out`, too."""
    want = (A.double() @ B.double()).relu().bfloat16()

    def call(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return matmul(x, y, activation="relu", config=ASKED)

    call = torch.compile(call, backend="aot_eager", fullgraph=True) if compiled else call
    with host_launches(monkeypatch) as noted:
        for _ in range(2):
            x, y = A.clone().requires_grad_(), B.clone().requires_grad_()
            c = call(x, y)
            c.sum().backward()
            assert torch.equal(c, want) and x.grad is not None and y.grad is not None
            grad = (want > 0).double()
            assert torch.equal(x.grad, (grad @ B.double().mT).bfloat16())
            assert torch.equal(y.grad, (A.double().mT @ grad).bfloat16())
        out = torch.zeros(40, 47, dtype=torch.bfloat16)
        assert torch.equal(matmul(A, B[:, :47], out=out, activation="relu", config=ASKED), want[:, :47])
        layer = DenseLinear.of(torch.nn.Linear(64, 48, bias=False, dtype=torch.bfloat16), config=ASKED)
        with torch.no_grad():
            layer.weight.copy_(B.mT)
        assert torch.equal(layer(A).relu(), want)
        assert torch.equal(gemm(1.0, A, B, config=ASKED), (A.double() @ B.double()).bfloat16())
    assert {type(each.kernel.choice).__name__ for each in noted.made} == {"Sm100Choice"} and len(noted.made) == 9


def test_a_configuration_passes_through_an_operator() -> None:
    for config in (ASKED, Sm100Config((256, 64), stages=3), Sm90Config((64, 64), consumers=1)):
        assert configured(prepared.config_text(config)).config == config
        assert plain_config(prepared.config_text(config)) == config
    assert plain_config(prepared.config_text(Sm80Config((64, 64)))) == Sm80Config((64, 64))
    with pytest.raises(OperandError, match="is no configuration"):
        configured(prepared.config_text(Sm80Config()))


def test_a_gpu_refuses_what_it_was_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A B200 runs nothing without an Sm100Config, and other GPUs nothing with one."""
    gpus = {0: ("NVIDIA B200", 10, 0), 1: ("NVIDIA B300", 10, 3), 2: ("NVIDIA H200", 9, 0)}

    def properties(index: int) -> SimpleNamespace:
        name, major, minor = gpus[index]
        return SimpleNamespace(name=name, major=major, minor=minor, shared_memory_per_block_optin=232448)

    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    prepared._target.cache_clear()
    try:
        assert [prepared.target(i, ASKED)[0] for i in (0, 1)] == ["sm_100a", "sm_103a"]
        with pytest.raises(OperandError, match=r"cuda:0 is NVIDIA B200, .*config=Sm100Config\(\) asks for it"):
            prepared.target(0)
        with pytest.raises(OperandError, match=r"cuda:1 is NVIDIA B300, .* is sm_103a, whose kernel no GPU has run"):
            prepared.target(1, Sm90Config())
        with pytest.raises(OperandError, match=r"config is an Sm100Config, of tcgen05, and cuda:2 is NVIDIA H200"):
            prepared.target(2, ASKED)
    finally:
        prepared._target.cache_clear()
    with (
        every_door(monkeypatch, "sm_100a", computes=False),
        pytest.raises(OperandError, match="out_recipe: by tcgen05"),
    ):
        e4m3 = {"out_recipe": "BlockWise1x128", "out_dtype": torch.float8_e4m3fn}
        scaled_matmul(E4M3[0], HALVES, E4M3[1], TWICE, config=ASKED, **e4m3)
    double = Prologue.of(lambda x, i, k, ops: x * 2.0)
    with pytest.raises(OperandError, match="tcgen05 multiplies a as it lies in shared memory"):
        matmul(A, B, prologue=double, config=ASKED)


OFFSETS, ROWS = torch.tensor([0, 10, 10, 40]), torch.tensor([5, 7, 0, 39, 5, 1])
EXPERTS = torch.stack([integers(64, 48) + i for i in range(3)])
E4M3 = integers(40, 256, kind=torch.float8_e4m3fn), integers(48, 256, kind=torch.float8_e4m3fn).mT
SUMS, SCALED = A.double() @ B.double(), E4M3[0].double() @ E4M3[1].double()
GROUPED = torch.cat([A[:10].double() @ EXPERTS[0].double(), A[10:].double() @ EXPERTS[2].double()])
HALVES, TWICE = torch.full((40, 2), 0.5), torch.full((1, 2), 2.0)


def gated(x: torch.Tensor) -> torch.Tensor:
    gate, up = x.chunk(2, -1)
    return silu(gate) * up


def ways(**given: Any) -> dict[str, Any]:
    return {"config": ASKED, "out_dtype": F32, **given}


CASES: dict[str, tuple[Any, torch.Tensor]] = {
    "bias": (lambda: matmul(A, B, bias=torch.ones(48), activation="relu", **ways()), (SUMS + 1).relu()),
    "odd columns": (lambda: matmul(A, B[:, :47], **ways()), SUMS[:, :47]),
    "batch": (lambda: matmul(A.view(2, 20, 64), torch.stack([B, -B]), **ways()),
              torch.stack([SUMS[:20], -SUMS[20:]])),
    "gate": (lambda: matmul(A, B.mT.contiguous().mT, activation="swiglu", **ways()), gated(SUMS)),
    "8-bit floats, N contiguous": (lambda: matmul(E4M3[0], E4M3[1].contiguous(), **ways()), SCALED),
    "integers, a batch": (
        lambda: matmul(A.to(torch.int8).view(2, 20, 64), B.to(torch.int8), config=ASKED), SUMS.view(2, 20, 48)),
    "integers, a bias": (
        lambda: matmul(A.to(torch.int8), B.to(torch.int8), bias=torch.ones(48), activation="relu", **ways()),
        (SUMS + 1).relu()),
    "several": (lambda: matmul(A, (B, -B), combine="silu", **ways()), gated(torch.cat([SUMS, -SUMS], 1))),
    "pairs": (lambda: matmul((A, A), (B, B), **ways()), 2 * SUMS),
    "order": (lambda: matmul(A, B, order="lower", **ways())[:, :32], SUMS[:, :32]),
    "rows": (lambda: matmul(A, B, rows=ROWS, **ways()), SUMS[ROWS]),
    "groups": (lambda: grouped_matmul(A, EXPERTS, offsets=OFFSETS, **ways()), GROUPED),
    "groups, gate": (lambda: grouped_matmul(A, EXPERTS.mT.contiguous().mT, OFFSETS, activation="swiglu", **ways()),
                     gated(GROUPED)),
    "groups, ends": (lambda: grouped_matmul(A, EXPERTS, offs=OFFSETS[1:], bias=torch.ones(48), **ways()), GROUPED + 1),
    "groups along K": (lambda: grouped_matmul(A, B, offsets=torch.tensor([0, 24, 24, 64]), **ways()),
                       torch.stack([A[:, x:y].double() @ B[x:y].double() for x, y in ((0, 24), (24, 24), (24, 64))])),
    "scales of blocks": (lambda: scaled_matmul(E4M3[0], HALVES, E4M3[1], TWICE, **ways()), SCALED),
    "scales of rows": (lambda: scaled_matmul(E4M3[0], HALVES[:, :1], E4M3[1], torch.full((1, 48), 2.0), **ways()),
                       SCALED),
    "groups, scales of blocks": (
        lambda: grouped_matmul(E4M3[0], E4M3[1][None], torch.tensor([0, 40]), scale_a=HALVES, scale_b=TWICE[None],
                               **ways()), SCALED),
    "groups, rows": (lambda: grouped_matmul(A, EXPERTS, torch.tensor([0, 0, 0, 6]), rows=ROWS, **ways()),
                     A[ROWS].double() @ EXPERTS[2].double()),
}  # fmt: skip


@pytest.mark.parametrize("offsets", [pytest.param(OFFSETS, marks=slow)])
def test_gradients_of_groups_are_its_launches(offsets: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = A.clone().requires_grad_(), EXPERTS.clone().requires_grad_()
    with every_door(monkeypatch, "sm_100a") as made:
        for _ in range(2):
            grads = torch.autograd.grad(grouped_matmul(x, y, offsets, **ways()).sum(), (x, y))
    groups = [slice(*ends) for ends in zip(OFFSETS.tolist(), OFFSETS.tolist()[1:])]
    of_rows = torch.cat([EXPERTS[g].double().sum(-1).expand(len(A[at]), -1) for g, at in enumerate(groups)])
    assert torch.equal(grads[0], of_rows.bfloat16())
    of_b = torch.stack([A[at].double().sum(0)[:, None].expand(-1, 48) for at in groups])
    assert torch.equal(grads[1], of_b.bfloat16())
    assert {type(plan).__name__ for plan, _ in made} == {"Sm100Plan"} and len(made) == 6


@pytest.mark.parametrize("name", [pytest.param(name, marks=slow) for name in CASES])
def test_its_kernel_runs_in_the_emulator(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call, want = CASES[name]
    with every_door(monkeypatch, "sm_100a") as made:
        got = call()
    assert torch.allclose(got.double(), want.double(), rtol=1e-6, atol=1e-6 * float(want.abs().max()))
    assert {type(plan).__name__ for plan, _ in made} == {"Sm100Plan"}
