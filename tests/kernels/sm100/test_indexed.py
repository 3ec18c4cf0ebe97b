"""Indexed rows on Blackwell: A's rows by gather4, C's rows by scatter4. No device of this architecture has run it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from layoutgemm import plan as planned
from layoutgemm.atoms.tma.gather import in_fours
from layoutgemm.emulator.api import ORDERS, Emulation
from layoutgemm.emulator.machine.interpreter import Policy
from layoutgemm.emulator.mutation.mutants import alterations, deletions, fields
from layoutgemm.emulator.mutation.run import LaunchCase, sample, survey, unreached
from layoutgemm.emulator.mutation.survivors import PROVEN, Explainer
from layoutgemm.errors import LayoutError, OperandError, PlanError
from layoutgemm.kernels import IndexedRows, RowIndices, Sm80Config, Sm100Config, Sm100Plan
from layoutgemm.kernels.epilogue.chain import Amax, Bias, Custom, Epilogue, EpilogueOperand, Quantize, RowReduce
from layoutgemm.kernels.orders import stored_elements
from layoutgemm.kernels.plan import present
from layoutgemm.kernels.run import tensor_maps
from layoutgemm.kernels.run.emulated import emulate_launch, linked
from layoutgemm.kernels.run.epilogue_operands import words_read
from layoutgemm.kernels.sm100 import rows_checks
from layoutgemm.layouts import Layout
from tests import needs
from tests.kernels.indexed_problem import is_exact, problem
from tests.kernels.launch_cases import launch_case, unproven
from tests.kernels.sm100.table import one, pair

needs_dsl = needs.DSL
needs_cc = needs.C_COMPILER
STRICT = Policy(tensor_strict=True)
WEIGHTED = Epilogue(Custom.of(lambda x, i, j, ops, w: w * x, EpilogueOperand("w", "m", "f32")))
# M, N, K; A, B, C; configuration; (rows of A, type of indices), (rows of C, type of indices)
FORMS: dict[str, tuple[Any, ...]] = {
    "both, a pair": ((270, 67, 136), ("bf16", "bf16:col", "f32"), pair(64), (1000, "i64"), (400, "i32")),
    "gather, short k tiles": ((200, 40, 100), ("f16", "f16", "f16"), one(32, tile_k=16), (50, "i32"), None),
    "scatter": ((130, 130, 72), ("e4m3", "e4m3:col", "e4m3"), one(96, chunks=2, buffers=3), None, (131, "i64")),
    "tf32, long k tiles": ((140, 72, 100), ("tf32", "tf32:col", "f32"), one(48, tile_k=64), (3, "i32"), (140, "i32")),
    "widest": ((300, 264, 136), ("bf16", "bf16", "bf16"), Sm100Config((128, 256)), (50, "i32"), (300, "i64")),
    "a batch": ((150, 20, 72), ("bf16", "bf16:col", "f32"), pair(32), (90, "i32"), (200, "i64")),
    "columns of C": ((140, 72, 328), ("e5m2", "e4m3:row", "bf16:col"), pair(64), (9, "i64"), None),
}
SMALL = (150, 20, 72)  # the same kernel as "both, a pair", for fewer products
SLOW = ("tf32, long k tiles", "widest", "columns of C", "gather, short k tiles", "scatter")
ALL = [pytest.param(form, marks=[pytest.mark.slow] * (form in SLOW)) for form in FORMS]


def plan_of(form: str, **more: Any) -> Sm100Plan:
    sizes, (a, b, c), config, gather, scatter = FORMS[form]
    m, n, k = more.pop("sizes", sizes)
    indexed = IndexedRows(*[None if part is None else RowIndices(*part) for part in (gather, scatter)])
    more = {"batch": 2 if form == "a batch" else 1, **more}
    return Sm100Plan.derive(m, n, k, **{"a": a, "b": b, "c": c, "config": config, "indexed": indexed, **more})


@pytest.mark.parametrize("form", [pytest.param(form, marks=[pytest.mark.slow] * (form == "widest")) for form in FORMS])
def test_executor_is_exact_and_the_checks_hold(form: str) -> None:
    plan = plan_of(form)
    a, b, given, want = problem(plan)
    names = {check.name for check in plan.check().require()}
    told = plan.explain()
    assert ("gather A" in names, "scatter C" in names) == (plan.gathers, plan.scatters)
    assert f"indexed: {plan.indexed};" in told and "not measured: gather4 and scatter4 have run in the emulator" in told
    assert ("32 x gather4" in told or "64 x gather4" in told) == plan.gathers
    assert np.array_equal(plan.run(a, b, given=given, device="reference").c, want)


def test_four_rows_fill_the_tile_that_a_plain_box_fills() -> None:
    plain = Sm100Plan.derive(128, 256, 64, b="bf16:col").a.tma
    fours = in_fours(plain)
    assert (fours.bytes, plain.box, fours.box) == (plain.bytes, (64, 128), (64, 4)) and len(fours.instructions) == 32
    with pytest.raises(LayoutError, match="four rows take 64 bytes of shared memory"):
        in_fours(Sm100Plan.derive(128, 16, 32, a="e4m3", b="e4m3:col", c="e4m3", config=one(16)).store.maps[0])


# ----------------------------------------------------------------------------------------- the kernel, launch by launch


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize("form", ALL)
def test_compiled_kernel_is_exact(form: str) -> None:
    assert is_exact(plan_of(form), "emulator")


@needs_dsl
@pytest.mark.dsl
def test_indices_outside_of_a_batchs_matrix_are_no_rows_of_the_next() -> None:
    """For the tensor map, row 90 of a matrix is row 0 of the next."""
    plan = plan_of("a batch")
    a, b, given, want = problem(plan)
    bits = [plan.a.dtype.encode(a), plan.b.dtype.encode(np.ascontiguousarray(b.swapaxes(1, 2)))]
    worse = {name: x.copy() for name, x in given.items()}
    worse["rows"][[3, 160]], worse["out_rows"][[5, 299]] = (90, -1), (200, 200)
    c = np.full((2, 200, 24), 0x7777, np.uint32)
    pitches = 72, 72, 24, 90 * 72, 72 * 20, 200 * 24
    arguments = (*bits, c, plan.m, plan.n, plan.k, 2, *pitches, 1, *words_read(plan, worse))
    done = emulate_launch(plan, arguments, replace(STRICT, edges=False), progress=False)
    assert not done.findings, done.report()
    found, rows = plan.c.dtype.decode(c[..., :20]), given["out_rows"].reshape(2, -1)
    want[0][rows[0][3]] = want[1][rows[1][10]] = 0
    want[~present(stored_elements(plan, given))] = plan.c.dtype.decode(np.array([0x7777], np.uint32))[0]
    want[0][rows[0][5]] = want[1][rows[1][149]] = plan.c.dtype.decode(np.array([0x7777], np.uint32))[0]
    assert np.array_equal(found, want)


def test_matrices_between_whole_rows_are_copied_or_refused() -> None:
    torch = needs.module("torch")
    plan, apart = plan_of("a batch"), torch.zeros(90, 2, 72, dtype=torch.bfloat16).transpose(0, 1)
    with pytest.raises(
        OperandError, match="matrices of the batch lie 72 elements apart, no multiple of the 144 from row"
    ):
        tensor_maps.lines_of(plan, "A", apart, [], False)
    copies: list[str] = []
    _, leading, pitch = tensor_maps.lines_of(plan, "A", apart, copies, True)
    assert (leading, pitch) == (72, 90 * 72) and len(copies) == 1
    wide = torch.zeros(2, 100, 80, dtype=torch.bfloat16)[:, :90, :72]
    assert tensor_maps.lines_of(plan, "A", wide, [], False)[1:] == (80, 8000)
    out = torch.zeros(200, 2, 20).transpose(0, 1)
    assert "no multiple of the 40 from row to row" in tensor_maps._store_rule(plan, out)


def launched(
    plan: Sm100Plan, policy: Policy = STRICT, worse: dict[str, Any] | None = None
) -> tuple[Emulation, np.ndarray, np.ndarray]:
    """A launch by one pair of blocks: its record, C as it is and has to be; `worse` vectors instead of right ones."""
    arguments, want = launch_of(plan, worse or {})
    c = np.full_like(want, 0x7777)
    done = emulate_launch(plan, (*arguments[:2], c, *arguments[2:]), replace(policy, edges=False), progress=False)
    return done, c[:, : plan.n], want[:, : plan.n]


def launch_of(plan: Sm100Plan, worse: dict[str, Any]) -> tuple[tuple[Any, ...], np.ndarray]:
    """A launch by one worker without C's address, and the wanted C."""
    a, b, given, want = problem(plan)
    words = words_read(plan, {**given, **worse})
    assert plan.b.order == "col" and plan.c.dtype.bits == 32
    ldc = -(-plan.n // 4) * 4 + 4
    wanted = np.full((plan.rows_of_c, ldc), 0x7777, np.uint32)
    wanted[given["out_rows"], : plan.n] = plan.c.dtype.encode(want)[given["out_rows"]]
    bits = plan.a.dtype.encode(a), plan.b.dtype.encode(np.ascontiguousarray(b.T))
    return (*bits, plan.m, plan.n, plan.k, 1, plan.k, plan.k, ldc, 0, 0, 0, 1, *words), wanted


ADVERSE = [*ORDERS[1:], Policy(pick="random", seed=7, elect="highest", waits="reluctant")]


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize(
    "order", [pytest.param(i, marks=[pytest.mark.slow] * (i < len(ADVERSE) - 1)) for i in range(len(ADVERSE))]
)
def test_in_other_orders_of_events(order: int) -> None:
    done, c, want = launched(plan_of("both, a pair", sizes=SMALL), replace(ADVERSE[order], tensor_strict=True))
    assert not done.findings, done.report()
    assert np.array_equal(c, want)


@needs_dsl
@pytest.mark.dsl
def test_indices_outside_read_zeros_and_write_nothing() -> None:
    """As on a GPU: no access beyond the arrays, and no other row is touched. 2**32 + 1 is no row 1."""
    plan = plan_of("both, a pair")
    _, _, given, _ = problem(plan)
    rows, out_rows = given["rows"].copy(), given["out_rows"].copy()
    rows[[3, 80, 133, 269]] = -1, plan.rows_of_a, 2**32 + 1, -(2**63)
    out_rows[[4, 5, 6, 7, 90]] = -(2**31), -1, plan.rows_of_c, plan.rows_of_c, 2**31 - 1
    done, c, want = launched(plan, STRICT, {"rows": rows, "out_rows": out_rows})
    assert not done.findings, done.report()
    want[given["out_rows"][[3, 80, 133, 269]]] = 0
    want[given["out_rows"][[4, 5, 6, 7, 90]]] = 0x7777
    assert np.array_equal(c, want)


@needs_dsl
@pytest.mark.dsl
def test_weights_of_rows_are_an_epilogue() -> None:
    plan = plan_of("scatter", epilogue=WEIGHTED)
    a, b, given, _ = problem(plan)
    assert plan.check().require() and plan.words == ("w", "w_batch", "out_rows", "c_rows")
    weights, out = np.exp2(np.arange(plan.m) % 3).astype(np.float32), np.full((131, plan.n), 7, np.float32)
    plan.run(a, b, given={**given, "w": weights}, device="emulator", out=out)
    want = np.full_like(out, 7)
    want[given["out_rows"]] = plan.c.dtype.decode(plan.c.dtype.encode(weights[:, None] * (a @ b)))
    assert np.array_equal(out, want)


@needs_dsl
@pytest.mark.dsl
@pytest.mark.slow
def test_reductions_and_scales_are_of_the_products_rows() -> None:
    """A row's maximum, and its scales, stand at the product's row; C's row is where its index says."""
    plan = plan_of("both, a pair", epilogue=Epilogue(Bias(), RowReduce("max", "top"), Amax("most")))
    a, b, given, want = problem(plan)
    bias = np.arange(plan.n, dtype=np.float32)
    done = plan.run(a, b, given={**given, "bias": bias}, device="emulator")
    product = want[given["out_rows"]] + bias
    assert np.array_equal(done.c[given["out_rows"]], product)
    assert np.array_equal(done.written["top"], product.max(axis=1)) and done.written["most"] == np.abs(product).max()
    scaled = Sm100Plan.derive(
        130, 128, 72, a="e4m3", b="e4m3:col", c="e4m3", config=one(128), epilogue=Epilogue(Quantize()),
        indexed=IndexedRows(scatter=RowIndices(131)),
    )  # fmt: skip
    a, b, given, _ = problem(scaled)
    done, wanted = scaled.run(a, b, given=given, device="emulator"), scaled.epilogue.reference(a @ b)
    assert np.array_equal(done.c[given["out_rows"]], scaled.c.dtype.decode(scaled.c.dtype.encode(wanted.c)))
    assert np.array_equal(done.written["scales"], wanted.written["scales"])


@lru_cache
def cases() -> tuple[Any, tuple[LaunchCase, ...]]:
    """The kernel of "both, a pair" and its launches, in two orders of events."""
    plan = plan_of("both, a pair", sizes=SMALL)
    (a, b, *rest), want = launch_of(plan, {})
    matrices = a, b, np.full_like(want, 0x7777)
    kernel, case = launch_case(linked(plan), "both", matrices, rest, want[:, : plan.n], replace(STRICT, edges=False))
    return kernel, (case,)


@needs_dsl
@needs_cc
@pytest.mark.dsl
def test_a_wrong_row_box_or_byte_count_is_found() -> None:
    kernel, found = cases()
    rows = [m for m in fields(kernel) if "gather4" in str(m) or "scatter4" in str(m)]
    bytes_ = [m for m in fields(kernel) if m.kind == "bytes"]
    maps = [m for m in alterations(kernel, found[0].launch()) if "swizzle" in str(m) or "box" in str(m)]
    assert len(rows) > 32 * 5 and bytes_ and len(maps) >= 4, [len(rows), len(bytes_), len(maps)]
    left = [row for row in survey(kernel, found, [*sample(rows, 3), *bytes_[:1], *maps[:1]]).rows if not row.caught]
    judge = Explainer(kernel, found, ())
    left = [row for row in map(judge.row, [row.mutant for row in left]) if row.reason.split(":")[0] not in PROVEN]
    assert [f"{row.mutant}: {row.reason}" for row in left] == []


@needs_dsl
@needs_cc
@pytest.mark.dsl
@pytest.mark.slow
def test_a_sample_of_mutants_is_caught_or_changes_nothing() -> None:
    kernel, found = cases()
    judge = Explainer(kernel, found, ())
    mutants = [*deletions(kernel), *fields(kernel), *alterations(kernel, found[0].launch())]
    rows = [judge.row(mutant) for mutant in sample(mutants, 60)]
    assert unproven(rows) == []
    late = replace(found[0], policy=replace(STRICT, edges=False, waits="reluctant"))
    assert [str(ins) for ins in unreached(kernel, (*found, late))] == []


# ---------------------------------------------------------------------------------------------------- proofs that fail


def mutants() -> Iterator[tuple[str, str, Sm100Plan]]:
    """(check, what is changed, plan)."""
    plan = plan_of("both, a pair")
    a, store = plan.a, plan.store
    first, second, *others = a.tma.instructions
    swapped = (
        replace(first, coord_offset=second.coord_offset), replace(second, coord_offset=first.coord_offset), *others,
    )  # fmt: skip
    wrong = {
        ("copy A", "order of rows"): {"instructions": swapped},
        ("gather A", "a row twice"): {"instructions": (first, replace(first), *others)},
        ("copy A", "swizzle"): {"swizzle": "64B"},
        ("copy A", "box"): {"box": (32, 4)},
        ("gather A", "rows of a box"): {"box": (64, 8)},
        ("gather A", "rows beyond it"): {"instructions": (replace(first, coord_offset=(0, 128)), second, *others)},
        ("gather A", "plain boxes"): {"box": (64, 128), "instructions": (first,)},
    }
    for (check, what), changes in wrong.items():
        yield check, what, replace(plan, a=replace(a, tma=replace(a.tma, **changes)))
    yield "barriers", "bytes of one box", replace(plan, full_bytes=plan.full_bytes - a.tma.box_bytes)
    yield "pipeline", "bytes of one box", replace(plan, full_bytes=plan.full_bytes - a.tma.box_bytes)
    (tma, *maps) = store.maps
    for what, box in (("plain boxes", (32, 32)), ("two rows", (32, 2))):
        yield "scatter C", what, replace(plan, store=replace(store, maps=(replace(tma, box=box), *maps)))
    low, high, *rest = tma.instructions
    moved = replace(low, smem_offset=high.smem_offset), replace(high, smem_offset=low.smem_offset), *rest
    yield "boxes of C", "order", replace(plan, store=replace(store, maps=(replace(tma, instructions=moved), *maps)))
    yield "the loader's registers", "threads", replace(plan, threads=512)
    yield "derivation", "no indices", replace(plan, indexed=None)


def test_every_check_of_rows_can_fail() -> None:
    for check, what, plan in mutants():
        failed = {found.name: found for found in plan.check().failures}
        assert check in failed, f"{check}, {what}: {plan.check()}"
        assert failed[check].witness, f"{check}, {what}"


@pytest.mark.parametrize("layout", [Layout((4, 32), (1, 2)), Layout((4, 32), (32, 2)), Layout((4, 16))], ids=str)
def test_lanes_that_miss_an_index_are_found(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_checks, "READ_BY_LANES", layout)
    assert [check.name for check in plan_of("both, a pair").check().failures] == ["index lanes"]


# ------------------------------------------------------------------------------------------------------------- refusals

GATHER, SCATTER = IndexedRows(RowIndices(50)), IndexedRows(scatter=RowIndices(50))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"indexed": GATHER, "a": "bf16:col"}, "a is bf16 col-major: gathered rows are contiguous, a 'row' A"),
        ({"indexed": SCATTER, "c": "f32:col"}, "c is f32 col-major: scattered rows are contiguous, a 'row' C"),
        ({"indexed": IndexedRows(RowIndices(5), copy=True)}, "indexed: sm_100a's kernel copies no rows first"),
        ({"indexed": SCATTER, "epilogue": Epilogue(RowReduce("max"), stores_c=False)}, "no row of C is stored"),
        (
            {"indexed": SCATTER, "a": "e4m3", "b": "e4m3:col", "c": "e4m3", "config": one(48)},
            "a chunk of C of 16 columns of e4m3: four rows take 64 bytes of shared memory",
        ),
        ({"indexed": RowIndices(3)}, "indexed of .*derive must be an IndexedRows or None, not RowIndices"),
        ({"indexed": GATHER, "order": "symmetric"}, "stores no transposed tile"),
    ],
)  # fmt: skip
def test_what_no_kernel_takes_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Sm100Plan.derive(200, 96, 64, **{"config": one(64), **changes})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rows": np.arange(200, dtype=np.int32)}, r"rows\[50\] = 50: a has 50 rows, 0 to 49"),
        ({"rows": np.full(200, -1, np.int32)}, r"rows\[0\] = -1: a has 50 rows"),
        ({"rows": np.zeros(199, np.int32)}, r"rows is int32 of shape \(199,\): it takes int32 of \(200,\)"),
        ({"rows": np.zeros(200, np.int64)}, r"rows is int64 of shape \(200,\): it takes int32"),
        ({}, r"rows is missing: an index for each row of the product, 200 numbers"),
        ({"rows": np.zeros(200, np.int32), "out_rows": 1}, "given = out_rows: the plan reads rows"),
    ],
)
@pytest.mark.parametrize("epilogue", [None, Epilogue(Custom.of(lambda x, i, j, ops: x + 1.0))])
def test_vectors_that_do_not_fit_are_refused(epilogue: Epilogue | None, given: dict[str, Any], message: str) -> None:
    plan = plan_of("gather, short k tiles", epilogue=epilogue)
    a, b, _, _ = problem(plan)
    with pytest.raises(OperandError, match=message if epilogue is None or "given" not in message else "out_rows"):
        plan.run(a, b, given=given, device="emulator")


def test_a_row_of_c_with_two_sources_is_refused() -> None:
    plan = plan_of("scatter")
    a, b, given, _ = problem(plan)
    given["out_rows"][7] = given["out_rows"][2]
    with pytest.raises(OperandError, match=r"out_rows\[2\] and out_rows\[7\] are both \d+"):
        plan.run(a, b, given=given, device="reference")


def test_the_front_door_takes_indices_where_a_kernel_does() -> None:
    assert isinstance(planned(64, 64, 64, arch="sm_103a", indexed=GATHER), Sm100Plan)
    for given in ({"arch": "sm_120a"}, {"arch": "sm_80"}, {"config": Sm80Config()}):
        assert planned(64, 64, 64, indexed=GATHER, **given).gathers
