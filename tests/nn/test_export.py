"""Exported models: saved, loaded, and compiled ahead of time; each equal to the model, in a new process too."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from layoutgemm import fp8_grouped_matmul, grouped_matmul, matmul, scaled_matmul
from layoutgemm.nn import DenseLinear, GatedMLP, MasterLinear, QuantizedLinear, ScaledLinear
from layoutgemm.torch_op.quantized import QuantizedExperts, quantized_grouped_matmul

BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn
ROOT = Path(__file__).resolve().parents[2]


def normal(*shape: int) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(BF16)


def layer(n: int = 64) -> Any:
    torch.manual_seed(n)
    return torch.nn.Linear(128, n, dtype=BF16)


class Call(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: Any) -> Any:
        return self.function(*given)


X, ENDS = normal(4, 128), torch.tensor([1, 1, 4], dtype=torch.int32)
EXPERTS = QuantizedExperts.of([QuantizedLinear.from_linear(layer()).weight] * 2)
MODELS: dict[str, tuple[Callable[[], Any], tuple[Any, ...]]] = {
    "matmul": (lambda: Call(matmul), (X, normal(128, 64))),
    "an output": (lambda: Call(lambda a, b, out: matmul(a, b, out=out)), (X, normal(128, 64), normal(4, 64))),
    "a gate": (lambda: Call(lambda a, b: matmul(a, b, activation="swiglu")), (X, normal(128, 64))),
    "groups": (lambda: Call(lambda a, b, ends: grouped_matmul(a, b, offs=ends)), (X, normal(3, 128, 64), ENDS)),
    "rows": (lambda: Call(lambda a, b, rows: matmul(a, b, rows=rows)), (X, normal(128, 64), torch.tensor([3, 0]))),
    "scales": (
        lambda: Call(lambda a, s, b: scaled_matmul(a, s, b, out_dtype=E4M3, out_recipe="BlockWise1x128")[0].float()),
        (X.to(E4M3), torch.ones(4, 1), normal(128, 128).to(E4M3).mT),
    ),
    "packed experts": (
        lambda: Call(lambda x, offsets: quantized_grouped_matmul(x, EXPERTS, offsets)), (X, torch.tensor([0, 1, 4])),
    ),
    "dense layer": (lambda: DenseLinear.of(layer(), activation="gelu"), (X,)),
    "float8 layer": (lambda: ScaledLinear.of(layer()), (X,)),
    "master layer": (lambda: MasterLinear.of(layer()), (X,)),
    "packed layer": (lambda: QuantizedLinear.from_linear(layer()), (X,)),
    "gated layers": (lambda: GatedMLP.of(layer(128), layer(128), layer(128), "swiglu"), (X,)),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_an_exported_model_is_saved_and_loaded(name: str) -> None:
    make, given = MODELS[name]
    model = make().eval()
    with torch.no_grad():
        want = model(*given)
        for strict in (False, True):
            exported = torch.export.export(model, given, strict=strict)
            file = io.BytesIO()
            torch.export.save(exported, file)
            file.seek(0)
            assert torch.equal(torch.export.load(file).module()(*given), want)
        left = {str(node.target) for node in exported.run_decompositions().graph.nodes if "layoutgemm" in str(node)}
    assert not {target for target in left if "check" in target or "refuse" in target}


TRAINED: dict[str, tuple[Callable[[], Any], tuple[Any, ...]]] = {
    "dense layer": MODELS["dense layer"],
    "master layer": MODELS["master layer"],
    "gated master layers": (
        lambda: GatedMLP.of(layer(128), layer(128), layer(128), "swiglu", weights="master"), (X,),
    ),
    "float8 groups": (
        lambda: Call(lambda a, b: fp8_grouped_matmul(a, b, offs=ENDS)), (X, normal(3, 128, 64).requires_grad_()),
    ),
}  # fmt: skip


@pytest.mark.parametrize("strict", [False, True], ids=["traced", "strict"])
@pytest.mark.parametrize("name", TRAINED)
def test_an_exported_model_has_the_models_gradients(name: str, strict: bool) -> None:
    make, (x, *others) = TRAINED[name]
    model = make()
    file = io.BytesIO()
    torch.export.save(torch.export.export(model, (x, *others), strict=strict), file)
    file.seek(0)
    program, found = torch.export.load(file).module(), []
    for called in (model, program):
        of_x = x.clone().requires_grad_()
        wanted = [of_x, *others, *called.parameters()]
        found.append(torch.autograd.grad(called(of_x, *others).float().square().sum(), wanted))
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(*found, strict=True))


LOADS = """
import sys, torch
{imports}
model = torch._inductor.aoti_load_package(sys.argv[1])
for rows in (4, 9):
    x, want = torch.load(f"{{sys.argv[1]}}.{{rows}}")
    with torch.no_grad():
        assert torch.equal(model(x), want)
print("right")
"""


@pytest.mark.slow
def test_a_model_compiled_ahead_of_time_runs_where_the_operators_are_defined(tmp_path: Path) -> None:
    """For several numbers of rows; torch refuses, by name, a process without them."""
    layers = DenseLinear.of(layer(128), activation="gelu"), QuantizedLinear.from_linear(layer())
    model, package = torch.nn.Sequential(*layers).eval(), str(tmp_path / "m.pt2")
    rows = torch.export.Dim("rows", min=2, max=64)
    with torch.no_grad():
        exported = torch.export.export(model, (X,), dynamic_shapes=({0: rows},))
        torch._inductor.aoti_compile_and_package(exported, package_path=package)
        for count in (4, 9):
            x = normal(count, 128)
            torch.save((x, model(x)), f"{package}.{count}")
    own = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
    for imports, said in (("import layoutgemm.nn", "right"), ("", "Could not find schema for layoutgemm::")):
        command = [sys.executable, "-c", LOADS.format(imports=imports), package]
        done = subprocess.run(command, env=own, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert said in done.stdout + done.stderr, done.stderr
