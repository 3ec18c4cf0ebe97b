"""Whatever `check` passes is a plan that `derive` gives: any field exchanged, any configuration drawn."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest

from layoutgemm.arch import arch
from layoutgemm.dtypes import dtype
from layoutgemm.errors import LayoutError, PlanError
from layoutgemm.kernels import (
    Sm80Config,
    Sm80Plan,
    Sm90Config,
    Sm90Plan,
    Sm100Config,
    Sm100Plan,
    TeachingConfig,
    TeachingPlan,
)
from layoutgemm.kernels.derive import Operand
from layoutgemm.kernels.epilogue.chain import Bias, Epilogue
from layoutgemm.kernels.planner import plan as planned
from layoutgemm.layouts import Layout
from layoutgemm.schedule import Grouped, Hilbert, Linear, Persistent
from tests.kernels.plan_mutants import Stuck, outcome

SMALL: dict[str, Any] = {
    "first": TeachingPlan.derive(96, 80, 72, b="bf16:col"),
    "sm_80": Sm80Plan.derive(96, 80, 72, config=Sm80Config((64, 64), warps=(2, 2))),
    "sm_90a": Sm90Plan.derive(96, 80, 72, config=Sm90Config((64, 64), consumers=1, stages=2)),
    "sm_100a": Sm100Plan.derive(96, 80, 72, config=Sm100Config((128, 64), stages=2)),
}
OTHERS: dict[str, Any] = {
    "first": TeachingPlan.derive(100, 88, 64, a="f16", config=TeachingConfig(tile_n=128, stages=3)),
    "sm_80": Sm80Plan.derive(100, 88, 64, arch="sm_90a", a="f16", c="f32", config=Sm80Config((128, 64), warps=(4, 1))),
    "sm_90a": Sm90Plan.derive(100, 88, 64, a="f16", b="f16:col", c="f32", config=Sm90Config((128, 32), cluster=(2, 1))),
    "sm_100a": Sm100Plan.derive(100, 88, 64, a="f16", b="f16:col", c="f32", config=Sm100Config((256, 64))),
}
VALUES = (
    None, True, 0, 1, 2, -1, 3.0, 1 << 40, "x", "sm_90a", (), (1, 1), [1, 1], {}, Linear(), Grouped("N", 3), Hilbert(),
    Persistent(Hilbert(), 1, (1, 1)), Persistent(Linear(), 1), Persistent(Grouped("N", 3), 1), arch("sm_90a"),
)  # fmt: skip


@pytest.mark.parametrize("name", SMALL)
def test_a_plan_that_is_derived_holds(name: str) -> None:
    for plan in (SMALL[name], OTHERS[name]):
        assert plan.check(), plan.check()
        assert "derivation" not in {check.name for check in plan.check()}


@pytest.mark.parametrize("name", SMALL)
def test_a_changed_plan_that_passes_computes_the_product(name: str) -> None:
    plan, held = SMALL[name], set()
    for field in fields(plan):
        for value in (*VALUES, getattr(OTHERS[name], field.name)):
            mutant = replace(plan, **{field.name: value})
            report = mutant.check()
            if report:
                if value != getattr(plan, field.name):
                    held.add(field.name)
                assert outcome(mutant) == "", f"{field.name} = {value!r}"
            else:
                assert all(check.witness for check in report.failures), f"{field.name} = {value!r}"
    assert {"m", "n", "k"} <= held <= {"m", "n", "k", "batch", "order", *(["arch"] if name == "sm_80" else [])}


class Unnamed:
    """A value that has no text and is equal to nothing."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no answer")

    __hash__ = None


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = (value,)
    return value


HOSTILE = (
    None, True, -1, 5, 17, 64, 1 << 16, 1 << 24, 1 << 40, 10**5000, float("nan"), float("inf"), 1j, "", "x" * 10**5,
    "\ud800", b"x", nested(5000), (1 << 40,) * 3, (0,) * 10_000, range(1 << 40), [], {1: 2}, Layout(1 << 40),
    Unnamed(), np.int64(1 << 40), np.zeros(3), len, int, arch("sm_80"), Persistent(Linear(), 1 << 40),
    Grouped("N", 1 << 15), Epilogue(Bias()),
)  # fmt: skip


