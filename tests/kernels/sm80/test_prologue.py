"""Functions of A by mma.sync: the executor and the emulated kernel, equal to NumPy's product of f(A) to the bit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from layoutgemm import plan
from layoutgemm.errors import OperandError, PlanError
from layoutgemm.kernels import IndexedRows, Prologue, RowIndices
from layoutgemm.kernels.epilogue.chain import Bias, Epilogue, RowReduce
from layoutgemm.kernels.sm80.plan import Sm80Config, Sm80Plan
from tests import needs

SMALL = Sm80Config((64, 64), None, 3, (2, 2))
# A number of each row and column, coordinates, and a value that zeros behind K would not give.
NORM = Prologue.of(lambda x, i, k, ops, rstd, w: x * rstd * w + ops.where(k > i, 1.0, 0.5), rstd="m", w="k:bf16")
RELU = Prologue.of(lambda x, i, k, ops: ops.maximum(x, 0.0) + 1.0)
M, N, K = 70, 72, 104


@dataclass(frozen=True)
class Form:
    prologue: Prologue = NORM
    a: str = "bf16"
    b: str = "bf16:col"
    config: Sm80Config = SMALL
    batch: int = 1
    arch: str = "sm_80"
    gated: str | None = None
    epilogue: Epilogue | None = None

    def plan(self, **more: Any) -> Sm80Plan:
        return Sm80Plan.derive(
            M, N, K, arch=self.arch, a=self.a, b=self.b, c="f32", config=self.config, batch=self.batch,
            gated=self.gated, epilogue=self.epilogue, prologue=self.prologue, **more,
        )  # fmt: skip


FORMS = {
    "rows and columns": Form(),
    "alone": Form(RELU, b="bf16"),
    "across K": Form(a="bf16:col", b="bf16"),
    "fragments as they are multiplied": Form(a="f16", b="f16:col", config=replace(SMALL, ahead=False)),
    "a batch": Form(batch=2),
    "odd lines": Form(config=replace(SMALL, align=(2, 2, 4))),
    "8 bits": Form(RELU, a="e4m3", b="e4m3:col", arch="sm_89"),
    "8 bits across K, whose rows are loaded in another order": Form(a="e4m3:col", b="e5m2", arch="sm_89"),
    "a gate": Form(gated="relu"),
    "Blackwell": Form(arch="sm_120a"),
    "an epilogue": Form(epilogue=Epilogue(Bias(), RowReduce("max", "most"))),
}


def equals_numpy(form: Form, device: str) -> None:
    made, rng = form.plan(), np.random.default_rng(0)
    made.check().require()
    front = (form.batch,) if form.batch > 1 else ()
    a, b, rstd, w, bias = (
        rng.integers(-3, 4, shape).astype(np.float32)
        for shape in ((*front, M, K), (*front, K, N * made.halves), (*front, M), (*front, K), (N,))
    )
    given = {name: x for name, x in (("rstd", rstd / 2), ("w", w)) if name in form.prologue.names}
    of_a = made.a.dtype.decode(made.a.dtype.encode(form.prologue.reference(a, given))).astype(np.float64)
    want, written = of_a @ b, {}
    if form.gated is not None:
        want = np.maximum(want[:, :N], 0) * want[:, N:]
    if form.epilogue is not None:
        found = form.epilogue.reference(want.astype(np.float32), bias=bias)
        want, written, given = found.c, found.written, {**given, "bias": bias}
    result = made.run(a, b, given=given or None, device=device)
    assert np.array_equal(result.c, want)
    for name, value in written.items():
        assert np.array_equal(result.written[name], value)


@pytest.mark.parametrize("name", [name for name in FORMS if FORMS[name].epilogue is None])
def test_the_executor_equals_numpy(name: str) -> None:
    equals_numpy(FORMS[name], "reference")


@needs.DSL
@needs.C_COMPILER
@pytest.mark.dsl
@pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=[pytest.mark.slow] * (x != "rows and columns" and "across K," not in x)) for x in FORMS],
)
def test_the_kernel_equals_numpy(name: str) -> None:
    equals_numpy(FORMS[name], "emulator")


def test_explain_counts_the_warps_that_compute_an_element() -> None:
    made = plan(4096, 4096, 4096, arch="ampere", b="bf16:col", prologue=NORM)
    assert (
        "32 time(s) for each element: once for each tile of 256 columns, by each of 2 warps along N" in made.explain()
    )
    assert (made.config.persistent, made.config.loads) == (False, "cp.async")


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"indexed": IndexedRows(RowIndices(M))}, "prologue and indexed: by mma.sync a function is of one A"),
        ({"pair": 16}, "prologue and pair"),
        ({"a": "tf32", "b": "tf32"}, "a is tf32: a prologue is of bf16, f16, e4m3, e5m2"),
        ({"config": replace(SMALL, persistent=True)}, "a prologue takes a block for each tile"),
        ({"arch": "sm_120a", "config": replace(SMALL, loads="tma")}, "fed by cp.async"),
    ],
)
def test_other_parts_are_refused(more: dict[str, Any], text: str) -> None:
    asked = {"a": "bf16", "b": "bf16:col", "c": "f32", "config": SMALL, **more}
    with pytest.raises(PlanError, match=text):
        Sm80Plan.derive(M, N, K, prologue=NORM, **asked)


def test_a_vector_that_is_missing_is_named() -> None:
    with pytest.raises(OperandError, match="w is missing: the prologue reads rstd, w"):
        Form().plan().run(np.zeros((M, K), np.float32), np.zeros((K, N), np.float32), given={"rstd": np.ones(M)})
