"""`layoutgemm bench` on a model of a device: what it measures, prints and refuses; the measuring itself is a GPU's."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from layoutgemm.bench import matmul as bench_matmul
from layoutgemm.bench.method import BenchProblem
from layoutgemm.cli import bench
from layoutgemm.cli.bench import ProgressLine, shapes_of
from layoutgemm.cli.main import main
from layoutgemm.errors import OperandError, PlanError
from tests import needs
from tests.cli.test_main import refusal

torch = needs.module("torch")

from layoutgemm.torch_op import api as torch_op
from layoutgemm.torch_op import explain as torch_explain
from tests.benchmarks.model_device import ModelDevice, timed


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> ModelDevice:
    """A GPU model: torch.mm takes 2 us, matmul 1 us, cuBLASLt's proposals 1.5 and 3 us."""
    found, matmul = ModelDevice(throttle=1.25), torch_op.matmul

    def in_one_us(a: Any, b: Any, **options: Any) -> Any:
        found.now += 1e-6
        return matmul(a, b, **options)

    proposals = [timed(found, f"cublasLt#{i}", cost, "cublasLt") for i, cost in enumerate((1.5e-6, 3e-6))]
    monkeypatch.setattr(torch_op, "matmul", in_one_us)
    monkeypatch.setattr(bench_matmul, "torch_mm", lambda problem: [timed(found, "torch.mm", 2e-6)])
    monkeypatch.setattr(bench_matmul, "cublaslt", lambda problem: proposals)
    monkeypatch.setattr(bench_matmul, "cuda_device", lambda problem: (found, {"gpu": "a model", "driver": None}))
    monkeypatch.setattr(bench_matmul, "MAX_SETS", 1 << 20)
    monkeypatch.setattr(BenchProblem, "sets", property(lambda self: 2))
    monkeypatch.setattr(BenchProblem, "launches", property(lambda self: 4))
    monkeypatch.setattr(bench.gc, "collect", lambda: 0)  # the model has no memory to free
    return found


def test_a_product_with_its_kernel_and_the_reason(device: ModelDevice, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "48", "32", "64", "--rounds", "3"]) == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    a, b = torch.empty(48, 64).bfloat16(), torch.empty(32, 64).bfloat16()
    told = torch_explain.explain_matmul(a, b.T)
    assert lines[0] == "gpu a model" and not said.err
    assert lines[2:4] == [f"48x32x64: {told.kernel}", f"    because {told.why}"]
    assert lines[5].split()[:2] == ["1.00", "us"] and lines[5].split()[5] == "2.000"
    assert lines[5].endswith("| layoutgemm") and lines[6].endswith("| torch.mm") and len(lines) == 7
    # the columns stand under their names
    assert [at for at, c in enumerate(lines[4]) if c == "|"] == [at for at, c in enumerate(lines[5]) if c == "|"]


def test_several_shapes_end_in_a_table_and_n_major_is_named(
    device: ModelDevice, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "48x32x64,64", "16x8x8", "--b-major", "n", "--rounds", "1", "--sustained"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-4].split()[:2] == ["M", "x"] and [line.split()[0] for line in lines[-3:]] == [
        "48x32x64", "64x64x64", "16x8x8",
    ]  # fmt: skip
    assert all("B n-major" in line and "1500  650" in line for line in lines[-3:])


