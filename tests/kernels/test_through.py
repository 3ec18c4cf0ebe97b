"""Numbers of A's rows, read through the row indices: vectors along M, and tables of a main loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from layoutgemm import plan
from layoutgemm.errors import OperandError, PlanError
from layoutgemm.kernels import IndexedRows, RowIndices, Sm90Config, Sm90Plan
from layoutgemm.kernels.epilogue.chain import Epilogue, Scale, VectorScale
from layoutgemm.kernels.ragged import Ragged
from layoutgemm.kernels.sm90.mainloop import Promoted, Table
from tests import needs

TWO = Sm90Config((128, 64), stages=3)


def through(copy: bool) -> IndexedRows:
    return IndexedRows(RowIndices(7), copy=copy, through=("sa",))


@pytest.mark.parametrize(
    "steps, options, message",
    [(Epilogue(), {}, "'sa': no number of a row that this kernel reads; known are none"),
     (Epilogue(VectorScale("n", name="sa")), {}, "'sa': no number of a row .* known are none"),
     (Epilogue(VectorScale("m", name="sa")), {"batch": 2}, "'sa': of a batch, and of groups, give a number for each"),
     (Epilogue(VectorScale("m", name="sa")), {"batch": 2, "ragged": Ragged.of(2)}, "'sa': of a batch, and of groups")],
)  # fmt: skip
def test_numbers_of_rows_that_no_kernel_reads_through_indices(
    steps: Epilogue, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(PlanError, match=message):
        Sm90Plan.derive(90, 40, 64, b="bf16:col", c="f32", epilogue=steps, indexed=through(True), **options)
    with pytest.raises(PlanError, match="numbers of A's rows are read where these are gathered"):
        IndexedRows(scatter=RowIndices(7), through=("sa",))
    with pytest.raises(PlanError, match=r"of_sum = 0: .* is none of the 0 steps before a gate"):
        Epilogue(VectorScale("m", of_sum=0))
    with pytest.raises(PlanError, match="alpha: of_sum = 2: 0 or 1, a gate's first or second sum; None for both"):
        Scale(of_sum=2)


def loop() -> Promoted:
    return Promoted.of(lambda t, x, sa, sb: t + sa * sb * x, Table("sa", "m"), Table("sb", "n", 128))


def tables(rows: int) -> dict[str, Any]:
    return {"sa": np.arange(1, 2 * rows + 1, dtype=np.float32).reshape(rows, 2), "sb": np.ones((1, 2), np.float32)}


def test_a_table_of_a_s_rows_is_that_of_the_chosen_rows() -> None:
    """By the NumPy executor. The plan's numbers are apart: no bulk copy brings those of neighbours."""
    rows, a = np.array([3, 0, 6, 6] * 16, np.int32), np.ones((7, 256), np.float32)
    options: dict[str, Any] = {"a": "e4m3", "b": "e4m3:col", "c": "f32", "mainloop": loop(), "config": TWO}
    plan = Sm90Plan.derive(64, 64, 256, indexed=through(True), **options)
    assert plan.numbers.part("sa").bulk_bytes == 0
    b, given = np.ones((256, 64), np.float32), tables(7)
    found = plan.run(a, b, given={**given, "rows": rows}, device="reference").c
    assert (found[:, 5] == 128 * given["sa"][rows].sum(-1)).all()
    with pytest.raises(OperandError, match=r"sa is float32 of shape .64, 2.: it takes float32 of shape .7, 2."):
        plan.run(a, b, given={**tables(64), "rows": rows}, device="reference")


@needs.DSL
@needs.C_COMPILER
@pytest.mark.dsl
@pytest.mark.slow
@pytest.mark.parametrize("arch, copy", [("ampere", False), ("hopper", False), ("hopper", True), ("blackwell", False)])
def test_a_vector_of_a_s_rows_is_that_of_the_chosen_rows(arch: str, copy: bool) -> None:
    """By the compiled kernel in the emulator."""
    found = plan(
        70,
        40,
        64,
        arch=arch,
        b="bf16:col",
        c="f32",
        epilogue=Epilogue(VectorScale("m", name="sa")),
        indexed=through(copy),
    )
    rows, scale = np.arange(70, dtype=np.int32) * 3 % 7, np.arange(1.0, 8.0, dtype=np.float32)
    result = found.run(np.ones((7, 64), np.float32), np.ones((64, 40), np.float32), given={"sa": scale, "rows": rows})
    assert (result.c == 64 * scale[rows][:, None]).all()
    with pytest.raises(OperandError, match=r"sa has shape .70,.; the epilogue takes .7,."):
        found.run(np.ones((7, 64), np.float32), np.ones((64, 40), np.float32), given={"sa": np.ones(70), "rows": rows})
