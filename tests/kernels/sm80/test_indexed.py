"""Indexed rows in the mma.sync kernels: A's rows by cp.async, C's rows by the lanes that store them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from layoutgemm import plan as planned
from layoutgemm.errors import OperandError, PlanError
from layoutgemm.kernels import IndexedRows, RowIndices, Sm80Config, Sm80Plan
from layoutgemm.kernels.epilogue.chain import Bias, Epilogue, RowReduce, VectorScale
from layoutgemm.kernels.run.emulated import emulate_launch
from layoutgemm.kernels.run.epilogue_operands import words_read
from tests import needs
from tests.kernels.indexed_problem import is_exact, problem

needs_dsl = needs.DSL
SMALL = Sm80Config((64, 64), warps=(2, 2))
# architecture; M, N, K; A, B, C; configuration; (rows of A, type of indices), (rows of C, type of indices); more
FORMS: dict[str, tuple[Any, ...]] = {
    "both": (
        "sm_80",
        (70, 41, 100),
        ("bf16", "bf16:col", "f32"),
        replace(SMALL, align=(8, 16, 4)),
        (50, "i64"),
        (200, "i32"),
        {},
    ),
    "a batch, single elements": (
        "sm_86",
        (70, 41, 99),
        ("f16", "f16", "f16"),
        replace(SMALL, align=(2, 2, 2)),
        (50, "i32"),
        (90, "i64"),
        {"batch": 3},
    ),
    "persistent": (
        "sm_90a",
        (200, 96, 64),
        ("bf16", "bf16:col", "bf16"),
        replace(SMALL, persistent=True),
        (50, "i32"),
        (201, "i32"),
        {},
    ),
    "integers": (
        "sm_80",
        (70, 41, 96),
        ("i8", "i8:col", "i32"),
        replace(SMALL, align=(16, 16, 4)),
        (9, "i32"),
        None,
        {},
    ),
    "tf32, some tiles": (
        "sm_80",
        (136, 100, 72),
        ("tf32", "tf32:col", "f32"),
        SMALL,
        (50, "i32"),
        (140, "i32"),
        {"order": "lower"},
    ),
    "scatter behind TMA, a batch": (
        "sm_120a",
        (70, 40, 104),
        ("bf16", "bf16:col", "f32"),
        replace(SMALL, loads="tma"),
        None,
        (200, "i64"),
        {"batch": 2},
    ),
    "fp8, by stmatrix": (
        "sm_120a",
        (70, 40, 96),
        ("e4m3", "e4m3:col", "bf16"),
        replace(SMALL, stmatrix=True),
        (50, "i32"),
        (70, "i32"),
        {},
    ),
}
FAST = ("both", "scatter behind TMA, a batch", "persistent")


def plan_of(form: str, **more: Any) -> Sm80Plan:
    arch, (m, n, k), (a, b, c), config, gather, scatter, others = FORMS[form]
    indexed = IndexedRows(*[None if part is None else RowIndices(*part) for part in (gather, scatter)])
    return Sm80Plan.derive(m, n, k, arch=arch, a=a, b=b, c=c, config=config, indexed=indexed, **others, **more)


DEVICES = ["reference", pytest.param("emulator", marks=[needs_dsl, pytest.mark.dsl])]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("form", [pytest.param(form, marks=[pytest.mark.slow] * (form not in FAST)) for form in FORMS])
def test_rows_are_gathered_and_scattered(form: str, device: str) -> None:
    plan = plan_of(form)
    plan.check().require()
    assert f"indexed      {plan.indexed};" in plan.explain()
    assert is_exact(plan, device)


@needs_dsl
@pytest.mark.dsl
def test_indices_outside_read_zeros_and_write_nothing() -> None:
    """As on a GPU: no access beyond the arrays, and no other row is touched. 2**32 + 1 is no row 1."""
    plan = plan_of("both")
    a, b, given, want = problem(plan)
    rows, out_rows = given["rows"].copy(), given["out_rows"].copy()
    rows[[3, 20, 33, 69]] = -1, plan.rows_of_a, 2**32 + 1, -(2**63)
    out_rows[[4, 5, 6, 40]] = -(2**31), -1, plan.rows_of_c, 2**31 - 1
    bits = plan.a.dtype.encode(a), plan.b.dtype.encode(np.ascontiguousarray(b.T))
    c = np.full((plan.rows_of_c, plan.n), 0x7777, np.uint32)
    bits = bits[0], np.pad(bits[1], ((0, 0), (0, 4)))  # lines of B at multiples of 16 bytes
    sizes = plan.m, plan.n, plan.k, 1, plan.k, plan.k + 4, plan.n, 0, 0, 0, 1
    words = words_read(plan, {"rows": rows, "out_rows": out_rows})
    done = emulate_launch(plan, (*bits, c, *sizes, *words), progress=False)
    assert not done.findings, done.report()
    wanted = np.full_like(c, 0x7777)
    wanted[given["out_rows"]] = plan.c.dtype.encode(want)[given["out_rows"]]
    wanted[given["out_rows"][[3, 20, 33, 69]]] = 0
    wanted[given["out_rows"][[4, 5, 6, 40]]] = 0x7777
    assert np.array_equal(c, wanted)


@needs_dsl
@pytest.mark.dsl
def test_an_epilogues_vectors_and_results_are_of_the_products_rows() -> None:
    steps = Epilogue(Bias(), VectorScale("m", "f32", "w"), RowReduce("max", "top"))
    plan = plan_of("both", epilogue=steps)
    a, b, given, _ = problem(plan)
    rng = np.random.default_rng(1)
    own = {
        "bias": rng.integers(-2, 3, plan.n).astype(np.float32),
        "w": np.exp2(np.arange(plan.m) % 3).astype(np.float32),
    }
    done = plan.run(a, b, given={**given, **own}, device="emulator")
    product = (a[given["rows"]] @ b + own["bias"]) * own["w"][:, None]
    assert np.array_equal(done.c[given["out_rows"]], product) and np.array_equal(
        done.written["top"], product.max(axis=1)
    )


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_120a"])
@pytest.mark.parametrize("size", [64, 8192])
def test_the_rule_takes_a_kernel_that_gathers(arch: str, size: int) -> None:
    made = planned(
        size, size, 512, arch=arch, b="bf16:col", batch=2, indexed=IndexedRows(RowIndices(9), RowIndices(9000))
    )
    assert made.check() and made.config.loads == "cp.async" and made.words == ("rows", "a_rows", "out_rows", "c_rows")
    scatters = planned(size, size, 512, arch=arch, b="bf16:col", indexed=IndexedRows(scatter=RowIndices(9000)))
    plain = planned(size, size, 512, arch=arch, b="bf16:col")
    assert scatters.config == plain.config


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rows": np.arange(140)}, r"rows\[50\] = 50: a has 50 rows"),
        (
            {"out_rows": np.array([*range(70), *range(69), 0])},
            r"out_rows\[70\] and out_rows\[139\] are both 0: a row of",
        ),
        ({"rows": np.zeros(70, np.int64)}, r"rows is int64 of shape \(70,\): it takes int64 of \(140,\)"),
        ({"rows": None}, "rows is missing: an index for each row of the product, 140 numbers"),
    ],
)
def test_vectors_that_do_not_fit_are_refused(given: dict[str, Any], message: str) -> None:
    indexed = IndexedRows(RowIndices(50, "i64"), RowIndices(80, "i64"))
    plan = Sm80Plan.derive(70, 40, 64, batch=2, b="bf16:col", c="f32", config=SMALL, indexed=indexed)
    right = {"rows": np.zeros(140, np.int64), "out_rows": np.array([*range(70), *range(70)])}
    operands = np.ones((2, 50, 64), np.float32), np.ones((2, 64, 40), np.float32)
    plan.run(*operands, given=right, device="reference")
    with pytest.raises(OperandError, match=message):
        plan.run(*operands, given={**right, **given}, device="reference")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"a": "bf16:col"}, "a is bf16 col-major: gathered rows are contiguous, a 'row' A"),
        ({"indexed": IndexedRows(RowIndices(5), copy=True)}, "this kernel gathers rows as it copies them"),
        ({"config": replace(SMALL, loads="tma"), "arch": "sm_120a"}, "rows of A are gathered by cp.async"),
        ({"order": "symmetric"}, "stores no transposed tile"),
        ({"indexed": 3}, "must be an IndexedRows or None, not 3"),
    ],
)
def test_a_product_without_a_kernel_is_refused(changes: dict[str, Any], message: str) -> None:
    asked = {"b": "bf16:col", "config": SMALL, "indexed": IndexedRows(RowIndices(5)), **changes}
    with pytest.raises(PlanError, match=message):
        Sm80Plan.derive(64, 64, 64, **asked)
