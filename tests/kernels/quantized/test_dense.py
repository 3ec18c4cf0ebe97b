"""The kernel that unpacks weights, emulated: the bits of the reference, at ragged sizes, of each format; its proofs."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tests import needs

torch = needs.module("torch")

from layoutgemm import QuantizedFormat, QuantizedWeight
from layoutgemm.emulator.api import ORDERS, emulate_host
from layoutgemm.errors import PlanError
from layoutgemm.kernels.quantized.dense import DensePlan, dense_pitch
from layoutgemm.kernels.quantized.order import PackedOrder
from layoutgemm.kernels.run.emulated import host_of
from layoutgemm.layouts import ComposedLayout, Layout, Swizzle
from layoutgemm.torch_op.types import TYPES

F = QuantizedFormat
FORMATS = (
    F("int4", 128), F("int4", 32, True), F("int4"), F("int8"), F("int8", 64), F("e4m3"), F("e4m3", 128), F("e5m2"),
    F("e5m2", 64), F("e2m1", 32), F("e2m1", 16),
)  # fmt: skip


def weights(fmt: QuantizedFormat, kind: str, experts: int, n: int, k: int) -> list[QuantizedWeight]:
    """Weights of every magnitude: each column's, and each group's, are of another one."""
    draw = torch.Generator().manual_seed(n + k)
    made = []
    for _ in range(experts):
        plain = torch.randn(n, k, generator=draw) * torch.exp2(torch.arange(n) % 9 - 4.0).unsqueeze(-1)
        plain[:, k // 2 :] *= 3
        made.append(QuantizedWeight.quantize(plain, fmt, TYPES[kind]))
    return made


def emulated(plan: DensePlan, given: list[QuantizedWeight], orders: Any) -> Any:
    """The kernel's matrices (experts, n, pitch), with a mark where it writes nothing."""
    (n, k), scales = given[0].shape, [w.scales for w in given if w.scales is not None]
    dense = np.full((len(given), n, dense_pitch(k)), 0x7777, np.uint16)
    units = torch.stack([w.units for w in given]).numpy()
    vectors = torch.stack(scales).numpy() if scales else np.zeros(1, np.float32)
    arguments = (units, vectors, dense, n, dense.shape[-1], len(given))
    emulate_host(host_of(plan.compile()), arguments, policy=orders, progress=False).raise_for_findings()
    return torch.from_numpy(dense.view(np.int16)).view(TYPES[plan.activations])


@needs.DSL
@pytest.mark.parametrize(("fmt", "kind"), [*zip(FORMATS, itertools.cycle(("bf16", "f16")))], ids=str)
def test_the_kernel_has_the_bits_of_the_reference(fmt: QuantizedFormat, kind: str) -> None:
    experts, n = (2, 70) if fmt.group else (3, 61)
    k = 2 * fmt.group if fmt.group else 137
    given = weights(fmt, kind, experts, n, k)
    found = emulated(DensePlan(fmt, kind), given, ORDERS[:2])
    for number, weight in enumerate(given):
        assert torch.equal(found[number, :, :k], weight.dense().to(TYPES[kind])), f"expert {number}"


@needs.DSL
def test_an_ampere_has_the_same_bits() -> None:
    fmt = F("int4", 32, True)
    given = weights(fmt, "bf16", 1, 64, 128)
    found = emulated(DensePlan(fmt, "bf16", "sm_80"), given, ORDERS[:1])
    assert torch.equal(found[0], given[0].dense().bfloat16())


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_the_plan_is_proven(fmt: QuantizedFormat) -> None:
    report = DensePlan(fmt, "bf16").check()
    assert report and len(report) == 6, report.failures


def test_a_tile_without_a_swizzle_has_bank_conflicts(monkeypatch: pytest.MonkeyPatch) -> None:
    flat = ComposedLayout(Swizzle(0, 0, 0), 0, Layout((64, 128), (128, 1)))
    monkeypatch.setattr(DensePlan, "tile", property(lambda self: flat))
    (failed,) = DensePlan(F("int8"), "bf16").check().failures
    assert (failed.name, failed.witness) == ("banks, written", "threads from 0, access 0: 4 banks")


def test_vectors_of_another_warp_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    turned = Layout(((16, 2, 4), 8), ((8, 128, 256), 1024))
    monkeypatch.setattr(DensePlan, "stored", property(lambda self: turned))
    (failed,) = DensePlan(F("int8"), "bf16").check().failures
    assert failed.name == "warps" and "warp 0 reads element" in failed.witness


def test_weights_for_float8_are_refused() -> None:
    with pytest.raises(PlanError, match="activations = 'e4m3': dense weights are bf16 or f16"):
        DensePlan(F("int4", 128), "e4m3")
    assert PackedOrder(F("int4", 128), "e4m3").scales_sums
