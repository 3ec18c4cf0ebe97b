"""Kernels compiled before they are needed: what torch functions would launch, collected without a launch."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

import layoutgemm
from layoutgemm import QuantizedFormat, QuantizedWeight, Sm90Config, nn
from layoutgemm.errors import PlanError
from layoutgemm.kernels.compile import cache, compiler, worker
from layoutgemm.kernels.compile.ahead import KernelsAhead
from layoutgemm.kernels.epilogue.chain import Epilogue, RowReduce
from layoutgemm.kernels.fp8.plan import JoinedPlan, QuantizePlan
from layoutgemm.kernels.gates.plan import GatePlan
from layoutgemm.kernels.quantized.dense import DensePlan
from layoutgemm.kernels.run import occupancy
from layoutgemm.kernels.sm90.plan import Sm90Plan
from layoutgemm.torch_op import compile_ahead, tune_call

pytestmark = pytest.mark.dsl
SMALL = Sm90Config((64, 64), consumers=1, stages=2, loader="warp")
BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LAYOUTGEMM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(compiler, "_LOADED", {})


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The plans that are compiled, none of them for real."""
    asked: list[Any] = []
    monkeypatch.setattr(
        "layoutgemm.kernels.compile.ahead.build", lambda plans, *_: [asked.extend(plans) or ""] * len(plans)
    )
    yield asked


def drawn(*shape: int) -> Any:
    return torch.randint(-3, 4, shape, device="cuda").to(BF16)


def calls() -> dict[str, tuple[Callable[[], Any], int]]:
    """A call of each kind, and how many kernels it launches."""
    x, w, offsets = drawn(64, 64), drawn(64, 64), torch.tensor([0, 10, 64], device="cuda", dtype=torch.int32)
    a, experts, ends = x.to(torch.float8_e4m3fn), drawn(2, 64, 64), offsets[1:].clone()
    scale = torch.ones(1, 1, device="cuda")
    packed = QuantizedWeight.quantize(torch.ones(64, 128), QuantizedFormat("int4", 128)).to("cuda")
    layer, leaf = nn.DenseLinear(64, 64, dtype=BF16, device="cuda"), x.clone().requires_grad_()
    sums, given = Epilogue(RowReduce("sum", "sums")), {"sums": torch.zeros(64, device="cuda")}
    return {
        "matmul": (lambda: layoutgemm.matmul(x, w), 1),
        "of several matrices": (lambda: layoutgemm.matmul(x, (w.T, w.T), combine="silu", config=SMALL), 1),
        "an epilogue": (lambda: layoutgemm.matmul(x, w, epilogue=sums, given=given, config=SMALL), 1),
        "scaled_matmul": (lambda: layoutgemm.scaled_matmul(a, scale, a.T, scale, config=SMALL), 1),
        "grouped_matmul": (lambda: layoutgemm.grouped_matmul(x, experts, offsets, config=SMALL), 1),
        "along K": (lambda: layoutgemm.grouped_matmul(x.T, w, offs=ends, config=SMALL), 1),
        "quantize": (lambda: layoutgemm.quantize(drawn(64, 128)), 1),
        "quantized_matmul": (lambda: layoutgemm.quantized_matmul(drawn(8, 128), packed), 1),
        "a layer": (lambda: layer(x), 1),
        "both passes": (lambda: torch.autograd.grad(layer(leaf).float().sum(), (leaf, layer.weight)), 3),
    }


def test_kernels_are_collected_and_none_is_launched(answers: list[Any]) -> None:
    with layoutgemm.emulated_gpu("hopper") as gpu:
        for name, (call, count) in calls().items():
            with compile_ahead() as found:
                call()
                call()
            assert not gpu.runs and 1 <= len(found.plans) <= count, name
            assert answers == found.plans and not found.failed, name
            assert not any(hasattr(plan, "_compiled_gemm") for plan in found.plans), name
            answers.clear()


def test_a_call_after_it_is_launched_from_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    x = torch.arange(64.0).reshape(8, 8).bfloat16()

    def call() -> Any:
        return layoutgemm.matmul(x.cuda(), x.cuda(), config=SMALL)

    with layoutgemm.emulated_gpu("hopper") as gpu:
        with compile_ahead(jobs=1, progress=lines.append) as found:
            call()
        assert not gpu.runs and str(found) == "1 kernels: 1 compiled, 0 in the cache before"
        assert lines[-1].startswith("compiling: 1 of 1 kernels after")
        monkeypatch.setattr(worker, "_POOL", None)  # nothing is asked of a worker
        monkeypatch.setattr(compiler, "_machine_code", None)
        assert torch.equal(call().cpu().float(), (x.float() @ x.float()).bfloat16().float()) and len(gpu.runs) == 1
        with compile_ahead() as found:  # a kernel that was launched before
            call()
        assert len(gpu.runs) == 1 and str(found) == "1 kernels: 0 compiled, 1 in the cache before"
        call()
        assert len(gpu.runs) == 2


