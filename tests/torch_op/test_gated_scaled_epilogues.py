"""scaled_matmul with a gate and an epilogue of one's own: values, the kernel in the emulator, a graph, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests import needs

torch = needs.module("torch")

from layoutgemm import explain_matmul, scaled_matmul
from layoutgemm.errors import LayoutError
from layoutgemm.kernels.epilogue.chain import Bias, Epilogue, RowReduce, Scale
from layoutgemm.torch_op.scaled_grouped.own_epilogue import ScaledFactors, behind_scales, checked, own_plan
from layoutgemm.torch_op.scaled_grouped.scaled import BiasActivation
from tests.torch_op.test_compiled_epilogue import compiled
from tests.torch_op.test_gated_scales import RECIPES, H, case, gated

STEPS = Epilogue(Bias("n", "f32", "before"), RowReduce("max"), Scale("alpha"), sums=1)
BEFORE = torch.linspace(-2.0, 2.0, 2 * H)


def product(scale_a: Any, given: dict[str, Any]) -> tuple[Any, Any]:
    largest = torch.zeros(scale_a.shape[:-1] if scale_a.ndim == 3 else 70)
    own = {"before": BEFORE, "row_max": largest, "alpha": 0.5}
    options = {"activation": "swiglu", "epilogue": STEPS, "given": own, "out_dtype": torch.float32}
    return scaled_matmul(**{**given, "scale_a": scale_a}, **options), largest


@pytest.mark.parametrize("name", RECIPES)
def test_steps_before_and_behind_the_gate(name: str) -> None:
    given, sums = case(name)
    want = gated(sums, bias=BEFORE.double())
    c, largest = product(given["scale_a"], given)
    assert (c - 0.5 * want).abs().max() <= 1e-6 * want.abs().max()
    assert (largest - want.amax(-1)).abs().max() <= 1e-6 * want.abs().max()


def test_a_graph_has_the_product() -> None:
    given, _ = case("rows")
    found = compiled(product, "eager")(given["scale_a"], given)
    assert all(torch.equal(x, y) for x, y in zip(found, product(given["scale_a"], given), strict=True))


@pytest.mark.dsl
def test_the_kernel_in_the_emulator() -> None:
    given, sums = case("1x128, 128x128")
    of, own = ScaledFactors(**given), {"before": BEFORE, "row_max": torch.zeros(70), "alpha": 0.5}
    made = checked(of, STEPS, own, (None, None), BiasActivation(None, "swiglu"), None, torch.float32, None)
    ranks = given["a"].ndim, given["b"].ndim
    whole, every = behind_scales(made.call.recipes, ranks, of.scales, made.steps, made.operands, gated=True)
    plan, _, _ = own_plan(made._replace(steps=whole), True, every, None)
    assert plan.check() and plan.epilogue.sums == len(whole.steps) - 2
    arrays = {"before": BEFORE.numpy(), "alpha": 0.5, **{name: x.numpy() for name, x in of.scales.items()}}
    a, b = of.a.float().numpy(), of.b.float().numpy()
    got = plan.run(a, b, given=arrays, device="emulator")
    want = gated(sums, bias=BEFORE.double()).numpy()
    assert np.abs(np.asarray(got.c) - 0.5 * want).max() <= 1e-6 * np.abs(want).max()
    assert np.abs(np.asarray(got.written["row_max"]) - want.max(-1)).max() <= 1e-6 * np.abs(want).max()


def test_the_explanation_names_the_gate() -> None:
    given, _ = case("rows")
    own = {"before": BEFORE, "row_max": torch.zeros(70), "alpha": 0.5}
    told = explain_matmul(**given, activation="swiglu", epilogue=STEPS, given=own)
    assert told.why.startswith("scales of rows, columns and tensors are the epilogue's, before the gate;")
    assert "gated by silu" in told.kernel


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"activation": None}, "sums = 1: the epilogue's first steps are before a gate, and there is none"),
        ({"activation": "relu"}, "activation and epilogue: one or the other"),
        ({"bias": BEFORE}, "bias and epilogue: one or the other"),
        ({"given": {"before": BEFORE[:H], "row_max": torch.zeros(70), "alpha": 1.0}}, "before has shape [88]"),
    ],
)  # fmt: skip
def test_refusals(more: dict[str, Any], message: str) -> None:
    operands, _ = case("rows")
    given = {"before": BEFORE, "row_max": torch.zeros(70), "alpha": 0.5}
    options = {"activation": "swiglu", "epilogue": STEPS, "given": given, **more}
    with pytest.raises(LayoutError) as found:
        scaled_matmul(**operands, **options)
    assert message in str(found.value)


def test_an_empty_k_has_a_gate_of_zeros() -> None:
    eight = torch.zeros(4, 0).to(torch.float8_e4m3fn)
    operands = {"a": eight, "scale_a": torch.ones(4, 1), "b": eight.T, "scale_b": torch.ones(1, 4)}
    steps, given = Epilogue(Bias("n"), sums=1), {"bias": torch.tensor([1.0, 2.0, 3.0, 4.0])}
    c = scaled_matmul(**operands, activation="swiglu", epilogue=steps, given=given, out_dtype=torch.float32)
    want = torch.nn.functional.silu(given["bias"][:2]) * given["bias"][2:]
    assert torch.allclose(c, want.expand(4, 2))


@pytest.mark.gpu
@pytest.mark.parametrize("name", RECIPES)
def test_on_a_gpu(name: str) -> None:
    given, sums = case(name)
    given = {name: x.cuda() for name, x in given.items()}
    largest = torch.zeros(70, device="cuda")
    own = {"before": BEFORE.cuda(), "row_max": largest, "alpha": 0.5}
    want = gated(sums, bias=BEFORE.double()).cuda()
    for _ in range(2):  # the second call is a kept one
        c = scaled_matmul(**given, activation="swiglu", epilogue=STEPS, given=own, out_dtype=torch.float32)
        assert bool(((c - 0.5 * want).abs() <= 1e-4 * want.abs() + 1e-3).all())
        assert bool(((largest - want.amax(-1)).abs() <= 1e-4 * want.amax(-1).abs() + 1e-3).all())