def test_for_programs(device: ModelDevice, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "48", "32", "64", "--peers", "--sustained", "--rounds", "3", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    (row,) = said["outcomes"]
    assert said["ok"] and said["facts"]["rounds"] == 3 and "driver" not in said["facts"]
    assert row["times_torch_mm"] == pytest.approx(2.0) and row["seconds"] == pytest.approx(1e-6)
    assert row["kernel"].startswith("Sm90") and row["why"] and row["copies"] == []
    assert {m["name"] for m in row["measured"]} == {"torch.mm", "cublasLt#0", "cublasLt#1", "layoutgemm"}
    assert all(len(m["burst"]) == 3 for m in row["measured"])
    assert [m["name"] for m in row["measured"] if m["sustained"]] == ["torch.mm", "cublasLt#0", "layoutgemm"]


def test_a_kernel_of_ours_that_is_wrong_is_the_status(
    device: ModelDevice, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch_op, "matmul", lambda a, b, out: out.copy_(a.float() @ b.float() + 9))
    assert main(["bench", "48", "32", "64", "--rounds", "1"]) == 1
    assert "FAILED layoutgemm: wrong: an element of C is off" in capsys.readouterr().out


def test_a_kernel_that_does_not_exist_is_the_status(
    device: ModelDevice, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none(*operands: Any, **options: Any) -> None:
        raise OperandError("no kernel for it")

    monkeypatch.setattr(torch_explain, "explain_matmul", none)
    assert main(["bench", "48", "32", "64", "--rounds", "1"]) == 1
    text = capsys.readouterr().out
    assert "48x32x64: no kernel" in text and "FAILED layoutgemm: OperandError: no kernel for it" in text


def test_copies_are_reported(device: ModelDevice, capsys: pytest.CaptureFixture[str]) -> None:
    """Lines of 20 bytes: no tensor copy reads them."""
    assert main(["bench", "48", "32", "10", "--rounds", "1", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["outcomes"]
    told = torch_explain.explain_matmul(torch.empty(48, 10).bfloat16(), torch.empty(32, 10).bfloat16().T)
    assert (row["copies"], row["why"]) == (list(told.copies), told.why)


def test_a_gpu_that_is_lost_or_full_is_one_line(
    device: ModelDevice, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(problem: BenchProblem, seed: int) -> Any:
        raise torch.OutOfMemoryError("Tried to allocate 3 GB")

    operands = device.operands
    monkeypatch.setattr(device, "operands", full)
    text = "layoutgemm: OperandError: 48x32x64: operands and float64 products of 0.0 GB do not fit\n"
    assert main(["bench", "48", "32", "64"]) == 2 and capsys.readouterr().err == text
    # what was measured before is not lost
    monkeypatch.setattr(device, "operands", lambda p, seed: full(p, seed) if p.m == 48 else operands(p, seed))
    assert main(["bench", "16x32x64,48x32x64", "--rounds", "1"]) == 1
    said = capsys.readouterr()
    assert "16x32x64: Sm90" in said.out and said.err == text
    assert main(["bench", "16x32x64,48x32x64", "--rounds", "1", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert not data["ok"] and "do not fit" in data["error"] and len(data["outcomes"]) == 1
    device.dead = True
    with pytest.raises(PlanError, match=r"16x32x64: torch\.mm has broken the device"):
        bench_matmul.compare(device, BenchProblem(16, 32, 64))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("bench", "see layoutgemm bench --help"),
        ("bench 16 16 16", "too small, A, B and C have 1536 bytes"),
        ("bench 4096 8192", "three numbers are M N K; squares are written 4096,8192"),
        ("bench 4096x8192", "shapes are written M N K or MxNxK,MxNxK"),
        ("bench 4096 --rounds 0", "'0' is not a number of rounds, 1 or more; see layoutgemm bench --help"),
        ("bench 0 4096 4096", "sizes must be positive"),
        ("bench 4096 4096 4096 --b-major m", "see layoutgemm bench --help"),
    ],
)
def test_refusals(capsys: pytest.CaptureFixture[str], arguments: str, text: str) -> None:
    assert text in refusal(capsys, arguments)


def test_without_a_gpu_alternatives_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    said = refusal(capsys, "bench 4096 512 4096")
    assert "torch finds none; without one `layoutgemm plan 4096 512 4096 -b bf16:col`" in said
    monkeypatch.setattr(bench_matmul.importlib.util, "find_spec", lambda name: None)
    assert "through torch, which is not installed" in refusal(capsys, "bench 4096 512 4096")
    assert main(["bench", "4096", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["ok"] is False


def test_shapes() -> None:
    assert shapes_of(["1", "2", "3"]) == [(1, 2, 3)] and shapes_of(["7"]) == [(7, 7, 7)]
    assert shapes_of(["8,1x2x3", "9"]) == [(8, 8, 8), (1, 2, 3), (9, 9, 9)]


def test_progress_is_for_terminals() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, shown in ((Terminal(), "\r\x1b[Kchecking\r\x1b[K"), (io.StringIO(), "")):
        with ProgressLine(stream) as progress:
            progress.show("checking")
        assert stream.getvalue() == shown