def hostile(plan: Any) -> Iterator[tuple[str, Any]]:
    """The plan with a field exchanged, or a field of a field; a constructor that refuses the value is passed over."""
    rng = random.Random(0)
    for field in fields(plan):
        part = getattr(plan, field.name)
        within = fields(part) if is_dataclass(part) else ()
        changes = [(field.name, value) for value in rng.sample(HOSTILE, 12)]
        for inner in within:
            for value in rng.sample(HOSTILE, 1):
                try:
                    changes.append((field.name, replace(part, **{inner.name: value})))
                except (LayoutError, TypeError, ValueError, AttributeError, RuntimeError):
                    continue
        for name, value in changes:
            yield name, replace(plan, **{name: value})


@pytest.mark.parametrize("name", SMALL)
def test_every_field_value_gets_a_report_and_only_derived_ones_pass(name: str) -> None:
    plan, answered = SMALL[name], 0
    for field, mutant in hostile(plan):
        report = mutant.check()
        answered += 1
        assert str(report)
        if report:
            more = {each: getattr(mutant, each) for each in ("batch", "epilogue", "arch") if hasattr(mutant, each)}
            more = {each: value for each, value in more.items() if value != getattr(plan, each)}
            derived = type(plan).derive(
                mutant.m, mutant.n, mutant.k, a=Operand(mutant.a.dtype, mutant.a.order),
                b=Operand(mutant.b.dtype, mutant.b.order), c=mutant.c, config=mutant.config, **more,
            )  # fmt: skip
            order = {"order": mutant.order} if hasattr(mutant, "order") else {}
            assert replace(derived, **order) == mutant, field
    assert answered > 150


@pytest.mark.parametrize("plan", [TeachingPlan, Sm80Plan, Sm90Plan, Sm100Plan])
def test_no_states_of_many_stages_are_searched(plan: Any) -> None:
    """The search takes minutes; what is wrong is said without it."""
    whole = plan.derive(256, 256, 256, b="bf16:col")
    report = replace(whole, stages=whole.stages + 20).check()
    failed = {check.name: check for check in report.failures}
    assert len(failed) > 1 and len(report) > 10 and "pipeline" not in {check.name for check in report}
    assert failed["derivation"].witness.endswith("; so the search through the pipeline's states is skipped")
    endless = replace(whole, stages=1 << 40).check()
    assert len(endless) == 1 and endless.failures[0].witness.endswith("; so the other checks are skipped")
    near = replace(whole, stages=whole.stages + 1).check()
    assert not near and "pipeline" in {check.name for check in near}


def test_an_architecture_is_one_of_the_table() -> None:
    """Its name is given to the compiler, its limits to the checks: they belong together."""
    for name, plan in SMALL.items():
        forged = replace(plan, arch=replace(plan.arch, smem_per_sm=1 << 30))
        (failure,) = forged.check().failures
        assert f"which is no {plan.arch.name}" in failure.witness, name


@pytest.mark.parametrize("group", [1 << 20, (1 << 15) + 1])
def test_the_numbers_of_an_order_fit_into_32_bits(group: int) -> None:
    with pytest.raises(PlanError, match=f"a group of tiles has 1 to 32768 rows, not {group}"):
        Grouped("M", group)


def test_the_words_of_an_operand_and_an_order() -> None:
    for order in (None, 3.0, "diag", "", ["row"]):
        with pytest.raises(PlanError, match=r"order of (a matrix is 'row' or 'col'|Operand must be a string)"):
            Operand(dtype("bf16"), order)
    for value in (1, "x", None, float("nan")):
        with pytest.raises(PlanError, match="serpentine of Grouped must be True or False"):
            Grouped("M", 2, serpentine=value)


@pytest.mark.parametrize(
    "config", [TeachingConfig(stages=1 << 30), TeachingConfig(tile_k=1 << 26), Sm100Config(tile_k=1 << 26)]
)
def test_a_tile_that_no_block_holds_is_refused_before_it_is_derived(config: Any) -> None:
    derive = planned if isinstance(config, Sm100Config) else TeachingPlan.derive
    with pytest.raises(PlanError, match="bytes of shared memory"):
        derive(64, 64, 64, config=config)


@pytest.mark.parametrize("name", SMALL)
def test_numbers_of_other_types_are_no_sizes(name: str) -> None:
    plan = SMALL[name]
    for field in fields(plan):
        value = getattr(plan, field.name)
        if isinstance(value, int):
            assert not replace(plan, **{field.name: float(value)}).check(), field.name
            assert value != 1 or not replace(plan, **{field.name: True}).check(), field.name


@dataclass(frozen=True)
class Branching(Grouped):
    """An order that is proven, and that no trace computes: it asks for the value of a number."""

    def tile(self, number: Any, grid: Any, minimum: Any = min) -> Any:
        return super().tile(int(number) if isinstance(number, (int, float)) else int(number[0]), grid, minimum)


