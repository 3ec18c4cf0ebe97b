"""The benchmark of whole programs: each agrees with its formula, and a wrong result is named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests import needs

torch = needs.module("torch")

from benchmarks import bench_programs
from benchmarks.bench_programs import PROGRAMS, Program, fault, tiles_of
from benchmarks.configurations import of_programs
from docs import tables
from layoutgemm.kernels import Combined
from layoutgemm.kernels.epilogue.chain import Epilogue, Quantize, Residual, RowReduce

SIZE = 128


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes for a CPU."""
    for name, value in (("VOCABULARY", 264), ("WIDTH", 64), ("ROUTED", 40)):
        monkeypatch.setattr(bench_programs, name, value)


def made(name: str) -> Program:
    torch.manual_seed(0)
    return PROGRAMS[name](SIZE)


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_program_agrees_with_its_formula(name: str) -> None:
    program = made(name)
    operands = program.operands("cpu")
    assert fault(program, operands) == ""
    program.alone(*operands)


def test_a_wrong_result_is_named() -> None:
    program = made("router")
    operands = program.operands("cpu")
    off = replace(program, ours=lambda a, b: program.ours((a.float() * 1.01).bfloat16(), b))
    assert fault(off, operands).startswith("result 0 is off by")
    runs = iter(range(2))
    random = replace(program, ours=lambda a, b: (torch.full((SIZE,), float(next(runs))), *program.ours(a, b)[1:]))
    assert fault(random, operands) == "result 0 has other bits in a second call"


def test_other_configurations_have_kernels() -> None:
    """Each derives with its program's epilogue; one that is refused, or is wrong, is left out and says so."""
    sizes = {
        "router": (8192, 256, 7168), "quantised": (8192,) * 3, "cross-entropy": (8192, 128256, 8192),
        "rms norm": (8192,) * 3, "dual": (8192,) * 3,
    }  # fmt: skip
    gated = {"dual": Combined.of(lambda g, u, ops: g * ops.sigmoid(g) * u)}
    steps = {
        "router": Epilogue(RowReduce("argmax"), stores_c=False), "quantised": Epilogue(Quantize()),
        "cross-entropy": Epilogue(RowReduce("log_sum_exp"), RowReduce("sum"), stores_c=False),
        "rms norm": Epilogue(Residual("bf16"), RowReduce("sum_of_squares")), "dual": Epilogue(),
    }  # fmt: skip
    for name, (m, n, k) in sizes.items():
        for choice in of_programs(name).values():
            c = "e4m3" if name == "quantised" else "bf16"
            assert choice.plan(m, n, k, b="bf16:col", c=c, epilogue=steps[name].in_pairs(), gated=gated.get(name))


def test_configurations_that_fail_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    program = made("router")

    def tiled(a: torch.Tensor, b: torch.Tensor, config: object) -> tuple[torch.Tensor, ...]:
        if config == of_programs("router")["alone"]:
            raise ValueError("no such kernel")
        value, index = program.ours(a, b)
        return value + (config == of_programs("router")["256B"]), index

    found = tiles_of("router", replace(program, tiled=tiled), program.operands("cpu"), 1)
    assert len(found) == len(of_programs("router")) - 2
    said = capsys.readouterr().out
    assert "alone: no such kernel" in said and "256B: result 0 is off" in said


def test_the_record_has_every_program_and_no_fault() -> None:
    found = tables.record("programs", "h100")
    assert not found["faults"] and set(found["programs"]) == set(PROGRAMS)
    assert all({row["size"] for row in rows} == set(bench_programs.SIZES) for rows in found["programs"].values())
