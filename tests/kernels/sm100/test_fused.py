"""Epilogues of the Hopper kernel in the Blackwell kernel: compiled and emulated, equal to NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from layoutgemm.errors import OperandError
from layoutgemm.kernels.compile.compiler import kernel_facts
from layoutgemm.kernels.epilogue.chain import Activation, Amax, Aux, Bias, Clamp, Epilogue, Scale
from layoutgemm.kernels.sm100.plan import Sm100Config, Sm100Plan
from tests import needs
from tests.kernels.epilogue.test_chain import EVERYTHING, emulate, numbers
from tests.kernels.sm100.table import one, pair

pytestmark = [
    pytest.mark.dsl,
    needs.DSL,
]
LINEAR = Epilogue(Bias(), Aux("bf16"), Activation("relu"), Amax())
FORMS: dict[str, tuple[Sm100Config, str, int, Epilogue]] = {
    "a linear layer, a pair": (pair(64), "bf16", 1, LINEAR.in_pairs()),
    "everything": (one(64), "f32", 1, EVERYTHING),
    "everything, a pair, columns, a batch": (pair(64), "bf16:col", 2, EVERYTHING),
    "fp8": (one(48), "e4m3", 1, Epilogue(Scale("c_scale", device=True), Clamp(-448, 448))),
}


def derive(form: str) -> Sm100Plan:
    config, c, batch, epilogue = FORMS[form]
    return Sm100Plan.derive(140, 102, 72, batch=batch, b="bf16:col", c=c, config=config, epilogue=epilogue)


@pytest.mark.parametrize("form", [pytest.param(f, marks=[pytest.mark.slow] * (f != next(iter(FORMS)))) for f in FORMS])
def test_a_kernel_equals_numpy(form: str) -> None:
    plan = derive(form)
    front = (plan.batch,) if plan.batch > 1 else ()
    m, n, k = plan.m, plan.n, plan.k
    a, b = numbers((*front, m, k), 1), numbers((*front, k, n), 2)
    values: dict[str, Any] = {
        "alpha": 0.5, "beta": 2.0, "d": numbers((*front, m, n), 3), "bias": numbers((*front, n), 4),
        "scale": numbers((*front, m), 5), "w": numbers((*front, n), 6), "c_scale": np.float32(0.25),
    }  # fmt: skip
    given = {g.name: values[g.name] for g in plan.epilogue.given if not g.written}
    expected = plan.epilogue.reference(a @ b, **given)
    found, written = emulate(plan, values, a @ b, (a, b))
    kind = plan.c.dtype
    assert np.array_equal(found, kind.decode(kind.encode(np.asarray(expected.c))))
    for name, value in expected.written.items():
        given_type = plan.epilogue.named_given(name).dtype
        want = given_type.decode(given_type.encode(np.asarray(value, np.float32)))
        assert np.array_equal(np.squeeze(written[name]), np.squeeze(want)), name


def test_the_epilogue_is_part_of_the_kernel() -> None:
    plan = derive("a linear layer, a pair")
    assert plan.check() and kernel_facts(plan) != kernel_facts(derive("everything"))
    assert len(plan.parameters) == 14 + 16 and plan.parameters["bias"] == "word"
    a, b = np.ones((140, 72), np.float32), np.ones((72, 102), np.float32)
    with pytest.raises(OperandError, match=r"epilogue \(bias, aux, amax\), which run\(\) executes on NumPy arrays"):
        plan.run(a, b, device="reference")
