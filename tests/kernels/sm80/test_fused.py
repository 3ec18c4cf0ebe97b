"""Epilogues and reductions in the mma.sync kernels: compiled and emulated, equal to NumPy's to the bit."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from layoutgemm.errors import OperandError, PlanError
from layoutgemm.kernels.compile.compiler import kernel_facts
from layoutgemm.kernels.compile.worker import Kernel, plan_of, received, sent
from layoutgemm.kernels.epilogue.chain import (
    Activation,
    Amax,
    Bias,
    ColumnReduce,
    Custom,
    Epilogue,
    EpilogueOperand,
    Quantize,
    RowReduce,
    Scale,
)
from layoutgemm.kernels.sm80.choose import Sm80Choice
from layoutgemm.kernels.sm80.fragment import WarpFragment
from layoutgemm.kernels.sm80.plan import Sm80Config, Sm80Plan
from tests import needs
from tests.kernels.epilogue.test_chain import EVERYTHING, numbers
from tests.kernels.epilogue.test_reductions import EVERYTHING as STATISTICS
from tests.kernels.epilogue.test_reductions import ONLY

SMALL = Sm80Config((64, 64), None, 3, (2, 2))
GROUPS = Epilogue(RowReduce("sum", "sums", each=32), RowReduce("argmax", "best", each=16, order="col"), Amax())
CAUSAL = Custom.of(lambda x, i, j, ops: ops.where(j <= i, x, -1.0))
COLUMNS = Epilogue(Bias(), CAUSAL, ColumnReduce("argmax", "best"), RowReduce("max"))


@dataclass(frozen=True)
class Form:
    """One kernel with an epilogue, of 70 x 102 x 72; `b` is of a's type where it has none."""

    epilogue: Epilogue
    config: Sm80Config = SMALL
    a: str = "bf16"
    b: str = "bf16:col"
    c: str = "f32"
    batch: int = 1
    arch: str = "sm_80"
    swapped: bool = False

    def plan(self) -> Sm80Plan:
        choice = Sm80Choice(self.config, self.arch, self.swapped)
        return choice.plan(70, 102, 72, batch=self.batch, a=self.a, b=self.b, c=self.c, epilogue=self.epilogue)


TMA = replace(SMALL, loads="tma", stmatrix=True)
ODD = replace(SMALL, align=(2, 2, 2), ahead=False, tile=(32, 64), warps=(1, 2))
FORMS = {
    "steps": Form(EVERYTHING),
    "steps, pairs, persistent": Form(EVERYTHING.in_pairs(), replace(SMALL, persistent=True), b="bf16", c="bf16"),
    "steps, a batch": Form(EVERYTHING, a="f16", b="f16", c="f16", batch=3),
    "steps, by tensor copies": Form(EVERYTHING.in_pairs(), TMA, c="bf16", batch=2, arch="sm_120a"),
    "steps, integers, both across K": Form(EVERYTHING, a="i8:col", b="i8", c="bf16"),
    "steps, tf32 across K": Form(EVERYTHING, a="tf32:col", b="tf32"),
    "steps, odd lines, transposed": Form(EVERYTHING, ODD, c="bf16:col", swapped=True),
    "reductions": Form(STATISTICS),
    "reductions, pairs, persistent": Form(STATISTICS.in_pairs(), replace(SMALL, persistent=True), c="bf16"),
    "reductions, a batch": Form(STATISTICS, a="f16:col", b="f16", c="f16", batch=3),
    "reductions, transposed": Form(COLUMNS, c="bf16:col", batch=2, swapped=True),
    "reductions of integers, both across K": Form(COLUMNS, a="i8:col", b="i8"),
    "reductions, no C": Form(ONLY, replace(SMALL, tile=(64, 128), warps=(1, 4))),
    "reductions, no C, by tensor copies": Form(ONLY, TMA, c="bf16", arch="sm_120a"),
    "groups of columns": Form(GROUPS, c="bf16"),
    "groups of columns of integers": Form(GROUPS, a="i8:col", b="i8"),
}
FIRST = {"steps", "steps, integers, both across K", "reductions", "reductions, no C"}


@needs.DSL
@needs.C_COMPILER
@pytest.mark.dsl
@pytest.mark.parametrize("form", [pytest.param(f, marks=[pytest.mark.slow] * (f not in FIRST)) for f in FORMS])
def test_a_kernel_equals_numpy(form: str) -> None:
    FORMS[form].plan().check().require()
    equals_numpy(FORMS[form], "emulator")


def equals_numpy(of: Form, device: str) -> None:
    """Run the form on integers: C and all that is written are NumPy's to the bit, but for exponentials."""
    plan, front = of.plan(), (of.batch,) if of.batch > 1 else ()
    m, n, k = 70, 102, 72
    a, b = numbers((*front, m, k), 1), numbers((*front, k, n), 2)
    values: dict[str, Any] = {
        "alpha": 0.5, "beta": 2.0, "d": numbers((*front, m, n), 3), "bias": numbers((*front, n), 4),
        "scale": numbers((*front, m), 5), "w": numbers((*front, n), 6),
    }  # fmt: skip
    given = {g.name: values[g.name] for g in of.epilogue.given if not g.written}
    want = of.epilogue.reference(a @ b, **given)
    operands = (b.swapaxes(-1, -2), a.swapaxes(-1, -2)) if of.swapped else (a, b)
    turned = {name: x.swapaxes(-1, -2) if of.swapped and name == "d" else x for name, x in given.items()}
    if plan.a.dtype.kind == "int":
        operands = tuple(x.astype(np.int8) for x in operands)
    result = plan.run(*operands, given=turned, device=device)
    if of.epilogue.stores_c:
        kind, found = plan.c.dtype, result.c.swapaxes(-1, -2) if of.swapped else result.c
        assert np.array_equal(found, kind.decode(kind.encode(np.asarray(want.c))))
    else:
        assert result.c is None
    assert set(result.written) == set(want.written)
    for name, value in want.written.items():
        matrix = of.epilogue.named_given(name).axes == "mn"
        found = result.written[name].swapaxes(-1, -2) if of.swapped and matrix else result.written[name]
        if "exp" in name:
            assert np.allclose(found, value, rtol=1e-5), name
        else:
            assert np.array_equal(found, np.reshape(value, found.shape)), name


