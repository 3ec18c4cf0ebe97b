"""The benchmark of packed weights: its configurations have kernels, and its check finds wrong results."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests import needs

torch = needs.module("torch")

from benchmarks import bench_quantized
from benchmarks.bench_quantized import (
    DEFAULT,
    FORMATS,
    INT4,
    PROFILED,
    ROWS,
    SHAPES,
    Row,
    add,
    counted,
    others,
    product,
    random_weight,
    timed,
    wrong,
)
from docs import tables
from layoutgemm import quantize, quantized_matmul
from layoutgemm.kernels.sm90.plan import Sm90Plan
from layoutgemm.kernels.streamed.plan import StreamedConfig, StreamedPlan
from tests.benchmarks.model_device import ModelDevice

RECORD = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "quantized_h200.json"


@pytest.mark.parametrize("rows", ROWS)
def test_every_configuration_has_a_plan(rows: int) -> None:
    fmt = FORMATS[INT4]
    found = list(others(rows).values())
    assert len(set(found)) == len(found)
    for config in found:
        if isinstance(config, StreamedConfig):
            assert StreamedPlan.derive(8192, rows, 4096, config=config, weights=fmt).config == config
            continue
        plan = Sm90Plan.derive(8192, rows, 8192, b="bf16:col", c="bf16:col", config=config, weights=fmt)
        assert plan.config.tile == config.tile


@pytest.mark.parametrize("name", ["int4 column", "e4m3 column"])
def test_repeated_weights_are_right_and_a_wrong_element_is_found(name: str) -> None:
    weight = random_weight(FORMATS[name], 2048, 128, torch.bfloat16, "cpu")
    assert weight.dense().shape == (2048, 128) and torch.equal(*weight.dense().split(1024))
    x = torch.randn(3, 128).bfloat16()
    c = quantized_matmul(x, weight)
    assert wrong(c, x, weight) <= 1
    c[2, 1500] += 1
    assert wrong(c, x, weight) > 1
    c[2, 1500] = float("nan")
    assert wrong(c, x, weight) == float("inf")


def test_a_wrong_element_of_float8_activations_is_found() -> None:
    weight = random_weight(FORMATS[INT4], 64, 128, torch.float8_e4m3fn, "cpu")
    x, scale = quantize(torch.randn(3, 128), "RowWise")
    c = product(weight, x, None, scale.reshape(-1))()
    assert c.dtype == torch.bfloat16 and wrong(c, x, weight, scale) <= 1
    c[2, 50] += 1
    assert wrong(c, x, weight, scale) > 1


def test_weights_that_do_not_repeat_are_refused() -> None:
    with pytest.raises(ValueError, match="1500 rows of weights are no multiple of 1024"):
        random_weight(FORMATS[INT4], 1500, 128, torch.bfloat16, "cpu")


def test_counters_are_those_of_the_kernels_that_were_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """ncu prints lines of names and of units, and one for each launch."""
    launches = [f'"{i}","kernel","{1000 + i}"' for i in range(len(PROFILED))]

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        assert command[0] == "ncu" and command[-1] == "--profile"
        lines = ['"ID","Kernel Name","gpu__time_duration.sum"', '"","","ns"', *launches]
        return subprocess.CompletedProcess(command, 0, "\n".join(["==PROF== connected", *lines]))

    monkeypatch.setattr(subprocess, "run", run)
    found = counted()
    assert [(each["rows"], each["n"], each["k"]) for each in found] == [*PROFILED]
    assert (found[0]["us"], found[-1]["us"]) == (1.0, 1.01)
    launches.pop()
    with pytest.raises(RuntimeError, match=f"{len(PROFILED) - 1} kernels of {len(PROFILED)} products"):
        counted()


def test_more_rows_of_8_bits_are_compared_with_bf16_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = []
    for count, size in ((16, 8), (64, 8), (64, 16)):
        row = Row("int8 column", size, 128, count, 4.0, {DEFAULT: 5.0 * count, "bf16 matmul": 400.0, "torch.mm": 480.0})
        rows.append(row.recorded)
    monkeypatch.setattr(tables, "record", lambda name: {"rows": rows})
    assert tables.quantized_bytes_table().splitlines()[2:] == [
        f"| int8 column | 8{tables.NO_BREAK}128 | 80.0 (20.00) | 320 (1.25) |",
        f"| int8 column | 16{tables.NO_BREAK}128 | - | 320 (1.25) |",
    ]


def test_contenders_are_kept_timed_or_named() -> None:
    row, device, calls = Row(INT4, 8, 128, 1, 1.0), ModelDevice(), {}

    def refuse() -> None:
        raise RuntimeError("no kernel")

    add(row, calls, DEFAULT, [lambda: device.idle(3e-6)], lambda c: 0.5)
    add(row, calls, "off", [lambda: 0], lambda c: 2.0)
    add(row, calls, "refused", [refuse], lambda c: 0.0)
    assert list(calls) == [DEFAULT]
    assert row.errors == {"off": "wrong: 2 times the bound", "refused": "RuntimeError: no kernel"}
    timed(device, row, calls, 3)
    assert row.recorded["us"] == {DEFAULT: 3.0}


def test_groups_of_rows_are_compared_and_timed_with_their_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"EXPERTS": 2, "_UNLIKE": 1, "EXPERT_SIZES": ((64, 128),), "EXPERT_FORMATS": (INT4,)}
    for name, value in small.items():
        monkeypatch.setattr(bench_quantized, name, value)
    rows, peers = [], {bench_quantized.LOOP, bench_quantized.GROUPED, bench_quantized.TORCH_GROUPED}
    monkeypatch.setattr(bench_quantized, "timed", lambda device, row, calls, rounds: row.us.update(calls))
    bench_quantized.measured_experts(ModelDevice(), 1e12, 3, rows.append, 1, "cpu")
    right = bench_quantized.wrong
    monkeypatch.setattr(bench_quantized, "wrong", lambda c, x, weight: right(c + (c.shape[0] == 2), x, weight))
    bench_quantized.measured_experts(ModelDevice(), 1e12, 3, rows.append, 1, "cpu")
    assert [(row.format, row.rows, {*row.us}) for row in rows] == [
        ("int4 g128 experts", 3, {DEFAULT, *peers}),
        ("int4 g128 experts", 3, peers - {bench_quantized.LOOP}),
    ]


def test_the_record_has_every_row_and_its_choice() -> None:
    rows = json.loads(RECORD.read_text(encoding="utf-8"))["rows"]
    assert {(row["rows"], row["n"], row["k"]) for row in rows} >= {(m, *nk) for m in ROWS for nk in SHAPES}
    assert {row["format"] for row in rows} == set(FORMATS)
    assert all(DEFAULT in row["us"] for row in rows)
