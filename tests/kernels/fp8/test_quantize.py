"""The kernel that quantises, emulated: the reference's bits, at ragged sizes, of each form; and its plan's proofs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests import needs

torch = needs.module("torch")

from layoutgemm.emulator.api import ORDERS, emulate_host
from layoutgemm.errors import PlanError
from layoutgemm.kernels.epilogue.chain import Epilogue, Quantize
from layoutgemm.kernels.fp8.plan import LEAST, BothWaysPlan, QuantizePlan, pitch_of, scale_pitch
from layoutgemm.kernels.run.emulated import host_of
from layoutgemm.layouts import ComposedLayout, Layout, Swizzle
from layoutgemm.torch_op.fp8.reference import quantized
from layoutgemm.torch_op.types import TYPES

needs_dsl = needs.DSL
RECIPES = {1: "BlockWise1x128", 128: "BlockWise128x128", 0: "RowWise"}
FORMS = {  # plan, batch, m, k
    "blocks": (QuantizePlan("bf16", "e4m3", 1), 2, 35, 272),
    "blocks, 2 bytes": (QuantizePlan("bf16", "e4m3", 1, access=2, powers=True), 1, 30, 201),
    "blocks of f32": (QuantizePlan("f32", "e5m2", 1, powers=True), 1, 35, 400),
    "squares": (QuantizePlan("f16", "e4m3", 128), 1, 150, 208),
    "rows": (QuantizePlan("bf16", "e4m3", 0), 1, 9, 2200),
    "columns": (QuantizePlan("bf16", "e4m3", 1, "col"), 2, 136, 200),
    "columns, 4 bytes": (QuantizePlan("f32", "e4m3", 1, "col", 4), 1, 130, 129),
    "square columns": (QuantizePlan("f16", "e5m2", 128, "col", powers=True), 1, 136, 200),
}


def values(plan: QuantizePlan, *shape: int) -> Any:
    """Rows of very different magnitudes; zeros, infinities, NaN, the least and the largest among them."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    x *= torch.exp2(torch.arange(shape[-2]) % 31 - 15.0).unsqueeze(-1)
    kind = TYPES[plan.source]
    x = x.clamp(torch.finfo(kind).min, torch.finfo(kind).max).to(kind)
    x[..., 0, :], x[..., 1, ::2] = 0, -0.0
    x[..., 2, 5], x[..., 3, 7], x[..., 4, 2] = torch.inf, torch.nan, -torch.inf
    x[..., 5, :] = torch.finfo(kind).smallest_normal / 8
    x[..., 6, 9] = torch.finfo(kind).max
    return x


@dataclass
class Done:
    """The bytes of all rows of values that a launch wrote, and scales."""

    values: np.ndarray
    scales: np.ndarray