def test_a_wrong_number_of_an_accumulator_is_seen() -> None:
    plan = Sm80Plan.derive(64, 64, 64, config=SMALL, epilogue=Epilogue(Bias()))
    low, high, *rest = plan.store.registers
    for wrong, said in (((high, low, *rest), "at another byte"), (((low[1], low[0]), high, *rest), "two neighbours")):
        report = replace(plan, store=replace(plan.store, registers=wrong)).check()
        assert not report and said in str(report)
    assert any(check.name == "epilogue" for check in plan.check())


@pytest.mark.parametrize(
    ("name", "wrong", "said"),
    [
        ("coords_C", lambda self, lane, v: (lane // 4 + 8 * (v // 16), 2 * (lane % 4) + v % 2), "has 8 values"),
        ("coords_C", lambda self, lane, v: (40 + lane, v), "value 0 lies outside of the warp's 32x32"),
        ("register", lambda self, v: v // 2, "values 0..31 are not the 32 accumulators, each once"),
    ],
)
def test_a_wrong_map_of_a_warp_is_seen(name: str, wrong: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Sm80Plan.derive(64, 64, 64, config=SMALL, epilogue=Epilogue(Bias()))
    monkeypatch.setattr(WarpFragment, name, wrong)
    (failure,) = plan.check().failures
    assert failure.name == "epilogue" and re.search(said, failure.witness)


def test_lanes_of_a_row_and_of_a_column_are_the_instructions() -> None:
    for a, b in (("bf16", "bf16:col"), ("i8:col", "i8"), ("tf32:col", "tf32")):
        plan = Sm80Plan.derive(64, 64, 64, a=a, b=b, c="f32", config=SMALL, epilogue=COLUMNS)
        found = [check.statement for check in plan.check().require() if check.name == "reductions"]
        rows = sum(partial.components for partial in plan.partials if partial.step.axes == "m")
        columns = sum(partial.components for partial in plan.partials if partial.step.axes == "n")
        assert plan.partial_bytes == 4 * (rows * 64 * 2 + columns * 64 * 2) == plan.workspace
        assert found == [
            f"lanes 4:1 hold a row, 8:4 hold a column; each element is combined once; partial results take "
            f"{plan.partial_bytes} bytes"
        ]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"epilogue": Epilogue(RowReduce("sum", each=64))}, "each = 64 columns, and a tile is stored 32 columns"),
        ({"epilogue": Epilogue(RowReduce("sum", each=8)), "a": "i8:col", "b": "i8", "c": "f32"}, "a multiple of 16"),
        ({"epilogue": Epilogue(Quantize(each=32))}, "Quantize gives e4m3, and c is bf16"),
        ({"epilogue": Epilogue(Quantize(each=32)), "c": "e4m3"}, "c is e4m3; of bf16 inputs this kernel stores f32"),
        ({"epilogue": Epilogue(Bias()), "a": "i8", "b": "i8"}, "c is i32, and an epilogue computes in f32"),
        ({"epilogue": Epilogue(Bias(), Scale(), sums=1)}, "before a gate, and there is none"),
        ({"epilogue": "relu"}, "it is made of steps"),
        ({"c": "f32", "a": "i8", "b": "i8"}, "c is f32; of i8 inputs this kernel stores i32"),
    ],
)
def test_refused_by_name(given: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        Sm80Plan.derive(64, 64, 64, config=SMALL, **given)


def test_the_epilogue_is_part_of_the_kernel() -> None:
    plans = [form.plan() for form in (FORMS["steps"], FORMS["reductions"])]
    assert kernel_facts(plans[0]) != kernel_facts(plans[1]) and "epilogue     Bias" in plans[0].explain()
    assert all(len(plan.parameters) == 14 + 16 for plan in plans) and plans[1].parameters["workspace"] == "word"
    kernel = Kernel(Sm80Choice(SMALL), ("bf16:row", "bf16:col", "f32:row"), False, Epilogue(Bias(), Activation("relu")))
    plan = plan_of(kernel)
    assert received(sent(plan)) == plan.for_any_size() and kernel.plan(64, 64, 64, 1).epilogue == kernel.epilogue
    a, b = np.ones((70, 72), np.float32), np.ones((72, 102), np.float32)
    with pytest.raises(PlanError, match="alpha is missing"):
        plans[0].run(a, b, device="reference")
    with pytest.raises(OperandError, match=r"which run\(\) executes on NumPy arrays with device='cuda' or 'emulator'"):
        plans[0].run(a, b, device="numpy")
    with pytest.raises(OperandError, match="bias has shape"):
        Sm80Plan.derive(70, 102, 72, config=SMALL, epilogue=Epilogue(Bias())).run(
            a, b, given={"bias": np.ones(70)}, device="emulator"
        )
    assert EpilogueOperand("w", "n", "f32").axes == "n"
