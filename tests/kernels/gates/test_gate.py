"""The kernel of gates, emulated beside float64: each type, gate and access, and the gradient; refused plans."""

from __future__ import annotations

from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from layoutgemm.emulator.api import emulate_host
from layoutgemm.errors import PlanError
from layoutgemm.kernels.gates.plan import SLOPES, GatePlan
from layoutgemm.kernels.operands.gated import GATES
from layoutgemm.kernels.run.emulated import host_of
from layoutgemm.torch_op.types import TYPES

needs_dsl = needs.DSL
BY_TORCH = {"silu": torch.nn.functional.silu, "gelu": torch.nn.functional.gelu}
FORMS = {  # source, kind, access, code, m, n
    "bf16": ("bf16", "silu", 16, "sm_90a", 7, 72),
    "f16, 8 bytes": ("f16", "gelu", 8, "sm_80", 3, 172),
    "f32, 4 bytes": ("f32", "silu", 4, "sm_120a", 5, 67),
    "bf16, 4 bytes": ("bf16", "gelu", 4, "sm_100a", 2, 2),
}


def numbers(m: int, n: int, kind: Any) -> Any:
    """Small and large ones, zeros, and halves that are told apart."""
    x = torch.randn(m, n, generator=torch.Generator().manual_seed(m * n)) * 4
    x[0, :2] = torch.tensor([0.0, -30.0])
    return x.to(kind)


@needs_dsl
@pytest.mark.parametrize("name", FORMS)
def test_gates_and_gradients_are_those_of_torch(name: str) -> None:
    source, kind, access, code, m, n = FORMS[name]
    of = TYPES[source]
    h, dy = numbers(m, 2 * n, of), numbers(m, n, of)
    y, dh = torch.full((m, n), torch.nan, dtype=of), torch.full((m, 2 * n), torch.nan, dtype=of)
    for gradient, operands in ((False, (h, y)), (True, (h, dy, dh))):
        plan = GatePlan(source, kind, gradient, access, code)
        held = [x.view(torch.uint8).numpy() for x in operands]
        emulate_host(host_of(plan.compile()), (*held, m, n, 2 * n), progress=False).raise_for_findings()
    wide = h.double().requires_grad_()
    gate, up = wide.chunk(2, -1)
    want = BY_TORCH[kind](gate) * up
    (slopes,) = torch.autograd.grad(want, wide, dy.double())
    factors = (1 + gate.abs()) * (1 + up.abs()) * (1 + dy.double().abs())  # of the terms that are added
    for got, right, terms in ((y, want, factors), (dh, slopes, factors.repeat(1, 2))):
        bound = torch.finfo(of).eps / 2 * right.abs() + 1e-6 * terms
        assert ((got.double() - right).abs() <= bound).all(), "beyond half a last bit, and what f32 loses"


@needs_dsl
@pytest.mark.parametrize(
    ("source", "kind", "code", "parts"), [("bf16", "silu", "sm_90a", 3), ("f16", "gelu", "sm_80", 1)]
)
def test_weighted_gradients_are_those_of_torch(source: str, kind: str, code: str, parts: int) -> None:
    """A factor of 0, too, whose sum is not one of zeros."""
    of, plan = TYPES[source], GatePlan(source, kind, True, code=code, weighted=True)
    m, n = 5, parts * plan.part
    h, dy, factors = numbers(m, 2 * n, of), numbers(m, n, of), torch.tensor([0.5, 0.0, 1.25, -2.0, 3.0])
    y, dh, sums = torch.empty(m, n, dtype=of), torch.empty(m, 2 * n, dtype=of), torch.empty(m, parts)
    held = [x.view(torch.uint8).numpy() for x in (h, dy, dh, factors, y, sums)]
    emulate_host(host_of(plan.compile()), (*held, m, n, 2 * n), progress=False).raise_for_findings()
    wide, weights = h.double().requires_grad_(), factors.double()[:, None].requires_grad_()
    gate, up = wide.chunk(2, -1)
    want = BY_TORCH[kind](gate) * up * weights
    slopes, of_factors = torch.autograd.grad(want, (wide, weights), dy.double())
    for got, right in ((y, want), (dh, slopes), (sums.sum(1, keepdim=True), of_factors)):
        assert ((got.double() - right).norm() <= 2.0**-9 * right.norm()) and got.isfinite().all()
    assert (sums.sum(1).double() - of_factors[:, 0]).abs().max() <= 1e-5 * of_factors.abs().max()


def test_each_gate_has_a_slope() -> None:
    assert set(SLOPES) == set(GATES.values())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"source": "e4m3"}, "source = 'e4m3': known are bf16, f16, f32"),
        ({"kind": "relu"}, "kind = 'relu': known are silu, gelu"),
        ({"access": 2}, "access = 2: 4, 8 or 16 bytes"),
        ({"weighted": True}, "weighted = True of a gate: of its gradient alone"),
    ],
)
def test_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        GatePlan(**{"source": "bf16", "kind": "silu", **options})