@dataclass(frozen=True)
class Own(Grouped):
    """A user's order."""


@pytest.mark.parametrize("name", ["sm_80", "sm_90a", "sm_100a"])
def test_an_order_is_one_that_a_kernel_computes(name: str) -> None:
    plan = SMALL[name]

    def ordered(schedule: Any) -> Any:
        return replace(plan, order=schedule if name == "sm_80" else Persistent(schedule, 1, plan.order.cluster))

    for schedule in (Linear("N"), Grouped("M", 3), Grouped("N", 2, serpentine=True), Own("N", 2)):
        assert ordered(schedule).check() and outcome(ordered(schedule)) == ""
    for schedule, why in ((Hilbert(), "no formula"), (Branching(), "no formula"), (Stuck("M", 8), "twice")):
        failures = ordered(schedule).check().failures
        assert failures and (why == "twice" or why in failures[-1].witness), schedule


def test_a_custom_epilogue() -> None:
    for name in ("sm_90a", "sm_100a"):
        assert replace(SMALL[name], epilogue=Epilogue(Bias())).check()


@pytest.mark.parametrize("config, own, other", [
    (Sm100Config((128, 64)), "sm_100a", "sm_90a"), (Sm100Config((128, 64)), "sm_100a", "sm_80"),
    (Sm90Config((64, 64), consumers=1), "sm_90a", "sm_100a"), (Sm90Config((64, 64), consumers=1), "sm_90a", "sm_120a"),
])  # fmt: skip
def test_a_configuration_is_for_its_own_architecture(config: Any, own: str, other: str) -> None:
    for given in (None, own, arch(own)):
        assert planned(64, 64, 64, arch=given, config=config).arch.name == own
    with pytest.raises(PlanError, match=other):
        planned(64, 64, 64, arch=other, config=config)


def test_the_teaching_kernel_is_for_hopper() -> None:
    assert TeachingPlan.derive(64, 64, 64, arch="hopper").arch.name == "sm_90a"
    for other in ("sm_80", "blackwell"):
        with pytest.raises(PlanError, match="this kernel needs wgmma"):
            TeachingPlan.derive(64, 64, 64, arch=other)


def test_invalid_configurations_are_refused() -> None:
    for config in (3, "x", {}, (128, 128), Sm90Config):
        with pytest.raises(PlanError, match=r"config of TeachingPlan\.derive must be a TeachingConfig or "):
            TeachingPlan.derive(64, 64, 64, config=config)
        with pytest.raises(PlanError, match=r"config of plan must be a Sm80Config or a Sm90Config or "):
            planned(64, 64, 64, config=config)


CONFIGS: dict[str, Any] = {"first": TeachingConfig, "sm_80": Sm80Config, "sm_90a": Sm90Config, "sm_100a": Sm100Config}
DRAWN = (
    None, True, False, 0, 1, 2, 3, 4, 5, 8, 16, 24, 32, 64, 128, 192, 256, 1 << 20, 1 << 40, -1, 2.0, "x", "M", "N",
    "A", "B", "none", "32B", "64B", "128B", "256B", "self", "warp", "warpgroup", "tma", "direct", "cp.async", "tiles",
    "start", "end", "pingpong", (1, 1), (2, 1), (1, 2), (2, 2), (4, 2), (64, 64), (128, 128), (128, 32), (256, 64),
    (192, 64), [], {}, (), (16, 16, 16), (4, 4, 4), (2, 1, 2), (((0, 1), 2),),
)  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_a_configuration_is_refused_or_its_plan_computes_the_product(name: str) -> None:
    """One to three fields of a small configuration drawn from all kinds of values."""
    rng, plan, ran = random.Random(0), SMALL[name], 0
    small = getattr(plan.config, "settings", None) or {
        f.name: getattr(plan.config, f.name) for f in fields(plan.config)
    }
    names = list(small)
    for _ in range(600):
        drawn = {field: rng.choice(DRAWN) for field in rng.sample(names, rng.choice([1, 1, 2, 3]))}
        try:
            config = CONFIGS[name](**{**small, **drawn})
            mutant = type(plan).derive(plan.m, plan.n, plan.k, config=config)
        except LayoutError:
            continue
        if mutant.check():
            ran += 1
            assert outcome(mutant) == "", drawn
        else:
            assert all(check.witness for check in mutant.check().failures), drawn
    assert ran > 10
