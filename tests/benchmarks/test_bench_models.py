"""The benchmark of whole models: its layers, its bound, and a dry run of tiny models on the CPU."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from benchmarks import bench_models
from benchmarks.bench_models import Figure, Step, experts_forward, figures, with_our_layers
from layoutgemm.nn import DenseLinear

TRAIN = Step("train", 3, 7, True)


def experts(count: int = 4, hidden: int = 16, inner: int = 24) -> Any:
    torch.manual_seed(0)
    made = torch.nn.Module()
    made.num_experts, made.act_fn = count, torch.nn.functional.silu
    made.gate_up_proj = torch.nn.Parameter(torch.randn(count, 2 * inner, hidden).div(4).bfloat16())
    made.down_proj = torch.nn.Parameter(torch.randn(count, hidden, inner).div(4).bfloat16())
    return made


def test_experts_are_the_sum_of_their_products() -> None:
    """Also where an expert has no token."""
    layer = experts()
    x = torch.randn(9, 16).bfloat16()
    chosen = torch.tensor([[0, 3], [3, 1]])[torch.randint(0, 2, (9,))]
    weights = torch.rand(9, 2).bfloat16()
    got = experts_forward(layer, x, chosen, weights)
    for row in range(9):
        want = torch.zeros(16, dtype=torch.float64)
        for e, weight in zip(chosen[row], weights[row].double()):
            gate, up = (layer.gate_up_proj[e].double() @ x[row].double()).chunk(2)
            want += weight * (layer.down_proj[e].double() @ (torch.nn.functional.silu(gate) * up))
        assert torch.allclose(got[row].double(), want, rtol=2**-5, atol=2**-5)


def test_the_host_reads_no_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call on the way of a tensor of indices keeps it a tensor."""
    layer = experts()
    with torch._subclasses.FakeTensorMode() as mode:  # where a value cannot be read
        fake = SimpleNamespace(
            num_experts=4, act_fn=torch.nn.functional.silu,
            **{name: mode.from_tensor(x) for name, x in layer.named_parameters()},
        )  # fmt: skip
        chosen = torch.zeros(9, 2, dtype=torch.int64)
        out = experts_forward(fake, torch.zeros(9, 16).bfloat16(), chosen, torch.zeros(9, 2).bfloat16())
        assert out.shape == (9, 16)


def test_layers_are_replaced() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(16, 8).bfloat16(), torch.nn.ReLU(), experts())
    x = torch.randn(5, 16).bfloat16()
    before = model[0](x)
    assert with_our_layers(model) == 2
    assert type(model[0]) is DenseLinear and type(model[2]).__name__ == "OurModule" and type(model[1]) is torch.nn.ReLU
    assert torch.allclose(model[0](x), before, rtol=2**-6, atol=2**-7)


def test_a_result_beyond_the_bound_is_wrong() -> None:
    def figure(off: float, torch_off: float) -> Figure:
        return Figure("llama", "odd", "3x77", "eager", 2.0, 1.0, off, torch_off)

    assert figure(0.0148, 0.0073).right and not figure(0.0148, 0.0072).right and not figure(float("nan"), 0.0).right
    assert figure(1.0, 0.0).line().endswith("WRONG") and figure(0.0, 0.0).ratio == 2.0
    assert len({len(figure(0.01, x).line()) for x in (0.01, 0.9)}) == 1
    assert bench_models.distance([torch.ones(2)], []) == float("inf")


def test_without_transformers_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert bench_models.main(["--tiny"]) == 2
    assert capsys.readouterr().err == "transformers is not installed: pip install 'layoutgemm[bench-models]'\n"


@pytest.mark.parametrize("name", bench_models.MODELS)
def test_tiny_models(name: str) -> None:
    """Logits and gradients on the CPU, of an odd batch."""
    needs.module("transformers")
    lines: list[str] = []
    found = figures(name, (Step("odd", 3, 7), TRAIN), ("eager",), True, 1, "cpu", "aot_eager", lines.append)
    assert all(figure.right and figure.off > 0 and figure.ratio > 0 for figure in found) and len(lines) == 2


@pytest.mark.slow
def test_the_dry_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every step and mode that a CPU has, as the command runs them."""
    needs.module("transformers")
    assert bench_models.main(["--tiny", "--rounds", "1", "--json", str(tmp_path / "models.json")]) == 0
    record = json.loads((tmp_path / "models.json").read_text())
    rows = {(row["model"], row["step"], row["mode"]) for row in record["figures"]}
    steps = {step.name for step in bench_models.TINY_STEPS}
    modes = bench_models.MODES if torch.cuda.is_available() else ("eager", "compiled")
    assert rows == {(name, step, mode) for name in bench_models.MODELS for step in steps for mode in modes}
    assert "least: " in capsys.readouterr().out
