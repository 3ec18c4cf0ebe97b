"""Masked groups: tiles beyond a group's count are not computed, and rows beyond it are not stored."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from layoutgemm.emulator.machine.interpreter import Policy
from layoutgemm.errors import OperandError, PlanError
from layoutgemm.kernels import Sm90Config, Sm90Plan
from layoutgemm.kernels.derive import padded_leading
from layoutgemm.kernels.epilogue.chain import Bias, Epilogue
from layoutgemm.kernels.grouped.rows import tables
from layoutgemm.kernels.grouped.stores import without_groups
from layoutgemm.kernels.ragged import Ragged
from layoutgemm.kernels.run.emulated import emulate_launch
from layoutgemm.kernels.sm90.mainloop import Promoted, Table
from tests import needs
from tests.kernels.sm90.other_orders import each_policy, stored_in_order

needs_dsl = needs.DSL
SLOW = [pytest.mark.slow]
SMALL = Sm90Config((64, 64), consumers=1, stages=3)
COUNTS = (0, 70, 1, 64, 0, 90, 15)
SCALED = Promoted.of(lambda total, product, sa, sb: total + sa * sb * product, Table("sa", "m"), Table("sb", "n", 64))
# Configuration, types of A, B and C, rows of each group, counts, main loop.
FORMS: dict[str, tuple[Sm90Config, str, str, str, int, tuple[int, ...], Any]] = {
    "small": (SMALL, "bf16", "bf16:col", "bf16", 90, COUNTS, None),
    "two": (Sm90Config((128, 64), chunks=1, buffers=2, stages=2), "f16", "f16", "f32", 140, (130, 0, 3), None),
    "pair": (replace(SMALL, cluster=(2, 1), loader="warpgroup"), "bf16", "bf16:col", "bf16", 200, (0, 200, 65), None),
    "across": (replace(SMALL, cluster=(1, 2), loader="warp"), "bf16:col", "bf16:col", "f16", 96, COUNTS, None),
    "early": (
        Sm90Config((256, 64), staged_epilogue_k_tiles=1, stages=2),
        "bf16",
        "bf16:col",
        "bf16",
        300,
        (300, 0, 1, 256),
        None,
    ),
    "one": (replace(SMALL, reverse_odd_tiles=True, along="N"), "bf16", "bf16:col", "f32", 75, (66,), None),
    "scaled": (Sm90Config((128, 64), stages=2), "e4m3", "e4m3:col", "bf16", 140, (70, 0, 130, 1), SCALED),
}
N, K = 88, 200
Problem = tuple[Sm90Plan, np.ndarray, np.ndarray, dict[str, Any], np.ndarray]


def problem(form: str, kind: str = "i32") -> Problem:
    config, a_type, b_type, c_type, m, counts, loop = FORMS[form]
    groups = len(counts)
    plan = Sm90Plan.derive(
        m, N, K, batch=groups, a=a_type, b=b_type, c=c_type, config=config, mainloop=loop,
        ragged=Ragged.of(groups, kind, masked=True),
    )  # fmt: skip
    rng, front = np.random.default_rng(1), (groups,) if groups > 1 else ()
    a, b = (rng.integers(-3, 4, (*front, *shape)).astype(np.float32) for shape in ((m, K), (K, N)))
    given: dict[str, Any] = {"counts": np.asarray(counts, np.int32 if kind == "i32" else np.int64)}
    want = np.matmul(a, b, dtype=np.float64)
    if loop is not None:
        given["sa"] = np.exp2(rng.integers(-2, 3, (*front, m, 2))).astype(np.float32)
        given["sb"] = np.exp2(rng.integers(-2, 3, (*front, 2, 2))).astype(np.float32)
        want = loop.reference(a, b, sa=given["sa"], sb=given["sb"])
    want = np.asarray(plan.c.dtype.decode(plan.c.dtype.encode(want.astype(np.float32))))
    want[np.arange(m)[None, :] >= np.asarray(counts)[:, None] if groups > 1 else np.arange(m) >= counts[0]] = np.nan
    return plan, a, b, given, want


@pytest.mark.parametrize("form", [pytest.param(x, marks=SLOW * (x in ("early", "two"))) for x in FORMS])
def test_executor_is_exact_and_the_checks_hold(form: str) -> None:
    """Rows that do not count are NaN: bits that nothing has stored."""
    plan, a, b, given, want = problem(form)
    plan.check().require()
    assert np.array_equal(plan.run(a, b, given=given, device="reference").c, want, equal_nan=True)


@needs_dsl
@pytest.mark.dsl
@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_compiled_kernel_is_exact(form: str) -> None:
    plan, a, b, given, want = problem(form, "i64" if form == "pair" else "i32")
    assert np.array_equal(plan.run(a, b, given=given, device="emulator").c, want, equal_nan=True)


@needs_dsl
@pytest.mark.dsl
@each_policy
def test_in_other_orders_of_events(policy: Policy) -> None:
    plan, a, b, given, want = problem("small")
    found = stored_in_order(plan, a, b, given, policy)
    assert np.array_equal(plan.c.dtype.decode(found), want, equal_nan=True)


def launched(counts: tuple[int, ...], m: int = 90) -> tuple[np.ndarray, np.ndarray, Any]:
    """C, the expected C and the emulation; rows that do not count are NaN, and C has lines between."""
    groups = len(counts)
    plan = Sm90Plan.derive(m, N, K, batch=groups, b="bf16:col", config=SMALL, ragged=Ragged.of(groups, masked=True))
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((groups, m, K), (groups, N, K)))
    leading, pitch = padded_leading(plan.a.dtype, K), padded_leading(plan.c.dtype, N) + 8
    bits = [np.full((*x.shape[:-1], leading), 0x7FC0, np.uint16) for x in (a, b)]
    c = np.full((groups, m + 5, pitch), 0xFFFF, np.uint16)
    want = c.copy()
    for lying, x in zip(bits, (a, b), strict=True):
        lying[..., :K] = plan.a.dtype.encode(x)
    for e, count in enumerate(min(max(count, 0), m) for count in counts):
        bits[0][e, count:] = 0x7FC0
        want[e, :count, :N] = plan.c.dtype.encode(a[e, :count] @ b[e].T)
    sizes = (m, N, K, groups, leading, leading, pitch, m * leading, N * leading, (m + 5) * pitch, 2)
    done = emulate_launch(plan, (*bits, c, *sizes, np.asarray(counts, np.int32), *[0] * 15), progress=False)
    return c, want, done


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize(
    "counts", [(3, 0, 90, 17), pytest.param((-7, 1 << 30, 91, 0, 2, -(1 << 31)), marks=SLOW), (0, 0, 0)]
)
def test_nothing_is_written_beyond_a_count(counts: tuple[int, ...]) -> None:
    """Rows that do not count are NaN; some counts are below 0, some above the group's rows."""
    c, want, done = launched(counts)
    assert not done.findings, done.report()
    assert np.array_equal(c, want)


