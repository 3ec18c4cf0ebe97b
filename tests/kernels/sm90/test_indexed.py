"""Indexed rows: A's rows gathered by cp.async, C's rows scattered out of shared memory, alone and with groups."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from layoutgemm.atoms import smem_tile
from layoutgemm.checks.pipeline.actions import FenceProxy, ForK, ForTiles, Wait
from layoutgemm.emulator.machine.interpreter import Policy
from layoutgemm.emulator.mutation.mutants import deletions, fields
from layoutgemm.emulator.mutation.run import LaunchCase, sample, survey, unreached
from layoutgemm.emulator.mutation.survivors import PROVEN, Explainer
from layoutgemm.errors import LayoutError, OperandError, PlanError
from layoutgemm.kernels import Sm90Config, Sm90Plan
from layoutgemm.kernels.epilogue.chain import Custom, Epilogue, EpilogueOperand, RowReduce
from layoutgemm.kernels.indexed.rows import IndexedRows, RowIndices
from layoutgemm.kernels.ragged import Ragged
from layoutgemm.kernels.run.emulated import emulate_launch, linked
from layoutgemm.kernels.run.epilogue_operands import values_read, words_read
from layoutgemm.kernels.sm90.checks import pipeline_of
from layoutgemm.kernels.sm90.mainloop import Promoted
from tests import needs
from tests.kernels.indexed_problem import problem
from tests.kernels.launch_cases import launch_case, unproven

needs_dsl = needs.DSL
needs_cc = needs.C_COMPILER
SMALL = Sm90Config((64, 64), consumers=1, stages=3, loader="warpgroup")
PAIR = Sm90Config((128, 64), stages=3, loader="warpgroup", cluster=(2, 1))
TURNS = Sm90Config((64, 40), schedule="pingpong", loader="warpgroup", stages=3)
WEIGHTED = Epilogue(Custom.of(lambda x, i, j, ops, w: w * x, EpilogueOperand("w", "m", "f32")))
SIZES = (0, 70, 0, 1, 64, 33)
# M, N, K; A, B, C; configuration; (rows of A, type of indices), (rows of C, type of indices); groups
FORMS: dict[str, tuple[Any, ...]] = {
    "gather": ((200, 88, 203), ("f16", "f16", "f16"), SMALL, (50, "i32"), None, ()),
    "both": ((200, 83, 264), ("bf16", "bf16:col", "f32"), PAIR, (1000, "i64"), (300, "i32"), ()),
    "scatter": ((70, 72, 130), ("e4m3", "e4m3:col", "e4m3"), replace(SMALL, loader="self"), None, (71, "i64"), ()),
    "turns": ((300, 72, 72), ("bf16", "bf16", "bf16"), TURNS, (3, "i32"), (300, "i32"), ()),
    "groups": ((168, 88, 200), ("bf16", "bf16:col", "bf16"), SMALL, (40, "i32"), (168, "i32"), SIZES),
    "halves": (
        (357, 72, 136),
        ("bf16", "bf16:col", "bf16"),
        replace(PAIR, tile=(128, 32), halve_last_round=True),
        (400, "i32"),
        (357, "i32"),
        (129, 0, 228),
    ),
    "experts": ((168, 88, 264), ("e4m3", "e5m2:col", "bf16"), PAIR, (40, "i64"), None, SIZES),
}
SLOW = ("scatter", "turns", "experts", "halves")
ALL = [pytest.param(form, marks=[pytest.mark.slow] * (form in SLOW)) for form in FORMS]


def plan_of(form: str, **more: Any) -> Sm90Plan:
    (m, n, k), (a, b, c), config, gather, scatter, sizes = FORMS[form]
    indexed = IndexedRows(*[None if part is None else RowIndices(*part) for part in (gather, scatter)])
    groups: dict[str, Any] = {"batch": len(sizes), "ragged": Ragged.of(len(sizes))} if sizes else {}
    return Sm90Plan.derive(m, n, k, a=a, b=b, c=c, config=config, indexed=indexed, **groups, **more)


@pytest.mark.parametrize("form", [pytest.param(x, marks=[pytest.mark.slow] * (x == "halves")) for x in FORMS])
def test_executor_is_exact_and_the_checks_hold(form: str) -> None:
    plan = plan_of(form)
    a, b, given, want = problem(plan, FORMS[form][-1])
    plan.check().require()
    told = plan.explain()
    assert str(plan.indexed) in told
    assert ("its threads' 128 copies of rows" in told) == plan.gathers
    assert np.array_equal(plan.run(a, b, given=given, device="reference").c, want)


@pytest.mark.parametrize("tile_k", [32, 128])
def test_tiles_of_half_a_span_and_of_two(tile_k: int) -> None:
    config, indexed = replace(SMALL, tile_k=tile_k), IndexedRows(RowIndices(50))
    plan = Sm90Plan.derive(70, 64, 200, b="bf16:col", config=config, indexed=indexed)
    a, b, given, want = problem(plan)
    plan.check().require()
    assert np.array_equal(plan.run(a, b, given=given, device="reference").c, want)


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize("form", ALL)
def test_compiled_kernel_is_exact(form: str) -> None:
    plan = plan_of(form)
    a, b, given, want = problem(plan, FORMS[form][-1])
    out = np.full_like(want, 7.0)
    found = plan.run(a, b, given=given, device="emulator", out=out).c
    left = np.ones(plan.rows_of_c, bool)
    left[given.get("out_rows", slice(None))] = False
    assert np.array_equal(found[~left], want[~left]) and (found[left] == 7).all()


@needs_dsl
@pytest.mark.dsl
def test_matrices_of_a_batch_have_indices_of_their_own() -> None:
    both = IndexedRows(RowIndices(90), RowIndices(80, "i64"))
    plan = Sm90Plan.derive(72, 40, 72, batch=3, b="bf16:col", c="f32", config=SMALL, indexed=both)
    a, b, given, want = problem(plan)
    plan.check().require()
    stored = given["out_rows"].reshape(3, -1)
    for device in ("reference", "emulator"):
        found = plan.run(a, b, given=given, device=device, out=np.full_like(want, 7.0)).c
        for matrix, rows in enumerate(stored):
            assert np.array_equal(found[matrix][rows], want[matrix][rows])
            assert (np.delete(found[matrix], rows, 0) == 7).all()


@needs_dsl
@pytest.mark.dsl
def test_weights_of_rows_are_an_epilogue() -> None:
    plan = plan_of("groups", epilogue=WEIGHTED)
    a, b, given, want = problem(plan, SIZES)
    weights = np.exp2(np.arange(plan.m) % 3).astype(np.float32)
    plan.check().require()
    want[given["out_rows"]] *= weights[:, None]
    assert np.array_equal(plan.run(a, b, given={**given, "w": weights}, device="emulator").c, want)


@needs_dsl
@pytest.mark.dsl
def test_weights_with_other_tables_keep_their_places() -> None:
    plan = plan_of("both", epilogue=WEIGHTED)
    assert plan.words[-4:] == ("rows", "a_rows", "out_rows", "c_rows") and plan.words[0] == "w"


# ----------------------------------------------------------------------------------------- the kernel, launch by launch


def launch_of(plan: Sm90Plan, sizes: tuple[int, ...], worse: dict[str, Any]) -> tuple[tuple[Any, ...], np.ndarray]:
    """A launch by one worker without C's address, and C as it has to be; `worse` vectors instead of right ones."""
    a, b, given, want = problem(plan, sizes)
    words = words_read(plan, {**values_read(plan, given), **worse})
    columns = plan.b.order == "col"
    bits = [plan.a.dtype.encode(a), plan.b.dtype.encode(np.ascontiguousarray(b.swapaxes(-1, -2) if columns else b))]
    lines = plan.k if columns else plan.n
    dims = (plan.m, plan.n, plan.k, plan.batch, plan.k, lines, plan.n, 0, plan.k * plan.n, 0, 1)
    return (*bits, *dims, *words), plan.c.dtype.encode(want)


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize("policy", [
    Policy(loads="early", stores="early", pick="random", waits="reluctant"),
    pytest.param(Policy(products="early", lands="oldest", elect="highest", pick="random"), marks=pytest.mark.slow),
])  # fmt: skip
def test_in_other_orders_of_events(policy: Policy) -> None:
    plan = plan_of("groups")
    (a, b, *rest), want = launch_of(plan, SIZES, {})
    c = np.zeros_like(want)
    done = emulate_launch(plan, (a, b, c, *rest), policy, progress=False)
    assert not done.findings, done.report()
    assert np.array_equal(c, want)


