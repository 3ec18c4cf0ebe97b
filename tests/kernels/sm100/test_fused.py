"""Epilogues of the Hopper kernel in the Blackwell kernel: compiled and emulated, equal to NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from layoutgemm.errors import OperandError, PlanError
from layoutgemm.kernels.compile.compiler import kernel_facts
from layoutgemm.kernels.epilogue.chain import Activation, Amax, Aux, Bias, Clamp, Epilogue, Quantize, RowReduce, Scale
from layoutgemm.kernels.partials import exchanges_of, lanes_of
from layoutgemm.kernels.sm100.plan import Sm100Config, Sm100Plan
from tests import needs
from tests.kernels.epilogue.test_chain import EVERYTHING, emulate, numbers
from tests.kernels.epilogue.test_reductions import EVERYTHING as STATISTICS
from tests.kernels.epilogue.test_reductions import ONLY
from tests.kernels.sm80.test_fused import GROUPS
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


REDUCED: dict[str, tuple[Sm100Config, str, int, Epilogue]] = {
    "without C": (one(48, overlap=True), "bf16", 1, ONLY),
    "rows and columns": (one(32), "f32", 1, STATISTICS),
    "a pair, pairs": (pair(64), "bf16", 1, STATISTICS.in_pairs()),
    "a batch, columns of C, unlike chunks": (one(112, width=64), "bf16:col", 2, STATISTICS),
    "groups of columns, two chunks a round": (one(96, chunks=2), "bf16", 1, GROUPS),
}
QUANTIZED = {
    "one chunk": (one(64), 32, "e4m3:row"),
    "groups of several chunks, a pair": (pair(128, width=32), 128, "e5m2:row"),
    "columns": (one(112, width=64), 56, "e4m3:col"),
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


def first(forms: Any) -> list[Any]:
    return [pytest.param(form, marks=[pytest.mark.slow] * (form != next(iter(forms)))) for form in forms]


@pytest.mark.parametrize("form", first(REDUCED))
def test_reductions_equal_numpys(form: str) -> None:
    config, c, batch, epilogue = REDUCED[form]
    m, n, k = 140, 102 if epilogue.stores_c else 70, 72
    plan = Sm100Plan.derive(m, n, k, batch=batch, b="bf16:col", c=c, config=config, epilogue=epilogue)
    plan.check().require()
    front = (batch,) if batch > 1 else ()
    a, b = numbers((*front, m, k), 1), numbers((*front, k, n), 2)
    given = {"bias": numbers((*front, n), 3)} if "bias" in epilogue.words else {}
    want = epilogue.reference(a @ b, **given)
    result = plan.run(a, b, given=given, device="emulator")
    if epilogue.stores_c:
        assert np.array_equal(result.c, plan.c.dtype.decode(plan.c.dtype.encode(np.asarray(want.c))))
    else:
        assert result.c is None
    assert set(result.written) == set(want.written)
    for name, value in want.written.items():
        if "exp" in name:
            assert np.allclose(result.written[name], value, rtol=1e-5), name
        else:
            assert np.array_equal(result.written[name], value), name


@pytest.mark.parametrize("form", first(QUANTIZED))
def test_values_quantised_to_the_bit(form: str) -> None:
    config, each, c = QUANTIZED[form]
    m, n, k = 140, 136, 72
    kind = c.partition(":")[0]
    epilogue = Epilogue(Bias(), Quantize(each=each, dtype=kind))
    plan = Sm100Plan.derive(m, n, k, b="bf16:col", c=c, config=config, epilogue=epilogue)
    plan.check().require()
    a, b, bias = numbers((m, k), 1), numbers((k, n), 2), numbers(n, 3) / 7
    result, want = plan.run(a, b, given={"bias": bias}, device="emulator"), epilogue.reference(a @ b, bias=bias)
    assert np.array_equal(result.written["scales"], want.written["scales"])
    assert np.array_equal(result.c, plan.c.dtype.decode(plan.c.dtype.encode(np.asarray(want.c))))
    assert result.written["scales"].shape == (m, -(-n // each))


def test_a_lane_holds_a_row_and_all_lanes_a_column(monkeypatch: pytest.MonkeyPatch) -> None:
    config, c, _, epilogue = REDUCED["rows and columns"]
    plan = Sm100Plan.derive(140, 102, 72, b="bf16:col", c=c, config=config, epilogue=epilogue)
    assert [str(lanes_of(plan.fragment, axis)) for axis in "mn"] == ["1:0", "32:1"]
    assert [exchanges_of(plan.fragment, axis) for axis in "mn"] == [(), (1, 2, 4, 8, 16)]
    assert plan.workspace == sum(4 * p.components * np.prod(p.extents(140, 102, 1)) for p in plan.partials)
    monkeypatch.setattr("layoutgemm.kernels.partials.exchanges_of", lambda mma, axis: (1,))
    wrong = next(check for check in plan.check() if check.name == "reductions")
    assert not wrong and "value 0 of lanes 0 and 1 is of 0 and 1" in wrong.witness


@pytest.mark.parametrize(
    ("epilogue", "c", "said"),
    [
        (Epilogue(RowReduce("sum", each=48)), "bf16", "each = 48 columns, and a tile is stored 64 columns at a time"),
        (Epilogue(Quantize(each=64)), "bf16", "Quantize gives e4m3, and c is bf16"),
    ],
)
def test_refused_by_name(epilogue: Epilogue, c: str, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        Sm100Plan.derive(64, 64, 64, b="bf16:col", c=c, config=one(64), epilogue=epilogue)


def test_the_epilogue_is_part_of_the_kernel() -> None:
    plan = derive("a linear layer, a pair")
    assert plan.check() and kernel_facts(plan) != kernel_facts(derive("everything"))
    assert len(plan.parameters) == 14 + 16 and plan.parameters["bias"] == "word"
    a, b = np.ones((140, 72), np.float32), np.ones((72, 102), np.float32)
    with pytest.raises(PlanError, match="the epilogue takes bias: bias is missing"):
        plan.run(a, b, device="reference")
    with pytest.raises(OperandError, match=r"epilogue \(bias, aux, amax\), which run\(\) executes on NumPy arrays"):
        plan.run(a, b, device="numpy")