def emulated(plan: QuantizePlan, x: Any) -> Done:
    """The kernel on a (batch, m, k) tensor, in several orders of events."""
    batch, m, k = x.shape
    of_x = (x if plan.order == "row" else x.mT).contiguous().view(torch.uint8).numpy().copy()
    groups = -(-m // 128) if plan.group == 128 else m
    blocks = -(-k // 128) if plan.group else 1
    pitch, of_scales = pitch_of(k), scale_pitch(groups)
    done = Done(np.full((batch, m, pitch), 0xEE, np.uint8), np.full((batch, blocks, of_scales), -1, np.float32))
    line = k if plan.order == "row" else m
    sizes = m, k, batch, line, m * k, pitch, m * pitch, 1, of_scales, blocks * of_scales
    orders = ORDERS[:3] if plan.shared_bytes else ORDERS[:1]
    host = host_of(plan.compile())
    emulate_host(host, (of_x, done.values, done.scales, *sizes), policy=orders, progress=False).raise_for_findings()
    assert (done.scales[..., groups:] == -1).all(), "scales of no row were written"
    return Done(done.values, done.scales[..., :groups].swapaxes(1, 2))


@needs_dsl
@pytest.mark.parametrize("name", FORMS)
def test_the_kernel_has_the_bits_of_the_reference(name: str) -> None:
    plan, batch, m, k = FORMS[name]
    x = values(plan, batch, m, k)
    want, scales = quantized(x, RECIPES[plan.group], TYPES[plan.values], plan.powers)
    done = emulated(plan, x)
    assert np.array_equal(done.values[..., :k], want.view(torch.uint8).numpy())
    assert np.array_equal(done.scales, scales.numpy(), equal_nan=True)


BOTH_WAYS = {  # plan, batch, rows, columns
    "bf16": (BothWaysPlan("bf16", "e4m3"), 2, 136, 24),
    "f32, 4 bytes": (BothWaysPlan("f32", "e5m2", access=4, powers=True), 1, 9, 129),
}


@needs_dsl
@pytest.mark.parametrize("name", BOTH_WAYS)
def test_both_ways_are_the_bits_of_each(name: str) -> None:
    """x and its transpose, each as the reference quantises it, in several orders of events."""
    plan, batch, rows, columns = BOTH_WAYS[name]
    x = values(plan, batch, rows, columns)
    sides = []
    for m, k in ((columns, rows), (rows, columns)):
        blocks, of_scales = -(-k // 128), scale_pitch(m)
        sizes = pitch_of(k), m * pitch_of(k), 1, of_scales, blocks * of_scales
        made = np.full((batch, m, pitch_of(k)), 0xEE, np.uint8), np.full((batch, blocks, of_scales), -1, np.float32)
        sides.append((*made, sizes, m, k))
    (of_values, of_scales, sizes, m, k), (line_values, line_scales, of_lines, *_) = sides
    given = x.view(torch.uint8).numpy().copy(), of_values, of_scales, m, k, batch, columns, rows * columns, *sizes
    host = host_of(plan.compile())
    emulate_host(host, (*given, line_values, line_scales, *of_lines), policy=ORDERS[:2], progress=False
                 ).raise_for_findings()  # fmt: skip
    for one, (got, scales, _, m, k) in zip((x.mT, x), sides, strict=True):
        want, right = quantized(one, RECIPES[1], TYPES[plan.values], plan.powers)
        assert np.array_equal(got[..., :k], want.view(torch.uint8).numpy())
        assert np.array_equal(scales[..., :m].swapaxes(1, 2), right.numpy(), equal_nan=True)
        assert (scales[..., m:] == -1).all() and plan.check()


@pytest.mark.parametrize("kind", ["e4m3", "e5m2"])
def test_the_reference_has_the_bits_of_the_epilogue_step(kind: str) -> None:
    x = values(QuantizePlan("bf16", kind, 1), 40, 300).float()
    x[:7] = torch.randn(7, 300, generator=torch.Generator().manual_seed(2))  # the step's NumPy warns of infinities
    found = Epilogue(Quantize("s", dtype=kind, least=LEAST)).reference(x.numpy())
    have, scales = quantized(x, RECIPES[1], TYPES[kind], False)
    assert np.array_equal(scales.numpy(), found.written["s"])
    assert torch.equal(have.float(), torch.tensor(found.c).to(TYPES[kind]).float())


def test_powers_are_the_least_that_are_not_less() -> None:
    x = torch.tensor([448.0, 449.0, 447.0, 2.0**-120, 3e38]).unsqueeze(-1)
    _, scales = quantized(x, RECIPES[0], torch.float8_e4m3fn, True)
    assert scales[:3].flatten().tolist() == [1.0, 2.0, 1.0]
    mantissa, _ = torch.frexp(scales)
    plain = quantized(x, RECIPES[0], torch.float8_e4m3fn, False)[1]
    assert (mantissa == 0.5).all() and (scales >= plain).all() and (scales / 2 < plain).all()


@pytest.mark.parametrize("plan", [form[0] for form in FORMS.values()], ids=list(FORMS))
def test_the_plan_is_proven(plan: QuantizePlan) -> None:
    report = plan.check()
    assert report, report.failures
    assert len(report) == (1 if plan.order == "row" else 4)


def test_words_without_a_swizzle_have_bank_conflicts(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = FORMS["columns"][0]
    flat = ComposedLayout(Swizzle(0, 0, 0), 0, Layout((128, 32), (32, 1)))
    monkeypatch.setattr(QuantizePlan, "words", property(lambda self: flat))
    (failed,) = plan.check().failures
    assert failed.name == "banks, written" and failed.witness == "warp 0, value 0, line 0: 2 banks"


def test_a_tile_that_overlaps_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = FORMS["blocks"][0]
    twice = Layout(((8, 32), (8, 2, 2)), ((8, 128), (1, 32, 4096)))
    monkeypatch.setattr(QuantizePlan, "tile", property(lambda self: twice))
    assert [check.name for check in plan.check().failures] == ["tile"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("i8", "e4m3", 1), "source = 'i8': known are bf16, f16, f32"),
        (("bf16", "bf16", 1), "values = 'bf16': known are e4m3, e5m2"),
        (("bf16", "e4m3", 64), "group = 64, order = 'row'"),
        (("bf16", "e4m3", 0, "col"), "group = 0, order = 'col'"),
        (("bf16", "e4m3", 1, "up"), "order = 'up'"),
        (("f32", "e4m3", 1, "row", 2), "access = 2: 4 to 16 bytes"),
        (("bf16", "e4m3", 128, "col", 16, False, BothWaysPlan), "group = 128, order = 'col': both ways"),
    ],
)
def test_other_plans_are_refused(given: Any, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        (given[6] if len(given) > 6 else QuantizePlan)(*given[:6])