@needs_dsl
@pytest.mark.dsl
def test_indices_outside_read_zeros_and_write_nothing() -> None:
    """As on a GPU: no access beyond the arrays, and no other row is touched."""
    plan = plan_of("groups")
    _, _, given, _ = problem(plan, SIZES)
    rows, out_rows = given["rows"].astype(np.int64), given["out_rows"].astype(np.int64)
    rows[[3, 80, 167]] = -1, plan.rows_of_a, 2**31 - 1
    out_rows[[5, 90]] = -(2**31), plan.rows_of_c
    (a, b, *rest), want = launch_of(plan, SIZES, {"rows": rows, "out_rows": out_rows})
    want[given["out_rows"][[3, 80, 167]]] = 0
    want[given["out_rows"][[5, 90]]] = 0x7777
    c = np.full_like(want, 0x7777)
    done = emulate_launch(plan, (a, b, c, *rest), progress=False)
    assert not done.findings, done.report()
    assert np.array_equal(c, want)


@needs_dsl
@pytest.mark.dsl
def test_fences_of_consumers_serve_copies_of_others() -> None:
    """A thread whose copies arrive for it cannot fence behind them: who learns of them at the barrier does."""
    plan = plan_of("groups")
    (a, b, *rest), want = launch_of(plan, SIZES, {})
    done = emulate_launch(plan, (a, b, np.zeros_like(want), *rest), Policy(fences="writers"), progress=False)
    assert not done.findings, done.report()