@needs_dsl
@pytest.mark.dsl
def test_tiles_beyond_a_count_cost_no_load() -> None:
    """Each tile with rows that count loads 4 k tiles of A and B, twice."""
    for counts in ((1, 0, 0, 0), (90, 64, 65, 0), (0, 0, 0)):
        done = launched(counts)[2]
        loads = sum(count for opcode, count in done.instructions.items() if ".shared::cta.global" in opcode)
        tiles = sum(-(-count // 64) for count in counts)
        assert loads == tiles * 2 * 4 * 2


def test_the_table_and_the_search() -> None:
    plan = problem("small")[0]
    starts, first = tables(plan, np.asarray([0, 70, -4, 64, 1000, 1]))
    assert starts[:7] == [0, 70, 0, 64, 90, 1, 0] and first[:7] == [0, 0, 4, 4, 6, 10, 12]
    assert [plan.ragged.find(first.__getitem__, t, lambda c, x, y: x if c else y) for t in (0, 4, 9, 10)] == [
        1,
        3,
        4,
        5,
    ]


def failing(plan: Sm90Plan) -> set[str]:
    return {check.name for check in plan.check() if not check} - {"derivation"}


def test_wrong_plans_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = problem("small")[0]
    assert failing(plan) == set() and plan.store is not None
    joined = Sm90Plan.derive(90, N, K, batch=7, b="bf16:col", config=SMALL, ragged=Ragged.of(7))
    assert "ends of groups" in failing(replace(plan, store=joined.store))
    assert joined.store is not None
    assert without_groups(plan.store.maps[0]).dims == ("n", "m", "l")
    assert without_groups(joined.store.maps[0]).dims == ("n", "m")
    right = Ragged.rows
    monkeypatch.setattr(Ragged, "rows", lambda self, entry, group: (0, right(self, entry, group)[1] + 1))
    assert failing(plan) == {"groups"}
    two = problem("small")
    with pytest.raises(PlanError, match=r"C\[.*\] of matrix \d is stored \d times; \d+ elements are not stored"):
        two[0].run(two[1], two[2], given=two[3], device="reference")


def test_refusals() -> None:
    plan, a, b, given, _ = problem("small")
    for wrong, text in (
        ({}, "counts is missing: how many rows of each group count, 7 numbers"),
        ({"counts": given["counts"].astype(np.int64)}, "counts is int64"),
        ({"counts": given["counts"][:-1]}, r"of shape \(6,\): it takes int32 of \(7,\)"),
        ({"counts": given["counts"] + 30}, r"counts\[1\] = 100: a has 0 to 90 rows in a group"),
        ({"offsets": given["counts"]}, "given = offsets: the plan reads counts"),
    ):
        with pytest.raises(OperandError, match=text):
            plan.run(a, b, given=wrong)
    with pytest.raises(OperandError, match="a has shape"):
        plan.run(a[0], b, given=given)
    with pytest.raises(PlanError, match=r"batch = 65: Ragged.of\(groups\) has room"):
        Sm90Plan.derive(64, 64, 64, b="bf16:col", config=SMALL, batch=65, ragged=Ragged.of(2, masked=True))
    assert str(plan).endswith("masked rows in 7 group(s)") and "groups: 7 of 90 rows each" in plan.explain()


def test_an_epilogue_reads_by_group() -> None:
    plan = Sm90Plan.derive(
        75, N, K, batch=2, b="bf16:col", config=SMALL, ragged=Ragged.of(2, masked=True), epilogue=Epilogue(Bias())
    )
    assert plan.words == ("bias", "bias_batch", "counts")
    plan.check().require()
