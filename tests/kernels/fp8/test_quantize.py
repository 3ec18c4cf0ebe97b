"""The kernel that quantises, emulated: the reference's bits, at ragged sizes, of each form; and its plan's proofs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests import needs

torch = needs.module("torch")

from layoutgemm.emulator.api import ORDERS, emulate_host
from layoutgemm.errors import PlanError
from layoutgemm.kernels.epilogue.chain import Epilogue, Quantize
from layoutgemm.kernels.fp8.plan import LEAST, BothWaysPlan, JoinedPlan, QuantizePlan, pitch_of, scale_pitch
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


class Part:
    """A (batch, m, k) tensor's part of a launch: its arguments, and what they write."""

    def __init__(self, plan: QuantizePlan, x: Any) -> None:
        self.plan, self.both = plan, isinstance(plan, BothWaysPlan)
        of_x = (x if plan.order == "row" or self.both else x.mT).contiguous().view(torch.uint8).numpy().copy()
        self.made = [self.result(one) for one in ((x.mT, x) if self.both else (x,))]
        (one, *first), *others = self.made
        m, k = one.shape[-2:]
        *results, strides = first
        self.arguments = [of_x, *results, m, k, len(x), k if plan.order == "row" else m, m * k, *strides]
        for _, values, scales, strides in others:
            self.arguments += [values, scales, *strides]

    def result(self, x: Any) -> tuple[Any, np.ndarray, np.ndarray, tuple[int, ...]]:
        """A tensor, the bytes of all rows of its values, its scales, and their strides."""
        batch, m, k = x.shape
        groups, blocks = self.groups(m), -(-k // 128) if self.plan.group else 1
        pitch, of_scales = pitch_of(k), scale_pitch(groups)
        values, scales = np.full((batch, m, pitch), 0xEE, np.uint8), np.full((batch, blocks, of_scales), -1, np.float32)
        return x, values, scales, (pitch, m * pitch, 1, of_scales, blocks * of_scales)

    def groups(self, m: int) -> int:
        return -(-m // 128) if self.plan.group == 128 else m

    def check(self) -> None:
        """The bits of the reference, and no scale of no row."""
        for x, values, scales, _ in self.made:
            groups = self.groups(x.shape[1])
            want, right = quantized(x, RECIPES[self.plan.group], TYPES[self.plan.values], self.plan.powers)
            assert np.array_equal(values[..., : x.shape[2]], want.view(torch.uint8).numpy())
            assert np.array_equal(scales[..., :groups].swapaxes(1, 2), right.numpy(), equal_nan=True)
            assert (scales[..., groups:] == -1).all(), "scales of no row were written"


def emulate(plan: QuantizePlan | JoinedPlan, parts: Sequence[Part], orders: Sequence[Any]) -> None:
    """One launch, in several orders of events."""
    given = tuple([each for part in parts for each in part.arguments])
    emulate_host(host_of(plan.compile()), given, policy=orders, progress=False).raise_for_findings()
    for part in parts:
        part.check()


@needs_dsl
@pytest.mark.parametrize("name", FORMS)
def test_the_kernel_has_the_bits_of_the_reference(name: str) -> None:
    plan, *shape = FORMS[name]
    emulate(plan, [Part(plan, values(plan, *shape))], ORDERS[:3] if plan.shared_bytes else ORDERS[:1])


@needs_dsl
def test_both_ways_are_the_bits_of_each() -> None:
    """x and its transpose, each as the reference quantises it, in several orders of events."""
    plan = BothWaysPlan("bf16", "e4m3")
    emulate(plan, [Part(plan, values(plan, 2, 136, 24))], ORDERS[:2])
    assert plan.check()


@needs_dsl
def test_one_launch_quantises_several_tensors() -> None:
    """Each by its own plan: of another type, group, order and batch, with another number of CTAs."""
    forms: list[tuple[QuantizePlan, int, int, int]] = [
        (BothWaysPlan("f32", "e5m2", access=4, powers=True), 1, 9, 129), FORMS["rows"], FORMS["blocks"],
    ]  # fmt: skip
    plan = JoinedPlan(tuple([each for each, *_ in forms]))
    emulate(plan, [Part(each, values(each, *shape)) for each, *shape in forms], ORDERS[:2])
    assert len(plan.check()) == sum(len(each.check()) for each, *_ in forms) and plan.check()
    with pytest.raises(PlanError, match=r"parts = \(\)"):
        JoinedPlan(())


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