@lru_cache
def cases() -> tuple[Any, tuple[LaunchCase, ...]]:
    """The kernel of "groups" and its launches."""
    plan = plan_of("groups")
    (a, b, *rest), want = launch_of(plan, SIZES, {})
    kernel, case = launch_case(linked(plan), "groups", [a, b, np.zeros_like(want)], rest, want)
    return kernel, (case,)


@needs_dsl
@needs_cc
@pytest.mark.dsl
def test_a_missing_fence_or_arrival_is_found() -> None:
    """Without the consumers' fence values stay right in the emulator: the race checker alone sees it."""
    kernel, found = cases()
    names = ("fence.proxy.async", "cp.async.mbarrier")
    rows = survey(kernel, found, [m for m in deletions(kernel) if any(name in str(m) for name in names)]).rows
    fences = [row for row in rows if names[0] in str(row.mutant)]
    assert len(fences) >= 2 and len(rows) > len(fences)
    judge = Explainer(kernel, found, ())
    left = list(map(judge.row, [row.mutant for row in rows if not row.caught]))
    assert [str(row) for row in left if row.reason.split(":")[0] not in PROVEN] == []  # that of the barriers' init
    assert any("wgmma" in row.how and "cp.async.cg" in row.how for row in fences), [row.how for row in fences]


@needs_dsl
@needs_cc
@pytest.mark.dsl
@pytest.mark.slow
def test_a_sample_of_mutants_is_caught() -> None:
    kernel, found = cases()
    judge = Explainer(kernel, found, ())
    rows = [judge.row(mutant) for mutant in sample([*deletions(kernel), *fields(kernel)], 24)]
    assert unproven(rows) == []


@needs_dsl
@needs_cc
@pytest.mark.dsl
@pytest.mark.slow
def test_every_instruction_is_reached() -> None:
    """But for stores of single elements and of a CTA without a tile. "both" reaches the former by its 83 columns."""
    kernel, found = cases()
    left = [str(ins) for ins in unreached(kernel, found)]
    known = ("st.global", "setp", "bra", "shr", "st.shared.v4.b32", "mov.b32")  # the last two: a place of zeros
    assert all(any(name in text for name in known) for text in left), left
    assert sum("st.shared" in text or "mov.b32" in text for text in left) == 2


# ---------------------------------------------------------------------------------------------------- proofs that fail


def test_a_wrong_copy_fails_its_check() -> None:
    plan = plan_of("gather")
    for swizzle in ("none", "32B", "64B"):
        other = replace(plan.a.copy, tile=smem_tile(plan.a.smem.extent, "f16", "K", swizzle))
        found = {
            check.name: check.witness for check in replace(plan, a=replace(plan.a, copy=other)).check() if not check
        }
        assert "lands at byte" in found["copy A"]


def test_the_pipeline_without_the_fence_is_refuted() -> None:
    many = pipeline_of(plan_of("gather")).cases()[0]
    assert many.prove(fences="any")
    body = many.role("math0").program

    def without(program: tuple[Any, ...]) -> tuple[Any, ...]:
        kept = [action for action in program if not isinstance(action, FenceProxy)]
        return tuple([replace(x, body=without(x.body)) if isinstance(x, (ForK, ForTiles)) else x for x in kept])

    found = many.with_program("math0", without(body)).prove(fences="any")
    assert not found and "generic proxy" in str(found)


def test_the_pipeline_without_a_wait_for_empty_is_refuted() -> None:
    many = pipeline_of(plan_of("gather")).cases()[0]

    def without(program: tuple[Any, ...]) -> tuple[Any, ...]:
        kept = [action for action in program if not (isinstance(action, Wait) and action.barrier == "empty")]
        return tuple([replace(x, body=without(x.body)) if isinstance(x, (ForK, ForTiles)) else x for x in kept])

    assert not many.with_program("loader", without(many.role("loader").program)).prove(fences="any")


