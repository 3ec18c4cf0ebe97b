"""The front door: for every architecture the production kernel's plan, of the sizes asked for, or a refusal by name."""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import Any, get_args

import pytest

from layoutgemm import GemmPlan, plan
from layoutgemm.arch import ARCHES
from layoutgemm.arch import arch as arch_named
from layoutgemm.errors import LayoutError, PlanError
from layoutgemm.kernels import (
    Combined,
    IndexedRows,
    Prologue,
    RowIndices,
    Sm80Config,
    Sm80Plan,
    Sm90Config,
    Sm90Plan,
    Sm100Config,
    Sm100Plan,
    TeachingPlan,
    planner,
)
from layoutgemm.kernels.epilogue.chain import Bias, Epilogue, Quantize, Scale
from layoutgemm.kernels.sm90.choose.rules import choose

KINDS = {
    **dict.fromkeys(("sm_80", "sm_86", "sm_87", "sm_89", "sm_120a", "sm_121a", "sm_120f", "sm_121f"), Sm80Plan),
    **dict.fromkeys(("sm_100a", "sm_103a", "sm_110a", "sm_100f", "sm_103f", "sm_110f"), Sm100Plan),
    "sm_90a": Sm90Plan,
}
# One target of each kernel and of each size of shared memory.
SAMPLE = ("sm_80", "sm_89", "sm_90a", "sm_103a", "sm_120f")


def test_every_architecture_has_a_kernel_whose_blocks_fit() -> None:
    assert set(KINDS) == set(ARCHES)
    for arch, kind in KINDS.items():
        for sizes in ((300, 200, 72), (8192, 8192, 8192), (8192, 8192, 8184)):
            made = plan(*sizes, arch=arch, b="bf16:col")
            assert type(made) is kind and made.arch is ARCHES[arch]
            assert made.smem.total <= ARCHES[arch].smem_per_block


@pytest.mark.parametrize("arch", SAMPLE)
def test_the_plan_is_of_the_sizes_asked_for(arch: str) -> None:
    """Few rows and few columns too, where matmul's kernel computes the transposed product."""
    rng, sizes = random.Random(1), (1, 7, 16, 64, 65, 200, 777, 1024, 4096, 10000)
    for _ in range(60):
        m, n, k = (rng.choice(sizes) for _ in range(3))
        a, b = (f"{kind}:{rng.choice(['row', 'col'])}" for kind in [rng.choice(["bf16", "f16"])] * 2)
        made = plan(m, n, k, arch=arch, a=a, b=b)
        assert (made.m, made.n, made.k, made.arch.name) == (m, n, k, arch)
        assert isinstance(made, GemmPlan) and type(made) is KINDS[arch]
        assert (str(made.a.dtype), made.a.order, made.b.order) == (a[: a.index(":")], a[-3:], b[-3:])


def test_every_type_is_planned_or_refused_by_name() -> None:
    planned = Counter[str]()
    for arch in SAMPLE:
        for kind in ("bf16", "f16", "tf32", "e4m3", "e5m2", "i8", "u8", "e2m1"):
            try:
                made = plan(520, 1032, 256, arch=arch, a=kind, b=f"{kind}:col", batch=2)
            except LayoutError as error:
                assert kind in str(error), (arch, kind)
            else:
                assert made.batch == 2 and made.check(), (arch, kind)
                planned[arch] += 1
    assert planned == {"sm_80": 5, "sm_89": 7, "sm_90a": 7, "sm_103a": 6, "sm_120f": 8}


@pytest.mark.parametrize("arch", ("sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a"))
def test_refusals_of_types_of_c_give_a_way_that_works(arch: str) -> None:
    refused = 0
    for a in ("bf16", "tf32", "e4m3", "i8"):
        for c in ("f32", "bf16", "e4m3", "i32", "i8", "tf32"):
            if a == "e4m3" and arch == "sm_80":
                continue
            try:
                plan(64, 64, 64, arch=arch, a=a, b=f"{a}:col", c=c)
            except LayoutError as error:
                said = str(error)
                assert said.startswith(f"c is {c}; of {a} inputs this kernel stores"), said
                found = re.search(r"store (\w+)( behind an epilogue)?|it stores (\w+), as in epilogue=Epilogue", said)
                assert found, said
                by = Epilogue(Scale()) if found[2] or found[3] else None
                assert plan(64, 64, 64, arch=arch, a=a, b=f"{a}:col", c=found[1] or found[3], epilogue=by)
                refused += 1
    assert refused > 8


def test_integers_are_multiplied_by_mma_sync_where_tensor_memory_has_no_kernel_of_them() -> None:
    with pytest.raises(PlanError, match=r"a is i8; .*config=Sm80Config\(\) asks for mma.sync"):
        plan(64, 64, 64, arch="sm_103a", a="i8", b="i8:col")
    assert plan(64, 64, 64, arch="sm_103a", a="i8", b="i8:col", config=Sm80Config()).check()


def test_a_pair_of_types_is_refused_before_its_orders() -> None:
    for arch in SAMPLE[1:]:
        for a, b in (("bf16", "e4m3"), ("e4m3:col", "bf16")):
            off, way = ("a", "b")[a == "bf16"], "e4m3"
            with pytest.raises(PlanError, match=f"no instruction multiplies them; convert {off} to bf16.*{way}"):
                plan(64, 64, 64, arch=arch, a=a, b=b)


