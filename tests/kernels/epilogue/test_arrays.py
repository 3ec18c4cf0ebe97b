"""A plan with an epilogue runs in the emulator on NumPy arrays: operands by name, outputs back, mistakes refused."""

from __future__ import annotations

import numpy as np
import pytest

from layoutgemm import Sm90Config, Sm90Plan
from layoutgemm.errors import OperandError
from layoutgemm.kernels.epilogue.arrays import Arrays
from layoutgemm.kernels.epilogue.chain import Amax, Aux, Bias, Custom, Epilogue, Residual, Scale
from layoutgemm.kernels.ragged import Ragged
from layoutgemm.kernels.sm90.mainloop import Promoted, Table
from tests import needs

M, N, K = 72, 44, 40
CONFIG = Sm90Config((64, 32), consumers=1, stages=2)
needs_dsl = needs.DSL


def integers(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


@needs_dsl
@pytest.mark.dsl
def test_a_plan_runs_with_its_epilogue() -> None:
    batch = 2
    square = Custom.of(lambda x, i, j, ops: ops.where(x > 0, x * x, 0.0))
    epilogue = Epilogue(Scale(), Residual("f32"), Bias(), Aux("bf16"), Amax(), square)
    plan = Sm90Plan.derive(M, N, K, batch=batch, b="bf16:col", c="f32", config=CONFIG, epilogue=epilogue)
    front = (batch,)
    a, b = integers((*front, M, K), 0), integers((*front, K, N), 1)
    given = {"alpha": 2.0, "beta": 0.5, "d": integers((*front, M, N), 2), "bias": integers((*front, N), 3)}
    result, expected = plan.run(a, b, given=given), epilogue.reference(a @ b, **given)
    assert result.ran_on == "emulator" and np.array_equal(result.c, expected.c)
    assert sorted(result.written) == ["amax", "aux"]
    for name, value in expected.written.items():
        assert np.array_equal(result.written[name], value), name


def test_operands_are_checked() -> None:
    epilogue = Epilogue(Scale(), Bias(), Aux())
    for given, text in (
        ({"alpha": 1.0}, "bias is missing"),
        ({"alpha": 1.0, "bias": np.ones(M)}, r"bias has shape \(72,\); the epilogue takes \(44,\)"),
        ({"alpha": 1.0, "bias": np.ones(N), "d": 1}, "d is no operand"),
        ({"alpha": np.ones(N), "bias": np.ones(N)}, "alpha is a number"),
        ({"alpha": 1.0, "bias": np.ones(N), "aux": np.ones((M, N))}, "aux is a result: of NumPy arrays, `written`"),
    ):
        with pytest.raises(OperandError, match=text):
            Arrays(epilogue, (M, N), given)


def test_a_write_behind_a_line_is_seen() -> None:
    arrays = Arrays(Epilogue(Aux("f32")), (4, 8), {})
    assert arrays.written()["aux"].shape == (4, 8)
    arrays.words[0][1, 8] = 0  # the array that stands for the address
    with pytest.raises(OperandError, match="aux: the kernel wrote behind its lines"):
        arrays.written()


def test_other_devices_are_refused() -> None:
    plan = Sm90Plan.derive(M, N, K, b="bf16:col", config=CONFIG, epilogue=Epilogue(Bias()))
    a, b = integers((M, K), 0), integers((K, N), 1)
    found = plan.run(a, b, given={"bias": np.arange(N)}, device="reference")
    assert found.ran_on == "NumPy" and np.array_equal(
        found.c, plan.c.dtype.decode(plan.c.dtype.encode(a @ b + np.arange(N)))
    )
    grouped = Sm90Plan.derive(M, N, K, b="bf16:col", config=CONFIG, batch=2, ragged=Ragged.of(2),
                              epilogue=Epilogue(Bias()))  # fmt: skip
    with pytest.raises(
        OperandError, match=r"beside offsets.*device=.cuda. or .emulator.; its reference is plan.epilogue.reference"
    ):
        grouped.run(a, np.stack([b, b]), given={"bias": np.ones(N), "offsets": [0, 3, M]}, device="reference")


@needs_dsl
@pytest.mark.dsl
def test_an_epilogue_beside_tables() -> None:
    loop = Promoted.of(lambda total, product, sa: total + sa * product, Table("sa", "m"))
    plan = Sm90Plan.derive(
        70, 40, 200, a="e4m3", b="e4m3:col", c="f32", config=CONFIG, mainloop=loop, epilogue=Epilogue(Bias())
    )  # fmt: skip
    a, b, bias, sa = integers((70, 200), 0), integers((200, 40), 1), integers((40,), 2), integers((70, 2), 3)
    result = plan.run(a, b, given={"bias": bias, "sa": sa}, device="emulator")
    assert np.array_equal(result.c, loop.reference(a, b, sa=sa) + bias)
    with pytest.raises(OperandError, match="sa is missing"):
        plan.run(a, b, given={"bias": bias})