def test_a_count_of_arrivals_that_is_off_fails() -> None:
    names = [check.name for check in replace(plan_of("gather"), full_arrivals=128).check() if not check]
    assert "barriers" in names


# ------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rows": np.arange(200, dtype=np.int32)}, r"rows\[50\] = 50: a has 50 rows, 0 to 49"),
        ({"rows": np.full(200, -1, np.int32)}, r"rows\[0\] = -1: a has 50 rows"),
        ({"rows": np.zeros(199, np.int32)}, r"rows is int32 of shape \(199,\): it takes int32 of \(200,\)"),
        ({"rows": np.zeros(200, np.int64)}, r"rows is int64 of shape \(200,\): it takes int32"),
        ({}, r"rows is missing: an index for each row of the product, 200 numbers"),
        (
            {"rows": np.zeros(200, np.int32), "out_rows": np.zeros(200, np.int32)},
            "given = out_rows: the plan reads rows",
        ),
    ],
)
def test_vectors_that_do_not_fit_are_refused(given: dict[str, Any], message: str) -> None:
    plan = plan_of("gather")
    a, b, _, _ = problem(plan)
    with pytest.raises(OperandError, match=message):
        plan.run(a, b, given=given, device="emulator")


def test_a_row_of_c_with_two_sources_is_refused() -> None:
    plan = plan_of("turns")
    a, b, given, _ = problem(plan)
    given["out_rows"][7] = given["out_rows"][2]
    with pytest.raises(
        OperandError, match=r"out_rows\[2\] and out_rows\[7\] are both \d+: a row of the result has one"
    ):
        plan.run(a, b, given=given, device="reference")


GATHER, SCATTER = IndexedRows(RowIndices(50)), IndexedRows(scatter=RowIndices(50))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"indexed": GATHER, "a": "bf16:col"}, "gathered rows are contiguous, a 'row' A"),
        ({"indexed": GATHER, "a": "tf32", "b": "tf32:col"}, "TMA rounds float32 as it copies, and cp.async"),
        ({"indexed": GATHER, "config": replace(SMALL, loader="warp")}, "loader='warpgroup'"),
        ({"indexed": GATHER, "config": replace(SMALL, cluster=(1, 2))}, "does not multicast A along N"),
        (
            {"indexed": GATHER, "config": replace(SMALL, reverse_odd_tiles=True)},
            "reverse_odd_tiles = True: gathered rows are loaded in order",
        ),
        ({"indexed": SCATTER, "c": "bf16:col"}, "scattered rows are contiguous, a 'row' C"),
        ({"indexed": SCATTER, "config": replace(SMALL, store="direct")}, "store = 'direct': a product with indexed"),
        ({"indexed": GATHER, "batch": 3, "ragged": Ragged.of(3, masked=True)}, "no kernel has masked groups and gath"),
        ({"indexed": GATHER, "pair": 64}, "pair: no kernel has a second pair and gathered rows"),
        ({"indexed": GATHER, "mainloop": Promoted.of(lambda t, x: t + x), "a": "e4m3", "b": "e4m3:col",
          "config": Sm90Config((128, 64), loader="warpgroup")}, "mainloop: no kernel has a main loop"),
        ({"indexed": GATHER, "order": "symmetric", "n": 200}, "gathered rows and a symmetric order"),
        ({"indexed": SCATTER, "epilogue": Epilogue(RowReduce(), stores_c=False)}, "stores_c = False: no row of C"),
        ({"indexed": SCATTER, "ragged": Ragged.of(3, ends=True, clears=True), "batch": 3}, "clears = True"),
        ({"indexed": RowIndices(3)}, "indexed of Sm90Plan.derive must be an IndexedRows or None, not RowIndices"),
    ],
)  # fmt: skip
def test_plans_that_do_not_exist_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Sm90Plan.derive(200, **{"n": 88, "k": 200, "b": "bf16:col", "config": SMALL, **changes})


@pytest.mark.parametrize("make", [
    lambda: IndexedRows(), lambda: RowIndices(0), lambda: RowIndices(5, "i16"), lambda: IndexedRows(gather=5),
])  # fmt: skip
def test_descriptions_of_nothing_are_refused(make: Any) -> None:
    with pytest.raises(LayoutError):
        make()


@needs_dsl
@pytest.mark.dsl
def test_one_kernel_serves_all_sizes() -> None:
    plan, other = plan_of("groups"), Sm90Plan.derive(
        500, 72, 64, b="bf16:col", batch=3, ragged=Ragged.of(3), config=SMALL,
        indexed=IndexedRows(RowIndices(9), RowIndices(2000)),
    )  # fmt: skip
    assert plan.compile() is other.compile()