def test_a_choice_keeps_the_operands_in_their_places() -> None:
    for m, n, k in ((16, 14336, 4096), (4096, 64, 4096), (304, 1856, 15616)):
        assert not choose(m, n, k, in_place=True)[0].swapped
    assert any(choose(m, n, k)[0].swapped for m, n, k in ((16, 14336, 4096), (4096, 64, 4096), (304, 1856, 15616)))


def test_the_type_of_c_is_one_rule() -> None:
    for arch in KINDS:
        assert [str(plan(64, 64, 64, arch=arch, a=a, b=f"{a}:col").c.dtype) for a in ("bf16", "f16")] == ["bf16", "f16"]


@pytest.mark.parametrize(
    "given, message",
    [
        (
            {"arch": "sm_80", "config": Sm90Config()},
            "config is a Sm90Config, and the kernel of sm_80",
        ),
        ({"arch": "hopper", "config": Sm100Config()}, "the kernel of sm_90a takes a Sm90Config"),
        ({"arch": "sm_80", "epilogue": Epilogue(Quantize(each=32))}, "Quantize gives e4m3, and c is bf16"),
        ({"arch": "sm_120a", "gated": "silu"}, "b is bf16 row-major: a gated product takes the weights as one"),
        ({"arch": "blackwell", "prologue": Prologue.of(lambda x, i, k, ops: x + x)}, "Compute the function of A first"),
        ({"arch": "sm_75"}, "no kernel for sm_75: it has no cp.async"),
        ({"batch": 0}, "batch"),
        ({"c": "i8"}, "c is i8"),
    ],
)
def test_refusals(given: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        plan(64, 64, 64, **given)


@pytest.mark.parametrize("order", [None, "lower", "upper", "symmetric"])
@pytest.mark.parametrize("name", ["m", "n", "k"])
def test_a_size_of_nothing_is_refused_before_a_rule_counts_tiles(name: str, order: str | None) -> None:
    with pytest.raises(PlanError, match=f"{name} = 0: a size is 1 to 2"):
        plan(**{"m": 64, "n": 64, "k": 64, name: 0}, order=order)


def test_configurations_epilogues_and_gates_reach_the_kernel() -> None:
    assert plan(64, 64, 64, config=Sm80Config((64, 64), 64, 3, (2, 2))).arch.name == "sm_80"
    assert plan(64, 64, 64, arch="hopper", config=Sm80Config((64, 64), 64, 3, (2, 2))).arch.name == "sm_90a"
    for arch in ("ampere", "hopper", "blackwell", (12, 0)):
        assert plan(64, 64, 64, arch=arch, epilogue=Epilogue(Bias())).epilogue
    assert plan(64, 64, 64, b="bf16:col", gated="silu").check()


def test_a_batch_and_a_wide_output_have_plans_on_ampere() -> None:
    one, three = (plan(8192, 8192, 8192, arch="sm_80", batch=batch) for batch in (1, 3))
    assert one.config.persistent and not three.config.persistent and three.tile == one.tile
    wide, narrow = (plan(4096, 4096, 4096, arch=(12, 0), c=c) for c in ("f32", "bf16"))
    assert narrow.config.stmatrix and not wide.config.stmatrix


def test_the_common_type_derives_what_the_front_door_gives() -> None:
    assert GemmPlan.derive(512, 512, 512, b="bf16:col") == plan(512, 512, 512, b="bf16:col")
    assert isinstance(TeachingPlan.derive(64, 64, 64), GemmPlan)


def test_tiles_hold_the_columns_that_share_a_scale() -> None:
    """The rule's tile for gathered rows is of fewer columns for a small product."""
    chosen = IndexedRows(RowIndices(90))
    made = plan(200, 300, 128, b="bf16:col", c="e4m3", epilogue=Epilogue(Quantize()), indexed=chosen)
    assert isinstance(made, Sm90Plan) and made.columns_at_a_time % 128 == 0 and made.check()


def test_three_matrices_have_tiles_of_whole_shares() -> None:
    three = Combined.of(lambda x, y, z, ops: x * y - z)
    rows, scaled = IndexedRows(RowIndices(90)), Prologue.of(lambda x, i, k, ops: x + x)
    for more in ({"indexed": rows}, {"indexed": IndexedRows(scatter=RowIndices(200))}, {"prologue": scaled}):
        assert plan(136, 120, 96, b="bf16:col", c="f32", gated=three, **more).tile[1] % 24 == 0  # type: ignore[arg-type]


def test_a_function_of_gathered_rows_has_a_kernel() -> None:
    """For few rows a prologue has one tile a cluster, and a gather takes several."""
    scaled = Prologue.of(lambda x, i, k, ops: x + x)
    for rows in (
        IndexedRows(RowIndices(90)),
        IndexedRows(RowIndices(90), copy=True),
        IndexedRows(scatter=RowIndices(90)),
    ):
        for m in (64, 4096):
            assert plan(m, 512, 2048, b="bf16:col", prologue=scaled, indexed=rows).check()


def test_the_names_of_typed_callers_are_those_of_each_kernel() -> None:
    """Each Literal of the overloads leads to its plan. Every name of every architecture is in one of them."""
    kinds = {planner.Sm80Name: Sm80Plan, planner.Sm90Name: Sm90Plan, planner.Sm100Name: Sm100Plan}
    listed = [(name, kind) for names, kind in kinds.items() for name in get_args(names)]
    for name, kind in listed:
        assert KINDS[arch_named(name).name] is kind, name
    found = [name for name, _ in listed]
    assert len(found) == len(set(found))
    assert {*ARCHES, *(name for entry in ARCHES.values() for name in entry.also)} <= {*found}