def test_the_gpus_occupancy_stays_known(answers: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """To measure it again takes as long as to compile a kernel."""
    asked: list[int] = []
    cached = functools.lru_cache(lambda index: asked.append(index))
    cached.__module__ = occupancy.__name__
    monkeypatch.setattr(occupancy, "measured", cached, raising=False)
    cached(0)
    with compile_ahead():
        cached(0)
    cached(0)
    assert asked == [0]
    with layoutgemm.emulated_gpu("hopper"):  # another GPU
        cached(0)
    assert asked == [0, 0]


def test_each_function_of_torch_asks_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for a kernel that neither memory nor the cache has; conftest compiles all others here."""
    asked: list[Any] = []
    monkeypatch.setattr(compiler, "asking", getattr(compiler.asking, "real", compiler.asking))
    monkeypatch.setattr(worker, "prepare", lambda plan, facts: asked.append((type(plan).__name__, facts["arch"])))
    for plan in (QuantizePlan("bf16", "e4m3", 1), Sm90Plan.derive(8, 8, 8, config=SMALL)):
        for _ in range(2):
            worker.compile_apart(plan)
    assert asked == [("QuantizePlan", "sm_90a"), ("Sm90Plan", "sm_90a")]


def test_an_error_compiles_nothing_and_launches_go_on(answers: list[Any]) -> None:
    with pytest.raises(KeyError), compile_ahead():
        raise KeyError("a user's")
    assert answers == [] and compiler.AHEAD == []


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusal(**options: Any) -> str:
        with pytest.raises(PlanError) as error, compile_ahead(**options):
            pass
        return str(error.value)

    assert refusal(jobs=0) == "jobs must be at least 1, not 0"
    assert refusal(progress=3) == "progress = 3: a function of a line of text, or None"
    with compile_ahead():
        assert refusal().startswith("compile_ahead within another")
    monkeypatch.setenv("LAYOUTGEMM_CACHE_DIR", "")
    assert "LAYOUTGEMM_CACHE_DIR switches it off" in refusal()


def test_no_time_is_measured_where_nothing_runs_on_a_gpu() -> None:
    """A result would be kept for the GPU that the emulated one is named after."""
    with compile_ahead(), pytest.raises(PlanError, match="tuning measures time, and within compile_ahead nothing"):
        layoutgemm.tune(64, 64, 64)
    with layoutgemm.emulated_gpu("hopper"):
        x = torch.ones(8, 8, device="cuda").bfloat16()
        for measure in (lambda: layoutgemm.tune(64, 64, 64), lambda: tune_call(layoutgemm.matmul, x, x)):
            with pytest.raises(PlanError, match="tuning measures time, and an emulated GPU has none of its own"):
                measure()


def test_a_kernel_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("layoutgemm.kernels.compile.ahead.build", lambda plans, *_: ["no registers", ""])
    found = KernelsAhead([QuantizePlan("bf16", "e4m3", 1), QuantizePlan("f16", "e4m3", 1)])
    found.compile()
    assert found.failed == ((found.plans[0], "no registers"),)
    assert str(found) == "2 kernels: 1 compiled, 0 in the cache before, 1 failed: no registers"


@pytest.mark.parametrize(
    "plan",
    [
        QuantizePlan("bf16", "e4m3", 1), JoinedPlan((QuantizePlan("bf16", "e4m3", 1),)), GatePlan("bf16", "silu"),
        DensePlan(QuantizedFormat("int4", 128), "bf16", "sm_90a"),
    ],
    ids=lambda plan: type(plan).__name__,
)  # fmt: skip
def test_a_plan_that_is_no_product_reaches_a_worker(plan: Any) -> None:
    assert worker.received(worker.sent(plan)) == plan
    assert compiler.facts_of(plan)["arch"] == "sm_90a"
    changed = [compiler.facts_of(each) for each in (plan, QuantizePlan("f32", "e4m3", 1))]
    assert cache.key_of(changed[0]) != cache.key_of(changed[1])


SCRIPT = """
import sys, torch, layoutgemm
from layoutgemm.kernels import Sm90Config
small = Sm90Config((64, 64), consumers=1, stages=2, loader="warp")
x = torch.ones(8, 8, device="cuda").bfloat16()
layoutgemm.matmul(x, x, config=small)
print(*sys.argv[1:])
sys.exit(int(sys.argv[1]))
"""


def test_the_command_compiles_what_a_gpu_launches(tmp_path: Path) -> None:
    """Without lines of the source, which an emulated GPU's kernels have."""
    script = tmp_path / "serve.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "layoutgemm", "compile", "--json", "--arch", "hopper", str(script)]
    done = subprocess.run([*command, "4"], capture_output=True, text=True, timeout=300)
    printed, last = done.stdout.splitlines()
    assert printed == "4" and done.returncode == 3, done.stderr
    assert json.loads(last) == {"kernels": 1, "ready": 0, "failed": [], "status": 4}
    wanted = Sm90Plan.derive(8, 8, 8, config=SMALL)
    assert cache.kept(compiler.facts_of(wanted)) and worker.compile_apart(wanted).cached
